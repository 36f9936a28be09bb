//! Writes of clients that have several ways to a volume: other nodes, or other connections.
//!
//! Such a client gives a way up that is slow or gone, goes another, is answered, and writes something newer to the same
//! place. What is left of it on the first way, held for want of a primary or long in coming, must not come after that. Then
//! the client is told that this way failed; if it still waits there, it asks anew.
//!
//! Always: such a write is let in by the primary only in the reign that the node which took it from the client knew
//! then; and only if no such write overlaps it that came another way and was let in after what the primary had told
//! that node when it took it.
//!
//! Not here: what becomes of a write that is let in (`write`), or took effect before (`once`).

use super::op::{Client, Origin};
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::collections::VecDeque;
use base::{AnswerError, NodeId, Span, VolumeId};
use wire::Moment;

/// Writes that are remembered: 320 KiB. A node that has heard of none of them has its client ask anew.
pub(super) const RECENT_MAX: usize = 8192;

/// One that was let in.
#[derive(Clone, Copy, Debug)]
struct Recent {
    way: (NodeId, u32),
    volume: VolumeId,
    span: Span,
}

/// What was let in as primary, and what the primary told.
#[derive(Debug, Default)]
pub(super) struct Multipath {
    /// As primary: the present moment.
    now: Moment,
    /// Of its reign, the last that were let in.
    recent: VecDeque<Recent>,
    /// The newest that the primary told.
    told: Moment,
}

impl Shard {
    /// The newest moment of the present reign that is known here.
    pub(super) fn moment(&self) -> Moment {
        let reign = self.reign();
        let known = if self.is_primary() { self.multipath.now } else { self.multipath.told };
        if known.reign == reign { known } else { Moment { reign, number: 0 } }
    }

    /// The primary told how far it is.
    pub(super) fn learn_moment(&mut self, moment: Option<Moment>) {
        self.multipath.told = self.multipath.told.max(moment.unwrap_or_default());
    }

    /// Whether it was taken from its client before this reign was known, or after another was.
    pub(super) fn is_of_another_reign(&self, client: &Client) -> bool {
        client.way.is_some_and(|(_, moment)| moment.reign != self.reign())
    }

    /// As primary: whether nothing newer can have come another way, which is so of all whose client has only one.
    /// What is let in counts from then on.
    pub(super) fn lets_in(&mut self, client: &Client) -> bool {
        let Some((way, moment)) = client.way else { return true };
        let way = match client.origin {
            Origin::Local(_) => (self.node, way),
            Origin::Peer { node, .. } => (node, way),
        };
        let (volume, span) = (client.request.volume, client.request.span);
        let now = self.moment();
        let paths = &mut self.multipath;
        if paths.now.reign != now.reign {
            paths.now = now;
            paths.recent.clear();
        }
        let since = now.number.checked_sub(moment.number).and_then(|n| usize::try_from(n).ok());
        let Some(since) = since.filter(|&since| since <= paths.recent.len()) else { return false };
        let newer = paths.recent.iter().rev().take(since);
        let overtaken = newer.clone().any(|recent| {
            recent.way != way && recent.volume == volume && recent.span.overlaps(span)
        });
        if moment.reign != now.reign || overtaken {
            return false;
        }
        if paths.recent.len() >= RECENT_MAX {
            paths.recent.pop_front();
        }
        paths.recent.push_back(Recent { way, volume, span });
        paths.now.number += 1;
        true
    }

    /// Its client may have asked elsewhere meanwhile.
    pub(super) fn answer_late(&mut self, client: &Client, out: &mut Out) {
        out.push(ShardOutput::Mark("a write came too late by one of several ways"));
        self.answer(client, Err(AnswerError::Path), None, out);
        self.release(client.request.buffer, out);
    }
}

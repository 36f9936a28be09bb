//! Writes of clients that have several ways to a volume: other nodes, or other connections.
//!
//! Such a client gives a way up that is slow or gone, goes another, is answered, and writes something newer to the same
//! place. What is left of it on the first way, held for want of a primary or long in coming, must not come after that. Then
//! the client is told that this way failed; if it still waits there, it asks anew. Of some it is known that for a while they
//! surely go no other way.
//!
//! Always: such a write is let in by the primary only in the reign that the node which took it from the client knew
//! then; and only if no such write overlaps it that came another way and was let in after what the primary had told
//! that node when it took it; nor has any host gained or lost a right to the volume since, nor a fork begun; and where
//! an earlier reign may have gone on beside this one, only if it was taken since this one serves.
//!
//! Not here: what becomes of a write that is let in (`write`), or took effect before (`once`).

use super::op::{Client, Origin};
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::collections::VecDeque;
use base::{AnswerError, NodeId, Span, VolumeId};
use wire::{Configuration, Moment, VolumeReservations};

/// Writes that are remembered: 320 KiB. A node that has heard of none of them has its client ask anew.
pub(super) const RECENT_MAX: usize = 8192;

/// What makes an older write come too late.
#[derive(Clone, Copy, Debug)]
enum Recent {
    Write {
        way: (NodeId, u32),
        volume: VolumeId,
        span: Span,
    },
    /// What hosts may do with this volume changed: what was taken from one before is none of those that it asks for now.
    Rights(VolumeId),
}

/// What was let in as primary, and what the primary told.
#[derive(Debug, Default)]
pub(super) struct Multipath {
    /// As primary: the present moment.
    now: Moment,
    /// Of its reign, the last that were let in, and changes among them.
    recent: VecDeque<Recent>,
    /// The newest that the primary told.
    told: Moment,
}

impl Multipath {
    /// What is known at this moment, which is the present one: nothing, in a new reign.
    fn at(&mut self, now: Moment) -> &mut Multipath {
        if self.now.reign != now.reign {
            self.now = now;
            self.recent.clear();
        }
        self
    }

    fn remember(&mut self, one: Recent) {
        const { assert!(size_of::<Recent>() <= 40) };
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(one);
        self.now.number += 1;
    }
}

impl Shard {
    /// The newest moment of the present reign that is known here.
    pub(super) fn moment(&self) -> Moment {
        let reign = self.reign();
        let known = if self.is_primary() { self.multipath.now } else { self.multipath.told };
        if known.reign == reign { known } else { Moment { reign, number: 0 } }
    }

    /// A node told how far it is: it counts if that is the primary, in its reign. Another side of the history may have one of
    /// a higher number, or of the same, and what its primary said before this node came here may arrive after that.
    pub(super) fn learn_moment(&mut self, node: NodeId, moment: Option<Moment>) {
        let known = self.configuration.as_ref();
        let counts = |moment: &Moment| {
            known.is_some_and(|known| known.primary == Some(node) && known.reign == moment.reign)
        };
        if let Some(moment) = moment.filter(counts) {
            self.multipath.told = self.multipath.told.max(moment);
        }
    }

    /// The primary is one of another side of the history.
    pub(super) fn forget_moment(&mut self) {
        self.multipath.told = Moment::default();
    }

    /// As primary that goes on in a fork, or begins to serve where no majority is needed: what was taken from clients before is asked for
    /// anew. It may have been asked for by another way, and answered, on a side that was given up: whoever was told that this is gone waits for nothing any more.
    /// Or by a primary of an earlier reign, which goes on with all the copies in sync until the last of them acts on this one.
    pub(super) fn forget_ways(&mut self) {
        if !self.is_primary() {
            return;
        }
        let now = self.moment();
        let paths = self.multipath.at(now);
        paths.recent.clear();
        paths.now.number += 1;
    }

    /// A client that surely waits here only counts as if it had asked just now.
    pub(super) fn while_it_stays(&self, client: &mut Client) {
        if self.now < client.stays_until
            && let Some((_, moment)) = &mut client.way
        {
            *moment = self.moment();
        }
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
        let paths = self.multipath.at(now);
        let since = now.number.checked_sub(moment.number).and_then(|n| usize::try_from(n).ok());
        let Some(since) = since.filter(|&since| since <= paths.recent.len()) else { return false };
        let newer = paths.recent.iter().rev().take(since);
        let overtaken = newer.clone().any(|recent| match *recent {
            Recent::Write { way: other, volume: of, span: at } => {
                other != way && of == volume && at.overlaps(span)
            }
            Recent::Rights(of) => of == volume,
        });
        if moment.reign != now.reign || overtaken {
            return false;
        }
        paths.remember(Recent::Write { way, volume, span });
        true
    }

    /// As primary: where what hosts may do has changed, what waits since before is not carried out, not even once its host may
    /// write again.
    pub(super) fn note_rights(&mut self, old: &Configuration, new: &Configuration) {
        if !self.is_primary() {
            return;
        }
        let now = self.moment();
        let changed = |of: &&VolumeReservations| old.reservations_of(of.volume) != Some(of);
        for of in new.reservations.iter().filter(changed) {
            self.multipath.at(now).remember(Recent::Rights(of.volume));
        }
    }

    /// Its client may have asked elsewhere meanwhile.
    pub(super) fn answer_late(&mut self, client: &Client, out: &mut Out) {
        out.push(ShardOutput::Mark("a write came too late by one of several ways"));
        self.answer(client, Err(AnswerError::Path), None, out);
        self.release(client.request.buffer, out);
    }
}

//! Flushes that failed, until a client has heard of what may be lost by them.
//!
//! A disk says once what it could not make stable. The next flush works, and covers nothing of that. While other copies are in sync they have
//! it, and the copy that lost it is left out. The only copy stays: a client that waits for the flush is told. Where none
//! waits, or none hears it any more, the next one that asks for a flush is.
//!
//! Always: of what a copy lost that is the only one, or is so before it is left out, a client of its primary is told, as long as both
//! processes go on and the copy counts; perhaps once too often: where it is not known whether the first word of it was heard, or another
//! flush was under way when the first one failed. What is not told then `docs/not-shown.md` names.
//!
//! Not here: that the flush itself counts for nothing (`flush`, `local`), what else begins anew for it (`grow`, `takeover`).

use super::op::{Client, Origin};
use super::{OnlyDisk, Out, Shard};
use base::{AnswerError, NodeId, SessionId};

/// The primary was told that a flush failed here.
#[derive(Debug)]
pub(super) struct Told {
    node: NodeId,
    session: SessionId,
    /// A write that it was told after that, in the same session, is in its place: when it retires that one, it has heard both.
    after: Option<u64>,
}

impl Shard {
    /// A flush failed here. If this copy counts, that is to be told, unless others turn out to have what it lost.
    pub(super) fn note_flush_failed(&mut self) {
        if self.configuration.as_ref().is_some_and(|known| known.is_in_sync(self.node)) {
            self.only_disk.flush_untold = true;
            self.only_disk.untold_alone |= self.is_alone();
        }
    }

    /// The only copy, here or on another node, failed a flush, and no client hears of it.
    pub(super) fn note_untold(&mut self) {
        self.only_disk.flush_untold = true;
        self.only_disk.untold_alone = true;
    }

    /// A flush is over, for what the only copy lost: whoever waits for it is told.
    pub(super) fn tell_flush_failed(&mut self, id: u64, out: &mut Out) {
        let client = self.ops.get(&id).and_then(|op| op.client);
        if client.is_some_and(|client| self.hears(&client)) {
            self.only_disk.flush_untold = false;
            self.only_disk.untold_alone = false;
        } else if self.configuration.as_ref().is_some_and(|known| known.in_sync().count() == 1) {
            self.note_untold();
        }
        self.fail_op(id, AnswerError::Io, out);
        self.drop_own_flush(id);
    }

    /// Whether an answer that leaves now goes to somebody who waits for it.
    fn hears(&self, client: &Client) -> bool {
        match client.origin {
            Origin::Local(id) => !self.withdrawn.contains(&id),
            Origin::Peer { node, session, .. } => {
                self.peers.get(&node).is_some_and(|peer| peer.session == Some(session))
            }
        }
    }

    /// Whether the primary's next flush is to fail, so that its client is told what this copy, the only one, lost.
    pub(super) fn owes_word(&self) -> bool {
        self.only_disk.flush_untold && self.is_alone()
    }

    /// The primary is told so, as long as this session lasts. One for which this is not the only copy tells nobody, nor does one
    /// that is primary no more.
    pub(super) fn told_primary(&mut self, node: NodeId, session: SessionId) {
        let primary = self.configuration.as_ref().and_then(|known| known.primary);
        if self.is_alone() && primary == Some(node) {
            self.only_disk.flush_untold = false;
            self.only_disk.untold_alone = false;
            self.only_disk.told = Some(Told { node, session, after: None });
        }
    }

    /// The primary is told in its present session that a write is in its place.
    pub(super) fn note_written_since(&mut self, node: NodeId, sequence: u64) {
        if let Some(told) = &mut self.only_disk.told
            && told.node == node
            && told.after.is_none()
            && self.unretired.contains_key(&sequence)
        {
            told.after = Some(sequence);
        }
    }

    /// The primary retired a write.
    pub(super) fn note_retired(&mut self, sequence: u64) {
        if self.only_disk.told.as_ref().is_some_and(|told| told.after == Some(sequence)) {
            self.only_disk.told = None;
        }
    }

    /// What the primary was told in a session that ended it may not have heard.
    pub(super) fn untold_in(&mut self, node: NodeId, session: SessionId) {
        let of = |told: &Told| (told.node, told.session) == (node, session);
        if self.only_disk.told.as_ref().is_some_and(of) {
            self.tell_again();
        }
    }

    fn tell_again(&mut self) {
        if self.only_disk.told.take().is_some() {
            self.note_flush_failed();
        }
    }

    /// A configuration was installed. A primary in another reign has not heard, or not in time, what it was told. If this copy is in sync
    /// no more, others have what it lost, but where it was the only one they were made from it; then a primary goes on to tell it. On
    /// another side of the history nothing of that was lost.
    pub(super) fn keep_untold(&mut self, new_reign: bool, leaves_sync: bool, leaves_side: bool) {
        if leaves_side {
            self.only_disk.flush_untold = false;
            self.only_disk.told = None;
        }
        if new_reign {
            self.tell_again();
        }
        let OnlyDisk { flush_untold, untold_alone, told, .. } = &mut self.only_disk;
        if leaves_sync {
            *flush_untold &= *untold_alone && self.reigns;
            *told = None;
        }
        *untold_alone &= *flush_untold;
        let alone = self.is_alone();
        self.only_disk.untold_alone |= self.only_disk.flush_untold && alone;
    }
}

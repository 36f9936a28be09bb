//! Flush: every in-sync replica puts what it acknowledged on stable storage.

use super::local::Purpose;
use super::op::{Client, Flush, FlushFor, Kind, Own};
use super::peer::Peer;
use super::seats::NodeSet;
use super::{Out, Shard};
use crate::door::{DiskAnswer, FromShard, ShardOutput};
use alloc::vec::Vec;
use base::{NodeId, Span, VolumeId};
use wire::ShardMessage;

impl Shard {
    /// Starts a flush; it covers every write that is complete now.
    pub(super) fn start_flush(&mut self, client: Option<Client>, purpose: FlushFor, out: &mut Out) {
        let sequence = self.sequence();
        let own = self.own_part();
        let mut awaiting = NodeSet::default();
        for node in self.required_peers() {
            awaiting.add(self.seats.give(node));
        }
        let after = self.ops.iter().filter(|(_, op)| is_in_memory_only(&op.kind));
        let after: Vec<u64> = after.map(|(&id, _)| id).collect();
        let sent = NodeSet::default();
        let failed = NodeSet::default();
        let flush =
            Flush { sequence, own, awaiting, sent, failed, after, complete: false, purpose };
        let span = Span::new(0, 1).expect("one sector");
        let id = self.insert_op(client, VolumeId(0), span, Kind::Flush(flush));
        self.asked.insert(sequence, id);
        self.issue_flush(id, out);
    }

    /// Asks every disk, if nothing has to come first.
    fn issue_flush(&mut self, id: u64, out: &mut Out) {
        let Some(Kind::Flush(flush)) = self.ops.get(&id).map(|op| &op.kind) else { return };
        if !flush.after.is_empty() {
            return;
        }
        if flush.own == Own::Pending {
            self.local_flush(Purpose::Op(id), out);
        }
        for node in self.required_peers() {
            self.send_flush(id, node, out);
        }
        self.settle_flush(id, out);
    }

    /// A write is on every disk: flushes that waited for it may go on.
    pub(super) fn flushes_after(&mut self, write: u64, out: &mut Out) {
        let mut due: Vec<u64> = Vec::new();
        for (&id, op) in self.ops.iter_mut() {
            if let Kind::Flush(flush) = &mut op.kind
                && let Some(at) = flush.after.iter().position(|&other| other == write)
            {
                flush.after.swap_remove(at);
                if flush.after.is_empty() {
                    due.push(id);
                }
            }
        }
        for id in due {
            self.issue_flush(id, out);
        }
    }

    /// A write that was answered is not in its place, and the only disk failed it: flushes that waited for it fail.
    pub(super) fn fail_flushes_after(&mut self, write: u64, out: &mut Out) {
        let waits =
            |kind: &Kind| matches!(kind, Kind::Flush(flush) if flush.after.contains(&write));
        let due: Vec<u64> =
            self.ops.iter().filter(|(_, op)| waits(&op.kind)).map(|(&id, _)| id).collect();
        for id in due {
            self.tell_flush_failed(id, out);
        }
    }

    pub(super) fn send_flush(&mut self, id: u64, node: NodeId, out: &mut Out) {
        let Some(seat) = self.seats.find(node) else { return };
        if !self.is_ready(node) || !self.peers.get(&node).is_some_and(Peer::counts) {
            return;
        }
        let epoch = self.epoch();
        let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) else { return };
        if !flush.after.is_empty() || !flush.awaiting.has(seat) || flush.sent.has(seat) {
            return;
        }
        flush.sent.add(seat);
        let sequence = flush.sequence;
        self.send(node, ShardMessage::Flush { epoch, sequence }, None, out);
    }

    pub(super) fn on_flushed(&mut self, node: NodeId, sequence: u64, ok: bool, out: &mut Out) {
        if !ok {
            self.flush_failed(node, sequence, out);
            self.complain(node, true, out);
            return;
        }
        if self.on_sync_flushed(node, sequence, out) {
            return;
        }
        let Some(&id) = self.asked.get(&sequence) else { return };
        let Some(seat) = self.seats.find(node) else { return };
        if let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind)
            && flush.sent.has(seat)
        {
            flush.awaiting.drop(seat);
            self.settle_flush(id, out);
        }
    }

    /// If the peer is not excluded for it, it is asked again. The only copy in sync is not: a flush that works after one that
    /// failed covers nothing of what that one lost, and nobody else has it, so that its clients are told.
    fn flush_failed(&mut self, node: NodeId, sequence: u64, out: &mut Out) {
        let is_flush =
            |id: &u64| matches!(self.ops.get(id).map(|op| &op.kind), Some(Kind::Flush(_)));
        let asked = self.asked.get(&sequence).copied().filter(is_flush);
        if self.is_only_copy(node) {
            self.drop_open_growths();
            match asked {
                Some(id) => self.tell_flush_failed(id, out),
                None if self.is_primary() => self.note_untold(),
                None => {}
            }
            return;
        }
        let Some(seat) = self.seats.find(node) else { return };
        if let Some(Kind::Flush(flush)) =
            asked.and_then(|id| Some(&mut self.ops.get_mut(&id)?.kind))
        {
            flush.sent.drop(seat);
            flush.failed.add(seat);
        }
    }

    pub(super) fn on_own_flushed(&mut self, id: u64, answer: DiskAnswer, out: &mut Out) {
        let lost = answer == DiskAnswer::Failed || self.has_lost_some();
        if let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) {
            if flush.own == Own::Pending {
                flush.own = if lost { Own::Failed } else { Own::Done };
            }
            self.settle_own_flush(id, out);
            self.settle_flush(id, out);
        }
    }

    /// What a peer failed is so, too, if its copy is the only one since: `only` is its seat.
    pub(super) fn settle_failed_flush(&mut self, id: u64, only: Option<u32>, out: &mut Out) {
        if let Some(Kind::Flush(flush)) = self.ops.get(&id).map(|op| &op.kind)
            && only.is_some_and(|seat| flush.failed.has(seat) && flush.awaiting.has(seat))
        {
            self.drop_open_growths();
            self.tell_flush_failed(id, out);
        }
    }

    /// What the own disk failed is over if clients are told of that: also if it is the only one since.
    pub(super) fn settle_own_flush(&mut self, id: u64, out: &mut Out) {
        let told = self.is_alone() || self.passes_errors_on();
        if let Some(Kind::Flush(flush)) = self.ops.get(&id).map(|op| &op.kind)
            && flush.own == Own::Failed
            && told
        {
            self.tell_flush_failed(id, out);
        }
    }

    pub(super) fn settle_flush(&mut self, id: u64, out: &mut Out) {
        let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) else { return };
        if flush.complete
            || !flush.after.is_empty()
            || !flush.awaiting.is_empty()
            || !matches!(flush.own, Own::None | Own::Done)
        {
            return;
        }
        flush.complete = true;
        let (sequence, purpose) = (flush.sequence, flush.purpose);
        self.asked.remove(&sequence);
        match purpose {
            FlushFor::Client if self.only_disk.untold_alone => self.tell_flush_failed(id, out),
            FlushFor::Client => self.finish_op(id, out),
            FlushFor::Recovery => {
                self.ops.remove(&id);
                let reign = self.reign();
                self.reconciled = Some(reign);
                out.push(ShardOutput::Member(FromShard::Reconciled { reign }));
            }
            FlushFor::Growth { volume, run } => {
                self.ops.remove(&id);
                self.grown(volume, run, out);
            }
        }
    }

    pub(super) fn flush_answered(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.remove(&id) else { return };
        if let Some(client) = op.client {
            self.answer(&client, Ok(()), None, out);
            // A write that had taken effect, and had only to be made stable.
            self.release(client.request.buffer, out);
        }
    }
}

/// Whether a write was answered, and is not on every in-sync disk.
fn is_in_memory_only(kind: &Kind) -> bool {
    matches!(kind, Kind::Write(write) if write.early && write.complete && !write.retired)
}

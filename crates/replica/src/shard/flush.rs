//! Flush: every in-sync replica puts what it acknowledged on stable storage.

use super::local::Purpose;
use super::op::{Client, Flush, Kind, Own};
use super::seats::NodeSet;
use super::{Out, Shard};
use crate::door::{DiskAnswer, FromShard, ShardOutput};
use base::{NodeId, Span, VolumeId};
use wire::ShardMessage;

impl Shard {
    /// Starts a flush; it covers every write that is complete now.
    pub(super) fn start_flush(&mut self, client: Option<Client>, recovery: bool, out: &mut Out) {
        let sequence = self.sequence();
        let own = self.own_part();
        let mut awaiting = NodeSet::default();
        let nodes = self.required_peers();
        for &node in &nodes {
            awaiting.add(self.seats.give(node));
        }
        let flush =
            Flush { sequence, own, awaiting, sent: NodeSet::default(), complete: false, recovery };
        let span = Span::new(0, 1).expect("one sector");
        let id = self.insert_op(client, VolumeId(0), span, Kind::Flush(flush));
        self.asked.insert(sequence, id);
        if own == Own::Pending {
            self.local_flush(Purpose::Op(id), out);
        }
        for node in nodes {
            self.send_flush(id, node, out);
        }
        self.settle_flush(id, out);
    }

    pub(super) fn send_flush(&mut self, id: u64, node: NodeId, out: &mut Out) {
        let Some(seat) = self.seats.find(node) else { return };
        if !self.is_ready(node) {
            return;
        }
        let epoch = self.epoch();
        let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) else { return };
        if !flush.awaiting.has(seat) || flush.sent.has(seat) {
            return;
        }
        flush.sent.add(seat);
        let sequence = flush.sequence;
        self.send(node, ShardMessage::Flush { epoch, sequence }, None, out);
    }

    pub(super) fn on_flushed(&mut self, node: NodeId, sequence: u64, ok: bool, out: &mut Out) {
        if !ok {
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

    pub(super) fn on_own_flushed(&mut self, id: u64, answer: DiskAnswer, out: &mut Out) {
        if let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) {
            flush.own = if answer == DiskAnswer::Failed { Own::Failed } else { Own::Done };
            self.settle_flush(id, out);
        }
    }

    pub(super) fn settle_flush(&mut self, id: u64, out: &mut Out) {
        let Some(Kind::Flush(flush)) = self.ops.get_mut(&id).map(|op| &mut op.kind) else { return };
        if flush.complete
            || !flush.awaiting.is_empty()
            || !matches!(flush.own, Own::None | Own::Done)
        {
            return;
        }
        flush.complete = true;
        let (sequence, recovery) = (flush.sequence, flush.recovery);
        self.asked.remove(&sequence);
        if recovery {
            self.ops.remove(&id);
            let reign = self.reign();
            self.reconciled = Some(reign);
            out.push(ShardOutput::Member(FromShard::Reconciled { reign }));
        } else {
            self.finish_op(id, out);
        }
    }

    pub(super) fn flush_answered(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.remove(&id) else { return };
        if let Some(client) = op.client {
            self.answer(&client, Ok(()), None, out);
        }
    }
}

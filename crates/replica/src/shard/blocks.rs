//! Copies of ranges that no replica can read as a whole: block by block, each from whoever has it.
//!
//! Two replicas may each hold a bad block in one range, and each block be good on the other. The copy keeps
//! its lock and its purpose, and goes through its range in parts.
//!
//! Always: a block counts as lost only when every in-sync replica was read and gave bytes that rotted. It is
//! not given out then: reads of it fail until it is written anew, and a replica that lacks it stays out. One that
//! all of them fail to read holds up nobody: a resync leaves it for later.

use super::copy::Purpose;
use super::op::Kind;
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::vec::Vec;
use base::{NodeId, SessionId, Span, VolumeId};

/// A copy that goes on block by block.
#[derive(Debug)]
pub(super) struct Parts {
    whole: Span,
    /// Those to come, the last one first.
    left: Vec<Span>,
    /// Some part had to be copied.
    pub(super) changed: bool,
    /// Parts that nobody has.
    pub(super) lost: Vec<Span>,
}

impl Parts {
    fn new(whole: Span, left: Vec<Span>) -> Parts {
        Parts { whole, left, changed: false, lost: Vec::new() }
    }
}

impl Shard {
    /// Nobody is left who could be read for a copy.
    pub(super) fn copy_without_source(&mut self, id: u64, out: &mut Out) {
        let block = self.geometry.block_sectors;
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let in_sync: Vec<NodeId> =
            self.configuration.iter().flat_map(|known| known.in_sync()).collect();
        let Some(copy) = self.copy_mut(id) else { return };
        let all_tried = in_sync.iter().all(|node| copy.tried.contains(node));
        let rotten = copy.only_rot && !copy.tried.is_empty() && all_tried;
        // Of a copy that is not in sync the rest can be brought up to date; clients may write here anew, and see errors meanwhile.
        let unreadable =
            all_tried && !copy.tried.is_empty() && matches!(copy.purpose, Purpose::Sync { .. });
        copy.tried.clear();
        copy.only_rot = true;
        if !rotten && !unreadable {
            self.copy_restart(id, out);
            return;
        }
        if span.first() / block == (span.end() - 1) / block {
            if rotten {
                out.push(ShardOutput::Mark("a block that no replica has"));
                self.lost.entry(volume).or_default().insert_span(span);
            } else {
                out.push(ShardOutput::Mark("a block that no replica can read"));
            }
            if let Some(copy) = self.copy_mut(id) {
                copy.parts.get_or_insert_with(|| Parts::new(span, Vec::new())).lost.push(span);
            }
            self.copy_done(id, false, out);
            return;
        }
        out.push(ShardOutput::Mark("a copy goes on block by block"));
        let mut left = Vec::new();
        let mut at = span.first();
        while at < span.end() {
            let part = Shard::piece_of(block, at, span.end());
            at = part.end();
            left.push(part);
        }
        left.reverse();
        if let Some(copy) = self.copy_mut(id) {
            copy.parts = Some(Parts::new(span, left));
        }
        self.copy_next_part(id, false, out);
    }

    /// A part is done; true if another one begins. After the last one the copy is about its whole range again.
    pub(super) fn copy_next_part(&mut self, id: u64, changed: bool, out: &mut Out) -> bool {
        let Some(op) = self.ops.get_mut(&id) else { return false };
        let Kind::Copy(copy) = &mut op.kind else { return false };
        let Some(parts) = &mut copy.parts else { return false };
        parts.changed |= changed;
        let next = parts.left.pop();
        op.span = next.unwrap_or(parts.whole);
        if next.is_none() {
            return false;
        }
        let (asked, data) = copy.begin_part();
        for (_, sequence) in asked {
            self.asked.remove(&sequence);
        }
        self.release(data, out);
        self.start_copy(id, out);
        true
    }

    /// What a resync's target was not sent because nobody has it stays dirty for it. It is looked for again later.
    pub(super) fn sync_lost(
        &mut self,
        node: NodeId,
        session: SessionId,
        volume: VolumeId,
        span: Span,
    ) {
        if self.syncs_in(node, session) {
            self.sync_rests(node, volume, span);
        }
    }

    /// A read failed on every replica. If all that failed it is rot, and not in one block, the range is
    /// repaired block by block, and then read again.
    pub(super) fn read_after_repair(&mut self, id: u64, out: &mut Out) -> bool {
        let block = self.geometry.block_sectors;
        let Some(op) = self.ops.get(&id) else { return false };
        let (volume, span) = (op.volume, op.span);
        let one_block = span.first() / block == (span.end() - 1) / block;
        let is_lost =
            self.lost.get(&volume).is_some_and(|set| set.overlaps(span.first(), span.end()));
        let repairs = self.reconcile.is_open(volume, span) && self.copy_members() > 1;
        let Some(client) = op.client.filter(|_| repairs && !one_block && !is_lost) else {
            return false;
        };
        self.forget_question(id);
        self.unlock(id, out);
        self.ops.remove(&id);
        self.on_request(client, out);
        true
    }

    /// What is written anew is not lost any more.
    pub(super) fn found_again(&mut self, volume: VolumeId, span: Span) {
        if let Some(set) = self.lost.get_mut(&volume) {
            set.remove_span(span);
            if set.is_empty() {
                self.lost.remove(&volume);
            }
        }
    }
}

//! Write path: from a granted write to its retirement.
//!
//! A write goes to the own disk and to every in-sync and syncing replica at once. It is complete when as
//! many have it, as durably, as the protocol asks for, retired when every in-sync disk has it in its place, and
//! forgotten when the syncing ones were heard from too. The answer depends on the first: what is durable is
//! never lost. All that looks at the place depends on the second (`DiskAnswer`).
//!
//! Always:
//! - a replica outside the in-sync set either is sent the write in a sync session and acknowledges it,
//!   or the write is dirty for it;
//! - retirement is told only to a replica that confirmed the present configuration;
//! - what is on a replica that is in sync by its name only, and lost its cache or its disk since, counts for nothing;
//! - a write is answered exactly once, in `write_answered` or `fail_op`.
//!
//! Not here: order among overlapping writes (`lock`), the extent's heat (`local`).

use super::local::{Action, Purpose};
use super::op::{Content, Kind, Op, Own, Write};
use super::peer::Peer;
use super::seats::{NodeSet, Nodes};
use super::{OnlyDisk, Out, Shard};
use crate::door::{DiskAnswer, ShardOutput};
use alloc::vec::Vec;
use base::{AnswerError, NodeId, Span};
use wire::{OnIoError, ShardMessage, WriteFlags};

/// Retirements are told at the latest when so many are due.
const RETIRE_BATCH: u64 = 64;
/// Open writes looked at when a retirement is told.
const RETIRE_RUNS: usize = 1000;
/// Runs of writes that the only disk failed that are kept apart.
pub(super) const FAILED_RUNS: usize = 1000;

impl Shard {
    fn write_mut(&mut self, id: u64) -> Option<&mut Write> {
        match self.ops.get_mut(&id).map(|op| &mut op.kind) {
            Some(Kind::Write(write)) => Some(write),
            _ => None,
        }
    }

    /// Sends a write on its way.
    pub(super) fn issue_write(&mut self, id: u64, out: &mut Out) {
        let sequence = self.sequence();
        self.asked.insert(sequence, id);
        self.unretired_own.insert(sequence, ());
        self.last_write = sequence;
        let own = self.own_part();
        let required = self.required_peers();
        let mut seats = NodeSet::default();
        for &node in required.iter() {
            seats.add(self.seats.give(node));
        }
        let op = &self.ops[&id];
        let (volume, span) = (op.volume, op.span);
        self.found_again(volume, span);
        let syncing = self.mark_missing(volume, span, &required);
        let extent = self.extent_of(volume, span);
        if own == Own::Pending {
            self.log.hold(extent);
        }
        let write = self.write_mut(id).expect("issued once, while open");
        write.sequence = sequence;
        write.own = own;
        write.holds = own == Own::Pending;
        write.disk = seats;
        if write.early {
            write.memory = seats;
        }
        for &(_, seat) in &syncing {
            write.syncing.add(seat);
        }
        let (content, durable) = (write.content, write.durable);
        self.note_effect(id);
        if own == Own::Pending {
            let action = match content {
                Content::Bytes(buffer) => Action::Write { buffer, durable, release: false },
                Content::Zero { unmap } => Action::Zero { unmap, durable },
            };
            self.local(Purpose::Op(id), volume, span, action, out);
        }
        for node in required.into_iter().chain(syncing.into_iter().map(|(node, _)| node)) {
            self.send_write(id, node, out);
        }
        self.settle_write(id, out);
    }

    /// Marks a span dirty for every replica outside the in-sync set that is not sent it in a sync session;
    /// returns those that are, and that it does not wait for.
    fn mark_missing(
        &mut self,
        volume: base::VolumeId,
        span: base::Span,
        required: &[NodeId],
    ) -> Vec<(NodeId, u32)> {
        let mut syncing = Vec::new();
        let own = self.node;
        let known = self.configuration.as_ref();
        let known =
            known.filter(|known| known.replicas().any(|n| n != own && !known.is_in_sync(n)));
        let Some(known) = known.cloned() else { return syncing };
        for node in known.replicas().filter(|&node| node != own && !known.is_in_sync(node)) {
            if required.contains(&node) {
                // Should its include be given up, the others do not hear whether it has this.
                self.sync_overwrites(node, volume, span);
                continue;
            }
            // One that is not ready is sent it when it is: a bit set now could be cleared by a flush that
            // does not cover this write.
            if self.peers.get(&node).is_some_and(|peer| peer.sync.is_some()) {
                syncing.push((node, self.seats.give(node)));
                self.sync_overwrites(node, volume, span);
            } else {
                self.bitmaps.set(node, volume, span.first(), span.end(), true);
            }
        }
        syncing
    }

    /// Sends an issued write to a peer that waits for it, if it can be sent and was not.
    pub(super) fn send_write(&mut self, id: u64, node: NodeId, out: &mut Out) {
        let Some(seat) = self.seats.find(node) else { return };
        if !self.is_ready(node) || self.comes_after_refused(id, node, seat) {
            return;
        }
        let epoch = self.epoch();
        let Some(op) = self.ops.get_mut(&id) else { return };
        let (volume, span, cut) = (op.volume, op.span, op.cut);
        let Kind::Write(write) = &mut op.kind else { return };
        let counts = self.peers.get(&node).is_some_and(Peer::counts);
        if !((write.disk.has(seat) && counts) || write.syncing.has(seat)) || write.sent.has(seat) {
            return;
        }
        write.sent.add(seat);
        let (zero, unmap, buffer) = match write.content {
            Content::Bytes(buffer) => (false, false, Some(buffer)),
            Content::Zero { unmap } => (true, unmap, None),
        };
        let (fua, early, undone) = (write.durable, write.early, write.undone);
        let flags = WriteFlags { fua, zero, unmap, resync: false, early, undone };
        let (sequence, origin) = (write.sequence, write.origin);
        let origin = origin.filter(|origin| !self.once.is_over(origin.name));
        let message = ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin };
        self.send(node, message, buffer, out);
    }

    pub(super) fn on_received(&mut self, node: NodeId, sequence: u64, out: &mut Out) {
        let Some(&id) = self.asked.get(&sequence) else { return };
        let Some(seat) = self.seats.find(node) else { return };
        if let Some(write) = self.write_mut(id)
            && write.sent.has(seat)
        {
            write.memory.drop(seat);
            self.settle_write(id, out);
        }
    }

    /// A replica's disk has a write, in its place or not yet, or failed.
    pub(super) fn on_written(
        &mut self,
        node: NodeId,
        sequence: u64,
        ok: bool,
        in_place: bool,
        out: &mut Out,
    ) {
        let Some(&id) = self.asked.get(&sequence) else { return };
        if matches!(self.ops.get(&id).map(|op| &op.kind), Some(Kind::Copy(_))) {
            if in_place || !ok {
                self.on_copy_written(id, node, sequence, ok, out);
            }
            return;
        }
        let Some(seat) = self.seats.find(node) else { return };
        let Some(write) = self.write_mut(id) else { return };
        if !write.sent.has(seat) {
            return;
        }
        if !ok {
            self.refuse_write(id, node, seat);
            self.complain(node, true, out);
            return;
        }
        write.memory.drop(seat);
        if in_place {
            write.disk.drop(seat);
            write.syncing.drop(seat);
        } else {
            write.durable_at.add(seat);
        }
        self.settle_write(id, out);
    }

    /// A peer failed a write. If it is not excluded for it, it is asked again, and after that for what came later and
    /// overlaps it, or overlaps what is asked for again for that: it did not wait for a write that was complete.
    fn refuse_write(&mut self, id: u64, node: NodeId, seat: u32) {
        let Some(op) = self.ops.get(&id) else { return };
        let volume = op.volume;
        let Kind::Write(Write { sequence: refused, .. }) = op.kind else { return };
        let later = |op: &Op| match &op.kind {
            Kind::Write(write) => (op.volume == volume).then_some(write.sequence),
            _ => None,
        };
        let all = self.ops.iter().filter_map(|(&id, op)| Some((later(op)?, id)));
        let mut all: Vec<(u64, u64)> = all.filter(|&(sequence, _)| sequence >= refused).collect();
        all.sort_unstable();
        let mut again: Vec<Span> = Vec::new();
        for (sequence, id) in all {
            let Some(op) = self.ops.get_mut(&id) else { continue };
            if let Kind::Write(write) = &mut op.kind
                && (sequence == refused || again.iter().any(|span| op.span.overlaps(*span)))
            {
                write.sent.drop(seat);
                write.durable_at.drop(seat);
                again.push(op.span);
            }
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.refused = true;
        }
    }

    /// Whether a write overlaps an earlier one for which the peer is to be asked again.
    fn comes_after_refused(&self, id: u64, node: NodeId, seat: u32) -> bool {
        if !self.peers.get(&node).is_some_and(|peer| peer.refused) {
            return false;
        }
        let Some(op) = self.ops.get(&id) else { return false };
        let Kind::Write(write) = &op.kind else { return false };
        self.ops.values().any(|earlier| match &earlier.kind {
            Kind::Write(other) => {
                other.sequence > 0
                    && other.sequence < write.sequence
                    && earlier.volume == op.volume
                    && earlier.span.overlaps(op.span)
                    && (other.disk.has(seat) || other.syncing.has(seat))
                    && !other.sent.has(seat)
            }
            _ => false,
        })
    }

    /// Whether clients are told when the primary's own disk fails a write or flush, although other copies
    /// may have it.
    pub(super) fn passes_errors_on(&self) -> bool {
        let known = self.configuration.as_ref();
        known.is_some_and(|known| known.options.on_io_error == OnIoError::PassOn)
    }

    pub(super) fn on_own_written(&mut self, id: u64, answer: DiskAnswer, out: &mut Out) {
        let Some(write) = self.write_mut(id) else { return };
        if !matches!(write.own, Own::Pending | Own::Durable) {
            return;
        }
        if answer == DiskAnswer::Durable {
            write.own = Own::Durable;
            self.settle_write(id, out);
            return;
        }
        if answer == DiskAnswer::Failed {
            write.own = Own::Failed;
            if self.is_left_alone() {
                self.fail_on_only_disk(id, out);
            } else if self.passes_errors_on() {
                self.fail_op(id, AnswerError::Io, out);
            }
            return;
        }
        write.own = Own::Done;
        self.settle_write(id, out);
    }

    /// The disk that failed a write is the only one, perhaps only since, and no other is about to be in sync: no other replica will take over. What was asked
    /// is over, and is answered so. It is never told as retired, so that it stays in doubt where it arrived, even if this
    /// node forgets.
    pub(super) fn fail_on_only_disk(&mut self, id: u64, out: &mut Out) {
        // What was answered as done stays done.
        let done = self.write_mut(id).is_some_and(|write| write.complete);
        self.fail_op(id, AnswerError::Io, out);
        let Some(op) = self.ops.get(&id) else { return };
        // A replica that is being resynced may have it, or not: it is to get what is here.
        let (volume, span) = (op.volume, op.span);
        self.mark_for_outsiders(volume, span);
        self.sync_anew(volume, span);
        if !done {
            self.doubt_effect(id);
        }
        let Some(write) = self.write_mut(id) else { return };
        write.syncing.keep(write.sent);
        write.own = Own::None;
        write.retired = true;
        let (copy, early, sequence) = (write.copy, write.early, write.sequence);
        self.keep_unretired(sequence);
        self.settle_write(id, out);
        if early {
            self.fail_flushes_after(id, out);
        }
        if let Some(copy) = copy {
            self.copy_failed_here(copy, out);
        }
    }

    /// What the only disk failed is not told as retired. A client may go on with such writes for as long as it likes: of many that
    /// do not follow each other the last are kept together with what is between them, which stays in doubt for longer than it has to.
    fn keep_unretired(&mut self, sequence: u64) {
        self.unretired_own.remove(&sequence);
        let OnlyDisk { failed, last_failed, .. } = &mut self.only_disk;
        let alone = failed.run_count() < FAILED_RUNS;
        let first = if alone { sequence } else { sequence.min(*last_failed) };
        failed.insert(first, sequence + 1);
        *last_failed = sequence;
    }

    /// A replica has come into sync that was copied all that is here: of what the only disk failed nothing is in doubt there any
    /// more.
    pub(super) fn retire_failed(&mut self) {
        if !self.only_disk.failed.is_empty() {
            self.only_disk.failed.clear();
            self.retired_count += 1;
            self.retire_due = 0;
        }
    }

    /// Whether enough have the write for protocol B: every in-sync replica has it in memory, and one on its disk. That
    /// is the primary's own, if it is in sync: its clients go with its process, but what they were told stays.
    /// The memory of a replica counts only if its record says so by now.
    fn is_safe_in_memory(&self, write: &Write) -> bool {
        let Some(known) = &self.configuration else { return false };
        if !write.memory.is_empty() {
            return false;
        }
        let own = matches!(write.own, Own::Durable | Own::Done);
        let mut on_a_disk = known.is_in_sync(self.node) && own;
        for node in known.replicas().filter(|&node| node != self.node) {
            let in_sync = known.is_in_sync(node);
            if !self.seats.find(node).is_some_and(|seat| write.is_lacked_by(seat)) {
                on_a_disk |= in_sync && !known.is_in_sync(self.node);
                continue;
            }
            let ready = self.peers.get(&node).and_then(|peer| peer.ready);
            if !in_sync || ready.is_none_or(|ready| ready < known.epoch) {
                return false;
            }
        }
        on_a_disk
    }

    /// Draws the conclusions from who has the write.
    pub(super) fn settle_write(&mut self, id: u64, out: &mut Out) {
        let Some(Kind::Write(write)) = self.ops.get(&id).map(|op| &op.kind) else { return };
        if write.sequence == 0 {
            return;
        }
        let complete = write.is_durable() || (write.early && self.is_safe_in_memory(write));
        let Some(write) = self.write_mut(id) else { return };
        // Who is not waited for any more may give its seat to another.
        write.durable_at.keep(write.disk.with(write.syncing));
        let in_place = write.is_in_place();
        let first_complete = complete && !write.complete;
        write.complete |= complete;
        let first_retired = in_place && !write.retired;
        write.retired |= in_place;
        let (copy, answered, sequence) = (write.copy, write.answered, write.sequence);
        let waited_for = first_retired && write.early;
        if first_complete && !in_place && !write.early {
            out.push(ShardOutput::Mark("write is complete before it is in its place"));
        }
        if first_retired && self.unretired_own.remove(&sequence).is_some() {
            self.retired_count += 1;
        }
        if waited_for {
            self.flushes_after(id, out);
        }
        if first_complete {
            if copy.is_none() {
                self.unlock(id, out);
                if !answered {
                    self.finish_op(id, out);
                }
            } else if let Some(write) = self.write_mut(id) {
                write.answered = true;
            }
        }
        if first_retired && let Some(copy) = copy {
            self.forget_write(id, out);
            self.copy_done(copy, true, out);
            return;
        }
        self.forget_write(id, out);
    }

    /// Forgets a write of which nothing more is to be heard. Until then its extent stays hot here: a
    /// syncing replica that misses it must find it dirty after a restart of this node. Not for as long as the answer is
    /// held back: a full log would stop other writes, and with them the resync that the answer may wait for.
    fn forget_write(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let Kind::Write(write) = &mut op.kind else { return };
        if !(write.complete && write.retired && write.syncing.is_empty()) {
            return;
        }
        let held = core::mem::take(&mut write.holds);
        let (answered, sequence, content) = (write.answered, write.sequence, write.content);
        if held {
            let extent = self.extent_of(volume, span);
            self.log.unhold(extent);
        }
        if !answered {
            return;
        }
        self.asked.remove(&sequence);
        self.ops.remove(&id);
        if let Content::Bytes(buffer) = content {
            out.push(ShardOutput::Release { buffer });
        }
    }

    pub(super) fn write_answered(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        let client = op.client;
        let Some(write) = self.write_mut(id) else { return };
        if core::mem::replace(&mut write.answered, true) {
            return;
        }
        if let Some(client) = client {
            self.answer(&client, Ok(()), None, out);
        }
        self.forget_write(id, out);
    }

    /// Everything up to the first is on every in-sync disk, and the later writes in these runs.
    fn retired(&self) -> (u64, Vec<(u64, u64)>) {
        let end = self.last_write + 1;
        let mut written = self.unretired_own.keys().map(|&open| (open, open + 1)).peekable();
        let mut failed = self.only_disk.failed.iter().chain([(end, end)]).peekable();
        let mut open = core::iter::from_fn(|| match (written.peek(), failed.peek()) {
            (Some(next), Some(run)) if next.0 < run.0 => written.next(),
            (Some(_), None) => written.next(),
            _ => failed.next(),
        });
        let Some((first, mut at)) = open.next() else { unreachable!("the end is one") };
        let mut ahead = Vec::new();
        // Many may be open side by side for long: those that the only disk failed.
        for (open, end) in open {
            if at < open && ahead.len() == RETIRE_RUNS {
                break;
            }
            if at < open {
                ahead.push((at, open));
            }
            at = at.max(end);
        }
        (first - 1, ahead)
    }

    /// Who is told of retirements: in-sync peers, and those that are being brought up to date, whose logs
    /// would fill otherwise.
    fn retirement_peers(&self) -> Nodes {
        let mut nodes = self.required_peers();
        let syncing = self.peers.iter().filter(|(_, peer)| peer.sync.is_some());
        nodes.extend(syncing.map(|(&node, _)| node));
        nodes
    }

    /// Tells replicas what is retired: a batch of it, or all if `now`.
    ///
    /// Not only the writes before the first open one: a replica whose log is full of later ones could
    /// never make room for that one.
    pub(super) fn tell_retired(&mut self, now: bool, out: &mut Out) {
        if !now && self.retired_count < self.retire_due {
            return;
        }
        let Some(known) = self.configuration.clone() else { return };
        if !self.is_primary() {
            return;
        }
        let (epoch, total) = (known.epoch, self.retired_count);
        self.retire_due = total + RETIRE_BATCH;
        let mut told: Option<(u64, Vec<(u64, u64)>)> = None;
        for node in self.retirement_peers() {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if peer.ready.is_none_or(|ready| ready < epoch) {
                continue;
            }
            let due = total.saturating_sub(peer.retired_told);
            if due >= RETIRE_BATCH || (now && due > 0) {
                peer.retired_told = total;
                let (upto, ahead) = told.get_or_insert_with(|| self.retired()).clone();
                self.send(node, ShardMessage::Retire { epoch, upto, ahead }, None, out);
            } else {
                self.retire_due = self.retire_due.min(total - due + RETIRE_BATCH);
            }
        }
    }

    /// Whether some replica is still to be told of a retirement.
    pub(super) fn owes_retirement(&self) -> bool {
        self.is_primary()
            && self.retirement_peers().iter().any(|node| {
                self.peers.get(node).is_some_and(|peer| {
                    peer.ready.is_some_and(|ready| ready >= self.epoch())
                        && peer.retired_told < self.retired_count
                })
            })
    }
}

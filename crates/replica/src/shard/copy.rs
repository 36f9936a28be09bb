//! Copies: one range, made the same on several replicas under an exclusive lock.
//!
//! A copy compares first where nothing but a comparison tells whether the replicas differ; then one
//! member reads, and the others write. Reconciliation and verify write by an ordinary write to every
//! in-sync member; resync sends to its target alone.
//!
//! Always: the lock is held from before the first look until every target has the bytes, so a copy never
//! races a client's write; a copy that loses a node starts again from its beginning.

use super::blocks::Parts;
use super::local::{Action, Purpose as LocalPurpose};
use super::op::{Content, FlushFor, Kind, Own};
use super::seats::Nodes;
use super::{Out, Shard};
use crate::door::{DiskAnswer, FromShard, ReadFailure, ShardOutput};
use alloc::vec::Vec;
use base::{BufferId, NodeId, SessionId, Span, VolumeId};
use wire::{ReadPolicy, ShardMessage, VolumeEntry, WriteFlags};

/// Ranges that are reconciled at once at least, however busy clients are.
const RECONCILED_AT_ONCE: usize = 2;

/// What a copy is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// Make the in-sync members agree after a take-over.
    Reconcile,
    /// Bring a replica up to date, in a session.
    Sync { node: NodeId, session: SessionId, compare: bool },
    /// Look for differences among in-sync members, and repair them.
    Verify,
    /// Make what is added to a volume zero everywhere, in this run.
    Grow { run: u64 },
}

/// In the place of the hash of bytes that rotted, with the node's number: no bytes are expected to have this one.
const ROTTEN: u128 = 0x726f_7474_656e_2062_7974_6573_0000_0000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Waits for the lock, or for nodes to be ready.
    Idle,
    Comparing,
    Reading,
    Writing,
}

/// A copy under way.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) purpose: Purpose,
    /// What is locked: more than is copied if the volume shrank meanwhile.
    pub(super) lock: Span,
    phase: Phase,
    locked: bool,
    /// Messages that await answers, by node.
    asked: Vec<(NodeId, u64)>,
    /// How often its present part, or an earlier one, was looked at here.
    look: u64,
    hashes: Vec<(NodeId, u128)>,
    source: Option<NodeId>,
    pub(super) tried: Vec<NodeId>,
    /// All of `tried` gave bytes that rotted: none of their disks failed.
    pub(super) only_rot: bool,
    pub(super) parts: Option<Parts>,
    pub(super) data: Option<Option<BufferId>>,
}

impl Copy {
    pub(super) fn waits_for(&self, node: NodeId) -> bool {
        self.asked.iter().any(|&(asked, _)| asked == node)
    }

    pub(super) fn is_comparing(&self) -> bool {
        self.phase == Phase::Comparing
    }

    /// It starts again, with the next part of its range. Returns what it had asked, and what it had read.
    pub(super) fn begin_part(&mut self) -> (Vec<(NodeId, u64)>, Option<BufferId>) {
        self.phase = Phase::Idle;
        self.source = None;
        self.tried.clear();
        self.only_rot = true;
        self.hashes.clear();
        (core::mem::take(&mut self.asked), self.data.take().flatten())
    }
}

/// A verify under way.
#[derive(Debug)]
pub(super) struct VerifyRun {
    /// `None`: it is to end, and only waits for copies under way.
    pub(super) run: Option<u64>,
    pub(super) to: u64,
    pub(super) volume: VolumeId,
    pub(super) next: u64,
    pub(super) open: usize,
    pub(super) compared: u64,
    pub(super) repaired: u64,
}

impl Shard {
    pub(super) fn copy_mut(&mut self, id: u64) -> Option<&mut Copy> {
        match self.ops.get_mut(&id).map(|op| &mut op.kind) {
            Some(Kind::Copy(copy)) => Some(copy),
            _ => None,
        }
    }

    /// Queues a copy.
    pub(super) fn queue_copy(
        &mut self,
        purpose: Purpose,
        volume: VolumeId,
        span: Span,
        out: &mut Out,
    ) {
        let copy = Copy {
            purpose,
            lock: span,
            phase: Phase::Idle,
            locked: false,
            asked: Vec::new(),
            look: 0,
            hashes: Vec::new(),
            source: None,
            tried: Vec::new(),
            only_rot: true,
            parts: None,
            data: None,
        };
        self.copies += 1;
        self.pace.copy_begins(self.now);
        let id = self.insert_op(None, volume, span, Kind::Copy(copy));
        if self.locks.acquire(id, volume, span, true) {
            self.start(id, out);
        }
    }

    /// The part of `first..end` at its start that one copy takes: inside one window of `copy_sectors`.
    pub(super) fn piece(&self, first: u64, end: u64) -> Span {
        Shard::piece_of(self.geometry.copy_sectors, first, end)
    }

    /// The same, inside one of any windows of so many sectors.
    pub(super) fn piece_of(window: u64, first: u64, end: u64) -> Span {
        let stop = end.min((first / window + 1) * window);
        let count = u32::try_from(stop - first).expect("a window is far below 2^32 sectors");
        Span::new(first, count).expect("the caller's range is not empty")
    }

    /// Queues copies for whatever of a request's span is in doubt: they take the lock before it does.
    pub(super) fn reconcile_for(&mut self, volume: VolumeId, span: Span, out: &mut Out) {
        if self.reconcile.is_empty() {
            return;
        }
        let block = self.geometry.block_sectors;
        let size = self.kept_sectors(volume);
        let (from, end) =
            (span.first() / block * block, (span.end().div_ceil(block) * block).min(size));
        let mut at = from;
        while let Some((found, first, run_end)) = self.reconcile.next((volume, at)) {
            if found != volume || first >= end {
                break;
            }
            let piece = self.reconcile_piece(volume, first, run_end.min(end));
            at = piece.end();
            if !self.is_reconciling(volume, piece) {
                out.push(ShardOutput::Mark("request waits for reconciliation"));
                self.queue_reconcile(volume, piece, out);
            }
        }
    }

    fn is_reconciling(&self, volume: VolumeId, span: Span) -> bool {
        self.reconciling.get(&volume).is_some_and(|set| set.contains(span.first(), span.end()))
    }

    pub(super) fn queue_reconcile(&mut self, volume: VolumeId, piece: Span, out: &mut Out) {
        self.reconciling.entry(volume).or_default().insert_span(piece);
        self.queue_copy(Purpose::Reconcile, volume, piece, out);
    }

    fn volume_sectors(&self, volume: VolumeId) -> u64 {
        let known = self.configuration.as_ref().and_then(|known| known.volume(volume));
        known.map_or(0, |entry| entry.sectors)
    }

    /// The volume's size, with what is being added to it.
    pub(super) fn kept_sectors(&self, volume: VolumeId) -> u64 {
        let known = self.configuration.as_ref().and_then(|known| known.volume(volume));
        known.map_or(0, VolumeEntry::kept_sectors)
    }

    /// The copy has its lock, or tries again.
    pub(super) fn start_copy(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let Some(copy) = self.copy_mut(id) else { return };
        copy.locked = true;
        if copy.phase != Phase::Idle {
            return;
        }
        let purpose = copy.purpose;
        if !self.may_copy(&purpose) {
            return;
        }
        let Some(span) = self.cut_copy(id, span) else {
            self.copy_done(id, false, out);
            return;
        };
        if self.is_moot(&purpose, volume, span) {
            self.copy_done(id, false, out);
            return;
        }
        if purpose == Purpose::Reconcile
            && self.own_part() == Own::Failed
            && self.copy_members() > 1
        {
            // What the others agree on is not settled while this copy, which lacks it, may be all that is left.
            return;
        }
        if let Purpose::Sync { node, .. } = purpose {
            if !self.may_sync(node) {
                self.copy_dropped(id, out);
                return;
            }
            if self.is_unretired(volume, span) {
                return;
            }
        }
        let others = self.copy_peers(&purpose, span);
        if !others.iter().all(|&node| self.is_ready(node)) {
            return;
        }
        let compare = match purpose {
            Purpose::Reconcile => !self.reconcile.is_open(volume, span),
            Purpose::Sync { compare, .. } => compare,
            Purpose::Verify => true,
            Purpose::Grow { .. } => {
                self.copy_zeroes(id, out);
                return;
            }
        };
        if compare {
            self.compare(id, &others, out);
        } else {
            self.copy_read(id, out);
        }
    }

    /// Cuts a copy to its volume's present size; `None`: nothing of it is left.
    fn cut_copy(&mut self, id: u64, span: Span) -> Option<Span> {
        let volume = self.ops.get(&id)?.volume;
        let kept = self.kept_part(volume, span)?;
        self.ops.get_mut(&id)?.span = kept;
        Some(kept)
    }

    /// What of the span lies on its volume as large as it is now, with what is being added to it.
    pub(super) fn kept_part(&self, volume: VolumeId, span: Span) -> Option<Span> {
        let size = self.kept_sectors(volume);
        let left = u32::try_from(size.saturating_sub(span.first())).unwrap_or(u32::MAX);
        Span::new(span.first(), left.min(span.count()))
    }

    /// Whether an answered write of the span is not on every in-sync disk (protocol B): a fail-over may
    /// undo it.
    fn is_unretired(&self, volume: VolumeId, span: Span) -> bool {
        self.ops.values().any(|op| {
            matches!(&op.kind, Kind::Write(write) if write.early && write.complete && !write.retired)
                && op.volume == volume
                && op.span.overlaps(span)
        })
    }

    /// A resync's copy that cannot be made now lets go of its range; a later pass finds it again.
    fn copy_dropped(&mut self, id: u64, out: &mut Out) {
        self.unlock(id, out);
        let Some(op) = self.ops.remove(&id) else { return };
        self.copies -= 1;
        self.pace.copy_ends(self.now);
        if let Kind::Copy(Copy { purpose: Purpose::Sync { node, session, .. }, .. }) = op.kind {
            self.sync_not_copied(node, session);
        }
    }

    /// Whether there is nothing (more) to do.
    fn is_moot(&self, purpose: &Purpose, volume: VolumeId, span: Span) -> bool {
        let members = self.copy_members();
        match purpose {
            // A member alone agrees with itself, but a write that was open there may still be on its way
            // to the disk: reading the range waits for it.
            Purpose::Reconcile if members < 2 => !self.reconcile.is_open(volume, span),
            Purpose::Reconcile => !self.reconcile.overlaps(volume, span.first(), span.end()),
            Purpose::Verify => members < 2,
            Purpose::Sync { node, session, .. } => !self.syncs_in(*node, *session),
            Purpose::Grow { run } => !self.grows_in(volume, *run),
        }
    }

    /// How many copies are in sync, or about to be. The own one counts until it is excluded, also if it cannot be used.
    pub(super) fn copy_members(&self) -> usize {
        usize::from(self.own_part() != Own::None) + self.required_peers().len()
    }

    /// The nodes besides this one that take part in a copy.
    fn copy_peers(&self, purpose: &Purpose, span: Span) -> Nodes {
        match purpose {
            Purpose::Reconcile | Purpose::Verify | Purpose::Grow { .. } => self.required_peers(),
            Purpose::Sync { node, .. } => {
                let mut nodes = Nodes::new();
                nodes.push(*node);
                let source = self.copy_source(purpose, &self.sources(&[]), span);
                nodes.extend(source.filter(|&source| source != self.node));
                nodes
            }
        }
    }

    /// Which of `sources` a copy of this range is read from. A resync reads from each in turn, four pieces at a time, so
    /// that all their disks read at once; this node's own disk comes first if reads prefer it, and for anything else.
    fn copy_source(&self, purpose: &Purpose, sources: &[NodeId], span: Span) -> Option<NodeId> {
        let stripe = span.first() / (4 * self.geometry.copy_sectors);
        let turn = usize::try_from(stripe).unwrap_or(0) % sources.len().max(1);
        let policy = self.configuration.as_ref().map(|known| known.options.read_policy);
        let nearest =
            !matches!(purpose, Purpose::Sync { .. }) || policy == Some(ReadPolicy::PreferLocal);
        let own = nearest && sources.first() == Some(&self.node);
        sources.get(if own { 0 } else { turn }).copied()
    }

    fn compare(&mut self, id: u64, others: &[NodeId], out: &mut Out) {
        let (epoch, now) = (self.epoch(), self.now);
        let in_sync = self.is_own_in_sync();
        let op = self.ops.get_mut(&id).expect("the caller looked it up");
        op.since = now;
        let (volume, span) = (op.volume, op.span);
        let Kind::Copy(copy) = &mut op.kind else { return };
        copy.phase = Phase::Comparing;
        copy.hashes.clear();
        let target = if let Purpose::Sync { node, .. } = copy.purpose { Some(node) } else { None };
        // A resync compares with its source, anybody else with all.
        let own = in_sync && (target.is_none() || others.len() == 1);
        let mut asked: Vec<(NodeId, u64)> = Vec::new();
        for &node in others {
            asked.push((node, self.sequence()));
        }
        if own {
            asked.push((self.node, 0));
        }
        if let Some(copy) = self.copy_mut(id) {
            copy.asked.clone_from(&asked);
        }
        for (node, sequence) in asked {
            if node == self.node {
                self.look(id, volume, span, Action::Hash, out);
            } else {
                self.asked.insert(sequence, id);
                let resync = Some(node) == target;
                let message = ShardMessage::Compare { epoch, sequence, volume, span, resync };
                self.send(node, message, None, out);
            }
        }
    }

    /// Asks this node's own disk.
    fn look(&mut self, id: u64, volume: VolumeId, span: Span, action: Action, out: &mut Out) {
        let Some(copy) = self.copy_mut(id) else { return };
        copy.look += 1;
        let purpose = LocalPurpose::Copy { id, look: copy.look };
        self.local(purpose, volume, span, action, out);
    }

    /// The own disk's answer. Of what was asked before the copy began anew it may be about another span.
    pub(super) fn on_own_look(&mut self, id: u64, look: u64, answer: DiskAnswer, out: &mut Out) {
        if self.copy_mut(id).is_some_and(|copy| copy.look == look) {
            self.on_own_disk(id, answer, out);
        } else if let DiskAnswer::Data(buffer) = answer {
            self.release(buffer, out);
        }
    }

    /// What the own disk says to a comparison. Bytes that rotted are like those of no other copy: also of one that has the
    /// same, because it never had what a disk here confirmed and lost.
    pub(super) fn hash_in(&self, answer: DiskAnswer) -> Option<u128> {
        match answer {
            DiskAnswer::Hash(hash) => Some(hash),
            DiskAnswer::Rotten => Some(ROTTEN | u128::from(self.node.0)),
            DiskAnswer::Done | DiskAnswer::Durable | DiskAnswer::Data(_) | DiskAnswer::Failed => {
                None
            }
        }
    }

    pub(super) fn on_hash(
        &mut self,
        node: NodeId,
        sequence: u64,
        hash: Option<u128>,
        out: &mut Out,
    ) {
        if let Some(id) = self.asked.remove(&sequence) {
            self.on_hash_of(id, node, hash, out);
        }
    }

    pub(super) fn on_hash_of(&mut self, id: u64, node: NodeId, hash: Option<u128>, out: &mut Out) {
        let own = self.node;
        let Some(copy) = self.copy_mut(id) else { return };
        let Some(at) = copy.asked.iter().position(|&(asked, _)| asked == node) else { return };
        if copy.phase != Phase::Comparing {
            return;
        }
        copy.asked.remove(at);
        let Some(hash) = hash else {
            if node != own {
                self.complain(node, true, out);
            }
            self.copy_restart(id, out);
            return;
        };
        copy.hashes.push((node, hash));
        if !copy.asked.is_empty() {
            return;
        }
        let first = copy.hashes[0].1;
        if copy.hashes.iter().all(|&(_, other)| other == first) {
            self.copy_done(id, false, out);
            return;
        }
        out.push(ShardOutput::Mark("a comparison found a difference"));
        if matches!(copy.purpose, Purpose::Verify | Purpose::Reconcile) {
            // What all copies were to hold and one does not may be rot. Of a write that was under way any may be taken.
            copy.source = majority(&copy.hashes, &[], own);
        }
        self.copy_read(id, out);
    }

    fn copy_read(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let Kind::Copy(copy) = &op.kind else { return };
        let (tried, purpose) = (copy.tried.clone(), copy.purpose);
        // Others may hold what one does that cannot be read.
        let wanted = copy.source.and_then(|source| {
            if tried.contains(&source) {
                majority(&copy.hashes, &tried, self.node)
            } else {
                Some(source)
            }
        });
        let sources = if purpose == Purpose::Reconcile {
            self.reconcile_sources(&tried, out)
        } else {
            self.sources(&tried)
        };
        let source = wanted
            .filter(|node| sources.contains(node))
            .or_else(|| self.copy_source(&purpose, &sources, span));
        let Some(source) = source else {
            let alone = purpose == Purpose::Reconcile && self.copy_members() < 2;
            if alone && (!tried.is_empty() || self.disk_failing) {
                // The only copy cannot be read here; nobody knows what it holds.
                self.lose_effects(out);
                self.copy_done(id, false, out);
                return;
            }
            self.copy_without_source(id, out);
            return;
        };
        let own = source == self.node;
        let sequence = if own { 0 } else { self.sequence() };
        let (now, epoch) = (self.now, self.epoch());
        if let Some(op) = self.ops.get_mut(&id) {
            op.since = now;
        }
        let copy = self.copy_mut(id).expect("looked up above");
        copy.phase = Phase::Reading;
        copy.source = Some(source);
        copy.asked = alloc::vec![(source, sequence)];
        if own {
            self.look(id, volume, span, Action::Read, out);
        } else {
            self.asked.insert(sequence, id);
            self.send(source, ShardMessage::Read { epoch, sequence, volume, span }, None, out);
        }
    }

    pub(super) fn on_copy_data(
        &mut self,
        id: u64,
        node: NodeId,
        result: Result<Option<BufferId>, ReadFailure>,
        out: &mut Out,
    ) {
        let expected = self.copy_mut(id).is_some_and(|copy| {
            copy.phase == Phase::Reading && copy.source == Some(node) && !copy.asked.is_empty()
        });
        if !expected {
            self.release(result.unwrap_or(None), out);
            return;
        }
        let copy = self.copy_mut(id).expect("looked up above");
        copy.asked.clear();
        match result {
            Ok(buffer) => {
                copy.data = Some(buffer);
                self.copy_write(id, out);
            }
            Err(failure) => {
                copy.tried.push(node);
                copy.only_rot &= failure == ReadFailure::Rotten;
                if !self.is_repaired_by(id, failure) {
                    self.on_read_failure(id, node, failure, out);
                }
                self.copy_read(id, out);
            }
        }
    }

    /// Whether the copy will itself write good bytes over those that rotted.
    fn is_repaired_by(&self, id: u64, failure: ReadFailure) -> bool {
        let writes_to_all = matches!(
            self.ops.get(&id).map(|op| &op.kind),
            Some(Kind::Copy(Copy { purpose: Purpose::Reconcile | Purpose::Verify, .. }))
        );
        failure == ReadFailure::Rotten && writes_to_all
    }

    /// A copy that needs no source.
    fn copy_zeroes(&mut self, id: u64, out: &mut Out) {
        if let Some(copy) = self.copy_mut(id) {
            copy.data = Some(None);
            self.copy_write(id, out);
        }
    }

    fn copy_write(&mut self, id: u64, out: &mut Out) {
        let (epoch, cut) = (self.epoch(), self.cut);
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let Some(copy) = self.copy_mut(id) else { return };
        copy.phase = Phase::Writing;
        let (purpose, lock) = (copy.purpose, copy.lock);
        let data = copy.data.take().expect("read just now");
        if purpose == Purpose::Reconcile && self.copy_members() < 2 {
            self.release(data, out);
            self.copy_done(id, false, out);
            return;
        }
        let Some(copy) = self.copy_mut(id) else { return };
        if let Purpose::Sync { node, .. } = purpose {
            copy.data = Some(data);
            if let Some(op) = self.ops.get_mut(&id) {
                op.since = self.now;
            }
            let sequence = self.sequence();
            self.asked.insert(sequence, id);
            if let Some(copy) = self.copy_mut(id) {
                copy.asked = alloc::vec![(node, sequence)];
            }
            let zero = data.is_none();
            let flags = WriteFlags { zero, unmap: zero, resync: true, ..WriteFlags::default() };
            let message =
                ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin: None };
            self.send(node, message, data, out);
            return;
        }
        let source = copy.source;
        let content = data.map_or(Content::Zero { unmap: true }, Content::Bytes);
        let mut kind = self.new_write(content, false, Some(id));
        let settles = source.filter(|_| purpose == Purpose::Reconcile);
        if let Kind::Write(write) = &mut kind
            && let Some((origin, undone)) =
                settles.and_then(|source| self.settles(volume, lock, source))
        {
            (write.origin, write.undone) = (Some(origin), undone);
        }
        let write = self.insert_op(None, volume, span, kind);
        self.issue_write(write, out);
    }

    /// The target of a resync acknowledged, or failed.
    pub(super) fn on_copy_written(
        &mut self,
        id: u64,
        node: NodeId,
        sequence: u64,
        ok: bool,
        out: &mut Out,
    ) {
        let Some(copy) = self.copy_mut(id) else { return };
        if !copy.asked.contains(&(node, sequence)) {
            return;
        }
        self.asked.remove(&sequence);
        if ok {
            self.copy_done(id, true, out);
        } else {
            self.complain(node, true, out);
        }
    }

    /// A node went away: whatever it had to do with the copy begins anew.
    pub(super) fn copy_lost_peer(&mut self, id: u64, node: NodeId, out: &mut Out) {
        let Some(copy) = self.copy_mut(id) else { return };
        if matches!(copy.purpose, Purpose::Sync { node: target, .. } if target == node) {
            self.copy_done(id, false, out);
        } else if copy.asked.iter().any(|&(asked, _)| asked == node) {
            self.copy_restart(id, out);
        }
    }

    /// Starts again from the beginning, at the next tick, keeping the lock. A copy that already writes
    /// goes on: its write is an ordinary one.
    pub(super) fn copy_restart(&mut self, id: u64, out: &mut Out) {
        let Some(copy) = self.copy_mut(id) else { return };
        let writes_as_usual =
            copy.phase == Phase::Writing && !matches!(copy.purpose, Purpose::Sync { .. });
        if writes_as_usual || copy.phase == Phase::Idle {
            return;
        }
        copy.phase = Phase::Idle;
        copy.hashes.clear();
        copy.source = None;
        let asked = core::mem::take(&mut copy.asked);
        let data = copy.data.take().flatten();
        for (_, sequence) in asked {
            self.asked.remove(&sequence);
        }
        self.release(data, out);
    }

    /// Copies that could not start try again.
    pub(super) fn retry_copies(&mut self, out: &mut Out) {
        let idle: Vec<u64> = self
            .ops
            .iter()
            .filter(|(_, op)| {
                matches!(&op.kind, Kind::Copy(copy) if copy.locked && copy.phase == Phase::Idle)
            })
            .map(|(&id, _)| id)
            .collect();
        for id in idle {
            self.start_copy(id, out);
        }
    }

    /// The range is the same wherever it should be; `changed`: it had to be copied.
    pub(super) fn copy_done(&mut self, id: u64, changed: bool, out: &mut Out) {
        if self.copy_next_part(id, changed, out) {
            return;
        }
        let Some(op) = self.ops.get(&id) else { return };
        let Kind::Copy(copy) = &op.kind else { return };
        let (volume, span) = (op.volume, op.span);
        let changed = changed || copy.parts.as_ref().is_some_and(|parts| parts.changed);
        if copy.purpose == Purpose::Reconcile {
            // Before the very write that is settled may get its turn.
            self.settle(volume, copy.lock, copy.source.filter(|_| changed));
        }
        self.unlock(id, out);
        let Some(op) = self.ops.remove(&id) else { return };
        let Kind::Copy(copy) = op.kind else { return };
        self.copies -= 1;
        self.pace.copy_ends(self.now);
        self.release(copy.data.flatten(), out);
        for (_, sequence) in copy.asked {
            self.asked.remove(&sequence);
        }
        match copy.purpose {
            Purpose::Reconcile => {
                if let Some(set) = self.reconciling.get_mut(&op.volume) {
                    set.remove_span(copy.lock);
                }
                self.reconciled_range(op.volume, span, out);
            }
            Purpose::Sync { node, session, .. } => {
                if span.end() <= self.kept_sectors(op.volume) {
                    self.sync_copied(node, session, op.volume, span, changed, out);
                    for lost in copy.parts.iter().flat_map(|parts| &parts.lost) {
                        self.sync_lost(node, session, op.volume, *lost);
                    }
                } else {
                    self.sync_not_copied(node, session);
                }
            }
            Purpose::Verify => {
                if let Some(run) = &mut self.verify {
                    run.open -= 1;
                    run.compared += u64::from(span.count());
                    run.repaired += if changed { u64::from(span.count()) } else { 0 };
                }
            }
            Purpose::Grow { run } => {
                // Also beyond a size that the volume had in between, which who is in doubt there never heard of.
                if changed {
                    self.same_everywhere(op.volume, span, out);
                }
                self.grown_piece(op.volume, run, span, out);
            }
        }
    }

    /// The write of a copy was failed by the only disk: it is over. A volume does not grow by it.
    pub(super) fn copy_failed_here(&mut self, id: u64, out: &mut Out) {
        if let Some(op) = self.ops.get(&id)
            && let Kind::Copy(copy) = &op.kind
            && matches!(copy.purpose, Purpose::Grow { .. })
        {
            self.growths.remove(&op.volume);
            self.only_disk.again_at = self.now + self.tick_length();
        }
        self.copy_done(id, false, out);
    }

    fn reconciled_range(&mut self, volume: VolumeId, span: Span, out: &mut Out) {
        self.reconcile.remove(volume, span);
        self.same_everywhere(volume, span, out);
        self.check_settled(out);
    }

    /// The span is the same on every disk that counts: nobody need doubt it.
    fn same_everywhere(&mut self, volume: VolumeId, span: Span, out: &mut Out) {
        if self.is_own_in_sync() {
            self.doubt.remove(volume, span);
            self.make_room(out);
        }
        let epoch = self.epoch();
        for node in self.required_peers() {
            // One that came back without its cache was compared before it lost that. One that kept it is asked
            // for its doubt again, and told after that.
            if self.acts_in_reign(node) && self.peers.get(&node).is_some_and(|peer| peer.kept) {
                self.send(node, ShardMessage::Settled { epoch, volume, span }, None, out);
            }
        }
    }

    pub(super) fn start_verify(&mut self, run: u64, volume: VolumeId, from: u64, to: u64) {
        // Copies of an earlier run that are under way end in this one.
        let open = self.verify.as_ref().map_or(0, |run| run.open);
        self.verify = Some(VerifyRun {
            run: Some(run),
            to,
            volume,
            next: from,
            open,
            compared: 0,
            repaired: 0,
        });
    }

    pub(super) fn end_verify(&mut self) {
        if let Some(run) = &mut self.verify {
            (run.run, run.to) = (None, 0);
        }
    }

    /// Queues as many background copies as are due.
    pub(super) fn pump(&mut self, out: &mut Out) {
        if !self.may_copy(&Purpose::Reconcile) || self.draining.is_some() {
            return;
        }
        self.pump_reconcile(out);
        if self.serving != Some(self.reign()) {
            self.finish_recovery(out);
            return;
        }
        self.pump_growths(out);
        self.pump_syncs(out);
        self.pump_verify(out);
    }

    /// Reconciliation does not rest: requests wait for it.
    fn pump_reconcile(&mut self, out: &mut Out) {
        if self.reconcile.is_empty() {
            self.reconcile_cursor = (VolumeId(0), 0);
            return;
        }
        while self.copies < self.pace.pressure(self.now).copies.max(RECONCILED_AT_ONCE) {
            let Some((volume, first, end)) = self.reconcile.next(self.reconcile_cursor) else {
                let start = (VolumeId(0), 0);
                if self.reconcile_cursor == start {
                    return;
                }
                self.reconcile_cursor = start;
                if self.copies > 0 {
                    return;
                }
                continue;
            };
            let piece = self.reconcile_piece(volume, first, end);
            self.reconcile_cursor = (volume, piece.end());
            if !self.is_reconciling(volume, piece) {
                self.queue_reconcile(volume, piece, out);
            }
        }
    }

    /// After the loss of all caches: once nothing is in doubt, everything is flushed.
    fn finish_recovery(&mut self, out: &mut Out) {
        let reign = self.reign();
        let recovering = self.configuration.as_ref().is_some_and(|known| known.recovering);
        let flushing = self.ops.values().any(
            |op| matches!(&op.kind, Kind::Flush(flush) if flush.purpose == FlushFor::Recovery),
        );
        if recovering
            && self.reconcile.is_empty()
            && self.copies == 0
            && self.reconciled != Some(reign)
            && self.now >= self.only_disk.again_at
            && !flushing
        {
            self.start_flush(None, FlushFor::Recovery, out);
        }
    }

    fn pump_verify(&mut self, out: &mut Out) {
        while let Some(run) = &self.verify
            && self.pace.may_begin(self.now)
        {
            let (volume, next) = (run.volume, run.next);
            let end = run.to.min(self.volume_sectors(volume));
            if next >= end {
                if run.open == 0 {
                    let (named, compared, repaired) = (run.run, run.compared, run.repaired);
                    self.verify = None;
                    if let Some(run) = named {
                        let message = FromShard::Verified { run, compared, repaired };
                        out.push(ShardOutput::Member(message));
                    }
                }
                return;
            }
            let piece = Shard::piece_of(self.pace.pressure(self.now).sectors, next, end);
            let own_extent = next / self.geometry.extent_sectors;
            let mine = Shard::owner(&self.geometry, self.shards, own_extent) == self.index;
            if let Some(run) = &mut self.verify {
                run.next = piece.end();
                run.open += usize::from(mine);
            }
            if mine {
                self.queue_copy(Purpose::Verify, volume, piece, out);
            }
        }
    }
}

/// Of the nodes that were not tried the one whose content most replicas share; of several such contents this node's, else
/// the first.
fn majority(hashes: &[(NodeId, u128)], tried: &[NodeId], own: NodeId) -> Option<NodeId> {
    let votes = |hash: u128| hashes.iter().filter(|&&(_, other)| other == hash).count();
    let left = || hashes.iter().filter(|(node, _)| !tried.contains(node));
    let best = left().map(|&(_, hash)| votes(hash)).max()?;
    let mut winners = left().filter(|&&(_, hash)| votes(hash) == best);
    let first = winners.clone().next().map(|&(node, _)| node);
    if winners.any(|&(node, _)| node == own) { Some(own) } else { first }
}

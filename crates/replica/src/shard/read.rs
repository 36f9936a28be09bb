//! Read path: one in-sync replica reads; another does if it cannot.
//!
//! Always: the lock keeps overlapping writes away while a read is under way, so any in-sync replica
//! holds the same bytes; the lease is checked when the bytes are here.

use super::local::{Action, Purpose};
use super::op::{Kind, Read};
use super::peer::ReadLoad;
use super::seats::Nodes;
use super::{Out, Shard};
use crate::door::{DiskAnswer, ReadFailure, ShardOutput};
use base::{AnswerError, BufferId, NodeId, Span};
use wire::{ReadPolicy, ShardMessage};

/// Width of a stripe of the striped read policy, in sectors: 1 MiB.
const STRIPE_SECTORS: u64 = 2048;

impl Shard {
    fn read_mut(&mut self, id: u64) -> Option<&mut Read> {
        match self.ops.get_mut(&id).map(|op| &mut op.kind) {
            Some(Kind::Read(read)) => Some(read),
            _ => None,
        }
    }

    /// In-sync replicas that can be read now, this node's first if it is one.
    pub(super) fn sources(&self, tried: &[NodeId]) -> Nodes {
        let mut nodes = Nodes::new();
        let Some(known) = &self.configuration else { return nodes };
        // As the only copy it is read although its disk failed something: that may have been a write for want of room.
        let readable = !self.disk_failing || self.is_alone();
        if self.is_own_in_sync() && readable && !tried.contains(&self.node) {
            nodes.push(self.node);
        }
        nodes.extend(known.in_sync().filter(|node| {
            *node != self.node
                && self.is_ready(*node)
                && self.peers.get(node).is_some_and(|peer| peer.kept)
                && !tried.contains(node)
        }));
        nodes
    }

    fn choose(&mut self, sources: &[NodeId], span: Span) -> Option<NodeId> {
        let policy = self.configuration.as_ref().map(|known| known.options.read_policy);
        let load = |node: &NodeId| match self.peers.get(node) {
            _ if *node == self.node => self.own_reads,
            Some(peer) => peer.reads,
            None => ReadLoad::default(),
        };
        match policy.unwrap_or_default() {
            ReadPolicy::PreferLocal if sources.first() == Some(&self.node) => Some(self.node),
            ReadPolicy::PreferLocal | ReadPolicy::LeastPending => {
                sources.iter().min_by_key(|node| load(node).open).copied()
            }
            ReadPolicy::LatencyAware => sources
                .iter()
                .min_by_key(|node| {
                    let load = load(node);
                    load.time.saturating_mul(u64::from(load.open) + 1)
                })
                .copied(),
            ReadPolicy::RoundRobin => {
                self.turn = self.turn.wrapping_add(1);
                (!sources.is_empty()).then(|| sources[self.turn % sources.len()])
            }
            ReadPolicy::Striped => {
                let stripe = usize::try_from(span.first() / STRIPE_SECTORS).unwrap_or(0);
                (!sources.is_empty()).then(|| sources[stripe % sources.len()])
            }
        }
    }

    /// Asks a replica for the bytes. Without one to ask, the read waits.
    pub(super) fn start_read(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        let Kind::Read(read) = &op.kind else { return };
        if !read.locked || read.source.is_some() || read.data.is_some() || read.failed {
            return;
        }
        let tried = read.tried.clone();
        let sources = self.sources(&tried);
        let Some(source) = self.choose(&sources, span) else {
            self.read_without_source(id, &tried, out);
            return;
        };
        let own = source == self.node;
        let sequence = if own { 0 } else { self.sequence() };
        let now = self.now;
        if let Some(op) = self.ops.get_mut(&id) {
            op.since = now;
        }
        let read = self.read_mut(id).expect("looked at above");
        read.source = Some(source);
        read.sequence = sequence;
        if let Some(load) = self.read_load(source) {
            load.open += 1;
        }
        if own {
            self.local(Purpose::Op(id), volume, span, Action::Read, out);
        } else {
            self.asked.insert(sequence, id);
            let epoch = self.epoch();
            self.send(source, ShardMessage::Read { epoch, sequence, volume, span }, None, out);
        }
    }

    fn read_without_source(&mut self, id: u64, tried: &[NodeId], out: &mut Out) {
        let all_tried = self.configuration.as_ref().is_some_and(|known| {
            let failing = self.disk_failing || !self.has_disk;
            known.in_sync().all(|node| tried.contains(&node) || (node == self.node && failing))
        });
        if all_tried && !self.read_after_repair(id, out) {
            out.push(ShardOutput::Mark("read failed everywhere"));
            if let Some(read) = self.read_mut(id) {
                read.failed = true;
            }
            self.finish_op(id, out);
        }
    }

    /// The present source is not waited for any more.
    pub(super) fn read_elsewhere(&mut self, id: u64, out: &mut Out) {
        self.forget_question(id);
        self.read_again(id, None, out);
    }

    /// A read's question is as if it had never been asked.
    pub(super) fn forget_question(&mut self, id: u64) {
        let Some(read) = self.read_mut(id) else { return };
        let (source, sequence) = (read.source.take(), read.sequence);
        self.asked.remove(&sequence);
        if let Some(load) = source.and_then(|source| self.read_load(source)) {
            load.ended();
        }
    }

    fn read_load(&mut self, node: NodeId) -> Option<&mut ReadLoad> {
        if node == self.node {
            return Some(&mut self.own_reads);
        }
        self.peers.get_mut(&node).map(|peer| &mut peer.reads)
    }

    /// The present source does not answer, or failed: another one is asked.
    pub(super) fn read_again(&mut self, id: u64, failed: Option<NodeId>, out: &mut Out) {
        let Some(read) = self.read_mut(id) else { return };
        read.source = None;
        read.tried.extend(failed);
        out.push(ShardOutput::Mark("read goes to another replica"));
        self.start_read(id, out);
    }

    /// The bytes, or a failure, from `node`.
    pub(super) fn on_data(
        &mut self,
        node: NodeId,
        sequence: u64,
        result: Result<Option<BufferId>, ReadFailure>,
        out: &mut Out,
    ) {
        let buffer = result.unwrap_or(None);
        let Some(id) = self.asked.remove(&sequence) else {
            self.release(buffer, out);
            return;
        };
        self.on_read_done(id, node, result, out);
    }

    /// `node` could not give the bytes of an operation's range: a disk that fails is complained about, bytes
    /// that rotted are repaired from another replica.
    pub(super) fn on_read_failure(
        &mut self,
        id: u64,
        node: NodeId,
        failure: ReadFailure,
        out: &mut Out,
    ) {
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span) = (op.volume, op.span);
        match failure {
            ReadFailure::Disk if node != self.node => self.complain(node, true, out),
            ReadFailure::Disk => {}
            ReadFailure::Rotten => {
                out.push(ShardOutput::Mark("rotten bytes are to be repaired"));
                let block = self.geometry.block_sectors;
                let first = span.first() / block * block;
                let end = span.end().div_ceil(block) * block;
                let end = end.min(self.kept_sectors(volume));
                self.reconcile.add(volume, first, end, false);
            }
        }
    }

    /// A source has answered a read or the read of a copy.
    pub(super) fn on_read_done(
        &mut self,
        id: u64,
        node: NodeId,
        result: Result<Option<BufferId>, ReadFailure>,
        out: &mut Out,
    ) {
        let took = self.ops.get(&id).and_then(|op| match &op.kind {
            Kind::Read(read) if read.source == Some(node) && read.data.is_none() => {
                Some(self.now.since(op.since))
            }
            _ => None,
        });
        if let Some(took) = took
            && let Some(load) = self.read_load(node)
        {
            load.took(took);
        }
        match self.ops.get_mut(&id).map(|op| &mut op.kind) {
            Some(Kind::Read(read)) if read.source == Some(node) => match result {
                Ok(buffer) => {
                    read.data = Some(buffer);
                    self.finish_op(id, out);
                }
                Err(failure) => {
                    self.on_read_failure(id, node, failure, out);
                    self.read_again(id, Some(node), out);
                }
            },
            Some(Kind::Copy(_)) => self.on_copy_data(id, node, result, out),
            _ => self.release(result.unwrap_or(None), out),
        }
    }

    /// An answer of the own disk to an operation of this primary.
    pub(super) fn on_own_disk(&mut self, id: u64, answer: DiskAnswer, out: &mut Out) {
        match answer {
            DiskAnswer::Data(buffer) => self.on_read_done(id, self.node, Ok(buffer), out),
            DiskAnswer::Hash(_) => self.on_hash_of(id, self.node, self.hash_in(answer), out),
            DiskAnswer::Rotten if self.copy_mut(id).is_some_and(|copy| copy.is_comparing()) => {
                self.on_hash_of(id, self.node, self.hash_in(answer), out);
            }
            DiskAnswer::Rotten => {
                self.on_read_done(id, self.node, Err(ReadFailure::Rotten), out);
            }
            DiskAnswer::Done | DiskAnswer::Durable | DiskAnswer::Failed => {
                match self.ops.get(&id).map(|op| &op.kind) {
                    Some(Kind::Write(_)) => self.on_own_written(id, answer, out),
                    Some(Kind::Flush(_)) => self.on_own_flushed(id, answer, out),
                    Some(Kind::Read(_)) => {
                        self.on_read_done(id, self.node, Err(ReadFailure::Disk), out);
                    }
                    Some(Kind::Copy(copy)) => {
                        if copy.is_comparing() {
                            self.on_hash_of(id, self.node, None, out);
                        } else {
                            self.on_copy_data(id, self.node, Err(ReadFailure::Disk), out);
                        }
                    }
                    None => {}
                }
            }
        }
    }

    pub(super) fn read_answered(&mut self, id: u64, out: &mut Out) {
        self.unlock(id, out);
        let Some(op) = self.ops.remove(&id) else { return };
        let Kind::Read(read) = op.kind else { return };
        let buffer = read.data.flatten();
        let result = if read.failed { Err(AnswerError::Io) } else { Ok(()) };
        if let Some(client) = op.client {
            self.answer(&client, result, buffer, out);
        }
        self.release(buffer, out);
    }
}

//! Other nodes, as this shard sees them.

use super::op::{Kind, Origin, Own};
use super::seats::Nodes;
use super::status::SyncStatus;
use super::sync::Sync;
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::vec::Vec;
use base::{BufferId, Duration, Epoch, Instant, NodeId, SessionId};
use wire::ShardMessage;

/// Another node.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The session that lasts, if any.
    pub(super) session: Option<SessionId>,
    /// The configuration that all its shards act on, in this session.
    pub(super) ready: Option<Epoch>,
    /// Its disk cache is the one that the configuration names.
    pub(super) kept: bool,
    /// Its doubt is known, in this reign and session.
    pub(super) gathered: bool,
    /// It was told in this session and reign what took effect.
    pub(super) reminded: bool,
    /// The question that asks for its doubt.
    pub(super) gathering: Option<u64>,
    /// It is being brought up to date.
    pub(super) sync: Option<Sync>,
    /// Its include is about to be, or was, proposed.
    pub(super) required: Option<SessionId>,
    /// When `PeerLate` or `PeerFailed` was said in this session.
    pub(super) complained: Option<Instant>,
    /// When all that is open was sent to it, that of before its session too.
    asked: Instant,
    /// It failed a write for which it is to be asked again: what came after and overlaps it waits for that.
    pub(super) refused: bool,
    /// How many writes were retired when it was told last.
    pub(super) retired_told: u64,
    /// How busy it is with clients' reads.
    pub(super) reads: ReadLoad,
    /// How its last resync from here went.
    pub(super) last_sync: Option<SyncStatus>,
}

/// How busy a replica is with clients' reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadLoad {
    /// Reads that it has not answered.
    pub(super) open: u32,
    /// How long a read took of late, in nanoseconds, smoothed.
    pub(super) time: u64,
}

impl ReadLoad {
    /// A read is not waited for any more.
    pub(super) fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    pub(super) fn took(&mut self, time: Duration) {
        self.ended();
        self.time = self.time - self.time / 8 + time.0 / 8;
    }
}

impl Peer {
    /// Whether what its disk has is what an in-sync replica's has: one that lost its cache may lack writes that it
    /// answered, and is about to be excluded. Of one that is about to be included nobody has said so yet: it has all that
    /// it answered while the session of its resync lasts.
    pub(super) fn counts(&self) -> bool {
        self.kept || (self.required.is_some() && self.required == self.session)
    }

    fn reset(&mut self, session: Option<SessionId>) {
        let required = self.required;
        let reads = ReadLoad { open: 0, ..self.reads };
        let last_sync = self.last_sync.take();
        *self = Peer { session, required, reads, last_sync, ..Peer::default() };
    }
}

impl Shard {
    pub(super) fn on_peer_up(&mut self, peer: NodeId, session: SessionId, out: &mut Out) {
        if let Some(old) = self.peers.get(&peer).and_then(|known| known.session) {
            self.on_peer_down(peer, old, out);
        }
        self.peers.entry(peer).or_default().reset(Some(session));
        self.retry_waiting(out);
    }

    pub(super) fn on_peer_down(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.session != Some(session) {
            return;
        }
        let waits_for_doubt = peer.gathering.take();
        peer.reset(None);
        self.untold_in(node, session);
        if let Some(sequence) = waits_for_doubt {
            self.asked.remove(&sequence);
        }
        self.forget_asked_bits(node);
        self.forget_answers(node, out);
        self.drop_requests_of(node, session, out);
        self.unforward(node, out);
    }

    /// Questions to `node` are as if they had never been asked.
    fn forget_answers(&mut self, node: NodeId, out: &mut Out) {
        let Some(seat) = self.seats.find(node) else { return };
        let ids: Vec<u64> = self.ops.keys().copied().collect();
        for id in ids {
            let Some(op) = self.ops.get_mut(&id) else { continue };
            match &mut op.kind {
                Kind::Write(write) => {
                    write.sent.drop(seat);
                    write.durable_at.drop(seat);
                    if write.early && !write.complete && write.disk.has(seat) {
                        write.memory.add(seat);
                    }
                    if write.syncing.drop(seat) {
                        let (volume, span) = (op.volume, op.span);
                        self.bitmaps.set(node, volume, span.first(), span.end(), true);
                        self.settle_write(id, out);
                    }
                }
                Kind::Flush(flush) => {
                    flush.sent.drop(seat);
                }
                Kind::Read(read) if read.source == Some(node) => {
                    self.read_elsewhere(id, out);
                }
                Kind::Read(_) => {}
                Kind::Copy(_) => self.copy_lost_peer(id, node, out),
            }
        }
    }

    /// Requests that `node` forwarded in a session that ended: nobody waits for them.
    fn drop_requests_of(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let mine = |origin: Origin| matches!(origin, Origin::Peer { node: n, session: s, .. } if n == node && s == session);
        let mut kept = alloc::collections::VecDeque::new();
        for client in core::mem::take(&mut self.waiting) {
            if mine(client.origin) {
                self.release(client.request.buffer, out);
            } else {
                kept.push_back(client);
            }
        }
        self.waiting = kept;
    }

    pub(super) fn on_peer_ready(
        &mut self,
        node: NodeId,
        session: SessionId,
        epoch: Epoch,
        kept: bool,
        out: &mut Out,
    ) {
        if node == self.node {
            self.kept = kept;
            self.own_ready = epoch >= self.reign();
            self.check_gathered(out);
            return;
        }
        let was_asked = self.is_ready(node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.session != Some(session) {
            return;
        }
        if !was_asked {
            peer.asked = self.now;
        }
        peer.ready = Some(epoch);
        peer.kept = kept;
        self.retire_due = 0;
        self.gather_from(node, out);
        // First what it may have from an earlier session: a reminder without that would take its name away.
        self.catch_up(node, out);
        self.remind(node, out);
        self.check_gathered(out);
        self.answer_held(out);
    }

    /// Whether data messages may go to `node`: it acts on a configuration of this reign, and knows how
    /// large every volume is.
    pub(super) fn is_ready(&self, node: NodeId) -> bool {
        self.acts_on(node, self.reign().max(self.resized))
    }

    /// Whether `node` hears in this session what is settled or clean. It is said once: who does not know yet how large a
    /// volume has become is told, too.
    pub(super) fn acts_in_reign(&self, node: NodeId) -> bool {
        self.acts_on(node, self.reign())
    }

    fn acts_on(&self, node: NodeId, needed: Epoch) -> bool {
        self.peers.get(&node).is_some_and(|peer| {
            peer.session.is_some() && peer.ready.is_some_and(|epoch| epoch >= needed)
        })
    }

    /// Sends everything open that waits for `node` and was not sent in this session.
    pub(super) fn catch_up(&mut self, node: NodeId, out: &mut Out) {
        if !self.is_primary() || !self.is_ready(node) {
            return;
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.refused = false;
        }
        let mut open: Vec<(u64, u64)> = Vec::new();
        for (&id, op) in self.ops.iter() {
            match &op.kind {
                Kind::Write(write) if write.sequence > 0 => open.push((write.sequence, id)),
                Kind::Flush(flush) => open.push((flush.sequence, id)),
                Kind::Read(read) if read.source.is_none() && read.data.is_none() => {
                    open.push((u64::MAX, id));
                }
                _ => {}
            }
        }
        open.sort_unstable();
        for (_, id) in open {
            match self.ops.get(&id).map(|op| &op.kind) {
                Some(Kind::Write(_)) => self.send_write(id, node, out),
                Some(Kind::Flush(_)) => self.send_flush(id, node, out),
                Some(Kind::Read(_)) => self.start_read(id, out),
                _ => {}
            }
        }
    }

    pub(super) fn send(
        &self,
        node: NodeId,
        message: ShardMessage,
        buffer: Option<BufferId>,
        out: &mut Out,
    ) {
        if let Some(session) = self.peers.get(&node).and_then(|peer| peer.session) {
            out.push(ShardOutput::Send { peer: node, session, message, buffer });
        }
    }

    pub(super) fn release(&self, buffer: Option<BufferId>, out: &mut Out) {
        if let Some(buffer) = buffer {
            out.push(ShardOutput::Release { buffer });
        }
    }

    /// Complains about peers that owe an answer for too long.
    pub(super) fn check_late(&mut self, out: &mut Out) {
        if !self.is_primary() {
            return;
        }
        let limit: Duration = self.timing.peer_late;
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            let Some(seat) = self.seats.find(node) else { continue };
            let asked = self.peers.get(&node).map_or(Instant(0), |peer| peer.asked);
            let late = self.ops.values().any(|op| {
                self.now.since(op.since.max(asked)) > limit
                    && match &op.kind {
                        Kind::Write(write) => {
                            write.sent.has(seat)
                                && (write.disk.has(seat) || write.syncing.has(seat))
                        }
                        Kind::Flush(flush) => flush.sent.has(seat) && flush.awaiting.has(seat),
                        // Once the bytes are here the answer waits for something else.
                        Kind::Read(read) => read.source == Some(node) && read.data.is_none(),
                        Kind::Copy(copy) => copy.waits_for(node),
                    }
            });
            if late {
                self.complain(node, false, out);
            } else {
                self.ask_again(node, out);
            }
        }
    }

    /// A peer that failed what it was asked for, some time ago, and was not excluded for it, is asked again.
    fn ask_again(&mut self, node: NodeId, out: &mut Out) {
        let (now, pause) = (self.now, self.timing.peer_late);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.complained.is_some_and(|at| now >= at + pause) {
            peer.complained = None;
            self.catch_up(node, out);
        }
    }

    /// Tells the member that the peer is late, or that its disk failed. Not again at once, but again: what the
    /// member makes of it may be over before what was complained about is.
    pub(super) fn complain(&mut self, node: NodeId, failed: bool, out: &mut Out) {
        let (now, pause) = (self.now, self.timing.peer_late);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(session) = peer.session else { return };
        if peer.complained.is_some_and(|at| now < at + pause) {
            return;
        }
        peer.complained = Some(now);
        let message = if failed {
            crate::door::FromShard::PeerFailed { peer: node, session }
        } else {
            crate::door::FromShard::PeerLate { peer: node, session }
        };
        out.push(ShardOutput::Mark(if failed { "peer failed" } else { "peer late" }));
        out.push(ShardOutput::Member(message));
        if self.configuration.as_ref().is_some_and(|known| !known.is_in_sync(node)) {
            self.stop_sync(node, out);
        }
    }

    /// In-sync replicas of other nodes, and those whose include is under way.
    pub(super) fn required_peers(&self) -> Nodes {
        let mut nodes = Nodes::new();
        let Some(known) = &self.configuration else { return nodes };
        nodes.extend(known.in_sync().filter(|&node| node != self.node));
        let joining = self.peers.iter().filter(|(_, peer)| peer.required.is_some());
        nodes.extend(joining.map(|(&node, _)| node));
        nodes
    }

    /// The own disk's part of something every in-sync replica does. While the configuration names this
    /// replica as in sync and it cannot be used, nothing is complete: it has to be excluded first.
    pub(super) fn own_part(&self) -> Own {
        let named = self.configuration.as_ref().is_some_and(|known| known.is_in_sync(self.node));
        match (named, self.is_own_in_sync()) {
            (false, _) => Own::None,
            (true, true) => Own::Pending,
            (true, false) => Own::Failed,
        }
    }

    /// Whether this node's replica is the only one in sync, and no other is about to be: that one may hold what this one failed, and be
    /// read for it soon.
    pub(super) fn is_left_alone(&self) -> bool {
        self.is_alone() && self.peers.values().all(|peer| peer.required.is_none())
    }

    /// Whether this node's replica is the only one in sync: nobody can take its part.
    pub(super) fn is_alone(&self) -> bool {
        self.is_only_copy(self.node)
    }

    /// Whether the copy of `node` is the only one in sync.
    pub(super) fn is_only_copy(&self, node: NodeId) -> bool {
        self.configuration
            .as_ref()
            .is_some_and(|known| known.is_in_sync(node) && known.in_sync().count() == 1)
    }
}

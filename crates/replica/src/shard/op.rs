//! What is open at a primary.

use super::Shard;
use super::copy::Copy;
use super::seats::NodeSet;
use alloc::vec::Vec;
use base::{
    BufferId, Epoch, Instant, NodeId, Op as Ask, Request, RequestId, SessionId, Span, VolumeId,
};
use wire::{Moment, WriteOrigin};

/// Who waits for the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Origin {
    /// A client of this node.
    Local(RequestId),
    /// A node that forwarded its client's request.
    Peer { node: NodeId, session: SessionId, id: RequestId },
}

/// A request and who waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) origin: Origin,
    pub(super) request: Request,
    /// When it came in.
    pub(super) since: Instant,
    /// Of a write, its name.
    pub(super) write: Option<WriteOrigin>,
    /// Of a write, the oldest reign in which it may have been carried out; 0: it was asked for the first time.
    pub(super) asked: Epoch,
    /// Of a write of a client that has several ways: which it came, and when, by what the primary had told.
    pub(super) way: Option<(u32, Moment)>,
    /// Until when that client surely waits here only, and what the primary told last counts instead.
    pub(super) stays_until: Instant,
}

impl Client {
    /// One that another node forwarded, with what that said of it: the write's name, since when it was asked for, and its way.
    pub(super) fn of_peer(
        origin: Origin,
        request: Request,
        since: Instant,
        (write, asked, way): (Option<WriteOrigin>, Epoch, Option<(u32, Moment)>),
    ) -> Client {
        Client { origin, request, since, write, asked, way, stays_until: Instant(0) }
    }
}

/// One operation of a primary.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) client: Option<Client>,
    pub(super) volume: VolumeId,
    pub(super) span: Span,
    /// The cut it belongs to.
    pub(super) cut: u64,
    /// When it was issued to peers or disk.
    pub(super) since: Instant,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Write(Write),
    Read(Read),
    Flush(Flush),
    Copy(Copy),
}

/// How far this node's own disk is with something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Own {
    /// Nothing was asked of it.
    None,
    Pending,
    /// Durable, not in its place yet.
    Durable,
    Done,
    Failed,
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Bytes(BufferId),
    Zero { unmap: bool },
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) content: Content,
    pub(super) durable: bool,
    /// The copy that issued it, which holds the lock.
    pub(super) copy: Option<u64>,
    /// 0 until issued.
    pub(super) sequence: u64,
    pub(super) own: Own,
    /// In-sync peers that have not said that they received it (protocol B).
    pub(super) memory: NodeSet,
    /// In-sync or required peers that have not said that their disk has it in its place.
    pub(super) disk: NodeSet,
    /// Syncing peers that have not said that their disk has it in its place.
    pub(super) syncing: NodeSet,
    /// Of both, those that have said in their present session that it is durable there.
    pub(super) durable_at: NodeSet,
    /// Peers to which it was sent in their present session.
    pub(super) sent: NodeSet,
    /// Protocol B.
    pub(super) early: bool,
    /// As many have it as the protocol asks for; the lock is gone.
    pub(super) complete: bool,
    pub(super) answered: bool,
    /// Every in-sync disk has it in its place.
    pub(super) retired: bool,
    /// It keeps its extent hot here.
    pub(super) holds: bool,
    /// The client's write that it is, or that it settles.
    pub(super) origin: Option<WriteOrigin>,
    /// It settles that write as one that never took effect.
    pub(super) undone: bool,
    /// That write was known to have taken effect when this one was issued.
    pub(super) was_in_effect: bool,
}

impl Write {
    /// Whether a peer that it waits for has it in memory only, or not at all.
    pub(super) fn is_lacked_by(&self, seat: u32) -> bool {
        self.disk.has(seat) && !self.durable_at.has(seat)
    }

    /// Whether every replica that it waits for has it durably.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.own, Own::None | Own::Durable | Own::Done)
            && self.disk.without(self.durable_at).is_empty()
    }

    /// Whether every replica that it waits for has it in its place.
    pub(super) fn is_in_place(&self) -> bool {
        matches!(self.own, Own::None | Own::Done) && self.disk.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Read {
    /// It has its lock: no overlapping write is incomplete.
    pub(super) locked: bool,
    /// Replicas that failed it, or were lost while reading.
    pub(super) tried: Vec<NodeId>,
    /// Who reads it now.
    pub(super) source: Option<NodeId>,
    pub(super) sequence: u64,
    /// The bytes are here (`None` inside: all zeroes), waiting for the lease.
    pub(super) data: Option<Option<BufferId>>,
    /// No replica could read it.
    pub(super) failed: bool,
}

#[derive(Debug)]
pub(super) struct Flush {
    pub(super) sequence: u64,
    pub(super) own: Own,
    pub(super) awaiting: NodeSet,
    pub(super) sent: NodeSet,
    /// Peers that failed it while there were other copies.
    pub(super) failed: NodeSet,
    /// Writes that were answered when some replicas had them in memory only (protocol B): the flush is
    /// asked for when they are on every disk.
    pub(super) after: Vec<u64>,
    pub(super) complete: bool,
    pub(super) purpose: FlushFor,
}

/// What follows from a flush.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FlushFor {
    /// A client is answered.
    Client,
    /// A recovery after the loss of all caches ends.
    Recovery,
    /// What was added to a volume, in this run, is zero for good.
    Growth { volume: VolumeId, run: u64 },
}

impl Shard {
    pub(super) fn insert_op(
        &mut self,
        client: Option<Client>,
        volume: VolumeId,
        span: Span,
        kind: Kind,
    ) -> u64 {
        let id = self.next_op;
        self.next_op += 1;
        let op = Op { client, volume, span, cut: self.cut, since: self.now, kind };
        self.ops.insert(id, op);
        id
    }

    /// Whether an answer may be given now, as far as cuts are concerned.
    pub(super) fn cut_allows(&self, op: &Op) -> bool {
        op.cut <= self.cut_done + 1
    }
}

/// Whether a request changes data.
pub(super) fn changes(ask: Ask) -> bool {
    matches!(ask, Ask::Write | Ask::Zero { .. })
}

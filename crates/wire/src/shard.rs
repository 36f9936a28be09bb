//! The data path: what the shards of one resource say to each other.
//!
//! Shard `i` of one node speaks with shard `i` of another only, in one stream, in order, so that two
//! writes to one block never overtake each other on the way. Payload travels beside the message.

use alloc::vec::Vec;
use base::{AnswerError, Epoch, HostId, NodeId, Op, RequestId, Span, VolumeId};

/// A run of sectors that a replica may hold differently from the others.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DoubtRun {
    /// Which volume.
    pub volume: VolumeId,
    /// First sector.
    pub first: u64,
    /// Sector after the last.
    pub end: u64,
    /// Nothing but a comparison tells whether it differs (a hot extent after a restart); else a write
    /// was open there.
    pub compare: bool,
    /// It keeps extents in this replica's activity log.
    pub hot: bool,
}

/// Names a write of a client: the same name whenever it is asked for, wherever the primary is by then.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WriteName {
    /// The process of the node that its client is connected to, never 0: the node in the upper 16 bits,
    /// below them a random number of the process.
    pub session: u64,
    /// Counts up from 1 within a session and shard.
    pub number: u64,
}

impl WriteName {
    /// The session of a process, of which `process` is a random number.
    #[must_use]
    pub fn session_of(node: NodeId, process: u64) -> u64 {
        u64::from(node.0) << PROCESS_BITS | process & ((1 << PROCESS_BITS) - 1)
    }

    /// The node of a session.
    #[must_use]
    pub fn node_of(session: u64) -> u64 {
        session >> PROCESS_BITS
    }
}

/// Bits of a session that are random.
const PROCESS_BITS: u32 = 48;

/// Where a write comes from, as it travels beside it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct WriteOrigin {
    /// Its name.
    pub name: WriteName,
    /// Every write of its session with a lower number was answered, and is never asked for again. Not
    /// above the write's own number, and less than 2^32 below it.
    pub answered_below: u64,
}

/// A write that took effect, and may be asked for again.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct NamedWrite {
    /// Its name.
    pub name: WriteName,
    /// Which volume.
    pub volume: VolumeId,
    /// Which sectors.
    pub span: Span,
}

/// Writes that took effect on a replica, or part of them.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Memory {
    /// A write that was first asked for in this reign or later and is not in `writes`, nor answered, did not take
    /// effect. `None`: nothing can be said of those that are not in it. Never 0.
    pub since: Option<Epoch>,
    /// Of sessions: every write with a lower number than the second was answered; [`u64::MAX`]: the session is over,
    /// and nobody asks for its writes again.
    pub answered: Vec<(u64, u64)>,
    /// Those that took effect.
    pub writes: Vec<NamedWrite>,
}

/// What a write carries besides its address.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct WriteFlags {
    /// Must survive a power cut before it is acknowledged.
    pub fua: bool,
    /// The span is made zero; there is no payload.
    pub zero: bool,
    /// With `zero`: space may be given back.
    pub unmap: bool,
    /// Copied by a resync to a replica that is not in sync; it is not kept un-retired.
    pub resync: bool,
    /// Acknowledge when received already, and again when written (protocol B).
    pub early: bool,
    /// It repairs a span of which the named write is no part: from now on that write never took effect.
    pub undone: bool,
}

/// How far a primary's shard was with the writes of clients that have several ways to the volume.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Moment {
    /// In this reign.
    pub reign: Epoch,
    /// So many of them had been let in.
    pub number: u64,
}

/// One message between two `Shard` machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ShardMessage {
    /// Primary to replica: write this (payload beside it unless `zero`).
    Write {
        /// The primary's configuration.
        epoch: Epoch,
        /// Counts up within a reign and shard.
        sequence: u64,
        /// The cut that the write belongs to.
        cut: u64,
        /// Which volume.
        volume: VolumeId,
        /// Where on the volume.
        span: Span,
        /// How.
        flags: WriteFlags,
        /// The client's write that this is; of a repair, the one that it settles.
        origin: Option<WriteOrigin>,
    },
    /// Replica to primary: it is in memory (answer to `early`).
    Received {
        /// Of the write.
        sequence: u64,
    },
    /// Replica to primary: the disk has it, or failed.
    Written {
        /// Of the write.
        sequence: u64,
        /// The disk took it: it is as durable as was asked.
        ok: bool,
        /// It is in its place, too, where the disk reads it from. Never without `ok`; if not, another `Written`
        /// follows.
        in_place: bool,
    },
    /// Primary to replica: every write up to and with this one is complete at every in-sync replica.
    Retire {
        /// The configuration under which they became so; who does not know it ignores this.
        epoch: Epoch,
        /// The last of those before which every one is complete.
        upto: u64,
        /// Later ones that are complete too, as (first, after the last), ascending.
        ahead: Vec<(u64, u64)>,
    },
    /// Primary to in-sync replica: these sectors are the same everywhere; drop older doubt.
    Settled {
        /// The primary's configuration.
        epoch: Epoch,
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
    },
    /// Primary to in-sync replica: `target` has these sectors on stable storage; clear its bits.
    Clean {
        /// The primary's configuration.
        epoch: Epoch,
        /// The node whose bits are cleared, as a number.
        target: NodeId,
        /// Which volume.
        volume: VolumeId,
        /// Which sectors, as (first, end).
        runs: Vec<(u64, u64)>,
    },
    /// Primary to replica: flush every volume of this resource.
    Flush {
        /// The primary's configuration.
        epoch: Epoch,
        /// Of the flush; same numbers as writes.
        sequence: u64,
    },
    /// Answer to `Flush`.
    Flushed {
        /// Of the flush.
        sequence: u64,
        /// The disk did it.
        ok: bool,
    },
    /// Primary to replica: read this.
    Read {
        /// The primary's configuration.
        epoch: Epoch,
        /// Of the read; same numbers as writes.
        sequence: u64,
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
    },
    /// Answer to `Read`: payload beside it if `ok` and not `zero`.
    Data {
        /// Of the read.
        sequence: u64,
        /// The disk gave it.
        ok: bool,
        /// It is all zeroes; there is no payload.
        zero: bool,
        /// Not `ok`, because the bytes are not those that were written: their checksum differs.
        rotten: bool,
    },
    /// Primary to replica: hash this. Also marks it for absent peers when `resync`.
    Compare {
        /// The primary's configuration.
        epoch: Epoch,
        /// Of the comparison; same numbers as writes.
        sequence: u64,
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
        /// Sent to a replica that is being resynced.
        resync: bool,
    },
    /// Answer to `Compare`.
    Hash {
        /// Of the comparison.
        sequence: u64,
        /// A 128-bit hash of the sectors; `None` if the disk failed.
        hash: Option<u128>,
    },
    /// New primary to replica: what may differ at your place? Refuse every older epoch from now on.
    Gather {
        /// The primary's configuration.
        epoch: Epoch,
        /// Of the question; same numbers as writes.
        sequence: u64,
        /// Also send the bits held for this node (the primary has no bitmap of its own).
        bits_of: Option<NodeId>,
    },
    /// Answer to `Gather`, in one or more parts.
    Doubt {
        /// Of the question.
        sequence: u64,
        /// Ranges in doubt here; with `bits_of`, ranges dirty for that node.
        runs: Vec<DoubtRun>,
        /// No more parts follow.
        last: bool,
    },
    /// Answer to `Gather`, before the last `Doubt`: what took effect here. In parts, which add up; `since` stands
    /// in the last.
    Remembers {
        /// Of the question.
        sequence: u64,
        /// A part of it.
        memory: Memory,
    },
    /// Primary to replica: what took effect, instead of all that it remembers. In parts; `since` stands in the
    /// last.
    Remember {
        /// The primary's configuration.
        epoch: Epoch,
        /// The first part: forget all else.
        first: bool,
        /// A part of it.
        memory: Memory,
    },
    /// Client to primary: do this for me (payload beside it for a write).
    Forward {
        /// Chosen by the sender, unique in the session.
        id: RequestId,
        /// What.
        op: Op,
        /// Which volume.
        volume: VolumeId,
        /// Where.
        span: Span,
        /// Durable before it is answered.
        fua: bool,
        /// Of a write, its name.
        origin: Option<WriteOrigin>,
        /// Of a write with a name, the oldest reign in which it may have been carried out; 0: in none before.
        asked: Epoch,
        /// It is asked for the first time, and to be carried out in the reign `asked` or not at all.
        first: bool,
        /// The newest stretch of the history that the sender is on; 0: the first.
        history: u64,
        /// Only of a write of a client that has several ways to the volume: which way it came, and when, by what the primary
        /// had told.
        way: Option<(u32, Moment)>,
        /// Which host asks; `HostId(0)`: none that is known, or none ever registered for the volume by what the sender knows.
        host: HostId,
    },
    /// Answer to `Forward`: payload beside it for a read that is `Ok` and not `zero`.
    Forwarded {
        /// Of the request.
        id: RequestId,
        /// How it went; `None` means: not primary any more, ask again elsewhere.
        result: Option<Result<(), AnswerError>>,
        /// The read gave only zeroes; there is no payload.
        zero: bool,
        /// Without a result: what `Forward` is to say next time.
        asked: Epoch,
        /// Of a write that named a way: the present one.
        moment: Option<Moment>,
    },
    /// Replica to primary: refused, because a newer reign is known here.
    Stale {
        /// The epoch known here.
        epoch: Epoch,
    },
}

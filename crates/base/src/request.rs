//! What a client asks of a volume, and what it is told when that cannot be had.

use crate::{BufferId, Duration, HostId, Span, VolumeId};

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// Read the span; the answer carries a buffer with its bytes.
    Read,
    /// Write the buffer's bytes over the span.
    Write,
    /// Make the span read as zeroes. With `unmap` the space behind it may be given back.
    Zero {
        /// Space behind the span may be given back.
        unmap: bool,
    },
    /// Make every write answered so far survive a power cut.
    Flush,
}

/// One of the ways of a client that has several to a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Way {
    /// Which of the node's it is, in the life of this process.
    pub number: u32,
    /// For so long after the node took a request from it, the client surely has not asked another way.
    pub stays: Duration,
}

impl Way {
    /// That of a client which may ask elsewhere at any time.
    #[must_use]
    pub fn of(number: u32) -> Way {
        Way { number, stays: Duration(0) }
    }
}

/// One request of a client to one volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// What is asked for.
    pub op: Op,
    /// Which volume of the resource.
    pub volume: VolumeId,
    /// Which sectors; for a flush any span inside the volume.
    pub span: Span,
    /// The bytes of a write; `None` for everything else.
    pub buffer: Option<BufferId>,
    /// The write, or zeroing, survives a power cut once answered.
    pub fua: bool,
    /// Of a client that has several ways to the volume, and goes another when one is slow or gone: which of this node's it
    /// came by, in the life of this process. A write that may come too late for that fails with [`AnswerError::Path`].
    pub way: Option<Way>,
    /// Which host asks, where that is known: it may have registered for reservations. `HostId(0)`: one that cannot.
    pub host: HostId,
}

/// Why a request failed, in the terms a client can act on.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum AnswerError {
    /// The span lies outside the volume or is not aligned to its block size.
    OutOfRange,
    /// The resource has no quorum and its policy is to fail.
    NoQuorum,
    /// No reachable replica could read or write the span.
    Io,
    /// Writes made in this session may have been lost with every cache; it must be opened anew.
    SessionLost,
    /// The resource is being removed, or the node is stopping.
    Gone,
    /// Only of a write with a `way`: the client may have gone another meanwhile, and is to ask anew if it waits.
    Path,
    /// A reservation of another host keeps this one from it.
    Reserved,
}

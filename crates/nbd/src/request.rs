//! What a client asks for in the transmission phase, and the errors it understands.

use base::{AnswerError, SECTOR_BYTES, Span};

/// The place of an open request in its connection's table; free again once it is answered.
///
/// Cookies are the client's and may repeat; slots are ours and do not.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Slot(pub(crate) u8);

impl Slot {
    /// Its number, below [`crate::REQUESTS_OPEN_MAX`]: an index for the caller's own table.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    /// Read. With `whole` the answer is one piece (`NBD_CMD_FLAG_DF`), which is then no longer than
    /// [`crate::PIECE_BYTES_MAX`].
    Read {
        /// The answer must be one piece.
        whole: bool,
    },
    /// Write the payload that follows.
    Write,
    /// Make every write answered so far survive a power cut.
    Flush,
    /// The bytes are no longer needed.
    Trim,
    /// Make the bytes zero.
    Zero {
        /// Keep the space behind them.
        no_hole: bool,
        /// Fail with [`ErrorCode::NotSupported`] rather than be as slow as a write.
        fast: bool,
    },
    /// Say what is allocated.
    BlockStatus {
        /// One extent is enough, and more are not allowed.
        one: bool,
    },
}

/// A request that has passed every check that the protocol and the export's size allow for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Names it until it is answered.
    pub slot: Slot,
    /// The client's name for it; for logs.
    pub cookie: u64,
    /// What is asked for.
    pub op: Op,
    /// Where, in bytes; a multiple of the export's minimum block size. 0 for a flush.
    pub offset_bytes: u64,
    /// How much, in bytes, inside the export; 0 for a flush. Reads and writes have at most
    /// [`crate::PAYLOAD_BYTES_MAX`].
    pub length_bytes: u32,
    /// What it writes survives a power cut once answered. Only for what writes.
    pub fua: bool,
}

impl Request {
    /// The same place in sectors; `None` for a flush, and where the export's blocks are smaller than
    /// a sector and the request is no whole sectors.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        let length_bytes = u64::from(self.length_bytes);
        if !self.offset_bytes.is_multiple_of(SECTOR_BYTES)
            || !length_bytes.is_multiple_of(SECTOR_BYTES)
        {
            return None;
        }
        let count = u32::try_from(length_bytes / SECTOR_BYTES).ok()?;
        Span::new(self.offset_bytes / SECTOR_BYTES, count)
    }
}

/// The errors of the transmission phase ("Error values" of the protocol).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ErrorCode {
    /// `NBD_EPERM`: a write to a read-only export.
    NotPermitted,
    /// `NBD_EIO`.
    Io,
    /// `NBD_ENOMEM`.
    NoMemory,
    /// `NBD_EINVAL`: the request breaks a rule.
    Invalid,
    /// `NBD_ENOSPC`: a write beyond the end, or no space.
    NoSpace,
    /// `NBD_EOVERFLOW`: longer than can be answered.
    Overflow,
    /// `NBD_ENOTSUP`: zeroing would not be fast.
    NotSupported,
    /// `NBD_ESHUTDOWN`: the client shall disconnect.
    ShuttingDown,
}

impl ErrorCode {
    /// Its value on the wire.
    #[must_use]
    pub fn value(self) -> u32 {
        match self {
            ErrorCode::NotPermitted => 1,
            ErrorCode::Io => 5,
            ErrorCode::NoMemory => 12,
            ErrorCode::Invalid => 22,
            ErrorCode::NoSpace => 28,
            ErrorCode::Overflow => 75,
            ErrorCode::NotSupported => 95,
            ErrorCode::ShuttingDown => 108,
        }
    }

    /// The error behind a value; one that the protocol does not define counts as invalid, as it asks.
    #[must_use]
    pub fn from_value(value: u32) -> ErrorCode {
        match value {
            1 => ErrorCode::NotPermitted,
            5 => ErrorCode::Io,
            12 => ErrorCode::NoMemory,
            28 => ErrorCode::NoSpace,
            75 => ErrorCode::Overflow,
            95 => ErrorCode::NotSupported,
            108 => ErrorCode::ShuttingDown,
            _ => ErrorCode::Invalid,
        }
    }
}

impl From<AnswerError> for ErrorCode {
    /// A session that must be opened anew, and a resource that goes away, are told as a shutdown,
    /// because that is the one error which makes a client disconnect.
    fn from(error: AnswerError) -> ErrorCode {
        match error {
            AnswerError::OutOfRange => ErrorCode::Invalid,
            AnswerError::NoQuorum | AnswerError::Io | AnswerError::Path => ErrorCode::Io,
            AnswerError::SessionLost | AnswerError::Gone => ErrorCode::ShuttingDown,
            AnswerError::Reserved => ErrorCode::NotPermitted,
        }
    }
}

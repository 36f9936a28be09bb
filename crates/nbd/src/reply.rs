//! The transmission phase as a client does it: writing requests, reading replies.
//!
//! As on the server's side, payload bytes do not pass through: [`Replies`] reads up to the end of a
//! reply's header and says how many bytes of payload follow, which the caller receives by itself.
//!
//! Not here: which request a cookie belongs to, and whether a read is complete; the caller knows.

use crate::ServerMisbehaved;
use crate::bytes::{Head, Reader, put_u16, put_u32, put_u64};
use crate::number::{
    CHUNK_CONTEXT_BYTES, CHUNK_ERROR_BYTES, CHUNK_HEADER_BYTES, CHUNK_HOLE_BYTES,
    CHUNK_OFFSET_BYTES, CMD_BLOCK_STATUS, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
    CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    DESCRIPTOR_BYTES, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS,
    REPLY_TYPE_ERROR_BIT, REPLY_TYPE_NONE, REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE,
    REQUEST_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use crate::request::{ErrorCode, Op};
use alloc::string::String;
use alloc::vec::Vec;

/// Descriptors that the protocol advises a server not to exceed in one chunk.
const DESCRIPTORS_MAX: u32 = 1 << 20;
/// Bytes of an error chunk's payload: error, message, and an offset behind it.
const ERROR_BYTES_MAX: usize =
    CHUNK_ERROR_BYTES as usize + NAME_BYTES_MAX + CHUNK_OFFSET_BYTES as usize;
/// Bytes of the longest fixed part: a chunk's header and the fields of a hole.
const HEAD_BYTES: usize = CHUNK_HEADER_BYTES + CHUNK_HOLE_BYTES as usize;

/// Appends a request. The payload of a write is to follow.
pub fn encode_request(
    cookie: u64,
    op: Op,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
    send: &mut Vec<u8>,
) {
    let when = |condition: bool, flag: u16| if condition { flag } else { 0 };
    let (command, flags) = match op {
        Op::Read { whole } => (CMD_READ, when(whole, CMD_FLAG_DF)),
        Op::Write => (CMD_WRITE, 0),
        Op::Flush => (CMD_FLUSH, 0),
        Op::Trim => (CMD_TRIM, 0),
        Op::Zero { no_hole, fast } => {
            (CMD_WRITE_ZEROES, when(no_hole, CMD_FLAG_NO_HOLE) | when(fast, CMD_FLAG_FAST_ZERO))
        }
        Op::BlockStatus { one } => (CMD_BLOCK_STATUS, when(one, CMD_FLAG_REQ_ONE)),
    };
    let flags = flags | when(fua, CMD_FLAG_FUA);
    put_request(cookie, command, flags, offset_bytes, length_bytes, send);
}

/// Appends the goodbye. Nothing may be sent after it, and nothing answers it.
pub fn encode_disconnect(send: &mut Vec<u8>) {
    put_request(0, CMD_DISC, 0, 0, 0, send);
}

/// Appends a request by its numbers.
pub(crate) fn put_request(
    cookie: u64,
    command: u16,
    flags: u16,
    offset_bytes: u64,
    length_bytes: u32,
    send: &mut Vec<u8>,
) {
    put_u32(send, REQUEST_MAGIC);
    put_u16(send, flags);
    put_u16(send, command);
    put_u64(send, cookie);
    put_u64(send, offset_bytes);
    put_u32(send, length_bytes);
}

/// A reply, or a part of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// A simple reply. If it is to a read and there is no error, the read's whole payload follows.
    Simple {
        /// The request's.
        cookie: u64,
        /// What went wrong.
        error: Option<ErrorCode>,
    },
    /// A piece of a read; its bytes follow.
    Data {
        /// The request's.
        cookie: u64,
        /// The reply ends with this.
        done: bool,
        /// Where on the export.
        offset_bytes: u64,
        /// How many bytes follow.
        length_bytes: u32,
    },
    /// A piece of a read that is zeroes; nothing follows.
    Hole {
        /// The request's.
        cookie: u64,
        /// The reply ends with this.
        done: bool,
        /// Where on the export.
        offset_bytes: u64,
        /// How many bytes are zero.
        length_bytes: u32,
    },
    /// Block status; descriptors of 8 bytes follow, for [`crate::Extent::decode`].
    Extents {
        /// The request's.
        cookie: u64,
        /// The reply ends with this.
        done: bool,
        /// The context's id.
        context: u32,
        /// Number of descriptors.
        count: u32,
    },
    /// A request failed, as a whole or at an offset.
    Error {
        /// The request's.
        cookie: u64,
        /// The reply ends with this.
        done: bool,
        /// What went wrong.
        code: ErrorCode,
        /// The server's words; may be empty.
        message: String,
    },
    /// The reply ends; without an error before, the request has succeeded.
    Done {
        /// The request's.
        cookie: u64,
    },
}

impl Reply {
    /// Bytes of payload that follow, for the caller to receive before it feeds on. A simple reply to a
    /// read gives 0 here; its payload is as long as the read was.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        match self {
            Reply::Data { length_bytes, .. } => *length_bytes,
            Reply::Extents { count, .. } => count * DESCRIPTOR_BYTES,
            Reply::Simple { .. }
            | Reply::Hole { .. }
            | Reply::Error { .. }
            | Reply::Done { .. } => 0,
        }
    }
}

/// The stream of replies, without payloads.
#[derive(Debug)]
pub struct Replies {
    head: Head<HEAD_BYTES>,
    /// The payload of an error chunk, whose fixed part stays in `head`.
    error: Vec<u8>,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies::new()
    }
}

impl Replies {
    /// Before the first reply.
    #[must_use]
    pub fn new() -> Replies {
        Replies { head: Head::new(), error: Vec::new() }
    }

    /// Takes bytes that arrived, up to the payload of one reply. The answer is how many bytes were
    /// used, and the reply if its header is complete.
    ///
    /// # Errors
    /// Where the server breaks the protocol; the connection is to be closed.
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), ServerMisbehaved> {
        let mut taken = 0;
        loop {
            let (head_bytes, error_bytes) = self.need()?;
            taken += self.head.gather(&input[taken..], head_bytes);
            if self.head.filled() < head_bytes {
                return Ok((taken, None));
            }
            if (head_bytes, error_bytes) != self.need()? {
                // The bytes just gathered say that more belongs to the header.
                continue;
            }
            let missing = (error_bytes - self.error.len()).min(input.len() - taken);
            self.error.extend_from_slice(&input[taken..taken + missing]);
            taken += missing;
            if self.error.len() < error_bytes {
                return Ok((taken, None));
            }
            return Ok((taken, Some(self.parse()?)));
        }
    }

    /// Bytes that belong into `head` and into `error`, as far as what is held can tell.
    fn need(&self) -> Result<(usize, usize), ServerMisbehaved> {
        let mut held = Reader::new(self.head.held());
        match held.u32() {
            None => return Ok((size_of::<u32>(), 0)),
            Some(SIMPLE_REPLY_MAGIC) => return Ok((SIMPLE_REPLY_BYTES, 0)),
            Some(STRUCTURED_REPLY_MAGIC) => {}
            Some(_) => return Err(ServerMisbehaved::BadMagic),
        }
        if self.head.filled() < CHUNK_HEADER_BYTES {
            return Ok((CHUNK_HEADER_BYTES, 0));
        }
        let (_flags, kind, _cookie) = (held.u16(), held.u16(), held.u64());
        let (Some(kind), Some(length)) = (kind, held.u32()) else {
            return Err(ServerMisbehaved::Malformed);
        };
        let fixed = |bytes: u32| CHUNK_HEADER_BYTES + bytes as usize;
        match kind {
            REPLY_TYPE_NONE if length == 0 => Ok((CHUNK_HEADER_BYTES, 0)),
            REPLY_TYPE_OFFSET_DATA if length > CHUNK_OFFSET_BYTES => {
                if length - CHUNK_OFFSET_BYTES > PAYLOAD_BYTES_MAX {
                    return Err(ServerMisbehaved::TooLarge);
                }
                Ok((fixed(CHUNK_OFFSET_BYTES), 0))
            }
            REPLY_TYPE_OFFSET_HOLE if length == CHUNK_HOLE_BYTES => Ok((fixed(length), 0)),
            REPLY_TYPE_BLOCK_STATUS
                if length > CHUNK_CONTEXT_BYTES
                    && (length - CHUNK_CONTEXT_BYTES).is_multiple_of(DESCRIPTOR_BYTES) =>
            {
                if length - CHUNK_CONTEXT_BYTES > DESCRIPTORS_MAX * DESCRIPTOR_BYTES {
                    return Err(ServerMisbehaved::TooLarge);
                }
                Ok((fixed(CHUNK_CONTEXT_BYTES), 0))
            }
            kind if kind & REPLY_TYPE_ERROR_BIT != 0 && length >= CHUNK_ERROR_BYTES => {
                if length as usize > ERROR_BYTES_MAX {
                    return Err(ServerMisbehaved::TooLarge);
                }
                Ok((CHUNK_HEADER_BYTES, length as usize))
            }
            REPLY_TYPE_NONE
            | REPLY_TYPE_OFFSET_DATA
            | REPLY_TYPE_OFFSET_HOLE
            | REPLY_TYPE_BLOCK_STATUS => Err(ServerMisbehaved::Malformed),
            kind if kind & REPLY_TYPE_ERROR_BIT != 0 => Err(ServerMisbehaved::Malformed),
            _ => Err(ServerMisbehaved::Unexpected),
        }
    }

    /// The reply that is complete in `head` and `error`.
    fn parse(&mut self) -> Result<Reply, ServerMisbehaved> {
        const MALFORMED: ServerMisbehaved = ServerMisbehaved::Malformed;
        let head = self.head.finish();
        let mut head = Reader::new(&head);
        if head.u32() == Some(SIMPLE_REPLY_MAGIC) {
            let error = head.u32().ok_or(MALFORMED)?;
            let cookie = head.u64().ok_or(MALFORMED)?;
            let error = (error != 0).then(|| ErrorCode::from_value(error));
            return Ok(Reply::Simple { cookie, error });
        }
        let done = head.u16().ok_or(MALFORMED)? & REPLY_FLAG_DONE != 0;
        let kind = head.u16().ok_or(MALFORMED)?;
        let cookie = head.u64().ok_or(MALFORMED)?;
        let length = head.u32().ok_or(MALFORMED)?;
        match kind {
            // It ends a reply by its nature.
            REPLY_TYPE_NONE if done => Ok(Reply::Done { cookie }),
            REPLY_TYPE_NONE => Err(MALFORMED),
            REPLY_TYPE_OFFSET_DATA => {
                let offset_bytes = head.u64().ok_or(MALFORMED)?;
                let length_bytes = length - CHUNK_OFFSET_BYTES;
                Ok(Reply::Data { cookie, done, offset_bytes, length_bytes })
            }
            REPLY_TYPE_OFFSET_HOLE => {
                let offset_bytes = head.u64().ok_or(MALFORMED)?;
                let length_bytes = head.u32().filter(|&length| length > 0).ok_or(MALFORMED)?;
                Ok(Reply::Hole { cookie, done, offset_bytes, length_bytes })
            }
            REPLY_TYPE_BLOCK_STATUS => {
                let context = head.u32().ok_or(MALFORMED)?;
                let count = (length - CHUNK_CONTEXT_BYTES) / DESCRIPTOR_BYTES;
                Ok(Reply::Extents { cookie, done, context, count })
            }
            _ => {
                let error = core::mem::take(&mut self.error);
                let mut error = Reader::new(&error);
                let value = error.u32().filter(|&value| value != 0).ok_or(MALFORMED)?;
                let message_bytes = error.u16().ok_or(MALFORMED)?;
                let message = error.take(usize::from(message_bytes)).ok_or(MALFORMED)?;
                let message = String::from_utf8_lossy(message).into_owned();
                Ok(Reply::Error { cookie, done, code: ErrorCode::from_value(value), message })
            }
        }
    }
}

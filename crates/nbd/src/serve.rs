//! The transmission phase: judging requests and writing the headers of replies.
//!
//! Invariants:
//! - A request that reaches the caller is allowed, aligned and inside the export.
//! - A refused write is answered after its payload, never in the middle of it.
//! - Once structured replies are agreed on, reads and errors use nothing else.
//!
//! Not here: the payload of reads and writes, which only the caller sees.

use crate::bytes::{Reader, cut, length_u32, put_u16, put_u32, put_u64};
use crate::export::Extent;
use crate::number::{
    ALLOCATION_CONTEXT_ID, CHUNK_CONTEXT_BYTES, CHUNK_ERROR_BYTES, CHUNK_HOLE_BYTES,
    CHUNK_OFFSET_BYTES, CMD_BLOCK_STATUS, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
    CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    DESCRIPTOR_BYTES, EXTENTS_MAX, FLAG_READ_ONLY, FLAG_SEND_FAST_ZERO, FLAG_SEND_TRIM,
    MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_SKIP_BYTES_MAX, PIECE_BYTES_MAX, REPLY_FLAG_DONE,
    REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_ERROR, REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE,
    REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use crate::request::{ErrorCode, Op, Request, Slot};
use crate::server::{CloseReason, Event, Open, Phase, Server};
use alloc::vec::Vec;

/// What a piece of a read holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    /// Bytes that the caller holds.
    Data,
    /// Nothing but zeroes.
    Zeroes,
}

/// Why a request is refused: the error, and a word for humans.
type Refused = (ErrorCode, &'static str);

impl Server {
    /// The piece that [`crate::Want::Payload`] named has been received. Says whether it was the
    /// write's last.
    ///
    /// # Panics
    /// If no piece of this write is wanted.
    pub fn payload_done(&mut self, slot: Slot) -> bool {
        assert!(
            matches!(self.phase, Phase::Payload { slot: wanted } if wanted == slot),
            "no payload of slot {} is wanted",
            slot.0
        );
        let write = self.open_at_mut(slot);
        let left = write.length_bytes - write.moved_bytes;
        write.moved_bytes += left.min(PIECE_BYTES_MAX);
        let complete = write.moved_bytes == write.length_bytes;
        if complete {
            self.phase = Phase::Request;
        }
        complete
    }

    /// The caller will not take (the rest of) a write's payload: it is fed and skipped, and then the
    /// write is answered with `code`. Its slot is free at once.
    ///
    /// # Panics
    /// If no piece of this write is wanted.
    pub fn payload_refused(&mut self, slot: Slot, code: ErrorCode, message: &'static str) {
        assert!(
            matches!(self.phase, Phase::Payload { slot: wanted } if wanted == slot),
            "no payload of slot {} is wanted",
            slot.0
        );
        let &Open { cookie, length_bytes, moved_bytes, .. } = self.open_at(slot);
        self.open_remove(slot);
        let left = length_bytes - moved_bytes;
        self.phase = Phase::PayloadSkip { left, cookie, code, message };
    }

    /// Answers a write, flush, trim or zeroing that is done.
    ///
    /// # Panics
    /// If the request is not open, is a read or a block status, or its payload is not received.
    pub fn reply_done(&mut self, slot: Slot, send: &mut Vec<u8>) {
        let &Open { cookie, op, length_bytes, moved_bytes, .. } = self.open_at(slot);
        match op {
            Op::Write => {
                assert!(moved_bytes == length_bytes, "a write answered before its payload")
            }
            Op::Flush | Op::Trim | Op::Zero { .. } => {}
            Op::Read { .. } | Op::BlockStatus { .. } => panic!("{op:?} is answered with content"),
        }
        self.open_remove(slot);
        put_simple(cookie, 0, send);
    }

    /// Answers a request that failed. `message` is for humans, reaches only clients with structured
    /// replies, and is cut at [`crate::MESSAGE_BYTES_MAX`].
    ///
    /// Gives a reason where part of a read was already answered by a simple reply: then the protocol
    /// leaves nothing but to close the connection, and nothing is appended.
    ///
    /// # Panics
    /// If the request is not open, or is a write whose payload is not received.
    #[must_use]
    pub fn reply_error(
        &mut self,
        slot: Slot,
        code: ErrorCode,
        message: &str,
        send: &mut Vec<u8>,
    ) -> Option<CloseReason> {
        let &Open { cookie, op, length_bytes, moved_bytes, .. } = self.open_at(slot);
        if op == Op::Write {
            assert!(moved_bytes == length_bytes, "a write answered before its payload");
        }
        self.open_remove(slot);
        if matches!(op, Op::Read { .. }) && moved_bytes > 0 && !self.structured {
            self.phase = Phase::Closed;
            return Some(CloseReason::ReadFailedMidway);
        }
        self.put_error(cookie, code, message, send);
        None
    }

    /// Appends the header of a piece of a read: the `length_bytes` from `offset_bytes` inside the
    /// request. Says whether the caller is to send that many bytes right behind it, which for zeroes
    /// is so without structured replies and then means bytes of zero.
    ///
    /// Without structured replies pieces are in order, and between the first piece and the end of the
    /// last one nothing else may be sent. With them any order will do and other replies may come
    /// between pieces. The request is answered with its last byte.
    ///
    /// # Panics
    /// If the request is no open read, the piece is empty or outside it, the pieces sum up to more than
    /// it, or a rule about order and wholeness is broken.
    #[must_use]
    pub fn reply_read(
        &mut self,
        slot: Slot,
        offset_bytes: u32,
        length_bytes: u32,
        content: Content,
        send: &mut Vec<u8>,
    ) -> bool {
        let structured = self.structured;
        let read = self.open_at_mut(slot);
        let Op::Read { whole } = read.op else { panic!("slot {} is no read", slot.0) };
        let piece_end = u64::from(offset_bytes) + u64::from(length_bytes);
        assert!(length_bytes > 0 && piece_end <= u64::from(read.length_bytes), "a piece outside");
        assert!(!whole || length_bytes == read.length_bytes, "a whole read answered in pieces");
        assert!(structured || offset_bytes == read.moved_bytes, "pieces out of order");
        let first = read.moved_bytes == 0;
        let left = read.length_bytes - read.moved_bytes;
        assert!(length_bytes <= left, "a read answered twice");
        read.moved_bytes += length_bytes;
        let done = length_bytes == left;
        let (cookie, at) = (read.cookie, read.offset_bytes + u64::from(offset_bytes));
        if done {
            self.open_remove(slot);
        }
        match content {
            _ if !structured => {
                if first {
                    put_simple(cookie, 0, send);
                }
                true
            }
            Content::Data => {
                let length = CHUNK_OFFSET_BYTES + length_bytes;
                put_chunk(cookie, REPLY_TYPE_OFFSET_DATA, done, length, send);
                put_u64(send, at);
                true
            }
            Content::Zeroes => {
                put_chunk(cookie, REPLY_TYPE_OFFSET_HOLE, done, CHUNK_HOLE_BYTES, send);
                put_u64(send, at);
                put_u32(send, length_bytes);
                false
            }
        }
    }

    /// Answers a block status request with the extents from its offset on, as many as the caller
    /// knows; what the request does not ask for, or beyond [`crate::EXTENTS_MAX`], is left out.
    ///
    /// # Panics
    /// If the request is no open block status, or there is no extent, or one is empty.
    pub fn reply_extents(&mut self, slot: Slot, extents: &[Extent], send: &mut Vec<u8>) {
        let &Open { cookie, op, length_bytes, .. } = self.open_at(slot);
        let Op::BlockStatus { one } = op else { panic!("slot {} is no block status", slot.0) };
        assert!(!extents.is_empty(), "a client could never get on");
        self.open_remove(slot);
        let asked = u64::from(length_bytes);
        let (mut count, mut covered) = (0, 0_u64);
        let count_max = if one { 1 } else { EXTENTS_MAX };
        while count < extents.len().min(count_max) && covered < asked {
            assert!(extents[count].length_bytes > 0, "an empty extent");
            covered += u64::from(extents[count].length_bytes);
            count += 1;
        }
        let length = CHUNK_CONTEXT_BYTES + length_u32(count) * DESCRIPTOR_BYTES;
        put_chunk(cookie, REPLY_TYPE_BLOCK_STATUS, true, length, send);
        put_u32(send, ALLOCATION_CONTEXT_ID);
        for extent in &extents[..count] {
            let length =
                if one { extent.length_bytes.min(length_bytes) } else { extent.length_bytes };
            put_u32(send, length);
            put_u32(send, extent.flags());
        }
    }

    /// A request without its payload.
    pub(crate) fn on_request(
        &mut self,
        head: [u8; REQUEST_BYTES],
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        const WHOLE: &str = "the head holds a whole request";
        let mut head = Reader::new(&head);
        let magic = head.u32().expect(WHOLE);
        let flags = head.u16().expect(WHOLE);
        let command = head.u16().expect(WHOLE);
        let cookie = head.u64().expect(WHOLE);
        let offset_bytes = head.u64().expect(WHOLE);
        let length_bytes = head.u32().expect(WHOLE);
        if magic != REQUEST_MAGIC {
            return self.close(CloseReason::BadRequestMagic);
        }
        if command == CMD_DISC {
            return self.close(CloseReason::ClientDone);
        }
        match self.judge_request(flags, command, offset_bytes, length_bytes) {
            Ok(op) => {
                let open = Open { cookie, op, offset_bytes, length_bytes, moved_bytes: 0 };
                let slot = self.open_insert(open);
                if op == Op::Write {
                    self.phase = Phase::Payload { slot };
                }
                let writes = matches!(op, Op::Write | Op::Trim | Op::Zero { .. });
                let fua = writes && flags & CMD_FLAG_FUA != 0;
                Some(Event::Request(Request { slot, cookie, op, offset_bytes, length_bytes, fua }))
            }
            Err((code, message)) if command == CMD_WRITE && length_bytes > 0 => {
                if length_bytes > PAYLOAD_SKIP_BYTES_MAX {
                    return self.close(CloseReason::PayloadTooLarge);
                }
                self.phase = Phase::PayloadSkip { left: length_bytes, cookie, code, message };
                None
            }
            Err((code, message)) => {
                self.put_error(cookie, code, message, send);
                None
            }
        }
    }

    /// Whether a request may be carried out.
    fn judge_request(
        &self,
        flags: u16,
        command: u16,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> Result<Op, Refused> {
        let served = self.served;
        if self.shutting_down {
            return Err((ErrorCode::ShuttingDown, "this server is stopping"));
        }
        let (op, flags_known) = op_of(flags, command)?;
        let offered = match op {
            Op::Read { whole } => !whole || self.structured,
            Op::Write | Op::Flush => true,
            Op::Trim => served.flags & (FLAG_SEND_TRIM | FLAG_READ_ONLY) != 0,
            Op::Zero { fast, .. } => {
                !fast || served.flags & (FLAG_SEND_FAST_ZERO | FLAG_READ_ONLY) != 0
            }
            Op::BlockStatus { .. } => served.allocation,
        };
        if flags & !(flags_known | CMD_FLAG_FUA) != 0 {
            return Err((ErrorCode::Invalid, "a flag that this command does not have"));
        }
        if !offered {
            return Err((ErrorCode::Invalid, "not agreed on in the handshake"));
        }
        if op == Op::Flush {
            return match (offset_bytes, length_bytes) {
                (0, 0) => Ok(op),
                _ => Err((ErrorCode::Invalid, "a flush has neither offset nor length")),
            };
        }
        let writes = matches!(op, Op::Write | Op::Trim | Op::Zero { .. });
        if writes && served.flags & FLAG_READ_ONLY != 0 {
            return Err((ErrorCode::NotPermitted, "the export is read-only"));
        }
        self.judge_place(op, offset_bytes, length_bytes)?;
        Ok(op)
    }

    /// Whether a request's place is aligned, inside the export and not too long.
    fn judge_place(&self, op: Op, offset_bytes: u64, length_bytes: u32) -> Result<(), Refused> {
        let min = self.served.block_bytes_min;
        if length_bytes == 0 {
            return Err((ErrorCode::Invalid, "the request is empty"));
        }
        if !offset_bytes.is_multiple_of(u64::from(min)) || !length_bytes.is_multiple_of(min) {
            return Err((ErrorCode::Invalid, "not a multiple of the minimum block size"));
        }
        match op {
            Op::Read { whole: true } if length_bytes > PIECE_BYTES_MAX => {
                return Err((ErrorCode::Overflow, "too long to stay in one piece"));
            }
            Op::Read { .. } if length_bytes > PAYLOAD_BYTES_MAX && self.structured => {
                return Err((ErrorCode::Overflow, "longer than the maximum payload size"));
            }
            Op::Read { .. } | Op::Write if length_bytes > PAYLOAD_BYTES_MAX => {
                return Err((ErrorCode::Invalid, "longer than the maximum payload size"));
            }
            _ => {}
        }
        let end = offset_bytes.checked_add(u64::from(length_bytes));
        if end.is_none_or(|end| end > self.served.size_bytes) {
            let code = match op {
                Op::Write | Op::Zero { .. } => ErrorCode::NoSpace,
                Op::Read { .. } | Op::Trim | Op::Flush | Op::BlockStatus { .. } => {
                    ErrorCode::Invalid
                }
            };
            return Err((code, "beyond the end of the export"));
        }
        Ok(())
    }

    /// Appends an error, in the form that the client understands.
    pub(crate) fn put_error(
        &self,
        cookie: u64,
        code: ErrorCode,
        message: &str,
        send: &mut Vec<u8>,
    ) {
        if !self.structured {
            put_simple(cookie, code.value(), send);
            return;
        }
        let message = cut(message, MESSAGE_BYTES_MAX);
        let message_bytes =
            u16::try_from(message.len()).expect("a message is cut far below 64 KiB");
        let length = CHUNK_ERROR_BYTES + u32::from(message_bytes);
        put_chunk(cookie, REPLY_TYPE_ERROR, true, length, send);
        put_u32(send, code.value());
        put_u16(send, message_bytes);
        send.extend_from_slice(message.as_bytes());
    }
}

/// The command, and the flags it may have besides FUA, which the protocol allows on every one.
fn op_of(flags: u16, command: u16) -> Result<(Op, u16), Refused> {
    let has = |flag: u16| flags & flag != 0;
    match command {
        CMD_READ => Ok((Op::Read { whole: has(CMD_FLAG_DF) }, CMD_FLAG_DF)),
        CMD_WRITE => Ok((Op::Write, 0)),
        CMD_FLUSH => Ok((Op::Flush, 0)),
        CMD_TRIM => Ok((Op::Trim, 0)),
        CMD_WRITE_ZEROES => Ok((
            Op::Zero { no_hole: has(CMD_FLAG_NO_HOLE), fast: has(CMD_FLAG_FAST_ZERO) },
            CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
        )),
        CMD_BLOCK_STATUS => Ok((Op::BlockStatus { one: has(CMD_FLAG_REQ_ONE) }, CMD_FLAG_REQ_ONE)),
        _ => Err((ErrorCode::Invalid, "unknown command")),
    }
}

/// Appends a simple reply; 0 is success.
fn put_simple(cookie: u64, error: u32, send: &mut Vec<u8>) {
    put_u32(send, SIMPLE_REPLY_MAGIC);
    put_u32(send, error);
    put_u64(send, cookie);
}

/// Appends the header of a structured reply chunk.
fn put_chunk(cookie: u64, kind: u16, done: bool, length: u32, send: &mut Vec<u8>) {
    put_u32(send, STRUCTURED_REPLY_MAGIC);
    put_u16(send, if done { REPLY_FLAG_DONE } else { 0 });
    put_u16(send, kind);
    put_u64(send, cookie);
    put_u32(send, length);
}

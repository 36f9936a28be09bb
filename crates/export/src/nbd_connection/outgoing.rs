//! What goes to a client: answers gathered from their pieces, replies, and the bytes to be sent.
//!
//! Always: a request is answered once, when every piece of it is; bytes are counted from when they are
//! said to when they have left.
//!
//! Not here: what comes from the client (`incoming`).

use std::ops::Range;

use base::AnswerError;
use nbd::{Content, ErrorCode, Extent, Request, Slot};
use sys::{Buffer, Piece, Room};

use super::incoming::range_of;
use super::{HOLES_BYTES_MAX, NbdConnection, Open, SEALED_BYTES_MAX, Tag};
use crate::pieces::{count_bytes, pieces_of};

impl NbdConnection {
    /// The room for what an open request has yet to read.
    pub(crate) fn room_of(&mut self, slot: u8) -> Option<&mut Room> {
        self.open.get_mut(usize::from(slot))?.room.as_mut()
    }

    /// A piece was carried out, or failed. `buffer`: the bytes of a read; `None` is all zeroes.
    ///
    /// # Panics
    /// If the piece is not open.
    pub fn answer(&mut self, tag: Tag, result: Result<(), AnswerError>, buffer: Option<Buffer>) {
        let open = &mut self.open[usize::from(tag.slot)];
        let (slot, request) = *open.request.as_ref().expect("a piece is answered once");
        assert!(open.waiting > 0, "a piece is answered once");
        open.waiting -= 1;
        match result {
            Ok(()) if matches!(request.op, nbd::Op::Read { .. }) => {
                if let (Some(buffer), Some(room)) = (&buffer, &mut open.room) {
                    buffer.charge(room.split(buffer.capacity()));
                }
                open.data[usize::from(tag.piece)] = buffer;
            }
            Ok(()) => {}
            Err(error) => open.failed = Some(error),
        }
        self.settle(slot);
    }

    /// The parts of what was asked about that are known to be holes: ascending, not empty, inside it.
    /// The rest counts as data.
    ///
    /// # Panics
    /// If the question is not open.
    pub fn holes(&mut self, tag: Tag, holes: &[Range<u64>]) {
        let open = std::mem::take(&mut self.open[usize::from(tag.slot)]);
        let (slot, request) = open.request.expect("a question is answered once");
        self.promised_bytes -= HOLES_BYTES_MAX;
        if self.lost {
            return self.reply_failed(slot, AnswerError::SessionLost);
        }
        let end = range_of(&request).end;
        let mut extents = Vec::new();
        let mut at = request.offset_bytes;
        let mut put = |from: u64, to: u64, hole: bool| {
            if from < to {
                let length_bytes = u32::try_from(to - from).expect("a part of a request");
                extents.push(Extent { length_bytes, hole, zero: hole });
            }
        };
        for hole in holes {
            put(at, hole.start, false);
            put(hole.start, hole.end, true);
            at = hole.end;
        }
        put(at, end, false);
        self.server.reply_extents(slot, &extents, self.said.bytes());
    }

    /// Replies if every piece is answered.
    pub(super) fn settle(&mut self, slot: Slot) {
        let open = &mut self.open[slot.index()];
        if open.waiting > 0 {
            return;
        }
        let goes_on = !open.rest.is_empty() && open.failed.is_none();
        if goes_on {
            self.unfinished.push(slot);
        }
        // A zeroing that failed goes no further.
        if goes_on || (!open.complete && open.rest.is_empty()) {
            return;
        }
        let Open { request, failed, mut data, .. } = std::mem::take(open);
        let (_, request) = request.expect("it is open");
        if matches!(request.op, nbd::Op::Read { .. } | nbd::Op::Write) {
            self.open_bytes -= u64::from(request.length_bytes);
        }
        if failed == Some(AnswerError::SessionLost) && !self.lost {
            self.lose();
        }
        // Lost, also while it was on its way: whoever carried it out may have known of the loss before this client was told.
        let failed = if self.lost { Some(AnswerError::SessionLost) } else { failed };
        if self.moves && failed == Some(AnswerError::Path) {
            self.sent_off = true;
        } else if let Some(error) = failed {
            self.reply_failed(slot, error);
        } else if let nbd::Op::Read { whole } = request.op {
            self.reply_data(&request, whole, &mut data);
        } else {
            self.server.reply_done(slot, self.said.bytes());
        }
        data.clear();
        // The next one has it without asking for memory.
        self.open[slot.index()].data = data;
    }

    fn reply_failed(&mut self, slot: Slot, error: AnswerError) {
        let code = ErrorCode::from(error);
        let closed = self.server.reply_error(slot, code, words(error), self.said.bytes());
        self.closed = self.closed.or(closed);
    }

    fn reply_data(&mut self, request: &Request, whole: bool, data: &mut Vec<Option<Buffer>>) {
        let slot = request.slot;
        if whole && data.iter().any(Option::is_some) {
            let length = request.length_bytes;
            let follows = self.server.reply_read(slot, 0, length, Content::Data, self.said.bytes());
            assert!(follows, "data always follow");
            self.for_each_piece(request, data, |this, _, length, buffer| this.put(buffer, length));
            return;
        }
        if whole {
            let length = request.length_bytes;
            let follows =
                self.server.reply_read(slot, 0, length, Content::Zeroes, self.said.bytes());
            if follows {
                self.for_each_piece(request, data, |this, _, length, _| this.put(None, length));
            }
            return;
        }
        self.for_each_piece(request, data, |this, offset, length, buffer| {
            let content = if buffer.is_some() { Content::Data } else { Content::Zeroes };
            if this.server.reply_read(slot, offset, length, content, this.said.bytes()) {
                this.put(buffer, length);
            }
        });
    }

    /// Calls `what` with offset in the request, length and bytes of each piece of a read, which it takes.
    fn for_each_piece(
        &mut self,
        request: &Request,
        data: &mut Vec<Option<Buffer>>,
        mut what: impl FnMut(&mut NbdConnection, u32, u32, Option<Buffer>),
    ) {
        let small = |bytes: u64| u32::try_from(bytes).expect("a read is at most 32 MiB");
        for (piece, buffer) in pieces_of(range_of(request)).zip(data.drain(..)) {
            let offset = small(piece.start - request.offset_bytes);
            what(self, offset, small(piece.end - piece.start), buffer);
        }
    }

    /// Sends the buffer's bytes, or zeroes, behind what was said so far.
    fn put(&mut self, buffer: Option<Buffer>, length: u32) {
        let length = length as usize;
        let buffer = buffer.unwrap_or_else(|| self.zeroes.clone());
        self.unsent_bytes += u64::from(u32::try_from(length).expect("at most a piece"));
        self.said.put(Piece::first(buffer, length));
    }

    /// What is to be sent now, in order, is put behind `pieces`. To be followed by [`NbdConnection::sent`] for all its
    /// bytes.
    pub fn take_send(&mut self, pieces: &mut Vec<Piece>) {
        let finished = self.finished().is_some();
        let Some(guard) = &mut self.guard else {
            let first = pieces.len();
            let said = small(self.said.take(self.inputs.replies(), pieces));
            let bytes = count_bytes(&pieces[first..]);
            if bytes > 0 {
                self.unsent_bytes += said;
                self.taken_bytes += said;
                self.taken.push_back((bytes, said));
            }
            return;
        };
        // What is said while some of before waits for room in records counts where it is.
        if self.pieces.is_empty() {
            self.taken_bytes = small(self.said.take(self.inputs.replies(), &mut self.pieces));
            self.unsent_bytes += self.taken_bytes;
        }
        let mut ahead_bytes = self.sealed_bytes;
        let fits = |piece: &&Piece| {
            let fits = ahead_bytes < SEALED_BYTES_MAX;
            ahead_bytes += small(piece.len());
            fits
        };
        let count = self.pieces.iter().take_while(fits).count();
        let ends = finished && count == self.pieces.len() && self.said.said_bytes() == 0;
        // What began in the clear was counted when it was said.
        self.unsent_bytes -= count_bytes(&self.pieces[..count]);
        let record_bytes = guard.seal(self.pieces.drain(..count), ends, pieces);
        self.sealed_bytes += record_bytes;
        self.unsent_bytes += record_bytes;
        if self.pieces.is_empty() {
            self.taken_bytes = 0;
        }
    }

    /// So many bytes have left.
    pub fn sent(&mut self, bytes: u64) {
        self.unsent_bytes -= bytes;
        // What went before TLS began was in no record.
        self.sealed_bytes = self.sealed_bytes.saturating_sub(bytes);
        let mut left = bytes;
        while let Some((of, said)) = self.taken.front_mut() {
            if *of > left {
                *of -= left;
                break;
            }
            left -= *of;
            self.taken_bytes -= *said;
            self.taken.pop_front();
        }
    }

    /// What is said, or will be about holes, and has not been sent; inside TLS: is not in records.
    pub(super) fn said_bytes(&self) -> u64 {
        small(self.said.said_bytes()) + self.taken_bytes + self.promised_bytes
    }
}

fn small(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("memory is smaller")
}

/// An error in words, for clients that can show them.
fn words(error: AnswerError) -> &'static str {
    match error {
        AnswerError::OutOfRange => "outside the volume, or not aligned to its blocks",
        AnswerError::NoQuorum => "no quorum, and the resource is told to fail then",
        AnswerError::Io => "no reachable replica could do it",
        AnswerError::SessionLost => {
            "writes may be gone: what was seen is not so any more; open it anew"
        }
        AnswerError::Gone => "the resource is being removed, or the node is stopping",
        AnswerError::Path => "it came too late by this way",
        AnswerError::Reserved => "a host has reserved the volume",
    }
}

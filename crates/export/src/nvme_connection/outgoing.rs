//! What goes to a host: answers gathered from their pieces, and the bytes to be sent.
//!
//! Always: a request is answered once, when every piece of it is; bytes are counted from when they are said to when they
//! have left.
//!
//! Not here: what comes from the host (`incoming`).

use std::ops::Range;

use base::{AnswerError, ReservationCommand};
use nvme::{Report, Request, Slot, Status};
use sys::{Buffer, Piece, Room};

use super::{Ended, NvmeConnection};
use crate::nbd_connection::{SEALED_BYTES_MAX, Tag};
use crate::pieces::{count_bytes, pieces_of};
use crate::psk_guard::Pools;

impl NvmeConnection {
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
        let request = open.request.as_ref().expect("a piece is answered once");
        let slot = request.slot;
        assert!(open.waiting > 0, "a piece is answered once");
        open.waiting -= 1;
        // What is read with FUA is there when its flush is asked for.
        let is_flush = request.fua && !open.owes_flush;
        match result {
            Ok(()) => match request.op {
                nvme::Op::Read | nvme::Op::Compare { .. } if is_flush => {}
                nvme::Op::Read => {
                    if let (Some(buffer), Some(room)) = (&buffer, &mut open.room) {
                        buffer.charge(room.split(buffer.capacity()));
                    }
                    open.parts[usize::from(tag.piece)].1 = buffer;
                }
                nvme::Op::Compare { .. } => {
                    let told = open.parts[usize::from(tag.piece)].1.take().expect("it has come");
                    let is = buffer.as_ref().unwrap_or(&self.zeroes);
                    open.differs |= told[..] != is[..told.len()];
                }
                _ => {}
            },
            Err(error) => open.failed = Some(error),
        }
        self.settle(slot);
    }

    /// What came of a command about reservations; of a report, what there is.
    ///
    /// # Panics
    /// If the command is not open.
    pub fn answer_reserve(&mut self, tag: Tag, result: Result<Option<Report>, Status>) {
        let Ended { request, .. } = self.open[usize::from(tag.slot)].end();
        let slot = request.slot;
        self.count_done(&request);
        match result {
            _ if self.lost => self.machine.answer(slot, Status::LOST, self.said.bytes()),
            Err(status) => self.machine.answer(slot, status, self.said.bytes()),
            Ok(None) => self.machine.answer(slot, Status::SUCCESS, self.said.bytes()),
            Ok(Some(report)) => {
                let length = request.range.end - request.range.start;
                let bytes = report.to_bytes(usize::try_from(length).expect("a MiB at most"));
                self.machine.answer_read(slot, &bytes, self.said.bytes(), &mut self.tail);
                self.said.bytes().extend_from_slice(&bytes);
                self.said.bytes().append(&mut self.tail);
            }
        }
    }

    /// Answers if every piece is answered.
    pub(super) fn settle(&mut self, slot: Slot) {
        let open = &mut self.open[slot.index()];
        if open.waiting > 0 {
            return;
        }
        if (!open.rest.is_empty() || open.owes_flush) && open.failed.is_none() {
            self.unfinished.push(slot);
            return;
        }
        let Ended { request, failed, differs } = open.end();
        self.count_done(&request);
        self.lost |= failed == Some(AnswerError::SessionLost);
        let status = match failed {
            _ if self.lost => Status::LOST,
            Some(error) => Status::of_error(error, !reads(&request.op)),
            None if differs => Status::COMPARE_FAILURE,
            None if matches!(request.op, nvme::Op::Read) => {
                return self.answer_data(slot, request.range);
            }
            None => Status::SUCCESS,
        };
        self.open[slot.index()].parts.clear();
        self.machine.answer(slot, status, self.said.bytes());
    }

    /// What it carries, or is answered with, is open no more.
    pub(super) fn count_done(&mut self, request: &Request) {
        if has_data(&request.op) {
            self.open_bytes -= request.range.end - request.range.start;
        }
    }

    /// Takes the parts.
    fn answer_data(&mut self, slot: Slot, range: Range<u64>) {
        for (part, piece) in pieces_of(range).enumerate() {
            let buffer = self.open[slot.index()].parts[part].1.take();
            let count = usize::try_from(piece.end - piece.start).expect("at most a piece");
            let buffer = buffer.unwrap_or_else(|| self.zeroes.clone());
            self.machine.answer_read(slot, &buffer[..count], self.said.bytes(), &mut self.tail);
            self.unsent_bytes += u64::try_from(count).expect("at most a piece");
            self.said.put(Piece::first(buffer, count));
            self.said.bytes().append(&mut self.tail);
        }
        self.open[slot.index()].parts.clear();
    }

    /// What is to be sent now, in order, is put behind `pieces`. To be followed by [`NvmeConnection::sent`] for all its bytes.
    pub fn take_send(&mut self, pieces: &mut Vec<Piece>) {
        let over = self.is_over();
        let Some(guard) = &mut self.guard else {
            let said = self.said.take(self.inputs.replies(), pieces);
            self.unsent_bytes += u64::try_from(said).expect("memory is smaller");
            return;
        };
        let said = self.said.take(self.inputs.replies(), &mut self.pieces);
        self.unsent_bytes += u64::try_from(said).expect("memory is smaller");
        let mut ahead_bytes = self.sealed_bytes;
        let fits = |piece: &&Piece| {
            let fits = ahead_bytes < SEALED_BYTES_MAX;
            ahead_bytes += count_bytes(std::slice::from_ref(piece));
            fits
        };
        let count = self.pieces.iter().take_while(fits).count();
        let (ends, first) = (over && count == self.pieces.len(), pieces.len());
        let pools = Pools { replies: self.inputs.replies(), payload: &self.payload };
        guard.seal(&self.pieces[..count], ends, pools, pieces);
        let record_bytes = count_bytes(&pieces[first..]);
        self.sealed_bytes += record_bytes;
        self.unsent_bytes += record_bytes;
        self.unsent_bytes -= count_bytes(&self.pieces[..count]);
        self.pieces.drain(..count);
    }

    /// So many bytes have left.
    pub fn sent(&mut self, bytes: u64) {
        self.unsent_bytes -= bytes;
        self.sealed_bytes = self.sealed_bytes.saturating_sub(bytes);
    }
}

/// Whether bytes of it travel.
pub(super) fn has_data(op: &nvme::Op) -> bool {
    match op {
        nvme::Op::Read | nvme::Op::Write { .. } | nvme::Op::Compare { .. } => true,
        nvme::Op::Reserve(command) => **command == ReservationCommand::Report,
        nvme::Op::Flush | nvme::Op::Zero { .. } | nvme::Op::Deallocate(_) | nvme::Op::Verify => {
            false
        }
    }
}

/// Whether what fails is a read.
pub(super) fn reads(op: &nvme::Op) -> bool {
    matches!(op, nvme::Op::Read | nvme::Op::Compare { .. } | nvme::Op::Verify)
}

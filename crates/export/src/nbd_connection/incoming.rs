//! What comes from a client: bytes, inside TLS or not, headers, payload, and the pieces they become.
//!
//! Always: payload is received where it stays, unless it came with a header or inside TLS.
//!
//! Not here: what goes to the client (`outgoing`).

use std::ops::Range;

use base::{AnswerError, Instant, Op, SECTOR_BYTES, Span};
use link::LinkError;
use nbd::{Event, Request, Slot, Want};
use sys::Buffer;

use super::{
    Arriving, Ask, BYTES_OPEN_MAX, Demand, GUARDED_BYTES, HAGGLE_BYTES_MAX, HOLES_BYTES_MAX,
    NbdConnection, Open, PIECE_BYTES, SAID_BYTES_MAX, TRIM_LIMIT, Tag, UNSENT_BYTES_MAX,
    ZEROES_MAX,
};
use crate::guard::Guard;
use crate::pieces::{cost_bytes, pieces_of};

impl NbdConnection {
    /// Where the next bytes shall go, or `None` while nothing is to be received. The range is filled
    /// from its start, in part or whole, and given back by [`NbdConnection::received`].
    pub fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)> {
        if self.is_over() || self.receiving || self.starved || self.is_full() {
            return None;
        }
        if self.guard.is_some() {
            return self.receive_guarded();
        }
        if let Some(arriving) = &mut self.arriving {
            let buffer = arriving.buffer.take().expect("nothing is being received");
            self.receiving = true;
            return Some((buffer, arriving.filled..arriving.length));
        }
        if !matches!(self.server.wants(), Want::Header { .. }) || !self.input_at.is_empty() {
            return None;
        }
        let Some(buffer) = self.input.take().or_else(|| self.inputs.take()) else {
            self.starved = true;
            return None;
        };
        self.input_at = 0..0;
        self.receiving = true;
        let length = buffer.len().min(self.haggle_left());
        Some((buffer, 0..length))
    }

    /// How much a client may still send before it has an export or has proved who it is.
    fn haggle_left(&self) -> usize {
        if self.entered { usize::MAX } else { HAGGLE_BYTES_MAX - self.haggled }
    }

    /// Where the next records go: inside TLS nobody knows what comes before it came.
    fn receive_guarded(&mut self) -> Option<(Buffer, Range<usize>)> {
        if !matches!(self.server.wants(), Want::Header { .. } | Want::Payload { .. }) {
            return None;
        }
        let guard = self.guard.as_mut()?;
        if !guard.is_drained() {
            return None;
        }
        let Some(buffer) = guard.take_buffer().or_else(|| self.inputs.take()) else {
            self.starved = true;
            return None;
        };
        self.receiving = true;
        let length = buffer.len().min(guard.receive_max());
        Some((buffer, 0..length))
    }

    /// Nothing more is taken from the client.
    pub(super) fn is_over(&self) -> bool {
        self.closed.is_some() || self.broken.is_some() || self.sent_off
    }

    /// `count` bytes have arrived in the buffer that [`NbdConnection::receive_into`] gave.
    ///
    /// # Panics
    /// If the buffer did not come from there.
    pub fn received(
        &mut self,
        now: Instant,
        buffer: Buffer,
        count: usize,
        demands: &mut Vec<Demand>,
    ) {
        assert!(self.receiving, "nothing was to be received");
        self.receiving = false;
        if let Some(guard) = &mut self.guard {
            guard.arrived(buffer, 0..count);
        } else if let Some(arriving) = &mut self.arriving {
            arriving.buffer = Some(buffer);
            arriving.filled += count;
        } else {
            assert!(count <= buffer.len(), "more arrived than there was room for");
            self.input = Some(buffer);
            self.input_at = 0..count;
        }
        self.proceed(now, demands);
    }

    /// Goes on with what has arrived, as far as limits allow.
    pub fn proceed(&mut self, now: Instant, demands: &mut Vec<Demand>) {
        self.now = now;
        self.starved = false;
        for slot in std::mem::take(&mut self.unfinished) {
            self.zero_more(slot, demands);
        }
        if let Some(request) = self.roomless.take() {
            self.begin(request, demands);
        }
        while !self.is_over() && !self.starved && !self.is_full() {
            let went_on = match self.server.wants() {
                Want::Header { .. } => self.take_header(demands),
                Want::Payload { slot, offset_bytes, length_bytes } => {
                    self.take_payload(slot, offset_bytes, length_bytes, demands)
                }
                Want::Answer | Want::Tls | Want::Room | Want::Nothing => false,
            };
            if !went_on {
                break;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.arriving.is_none()
            && (self.unsent_bytes > UNSENT_BYTES_MAX
                || self.open_bytes > BYTES_OPEN_MAX
                || self.said_bytes() > SAID_BYTES_MAX)
    }

    /// Takes from inside TLS what the machine wants next; false if nothing is there.
    fn refill(&mut self) -> bool {
        let Want::Header { bytes } = self.server.wants() else { return false };
        if self.input.is_none() {
            self.input = self.inputs.take_guarded();
        }
        let (Some(guard), Some(input)) = (&mut self.guard, &mut self.input) else {
            self.starved = true;
            return false;
        };
        let place = input.as_mut().expect("nobody else has the input");
        let count = GUARDED_BYTES.min(bytes as usize);
        match guard.read(&mut place[..count]) {
            Ok(count) => self.input_at = 0..count,
            Err(why) => self.broken = Some(why),
        }
        !self.input_at.is_empty()
    }

    /// From here on everything is inside TLS, what has arrived already as well.
    fn start_tls(&mut self) {
        let offer = self.offer.take().expect("TLS was offered, and begins once");
        let mut clear = Vec::new();
        let said = self.said.take(self.inputs.replies(), &mut clear);
        self.unsent_bytes += u64::try_from(said).expect("a few bytes");
        // What is said from here on counts until it is in records.
        self.taken.clear();
        self.taken_bytes = 0;
        match Guard::new(&offer, &self.payload, clear, self.haggled) {
            Ok(mut guard) => {
                if let Some(buffer) = self.input.take() {
                    guard.arrived(buffer, std::mem::take(&mut self.input_at));
                }
                self.guard = Some(Box::new(guard));
                self.server.tls_started();
            }
            Err(why) => self.broken = Some(why),
        }
    }

    /// Feeds the machine; false if nothing is there.
    fn take_header(&mut self, demands: &mut Vec<Demand>) -> bool {
        if self.guard.is_some() && self.input_at.is_empty() && !self.refill() {
            return false;
        }
        let Some(input) = self.input.as_ref().filter(|_| !self.input_at.is_empty()) else {
            return false;
        };
        let fed = self.server.feed(&input[self.input_at.clone()], self.said.bytes());
        self.input_at.start += fed.consumed;
        if !self.entered && self.claims().is_none() {
            self.haggled += fed.consumed;
            if self.haggled >= HAGGLE_BYTES_MAX {
                self.broken = Some(LinkError::TooMuchBeforeAuthentication);
                return false;
            }
        }
        match fed.event {
            None => {}
            Some(Event::Lookup { name, enters }) => demands.push(Demand::Lookup { name, enters }),
            Some(Event::List) => demands.push(Demand::List),
            Some(Event::Request(request)) => self.begin(request, demands),
            Some(Event::Close(reason)) => self.closed = Some(reason),
            Some(Event::StartTls) => self.start_tls(),
        }
        true
    }

    fn begin(&mut self, request: Request, demands: &mut Vec<Demand>) {
        let slot = request.slot;
        let room = match request.op {
            nbd::Op::Read { .. } => {
                // Buffers of pieces that are no whole ones may take more than the largest read has bytes, for which there is
                // always room.
                let most = usize::try_from(BYTES_OPEN_MAX).expect("32 MiB");
                let room = self.payload.reserve(cost_bytes(range_of(&request)).min(most));
                if room.is_none() {
                    self.roomless = Some(request);
                    self.starved = true;
                    return;
                }
                room
            }
            _ => None,
        };
        let came = self.now - self.age;
        let open = &mut self.open[slot.index()];
        let data = std::mem::take(&mut open.data);
        *open = Open { request: Some((slot, request)), room, data, came, ..Open::default() };
        let range = range_of(&request);
        match request.op {
            nbd::Op::Write => self.open_bytes += u64::from(request.length_bytes),
            nbd::Op::Read { .. } => {
                self.open_bytes += u64::from(request.length_bytes);
                self.submit_all(slot, Op::Read, range, demands);
            }
            nbd::Op::Zero { .. } | nbd::Op::Trim => {
                open.rest = range;
                self.zero_more(slot, demands);
            }
            nbd::Op::Flush => {
                for _ in 0..self.flush_parts {
                    self.submit(slot, Op::Flush, 0, SECTOR_BYTES, None, demands);
                }
                self.submitted(slot);
            }
            nbd::Op::BlockStatus { .. } => {
                open.waiting = 1;
                self.promised_bytes += HOLES_BYTES_MAX;
                let slot = u8::try_from(slot.index()).expect("below 128");
                demands.push(Demand::Holes { tag: Tag { slot, piece: 0 }, range });
            }
        }
    }

    /// Submits more of a zeroing.
    fn zero_more(&mut self, slot: Slot, demands: &mut Vec<Demand>) {
        let open = &mut self.open[slot.index()];
        let (_, request) = open.request.as_ref().expect("the request is open");
        let unmap = !matches!(request.op, nbd::Op::Zero { no_hole: true, .. });
        let is_hint = request.op == nbd::Op::Trim;
        if is_hint && open.submitted > 0 && self.now.since(open.came) >= TRIM_LIMIT {
            open.rest = 0..0;
        }
        for piece in pieces_of(open.rest.clone()).take(ZEROES_MAX) {
            let length_bytes = piece.end - piece.start;
            self.open[slot.index()].rest.start = piece.end;
            self.submit(slot, Op::Zero { unmap }, piece.start, length_bytes, None, demands);
        }
        let open = &mut self.open[slot.index()];
        open.complete = open.rest.is_empty();
        self.settle(slot);
    }

    /// Submits a request without payload.
    fn submit_all(&mut self, slot: Slot, op: Op, range: Range<u64>, demands: &mut Vec<Demand>) {
        for piece in pieces_of(range) {
            self.submit(slot, op, piece.start, piece.end - piece.start, None, demands);
        }
        self.submitted(slot);
    }

    fn submit(
        &mut self,
        slot: Slot,
        op: Op,
        offset_bytes: u64,
        length_bytes: u64,
        buffer: Option<Buffer>,
        demands: &mut Vec<Demand>,
    ) {
        let open = &mut self.open[slot.index()];
        if self.lost {
            // Whoever asks for it saw what is not so any more.
            open.failed = Some(AnswerError::SessionLost);
            return;
        }
        let (_, request) = open.request.as_ref().expect("the request is open");
        let count = u32::try_from(length_bytes / SECTOR_BYTES).expect("a piece is a few MiB");
        let span =
            Span::new(offset_bytes / SECTOR_BYTES, count).expect("checked to be in the export");
        let tag =
            Tag { slot: u8::try_from(slot.index()).expect("below 128"), piece: open.submitted };
        let fua = request.fua;
        // A zeroing may have come long before this part of it; a write's bytes have just come.
        let came = match op {
            Op::Zero { .. } => open.came,
            Op::Read | Op::Write | Op::Flush => self.now - self.age,
        };
        let came = Some(came).filter(|_| self.moves);
        open.submitted += 1;
        open.waiting += 1;
        if op == Op::Read {
            open.data.push(None);
        }
        let shard = if op == Op::Flush { tag.piece } else { 0 };
        demands.push(Demand::Ask(Ask { tag, op, volume: None, shard, span, buffer, fua, came }));
    }

    fn submitted(&mut self, slot: Slot) {
        self.open[slot.index()].complete = true;
        self.settle(slot);
    }

    /// Moves payload that has arrived to where it belongs; false if more must arrive first.
    fn take_payload(
        &mut self,
        slot: Slot,
        at: u32,
        length: u32,
        demands: &mut Vec<Demand>,
    ) -> bool {
        if self.receiving {
            return false;
        }
        if self.arriving.is_none() && !self.start_arriving(slot, at, length) {
            self.starved = true;
            return false;
        }
        let arriving = self.arriving.as_mut().expect("just started");
        if let Some(input) = self.input.as_ref().filter(|_| !self.input_at.is_empty()) {
            let count = self.input_at.len().min(arriving.length - arriving.filled);
            let from = self.input_at.start..self.input_at.start + count;
            let to = arriving.filled..arriving.filled + count;
            let target = arriving.buffer.as_mut().expect("nothing is being received");
            target.as_mut().expect("nobody else has it yet")[to].copy_from_slice(&input[from]);
            arriving.filled += count;
            self.input_at.start += count;
        }
        if let Some(guard) = &mut self.guard {
            let target = arriving.buffer.as_mut().expect("TLS has its own buffer to receive in");
            let place = target.as_mut().expect("nobody else has it yet");
            match guard.read(&mut place[arriving.filled..]) {
                Ok(count) => arriving.filled += count,
                Err(why) => self.broken = Some(why),
            }
        }
        if arriving.filled < arriving.length {
            return false;
        }
        self.piece_arrived(demands);
        true
    }

    /// Takes a buffer for the payload that comes next, up to the next multiple of a piece. `at` and
    /// `length` are the machine's piece in the write's payload.
    fn start_arriving(&mut self, slot: Slot, at: u32, length: u32) -> bool {
        let (_, request) = self.open[slot.index()].request.as_ref().expect("the write is open");
        let (offset_bytes, left) =
            self.rest.unwrap_or((request.offset_bytes + u64::from(at), length));
        let room = PIECE_BYTES - offset_bytes % PIECE_BYTES;
        let count = u32::try_from(room.min(u64::from(left))).expect("at most a piece");
        let Some(buffer) = self.payload.take(count as usize) else { return false };
        self.rest = (left > count).then(|| (offset_bytes + u64::from(count), left - count));
        let length = buffer.len();
        self.arriving =
            Some(Arriving { slot, buffer: Some(buffer), filled: 0, length, offset_bytes });
        true
    }

    fn piece_arrived(&mut self, demands: &mut Vec<Demand>) {
        let arriving = self.arriving.take().expect("a piece has arrived");
        let (slot, offset_bytes) = (arriving.slot, arriving.offset_bytes);
        let length = u64::try_from(arriving.length).expect("at most a piece");
        self.submit(slot, Op::Write, offset_bytes, length, arriving.buffer, demands);
        if self.rest.is_none() && self.server.payload_done(slot) {
            self.submitted(slot);
        }
    }
}

/// The bytes of the export that a request is about.
pub(super) fn range_of(request: &Request) -> Range<u64> {
    request.offset_bytes..request.offset_bytes + u64::from(request.length_bytes)
}

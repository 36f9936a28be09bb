//! What comes from a host: bytes, commands, data, and the pieces they become.
//!
//! Always: data is received where it stays, unless it came among other bytes, or inside TLS.
//!
//! Not here: what goes to the host (`outgoing`).

use std::ops::Range;

use base::{AnswerError, Duration, Instant, Op, ReservationCommand, SECTOR_BYTES, Span, VolumeId};
use nvme::{Event, Request, Slot, Status, Want};
use sys::{Buffer, PskFault, Room};

use super::outgoing::{has_data, reads};
use super::{Demand, NvmeConnection, Open, Receiving};
use crate::nbd_connection::{Ask, BYTES_OPEN_MAX, GUARDED_BYTES, Tag, UNSENT_BYTES_MAX};
use crate::pieces::{PIECE_BYTES, cost_bytes, pieces_of};
use crate::psk_guard::{HANDSHAKE_RECORD, PskGuard};

/// Bytes that are said, and not data of reads, beyond which no further command is looked at: sixteen of the longest log pages.
const SAID_BYTES_MAX: usize = 1 << 20;

/// Pieces of one deallocation that are with the shards at once.
const DEALLOCATIONS_MAX: usize = 64;

/// After so long what is left of a deallocation is left as it is: whoever asks for one only says that it needs no more what is there. Its
/// host may have given it up later than that, asked for it by another way, and written there since.
const DEALLOCATION_LIMIT: Duration = Duration::from_millis(900);

impl NvmeConnection {
    /// Where the next bytes shall go, or `None` while nothing is to be received. The range is filled
    /// from its start, in part or whole, and given back by [`NvmeConnection::received`].
    pub fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)> {
        if self.is_over() || self.receiving.is_some() || !self.input_at.is_empty() {
            return None;
        }
        if self.guard.is_some() {
            return self.receive_guarded();
        }
        match self.machine.wants() {
            Want::Payload { slot, offset_bytes, length_bytes } => {
                let (part, range) = self.place_of(slot, offset_bytes, length_bytes)?;
                let buffer = self.open[slot.index()].parts[part].1.take()?;
                self.receiving = Some(Receiving::Part { slot, part, from: range.start });
                Some((buffer, range))
            }
            Want::Bytes { .. } if self.may_say_more() => {
                let Some(buffer) = self.input.take().or_else(|| self.inputs.take()) else {
                    self.starved = true;
                    return None;
                };
                self.receiving = Some(Receiving::Input);
                let length = buffer.len();
                Some((buffer, 0..length))
            }
            _ => None,
        }
    }

    /// Where the next records go: inside TLS nobody knows what comes before it came.
    fn receive_guarded(&mut self) -> Option<(Buffer, Range<usize>)> {
        let wanted = match self.machine.wants() {
            Want::Payload { slot, offset_bytes, length_bytes } => {
                self.place_of(slot, offset_bytes, length_bytes).is_some()
            }
            Want::Bytes { .. } => self.may_say_more(),
            Want::Answer | Want::Nothing => false,
        };
        let guard = self.guard.as_mut().filter(|guard| wanted && guard.is_drained())?;
        let Some(buffer) = guard.take_buffer().or_else(|| self.inputs.take()) else {
            self.starved = true;
            return None;
        };
        self.receiving = Some(Receiving::Records);
        let length = buffer.len().min(guard.receive_max());
        Some((buffer, 0..length))
    }

    /// Nothing more is taken from the host.
    pub(super) fn is_over(&self) -> bool {
        self.closed.is_some() || self.broken.is_some()
    }

    /// The part of a write in which data belongs that comes at `offset`, and where in its buffer. `None`: it has no place
    /// yet.
    fn place_of(&self, slot: Slot, offset: u32, length: u32) -> Option<(usize, Range<usize>)> {
        let parts = &self.open[slot.index()].parts;
        let part = parts.iter().rposition(|(from, _)| *from <= offset)?;
        let (from, buffer) = &parts[part];
        let start = (offset - from) as usize;
        let end = buffer.as_ref()?.len().min(start + length as usize);
        Some((part, start..end))
    }

    /// `count` bytes have arrived in the buffer that [`NvmeConnection::receive_into`] gave.
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
        self.now = now;
        match self.receiving.take().expect("something was to be received") {
            Receiving::Input => {
                assert!(count <= buffer.len(), "more arrived than there was room for");
                if !self.begun && buffer[..count].first() == Some(&HANDSHAKE_RECORD) {
                    self.start_tls(buffer, count);
                } else {
                    self.input = Some(buffer);
                    self.input_at = 0..count;
                }
                self.begun = true;
            }
            Receiving::Records => {
                let guard = self.guard.as_mut().expect("records are received for TLS");
                guard.arrived(buffer, 0..count);
            }
            Receiving::Part { slot, part, from } => {
                let event =
                    self.machine.received(slot, &buffer[from..from + count], self.said.bytes());
                self.open[slot.index()].parts[part].1 = Some(buffer);
                if let Some(event) = event {
                    self.on_event(event, demands);
                }
            }
        }
        self.proceed(now, demands);
    }

    /// Goes on with what has arrived, as far as limits allow.
    pub fn proceed(&mut self, now: Instant, demands: &mut Vec<Demand>) {
        (self.now, self.starved) = (now, false);
        while let Some(request) = self.waiting.pop_front() {
            if let Err(request) = self.begin(request, demands) {
                self.waiting.push_front(request);
                break;
            }
        }
        if !self.unfinished.is_empty() {
            for slot in std::mem::take(&mut self.unfinished) {
                self.go_on(slot, demands);
            }
        }
        while !self.is_over() && (self.guard.is_some() || !self.input_at.is_empty()) {
            let went_on = match self.machine.wants() {
                Want::Bytes { bytes } => self.refill(bytes) && self.feed(now, demands),
                Want::Payload { slot, offset_bytes, length_bytes } => {
                    if self.input_at.is_empty() {
                        self.read_data(slot, offset_bytes, length_bytes, demands)
                    } else {
                        self.move_data(slot, offset_bytes, length_bytes, demands)
                    }
                }
                Want::Answer | Want::Nothing => false,
            };
            if !went_on {
                break;
            }
        }
    }

    /// From here on everything is inside TLS, what has arrived already as well.
    fn start_tls(&mut self, buffer: Buffer, count: usize) {
        let Some(offer) = self.offer.take() else {
            let why = "no host has a key for it here";
            self.broken = Some(PskFault::Broken(why.to_owned()));
            return;
        };
        let mut guard = PskGuard::new(&offer);
        guard.arrived(buffer, 0..count);
        self.guard = Some(Box::new(guard));
    }

    /// Takes from inside TLS what the machine wants next; false if nothing is there.
    fn refill(&mut self, bytes: u32) -> bool {
        if !self.input_at.is_empty() {
            return true;
        }
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

    /// Takes data from inside TLS to its place; false if there is none of either.
    fn read_data(
        &mut self,
        slot: Slot,
        offset: u32,
        length: u32,
        demands: &mut Vec<Demand>,
    ) -> bool {
        let Some((part, place)) = self.place_of(slot, offset, length) else { return false };
        let Some(guard) = &mut self.guard else { return false };
        let target = self.open[slot.index()].parts[part].1.as_mut().expect("it has a place");
        let target = target.as_mut().expect("nobody else has it yet");
        let place = &mut target[place];
        let count = match guard.read(place) {
            Ok(count) => count,
            Err(why) => {
                self.broken = Some(why);
                return false;
            }
        };
        let event = match count {
            0 => return false,
            count => self.machine.received(slot, &place[..count], self.said.bytes()),
        };
        if let Some(event) = event {
            self.on_event(event, demands);
        }
        true
    }

    /// Whether commands are looked at that may be answered at once: no more lies here than a host has to take that asks on.
    fn may_say_more(&self) -> bool {
        let unsent_max =
            if self.controller().is_some() { SAID_BYTES_MAX as u64 } else { UNSENT_BYTES_MAX };
        self.unsent_bytes <= unsent_max && self.said.said_bytes() <= SAID_BYTES_MAX
    }

    fn feed(&mut self, now: Instant, demands: &mut Vec<Demand>) -> bool {
        if !self.may_say_more() {
            return false;
        }
        let input = self.input.as_ref().expect("there is input");
        let fed = self.machine.feed(now, &input[self.input_at.clone()], self.said.bytes());
        self.input_at.start += fed.consumed;
        if let Some(event) = fed.event {
            self.on_event(event, demands);
        }
        true
    }

    /// Moves data that came among other bytes to its place.
    fn move_data(
        &mut self,
        slot: Slot,
        offset: u32,
        length: u32,
        demands: &mut Vec<Demand>,
    ) -> bool {
        let Some((part, place)) = self.place_of(slot, offset, length) else { return false };
        let count = self.input_at.len().min(place.len());
        let input = self.input.as_ref().expect("there is input");
        let bytes = &input[self.input_at.start..self.input_at.start + count];
        let target = self.open[slot.index()].parts[part].1.as_mut().expect("it has a place");
        let target = target.as_mut().expect("nobody else has it yet");
        target[place.start..place.start + count].copy_from_slice(bytes);
        let event = self.machine.received(slot, bytes, self.said.bytes());
        self.input_at.start += count;
        if let Some(event) = event {
            self.on_event(event, demands);
        }
        true
    }

    fn on_event(&mut self, event: Event, demands: &mut Vec<Demand>) {
        match event {
            Event::Connect(connect) => demands.push(Demand::Connect(*connect)),
            Event::Switched => demands.push(Demand::Switched),
            Event::Proved(secret) => demands.push(Demand::Proved(secret)),
            Event::Arrived { slot, whole: false } => self.fail_arrived(slot, Status::TRANSPORT),
            Event::Arrived { slot, .. } if self.lost => self.fail_arrived(slot, Status::LOST),
            Event::Arrived { slot, .. } if self.turns_away => {
                self.fail_arrived(slot, Status::INACCESSIBLE);
            }
            Event::Arrived { slot, .. } => self.hand_on(slot, demands),
            Event::Close(reason) => self.closed = Some(reason),
            Event::Request(request) => match self.begin(request, demands) {
                Ok(()) => {}
                // One that has waited longer comes first.
                Err(request) => self.waiting.push_back(request),
            },
        }
    }

    /// Begins a request, or gives it back if there is no memory for it.
    fn begin(&mut self, request: Request, demands: &mut Vec<Demand>) -> Result<(), Request> {
        let (slot, range) = (request.slot, request.range.clone());
        if self.turns_away && !self.lost && !is_inline(&request.op) {
            self.machine.answer(slot, Status::INACCESSIBLE, self.said.bytes());
            return Ok(());
        }
        let length = range.end - range.start;
        let full = self.open_bytes + length > BYTES_OPEN_MAX;
        let mut room = None;
        match &request.op {
            nvme::Op::Read => {
                room = self.payload.reserve(cost_bytes(range.clone())).filter(|_| !full);
                if room.is_none() {
                    self.starved |= !full;
                    return Err(request);
                }
            }
            nvme::Op::Write { .. } | nvme::Op::Compare { .. } => {
                if !self.take_parts(&request, full, &mut room) {
                    self.open[slot.index()].parts.clear();
                    return Err(request);
                }
            }
            nvme::Op::Verify => {
                room = self.payload.reserve(cost_bytes(0..PIECE_BYTES));
                if room.is_none() {
                    self.starved = true;
                    return Err(request);
                }
                self.open[slot.index()].rest.push_back(range.clone());
            }
            nvme::Op::Deallocate(ranges) => {
                self.open[slot.index()].rest.extend(ranges.iter().cloned());
            }
            nvme::Op::Reserve(command) => {
                if **command == ReservationCommand::Report && full {
                    return Err(request);
                }
            }
            nvme::Op::Flush | nvme::Op::Zero { .. } => {}
        }
        self.open_bytes += if has_data(&request.op) { length } else { 0 };
        let open = &mut self.open[slot.index()];
        open.owes_flush = request.fua && reads(&request.op);
        open.room = room;
        open.came = self.now;
        match open.request.insert(request).op {
            nvme::Op::Read => self.submit_all(slot, Op::Read, range, demands),
            nvme::Op::Write { inline } | nvme::Op::Compare { inline } => {
                if !inline {
                    self.machine.ask(slot, self.said.bytes());
                }
            }
            nvme::Op::Zero { unmap } => self.submit_all(slot, Op::Zero { unmap }, range, demands),
            nvme::Op::Deallocate(_) | nvme::Op::Verify => self.go_on(slot, demands),
            nvme::Op::Flush => self.flush(slot, demands),
            nvme::Op::Reserve(ref command) => {
                let command = **command;
                self.reserve(slot, command, demands);
            }
        }
        Ok(())
    }

    /// Takes what a write or a comparison needs; false, and it waits, if there is no memory for it.
    fn take_parts(&mut self, request: &Request, full: bool, room: &mut Option<Room>) -> bool {
        let range = &request.range;
        for piece in pieces_of(range.clone()) {
            let length = usize::try_from(piece.end - piece.start).expect("a piece");
            let buffer = if full { None } else { self.payload.take(length) };
            let Some(buffer) = buffer.or_else(|| self.beyond(request, length)) else {
                self.starved |= !full;
                return false;
            };
            let from = u32::try_from(piece.start - range.start).expect("a MiB at most");
            self.open[request.slot.index()].parts.push((from, Some(buffer)));
        }
        if matches!(request.op, nvme::Op::Compare { .. }) {
            *room = self.payload.reserve(cost_bytes(range.clone()));
            if room.is_none() && !self.must_read_on(request) {
                self.starved = true;
                return false;
            }
        }
        true
    }

    /// A buffer for what comes with its command, whatever the limit, if nothing behind it can be waited for: of 8 KiB at most, for
    /// each of 128 commands.
    fn beyond(&self, request: &Request, length: usize) -> Option<Buffer> {
        self.must_read_on(request).then(|| self.payload.take_beyond(length)).flatten()
    }

    /// Whether what comes with this command has to be taken from the socket: data lies behind it that writes wait for
    /// which hold memory, or it is to be refused at once.
    fn must_read_on(&self, request: &Request) -> bool {
        is_inline(&request.op) && (self.turns_away || self.open.iter().any(Open::arrives))
    }

    /// A command about reservations goes to whoever decides.
    fn reserve(&mut self, slot: Slot, command: ReservationCommand, demands: &mut Vec<Demand>) {
        if self.lost {
            return self.settle(slot);
        }
        let open = &mut self.open[slot.index()];
        open.waiting = 1;
        let request = open.request.as_ref().expect("it is open");
        let namespace = request.namespace.expect("only a flush is of all");
        let volume = VolumeId(u16::try_from(namespace - 1).expect("checked to be a volume"));
        let tag = Tag { slot: u8::try_from(slot.index()).expect("below 128"), piece: 0 };
        demands.push(Demand::Reserve { tag, volume, command });
    }

    fn flush(&mut self, slot: Slot, demands: &mut Vec<Demand>) {
        let request = self.open[slot.index()].request.as_ref().expect("it is open");
        let volumes: Vec<u32> = match request.namespace {
            Some(namespace) => vec![namespace],
            None => self.machine.namespaces().iter().map(|namespace| namespace.id).collect(),
        };
        for namespace in volumes {
            for shard in 0..self.flush_parts {
                let range = 0..SECTOR_BYTES;
                self.submit(slot, Op::Flush, (namespace, shard), range, None, demands);
            }
        }
        self.settle(slot);
    }

    /// Submits more of what is to be deallocated, or verified; of the latter one piece, whose bytes have room. Of what was read with
    /// FUA a flush, so that what it shows survives a power cut.
    fn go_on(&mut self, slot: Slot, demands: &mut Vec<Demand>) {
        let open = &mut self.open[slot.index()];
        if open.rest.is_empty() && std::mem::take(&mut open.owes_flush) {
            return self.flush(slot, demands);
        }
        let request = open.request.as_ref().expect("it is open");
        let (op, most) = match request.op {
            nvme::Op::Verify => (Op::Read, 1),
            _ => (Op::Zero { unmap: true }, DEALLOCATIONS_MAX),
        };
        if op != Op::Read && self.now.since(open.came) >= DEALLOCATION_LIMIT {
            open.rest.clear();
        }
        for _ in 0..most {
            let open = &mut self.open[slot.index()];
            let Some(range) = open.rest.pop_front() else { break };
            let mut pieces = pieces_of(range.clone());
            let Some(piece) = pieces.next() else { continue };
            if piece.end < range.end {
                open.rest.push_front(piece.end..range.end);
            }
            // Each batch is answered whole before the next, so their numbers may repeat.
            self.submit_one(slot, op, piece, None, demands);
        }
        self.settle(slot);
    }

    fn submit_all(&mut self, slot: Slot, op: Op, range: Range<u64>, demands: &mut Vec<Demand>) {
        for piece in pieces_of(range.clone()) {
            if op == Op::Read {
                let from = u32::try_from(piece.start - range.start).expect("a MiB at most");
                self.open[slot.index()].parts.push((from, None));
            }
            self.submit_one(slot, op, piece, None, demands);
        }
        self.settle(slot);
    }

    fn submit_one(
        &mut self,
        slot: Slot,
        op: Op,
        piece: Range<u64>,
        buffer: Option<Buffer>,
        demands: &mut Vec<Demand>,
    ) {
        let request = self.open[slot.index()].request.as_ref().expect("it is open");
        let namespace = request.namespace.expect("only a flush is of all");
        self.submit(slot, op, (namespace, 0), piece, buffer, demands);
    }

    fn submit(
        &mut self,
        slot: Slot,
        op: Op,
        (namespace, shard): (u32, u16),
        piece: Range<u64>,
        buffer: Option<Buffer>,
        demands: &mut Vec<Demand>,
    ) {
        let open = &mut self.open[slot.index()];
        if self.lost {
            // Whoever asks for it saw what is not so any more.
            open.failed = Some(AnswerError::SessionLost);
            return;
        }
        if self.turns_away {
            open.failed = Some(AnswerError::Gone);
            return;
        }
        let writes = matches!(op, Op::Write | Op::Zero { .. });
        let fua = writes && open.request.as_ref().is_some_and(|request| request.fua);
        let count = (piece.end - piece.start) / SECTOR_BYTES;
        let count = u32::try_from(count).expect("a piece is a MiB at most");
        let span = Span::new(piece.start / SECTOR_BYTES, count).expect("checked to be inside");
        let index = u8::try_from(slot.index()).expect("below 128");
        let tag = Tag { slot: index, piece: open.submitted };
        open.submitted = open.submitted.wrapping_add(1);
        open.waiting += 1;
        let volume = u16::try_from(namespace - 1).expect("checked to be a volume");
        let volume = Some(VolumeId(volume));
        demands.push(Demand::Ask(Ask { tag, op, volume, shard, span, buffer, fua, came: None }));
    }

    /// Hands on what has all its data from the host.
    fn hand_on(&mut self, slot: Slot, demands: &mut Vec<Demand>) {
        let open = &mut self.open[slot.index()];
        let request = open.request.as_ref().expect("it is open");
        let range = request.range.clone();
        if matches!(request.op, nvme::Op::Compare { .. }) {
            for piece in pieces_of(range) {
                self.submit_one(slot, Op::Read, piece, None, demands);
            }
            return;
        }
        for (part, piece) in pieces_of(range).enumerate() {
            let buffer = self.open[slot.index()].parts[part].1.take();
            self.submit_one(slot, Op::Write, piece, buffer, demands);
        }
        self.open[slot.index()].parts.clear();
    }

    fn fail_arrived(&mut self, slot: Slot, status: Status) {
        let open = &mut self.open[slot.index()];
        open.parts.clear();
        let ended = open.end();
        self.count_done(&ended.request);
        self.machine.answer(slot, status, self.said.bytes());
    }
}

/// Whether its data comes with its command.
fn is_inline(op: &nvme::Op) -> bool {
    matches!(op, nvme::Op::Write { inline: true } | nvme::Op::Compare { inline: true })
}

//! Judging commands, and answering them.
//!
//! Invariants:
//! - A request that reaches the caller is of a volume that is there, in whole blocks, and inside it.
//! - A refused write is answered after its data, never in the middle of it.
//! - What is read is answered from its start on, piece by piece.

use crate::bytes::{length_u32, u32_at, u64_at};
use crate::command::{Command, Sgl, Status};
use crate::connect::{Refusal, connect_of};
use crate::connection::{CloseReason, Connection, Event, Phase, Role};
use crate::controller::{Answer, Controller};
use crate::notice::Notice;
use crate::number::{
    AUTH_REQUIRED, DEALLOCATED_BYTES_MAX, FABRICS_PROPERTY_SET, FLAG_LAST, FLAG_SUCCESS,
    GATHER_BYTES_MAX, IO_COMPARE, IO_DATASET, IO_FLUSH, IO_READ, IO_RESERVATION_REPORT, IO_VERIFY,
    IO_WRITE, IO_WRITE_ZEROES, NSID_ALL, TRANSFER_BYTES_MAX,
};
use crate::open::{Gathered, Open, OpenKind};
use crate::pdu::{put_read, put_ready, put_response};
use crate::request::{Op, Request, Slot};
use crate::reserve;
use crate::subsystem::{Namespace, Service};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{ReservationCommand, crc32c};
use core::ops::Range;

/// Bytes of a range to deallocate.
const RANGE_BYTES: usize = 16;
/// `FUA`, in the command's word 12.
const FUA: u32 = 1 << 30;
/// `DEAC`: zeroes may be holes.
const DEALLOCATES: u32 = 1 << 25;

/// What becomes of a command when its head is there.
pub(crate) enum Taken {
    /// Nothing of its data comes now.
    Done(Option<Event>),
    /// It is acted on once its data is gathered.
    Later,
    /// Likewise, and its data comes once it is asked for.
    Asks(Slot),
    /// Its data goes to the caller.
    Payload(Slot, Event),
    /// Refused once its data is skipped.
    Refused(Status),
}

impl Connection {
    /// The caller makes it the administration queue of `controller`.
    ///
    /// # Panics
    /// If no connect command for such a queue is open.
    pub fn administrates(&mut self, controller: Controller, send: &mut Vec<u8>) {
        let id = controller.id();
        self.enter(Role::Admin(Box::new(controller)), id, send);
    }

    /// The caller makes it a queue for I/O of the controller `id`, on these volumes.
    ///
    /// # Panics
    /// If no connect command is open.
    pub fn serves(&mut self, id: u16, namespaces: Vec<Namespace>, send: &mut Vec<u8>) {
        self.enter(Role::Io { namespaces }, id, send);
    }

    fn enter(&mut self, role: Role, controller: u16, send: &mut Vec<u8>) {
        let Role::Connecting { id } = self.role else { panic!("no connect command is open") };
        let command = self.command();
        self.role = role;
        self.queue = command.short(42);
        self.depth = command.short(44) + 1;
        self.unwatched = command.byte(46) & (1 << 2) != 0;
        // Of the queue that is made the connect command was the first entry.
        self.head_place = 1 % self.depth;
        self.phase = Phase::Head { need: crate::number::COMMON_BYTES };
        let proof = if self.examiner.is_some() { AUTH_REQUIRED } else { 0 };
        self.respond(id, u64::from(controller) | proof, Status::SUCCESS, send);
        self.restart();
    }

    /// The caller does not let the host in.
    ///
    /// # Panics
    /// If no connect command is open.
    #[must_use]
    pub fn refuse(&mut self, refusal: Refusal, send: &mut Vec<u8>) -> CloseReason {
        let Role::Connecting { id } = self.role else { panic!("no connect command is open") };
        self.respond(id, refusal.result(), refusal.status(), send);
        self.phase = Phase::Closed;
        CloseReason::Refused
    }

    /// The resource is not what it was.
    pub fn change(&mut self, service: &Service, send: &mut Vec<u8>) {
        match &mut self.role {
            Role::Admin(controller) => controller.change(service.clone()),
            Role::Io { namespaces } => *namespaces = service.namespaces().to_vec(),
            Role::Fresh | Role::Unconnected | Role::Connecting { .. } => {}
        }
        self.tell(send);
    }

    /// Another host did something to the registration of this one.
    pub fn notify(&mut self, namespace: u32, notice: Notice, send: &mut Vec<u8>) {
        if let Role::Admin(controller) = &mut self.role {
            controller.notify(namespace, notice);
        }
        self.tell(send);
    }

    fn tell(&mut self, send: &mut Vec<u8>) {
        while let Role::Admin(controller) = &mut self.role
            && let Some((id, result)) = controller.take_event()
        {
            self.respond(id, result, Status::SUCCESS, send);
        }
    }

    /// Lets the data of a write come, all of it.
    ///
    /// # Panics
    /// If the request is no open write whose data is still to be asked for.
    pub fn ask(&mut self, slot: Slot, send: &mut Vec<u8>) {
        let form = (self.digests, self.align);
        let open = self.open_at_mut(slot);
        assert!(open.kind == OpenKind::Write && !open.asked, "slot {} is asked for", slot.0);
        open.asked = true;
        put_ready((open.id, u16::from(slot.0)), (0, open.length), form, send);
    }

    /// Answers a read with the next of its bytes: `send` gets what goes before them, `tail` what goes behind. Says whether
    /// those were the last.
    ///
    /// # Panics
    /// If the request is no open read, or has not so many bytes left, or `bytes` is empty.
    pub fn answer_read(
        &mut self,
        slot: Slot,
        bytes: &[u8],
        send: &mut Vec<u8>,
        tail: &mut Vec<u8>,
    ) -> bool {
        let form = (self.digests, self.align);
        let open = self.open_at_mut(slot);
        let count = length_u32(bytes.len());
        assert!(open.kind == OpenKind::Read && count > 0, "slot {} is not read so", slot.0);
        assert!(count <= open.length - open.moved, "more than was asked for");
        let (id, at) = (open.id, open.moved);
        open.moved += count;
        let last = open.moved == open.length;
        // A host that does not want to know how far its queue was read is told by the data itself that they were the last.
        let flags = match (last, self.unwatched) {
            (false, _) => 0,
            (true, false) => FLAG_LAST,
            (true, true) => FLAG_LAST | FLAG_SUCCESS,
        };
        put_read(id, (at, count), flags, form, send);
        if self.digests.data {
            tail.extend_from_slice(&crc32c(bytes).to_le_bytes());
        }
        if last {
            self.open.remove(slot);
            if !self.unwatched {
                self.respond(id, 0, Status::SUCCESS, tail);
            }
        }
        last
    }

    /// Answers a request that is done, or that failed; not a read that is done.
    ///
    /// # Panics
    /// If the request is not open, or is a write whose data is on its way.
    pub fn answer(&mut self, slot: Slot, status: Status, send: &mut Vec<u8>) {
        let &Open { id, kind, length, moved, asked, .. } = self.open_at(slot);
        let is_write = kind == OpenKind::Write;
        assert!(!is_write || !asked || moved == length, "data of slot {} is on its way", slot.0);
        assert!(kind != OpenKind::Read || status != Status::SUCCESS, "a read is done by its data");
        self.open.remove(slot);
        self.respond(id, 0, status, send);
    }

    /// Appends the end of a command.
    pub(crate) fn respond(&self, id: u16, result: u64, status: Status, send: &mut Vec<u8>) {
        let head = if self.unwatched { 0xffff } else { self.head_place };
        let form = (self.digests, self.align);
        put_response(result, (head, self.queue), (id, status), form, send);
    }

    /// A command's head is there, and `inline` bytes of data behind it.
    pub(crate) fn take(&mut self, command: Command, inline: u32) -> Taken {
        if matches!(self.role, Role::Unconnected) {
            return Taken::Later;
        }
        if !command.has_right_flags() {
            return Taken::Refused(Status::INVALID_FIELD);
        }
        if self.is_of_proof(&command) {
            return Taken::Later;
        }
        if self.is_to_prove() {
            return Taken::Refused(Status::AUTH_REQUIRED);
        }
        let Role::Io { namespaces } = &self.role else { return Taken::Later };
        if command.is_connect() {
            return Taken::Refused(Status::SEQUENCE_ERROR);
        }
        if command.is_fabrics() {
            return Taken::Refused(Status::INVALID_OPCODE);
        }
        if command.opcode() == IO_DATASET || reserve::has_keys(&command) {
            return self.take_gathered(command, inline);
        }
        let mut request = match judge(&command, inline, namespaces) {
            Ok(request) => request,
            Err(status) => return Taken::Refused(status),
        };
        let length = request.range.end - request.range.start;
        let (kind, length) = match request.op {
            Op::Read | Op::Reserve(_) => (OpenKind::Read, length),
            Op::Write { .. } | Op::Compare { .. } => (OpenKind::Write, length),
            Op::Verify | Op::Flush | Op::Zero { .. } | Op::Deallocate(_) => (OpenKind::Other, 0),
        };
        let length = u32::try_from(length).expect("reads and writes are short");
        let asked = matches!(request.op, Op::Write { inline: true } | Op::Compare { inline: true });
        match self.insert(&command, kind, length, asked) {
            Err(status) => Taken::Refused(status),
            Ok(slot) => {
                request.slot = slot;
                let event = Event::Request(request);
                if asked { Taken::Payload(slot, event) } else { Taken::Done(Some(event)) }
            }
        }
    }

    /// A command that the machine gathers the data of.
    fn take_gathered(&mut self, command: Command, inline: u32) -> Taken {
        let length = match command.sgl() {
            Sgl::Inline { offset_bytes: 0, .. } => return Taken::Later,
            Sgl::Inline { .. } => return Taken::Refused(Status::INVALID_OFFSET),
            Sgl::Transport { length_bytes } if inline == 0 => length_bytes,
            Sgl::Transport { .. } | Sgl::Other => return Taken::Refused(Status::INVALID_SGL),
        };
        if length == 0 || length as usize > GATHER_BYTES_MAX || !length.is_multiple_of(4) {
            return Taken::Refused(Status::SGL_LENGTH);
        }
        match self.insert(&command, OpenKind::Gathered, length, true) {
            Err(status) => Taken::Refused(status),
            Ok(slot) => {
                self.gathered.push(Gathered { slot, command, data: Vec::new() });
                Taken::Asks(slot)
            }
        }
    }

    fn insert(
        &mut self,
        command: &Command,
        kind: OpenKind,
        length: u32,
        asked: bool,
    ) -> Result<Slot, Status> {
        let id = command.id();
        if self.open.has(id) {
            return Err(Status::ID_CONFLICT);
        }
        let open = Open { id, kind, length, moved: 0, asked, damaged: false };
        // A host that keeps to the queue's size always finds a place.
        self.open.insert(open, self.depth).ok_or(Status::INTERNAL)
    }

    /// A command and what came with it are there.
    pub(crate) fn act(&mut self, command: Command, send: &mut Vec<u8>) -> Option<Event> {
        if self.is_of_proof(&command) {
            return self.examine(&command, send);
        }
        match &mut self.role {
            Role::Unconnected => {
                if !command.is_connect() {
                    self.respond(command.id(), 0, Status::SEQUENCE_ERROR, send);
                    return None;
                }
                match connect_of(&command, &self.data) {
                    Ok(connect) => {
                        self.role = Role::Connecting { id: command.id() };
                        self.phase = Phase::Answer;
                        Some(Event::Connect(Box::new(connect)))
                    }
                    Err(refusal) => {
                        self.respond(command.id(), refusal.result(), refusal.status(), send);
                        None
                    }
                }
            }
            Role::Admin(controller) => {
                controller.hear(self.now);
                let answer = controller.administer(&command);
                let switches = command.is_fabrics()
                    && command.fabrics_type() == FABRICS_PROPERTY_SET
                    && matches!(answer, Answer::Done(_));
                self.answer_admin(&command, answer, send);
                self.tell(send);
                switches.then_some(Event::Switched)
            }
            Role::Io { namespaces } if reserve::has_keys(&command) => {
                let namespace = namespace_of(&command, namespaces).map(|one| one.reserves);
                let judged = match namespace {
                    Ok(true) => reserve::parse(&command, &self.data),
                    Ok(false) => Err(Status::INVALID_OPCODE),
                    Err(status) => Err(status),
                };
                let op = judged.map(|command| Op::Reserve(Box::new(command)));
                self.begin_other(&command, op, send)
            }
            Role::Io { namespaces } => match deallocated(&command, &self.data, namespaces) {
                Err(status) => {
                    self.respond(command.id(), 0, status, send);
                    None
                }
                // Only a hint to read or write soon.
                Ok(None) => {
                    self.respond(command.id(), 0, Status::SUCCESS, send);
                    None
                }
                Ok(Some(ranges)) => {
                    let op = Op::Deallocate(ranges.into_boxed_slice());
                    self.begin_other(&command, Ok(op), send)
                }
            },
            Role::Fresh | Role::Connecting { .. } => None,
        }
    }

    /// Begins what moves no data behind its own.
    fn begin_other(
        &mut self,
        command: &Command,
        op: Result<Op, Status>,
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        let begun = op.and_then(|op| Ok((op, self.insert(command, OpenKind::Other, 0, false)?)));
        match begun {
            Err(status) => {
                self.respond(command.id(), 0, status, send);
                None
            }
            Ok((op, slot)) => {
                let namespace = Some(command.namespace());
                Some(Event::Request(Request { slot, namespace, op, range: 0..0, fua: false }))
            }
        }
    }

    pub(crate) fn answer_admin(&self, command: &Command, answer: Answer, send: &mut Vec<u8>) {
        match answer {
            Answer::Later => {}
            Answer::Failed(status) => self.respond(command.id(), 0, status, send),
            Answer::Done(result) => self.respond(command.id(), result, Status::SUCCESS, send),
            Answer::Data(mut data) => {
                let Sgl::Transport { length_bytes } = command.sgl() else {
                    return self.respond(command.id(), 0, Status::INVALID_SGL, send);
                };
                data.truncate(length_bytes as usize);
                if !data.is_empty() {
                    let length = length_u32(data.len());
                    let form = (self.digests, self.align);
                    put_read(command.id(), (0, length), FLAG_LAST, form, send);
                    send.extend_from_slice(&data);
                    if self.digests.data {
                        send.extend_from_slice(&crc32c(&data).to_le_bytes());
                    }
                }
                self.respond(command.id(), 0, Status::SUCCESS, send);
            }
        }
    }
}

/// The volume that a command names.
fn namespace_of<'a>(
    command: &Command,
    namespaces: &'a [Namespace],
) -> Result<&'a Namespace, Status> {
    let id = command.namespace();
    namespaces.iter().find(|one| one.id == id).ok_or(Status::INVALID_NAMESPACE)
}

/// Whole blocks of a volume, in bytes.
fn bytes_of(namespace: &Namespace, first: u64, blocks: u64) -> Result<Range<u64>, Status> {
    let end = first.checked_add(blocks).filter(|&end| end <= namespace.blocks);
    let end = end.ok_or(Status::OUT_OF_RANGE)?;
    Ok(first << namespace.block_shift..end << namespace.block_shift)
}

/// Whether a command may be carried out, and as what. Its slot is not known yet.
fn judge(command: &Command, inline: u32, namespaces: &[Namespace]) -> Result<Request, Status> {
    let opcode = command.opcode();
    if opcode == IO_FLUSH && command.namespace() == NSID_ALL {
        let (slot, op) = (Slot(0), Op::Flush);
        return Ok(Request { slot, namespace: None, op, range: 0..0, fua: false });
    }
    let namespace = match opcode {
        IO_FLUSH
        | IO_READ
        | IO_WRITE
        | IO_COMPARE
        | IO_WRITE_ZEROES
        | IO_VERIFY
        | IO_RESERVATION_REPORT => namespace_of(command, namespaces)?,
        _ => return Err(Status::INVALID_OPCODE),
    };
    let of_it = |op, range, fua| {
        Ok(Request { slot: Slot(0), namespace: Some(namespace.id), op, range, fua })
    };
    if opcode == IO_RESERVATION_REPORT {
        let length = judge_report(command, namespace)?;
        let op = Op::Reserve(Box::new(ReservationCommand::Report));
        return of_it(op, 0..u64::from(length), false);
    }
    if opcode == IO_FLUSH {
        return of_it(Op::Flush, 0..0, false);
    }
    let word = command.word(12);
    let blocks = u64::from(word & 0xffff) + 1;
    let range = bytes_of(namespace, command.long(10), blocks)?;
    let length = range.end - range.start;
    let fua = word & FUA != 0;
    if opcode == IO_WRITE_ZEROES {
        return of_it(Op::Zero { unmap: word & DEALLOCATES != 0 }, range, fua);
    }
    if opcode == IO_VERIFY {
        return of_it(Op::Verify, range, fua);
    }
    if length > u64::from(TRANSFER_BYTES_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    let op = match (opcode, command.sgl()) {
        (_, Sgl::Other) => return Err(Status::INVALID_SGL),
        (IO_READ, Sgl::Inline { .. }) => return Err(Status::INVALID_SGL),
        (_, Sgl::Inline { offset_bytes, .. }) if offset_bytes != 0 => {
            return Err(Status::INVALID_OFFSET);
        }
        (_, Sgl::Inline { length_bytes, .. } | Sgl::Transport { length_bytes })
            if u64::from(length_bytes) != length =>
        {
            return Err(Status::SGL_LENGTH);
        }
        (_, Sgl::Inline { length_bytes, .. }) if length_bytes != inline => {
            return Err(Status::SGL_LENGTH);
        }
        (_, Sgl::Transport { .. }) if inline > 0 => return Err(Status::INVALID_SGL),
        (IO_READ, _) => Op::Read,
        (IO_COMPARE, sgl) => Op::Compare { inline: matches!(sgl, Sgl::Inline { .. }) },
        (_, sgl) => Op::Write { inline: matches!(sgl, Sgl::Inline { .. }) },
    };
    of_it(op, range, fua)
}

/// How many bytes of a report about reservations are asked for, if it may be.
fn judge_report(command: &Command, namespace: &Namespace) -> Result<u32, Status> {
    if !namespace.reserves {
        return Err(Status::INVALID_OPCODE);
    }
    let length = reserve::report_bytes(command)?;
    match command.sgl() {
        Sgl::Transport { length_bytes } if length_bytes == length => Ok(length),
        Sgl::Transport { .. } => Err(Status::SGL_LENGTH),
        _ => Err(Status::INVALID_SGL),
    }
}

/// What a dataset management command deallocates; `None`: it is about something else, which is only a hint. So is this: of what a
/// host names that does not look for limits, no more is taken than can be done before it gives the command up.
fn deallocated(
    command: &Command,
    data: &[u8],
    namespaces: &[Namespace],
) -> Result<Option<Vec<Range<u64>>>, Status> {
    let namespace = namespace_of(command, namespaces)?;
    let count = usize::from(command.byte(40)) + 1;
    const { assert!(256 * RANGE_BYTES <= GATHER_BYTES_MAX) };
    if data.len() < count * RANGE_BYTES {
        return Err(Status::SGL_LENGTH);
    }
    let ranges = ranges_of(data, count, namespace)?;
    Ok((command.word(11) & (1 << 2) != 0).then_some(ranges))
}

/// The ranges of a dataset management command, as far as they are looked at.
pub(crate) fn ranges_of(
    data: &[u8],
    count: usize,
    namespace: &Namespace,
) -> Result<Vec<Range<u64>>, Status> {
    let mut ranges = Vec::with_capacity(count);
    let mut room = DEALLOCATED_BYTES_MAX;
    for range in data.chunks_exact(RANGE_BYTES).take(count) {
        let (blocks, first) = (u64::from(u32_at(range, 4)), u64_at(range, 8));
        let range = bytes_of(namespace, first, blocks)?;
        let taken = range.start..range.end.min(range.start + room);
        if !taken.is_empty() {
            room -= taken.end - taken.start;
            ranges.push(taken);
        }
    }
    Ok(ranges)
}

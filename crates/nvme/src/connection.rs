//! One connection of a host, as the controller sees it: one queue.
//!
//! The caller asks [`Connection::wants`], gives the machine what it wants, sends what was appended to its send buffer, and
//! carries out the event, in that order. One call of [`Connection::feed`] handles at most one PDU.
//!
//! Invariants:
//! - A request is answered exactly once; its slot is open from its event to its last byte.
//! - Data that comes is of an open write, follows what came before, and stays inside it.
//! - After [`Event::Close`] nothing is consumed any more, and what was appended before says why.
//!
//! Not here: administration (`controller`), judging requests and their answers (`serve`), proof of who the host is (`examine`).

use crate::auth::{Examiner, Reason, Secret};
use crate::bytes::{length_u32, u16_at, u32_at};
use crate::command::{Command, Status};
use crate::connect::Connect;
use crate::controller::Controller;
use crate::number::{
    COMMAND_PDU_BYTES, DEPTH_MAX, DIGEST_BYTES, FLAG_LAST, GATHER_BYTES_MAX, HEAD_BYTES_MAX,
    INLINE_BYTES_MAX, PDU_COMMAND, PDU_H2C_DATA, PDU_H2C_TERM, PDU_IC_REQ,
};
use crate::open::{Gathered, Open, OpenKind, OpenTable};
use crate::pdu::{Common, Digests, Fatal, is_whole, place, put_end, put_ic_response, put_ready};
use crate::request::{Request, Slot};
use crate::serve::Taken;
use crate::subsystem::Namespace;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Crc32c, Instant};

/// What the machine can use next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// [`Connection::feed`]. It takes no more than this many bytes, or a whole head if that begins there.
    Bytes {
        /// At least 1. So many are missing before something can come of them.
        bytes: u32,
    },
    /// Bytes of a write come next. The caller receives exactly that many where it likes, then calls
    /// [`Connection::received`].
    Payload {
        /// The write.
        slot: Slot,
        /// Where in the write's data they belong.
        offset_bytes: u32,
        /// At least 1.
        length_bytes: u32,
    },
    /// The answer to [`Event::Connect`]; feed nothing.
    Answer,
    /// Nothing any more: close once what is appended is sent.
    Nothing,
}

/// What the host asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Answer with [`Connection::administrates`], [`Connection::serves`] or [`Connection::refuse`].
    Connect(Box<Connect>),
    /// Answer it by its slot. The data of a write comes by itself if the request says so, else once it is
    /// [asked for](Connection::ask).
    Request(Request),
    /// Everything that a write brings is there. Carry it out if it is whole; else a digest does not match, and it is to be
    /// failed with [`Status::TRANSPORT`].
    Arrived {
        /// The write.
        slot: Slot,
        /// No digest says that it is damaged.
        whole: bool,
    },
    /// The controller was switched on, off, or told to shut down: see [`Controller::is_enabled`].
    Switched,
    /// The host has proved that it knows this secret: see [`Connection::requires`].
    Proved(Secret),
    /// Close the connection once what was appended is sent.
    Close(CloseReason),
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CloseReason {
    /// The host says that we broke the protocol.
    HostEnds,
    /// It broke the protocol.
    Fault(Fatal),
    /// What it wanted to connect to is not to be had.
    Refused,
    /// It has not proved who it is.
    Unproved(Reason),
}

/// What came of feeding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fed {
    /// Bytes of the input that were used.
    pub consumed: usize,
    /// What the host asks for.
    pub event: Option<Event>,
}

/// What the connection is.
#[derive(Debug)]
pub(crate) enum Role {
    /// Its form is not agreed.
    Fresh,
    /// It is not connected to a controller yet.
    Unconnected,
    /// The host asked for this, and the caller is asked.
    Connecting { id: u16 },
    /// The administration queue.
    Admin(Box<Controller>),
    /// A queue for I/O on these volumes.
    Io { namespaces: Vec<Namespace> },
}

/// Where the machine is in a PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// In its head, of so many bytes as far as is known.
    Head { need: usize },
    /// In data that the machine gathers, for the command in the head, or an open one.
    Gather { slot: Option<Slot>, left: u32 },
    /// In data for an open write: what is left in this PDU.
    Payload { slot: Slot, left: u32 },
    /// In data that nobody wants; afterwards the command in the head is refused, if it is one.
    Skip { left: u32, refused: Option<Status> },
    /// Before the digest of data.
    Digest { slot: Option<Slot>, refused: Option<Status> },
    /// The caller has a question to answer.
    Answer,
    /// Nothing is read any more.
    Closed,
}

/// One connection of a host, as the controller sees it.
#[derive(Debug)]
pub struct Connection {
    pub(crate) phase: Phase,
    head: [u8; HEAD_BYTES_MAX],
    filled: usize,
    pub(crate) data: Vec<u8>,
    digest: Crc32c,
    pub(crate) digests: Digests,
    /// Bytes that the host wants data to be aligned to.
    pub(crate) align: usize,
    pub(crate) role: Role,
    /// To whom the host has to prove who it is, if it has to.
    pub(crate) examiner: Option<Box<Examiner>>,
    pub(crate) queue: u16,
    /// Entries of the queue, and the place of the next.
    pub(crate) depth: u16,
    pub(crate) head_place: u16,
    /// The host does not watch the queue's head.
    pub(crate) unwatched: bool,
    pub(crate) open: OpenTable,
    /// Those of them whose data the machine gathers.
    pub(crate) gathered: Vec<Gathered>,
    pub(crate) now: Instant,
}

/// Bytes that every PDU begins with, after which its length is known.
const COMMON: usize = crate::number::COMMON_BYTES;

/// The first of them, of a command without digests.
const PLAIN_COMMAND: [u8; 3] = [PDU_COMMAND, 0, 72];
const _: () = assert!(COMMAND_PDU_BYTES == 72, "it says how long it is");

impl Connection {
    /// A new connection; the host speaks first.
    #[must_use]
    pub fn new() -> Connection {
        Connection {
            phase: Phase::Head { need: COMMON },
            head: [0; HEAD_BYTES_MAX],
            filled: 0,
            data: Vec::new(),
            digest: Crc32c::new(),
            digests: Digests::default(),
            align: 4,
            role: Role::Fresh,
            examiner: None,
            queue: 0,
            depth: 2,
            head_place: 0,
            unwatched: false,
            open: OpenTable::new(),
            gathered: Vec::new(),
            now: Instant(0),
        }
    }

    /// What to give the machine next.
    #[must_use]
    pub fn wants(&self) -> Want {
        match self.phase {
            Phase::Head { need } => Want::Bytes { bytes: length_u32(need - self.filled) },
            Phase::Gather { left, .. } | Phase::Skip { left, .. } => Want::Bytes { bytes: left },
            Phase::Digest { .. } => Want::Bytes { bytes: length_u32(DIGEST_BYTES - self.filled) },
            Phase::Payload { slot, left } => {
                Want::Payload { slot, offset_bytes: self.open_at(slot).moved, length_bytes: left }
            }
            Phase::Answer => Want::Answer,
            Phase::Closed => Want::Nothing,
        }
    }

    /// Takes bytes that arrived, up to the end of one PDU, and appends what to send to `send`. Something is consumed
    /// whenever [`Connection::wants`] says [`Want::Bytes`] and there is input.
    #[must_use]
    pub fn feed(&mut self, now: Instant, input: &[u8], send: &mut Vec<u8>) -> Fed {
        self.now = now;
        if let Some((head, left)) = self.plain_command(input) {
            self.head[..COMMAND_PDU_BYTES].copy_from_slice(head);
            self.filled = COMMAND_PDU_BYTES;
            return Fed { consumed: COMMAND_PDU_BYTES, event: self.on_command(left, send) };
        }
        let Want::Bytes { bytes } = self.wants() else { return Fed { consumed: 0, event: None } };
        let bytes = self.command_bytes(input).unwrap_or(bytes as usize);
        let input = &input[..input.len().min(bytes)];
        let taken = length_u32(input.len());
        let event = match self.phase {
            Phase::Head { need } => {
                let need = need.max(bytes);
                self.gather(input);
                if self.filled == need { self.on_head(need, send) } else { None }
            }
            Phase::Digest { slot, refused } => {
                self.gather(input);
                if self.filled == DIGEST_BYTES { self.on_digest(slot, refused, send) } else { None }
            }
            Phase::Gather { slot, left } => {
                self.gather_data(slot, input);
                self.phase = Phase::Gather { slot, left: left - taken };
                if left == taken { self.on_data_end(slot, None, send) } else { None }
            }
            Phase::Skip { left, refused } => {
                self.digest.update(input);
                self.phase = Phase::Skip { left: left - taken, refused };
                if left == taken { self.on_data_end(None, refused, send) } else { None }
            }
            Phase::Payload { .. } | Phase::Answer | Phase::Closed => None,
        };
        Fed { consumed: input.len(), event }
    }

    /// Bytes of a write's data, or some of them, have been received as [`Want::Payload`] said.
    ///
    /// # Panics
    /// If no data of this write is wanted, or less.
    pub fn received(&mut self, slot: Slot, bytes: &[u8], send: &mut Vec<u8>) -> Option<Event> {
        let Phase::Payload { slot: wanted, left } = self.phase else {
            panic!("no data of slot {} is wanted", slot.0)
        };
        let count = length_u32(bytes.len());
        assert!(wanted == slot && count <= left, "data of another write, or too much");
        if self.digests.data {
            self.digest.update(bytes);
        }
        self.open_at_mut(slot).moved += count;
        self.phase = Phase::Payload { slot, left: left - count };
        if left == count { self.on_data_end(Some(slot), None, send) } else { None }
    }

    /// The controller, on its administration queue.
    #[must_use]
    pub fn controller(&self) -> Option<&Controller> {
        match &self.role {
            Role::Admin(controller) => Some(controller),
            _ => None,
        }
    }

    /// The volumes that a queue for I/O reaches.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        match &self.role {
            Role::Io { namespaces } => namespaces,
            _ => &[],
        }
    }

    /// Whether it is connected to a controller, and its host has proved who it is if it has to.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.role, Role::Admin(_) | Role::Io { .. }) && !self.is_to_prove()
    }

    /// Requests without an answer.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.count()
    }

    /// The head that is next, if it is a command's as most are: there whole, without digests, and no padding before its data; and
    /// how many bytes of that follow.
    fn plain_command<'a>(&self, input: &'a [u8]) -> Option<(&'a [u8; COMMAND_PDU_BYTES], u32)> {
        let begins = self.filled == 0 && matches!(self.phase, Phase::Head { .. });
        let has_digests = self.digests.header || self.digests.data;
        if !begins || has_digests || matches!(self.role, Role::Fresh) {
            return None;
        }
        let head = input.first_chunk::<COMMAND_PDU_BYTES>()?;
        let left = u32_at(head, 4).checked_sub(length_u32(COMMAND_PDU_BYTES))?;
        let (begins, data_at) = (head[..3] == PLAIN_COMMAND, usize::from(head[3]));
        (begins && (left == 0 || data_at == COMMAND_PDU_BYTES)).then_some((head, left))
    }

    /// Bytes of the head that is next, if it is a command's and there whole: that is looked at once.
    fn command_bytes(&self, input: &[u8]) -> Option<usize> {
        let begins = self.filled == 0 && matches!(self.phase, Phase::Head { .. });
        let bytes = COMMAND_PDU_BYTES + if self.digests.header { DIGEST_BYTES } else { 0 };
        (begins && input.first() == Some(&PDU_COMMAND) && input.len() >= bytes).then_some(bytes)
    }

    fn gather(&mut self, input: &[u8]) {
        self.head[self.filled..self.filled + input.len()].copy_from_slice(input);
        self.filled += input.len();
    }

    fn gather_data(&mut self, slot: Option<Slot>, input: &[u8]) {
        self.digest.update(input);
        let Some(slot) = slot else { return self.data.extend_from_slice(input) };
        self.open_at_mut(slot).moved += length_u32(input.len());
        let of_it = self.gathered.iter_mut().filter(|one| one.slot == slot);
        of_it.for_each(|one| one.data.extend_from_slice(input));
    }

    /// The next thing to come is a PDU.
    pub(crate) fn restart(&mut self) {
        self.filled = 0;
        self.data.clear();
    }

    fn next_pdu(&mut self) {
        if matches!(self.phase, Phase::Answer) {
            // The caller's answer needs the command that is in the head.
            return;
        }
        self.restart();
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Head { need: COMMON };
        }
    }

    /// Ends the connection, and says why.
    pub(crate) fn fail(&mut self, why: Fatal, send: &mut Vec<u8>) -> Option<Event> {
        put_end(why, &self.head[..self.filled], send);
        self.phase = Phase::Closed;
        Some(Event::Close(CloseReason::Fault(why)))
    }

    fn on_head(&mut self, have: usize, send: &mut Vec<u8>) -> Option<Event> {
        let common = match Common::from_host(&self.head[..have], self.digests) {
            Ok(common) => common,
            Err(why) => return self.fail(why, send),
        };
        if have < common.head_bytes {
            self.phase = Phase::Head { need: common.head_bytes };
            return None;
        }
        if !is_whole(&self.head[..have], common.header_bytes, self.form_of(common.kind)) {
            return self.fail(Fatal::HeaderDigest, send);
        }
        self.digest = Crc32c::new();
        match (common.kind, &self.role) {
            (PDU_IC_REQ, Role::Fresh) => self.on_ic_request(send),
            (PDU_H2C_TERM, _) => {
                self.phase = Phase::Closed;
                Some(Event::Close(CloseReason::HostEnds))
            }
            (PDU_IC_REQ, _) | (_, Role::Fresh) => self.fail(Fatal::Sequence, send),
            (PDU_COMMAND, _) => self.on_command(common.data_bytes, send),
            (PDU_H2C_DATA, _) => self.on_data(common, send),
            _ => self.fail(Fatal::Field(0), send),
        }
    }

    /// Digests that a PDU of this kind has.
    fn form_of(&self, kind: u8) -> Digests {
        if matches!(kind, PDU_IC_REQ | PDU_H2C_TERM) { Digests::default() } else { self.digests }
    }

    fn on_ic_request(&mut self, send: &mut Vec<u8>) -> Option<Event> {
        if u16_at(&self.head, 8) != 0 {
            return self.fail(Fatal::Unsupported(8), send);
        }
        let (align, digests) = (self.head[10], self.head[11]);
        if align > 31 {
            return self.fail(Fatal::Field(10), send);
        }
        self.align = (usize::from(align) + 1) * 4;
        self.digests = Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
        put_ic_response(self.digests, send);
        self.role = Role::Unconnected;
        self.next_pdu();
        None
    }

    /// The command whose PDU arrives.
    pub(crate) fn command(&self) -> Command {
        Command::of(&self.head[COMMON..])
    }

    /// A command's head is there; `left` bytes of data follow.
    fn on_command(&mut self, left: u32, send: &mut Vec<u8>) -> Option<Event> {
        self.head_place = (self.head_place + 1) % self.depth;
        if left > INLINE_BYTES_MAX {
            return self.fail(Fatal::TooMuch, send);
        }
        match self.take(self.command(), left) {
            Taken::Done(event) if left == 0 => {
                self.next_pdu();
                event
            }
            Taken::Done(_) => self.fail(Fatal::TooMuch, send),
            Taken::Later if left == 0 => self.on_data_end(None, None, send),
            Taken::Later if left as usize <= GATHER_BYTES_MAX => {
                self.phase = Phase::Gather { slot: None, left };
                None
            }
            Taken::Asks(slot) => {
                self.next_pdu();
                let (open, form) = (self.open_at(slot), (self.digests, self.align));
                put_ready((open.id, u16::from(slot.0)), (0, open.length), form, send);
                None
            }
            Taken::Later => {
                self.phase = Phase::Skip { left, refused: Some(Status::SGL_LENGTH) };
                None
            }
            Taken::Payload(slot, event) => {
                self.filled = 0;
                self.phase = Phase::Payload { slot, left };
                Some(event)
            }
            Taken::Refused(status) if left == 0 => self.on_data_end(None, Some(status), send),
            Taken::Refused(status) => {
                self.phase = Phase::Skip { left, refused: Some(status) };
                None
            }
        }
    }

    fn on_data(&mut self, common: Common, send: &mut Vec<u8>) -> Option<Event> {
        let (id, tag, offset, length) = place(&self.head);
        let slot = u8::try_from(tag).ok().filter(|&tag| u16::from(tag) < DEPTH_MAX).map(Slot);
        let open = slot.and_then(|slot| self.open.get(slot));
        let (Some(slot), Some(open)) = (slot, open.filter(|open| open.asked && open.id == id))
        else {
            return self.fail(Fatal::Field(10), send);
        };
        if !offset.is_multiple_of(4) {
            return self.fail(Fatal::Field(12), send);
        }
        if length != common.data_bytes || length == 0 || !length.is_multiple_of(4) {
            return self.fail(Fatal::Field(16), send);
        }
        if length > crate::number::H2C_BYTES_MAX {
            return self.fail(Fatal::TooMuch, send);
        }
        if open.length.checked_sub(offset).is_none_or(|room| length > room) {
            return self.fail(Fatal::DataOutOfRange, send);
        }
        if offset != open.moved {
            return self.fail(Fatal::Sequence, send);
        }
        let left = open.length - open.moved;
        if (common.flags & FLAG_LAST != 0) != (length == left) {
            return self.fail(Fatal::Field(1), send);
        }
        let is_gathered = open.kind == OpenKind::Gathered;
        self.filled = 0;
        self.phase = if is_gathered {
            Phase::Gather { slot: Some(slot), left: length }
        } else {
            Phase::Payload { slot, left: length }
        };
        None
    }

    /// All data of a PDU is there; its digest may follow.
    fn on_data_end(
        &mut self,
        slot: Option<Slot>,
        refused: Option<Status>,
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        let had_data =
            matches!(self.phase, Phase::Gather { .. } | Phase::Skip { .. } | Phase::Payload { .. });
        if self.digests.data && had_data {
            // It is gathered where the PDU's first bytes were; of those behind them, a command, some are still needed.
            const { assert!(COMMON >= DIGEST_BYTES) };
            self.phase = Phase::Digest { slot, refused };
            self.filled = 0;
            return None;
        }
        self.finish(slot, refused, send)
    }

    fn on_digest(
        &mut self,
        slot: Option<Slot>,
        refused: Option<Status>,
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        let right = u32_at(&self.head, 0) == self.digest.finish();
        let refused = if right { refused } else { refused.or(Some(Status::TRANSPORT)) };
        if let (Some(slot), false) = (slot, right) {
            // Told once everything has come.
            self.open_at_mut(slot).damaged = true;
        }
        self.finish(slot, refused, send)
    }

    /// A PDU is complete.
    fn finish(
        &mut self,
        slot: Option<Slot>,
        refused: Option<Status>,
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        let event = match (slot, refused) {
            (Some(slot), _) => self.arrive(slot, send),
            (None, Some(status)) => {
                self.respond(self.command().id(), 0, status, send);
                None
            }
            (None, None) => self.act(self.command(), send),
        };
        self.next_pdu();
        event
    }

    /// Some data of an open command is there.
    fn arrive(&mut self, slot: Slot, send: &mut Vec<u8>) -> Option<Event> {
        let &Open { id, length, moved, damaged, .. } = self.open_at(slot);
        if moved < length {
            return None;
        }
        let Some(place) = self.gathered.iter().position(|one| one.slot == slot) else {
            return Some(Event::Arrived { slot, whole: !damaged });
        };
        let Gathered { command, data, .. } = self.gathered.swap_remove(place);
        self.open.remove(slot);
        if damaged {
            self.respond(id, 0, Status::TRANSPORT, send);
            return None;
        }
        self.data = data;
        self.act(command, send)
    }

    pub(crate) fn open_at(&self, slot: Slot) -> &Open {
        self.open.get(slot).expect("the slot is open")
    }

    pub(crate) fn open_at_mut(&mut self, slot: Slot) -> &mut Open {
        self.open.get_mut(slot).expect("the slot is open")
    }
}

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

//! One connection of an NVMe host, between its socket and the shards.
//!
//! The owner receives where [`NvmeConnection::receive_into`] says, hands the bytes in, carries out the
//! [`Demand`]s, hands answers in, and sends what [`NvmeConnection::take_send`] gives.
//!
//! Always:
//! - A piece lies between two multiples of [`PIECE_BYTES`](crate::PIECE_BYTES), hence in one extent.
//! - A write's data is asked for once there is a place for all of it; what comes with its command waits in the socket until
//!   then, unless data lies behind it that others wait for which have theirs. Where a read's answer goes is kept free before it begins.
//! - A write is handed on once all its data is there, and only if no digest says that it is damaged.
//! - A host whose session is lost gets errors until it connects anew.
//! - A host that is turned away is told so before anything is kept for it; of what came with its command, after that.
//! - A connection that began with TLS stays inside: what is received is taken from there only, and nothing is sent beside it.
//!
//! Not here: what comes from the host (`incoming`), what goes to it (`outgoing`), TLS itself (`psk_guard`).

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::ops::Range;

use base::{AnswerError, Instant};
use nvme::{
    CloseReason, Connection, Controller, Credentials, Examiner, Namespace, Notice, Refusal,
    Request, Service, Slot,
};
use sys::{Buffer, BufferPool, Outgoing, Piece, Psk, PskFault, Room};

use crate::nbd_connection::{Demand, Inputs};
use crate::psk_guard::{PskGuard, PskOffer};

/// Of what has data, its pieces: where they begin in it, and their bytes. `None` for a read: not there, or all zeroes.
type Parts = Vec<(u32, Option<Buffer>)>;

/// An open request.
#[derive(Default)]
struct Open {
    request: Option<Request>,
    /// Pieces submitted and not answered.
    waiting: u16,
    /// Pieces submitted so far.
    submitted: u16,
    /// Empty where nothing is open. Their room stays.
    parts: Parts,
    /// What is to be deallocated, or verified, and was not submitted yet.
    rest: VecDeque<Range<u64>>,
    /// Of what is read with FUA: it was not flushed yet.
    owes_flush: bool,
    /// When it was begun.
    came: Instant,
    failed: Option<AnswerError>,
    /// Of a comparison: something is not the same.
    differs: bool,
    /// Of what reads: for the pieces that have not come.
    room: Option<Room>,
}

/// What is left of a request that is to be answered.
struct Ended {
    request: Request,
    failed: Option<AnswerError>,
    differs: bool,
}

impl Open {
    /// Nothing is open in this place any more, but for its parts, which keep their room for the next.
    ///
    /// # Panics
    /// If nothing is.
    fn end(&mut self) -> Ended {
        (self.waiting, self.submitted, self.room) = (0, 0, None);
        self.owes_flush = false;
        self.rest.clear();
        Ended {
            request: self.request.take().expect("it is answered once"),
            failed: self.failed.take(),
            differs: std::mem::take(&mut self.differs),
        }
    }

    /// Whether its data is still to come from the host. A read has its parts from when they are submitted on, a write until
    /// then, a comparison all the time.
    fn arrives(&self) -> bool {
        self.submitted == 0 && !self.parts.is_empty()
    }
}

/// Where bytes are received.
#[derive(Clone, Copy)]
enum Receiving {
    /// Among other bytes.
    Input,
    /// Records of TLS.
    Records,
    /// In their place: which part of which write.
    Part { slot: Slot, part: usize, from: usize },
}

/// One connection of a host.
pub struct NvmeConnection {
    machine: Connection,
    inputs: Inputs,
    payload: BufferPool,
    /// 1 MiB of zeroes.
    zeroes: Buffer,
    input: Option<Buffer>,
    input_at: Range<usize>,
    receiving: Option<Receiving>,
    open: Vec<Open>,
    open_bytes: u64,
    /// Number of shards of the resource.
    flush_parts: u16,
    /// Requests that wait for memory.
    waiting: VecDeque<Request>,
    /// Requests of which more is to be submitted.
    unfinished: Vec<Slot>,
    starved: bool,
    lost: bool,
    /// This node can serve nobody now: its host is to ask by another path.
    turns_away: bool,
    /// To be sent: responses, and the data of reads.
    said: Outgoing,
    /// What goes behind the data that is put next.
    tail: Vec<u8>,
    /// Said and put before, until there is room for it in records.
    pieces: Vec<Piece>,
    unsent_bytes: u64,
    /// Of these, in records.
    sealed_bytes: u64,
    closed: Option<CloseReason>,
    /// Something has arrived, so it is known whether it is TLS.
    begun: bool,
    /// What TLS would be begun with.
    offer: Option<PskOffer>,
    guard: Option<Box<PskGuard>>,
    /// Why TLS ended it.
    broken: Option<PskFault>,
    /// The present moment.
    now: Instant,
}

impl NvmeConnection {
    /// A new connection; the host speaks first. `zeroes` is [`PIECE_BYTES`](crate::PIECE_BYTES) of zeroes, shared.
    #[must_use]
    pub fn new(inputs: Inputs, payload: BufferPool, zeroes: Buffer) -> NvmeConnection {
        let mut open = Vec::new();
        open.resize_with(usize::from(nvme::DEPTH_MAX), Open::default);
        NvmeConnection {
            machine: Connection::new(),
            inputs,
            payload,
            zeroes,
            input: None,
            input_at: 0..0,
            receiving: None,
            open,
            open_bytes: 0,
            flush_parts: 1,
            waiting: VecDeque::new(),
            unfinished: Vec::new(),
            starved: false,
            lost: false,
            turns_away: false,
            said: Outgoing::new(),
            tail: Vec::new(),
            pieces: Vec::new(),
            unsent_bytes: 0,
            sealed_bytes: 0,
            closed: None,
            begun: false,
            offer: None,
            guard: None,
            broken: None,
            now: Instant::default(),
        }
    }

    /// The host may begin with TLS; said before it has sent anything.
    #[must_use]
    pub fn with_tls(mut self, offer: PskOffer) -> NvmeConnection {
        self.offer = Some(offer);
        self
    }

    /// The identity that the host has shown to know a key of, and the key, if it is inside TLS.
    #[must_use]
    pub fn shown(&self) -> Option<(&str, &Psk)> {
        self.guard.as_ref().and_then(|guard| guard.shown())
    }

    /// Why TLS failed, or was ended by the host. Nothing is taken from it any more: send what is to be sent, which tells it, and
    /// close.
    #[must_use]
    pub fn broken(&self) -> Option<&PskFault> {
        self.broken.as_ref()
    }

    /// The controller, on its administration queue.
    #[must_use]
    pub fn controller(&self) -> Option<&Controller> {
        self.machine.controller()
    }

    /// Whether the host has connected to something, and proved who it is if it has to.
    #[must_use]
    pub fn entered(&self) -> bool {
        self.machine.is_connected()
    }

    /// Whether it waits for a buffer: call [`NvmeConnection::proceed`] when some may be free.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// Whether it holds memory that only its host can free: by sending the rest of a write's data, or by taking what was
    /// sent.
    #[must_use]
    pub fn waits_for_client(&self) -> bool {
        self.unsent_bytes > 0 || self.open.iter().any(Open::arrives)
    }

    /// From now on what its requests carry is taken from this pool.
    pub fn draw_from(&mut self, payload: BufferPool) {
        self.payload = payload;
    }

    /// From now on what it sends is received in these.
    pub(crate) fn receive_in(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// Why nothing more is taken from the host.
    #[must_use]
    pub fn finished(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Requests without an answer.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.machine.open_count()
    }

    /// The host has to prove who it is before anything else: said before it is let in.
    pub fn requires(&mut self, examiner: Examiner) {
        self.machine.requires(examiner);
    }

    /// Whether the host has to prove who it is, and has not.
    #[must_use]
    pub fn is_to_prove(&self) -> bool {
        self.machine.is_to_prove()
    }

    /// What is known of the host is another from now on: by that it proves again, if it does.
    pub fn renew(&mut self, credentials: &Credentials) {
        self.machine.renew(credentials);
    }

    /// It becomes the administration queue of a controller.
    pub fn administrates(&mut self, controller: Controller) {
        self.machine.administrates(controller, self.said.bytes());
    }

    /// It becomes a queue for I/O of the controller `id`, on volumes of so many shards.
    pub fn serves(&mut self, id: u16, namespaces: Vec<Namespace>, flush_parts: u16) {
        self.flush_parts = flush_parts;
        self.machine.serves(id, namespaces, self.said.bytes());
    }

    /// The host is not let in.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.closed = Some(self.machine.refuse(refusal, self.said.bytes()));
    }

    /// Whether what the host was told of the resource is not so any more.
    #[must_use]
    pub fn serves_other(&self, service: &Service) -> bool {
        self.controller().map_or_else(
            || self.entered() && service.namespaces() != self.machine.namespaces(),
            |controller| controller.service() != service,
        )
    }

    /// The resource is not what it was.
    pub fn change(&mut self, service: &Service) {
        self.machine.change(service, self.said.bytes());
    }

    /// Another host did something to the registration of this one.
    pub fn notify(&mut self, namespace: u32, notice: Notice) {
        self.machine.notify(namespace, notice, self.said.bytes());
    }

    /// What this host has seen is not so any more: from now on it is refused until it connects anew.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether what is asked from now on is answered with *inaccessible*, so that the host asks by another path at once. What is open
    /// stays so until its pieces are answered.
    pub fn turn_away(&mut self, turns_away: bool) {
        self.turns_away = turns_away;
    }

    /// When the host is given up if it stays silent.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        self.controller().and_then(Controller::expires_at)
    }
}

#[cfg(test)]
mod tests;

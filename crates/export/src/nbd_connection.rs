//! One NBD client's connection, between its socket and the shards.
//!
//! The owner receives where [`NbdConnection::receive_into`] says, hands the bytes in, carries out the
//! [`Demand`]s, hands answers in, and sends what [`NbdConnection::take_send`] gives.
//!
//! Always:
//! - A piece lies between two multiples of [`PIECE_BYTES`], hence in one extent; a zeroing between two
//!   multiples of an extent.
//! - At most [`nbd::REQUESTS_OPEN_MAX`] requests are open. No request is begun while more than
//!   [`BYTES_OPEN_MAX`] are open or more than [`UNSENT_BYTES_MAX`] wait to be sent; nothing is looked at while more than
//!   [`SAID_BYTES_MAX`] of these are no data.
//! - The room for what a read answers is taken before it begins; what it answers with is charged to that until it
//!   has left. So whoever takes no answers holds what is clients', and nothing that disks and peers need.
//! - A zeroing is with the shards in parts: `ZEROES_MAX` pieces at once.
//! - A client always has a buffer to receive requests in.
//! - A client that was told that its session is lost is told so again until it opens anew.
//! - A client that moves gets no answer for a write that came too late by this way: the connection ends, and it sends that anew.
//!
//! - What is received after TLS began is taken from inside TLS only, and nothing is sent beside it.
//!
//! Not here: what comes from the client (`incoming`), what goes to it (`outgoing`), TLS itself (`guard`).

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::ops::Range;

use base::{AnswerError, Duration, Instant, Op, ReservationCommand, Span, VolumeId};
use link::{Claims, LinkError};
use nbd::{CloseReason, ExportInfo, Refusal, Request, Server, Slot, Tls};
use sys::{Buffer, BufferPool, Outgoing, Piece, Room};

use crate::guard::Guard;
use crate::pieces::PIECE_BYTES;

/// Bytes of reads and writes that one client may have open before no further request is begun: four
/// times the depth of 64 with 128 KiB. One request of 32 MiB may come on top.
pub const BYTES_OPEN_MAX: u64 = 32 << 20;

/// Bytes of answers that wait for a client before nothing more is read from it.
pub const UNSENT_BYTES_MAX: u64 = 32 << 20;

/// The same of what is said, which is no data of reads and has no room of its own: 65 536 plain replies. A client that asks on
/// and takes nothing holds no more, and what one request or one list of exports says on top.
pub(crate) const SAID_BYTES_MAX: u64 = 1 << 20;

/// The most that is said about where a range has holes.
const HOLES_BYTES_MAX: u64 = (nbd::EXTENTS_MAX * 8) as u64;

/// Bytes received at once where requests are expected: sixteen writes of 4 KiB with their headers.
const RECEIVE_BYTES: usize = 64 << 10;

/// The same where there are many clients: the smallest buffer there is.
const RECEIVE_SMALL_BYTES: usize = 4 << 10;

/// Bytes of large buffers that all clients receive in, at most: 64 of them.
const RECEIVE_LARGE_TOTAL_BYTES: usize = 4 << 20;

/// Bytes of records on their way to a client, at most, but for one piece; the rest is enciphered when they have
/// left. More would only be copies.
pub(crate) const SEALED_BYTES_MAX: u64 = 1 << 20;

/// Pieces of one zeroing that are with the shards at once. A client may ask for 4 GiB in each of its requests: all pieces
/// of these together would keep everybody else from their turn.
const ZEROES_MAX: usize = 64;

/// After so long what is left of a trim is left as it is: whoever asks for one only says that it needs no more what is there. Linux's
/// client gives a request up that has no answer for ten seconds, asks for all of it again, and would never end.
const TRIM_LIMIT: Duration = Duration::from_secs(3);

/// Bytes of options that a client may send before it is known, by its certificate or by having opened
/// an export. A client that means it sends some hundred.
pub const HAGGLE_BYTES_MAX: usize = 4 << 10;

/// Bytes taken from inside TLS at once where requests are expected: so few that payload is copied
/// to its place and nowhere else.
pub(crate) const GUARDED_BYTES: usize = 4 << 10;

/// Bytes of replies on their way to clients that lie in buffers, at most: a buffer for each of 1024 sends. Further ones are in memory
/// of their own.
const REPLIES_TOTAL_BYTES: usize = 4 << 20;

/// Where clients' requests are received: the first clients in large buffers, all others in small ones. And where replies to them
/// lie that are on their way.
#[derive(Clone)]
pub struct Inputs {
    large: BufferPool,
    all: BufferPool,
    replies: BufferPool,
}

impl Inputs {
    /// Enough for so many clients.
    #[must_use]
    pub fn new(clients_max: usize) -> Inputs {
        // Inside TLS there are two: one for records, one for what is in them.
        let small_bytes = clients_max * (RECEIVE_SMALL_BYTES + GUARDED_BYTES);
        let all = BufferPool::new(RECEIVE_LARGE_TOTAL_BYTES + small_bytes);
        let replies = BufferPool::new(REPLIES_TOTAL_BYTES);
        Inputs { large: all.below(RECEIVE_LARGE_TOTAL_BYTES), all, replies }
    }

    pub(crate) fn replies(&self) -> &BufferPool {
        &self.replies
    }

    pub(crate) fn take(&self) -> Option<Buffer> {
        self.large.take(RECEIVE_BYTES).or_else(|| self.all.take(RECEIVE_SMALL_BYTES))
    }

    pub(crate) fn take_guarded(&self) -> Option<Buffer> {
        self.all.take(GUARDED_BYTES)
    }
}

/// Names a piece of a request of this connection until it is answered.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tag {
    /// Place of the request in the connection's table, below 128.
    pub slot: u8,
    /// Number of the piece in the request.
    pub piece: u16,
}

/// A piece of a request, for one shard.
#[derive(Debug)]
pub struct Ask {
    /// Comes back with the answer.
    pub tag: Tag,
    /// What.
    pub op: Op,
    /// Of which volume; `None`: the one that the client opened.
    pub volume: Option<VolumeId>,
    /// Which shard a flush is for; each other piece is for the shard that has its sectors.
    pub shard: u16,
    /// Which sectors; of a flush the first.
    pub span: Span,
    /// The bytes of a write.
    pub buffer: Option<Buffer>,
    /// Survives a power cut once answered.
    pub fua: bool,
    /// When it came, of a client that may ask elsewhere; `None`: just now.
    pub came: Option<Instant>,
}

/// What a connection needs of its owner, to be carried out in order.
#[derive(Debug)]
pub enum Demand {
    /// Look up an export; answer by [`NbdConnection::found`] or [`NbdConnection::refuse`].
    Lookup {
        /// As the client wrote it.
        name: String,
        /// If found, the client opens it.
        enters: bool,
    },
    /// Which exports are there? Answer by [`NbdConnection::exports`].
    List,
    /// Carry this out; answer by [`NbdConnection::answer`].
    Ask(Ask),
    /// Which parts are holes? Answer by [`NbdConnection::holes`].
    Holes {
        /// Comes back with the answer.
        tag: Tag,
        /// Bytes of the export.
        range: Range<u64>,
    },
    /// An NVMe host asks for a queue: answer by [`crate::NvmeConnection::administrates`],
    /// [`crate::NvmeConnection::serves`] or [`crate::NvmeConnection::refuse`].
    Connect(nvme::Connect),
    /// An NVMe host asks who may use a volume, or changes it: answer by [`crate::NvmeConnection::answer_reserve`].
    Reserve {
        /// Comes back with the answer.
        tag: Tag,
        /// Which volume.
        volume: VolumeId,
        /// What it asks for.
        command: ReservationCommand,
    },
    /// An NVMe host switched its controller on or off.
    Switched,
    /// An NVMe host that had to has proved that it knows this secret, on this queue.
    Proved(nvme::Secret),
}

/// An open request.
#[derive(Default)]
struct Open {
    request: Option<(Slot, Request)>,
    /// Pieces submitted and not answered.
    waiting: u16,
    /// Pieces submitted so far.
    submitted: u16,
    /// Every piece is submitted.
    complete: bool,
    /// Of a zeroing: what was not submitted yet.
    rest: Range<u64>,
    /// When it came.
    came: Instant,
    failed: Option<AnswerError>,
    /// Of a read, by piece: `None` is all zeroes. Empty where nothing is open.
    data: Vec<Option<Buffer>>,
    /// Of a read: for the pieces that have not come.
    room: Option<Room>,
}

/// A write's payload that is arriving.
struct Arriving {
    slot: Slot,
    /// `None` while the owner fills it.
    buffer: Option<Buffer>,
    filled: usize,
    length: usize,
    /// Where on the export the buffer's first byte belongs.
    offset_bytes: u64,
}

/// One client.
pub struct NbdConnection {
    server: Server,
    inputs: Inputs,
    /// What its requests carry, and what is enciphered for it.
    payload: BufferPool,
    /// 1 MiB of zeroes, for clients that cannot be told of holes.
    zeroes: Buffer,
    /// Bytes received and not used yet.
    input: Option<Buffer>,
    input_at: Range<usize>,
    arriving: Option<Arriving>,
    /// Where, and how long, the rest of the machine's piece is, which a boundary of ours cut in two.
    rest: Option<(u64, u32)>,
    /// The owner has a buffer to fill.
    receiving: bool,
    open: Vec<Open>,
    /// Zeroings of which more is to be submitted.
    unfinished: Vec<Slot>,
    open_bytes: u64,
    flush_parts: u16,
    entered: bool,
    lost: bool,
    /// What has no answer when the connection ends it sends anew, here or elsewhere.
    moves: bool,
    /// Of one that moves: it is to go another way.
    sent_off: bool,
    /// A buffer was not to be had: try again when some are free.
    starved: bool,
    /// A read that waits for room.
    roomless: Option<Request>,
    /// To be sent: replies, and what they bring.
    said: Outgoing,
    /// The same, of before, until there is room for it in records.
    pieces: Vec<Piece>,
    unsent_bytes: u64,
    /// Of what was taken to be sent, what was said. Inside TLS: until it is in records.
    taken_bytes: u64,
    /// Outside TLS, of each time that something was taken: how much of it is left to be sent, and how much of that was said.
    taken: VecDeque<(u64, u64)>,
    /// What will be said about holes that are looked for, at most.
    promised_bytes: u64,
    /// Of those that are not sent, in records.
    sealed_bytes: u64,
    closed: Option<CloseReason>,
    /// What TLS would be begun with.
    offer: Option<link::Config>,
    guard: Option<Box<Guard>>,
    /// Why TLS, or the limits of strangers, ended it.
    broken: Option<LinkError>,
    /// Bytes of options taken so far.
    haggled: usize,
    /// The present moment.
    now: Instant,
    /// What is looked at came so long ago.
    age: Duration,
}

impl NbdConnection {
    /// A new connection, whose greeting is to be sent. What its requests carry is taken from `payload`, see
    /// [`NbdConnection::draw_from`]. `zeroes` is [`PIECE_BYTES`] of zeroes, shared.
    #[must_use]
    pub fn new(inputs: Inputs, payload: BufferPool, zeroes: Buffer) -> NbdConnection {
        NbdConnection::greet(inputs, payload, zeroes, Tls::Absent, None)
    }

    /// The same, whose client may switch to TLS, or has to if that is `required`; `offer` says who
    /// this node is and whom it lets in.
    #[must_use]
    pub fn with_tls(
        inputs: Inputs,
        payload: BufferPool,
        zeroes: Buffer,
        offer: link::Config,
        required: bool,
    ) -> NbdConnection {
        let tls = if required { Tls::Required } else { Tls::Offered };
        NbdConnection::greet(inputs, payload, zeroes, tls, Some(offer))
    }

    fn greet(
        inputs: Inputs,
        payload: BufferPool,
        zeroes: Buffer,
        tls: Tls,
        offer: Option<link::Config>,
    ) -> NbdConnection {
        let mut said = Outgoing::new();
        let server = Server::new(tls, said.bytes());
        let mut open = Vec::new();
        open.resize_with(nbd::REQUESTS_OPEN_MAX, Open::default);
        NbdConnection {
            server,
            inputs,
            payload,
            zeroes,
            input: None,
            input_at: 0..0,
            arriving: None,
            rest: None,
            receiving: false,
            open,
            unfinished: Vec::new(),
            open_bytes: 0,
            flush_parts: 1,
            entered: false,
            lost: false,
            moves: false,
            sent_off: false,
            starved: false,
            roomless: None,
            said,
            pieces: Vec::new(),
            unsent_bytes: 0,
            taken_bytes: 0,
            taken: VecDeque::new(),
            promised_bytes: 0,
            sealed_bytes: 0,
            closed: None,
            offer,
            guard: None,
            broken: None,
            haggled: 0,
            now: Instant::default(),
            age: Duration(0),
        }
    }

    /// Who the client is, once its certificate is verified.
    #[must_use]
    pub fn claims(&self) -> Option<&Claims> {
        self.guard.as_ref().and_then(|guard| guard.claims())
    }

    /// Bytes that the client sent until its certificate was verified.
    #[must_use]
    pub fn handshake_bytes(&self) -> usize {
        self.guard.as_ref().map_or(0, |guard| guard.handshake_bytes())
    }

    /// Why TLS failed, or that a stranger sent too much. Nothing is taken from the client any more:
    /// send what is to be sent, which tells it why, and close.
    #[must_use]
    pub fn broken(&self) -> Option<&LinkError> {
        self.broken.as_ref()
    }

    /// Whether the client has opened an export.
    #[must_use]
    pub fn entered(&self) -> bool {
        self.entered
    }

    /// Whether it waits for a buffer: call [`NbdConnection::proceed`] when some may be free.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// Whether it holds memory that only its client can free: by sending the rest of a write's payload, or by taking
    /// what was sent.
    #[must_use]
    pub fn waits_for_client(&self) -> bool {
        self.unsent_bytes > 0 || (self.arriving.is_some() && self.receiving)
    }

    /// From now on what its requests carry is taken from this pool: the part of the volume that it opened.
    pub fn draw_from(&mut self, payload: BufferPool) {
        if let Some(guard) = &mut self.guard {
            guard.set_pool(&payload);
        }
        self.payload = payload;
    }

    /// From now on what it sends is received in these.
    pub(crate) fn receive_in(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// Why nothing more is taken from the client, once everything open is answered and taken to send.
    #[must_use]
    pub fn finished(&self) -> Option<CloseReason> {
        self.closed.filter(|_| {
            self.server.open_count() == 0 || self.closed != Some(CloseReason::ClientDone)
        })
    }

    /// Requests without an answer.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.server.open_count()
    }

    /// No further request is taken: the resource goes away, or the node stops.
    pub fn shut_down(&mut self) {
        self.server.shut_down();
    }

    /// The client has several ways to the volume: it moves to another node by itself, and sends there what has no answer here.
    pub fn moves(&mut self) {
        self.moves = true;
    }

    /// What is taken from it next lay unread for so long, until now.
    pub fn lay_unread(&mut self, age: Duration) {
        self.age = age;
    }

    /// Whether a client that moves is to go another way, or to come back by this one: nothing more is taken from it.
    #[must_use]
    pub fn is_sent_off(&self) -> bool {
        self.sent_off
    }

    /// The volume has a new size.
    pub fn resized(&mut self, size_bytes: u64) {
        if self.entered {
            self.server.resized(size_bytes);
        }
    }

    /// What this client has seen is not so any more: from now on it is refused until it opens anew.
    pub fn lose(&mut self) {
        self.lost = true;
        self.server.shut_down();
    }

    /// The export that was looked up; `flush_parts` is its number of shards.
    pub fn found(&mut self, info: &ExportInfo, enters: bool, flush_parts: u16) {
        self.flush_parts = flush_parts;
        self.entered |= enters;
        self.server.export_found(info, self.said.bytes());
    }

    /// The export that was looked up is not to be had.
    pub fn refuse(&mut self, refusal: Refusal, message: &str) {
        if let Some(reason) = self.server.refuse(refusal, message, self.said.bytes()) {
            self.closed = Some(reason);
        }
    }

    /// The exports there are: name and description.
    pub fn exports<'a>(&mut self, exports: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.server.exports(exports, self.said.bytes());
    }
}

#[cfg(test)]
mod tests;

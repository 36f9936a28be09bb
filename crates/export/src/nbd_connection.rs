//! One NBD client's connection, between its socket and the shards.
//!
//! The owner receives where [`NbdConnection::receive_into`] says, hands the bytes in, carries out the
//! [`Demand`]s, hands answers in, and sends what [`NbdConnection::take_send`] gives.
//!
//! Always:
//! - A piece lies between two multiples of [`PIECE_BYTES`], hence in one extent; a zeroing between two
//!   multiples of an extent.
//! - At most [`nbd::REQUESTS_OPEN_MAX`] requests are open. No request is begun while more than
//!   [`BYTES_OPEN_MAX`] are open or more than [`UNSENT_BYTES_MAX`] wait to be sent.
//! - A client that was told that its session is lost is told so again until it opens anew.
//!
//! - What is received after TLS began is taken from inside TLS only, and nothing is sent beside it.
//!
//! Not here: TLS itself (`guard`).

use std::ops::Range;

use base::{AnswerError, Op, SECTOR_BYTES, Span};
use link::{Claims, LinkError};
use nbd::{
    CloseReason, Content, ErrorCode, Event, ExportInfo, Extent, Refusal, Request, Server, Slot,
    Tls, Want,
};
use sys::{Buffer, BufferPool, Piece};

use crate::guard::Guard;

/// Pieces of reads and writes never cross a multiple of this: the largest buffer there is.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Pieces of zeroings never cross a multiple of this: an extent, the most that one shard takes.
const ZERO_BYTES: u64 = 4 << 20;

/// Bytes of reads and writes that one client may have open before no further request is begun: four
/// times the depth of 64 with 128 KiB. One request of 32 MiB may come on top.
pub const BYTES_OPEN_MAX: u64 = 32 << 20;

/// Bytes of answers that wait for a client before nothing more is read from it.
pub const UNSENT_BYTES_MAX: u64 = 32 << 20;

/// Bytes received at once where requests are expected: sixteen writes of 4 KiB with their headers.
const RECEIVE_BYTES: usize = 64 << 10;

/// Bytes of options that a client may send before it is known, by its certificate or by having opened
/// an export. A client that means it sends some hundred.
pub const HAGGLE_BYTES_MAX: usize = 4 << 10;

/// Bytes taken from inside TLS at once where requests are expected: so few that payload is copied
/// to its place and nowhere else.
const GUARDED_BYTES: usize = 4 << 10;

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
    /// Which sectors. For a flush the first sector: it goes to the shard with the piece's number.
    pub span: Span,
    /// The bytes of a write.
    pub buffer: Option<Buffer>,
    /// Survives a power cut once answered.
    pub fua: bool,
}

/// What the connection needs of its owner, to be carried out in order.
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
    failed: Option<AnswerError>,
    /// Of a read, by piece: `None` is all zeroes.
    data: Vec<Option<Buffer>>,
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
    pool: BufferPool,
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
    open_bytes: u64,
    flush_parts: u16,
    entered: bool,
    lost: bool,
    /// A buffer was not to be had: try again when some are free.
    starved: bool,
    head: Vec<u8>,
    pieces: Vec<Piece>,
    unsent_bytes: u64,
    closed: Option<CloseReason>,
    /// What TLS would be begun with.
    offer: Option<link::Config>,
    guard: Option<Box<Guard>>,
    /// Why TLS, or the limits of strangers, ended it.
    broken: Option<LinkError>,
    /// Bytes of options taken so far.
    haggled: usize,
}

impl NbdConnection {
    /// A new connection, whose greeting is to be sent. `zeroes` is [`PIECE_BYTES`] of zeroes, shared.
    #[must_use]
    pub fn new(pool: BufferPool, zeroes: Buffer) -> NbdConnection {
        NbdConnection::greet(pool, zeroes, Tls::Absent, None)
    }

    /// The same, whose client may switch to TLS, or has to if that is `required`; `offer` says who
    /// this node is and whom it lets in.
    #[must_use]
    pub fn with_tls(
        pool: BufferPool,
        zeroes: Buffer,
        offer: link::Config,
        required: bool,
    ) -> NbdConnection {
        let tls = if required { Tls::Required } else { Tls::Offered };
        NbdConnection::greet(pool, zeroes, tls, Some(offer))
    }

    fn greet(
        pool: BufferPool,
        zeroes: Buffer,
        tls: Tls,
        offer: Option<link::Config>,
    ) -> NbdConnection {
        let mut head = Vec::new();
        let server = Server::new(tls, &mut head);
        let mut open = Vec::new();
        open.resize_with(nbd::REQUESTS_OPEN_MAX, Open::default);
        NbdConnection {
            server,
            pool,
            zeroes,
            input: None,
            input_at: 0..0,
            arriving: None,
            rest: None,
            receiving: false,
            open,
            open_bytes: 0,
            flush_parts: 1,
            entered: false,
            lost: false,
            starved: false,
            head,
            pieces: Vec::new(),
            unsent_bytes: 0,
            closed: None,
            offer,
            guard: None,
            broken: None,
            haggled: 0,
        }
    }

    /// Who the client is, once its certificate is verified.
    #[must_use]
    pub fn claims(&self) -> Option<&Claims> {
        self.guard.as_ref().and_then(|guard| guard.claims())
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

    /// The volume has a new size.
    pub fn resized(&mut self, size_bytes: u64) {
        if self.entered {
            self.server.resized(size_bytes);
        }
    }

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
        let Some(buffer) = self.input.take().or_else(|| self.pool.take(RECEIVE_BYTES)) else {
            self.starved = true;
            return None;
        };
        self.input_at = 0..0;
        self.receiving = true;
        Some((buffer, 0..RECEIVE_BYTES))
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
        let Some(buffer) = guard.take_buffer().or_else(|| self.pool.take(RECEIVE_BYTES)) else {
            self.starved = true;
            return None;
        };
        self.receiving = true;
        Some((buffer, 0..RECEIVE_BYTES))
    }

    /// Nothing more is taken from the client.
    fn is_over(&self) -> bool {
        self.closed.is_some() || self.broken.is_some()
    }

    /// `count` bytes have arrived in the buffer that [`NbdConnection::receive_into`] gave.
    ///
    /// # Panics
    /// If the buffer did not come from there.
    pub fn received(&mut self, buffer: Buffer, count: usize, demands: &mut Vec<Demand>) {
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
        self.proceed(demands);
    }

    /// Goes on with what has arrived, as far as limits allow.
    pub fn proceed(&mut self, demands: &mut Vec<Demand>) {
        self.starved = false;
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
            && (self.unsent_bytes > UNSENT_BYTES_MAX || self.open_bytes > BYTES_OPEN_MAX)
    }

    /// Takes from inside TLS what the machine wants next; false if nothing is there.
    fn refill(&mut self) -> bool {
        let Want::Header { bytes } = self.server.wants() else { return false };
        if self.input.is_none() {
            self.input = self.pool.take(GUARDED_BYTES);
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
        self.flush_head();
        let offer = self.offer.take().expect("TLS was offered, and begins once");
        let clear = std::mem::take(&mut self.pieces);
        match Guard::new(&offer, &self.pool, clear) {
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
        let fed = self.server.feed(&input[self.input_at.clone()], &mut self.head);
        self.input_at.start += fed.consumed;
        if !self.entered && self.claims().is_none() {
            self.haggled += fed.consumed;
            if self.haggled > HAGGLE_BYTES_MAX {
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
        let open = &mut self.open[slot.index()];
        *open = Open { request: Some((slot, request)), ..Open::default() };
        let end = request.offset_bytes + u64::from(request.length_bytes);
        match request.op {
            nbd::Op::Write => self.open_bytes += u64::from(request.length_bytes),
            nbd::Op::Read { .. } => {
                self.open_bytes += u64::from(request.length_bytes);
                self.submit_all(slot, Op::Read, request.offset_bytes, end, PIECE_BYTES, demands);
            }
            nbd::Op::Zero { no_hole, .. } => {
                let op = Op::Zero { unmap: !no_hole };
                self.submit_all(slot, op, request.offset_bytes, end, ZERO_BYTES, demands);
            }
            nbd::Op::Trim => {
                let op = Op::Zero { unmap: true };
                self.submit_all(slot, op, request.offset_bytes, end, ZERO_BYTES, demands);
            }
            nbd::Op::Flush => {
                for _ in 0..self.flush_parts {
                    self.submit(slot, Op::Flush, 0, SECTOR_BYTES, None, demands);
                }
                self.submitted(slot);
            }
            nbd::Op::BlockStatus { .. } => {
                open.waiting = 1;
                let slot = u8::try_from(slot.index()).expect("below 128");
                let range = request.offset_bytes..end;
                demands.push(Demand::Holes { tag: Tag { slot, piece: 0 }, range });
            }
        }
    }

    /// Submits a request without payload in pieces that end at multiples of `unit`.
    fn submit_all(
        &mut self,
        slot: Slot,
        op: Op,
        offset_bytes: u64,
        end: u64,
        unit: u64,
        demands: &mut Vec<Demand>,
    ) {
        let mut at = offset_bytes;
        while at < end {
            let piece_end = (at / unit + 1).saturating_mul(unit).min(end);
            self.submit(slot, op, at, piece_end - at, None, demands);
            at = piece_end;
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
        let (_, request) = open.request.as_ref().expect("the request is open");
        let count = u32::try_from(length_bytes / SECTOR_BYTES).expect("a piece is a few MiB");
        let span =
            Span::new(offset_bytes / SECTOR_BYTES, count).expect("checked to be in the export");
        let tag =
            Tag { slot: u8::try_from(slot.index()).expect("below 128"), piece: open.submitted };
        let fua = request.fua;
        open.submitted += 1;
        open.waiting += 1;
        if op == Op::Read {
            open.data.push(None);
        }
        demands.push(Demand::Ask(Ask { tag, op, span, buffer, fua }));
    }

    fn submitted(&mut self, slot: Slot) {
        self.open[slot.index()].complete = true;
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
        let Some(buffer) = self.pool.take(count as usize) else { return false };
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
            self.settle(slot);
        }
    }

    /// The export that was looked up; `flush_parts` is its number of shards.
    pub fn found(&mut self, info: &ExportInfo, enters: bool, flush_parts: u16) {
        self.flush_parts = flush_parts;
        self.entered |= enters;
        self.server.export_found(info, &mut self.head);
    }

    /// The export that was looked up is not to be had.
    pub fn refuse(&mut self, refusal: Refusal, message: &str) {
        if let Some(reason) = self.server.refuse(refusal, message, &mut self.head) {
            self.closed = Some(reason);
        }
    }

    /// The exports there are: name and description.
    pub fn exports<'a>(&mut self, exports: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.server.exports(exports, &mut self.head);
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
        let end = request.offset_bytes + u64::from(request.length_bytes);
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
        self.server.reply_extents(slot, &extents, &mut self.head);
    }

    /// Replies if every piece is answered.
    fn settle(&mut self, slot: Slot) {
        let open = &mut self.open[slot.index()];
        if open.waiting > 0 || !open.complete {
            return;
        }
        let Open { request, failed, data, .. } = std::mem::take(open);
        let (_, request) = request.expect("it is open");
        if matches!(request.op, nbd::Op::Read { .. } | nbd::Op::Write) {
            self.open_bytes -= u64::from(request.length_bytes);
        }
        if failed == Some(AnswerError::SessionLost) && !self.lost {
            self.lost = true;
            self.server.shut_down();
        }
        if let Some(error) = failed {
            let code = ErrorCode::from(error);
            let closed = self.server.reply_error(slot, code, words(error), &mut self.head);
            self.closed = self.closed.or(closed);
        } else if let nbd::Op::Read { whole } = request.op {
            self.reply_data(&request, whole, data);
        } else {
            self.server.reply_done(slot, &mut self.head);
        }
    }

    fn reply_data(&mut self, request: &Request, whole: bool, data: Vec<Option<Buffer>>) {
        let slot = request.slot;
        if whole && data.iter().any(Option::is_some) {
            let length = request.length_bytes;
            let follows = self.server.reply_read(slot, 0, length, Content::Data, &mut self.head);
            assert!(follows, "data always follow");
            self.for_each_piece(request, data, |this, _, length, buffer| this.put(buffer, length));
            return;
        }
        if whole {
            let length = request.length_bytes;
            let follows = self.server.reply_read(slot, 0, length, Content::Zeroes, &mut self.head);
            if follows {
                self.for_each_piece(request, data, |this, _, length, _| this.put(None, length));
            }
            return;
        }
        self.for_each_piece(request, data, |this, offset, length, buffer| {
            let content = if buffer.is_some() { Content::Data } else { Content::Zeroes };
            if this.server.reply_read(slot, offset, length, content, &mut this.head) {
                this.put(buffer, length);
            }
        });
    }

    /// Calls `what` with offset in the request, length and bytes of each piece of a read.
    fn for_each_piece(
        &mut self,
        request: &Request,
        data: Vec<Option<Buffer>>,
        mut what: impl FnMut(&mut NbdConnection, u32, u32, Option<Buffer>),
    ) {
        let end = request.offset_bytes + u64::from(request.length_bytes);
        let mut at = request.offset_bytes;
        for buffer in data {
            let piece_end = ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(end);
            let small = |bytes: u64| u32::try_from(bytes).expect("a read is at most 32 MiB");
            what(self, small(at - request.offset_bytes), small(piece_end - at), buffer);
            at = piece_end;
        }
    }

    /// Sends the buffer's bytes, or zeroes, behind what was said so far.
    fn put(&mut self, buffer: Option<Buffer>, length: u32) {
        let length = length as usize;
        let buffer = buffer.unwrap_or_else(|| self.zeroes.clone());
        self.flush_head();
        self.unsent_bytes += u64::from(u32::try_from(length).expect("at most a piece"));
        self.pieces.push(Piece::part(&buffer, 0..length));
    }

    fn flush_head(&mut self) {
        if !self.head.is_empty() {
            self.unsent_bytes += u64::try_from(self.head.len()).expect("a few bytes");
            self.pieces.push(Piece::from(std::mem::take(&mut self.head)));
        }
    }

    /// What is to be sent now, in order; empty if nothing is. To be followed by
    /// [`NbdConnection::sent`] for all its bytes.
    pub fn take_send(&mut self) -> Vec<Piece> {
        self.flush_head();
        let pieces = std::mem::take(&mut self.pieces);
        let ends = self.finished().is_some();
        let Some(guard) = &mut self.guard else { return pieces };
        let plain_bytes = count_bytes(&pieces);
        let sealed = guard.seal(pieces, ends);
        // What began in the clear was counted when it was said.
        self.unsent_bytes += count_bytes(&sealed.records);
        self.unsent_bytes -= plain_bytes;
        let mut pieces = sealed.clear;
        pieces.extend(sealed.records);
        pieces
    }

    /// So many bytes have left.
    pub fn sent(&mut self, bytes: u64) {
        self.unsent_bytes -= bytes;
    }
}

fn count_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::try_from(piece.len()).expect("memory is smaller")).sum()
}

/// An error in words, for clients that can show them.
fn words(error: AnswerError) -> &'static str {
    match error {
        AnswerError::OutOfRange => "outside the volume, or not aligned to its blocks",
        AnswerError::NoQuorum => "no quorum, and the resource is told to fail then",
        AnswerError::Io => "no reachable replica could do it",
        AnswerError::SessionLost => "writes may be lost: every cache was lost; open it anew",
        AnswerError::Gone => "the resource is being removed, or the node is stopping",
    }
}

#[cfg(test)]
mod tests;

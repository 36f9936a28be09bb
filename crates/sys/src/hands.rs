//! The door: queue operations, wait once, get what finished.
//!
//! A turn of the owner's loop is: act on events, which queues operations; call [`Hands::wait`]. The
//! wait submits the whole batch with one system call (io_uring) and returns completions. Sends to
//! one socket that were queued in one turn leave together.
//!
//! What always holds: see the crate's head. How completions turn into events is in `settle`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;

use base::{Duration, Instant};

use crate::buffer::{Buffer, Piece};
use crate::descriptor::{Descriptor, File, Handle, Listener, Socket};
use crate::epoll::Epoll;
use crate::errno::{Errno, check};
use crate::host;
use crate::operation::{Completion, Operation, Start, ZeroStage, Zeroing};
use crate::pool::BufferPool;
use crate::socket::{self, RawAddress, SocketAddress};
use crate::streams::{SendBatch, SendQueue};
use crate::uring::Uring;
use crate::wake::Waker;

/// Operations in flight at most, queued sends included, per thread: 64 connections with 256
/// requests each. One more is answered [`Errno::NO_BUFFERS`] on a socket. On files three quarters of them may be under
/// way, and one more waits: a disk that was not asked has not failed.
pub const OPERATIONS_MAX: usize = 16_384;

/// Entries of the submission ring: a full batch rarely exceeds it; if it does, it is handed over
/// in several calls.
const RING_ENTRIES: u32 = 1024;

/// Bytes of zeroes that are written at once where nothing cheaper works.
const ZEROES_BYTES: usize = 1 << 20;

/// After this long, operations that do not end when `Hands` is dropped are left to leak.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often it is looked which operations on files take long.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Which engine moves the hands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EngineChoice {
    /// io_uring where the kernel offers all that is needed, else epoll.
    #[default]
    Auto,
    /// io_uring or fail.
    Uring,
    /// epoll, and threads for files.
    Epoll,
}

/// How to start. The environment's `LOCKSTEP_IO` (`uring`, `epoll`) beats `engine`.
#[derive(Clone, Debug)]
pub struct HandsConfig {
    /// Which engine.
    pub engine: EngineChoice,
    /// Operations in flight at most.
    pub operations_max: usize,
}

impl Default for HandsConfig {
    fn default() -> HandsConfig {
        HandsConfig { engine: EngineChoice::Auto, operations_max: OPERATIONS_MAX }
    }
}

/// Why there are no hands, or why they can do no more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HandsError {
    /// `LOCKSTEP_IO` names no engine.
    BadChoice(String),
    /// The engine that was asked for cannot be had here.
    Unavailable(Errno),
    /// Waiting failed; nothing can be relied on any more.
    Wait(Errno),
}

impl std::fmt::Display for HandsError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HandsError::BadChoice(name) => {
                write!(out, "LOCKSTEP_IO is {name:?}; it may be `uring` or `epoll`")
            }
            HandsError::Unavailable(errno) => write!(out, "this I/O engine cannot start: {errno}"),
            HandsError::Wait(errno) => write!(out, "waiting for I/O failed: {errno}"),
        }
    }
}

impl std::error::Error for HandsError {}

/// What comes back with a completion.
#[derive(Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// The buffer that a receive or read was given, also when it failed.
    Buffer(Buffer),
    /// The connection that an accept got.
    Socket(Socket),
}

/// An operation that ended; for an accept or a signal watch, one thing it got.
#[derive(Debug)]
pub struct Event {
    /// As the caller chose it.
    pub token: u64,
    /// Bytes moved; 0 for operations that move none; the number for a signal.
    pub result: Result<u32, Errno>,
    /// What comes back with it.
    pub payload: Payload,
}

impl Event {
    /// An event without payload.
    #[must_use]
    pub fn plain(token: u64, result: Result<u32, Errno>) -> Event {
        Event { token, result, payload: Payload::None }
    }

    /// An event that hands a buffer back.
    #[must_use]
    pub fn with_buffer(token: u64, result: Result<u32, Errno>, buffer: Buffer) -> Event {
        Event { token, result, payload: Payload::Buffer(buffer) }
    }
}

pub(crate) enum Engine {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
}

impl Engine {
    fn open(config: &HandsConfig, choice: EngineChoice) -> Result<(Engine, String), HandsError> {
        let epoll = || Epoll::new(config.operations_max).map_err(HandsError::Unavailable);
        if choice == EngineChoice::Epoll {
            let epoll = epoll()?;
            let words = epoll.describe();
            return Ok((Engine::Epoll(Box::new(epoll)), words));
        }
        match Uring::new(RING_ENTRIES) {
            Ok(uring) => {
                let words = uring.describe();
                Ok((Engine::Uring(Box::new(uring)), words))
            }
            Err(errno) if choice == EngineChoice::Uring => Err(HandsError::Unavailable(errno)),
            Err(errno) => {
                let epoll = epoll()?;
                let words = format!("{} (io_uring cannot be had: {errno})", epoll.describe());
                Ok((Engine::Epoll(Box::new(epoll)), words))
            }
        }
    }

    fn waker(&self) -> &Waker {
        match self {
            Engine::Uring(uring) => uring.waker(),
            Engine::Epoll(epoll) => epoll.waker(),
        }
    }

    pub(crate) fn start(&mut self, start: Start) {
        match self {
            Engine::Uring(uring) => uring.start(start),
            Engine::Epoll(epoll) => epoll.start(start),
        }
    }

    pub(crate) fn cancel(&mut self, slot: usize, descriptor: &Descriptor) {
        match self {
            Engine::Uring(uring) => uring.cancel(slot),
            Engine::Epoll(epoll) => epoll.cancel(slot, descriptor),
        }
    }

    fn turn(&mut self, limit: Option<Duration>, done: &mut Vec<Completion>) -> Result<(), Errno> {
        match self {
            Engine::Uring(uring) => uring.turn(limit, done),
            Engine::Epoll(epoll) => epoll.turn(limit, done),
        }
    }

    /// Whether a step on a file begins as soon as it is started, and not with the next turn.
    fn begins_files_at_once(&self) -> bool {
        matches!(self, Engine::Epoll(_))
    }

    /// Has the kernel have room for more requests that block, where its room has a limit.
    fn set_slow(&mut self, count: usize) {
        match self {
            Engine::Uring(uring) => uring.set_slow(count),
            Engine::Epoll(_) => {}
        }
    }

    /// From now on accepts in a way that older kernels know. False if there is no other.
    pub(crate) fn accept_plainly(&mut self) -> bool {
        match self {
            Engine::Uring(uring) => uring.accept_plainly(),
            Engine::Epoll(_) => return false,
        }
        true
    }
}

#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) operation: Option<Operation>,
    /// Its socket was closed: no further step is started.
    pub(crate) cancelled: bool,
    /// How often the kernel gave a step of it up before it began.
    pub(crate) given_up: u32,
    /// How many looks at what takes long there had been when it began.
    looks: u64,
}

/// What goes on on one descriptor number. Meaningful only while `socket` is set or an operation on
/// it is in flight, both of which keep the number from being reused.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) queue: SendQueue,
    /// Set while the queue is not empty.
    pub(crate) socket: Option<Socket>,
    pub(crate) sending: bool,
    /// There was no room for all that was sent last.
    pub(crate) full: bool,
    pub(crate) receiving: bool,
}

/// What one thread does to the outside. It belongs to the thread that made it.
pub struct Hands {
    pub(crate) engine: Engine,
    description: String,
    /// Never longer than its capacity, so that operations do not move.
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: Vec<usize>,
    /// Slots of operations on files.
    pub(crate) on_files: usize,
    /// Operations on files that wait for the next turn, or for a slot, in order.
    waiting: VecDeque<Operation>,
    /// Looks so far at what takes long on files, and when the next one is due. Nothing is looked at where nothing is under way.
    looks: u64,
    look_at: Instant,
    /// Slots of operations on files whose step begins again with the next look.
    pub(crate) put_off: Vec<usize>,
    /// By descriptor number.
    pub(crate) streams: Vec<Stream>,
    /// Numbers of the streams that have something to send and no send in flight.
    pub(crate) unsent: Vec<usize>,
    pub(crate) sends_queued: usize,
    #[expect(clippy::vec_box, reason = "the kernel reads a batch in flight: it must not move")]
    pub(crate) batches: Vec<Box<SendBatch>>,
    pub(crate) posted: VecDeque<Event>,
    delayed: BTreeMap<(Instant, u64), Event>,
    delayed_count: u64,
    done: Vec<Completion>,
    zeroes: Buffer,
    now: Instant,
    operations_max: usize,
    /// Descriptors are of this thread, and so are buffers.
    _one_thread: std::marker::PhantomData<*const ()>,
}

impl Hands {
    /// Hands for the calling thread.
    ///
    /// # Errors
    /// [`HandsError::BadChoice`] or [`HandsError::Unavailable`].
    pub fn new(config: HandsConfig) -> Result<Hands, HandsError> {
        let choice = match std::env::var("LOCKSTEP_IO").as_deref() {
            Ok("uring") => EngineChoice::Uring,
            Ok("epoll") => EngineChoice::Epoll,
            Ok("") | Err(_) => config.engine,
            Ok(other) => return Err(HandsError::BadChoice(other.to_owned())),
        };
        Hands::with_engine(config, choice)
    }

    /// The same, whatever the environment says.
    pub(crate) fn with_engine(
        config: HandsConfig,
        choice: EngineChoice,
    ) -> Result<Hands, HandsError> {
        let (engine, description) = Engine::open(&config, choice)?;
        let zeroes = BufferPool::new(ZEROES_BYTES)
            .take(ZEROES_BYTES)
            .ok_or(HandsError::Unavailable(Errno(libc::ENOMEM)))?;
        Ok(Hands {
            engine,
            description,
            slots: Vec::with_capacity(config.operations_max),
            free: Vec::with_capacity(config.operations_max),
            on_files: 0,
            waiting: VecDeque::new(),
            looks: 0,
            look_at: Instant(0),
            put_off: Vec::new(),
            streams: Vec::new(),
            unsent: Vec::new(),
            sends_queued: 0,
            batches: Vec::new(),
            posted: VecDeque::new(),
            delayed: BTreeMap::new(),
            delayed_count: 0,
            done: Vec::new(),
            zeroes,
            now: host::clock(),
            operations_max: config.operations_max,
            _one_thread: std::marker::PhantomData,
        })
    }

    /// Which engine runs and what it uses, for logs and status.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// The time as of the last wait: a clock that counts suspend (`CLOCK_BOOTTIME`).
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Reads the clock again.
    pub fn now_fresh(&mut self) -> Instant {
        self.now = host::clock();
        self.now
    }

    /// A handle by which another thread ends this one's wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.engine.waker().clone()
    }

    /// Operations accepted and not answered, queued sends included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.begun() + self.waiting.len()
    }

    fn begun(&self) -> usize {
        self.slots.len() - self.free.len() + self.sends_queued
    }

    /// Hands over everything queued and waits until something ends, a waker calls, or `timeout`
    /// has passed (`None`: for ever; zero: not at all). Events are appended to `events`; there may
    /// be none.
    ///
    /// # Errors
    /// [`HandsError::Wait`]: the engine is broken; the process should end.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> Result<(), HandsError> {
        self.start_sends();
        // Behind them: the kernel takes what is handed over one by one, and a peer, or a client, goes on meanwhile.
        self.begin_waiting();
        let limit = self.limit_of(timeout);
        let mut done = std::mem::take(&mut self.done);
        let turn = self.engine.turn(limit, &mut done);
        self.now = host::clock();
        for completion in done.drain(..) {
            self.settle(completion, events);
        }
        self.done = done;
        if self.engine.begins_files_at_once() {
            self.begin_waiting();
        }
        if self.on_files > 0 && self.now >= self.look_at {
            self.look_for_slow();
        }
        events.extend(self.posted.drain(..));
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            events.push(entry.remove());
        }
        turn.map_err(HandsError::Wait)
    }

    /// Operations on files that take long may each hold one of the threads that the kernel has for all disks: it is to have
    /// others for those that are well. A request that a disk takes by itself holds none, but nobody tells which those are.
    /// What the kernel gave up before it began is begun again.
    fn look_for_slow(&mut self) {
        self.look_at = self.now + LOOK_EVERY;
        self.looks += 1;
        for slot in std::mem::take(&mut self.put_off) {
            self.proceed(slot);
        }
        let since = self.looks;
        let is_slow = |slot: &&Slot| {
            slot.looks + 1 < since && slot.operation.as_ref().is_some_and(Operation::is_on_file)
        };
        let count = self.slots.iter().filter(is_slow).count();
        self.engine.set_slow(count);
    }

    fn limit_of(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.posted.is_empty() {
            return Some(Duration(0));
        }
        let look = (self.on_files > 0).then(|| self.look_at.since(self.now));
        let timeout = [timeout, look].into_iter().flatten().min();
        match self.delayed.first_key_value() {
            Some((key, _)) => {
                let until = key.0.since(host::clock());
                Some(timeout.map_or(until, |timeout| timeout.min(until)))
            }
            None => timeout,
        }
    }

    /// Delivers an event with the next wait, which then does not block and makes no system call of
    /// its own. For stores that need no kernel.
    pub fn post(&mut self, event: Event) {
        self.posted.push_back(event);
    }

    /// Events that were posted, without a wait and its system call: appended to `events`. True if there were some.
    ///
    /// They are a batch of their own, so the clock is read for them as for those of a wait: what they end may have come since
    /// that, from another thread or through a machine's memory, and an answer by a time before its question would trust a lease
    /// that has run out. It would also count as one that took no time.
    pub fn take_posted(&mut self, events: &mut Vec<Event>) -> bool {
        if self.posted.is_empty() {
            return false;
        }
        self.now = host::clock();
        events.extend(self.posted.drain(..));
        true
    }

    /// Delivers an event with the first wait that ends at or after `time`, and ends a wait then.
    pub fn post_at(&mut self, time: Instant, event: Event) {
        self.delayed_count += 1;
        self.delayed.insert((time, self.delayed_count), event);
    }

    /// Accepts connections until [`Hands::stop_accepting`] or a failure: one event with a socket
    /// for each, and one with an error when it ends.
    pub fn accept(&mut self, token: u64, listener: &Listener) {
        if self.full() {
            return self.post(Event::plain(token, Err(Errno::NO_BUFFERS)));
        }
        self.begin(Operation::Accept { token, listener: listener.clone(), again: false });
    }

    /// Ends an accept; its last event says [`Errno::CANCELED`].
    pub fn stop_accepting(&mut self, listener: &Listener) {
        self.cancel_all(&listener.0);
    }

    /// Connects to `remote`, for TCP from `local` if given (port 0: any). The event's result is 0
    /// once connected. The socket may be closed before, which cancels.
    ///
    /// # Errors
    /// The kernel's, if a socket cannot be made or bound; then there is no event.
    pub fn connect(
        &mut self,
        token: u64,
        local: Option<SocketAddr>,
        remote: &SocketAddress,
    ) -> Result<Socket, Errno> {
        let socket = socket::open_for(local, remote)?;
        let address = Box::new(RawAddress::of(remote)?);
        if self.full() {
            return Err(Errno::NO_BUFFERS);
        }
        self.begin(Operation::Connect { token, socket: socket.clone(), address });
        Ok(socket)
    }

    /// Receives at least one byte and at most the `range` of `buffer`. The event hands the buffer
    /// back with the count of bytes after `range.start`; 0 says that the peer ended the stream.
    ///
    /// # Panics
    /// If a receive on this socket is in flight, the buffer has clones, or the range is empty or
    /// not inside it: bugs of the caller.
    pub fn receive(&mut self, token: u64, socket: &Socket, buffer: Buffer, range: Range<usize>) {
        self.receive_some(token, socket, buffer, range, false);
    }

    /// The same, but waits until the whole range is filled; a smaller count says that the stream
    /// ended.
    ///
    /// # Panics
    /// As [`Hands::receive`].
    pub fn receive_full(
        &mut self,
        token: u64,
        socket: &Socket,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        self.receive_some(token, socket, buffer, range, true);
    }

    fn receive_some(
        &mut self,
        token: u64,
        socket: &Socket,
        buffer: Buffer,
        range: Range<usize>,
        full: bool,
    ) {
        check_target(&buffer, &range);
        if self.full() {
            return self.post(Event::with_buffer(token, Err(Errno::NO_BUFFERS), buffer));
        }
        let stream = self.stream(socket);
        assert!(
            !stream.receiving,
            "one receive at a time: two would share out the bytes at random"
        );
        stream.receiving = true;
        let (at, end) = (range.start, range.end);
        let socket = socket.clone();
        self.begin(Operation::Receive { token, socket, buffer, at, end, done: 0, full });
    }

    /// Sends all bytes of all pieces, in order, after all sends queued on this socket before. The
    /// event's result is their total (below 4 GiB).
    pub fn send(&mut self, token: u64, socket: &Socket, pieces: impl IntoIterator<Item = Piece>) {
        if self.full() {
            return self.post(Event::plain(token, Err(Errno::NO_BUFFERS)));
        }
        self.sends_queued += 1;
        let index = socket.0.index();
        let stream = self.stream(socket);
        stream.queue.push(token, pieces);
        if stream.socket.is_none() {
            stream.socket = Some(socket.clone());
            self.unsent.push(index);
        }
    }

    /// Ends a connection: both directions are shut down and everything in flight on it ends soon,
    /// with [`Errno::CANCELED`] unless it finished before. The descriptor closes when the last
    /// clone of the socket is dropped.
    pub fn close(&mut self, socket: &Socket) {
        socket.shutdown();
        self.cancel_all(&socket.0);
        let Some(stream) = self.streams.get_mut(socket.0.index()) else { return };
        if !stream.sending && stream.socket.as_ref() == Some(socket) {
            let (posted, queued) = (&mut self.posted, &mut self.sends_queued);
            stream.queue.fail(|token| {
                *queued -= 1;
                posted.push_back(Event::plain(token, Err(Errno::CANCELED)));
            });
            stream.socket = None;
        }
    }

    /// Reads `range.len()` bytes at `offset` of `file` into the range of `buffer`; the event hands
    /// it back. A file that ends before answers [`Errno::NO_DATA`]. With direct I/O offset, length
    /// and `range.start` are multiples of the block size.
    ///
    /// # Panics
    /// As [`Hands::receive`] for buffer and range.
    pub fn read(
        &mut self,
        token: u64,
        file: &File,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        check_target(&buffer, &range);
        let (at, length, file) = (range.start, range.len(), file.clone());
        self.begin_on_file(Operation::Read { token, file, buffer, at, length, offset, done: 0 });
    }

    /// Writes all bytes of `piece` at `offset`. With `durable` the event comes once they survive a
    /// power cut. With direct I/O offset, length and the piece's place in memory are multiples of
    /// the block size.
    ///
    /// # Panics
    /// If the piece is empty.
    pub fn write(&mut self, token: u64, file: &File, offset: u64, piece: Piece, durable: bool) {
        assert!(!piece.is_empty(), "a write has bytes");
        let file = file.clone();
        self.begin_on_file(Operation::Write { token, file, piece, offset, done: 0, durable });
    }

    /// Makes every write that was answered before survive a power cut (`fdatasync`).
    pub fn sync(&mut self, token: u64, file: &File) {
        self.begin_on_file(Operation::Sync { token, file: file.clone() });
    }

    /// Makes a range read as zeroes by the cheapest way that works here: giving the space back
    /// (only with `unmap`), asking file system or device, writing zeroes.
    ///
    /// # Panics
    /// If `length` is zero.
    pub fn zero(
        &mut self,
        token: u64,
        file: &File,
        offset: u64,
        length: u64,
        unmap: bool,
        durable: bool,
    ) {
        assert!(length > 0, "a zeroing has a range");
        let stage = if unmap { ZeroStage::Punch } else { ZeroStage::ZeroRange };
        let (file, zeroes) = (file.clone(), self.zeroes.clone());
        let zeroing = Zeroing { token, file, offset, length, done: 0, durable, stage, zeroes };
        self.begin_on_file(Operation::Zero(Box::new(zeroing)));
    }

    /// Reports each of these signals (numbers of `signal(7)`) as an event with the number, for
    /// ever. They are blocked in this thread; block them with [`crate::block_signals`] in `main`
    /// before other threads start, which then inherit that.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch_signals(&mut self, token: u64, signals: &[i32]) -> Result<(), Errno> {
        if self.full() {
            return Err(Errno::NO_BUFFERS);
        }
        let set = host::block_signals(signals)?;
        // A blocking descriptor makes io_uring wait for readiness instead of answering EAGAIN.
        let nonblocking = matches!(self.engine, Engine::Epoll(_));
        let flags = libc::SFD_CLOEXEC | if nonblocking { libc::SFD_NONBLOCK } else { 0 };
        // SAFETY: the set is initialised and valid during the call.
        let number = check(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: plain data for which all zeroes is a value; the kernel fills it.
        let record = Box::new(unsafe { std::mem::zeroed() });
        let source = Descriptor::adopt(number);
        self.begin(Operation::Signals { token, source, record });
        Ok(())
    }

    /// Waits until a socket has something to receive, or its end; receives nothing.
    pub fn watch_socket(&mut self, token: u64, socket: &Socket) {
        self.watch(token, &socket.0);
    }

    /// Waits until an event is signalled, and leaves it so.
    pub fn watch_handle(&mut self, token: u64, handle: &Handle) {
        self.watch(token, &handle.0);
    }

    /// Ends such a wait; its event says [`Errno::CANCELED`].
    pub fn stop_watching(&mut self, handle: &Handle) {
        self.cancel_all(&handle.0);
    }

    fn watch(&mut self, token: u64, source: &Descriptor) {
        if self.full() {
            return self.post(Event::plain(token, Err(Errno::NO_BUFFERS)));
        }
        self.begin(Operation::Watch { token, source: source.clone() });
    }

    fn full(&self) -> bool {
        self.begun() >= self.operations_max
    }

    fn stream(&mut self, socket: &Socket) -> &mut Stream {
        let index = socket.0.index();
        if index >= self.streams.len() {
            self.streams.resize_with(index + 1, Stream::default);
        }
        &mut self.streams[index]
    }

    /// Starts an operation on a file, when it is its turn.
    fn begin_on_file(&mut self, operation: Operation) {
        self.waiting.push_back(operation);
        if self.engine.begins_files_at_once() {
            self.begin_waiting();
        }
    }

    fn begin_waiting(&mut self) {
        let files_max = self.operations_max - self.operations_max / 4;
        while self.on_files < files_max
            && !self.full()
            && let Some(operation) = self.waiting.pop_front()
        {
            if self.on_files == 0 {
                self.look_at = self.now + LOOK_EVERY;
            }
            self.on_files += 1;
            self.begin(operation);
        }
    }

    /// Puts an operation into a slot and starts its first step.
    pub(crate) fn begin(&mut self, operation: Operation) {
        let slot = self.free.pop().unwrap_or_else(|| {
            let room = self.slots.len() < self.slots.capacity();
            assert!(room, "what begins was counted, and operations must not move");
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let looks = self.looks;
        self.slots[slot] = Slot { operation: Some(operation), looks, ..Slot::default() };
        self.proceed(slot);
    }

    /// Starts the next step of the operation in a slot.
    pub(crate) fn proceed(&mut self, slot: usize) {
        let operation = self.slots[slot].operation.as_mut().expect("its slot is taken");
        let step = operation.step();
        let descriptor = operation.descriptor();
        let (fd, identity) = (descriptor.number(), descriptor.identity());
        self.engine.start(Start { slot, fd, identity, step });
    }

    fn start_sends(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for index in unsent.drain(..) {
            let stream = &mut self.streams[index];
            let Some(socket) = stream.socket.clone() else { continue };
            if stream.sending {
                continue;
            }
            stream.sending = true;
            let mut batch = self.batches.pop().unwrap_or_else(SendBatch::new);
            batch.fill(&stream.queue);
            let patient = std::mem::take(&mut stream.full);
            self.begin(Operation::Send { socket, batch, patient });
        }
        self.unsent = unsent;
    }

    fn cancel_all(&mut self, descriptor: &Descriptor) {
        for slot in 0..self.slots.len() {
            let entry = &mut self.slots[slot];
            let Some(operation) = &entry.operation else { continue };
            if operation.descriptor().identity() == descriptor.identity() && !entry.cancelled {
                entry.cancelled = true;
                self.engine.cancel(slot, descriptor);
            }
        }
    }
}

fn check_target(buffer: &Buffer, range: &Range<usize>) {
    assert!(buffer.is_unique(), "memory that the kernel fills has one owner");
    let inside = range.start < range.end && range.end <= buffer.len();
    assert!(inside, "a range to fill is inside its buffer");
}

impl Drop for Hands {
    /// Ends everything in flight before its memory goes. What does not end in time is leaked: the
    /// kernel may still write there.
    fn drop(&mut self) {
        for slot in 0..self.slots.len() {
            let entry = &mut self.slots[slot];
            let Some(operation) = &entry.operation else { continue };
            let descriptor = operation.descriptor().clone();
            entry.cancelled = true;
            self.engine.cancel(slot, &descriptor);
        }
        self.unsent.clear();
        // The kernel does not know of them.
        self.waiting.clear();
        for slot in std::mem::take(&mut self.put_off) {
            self.vacate(slot);
        }
        let deadline = host::clock() + FAREWELL;
        let mut events = Vec::new();
        let in_slots = |hands: &Hands| hands.slots.len() > hands.free.len();
        while in_slots(self) && host::clock() < deadline {
            if self.wait(Some(Duration::from_millis(100)), &mut events).is_err() {
                break;
            }
            events.clear();
        }
        if in_slots(self) {
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.streams));
        }
    }
}

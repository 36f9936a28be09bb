//! Clients that read and write through several nodes at once, and remember everything.
//!
//! Each client has a connection of its own, and one request open at a time; some have several (`deep`). A part of the requests
//! goes to a few hot blocks that all clients share, so that they meet; the rest to windows spread
//! over the volume. Every write has a number of its own, from which all bytes of each of its blocks
//! follow, so that what is read tells which write it was, whole and in its place. Some writes are to be
//! stable at once (FUA), some are zeroing or discards, which both leave zeroes, and now and then a client flushes. A client
//! has its volume by NBD, or by NVMe/TCP (`way`).
//!
//! Always: a write is in the history from the moment it is sent, answered or not; a read and a flush
//! are only if they were answered. After an error a client's connection is never used again.
//!
//! Not here: judging the history (`history`), faults (the labs).

mod deep;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::Prng;

use crate::bench::{Failure, Outcome, ensure, let_run, wait_for};
use crate::cluster::Cluster;
use crate::history::{self, Event, Flush, History, NEVER, Time, Value, What};
use client::{ANSWER_LIMIT, Volume};
use deep::Open;
use way::Way;

pub(crate) use way::Subsystem;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;
const BLOCK: u64 = 4096;

/// Blocks that all clients share.
const HOT_BLOCKS: u64 = 32;

/// Blocks of a window: 1 MiB.
const WINDOW_BLOCKS: u64 = 256;

/// Windows of an ordinary load, spread over the volume.
pub(crate) const WINDOWS: u64 = 16;

/// Longest request in blocks.
const SPAN_MAX: u64 = 16;

/// Requests that a client keeps open which has several.
const DEPTH: usize = 8;

/// How long a client tries to connect anywhere before it gives up.
const CONNECT_TRIES: Duration = Duration::from_secs(60);

/// Between two tries to connect when no node takes one.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How long anything may go without one acknowledgement.
pub(crate) const PROGRESS_LIMIT: Duration = Duration::from_secs(60);

/// How long clients may take to leave a node.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);

/// Number of bits of a value that count a client's writes.
const COUNT_BITS: u32 = 40;

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    /// Where it connects, the first choice first.
    pub(crate) nodes: Vec<SocketAddr>,
    /// As what it has its volume by NVMe/TCP; `None`: it has it by NBD.
    pub(crate) subsystem: Option<Arc<Subsystem>>,
    /// So many requests it keeps open; more than one by NBD only.
    pub(crate) depth: usize,
    /// It stays where it is, but for a node that turns its clients away: an error there is a failure of the lab.
    pub(crate) pinned: bool,
    /// It only reads.
    pub(crate) reads_only: bool,
    /// It waits up to so long between two requests.
    pub(crate) pause: Duration,
    /// How long it waits for an answer.
    pub(crate) limit: Duration,
}

impl ClientPlan {
    /// Connects to these nodes in turn, goes elsewhere when a connection breaks.
    pub(crate) fn roaming(nodes: &[SocketAddr]) -> ClientPlan {
        ClientPlan {
            nodes: nodes.to_vec(),
            subsystem: None,
            depth: 1,
            pinned: false,
            reads_only: false,
            pause: Duration::ZERO,
            limit: ANSWER_LIMIT,
        }
    }

    /// Stays with one node.
    pub(crate) fn pinned(node: SocketAddr) -> ClientPlan {
        ClientPlan { pinned: true, ..ClientPlan::roaming(&[node]) }
    }

    /// The same with several requests open.
    pub(crate) fn deep(self) -> ClientPlan {
        ClientPlan { depth: DEPTH, ..self }
    }

    /// The same by NVMe/TCP.
    pub(crate) fn by_nvme(self, subsystem: &Arc<Subsystem>) -> ClientPlan {
        ClientPlan { subsystem: Some(Arc::clone(subsystem)), ..self }
    }

    /// Reads only, and seldom; stays with one node.
    pub(crate) fn looking(node: SocketAddr, pause: Duration, limit: Duration) -> ClientPlan {
        ClientPlan { reads_only: true, pause, limit, ..ClientPlan::roaming(&[node]) }
    }
}

/// What the clients share.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlan {
    /// The export.
    pub(crate) export: String,
    /// Size of the volume.
    pub(crate) size_bytes: u64,
    /// How many windows, spread over the volume, are used.
    pub(crate) windows: u64,
    /// Of 100 requests, so many are reads.
    pub(crate) reads_percent: u64,
    pub(crate) seed: u64,
    pub(crate) clients: Vec<ClientPlan>,
}

impl LoadPlan {
    /// An ordinary load.
    pub(crate) fn new(export: &str, size_bytes: u64, seed: u64, clients: Vec<ClientPlan>) -> Self {
        let export = export.to_owned();
        LoadPlan { export, size_bytes, windows: WINDOWS, reads_percent: 30, seed, clients }
    }

    /// First block of a window.
    fn window(&self, number: u64) -> u64 {
        let blocks = self.size_bytes / BLOCK;
        let stride = blocks / self.windows.max(1);
        (number % self.windows.max(1)) * stride
    }

    fn choose(&self, random: &mut Prng, span: u64) -> u64 {
        let blocks = self.size_bytes / BLOCK;
        let window = if random.once_in(3) { 0 } else { random.below(self.windows.max(1)) };
        let room = if window == 0 { HOT_BLOCKS } else { WINDOW_BLOCKS };
        (self.window(window) + random.below(room)).min(blocks - span)
    }
}

struct Shared {
    plan: LoadPlan,
    begun: Instant,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// When a write of each block was last asked.
    touched: Mutex<BTreeMap<u64, Time>>,
    pauses: Mutex<Pauses>,
    doors: Mutex<Doors>,
    losses: Mutex<Vec<Time>>,
}

/// Nodes whose pinned clients wait outside.
#[derive(Default)]
struct Doors {
    away: Vec<Away>,
    /// Pinned clients that have no connection, and will have none before they are let in.
    outside: BTreeSet<u64>,
}

/// A node that was or is away.
#[derive(Clone, Debug)]
struct Away {
    node: SocketAddr,
    from: Time,
    /// `NEVER`: it still is.
    until: Time,
}

struct Pauses {
    last: Instant,
    longest: Duration,
}

impl Shared {
    fn now(&self) -> Time {
        // 1: 0 is before everything.
        1 + Time::try_from(self.begun.elapsed().as_nanos()).unwrap_or(NEVER - 1)
    }

    fn doors(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a pinned client has to wait outside; it is there once it asks without a connection.
    fn is_turned_away(&self, client: u64, node: SocketAddr, connected: bool) -> bool {
        let mut doors = self.doors();
        let closed = doors.away.iter().any(|away| away.node == node && away.until == NEVER);
        if closed && !connected {
            doors.outside.insert(client);
        } else {
            doors.outside.remove(&client);
        }
        closed
    }

    fn touched(&self) -> MutexGuard<'_, BTreeMap<u64, Time>> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acknowledge(&self) {
        let first = self.acknowledged.fetch_add(1, Ordering::Relaxed) == 0;
        let now = Instant::now();
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = now.saturating_duration_since(pauses.last);
        // Before the first, nothing was promised: opening the volume is no pause.
        pauses.longest = pauses.longest.max(if first { Duration::ZERO } else { pause });
        pauses.last = now;
    }
}

/// What one client remembers.
#[derive(Debug, Default)]
struct Memory {
    events: Vec<Event>,
    flushes: Vec<Flush>,
    /// Blocks that held what no write puts there.
    damage: Vec<String>,
    /// Connections that broke.
    broken: Vec<Break>,
    /// Connections that could not be made.
    refused: Vec<Break>,
    /// The longest that a request took which was answered.
    longest_request: Duration,
    /// Writes acknowledged by NVMe/TCP, and those that are in doubt because their path failed.
    by_nvme: u64,
    in_doubt: u64,
    /// It could not go on.
    gave_up: Option<String>,
}

/// A connection that broke, or could not be made.
#[derive(Clone, Debug)]
pub(crate) struct Break {
    /// To which node.
    pub(crate) node: SocketAddr,
    /// Why, and of which client.
    pub(crate) why: String,
    pinned: bool,
    /// From when until when there was one, or was to be one.
    from: Time,
    until: Time,
}

/// A running load.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Memory>>,
}

/// What a load came to.
#[derive(Debug, Default)]
pub(crate) struct Record {
    history: History,
    damage: Vec<String>,
    /// Connections that broke.
    pub(crate) broken: Vec<Break>,
    refused: Vec<Break>,
    away: Vec<Away>,
    /// Number of writes acknowledged.
    pub(crate) acknowledged: u64,
    /// The longest time without an acknowledgement.
    pub(crate) longest_pause: Duration,
    /// The longest that a request took which was answered.
    pub(crate) longest_request: Duration,
    /// Writes acknowledged by NVMe/TCP, and those that are in doubt because their path failed.
    by_nvme: u64,
    in_doubt: u64,
    plan: Option<LoadPlan>,
    end: Time,
}

impl Load {
    /// Starts all clients.
    pub(crate) fn start(plan: LoadPlan) -> Load {
        let clients = plan.clients.clone();
        let begun = Instant::now();
        let pauses = Mutex::new(Pauses { last: begun, longest: Duration::ZERO });
        let shared = Arc::new(Shared {
            plan,
            begun,
            stop: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            touched: Mutex::default(),
            pauses,
            doors: Mutex::default(),
            losses: Mutex::default(),
        });
        let start = |(number, plan): (u64, ClientPlan)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || Client::new(number, plan, shared).run())
        };
        let threads = (1..).zip(clients).map(start).collect();
        Load { shared, threads }
    }

    /// Number of writes acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// The present.
    pub(crate) fn now(&self) -> Time {
        self.shared.now()
    }

    /// Bytes of all blocks that a write was asked of since then, answered or not; each counts once, however often it was written.
    pub(crate) fn touched_bytes(&self, since: Time) -> u64 {
        let count = self.shared.touched().values().filter(|&&asked| asked >= since).count();
        u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(BLOCK)
    }

    /// Waits for so many more acknowledgements.
    pub(crate) fn progress(&self, more: u64) -> Outcome<()> {
        let from = self.acknowledged();
        wait_for(&format!("{more} more acknowledged writes"), PROGRESS_LIMIT, || {
            let now = self.acknowledged();
            ensure!(now >= from + more, "there were {}", now - from);
            Ok(())
        })
    }

    /// Lets it run for a while; something must be acknowledged in it.
    pub(crate) fn run_for(&self, time: Duration) -> Outcome<()> {
        let from = self.acknowledged();
        let_run(time);
        if self.acknowledged() > from { Ok(()) } else { self.progress(1) }
    }

    /// A node is about to go in good order: its pinned clients leave it, and wait until they are let in. From the first time on that
    /// this is said, a client of any other node that sees an error fails the lab, pinned or not.
    pub(crate) fn turn_away(&self, node: SocketAddr) -> Outcome<()> {
        let (from, until) = (self.shared.now(), NEVER);
        self.shared.doors().away.push(Away { node, from, until });
        let clients = (1..).zip(&self.shared.plan.clients);
        let own = |plan: &ClientPlan| plan.pinned && plan.nodes.contains(&node);
        let own: Vec<u64> =
            clients.filter(|(_, plan)| own(plan)).map(|(number, _)| number).collect();
        wait_for("clients to leave", LEAVE_LIMIT, || {
            let outside = self.shared.doors().outside.clone();
            ensure!(own.iter().all(|client| outside.contains(client)), "outside: {outside:?}");
            Ok(())
        })
    }

    /// It is back.
    pub(crate) fn let_in(&self, node: SocketAddr) {
        let now = self.shared.now();
        let mut doors = self.shared.doors();
        for away in doors.away.iter_mut().filter(|away| away.node == node && away.until == NEVER) {
            away.until = now;
        }
    }

    /// Between the end of all nodes and the start of the first: what was in a cache is gone.
    pub(crate) fn lose_caches(&self) {
        let now = self.shared.now();
        self.shared.losses.lock().unwrap_or_else(PoisonError::into_inner).push(now);
    }

    /// Ends all clients once their open requests are answered or given up.
    pub(crate) fn stop(self) -> Outcome<Record> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut record = Record::default();
        let mut gave_up = Vec::new();
        for thread in self.threads {
            let memory = thread.join().map_err(|_| Failure::from("a client died"))?;
            record.history.events.extend(memory.events);
            record.history.flushes.extend(memory.flushes);
            record.damage.extend(memory.damage);
            record.broken.extend(memory.broken);
            record.refused.extend(memory.refused);
            record.longest_request = record.longest_request.max(memory.longest_request);
            record.by_nvme += memory.by_nvme;
            record.in_doubt += memory.in_doubt;
            gave_up.extend(memory.gave_up);
        }
        if let Some(reason) = gave_up.first() {
            return Err(Failure(format!("{} clients gave up: {reason}", gave_up.len())));
        }
        record.acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        record.longest_pause =
            self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner).longest;
        record.history.losses =
            self.shared.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        record.away = self.shared.doors().away.clone();
        record.end = self.shared.now();
        record.plan = Some(self.shared.plan.clone());
        Ok(record)
    }
}

impl Record {
    /// Reads every block that may have been written, through each of these nodes, and judges the
    /// whole history.
    pub(crate) fn judge(&mut self, nodes: &[SocketAddr]) -> Outcome<()> {
        let plan = self.plan.clone().ok_or("a record without a load")?;
        for &node in nodes {
            self.read_back(&plan, node)
                .map_err(|error| Failure(format!("reading back through {node}: {error}")))?;
        }
        if let Some(damage) = self.damage.first() {
            return Err(Failure(format!(
                "{} damaged blocks, the first: {damage}",
                self.damage.len()
            )));
        }
        if let Some(broken) = self.broken.iter().find(|broken| broken.pinned) {
            return Err(Failure(format!(
                "a client of living node {} saw an error: {}",
                broken.node, broken.why
            )));
        }
        self.judge_errors()?;
        let hosts = plan.clients.iter().any(|client| client.subsystem.is_some());
        ensure!(!hosts || self.by_nvme > 0, "nothing was acknowledged by NVMe/TCP");
        let wrong = history::check(&self.history);
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(Failure(format!("{} blocks are wrong; {first}", wrong.len()))),
        }
    }

    /// Where nodes were turned away from in good order: nobody else's clients see an error.
    fn judge_errors(&self) -> Outcome<()> {
        if self.away.is_empty() {
            return Ok(());
        }
        let is_meant = |broken: &Break| {
            let own = self.away.iter().filter(|away| away.node == broken.node);
            own.into_iter().any(|away| broken.from <= away.until && away.from <= broken.until)
        };
        match self.broken.iter().chain(&self.refused).find(|broken| !is_meant(broken)) {
            None => Ok(()),
            Some(broken) => Err(Failure(format!(
                "a client of {}, which was not being restarted, saw an error: {}",
                broken.node, broken.why
            ))),
        }
    }

    /// In how many blocks acknowledged writes were lost with the caches, as was allowed.
    pub(crate) fn blocks_that_lost(&self) -> usize {
        let without = History { losses: Vec::new(), ..self.history.clone() };
        history::check(&without).len()
    }

    fn read_back(&mut self, plan: &LoadPlan, node: SocketAddr) -> io::Result<()> {
        let mut volume = Volume::open(node, &plan.export, ANSWER_LIMIT)?;
        let blocks = (plan.size_bytes / BLOCK).min(WINDOW_BLOCKS + SPAN_MAX);
        let length = usize::try_from(blocks * BLOCK).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        for number in 0..plan.windows {
            let first = plan.window(number).min(plan.size_bytes / BLOCK - blocks);
            let asked = self.end + 1;
            volume.read(first * BLOCK, &mut bytes)?;
            self.end = asked + 1;
            for (block, content) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                match value_of(content, block) {
                    Ok(value) => self.history.events.push(Event {
                        block,
                        value,
                        what: What::Read,
                        asked,
                        answered: self.end,
                    }),
                    Err(what) => self.damage.push(what),
                }
            }
        }
        Ok(())
    }

    /// In words.
    pub(crate) fn summary(&self) -> String {
        let by_nvme = match self.by_nvme {
            0 => String::new(),
            count => format!(" ({count} by NVMe/TCP, where {} are in doubt)", self.in_doubt),
        };
        format!(
            "{} writes acknowledged{by_nvme}, {} events judged, longest pause {} ms",
            self.acknowledged,
            self.history.events.len(),
            self.longest_pause.as_millis()
        )
    }
}

/// What is asked of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wanted {
    Read,
    Flush,
    Write(Kind),
}

/// How a block is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Plain,
    /// FUA.
    Stable,
    Zeroing,
    Discard,
}

struct Client {
    number: u64,
    plan: ClientPlan,
    shared: Arc<Shared>,
    random: Prng,
    choice: usize,
    count: u64,
    memory: Memory,
    bytes: Vec<u8>,
    /// What is open, by the names that the answers will have, where that is more than one request.
    open: BTreeMap<u64, Open>,
}

impl Client {
    fn new(number: u64, plan: ClientPlan, shared: Arc<Shared>) -> Client {
        let random = Prng::new(shared.plan.seed ^ number.rotate_left(20));
        let memory = Memory::default();
        let (bytes, open) = (Vec::new(), BTreeMap::new());
        Client { number, plan, shared, random, choice: 0, count: 0, memory, bytes, open }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn run(mut self) -> Memory {
        let mut volume: Option<Way> = None;
        let (mut without, mut from) = (Instant::now(), 0);
        while !self.stopped() {
            let node = self.plan.nodes[self.choice % self.plan.nodes.len()];
            let pinned = self.plan.pinned;
            if pinned && self.shared.is_turned_away(self.number, node, volume.is_some()) {
                self.take_all(volume.take());
                thread::sleep(RETRY_INTERVAL);
                continue;
            }
            let Some(open) = &mut volume else {
                from = self.shared.now();
                let (export, subsystem) =
                    (&self.shared.plan.export, self.plan.subsystem.as_deref());
                match Way::open(node, export, subsystem, self.plan.limit) {
                    Ok(open) => volume = Some(open),
                    Err(error) if pinned || without.elapsed() > CONNECT_TRIES => {
                        self.memory.gave_up = Some(format!("{node}: {error}"));
                        break;
                    }
                    Err(error) => {
                        let refused = self.broken(node, from, &error);
                        self.memory.refused.push(refused);
                        self.choice += 1;
                        thread::sleep(RETRY_INTERVAL);
                    }
                }
                continue;
            };
            without = Instant::now();
            match self.request(open) {
                Ok(()) => {
                    let longest = &mut self.memory.longest_request;
                    *longest = without.elapsed().max(*longest);
                }
                Err(error) => {
                    volume = None;
                    self.give_up();
                    let broken = self.broken(node, from, &error);
                    self.memory.broken.push(broken);
                    if pinned {
                        break;
                    }
                    self.choice += 1;
                }
            }
            self.pause();
        }
        self.take_all(volume);
        self.memory
    }

    /// A connection that was begun then, and has come to this.
    fn broken(&self, node: SocketAddr, from: Time, error: &io::Error) -> Break {
        let until = self.shared.now();
        let why = format!("{error} (client {}, {} ms)", self.number, until / 1_000_000);
        Break { node, why, pinned: self.plan.pinned, from, until }
    }

    fn pause(&mut self) {
        let most = u64::try_from(self.plan.pause.as_micros()).unwrap_or(0);
        if most > 0 {
            let_run(Duration::from_micros(self.random.below(most)));
        }
    }

    fn request(&mut self, volume: &mut Way) -> io::Result<()> {
        if let Way::Nbd(volume) = volume
            && self.plan.depth > 1
        {
            return self.keep_open(volume);
        }
        let (wanted, first) = self.wanted();
        match wanted {
            Wanted::Read => self.read(volume, first),
            Wanted::Flush => self.flush(volume),
            Wanted::Write(kind) => self.write(volume, first, kind),
        }
    }

    /// What is asked next, and of which block on; `bytes` is as long.
    fn wanted(&mut self) -> (Wanted, u64) {
        let span = if self.random.once_in(8) { 1 + self.random.below(SPAN_MAX) } else { 1 };
        let first = self.shared.plan.choose(&mut self.random, span);
        let length = usize::try_from(span).unwrap_or(1) * BLOCK_BYTES;
        self.bytes.resize(length, 0);
        if self.plan.reads_only || self.random.below(100) < self.shared.plan.reads_percent {
            return (Wanted::Read, first);
        }
        let wanted = match self.random.below(64) {
            0..=1 => Wanted::Flush,
            2..=5 => Wanted::Write(Kind::Stable),
            6..=8 => Wanted::Write(Kind::Zeroing),
            9..=11 => Wanted::Write(Kind::Discard),
            _ => Wanted::Write(Kind::Plain),
        };
        (wanted, first)
    }

    fn flush(&mut self, volume: &mut Way) -> io::Result<()> {
        let asked = self.shared.now();
        volume.flush()?;
        self.has_flushed(asked);
        Ok(())
    }

    fn has_flushed(&mut self, asked: Time) {
        self.memory.flushes.push(Flush { asked, answered: self.shared.now() });
    }

    fn read(&mut self, volume: &mut Way, first: u64) -> io::Result<()> {
        let asked = self.shared.now();
        volume.read(first * BLOCK, &mut self.bytes)?;
        self.has_read(first, asked);
        Ok(())
    }

    /// What was read is in `bytes`.
    fn has_read(&mut self, first: u64, asked: Time) {
        let answered = self.shared.now();
        for (block, content) in (first..).zip(self.bytes.chunks_exact(BLOCK_BYTES)) {
            match value_of(content, block) {
                Ok(value) => {
                    let event = Event { block, value, what: What::Read, asked, answered };
                    self.memory.events.push(event);
                }
                Err(what) => self.memory.damage.push(what),
            }
        }
    }

    fn write(&mut self, volume: &mut Way, first: u64, kind: Kind) -> io::Result<()> {
        let (value, asked) = self.is_about_to_write(first, kind);
        let (place, length) = (first * BLOCK, self.bytes.len());
        let outcome = match kind {
            Kind::Plain => volume.write(place, &self.bytes),
            Kind::Stable => volume.write_stable(place, &self.bytes),
            Kind::Zeroing => volume.zero(place, length),
            Kind::Discard => volume.discard(place, length),
        };
        let acknowledged = matches!(outcome, Ok(true));
        self.has_written((first, length), kind, (value, asked), acknowledged);
        if outcome? {
            return Ok(());
        }
        self.memory.in_doubt += 1;
        // Waits until the path is of use again, so that not all that it is asked meanwhile is in doubt.
        self.read(volume, first)
    }

    /// Makes what is written, in `bytes`. Gives its number, and when it is asked.
    fn is_about_to_write(&mut self, first: u64, kind: Kind) -> (Value, Time) {
        let value = match kind {
            Kind::Plain | Kind::Stable => {
                self.count += 1;
                self.number << COUNT_BITS | self.count
            }
            Kind::Zeroing | Kind::Discard => 0,
        };
        if value != 0 {
            for (block, content) in (first..).zip(self.bytes.chunks_exact_mut(BLOCK_BYTES)) {
                fill(content, block, value);
            }
        }
        let asked = self.shared.now();
        let blocks = blocks(first, self.bytes.len());
        self.shared.touched().extend(blocks.map(|block| (block, asked)));
        (value, asked)
    }

    /// Notes a write of so many bytes from a block on, which is over: answered, or not.
    fn has_written(
        &mut self,
        (first, length): (u64, usize),
        kind: Kind,
        (value, asked): (Value, Time),
        acknowledged: bool,
    ) {
        let answered = if acknowledged { self.shared.now() } else { NEVER };
        let what = if kind == Kind::Stable { What::WriteStable } else { What::Write };
        for block in blocks(first, length) {
            self.memory.events.push(Event { block, value, what, asked, answered });
        }
        if acknowledged {
            self.shared.acknowledge();
            self.memory.by_nvme += u64::from(self.plan.subsystem.is_some());
        }
    }
}

/// The blocks of so many bytes from the first one on.
fn blocks(first: u64, length: usize) -> Range<u64> {
    first..first + u64::try_from(length / BLOCK_BYTES).unwrap_or(0)
}

/// The content of a block after a write.
pub(crate) fn fill(content: &mut [u8], block: u64, value: Value) {
    let mut random = Prng::new(block.rotate_left(32) ^ value);
    for (place, chunk) in content.chunks_exact_mut(8).enumerate() {
        let word = match place {
            0 => block,
            1 => value,
            _ => random.next_u64(),
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// Which write a block holds: 0 if none, an error if it holds what no write puts there.
fn value_of(content: &[u8], block: u64) -> Result<Value, String> {
    if content.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let word = |place: usize| {
        let bytes = content.get(place * 8..place * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let (Some(place), Some(value)) = (word(0), word(1)) else {
        return Err(format!("block {block} is cut short"));
    };
    if place != block {
        return Err(format!("block {block} holds what was written to block {place}"));
    }
    let mut wanted = vec![0; content.len()];
    fill(&mut wanted, block, value);
    match wanted.iter().zip(content).position(|(wanted, found)| wanted != found) {
        None => Ok(value),
        Some(at) => Err(format!("block {block} holds write {value:x} only up to byte {at}")),
    }
}

/// Addresses of nodes, in this order.
pub(crate) fn addresses(cluster: &Cluster, names: &[&str]) -> Outcome<Vec<SocketAddr>> {
    names.iter().map(|name| Ok(cluster.node(name)?.nbd)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, number], 1))
    }

    /// Whether an error of a client that was connected to node 1 from then until then is meant, where node 1 was away from 10 to 20.
    fn is_meant(from: Time, until: Time) -> bool {
        let away = vec![Away { node: node(1), from: 10, until: 20 }];
        let broken = vec![Break { node: node(1), why: String::new(), pinned: false, from, until }];
        Record { away, broken, ..Record::default() }.judge_errors().is_ok()
    }

    #[test]
    fn an_error_of_a_node_that_is_not_being_restarted_is_none_that_is_meant() {
        assert!(is_meant(5, 12) && is_meant(12, 25) && is_meant(5, 25));
        assert!(!is_meant(1, 9) && !is_meant(21, 30));
        let away = vec![Away { node: node(2), from: 10, until: NEVER }];
        let refused =
            Break { node: node(1), why: String::new(), pinned: false, from: 12, until: 15 };
        let record = Record { away, refused: vec![refused.clone()], ..Record::default() };
        assert!(record.judge_errors().is_err());
        let never_away = Record { refused: vec![refused], ..Record::default() };
        assert!(never_away.judge_errors().is_ok(), "of other labs nothing is said");
    }
}

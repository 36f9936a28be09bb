//! Clients that read and write through several nodes at once, and remember everything.
//!
//! Each client has a connection of its own and one request open at a time. A part of the requests
//! goes to a few hot blocks that all clients share, so that they meet; the rest to windows spread
//! over the volume. Every write has a number of its own, from which all bytes of each of its blocks
//! follow, so that what is read tells which write it was, whole and in its place.
//!
//! Always: a write is in the history from the moment it is sent, answered or not; a read is only
//! if it was answered. After an error a client's connection is never used again.
//!
//! Not here: judging the history (`history`), faults (the labs).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::Prng;

use crate::bench::{Failure, Outcome, ensure, let_run, wait_for};
use crate::cluster::Cluster;
use crate::history::{self, Event, NEVER, Time, Value};
use client::{ANSWER_LIMIT, Volume};

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

/// How long a client tries to connect anywhere before it gives up.
const CONNECT_TRIES: Duration = Duration::from_secs(60);

/// Between two tries to connect when no node takes one.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How long anything may go without one acknowledgement.
pub(crate) const PROGRESS_LIMIT: Duration = Duration::from_secs(60);

/// Number of bits of a value that count a client's writes.
const COUNT_BITS: u32 = 40;

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    /// Where it connects, the first choice first.
    pub(crate) nodes: Vec<SocketAddr>,
    /// It stays where it is: an error there is a failure of the lab.
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
    written_bytes: AtomicU64,
    pauses: Mutex<Pauses>,
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

    fn acknowledge(&self, bytes: u64) {
        let first = self.acknowledged.fetch_add(1, Ordering::Relaxed) == 0;
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
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
    /// Blocks that held what no write puts there.
    damage: Vec<String>,
    /// Connections that broke.
    broken: Vec<Break>,
    /// It could not go on.
    gave_up: Option<String>,
}

/// A connection that broke.
#[derive(Clone, Debug)]
pub(crate) struct Break {
    /// To which node.
    pub(crate) node: SocketAddr,
    /// Why, and of which client.
    pub(crate) why: String,
    pinned: bool,
}

/// A running load.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Memory>>,
}

/// What a load came to.
#[derive(Debug, Default)]
pub(crate) struct Record {
    events: Vec<Event>,
    damage: Vec<String>,
    /// Connections that broke.
    pub(crate) broken: Vec<Break>,
    /// Number of writes acknowledged.
    pub(crate) acknowledged: u64,
    /// The longest time without an acknowledgement.
    pub(crate) longest_pause: Duration,
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
            written_bytes: AtomicU64::new(0),
            pauses,
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

    /// Bytes of them.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.shared.written_bytes.load(Ordering::Relaxed)
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

    /// Ends all clients once their open requests are answered or given up.
    pub(crate) fn stop(self) -> Outcome<Record> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut record = Record::default();
        let mut gave_up = Vec::new();
        for thread in self.threads {
            let memory = thread.join().map_err(|_| Failure::from("a client died"))?;
            record.events.extend(memory.events);
            record.damage.extend(memory.damage);
            record.broken.extend(memory.broken);
            gave_up.extend(memory.gave_up);
        }
        if let Some(reason) = gave_up.first() {
            return Err(Failure(format!("{} clients gave up: {reason}", gave_up.len())));
        }
        record.acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        record.longest_pause =
            self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner).longest;
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
        let wrong = history::check(&self.events);
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(Failure(format!("{} blocks are wrong; {first}", wrong.len()))),
        }
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
                    Ok(value) => self.events.push(Event {
                        block,
                        value,
                        write: false,
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
        format!(
            "{} writes acknowledged, {} events judged, longest pause {} ms",
            self.acknowledged,
            self.events.len(),
            self.longest_pause.as_millis()
        )
    }
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
}

impl Client {
    fn new(number: u64, plan: ClientPlan, shared: Arc<Shared>) -> Client {
        let random = Prng::new(shared.plan.seed ^ number.rotate_left(20));
        let memory = Memory::default();
        Client { number, plan, shared, random, choice: 0, count: 0, memory, bytes: Vec::new() }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn run(mut self) -> Memory {
        let mut volume = None;
        let mut without = Instant::now();
        while !self.stopped() {
            let node = self.plan.nodes[self.choice % self.plan.nodes.len()];
            let Some(open) = &mut volume else {
                match Volume::open(node, &self.shared.plan.export, self.plan.limit) {
                    Ok(open) => volume = Some(open),
                    Err(error) if self.plan.pinned || without.elapsed() > CONNECT_TRIES => {
                        self.memory.gave_up = Some(format!("{node}: {error}"));
                        break;
                    }
                    Err(_) => {
                        self.choice += 1;
                        thread::sleep(RETRY_INTERVAL);
                    }
                }
                continue;
            };
            without = Instant::now();
            if let Err(error) = self.request(open) {
                volume = None;
                let why = format!(
                    "{error} (client {}, {} ms)",
                    self.number,
                    self.shared.now() / 1_000_000
                );
                let pinned = self.plan.pinned;
                self.memory.broken.push(Break { node, why, pinned });
                if pinned {
                    break;
                }
                self.choice += 1;
            }
            self.pause();
        }
        self.memory
    }

    fn pause(&mut self) {
        let most = u64::try_from(self.plan.pause.as_micros()).unwrap_or(0);
        if most > 0 {
            let_run(Duration::from_micros(self.random.below(most)));
        }
    }

    fn request(&mut self, volume: &mut Volume) -> io::Result<()> {
        let span = if self.random.once_in(8) { 1 + self.random.below(SPAN_MAX) } else { 1 };
        let first = self.shared.plan.choose(&mut self.random, span);
        let length = usize::try_from(span).unwrap_or(1) * BLOCK_BYTES;
        self.bytes.resize(length, 0);
        if self.plan.reads_only || self.random.below(100) < self.shared.plan.reads_percent {
            return self.read(volume, first);
        }
        self.write(volume, first)
    }

    fn read(&mut self, volume: &mut Volume, first: u64) -> io::Result<()> {
        let asked = self.shared.now();
        volume.read(first * BLOCK, &mut self.bytes)?;
        let answered = self.shared.now();
        for (block, content) in (first..).zip(self.bytes.chunks_exact(BLOCK_BYTES)) {
            match value_of(content, block) {
                Ok(value) => {
                    let event = Event { block, value, write: false, asked, answered };
                    self.memory.events.push(event);
                }
                Err(what) => self.memory.damage.push(what),
            }
        }
        Ok(())
    }

    fn write(&mut self, volume: &mut Volume, first: u64) -> io::Result<()> {
        self.count += 1;
        let value = self.number << COUNT_BITS | self.count;
        for (block, content) in (first..).zip(self.bytes.chunks_exact_mut(BLOCK_BYTES)) {
            fill(content, block, value);
        }
        let asked = self.shared.now();
        let outcome = volume.write(first * BLOCK, &self.bytes);
        let answered = if outcome.is_ok() { self.shared.now() } else { NEVER };
        let blocks = self.bytes.len() / BLOCK_BYTES;
        for (block, _) in (first..).zip(0..blocks) {
            self.memory.events.push(Event { block, value, write: true, asked, answered });
        }
        if outcome.is_ok() {
            self.shared.acknowledge(u64::try_from(self.bytes.len()).unwrap_or(0));
        }
        outcome
    }
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

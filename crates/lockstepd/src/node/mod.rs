//! The running node: one thread, its loop, and everything it holds.
//!
//! A turn: wait for the hands; turn what ended into inputs of machines; step machines until none has
//! anything to say, carrying outputs out in the order in which they stand; send what clients and peers
//! are to get; compute when time alone will change something. Everything queued in a turn leaves with
//! the next wait, in one submission.
//!
//! Always: nothing here decides about replication; no call in a turn waits for a disk or a peer, what
//! would is a job of the `helper`.
//!
//! Not here: one file each: outputs (`carry`), the disk (`disk`), NBD clients (`clients`), other nodes
//! (`peers`), the operator (`admin`), coming and going of resources (`lifecycle`).

mod buffers;
mod carry;
mod clients;
mod disk;
mod helper;
mod resource;
mod standin;

use std::collections::{BTreeSet, VecDeque};
use std::process::ExitCode;

use base::{Duration, Instant};
use export::PIECE_BYTES;
use replica::door::{MemberInput, MemberOutput, ShardInput, ShardOutput};
use sys::{Buffer, BufferPool, Event, Hands, HandsConfig, Listener, Payload};

use crate::config::Config;
use crate::log::{error, info};
use crate::slab::{Key, Slab};
use buffers::Buffers;
use clients::{Asked, Client};
use helper::Helper;
use resource::Resource;

/// Signals that end the node in good order: SIGINT, SIGTERM.
const SIGNALS: [i32; 2] = [2, 15];

/// How long a stop may take before the node ends anyway: what it leaves is then found by the next
/// start, as after a crash.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What an operation of the hands was for.
enum Purpose {
    Signal,
    NbdAccept(Listener),
    NbdReceive(Key),
    NbdSend(Key, u64),
    Disk(disk::DiskPurpose),
}

/// Something for a machine to step on.
enum Work {
    Member(Key, MemberInput),
    Shard(Key, u16, ShardInput),
}

/// The node.
pub(crate) struct Node {
    config: Config,
    hands: Hands,
    buffers: Buffers,
    client_pool: BufferPool,
    zeroes: Buffer,
    operations: Slab<Purpose>,
    work: VecDeque<Work>,
    member_out: Vec<MemberOutput>,
    shard_out: Vec<ShardOutput>,
    resources: Slab<Resource>,
    /// When time alone changes something for a resource.
    wakes: BTreeSet<(Instant, Key)>,
    touched: Vec<Key>,
    clients: Slab<Client>,
    asked: Slab<Asked>,
    /// Clients that may have something to send or receive.
    restless: Vec<Key>,
    /// Disk reads that wait for a buffer.
    starved: VecDeque<disk::Starved>,
    helper: Helper<Node>,
    /// Set once a stop was asked for: when it is over at the latest.
    stopping: Option<Instant>,
}

impl Node {
    /// Opens everything that the configuration names.
    fn open(config: Config) -> Result<Node, String> {
        let mut hands = Hands::new(HandsConfig::default()).map_err(|error| error.to_string())?;
        let zeroes_bytes = usize::try_from(PIECE_BYTES).expect("1 MiB");
        let zeroes = BufferPool::new(zeroes_bytes).take_zeroed(zeroes_bytes);
        let helper =
            Helper::new(hands.waker()).map_err(|error| format!("no helping thread: {error}"))?;
        let mut operations = Slab::default();
        let token = operations.insert(Purpose::Signal).number();
        hands.watch_signals(token, &SIGNALS).map_err(|error| format!("signals: {error}"))?;
        let pool = BufferPool::new(config.buffer_bytes);
        let mut node = Node {
            client_pool: BufferPool::new(config.buffer_bytes / 2),
            config,
            hands,
            buffers: Buffers::new(pool),
            zeroes: zeroes.ok_or("no memory")?,
            operations,
            work: VecDeque::new(),
            member_out: Vec::new(),
            shard_out: Vec::new(),
            resources: Slab::default(),
            wakes: BTreeSet::new(),
            touched: Vec::new(),
            clients: Slab::default(),
            asked: Slab::default(),
            restless: Vec::new(),
            starved: VecDeque::new(),
            helper,
            stopping: None,
        };
        node.listen_nbd()?;
        Ok(node)
    }

    /// A token for an operation of the hands.
    fn token(&mut self, purpose: Purpose) -> u64 {
        self.operations.insert(purpose).number()
    }

    fn run(&mut self) -> Result<(), String> {
        let mut events = Vec::new();
        while !self.is_over() {
            let timeout = self.timeout();
            self.hands.wait(timeout, &mut events).map_err(|error| error.to_string())?;
            for event in events.drain(..) {
                self.on_event(event);
            }
            while let Some(finish) = self.helper.finished() {
                finish(self);
            }
            self.turn();
        }
        Ok(())
    }

    /// Everything between two waits, once the events are in.
    fn turn(&mut self) {
        self.wake_resources();
        loop {
            self.step_all();
            self.feed_starved();
            self.serve_clients();
            if self.work.is_empty() && self.restless.is_empty() {
                break;
            }
        }
        self.note_wakes();
    }

    fn timeout(&self) -> Option<Duration> {
        let now = self.hands.now();
        let first = self.wakes.first().map(|(time, _)| *time);
        first.into_iter().chain(self.stopping).min().map(|time| time.since(now))
    }

    fn on_event(&mut self, event: Event) {
        let key = Key::from_number(event.token);
        // Two kinds of operation have many events under one token.
        let many =
            matches!(self.operations.get(key), Some(Purpose::Signal | Purpose::NbdAccept(_)));
        if many && event.result.is_ok() {
            return self.on_repeated(key, event);
        }
        let purpose = self.operations.remove(key).expect("an operation ends once");
        match purpose {
            Purpose::Signal => error!("signals cannot be watched any more: {:?}", event.result),
            Purpose::NbdAccept(listener) => self.on_accept_ended(&listener, &event),
            Purpose::NbdReceive(client) => self.on_client_received(client, event),
            Purpose::NbdSend(client, bytes) => self.on_client_sent(client, bytes, &event),
            Purpose::Disk(purpose) => self.on_disk(purpose, event),
        }
    }

    fn on_repeated(&mut self, key: Key, event: Event) {
        match (self.operations.get(key), event.payload) {
            (Some(Purpose::NbdAccept(_)), Payload::Socket(socket)) => self.on_client(socket),
            (Some(Purpose::Signal), _) => self.stop(),
            _ => {}
        }
    }

    /// Begins to stop in good order.
    fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        info!("stopping");
        sys::notify("STOPPING=1");
        self.stopping = Some(self.hands.now() + STOP_LIMIT);
    }

    fn is_over(&self) -> bool {
        self.stopping.is_some()
    }
}

/// Runs a node until it is told to stop.
pub(crate) fn run(config: Config) -> ExitCode {
    sys::raise_open_files().ok();
    let name = config.name.clone();
    let mut node = match Node::open(config) {
        Ok(node) => node,
        Err(why) => {
            error!("node {name} cannot start: {why}");
            return ExitCode::FAILURE;
        }
    };
    info!("node {name}: ready, {}", node.hands.describe());
    sys::notify("READY=1");
    match node.run() {
        Ok(()) => {
            info!("node {name}: stopped");
            ExitCode::SUCCESS
        }
        Err(why) => {
            error!("node {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

//! The running node: a thread, its loop, and everything it holds. A node has one thread, or more (`threads`).
//!
//! A turn: wait for the hands; turn what ended into inputs of machines; step machines until none has
//! anything to say, carrying outputs out in the order in which they stand; send what clients and peers
//! are to get; compute when time alone will change something. Everything queued in a turn leaves with
//! the next wait, in one submission.
//!
//! Always: nothing here decides about replication; no call in a turn waits for a peer, or for a disk with
//! a volume; what would is a job of the `helper`; a disk that hangs has failed (`late`). The node's own small files are written in a turn.
//!
//! Not here: one file each: outputs (`carry`), the disk (`disk`), NBD clients (`clients`; of further threads: `homes`), disks of this host (`ublk`), disks of its machines (`vhost`), listeners that fail (`doors`), other nodes
//! (`peers`), who this node is (`identity`), the operator (`admin`), coming and going of resources
//! (`lifecycle`; of parts that are not made: `unmade`), a node's part that changes (`recast`), who may speak about them (`admission`; what of that is told
//! to nodes that were away: `vouchers`), what nodes tell each other of resources (`definitions`).

mod admin;
mod admission;
mod beyond;
mod buffers;
mod carry;
mod clients;
mod count;
mod definitions;
mod deleted;
mod diary;
mod disk;
mod doors;
mod dump;
mod files;
mod fitness;
mod held;
mod helper;
mod holes;
mod homes;
mod hosts;
mod hunger;
mod identity;
mod late;
mod leftover;
mod lifecycle;
mod memory;
mod patience;
mod peers;
mod recast;
mod reservations;
mod resource;
mod roster;
mod sockets;
mod status;
mod stop;
mod sums;
mod threads;
mod ublk;
mod unmade;
mod unread;
mod vhost;
mod vouchers;

pub(crate) use self::memory::BUFFER_BYTES_MIN;
pub(crate) use self::threads::THREADS_MAX;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use base::{Duration, Instant, NodeId, ResourceId};
use export::{Demand, Inputs, PIECE_BYTES};
use replica::door::{MemberInput, MemberOutput, OperationId, ShardInput, ShardOutput};
use sys::{
    Access, Buffer, BufferPool, Errno, Event, File, Handle, Hands, HandsConfig, Listener,
    OpenOptions, Payload, Piece,
};
use wire::admin::codes;

use crate::backing::Refused;
use crate::config::Config;
use crate::log::{error, info};
use crate::slab::{Key, Slab};
use admin::{Admin, Pending};
use buffers::Buffers;
use clients::{Asked, CLIENTS_MAX, Client, Door, Visitors};
use deleted::Deleted;
use doors::Doors;
use helper::Helper;
use homes::Homes;
use hosts::Hosts;
use hunger::Hunger;
use leftover::Leftover;
use lifecycle::Known;
use memory::Memory;
use patience::briefly;
use peers::Peers;
use resource::Resource;
use stop::Stopping;
use threads::{Parcel, Threads};
use ublk::Ublk;
use vhost::Machines;
use vouchers::Unsaid;

/// Signals that are heard: SIGINT and SIGTERM end the node in good order, SIGHUP is as a reload.
const SIGNALS: [i32; 3] = [2, 15, RELOAD_SIGNAL];

/// How often in one turn what ended at once, without the kernel, is followed up: a write to memory is so
/// answered with the submission that sends it to peers. Sockets wait meanwhile.
const ROUNDS_MAX: usize = 4;

/// Bytes of buffers for what comes in at the admin socket.
const ADMIN_BYTES: usize = 4 << 20;

/// Sends on one socket that the hands have at once, at most: one in the kernel, and some behind it. What comes meanwhile
/// leaves together in the next, so that who takes nothing needs no more places than others. More than one for each look in a turn:
/// of sends that leave together it is told late that they have.
const SENDS_MAX: usize = ROUNDS_MAX + 4;

/// SIGHUP.
const RELOAD_SIGNAL: i32 = 1;

/// Between two looks for buffers that other threads give back, or for room before them: nobody wakes a thread for that.
const STARVING_EVERY: Duration = Duration::from_millis(2);

/// What an operation of the hands was for.
enum Purpose {
    Signal,
    NbdAccept(Listener, Door),
    NbdReceive(Key),
    NbdSend(Key, u64),
    /// A machine's disk, by number of its socket.
    VhostAccept(Listener, u32),
    /// Something is there of a machine's front end.
    VhostMessage(Key),
    /// A queue of a machine is kicked.
    VhostKick(Key, u16, Handle),
    /// And when it began.
    Disk(disk::DiskPurpose, Instant),
    /// It took too long, and whoever waited for it was told that it failed. Whose disk it is, and bytes that it holds.
    Late(Key, u64),
    PeerAccept(Listener),
    PeerConnect(NodeId, u16),
    PeerReceive(Key),
    PeerSend(Key, u64),
    AdminAccept(Listener),
    AdminReceive(Key),
    AdminSend(Key, usize),
    Dump(Box<dump::DumpJob>),
}

/// Something for a machine to step on.
enum Work {
    Member(Key, MemberInput),
    Shard(Key, u16, ShardInput),
    /// For another thread, once everything before it is done. In a box, so that the rest moves few bytes.
    Tell(u16, Box<Parcel>),
}

impl Work {
    fn resource(&self) -> Option<Key> {
        match self {
            Work::Member(key, _) | Work::Shard(key, ..) => Some(*key),
            Work::Tell(..) => None,
        }
    }
}

/// What only the first thread has.
struct First {
    deleted: Deleted,
    helper: Helper<Node>,
    /// Keeps a second process from this directory.
    _lock: File,
}

/// The node, as one of its threads has it.
pub(crate) struct Node {
    config: Config,
    threads: Threads,
    hands: Hands,
    buffers: Buffers,
    /// What NBD clients' requests carry; each resource has a share.
    client_pool: BufferPool,
    /// What all threads draw from.
    memory: Arc<Memory>,
    /// How many volumes were open when this thread looked last, and whether that may have changed.
    volumes_open: usize,
    recount: bool,
    client_inputs: Inputs,
    /// Of the admin socket: who asks why clients wait is answered though they have all of theirs.
    admin_pool: BufferPool,
    zeroes: Buffer,
    operations: Slab<Purpose>,
    work: VecDeque<Work>,
    member_out: Vec<MemberOutput>,
    shard_out: Vec<ShardOutput>,
    /// What clients ask for, between two calls: empty, kept for its room.
    demands: Vec<Demand>,
    /// What a client is sent: the same.
    pieces: Vec<Piece>,
    /// Resources that are defined, by name.
    known: BTreeMap<String, Known>,
    /// Those that run.
    resources: Slab<Resource>,
    by_id: BTreeMap<ResourceId, Key>,
    by_life: BTreeMap<u64, Key>,
    /// Lives of resources, counted; of a further thread: the last that began there.
    lives: u64,
    /// Resources in which this node's part is changing.
    recasting: Vec<Key>,
    /// Resources that are no more.
    deleted: Deleted,
    /// Names whose files the helper is about to remove.
    ending: BTreeSet<String>,
    /// When time alone changes something for a resource.
    wakes: BTreeSet<(Instant, Key)>,
    touched: Vec<Key>,
    clients: Slab<Client>,
    asked: Slab<Asked>,
    visitors: Visitors,
    unsaid: Unsaid,
    doors: Doors,
    /// Clients that may have something to send or receive.
    restless: Vec<Key>,
    /// Clients that wait for buffers.
    hunger: Hunger,
    /// For reads of clients that are gone.
    leftover: Leftover,
    /// Clients of other threads than the first.
    homes: Homes,
    /// What hosts by NVMe have set up.
    hosts: Hosts,
    /// Disks of this host.
    ublk: Ublk,
    /// Disks of machines of this host.
    machines: Machines,
    /// When disks are looked at for what they have not done in time.
    disk_look_at: Instant,
    /// What shards ask of disks, on its way there.
    disk_line: disk::Line,
    /// Disk reads that wait for a buffer.
    starved: VecDeque<disk::Starved>,
    peers: Peers,
    admins: Slab<Admin>,
    restless_admins: Vec<Key>,
    /// Admin connections that were closed because what came over them was no request.
    admin_faults: u64,
    /// Operations that members have not finished.
    pending: BTreeMap<OperationId, Pending>,
    next_operation: u64,
    /// When those who listen to events are told again.
    events_at: Option<Instant>,
    helper: Option<Helper<Node>>,
    started: Instant,
    _lock: Option<File>,
    /// Set once a stop was asked for.
    stopping: Option<Stopping>,
}

impl Node {
    /// Opens everything that the configuration names.
    fn open(config: Config) -> Result<Node, Refused> {
        let directory = |why: String| Refused::new(&codes::RUNS_ALREADY, why);
        let listening = |why: String| Refused::new(&codes::CANNOT_LISTEN, why);
        let lacks = |why: String| Refused::new(&codes::CANNOT_START, why);
        let lock = lock_directory(&config.directory).map_err(directory)?;
        let deleted = Deleted::read(&config.directory).map_err(directory)?;
        let hands = Hands::new(HandsConfig::default()).map_err(|error| lacks(error.to_string()))?;
        let zeroes_bytes = usize::try_from(PIECE_BYTES).expect("1 MiB");
        let zeroes = BufferPool::new(zeroes_bytes).take_zeroed(zeroes_bytes);
        let zeroes = zeroes.ok_or_else(|| lacks("no memory".to_owned()))?;
        let helper = Helper::new(hands.waker())
            .map_err(|error| lacks(format!("no helping thread: {error}")))?;
        let memory = Arc::new(Memory::new(config.buffer_bytes));
        let threads = Threads::start(&config, &memory, hands.waker(), &zeroes).map_err(lacks)?;
        let first = First { deleted, helper, _lock: lock };
        let mut node = Node::new(config, memory, hands, threads, zeroes, Some(first));
        let token = node.token(Purpose::Signal);
        let watched = node.hands.watch_signals(token, &SIGNALS);
        watched.map_err(|error| lacks(format!("signals: {error}")))?;
        node.open_peers()?;
        // They count among the clients of what begins to run.
        node.load_disks().map_err(directory)?;
        node.load_sockets().map_err(directory)?;
        node.load_resources().map_err(directory)?;
        node.listen_nbd().map_err(listening)?;
        node.listen_nvme().map_err(listening)?;
        node.open_admin().map_err(listening)?;
        Ok(node)
    }

    /// A thread's part of a node, with nothing in it yet.
    fn new(
        config: Config,
        memory: Arc<Memory>,
        hands: Hands,
        threads: Threads,
        zeroes: Buffer,
        first: Option<First>,
    ) -> Node {
        let (deleted, helper, lock) = match first {
            Some(First { deleted, helper, _lock }) => (deleted, Some(helper), Some(_lock)),
            None => (Deleted::default(), None, None),
        };
        let client_pool = memory.clients.pool();
        Node {
            buffers: Buffers::new(&memory, &client_pool),
            client_pool,
            client_inputs: Inputs::new(CLIENTS_MAX),
            admin_pool: BufferPool::new(ADMIN_BYTES),
            volumes_open: 0,
            recount: false,
            memory,
            config,
            threads,
            hands,
            zeroes,
            operations: Slab::default(),
            work: VecDeque::new(),
            member_out: Vec::new(),
            shard_out: Vec::new(),
            demands: Vec::new(),
            pieces: Vec::new(),
            known: BTreeMap::new(),
            resources: Slab::default(),
            by_id: BTreeMap::new(),
            by_life: BTreeMap::new(),
            lives: 0,
            recasting: Vec::new(),
            deleted,
            ending: BTreeSet::new(),
            wakes: BTreeSet::new(),
            touched: Vec::new(),
            clients: Slab::default(),
            asked: Slab::default(),
            visitors: Visitors::default(),
            unsaid: Unsaid::default(),
            doors: Doors::default(),
            restless: Vec::new(),
            hunger: Hunger::default(),
            leftover: Leftover::default(),
            homes: Homes::default(),
            hosts: Hosts::default(),
            ublk: Ublk::default(),
            machines: Machines::default(),
            disk_look_at: Instant(0),
            disk_line: disk::Line::default(),
            starved: VecDeque::new(),
            peers: Peers::default(),
            admins: Slab::default(),
            restless_admins: Vec::new(),
            admin_faults: 0,
            pending: BTreeMap::new(),
            next_operation: 0,
            events_at: None,
            helper,
            started: sys::clock(),
            _lock: lock,
            stopping: None,
        }
    }

    /// The helping thread, which only the first has.
    fn helper(&self) -> &Helper<Node> {
        self.helper.as_ref().expect("what takes long is asked of the first thread")
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
            // Before anything is looked at that came meanwhile.
            self.look_after_hosts();
            self.look_who_left();
            // What a client asked by another thread was left here before it can have asked elsewhere, and been answered by what
            // is among these events.
            self.take_parcels();
            for event in events.drain(..) {
                self.on_event(event);
            }
            while let Some(finish) = self.helper.as_ref().and_then(Helper::finished) {
                finish(self);
            }
            self.take_parcels();
            self.turn(&mut events);
            if let Some(why) = self.threads.failed.take() {
                return Err(why);
            }
            self.go_on_stopping();
            self.report();
            self.leave_out_the_late();
            self.threads.wake();
        }
        Ok(())
    }

    /// Everything between two waits, once the events are in. `posted` is empty, and only room.
    fn turn(&mut self, posted: &mut Vec<Event>) {
        self.hear_disks();
        self.watch_disks();
        self.wake_resources();
        self.wake_peers();
        self.wake_visitors();
        self.open_doors();
        self.send_stalled_away();
        self.look_for_machines();
        self.go_on_vouching();
        // Before looking who may go on: steps give buffers back.
        self.step_all();
        self.stir_starved_clients();
        self.stir_starved_peers();
        let mut rounds = 0;
        loop {
            self.step_all();
            self.feed_starved();
            self.serve_clients();
            self.serve_peers();
            let recast = self.go_on_recasting() || self.follow_waiting();
            let idle = self.work.is_empty() && self.restless.is_empty();
            if idle && !recast && !self.peers_are_restless() {
                if rounds == ROUNDS_MAX || !self.hands.take_posted(posted) {
                    break;
                }
                rounds += 1;
                for event in posted.drain(..) {
                    self.on_event(event);
                }
            }
        }
        self.measure_memory();
        self.tell_events();
        self.serve_admins();
        self.tell_disks();
        self.note_wakes();
    }

    /// Payload gets what the open volumes are worth: the first thread counts them, each gives up what lies idle beyond it.
    fn measure_memory(&mut self) {
        if std::mem::take(&mut self.recount) && self.threads.is_first() {
            let volumes = self.resources.iter().map(|(_, resource)| resource.volumes_open()).sum();
            self.memory.set_open(volumes);
        }
        let before = std::mem::replace(&mut self.volumes_open, self.memory.open());
        if self.volumes_open < before {
            self.client_pool.trim();
            self.buffers.trim();
        }
    }

    fn timeout(&mut self) -> Option<Duration> {
        let now = self.hands.now();
        let peers = self.peers_wake_at();
        let first = self.wakes.first().map(|(time, _)| *time);
        let stop = self.stopping.as_ref().map(Stopping::wake_at);
        let others = [
            peers,
            self.visitors_wake_at(),
            self.doors_wake_at(),
            self.stalled_wake_at(),
            self.events_wake_at(),
            self.recasts_wake_at(),
            self.late_disks_wake_at(),
            self.sight_wake_at(),
            self.starving_wake_at(),
            self.hosts.wake_at(),
            self.ublk.wake_at(),
            self.machines.wake_at(),
            self.unsaid_wake_at(),
            stop,
        ];
        first.into_iter().chain(others.into_iter().flatten()).min().map(|time| time.since(now))
    }

    /// When to look again for buffers, where somebody waits for one that another thread may give back, and for room before
    /// another thread.
    fn starving_wake_at(&self) -> Option<Instant> {
        let starve = !self.starved.is_empty() || self.peers.starve() || self.clients_starve();
        let starving = self.threads.others() > 0 && (starve || self.threads.holds_parcels());
        starving.then(|| self.hands.now() + STARVING_EVERY)
    }

    fn on_event(&mut self, event: Event) {
        let key = Key::from_number(event.token);
        // Some kinds of operation have many events under one token.
        let many = matches!(
            self.operations.get(key),
            Some(
                Purpose::Signal
                    | Purpose::NbdAccept(..)
                    | Purpose::VhostAccept(..)
                    | Purpose::PeerAccept(_)
                    | Purpose::AdminAccept(_)
            )
        );
        if many && event.result.is_ok() {
            return self.on_repeated(key, event);
        }
        let purpose = self.operations.remove(key).expect("an operation ends once");
        match purpose {
            Purpose::Signal => error!("signals cannot be watched any more: {:?}", event.result),
            Purpose::VhostAccept(_, socket) if event.result == Err(Errno::CANCELED) => {
                self.forget_socket(socket);
            }
            door @ (Purpose::NbdAccept(..)
            | Purpose::VhostAccept(..)
            | Purpose::PeerAccept(_)
            | Purpose::AdminAccept(_)) => self.on_accept_ended(door, &event),
            Purpose::VhostMessage(client) => self.on_machine_says(client, &event),
            Purpose::VhostKick(client, queue, kick) => self.on_kick(client, queue, kick, &event),
            Purpose::NbdReceive(client) => self.on_client_received(client, event),
            Purpose::NbdSend(client, bytes) => self.on_client_sent(client, bytes, &event),
            Purpose::Disk(purpose, _) => self.on_disk(purpose, event),
            Purpose::Late(resource, bytes) => self.on_late(resource, key, bytes, &event),
            Purpose::PeerConnect(node, stream) => {
                self.on_peer_connected(node, stream, &event);
            }
            Purpose::PeerReceive(key) => self.on_peer_received(key, event),
            Purpose::PeerSend(key, bytes) => self.on_peer_sent(key, bytes, &event),
            Purpose::AdminReceive(key) => self.on_admin_received(key, event),
            Purpose::AdminSend(key, bytes) => self.on_admin_sent(key, bytes, &event),
            Purpose::Dump(job) => self.on_dump_read(*job, event),
        }
    }

    fn on_repeated(&mut self, key: Key, event: Event) {
        match (self.operations.get(key), event.payload) {
            (Some(&Purpose::NbdAccept(_, door)), Payload::Socket(socket)) => {
                self.on_client(socket, door);
            }
            (Some(&Purpose::VhostAccept(_, number)), Payload::Socket(socket)) => {
                self.on_machine(number, socket);
            }
            (Some(Purpose::PeerAccept(_)), Payload::Socket(socket)) => self.on_stranger(socket),
            (Some(Purpose::AdminAccept(_)), Payload::Socket(socket)) => self.on_admin(socket),
            (Some(Purpose::Signal), _) if event.result == Ok(RELOAD_SIGNAL.unsigned_abs()) => {
                self.reload(None);
            }
            (Some(Purpose::Signal), _) => self.stop(true),
            _ => {}
        }
    }
}

/// Makes this process the only one that is the node of this directory. One that was just killed may not have ended yet.
fn lock_directory(directory: &Path) -> Result<File, String> {
    let path = directory.join("lock");
    let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
    let new = OpenOptions { create_new: true, ..options };
    let open = || match File::open(&path, new) {
        Err(Errno::EXISTS) => File::open(&path, options),
        other => other,
    };
    let file = open().map_err(|errno| format!("{}: {errno}", path.display()))?;
    briefly(|| file.lock(), |errno| *errno == Errno::BUSY).map_err(|errno| match errno {
        Errno::BUSY => format!(
            "{}: another process is the node of this directory; stop it first",
            directory.display()
        ),
        errno => format!("{}: {errno}", path.display()),
    })?;
    Ok(file)
}

/// Runs a node until it is told to stop.
pub(crate) fn run(config: Config) -> ExitCode {
    // Before any thread is started, so that every thread inherits it.
    sys::block_signals(&SIGNALS).ok();
    sys::raise_open_files().ok();
    let spared = sys::become_io_flusher();
    crate::log::begin();
    if let Err(errno) = spared {
        info!(
            "the kernel does not spare this node when memory is short: PR_SET_IO_FLUSHER: {errno}"
        );
    }
    let name = config.name.clone();
    let mut node = match Node::open(config) {
        Ok(node) => node,
        Err(why) => {
            let code = why.code;
            let (cause, remedy) = (code.cause, code.remedy);
            error!("node {name} cannot start: {why}\n  cause:  {cause}\n  remedy: {remedy}");
            return ExitCode::FAILURE;
        }
    };
    let threads = match (node.threads.count(), node.config.threads_chosen_from) {
        (count, Some(cores)) => format!("threads: {count}, chosen for {cores} cores, "),
        (1, None) => String::new(),
        (count, None) => format!("{count} threads, "),
    };
    info!("node {name}: ready, {threads}{}", node.hands.describe());
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

#[cfg(test)]
mod tests {
    use super::lock_directory;

    #[test]
    fn a_node_that_starts_waits_until_the_one_before_it_has_ended() {
        let name = format!("lockstepd-lock-{:x}", sys::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let before = lock_directory(&directory).expect("nobody has it");
        let told = lock_directory(&directory).map(drop).expect_err("somebody has it");
        assert!(told.contains("another process is the node"), "{told}");
        let (begins, begun) = std::sync::mpsc::channel();
        let there = directory.clone();
        let next = std::thread::spawn(move || {
            begins.send(()).expect("it is waited for");
            lock_directory(&there).map(drop)
        });
        begun.recv().expect("it begins");
        drop(before);
        assert_eq!(next.join().expect("it ends"), Ok(()));
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

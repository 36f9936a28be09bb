//! The threads of a node, and what they say to each other.
//!
//! The first thread has the members, the operator, and clients until they have opened something, which may be at home on any then
//! (`homes`). Shards are dealt to all threads in
//! turn, those of each resource from another thread on (`place`), so that many small volumes use all
//! of them as well as one large one. A further thread has hands, buffers, shares of the stores and
//! streams of its own, and runs the same loop on a `Node` in which everything else is empty. Numbers
//! of threads are powers of two, so two nodes deal shards to streams alike, however many threads
//! each has: a frame is received, and a disk is asked, on the thread of its shard.
//!
//! What passes between threads is a `Parcel`. A shard and its member speak by parcels, as the simulator
//! lets them: later, in order. A client's request for a shard of another thread travels with its
//! bytes, and so does the answer.
//!
//! Always: parcels of one thread to another arrive in the order in which they were sent; nobody waits for
//! one; a thread that fails ends the node.
//!
//! Not here: what parcels do, but for where they go: shards (`carry`), streams (`peers::streams`), the
//! beginning and end of machines (`lifecycle`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};

use base::{Duration, Epoch, Instant, NodeId, Request, RequestId, ResourceId};
use replica::door::{FromShard, MemberInput, ShardInput, ToShard};
use replica::shard::{ShardSetup, ShardStatus};
use replica::{Geometry, Shard};
use sys::{Buffer, Errno, Hands, HandsConfig, Waker};
use wire::admin::Rot;
use wire::{SHARDS_MAX, STREAMS_MAX};

use super::disk::{LocalDisk, LocalVolume};
use super::held;
use super::homes::{FarAnswer, Guest, Wish, Word};
use super::memory::Memory;
use super::peers::{Connection, Lives, Stream, Told};
use super::resource::{Accounts, Resource, Seat};
use super::stop::has_late;
use super::ublk::Offer;
use super::{Node, Work};
use crate::config::Config;
use crate::log::error;
use crate::slab::Key;

/// Threads of one node, at most: a resource has no more shards.
pub(crate) const THREADS_MAX: u16 = SHARDS_MAX;

/// Between two looks of the first thread at shards of others, for whoever asks how they are.
const SIGHT_EVERY: Duration = Duration::from_millis(50);

/// Parcels that lie before a thread, at most; further ones wait where they are from. Room for them is made at the start.
const PARCELS_MAX: usize = 1024;

/// What one thread tells another.
pub(super) enum Parcel {
    /// To a further thread, first: how to reach all, and 1 MiB of zeroes.
    Doors(Vec<Door>, Buffer),
    /// A resource begins.
    Begin(Box<Beginning>),
    /// Its nodes have changed.
    Nodes { life: u64, nodes: Vec<NodeId> },
    /// The machines of this life are gone.
    End { life: u64 },
    /// From a member to all shards of a thread.
    ToShards { life: u64, message: ToShard },
    /// From a shard to its member.
    FromShard { life: u64, shard: u16, message: FromShard },
    /// How a shard is, for status.
    Sight { life: u64, shard: u16, sight: Box<Sight> },
    /// A client's request; its buffer travels beside it.
    Request {
        life: u64,
        shard: u16,
        id: RequestId,
        request: Request,
        bytes: Option<Buffer>,
        /// When its client's thread handed it on.
        came: Instant,
    },
    /// Its client is gone.
    Withdraw { life: u64, shard: u16, id: RequestId },
    /// What became of a request.
    Answer(FarAnswer),
    /// A client is to be at home there.
    Guest(Box<Guest>),
    /// To its home.
    Word { client: Key, word: Word },
    /// From its home.
    Wish { client: Key, wish: Wish },
    /// It has gone; for a fault of its own.
    Went { client: Key, is_fault: bool },
    /// A thread is about to answer a client without an error, for the first time since the last loss of all caches.
    Tells { life: u64 },
    /// Such a client is answered: at the next loss all are told.
    Told { life: u64 },
    /// A queue of a disk of this host is to be served there.
    Queue(Box<Offer>),
    /// Users of the thread's queues of a disk get errors.
    EndQueues { disk: u32 },
    /// A queue has ended.
    QueueEnded { disk: u32 },
    /// The kernel has nothing more for one that is served.
    QueueStopped { disk: u32 },
    /// All clients of a resource are to go; why.
    Drop { life: u64, why: String },
    /// No client's further requests are taken.
    Shut,
    /// The machines of this life are about to be exchanged: what clients ask is to wait.
    Hold { life: u64, round: u64 },
    /// A thread's clients have nothing open there any more.
    Held { thread: u16, life: u64, round: u64 },
    /// They were: of the old ones this was known, the latest loss of all caches, and whether a client was answered since.
    Since { life: u64, lost: Epoch, told: bool },
    /// They are not exchanged.
    Release { life: u64 },
    /// A session about a resource begins.
    PeerUp { peer: NodeId, resource: ResourceId, told: Told },
    /// It has ended.
    PeerDown { peer: NodeId, resource: ResourceId, life: u64 },
    /// Machines have heard that it ended.
    Heard { peer: NodeId, resource: ResourceId, life: u64 },
    /// A stream with a peer is to be opened, by dialling if there are addresses.
    OpenStream { peer: NodeId, stream: Stream, dials: Option<Vec<SocketAddr>> },
    /// A peer has opened it.
    TakeStream(Box<Connection>),
    /// It is in use.
    StreamUp { peer: NodeId, bundle: u64 },
    /// It has ended, or could not be opened.
    StreamEnded { peer: NodeId, stream: Stream, was_up: bool, why: String },
    /// The bundle it belongs to has ended.
    CloseStreams { peer: NodeId, bundle: u64 },
    /// Lives of a resource that both ends have joined in a stream.
    Shared { peer: NodeId, stream: Stream, resource: ResourceId, lives: Option<Lives> },
    /// A connection was closed for a fault of the peer.
    Fault,
    /// A disk failed a request of a shard.
    DiskFailure { life: u64, errno: Errno },
    /// Rot was found, or was repaired.
    Rot { life: u64, more: Rot },
    /// So much waits for a peer, or no longer, that clients should wait.
    Congested { thread: u16, on: bool },
    /// Clients wait for memory, or no longer.
    Hungry { thread: u16, on: bool },
    /// Who this node is, and whom it believes.
    Renew(Box<(Config, link::Config, u64)>),
    /// End once nothing is on its way to a disk.
    Settle,
    /// That is so; nothing more is begun. Whose disks may still do what they were given up for.
    Settled { thread: u16, late: Vec<ResourceId> },
    /// The thread cannot go on.
    Failed(String),
}

/// What a further thread needs to have a part of a resource.
pub(super) struct Beginning {
    pub(super) name: String,
    pub(super) id: ResourceId,
    pub(super) life: u64,
    pub(super) geometry: Geometry,
    /// Its nodes: those that may speak about it.
    pub(super) nodes: Vec<NodeId>,
    /// Number of shards of all threads.
    pub(super) shards: u16,
    pub(super) setups: Vec<ShardSetup>,
    /// Empty if there is no disk, or no shard for this thread.
    pub(super) volumes: Vec<LocalVolume>,
    pub(super) accounts: Accounts,
}

/// How a shard of another thread was a moment ago.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) status: ShardStatus,
    /// Sectors that were written here and that a node lacks.
    pub(crate) changed: BTreeMap<NodeId, u64>,
}

/// Where parcels for a thread are left.
#[derive(Clone)]
pub(super) struct Door {
    parcels: SyncSender<Parcel>,
    waker: Waker,
}

/// One thread's view of all.
pub(super) struct Threads {
    own: u16,
    /// Of every thread, by number; none if there is only one.
    doors: Vec<Door>,
    /// Threads that have something new.
    to_wake: Vec<bool>,
    /// Parcels for each thread that found no room before it, in order.
    held: Vec<VecDeque<Parcel>>,
    inbox: Receiver<Parcel>,
    /// Others at which so much waits that clients should wait.
    congested: Vec<bool>,
    /// What this one said last.
    said_congested: bool,
    /// Of the first thread: others that have ended in good order, and what they said of disks that hang.
    settled: Vec<Option<Vec<ResourceId>>>,
    /// Of a further one: it is to end, and then has.
    settling: bool,
    pub(super) asked_to_settle: bool,
    pub(super) over: bool,
    /// Of the first thread: why another one failed.
    pub(super) failed: Option<String>,
    /// Of a further one: resources of which the first thread has not seen the newest, and when it will.
    unseen: BTreeSet<Key>,
    sight_at: Option<Instant>,
}

impl Threads {
    fn new(own: u16, doors: Vec<Door>, inbox: Receiver<Parcel>) -> Threads {
        let count = doors.len().max(1);
        Threads {
            own,
            doors,
            to_wake: vec![false; count],
            held: (0..count).map(|_| VecDeque::new()).collect(),
            inbox,
            congested: vec![false; count],
            said_congested: false,
            settled: vec![None; count],
            settling: false,
            asked_to_settle: false,
            over: false,
            failed: None,
            unseen: BTreeSet::new(),
            sight_at: None,
        }
    }

    /// Starts the further threads that the configuration asks for; this one is the first.
    pub(super) fn start(
        config: &Config,
        memory: &Arc<Memory>,
        own: Waker,
        zeroes: &Buffer,
    ) -> Result<Threads, String> {
        if config.threads == 1 {
            return Ok(Threads::new(0, Vec::new(), sync_channel(1).1));
        }
        let (parcels, inbox) = sync_channel(PARCELS_MAX);
        let mut doors = vec![Door { parcels, waker: own }];
        for number in 1..config.threads {
            let (parcels, inbox) = sync_channel(PARCELS_MAX);
            let (ready, waits) = channel();
            let (config, memory) = (config.clone(), Arc::clone(memory));
            std::thread::Builder::new()
                .name(format!("shards-{number}"))
                .spawn(move || further(number, config, memory, inbox, &ready))
                .map_err(|error| format!("no thread {number}: {error}"))?;
            let waker = waits.recv().map_err(|_| format!("thread {number} ended at once"))??;
            doors.push(Door { parcels, waker });
        }
        let threads = Threads::new(0, doors.clone(), inbox);
        for door in &doors[1..] {
            door.parcels.send(Parcel::Doors(doors.clone(), zeroes.clone())).ok();
        }
        Ok(threads)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.doors.len().max(1)).expect("a few")
    }

    /// How many there are beside this one.
    pub(super) fn others(&self) -> usize {
        usize::from(self.count()) - 1
    }

    /// Whether this is the first.
    pub(super) fn is_first(&self) -> bool {
        self.own == 0
    }

    /// Which one this is.
    pub(super) fn number(&self) -> u16 {
        self.own
    }

    /// Whether it is this one.
    pub(super) fn is(&self, thread: u16) -> bool {
        self.own == thread
    }

    /// Whose a stream is.
    pub(super) fn of_stream(&self, stream: u16) -> u16 {
        stream % self.count()
    }

    /// Whose a shard is.
    pub(super) fn of_shard(&self, resource: ResourceId, shard: u16) -> u16 {
        place(resource, shard) % self.count()
    }

    /// Whether that is this one.
    pub(super) fn is_own(&self, resource: ResourceId, shard: u16) -> bool {
        self.of_shard(resource, shard) == self.own
    }

    /// Whether so much waits for a peer on another thread that clients should wait.
    pub(super) fn congested(&self) -> bool {
        self.congested.iter().any(|on| *on)
    }

    /// Whether what is this resource's on other threads is at rest for good.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.iter().skip(1).all(Option::is_some)
    }

    /// Whether the thread that has this shard is at rest for good.
    pub(super) fn is_settled_at(&self, resource: ResourceId, shard: u16) -> bool {
        let late = self.settled[usize::from(self.of_shard(resource, shard))].as_ref();
        late.is_some_and(|late| !late.contains(&resource))
    }

    /// Puts it before a thread, or behind what waits for room there: that is looked through first (`Node::leave_out_the_late`).
    fn send(&mut self, thread: u16, parcel: Parcel) {
        let place = usize::from(thread);
        let others_wait = !self.held[place].is_empty();
        self.held[place].push_back(parcel);
        if !others_wait {
            self.hand_over(place);
        }
    }

    /// Takes out requests of clients with several ways that wait for room, and are late; returns them.
    pub(super) fn take_late(
        &mut self,
        mut is_late: impl FnMut(RequestId) -> bool,
    ) -> Vec<RequestId> {
        let mut late = Vec::new();
        for held in &mut self.held {
            held.retain(|parcel| match parcel {
                Parcel::Request { id, request, .. } if request.way.is_some() && is_late(*id) => {
                    late.push(*id);
                    false
                }
                _ => true,
            });
        }
        late
    }

    /// Puts parcels before a thread, as far as there is room.
    fn hand_over(&mut self, place: usize) {
        while let Some(parcel) = self.held[place].pop_front() {
            match self.doors[place].parcels.try_send(parcel) {
                Ok(()) => self.to_wake[place] = true,
                Err(TrySendError::Full(parcel)) => {
                    self.held[place].push_front(parcel);
                    break;
                }
                // A thread that is gone needs nothing any more.
                Err(TrySendError::Disconnected(_)) => {}
            }
        }
    }

    /// Whether parcels wait for room before another thread.
    pub(super) fn holds_parcels(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    /// Hands over what found no room before, and wakes whoever has something new.
    pub(super) fn wake(&mut self) {
        for place in 0..self.doors.len() {
            self.hand_over(place);
        }
        for (door, wake) in self.doors.iter().zip(&mut self.to_wake) {
            if std::mem::take(wake) {
                door.waker.wake();
            }
        }
    }
}

/// Where in the turn of threads, and of streams, a shard stands; both ends of a stream come to the same.
pub(super) fn place(resource: ResourceId, shard: u16) -> u16 {
    let first = resource.0 % u64::from(STREAMS_MAX);
    u16::try_from(first).expect("below a few") + shard
}

/// A bug on one thread must not leave a node with half of its shards.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The life of a further thread.
fn further(
    number: u16,
    config: Config,
    memory: Arc<Memory>,
    inbox: Receiver<Parcel>,
    ready: &Sender<Result<Waker, String>>,
) {
    let _whole = Whole;
    let hands = match Hands::new(HandsConfig::default()) {
        Ok(hands) => hands,
        Err(why) => return drop(ready.send(Err(why.to_string()))),
    };
    if ready.send(Ok(hands.waker())).is_err() {
        return;
    }
    // Sent next, or the start was given up.
    let Ok(Parcel::Doors(doors, zeroes)) = inbox.recv() else { return };
    let threads = Threads::new(number, doors, inbox);
    let mut node = Node::new(config, memory, hands, threads, zeroes, None);
    if let Err(why) = node.run() {
        error!("thread {number}: {why}");
        node.tell(0, Parcel::Failed(why));
        node.threads.wake();
    }
}

impl Node {
    /// Gives a parcel to a thread; to this one at once.
    pub(super) fn tell(&mut self, thread: u16, parcel: Parcel) {
        if thread == self.threads.own {
            self.on_parcel(parcel);
        } else {
            self.threads.send(thread, parcel);
        }
    }

    /// Gives one to every other thread.
    pub(super) fn tell_others(&mut self, parcel: impl Fn() -> Parcel) {
        for thread in 0..self.threads.count() {
            if thread != self.threads.own {
                self.threads.send(thread, parcel());
            }
        }
    }

    /// Takes what other threads have left.
    pub(super) fn take_parcels(&mut self) {
        while let Ok(parcel) = self.threads.inbox.try_recv() {
            self.on_parcel(parcel);
        }
    }

    pub(super) fn on_parcel(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Request { life, .. } | Parcel::Withdraw { life, .. } if self.is_early(life) => {
                self.keep_early(parcel);
            }
            Parcel::Doors(..) => {}
            Parcel::Begin(beginning) => self.begin_here(*beginning),
            Parcel::End { life } => self.end_here(life),
            Parcel::Nodes { life, nodes } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.take_nodes(key, nodes);
            }
            Parcel::ToShards { life, message } => {
                let Some(key) = self.resource_of_life(life) else { return };
                if let ToShard::Install { configuration, leaves, .. } = &message {
                    self.on_install(key, configuration);
                    if *leaves {
                        self.lose_clients(key);
                    }
                }
                self.push_to_shards(key, &message);
                self.take_ahead();
            }
            Parcel::FromShard { life, shard, message } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.work.push_back(Work::Member(key, MemberInput::Shard { shard, message }));
            }
            Parcel::Sight { life, shard, sight } => {
                let Some(key) = self.resource_of_life(life) else { return };
                let seat = self.resources.get_mut(key).and_then(|entry| entry.seat_mut(shard));
                if let Some(seat) = seat {
                    *seat = Seat::There(sight);
                }
            }
            Parcel::Request { life, shard, id, request, bytes, came } => {
                let waited = self.hands.now().since(came);
                let Some(request) = held::after_its_way(request, waited) else {
                    return self.answer_late(life, id);
                };
                // Who asked is told when the resource ends that its machines are gone.
                let Some(key) = self.resource_of_life(life) else { return };
                let buffer = bytes.map(|bytes| self.buffers.name(key, bytes));
                let request = Request { buffer, ..request };
                self.work.push_back(Work::Shard(key, shard, ShardInput::Request { id, request }));
            }
            Parcel::Withdraw { life, shard, id } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.work.push_back(Work::Shard(key, shard, ShardInput::Withdraw { id }));
            }
            Parcel::Answer(answer) => self.on_far_answer(answer),
            Parcel::Renew(renewed) => {
                let (config, identity, process) = *renewed;
                self.peers.process = process;
                self.take_identity(config, identity);
                self.drop_revoked_clients();
            }
            Parcel::Settle => {
                self.threads.settling = true;
                self.cool();
            }
            Parcel::Settled { thread, late } => {
                self.threads.settled[usize::from(thread)] = Some(late);
            }
            Parcel::Failed(why) => self.threads.failed = Some(why),
            other => self.on_trouble_parcel(other),
        }
    }

    /// What went wrong on another thread, or is too much there.
    fn on_trouble_parcel(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Fault => self.peers.faults += 1,
            Parcel::DiskFailure { life, errno } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.note_disk_failure(key, errno);
            }
            Parcel::Rot { life, more } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.count_rot(key, more);
            }
            Parcel::Congested { thread, on } => {
                self.threads.congested[usize::from(thread)] = on;
                if !on {
                    self.stir_clients();
                }
            }
            Parcel::Hungry { thread, on } => self.hear_of_hunger(thread, on),
            other => self.on_home_parcel(other),
        }
    }

    /// What concerns clients of further threads.
    fn on_home_parcel(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Guest(guest) => self.welcome(*guest),
            Parcel::Word { client, word } => self.on_word(client, word),
            Parcel::Wish { client, wish } => self.on_wish(client, wish),
            Parcel::Went { client, is_fault } => self.on_gone(client, is_fault),
            Parcel::Tells { life } => self.let_tell(life),
            Parcel::Told { life } => self.on_told(life),
            Parcel::Queue(offer) => self.take_queue(*offer),
            Parcel::EndQueues { disk } => self.end_queues(disk),
            Parcel::QueueEnded { disk } => self.on_queue_ended(disk),
            Parcel::QueueStopped { disk } => self.on_queue_stopped(disk),
            Parcel::Drop { life, why } => {
                let Some(key) = self.resource_of_life(life) else { return };
                self.drop_clients_of(key, &why);
            }
            Parcel::Shut => {
                self.shut_disks();
                self.shut_clients();
            }
            Parcel::Hold { life, round } => self.hold_here(life, round),
            Parcel::Held { thread, life, round } => self.on_held(thread, life, round),
            Parcel::Since { life, lost, told } => self.go_on_since(life, lost, told),
            Parcel::Release { life } => self.release_here(life),
            stream => self.on_stream_parcel(stream),
        }
    }

    /// What concerns streams and sessions.
    fn on_stream_parcel(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::PeerUp { peer, resource, told } => self.begin_session(peer, resource, told),
            Parcel::PeerDown { peer, resource, life } => {
                self.on_session_ended(peer, resource, life);
            }
            Parcel::Heard { peer, resource, life } => self.on_heard(peer, resource, life),
            Parcel::OpenStream { peer, stream, dials } => self.open_stream(peer, stream, dials),
            Parcel::TakeStream(connection) => self.take_stream(*connection),
            Parcel::StreamUp { peer, bundle } => self.on_stream_up(peer, bundle),
            Parcel::StreamEnded { peer, stream, was_up, why } => {
                self.on_stream_ended(peer, stream, was_up, &why);
            }
            Parcel::CloseStreams { peer, bundle } => self.close_streams(peer, bundle),
            Parcel::Shared { peer, stream, resource, lives } => {
                self.on_shared(peer, stream, resource, lives);
            }
            _ => unreachable!("told apart before"),
        }
    }

    pub(super) fn resource_of_life(&self, life: u64) -> Option<Key> {
        self.by_life.get(&life).copied()
    }

    /// A member speaks to the shards that this thread has.
    pub(super) fn push_to_shards(&mut self, key: Key, message: &ToShard) {
        let Some(resource) = self.resources.get(key) else { return };
        for shard in resource.own_shards() {
            let input = ShardInput::Member(message.clone());
            self.work.push_back(Work::Shard(key, shard, input));
        }
    }

    /// Makes this thread's part of a resource.
    fn begin_here(&mut self, beginning: Beginning) {
        let Beginning { name, id, life, geometry, nodes, shards, setups, volumes, accounts } =
            beginning;
        let now = self.hands.now_fresh();
        let mut seats: Vec<Seat> = Vec::new();
        seats.resize_with(usize::from(shards), || Seat::There(Box::default()));
        let mut outputs = Vec::new();
        for setup in setups {
            let (index, mut out) = (setup.index, Vec::new());
            let shard = Shard::new(now, setup, &mut out);
            seats[usize::from(index)] = Seat::Here(Box::new(shard));
            outputs.push((index, out));
        }
        let disk = (!volumes.is_empty()).then_some(LocalDisk { volumes, record: None });
        let mut resource = Resource::new(name, id, geometry, seats, disk);
        resource.life = life;
        resource.nodes = nodes;
        resource.accounts = accounts;
        let key = self.resources.insert(resource);
        self.by_id.insert(id, key);
        self.by_life.insert(life, key);
        self.lives = life;
        for (shard, mut out) in outputs {
            self.carry_shard(key, shard, &mut out);
        }
        self.tell_all_resources();
        self.go_on_with(key);
        self.take_early();
    }

    fn end_here(&mut self, life: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        if self.remove_machines(key).is_some() {
            self.forget_asked_of(key);
            self.keep_for_next(key);
        }
        self.tell_all_resources();
    }

    /// The first thread is to see how the shards of a resource are; now, since an end is told, or when it is time.
    pub(super) fn show(&mut self, key: Key, is_end: bool) {
        if self.threads.is_first() {
            return;
        }
        if is_end {
            return self.show_now(key, true);
        }
        self.threads.unseen.insert(key);
        let next = self.hands.now() + SIGHT_EVERY;
        self.threads.sight_at.get_or_insert(next);
    }

    fn show_now(&mut self, key: Key, is_end: bool) {
        let Some(resource) = self.resources.get(key) else { return };
        for (shard, sight) in resource.sights(is_end) {
            let parcel = Parcel::Sight { life: resource.life, shard, sight: Box::new(sight) };
            self.threads.send(0, parcel);
        }
    }

    /// When a further thread has to show something.
    pub(super) fn sight_wake_at(&self) -> Option<Instant> {
        self.threads.sight_at
    }

    /// What each of several threads does at the end of each turn.
    pub(super) fn report(&mut self) {
        if self.threads.others() == 0 {
            return;
        }
        let on = self.peers.congested();
        if on != self.threads.said_congested {
            self.threads.said_congested = on;
            let thread = self.threads.own;
            self.tell_others(|| Parcel::Congested { thread, on });
        }
        self.tell_of_hunger();
        if self.threads.is_first() {
            return;
        }
        self.say_held();
        if self.threads.sight_at.is_some_and(|at| at <= self.hands.now()) {
            self.threads.sight_at = None;
            while let Some(key) = self.threads.unseen.pop_first() {
                self.show_now(key, false);
            }
        }
        // While something waits for room before others it is not over, and may still take and confirm a peer's write.
        let idle = |node: &Node| node.resources.keys().iter().all(|key| node.is_idle(*key));
        if self.threads.settling && !self.threads.holds_parcels() && idle(self) {
            self.threads.over = true;
            let thread = self.threads.own;
            let all = self.resources.iter();
            let late = all.filter(|(key, _)| has_late(&self.operations, *key));
            let late = late.map(|(_, resource)| resource.id).collect();
            self.tell(0, Parcel::Settled { thread, late });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Door, Parcel, THREADS_MAX, Threads, place};
    use base::{
        Duration, HostId, Instant, Op, Request, RequestId, ResourceId, Span, VolumeId, Way,
    };
    use std::sync::mpsc::{Receiver, sync_channel};
    use sys::{Hands, HandsConfig};

    /// One of two threads, and what arrives at the other, before which there is room for two parcels.
    fn two() -> (Threads, Receiver<Parcel>) {
        let (parcels, theirs) = sync_channel(2);
        let waker = Hands::new(HandsConfig::default()).expect("an engine").waker();
        let door = Door { parcels, waker };
        (Threads::new(0, vec![door.clone(), door], sync_channel(1).1), theirs)
    }

    #[test]
    fn parcels_that_find_no_room_before_a_thread_arrive_later_in_order() {
        let (mut threads, theirs) = two();
        (0..5).for_each(|thread| threads.send(1, Parcel::Settled { thread, late: Vec::new() }));
        let mut came = Vec::new();
        while came.len() < 5 {
            let held = threads.holds_parcels();
            while let Ok(Parcel::Settled { thread, .. }) = theirs.try_recv() {
                came.push(thread);
            }
            assert_eq!(held, came.len() < 5);
            threads.wake();
        }
        assert_eq!(came, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_found_no_room_is_not_handed_over_before_it_is_looked_whether_it_is_late() {
        let (mut threads, theirs) = two();
        let request = |id: u64, way: Option<Way>| {
            let span = Span::new(0, 8).expect("it has sectors");
            let (volume, host) = (VolumeId(0), HostId(0));
            let request =
                Request { op: Op::Write, volume, span, buffer: None, fua: false, way, host };
            let came = Instant(0);
            Parcel::Request { life: 1, shard: 0, id: RequestId(id), request, bytes: None, came }
        };
        let one_of_several = Some(Way { number: 7, stays: Duration(0) });
        (0..4).for_each(|id| threads.send(1, request(id, one_of_several)));
        let came = || match theirs.try_recv() {
            Ok(Parcel::Request { id, .. }) => Some(id.0),
            _ => None,
        };
        assert_eq!([came(), came()], [Some(0), Some(1)]);
        threads.send(1, request(4, None));
        assert_eq!(came(), None, "two wait, and were not looked at");
        assert_eq!(threads.take_late(|id| id.0 != 3), [RequestId(2)]);
        threads.wake();
        assert_eq!([came(), came(), came()], [Some(3), Some(4), None]);
    }

    #[test]
    fn a_shard_and_its_stream_meet_on_one_thread_whatever_two_nodes_have() {
        let powers = [1, 2, 4, THREADS_MAX];
        for (ours, theirs) in powers.into_iter().flat_map(|a| powers.map(|b| (a, b))) {
            let streams = ours.max(theirs);
            for (id, shard) in (0..40).flat_map(|id| (0..8).map(move |shard| (id, shard))) {
                let place = place(ResourceId(id), shard);
                assert_eq!(place % streams % ours, place % ours, "{ours} and {theirs} threads");
            }
        }
    }
}

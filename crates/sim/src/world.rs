//! A whole cluster on one simulated clock: the state of a run, and its loop.
//!
//! Always: one event is handled at a time, to its end; everything random comes from the seed; two runs
//! of one plan are the same, event by event (`hash` proves it).
//!
//! Not here: sessions (`network`), carrying out what machines ask for (`machine`), faults (`fault`),
//! requests (`client`), what must hold (`oracle`, `history`).

use crate::buffer::{Buffers, Content};
use crate::disk::Disk;
use crate::history::{History, OpIndex, Token};
use crate::network::{Link, Session};
use crate::oracle::Oracle;
use crate::paths::Paths;
use crate::plan::{BadWrite, Plan, When};
use crate::queue::{MILLI, Queue, SECOND, Time};
use crate::reservations::Reservations;
use crate::sides::Sides;
use crate::stop::Stopping;
use base::{Incarnation, Instant, NodeId, Prng, RequestId, SessionId, VoterId};
use replica::{FromShard, Member, MemberInput, OperationId, Shard, ShardInput, ShardOutput};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{MemberMessage, ShardMessage};

/// After healing, everything must be well within this time.
pub const LIVENESS: Time = 60 * SECOND;
/// Time between two looks at everything.
pub(crate) const INSPECT: Time = 230 * MILLI;

/// What happens in the world.
#[derive(Debug)]
pub(crate) enum Event {
    /// To the member of a process.
    Member { node: usize, life: u64, input: MemberInput },
    /// To a shard of a process.
    Shard { node: usize, life: u64, shard: u16, input: ShardInput },
    /// A client's request reaches a shard.
    Request {
        node: usize,
        life: u64,
        shard: u16,
        client: usize,
        id: RequestId,
        request: base::Request,
        content: Option<Content>,
    },
    /// From a shard to its member.
    FromShard { node: usize, life: u64, shard: u16, message: FromShard },
    /// A message arrives.
    Frame { session: usize, end: usize, stream: usize, frame: Frame },
    /// An end's member learns of its new session.
    Up { session: usize, end: usize },
    /// A shard learns of a new session.
    ShardUp { session: usize, end: usize, shard: u16 },
    /// A thread of an end learns that its session ended.
    Down { session: usize, end: usize, stream: usize },
    /// A machine asked to be woken; a later wish replaces an earlier one.
    Wake { node: usize, life: u64, stream: usize, at: Time },
    /// A disk request ends.
    Disk { node: usize, life: u64, id: u64 },
    /// A disk has a write in its journal.
    Journal { node: usize, life: u64, id: u64 },
    /// A record is written.
    Record { node: usize, life: u64, number: u64 },
    /// Two nodes try to connect.
    Connect { one: usize, other: usize },
    /// A direction was blocked for too long.
    LinkTimeout { from: usize, to: usize, block: u64 },
    /// A process starts.
    Start { node: usize, life: u64 },
    /// A process that is stopping looks how far it is.
    Stop { node: usize, life: u64 },
    /// A fault begins.
    Fault(usize),
    /// A fault ends.
    FaultEnd(usize),
    /// A flapping link turns.
    Flap(usize),
    /// Nodes that were thought lost come back to the one that was forced.
    Rejoin(usize),
    /// Look at everything from above.
    Inspect,
    /// A client may ask for something.
    Client { client: usize },
    /// All is made well.
    Heal,
    /// Look whether all is well.
    Look,
}

/// What travels in a session.
#[derive(Debug)]
pub(crate) enum Frame {
    Member(MemberMessage),
    Shard(ShardMessage, Option<Content>),
}

/// A running process.
pub(crate) struct Process {
    pub(crate) member: Member,
    pub(crate) shards: Vec<Shard>,
    pub(crate) buffers: Buffers,
    /// Latest wish of each machine, shards first, member last; true time.
    pub(crate) wakes: Vec<Option<Time>>,
    /// When the last message on the way to each shard arrives.
    pub(crate) to_shard: Vec<Time>,
    /// When the last message on the way to the member arrives.
    pub(crate) to_member: Vec<Time>,
    /// Sessions by peer index.
    pub(crate) sessions: BTreeMap<usize, usize>,
    pub(crate) next_session: u64,
    /// Of each shard, how many extents were hot when it was looked at last, and in doubt or un-retired at once, at most.
    pub(crate) hot: Vec<(usize, usize)>,
    /// Buffers that a disk write reads, with its number.
    pub(crate) written: BTreeMap<base::BufferId, u64>,
}

/// A machine with a clock, perhaps a disk, and perhaps a process.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) disk: Option<Disk>,
    /// Older copies of the disk, for those who restore one.
    pub(crate) backups: Vec<Disk>,
    pub(crate) process: Option<Process>,
    /// Grows with each start and each death of a process.
    pub(crate) life: u64,
    pub(crate) boot: u128,
    /// Clock reading at true time 0, and its drift.
    pub(crate) clock_start: u64,
    pub(crate) drift_ppm: i64,
    pub(crate) paused: bool,
    /// Its process is stopping in good order.
    pub(crate) stopping: Option<Stopping>,
    /// Its process has flushed its disk, and written down that nothing is left open there.
    pub(crate) closed: bool,
    pub(crate) deferred: VecDeque<Event>,
    /// Present life of the disk's cache; 0 after it was lost.
    pub(crate) incarnation: Incarnation,
    /// What it was on a disk that is gone.
    pub(crate) swapped: Option<Incarnation>,
    pub(crate) disk_errors: u64,
    pub(crate) stalled_until: Time,
    /// In which step a fault struck its disk last, or ended its process, or that began anew.
    pub(crate) struck: Option<u64>,
    /// Its disk failed something, or what it holds went bad.
    pub(crate) disk_was_bad: bool,
    /// What its disk failed that was answered from its memory, and that it did not take since.
    pub(crate) lacks: crate::lacks::Sectors,
    /// What its shards were told of last.
    pub(crate) installed: Option<wire::Configuration>,
    /// In which step they were.
    pub(crate) installed_in: u64,
    /// In which step a shard of it last failed what waited for a history that was given up.
    pub(crate) left_in: u64,
    /// A page of its metadata went bad on the present disk.
    pub(crate) spoiled: bool,
    /// Its disk will answer a write of data that it does not carry out; where that goes instead, if not to any place.
    pub(crate) bad_write: Option<(BadWrite, Option<u64>)>,
    /// Its disk takes no data.
    pub(crate) disk_full: bool,
    /// A shard saw its disk fail in this life.
    pub(crate) disk_failed: bool,
    /// Identity of its memory, as last stored.
    pub(crate) voter: VoterId,
    /// Its disk was put back to an old copy: the identity on it, once stored again; until it takes another,
    /// nobody may have noticed.
    pub(crate) restored: Option<VoterId>,
    /// The same, as long as the newest configuration takes it for in sync: by this entry.
    pub(crate) put_back: Option<(VoterId, Incarnation)>,
}

impl Node {
    /// Before its first start.
    fn new(index: usize, plan: &Plan, random: &mut Prng) -> Node {
        Node {
            id: node_id(index),
            disk: None,
            backups: Vec::new(),
            process: None,
            life: 0,
            boot: u128::from(random.id()),
            clock_start: SECOND + random.below(1000 * SECOND),
            drift_ppm: plan.drift_ppm[index],
            paused: false,
            deferred: VecDeque::new(),
            incarnation: Incarnation(0),
            swapped: None,
            stopping: None,
            closed: false,
            disk_errors: 0,
            stalled_until: 0,
            struck: None,
            disk_was_bad: false,
            lacks: BTreeSet::new(),
            installed: None,
            installed_in: 0,
            left_in: 0,
            spoiled: false,
            bad_write: None,
            disk_full: false,
            disk_failed: false,
            voter: VoterId(0),
            restored: None,
            put_back: None,
        }
    }
}

/// An open request.
pub(crate) struct Open {
    pub(crate) node: usize,
    pub(crate) client: usize,
    pub(crate) op: OpIndex,
    /// When the node took it.
    pub(crate) taken: Option<Time>,
    /// The same write, asked for by ways that its client gave up.
    pub(crate) earlier: Vec<OpIndex>,
    /// What the node knew then.
    pub(crate) knew: crate::excuses::Knew,
}

/// A rule was broken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// Which checker saw it.
    pub checker: &'static str,
    /// What it saw.
    pub text: String,
    /// In which step.
    pub step: u64,
    /// At which time.
    pub at: Time,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The first rule that was broken.
    pub failure: Option<Failure>,
    /// Steps taken.
    pub steps: u64,
    /// Simulated time.
    pub time: Time,
    /// Of everything that happened, in order.
    pub hash: u64,
    /// Rare branches taken, and how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// Requests answered without an error.
    pub answered: u64,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// The run.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) queue: Queue<Event>,
    pub(crate) random: Prng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) history: History,
    pub(crate) oracle: Oracle,
    /// Of a resource without quorum.
    pub(crate) sides: Option<Sides>,
    pub(crate) open: BTreeMap<RequestId, Open>,
    /// Pieces of a flush that are not answered, by operation.
    pub(crate) pieces: BTreeMap<OpIndex, (usize, bool)>,
    pub(crate) open_of_client: Vec<usize>,
    pub(crate) paths: Paths,
    pub(crate) client_count: Vec<u32>,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    pub(crate) next_request: u64,
    pub(crate) next_operation: u64,
    pub(crate) wishes: BTreeMap<OperationId, (usize, String)>,
    pub(crate) reservations: Reservations,
    /// How the last operation ended.
    pub(crate) ended: Option<Result<(), replica::OperationError>>,
    pub(crate) outputs: u64,
    /// Empty: memory for what a shard asks for in one step.
    pub(crate) shard_out: Vec<ShardOutput>,
    /// Faults that wait for an output, by number of output.
    pub(crate) at_output: BTreeMap<u64, Vec<usize>>,
    pub(crate) active: BTreeSet<usize>,
    /// Flapping links that are blocked now, by fault.
    pub(crate) flapped: BTreeSet<usize>,
    /// Messages to be held: from, to, kind, how long.
    pub(crate) holds: Vec<(usize, usize, usize, Time)>,
    /// The fault that forces a node, while the others are away.
    pub(crate) forcing: Option<usize>,
    /// They are on their way back.
    pub(crate) rejoining: bool,
    /// How often each volume of the plan grew.
    pub(crate) growths: Vec<u16>,
    pub(crate) next_token: Token,
    /// Faults that struck, by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// How often it was tried to have more of them before all is healed.
    pub(crate) late: usize,
    pub(crate) healed: bool,
    /// When that was.
    pub(crate) healed_at: Time,
    pub(crate) finals: bool,
    /// The first operation of those.
    pub(crate) finals_from: OpIndex,
    /// What every member was created with.
    pub(crate) first: Option<wire::Configuration>,
    pub(crate) done: bool,
    pub(crate) step: u64,
    pub(crate) hash: u64,
    pub(crate) marks: BTreeMap<&'static str, u64>,
    pub(crate) failure: Option<Failure>,
    /// Prints what happens.
    pub trace: bool,
}

impl World {
    /// The world of a plan, before anything happens.
    #[must_use]
    pub fn new(plan: Plan) -> World {
        let mut random = Prng::new(plan.seed ^ 0x77a1_d000);
        let nodes: Vec<Node> =
            (0..plan.roles.len()).map(|index| Node::new(index, &plan, &mut random)).collect();
        let count = nodes.len();
        let mut world = World {
            queue: Queue::default(),
            random,
            nodes,
            sessions: Vec::new(),
            links: (0..count).map(|_| (0..count).map(|_| Link::default()).collect()).collect(),
            history: History::default(),
            oracle: Oracle::default(),
            sides: Sides::of(&plan),
            open: BTreeMap::new(),
            pieces: BTreeMap::new(),
            open_of_client: vec![0; plan.clients.len()],
            paths: Paths::new(&plan),
            client_count: vec![0; count],
            asked: 0,
            answered: 0,
            next_request: 0,
            next_operation: 0,
            wishes: BTreeMap::new(),
            reservations: Reservations::default(),
            ended: None,
            outputs: 0,
            shard_out: Vec::new(),
            at_output: BTreeMap::new(),
            active: BTreeSet::new(),
            flapped: BTreeSet::new(),
            holds: Vec::new(),
            late: 0,
            healed_at: 0,
            forcing: None,
            rejoining: false,
            growths: vec![0; plan.volumes.len()],
            next_token: 1,
            faults: BTreeMap::new(),
            healed: false,
            finals: false,
            finals_from: 0,
            first: None,
            done: false,
            step: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            marks: BTreeMap::new(),
            failure: None,
            trace: false,
            plan,
        };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        self.create();
        for node in 0..self.nodes.len() {
            let delay = self.random.below(50 * MILLI);
            let life = self.nodes[node].life;
            self.queue.after(delay, Event::Start { node, life });
            for other in node + 1..self.nodes.len() {
                self.queue.after(delay + MILLI, Event::Connect { one: node, other });
            }
        }
        for client in 0..self.plan.clients.len() {
            self.queue.after(100 * MILLI, Event::Client { client });
        }
        for (index, fault) in self.plan.faults.iter().enumerate() {
            match fault.when {
                When::At(at) => self.queue.at(at, Event::Fault(index)),
                When::Output(count) => self.at_output.entry(count).or_default().push(index),
            }
        }
        self.queue.at(self.plan.heal_at, Event::Heal);
        self.queue.after(INSPECT, Event::Inspect);
    }

    /// Runs to the end, or to the first broken rule, or until `until` steps are taken.
    pub fn run(&mut self, until: u64) {
        while !self.done && self.failure.is_none() && self.step < until {
            if !self.advance() {
                self.fail("liveness", "nothing will ever happen again".to_owned());
            }
        }
        self.mix_contents();
        if self.failure.is_some() {
            return;
        }
        match self.check_history() {
            Ok(0) => {}
            Ok(_) => self.mark("sim: a sector has too many orders to look at"),
            Err(found) => {
                let (text, step, at) = (found.text, found.step, found.at);
                self.failure = Some(Failure { checker: "linearizable", text, step, at });
            }
        }
    }

    /// What every disk holds at the end belongs to what happened.
    fn mix_contents(&mut self) {
        let disks = self.nodes.iter().filter_map(|node| node.disk.as_ref());
        let volumes = || self.plan.volumes.iter().map(|&(volume, _)| volume);
        let all = |disk: &Disk| volumes().flat_map(|volume| disk.all(volume)).collect::<Vec<_>>();
        let contents: Vec<Token> = disks.flat_map(all).collect();
        self.mix_all(&contents);
    }

    /// Looks for an order that explains what clients saw: of all of it, or of each side.
    pub(crate) fn check_history(&self) -> Result<u64, crate::history::NotLinear> {
        match &self.sides {
            Some(sides) => sides.check(&self.history),
            None => self.history.check(),
        }
    }

    /// What the run came to.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            failure: self.failure.clone(),
            steps: self.step,
            time: self.queue.now(),
            hash: self.hash,
            marks: self.marks.clone(),
            answered: self.answered,
            faults: self.faults.clone(),
        }
    }

    /// One event; false if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(event) = self.queue.take() else { return false };
        self.step += 1;
        self.mix(self.queue.now());
        if let Some(node) = self.concerns(&event)
            && self.nodes[node].paused
        {
            self.nodes[node].deferred.push_back(event);
            return true;
        }
        self.handle(event);
        true
    }

    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Member { node, life, input } => self.step_member(node, life, input),
            Event::Shard { node, life, shard, input } => self.step_shard(node, life, shard, input),
            Event::Request { node, life, shard, client, id, request, content } => {
                if self.takes(client, id) {
                    self.on_request(node, life, shard, id, request, content);
                }
            }
            Event::FromShard { node, life, shard, message } => {
                self.step_member(node, life, MemberInput::Shard { shard, message });
            }
            Event::Frame { session, end, stream, frame } => {
                self.on_frame(session, end, stream, frame);
            }
            Event::Up { session, end } => self.on_up(session, end),
            Event::ShardUp { session, end, shard } => self.on_shard_up(session, end, shard),
            Event::Down { session, end, stream } => self.on_down(session, end, stream),
            Event::Wake { node, life, stream, at } => self.on_wake(node, life, stream, at),
            Event::Disk { node, life, id } => self.on_disk(node, life, id),
            Event::Journal { node, life, id } => self.on_journal(node, life, id),
            Event::Record { node, life, number } => self.on_record(node, life, number),
            Event::Connect { one, other } => self.on_connect(one, other),
            Event::LinkTimeout { from, to, block } => self.on_link_timeout(from, to, block),
            Event::Start { node, life } => self.on_start(node, life),
            Event::Stop { node, life } => self.on_stop(node, life),
            Event::Fault(index) => self.on_fault(index),
            Event::FaultEnd(index) => self.on_fault_end(index),
            Event::Flap(index) => self.on_flap(index),
            Event::Rejoin(index) => self.on_rejoin(index),
            Event::Inspect => self.on_inspect(),
            Event::Client { client } => self.on_client(client),
            Event::Heal => self.on_heal(),
            Event::Look => self.on_look(),
        }
    }

    /// Whose process handles the event.
    fn concerns(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Member { node, .. }
            | Event::Shard { node, .. }
            | Event::Request { node, .. }
            | Event::FromShard { node, .. }
            | Event::Wake { node, .. }
            | Event::Disk { node, .. }
            | Event::Journal { node, .. }
            | Event::Stop { node, .. }
            | Event::Record { node, .. } => Some(*node),
            Event::Frame { session, end, .. }
            | Event::Up { session, end }
            | Event::ShardUp { session, end, .. }
            | Event::Down { session, end, .. } => Some(self.sessions[*session].ends[*end].node),
            Event::Connect { .. }
            | Event::LinkTimeout { .. }
            | Event::Start { .. }
            | Event::Fault(_)
            | Event::FaultEnd(_)
            | Event::Flap(_)
            | Event::Rejoin(_)
            | Event::Inspect
            | Event::Client { .. }
            | Event::Heal
            | Event::Look => None,
        }
    }

    pub(crate) fn resume(&mut self, node: usize) {
        if !self.nodes[node].paused {
            return;
        }
        self.nodes[node].paused = false;
        self.note(node, || "goes on".to_owned());
        let deferred = std::mem::take(&mut self.nodes[node].deferred);
        for event in deferred {
            self.handle(event);
        }
    }

    /// The reading of a node's clock now.
    pub(crate) fn clock(&self, node: usize) -> Instant {
        let node = &self.nodes[node];
        let now = i128::from(self.queue.now());
        let read =
            i128::from(node.clock_start) + now + now * i128::from(node.drift_ppm) / 1_000_000;
        Instant(u64::try_from(read).expect("simulated clocks start at a second and drift little"))
    }

    /// The first true time at which a node's clock reads `instant` or more.
    pub(crate) fn true_time(&self, node: usize, instant: Instant) -> Time {
        let node = &self.nodes[node];
        let length = i128::from(instant.0) - i128::from(node.clock_start);
        let rate = 1_000_000 + i128::from(node.drift_ppm);
        let time = (length * 1_000_000).div_euclid(rate) + 2;
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }

    /// A rule was broken. The first one counts.
    pub(crate) fn fail(&mut self, checker: &'static str, text: String) {
        if self.failure.is_none() {
            if self.trace {
                println!("FAIL {checker}: {text}");
            }
            self.failure = Some(Failure { checker, text, step: self.step, at: self.queue.now() });
        }
    }

    pub(crate) fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(crate) fn mix_all(&mut self, values: &[u64]) {
        values.iter().for_each(|&value| self.mix(value));
    }

    pub(crate) fn note(&self, node: usize, text: impl FnOnce() -> String) {
        if self.trace {
            let now = self.queue.now();
            println!(
                "{:>8} {:>5}.{:06} n{} {}",
                self.step,
                now / MILLI,
                now % MILLI,
                self.nodes[node].id,
                text()
            );
        }
    }

    pub(crate) fn mark(&mut self, mark: &'static str) {
        *self.marks.entry(mark).or_default() += 1;
    }

    /// A short delay between threads of one process.
    pub(crate) fn hop(&mut self) -> Time {
        if self.random.once_in(200) {
            self.random.below(5 * MILLI)
        } else {
            1_000 + self.random.below(40_000)
        }
    }

    /// The session of a process towards a peer, if it has this name there.
    pub(crate) fn session(
        &self,
        node: usize,
        peer: NodeId,
        name: SessionId,
    ) -> Option<(usize, usize)> {
        let process = self.nodes[node].process.as_ref()?;
        let index = *process.sessions.get(&node_index(peer))?;
        let session = &self.sessions[index];
        let end = usize::from(session.ends[1].node == node);
        (session.ends[end].name == name).then_some((index, end))
    }
}

/// The name of the node with this index.
#[must_use]
pub fn node_id(index: usize) -> NodeId {
    NodeId(u16::try_from(index + 1).expect("few nodes"))
}

/// The index of the node with this name.
#[must_use]
pub fn node_index(id: NodeId) -> usize {
    usize::from(id.0) - 1
}

//! A small cluster of members at one moment, and what can happen to it next.
//!
//! Always: a copy is cheap, for only what a step changes is copied; what is plain comes in one fixed order:
//! records become durable, messages arrive in the order in which they were sent, timers ring; when all is at rest,
//! what was held goes on, nodes restart and meet, wishes and writes are made; then time goes on.
//!
//! Not here: which of the events are tried (`search`), what must hold (`rules`).

mod next;
mod tell;

use super::hash;
use super::rules::{self, Past, short};
use super::scenarios::{Kind, Scenario, Wish};
use super::shards::Shards;
use base::{Ballot, Duration, Epoch, Incarnation, Instant, NodeId, SessionId, VoterId};
use replica::disk::Record;
use replica::start::{Found, Start, start};
use replica::{
    FromShard, Geometry, Member, MemberInput, MemberOutput, OperationId, Timing, ToShard,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::{Configuration, MemberEntry, MemberKind, MemberMessage, Options, VolumeEntry};

/// When the world begins, so that no clock is below zero.
const BEGIN: u64 = 10_000;
/// How far clocks drift, in millionths: a tenth, so that a rule that forgets it is seen at once.
pub(super) const DRIFT: i64 = 100_000;
/// How long what stands still for long does: longer than any lease.
pub(super) const LONG: u64 = 2_600;
/// Between two writes.
const WRITE_EVERY: u64 = 500;

/// How long things take. A unit stands for about a millisecond.
pub(super) fn timing(coarse: bool) -> Timing {
    if coarse {
        return Timing {
            heartbeat: Duration(1_900),
            lease: Duration(2_000),
            drift_ppm: DRIFT.unsigned_abs(),
            peer_late: Duration(1_900),
            gather: Duration(1_900),
            retry: Duration(1_900),
        };
    }
    Timing {
        heartbeat: Duration(600),
        lease: Duration(2_000),
        drift_ppm: DRIFT.unsigned_abs(),
        peer_late: Duration(1_500),
        gather: Duration(500),
        retry: Duration(100),
    }
}

#[derive(Clone, Hash)]
pub(super) struct Node {
    kind: Kind,
    /// Millionths by which its clock is fast.
    rate: i64,
    clients: u32,
    member: Option<Member>,
    shards: Shards,
    /// What is on its disk.
    record: Option<Record>,
    /// What is on its way there.
    flight: Option<(u64, Box<Record>)>,
    life: u64,
    boot: u128,
    /// The life of the disk cache whose data is there.
    cache: Incarnation,
    /// One bit per write.
    data: u8,
    /// The newest value that it accepted while its cache was the one named.
    accepted_kept: Option<Epoch>,
    /// The newest change that this process proposed.
    open: Option<Arc<Configuration>>,
    /// The first reign whose promote this process proposed.
    begun: Option<Epoch>,
}

#[derive(Clone)]
struct Held {
    node: Arc<Node>,
    /// Its hash; 0: not known.
    print: u64,
}

#[derive(Clone, Hash)]
enum Item {
    Up(SessionId),
    Down(SessionId),
    Frame(SessionId, MemberMessage),
}

#[derive(Clone)]
struct Packet {
    from: u16,
    to: u16,
    item: Arc<Item>,
    print: u64,
}

/// What can be made to stand still.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Thing {
    Node(u16),
    Link(u16, u16),
    Disk(u16),
}

/// What happens by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Plain {
    Stored(u16),
    Deliver(usize),
    Wake(u16),
    Release,
    Restart(u16),
    Connect(u16, u16),
    Wish(usize),
    Write(u16),
    Advance,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Death {
    Process,
    Power,
    Emptied,
}

/// One step of the search.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    Plain(Plain),
    /// It dies after so many outputs of the plain event, which is its own if there are any.
    Die {
        node: u16,
        plain: Plain,
        outputs: usize,
        durable: bool,
        how: Death,
        long: bool,
    },
    /// The session between the two ends, with what was on its way.
    Cut {
        a: u16,
        b: u16,
        long: bool,
    },
    Hold {
        thing: Thing,
        long: bool,
    },
}

#[derive(Clone)]
pub(super) struct World {
    scenario: Arc<Scenario>,
    pub(super) now: u64,
    nodes: Vec<Held>,
    queue: Vec<Packet>,
    sessions: BTreeMap<(u16, u16), SessionId>,
    met: BTreeMap<(u16, u16), u64>,
    down: BTreeMap<u16, u64>,
    cut: BTreeMap<(u16, u16), u64>,
    /// Until when; 0: until all else is at rest.
    held: BTreeMap<Thing, u64>,
    wishes: usize,
    writes: u8,
    write_at: u64,
    acknowledged: u8,
    past: Past,
    /// Rare branches taken in the last event.
    pub(super) marks: Vec<&'static str>,
}

fn pair(a: u16, b: u16) -> (u16, u16) {
    (a.min(b), a.max(b))
}

impl World {
    pub(super) fn new(scenario: &Arc<Scenario>) -> World {
        let first = first_configuration(scenario);
        let mut nodes = Vec::new();
        for (number, &kind) in (1..).zip(&scenario.kinds) {
            let record = match kind {
                Kind::Client => None,
                Kind::Spare => Some(Record::empty(VoterId(voter(number, 0)), Incarnation(0), 1)),
                Kind::Replica | Kind::Witness => Record::first(&first, NodeId(number), 1),
            };
            let cache = record.as_ref().map_or(Incarnation(0), |record| record.incarnation);
            let node = Node {
                kind,
                rate: scenario.rates.get(usize::from(number - 1)).copied().unwrap_or(0),
                clients: u32::from(scenario.clients.contains(&number)),
                member: None,
                shards: Shards::default(),
                record,
                flight: None,
                life: 0,
                boot: 1,
                cache,
                data: 0,
                accepted_kept: None,
                open: None,
                begun: None,
            };
            nodes.push(Held { node: Arc::new(node), print: 0 });
        }
        let all = 1..=u16::try_from(nodes.len()).expect("a few nodes");
        World {
            scenario: Arc::clone(scenario),
            now: BEGIN,
            nodes,
            queue: Vec::new(),
            sessions: BTreeMap::new(),
            met: BTreeMap::new(),
            down: all.map(|node| (node, 0)).collect(),
            cut: scenario.cut.iter().map(|&pair| (pair, u64::MAX)).collect(),
            held: BTreeMap::new(),
            wishes: 0,
            writes: 0,
            write_at: BEGIN,
            acknowledged: 0,
            past: Past::begin(&first),
            marks: Vec::new(),
        }
    }

    pub(super) fn node(&self, node: u16) -> &Node {
        &self.nodes[usize::from(node - 1)].node
    }

    fn node_mut(&mut self, node: u16) -> &mut Node {
        let held = &mut self.nodes[usize::from(node - 1)];
        held.print = 0;
        Arc::make_mut(&mut held.node)
    }

    fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        1..=u16::try_from(self.nodes.len()).expect("a few nodes")
    }

    /// A hash of everything that decides what can follow. `ordered`: the order in which messages of different
    /// links were sent matters too.
    pub(super) fn print(&mut self, ordered: bool) -> u64 {
        for held in &mut self.nodes {
            if held.print == 0 {
                held.print = hash::of(&*held.node);
            }
        }
        let nodes: Vec<u64> = self.nodes.iter().map(|held| held.print).collect();
        let mut links: Vec<(u16, u16, u64)> =
            self.queue.iter().map(|packet| (packet.from, packet.to, packet.print)).collect();
        if !ordered {
            links.sort_by_key(|link| (link.0, link.1));
        }
        let times = (self.now, &self.down, &self.cut, &self.held, self.wishes);
        let writes = (self.writes, self.write_at, self.acknowledged);
        hash::of(&(nodes, links, &self.sessions, &self.met, times, writes, self.past.print()))
    }

    /// Writes acknowledged so far, and configurations committed.
    pub(super) fn done(&self) -> (u8, usize) {
        (self.writes, self.past.count())
    }

    fn local(&self, node: u16) -> Instant {
        let now = i64::try_from(self.now).expect("a short life");
        let local = now + now * self.node(node).rate / 1_000_000;
        Instant(u64::try_from(local).expect("clocks are above zero"))
    }

    /// The first moment at which the clock of `node` reads `at` or more.
    fn global(&self, node: u16, at: Instant) -> u64 {
        let rate = i128::from(self.node(node).rate) + 1_000_000;
        let at = i128::from(at.0) * 1_000_000;
        u64::try_from((at + rate - 1) / rate).unwrap_or(u64::MAX)
    }

    fn is_held(&self, thing: Thing) -> bool {
        self.held.get(&thing).is_some_and(|&until| until == 0 || until > self.now)
    }

    fn is_up(&self, node: u16) -> bool {
        self.node(node).member.is_some()
    }

    /// Whether a request on `node` would be answered now.
    pub(super) fn answers(&self, node: u16) -> bool {
        self.is_up(node) && self.node(node).shards.answers(NodeId(node), self.local(node))
    }

    pub(super) fn age(&self) -> u64 {
        self.now - BEGIN
    }

    /// The highest round of a ballot so far.
    pub(super) fn round(&self) -> u64 {
        self.past.round()
    }

    pub(super) fn has_flight(&self, node: u16) -> bool {
        self.node(node).flight.is_some()
    }

    /// Carries `event` out. Returns the number of outputs of its first step.
    pub(super) fn apply(&mut self, event: Event) -> Result<usize, String> {
        self.marks.clear();
        let mut outputs = 0;
        match event {
            Event::Plain(plain) => outputs = self.plainly(plain, usize::MAX)?,
            Event::Die { node, plain, outputs, durable, how, long } => {
                if outputs > 0 {
                    self.plainly(plain, outputs - 1)?;
                }
                self.die(node, durable, how, long)?;
            }
            Event::Cut { a, b, long } => {
                let until = if long { self.now + LONG } else { 0 };
                self.cut.insert(pair(a, b), until);
                self.end_session(a, b, true);
            }
            Event::Hold { thing, long } => {
                let until = if long { self.now + LONG } else { 0 };
                self.held.insert(thing, until);
            }
        }
        self.check()?;
        Ok(outputs)
    }

    fn plainly(&mut self, plain: Plain, limit: usize) -> Result<usize, String> {
        match plain {
            Plain::Stored(node) => {
                let number = self.store(node)?;
                self.step(node, MemberInput::Stored { number, ok: true }, limit)
            }
            Plain::Deliver(at) => self.deliver(at, limit),
            Plain::Wake(node) => {
                let outputs = self.step(node, MemberInput::Wake, limit)?;
                let wake = self.node(node).member.as_ref().and_then(Member::wake_at);
                if limit == usize::MAX && wake.is_some_and(|wake| wake <= self.local(node)) {
                    return Err(format!("wakes: node {node} asks for the same instant again"));
                }
                Ok(outputs)
            }
            Plain::Release => {
                self.held.retain(|_, until| *until != 0);
                Ok(0)
            }
            Plain::Restart(node) => self.restart(node),
            Plain::Connect(a, b) => {
                self.connect(a, b);
                Ok(0)
            }
            Plain::Wish(at) => self.wish(at),
            Plain::Write(node) => {
                self.write(node);
                Ok(0)
            }
            Plain::Advance => {
                self.now = self.next_time();
                let now = self.now;
                self.held.retain(|_, until| *until == 0 || *until > now);
                self.cut.retain(|_, until| *until > now);
                Ok(0)
            }
        }
    }

    fn deliver(&mut self, at: usize, limit: usize) -> Result<usize, String> {
        let packet = self.queue.remove(at);
        let (to, peer) = (packet.to, NodeId(packet.from));
        let input = match &*packet.item {
            &Item::Up(session) => MemberInput::PeerUp { peer, session },
            &Item::Down(session) => {
                self.node_mut(to).shards.lost(peer);
                MemberInput::PeerDown { peer, session }
            }
            Item::Frame(session, message) => {
                MemberInput::Frame { peer, session: *session, message: message.clone() }
            }
        };
        self.step(to, input, limit)
    }

    /// The record on its way becomes durable.
    fn store(&mut self, node: u16) -> Result<u64, String> {
        let entry = self.node_mut(node);
        let (number, record) = entry.flight.take().ok_or("nothing is stored")?;
        if let Some(old) = &entry.record {
            rules::stored(node, old, &record)?;
        }
        self.past.stored(&record);
        let entry = self.node_mut(node);
        if record.boot == entry.boot {
            entry.cache = record.incarnation;
        }
        let old = entry.record.as_ref().and_then(|old| old.accepted.clone());
        if let Some((_, value)) = &record.accepted
            && let Some(own) = value.member(NodeId(node))
            && own.in_sync
            && own.voter == record.voter
        {
            if own.incarnation == entry.cache {
                entry.accepted_kept = Some(value.epoch);
            } else if old != record.accepted && self.excludes(value) {
                return Err(format!(
                    "rule 10: node {node} accepts {}, which it survives in name only",
                    short(value)
                ));
            }
        }
        self.node_mut(node).record = Some(*record);
        Ok(number)
    }

    /// Whether `value` leaves somebody out who was in sync in what is committed before it.
    fn excludes(&self, value: &Configuration) -> bool {
        let before = self.past.before(value.epoch);
        before.is_some_and(|before| {
            before.reign == value.reign
                && value.epoch != value.reign
                && before.in_sync().any(|node| !value.is_in_sync(node))
        })
    }

    /// One step, and what the shards say to it. Only the first `limit` outputs are carried out; if there are
    /// more the process is about to die.
    fn step(&mut self, node: u16, input: MemberInput, limit: usize) -> Result<usize, String> {
        let mut inputs = VecDeque::from([input]);
        let mut first = None;
        while let Some(input) = inputs.pop_front() {
            let local = self.local(node);
            let below = self.is_below_promise(node, &input);
            let mut out = Vec::new();
            let Some(member) = self.node_mut(node).member.as_mut() else { break };
            member.step(local, input, &mut out);
            let count = out.len();
            if below && out.iter().any(grants) {
                return Err(format!("stable: node {node} renews a lease below its promise"));
            }
            for output in out.into_iter().take(limit) {
                for message in self.carry_out(node, output)? {
                    inputs.push_back(MemberInput::Shard { shard: 0, message });
                }
            }
            first = first.or(Some(count));
            if limit != usize::MAX {
                break;
            }
        }
        Ok(first.unwrap_or(0))
    }

    /// Whether `input` asks for a lease under a ballot below the one that is promised on the disk.
    fn is_below_promise(&self, node: u16, input: &MemberInput) -> bool {
        let MemberInput::Frame { message: MemberMessage::Heartbeat { ballot, .. }, .. } = input
        else {
            return false;
        };
        self.node(node).record.as_ref().is_some_and(|record| record.promised > *ballot)
    }

    fn carry_out(&mut self, node: u16, output: MemberOutput) -> Result<Vec<FromShard>, String> {
        match output {
            MemberOutput::Store { number, record } => {
                if let Some((ballot, value)) = &record.accepted {
                    if ballot.node == NodeId(node)
                        && self
                            .node(node)
                            .record
                            .as_ref()
                            .is_none_or(|old| old.accepted != record.accepted)
                    {
                        self.propose(node, value);
                    }
                    self.past.proposed(*ballot, value)?;
                }
                self.node_mut(node).flight = Some((number, record));
            }
            MemberOutput::Send { peer, session, message } => {
                self.said(node, &message)?;
                if self.sessions.get(&pair(node, peer.0)) == Some(&session) {
                    self.push(node, peer.0, Item::Frame(session, message));
                }
            }
            MemberOutput::Shards(message) => return self.tell_shards(node, &message),
            MemberOutput::Done { .. } | MemberOutput::Notice(_) => {}
            MemberOutput::Mark(mark) => self.marks.push(mark),
        }
        Ok(Vec::new())
    }

    fn said(&mut self, node: u16, message: &MemberMessage) -> Result<(), String> {
        rules::said(node, self.node(node).record.as_ref(), message)?;
        let local = self.local(node);
        self.past.heard(local, self.node(node).life, message)?;
        match message {
            MemberMessage::Accept { ballot, configuration } => {
                self.propose(node, configuration);
                self.past.proposed(*ballot, configuration)
            }
            MemberMessage::Learn { ballot, configuration } => {
                self.committed(Some(*ballot), configuration)
            }
            MemberMessage::Hello { known: Some((ballot, configuration)), .. } => {
                self.committed(Some(*ballot), configuration)
            }
            MemberMessage::Release { ballot } if self.answers(node) => {
                Err(format!("lease: node {node} answers and gives the leases of {ballot} back"))
            }
            _ => Ok(()),
        }
    }

    /// The process on `node` proposes `value`.
    fn propose(&mut self, node: u16, value: &Configuration) {
        let known = self.node(node);
        let begins = value.epoch == value.reign && known.begun.is_none();
        let old = known.open.as_ref().map(|open| open.epoch);
        if begins || old != Some(value.epoch) {
            let entry = self.node_mut(node);
            entry.open = Some(Arc::new(value.clone()));
            if begins {
                entry.begun = Some(value.reign);
            }
        }
    }

    /// The change that the process on `node` proposed and has not installed.
    fn open(&self, node: u16) -> Option<&Configuration> {
        let node = self.node(node);
        let installed = node.shards.configuration.as_ref().map(|known| known.epoch);
        node.open.as_deref().filter(|open| Some(open.epoch) > installed)
    }

    /// Somebody acts on `configuration` as committed.
    fn committed(
        &mut self,
        ballot: Option<Ballot>,
        configuration: &Configuration,
    ) -> Result<(), String> {
        if self.past.knows(configuration)? {
            return Ok(());
        }
        let before = self.past.committed(ballot, configuration)?;
        let leaves = before.in_sync().any(|node| !configuration.is_in_sync(node));
        if configuration.reign == before.reign && leaves {
            let kept = self.kept(configuration);
            let mut stays = configuration.in_sync();
            let accepted = stays.all(|node| {
                self.node(node.0).accepted_kept.is_some_and(|epoch| epoch >= configuration.epoch)
            });
            if kept.is_empty() && !accepted {
                return Err(format!("rule 10: {} leaves none that is kept", short(configuration)));
            }
        }
        Ok(())
    }

    /// In-sync replicas whose cache is the one that is named.
    fn kept(&self, configuration: &Configuration) -> Vec<u16> {
        let is = |member: &&MemberEntry| {
            let node = self.node(member.node.0);
            let voter = node.record.as_ref().is_some_and(|record| record.voter == member.voter);
            member.in_sync && voter && node.cache == member.incarnation
        };
        configuration.members.iter().filter(is).map(|member| member.node.0).collect()
    }

    fn tell_shards(&mut self, node: u16, message: &ToShard) -> Result<Vec<FromShard>, String> {
        self.told(node, message)?;
        if let ToShard::Resync { peer, .. } | ToShard::Require { peer, .. } = message {
            let Some(source) = self.source(node) else { return Ok(Vec::new()) };
            let data = self.node(source).data;
            self.node_mut(peer.0).data |= data;
        }
        let answers = self.node_mut(node).shards.take(NodeId(node), message);
        if matches!(self.node(node).kind, Kind::Witness | Kind::Spare) {
            return Ok(Vec::new());
        }
        Ok(answers)
    }

    /// What shards may be told.
    fn told(&mut self, node: u16, message: &ToShard) -> Result<(), String> {
        match message {
            ToShard::Install { configuration, reigns, .. } => {
                self.committed(None, configuration)?;
                let begun = self.node(node).begun;
                if *reigns && begun.is_none_or(|begun| configuration.reign < begun) {
                    return Err(format!(
                        "one primary: node {node} takes {} for its own",
                        short(configuration)
                    ));
                }
            }
            ToShard::Lease { until } => {
                let newest = self.past.newest();
                let known = self.node(node).shards.configuration.as_deref();
                let known = if newest.primary == Some(NodeId(node)) { Some(newest) } else { known };
                let of = known.into_iter().chain(self.open(node));
                let lease = timing(self.scenario.coarse).lease;
                for of in of {
                    if !self.past.is_granted(node, of, lease, *until) {
                        return Err(format!("lease: node {node} has none under {}", short(of)));
                    }
                }
            }
            ToShard::Unrequire { peer, .. } => {
                let known = self.node(node).shards.configuration.as_ref();
                let in_sync = known.is_some_and(|known| known.is_in_sync(*peer));
                if !in_sync && self.open(node).is_some_and(|open| open.is_in_sync(*peer)) {
                    return Err(format!(
                        "writes: node {node} waits no more for {}, whose include is proposed",
                        peer.0
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A replica from which the shards of `node` can copy.
    fn source(&self, node: u16) -> Option<u16> {
        let configuration = self.node(node).shards.configuration.clone()?;
        self.kept(&configuration).into_iter().find(|&source| {
            source == node || self.is_up(source) && self.sessions.contains_key(&pair(node, source))
        })
    }

    /// Where a write of the primary on `node` would have to be, if it can be acknowledged now.
    fn targets(&self, node: u16) -> Option<Vec<u16>> {
        if self.writes >= self.scenario.writes
            || !self.answers(node)
            || self.is_held(Thing::Node(node))
        {
            return None;
        }
        let shards = &self.node(node).shards;
        let configuration = shards.configuration.clone()?;
        let kept = self.kept(&configuration);
        let in_sync: Vec<u16> = configuration.in_sync().map(|node| node.0).collect();
        let here = |&target: &u16| {
            let session = self.sessions.contains_key(&pair(node, target));
            let reign = self.node(target).shards.configuration.as_ref().map(|known| known.reign);
            target == node
                || (session
                    && reign == Some(configuration.reign)
                    && ![Thing::Node(target), Thing::Link(node, target), Thing::Link(target, node)]
                        .into_iter()
                        .any(|thing| self.is_held(thing)))
        };
        let all = in_sync.iter().all(|target| kept.contains(target) && here(target))
            && shards.required.keys().all(|target| here(&target.0));
        let targets = in_sync.into_iter().chain(shards.required.keys().map(|node| node.0));
        all.then(|| targets.collect())
    }

    fn write(&mut self, node: u16) {
        let bit = 1_u8 << self.writes;
        for target in self.targets(node).unwrap_or_default() {
            self.node_mut(target).data |= bit;
        }
        self.acknowledged |= bit;
        self.writes += 1;
        self.write_at = self.now + WRITE_EVERY;
    }

    /// Puts something on its way.
    fn push(&mut self, from: u16, to: u16, item: Item) {
        if self.is_up(to) {
            let print = hash::of(&item);
            self.queue.push(Packet { from, to, item: Arc::new(item), print });
        }
    }

    fn connect(&mut self, a: u16, b: u16) {
        let met = self.met.entry((a, b)).or_default();
        *met += 1;
        let session = SessionId(*met * 100 + u64::from(a) * 10 + u64::from(b));
        self.sessions.insert((a, b), session);
        self.push(a, b, Item::Up(session));
        self.push(b, a, Item::Up(session));
    }

    /// `lossy`: with what was on its way.
    fn end_session(&mut self, a: u16, b: u16, lossy: bool) {
        let Some(session) = self.sessions.remove(&pair(a, b)) else { return };
        if lossy {
            self.queue.retain(|packet| {
                pair(packet.from, packet.to) != pair(a, b)
                    || !matches!(*packet.item, Item::Frame(..))
            });
        }
        self.push(a, b, Item::Down(session));
        self.push(b, a, Item::Down(session));
    }

    fn die(&mut self, node: u16, durable: bool, how: Death, long: bool) -> Result<(), String> {
        if durable && self.has_flight(node) {
            self.store(node)?;
        }
        let entry = self.node_mut(node);
        entry.member = None;
        entry.flight = None;
        entry.shards = Shards::default();
        entry.open = None;
        entry.begun = None;
        if how != Death::Process {
            entry.boot += 1;
            entry.cache = Incarnation(0);
            entry.data = 0;
        }
        if how == Death::Emptied && entry.record.is_some() {
            let life = entry.life;
            let fresh = VoterId(voter(node, life));
            entry.record = Some(Record::empty(fresh, Incarnation(fresh.0), entry.boot));
        }
        self.queue.retain(|packet| packet.to != node);
        for peer in self.numbers().filter(|&peer| peer != node) {
            self.end_session(node, peer, false);
        }
        self.held
            .retain(|thing, _| !matches!(*thing, Thing::Disk(at) | Thing::Node(at) if at == node));
        self.down.insert(node, if long { self.now + LONG } else { 0 });
        Ok(())
    }

    fn restart(&mut self, node: u16) -> Result<usize, String> {
        self.down.remove(&node);
        let first = first_configuration(&self.scenario);
        let local = self.local(node);
        let coarse = self.scenario.coarse;
        let entry = self.node_mut(node);
        entry.life += 1;
        let process = u64::from(node) * 1_000 + entry.life;
        let data = entry.kind == Kind::Replica;
        let begin = Start {
            node: NodeId(node),
            process,
            boot: entry.boot,
            holds_data: data,
            volatile_cache: true,
            shards: u16::from(matches!(entry.kind, Kind::Replica | Kind::Client)),
            geometry: Geometry::default(),
            log_sizes: Vec::new(),
            timing: timing(coarse),
            feature_level: wire::FEATURE_LEVEL,
            seed: 7,
            bootstrap: Some(first),
        };
        let found = Found { record: entry.record.clone(), pages: Vec::new() };
        let setups = start(&begin, found);
        entry.member = Some(Member::new(local, setups.member));
        entry.shards = Shards::default();
        let (clients, shards) = (entry.clients, begin.shards);
        if shards > 0 {
            let started = MemberInput::Shard { shard: 0, message: FromShard::Started };
            self.step(node, started, usize::MAX)?;
        }
        self.step(node, MemberInput::Clients { count: clients }, usize::MAX)
    }

    fn wish(&mut self, at: usize) -> Result<usize, String> {
        self.wishes = at + 1;
        let scenario = Arc::clone(&self.scenario);
        match &scenario.wishes[at].1 {
            Wish::Operate(node, operation) => {
                let id = OperationId(at as u64);
                let operation = operation.clone();
                self.step(*node, MemberInput::Operation { id, operation }, usize::MAX)
            }
            Wish::Clients(node, count) => {
                self.node_mut(*node).clients = *count;
                self.step(*node, MemberInput::Clients { count: *count }, usize::MAX)
            }
            Wish::Die(node, how, long) => {
                if self.is_up(*node) {
                    self.die(*node, true, *how, *long)?;
                }
                Ok(0)
            }
            Wish::Hold(thing, length) => {
                self.held.insert(*thing, self.now + length);
                Ok(0)
            }
            Wish::Cut(a, b, on) => {
                self.cut.insert(pair(*a, *b), if *on { u64::MAX } else { 0 });
                if *on {
                    self.end_session(*a, *b, false);
                }
                Ok(0)
            }
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let answering: Vec<u16> = self.numbers().filter(|&node| self.answers(node)).collect();
        if answering.len() > 1 {
            return Err(format!("one primary: nodes {answering:?} answer at once"));
        }
        let ends = |node: &&u16| self.open(**node).is_some_and(|open| open.primary.is_none());
        if let Some(node) = answering.iter().find(ends) {
            return Err(format!("one primary: node {node} answers and proposes to end its reign"));
        }
        let newest = self.past.newest();
        for &node in answering.iter().filter(|&&node| newest.primary != Some(NodeId(node))) {
            let reign = self.node(node).shards.configuration.as_ref().map(|known| known.reign);
            if reign < Some(newest.reign) {
                return Err(format!(
                    "one primary: node {node} answers, and {} is committed",
                    short(newest)
                ));
            }
        }
        let kept = self.kept(newest);
        if kept.is_empty() && newest.in_sync().next().is_some() {
            // Every in-sync copy lost its cache: what is left is what counts from now on.
            self.acknowledged = 0;
            return Ok(());
        }
        let lacks = |&&node: &&u16| self.node(node).data & self.acknowledged != self.acknowledged;
        if let Some(node) = kept.iter().find(lacks) {
            return Err(format!(
                "writes: node {node} is in sync in {} and misses one",
                short(newest)
            ));
        }
        Ok(())
    }
}

/// Whether `output` renews a lease.
fn grants(output: &MemberOutput) -> bool {
    let MemberOutput::Send { message, .. } = output else { return false };
    matches!(message, MemberMessage::HeartbeatAnswer { voter, .. } if voter.0 != 0)
}

/// The identity of the memory that votes on `node` after so many lives.
pub(super) fn voter(node: u16, life: u64) -> u64 {
    life * 10 + u64::from(node)
}

fn first_configuration(scenario: &Scenario) -> Configuration {
    let member = |(number, kind): (u16, &Kind)| {
        let kind = match kind {
            Kind::Replica => MemberKind::Replica,
            Kind::Witness => MemberKind::Witness,
            Kind::Client | Kind::Spare => return None,
        };
        let replica = kind == MemberKind::Replica;
        Some(MemberEntry {
            node: NodeId(number),
            kind,
            voter: VoterId(voter(number, 0)),
            in_sync: replica,
            incarnation: Incarnation(if replica { u64::from(number) } else { 0 }),
        })
    };
    let members = (1..).zip(&scenario.kinds).filter_map(member).collect();
    let volume = base::VolumeId(0);
    let volume = VolumeEntry { volume, sectors: 8, grows_to: None, block_bytes: 512 };
    Configuration::first(members, vec![volume], Options::default())
}

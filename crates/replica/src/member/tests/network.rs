//! A small world of members: a network that delays and loses, disks that remember, shards that agree
//! to everything at once, and clocks that drift apart.
//!
//! Checked at every step: one configuration per epoch, and at most one node that would answer.

use crate::disk::Record;
use crate::door::{
    FromShard, MemberInput, MemberOutput, Notice, Operation, OperationError, OperationId, Timing,
    ToShard,
};
use crate::member::{Member, MemberSetup, MemberStatus};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Duration, Epoch, Incarnation, Instant, NodeId, Prng, SessionId, VolumeId, VoterId};
use wire::{Configuration, MemberEntry, MemberKind, MemberMessage, Options, Protocol, VolumeEntry};

/// Shards of a node that is not a witness.
pub(super) const SHARDS: u16 = 2;

/// Shards that do what they are told.
#[derive(Debug, Default)]
pub(super) struct FakeShards {
    pub(super) configuration: Option<Arc<Configuration>>,
    own_kept: bool,
    /// Every write waits for these, too.
    required: BTreeSet<NodeId>,
    ready: BTreeMap<NodeId, (SessionId, Epoch, bool)>,
    pub(super) lease_until: Instant,
    pub(super) serving: Option<Epoch>,
    gathered: Option<Epoch>,
    reconciled: Option<Epoch>,
    drained: bool,
    suspended: bool,
    pub(super) disk_fails: bool,
    pub(super) detached: bool,
    pub(super) synced: BTreeSet<NodeId>,
    /// No answer to these, to see what happens then.
    pub(super) mute_sync: bool,
    /// Sectors that others lack, as they say; if `None`, as many as the node's number.
    pub(super) changed: Option<u64>,
    pub(super) mute_require: bool,
    pub(super) unrequired: BTreeSet<NodeId>,
    pub(super) mute_drain: bool,
    pub(super) mute_grow: bool,
    /// No answer to a verify from this sector on.
    pub(super) mute_verify: Option<u64>,
    /// What they were asked to compare: volume, first sector.
    pub(super) compared: Vec<(VolumeId, u64)>,
    pub(super) paused: bool,
    pub(super) failing: bool,
    pub(super) mute_written: bool,
    pub(super) vouched: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) member: Option<Member>,
    /// Counts processes: what an earlier one left on the way does not arrive.
    life: u64,
    pub(super) disk: Option<Record>,
    pub(super) attached: bool,
    /// Its disk fails the first thing that shards write.
    pub(super) fails_at_start: bool,
    pub(super) shards: FakeShards,
    witness: bool,
    /// What its release can act on.
    pub(super) feature_level: u32,
    /// Parts per million by which its clock is fast.
    drift: i64,
    pub(super) clients: u32,
    pub(super) done: BTreeMap<u64, Result<(), OperationError>>,
    pub(super) marks: BTreeSet<&'static str>,
    pub(super) notices: Vec<Notice>,
}

#[derive(Debug)]
enum Event {
    Frame { to: u16, from: u16, session: SessionId, message: Box<MemberMessage> },
    Up { node: u16, peer: u16, session: SessionId },
    Down { node: u16, peer: u16, session: SessionId },
    ToShards { node: u16, life: u64, message: ToShard },
    FromShard { node: u16, life: u64, shard: u16, message: FromShard },
    Stored { node: u16, life: u64, number: u64, record: Box<Record>, ok: bool },
}

impl FakeShards {
    fn answer_require(&self, peer: NodeId, session: SessionId, number: u64) -> Option<FromShard> {
        (!self.mute_require).then_some(FromShard::Required { peer, session, number })
    }

    fn install(&mut self, configuration: Arc<Configuration>) {
        let reign = configuration.reign;
        if self.configuration.as_ref().is_none_or(|old| old.reign != reign) {
            self.drained = false;
            self.ready.clear();
            self.required.clear();
        }
        self.required.retain(|peer| !configuration.is_in_sync(*peer));
        self.configuration = Some(configuration);
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) random: Prng,
    pub(super) nodes: BTreeMap<u16, Node>,
    events: BTreeMap<(u64, u64), Event>,
    counter: u64,
    sessions: BTreeMap<(u16, u16), SessionId>,
    reconnect: BTreeMap<(u16, u16), u64>,
    /// Pairs that cannot talk.
    pub(super) blocked: BTreeSet<(u16, u16)>,
    last: BTreeMap<(u16, u16, u8), u64>,
    pub(super) epochs: BTreeMap<(u64, Epoch), Configuration>,
    pub(super) bootstrap: Configuration,
    pub(super) delay: u64,
    /// What travels (to, from) takes so much longer.
    pub(super) slow: Option<(u16, u16, u64)>,
    /// What is said (to, from) never arrives, though the two are connected.
    /// What is said (to, from) never arrives, though the two are connected.
    pub(super) lost: BTreeSet<(u16, u16)>,
    pub(super) store_fails: BTreeSet<u16>,
    /// Without quorum: there may be two histories, and two nodes that answer.
    pub(super) without_quorum: bool,
    /// Without quorum: the writes that each node's copy holds, those that were answered, and those that
    /// went with a copy that was given up.
    pub(super) data: BTreeMap<u16, BTreeSet<u64>>,
    pub(super) answered: BTreeSet<u64>,
    pub(super) given_up: BTreeSet<u64>,
    next_operation: u64,
}

pub(super) const MS: u64 = 1_000_000;

fn pair(a: u16, b: u16) -> (u16, u16) {
    (a.min(b), a.max(b))
}

pub(super) fn voter(node: u16) -> VoterId {
    VoterId(u64::from(node) * 100)
}

impl World {
    /// Two replicas and a witness whose clocks run so many parts per million fast.
    pub(super) fn with_drifts(seed: u64, drifts: &[i64]) -> World {
        let mut world = World::new(seed, 2, 1, 0);
        for (node, &drift) in (1..).zip(drifts) {
            world.crash(node);
            world.node_mut(node).drift = drift;
        }
        for (node, _) in (1..).zip(drifts) {
            world.start(node);
        }
        world
    }

    /// A world of replicas without quorum.
    pub(super) fn without_quorum(seed: u64, replicas: u16, options: Options) -> World {
        let mut world = World::new(seed, replicas, 0, 0);
        for node in 1..=replicas {
            world.crash(node);
        }
        world.events.clear();
        world.without_quorum = true;
        world.bootstrap.options = options;
        for node in 1..=replicas {
            world.node_mut(node).disk = Record::first(&world.bootstrap, NodeId(node), 1);
            world.start(node);
        }
        world.connect_all();
        world
    }

    /// `replicas` in sync, then `witnesses`, then `clients`; nodes count from 1.
    pub(super) fn new(seed: u64, replicas: u16, witnesses: u16, clients: u16) -> World {
        let entry = |node: u16| MemberEntry {
            node: NodeId(node),
            kind: if node <= replicas { MemberKind::Replica } else { MemberKind::Witness },
            voter: voter(node),
            in_sync: node <= replicas,
            incarnation: Incarnation(if node <= replicas { u64::from(node) } else { 0 }),
        };
        let members = (1..=replicas + witnesses).map(entry).collect();
        let volume = VolumeId(0);
        let volume = VolumeEntry { volume, sectors: 1 << 20, grows_to: None, block_bytes: 512 };
        let bootstrap = Configuration::first(members, alloc::vec![volume], Options::default());
        let mut world = World {
            now: 1_000 * MS,
            random: Prng::new(seed),
            nodes: BTreeMap::new(),
            events: BTreeMap::new(),
            counter: 0,
            sessions: BTreeMap::new(),
            reconnect: BTreeMap::new(),
            blocked: BTreeSet::new(),
            last: BTreeMap::new(),
            epochs: BTreeMap::new(),
            bootstrap,
            delay: 2 * MS,
            slow: None,
            lost: BTreeSet::new(),
            store_fails: BTreeSet::new(),
            without_quorum: false,
            data: BTreeMap::new(),
            answered: BTreeSet::new(),
            given_up: BTreeSet::new(),
            next_operation: 1,
        };
        for node in 1..=replicas + witnesses + clients {
            let disk = Record::first(&world.bootstrap, NodeId(node), 1);
            let witness = node > replicas && node <= replicas + witnesses;
            world.add_node(node, disk, witness);
        }
        world
    }

    pub(super) fn add_node(&mut self, node: u16, disk: Option<Record>, witness: bool) {
        let drift = match self.random.below(3) {
            0 => -10_000,
            1 => 10_000,
            _ => i64::try_from(self.random.below(20_001)).expect("small") - 10_000,
        };
        let fresh = Node {
            member: None,
            life: 0,
            attached: disk.is_some() && !witness,
            feature_level: wire::FEATURE_LEVEL,
            disk,
            fails_at_start: false,
            shards: FakeShards::default(),
            witness,
            drift,
            clients: 0,
            done: BTreeMap::new(),
            marks: BTreeSet::new(),
            notices: Vec::new(),
        };
        self.nodes.insert(node, fresh);
        self.start(node);
    }

    pub(super) fn node(&self, node: u16) -> &Node {
        &self.nodes[&node]
    }

    pub(super) fn node_mut(&mut self, node: u16) -> &mut Node {
        self.nodes.get_mut(&node).expect("a node of this world")
    }

    /// What the clock of `node` says at `at`.
    fn local(&self, node: u16, at: u64) -> Instant {
        let drift = i128::from(self.node(node).drift);
        let local = i128::from(at) + i128::from(at) * drift / 1_000_000;
        Instant(u64::try_from(local).expect("after the start"))
    }

    fn global(&self, node: u16, at: Instant) -> u64 {
        let drift = i128::from(self.node(node).drift);
        let global = i128::from(at.0) * 1_000_000 / (1_000_000 + drift) + 1;
        u64::try_from(global).expect("after the start")
    }

    /// Starts a process on what the disk of `node` holds.
    pub(super) fn start(&mut self, node: u16) {
        let local = self.local(node, self.now);
        let process = self.random.id();
        let bootstrap = Some(self.bootstrap.clone());
        let entry = self.node_mut(node);
        assert!(entry.member.is_none(), "it runs already");
        entry.life += 1;
        entry.shards = FakeShards::default();
        let setup = MemberSetup {
            node: NodeId(node),
            process,
            shards: if entry.witness { 0 } else { SHARDS },
            timing: Timing::default(),
            verify_sectors: 1 << 18,
            feature_level: entry.feature_level,
            seed: process ^ 99,
            found_writes: 0,
            record: entry.disk.clone(),
            attached: entry.attached,
            bootstrap,
        };
        let mut member = Member::new(local, setup);
        member.set_wall_clock(1_000_000);
        entry.member = Some(member);
        let (clients, life) = (entry.clients, entry.life);
        let first = if entry.fails_at_start { FromShard::DiskFailed } else { FromShard::Started };
        if !entry.witness {
            for shard in 0..SHARDS {
                let message = first.clone();
                self.plan(node, node, 2, Event::FromShard { node, life, shard, message });
            }
        }
        self.input(node, MemberInput::Clients { count: clients });
    }

    /// The process ends without a word.
    pub(super) fn crash(&mut self, node: u16) {
        let lost = self.random.once_in(2);
        let entry = self.node_mut(node);
        entry.member = None;
        if lost {
            // A write of the record that was under way never reaches the disk.
            entry.life += 1;
        }
        let peers: Vec<(u16, u16)> =
            self.sessions.keys().copied().filter(|at| at.0 == node || at.1 == node).collect();
        for at in peers {
            self.disconnect(at.0, at.1);
        }
    }

    /// The machine loses its power: its disk cache is gone.
    pub(super) fn power_cut(&mut self, node: u16) {
        self.crash(node);
        let fresh = Incarnation(self.random.id());
        if let Some(record) = self.node_mut(node).disk.as_mut() {
            record.incarnation = fresh;
            record.boot += 1;
        }
    }

    pub(super) fn disconnect(&mut self, a: u16, b: u16) {
        let Some(session) = self.sessions.remove(&pair(a, b)) else { return };
        let wait = 5 * MS + self.random.below(100 * MS);
        self.reconnect.insert(pair(a, b), self.now + wait);
        for (node, peer) in [(a, b), (b, a)] {
            self.plan(node, peer, 0, Event::Down { node, peer, session });
        }
    }

    pub(super) fn block(&mut self, a: u16, b: u16) {
        self.blocked.insert(pair(a, b));
        self.disconnect(a, b);
    }

    /// Nodes in `one` and all others cannot talk to each other any more.
    pub(super) fn split(&mut self, one: &[u16]) {
        let all: Vec<u16> = self.nodes.keys().copied().collect();
        for &a in &all {
            for &b in &all {
                if a < b && one.contains(&a) != one.contains(&b) {
                    self.block(a, b);
                }
            }
        }
    }

    /// Puts an event on its way; those of one `channel` between the same two arrive in order.
    fn plan(&mut self, to: u16, from: u16, channel: u8, event: Event) {
        let extra =
            self.slow.filter(|slow| (slow.0, slow.1) == (to, from)).map_or(0, |slow| slow.2);
        let at = self.now + 1 + extra + self.random.below(self.delay);
        let last = self.last.entry((to, from, channel)).or_default();
        *last = at.max(*last);
        self.counter += 1;
        self.events.insert((*last, self.counter), event);
    }

    pub(super) fn operate(&mut self, node: u16, operation: Operation) -> u64 {
        let id = self.next_operation;
        self.next_operation += 1;
        self.input(node, MemberInput::Operation { id: OperationId(id), operation });
        id
    }

    pub(super) fn set_clients(&mut self, node: u16, count: u32) {
        self.node_mut(node).clients = count;
        self.input(node, MemberInput::Clients { count });
    }

    pub(super) fn shard_says(&mut self, node: u16, message: FromShard) {
        self.input(node, MemberInput::Shard { shard: 0, message });
    }

    pub(super) fn input(&mut self, node: u16, input: MemberInput) {
        let local = self.local(node, self.now);
        let mut out = Vec::new();
        let Some(member) = self.node_mut(node).member.as_mut() else { return };
        member.step(local, input, &mut out);
        let wake = member.wake_at();
        assert!(
            wake.is_none_or(|wake| wake > local),
            "node {node} would wake at once for ever: {wake:?} at {local:?}"
        );
        for output in out {
            self.carry_out(node, output);
        }
    }

    fn carry_out(&mut self, node: u16, output: MemberOutput) {
        let life = self.node(node).life;
        match output {
            MemberOutput::Store { number, record } => {
                let ok = !self.store_fails.contains(&node);
                self.plan(node, node, 1, Event::Stored { node, life, number, record, ok });
            }
            MemberOutput::Send { peer, session, message } => {
                let connected = self.sessions.get(&pair(node, peer.0)) == Some(&session);
                if connected && !self.lost.contains(&(peer.0, node)) {
                    let message = Box::new(message);
                    self.plan(
                        peer.0,
                        node,
                        0,
                        Event::Frame { to: peer.0, from: node, session, message },
                    );
                }
            }
            MemberOutput::Shards(message) => {
                self.plan(node, node, 3, Event::ToShards { node, life, message });
            }
            MemberOutput::Done { id, result } => {
                let old = self.node_mut(node).done.insert(id.0, result);
                assert!(old.is_none(), "operation {id:?} was answered twice");
            }
            MemberOutput::Notice(Notice::GivesUp { .. }) => self.give_up(node),
            MemberOutput::Notice(notice) => self.node_mut(node).notices.push(notice),
            MemberOutput::Mark(mark) => {
                self.node_mut(node).marks.insert(mark);
            }
        }
    }

    /// Runs for `length` nanoseconds.
    pub(super) fn run(&mut self, length: u64) {
        let end = self.now + length;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until `is` holds.
    ///
    /// # Panics
    /// If it does not within 60 seconds of the world.
    pub(super) fn run_until(&mut self, what: &str, is: impl Fn(&World) -> bool) {
        let end = self.now + 60_000 * MS;
        while !is(self) {
            assert!(self.step(end), "not within a minute: {what}\n{}", self.show());
        }
    }

    fn step(&mut self, end: u64) -> bool {
        let event = self.events.keys().next().copied();
        let wake = self
            .nodes
            .iter()
            .filter_map(|(&node, entry)| {
                let wake = entry.member.as_ref()?.wake_at()?;
                Some((self.global(node, wake).max(self.now), node))
            })
            .min();
        let connect = self
            .reconnect
            .iter()
            .filter(|(at, _)| self.may_connect(**at))
            .map(|(&at, &time)| (time.max(self.now), at))
            .min();
        let next = [event.map(|at| at.0), wake.map(|at| at.0), connect.map(|at| at.0)];
        let Some(next) = next.into_iter().flatten().min() else { return false };
        if next > end {
            return false;
        }
        self.now = next;
        if let Some(at) = event.filter(|at| at.0 == next) {
            if let Some(event) = self.events.remove(&at) {
                self.happen(event);
            }
        } else if let Some((_, at)) = connect.filter(|connect| connect.0 == next) {
            self.connect(at);
        } else if let Some((_, node)) = wake {
            self.input(node, MemberInput::Wake);
        }
        self.check();
        if self.without_quorum {
            self.write();
        }
        true
    }

    /// Every node that has clients and answers writes something, to all that its shards take for in sync.
    fn write(&mut self) {
        let nodes: Vec<u16> = self.nodes.keys().copied().collect();
        for node in nodes {
            if !self.answers(node) || self.node(node).clients == 0 || !self.random.once_in(8) {
                continue;
            }
            let Some(known) = self.node(node).shards.configuration.clone() else { continue };
            let mut to: BTreeSet<u16> = known.in_sync().map(|node| node.0).collect();
            to.extend(self.node(node).shards.required.iter().map(|node| node.0));
            let heard = to.iter().all(|&peer| {
                let theirs = self.node(peer).shards.configuration.as_ref();
                peer == node
                    || self.sessions.contains_key(&pair(node, peer))
                        && theirs.is_some_and(|theirs| theirs.reign == known.reign)
            });
            let write = self.random.id();
            if heard {
                for peer in to {
                    self.data.entry(peer).or_default().insert(write);
                }
                self.answered.insert(write);
            }
        }
    }

    fn give_up(&mut self, node: u16) {
        let lost = self.data.remove(&node).unwrap_or_default();
        self.given_up.extend(lost);
    }

    /// What a primary's shards have copied when every write waits for a replica.
    fn copy(&mut self, primary: u16, peer: NodeId) {
        let Some(known) = self.node(primary).shards.configuration.clone() else { return };
        if known.is_in_sync(peer) {
            return;
        }
        let own = known.is_in_sync(NodeId(primary)).then_some(primary);
        let Some(from) = own.or_else(|| known.in_sync().next().map(|node| node.0)) else { return };
        let source = self.data.entry(from).or_default().clone();
        let target = self.data.insert(peer.0, source.clone()).unwrap_or_default();
        let lost = target.difference(&source).next();
        assert_eq!(lost, None, "node {} is overwritten\n{}", peer.0, self.show());
        self.node_mut(primary).shards.required.insert(peer);
    }

    /// Every copy is the same, and no answered write is gone but with a copy that was given up.
    pub(super) fn check_data(&self, nodes: u16) {
        let first = self.data.get(&1).cloned().unwrap_or_default();
        for node in 2..=nodes {
            assert_eq!(self.data.get(&node).cloned().unwrap_or_default(), first, "node {node}");
        }
        let gone = self.answered.difference(&first).find(|write| !self.given_up.contains(write));
        assert_eq!(gone, None, "an answered write is gone");
    }

    fn may_connect(&self, at: (u16, u16)) -> bool {
        !self.blocked.contains(&at)
            && self.node(at.0).member.is_some()
            && self.node(at.1).member.is_some()
    }

    fn connect(&mut self, at: (u16, u16)) {
        self.reconnect.remove(&at);
        self.counter += 1;
        let session = SessionId(self.counter);
        self.sessions.insert(at, session);
        for (node, peer) in [at, (at.1, at.0)] {
            self.plan(node, peer, 0, Event::Up { node, peer, session });
        }
    }

    /// Every pair of nodes may talk, and every process runs.
    pub(super) fn heal(&mut self) {
        self.blocked.clear();
        let all: Vec<u16> = self.nodes.keys().copied().collect();
        for &node in &all {
            if self.node(node).member.is_none() {
                self.start(node);
            }
        }
        self.connect_all();
    }

    pub(super) fn connect_all(&mut self) {
        let all: Vec<u16> = self.nodes.keys().copied().collect();
        for &a in &all {
            for &b in &all {
                if a < b && !self.sessions.contains_key(&(a, b)) {
                    self.reconnect.entry((a, b)).or_insert(self.now);
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Frame { to, from, session, message } => {
                let message = *message;
                self.input(to, MemberInput::Frame { peer: NodeId(from), session, message });
            }
            Event::Up { node, peer, session } => {
                if self.sessions.get(&pair(node, peer)) == Some(&session) {
                    self.input(node, MemberInput::PeerUp { peer: NodeId(peer), session });
                }
            }
            Event::Down { node, peer, session } => {
                self.node_mut(node).shards.ready.remove(&NodeId(peer));
                self.input(node, MemberInput::PeerDown { peer: NodeId(peer), session });
            }
            Event::ToShards { node, life, message } => {
                if self.node(node).life == life && self.node(node).member.is_some() {
                    self.tell_shards(node, message);
                }
            }
            Event::FromShard { node, life, shard, message } => {
                if self.node(node).life == life {
                    self.input(node, MemberInput::Shard { shard, message });
                }
            }
            Event::Stored { node, life, number, record, ok } => {
                let entry = self.node_mut(node);
                // A write may reach the disk although the process died meanwhile.
                let alive = entry.life == life && entry.member.is_some();
                if ok && (alive || entry.life == life && entry.member.is_none()) {
                    let boot = entry.disk.as_ref().map(|old| (old.boot, old.incarnation));
                    entry.disk = Some(*record);
                    if let (false, Some((boot, incarnation)), Some(disk)) =
                        (alive, boot, entry.disk.as_mut())
                        && boot != disk.boot
                    {
                        disk.boot = boot;
                        disk.incarnation = incarnation;
                    }
                }
                if alive {
                    self.input(node, MemberInput::Stored { number, ok });
                }
            }
        }
    }

    pub(super) fn say(&mut self, node: u16, message: &FromShard) {
        let life = self.node(node).life;
        for shard in 0..SHARDS {
            self.plan(
                node,
                node,
                2,
                Event::FromShard { node, life, shard, message: message.clone() },
            );
        }
    }

    /// What must hold of a message to shards, and what the model of the data makes of it.
    fn look_at(&mut self, node: u16, message: &ToShard) {
        if let ToShard::Install { configuration, leaves, .. } = message {
            self.note(configuration);
            self.check_stored(node, configuration);
            self.say_written(node, configuration);
            if *leaves {
                // What still came in while it changed sides.
                self.give_up(node);
            }
        }
        if let ToShard::PeerReady { peer, session, kept: true, .. } = message
            && (peer.0 == node || self.sessions.get(&pair(node, peer.0)) == Some(session))
        {
            self.check_kept(node, *peer);
        }
        if let ToShard::Require { peer, session, .. } = message
            && self.without_quorum
            && !self.node(node).shards.mute_require
            && self.sessions.get(&pair(node, peer.0)) == Some(session)
        {
            self.copy(node, *peer);
        }
    }

    fn tell_shards(&mut self, node: u16, message: ToShard) {
        if self.node(node).witness {
            if let ToShard::Install { configuration, .. } = message {
                self.note(&configuration);
                self.node_mut(node).shards.configuration = Some(configuration);
            }
            return;
        }
        let mut answer = None;
        let fenced = fence_of(&message);
        self.look_at(node, &message);
        let shards = &mut self.node_mut(node).shards;
        match message {
            ToShard::Install { configuration, .. } => {
                answer = Some(FromShard::Installed { epoch: configuration.epoch });
                shards.install(configuration);
                self.grow(node);
            }
            ToShard::PeerReady { peer, session, epoch, kept } => {
                if peer == NodeId(node) {
                    shards.own_kept = kept;
                } else {
                    shards.ready.insert(peer, (session, epoch, kept));
                }
            }
            ToShard::Lease { until } => shards.lease_until = shards.lease_until.max(until),
            ToShard::Serve { reign } => shards.serving = Some(reign),
            ToShard::Resync { peer, session, .. } => {
                shards.synced.insert(peer);
                answer = (!shards.mute_sync).then_some(FromShard::Synced { peer, session });
            }
            ToShard::Require { peer, session, number } => {
                answer = shards.answer_require(peer, session, number);
            }
            ToShard::Unrequire { peer, .. } => {
                shards.unrequired.insert(peer);
                shards.required.remove(&peer);
            }
            ToShard::Drain { reign, number } => {
                if !shards.mute_drain {
                    shards.drained = true;
                    answer = Some(FromShard::Drained { reign, number });
                }
            }
            ToShard::Undrain { .. } => shards.drained = false,
            ToShard::DiskFails => shards.disk_fails = true,
            ToShard::Detach => shards.detached = true,
            ToShard::Suspend(on) => shards.suspended = on,
            ToShard::Count { peer, number } => {
                let sectors = shards.changed.unwrap_or(u64::from(node));
                answer = Some(FromShard::Counted { peer, number, sectors });
            }
            ToShard::Cut { number } => answer = Some(FromShard::CutReady { number }),
            ToShard::Verify { run, volume, from, .. } => {
                shards.compared.push((volume, from));
                let done = FromShard::Verified { run, compared: 1, repaired: 3 };
                answer = shards.mute_verify.is_none_or(|at| from < at).then_some(done);
            }
            ToShard::PauseResync(on) => shards.paused = on,
            ToShard::FailWaiting(on) => shards.failing = on,
            ToShard::EndVerify | ToShard::CutDone { .. } | ToShard::Cool => {}
            ToShard::Vouched { sequence, .. } => {
                shards.vouched.insert(sequence);
            }
        }
        for answer in answer.into_iter().chain(fenced) {
            self.say(node, &answer);
        }
        self.gather(node);
    }

    /// The disks have what was asked of them before this configuration.
    pub(super) fn say_written(&mut self, node: u16, configuration: &Configuration) {
        let shards = &self.node(node).shards;
        if !shards.mute_written && configuration.options.protocol == Protocol::B {
            self.say(node, &FromShard::Written { epoch: configuration.epoch });
        }
    }

    /// As primary the shards make what is added to volumes zero.
    fn grow(&mut self, node: u16) {
        let shards = &self.node(node).shards;
        let Some(configuration) = shards.configuration.clone().filter(|_| !shards.mute_grow) else {
            return;
        };
        if configuration.primary == Some(NodeId(node)) {
            for entry in configuration.volumes.iter().filter(|entry| entry.grows_to.is_some()) {
                let (volume, since) = (entry.volume, configuration.epoch);
                self.say(node, &FromShard::Grown { volume, since });
            }
        }
    }

    /// As primary the shards gather every in-sync replica that is kept.
    fn gather(&mut self, node: u16) {
        let shards = &mut self.node_mut(node).shards;
        let Some(configuration) = shards.configuration.clone() else { return };
        if configuration.primary != Some(NodeId(node)) {
            return;
        }
        let reign = configuration.reign;
        let all = configuration.in_sync().all(|member| {
            if member == NodeId(node) {
                return shards.own_kept;
            }
            shards.ready.get(&member).is_some_and(|ready| ready.1 >= reign && ready.2)
        });
        if !all {
            return;
        }
        let gathers = shards.gathered != Some(reign);
        let reconciles = configuration.recovering && shards.reconciled != Some(reign);
        shards.gathered = Some(reign);
        if reconciles {
            shards.reconciled = Some(reign);
        }
        if gathers {
            self.say(node, &FromShard::Gathered { reign });
        }
        if reconciles {
            self.say(node, &FromShard::Reconciled { reign });
        }
    }

    /// What shards act on must be known after a crash.
    fn check_stored(&self, node: u16, configuration: &Configuration) {
        let Some(disk) = &self.node(node).disk else { return };
        let Some((_, stored)) = &disk.committed else { return };
        let stored = (stored.fork, stored.epoch) >= (configuration.fork, configuration.epoch);
        assert!(
            stored || self.store_fails.contains(&node),
            "node {node} acts on what it may forget"
        );
    }

    /// A replica that is said to be kept has the cache that the configuration names.
    fn check_kept(&self, node: u16, peer: NodeId) {
        let shards = &self.node(node).shards;
        let named = shards.configuration.as_ref().and_then(|known| known.member(peer).cloned());
        let own = self.node(peer.0).disk.as_ref().map(|disk| disk.incarnation);
        let down = self.node(peer.0).member.is_none();
        let voter = self.node(peer.0).disk.as_ref().map(|disk| disk.voter);
        if named.as_ref().map(|member| member.voter) != voter {
            // It took another identity since this was said; that is on its way too.
            return;
        }
        let same = named.map(|member| member.incarnation) == own;
        assert!(same || down, "node {} lost its cache and counts as kept", peer.0);
    }

    fn note(&mut self, configuration: &Configuration) {
        assert!(configuration.in_sync().next().is_some(), "nobody is in sync any more");
        if self.without_quorum {
            return;
        }
        let key = (configuration.fork, configuration.epoch);
        if let Some(primary) = configuration.primary
            && !self.epochs.contains_key(&key)
        {
            let others = self.nodes.keys().find(|&&node| node != primary.0 && self.answers(node));
            assert_eq!(others, None, "it answers under an older reign than {key:?}");
        }
        let known = self.epochs.entry(key).or_insert_with(|| configuration.clone());
        assert_eq!(known, configuration, "two histories");
    }

    /// Whether a request to the shards of `node` would be answered now.
    pub(super) fn answers(&self, node: u16) -> bool {
        let entry = self.node(node);
        let shards = &entry.shards;
        entry.member.is_some()
            && !shards.drained
            && !shards.suspended
            && self.local(node, self.now) < shards.lease_until
            && shards.configuration.as_ref().is_some_and(|known| {
                known.primary == Some(NodeId(node))
                    && shards.serving == Some(known.reign)
                    && !known.recovering
            })
    }

    fn check(&self) {
        let answering: Vec<u16> =
            self.nodes.keys().copied().filter(|&node| self.answers(node)).collect();
        assert!(
            answering.len() <= 1 || self.without_quorum,
            "split brain: {answering:?} at {}\n{}",
            self.now,
            self.show()
        );
    }

    pub(super) fn status(&self, node: u16) -> MemberStatus {
        self.node(node).member.as_ref().expect("it runs").status()
    }

    pub(super) fn newest(&self) -> Configuration {
        self.epochs.values().next_back().unwrap_or(&self.bootstrap).clone()
    }

    pub(super) fn in_sync(&self) -> Vec<u16> {
        self.newest().in_sync().map(|node| node.0).collect()
    }

    pub(super) fn primary(&self) -> Option<u16> {
        self.newest().primary.map(|node| node.0)
    }

    pub(super) fn is_done(&self, node: u16, id: u64) -> bool {
        self.node(node).done.contains_key(&id)
    }

    pub(super) fn show(&self) -> alloc::string::String {
        use core::fmt::Write;
        let mut text = alloc::string::String::new();
        let newest = self.newest();
        writeln!(
            text,
            "newest {} reign {} primary {:?} members {:?}",
            newest.epoch, newest.reign, newest.primary, newest.members
        )
        .expect("text");
        for (node, entry) in &self.nodes {
            match &entry.member {
                None => writeln!(text, "node {node}: down").expect("text"),
                Some(member) => {
                    let mut status = member.status();
                    let epoch = status.configuration.take().map(|known| (known.fork, known.epoch));
                    writeln!(
                        text,
                        "node {node}: answers {} epoch {epoch:?} {status:?}",
                        self.answers(*node)
                    )
                    .expect("text");
                }
            }
        }
        text
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds).0);
    }
}

impl World {
    pub(super) fn session(&self, a: u16, b: u16) -> SessionId {
        self.sessions[&pair(a, b)]
    }
}

/// These shards have nothing open that an earlier configuration let in.
fn fence_of(message: &ToShard) -> Option<FromShard> {
    let ToShard::Install { configuration, .. } = message else { return None };
    let epoch = configuration.epoch;
    (!configuration.reservations.is_empty()).then_some(FromShard::Fenced { epoch })
}

//! A few shards with a network that is driven by hand and disks that answer at once or when told.
//!
//! Always: two overlapping disk requests of which one changes sectors are never in flight together; a
//! request is answered once; a buffer is released once.

use super::super::{BitmapFound, Shard, ShardSetup};
use crate::disk::{decode_bitmap_page, hot_extents};
use crate::door::{
    DiskAnswer, DiskOp, DiskRequest, FromShard, Geometry, MetaPage, Page, ShardInput, ShardOutput,
    Slot, Timing, ToShard,
};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{
    AnswerError, BufferId, Duration, Epoch, HostId, Incarnation, Instant, NodeId, Op, Request,
    RequestId, SessionId, Span, VolumeId, VoterId, Way,
};
use wire::{Configuration, MemberEntry, MemberKind, Options, ShardMessage, VolumeEntry};

/// Sectors of the volume: not a multiple of a block.
pub(super) const SECTORS: u64 = 1020;
pub(super) const VOLUME: VolumeId = VolumeId(0);

/// One value for each sector.
type Bytes = Vec<u64>;
/// How a request was answered, with the bytes of a read.
type Answer = (Result<(), AnswerError>, Option<Bytes>);

pub(super) fn geometry() -> Geometry {
    Geometry {
        extent_sectors: 64,
        block_sectors: 8,
        stripe_extents: 4,
        log_pages: 3,
        log_page_extents: 4,
        log_extents: 4,
        copy_sectors: 32,
        copies_max: 4,
        verify_sectors: 256,
    }
}

pub(super) fn span(first: u64, count: u32) -> Span {
    Span::new(first, count).expect("a test's spans fit")
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) shard: Shard,
    pub(super) data: BTreeMap<u64, u64>,
    pages: BTreeMap<MetaPage, Page>,
    /// Asked of the disk and not carried out.
    pub(super) flying: VecDeque<(DiskOp, DiskRequest)>,
    /// Requests for data wait until `disk_goes_on`.
    pub(super) disk_held: bool,
    /// Metadata is not written.
    pub(super) metadata_held: bool,
    pub(super) disk_fails: bool,
    /// All is carried out, and no flush.
    pub(super) flushes_fail: bool,
    /// Data is read, and not written.
    pub(super) disk_full: bool,
    /// Sectors that changed by themselves, which block checksums tell.
    pub(super) rotten: BTreeSet<u64>,
    /// Sectors that cannot be read until they are written.
    pub(super) unreadable: BTreeSet<u64>,
    /// Written and not flushed since.
    pub(super) unflushed: BTreeSet<u64>,
    pub(super) buffers: BTreeMap<u32, Bytes>,
    next_buffer: u32,
    pub(super) said: Vec<FromShard>,
    pub(super) marks: Vec<&'static str>,
    answers: BTreeMap<u64, Answer>,
    pub(super) slots: Vec<Slot>,
    life: u64,
}

struct Packet {
    session: u64,
    message: ShardMessage,
    bytes: Option<Bytes>,
}

/// Everything.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) nodes: BTreeMap<u16, Node>,
    sessions: BTreeMap<(u16, u16), u64>,
    wires: BTreeMap<(u16, u16), VecDeque<Packet>>,
    /// Messages from the first to the second stay on the way.
    pub(super) held: BTreeSet<(u16, u16)>,
    pub(super) configuration: Configuration,
    pub(super) seen: Vec<(u16, u16, ShardMessage)>,
    next_session: u64,
    next_request: u64,
    /// Sectors that each request asks for.
    counts: BTreeMap<u64, usize>,
    /// Who starts does so under a number that was used before.
    pub(super) same_process: bool,
    /// Nobody has written to the disks of those who start.
    untouched: bool,
    /// What targets of a resync report does not get on record.
    pub(super) no_record: bool,
    vouches: VecDeque<(u16, ToShard)>,
}

pub(super) fn member(node: u16, in_sync: bool) -> MemberEntry {
    MemberEntry {
        node: NodeId(node),
        kind: MemberKind::Replica,
        voter: VoterId(u64::from(node)),
        in_sync,
        incarnation: Incarnation(u64::from(node)),
    }
}

pub(super) fn first_configuration(replicas: &[u16]) -> Configuration {
    let members = replicas.iter().map(|&node| member(node, true)).collect();
    let volume = VolumeEntry { volume: VOLUME, sectors: SECTORS, grows_to: None, block_bytes: 512 };
    Configuration::first(members, vec![volume], Options::default())
}

impl World {
    /// Shards on `nodes`; those that are in `replicas` hold data.
    pub(super) fn new(nodes: &[u16], replicas: &[u16]) -> World {
        World::begin(nodes, replicas, false)
    }

    /// The same, of a new resource.
    pub(super) fn untouched(nodes: &[u16], replicas: &[u16]) -> World {
        World::begin(nodes, replicas, true)
    }

    fn begin(nodes: &[u16], replicas: &[u16], untouched: bool) -> World {
        let mut world = World {
            now: Instant(1_000_000_000),
            nodes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            wires: BTreeMap::new(),
            held: BTreeSet::new(),
            configuration: first_configuration(replicas),
            seen: Vec::new(),
            next_session: 1,
            next_request: 1,
            counts: BTreeMap::new(),
            same_process: false,
            untouched,
            no_record: false,
            vouches: VecDeque::new(),
        };
        for &node in nodes {
            world.start(node, Vec::new(), Vec::new());
        }
        for (at, &one) in nodes.iter().enumerate() {
            for &other in &nodes[at + 1..] {
                world.connect(one, other);
            }
        }
        world
    }

    fn start(&mut self, node: u16, inherited: Vec<(VolumeId, u64)>, bitmaps: Vec<BitmapFound>) {
        let old = self.nodes.remove(&node);
        let attached = self.configuration.is_replica(NodeId(node));
        let life = old.as_ref().map_or(1, |old| old.life + 1);
        let slots = old.as_ref().map_or_else(|| self.first_slots(node), |old| old.slots.clone());
        let setup = ShardSetup {
            node: NodeId(node),
            process: if self.same_process { 1 } else { life },
            index: 0,
            shards: 1,
            geometry: geometry(),
            timing: Timing::default(),
            attached,
            untouched: self.untouched,
            life,
            log_half: u8::from(life.is_multiple_of(2)),
            inherited,
            log_sizes: vec![],
            slots: slots.clone(),
            bitmaps,
        };
        let mut out = Vec::new();
        let shard = Shard::new(self.now, setup, &mut out);
        let (data, pages) = old.map_or_else(Default::default, |old| (old.data, old.pages));
        let fresh = Node {
            shard,
            data,
            pages,
            flying: VecDeque::new(),
            disk_held: false,
            metadata_held: false,
            disk_fails: false,
            flushes_fail: false,
            disk_full: false,
            rotten: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            unflushed: BTreeSet::new(),
            buffers: BTreeMap::new(),
            next_buffer: 1,
            said: Vec::new(),
            marks: Vec::new(),
            answers: BTreeMap::new(),
            slots,
            life,
        };
        self.nodes.insert(node, fresh);
        self.carry_out(node, out);
        self.run();
    }

    fn first_slots(&self, node: u16) -> Vec<Slot> {
        let others = self.configuration.members.iter().filter(|member| member.node.0 != node);
        others
            .enumerate()
            .map(|(at, member)| Slot {
                node: member.node,
                voter: member.voter,
                number: u8::try_from(at).expect("few"),
                generation: at as u64 + 1,
                full: false,
            })
            .collect()
    }

    /// The process ends and begins anew on the same disk, with its cache.
    pub(super) fn restart(&mut self, node: u16) {
        let peers: Vec<u16> = self.nodes.keys().copied().filter(|&other| other != node).collect();
        for other in peers {
            self.disconnect(node, other);
        }
        let old = &self.nodes[&node];
        let half = u8::from(old.life.is_multiple_of(2));
        let pages: Vec<(MetaPage, Option<Page>)> = old
            .pages
            .iter()
            .filter(|(place, _)| matches!(place, MetaPage::Log { .. }))
            .map(|(&place, &page)| (place, Some(page)))
            .collect();
        let found =
            hot_extents(VOLUME, &pages, half, old.life).expect("pages as they were written");
        let mut bitmaps = Vec::new();
        for (place, page) in &old.pages {
            let &MetaPage::Bitmap { slot, page: number } = place else { continue };
            let slot = old.slots.iter().find(|known| known.number == slot).expect("a slot");
            let (generation, runs) =
                decode_bitmap_page(VOLUME, slot.number, number, page).expect("as it was written");
            if generation == slot.generation {
                bitmaps.push((slot.node, VOLUME, number, Some(runs)));
            }
        }
        self.start(node, found.extents, bitmaps);
    }

    /// A session between the two begins.
    pub(super) fn connect(&mut self, one: u16, other: u16) {
        let session = self.next_session;
        self.next_session += 1;
        for (from, to) in [(one, other), (other, one)] {
            self.sessions.insert((from, to), session);
            self.wires.insert((from, to), VecDeque::new());
        }
        for (node, peer) in [(one, other), (other, one)] {
            let (peer, session) = (NodeId(peer), SessionId(session));
            self.step(node, ShardInput::PeerUp { peer, session });
        }
        self.run();
    }

    pub(super) fn disconnect(&mut self, one: u16, other: u16) {
        let Some(session) = self.sessions.remove(&(one, other)) else { return };
        self.sessions.remove(&(other, one));
        for (node, peer) in [(one, other), (other, one)] {
            self.wires.remove(&(node, peer));
            if self.nodes.contains_key(&node) {
                let (peer, session) = (NodeId(peer), SessionId(session));
                self.step(node, ShardInput::PeerDown { peer, session });
            }
        }
        self.run();
    }

    pub(super) fn session(&self, one: u16, other: u16) -> SessionId {
        SessionId(self.sessions[&(one, other)])
    }

    pub(super) fn step(&mut self, node: u16, input: ShardInput) {
        let mut out = Vec::new();
        let now = self.now;
        let at = self.nodes.get_mut(&node).expect("a node of this world");
        at.shard.step(now, input, &mut out);
        if let Some(wake) = at.shard.wake_at() {
            assert!(wake > now, "a shard never asks to be woken at once");
        }
        self.carry_out(node, out);
    }

    /// A message that nobody of this world has sent comes from `peer`, in the session there is.
    pub(super) fn hear(&mut self, node: u16, peer: u16, message: ShardMessage) {
        let (peer, session) = (NodeId(peer), self.session(peer, node));
        self.step(node, ShardInput::Frame { peer, session, message, buffer: None });
        self.run();
    }

    /// A write of zeroes to eight sectors under number 1000, as the primary asks a replica for it.
    pub(super) fn zero_write(&self, first: u64) -> ShardMessage {
        ShardMessage::Write {
            epoch: self.configuration.epoch,
            sequence: 1000,
            cut: 1,
            volume: VOLUME,
            span: span(first, 8),
            flags: wire::WriteFlags { zero: true, ..Default::default() },
            origin: None,
        }
    }

    pub(super) fn tell(&mut self, node: u16, message: ToShard) {
        self.step(node, ShardInput::Member(message));
        self.run();
    }

    fn carry_out(&mut self, node: u16, out: Vec<ShardOutput>) {
        let mut gone: BTreeMap<u32, Bytes> = BTreeMap::new();
        for output in out {
            let at = self.nodes.get_mut(&node).expect("a node of this world");
            match output {
                ShardOutput::Disk { op, request } => at.ask(op, request),
                ShardOutput::Send { peer, session, message, buffer } => {
                    let bytes = buffer.map(|buffer| {
                        at.buffers.get(&buffer.0).or(gone.get(&buffer.0)).expect("held").clone()
                    });
                    self.seen.push((node, peer.0, message.clone()));
                    if self.sessions.get(&(node, peer.0)) == Some(&session.0) {
                        let packet = Packet { session: session.0, message, bytes };
                        self.wires.entry((node, peer.0)).or_default().push_back(packet);
                    }
                }
                ShardOutput::Answer { id, result, buffer } => {
                    let bytes = buffer.map(|buffer| at.buffers[&buffer.0].clone());
                    let earlier = at.answers.insert(id.0, (result, bytes));
                    assert!(earlier.is_none(), "a request is answered once");
                }
                ShardOutput::Release { buffer } => {
                    let bytes = at.buffers.remove(&buffer.0).expect("a buffer is released once");
                    for (_, request) in &at.flying {
                        if let DiskRequest::Write { buffer: used, .. } = request {
                            assert_ne!(*used, buffer, "the disk still reads it");
                        }
                    }
                    gone.insert(buffer.0, bytes);
                }
                ShardOutput::Member(message) => {
                    if let FromShard::Flushed { peer, session, sequence } = message {
                        let vouched = ToShard::Vouched { shard: 0, peer, session, sequence };
                        self.vouches.push_back((node, vouched));
                    }
                    at.said.push(message);
                }
                ShardOutput::Mark(mark) => at.marks.push(mark),
            }
        }
    }

    /// Until nothing moves any more.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.move_one() {
                return;
            }
        }
        panic!("the shards never come to rest");
    }

    fn move_one(&mut self) -> bool {
        let nodes: Vec<u16> = self.nodes.keys().copied().collect();
        for node in nodes {
            let at = self.nodes.get_mut(&node).expect("listed");
            let ready = at.flying.iter().position(|(_, request)| {
                let metadata = matches!(request, DiskRequest::Meta { .. });
                !(if metadata { at.metadata_held } else { at.disk_held })
            });
            if let Some(ready) = ready {
                self.disk_answers(node, ready);
                return true;
            }
        }
        if !self.no_record
            && let Some((node, vouched)) = self.vouches.pop_front()
        {
            self.step(node, ShardInput::Member(vouched));
            return true;
        }
        let wires: Vec<(u16, u16)> = self.wires.keys().copied().collect();
        for (from, to) in wires {
            if !self.held.contains(&(from, to)) && self.deliver(from, to) {
                return true;
            }
        }
        false
    }

    /// The next message on the way from one to the other arrives.
    pub(super) fn deliver(&mut self, from: u16, to: u16) -> bool {
        let Some(packet) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        let buffer = packet.bytes.map(|bytes| self.buffer(to, bytes));
        let (peer, session) = (NodeId(from), SessionId(packet.session));
        let message = packet.message;
        self.step(to, ShardInput::Frame { peer, session, message, buffer });
        true
    }

    /// One disk request is carried out.
    pub(super) fn disk_answers(&mut self, node: u16, at: usize) {
        let (op, answer) = self.nodes.get_mut(&node).expect("a node").carry(at);
        self.step(node, ShardInput::Disk { op, answer });
    }

    /// Of what a disk holds back, the write that begins there is carried out.
    pub(super) fn disk_writes(&mut self, node: u16, first: u64) {
        let there = |request: &DiskRequest| {
            place(request).is_some_and(|(span, changes)| changes && span.first() == first)
        };
        let mut flying = self.nodes[&node].flying.iter();
        let at = flying.position(|(_, request)| there(request)).expect("asked of the disk");
        self.disk_answers(node, at);
        self.run();
    }

    /// Every write that a disk holds back is durable.
    pub(super) fn disk_says_durable(&mut self, node: u16) {
        self.run();
        let writes: Vec<DiskOp> = self.nodes[&node]
            .flying
            .iter()
            .filter(|(_, request)| place(request).is_some_and(|(_, changes)| changes))
            .map(|&(op, _)| op)
            .collect();
        for op in writes {
            self.step(node, ShardInput::Disk { op, answer: DiskAnswer::Durable });
        }
        self.run();
    }

    pub(super) fn disk_goes_on(&mut self, node: u16) {
        self.nodes.get_mut(&node).expect("a node").disk_held = false;
        self.run();
    }

    /// Time passes; everybody is woken as it asked to be.
    pub(super) fn wait_ms(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while self.now < end {
            let nodes = self.nodes.iter();
            let next = nodes.filter_map(|(&node, at)| Some((at.shard.wake_at()?, node))).min();
            match next.filter(|(at, _)| *at <= end) {
                Some((at, node)) => {
                    self.now = at;
                    self.step(node, ShardInput::Wake);
                }
                None => self.now = end,
            }
            self.run();
        }
    }

    fn buffer(&mut self, node: u16, bytes: Bytes) -> BufferId {
        let at = self.nodes.get_mut(&node).expect("a node");
        let id = at.next_buffer;
        at.next_buffer += 1;
        at.buffers.insert(id, bytes);
        BufferId(id)
    }

    /// Makes `next` the newest configuration and tells `nodes`.
    pub(super) fn install(&mut self, next: Configuration, nodes: &[u16]) {
        self.configuration = next;
        for &node in nodes {
            self.install_on(node);
        }
    }

    /// The next configuration that `node` learns says that nothing of `other`'s copy counts.
    pub(super) fn void(&mut self, node: u16, other: u16) {
        let slots = &mut self.nodes.get_mut(&node).expect("a node").slots;
        let top = slots.iter().map(|slot| slot.generation).max().unwrap_or(0);
        for slot in slots.iter_mut().filter(|slot| slot.node == NodeId(other)) {
            slot.generation = top + 1;
            slot.full = true;
        }
    }

    pub(super) fn install_on(&mut self, node: u16) {
        let configuration = Arc::new(self.configuration.clone());
        let at = self.nodes.get_mut(&node).expect("a node");
        let top = at.slots.iter().map(|slot| slot.generation).max().unwrap_or(0);
        let old = at.shard.configuration.clone();
        for (add, slot) in (1..).zip(&mut at.slots) {
            let was = old.as_ref().is_none_or(|old| old.is_in_sync(slot.node));
            if configuration.is_in_sync(slot.node) && !was {
                slot.generation = top + add;
                slot.full = false;
            }
        }
        let slots = at.slots.clone();
        let reigns = configuration.primary == Some(NodeId(node));
        self.tell(node, ToShard::Install { configuration, slots, reigns, leaves: false });
        let own = NodeId(node);
        let epoch = self.configuration.epoch;
        let kept = self.configuration.is_in_sync(own);
        let session = SessionId(0);
        self.tell(node, ToShard::PeerReady { peer: own, session, epoch, kept });
    }

    /// The primary hears that `peer` acts on the newest configuration.
    pub(super) fn ready(&mut self, primary: u16, peer: u16) {
        let session = self.session(primary, peer);
        let kept = self.configuration.is_in_sync(NodeId(peer));
        let (peer, epoch) = (NodeId(peer), self.configuration.epoch);
        self.tell(primary, ToShard::PeerReady { peer, session, epoch, kept });
    }

    /// Node `primary` begins a reign, with everybody it is connected to.
    pub(super) fn lead(&mut self, primary: u16) {
        self.begin_reign(primary);
        let reign = self.configuration.reign;
        assert!(self.has_said(primary, &FromShard::Gathered { reign }), "doubt is gathered");
        self.tell(primary, ToShard::Serve { reign });
        self.tell(primary, ToShard::Lease { until: self.now + Duration::from_secs(1000) });
    }

    /// The same, before it serves.
    pub(super) fn begin_reign(&mut self, primary: u16) {
        let mut next = self.configuration.clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        next.reign = next.epoch;
        next.primary = Some(NodeId(primary));
        let mut others: Vec<u16> = self.peers_of(primary);
        self.install(next, &[primary]);
        others.sort_unstable();
        for &other in &others {
            self.install_on(other);
            self.ready(primary, other);
        }
    }

    pub(super) fn peers_of(&self, node: u16) -> Vec<u16> {
        self.sessions.keys().filter(|(from, _)| *from == node).map(|(_, to)| *to).collect()
    }

    /// The configuration after this one, with another in-sync set.
    pub(super) fn next_with(&self, in_sync: &[u16]) -> Configuration {
        let mut next = self.configuration.clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        for member in &mut next.members {
            member.in_sync = in_sync.contains(&member.node.0);
        }
        next
    }

    /// Another in-sync set is committed; the primary and everybody it is connected to act on it.
    pub(super) fn change(&mut self, primary: u16, in_sync: &[u16]) {
        let next = self.next_with(in_sync);
        self.install(next, &[primary]);
        for other in self.peers_of(primary) {
            self.install_on(other);
            self.ready(primary, other);
        }
    }

    /// The other one of two is gone, and left out.
    pub(super) fn goes_on_alone(&mut self, primary: u16, other: u16) {
        self.disconnect(primary, other);
        self.change(primary, &[primary]);
    }

    /// A node is connected to the primary again, and acts on the newest configuration.
    pub(super) fn comes_back(&mut self, primary: u16, node: u16) {
        self.connect(primary, node);
        self.install_on(node);
        self.ready(primary, node);
    }

    /// Node `target` is brought up to date and included.
    pub(super) fn resync(&mut self, primary: u16, target: u16) {
        self.start_resync(primary, target);
        self.wait_ms(1000);
        let session = self.session(primary, target);
        let peer = NodeId(target);
        assert!(self.has_said(primary, &FromShard::Synced { peer, session }), "synced");
        self.tell(primary, ToShard::Require { peer, session, number: 1 });
        self.wait_ms(200);
        assert!(
            self.has_said(primary, &FromShard::Required { peer, session, number: 1 }),
            "required"
        );
        let mut in_sync: Vec<u16> = self.configuration.in_sync().map(|node| node.0).collect();
        in_sync.push(target);
        self.change(primary, &in_sync);
    }

    pub(super) fn start_resync(&mut self, primary: u16, target: u16) {
        let session = self.session(primary, target);
        let peer = NodeId(target);
        self.tell(primary, ToShard::Resync { peer, session, gather: true });
    }

    /// Time passes until something was sent.
    pub(super) fn until_sent(&mut self, from: u16, to: u16, what: impl Fn(&ShardMessage) -> bool) {
        for _ in 0..1000 {
            if self.sent(from, to, &what) > 0 {
                return;
            }
            self.wait_ms(10);
        }
        panic!("node {from} does not send it to node {to}");
    }

    pub(super) fn has_said(&self, node: u16, message: &FromShard) -> bool {
        self.nodes[&node].said.contains(message)
    }

    pub(super) fn has_mark(&self, node: u16, mark: &str) -> bool {
        self.nodes[&node].marks.contains(&mark)
    }

    /// A client asks; nothing moves on the network yet.
    pub(super) fn ask(&mut self, node: u16, op: Op, at: Span, value: u64, fua: bool) -> u64 {
        self.ask_by(None, HostId(0), node, (op, at, value, fua))
    }

    /// Likewise, a client that has several ways.
    pub(super) fn write_by(&mut self, way: u32, node: u16, first: u64, value: u64) -> u64 {
        let what = (Op::Write, span(first, 4), value, false);
        let id = self.ask_by(Some(Way::of(way)), HostId(0), node, what);
        self.run();
        id
    }

    /// Likewise, one that goes no other way for a second.
    pub(super) fn write_staying(&mut self, way: u32, node: u16, first: u64, value: u64) -> u64 {
        let way = Way { number: way, stays: Duration::from_secs(1) };
        let what = (Op::Write, span(first, 4), value, false);
        let id = self.ask_by(Some(way), HostId(0), node, what);
        self.run();
        id
    }

    /// Likewise, a host that may have registered, which has several ways, as those have that can.
    pub(super) fn write_of(&mut self, host: u128, node: u16, first: u64, value: u64) -> u64 {
        let what = (Op::Write, span(first, 4), value, false);
        let id = self.ask_by(Some(Way::of(1)), HostId(host), node, what);
        self.run();
        id
    }

    /// Likewise, a host that may have registered.
    pub(super) fn write_as(&mut self, host: u128, node: u16, first: u64, value: u64) -> u64 {
        let id = self.ask_by(None, HostId(host), node, (Op::Write, span(first, 4), value, false));
        self.run();
        id
    }

    /// Likewise.
    pub(super) fn read_as(&mut self, host: u128, node: u16, first: u64) -> u64 {
        let id = self.ask_by(None, HostId(host), node, (Op::Read, span(first, 4), 0, false));
        self.run();
        id
    }

    fn ask_by(
        &mut self,
        way: Option<Way>,
        host: HostId,
        node: u16,
        (op, at, value, fua): (Op, Span, u64, bool),
    ) -> u64 {
        let id = self.next_request;
        self.next_request += 1;
        self.counts.insert(id, at.count() as usize);
        let buffer = (op == Op::Write).then(|| self.buffer(node, vec![value; at.count() as usize]));
        let request = Request { op, volume: VOLUME, span: at, buffer, fua, way, host };
        self.step(node, ShardInput::Request { id: RequestId(id), request });
        id
    }

    pub(super) fn write(&mut self, node: u16, first: u64, count: u32, value: u64) -> u64 {
        let id = self.ask(node, Op::Write, span(first, count), value, false);
        self.run();
        id
    }

    /// The client of a request is gone.
    pub(super) fn withdraw(&mut self, node: u16, id: u64) {
        self.step(node, ShardInput::Withdraw { id: RequestId(id) });
    }

    pub(super) fn read(&mut self, node: u16, first: u64, count: u32) -> u64 {
        let id = self.ask(node, Op::Read, span(first, count), 0, false);
        self.run();
        id
    }

    pub(super) fn flush(&mut self, node: u16) -> u64 {
        let id = self.ask(node, Op::Flush, span(0, 1), 0, false);
        self.run();
        id
    }

    pub(super) fn answer(&self, node: u16, id: u64) -> Option<Result<(), AnswerError>> {
        self.nodes[&node].answers.get(&id).map(|(result, _)| *result)
    }

    /// What a read gave, sector by sector.
    pub(super) fn got(&self, node: u16, id: u64) -> Vec<u64> {
        let (result, bytes) = self.nodes[&node].answers.get(&id).expect("answered");
        assert_eq!(*result, Ok(()));
        bytes.clone().unwrap_or_else(|| vec![0; self.counts[&id]])
    }

    pub(super) fn at(&self, node: u16, sector: u64) -> u64 {
        self.nodes[&node].data.get(&sector).copied().unwrap_or(0)
    }

    /// Where the bits that `node` keeps for `peer` are set, in sectors.
    pub(super) fn dirty(&self, node: u16, peer: u16) -> Vec<(u64, u64)> {
        let bits = &self.nodes[&node].shard.bitmaps;
        let (mut runs, mut from) = (Vec::new(), 0);
        while let Some(run) = bits.next_dirty(NodeId(peer), VOLUME, from, SECTORS) {
            runs.push(run);
            from = run.1;
        }
        runs
    }

    pub(super) fn buffers_held(&self) -> usize {
        self.nodes.values().map(|node| node.buffers.len()).sum()
    }

    pub(super) fn sent(&self, from: u16, to: u16, what: impl Fn(&ShardMessage) -> bool) -> usize {
        self.seen.iter().filter(|(a, b, message)| (*a, *b) == (from, to) && what(message)).count()
    }
}

fn place(request: &DiskRequest) -> Option<(Span, bool)> {
    match request {
        DiskRequest::Read { span, .. } | DiskRequest::Hash { span, .. } => Some((*span, false)),
        DiskRequest::Write { span, .. } | DiskRequest::Zero { span, .. } => Some((*span, true)),
        _ => None,
    }
}

impl Node {
    fn ask(&mut self, op: DiskOp, request: DiskRequest) {
        assert!(self.shard_has_disk(), "a disk that was given up is left alone");
        if let Some((span, changes)) = place(&request) {
            for (_, other) in &self.flying {
                let Some((taken, other_changes)) = place(other) else { continue };
                assert!(
                    !(taken.overlaps(span) && (changes || other_changes)),
                    "overlapping disk requests go one after the other"
                );
            }
        }
        if let DiskRequest::Meta { page, .. } = &request {
            for (_, other) in &self.flying {
                if let DiskRequest::Meta { page: taken, .. } = other {
                    assert_ne!(taken, page, "a page is written once at a time");
                }
            }
        }
        self.flying.push_back((op, request));
    }

    fn shard_has_disk(&self) -> bool {
        self.shard.has_disk
    }

    fn carry(&mut self, at: usize) -> (DiskOp, DiskAnswer) {
        let (op, request) = self.flying.remove(at).expect("in flight");
        let writes = matches!(request, DiskRequest::Write { .. } | DiskRequest::Zero { .. });
        let flush_fails = self.flushes_fail && request == DiskRequest::Flush;
        if self.disk_fails || flush_fails || (self.disk_full && writes) {
            return (op, DiskAnswer::Failed);
        }
        let answer = match request {
            DiskRequest::Read { span, .. } | DiskRequest::Hash { span, .. }
                if self.unreadable.range(span.first()..span.end()).next().is_some() =>
            {
                DiskAnswer::Failed
            }
            DiskRequest::Read { span, .. } | DiskRequest::Hash { span, .. }
                if self.rotten.range(span.first()..span.end()).next().is_some() =>
            {
                DiskAnswer::Rotten
            }
            DiskRequest::Read { span, .. } => {
                let bytes = self.bytes(span);
                let buffer = bytes.iter().any(|&value| value != 0).then(|| {
                    let id = self.next_buffer;
                    self.next_buffer += 1;
                    self.buffers.insert(id, bytes);
                    BufferId(id)
                });
                DiskAnswer::Data(buffer)
            }
            DiskRequest::Hash { span, .. } => {
                DiskAnswer::Hash(self.bytes(span).iter().fold(0, |sum: u128, &value| {
                    sum.wrapping_mul(0x0100_0193).wrapping_add(u128::from(value) + 7)
                }))
            }
            DiskRequest::Write { span, buffer, durable, .. } => {
                let bytes = self.buffers.get(&buffer.0).expect("readable until it is written");
                for (sector, &value) in (span.first()..span.end()).zip(bytes) {
                    self.data.insert(sector, value);
                    self.rotten.remove(&sector);
                    self.unreadable.remove(&sector);
                    if !durable {
                        self.unflushed.insert(sector);
                    }
                }
                DiskAnswer::Done
            }
            DiskRequest::Zero { span, durable, .. } => {
                for sector in span.first()..span.end() {
                    self.data.insert(sector, 0);
                    self.rotten.remove(&sector);
                    self.unreadable.remove(&sector);
                    if !durable {
                        self.unflushed.insert(sector);
                    }
                }
                DiskAnswer::Done
            }
            DiskRequest::Seal { .. } => DiskAnswer::Done,
            DiskRequest::Flush => {
                self.unflushed.clear();
                DiskAnswer::Done
            }
            DiskRequest::Meta { page, bytes, .. } => {
                let bytes: Box<Page> = bytes;
                self.pages.insert(page, *bytes);
                DiskAnswer::Done
            }
        };
        (op, answer)
    }

    fn bytes(&self, span: Span) -> Bytes {
        (span.first()..span.end())
            .map(|sector| self.data.get(&sector).copied().unwrap_or(0))
            .collect()
    }
}

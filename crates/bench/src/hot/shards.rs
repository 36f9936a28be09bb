//! Three replicas' shards in one process, with disks and links that answer at once.
//!
//! Always: outputs are carried out in order; each round of requests ends with nothing open.
//!
//! Not here: anything that moves a byte. A write is its `BufferId`.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{
    BufferId, Duration, Epoch, Incarnation, Instant, NodeId, Op, Prng, Request, RequestId,
    SessionId, Span, VolumeId, VoterId,
};
use replica::door::{
    DiskAnswer, DiskRequest, Geometry, ShardInput, ShardOutput, Slot, Timing, ToShard,
};
use replica::{Shard, ShardSetup};
use wire::{Configuration, MemberEntry, MemberKind, Options, VolumeEntry};

const VOLUME: VolumeId = VolumeId(0);
/// 1 GiB: fewer extents than the activity log has room for.
const SECTORS: u64 = 1 << 21;
/// Requests that are open at once.
const DEPTH: u64 = 64;
/// Time between two rounds of `DEPTH` requests.
const ROUND: Duration = Duration(600_000);
/// The primary.
const FIRST: u16 = 1;

/// A cluster of which node 1 is primary.
pub(crate) struct Shards {
    now: Instant,
    shards: Vec<Shard>,
    queue: VecDeque<(u16, ShardInput)>,
    out: Vec<ShardOutput>,
    random: Prng,
    requests: u64,
    answers: u64,
}

impl Shards {
    /// Of `count` replicas, of which the first `in_sync` are so; every extent is hot.
    pub(crate) fn new(count: u16, in_sync: u16) -> Shards {
        let now = Instant(1_000_000_000);
        let mut cluster = Shards {
            now,
            shards: Vec::new(),
            queue: VecDeque::new(),
            out: Vec::new(),
            random: Prng::new(1),
            requests: 0,
            answers: 0,
        };
        for node in FIRST..=count {
            let shard = Shard::new(now, setup(node, count), &mut cluster.out);
            cluster.shards.push(shard);
            cluster.carry_out(node);
        }
        for node in FIRST..=in_sync {
            for peer in (FIRST..=in_sync).filter(|&peer| peer != node) {
                let (session, peer) = (session(node, peer), NodeId(peer));
                cluster.give(node, ShardInput::PeerUp { peer, session });
            }
        }
        let configuration = Arc::new(configuration(count, in_sync));
        for node in FIRST..=in_sync {
            let slots = slots(node, count);
            let (configuration, reigns) = (Arc::clone(&configuration), node == FIRST);
            cluster.tell(node, ToShard::Install { configuration, slots, reigns, leaves: false });
        }
        for peer in FIRST..=in_sync {
            let session = session(FIRST, peer);
            let (peer, epoch) = (NodeId(peer), configuration.epoch);
            cluster.tell(FIRST, ToShard::PeerReady { peer, session, epoch, kept: true });
        }
        cluster.tell(FIRST, ToShard::Serve { reign: configuration.reign });
        let until = now + Duration::from_secs(1_000_000);
        cluster.tell(FIRST, ToShard::Lease { until });
        for extent in 0..SECTORS / 8192 {
            cluster.ask(Op::Write, extent * 8192);
            cluster.settle();
        }
        cluster
    }

    /// So many 4 KiB requests at random places, `DEPTH` at a time.
    pub(crate) fn run(&mut self, op: Op, count: u64) {
        for _ in 0..count / DEPTH {
            for _ in 0..DEPTH {
                let block = self.random.below(SECTORS / 8);
                self.ask(op, block * 8);
            }
            self.settle();
        }
        assert_eq!(self.answers, self.requests, "every request is answered");
    }

    fn ask(&mut self, op: Op, first: u64) {
        self.requests += 1;
        let span = Span::new(first, 8).expect("inside the volume");
        let buffer = (op == Op::Write).then_some(BufferId(1));
        let request = Request {
            op,
            volume: VOLUME,
            span,
            buffer,
            fua: false,
            way: None,
            host: base::HostId(0),
        };
        self.give(FIRST, ShardInput::Request { id: RequestId(self.requests), request });
    }

    /// Until nothing is on its way; then time passes.
    fn settle(&mut self) {
        while let Some((node, input)) = self.queue.pop_front() {
            self.give(node, input);
        }
        self.now = self.now + ROUND;
    }

    fn tell(&mut self, node: u16, message: ToShard) {
        self.give(node, ShardInput::Member(message));
        self.settle();
    }

    fn give(&mut self, node: u16, input: ShardInput) {
        self.shards[usize::from(node - FIRST)].step(self.now, input, &mut self.out);
        self.carry_out(node);
    }

    fn carry_out(&mut self, node: u16) {
        for output in self.out.drain(..) {
            match output {
                ShardOutput::Disk { op, request } => {
                    let answer = match request {
                        DiskRequest::Read { .. } => DiskAnswer::Data(Some(BufferId(2))),
                        DiskRequest::Hash { .. } => DiskAnswer::Hash(0),
                        _ => DiskAnswer::Done,
                    };
                    self.queue.push_back((node, ShardInput::Disk { op, answer }));
                }
                ShardOutput::Send { peer, session, message, buffer } => {
                    let input = ShardInput::Frame { peer: NodeId(node), session, message, buffer };
                    self.queue.push_back((peer.0, input));
                }
                ShardOutput::Answer { result, .. } => {
                    assert!(result.is_ok(), "nothing fails here");
                    self.answers += 1;
                }
                ShardOutput::Release { .. } | ShardOutput::Member(_) | ShardOutput::Mark(_) => {}
            }
        }
    }
}

/// The session between two nodes: both know it by the same number.
fn session(one: u16, other: u16) -> SessionId {
    SessionId(u64::from(one.min(other)) << 16 | u64::from(one.max(other)))
}

fn setup(node: u16, count: u16) -> ShardSetup {
    ShardSetup {
        node: NodeId(node),
        process: 1,
        index: 0,
        shards: 1,
        geometry: Geometry::default(),
        timing: Timing::default(),
        untouched: false,
        attached: true,
        life: 1,
        log_half: 0,
        inherited: Vec::new(),
        log_sizes: Vec::new(),
        slots: slots(node, count),
        bitmaps: Vec::new(),
    }
}

fn slots(node: u16, count: u16) -> Vec<Slot> {
    let others = (FIRST..=count).filter(|&other| other != node);
    let slot = |(number, other): (u8, u16)| Slot {
        node: NodeId(other),
        voter: VoterId(u64::from(other)),
        number,
        generation: u64::from(number) + 1,
        full: false,
    };
    (0..).zip(others).map(slot).collect()
}

fn configuration(count: u16, in_sync: u16) -> Configuration {
    let member = |node| MemberEntry {
        node: NodeId(node),
        kind: MemberKind::Replica,
        voter: VoterId(u64::from(node)),
        in_sync: node <= in_sync,
        incarnation: Incarnation(u64::from(node)),
    };
    let members = (FIRST..=count).map(member).collect();
    let volume = VolumeEntry { volume: VOLUME, sectors: SECTORS, grows_to: None, block_bytes: 512 };
    Configuration {
        reign: Epoch(1),
        primary: Some(NodeId(FIRST)),
        ..Configuration::first(members, vec![volume], Options::default())
    }
}

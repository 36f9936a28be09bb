//! What a seed makes of a run: the cluster, its clients, and the faults that it will meet.
//!
//! Each kind of fault is frequent, rare or absent in a given run (swarm testing), so that runs differ
//! in kind and not only in detail. A fault stands on its own: leaving one out changes no other.
//!
//! Not here: carrying faults out (`world`, `fault`), shrinking the list (`campaign`).

use crate::feature::{self, Choice, Feature};
use crate::queue::{MILLI, SECOND, Time};
use base::{Duration, Prng, VolumeId};
use replica::door::LogSize;
use replica::{Geometry, Timing};
use std::collections::BTreeSet;
use wire::{Durability, Options, ReadPolicy};

/// What a node is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// A replica in the first configuration.
    Replica,
    /// A witness.
    Witness,
    /// Neither data nor vote.
    Diskless,
}

/// What goes wrong, or what an operator does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// The process dies and is started again after `length`.
    Crash {
        /// Index of the node.
        node: usize,
    },
    /// The machines lose their power, and their caches with it, and start again.
    PowerCut {
        /// Indices of the nodes, as bits.
        nodes: u32,
    },
    /// The process is stopped in good order, and started again after `length`.
    Stop {
        /// Index of the node.
        node: usize,
        /// Its machine is switched off besides.
        power: bool,
    },
    /// The process stands still for `length`: nothing is handled, nothing is lost.
    Pause {
        /// Index of the node.
        node: usize,
    },
    /// No message passes from `from` to `to` for `length`; `both`: nor back.
    Block {
        /// Indices of the nodes, as bits.
        from: u32,
        /// Indices of the nodes, as bits.
        to: u32,
        /// Both ways.
        both: bool,
    },
    /// The session between two nodes breaks.
    Break {
        /// Index of one node.
        one: usize,
        /// Index of the other.
        other: usize,
    },
    /// Messages between two nodes take up to `extra` longer for `length`.
    Slow {
        /// Index of one node.
        one: usize,
        /// Index of the other.
        other: usize,
        /// Nanoseconds more, at most.
        extra: Time,
    },
    /// One in `one_in` disk requests of a node fails for `length`.
    DiskErrors {
        /// Index of the node.
        node: usize,
        /// How many.
        one_in: u64,
    },
    /// The disk of a node answers nothing for `length`.
    DiskStall {
        /// Index of the node.
        node: usize,
    },
    /// The process dies; its disk is replaced by an empty one.
    DiskReplaced {
        /// Index of the node.
        node: usize,
    },
    /// The process dies; its disk is put back to what it was at the start of an earlier process.
    DiskRestored {
        /// Index of the node.
        node: usize,
    },
    /// An operator wants something of a node.
    Operator {
        /// Index of the node.
        node: usize,
        /// What.
        wish: Wish,
    },
    /// The disk of a node takes no data for `length`: writes fail, reads and metadata do not.
    Full {
        /// Index of the node.
        node: usize,
    },
    /// A link is blocked and open by turns for `length`.
    Flap {
        /// Index of one node.
        one: usize,
        /// Index of the other.
        other: usize,
        /// Both ways.
        both: bool,
        /// Time of each turn.
        period: Time,
    },
    /// The next message of one kind takes `length` longer, and so does what follows it in its stream.
    Hold {
        /// Index of the sender.
        from: usize,
        /// Index of the receiver.
        to: usize,
        /// Which kind, in `network::KINDS`.
        message: usize,
    },
    /// A new connection is made although the old one lasts.
    Reconnect {
        /// Index of one node.
        one: usize,
        /// Index of the other.
        other: usize,
    },
    /// A sector of data changes by itself, on one disk.
    Rot {
        /// Index of the node.
        node: usize,
    },
    /// A page of metadata is not what was written last.
    BadPage {
        /// Index of the node.
        node: usize,
        /// In which way.
        how: BadPage,
    },
    /// A write of data is answered and does not come to its place, on one disk.
    BadWrite {
        /// Index of the node.
        node: usize,
        /// Where it comes instead.
        how: BadWrite,
    },
    /// Every other node dies; an operator forces this one; the others come back after `length`.
    Force {
        /// Index of the node.
        node: usize,
    },
}

/// How a page of metadata goes bad while nobody looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadPage {
    /// A bit of it changed.
    Flipped,
    /// The next write of a page is answered and never carried out.
    Stale,
    /// The next write of a page goes to where another page belongs.
    Astray,
    /// The next write of the record is answered and never carried out.
    StaleRecord,
    /// The next write of the record goes over its other copy.
    AstrayRecord,
}

/// What becomes of a write of data that a disk confirms and does not carry out where it should.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadWrite {
    /// Nothing: what was there before stays.
    Lost,
    /// It goes to another place, over what was there.
    Astray,
}

impl FaultKind {
    /// In a word, for counts.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Crash { .. } => "crash",
            FaultKind::PowerCut { .. } => "power cut",
            FaultKind::Stop { power: false, .. } => "stop in good order",
            FaultKind::Stop { power: true, .. } => "shutdown",
            FaultKind::Pause { .. } => "pause",
            FaultKind::Block { both: true, .. } => "partition",
            FaultKind::Block { both: false, .. } => "partition, one way",
            FaultKind::Break { .. } => "session broken",
            FaultKind::Slow { .. } => "slow link",
            FaultKind::DiskErrors { .. } => "disk errors",
            FaultKind::DiskStall { .. } => "disk stalls",
            FaultKind::DiskReplaced { .. } => "disk replaced",
            FaultKind::DiskRestored { .. } => "disk put back",
            FaultKind::Operator { wish, .. } => wish.name(),
            FaultKind::Full { .. } => "disk full",
            FaultKind::Flap { .. } => "flapping link",
            FaultKind::Hold { .. } => "message held",
            FaultKind::Reconnect { .. } => "second connection",
            FaultKind::Rot { .. } => "data rots",
            FaultKind::BadPage { how: BadPage::Flipped, .. } => "metadata rots",
            FaultKind::BadPage { how: BadPage::Stale, .. } => "metadata write lost",
            FaultKind::BadPage { how: BadPage::Astray, .. } => "metadata write astray",
            FaultKind::BadPage { how: BadPage::StaleRecord, .. } => "record write lost",
            FaultKind::BadPage { how: BadPage::AstrayRecord, .. } => "record write astray",
            FaultKind::BadWrite { how: BadWrite::Lost, .. } => "data write lost",
            FaultKind::BadWrite { how: BadWrite::Astray, .. } => "data write astray",
            FaultKind::Force { .. } => "all but one die, forced",
        }
    }
}

/// What operators want.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    /// Be primary.
    Promote,
    /// Be primary no more.
    Demote,
    /// Compare everything, and stop at the end of the fault's length if it is not done.
    Verify,
    /// Hold resync back for the fault's length.
    PauseResync,
    /// Hold requests back for the fault's length.
    Suspend,
    /// Have requests of a node fail that wait for nodes that are missing, for the fault's length at most.
    FailWaiting,
    /// Forget this node's copy.
    Invalidate,
    /// End a cut.
    Cut,
    /// Take a witness out, and put it back after the fault's length.
    Witness,
    /// Take this replica out, and put it back after the fault's length.
    Replica,
    /// A host, each client is one, asks for something about the reservations of the first volume.
    Reserve {
        /// Which.
        host: usize,
        /// Whom it may preempt.
        other: usize,
        /// What.
        draw: u64,
    },
    /// Make a volume larger, or as small as it was at first.
    Resize {
        /// Its index among the plan's volumes.
        volume: usize,
        /// This many extents and one more, when it grows.
        draw: u64,
    },
}

impl Wish {
    /// In a word, for counts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Wish::Promote => "operator: promote",
            Wish::Demote => "operator: demote",
            Wish::Verify => "operator: verify",
            Wish::PauseResync => "operator: pause resync",
            Wish::Suspend => "operator: suspend",
            Wish::FailWaiting => "operator: fail waiting requests",
            Wish::Invalidate => "operator: invalidate",
            Wish::Cut => "operator: cut",
            Wish::Witness => "operator: witness out and in",
            Wish::Replica => "operator: replica out and in",
            Wish::Resize { .. } => "operator: resize",
            Wish::Reserve { .. } => "host: reservations",
        }
    }
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// At a time.
    At(Time),
    /// When the node concerned has said its so-manyeth output since the run began.
    Output(u64),
}

/// One fault.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// When it happens.
    pub when: When,
    /// How long it lasts, for those that last.
    pub length: Time,
    /// What it is.
    pub kind: FaultKind,
}

/// Everything that a seed decides beforehand.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What each node is.
    pub roles: Vec<Role>,
    /// Shards on every node.
    pub shards: u16,
    /// Volumes and their sizes in sectors.
    pub volumes: Vec<(VolumeId, u64)>,
    /// How addresses are divided.
    pub geometry: Geometry,
    /// Activity logs of volumes that have another size than the geometry says.
    pub log_sizes: Vec<(VolumeId, LogSize)>,
    /// How long things may take.
    pub timing: Timing,
    /// Clock drift of each node, in parts per million.
    pub drift_ppm: Vec<i64>,
    /// What the operator chose at the start.
    pub options: Options,
    /// Which nodes have clients.
    pub clients: Vec<usize>,
    /// Requests open at once, per client.
    pub depth: usize,
    /// Requests of all clients.
    pub requests: u64,
    /// Most time between two requests of a client.
    pub think: Time,
    /// Writes survive a power cut without a flush on every disk.
    pub stable_disks: bool,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// From then on nothing goes wrong any more.
    pub heal_at: Time,
    /// What is on beyond the plain plan.
    pub features: BTreeSet<Feature>,
    /// So many faults strike before all is healed, at least: where fewer did, processes die.
    pub faults_min: usize,
}

/// Kinds of fault, for the draw of how frequent each is.
const KINDS: usize = 11;

/// Faults in each history, at least.
pub(crate) const FAULTS_MIN: usize = 5;
/// Draws for them, at most: with few nodes and few kinds none may be possible. What is lacking then are crashes.
const DRAWS_MAX: u64 = 500;

impl Plan {
    /// The plan that a seed names, with the features that it draws.
    #[must_use]
    pub fn new(seed: u64) -> Plan {
        Plan::chosen(seed, &Choice::default())
    }

    /// The plan that a seed names, with features as they were chosen.
    #[must_use]
    pub fn chosen(seed: u64, choice: &Choice) -> Plan {
        let mut plan =
            if choice.quorum_off { Plan::without_quorum(seed) } else { Plan::plain(seed) };
        plan.features = choice.draw(seed);
        feature::apply(&mut plan);
        plan.faults_min = FAULTS_MIN;
        plan.fill_up();
        plan
    }

    /// Crashes, where a node alone drew links to fail and nothing else: at least so many faults are in each history.
    fn fill_up(&mut self) {
        let mut random = Prng::new(self.seed ^ 0x5eed_0000_0000_0003);
        while self.faults.len() < FAULTS_MIN {
            let node = usize::try_from(random.below(self.roles.len() as u64)).expect("few nodes");
            let at = MILLI * 200 + random.below(self.heal_at - MILLI * 200);
            let length = MILLI * (1 + random.below(1000));
            let kind = FaultKind::Crash { node };
            self.faults.push(Fault { when: When::At(at), length, kind });
        }
    }

    /// The plan that a seed names, without any feature.
    pub(crate) fn plain(seed: u64) -> Plan {
        let mut random = Prng::new(seed ^ 0x5eed_0000_0000_0001);
        let roles = roles(&mut random);
        let shards = u16::try_from(1 + random.below(3)).expect("at most 3");
        let geometry = geometry(&mut random, shards);
        let timing = timing();
        let volumes = volumes(&mut random, &geometry);
        let heal_at = SECOND * (4 + random.below(12));
        let requests = 200 + random.below(400);
        let mut clients = Vec::new();
        while clients.is_empty() {
            clients = (0..roles.len())
                .filter(|&node| roles[node] != Role::Witness && random.once_in(2))
                .collect();
        }
        let drift_ppm = roles
            .iter()
            .map(|_| i64::try_from(random.below(18_001)).expect("small") - 9_000)
            .collect();
        let depth = usize::try_from(1 + random.below(8)).expect("at most 8");
        let each = requests / clients.len() as u64;
        let mut plan = Plan {
            seed,
            shards,
            volumes,
            geometry,
            timing,
            drift_ppm,
            options: options(&mut random),
            depth,
            requests,
            think: 2 * heal_at / each.max(1),
            stable_disks: random.once_in(8),
            faults: Vec::new(),
            heal_at,
            features: BTreeSet::new(),
            faults_min: 0,
            log_sizes: Vec::new(),
            clients,
            roles,
        };
        plan.faults = plan.draw_faults(&mut random);
        plan
    }

    /// A plan without requests and faults, for scenarios.
    #[must_use]
    pub fn quiet(roles: Vec<Role>, shards: u16) -> Plan {
        let geometry = Geometry {
            extent_sectors: 64,
            block_sectors: 8,
            stripe_extents: 1,
            log_pages: 8,
            log_page_extents: 8,
            log_extents: 16,
            copy_sectors: 16,
            copies_max: 4,
            verify_sectors: 256,
        };
        Plan {
            seed: 1,
            drift_ppm: vec![0; roles.len()],
            clients: (0..roles.len()).filter(|&node| roles[node] != Role::Witness).collect(),
            roles,
            shards,
            volumes: vec![(VolumeId(0), 16 * geometry.extent_sectors)],
            geometry,
            timing: timing(),
            options: Options::default(),
            depth: 0,
            requests: 0,
            think: SECOND,
            stable_disks: false,
            faults: Vec::new(),
            heal_at: Time::MAX / 4,
            features: BTreeSet::new(),
            faults_min: 0,
            log_sizes: Vec::new(),
        }
    }

    /// Indices of the nodes that hold a replica at the start.
    #[must_use]
    pub fn replicas(&self) -> Vec<usize> {
        self.indices(|role| role == Role::Replica)
    }

    fn indices(&self, want: impl Fn(Role) -> bool) -> Vec<usize> {
        (0..self.roles.len()).filter(|&node| want(self.roles[node])).collect()
    }

    fn draw_faults(&self, random: &mut Prng) -> Vec<Fault> {
        let mut weights = [0_u64; KINDS];
        while weights.iter().all(|&weight| weight == 0) {
            for weight in &mut weights {
                *weight = [0, 0, 1, 4][usize::try_from(random.below(4)).expect("below 4")];
            }
        }
        let count = 5 + random.below(25);
        draw_by_weight(&weights, count, random, |kind, random| self.draw_fault(kind, random))
    }

    fn draw_fault(&self, kind: usize, random: &mut Prng) -> Option<Fault> {
        let nodes = self.roles.len() as u64;
        let any = |random: &mut Prng| usize::try_from(random.below(nodes)).expect("few nodes");
        let node = any(random);
        let other = any(random);
        let length = match random.below(4) {
            0 => MILLI * (1 + random.below(50)),
            1 | 2 => MILLI * (50 + random.below(1000)),
            _ => MILLI * (500 + random.below(5000)),
        };
        let at = MILLI * 200 + random.below(self.heal_at - MILLI * 200);
        let disk = self.roles[node] == Role::Replica;
        let kind = match kind {
            0 => FaultKind::Crash { node },
            1 => FaultKind::PowerCut { nodes: self.mask(random) },
            2 => FaultKind::Pause { node },
            3 => FaultKind::Block { from: 1 << node, to: !(1 << node), both: !random.once_in(3) },
            4 => {
                let from = u32::try_from(random.below(1 << nodes)).expect("few nodes");
                FaultKind::Block { from, to: !from, both: !random.once_in(3) }
            }
            5 if node != other => FaultKind::Break { one: node, other },
            6 if node != other => {
                FaultKind::Slow { one: node, other, extra: MILLI * (1 + random.below(200)) }
            }
            7 if disk => FaultKind::DiskErrors { node, one_in: 1 + random.below(200) },
            8 if disk => FaultKind::DiskStall { node },
            9 if disk && random.once_in(2) => {
                if random.once_in(2) {
                    FaultKind::DiskReplaced { node }
                } else {
                    FaultKind::DiskRestored { node }
                }
            }
            10 => FaultKind::Operator { node, wish: wish(random) },
            _ => return None,
        };
        let when = if matches!(kind, FaultKind::Crash { .. } | FaultKind::PowerCut { .. })
            && random.once_in(2)
        {
            When::Output(200 + random.below(self.requests * 60))
        } else {
            When::At(at)
        };
        Some(Fault { when, length, kind })
    }

    /// One node, several, or all.
    fn mask(&self, random: &mut Prng) -> u32 {
        let nodes = self.roles.len() as u64;
        let all = (1_u32 << nodes) - 1;
        match random.below(4) {
            0 => all,
            1 => u32::try_from(1 + random.below(u64::from(all))).expect("few nodes"),
            _ => 1 << random.below(nodes),
        }
    }
}

fn roles(random: &mut Prng) -> Vec<Role> {
    let replicas = 1 + random.below(3) + random.below(2);
    let witnesses = match replicas {
        1 => random.below(2),
        2 => u64::from(!random.once_in(4)),
        _ => u64::from(random.once_in(4)),
    };
    let diskless = u64::from(random.once_in(3));
    let mut roles = vec![Role::Replica; usize::try_from(replicas).expect("few")];
    roles.extend(vec![Role::Witness; usize::try_from(witnesses).expect("few")]);
    roles.extend(vec![Role::Diskless; usize::try_from(diskless).expect("few")]);
    roles
}

/// Faults of kinds that come as often as `weights` says: `count` draws, and more if fewer than [`FAULTS_MIN`] came of
/// them. Some come to nothing, for instance a link from a node to itself.
pub(crate) fn draw_by_weight(
    weights: &[u64],
    count: u64,
    random: &mut Prng,
    fault: impl Fn(usize, &mut Prng) -> Option<Fault>,
) -> Vec<Fault> {
    let sum: u64 = weights.iter().sum();
    let mut faults = Vec::new();
    let mut drawn = 0;
    while drawn < count || (faults.len() < FAULTS_MIN && drawn < DRAWS_MAX) {
        drawn += 1;
        let mut draw = random.below(sum);
        let mut kind = 0;
        while draw >= weights[kind] {
            draw -= weights[kind];
            kind += 1;
        }
        faults.extend(fault(kind, random));
    }
    faults
}

fn geometry(random: &mut Prng, shards: u16) -> Geometry {
    let block_sectors = [1, 2, 8][usize::try_from(random.below(3)).expect("below 3")];
    let extent_sectors = block_sectors * (4 << random.below(3));
    let log_pages = u32::try_from(8 + random.below(8)).expect("small");
    let log_page_extents = usize::try_from(3 + random.below(6)).expect("small");
    // One shard's pages must have room for everything that was hot in an earlier life.
    let room = usize::try_from(log_pages / u32::from(shards)).expect("small") * log_page_extents;
    Geometry {
        extent_sectors,
        block_sectors,
        stripe_extents: 1 + random.below(2),
        log_pages,
        log_page_extents,
        log_extents: usize::try_from(6 + random.below(20)).expect("small").min(room),
        copy_sectors: (block_sectors << random.below(3)).min(extent_sectors),
        copies_max: usize::try_from(1 + random.below(4)).expect("small"),
        // Neither whole extents nor whole copies.
        verify_sectors: 2 * extent_sectors + block_sectors,
    }
}

/// Shorter than in production, in proportion.
pub(crate) fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(50),
        lease: Duration::from_millis(400),
        drift_ppm: 10_000,
        peer_late: Duration::from_millis(300),
        gather: Duration::from_millis(100),
        retry: Duration::from_millis(20),
    }
}

fn volumes(random: &mut Prng, geometry: &Geometry) -> Vec<(VolumeId, u64)> {
    let count = if random.once_in(4) { 2 } else { 1 };
    (0..count)
        .map(|volume| {
            let extents = 8 + random.below(24);
            let cut = if random.once_in(3) { geometry.block_sectors } else { 0 };
            (VolumeId(volume), extents * geometry.extent_sectors - cut)
        })
        .collect()
}

fn options(random: &mut Prng) -> Options {
    let read_policy = match random.below(5) {
        0 => ReadPolicy::RoundRobin,
        1 => ReadPolicy::LeastPending,
        2 => ReadPolicy::LatencyAware,
        3 => ReadPolicy::Striped,
        _ => ReadPolicy::PreferLocal,
    };
    let durability = if random.once_in(6) { Durability::WriteThrough } else { Durability::Flush };
    Options { read_policy, durability, ..Options::default() }
}

fn wish(random: &mut Prng) -> Wish {
    match random.below(10) {
        0..=2 => Wish::Promote,
        3 => Wish::Demote,
        4 => Wish::Verify,
        5 => Wish::PauseResync,
        6 => Wish::Suspend,
        7 => Wish::Invalidate,
        8 => Wish::Cut,
        _ => Wish::Witness,
    }
}

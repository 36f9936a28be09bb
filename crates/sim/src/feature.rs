//! What a run may meet beyond the plain plan: each thing has a name, is on or off in a given seed, and
//! draws from random numbers of its own, so that turning one off changes nothing else.
//!
//! A seed that failed is saved with the names of what was on (`seeds/`), and so keeps its meaning when
//! features are added.
//!
//! Not here: carrying out (`fault`), the plain plan (`plan`).

use crate::plan::{BadPage, BadWrite, Fault, FaultKind, Plan, Role, When, Wish};
use crate::queue::{MILLI, Time};
use base::{Prng, VolumeId};
use replica::door::{Geometry, LogSize};
use std::collections::BTreeSet;
use wire::{AfterSplitBrain, OnIoError, OnNoQuorum, Protocol};

/// One thing that may be on in a run.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Feature {
    /// `protocol = B`.
    ProtocolB,
    /// `on-no-quorum = io-error`.
    IoError,
    /// `on-io-error = pass-on`.
    PassOn,
    /// `in-sync-min = 2`.
    InSyncMin,
    /// `data-checksum`, and sectors of data that rot.
    Rot,
    /// Pages of metadata that rot, go astray, or were never written though the disk said so.
    BadPages,
    /// A disk that takes no more data.
    Full,
    /// Links that come and go.
    Flap,
    /// A message of one kind, and what follows it in its stream, is held.
    Hold,
    /// A second connection before the first one is known to have ended.
    Reconnect,
    /// Volumes that grow, and shrink again.
    Resize,
    /// What lies beyond the end of a volume differs from disk to disk.
    StaleGrowth,
    /// An operator takes a replica out, and adds it again.
    Replica,
    /// An operator of single nodes has requests fail that wait for nodes that are missing.
    FailWaiting,
    /// Up to four volumes.
    Volumes,
    /// Four shards.
    Shards,
    /// An operator forces the last node that is left.
    Force,
    /// Disks that answer a write when it is durable in a journal, and again when it is in its place.
    Journal,
    /// Limits on the rate of resyncs.
    ResyncRate,
    /// Volumes whose activity logs are smaller, or larger, than those of others.
    LogSizes,
    /// Clients that have several ways to the volume, and go another while they wait.
    Paths,
    /// Moments in which one replica meets several faults at once.
    Beset,
    /// Clients are hosts that keep each other from the first volume.
    Reserve,
    /// Metadata in persistent memory: what is written is there at once, or torn between any two words of 8 bytes.
    Pmem,
    /// `data-checksum`, and writes of data that a disk confirms and does not carry out, or carries out elsewhere.
    BadWrites,
    /// Clients that have several ways, of which some surely wait for a while before they go another.
    Stays,
    /// A session ends for one thread of a node after the other: some still read what came by it beside its successor.
    Drain,
    /// Nodes are stopped in good order, and machines switched off after that.
    Stops,
    /// Disks of witnesses fail, stand still, are replaced and put back.
    Witnesses,
    /// Records that were never written though the disk said so, or went over their other copy.
    BadRecords,
    /// A policy that goes by how much each side of a split brain changed.
    Counting,
    /// Clocks that drift by more than the bound that leases allow for: a promise breaks, and is meant to.
    Drift,
}

/// How far clocks are off with `Drift`, in parts per million: forty times the bound that leases allow for.
const DRIFT_PPM: i64 = 400_000;

/// Every feature, its name, and one in how many seeds it is on; 0: only if asked for.
const FEATURES: [(Feature, &str, u64); 32] = [
    (Feature::ProtocolB, "protocol-b", 6),
    (Feature::IoError, "io-error", 6),
    (Feature::PassOn, "pass-on", 6),
    (Feature::InSyncMin, "in-sync-min", 6),
    (Feature::Rot, "rot", 6),
    (Feature::BadPages, "bad-pages", 8),
    (Feature::Full, "full", 8),
    (Feature::Flap, "flap", 6),
    (Feature::Hold, "hold", 4),
    (Feature::Reconnect, "reconnect", 6),
    (Feature::Resize, "resize", 6),
    (Feature::StaleGrowth, "stale-growth", 3),
    (Feature::Replica, "replica", 8),
    (Feature::Volumes, "volumes", 8),
    (Feature::Shards, "shards", 8),
    (Feature::Force, "force", 8),
    (Feature::Drift, "drift", 0),
    (Feature::Journal, "journal", 6),
    (Feature::ResyncRate, "resync-rate", 6),
    (Feature::LogSizes, "log-sizes", 6),
    (Feature::FailWaiting, "fail-waiting", 6),
    (Feature::Paths, "paths", 6),
    (Feature::Beset, "beset", 4),
    (Feature::Reserve, "reserve", 6),
    (Feature::Pmem, "pmem", 6),
    (Feature::BadWrites, "bad-writes", 6),
    (Feature::Stays, "stays", 8),
    (Feature::Drain, "drain", 4),
    (Feature::Stops, "stops", 3),
    (Feature::Witnesses, "witnesses", 3),
    (Feature::BadRecords, "bad-records", 8),
    (Feature::Counting, "counting", 4),
];

/// Those that may be on without quorum: what links, layouts, disks and clients do, as long as no cache, disk or copy is lost, and no
/// volume changes its size.
pub const WITHOUT_QUORUM: [Feature; 14] = [
    Feature::Drain,
    Feature::Flap,
    Feature::Hold,
    Feature::Reconnect,
    Feature::Volumes,
    Feature::Shards,
    Feature::Journal,
    Feature::ResyncRate,
    Feature::LogSizes,
    Feature::Paths,
    Feature::Pmem,
    Feature::Stays,
    Feature::Stops,
    Feature::Counting,
];

impl Feature {
    /// Its name, as in `--with` and in `seeds/`.
    #[must_use]
    pub fn name(self) -> &'static str {
        FEATURES.iter().find(|(feature, _, _)| *feature == self).map_or("", |(_, name, _)| name)
    }

    /// The feature of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Feature> {
        FEATURES.iter().find(|(_, known, _)| *known == name).map(|(feature, _, _)| *feature)
    }

    /// Names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FEATURES.iter().map(|(_, name, _)| *name)
    }
}

/// Which features a run has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Choice {
    /// Exactly these; `None`: as the seed draws.
    pub only: Option<BTreeSet<Feature>>,
    /// These besides, in one of two seeds each.
    pub with: BTreeSet<Feature>,
    /// Never these.
    pub without: BTreeSet<Feature>,
    /// Another kind of plan: a resource without quorum (`alone`), which has some of them only ([`WITHOUT_QUORUM`]).
    pub quorum_off: bool,
}

impl Choice {
    /// What is on in a seed.
    #[must_use]
    pub fn draw(&self, seed: u64) -> BTreeSet<Feature> {
        if let Some(only) = &self.only {
            return only.clone();
        }
        let mut found = BTreeSet::new();
        for (number, &(feature, _, one_in)) in FEATURES.iter().enumerate() {
            let mut random = stream(seed, number, 0);
            let matters = match self.quorum_off {
                true => WITHOUT_QUORUM.contains(&feature),
                false => feature != Feature::Counting,
            };
            if !matters {
                continue;
            }
            let one_in = if self.with.contains(&feature) { 2 } else { one_in };
            if one_in > 0 && random.once_in(one_in) && !self.without.contains(&feature) {
                found.insert(feature);
            }
        }
        found
    }
}

/// Random numbers of one feature in one seed.
fn stream(seed: u64, number: usize, use_of: u64) -> Prng {
    let number = number as u64 + 1;
    Prng::new(seed ^ (number << 48) ^ (use_of << 40) ^ 0x0fea_0000_0000_0000)
}

/// Lets the features of a plan change it.
pub(crate) fn apply(plan: &mut Plan) {
    for (number, &(feature, _, _)) in FEATURES.iter().enumerate() {
        if plan.features.contains(&feature) {
            let mut random = stream(plan.seed, number, 1);
            apply_one(plan, feature, &mut random);
        }
    }
}

fn apply_one(plan: &mut Plan, feature: Feature, random: &mut Prng) {
    match feature {
        Feature::ProtocolB => plan.options.protocol = Protocol::B,
        Feature::IoError => plan.options.on_no_quorum = OnNoQuorum::IoError,
        Feature::PassOn => plan.options.on_io_error = OnIoError::PassOn,
        Feature::InSyncMin => {
            plan.options.in_sync_min = if plan.replicas().len() > 1 { 2 } else { 1 };
        }
        Feature::Volumes => {
            let first = plan.volumes.len();
            for volume in first..=first + small(random, 2) {
                let extents = 4 + random.below(8);
                let volume = VolumeId(u16::try_from(volume).expect("few volumes"));
                plan.volumes.push((volume, extents * plan.geometry.extent_sectors));
            }
        }
        Feature::Shards => {
            plan.shards = 4;
            let pages = usize::try_from(plan.geometry.log_pages / 4).expect("few pages");
            let room = pages * plan.geometry.log_page_extents;
            plan.geometry.log_extents = plan.geometry.log_extents.min(room);
        }
        Feature::ResyncRate => resync_rate(plan, random),
        Feature::LogSizes => log_sizes(plan, random),
        Feature::Drift => drift(plan, random),
        Feature::StaleGrowth | Feature::Journal | Feature::Paths => {}
        Feature::Stays | Feature::Pmem | Feature::Drain => {}
        Feature::Rot => rot(plan, random),
        Feature::BadWrites => bad_writes(plan, random),
        Feature::BadPages => add(plan, random, 4, |plan, random| FaultKind::BadPage {
            node: any(plan, random),
            how: [BadPage::Flipped, BadPage::Stale, BadPage::Astray][small(random, 3)],
        }),
        Feature::Stops => stops(plan, random),
        Feature::Counting => counting(plan, random),
        Feature::Witnesses => witnesses(plan, random),
        Feature::BadRecords => bad_records(plan, random),
        Feature::Full => {
            add(plan, random, 3, |plan, random| FaultKind::Full { node: any(plan, random) })
        }
        Feature::Flap => add(plan, random, 4, |plan, random| {
            let (one, other) = pair(plan, random);
            let period = MILLI * (1 + random.below(300));
            FaultKind::Flap { one, other, both: random.once_in(2), period }
        }),
        Feature::Hold => add(plan, random, 8, |plan, random| {
            let (from, to) = pair(plan, random);
            FaultKind::Hold { from, to, message: small(random, crate::network::KINDS.len()) }
        }),
        Feature::Reconnect => add(plan, random, 6, |plan, random| {
            let (one, other) = pair(plan, random);
            FaultKind::Reconnect { one, other }
        }),
        Feature::Resize => add(plan, random, 5, |plan, random| FaultKind::Operator {
            node: any(plan, random),
            wish: Wish::Resize { volume: small(random, plan.volumes.len()), draw: random.below(8) },
        }),
        Feature::Replica => add(plan, random, 2, |plan, random| FaultKind::Operator {
            node: any(plan, random),
            wish: Wish::Replica,
        }),
        Feature::FailWaiting => add(plan, random, 20, impatience),
        Feature::Reserve => add(plan, random, 24, reservation),
        Feature::Beset => (0..=small(random, 4)).for_each(|_| beset(plan, random)),
        Feature::Force => force(plan, random),
    }
}

fn rot(plan: &mut Plan, random: &mut Prng) {
    plan.options.data_checksum = true;
    add(plan, random, 8, |plan, random| FaultKind::Rot { node: any(plan, random) });
}

fn counting(plan: &mut Plan, random: &mut Prng) {
    let all = [AfterSplitBrain::DiscardLeastChanges, AfterSplitBrain::DiscardZeroChanges];
    plan.options.after_split_brain = all[small(random, all.len())];
}

fn stops(plan: &mut Plan, random: &mut Prng) {
    add(plan, random, 6, |plan, random| FaultKind::Stop {
        node: small(random, plan.roles.len()),
        power: random.once_in(2),
    });
}

fn bad_records(plan: &mut Plan, random: &mut Prng) {
    add(plan, random, 4, |plan, random| FaultKind::BadPage {
        node: small(random, plan.roles.len()),
        how: [BadPage::StaleRecord, BadPage::AstrayRecord][small(random, 2)],
    });
}

fn bad_writes(plan: &mut Plan, random: &mut Prng) {
    plan.options.data_checksum = true;
    add(plan, random, 12, |plan, random| FaultKind::BadWrite {
        node: any(plan, random),
        how: [BadWrite::Lost, BadWrite::Astray][small(random, 2)],
    });
}

fn resync_rate(plan: &mut Plan, random: &mut Prng) {
    // A volume of a run takes seconds at the lowest of these.
    let most = (4 << 20) << random.below(4);
    plan.options.resync_rate_max = if random.once_in(4) { 0 } else { most };
    plan.options.resync_rate_min = if random.once_in(2) { 0 } else { most >> 1 };
}

fn log_sizes(plan: &mut Plan, random: &mut Prng) {
    let Geometry { log_pages, log_page_extents, .. } = plan.geometry;
    for &(volume, _) in &plan.volumes {
        let pages = log_pages * (1 + u32::try_from(random.below(3)).expect("few"));
        // As for all: a shard's pages have room for what was hot in an earlier life.
        let room = usize::try_from(pages).expect("few") / usize::from(plan.shards);
        let extents = 2 + small(random, room * log_page_extents - 1);
        plan.log_sizes.push((volume, LogSize { pages, extents }));
    }
}

/// What happens to disks of replicas happens to those of witnesses, if there are any.
fn witnesses(plan: &mut Plan, random: &mut Prng) {
    let all: Vec<usize> =
        (0..plan.roles.len()).filter(|&node| plan.roles[node] == Role::Witness).collect();
    if all.is_empty() {
        return;
    }
    add(plan, random, 5, |_, random| {
        let node = all[small(random, all.len())];
        match random.below(4) {
            0 => FaultKind::DiskErrors { node, one_in: 1 + random.below(20) },
            1 => FaultKind::DiskStall { node },
            2 => FaultKind::DiskReplaced { node },
            _ => FaultKind::DiskRestored { node },
        }
    });
}

/// Of any node: that of a client without a copy, too. Many of them find that nothing waits.
fn impatience(plan: &Plan, random: &mut Prng) -> FaultKind {
    FaultKind::Operator { node: small(random, plan.roles.len()), wish: Wish::FailWaiting }
}

/// By any node. The last host has no requests of its own.
fn reservation(plan: &Plan, random: &mut Prng) -> FaultKind {
    let node = small(random, plan.roles.len());
    let host = small(random, plan.clients.len() + 1);
    let other = small(random, plan.clients.len() + 1);
    FaultKind::Operator { node, wish: Wish::Reserve { host, other, draw: random.below(48) } }
}

fn force(plan: &mut Plan, random: &mut Prng) {
    let node = any(plan, random);
    let at = plan.heal_at / 4 + random.below(plan.heal_at / 2);
    let length = MILLI * (3_000 + random.below(3_000));
    plan.faults.push(Fault { when: When::At(at), length, kind: FaultKind::Force { node } });
}

/// The clock of one node is slow and all others are fast. It shows where that node is primary and cut off, and
/// another one waits for its lease to run out.
fn drift(plan: &mut Plan, random: &mut Prng) {
    let (slow, _) = pair(plan, random);
    for (node, drift) in plan.drift_ppm.iter_mut().enumerate() {
        *drift = if node == slow { -DRIFT_PPM } else { DRIFT_PPM };
    }
    for _ in 0..4 {
        let at = MILLI * 200 + random.below(plan.heal_at - MILLI * 200);
        let promote = FaultKind::Operator { node: slow, wish: Wish::Promote };
        let cut = FaultKind::Block { from: 1 << slow, to: !(1 << slow), both: true };
        for (after, kind) in [(0, promote), (300, cut)] {
            let when = When::At(at + MILLI * after);
            plan.faults.push(Fault { when, length: MILLI * 1_000, kind });
        }
    }
}

/// A replica, half of the time the primary by then, whose disk stands still or fails, and to which other things happen
/// before that is over: what it was about to do is taken up elsewhere, or by itself, at every stage.
fn beset(plan: &mut Plan, random: &mut Prng) {
    let node = any(plan, random);
    let at = MILLI * 400 + random.below(plan.heal_at - MILLI * 400);
    if random.once_in(2) {
        let promote = FaultKind::Operator { node, wish: Wish::Promote };
        let when = When::At(at - MILLI * (20 + random.below(200)));
        plan.faults.push(Fault { when, length: MILLI, kind: promote });
    }
    let disk = match random.below(3) {
        0 => FaultKind::DiskErrors { node, one_in: 1 + random.below(4) },
        _ => FaultKind::DiskStall { node },
    };
    let while_it_lasts = MILLI * (20 + random.below(600));
    plan.faults.push(Fault { when: When::At(at), length: while_it_lasts, kind: disk });
    for _ in 0..=small(random, 4) {
        let other = small(random, plan.roles.len());
        let kind = match random.below(8) {
            0..4 => FaultKind::Break { one: node, other },
            4 => FaultKind::Operator { node: other, wish: Wish::Promote },
            5 => FaultKind::Pause { node },
            6 => FaultKind::Crash { node },
            _ => FaultKind::Block { from: 1 << node, to: 1 << other, both: random.once_in(2) },
        };
        let soon = if random.once_in(2) { MILLI * 20 } else { while_it_lasts * 3 / 2 };
        let when = When::At(at + random.below(soon));
        plan.faults.push(Fault { when, length: length(random), kind });
    }
}

/// Adds one to `most` faults.
fn add(
    plan: &mut Plan,
    random: &mut Prng,
    most: usize,
    kind: impl Fn(&Plan, &mut Prng) -> FaultKind,
) {
    for _ in 0..=small(random, most) {
        let at = MILLI * 200 + random.below(plan.heal_at - MILLI * 200);
        let length = length(random);
        let kind = kind(plan, random);
        plan.faults.push(Fault { when: When::At(at), length, kind });
    }
}

fn length(random: &mut Prng) -> Time {
    match random.below(3) {
        0 => MILLI * (1 + random.below(50)),
        1 => MILLI * (50 + random.below(1000)),
        _ => MILLI * (500 + random.below(3000)),
    }
}

/// One of the replicas.
fn any(plan: &Plan, random: &mut Prng) -> usize {
    let replicas = plan.replicas();
    replicas[small(random, replicas.len())]
}

/// Two nodes, which may be the same.
fn pair(plan: &Plan, random: &mut Prng) -> (usize, usize) {
    (small(random, plan.roles.len()), small(random, plan.roles.len()))
}

fn small(random: &mut Prng, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a usize")
}

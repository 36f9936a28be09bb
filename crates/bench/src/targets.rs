//! What the software is meant to reach, as ratios within one run, and whether a run shows it.
//!
//! Always: a target of which a run has no figures is named as not measured.

use std::fmt;

use replica::door::Timing;

use crate::ceph;
use crate::databases::{self, OWN_REPLICATED, OWN_RESYNCING, REPLICATED, RESYNCING};
use crate::drbd;
use crate::failover::Failover;
use crate::fio::{Workload, float};
use crate::memory;
use crate::metadata::{Metadata, subject};
use crate::mirror::{ALONE, DEVICE, RANDOM, SEQUENTIAL, SMALL};
use crate::report::Report;
use crate::sample::{Paired, Sample, paired};
use crate::tables::{self, ENCIPHERED, NBD_TCP, NVME_TCP, Row, protocol_rows, threads_name};

/// On which side of a figure the good ones lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(to, "≥ {least}"),
            Bound::AtMost(most) => write!(to, "≤ {most}"),
        }
    }
}

/// A target, and what a run shows of it.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    /// The table that it is of.
    pub(crate) table: &'static str,
    pub(crate) what: String,
    pub(crate) bound: Bound,
    /// `None`: the run has no figures of it.
    pub(crate) value: Option<f64>,
    /// Between which the value may as well lie, where the run can tell.
    pub(crate) range: Option<(f64, f64)>,
}

impl Reached {
    /// `met`, `missed`, `even`: missed by less than this run can tell from nothing; or `not measured`.
    pub(crate) fn verdict(&self) -> &'static str {
        let may_hold = |(low, high)| self.bound.holds(low) || self.bound.holds(high);
        let Some(value) = self.value else { return "not measured" };
        match self.bound.holds(value) {
            true => "met",
            false if self.range.is_some_and(may_hold) => "even",
            false => "missed",
        }
    }
}

const READ_64: &str = "4K random read, depth 64";
const WRITE_64: &str = "4K random write, depth 64";
const MIXED_64: &str = "4K random 70/30, depth 64";
const READ_128K: &str = "128K sequential read, depth 16";
const WRITE_128K: &str = "128K sequential write, depth 16";
const READ_1: &str = "4K random read, depth 1";
const WRITE_1: &str = "4K random write, depth 1";

const LOCAL: &str = "3 replicas";
const REMOTE: &str = "3 replicas, client without one";
const SINGLE: &str = "1 replica";

type Figure = fn(&Sample) -> f64;

const IOPS: Figure = |sample| sample.iops;
const MEAN: Figure = |sample| sample.mean_us;
const P99: Figure = |sample| sample.p99_us;
const CPU: Figure = |sample| sample.cpu_ms;

/// What *by a factor* means, and not by a few per cent.
const FACTOR: f64 = 2.0;

/// All targets.
pub(crate) fn of(report: &Report) -> Vec<Reached> {
    let mut list = List { report, table: "", all: Vec::new() };
    list.in_memory();
    list.on_disk();
    list.against_ceph();
    list.metadata();
    list.threads();
    list.protocols();
    list.against_drbd();
    list.mirror();
    list.databases();
    list.failover();
    list.idle();
    list.memory();
    list.all
}

struct List<'a> {
    report: &'a Report,
    /// Of which those that are added are.
    table: &'static str,
    all: Vec<Reached>,
}

impl List<'_> {
    fn add(&mut self, what: impl Into<String>, bound: Bound, value: Option<f64>) {
        let (table, what) = (self.table, what.into());
        self.all.push(Reached { table, what, bound, value, range: None });
    }

    fn row(&self, table: &str, workload: &str, subject: &str) -> Option<&Row> {
        let table = self.report.tables.iter().find(|one| one.key == table)?;
        let is = |row: &&Row| row.workload.name == workload && row.subject == subject;
        table.rows.iter().filter(is).min_by_key(|row| row.threads)
    }

    fn figure(&self, table: &str, workload: &str, subject: &str, of: Figure) -> Option<f64> {
        self.row(table, workload, subject).map(|row| row.repeats.median(of))
    }

    /// One subject's figure in relation to another's.
    fn ratio(&self, table: &str, workload: &str, pair: (&str, &str), of: Figure) -> Option<f64> {
        let [one, other] = [pair.0, pair.1].map(|who| self.figure(table, workload, who, of));
        Some(one? / other?)
    }

    fn in_memory(&mut self) {
        const TABLE: &str = "record-memory";
        const BESIDE: (&str, &str) = (LOCAL, "nbdkit memory");
        self.table = TABLE;
        let against = [
            (WRITE_64, IOPS, "IOPS", Bound::AtLeast(0.6)),
            (READ_64, IOPS, "IOPS", Bound::AtLeast(1.0)),
            (MIXED_64, IOPS, "IOPS", Bound::AtLeast(0.75)),
            (WRITE_128K, IOPS, "IOPS", Bound::AtLeast(0.55)),
            (READ_128K, IOPS, "IOPS", Bound::AtLeast(0.9)),
            (WRITE_1, MEAN, "mean latency", Bound::AtMost(2.5)),
            (READ_1, MEAN, "mean latency", Bound::AtMost(1.3)),
            (WRITE_1, P99, "99th percentile", Bound::AtMost(3.0)),
            (READ_1, P99, "99th percentile", Bound::AtMost(3.0)),
        ];
        for (workload, of, name, bound) in against {
            let what =
                format!("in memory, 3 replicas, {workload}: {name} against nbdkit with one copy");
            self.add(what, bound, self.ratio(TABLE, workload, BESIDE, of));
        }
        for (workload, bound) in [(WRITE_64, Bound::AtMost(7.0)), (READ_64, Bound::AtMost(5.0))] {
            let what = format!("in memory, 3 replicas, {workload}: ms CPU of all nodes per 1 000");
            self.add(what, bound, self.figure(TABLE, workload, LOCAL, CPU));
        }
        self.enciphered(TABLE, "in memory");
        self.without_a_replica(TABLE, "in memory");
    }

    /// What nodes keep that encipher what they say to each other.
    fn enciphered(&mut self, table: &str, place: &str) {
        for (workload, least) in [(WRITE_64, 0.7), (WRITE_128K, 0.5)] {
            let what = format!("{place}, {workload}: IOPS with links enciphered against without");
            let value = self.ratio(table, workload, (ENCIPHERED, LOCAL), IOPS);
            self.add(what, Bound::AtLeast(least), value);
        }
    }

    /// A client's node without a replica of its own, against one that has one.
    fn without_a_replica(&mut self, table: &str, place: &str) {
        for workload in [WRITE_64, READ_64, WRITE_128K, READ_128K] {
            let what =
                format!("{place}, {workload}: IOPS without a local replica against with one");
            let value = self.ratio(table, workload, (REMOTE, LOCAL), IOPS);
            self.add(what, Bound::AtLeast(0.7), value);
        }
    }

    fn on_disk(&mut self) {
        const TABLE: &str = "record-file";
        self.table = TABLE;
        let against = |other| (LOCAL, other);
        let raw = self.ratio(TABLE, WRITE_64, against("raw"), IOPS);
        self.add(
            "3 replicas on one disk, 4K random write, depth 64: IOPS against the raw disk",
            Bound::AtLeast(0.45),
            raw,
        );
        let nbdkit = self.ratio(TABLE, WRITE_64, against("nbdkit file"), IOPS);
        self.add(
            "the same against nbdkit's file plugin with one copy",
            Bound::AtLeast(1.0),
            nbdkit,
        );
        let own = self.row(TABLE, WRITE_64, LOCAL).and_then(|row| row.own_ms);
        self.add("the same: own ms CPU per 1 000", Bound::AtMost(9.0), own);
        let mean = |who| self.figure(TABLE, WRITE_1, who, MEAN);
        let over = mean(LOCAL).zip(mean("raw")).map(|(ours, raw)| ours - raw);
        self.add("4K write, depth 1: µs over the raw disk", Bound::AtMost(90.0), over);
        let alone = (SINGLE, "nbdkit file");
        let iops = self.ratio(TABLE, WRITE_64, alone, IOPS);
        self.add(
            "1 replica, 4K random write, depth 64: IOPS against nbdkit's file plugin",
            Bound::AtLeast(2.0),
            iops,
        );
        let mean = self.ratio(TABLE, WRITE_1, alone, MEAN);
        self.add("1 replica, 4K write, depth 1: latency against it", Bound::AtMost(0.9), mean);
        self.enciphered(TABLE, "on one disk");
        self.without_a_replica(TABLE, "on one disk");
    }

    /// What others keep on three nodes.
    fn against_ceph(&mut self) {
        for workload in tables::record_rows() {
            let what = format!("3 replicas on one disk, {workload}: IOPS against Ceph RBD");
            let value = self.ratio("record-file", workload, (LOCAL, ceph::SUBJECT), IOPS);
            self.add(what, Bound::AtLeast(FACTOR), value);
        }
    }

    /// What people run today.
    fn against_drbd(&mut self) {
        self.table = "drbd";
        for Workload { name, .. } in drbd::WORKLOADS {
            let what =
                format!("2 replicas by ublk in emulated machines, {name}: IOPS against DRBD");
            let value = self.ratio(self.table, name, (drbd::LOCKSTEP, drbd::DRBD), IOPS);
            self.add(what, Bound::AtLeast(FACTOR), value);
        }
    }

    fn metadata(&mut self) {
        const TABLE: &str = "metadata";
        self.table = TABLE;
        for (place, name, most) in [
            (Metadata::Internal, "metadata behind the data", 1.5),
            (Metadata::InPlace, "metadata in memory, in place", 1.1),
        ] {
            let (covers, misses) = (subject(place, true), subject(place, false));
            let pair = (&*misses, &*covers);
            let what = format!(
                "{name}, writes that miss the log, depth 1: mean latency against those that do not"
            );
            self.add(what, Bound::AtMost(most), self.ratio(TABLE, "depth 1", pair, MEAN));
            let what = "the same, depth 64: IOPS";
            self.add(what, Bound::AtLeast(0.7), self.ratio(TABLE, "depth 64", pair, IOPS));
        }
    }

    fn threads(&mut self) {
        let table = "threads";
        self.table = table;
        for (threads, bound) in [(2, Bound::AtLeast(1.3)), (8, Bound::AtLeast(4.0))] {
            let pair = (&*threads_name(threads), &*threads_name(1));
            for depth in [8, 64] {
                let workload = format!("4K random write, depth {depth}");
                let value = self.ratio(table, &workload, pair, IOPS);
                self.add(
                    format!("{threads} shards against one, 8 jobs of depth {depth}: IOPS"),
                    bound,
                    value,
                );
            }
        }
    }

    fn protocols(&mut self) {
        self.table = "protocols";
        for workload in protocol_rows() {
            let [nvme, nbd] = [NVME_TCP, NBD_TCP].map(|who| self.row("protocols", workload, who));
            let pair = nvme.zip(nbd);
            let found = pair.and_then(|(nvme, nbd)| paired(&nvme.repeats, &nbd.repeats, IOPS));
            let value = found.map(|Paired { median, .. }| median);
            let range = found.map(|Paired { range, .. }| range);
            let what = format!("{workload}: IOPS by NVMe against NBD, turn by turn");
            let (table, bound) = (self.table, Bound::AtLeast(1.0));
            self.all.push(Reached { table, what, bound, value, range });
        }
    }

    fn mirror(&mut self) {
        self.table = "mirror";
        for workload in [SEQUENTIAL.name, RANDOM.name] {
            for other in [ALONE, DEVICE] {
                let what = format!("each node a disk of its own, {workload}: IOPS against {other}");
                let value = self.ratio("mirror", workload, (SMALL, other), IOPS);
                self.add(what, Bound::AtLeast(0.97), value);
            }
        }
        let speed = |subject: &str| {
            let mut files = self.report.mirror.iter().flat_map(|mirror| &mirror.files);
            let found = files.find(|written| written.subject == subject);
            found.map(|written| written.mb_per_second)
        };
        let pair = speed(SMALL).zip(speed(ALONE));
        let what = "the same, a file written and synced: MB/s against 1 replica";
        self.add(what, Bound::AtLeast(0.97), pair.map(|(two, one)| two / one));
    }

    fn databases(&mut self) {
        self.table = "databases";
        for name in databases::names() {
            for (subject, when, least) in [
                (REPLICATED, "", 0.95),
                (RESYNCING, ", resyncing", 0.85),
                (OWN_REPLICATED, ", a device for each copy", 0.95),
                (OWN_RESYNCING, ", a device for each copy, resyncing", 0.85),
            ] {
                let of = |subject: &str| {
                    let mut all = self.report.databases.iter();
                    all.find(|one| one.benchmark == name && one.subject == subject)
                };
                let ratio = of(subject).and_then(|ours| {
                    Some(ours.per_second / of(&ours.reference)?.per_second.max(1e-9))
                });
                let what = format!("{name}{when}: transactions against one copy");
                self.add(what, Bound::AtLeast(least), ratio);
            }
        }
    }

    fn failover(&mut self) {
        self.table = "failover";
        let none = Failover::default();
        let found = self.report.failover.as_ref().unwrap_or(&none);
        let pause = |event: &str| {
            let found = found.pauses.iter().find(|pause| pause.event == event);
            found.map(|pause| pause.pause_ms)
        };
        let after_kill = pause("kill -9 of the primary's node");
        let replica = pause("kill -9 of a replica's node");
        let hand_over = pause("hand-over");
        let resync = |kind: &str| found.resyncs.iter().find(|one| one.kind.starts_with(kind));
        let idle = resync("file, idle, all").zip(found.copy_mib_per_second);
        let idle = idle.map(|(resync, copy)| resync.mib_per_second / copy);
        let beside = ["memory", "file"].map(|store| {
            let ratio = resync(&format!("{store}, beside")).map(|one| one.p99_ratio);
            (store, ratio)
        });
        // As long as it is unless a node is told otherwise.
        let lease_ms = float(Timing::default().lease.0) / 1e6;
        let limit = Bound::AtMost(lease_ms + 500.0);
        self.add("pause at kill -9 of the primary's node, ms", limit, after_kill);
        // Its sessions end with it, which is seen at once.
        self.add("pause at kill -9 of a replica's node, ms", Bound::AtMost(50.0), replica);
        self.add("pause at a hand-over, ms", Bound::AtMost(100.0), hand_over);
        let what = "resync on an idle disk against nbdcopy from file to file";
        self.add(what, Bound::AtLeast(0.7), idle);
        let disk = Some(found.disk_mib_per_second).filter(|speed| *speed > 0.0);
        let idle =
            resync("file, idle, all").zip(disk).map(|(resync, disk)| resync.mib_per_second / disk);
        let what = "resync on an idle disk against the disk itself, half read and half written";
        self.add(what, Bound::AtLeast(0.8), idle);
        for (store, ratio) in beside {
            let what = format!("99th percentile beside a resync against without, {store}");
            self.add(what, Bound::AtMost(2.0), ratio);
        }
    }

    fn idle(&mut self) {
        self.table = "idle";
        let idle = self.report.idle.first().cloned();
        let empty = idle.as_ref().map(|idle| idle.empty_mib);
        self.add("memory of a node without a volume, MiB", Bound::AtMost(64.0), empty);
        // 1 000 idle volumes may take 2 GiB and 2 % of a core.
        let volumes = idle.as_ref().map_or(1000, |idle| idle.volumes);
        let share = f64::from(volumes) / 1000.0;
        let what = format!("memory of {volumes} idle volumes, MiB over that");
        let over = idle.as_ref().map(|idle| idle.full_mib - idle.empty_mib);
        self.add(what, Bound::AtMost(2048.0 * share), over);
        let what = format!("{volumes} idle volumes, per cent of a core");
        self.add(what, Bound::AtMost(2.0 * share), idle.map(|idle| idle.core_percent));
    }

    fn memory(&mut self) {
        self.table = "memory";
        for (peer_away, when) in [(false, ""), (true, ", a peer is away")] {
            let rows = self.report.memory.iter().filter(|loaded| loaded.peer_away == peer_away);
            let most = rows.max_by(|one, other| one.highest_mib.total_cmp(&other.highest_mib));
            let most = most.map(|most| (most.limit_mib, most.highest_mib));
            // Of a volume without a size: what a bitmap takes is known with it.
            let limit_mib = most.map_or(memory::limit_mib(0, 0), |(limit_mib, _)| limit_mib);
            let what = format!("memory of a node with one open volume under load{when}, MiB");
            self.add(what, Bound::AtMost(limit_mib), most.map(|(_, highest_mib)| highest_mib));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Bound, ENCIPHERED, LOCAL, READ_128K, REMOTE, Reached, WRITE_64, of};
    use crate::fio::Workload;
    use crate::report::Report;
    use crate::sample::{Repeats, Sample};
    use crate::tables::{Row, Table};

    /// A row of 128K reads by one client.
    fn row(subject: &str, iops: f64) -> Row {
        let (pattern, block_kib, depth, reads) = ("read", 128, 16, 100);
        Row {
            workload: Workload { name: READ_128K, pattern, block_kib, depth, reads },
            subject: subject.to_owned(),
            threads: 1,
            repeats: Repeats { samples: vec![Sample { iops, ..Sample::default() }] },
            own_ms: None,
            system_calls: None,
        }
    }

    /// The targets that such words are in, of a table with these rows in memory and one on the disk.
    fn targets(rows: &[Row], words: &str) -> [Vec<Reached>; 2] {
        [("record-memory", "in memory"), ("record-file", "on one disk")].map(|(key, place)| {
            let (title, seed, reference, notes) = ("", "", "", Vec::new());
            let tables = vec![Table { key, title, seed, reference, notes, rows: rows.to_vec() }];
            let found = of(&Report { tables, ..Report::default() });
            let is = |one: &Reached| {
                one.value.is_some() && one.what.starts_with(place) && one.what.contains(words)
            };
            found.into_iter().filter(is).collect()
        })
    }

    #[test]
    fn a_node_without_a_replica_has_targets_in_memory_and_on_the_disk() {
        for found in targets(&[row(LOCAL, 10.0), row(REMOTE, 6.0)], "") {
            let [only] = &found[..] else { panic!("{found:?}") };
            assert_eq!(only.verdict(), "missed", "{only:?}");
        }
    }

    #[test]
    fn enciphered_links_have_targets_in_memory_and_on_the_disk() {
        let write = |subject, iops| {
            let row = row(subject, iops);
            Row { workload: Workload { name: WRITE_64, ..row.workload }, ..row }
        };
        for found in targets(&[write(ENCIPHERED, 8.0), write(LOCAL, 10.0)], "enciphered") {
            let [only] = &found[..] else { panic!("{found:?}") };
            assert_eq!((only.verdict(), only.value), ("met", Some(0.8)), "{only:?}");
        }
    }

    #[test]
    fn a_target_without_figures_is_not_measured_and_every_table_that_has_targets_says_so() {
        let all = of(&Report::default());
        assert!(all.iter().all(|one| one.verdict() == "not measured"), "{all:?}");
        let tables: BTreeSet<&str> = all.iter().map(|one| one.table).collect();
        // How one volume goes with the depth has none.
        let wanted = crate::TABLES.into_iter().filter(|table| *table != "depth");
        assert_eq!(tables, wanted.collect());
    }

    #[test]
    fn three_replicas_are_to_be_better_than_ceph_by_a_factor() {
        let (key, title, seed, reference, notes) = ("record-file", "", "", "", Vec::new());
        let rows = vec![row(LOCAL, 19.0), row(crate::ceph::SUBJECT, 10.0)];
        let tables = vec![Table { key, title, seed, reference, notes, rows }];
        let all = of(&Report { tables, ..Report::default() });
        let found: Vec<&Reached> = all.iter().filter(|one| one.what.contains("Ceph")).collect();
        assert_eq!(found.len(), 7);
        let verdicts: Vec<&str> = found.iter().map(|one| one.verdict()).collect();
        assert_eq!(verdicts.iter().filter(|one| **one == "missed").count(), 1, "{verdicts:?}");
    }

    #[test]
    fn a_bound_holds_on_its_good_side() {
        assert!(Bound::AtLeast(0.6).holds(0.6) && !Bound::AtLeast(0.6).holds(0.59));
        assert!(Bound::AtMost(2.0).holds(2.0) && !Bound::AtMost(2.0).holds(2.01));
    }

    #[test]
    fn what_a_run_cannot_tell_from_the_target_is_even() {
        let reached = |value, range| {
            let (what, bound) = ("that".to_owned(), Bound::AtLeast(1.0));
            Reached { table: "", what, bound, value: Some(value), range }.verdict()
        };
        assert_eq!(reached(1.0, Some((0.9, 1.1))), "met");
        assert_eq!(reached(0.99, Some((0.97, 1.01))), "even");
        assert_eq!(reached(0.95, Some((0.93, 0.97))), "missed");
        assert_eq!(reached(0.99, None), "missed");
    }
}

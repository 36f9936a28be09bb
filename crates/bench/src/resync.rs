//! A replica that was away comes back: how fast, and what an application notices.
//!
//! Alone, the replica's node goes away, everything or a known part is written, and the node comes back. Beside an application the copy is made
//! anew as often as it comes to its end, as long as the application runs: a copy in memory is made long before an application has been
//! measured.
//!
//! Always: what changed meanwhile is known, and each round has a measurement of the application without a resync just before it, with as many
//! looks at the replica: what looks cost is in both. Beside an application only times count in which both went on.
//!
//! Not here: how a look is had, and what looks say (`watch`).

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use wire::admin::{ReplicaStatus, ResyncDone};

use crate::cluster::Cluster;
use crate::fio::{self, Target, Workload, fill, float, scatter};
use crate::outcome::{Outcome, fail};
use crate::run::{Run, order};
use crate::sample::{median, spread};
use crate::stop;
use crate::watch::{Follow, Watch};

/// What the application does meanwhile.
pub(crate) const LOAD: Workload = Workload {
    name: "4K random write, depth 16",
    pattern: "randwrite",
    block_kib: 4,
    depth: 16,
    reads: 0,
};

/// Between two looks at a resync: one in memory lasts half a second, and its rate is to be right to a few per cent.
const LOOK: Duration = Duration::from_millis(10);

/// What an application may take to begin, after which it counts what goes on beside it.
const BEGIN: Duration = Duration::from_millis(300);

/// How long the primary may take to hear that a copy is worthless. Before that it is not told so again.
const HEAR: Duration = Duration::from_millis(200);

/// How long a resync may take.
const SYNC_SECONDS: u64 = 600;

/// One resync, or those beside an application.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Resync {
    pub(crate) kind: String,
    /// What was sent, for it differed or might; and what was compared and found equal.
    pub(crate) copied_mib: f64,
    pub(crate) equal_mib: f64,
    /// From its first sign until the replica is in sync; beside an application as long as one was seen to go on.
    pub(crate) seconds: f64,
    /// Of what was sent.
    pub(crate) mib_per_second: f64,
    /// The smallest and the largest rate.
    pub(crate) range_mib_per_second: (f64, f64),
    /// The longest time without progress, in ms.
    pub(crate) longest_stop_ms: f64,
    /// The application's 99th percentile without and with it, in µs; 0 without an application.
    pub(crate) alone_p99_us: f64,
    pub(crate) beside_p99_us: f64,
    /// The smallest and the largest with it.
    pub(crate) range_beside_p99_us: (f64, f64),
    /// How often as long the application's 99th percentile is with it: the median of the rounds' ratios, the smallest and the largest; 0 without
    /// an application.
    pub(crate) p99_ratio: f64,
    pub(crate) range_p99_ratio: (f64, f64),
    pub(crate) alone_iops: f64,
    pub(crate) beside_iops: f64,
    /// How much of the application's time a copy was being made, in per cent; 0 without an application.
    pub(crate) copied_percent: f64,
}

/// What changes while a replica is away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changes {
    /// All of the volume. The node crashes.
    All,
    /// A quarter of the volume, in blocks of this size that are scattered over all of it; none twice. The node stops in good order: after a
    /// crash all that was hot would be compared, too.
    Quarter { block_kib: u32 },
}

/// What is copied, and what else goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) changes: Changes,
    /// With an application; the copy is made anew then as long as that runs, whatever changes.
    pub(crate) beside: bool,
}

impl Case {
    fn kind(self, size_mib: u64) -> String {
        match self {
            Case { beside: true, .. } => format!("beside {}", LOAD.name),
            Case { changes: Changes::All, .. } => "idle, all of it".to_owned(),
            Case { changes: Changes::Quarter { block_kib }, .. } => {
                format!("idle, {} of {size_mib} MiB in scattered {block_kib}K", size_mib / 4)
            }
        }
    }
}

/// A volume, `v`, and the node whose replica of it goes away and comes back.
pub(crate) struct Place<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) target: &'a Target,
    pub(crate) size_mib: u64,
    pub(crate) node: &'a str,
    /// What tells its rows from those of another revision.
    pub(crate) suffix: &'a str,
}

/// Each case at each place, by turns, as often as the run repeats; `name` says where that is.
pub(crate) fn resyncs(
    run: &Run,
    places: &mut [Place],
    cases: &[Case],
    name: &str,
) -> Outcome<Vec<Resync>> {
    for place in &*places {
        place.load(run)?;
    }
    let mut all = Vec::new();
    for &case in cases {
        let mut rounds = vec![Vec::new(); places.len()];
        for number in 0..run.pace.repeats() {
            for who in order(number, places.len()) {
                rounds[who].push(places[who].once(run, case)?);
            }
        }
        for (place, rounds) in places.iter().zip(rounds) {
            let kind = format!("{name}, {}{}", case.kind(place.size_mib), place.suffix);
            all.push(medians(kind, &rounds));
        }
    }
    Ok(all)
}

impl Place<'_> {
    fn load(&self, run: &Run) -> Outcome<fio::Seen> {
        self.start(run)?.finish()
    }

    fn start(&self, run: &Run) -> Outcome<fio::Job> {
        fio::start(self.target, &LOAD, self.size_mib, load_seconds(run), 1, &run.scratch)
    }

    /// The application, and a look every now and then as long as it runs.
    fn watched(
        &self,
        run: &Run,
        mut look: impl FnMut(Duration) -> Outcome<()>,
    ) -> Outcome<fio::Seen> {
        let mut job = self.start(run)?;
        let begun = Instant::now();
        while !job.has_ended()? {
            look(begun.elapsed())?;
            thread::sleep(LOOK);
        }
        job.finish()
    }

    fn once(&mut self, run: &Run, case: Case) -> Outcome<Resync> {
        match case.beside {
            true => self.beside(run),
            false => self.alone(case.changes),
        }
    }

    /// One resync, while nobody asks for anything.
    fn alone(&mut self, changes: Changes) -> Outcome<Resync> {
        match changes {
            Changes::All => self.cluster.kill(self.node)?,
            Changes::Quarter { .. } => self.cluster.stop(self.node)?,
        }
        self.cluster.wait("v", "primary", 30)?;
        let (target, size_mib) = (self.target, self.size_mib);
        match changes {
            Changes::All => fill(target, size_mib)?,
            Changes::Quarter { block_kib } => scatter(target, size_mib, size_mib / 4, block_kib)?,
        }
        self.cluster.start(self.node)?;
        let watched = watch(&mut self.cluster.watch("v", self.node))?;
        let (copied_mib, seconds) = (mib(watched.copied), watched.took.as_secs_f64());
        Ok(Resync {
            copied_mib,
            equal_mib: mib(watched.equal),
            seconds,
            mib_per_second: copied_mib / seconds.max(1e-9),
            longest_stop_ms: watched.stopped.as_secs_f64() * 1000.0,
            ..Resync::default()
        })
    }

    /// Resyncs of all of it, one after the other, as long as an application runs.
    fn beside(&mut self, run: &Run) -> Outcome<Resync> {
        // Each beside a measurement of its own, for disks and neighbours change.
        let mut watch = self.cluster.watch("v", self.node);
        let alone = self.watched(run, |_| watch.look().map(drop))?;
        let limit = Duration::from_secs_f64(load_seconds(run));
        let lead = BEGIN.min(limit / 4);
        let mut anew = Anew::new(watch);
        let mut follow = Follow::default();
        let seen = self.watched(run, |at| {
            let replica = anew.look()?;
            // fio comes later than it is started, and goes later than it is to end.
            if at >= lead && at <= limit {
                follow.see(at, progress(&replica));
            }
            Ok(())
        })?;
        self.cluster.wait("v", "in-sync", SYNC_SECONDS)?;
        let (bytes, time) = follow.seen();
        if bytes == 0 {
            return fail(format!("no resync of {} was seen beside the application", self.node));
        }
        let (copied_mib, seconds) = (mib(bytes), time.as_secs_f64());
        Ok(Resync {
            copied_mib,
            seconds,
            mib_per_second: copied_mib / seconds.max(1e-9),
            longest_stop_ms: follow.longest_stop().as_secs_f64() * 1000.0,
            alone_p99_us: alone.p99_us,
            beside_p99_us: seen.p99_us,
            p99_ratio: seen.p99_us / alone.p99_us.max(1e-9),
            alone_iops: alone.iops,
            beside_iops: seen.iops,
            copied_percent: follow.percent(),
            ..Resync::default()
        })
    }
}

/// The copy of a node of volume `v`, which is made anew as often as it has come to its end.
pub(crate) struct Anew {
    watch: Watch,
    /// When it was begun, until that was heard of.
    told: Option<Instant>,
}

impl Anew {
    pub(crate) fn new(watch: Watch) -> Anew {
        Anew { watch, told: None }
    }

    /// How it is; if it is whole it is worthless from now on.
    pub(crate) fn look(&mut self) -> Outcome<ReplicaStatus> {
        let replica = self.watch.look()?;
        if !replica.in_sync {
            self.told = None;
        } else if self.told.is_none_or(|told| told.elapsed() > HEAR) {
            self.watch.invalidate()?;
            self.told = Some(Instant::now());
        }
        Ok(replica)
    }
}

/// How long the application is measured.
fn load_seconds(run: &Run) -> f64 {
    run.pace.seconds() * 3.0
}

fn mib(bytes: u64) -> f64 {
    float(bytes) / 1_048_576.0
}

/// How many bytes of its resync are done, and of how many, if one goes on.
fn progress(replica: &ReplicaStatus) -> Option<(u64, u64)> {
    replica.resync.as_ref().map(|resync| (resync.done_bytes, resync.total_bytes))
}

/// Of each figure the median, and the spread of what is compared.
fn medians(kind: String, rounds: &[Resync]) -> Resync {
    let all = |figure: fn(&Resync) -> f64| -> Vec<f64> { rounds.iter().map(figure).collect() };
    let of = |figure| median(all(figure));
    Resync {
        kind,
        copied_mib: of(|round| round.copied_mib),
        equal_mib: of(|round| round.equal_mib),
        seconds: of(|round| round.seconds),
        mib_per_second: of(|round| round.mib_per_second),
        range_mib_per_second: spread(&all(|round| round.mib_per_second)),
        longest_stop_ms: of(|round| round.longest_stop_ms),
        alone_p99_us: of(|round| round.alone_p99_us),
        beside_p99_us: of(|round| round.beside_p99_us),
        range_beside_p99_us: spread(&all(|round| round.beside_p99_us)),
        p99_ratio: of(|round| round.p99_ratio),
        range_p99_ratio: spread(&all(|round| round.p99_ratio)),
        alone_iops: of(|round| round.alone_iops),
        beside_iops: of(|round| round.beside_iops),
        copied_percent: of(|round| round.copied_percent),
    }
}

struct Watched {
    /// In bytes.
    copied: u64,
    equal: u64,
    took: Duration,
    stopped: Duration,
}

/// Follows the resync of a node from its first sign to its end.
fn watch(watch: &mut Watch) -> Outcome<Watched> {
    let begun = Instant::now();
    let (mut first, mut done) = (None, 0);
    let mut follow = Follow::default();
    loop {
        stop::check()?;
        let replica = watch.look()?;
        let at = begun.elapsed();
        if replica.in_sync && (first.is_some() || at > Duration::from_secs(2)) {
            let took = at - first.unwrap_or_default();
            let (copied, equal) = at_its_end(replica.last_resync, done);
            return Ok(Watched { copied, equal, took, stopped: follow.longest_stop() });
        }
        let progress = progress(&replica);
        follow.see(at, progress);
        if let Some((bytes, _)) = progress {
            first.get_or_insert(at);
            done = done.max(bytes);
        }
        if at > Duration::from_secs(SYNC_SECONDS) {
            return fail(format!("a copy is not in sync after {SYNC_SECONDS} s: {replica:?}"));
        }
        thread::sleep(LOOK);
    }
}

/// Bytes that were sent, and that were found equal. One that came to its end under another primary leaves only what was seen of it.
fn at_its_end(last: Option<ResyncDone>, seen: u64) -> (u64, u64) {
    let told = last.map(|done| (done.copied_bytes, done.equal_bytes));
    told.filter(|(copied, equal)| copied + equal >= seen).unwrap_or((seen, 0))
}

#[cfg(test)]
mod tests {
    use super::{Case, Changes, Resync, ResyncDone, at_its_end, medians};

    #[test]
    fn what_a_node_tells_of_an_older_resync_is_not_believed() {
        let told = Some(ResyncDone { copied_bytes: 100, equal_bytes: 20 });
        assert_eq!(at_its_end(told, 110), (100, 20));
        assert_eq!(at_its_end(told, 130), (130, 0));
        assert_eq!(at_its_end(None, 7), (7, 0));
    }

    #[test]
    fn a_case_says_how_much_changed_and_where() {
        let of = |changes, beside| Case { changes, beside }.kind(4096);
        let quarter = Changes::Quarter { block_kib: 4 };
        assert_eq!(of(quarter, false), "idle, 1024 of 4096 MiB in scattered 4K");
        assert_eq!(of(Changes::All, true), "beside 4K random write, depth 16");
    }

    #[test]
    fn how_often_as_long_an_application_waits_is_told_round_by_round() {
        // The machine was twice as slow in the second round, without and with a resync.
        let round = |alone_p99_us: f64, beside_p99_us: f64| {
            let p99_ratio = beside_p99_us / alone_p99_us;
            Resync { alone_p99_us, beside_p99_us, p99_ratio, ..Resync::default() }
        };
        let rounds = [round(100.0, 150.0), round(200.0, 300.0), round(100.0, 180.0)];
        let found = medians("some".to_owned(), &rounds);
        assert_eq!((found.p99_ratio, found.range_p99_ratio), (1.5, (1.5, 1.8)));
        assert_eq!(found.beside_p99_us / found.alone_p99_us, 1.8);
    }

    #[test]
    fn the_spread_of_rates_stands_beside_their_median() {
        let round = |mib_per_second| Resync { mib_per_second, ..Resync::default() };
        let found = medians("some".to_owned(), &[round(3.0), round(1.0), round(2.0)]);
        assert_eq!((found.mib_per_second, found.range_mib_per_second), (2.0, (1.0, 3.0)));
    }
}

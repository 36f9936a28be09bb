//! A replica that was away comes back: how fast, and what an application notices.
//!
//! Always: what changed meanwhile is known, and each round has a measurement of the application without a resync just before it.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::fio::{self, Target, Workload, fill, scatter};
use crate::outcome::{Outcome, fail};
use crate::run::Run;
use crate::sample::{median, spread};

/// What the application does meanwhile.
pub(crate) const LOAD: Workload = Workload {
    name: "4K random write, depth 16",
    pattern: "randwrite",
    block_kib: 4,
    depth: 16,
    reads: 0,
};

/// Between two looks at a resync.
const LOOK: Duration = Duration::from_millis(100);

/// How long a resync may take.
const SYNC_SECONDS: u64 = 600;

/// One resync.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Resync {
    pub(crate) kind: String,
    /// What was sent, for it differed or might; and what was compared and found equal.
    pub(crate) copied_mib: f64,
    pub(crate) equal_mib: f64,
    /// From its first sign until the replica is in sync.
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
    pub(crate) alone_iops: f64,
    pub(crate) beside_iops: f64,
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
    /// With an application.
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
        for _ in 0..run.pace.repeats() {
            for (place, rounds) in places.iter_mut().zip(&mut rounds) {
                rounds.push(place.once(run, case)?);
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
        let seconds = run.pace.seconds() * 3.0;
        fio::start(self.target, &LOAD, self.size_mib, seconds, 1, &run.scratch)
    }

    fn once(&mut self, run: &Run, Case { changes, beside }: Case) -> Outcome<Resync> {
        // Each beside a measurement of its own, for disks and neighbours change.
        let alone = if beside { Some(self.load(run)?) } else { None };
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
        let job = if beside { Some(self.start(run)?) } else { None };
        let watched = watch(self.cluster, self.node)?;
        let seen = job.map(fio::Job::finish).transpose()?;
        let mib = |bytes: f64| bytes / 1_048_576.0;
        let (copied_mib, seconds) = (mib(watched.copied), watched.took.as_secs_f64());
        Ok(Resync {
            kind: String::new(),
            copied_mib,
            equal_mib: mib(watched.equal),
            seconds,
            mib_per_second: copied_mib / seconds.max(1e-9),
            range_mib_per_second: (0.0, 0.0),
            longest_stop_ms: watched.stopped.as_secs_f64() * 1000.0,
            alone_p99_us: alone.as_ref().map_or(0.0, |alone| alone.p99_us),
            beside_p99_us: seen.as_ref().map_or(0.0, |seen| seen.p99_us),
            range_beside_p99_us: (0.0, 0.0),
            alone_iops: alone.map_or(0.0, |alone| alone.iops),
            beside_iops: seen.map_or(0.0, |seen| seen.iops),
        })
    }
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
        alone_iops: of(|round| round.alone_iops),
        beside_iops: of(|round| round.beside_iops),
    }
}

struct Watched {
    /// In bytes.
    copied: f64,
    equal: f64,
    took: Duration,
    stopped: Duration,
}

/// Follows the resync of a node from its first sign to its end.
fn watch(cluster: &Cluster, node: &str) -> Outcome<Watched> {
    let begun = Instant::now();
    let (mut first, mut moved, mut done) = (None, begun, 0.0);
    let mut stopped = Duration::ZERO;
    loop {
        let replica = cluster.replica("v", node)?;
        let now = Instant::now();
        if replica["in_sync"] == true && (first.is_some() || now - begun > Duration::from_secs(2)) {
            let took = now - first.unwrap_or(begun);
            let (copied, equal) = at_its_end(&replica["last_resync"], done);
            return Ok(Watched { copied, equal, took, stopped });
        }
        if let Some(bytes) = replica["resync"]["done_bytes"].as_f64() {
            first.get_or_insert(now);
            if bytes > done {
                stopped = stopped.max(now - moved.max(first.unwrap_or(now)));
                (done, moved) = (bytes, now);
            }
        }
        if now - begun > Duration::from_secs(SYNC_SECONDS) {
            return fail(format!("{node} is not in sync after {SYNC_SECONDS} s: {replica}"));
        }
        thread::sleep(LOOK);
    }
}

/// Bytes that were sent, and that were found equal. One that came to its end under another primary leaves only what was seen of it.
fn at_its_end(last: &Value, seen: f64) -> (f64, f64) {
    let of = |name: &str| last[name].as_f64();
    let told = of("copied_bytes").zip(of("equal_bytes"));
    told.filter(|(copied, equal)| copied + equal >= seen).unwrap_or((seen, 0.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Case, Changes, Resync, at_its_end, medians};

    #[test]
    fn what_a_node_tells_of_an_older_resync_is_not_believed() {
        let told = json!({ "copied_bytes": 100, "equal_bytes": 20 });
        assert_eq!(at_its_end(&told, 110.0), (100.0, 20.0));
        assert_eq!(at_its_end(&told, 130.0), (130.0, 0.0));
        assert_eq!(at_its_end(&Value::Null, 7.0), (7.0, 0.0));
    }

    #[test]
    fn a_case_says_how_much_changed_and_where() {
        let of = |changes, beside| Case { changes, beside }.kind(4096);
        let quarter = Changes::Quarter { block_kib: 4 };
        assert_eq!(of(quarter, false), "idle, 1024 of 4096 MiB in scattered 4K");
        assert_eq!(of(Changes::All, true), "beside 4K random write, depth 16");
    }

    #[test]
    fn the_spread_of_rates_stands_beside_their_median() {
        let round = |mib_per_second| Resync {
            kind: String::new(),
            copied_mib: 0.0,
            equal_mib: 0.0,
            seconds: 0.0,
            mib_per_second,
            range_mib_per_second: (0.0, 0.0),
            longest_stop_ms: 0.0,
            alone_p99_us: 0.0,
            beside_p99_us: 0.0,
            range_beside_p99_us: (0.0, 0.0),
            alone_iops: 0.0,
            beside_iops: 0.0,
        };
        let found = medians("some".to_owned(), &[round(3.0), round(1.0), round(2.0)]);
        assert_eq!((found.mib_per_second, found.range_mib_per_second), (2.0, (1.0, 3.0)));
    }
}

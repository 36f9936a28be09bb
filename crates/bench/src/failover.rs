//! Table 6: how long clients wait when something happens to a node, and how fast a replica comes back.
//!
//! A pause is the longest that any request took, as fio's client saw it over its own connection, to
//! which nothing happens; the client's requests are 4K random writes, 16 at once. It includes whatever
//! the machine did besides.
//!
//! Always: everything is done to a cluster of its own, through the command line, as an operator would.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{self, Target, Workload, fill, float};
use crate::machine;
use crate::outcome::{Outcome, fail};
use crate::run::Run;
use crate::sample::median;

/// What the client does meanwhile.
const LOAD: Workload = Workload {
    name: "4K random write, depth 16",
    pattern: "randwrite",
    block_kib: 4,
    depth: 16,
    reads: 0,
};

/// Changes of a replica that is away.
const SCATTER: Workload =
    Workload { name: "scattered writes", pattern: "randwrite", block_kib: 64, depth: 8, reads: 0 };

/// What a resync from file to file asks of the disk that both are on.
const COPY: Workload = Workload {
    name: "1M half read, half written",
    pattern: "rw",
    block_kib: 1024,
    depth: 16,
    reads: 50,
};

/// Between two looks at a resync.
const LOOK: Duration = Duration::from_millis(100);

/// How long a resync may take.
const SYNC_SECONDS: u64 = 600;

/// One event, repeated.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pause {
    pub(crate) event: String,
    /// Median of the longest waits, in ms.
    pub(crate) pause_ms: f64,
    /// The smallest and the largest.
    pub(crate) range_ms: (f64, f64),
}

/// One resync.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Resync {
    pub(crate) kind: String,
    pub(crate) copied_mib: f64,
    pub(crate) mib_per_second: f64,
    /// The longest time without progress, in ms.
    pub(crate) longest_stop_ms: f64,
    /// The application's 99th percentile without and with it, in µs; 0 without an application.
    pub(crate) alone_p99_us: f64,
    pub(crate) beside_p99_us: f64,
    pub(crate) alone_iops: f64,
    pub(crate) beside_iops: f64,
}

/// What Table 6 says.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Failover {
    pub(crate) pauses: Vec<Pause>,
    pub(crate) resyncs: Vec<Resync>,
    /// `nbdcopy` from one file to another on the same disk, in MiB/s.
    pub(crate) copy_mib_per_second: Option<f64>,
    /// What the disk itself writes while it reads as much, in MiB/s: no copy from it to itself is faster.
    pub(crate) disk_mib_per_second: f64,
}

/// Something that an operator, or bad luck, does to a cluster.
type Event = fn(&mut Cluster) -> Outcome<()>;

/// Measures all of it.
pub(crate) fn measure(run: &Run) -> Outcome<Failover> {
    let mut found = Failover::default();
    for programs in &run.programs {
        let suffix = run.suffix(programs);
        let events: [(&str, Event); 4] = [
            ("nothing happens", |_| Ok(())),
            ("kill -9 of a replica's node", |cluster| cluster.kill("c")),
            ("kill -9 of the primary's node", |cluster| cluster.kill("a")),
            ("hand-over", |cluster| {
                cluster.ok(&["resource", "promote", "v", "--node", "b"]).map(drop)
            }),
        ];
        let mut waits: Vec<Vec<f64>> = vec![Vec::new(); events.len()];
        for number in 0..run.pace.repeats() {
            println!("Table 6, pauses: repeat {} of {}", number + 1, run.pace.repeats());
            for (place, (_, event)) in events.iter().enumerate() {
                waits[place].push(pause(run, programs, *event)?);
            }
        }
        for ((event, _), waits) in events.iter().zip(waits) {
            let low = waits.iter().copied().fold(f64::INFINITY, f64::min);
            let high = waits.iter().copied().fold(0.0, f64::max);
            let event = format!("{event}{suffix}");
            found.pauses.push(Pause { event, pause_ms: median(waits), range_ms: (low, high) });
        }
        println!("Table 6, resync");
        let mut speeds = vec![disk_alone(run)?];
        for store in ["memory", "file"] {
            found.resyncs.extend(resyncs(run, programs, store)?);
            speeds.push(disk_alone(run)?);
        }
        found.disk_mib_per_second = median(speeds);
    }
    if run.has("nbdcopy", "resync beside a plain copy") && run.has("nbdkit", "the same") {
        found.copy_mib_per_second = Some(plain_copy(run)?);
    }
    Ok(found)
}

fn cluster(run: &Run, programs: &Programs, store: &'static str, size_mib: u64) -> Outcome<Cluster> {
    let wanted = Wanted { nodes: 3, store, encryption: false, threads: 1 };
    let cluster = Cluster::up(programs, &run.scratch.join("f"), wanted)?;
    cluster.create("v", size_mib, &["a", "b", "c"])?;
    Ok(cluster)
}

/// The longest wait of a client on node b while `event` happens; node a is primary, for it has a client of
/// its own, which came first.
fn pause(run: &Run, programs: &Programs, event: Event) -> Outcome<f64> {
    const SIZE_MIB: u64 = 64;
    const HOLD: Workload = Workload { depth: 1, ..LOAD };
    let mut cluster = cluster(run, programs, "memory", SIZE_MIB)?;
    let of = |node| Target::Nbd(cluster.url(node, "v"));
    fill(&of("a"), SIZE_MIB)?;
    let seconds = 6.0;
    let holder = fio::start(&of("a"), &HOLD, SIZE_MIB, seconds, 1, &run.scratch)?;
    thread::sleep(Duration::from_millis(500));
    let client = fio::start(&of("b"), &LOAD, SIZE_MIB, seconds, 1, &run.scratch)?;
    thread::sleep(Duration::from_millis(1000));
    let primary = cluster.status("v")?["primary"].clone();
    if primary != "a" {
        return fail(format!("the primary is {primary}, not the node that its first client is on"));
    }
    event(&mut cluster)?;
    let seen = client.finish();
    holder.end();
    Ok(seen?.max_us / 1000.0)
}

/// A resync with nobody there, and one beside an application.
fn resyncs(run: &Run, programs: &Programs, store: &'static str) -> Outcome<Vec<Resync>> {
    let size_mib = if store == "memory" { run.pace.memory_mib() } else { run.pace.file_mib() } * 2;
    let mut cluster = cluster(run, programs, store, size_mib)?;
    let target = Target::Nbd(cluster.url("a", "v"));
    fill(&target, size_mib)?;
    // On disk all of it, so that the resync outlives the measurement.
    let outlives = store == "file";
    let cases = [
        Case { kind: "idle, scattered 64K", whole: false, beside: false },
        Case { kind: "idle, all of it", whole: true, beside: false },
        Case { kind: "beside 4K random write, depth 16", whole: outlives, beside: true },
    ];
    let suffix = run.suffix(programs);
    let place = Place { target: &target, size_mib, node: "c" };
    place.resyncs(run, &mut cluster, &cases, |kind| format!("{store}, {kind}{suffix}"))
}

/// What is copied, and what else goes on.
pub(crate) struct Case {
    pub(crate) kind: &'static str,
    /// All of the volume changes, or scattered parts of it.
    pub(crate) whole: bool,
    /// With an application.
    pub(crate) beside: bool,
}

/// A volume, `v`, and the node whose replica of it goes away and comes back.
pub(crate) struct Place<'a> {
    pub(crate) target: &'a Target,
    pub(crate) size_mib: u64,
    pub(crate) node: &'a str,
}

impl Place<'_> {
    /// Each case, as often as the run repeats.
    pub(crate) fn resyncs(
        &self,
        run: &Run,
        cluster: &mut Cluster,
        cases: &[Case],
        name: impl Fn(&str) -> String,
    ) -> Outcome<Vec<Resync>> {
        let &Place { target, size_mib, node } = self;
        let seconds = run.pace.seconds() * 3.0;
        let load = || fio::measure(target, &LOAD, size_mib, seconds, 1, &run.scratch);
        load()?;
        let change =
            || fio::measure(target, &SCATTER, size_mib, run.pace.seconds(), 1, &run.scratch);
        let mut all = Vec::new();
        for &Case { kind, whole, beside } in cases {
            let mut rounds = Vec::new();
            for _ in 0..run.pace.repeats() {
                // Each beside a measurement of its own, for disks and neighbours change.
                let alone = if beside { Some(load()?) } else { None };
                cluster.kill(node)?;
                cluster.wait("v", "primary", 30)?;
                if whole {
                    fill(target, size_mib)?;
                } else {
                    change()?;
                }
                cluster.start(node)?;
                let job = if beside {
                    Some(fio::start(target, &LOAD, size_mib, seconds, 1, &run.scratch)?)
                } else {
                    None
                };
                let watched = watch(cluster, node)?;
                let seen = job.map(fio::Job::finish).transpose()?;
                let mib = watched.bytes / 1_048_576.0;
                rounds.push(Resync {
                    kind: String::new(),
                    copied_mib: mib,
                    mib_per_second: mib / watched.took.as_secs_f64().max(1e-9),
                    longest_stop_ms: watched.stopped.as_secs_f64() * 1000.0,
                    alone_p99_us: alone.as_ref().map_or(0.0, |alone| alone.p99_us),
                    beside_p99_us: seen.as_ref().map_or(0.0, |seen| seen.p99_us),
                    alone_iops: alone.map_or(0.0, |alone| alone.iops),
                    beside_iops: seen.map_or(0.0, |seen| seen.iops),
                });
            }
            all.push(medians(name(kind), &rounds));
        }
        Ok(all)
    }
}

/// Of each figure the median.
fn medians(kind: String, rounds: &[Resync]) -> Resync {
    let of = |figure: fn(&Resync) -> f64| median(rounds.iter().map(figure).collect());
    Resync {
        kind,
        copied_mib: of(|round| round.copied_mib),
        mib_per_second: of(|round| round.mib_per_second),
        longest_stop_ms: of(|round| round.longest_stop_ms),
        alone_p99_us: of(|round| round.alone_p99_us),
        beside_p99_us: of(|round| round.beside_p99_us),
        alone_iops: of(|round| round.alone_iops),
        beside_iops: of(|round| round.beside_iops),
    }
}

struct Watched {
    bytes: f64,
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
            let first = first.unwrap_or(begun);
            return Ok(Watched { bytes: done, took: now - first, stopped });
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

/// What the disk writes while it reads as much: the median of before, between and after the resyncs counts.
fn disk_alone(run: &Run) -> Outcome<f64> {
    let (size_mib, file) = (run.pace.file_mib(), run.scratch.join("disk.img"));
    let target = Target::File(file.clone());
    fill(&target, size_mib)?;
    let seen = fio::measure(&target, &COPY, size_mib, run.pace.seconds() * 2.0, 1, &run.scratch)?;
    std::fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(seen.mb_per_second * 1e6 / 1_048_576.0 / 2.0)
}

/// What a plain copy from file to file reaches on the same disk, past the page cache.
fn plain_copy(run: &Run) -> Outcome<f64> {
    let size_mib = run.pace.file_mib();
    let (from, to) = (run.scratch.join("from.img"), run.scratch.join("to.img"));
    fill(&Target::File(from.clone()), size_mib)?;
    fill(&Target::File(to.clone()), size_mib)?;
    let begun = Instant::now();
    let plugin = |file: &Path| format!("nbdkit file cache=none {}", file.display());
    let mut command = Command::new("nbdcopy");
    let (from, to) = (plugin(&from), plugin(&to));
    let words = |text: &str| -> Vec<String> {
        let inner = text.split(' ').map(str::to_owned);
        ["[".to_owned()].into_iter().chain(inner).chain(["]".to_owned()]).collect()
    };
    machine::run(command.args(["--flush"]).args(words(&from)).args(words(&to)))?;
    Ok(float(size_mib) / begun.elapsed().as_secs_f64())
}

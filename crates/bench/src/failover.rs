//! Table 6: how long clients wait when something happens to a node, and how fast a replica comes back.
//!
//! A pause is the longest that any request took, as fio's client saw it over its own connection, to
//! which nothing happens; the client's requests are 4K random writes, 16 at once. It includes whatever
//! the machine did besides.
//!
//! Always: everything is done to a cluster of its own, through the command line, as an operator would.
//!
//! Not here: how a resync is followed (`resync`).

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{self, Target, Workload, fill, float};
use crate::machine;
use crate::outcome::{Outcome, fail, say};
use crate::resync::{Case, Changes, LOAD, Place, Resync, resyncs};
use crate::run::{Run, order};
use crate::sample::{median, spread};

/// What a resync from file to file asks of the disk that both are on.
const COPY: Workload = Workload {
    name: "1M half read, half written",
    pattern: "rw",
    block_kib: 1024,
    depth: 16,
    reads: 50,
};

/// One event, repeated.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pause {
    pub(crate) event: String,
    /// Median of the longest waits, in ms.
    pub(crate) pause_ms: f64,
    /// The smallest and the largest.
    pub(crate) range_ms: (f64, f64),
}

/// What Table 6 says.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Failover {
    pub(crate) pauses: Vec<Pause>,
    pub(crate) resyncs: Vec<Resync>,
    /// `nbdcopy` from one file to another on the same disk, in MiB/s; the smallest and the largest beside it.
    pub(crate) copy_mib_per_second: Option<f64>,
    pub(crate) range_copy_mib_per_second: Option<(f64, f64)>,
    /// What the disk itself writes while it reads as much, in MiB/s: no copy from it to itself is faster.
    pub(crate) disk_mib_per_second: f64,
    pub(crate) range_disk_mib_per_second: (f64, f64),
}

/// Something that an operator, or bad luck, does to a cluster.
type Event = fn(&mut Cluster) -> Outcome<()>;

const EVENTS: [(&str, Event); 4] = [
    ("nothing happens", |_| Ok(())),
    ("kill -9 of a replica's node", |cluster| cluster.kill("c")),
    ("kill -9 of the primary's node", |cluster| cluster.kill("a")),
    ("hand-over", |cluster| cluster.ok(&["resource", "promote", "v", "--node", "b"]).map(drop)),
];

/// Resyncs, and what stands beside them, each revision by turns with the other; without pauses.
pub(crate) fn recovery(run: &Run) -> Outcome<Failover> {
    let mut found = Failover::default();
    say("Table 6, resync");
    let copies = has_copies(run);
    let (mut speeds, mut copied) = (Vec::new(), Vec::new());
    let mut beside = || -> Outcome<()> {
        speeds.push(disk_alone(run)?);
        if copies {
            copied.push(plain_copy(run)?);
        }
        Ok(())
    };
    beside()?;
    for store in ["memory", "file"] {
        found.resyncs.extend(resyncs_in(run, store)?);
        beside()?;
    }
    found.range_disk_mib_per_second = spread(&speeds);
    found.disk_mib_per_second = median(speeds);
    if copies {
        found.range_copy_mib_per_second = Some(spread(&copied));
        found.copy_mib_per_second = Some(median(copied));
    }
    Ok(found)
}

/// Whether a plain copy can stand beside resyncs; says so if not.
pub(crate) fn has_copies(run: &Run) -> bool {
    const WHAT: &str = "resync beside a plain copy";
    run.has("nbdcopy", WHAT) && run.has("nbdkit", WHAT)
}

/// Every event, as often as the run repeats.
pub(crate) fn pauses(run: &Run) -> Outcome<Vec<Pause>> {
    let mut waits = vec![vec![Vec::new(); EVENTS.len()]; run.programs.len()];
    for number in 0..run.pace.repeats() {
        say(format!("Table 6, pauses: repeat {} of {}", number + 1, run.pace.repeats()));
        for place in order(number, EVENTS.len()) {
            for who in order(number, run.programs.len()) {
                waits[who][place].push(pause(run, &run.programs[who], EVENTS[place].1)?);
            }
        }
    }
    let mut all = Vec::new();
    for (programs, waits) in run.programs.iter().zip(waits) {
        for ((event, _), waits) in EVENTS.iter().zip(waits) {
            let event = format!("{event}{}", run.suffix(programs));
            let range_ms = spread(&waits);
            all.push(Pause { event, pause_ms: median(waits), range_ms });
        }
    }
    Ok(all)
}

fn cluster(
    run: &Run,
    (programs, name): (&Programs, &str),
    store: &'static str,
    size_mib: u64,
) -> Outcome<Cluster> {
    let wanted = Wanted { nodes: 3, store, encryption: false, threads: 1 };
    let cluster = Cluster::up(programs, &run.scratch.join(name), wanted)?;
    cluster.create("v", size_mib, &["a", "b", "c"])?;
    Ok(cluster)
}

/// The longest wait of a client on node b while `event` happens; node a is primary, for it has a client of
/// its own, which came first.
fn pause(run: &Run, programs: &Programs, event: Event) -> Outcome<f64> {
    const SIZE_MIB: u64 = 64;
    const HOLD: Workload = Workload { depth: 1, ..LOAD };
    let mut cluster = cluster(run, (programs, "f"), "memory", SIZE_MIB)?;
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

/// A replica that comes back, of volumes in such stores.
fn resyncs_in(run: &Run, store: &'static str) -> Outcome<Vec<Resync>> {
    let idle = |changes| Case { changes, beside: false };
    let quarter = |block_kib| idle(Changes::Quarter { block_kib });
    let (size_mib, mut cases) = match store {
        // Memory forgets at every stop: all of it is copied then.
        "memory" => (run.pace.memory_mib() * 2, Vec::new()),
        _ if run.pace.brief => (run.pace.file_mib(), vec![quarter(64)]),
        _ => (run.pace.file_mib() * 2, vec![quarter(64), quarter(4)]),
    };
    cases.extend([idle(Changes::All), Case { changes: Changes::All, beside: true }]);
    let mut places = Vec::new();
    for (number, programs) in run.programs.iter().enumerate() {
        let cluster = cluster(run, (programs, &format!("f{number}")), store, size_mib)?;
        let target = Target::Nbd(cluster.url("a", "v"));
        fill(&target, size_mib)?;
        places.push((cluster, target, run.suffix(programs)));
    }
    let mut places: Vec<Place> = places
        .iter_mut()
        .map(|(cluster, target, suffix)| Place { cluster, target, size_mib, node: "c", suffix })
        .collect();
    resyncs(run, &mut places, &cases, store)
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

/// What a plain copy from file to file reaches on the same disk, as often as the disk itself. Both files go through the page cache, which is told
/// not to keep them (`cache=none`); what was written is on the disk when it ends (`--flush`).
fn plain_copy(run: &Run) -> Outcome<f64> {
    let size_mib = run.pace.file_mib();
    let files = ["from.img", "to.img"].map(|name| run.scratch.join(name));
    for file in &files {
        fill(&Target::File(file.clone()), size_mib)?;
    }
    let plugin = |file: &Path| format!("nbdkit file cache=none {}", file.display());
    let mut command = Command::new("nbdcopy");
    let [from, to] = [0, 1].map(|place| plugin(&files[place]));
    let words = |text: &str| -> Vec<String> {
        let inner = text.split(' ').map(str::to_owned);
        ["[".to_owned()].into_iter().chain(inner).chain(["]".to_owned()]).collect()
    };
    let begun = Instant::now();
    machine::run(command.args(["--flush"]).args(words(&from)).args(words(&to)))?;
    let seconds = begun.elapsed().as_secs_f64();
    for file in files {
        std::fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(float(size_mib) / seconds)
}

//! Memory and processor time of nodes whose volumes nobody uses.
//!
//! Always: a cluster of its own, on three nodes, each volume with a replica on each; what is counted is what
//! the kernel says of the processes.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::float;
use crate::machine;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::sample::median;

/// Size of each volume, in files that are empty.
const SIZE_MIB: u64 = 1024;

/// How nodes fare with so many idle volumes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) subject: String,
    pub(crate) volumes: u32,
    /// Memory of the node that holds most, in MiB, before there was a volume and with all of them.
    pub(crate) empty_mib: f64,
    pub(crate) full_mib: f64,
    /// Per cent of a core, median of the nodes, while nothing is asked.
    pub(crate) core_percent: f64,
}

/// Measures each revision.
pub(crate) fn measure(run: &Run) -> Outcome<Vec<Idle>> {
    run.programs.iter().map(|programs| of(run, programs)).collect()
}

fn of(run: &Run, programs: &Programs) -> Outcome<Idle> {
    let volumes = run.pace.idle_volumes();
    println!("Idle: {volumes} volumes");
    let wanted = Wanted { nodes: 3, store: "file", encryption: true, threads: 1 };
    let cluster = Cluster::up(programs, &run.scratch.join("i"), wanted)?;
    let pids = cluster.pids()?;
    let most = || -> Outcome<f64> {
        let all: Outcome<Vec<u64>> = pids.iter().map(|&pid| machine::resident_kib(pid)).collect();
        Ok(float(all?.into_iter().max().unwrap_or(0)) / 1024.0)
    };
    let empty_mib = most()?;
    for number in 0..volumes {
        cluster.create(&format!("idle{number}"), SIZE_MIB, &["a", "b", "c"])?;
    }
    // What follows the last one's making is not idleness.
    thread::sleep(Duration::from_secs(2));
    let used =
        || -> Outcome<Vec<u64>> { pids.iter().map(|&pid| machine::processor_ms(&[pid])).collect() };
    let (before, begun) = (used()?, Instant::now());
    thread::sleep(Duration::from_secs_f64(run.pace.seconds() * 5.0));
    let (after, took) = (used()?, begun.elapsed());
    let each = before.iter().zip(&after).map(|(before, after)| float(after - before));
    let core_percent = median(each.collect()) / took.as_secs_f64() / 10.0;
    let subject = format!("3 nodes, 3 replicas each{}", run.suffix(programs));
    Ok(Idle { subject, volumes, empty_mib, full_mib: most()?, core_percent })
}

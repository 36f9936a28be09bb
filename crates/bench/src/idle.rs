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
use crate::outcome::{Outcome, say};
use crate::run::{Run, order};
use crate::sample::{median, spread};

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
    pub(crate) range_full_mib: (f64, f64),
    /// Per cent of a core, median of the nodes, while nothing is asked.
    pub(crate) core_percent: f64,
    pub(crate) range_core_percent: (f64, f64),
}

/// Nodes that hold idle volumes.
struct Place {
    /// They run as long as this is kept.
    _cluster: Cluster,
    pids: Vec<u32>,
    subject: String,
    empty_mib: f64,
    full_mib: Vec<f64>,
    core_percent: Vec<f64>,
}

/// Measures each revision, by turns.
pub(crate) fn measure(run: &Run) -> Outcome<Vec<Idle>> {
    let volumes = run.pace.idle_volumes();
    say(format!("Idle: {volumes} volumes"));
    let mut places = Vec::new();
    for (number, programs) in run.programs.iter().enumerate() {
        places.push(Place::new(run, programs, &format!("i{number}"), volumes)?);
    }
    // What follows the last one's making is not idleness.
    thread::sleep(Duration::from_secs(2));
    for number in 0..run.pace.repeats() {
        for who in order(number, places.len()) {
            places[who].look(Duration::from_secs_f64(run.pace.seconds() * 2.0))?;
        }
    }
    let idle = |place: Place| Idle {
        subject: place.subject,
        volumes,
        empty_mib: place.empty_mib,
        range_full_mib: spread(&place.full_mib),
        full_mib: median(place.full_mib),
        range_core_percent: spread(&place.core_percent),
        core_percent: median(place.core_percent),
    };
    Ok(places.into_iter().map(idle).collect())
}

/// Memory of the one that holds most, in MiB.
fn most_mib(pids: &[u32]) -> Outcome<f64> {
    let all: Outcome<Vec<u64>> = pids.iter().map(|&pid| machine::resident_kib(pid)).collect();
    Ok(float(all?.into_iter().max().unwrap_or(0)) / 1024.0)
}

impl Place {
    fn new(run: &Run, programs: &Programs, name: &str, volumes: u32) -> Outcome<Place> {
        let wanted = Wanted { nodes: 3, store: "file", encryption: true, threads: 1 };
        let cluster = Cluster::up(programs, &run.scratch.join(name), wanted)?;
        let pids = cluster.pids()?;
        let empty_mib = most_mib(&pids)?;
        for number in 0..volumes {
            cluster.create(&format!("idle{number}"), SIZE_MIB, &["a", "b", "c"])?;
        }
        let subject = format!("3 nodes, 3 replicas each{}", run.suffix(programs));
        let (full_mib, core_percent) = (Vec::new(), Vec::new());
        Ok(Place { _cluster: cluster, pids, subject, empty_mib, full_mib, core_percent })
    }

    fn look(&mut self, limit: Duration) -> Outcome<()> {
        let used = || -> Outcome<Vec<u64>> {
            self.pids.iter().map(|&pid| machine::processor_ms(&[pid])).collect()
        };
        let (before, begun) = (used()?, Instant::now());
        thread::sleep(limit);
        let (after, took) = (used()?, begun.elapsed());
        let each = before.iter().zip(&after).map(|(before, after)| float(after - before));
        self.core_percent.push(median(each.collect()) / took.as_secs_f64() / 10.0);
        self.full_mib.push(most_mib(&self.pids)?);
        Ok(())
    }
}

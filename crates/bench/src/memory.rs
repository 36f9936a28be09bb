//! Memory of nodes while a client asks as much as it can of one volume, and after that.
//!
//! Always: a cluster of its own for each repeat, since the highest figure that the kernel keeps of a process never falls; what is
//! counted is what the kernel says of the processes.
//!
//! Not here: volumes that nobody uses (`idle`).

use serde::Serialize;

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{self, Target, Workload, fill, float};
use crate::machine::{memory_kib, resident_kib};
use crate::outcome::{Outcome, say};
use crate::run::{Run, order};
use crate::sample::{median, spread};

const fn load(pattern: &'static str, block_kib: u32, depth: u32, reads: u32) -> Workload {
    Workload { name: "load", pattern, block_kib, depth, reads }
}

/// What is asked, one after the other.
const LOADS: [Workload; 4] = [
    load("randwrite", 4, 64, 0),
    load("randread", 4, 64, 100),
    load("write", 128, 16, 0),
    load("read", 128, 16, 100),
];

/// How long each is asked at most.
const LOAD_SECONDS: f64 = 2.0;

/// What a node may hold without a volume.
const NODE_MIB: f64 = 64.0;

/// What it may hold more for each that is open.
const VOLUME_MIB: f64 = 16.0;

/// What it may hold more for each TiB of it and each peer that is absent.
const BITMAP_MIB_PER_TIB: f64 = 32.0;

/// The nodes; the client is at the first, and the last is ended at last.
const NODES: [&str; 3] = ["a", "b", "c"];

/// How one node fared.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Loaded {
    pub(crate) subject: String,
    /// Before there was a volume, in MiB; medians, as all here.
    pub(crate) empty_mib: f64,
    /// After the load.
    pub(crate) resident_mib: f64,
    /// The most that it held at any time; the smallest and the largest beside it.
    pub(crate) highest_mib: f64,
    pub(crate) range_mib: (f64, f64),
    /// What it may hold.
    pub(crate) limit_mib: f64,
    /// Whether a peer was absent meanwhile.
    pub(crate) peer_away: bool,
}

/// One look at one node, in MiB.
#[derive(Clone, Copy, Debug)]
struct Look {
    empty: f64,
    resident: f64,
    highest: f64,
}

/// What a node may hold that has one open volume of this size, and so many absent peers; in MiB, to two digits.
pub(crate) fn limit_mib(size_mib: u64, absent: u32) -> f64 {
    let bitmap = BITMAP_MIB_PER_TIB * float(size_mib) / f64::from(1 << 20) * f64::from(absent);
    ((NODE_MIB + VOLUME_MIB + bitmap) * 100.0).round() / 100.0
}

/// Measures each revision, by turns.
pub(crate) fn measure(run: &Run) -> Outcome<Vec<Loaded>> {
    let mut looks: Vec<Vec<Vec<Look>>> = vec![Vec::new(); run.programs.len()];
    // What differs little from time to time is looked at once, unless it is compared.
    let once_only = run.pace.brief && run.programs.len() == 1;
    let repeats = if once_only { 1 } else { run.pace.repeats() };
    for number in 0..repeats {
        say(format!("Memory under load: repeat {} of {repeats}", number + 1));
        for who in order(number, run.programs.len()) {
            looks[who].push(once(run, &run.programs[who])?);
        }
    }
    let mut all = Vec::new();
    for (programs, looks) in run.programs.iter().zip(looks) {
        for (place, (subject, peer_away)) in subjects().into_iter().enumerate() {
            let of = |figure: fn(&Look) -> f64| -> Vec<f64> {
                looks.iter().map(|looks| figure(&looks[place])).collect()
            };
            all.push(Loaded {
                subject: subject + &run.suffix(programs),
                empty_mib: median(of(|look| look.empty)),
                resident_mib: median(of(|look| look.resident)),
                range_mib: spread(&of(|look| look.highest)),
                highest_mib: median(of(|look| look.highest)),
                limit_mib: limit_mib(run.pace.file_mib(), u32::from(peer_away)),
                peer_away,
            });
        }
    }
    Ok(all)
}

/// What [`once`] looks at, in its order; with a peer absent only those that are not.
fn subjects() -> Vec<(String, bool)> {
    let name = |node: &str| match node {
        "a" => "the client's node".to_owned(),
        node => format!("node {node}"),
    };
    let there = NODES.iter().map(|node| (name(node), false));
    let away = NODES[..NODES.len() - 1].iter();
    there.chain(away.map(|node| (format!("{}, c is away", name(node)), true))).collect()
}

fn once(run: &Run, programs: &Programs) -> Outcome<Vec<Look>> {
    let size_mib = run.pace.file_mib();
    let wanted = Wanted { nodes: 3, store: "file", encryption: true, threads: 1 };
    let mut cluster = Cluster::up(programs, &run.scratch.join("l"), wanted)?;
    let pids = cluster.pids()?;
    let mib = |kib: u64| float(kib) / 1024.0;
    let empty: Vec<u64> = pids.iter().map(|&pid| resident_kib(pid)).collect::<Outcome<_>>()?;
    cluster.create("v", size_mib, &NODES)?;
    let target = Target::Nbd(cluster.url(NODES[0], "v"));
    fill(&target, size_mib)?;
    let look = |count: usize| -> Outcome<Vec<Look>> {
        for workload in &LOADS {
            let seconds = run.pace.seconds().min(LOAD_SECONDS);
            fio::measure(&target, workload, size_mib, seconds, 1, &run.scratch)?;
        }
        let nodes = pids.iter().zip(&empty).take(count);
        let of = |(&pid, &empty): (&u32, &u64)| {
            let (resident, highest) = (resident_kib(pid)?, memory_kib(pid, "VmHWM:")?);
            Ok(Look { empty: mib(empty), resident: mib(resident), highest: mib(highest) })
        };
        nodes.map(of).collect()
    };
    let mut looks = look(NODES.len())?;
    cluster.kill(NODES[NODES.len() - 1])?;
    cluster.wait("v", "primary", 30)?;
    looks.extend(look(NODES.len() - 1)?);
    Ok(looks)
}

#[cfg(test)]
mod tests {
    use super::{limit_mib, subjects};

    #[test]
    fn the_bitmap_counts_for_each_tebibyte_and_each_absent_peer() {
        assert_eq!(limit_mib(1 << 20, 0), 80.0);
        assert_eq!(limit_mib(1 << 20, 2), 144.0);
        assert_eq!(limit_mib(2048, 1), 80.06);
    }

    #[test]
    fn a_node_that_is_away_is_not_looked_at() {
        let away: Vec<String> =
            subjects().into_iter().filter(|(_, away)| *away).map(|(name, _)| name).collect();
        assert_eq!(away, ["the client's node, c is away", "node b, c is away"]);
    }
}

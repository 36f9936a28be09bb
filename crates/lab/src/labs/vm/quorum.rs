//! A host of NVMe/TCP while its volume has no majority of nodes: its requests wait, and go on.

use std::fs;

use tools::guest::{MEMORY_MIB, Series};

use super::{need_guest, paths, port_of, tell, told, words};
use crate::bench::{Bench, Outcome};
use crate::cluster::{Cluster, SYNC_LIMIT};

const SIZE_MIB: u64 = 64;

pub(in crate::labs) fn quorum(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    // Not the one that is primary, at least at first.
    let (left, others) = ("c", ["a", "b"]);
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/quorum.sh"))?;
    let port = port_of(&ports, left)?;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{}\" LEFT={port}\n", words(&ports));
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    for (asks, waits, goes) in
        [("ready", "waits", "one-back"), ("single", "failed", "one-back-again")]
    {
        running.until(asks)?;
        for node in others {
            cluster.kill(node)?;
        }
        bench.tell("two of three nodes are killed");
        tell(&share, if asks == "ready" { "killed" } else { "killed-again" }, "")?;
        running.until(waits)?;
        cluster.start(others[0])?;
        bench.tell("one of them is back");
        tell(&share, goes, "")?;
        if asks == "ready" {
            running.until("goes")?;
        }
        cluster.start(others[1])?;
        cluster.wait("web", "in-sync", SYNC_LIMIT)?;
        tell(&share, "all-back", "")?;
    }
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    told(&guest, &share)
}

//! xfs of a machine on a volume, all of whose nodes are killed at once, and come back.

use std::fs;

use tools::guest::{MEMORY_MIB, Series};

use super::{need_guest, paths, tell, told, words};
use crate::bench::{Bench, Outcome};
use crate::cluster::{Cluster, SYNC_LIMIT};

/// The least that `mkfs.xfs` takes is 300 MiB.
const SIZE_MIB: u64 = 320;

pub(in crate::labs) fn xfs(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/xfs.sh"))?;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{}\"\n", words(&ports));
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    for round in 1..=2 {
        running.until(&format!("ready-{round}"))?;
        cluster.kill_all()?;
        bench.tell("all nodes are killed");
        tell(&share, &format!("killed-{round}"), "")?;
        running.until(&format!("lost-{round}"))?;
        cluster.start_all()?;
        cluster.wait("web", "in-sync", SYNC_LIMIT)?;
        bench.tell("all nodes are back");
        tell(&share, &format!("back-{round}"), "")?;
    }
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    told(&guest, &share)
}

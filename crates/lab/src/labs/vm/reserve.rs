//! Hosts that keep each other from a volume: Linux' own initiator, and nvme-cli's commands.

use std::fs;

use tools::guest::Series;

use super::{need_guest, paths, told, words};
use crate::bench::{Bench, Outcome};
use crate::cluster::{Cluster, SYNC_LIMIT};

pub(in crate::labs) fn reserve(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", "64MiB", "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/reserve.sh"))?;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{}\"\n", words(&ports));
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start(&share)?;
    running.until("ready")?;
    let killed = cluster.primary("web")?;
    cluster.kill(&killed)?;
    cluster.start(&killed)?;
    bench.tell(format!("node {killed}, the primary's, was killed and is back"));
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    fs::write(share.join("back"), "")?;
    running.end()?;
    told(&guest, &share)
}

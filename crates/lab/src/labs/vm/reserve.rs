//! Hosts that keep each other from a volume: Linux' own initiator, and nvme-cli's commands.

use std::fs;

use tools::guest::{Guest, LINUX_6_12, NEWEST, Series};

use super::paths;
use crate::bench::{Bench, Outcome, Verdict, passed};
use crate::cluster::{Cluster, SYNC_LIMIT};

pub(in crate::labs) fn reserve_6_12(bench: &Bench) -> Outcome {
    reserve(bench, LINUX_6_12)
}

pub(in crate::labs) fn reserve_newest(bench: &Bench) -> Outcome {
    reserve(bench, NEWEST)
}

fn reserve(bench: &Bench, series: Series) -> Outcome {
    let guest = match Guest::of(series)? {
        Ok(guest) => guest,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    bench.tell(format!("{} is at hand", guest.kernel));
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", "64MiB", "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/reserve.sh"))?;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{}\"\n", ports.join(" "));
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
    let seen = fs::read_to_string(share.join("seen"))?;
    passed(format!("{}: {}", guest.kernel, seen.trim().replace('\n', "; ")))
}

//! Hosts that keep each other from a volume: Linux' own initiator, and nvme-cli's commands.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use client::NvmeVolume;
use tools::guest::Series;

use super::{need_guest, paths, told, words};
use crate::bench::{Bench, Failure, Outcome, ensure};
use crate::cluster::{Cluster, SYNC_LIMIT};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

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
    running.until("again")?;
    for node in ["a", "b", "c"] {
        cluster.kill(node)?;
    }
    for node in ["a", "b", "c"] {
        cluster.start(node)?;
    }
    bench.tell("all nodes were killed and are back");
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    fs::write(share.join("all-back"), "")?;
    running.until("reserved")?;
    for (node, port) in &ports {
        is_kept(node, port, &subsystem)?;
    }
    fs::write(share.join("kept"), "")?;
    running.end()?;
    told(&guest, &share)
}

/// Another host than the machine cannot write by this node.
fn is_kept(node: &str, port: &str, subsystem: &str) -> Outcome<()> {
    let port = port.parse().map_err(|_| Failure(format!("{port} is no port")))?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut other = NvmeVolume::open(address, subsystem, 1, false, PATIENCE)?;
    let written = other.write(0, &[0; 4096]);
    let kept = written.as_ref().is_err_and(|error| error.to_string().contains("0x83"));
    ensure!(kept, "by node {node} another host writes: {written:?}");
    Ok(())
}

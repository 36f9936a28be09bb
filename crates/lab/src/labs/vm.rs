//! Real kernels in emulated machines: what their own drivers make of a volume.
//!
//! The nodes run here; the machine reaches them through relays on this machine's loopback. It is emulated, without the
//! processor's help: what it shows is that things work, never how fast.

mod attach;
mod moved;
mod pmem;
mod proof;
mod reserve;
mod tls;
mod ublk;
mod vhost;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tools::guest::{Guest, LINUX_5_10, LINUX_6_1, LINUX_6_12, NEWEST, Series};

use crate::bench::{Bench, Failure, Outcome, Verdict, ensure, let_run, passed};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::relay::Delay;

pub(super) use attach::{attach_5_10, attach_6_1, attach_6_12, attach_newest};
pub(super) use moved::moved_6_12;
pub(super) use pmem::pmem_6_12;
pub(super) use proof::{proof_6_12, proof_newest};
pub(super) use reserve::{reserve_6_12, reserve_newest};
pub(super) use tls::{tls_6_12, tls_newest};
pub(super) use ublk::{
    mapper_6_12, mapper_newest, nodes_5_10, nodes_6_1, nodes_newest, ublk_6_1, ublk_6_12,
    ublk_newest,
};
pub(super) use vhost::vhost_6_12;

const SIZE_MIB: u64 = 256;
const GROWN_MIB: u64 = 320;

pub(super) fn nvme_5_10(bench: &Bench) -> Outcome {
    nvme(bench, LINUX_5_10)
}

pub(super) fn nvme_6_1(bench: &Bench) -> Outcome {
    nvme(bench, LINUX_6_1)
}

pub(super) fn nvme_6_12(bench: &Bench) -> Outcome {
    nvme(bench, LINUX_6_12)
}

pub(super) fn nvme_newest(bench: &Bench) -> Outcome {
    nvme(bench, NEWEST)
}

/// Linux' NVMe/TCP initiator, with a path to each node; the primary's node is killed under it.
fn nvme(bench: &Bench, series: Series) -> Outcome {
    let guest = match Guest::of(series)? {
        Ok(guest) => guest,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    bench.tell(format!("{} is at hand", guest.kernel));
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../vm/nvme.sh"))?;
    let ports = ports.join(" ");
    let grown = GROWN_MIB << 20;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{ports}\" GROWN={grown}\n");
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start(&share)?;
    running.until("ready")?;
    let_run(Duration::from_secs(3));
    let killed = cluster.primary("web")?;
    cluster.kill(&killed)?;
    bench.tell(format!("node {killed}, the primary's, is killed"));
    running.until("grow")?;
    cluster.start(&killed)?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.ok(&["resource", "resize", "web", "--size", &format!("{GROWN_MIB}MiB")])?;
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    passed(format!("{}: no I/O error at the kill, and it saw the volume grow", guest.kernel))
}

/// What the machine needs to reach a resource: its subsystem, and a port for each node.
fn paths(cluster: &Cluster, resource: &str) -> Outcome<(String, Vec<String>)> {
    let told = cluster.ok(&["resource", "show", resource])?;
    let (mut subsystem, mut ports) = (String::new(), Vec::new());
    for place in told.split_whitespace().filter_map(|word| word.strip_prefix("nvme+tcp://")) {
        let mut parts = place.split('/');
        let address = parts.next().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| Failure(format!("{place} names no address")))?;
        parts.next().unwrap_or_default().clone_into(&mut subsystem);
        ports.push(relay(address)?.to_string());
    }
    ensure!(ports.len() == 3 && !subsystem.is_empty(), "three paths are told: {told}");
    Ok((subsystem, ports))
}

/// A port of this machine's loopback behind which a node is: an emulated machine reaches no other address.
fn relay(node: SocketAddr) -> Outcome<u16> {
    crate::relay::relay(node, Delay::NONE)
}

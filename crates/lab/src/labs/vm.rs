//! Real kernels in emulated machines: what their own drivers make of a volume.
//!
//! The nodes run here; the machine reaches them through relays on this machine's loopback. It is emulated, without the
//! processor's help: what it shows is that things work, never how fast.

mod attach;
mod frozen;
mod moved;
mod pmem;
mod proof;
mod quorum;
mod reserve;
mod systemd;
mod tls;
mod ublk;
mod vhost;
mod xfs;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tools::guest::{Guest, MEMORY_MIB, Series};
pub(super) use tools::guest::{LINUX_5_10, LINUX_6_1, LINUX_6_12, NEWEST};

use crate::bench::{Bench, Failure, Outcome, ensure, let_run, passed};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::relay::Delay;

pub(super) use attach::attach;
pub(super) use frozen::frozen;
pub(super) use moved::moved;
pub(super) use pmem::pmem;
pub(super) use proof::proof;
pub(super) use quorum::quorum;
pub(super) use reserve::reserve;
pub(super) use systemd::systemd;
pub(super) use tls::tls;
pub(super) use ublk::{doctor, late, mapper, nodes, ublk};
pub(super) use vhost::vhost;
pub(super) use xfs::xfs;

const SIZE_MIB: u64 = 256;
const GROWN_MIB: u64 = 320;

/// What scripts of machines that have nodes share, as the file `verified`.
const VERIFIED: &str = include_str!("../../vm/verified.sh");

/// Whether a kernel has what a lab is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Has {
    /// It has it.
    All,
    /// What changes while it is used has to be made anew.
    Still,
    /// It has none, and that is said.
    None,
}

/// By what a machine has a volume of its own nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum By {
    Ublk,
    Nvme,
}

impl By {
    /// As `lockstep device attach --via` has it.
    fn word(self) -> &'static str {
        match self {
            By::Ublk => "ublk",
            By::Nvme => "nvme",
        }
    }
}

/// Kernels by the last word of a lab's name.
const KERNELS: [(&str, Series); 4] =
    [("-5.10", LINUX_5_10), ("-6.1", LINUX_6_1), ("-6.12", LINUX_6_12), ("-newest", NEWEST)];

/// Makes what the lab of this name needs of the package archive, where it is not there yet; the reason if it cannot be had.
pub(super) fn prepare(name: &str) -> Outcome<Option<String>> {
    let Some((_, series)) = KERNELS.iter().find(|(word, _)| name.ends_with(word)) else {
        return Ok(None);
    };
    let missing = Guest::of(*series)?.err();
    if missing.is_some() {
        return Ok(missing);
    }
    Ok(match name {
        _ if name.starts_with("vm-tls-") => tls::newer_tools()?.err(),
        _ if name.starts_with("vm-systemd-") => systemd::system()?.err(),
        _ => None,
    })
}

/// Leaves the lab here with the reason if there is no such machine; what its kernel is stands in the lab's directory.
macro_rules! need_guest {
    ($bench:expr, $series:expr) => {
        match tools::guest::Guest::of($series)? {
            Ok(guest) => {
                $bench.tell(format!("{} is at hand", guest.kernel));
                let kernel = format!("{}\n{}\n", guest.kernel, guest.version);
                std::fs::write($bench.directory.join("kernel"), kernel)?;
                guest
            }
            Err(why) => return Ok($crate::bench::Verdict::NotRun(why)),
        }
    };
}
use need_guest;

/// Linux' NVMe/TCP initiator, with a path to each node; the primary's node is killed under it.
pub(super) fn nvme(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up_of(bench, 3, 2)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../vm/nvme.sh"))?;
    let grown = GROWN_MIB << 20;
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{}\" GROWN={grown}\n", words(&ports));
    fs::write(share.join("settings"), settings)?;
    // A queue for each processor.
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    running.until("ready")?;
    let_run(Duration::from_secs(3));
    let killed = cluster.primary("web")?;
    cluster.kill(&killed)?;
    bench.tell(format!("node {killed}, the primary's, is killed"));
    tell(&share, "killed", port_of(&ports, &killed)?)?;
    running.until("lost")?;
    cluster.start(&killed)?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    tell(&share, "back", "")?;
    running.until("grow")?;
    cluster.ok(&["resource", "resize", "web", "--size", &format!("{GROWN_MIB}MiB")])?;
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    told(&guest, &share)
}

/// What the machine needs to reach a resource: its subsystem, and a port for each node, by name.
fn paths(cluster: &Cluster, resource: &str) -> Outcome<(String, Vec<(String, String)>)> {
    let (mut subsystem, mut ports) = (String::new(), Vec::new());
    let told = cluster.ok(&["resource", "show", resource])?;
    let places = told.split_whitespace().filter_map(|word| word.strip_prefix("nvme+tcp://"));
    for (place, node) in places.zip(&cluster.nodes) {
        let mut parts = place.split('/');
        let address = parts.next().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| Failure(format!("{place} names no address")))?;
        parts.next().unwrap_or_default().clone_into(&mut subsystem);
        ports.push((node.name.clone(), relay(address)?.to_string()));
    }
    ensure!(ports.len() == 3 && !subsystem.is_empty(), "three paths are told: {told}");
    Ok((subsystem, ports))
}

/// Its ports alone, with blanks between.
fn words(ports: &[(String, String)]) -> String {
    ports.iter().map(|(_, port)| port.as_str()).collect::<Vec<_>>().join(" ")
}

fn port_of<'a>(ports: &'a [(String, String)], node: &str) -> Outcome<&'a str> {
    let found = ports.iter().find(|(name, _)| name == node);
    found.map(|(_, port)| port.as_str()).ok_or_else(|| Failure(format!("no port of {node}")))
}

/// A port of this machine's loopback behind which a node is: an emulated machine reaches no other address.
fn relay(node: SocketAddr) -> Outcome<u16> {
    crate::relay::relay(node, Delay::NONE)
}

/// Makes a file in a machine's share, whole at once.
fn tell(share: &Path, file: &str, words: &str) -> Outcome<()> {
    fs::write(share.join("new"), words)?;
    Ok(fs::rename(share.join("new"), share.join(file))?)
}

/// It passed, with what the machine says that it has seen.
fn told(guest: &Guest, share: &Path) -> Outcome {
    let seen = fs::read_to_string(share.join("seen")).unwrap_or_default();
    ensure!(!seen.is_empty(), "the machine says that it has seen nothing");
    let again = share.join("again").exists();
    let again =
        if again { " (its kernel died while it started, and was started again)" } else { "" };
    passed(format!("{}{again}: {}", guest.kernel, seen.trim().replace('\n', "; ")))
}

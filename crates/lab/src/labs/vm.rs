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
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::bench::{
    Bench, Failure, Outcome, Verdict, ensure, let_run, missing, passed, program, run, text,
    wait_for,
};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::relay::Delay;

pub(super) use attach::{attach_6_1, attach_6_12};
pub(super) use moved::moved_6_12;
pub(super) use pmem::pmem_6_12;
pub(super) use proof::proof_6_12;
pub(super) use reserve::reserve_6_12;
pub(super) use tls::tls_6_12;
pub(super) use ublk::{mapper_6_12, ublk_6_1, ublk_6_12};
pub(super) use vhost::vhost_6_12;

/// What a machine is made with.
const TOOLS: &[&str] = &[
    "qemu-system-x86_64",
    "busybox",
    "nvme",
    "fio",
    "mkfs.ext4",
    "blkdiscard",
    "dmsetup",
    "modprobe",
    "depmod",
    "cpio",
    "xz",
    "apt-get",
    "apt-cache",
    "dpkg",
];

/// How long it may take to fetch a kernel's package and to make a machine's file system of it.
const MAKE_LIMIT: Duration = Duration::from_secs(200);

/// How long a machine may run, in seconds.
const GUEST_SECONDS: u64 = 280;

/// What a machine needs that only uses volumes, in MiB.
const MEMORY_MIB: u32 = 900;

const SIZE_MIB: u64 = 256;
const GROWN_MIB: u64 = 320;

/// What Debian calls the newest kernel of a series, and the kernel.
pub(super) fn nvme_6_1(bench: &Bench) -> Outcome {
    nvme(bench, "linux-image-amd64")
}

pub(super) fn nvme_6_12(bench: &Bench) -> Outcome {
    nvme(bench, "linux-image-6.12-amd64")
}

/// Linux' NVMe/TCP initiator, with a path to each node; the primary's node is killed under it.
fn nvme(bench: &Bench, series: &str) -> Outcome {
    let missing = missing(TOOLS);
    if !missing.is_empty() {
        return Ok(Verdict::NotRun(format!("not on this machine: {}", missing.join(", "))));
    }
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
    until(&mut running, &share, "ready")?;
    let_run(Duration::from_secs(3));
    let killed = cluster.primary("web")?;
    cluster.kill(&killed)?;
    bench.tell(format!("node {killed}, the primary's, is killed"));
    until(&mut running, &share, "grow")?;
    cluster.start(&killed)?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.ok(&["resource", "resize", "web", "--size", &format!("{GROWN_MIB}MiB")])?;
    ensure!(running.ends_well()?, "the machine found fault:\n{}", said(&share));
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

/// Waits until a machine makes a file.
fn until(running: &mut Running, share: &Path, file: &str) -> Outcome<()> {
    let came = wait_for(file, Duration::from_secs(GUEST_SECONDS), || {
        let came = share.join(file).exists();
        ensure!(came || running.has_ended()?, "the machine has not come so far");
        Ok(came)
    })?;
    ensure!(came, "the machine ended early:\n{}", said(share));
    Ok(())
}

/// The last of what a machine said.
fn said(share: &Path) -> String {
    let of = |name: &str| fs::read_to_string(share.join(name)).unwrap_or_default();
    let (out, console) = (of("out"), of("console"));
    let last = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    };
    format!("{}\n{}", last(&out), last(&console))
}

/// A kernel, and a file system for it.
struct Guest {
    kernel: String,
    directory: PathBuf,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vm").join(name)
}

impl Guest {
    /// The newest kernel of a series; what was made of it is kept beside the programs. The inner error: it cannot be had.
    fn of(series: &str) -> Outcome<Result<Guest, String>> {
        let told = run(Command::new("apt-cache").args(["depends", series]), MAKE_LIMIT)?;
        let kernel =
            told.out.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        let Some(kernel) = kernel else {
            return Ok(Err(format!("the package archive names no {series} (apt-get update)")));
        };
        let package = format!("linux-image-{kernel}");
        let programs = program("lockstep")?;
        let target = programs.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let directory = target.join("guest").join(&package);
        let kernel = format!("Linux {kernel}");
        let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
        let script = script("initrd.sh");
        // What another version of the script made is made anew.
        if changed(&directory.join("vmlinuz"))
            .is_ok_and(|made| changed(&script).is_ok_and(|at| at <= made))
        {
            return Ok(Ok(Guest { kernel, directory }));
        }
        let mut make = Command::new(&script);
        let made = run(make.args([&package, text(&directory)]), MAKE_LIMIT)?;
        if made.code != Some(0) {
            return Ok(Err(format!("no machine can be made of {package}: {}", made.words())));
        }
        Ok(Ok(Guest { kernel, directory }))
    }

    /// Boots, and runs what `share` holds.
    fn start(&self, share: &Path) -> Outcome<Running> {
        self.start_by(share, MEMORY_MIB, &[])
    }

    /// The same with so much memory, and further words to QEMU.
    fn start_by(&self, share: &Path, memory_mib: u32, words: &[&str]) -> Outcome<Running> {
        let mut command = Command::new(script("guest.sh"));
        let (limit, memory) = (GUEST_SECONDS.to_string(), memory_mib.to_string());
        command.args([text(&self.directory), text(share), &limit, &memory]).args(words);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        Ok(Running(child))
    }
}

/// A machine that runs. It names the lab's directory, so that the supervisor ends it if the lab does not.
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> Outcome<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Ends it in the middle of what it does. `word` is one of those to QEMU that no other machine has.
    fn lose_power(&mut self, word: &str) -> Outcome<()> {
        let ended = run(Command::new("pkill").args(["-KILL", "-f", word]), MAKE_LIMIT)?;
        ensure!(ended.code == Some(0), "it had ended before: {}", ended.words());
        self.0.wait()?;
        Ok(())
    }

    /// Waits for its end; whether what it ran succeeded.
    fn ends_well(&mut self) -> Outcome<bool> {
        Ok(self.0.wait()?.success())
    }
}

/// A port of this machine's loopback behind which a node is: an emulated machine reaches no other address.
fn relay(node: SocketAddr) -> Outcome<u16> {
    crate::relay::relay(node, Delay::NONE)
}

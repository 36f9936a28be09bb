//! What people put on a disk: file systems and databases, while the primary's node is killed, and when all nodes lose their
//! power at once.
//!
//! Each has writers that note what they were told is stable: files that were synced, rows that were committed. A killed primary
//! may not cost them an error. Disks forget a part of what was not flushed when all nodes are killed; afterwards the
//! file system must be clean, and everything noted be there.
//!
//! Not here: how a volume becomes a disk of this host (`mounted`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::faults::make_forgetful;
use super::kill::{DISK, flush};
use crate::bench::{Bench, Outcome, Verdict, ensure, missing, passed, text, tool, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use client::{ANSWER_LIMIT, Volume};
use tools::{Disk, no_disk, unmount};

mod databases;
mod files;

pub(super) use databases::{mariadb, postgresql};
pub(super) use files::{btrfs, ext4, xfs};

const SIZE: u64 = 1 << 30;
const SIZE_TEXT: &str = "1GiB";
const SECTOR: &str = "4096";

/// How long an application may take to get on by some steps.
const STEPS_LIMIT: Duration = Duration::from_secs(90);

/// What notes how far it came, and checks it afterwards.
trait Application: Sized {
    /// Begins on a file system that is mounted here; `is_new`: nothing was on it. Returns when it works.
    fn start(bench: &Bench, mount: &Path, is_new: bool) -> Outcome<Self>;
    /// How many steps were told to be stable. Fails if anything went wrong.
    fn steps(&mut self) -> Outcome<usize>;
    /// Ends without any order, and tells which steps were stable.
    fn end(self) -> Outcome<Vec<u64>>;
    /// Looks whether these steps are there, after it was started again; then stops in good order.
    fn check(self, bench: &Bench, steps: &[u64]) -> Outcome<()>;
}

/// A file system.
struct Kind {
    name: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: Kind =
    Kind { name: "ext4", make: &["mkfs.ext4", "-q", "-F"], check: &["e2fsck", "-f", "-n"] };
const XFS: Kind =
    Kind { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"] };
const BTRFS: Kind = Kind {
    name: "btrfs",
    make: &["mkfs.btrfs", "-q", "-f"],
    check: &["btrfs", "check", "--readonly"],
};

/// Why these programs cannot be used here.
fn cannot(tools: &[&str]) -> Option<Verdict> {
    let missing = missing(tools);
    let reason = match missing.is_empty() {
        true => no_disk()?,
        false => format!("not on this machine: {}", missing.join(", ")),
    };
    Some(Verdict::NotRun(reason))
}

/// A cluster whose volume is mounted here.
struct Place<'a> {
    cluster: &'a Cluster,
    kind: &'a Kind,
    directory: PathBuf,
}

impl Place<'_> {
    fn mount_point(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// Mounts the volume through a node.
    fn mount(&self, node: &str, is_new: bool) -> Outcome<Disk> {
        let place = self.directory.join(format!("by-{node}"));
        let disk = Disk::attach(&place, &self.cluster.url(node, DISK)?, SECTOR)?;
        if is_new {
            let (program, words) = self.kind.make.split_first().ok_or("nothing makes it")?;
            tool(program, &[words, &[&disk.device]].concat())?;
        }
        fs::create_dir_all(self.mount_point())?;
        tool("mount", &["-t", self.kind.name, &disk.device, text(&self.mount_point())])?;
        Ok(disk)
    }

    /// Takes it away and says whether it was in order.
    fn unmount_and_check(&self, disk: Disk) -> Outcome<()> {
        unmount(&self.mount_point())?;
        disk.wait_until_unused()?;
        let (program, words) = self.kind.check.split_first().ok_or("nothing checks it")?;
        tool(program, &[words, &[&disk.device]].concat())?;
        disk.detach()
    }
}

/// Waits until so many more steps were told to be stable.
fn progress(application: &mut impl Application, more: usize) -> Outcome<()> {
    let begun = application.steps()?;
    wait_for("the application to get on", STEPS_LIMIT, || {
        let steps = application.steps()?;
        ensure!(steps >= begun + more, "{} of {more} steps", steps - begun);
        Ok(())
    })
}

/// The whole of it.
fn survives<A: Application>(bench: &Bench, kind: &Kind, steps: usize) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    // A new file system has discarded everything, so that a copy that lost its power is compared from end to end: beside
    // the application that is not to take all day.
    let least = ["--resync-rate-min", "64MiB"];
    cluster.create(DISK, &[&["--size", SIZE_TEXT, "--replicas", "3"][..], &least].concat())?;
    make_forgetful(bench, &cluster)?;
    // It stays primary as long as it has a client.
    let stays = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    let place = Place { cluster: &cluster, kind, directory: bench.directory.clone() };
    let disk = place.mount("b", true)?;
    let mut application = A::start(bench, &place.mount_point(), true)?;
    progress(&mut application, steps)?;
    ensure!(cluster.primary(DISK)? == "a", "a is not primary, though it was promoted");
    cluster.kill("a")?;
    drop(stays);
    bench.tell("a, the primary, is killed");
    progress(&mut application, steps)?;
    cluster.start("a")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    progress(&mut application, steps)?;
    cluster.kill_all()?;
    let stable = application.end()?;
    bench.tell(format_args!("all nodes lost their power after {} steps", stable.len()));
    unmount(&place.mount_point())?;
    disk.detach()?;

    cluster.start_all()?;
    let disk = place.mount("c", false)?;
    A::start(bench, &place.mount_point(), false)?.check(bench, &stable)?;
    place.unmount_and_check(disk)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    flush(&cluster)?;
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    passed(format!("{} steps that were told to be stable are there", stable.len()))
}

//! Who looks after the disks of a host: one process, and one that stays before one that does not.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{PATIENCE, TestCluster};

/// A disk that is to be there after the next start only.
const RESTING: &str = "version = 1\n[[disk]]\nresource = \"web\"\nvolume = 0\nvia = \"nbd\"\n\
                       places = [\"nbd://127.0.0.1:1/web\"]\nstate = \"resting\"\n";

/// A process that is ended with its test.
struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn keep(directory: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("--dir").arg(directory).args(["device", "keep"]).args(more);
    command.stdout(Stdio::null());
    command
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process has this file locked, as the kernel tells.
fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::metadata(path) else { return false };
    let inode = format!(":{} ", metadata.ino());
    let locks = fs::read_to_string("/proc/locks").expect("the kernel tells");
    locks.lines().any(|line| line.contains(&inode) && !line.contains("->"))
}

#[test]
fn who_stays_takes_over_from_who_does_not_and_a_second_one_is_refused() {
    let cluster = TestCluster::up(1, "memory");
    let directory = &cluster.directory;
    fs::write(directory.join("attached.toml"), RESTING).expect("written");
    let (lock, wanted) = (directory.join("keep.lock"), directory.join("keep.wanted"));
    let mut first = Keeper(keep(directory, &["--while-attached"]).spawn().expect("run"));
    until("the first has it", || is_locked(&lock));
    let mut lasting = Keeper(keep(directory, &[]).spawn().expect("run"));
    let mut ended = None;
    until("the first makes way", || {
        ended = first.0.try_wait().expect("it can be asked");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    until("the second has it", || is_locked(&lock) && is_locked(&wanted));
    for more in [&[][..], &["--while-attached"]] {
        let refused = keep(directory, more).stderr(Stdio::piped()).output().expect("run");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains("LS-0937"), "{said}");
    }
    assert!(lasting.0.try_wait().expect("it can be asked").is_none());
    drop(lasting);
    fs::remove_file(directory.join("attached.toml")).expect("removed");
}

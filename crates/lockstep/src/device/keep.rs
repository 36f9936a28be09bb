//! Looking after disks: a new connection for one whose connection broke, a path to a node that came back.
//!
//! The kernel's NBD client asks nobody for a new connection, it only tells that one is dead; requests wait meanwhile. Its NVMe
//! initiator connects anew by itself, but not to a node that was away when the disk was made, and some kernels give up a node
//! that knew nothing of the resource yet when it was asked.
//!
//! Always: one process of a host does it, and one that ends when nothing is attached makes way for one that stays; a disk that is being taken away is left alone; a disk that is there gets its connection also
//! while somebody has the list locked.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::Here;
use super::attached::{Attached, Disk, State, Way};
use super::genl::Family;
use crate::cluster::{USUAL, make_directory};
use crate::problem::{KEPT_ALREADY, Problem};

/// Between two looks at what lacks a path.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Between two tries to give a disk a new connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// NBD disks get a connection offered so often even if nothing was heard of them: a word of the kernel may be lost, and
/// their size is set then.
const OFFER_INTERVAL: Duration = Duration::from_secs(60);

/// Whoever looks after the disks has locked it.
const LOCK: &str = "keep.lock";

/// Which NBD disks may lack a connection.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// By the kernel's names.
    pub(super) disks: BTreeSet<String>,
    /// All of them, as far as is known.
    pub(super) all: bool,
}

/// Looks after all disks that are attached; `while_attached`: until there is none, or somebody does it who stays. Such a one waits for that.
pub(super) fn keep(here: &Here, while_attached: bool) -> Result<(), Problem> {
    let (wanted, wanted_path) = open(here, "keep.wanted")?;
    let mine = if while_attached {
        lock(here)?
    } else {
        match fcntl_lock(&wanted, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(lock_when_free(here)?),
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => None,
            Err(errno) => return Err(Problem::file(&wanted_path, &errno.into())),
        }
    };
    let Some(mut mine) = mine else {
        let message = format!("{}: another process does that", here.directory.display());
        return Err(Problem::new(KEPT_ALREADY, message));
    };
    if while_attached {
        // Whoever started it may end, and its terminal with it.
        rustix::process::setsid().ok();
    }
    let mut family = None;
    let mut broken = Broken { disks: BTreeSet::new(), all: true };
    let mut offered = Instant::now();
    loop {
        if while_attached && is_held(&wanted) {
            return Ok(());
        }
        let disks = Attached::read(&here.directory)?.disks;
        if disks.is_empty() && while_attached {
            match end(here, mine)? {
                Some(still) => {
                    mine = still;
                    continue;
                }
                None => return Ok(()),
            }
        }
        if disks.iter().any(|disk| disk.via == Way::Nbd) && family.is_none() {
            family = listen();
        }
        if offered.elapsed() > OFFER_INTERVAL {
            (broken.all, offered) = (true, Instant::now());
        }
        tend(here, &disks, &mut broken);
        hear(&mut family, &mut broken);
    }
}

/// Gives up the right to look after the disks, unless there is one by now: who attaches a disk writes it down, and then sees whether
/// somebody looks after it. The list is locked until it can be seen that nobody does.
pub(super) fn end(here: &Here, mine: File) -> Result<Option<File>, Problem> {
    let attached = Attached::open(&here.directory)?;
    if !attached.disks.is_empty() {
        return Ok(Some(mine));
    }
    drop(mine);
    Ok(None)
}

/// Starts a process that does it while something is attached, unless one does already.
pub(super) fn ensure(here: &Here) {
    if !matches!(lock(here), Ok(Some(_))) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = Command::new(program);
    command.env_remove("LOCKSTEP_DIR").current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if here.directory.as_os_str() != USUAL {
        command.arg("--dir").arg(&here.directory);
    }
    if let Err(error) = command.args(["device", "keep", "--while-attached"]).spawn() {
        eprintln!("warning: nobody looks after the disk ({error}): run `lockstep device keep`");
    }
}

/// A file beside the list, for locks.
fn open(here: &Here, name: &str) -> Result<(File, PathBuf), Problem> {
    make_directory(&here.directory)?;
    let path = here.directory.join(name);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    Ok((file.map_err(|error| Problem::file(&path, &error))?, path))
}

/// The right to look after the disks; `None` if another process has it.
pub(super) fn lock(here: &Here) -> Result<Option<File>, Problem> {
    let (file, path) = open(here, LOCK)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(Problem::file(&path, &errno.into())),
    }
}

/// The same, when whoever has it has made way.
fn lock_when_free(here: &Here) -> Result<File, Problem> {
    let (file, path) = open(here, LOCK)?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Problem::file(&path, &errno.into())),
        }
    }
}

/// Whether another process holds this file's record lock. Unlike a lock that is tried, the question is in nobody's way.
fn is_held(file: &File) -> bool {
    matches!(fcntl_getlk(file, &Flock::from(FlockType::WriteLock)), Ok(Some(_)))
}

fn listen() -> Option<Family> {
    let family = Family::open().ok()?;
    family.listen().ok()?;
    Some(family)
}

/// Completes what lacks something.
pub(super) fn tend(here: &Here, disks: &[Disk], broken: &mut Broken) {
    let all = std::mem::take(&mut broken.all);
    // What nobody has attached any more is forgotten.
    let heard = std::mem::take(&mut broken.disks);
    for disk in disks.iter().filter(|disk| disk.state == State::Attached) {
        let maker = here.maker(disk.via);
        let name = maker.find(&here.host, disk);
        let told = disk.via == Way::Nbd && name.as_ref().is_some_and(|name| heard.contains(name));
        let is_broken = disk.via == Way::Nbd && (all || told);
        if name.is_some() && !is_broken && !maker.lacks(&here.host, disk) {
            continue;
        }
        let done = match &name {
            // Whoever has the list locked may wait for just this.
            Some(_) if is_broken => {
                let mended = maker.mend(&here.host, disk);
                mended.map_err(|why| format!("{}: {why}", disk.target()))
            }
            _ => {
                let made = here.again(&disk.target(), State::Attached);
                made.map(drop).map_err(|problem| problem.message)
            }
        };
        if let (Err(why), Some(name), Way::Nbd) = (done, name, disk.via) {
            if !told {
                eprintln!("{why}");
            }
            broken.disks.insert(name);
        }
    }
}

/// Waits until the kernel has news, or it is time to look again.
fn hear(family: &mut Option<Family>, broken: &mut Broken) {
    let limit = if broken.disks.is_empty() { LOOK_INTERVAL } else { RETRY_INTERVAL };
    let Some(socket) = family else {
        thread::sleep(limit);
        return;
    };
    match socket.hear(limit) {
        Ok(index) => broken.disks.extend(index.map(|index| format!("nbd{index}"))),
        // Something was not heard.
        Err(sys::Errno::NO_BUFFERS) => broken.all = true,
        Err(_) => (*family, broken.all) = (None, true),
    }
}

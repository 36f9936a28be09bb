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

/// How long to listen for what was told already.
const MOMENT: Duration = Duration::from_millis(1);

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
        tend(here, &disks, &mut broken, |broken| catch_up(&mut family, broken));
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

/// Completes what lacks something. NBD disks come first, and again when `hear` says that there is news of them: others may take
/// long, and wait for the list.
pub(super) fn tend(
    here: &Here,
    disks: &[Disk],
    broken: &mut Broken,
    mut hear: impl FnMut(&mut Broken) -> bool,
) {
    mend(here, disks, broken);
    for disk in disks.iter().filter(|disk| disk.state == State::Attached) {
        let maker = here.maker(disk.via);
        if maker.find(&here.host, disk).is_none() || maker.lacks(&here.host, disk) {
            // What cannot be had yet is tried again.
            here.again(&disk.target(), State::Attached).ok();
        }
        if hear(broken) {
            mend(here, disks, broken);
        }
    }
}

/// Gives NBD disks that are there a connection. Whoever has the list locked may wait for just this.
fn mend(here: &Here, disks: &[Disk], broken: &mut Broken) {
    let all = std::mem::take(&mut broken.all);
    // What nobody has attached any more is forgotten.
    let heard = std::mem::take(&mut broken.disks);
    let is_one = |disk: &&Disk| disk.state == State::Attached && disk.via == Way::Nbd;
    for disk in disks.iter().filter(is_one) {
        let maker = here.maker(Way::Nbd);
        let Some(name) = maker.find(&here.host, disk) else { continue };
        let told = heard.contains(&name);
        if !all && !told {
            continue;
        }
        if let Err(why) = maker.mend(&here.host, disk, told) {
            if !told {
                eprintln!("{}: {why}", disk.target());
            }
            broken.disks.insert(name);
        }
    }
}

/// Takes what the kernel has told meanwhile; whether that was something.
fn catch_up(family: &mut Option<Family>, broken: &mut Broken) -> bool {
    let mut is_news = false;
    while hear_within(family, broken, MOMENT) {
        is_news = true;
    }
    is_news
}

/// Waits until the kernel has news, or it is time to look again.
fn hear(family: &mut Option<Family>, broken: &mut Broken) {
    let limit = if broken.disks.is_empty() { LOOK_INTERVAL } else { RETRY_INTERVAL };
    if family.is_none() {
        thread::sleep(limit);
    }
    hear_within(family, broken, limit);
}

/// Whether there was news.
fn hear_within(family: &mut Option<Family>, broken: &mut Broken, limit: Duration) -> bool {
    let Some(socket) = family else { return false };
    match socket.hear(limit) {
        Ok(None) => return false,
        Ok(Some(index)) => drop(broken.disks.insert(format!("nbd{index}"))),
        // Something was not heard.
        Err(sys::Errno::NO_BUFFERS) => broken.all = true,
        Err(_) => (*family, broken.all) = (None, true),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::attached::{Attached, Way};
    use super::super::tests::{Root, asked, known, puppets, target};
    use super::super::{State, Via};
    use super::{Broken, end, lock, tend};

    #[test]
    fn a_connection_is_given_while_somebody_changes_what_is_attached() {
        let root = Root::of("busy");
        let (here, told) = puppets(&root, [None, None, Some("nbd0")]);
        here.attach(&target("db"), Via::Nbd, known("db")).unwrap();
        asked(&told[2]);
        let disks = Attached::read(&here.directory).unwrap().disks;
        let _held = Attached::open(&here.directory).unwrap();
        let mut broken = Broken::default();
        broken.disks.insert("nbd0".to_owned());
        super::mend(&here, &disks, &mut broken);
        assert_eq!(asked(&told[2]), ["mend db/0"]);
    }

    #[test]
    fn a_connection_is_given_before_other_disks_are_looked_at_and_between_them() {
        let root = Root::of("between");
        let (here, told) = puppets(&root, [None, Some("nvme0n1"), Some("nbd0")]);
        here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
        here.attach(&target("db"), Via::Nbd, known("db")).unwrap();
        told.iter().for_each(|one| drop(asked(one)));
        told[1].borrow_mut().lacks = true;
        let disks = Attached::read(&here.directory).unwrap().disks;
        assert_eq!(disks[0].via, Way::Nvme, "it is the first of the list");
        let mut broken = Broken::default();
        broken.disks.insert("nbd0".to_owned());
        let mut rounds = Vec::new();
        tend(&here, &disks, &mut broken, |broken| {
            rounds.push((asked(&told[1]), asked(&told[2])));
            // It breaks again while the first of the others is looked at.
            rounds.len() == 1 && broken.disks.insert("nbd0".to_owned())
        });
        let said = |text: &str| vec![text.to_owned()];
        assert_eq!(rounds[0], (said("make web/0"), said("mend db/0")));
        assert_eq!(rounds[1], (Vec::new(), said("mend db/0")));
        assert!(broken.disks.is_empty());
    }

    #[test]
    fn who_looks_after_disks_does_not_end_when_one_was_attached_meanwhile() {
        let root = Root::of("end");
        let (here, _) = puppets(&root, [None, None, Some("nbd0")]);
        let mine = lock(&here).unwrap().unwrap();
        // The list was empty when it was read.
        here.attach(&target("db"), Via::Auto, known("db")).unwrap();
        let mine = end(&here, mine).unwrap().expect("there is a disk");
        assert!(lock(&here).unwrap().is_none(), "who attached it starts nobody");
        here.detach(&target("db"), false, State::Leaving).unwrap();
        assert!(end(&here, mine).unwrap().is_none());
        assert!(lock(&here).unwrap().is_some());
    }
}

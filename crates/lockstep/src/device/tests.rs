//! Hosts that are made up: directories as the kernel fills them, and makers that do as they are told.

mod ublk;

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use ::nvme::{TlsNames, TlsPsk};
use rustix::fs::{FlockOperation, flock};
use wire::admin::{Answer, Command, HostDisk};

use super::attached::{Attached, Disk, State, Way};
use super::host::Host;
use super::keep::{self, Broken};
use super::keys;
use super::nvme::Nvme;
use super::openers::number_of;
use super::place::{Target, parse_place, parse_target};
use super::ublk::Ublk;
use super::{Going, Here, Made, Maker, PathState, Unmade, disk_at};
use crate::admin::Node;
use crate::cli::Via;
use crate::problem::{
    ATTACHED_OTHERWISE, DISK_IN_USE, NO_WAY, NOT_ATTACHED, NVME_KEYS, PROTOCOL, Problem,
};

/// A file system of a test, which goes with it.
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn of(name: &str) -> Root {
        let root =
            std::env::temp_dir().join(format!("lockstep-device-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Root(root)
    }

    pub(super) fn put(&self, path: &str, text: &str) {
        put(&self.0, path, text);
    }

    pub(super) fn host(&self) -> Host {
        let number_of = |path: &Path| fs::read_to_string(path).ok();
        Host { root: self.0.clone(), limit: Duration::from_millis(200), number_of }
    }

    /// A process that has one file open, which is the device of that number, on a mount of that kind.
    fn process(&self, number: u32, name: &str, open: &str, mount: &str) {
        let at = |path: &str| format!("proc/{number}/{path}");
        self.put(&at("comm"), &format!("{name}\n"));
        self.put(&at("fd/9"), open);
        self.put(&at("fdinfo/9"), "pos:\t0\nflags:\t0100000\nmnt_id:\t27\nino:\t5\n");
        let line = format!("27 1 0:5 / /dev rw,nosuid shared:2 - {mount} {mount} rw\n");
        self.put(&at("mountinfo"), &line);
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// What a made-up maker was asked, and how it answers.
#[derive(Default)]
pub(super) struct Told {
    asked: Vec<String>,
    /// The disk that it makes; none: it cannot.
    disk: Option<&'static str>,
    is_made: bool,
    cannot_unmake: bool,
    pub(super) lacks: bool,
    is_silent: bool,
    /// What the disk is called from when it was asked for an answer on: each name once, the last first.
    renamed: Vec<&'static str>,
    /// Disks that nobody could take for himself when it was asked to take one away.
    held: Vec<String>,
    /// How often a disk of it was looked for.
    pub(super) sought: usize,
    /// Whether the list was locked when it was asked for an answer.
    was_locked: Option<bool>,
}

struct Puppet(Rc<RefCell<Told>>);

impl Maker for Puppet {
    fn make(&self, host: &Host, disk: &Disk) -> Result<Made, Unmade> {
        let mut told = self.0.borrow_mut();
        told.asked.push(format!("make {}", disk.target()));
        let name = told.disk.ok_or_else(|| "it is not in the mood".to_owned())?;
        put(&host.root, &format!("sys/block/{name}/dev"), "259:7\n");
        put(&host.root, &format!("dev/{name}"), "");
        told.is_made = true;
        Ok(Made { disk: name.to_owned(), why: "it was asked to".to_owned(), id: None })
    }

    fn undo(&self, _: &Host, disk: &Disk, added: &[String]) -> Result<(), String> {
        let mut told = self.0.borrow_mut();
        told.asked.push(format!("undo {} of {}", added.join(" "), disk.target()));
        Ok(())
    }

    fn find(&self, _: &Host, _: &Disk) -> Option<String> {
        let mut told = self.0.borrow_mut();
        told.sought += 1;
        told.disk.filter(|_| told.is_made).map(str::to_owned)
    }

    fn paths(&self, _: &Host, _: &Disk) -> Vec<PathState> {
        Vec::new()
    }

    fn lacks(&self, _: &Host, _: &Disk) -> bool {
        self.0.borrow().lacks
    }

    fn answers(&self, host: &Host, _: &Disk) -> Result<(), String> {
        let lock = fs::File::open(host.at("var/lib/lockstep/attached.lock")).unwrap();
        let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        self.0.borrow_mut().was_locked = Some(!free);
        let renamed = self.0.borrow_mut().renamed.pop();
        if let Some(name) = renamed {
            put(&host.root, &format!("sys/block/{name}/dev"), "259:7\n");
            put(&host.root, &format!("dev/{name}"), "");
            self.0.borrow_mut().disk = Some(name);
        }
        if self.0.borrow().is_silent { Err("nobody answers".to_owned()) } else { Ok(()) }
    }

    fn mend(&self, _: &Host, disk: &Disk, _: bool) -> Result<(), String> {
        self.0.borrow_mut().asked.push(format!("mend {}", disk.target()));
        Ok(())
    }

    fn unmake(&self, _: &Host, disk: &Disk, going: Going) -> Result<(), String> {
        let mut told = self.0.borrow_mut();
        told.asked.push(format!("unmake {} of {}", disk.target(), going.others.len() + 1));
        let open = going.held.into_iter().filter(|one| one.open.is_some());
        told.held = open.map(|one| one.name).collect();
        told.is_made = false;
        if told.cannot_unmake { Err("it hangs".to_owned()) } else { Ok(()) }
    }
}

/// A made-up host with three makers: of ublk, of NVMe, of NBD.
pub(super) fn puppets(
    root: &Root,
    disks: [Option<&'static str>; 3],
) -> (Here, [Rc<RefCell<Told>>; 3]) {
    let told = disks.map(|disk| Rc::new(RefCell::new(Told { disk, ..Told::default() })));
    let [ublk, nvme, nbd] = [0, 1, 2].map(|way: usize| Box::new(Puppet(told[way].clone())));
    let directory = root.0.join("var/lib/lockstep");
    (Here { host: root.host(), ublk, nvme, nbd, directory }, told)
}

pub(super) fn target(text: &str) -> Target {
    parse_target(text).unwrap()
}

pub(super) fn known(text: &str) -> impl FnOnce() -> Result<Disk, Problem> {
    let target = target(text);
    let number = u32::from(target.volume) + 1;
    let place = format!("nvme+tcp://127.77.0.1:4420/nqn.x:{}/{number}", target.resource);
    move || Ok(disk_at(&target, &[parse_place(&place).unwrap()]))
}

pub(super) fn asked(told: &Rc<RefCell<Told>>) -> Vec<String> {
    std::mem::take(&mut told.borrow_mut().asked)
}

fn written(here: &Here) -> Vec<(String, Way, State)> {
    let disks = Attached::read(&here.directory).unwrap().disks;
    disks.iter().map(|disk| (disk.target().to_string(), disk.via, disk.state)).collect()
}

#[test]
fn the_first_way_that_works_is_taken_and_the_others_are_told_of() {
    let root = Root::of("first");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), Some("nbd0")]);
    let answer = here.attach(&target("web"), Via::Auto, known("web")).unwrap();
    assert_eq!((answer.via, answer.already), (Way::Nvme, false));
    assert_eq!(answer.device, root.0.join("dev/lockstep/by-res/web/0"));
    assert_eq!(fs::read_link(&answer.device).unwrap(), Path::new("../../../nvme0n1"));
    let tried: Vec<_> = answer.tried.iter().map(|one| (one.via, one.why.as_str())).collect();
    assert_eq!(tried, [(Way::Ublk, "it is not in the mood")]);
    assert_eq!(asked(&told[0]), ["make web/0"]);
    assert_eq!(asked(&told[2]), [""; 0]);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
}

#[test]
fn a_host_without_a_way_keeps_nothing_of_the_trial() {
    let root = Root::of("none");
    let (here, _) = puppets(&root, [None; 3]);
    let problem = here.attach(&target("web"), Via::Auto, known("web")).unwrap_err();
    assert!(problem.is_kind(NO_WAY), "{problem}");
    assert_eq!(problem.message.matches("not in the mood").count(), 3, "{problem}");
    assert_eq!(written(&here), []);
    assert!(!root.0.join("dev/lockstep/by-res/web").exists());
}

#[test]
fn who_attaches_twice_is_told_of_the_first() {
    let root = Root::of("twice");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), Some("nbd0")]);
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    let again = here.attach(&target("web"), Via::Auto, known("web")).unwrap();
    assert!(again.already && again.via == Way::Nvme && again.tried.is_empty());
    let otherwise = here.attach(&target("web"), Via::Nbd, known("web")).unwrap_err();
    assert!(otherwise.is_kind(ATTACHED_OTHERWISE), "{otherwise}");
    assert_eq!(asked(&told[2]), [""; 0]);
}

#[test]
fn a_name_that_leads_to_another_disk_is_not_taken() {
    let root = Root::of("taken");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    root.put("sys/block/nvme9n1/dev", "259:1\n");
    fs::create_dir_all(root.0.join("dev/lockstep/by-res/web")).unwrap();
    symlink("../../../nvme9n1", root.0.join("dev/lockstep/by-res/web/0")).unwrap();
    let problem = here.attach(&target("web"), Via::Auto, known("web")).unwrap_err();
    assert!(problem.is_kind(ATTACHED_OTHERWISE), "{problem}");
    assert_eq!((written(&here), asked(&told[1])), (vec![], vec![]));
    // One that leads nowhere is left over from a disk that is gone.
    fs::remove_dir_all(root.0.join("sys/block/nvme9n1")).unwrap();
    here.attach(&target("web"), Via::Auto, known("web")).unwrap();
}

#[test]
fn a_resource_that_has_the_name_of_one_that_is_attached_is_refused() {
    let root = Root::of("namesake");
    let (here, _) = puppets(&root, [None, Some("nvme0n1"), None]);
    let of = |id: &str| {
        let disk = Disk { id: Some(id.to_owned()), ..known("web")().unwrap() };
        move || Ok(disk)
    };
    here.attach(&target("web"), Via::Auto, of("a1")).unwrap();
    let problem = here.attach(&target("web"), Via::Auto, of("b2")).unwrap_err();
    assert!(problem.is_kind(ATTACHED_OTHERWISE), "{problem}");
    here.attach(&target("web"), Via::Auto, of("a1")).unwrap();
}

#[test]
fn a_disk_in_use_is_taken_away_by_force_only() {
    let root = Root::of("in-use");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    asked(&told[1]);
    root.put("proc/self/mountinfo", "36 35 259:7 / /srv rw,noatime - ext4 /dev/x rw\n");
    let problem = here.detach(&web, false, State::Leaving).unwrap_err();
    assert!(
        problem.is_kind(DISK_IN_USE) && problem.message.contains("mounted at /srv"),
        "{problem}"
    );
    assert_eq!(asked(&told[1]), [""; 0]);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
    here.detach(&web, true, State::Leaving).unwrap();
    assert_eq!(asked(&told[1]), ["unmake web/0 of 1"]);
    assert_eq!(written(&here), []);
    assert!(fs::read_link(root.0.join("dev/lockstep/by-res/web/0")).is_err());
    assert!(here.detach(&web, false, State::Leaving).unwrap_err().is_kind(NOT_ATTACHED));
}

#[test]
fn what_goes_with_a_disk_may_change_while_it_is_taken_hold_of() {
    let root = Root::of("renamed");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    told[1].borrow_mut().renamed = vec!["nvme2n1", "nvme1n1"];
    here.detach(&web, false, State::Leaving).unwrap();
    assert_eq!(told[1].borrow().held, ["nvme2n1"]);
    here.attach(&web, Via::Auto, known("web")).unwrap();
    told[1].borrow_mut().renamed = vec!["nvme3n1", "nvme4n1", "nvme5n1", "nvme6n1", "nvme7n1"];
    let problem = here.detach(&web, false, State::Leaving).unwrap_err();
    assert!(problem.is_kind(DISK_IN_USE) && problem.message.contains("try again"), "{problem}");
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
}

#[test]
fn a_disk_that_a_program_has_open_is_taken_away_by_force_only() {
    let root = Root::of("open");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    asked(&told[1]);
    root.put("sys/block/nvme0n1/nvme0n1p1/partition", "1\n");
    root.put("sys/block/nvme0n1/nvme0n1p1/dev", "259:8\n");
    root.process(30, "dd", "259:8", "tmpfs");
    let said = || {
        here.detach(&web, false, State::Leaving).map_err(|problem| {
            assert!(problem.is_kind(DISK_IN_USE), "{problem}");
            problem.message
        })
    };
    assert_eq!(said().unwrap_err(), "web/0: /dev/nvme0n1p1 is open: dd (process 30)");
    for number in [4, 100, 200] {
        root.process(number, "fio", "259:7", "devtmpfs");
    }
    assert_eq!(
        said().unwrap_err(),
        "web/0: /dev/nvme0n1 is open: fio (process 4), dd (process 30: /dev/nvme0n1p1), fio (process 100), 1 more"
    );
    assert_eq!(asked(&told[1]), [""; 0]);
    here.detach(&web, true, State::Leaving).unwrap();
    here.attach(&web, Via::Auto, known("web")).unwrap();
    for number in [4, 30, 100, 200] {
        fs::remove_dir_all(root.0.join(format!("proc/{number}"))).unwrap();
    }
    // Another disk; this process itself, which inherits what its shell has open; a server's file, which nobody asks after.
    root.process(5, "qemu", "259:77", "devtmpfs");
    root.process(std::process::id(), "lockstep", "259:7", "devtmpfs");
    root.process(6, "vi", "259:7", "nfs4");
    said().unwrap();
}

#[test]
fn a_program_that_only_looks_at_a_disk_is_waited_for() {
    let root = Root::of("looks");
    let (mut here, _) = puppets(&root, [None, Some("nvme0n1"), None]);
    // It lets go when it was seen once.
    here.host.number_of = |path| {
        let number = fs::read_to_string(path).ok();
        fs::remove_file(path).ok();
        number
    };
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    root.process(30, "(udev-worker)", "259:7", "devtmpfs");
    here.detach(&web, false, State::Leaving).unwrap();
    assert!(!root.0.join("proc/30/fd/9").exists(), "it was seen");
}

#[test]
fn a_real_program_that_has_a_real_device_open_is_found_until_it_ends() {
    let mut nodes = (0..256).map(|number| PathBuf::from(format!("/dev/loop{number}")));
    let host = Host { root: PathBuf::from("/"), limit: Duration::ZERO, number_of };
    let directory =
        |node: &Path| format!("sys/block/{}", node.file_name().unwrap().to_str().unwrap());
    let free = |node: &PathBuf| {
        let directory = directory(node);
        fs::File::open(node).is_ok()
            && host.at(&directory).join("dev").exists()
            && host.opened_by(&[directory]).is_none()
    };
    // The last: whoever else looks for a free one begins with the first.
    let Some(node) = nodes.rfind(free) else {
        return println!("NOT RUN: no loop device can be opened");
    };
    let directories = [directory(&node)];
    let mut child = std::process::Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(fs::File::open(&node).unwrap())
        .spawn()
        .unwrap();
    let said = host.opened_by(&directories).unwrap_or_default();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(said, format!("{} is open: cat (process {})", node.display(), child.id()));
    assert_eq!(host.opened_by(&directories), None);
}

#[test]
fn a_disk_that_does_not_answer_is_taken_away_by_force_only() {
    let root = Root::of("silent");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    told[1].borrow_mut().is_silent = true;
    let problem = here.detach(&web, false, State::Leaving).unwrap_err();
    assert!(
        problem.is_kind(DISK_IN_USE) && problem.message.contains("nobody answers"),
        "{problem}"
    );
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
    assert_eq!(told[1].borrow().was_locked, Some(false), "what is waited for may need the list");
    here.detach(&web, true, State::Leaving).unwrap();
    assert_eq!(written(&here), []);
}

#[test]
fn what_a_crash_left_is_completed_by_attach_and_removed_by_detach() {
    let root = Root::of("crash");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    // It was written down, and not made.
    let line = Disk { via: Way::Nvme, ..known("web")().unwrap() };
    Attached::open(&here.directory).unwrap().put(&line).unwrap();
    let answer = here.attach(&web, Via::Auto, || Err(Problem::new(NO_WAY, "no node"))).unwrap();
    assert!(!answer.already && answer.via == Way::Nvme);
    Attached::open(&here.directory).unwrap().put(&line).unwrap();
    here.detach(&web, false, State::Leaving).unwrap();
    assert_eq!(written(&here), []);
    // It could not be taken away.
    here.attach(&web, Via::Auto, known("web")).unwrap();
    told[1].borrow_mut().cannot_unmake = true;
    assert!(here.detach(&web, false, State::Leaving).unwrap_err().message.contains("it hangs"));
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Leaving)]);
    told[1].borrow_mut().cannot_unmake = false;
    here.detach(&web, false, State::Leaving).unwrap();
    assert_eq!(written(&here), []);
}

#[test]
fn what_is_taken_away_for_now_is_made_again_by_the_next_attach() {
    let root = Root::of("resting");
    let (here, _) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    here.attach(&web, Via::Auto, known("web")).unwrap();
    here.detach(&web, false, State::Resting).unwrap();
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Resting)]);
    assert!(fs::read_link(root.0.join("dev/lockstep/by-res/web/0")).is_err());
    here.attach(&web, Via::Auto, || Err(Problem::new(NO_WAY, "no node"))).unwrap();
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
}

#[test]
fn a_disk_that_lacks_something_is_completed_and_one_that_is_to_go_is_left_alone() {
    let root = Root::of("keep");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), Some("nbd0")]);
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    here.attach(&target("db"), Via::Nbd, known("db")).unwrap();
    for one in &told {
        asked(one);
    }
    let disks = || Attached::read(&here.directory).unwrap().disks;
    let mut broken = Broken::default();
    keep::tend(&here, &disks(), &mut broken, |_| false);
    assert_eq!((asked(&told[1]), asked(&told[2])), (vec![], vec![]), "nothing lacks");

    told[1].borrow_mut().lacks = true;
    broken.disks.extend(["nbd0".to_owned(), "nbd1".to_owned()]);
    keep::tend(&here, &disks(), &mut broken, |_| false);
    assert_eq!(asked(&told[1]), ["make web/0"]);
    assert_eq!(asked(&told[2]), ["mend db/0"]);
    assert!(broken.disks.is_empty(), "one has a connection, the other is none of ours");

    // No node answers yet.
    told[2].borrow_mut().disk = None;
    broken.all = true;
    keep::tend(&here, &disks(), &mut broken, |_| false);
    assert_eq!(asked(&told[2]), ["make db/0"]);

    here.detach(&target("web"), false, State::Resting).unwrap();
    let db = disks().into_iter().find(|disk| disk.resource == "db").unwrap();
    Attached::open(&here.directory).unwrap().put(&Disk { state: State::Leaving, ..db }).unwrap();
    asked(&told[1]);
    broken.all = true;
    keep::tend(&here, &disks(), &mut broken, |_| false);
    assert_eq!((asked(&told[1]), asked(&told[2])), (vec![], vec![]), "they are not to be there");

    // One that went after the list was read is not made anew.
    let before = disks();
    here.detach(&target("db"), false, State::Leaving).unwrap();
    asked(&told[2]);
    let before: Vec<Disk> =
        before.into_iter().map(|disk| Disk { state: State::Attached, ..disk }).collect();
    keep::tend(&here, &before, &mut broken, |_| false);
    assert_eq!((asked(&told[1]), asked(&told[2])), (vec![], vec![]));
}

#[test]
fn a_file_of_another_release_or_with_paths_for_names_is_refused() {
    let root = Root::of("file");
    for text in [
        "version = 2\n",
        "version = 1\nsurprise = 1\n",
        "version = 1\n[[disk]]\nresource = \"../x\"\nvolume = 0\nvia = \"nvme\"\n",
        "version = 1\n[[disk]]\nresource = \"x\"\nvolume = 0\nvia = \"magic\"\n",
        "nonsense",
    ] {
        root.put("attached.toml", text);
        assert!(Attached::read(&root.0).is_err(), "{text:?}");
    }
}

#[test]
fn a_disk_is_in_use_by_a_mounted_part_of_it_a_holder_or_swap() {
    let root = Root::of("users");
    let host = root.host();
    root.put("sys/block/nbd0/dev", "43:0\n");
    root.put("sys/block/nbd0/nbd0p1/partition", "1\n");
    root.put("sys/block/nbd0/nbd0p1/dev", "43:1\n");
    root.put("proc/self/mountinfo", "36 35 43:2 / /other rw - ext4 /dev/nbd0p2 rw\n");
    root.put("proc/swaps", "Filename\tType\n/dev/nbd01  partition\n");
    assert_eq!(host.user_of("nbd0"), None);
    root.put("proc/swaps", "Filename\tType\n/dev/nbd0  partition 1 0 -2\n");
    assert!(host.user_of("nbd0").unwrap().contains("swap"));
    root.put("sys/block/nbd0/holders/dm-3/dev", "");
    root.put("sys/block/dm-3/dev", "254:3\n");
    assert_eq!(host.user_of("nbd0").unwrap(), "/dev/nbd0 is held by /dev/dm-3");
    root.put("sys/block/dm-3/holders/dm-4/dev", "");
    root.put("sys/block/dm-4/dev", "254:4\n");
    root.process(812, "mariadbd", "254:4", "devtmpfs");
    assert_eq!(
        host.user_of("nbd0").unwrap(),
        "/dev/nbd0 is held by /dev/dm-3; /dev/dm-4 is open: mariadbd (process 812)"
    );
    root.put("proc/self/mountinfo", "36 35 43:1 / /part rw - ext4 /dev/nbd0p1 rw\n");
    fs::remove_dir_all(root.0.join("sys/block/nbd0/holders")).unwrap();
    root.put("proc/swaps", "");
    assert!(host.user_of("nbd0").unwrap().contains("mounted at /part"));
}

/// What the kernel does with a line, in a made-up host: a controller, and the disk of each namespace.
fn kernel(host: &Host, line: &str) -> io::Result<String> {
    put(&host.root, "tmp/line", line);
    let value = |key: &str| {
        let word = line.split(',').find_map(|word| word.strip_prefix(key)).expect(key);
        word.to_owned()
    };
    let number = host.names("sys/class/nvme").len();
    let controller = format!("sys/class/nvme/nvme{number}");
    let address = format!("traddr={},trsvcid={}\n", value("traddr="), value("trsvcid="));
    put(&host.root, &format!("{controller}/subsysnqn"), &format!("{}\n", value("nqn=")));
    put(&host.root, &format!("{controller}/address"), &address);
    put(&host.root, &format!("{controller}/state"), "live\n");
    let subsystem = "sys/class/nvme-subsystem/nvme-subsys0";
    put(&host.root, &format!("{subsystem}/subsysnqn"), &format!("{}\n", value("nqn=")));
    for namespace in [1, 2] {
        let name = format!("nvme0n{namespace}");
        put(&host.root, &format!("{subsystem}/{name}/nsid"), &format!("{namespace}\n"));
        put(&host.root, &format!("{subsystem}/nvme0c0n{namespace}/nsid"), "1\n");
        put(&host.root, &format!("dev/{name}"), "");
    }
    Ok(format!("nvme{number}"))
}

/// What the kernel does with a controller that is to go; with the last one go the disks.
fn delete(host: &Host, controller: &str) -> Result<(), String> {
    fs::remove_dir_all(host.at(format!("sys/class/nvme/{controller}"))).unwrap();
    if host.names("sys/class/nvme").is_empty() {
        fs::remove_dir_all(host.at("sys/class/nvme-subsystem")).unwrap();
    }
    Ok(())
}

fn teach(host: &Host, _: &TlsNames, psk: &TlsPsk) -> Result<(), String> {
    put(&host.root, "tmp/taught", &format!("{} of {} bytes", psk.identity, psk.key.len()));
    Ok(())
}

fn reach(address: SocketAddr) -> io::Result<()> {
    match address.port() {
        4420 => Ok(()),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

pub(super) fn nvme_host(name: &str) -> (Root, Nvme) {
    let root = Root::of(name);
    root.put("dev/nvme-fabrics", "");
    root.put("sys/module/nvme_core/parameters/multipath", "Y\n");
    (root, Nvme { connect: kernel, delete, reach, teach, ..Nvme::of_the_kernel() })
}

pub(super) fn nvme_disk(text: &str, places: &[&str]) -> Disk {
    let target = target(text);
    let number = target.volume + 1;
    let url =
        |place: &&str| parse_place(&format!("nvme+tcp://{place}/nqn.x:web/{number}")).unwrap();
    disk_at(&target, &places.iter().map(url).collect::<Vec<_>>())
}

#[test]
fn a_path_is_made_to_every_node_that_is_there_and_the_rest_is_completed_later() {
    let (root, nvme) = nvme_host("paths");
    let host = root.host();
    let early = nvme_disk("web/1", &["127.77.0.1:4420", "127.77.0.2:1"]);
    let made = nvme.make(&host, &early).unwrap();
    assert_eq!(made.disk, "nvme0n2");
    assert!(made.why.contains("1 of 2") && made.why.contains("127.77.0.2:1"), "{}", made.why);
    let disk = nvme_disk("web/1", &["127.77.0.1:4420", "[::1]:4420"]);
    nvme.make(&host, &disk).unwrap();
    let states = nvme.paths(&host, &disk);
    let states: Vec<_> =
        states.iter().map(|one| (one.address.as_str(), one.state.as_str())).collect();
    assert_eq!(states, [("127.77.0.1:4420", "live"), ("[::1]:4420", "live")]);
    assert_eq!(host.names("sys/class/nvme").len(), 2, "no path is made twice");
    assert_eq!(nvme.find(&host, &disk).as_deref(), Some("nvme0n2"));
}

#[test]
fn the_host_has_one_name_for_ever() {
    let (root, nvme) = nvme_host("name");
    let host = root.host();
    nvme.make(&host, &nvme_disk("web", &["127.77.0.1:4420"])).unwrap();
    let (nqn, id) = (host.text("etc/nvme/hostnqn").unwrap(), host.text("etc/nvme/hostid").unwrap());
    assert_eq!(nqn, format!("nqn.2014-08.org.nvmexpress:uuid:{id}"));
    nvme.make(&host, &nvme_disk("web", &["127.77.0.2:4420"])).unwrap();
    let line = host.text("tmp/line").unwrap();
    assert!(line.contains(&format!(",hostnqn={nqn},hostid={id},")), "{line}");
    // One that was given it by other programs is kept, and what it lacks is taken from it.
    fs::remove_file(root.0.join("etc/nvme/hostid")).unwrap();
    root.put(
        "etc/nvme/hostnqn",
        "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427\n",
    );
    nvme.make(&host, &nvme_disk("web", &["127.77.0.3:4420"])).unwrap();
    assert_eq!(host.text("etc/nvme/hostid").unwrap(), "1b4e28ba-2fa1-11d2-883f-0016d3cca427");
}

#[test]
fn without_multipath_or_a_node_in_reach_there_is_no_disk() {
    let (root, nvme) = nvme_host("unfit");
    let host = root.host();
    let why = |disk: &Disk| nvme.make(&host, disk).err().unwrap().why;
    let problem = why(&nvme_disk("web", &["127.77.0.1:1"]));
    assert!(problem.contains("no path could be made: 127.77.0.1:1"), "{problem}");
    root.put("sys/module/nvme_core/parameters/multipath", "N\n");
    let problem = why(&nvme_disk("web", &["127.77.0.1:4420"]));
    assert!(problem.contains("turned off"), "{problem}");
    let nbd_only = disk_at(&target("web"), &[parse_place("nbd://127.77.0.1:10809/web").unwrap()]);
    assert!(why(&nbd_only).contains("node.toml"));
}

#[test]
fn controllers_stay_while_another_volume_of_the_resource_is_attached() {
    let (root, nvme) = nvme_host("share");
    let host = root.host();
    let (first, second) =
        (nvme_disk("web", &["127.77.0.1:4420"]), nvme_disk("web/1", &["127.77.0.1:4420"]));
    nvme.make(&host, &first).unwrap();
    nvme.make(&host, &second).unwrap();
    nvme.unmake(&host, &first, Going { others: vec![second], ..Going::default() }).unwrap();
    assert_eq!(host.names("sys/class/nvme"), ["nvme0"]);
}

/// A host with one volume attached by NVMe, whose subsystem has two.
fn here_with_nvme(root: &Root) -> Here {
    root.put("dev/nvme-fabrics", "");
    root.put("sys/module/nvme_core/parameters/multipath", "Y\n");
    let (here, _) = puppets(root, [None; 3]);
    Here {
        nvme: Box::new(Nvme { connect: kernel, delete, reach, teach, ..Nvme::of_the_kernel() }),
        ..here
    }
}

const SECRET: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const TLS_KEY: &str = "NVMeTLSkey-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// A table of NVMe hosts, which only its owner can read.
fn put_table(root: &Root, text: &str) -> PathBuf {
    let path = root.0.join("nvme-hosts.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_host_proves_who_it_is_by_its_entry_in_a_table() {
    let (root, nvme) = nvme_host("keys");
    root.put("etc/nvme/hostnqn", NQN);
    let others = format!("[[hosts]]\nnqn = \"nqn.other\"\ntls_key = \"{TLS_KEY}\"\n");
    let keys = put_table(
        &root,
        &format!("open = [\"x\"]\n{others}[[hosts]]\nnqn = \"{NQN}\"\nsecret = \"{SECRET}\"\n"),
    );
    let wanted = Disk { keys: Some(keys), ..nvme_disk("web", &["127.77.0.1:4420"]) };
    nvme.make(&root.host(), &wanted).unwrap();
    let line = root.host().text("tmp/line").unwrap();
    assert!(line.ends_with(&format!("ctrl_loss_tmo=-1,dhchap_secret={SECRET}")), "{line}");
    // It is read anew for the next path, and those that are there go on by what it says then.
    root.put("sys/class/nvme/nvme0/dhchap_secret", "DHHC-1:00:before:\n");
    root.put("sys/class/nvme/nvme0/dhchap_ctrl_secret", "none\n");
    let both = format!("secret = \"{SECRET}\"\ncontroller_secret = \"{SECRET}\"\n");
    put_table(&root, &format!("[[hosts]]\nnqn = \"{NQN}\"\n{both}tls_key = \"{TLS_KEY}\"\n"));
    let next = nvme_disk("web", &["127.77.0.1:4420", "[::1]:4420"]);
    nvme.make(&root.host(), &Disk { keys: wanted.keys, ..next }).unwrap();
    let line = root.host().text("tmp/line").unwrap();
    let options = format!(",dhchap_secret={SECRET},dhchap_ctrl_secret={SECRET},tls");
    assert!(line.contains("traddr=::1") && line.ends_with(&options), "{line}");
    let of_first = |file: &str| root.host().text(format!("sys/class/nvme/nvme0/{file}")).unwrap();
    assert_eq!(of_first("dhchap_secret"), SECRET);
    assert_eq!(of_first("dhchap_ctrl_secret"), "none");
    let taught = root.host().text("tmp/taught").unwrap();
    let name = format!("NVMe1R01 {NQN} nqn.x:web ");
    assert!(taught.starts_with(&name) && taught.ends_with(" of 32 bytes"), "{taught}");
}

#[test]
fn a_table_that_says_nothing_of_this_host_or_that_others_can_read_changes_nothing() {
    let root = Root::of("bad-keys");
    let here = here_with_nvme(&root);
    root.put("etc/nvme/hostnqn", NQN);
    let of = |line: &str| format!("[[hosts]]\nnqn = \"{NQN}\"\n{line}\n");
    let cases = [
        (
            format!("[[hosts]]\nnqn = \"nqn.other\"\nsecret = \"{SECRET}\"\n"),
            "has no secret and no key",
        ),
        (of(""), "neither `secret` nor `tls_key`"),
        (of("secret = \"DHHC-1:00:hunter2:\""), "`secret` of nqn."),
        (of("tls_key = \"NVMeTLSkey-1:01:hunter2:\""), "`tls_key` of nqn."),
        (of("secret = hunter2"), "line 3 is not"),
    ];
    for (text, said) in cases {
        let path = put_table(&root, &text);
        let problem = here.keys_at(&path).unwrap_err();
        assert!(problem.is_kind(NVME_KEYS) && problem.message.contains(said), "{said}: {problem}");
        assert!(
            !problem.message.contains("hunter2") && !problem.message.contains("DHHC"),
            "{problem}"
        );
    }
    let path = put_table(&root, &of(&format!("secret = \"{SECRET}\"")));
    assert_eq!(here.keys_at(&path).unwrap(), path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(here.keys_at(&path).unwrap_err().message.contains("chmod 600"));
    fs::remove_file(&path).unwrap();
    assert!(here.keys_at(&path).unwrap_err().message.contains("No such file"));
    assert_eq!(written(&here), []);
}

#[test]
fn the_kernels_keyring_is_found_by_its_name() {
    let keys = "0a1b2c3d I--Q---     1 perm 1f3f0000     0 65534 keyring   _uid.0: empty\n\
                2b3c4d5e I------     1 perm 3f0f0000     0     0 keyring   .nvme: 2\n";
    assert_eq!(keys::ring(keys), Some(0x2b3c_4d5e));
    assert_eq!(keys::ring(""), None);
    assert_eq!(keys::ring("x\n2b3c I-- 1 perm 3f 0 0 psk .nvme: 2\n"), None);
}

#[test]
fn a_key_for_tls_takes_the_place_of_those_before_it() {
    let names = TlsNames { host: NQN.to_owned(), subsystem: "nqn.x:web".to_owned() };
    let line = |number: u32, name: &str| {
        format!("{number:08x} I--Q---     1 perm 3f010000     0     0 psk       {name}: 32\n")
    };
    let new = format!("NVMe1R01 {NQN} nqn.x:web new=");
    let keys = [
        line(1, &format!("NVMe1R01 {NQN} nqn.x:web old=")),
        line(2, &new),
        line(3, &format!("NVMe0R02 {NQN} nqn.x:web")),
        line(4, &format!("NVMe0R01 {NQN} nqn.x:web2")),
        line(5, "NVMe0R01 nqn.other nqn.x:web"),
        line(6, "something else"),
    ];
    assert_eq!(keys::others(&keys.concat(), &names, &new), [1, 3]);
}

#[test]
fn an_attach_that_fails_leaves_what_others_connected_alone() {
    let root = Root::of("not-ours");
    let (here, host) = (here_with_nvme(&root), root.host());
    kernel(&host, "nqn=nqn.x:web,transport=tcp,traddr=127.77.0.1,trsvcid=4420").unwrap();
    root.put("sys/module/nvme_core/parameters/multipath", "N\n");
    let problem = here.attach(&target("web"), Via::Auto, known("web")).unwrap_err();
    assert!(problem.is_kind(NO_WAY) && problem.message.contains("turned off"), "{problem}");
    assert_eq!(host.names("sys/class/nvme"), ["nvme0"]);
    assert_eq!(written(&here), []);
    // What it added itself goes.
    root.put("sys/module/nvme_core/parameters/multipath", "Y\n");
    let absent = nvme_disk("web/9", &["127.77.0.1:4420", "127.77.0.2:4420"]);
    let problem = here.attach(&target("web/9"), Via::Nvme, || Ok(absent)).unwrap_err();
    assert!(problem.message.contains("no namespace 10"), "{problem}");
    assert_eq!((host.names("sys/class/nvme"), written(&here)), (vec!["nvme0".to_owned()], vec![]));
    // Who this host is matters only where a path is to be made.
    fs::remove_dir_all(root.0.join("etc/nvme")).unwrap();
    root.put("etc/nvme", "no directory\n");
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
}

#[test]
fn a_disk_in_use_keeps_the_other_disks_of_its_controllers() {
    let root = Root::of("sibling");
    let (here, host) = (here_with_nvme(&root), root.host());
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    root.put("sys/block/nvme0n2/dev", "259:9\n");
    root.put("proc/self/mountinfo", "36 35 259:9 / /srv rw,noatime - ext4 /dev/x rw\n");
    let problem = here.detach(&target("web"), false, State::Leaving).unwrap_err();
    assert!(problem.is_kind(DISK_IN_USE) && problem.message.contains("nvme0n2"), "{problem}");
    assert_eq!(host.names("sys/class/nvme"), ["nvme0"]);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
}

#[test]
fn a_disk_that_stays_for_another_volume_is_not_said_to_be_gone() {
    let root = Root::of("stays");
    let (here, host) = (here_with_nvme(&root), root.host());
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    here.attach(&target("web/1"), Via::Nvme, known("web/1")).unwrap();
    let stays = here.detach(&target("web"), false, State::Leaving).unwrap();
    assert_eq!(stays.as_deref(), Some("nvme0n1"));
    assert_eq!(here.detach(&target("web/1"), false, State::Leaving).unwrap(), None);
    assert_eq!(host.names("sys/class/nvme"), [""; 0]);
}

#[test]
fn a_disk_of_another_resource_with_the_name_is_not_taken_for_it() {
    let root = Root::of("other-id");
    let (here, host) = (here_with_nvme(&root), root.host());
    let line = Disk { id: Some("a1".to_owned()), ..known("web")().unwrap() };
    Attached::open(&here.directory).unwrap().put(&line).unwrap();
    kernel(&host, "nqn=nqn.x:web,transport=tcp,traddr=127.77.0.1,trsvcid=4420").unwrap();
    root.put("sys/class/nvme/nvme0/serial", "00000000000000b2\n");
    let problem = here.again(&target("web"), State::Attached).unwrap_err();
    assert!(problem.message.contains("another resource of that name"), "{problem}");
    assert_eq!(here.host.linked(&target("web")), None);
    let line = Attached::read(&here.directory).unwrap().disks.remove(0);
    assert_eq!(here.nvme.find(&host, &line), None, "nor is it given the name by udev");
    // The serial number may be the first one's still.
    root.put("sys/class/nvme/nvme0/serial", "00000000000000a1\n");
    root.put("sys/block/nvme0n1/nguid", "00000000-0000-00b2-0000-000000000000\n");
    assert!(here.again(&target("web"), State::Attached).is_err());
    root.put("sys/block/nvme0n1/nguid", "00000000-0000-00a1-0000-000000000000\n");
    here.again(&target("web"), State::Attached).unwrap();
}

#[test]
fn what_was_attached_meanwhile_is_not_taken_away() {
    let root = Root::of("meanwhile");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let web = target("web");
    // It was leaving when the list was read.
    here.attach(&web, Via::Auto, known("web")).unwrap();
    asked(&told[1]);
    here.leave(&web).unwrap();
    assert_eq!((asked(&told[1]), written(&here)[0].2), (vec![], State::Attached));
    let line = Attached::read(&here.directory).unwrap().disks.remove(0);
    let line = Disk { state: State::Leaving, ..line };
    Attached::open(&here.directory).unwrap().put(&line).unwrap();
    here.leave(&web).unwrap();
    assert_eq!((asked(&told[1]), written(&here)), (vec!["unmake web/0 of 1".to_owned()], vec![]));
    here.leave(&web).unwrap();
}

#[test]
fn nobody_can_begin_to_use_a_disk_that_goes() {
    let root = Root::of("held");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    here.attach(&target("web"), Via::Auto, known("web")).unwrap();
    here.detach(&target("web"), false, State::Leaving).unwrap();
    assert_eq!(told[1].borrow().held, ["nvme0n1"]);
    // Whom it is taken away from has it.
    here.attach(&target("web"), Via::Auto, known("web")).unwrap();
    here.detach(&target("web"), true, State::Leaving).unwrap();
    assert_eq!(told[1].borrow().held, [""; 0]);
}

#[test]
fn whose_a_named_place_is_is_written_down_with_it() {
    let root = Root::of("from-id");
    let (here, host) = (here_with_nvme(&root), root.host());
    kernel(&host, "nqn=nqn.x:web,transport=tcp,traddr=127.77.0.1,trsvcid=4420").unwrap();
    root.put("sys/block/nvme0n1/nguid", "00000000-0000-00a1-0000-000000000000\n");
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    let line = Attached::read(&here.directory).unwrap().disks.remove(0);
    assert_eq!(line.id.as_deref(), Some("00000000000000a1"));
    root.put("sys/block/nvme0n1/nguid", "00000000-0000-00b2-0000-000000000000\n");
    let problem = here.attach(&target("web"), Via::Nvme, known("web")).unwrap_err();
    assert!(problem.message.contains("another resource of that name"), "{problem}");
}

#[test]
fn what_was_interrupted_before_it_left_anything_may_be_made_another_way() {
    let root = Root::of("interrupted");
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let line = Disk { via: Way::Ublk, state: State::Making, ..known("web")().unwrap() };
    let put = || Attached::open(&here.directory).unwrap().put(&line).unwrap();
    put();
    let answer = here.attach(&target("web"), Via::Auto, || Err(Problem::new(NO_WAY, "no node")));
    assert_eq!(answer.unwrap().via, Way::Nvme);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
    here.detach(&target("web"), false, State::Leaving).unwrap();
    // Where it has left something that is completed.
    put();
    told[0].borrow_mut().disk = Some("ublkb0");
    told[0].borrow_mut().is_made = true;
    assert_eq!(here.attach(&target("web"), Via::Auto, known("web")).unwrap().via, Way::Ublk);
}

#[test]
fn a_disk_of_which_the_list_knows_nothing_is_taken_up_again() {
    let root = Root::of("list-lost");
    let (here, told) = puppets(&root, [Some("ublkb0"), Some("nvme0n1"), None]);
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    fs::remove_file(here.directory.join("attached.toml")).unwrap();
    let otherwise = here.attach(&target("web"), Via::Ublk, known("web")).unwrap_err();
    assert!(otherwise.is_kind(ATTACHED_OTHERWISE), "{otherwise}");
    let answer = here.attach(&target("web"), Via::Auto, known("web")).unwrap();
    assert!(answer.already && answer.via == Way::Nvme);
    assert_eq!(asked(&told[0]), [""; 0]);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Nvme, State::Attached)]);
}

#[test]
fn what_cannot_be_completed_keeps_nothing_of_the_trial() {
    let root = Root::of("incomplete");
    let (here, host) = (here_with_nvme(&root), root.host());
    let line = Disk { id: None, ..nvme_disk("web/9", &["127.77.0.1:4420"]) };
    Attached::open(&here.directory).unwrap().put(&line).unwrap();
    host.link(&target("web/9"), "nvme7n1").unwrap();
    let problem = here.again(&target("web/9"), State::Attached).unwrap_err();
    assert!(problem.message.contains("no namespace 10"), "{problem}");
    assert_eq!(host.names("sys/class/nvme"), [""; 0]);
    assert_eq!(host.linked(&target("web/9")), None, "it led to another disk");
}

#[test]
fn a_place_of_another_subsystem_is_refused_before_it_is_written_down() {
    let root = Root::of("subsystem");
    let here = here_with_nvme(&root);
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    let before = Attached::read(&here.directory).unwrap().disks;
    let place = parse_place("nvme+tcp://127.77.0.2:4420/nqn.y:web/1").unwrap();
    let other = disk_at(&target("web"), &[place]);
    let problem = here.attach(&target("web"), Via::Auto, || Ok(other)).unwrap_err();
    assert!(problem.is_kind(ATTACHED_OTHERWISE), "{problem}");
    assert_eq!(Attached::read(&here.directory).unwrap().disks, before);
}

#[test]
fn the_list_tells_of_a_disk_that_rests_while_another_volume_keeps_it_there() {
    let root = Root::of("list");
    let here = here_with_nvme(&root);
    here.attach(&target("web"), Via::Nvme, known("web")).unwrap();
    here.attach(&target("web/1"), Via::Nvme, known("web/1")).unwrap();
    here.detach(&target("web"), false, State::Resting).unwrap();
    let disks = Attached::read(&here.directory).unwrap().disks;
    let states: Vec<_> = disks.iter().map(|disk| here.row(disk).state).collect();
    assert_eq!(states, ["resting", "attached"]);
    let making = Disk { state: State::Making, ..disks[1].clone() };
    assert_eq!(here.row(&making).state, "making");
}

#[test]
fn who_waits_tries_again_what_may_be_otherwise_in_a_moment() {
    let (mut tries, long) = (0, Duration::from_secs(3600));
    let mut fails = |kind| {
        tries += 1;
        if tries == 2 { Ok(()) } else { Err(Problem::new(kind, "not yet")) }
    };
    super::patiently(long, || fails(NO_WAY)).unwrap();
    let problem = super::patiently(long, || fails(ATTACHED_OTHERWISE)).unwrap_err();
    assert!(problem.is_kind(ATTACHED_OTHERWISE));
    assert!(super::patiently(Duration::ZERO, || fails(NO_WAY)).is_err());
    assert_eq!(tries, 4);
}

#[test]
fn whose_a_disk_is_is_asked_of_what_makes_disks_of_that_name_only() {
    let root = Root::of("link-of");
    let (here, told) = puppets(&root, [Some("ublkb3"), Some("nvme0n1"), Some("nbd0")]);
    for (name, via) in [("web", Via::Ublk), ("db", Via::Nvme), ("log", Via::Nbd)] {
        here.attach(&target(name), via, known(name)).unwrap();
    }
    for (name, volume) in [("ublkb3", "web"), ("nvme0n1", "db"), ("nbd0", "log")] {
        told.iter().for_each(|one| one.borrow_mut().sought = 0);
        assert_eq!(here.whose(name).unwrap(), Some(target(volume)));
        let sought = told.each_ref().map(|one| one.borrow().sought);
        assert_eq!(sought.iter().sum::<usize>(), 1, "{name}: {sought:?}");
    }
    assert_eq!(here.whose("sda").unwrap(), None);
}

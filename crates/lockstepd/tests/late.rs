//! Disks that come too late, that lose what they had in a cache, and such as were exchanged, under real nodes.

mod harness;

use std::path::PathBuf;
use std::process::Command as Program;

use harness::{Cluster, Volume, content, text};
use sys::{Access, File, OpenOptions};
use wire::admin::{Command, FileStore, FileVolume, StoreKind};

const MIB: u64 = 1 << 20;
const NAME: &str = "alpha";

/// Some requests take longer than anybody waits for, and change the disk only then.
const CHANGES_LATE: &str =
    "[faults]\nseed = 1\nstalls_one_in = 64\nstall_ms = 3000\nstalls_before = true\n";

#[test]
fn what_a_disk_does_late_undoes_nothing_that_was_written_since() {
    let mut cluster = Cluster::new("late-alone", 1);
    cluster.add_settings(1, "disk_late_ms = 1000\nallow_faults = true");
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    cluster.stop(1);
    cluster.append_settings(1, CHANGES_LATE);
    cluster.start(1);
    let mut volume = cluster.open(1, NAME);
    let mut last = 1;
    while volume.write(0, &content(last, 4096)).is_ok() {
        last += 1;
        assert!(last < 10_000, "no write was late");
    }
    // That one may be there or not, and no other that was answered is to make room for it.
    let mut answered = None;
    cluster.wait_for("the late write to end", || {
        last += 1;
        if volume.write(0, &content(last, 4096)).is_ok() {
            answered = Some(last);
        }
        let ended = cluster.log(1).contains("its disk has ended a request that was late");
        if ended { Ok(()) } else { Err("not yet".to_owned()) }
    });
    if let Some(answered) = answered {
        assert!(volume.read(0, 4096).expect("read") == content(answered, 4096));
    }
    cluster.wait_for("writes to go on", || {
        volume.write(0, &content(last + 1, 4096)).map_err(|error| format!("{error:?}"))
    });
}

#[test]
fn the_second_volume_of_another_node_is_refused_though_the_first_is_this_nodes_own() {
    const SECOND: &str = "alpha/1";
    let mut cluster = Cluster::new("exchanged-second", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource(NAME, 8 * MIB, &[1, 2, 3]);
    let second = FileVolume { index: 1, ..file.volumes[0].clone() };
    file.volumes.push(second);
    cluster.create(&file);
    let mut volume = cluster.open(1, SECOND);
    volume.write(0, &content(1, 4096)).expect("written");
    assert!(cluster.stop(2), "in good order");
    volume.write(0, &content(2, 4096)).expect("written without it");
    drop(volume);
    for node in [1, 3] {
        assert!(cluster.stop(node), "in good order");
    }
    let exchange = |cluster: &mut Cluster| {
        let [one, two] = [1, 2].map(|node| cluster.home(node).join("volumes/alpha-1.img"));
        let aside = one.with_extension("aside");
        for (from, to) in [(&one, &aside), (&two, &one), (&aside, &two)] {
            std::fs::rename(from, to).expect("renamed");
        }
        for node in 1..=3 {
            cluster.start(node);
        }
    };
    exchange(&mut cluster);
    for node in [1, 2] {
        let own = cluster.status(node, NAME);
        let refused = own.warnings.iter().any(|warning| warning.contains("LS-0025"));
        assert!(refused, "{:?}", own.warnings);
    }
    for node in 1..=3 {
        assert!(cluster.stop(node), "in good order");
    }
    exchange(&mut cluster);
    assert_eq!(cluster.open(1, SECOND).read(0, 4096).expect("read"), content(2, 4096));
    cluster.wait_in_sync(1, NAME, &[1, 2, 3]);
}

/// The disk of one resource hangs, after so much that a start, and what makes extents hot, is done by then.
const HANGS: &str = "[faults]\nresource = \"alpha\"\nhangs_after_bytes = 1048576\nstall_ms = 3600000\nstalls_before = true\n";

/// KiB of memory that a node's process has.
fn resident_kib(cluster: &Cluster) -> u64 {
    let path = format!("/proc/{}/status", cluster.process(1));
    let text = std::fs::read_to_string(path).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says it");
    let count = line.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    count.expect("a number of KiB")
}

#[test]
fn clients_that_ask_and_leave_have_no_more_memory_at_a_disk_that_hangs_than_such_as_stay() {
    const CLIENTS: usize = 8;
    let mut cluster = Cluster::new("hung-left", 1);
    cluster.add_settings(1, "disk_late_ms = 600000\nallow_faults = true");
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    let mut volume = cluster.open(1, NAME);
    volume.write(0, &content(1, 32 << 20)).expect("written");
    drop(volume);
    assert!(cluster.stop(1), "in good order");
    cluster.append_settings(1, HANGS);
    cluster.start(1);
    let mut volume = cluster.open(1, NAME);
    volume.send_write(32 * MIB, &content(2, 2 << 20));
    cluster.wait_for("the disk to hang", || {
        let mut client = cluster.open(1, NAME);
        client.begin_read(0, 4096);
        if client.hears_something() { Err("it answers".to_owned()) } else { Ok(()) }
    });
    let before = resident_kib(&cluster);
    let gone = |cluster: &Cluster| cluster.log(1).matches("an NBD client went").count();
    let first = gone(&cluster);
    for _ in 0..CLIENTS {
        let mut client = cluster.open(1, NAME);
        client.begin_read(0, 12 << 20);
        assert!(!client.hears_something(), "the disk hangs");
        client.vanish();
    }
    cluster.wait_for("all to be gone", || match gone(&cluster) - first {
        CLIENTS.. => Ok(()),
        count => Err(format!("{count} have gone")),
    });
    let more_kib = resident_kib(&cluster) - before;
    assert!(more_kib < 48 << 10, "{more_kib} KiB for clients that may have 32 MiB together");
}

#[test]
fn a_client_that_asks_a_disk_that_hangs_for_ever_has_a_limited_share_of_memory() {
    const ROUNDS: u64 = 14;
    let mut cluster = Cluster::new("hung-asked", 1);
    cluster.add_settings(1, "disk_late_ms = 1000\nallow_faults = true");
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    cluster.open(1, NAME).write(0, &content(1, 32 << 20)).expect("written");
    assert!(cluster.stop(1), "in good order");
    cluster.append_settings(1, HANGS);
    cluster.start(1);
    let mut hangs = cluster.open(1, NAME);
    hangs.send_write(32 * MIB, &content(2, 2 << 20));
    let mut volume = cluster.open(1, NAME);
    cluster.wait_for("the disk to hang", || match volume.read(0, 4096) {
        Ok(_) => Err("it answers".to_owned()),
        Err(_) => Ok(()),
    });
    let before = resident_kib(&cluster);
    for _ in 0..ROUNDS {
        volume.read(0, 12 << 20).expect_err("the disk hangs");
    }
    let more_kib = resident_kib(&cluster) - before;
    assert!(more_kib < 72 << 10, "{more_kib} KiB for what nobody waits for");
    volume.flush().expect_err("the disk hangs");
}

#[test]
fn a_disk_that_hangs_keeps_no_memory_from_other_disks_of_its_node() {
    const OTHER: &str = "beta";
    let mut cluster = Cluster::new("hung-memory", 3);
    cluster.add_settings(2, "disk_late_ms = 1000\nallow_faults = true");
    for node in 1..=3 {
        cluster.start(node);
    }
    for (id, name) in [(0x1000, NAME), (0x1001, OTHER)] {
        let mut file = cluster.resource(name, 64 * MIB, &[1, 2, 3]);
        file.id = id;
        cluster.create(&file);
    }
    assert!(cluster.stop(2), "in good order");
    cluster.append_settings(2, HANGS);
    cluster.start(2);
    for name in [NAME, OTHER] {
        cluster.wait_in_sync(1, name, &[1, 2, 3]);
    }
    let mut volume = cluster.open(1, NAME);
    for place in 0..16 {
        volume.write(place * MIB, &content(place, 4096)).expect("written");
    }
    // More than there is memory for on the way to that node's disks.
    let count = 128;
    for place in 0..count {
        volume.send_write(place << 17, &content(place, 1 << 17));
    }
    for _ in 0..count {
        volume.take_answer().expect("the others have it");
    }
    cluster.wait_for("the disk to be given up", || {
        let found = cluster.log(2).contains("its disk has not answered");
        if found { Ok(()) } else { Err("not yet".to_owned()) }
    });
    let mut other = cluster.open(1, OTHER);
    for place in 0..8 {
        other.write(place << 17, &content(place, 1 << 17)).expect("written");
    }
    cluster.wait_in_sync(1, OTHER, &[1, 2, 3]);
    assert!(!cluster.log(2).contains("has ended a request that was late"), "it hangs still");
    for node in 1..=3 {
        assert!(
            !cluster.log(node).contains("nothing was heard"),
            "who waits for memory hears nobody"
        );
    }
}

/// A file system of its own that can be frozen: whoever writes to it waits, in the kernel. Thawed and removed at its end.
struct Freezer {
    place: PathBuf,
    device: String,
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    match Program::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        other => {
            println!("NOT RUN: {program} {arguments:?}: {other:?}");
            None
        }
    }
}

impl Freezer {
    /// `None`, and why, where none can be had.
    fn new(home: PathBuf) -> Option<Freezer> {
        let (image, place) = (home.join("freezer.img"), home.join("freezer"));
        std::fs::File::create(&image).and_then(|file| file.set_len(256 * MIB)).expect("an image");
        std::fs::create_dir(&place).expect("a directory");
        said("mkfs.ext4", &["-q", text(&image)])?;
        let device = said("losetup", &["--find", "--show", text(&image)])?;
        let freezer = Freezer { place, device };
        said("mount", &[&freezer.device, text(&freezer.place)])?;
        Some(freezer)
    }

    fn set(&self, flag: &str) {
        said("fsfreeze", &[flag, text(&self.place)]);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        Program::new("fsfreeze").arg("--unfreeze").arg(&self.place).output().ok();
        Program::new("umount").arg("--lazy").arg(&self.place).output().ok();
        Program::new("losetup").args(["--detach", &self.device]).output().ok();
    }
}

/// The other resource of a node of which one has its disk on a file system that can be frozen.
const OTHER: &str = "beta";

/// That node, by this engine. Nothing is given up there for being late.
fn beside_a_freezer(name: &str, io: &str) -> Option<(Cluster, Freezer)> {
    let mut cluster = Cluster::new(name, 1);
    let freezer = Freezer::new(cluster.home(1))?;
    cluster.add_settings(1, "disk_late_ms = 600000");
    cluster.start_with(1, io);
    for (id, name) in [(0x1000, NAME), (0x1001, OTHER)] {
        let mut file = cluster.resource(name, 64 * MIB, &[1]);
        file.id = id;
        if name == NAME {
            file.members[0].stores = vec![FileStore {
                volume: 0,
                kind: StoreKind::File,
                path: Some(text(&freezer.place.join("alpha.img")).to_owned()),
                metadata_path: None,
                keep: false,
            }];
        }
        cluster.create(&file);
    }
    Some((cluster, freezer))
}

/// A client whose writes have hung from now on; more of them than an engine has threads for by itself.
fn hang(cluster: &Cluster, freezer: &Freezer) -> Volume {
    let mut hung = cluster.open(1, NAME);
    hung.write(0, &content(1, 4096)).expect("it makes the extent hot");
    freezer.set("--freeze");
    for place in 1..60 {
        hung.send_write(place << 16, &content(place, 4096));
    }
    hung
}

#[test]
fn a_disk_that_hangs_holds_up_no_other_disk_of_its_node() {
    // What can be had, and what is there where io_uring is forbidden.
    for io in ["", "epoll"] {
        let Some((mut cluster, freezer)) = beside_a_freezer("hung-beside", io) else { return };
        let mut well = cluster.open(1, OTHER);
        let mut hung = hang(&cluster, &freezer);
        for place in 0..32 {
            well.write(place << 16, &content(place, 4096)).expect("written");
            well.flush().expect("flushed");
        }
        freezer.set("--unfreeze");
        for _ in 1..60 {
            hung.take_answer().expect("written after all");
        }
        drop((hung, well));
        assert!(cluster.stop(1), "in good order");
    }
}

#[test]
fn a_node_that_is_stopped_lets_go_of_all_but_a_disk_that_hangs() {
    if harness::usual_threads().is_some_and(|threads| threads > 1) {
        return println!(
            "NOT RUN: what a node's further threads have open goes with its process only"
        );
    }
    // Where its threads hang, and not the kernel's.
    let Some((mut cluster, freezer)) = beside_a_freezer("hung-stop", "epoll") else { return };
    let hung = hang(&cluster, &freezer);
    cluster.open(1, OTHER).write(0, &content(2, 4096)).expect("written");
    cluster.ask(1, Command::Stop { graceful: true }).expect("it takes the order");
    let lock = cluster.home(1).join("lock");
    cluster.wait_for("the node to let go of its directory", || {
        let access = Access::ReadWrite;
        let file = File::open(&lock, OpenOptions { access, ..OpenOptions::default() });
        file.and_then(|file| file.lock()).map_err(|errno| errno.to_string())
    });
    // The kernel lets that process go only when the disk answers.
    cluster.start_with(1, "epoll");
    let log = cluster.log(1);
    assert!(log.contains("alpha: runs without its disk") && log.contains("in use"), "{log}");
    let mut well = cluster.open(1, OTHER);
    assert!(well.read(0, 4096).expect("read") == content(2, 4096));
    well.write(0, &content(3, 4096)).expect("written");
    freezer.set("--unfreeze");
    drop((hung, well));
    assert!(cluster.stop(1), "in good order");
}

/// The disk says once what it lost, and may say it to a write that is durable by itself.
#[test]
fn a_durable_write_that_the_only_copy_failed_fails_the_next_flush_too() {
    let mut cluster = Cluster::new("failed-durable", 1);
    cluster.add_settings(1, "allow_faults = true");
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    cluster.stop(1);
    cluster.append_settings(1, "[faults]\nseed = 1\nwrite_errors_one_in = 6\n");
    cluster.start(1);
    let mut volume = cluster.open(1, NAME);
    let mut fails = |step| volume.write_stably(step * MIB, &content(step, 4096)).is_err();
    assert!((0..60).any(&mut fails), "a write in six fails");
    assert!(volume.flush().is_err(), "what was written before may be gone");
    volume.flush().expect("that was told");
    drop(volume);
    cluster.stop(1);
}

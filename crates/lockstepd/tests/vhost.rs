//! Disks of machines by vhost-user, with a front end of our own; QEMU's, and a machine's kernel: lab `vm-vhost-6.12`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod machine;

use std::path::{Path, PathBuf};

use harness::Cluster;
use machine::{Machine, Want};
use wire::admin::{Answer, Command, Operation, VhostSocket};

const MIB: u64 = 1 << 20;

fn add(cluster: &Cluster, node: u16) -> PathBuf {
    let command = Command::VhostAdd { resource: "alpha".to_owned(), volume: 0, group: None };
    match cluster.ask(node, command) {
        Ok(Answer::VhostSocket(socket)) => PathBuf::from(socket.path),
        other => panic!("no socket: {other:?}"),
    }
}

/// What a node lists.
fn sockets(cluster: &Cluster, node: u16) -> Vec<VhostSocket> {
    match cluster.ask(node, Command::VhostList {}) {
        Ok(Answer::VhostSockets { sockets, .. }) => sockets,
        other => panic!("no list: {other:?}"),
    }
}

/// Whether a machine is there.
fn connected(cluster: &Cluster, node: u16) -> bool {
    sockets(cluster, node).iter().any(|socket| socket.connected)
}

/// A cluster of so many nodes with copies of a volume of 16 MiB, and where a machine gets it.
fn serving(name: &str, count: u16) -> (Cluster, PathBuf) {
    serving_by(name, count, "")
}

/// The same by this way to the system's input and output.
fn serving_by(name: &str, count: u16, io: &str) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::new(name, count);
    let nodes: Vec<u16> = (1..=count).collect();
    for &node in &nodes {
        cluster.start_with(node, io);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &nodes));
    let path = add(&cluster, 1);
    (cluster, path)
}

#[test]
fn a_machine_reads_and_writes_its_disk() {
    reads_and_writes(serving("vhost", 1));
}

#[test]
fn a_machine_reads_and_writes_its_disk_without_io_uring() {
    reads_and_writes(serving_by("vhost-epoll", 1, "epoll"));
}

fn reads_and_writes((cluster, path): (Cluster, PathBuf)) {
    assert!(path.ends_with("vhost/alpha-0.sock"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut machine = Machine::new();
    machine.connect(&path);
    assert_eq!(machine.sectors(), 16 * MIB / 512);
    let written = harness::content(1, 0x8000);
    // Across what the node cuts requests by, by one queue, and read by the other.
    let edge = 2048 - 16;
    assert_eq!(machine.done(1, Want::Write(edge, &written)).0, 0);
    assert_eq!(machine.read(edge, 0x8000), written);
    assert_eq!(machine.done(0, Want::Flush).0, 0);
    let (status, slot) = machine.done(0, Want::Id);
    assert_eq!((status, machine.data(slot, 20)), (0, b"000000000000abcd0000".to_vec()));
    assert_eq!(machine.done(1, Want::Discard(edge, 16)).0, 0);
    assert_eq!(machine.done(0, Want::Zeroes(edge + 16, 8)).0, 0);
    let mut left = vec![0; 24 * 512];
    left.extend_from_slice(&written[24 * 512..]);
    assert_eq!(machine.read(edge, 0x8000), left);
    // Beyond its end, not a whole block, more than a discard may be: an error each, and no more than that.
    assert_eq!(machine.done(0, Want::Read(16 * MIB / 512 - 8, 8192)).0, 1);
    assert_eq!(machine.done(0, Want::Write(1, &written[..4096])).0, 1);
    assert_eq!(machine.done(0, Want::Read(u64::MAX, 4096)).0, 1);
    assert_eq!(machine.done(0, Want::Discard(0, u32::MAX - 7)).0, 1);
    assert_eq!(machine.read(edge, 0x8000), left);
    // Others see what it wrote.
    let mut volume = cluster.open(1, "alpha");
    assert_eq!(volume.read(edge * 512, 0x8000).unwrap(), left);
}

#[test]
fn what_is_larger_than_there_is_memory_for_is_read_and_written_all_the_same() {
    let mut cluster = Cluster::new("vhost-large", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1]));
    let mut machine = Machine::new();
    machine.connect(&add(&cluster, 1));
    // Of the 32 MiB that clients have here one volume takes half; and no piece is whole.
    for (number, bytes) in [(1, 24 << 20), (2, 48 << 20)] {
        let written = harness::content(number, bytes);
        let slot = machine.ask(0, Want::Write(8, &written));
        let beside = machine.ask(1, Want::Write(120 * 1024, &written[..4096]));
        machine.await_answers(1, 1);
        machine.await_answers(0, 1);
        assert_eq!((machine.status(slot), machine.status(beside)), (0, 0));
        assert!(machine.read(8, bytes) == written, "{bytes} bytes are read as they were written");
        assert_eq!(machine.read(120 * 1024, 4096), written[..4096]);
    }
    assert_eq!(machine.read(0, 4096), vec![0; 4096]);
}

#[test]
fn a_machine_hears_that_its_disk_has_grown() {
    let (cluster, path) = serving("vhost-grow", 1);
    let mut machine = Machine::new();
    machine.connect(&path);
    machine.read(0, 4096);
    let operation = Operation::Resize { volume: 0, size_bytes: 24 * MIB, allow_shrink: false };
    cluster.ask(1, Command::Operation { resource: "alpha".to_owned(), operation }).unwrap();
    machine.hear_news();
    assert_eq!(machine.sectors(), 24 * MIB / 512);
    machine.read(20 * MIB / 512, 4096);
}

#[test]
fn what_a_killed_node_had_is_done_by_the_next_in_its_order_and_before_what_is_newer() {
    let (mut cluster, path) = serving("vhost-killed", 2);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    let mut machine = Machine::new();
    machine.connect(&path);
    let content = |number| harness::content(number, 4096);
    assert_eq!(machine.done(0, Want::Write(0, &content(1))).0, 0);
    // Alone it has no majority: what is asked now is taken, and stays.
    cluster.kill(2);
    let slots: Vec<u64> = [2, 3, 4]
        .into_iter()
        .map(|number| machine.ask(0, Want::Write(8 * (number % 2), &content(number))))
        .collect();
    let other = machine.ask(1, Want::Write(800, &content(5)));
    cluster.wait_for("requests that wait", || {
        let open = (machine.recorded(0), machine.recorded(1));
        if open == (3, 1) { Ok(()) } else { Err(format!("{open:?} are open")) }
    });
    assert_eq!((machine.unseen(0), machine.unseen(1)), (0, 0));
    cluster.kill(1);
    // Given while nobody listens, and nobody will be told of it.
    let late = machine.ask(0, Want::Read(8, 4096));
    cluster.start(1);
    machine.connect(&path);
    cluster.start(2);
    machine.await_answers(0, 4);
    machine.await_answers(1, 1);
    for slot in slots.into_iter().chain([other, late]) {
        assert_eq!(machine.status(slot), 0);
    }
    // Of two writes of one block the later one is there, and what is written now comes after both.
    assert_eq!((machine.read(0, 4096), machine.read(8, 4096)), (content(4), content(3)));
    assert_eq!(machine.read(800, 4096), content(5));
    assert_eq!(machine.done(0, Want::Write(0, &content(6))).0, 0);
    assert_eq!(machine.read(0, 4096), content(6));
    assert_eq!((machine.unseen(0), machine.unseen(1)), (0, 0), "nothing is answered twice");
    assert!(cluster.stop(1), "in good order, too");
    cluster.start(1);
    machine.connect(&path);
    assert_eq!(machine.read(0, 4096), content(6));
}

#[test]
fn what_lies_in_a_ring_is_done_once_that_is_served_though_nobody_signals_it_again() {
    let (_cluster, path) = serving("vhost-unsignalled", 1);
    let mut machine = Machine::new();
    // In the ring that is served last: nothing is said after that.
    let written = harness::content(1, 4096);
    let slot = machine.ask(1, Want::Write(0, &written));
    machine.take_kick(1);
    machine.connect(&path);
    machine.await_answers(1, 1);
    assert_eq!((machine.status(slot), machine.read(0, 4096)), (0, written));
}

#[test]
fn a_ring_that_is_to_stand_still_does_so_once_nothing_of_it_is_open() {
    let (mut cluster, path) = serving("vhost-still", 2);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    let mut machine = Machine::new();
    machine.connect(&path);
    machine.read(0, 4096);
    cluster.kill(2);
    let slot = machine.ask(0, Want::Write(0, &harness::content(2, 4096)));
    machine.tell(11, &[0; 8], None);
    cluster.start(2);
    let (body, _) = machine.hear().expect("an answer");
    assert_eq!((machine.status(slot), body), (0, vec![0, 0, 0, 0, 2, 0, 0, 0]));
    assert_eq!(machine.stop_queue(1), 0);
}

/// What a machine, or its QEMU, does wrong.
type Wrong = fn(&mut Machine, &Path);

/// And what the log says of it.
const WRONGS: &[(&str, Wrong)] = &[
    ("not in its memory", |machine, path| {
        machine.connect(path);
        machine.descriptor(0, 0, 1 << 40, 16, 0);
        machine.give(0, 0);
    }),
    ("has no end", |machine, path| {
        machine.connect(path);
        for number in 0..64 {
            machine.descriptor(0, number, 0, 16, 1);
        }
        // The last leads to the first.
        machine.memory.write(16 * 63 + 14, &[0, 0]).unwrap();
        machine.give(0, 0);
    }),
    ("a descriptor of 0 bytes", |machine, path| {
        machine.connect(path);
        machine.descriptor(0, 0, 0, 0, 0);
        machine.give(0, 0);
    }),
    ("there is no descriptor", |machine, path| {
        machine.connect(path);
        machine.give(0, 64);
    }),
    ("more than a ring holds", |machine, path| {
        machine.connect(path);
        machine.memory.store(0x1002, 65).unwrap();
        machine.kick(0);
    }),
    ("message 40 was not offered", |machine, path| {
        machine.open(path);
        machine.tell(40, &[], None);
    }),
    ("too few or too many descriptors", |machine, path| {
        machine.open(path);
        machine.tell(12, &[0; 8], None);
    }),
    ("of another kind", |machine, path| {
        machine.open(path);
        let (_, memory) = sys::SharedMemory::create(4096).unwrap();
        machine.tell(12, &[0; 8], Some(&memory));
    }),
    ("cannot be mapped", |machine, path| {
        machine.open(path);
        let (_, memory) = sys::SharedMemory::create(4096).unwrap();
        let mut table = vec![0; 40];
        (table[0], table[17]) = (1, 0x20);
        machine.tell(5, &table, Some(&memory));
    }),
    ("the record of open requests", |machine, path| {
        machine.open(path);
        let (_, memory) = sys::SharedMemory::create(1 << 20).unwrap();
        let mut shape = vec![0; 24];
        (shape[2], shape[16], shape[18]) = (0x10, 1, 64);
        machine.tell(32, &shape, Some(&memory));
    }),
];

#[test]
fn who_breaks_a_rule_loses_the_own_disk_and_nobody_else() {
    let (cluster, path) = serving("vhost-wrong", 1);
    let beside = cluster.resource("beta", 16 * MIB, &[1]);
    cluster.create(&wire::admin::ResourceFile { id: 0xbeef, ..beside });
    let command = Command::VhostAdd { resource: "beta".to_owned(), volume: 0, group: None };
    let Ok(Answer::VhostSocket(other)) = cluster.ask(1, command) else { panic!("no socket") };
    let mut good = Machine::new();
    good.connect(Path::new(&other.path));
    let kept = harness::content(7, 4096);
    assert_eq!(good.done(0, Want::Write(0, &kept)).0, 0);
    for (why, wrong) in WRONGS {
        let mut machine = Machine::new();
        wrong(&mut machine, &path);
        assert!(machine.is_cut_off(), "{why}");
        cluster.wait_for(why, || {
            let log = cluster.log(1);
            let told = log.lines().any(|line| line.contains("LS-0083") && line.contains(why));
            if told { Ok(()) } else { Err(log) }
        });
    }
    assert_eq!(good.read(0, 4096), kept);
    let mut machine = Machine::new();
    machine.connect(&path);
    assert_eq!(machine.read(0, 4096), vec![0; 4096], "and who behaves has it again");
}

#[test]
fn one_machine_has_a_disk_at_a_time() {
    let (cluster, path) = serving("vhost-one", 1);
    let mut first = Machine::new();
    first.connect(&path);
    let second = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let mut read = std::io::BufReader::new(second);
    let mut text = Vec::new();
    assert_eq!(std::io::Read::read_to_end(&mut read, &mut text).unwrap(), 0, "sent away");
    first.read(0, 4096);
    drop(first);
    let mut third = Machine::new();
    third.connect(&path);
    third.read(0, 4096);
    assert!(connected(&cluster, 1));
    let of = |resource: &str, volume| (resource.to_owned(), volume);
    let (resource, volume) = of("alpha", 0);
    cluster.ask(1, Command::VhostRemove { resource, volume }).unwrap();
    assert!(third.is_cut_off() && !path.exists());
    let refused = |command| cluster.ask(1, command).unwrap_err();
    let (resource, volume) = of("alpha", 0);
    assert!(refused(Command::VhostRemove { resource, volume }).contains("LS-0082"));
    let (resource, volume) = of("alpha", 1);
    assert!(refused(Command::VhostAdd { resource, volume, group: None }).contains("LS-0010"));
    let (resource, volume) = of("beta", 0);
    assert!(refused(Command::VhostAdd { resource, volume, group: None }).contains("LS-0010"));
    let (resource, volume) = of("alpha", 0);
    let group = Some("no such group".to_owned());
    assert!(refused(Command::VhostAdd { resource, volume, group }).contains("LS-0071"));
    assert!(!connected(&cluster, 1));
}

#[test]
fn a_socket_stays_listed_while_the_description_of_its_resource_cannot_be_read() {
    let (mut cluster, path) = serving("vhost-unread", 1);
    cluster.kill(1);
    let described = cluster.home(1).join("resources/alpha.toml");
    let text = std::fs::read(&described).unwrap();
    std::fs::write(&described, "= no description").unwrap();
    cluster.start(1);
    assert_eq!(sockets(&cluster, 1).len(), 1, "nobody said that it is gone");
    cluster.kill(1);
    std::fs::write(&described, text).unwrap();
    cluster.start(1);
    let mut machine = Machine::new();
    machine.connect(&path);
    machine.read(0, 4096);
    drop(machine);
    cluster.kill(1);
    std::fs::remove_file(&described).unwrap();
    cluster.start(1);
    assert_eq!(sockets(&cluster, 1).len(), 0);
}

#[test]
fn a_machine_counts_until_it_comes_back_to_the_next_process() {
    let (mut cluster, path) = serving("vhost-counts", 1);
    let delete = |cluster: &Cluster| {
        let resource = "alpha".to_owned();
        cluster.ask(1, Command::ResourceDelete { resource, force: false, unused: false })
    };
    let mut machine = Machine::new();
    machine.connect(&path);
    machine.read(0, 4096);
    cluster.kill(1);
    cluster.start(1);
    assert!(!connected(&cluster, 1));
    assert!(delete(&cluster).unwrap_err().contains("LS-0015"), "its requests may wait in it");
    machine.connect(&path);
    machine.read(0, 4096);
    assert!(delete(&cluster).unwrap_err().contains("LS-0015"));
    // With another start of the host it went, too.
    cluster.kill(1);
    let list = cluster.home(1).join("vhost.toml");
    let text = std::fs::read_to_string(&list).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(text.contains(boot.trim()), "{text}");
    std::fs::write(&list, text.replace(boot.trim(), "of-another-start")).unwrap();
    cluster.start(1);
    // Nobody has it open.
    cluster.dump(1, "alpha");
    machine.connect(&path);
    machine.read(0, 4096);
    // It counts once, and not any more when it has gone.
    drop(machine);
    cluster.wait_for("an end of the connection", || match connected(&cluster, 1) {
        false => Ok(()),
        true => Err("it is there".to_owned()),
    });
    cluster.kill(1);
    cluster.start(1);
    delete(&cluster).unwrap();
}

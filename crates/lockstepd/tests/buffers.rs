//! Memory that runs out: whoever holds it and does not go on must not keep others from going on.

mod harness;

use harness::{Cluster, Volume, content};
use wire::admin::ResourceFile;

const MIB: u64 = 1 << 20;

/// As little as a node takes.
const LITTLE: &str = "buffer_bytes = 16777216";

/// Nodes 1..=count with little memory.
fn small_cluster(name: &str, count: u16) -> Cluster {
    let mut cluster = Cluster::new(name, count);
    for node in 1..=count {
        cluster.add_settings(node, LITTLE);
        cluster.start(node);
    }
    cluster
}

fn numbered(cluster: &Cluster, number: u64, size: u64, replicas: &[u16]) -> ResourceFile {
    let mut file = cluster.resource(&format!("disk{number}"), size, replicas);
    file.id = 0x1000 + number;
    file
}

/// No session ended because a node did not get to reading what its peer said.
fn assert_nobody_fell_silent(cluster: &Cluster, nodes: u16) {
    for node in 1..=nodes {
        let log = cluster.log(node);
        let silent = log.lines().find(|line| line.contains("nothing was heard"));
        assert_eq!(silent, None, "of node {node}");
    }
}

#[test]
fn what_is_forwarded_to_two_primaries_never_keeps_them_from_hearing_each_other() {
    const VOLUMES: u64 = 12;
    const BYTES: usize = 16 << 20;
    let cluster = small_cluster("forwards", 3);
    // Nodes 1 and 2 are primary of one half each, and everybody else writes there through them.
    let firsts: Vec<_> = (0..VOLUMES)
        .map(|number| {
            cluster.create(&numbered(&cluster, number, 16 * MIB, &[1, 2]));
            let primary = if number % 2 == 0 { 1 } else { 2 };
            let mut volume = cluster.open(primary, &format!("disk{number}"));
            volume.write(0, &content(number, 4096)).expect("written");
            volume
        })
        .collect();
    std::thread::scope(|scope| {
        for number in 0..VOLUMES {
            for node in [3, if number % 2 == 0 { 2 } else { 1 }] {
                let cluster = &cluster;
                scope.spawn(move || {
                    let mut volume = cluster.open(node, &format!("disk{number}"));
                    let bytes = content(number, BYTES);
                    volume.write(0, &bytes).expect("written");
                    let back = volume.read(0, 16 << 20).expect("read");
                    assert!(back == bytes, "volume {number} through node {node}");
                });
            }
        }
    });
    drop(firsts);
    assert_nobody_fell_silent(&cluster, 3);
}

#[test]
fn the_largest_read_is_answered_by_a_node_with_less_memory_than_it_asks_for() {
    let cluster = small_cluster("largest", 1);
    cluster.create(&numbered(&cluster, 0, 64 * MIB, &[1]));
    let mut volume = cluster.open(1, "disk0");
    let bytes = content(1, 32 << 20);
    // Its pieces begin where buffers do, and where none does, so that they take more than it has bytes.
    for at in [0, 4096, (516 << 10) + MIB] {
        volume.write(at, &bytes).expect("written");
        assert!(volume.read(at, 32 << 20).expect("read") == bytes, "from {at} on");
    }
}

#[test]
fn clients_that_ask_nothing_keep_nobody_out() {
    let cluster = small_cluster("idle", 1);
    cluster.create(&numbered(&cluster, 0, 16 * MIB, &[1]));
    let mut clients: Vec<_> = (0..600).map(|_| cluster.open(1, "disk0")).collect();
    let last = clients.last_mut().expect("there are some");
    last.write(0, &content(1, 1 << 20)).expect("written");
    assert!(clients[0].read(0, 1 << 20).expect("read") == content(1, 1 << 20));
}

#[test]
fn clients_that_announce_and_send_nothing_keep_others_waiting_for_a_while_at_most() {
    let cluster = small_cluster("announced", 1);
    for number in 0..2 {
        cluster.create(&numbered(&cluster, number, 16 * MIB, &[1]));
    }
    let mut silent: Vec<_> = (0..100).map(|_| cluster.open(1, "disk0")).collect();
    for client in &mut silent {
        client.begin_write(0, 1 << 20);
    }
    for number in [1, 0] {
        let mut volume = cluster.open(1, &format!("disk{number}"));
        volume.write(0, &content(1, 1 << 20)).expect("written");
        assert!(volume.read(0, 1 << 20).expect("read") == content(1, 1 << 20));
    }
}

#[test]
fn clients_that_take_no_answers_keep_others_waiting_for_a_while_at_most() {
    let cluster = small_cluster("slow", 2);
    for number in 0..2 {
        cluster.create(&numbered(&cluster, number, 32 * MIB, &[1, 2]));
        let mut volume = cluster.open(1, &format!("disk{number}"));
        volume.write(0, &content(1, 32 << 20)).expect("written");
    }
    let mut slow: Vec<_> = (0..8).map(|_| cluster.open(1, "disk0")).collect();
    for client in &mut slow {
        client.begin_read(0, 32 << 20);
    }
    // What peers and disks need is not theirs; and what others of the same volume need, not for ever.
    for (node, number) in [(2, 1), (1, 1), (1, 0)] {
        let mut volume = cluster.open(node, &format!("disk{number}"));
        volume.write(0, &content(2, 1 << 20)).expect("written");
        assert!(volume.read(0, 1 << 20).expect("read") == content(2, 1 << 20));
    }
    assert_nobody_fell_silent(&cluster, 2);
}

#[test]
fn a_client_of_another_thread_that_takes_no_answers_keeps_others_waiting_for_a_while_at_most() {
    let mut cluster = Cluster::new("apart", 1);
    cluster.add_settings(1, LITTLE);
    cluster.add_settings(1, "threads = 2");
    cluster.start(1);
    // One shard each, and so a thread of its own.
    for number in 0..2 {
        let file = ResourceFile { shards: 1, ..numbered(&cluster, number, 32 * MIB, &[1]) };
        cluster.create(&file);
        let mut volume = cluster.open(1, &file.name);
        volume.write(0, &content(1, 32 << 20)).expect("written");
    }
    let mut slow = cluster.open(1, "disk0");
    slow.begin_read(0, 32 << 20);
    slow.take_some();
    // More than it leaves.
    let mut volume = cluster.open(1, "disk1");
    assert!(volume.read(0, 32 << 20).expect("read") == content(1, 32 << 20));
}

/// A node whose volume has no memory left for clients until the second of these two goes, and holds `content(1, _)`.
fn without_memory(name: &str) -> (Cluster, Volume, Volume) {
    let cluster = small_cluster(name, 1);
    // All of an answer leaves in one go only where one thread has all of it.
    cluster.create(&ResourceFile { shards: 1, ..numbered(&cluster, 0, 64 * MIB, &[1]) });
    let mut volume = cluster.open(1, "disk0");
    volume.write(0, &content(1, 32 << 20)).expect("written");
    let mut slow = cluster.open(1, "disk0");
    slow.begin_read(0, 32 << 20);
    // Once a part is there, all of it has its room, and nobody else of this volume gets any.
    slow.take_some();
    (cluster, volume, slow)
}

#[test]
fn what_a_client_left_that_waited_for_memory_is_not_carried_out() {
    let (cluster, mut volume, slow) = without_memory("left");
    let mut left = cluster.open(1, "disk0");
    left.send_write(0, &content(2, 4096));
    left.vanish();
    drop(slow);
    // The first answer tells that there is memory again.
    for _ in 0..2 {
        assert!(volume.read(0, 4096).expect("read") == content(1, 4096));
    }
}

/// Its connection may have ended long ago, and that be lost on its way.
#[test]
fn what_a_client_that_moves_sent_and_lay_unread_for_long_is_not_carried_out() {
    let (cluster, mut volume, slow) = without_memory("unread");
    let mut moves = cluster.open(1, "disk0?moves");
    moves.send_write(0, &content(2, 4096));
    // From then on it may have asked elsewhere.
    std::thread::sleep(std::time::Duration::from_millis(4500));
    drop(slow);
    for _ in 0..2 {
        assert!(volume.read(0, 4096).expect("read") == content(1, 4096));
    }
    assert!(moves.read(0, 4096).is_err(), "its connection ends");
}

#[test]
fn clients_of_a_volume_without_quorum_keep_no_other_volume_waiting() {
    let mut cluster = small_cluster("stuck", 2);
    cluster.create(&numbered(&cluster, 0, 16 * MIB, &[1, 2]));
    cluster.create(&numbered(&cluster, 1, 16 * MIB, &[1]));
    let mut first = cluster.open(1, "disk0");
    first.write(0, &content(1, 16 << 20)).expect("written");
    cluster.kill(2);
    // From then on what is read waits for a lease, too.
    cluster.wait_for("the lease to end", || match cluster.status(1, "disk0").lease_left_ms {
        None | Some(0) => Ok(()),
        Some(left) => Err(format!("{left} ms are left")),
    });
    let mut stuck: Vec<_> = (0..100).map(|_| cluster.open(1, "disk0")).collect();
    let (readers, writers) = stuck.split_at_mut(20);
    for (number, client) in (0..).zip(readers) {
        client.begin_read(number % 16 * MIB, 1 << 20);
    }
    for (number, client) in (0..).zip(writers) {
        client.send_write(number % 16 * MIB, &content(number, 64 << 10));
        client.begin_write(0, 1 << 20);
    }
    let mut volume = cluster.open(1, "disk1");
    volume.write(0, &content(1, 1 << 20)).expect("written");
    assert!(volume.read(0, 1 << 20).expect("read") == content(1, 1 << 20));
    cluster.start(2);
    first.write(0, &content(2, 4096)).expect("written, now that there is a quorum");
}

#[test]
fn more_requests_than_a_thread_can_have_under_way_fail_on_no_disk() {
    // 128 requests are what one client may have open: 20 480 in all, in one extent of each volume.
    const VOLUMES: u64 = 20;
    const CLIENTS: u64 = 8;
    let mut cluster = Cluster::new("many", 1);
    cluster.start(1);
    let mut clients = Vec::new();
    for number in 0..VOLUMES {
        cluster.create(&numbered(&cluster, number, 4 * MIB, &[1]));
        let mut volume = cluster.open(1, &format!("disk{number}"));
        volume.write(0, &content(number, 4096)).expect("written");
        clients.extend((1..CLIENTS).map(|_| cluster.open(1, &format!("disk{number}"))));
        clients.push(volume);
    }
    // All of it is there when the node looks.
    cluster.signal(1, "STOP");
    for (number, client) in (0..).zip(&mut clients) {
        for place in 0..128 {
            client.begin_trim((number % CLIENTS * 128 + place) * 4096, 4096);
        }
    }
    cluster.signal(1, "CONT");
    for client in &mut clients {
        for _ in 0..128 {
            client.take_answer().expect("the disk is well");
        }
    }
    assert!(!cluster.log(1).contains("failed a request"));
}

#[test]
fn clients_that_were_held_back_for_a_peer_go_on_when_it_is_gone() {
    // More than may wait for one peer.
    const WRITERS: u64 = 12;
    let mut cluster = Cluster::new("held", 3);
    cluster.add_settings(1, "buffer_bytes = 2147483648");
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource("disk", 512 * MIB, &[1, 2, 3]);
    // It is given up when its connection is, with all that waits for it.
    file.timing.peer_late_ms = 60_000;
    cluster.create(&file);
    let mut reader = cluster.open(1, "disk");
    reader.write(0, &content(0, 4096)).expect("written");
    cluster.wait_in_sync(1, "disk", &[1, 2, 3]);
    let writers: Vec<_> = (0..WRITERS).map(|_| cluster.open(1, "disk")).collect();
    cluster.signal(3, "STOP");
    let bytes = content(1, 32 << 20);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..)
            .zip(writers)
            .map(|(number, mut volume)| {
                let bytes = &bytes;
                scope.spawn(move || {
                    volume.write(number * 32 * MIB, bytes).expect("written by the others");
                })
            })
            .collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            reader.read(0, 4096).expect("read");
        }
    });
    assert!(reader.read(0, 4096).expect("read") == content(0, 4096));
    cluster.signal(3, "CONT");
    assert!(cluster.log(1).contains("nothing was heard for 5 seconds"));
}

#[test]
fn a_node_without_descriptors_waits_for_some_and_says_so_once_in_a_while() {
    let mut cluster = Cluster::new("files", 1);
    let mut command = std::process::Command::new("sh");
    let node = env!("CARGO_BIN_EXE_lockstepd");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", node]);
    cluster.start_by(1, command);
    cluster.create(&numbered(&cluster, 0, 4 * MIB, &[1]));
    let address = format!("{}:10809", cluster.address(1));
    let connect = || std::net::TcpStream::connect(&address).expect("the kernel takes it");
    let visitors: Vec<_> = (0..80).map(|_| connect()).collect();
    let said = |cluster: &Cluster| cluster.log(1).matches("failed, tried again").count();
    cluster.wait_for("it is said", || match said(&cluster) {
        0 => Err("nothing is said".to_owned()),
        _ => Ok(()),
    });
    drop(visitors);
    cluster.open(1, "disk0").write(0, &content(1, 4096)).expect("written");
    assert!(said(&cluster) < 50, "{} times", said(&cluster));
}

#[test]
fn a_client_that_asks_on_and_takes_no_answers_harms_nobody_else() {
    let mut cluster = Cluster::new("flood", 1);
    cluster.start(1);
    cluster.create(&numbered(&cluster, 0, 4 * MIB, &[1]));
    let mut other = cluster.open(1, "disk0");
    let mut deaf = cluster.open(1, "disk0");
    deaf.flood(1_000_000);
    other.write(3 * MIB, &content(1, 4096)).expect("written");
    other.flush().expect("flushed");
    assert!(other.read(3 * MIB, 4096).expect("read") == content(1, 4096));
    let log = cluster.log(1);
    assert!(!log.contains("failed a request") && !log.contains("No buffer space"), "{log}");
}

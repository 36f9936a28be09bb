//! Nodes with several threads: shards of one volume on each, also where two nodes have not as many.

mod harness;

use harness::{Cluster, content};
use wire::admin::{Command, Operation};

const MIB: u64 = 1 << 20;

/// Extents are dealt to shards in runs of this length.
const RUN: u64 = 124 * MIB;

/// Three nodes with so many threads each, and a volume of so many shards on all of them.
fn cluster(name: &str, threads: [u16; 3], shards: u16) -> Cluster {
    let mut cluster = Cluster::new(name, 3);
    for (node, threads) in (1..).zip(threads) {
        cluster.add_settings(node, &format!("threads = {threads}"));
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", RUN * u64::from(shards) + 2 * MIB, &[1, 2, 3]);
    file.shards = shards;
    cluster.create(&file);
    cluster
}

/// Every piece of this begins in one shard's run and ends in the next.
fn across_runs(shards: u16) -> impl Iterator<Item = u64> {
    (1..=u64::from(shards)).map(|run| run * RUN - MIB / 2)
}

fn write_all(volume: &mut harness::Volume, shards: u16, seed: u64) {
    for at in across_runs(shards) {
        volume.write(at, &content(seed + at, 1 << 20)).expect("written");
    }
    volume.flush().expect("flushed");
}

fn check_all(volume: &mut harness::Volume, shards: u16, seed: u64) {
    for at in across_runs(shards) {
        let read = volume.read(at, 1 << 20).expect("read");
        assert!(read == content(seed + at, 1 << 20), "at {at} is what was written");
    }
}

fn assert_equal(cluster: &Cluster) {
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
}

/// Writes on two nodes, a replica that misses something, a primary that dies, all of them stopped.
fn live_through_everything(name: &str, threads: [u16; 3], shards: u16) {
    let mut cluster = cluster(name, threads, shards);
    let mut first = cluster.open(1, "alpha");
    write_all(&mut first, shards, 1);
    let mut second = cluster.open(2, "alpha");
    check_all(&mut second, shards, 1);
    write_all(&mut second, shards, 2);
    check_all(&mut first, shards, 2);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(3);
    write_all(&mut first, shards, 3);
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(1);
    check_all(&mut second, shards, 3);
    write_all(&mut second, shards, 4);
    cluster.start(1);
    cluster.wait_in_sync(2, "alpha", &[1, 2, 3]);
    drop((first, second));
    assert_equal(&cluster);
    for node in 1..=3 {
        assert!(cluster.stop(node), "node {node} stops in good order");
    }
    for node in 1..=3 {
        let image = cluster.home(node).join("volumes/alpha-0.img");
        assert!(harness::run_status(&["check", harness::text(&image)]), "what it left is good");
    }
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut volume = cluster.open(3, "alpha");
    check_all(&mut volume, shards, 4);
}

#[test]
fn two_threads_with_two_shards_serve_fail_over_resync_and_stop() {
    live_through_everything("threads-2", [2, 2, 2], 2);
}

#[test]
fn nodes_that_have_not_as_many_threads_understand_each_other() {
    live_through_everything("threads-mixed", [1, 2, 4], 4);
}

#[test]
fn more_threads_than_shards_and_more_shards_than_threads_do() {
    live_through_everything("threads-few", [4, 2, 4], 3);
}

#[test]
fn what_an_operator_does_reaches_the_shards_of_all_threads() {
    let mut cluster = cluster("threads-operator", [2, 2, 2], 2);
    let mut volume = cluster.open(1, "alpha");
    write_all(&mut volume, 2, 1);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let operate = |cluster: &Cluster, node, operation| {
        let resource = "alpha".to_owned();
        cluster.ask(node, Command::Operation { resource, operation })
    };
    for operation in [Operation::Cut {}, Operation::Verify { anew: false }, Operation::Suspend {}] {
        let words = format!("{operation:?}");
        assert!(operate(&cluster, 1, operation).is_ok(), "{words}");
    }
    assert!(operate(&cluster, 1, Operation::Resume {}).is_ok());
    assert!(operate(&cluster, 2, Operation::Promote {}).is_ok());
    check_all(&mut volume, 2, 1);
    write_all(&mut volume, 2, 2);
    drop(volume);
    // With its only client there, node 2 stays primary from here to the end of the resync.
    let mut volume = cluster.open(2, "alpha");
    check_all(&mut volume, 2, 2);
    assert!(operate(&cluster, 2, Operation::Promote {}).is_ok());
    assert!(operate(&cluster, 3, Operation::Invalidate {}).is_ok());
    cluster.wait_in_sync(2, "alpha", &[1, 2, 3]);
    // Its shards hear a moment after its member that node 3 is in sync.
    let mut copied = None;
    cluster.wait_for("the end of the resync", || {
        let last_resync = cluster.status(2, "alpha").replicas[2].last_resync;
        copied = last_resync.map(|done| done.copied_bytes);
        copied.map(drop).ok_or_else(|| "none is told of".to_owned())
    });
    assert!(copied >= Some(2 * MIB), "{copied:?} bytes are less than both shards have");
    drop(volume);
    assert_equal(&cluster);
    for node in 1..=3 {
        let resource = "alpha".to_owned();
        cluster
            .ask(node, Command::ResourceDelete { resource, force: true, unused: false })
            .expect("deleted");
    }
    let mut file = cluster.resource("beta", 2 * RUN, &[1, 2, 3]);
    file.id = 0xbeef;
    file.shards = 2;
    cluster.create(&file);
    let mut volume = cluster.open(2, "beta");
    volume.write(RUN, &content(9, 4096)).expect("written");
    assert_eq!(volume.read(RUN, 4096).expect("read"), content(9, 4096));
    drop(volume);
    assert!(cluster.stop(1));
}

#[test]
fn space_beyond_a_smaller_end_is_given_back_by_the_threads_whose_it_was() {
    use std::os::unix::fs::MetadataExt;
    let cluster = cluster("threads-smaller", [2, 1, 4], 2);
    let mut volume = cluster.open(1, "alpha");
    // In both shards' runs, and below the end that stays.
    for at in [0, 64 * MIB, RUN + 64 * MIB] {
        for step in 0..8 {
            volume.write(at + step * MIB, &content(at + step, 1 << 20)).expect("written");
        }
    }
    volume.flush().expect("flushed");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let blocks = |node: u16| {
        let image = cluster.home(node).join("volumes/alpha-0.img");
        std::fs::metadata(image).expect("it is there").blocks() * 512
    };
    let full: Vec<u64> = (1..=3).map(blocks).collect();
    if full.iter().any(|&bytes| bytes >= RUN) {
        println!("NOT RUN: the file system keeps no holes");
        return;
    }
    let resize = |size_bytes| {
        let operation = Operation::Resize { volume: 0, size_bytes, allow_shrink: true };
        let resource = "alpha".to_owned();
        cluster.ask(1, Command::Operation { resource, operation }).expect("resized");
    };
    resize(16 * MIB);
    for (node, full) in (1..=3).zip(full) {
        cluster.wait_for("the space of both shards to be given back", || {
            let left = blocks(node);
            if left + 15 * MIB <= full { Ok(()) } else { Err(format!("{left} of {full}")) }
        });
    }
    resize(RUN * 2);
    let mut read = Vec::new();
    cluster.wait_for("the larger size", || {
        volume.read(RUN + 64 * MIB, 1 << 20).map(|bytes| read = bytes)
    });
    assert!(read.iter().all(|&byte| byte == 0), "what was cut off is gone");
    assert!(volume.read(0, 1 << 20).expect("read") == content(0, 1 << 20), "what stayed is there");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    drop(volume);
    assert_equal(&cluster);
}

/// On which thread a node says that its clients are at home, one after the other.
fn homes(cluster: &Cluster, node: u16) -> Vec<String> {
    let log = cluster.log(node);
    let home = |line: &str| Some(line.split_once("is at home on thread ")?.1.to_owned());
    log.lines().filter_map(home).collect()
}

#[test]
fn a_client_is_at_home_with_the_only_shard_and_by_turns_where_there_are_several() {
    let one = cluster("threads-home", [2, 1, 1], 1);
    // The number of its resource is odd: so is that of the thread with its first shard.
    let mut volumes = [one.open(1, "alpha"), one.open(1, "alpha")];
    for (at, volume) in (0..).zip(&mut volumes) {
        volume.write(at * MIB, &content(at, 4096)).expect("written");
    }
    assert_eq!(volumes[0].read(MIB, 4096).expect("read"), content(1, 4096));
    assert_eq!(homes(&one, 1), ["1", "1"]);
    assert_eq!(one.status(1, "alpha").clients, 2);
    drop(volumes);
    one.wait_for("both to be counted out", || match one.status(1, "alpha").clients {
        0 => Ok(()),
        clients => Err(format!("{clients} are there")),
    });
    drop(one);
    let two = cluster("threads-homes", [4, 1, 1], 4);
    let mut volumes: Vec<_> = (0..5).map(|_| two.open(1, "alpha")).collect();
    for (at, volume) in (0..).zip(&mut volumes) {
        volume.write(at * RUN, &content(at, 4096)).expect("written");
    }
    for (at, volume) in (0..).zip(&mut volumes) {
        let at = (at + 1) % 5;
        assert_eq!(volume.read(at * RUN, 4096).expect("read"), content(at, 4096));
    }
    // The fourth is at home where it came in.
    let mut seen = homes(&two, 1);
    seen.sort();
    assert_eq!(seen, ["1", "1", "2", "3"]);
}

#[test]
fn queues_of_hosts_are_at_home_by_turns_too() {
    let address = |cluster: &Cluster| format!("{}:4420", cluster.address(1));
    let mut cluster = Cluster::new("threads-queues", 1);
    cluster.add_settings(1, &format!("nvme = \"{}\"", address(&cluster)));
    cluster.add_settings(1, "threads = 4");
    cluster.start(1);
    let mut file = cluster.resource("alpha", RUN * 4, &[1]);
    file.shards = 4;
    cluster.create(&file);
    let place = address(&cluster).parse().expect("an address");
    let names = client::discover(place, harness::PATIENCE).expect("it is told");
    let open = |_| {
        client::NvmeVolume::open(place, &names[0], 1, false, harness::PATIENCE)
            .expect("it connects")
    };
    let mut hosts: Vec<_> = (0..4).map(open).collect();
    for (at, host) in (0..).zip(&mut hosts) {
        host.write(at * RUN, &content(at, 4096)).expect("written");
    }
    let mut read = [0; 4096];
    for (at, host) in (0..).zip(&mut hosts) {
        let at = (at + 1) % 4;
        host.read(at * RUN, &mut read).expect("read");
        assert_eq!(read[..], content(at, 4096));
    }
    let mut seen = homes(&cluster, 1);
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["1", "2", "3"], "each other thread has a queue");
}

/// With protocol B the memory of a process counts as its cache does, so that the end of both replicas is the loss of all.
#[test]
fn what_one_client_was_told_is_gone_for_clients_of_all_threads() {
    let mut cluster = Cluster::new("threads-told", 3);
    cluster.add_settings(3, "threads = 4");
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", RUN * 4, &[1, 2]);
    (file.shards, file.options.protocol) = (4, wire::Protocol::B);
    cluster.create(&file);
    let mut clients: Vec<_> = (0..4).map(|_| cluster.open(3, "alpha")).collect();
    clients[0].write(0, &content(1, 4096)).expect("written");
    clients[0].flush().expect("flushed");
    for node in 1..=2 {
        cluster.kill(node);
    }
    for node in 1..=2 {
        cluster.start(node);
    }
    for (at, client) in clients.iter_mut().enumerate() {
        assert!(client.read(0, 4096).is_err(), "client {at} may be of the program that was told");
    }
    let mut anew = cluster.open(3, "alpha");
    assert!(anew.read(0, 4096).expect("read") == content(1, 4096), "what was flushed is there");
}

#[test]
fn a_flush_that_one_thread_was_failed_counts_for_no_other() {
    flush_with_two_shards("told-once", 2);
}

#[test]
fn a_flush_that_one_shard_was_failed_counts_for_no_other_of_its_thread() {
    flush_with_two_shards("told-once-alone", 1);
}

fn flush_with_two_shards(name: &str, threads: u16) {
    const TOLD: &str = "somebody else was told that its disk lost what was not flushed";
    let mut cluster = Cluster::new(name, 1);
    cluster.add_settings(1, &format!("allow_faults = true\nthreads = {threads}"));
    cluster.append_settings(1, "[faults]\nseed = 1\nflush_errors_one_in = 8\n");
    cluster.start(1);
    let mut file = cluster.resource("alpha", 64 * MIB, &[1]);
    file.shards = 2;
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    // Each shard is asked for each: one that fails alone makes the other's next one fail.
    let failed = (0..60).filter(|_| volume.flush().is_err()).count();
    let told = cluster.log(1).matches(TOLD).count();
    assert!(told > 0 && failed > 0, "{told} told of {failed}");
    drop(volume);
    cluster.stop(1);
}

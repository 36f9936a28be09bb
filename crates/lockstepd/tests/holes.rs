//! Holes as clients see them, with real processes and a real client.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use harness::{Cluster, find_program, run};

const MIB: u64 = 1 << 20;

/// Bytes that are said to be holes, and bytes in all.
fn map(uri: &str) -> (u64, u64) {
    let (mut holes, mut all) = (0, 0);
    for line in run("nbdinfo", &["--map", uri]).lines() {
        let mut words = line.split_whitespace();
        let _offset = words.next();
        let length: u64 = words.next().unwrap().parse().unwrap();
        all += length;
        holes += if line.contains("hole") { length } else { 0 };
    }
    (holes, all)
}

/// Bytes that a node's store of the volume takes on its file system.
fn room(cluster: &Cluster, node: u16) -> u64 {
    let store = cluster.home(node).join("volumes/alpha-0.img");
    std::os::unix::fs::MetadataExt::blocks(&store.metadata().unwrap()) * 512
}

/// Whether the temporary directory's file system keeps holes.
fn keeps_holes(cluster: &Cluster) -> bool {
    let probe = cluster.home(1).join("probe");
    std::fs::File::create(&probe).unwrap().set_len(16 * MIB).unwrap();
    let keeps = std::os::unix::fs::MetadataExt::blocks(&probe.metadata().unwrap()) == 0;
    if !keeps {
        println!("NOT RUN: the file system keeps no holes");
    }
    keeps
}

#[test]
fn what_was_discarded_while_a_replica_was_away_takes_no_room_there_afterwards() {
    let mut cluster = Cluster::new("discards", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    for at in 0..32 {
        volume.write(at * MIB, &harness::content(at, 1 << 20)).unwrap();
    }
    volume.flush().unwrap();
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(3);
    // What is written too says that the rest is not left out for want of anything to do.
    volume.write(40 * MIB, &harness::content(40, 1 << 20)).unwrap();
    volume.trim(0, 32 << 20).unwrap();
    volume.flush().unwrap();
    let before = room(&cluster, 3);
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert!(volume.read(0, 1 << 20).unwrap().iter().all(|&byte| byte == 0));
    drop(volume);
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ");
    if keeps_holes(&cluster) {
        let after = room(&cluster, 3);
        assert!(before >= 32 * MIB && after < 16 * MIB, "{before} bytes before, {after} after");
    }
}

#[test]
fn the_primary_tells_holes_of_its_own_file_and_others_say_it_is_all_data() {
    if !find_program("nbdinfo") || !find_program("nbdcopy") {
        return;
    }
    let mut cluster = Cluster::new("holes", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    let expected = {
        let mut bytes = vec![0_u8; 16 << 20];
        bytes[4 << 20..5 << 20].fill(7);
        bytes[9 << 20..(9 << 20) + 4096].fill(8);
        bytes
    };
    volume.write(4 * MIB, &expected[4 << 20..5 << 20]).unwrap();
    volume.write(9 * MIB, &expected[9 << 20..(9 << 20) + 4096]).unwrap();
    let uri = |node| format!("nbd://{}:10809/alpha", cluster.address(node));
    let (holes, all) = map(&uri(1));
    assert_eq!(all, 16 * MIB);
    assert!(holes <= 15 * MIB - 4096, "what was written is no hole: {holes}");
    assert_eq!(map(&uri(2)), (0, 16 * MIB), "only the primary knows");
    if keeps_holes(&cluster) {
        assert!(holes >= 12 * MIB, "most of it was never written: {holes}");
    }
    for node in 1..=2 {
        let copy = cluster.home(1).join("copy").display().to_string();
        run("nbdcopy", &[&uri(node), &copy]);
        assert!(std::fs::read(&copy).unwrap() == expected, "node {node}");
        std::fs::remove_file(&copy).unwrap();
    }
}

//! Bytes that change on a disk by themselves, with real processes: with checksums nobody reads them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use harness::{Cluster, content};
use wire::admin::{Command, Operation, Rot};

const MIB: u64 = 1 << 20;

#[test]
fn a_read_of_part_of_a_block_that_rotted_gives_what_was_written() {
    read_parts_of_rotten_blocks("rot", 1);
}

#[test]
fn a_thread_beside_the_first_reads_whole_blocks_too() {
    read_parts_of_rotten_blocks("rot-threads", 2);
}

fn read_parts_of_rotten_blocks(name: &str, threads: u16) {
    let mut cluster = Cluster::new(name, 2);
    for node in 1..=2 {
        cluster.add_settings(node, &format!("threads = {threads}"));
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", 8 * MIB, &[1, 2]);
    file.options.data_checksum = true;
    file.volumes[0].block_bytes = 512;
    cluster.create(&file);
    let blocks = content(7, 64 << 10);
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &blocks).unwrap();
    volume.flush().unwrap();
    for (at, node) in [(0, 1), (8, 2)] {
        let image = cluster.home(node).join("volumes").join("alpha-0.img");
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.write_all_at(&[0x5a; 16], MIB + at * 4096 + 1536).unwrap();
        image.sync_all().unwrap();
    }
    for node in [1, 2] {
        let mut volume = cluster.open(node, "alpha");
        for (offset, length) in [(1536, 512), (0, 512), (8 * 4096 + 1536, 512), (512, 60 << 10)] {
            let found = volume.read(MIB + offset, length).unwrap();
            let from = usize::try_from(offset).unwrap();
            let expected = &blocks[from..from + length as usize];
            assert!(found == expected, "node {node}, {length} bytes at {offset}");
        }
    }
}

#[test]
fn rot_that_a_read_finds_is_counted_where_it_was_and_told_in_the_log() {
    for threads in [1, 2] {
        count_rot(&format!("rot-count-{threads}"), threads);
    }
}

fn count_rot(name: &str, threads: u16) {
    let mut cluster = Cluster::new(name, 2);
    for node in 1..=2 {
        cluster.add_settings(node, &format!("threads = {threads}"));
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", 16 * MIB, &[1, 2]);
    file.options.data_checksum = true;
    cluster.create(&file);
    let blocks = content(7, 64 << 10);
    let mut volume = cluster.open(1, "alpha");
    // An extent for each of the threads.
    let places = [MIB, 5 * MIB];
    for at in places {
        volume.write(at, &blocks).unwrap();
    }
    volume.flush().unwrap();
    let rot = |asked: u16| {
        let status = cluster.status(asked, "alpha");
        let all = status.replicas.iter();
        all.map(|replica| replica.rot).collect::<Vec<_>>()
    };
    let none = Some(Rot::default());
    assert_eq!((rot(1), rot(2)), (vec![none, None], vec![None, none]), "each knows of its own");
    let image = cluster.home(1).join("volumes").join("alpha-0.img");
    let image = OpenOptions::new().write(true).open(image).unwrap();
    for at in places {
        image.write_all_at(&[0x5a; 16], at + 1536).unwrap();
        image.write_all_at(&[0x5a; 16], at + 3 * 4096 + 1536).unwrap();
    }
    image.sync_all().unwrap();
    for at in places {
        assert!(volume.read(at, 64 << 10).unwrap() == blocks);
    }
    cluster.wait_for("all of it to be repaired", || match rot(1)[0] {
        Some(Rot { found_blocks: 4, repaired_blocks: 4 }) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(rot(2), vec![None, none], "the other disk is good");
    let log = cluster.log(1);
    let lines = log.lines().filter(|line| line.contains("blocks are not what was written"));
    let lines: Vec<&str> = lines.collect();
    assert!(!lines.is_empty() && lines.len() <= usize::from(threads), "{log}");
    assert!(lines.iter().all(|line| line.contains("warn") && line.contains("alpha")), "{log}");
}

#[test]
fn what_rots_while_all_nodes_are_stopped_spreads_to_no_other_copy() {
    // Stopped in good order the checksums are believed; after a death the copies that agree are, of three.
    for (name, nodes, graceful) in [("rot-stopped", 2, true), ("rot-killed", 3, false)] {
        let mut cluster = Cluster::new(name, nodes);
        let all: Vec<u16> = (1..=nodes).collect();
        all.iter().for_each(|&node| cluster.start(node));
        let mut file = cluster.resource("alpha", 8 * MIB, &all);
        file.options.data_checksum = true;
        cluster.create(&file);
        let blocks = content(7, 64 << 10);
        let mut volume = cluster.open(1, "alpha");
        volume.write(MIB, &blocks).unwrap();
        volume.flush().unwrap();
        drop(volume);
        for &node in &all {
            match graceful {
                true => assert!(cluster.stop(node), "in good order"),
                false => cluster.kill(node),
            }
        }
        let image = cluster.home(1).join("volumes").join("alpha-0.img");
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.write_all_at(&[0x5a; 16], MIB + 1536).unwrap();
        image.sync_all().unwrap();
        all.iter().for_each(|&node| cluster.start(node));
        for node in all {
            // Node 1 leads, because it is asked first.
            assert!(
                cluster.open(node, "alpha").read(MIB, 64 << 10).unwrap() == blocks,
                "{name}: node {node}"
            );
        }
    }
}

#[test]
fn a_verify_says_whose_blocks_rotted_where_it_takes_what_two_others_hold() {
    let mut cluster = Cluster::new("rot-verify", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    file.options.data_checksum = true;
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &content(7, 4 << 20)).unwrap();
    volume.flush().unwrap();
    let image = cluster.home(2).join("volumes").join("alpha-0.img");
    let image = OpenOptions::new().write(true).open(image).unwrap();
    for block in [0, 1, 200, 700] {
        image.write_all_at(&[0x5a; 16], MIB + block * 4096 + 1536).unwrap();
    }
    image.sync_all().unwrap();
    let (resource, operation) = ("alpha".to_owned(), Operation::Verify { anew: true });
    cluster.ask(1, Command::Operation { resource, operation }).unwrap();
    assert!(cluster.status(1, "alpha").verify.unwrap().repaired_bytes >= 4 * 4096);
    for (node, expected) in [(1, 0), (2, 4), (3, 0)] {
        let found = cluster.status(node, "alpha").replicas[usize::from(node) - 1].rot;
        let rot = Rot { found_blocks: expected, repaired_blocks: expected };
        assert_eq!(found, Some(rot), "of node {node}");
    }
    drop(volume);
    assert_eq!(cluster.dump(1, "alpha"), cluster.dump(2, "alpha"));
}

#[test]
fn what_one_disk_lost_and_the_other_did_not_keep_is_an_error_and_not_old_bytes() {
    let mut cluster = Cluster::new("rot-lost", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    file.members[2].kind = wire::MemberKind::Witness;
    file.members[2].stores.clear();
    file.options.data_checksum = true;
    cluster.create(&file);
    let (old, new) = (content(7, 4096), content(8, 4096));
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &old).unwrap();
    volume.flush().unwrap();
    volume.write(MIB, &new).unwrap();
    cluster.kill(2);
    // Is done when node 2 is out: what its cache kept does not count when it comes back.
    volume.write(2 * MIB, &new).unwrap();
    for node in [1, 2] {
        let image = cluster.home(node).join("volumes").join("alpha-0.img");
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.write_all_at(&old, MIB).unwrap();
        image.sync_all().unwrap();
    }
    cluster.start(2);
    cluster.wait_for("node 1 to find what its disk lost", || {
        match cluster.status(1, "alpha").replicas[0].rot {
            Some(Rot { found_blocks: 1, .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    for _ in 0..20 {
        let read = volume.read(MIB, 4096);
        assert!(read.is_err(), "the new bytes are nowhere, and old ones are no answer: {read:?}");
    }
    volume.write(MIB, &new).unwrap();
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    assert!(cluster.open(2, "alpha").read(MIB, 4096).unwrap() == new);
}

#[test]
fn what_stood_before_a_write_that_the_only_disk_had_no_room_for_is_read_as_it_was() {
    let mut cluster = Cluster::new("rot-full", 1);
    cluster.add_settings(1, "allow_faults = true");
    cluster.append_settings(1, "[faults]\nfull_after_bytes = 2097152\n");
    cluster.start(1);
    let mut file = cluster.resource("alpha", 8 * MIB, &[1]);
    file.options.data_checksum = true;
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    let mut last = None;
    for seed in 0..512 {
        if volume.write(0, &content(seed, 8192)).is_err() {
            break;
        }
        last = Some(seed);
    }
    let last = last.expect("there was room for one");
    assert!(last < 511, "its disk never became full");
    assert!(volume.read(0, 8192).unwrap() == content(last, 8192), "it was answered");
    let rot = cluster.status(1, "alpha").replicas[0].rot;
    assert_eq!(rot, Some(Rot { found_blocks: 0, repaired_blocks: 0 }));
}

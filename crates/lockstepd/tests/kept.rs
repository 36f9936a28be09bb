//! Stores that hold the volume's bytes before there is a resource, under real nodes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use harness::{Cluster, content};
use wire::admin::{
    Command, FileStore, FileVolume, Operation, ResourceFile, StoreKind, VerifyProgress,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

fn image(cluster: &Cluster, node: u16) -> PathBuf {
    cluster.home(node).join("before.img")
}

/// Three nodes that run, each with a file of the same bytes.
fn begin(name: &str) -> (Cluster, Vec<u8>) {
    let mut cluster = Cluster::new(name, 3);
    let bytes = content(1, 16 << 20);
    for node in 1..=3 {
        cluster.start(node);
        std::fs::write(image(&cluster, node), &bytes).unwrap();
    }
    (cluster, bytes)
}

/// A resource whose stores keep what is in these files.
fn keeping(cluster: &Cluster) -> ResourceFile {
    let mut file = cluster.resource("alpha", SIZE, &[1, 2, 3]);
    for member in &mut file.members {
        let path = Some("before.img".to_owned());
        let kind = StoreKind::File;
        member.stores = vec![FileStore { volume: 0, kind, path, metadata_path: None, keep: true }];
    }
    file
}

/// Bytes that a verify found different.
fn verified(cluster: &Cluster) -> u64 {
    let (resource, operation) = ("alpha".to_owned(), Operation::Verify { anew: true });
    cluster.ask(1, Command::Operation { resource, operation }).unwrap();
    let verify = cluster.status(1, "alpha").verify.unwrap();
    assert_eq!((verify.state, verify.partial), (VerifyProgress::Done, false));
    assert_eq!(verify.done_bytes, SIZE);
    verify.repaired_bytes
}

/// The first bytes of a node's file; behind them there is room for metadata of a far larger volume.
fn held(cluster: &Cluster, node: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    std::fs::File::open(image(cluster, node)).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn assert_copies(cluster: &Cluster, expected: &[u8]) {
    for node in 1..=3 {
        assert!(held(cluster, node, expected.len()) == *expected, "the file of node {node}");
    }
}

/// What was copied to any replica, as any node tells.
fn copied(cluster: &Cluster) -> u64 {
    let views = (1..=3).map(|node| cluster.status(node, "alpha"));
    let rows = views.flat_map(|view| view.replicas);
    rows.filter_map(|row| row.last_resync).map(|done| done.copied_bytes + done.equal_bytes).sum()
}

#[test]
fn stores_that_hold_the_same_already_are_kept_and_not_copied() {
    let (mut cluster, mut bytes) = begin("kept");
    cluster.create(&keeping(&cluster));
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let mut volume = cluster.open(1, "alpha");
    assert!(volume.read(0, 16 << 20).unwrap() == bytes, "what was there is read");
    assert!(cluster.open(3, "alpha").read(0, 16 << 20).unwrap() == bytes, "through any node");
    assert_eq!(
        (verified(&cluster), copied(&cluster)),
        (0, 0),
        "they are equal, and nothing was copied"
    );
    assert_copies(&cluster, &bytes);

    // They are copies like any other: a node that was away gets what changed, and no more.
    cluster.kill(3);
    volume.write(5 * MIB, &content(2, 4096)).unwrap();
    bytes[5 << 20..(5 << 20) + 4096].copy_from_slice(&content(2, 4096));
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    volume.flush().unwrap();
    drop(volume);
    assert!(copied(&cluster) <= 16 * MIB, "an extent may be compared");
    assert_eq!(verified(&cluster), 0);
    assert_copies(&cluster, &bytes);

    // Without the resource they are what they were before: files of somebody else.
    delete(&cluster);
    assert_copies(&cluster, &bytes);
    assert_lengths(&cluster, SIZE);
}

fn delete(cluster: &Cluster) {
    for node in 1..=3 {
        let resource = "alpha".to_owned();
        let delete = Command::ResourceDelete { resource, force: true, unused: false };
        cluster.ask(node, delete).unwrap();
    }
}

fn assert_lengths(cluster: &Cluster, bytes: u64) {
    for node in 1..=3 {
        let facts = std::fs::metadata(image(cluster, node)).unwrap();
        assert_eq!(facts.len(), bytes, "the file of node {node}");
        assert!(facts.blocks() * 512 <= bytes + MIB, "{} blocks", facts.blocks());
    }
}

#[test]
fn a_kept_store_that_has_grown_has_its_data_and_its_length_when_the_resource_is_deleted() {
    let (cluster, mut bytes) = begin("kept-grown");
    cluster.create(&keeping(&cluster));
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let taken = std::fs::metadata(image(&cluster, 1)).unwrap().blocks() * 512;
    assert!(taken <= SIZE + MIB, "metadata takes room before it is written: {taken}");
    let operation =
        Operation::Resize { volume: 0, size_bytes: SIZE + 8 * MIB, allow_shrink: false };
    cluster.ask(1, Command::Operation { resource: "alpha".to_owned(), operation }).unwrap();
    let mut volume = cluster.open(1, "alpha");
    let beyond = content(3, 4096);
    cluster.wait_for("the new size", || volume.write(SIZE + 4 * MIB, &beyond));
    volume.flush().unwrap();
    drop(volume);
    bytes.resize(24 << 20, 0);
    bytes[20 << 20..(20 << 20) + 4096].copy_from_slice(&beyond);
    delete(&cluster);
    assert_lengths(&cluster, SIZE + 8 * MIB);
    assert_copies(&cluster, &bytes);
}

#[test]
fn the_second_of_two_kept_volumes_has_all_of_its_data_too_when_it_has_grown_and_the_resource_is_deleted()
 {
    let mut cluster = Cluster::new("kept-second", 1);
    cluster.start(1);
    let mut file = cluster.resource("alpha", SIZE, &[1]);
    file.volumes.push(FileVolume { index: 1, ..file.volumes[0].clone() });
    let path = |volume: u16| cluster.home(1).join(format!("before-{volume}.img"));
    for volume in 0..2_u16 {
        std::fs::write(path(volume), content(u64::from(volume), 16 << 20)).unwrap();
        let path = Some(format!("before-{volume}.img"));
        let kind = StoreKind::File;
        file.members[0].stores.push(FileStore {
            volume,
            kind,
            path,
            metadata_path: None,
            keep: true,
        });
    }
    cluster.create(&file);
    let operation = Operation::Resize { volume: 1, size_bytes: SIZE + MIB, allow_shrink: false };
    cluster.ask(1, Command::Operation { resource: "alpha".to_owned(), operation }).unwrap();
    let mut volume = cluster.open(1, "alpha/1");
    let beyond = content(3, 4096);
    cluster.wait_for("the new size", || volume.write(SIZE, &beyond));
    volume.flush().unwrap();
    drop(volume);
    let resource = "alpha".to_owned();
    cluster.ask(1, Command::ResourceDelete { resource, force: true, unused: false }).unwrap();
    let mut bytes = content(1, 16 << 20);
    bytes.extend_from_slice(&beyond);
    bytes.resize(17 << 20, 0);
    assert!(std::fs::read(path(0)).unwrap() == content(0, 16 << 20));
    let left = std::fs::read(path(1)).unwrap();
    assert_eq!(left.len(), bytes.len(), "it had grown");
    assert!(left == bytes);
}

#[test]
fn a_kept_file_where_a_node_would_make_one_stays_also_if_its_node_died_when_its_part_had_ended() {
    let mut cluster = Cluster::new("kept-usual", 2);
    let mut file = cluster.resource("alpha", SIZE, &[1, 2]);
    let image = |cluster: &Cluster, node| cluster.home(node).join("volumes/alpha-0.img");
    for (node, member) in (1..=2).zip(&mut file.members) {
        cluster.start(node);
        std::fs::create_dir_all(cluster.home(node).join("volumes")).unwrap();
        std::fs::write(image(&cluster, node), content(1, 16 << 20)).unwrap();
        let path = Some("volumes/alpha-0.img".to_owned());
        let kind = StoreKind::File;
        member.stores = vec![FileStore { volume: 0, kind, path, metadata_path: None, keep: true }];
    }
    cluster.create(&file);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    cluster.kill(2);
    // It has written down that it is no member any more, and not begun to remove what it stored.
    let path = cluster.home(2).join("resources/alpha.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut left: ResourceFile = toml::from_str(&text).unwrap();
    left.members.retain(|member| member.node != 2);
    std::fs::write(&path, toml::to_string(&left).unwrap()).unwrap();
    cluster.start(2);
    let resource = "alpha".to_owned();
    cluster.ask(2, Command::ResourceDelete { resource, force: true, unused: false }).unwrap();
    assert!(std::fs::read(image(&cluster, 2)).unwrap() == content(1, 16 << 20));
}

#[test]
fn a_file_that_is_to_be_kept_and_has_another_size_is_left_as_it_is() {
    let (cluster, bytes) = begin("kept-size");
    // As long as a store of ours, with more data than the volume is to have; nothing of ours is in it.
    let long = std::fs::OpenOptions::new().write(true).open(image(&cluster, 1)).unwrap();
    long.set_len(64 << 30).unwrap();
    let mut file = keeping(&cluster);
    file.volumes[0].size_bytes = 8 * MIB;
    for member in &mut file.members {
        member.stores[0].metadata_path = Some("metadata".to_owned());
    }
    for force in [false, true] {
        let refused = make(&cluster, 1, &file, force).unwrap_err();
        assert!(refused.starts_with("LS-0020") && refused.contains("more bytes"), "{refused}");
    }
    assert_eq!(long.metadata().unwrap().len(), 64 << 30);
    assert!(held(&cluster, 1, 16 << 20) == bytes);
    assert!(!cluster.home(1).join("metadata").exists());
}

#[test]
fn no_file_is_changed_if_one_of_those_that_are_to_be_kept_is_refused() {
    let (cluster, bytes) = begin("kept-none");
    let mut file = keeping(&cluster);
    file.volumes.push(FileVolume { index: 1, ..file.volumes[0].clone() });
    for member in &mut file.members {
        let second =
            FileStore { volume: 1, path: Some("short.img".to_owned()), ..member.stores[0].clone() };
        member.stores.push(second);
    }
    let short = cluster.home(1).join("short.img");
    std::fs::write(&short, &bytes[..7 << 20]).unwrap();
    let refused = make(&cluster, 1, &file, false).unwrap_err();
    assert!(refused.starts_with("LS-0022"), "{refused}");
    assert_eq!(std::fs::metadata(image(&cluster, 1)).unwrap().len(), SIZE);
    assert_eq!(std::fs::metadata(&short).unwrap().len(), 7 * MIB);
    assert!(held(&cluster, 1, 16 << 20) == bytes);
}

/// Has a node know a resource and make its part.
fn make(
    cluster: &Cluster,
    node: u16,
    file: &ResourceFile,
    force: bool,
) -> Result<wire::admin::Answer, String> {
    cluster.ask(node, Command::ResourceDefine { file: Box::new(file.clone()) }).unwrap();
    cluster.ask(node, Command::ResourceCreate { resource: "alpha".to_owned(), force })
}

#[test]
fn a_kept_store_that_differs_is_found_by_a_verify_and_repaired() {
    let (cluster, bytes) = begin("kept-differs");
    let file = std::fs::OpenOptions::new().write(true).open(image(&cluster, 2)).unwrap();
    for at in [0, 8 * MIB + 12_288, SIZE - 4096] {
        file.write_all_at(&[0x5a; 16], at).unwrap();
    }
    file.sync_all().unwrap();
    cluster.create(&keeping(&cluster));
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let mut volume = cluster.open(1, "alpha");
    assert!(volume.read(0, 4096).unwrap() == bytes[..4096], "node 1 is primary and has its own");
    let repaired = verified(&cluster);
    assert!(
        (3 * 4096..=3 * 256 * 1024).contains(&repaired),
        "three blocks, or what was compared at once: {repaired}"
    );
    assert_eq!(verified(&cluster), 0, "no more");
    volume.flush().unwrap();
    assert_copies(&cluster, &bytes);
}

#[test]
fn a_kept_store_that_does_not_begin_in_sync_is_copied_to() {
    let (cluster, bytes) = begin("kept-stale");
    std::fs::write(image(&cluster, 3), content(9, 16 << 20)).unwrap();
    let mut file = keeping(&cluster);
    file.members[2].in_sync = Some(false);
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.flush().unwrap();
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    volume.flush().unwrap();
    assert_copies(&cluster, &bytes);
}

#[test]
fn copies_of_stores_in_use_become_a_resource_whose_replicas_are_equal() {
    let mut cluster = Cluster::new("kept-clones", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", SIZE, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    // Each copy is made at another moment, and what is written goes on: no two are the same.
    for node in 1..=3 {
        for at in 0..16 {
            volume.write(at * MIB, &content(u64::from(node) * 100 + at, 65_536)).unwrap();
        }
        let store = cluster.home(node).join("volumes/alpha-0.img");
        // Without its holes, of which it is made for the most part, it would fill this machine's disk.
        let copy = image(&cluster, node);
        harness::run("cp", &["--sparse=always", harness::text(&store), harness::text(&copy)]);
    }
    let expected = held(&cluster, 2, 16 << 20);
    assert!(expected != held(&cluster, 3, 16 << 20) && expected != held(&cluster, 1, 16 << 20));
    let mut clone = keeping(&cluster);
    (clone.name, clone.id) = ("beta".to_owned(), 0xbeef);
    for member in &mut clone.members {
        member.in_sync = Some(member.node == 2);
    }
    for node in 1..=3 {
        cluster.ask(node, Command::ResourceDefine { file: Box::new(clone.clone()) }).unwrap();
    }
    for node in 1..=3 {
        let create = |force| Command::ResourceCreate { resource: "beta".to_owned(), force };
        let refused = cluster.ask(node, create(false)).unwrap_err();
        assert!(refused.starts_with("LS-0020"), "it is labelled as a copy of alpha: {refused}");
        cluster.ask(node, create(true)).unwrap();
    }
    let mut copy = cluster.open(3, "beta");
    assert!(
        copy.read(0, 16 << 20).unwrap() == expected,
        "what the good one had when it was copied"
    );
    cluster.wait_in_sync(2, "beta", &[1, 2, 3]);
    copy.write(0, &expected[..4096]).unwrap();
    copy.flush().unwrap();
    assert_copies(&cluster, &expected);
    assert!(volume.read(0, 65_536).unwrap() == content(300, 65_536), "alpha goes on");
}

#[test]
fn what_is_to_be_kept_must_be_there_and_is_never_removed() {
    let (cluster, bytes) = begin("kept-refused");
    let mut mixed = keeping(&cluster);
    mixed.members[1].stores.clear();
    let define = |file: &ResourceFile| Command::ResourceDefine { file: Box::new(file.clone()) };
    let refused = cluster.ask(1, define(&mixed)).unwrap_err();
    assert!(refused.contains("of 3 replicas that begin in sync 2 keep"), "{refused}");

    let create = || Command::ResourceCreate { resource: "alpha".to_owned(), force: true };
    let short = std::fs::OpenOptions::new().write(true).open(image(&cluster, 2)).unwrap();
    short.set_len(SIZE - 4096).unwrap();
    std::fs::remove_file(image(&cluster, 3)).unwrap();
    for (node, code) in [(2, "LS-0022"), (3, "LS-0021")] {
        cluster.ask(node, define(&keeping(&cluster))).unwrap();
        let refused = cluster.ask(node, create()).unwrap_err();
        assert!(refused.starts_with(code), "{refused}");
    }
    assert!(!image(&cluster, 3).exists());
    assert!(held(&cluster, 2, (16 << 20) - 4096) == bytes[..(16 << 20) - 4096]);
    // The operator undoes what went well elsewhere.
    cluster.ask(1, define(&keeping(&cluster))).unwrap();
    cluster.ask(1, create()).unwrap();
    let resource = "alpha".to_owned();
    cluster.ask(1, Command::ResourceDelete { resource, force: true, unused: false }).unwrap();
    assert!(held(&cluster, 1, 16 << 20) == bytes);
}

//! Copies that are not what they seem: a disk that cannot be used, a store that is gone, one that went back in time,
//! memory that forgot. What `status` says of each, and that what `explain` says helps.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::TestCluster;

/// Where the metadata of a small volume's store begins: the volume may grow up to there.
const METADATA_AT: u64 = 64 << 30;

fn with_disk(nodes: u16, store: &str) -> TestCluster {
    let cluster = TestCluster::up(nodes, store);
    let replicas = nodes.to_string();
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", &replicas]);
    cluster.wait("disk", "in-sync");
    cluster
}

fn image(cluster: &TestCluster, node: &str) -> PathBuf {
    cluster.directory.join(node).join("volumes").join("disk-0.img")
}

/// Does what `explain` offers about a copy that is lost, word for word.
fn do_as_explained(cluster: &TestCluster, node: &str) {
    let told = cluster.done(&["explain", "disk"]);
    let commands = ["remove-replica", "add-replica"].map(|verb| {
        let start = format!("lockstep resource {verb} disk --node {node}");
        let at = told.find(&start).unwrap_or_else(|| panic!("no {start:?} in {told}"));
        let line = told[at..].lines().next().unwrap();
        line.split("   (").next().unwrap().trim().to_owned()
    });
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        cluster.done(&words);
    }
    cluster.wait("disk", "healthy");
}

/// Node c starts with a disk that cannot be used, and serves what the others hold.
fn comes_detached(cluster: &TestCluster, why: &str) {
    cluster.done(&["dev", "start", "c"]);
    cluster.until("c to be told to be detached", || cluster.state("disk", "c") == "detached");
    let reason = cluster.replica("disk", "c")["reason"].to_string();
    assert!(reason.contains(why), "{reason}");
    let shown = cluster.done(&["status", "disk"]);
    assert!(shown.contains("detached") && shown.contains(why), "{shown}");
    let mut bytes = [0; 4096];
    cluster.open("c", "disk").read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4096], "read through c, from the others");
    cluster.ends_with(4, &["wait", "disk", "--for", "in-sync", "--timeout", "1ms"]);
}

#[test]
fn a_copy_with_damaged_metadata_is_told_to_be_detached_and_what_is_offered_brings_it_back() {
    let cluster = with_disk(3, "file");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "kill", "c"]);
    let file = fs::OpenOptions::new().write(true).open(image(&cluster, "c")).unwrap();
    let length = file.metadata().unwrap().len();
    assert!(length > METADATA_AT);
    // Bytes of the superblock, wherever it is; what names it stays.
    for at in [METADATA_AT, length - 4096] {
        file.write_all_at(&[0x5a; 16], at + 64).unwrap();
    }
    drop(file);
    comes_detached(&cluster, "LS-0023");
    let refused = cluster.ends_with(1, &["resource", "invalidate", "disk", "--node", "c"]);
    assert!(refused.contains("remove-replica"), "{refused}");
    do_as_explained(&cluster, "c");
    assert!(cluster.holds("disk", "c", 0, 1));
}

#[test]
fn a_node_whose_store_is_gone_serves_what_the_others_hold_until_it_is_copied_anew() {
    let cluster = with_disk(3, "file");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "kill", "c"]);
    fs::remove_file(image(&cluster, "c")).unwrap();
    comes_detached(&cluster, "LS-0027");
    do_as_explained(&cluster, "c");
    assert!(cluster.holds("disk", "c", 0, 1));
}

#[test]
fn a_copy_whose_description_is_lost_is_used_once_others_describe_it() {
    let cluster = with_disk(3, "file");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "kill", "c"]);
    fs::remove_file(cluster.directory.join("c/resources/disk.toml")).unwrap();
    cluster.done(&["dev", "start", "c"]);
    cluster.wait("disk", "healthy");
    assert!(cluster.holds("disk", "c", 0, 1));
}

/// A store's file is mostly holes.
fn copy_sparse(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("--sparse=always").args([from, to]).status().unwrap();
    assert!(done.success());
}

/// Whatever `explain` says about forcing `node`.
fn offered_force(cluster: &TestCluster, node: &str) -> String {
    let told = cluster.done(&["explain", "disk"]);
    let start = format!("lockstep resource force disk --node {node}");
    let line = told.lines().find(|line| line.contains(&start));
    line.unwrap_or_else(|| panic!("no {start:?} in {told}")).to_owned()
}

#[test]
fn of_two_copies_one_is_gone_and_force_is_offered_on_the_other() {
    let cluster = with_disk(2, "file");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "kill", "b"]);
    fs::remove_file(image(&cluster, "b")).unwrap();
    cluster.done(&["dev", "start", "b"]);
    cluster.until("b to be told to be detached", || cluster.state("disk", "b") == "detached");
    cluster.until("no quorum", || cluster.resource("disk")["quorum"] == false);
    let line = offered_force(&cluster, "a");
    assert!(line.contains("holds every acknowledged write"), "{line}");
    cluster.done(&["resource", "force", "disk", "--node", "a"]);
    let mut bytes = [0; 4096];
    cluster.open("a", "disk").read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4096]);
    cluster.done(&["resource", "add-replica", "disk", "--node", "b"]);
    cluster.wait("disk", "in-sync");
}

#[test]
fn copies_that_went_back_in_time_are_not_told_to_be_in_sync_and_the_newest_is_offered() {
    let cluster = with_disk(3, "file");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "down"]);
    let kept = ["a", "b"].map(|node| image(&cluster, node));
    let kept = kept.map(|image| (image.with_extension("kept"), image));
    for (copy, image) in &kept {
        copy_sparse(image, copy);
    }
    cluster.done(&["dev", "up", "--detach"]);
    let mut volume = cluster.open("a", "disk");
    volume.write(0, &[2; 4096]).unwrap();
    volume.flush().unwrap();
    drop(volume);
    cluster.done(&["dev", "down"]);
    for (copy, image) in &kept {
        copy_sparse(copy, image);
    }
    cluster.done(&["dev", "up", "--detach"]);
    cluster.until("a and b to be told to be behind", || {
        ["a", "b"].iter().all(|node| cluster.state("disk", node) == "behind")
    });
    cluster.until("no quorum", || cluster.resource("disk")["quorum"] == false);
    cluster.until("c to be told to be in sync", || cluster.state("disk", "c") == "in-sync");
    let reason = cluster.replica("disk", "a")["reason"].to_string();
    assert!(reason.contains("back in time"), "{reason}");
    assert_eq!(cluster.replica("disk", "a")["vote_lost"], true);
    cluster.ends_with(4, &["wait", "disk", "--for", "healthy", "--timeout", "1ms"]);
    assert!(cluster.done(&["resource", "list"]).contains("no quorum"));
    assert!(offered_force(&cluster, "c").contains("holds every acknowledged write"));
    assert!(offered_force(&cluster, "a").contains("is lost"));
    let log = || fs::read_to_string(cluster.directory.join("a/log")).unwrap();
    cluster.until("a to say so in its log", || log().contains("went back in time"));
    let refused = cluster.ends_with(1, &["resource", "force", "disk", "--node", "a"]);
    assert!(refused.contains("LS-0930") && refused.contains("--node c"), "{refused}");
    let promoted = cluster.ends_with(1, &["resource", "promote", "disk", "--node", "c"]);
    assert!(promoted.contains("LS-0030"), "{promoted}");
    let forced = cluster.done(&["resource", "force", "disk", "--node", "c"]);
    assert!(forced.contains("a (older)"), "{forced}");
    let mut bytes = [0; 4096];
    cluster.open("c", "disk").read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4096], "the flushed write");
}

#[test]
fn memory_that_forgot_is_not_told_to_be_healthy() {
    let cluster = with_disk(3, "memory");
    cluster.open("a", "disk").write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "down"]);
    cluster.done(&["dev", "up", "--detach"]);
    cluster.until("all copies to be told to be behind", || {
        ["a", "b", "c"].iter().all(|node| cluster.state("disk", node) == "behind")
    });
    cluster.ends_with(4, &["wait", "disk", "--for", "healthy", "--timeout", "1ms"]);
    let listed = cluster.done(&["resource", "list"]);
    assert!(listed.contains("no quorum") && listed.contains("0 of 3"), "{listed}");
    assert!(offered_force(&cluster, "a").contains("forgets at a stop"));
    cluster.done(&["resource", "force", "disk", "--node", "a"]);
    cluster.open("a", "disk").read(0, &mut [0; 4096]).unwrap();
}

#[test]
fn without_quorum_a_promote_is_refused_at_once_by_its_name() {
    let cluster = with_disk(3, "file");
    cluster.done(&["dev", "kill", "b"]);
    cluster.done(&["dev", "kill", "c"]);
    cluster.until("no quorum", || cluster.resource("disk")["quorum"] == false);
    let refused = cluster.ends_with(1, &["resource", "promote", "disk", "--node", "a"]);
    assert!(refused.contains("LS-0030"), "{refused}");
}

#[test]
fn the_log_tells_who_is_primary_and_which_copies_are_in_sync() {
    let cluster = with_disk(3, "file");
    cluster.done(&["resource", "promote", "disk", "--node", "a"]);
    let mut volume = cluster.open("a", "disk");
    cluster.done(&["dev", "kill", "c"]);
    volume.write(0, &[1; 4096]).unwrap();
    cluster.done(&["dev", "start", "c"]);
    cluster.wait("disk", "in-sync");
    drop(volume);
    cluster.done(&["resource", "demote", "disk"]);
    let has = |words: &str| {
        let log = fs::read_to_string(cluster.directory.join("a/log")).unwrap();
        log.lines().any(|line| line.contains("disk: ") && line.contains(words))
    };
    for words in [
        "this node is primary now",
        "the copy on c is excluded",
        "the copy on c is included",
        "an NBD client went",
        "this node is primary no more",
    ] {
        cluster.until(words, || has(words));
    }
    cluster.done(&["resource", "promote", "disk", "--node", "a"]);
    cluster.done(&["dev", "kill", "b"]);
    cluster.done(&["dev", "kill", "c"]);
    cluster.until("the lease to run out", || has("its lease as primary has run out"));
    cluster.done(&["dev", "up", "--detach"]);
    cluster.wait("disk", "healthy");
}

#[test]
fn a_start_that_fails_shows_what_this_run_says_and_nothing_older() {
    let cluster = with_disk(2, "file");
    cluster.done(&["dev", "kill", "b"]);
    let settings = cluster.directory.join("b/node.toml");
    let good = fs::read_to_string(&settings).unwrap();
    for slip in ["frobnicate", "wobble"] {
        fs::write(&settings, format!("{slip} = 1\n{good}")).unwrap();
        let told = cluster.ends_with(1, &["dev", "start", "b"]);
        assert!(told.contains("LS-0908") && told.contains("LS-0070"), "{told}");
        assert!(told.contains(slip) && told.contains("remedy: "), "{told}");
        assert!(slip == "frobnicate" || !told.contains("frobnicate"), "{told}");
    }
    fs::write(&settings, good).unwrap();
    cluster.done(&["dev", "start", "b"]);
    cluster.wait("disk", "in-sync");
}

//! What operators do to a resource that is in use: demote, pause, suspend, invalidate, a witness.
//!
//! That something does *not* happen is looked at after something else has, which would have come later:
//! nothing here asserts how long anything takes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use harness::TestCluster;

const MIB: usize = 1 << 20;

fn three(replicas: &str, names: &[&str]) -> TestCluster {
    let cluster = TestCluster::up(3, "file");
    for name in names {
        cluster.done(&["resource", "create", name, "--size", "64MiB", "--replicas", replicas]);
        cluster.wait(name, "in-sync");
    }
    cluster
}

#[test]
fn a_primary_that_is_demoted_is_primary_no_more_and_its_clients_go_on() {
    let cluster = three("3", &["disk"]);
    let mut client = cluster.open("a", "disk");
    client.write(0, &vec![1; MIB]).unwrap();
    cluster.wait("disk", "primary");
    let said = cluster.done(&["resource", "demote", "disk"]);
    assert!(said.contains("a is primary no more"), "{said}");
    assert!(cluster.resource("disk")["primary"].is_null());
    let said = cluster.done(&["resource", "demote", "disk"]);
    assert!(said.contains("no node was primary"), "{said}");
    let mut other = cluster.open("b", "disk");
    let mut bytes = vec![0; MIB];
    other.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
    client.write(0, &vec![2; MIB]).unwrap();
    other.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 2));
    let done = cluster.json(&["resource", "demote", "disk"]);
    assert_eq!((&done["version"], &done["resource"]), (&1.into(), &"disk".into()));
}

#[test]
fn a_resync_that_is_paused_waits_while_another_ends_and_goes_on_when_told() {
    let cluster = three("3", &["disk", "other"]);
    let (mut disk, mut other) = (cluster.open("a", "disk"), cluster.open("a", "other"));
    disk.write(0, &vec![1; MIB]).unwrap();
    other.write(0, &vec![1; MIB]).unwrap();
    cluster.done(&["dev", "kill", "c"]);
    disk.write(0, &vec![2; MIB]).unwrap();
    for at in 0..32 {
        other.write(at * MIB as u64, &vec![2; MIB]).unwrap();
    }
    cluster.wait("disk", "primary");
    cluster.done(&["resource", "pause-resync", "disk"]);
    cluster.done(&["dev", "start", "c"]);
    cluster.until("c has met the others", || cluster.replica("disk", "c")["connected"] == true);
    cluster.wait("other", "in-sync");
    let paused = cluster.replica("disk", "c");
    assert_eq!(paused["in_sync"], false, "{paused}");
    assert!(paused["resync"].is_null() || paused["resync"]["done_bytes"] == 0, "{paused}");
    cluster.ends_with(4, &["wait", "disk", "--for", "in-sync", "--timeout", "1ms"]);
    disk.write(0, &vec![3; MIB]).expect("writes go on meanwhile");
    cluster.done(&["resource", "resume-resync", "disk"]);
    cluster.wait("disk", "in-sync");
    assert!(cluster.holds("disk", "c", 0, 3));
}

#[test]
fn a_resync_that_is_limited_takes_its_time_until_the_limit_is_taken_away() {
    let cluster = TestCluster::up(3, "file");
    let size = ["--size", "64MiB", "--replicas", "3"];
    let limits = ["--resync-rate-max", "64KiB/s", "--resync-rate-min", "64KiB/s"];
    cluster.done(&[&["resource", "create", "disk"], &size[..], &limits].concat());
    cluster.done(&[&["resource", "create", "other"], &size[..]].concat());
    let shown = cluster.done(&["resource", "show", "disk"]);
    assert!(shown.contains("resync-rate-max 64KiB/s"), "{shown}");
    assert!(shown.contains("log-extents   "), "{shown}");
    cluster.wait("disk", "in-sync");
    cluster.wait("other", "in-sync");
    let (mut disk, mut other) = (cluster.open("a", "disk"), cluster.open("a", "other"));
    cluster.done(&["dev", "kill", "c"]);
    for at in 0..16 {
        disk.write(at * MIB as u64, &vec![2; MIB]).unwrap();
        other.write(at * MIB as u64, &vec![2; MIB]).unwrap();
    }
    cluster.wait("disk", "primary");
    cluster.done(&["dev", "start", "c"]);
    cluster.wait("other", "in-sync");
    // Four minutes are left for it.
    let limited = cluster.replica("disk", "c");
    assert_eq!(limited["in_sync"], false, "{limited}");
    let why = cluster.done(&["explain", "disk"]);
    assert!(why.contains("64KiB/s") && why.contains("--resync-rate-max off"), "{why}");
    let set = ["resource", "set-options", "disk"];
    let why = cluster.ends_with(2, &[&set[..], &["--resync-rate-min", "1MiB"]].concat());
    assert!(why.contains("LS-0042") && why.contains("resync-rate-max"), "{why}");
    cluster.done(&[&set[..], &["--resync-rate-max", "off"]].concat());
    cluster.wait("disk", "in-sync");
    assert!(cluster.holds("disk", "c", 0, 2));
    let shown = cluster.json(&["resource", "show", "disk"]);
    let options = &shown["resource"]["options"];
    assert!(options["resync_rate_max"].is_null(), "{shown}");
    assert_eq!(options["resync_rate_min"], 64 << 10, "{shown}");
}

#[test]
fn requests_wait_while_a_resource_is_suspended_and_go_on_when_told() {
    let cluster = three("3", &["disk", "other"]);
    let (mut disk, mut other) = (cluster.open("a", "disk"), cluster.open("a", "other"));
    disk.write(0, &[1; 4096]).unwrap();
    cluster.wait("disk", "primary");
    cluster.done(&["resource", "suspend", "disk"]);
    cluster.until("it says so", || !cluster.resource("disk")["suspended"].is_null());
    let waiting = thread::spawn(move || disk.write(0, &[2; 4096]).map(|()| disk));
    cluster.until("the request is there", || {
        cluster.resource("disk")["requests_in_flight"].as_u64().is_some_and(|count| count > 0)
    });
    for at in 0..64 {
        other.write(at * 4096, &[3; 4096]).expect("another resource is not held back");
    }
    assert!(!waiting.is_finished(), "the write was answered though requests are held back");
    cluster.ends_with(4, &["wait", "disk", "--for", "primary", "--timeout", "1ms"]);
    let why = cluster.done(&["explain", "disk"]);
    assert!(why.contains("lockstep resource resume disk"), "{why}");
    cluster.done(&["resource", "resume", "disk"]);
    let mut disk = waiting.join().unwrap().expect("what waited is answered, and well");
    let mut bytes = [0; 4096];
    disk.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4096]);
    assert!(cluster.resource("disk")["suspended"].is_null());
}

/// Where nothing was ever written, so that no node has cause to compare it.
const ROTTEN_AT: u64 = 48 << 20;

/// Changes a block of a copy while no node runs: nobody can know of it.
fn rot(cluster: &TestCluster, name: &str, node: &str) {
    let image = cluster.directory.join(node).join(format!("volumes/{name}-0.img"));
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&[0x55; 4096], ROTTEN_AT).unwrap();
}

#[test]
fn a_copy_that_is_invalidated_is_made_anew_and_its_clients_see_nothing() {
    let cluster = three("2", &["follows", "leads"]);
    for name in ["follows", "leads"] {
        cluster.open("a", name).write(0, &[1; 4096]).unwrap();
    }
    cluster.done(&["dev", "down"]);
    rot(&cluster, "follows", "b");
    rot(&cluster, "leads", "a");
    cluster.done(&["dev", "up", "--detach"]);
    for (name, node) in [("follows", "b"), ("leads", "a")] {
        cluster.wait(name, "in-sync");
        assert!(!cluster.holds(name, node, ROTTEN_AT, 0), "the copy on {node} is damaged");
        cluster.done(&["resource", "promote", name, "--node", "a"]);
        let mut client = cluster.open("a", name);
        cluster.done(&["resource", "invalidate", name, "--node", node]);
        client.write(0, &[2; 4096]).expect("clients see nothing of it");
        cluster.wait(name, "in-sync");
        assert!(cluster.holds(name, node, ROTTEN_AT, 0), "the copy on {node} is made anew");
        assert!(cluster.holds(name, node, 0, 2), "and has what was written meanwhile");
    }
}

#[test]
fn the_last_copy_is_not_invalidated() {
    let cluster = three("2", &["disk"]);
    cluster.done(&["resource", "add-replica", "disk", "--node", "c", "--witness"]);
    cluster.wait("disk", "healthy");
    let mut client = cluster.open("a", "disk");
    cluster.done(&["dev", "kill", "b"]);
    client.write(0, &[1; 4096]).unwrap();
    let refused = cluster.ends_with(1, &["resource", "invalidate", "disk", "--node", "a"]);
    assert!(refused.contains("LS-0033"), "{refused}");
    let refused = cluster.ends_with(1, &["resource", "invalidate", "disk", "--node", "c"]);
    assert!(refused.contains("LS-0037"), "a witness has no copy: {refused}");
    let refused = cluster.ends_with(3, &["resource", "invalidate", "disk", "--node", "z"]);
    assert!(refused.contains("LS-0909"), "{refused}");
    cluster.done(&["dev", "start", "b"]);
    cluster.wait("disk", "healthy");
    assert!(cluster.holds("disk", "a", 0, 1) && cluster.holds("disk", "b", 0, 1));
}

#[test]
fn a_witness_lets_two_replicas_survive_the_loss_of_any_one_node() {
    let cluster = three("2", &["disk"]);
    let mut client = cluster.open("a", "disk");
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(cluster.state("disk", "c"), "diskless");
    // Two voters alone: with one of them away nobody has a majority.
    cluster.done(&["dev", "kill", "b"]);
    cluster.until("the quorum is lost", || cluster.resource("disk")["quorum"] == false);
    let refused =
        cluster.ends_with(1, &["resource", "add-replica", "disk", "--node", "c", "--witness"]);
    assert!(refused.contains("LS-00"), "{refused}");
    cluster.done(&["dev", "start", "b"]);
    cluster.wait("disk", "healthy");
    cluster.done(&["resource", "add-replica", "disk", "--node", "c", "--witness"]);
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "c"), "witness");
    let again =
        cluster.ends_with(1, &["resource", "add-replica", "disk", "--node", "c", "--witness"]);
    assert!(again.contains("LS-0918"), "{again}");
    for (round, lost) in (2..).zip(["b", "c", "a"]) {
        let via = if lost == "a" { "b" } else { "a" };
        cluster.done(&["dev", "kill", lost]);
        let mut client = cluster.open(via, "disk");
        client.write(0, &[round; 4096]).expect("two of three go on");
        assert_eq!(cluster.resource("disk")["quorum"], true, "without {lost}");
        cluster.done(&["dev", "start", lost]);
        cluster.wait("disk", "healthy");
    }
    cluster.done(&["resource", "remove-replica", "disk", "--node", "c"]);
    assert_eq!(cluster.state("disk", "c"), "diskless");
    let mut client = cluster.open("a", "disk");
    client.write(0, &[7; 4096]).unwrap();
    cluster.done(&["dev", "kill", "b"]);
    let waiting = thread::spawn(move || client.write(0, &[8; 4096]));
    cluster.until("the quorum is lost again", || cluster.resource("disk")["quorum"] == false);
    assert!(!waiting.is_finished(), "one voter of two has no majority");
    cluster.done(&["dev", "start", "b"]);
    waiting.join().unwrap().expect("it goes on when the majority is back");
}

#[test]
fn a_verify_that_left_a_replica_out_ends_with_an_error_and_one_that_did_not_with_none() {
    let cluster = three("3", &["disk"]);
    let none = cluster.ends_with(1, &["resource", "verify", "disk", "--stop"]);
    assert!(none.contains("LS-0052"), "{none}");
    cluster.done(&["dev", "kill", "c"]);
    cluster
        .until("c is left behind", || !cluster.replica("disk", "c")["in_sync"].as_bool().unwrap());
    let partial = cluster.ends_with(1, &["resource", "verify", "disk", "--wait"]);
    assert!(partial.contains("LS-0056") && partial.contains("left out"), "{partial}");
    let verify = cluster.resource("disk")["verify"].clone();
    assert_eq!((&verify["state"], &verify["partial"]), (&"done".into(), &true.into()));
    cluster.done(&["dev", "start", "c"]);
    cluster.wait("disk", "healthy");
    let whole = cluster.done(&["resource", "verify", "disk", "--wait"]);
    assert!(whole.contains("all replicas were compared, and are the same"), "{whole}");
    assert_eq!(cluster.resource("disk")["verify"]["partial"], false);
}

#[test]
fn a_resource_has_as_many_shards_as_its_nodes_have_threads_unless_another_number_is_asked_for() {
    let cluster = TestCluster::up(2, "file");
    cluster.done(&["dev", "kill", "b"]);
    let settings = cluster.directory.join("b/node.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("threads = 2\n{text}")).unwrap();
    cluster.done(&["dev", "start", "b"]);
    let shards = |name: &str, more: &[&str]| {
        let words = ["resource", "create", name, "--size", "16MiB"];
        cluster.done(&[&words[..], more].concat());
        cluster.json(&["resource", "show", name])["resource"]["shards"].as_u64()
    };
    assert_eq!(shards("both", &[]), Some(2));
    assert_eq!(shards("alone", &["--replicas", "1", "--nodes", "a"]), Some(1), "a has one thread");
    assert_eq!(shards("four", &["--shards", "4"]), Some(4));
    let log = ["--log-extents", "64"];
    cluster.done(&[&["resource", "create", "logged", "--size", "16MiB"], &log[..]].concat());
    let shown = cluster.json(&["resource", "show", "logged"]);
    assert_eq!(shown["resource"]["volumes"][0]["log_extents"], 64, "{shown}");
}

#[test]
fn without_quorum_no_replica_is_added_or_removed_and_the_operator_hears_why() {
    let cluster = TestCluster::up(4, "file");
    let nodes = ["--replicas", "3", "--nodes", "a,b,c"];
    cluster.done(&[&["resource", "create", "disk", "--size", "16MiB"], &nodes[..]].concat());
    cluster.wait("disk", "in-sync");
    for node in ["b", "c"] {
        cluster.done(&["dev", "kill", node]);
    }
    cluster.until("the quorum to be missed", || cluster.resource("disk")["quorum"] == false);
    for words in [["add-replica", "disk", "--node", "d"], ["remove-replica", "disk", "--node", "b"]]
    {
        let why = cluster.ends_with(1, &[&["resource"], &words[..]].concat());
        assert!(why.contains("LS-0030") && why.contains("nothing was changed"), "{why}");
    }
    assert_eq!(cluster.state("disk", "d"), "diskless");
}

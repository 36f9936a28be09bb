//! What an operator does when a majority is lost for good, or was only away: force a copy, and take the others again.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use harness::{Nbd, TestCluster};
use serde_json::Value;

fn create(cluster: &TestCluster, options: &[&str]) {
    let create = ["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"];
    cluster.done(&[&create[..], options].concat());
    cluster.wait("disk", "in-sync");
    Nbd::open(&cluster.nbd("a"), "disk").write(1);
}

/// Nodes a and b are dead, and c was forced.
fn forced(cluster: &TestCluster, options: &[&str]) {
    create(cluster, options);
    cluster.done(&["dev", "kill", "a"]);
    cluster.done(&["dev", "kill", "b"]);
    let said = cluster.done(&["resource", "force", "disk", "--node", "c"]);
    assert!(said.contains("lockstep explain disk"), "{said}");
}

fn explained(cluster: &TestCluster) -> String {
    cluster.done(&["explain", "disk"])
}

/// Hash of what a node's copy holds, once nobody uses it.
fn hash(cluster: &TestCluster, node: &str) -> String {
    let mut found = String::new();
    cluster.until("a hash of a copy", || {
        let mut socket =
            UnixStream::connect(cluster.directory.join(node).join("admin.sock")).unwrap();
        let asked = r#"{"version":1,"id":1,"command":{"verb":"dump","resource":"disk"}}"#;
        writeln!(socket, "{asked}").unwrap();
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line).unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap();
        let hash = reply["result"]["volumes"][0]["hash"].as_str();
        found = hash.unwrap_or_default().to_owned();
        hash.is_some()
    });
    found
}

#[test]
fn copies_that_a_fork_left_out_are_taken_again_at_the_first_try() {
    let cluster = TestCluster::up(3, "file");
    forced(&cluster, &[]);
    let mut client = Nbd::open(&cluster.nbd("c"), "disk");
    assert_eq!(client.read(), 1);
    client.write(2);
    let told = explained(&cluster);
    for words in ["FORK", "left out when it was forced: a, b"] {
        assert!(cluster.done(&["status", "disk"]).contains(words), "{words}");
    }
    for node in ["a", "b"] {
        assert!(told.contains(&format!("add-replica disk --node {node}")), "{told}");
    }
    assert!(told.contains("remove-client disk"), "{told}");
    // Two copies are missed, though the fork has all that it knows of.
    cluster.ends_with(4, &["wait", "disk", "--for", "healthy", "--timeout", "1s"]);
    for node in ["a", "b"] {
        cluster.done(&["dev", "start", node]);
        cluster.done(&["resource", "add-replica", "disk", "--node", node]);
    }
    cluster.wait("disk", "healthy");
    cluster.done(&["resource", "verify", "disk", "--wait"]);
    client.write(3);
    drop(client);
    for node in ["a", "b", "c"] {
        assert_eq!(cluster.state("disk", node), "in-sync");
        assert_eq!(Nbd::open(&cluster.nbd(node), "disk").read(), 3);
    }
    let hashes: Vec<String> = ["a", "b", "c"].map(|node| hash(&cluster, node)).to_vec();
    assert!(hashes.iter().all(|one| *one == hashes[0]), "copies differ: {hashes:?}");
    assert!(!explained(&cluster).contains("left out when"));
    for node in ["a", "b"] {
        let log = || std::fs::read_to_string(cluster.directory.join(node).join("log")).unwrap();
        cluster.until("the node to say what it did", || log().contains("gives up its side"));
        let log = log();
        assert!(!log.contains("SPLIT BRAIN"), "nobody has to choose: {log}");
    }
}

#[test]
fn what_holds_a_fork_back_and_what_is_lost_for_good_can_be_said() {
    let cluster = TestCluster::up(3, "file");
    forced(&cluster, &["--in-sync-min", "2"]);
    let told = explained(&cluster);
    let lower = "lockstep resource set-options disk --in-sync-min 1";
    assert!(told.contains(lower), "{told}");
    let words: Vec<&str> = lower.split(' ').skip(1).collect();
    cluster.done(&words);
    assert_eq!(Nbd::open(&cluster.nbd("c"), "disk").read(), 1);
    for node in ["a", "b"] {
        cluster.done(&["resource", "remove-client", "disk", "--node", node]);
    }
    cluster.wait("disk", "healthy");
    cluster.ends_with(3, &["resource", "remove-client", "disk", "--node", "b"]);
    // What the node knows it still knows after a start.
    cluster.done(&["dev", "kill", "c"]);
    cluster.done(&["dev", "start", "c"]);
    assert_eq!(Nbd::open(&cluster.nbd("c"), "disk").read(), 1);
    cluster.wait("disk", "healthy");
    // One that comes back all the same is no node of it any more.
    cluster.done(&["dev", "start", "a"]);
    cluster.until("the stranger to be named", || {
        cluster.resource("disk")["warnings"].to_string().contains("node a speaks about it")
    });
    cluster.done(&["resource", "add-replica", "disk", "--node", "a"]);
    cluster.wait("disk", "healthy");
    assert_eq!(Nbd::open(&cluster.nbd("a"), "disk").read(), 1);
}

#[test]
fn a_node_is_let_in_as_a_client_and_sent_away() {
    let cluster = TestCluster::up(3, "file");
    let file = cluster.directory.join("disk.toml");
    std::fs::write(
        &file,
        "nodes = [{ id = 1, name = \"a\" }, { id = 2, name = \"b\" }]\n\
         members = [{ node = \"a\" }, { node = \"b\" }]\nvolumes = [{ size = \"8MiB\" }]\n",
    )
    .unwrap();
    cluster.done(&["resource", "create", "disk", "--from", file.to_str().unwrap()]);
    Nbd::open(&cluster.nbd("a"), "disk").write(1);
    cluster.ends_with(3, &["resource", "remove-client", "disk", "--node", "c"]);
    cluster.done(&["resource", "add-client", "disk", "--node", "c"]);
    let mut client = Nbd::open(&cluster.nbd("c"), "disk");
    assert_eq!(client.read(), 1);
    let refused = cluster.ends_with(1, &["resource", "remove-client", "disk", "--node", "c"]);
    assert!(refused.contains("LS-0015"), "{refused}");
    cluster.ends_with(1, &["resource", "remove-client", "disk", "--node", "a"]);
    drop(client);
    cluster.until("the client to be gone", || cluster.resource("disk")["clients"] == 0);
    cluster.done(&["resource", "promote", "disk", "--node", "a"]);
    cluster.done(&["resource", "remove-client", "disk", "--node", "c"]);
    let known = cluster.resource("disk")["replicas"].as_array().unwrap().len();
    assert_eq!(known, 2);
    cluster.done(&["resource", "add-replica", "disk", "--node", "c"]);
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "c"), "in-sync");
}

#[test]
fn neither_what_lacks_nothing_nor_what_is_left_over_of_a_deleted_resource_is_forced() {
    let cluster = TestCluster::up(3, "file");
    create(&cluster, &[]);
    cluster.wait("disk", "healthy");
    let force = |node: &'static str| ["resource", "force", "disk", "--node", node];
    let refused = cluster.ends_with(1, &force("a"));
    assert!(refused.contains("LS-0931") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(cluster.resource("disk")["fork"], 0);
    cluster.done(&["dev", "kill", "c"]);
    cluster.done(&["resource", "delete", "disk", "--force"]);
    cluster.done(&["dev", "start", "c"]);
    cluster.until("c to hear that it is deleted", || {
        cluster.resource("disk")["left_over"].as_bool().unwrap_or_default()
    });
    let told = explained(&cluster);
    let deleted = told.contains("deleted on other nodes");
    assert!(deleted && told.contains("resource forget disk --node c"), "{told}");
    assert!(!told.contains("force") && !told.contains("add-replica"), "{told}");
    assert!(cluster.done(&["status", "disk"]).contains("LEFT OVER"));
    assert!(cluster.done(&["resource", "list"]).contains("left over"));
    let refused = cluster.ends_with(1, &force("c"));
    assert!(refused.contains("LS-0931") && refused.contains("left over"), "{refused}");
    cluster.done(&["resource", "forget", "disk", "--node", "c"]);
    cluster.ends_with(3, &["status", "disk"]);
}

#[test]
fn copies_that_a_fork_left_out_are_named_when_the_resource_is_deleted_without_them() {
    let cluster = TestCluster::up(3, "file");
    forced(&cluster, &[]);
    let said = cluster.done(&["resource", "delete", "disk", "--force"]);
    assert!(said.contains("left on a, b"), "{said}");
    for node in ["a", "b"] {
        cluster.done(&["dev", "start", node]);
    }
    let (_, remedy) = said.split_once("`lockstep ").unwrap();
    let words: Vec<&str> = remedy.split('`').next().unwrap().split(' ').collect();
    cluster.done(&words);
    for node in ["a", "b"] {
        assert!(!cluster.directory.join(node).join("volumes/disk-0.img").exists(), "{words:?}");
    }
}

#[test]
fn the_copy_that_is_left_is_forced_though_a_primary_without_one_has_requests_open() {
    let cluster = TestCluster::up(4, "file");
    create(&cluster, &["--nodes", "a,b,c"]);
    cluster.done(&["resource", "promote", "disk", "--node", "d"]);
    let mut volume = cluster.open("d", "disk");
    volume.write(0, &[2; 4096]).unwrap();
    for node in ["a", "b"] {
        cluster.done(&["dev", "kill", node]);
    }
    cluster.until("no quorum", || cluster.resource("disk")["quorum"] == false);
    let waiting = std::thread::spawn(move || volume.write(4096, &[3; 4096]));
    let told = explained(&cluster);
    assert!(told.contains("lockstep resource demote disk   (first: d has no copy"), "{told}");
    cluster.done(&["resource", "demote", "disk"]);
    cluster.done(&["resource", "force", "disk", "--node", "c"]);
    waiting.join().unwrap().expect("it is done there");
    assert!(cluster.holds("disk", "c", 0, 2) && cluster.holds("disk", "c", 4096, 3));
}

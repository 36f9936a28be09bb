//! A resource that nobody uses, after its primary's process has ended: nothing is wrong, and nothing is said to be.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use harness::{Nbd, TestCluster};

/// Every copy is there and in sync, nobody is primary, and nobody waits.
#[track_caller]
fn is_idle_and_healthy(cluster: &TestCluster) {
    cluster.wait("disk", "in-sync");
    cluster.wait("disk", "healthy");
    let view = cluster.resource("disk");
    assert!(view["primary"].is_null() && view["suspended"].is_null(), "{view}");
    let list = cluster.done(&["resource", "list"]);
    assert!(list.contains("healthy") && list.contains("3 of 3"), "{list}");
    let why = cluster.done(&["explain", "disk"]);
    assert!(why.contains("No node is primary: nobody uses disk now"), "{why}");
    assert!(!why.contains("! "), "nothing is to be done: {why}");
    let status = cluster.done(&["status", "disk"]);
    assert!(status.contains("no primary") && !status.contains("wait"), "{status}");
    cluster.ends_with(4, &["wait", "disk", "--for", "primary", "--timeout", "1ms"]);
    let said = cluster.done(&["resource", "demote", "disk"]);
    assert!(said.contains("no node was primary"), "{said}");
}

#[test]
fn a_resource_whose_primary_came_back_is_healthy_though_nobody_uses_it() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"]);
    cluster.wait("disk", "in-sync");
    Nbd::open(&cluster.nbd("a"), "disk").write(1);
    cluster.wait("disk", "primary");
    assert_eq!(cluster.resource("disk")["primary"], "a");
    for node in ["a", "b", "c"] {
        cluster.done(&["dev", "kill", node]);
        cluster.done(&["dev", "start", node]);
    }
    is_idle_and_healthy(&cluster);
    for node in ["a", "b", "c"] {
        cluster.done(&["dev", "kill", node]);
    }
    cluster.done(&["dev", "up", "--detach"]);
    is_idle_and_healthy(&cluster);
    let mut client = Nbd::open(&cluster.nbd("b"), "disk");
    assert_eq!(client.read(), 1);
    cluster.wait("disk", "primary");
    assert_eq!(cluster.resource("disk")["primary"], "b");
}

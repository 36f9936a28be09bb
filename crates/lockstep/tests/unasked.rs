//! Words that remove something, said where not every node is asked or a store is not what it was.
//!
//! Whoever was not asked may hold what counts, and what bears another label is another's.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs;

use harness::TestCluster;

/// A cluster with a resource that holds something, and its nodes' admin sockets.
fn used() -> (TestCluster, [String; 3]) {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "8MiB", "--replicas", "3"]);
    cluster.wait("disk", "in-sync");
    cluster.open("a", "disk").write(0, &[7; 4096]).unwrap();
    let sockets = ["a", "b", "c"]
        .map(|node| cluster.directory.join(node).join("admin.sock").to_str().unwrap().to_owned());
    (cluster, sockets)
}

#[test]
fn a_member_that_was_not_asked_is_no_member_that_is_not_there() {
    let (cluster, [a, b, c]) = used();
    let refused = cluster.ends_with(1, &["--admin", &b, "resource", "delete", "disk"]);
    assert!(
        refused.contains("was not asked") && refused.contains("nothing was changed"),
        "{refused}"
    );
    let create = ["resource", "create", "disk", "--size", "8MiB", "--replicas", "2"];
    let said = cluster.ends_with(1, &[&["--admin", &b, "--admin", &c][..], &create].concat());
    assert!(said.contains("LS-0915"), "{said}");
    for (socket, node) in [(&a, "a"), (&c, "c")] {
        let forget = ["--admin", socket, "resource", "forget", "disk", "--node", node];
        let refused = cluster.ends_with(1, &forget);
        assert!(refused.contains("LS-0927"), "{refused}");
    }
    for node in ["a", "b", "c"] {
        assert!(cluster.holds("disk", node, 0, 7), "the copy on {node} is gone");
    }
}

#[test]
fn what_a_client_s_node_uses_that_was_not_asked_is_not_deleted() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "8MiB", "--nodes", "a,b"]);
    cluster.wait("disk", "in-sync");
    let mut volume = cluster.open("c", "disk");
    volume.write(0, &[7; 4096]).unwrap();
    cluster.until("c is primary", || cluster.resource("disk")["primary"] == "c");
    let [a, b] = ["a", "b"]
        .map(|node| cluster.directory.join(node).join("admin.sock").to_str().unwrap().to_owned());
    let delete = ["--admin", &a, "--admin", &b, "resource", "delete", "disk"];
    let refused = cluster.ends_with(1, &delete);
    assert!(refused.contains("LS-0015") && refused.contains("node c"), "{refused}");
    assert!(refused.contains("nothing was changed"), "{refused}");
    let mut bytes = [0; 4096];
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    // Nor if another node is primary, and the client's asks that one.
    cluster.done(&["resource", "promote", "disk", "--node", "a"]);
    volume.write(0, &[8; 4096]).unwrap();
    assert_eq!(cluster.resource("disk")["primary"], "a");
    let refused = cluster.ends_with(1, &delete);
    assert!(refused.contains("LS-0015") && refused.contains("node c"), "{refused}");
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [8; 4096]);
    cluster.done(&[&delete[..], &["--force"]].concat());
}

#[test]
fn a_store_that_bears_the_label_of_another_resource_is_not_removed() {
    let (cluster, _) = used();
    cluster.done(&["resource", "create", "other", "--size", "8MiB", "--replicas", "3"]);
    cluster.wait("other", "in-sync");
    cluster.open("a", "other").write(0, &[9; 4096]).unwrap();
    cluster.done(&["dev", "kill", "c"]);
    let image = |name: &str| cluster.directory.join(format!("c/volumes/{name}-0.img"));
    let swap = |from: &str, to: &str| fs::rename(image(from), image(to)).unwrap();
    swap("disk", "kept");
    swap("other", "disk");
    swap("kept", "other");
    cluster.done(&["dev", "start", "c"]);
    cluster.wait_for_state("disk", "c", "detached");
    let said = cluster.ends_with(1, &["resource", "delete", "disk"]);
    assert!(said.contains("left as it is"), "{said}");
    assert!(image("disk").exists(), "that was the store of `other`");
    cluster.done(&["dev", "kill", "c"]);
    swap("disk", "kept");
    fs::remove_file(image("other")).unwrap();
    swap("kept", "other");
    cluster.done(&["dev", "start", "c"]);
    cluster.wait("other", "in-sync");
    assert!(cluster.holds("other", "c", 0, 9));
}

//! Two resources of one name: a node was away while the first was deleted and the second made.
//!
//! Whatever is said by the name alone must not touch the wrong one.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use harness::TestCluster;
use serde_json::Value;

/// Node c has the first `db`, which the others have deleted, and they have another one. With both identities.
fn namesakes() -> (TestCluster, String, String) {
    let cluster = TestCluster::up(3, "file");
    let create = ["resource", "create", "db", "--size", "8MiB", "--replicas"];
    cluster.done(&[&create[..], &["3"]].concat());
    cluster.wait("db", "in-sync");
    cluster.open("a", "db").write(0, &[1; 4096]).unwrap();
    cluster.done(&["resource", "demote", "db"]);
    // Its configuration is newer than any that the second one will have here.
    cluster.done(&["resource", "promote", "db", "--node", "b"]);
    let old = cluster.resource("db")["id"].as_str().unwrap().to_owned();
    cluster.done(&["dev", "kill", "c"]);
    let refused = cluster.ends_with(1, &["resource", "delete", "db"]);
    assert!(refused.contains("forget db --node c"), "the remedy goes on: {refused}");
    let said = cluster.done(&["resource", "delete", "db", "--force"]);
    assert!(!said.contains("on all nodes"), "{said}");
    assert!(said.contains("left on c") && said.contains("forget db --node c"), "{said}");
    cluster.done(&[&create[..], &["2"]].concat());
    cluster.open("a", "db").write(0, &[2; 4096]).unwrap();
    let new = cluster.resource("db")["id"].as_str().unwrap().to_owned();
    assert_ne!(old, new);
    cluster.done(&["dev", "start", "c"]);
    cluster.until("c has heard that its db is deleted", || {
        of_id(&cluster, &old)["left_over"].as_bool().unwrap_or_default()
    });
    (cluster, old, new)
}

fn of_id(cluster: &TestCluster, id: &str) -> Value {
    let status = cluster.json(&["status", "db"]);
    let all = status["resources"].as_array().unwrap();
    all.iter().find(|resource| resource["id"] == id).cloned().unwrap_or_default()
}

/// The second `db`, of this identity, holds what was written to it.
fn holds_what_was_written(cluster: &TestCluster, new: &str) {
    for node in ["a", "b"] {
        cluster.done(&["resource", "promote", "db", "--node", node, "--id", new]);
        let mut bytes = [0; 4096];
        cluster.open(node, "db").read(0, &mut bytes).unwrap();
        assert!(bytes == [2; 4096], "the copy on {node} is gone");
    }
}

#[test]
fn two_resources_of_one_name_are_both_shown_and_the_remedy_removes_the_left_over_only() {
    let (cluster, old, new) = namesakes();
    let shown = cluster.done(&["status"]);
    for words in [&old, &new, "lockstep resource forget db --node c"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
    let listed = cluster.done(&["resource", "list"]);
    assert!(listed.contains(&old) && listed.contains(&new), "{listed}");
    for words in [
        &["resource", "delete", "db"][..],
        &["resource", "delete", "db", "--force"],
        &["resource", "demote", "db"],
        &["resource", "remove-client", "db", "--node", "c"],
        &["resource", "promote", "db", "--node", "c"],
        &["resource", "invalidate", "db", "--node", "c"],
        &["resource", "fail-waiting", "db", "--node", "c"],
        &["resource", "let-wait", "db", "--node", "c"],
        &["resource", "force", "db", "--node", "c", "--discard-newer"],
        &["resource", "resolve", "db", "--discard", "c"],
        &["resource", "suspend", "db"],
        &["resource", "resume", "db"],
        &["resource", "pause-resync", "db"],
        &["resource", "resume-resync", "db"],
        &["resource", "verify", "db"],
        &["resource", "verify", "db", "--stop"],
        &["resource", "set-options", "db", "--read-policy", "striped"],
        &["resource", "resize", "db", "--size", "16MiB"],
        &["resource", "add-replica", "db", "--node", "c"],
        &["resource", "remove-replica", "db", "--node", "b"],
        &["resource", "add-client", "db", "--node", "c"],
        &["resource", "show", "db"],
        &["explain", "db"],
        &["wait", "db", "--for", "in-sync"],
    ] {
        let refused = cluster.ends_with(2, words);
        assert!(refused.contains("LS-0925") && refused.contains("--id"), "{refused}");
        assert!(refused.contains(&old) && refused.contains(&new), "{refused}");
    }
    let refused = cluster.ends_with(1, &["resource", "forget", "db", "--node", "a"]);
    assert!(refused.contains("LS-0927"), "a holds the living one: {refused}");
    cluster.wait_for_id("db", &new, "in-sync");

    cluster.done(&["resource", "forget", "db", "--node", "c"]);
    assert!(!cluster.directory.join("c/volumes/db-0.img").exists(), "its store is gone, too");
    assert!(cluster.resource("db")["id"] == *new);
    holds_what_was_written(&cluster, &new);
    // Its name is free on c, which hears of the living one.
    cluster.until("c may use it", || cluster.json(&["status", "db"])["resources"][0]["id"] == *new);
    cluster.until("c serves it", || {
        let admin = cluster.directory.join("c/admin.sock");
        let own = cluster.lockstep(&["--admin", admin.to_str().unwrap(), "status", "db"]);
        own.status.success()
    });
}

/// One line on a node's admin socket, and its answer.
fn say(cluster: &TestCluster, node: &str, line: &str) -> String {
    let socket = cluster.directory.join(node).join("admin.sock");
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn a_node_refuses_a_command_about_another_resource_of_the_name() {
    let (cluster, old, new) = namesakes();
    for command in [
        r#"{"verb":"resource-delete","resource":"db","force":true}"#,
        r#"{"verb":"resource-forget","resource":"db","stores":true}"#,
        r#"{"verb":"operation","resource":"db","operation":{"do":"promote"}}"#,
        r#"{"verb":"resource-file","resource":"db"}"#,
    ] {
        let request =
            |id: &str| format!(r#"{{"version":1,"id":1,"identity":"{id}","command":{command}}}"#);
        let (answer, other) =
            (say(&cluster, "a", &request(&old)), say(&cluster, "c", &request(&new)));
        assert!(answer.contains("LS-0065") && other.contains("LS-0065"), "{answer}{other}");
    }
    holds_what_was_written(&cluster, &new);
}

#[test]
fn a_node_that_has_another_resource_of_the_name_refuses_what_is_asked_of_it() {
    let (cluster, old, new) = namesakes();
    for (id, node) in [(&old, "a"), (&new, "c")] {
        for word in ["promote", "invalidate", "fail-waiting", "let-wait", "force"] {
            let mut words = vec!["resource", word, "db", "--node", node, "--id", id];
            if word == "force" {
                words.push("--discard-newer");
            }
            let refused = cluster.ends_with(1, &words);
            let says_which = refused.contains(&old) && refused.contains(&new);
            assert!(refused.contains("LS-0065") && says_which, "{words:?}: {refused}");
        }
    }
    // With the right one it is done, and to that one only.
    cluster.done(&["resource", "fail-waiting", "db", "--node", "c", "--id", &old]);
    assert_eq!(of_id(&cluster, &old)["failed_by_operator"], true);
    assert_ne!(of_id(&cluster, &new)["failed_by_operator"], true);
    cluster.done(&["resource", "promote", "db", "--node", "b", "--id", &new]);
    assert_eq!(of_id(&cluster, &new)["primary"], "b");
    cluster.done(&["resource", "forget", "db", "--node", "c"]);
    holds_what_was_written(&cluster, &new);
}

#[test]
fn a_resource_is_deleted_by_its_identity_where_another_has_its_name() {
    let (cluster, old, new) = namesakes();
    let said = cluster.done(&["resource", "delete", "db", "--id", &old]);
    assert!(said.contains("on c") && !said.contains("all nodes"), "{said}");
    assert!(!cluster.directory.join("c/volumes/db-0.img").exists());
    holds_what_was_written(&cluster, &new);
    cluster.ends_with(3, &["resource", "delete", "db", "--id", &old]);
    cluster.done(&["resource", "delete", "db"]);
    cluster.ends_with(3, &["status", "db"]);
}

#[test]
fn what_a_node_holds_of_a_living_resource_is_not_forgotten() {
    let cluster = TestCluster::up(2, "file");
    cluster.done(&["resource", "create", "db", "--size", "4MiB", "--replicas", "2"]);
    let forget = ["resource", "forget", "db", "--node", "b"];
    let refused = cluster.ends_with(1, &forget);
    assert!(refused.contains("LS-0927"), "{refused}");
    let forced = [&forget[..], &["--force"]].concat();
    cluster.ends_with(1, &forced);
    cluster.done(&["dev", "kill", "a"]);
    let refused = cluster.ends_with(1, &forget);
    assert!(refused.contains("may be needed by a"), "{refused}");
    assert!(cluster.directory.join("b/volumes/db-0.img").exists());
    cluster.done(&forced);
    assert!(!cluster.directory.join("b/volumes/db-0.img").exists());
}

#[test]
fn parts_that_are_left_over_on_two_nodes_do_not_count_on_each_other() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "db", "--size", "4MiB", "--replicas", "3"]);
    for node in ["b", "c"] {
        cluster.done(&["dev", "kill", node]);
    }
    cluster.done(&["resource", "delete", "db", "--force"]);
    for node in ["b", "c"] {
        cluster.done(&["dev", "start", node]);
    }
    cluster.until("both to hear that it is deleted", || {
        let left_over = |node: &str| {
            let admin = cluster.directory.join(node).join("admin.sock");
            let words = ["--admin", admin.to_str().unwrap(), "status", "db"];
            cluster.json(&words)["resources"][0]["left_over"] == true
        };
        left_over("b") && left_over("c")
    });
    for node in ["b", "c"] {
        cluster.done(&["resource", "forget", "db", "--node", node]);
        assert!(!cluster.directory.join(node).join("volumes/db-0.img").exists());
    }
}

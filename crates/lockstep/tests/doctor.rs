//! `lockstep doctor`, on machines that lack something.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;
#[path = "../../lockstepd/tests/harness/refusing.rs"]
mod refusing;

use std::net::TcpListener;

use harness::TestCluster;
use refusing::Refusing;
use serde_json::Value;

/// The finding about a thing.
fn finding<'a>(told: &'a Value, what: &str) -> &'a Value {
    let all = told["findings"].as_array().unwrap();
    all.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("{what}: {told}"))
}

#[test]
fn ports_and_peers_of_nodes_are_tried_and_what_is_missing_fails() {
    let cluster = TestCluster::up(2, "file");
    let told = cluster.json(&["doctor"]);
    for what in ["node a, listen", "node b, nbd", "node a, nvme", "node b to a", "clock"] {
        assert_eq!(finding(&told, what)["verdict"], "ok", "{told}");
    }
    let room = format!("room in {}", cluster.directory.join("a").display());
    assert!(finding(&told, &room)["found"].as_str().unwrap().ends_with("free"));
    cluster.done(&["dev", "kill", "b"]);
    // The kernel keeps a ring's sockets for a moment when its process has ended.
    let mut told = Value::Null;
    cluster.until("the ports of node b to be closed", || {
        told = cluster.json(&["doctor"]);
        finding(&told, "node a to b")["verdict"] != "ok"
    });
    assert_eq!(finding(&told, "node b, nbd")["verdict"], "ok", "free: {told}");
    let away = finding(&told, "node a to b");
    assert_eq!(
        (&away["verdict"], &away["remedy"]),
        (&"degraded".into(), &"start that node".into())
    );
    // Another program is where the node wants to be.
    let intruder = TcpListener::bind(cluster.nbd("b")).unwrap();
    let said = cluster.ends_with(1, &["doctor"]);
    assert!(said.contains("LS-0932") && said.contains("without: node b, nbd"), "{said}");
    assert!(said.contains("ss -ltnp"), "{said}");
    drop(intruder);
    cluster.done(&["doctor"]);
    let said = cluster.ends_with(2, &["doctor", "/not/there"]);
    assert!(said.contains("/not/there: there is nothing"), "{said}");
}

#[test]
fn a_kernel_that_refuses_io_uring_is_found_by_trying() {
    let directory = std::env::temp_dir().join(format!("ls-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let refusing = Refusing::build(&directory);
    let told: Vec<Value> = [1, 38]
        .into_iter()
        .filter_map(|errno| {
            let mut command =
                refusing.as_ref()?.command("io_uring", errno, env!("CARGO_BIN_EXE_lockstep"));
            let output = command
                .args(["doctor", "--output", "json"])
                .env_remove("LOCKSTEP_DIR")
                .output()
                .unwrap();
            assert!(output.status.success(), "a node does without: {output:?}");
            Some(serde_json::from_slice(&output.stdout).unwrap())
        })
        .collect();
    std::fs::remove_dir_all(&directory).ok();
    for told in told {
        let ring = finding(&told, "io_uring");
        assert_eq!(ring["verdict"], "degraded", "{told}");
        assert!(ring["remedy"].as_str().unwrap().contains("seccomp"), "{told}");
        assert!(ring["costs"].as_str().unwrap().contains("epoll"), "{told}");
    }
}

//! `lockstep events`: one command hears the whole cluster.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use harness::{Nbd, TestCluster};
use serde_json::Value;

/// The command, and the lines that it has said.
struct Listening {
    child: Child,
    lines: Receiver<Value>,
    heard: Vec<Value>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Listening {
    fn begin(cluster: &TestCluster) -> Listening {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["events", "--output", "json"])
            .env("LOCKSTEP_DIR", &cluster.directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines() {
                let line = serde_json::from_str(&line.unwrap()).unwrap();
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Listening { child, lines, heard: Vec::new() }
    }

    /// Hears lines until one is as wanted.
    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) {
        loop {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(60)) else {
                panic!("waited in vain for {what}: {:#?}", self.heard);
            };
            let found = wanted(&line);
            self.heard.push(line);
            if found {
                return;
            }
        }
    }
}

fn primary(line: &Value) -> &str {
    line["status"]["primary"].as_str().unwrap_or_default()
}

#[test]
fn what_happens_is_told_wherever_it_happens_in_versioned_lines_without_a_gap() {
    let cluster = TestCluster::up(3, "file");
    let create = ["resource", "create", "disk", "--size", "8MiB", "--replicas", "3"];
    cluster.done(&create);
    let mut events = Listening::begin(&cluster);
    events.until("how it is at first", |line| line["resource"] == "disk");
    let mut client = Nbd::open(&cluster.nbd("a"), "disk");
    client.write(1);
    events.until("a to be primary", |line| primary(line) == "a");
    // The node that is asked first ends, and was primary: the others go on telling.
    drop(client);
    cluster.done(&["dev", "kill", "a"]);
    events.until("a to be silent", |line| line["silent"][0] == "a");
    let mut client = Nbd::open(&cluster.nbd("c"), "disk");
    client.write(2);
    events.until("c to be primary", |line| primary(line) == "c");
    cluster.done(&["dev", "start", "a"]);
    events.until("a to be in sync again", |line| {
        let all = line["status"]["replicas"].as_array();
        let good = all.is_some_and(|all| all.iter().all(|one| one["state"] == "in-sync"));
        good && line["silent"].as_array().unwrap().is_empty()
    });
    // A client that only node b sees.
    let mut other = Nbd::open(&cluster.nbd("b"), "disk");
    assert_eq!(other.read(), 2);
    events.until("both clients", |line| line["status"]["clients"] == 2);
    drop((client, other));
    cluster.done(&["resource", "delete", "disk", "--force"]);
    events.until("the end", |line| line["status"].is_null());
    for (line, number) in events.heard.iter().zip(1..) {
        assert_eq!(line["version"], 1, "{line}");
        assert_eq!(line["number"], number, "{line}");
        assert!(line["at_ms"].as_u64().unwrap() > 1_000_000_000_000, "{line}");
    }
}

#[test]
fn a_node_that_stands_still_is_named_until_it_goes_on() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "8MiB", "--replicas", "3"]);
    let mut events = Listening::begin(&cluster);
    events.until("how it is at first", |line| line["resource"] == "disk");
    let frozen = cluster.frozen("c");
    events.until("c to be silent", |line| line["silent"][0] == "c");
    drop(frozen);
    events.until("c to answer", |line| line["silent"].as_array().unwrap().is_empty());
}

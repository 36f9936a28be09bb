//! What becomes of words to a node that stands still: found out soon, and not done when nobody waits for it any more.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;

use harness::TestCluster;
use wire::admin::{Command, Operation, Request, encode_line};

#[test]
fn a_word_to_a_node_that_stands_still_fails_soon_and_is_not_carried_out_when_it_goes_on() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"]);
    cluster.wait("disk", "in-sync");
    let frozen = cluster.frozen("c");
    for word in ["promote", "invalidate", "fail-waiting"] {
        let why = cluster.ends_with(4, &["resource", word, "disk", "--node", "c"]);
        assert!(why.contains("LS-0917") && why.contains("node c does not answer"), "{why}");
        assert!(why.contains("it was not told to do anything"), "{why}");
        assert!(!why.contains("--timeout"), "there is no such option: {why}");
    }
    // As a program that was interrupted while it waited for the answer.
    let home = cluster.directory.join("c");
    let mut interrupted = UnixStream::connect(home.join("admin.sock")).unwrap();
    let (resource, operation) = ("disk".to_owned(), Operation::Invalidate {});
    let mut line = Vec::new();
    encode_line(&Request::new(1, Command::Operation { resource, operation }), &mut line).unwrap();
    interrupted.write_all(&line).unwrap();
    drop(interrupted);
    drop(frozen);
    let log = || fs::read_to_string(home.join("log")).unwrap();
    cluster.until("the node to take it up, or to drop it", || {
        let log = log();
        log.contains("who asked has gone") || log.contains("an operator asks")
    });
    let log = log();
    assert!(!log.contains("an operator asks"), "nobody waits for any of it: {log}");
    assert!(log.contains("who asked has gone (Invalidate of disk)"), "{log}");
    // The others left it after five seconds of silence.
    cluster.wait("disk", "in-sync");
    cluster.done(&["resource", "promote", "disk", "--node", "c"]);
}

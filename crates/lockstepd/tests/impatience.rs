//! Requests that wait for nodes that are missing, and an operator who does not want them to: real processes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use harness::{Cluster, content};
use wire::admin::{Command, Operation};

const MIB: u64 = 1 << 20;

fn operate(cluster: &Cluster, node: u16, operation: Operation) -> Result<(), String> {
    let resource = "alpha".to_owned();
    cluster.ask(node, Command::Operation { resource, operation }).map(drop)
}

#[test]
fn requests_that_wait_without_quorum_end_with_an_error_where_an_operator_wants_it() {
    let mut cluster = Cluster::new("impatience", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    let refused = operate(&cluster, 1, Operation::FailWaiting {}).unwrap_err();
    assert!(refused.contains("LS-0060"), "nothing waits: {refused}");
    cluster.kill(2);
    cluster.kill(3);
    // It waits: without the operator's word its answer would not come.
    let waiting = std::thread::spawn(move || {
        let failed = volume.write(MIB, &content(2, 4096));
        (volume, failed)
    });
    cluster.wait_for("a request that waits for want of quorum", || {
        let status = cluster.status(1, "alpha");
        let waits = !status.quorum && status.suspended.is_some() && status.requests_in_flight > 0;
        if waits { Ok(()) } else { Err(format!("{status:?}")) }
    });
    assert!(!cluster.status(1, "alpha").requests_fail);
    operate(&cluster, 1, Operation::FailWaiting {}).unwrap();
    let (mut volume, failed) = waiting.join().unwrap();
    assert!(failed.unwrap_err().contains("Io"), "an I/O error");
    volume.read(0, 4096).expect_err("new ones fail, too");
    volume.flush().expect_err("all of them");
    let status = cluster.status(1, "alpha");
    assert!(status.requests_fail && status.failed_by_operator, "{status:?}");
    assert!(status.warnings.iter().any(|line| line.contains("let-wait alpha --node")));

    // Quorum returns: the same connection is served, and nothing more is to be said.
    cluster.start(2);
    cluster.wait_for("requests that are served", || volume.read(0, 4096).map(drop));
    assert_eq!(volume.read(0, 4096).unwrap(), content(1, 4096));
    let status = cluster.status(1, "alpha");
    assert!(!status.requests_fail && !status.failed_by_operator, "{status:?}");
    let now = volume.read(MIB, 4096).unwrap();
    assert!(now == content(2, 4096) || now.iter().all(|&byte| byte == 0), "there, or not");
    volume.write(MIB, &content(3, 4096)).unwrap();
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert_eq!(volume.read(MIB, 4096).unwrap(), content(3, 4096));
}

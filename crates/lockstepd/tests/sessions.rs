//! A loss of all caches, with real processes: clients from before it are told by errors.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use harness::{Cluster, content};

const MIB: u64 = 1 << 20;

/// With protocol B the memory of a process counts as its cache does, so that its end is the loss of one.
#[test]
fn a_client_from_before_the_loss_of_all_caches_gets_errors_until_it_opens_the_volume_anew() {
    let mut cluster = Cluster::new("sessions", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", 8 * MIB, &[1, 2]);
    file.options.protocol = wire::Protocol::B;
    cluster.create(&file);
    let bytes = content(3, 64 << 10);
    let mut before = cluster.open(3, "alpha");
    before.write(MIB, &bytes).unwrap();
    before.flush().unwrap();
    for node in 1..=2 {
        cluster.kill(node);
    }
    for node in 1..=2 {
        cluster.start(node);
    }
    assert!(before.read(MIB, 4096).is_err(), "it may have seen what is gone");
    assert!(before.read(MIB, 4096).is_err(), "and is told so again");
    let mut anew = cluster.open(3, "alpha");
    assert!(anew.read(MIB, 64 << 10).unwrap() == bytes, "what was flushed is there");
    anew.write(MIB, &bytes[..4096]).unwrap();
    cluster.wait_in_sync(3, "alpha", &[1, 2]);
}

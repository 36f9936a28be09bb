//! Clients of another time, with real processes: those from before a loss of all caches are told by errors, and what those
//! left who have gone is not carried out late.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Cluster, Volume, content};

const MIB: u64 = 1 << 20;

/// Three nodes, and a resource with copies on these.
fn serving(name: &str, replicas: &[u16]) -> Cluster {
    let mut cluster = Cluster::new(name, 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 8 * MIB, replicas));
    cluster
}

fn wait_until_given_up(cluster: &Cluster, node: u16) {
    cluster.wait_for(&format!("node {node} is given up"), || {
        match cluster.log(1).contains(&format!("node n{node}: disconnected")) {
            true => Ok(()),
            false => Err("it is not".to_owned()),
        }
    });
}

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

#[test]
fn what_a_client_that_has_gone_left_in_a_socket_is_not_carried_out_by_a_node_that_stood_still() {
    let cluster = serving("left", &[1, 3]);
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("written");
    let mut second = cluster.open(2, "alpha");
    assert!(second.read(0, 4096).expect("read") == content(1, 4096));
    cluster.signal(2, "STOP");
    // Its machine dies, and what ran there begins anew elsewhere.
    second.send_write(0, &content(2, 4096));
    drop(second);
    wait_until_given_up(&cluster, 2);
    first.write(0, &content(3, 4096)).expect("written");
    cluster.signal(2, "CONT");
    // Behind whatever that node found.
    let mut third = cluster.open(2, "alpha");
    third.write(4096, &content(4, 4096)).expect("written");
    third.flush().expect("flushed");
    assert!(first.read(0, 4096).expect("read") == content(3, 4096), "an older write came later");
}

#[test]
fn what_a_client_left_that_went_while_there_was_no_primary_is_not_carried_out() {
    let mut cluster = serving("gone", &[1, 3]);
    let mut holder = cluster.open(1, "alpha");
    holder.write(0, &content(1, 4096)).expect("written");
    let mut first = cluster.open(2, "alpha");
    assert!(first.read(0, 4096).expect("read") == content(1, 4096));
    for node in [1, 3] {
        cluster.kill(node);
    }
    first.send_write(0, &content(2, 4096));
    cluster.wait_for("node 2 has it", || match cluster.status(2, "alpha").requests_in_flight {
        0 => Err("nothing waits".to_owned()),
        _ => Ok(()),
    });
    first.vanish();
    cluster.wait_for("node 2 has seen it go", || {
        match cluster.status(2, "alpha").requests_in_flight {
            0 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        }
    });
    for node in [1, 3] {
        cluster.start(node);
    }
    let mut second = cluster.open(2, "alpha");
    second.write(4096, &content(3, 4096)).expect("written");
    assert!(second.read(0, 4096).expect("read") == content(1, 4096));
}

/// One that moves gives node 2 up and writes by another; node 2 stood still while a write of it was in its socket.
#[test]
fn what_a_client_that_moves_left_in_a_socket_is_not_carried_out_although_its_connection_is_there() {
    let cluster = serving("moves", &[1, 3]);
    let mut first = cluster.open(1, "alpha/0?moves");
    first.write(0, &content(1, 4096)).expect("written");
    let mut second = cluster.open(2, "alpha/0?moves");
    assert!(second.read(0, 4096).expect("read") == content(1, 4096));
    cluster.signal(2, "STOP");
    second.send_write(0, &content(2, 4096));
    wait_until_given_up(&cluster, 2);
    first.write(0, &content(3, 4096)).expect("written");
    cluster.signal(2, "CONT");
    assert!(second.read(4096, 4096).is_err(), "it is to send anew what has no answer");
    let mut third = cluster.open(2, "alpha");
    third.write(4096, &content(4, 4096)).expect("written");
    third.flush().expect("flushed");
    assert!(first.read(0, 4096).expect("read") == content(3, 4096), "an older write came later");
}

/// The node did not stand still for long, and something was always received of it: only the connection's end tells that it may have
/// written elsewhere since.
#[test]
fn what_a_client_that_moves_left_in_a_socket_is_not_carried_out_once_it_has_gone_however_short_it_lay()
 {
    let mut cluster = Cluster::new("moves-soon", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("written");
    let mut moves = cluster.open(1, "alpha?moves");
    assert!(moves.read(0, 4096).expect("read") == content(1, 4096));
    // A node that has just been busy does not look at everybody.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                first.read(4096, 4096).expect("read");
            }
        });
        cluster.signal(1, "STOP");
        moves.send_write(0, &content(2, 4096));
        moves.vanish();
        cluster.signal(1, "CONT");
        let found = cluster.open(1, "alpha").read(0, 4096);
        is_over.store(true, Ordering::Relaxed);
        assert!(found.expect("read") == content(1, 4096), "it was carried out");
    });
}

#[test]
fn a_client_that_moves_notices_nothing_of_a_fail_over() {
    let cluster = serving("moves-on", &[1, 2, 3]);
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("written");
    let mut second = cluster.open(2, "alpha?moves");
    assert!(second.read(0, 4096).expect("read") == content(1, 4096));
    cluster.signal(1, "STOP");
    second.write(0, &content(2, 4096)).expect("written by the next primary");
    assert!(second.read(0, 4096).expect("read") == content(2, 4096));
    cluster.signal(1, "CONT");
}

/// Alone it has no majority, which another node may be part of.
#[test]
fn a_client_that_moves_is_sent_on_by_a_node_without_quorum_and_not_let_in_by_it() {
    let cluster = serving("moves-away", &[1, 2, 3]);
    let mut moves = cluster.open(2, "alpha?moves");
    let mut stays = cluster.open(2, "alpha");
    moves.write(0, &content(1, 4096)).expect("written");
    [1, 3].into_iter().for_each(|node| cluster.signal(node, "STOP"));
    moves.send_write(0, &content(2, 4096));
    stays.send_write(4096, &content(3, 4096));
    cluster.wait_for("the client to be sent on", || {
        let log = cluster.log(2);
        if log.contains("an NBD client went: this node has no quorum") { Ok(()) } else { Err(log) }
    });
    assert!(moves.take_answer().is_err(), "its connection ends, without an answer");
    let address = format!("{}:10809", cluster.address(2));
    let open = |export: &str| Volume::try_open(&address, export, None);
    let refused = open("alpha/0?moves").map(drop).unwrap_err();
    assert!(refused.contains("no quorum"), "{refused}");
    // Who has no other place waits here, as ever.
    drop(open("alpha").expect("it is let in"));
    [1, 3].into_iter().for_each(|node| cluster.signal(node, "CONT"));
    stays.take_answer().expect("written");
    let mut again = cluster.open(2, "alpha?moves");
    again.write(0, &content(4, 4096)).expect("written");
    assert!(again.read(0, 4096).expect("read") == content(4, 4096));
    assert_eq!(cluster.log(2).matches("an NBD client went: this node has no quorum").count(), 1);
}

/// What node 2 took from one that moves waits for the only copy longer than that surely stays.
#[test]
fn what_a_client_that_moves_may_have_asked_elsewhere_is_not_carried_out_by_the_next_primary() {
    let mut cluster = Cluster::new("moves-held", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 8 * MIB, &[1, 2, 3]);
    for witness in &mut file.members[1..] {
        (witness.kind, witness.stores) = (wire::MemberKind::Witness, Vec::new());
    }
    cluster.create(&file);
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("written");
    let mut second = cluster.open(2, "alpha?moves");
    assert!(second.read(0, 4096).expect("read") == content(1, 4096));
    cluster.signal(1, "STOP");
    second.send_write(0, &content(2, 4096));
    // So long it waits here, where there is a quorum.
    std::thread::sleep(std::time::Duration::from_secs(5));
    cluster.signal(1, "CONT");
    assert!(second.read(0, 4096).is_err(), "its connection ends, without an answer");
    assert!(!cluster.log(2).contains("this node has no quorum"), "and not for that");
    let mut again = cluster.open(2, "alpha?moves");
    assert!(again.read(0, 4096).expect("read") == content(1, 4096), "it was not carried out");
    again.write(0, &content(2, 4096)).expect("written");
    assert!(again.read(0, 4096).expect("read") == content(2, 4096));
}

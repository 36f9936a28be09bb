//! Comparing replicas over changes of primary, and what operators hold back.

use super::network::World;
use super::serving;
use crate::door::{Operation, OperationError};
use crate::member::Suspended;
use alloc::vec::Vec;
use base::VolumeId;
use wire::VerifyState;

const VERIFY: Operation = Operation::Verify { anew: false };
const STRIDE: u64 = 1 << 18;

fn state(world: &World) -> Option<(VerifyState, u64)> {
    world.newest().verify.map(|verify| (verify.state, verify.next))
}

fn compared(world: &World, node: u16) -> Vec<u64> {
    let all = &world.nodes[&node].shards.compared;
    all.iter().inspect(|at| assert_eq!(at.0, VolumeId(0))).map(|at| at.1).collect()
}

#[test]
fn a_verify_goes_on_at_the_next_primary_where_it_was() {
    let mut world = serving(31, 3, 0, 0);
    world.node_mut(1).shards.mute_verify = Some(2 * STRIDE);
    let id = world.operate(1, VERIFY);
    world.run_until("two strides are compared", |world| {
        state(world) == Some((VerifyState::Running, 2 * STRIDE))
    });
    world.wait(1);
    assert!(!world.is_done(1, id));
    world.crash(1);
    world.set_clients(2, 1);
    world.run_until("it is done", |world| state(world).is_some_and(|at| at.0 == VerifyState::Done));
    assert_eq!(compared(&world, 2), [2 * STRIDE, 3 * STRIDE], "nothing twice");
    let entry = world.newest().verify.expect("there was one");
    assert_eq!((entry.next, entry.repaired), (1 << 20, 4 * 3 * u64::from(super::network::SHARDS)));
    assert!(entry.at_ms > 0, "when it ended");
}

#[test]
fn who_asked_for_a_verify_is_told_of_its_end_also_by_a_node_that_is_primary_no_more() {
    let mut world = serving(32, 2, 1, 0);
    world.node_mut(1).shards.mute_verify = Some(STRIDE);
    let first = world.operate(1, VERIFY);
    world.run_until("a stride", |world| state(world) == Some((VerifyState::Running, STRIDE)));
    world.set_clients(1, 0);
    world.set_clients(2, 1);
    world.run_until("node 2 serves", |world| world.answers(2));
    let second = world.operate(2, VERIFY);
    world.run_until("both are told", |world| world.is_done(1, first) && world.is_done(2, second));
    assert_eq!(world.node(1).done[&first], Ok(()));
    assert_eq!(world.node(2).done[&second], Ok(()));
    assert_eq!(
        compared(&world, 2),
        [STRIDE, 2 * STRIDE, 3 * STRIDE],
        "the second joined the first"
    );
}

#[test]
fn a_verify_goes_on_after_all_caches_were_lost() {
    let mut world = serving(9, 2, 0, 1);
    world.set_clients(1, 0);
    world.set_clients(3, 1);
    world.run_until("node 3 serves", |world| world.answers(3));
    world.node_mut(3).shards.mute_verify = Some(STRIDE);
    let id = world.operate(3, VERIFY);
    world.run_until("a stride", |world| state(world) == Some((VerifyState::Running, STRIDE)));
    world.power_cut(1);
    world.power_cut(2);
    world.node_mut(3).shards.mute_verify = None;
    world.heal();
    world.run_until("it ends", |world| world.is_done(3, id) && world.answers(3));
    assert_eq!(world.node(3).done[&id], Ok(()));
}

#[test]
fn a_verify_is_stopped_goes_on_and_begins_anew() {
    let mut world = serving(33, 2, 1, 0);
    world.node_mut(1).shards.mute_verify = Some(STRIDE);
    let id = world.operate(1, VERIFY);
    world.run_until("a stride", |world| state(world) == Some((VerifyState::Running, STRIDE)));
    let stop = world.operate(1, Operation::StopVerify);
    world.run_until("told", |world| world.is_done(1, id) && world.is_done(1, stop));
    assert_eq!(world.node(1).done[&id], Err(OperationError::Stopped));
    assert_eq!(world.node(1).done[&stop], Ok(()));
    let stopped = Some((VerifyState::Stopped, STRIDE));
    world.run_until("it is known", |world| state(world) == stopped);
    let again = world.operate(1, Operation::StopVerify);
    world.run_until("told", |world| world.is_done(1, again));
    assert_eq!(world.node(1).done[&again], Err(OperationError::Stopped));
    world.node_mut(1).shards.mute_verify = Some(2 * STRIDE);
    world.node_mut(1).shards.compared.clear();
    let on = world.operate(1, VERIFY);
    world.run_until("more", |world| state(world) == Some((VerifyState::Running, 2 * STRIDE)));
    assert_eq!(compared(&world, 1), [STRIDE, 2 * STRIDE]);
    world.node_mut(1).shards.mute_verify = None;
    world.node_mut(1).shards.compared.clear();
    let anew = world.operate(1, Operation::Verify { anew: true });
    world.run_until("done", |world| world.is_done(1, anew) && world.is_done(1, on));
    assert_eq!(compared(&world, 1), [0, STRIDE, 2 * STRIDE, 3 * STRIDE]);
    let done = Some((VerifyState::Done, 1 << 20));
    world.run_until("it is known", |world| state(world) == done);
    world.node_mut(1).shards.compared.clear();
    let next = world.operate(1, VERIFY);
    world.run_until("done", |world| world.is_done(1, next));
    assert_eq!(compared(&world, 1).len(), 4, "one that is done begins again");
}

#[test]
fn what_an_operator_holds_back_stays_held_at_the_next_primary_and_is_let_go_there() {
    let mut world = serving(34, 3, 0, 0);
    for operation in [Operation::Suspend(true), Operation::PauseResync(true)] {
        let id = world.operate(1, operation);
        world.run_until("held", |world| world.is_done(1, id));
        assert_eq!(world.node(1).done[&id], Ok(()));
    }
    world.wait(1);
    assert!(!world.answers(1));
    world.crash(1);
    world.set_clients(2, 1);
    world.run_until("node 2 is primary", |world| world.newest().primary == Some(base::NodeId(2)));
    world.wait(3);
    assert!(!world.answers(2));
    assert!(world.node(2).shards.paused);
    assert_eq!(world.status(2).suspended, Some(Suspended::Operator));
    for operation in [Operation::Suspend(false), Operation::PauseResync(false)] {
        let id = world.operate(2, operation);
        world.run_until("let go", |world| world.is_done(2, id));
    }
    world.run_until("node 2 serves", |world| world.answers(2));
    world.start(1);
    world.run_until("node 1 is in sync", |world| world.in_sync() == [1, 2, 3]);
    world.set_clients(2, 0);
    world.set_clients(1, 1);
    world.run_until("the old hold does not come back", |world| world.answers(1));
    assert!(!world.node(1).shards.paused);
}

#[test]
fn a_hold_is_done_when_the_shards_hold() {
    let mut world = serving(35, 3, 0, 0);
    world.operate(1, Operation::Suspend(true));
    let second = world.operate(1, Operation::Suspend(true));
    world.run_until("done", |world| world.is_done(1, second));
    assert!(!world.answers(1), "at that very moment");
    let third = world.operate(1, Operation::Suspend(true));
    world.run_until("done", |world| world.is_done(1, third));
    assert_eq!(world.node(1).done[&third], Ok(()));
}

#[test]
fn a_verify_that_left_a_replica_out_says_so() {
    let mut world = serving(36, 3, 0, 0);
    world.node_mut(1).shards.mute_verify = Some(STRIDE);
    let id = world.operate(1, VERIFY);
    world.run_until("a stride", |world| state(world) == Some((VerifyState::Running, STRIDE)));
    assert!(world.newest().verify.is_some_and(|verify| !verify.partial));
    world.crash(3);
    world.run_until("node 3 is left behind", |world| world.in_sync() == [1, 2]);
    world.node_mut(1).shards.mute_verify = None;
    let again = world.operate(1, Operation::Verify { anew: true });
    world.run_until("done", |world| world.is_done(1, id) && world.is_done(1, again));
    world.run_until("it is known", |world| {
        world.newest().verify.is_some_and(|verify| verify.state == VerifyState::Done)
    });
    assert!(world.newest().verify.is_some_and(|verify| verify.partial));
    world.start(3);
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    let whole = world.operate(1, VERIFY);
    world.run_until("done", |world| world.is_done(1, whole));
    assert!(world.newest().verify.is_some_and(|verify| !verify.partial), "it began anew");
}

#[test]
fn a_verify_goes_on_though_nobody_else_wants_to_be_primary() {
    let mut world = serving(37, 3, 0, 0);
    world.node_mut(1).shards.mute_verify = Some(STRIDE);
    world.operate(1, VERIFY);
    world.run_until("a stride", |world| state(world) == Some((VerifyState::Running, STRIDE)));
    world.set_clients(1, 0);
    world.crash(1);
    world.run_until("it is done", |world| state(world).is_some_and(|at| at.0 == VerifyState::Done));
}

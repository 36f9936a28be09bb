//! Requests that fail instead of waiting for nodes, as an operator of one node wants.

use super::network::World;
use super::serving;
use crate::door::{Operation, OperationError};
use crate::member::Suspended;

const FAIL: Operation = Operation::FailWaiting(true);

/// What came of it.
fn ask(world: &mut World, node: u16, operation: Operation) -> Result<(), OperationError> {
    let id = world.operate(node, operation);
    world.run_until("it is answered", |world| world.is_done(node, id));
    world.node(node).done[&id]
}

/// The member says so, and its shards have heard it.
fn fails(world: &World, node: u16) -> bool {
    let told = world.node(node).shards.failing;
    told && world.status(node).fails_waiting
}

/// Node 1, which is primary, is alone.
fn lonely(seed: u64) -> World {
    let mut world = serving(seed, 3, 0, 0);
    world.split(&[1]);
    world.run_until("node 1 has no quorum", |world| {
        matches!(world.status(1).suspended, Some(Suspended::NoQuorum { .. }))
    });
    world
}

#[test]
fn requests_fail_without_a_majority_and_wait_again_once_it_is_back() {
    let mut world = lonely(51);
    let before = world.newest().epoch;
    assert_eq!(ask(&mut world, 1, FAIL), Ok(()));
    assert_eq!(ask(&mut world, 1, FAIL), Ok(()), "again is no harm");
    world.run_until("its shards hear it", |world| fails(world, 1));
    assert!(!fails(&world, 2), "of this node only");
    world.wait(30);
    assert!(fails(&world, 1), "as long as the others are missing");
    world.heal();
    world.run_until("node 1 knows of a primary", |world| !fails(world, 1));
    world.run_until("somebody serves", |world| (1..=3).any(|node| world.answers(node)));
    assert!(world.newest().epoch >= before);
    world.split(&[1]);
    world.run_until("node 1 has no quorum again", |world| {
        matches!(world.status(1).suspended, Some(Suspended::NoQuorum { .. }))
    });
    assert!(!fails(&world, 1), "it was for that one time");
}

#[test]
fn an_operator_lets_requests_wait_again_before_anybody_is_back() {
    let mut world = lonely(52);
    assert_eq!(ask(&mut world, 1, FAIL), Ok(()));
    world.run_until("its shards hear it", |world| fails(world, 1));
    assert_eq!(ask(&mut world, 1, Operation::FailWaiting(false)), Ok(()));
    world.run_until("they hear of the end", |world| !world.node(1).shards.failing);
    assert_eq!(ask(&mut world, 1, FAIL), Ok(()));
    world.run_until("and of the next", |world| fails(world, 1));
    world.crash(1);
    world.start(1);
    world.wait(5);
    assert!(!fails(&world, 1), "a new process knows nothing of it");
}

#[test]
fn where_nothing_is_missing_it_is_refused() {
    let mut world = serving(53, 3, 0, 0);
    for node in [1, 2] {
        assert_eq!(ask(&mut world, node, FAIL), Err(OperationError::NothingMissing));
    }
    assert!(world.answers(1) && !fails(&world, 1));
}

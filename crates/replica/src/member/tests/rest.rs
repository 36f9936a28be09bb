//! Primaries that can do nothing any more.

use super::handover::replace_disk;
use super::network::World;
use super::serving;
use crate::door::{Operation, OperationError};
use crate::member::RoleStatus;
use base::NodeId;

/// Node 4, which has no copy, is primary for its clients, which have requests open.
fn served_without_a_copy(replicas: u16, witnesses: u16) -> (World, u16) {
    let mut world = serving(31, replicas, witnesses, 1);
    let client = replicas + witnesses + 1;
    world.set_clients(1, 0);
    world.set_clients(client, 1);
    world.run_until("it serves", |world| world.answers(client));
    world.node_mut(client).shards.mute_drain = true;
    (world, client)
}

fn demote(world: &mut World, node: u16) -> Result<(), OperationError> {
    let id = world.operate(node, Operation::Demote);
    world.run_until("it is answered", |world| world.is_done(node, id));
    world.node(node).done[&id]
}

fn force(world: &mut World, node: u16) -> Result<(), OperationError> {
    let id = world.operate(node, Operation::Force);
    world.run_until("it is answered", |world| world.is_done(node, id));
    world.node(node).done[&id]
}

#[test]
fn a_primary_that_has_lost_its_voters_is_demoted_and_the_copy_that_is_left_is_forced() {
    for has_open in [true, false] {
        let (mut world, client) = served_without_a_copy(3, 0);
        world.node_mut(client).shards.mute_drain = has_open;
        world.crash(2);
        world.crash(3);
        world.wait(20);
        assert_eq!(force(&mut world, 1), Err(OperationError::OtherPrimary(NodeId(client))));
        assert_eq!(demote(&mut world, client), Ok(()), "open {has_open}: {}", world.show());
        assert_eq!(world.status(client).role, RoleStatus::Follower);
        // Who was its peer has heard of that.
        world.run(20 * super::network::MS);
        assert_eq!(force(&mut world, 1), Ok(()), "open {has_open}: {}", world.show());
        world.run_until("it serves", |world| world.answers(1));
    }
}

#[test]
fn voters_that_are_there_without_their_votes_are_lost() {
    let (mut world, client) = served_without_a_copy(3, 0);
    world.crash(2);
    replace_disk(&mut world, 3);
    world.wait(20);
    assert_eq!(demote(&mut world, client), Ok(()), "{}", world.show());
}

#[test]
fn a_primary_that_has_its_voters_and_no_copy_is_demoted_although_requests_are_open() {
    let (mut world, client) = served_without_a_copy(2, 3);
    world.node_mut(client).shards.mute_sync = true;
    world.crash(1);
    world.run_until("1 is out", |world| world.in_sync() == [2]);
    world.crash(2);
    world.start(1);
    world.connect_all();
    world.wait(10);
    assert!(world.status(client).lease_left.is_some(), "{}", world.show());
    assert_eq!(demote(&mut world, client), Ok(()), "{}", world.show());
    // Its shards may answer until its lease is over.
    world.run(20 * super::network::MS);
    assert_eq!(force(&mut world, 1), Err(OperationError::OtherPrimary(NodeId(client))));
    world.wait(5);
    assert_eq!(force(&mut world, 1), Ok(()), "{}", world.show());
    world.run_until("it serves", |world| world.answers(1));
}

#[test]
fn a_primary_that_can_answer_is_not_demoted_while_requests_are_open() {
    let (mut world, client) = served_without_a_copy(3, 0);
    assert_eq!(demote(&mut world, client), Err(OperationError::Late), "{}", world.show());
    world.node_mut(client).shards.mute_drain = false;
    world.run_until("it serves", |world| world.answers(client));
    assert_eq!(world.primary(), Some(client));
}

#[test]
fn who_asks_for_a_change_that_waits_for_a_copy_is_not_told_that_voters_are_missing() {
    let (mut world, client) = served_without_a_copy(2, 3);
    // It cannot write down that it is all that is left.
    world.slow = Some((2, 2, 600_000 * super::network::MS));
    world.crash(1);
    world.wait(10);
    assert!(world.status(client).lease_left.is_some(), "{}", world.show());
    let volume = base::VolumeId(0);
    let grows = Operation::Resize { volume, sectors: 1 << 21, shrinks: false };
    let id = world.operate(client, grows);
    world.run_until("it is answered", |world| world.is_done(client, id));
    assert_eq!(world.node(client).done[&id], Err(OperationError::NoCopy), "{}", world.show());
}

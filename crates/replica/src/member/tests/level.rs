//! The feature level rises when every member can do more, and binds those that cannot.

use super::network::{World, voter};
use super::serving;
use crate::door::{Operation, OperationError};
use crate::member::Suspended;
use alloc::boxed::Box;
use base::NodeId;
use wire::{FEATURE_LEVEL, FEATURE_LEVEL_FIRST, MemberKind};

const NEW: u32 = FEATURE_LEVEL + 1;

fn upgrade(world: &mut World, node: u16) {
    world.crash(node);
    world.node_mut(node).feature_level = NEW;
    world.start(node);
}

#[test]
fn the_level_rises_once_the_last_member_can_do_more_and_not_before() {
    let mut world = serving(41, 2, 1, 0);
    for node in [1, 2] {
        upgrade(&mut world, node);
        world.run_until("it is in sync", |world| world.in_sync() == [1, 2]);
    }
    world.run_until("node 1 serves", |world| world.answers(1));
    world.wait(5);
    assert_eq!(world.newest().feature_level, FEATURE_LEVEL_FIRST, "the witness cannot");
    world.crash(3);
    world.wait(5);
    assert_eq!(
        world.newest().feature_level,
        FEATURE_LEVEL_FIRST,
        "the witness is not there to say"
    );
    world.node_mut(3).feature_level = NEW;
    world.start(3);
    world.run_until("it rises", |world| world.newest().feature_level == NEW);
}

#[test]
fn a_node_of_an_older_release_does_not_act_on_what_it_does_not_understand() {
    let mut world = serving(42, 3, 0, 1);
    for node in [2, 3, 1] {
        upgrade(&mut world, node);
        world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    }
    world.run_until("it rises", |world| world.newest().feature_level == NEW);
    world.crash(2);
    world.node_mut(2).feature_level = FEATURE_LEVEL;
    world.start(2);
    world.run_until("others go on", |world| world.in_sync() == [1, 3] && world.answers(1));
    let reason = Some(Suspended::OldRelease { level: NEW, own: FEATURE_LEVEL });
    world.run_until("it says why", |world| world.status(2).suspended == reason);
    world.crash(1);
    world.set_clients(2, 1);
    world.set_clients(4, 1);
    world.wait(10);
    let leads = world.newest().primary;
    assert!(!matches!(leads, Some(NodeId(2 | 4))), "neither of them: {leads:?}");
    world.set_clients(3, 1);
    world.run_until("its vote counts all the same", |world| world.answers(3));
    let id = world.operate(2, Operation::Force);
    world.run_until("refused", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Err(OperationError::OldRelease));
}

#[test]
fn a_node_of_an_older_release_becomes_no_member() {
    let mut world = serving(43, 2, 0, 1);
    for node in [2, 1] {
        upgrade(&mut world, node);
        world.run_until("all are in sync", |world| world.in_sync() == [1, 2]);
    }
    world.run_until("it rises", |world| world.newest().feature_level == NEW);
    world.run_until("node 1 serves", |world| world.answers(1));
    let (node, kind) = (NodeId(3), MemberKind::Witness);
    let id = world.operate(1, Operation::AddMember { node, kind, voter: voter(3) });
    world.run_until("answered", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::OldRelease));
}

#[test]
fn a_client_of_an_older_release_does_not_go_on_from_a_raise_that_it_finds() {
    for seed in 0..12 {
        let mut world = serving(100 + seed, 2, 1, 1);
        for node in [1, 2, 3] {
            world.crash(node);
            world.node_mut(node).feature_level = NEW;
        }
        // The raise was accepted; its primary died before anybody learned of it.
        for node in [2, 3] {
            let record = world.node_mut(node).disk.as_mut().expect("a voter");
            let (ballot, known) = record.committed.clone().expect("it served");
            let mut next = (*known).clone();
            next.epoch.0 += 1;
            next.feature_level = NEW;
            record.promised = ballot.max(record.promised);
            record.accepted = Some((record.promised, Box::new(next)));
        }
        world.set_clients(1, 0);
        world.set_clients(4, 1);
        world.start(2);
        world.start(3);
        world.wait(20);
        world.set_clients(2, 1);
        world.run_until("node 2 serves", |world| world.answers(2));
    }
}

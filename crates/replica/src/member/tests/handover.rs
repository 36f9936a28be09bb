//! Who makes way for whom, and what becomes of requests if that one cannot be primary.

use super::network::{World, voter};
use super::serving;
use crate::disk::Record;
use base::{Incarnation, NodeId, VoterId};

#[test]
fn a_primary_that_nobody_uses_goes_on_for_a_client_that_reaches_too_few_voters_to_be_primary() {
    let mut world = serving(31, 2, 1, 1);
    world.block(2, 4);
    world.block(3, 4);
    world.set_clients(1, 0);
    world.set_clients(4, 1);
    world.wait(10);
    assert_eq!(world.primary(), Some(1), "{}", world.show());
    assert!(world.answers(1), "{}", world.show());
}

/// How often it could not have answered, of so many looks.
fn pauses(world: &mut World, node: u16, looks: u32) -> u32 {
    let mut pauses = 0;
    for _ in 0..looks {
        world.run(100 * super::network::MS);
        pauses += u32::from(!world.answers(node));
    }
    pauses
}

#[test]
fn a_primary_does_not_make_way_again_and_again_for_a_copy_that_nobody_would_have_as_primary() {
    let mut world = serving(31, 2, 3, 0);
    world.crash(1);
    world.set_clients(2, 1);
    world.run_until("2 leads", |world| world.primary() == Some(2) && world.in_sync() == [2]);
    world.set_clients(2, 0);
    for voter in [3, 4, 5] {
        world.block(2, voter);
    }
    world.crash(2);
    world.start(2);
    world.start(1);
    world.set_clients(1, 1);
    world.run_until("1 answers", |world| world.answers(1));
    let pauses = pauses(&mut world, 1, 600);
    assert!(pauses < 120, "{pauses} of 600: {}", world.show());
}

#[test]
fn a_primary_that_has_lost_its_majority_is_not_waited_for_by_a_client_that_reaches_one() {
    let mut world = serving(31, 2, 1, 1);
    world.set_clients(1, 0);
    world.block(1, 2);
    world.block(1, 3);
    world.set_clients(4, 1);
    world.wait(20);
    assert!(world.answers(4), "{}", world.show());
}

#[test]
fn a_node_that_reaches_no_copy_does_not_keep_one_that_others_reach_from_leading() {
    let mut world = serving(31, 2, 1, 0);
    world.crash(1);
    world.set_clients(2, 1);
    world.run_until("2 leads", |world| world.answers(2) && world.in_sync() == [2]);
    world.block(1, 2);
    world.crash(2);
    world.start(1);
    world.set_clients(1, 1);
    world.wait(10);
    world.start(2);
    world.set_clients(2, 1);
    world.wait(20);
    assert!(world.answers(2), "{}", world.show());
}

/// Its disk is an empty one.
pub(super) fn replace_disk(world: &mut World, node: u16) {
    world.crash(node);
    let mut record = Record::first(&world.bootstrap, NodeId(node), 2).expect("a member");
    record.voter = VoterId(voter(node).0 + 1);
    record.incarnation = Incarnation(u64::from(node) + 1000);
    world.node_mut(node).disk = Some(record);
    world.start(node);
    world.connect_all();
}

#[test]
fn a_primary_that_nobody_uses_goes_on_for_a_client_that_reaches_voters_without_their_votes() {
    let mut world = serving(31, 3, 0, 1);
    // Node 3's disk is another one, which nobody hears of but the client.
    world.block(3, 1);
    world.block(3, 2);
    world.block(2, 4);
    replace_disk(&mut world, 3);
    world.run_until("3 is out", |world| world.in_sync() == [1, 2] && world.answers(1));
    world.set_clients(1, 0);
    world.set_clients(4, 1);
    world.wait(20);
    assert_eq!(world.primary(), Some(1), "{}", world.show());
    assert!(world.answers(1), "{}", world.show());
}

//! Sizes of volumes.

use super::network::World;
use super::serving;
use crate::door::{FromShard, Operation, OperationError};
use base::{NodeId, VolumeId};

const VOLUME: VolumeId = VolumeId(0);

fn resize(sectors: u64) -> Operation {
    Operation::Resize { volume: VOLUME, sectors, shrinks: true }
}

fn size(world: &mut World) -> u64 {
    world.wait(1);
    world.newest().volumes[0].sectors
}

/// Node 1 is asked, its shards do not do their part.
fn growing(seed: u64, sectors: u64) -> (World, u64) {
    let mut world = serving(seed, 2, 1, 0);
    for node in [1, 2] {
        world.node_mut(node).shards.mute_grow = true;
    }
    let id = world.operate(1, resize(sectors));
    world.run_until("it grows", |world| world.newest().volumes[0].grows_to == Some(sectors));
    (world, id)
}

#[test]
fn a_volume_grows_when_every_shard_has_made_what_is_added_zero() {
    let mut world = serving(31, 2, 1, 0);
    let old = size(&mut world);
    world.node_mut(1).shards.mute_grow = true;
    let id = world.operate(1, resize(old + 4096));
    world.run_until("it grows", |world| world.newest().volumes[0].grows_to.is_some());
    let since = world.newest().epoch;
    world.wait(60);
    assert_eq!(size(&mut world), old);
    assert!(!world.is_done(1, id), "however long it takes");
    world.say(1, &FromShard::Grown { volume: VOLUME, since });
    world.run_until("it grew", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
    assert_eq!(size(&mut world), old + 4096);
    assert_eq!(world.newest().volumes[0].grows_to, None);
}

#[test]
fn a_new_primary_goes_on_with_a_growth_and_whoever_was_asked_is_told() {
    let (mut world, id) = growing(32, 1 << 21);
    world.node_mut(2).shards.mute_grow = false;
    let promote = world.operate(2, Operation::Promote);
    world.run_until("node 2 is primary", |world| world.is_done(2, promote));
    world.run_until("it grew", |world| world.newest().volumes[0].sectors == 1 << 21);
    world.run_until("node 1 knows", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
}

#[test]
fn another_resize_takes_the_place_of_one_that_is_under_way() {
    let (mut world, first) = growing(33, 1 << 21);
    world.node_mut(1).shards.mute_grow = false;
    let second = world.operate(1, resize((1 << 20) + 8));
    world.run_until("both ended", |world| world.is_done(1, first) && world.is_done(1, second));
    assert_eq!(world.node(1).done[&first], Err(OperationError::Replaced));
    assert_eq!(world.node(1).done[&second], Ok(()));
    assert_eq!(size(&mut world), (1 << 20) + 8);
}

#[test]
fn what_was_done_for_an_earlier_growth_does_not_count_for_a_later_one_to_the_same_size() {
    let (mut world, _) = growing(34, 1 << 21);
    let stale = FromShard::Grown { volume: VOLUME, since: world.newest().epoch };
    let old = size(&mut world);
    let back = world.operate(1, resize(old));
    world.run_until("it was taken back", |world| world.is_done(1, back));
    let again = world.operate(1, resize(1 << 21));
    world.run_until("it grows", |world| world.newest().volumes[0].grows_to.is_some());
    world.say(1, &stale);
    world.wait(5);
    assert_eq!(size(&mut world), old);
    assert!(!world.is_done(1, again));
}

#[test]
fn a_volume_shrinks_at_once() {
    let mut world = serving(35, 2, 1, 0);
    let half = size(&mut world) / 2;
    let id = world.operate(1, resize(half));
    world.run_until("it shrank", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
    assert_eq!(size(&mut world), half);
    let refused = world.operate(2, resize(half));
    world.wait(1);
    assert_eq!(world.node(2).done[&refused], Err(OperationError::OtherPrimary(NodeId(1))));
}

#[test]
fn a_resize_that_was_to_grow_a_volume_does_not_shrink_one_that_grew_meanwhile() {
    let (mut world, first) = growing(36, 1 << 21);
    // Whoever asked saw the size of before.
    let (volume, sectors) = (VOLUME, (1 << 20) + 8);
    let since = world.newest().epoch;
    world.say(1, &FromShard::Grown { volume, since });
    world.run_until("it grew", |world| world.is_done(1, first));
    let second = world.operate(1, Operation::Resize { volume, sectors, shrinks: false });
    world.run_until("answered", |world| world.is_done(1, second));
    assert_eq!(world.node(1).done[&second], Err(OperationError::Shrinks));
    assert_eq!(size(&mut world), 1 << 21);
}

#[test]
fn a_growth_goes_on_when_its_primary_comes_back_though_nobody_uses_the_resource() {
    let (mut world, _) = growing(36, 1 << 21);
    world.set_clients(1, 0);
    world.crash(1);
    world.start(1);
    world.node_mut(2).shards.mute_grow = false;
    world.connect_all();
    world.run_until("it grew", |world| world.newest().volumes[0].sectors == 1 << 21);
    assert_eq!(world.in_sync(), [1, 2]);
}

#[test]
fn who_waits_for_a_growth_is_told_of_its_end_though_the_primary_after_it_dies_too() {
    let (mut world, id) = growing(37, 1 << 21);
    world.set_clients(1, 0);
    let promote = world.operate(2, Operation::Promote);
    world.run_until("node 2 is primary", |world| world.is_done(2, promote));
    world.node_mut(1).shards.mute_grow = false;
    world.crash(2);
    world.start(2);
    world.connect_all();
    world.run_until("node 1 knows", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
}

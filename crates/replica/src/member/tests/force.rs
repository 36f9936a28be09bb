//! Forks that an operator asks for: when they come about, and when they cannot any more.

use super::network::{MS, World};
use super::serving;
use crate::door::{FromShard, Operation, OperationError};
use alloc::vec::Vec;
use base::NodeId;

fn fork_of(world: &World, node: u16) -> u64 {
    world.status(node).configuration.map_or(0, |known| known.fork)
}

/// Node 1 alone, told to go on so. Its disk takes its time.
fn forced_with_a_slow_disk() -> (World, u64) {
    let mut world = serving(7, 2, 1, 0);
    world.crash(2);
    world.crash(3);
    world.wait(2);
    world.slow = Some((1, 1, 20_000 * MS));
    let forced = world.operate(1, Operation::Force);
    world.wait(10);
    assert!(!world.is_done(1, forced), "it may be on its disk, or not: {}", world.show());
    (world, forced)
}

#[test]
fn a_fork_that_waits_for_its_disk_comes_about_though_the_others_go_on_without_it() {
    let (mut world, forced) = forced_with_a_slow_disk();
    world.set_clients(1, 0);
    world.set_clients(2, 1);
    world.start(2);
    world.start(3);
    world.connect_all();
    world.run_until("the others serve", |world| world.answers(2));
    world.wait(2);
    assert_eq!((fork_of(&world, 1), world.is_done(1, forced)), (0, false));
    assert!(world.newest().member(NodeId(1)).is_some_and(|own| !own.in_sync), "it says nothing");
    world.set_clients(2, 0);
    world.crash(2);
    world.crash(3);
    world.run_until("it is done", |world| world.is_done(1, forced));
    assert_eq!((world.node(1).done[&forced], fork_of(&world, 1)), (Ok(()), 1));
    world.heal();
    world.run_until("all follow", |world| (1..=3).all(|node| fork_of(world, node) == 1));
    world.run_until("it serves", |world| world.in_sync() == [1] && world.primary().is_some());
}

#[test]
fn who_forces_a_node_whose_disk_fails_over_it_hears_that_it_may_have_come_about() {
    let mut world = serving(7, 2, 1, 0);
    world.crash(2);
    world.crash(3);
    world.wait(2);
    world.slow = Some((1, 1, 20_000 * MS));
    world.store_fails.insert(1);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is answered", |world| world.is_done(1, forced));
    assert_eq!(world.node(1).done[&forced], Err(OperationError::MayHaveForked));
}

#[test]
fn a_primary_whose_disk_fails_over_a_fork_hears_that_it_may_have_come_about() {
    let mut world = serving(7, 2, 1, 1);
    world.crash(2);
    world.store_fails.insert(1);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is answered", |world| world.is_done(1, forced));
    assert_eq!(world.node(1).done[&forced], Err(OperationError::MayHaveForked));
}

#[test]
fn a_fork_is_decided_by_the_record_that_says_so_through_a_restart() {
    let (mut world, _) = forced_with_a_slow_disk();
    let decided = |world: &World| {
        let record = world.node(1).disk.as_ref().expect("a replica");
        record.accepted.as_ref().is_some_and(|(_, value)| value.fork == 1)
    };
    world.run_until("it is stored", decided);
    // As if the process had ended just before it heard of that.
    let mut record = world.node(1).disk.clone().expect("a replica");
    world.crash(1);
    let first = world.bootstrap.clone();
    record.committed = record.committed.map(|(ballot, _)| (ballot, first.into()));
    world.node_mut(1).disk = Some(record);
    world.slow = None;
    world.start(1);
    world.run_until("it serves alone", |world| world.answers(1) && world.in_sync() == [1]);
    assert_eq!(fork_of(&world, 1), 1);
}

#[test]
fn a_fork_that_no_majority_accepted_is_not_found_under_what_was_decided_since() {
    for crashed in [true, false] {
        let mut world = serving(11, 3, 0, 0);
        // Proposed while a majority is there; the others never hear of it.
        world.split(&[1]);
        let forced = world.operate(1, Operation::Force);
        world.run(20 * MS);
        let record = world.node(1).disk.clone().expect("a replica");
        assert_eq!(record.accepted.map(|(_, value)| value.fork), Some(1));
        if crashed {
            world.crash(1);
        }
        world.set_clients(2, 1);
        world.run_until("node 2 serves", |world| world.answers(2));
        if crashed {
            world.start(1);
        }
        world.blocked.clear();
        world.connect_all();
        world.set_clients(1, 0);
        world.run_until("node 1 is back", |world| world.in_sync() == [1, 2, 3]);
        if !crashed {
            world.run_until("it is refused", |world| world.is_done(1, forced));
            let refused =
                matches!(world.node(1).done[&forced], Err(OperationError::OtherPrimary(_)));
            assert!(refused, "{:?}", world.node(1).done);
        }
        world.crash(2);
        world.set_clients(3, 1);
        world.run_until("node 3 serves", |world| world.answers(3));
        let forks: Vec<u64> = [1, 3].into_iter().map(|node| fork_of(&world, node)).collect();
        assert_eq!(forks, [0, 0], "{}", world.show());
    }
}

#[test]
fn a_reign_begins_where_a_primary_is_forced_whose_copy_was_not_in_sync() {
    let mut world = serving(5, 3, 0, 0);
    world.set_clients(1, 0);
    world.set_clients(2, 1);
    world.crash(1);
    world.run_until("node 1 is out", |world| world.in_sync() == [2, 3] && world.answers(2));
    for node in [2, 3] {
        world.node_mut(node).shards.mute_sync = true;
    }
    world.start(1);
    world.wait(2);
    world.set_clients(2, 0);
    let promoted = world.operate(1, Operation::Promote);
    world.run_until("node 1 serves", |world| world.is_done(1, promoted) && world.answers(1));
    let before = world.newest();
    assert_eq!(world.in_sync(), [2, 3]);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is forced", |world| world.is_done(1, forced));
    assert_eq!(world.node(1).done[&forced], Ok(()));
    world.run_until("it acts on that", |world| world.in_sync() == [1]);
    let after = world.newest();
    assert_eq!((after.fork, after.members.len()), (1, 3), "{}", world.show());
    assert!(after.reign > before.reign && after.reign.0 > 1 << 32, "{}", world.show());
    assert_eq!(after.lost, after.epoch, "who was told of what is not there must hear of it");
    world.run_until("it serves", |world| world.answers(1));
}

#[test]
fn who_gives_up_its_side_keeps_the_vote_that_the_other_needs() {
    let mut world = serving(11, 2, 0, 0);
    let volume = world.newest().volumes[0].clone();
    let (volume, sectors) = (volume.volume, volume.sectors * 2);
    // Its bits do not say all of a volume that may have been larger.
    world.node_mut(1).shards.mute_grow = true;
    world.operate(1, Operation::Resize { volume, sectors, shrinks: false });
    let grows = |world: &World| {
        let known = world.status(2).configuration;
        known.is_some_and(|known| known.volumes[0].grows_to.is_some())
    };
    world.run_until("it grows", grows);
    // Forced while node 2 is thought to be there, which does not hear of it.
    world.split(&[1]);
    world.operate(1, Operation::Force);
    world.run(20 * MS);
    let record = world.node(1).disk.clone().expect("a replica");
    assert_eq!(record.accepted.map(|(_, value)| value.fork), Some(1));
    let before = world.newest().members;
    world.crash(1);
    world.start(1);
    world.blocked.clear();
    world.connect_all();
    world.run_until("node 2 follows", |world| fork_of(world, 2) == 1);
    assert!(world.node(2).marks.contains("member: own side discarded"));
    let is_whole = |world: &World| world.newest().fork == 1 && world.in_sync() == [1, 2];
    world.run_until("both are in sync", is_whole);
    assert_eq!(world.newest().members[1].voter, before[1].voter, "{}", world.show());
    world.run_until("it serves", |world| world.answers(1));
}

#[test]
fn who_leads_the_side_that_it_has_not_given_up_for_is_on_that_side() {
    let mut world = serving(11, 3, 0, 0);
    world.set_clients(2, 1);
    // Decided by nodes 1 and 2.
    world.block(1, 3);
    world.block(2, 3);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is done", |world| world.is_done(1, forced));
    let waits = "member: discarded, waits for its clients";
    world.run_until("its clients are in the way", |world| world.node(2).marks.contains(waits));
    // Node 2 goes on from what it accepted, with node 3, in one session with node 1.
    world.blocked.remove(&(2, 3));
    world.connect_all();
    world.set_clients(1, 0);
    world.operate(2, Operation::Promote);
    world.run_until("node 2 leads", |world| world.primary() == Some(2));
    world.blocked.clear();
    world.connect_all();
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    world.run_until("it serves", |world| world.answers(2));
}

/// Node 1 accepted this change, which the others decided with its vote, and its process ended before it stored that they had.
/// All others are gone for good.
pub(super) fn alone_with_what_it_accepted(world: &mut World, was: &wire::Configuration) {
    world.run_until("it has accepted", |world| {
        let record = world.node(1).disk.as_ref().expect("a replica");
        record.accepted.as_ref().is_some_and(|(_, value)| value.epoch > was.epoch)
    });
    let mut record = world.node(1).disk.clone().expect("a replica");
    for node in [1, 2, 3] {
        world.crash(node);
    }
    world.run(20 * MS);
    record.committed = record.committed.map(|(ballot, _)| (ballot, was.clone().into()));
    world.node_mut(1).disk = Some(record);
    world.start(1);
}

#[test]
fn who_goes_on_alone_goes_on_from_what_it_accepted() {
    let mut world = serving(12, 2, 1, 0);
    world.set_clients(1, 0);
    world.set_clients(2, 1);
    world.run_until("node 2 serves", |world| world.answers(2) && world.primary() == Some(2));
    world.wait(1);
    world.node_mut(2).shards.mute_grow = true;
    let volume = world.newest().volumes[0].volume;
    world.operate(2, Operation::Resize { volume, sectors: 1 << 21, shrinks: false });
    let grows = |world: &World| world.newest().volumes[0].grows_to.is_some();
    world.run_until("it grows", grows);
    world.wait(1);
    let was = world.newest();
    world.say(2, &FromShard::Grown { volume, since: was.epoch });
    world.run_until("it has grown", |world| world.newest().volumes[0].sectors == 1 << 21);
    // Clients may have written to what was added, and node 1 has it.
    alone_with_what_it_accepted(&mut world, &was);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is forced", |world| world.is_done(1, forced));
    assert_eq!(world.node(1).done[&forced], Ok(()));
    let known = world.status(1).configuration.expect("it has forced one");
    let entry = &known.volumes[0];
    assert_eq!((entry.sectors, entry.grows_to), (1 << 21, None), "it would be made zero again");
    assert_eq!(known.lost, base::Epoch(0), "nothing is lost");
    world.set_clients(1, 1);
    world.run_until("it serves", |world| world.answers(1));
    world.run_until("all that is left follows", |world| fork_of(world, 1) == 1);
}

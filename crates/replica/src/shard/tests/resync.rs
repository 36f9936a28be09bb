//! Bringing a replica up to date.

use super::world::{SECTORS, World, geometry};
use crate::door::{FromShard, Geometry, ToShard};
use alloc::vec;
use base::NodeId;
use wire::{Protocol, ReadPolicy, ShardMessage};

/// Node 1 primary alone, node 2 absent; what was written meanwhile is dirty for node 2.
fn behind() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 0, 64, 1);
    world.goes_on_alone(1, 2);
    world.write(1, 3, 2, 2);
    world.write(1, 500, 64 - 500 % 64, 2);
    world.write(1, 1015, 5, 2);
    world
}

/// It is back, and acts on the present configuration.
fn back(world: &mut World, primary: u16, node: u16) {
    world.connect(primary, node);
    world.install_on(node);
    world.ready(primary, node);
}

fn same(world: &World, one: u16, other: u16) {
    for sector in 0..SECTORS {
        assert_eq!(world.at(one, sector), world.at(other, sector), "sector {sector}");
    }
}

fn copied(world: &World, from: u16, to: u16) -> u64 {
    world
        .seen
        .iter()
        .filter_map(|(a, b, message)| match message {
            ShardMessage::Write { span, flags, .. } if flags.resync && (*a, *b) == (from, to) => {
                Some(u64::from(span.count()))
            }
            _ => None,
        })
        .sum()
}

#[test]
fn a_returning_replica_gets_what_changed_and_no_more() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.resync(1, 2);
    same(&world, 1, 2);
    assert!(world.dirty(1, 2).is_empty());
    // Blocks 0, 62 and 63 with parts of both neighbours, 126 and the half block at the end.
    let changed = 8 + (512 - 496) + (SECTORS - 1008);
    assert_eq!(copied(&world, 1, 2), changed);
    let write = world.write(1, 0, 1, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.at(2, 0), 7);
    assert_eq!(world.buffers_held(), 0);
}

/// Since it told its doubt it may have taken part in another history, in the very same session.
#[test]
fn who_may_have_been_on_another_side_of_a_fork_is_asked_for_its_doubt_anew() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.held.insert((2, 1));
    world.start_resync(1, 2);
    let gathers =
        |world: &World| world.sent(1, 2, |message| matches!(message, ShardMessage::Gather { .. }));
    let asked = gathers(&world);
    let mut next = world.next_with(&[1]);
    next.fork += 1;
    world.install(next, &[1]);
    world.start_resync(1, 2);
    assert_eq!(gathers(&world), asked, "it does not act on the fork yet");
    world.install_on(2);
    world.ready(1, 2);
    world.start_resync(1, 2);
    assert_eq!(gathers(&world), asked + 1);
    world.held.clear();
    world.resync(1, 2);
    same(&world, 1, 2);
    assert_eq!(gathers(&world), asked + 1);
}

#[test]
fn what_is_both_dirty_and_to_be_compared_counts_once_in_the_progress() {
    let mut world = behind();
    world.restart(2);
    back(&mut world, 1, 2);
    world.resync(1, 2);
    let done = &world.nodes[&1].shard.status().syncs_done;
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].done, done[0].total);
}

#[test]
fn clients_write_while_a_replica_is_brought_up_to_date() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.held.insert((2, 1));
    world.start_resync(1, 2);
    let over = world.write(1, 3, 1, 9);
    let beside = world.write(1, 200, 1, 9);
    world.held.clear();
    world.wait_ms(200);
    assert_eq!(world.answer(1, over), Some(Ok(())));
    assert_eq!(world.answer(1, beside), Some(Ok(())));
    world.resync(1, 2);
    same(&world, 1, 2);
}

#[test]
fn a_write_that_a_syncing_replica_did_not_answer_is_dirty_for_it() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    world.held.insert((2, 1));
    let write = world.write(1, 300, 1, 9);
    assert_eq!(world.answer(1, write), Some(Ok(())), "it is not waited for");
    world.disconnect(1, 2);
    assert_eq!(world.dirty(1, 2), [(296, 304)]);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn an_include_waits_for_complete_writes_that_the_target_has_not_answered() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 300, 1, 9);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.wait_ms(500);
    assert!(
        !world.has_said(1, &FromShard::Required { peer, session, number: 1 }),
        "node 2 lacks a write"
    );
    world.disk_goes_on(2);
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Required { peer, session, number: 1 }));
}

#[test]
fn an_include_waits_until_the_target_has_flushed_what_clients_flushed() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    world.write(1, 300, 1, 9);
    let flush = world.flush(1);
    assert_eq!(world.answer(1, flush), Some(Ok(())), "a syncing replica is not waited for");
    assert!(world.nodes[&2].unflushed.contains(&300));
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Required { peer, session, number: 1 }));
    assert!(
        !world.nodes[&2].unflushed.contains(&300),
        "flushed for the client, lost by a power cut"
    );
}

#[test]
fn a_write_that_is_open_when_an_include_is_asked_for_waits_for_the_target() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.held.insert((2, 1));
    let write = world.write(1, 300, 1, 9);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, write), None, "node 2 may count before it has it");
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, write), Some(Ok(())));
    same(&world, 1, 2);
}

#[test]
fn from_require_on_every_write_and_flush_waits_for_the_target() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.held.insert((2, 1));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    let write = world.write(1, 300, 1, 9);
    let flush = world.flush(1);
    assert_eq!((world.answer(1, write), world.answer(1, flush)), (None, None));
    // The include is given up.
    world.tell(1, ToShard::Unrequire { peer, session });
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.answer(1, flush), Some(Ok(())));
    world.held.clear();
    world.wait_ms(100);
    world.resync(1, 2);
    same(&world, 1, 2);
    assert_eq!(world.buffers_held(), 0);
}

/// What was copied and flushed before is not on record yet when a write comes that waits for the target, and then does
/// not any more.
#[test]
fn a_write_that_waited_for_an_include_that_was_given_up_stays_dirty_for_the_target_on_every_replica()
 {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.disconnect(2, 3);
    world.change(1, &[1, 2]);
    world.nodes.get_mut(&2).expect("a node").disk_held = true;
    world.write(1, 40, 8, 3);
    world.disk_says_durable(2);
    back(&mut world, 1, 3);
    world.start_resync(1, 3);
    world.wait_ms(500);
    let (peer, session) = (NodeId(3), world.session(1, 3));
    assert!(world.has_said(1, &FromShard::Synced { peer, session }));
    // Whatever changes, what is not in its place everywhere is dirty for those that are not in sync.
    world.no_record = true;
    world.change(1, &[1, 2]);
    world.disk_goes_on(2);
    world.wait_ms(500);
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.held.insert((1, 3));
    let write = world.write(1, 44, 1, 4);
    assert_eq!(world.answer(1, write), None, "it waits for node 3");
    world.tell(1, ToShard::Unrequire { peer, session });
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.no_record = false;
    world.wait_ms(500);
    assert_eq!(world.dirty(2, 3), [(40, 48)], "node 3 has not got it");
    for other in [2, 3] {
        world.disconnect(1, other);
    }
    world.held.clear();
    world.connect(2, 3);
    let next = world.next_with(&[2]);
    world.configuration = next;
    world.lead(2);
    world.resync(2, 3);
    assert_eq!((world.at(2, 44), world.at(3, 44)), (4, 4));
}

#[test]
fn a_write_that_waits_for_a_required_peer_is_dirty_when_the_include_is_given_up_after_it_left() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.held.insert((2, 1));
    let write = world.write(1, 300, 1, 9);
    world.disconnect(1, 2);
    assert_eq!(world.answer(1, write), None, "the proposal may be on its way");
    world.tell(1, ToShard::Unrequire { peer, session });
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.dirty(1, 2), [(296, 304)]);
}

#[test]
fn a_target_that_fails_or_is_late_lets_go_of_the_ranges_being_copied() {
    for fails in [true, false] {
        let mut world = behind();
        back(&mut world, 1, 2);
        let node = world.nodes.get_mut(&2).expect("there");
        node.disk_fails = fails;
        node.disk_held = !fails;
        world.start_resync(1, 2);
        world.wait_ms(3000);
        let write = world.write(1, 3, 1, 9);
        world.wait_ms(100);
        assert_eq!(world.answer(1, write), Some(Ok(())), "fails: {fails}");
        assert!(world.dirty(1, 2).contains(&(0, 8)), "{:?}", world.dirty(1, 2));
        let node = world.nodes.get_mut(&2).expect("there");
        node.disk_fails = false;
        world.disk_goes_on(2);
        if !fails {
            world.resync(1, 2);
            same(&world, 1, 2);
        }
        world.wait_ms(100);
        assert_eq!(world.buffers_held(), 0, "fails: {fails}");
    }
}

#[test]
fn a_write_that_only_the_returning_replica_has_is_copied_over() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(2);
    world.held.insert((2, 1));
    let stray = world.write(2, 77, 2, 5);
    assert_eq!(world.answer(2, stray), None);
    assert_eq!((world.at(2, 77), world.at(1, 77)), (5, 0));
    world.disconnect(1, 2);
    world.held.clear();
    let next = world.next_with(&[1]);
    world.install(next, &[]);
    world.lead(1);
    back(&mut world, 1, 2);
    world.resync(1, 2);
    same(&world, 1, 2);
    assert_eq!(world.nodes[&2].shard.status().doubt_sectors, 0);
}

#[test]
fn a_replica_that_restarted_is_compared_where_its_log_was_hot() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 70, 8, 5);
    world.restart(2);
    // It lost a write that was in its cache, as after a power cut.
    world.nodes.get_mut(&2).expect("there").data.remove(&71);
    world.change(1, &[1]);
    back(&mut world, 1, 2);
    world.resync(1, 2);
    same(&world, 1, 2);
    assert_eq!(copied(&world, 1, 2), 32, "the one window that differs");
}

#[test]
fn a_primary_without_data_brings_a_replica_up_to_date_by_the_bits_of_another() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(3);
    world.disconnect(3, 2);
    world.disconnect(1, 2);
    world.change(3, &[1]);
    world.write(3, 40, 9, 3);
    assert_eq!(world.dirty(1, 2), [(40, 56)]);
    back(&mut world, 3, 2);
    world.resync(3, 2);
    same(&world, 1, 2);
    assert_eq!(copied(&world, 3, 2), 16);
    assert!(world.dirty(1, 2).is_empty(), "a new slot");
}

#[test]
fn a_primary_without_data_copies_from_all_that_have_it() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3]);
    world.lead(4);
    world.disconnect(4, 3);
    world.disconnect(1, 3);
    world.disconnect(2, 3);
    world.change(4, &[1, 2]);
    for extent in 0..8 {
        world.write(4, extent * 64, 64, 3);
    }
    back(&mut world, 4, 3);
    world.seen.clear();
    world.resync(4, 3);
    same(&world, 1, 3);
    for source in [1, 2] {
        let read = |seen: &&(u16, u16, ShardMessage)| {
            (seen.0, seen.1) == (4, source) && matches!(seen.2, ShardMessage::Read { .. })
        };
        assert!(world.seen.iter().filter(read).count() >= 4, "node {source} gave too little");
    }
}

#[test]
fn two_replicas_are_brought_up_to_date_at_once_each_with_what_it_lacks() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3, 4]);
    world.lead(1);
    world.disconnect(1, 3);
    world.change(1, &[1, 2, 4]);
    world.write(1, 0, 64, 3);
    world.disconnect(1, 4);
    world.change(1, &[1, 2]);
    world.write(1, 64, 64, 3);
    back(&mut world, 1, 3);
    back(&mut world, 1, 4);
    world.start_resync(1, 3);
    world.start_resync(1, 4);
    assert_eq!(world.nodes[&1].shard.status().syncs.len(), 2, "both at once");
    world.wait_ms(1000);
    for (target, lacked) in [(3, 128), (4, 64)] {
        let (peer, session) = (NodeId(target), world.session(1, target));
        assert!(world.has_said(1, &FromShard::Synced { peer, session }));
        assert_eq!(copied(&world, 1, target), lacked);
        same(&world, 1, target);
    }
}

#[test]
fn a_resync_reads_where_clients_read() {
    for (policy, elsewhere) in [(ReadPolicy::PreferLocal, 0), (ReadPolicy::RoundRobin, 8)] {
        let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
        world.configuration.options.read_policy = policy;
        world.lead(1);
        world.disconnect(1, 3);
        world.change(1, &[1, 2]);
        for extent in 0..8 {
            world.write(1, extent * 64, 64, 3);
        }
        back(&mut world, 1, 3);
        world.seen.clear();
        world.resync(1, 3);
        same(&world, 1, 3);
        let read = |seen: &&(u16, u16, ShardMessage)| {
            (seen.0, seen.1) == (1, 2) && matches!(seen.2, ShardMessage::Read { .. })
        };
        let read = world.seen.iter().filter(read).count();
        assert_eq!(read, elsewhere, "{policy:?}");
    }
}

#[test]
fn where_another_disk_is_the_source_what_was_hot_is_compared_with_it() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.configuration.options.read_policy = ReadPolicy::RoundRobin;
    world.lead(1);
    for extent in 0..8 {
        world.write(1, extent * 64, 8, 5);
    }
    world.restart(3);
    world.nodes.get_mut(&3).expect("there").data.remove(&(7 * 64));
    world.change(1, &[1, 2]);
    back(&mut world, 1, 3);
    world.seen.clear();
    world.resync(1, 3);
    same(&world, 1, 3);
    let compares = |node: u16| {
        let of = |seen: &&(u16, u16, ShardMessage)| {
            seen.1 == node && matches!(seen.2, ShardMessage::Compare { .. })
        };
        world.seen.iter().filter(of).count()
    };
    let (source, target) = (compares(2), compares(3));
    assert!(0 < source && source < target, "{source} with node 2, {target} in all");
}

#[test]
fn what_was_copied_before_a_copy_was_declared_worthless_is_copied_again() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 40, 9, 3);
    world.goes_on_alone(1, 2);
    world.write(1, 200, 8, 4);
    back(&mut world, 1, 2);
    // It is copied, and the answer to the flush after it is on its way, when the bits start anew.
    world.held.insert((2, 1));
    world.start_resync(1, 2);
    let is_flush = |message: &ShardMessage| matches!(message, ShardMessage::Flush { .. });
    while world.sent(1, 2, is_flush) == 0 {
        world.wait_ms(10);
        assert!(world.sent(1, 2, is_flush) > 0 || world.deliver(2, 1), "it asks for a flush");
    }
    world.void(1, 2);
    world.change(1, &[1]);
    world.nodes.get_mut(&2).expect("there").data.clear();
    world.held.clear();
    world.resync(1, 2);
    same(&world, 1, 2);
}

#[test]
fn what_was_clean_of_a_copy_that_is_worthless_since_is_not_clean() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.change(1, &[1, 2]);
    world.write(1, 40, 9, 3);
    back(&mut world, 1, 3);
    // Node 2 hears late that node 3 has everything; meanwhile node 3 has lost it.
    world.held.insert((1, 2));
    world.start_resync(1, 3);
    let is_clean = |message: &ShardMessage| matches!(message, ShardMessage::Clean { .. });
    world.until_sent(1, 2, is_clean);
    world.void(2, 3);
    world.configuration = world.next_with(&[1, 2]);
    world.install_on(2);
    let all = world.dirty(2, 3);
    assert!(!all.is_empty());
    world.held.clear();
    world.run();
    assert_eq!(world.dirty(2, 3), all);
}

/// Node 1 alone is in sync; node 2's log is full of doubt, and no resync begins.
fn full_of_doubt() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.goes_on_alone(1, 2);
    world.write(1, 0, 8, 5);
    world.tell(1, ToShard::PauseResync(true));
    let Geometry { extent_sectors, log_extents, log_pages, log_page_extents, .. } = geometry();
    let room = log_pages as usize * log_page_extents;
    // In each life of node 2 some more extents turn hot, until its log has room for no other.
    let mut extent = 1;
    while extent <= room as u64 {
        back(&mut world, 1, 2);
        world.start_resync(1, 2);
        for _ in 0..log_extents {
            world.write(1, extent * extent_sectors, 1, extent);
            extent += 1;
        }
        world.restart(2);
    }
    back(&mut world, 1, 2);
    assert_eq!(world.nodes[&2].shard.status().hot, room);
    world
}

#[test]
fn a_log_full_of_doubt_is_emptied_before_anything_else_is_copied() {
    let mut world = full_of_doubt();
    world.tell(1, ToShard::PauseResync(false));
    world.resync(1, 2);
    same(&world, 1, 2);
}

#[test]
fn doubt_about_a_write_that_found_no_room_in_the_log_comes_last() {
    let mut world = full_of_doubt();
    world.start_resync(1, 2);
    world.write(1, 0, 8, 9);
    assert_eq!(world.at(2, 0), 0, "it waits for room");
    world.lead(1);
    world.tell(1, ToShard::PauseResync(false));
    world.resync(1, 2);
    same(&world, 1, 2);
}

#[test]
fn a_resync_goes_on_when_the_node_asked_for_its_bits_went_away() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 4]);
    world.lead(3);
    world.disconnect(3, 2);
    world.change(3, &[1, 4]);
    world.write(3, 40, 9, 3);
    back(&mut world, 3, 2);
    world.held.insert((1, 3));
    world.start_resync(3, 2);
    world.disconnect(1, 3);
    world.held.clear();
    world.change(3, &[4]);
    world.wait_ms(1000);
    world.resync(3, 2);
    same(&world, 4, 2);
}

#[test]
fn a_new_member_has_bits_for_a_replica_that_left_while_it_was_brought_up_to_date() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    // Node 2 is away while 40 is written; then node 3 goes away without the write of 200.
    world.disconnect(1, 2);
    world.disconnect(2, 3);
    world.change(1, &[1, 3]);
    world.write(1, 40, 8, 3);
    world.held.insert((3, 1));
    let write = world.write(1, 200, 8, 4);
    assert_eq!(world.answer(1, write), None);
    back(&mut world, 1, 2);
    // The exclude of node 3 is known at node 1, and only later at node 2.
    let next = world.next_with(&[1]);
    world.install(next, &[1]);
    world.disconnect(1, 3);
    world.held.clear();
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.start_resync(1, 2);
    world.wait_ms(100);
    world.install_on(2);
    world.ready(1, 2);
    world.wait_ms(1000);
    world.resync(1, 2);
    let dirty = world.dirty(2, 3);
    assert!(dirty.iter().any(|run| (run.0..run.1).contains(&200)), "{dirty:?}");
}

#[test]
fn what_a_volume_lost_while_it_was_copied_does_not_count_as_copied() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.goes_on_alone(1, 2);
    world.write(1, 960, 32, 2);
    back(&mut world, 1, 2);
    world.held.insert((1, 2));
    let read = world.nodes.get_mut(&1).expect("there");
    read.disk_held = true;
    world.held.clear();
    world.start_resync(1, 2);
    let mut next = world.next_with(&[1]);
    next.volumes[0].sectors = 976;
    world.install(next, &[1, 2]);
    world.ready(1, 2);
    world.disk_goes_on(1);
    world.wait_ms(1000);
    world.resync(1, 2);
    for sector in 960..976 {
        assert_eq!(world.at(2, sector), 2, "sector {sector}");
    }
}

#[test]
fn with_protocol_b_nothing_is_copied_that_a_failover_may_undo() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.configuration.options.protocol = Protocol::B;
    world.lead(1);
    world.disconnect(1, 3);
    world.change(1, &[1, 2]);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 40, 8, 3);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    back(&mut world, 1, 3);
    world.start_resync(1, 3);
    world.wait_ms(500);
    assert_eq!(world.at(3, 40), 0, "node 2 has it in memory only");
    world.disk_goes_on(2);
    world.wait_ms(500);
    assert_eq!(world.at(3, 40), 3);
}

#[test]
fn everybody_in_sync_is_told_what_the_target_has_now() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.disconnect(2, 3);
    world.change(1, &[1, 2]);
    world.write(1, 40, 8, 3);
    world.write(1, 1016, 4, 3);
    assert_eq!(world.dirty(2, 3), [(40, 48), (1016, SECTORS)]);
    back(&mut world, 1, 3);
    world.start_resync(1, 3);
    world.wait_ms(500);
    assert!(world.dirty(1, 3).is_empty());
    assert!(world.dirty(2, 3).is_empty(), "{:?}", world.dirty(2, 3));
    world.held.insert((3, 1));
    world.write(1, 44, 1, 4);
    world.disconnect(1, 3);
    assert_eq!(world.dirty(1, 3), [(40, 48)]);
    assert_eq!(world.dirty(2, 3), vec![(40, 48)]);
}

#[test]
fn a_flush_of_a_replica_that_lost_its_cache_does_not_count() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 40, 9, 3);
    world.disconnect(1, 2);
    world.connect(1, 2);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    let epoch = world.configuration.epoch;
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: false });
    let flush = world.flush(1);
    world.wait_ms(100);
    assert_eq!(world.answer(1, flush), None, "it may lack what it answered before");
    world.change(1, &[1]);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
}

/// Its disk is another one: what it has counts for nothing if others have excluded this node meanwhile, and then nobody else
/// would know of the write.
#[test]
fn a_write_on_a_replica_that_is_not_the_one_in_sync_is_neither_complete_nor_retired() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.disconnect(1, 2);
    world.connect(1, 2);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    let epoch = world.configuration.epoch;
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: false });
    let write = world.write(1, 40, 8, 3);
    world.wait_ms(100);
    assert_eq!(world.answer(1, write), None);
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Retire { upto: 1.., .. })), 0);
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: true });
    assert_eq!(world.answer(1, write), Some(Ok(())), "it is the one after all");
}

/// It may have lost what it answered before, and counts as what it was then if the include comes about.
#[test]
fn a_flush_of_a_replica_that_is_about_to_be_included_counts_in_the_session_of_its_resync_only() {
    let mut world = behind();
    back(&mut world, 1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    let (peer, required) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session: required, number: 1 });
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Required { peer, session: required, number: 1 }));
    world.write(1, 300, 1, 9);
    world.disconnect(1, 2);
    world.connect(1, 2);
    let (epoch, session) = (world.configuration.epoch, world.session(1, 2));
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: false });
    let flush = world.flush(1);
    world.wait_ms(100);
    assert_eq!(world.answer(1, flush), None, "it may lack what it answered before");
    world.tell(1, ToShard::Unrequire { peer, session: required });
    assert_eq!(world.answer(1, flush), Some(Ok(())));
}

#[test]
fn nothing_is_clean_before_what_the_target_reported_is_on_record() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.disconnect(2, 3);
    world.change(1, &[1, 2]);
    world.write(1, 40, 8, 3);
    back(&mut world, 1, 3);
    world.no_record = true;
    world.start_resync(1, 3);
    world.wait_ms(500);
    assert_eq!(world.at(3, 40), 3);
    assert_eq!(world.dirty(1, 3), [(40, 48)], "its disk could be put back unnoticed");
    assert_eq!(world.dirty(2, 3), [(40, 48)]);
    world.no_record = false;
    world.wait_ms(500);
    assert!(world.dirty(1, 3).is_empty() && world.dirty(2, 3).is_empty());
}

/// A primary without a disk was told by one that left since what the target lacks; what another holds was to be
/// settled between the two.
#[test]
fn what_is_not_settled_when_a_member_leaves_is_copied_to_a_target_whose_bits_that_member_told() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3]);
    world.lead(2);
    for other in [1, 2, 4] {
        world.disconnect(other, 3);
    }
    world.change(2, &[1, 2]);
    world.held.insert((2, 1));
    world.write(2, 40, 8, 7);
    assert_eq!((world.at(1, 40), world.at(2, 40)), (0, 7));
    for (one, other) in [(1, 2), (2, 4)] {
        world.disconnect(one, other);
        world.connect(one, other);
    }
    world.held.clear();
    world.nodes.get_mut(&1).expect("a node").disk_held = true;
    world.lead(4);
    back(&mut world, 4, 3);
    world.start_resync(4, 3);
    world.run();
    assert!(world.sent(1, 4, |m| matches!(m, ShardMessage::Doubt { .. })) > 1, "node 1 told bits");
    world.disconnect(1, 4);
    world.change(4, &[2]);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(3), world.session(4, 3));
    assert!(world.has_said(4, &FromShard::Synced { peer, session }));
    assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 7));
}

/// The one that is asked what the target lacks gave its disk up before the write came.
#[test]
fn what_is_open_at_a_primary_without_data_is_copied_also_if_nobody_says_that_the_target_lacks_it() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3]);
    world.lead(4);
    for other in [1, 2, 4] {
        world.disconnect(other, 3);
    }
    world.change(4, &[1, 2]);
    for other in [1, 4] {
        world.disconnect(2, other);
    }
    world.tell(1, ToShard::Detach);
    let write = world.write(4, 40, 8, 7);
    back(&mut world, 4, 3);
    world.start_resync(4, 3);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(3), world.session(4, 3));
    assert_eq!((world.answer(4, write), world.at(3, 40)), (None, 0));
    assert!(!world.has_said(4, &FromShard::Synced { peer, session }), "it lacks a write");
}

#[test]
fn a_target_that_starts_anew_before_its_include_counts_is_asked_what_is_in_doubt_there() {
    let mut world = behind();
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.write(1, 0, 1, 7);
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Required { peer, session, number: 1 }));
    world.restart(2);
    world.comes_back(1, 2);
    assert!(world.nodes[&2].shard.status().doubt_sectors > 0, "what was hot");
    world.change(1, &[1, 2]);
    world.wait_ms(1000);
    assert_eq!(world.nodes[&2].shard.status().doubt_sectors, 0);
}

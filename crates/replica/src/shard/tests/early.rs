//! Protocol B: whose disk and whose memory count before a write is answered.

use super::world::{World, span};
use crate::door::{DiskRequest, FromShard};
use alloc::vec;
use base::{AnswerError, NodeId, Op};
use wire::{Protocol, ShardMessage};

/// Nodes, those of them with data, and the primary.
fn early(nodes: &[u16], replicas: &[u16], primary: u16) -> World {
    let mut world = World::new(nodes, replicas);
    world.configuration.options.protocol = Protocol::B;
    world.lead(primary);
    world
}

fn hold_disk(world: &mut World, node: u16) {
    world.nodes.get_mut(&node).expect("there").disk_held = true;
}

/// Two writes to one place are answered, and carried out at node 2, which could not say so. They come again, and the connection may
/// end between them: then the first would stand there.
#[test]
fn what_was_carried_out_is_not_carried_out_again_in_the_next_session() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    hold_disk(&mut world, 2);
    let writes = [7, 8].map(|value| world.write(1, 10, 4, value));
    for write in writes {
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
    world.held.insert((2, 1));
    world.disk_goes_on(2);
    assert_eq!(world.at(2, 10), 8);
    world.disconnect(1, 2);
    world.held.clear();
    hold_disk(&mut world, 2);
    world.connect(1, 2);
    world.ready(1, 2);
    let writes = |(_, request): &(_, DiskRequest)| matches!(request, DiskRequest::Write { .. });
    assert!(!world.nodes[&2].flying.iter().any(writes), "it is there");
    world.disk_goes_on(2);
    world.wait_ms(200);
    assert_eq!(world.at(2, 10), 8);
    assert_eq!(world.buffers_held(), 0);
}

/// One that is under way when it comes again is answered when it is there; one that failed is carried out.
#[test]
fn what_is_under_way_or_failed_when_it_comes_again_is_answered_when_it_is_there() {
    for fails in [false, true] {
        let mut world = World::new(&[1, 2], &[1, 2]);
        world.lead(1);
        hold_disk(&mut world, 2);
        let write = world.write(1, 10, 4, 7);
        if fails {
            world.held.insert((2, 1));
            world.nodes.get_mut(&2).expect("there").disk_fails = true;
            world.disk_goes_on(2);
            world.nodes.get_mut(&2).expect("there").disk_fails = false;
        }
        world.disconnect(1, 2);
        world.held.clear();
        world.connect(1, 2);
        world.ready(1, 2);
        assert_eq!(world.answer(1, write), fails.then_some(Ok(())), "{fails}");
        world.disk_goes_on(2);
        assert_eq!(world.answer(1, write), Some(Ok(())));
        assert_eq!(world.at(2, 10), 7);
        assert_eq!(world.buffers_held(), 0);
    }
}

#[test]
fn a_write_waits_for_the_disk_of_a_primary_that_is_in_sync() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    hold_disk(&mut world, 1);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.at(2, 10), 7);
    assert_eq!(world.answer(1, write), None, "its process may be all that ends");
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn with_a_diskless_primary_the_disk_of_any_in_sync_replica_does() {
    let mut world = early(&[1, 2, 3], &[2, 3], 1);
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    assert_eq!((world.at(2, 10), world.at(3, 10)), (0, 7));
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.disk_goes_on(2);
    world.wait_ms(100);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn the_disk_of_a_replica_that_is_being_brought_up_to_date_does_not_count() {
    let mut world = early(&[1, 2, 3, 4], &[2, 3, 4], 1);
    world.change(1, &[2, 3]);
    world.start_resync(1, 4);
    world.wait_ms(100);
    hold_disk(&mut world, 2);
    hold_disk(&mut world, 3);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.at(4, 10), 7);
    assert_eq!(world.answer(1, write), None, "node 4 may be copied over");
    world.disk_goes_on(3);
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn memory_does_not_count_before_its_node_knows_that_it_does() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    hold_disk(&mut world, 2);
    let mut next = world.next_with(&[1, 2]);
    next.volumes[0].block_bytes = 512;
    world.install(next, &[1]);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), None, "node 2 has not stored the configuration");
    world.install_on(2);
    world.ready(1, 2);
    let next = world.write(1, 20, 4, 8);
    assert_eq!(world.answer(1, next), Some(Ok(())));
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn memory_counts_no_more_where_its_node_knows_that_it_does_not() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    let mut next = world.next_with(&[1, 2]);
    next.options.protocol = Protocol::C;
    world.install(next, &[2]);
    let said = FromShard::Written { epoch: world.configuration.epoch };
    assert!(world.has_said(2, &said));
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), None, "its record says already that nothing is in memory");
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn a_write_that_is_complete_and_waits_for_the_lease_keeps_its_buffer() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    hold_disk(&mut world, 1);
    let write = world.ask(1, Op::Write, span(10, 4), 7, false);
    world.run();
    // The reign ends with the write in the queue of its own disk, and begins again.
    world.lead(1);
    world.disk_goes_on(1);
    world.wait_ms(500);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!((world.at(1, 10), world.at(2, 10)), (7, 7));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn written_is_said_when_the_disk_has_what_was_asked_for_before() {
    let mut world = early(&[1, 2], &[1, 2], 1);
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.disconnect(1, 2);
    let mut next = world.next_with(&[2]);
    next.primary = None;
    world.install(next, &[2]);
    let said = FromShard::Written { epoch: world.configuration.epoch };
    assert!(!world.has_said(2, &said), "node 2 alone has the write, in memory");
    world.disk_goes_on(2);
    assert!(world.has_said(2, &said));
    assert!(world.configuration.is_in_sync(NodeId(2)));
}

/// A write was answered that node 2 has in memory only, and `primary` reigns then without node 1.
fn taken_over(replicas: &[u16], primary: u16) -> World {
    let mut world = early(&[1, 2, 3], replicas, 1);
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    world.configuration = world.next_with(&[2]);
    world.lead(primary);
    world
}

fn flushes_its_disk(world: &World, node: u16) -> bool {
    world.nodes[&node].flying.iter().any(|(_, request)| matches!(request, DiskRequest::Flush))
}

#[test]
fn a_flush_waits_for_what_was_answered_in_an_earlier_reign_and_is_in_memory_only() {
    for primary in [2, 3] {
        let mut world = taken_over(&[1, 2], primary);
        let flush = world.flush(primary);
        assert!(!flushes_its_disk(&world, 2), "it would not cover the write");
        assert_eq!(world.answer(primary, flush), None);
        world.disk_goes_on(2);
        assert_eq!(world.answer(primary, flush), Some(Ok(())));
        assert_eq!(world.at(2, 10), 7);
        assert!(world.nodes[&2].unflushed.is_empty());
    }
}

#[test]
fn a_flush_does_not_wait_for_an_earlier_write_that_is_durable_and_not_in_its_place() {
    let mut world = taken_over(&[1, 2], 3);
    world.flush(3);
    assert!(!flushes_its_disk(&world, 2));
    world.disk_says_durable(2);
    assert!(flushes_its_disk(&world, 2));
}

#[test]
fn a_flush_fails_if_the_earlier_write_that_it_waits_for_does() {
    let mut world = taken_over(&[1, 2], 3);
    let flush = world.flush(3);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    world.disk_answers(2, 0);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    world.run();
    let failed =
        |message: &ShardMessage| matches!(message, ShardMessage::Flushed { ok: false, .. });
    assert_eq!(world.sent(2, 3, failed), 1);
    assert_eq!(world.answer(3, flush), Some(Err(AnswerError::Io)), "nobody else has it");
}

fn fails_its_write(world: &mut World, node: u16) {
    world.nodes.get_mut(&node).expect("there").disk_fails = true;
    world.disk_answers(node, 0);
    let at = world.nodes.get_mut(&node).expect("there");
    (at.disk_fails, at.disk_held) = (false, false);
    world.disk_goes_on(node);
}

/// The next flush is told that something was lost, and the one after it is not.
fn assert_told_once(world: &mut World, node: u16) {
    for told in [Err(AnswerError::Io), Ok(())] {
        let flush = world.flush(node);
        world.wait_ms(4000);
        assert_eq!(world.answer(node, flush), Some(told), "{node}");
    }
}

/// It was acknowledged, and nobody else has it.
#[test]
fn a_write_of_an_earlier_reign_that_the_only_copy_fails_is_told_to_the_next_flush() {
    for primary in [2, 3] {
        let mut world = taken_over(&[1, 2], primary);
        fails_its_write(&mut world, 2);
        assert_told_once(&mut world, primary);
    }
}

#[test]
fn a_write_that_the_only_copy_fails_before_another_reign_begins_is_told_in_that() {
    for primary in [2, 3] {
        let mut world = early(&[1, 2, 3], &[1, 2], 1);
        hold_disk(&mut world, 2);
        let write = world.write(1, 10, 4, 7);
        assert_eq!(world.answer(1, write), Some(Ok(())));
        world.disconnect(1, 2);
        world.disconnect(1, 3);
        fails_its_write(&mut world, 2);
        world.configuration = world.next_with(&[2]);
        world.lead(primary);
        assert_told_once(&mut world, primary);
    }
}

/// The primary has it, and writes it again: nothing is lost.
#[test]
fn a_write_that_the_only_copy_fails_and_that_comes_again_is_told_to_nobody() {
    let mut world = early(&[1, 2], &[2], 1);
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    world.disconnect(1, 2);
    fails_its_write(&mut world, 2);
    world.comes_back(1, 2);
    world.wait_ms(1000);
    assert_eq!((world.answer(1, write), world.at(2, 10)), (Some(Ok(())), 7));
    world.begin_reign(1);
    world.lead(1);
    let flush = world.flush(1);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
}

#[test]
fn a_replica_out_of_sync_flushes_whatever_is_on_its_way_there() {
    let mut world = taken_over(&[1, 2], 3);
    world.flush(3);
    assert!(!flushes_its_disk(&world, 2));
    let next = world.next_with(&[1]);
    world.install(next, &[2]);
    assert!(flushes_its_disk(&world, 2), "its log may have room for the write only after that");
}

#[test]
fn what_stands_where_a_write_failed_that_was_in_memory_is_not_read() {
    let mut world = early(&[1, 2, 3], &[2, 3], 1);
    hold_disk(&mut world, 2);
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let asks_2 = |message: &ShardMessage| matches!(message, ShardMessage::Read { .. });
    let waits_there = world.read(1, 10, 4);
    assert_eq!((world.answer(1, waits_there), world.sent(1, 2, asks_2)), (None, 1));
    // One that is on its way while the disk fails the write, and the primary does not know.
    world.held.insert((1, 2));
    world.held.insert((2, 1));
    let mut comes_later = world.read(1, 10, 4);
    if world.answer(1, comes_later).is_some() {
        comes_later = world.read(1, 10, 4);
    }
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    world.disk_answers(2, 0);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    world.held.remove(&(1, 2));
    world.disk_goes_on(2);
    world.held.remove(&(2, 1));
    world.wait_ms(1000);
    assert_eq!(world.got(1, waits_there), vec![7; 4]);
    assert_eq!(world.got(1, comes_later), vec![7; 4]);
    world.change(1, &[3]);
    world.wait_ms(1000);
    assert_eq!(world.buffers_held(), 0);
}

/// It was answered, so that others over it did not wait for it.
/// All three are answered, and stand over each other as they were asked for.
fn assert_in_order(world: &World, writes: &[u64]) {
    for &write in writes {
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
    for node in [2, 3] {
        assert_eq!([40, 44, 50, 53].map(|sector| world.at(node, sector)), [1, 2, 3, 3]);
    }
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_overlaps_what_is_asked_for_again_comes_again_after_it() {
    let mut world = early(&[1, 2, 3], &[2, 3], 1);
    hold_disk(&mut world, 2);
    let writes = [(40, 8, 1), (44, 8, 2), (50, 4, 3)]
        .map(|(sector, count, value)| world.write(1, sector, count, value));
    world.nodes.get_mut(&2).expect("there").disk_full = true;
    world.disk_writes(2, 40);
    world.nodes.get_mut(&2).expect("there").disk_full = false;
    world.disk_goes_on(2);
    world.wait_ms(10_000);
    assert_in_order(&world, &writes);
}

#[test]
fn a_write_that_failed_is_asked_for_again_before_those_that_came_after_it() {
    let mut world = early(&[1, 2, 3], &[2, 3], 1);
    hold_disk(&mut world, 2);
    let mut writes = vec![world.write(1, 40, 8, 1), world.write(1, 44, 8, 2)];
    world.nodes.get_mut(&2).expect("there").disk_full = true;
    world.disk_writes(2, 40);
    world.nodes.get_mut(&2).expect("there").disk_full = false;
    world.disk_goes_on(2);
    writes.push(world.write(1, 50, 4, 3));
    world.wait_ms(10_000);
    assert_in_order(&world, &writes);
}

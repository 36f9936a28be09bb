//! Protocol B: whose disk and whose memory count before a write is answered.

use super::world::{World, span};
use crate::door::FromShard;
use base::{NodeId, Op};
use wire::Protocol;

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

//! Writes that are durable before they are in their place, as under a journal.

use super::world::{World, span};
use alloc::vec;
use base::VolumeId;
use wire::ShardMessage;

/// Two nodes, the first of them primary, whose disks answer no request for data by themselves.
fn pair() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    for node in [1, 2] {
        world.nodes.get_mut(&node).expect("there").disk_held = true;
    }
    world
}

fn retires(message: &ShardMessage) -> bool {
    matches!(message, ShardMessage::Retire { .. })
}

#[test]
fn a_write_is_answered_when_it_is_durable_everywhere_and_retired_when_it_is_in_its_place() {
    let mut world = pair();
    let write = world.write(1, 0, 8, 1);
    world.disk_says_durable(1);
    assert_eq!(world.answer(1, write), None, "node 2 may not have it");
    world.disk_says_durable(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let not_in_place =
        |message: &ShardMessage| matches!(message, ShardMessage::Written { in_place: false, .. });
    assert_eq!(world.sent(2, 1, not_in_place), 1);
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert_eq!(world.sent(1, 2, retires), 0, "node 2 has it elsewhere");
    assert!(!world.nodes[&2].shard.unretired.is_empty());
    world.disk_goes_on(2);
    world.wait_ms(1000);
    assert_eq!(world.sent(1, 2, retires), 1);
    assert!(world.nodes[&2].shard.unretired.is_empty());
    assert_eq!((world.at(1, 0), world.at(2, 0)), (1, 1));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_is_not_in_its_place_is_not_read_there_and_keeps_its_extent_hot() {
    let mut world = pair();
    let write = world.write(1, 0, 8, 1);
    world.disk_says_durable(1);
    world.disk_says_durable(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let read = world.read(1, 0, 8);
    assert_eq!(world.answer(1, read), None, "the disk would give older bytes");
    let is_used = |world: &World, node: u16| {
        let shard = &world.nodes[&node].shard;
        let extent = shard.extent_of(VolumeId(0), span(0, 8));
        shard.log.is_hot(extent) && shard.log.is_used(extent)
    };
    assert!(is_used(&world, 1) && is_used(&world, 2), "it may not turn cold");
    world.disk_goes_on(2);
    world.disk_goes_on(1);
    assert_eq!(world.got(1, read), vec![1; 8]);
    world.wait_ms(1000);
    assert!(!is_used(&world, 1) && !is_used(&world, 2));
}

#[test]
fn that_a_write_was_durable_in_a_session_that_ended_does_not_count() {
    let mut world = pair();
    let write = world.write(1, 0, 8, 1);
    world.disk_says_durable(2);
    world.disconnect(1, 2);
    world.disk_says_durable(1);
    world.connect(1, 2);
    world.ready(1, 2);
    assert_eq!(world.answer(1, write), None, "nobody knows what node 2 lost meanwhile");
    world.disk_goes_on(2);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_disk_that_fails_after_a_write_was_durable_takes_no_answer_back() {
    let mut world = pair();
    let write = world.write(1, 0, 8, 1);
    world.disk_says_durable(1);
    world.disk_says_durable(2);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    world.disk_goes_on(2);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    world.change(1, &[1]);
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.dirty(1, 2), vec![(0, 8)]);
    assert_eq!(world.buffers_held(), 0);
}

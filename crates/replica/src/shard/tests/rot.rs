//! Blocks that changed by themselves.

use super::world::World;
use crate::door::{FromShard, ToShard};
use alloc::vec::Vec;
use base::{AnswerError, NodeId};

/// In one range that is copied at once, block 0 and block 1 hold values of their own.
fn written(nodes: &[u16]) -> World {
    let mut world = World::new(nodes, nodes);
    world.lead(1);
    world.write(1, 0, 8, 5);
    world.write(1, 8, 8, 6);
    world
}

fn rot(world: &mut World, node: u16, sector: u64) {
    let at = world.nodes.get_mut(&node).expect("a node");
    at.rotten.insert(sector);
    at.data.insert(sector, 999);
}

fn assert_well(world: &World, nodes: &[u16]) {
    for &node in nodes {
        assert!(world.nodes[&node].rotten.is_empty(), "node {node}");
        let content: Vec<u64> = (0..16).map(|sector| world.at(node, sector)).collect();
        assert_eq!(content, [[5; 8], [6; 8]].concat(), "node {node}");
    }
}

#[test]
fn two_bad_blocks_of_one_range_on_two_replicas_are_each_read_and_repaired_from_the_other() {
    let mut world = written(&[1, 2]);
    rot(&mut world, 1, 3);
    rot(&mut world, 2, 12);
    let read = world.read(1, 0, 16);
    world.wait_ms(1000);
    assert_eq!(world.got(1, read), [[5; 8], [6; 8]].concat());
    assert_well(&world, &[1, 2]);
    assert_eq!(world.buffers_held(), 0);
}

/// The only copy in sync has a bad sector: nobody else's requests wait for that, nor does the rest of what is to be copied.
#[test]
fn a_resync_holds_up_nobody_where_the_only_copy_cannot_be_read() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.disconnect(1, 2);
    world.change(1, &[1]);
    world.write(1, 0, 8, 5);
    world.write(1, 8, 8, 6);
    world.nodes.get_mut(&1).expect("a node").unreadable.insert(3);
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    assert_eq!(world.at(2, 8), 6, "the block beside it can be read");
    let read = world.read(1, 0, 8);
    world.wait_ms(100);
    assert_eq!(world.answer(1, read), Some(Err(AnswerError::Io)));
    let write = world.write(1, 0, 8, 7);
    world.wait_ms(5000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!((world.at(1, 3), world.at(2, 3)), (7, 7));
    assert!(world.dirty(1, 2).is_empty(), "{:?}", world.dirty(1, 2));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_resync_takes_each_block_from_a_replica_that_has_it() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.change(1, &[1, 2]);
    world.write(1, 0, 8, 5);
    world.write(1, 8, 8, 6);
    rot(&mut world, 1, 3);
    rot(&mut world, 2, 12);
    world.comes_back(1, 3);
    world.resync(1, 3);
    world.wait_ms(1000);
    assert_well(&world, &[1, 2, 3]);
    assert_eq!(world.buffers_held(), 0);
}

/// What one target cannot be given for now is the same at another one, which is about to flush it.
#[test]
fn a_block_that_cannot_be_copied_to_one_target_is_settled_at_another() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.disconnect(1, 3);
    world.change(1, &[1, 2]);
    world.write(1, 0, 8, 5);
    world.restart(2);
    world.change(1, &[1]);
    world.comes_back(1, 2);
    let doubt = |world: &World| world.nodes[&2].shard.status().doubt_sectors;
    assert!(doubt(&world) > 0, "what was hot");
    // What it flushes is not known for good yet.
    world.no_record = true;
    world.start_resync(1, 2);
    world.wait_ms(1000);
    world.nodes.get_mut(&1).expect("a node").unreadable.insert(3);
    world.comes_back(1, 3);
    world.start_resync(1, 3);
    world.wait_ms(1000);
    assert_eq!([3, 4].map(|sector| world.at(3, sector)), [0, 0], "of that block nobody gave any");
    assert!(doubt(&world) > 0);
    world.nodes.get_mut(&1).expect("a node").unreadable.clear();
    world.no_record = false;
    world.wait_ms(5000);
    assert_eq!(world.at(3, 3), 5);
    assert_eq!(doubt(&world), 0);
}

#[test]
fn a_block_that_is_bad_everywhere_fails_reads_of_it_until_it_is_written() {
    let mut world = written(&[1, 2]);
    rot(&mut world, 1, 3);
    rot(&mut world, 2, 4);
    let (both, bad) = (world.read(1, 0, 16), world.read(1, 0, 8));
    let good = world.read(1, 8, 8);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, both), Some(Err(AnswerError::Io)));
    assert_eq!(world.answer(1, bad), Some(Err(AnswerError::Io)));
    assert_eq!(world.got(1, good), [6; 8]);
    let write = world.write(1, 0, 8, 5);
    let read = world.read(1, 0, 16);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.got(1, read), [[5; 8], [6; 8]].concat());
    assert_well(&world, &[1, 2]);
}

#[test]
fn a_replica_that_lacks_a_block_which_is_bad_everywhere_is_not_included_before_it_is_written() {
    let mut world = written(&[1, 2]);
    world.goes_on_alone(1, 2);
    world.write(1, 0, 16, 7);
    rot(&mut world, 1, 3);
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(5000);
    let synced = FromShard::Synced { peer: NodeId(2), session: world.session(1, 2) };
    assert!(!world.has_said(1, &synced));
    let read = world.read(1, 0, 8);
    assert_eq!(world.answer(1, read), Some(Err(AnswerError::Io)), "nobody waits for ever");
    world.write(1, 0, 8, 5);
    world.write(1, 8, 8, 6);
    world.wait_ms(5000);
    assert!(world.has_said(1, &synced));
    assert_well(&world, &[1, 2]);
}

#[test]
fn bytes_that_were_read_for_a_part_are_taken_for_no_other() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.goes_on_alone(1, 2);
    world.write(1, 0, 8, 5);
    world.write(1, 8, 8, 6);
    world.write(1, 16, 16, 7);
    rot(&mut world, 1, 20);
    world.comes_back(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.start_resync(1, 2);
    // It cannot be read as a whole.
    world.disk_answers(1, 0);
    assert!(world.has_mark(1, "a copy goes on block by block"));
    // The first block is being read when copies begin anew, and is read again.
    world.change(1, &[1]);
    world.wait_ms(100);
    assert_eq!(world.nodes[&1].flying.len(), 2);
    world.disk_answers(1, 0);
    world.run();
    world.disk_answers(1, 0);
    world.run();
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert_well(&world, &[2]);
    assert_eq!(world.buffers_held(), 0);
}

/// One disk confirmed a write and lost it, and knows by its checksum; the other never had it. Both hold the same bytes.
#[test]
fn a_disk_that_lost_a_write_is_not_the_same_as_one_that_never_had_it() {
    for loser in [1, 2] {
        let mut world = written(&[1, 2]);
        for node in [1, 2] {
            world.nodes.get_mut(&node).expect("a node").data.insert(3, 0);
        }
        world.nodes.get_mut(&loser).expect("a node").rotten.insert(3);
        let verify =
            ToShard::Verify { run: 1, volume: super::world::VOLUME, from: 0, to: u64::MAX };
        world.tell(1, verify);
        world.wait_ms(1000);
        assert!(world.has_mark(1, "a comparison found a difference"), "node {loser}");
        assert!(world.nodes[&loser].rotten.is_empty(), "node {loser}");
    }
}

//! Flushes that the only copy fails, and of which those who asked for them do not hear.

use super::world::World;
use crate::door::ToShard;
use base::{AnswerError, Duration};
use wire::ShardMessage;

const LOST: Option<Result<(), AnswerError>> = Some(Err(AnswerError::Io));

/// The disk of a node carries out what it holds back, and fails each flush among that.
fn fails_flushes(world: &mut World, node: u16) {
    let at = world.nodes.get_mut(&node).expect("there");
    at.flushes_fail = true;
    world.disk_goes_on(node);
    world.nodes.get_mut(&node).expect("there").flushes_fail = false;
}

fn hold_disk(world: &mut World, node: u16) {
    world.nodes.get_mut(&node).expect("there").disk_held = true;
}

/// Extents leave the log of a node, and the flush for that fails.
fn fails_for_the_log(world: &mut World, node: u16) {
    world.wait_ms(200);
    hold_disk(world, node);
    world.tell(node, ToShard::Cool);
    fails_flushes(world, node);
}

/// The next flush is told that something was lost, and the one after it is not.
fn assert_told_once(world: &mut World, node: u16) {
    for told in [LOST, Some(Ok(()))] {
        let flush = world.flush(node);
        world.wait_ms(4000);
        assert_eq!(world.answer(node, flush), told);
    }
}

fn assert_next_is_fine(world: &mut World, node: u16) {
    let next = world.flush(node);
    world.wait_ms(4000);
    assert_eq!(world.answer(node, next), Some(Ok(())));
}

/// Node 1 leads without a disk, and has written to the only copy, node 2's.
fn diskless() -> World {
    let mut world = World::new(&[1, 2], &[2]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world
}

#[test]
fn a_flush_that_the_only_copy_fails_elsewhere_is_told_though_the_word_of_it_was_lost() {
    let mut world = diskless();
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    world.held.insert((2, 1));
    fails_flushes(&mut world, 2);
    assert_eq!(world.sent(2, 1, |m| matches!(m, ShardMessage::Flushed { ok: false, .. })), 1);
    world.disconnect(1, 2);
    world.held.clear();
    world.comes_back(1, 2);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), LOST);
}

#[test]
fn a_flush_that_the_only_copy_fails_elsewhere_is_told_in_the_next_session() {
    let mut world = diskless();
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    world.disconnect(1, 2);
    world.connect(1, 2);
    fails_flushes(&mut world, 2);
    world.ready(1, 2);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), LOST);
}

#[test]
fn a_flush_that_the_only_copy_fails_elsewhere_is_told_in_the_next_reign() {
    let mut world = diskless();
    world.held.insert((2, 1));
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    fails_flushes(&mut world, 2);
    world.held.clear();
    let mut next = world.next_with(&[2]);
    next.reign = next.epoch;
    world.install(next, &[1, 2]);
    world.run();
    world.lead(1);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), LOST);
}

/// What follows from a later write shows that its primary has heard of it.
#[test]
fn what_was_told_of_a_flush_in_time_is_not_told_again_when_the_session_ends() {
    let mut world = diskless();
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    fails_flushes(&mut world, 2);
    assert_eq!(world.answer(1, flush), LOST);
    world.write(1, 0, 8, 8);
    world.wait_ms(1000);
    world.disconnect(1, 2);
    world.comes_back(1, 2);
    assert_next_is_fine(&mut world, 1);
}

#[test]
fn what_is_to_be_told_with_a_flush_is_kept_if_the_session_of_that_ends() {
    let mut world = diskless();
    fails_for_the_log(&mut world, 2);
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    world.disconnect(1, 2);
    world.disk_goes_on(2);
    world.comes_back(1, 2);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), LOST);
}

#[test]
fn a_flush_of_a_reign_that_ended_and_that_the_only_disk_fails_then_is_told() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    hold_disk(&mut world, 1);
    let flush = world.flush(1);
    world.begin_reign(1);
    fails_flushes(&mut world, 1);
    let reign = world.configuration.reign;
    world.tell(1, ToShard::Serve { reign });
    world.tell(1, ToShard::Lease { until: world.now + Duration::from_secs(1000) });
    world.wait_ms(1000);
    assert_eq!(world.answer(1, flush), LOST);
    assert_next_is_fine(&mut world, 1);
}

#[test]
fn a_flush_of_another_node_is_told_though_that_was_gone_when_it_failed() {
    let mut world = World::new(&[1, 2], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    hold_disk(&mut world, 1);
    let flush = world.flush(2);
    world.disconnect(1, 2);
    fails_flushes(&mut world, 1);
    world.comes_back(1, 2);
    world.wait_ms(1000);
    assert_eq!(world.answer(2, flush), LOST);
    assert_next_is_fine(&mut world, 1);
}

#[test]
fn a_flush_of_a_client_that_is_gone_is_told_to_the_next_one() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    hold_disk(&mut world, 1);
    let flush = world.flush(1);
    world.withdraw(1, flush);
    fails_flushes(&mut world, 1);
    assert_told_once(&mut world, 1);
}

/// Another copy had what was lost, and is gone before that mattered.
#[test]
fn what_a_copy_lost_beside_another_one_is_told_if_it_is_the_only_one_then() {
    for primary in [1, 2] {
        let mut world = World::new(&[1, 2, 3], &[2, 3]);
        world.lead(primary);
        world.write(primary, 0, 8, 7);
        hold_disk(&mut world, 2);
        let flush = world.flush(primary);
        fails_flushes(&mut world, 2);
        world.wait_ms(200);
        assert_eq!(world.answer(primary, flush), None, "by {primary}: node 2 still counts");
        world.disconnect(3, 2);
        world.disconnect(3, 1);
        world.change(primary, &[2]);
        world.wait_ms(4000);
        assert_eq!(world.answer(primary, flush), LOST, "by {primary}");
    }
}

/// It is known there to be the only one a moment sooner than at its primary.
#[test]
fn what_a_copy_says_to_a_primary_that_does_not_know_yet_that_it_is_the_only_one_counts() {
    let mut world = World::new(&[1, 2, 3], &[2, 3]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    let next = world.next_with(&[2]);
    world.install(next, &[2]);
    fails_flushes(&mut world, 2);
    world.install_on(1);
    world.ready(1, 2);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), LOST);
    assert_next_is_fine(&mut world, 1);
}

/// Node 1 loses something by a flush that nobody asked for, and node 2 is copied what is left.
#[test]
fn what_the_only_copy_lost_is_told_though_it_hands_over_to_one_that_was_made_from_it() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world.goes_on_alone(1, 2);
    fails_for_the_log(&mut world, 1);
    world.comes_back(1, 2);
    world.resync(1, 2);
    world.change(1, &[2]);
    assert_told_once(&mut world, 1);
}

/// Another copy has what it lost (seed 1004933001).
#[test]
fn a_flush_that_ends_beside_one_that_this_disk_failed_is_done_while_another_copy_is_in_sync() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world.held.insert((2, 1));
    let before = world.flush(1);
    world.run();
    assert_eq!(world.answer(1, before), None, "node 2 has not said so");
    hold_disk(&mut world, 1);
    let flush = world.flush(1);
    fails_flushes(&mut world, 1);
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, before), Some(Ok(())));
    assert_eq!(world.answer(1, flush), None, "it waits until this copy is left out");
    world.change(1, &[2]);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
    assert_next_is_fine(&mut world, 1);
}

/// Who had asked is primary no more when it is told: nobody has heard.
#[test]
fn a_flush_that_the_only_copy_fails_for_an_earlier_primary_is_told_by_the_next_one() {
    let mut world = World::new(&[1, 2, 3], &[2]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    hold_disk(&mut world, 2);
    let flush = world.flush(1);
    world.held.insert((1, 3));
    world.lead(3);
    fails_flushes(&mut world, 2);
    world.held.clear();
    world.run();
    let later = world.flush(3);
    world.wait_ms(4000);
    let asked = [world.answer(1, flush), world.answer(3, later)];
    assert!(asked.contains(&LOST), "{asked:?}");
}

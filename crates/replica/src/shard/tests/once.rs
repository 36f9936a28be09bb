//! Writes that are asked for again.

use super::world::{SECTORS, World, span};
use crate::door::ToShard;
use alloc::vec::Vec;
use base::{AnswerError, Epoch, NodeId, Op};
use wire::{Configuration, ShardMessage};

/// Three replicas and a client, led by node 1.
fn three_and_a_client() -> World {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3]);
    world.lead(1);
    world
}

/// Node 1 is cut off, and node 2 leads without it.
fn lose_first_primary(world: &mut World) {
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    world.configuration = world.next_with(&[2, 3]);
    world.lead(2);
}

fn stored(world: &World, node: u16, first: u64, count: u64) -> Vec<u64> {
    (first..first + count).map(|sector| world.at(node, sector)).collect()
}

#[test]
fn a_write_that_took_effect_is_answered_and_not_carried_out_again_over_a_newer_one() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    assert_eq!(stored(&world, 3, 40, 8), [7; 8]);
    world.held.insert((4, 2));
    lose_first_primary(&mut world);
    let newer = world.write(3, 40, 4, 8);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 40, 8), [8, 8, 8, 8, 7, 7, 7, 7], "node {node}");
    }
    assert!(world.has_mark(2, "a write asked for again had taken effect"));
    assert_eq!(world.nodes[&4].shard.status().forwarded, 0);
}

#[test]
fn a_write_that_had_taken_effect_is_flushed_before_its_answer_if_it_is_to_be_stable() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.ask(4, Op::Write, span(40, 8), 7, true);
    world.run();
    lose_first_primary(&mut world);
    world.held.clear();
    let flushes = |world: &World| world.sent(2, 3, |m| matches!(m, ShardMessage::Flush { .. }));
    let before = flushes(&world);
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    assert!(before + flushes(&world) > 0, "nobody was asked to flush");
    assert!(world.nodes[&3].unflushed.is_empty());
}

#[test]
fn a_write_that_only_the_source_holds_takes_effect_once() {
    let mut world = three_and_a_client();
    // Node 3 never hears of it, nor does the client.
    world.held.extend([(1, 3), (1, 4), (4, 2)]);
    let lost = world.write(4, 40, 8, 7);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 0));
    lose_first_primary(&mut world);
    let newer = world.write(3, 44, 4, 8);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    assert!(world.has_mark(2, "a write is to be settled"));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 40, 8), [7, 7, 7, 7, 8, 8, 8, 8], "node {node}");
    }
}

#[test]
fn a_write_that_waits_for_its_own_settlement_is_no_error() {
    for (source_has_it, value) in [(true, 7), (false, 9)] {
        let mut world = three_and_a_client();
        world.held.extend([(1, if source_has_it { 3 } else { 2 }), (1, 4)]);
        let lost = world.write(4, 40, 8, value);
        for node in [2, 3] {
            world.nodes.get_mut(&node).expect("a node").disk_held = true;
        }
        // It is asked for again at once, and waits until its place is the same everywhere.
        lose_first_primary(&mut world);
        assert!(world.has_mark(2, "request waits for an overlapping one"));
        world.disk_goes_on(3);
        world.disk_goes_on(2);
        world.wait_ms(500);
        assert_eq!(world.answer(4, lost), Some(Ok(())));
        for node in [2, 3] {
            assert_eq!(stored(&world, node, 40, 8), [value; 8], "node {node}");
        }
    }
}

#[test]
fn a_write_that_the_source_lacks_is_undone_and_carried_out_when_it_is_asked_for_again() {
    let mut world = three_and_a_client();
    world.held.extend([(1, 2), (1, 4), (4, 2), (4, 3)]);
    let lost = world.write(4, 40, 8, 7);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (0, 7));
    lose_first_primary(&mut world);
    let read = world.read(3, 40, 8);
    assert_eq!(world.got(3, read), [0; 8]);
    assert_eq!(world.at(3, 40), 0, "it was undone");
    // The next primary hears from both that it never took effect.
    world.lead(3);
    let newer = world.write(3, 44, 4, 8);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 40, 8), [7; 8], "node {node}");
    }
}

#[test]
fn a_write_that_nobody_remembers_gets_an_error_and_a_new_one_does_not() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    for node in [1, 2, 3] {
        world.restart(node);
    }
    world.held.clear();
    for (one, other) in [(1, 2), (1, 3), (2, 3), (1, 4), (2, 4), (3, 4)] {
        world.connect(one, other);
    }
    world.lead(2);
    world.wait_ms(1000);
    assert_eq!(world.answer(4, lost), Some(Err(AnswerError::SessionLost)));
    let fresh = world.write(4, 40, 8, 9);
    assert_eq!(world.answer(4, fresh), Some(Ok(())));
    assert_eq!(stored(&world, 3, 40, 8), [9; 8]);
}

#[test]
fn a_replica_that_restarts_is_told_what_took_effect() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    for node in [2, 3] {
        world.restart(node);
        for other in [1, 2, 3] {
            if other != node {
                world.connect(node, other);
            }
        }
        world.connect(node, 4);
        world.install_on(node);
        world.ready(1, node);
        world.wait_ms(500);
    }
    world.held.insert((4, 2));
    lose_first_primary(&mut world);
    let newer = world.write(3, 40, 8, 8);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    assert_eq!(stored(&world, 3, 40, 8), [8; 8]);
}

#[test]
fn requests_far_ahead_of_an_unanswered_one_wait_for_it() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let first = world.write(4, 40, 8, 7);
    let others: Vec<u64> =
        (0..1100).map(|_| world.ask(4, Op::Write, span(64, 8), 1, false)).collect();
    world.run();
    assert_eq!(world.nodes[&4].shard.status().forwarded, 1024);
    world.held.clear();
    world.wait_ms(500);
    for id in others.into_iter().chain([first]) {
        assert_eq!(world.answer(4, id), Some(Ok(())));
    }
}

#[test]
fn a_write_on_its_way_to_the_only_disk_is_answered_when_it_is_there() {
    let mut world = World::new(&[1, 2], &[2]);
    world.lead(1);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(2, 40, 8, 7);
    world.disconnect(1, 2);
    world.lead(2);
    world.wait_ms(500);
    assert_eq!(world.answer(2, write), None, "the disk does not have it");
    world.disk_goes_on(2);
    world.wait_ms(500);
    assert_eq!(world.answer(2, write), Some(Ok(())));
    assert_eq!(stored(&world, 2, 40, 8), [7; 8]);
}

#[test]
fn a_write_on_its_way_to_the_only_disk_is_not_taken_for_done_when_that_is_full() {
    for (other, leader) in [(40, 2), (100, 2), (40, 3), (100, 3)] {
        let mut world = World::new(&[1, 2, 3], &[2]);
        world.lead(1);
        world.nodes.get_mut(&2).expect("there").disk_held = true;
        let first = world.write(2, other, 4, 6);
        let write = world.write(2, 40, 8, 7);
        world.disconnect(1, 2);
        world.disconnect(1, 3);
        world.lead(leader);
        let disk = world.nodes.get_mut(&2).expect("there");
        disk.disk_full = true;
        world.disk_goes_on(2);
        world.wait_ms(500);
        for asked in [first, write] {
            assert_eq!(
                world.answer(2, asked),
                Some(Err(AnswerError::SessionLost)),
                "{other} {leader}"
            );
        }
        assert_eq!(stored(&world, 2, 40, 8), [0; 8]);
        world.nodes.get_mut(&2).expect("there").disk_full = false;
        let fresh = world.write(2, 40, 8, 9);
        assert_eq!(world.answer(2, fresh), Some(Ok(())));
    }
}

#[test]
fn a_write_that_the_only_disk_failed_is_not_taken_for_done_though_the_disk_had_failed_before() {
    let mut world = World::new(&[1, 2, 3], &[2]);
    world.lead(3);
    world.write(3, 40, 8, 5);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    world.read(3, 0, 8);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    // Being the only one it stays, and the next primary tells it what took effect.
    world.lead(1);
    world.wait_ms(500);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let write = world.write(3, 40, 8, 7);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    world.lead(3);
    world.wait_ms(500);
    assert_eq!(world.answer(3, write), Some(Err(AnswerError::SessionLost)));
    let fresh = world.write(3, 40, 8, 9);
    assert_eq!(world.answer(3, fresh), Some(Ok(())));
    assert_eq!(stored(&world, 2, 40, 8), [9; 8]);
}

#[test]
fn a_write_that_the_only_disk_refuses_because_its_log_failed_is_not_taken_for_done() {
    let mut world = World::new(&[1, 2, 3], &[2]);
    world.lead(1);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    world.write(1, 200, 8, 5);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    // Nothing can become hot any more; this is sent time and again.
    let write = world.write(3, 40, 8, 7);
    world.wait_ms(1000);
    assert_eq!(world.answer(3, write), None);
    // In a new session it is told what took effect, and what it was sent and refused is told with it.
    world.disconnect(1, 2);
    world.connect(1, 2);
    world.ready(1, 2);
    world.wait_ms(1000);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    world.lead(3);
    world.wait_ms(1000);
    assert_eq!(stored(&world, 2, 40, 8), [0; 8]);
    assert_eq!(world.answer(3, write), Some(Err(AnswerError::SessionLost)));
}

#[test]
fn a_write_that_the_primarys_only_disk_failed_is_not_taken_for_done_when_its_error_was_lost() {
    let mut world = World::new(&[1, 2, 3], &[2]);
    world.lead(2);
    world.write(3, 40, 8, 5);
    world.held.insert((2, 3));
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let write = world.write(3, 40, 8, 7);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    assert_eq!(world.answer(3, write), None, "its answer is on the way");
    world.disconnect(2, 3);
    world.held.clear();
    world.connect(2, 3);
    world.wait_ms(500);
    assert_eq!(world.answer(3, write), Some(Err(AnswerError::SessionLost)));
    assert_eq!(stored(&world, 2, 40, 8), [5; 8]);
    let fresh = world.write(3, 40, 8, 9);
    assert_eq!(world.answer(3, fresh), Some(Ok(())));
}

#[test]
fn a_name_that_was_given_twice_is_an_error_and_no_answer_for_what_was_not_written() {
    let mut world = three_and_a_client();
    for value in [7, 8] {
        let id = world.write(4, 40, 8, value);
        assert_eq!(world.answer(4, id), Some(Ok(())));
    }
    world.same_process = true;
    world.restart(4);
    for other in [1, 2, 3] {
        world.connect(4, other);
    }
    world.install_on(4);
    let id = world.write(4, 40, 8, 9);
    world.wait_ms(500);
    assert_eq!(world.answer(4, id), Some(Err(AnswerError::SessionLost)));
    assert_eq!(stored(&world, 2, 40, 8), [8; 8]);
    assert!(world.has_mark(1, "a name of a write was given twice"));
}

/// Who forwarded it may have had it carried out, and answered, in the history that is given up.
#[test]
fn what_was_forwarded_before_a_fork_and_waits_is_asked_for_anew() {
    let mut world = three_and_a_client();
    world.held.insert((3, 1));
    let first = world.write(1, 40, 8, 7);
    let waits = world.write(4, 40, 8, 8);
    assert_eq!((world.answer(1, first), world.answer(4, waits)), (None, None));
    let mut next = world.next_with(&[1, 2, 3]);
    next.fork += 1;
    world.install(next, &[1, 2, 3, 4]);
    for other in [2, 3, 4] {
        world.ready(1, other);
    }
    world.held.clear();
    world.wait_ms(500);
    assert!(world.has_mark(1, "a write of before a fork is given back"));
    assert_eq!((world.answer(1, first), world.answer(4, waits)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(stored(&world, 3, 40, 8), [8; 8]);
}

#[test]
fn the_first_write_of_a_new_resource_survives_the_first_primary() {
    let mut world = World::untouched(&[1, 2, 3, 4], &[1, 2, 3]);
    // Node 1 never hears of node 3's doubt, so it never tells anybody what took effect.
    world.held.insert((3, 1));
    world.begin_reign(1);
    let first = world.write(4, 40, 8, 7);
    assert_eq!(world.answer(4, first), None);
    lose_first_primary(&mut world);
    world.wait_ms(500);
    assert_eq!(world.answer(4, first), Some(Ok(())));
    assert_eq!(stored(&world, 3, 40, 8), [7; 8]);
}

#[test]
fn a_reign_that_gathered_nothing_takes_no_memory_away() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    world.configuration = world.next_with(&[2, 3]);
    world.held.extend([(3, 2), (4, 2)]);
    world.begin_reign(2);
    world.disconnect(2, 3);
    world.configuration = world.next_with(&[2]);
    world.held.clear();
    world.lead(4);
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    assert!(world.has_mark(4, "a write asked for again had taken effect"));
}

#[test]
fn half_a_reminder_takes_no_memory_away() {
    let mut world = three_and_a_client();
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    // Nothing is in doubt, so that there is nothing to do before the reminder.
    world.wait_ms(500);
    world.held.insert((3, 1));
    world.begin_reign(1);
    world.held.remove(&(3, 1));
    world.held.insert((1, 3));
    let arrived = world.sent(1, 3, |_| true);
    while world.deliver(3, 1) {}
    let to_3 = world.seen.iter().filter(|(from, to, _)| (*from, *to) == (1, 3)).skip(arrived);
    let first = |m: &ShardMessage| matches!(m, ShardMessage::Remember { first: true, .. });
    let before = to_3.take_while(|(_, _, message)| !first(message)).count();
    for _ in 0..=before {
        assert!(world.deliver(1, 3), "node 1 reminds node 3");
    }
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    world.configuration = world.next_with(&[3]);
    world.held.clear();
    world.lead(4);
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

/// What one member lists of a process that another knows to be gone is not open: later writes may lie over it.
#[test]
fn a_write_of_a_process_that_is_gone_is_not_taken_for_open() {
    let mut world = three_and_a_client();
    let first = world.write(4, 40, 8, 7);
    assert_eq!(world.answer(4, first), Some(Ok(())));
    world.restart(4);
    for node in [1, 2, 3] {
        world.connect(node, 4);
    }
    world.install_on(4);
    world.ready(1, 4);
    world.held.insert((1, 3));
    let second = world.write(4, 36, 8, 9);
    assert_eq!(stored(&world, 2, 36, 8), [9; 8]);
    assert_eq!(stored(&world, 3, 40, 8), [7; 8]);
    lose_first_primary(&mut world);
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, second), Some(Ok(())));
    assert!(!world.has_mark(2, "unsettled writes overlap"));
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 36, 12), [9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 7, 7]);
    }
}

/// Node 1 is primary, and its own copy is not in sync; an operator makes it the truth.
fn forced_with_a_write_that_others_have(fua: bool) -> (World, u64) {
    let mut world = three_and_a_client();
    world.change(1, &[2, 3]);
    world.held.insert((3, 1));
    let lost = world.ask(1, Op::Write, span(40, 8), 7, fua);
    world.run();
    assert_eq!((world.at(1, 40), world.at(2, 40), world.answer(1, lost)), (0, 7, None));
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    world.configuration = world.next_with(&[1]);
    world.configuration.fork += 1;
    (world, lost)
}

#[test]
fn a_write_that_only_other_copies_have_is_not_taken_for_done_on_a_copy_that_was_forced() {
    for fua in [false, true] {
        let (mut world, lost) = forced_with_a_write_that_others_have(fua);
        world.lead(1);
        let newer = world.write(1, 44, 4, 8);
        assert_eq!(world.answer(1, newer), Some(Ok(())));
        assert_eq!(world.answer(1, lost), Some(Err(AnswerError::SessionLost)));
        assert_eq!(stored(&world, 1, 40, 8), [0, 0, 0, 0, 8, 8, 8, 8]);
    }
}

#[test]
fn a_primary_knows_what_took_effect_also_where_its_own_copy_is_left_out() {
    let mut world = three_and_a_client();
    world.nodes.get_mut(&1).expect("there").metadata_held = true;
    world.held.insert((1, 4));
    // It waits at node 1 for its extent to be hot.
    let lost = world.write(4, 40, 8, 7);
    assert_eq!((world.at(1, 40), world.at(2, 40), world.at(3, 40)), (0, 7, 7));
    world.change(1, &[2, 3]);
    let newer = world.write(1, 40, 4, 8);
    assert_eq!(world.answer(1, newer), Some(Ok(())));
    world.disconnect(1, 4);
    world.held.clear();
    world.connect(1, 4);
    world.wait_ms(500);
    assert_eq!(stored(&world, 2, 40, 8), [8, 8, 8, 8, 7, 7, 7, 7]);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

/// The primary does not know whether a replica has what it sent in the session before, and sends it anew. It is lost
/// when it has reminded the replica.
#[test]
fn a_reminder_takes_nothing_away_that_arrived_in_an_earlier_session() {
    let mut world = three_and_a_client();
    world.wait_ms(500);
    world.held.extend([(1, 4), (2, 1)]);
    let lost = world.write(4, 40, 8, 7);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 7));
    world.disconnect(1, 2);
    world.held.remove(&(2, 1));
    world.connect(1, 2);
    world.held.insert((1, 2));
    let arrived = world.sent(1, 2, |_| true);
    world.ready(1, 2);
    let to_2 = world.seen.iter().filter(|(from, to, _)| (*from, *to) == (1, 2)).skip(arrived);
    let to_2: Vec<&ShardMessage> = to_2.map(|(_, _, message)| message).collect();
    let reminds = |m: &&ShardMessage| matches!(m, ShardMessage::Remember { .. });
    let last = to_2.iter().rposition(reminds).expect("node 1 reminds node 2");
    for _ in 0..=last {
        assert!(world.deliver(1, 2));
    }
    world.held.insert((4, 2));
    lose_first_primary(&mut world);
    let newer = world.write(2, 40, 4, 8);
    assert_eq!(world.answer(2, newer), Some(Ok(())));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(stored(&world, 3, 40, 8), [8, 8, 8, 8, 7, 7, 7, 7]);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

/// A resync that was given up between `Require` and include begins anew in the same session. What was written meanwhile
/// the target gets as bytes only.
#[test]
fn a_replica_whose_include_was_given_up_is_told_anew_what_took_effect() {
    let mut world = three_and_a_client();
    world.change(1, &[1, 2]);
    let (peer, session) = (NodeId(3), world.session(1, 3));
    let epoch = world.configuration.epoch;
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: true });
    world.start_resync(1, 3);
    world.wait_ms(1000);
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.wait_ms(200);
    world.held.insert((3, 1));
    world.write(1, 100, 4, 5);
    world.wait_ms(2000);
    assert!(world.has_mark(1, "resync given up"));
    world.tell(1, ToShard::Unrequire { peer, session });
    world.held.remove(&(3, 1));
    world.held.insert((1, 4));
    let lost = world.write(4, 40, 8, 7);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 0));
    world.resync(1, 3);
    assert_eq!(world.at(3, 40), 7, "it was copied");
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    world.configuration = world.next_with(&[2, 3]);
    world.held.extend([(4, 2), (4, 3)]);
    world.lead(3);
    let newer = world.write(3, 40, 4, 8);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
    assert_eq!(stored(&world, 3, 40, 8), [8, 8, 8, 8, 7, 7, 7, 7]);
}

/// A copy that was told to be worthless is copied anew in the session that it has. Its primary is lost right after all but that
/// primary have included it.
#[test]
fn a_replica_that_was_not_kept_is_told_what_took_effect_before_its_include() {
    let mut world = three_and_a_client();
    world.change(1, &[1, 2]);
    let (peer, session) = (NodeId(3), world.session(1, 3));
    let epoch = world.configuration.epoch;
    world.tell(1, ToShard::PeerReady { peer, session, epoch, kept: false });
    world.start_resync(1, 3);
    world.wait_ms(1000);
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.wait_ms(200);
    world.held.insert((4, 1));
    let lost = world.write(4, 40, 8, 7);
    world.wait_ms(200);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (0, 0), "the primary has not heard of it");
    for other in [2, 3, 4] {
        world.disconnect(1, other);
    }
    for other in [3, 4] {
        world.disconnect(2, other);
    }
    world.configuration = world.next_with(&[3]);
    world.held.clear();
    world.lead(3);
    world.wait_ms(500);
    assert_eq!((world.answer(4, lost), world.at(3, 40)), (Some(Ok(())), 7));
}

/// The last member that remembered what was before is started anew: what this reign carried out its primary knows.
#[test]
fn what_took_effect_in_this_reign_is_not_forgotten_with_what_was_before() {
    let mut world = three_and_a_client();
    world.held.extend([(2, 1), (3, 1)]);
    world.write(1, 0, 8, 5);
    world.restart(2);
    world.disconnect(1, 3);
    world.disconnect(1, 4);
    world.held.clear();
    for other in [3, 4] {
        world.connect(2, other);
    }
    world.configuration = world.next_with(&[2, 3]);
    world.nodes.get_mut(&3).expect("there").disk_held = true;
    world.lead(2);
    // What was open waits for the disk of node 3, and nothing else does.
    world.held.insert((2, 4));
    let lost = world.ask(4, Op::Write, span(128, 8), 7, false);
    world.run();
    world.disk_writes(3, 128);
    let newer = world.write(2, 128, 4, 8);
    world.disk_writes(3, 128);
    assert_eq!(world.answer(2, newer), Some(Ok(())));
    assert!(!world.has_mark(2, "no member remembers what took effect"));
    world.restart(3);
    for other in [2, 4] {
        world.connect(3, other);
    }
    world.install_on(3);
    world.ready(2, 3);
    assert!(world.has_mark(2, "no member remembers what took effect"));
    world.disconnect(2, 4);
    world.held.clear();
    world.connect(2, 4);
    world.wait_ms(500);
    assert_eq!(stored(&world, 3, 128, 8), [8, 8, 8, 8, 7, 7, 7, 7]);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

/// The configuration after this one, with that many sectors.
fn sized(world: &World, in_sync: &[u16], sectors: u64, grows_to: Option<u64>) -> Configuration {
    let mut next = world.next_with(in_sync);
    (next.volumes[0].sectors, next.volumes[0].grows_to) = (sectors, grows_to);
    next
}

/// It is committed, and all that are connected act on it.
fn commit(world: &mut World, primary: u16, next: Configuration) {
    world.install(next, &[primary]);
    for other in world.peers_of(primary) {
        world.install_on(other);
        world.ready(primary, other);
    }
    world.wait_ms(500);
}

/// A replica knows that a volume shrank before the primary's shard does; the volume grows again, and is written to.
#[test]
fn a_write_beyond_the_new_end_is_remembered_where_it_is_not_kept() {
    let mut world = three_and_a_client();
    let small = sized(&world, &[1, 2, 3], 512, None);
    world.install(small.clone(), &[2]);
    world.held.insert((1, 4));
    let lost = world.write(4, 600, 8, 7);
    assert_eq!((world.at(1, 600), world.at(2, 600), world.at(3, 600)), (7, 0, 7));
    commit(&mut world, 1, small);
    for (sectors, grows_to) in [(512, Some(SECTORS)), (SECTORS, None)] {
        let next = sized(&world, &[1, 2, 3], sectors, grows_to);
        commit(&mut world, 1, next);
    }
    assert_eq!(stored(&world, 3, 600, 8), [0; 8], "what was added is zero");
    let newer = world.write(1, 600, 4, 8);
    assert_eq!(world.answer(1, newer), Some(Ok(())));
    world.held.insert((4, 2));
    lose_first_primary(&mut world);
    world.held.clear();
    world.wait_ms(500);
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 600, 8), [8, 8, 8, 8, 0, 0, 0, 0], "node {node}");
    }
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

#[test]
fn a_write_across_a_new_end_takes_effect_once() {
    let mut world = World::new(&[1, 2, 3, 4, 5], &[1, 2, 3]);
    world.lead(1);
    world.held.extend([(1, 3), (1, 5)]);
    let lost = world.write(5, 376, 8, 7);
    assert_eq!((world.at(2, 376), world.at(3, 376)), (7, 0));
    for other in [2, 3, 4, 5] {
        world.disconnect(1, other);
    }
    for other in [2, 3, 4] {
        world.disconnect(5, other);
    }
    world.configuration = sized(&world, &[2, 3], 380, None);
    world.lead(4);
    let newer = world.write(4, 376, 2, 8);
    assert_eq!(world.answer(4, newer), Some(Ok(())));
    assert_eq!(stored(&world, 3, 376, 4), [8, 8, 7, 7]);
    for (sectors, grows_to) in [(380, Some(SECTORS)), (SECTORS, None)] {
        let next = sized(&world, &[2, 3], sectors, grows_to);
        commit(&mut world, 4, next);
    }
    world.held.clear();
    world.comes_back(4, 5);
    world.wait_ms(500);
    assert_eq!(stored(&world, 3, 376, 8), [8, 8, 7, 7, 0, 0, 0, 0]);
    assert_eq!(world.answer(5, lost), Some(Ok(())));
}

/// Each of two copies has another half of what was open: what is put together of them is neither done nor undone.
#[test]
fn a_write_of_which_only_parts_can_be_read_is_neither_taken_for_done_nor_carried_out() {
    for (of_2, of_3) in [(40, 48), (48, 40)] {
        let mut world = three_and_a_client();
        world.held.extend([(1, 3), (1, 4), (4, 2)]);
        let lost = world.write(4, 40, 16, 7);
        assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 0));
        world.nodes.get_mut(&2).expect("there").rotten.insert(of_2);
        world.nodes.get_mut(&3).expect("there").rotten.insert(of_3);
        lose_first_primary(&mut world);
        assert!(world.has_mark(2, "a copy goes on block by block"));
        let newer = world.write(3, of_3, 4, 8);
        assert_eq!(world.answer(3, newer), Some(Ok(())));
        let before: Vec<Vec<u64>> = [2, 3].map(|node| stored(&world, node, 40, 16)).into();
        world.held.clear();
        world.wait_ms(500);
        assert_eq!(world.answer(4, lost), Some(Err(AnswerError::SessionLost)), "{of_2}");
        for (node, before) in [2, 3].into_iter().zip(before) {
            assert_eq!(stored(&world, node, 40, 16), before, "node {node}");
        }
    }
}

/// The disk fails a write while another copy is in sync that is about to be excluded: its failure is heard of when that
/// is decided.
#[test]
fn what_a_disk_failed_which_is_then_the_only_one_is_over() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.held.insert((2, 1));
    world.nodes.get_mut(&1).expect("there").disk_full = true;
    let write = world.write(1, 40, 8, 7);
    world.nodes.get_mut(&1).expect("there").disk_full = false;
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let flush = world.flush(1);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    world.disconnect(1, 2);
    assert_eq!((world.answer(1, write), world.answer(1, flush)), (None, None));
    world.change(1, &[1]);
    world.wait_ms(500);
    for asked in [write, flush] {
        assert_eq!(world.answer(1, asked), Some(Err(AnswerError::Io)));
    }
    let fresh = world.write(1, 40, 8, 9);
    assert_eq!(world.answer(1, fresh), Some(Ok(())));
    let read = world.read(1, 40, 8);
    assert_eq!(world.got(1, read), [9; 8]);
}

/// The same of a write of the reign before.
#[test]
fn where_a_disk_failed_a_write_of_an_earlier_reign_it_is_read_if_it_is_then_the_only_one() {
    let mut world = three_and_a_client();
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(4, 40, 8, 7);
    lose_first_primary(&mut world);
    world.nodes.get_mut(&2).expect("there").disk_full = true;
    world.nodes.get_mut(&3).expect("there").disk_held = true;
    world.disk_goes_on(2);
    world.nodes.get_mut(&2).expect("there").disk_full = false;
    world.disconnect(2, 3);
    world.change(2, &[2]);
    world.wait_ms(500);
    assert_eq!(world.answer(4, write), Some(Err(AnswerError::SessionLost)));
    let read = world.read(2, 40, 8);
    assert_eq!(world.answer(2, read), Some(Ok(())));
}

/// Two reigns later its first primary leads again, and nobody remembers: the copies were started anew.
#[test]
fn a_request_that_was_long_on_its_way_is_not_taken_for_a_first_one() {
    let mut world = three_and_a_client();
    world.held.insert((4, 1));
    let late = world.ask(4, Op::Write, span(40, 8), 7, false);
    world.configuration = world.next_with(&[2, 3]);
    world.lead(2);
    assert_eq!(world.answer(4, late), Some(Ok(())), "it was asked for again");
    let newer = world.write(2, 40, 4, 8);
    assert_eq!(world.answer(2, newer), Some(Ok(())));
    for node in [2, 3] {
        world.restart(node);
    }
    for (one, other) in [(1, 2), (1, 3), (2, 3)] {
        world.connect(one, other);
    }
    world.lead(1);
    world.held.clear();
    world.wait_ms(500);
    for node in [2, 3] {
        assert_eq!(stored(&world, node, 40, 8), [8, 8, 8, 8, 7, 7, 7, 7], "node {node}");
    }
}

/// Node 4 hears first that node 1 begins another reign: what it asks for then, node 1 may carry out in the one before.
#[test]
fn a_write_is_not_carried_out_in_a_reign_before_that_in_which_it_was_asked_for() {
    let mut world = three_and_a_client();
    let mut next = world.configuration.clone();
    next.epoch = Epoch(next.epoch.0 + 1);
    next.reign = next.epoch;
    world.install(next, &[4]);
    let write = world.write(4, 40, 8, 7);
    assert_eq!((world.at(1, 40), world.answer(4, write)), (0, None));
    world.configuration.reign = Epoch(world.configuration.reign.0 - 1);
    world.configuration.epoch = world.configuration.reign;
    world.lead(1);
    world.wait_ms(500);
    assert_eq!(world.answer(4, write), Some(Ok(())));
}

#[test]
fn what_is_settled_of_a_process_that_is_gone_does_not_end_the_one_after_it() {
    let mut world = World::new(&[1, 2, 3, 4, 5], &[1, 2, 3]);
    world.lead(1);
    world.wait_ms(500);
    // The first process of node 4 writes what node 2 alone has.
    world.held.extend([(1, 3), (1, 4)]);
    world.write(4, 40, 8, 7);
    assert_eq!((world.at(2, 40), world.at(3, 40)), (7, 0));
    world.restart(4);
    for node in [2, 3, 5] {
        world.connect(node, 4);
    }
    for other in [2, 3, 5] {
        world.disconnect(1, other);
    }
    // It takes a while until that is settled. Meanwhile the next process writes, is not answered, and another writes over that.
    world.nodes.get_mut(&2).expect("it runs").disk_held = true;
    world.configuration = world.next_with(&[2, 3]);
    world.lead(2);
    world.held.insert((2, 4));
    let lost = world.ask(4, Op::Write, span(128, 8), 7, false);
    world.run();
    world.disk_writes(2, 128);
    let newer = world.write(5, 128, 4, 8);
    world.disk_writes(2, 128);
    assert_eq!(world.answer(5, newer), Some(Ok(())));
    // Now it is settled, but nobody else hears of all that took effect.
    world.held.insert((3, 2));
    world.disk_goes_on(2);
    for other in [3, 4, 5] {
        world.disconnect(2, other);
    }
    world.configuration = world.next_with(&[3]);
    world.lead(3);
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(stored(&world, 3, 128, 8), [8, 8, 8, 8, 7, 7, 7, 7]);
    assert_eq!(world.answer(4, lost), Some(Ok(())));
}

/// Numbers begin anew with each process. Node 2 is still busy with a write of the one before when another of the same number comes, and
/// comes again.
#[test]
fn what_is_left_of_a_write_of_another_process_says_nothing_of_one_of_the_same_number() {
    for fails in [false, true] {
        let mut world = World::new(&[1, 2], &[1, 2]);
        world.lead(1);
        for value in 0..20 {
            world.write(1, 0, 4, value);
        }
        let number = |world: &World| {
            let sent = world.seen.iter().rev().find_map(|(from, _, message)| match message {
                ShardMessage::Write { sequence, .. } if *from == 1 => Some(*sequence),
                _ => None,
            });
            sent.expect("one was sent")
        };
        world.nodes.get_mut(&2).expect("there").disk_held = true;
        world.write(1, 10, 4, 7);
        let earlier = number(&world);
        world.restart(1);
        world.connect(1, 2);
        world.lead(1);
        let mut first = 512;
        let mut write = world.write(1, first, 4, 8);
        while number(&world) < earlier {
            first += 4;
            write = world.write(1, first, 4, 8);
        }
        assert_eq!(number(&world), earlier);
        world.disconnect(1, 2);
        world.connect(1, 2);
        world.ready(1, 2);
        world.nodes.get_mut(&2).expect("there").disk_full = fails;
        world.disk_writes(2, 10);
        world.nodes.get_mut(&2).expect("there").disk_full = false;
        assert_eq!(world.answer(1, write), None, "it is on its way to the disk of node 2");
        assert!(world.nodes[&2].shard.local.failed_here.is_empty());
        world.disk_writes(2, first);
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
}

//! Peers and disks that fail.

use super::world::{SECTORS, VOLUME, World, span};
use crate::door::{DiskRequest, FromShard, ToShard};
use crate::shard::write::FAILED_RUNS;
use alloc::vec;
use alloc::vec::Vec;
use base::{AnswerError, Instant, NodeId, Op, SessionId, Span, VolumeId};
use wire::{OnIoError, Protocol, ReadPolicy, ShardMessage};

fn pair() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world
}

#[test]
fn a_write_goes_on_without_a_peer_once_its_exclude_is_known_and_is_dirty_for_it() {
    let mut world = pair();
    let before = world.write(1, 0, 8, 1);
    world.disconnect(1, 2);
    let write = world.write(1, 130, 3, 2);
    world.wait_ms(500);
    assert_eq!(world.answer(1, before), Some(Ok(())));
    assert_eq!(world.answer(1, write), None, "nobody has excluded node 2");
    world.change(1, &[1]);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert!(world.dirty(1, 2).contains(&(128, 136)), "{:?}", world.dirty(1, 2));
    let last = world.write(1, SECTORS - 1, 1, 3);
    assert_eq!(world.answer(1, last), Some(Ok(())));
    assert!(world.dirty(1, 2).contains(&(1016, SECTORS)), "{:?}", world.dirty(1, 2));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_peer_that_does_not_answer_is_complained_about_now_and_then() {
    let mut world = pair();
    world.held.insert((2, 1));
    world.write(1, 0, 8, 1);
    world.write(1, 64, 8, 1);
    world.wait_ms(4000);
    let late =
        |said: &&FromShard| matches!(said, FromShard::PeerLate { peer, .. } if *peer == NodeId(2));
    let complaints = world.nodes[&1].said.iter().filter(late).count();
    assert!((2..=4).contains(&complaints), "{complaints}");
}

/// Node 2 is sent only now, as it becomes ready, what has been open for long; it answers a little later.
fn is_not_late_with(world: &mut World, write: u64) {
    world.held.insert((2, 1));
    world.ready(1, 2);
    world.wait_ms(200);
    let late = |said: &FromShard| matches!(said, FromShard::PeerLate { .. });
    assert!(!world.nodes[&1].said.iter().any(late), "it was sent it just now");
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn a_peer_that_comes_back_is_not_late_with_what_was_open_before() {
    let mut world = pair();
    world.held.insert((1, 2));
    let write = world.write(1, 0, 8, 1);
    world.disconnect(1, 2);
    world.wait_ms(4000);
    world.held.clear();
    world.connect(1, 2);
    is_not_late_with(&mut world, write);
}

#[test]
fn a_peer_that_failed_and_is_not_excluded_is_asked_again() {
    let mut world = pair();
    world.write(1, 0, 8, 7);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let write = world.write(1, 0, 8, 1);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    assert_eq!(world.answer(1, write), None);
    world.wait_ms(4000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.at(2, 0), 1);
}

#[test]
fn a_flush_that_works_after_one_that_failed_covers_nothing_of_what_that_one_may_have_lost() {
    let mut world = pair();
    world.write(1, 0, 8, 7);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let first = world.flush(1);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    let second = world.flush(1);
    world.wait_ms(500);
    for flush in [first, second] {
        assert_eq!(world.answer(1, flush), None, "node 1 still counts");
    }
    world.change(1, &[2]);
    for flush in [first, second] {
        assert_eq!(world.answer(1, flush), Some(Ok(())));
    }
}

/// The kernel says once that a flush failed; who asks next is told that all is well.
#[test]
fn a_flush_for_the_logs_sake_that_failed_on_the_only_copy_is_told_to_whoever_flushes_next() {
    for primary in [1, 2] {
        let mut world = World::new(&[1, 2], &[2]);
        world.lead(primary);
        world.write(primary, 0, 8, 7);
        world.wait_ms(200);
        world.nodes.get_mut(&2).expect("there").disk_fails = true;
        world.tell(2, ToShard::Cool);
        world.run();
        world.nodes.get_mut(&2).expect("there").disk_fails = false;
        let first = world.flush(primary);
        world.wait_ms(4000);
        assert_eq!(world.answer(primary, first), Some(Err(AnswerError::Io)), "by {primary}");
        let second = world.flush(primary);
        assert_eq!(world.answer(primary, second), Some(Ok(())), "by {primary}");
    }
}

/// What a resync writes has a number of its own each time: nothing is kept of what fails.
#[test]
fn of_what_a_resync_fails_to_write_nothing_is_kept() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.goes_on_alone(1, 2);
    world.write(1, 0, 8, 7);
    world.comes_back(1, 2);
    world.nodes.get_mut(&2).expect("there").disk_full = true;
    world.start_resync(1, 2);
    world.wait_ms(3000);
    let failed =
        |message: &ShardMessage| matches!(message, ShardMessage::Written { ok: false, .. });
    assert!(world.sent(2, 1, failed) > 0, "nothing failed");
    assert!(world.nodes[&2].shard.local.failed_here.is_empty());
}

#[test]
fn a_flush_that_the_only_copy_fails_elsewhere_is_not_asked_for_again() {
    let mut world = World::new(&[1, 2], &[2]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let flush = world.flush(1);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    world.wait_ms(4000);
    assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)));
}

#[test]
fn a_flush_of_a_peer_that_works_after_one_that_failed_there_covers_nothing_either() {
    let mut world = pair();
    world.write(1, 0, 8, 7);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let first = world.flush(1);
    world.nodes.get_mut(&2).expect("there").disk_fails = false;
    let second = world.flush(1);
    world.wait_ms(4000);
    for flush in [first, second] {
        assert_eq!(world.answer(1, flush), None, "node 2 still counts");
    }
    world.change(1, &[1]);
    for flush in [first, second] {
        assert_eq!(world.answer(1, flush), Some(Ok(())));
    }
}

#[test]
fn a_peer_that_owes_an_answer_again_is_complained_about_again() {
    let mut world = pair();
    let late =
        |said: &&FromShard| matches!(said, FromShard::PeerLate { peer, .. } if *peer == NodeId(2));
    for times in 1..=2 {
        world.held.insert((2, 1));
        let write = world.write(1, 0, 8, 1);
        world.wait_ms(1900);
        assert_eq!(world.nodes[&1].said.iter().filter(late).count(), times);
        world.held.clear();
        world.run();
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
}

#[test]
fn a_member_that_returns_before_it_is_excluded_gets_what_it_has_not_answered() {
    let mut world = pair();
    world.held.insert((1, 2));
    let write = world.write(1, 40, 8, 9);
    let flush = world.flush(1);
    world.disconnect(1, 2);
    world.held.clear();
    world.connect(1, 2);
    assert_eq!(world.answer(1, write), None);
    world.ready(1, 2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.answer(1, flush), Some(Ok(())));
    assert_eq!(world.at(2, 40), 9);
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Gather { .. })), 2);
}

#[test]
fn with_protocol_b_memory_counts_only_in_the_session_that_lasts() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.protocol = Protocol::B;
    world.lead(1);
    for node in [1, 2] {
        world.nodes.get_mut(&node).expect("there").disk_held = true;
    }
    let write = world.write(1, 40, 8, 9);
    // Node 2 said that it received the write; then its process ends before its disk has it.
    world.restart(2);
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, write), None);
    world.comes_back(1, 2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.at(2, 40), 9);
}

#[test]
fn an_answer_of_a_session_that_ended_does_not_count() {
    let mut world = pair();
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 40, 8, 9);
    world.disconnect(1, 2);
    world.connect(1, 2);
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, write), None, "what was answered belongs to the old session");
    world.ready(1, 2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
}

#[test]
fn a_primary_goes_on_without_its_own_disk() {
    let mut world = pair();
    world.write(1, 0, 8, 1);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let write = world.write(1, 0, 4, 2);
    let read = world.read(1, 64, 1);
    assert!(world.has_said(1, &FromShard::DiskFailed));
    assert_eq!(world.answer(1, write), None, "its own copy is still in sync");
    world.change(1, &[2]);
    world.tell(1, ToShard::Detach);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.answer(1, read), Some(Ok(())));
    let read = world.read(1, 0, 8);
    assert_eq!(world.got(1, read), vec![2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(world.dirty(2, 1), [(0, 8)]);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_disk_that_is_given_up_is_left_alone_whatever_is_queued() {
    let mut world = pair();
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let writes: vec::Vec<u64> = (0..3).map(|value| world.write(1, 8, 8, value + 1)).collect();
    for extent in 1..8 {
        world.write(1, extent * 64, 8, 5);
    }
    world.write(1, 68, 8, 5);
    world.wait_ms(100);
    world.change(1, &[2]);
    world.tell(1, ToShard::Detach);
    world.disk_goes_on(1);
    world.wait_ms(1000);
    for write in writes {
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
    assert!(world.nodes[&1].flying.is_empty());
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_replica_whose_disk_is_given_up_answers_everything_that_was_queued() {
    let mut world = pair();
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let pending: vec::Vec<u64> = (0..10).map(|at| world.write(1, at * 64 + 8, 8, at + 1)).collect();
    world.configuration.options.protocol = Protocol::C;
    world.tell(2, ToShard::Detach);
    world.disk_goes_on(2);
    assert!(world.nodes[&2].flying.is_empty());
    world.change(1, &[1]);
    for write in pending {
        assert_eq!(world.answer(1, write), Some(Ok(())));
    }
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_primary_without_disk_waits_for_its_own_exclude() {
    let mut world = pair();
    world.tell(1, ToShard::Detach);
    let write = world.write(1, 0, 4, 2);
    assert_eq!(world.answer(1, write), None, "its copy is in sync and lacks the write");
    world.change(1, &[2]);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.buffers_held(), 0);
}

/// Node 2 has a write open that node 1 lacks, which is the next primary.
fn with_a_write_that_node_1_lacks(nodes: &[u16]) -> World {
    let mut world = World::new(nodes, nodes);
    world.lead(2);
    world.held.insert((2, 1));
    world.write(2, 0, 8, 5);
    world.disconnect(1, 2);
    world.held.clear();
    world.connect(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world
}

/// The copy of a primary cannot be used any more, and counts until it is excluded.
fn lose_own(world: &mut World, node: u16) {
    world.tell(node, ToShard::DiskFails);
    let (peer, session, epoch) = (NodeId(node), SessionId(0), world.configuration.epoch);
    world.tell(node, ToShard::PeerReady { peer, session, epoch, kept: false });
}

fn told_settled(world: &World) -> usize {
    world.sent(1, 2, |message| matches!(message, ShardMessage::Settled { .. }))
}

#[test]
fn nothing_is_settled_without_a_primarys_own_copy_before_that_is_excluded() {
    let mut world = with_a_write_that_node_1_lacks(&[1, 2]);
    world.lead(1);
    lose_own(&mut world, 1);
    world.disk_goes_on(1);
    world.wait_ms(500);
    assert_eq!(world.at(1, 0), 0, "node 1 never heard of the write");
    assert_eq!(told_settled(&world), 0, "node 1 may be all that is left");
    world.change(1, &[2]);
    world.wait_ms(500);
    assert_eq!(told_settled(&world), 1);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn copies_that_agree_are_not_settled_while_the_primarys_own_was_not_compared() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(2);
    world.write(2, 0, 8, 5);
    world.restart(2);
    world.connect(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.lead(1);
    lose_own(&mut world, 1);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    world.disk_goes_on(1);
    world.wait_ms(500);
    assert_eq!(told_settled(&world), 0, "what node 1 holds was not compared");
    world.change(1, &[2]);
    world.wait_ms(500);
    assert!(told_settled(&world) > 0);
}

#[test]
fn what_is_settled_ahead_of_a_configuration_is_dirty_only_for_whom_that_leaves_out() {
    let mut world = with_a_write_that_node_1_lacks(&[1, 2, 3]);
    world.lead(1);
    let differs =
        |world: &World, node| world.nodes[&3].shard.may_differ(NodeId(node), VOLUME, 0, 8);
    assert!(differs(&world, 1) && differs(&world, 2), "the write is in doubt at node 3");
    let next = world.next_with(&[1, 3]);
    let settled = ShardMessage::Settled { epoch: next.epoch, volume: VOLUME, span: span(0, 8) };
    world.hear(3, 1, settled);
    assert!(differs(&world, 2), "node 2 may be who is left out");
    world.install(next, &[3]);
    assert!(!differs(&world, 1), "{:?}", world.dirty(3, 1));
    assert!(differs(&world, 2), "node 2 has not been compared");
}

/// Two sides of a history have configurations of one number: what one of them settled is not settled on the other.
#[test]
fn what_another_primary_settled_ahead_stays_in_doubt_in_a_new_reign() {
    let mut world = with_a_write_that_node_1_lacks(&[1, 2, 3]);
    world.lead(1);
    let mut next = world.next_with(&[2, 3]);
    let settled = ShardMessage::Settled { epoch: next.epoch, volume: VOLUME, span: span(0, 8) };
    world.hear(3, 1, settled);
    (next.reign, next.primary) = (next.epoch, Some(NodeId(2)));
    world.install(next, &[3]);
    assert!(world.nodes[&3].shard.may_differ(NodeId(2), VOLUME, 0, 8));
}

#[test]
fn what_came_into_doubt_after_it_was_settled_ahead_stays_so() {
    let mut world = with_a_write_that_node_1_lacks(&[1, 2, 3]);
    world.lead(1);
    let next = world.next_with(&[1, 3]);
    let settled = ShardMessage::Settled { epoch: next.epoch, volume: VOLUME, span: span(0, 8) };
    for message in [settled, world.zero_write(0), world.zero_write(256)] {
        world.hear(3, 1, message);
    }
    world.install(next, &[3]);
    assert!(world.nodes[&3].shard.may_differ(NodeId(1), VOLUME, 0, 8));
}

#[test]
fn a_disk_that_hangs_is_waited_for_no_more_once_its_replica_is_excluded() {
    let mut world = pair();
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let write = world.write(1, 0, 4, 2);
    let behind = world.write(1, 0, 4, 3);
    let read = world.read(1, 64, 4);
    world.change(1, &[2]);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.answer(1, behind), Some(Ok(())));
    assert_eq!(world.answer(1, read), Some(Ok(())));
    world.disk_goes_on(1);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_read_that_fails_here_is_asked_elsewhere_and_fails_only_if_it_fails_everywhere() {
    let mut world = pair();
    world.write(1, 0, 8, 4);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let read = world.read(1, 0, 1);
    assert_eq!(world.got(1, read), vec![4]);
    world.nodes.get_mut(&2).expect("there").disk_fails = true;
    let read = world.read(1, 3, 1);
    assert_eq!(world.answer(1, read), Some(Err(AnswerError::Io)));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn clients_are_told_of_the_primarys_own_disk_if_its_errors_are_passed_on() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.on_io_error = OnIoError::PassOn;
    world.lead(1);
    world.write(1, 0, 8, 4);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let write = world.write(1, 0, 8, 5);
    let flush = world.flush(1);
    let read = world.read(1, 64, 8);
    assert_eq!(world.answer(1, write), Some(Err(AnswerError::Io)));
    assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)));
    assert_eq!(world.answer(1, read), Some(Ok(())), "another copy can be read");
    assert!(world.has_said(1, &FromShard::DiskFailed), "its copy lacks what failed, and steps out");
    world.change(1, &[2]);
    world.tell(1, ToShard::Detach);
    let (write, flush) = (world.write(1, 0, 8, 6), world.flush(1));
    assert_eq!(world.answer(1, write), Some(Ok(())), "the disk is out");
    assert_eq!(world.answer(1, flush), Some(Ok(())));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_lone_replica_whose_disk_fails_answers_with_errors() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 4);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let write = world.write(1, 0, 8, 5);
    let behind = world.read(1, 0, 8);
    let read = world.read(1, 64, 8);
    let cold = world.write(1, 128, 8, 5);
    let flush = world.flush(1);
    world.wait_ms(200);
    for id in [write, behind, read, cold, flush] {
        assert_eq!(world.answer(1, id), Some(Err(AnswerError::Io)), "request {id}");
    }
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn the_only_copy_is_read_on_although_its_disk_failed_a_write() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 1);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let write = world.write(1, 64, 8, 2);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    assert_eq!(world.answer(1, write), Some(Err(AnswerError::Io)));
    let read = world.read(1, 0, 8);
    assert_eq!(world.answer(1, read), Some(Ok(())));
    assert_eq!(world.got(1, read), vec![1; 8]);
}

/// Node 1 has the only copy in sync, and fails a write that node 2 takes, which is about to be in sync.
fn with_a_write_that_only_the_next_copy_has() -> (World, u64) {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    let first = world.write(1, 64, 8, 1);
    assert_eq!(world.answer(1, first), Some(Ok(())));
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(1000);
    let (session, peer) = (world.session(1, 2), NodeId(2));
    world.tell(1, ToShard::Require { peer, session, number: 1 });
    world.wait_ms(50);
    assert!(world.has_said(1, &FromShard::Required { peer, session, number: 1 }));
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let write = world.write(1, 64, 8, 2);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    assert_eq!((world.at(1, 64), world.at(2, 64)), (1, 2));
    assert_eq!(world.answer(1, write), None, "who is in sync with it is still to be seen");
    (world, write)
}

#[test]
fn what_the_only_disk_failed_is_done_by_a_copy_that_is_included() {
    let (mut world, write) = with_a_write_that_only_the_next_copy_has();
    let read = world.read(1, 64, 8);
    assert_eq!(world.answer(1, read), None);
    world.change(1, &[1, 2]);
    world.change(1, &[2]);
    assert_eq!((world.answer(1, write), world.answer(1, read)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(world.got(1, read), vec![2; 8]);
}

#[test]
fn what_the_only_disk_failed_is_told_so_if_no_copy_is_included() {
    let (mut world, write) = with_a_write_that_only_the_next_copy_has();
    let (session, peer) = (world.session(1, 2), NodeId(2));
    world.tell(1, ToShard::Unrequire { peer, session });
    assert_eq!(world.answer(1, write), Some(Err(AnswerError::Io)));
    assert!(world.dirty(1, 2).iter().any(|&(first, end)| first <= 64 && 72 <= end));
    world.wait_ms(1000);
    assert_eq!((world.at(1, 64), world.at(2, 64)), (1, 1));
}

#[test]
fn a_read_does_not_wait_for_a_replica_that_was_excluded() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.configuration.options.read_policy = ReadPolicy::RoundRobin;
    world.lead(1);
    world.held.extend([(2, 1), (3, 1)]);
    let reads: vec::Vec<u64> = (0..3).map(|at| world.read(1, at * 64, 8)).collect();
    world.wait_ms(2000);
    world.change(1, &[1]);
    for read in reads {
        assert_eq!(world.answer(1, read), Some(Ok(())));
    }
    world.held.clear();
    world.run();
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn requests_in_every_state_survive_the_end_of_a_reign() {
    let mut world = pair();
    world.write(1, 0, 8, 1);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.held.insert((2, 1));
    let writes = [world.write(1, 0, 8, 2), world.write(1, 4, 8, 3)];
    let zero = world.ask(1, Op::Zero { unmap: true }, span(64, 8), 0, false);
    let read = world.read(1, 20, 4);
    let flush = world.flush(1);
    world.held.clear();
    world.lead(2);
    world.disk_goes_on(1);
    world.wait_ms(500);
    for id in writes.into_iter().chain([zero, read, flush]) {
        assert_eq!(world.answer(1, id), Some(Ok(())), "request {id}");
    }
    assert_eq!((world.at(1, 6), world.at(2, 6)), (3, 3));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn another_write_under_a_number_in_use_leaves_the_older_range_in_doubt() {
    let mut world = pair();
    for message in [world.zero_write(0), world.zero_write(256)] {
        world.hear(2, 1, message);
    }
    assert!(world.nodes[&2].shard.may_differ(NodeId(9), VOLUME, 0, 8));
    let next = world.next_with(&[2]);
    world.install(next, &[]);
    world.lead(2);
}

#[test]
fn hostile_numbers_in_a_message_do_no_harm() {
    let mut world = pair();
    let epoch = world.configuration.epoch;
    world.change(1, &[1]);
    for message in [
        ShardMessage::Clean {
            epoch,
            target: NodeId(1),
            volume: VOLUME,
            runs: vec![(0, u64::MAX), (u64::MAX, 0)],
        },
        ShardMessage::Retire { epoch, upto: u64::MAX, ahead: vec![(0, u64::MAX), (9, 3)] },
        ShardMessage::Written { sequence: u64::MAX, ok: false, in_place: false },
        ShardMessage::Doubt {
            sequence: 0,
            runs: vec![wire::DoubtRun {
                volume: VOLUME,
                first: 5,
                end: u64::MAX,
                compare: true,
                hot: true,
            }],
            last: true,
        },
    ] {
        world.hear(2, 1, message);
    }
    // What a primary compares is marked for who is out of sync: there is no bit so far out.
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    let epoch = world.configuration.epoch;
    let far = Span::new(1 << 40, 8).expect("a span");
    for volume in [VOLUME, VolumeId(9)] {
        let sequence = 1 << 40;
        let message = ShardMessage::Compare { epoch, sequence, volume, span: far, resync: true };
        world.hear(2, 1, message);
    }
    assert_eq!(world.nodes[&2].shard.bitmaps.unsaved(), []);
}

#[test]
fn a_process_that_restarts_doubts_its_hot_extents_and_keeps_its_bits() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    world.write(1, 70, 2, 2);
    for extent in 4..12 {
        world.write(1, extent * 64, 1, 2);
        world.wait_ms(100);
    }
    let flying = |world: &World| {
        world.nodes[&1].flying.iter().any(|(_, r)| matches!(r, DiskRequest::Meta { .. }))
    };
    assert!(!flying(&world));
    world.restart(1);
    assert!(world.has_said(1, &FromShard::Started));
    world.lead(1);
    let dirty = world.dirty(1, 2);
    for sector in [70, 4 * 64, 7 * 64, 11 * 64] {
        assert!(dirty.iter().any(|run| (run.0..run.1).contains(&sector)), "{sector}: {dirty:?}");
    }
    assert!(!dirty.iter().any(|run| (run.0..run.1).contains(&200)), "{dirty:?}");
}

#[test]
fn answers_that_are_held_back_do_not_keep_a_reign_from_its_end() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let (write, flush) = (world.write(1, 0, 8, 1), world.flush(1));
    world.tell(1, ToShard::Suspend(true));
    let reign = world.configuration.reign;
    world.tell(1, ToShard::Drain { reign, number: 1 });
    world.wait_ms(100);
    assert!(
        !world.has_said(1, &FromShard::Drained { reign, number: 1 }),
        "its disk does not have it"
    );
    world.disk_goes_on(1);
    world.wait_ms(100);
    assert_eq!((world.answer(1, write), world.answer(1, flush)), (None, None), "they are held");
    assert!(world.has_said(1, &FromShard::Drained { reign, number: 1 }));
}

#[test]
fn writes_whose_answers_are_held_back_leave_room_in_the_log_for_others() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let writes: Vec<u64> = (0..5).map(|at| world.write(1, at * 64, 8, at + 1)).collect();
    world.tell(1, ToShard::Suspend(true));
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert!(writes.iter().all(|&write| world.answer(1, write).is_none()), "they are held");
    assert_eq!(world.at(1, 256), 5, "the log has room for four");
    world.comes_back(1, 2);
    world.resync(1, 2);
    assert_eq!(world.at(2, 256), 5);
    world.tell(1, ToShard::Suspend(false));
    assert!(writes.iter().all(|&write| world.answer(1, write) == Some(Ok(()))));
}

#[test]
fn writes_that_the_only_disk_failed_do_not_stay_un_retired_at_a_copy_that_takes_over_from_it() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_full = true;
    for value in 0..1100 {
        let write = world.write(1, 0, 1, value);
        assert_eq!(world.answer(1, write), Some(Err(AnswerError::Io)));
    }
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    // The copy has these, too.
    for value in 0..8 {
        world.write(1, 64 * value, 1, value);
    }
    world.wait_ms(1000);
    world.resync(1, 2);
    world.change(1, &[2]);
    let write = world.write(1, 8, 1, 5);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.nodes[&2].shard.unretired.len(), 0);
}

#[test]
fn what_is_retired_behind_many_writes_that_the_only_disk_failed_is_told() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_full = true;
    for value in 0..1100 {
        world.write(1, 0, 1, value);
    }
    world.nodes.get_mut(&1).expect("there").disk_full = false;
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    let write = world.write(1, 64, 1, 5);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!((world.at(2, 64), world.nodes[&2].shard.unretired.len()), (5, 0));
}

#[test]
fn a_reconciliation_that_the_only_disk_fails_keeps_nobody_waiting() {
    let mut world = pair();
    world.write(1, 0, 1, 7);
    world.wait_ms(200);
    world.disconnect(1, 2);
    world.restart(2);
    // What was hot differs, so that one of the two is copied, to both.
    world.nodes.get_mut(&2).expect("there").data.insert(1, 9);
    world.nodes.get_mut(&1).expect("there").disk_full = true;
    world.held.insert((1, 2));
    world.comes_back(1, 2);
    world.held.clear();
    world.wait_ms(200);
    assert!(world.nodes[&1].shard.status().reconcile_sectors > 0, "its disk failed the write");
    world.goes_on_alone(1, 2);
    world.wait_ms(1000);
    assert_eq!(world.nodes[&1].shard.status().reconcile_sectors, 0);
    let read = world.read(1, 0, 1);
    world.wait_ms(200);
    assert_eq!(world.got(1, read), [7]);
}

#[test]
fn the_flush_after_the_loss_of_all_caches_is_asked_for_again_where_the_only_disk_failed_it() {
    let mut world = World::new(&[1], &[1]);
    world.configuration.recovering = true;
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    world.begin_reign(1);
    world.wait_ms(100);
    let reign = world.configuration.reign;
    assert!(!world.has_said(1, &FromShard::Reconciled { reign }));
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    world.wait_ms(1000);
    assert!(world.has_said(1, &FromShard::Reconciled { reign }));
}

/// The only copy in sync, of `copy`, fails the flush after the loss of all caches once: what it lost by that a later one does not
/// bring back.
fn failed_in_recovery(nodes: &[u16], copy: u16) -> World {
    let mut world = World::new(nodes, &[copy]);
    world.configuration.recovering = true;
    world.nodes.get_mut(&copy).expect("there").disk_fails = true;
    world.begin_reign(1);
    world.wait_ms(100);
    world.nodes.get_mut(&copy).expect("there").disk_fails = false;
    world.wait_ms(1000);
    let reign = world.configuration.reign;
    assert!(world.has_said(1, &FromShard::Reconciled { reign }), "copy of {copy}");
    world.configuration.recovering = false;
    world.change(1, &[copy]);
    world.tell(1, ToShard::Serve { reign });
    world.tell(1, ToShard::Lease { until: Instant(u64::MAX) });
    world
}

#[test]
fn a_flush_that_nobody_waits_for_and_the_only_disk_fails_is_told_to_whoever_asks_for_the_next() {
    for (nodes, copy) in [(&[1][..], 1), (&[1, 2][..], 2)] {
        let mut world = failed_in_recovery(nodes, copy);
        let flush = world.flush(1);
        world.wait_ms(100);
        assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)), "copy of {copy}");
        let next = world.flush(1);
        world.wait_ms(100);
        assert_eq!(world.answer(1, next), Some(Ok(())));
    }
}

#[test]
fn a_flush_that_a_disk_failed_is_told_to_nobody_once_another_copy_is_the_one_that_counts() {
    let mut world = pair();
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    world.nodes.get_mut(&1).expect("there").shard.only_disk.flush_untold = true;
    world.change(1, &[2]);
    let flush = world.flush(1);
    world.wait_ms(100);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
}

#[test]
fn of_what_the_only_disk_fails_for_ever_no_more_is_remembered_than_there_is_room_for() {
    let mut world = pair();
    world.goes_on_alone(1, 2);
    for _ in 0..2 * FAILED_RUNS {
        for fails in [true, false] {
            world.nodes.get_mut(&1).expect("there").disk_full = fails;
            world.write(1, 0, 1, 7);
        }
    }
    let shard = &world.nodes[&1].shard;
    assert!(shard.only_disk.failed.run_count() <= FAILED_RUNS);
    assert_eq!(shard.unretired_own.len(), 0);
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    let write = world.write(1, 64, 1, 5);
    world.wait_ms(1000);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!((world.at(2, 64), world.nodes[&2].shard.unretired.len()), (5, 0));
}

#[test]
fn a_flush_that_is_under_way_when_another_one_fails_on_the_only_copy_covers_nothing_either() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let flushes = [world.flush(1), world.flush(1)];
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    world.disk_answers(1, 0);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    world.disk_goes_on(1);
    for flush in flushes {
        assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)));
    }
    let next = world.flush(1);
    assert_eq!(world.answer(1, next), Some(Ok(())));
}

#[test]
fn a_peer_that_hears_of_a_size_late_is_not_late_with_what_was_open_before() {
    let mut world = pair();
    let mut next = world.next_with(&[1, 2]);
    next.volumes[0].sectors += 64;
    world.install(next, &[1]);
    let write = world.write(1, 0, 8, 1);
    world.wait_ms(4000);
    world.install_on(2);
    is_not_late_with(&mut world, write);
}

#[test]
fn what_leaves_the_log_of_the_only_copy_after_its_disk_failed_is_said_to_be_unsure() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    world.write(1, 0, 8, 7);
    world.wait_ms(200);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    world.flush(1);
    world.nodes.get_mut(&1).expect("there").disk_fails = false;
    assert!(!world.has_said(1, &FromShard::Unsure), "all is in the log");
    world.tell(1, ToShard::Cool);
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Unsure));
}

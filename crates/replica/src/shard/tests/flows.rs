//! What a resource does while nothing fails, and when primaries change.

use super::world::{VOLUME, World, span};
use crate::door::{FromShard, ToShard};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{AnswerError, Ballot, Duration, Epoch, NodeId, Op, RequestId};
use wire::{Protocol, Quorum, ReadPolicy, ShardMessage, Stretch};

/// Nodes 1 and 2 with data, node 1 primary.
fn pair() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world
}

#[test]
fn a_write_is_answered_when_every_replica_has_it_on_disk() {
    let mut world = pair();
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), None);
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!((world.at(1, 12), world.at(2, 12), world.at(2, 14)), (7, 7, 0));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn with_protocol_b_a_write_is_answered_when_one_disk_and_all_memories_have_it() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.protocol = Protocol::B;
    world.lead(1);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.at(2, 10), 0);
    let again = world.write(1, 10, 2, 8);
    assert_eq!(world.answer(1, again), Some(Ok(())));
    world.disk_goes_on(2);
    assert_eq!((world.at(2, 10), world.at(2, 13)), (8, 7), "in order on every disk");
    world.wait_ms(100);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn with_protocol_b_a_durable_write_waits_for_every_disk() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.protocol = Protocol::B;
    world.lead(1);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.ask(1, Op::Write, span(10, 4), 7, true);
    world.run();
    assert_eq!(world.answer(1, write), None);
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert!(world.nodes[&2].unflushed.is_empty());
}

#[test]
fn with_protocol_b_a_flush_covers_answered_writes_that_are_only_in_memory() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.protocol = Protocol::B;
    world.lead(1);
    world.write(1, 900, 1, 1);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let write = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let flush = world.flush(1);
    // Disk requests of different kinds are carried out in any order: the flush first.
    let flying = &world.nodes[&2].flying;
    if let Some(at) = flying.iter().position(|(_, r)| matches!(r, crate::door::DiskRequest::Flush))
    {
        world.disk_answers(2, at);
        world.run();
    }
    assert_eq!(world.answer(1, flush), None, "node 2 has the write in memory only");
    world.disk_goes_on(2);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
    assert!(world.nodes[&2].unflushed.is_empty());
}

#[test]
fn overlapping_requests_go_one_after_the_other() {
    let mut world = pair();
    world.held.insert((2, 1));
    let one = world.write(1, 8, 8, 1);
    let two = world.write(1, 12, 8, 2);
    let read = world.read(1, 15, 1);
    let beside = world.read(1, 20, 1);
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Write { .. })), 1);
    assert_eq!(world.answer(1, read), None);
    assert_eq!(world.answer(1, beside), Some(Ok(())));
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, one), Some(Ok(())));
    assert_eq!(world.answer(1, two), Some(Ok(())));
    assert_eq!(world.got(1, read), vec![2]);
}

#[test]
fn striped_reads_go_to_one_replica_for_each_mebibyte_in_turn() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.configuration.options.read_policy = ReadPolicy::Striped;
    world.configuration.volumes[0].sectors = 4 * 2048;
    world.lead(1);
    let asked = |world: &World, node| {
        world.sent(1, node, |message| matches!(message, ShardMessage::Read { .. }))
    };
    // First sector of a read, and who is to be asked: this node (which asks nobody), then 2, then 3.
    let reads =
        [(0, 1), (2040, 1), (2048, 2), (4088, 2), (4096, 3), (6143, 3), (6144, 1), (2048, 2)];
    for (first, node) in reads {
        let before = [asked(&world, 2), asked(&world, 3)];
        let read = world.read(1, first, 1);
        assert_eq!(world.answer(1, read), Some(Ok(())), "sector {first}");
        let after = [asked(&world, 2), asked(&world, 3)];
        let expected = [before[0] + usize::from(node == 2), before[1] + usize::from(node == 3)];
        assert_eq!(after, expected, "sector {first} is asked of node {node}");
    }
    // With node 2 away its stripes are dealt to those that are left.
    world.disconnect(1, 2);
    let next = world.next_with(&[1, 3]);
    world.install(next, &[1, 3]);
    world.ready(1, 3);
    let before = asked(&world, 3);
    for stripe in 0..4 {
        let read = world.read(1, stripe * 2048, 1);
        assert_eq!(world.answer(1, read), Some(Ok(())), "stripe {stripe}");
    }
    assert_eq!(asked(&world, 3), before + 2, "every second stripe");
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_read_that_waits_for_an_overlapping_write_is_not_started_by_a_new_configuration() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.held.insert((2, 1));
    let write = world.write(1, 8, 8, 1);
    let read = world.read(1, 8, 1);
    // Node 3 leaves; node 2 has still not answered.
    world.disconnect(1, 3);
    let next = world.next_with(&[1, 2]);
    world.install(next, &[1, 2]);
    world.ready(1, 2);
    assert_eq!(world.answer(1, write), None);
    assert_eq!(world.answer(1, read), None, "it would show a write that is not complete");
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.got(1, read), vec![1]);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn each_read_policy_asks_the_replica_it_names() {
    let reads = |world: &World| {
        (2..=3_u16)
            .map(|to| world.sent(1, to, |m| matches!(m, ShardMessage::Read { .. })))
            .collect::<alloc::vec::Vec<_>>()
    };
    for (policy, expected) in
        [(ReadPolicy::PreferLocal, vec![0, 0]), (ReadPolicy::RoundRobin, vec![2, 2])]
    {
        let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
        world.configuration.options.read_policy = policy;
        world.lead(1);
        for _ in 0..6 {
            let read = world.read(1, 0, 8);
            assert_eq!(world.answer(1, read), Some(Ok(())));
        }
        assert_eq!(reads(&world), expected, "{policy:?}");
    }
}

#[test]
fn a_read_is_answered_only_while_the_lease_runs() {
    let mut world = pair();
    world.now = world.now + Duration::from_secs(2000);
    let read = world.read(1, 0, 1);
    let write = world.write(1, 0, 1, 3);
    assert_eq!((world.answer(1, read), world.answer(1, write)), (None, None));
    let until = world.now + Duration::from_secs(1);
    world.tell(1, ToShard::Lease { until });
    assert_eq!((world.answer(1, read), world.answer(1, write)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn while_requests_are_held_back_a_read_that_is_done_is_answered_and_a_write_is_not() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let (read, write) = (world.read(1, 0, 1), world.write(1, 8, 1, 3));
    world.tell(1, ToShard::Suspend(true));
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, read), Some(Ok(())), "its lock would keep a resync waiting");
    assert_eq!(world.answer(1, write), None, "too few replicas may have it");
    world.tell(1, ToShard::Suspend(false));
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn without_quorum_and_with_io_error_every_request_fails_once() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.configuration.options.on_no_quorum = wire::OnNoQuorum::IoError;
    world.lead(1);
    world.write(1, 100, 1, 9);
    world.now = world.now + Duration::from_secs(2000);
    world.disconnect(1, 2);
    let write = world.write(1, 0, 8, 3);
    let behind = world.write(1, 4, 8, 4);
    let read = world.read(1, 4, 1);
    let other = world.read(1, 100, 1);
    let flush = world.flush(1);
    world.wait_ms(5000);
    for id in [write, behind, read, other, flush] {
        assert_eq!(world.answer(1, id), Some(Err(AnswerError::NoQuorum)), "request {id}");
    }
    // Quorum returns without node 2: what is asked now is answered, what failed is not again.
    let until = world.now + Duration::from_secs(1000);
    world.tell(1, ToShard::Lease { until });
    world.change(1, &[1]);
    let read = world.read(1, 0, 1);
    assert_eq!(world.answer(1, read), Some(Ok(())));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn where_an_operator_wants_it_every_request_that_waits_fails_once() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    world.write(1, 100, 1, 9);
    world.now = world.now + Duration::from_secs(2000);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    let (write, behind) = (world.write(1, 0, 8, 3), world.write(1, 4, 8, 4));
    let (read, other, flush) = (world.read(1, 4, 1), world.read(1, 100, 1), world.flush(1));
    let far = world.read(3, 100, 1);
    world.wait_ms(5000);
    let all = [(1, write), (1, behind), (1, read), (1, other), (1, flush), (3, far)];
    assert!(all.iter().all(|&(node, id)| world.answer(node, id).is_none()), "they wait");
    for node in [1, 3] {
        world.tell(node, ToShard::FailWaiting(true));
    }
    for (node, id) in all {
        assert_eq!(world.answer(node, id), Some(Err(AnswerError::NoQuorum)), "request {id}");
    }
    let late = world.write(1, 32, 8, 5);
    world.wait_ms(1000);
    assert_eq!(
        world.answer(1, late),
        Some(Err(AnswerError::NoQuorum)),
        "without a lease's patience"
    );
    world.tell(1, ToShard::FailWaiting(false));
    let kept = world.write(1, 64, 8, 6);
    world.wait_ms(5000);
    assert_eq!(world.answer(1, kept), None, "requests wait again");
    let until = world.now + Duration::from_secs(1000);
    world.tell(1, ToShard::Lease { until });
    world.change(1, &[1]);
    assert_eq!((world.answer(1, kept), world.at(1, 64)), (Some(Ok(())), 6));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_a_reign_that_is_over_left_open_wants_a_primary_though_no_client_waits() {
    let mut world = World::new(&[1, 2, 3], &[2, 3]);
    world.lead(1);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    let write = world.write(1, 0, 8, 3);
    world.wait_ms(1000);
    assert!(!world.has_said(1, &FromShard::Wants), "it may answer");
    world.now = world.now + Duration::from_secs(2000);
    world.tell(1, ToShard::FailWaiting(true));
    assert_eq!(world.answer(1, write), Some(Err(AnswerError::NoQuorum)));
    assert!(world.buffers_held() > 0, "it may take effect");
    world.wait_ms(1000);
    assert!(world.has_said(1, &FromShard::Wants));
    world.connect(1, 2);
    world.connect(1, 3);
    world.lead(1);
    world.wait_ms(1000);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_client_node_reads_and_writes_over_the_network() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    let write = world.write(3, 30, 3, 5);
    assert_eq!(world.answer(3, write), Some(Ok(())));
    let read = world.read(3, 29, 3);
    assert_eq!(world.got(3, read), vec![0, 5, 5]);
    let flush = world.flush(3);
    assert_eq!(world.answer(3, flush), Some(Ok(())));
    let beyond = world.read(3, 1016, 8);
    assert_eq!(world.answer(3, beyond), Some(Err(AnswerError::OutOfRange)));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn forwarded_requests_are_asked_anew_when_the_primary_changes() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    world.held.insert((1, 3));
    let write = world.write(3, 30, 3, 5);
    assert_eq!(world.answer(3, write), None);
    world.lead(2);
    world.wait_ms(200);
    assert_eq!(world.answer(3, write), Some(Ok(())), "node 2 did it");
    world.held.clear();
    world.run();
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn who_asks_a_node_that_is_named_and_not_primary_any_more_wants_another() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    // It is another process of node 1, which has no cause to lead.
    let mut configuration = world.configuration.clone();
    configuration.epoch = Epoch(configuration.epoch.0 + 1);
    let configuration = Arc::new(configuration);
    let (slots, reigns, leaves) = (Vec::new(), false, false);
    world.tell(1, ToShard::Install { configuration, slots, reigns, leaves });
    let write = world.write(3, 40, 8, 7);
    world.wait_ms(100);
    assert_eq!(world.answer(3, write), None);
    assert!(world.has_said(3, &FromShard::Wants));
}

#[test]
fn an_answer_to_an_earlier_attempt_does_not_count_for_a_later_one() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.lead(1);
    world.held.insert((1, 3));
    let write = world.write(3, 30, 3, 5);
    world.held.insert((2, 3));
    world.lead(2);
    world.wait_ms(100);
    world.held.insert((3, 1));
    world.lead(1);
    world.wait_ms(100);
    // The first attempt's answer arrives while the third is still on its way.
    world.held.remove(&(1, 3));
    world.run();
    assert_eq!(world.answer(3, write), None);
    world.held.clear();
    world.wait_ms(200);
    assert_eq!(world.answer(3, write), Some(Ok(())));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_primary_that_drains_finishes_what_is_open_and_admits_nothing() {
    let mut world = pair();
    world.held.insert((2, 1));
    let open = world.write(1, 0, 8, 1);
    let reign = world.configuration.reign;
    world.tell(1, ToShard::Drain { reign, number: 1 });
    let late = world.write(1, 64, 8, 2);
    assert!(!world.has_said(1, &FromShard::Drained { reign, number: 1 }));
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, open), Some(Ok(())));
    assert_eq!(world.answer(1, late), None);
    assert!(world.has_said(1, &FromShard::Drained { reign, number: 1 }));
    // The hand-over: nobody, then node 2. Nothing is in doubt, the late request goes there.
    let mut next = world.next_with(&[1, 2]);
    next.primary = None;
    world.install(next, &[1, 2]);
    assert!(world.has_said(1, &FromShard::Wants));
    world.lead(2);
    world.wait_ms(200);
    assert_eq!(world.answer(1, late), Some(Ok(())));
    assert_eq!(world.nodes[&2].shard.status().reconcile_sectors, 0);
    assert_eq!((world.at(1, 64), world.at(2, 64)), (2, 2));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_hand_over_that_does_not_come_about_lets_requests_go_on() {
    let mut world = pair();
    let reign = world.configuration.reign;
    world.tell(1, ToShard::Drain { reign, number: 1 });
    let late = world.write(1, 64, 8, 2);
    assert_eq!(world.answer(1, late), None);
    world.tell(1, ToShard::Undrain { reign });
    assert_eq!(world.answer(1, late), Some(Ok(())));
}

#[test]
fn what_a_member_says_of_a_reign_that_its_shards_have_not_begun_undoes_no_drain() {
    let mut world = pair();
    let reign = world.configuration.reign;
    world.tell(1, ToShard::Drain { reign, number: 1 });
    assert!(world.has_said(1, &FromShard::Drained { reign, number: 1 }));
    // The member has handed the reign over, and leads again; its disk is slow, so nothing is installed yet.
    let later = base::Epoch(reign.0 + 2);
    world.tell(1, ToShard::Drain { reign: later, number: 1 });
    let read = world.read(1, 64, 8);
    world.wait_ms(100);
    assert_eq!(world.answer(1, read), None, "another may have written it");
    world.tell(1, ToShard::Undrain { reign: later });
    assert_eq!(world.answer(1, read), None);
    world.tell(1, ToShard::Undrain { reign });
    assert_eq!(world.answer(1, read), Some(Ok(())));
}

#[test]
fn answers_of_a_new_cut_wait_until_every_shard_has_switched() {
    let mut world = pair();
    world.held.insert((2, 1));
    let before = world.write(1, 0, 8, 1);
    world.tell(1, ToShard::Cut { number: 1 });
    assert!(world.has_said(1, &FromShard::CutReady { number: 1 }));
    let after = world.write(1, 64, 8, 2);
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, before), world.answer(1, after)), (Some(Ok(())), None));
    world.tell(1, ToShard::CutDone { number: 1 });
    assert_eq!(world.answer(1, after), Some(Ok(())));
}

#[test]
fn writes_left_open_by_a_primary_are_the_same_everywhere_before_they_are_read() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.held.extend([(1, 3), (2, 1), (3, 1)]);
    let open = world.write(1, 8, 8, 5);
    assert_eq!((world.at(2, 8), world.at(3, 8)), (5, 0));
    assert_eq!(world.answer(1, open), None);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    world.held.clear();
    let next = world.next_with(&[2, 3]);
    world.install(next, &[]);
    world.lead(3);
    let read = world.read(3, 8, 1);
    let seen = world.got(3, read)[0];
    assert_eq!((world.at(2, 8), world.at(3, 8)), (seen, seen));
    world.wait_ms(200);
    for node in [2, 3] {
        assert_eq!(world.nodes[&node].shard.status().doubt_sectors, 0);
    }
    assert_eq!(world.dirty(2, 1), [(8, 16)]);
    assert_eq!(world.dirty(3, 1), [(8, 16)]);
}

/// Reads go by turns: what one copy alone has of a write that was left open would be read, and then not any more.
#[test]
fn a_primary_with_a_copy_of_its_own_serves_when_the_others_have_said_what_they_doubt() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.configuration.options.read_policy = ReadPolicy::RoundRobin;
    world.lead(1);
    world.held.extend([(1, 3), (2, 1), (3, 1)]);
    world.write(1, 8, 8, 5);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    world.held.clear();
    let next = world.next_with(&[2, 3]);
    world.install(next, &[]);
    world.held.insert((2, 3));
    world.begin_reign(3);
    let reign = world.configuration.reign;
    world.tell(3, ToShard::Lease { until: world.now + Duration::from_secs(1000) });
    world.tell(3, ToShard::Serve { reign });
    let mut reads = vec![world.read(3, 8, 1), world.read(3, 8, 1)];
    world.held.clear();
    world.run();
    assert!(world.has_said(3, &FromShard::Gathered { reign }));
    world.tell(3, ToShard::Serve { reign });
    world.wait_ms(200);
    reads.extend([world.read(3, 8, 1), world.read(3, 8, 1)]);
    let seen: Vec<u64> = reads.iter().map(|&read| world.got(3, read)[0]).collect();
    assert!(seen.iter().all(|&value| value == seen[0]), "{seen:?}");
}

/// The one that repaired it dies before all have it.
#[test]
fn what_is_repaired_after_a_take_over_is_marked_for_who_repaired_it() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.held.extend([(1, 3), (2, 1), (3, 1)]);
    world.write(1, 8, 8, 5);
    world.disconnect(1, 2);
    world.disconnect(1, 3);
    world.held.clear();
    let next = world.next_with(&[2, 3]);
    world.install(next, &[]);
    world.held.insert((3, 2));
    world.begin_reign(2);
    let repaired =
        |world: &World| world.sent(2, 3, |message| matches!(message, ShardMessage::Write { .. }));
    while repaired(&world) == 0 {
        assert!(world.deliver(3, 2), "node 2 waits for something else");
        world.run();
    }
    assert_eq!(world.at(3, 8), 5);
    world.disconnect(2, 3);
    world.held.clear();
    let next = world.next_with(&[3]);
    world.install(next, &[]);
    world.lead(3);
    assert!(world.has_mark(3, "un-retired writes turn into doubt"));
    assert_eq!(world.dirty(3, 2), [(8, 16)]);
}

#[test]
fn what_is_left_of_lost_caches_is_flushed_before_it_counts_as_agreed_on() {
    let mut world = pair();
    world.write(1, 8, 8, 5);
    world.wait_ms(200);
    for node in [1, 2] {
        assert!(world.nodes[&node].unflushed.contains(&8));
    }
    world.configuration.recovering = true;
    world.begin_reign(1);
    let reign = world.configuration.reign;
    world.wait_ms(200);
    assert!(world.has_said(1, &FromShard::Reconciled { reign }));
    for node in [1, 2] {
        assert!(world.nodes[&node].unflushed.is_empty(), "a power cut would take it back");
    }
}

#[test]
fn a_range_in_doubt_is_compared_and_not_copied_if_it_is_the_same() {
    let mut world = pair();
    world.write(1, 8, 8, 5);
    world.restart(2);
    world.connect(1, 2);
    world.lead(1);
    world.wait_ms(1000);
    assert!(world.sent(1, 2, |m| matches!(m, ShardMessage::Compare { .. })) > 0);
    let copies = world.sent(1, 2, |m| matches!(m, ShardMessage::Write { .. }));
    assert_eq!(copies, 1, "the client's alone");
    assert_eq!(world.nodes[&2].shard.status().doubt_sectors, 0);
}

#[test]
fn what_a_comparison_with_an_earlier_process_found_settles_no_doubt_of_the_next() {
    let mut world = pair();
    world.write(1, 8, 8, 5);
    world.restart(2);
    world.connect(1, 2);
    world.nodes.get_mut(&1).expect("a node").disk_held = true;
    world.lead(1);
    world.wait_ms(50);
    let asked = |world: &World| world.sent(1, 2, |m| matches!(m, ShardMessage::Compare { .. }));
    assert!(asked(&world) > 0);
    // It has answered, and loses its cache: what it has now was compared with nothing.
    world.restart(2);
    world.install_on(2);
    world.connect(1, 2);
    let doubt = |world: &World| world.nodes[&2].shard.status().doubt_sectors;
    let before = doubt(&world);
    assert!(before > 0);
    world.disk_goes_on(1);
    assert_eq!(doubt(&world), before);
    // One that kept its cache is asked for its doubt again.
    world.ready(1, 2);
    world.wait_ms(1000);
    assert_eq!(doubt(&world), 0);
}

#[test]
fn what_was_forwarded_on_another_history_is_not_carried_out_though_its_node_came_to_this_one() {
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.configuration.options.quorum = Quorum::Off;
    let stretch = Stretch { id: 7, ballot: Ballot::default(), epoch: Epoch(1), at_ms: 0 };
    world.configuration.lineage.push(stretch);
    world.lead(1);
    let write = world.write(3, 8, 8, 5);
    assert_eq!(world.answer(3, write), Some(Ok(())));
    for (history, taken) in [(0, false), (6, false), (7, true)] {
        let message = ShardMessage::Forward {
            id: RequestId(100 + history),
            op: Op::Zero { unmap: false },
            volume: VOLUME,
            span: span(8, 8),
            fua: false,
            origin: None,
            asked: Epoch(0),
            first: false,
            history,
            way: None,
            host: base::HostId(0),
        };
        world.hear(1, 3, message);
        assert_eq!(world.at(1, 8) == 0, taken, "history {history}");
    }
}

#[test]
fn what_is_forwarded_at_once_is_bounded_and_all_of_it_is_answered() {
    // An extent: 32 KiB.
    const COUNT: u32 = 64;
    let mut world = World::new(&[1, 2, 3], &[1, 2]);
    world.configuration.volumes[0].sectors = 160 * u64::from(COUNT);
    world.lead(1);
    world.held.insert((3, 1));
    let writes: Vec<u64> =
        (0..138).map(|at| world.write(3, at * u64::from(COUNT), COUNT, at + 1)).collect();
    let status = world.nodes[&3].shard.status();
    assert_eq!((status.forwarded, status.waiting), (128, 10), "4 MiB are on their way");
    world.held.clear();
    world.run();
    world.wait_ms(5000);
    for write in writes {
        assert_eq!(world.answer(3, write), Some(Ok(())));
    }
}

#[test]
fn a_retired_write_leaves_no_doubt_and_an_unretired_one_does() {
    let mut world = pair();
    world.write(1, 8, 8, 5);
    world.wait_ms(200);
    world.held.insert((2, 1));
    world.write(1, 64, 4, 5);
    world.disconnect(1, 2);
    world.held.clear();
    let next = world.next_with(&[2]);
    world.install(next, &[]);
    world.lead(2);
    assert!(world.has_mark(2, "un-retired writes turn into doubt"));
    assert_eq!(world.dirty(2, 1), [(64, 72)], "the retired one is not dirty for node 1");
}

#[test]
fn what_was_open_on_a_side_that_is_given_up_is_dirty_although_the_other_reign_has_a_lower_number() {
    let mut world = pair();
    world.held.insert((2, 1));
    world.write(1, 64, 4, 5);
    world.disconnect(1, 2);
    let mut other = world.configuration.clone();
    other.epoch = Epoch(1 << 32);
    other.reign = Epoch(0);
    other.fork = 1;
    for member in other.members.iter_mut().filter(|member| member.node == NodeId(2)) {
        member.in_sync = false;
    }
    let slots = world.nodes[&2].slots.clone();
    let (configuration, reigns, leaves) = (Arc::new(other), false, true);
    world.tell(2, ToShard::Install { configuration, slots, reigns, leaves });
    assert!(world.has_mark(2, "un-retired writes turn into doubt"));
}

#[test]
fn a_batch_of_retirements_is_told_at_once_in_a_later_reign_too() {
    let mut world = pair();
    for reign in 1..=3 {
        for number in 0..64 {
            world.write(1, number % 32, 1, reign);
        }
        let told = world.sent(1, 2, |message| matches!(message, ShardMessage::Retire { .. }));
        assert_eq!(told, usize::try_from(reign).expect("few"), "and no time has passed");
        for number in 0..10 {
            world.write(1, number, 1, reign);
        }
        world.lead(1);
    }
}

#[test]
fn extents_turn_cold_and_hot_again_when_the_log_is_full() {
    let mut world = pair();
    for round in 0..5 {
        for extent in 0..15 {
            let write = world.write(1, extent * 64 + round, 1, 10 * round + extent);
            world.wait_ms(100);
            assert_eq!(world.answer(1, write), Some(Ok(())), "extent {extent}");
            for node in [1, 2] {
                let status = world.nodes[&node].shard.status();
                assert!(status.hot <= status.hot_max, "{} hot", status.hot);
            }
        }
    }
    assert!(world.has_mark(1, "extents turn cold"));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn an_extent_with_a_write_that_is_not_retired_stays_hot_though_another_waits_for_its_place() {
    let mut world = pair();
    world.held.insert((2, 1));
    for extent in 0..5 {
        world.write(1, extent * 64, 1, 7);
    }
    world.wait_ms(200);
    assert_eq!((world.at(1, 3 * 64), world.at(1, 4 * 64)), (7, 0), "the log has four places");
    world.held.clear();
    world.wait_ms(500);
    assert_eq!(world.at(1, 4 * 64), 7);
}

fn verify(run: u64, from: u64, to: u64) -> ToShard {
    ToShard::Verify { run, volume: super::world::VOLUME, from, to }
}

#[test]
fn verify_finds_a_flipped_block_and_the_majority_wins() {
    let mut world = World::new(&[1, 2, 3], &[1, 2, 3]);
    world.lead(1);
    world.write(1, 500, 8, 6);
    world.nodes.get_mut(&1).expect("there").data.insert(503, 66);
    world.tell(1, verify(1, 0, u64::MAX));
    world.wait_ms(1000);
    for node in [1, 2, 3] {
        assert_eq!(world.at(node, 503), 6, "node {node}");
    }
    let said = FromShard::Verified { run: 1, compared: super::world::SECTORS, repaired: 32 };
    assert!(world.has_said(1, &said), "{:?}", world.nodes[&1].said);
}

#[test]
fn the_majority_wins_also_if_another_one_cannot_be_read() {
    let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3, 4]);
    world.lead(1);
    world.write(1, 64, 8, 5);
    world.nodes.get_mut(&1).expect("there").data.insert(66, 9);
    world.nodes.get_mut(&2).expect("there").rotten.insert(66);
    world.tell(1, verify(1, 0, u64::MAX));
    world.wait_ms(1000);
    assert_eq!([1, 2, 3, 4].map(|node| world.at(node, 66)), [5; 4]);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_verify_compares_what_it_is_told_to_and_says_which_run_ended() {
    let mut world = pair();
    world.held.insert((2, 1));
    world.tell(1, verify(1, 0, u64::MAX));
    world.tell(1, verify(2, 64, 96));
    world.held.clear();
    world.wait_ms(1000);
    let ends = |world: &World| -> Vec<(u64, u64)> {
        let ends = world.nodes[&1].said.iter().filter_map(|said| match said {
            FromShard::Verified { run, compared, .. } => Some((*run, *compared)),
            _ => None,
        });
        ends.collect()
    };
    // One copy of the first run was under way, and counts in the second.
    assert!(matches!(ends(&world)[..], [(2, compared)] if compared >= 32), "{:?}", ends(&world));
    world.held.insert((2, 1));
    world.tell(1, verify(3, 0, u64::MAX));
    world.tell(1, ToShard::EndVerify);
    world.held.clear();
    world.wait_ms(1000);
    assert_eq!(ends(&world).len(), 1, "what was called off says nothing");
    assert_eq!(world.nodes[&1].shard.status().verify, None);
}

#[test]
fn a_volume_that_grew_is_written_only_where_that_is_known() {
    let mut world = pair();
    let mut next = world.next_with(&[1, 2]);
    next.volumes[0].sectors = 2048;
    world.install(next, &[1]);
    let write = world.write(1, 1500, 8, 4);
    world.install_on(2);
    world.ready(1, 2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert!(!world.nodes[&1].said.iter().any(|said| matches!(said, FromShard::PeerFailed { .. })));
    assert_eq!(world.at(2, 1500), 4);
}

#[test]
fn a_read_goes_to_the_replica_with_the_fewest_reads_in_flight() {
    let mut world = pair();
    world.configuration.options.read_policy = ReadPolicy::LeastPending;
    world.lead(1);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.held.insert((2, 1));
    let reads: vec::Vec<u64> = (0..6).map(|at| world.read(1, at * 64, 8)).collect();
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Read { .. })), 3);
    world.held.clear();
    world.run();
    let more = world.read(1, 640, 8);
    assert_eq!(world.answer(1, more), Some(Ok(())), "node 2 has none in flight");
    world.disk_goes_on(1);
    for read in reads {
        assert_eq!(world.answer(1, read), Some(Ok(())));
    }
}

#[test]
fn a_read_goes_to_the_replica_that_answered_fastest_of_late() {
    let mut world = pair();
    world.configuration.options.read_policy = ReadPolicy::LatencyAware;
    world.lead(1);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let slow = world.read(1, 0, 8);
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Read { .. })), 0);
    world.wait_ms(20);
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, slow), Some(Ok(())));
    world.read(1, 0, 8);
    assert_eq!(world.sent(1, 2, |m| matches!(m, ShardMessage::Read { .. })), 1);
}

#[test]
fn requests_that_wait_until_a_resync_is_done_do_not_slow_it() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    let unhindered = world.nodes[&1].shard.pace.pressure(world.now);
    world.tell(1, ToShard::Suspend(true));
    let write = world.write(1, 0, 4, 7);
    assert_eq!(world.answer(1, write), None);
    assert_eq!(world.nodes[&1].shard.pace.pressure(world.now), unhindered);
    world.tell(1, ToShard::Suspend(false));
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_ne!(world.nodes[&1].shard.pace.pressure(world.now), unhindered);
}

#[test]
fn what_waits_for_a_client_that_is_gone_is_not_carried_out() {
    let mut world = World::new(&[1, 2, 3], &[2, 3]);
    world.lead(2);
    world.disconnect(1, 2);
    let waits = world.write(1, 0, 4, 7);
    world.withdraw(1, waits);
    assert_eq!(world.answer(1, waits), Some(Err(AnswerError::Gone)));
    world.connect(1, 2);
    world.ready(2, 1);
    // On its way to the primary when the client goes, and still when the two nodes lose each other.
    world.held.insert((1, 2));
    let forwarded = world.write(1, 8, 4, 7);
    world.withdraw(1, forwarded);
    assert_eq!(world.answer(1, forwarded), None);
    world.disconnect(1, 2);
    assert_eq!(world.answer(1, forwarded), Some(Err(AnswerError::Gone)));
    world.held.clear();
    world.connect(1, 2);
    world.ready(2, 1);
    world.wait_ms(500);
    assert_eq!((world.at(2, 0), world.at(2, 8), world.buffers_held()), (0, 0, 0));
}

#[test]
fn what_was_begun_for_a_client_that_is_gone_goes_on_and_is_begun_once() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.held.insert((1, 2));
    let write = world.write(1, 0, 4, 7);
    world.withdraw(1, write);
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, write), world.at(2, 0)), (Some(Ok(())), 7));
    world.disconnect(1, 2);
    let given_back = world.write(1, 8, 4, 7);
    world.withdraw(1, given_back);
    world.connect(1, 2);
    world.lead(2);
    assert_eq!(world.answer(1, given_back), Some(Err(AnswerError::Gone)));
    world.withdraw(1, 4711);
    assert!(world.nodes[&1].shard.withdrawn.is_empty());
}

#[test]
fn a_client_that_goes_while_its_answer_is_on_the_way_leaves_nothing_behind() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.goes_on_alone(1, 2);
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.held.insert((2, 1));
    let write = world.write(1, 0, 4, 7);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert!(!world.nodes[&1].shard.ops.is_empty(), "another copy is to say that it has it");
    world.withdraw(1, write);
    assert!(world.nodes[&1].shard.withdrawn.is_empty());
}

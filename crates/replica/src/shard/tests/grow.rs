//! Volumes that grow, and shrink.

use super::world::{SECTORS, VOLUME, World};
use crate::door::{DiskRequest, FromShard};
use base::{AnswerError, Epoch, NodeId, Op};
use wire::{Configuration, ShardMessage};

/// Neither whole blocks nor whole extents more.
const GROWN: u64 = SECTORS + 301;

/// Every disk holds something else beyond the volume's end.
fn stale(nodes: &[u16]) -> World {
    let mut world = World::new(nodes, nodes);
    for &node in nodes {
        let at = world.nodes.get_mut(&node).expect("a node");
        at.data.extend((SECTORS..GROWN + 100).map(|sector| (sector, 1000 + u64::from(node))));
    }
    world.lead(1);
    world
}

/// The configuration after this one, with these sizes.
fn sized(world: &World, sectors: u64, grows_to: Option<u64>) -> Configuration {
    let mut next = world.configuration.clone();
    next.epoch = Epoch(next.epoch.0 + 1);
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
    world.wait_ms(200);
}

fn grow(world: &mut World, primary: u16) -> FromShard {
    let next = sized(world, SECTORS, Some(GROWN));
    let since = next.epoch;
    commit(world, primary, next);
    FromShard::Grown { volume: VOLUME, since }
}

fn assert_zero(world: &World, nodes: &[u16]) {
    for &node in nodes {
        for sector in SECTORS..GROWN {
            assert_eq!(world.at(node, sector), 0, "node {node}, sector {sector}");
        }
        assert_eq!(world.at(node, GROWN), 1000 + u64::from(node), "and no more than that");
    }
}

#[test]
fn what_is_added_is_zero_and_flushed_on_every_replica_before_it_counts() {
    let mut world = stale(&[1, 2]);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let grown = grow(&mut world, 1);
    world.wait_ms(1000);
    assert!(!world.has_said(1, &grown), "the disk of node 2 did nothing yet");
    assert_eq!(world.nodes[&1].shard.status().growths, [(VOLUME, 0)]);
    let early = world.read(1, SECTORS, 1);
    assert_eq!(world.answer(1, early), Some(Err(AnswerError::OutOfRange)));
    world.disk_goes_on(2);
    world.wait_ms(1000);
    assert!(world.has_said(1, &grown));
    assert_eq!(world.nodes[&1].shard.status().growths, [(VOLUME, GROWN - SECTORS)]);
    assert_zero(&world, &[1, 2]);
    for node in [1, 2] {
        assert!(world.nodes[&node].unflushed.iter().all(|&sector| sector < SECTORS));
    }
    let next = sized(&world, GROWN, None);
    commit(&mut world, 1, next);
    let read = world.read(1, SECTORS, 4);
    assert_eq!(world.got(1, read), [0; 4]);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_replica_that_is_away_while_a_volume_grows_gets_the_zeroes_when_it_is_back() {
    let mut world = stale(&[1, 2]);
    world.goes_on_alone(1, 2);
    let grown = grow(&mut world, 1);
    assert!(world.has_said(1, &grown));
    let next = sized(&world, GROWN, None);
    commit(&mut world, 1, next);
    world.comes_back(1, 2);
    world.resync(1, 2);
    assert_zero(&world, &[1, 2]);
}

#[test]
fn a_replica_that_comes_back_while_a_volume_grows_has_the_zeroes_when_it_is_included() {
    let mut world = stale(&[1, 2, 3]);
    world.disconnect(1, 2);
    world.change(1, &[1, 3]);
    world.nodes.get_mut(&3).expect("there").disk_held = true;
    let grown = grow(&mut world, 1);
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(300);
    assert!(!world.has_said(1, &grown));
    world.disk_goes_on(3);
    world.resync(1, 2);
    assert!(world.has_said(1, &grown));
    assert_zero(&world, &[1, 2, 3]);
}

#[test]
fn a_new_reign_makes_what_is_added_zero_anew() {
    let mut world = stale(&[1, 2]);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let grown = grow(&mut world, 1);
    assert!(!world.has_said(1, &grown));
    world.disk_goes_on(2);
    // What the last primary did there is not known.
    for node in [1, 2] {
        let data = &mut world.nodes.get_mut(&node).expect("there").data;
        data.extend((SECTORS..GROWN).map(|sector| (sector, 1000 + u64::from(node))));
    }
    world.lead(2);
    world.wait_ms(1000);
    let since = world.configuration.epoch;
    assert!(world.has_said(2, &FromShard::Grown { volume: VOLUME, since }));
    assert_zero(&world, &[1, 2]);
}

#[test]
fn a_disk_that_fails_and_is_the_only_one_lets_no_volume_grow() {
    let mut world = stale(&[1]);
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let grown = grow(&mut world, 1);
    world.wait_ms(2000);
    assert!(world.has_said(1, &FromShard::DiskFailed));
    assert!(!world.has_said(1, &grown));
}

#[test]
fn a_growth_that_is_taken_back_and_asked_for_again_begins_anew() {
    let mut world = stale(&[1, 2]);
    world.nodes.get_mut(&2).expect("there").disk_held = true;
    let first = grow(&mut world, 1);
    let next = sized(&world, SECTORS, None);
    commit(&mut world, 1, next);
    let second = grow(&mut world, 1);
    world.disk_goes_on(2);
    world.wait_ms(1000);
    assert!(!world.has_said(1, &first));
    assert!(world.has_said(1, &second));
    assert_zero(&world, &[1, 2]);
}

#[test]
fn a_write_that_is_open_when_a_volume_shrinks_ends_though_nobody_keeps_it() {
    let mut world = stale(&[1, 2]);
    world.held.insert((1, 2));
    let write = world.write(1, SECTORS - 4, 2, 7);
    world.held.clear();
    world.disconnect(1, 2);
    let next = sized(&world, SECTORS - 8, None);
    commit(&mut world, 1, next);
    world.comes_back(1, 2);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    let session = world.session(1, 2);
    assert!(!world.has_said(1, &FromShard::PeerFailed { peer: NodeId(2), session }));
}

#[test]
fn a_write_that_waited_while_a_volume_shrank_is_no_failure_of_who_lags_by_another_change() {
    let mut world = stale(&[1, 2, 3]);
    world.held.insert((3, 1));
    world.write(1, SECTORS - 4, 2, 7);
    let waits = world.write(1, SECTORS - 4, 2, 8);
    let next = sized(&world, SECTORS - 8, None);
    commit(&mut world, 1, next);
    assert_eq!(world.answer(1, waits), None);
    let next = world.next_with(&[1, 2]);
    world.install(next, &[1]);
    world.wait_ms(100);
    assert_eq!(world.answer(1, waits), Some(Ok(())), "nobody can read it any more");
    let session = world.session(1, 2);
    assert!(!world.has_said(1, &FromShard::PeerFailed { peer: NodeId(2), session }));
}

#[test]
fn a_replica_that_learns_first_that_a_volume_shrank_is_not_taken_for_failed() {
    let mut world = stale(&[1, 2]);
    world.held.insert((1, 2));
    let write = world.write(1, SECTORS - 4, 2, 7);
    let next = sized(&world, SECTORS - 8, None);
    world.configuration = next;
    world.install_on(2);
    world.held.clear();
    world.run();
    world.wait_ms(100);
    assert_eq!(world.answer(1, write), Some(Ok(())), "nobody can read it any more");
    let session = world.session(1, 2);
    let failed = FromShard::PeerFailed { peer: NodeId(2), session };
    assert!(!world.has_said(1, &failed));
    assert_eq!(world.sent(2, 1, |message| matches!(message, ShardMessage::Stale { .. })), 0);
}

/// Node 2 knows that the volume is six sectors shorter, and node 1, which is primary, does not.
fn shorter_on_node_2() -> World {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, SECTORS - 8, 8, 5);
    let next = sized(&world, SECTORS - 6, None);
    world.install(next, &[2]);
    world
}

#[test]
fn of_a_write_across_the_new_end_of_a_volume_every_replica_keeps_what_is_inside() {
    let mut world = shorter_on_node_2();
    let write = world.write(1, SECTORS - 8, 8, 7);
    world.install_on(1);
    world.ready(1, 2);
    world.wait_ms(200);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    for node in [1, 2] {
        for sector in SECTORS - 8..SECTORS - 6 {
            assert_eq!(world.at(node, sector), 7, "node {node}, sector {sector}");
        }
    }
}

#[test]
fn a_replica_that_began_anew_since_a_volume_shrank_keeps_what_is_inside_of_a_write_across_its_end()
{
    for zero in [false, true] {
        let mut world = stale(&[1, 2]);
        world.held.insert((1, 2));
        let at = super::world::span(SECTORS - 8, 8);
        let op = if zero { Op::Zero { unmap: false } } else { Op::Write };
        let write = world.ask(1, op, at, 7, false);
        world.held.clear();
        world.disconnect(1, 2);
        let next = sized(&world, SECTORS - 6, None);
        commit(&mut world, 1, next);
        world
            .nodes
            .get_mut(&2)
            .expect("there")
            .data
            .extend((SECTORS - 8..SECTORS).map(|at| (at, 5)));
        world.restart(2);
        world.comes_back(1, 2);
        world.wait_ms(200);
        assert_eq!(world.answer(1, write), Some(Ok(())), "zero: {zero}");
        let session = world.session(1, 2);
        assert!(!world.has_said(1, &FromShard::PeerFailed { peer: NodeId(2), session }));
        let value = if zero { 0 } else { 7 };
        let kept = [8, 7, 6, 5].map(|back| world.at(2, SECTORS - back));
        assert_eq!(
            kept,
            [value, value, 5, 5],
            "where there may be no room any more nothing is written"
        );
    }
}

#[test]
fn what_is_read_across_the_new_end_of_a_volume_is_true_inside() {
    let mut world = shorter_on_node_2();
    // Its own disk cannot be read: node 2 is asked.
    world.nodes.get_mut(&1).expect("there").disk_fails = true;
    let read = world.read(1, SECTORS - 8, 8);
    world.wait_ms(200);
    assert_eq!(world.got(1, read)[..2], [5, 5]);
}

#[test]
fn a_write_across_the_new_end_that_the_last_primary_left_half_done_is_the_same_everywhere_inside() {
    for without in [2, 3] {
        let mut world = World::new(&[1, 2, 3, 4], &[1, 2, 3]);
        world.lead(1);
        world.held.extend([(1, without), (1, 4)]);
        let lost = world.write(4, SECTORS - 8, 8, 7);
        for other in [2, 3, 4] {
            world.disconnect(1, other);
        }
        world.configuration = world.next_with(&[2, 3]);
        let next = sized(&world, SECTORS - 6, None);
        world.configuration = next;
        world.lead(2);
        world.held.clear();
        world.wait_ms(500);
        assert_eq!(world.answer(4, lost), Some(Err(AnswerError::OutOfRange)));
        let [two, three] = [2, 3].map(|node| [8, 7].map(|back| world.at(node, SECTORS - back)));
        assert_eq!(two, three);
        let read = world.read(3, SECTORS - 8, 2);
        world.wait_ms(200);
        assert_eq!(world.got(3, read), two);
    }
}

#[test]
fn what_was_read_before_a_volume_shrank_is_not_copied_beyond_its_end() {
    let mut world = stale(&[1, 2]);
    world.goes_on_alone(1, 2);
    world.write(1, SECTORS - 28, 28, 7);
    world.comes_back(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    world.start_resync(1, 2);
    assert_eq!(world.nodes[&1].flying.len(), 1, "the last piece is being read");
    let next = sized(&world, SECTORS - 8, None);
    commit(&mut world, 1, next);
    world.disk_answers(1, 0);
    world.run();
    world.disk_goes_on(1);
    world.wait_ms(1000);
    assert_eq!((world.at(2, SECTORS - 9), world.at(2, SECTORS - 8)), (7, 0));
    assert_eq!(world.buffers_held(), 0);
}

/// Node 2 starts anew, and what was hot is in doubt there: it is asked for that, and its answer stays on the way.
fn starts_anew(world: &mut World) {
    world.restart(2);
    world.held.insert((2, 1));
    world.comes_back(1, 2);
    assert!(world.nodes[&2].shard.status().doubt_sectors > 0, "what was hot");
}

#[test]
fn who_has_not_heard_of_a_size_is_told_all_the_same_what_is_in_doubt_no_more() {
    let mut world = World::new(&[1, 2], &[2]);
    world.lead(1);
    world.write(1, 0, 1, 7);
    world.wait_ms(200);
    starts_anew(&mut world);
    let next = sized(&world, GROWN, None);
    world.install(next, &[1]);
    world.held.clear();
    world.wait_ms(1000);
    world.install_on(2);
    world.ready(1, 2);
    world.wait_ms(1000);
    assert_eq!(world.nodes[&1].shard.status().reconcile_sectors, 0);
    assert_eq!(world.nodes[&2].shard.status().doubt_sectors, 0);
}

#[test]
fn a_growth_that_the_only_disk_fails_stands_in_the_way_of_no_resync() {
    let mut world = stale(&[1, 2]);
    world.goes_on_alone(1, 2);
    world.nodes.get_mut(&1).expect("there").disk_full = true;
    let grown = grow(&mut world, 1);
    assert!(!world.has_said(1, &grown));
    world.comes_back(1, 2);
    world.start_resync(1, 2);
    world.wait_ms(2000);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    assert!(world.has_said(1, &FromShard::Synced { peer, session }));
}

#[test]
fn a_growth_whose_flush_the_only_copy_fails_begins_anew() {
    for (nodes, copy) in [(&[1][..], 1), (&[1, 2][..], 2)] {
        let mut world = World::new(nodes, &[copy]);
        world.lead(1);
        world.nodes.get_mut(&copy).expect("there").flushes_fail = true;
        // Little, so that nothing has to leave the log for it.
        let next = sized(&world, SECTORS, Some(SECTORS + 64));
        let grown = FromShard::Grown { volume: VOLUME, since: next.epoch };
        commit(&mut world, 1, next);
        assert!(!world.has_said(1, &grown), "copy of {copy}");
        world.nodes.get_mut(&copy).expect("there").flushes_fail = false;
        world.wait_ms(2000);
        assert!(world.has_said(1, &grown), "copy of {copy}");
    }
}

/// The first piece is in the cache of the only copy, and a flush of a client fails, that may have lost it. Only then is the rest written.
#[test]
fn a_growth_of_which_the_only_copy_may_have_lost_a_piece_begins_anew() {
    for (nodes, copy) in [(&[1][..], 1), (&[1, 2][..], 2)] {
        let mut world = World::new(nodes, &[copy]);
        world.lead(1);
        world.nodes.get_mut(&copy).expect("there").disk_held = true;
        let end = SECTORS + 4 + 2 * 64;
        let next = sized(&world, SECTORS, Some(end));
        let grown = FromShard::Grown { volume: VOLUME, since: next.epoch };
        commit(&mut world, 1, next);
        world.disk_writes(copy, SECTORS);
        let flush = world.flush(1);
        let at = world.nodes.get_mut(&copy).expect("there");
        at.flushes_fail = true;
        let asked = at.flying.iter().position(|(_, request)| *request == DiskRequest::Flush);
        world.disk_answers(copy, asked.expect("asked of the disk"));
        world.run();
        assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)), "copy of {copy}");
        let at = world.nodes.get_mut(&copy).expect("there");
        at.flushes_fail = false;
        at.data.extend((SECTORS..end).map(|sector| (sector, 1000)));
        world.disk_goes_on(copy);
        world.wait_ms(2000);
        assert!(world.has_said(1, &grown), "copy of {copy}");
        for sector in SECTORS..end {
            assert_eq!(world.at(copy, sector), 0, "copy of {copy}, sector {sector}");
        }
    }
}

#[test]
fn what_is_in_doubt_beyond_a_size_that_was_not_heard_of_is_settled_by_the_growth() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    for extent in 12..16 {
        world.write(1, 64 * extent, 1, 7);
    }
    world.wait_ms(200);
    starts_anew(&mut world);
    world.held = [(1, 2)].into();
    world.run();
    assert_eq!(world.nodes[&1].shard.status().reconcile_sectors, 4 * 64 - 4);
    let shrunk = sized(&world, SECTORS / 2, None);
    world.install(shrunk, &[1]);
    world.held.clear();
    let grows = sized(&world, SECTORS / 2, Some(SECTORS));
    world.install(grows, &[1]);
    world.install_on(2);
    world.ready(1, 2);
    world.wait_ms(2000);
    assert_eq!(world.nodes[&2].shard.status().doubt_sectors, 0);
}

//! A client that has several ways: what is left of a write on one of them when it has gone another.

use super::world::{VOLUME, World, span};
use crate::door::ToShard;
use crate::shard::multipath::RECENT_MAX;
use alloc::sync::Arc;
use base::{AnswerError, Duration, Epoch, NodeId, Op, RequestId};
use wire::{Moment, Quorum, ShardMessage};

const LATE: Option<Result<(), AnswerError>> = Some(Err(AnswerError::Path));

/// Nodes 1 and 2 with clients, and nodes 3 and 4 with data, of which node 3 is primary.
fn world() -> World {
    let mut world = World::new(&[1, 2, 3, 4], &[3, 4]);
    world.lead(3);
    world
}

/// A write that node 1 took, and that waits on its way to the primary.
fn stuck(world: &mut World) -> u64 {
    world.held.insert((1, 3));
    world.write_by(1, 1, 8, 5)
}

#[test]
fn what_was_long_on_its_way_does_not_come_after_what_came_another_way() {
    let mut world = world();
    let old = stuck(&mut world);
    for value in [5, 6] {
        let write = world.write_by(1, 2, 8, value);
        assert_eq!(world.answer(2, write), Some(Ok(())));
    }
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, old), LATE);
    assert_eq!((world.at(3, 8), world.at(4, 8)), (6, 6));
    let anew = world.write_by(1, 1, 8, 7);
    assert_eq!((world.answer(1, anew), world.at(3, 8)), (Some(Ok(())), 7));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn the_primary_itself_is_another_way() {
    let mut world = world();
    let old = stuck(&mut world);
    let newer = world.write_by(1, 3, 8, 6);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, old), world.at(3, 8)), (LATE, 6));
}

#[test]
fn another_connection_to_the_same_node_is_another_way() {
    let mut world = world();
    let newer = world.write_by(1, 1, 8, 6);
    assert_eq!(world.answer(1, newer), Some(Ok(())));
    let moment = Moment { reign: world.configuration.reign, number: 0 };
    for (way, taken) in [(2, false), (1, true)] {
        let message = ShardMessage::Forward {
            id: RequestId(100 + u64::from(way)),
            op: Op::Zero { unmap: false },
            volume: VOLUME,
            span: span(8, 4),
            fua: false,
            origin: None,
            asked: Epoch(0),
            first: false,
            history: 0,
            way: Some((way, moment)),
            host: base::HostId(0),
        };
        world.hear(3, 1, message);
        assert_eq!(world.at(3, 8) == 0, taken, "way {way}");
    }
}

#[test]
fn what_lies_elsewhere_or_has_one_way_only_is_carried_out() {
    let mut world = world();
    world.held.insert((1, 3));
    let (beside, plain) = (world.write_by(1, 1, 8, 5), world.write(1, 16, 4, 5));
    for first in [12, 16] {
        world.write_by(1, 2, first, 6);
    }
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, beside), Some(Ok(())));
    assert_eq!(world.answer(1, plain), Some(Ok(())));
}

#[test]
fn what_waited_for_another_primary_is_not_carried_out() {
    let mut world = world();
    world.disconnect(1, 3);
    let old = world.write_by(1, 1, 8, 5);
    assert_eq!(world.answer(1, old), None);
    world.lead(4);
    assert_eq!(world.answer(1, old), LATE);
    assert_eq!(world.at(4, 8), 0);
    let anew = world.write_by(1, 1, 8, 5);
    assert_eq!((world.answer(1, anew), world.at(4, 8)), (Some(Ok(())), 5));
}

#[test]
fn a_primary_that_became_another_node_does_not_carry_out_what_it_had() {
    let mut world = world();
    world.disconnect(3, 4);
    let old = world.write_by(1, 3, 8, 5);
    assert_eq!(world.answer(3, old), None);
    world.connect(3, 4);
    world.lead(4);
    assert_eq!(world.answer(3, old), LATE);
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn who_heard_of_none_of_what_is_remembered_asks_anew() {
    let mut world = world();
    let old = stuck(&mut world);
    for _ in 0..=RECENT_MAX {
        world.write_by(1, 2, 64, 6);
    }
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, old), LATE);
    let anew = world.write_by(1, 1, 8, 5);
    assert_eq!(world.answer(1, anew), Some(Ok(())));
}

/// What waits for a primary is handed to the next one: by then its client may have gone another way, unless it surely stays.
#[test]
fn what_waits_for_a_primary_is_carried_out_by_the_next_while_its_client_stays() {
    for waits_ms in [300, 1300] {
        let mut world = world();
        world.disconnect(1, 3);
        let moved = world.write_by(1, 1, 8, 5);
        let staying = world.write_staying(2, 1, 16, 6);
        world.wait_ms(waits_ms);
        assert_eq!((world.answer(1, moved), world.answer(1, staying)), (None, None));
        world.lead(4);
        world.wait_ms(100);
        let expected = if waits_ms < 1000 { Some(Ok(())) } else { LATE };
        assert_eq!((world.answer(1, moved), world.answer(1, staying)), (LATE, expected));
        let value = if waits_ms < 1000 { 6 } else { 0 };
        assert_eq!((world.at(4, 8), world.at(4, 16)), (0, value));
        assert_eq!(world.buffers_held(), 0);
    }
}

#[test]
fn what_a_client_asked_that_stays_is_overtaken_all_the_same_once_it_is_on_its_way() {
    let mut world = world();
    world.held.insert((1, 3));
    let old = world.write_staying(1, 1, 8, 5);
    let newer = world.write_by(1, 2, 8, 6);
    assert_eq!(world.answer(2, newer), Some(Ok(())));
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, old), world.at(3, 8)), (LATE, 6));
}

#[test]
fn what_the_primary_of_another_side_had_told_is_forgotten_with_that_side() {
    let mut world = world();
    let taken = world.write_by(1, 1, 8, 5);
    assert_eq!(world.answer(1, taken), Some(Ok(())));
    let mut other = world.configuration.clone();
    (other.epoch, other.reign, other.fork) = (Epoch(1 << 32), Epoch(1), 1);
    let (slots, reigns, leaves) = (world.nodes[&1].slots.clone(), false, true);
    let configuration = Arc::new(other);
    world.tell(1, ToShard::Install { configuration, slots, reigns, leaves });
    let shard = &mut world.nodes.get_mut(&1).expect("there").shard;
    let told = Moment { reign: Epoch(1), number: 5 };
    shard.learn_moment(NodeId(3), Some(told));
    assert_eq!(shard.moment(), told);
}

/// Each side has a primary, and counts for itself. What the other one said before this node left it arrives when it has.
#[test]
fn what_the_primary_of_another_side_tells_late_says_nothing_of_this_one() {
    for reign in [0, 1] {
        let mut world = world();
        world.held.insert((1, 3));
        let (moment, id) = (world.nodes[&1].shard.moment(), RequestId(1000));
        let told = Moment { reign: Epoch(moment.reign.0 + reign), number: moment.number + 5 };
        let (result, zero, asked) = (Some(Ok(())), false, Epoch(0));
        let moment = Some(told);
        world.hear(1, 4, ShardMessage::Forwarded { id, result, zero, asked, moment });
        let old = world.write_by(1, 1, 8, 5);
        for value in [5, 6, 7, 8, 9] {
            let newer = world.write_by(1, 2, 8, value);
            assert_eq!(world.answer(2, newer), Some(Ok(())));
        }
        world.held.clear();
        world.run();
        assert_eq!((world.answer(1, old), world.at(3, 8)), (LATE, 9));
        let anew = world.write_by(1, 1, 8, 10);
        assert_eq!((world.answer(1, anew), world.at(3, 8)), (Some(Ok(())), 10));
    }
}

/// It may have been asked for anew, and answered, on a side that is given up: whoever is told so waits for nothing.
#[test]
fn what_was_taken_before_a_fork_is_asked_for_anew() {
    let mut world = world();
    let first = world.write_by(1, 1, 8, 5);
    assert_eq!(world.answer(1, first), Some(Ok(())));
    let old = stuck(&mut world);
    let mut next = world.next_with(&[3, 4]);
    next.fork += 1;
    world.install(next, &[1, 2, 3, 4]);
    for other in [1, 2, 4] {
        world.ready(3, other);
    }
    world.wait_ms(1);
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, old), world.at(3, 8)), (LATE, 5));
    for node in [1, 2, 3] {
        // Node 2 has not heard yet how far the primary is.
        let asked = [(); 2].map(|()| world.write_by(1, node, 8, 5 + u64::from(node)));
        assert_eq!(world.answer(node, asked[1]), Some(Ok(())));
        assert_eq!(world.at(3, 8), 5 + u64::from(node));
    }
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_waits_for_its_turn_at_a_fork_is_asked_for_anew() {
    let mut world = world();
    world.held.insert((4, 3));
    let first = world.write_by(1, 3, 8, 5);
    let (waits, plain) = (world.write_by(2, 3, 8, 6), world.write(3, 12, 8, 7));
    let mut next = world.next_with(&[3, 4]);
    next.fork += 1;
    world.install(next, &[1, 2, 3, 4]);
    for other in [1, 2, 4] {
        world.ready(3, other);
    }
    world.held.clear();
    world.wait_ms(100);
    assert_eq!((world.answer(3, first), world.answer(3, waits)), (Some(Ok(())), LATE));
    assert_eq!((world.answer(3, plain), world.at(3, 8), world.at(3, 12)), (Some(Ok(())), 5, 7));
    assert_eq!(world.buffers_held(), 0);
}

/// Without quorum the primary before goes on with the copies in sync until these act on the new reign: it may have answered by another
/// way what waits here for that.
#[test]
fn what_was_taken_before_a_reign_serves_is_asked_for_anew_without_quorum() {
    for quorum in [Quorum::Off, Quorum::Majority] {
        let mut world = world();
        world.configuration.options.quorum = quorum;
        world.held.insert((4, 3));
        world.begin_reign(3);
        let waits = world.write_by(1, 1, 8, 5);
        assert_eq!(world.answer(1, waits), None);
        world.held.clear();
        world.run();
        let reign = world.configuration.reign;
        world.tell(3, ToShard::Serve { reign });
        let until = world.now + Duration::from_secs(1000);
        world.tell(3, ToShard::Lease { until });
        world.wait_ms(100);
        let (expected, value) = if quorum == Quorum::Off { (LATE, 0) } else { (Some(Ok(())), 5) };
        assert_eq!((world.answer(1, waits), world.at(3, 8)), (expected, value));
        let anew = world.write_by(1, 1, 8, 6);
        assert_eq!((world.answer(1, anew), world.at(3, 8)), (Some(Ok(())), 6));
    }
}

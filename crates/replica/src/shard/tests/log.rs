//! The activity log by itself: each volume's room.

use super::super::activity::{ActivityLog, Extent};
use super::world::{World, geometry};
use crate::door::{FromShard, LogSize, MetaPage, ToShard};
use alloc::vec::Vec;
use base::{AnswerError, NodeId, VolumeId};

const SMALL: VolumeId = VolumeId(0);
const LARGE: VolumeId = VolumeId(1);
const USUAL: VolumeId = VolumeId(2);

fn log() -> ActivityLog {
    let sizes =
        [(SMALL, LogSize { pages: 1, extents: 2 }), (LARGE, LogSize { pages: 5, extents: 20 })];
    ActivityLog::new(&geometry(), 0, 1, 1, 0, &sizes)
}

/// Somebody uses these extents of the volume, and asks for them.
fn ask(log: &mut ActivityLog, volume: VolumeId, extents: core::ops::Range<u64>) {
    for extent in extents {
        log.hold((volume, extent));
        log.touch((volume, extent), 0);
    }
}

/// The disk writes all that is asked of it; the extents that turned hot, and the highest page.
fn write(log: &mut ActivityLog) -> (Vec<Extent>, u32) {
    let (mut turned, mut highest) = (Vec::new(), 0);
    for (volume, place, _) in log.take_writes() {
        let MetaPage::Log { page, .. } = place else { panic!("a page of the log") };
        highest = highest.max(page);
        turned.extend(log.page_written(volume, page));
    }
    turned.sort_unstable();
    (turned, highest)
}

#[test]
fn each_volume_s_log_has_its_own_size_and_a_full_one_keeps_no_other_waiting() {
    let mut log = log();
    ask(&mut log, SMALL, 0..5);
    ask(&mut log, LARGE, 0..20);
    ask(&mut log, USUAL, 0..6);
    let (turned, highest) = write(&mut log);
    let of = |volume| turned.iter().filter(|extent| extent.0 == volume).count();
    assert_eq!((of(SMALL), of(LARGE), of(USUAL)), (2, 20, geometry().log_extents));
    assert_eq!(highest, 4, "the larger log has more pages than the others");
    assert!(log.wants_room());
    // Nobody uses what is hot of the small one any more: it makes room for those that wait there, in their order.
    for extent in 0..2 {
        log.unhold((SMALL, extent));
    }
    let (victims, clock) = log.victims(|_| false);
    assert_eq!(victims, [(SMALL, 0), (SMALL, 1)], "of other volumes everything is in use");
    log.cooled(&victims, clock, 0);
    assert_eq!(write(&mut log).0, [(SMALL, 2), (SMALL, 3)]);
    assert!(!log.is_hot((SMALL, 0)) && log.is_hot((LARGE, 0)));
}

#[test]
fn what_is_hot_of_a_volume_with_room_is_left_alone_while_another_makes_some() {
    let mut log = log();
    ask(&mut log, LARGE, 0..3);
    ask(&mut log, SMALL, 0..3);
    write(&mut log);
    for extent in 0..3 {
        log.unhold((LARGE, extent));
    }
    log.unhold((SMALL, 1));
    assert_eq!(log.victims(|_| false).0, [(SMALL, 1)]);
}

#[test]
fn room_is_made_before_anybody_waits_for_it_and_not_while_there_is_enough() {
    let sizes = [(LARGE, LogSize { pages: 8, extents: 32 })];
    let mut log = ActivityLog::new(&geometry(), 0, 1, 1, 0, &sizes);
    ask(&mut log, LARGE, 0..30);
    assert!(!log.wants_spare_room(), "two places are left");
    ask(&mut log, LARGE, 30..31);
    write(&mut log);
    assert!(log.wants_spare_room() && !log.wants_room());
    assert_eq!(log.victims(|_| false).0, [], "all are in use");
    assert!(!log.wants_spare_room(), "it is asked again when the next one comes");
    for extent in 0..10 {
        log.unhold((LARGE, extent));
    }
    ask(&mut log, LARGE, 31..32);
    assert!(log.wants_spare_room() && !log.wants_room());
    let (victims, clock) = log.victims(|_| false);
    assert_eq!(victims, [0, 1, 2, 3, 4, 5, 6, 7].map(|extent| (LARGE, extent)));
    log.cooled(&victims, clock, 0);
    ask(&mut log, LARGE, 32..38);
    assert!(!log.wants_spare_room() && !log.wants_room());
}

#[test]
fn any_shard_can_take_over_a_whole_log_whatever_its_size() {
    for extents in [64, 155, 156, 1237, 16_384] {
        let size = LogSize::of(extents);
        let own = size.pages / u32::from(wire::SHARDS_MAX);
        assert!(own * 155 >= extents && (own - 1) * 155 < extents, "{extents}: {own} pages");
    }
    assert_eq!(LogSize::of(1237).pages, crate::Geometry::default().log_pages);
}

#[test]
fn a_node_that_stops_in_good_order_has_nothing_in_doubt_at_its_next_start() {
    for (cools, doubt) in [(true, 0), (false, 64)] {
        let mut world = World::new(&[1, 2], &[1, 2]);
        world.lead(1);
        world.write(1, 40, 8, 3);
        world.wait_ms(200);
        if cools {
            world.tell(2, ToShard::Cool);
            world.run();
            assert_eq!(world.nodes[&2].shard.status().hot, 0);
        }
        world.restart(2);
        assert_eq!(world.nodes[&2].shard.status().doubt_sectors, doubt, "{cools}");
    }
}

#[test]
fn nothing_leaves_the_log_of_a_copy_whose_disk_failed_while_others_can_tell_what_it_lost() {
    for others in [true, false] {
        let mut world = World::new(&[1, 2], if others { &[1, 2] } else { &[1] });
        world.lead(1);
        world.write(1, 40, 8, 3);
        world.nodes.get_mut(&1).expect("there").disk_fails = true;
        world.flush(1);
        world.nodes.get_mut(&1).expect("there").disk_fails = false;
        world.tell(1, ToShard::Cool);
        world.run();
        assert_eq!(world.nodes[&1].shard.status().hot > 0, others);
    }
}

#[test]
fn nor_is_what_this_shard_wrote_safe_by_a_flush_if_the_disk_failed_one_of_another() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.write(1, 40, 8, 3);
    world.tell(2, ToShard::DiskFails);
    world.tell(2, ToShard::Cool);
    let flush = world.flush(1);
    world.wait_ms(4000);
    assert!(world.nodes[&2].shard.status().hot > 0);
    assert_eq!(world.answer(1, flush), None, "node 2 still counts");
    world.change(1, &[1]);
    assert_eq!(world.answer(1, flush), Some(Ok(())));
}

/// More than its log has room for.
fn writes_beyond_its_log(world: &mut World) -> u64 {
    let extents = geometry().log_extents as u64 + 1;
    (0..extents).map(|extent| world.write(1, 64 * extent, 1, 7)).last().expect("some")
}

#[test]
fn what_waits_for_a_flush_of_the_log_that_the_only_copy_fails_goes_on_when_one_works() {
    for (nodes, copy) in [(&[1][..], 1), (&[1, 2][..], 2)] {
        let mut world = World::new(nodes, &[copy]);
        world.lead(1);
        world.nodes.get_mut(&copy).expect("there").flushes_fail = true;
        let write = writes_beyond_its_log(&mut world);
        world.wait_ms(1000);
        assert_eq!(world.answer(1, write), None, "copy of {copy}");
        world.nodes.get_mut(&copy).expect("there").flushes_fail = false;
        world.wait_ms(1000);
        assert_eq!(world.answer(1, write), Some(Ok(())), "copy of {copy}");
        assert!(world.has_said(copy, &FromShard::Unsure));
        for told in [Err(AnswerError::Io), Ok(())] {
            let flush = world.flush(1);
            world.wait_ms(1000);
            assert_eq!(world.answer(1, flush), Some(told), "copy of {copy}");
        }
    }
}

/// Another flush failed beside it, so that it covers nothing.
#[test]
fn a_flush_of_the_log_beside_one_that_the_only_copy_failed_is_tried_again() {
    let mut world = World::new(&[1], &[1]);
    world.lead(1);
    for extent in 0..4 {
        world.write(1, 64 * extent, 1, 7);
    }
    world.wait_ms(200);
    world.nodes.get_mut(&1).expect("there").disk_held = true;
    let flush = world.flush(1);
    world.tell(1, ToShard::Cool);
    world.nodes.get_mut(&1).expect("there").flushes_fail = true;
    world.disk_answers(1, 0);
    world.nodes.get_mut(&1).expect("there").flushes_fail = false;
    world.disk_goes_on(1);
    assert_eq!(world.answer(1, flush), Some(Err(AnswerError::Io)));
    world.wait_ms(1000);
    assert_eq!(world.nodes[&1].shard.status().hot, 0);
}

#[test]
fn a_copy_whose_log_needs_a_flush_that_fails_says_so_to_its_primary_while_there_are_others() {
    let mut world = World::new(&[1, 2], &[1, 2]);
    world.lead(1);
    world.nodes.get_mut(&2).expect("there").flushes_fail = true;
    writes_beyond_its_log(&mut world);
    world.wait_ms(1000);
    let (peer, session) = (NodeId(2), world.session(1, 2));
    assert!(world.has_said(1, &FromShard::PeerFailed { peer, session }));
}

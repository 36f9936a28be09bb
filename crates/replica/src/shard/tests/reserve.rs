//! Hosts that a reservation keeps from a volume, by whichever node they ask.

use super::world::{VOLUME, World};
use crate::door::{FromShard, ToShard};
use alloc::vec;
use base::{AnswerError, Duration, Epoch, HostId};
use wire::{Registrant, Reservation, ReservationKind, VolumeReservations};

const A: u128 = 0xa;
const B: u128 = 0xb;
const LATE: Option<Result<(), AnswerError>> = Some(Err(AnswerError::Path));
const KEPT: Option<Result<(), AnswerError>> = Some(Err(AnswerError::Reserved));

/// Nodes 1 and 2 with clients, and nodes 3 and 4 with data, of which node 3 is primary.
fn world() -> World {
    let mut world = World::new(&[1, 2, 3, 4], &[3, 4]);
    world.lead(3);
    world
}

/// The primary's next configuration, in which these hosts are registered and the first may write. `knows`: other nodes
/// that hear of it.
fn reserve(world: &mut World, hosts: &[u128], knows: &[u16]) -> Epoch {
    let mut next = world.configuration.clone();
    next.epoch = Epoch(next.epoch.0 + 1);
    let began = next.reservations.first().map_or(next.epoch, |entry| entry.began);
    let kind = ReservationKind::WriteExclusive;
    next.reservations = vec![VolumeReservations {
        volume: VOLUME,
        began,
        generation: 1,
        persists: false,
        held: hosts.first().map(|&host| Reservation { kind, holder: HostId(host) }),
        taken: None,
        registrants: hosts.iter().map(|&host| Registrant { host: HostId(host), key: 1 }).collect(),
    }];
    let epoch = next.epoch;
    world.install(next, &[3]);
    for &node in knows {
        world.install_on(node);
        world.ready(3, node);
    }
    epoch
}

#[test]
fn a_host_without_the_right_is_told_so_by_every_node_and_changes_nothing() {
    let mut world = world();
    reserve(&mut world, &[A], &[1, 2, 4]);
    for node in [1, 3] {
        for host in [B, 0] {
            let kept = world.write_as(host, node, 8, 5);
            assert_eq!(world.answer(node, kept), KEPT, "host {host} by node {node}");
            let read = world.read_as(host, node, 8);
            assert_eq!(world.answer(node, read), Some(Ok(())));
        }
    }
    assert_eq!((world.at(3, 8), world.at(4, 8)), (0, 0));
    for (node, value) in [(1, 6), (2, 7), (3, 8)] {
        let write = world.write_as(A, node, 8, value);
        assert_eq!((world.answer(node, write), world.at(4, 8)), (Some(Ok(())), value));
    }
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_a_node_holds_that_never_heard_of_a_preempt_is_judged_by_the_primary() {
    let mut world = world();
    reserve(&mut world, &[B], &[1, 2, 4]);
    world.held.insert((1, 3));
    let late = world.write_as(B, 1, 8, 5);
    reserve(&mut world, &[A], &[]);
    let newer = world.write_as(A, 3, 8, 6);
    assert_eq!(world.answer(3, newer), Some(Ok(())));
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, late), KEPT);
    assert_eq!((world.at(3, 8), world.at(4, 8)), (6, 6));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn a_node_that_does_not_know_yet_that_hosts_count_asks_anew_once_it_does() {
    let mut world = world();
    reserve(&mut world, &[A], &[4]);
    let write = world.write_as(A, 1, 8, 5);
    world.wait_ms(100);
    assert_eq!(world.answer(1, write), None, "the primary cannot tell which host it is");
    world.install_on(1);
    world.ready(3, 1);
    world.wait_ms(500);
    assert_eq!((world.answer(1, write), world.at(4, 8)), (Some(Ok(())), 5));
}

#[test]
fn what_a_node_sent_on_before_it_knew_that_hosts_count_is_asked_for_anew() {
    let mut world = world();
    world.held.insert((1, 3));
    let [of_a, of_b, unknown] = [(A, 8), (B, 16), (0, 24)].map(|(host, first)| {
        // Nobody knows yet that it matters who asks.
        world.write_as(host, 1, first, 5)
    });
    reserve(&mut world, &[A], &[1, 2, 4]);
    world.held.clear();
    world.wait_ms(500);
    assert_eq!((world.answer(1, of_a), world.at(4, 8)), (Some(Ok(())), 5));
    assert_eq!((world.answer(1, of_b), world.answer(1, unknown)), (KEPT, KEPT));
    assert_eq!((world.at(4, 16), world.at(4, 24)), (0, 0));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_was_let_in_before_has_its_end_before_the_fence_stands() {
    let mut world = world();
    reserve(&mut world, &[B], &[1, 2, 4]);
    world.held.insert((4, 3));
    let open = world.write_as(B, 1, 8, 5);
    assert_eq!(world.answer(1, open), None);
    let epoch = reserve(&mut world, &[A], &[]);
    world.wait_ms(50);
    assert!(world.has_said(3, &FromShard::Installed { epoch }));
    assert!(!world.has_said(3, &FromShard::Fenced { epoch }), "it may still take effect");
    world.held.clear();
    world.run();
    assert_eq!(world.answer(1, open), Some(Ok(())));
    assert!(world.has_said(3, &FromShard::Fenced { epoch }));
}

#[test]
fn what_a_host_asked_for_before_it_was_kept_away_is_not_carried_out_when_it_has_a_right_again() {
    let mut world = world();
    reserve(&mut world, &[B], &[1, 2, 4]);
    for answer in [LATE, Some(Ok(()))] {
        let first = world.write_of(B, 1, 64, 4);
        assert_eq!(world.answer(1, first), answer, "node 1 has to hear how far the primary is");
    }
    world.held.insert((1, 3));
    let old = world.write_of(B, 1, 8, 5);
    world.tell(3, ToShard::Suspend(true));
    let waits = world.write_of(B, 3, 16, 5);
    reserve(&mut world, &[A], &[1, 2, 4]);
    reserve(&mut world, &[B, A], &[2, 4]);
    world.tell(3, ToShard::Suspend(false));
    assert_eq!((world.answer(3, waits), world.at(3, 16)), (LATE, 0));
    let new = world.write_of(B, 3, 16, 6);
    assert_eq!((world.answer(3, new), world.at(4, 16)), (Some(Ok(())), 6));
    world.held.clear();
    world.run();
    assert_eq!((world.answer(1, old), world.at(3, 8), world.at(4, 8)), (LATE, 0, 0));
    world.install_on(1);
    world.ready(3, 1);
    let new = world.write_of(B, 1, 8, 7);
    assert_eq!((world.answer(1, new), world.at(4, 8)), (Some(Ok(())), 7));
    assert_eq!(world.buffers_held(), 0);
}

#[test]
fn what_waits_in_a_primary_is_judged_when_it_goes_on() {
    let mut world = world();
    reserve(&mut world, &[B], &[1, 2, 4]);
    world.tell(3, ToShard::Suspend(true));
    let late = world.write_as(B, 3, 8, 5);
    let epoch = reserve(&mut world, &[A], &[1, 2, 4]);
    assert!(world.has_said(3, &FromShard::Fenced { epoch }));
    world.tell(3, ToShard::Suspend(false));
    assert_eq!((world.answer(3, late), world.at(3, 8)), (KEPT, 0));
    world.lead(4);
    world.tell(4, ToShard::Lease { until: world.now + Duration::from_secs(1000) });
    let write = world.write_as(B, 3, 8, 5);
    assert_eq!(world.answer(3, write), KEPT, "the next primary knows it too");
}

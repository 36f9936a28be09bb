//! When and where to connect again.

use std::net::SocketAddr;

use base::Duration;

use super::*;
use crate::{Backoff, CONNECT_LIMIT, HELD_LONG, Paths, WAIT_MAX, WAIT_MIN};

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7700))
}

#[test]
fn waits_grow_to_the_longest_and_never_leave_the_limits() {
    let mut backoff = Backoff::new(3);
    let mut now = Instant(0);
    let mut waits = Vec::new();
    for _ in 0..30 {
        let next = backoff.ended(now);
        waits.push(next.since(now));
        now = next;
    }
    assert!(waits[0] >= Duration(WAIT_MIN.0 / 2) && waits[0] <= WAIT_MIN);
    assert!(waits.iter().all(|&wait| wait <= WAIT_MAX));
    assert!(waits[10..].iter().all(|&wait| wait >= Duration(WAIT_MAX.0 / 2)));
}

#[test]
fn two_nodes_do_not_wait_in_step() {
    let (mut one, mut two) = (Backoff::new(1), Backoff::new(2));
    assert!((0..5).any(|_| one.ended(Instant(0)) != two.ended(Instant(0))));
}

#[test]
fn only_a_connection_that_held_starts_the_waits_anew() {
    let mut backoff = Backoff::new(3);
    let mut now = Instant(0);
    for _ in 0..10 {
        now = backoff.ended(now);
    }
    backoff.opened(now);
    now = now + Duration::from_millis(10);
    assert!(backoff.ended(now).since(now) > WAIT_MIN, "it flapped");
    backoff.opened(now);
    now = now + HELD_LONG;
    assert!(backoff.ended(now).since(now) <= WAIT_MIN, "it held");
}

#[test]
fn every_address_is_tried_at_once_and_then_there_is_a_wait() {
    let mut paths = Paths::new(&[address(1), address(2)], 1, Instant(0));
    let now = Instant(50);
    assert_eq!(paths.next(now), Some(address(1)));
    assert_eq!(paths.next(now), None, "one try at once");
    paths.failed(now);
    assert_eq!(paths.next(now), Some(address(2)));
    paths.failed(now);
    assert_eq!(paths.next(now), None);
    let due = paths.wake_at().unwrap();
    assert!(due > now);
    assert_eq!(paths.next(due), Some(address(1)));
}

#[test]
fn a_try_that_takes_too_long_makes_way_for_the_next_address() {
    let mut paths = Paths::new(&[address(1), address(2)], 1, Instant(0));
    paths.next(Instant(0));
    let limit = Instant(0) + CONNECT_LIMIT;
    assert_eq!(paths.wake_at(), Some(limit));
    assert!(!paths.is_overdue(Instant(1)) && paths.is_overdue(limit));
    paths.failed(limit);
    assert_eq!(paths.next(limit), Some(address(2)));
}

#[test]
fn after_a_session_the_preferred_address_is_first_again() {
    let mut paths = Paths::new(&[address(1), address(2)], 1, Instant(0));
    paths.next(Instant(0));
    paths.failed(Instant(0));
    paths.next(Instant(0));
    paths.opened(Instant(0));
    paths.failed(Instant(1));
    assert_eq!(paths.wake_at(), None, "an old try that fails changes nothing");
    paths.ended(Instant(5));
    let due = paths.wake_at().unwrap();
    assert_eq!(paths.next(due), Some(address(1)));
}

#[test]
fn new_addresses_count_from_the_next_try_on() {
    let mut paths = Paths::new(&[address(1)], 1, Instant(0));
    paths.next(Instant(0));
    paths.set_addresses(&[address(3), address(4)]);
    paths.failed(Instant(0));
    let due = paths.wake_at().unwrap();
    assert_eq!(paths.next(due), Some(address(3)));
}

#[test]
fn a_peer_without_address_is_never_tried_until_it_has_one() {
    let mut paths = Paths::new(&[], 1, Instant(0));
    assert_eq!((paths.wake_at(), paths.next(Instant(9))), (None, None));
    paths.set_addresses(&[address(1)]);
    assert_eq!(paths.next(Instant(9)), Some(address(1)));
}

//! Histories that a disk may give, and some that it may not.

use super::*;

fn write(value: Value, asked: Time, answered: Time) -> Event {
    Event { block: 1, value, write: true, asked, answered }
}

fn read(value: Value, asked: Time, answered: Time) -> Event {
    Event { block: 1, value, write: false, asked, answered }
}

fn is_fine(events: &[Event]) -> bool {
    check(events).is_empty()
}

#[test]
fn one_after_the_other_is_fine() {
    assert!(is_fine(&[
        read(0, 1, 2),
        write(7, 3, 4),
        read(7, 5, 6),
        write(8, 7, 8),
        read(8, 9, 10)
    ]));
}

#[test]
fn a_read_during_a_write_may_see_either() {
    assert!(is_fine(&[write(7, 1, 10), read(0, 2, 3), read(7, 4, 5), read(7, 11, 12)]));
    assert!(is_fine(&[write(7, 1, 10), read(7, 2, 3)]));
}

#[test]
fn what_was_seen_is_not_unseen() {
    assert!(!is_fine(&[write(7, 1, 10), read(7, 2, 3), read(0, 4, 5)]));
}

#[test]
fn a_lost_acknowledged_write_is_found_by_the_last_read() {
    assert!(!is_fine(&[write(7, 1, 2), read(0, 3, 4)]));
    assert!(!is_fine(&[write(7, 1, 2), write(8, 3, 4), read(7, 5, 6)]));
}

#[test]
fn a_write_that_was_never_answered_may_be_there_or_not() {
    assert!(is_fine(&[write(7, 1, NEVER), read(0, 3, 4)]));
    assert!(is_fine(&[write(7, 1, NEVER), read(7, 3, 4)]));
    assert!(is_fine(&[write(7, 1, NEVER), read(0, 3, 4), read(7, 5, 6)]));
    assert!(!is_fine(&[write(7, 1, NEVER), read(7, 3, 4), read(0, 5, 6)]));
}

#[test]
fn a_write_that_was_never_answered_does_not_come_back_over_a_later_one_seen_between() {
    let late = [write(7, 1, NEVER), write(8, 2, 3), read(7, 4, 5), read(8, 6, 7)];
    assert!(!is_fine(&late));
    assert!(is_fine(&[write(7, 1, NEVER), write(8, 2, 3), read(8, 4, 5), read(7, 6, 7)]));
}

#[test]
fn concurrent_writes_may_end_in_either_order_but_one() {
    assert!(is_fine(&[write(7, 1, 10), write(8, 2, 9), read(7, 11, 12)]));
    assert!(is_fine(&[write(7, 1, 10), write(8, 2, 9), read(8, 11, 12)]));
    assert!(!is_fine(&[write(7, 1, 10), write(8, 2, 9), read(8, 11, 12), read(7, 13, 14)]));
}

#[test]
fn what_nobody_wrote_is_never_seen() {
    assert!(!is_fine(&[read(9, 1, 2)]));
    assert!(!is_fine(&[write(7, 5, 6), read(7, 1, 2)]));
}

#[test]
fn blocks_are_judged_apart() {
    let other = |event: Event| Event { block: 2, ..event };
    assert!(is_fine(&[write(7, 1, 2), other(read(0, 3, 4))]));
    assert_eq!(check(&[write(7, 1, 2), other(write(8, 1, 2)), other(read(0, 3, 4))]).len(), 1);
}

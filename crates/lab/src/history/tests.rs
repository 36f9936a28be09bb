//! Histories that a disk may give, and some that it may not.

use super::*;

fn write(value: Value, asked: Time, answered: Time) -> Event {
    Event { block: 1, value, what: What::Write, asked, answered }
}

fn read(value: Value, asked: Time, answered: Time) -> Event {
    Event { block: 1, value, what: What::Read, asked, answered }
}

fn stable(value: Value, asked: Time, answered: Time) -> Event {
    Event { block: 1, value, what: What::WriteStable, asked, answered }
}

fn zero(asked: Time, answered: Time) -> Event {
    write(0, asked, answered)
}

fn is_fine(events: &[Event]) -> bool {
    check(&History { events: events.to_vec(), ..History::default() }).is_empty()
}

/// Whether that is so when all caches are lost at 100, and these flushes were answered.
fn is_fine_after_loss(events: &[Event], flushes: &[(Time, Time)]) -> bool {
    let flushes = flushes.iter().map(|&(asked, answered)| Flush { asked, answered }).collect();
    check(&History { events: events.to_vec(), flushes, losses: vec![100] }).is_empty()
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
    let events = vec![write(7, 1, 2), other(write(8, 1, 2)), other(read(0, 3, 4))];
    assert_eq!(check(&History { events, ..History::default() }).len(), 1);
}

#[test]
fn zeroes_are_seen_where_some_were_made_and_nowhere_else() {
    assert!(is_fine(&[write(7, 1, 2), zero(3, 4), read(0, 5, 6), write(8, 7, 8), read(8, 9, 10)]));
    assert!(is_fine(&[write(7, 1, 2), zero(3, 4), write(8, 5, 6), zero(7, 8), read(0, 9, 10)]));
    assert!(is_fine(&[write(7, 1, 2), zero(3, NEVER), read(7, 4, 5), read(0, 6, 7)]));
    assert!(!is_fine(&[write(7, 1, 2), zero(3, 4), read(7, 5, 6)]), "not made");
    assert!(!is_fine(&[zero(1, 2), write(7, 3, 4), read(0, 5, 6)]), "older ones come back");
    let twice = [write(7, 1, 2), zero(3, NEVER), read(0, 4, 5), write(8, 6, 7), read(0, 8, 9)];
    assert!(!is_fine(&twice), "one zeroing takes effect once");
}

#[test]
fn what_was_not_flushed_may_be_gone_after_a_loss_of_all_caches_but_is_not_unseen_later() {
    let events = [write(7, 1, 2), write(8, 3, 4), write(9, 5, NEVER)];
    let seen = |values: &[Value]| {
        let reads = (110..).step_by(2).zip(values).map(|(at, &value)| read(value, at, at + 1));
        is_fine_after_loss(&[&events[..], &reads.collect::<Vec<_>>()].concat(), &[])
    };
    assert!(seen(&[0]) && seen(&[7]) && seen(&[8]) && seen(&[9]));
    assert!(seen(&[7, 7]) && seen(&[7, 9]), "the one without an answer may come late");
    assert!(!seen(&[7, 8]) && !seen(&[8, 7]) && !seen(&[0, 8]), "a disk again");
    assert!(!seen(&[6]));
}

#[test]
fn what_was_flushed_is_there_after_a_loss_of_all_caches() {
    let events = |seen| [write(7, 1, 2), write(8, 7, 8), read(seen, 110, 111)];
    assert!(is_fine_after_loss(&events(8), &[(3, 4)]) && is_fine_after_loss(&events(7), &[(3, 4)]));
    assert!(!is_fine_after_loss(&events(0), &[(3, 4)]));
    assert!(!is_fine_after_loss(&events(7), &[(9, 10)]));
    // What was answered only after it was asked for need not be in it.
    assert!(is_fine_after_loss(&[write(7, 1, 5), read(0, 110, 111)], &[(3, 6)]));
    assert!(is_fine_after_loss(&[write(7, 1, 2), zero(7, 8), read(7, 110, 111)], &[(3, 4)]));
    assert!(!is_fine_after_loss(&[write(7, 1, 2), zero(3, 4), read(7, 110, 111)], &[(5, 6)]));
}

#[test]
fn a_write_that_was_to_be_stable_is_there_after_a_loss_of_all_caches() {
    assert!(!is_fine_after_loss(&[stable(7, 1, 2), read(0, 110, 111)], &[]));
    assert!(is_fine_after_loss(&[stable(7, 1, 2), read(7, 110, 111)], &[]));
    assert!(is_fine_after_loss(&[stable(7, 1, 2), write(8, 3, 4), read(7, 110, 111)], &[]));
    assert!(!is_fine_after_loss(&[write(7, 1, 2), stable(8, 3, 4), read(7, 110, 111)], &[]));
    assert!(is_fine_after_loss(&[stable(7, 1, NEVER), read(0, 110, 111)], &[]));
}

//! What clients asked and heard, and whether one disk could have answered so.
//!
//! Each block of 4 KiB is a register of its own. Every write has a number that no other has, so a
//! read says which write it saw; then linearizability is decided exactly and quickly: for each
//! write, everything between the first answer and the last question that concerns it is time in
//! which the block must have held it. Two such times that overlap, or another write that lies
//! wholly inside one, cannot come from one disk (Gibbons and Korach, "Testing shared memories",
//! 1997, for unique values).
//!
//! A write that was never answered may have taken effect at any time after it was asked, or never.
//! A lost acknowledged write is found by the reads of the end, which are part of the history.
//!
//! Not here: making the load (`load`).

use std::collections::BTreeMap;
use std::fmt;

/// Nanoseconds since the load began; 0 is before everything.
pub(crate) type Time = u64;

/// An answer that never came.
pub(crate) const NEVER: Time = Time::MAX;

/// Number of a write; 0 is what a new volume holds.
pub(crate) type Value = u64;

/// Operations of a block that are shown with a violation.
const SHOWN_MAX: usize = 12;

/// One request, as it concerns one block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Event {
    /// Which block.
    pub(crate) block: u64,
    /// Which write it was, or which a read saw.
    pub(crate) value: Value,
    /// Whether it was a write.
    pub(crate) write: bool,
    /// When it was asked.
    pub(crate) asked: Time,
    /// When it was answered; `NEVER` only for writes.
    pub(crate) answered: Time,
}

/// Something that no disk could have answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Violation {
    block: u64,
    what: String,
    events: Vec<Event>,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "block {}: {}", self.block, self.what)?;
        for event in &self.events {
            let verb = if event.write { "write" } else { "read" };
            write!(out, "\n    {verb} {:x} asked {:.3} ms ", event.value, millis(event.asked))?;
            match event.answered {
                NEVER => write!(out, "never answered")?,
                answered => write!(out, "answered {:.3} ms", millis(answered))?,
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn millis(time: Time) -> f64 {
    time as f64 / 1e6
}

/// The time that concerns one write.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: Value,
    /// The write was asked then; `None`: nobody wrote it.
    written: Option<Time>,
    /// The first answer that shows that it was there.
    first_answer: Time,
    /// The last question whose answer is that it is there.
    last_question: Time,
    /// Whether anything shows that it took effect.
    shown: bool,
}

impl Zone {
    fn new(value: Value) -> Zone {
        let written = (value == 0).then_some(0);
        let first_answer = if value == 0 { 0 } else { NEVER };
        Zone { value, written, first_answer, last_question: 0, shown: value == 0 }
    }

    fn add(&mut self, event: &Event) {
        if event.write {
            self.written = Some(event.asked);
        }
        self.shown |= event.answered != NEVER;
        self.first_answer = self.first_answer.min(event.answered);
        self.last_question = self.last_question.max(event.asked);
    }

    /// The block must have held it from the first answer to the last question.
    fn is_forward(&self) -> bool {
        self.first_answer < self.last_question
    }
}

/// Checks every block. Returns at most one violation for each.
pub(crate) fn check(events: &[Event]) -> Vec<Violation> {
    let mut blocks: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in events {
        blocks.entry(event.block).or_default().push(*event);
    }
    blocks.into_iter().filter_map(|(block, events)| check_block(block, events)).collect()
}

fn check_block(block: u64, mut events: Vec<Event>) -> Option<Violation> {
    let (what, values, around) = find(&events)?;
    events.retain(|event| values.contains(&event.value));
    events.sort_by_key(|event| event.asked);
    // Around where it went wrong, if there are many.
    let at = events.partition_point(|event| event.asked < around);
    let from = at.saturating_sub(SHOWN_MAX / 2).min(events.len().saturating_sub(SHOWN_MAX));
    events.drain(..from);
    events.truncate(SHOWN_MAX);
    Some(Violation { block, what, events })
}

/// What is wrong, with which writes, and when.
fn find(events: &[Event]) -> Option<(String, Vec<Value>, Time)> {
    let mut zones: BTreeMap<Value, Zone> = BTreeMap::from([(0, Zone::new(0))]);
    for event in events {
        zones.entry(event.value).or_insert_with(|| Zone::new(event.value)).add(event);
    }
    for zone in zones.values().filter(|zone| zone.shown) {
        let Some(written) = zone.written else {
            let what = format!("a read saw {:x}, which nobody wrote there", zone.value);
            return Some((what, vec![zone.value], zone.last_question));
        };
        if zone.first_answer < written {
            let what = format!("a read saw {:x} before it was written", zone.value);
            return Some((what, vec![zone.value], written));
        }
    }
    let shown = || zones.values().filter(|zone| zone.shown);
    let mut forward: Vec<&Zone> = shown().filter(|zone| zone.is_forward()).collect();
    forward.sort_by_key(|zone| zone.first_answer);
    for pair in forward.windows(2) {
        if pair[1].first_answer < pair[0].last_question {
            let what = format!(
                "{:x} is seen after {:x} was, which is seen again later, or the other way round",
                pair[1].value, pair[0].value
            );
            return Some((what, vec![pair[0].value, pair[1].value], pair[1].first_answer));
        }
    }
    for zone in shown().filter(|zone| !zone.is_forward()) {
        let after = forward.partition_point(|other| other.first_answer < zone.last_question);
        let Some(held) = after.checked_sub(1).and_then(|index| forward.get(index)) else {
            continue;
        };
        if zone.first_answer < held.last_question {
            let what = format!(
                "{:x} was acknowledged or seen, and later the older {:x} is seen: it is lost",
                zone.value, held.value
            );
            return Some((what, vec![zone.value, held.value], zone.first_answer));
        }
    }
    None
}

#[cfg(test)]
mod tests;

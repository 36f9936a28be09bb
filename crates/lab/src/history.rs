//! What clients asked and heard, and whether one disk could have answered so.
//!
//! Each block of 4 KiB is a register of its own, and the simulator's search (`sim::history`) looks for an order of all requests of
//! it in which each takes effect between its question and its answer, and each read sees what was written last. Every write
//! has a number that no other has, so a read says which write it saw; zeroes are those of any zeroing or discard.
//!
//! A write that was never answered may take effect at any time after it was asked, or never. When all caches are lost, a
//! block falls back to what it held at the last flush, or to anything since: what was stable is there.
//! A lost acknowledged write is found by the reads of the end, which are part of the history.
//!
//! Always: a block of which there are too many orders to look at all of them counts as wrong.
//!
//! Not here: making the load (`load`), the search.

use std::collections::BTreeMap;
use std::fmt;

use base::{Span, VolumeId};
use sim::history::{self, Effect, OpIndex, Operation};

/// Nanoseconds since the load began; 0 is before everything.
pub(crate) type Time = u64;

/// An answer that never came.
pub(crate) const NEVER: Time = Time::MAX;

/// Number of a write; 0 is what a new volume holds, and what zeroing and discarding leave.
pub(crate) type Value = u64;

/// Operations of a block that are shown with a violation.
const SHOWN_MAX: usize = 12;

/// What a request did to a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum What {
    /// Saw what it held.
    Read,
    /// Wrote it, or made it zero.
    Write,
    /// Wrote it, stable when answered (FUA).
    WriteStable,
}

/// One request, as it concerns one block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Event {
    /// Which block.
    pub(crate) block: u64,
    /// Which write it was, or which a read saw.
    pub(crate) value: Value,
    /// What.
    pub(crate) what: What,
    /// When it was asked.
    pub(crate) asked: Time,
    /// When it was answered; `NEVER` only for writes.
    pub(crate) answered: Time,
}

/// A flush that was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Flush {
    /// When it was asked.
    pub(crate) asked: Time,
    /// When it was answered.
    pub(crate) answered: Time,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Requests by block.
    pub(crate) events: Vec<Event>,
    /// Of the whole volume.
    pub(crate) flushes: Vec<Flush>,
    /// When all caches were lost.
    pub(crate) losses: Vec<Time>,
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
            let verb = match event.what {
                What::Read => "read",
                What::Write => "write",
                What::WriteStable => "write, stable,",
            };
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

/// Something that happens at an instant; of several at the same, questions come first and answers last: nothing is said of
/// which of them was before which.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Moment {
    /// The request of this place is asked.
    Asked(usize),
    Loss,
    Answered(usize),
}

/// Checks every block. Returns at most one violation for each.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut blocks: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in &history.events {
        blocks.entry(event.block).or_default().push(*event);
    }
    // Where nothing was lost it is all the same what is stable.
    let flushes: &[Flush] = if history.losses.is_empty() { &[] } else { &history.flushes };
    let judge = |(block, events): (u64, Vec<Event>)| {
        let (what, around) = find(&events, flushes, &history.losses)?;
        Some(Violation { block, what, events: shown(events, around) })
    };
    blocks.into_iter().filter_map(judge).collect()
}

/// Those around where it went wrong, if there are many.
fn shown(mut events: Vec<Event>, around: Time) -> Vec<Event> {
    events.sort_by_key(|event| event.asked);
    let at = events.partition_point(|event| event.asked < around);
    let from = at.saturating_sub(SHOWN_MAX / 2).min(events.len().saturating_sub(SHOWN_MAX));
    events.drain(..from);
    events.truncate(SHOWN_MAX);
    events
}

/// What is wrong with a block, and when.
fn find(events: &[Event], flushes: &[Flush], losses: &[Time]) -> Option<(String, Time)> {
    let ends = events.iter().map(|event| (event.asked, event.answered));
    let ends = ends.chain(flushes.iter().map(|flush| (flush.asked, flush.answered)));
    let mut moments: Vec<(Time, Moment)> =
        losses.iter().map(|&time| (time, Moment::Loss)).collect();
    for (place, (asked, answered)) in ends.enumerate() {
        moments.push((asked, Moment::Asked(place)));
        moments.push((answered, Moment::Answered(place)));
    }
    moments.retain(|&(time, _)| time != NEVER);
    moments.sort_unstable_by_key(|&(time, moment)| {
        let rank = match moment {
            Moment::Asked(_) => 0,
            Moment::Loss => 1,
            Moment::Answered(_) => 2,
        };
        (time, rank, moment)
    });
    let mut told = history::History::default();
    let mut calls: BTreeMap<usize, OpIndex> = BTreeMap::new();
    for (time, moment) in moments {
        match moment {
            Moment::Asked(place) => {
                calls.insert(place, told.call(time, 0, operation(events.get(place))));
            }
            Moment::Loss => told.loss(time, 0),
            Moment::Answered(place) => {
                let call = calls.remove(&place).expect("no answer is before its question");
                let seen = events.get(place).map(|event| event.value).into_iter().collect();
                told.answer(time, 0, call, true, seen);
            }
        }
    }
    match told.check() {
        Ok(0) => None,
        Ok(_) => Some(("there are too many orders to look at all of them".to_owned(), 0)),
        Err(wrong) => {
            let text = wrong.text.trim_start_matches("volume 0 sector 0: ");
            Some((text.to_owned(), wrong.at))
        }
    }
}

/// A request of a block, or a flush, that is not answered yet.
fn operation(event: Option<&Event>) -> Operation {
    let effect = match event {
        Some(Event { what: What::Read, .. }) => Effect::Read(Vec::new()),
        Some(Event { value, .. }) => Effect::Write(*value),
        None => Effect::Flush,
    };
    let fua = event.is_some_and(|event| event.what == What::WriteStable);
    let span = Span::new(0, 1).expect("a sector");
    Operation { volume: VolumeId(0), span, effect, fua, ok: false, ended: false }
}

#[cfg(test)]
mod tests;

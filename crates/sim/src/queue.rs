//! What happens next: events by simulated time, and in the order of their making at one time.
//!
//! Not here: what an event means (`world`).

use std::collections::BTreeMap;

/// True simulated time, in nanoseconds since the run began.
pub type Time = u64;

/// One microsecond.
pub const MICRO: Time = 1_000;
/// One millisecond.
pub const MILLI: Time = 1_000_000;
/// One second.
pub const SECOND: Time = 1_000_000_000;

/// Events that have not happened yet.
#[derive(Debug)]
pub struct Queue<E> {
    events: BTreeMap<(Time, u64), E>,
    made: u64,
    now: Time,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue { events: BTreeMap::new(), made: 0, now: 0 }
    }
}

impl<E> Queue<E> {
    /// The time of the event that was taken last.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Lets `event` happen at `at`, or now if that has passed.
    pub fn at(&mut self, at: Time, event: E) {
        self.made += 1;
        self.events.insert((at.max(self.now), self.made), event);
    }

    /// Lets `event` happen after `delay`.
    pub fn after(&mut self, delay: Time, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Takes the next event; time goes on to it.
    pub fn take(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.events.keys().next().map(|&(at, _)| at)
    }
}

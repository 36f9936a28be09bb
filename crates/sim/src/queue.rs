//! What happens next: events by simulated time, and in the order of their making at one time.
//!
//! Not here: what an event means (`world`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    /// When, in which order of making, and its place.
    order: BinaryHeap<Reverse<(Time, u64, usize)>>,
    places: Vec<Option<E>>,
    free: Vec<usize>,
    made: u64,
    now: Time,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue { order: BinaryHeap::new(), places: Vec::new(), free: Vec::new(), made: 0, now: 0 }
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
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(event);
        self.order.push(Reverse((at.max(self.now), self.made, place)));
    }

    /// Lets `event` happen after `delay`.
    pub fn after(&mut self, delay: Time, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Takes the next event; time goes on to it.
    pub fn take(&mut self) -> Option<E> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.now = at;
        self.free.push(place);
        self.places[place].take()
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.order.peek().map(|&Reverse((at, _, _))| at)
    }
}

//! How long to wait before connecting again.
//!
//! Always: waits grow from 100 ms to 5 s and differ from node to node, so that a cluster that lost a
//! switch does not come back in step; a connection that held for a while starts anew.
//!
//! Not here: where to connect (`paths`).

use base::{Duration, Instant, Prng};

/// The first wait.
pub const WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest wait: what an operator who plugged the cable in again waits at most.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// A connection that lived this long was a good one; the next wait is the shortest again.
pub const HELD_LONG: Duration = Duration::from_secs(10);

/// Waits between tries to reach one peer.
#[derive(Clone, Debug)]
pub struct Backoff {
    prng: Prng,
    ceiling: Duration,
    opened: Option<Instant>,
}

impl Backoff {
    /// `seed` has to differ between nodes and peers, or they wait in step.
    #[must_use]
    pub fn new(seed: u64) -> Backoff {
        Backoff { prng: Prng::new(seed), ceiling: WAIT_MIN, opened: None }
    }

    /// The connection is in use from `now` on.
    pub fn opened(&mut self, now: Instant) {
        self.opened = Some(now);
    }

    /// The connection, or the try to make one, ended. Answers when to try again: after half of the
    /// present wait and a random part of the other half.
    pub fn ended(&mut self, now: Instant) -> Instant {
        if let Some(opened) = self.opened.take()
            && now.since(opened) >= HELD_LONG
        {
            self.ceiling = WAIT_MIN;
        }
        let half = self.ceiling.0 / 2;
        let wait = Duration(half + self.prng.below(half + 1));
        self.ceiling = Duration((self.ceiling.0 * 2).min(WAIT_MAX.0));
        now + wait
    }
}

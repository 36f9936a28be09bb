//! An operator's limits on the rate of resyncs: a most, and what is kept under load.
//!
//! Each is a clock that runs ahead by the time that what was begun takes at that rate. Copies wait until the clock of the most
//! is reached; they go on, whatever requests feel, once that of the least is.
//!
//! Always: in any time no more is begun than the most allows for it, for `SLACK` and for one copy.
//!
//! Not here: how far copies yield between the two (`pace`).

use base::{Duration, Instant, SECTOR_BYTES};

/// How much of what was not used is made up for: a thread that wakes up late does not fall behind.
const SLACK: Duration = Duration::from_millis(100);
/// A copy that is made for the sake of the least takes its share of so long a time: more at once would be felt more,
/// less would be many copies.
const STRIDE: Duration = Duration::from_millis(10);

/// A rate, and when the next copy is due at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Bytes per second; 0: there is none.
    rate: u64,
    due: Instant,
}

impl Rate {
    pub(super) const NONE: Rate = Rate { rate: 0, due: Instant(0) };

    /// From now on it is so many bytes per second. What was begun under another rate is not held against it.
    pub(super) fn set(&mut self, rate: u64, now: Instant) {
        if self.rate != rate {
            *self = Rate { rate, due: now };
        }
    }

    /// When a copy is due; `None`: nothing is said about that.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.rate > 0).then_some(self.due)
    }

    /// So many sectors are begun.
    pub(super) fn take(&mut self, now: Instant, sectors: u64) {
        if self.rate > 0 {
            let earliest = Instant(now.0.saturating_sub(SLACK.0));
            let nanos = u128::from(sectors * SECTOR_BYTES) * 1_000_000_000 / u128::from(self.rate);
            let takes = Duration(u64::try_from(nanos).unwrap_or(u64::MAX / 2));
            self.due = self.due.max(earliest) + takes;
        }
    }

    /// Sectors of a copy that keep up with the rate without being large; 0 if there is none.
    pub(super) fn sectors(&self) -> u64 {
        let bytes = u128::from(self.rate) * u128::from(STRIDE.0) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX) / SECTOR_BYTES
    }
}

//! Time as the pure machines see it: a number that the caller passes in.

use core::ops::{Add, Sub};

/// A reading of a clock that counts suspend, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Duration(pub u64);

impl Instant {
    /// Time passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// `count` milliseconds.
    #[must_use]
    pub const fn from_millis(count: u64) -> Duration {
        Duration(count * 1_000_000)
    }

    /// `count` seconds.
    #[must_use]
    pub const fn from_secs(count: u64) -> Duration {
        Duration(count * 1_000_000_000)
    }

    /// Whole milliseconds in it.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, length: Duration) -> Instant {
        Instant(self.0.saturating_add(length.0))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, length: Duration) -> Instant {
        Instant(self.0.saturating_sub(length.0))
    }
}

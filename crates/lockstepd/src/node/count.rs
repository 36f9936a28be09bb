//! How much others lack of what was written here, counted no more often than it costs little: a look at the bitmap of a large
//! volume can take as long as a lease, and the thread that looks serves nobody meanwhile.
//!
//! Not here: where it is shown (`status`), and what a bitmap is (`replica`).

use base::{Duration, Instant};

/// Between two looks at least so many times as long as a look took.
const REST: u64 = 50;

/// Where the present number is wanted, a look that took longer is not taken for that alone.
const LONG: Duration = Duration::from_millis(100);

/// What a look found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    sectors: u64,
    /// Since when that is so, and how long it took to see it; `None`: nobody has looked yet.
    looked: Option<(Instant, Duration)>,
}

impl Count {
    /// What was found last, or what is found now, if that was long ago or the present number is wanted.
    pub(super) fn sectors(
        &mut self,
        is_wanted: bool,
        clock: impl Fn() -> Instant,
        look: impl FnOnce() -> u64,
    ) -> u64 {
        let begun = clock();
        let is_due = self.looked.is_none_or(|(at, took)| {
            let rest = Duration(took.0.saturating_mul(REST));
            at + rest <= begun || (is_wanted && took < LONG)
        });
        if is_due {
            self.sectors = look();
            let ended = clock();
            self.looked = Some((ended, ended.since(begun)));
        }
        self.sectors
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, LONG, REST};
    use base::{Duration, Instant};
    use std::cell::Cell;

    #[test]
    fn a_look_that_takes_long_is_taken_seldom() {
        let (now, looks) = (Cell::new(Instant(0)), Cell::new(0));
        let pass = |time: Duration| now.set(now.get() + time);
        let mut count = Count::default();
        let mut look = |is_wanted: bool, takes: Duration| {
            count.sectors(
                is_wanted,
                || now.get(),
                || {
                    pass(takes);
                    looks.set(looks.get() + 1);
                    looks.get()
                },
            )
        };
        let (nothing, short) = (Duration(0), Duration(10));
        assert_eq!([look(false, nothing), look(false, short)], [1, 2], "the first cost nothing");
        pass(Duration(10 * REST - 1));
        assert_eq!(look(false, short), 2);
        assert_eq!(look(true, short), 3, "the present number is wanted");
        pass(Duration(10 * REST));
        assert_eq!(look(false, LONG), 4);
        pass(LONG);
        assert_eq!(look(true, short), 4, "nobody wants it that much");
        pass(Duration(LONG.0 * REST));
        assert_eq!(look(false, short), 5);
    }
}

//! What the node tells its operator: lines on standard error, with a level and the time in UTC.
//!
//! A line names the thing it is about and the cause; under systemd each goes to the journal with its
//! priority. Not here: what is counted (`status`), what is asked for (`admin`).

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How much a line matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Level {
    /// Something failed, and someone should look.
    Error,
    /// Something is worse than it should be; the node goes on.
    Warn,
    /// Something changed.
    Info,
    /// For who hunts a fault.
    Debug,
}

static LEVEL: AtomicU8 = AtomicU8::new(2);

/// Lines less important than `level` are not written from now on.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether lines of this level are written.
pub(crate) fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line. A standard error that cannot be written to is no reason to stop serving disks.
pub(crate) fn write(level: Level, what: fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let name = match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    let now = sys::wall_clock_ms();
    let line = format!("{} {name:5} {what}\n", Utc(now / 1000, now % 1000));
    std::io::stderr().lock().write_all(line.as_bytes()).ok();
}

/// Lines of one kind that others can cause, in a minute at most.
const LINES_PER_MINUTE: u64 = 10;

/// Keeps what strangers do from filling the log: of one kind of line a few are written in a minute, the rest counted.
pub(crate) struct Limit {
    minute: AtomicU64,
    lines: AtomicU64,
    left_out: AtomicU64,
}

impl Limit {
    pub(crate) const fn new() -> Limit {
        Limit { minute: AtomicU64::new(0), lines: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether one more may be written now; if so, how many were left out since the last one.
    fn admits(&self, now_ms: u64) -> Option<u64> {
        let order = Ordering::Relaxed;
        let minute = now_ms / 60_000;
        if self.minute.swap(minute, order) != minute {
            self.lines.store(0, order);
        }
        if self.lines.fetch_add(1, order) < LINES_PER_MINUTE {
            return Some(self.left_out.swap(0, order));
        }
        self.left_out.fetch_add(1, order);
        None
    }
}

/// Writes one line of a kind that others can cause as often as they like.
pub(crate) fn write_limited(limit: &Limit, level: Level, what: fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    match limit.admits(sys::wall_clock_ms()) {
        None => {}
        Some(0) => write(level, what),
        Some(more) => {
            write(level, format_args!("{what} ({more} more lines like it were left out)"))
        }
    }
}

/// Seconds since 1970 and milliseconds, shown as RFC 3339.
struct Utc(u64, u64);

impl fmt::Display for Utc {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let millis = self.1;
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01: whole eras of 400 years of 146 097 days
/// that begin in March, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let moon = (5 * of_year + 2) / 153;
    let day = of_year - (153 * moon + 2) / 5 + 1;
    let month = if moon < 10 { moon + 3 } else { moon - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

macro_rules! error { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($word)*)) } }
macro_rules! warning { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Warn, format_args!($($word)*)) } }
/// A warning that strangers can cause as often as they like: see [`Limit`].
macro_rules! warning_limited {
    ($($word:tt)*) => {{
        static LIMIT: $crate::log::Limit = $crate::log::Limit::new();
        $crate::log::write_limited(&LIMIT, $crate::log::Level::Warn, format_args!($($word)*));
    }};
}
macro_rules! info { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($word)*)) } }
macro_rules! debug { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Debug, format_args!($($word)*)) } }
pub(crate) use {debug, error, info, warning, warning_limited};

#[cfg(test)]
mod tests {
    use super::{LINES_PER_MINUTE, Limit, Utc, civil};

    #[test]
    fn a_flood_is_a_few_lines_a_minute_and_a_count() {
        let limit = Limit::new();
        let start = 1_700_000_040_000;
        let written = (0..1000).filter(|at| limit.admits(start + at).is_some()).count();
        assert_eq!(written as u64, LINES_PER_MINUTE);
        assert_eq!(limit.admits(start + 60_000), Some(1000 - LINES_PER_MINUTE));
        assert_eq!(limit.admits(start + 60_001), Some(0));
    }

    #[test]
    fn days_become_dates_across_leap_years() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_513), (2026, 3, 1));
        assert_eq!(Utc(951_827_696, 5).to_string(), "2000-02-29T12:34:56.005Z");
    }
}

//! What the node tells its operator: lines on standard error, with a level and the time in UTC.
//!
//! A line names the thing it is about and the cause; under systemd all go to the journal.
//!
//! Always: a thread that serves never waits for whoever reads standard error: once the node has begun lines go to a
//! thread of their own, so many that wait are the most, and how many had to be left out is said. What matters less
//! leaves room for what matters more.
//!
//! Not here: what is counted (`status`), what is asked for (`admin`).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Lines that wait to be written, at most.
const LINES_MAX: usize = 1024;
/// Bytes of one line, at most.
const LINE_BYTES_MAX: usize = 4096;
/// How long the end of the process waits until what was said is written.
const END_LIMIT: Duration = Duration::from_secs(1);

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

impl Level {
    /// Where so many lines wait, one of this level finds no room.
    fn lines_max(self) -> usize {
        match self {
            Level::Error | Level::Warn => LINES_MAX,
            Level::Info => LINES_MAX / 4 * 3,
            Level::Debug => LINES_MAX / 2,
        }
    }
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

/// Says one line. A standard error that cannot be written to is no reason to stop serving disks, nor to wait.
pub(crate) fn write(level: Level, what: fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let line = line_of(level, what);
    match WRITER.get() {
        Some(writer) => writer.push(level, line),
        None => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

fn line_of(level: Level, what: fmt::Arguments<'_>) -> String {
    let name = match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    let now = sys::wall_clock_ms();
    let mut line = format!("{} {name:5} {what}", Utc(now / 1000, now % 1000));
    if line.len() >= LINE_BYTES_MAX {
        let fits = (0..=LINE_BYTES_MAX - 5).rev().find(|&end| line.is_char_boundary(end));
        line.truncate(fits.unwrap_or_default());
        line.push_str(" ...");
    }
    line.push('\n');
    line
}

/// Of this process, once its node has begun.
static WRITER: OnceLock<Arc<Writer>> = OnceLock::new();

/// From now on lines are written by a thread of their own, also the words of a panic. Call it when signals are blocked.
pub(crate) fn begin() {
    let writer = Arc::new(Writer::default());
    let its_own = Arc::clone(&writer);
    let thread = std::thread::Builder::new().name("log".to_owned());
    if thread.spawn(move || its_own.write_to(std::io::stderr())).is_err() {
        return;
    }
    WRITER.set(writer).ok();
    std::panic::set_hook(Box::new(|what| {
        let thread = std::thread::current();
        let trace = Backtrace::capture();
        write(
            Level::Error,
            format_args!("thread {} {what}", thread.name().unwrap_or("without a name")),
        );
        if trace.status() == BacktraceStatus::Captured {
            let text = trace.to_string();
            text.lines().for_each(|line| write(Level::Error, format_args!("{line}")));
        }
        end();
    }));
}

/// Waits a moment until everything is written: the process is about to end.
pub(crate) fn end() {
    if let Some(writer) = WRITER.get() {
        writer.wait_written(END_LIMIT);
    }
}

/// Lines on their way to whoever reads them.
#[derive(Default)]
struct Writer {
    queue: Mutex<Queue>,
    more: Condvar,
    less: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    /// There was no room for so many after the last of them.
    left_out: u64,
    /// One that is among them no more is being written.
    writing: bool,
}

impl Queue {
    /// The next line to write. That some were left out is said where they would have stood.
    fn take(&mut self) -> Option<String> {
        self.lines.pop_front().or_else(|| self.confess())
    }

    fn confess(&mut self) -> Option<String> {
        let count = std::mem::take(&mut self.left_out);
        let words = "lines were left out: standard error did not take them in time";
        (count > 0).then(|| line_of(Level::Warn, format_args!("{count} {words}")))
    }
}

impl Writer {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, level: Level, line: String) {
        let mut queue = self.lock();
        if queue.lines.len() >= level.lines_max() {
            queue.left_out += 1;
            return;
        }
        if let Some(words) = queue.confess() {
            queue.lines.push_back(words);
        }
        queue.lines.push_back(line);
        self.more.notify_one();
    }

    /// Writes lines as they come, as long as the process lasts.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let mut queue = self.lock();
            let Some(line) = queue.take() else {
                drop(self.more.wait(queue));
                continue;
            };
            queue.writing = true;
            drop(queue);
            out.write_all(line.as_bytes()).ok();
            self.lock().writing = false;
            self.less.notify_all();
        }
    }

    /// Whether everything is written, or was within this time.
    fn wait_written(&self, limit: Duration) -> bool {
        let is_left =
            |queue: &mut Queue| queue.writing || !queue.lines.is_empty() || queue.left_out > 0;
        let waited = self.less.wait_timeout_while(self.lock(), limit, is_left);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
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
/// The same of an error.
macro_rules! error_limited {
    ($($word:tt)*) => {{
        static LIMIT: $crate::log::Limit = $crate::log::Limit::new();
        $crate::log::write_limited(&LIMIT, $crate::log::Level::Error, format_args!($($word)*));
    }};
}
macro_rules! info { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($word)*)) } }
/// The same of what is no more than news.
macro_rules! info_limited {
    ($($word:tt)*) => {{
        static LIMIT: $crate::log::Limit = $crate::log::Limit::new();
        $crate::log::write_limited(&LIMIT, $crate::log::Level::Info, format_args!($($word)*));
    }};
}
macro_rules! debug { ($($word:tt)*) => { $crate::log::write($crate::log::Level::Debug, format_args!($($word)*)) } }
pub(crate) use {debug, error, error_limited, info, info_limited, warning, warning_limited};

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::{
        LINE_BYTES_MAX, LINES_MAX, LINES_PER_MINUTE, Level, Limit, Utc, Writer, civil, line_of,
    };

    /// Takes a line each time it is told to, and keeps it.
    struct Slow {
        told: Receiver<()>,
        taken: Arc<Mutex<Vec<String>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Nobody is left to tell it: then it takes everything.
            self.told.recv().ok();
            let line = String::from_utf8_lossy(bytes).into_owned();
            self.taken.lock().expect("nobody panics with it").push(line);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A writer, who lets it write, and what was written.
    fn slow() -> (Arc<Writer>, Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (tell, told) = channel();
        let (writer, taken) = (Arc::new(Writer::default()), Arc::new(Mutex::new(Vec::new())));
        let (its_own, out) = (Arc::clone(&writer), Slow { told, taken: Arc::clone(&taken) });
        std::thread::spawn(move || its_own.write_to(out));
        (writer, tell, taken)
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_not_read_and_what_was_left_out_is_said_in_its_place() {
        let (writer, tell, taken) = slow();
        writer.push(Level::Error, "first\n".to_owned());
        while !writer.lock().writing {
            std::thread::yield_now();
        }
        (0..LINES_MAX + 7).for_each(|number| writer.push(Level::Error, format!("{number}\n")));
        assert!(!writer.wait_written(Duration::ZERO), "nobody takes anything");
        tell.send(()).expect("it writes");
        while taken.lock().expect("whole").is_empty() {
            std::thread::yield_now();
        }
        while writer.lock().lines.len() == LINES_MAX {
            std::thread::yield_now();
        }
        writer.push(Level::Error, "last\n".to_owned());
        drop(tell);
        assert!(writer.wait_written(Duration::from_secs(600)));
        let taken = taken.lock().expect("whole");
        assert_eq!(taken.len(), 1 + LINES_MAX + 2);
        assert!(taken[LINES_MAX + 1].contains(" warn  7 lines were left out"), "{taken:?}");
        assert_eq!((taken[0].as_str(), taken[LINES_MAX + 2].as_str()), ("first\n", "last\n"));
    }

    #[test]
    fn what_matters_less_leaves_room_for_what_matters_more() {
        let writer = Writer::default();
        let mut waiting = Vec::new();
        for level in [Level::Debug, Level::Info, Level::Warn, Level::Error] {
            (0..2 * LINES_MAX).for_each(|_| writer.push(level, line_of(level, format_args!("x"))));
            waiting.push(writer.lock().lines.len());
        }
        assert_eq!(waiting, [LINES_MAX / 2, LINES_MAX / 4 * 3, LINES_MAX, LINES_MAX]);
    }

    #[test]
    fn lines_that_were_left_out_are_said_though_none_follows() {
        let (writer, tell, taken) = slow();
        (0..LINES_MAX + 9).for_each(|number| writer.push(Level::Error, format!("{number}\n")));
        drop(tell);
        let said = |line: &String| line.contains("lines were left out");
        while !taken.lock().expect("whole").iter().any(said) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_line_is_cut_where_a_character_ends() {
        let long = "\u{e9}".repeat(LINE_BYTES_MAX);
        let line = line_of(Level::Info, format_args!("{long}"));
        assert!(line.len() <= LINE_BYTES_MAX && line.ends_with(" ...\n"), "{}", line.len());
        assert!(line_of(Level::Info, format_args!("short")).ends_with(" info  short\n"));
    }

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

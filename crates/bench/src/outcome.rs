//! Why something could not be measured, for people.
//!
//! Always: what is left out is said when it is found, and once more, all of it, when the run ends. That nobody listens any more
//! (a pipe that closed) ends nothing: a run that panicked would leave its processes, mounts and limits behind.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// What came of a step.
pub(crate) type Outcome<T> = Result<T, String>;

/// A failure with this reason.
pub(crate) fn fail<T>(why: impl Into<String>) -> Outcome<T> {
    Err(why.into())
}

/// Says how far the run is.
pub(crate) fn say(text: impl Display) {
    put(io::stdout().lock(), text);
}

/// Says what is not as it should be, and ends nothing.
pub(crate) fn complain(text: impl Display) {
    put(io::stderr().lock(), format!("bench: {text}"));
}

/// Writes a line for whoever reads, if anybody does.
fn put(mut to: impl Write, text: impl Display) {
    let _ = writeln!(to, "{text}").and_then(|()| to.flush());
}

static LEFT_OUT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says what is left out, and why: `what: why`.
pub(crate) fn not_run(text: impl Into<String>) {
    let text = text.into();
    say(format!("NOT RUN: {text}"));
    let mut all = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.contains(&text) {
        all.push(text);
    }
}

/// All that was left out, in the order in which it was said; each once.
pub(crate) fn left_out() -> Vec<String> {
    LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The line that a run ends with: how many rows it made, and what it left out.
pub(crate) fn summary(rows: usize, left_out: &[String]) -> String {
    match left_out {
        [] => format!("rows made: {rows}; nothing was left out"),
        all => format!("rows made: {rows}; left out, {}: {}", all.len(), all.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, Write};

    use super::{left_out, not_run, put, summary};

    /// A pipe whose reader is gone.
    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_line_that_nobody_reads_ends_nothing() {
        put(Closed, "repeat 1 of 3");
        let mut read = Vec::new();
        put(&mut read, "repeat 2 of 3");
        assert_eq!(read, b"repeat 2 of 3\n");
    }

    #[test]
    fn what_is_left_out_is_named_once() {
        for text in ["Ceph: not on this machine", "a disk: no root", "Ceph: not on this machine"] {
            not_run(text);
        }
        let all = left_out();
        assert_eq!(all.iter().filter(|text| text.starts_with("Ceph")).count(), 1, "{all:?}");
        assert!(all.contains(&"a disk: no root".to_owned()), "{all:?}");
    }

    #[test]
    fn the_last_line_names_rows_and_what_is_left_out() {
        assert_eq!(summary(3, &[]), "rows made: 3; nothing was left out");
        let all = ["a: no b".to_owned(), "c: no d".to_owned()];
        assert_eq!(summary(0, &all), "rows made: 0; left out, 2: a: no b; c: no d");
    }
}

//! What a lab stands on: its directory, and how it ends.
//!
//! Not here: programs that it drives, and waiting (`tools`), clusters (`cluster`), cleaning up after a lab (`supervise`).

use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use tools::{
    Failure, Said, TOOL_LIMIT, ensure, is_root, missing, run, text, tool, wait_for,
};

/// How a lab ended that did not fail.
pub(crate) enum Verdict {
    /// It held; with numbers worth reading.
    Passed(String),
    /// It could not be run here.
    NotRun(String),
}

/// What came of a lab or a step of one.
pub(crate) type Outcome<T = Verdict> = Result<T, Failure>;

/// Passed, with numbers worth reading.
pub(crate) fn passed(note: impl Into<String>) -> Outcome {
    Ok(Verdict::Passed(note.into()))
}

/// What a lab is given.
pub(crate) struct Bench {
    /// Its own directory, empty at first; a short path, because sockets lie below it.
    pub(crate) directory: PathBuf,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// Part of `--quick`: shorter loads.
    pub(crate) quick: bool,
    /// Of each node; resources have as many shards.
    pub(crate) threads: u16,
    /// How long a lab runs that lasts as long as one likes.
    pub(crate) hours: f64,
    /// The node's program of the oldest revision that today's must get along with.
    pub(crate) old: Option<PathBuf>,
    /// Why there is none.
    pub(crate) no_old: Option<String>,
    begun: Instant,
}

impl Bench {
    /// For a lab that begins now.
    pub(crate) fn new(directory: PathBuf, seed: u64, quick: bool) -> Bench {
        let (hours, old, no_old) = (1.0, None, None);
        Bench { directory, seed, quick, threads: 1, hours, old, no_old, begun: Instant::now() }
    }

    /// A line about what happens, with the time since the start.
    pub(crate) fn tell(&self, text: impl fmt::Display) {
        println!("    [{:6.2} s] {text}", self.begun.elapsed().as_secs_f64());
    }

    /// `long`, or less of it for `--quick`.
    pub(crate) fn time(&self, long: Duration, quick: Duration) -> Duration {
        if self.quick { quick } else { long }
    }
}

/// Lets time pass in which a load goes on; nothing is synchronised by it.
pub(crate) fn let_run(time: Duration) {
    thread::sleep(time);
}

/// Stops a lab here, with the reason, if tools are missing.
macro_rules! need_tools {
    ($($name:literal),+) => {
        let missing = $crate::bench::missing(&[$($name),+]);
        if !missing.is_empty() {
            let reason = format!("not on this machine: {}", missing.join(", "));
            return Ok($crate::bench::Verdict::NotRun(reason));
        }
    };
}
pub(crate) use need_tools;

/// A program of this project, beside this one.
pub(crate) fn program(name: &str) -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "{} is not there: build it, in the same profile", path.display());
    Ok(path)
}

//! Being told to stop: by Ctrl-C, by SIGTERM, by a terminal that closes.
//!
//! Always: the run then fails at its next step, so that all it started is ended, and its files removed, as after
//! any other failure. A signal that was ignored when the run began (`nohup`) still is.

use std::fs;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::outcome::{Outcome, fail};

/// SIGHUP, SIGINT and SIGTERM.
const SIGNALS: [i32; 3] = [1, 2, 15];

/// Between two looks at a program that runs.
const LOOK: Duration = Duration::from_millis(5);

static TOLD: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Signals are noted from now on, and end nothing by themselves.
pub(crate) fn listen() -> Outcome<()> {
    let told = TOLD.get_or_init(Arc::default);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(&status, signal)) {
        signal_hook::flag::register(signal, Arc::clone(told))
            .map_err(|error| format!("signal {signal}: {error}"))?;
    }
    Ok(())
}

/// Whether a process ignores a signal, by its `status`: a mask in hexadecimal digits, whose lowest bit is signal 1.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Fails once a signal came.
pub(crate) fn check() -> Outcome<()> {
    if TOLD.get().is_some_and(|told| told.load(Ordering::Relaxed)) {
        return fail("told to stop");
    }
    Ok(())
}

/// Waits for the end of a program, and ends it when a signal comes.
pub(crate) fn wait(child: &mut Child) -> Outcome<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            check()?;
            return Ok(status);
        }
        if let Err(why) = check() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            return Err(why);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::is_ignored;

    #[test]
    fn a_hang_up_that_is_ignored_is_known_by_the_kernels_mask() {
        // Of a process under nohup, in which Rust ignores SIGPIPE.
        let status = "Name:\tbench\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert_eq!(
            [1, 2, 13, 15].map(|signal| is_ignored(status, signal)),
            [true, false, true, false]
        );
        assert!(!is_ignored("", 1));
    }
}

//! Being told to stop: by Ctrl-C, by SIGTERM, by a terminal that closes.
//!
//! Always: the run then fails at its next step, so that all it started is ended, and its files removed, as after
//! any other failure.

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
    for signal in SIGNALS {
        signal_hook::flag::register(signal, Arc::clone(told))
            .map_err(|error| format!("signal {signal}: {error}"))?;
    }
    Ok(())
}

/// Fails once a signal came.
pub(crate) fn check() -> Outcome<()> {
    if TOLD.get().is_some_and(|told| told.load(Ordering::Relaxed)) {
        return fail("told to stop: nothing is reported");
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

//! Being told to stop: by Ctrl-C, by SIGTERM, by a terminal that closes.
//!
//! Always: the run then fails at its next step, so that all it started is ended, and its files removed, as after
//! any other failure. A signal that was ignored when the run began (`nohup`) still is.

use std::fs;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

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

/// Waits for the end of a program; ends it, and all of its process group, when a signal comes, and after this time.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Outcome<ExitStatus> {
    wait_unless(child, limit, check)
}

/// The same, also when a signal came: of what clears up.
pub(crate) fn wait_still(child: &mut Child, limit: Duration) -> Outcome<ExitStatus> {
    wait_unless(child, limit, || Ok(()))
}

fn wait_unless(
    child: &mut Child,
    limit: Duration,
    told: impl Fn() -> Outcome<()>,
) -> Outcome<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            told()?;
            return Ok(status);
        }
        let why = match told() {
            Err(why) => why,
            Ok(()) if begun.elapsed() >= limit => too_long(limit),
            Ok(()) => {
                thread::sleep(LOOK);
                continue;
            }
        };
        end(child);
        return fail(why);
    }
}

/// What is said of a program that does not come to its end.
pub(crate) fn too_long(limit: Duration) -> String {
    format!("it was ended, for it had not ended by itself in {} s", limit.as_secs())
}

/// Ends a program, and what it started, if it was given a process group of its own: fio forks for each of several jobs.
pub(crate) fn end(child: &mut Child) {
    // Of one that has ended the number may be another's by now.
    if let Ok(None) = child.try_wait() {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        let _ = child.kill();
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{is_ignored, wait};

    #[test]
    fn a_program_that_does_not_end_is_ended_and_what_it_started_with_it() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped()).process_group(0);
        let mut child = shell.spawn().expect("there is a shell");
        let mut said = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut said).expect("it says one line");
        let why = wait(&mut child, Duration::ZERO).expect_err("it sleeps");
        assert!(why.starts_with("it was ended, "), "{why}");
        let sleeper = Path::new("/proc").join(said.trim());
        // Who takes in orphans may leave them as they ended.
        let state = || {
            let text = std::fs::read_to_string(sleeper.join("stat")).unwrap_or_default();
            text.split(' ').nth(2).unwrap_or("Z").to_owned()
        };
        tools::wait_for("what it started to be gone", Duration::from_secs(60), || {
            tools::ensure!(state() == "Z", "it lives");
            Ok(())
        })
        .expect("it was ended");
    }

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

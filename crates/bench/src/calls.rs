//! System calls of processes, as `perf` counts them.
//!
//! Always: they are counted in a run of their own, for counting costs those who are counted.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine;
use crate::outcome::{Outcome, fail};
use crate::stop;

/// How long perf may take to end when it is told to.
const END_LIMIT: Duration = Duration::from_secs(60);

const EVENT: &str = "raw_syscalls:sys_enter";

/// Why they cannot be counted on this machine; `None`: they can.
pub(crate) fn cannot() -> Option<String> {
    if machine::find("perf").is_none() {
        return Some("no perf on this machine".to_owned());
    }
    let output = Command::new("perf")
        .args(["stat", "-x,", "-e", EVENT, "--", "true"])
        .stdin(Stdio::null())
        .output();
    let said = match output {
        // What it counts it says where errors go.
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    why_not(&said)
}

/// What perf said of one program; `None`: it counted.
fn why_not(said: &str) -> Option<String> {
    if total(said).is_some() {
        return None;
    }
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = lines.collect::<Vec<&str>>().join(" ");
    let said: String = said.chars().take(SHOWN_CHARACTERS).collect();
    Some(format!("perf may not count them here: {said}"))
}

/// Of what perf says, why it does not count.
const SHOWN_CHARACTERS: usize = 200;

/// Processes that are counted.
pub(crate) struct Counter {
    child: Child,
    report: PathBuf,
}

impl Counter {
    pub(crate) fn start(pids: &[u32], scratch: &Path) -> Outcome<Counter> {
        let report = scratch.join("perf.txt");
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let child = Command::new("perf")
            .args(["stat", "-x,", "-e", EVENT, "-p", &pids.join(","), "-o"])
            .arg(&report)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("perf: {error}"))?;
        Ok(Counter { child, report })
    }

    /// How many it were until now.
    pub(crate) fn end(mut self) -> Outcome<u64> {
        let mut interrupt = Command::new("kill");
        // Where it may not count it has ended by now.
        let _ = machine::run(interrupt.args(["-INT", &self.child.id().to_string()]));
        stop::wait(&mut self.child, END_LIMIT).map_err(|why| format!("perf: {why}"))?;
        let text = std::fs::read_to_string(&self.report).unwrap_or_default();
        match total(&text) {
            Some(calls) => Ok(calls),
            None => fail(format!("perf counted nothing of these processes:\n{text}")),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The count in a report of `perf stat -x,`.
fn total(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains(EVENT) && line.contains(','))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{total, why_not};

    #[test]
    fn the_count_of_perf_is_read() {
        let text = "# started on some day\n\n144,,raw_syscalls:sys_enter,1422160,100.00,,\n";
        assert_eq!(total(text), Some(144));
        let text = "<not supported>,,raw_syscalls:sys_enter,0,100.00,,";
        assert_eq!(total(text), None);
    }

    #[test]
    fn where_perf_may_not_count_its_own_words_say_why() {
        let said =
            "event syntax error: 'raw_syscalls:sys_enter'\n    \\___ can't access trace events\n\n";
        let why = why_not(said).expect("it did not count");
        assert!(why.ends_with("\\___ can't access trace events"), "{why}");
        assert_eq!(why_not("29,,raw_syscalls:sys_enter,1119842,100.00,,\n"), None);
    }
}

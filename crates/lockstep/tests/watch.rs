//! `lockstep status --watch`, on a terminal (that of `script`) and in a pipe: what changes is shown, and
//! Ctrl-C ends it and leaves the terminal as it was.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use harness::TestCluster;
use serde_json::Value;

/// A program that goes when its test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A program that hears Ctrl-C, also where the tests themselves were started with that turned off (`make test &` in
/// a script).
fn interruptible(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", program]);
    command
}

impl Running {
    fn start(command: &mut Command) -> (Running, ChildStdout) {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        (Running(child), stdout)
    }
}

/// Gathers what comes; the thread ends with it.
fn gather(mut from: ChildStdout) -> Arc<Mutex<String>> {
    let all = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&all);
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            shared.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    all
}

/// The last whole picture on a terminal, without what moves the cursor and what colours.
fn picture(seen: &str) -> String {
    let last = seen.rsplit("\x1b[H").find(|picture| picture.contains("\x1b[J")).unwrap_or("");
    let mut plain = String::new();
    let mut rest = last;
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain.push_str(before);
        rest = after.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("");
    }
    plain + rest
}

#[test]
fn what_changes_is_shown_on_a_terminal_until_it_is_interrupted() {
    let version = Command::new("script").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        println!("NOT RUN: script (util-linux) is not installed");
        return;
    }
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"]);
    let program = env!("CARGO_BIN_EXE_lockstep");
    // The shell outlives the interrupt, which the terminal sends to both.
    let words = format!(
        "trap : INT; stty -g; {program} status disk --watch; echo \"ended with $?\"; stty -g"
    );
    let mut script = interruptible("script");
    script.args(["--quiet", "--command", &words, "/dev/null"]);
    script.env("LOCKSTEP_DIR", &cluster.directory).env("TERM", "xterm").env("SHELL", "/bin/sh");
    let (mut running, stdout) = Running::start(&mut script);
    let seen = gather(stdout);
    let shows = |words: &str| picture(&seen.lock().unwrap()).contains(words);
    cluster.until("the first picture", || shows("no primary"));
    cluster.done(&["resource", "promote", "disk", "--node", "b"]);
    cluster.until("the new primary", || shows("primary b") && !shows("no primary"));
    cluster.done(&["dev", "kill", "c"]);
    cluster.until("the lost node", || shows("Nodes that do not answer: c"));
    cluster.done(&["dev", "down"]);
    cluster.until("that nobody answers", || !shows("disk"));
    cluster.done(&["dev", "up", "--detach"]);
    cluster.until("all of them again", || shows("disk") && !shows("do not answer"));
    running.0.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    cluster.until("the end", || running.0.try_wait().unwrap().is_some());
    let all = seen.lock().unwrap().clone();
    let modes: Vec<&str> = all
        .split(['\r', '\n'])
        .filter(|line| {
            line.contains(':') && line.chars().all(|c| c.is_ascii_hexdigit() || c == ':')
        })
        .collect();
    assert_eq!(modes.len(), 2, "before and after: {all:?}");
    assert_eq!(modes[0], modes[1], "the terminal's modes are as before");
    assert!(all.contains("ended with 130"), "by the signal: {all:?}");
    for (on, off) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
        assert_eq!(all.matches(on).count(), all.matches(off).count(), "{on:?} is undone");
    }
}

#[test]
fn a_volume_that_grows_says_how_far_it_is_until_it_has_grown() {
    let version = Command::new("script").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        println!("NOT RUN: script (util-linux) is not installed");
        return;
    }
    let cluster = TestCluster::up(3, "file");
    // A slow disk: what is added takes many of its answers one after the other.
    cluster.done(&["dev", "kill", "c"]);
    let settings = cluster.directory.join("c/node.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let faults = "[faults]\nstalls_one_in = 1\nstall_ms = 100\n";
    std::fs::write(&settings, format!("allow_faults = true\n{text}\n{faults}")).unwrap();
    cluster.done(&["dev", "start", "c"]);
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"]);
    cluster.done(&["resource", "promote", "disk", "--node", "a"]);
    cluster.wait("disk", "healthy");
    let program = env!("CARGO_BIN_EXE_lockstep");
    let words = format!("{program} resource resize disk --size 8GiB");
    let mut script = Command::new("script");
    script.args(["--quiet", "--command", &words, "/dev/null"]);
    script.env("LOCKSTEP_DIR", &cluster.directory).env("TERM", "xterm").env("SHELL", "/bin/sh");
    let (mut running, stdout) = Running::start(&mut script);
    let seen = gather(stdout);
    let growth = || cluster.resource("disk")["volumes"][0]["growth"].clone();
    let (mut last, mut shown) = (Value::Null, String::new());
    cluster.until("that a part is done", || {
        last = growth();
        shown = cluster.done(&["status", "disk"]);
        last["done_bytes"].as_u64().is_some_and(|done| done > 0)
    });
    let total = (8 << 30) - (16 << 20);
    assert_eq!((&last["to_bytes"], &last["total_bytes"]), (&(8u64 << 30).into(), &total.into()));
    assert!(last["done_bytes"].as_u64().unwrap() < total, "{last}");
    assert!(shown.contains("volume 0 grows to 8GiB: made zero ["), "{shown}");
    cluster.until("the end", || running.0.try_wait().unwrap().is_some());
    let all = seen.lock().unwrap().clone();
    assert!(all.contains("made zero ["), "a bar: {all:?}");
    assert!(all.contains("volume 0 has 8GiB now"), "{all:?}");
    assert!(growth().is_null());
}

#[test]
fn what_changes_is_told_to_programs_a_line_each() {
    let cluster = TestCluster::up(2, "memory");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "2"]);
    cluster.wait("disk", "in-sync");
    let mut watch = interruptible(env!("CARGO_BIN_EXE_lockstep"));
    watch.args(["status", "disk", "--watch", "--output", "json"]);
    let (mut running, stdout) =
        Running::start(watch.env("LOCKSTEP_DIR", &cluster.directory).env_remove("LOCKSTEPD"));
    let seen = gather(stdout);
    // Whole lines only.
    let told = || -> Vec<Value> {
        let seen = seen.lock().unwrap();
        let lines = seen.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    cluster.until("the first line", || !told().is_empty());
    let first = &told()[0];
    assert_eq!((&first["version"], &first["resources"][0]["name"]), (&1.into(), &"disk".into()));
    assert!(first["resources"][0]["primary"].is_null());
    cluster.done(&["resource", "promote", "disk", "--node", "b"]);
    cluster.until("the new primary", || {
        told().last().is_some_and(|last| last["resources"][0]["primary"] == "b")
    });
    let pid = running.0.id();
    assert!(
        Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success()
    );
    assert_eq!(running.0.wait().unwrap().signal(), Some(2), "as programs end that are interrupted");
}

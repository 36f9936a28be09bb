//! The demonstration: the lines that it ends with, and that the commands it names work as they stand there.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod node_program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Bytes of the volume.
const SIZE_BYTES: u64 = 64 << 20;

/// A directory of a test, where the program is run.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        node_program::node_program();
        let place = std::env::temp_dir().join(format!("ls-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        Place(place)
    }

    /// Runs a line of a shell in `directory`.
    fn shell(line: &str, directory: &Path) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(directory);
        command.env_remove("LOCKSTEPD").env_remove("LOCKSTEP_DIR").output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whatever was left running below it, also by a test that failed.
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let program = env!("CARGO_BIN_EXE_lockstep");
            Command::new(program)
                .arg("--dir")
                .arg(entry.path())
                .args(["dev", "down"])
                .output()
                .ok();
        }
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

#[track_caller]
fn said(output: &Output) -> String {
    let complained = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{complained}");
    said
}

/// The number behind `before` and before `after`.
#[track_caller]
fn number(line: &str, before: &str, after: &str) -> u64 {
    let rest = line.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    rest.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

/// Looks at the five lines with what came out; the commands that follow.
#[track_caller]
fn closing(said: &str) -> Vec<String> {
    let lines: Vec<&str> = said.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("acknowledged ")).expect("its result");
    assert!(number(lines[at], "acknowledged ", "") > 0);
    assert_eq!(lines[at + 1], "lost 0");
    number(lines[at + 2], "longest pause ", " ms");
    let resynced = number(lines[at + 3], "resynced ", &format!(" of {SIZE_BYTES} bytes"));
    assert!(resynced > 0 && resynced <= SIZE_BYTES, "{}", lines[at + 3]);
    assert_eq!(lines[at + 4], "replicas identical");
    assert_eq!(lines[at + 5], "");
    assert!(lines[at + 6].ends_with(':'), "{}", lines[at + 6]);
    let commands = &lines[at + 7..];
    assert_eq!(commands.len(), 3, "three commands to go on: {commands:?}");
    commands.iter().map(|line| line.strip_prefix("  ").unwrap().to_owned()).collect()
}

/// No node of the cluster in `directory` runs.
#[track_caller]
fn is_stopped(directory: &Path) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("--dir").arg(directory).args(["dev", "status", "--output", "json"]);
    let status: Value = serde_json::from_str(&said(&command.output().unwrap())).unwrap();
    status["nodes"].as_array().unwrap().iter().all(|node| node["pid"].is_null())
}

#[test]
fn the_demo_says_what_came_out_and_how_to_go_on() {
    let place = Place::new("demo");
    // Where the program is its directory's own: found only if that is said.
    let here = Path::new(env!("CARGO_BIN_EXE_lockstep")).parent().unwrap();
    let shown = place.0.join("shown");
    let line = format!("./lockstep dev demo --size 64MiB --load 2s --dir {}", shown.display());
    let commands = closing(&said(&Place::shell(&line, here)));
    assert!(is_stopped(&shown), "it leaves nothing running");
    let own = place.0.join("own");
    let own = own.to_str().unwrap();
    let outputs: Vec<String> = commands
        .iter()
        .map(|command| {
            assert!(command.contains("/tmp/lockstep"), "{command}");
            said(&Place::shell(&command.replace("/tmp/lockstep", own), here))
        })
        .collect();
    assert!(outputs[0].contains("\n  ./lockstep resource create disk"), "{}", outputs[0]);
    assert!(outputs[1].contains("nbd://"), "{}", outputs[1]);
    assert!(outputs[2].contains("disk"), "{}", outputs[2]);
}

#[test]
fn the_demo_that_is_kept_goes_on_with_the_commands_it_names() {
    let place = Place::new("kept");
    // A name that a shell would take apart.
    let kept = place.0.join("it's kept");
    let program = env!("CARGO_BIN_EXE_lockstep");
    let line = format!("{program} dev demo --keep --size 64MiB --load 2s --dir \"it's kept\"");
    let commands = closing(&said(&Place::shell(&line, &place.0)));
    assert!(!is_stopped(&kept), "it was asked to leave its nodes running");
    let outputs: Vec<String> =
        commands.iter().map(|command| said(&Place::shell(command, &place.0))).collect();
    assert!(outputs[0].contains("demo") && outputs[0].contains("in-sync"), "{}", outputs[0]);
    assert!(outputs[1].contains("copies"), "{}", outputs[1]);
    assert!(is_stopped(&kept), "the last one stops them");
}

#[test]
fn programs_are_told_the_same() {
    let place = Place::new("json");
    let program = env!("CARGO_BIN_EXE_lockstep");
    let line = format!("{program} dev demo --size 64MiB --load 2s --dir cluster --output json");
    let told: Value = serde_json::from_str(&said(&Place::shell(&line, &place.0))).unwrap();
    assert_eq!((&told["version"], &told["lost"]), (&1.into(), &0.into()));
    assert_eq!(
        (&told["volume_bytes"], &told["replicas_identical"]),
        (&SIZE_BYTES.into(), &true.into())
    );
    assert!(told["acknowledged"].as_u64().unwrap() > 0 && told["longest_pause_ms"].is_u64());
    assert!(is_stopped(&place.0.join("cluster")));
}

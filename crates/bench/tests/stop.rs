//! The benchmark is told to stop in the middle.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a slow machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a process names this path in its command line.
fn is_named(path: &Path) -> bool {
    let name = path.to_str().unwrap().as_bytes();
    let commands = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let own = entry.file_name() == std::process::id().to_string().as_str();
        (!own).then(|| fs::read(entry.path().join("cmdline")).ok()).flatten()
    });
    commands.into_iter().any(|words| words.windows(name.len()).any(|part| part == name))
}

/// Looks again and again until it is so.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_benchmark_that_is_told_to_stop_ends_its_cluster_and_removes_its_files() {
    let program = Path::new(env!("CARGO_BIN_EXE_bench"));
    let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_ok();
    let beside = |name: &str| program.with_file_name(name).is_file();
    if !fio || !beside("lockstep") || !beside("lockstepd") {
        println!("NOT RUN: needs fio, and lockstep and lockstepd beside the benchmark");
        return;
    }
    let place = std::env::temp_dir().join(format!("lsb-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let mut child = Command::new(program)
        .args(["--sanity", "--tables", "record-memory", "--results"])
        .arg(place.join("results"))
        .env("TMPDIR", &place)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let scratch = place.join(format!("lockstep-bench-{}", child.id()));
    wait_for("nodes that run", || is_named(&scratch));
    let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    assert!(!child.wait().unwrap().success(), "it did not do what it was for");
    assert!(!scratch.exists(), "its files are left");
    assert!(!is_named(&scratch), "its processes are left");
    let page = fs::read_to_string(place.join("results").join("latest.md")).unwrap();
    assert!(page.contains("record-memory, and what comes after it: told to stop"), "{page}");
    fs::remove_dir_all(&place).unwrap();
}

//! Runs each lab in a process of its own, and cleans up after it however it ended.
//!
//! Always: when a lab is over (passed, failed, dead, too slow or told to stop) no process of its nodes runs, nothing
//! is mounted below its directory, no loop device stands on a file in it, and the directory is gone, and so is what it has in memory.
//! Only what names the lab's own directory is touched.
//!
//! Not here: what labs do.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::kernels::Seen;

/// Between two looks at something that changes soon.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long the kernel may take to end what was killed.
const CLEAN_LIMIT: Duration = Duration::from_secs(20);

/// Lines of each node's log that are shown when a lab failed.
const LOG_LINES: usize = 12;

/// Where files are memory.
pub(crate) const MEMORY: &str = "/dev/shm";

/// What the child ends with: as test programs do it.
pub(crate) const EXIT_FAILED: u8 = 1;
/// It could not be run here.
pub(crate) const EXIT_NOT_RUN: u8 = 77;

/// What becomes of a lab that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum After {
    /// Everything is ended and removed.
    Clean,
    /// Everything is ended, files are kept.
    Keep,
    /// Nothing is touched.
    Hold,
}

/// How a lab ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// It could not be run here.
    NotRun,
}

/// The directory in memory that belongs to a lab's own. Whoever needs it makes it.
pub(crate) fn memory_of(directory: &Path) -> PathBuf {
    Path::new(MEMORY).join(directory.file_name().unwrap_or_default())
}

/// Runs lab `name` below `directory` with these further words. Returns how it ended, and what a machine has seen meanwhile.
pub(crate) fn supervise(
    name: &str,
    directory: &Path,
    words: &[String],
    own_network: bool,
    limit: Duration,
    after: After,
    stop: &Arc<AtomicBool>,
) -> (End, Seen) {
    let end = match start(name, directory, words, own_network) {
        Ok(child) => watch(child, limit, stop),
        Err(error) => {
            println!("    cannot start it: {error}");
            End::Failed
        }
    };
    let (failed, seen) = (end == End::Failed, Seen::read(directory));
    if failed {
        show_state(directory);
        show_logs(directory);
    }
    if failed && after == After::Hold {
        println!("    left as it is, processes and all: {}", directory.display());
        if own_network {
            println!("    its network: nsenter --net --target PROCESS");
        }
        return (end, seen);
    }
    if let Err(left) = clean(directory, failed && after == After::Keep) {
        println!("    it left behind: {left}");
        return (End::Failed, seen);
    }
    (end, seen)
}

fn start(
    name: &str,
    directory: &Path,
    words: &[String],
    own_network: bool,
) -> std::io::Result<Child> {
    fs::create_dir_all(directory)?;
    let own = std::env::current_exe()?;
    let mut command = if own_network {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]).arg(own);
        command
    } else {
        Command::new(own)
    };
    command
        .arg("--inside")
        .arg(directory)
        .args(words)
        .arg(name)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
}

fn watch(mut child: Child, limit: Duration, stop: &Arc<AtomicBool>) -> End {
    let begun = Instant::now();
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let end = loop {
        match child.try_wait() {
            Ok(Some(status)) => match status.code() {
                Some(0) => break End::Passed,
                Some(code) if code == i32::from(EXIT_NOT_RUN) => break End::NotRun,
                Some(code) if code == i32::from(EXIT_FAILED) => break End::Failed,
                _ => {
                    println!("    it died: {status}");
                    break End::Failed;
                }
            },
            Ok(None) if begun.elapsed() > limit => {
                println!("    it ran longer than {} s", limit.as_secs());
                break End::Failed;
            }
            Ok(None) if stop.load(Ordering::Relaxed) => break End::Failed,
            Ok(None) => thread::sleep(LOOK_INTERVAL),
            Err(error) => {
                println!("    it cannot be waited for: {error}");
                break End::Failed;
            }
        }
    };
    // Its tools are in its group; none may be left.
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    end
}

/// How the resources of every cluster are, as the command line tells it.
fn show_state(directory: &Path) {
    let Ok(program) = crate::bench::program("lockstep") else { return };
    let Ok(entries) = fs::read_dir(directory) else { return };
    for place in entries.flatten().map(|entry| entry.path()) {
        if !place.join("cluster.json").is_file() {
            continue;
        }
        for words in [&["status"][..], &["explain", "disk"][..]] {
            let mut command = Command::new(&program);
            command.arg("--dir").arg(&place).args(words);
            let Ok(said) = crate::bench::run(&mut command, CLEAN_LIMIT) else { continue };
            for line in said.out.lines().chain(said.err.lines()) {
                println!("        {line}");
            }
        }
    }
}

/// The end of every node's log, for whoever looks into a failure.
fn show_logs(directory: &Path) {
    for path in logs(directory, 3) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines: Vec<&str> = text.lines().collect();
        println!("    {} ends with:", path.display());
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            println!("        {line}");
        }
    }
}

fn logs(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && depth > 0 {
            found.extend(logs(&path, depth - 1));
        } else if path.file_name().is_some_and(|name| name == "log") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Ends everything that names `directory`, and removes it.
fn clean(directory: &Path, keep: bool) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let processes = processes_of(directory);
        for &pid in &processes {
            let _ = kill_process(pid, Signal::KILL);
        }
        // A loop device names the file that it stands on by a path, which is lost with the mount that the
        // file is on: loop devices go before those.
        unmount(directory, |source| source.starts_with("/dev/loop"));
        detach_loops(directory);
        let loops = loops_below(directory);
        if loops.is_empty() {
            unmount(directory, |_| true);
        }
        let mounts = mounts_below(directory, |_| true);
        let left = processes.len() + mounts.len() + loops.len();
        if left == 0 {
            break;
        }
        if begun.elapsed() > CLEAN_LIMIT {
            return Err(format!(
                "processes {processes:?}, mounts {mounts:?}, loop devices {loops:?}"
            ));
        }
        thread::sleep(LOOK_INTERVAL);
    }
    let memory = memory_of(directory);
    let all = [Some(directory), Some(memory.as_path()).filter(|memory| memory.exists())];
    for place in all.into_iter().flatten() {
        match keep {
            true => println!("    kept: {}", place.display()),
            false => fs::remove_dir_all(place)
                .map_err(|error| format!("{}: {error}", place.display()))?,
        }
    }
    Ok(())
}

/// Processes whose command line has a word that is, or lies below, `directory`, or that work there: those that a database makes
/// name themselves otherwise.
fn processes_of(directory: &Path) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = rustix::process::getpid();
    let wanted = directory.as_os_str().as_encoded_bytes();
    let is_named = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.split(|&byte| byte == 0)
            .any(|word| word.windows(wanted.len().max(1)).any(|part| part == wanted))
    };
    let works_there = |pid: &Pid| {
        let place = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero()));
        place.is_ok_and(|place| place.starts_with(directory))
    };
    let named = |pid: &Pid| *pid != own && !is_zombie(*pid) && (is_named(pid) || works_there(pid));
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(named)
        .collect()
}

/// Gone but for the note that waits for its parent.
fn is_zombie(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else {
        return true;
    };
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

/// Where something is mounted below `directory` whose source is wanted.
fn mounts_below(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let Ok(text) = fs::read_to_string("/proc/self/mounts") else { return Vec::new() };
    let mut found: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(' ').next().zip(line.split(' ').nth(1)))
        .filter(|(source, _)| wanted(source))
        .map(|(_, place)| place)
        .filter(|place| Path::new(place).starts_with(directory))
        .map(str::to_owned)
        .collect();
    // The innermost first.
    found.sort_by_key(|place| std::cmp::Reverse(place.len()));
    found
}

fn unmount(directory: &Path, wanted: impl Fn(&str) -> bool) {
    for place in mounts_below(directory, wanted) {
        let quiet = |command: &mut Command| {
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        quiet(Command::new("umount").args(["-l", &place]));
    }
}

/// Loop devices that stand on files below `directory`.
fn loops_below(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let on_it = |name: &String| {
        let path = format!("/sys/block/{name}/loop/backing_file");
        fs::read_to_string(path).is_ok_and(|file| Path::new(file.trim()).starts_with(directory))
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("loop"))
        .filter(on_it)
        .collect()
}

fn detach_loops(directory: &Path) {
    for name in loops_below(directory) {
        let device = format!("/dev/{name}");
        let _ = Command::new("losetup")
            .args(["-d", &device])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

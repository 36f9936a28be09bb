//! A node's process: starting, finding and ending it.
//!
//! Always: a signal goes only to a process whose command line names the node's own directory, so a
//! stale note of a number never ends a stranger.
//!
//! Not here: what the node's files say (`up`).

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, setsid};
use wire::admin::with_quotes;

use crate::admin::Node;
use crate::cluster::{DevCluster, NodeEntry};
use crate::dev::up::NVME_PORT;
use crate::problem::{
    CLUSTERS_MIXED, FILE, FOREIGN_PROCESS, NO_PROGRAM, NODE_DIED, Problem, TIMED_OUT,
};
use crate::unix::connect_within;

/// How long a node may take until it answers: it reads its metadata and makes its buffers.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a node may take to stop in good order before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How long the kernel may take to end a killed process.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks at something that changes soon.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What a look at one address may take.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// Looks at a process that is just becoming another program, at most: a second in all.
const EXEC_LOOKS_MAX: u32 = 100;

/// The word by which this program starts itself as a node. It is none of the command line's, which help and
/// completions offer.
pub(crate) const BECOME_NODE: &str = "become-node";

/// Lines of a log that are shown when its node died.
const LOG_LINES: usize = 8;

/// The data plane's program: what LOCKSTEPD names, else beside this one.
pub(crate) fn program() -> Result<PathBuf, Problem> {
    let path = match std::env::var_os("LOCKSTEPD") {
        Some(path) => crate::cluster::absolute(Path::new(&path))?,
        None => own_program()?.with_file_name("lockstepd"),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Problem::new(NO_PROGRAM, format!("{} is not there", path.display())))
}

fn own_program() -> Result<PathBuf, Problem> {
    std::env::current_exe()
        .map_err(|error| Problem::new(FILE, format!("this program's own path is unknown: {error}")))
}

/// A node's process, just started.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    pid: u32,
    /// Bytes that were in its log before.
    log_before: u64,
}

/// Starts a node. It outlives this program.
pub(crate) fn start(cluster: &DevCluster, node: &NodeEntry) -> Result<Started, Problem> {
    let directory = cluster.directory_of(node);
    refuse_foreign(cluster, node, &directory)?;
    let path = log_path(&directory);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| Problem::file(&path, &error))?;
    let log_before = log.metadata().map_err(|error| Problem::file(&path, &error))?.len();
    let errors = log.try_clone().map_err(|error| Problem::file(&path, &error))?;
    let program = program()?;
    // By way of this program, which leaves the terminal's session and then becomes the node.
    let child = Command::new(own_program()?)
        .arg(BECOME_NODE)
        .arg(&program)
        .arg(&directory)
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| Problem::file(&program, &error))?;
    let note = note_path(&directory);
    fs::write(&note, format!("{}\n", child.id())).map_err(|error| Problem::file(&note, &error))?;
    Ok(Started { pid: child.id(), log_before })
}

/// A directory that holds a node of another cluster would be started as that node, with its addresses. What cannot be
/// read the node itself complains about.
fn refuse_foreign(cluster: &DevCluster, node: &NodeEntry, directory: &Path) -> Result<(), Problem> {
    let path = directory.join("node.toml");
    let text = fs::read_to_string(&path).ok();
    let settings = text.and_then(|text| with_quotes(&text).parse::<toml::Table>().ok());
    let Some(settings) = settings else { return Ok(()) };
    let foreign = settings.get("cluster").and_then(toml::Value::as_str);
    let foreign = foreign.filter(|other| *other != cluster.file.cluster);
    let number = settings.get("node").and_then(toml::Value::as_integer);
    let other = number.filter(|number| *number != i64::from(node.id));
    let message = match (foreign, other) {
        (Some(foreign), _) => format!("of cluster {foreign}, not {}", cluster.file.cluster),
        (None, Some(number)) => format!("number {number}, not {}", node.id),
        (None, None) => return Ok(()),
    };
    let message = format!("{}: this is a node {message}; it was not started", path.display());
    Err(Problem::new(CLUSTERS_MIXED, message))
}

/// Leaves the terminal's session and becomes `program`. Returns only if that fails.
pub(crate) fn become_node(program: &Path, directory: &Path) -> Problem {
    if let Err(error) = setsid() {
        return Problem::new(FILE, format!("cannot leave the terminal's session: {error}"));
    }
    let error = Command::new(program).arg("node").arg("--dir").arg(directory).exec();
    Problem::file(program, &error)
}

/// Waits until a node that was started answers.
pub(crate) fn wait_until_it_answers(
    cluster: &DevCluster,
    node: &NodeEntry,
    Started { pid, log_before }: Started,
) -> Result<(), Problem> {
    let admin: Node = cluster.admin_of(node);
    let begun = Instant::now();
    loop {
        let answers = admin.ask(wire::admin::Command::Ping {}).is_ok();
        // Asked for after the answer: an answer of a node that has ended since is none.
        if answers && running(cluster, node) == Some(pid) {
            return Ok(());
        }
        if running(cluster, node) != Some(pid) {
            let log = log_path(&cluster.directory_of(node));
            let message =
                format!("node {} ended at once.{}", node.name, last_lines(&log, log_before));
            return Err(Problem::new(NODE_DIED, message));
        }
        if begun.elapsed() > START_LIMIT {
            let seconds = START_LIMIT.as_secs();
            let message = format!("node {} does not answer after {seconds} s", node.name);
            return Err(Problem::new(TIMED_OUT, message));
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// The number of a node's process if it runs.
pub(crate) fn running(cluster: &DevCluster, node: &NodeEntry) -> Option<u32> {
    let directory = cluster.directory_of(node);
    let pid: u32 = fs::read_to_string(note_path(&directory)).ok()?.trim().parse().ok()?;
    for _ in 0..EXEC_LOOKS_MAX {
        if !is_alive(pid) {
            return None;
        }
        match names(pid, &directory) {
            Some(ours) => return ours.then_some(pid),
            None => thread::sleep(LOOK_INTERVAL),
        }
    }
    None
}

/// Ends a node as a crash would. Returns false if it was not running.
pub(crate) fn kill(cluster: &DevCluster, node: &NodeEntry) -> Result<bool, Problem> {
    let Some(pid) = running(cluster, node) else { return Ok(false) };
    signal(cluster, node, pid, Signal::KILL)?;
    if !gone_within(cluster, node, KILL_LIMIT) {
        return Err(Problem::new(TIMED_OUT, format!("node {} does not end", node.name)));
    }
    Ok(true)
}

/// Asks nodes to stop in good order, all at once, and kills those that do not in time. Returns how
/// many had to be killed.
pub(crate) fn stop(cluster: &DevCluster, nodes: &[&NodeEntry]) -> Result<usize, Problem> {
    for node in nodes {
        if let Some(pid) = running(cluster, node) {
            signal(cluster, node, pid, Signal::TERM)?;
        }
    }
    let deadline = Instant::now() + STOP_LIMIT;
    let mut killed = 0;
    for node in nodes {
        let left = deadline.saturating_duration_since(Instant::now());
        if !gone_within(cluster, node, left) && kill(cluster, node)? {
            killed += 1;
        }
        let note = note_path(&cluster.directory_of(node));
        match fs::remove_file(&note) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Problem::file(&note, &error));
            }
            _ => {}
        }
    }
    Ok(killed)
}

fn signal(cluster: &DevCluster, node: &NodeEntry, pid: u32, signal: Signal) -> Result<(), Problem> {
    let foreign =
        || Problem::new(FOREIGN_PROCESS, format!("process {pid} is not node {}", node.name));
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(foreign)?;
    match kill_process(number, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) if running(cluster, node) == Some(pid) => {
            let message = format!("node {} (process {pid}): {error}", node.name);
            Err(Problem::new(FOREIGN_PROCESS, message))
        }
        Err(_) => Err(foreign()),
    }
}

fn gone_within(cluster: &DevCluster, node: &NodeEntry, limit: Duration) -> bool {
    let begun = Instant::now();
    while running(cluster, node).is_some() || listens(cluster, node) {
        if begun.elapsed() >= limit {
            return false;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    true
}

/// Whether somebody would be taken in still where a node listened: the kernel takes io_uring's rings down after the process that
/// had them, and until then, for some milliseconds, they hold its sockets.
fn listens(cluster: &DevCluster, node: &NodeEntry) -> bool {
    let ports = [node.listen, node.nbd, SocketAddr::new(node.address, NVME_PORT)];
    let taken_in = |address: &SocketAddr| match TcpStream::connect_timeout(address, LOOK_LIMIT) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    connect_within(&cluster.admin_of(node).socket, LOOK_LIMIT).is_ok() || ports.iter().any(taken_in)
}

/// Neither gone nor a zombie, which waits only for its parent. Its first thread may be one before the others have ended, and as
/// long as one of them lasts so do its files and sockets.
fn is_alive(pid: u32) -> bool {
    let state_of = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        // The name before the state is in brackets and may hold anything.
        stat.rsplit(')').next()?.trim().chars().next()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(state_of).any(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether the command line of `pid` names `directory`. `None`: it has none at this moment, because
/// it is just becoming another program. It is read piece by piece, so that the first can be of the one and the rest of
/// the other: only what is read twice counts. A process that was just begun shows for a moment, also to the one who began it, what that one
/// shows: this program, and not as a node.
fn names(pid: u32, directory: &Path) -> Option<bool> {
    let read = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = read();
    let wanted = directory.as_os_str().as_encoded_bytes();
    let ours = line.split(|&byte| byte == 0).any(|word| word == wanted);
    let begins = !ours && fs::read_link(format!("/proc/{pid}/exe")).ok() == own_program().ok();
    let settled = !line.is_empty() && line == read() && !begins;
    settled.then_some(ours)
}

fn note_path(directory: &Path) -> PathBuf {
    directory.join("pid")
}

/// Where a node's log is.
pub(crate) fn log_path(directory: &Path) -> PathBuf {
    directory.join("log")
}

/// The end of what a node's present process has written to its log, whose first bytes are of earlier ones.
fn last_lines(path: &Path, before: u64) -> String {
    let Ok(bytes) = fs::read(path) else { return String::new() };
    let from = usize::try_from(before).map_or(bytes.len(), |before| before.min(bytes.len()));
    let text = String::from_utf8_lossy(&bytes[from..]);
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
    let mut shown = format!(" {} says of this run:", path.display());
    for line in tail {
        shown.push_str("\n    ");
        shown.push_str(line);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::names;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_still_shows_who_began_it_is_not_judged_yet() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(names(std::process::id(), nowhere), None);
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is there");
        while names(other.id(), nowhere).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(names(other.id(), nowhere), Some(false));
        drop(other.stdin.take());
        other.wait().expect("it ends");
    }
}

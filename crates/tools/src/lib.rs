//! Programs that tests drive, and disks and emulated machines that they make: what labs and benchmarks stand on.
//!
//! Always: whatever is waited for has a deadline, and who waits in vain says for what.
//!
//! Not here: clusters, what is left when a test fails, what is measured.

pub mod database;
mod disk;
pub mod guest;

pub use disk::{Device, Disk, Running, has_loops, no_disk, unmount};

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at something that changes soon.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a program may run that is expected to end by itself.
pub const TOOL_LIMIT: Duration = Duration::from_secs(120);

/// Characters of a program's output that are shown when it fails.
const SHOWN_CHARACTERS: usize = 1200;

/// Why something failed, for people.
#[derive(Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(error.to_string())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Failure {
        Failure(text.to_owned())
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.0
    }
}

/// What came of a step.
pub type Outcome<T> = Result<T, Failure>;

/// Fails with the text unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::Failure(format!($($text)*)));
        }
    };
}
/// Waits until `done` gives something; fails after `limit`, naming `what` and the last reason.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<T, Failure>,
) -> Outcome<T> {
    let begun = Instant::now();
    loop {
        match done() {
            Ok(found) => return Ok(found),
            Err(reason) if begun.elapsed() > limit => {
                return Err(Failure(format!("waited {} s for {what}: {reason}", limit.as_secs())));
            }
            Err(_) => thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// Waits until a node's process has written to its log all that it has said so far: the thread that does that sleeps then, as it does in one
/// that is stopped. One that is gone has.
pub fn wait_logged(pid: u32) -> Outcome<()> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let writes = |task: PathBuf| {
        let text = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let state = text("stat").rsplit_once(") ").map(|(_, rest)| rest.starts_with(['S', 'T']));
        text("comm").trim_end() == "log" && state == Some(false)
    };
    wait_for("a node's log to be written", TOOL_LIMIT, || {
        let mut each = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        ensure!(!each.any(|task| writes(task.path())), "it is being written");
        Ok(())
    })
}

/// What a program said.
#[derive(Debug)]
pub struct Said {
    /// How it was called.
    pub command: String,
    /// `None`: it was ended by a signal, or by us because it ran too long.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Standard output if it succeeded.
    pub fn ok(self) -> Outcome<String> {
        if self.code == Some(0) { Ok(self.out) } else { Err(self.failure("should have succeeded")) }
    }

    /// A failure that shows everything.
    pub fn failure(&self, why: &str) -> Failure {
        let end = match self.code {
            Some(code) => format!("exit code {code}"),
            None => "ended by a signal or a time limit".to_owned(),
        };
        Failure(format!("`{}` {why}: {end}\n{}{}", self.command, tail(&self.out), tail(&self.err)))
    }

    /// Both outputs, in lower case, to look for words in.
    pub fn words(&self) -> String {
        format!("{}{}", self.out, self.err).to_lowercase()
    }
}

fn tail(text: &str) -> &str {
    let from = text.char_indices().rev().nth(SHOWN_CHARACTERS).map_or(0, |(at, _)| at);
    &text[from..]
}

/// Runs a program to its end, or ends it after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Outcome<Said> {
    let shown = shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure(format!("{shown}: {error}")))?;
    let out = child.stdout.take().map(read_all);
    let err = child.stderr.take().map(read_all);
    let begun = Instant::now();
    let code = loop {
        match child.try_wait()? {
            Some(status) => break status.code(),
            None if begun.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        let bytes = reader.map(|reader| reader.join().unwrap_or_default()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Said { command: shown, code, out: text(out), err: text(err) })
}

fn read_all(mut from: impl io::Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// The words of a command.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

/// Runs a tool that must succeed; returns its standard output.
pub fn tool(name: &str, arguments: &[&str]) -> Outcome<String> {
    run(Command::new(name).args(arguments), TOOL_LIMIT)?.ok()
}

/// Which of these programs are not on the search path.
pub fn missing(names: &[&str]) -> Vec<String> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> =
        std::env::split_paths(&searched).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let there = |name: &&&str| !places.iter().any(|place| place.join(name).is_file());
    names.iter().filter(there).map(|&name| name.to_owned()).collect()
}

/// Whether this process may make namespaces, loop devices and mounts.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

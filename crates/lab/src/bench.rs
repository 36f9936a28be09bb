//! What a lab stands on: its directory, the programs it drives, how it ends, and how it waits.
//!
//! Always: whatever is waited for has a deadline, and who waits in vain says for what.
//!
//! Not here: clusters (`cluster`), cleaning up after a lab (`supervise`).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at something that changes soon.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a program may run that is expected to end by itself.
pub(crate) const TOOL_LIMIT: Duration = Duration::from_secs(120);

/// Characters of a program's output that are shown when it fails.
const SHOWN_CHARACTERS: usize = 1200;

/// Why a lab failed, for people.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

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

/// How a lab ended that did not fail.
pub(crate) enum Verdict {
    /// It held; with numbers worth reading.
    Passed(String),
    /// It could not be run here.
    NotRun(String),
}

/// What came of a lab or a step of one.
pub(crate) type Outcome<T = Verdict> = Result<T, Failure>;

/// Passed, with numbers worth reading.
pub(crate) fn passed(note: impl Into<String>) -> Outcome {
    Ok(Verdict::Passed(note.into()))
}

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::bench::Failure(format!($($text)*)));
        }
    };
}
pub(crate) use ensure;

/// What a lab is given.
pub(crate) struct Bench {
    /// Its own directory, empty at first; a short path, because sockets lie below it.
    pub(crate) directory: PathBuf,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// Part of `--quick`: shorter loads.
    pub(crate) quick: bool,
    /// Of each node; resources have as many shards.
    pub(crate) threads: u16,
    /// How long a lab runs that lasts as long as one likes.
    pub(crate) hours: f64,
    /// The node's program of the oldest revision that today's must get along with.
    pub(crate) old: Option<PathBuf>,
    /// Why there is none.
    pub(crate) no_old: Option<String>,
    begun: Instant,
}

impl Bench {
    /// For a lab that begins now.
    pub(crate) fn new(directory: PathBuf, seed: u64, quick: bool) -> Bench {
        let (hours, old, no_old) = (1.0, None, None);
        Bench { directory, seed, quick, threads: 1, hours, old, no_old, begun: Instant::now() }
    }

    /// A line about what happens, with the time since the start.
    pub(crate) fn tell(&self, text: impl fmt::Display) {
        println!("    [{:6.2} s] {text}", self.begun.elapsed().as_secs_f64());
    }

    /// `long`, or less of it for `--quick`.
    pub(crate) fn time(&self, long: Duration, quick: Duration) -> Duration {
        if self.quick { quick } else { long }
    }
}

/// Waits until `done` gives something; fails after `limit`, naming `what` and the last reason.
pub(crate) fn wait_for<T>(
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

/// Lets time pass in which a load goes on; nothing is synchronised by it.
pub(crate) fn let_run(time: Duration) {
    thread::sleep(time);
}

/// What a program said.
#[derive(Debug)]
pub(crate) struct Said {
    /// How it was called.
    pub(crate) command: String,
    /// `None`: it was ended by a signal, or by us because it ran too long.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Standard output if it succeeded.
    pub(crate) fn ok(self) -> Outcome<String> {
        if self.code == Some(0) { Ok(self.out) } else { Err(self.failure("should have succeeded")) }
    }

    /// A failure that shows everything.
    pub(crate) fn failure(&self, why: &str) -> Failure {
        let end = match self.code {
            Some(code) => format!("exit code {code}"),
            None => "ended by a signal or a time limit".to_owned(),
        };
        Failure(format!("`{}` {why}: {end}\n{}{}", self.command, tail(&self.out), tail(&self.err)))
    }

    /// Both outputs, in lower case, to look for words in.
    pub(crate) fn words(&self) -> String {
        format!("{}{}", self.out, self.err).to_lowercase()
    }
}

fn tail(text: &str) -> &str {
    let from = text.char_indices().rev().nth(SHOWN_CHARACTERS).map_or(0, |(at, _)| at);
    &text[from..]
}

/// Runs a program to its end, or ends it after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Outcome<Said> {
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
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Outcome<String> {
    run(Command::new(name).args(arguments), TOOL_LIMIT)?.ok()
}

/// Which of these programs are not on the search path.
pub(crate) fn missing(names: &[&str]) -> Vec<String> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> =
        std::env::split_paths(&searched).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let there = |name: &&&str| !places.iter().any(|place| place.join(name).is_file());
    names.iter().filter(there).map(|&name| name.to_owned()).collect()
}

/// Stops a lab here, with the reason, if tools are missing.
macro_rules! need_tools {
    ($($name:literal),+) => {
        let missing = $crate::bench::missing(&[$($name),+]);
        if !missing.is_empty() {
            let reason = format!("not on this machine: {}", missing.join(", "));
            return Ok($crate::bench::Verdict::NotRun(reason));
        }
    };
}
pub(crate) use need_tools;

/// Whether this process may make namespaces, loop devices and mounts.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program of this project, beside this one.
pub(crate) fn program(name: &str) -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "{} is not there: build it, in the same profile", path.display());
    Ok(path)
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

//! The machine that measures: what it is, which tools it has, and what processes cost on it.

mod disk;

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::outcome::{Outcome, fail};
use crate::stop;

/// Ticks of the kernel's clock in a second, in which `/proc` counts (`USER_HZ` of every Linux).
pub(crate) const TICKS_PER_SECOND: u64 = 100;

/// What figures of this run hold for.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// Load average of a minute when the run began.
    pub(crate) load_before: String,
    /// What the run's files lie on.
    pub(crate) disk: String,
    pub(crate) file_system: String,
    /// Versions of the programs beside ours, as they say them.
    pub(crate) tools: Vec<String>,
}

/// Programs whose versions matter, how they are asked, and for which tables; for all if none is named.
const TOOLS: [(&str, &[&str]); 11] = [
    ("fio", &[]),
    ("perf", &[]),
    ("nbdkit", &["record-memory", "record-file", "depth", "mirror", "databases", "failover"]),
    ("qemu-nbd", &["record-file"]),
    ("ceph", &["record-file"]),
    ("nbdfuse", &["mirror", "databases"]),
    ("nbdcopy", &["failover"]),
    ("mariadbd", &["databases"]),
    ("sysbench", &["databases"]),
    ("pg_config", &["databases"]),
    ("qemu-system-x86_64", &["drbd"]),
];

/// The versions of those that are here, and that a run with these tables uses.
fn tools(wants: impl Fn(&str) -> bool) -> Vec<String> {
    let wanted = |tables: &[&str]| tables.is_empty() || tables.iter().any(|table| wants(table));
    let tools = TOOLS.into_iter().filter(|(_, tables)| wanted(tables));
    tools.filter_map(|(tool, _)| Some(version(tool, &said(tool)?))).collect()
}

/// What a program says of its version; `None`: it is not here.
fn said(tool: &str) -> Option<String> {
    let path = find(tool)?;
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first line of that, with the program's name before it unless it says that itself.
fn version(tool: &str, said: &str) -> String {
    let line = said.lines().next().unwrap_or("unknown").trim();
    // Of a build that is known by its number the rest says where it was made.
    let line = line.split(" (").next().unwrap_or(line);
    let names = line.to_lowercase().contains(tool) || tool == "pg_config";
    if names { line.to_owned() } else { format!("{tool} {line}") }
}

impl Machine {
    /// This one, for a run whose files lie there, and that wants these tables.
    pub(crate) fn describe(scratch: &Path, wants: impl Fn(&str) -> bool) -> Machine {
        let (disk, file_system) = place_of(scratch);
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown");
            value.trim().to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kibibytes: u64 =
            memory.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default();
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kibibytes >> 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            disk,
            file_system,
            tools: tools(wants),
        }
    }
}

/// The disk and the file system that a path is on, in words.
pub(crate) fn place_of(path: &Path) -> (String, String) {
    disk::describe(path)
}

/// Where a tool is, if it is on the search path.
pub(crate) fn find(tool: &str) -> Option<PathBuf> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&searched).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(tool)).find(|path| path.is_file())
}

/// Milliseconds of processor time that these processes have used, all their threads together.
pub(crate) fn processor_ms(pids: &[u32]) -> Outcome<u64> {
    let mut ticks = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        // The name in parentheses may hold anything.
        let rest = text.rsplit(')').next().unwrap_or_default();
        let words: Vec<&str> = rest.split_whitespace().collect();
        let word = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        match (word(11), word(12)) {
            (Some(user), Some(system)) => ticks += user + system,
            _ => return fail(format!("{path} is not as expected")),
        }
    }
    Ok(ticks * 1000 / TICKS_PER_SECOND)
}

/// Memory that a process holds at present, in KiB.
pub(crate) fn resident_kib(pid: u32) -> Outcome<u64> {
    memory_kib(pid, "VmRSS:")
}

/// A figure that the kernel has of a process's memory, in KiB.
pub(crate) fn memory_kib(pid: u32, figure: &str) -> Outcome<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(figure));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("{path} is not as expected"))
}

/// How long a program may run of which nobody knows how long it takes: volumes are filled, and waited for for ten minutes.
const RUN_LIMIT: Duration = Duration::from_secs(1200);

/// Runs a program to its end; its standard output, if it succeeded.
pub(crate) fn run(command: &mut Command) -> Outcome<String> {
    let shown = shown(command);
    succeeded(&shown, &output(command)?)
}

/// The same, also when the run was told to stop: what clears up.
pub(crate) fn run_still(command: &mut Command) -> Outcome<String> {
    let shown = shown(command);
    succeeded(&shown, &carried_out(command, stop::wait_still)?)
}

/// The same, whether it succeeds or not: all that it says.
pub(crate) fn output(command: &mut Command) -> Outcome<Output> {
    stop::check()?;
    carried_out(command, stop::wait)
}

fn succeeded(shown: &str, output: &Output) -> Outcome<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    fail(format!("{shown}: {}\n{text}{said}", output.status))
}

fn carried_out(
    command: &mut Command,
    wait: fn(&mut Child, Duration) -> Outcome<ExitStatus>,
) -> Outcome<Output> {
    let shown = shown(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{shown}: {error}"))?;
    let (out, err) = (child.stdout.take().map(read_all), child.stderr.take().map(read_all));
    // Of one that had to be ended nobody waits for the rest: who else holds its pipes may go on.
    let status = wait(&mut child, RUN_LIMIT).map_err(|why| format!("{shown}: {why}"))?;
    let bytes = |reader: Option<JoinHandle<Vec<u8>>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    Ok(Output { status, stdout: bytes(out), stderr: bytes(err) })
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// Starts a program that hears and says nothing, in a process group of its own.
pub(crate) fn start_silent(command: &mut Command) -> Outcome<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map_err(|error| format!("{}: {error}", shown(command)))
}

/// The words of a command.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_version_names_its_program() {
        assert_eq!(version("fio", "fio-3.33\n"), "fio-3.33");
        assert_eq!(version("nbdcopy", "nbdcopy 1.14.2\nlibnbd 1.14.2\n"), "nbdcopy 1.14.2");
        let said = "qemu-nbd 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright\n";
        assert_eq!(version("qemu-nbd", said), "qemu-nbd 7.2.22");
        assert_eq!(version("pg_config", "PostgreSQL 15.18 (Debian 15.18-0)\n"), "PostgreSQL 15.18");
        assert_eq!(version("nbdfuse", "1.14.2"), "nbdfuse 1.14.2");
        assert_eq!(version("other", ""), "other unknown");
    }
}

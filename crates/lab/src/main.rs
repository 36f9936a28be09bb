//! The lab: one program that tests the real programs, `lockstep` and `lockstepd`, from outside.
//!
//! Clusters of real processes on loopback addresses, which are killed, frozen and fed with bad input
//! while clients of our own and of strangers use the volumes. What the simulator proves about
//! decisions, the lab shows for everything around them: sockets, files, processes, the command line.
//!
//! `lab` runs everything, `lab --quick` what fits into a few minutes, `lab NAME…` these; it drives the
//! programs that lie beside it and builds nothing. Described in `docs/lab.md`.
//!
//! Always: each lab runs in a process of its own below a directory of its own, and in a network namespace of its own where
//! one can be had, and nothing of it is left afterwards (`supervise`).

/// As the standard library's, but that nobody may be left to read it keeps nobody from cleaning up.
macro_rules! println {
    ($($word:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($word)*);
    }};
}

mod bench;
mod cluster;
mod history;
mod kernels;
mod labs;
mod load;
mod relay;
mod supervise;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;

use bench::{Bench, Verdict};
use kernels::Seen;
use labs::{LABS, Lab, Pace};
use supervise::{After, EXIT_FAILED, EXIT_NOT_RUN, End, supervise};

/// SIGHUP, which who began it may have it ignore (`nohup`).
const HANG_UP: i32 = 1;

/// SIGHUP, SIGINT and SIGTERM.
const STOP_SIGNALS: [i32; 3] = [HANG_UP, 2, 15];

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "lab", about = "Tests with the real programs")]
struct Arguments {
    /// Which labs; all if none is named. A name's beginning stands for all that begin so
    names: Vec<String>,
    /// List the labs
    #[arg(long)]
    list: bool,
    /// Only those that are quick, with short loads
    #[arg(long)]
    quick: bool,
    /// Those that take minutes each, too
    #[arg(long)]
    long: bool,
    /// Seed of everything random; by default it differs each time and is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Threads of each node, and shards of each resource
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Keep the directory of a lab that failed
    #[arg(long)]
    keep: bool,
    /// Leave a lab that failed as it is, processes and all
    #[arg(long)]
    hold: bool,
    /// How long `endurance` lasts, in hours
    #[arg(long, value_name = "HOURS", default_value_t = 1.0, value_parser = hours, allow_negative_numbers = true)]
    hours: f64,
    /// The node's program of the oldest revision that today's must get along with
    #[arg(long, hide = true, value_name = "FILE")]
    old: Option<PathBuf>,
    /// Why there is none
    #[arg(long, hide = true, value_name = "REASON", conflicts_with = "old")]
    no_old: Option<String>,
    /// Be the process of one lab, in this directory
    #[arg(long, hide = true, value_name = "DIR")]
    inside: Option<PathBuf>,
}

/// A lab that is over.
struct Ended {
    name: &'static str,
    end: End,
    time: Duration,
    seen: Seen,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(problem) if !problem.use_stderr() => problem.exit(),
        Err(problem) => {
            eprintln!("{problem}");
            return not_run();
        }
    };
    if arguments.list {
        for lab in LABS {
            println!("{:<22} {:<6} {}", lab.name, lab.pace.word(), lab.about);
        }
        return ExitCode::SUCCESS;
    }
    match (&arguments.inside, arguments.names.as_slice()) {
        (Some(directory), [name]) => inside(directory, name, &arguments),
        _ => all(&arguments),
    }
}

/// The last line where no lab could be run, which is a failure.
fn not_run() -> ExitCode {
    println!("{{\"runs\":0,\"failures\":1}}");
    ExitCode::from(2)
}

/// A length of time that one can wait for.
fn hours(text: &str) -> Result<f64, String> {
    let asked = text.parse().ok().filter(|hours: &f64| *hours > 0.0);
    asked
        .filter(|hours| Duration::try_from_secs_f64(hours * 3600.0).is_ok())
        .ok_or_else(|| format!("{text:?} is no number of hours above 0"))
}

/// One lab, in this process.
fn inside(directory: &Path, name: &str, arguments: &Arguments) -> ExitCode {
    let Some(lab) = LABS.iter().find(|lab| lab.name == name) else {
        println!("    there is no lab {name}");
        return ExitCode::from(EXIT_FAILED);
    };
    let mut bench =
        Bench::new(directory.to_path_buf(), arguments.seed.unwrap_or(1), arguments.quick);
    bench.threads = arguments.threads;
    bench.hours = arguments.hours;
    bench.old.clone_from(&arguments.old);
    bench.no_old.clone_from(&arguments.no_old);
    match (lab.run)(&bench) {
        Ok(Verdict::Passed(note)) => {
            println!("    {note}");
            ExitCode::SUCCESS
        }
        Ok(Verdict::NotRun(reason)) => {
            println!("    NOT RUN: {reason}");
            ExitCode::from(EXIT_NOT_RUN)
        }
        Err(failure) => {
            println!("    FAILED: {failure}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// Every lab that is asked for, each in a process of its own.
fn all(arguments: &Arguments) -> ExitCode {
    let chosen: Vec<&Lab> = LABS.iter().filter(|lab| is_chosen(lab, arguments)).collect();
    if let Some(name) = arguments.names.iter().find(|name| !LABS.iter().any(|lab| named(lab, name)))
    {
        eprintln!("lab: there is no lab {name}; `lab --list` names them");
        return not_run();
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in STOP_SIGNALS {
        if signal == HANG_UP && ignores_hang_up() {
            continue;
        }
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("lab: signal {signal}: {error}");
            return not_run();
        }
    }
    let seed = arguments.seed.unwrap_or_else(seed_of_now);
    println!("{} labs, seed {seed}", chosen.len());
    let network = Network::of_this_machine();
    network.complain();
    let words = words(arguments, seed);
    let mut ends = Vec::new();
    for (number, lab) in chosen.iter().enumerate() {
        let begun = Instant::now();
        let (end, seen) = match stop.load(Ordering::Relaxed) {
            true => (End::Failed, Seen::default()),
            false => one(lab, number, arguments, &words, &network, &stop),
        };
        ends.push(Ended { name: lab.name, end, time: begun.elapsed(), seen });
    }
    conclude(&ends, &network)
}

/// Whether this process was begun with SIGHUP ignored, as the kernel tells it.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (HANG_UP - 1) != 0)
}

/// What the process of each lab is told.
fn words(arguments: &Arguments, seed: u64) -> Vec<String> {
    let mut words = vec!["--seed".to_owned(), seed.to_string()];
    words.extend(["--threads".to_owned(), arguments.threads.to_string()]);
    if arguments.quick {
        words.push("--quick".to_owned());
    }
    words.extend(["--hours".to_owned(), arguments.hours.to_string()]);
    if let Some(old) = &arguments.old {
        words.extend(["--old".to_owned(), old.display().to_string()]);
    }
    if let Some(why) = &arguments.no_old {
        words.extend(["--no-old".to_owned(), why.clone()]);
    }
    words
}

/// One lab, in a process of its own.
fn one(
    lab: &Lab,
    number: usize,
    arguments: &Arguments,
    words: &[String],
    network: &Network,
    stop: &Arc<AtomicBool>,
) -> (End, Seen) {
    println!("{}: {}", lab.name, lab.about);
    let begun = Instant::now();
    let after = match (arguments.hold, arguments.keep) {
        (true, _) => After::Hold,
        (false, true) => After::Keep,
        (false, false) => After::Clean,
    };
    // A short path: Unix sockets below it may not be longer than 107 bytes.
    let directory =
        std::env::temp_dir().join(format!("lockstep-lab-{}-{number}", std::process::id()));
    let asked = if lab.name == "endurance" { arguments.hours } else { 0.0 };
    let limit = lab.pace.limit() + Duration::from_secs_f64(asked * 3600.0);
    let missing = network.missing_for(lab).map_or_else(|| lab.prepare(), |why| Ok(Some(why)));
    let (end, seen) = match missing {
        Ok(None) => {
            let own = network.own.is_ok();
            supervise(lab.name, &directory, words, own, limit, after, stop)
        }
        Ok(Some(reason)) => {
            println!("    NOT RUN: {reason}");
            (End::NotRun, Seen::default())
        }
        Err(failure) => {
            println!("    FAILED: {failure}");
            (End::Failed, Seen::default())
        }
    };
    println!("{} {} in {:.1} s", lab.name, word(end), begun.elapsed().as_secs_f64());
    (end, seen)
}

/// What labs can have of a network of their own here; the error says why not.
struct Network {
    /// A namespace.
    own: Result<(), String>,
    /// Packets that are dropped in it.
    cuts: Result<(), String>,
}

impl Network {
    /// Tries it.
    fn of_this_machine() -> Network {
        let own = in_a_namespace(&["unshare", "ip"], "ip link set lo up");
        let cuts = own.clone().and_then(|()| in_a_namespace(&["nft"], "nft add table ip lab"));
        Network { own, cuts }
    }

    /// Says so if labs share the network of this machine.
    fn complain(&self) {
        if let Err(why) = &self.own {
            println!("NOT in a namespace: {why}. Labs use this machine's own loopback");
        }
    }

    /// Why a lab that cannot do without cannot be run here.
    fn missing_for(&self, lab: &Lab) -> Option<String> {
        if lab.cuts_network() { self.cuts.clone().err() } else { None }
    }
}

/// Whether this can be done in a network namespace that is made for it.
fn in_a_namespace(tools: &[&str], line: &str) -> Result<(), String> {
    let missing = bench::missing(tools);
    if !missing.is_empty() {
        return Err(format!("not on this machine: {}", missing.join(", ")));
    }
    let mut command = Command::new("unshare");
    match bench::run(command.args(["--net", "sh", "-c", line]), bench::TOOL_LIMIT) {
        Ok(said) if said.code == Some(0) => Ok(()),
        Ok(said) => Err(format!("no network namespaces here: {}", said.err.trim())),
        Err(failure) => Err(failure.0),
    }
}

fn is_chosen(lab: &Lab, arguments: &Arguments) -> bool {
    if !arguments.names.is_empty() {
        return arguments.names.iter().any(|name| named(lab, name));
    }
    match lab.pace {
        Pace::Quick => true,
        Pace::Full => !arguments.quick,
        Pace::Long => arguments.long && !arguments.quick,
    }
}

/// Whether `name` is the lab's, or that of its family: `kill` stands for `kill-replica` and the like.
fn named(lab: &Lab, name: &str) -> bool {
    lab.name == name || lab.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
}

fn word(end: End) -> &'static str {
    match end {
        End::Passed => "passed",
        End::Failed => "FAILED",
        End::NotRun => "NOT RUN",
    }
}

/// Prints the table and the two lines that programs read.
fn conclude(ends: &[Ended], network: &Network) -> ExitCode {
    println!();
    for Ended { name, end, time, .. } in ends {
        println!("{name:<22} {:<8} {:>7.1} s", word(*end), time.as_secs_f64());
    }
    println!("{}", kernels::table(ends).trim_end());
    network.complain();
    let count = |wanted: End| ends.iter().filter(|one| one.end == wanted).count();
    let (passed, failed) = (count(End::Passed), count(End::Failed));
    println!("{passed} passed, {failed} failed, {} skipped", count(End::NotRun));
    let (line, is_well) = last_line(passed, failed);
    println!("{line}");
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The line that programs read, and whether nothing failed. Where nothing could be run, that is a failure.
fn last_line(passed: usize, failed: usize) -> (String, bool) {
    let runs = passed + failed;
    let failures = if runs == 0 { 1 } else { failed };
    (format!("{{\"runs\":{runs},\"failures\":{failures}}}"), failures == 0)
}

fn seed_of_now() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::from(time.subsec_nanos()) ^ time.as_secs() << 20
}

#[cfg(test)]
mod tests {
    use super::last_line;

    #[test]
    fn labs_of_which_none_could_be_run_have_failed() {
        assert_eq!(last_line(3, 0), ("{\"runs\":3,\"failures\":0}".to_owned(), true));
        assert_eq!(last_line(3, 1), ("{\"runs\":4,\"failures\":1}".to_owned(), false));
        assert_eq!(last_line(0, 0), ("{\"runs\":0,\"failures\":1}".to_owned(), false));
    }
}

//! The doors to the workspace's programs, and the list of steps that `ci` walks.
//!
//! Every step runs even if one before it failed, so that one run shows all there is to mend; the
//! table at the end names each step's result and time.

use crate::elsewhere::{Elsewhere, Missing};
use crate::oldest::{self, Oldest};
use crate::project::{Project, shown};
use crate::seeds::Failures;
use crate::tidy;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Simulated histories per `ci`, with quorum and without, each made twice: enough to ring on a planted fault, short enough
/// to wait for.
const CAMPAIGN_RUNS: [&str; 2] = ["2000", "1000"];

/// One step of `ci`.
struct Step {
    name: &'static str,
    run: fn(&Project) -> bool,
}

/// What `ci` runs, in this order: the quick and the picky first.
const STEPS: &[Step] = &[
    Step { name: "fmt", run: |project| cargo(project, &["fmt", "--all", "--", "--check"]) },
    Step {
        name: "clippy",
        run: |project| {
            cargo(project, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
        },
    },
    Step { name: "tidy", run: tidy::run },
    Step {
        name: "test",
        run: |project| cargo(project, &["test", "--workspace", "--no-fail-fast"]),
    },
    Step { name: "threads", run: test_with_threads },
    Step { name: "counts", run: |project| counts(project, false) },
    Step { name: "sim", run: campaigns },
    Step { name: "check", run: |project| check(project, &[]) },
    Step { name: "canaries", run: |project| alarm(project, &["--check".into()]) },
    Step { name: "demo", run: demo },
    Step { name: "lab", run: |project| lab(project, &["--quick".into()]) },
    Step { name: "bench", run: bench_sanity },
];

/// Runs all steps, then prints a table of them. Returns whether all passed.
pub(crate) fn ci(project: &Project) -> bool {
    let mut done: Vec<(&str, bool, Duration)> = Vec::new();
    for step in STEPS {
        println!("=== {}", step.name);
        let start = Instant::now();
        let passed = (step.run)(project);
        done.push((step.name, passed, start.elapsed()));
    }
    print!("{}", table(&done));
    done.iter().all(|&(_, passed, _)| passed)
}

/// The lines that say how each step went and how long it took.
fn table(done: &[(&str, bool, Duration)]) -> String {
    let mut text = String::from("=== summary\n");
    for (name, passed, time) in done {
        let result = if *passed { "ok" } else { "FAILED" };
        text.push_str(&format!("{name:<8} {result:<8} {:>7.1} s\n", time.as_secs_f64()));
    }
    let total: Duration = done.iter().map(|&(_, _, time)| time).sum();
    let result = if done.iter().all(|&(_, passed, _)| passed) { "ok" } else { "FAILED" };
    text.push_str(&format!("{:<8} {result:<8} {:>7.1} s\n", "all", total.as_secs_f64()));
    text
}

/// Runs the simulator with `rest` as its arguments; what fails is kept in `seeds`.
pub(crate) fn sim(project: &Project, rest: &[String]) -> bool {
    let Some(mut command) = built(project, "sim", rest) else { return not_run() };
    let mut failures = Failures::default();
    let passed = ran_counted(&mut command, |command| {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().expect("it was asked for");
        for line in BufReader::new(output).lines() {
            let line = line?;
            // Nobody may be left to read it.
            let _ = writeln!(std::io::stdout(), "{line}");
            failures.hear(&line);
        }
        child.wait()
    });
    failures.keep(project);
    passed
}

/// Builds a program that ends with a line of how much it ran and how much of that failed, and runs it. Where it does not
/// get that far, the line is this one's.
fn counted(project: &Project, package: &str, rest: &[String]) -> bool {
    built(project, package, rest).map_or_else(not_run, |mut command| run_counted(&mut command))
}

/// Builds such a program; `None` if it cannot be built.
fn built(project: &Project, package: &str, rest: &[String]) -> Option<Command> {
    if !cargo(project, &["build", "--quiet", "--profile", "sim", "--package", package]) {
        return None;
    }
    let mut command = Command::new(project.target.join("sim").join(package));
    command.current_dir(&project.root).args(rest);
    Some(command)
}

/// Runs a program that ends with such a line.
fn run_counted(command: &mut Command) -> bool {
    ran_counted(command, Command::status)
}

/// The same, by `run`.
fn ran_counted(
    command: &mut Command,
    run: impl FnOnce(&mut Command) -> std::io::Result<ExitStatus>,
) -> bool {
    match run(command) {
        Ok(status) if status.success() => true,
        Ok(status) => {
            eprintln!("{}: {status}", shown(command));
            match status.code() {
                None | Some(PANICKED) => not_run(),
                Some(_) => false,
            }
        }
        Err(error) => {
            eprintln!("{}: {error}", shown(command));
            not_run()
        }
    }
}

/// How a program ends that panicked.
const PANICKED: i32 = 101;

/// The last line where nothing could be run: that is a failure.
pub(crate) fn not_run() -> bool {
    println!("{{\"runs\":0,\"failures\":1}}");
    false
}

/// The node's tests once more, with nodes of two threads and resources of two shards wherever a test does not care.
fn test_with_threads(project: &Project) -> bool {
    let words = ["test", "--package", "lockstepd", "--no-fail-fast"];
    run(project.cargo(&words).env("LOCKSTEP_TEST_THREADS", "2"))
}

/// What `ci` runs of the simulator.
fn campaigns(project: &Project) -> bool {
    let [with, without] = CAMPAIGN_RUNS;
    let twice = || "--twice".to_owned();
    let with = sim(project, &[twice(), "--runs".into(), with.into()]);
    sim(project, &["--quorum-off".into(), twice(), "--runs".into(), without.into()]) && with
}

/// Searches the schedules of the register with `rest` as arguments.
pub(crate) fn check(project: &Project, rest: &[String]) -> bool {
    sim_word(project, "check", rest)
}

/// Plants bugs with `rest` as arguments.
pub(crate) fn alarm(project: &Project, rest: &[String]) -> bool {
    sim_word(project, "alarm", rest)
}

/// Runs the scenarios that `rest` names, or all.
pub(crate) fn scenarios(project: &Project, rest: &[String]) -> bool {
    sim_word(project, "scenarios", rest)
}

/// Runs the simulator's command `word`.
fn sim_word(project: &Project, word: &str, rest: &[String]) -> bool {
    let words: Vec<String> = std::iter::once(word.to_owned()).chain(rest.iter().cloned()).collect();
    counted(project, "sim", &words)
}

/// Runs the fuzzer with `rest` as its arguments. Not in `ci`, whose tests hold a short run.
pub(crate) fn fuzz(project: &Project, rest: &[String]) -> bool {
    counted(project, "fuzz", rest)
}

/// Builds the lab and what it drives, and runs it with `rest` as its arguments.
pub(crate) fn lab(project: &Project, rest: &[String]) -> bool {
    let packages = ["--package", "lab", "--package", "lockstep", "--package", "lockstepd"];
    if !cargo(project, &[&["build", "--release"], &packages[..]].concat()) {
        return not_run();
    }
    let mut command = Command::new(project.target.join("release").join("lab"));
    if oldest::is_asked_for(rest) {
        match oldest::build(project) {
            Oldest::Program(path) => command.arg("--old").arg(path),
            Oldest::Absent(why) => command.arg("--no-old").arg(why),
            Oldest::Broken(why) => {
                eprintln!("compat: {why}");
                return not_run();
            }
        };
    }
    run_counted(command.args(rest))
}

/// Shows that every row of the benchmark can be made, and that two revisions can be compared, by two small tables of this one beside itself; what it
/// writes is thrown away with the build.
fn bench_sanity(project: &Project) -> bool {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let results = text(project.target.join("bench").join("sanity"));
    let all = || ["--sanity".to_owned(), "--results".to_owned(), results.clone()];
    let every_row = bench(project, None, &all());
    // Another revision's programs are built by what labs build an older one's with.
    let itself = format!("itself={}", text(project.target.join("release")));
    let beside =
        ["--tables", "threads,idle", "--name", "itself", "--compare", &itself].map(str::to_owned);
    bench(project, None, &[&all()[..], &beside[..]].concat()) && every_row
}

/// Builds the benchmark, what it measures, and the programs of another revision if asked for, and runs it
/// with `rest` as its arguments.
pub(crate) fn bench(project: &Project, compare: Option<&str>, rest: &[String]) -> bool {
    let packages = ["--package", "bench", "--package", "lockstep", "--package", "lockstepd"];
    if !cargo(project, &[&["build", "--release"], &packages[..]].concat()) {
        return false;
    }
    let mut command = Command::new(project.target.join("release").join("bench"));
    command.current_dir(&project.root).args(["--label", &revision(project, "HEAD")]);
    if let Some(other) = compare {
        let Some(programs) = build_other(project, other) else { return false };
        let label = revision(project, other);
        command.arg("--compare").arg(format!("{label}={}", programs.display()));
    }
    run(command.args(rest))
}

/// Counts the instructions of hot paths and compares them with what is written down, or writes them down.
pub(crate) fn counts(project: &Project, write: bool) -> bool {
    if !cargo(project, &["build", "--release", "--package", "bench", "--bin", "hot"]) {
        return false;
    }
    let mut command = Command::new(project.target.join("release").join("hot"));
    command.current_dir(&project.root).arg(if write { "write" } else { "check" });
    run(command.arg("bench/counts.json"))
}

/// The short name of a revision, and whether the tree differs from it if it is the head.
pub(crate) fn revision(project: &Project, name: &str) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(&project.root).args(arguments).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.unwrap_or_default().trim().to_owned()
    };
    let short = git(&["rev-parse", "--short", name]);
    let changed = name == "HEAD" && !git(&["status", "--porcelain", "--", "crates"]).is_empty();
    format!("{short}{}", if changed { " with changes" } else { "" })
}

/// Builds the programs of another revision beside the target folder; returns where they lie.
fn build_other(project: &Project, name: &str) -> Option<PathBuf> {
    let short = revision(project, name);
    let beside = project.target.join("bench");
    let elsewhere = Elsewhere {
        revision: name,
        source: beside.join(&short),
        target: beside.join("target"),
        release: true,
        programs: &["lockstep", "lockstepd"],
        place: beside.join(format!("{short}-programs")),
    };
    match elsewhere.build(project) {
        Ok(()) => Some(elsewhere.place),
        Err(Missing::Absent(why) | Missing::Broken(why)) => {
            eprintln!("bench: revision {name}: {why}");
            None
        }
    }
}

/// Builds both programs and runs the demo in a folder of its own, which is removed when it passed.
pub(crate) fn demo(project: &Project) -> bool {
    if !cargo(project, &["build", "--release", "--package", "lockstep", "--package", "lockstepd"]) {
        return false;
    }
    // A short path: Unix sockets below it may not be longer than 107 bytes.
    let folder = std::env::temp_dir().join(format!("lockstep-demo-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&folder) {
        eprintln!("demo: cannot create {}: {error}", folder.display());
        return false;
    }
    let passed = run(&mut demo_command(&project.target, &folder));
    if !passed {
        eprintln!("demo: failed; what it left is in {}", folder.display());
        return false;
    }
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        eprintln!("demo: cannot remove {}: {error}", folder.display());
        return false;
    }
    true
}

/// `lockstep dev demo` of the release build, with its files under `folder`.
fn demo_command(target: &Path, folder: &Path) -> Command {
    let mut command = Command::new(target.join("release").join("lockstep"));
    command.args(["dev", "demo", "--dir"]).arg(folder);
    command
}

pub(crate) fn cargo(project: &Project, arguments: &[&str]) -> bool {
    run(&mut project.cargo(arguments))
}

/// Runs `command` with this program's own input and output. Returns whether it succeeded.
pub(crate) fn run(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) if status.success() => true,
        Ok(status) => {
            eprintln!("{}: {status}", shown(command));
            false
        }
        Err(error) => {
            eprintln!("{}: {error}", shown(command));
            false
        }
    }
}

#[cfg(test)]
mod tests;

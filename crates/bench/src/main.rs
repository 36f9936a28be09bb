//! The benchmark: clusters of real processes under fio, beside other servers and the disk itself.
//!
//! `cargo xtask bench` builds everything and starts this program; `docs/bench.md` says what it measures
//! and how to read it. It installs nothing: what a missing tool would have measured is left out, and
//! said to be.
//!
//! Always: all that it starts is ended, and its files are removed, when it ends in good order, fails, or is told to stop
//! by a signal.

mod attached;
mod cache;
mod calls;
mod ceph;
mod changes;
mod cluster;
mod databases;
mod drbd;
mod failover;
mod fio;
mod foreseen;
mod idle;
mod loopback;
mod machine;
mod memory;
mod metadata;
mod mirror;
mod neighbours;
mod outcome;
mod parts;
mod plot;
mod report;
mod resync;
mod run;
mod sample;
mod server;
mod space;
mod stop;
mod tables;
mod targets;
mod throttle;
mod tree;
mod veth;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use cluster::Programs;
use failover::Failover;
use machine::Machine;
use outcome::{Outcome, complain, fail, left_out, not_run, say, summary};
use parts::Parts;
use report::{Report, VERSION};
use run::{Pace, Run, Turns};
use tables::Table;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "bench", about = "Measures speed beside the raw disk and beside others")]
struct Arguments {
    /// Long measurements, large volumes, all rows, Ceph, DRBD: hours
    #[arg(long)]
    full: bool,
    /// Only show that every row can be made
    #[arg(long, conflicts_with = "full")]
    sanity: bool,
    /// Only these tables: record-memory, record-file, metadata, depth, threads, protocols, mirror, databases, drbd, failover, idle, memory
    #[arg(long, value_delimiter = ',')]
    tables: Vec<String>,
    /// Name of the files to write
    #[arg(long, default_value = "latest")]
    name: String,
    /// Where to write them
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// How the revision in this tree is called
    #[arg(long, default_value = "this tree")]
    label: String,
    /// Another revision's programs, as LABEL=DIRECTORY, to be measured by turns with these
    #[arg(long, value_name = "LABEL=DIRECTORY")]
    compare: Option<String>,
}

impl Arguments {
    /// What makes the same again, in a tree of the same revision.
    fn command(&self) -> String {
        let compare = self.compare.as_ref().and_then(|other| other.split_once('='));
        let mut words = vec!["cargo xtask bench".to_owned()];
        words.extend(compare.map(|(label, _)| format!("--compare {label}")));
        words.push("--".to_owned());
        words.extend(self.full.then(|| "--full".to_owned()));
        words.extend(self.sanity.then(|| "--sanity".to_owned()));
        if !self.tables.is_empty() {
            words.push(format!("--tables {}", self.tables.join(",")));
        }
        words.push(format!("--name {}", self.name));
        words.join(" ")
    }
}

const TABLES: [&str; 12] = [
    "record-memory",
    "record-file",
    "metadata",
    "depth",
    "threads",
    "protocols",
    "mirror",
    "databases",
    "drbd",
    "failover",
    "idle",
    "memory",
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    if let Some(name) = arguments.tables.iter().find(|name| !TABLES.contains(&name.as_str())) {
        return fail(format!("there is no table {name}: there are {}", TABLES.join(", ")));
    }
    if machine::find("fio").is_none() {
        if arguments.sanity {
            not_run("every row: no fio on this machine");
            say(summary(0, &left_out()));
            return Ok(());
        }
        return fail("fio is not on this machine; nothing can be measured without it");
    }
    stop::listen()?;
    // A short path: Unix sockets below it may not be longer than 107 bytes.
    let scratch = std::env::temp_dir().join(format!("lockstep-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let measured = measure(arguments, &scratch);
    if let Err(error) = std::fs::remove_dir_all(&scratch) {
        complain(format!("{}: {error}", scratch.display()));
    }
    let (report, failed) = measured?;
    let (compared, paths) = report.write(&arguments.results)?;
    for path in paths {
        say(path.display());
    }
    say(summary(report.rows(), &report.left_out));
    if let Some(failed) = failed {
        return fail(failed);
    }
    if arguments.sanity && report.revisions.len() > 1 && compared == 0 {
        return fail("of two revisions no row was compared");
    }
    Ok(())
}

/// What is measured, copied below `scratch`: what is built in the tree meanwhile is not in this run.
fn programs(arguments: &Arguments, scratch: &Path) -> Outcome<Vec<Programs>> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = own.parent().ok_or("this program lies nowhere")?.to_path_buf();
    let own = Programs { label: arguments.label.clone(), directory };
    let own = own.copied(&["lockstep", "lockstepd", "load", "carry"], &scratch.join("p0"))?;
    let Some(other) = &arguments.compare else { return Ok(vec![own]) };
    let (label, directory) = other.split_once('=').ok_or("--compare takes LABEL=DIRECTORY")?;
    let other = Programs { label: label.to_owned(), directory: directory.into() };
    Ok(vec![own, other.copied(&["lockstep", "lockstepd"], &scratch.join("p1"))?])
}

/// All parts that are wanted, one after the other; what came of them, and what is to be said if one failed.
fn measure(arguments: &Arguments, scratch: &Path) -> Outcome<(Report, Option<String>)> {
    let brief = arguments.tables.is_empty() && !arguments.full && !arguments.sanity;
    let pace = Pace { full: arguments.full, sanity: arguments.sanity, brief, turns: Turns::Usual };
    let uncounted = calls::cannot();
    let (programs, scratch) = (programs(arguments, scratch)?, scratch.to_path_buf());
    let run = &Run { programs, pace, scratch, counts: uncounted.is_none() };
    if let Some(why) = uncounted {
        not_run(format!("system calls per request: {why}"));
    }
    let table = |report: &mut Report, table: Table| report.tables.push(table);
    let report = described(run, arguments);
    foreseen::tell(run, &report.asked)?;
    let mut parts = Parts::new(run, &arguments.results, report);
    parts.make("record-memory", tables::record_memory, table)?;
    parts.make("record-file", tables::record_file, table)?;
    parts.make("metadata", metadata::metadata, table)?;
    parts.make("depth", tables::depth, table)?;
    parts.make("threads", tables::threads, table)?;
    parts.make("protocols", tables::protocols, table)?;
    parts.make("drbd", drbd::drbd, |report, table| report.tables.extend(table))?;
    parts.make("mirror", mirror::mirror, |report, made| {
        let (tables, mirror) = made.unzip();
        report.tables.extend(tables.into_iter().flatten());
        report.mirror = mirror;
    })?;
    let databases = |report: &mut Report, found| report.databases.extend(found);
    parts.make("databases, one disk", databases::on_one_disk, databases)?;
    parts.make("databases, own devices", databases::on_own_devices, databases)?;
    parts.make("failover, pauses", failover::pauses, |report, pauses| {
        report.failover.get_or_insert_default().pauses = pauses;
    })?;
    parts.make("failover, resyncs", failover::recovery, |report, found| {
        let pauses = report.failover.take().unwrap_or_default().pauses;
        report.failover = Some(Failover { pauses, ..found });
    })?;
    parts.make("idle", idle::measure, |report, idle| report.idle = idle)?;
    parts.make("memory", memory::measure, |report, memory| report.memory = memory)?;
    parts.end()
}

/// What is known of a run before anything was measured.
fn described(run: &Run, arguments: &Arguments) -> Report {
    if run.pace.brief {
        not_run("DRBD in emulated machines: only in full runs, or by `--tables drbd`");
    }
    let wanted = |table: &&str| match arguments.tables.as_slice() {
        [] => !(run.pace.brief && *table == "drbd"),
        named => named.iter().any(|name| name == table),
    };
    let asked: Vec<&str> = TABLES.into_iter().filter(wanted).collect();
    let mode = match run.pace {
        Pace { full: true, .. } => "full",
        Pace { sanity: true, .. } => "sanity",
        Pace { brief: true, .. } => "brief",
        Pace { .. } => "quick",
    };
    Report {
        version: VERSION,
        name: arguments.name.clone(),
        command: arguments.command(),
        mode,
        revisions: run.programs.iter().map(|programs| programs.label.clone()).collect(),
        machine: Machine::describe(&run.scratch, |table| asked.contains(&table)),
        asked,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Arguments;

    #[test]
    fn the_command_line_that_is_written_down_makes_the_same_again() {
        let parse = |words: &[&str]| Arguments::parse_from([&["bench"], words].concat());
        let said = |words: &[&str]| parse(words).command();
        assert_eq!(said(&["--label", "1835daa"]), "cargo xtask bench -- --name latest");
        let words = ["--full", "--tables", "idle,memory", "--name", "mine"];
        let all = ["--label", "1", "--compare", "8f115fc=/programs", "--results", "/elsewhere"];
        let command = said(&[&all[..], &words].concat());
        assert_eq!(
            command,
            "cargo xtask bench --compare 8f115fc -- --full --tables idle,memory --name mine"
        );
        let (_, rest) = command.split_once(" -- ").expect("what is the benchmark's own");
        let again = parse(&rest.split(' ').collect::<Vec<_>>());
        assert_eq!((again.full, again.name.as_str()), (true, "mine"));
        assert_eq!(again.tables, ["idle", "memory"]);
    }
}

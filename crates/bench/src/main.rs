//! The benchmark: clusters of real processes under fio, beside other servers and the disk itself.
//!
//! `cargo xtask bench` builds everything and starts this program; `docs/bench.md` says what it measures
//! and how to read it. It installs nothing: what a missing tool would have measured is left out, and
//! said to be.
//!
//! Always: all that it starts is ended, and its files are removed, when it ends in good order, fails, or is told to stop
//! by a signal.

mod attached;
mod ceph;
mod changes;
mod cluster;
mod databases;
mod drbd;
mod failover;
mod fio;
mod idle;
mod loopback;
mod machine;
mod memory;
mod metadata;
mod mirror;
mod outcome;
mod plot;
mod report;
mod resync;
mod run;
mod sample;
mod server;
mod stop;
mod tables;
mod targets;
mod throttle;
mod tree;
mod veth;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use cluster::Programs;
use machine::Machine;
use outcome::{Outcome, fail};
use report::{Report, VERSION};
use run::{Pace, Run, Turns};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "bench", about = "Measures speed beside the raw disk and beside others")]
struct Arguments {
    /// Long measurements, large volumes, all rows, Ceph, DRBD: nearly three hours
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
            eprintln!("bench: {why}");
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
            println!("NOT RUN: every row: no fio on this machine");
            return Ok(());
        }
        return fail("fio is not on this machine; nothing can be measured without it");
    }
    stop::listen()?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = own.parent().ok_or("this program lies nowhere")?.to_path_buf();
    let mut programs = vec![Programs { label: arguments.label.clone(), directory }];
    if let Some(other) = &arguments.compare {
        let (label, directory) = other.split_once('=').ok_or("--compare takes LABEL=DIRECTORY")?;
        programs.push(Programs { label: label.to_owned(), directory: directory.into() });
    }
    // A short path: Unix sockets below it may not be longer than 107 bytes.
    let scratch = std::env::temp_dir().join(format!("lockstep-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let brief = arguments.tables.is_empty() && !arguments.full && !arguments.sanity;
    let pace = Pace { full: arguments.full, sanity: arguments.sanity, brief, turns: Turns::Usual };
    let run = Run { programs, pace, scratch };
    let measured = measure(&run, arguments);
    if let Err(error) = std::fs::remove_dir_all(&run.scratch) {
        eprintln!("bench: {}: {error}", run.scratch.display());
    }
    measured?.write(&arguments.results)
}

fn measure(run: &Run, arguments: &Arguments) -> Outcome<Report> {
    let wants =
        |table: &str| arguments.tables.is_empty() || arguments.tables.iter().any(|t| t == table);
    let machine = Machine::describe();
    run.has("perf", "system calls per request");
    let mut tables = Vec::new();
    if wants("record-memory") {
        tables.push(tables::record_memory(run)?);
    }
    if wants("record-file") {
        tables.push(tables::record_file(run)?);
    }
    if wants("metadata") {
        tables.push(metadata::metadata(run)?);
    }
    if wants("depth") {
        tables.push(tables::depth(run)?);
    }
    if wants("threads") {
        tables.push(tables::threads(run)?);
    }
    if wants("protocols") {
        tables.push(tables::protocols(run)?);
    }
    if run.pace.brief {
        println!("NOT RUN: DRBD in emulated machines: only in full runs, or by `--tables drbd`");
    } else if wants("drbd") {
        tables.extend(drbd::drbd(run)?);
    }
    let mut mirror = None;
    if wants("mirror")
        && let Some((table, more)) = mirror::mirror(run)?
    {
        tables.push(table);
        mirror = Some(more);
    }
    let databases = if wants("databases") { databases::measure(run)? } else { Vec::new() };
    let failover = if wants("failover") { Some(failover::measure(run)?) } else { None };
    let idle = if wants("idle") { idle::measure(run)? } else { Vec::new() };
    let memory = if wants("memory") { memory::measure(run)? } else { Vec::new() };
    let mode = match run.pace {
        Pace { full: true, .. } => "full",
        Pace { sanity: true, .. } => "sanity",
        Pace { brief: true, .. } => "brief",
        Pace { .. } => "quick",
    };
    Ok(Report {
        version: VERSION,
        name: arguments.name.clone(),
        mode,
        revisions: run.programs.iter().map(|programs| programs.label.clone()).collect(),
        machine,
        tables,
        mirror,
        databases,
        failover,
        idle,
        memory,
    })
}

//! The command line.
//!
//! Everything a person or a script does to resources, nodes and development clusters. It holds no
//! state of its own: nodes do, and a development cluster's directory. It may be ended at any moment
//! without an I/O noticing.
//!
//! `cli` has the words, `admin` talks to one node, `cluster` knows which nodes there are; a file each
//! for what is done: `dev`, `resource`, `device`, `view` (status, wait, watch), `explain`, `demo`, `certificates`,
//! `machines` (what nodes on machines of their own need).
//!
//! Always: no input panics; whatever goes wrong ends as a `Problem` with its exit code.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests fail by panicking"))]

mod admin;
mod certificates;
mod cli;
mod cluster;
mod demo;
mod dev;
mod device;
mod doctor;
mod explain;
mod machines;
mod nvme_host;
mod output;
mod problem;
mod resource;
mod typed;
mod unit;
mod unix;
mod vhost;
mod view;
mod words;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, Form, Global};
use dev::process::{BECOME_NODE, become_node};
use output::{Style, say_json};
use problem::{Problem, READER_GONE, USAGE};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let [_, word, program, directory] = words.as_slice()
        && word == BECOME_NODE
    {
        let problem = become_node(Path::new(program), Path::new(directory));
        eprintln!("{problem}");
        return ExitCode::from(problem.exit);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return slip(&error),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&cli.global, &problem);
            ExitCode::from(problem.exit)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Problem> {
    let global = &cli.global;
    match &cli.command {
        Command::Dev(command) => dev::run(global, command),
        Command::Cluster(command) => machines::run(global, command),
        Command::Resource(command) => resource::run(global, command),
        Command::Device(command) => device::run(global, command),
        Command::Vhost(command) => vhost::run(global, command),
        Command::Status { name, watch } => view::status(global, name.as_deref(), *watch),
        Command::Wait { name, wanted, timeout } => view::wait(global, name, *wanted, *timeout),
        Command::Events { name } => view::events(global, name.as_deref()),
        Command::Explain { name } => explain::run(global, name),
        Command::Doctor { paths } => doctor::run(global, paths),
        Command::Reload { node } => certificates::reload(global, node.as_deref()),
        Command::RenewCertificate { node } => certificates::renew(global, node),
        Command::ClientCertificate { name, out, authority } => {
            certificates::client(global, name, out, authority.as_deref())
        }
        Command::NvmeHost { nqn, table, resources, mutual, tls } => {
            let made = match (tls, mutual) {
                (true, _) => nvme_host::Made::Key,
                (_, true) => nvme_host::Made::Secrets,
                _ => nvme_host::Made::Secret,
            };
            nvme_host::run(global, nqn, table.as_deref(), resources, made)
        }
        Command::Completions { shell } => words::completions(*shell),
        Command::Man { directory } => words::man_pages(directory),
    }
}

/// Words that make no command; or a question for help, which is none.
fn slip(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.to_string();
    let text = text.trim().trim_start_matches("error:").trim_start();
    // What was asked for is not known yet, but whether a program asks can be seen.
    let words: Vec<OsString> = std::env::args_os().collect();
    let json = words.windows(2).any(|pair| pair[0] == "--output" && pair[1] == "json")
        || words.iter().any(|word| word == "--output=json");
    let helps = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if helps && !json {
        eprintln!("{text}\n");
    }
    let problem = Problem::new(USAGE, if helps { "a command is missing" } else { text });
    if json {
        say_json(&serde_json::json!({ "version": 1, "error": &problem })).ok();
    } else {
        eprintln!("{problem}");
    }
    ExitCode::from(problem.exit)
}

/// Says on standard error what went wrong; programs that asked for JSON get JSON.
fn complain(global: &Global, problem: &Problem) {
    if problem.is_kind(READER_GONE) {
        return;
    }
    let style = Style::of(global);
    if style.form == Form::Json {
        // On standard output, where the program reads; people see the rest.
        let failed = say_json(&serde_json::json!({ "version": 1, "error": problem }));
        if failed.is_ok() {
            return;
        }
    }
    eprintln!("{problem}");
}

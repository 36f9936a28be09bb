//! The project's own commands: `cargo xtask ci`, `test`, `tidy`, `demo`, `sim`, `check`, `alarm`, `scenarios`,
//! `lab`, `bench`, `counts`, `fuzz`, `record`.
//!
//! Each command is a thin door: it starts a program of this workspace, or checks the tree itself
//! (`tidy`). `ci` is everything the project's continuous integration runs, so whoever sees it pass
//! here has seen what is asked there.
//!
//! Not here: what the simulator, the demo or the lab do (crates `sim`, `lockstep`, `lab`).

mod campaign;
mod elsewhere;
mod found;
mod oldest;
mod project;
mod record;
mod seeds;
mod speed;
mod steps;
mod tidy;

use clap::{Parser, Subcommand};
use project::Project;
use std::process::ExitCode;

/// The command line of `cargo xtask`.
#[derive(Parser)]
#[command(name = "cargo xtask", about = "Lockstep's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass: fmt, clippy, tidy, tests, instruction counts, the simulator's campaigns, the search, whether
    /// every planted bug still builds, the demo, the lab, and that every row of the benchmark can be made
    Ci,
    /// The same as `ci`
    Test,
    /// Checks floors, absences, sizes, package budgets, forbidden words and links
    Tidy,
    /// Builds release binaries and shows a whole cluster losing and regaining a node
    Demo,
    /// Runs the simulator: `cargo xtask sim --runs 1000`, `cargo xtask sim --seed 7`
    Sim {
        /// Handed to the simulator as they are; its own `--help` says what there is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Goes on with the long campaign of the simulator, and adds to `docs/campaign.md`, until there are 1 000 000 histories of the
    /// present code that took 4 hours of the whole machine, in all commands together: `cargo xtask campaign`. Fails if a history does, or if a million
    /// reached a mark never that they must reach
    Campaign {
        /// Ends when there are so many histories of the present code, however long they took
        #[arg(long)]
        runs: Option<u64>,
        /// Ends after so many hours of this command, if not before
        #[arg(long, allow_negative_numbers = true)]
        hours: Option<f64>,
    },
    /// Writes `docs/found.md`: every seed that ever failed, and what else was found, with the commits that mended it
    Found,
    /// Writes the README's table of speed: what `bench/results/record-2cores.json` says
    Speed,
    /// Searches the schedules of the configuration register: `cargo xtask check`, `cargo xtask check --deep`
    Check {
        /// Names of scenarios (none: all), and `--deep` for one deviation more in each
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Plants known bugs in a copy of the project and sees that each is found: `cargo xtask alarm NAME…`
    Alarm {
        /// Names of canaries (none: all), `--runs N` for the seeds of those that a campaign must find, `--check` to see
        /// only whether they apply and build
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Runs the simulator's readable scenarios: `cargo xtask scenarios`, `cargo xtask scenarios NAME --trace`
    Scenarios {
        /// Names of scenarios (none: all), and `--trace` to see every step
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Runs one of these commands and writes what it prints into `docs/results.md`: `cargo xtask record sim --runs 20000`
    Record {
        /// The command with its own words
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<String>,
    },
    /// Feeds parsers with damaged input: `cargo xtask fuzz`, `cargo xtask fuzz frames --minutes 10`
    Fuzz {
        /// Handed to the fuzzer as they are; its own `--help` says what there is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Runs the tests that need real processes, kernels and clients
    Lab {
        /// Handed to the lab as they are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Counts the instructions of hot paths: fails if one costs more than is written down
    Counts {
        /// Write them down in `bench/counts.json` instead
        #[arg(long)]
        write: bool,
    },
    /// Measures speed beside other servers and the raw disk: `cargo xtask bench --full`
    Bench {
        /// Another revision, measured by turns with this tree
        #[arg(long, value_name = "REV")]
        compare: Option<String>,
        /// Handed to the benchmark as they are; its own `--help` says what there is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let project = match Project::read() {
        Ok(project) => project,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let passed = match arguments.command {
        Command::Ci | Command::Test => steps::ci(&project),
        Command::Tidy => tidy::run(&project),
        Command::Demo => steps::demo(&project),
        Command::Sim { rest } => steps::sim(&project, &rest),
        Command::Campaign { runs, hours } => campaign::campaign(&project, runs, hours),
        Command::Found => found::found(&project),
        Command::Speed => speed::speed(&project),
        Command::Check { rest } => steps::check(&project, &rest),
        Command::Alarm { rest } => steps::alarm(&project, &rest),
        Command::Scenarios { rest } => steps::scenarios(&project, &rest),
        Command::Record { words } => record::record(&project, &words),
        Command::Fuzz { rest } => steps::fuzz(&project, &rest),
        Command::Lab { rest } => steps::lab(&project, &rest),
        Command::Counts { write } => steps::counts(&project, write),
        Command::Bench { compare, rest } => steps::bench(&project, compare.as_deref(), &rest),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

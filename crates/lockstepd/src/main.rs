//! The data plane: one process per node.
//!
//! `lockstepd node` runs a node; `check` and `dump` look at backing files without one. Only what is
//! typed on the command line is decided here.

mod backing;
mod config;
mod inspect;
mod log;
mod node;
mod slab;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves replicated volumes.
#[derive(Parser)]
#[command(version)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a node in the foreground.
    Node {
        /// The node's directory, with its node.toml.
        #[arg(long)]
        dir: PathBuf,
        /// Say more in the log.
        #[arg(long)]
        verbose: bool,
    },
    /// Check the metadata of a backing file or device that no node has open.
    Check {
        /// The file or device.
        file: PathBuf,
    },
    /// Print the metadata of a backing file or device that no node has open.
    Dump {
        /// The file or device.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    match Line::parse().verb {
        Verb::Check { file } => inspect::check(&file),
        Verb::Dump { file } => inspect::dump(&file),
        Verb::Node { dir, verbose } => {
            if verbose {
                log::set_level(log::Level::Debug);
            }
            match config::Config::read(&dir) {
                Ok(config) => {
                    let status = node::run(config);
                    log::end();
                    status
                }
                Err(why) => {
                    let code = &wire::admin::codes::BAD_SETTINGS;
                    let (number, cause, remedy) = (code.code, code.cause, code.remedy);
                    eprintln!("error {number}: {why}\n  cause:  {cause}\n  remedy: {remedy}");
                    ExitCode::from(code.exit)
                }
            }
        }
    }
}

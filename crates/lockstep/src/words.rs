//! What is made from the words themselves: shell completions and man pages.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::output::say;
use crate::problem::Problem;

/// Prints completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Problem> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockstep", &mut text);
    say(&String::from_utf8_lossy(&text))
}

/// Writes a man page for every command into `directory`.
pub(crate) fn man_pages(directory: &Path) -> Result<(), Problem> {
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| Problem::file(directory, &error))?;
    say(&format!("Wrote the man pages to {}.\n", directory.display()))
}

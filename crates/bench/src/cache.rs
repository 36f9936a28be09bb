//! The page cache of a file that a server goes through.
//!
//! Always: what a measurement left there is on the disk before the next one begins, of whomever, and what was read or written is read from
//! the disk again.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::outcome::Outcome;

/// Brings a file to the disk, and lets go of what is kept of it.
pub(crate) fn settle(file: &Path) -> Outcome<()> {
    let text = |error: std::io::Error| format!("{}: {error}", file.display());
    let opened = File::open(file).map_err(text)?;
    opened.sync_all().map_err(text)?;
    fadvise(&opened, 0, None, Advice::DontNeed).map_err(|error| text(error.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use tools::missing;

    use super::settle;

    #[test]
    fn of_a_settled_file_nothing_is_in_the_page_cache() {
        let file = std::env::temp_dir().join(format!("bench-cache-{}", std::process::id()));
        fs::write(&file, vec![7; 1 << 20]).expect("there is room");
        let kept = || {
            let mut command = Command::new("fincore");
            command.args(["--bytes", "--noheadings", "--output", "RES"]).arg(&file);
            let said = command.output().expect("it was found");
            String::from_utf8_lossy(&said.stdout).trim().parse::<u64>().expect("a number")
        };
        if missing(&["fincore"]).is_empty() && kept() > 0 {
            settle(&file).expect("it is there");
            let left = kept();
            // In memory there is no disk to let it go to.
            let (_, kind) = crate::machine::place_of(&file);
            if kind == "tmpfs" {
                println!("NOT RUN: {} is in memory", file.display());
            } else {
                assert_eq!(left, 0);
            }
        } else {
            println!("NOT RUN: needs fincore");
        }
        fs::remove_file(&file).expect("it is there");
    }
}

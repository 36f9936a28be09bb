//! `cargo xtask found`: the page of what the simulator found, each with its seed and the commit that mended it; and of what labs, tests
//! and reading found, as `seeds/elsewhere.list` has it.
//!
//! A seed is kept in the commit that mends what it found, so the history of `seeds/found.txt` says which that is. Commits
//! that only changed how the file is written are named in `.git-blame-ignore-revs`.
//!
//! Not here: running the seeds again, which every `make test` does (`sim`).

use crate::project::Project;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

const PAGE: &str = "docs/found.md";

const HEAD: &str = "\
# What was found

## Found by the simulator

Every seed that ever failed, in the order in which they did, what it showed (the checker: it was the simulator that was wrong), and the commit that
mended it. `make test` runs all of them again, from `seeds/found.txt`. Words beside a seed: the features that are on, or a resource without
quorum. Written by `cargo xtask found`.

| seed | what it found | mended in |
|---|---|---|
";

const ELSEWHERE: &str = "seeds/elsewhere.list";

const ELSEWHERE_HEAD: &str = "
## Found by labs, tests and reading

The newest first, from `seeds/elsewhere.list`. Each has its test in the commit that mended it, or is looked for by the lab that found it.

| found by | what was wrong | mended in |
|---|---|---|
";

/// Writes the page.
pub(crate) fn found(project: &Project) -> bool {
    let blame = Command::new("git")
        .current_dir(&project.root)
        .args(["blame", "-s", "--abbrev=7", "--ignore-revs-file", ".git-blame-ignore-revs"])
        .arg("seeds/found.txt")
        .output();
    let blame = match blame {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        Ok(output) => {
            eprintln!("found: {}", String::from_utf8_lossy(&output.stderr).trim());
            return false;
        }
        Err(error) => {
            eprintln!("found: git: {error}");
            return false;
        }
    };
    let elsewhere = match fs::read_to_string(project.root.join(ELSEWHERE)) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("found: {ELSEWHERE}: {error}");
            return false;
        }
    };
    let (mut page, count) = page(&blame);
    page.push_str(ELSEWHERE_HEAD);
    page.push_str(&rows(&elsewhere));
    let path = project.root.join(PAGE);
    if let Err(error) = fs::write(&path, page) {
        eprintln!("found: {}: {error}", path.display());
        return false;
    }
    println!("found: {count} seeds in {PAGE}");
    true
}

/// What was found elsewhere, a row each.
fn rows(text: &str) -> String {
    let mut rows = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.splitn(3, " | ");
        if let (Some(commit), Some(who), Some(what)) = (parts.next(), parts.next(), parts.next()) {
            writeln!(rows, "| {who} | {what} | {commit} |").expect("a string takes all");
        }
    }
    rows
}

/// The simulator's part of the page, and how many seeds are in it.
fn page(blame: &str) -> (String, usize) {
    let mut page = HEAD.to_owned();
    let mut count = 0;
    let mut before = String::new();
    for line in blame.lines() {
        let Some((commit, line)) = line.split_once(' ') else { continue };
        let Some((_, line)) = line.split_once(") ") else { continue };
        let Some((seed, what)) = line.split_once('#').filter(|(seed, _)| !seed.is_empty()) else {
            continue;
        };
        let what = match what.trim() {
            "likewise" => before.clone(),
            what => what.to_owned(),
        };
        let commit: String = commit.chars().filter(char::is_ascii_hexdigit).take(7).collect();
        writeln!(page, "| {} | {what} | {commit} |", seed.trim()).expect("a string takes all");
        before = what;
        count += 1;
    }
    (page, count)
}

#[cfg(test)]
mod tests {
    use super::{page, rows};

    #[test]
    fn what_was_found_elsewhere_has_a_row_with_its_commit() {
        let text = "# a word\naaaaaaa | lab `x-y` | it was | wrong\nno row\n";
        assert_eq!(rows(text), "| lab `x-y` | it was | wrong | aaaaaaa |\n");
    }

    #[test]
    fn each_seed_has_a_row_with_its_commit() {
        let blame = "^aaaaaaa  1) # Seeds that once failed.\n\
                     ?bbbbbbb  2) 17 replica # a write was lost\n\
                     ccccccc  3) quorum-off 18 # likewise\n";
        let (page, count) = page(blame);
        assert_eq!(count, 2);
        assert!(page.contains("| 17 replica | a write was lost | bbbbbbb |\n"), "{page}");
        assert!(page.ends_with("| quorum-off 18 | a write was lost | ccccccc |\n"), "{page}");
    }
}

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

The newest first, from `seeds/elsewhere.list`. Most have a test in the commit that mended them, or soon after it, or are looked for by the lab that found
them; some were read only.

| found by | what was wrong | mended in |
|---|---|---|
";

/// Writes the page. Nothing is written if the list names a commit that this history does not have; commits after its newest one that say how
/// what they mend was found, and have no line, are told.
pub(crate) fn found(project: &Project) -> bool {
    match written(project) {
        Ok(said) => {
            println!("{said}");
            true
        }
        Err(why) => {
            eprintln!("found: {why}");
            false
        }
    }
}

fn written(project: &Project) -> Result<String, String> {
    let words = ["blame", "-s", "--abbrev=7", "--ignore-revs-file", ".git-blame-ignore-revs"];
    let blame = git(project, &[&words[..], &["seeds/found.txt"]].concat())?;
    let elsewhere = fs::read_to_string(project.root.join(ELSEWHERE))
        .map_err(|error| format!("{ELSEWHERE}: {error}"))?;
    let lines = lines(&elsewhere)?;
    let history = git(project, &["log", "--format=%H"])?;
    if let Some(line) = lines.iter().find(|line| !history.lines().any(|id| id.starts_with(line.0)))
    {
        return Err(format!("{ELSEWHERE}: there is no commit {}: {}", line.0, line.2));
    }
    if let Some(newest) = lines.first() {
        let since = format!("{}..HEAD", newest.0);
        let told = ["log", "--format=%h %s", "--grep=^Found by:", &since];
        for commit in git(project, &told)?.lines() {
            eprintln!(
                "found: it says how it was found, and {ELSEWHERE} has no line of it: {commit}"
            );
        }
    }
    let (mut page, count) = page(&blame);
    page.push_str(ELSEWHERE_HEAD);
    page.push_str(&rows(&lines));
    let path = project.root.join(PAGE);
    fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("found: {count} seeds, and {} that others found, in {PAGE}", lines.len()))
}

/// What git says to these words.
fn git(project: &Project, words: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(&project.root).args(words).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What was found elsewhere: the commit that mended it, who found it, and what was wrong.
type Line<'a> = (&'a str, &'a str, &'a str);

fn lines(text: &str) -> Result<Vec<Line<'_>>, String> {
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.splitn(3, " | ");
        let (Some(commit), Some(who), Some(what)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(format!(
                "{ELSEWHERE}: not a commit, who found it, and what was wrong: {line}"
            ));
        };
        if commit.len() != 7 || commit.contains(|letter: char| !letter.is_ascii_hexdigit()) {
            return Err(format!("{ELSEWHERE}: a commit has seven digits: {line}"));
        }
        lines.push((commit, who, what));
    }
    Ok(lines)
}

/// The same, a row each.
fn rows(lines: &[Line<'_>]) -> String {
    let mut rows = String::new();
    for (commit, who, what) in lines {
        writeln!(rows, "| {who} | {what} | {commit} |").expect("a string takes all");
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
    use super::{ELSEWHERE, PAGE, lines, page, rows};

    #[test]
    fn what_was_found_elsewhere_has_a_row_with_its_commit() {
        let text = "# a word\naaaaaaa | lab `x-y` | it was | wrong\n";
        let rows = lines(text).map(|lines| rows(&lines));
        assert_eq!(rows, Ok("| lab `x-y` | it was | wrong | aaaaaaa |\n".to_owned()));
        for text in
            ["no row", "aaaaaaa | reading", "aaaaaaa1 | reading | it", "ggggggg | reading | it"]
        {
            assert!(lines(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_page_has_every_line_of_the_list() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read =
            |path: &str| std::fs::read_to_string(root.join(path)).expect("it is in the tree");
        let (list, page) = (read(ELSEWHERE), read(PAGE));
        let rows = rows(&lines(&list).expect("it can be read"));
        assert!(page.ends_with(&rows), "`cargo xtask found` writes it anew");
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

//! `cargo xtask record`: runs another command and writes what it printed into `docs/results.md`.
//!
//! Each kind of command has a section of its own, which the newest run replaces. A section names the command, the
//! revision, the machine, how long it took and how it ended, so that whoever reads a number can ask for it again.
//!
//! Not here: what is worth recording; nothing is recorded unasked.

mod again;

use crate::project::Project;
use crate::steps::revision;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

const PAGE: &str = "docs/results.md";

const HEAD: &str = "\
# Results

What the project's own commands found, as they printed it: `cargo xtask record COMMAND…` runs a command and replaces its
section here. Nothing on this page is written by hand.
";

/// Commands whose results are kept, in the order of the page.
const KINDS: &[&str] = &[
    "sim",
    "sim --twice",
    "sim --quorum-off",
    "sim --quorum-off --twice",
    "scenarios",
    "check",
    "check --deep",
    "alarm",
    "alarm --check",
    "lab",
    "lab --quick",
    "lab vm",
    "lab endurance",
    "fuzz",
    "counts",
    "test",
];

/// Runs `cargo xtask` with these words and writes down what it printed. Returns whether it succeeded.
pub(crate) fn record(project: &Project, words: &[String]) -> bool {
    let Some(kind) = kind_of(words) else {
        eprintln!("record: one of {} is recorded", KINDS.join(", "));
        return false;
    };
    let path = project.root.join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_else(|_| HEAD.to_owned());
    let old = match again::section(project, &page, words) {
        Ok(old) => old,
        Err(why) => {
            eprintln!("record: {why}");
            return false;
        }
    };
    // Before it: what is committed meanwhile was not run.
    let revision = revision(project, "HEAD");
    let begun = Instant::now();
    let (printed, passed) = match run(words) {
        Ok(done) => done,
        Err(error) => {
            eprintln!("record: {error}");
            return false;
        }
    };
    // Where this tree lies is nobody's business.
    let printed = printed.replace(&*project.root.to_string_lossy(), ".");
    let printed = if kind == "test" { summary(&printed) } else { &printed };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let seconds = begun.elapsed().as_secs();
    let ended = if passed { "passed" } else { "FAILED" };
    let section = match old.and_then(|old| again::with_rows(old, &revision, printed)) {
        Some(section) => section,
        None => format!(
            "## `cargo xtask {}`\n\nRevision {revision}, {cores} cores, {seconds} s with the build: {ended}.\n\n```text\n{printed}```\n{}",
            words.join(" "),
            if kind == "scenarios" { areas(printed) } else { String::new() }
        ),
    };
    if let Err(error) = fs::write(&path, replaced(&page, kind, &section)) {
        eprintln!("record: {}: {error}", path.display());
        return false;
    }
    println!("record: {PAGE} has it");
    passed
}

/// Of all that `cargo xtask test` prints, how each step went and how long it took.
fn summary(printed: &str) -> &str {
    printed.rsplit_once("=== summary\n").map_or("", |(_, summary)| summary)
}

/// How many scenarios were run of each area, which is the first word of a name, and how many of them came true. Those of the divergence
/// catalogue, `d01` and the like, are one area.
fn areas(printed: &str) -> String {
    let mut areas: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for line in printed.lines() {
        let (Some((word, rest)), false) = (line.split_once(' '), line.starts_with('{')) else {
            continue;
        };
        if !["ok", "FAIL"].contains(&word) {
            continue;
        }
        let name = rest.trim().split([' ', ':']).next().unwrap_or_default();
        let first = name.split('-').next().unwrap_or_default();
        let number = first.strip_prefix('d').filter(|rest| !rest.is_empty());
        let is_numbered = number.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let [all, well] = areas.entry(if is_numbered { "d" } else { first }).or_default();
        *all += 1;
        *well += u64::from(word == "ok");
    }
    let mut text = String::from("\n| area | scenarios | came true |\n|---|---|---|\n");
    for (area, [all, well]) in areas {
        text.push_str(&format!("| {area} | {all} | {well} |\n"));
    }
    text
}

/// Which section the words belong to.
fn kind_of(words: &[String]) -> Option<&'static str> {
    let is_in = |kind: &str| kind.split(' ').all(|part| words.iter().any(|word| word == part));
    let first = words.first()?;
    let fits =
        KINDS.iter().copied().filter(|kind| kind.split(' ').next() == Some(first) && is_in(kind));
    fits.max_by_key(|kind| kind.len())
}

/// Runs the command; what it prints goes to this program's output, too.
fn run(words: &[String]) -> std::io::Result<(String, bool)> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(words).stdout(Stdio::piped()).spawn()?;
    let mut printed = String::new();
    let output = child.stdout.take().expect("it was asked for");
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        printed.push_str(line.trim_end());
        printed.push('\n');
    }
    Ok((printed, child.wait()?.success()))
}

/// The page with the section of this kind replaced, or put in its place among the others.
fn replaced(page: &str, kind: &str, section: &str) -> String {
    let mut parts = page.split("\n## `cargo xtask ");
    let head = parts.next().unwrap_or_default().trim_end();
    let mut sections: Vec<(usize, String)> = parts
        .filter_map(|part| {
            let old = kind_of(&words_of(part)).filter(|old| *old != kind)?;
            Some((place_of(old), format!("## `cargo xtask {}", part.trim_end())))
        })
        .collect();
    sections.push((place_of(kind), section.trim_end().to_owned()));
    sections.sort();
    let mut text = head.to_owned();
    for (_, section) in sections {
        text.push_str("\n\n");
        text.push_str(&section);
    }
    text.push('\n');
    text
}

/// The words of the command that a section is of.
fn words_of(section: &str) -> Vec<String> {
    section.split('`').next().unwrap_or_default().split(' ').map(str::to_owned).collect()
}

fn place_of(kind: &str) -> usize {
    KINDS.iter().position(|other| *other == kind).unwrap_or(KINDS.len())
}

#[cfg(test)]
mod tests {
    use super::{HEAD, areas, kind_of, replaced, summary};

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_longest_kind_that_fits_is_meant() {
        assert_eq!(kind_of(&words("sim --runs 5")), Some("sim"));
        assert_eq!(kind_of(&words("sim --runs 5 --quorum-off")), Some("sim --quorum-off"));
        let both = "sim --twice --runs 5 --quorum-off";
        assert_eq!(kind_of(&words("sim --runs 5 --twice")), Some("sim --twice"));
        assert_eq!(kind_of(&words(both)), Some("sim --quorum-off --twice"));
        assert_eq!(kind_of(&words("check reign --deep")), Some("check --deep"));
        assert_eq!(kind_of(&words("check reign")), Some("check"));
        assert_eq!(kind_of(&words("lab vm")), Some("lab vm"));
        assert_eq!(kind_of(&words("lab --quick")), Some("lab --quick"));
        assert_eq!(kind_of(&words("tidy")), None);
    }

    #[test]
    fn of_all_tests_the_table_at_the_end_is_kept() {
        let printed = "=== fmt\n=== summary\nan older one\n=== summary\nfmt      ok  1.0 s\n";
        assert_eq!(summary(printed), "fmt      ok  1.0 s\n");
        assert_eq!(summary("=== fmt\n"), "");
    }

    #[test]
    fn scenarios_are_counted_by_the_first_word_of_their_names() {
        let printed = "ok    alone-here\nok    d01-one-thing\nFAIL  d22-another: line 3: it is not so\n\
            ok    diskless-node\n{\"runs\":4,\"failures\":1}\n";
        let rows = "| alone | 1 | 1 |\n| d | 2 | 1 |\n| diskless | 1 | 1 |\n";
        assert!(areas(printed).ends_with(&format!("|---|---|---|\n{rows}")), "{}", areas(printed));
    }

    #[test]
    fn a_section_replaces_that_of_its_kind_and_stands_in_order() {
        let section = |words: &str| format!("## `cargo xtask {words}`\n\nsaid\n");
        let one = replaced(HEAD, "fuzz", &section("fuzz --seconds 3"));
        let two = replaced(&one, "sim", &section("sim --runs 5"));
        let three = replaced(&two, "sim", &section("sim --runs 6"));
        let fuzz = three.find("fuzz --seconds 3").expect("kept");
        let sim = three.find("sim --runs 6").expect("put in");
        assert!(
            three.starts_with(HEAD.trim_end()) && sim < fuzz && !three.contains("--runs 5"),
            "{three}"
        );
        assert_eq!(replaced(&three, "sim", &section("sim --runs 6")), three);
    }
}

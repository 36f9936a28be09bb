//! `cargo xtask record`: runs another command and writes what it printed into `docs/results.md`.
//!
//! Each kind of command has a section of its own, which the newest run replaces. A section names the command, the
//! revision, the machine, how long it took and how it ended, so that whoever reads a number can ask for it again.
//!
//! Not here: what is worth recording; nothing is recorded unasked.

use crate::project::Project;
use crate::steps::revision;
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
    "sim --quorum-off",
    "scenarios",
    "check",
    "alarm",
    "alarm --check",
    "lab",
    "lab --quick",
    "lab vm",
    "lab endurance",
    "fuzz",
    "counts",
];

/// Runs `cargo xtask` with these words and writes down what it printed. Returns whether it succeeded.
pub(crate) fn record(project: &Project, words: &[String]) -> bool {
    let Some(kind) = kind_of(words) else {
        eprintln!("record: one of {} is recorded", KINDS.join(", "));
        return false;
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
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let seconds = begun.elapsed().as_secs();
    let ended = if passed { "passed" } else { "FAILED" };
    let section = format!(
        "## `cargo xtask {}`\n\nRevision {revision}, {cores} cores, {seconds} s with the build: {ended}.\n\n```text\n{printed}```\n",
        words.join(" ")
    );
    let path = project.root.join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_else(|_| HEAD.to_owned());
    if let Err(error) = fs::write(&path, replaced(&page, kind, &section)) {
        eprintln!("record: {}: {error}", path.display());
        return false;
    }
    println!("record: {PAGE} has it");
    passed
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
            let words: Vec<String> =
                part.split('`').next()?.split(' ').map(str::to_owned).collect();
            let old = kind_of(&words).filter(|old| *old != kind)?;
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

fn place_of(kind: &str) -> usize {
    KINDS.iter().position(|other| *other == kind).unwrap_or(KINDS.len())
}

#[cfg(test)]
mod tests {
    use super::{HEAD, kind_of, replaced};

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_longest_kind_that_fits_is_meant() {
        assert_eq!(kind_of(&words("sim --runs 5")), Some("sim"));
        assert_eq!(kind_of(&words("sim --runs 5 --quorum-off")), Some("sim --quorum-off"));
        assert_eq!(kind_of(&words("lab vm")), Some("lab vm"));
        assert_eq!(kind_of(&words("lab --quick")), Some("lab --quick"));
        assert_eq!(kind_of(&words("tidy")), None);
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

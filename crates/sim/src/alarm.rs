//! The alarm: known bugs are planted in a copy of the project, one after the other, and the simulator
//! must find each.
//!
//! A canary is a patch in `crates/sim/canaries`. Its head says in words what is broken. Lines there say which rules of
//! `docs/rules.md` it breaks (`Rule: 4, 24`; none: it breaks something else that is promised), and what must ring
//! (`Scenario:`, `Check:` a story of the register's search, `Test:` a test of `replica`); without, a campaign must, of plans
//! with the features of `With:`, or of a resource without quorum (`Quorum: off`). Of a scenario or a campaign `Checker:` says
//! which checker must see it, or which of several; `story` is a line of the scenario itself. No build option or variable changes
//! what the replica code decides; the copy is built as it is, with one patch.
//!
//! Not here: the checkers that find them.

mod build;
#[cfg(test)]
mod tests;

pub use build::check;

use crate::checkers::named_in;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Plants each canary whose name is in `names` (all, if empty) and runs up to `runs` seeds; true if
/// all were found.
///
/// # Errors
/// The copy cannot be made, or a patch does not apply or build.
pub fn alarm(names: &[String], runs: u64) -> io::Result<bool> {
    let root = root()?;
    let copy = std::env::temp_dir().join(format!("lockstep-alarm-{}", std::process::id()));
    let found = each(&root, &copy, names, runs);
    let removed = fs::remove_dir_all(&copy);
    let all = found?;
    removed?;
    Ok(all)
}

fn each(root: &Path, copy: &Path, names: &[String], runs: u64) -> io::Result<bool> {
    let mut canaries = canaries(root)?;
    let unknown = unknown(&canaries, names);
    canaries.retain(|path| names.is_empty() || names.iter().any(|name| name_of(path) == *name));
    let mut missed = unknown;
    let tree = copy.join("tree");
    copy_tree(root, &tree)?;
    for canary in &canaries {
        let verdict = if patch(&tree, canary, &["--forward"])? {
            let verdict = plant(&tree, &copy.join("target"), canary, runs)?;
            if !patch(&tree, canary, &["--reverse"])? {
                return Err(io::Error::other("a patch that applied cannot be taken back"));
            }
            verdict
        } else {
            // Part of it may have been applied.
            fs::remove_dir_all(&tree)?;
            copy_tree(root, &tree)?;
            "does not apply".to_owned()
        };
        println!("{:<48} {verdict}", name_of(canary));
        missed += usize::from(!verdict.starts_with("found"));
    }
    println!("{{\"runs\":{},\"failures\":{missed}}}", canaries.len());
    Ok(missed == 0)
}

/// Says which names are no canary's; how many.
fn unknown(canaries: &[PathBuf], names: &[String]) -> usize {
    let unknown = names.iter().filter(|name| canaries.iter().all(|path| name_of(path) != **name));
    unknown.map(|name| println!("{name:<48} there is no such canary")).count()
}

/// Every canary, in order.
fn canaries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = root.join("crates/sim/canaries");
    let mut found: Vec<PathBuf> = fs::read_dir(&folder)?
        .chain(fs::read_dir(folder.join("register"))?)
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    found.sort();
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned())
}

pub(crate) fn root() -> io::Result<PathBuf> {
    let mut at = std::env::current_dir()?;
    while !at.join("crates/sim/canaries").is_dir() {
        if !at.pop() {
            return Err(io::Error::other("run it inside the project"));
        }
    }
    Ok(at)
}

/// Copies what a build of the simulator needs.
fn copy_tree(root: &Path, tree: &Path) -> io::Result<()> {
    for name in ["base", "wire", "replica", "sim"] {
        copy_folder(&root.join("crates").join(name), &tree.join("crates").join(name))?;
    }
    fs::copy(root.join("Cargo.toml"), tree.join("Cargo.toml"))?;
    fs::copy(root.join("Cargo.lock"), tree.join("Cargo.lock"))?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// What is broken and what must ring: lines of the patch's head.
#[derive(Debug, Default)]
struct Head {
    /// `Rule: N, M`.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with docs/rules.md"))]
    rules: Vec<u32>,
    /// `Scenario: NAME`.
    scenario: Option<String>,
    /// `Check: NAME`, a story of the register's search.
    check: Option<String>,
    /// `Test: NAME`, a test of `replica`.
    test: Option<String>,
    /// `With: NAME,…`, features of the campaign's plan.
    with: Option<String>,
    /// `Quorum: off`: a campaign of a resource without quorum.
    quorum_off: bool,
    /// `Checker: NAME, NAME`: one of these must see it.
    checkers: Vec<String>,
}

fn head_of(canary: &Path) -> io::Result<Head> {
    let text = fs::read_to_string(canary)?;
    let head: Vec<&str> = text.lines().take_while(|line| !line.starts_with("--- ")).collect();
    let line =
        |start: &str| head.iter().find_map(|line| line.strip_prefix(start).map(str::to_owned));
    let rules = line("Rule: ").unwrap_or_default();
    Ok(Head {
        rules: rules.split(", ").filter_map(|rule| rule.parse().ok()).collect(),
        scenario: line("Scenario: "),
        check: line("Check: "),
        test: line("Test: "),
        with: line("With: "),
        quorum_off: line("Quorum: ").is_some_and(|quorum| quorum == "off"),
        checkers: line("Checker: ")
            .map_or_else(Vec::new, |names| names.split(", ").map(str::to_owned).collect()),
    })
}

/// Applies a patch to the tree, or takes it back; whether it fits.
fn patch(tree: &Path, canary: &Path, how: &[&str]) -> io::Result<bool> {
    let mut command = Command::new("patch");
    command.args(["-p1", "--silent", "--no-backup-if-mismatch", "--reject-file=-"]).args(how);
    Ok(command.arg("-i").arg(canary).current_dir(tree).stdout(Stdio::null()).status()?.success())
}

/// Builds a tree with its patch and runs what must ring; says what came of it.
fn plant(tree: &Path, target: &Path, canary: &Path, runs: u64) -> io::Result<String> {
    let head = head_of(canary)?;
    if let Some(test) = &head.test {
        return tested(tree, target, test);
    }
    let built = Command::new("cargo")
        .args(["build", "--offline", "--quiet", "--package", "sim"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(tree)
        .status()?;
    if !built.success() {
        return Ok("does not build".to_owned());
    }
    let sim = || {
        let mut command = Command::new(target.join("debug/sim"));
        command.current_dir(tree);
        command
    };
    if let Some(story) = &head.check {
        let output = sim().args(["check", story]).output()?;
        return Ok(verdict(&output.stdout, "{\"scenarios\":", None));
    }
    let output = sim().arg("scenarios").output()?;
    let output = String::from_utf8_lossy(&output.stdout);
    let rings: Vec<(&str, &str)> =
        output.lines().filter_map(|line| line.strip_prefix("FAIL  ")?.split_once(": ")).collect();
    let all: Vec<&str> = rings.iter().map(|(name, _)| *name).collect();
    let all = if all.is_empty() { "none".to_owned() } else { all.join(" ") };
    if let Some(wanted) = &head.scenario {
        let found = rings.iter().find(|(name, _)| name == wanted);
        let words = match found {
            Some((_, words)) => format!("{}, scenario {wanted}", caught(words, &head.checkers)),
            None => format!("MISSED by scenario {wanted}"),
        };
        return Ok(format!("{words}; scenarios: {all}"));
    }
    let runs = runs.to_string();
    let mut campaign = sim();
    campaign.args(["--failures", "1", "--runs", &runs]);
    match head.quorum_off {
        true => campaign.arg("--quorum-off"),
        false => campaign.args(["--with", head.with.as_deref().unwrap_or_default()]),
    };
    if head.checkers.iter().any(|checker| checker == "same again") {
        campaign.arg("--twice");
    }
    let output = campaign.output()?;
    let words = verdict(&output.stdout, "{\"runs\":", Some(&head.checkers));
    Ok(format!("{words}; scenarios: {all}"))
}

/// The first failure that was printed, and the last line that begins with `count`.
fn verdict(output: &[u8], count: &str, checkers: Option<&[String]>) -> String {
    let text = String::from_utf8_lossy(output);
    let count = text.lines().rev().find(|line| line.starts_with(count)).unwrap_or("no answer");
    let failure = text.lines().find_map(|line| line.strip_prefix("FAIL  "));
    match (failure, checkers) {
        (Some(words), Some(checkers)) => format!("{}, {count}: {words}", caught(words, checkers)),
        (Some(words), None) => format!("found {count} by {words}"),
        (None, _) => format!("MISSED {count}"),
    }
}

/// Which checker saw it, and whether it is one of those that were to.
fn caught(words: &str, checkers: &[String]) -> String {
    let checker = named_in(words);
    if checkers.iter().any(|named| named == checker) {
        return format!("found by {checker}");
    }
    let named = if checkers.is_empty() { "nothing".to_owned() } else { checkers.join(", ") };
    format!("CAUGHT by {checker}, where {named} should have")
}

/// Runs one test of `replica`, which must fail.
fn tested(tree: &Path, target: &Path, test: &str) -> io::Result<String> {
    let output = Command::new("cargo")
        .args(["test", "--offline", "--quiet", "--package", "replica", "--lib", "--", test])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(tree)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(if text.contains("test result: FAILED") {
        format!("found by the test {test}")
    } else if output.status.success() {
        format!("MISSED by the test {test}")
    } else {
        "does not build".to_owned()
    })
}

//! The alarm: known bugs are planted in a copy of the project, one after the other, and the simulator
//! must find each.
//!
//! A canary is a patch in `crates/sim/canaries`. Its head says in words what is broken. Lines there say which rules of
//! `docs/rules.md` it breaks (`Rule: 4, 24`), and what must ring (`Scenario:`, `Check:` a story of the register's search,
//! `Test:` a test of `replica`); without, a campaign must, of plans with the features of `With:`. No build option or variable
//! changes what the replica code decides; the copy is built as it is, with one patch.
//!
//! Not here: the checkers that find them.

mod build;
#[cfg(test)]
mod tests;

pub use build::check;

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
    canaries.retain(|path| names.is_empty() || names.iter().any(|name| name_of(path) == *name));
    let mut missed = 0;
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
        missed += u32::from(!verdict.starts_with("found"));
    }
    println!("{{\"runs\":{},\"failures\":{missed}}}", canaries.len());
    Ok(missed == 0)
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
        return Ok(verdict(&output.stdout, "{\"scenarios\":"));
    }
    let output = sim().arg("scenarios").output()?;
    let rings: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| Some(line.strip_prefix("FAIL  ")?.split(':').next()?.to_owned()))
        .collect();
    let rings = if rings.is_empty() { "none".to_owned() } else { rings.join(" ") };
    if let Some(wanted) = head.scenario {
        let found = rings.split(' ').any(|name| name == wanted);
        let word = if found { "found" } else { "MISSED" };
        return Ok(format!("{word} by scenario {wanted}; scenarios: {rings}"));
    }
    let with = head.with.unwrap_or_default();
    let runs = runs.to_string();
    let output = sim().args(["--failures", "1", "--with", &with, "--runs", &runs]).output()?;
    Ok(format!("{}; scenarios: {rings}", verdict(&output.stdout, "{\"runs\":")))
}

/// The last failure that was printed, and the last line that begins with `count`.
fn verdict(output: &[u8], count: &str) -> String {
    let text = String::from_utf8_lossy(output);
    let line = |start: &str| text.lines().rev().find(|line| line.starts_with(start));
    let count = line(count).unwrap_or("no answer");
    match line("FAIL") {
        Some(words) => format!("found {count} by {}", words.trim_start_matches("FAIL").trim()),
        None => format!("MISSED {count}"),
    }
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

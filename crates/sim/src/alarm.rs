//! The alarm: known bugs are planted in a copy of the project, one after the other, and the simulator
//! must find each.
//!
//! A canary is a patch in `crates/sim/canaries`. No build option or variable changes what the replica
//! code decides; the copy is built as it is, with one patch.
//!
//! Not here: the checkers that find them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    let mut canaries: Vec<PathBuf> = fs::read_dir(root.join("crates/sim/canaries"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .filter(|path| names.is_empty() || names.iter().any(|name| name_of(path) == *name))
        .collect();
    canaries.sort();
    let mut missed = 0;
    for canary in &canaries {
        let tree = copy.join("tree");
        copy_tree(root, &tree)?;
        let verdict = plant(&tree, &copy.join("target"), canary, runs)?;
        println!("{:<32} {verdict}", name_of(canary));
        missed += u32::from(!verdict.starts_with("found"));
        fs::remove_dir_all(&tree)?;
    }
    println!("{{\"canaries\":{},\"missed\":{missed}}}", canaries.len());
    Ok(missed == 0)
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

/// The scenario that must ring, if the patch names one: a line `Scenario: NAME` in its head.
fn wanted_scenario(canary: &Path) -> io::Result<Option<String>> {
    let text = fs::read_to_string(canary)?;
    let mut head = text.lines().take_while(|line| !line.starts_with("--- "));
    Ok(head.find_map(|line| line.strip_prefix("Scenario: ").map(str::to_owned)))
}

/// Applies one patch, builds, runs; says what came of it.
fn plant(tree: &Path, target: &Path, canary: &Path, runs: u64) -> io::Result<String> {
    let patched = Command::new("patch")
        .args(["-p1", "--silent", "-i"])
        .arg(canary)
        .current_dir(tree)
        .status()?;
    if !patched.success() {
        return Ok("does not apply".to_owned());
    }
    let built = Command::new("cargo")
        .args(["build", "--offline", "--quiet", "--package", "sim"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(tree)
        .status()?;
    if !built.success() {
        return Ok("does not build".to_owned());
    }
    let output =
        Command::new(target.join("debug/sim")).arg("scenarios").current_dir(tree).output()?;
    let rings: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| Some(line.strip_prefix("FAIL  ")?.split(':').next()?.to_owned()))
        .collect();
    let rings = if rings.is_empty() { "none".to_owned() } else { rings.join(" ") };
    let wanted = wanted_scenario(canary)?;
    if wanted.as_ref().is_some_and(|wanted| !rings.split(' ').any(|name| name == wanted)) {
        return Ok(format!(
            "MISSED by scenario {}; scenarios: {rings}",
            wanted.unwrap_or_default()
        ));
    }
    let output = Command::new(target.join("debug/sim"))
        .args(["--failures", "1", "--runs", &runs.to_string()])
        .current_dir(tree)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |start: &str| text.lines().rev().find(|line| line.starts_with(start));
    let count = line("{\"runs\":").unwrap_or("no answer");
    Ok(match line("FAIL") {
        Some(words) => {
            let words = words.trim_start_matches("FAIL").trim();
            format!("found {count} by {words}; scenarios: {rings}")
        }
        None if wanted.is_some() => format!("found by scenarios: {rings}; not by seeds: {count}"),
        None => format!("MISSED {count}"),
    })
}

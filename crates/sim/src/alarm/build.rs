//! Whether every canary still applies and builds, without running any: less than a minute, where the alarm takes hours.
//!
//! Canaries that apply one after the other are built together. Only if that fails is each of them built
//! alone, to name the one that does not.
//!
//! Always: the copy and what is built of it stay below `target`, so that the next look builds only what has
//! changed since.

use super::{canaries, copy_tree, name_of, patch};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Looks at each canary whose name is in `names` (all, if empty); true if all apply and build.
///
/// # Errors
/// The copy cannot be made, or no compiler can be started.
pub fn check(names: &[String]) -> io::Result<bool> {
    let root = super::root()?;
    let all = canaries(&root)?;
    let mut left = all.clone();
    left.retain(|path| names.is_empty() || names.iter().any(|name| name_of(path) == *name));
    let count = left.len();
    let unknown = super::unknown(&all, names);
    let place = root.join("target/alarm");
    let mut copy = Copy { tree: place.join("tree"), target: place.join("target"), root };
    copy.make()?;
    if !copy.builds()? {
        println!("what has no canary in it does not build");
        println!("{{\"runs\":0,\"failures\":1}}");
        return Ok(false);
    }
    let mut bad = Vec::new();
    while !left.is_empty() {
        let (together, later) = copy.apply(&left)?;
        if together.is_empty() {
            bad.extend(later.iter().map(|canary| (name_of(canary), "does not apply")));
            break;
        }
        if !copy.builds()? {
            for canary in &together {
                copy.make()?;
                copy.apply(std::slice::from_ref(canary))?;
                if !copy.builds()? {
                    bad.push((name_of(canary), "does not build"));
                }
            }
        }
        println!("{} canaries looked at together", together.len());
        copy.make()?;
        left = later;
    }
    for (name, what) in &bad {
        println!("{name:<48} {what}");
    }
    println!("{{\"runs\":{count},\"failures\":{}}}", bad.len() + unknown);
    Ok(bad.is_empty() && unknown == 0)
}

/// A copy of the project.
struct Copy {
    root: PathBuf,
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Makes it as the project is: what differs is written, so that nothing else is built again.
    fn make(&mut self) -> io::Result<()> {
        let fresh = self.tree.with_extension("fresh");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        copy_tree(&self.root, &fresh)?;
        let outcome = renew(&fresh, &self.tree);
        fs::remove_dir_all(&fresh)?;
        outcome
    }

    /// Applies what applies, one after the other; returns that, and the rest.
    fn apply(&self, wanted: &[PathBuf]) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for canary in wanted {
            let fits = patch(&self.tree, canary, &["--forward", "--dry-run"])?;
            if fits && patch(&self.tree, canary, &["--forward"])? {
                done.push(canary.clone());
            } else {
                rest.push(canary.clone());
            }
        }
        Ok((done, rest))
    }

    /// Whether everything that a canary is looked for with builds: the simulator, and the tests of `replica`.
    fn builds(&self) -> io::Result<bool> {
        let check = |words: &[&str]| -> io::Result<bool> {
            let status = Command::new("cargo")
                .args(["check", "--offline", "--quiet"])
                .args(words)
                .env("CARGO_TARGET_DIR", &self.target)
                .env("RUSTFLAGS", "--cap-lints=allow")
                .current_dir(&self.tree)
                .status()?;
            Ok(status.success())
        };
        Ok(check(&["--package", "sim"])? && check(&["--package", "replica", "--lib", "--tests"])?)
    }
}

/// Makes `to` hold what `from` does; what is equal is not touched.
fn renew(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let is_gone = !from.join(entry.file_name()).exists();
        if is_gone && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if is_gone {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            renew(&entry.path(), &target)?;
        } else if fs::read(&target).ok().as_deref() != Some(&*fs::read(entry.path())?) {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

//! Reads the texts that the rules look at: what git tracks, and what it would if it were added.

use super::scan;
use crate::project::output;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where exceptions to the size limits stand.
pub(super) const RATCHET_FILE: &str = "crates/xtask/tidy.toml";

/// A text file of the tree.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Its path, relative to the workspace's root, with forward slashes.
    pub(super) path: String,
    /// What it holds.
    pub(super) text: String,
    /// Rust only: the text with comments and the inside of literals blanked.
    pub(super) code: Option<String>,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Source {
        let code = path.ends_with(".rs").then(|| scan::blank(text));
        Source { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// The name of the crate the file lies in, if it lies in one.
    pub(super) fn member(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

/// Reads every text file below `root`; what is not UTF-8 is no text and left out.
pub(super) fn read(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in list(root)? {
        match fs::read(root.join(&path)) {
            Ok(bytes) => {
                if let Ok(text) = String::from_utf8(bytes) {
                    sources.push(Source::new(&path, &text));
                }
            }
            // Deleted but not committed yet, or a link to nowhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(sources)
}

/// The text of the list of exceptions.
pub(super) fn ratchet(root: &Path) -> Result<String, String> {
    fs::read_to_string(root.join(RATCHET_FILE)).map_err(|error| format!("{RATCHET_FILE}: {error}"))
}

/// Paths of all files that are tracked, or new and not ignored.
fn list(root: &Path) -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let text = output(Command::new("git").current_dir(root).args(arguments))?;
    let mut paths: Vec<String> =
        text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

//! The node's program for tests of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

/// `lockstepd` beside the program under test: built with the workspace, or here if only this package is,
/// or if it is older than the sources.
pub(crate) fn node_program() -> PathBuf {
    static BUILT: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_lockstep"));
    let node = program.with_file_name("lockstepd");
    BUILT.call_once(|| {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let built = fs::metadata(&node).and_then(|found| found.modified());
        if built.is_ok_and(|built| newest(crates) < built) {
            return;
        }
        let target = program.parent().and_then(Path::parent).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // What cargo tells this test of its own package: a build script that looks at such words (that of `ring`)
        // would run again, and half of the dependencies be built anew, each time.
        for (word, _) in std::env::vars_os() {
            let own = ["CARGO_PKG_", "CARGO_MANIFEST_"];
            if word.to_str().is_some_and(|word| own.iter().any(|start| word.starts_with(start))) {
                cargo.env_remove(word);
            }
        }
        let status = cargo
            .args(["build", "--quiet", "--package", "lockstepd", "--target-dir"])
            .arg(target)
            .current_dir(crates)
            .status()
            .unwrap();
        assert!(status.success(), "lockstepd cannot be built");
    });
    node
}

/// When a source below `directory` was changed last, tests aside.
fn newest(directory: &Path) -> SystemTime {
    let mut last = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let changed = if path.is_dir() {
            if path.ends_with("tests") { continue } else { newest(&path) }
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "toml") {
            fs::metadata(&path).and_then(|found| found.modified()).unwrap()
        } else {
            continue;
        };
        last = last.max(changed);
    }
    last
}

//! Nodes whose kernel refuses some system calls: a small C program sets a seccomp filter and then
//! becomes the node. (The filter is set by a program of its own because only `sys` may hold `unsafe`.)

use std::path::{Path, PathBuf};
use std::process::Command as Process;

/// The program that sets filters.
pub(crate) struct Refusing {
    program: PathBuf,
}

impl Refusing {
    /// Built in a directory of the test's; `None`, and said why, where that cannot be.
    pub(crate) fn build(directory: &Path) -> Option<Refusing> {
        let program = directory.join("refuse");
        // Other crates' tests use this file, too.
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockstepd/tests/harness/refuse.c");
        let built = Process::new("cc").arg("-o").arg(&program).arg(source).output();
        match built {
            Ok(output) if output.status.success() => {}
            other => {
                println!("NOT RUN: cc cannot build a seccomp filter here: {other:?}");
                return None;
            }
        }
        let refusing = Refusing { program };
        let tried = refusing.command("chmod", 0, "/bin/true").status();
        if !tried.as_ref().is_ok_and(std::process::ExitStatus::success) {
            println!("NOT RUN: no seccomp filter can be set here: {tried:?}");
            return None;
        }
        Some(refusing)
    }

    /// Becomes `program` with a family of calls, `io_uring` or `chmod`, answered by `errno`.
    pub(crate) fn command(&self, family: &str, errno: i32, program: &str) -> Process {
        let mut command = Process::new(&self.program);
        command.args([family, &errno.to_string(), program]);
        command
    }
}

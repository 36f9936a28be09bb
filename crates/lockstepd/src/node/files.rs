//! Files beside the stores, and the stores' removal.
//!
//! Always: a file is there whole, or as it was; what is said to be removed does not come back with a power cut.
//!
//! Not here: when that is done (`lifecycle`), what stores hold (`backing`).

use std::path::{Path, PathBuf};

use wire::admin::codes;

use super::patience::patiently;
use crate::backing::{Plan, Refused};

/// Removes the stores of a copy, each that can be, the first volume's last; the first refusal is the answer.
pub(super) fn remove_each(
    plans: &[Plan],
    remove: impl Fn(&Plan) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut result = Ok(());
    for plan in plans.iter().rev() {
        // Its last operations may still be on their way to the disk.
        let removed = patiently(|| remove(plan), |refused| refused.in_use);
        result = result.and(removed);
    }
    result
}

/// Removes files of one directory for good. Those that are not there are fine.
pub(super) fn remove_files(paths: &[PathBuf]) -> Result<(), Refused> {
    let mut removed = None;
    for path in paths {
        match std::fs::remove_file(path) {
            Ok(()) => removed = path.parent(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("{}: {error}", path.display());
                return Err(Refused::new(&codes::STORE_FAILED, message));
            }
        }
    }
    let Some(directory) = removed else { return Ok(()) };
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| {
        Refused::new(&codes::STORE_FAILED, format!("{}: {error}", directory.display()))
    })
}

/// Writes a file so that it is there whole, or as it was, whatever happens. After an error it is as it was, unless the error says that
/// it may be there.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    sys::replace_file(path, bytes, 0o666)
}

#[cfg(test)]
mod tests {
    use super::replace_file;

    #[test]
    fn files_of_one_name_are_replaced_by_two_threads_at_once() {
        let name = format!("lockstepd-replaced-{:x}", sys::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let replace = |name: &str| {
            let path = directory.join(name);
            for _ in 0..300 {
                replace_file(&path, name.as_bytes()).expect("nobody else's business");
                assert_eq!(std::fs::read(&path).expect("just written"), name.as_bytes());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| replace("alpha.toml"));
            scope.spawn(|| replace("alpha.uncreated"));
        });
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

//! Files that are there whole, or as they were, whatever happens. It blocks, and is for start, stop, helpers and tools.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts `bytes` into the file at `path`, which then has this `mode`, less the process's mask: written beside it, made
/// durable, and renamed over it. Files of one directory may be replaced by several threads at once, one file by one.
///
/// # Errors
/// The kernel's; then the file is as it was. Only where the words say that it may be there is it the new one, which a loss of
/// power may take back: its directory could not be made durable after that.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    // What cannot be made durable is not begun.
    let directory = File::open(directory.unwrap_or(Path::new(".")))?;
    // Its whole name and more: files that differ behind a dot only are different ones beside, too.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // A leftover of an earlier try may have another mode: a key is never written into it.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    directory.sync_all().map_err(|error| {
        let words = format!("it may be there, and be gone after a loss of power: {error}");
        io::Error::new(error.kind(), words)
    })
}

/// Makes a directory, with those above it that lack. One that it has made is there after a loss of power.
///
/// # Errors
/// The kernel's; then some of them may be there.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if parent != path {
        make_directory(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{make_directory, replace_file};
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_whose_directory_cannot_be_made_durable_is_as_it_was() {
        let name = format!("sys-unreadable-{:x}", crate::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let file = directory.join("file");
        std::fs::write(&file, "before").expect("this test's own");
        std::fs::set_permissions(&directory, Permissions::from_mode(0o300)).expect("its own");
        if std::fs::File::open(&directory).is_ok() {
            println!("NOT RUN: whoever runs this may open everything");
        } else {
            replace_file(&file, b"after", 0o600).expect_err("nobody can open it");
            assert_eq!(std::fs::read(&file).expect("it is there"), b"before");
        }
        std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("its own");
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }

    #[test]
    fn directories_are_made_with_those_above_them_and_a_file_is_none() {
        let name = format!("sys-directories-{:x}", crate::random_u64());
        let root = std::env::temp_dir().join(name);
        let deep = root.join("one/two");
        for _ in 0..2 {
            make_directory(&deep).expect("nobody else's business");
            assert!(deep.is_dir());
        }
        std::fs::write(deep.join("file"), "").expect("this test's own");
        make_directory(&deep.join("file")).expect_err("a file is there");
        make_directory(&deep.join("file/three")).expect_err("a file is above it");
        std::fs::remove_dir_all(&root).expect("this test's own");
    }

    #[test]
    fn a_file_has_the_mode_that_is_asked_for_whatever_was_left_beside_it() {
        let name = format!("sys-replaced-{:x}", crate::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let [key, beside, other] =
            ["key.pem", "key.pem.new", "key.new"].map(|name| directory.join(name));
        for (path, mode) in [(&beside, 0o666), (&other, 0o644)] {
            std::fs::write(path, "left").expect("this test's own");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("this test's own");
        }
        replace_file(&key, b"secret", 0o600).expect("nobody else's business");
        assert_eq!(std::fs::read(&key).expect("just written"), b"secret");
        let facts = std::fs::metadata(&key).expect("just written");
        assert_eq!(facts.permissions().mode() & 0o777, 0o600);
        assert!(!beside.exists(), "what was left is gone");
        assert_eq!(std::fs::read(&other).expect("it is another's"), b"left");
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

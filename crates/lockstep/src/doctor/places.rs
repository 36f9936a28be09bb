//! Where stores lie, or are to lie: direct I/O, holes and room of a directory's file system; blocks, cache and discard of a device.
//!
//! Always: a file that was made to try is gone before anything is said; files and devices that are there are only asked,
//! never written.
//!
//! Not here: whether a store may be used for a replica (a node refuses foreign data itself).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate, major, minor, statvfs, unlink};
use sys::{DeviceFacts, Errno, File};

use super::Finding;
use crate::problem::{FILE, Problem};
use crate::unit::show_size;

/// Room below which a file system is called full, in bytes.
const ROOM_BYTES: u64 = 1 << 30;

/// The length of the hole that is tried, in bytes.
const HOLE_BYTES: u64 = 1 << 20;

/// What a store loses where direct I/O cannot be had.
const BUFFERED: &str =
    "every byte goes through the page cache: more CPU time and memory, and flushes that take long";

/// Looks at a directory, a file or a block device.
pub(super) fn look(path: &Path) -> Result<Vec<Finding>, Problem> {
    let problem =
        |error: &dyn std::fmt::Display| Problem::new(FILE, format!("{}: {error}", path.display()));
    let kind = fs::metadata(path).map_err(|error| problem(&error))?.file_type();
    if kind.is_dir() {
        return Ok(directory(path));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(problem(&"neither a directory nor a file nor a block device"));
    }
    if kind.is_block_device() {
        let facts = File::open(path, sys::OpenOptions::default()).and_then(|file| file.facts());
        return Ok(vec![device(path, facts)]);
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(directory(parent.unwrap_or(Path::new("."))))
}

/// Tries what a store in this directory would do.
fn directory(path: &Path) -> Vec<Finding> {
    let trial = match Trial::make(path) {
        Ok(trial) => trial,
        Err(error) => {
            let what = format!("store in {}", path.display());
            let remedy = "another directory, or a file system that can be written";
            return vec![
                Finding::missing(what, error, "no store can be made there", remedy).needed(),
            ];
        }
    };
    vec![trial.direct(), trial.holes(), room(path)]
}

/// A file in the directory, which goes with it.
struct Trial {
    directory: PathBuf,
    path: PathBuf,
    file: fs::File,
}

impl Trial {
    fn make(directory: &Path) -> Result<Trial, String> {
        let path = directory.join(format!(".lockstep-doctor-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(|error| error.to_string())?;
        let trial = Trial { directory: directory.to_owned(), path, file };
        fallocate(&trial.file, FallocateFlags::empty(), 0, HOLE_BYTES)
            .or_else(|_| trial.file.set_len(HOLE_BYTES).map_err(|_| rustix::io::Errno::NOSPC))
            .map_err(|errno| errno.to_string())?;
        Ok(trial)
    }

    fn what(&self, thing: &str) -> String {
        format!("{thing} in {}", self.directory.display())
    }

    fn direct(&self) -> Finding {
        let what = self.what("direct I/O");
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        if let Err(errno) = rustix::fs::open(&self.path, flags, rustix::fs::Mode::empty()) {
            return Finding::degraded(
                what,
                errno.to_string(),
                BUFFERED,
                "a file system that has it (ext4, XFS), or a block device",
            );
        }
        let block = File::open(&self.path, sys::OpenOptions::default())
            .and_then(|file| file.facts())
            .map_or(0, |facts| facts.logical_block_bytes);
        Finding::ok(what, format!("blocks of {block} bytes"))
    }

    fn holes(&self) -> Finding {
        let what = self.what("discard");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, 0, HOLE_BYTES) {
            Ok(()) => Finding::ok(what, "files can have holes"),
            Err(errno) => Finding::degraded(
                what,
                errno.to_string(),
                "what clients discard takes its room as before, and zeroes are written",
                "a file system that can punch holes (ext4, XFS, Btrfs, tmpfs)",
            ),
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        unlink(&self.path).ok();
    }
}

fn room(path: &Path) -> Finding {
    let what = format!("room in {}", path.display());
    let Ok(facts) = statvfs(path) else { return Finding::ok(what, "not told") };
    let bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
    let found = format!("{} free", show_size(bytes));
    if bytes >= ROOM_BYTES {
        return Finding::ok(what, found);
    }
    let costs = "stores in files take their room as they are written: a full file system makes replicas leave";
    Finding::degraded(what, found, costs, "room, or another file system for the stores")
}

fn device(path: &Path, facts: Result<DeviceFacts, Errno>) -> Finding {
    let what = format!("device {}", path.display());
    let facts = match facts {
        Ok(facts) => facts,
        Err(errno) => {
            let remedy = "see who may open it (owner, group, the container's devices)";
            return Finding::missing(what, errno.to_string(), "no store can be on it", remedy)
                .needed();
        }
    };
    let cache = if facts.volatile_cache { "a cache that is flushed" } else { "no volatile cache" };
    let found = format!(
        "{}, blocks of {} bytes ({} inside), {cache}",
        show_size(facts.size_bytes),
        facts.logical_block_bytes,
        facts.physical_block_bytes
    );
    let number = fs::metadata(path).map_or(0, |metadata| metadata.rdev());
    let limit =
        format!("/sys/dev/block/{}:{}/queue/discard_max_bytes", major(number), minor(number));
    let discards = fs::read_to_string(limit).is_ok_and(|text| text.trim() != "0");
    if discards {
        return Finding::ok(what, format!("{found}, discard"));
    }
    Finding::degraded(
        what,
        format!("{found}, no discard"),
        "what clients discard is written as zeroes, and a thin pool below gets nothing back",
        "nothing where the device has none; else turn it on (for dm-crypt: allow-discards)",
    )
}

#[cfg(test)]
mod tests {
    use super::look;
    use crate::doctor::Verdict;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let root =
            std::env::temp_dir().join(format!("lockstep-doctor-places-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let findings = look(&root).unwrap();
        let left = fs::read_dir(&root).unwrap().count();
        fs::write(root.join("store.img"), "kept").unwrap();
        let of_file = look(&root.join("store.img")).unwrap();
        let kept = fs::read_to_string(root.join("store.img")).unwrap();
        fs::remove_dir_all(&root).ok();
        assert_eq!((left, kept.as_str()), (0, "kept"));
        let whats = |findings: &[super::Finding]| {
            findings.iter().map(|one| one.what.clone()).collect::<Vec<_>>()
        };
        assert_eq!(findings.len(), 3);
        assert_eq!(whats(&findings), whats(&of_file));
    }

    #[test]
    fn what_is_no_place_is_an_error_and_one_that_cannot_be_written_is_missing() {
        assert!(look(Path::new("/dev/null")).unwrap_err().message.contains("neither"));
        let findings = look(Path::new("/proc")).unwrap();
        assert!(
            findings.len() == 1 && findings[0].verdict == Verdict::Missing && findings[0].needed,
            "{findings:?}"
        );
    }
}

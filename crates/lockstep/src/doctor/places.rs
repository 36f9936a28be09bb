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
        return Ok(device(path));
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
        // One of a doctor that was killed, and had the number of this process.
        fs::remove_file(&path).ok();
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
        let none = |found: String| {
            let remedy = "a file system that has it (ext4, XFS), or a block device";
            Finding::degraded(what.clone(), found, BUFFERED, remedy)
        };
        if let Err(errno) = rustix::fs::open(&self.path, flags, rustix::fs::Mode::empty()) {
            return none(errno.to_string());
        }
        match File::open(&self.path, sys::OpenOptions::default()).and_then(|file| file.facts()) {
            Ok(facts) if facts.never_direct => {
                none("the kernel says that there is none, as with data=journal".to_owned())
            }
            Ok(facts) => Finding::ok(what, shape(&facts)),
            Err(errno) => Finding::ok(what, format!("blocks of an unknown size ({errno})")),
        }
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

/// Blocks and cache.
fn shape(facts: &DeviceFacts) -> String {
    let cache = if facts.volatile_cache { "a cache that is flushed" } else { "no volatile cache" };
    let (logical, physical) = (facts.logical_block_bytes, facts.physical_block_bytes);
    format!("blocks of {logical} bytes ({physical} inside), {cache}")
}

/// What a store on this block device would do, or does.
fn device(path: &Path) -> Vec<Finding> {
    let what = format!("device {}", path.display());
    let opened = File::open(path, sys::OpenOptions::default());
    match opened.and_then(|file| file.facts()) {
        Ok(facts) => {
            let found = format!("{}, {}", show_size(facts.size_bytes), shape(&facts));
            vec![Finding::ok(what, found), device_direct(path, &facts), device_discard(path)]
        }
        Err(errno) => {
            let remedy = "see who may open it (owner, group, the container's devices)";
            let costs = "no store can be on it";
            vec![Finding::missing(what, errno.to_string(), costs, remedy).needed()]
        }
    }
}

/// Reads its first block past the page cache.
fn device_direct(path: &Path, facts: &DeviceFacts) -> Finding {
    let what = format!("direct I/O on {}", path.display());
    let options = sys::OpenOptions { direct: true, ..sys::OpenOptions::default() };
    let file = match File::open(path, options) {
        Ok(file) => file,
        Err(errno) => {
            let remedy = "the device below it, where what lies between has none";
            return Finding::degraded(what, errno.to_string(), BUFFERED, remedy);
        }
    };
    let block = facts.logical_block_bytes as usize;
    let mut memory = vec![0; 2 * block];
    let aligned = memory.as_ptr().align_offset(block);
    let read = memory.get_mut(aligned..aligned + block).ok_or(Errno::INVALID);
    match read.and_then(|place| file.read_now(place, 0)) {
        Ok(()) => Finding::ok(what, "its first block was read"),
        Err(errno) => Finding::missing(
            what,
            format!("its first block cannot be read: {errno}"),
            "no store can be on it",
            "what the kernel's log (dmesg) says of it, or another device",
        )
        .needed(),
    }
}

/// What the kernel says of it: to try it would lose what is there.
fn device_discard(path: &Path) -> Finding {
    let what = format!("discard on {}", path.display());
    let number = fs::metadata(path).map_or(0, |metadata| metadata.rdev());
    let (major, minor) = (major(number), minor(number));
    // A partition has the limits of its disk.
    let limit = ["queue", "../queue"].into_iter().find_map(|queue| {
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes")).ok()
    });
    let found = match limit.as_deref().map(str::trim_end) {
        Some("0") => "the kernel says that it has none",
        Some(_) => return Finding::ok(what, "the kernel says that it has it"),
        None => "the kernel does not say whether it has it",
    };
    Finding::degraded(
        what,
        found,
        "what clients discard is written as zeroes, and a thin pool below gets nothing back",
        "nothing where the device has none; else turn it on (for dm-crypt: allow-discards)",
    )
}

#[cfg(test)]
mod tests {
    use super::look;
    use crate::doctor::{Finding, Verdict};
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let root =
            std::env::temp_dir().join(format!("lockstep-doctor-places-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let stale = root.join(format!(".lockstep-doctor-{}", std::process::id()));
        fs::write(&stale, "of one that was killed").unwrap();
        let findings = look(&root).unwrap();
        let left = fs::read_dir(&root).unwrap().count();
        fs::write(root.join("store.img"), "kept").unwrap();
        let of_file = look(&root.join("store.img")).unwrap();
        let kept = fs::read_to_string(root.join("store.img")).unwrap();
        fs::remove_dir_all(&root).ok();
        assert_eq!((left, kept.as_str()), (0, "kept"));
        let whats =
            |findings: &[Finding]| findings.iter().map(|one| one.what.clone()).collect::<Vec<_>>();
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

    /// A directory with a file of 8 MiB, and a loop device over it, which go with it.
    struct Loop {
        directory: PathBuf,
        device: PathBuf,
    }

    impl Loop {
        fn of(name: &str) -> Option<Loop> {
            Loop::made_by(name, "truncate -s 8M \"$0\"/image; losetup --find --show \"$0\"/image")
        }

        /// Over a file of a file system that has no holes, and that goes when nobody has the file open.
        fn without_discard(name: &str) -> Option<Loop> {
            let mount = "mount -t ramfs none \"$0\"; truncate -s 8M \"$0\"/image; losetup --find --show \"$0\"/image";
            Loop::made_by(name, &format!("unshare --mount sh -ec '{}' \"$0\"", mount))
        }

        fn made_by(name: &str, script: &str) -> Option<Loop> {
            let name = format!("lockstep-doctor-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            let output = Command::new("sh").args(["-ec", script]).arg(&directory).output().unwrap();
            let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            let made = Loop { directory, device };
            if !output.status.success() {
                println!("NOT RUN: no such loop device: {output:?}");
                return None;
            }
            Some(made)
        }

        fn image(&self) -> PathBuf {
            self.directory.join("image")
        }

        /// Verdicts and words: of the device, of direct I/O, of discard.
        fn look(&self) -> Vec<(Verdict, String)> {
            let findings = look(&self.device).unwrap();
            let device = self.device.display();
            let whats: Vec<&str> = findings.iter().map(|one| one.what.as_str()).collect();
            let expected =
                ["device", "direct I/O on", "discard on"].map(|what| format!("{what} {device}"));
            assert_eq!(whats, expected);
            findings.into_iter().map(|one| (one.verdict, one.found)).collect()
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            if self.device.starts_with("/dev") {
                Command::new("losetup").arg("--detach").arg(&self.device).status().ok();
            }
            fs::remove_dir_all(&self.directory).ok();
        }
    }

    #[test]
    fn a_device_is_read_past_the_cache_and_one_that_cannot_be_is_told() {
        let Some(own) = Loop::of("read") else { return };
        let said = own.look();
        assert!(said[0].1.starts_with("8MiB, blocks of 512 bytes"), "{said:?}");
        assert_eq!(said[1], (Verdict::Ok, "its first block was read".to_owned()));
        fs::File::create(own.image()).unwrap();
        let said = own.look();
        assert_eq!(said[1].0, Verdict::Missing, "{said:?}");
        assert!(said[1].1.starts_with("its first block cannot be read: "), "{said:?}");
        assert!(look(&own.device).unwrap()[1].needed);
    }

    #[test]
    fn a_device_without_discard_is_not_as_good_as_one_with_it() {
        let expected = |verdict, found: &str| (verdict, found.to_owned());
        let Some(with) = Loop::of("with") else { return };
        assert_eq!(with.look()[2], expected(Verdict::Ok, "the kernel says that it has it"));
        let Some(without) = Loop::without_discard("without") else { return };
        let said = without.look();
        assert_eq!(said[2], expected(Verdict::Degraded, "the kernel says that it has none"));
        assert_eq!(said[1].0, Verdict::Ok);
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_missing() {
        let name = format!("lockstep-doctor-node-{}", std::process::id());
        let node = std::env::temp_dir().join(name);
        // A number for local use, which nobody has.
        let made = Command::new("mknod").arg(&node).args(["b", "240", "77"]).output();
        if !made.as_ref().is_ok_and(|output| output.status.success()) {
            return println!("NOT RUN: no node of a device can be made: {made:?}");
        }
        let findings = look(&node).unwrap();
        fs::remove_file(&node).unwrap();
        let [only] = &findings[..] else { panic!("{findings:?}") };
        assert!(only.verdict == Verdict::Missing && only.needed, "{only:?}");
        assert_eq!(only.costs, "no store can be on it");
    }
}

//! This host as `device` sees it: the directories where the kernel tells of disks, the links to them, who uses one.
//!
//! Always: everything is below one root, so that tests have made-up hosts.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::Errno;

use super::place::Target;

/// How long the kernel may take to show a disk, or to take it away.
pub(super) const KERNEL_LIMIT: Duration = Duration::from_secs(15);

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The host whose file system begins at `root`.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) root: PathBuf,
    /// How long to look for what the kernel is to show, or to take away.
    pub(super) limit: Duration,
    /// The number of the block device that a program has open by this path (`openers::number_of`).
    pub(super) number_of: fn(&Path) -> Option<String>,
}

impl Host {
    /// A path on this host.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a small file, without its end of line.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim_end().to_owned())
    }

    /// Names of what is in a directory, in order; nothing if it is not there.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Has a driver loaded where `file` does not show that it is there.
    pub(super) fn load(&self, module: &str, file: &str) -> Result<(), String> {
        if self.at(file).exists() {
            return Ok(());
        }
        let loaded = Command::new("modprobe")
            .args(["-q", module])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let came = loaded.is_ok_and(|status| status.success());
        if came && self.wait_for(|| self.at(file).exists().then_some(())).is_some() {
            return Ok(());
        }
        Err(format!("this kernel has no {module}: there is no /{file}, and modprobe brings none"))
    }

    /// Looks until there is something to see, or the kernel has had its time.
    pub(super) fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        loop {
            if let Some(seen) = look() {
                return Some(seen);
            }
            if begun.elapsed() > self.limit {
                return None;
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// The name that a volume's disk has, whatever makes it.
    pub(super) fn link_of(&self, target: &Target) -> PathBuf {
        let Target { resource, volume } = target;
        self.at(format!("dev/lockstep/by-res/{resource}/{volume}"))
    }

    /// What the link leads to, by the kernel's name; `None` if there is none.
    pub(super) fn linked(&self, target: &Target) -> Option<String> {
        let to = fs::read_link(self.link_of(target)).ok()?;
        to.file_name()?.to_str().map(str::to_owned)
    }

    /// Lets the link lead to a disk. What stands there is replaced at once, without a moment in which nothing does.
    pub(super) fn link(&self, target: &Target, disk: &str) -> io::Result<()> {
        if self.linked(target).as_deref() == Some(disk) {
            return Ok(());
        }
        let link = self.link_of(target);
        let directory = link.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        let beside = directory.join(format!(".{}", target.volume));
        fs::remove_file(&beside).or_else(absent_is_fine)?;
        // As udev makes it, relative to the directory of devices.
        symlink(format!("../../../{disk}"), &beside)?;
        fs::rename(&beside, &link)
    }

    /// Takes the link away, and directories that become empty.
    pub(super) fn unlink(&self, target: &Target) -> io::Result<()> {
        let link = self.link_of(target);
        fs::remove_file(&link).or_else(absent_is_fine)?;
        if let Some(directory) = link.parent() {
            // One that is not empty stays.
            fs::remove_dir(directory).ok();
        }
        Ok(())
    }

    /// Where the kernel tells of a disk, and of each partition of it.
    pub(super) fn directories_of(&self, disk: &str) -> Vec<String> {
        let whole = format!("sys/block/{disk}");
        let names = self.names(&whole).into_iter().filter(|name| name.starts_with(disk));
        let below = names.map(|name| format!("{whole}/{name}"));
        let parts = below.filter(|path| self.at(path).join("partition").exists());
        let parts: Vec<String> = parts.collect();
        [whole].into_iter().chain(parts).collect()
    }

    /// Who uses a disk or a partition of it, as far as the kernel tells without being asked of each program.
    pub(super) fn user_of(&self, disk: &str) -> Option<String> {
        self.directories_of(disk).iter().find_map(|directory| self.user_of_one(directory))
    }

    /// Opens a disk for this process alone, and has sent what was written to it; `None` if it cannot be opened at all. Who has it
    /// so already is told.
    pub(super) fn hold(&self, disk: &str) -> Result<Option<OwnedFd>, String> {
        let flags = OFlags::EXCL | OFlags::CLOEXEC;
        match open(self.at(format!("dev/{disk}")), flags, Mode::empty()) {
            Ok(file) => {
                fsync(&file).map_err(|failed| {
                    format!("what was written to /dev/{disk} cannot be sent: {failed}")
                })?;
                Ok(Some(file))
            }
            Err(Errno::BUSY) => Err(format!("a program has /dev/{disk} open for itself alone")),
            Err(_) => Ok(None),
        }
    }

    fn user_of_one(&self, directory: &str) -> Option<String> {
        let name = directory.rsplit('/').next().unwrap_or_default();
        if let Some(place) = self.mounted_at(&self.text(format!("{directory}/dev"))?) {
            return Some(format!("/dev/{name} is mounted at {place}"));
        }
        if let Some(holder) = self.names(format!("{directory}/holders")).first() {
            let opened = self.opened_by(&[format!("sys/block/{holder}")]);
            let opened = opened.map(|opened| format!("; {opened}")).unwrap_or_default();
            return Some(format!("/dev/{name} is held by /dev/{holder}{opened}"));
        }
        let swaps = self.text("proc/swaps").unwrap_or_default();
        let is_it = |line: &str| line.split_whitespace().next() == Some(&format!("/dev/{name}"));
        swaps.lines().any(is_it).then(|| format!("/dev/{name} is used for swap"))
    }

    /// Where the device of that number is mounted. Fields: `proc_pid_mountinfo(5)`.
    fn mounted_at(&self, number: &str) -> Option<String> {
        let mounts = self.text("proc/self/mountinfo").unwrap_or_default();
        let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
        line.split(' ').nth(4).map(str::to_owned)
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

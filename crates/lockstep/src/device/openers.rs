//! Who has a disk open: programs that read or write it without having it for themselves alone, as dd, a virtual machine or a
//! database do. The kernel does not keep them from losing it.
//!
//! Always: nothing is waited for but programs that look at a disk and let go of it at once. A program's file is looked at only where its
//! mount asks no server, and as the kernel knows it: a server that is away may never answer.
//!
//! Not here: programs of which `/proc` tells this process nothing; what the kernel itself has open without a claim (a loop device, an
//! NVMe target); memory that shows a disk whose descriptor is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use super::host::Host;

/// How long programs may look at a disk that was closed a moment ago, as udev does after each that wrote to it.
const PASSING_LIMIT: Duration = Duration::from_secs(2);

/// Devices that stand on each other: nobody has more, and what is above is not sought.
const DEPTH_MAX: u32 = 16;

/// How many programs are named.
const NAMED_MAX: usize = 3;

/// File systems that can have a device's node, and ask no server after it.
const LOCAL: &[&str] = &[
    "bcachefs", "btrfs", "devtmpfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs",
    "squashfs", "tmpfs", "xfs", "zfs",
];

/// A block device.
struct Device {
    /// The kernel's name of it.
    name: String,
    /// As in `259:7`.
    number: String,
}

/// Mounts that ask no server, by their numbers; of each view of them: a namespace, and a root in it.
type Mounts = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The number of the block device that a path leads to, as in `259:7`; `None` if it is none.
pub(super) fn number_of(path: &Path) -> Option<String> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
    let number = || format!("{}:{}", found.stx_rdev_major, found.stx_rdev_minor);
    (kind == FileType::BlockDevice).then(number)
}

impl Host {
    /// Which programs have one of these disks open, and keep it so: a sentence.
    pub(super) fn kept_open(&self, disks: &[String]) -> Option<String> {
        let limit = PASSING_LIMIT.min(self.limit);
        let host = Host { limit, ..self.clone() };
        let opened = || disks.iter().find_map(|disk| self.opened_by(&self.directories_of(disk)));
        let mut last = None;
        host.wait_for(|| {
            last = opened();
            last.is_none().then_some(())
        });
        last
    }

    /// Which programs have one of the devices with these directories open, or what stands on it: a sentence that names the first of
    /// them, and says how many more there are.
    pub(super) fn opened_by(&self, directories: &[String]) -> Option<String> {
        let mut devices = Vec::new();
        for directory in directories {
            self.with_what_stands_on(directory, DEPTH_MAX, &mut devices);
        }
        let mut numbers: Vec<u32> =
            self.names("proc").iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        let mut mounts = Mounts::new();
        let others = numbers.into_iter().filter(|number| *number != process::id());
        let open = |number| Some((number, self.open_in(number, &devices, &mut mounts)?));
        let programs: Vec<(u32, &str)> = others.filter_map(open).collect();
        let (_, first) = programs.first()?;
        let named = programs.iter().take(NAMED_MAX).map(|(number, device)| {
            let program = self.text(format!("proc/{number}/comm"));
            let program = program.as_deref().unwrap_or("a program");
            let other = if device == first { String::new() } else { format!(": /dev/{device}") };
            format!("{program} (process {number}{other})")
        });
        let mut named = named.collect::<Vec<_>>();
        if let more @ 1.. = programs.len().saturating_sub(NAMED_MAX) {
            named.push(format!("{more} more"));
        }
        Some(format!("/dev/{first} is open: {}", named.join(", ")))
    }

    /// Adds the device of a directory, and all that stands on it.
    fn with_what_stands_on(&self, directory: &str, depth: u32, devices: &mut Vec<Device>) {
        let name = directory.rsplit('/').next().unwrap_or_default().to_owned();
        let Some(number) = self.text(format!("{directory}/dev")) else { return };
        if depth == 0 || devices.iter().any(|one| one.number == number) {
            return;
        }
        devices.push(Device { name, number });
        for holder in self.names(format!("{directory}/holders")) {
            self.with_what_stands_on(&format!("sys/block/{holder}"), depth - 1, devices);
        }
    }

    /// Which of these a process has open.
    fn open_in<'a>(
        &self,
        process: u32,
        devices: &'a [Device],
        mounts: &mut Mounts,
    ) -> Option<&'a str> {
        let link = |what: &str| fs::read_link(self.at(format!("proc/{process}/{what}"))).ok();
        let read = || self.local_mounts_of(process);
        let own;
        let local = match link("ns/mnt").zip(link("root")) {
            Some(view) => &*mounts.entry(view).or_insert_with(read),
            None => {
                own = read();
                &own
            }
        };
        let is_local = |file: &String| {
            let facts = self.text(format!("proc/{process}/fdinfo/{file}")).unwrap_or_default();
            let mount = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"));
            mount.is_some_and(|mount| local.contains(mount.trim()))
        };
        let files = self.names(format!("proc/{process}/fd")).into_iter().filter(is_local);
        let mut open = files.filter_map(|file| {
            let is = (self.number_of)(&self.at(format!("proc/{process}/fd/{file}")))?;
            devices.iter().find(|device| device.number == is)
        });
        open.next().map(|device| device.name.as_str())
    }

    /// The mounts that a process sees and that ask no server. Fields: `proc_pid_mountinfo(5)`.
    fn local_mounts_of(&self, process: u32) -> BTreeSet<String> {
        let mounts = self.text(format!("proc/{process}/mountinfo")).unwrap_or_default();
        let local = |line: &str| {
            let (place, what) = line.split_once(" - ")?;
            let kind = what.split(' ').next()?;
            LOCAL.contains(&kind).then(|| place.split(' ').next().map(str::to_owned))?
        };
        mounts.lines().filter_map(local).collect()
    }
}

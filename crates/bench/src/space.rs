//! Whether the disk has room for a part of a run before it is begun.
//!
//! What is reckoned is what a part has on the disk at the same time; of disks of this host only where the kernel has what makes them. Tables in memory
//! and those whose files are empty need nothing that is worth to be counted.

use std::path::Path;

use crate::ceph;
use crate::databases;
use crate::metadata;
use crate::outcome::Outcome;
use crate::run::Run;

/// Beside what a part needs: reports, logs, what else goes on.
const SPARE_MIB: u64 = 1024;

/// What an OSD writes of its own.
const OSD_MIB: u64 = 1024;

/// Parts that need some.
pub(crate) const PARTS: [&str; 7] = [
    "record-file",
    "metadata",
    "mirror",
    "databases, one disk",
    "databases, own devices",
    "failover, resyncs",
    "memory",
];

/// Why there is not enough for this part; `None`: there is, or nobody knows.
pub(crate) fn is_short(part: &str, run: &Run) -> Option<String> {
    let needed = needed_mib(part, run)?;
    let free = free_mib(&run.scratch).ok()?;
    shortage(needed, free).map(|why| format!("{why}, in {}", run.scratch.display()))
}

fn shortage(needed_mib: u64, free_mib: u64) -> Option<String> {
    let needed = needed_mib + SPARE_MIB;
    (free_mib < needed).then(|| {
        format!(
            "it needs {} GiB on the disk, and {} are free",
            needed.div_ceil(1024),
            free_mib >> 10
        )
    })
}

fn free_mib(directory: &Path) -> Outcome<u64> {
    let found = rustix::fs::statvfs(directory).map_err(|error| error.to_string())?;
    Ok((found.f_bavail * found.f_frsize) >> 20)
}

/// MiB that a part has on the disk at once; `None`: not worth to be counted.
fn needed_mib(part: &str, run: &Run) -> Option<u64> {
    let (pace, revisions) = (run.pace, run.programs.len() as u64);
    let size = pace.file_mib();
    let is_there = |path: &str| u64::from(Path::new(path).exists());
    Some(match part {
        "record-file" => {
            // A client without a replica, links enciphered, and disks of this host have three copies each.
            let attached = is_there("/dev/ublk-control") + is_there("/dev/nvme-fabrics");
            let threes =
                1 + if pace.brief { 0 } else { 1 + attached } + u64::from(pace.every_row());
            let has_ceph = pace.every_row() && ceph::is_missing().is_none();
            let ceph = if has_ceph { 3 * (size + OSD_MIB) } else { 0 };
            // One replica; nbdkit, qemu-nbd and the disk itself.
            (3 * threes + 1) * size * revisions + 3 * size + ceph
        }
        "metadata" => {
            metadata::volumes(pace) * 2 * metadata::size_mib(pace) * revisions
                + metadata::size_mib(pace)
        }
        // The device, nbdkit's, one replica, and three pairs.
        "mirror" => (2 + 7 * revisions) * size,
        "databases, one disk" => (1 + 4 * revisions) * databases::size_mib(run),
        "databases, own devices" => (1 + 4 * revisions) * databases::size_mib(run),
        "failover, resyncs" => 3 * 2 * size * revisions + 2 * size,
        "memory" => 3 * size,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::shortage;

    #[test]
    fn a_part_is_left_out_with_both_figures_where_the_disk_has_too_little_room() {
        assert_eq!(shortage(4096, 5120), None);
        let why = shortage(4097, 5120).expect("one MiB is missing");
        assert_eq!(why, "it needs 6 GiB on the disk, and 5 are free");
    }
}

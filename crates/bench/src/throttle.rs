//! Block devices that are slower than what they are made of: each node's own, on a machine with one disk.
//!
//! Always: the limits go when the value goes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::{Outcome, complain};

/// Where the kernel is told limits of devices (cgroup v1). Those of the root also hold for what the kernel writes back.
const ROOT: &str = "/sys/fs/cgroup/blkio";

/// What a device may do in a second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Limit {
    /// The same, and no more than this.
    pub(crate) fn at_most(self, requests: u64, bytes: u64) -> Limit {
        Limit { requests: self.requests.min(requests), bytes: self.bytes.min(bytes) }
    }
}

impl Limit {
    /// As the kernel is told that there is none.
    const NONE: Limit = Limit { requests: 0, bytes: 0 };
}

/// Limits that hold.
pub(crate) struct Throttle {
    groups: Vec<PathBuf>,
    devices: Vec<String>,
}

/// Why devices cannot be made slower here.
pub(crate) fn no_throttle() -> Option<String> {
    let there = Path::new(ROOT).join("blkio.throttle.write_bps_device").exists();
    (!there).then(|| format!("there is no {ROOT} with blkio.throttle (cgroup v1)"))
}

/// Lifts what a run that died may have left on a device that is made anew: of a loop device the kernel keeps limits after it has gone, for the
/// next of its number. Does nothing where there are no limits.
pub(crate) fn lift(device: &str) -> Outcome<()> {
    if no_throttle().is_some() {
        return Ok(());
    }
    Throttle::new().limit(device, Limit::NONE)
}

impl Throttle {
    /// Nothing is limited yet.
    pub(crate) fn new() -> Throttle {
        let root = PathBuf::from(ROOT);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":blkio:/"));
        let own = own.map(|(_, path)| root.join(path)).filter(|path| *path != root);
        Throttle { groups: [root].into_iter().chain(own).collect(), devices: Vec::new() }
    }

    /// Limits a device, for reads as for writes.
    pub(crate) fn limit(&mut self, device: &str, limit: Limit) -> Outcome<()> {
        let name = device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/dev");
        let number = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let number = number.trim().to_owned();
        self.devices.push(number.clone());
        self.set(&number, limit)
    }

    fn set(&self, number: &str, limit: Limit) -> Outcome<()> {
        for group in &self.groups {
            for (what, figure) in [("bps", limit.bytes), ("iops", limit.requests)] {
                for way in ["read", "write"] {
                    let path = group.join(format!("blkio.throttle.{way}_{what}_device"));
                    fs::write(&path, format!("{number} {figure}"))
                        .map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for number in &self.devices {
            if let Err(why) = self.set(number, Limit::NONE) {
                complain(&why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tools::{Device, has_loops};

    use super::{Limit, ROOT, Throttle, lift, no_throttle};

    #[test]
    fn what_a_run_that_died_left_on_a_device_does_not_hold_for_the_next() {
        if let Some(why) = no_throttle().or((!has_loops()).then(|| "needs loop devices".to_owned()))
        {
            println!("NOT RUN: {why}");
            return;
        }
        let file = std::env::temp_dir().join(format!("bench-throttle-{}", std::process::id()));
        let device = Device::new(&file, 1 << 20).expect("there is a loop device");
        let mut left = Throttle::new();
        let limit = Limit { requests: 7_654_321, bytes: 7_654_321 };
        left.limit(&device.device, limit).expect("it is told");
        let holds = || {
            ["iops", "bps"].map(|what| {
                let path = Path::new(ROOT).join(format!("blkio.throttle.write_{what}_device"));
                fs::read_to_string(path).expect("it is there").contains(" 7654321\n")
            })
        };
        assert_eq!(holds(), [true, true]);
        lift(&device.device).expect("it is told");
        assert_eq!(holds(), [false, false]);
        drop((left, device));
        fs::remove_file(&file).expect("it is there");
    }

    #[test]
    fn a_slow_disk_is_not_made_faster_by_a_limit() {
        let slow = Limit { requests: 300, bytes: 900 };
        assert_eq!(slow.at_most(8_000, 500), Limit { requests: 300, bytes: 500 });
    }
}

//! Emulated machines with Debian's kernels, without the processor's help: what they show is that things work, and how two
//! things that run in the same machine compare; never how fast anything is.
//!
//! Always: a machine is ended when its value goes.
//!
//! Not here: what runs there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Outcome, ensure, missing, run, text, wait_for};

/// What a machine is made with.
const TOOLS: &[&str] = &[
    "qemu-system-x86_64",
    "busybox",
    "nvme",
    "fio",
    "mkfs.ext4",
    "mkfs.xfs",
    "xfs_repair",
    "blkdiscard",
    "dmsetup",
    "modprobe",
    "depmod",
    "cpio",
    "xz",
    "apt-get",
    "apt-cache",
    "dpkg",
];

/// How long it may take to fetch a kernel's package and to make a machine's file system of it.
pub const MAKE_LIMIT: Duration = Duration::from_secs(200);

/// How long a machine may run that is not told otherwise.
const GUEST_LIMIT: Duration = Duration::from_secs(560);

/// Lines of what a machine said that are shown.
const SHOWN_LINES: usize = 250;

/// What a machine needs that only uses volumes, in MiB.
pub const MEMORY_MIB: u32 = 900;

/// Kernels of Debian of which the newest is taken.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Debian's package of the series.
    package: &'static str,
    /// Which release's; empty: that of this machine.
    release: &'static str,
}

/// Debian 11's.
pub const LINUX_5_10: Series = Series { package: "linux-image-amd64", release: "bullseye" };
/// Debian 12's.
pub const LINUX_6_1: Series = Series { package: "linux-image-amd64", release: "" };
/// Debian 13's, as Debian 12 has it too.
pub const LINUX_6_12: Series = Series { package: "linux-image-6.12-amd64", release: "" };
/// What Debian's next release has at present.
pub const NEWEST: Series = Series { package: "linux-image-amd64", release: "testing" };

/// A kernel, and a file system for it.
pub struct Guest {
    /// The kernel, for people: as it names itself.
    pub kernel: String,
    /// Of which version its package is, for people: `Debian 6.1.192-2`; empty if it does not say.
    pub version: String,
    /// Where `vmlinuz` and `initrd` are.
    pub directory: PathBuf,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest").join(name)
}

/// What is kept beside this program for all machines: `target/guest` of the project.
pub fn kept() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).unwrap_or(Path::new("."));
    Ok(target.join("guest"))
}

/// Whether `made` is there and no older than the script that made it.
pub fn is_made(made: &Path, script: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    changed(made).is_ok_and(|made| changed(script).is_ok_and(|at| at <= made))
}

impl Guest {
    /// The newest kernel of a series, as a machine; what was made of it is kept. The inner error: it cannot be had here.
    pub fn of(series: Series) -> Outcome<Result<Guest, String>> {
        let missing = missing(TOOLS);
        if !missing.is_empty() {
            return Ok(Err(format!("not on this machine: {}", missing.join(", "))));
        }
        let (Series { package, release }, kept) = (series, kept()?);
        let mut make = Command::new(script("initrd.sh"));
        let made = run(make.args([package, text(&kept), release]), MAKE_LIMIT)?;
        if made.code != Some(0) {
            return Ok(Err(format!("no machine can be made of {package}: {}", made.words())));
        }
        let package = made.out.split_whitespace().last().unwrap_or_default();
        let kernel = package.strip_prefix("linux-image-").unwrap_or(package);
        let directory = kept.join(package);
        let version = version(&fs::read(directory.join("vmlinuz"))?);
        Ok(Ok(Guest { kernel: format!("Linux {kernel}"), version, directory }))
    }

    /// Boots, and runs what `share` holds.
    pub fn start(&self, share: &Path) -> Outcome<Machine> {
        self.start_by(share, MEMORY_MIB, &[])
    }

    /// The same with so much memory, and further words to QEMU.
    pub fn start_by(&self, share: &Path, memory_mib: u32, words: &[&str]) -> Outcome<Machine> {
        self.start_for(GUEST_LIMIT, share, memory_mib, words)
    }

    /// The same for so long at most.
    pub fn start_for(
        &self,
        limit: Duration,
        share: &Path,
        memory_mib: u32,
        words: &[&str],
    ) -> Outcome<Machine> {
        let mut command = Command::new(script("guest.sh"));
        let (seconds, memory) = (limit.as_secs().to_string(), memory_mib.to_string());
        command.args([text(&self.directory), text(share), &seconds, &memory]).args(words);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        Ok(Machine { child, share: share.to_path_buf(), limit })
    }
}

/// What a kernel for x86 says of itself (Linux' boot protocol: `kernel_version`), from the word `Debian` on.
fn version(image: &[u8]) -> String {
    let place =
        image.get(0x20e..0x210).map_or(0, |at| usize::from(at[0]) | usize::from(at[1]) << 8);
    let words = image.get(place + 0x200..).unwrap_or_default();
    let words = words.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut words = std::str::from_utf8(words).unwrap_or_default().split_whitespace();
    let version = words.find(|&word| word == "Debian").and_then(|_| words.next());
    version.map(|version| format!("Debian {version}")).unwrap_or_default()
}

/// A machine that runs.
pub struct Machine {
    child: Child,
    share: PathBuf,
    limit: Duration,
}

impl Machine {
    /// Waits until it makes a file in its share.
    pub fn until(&mut self, file: &str) -> Outcome<()> {
        let came = wait_for(file, self.limit, || {
            let came = self.share.join(file).exists();
            ensure!(came || self.has_ended()?, "the machine has not come so far");
            Ok(came)
        })?;
        ensure!(came, "the machine ended early:\n{}", self.said());
        Ok(())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Outcome<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Ends it in the middle of what it does. `word` is one of those to QEMU that no other machine has.
    pub fn lose_power(&mut self, word: &str) -> Outcome<()> {
        let ended = run(Command::new("pkill").args(["-KILL", "-f", word]), MAKE_LIMIT)?;
        ensure!(ended.code == Some(0), "it had ended before: {}", ended.words());
        self.child.wait()?;
        Ok(())
    }

    /// Waits for its end, which must be one without fault.
    pub fn end(&mut self) -> Outcome<()> {
        let well = self.child.wait()?.success();
        ensure!(well, "the machine found fault:\n{}", self.said());
        Ok(())
    }

    /// The last of what it said.
    pub fn said(&self) -> String {
        let last = |name: &str| {
            let text = fs::read_to_string(self.share.join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
        };
        format!("{}\n{}", last("out"), last("console"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // The script passes it on.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

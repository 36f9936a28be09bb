//! Block devices of files; and a volume as a disk of this host, as far as one can be made without a kernel's own client:
//! nbdfuse, and a loop device on the file that it shows.
//!
//! Not here: what is left when a test fails.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::{Outcome, TOOL_LIMIT, ensure, is_root, missing, run, text, tool, wait_for};

/// How long a mount or a device may take to appear or go.
const APPEAR_LIMIT: Duration = Duration::from_secs(20);

/// A program that runs until it is told to end.
pub struct Running(Child);

impl Running {
    /// Starts it; it reads nothing.
    pub fn start(command: &mut Command) -> Outcome<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn();
        Ok(Running(child.map_err(|error| format!("{name}: {error}"))?))
    }

    /// Fails if it has ended.
    pub fn runs(&mut self, name: &str) -> Outcome<()> {
        let ended = self.0.try_wait()?;
        ensure!(
            ended.is_none(),
            "{name} ended: {}",
            ended.map_or_else(String::new, |e| e.to_string())
        );
        Ok(())
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end, as long as for any program that ends by itself: whether it succeeded.
    pub fn wait(&mut self) -> Outcome<bool> {
        wait_for("a program to end", TOOL_LIMIT, || {
            self.0.try_wait()?.map(|ended| ended.success()).ok_or_else(|| "it runs".into())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A block device made of a file, past the page cache.
pub struct Device {
    /// The file.
    pub file: PathBuf,
    /// The device.
    pub device: String,
}

impl Device {
    /// Of a new file, which reads as zeroes.
    pub fn new(file: &Path, bytes: u64) -> Outcome<Device> {
        File::create(file)?.set_len(bytes)?;
        Device::over(file)
    }

    /// Of a file that is there.
    pub fn over(file: &Path) -> Outcome<Device> {
        Device::made(&["--find", "--show", "--direct-io=on", text(file)], file)
    }

    /// Likewise, with sectors of so many bytes.
    pub fn with_sectors(file: &Path, sector: &str) -> Outcome<Device> {
        let find = ["--find", "--show", "--direct-io=on", "--sector-size", sector, text(file)];
        Device::made(&find, file)
    }

    fn made(words: &[&str], file: &Path) -> Outcome<Device> {
        let said = tool("losetup", words)?;
        Ok(Device { file: file.to_path_buf(), device: said.trim().to_owned() })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // One that is still in use goes when its user does.
        let _ = tool("losetup", &["-d", &self.device]);
    }
}

/// Whether this host can make block devices of files.
pub fn has_loops() -> bool {
    is_root() && Path::new("/dev/loop-control").exists()
}

/// A volume as a block device.
pub struct Disk {
    fuse: Running,
    file: PathBuf,
    /// The loop device.
    pub device: String,
}

/// Why this host can make none.
pub fn no_disk() -> Option<String> {
    let missing = missing(&["nbdfuse", "fusermount3", "losetup", "mount", "umount"]);
    if !missing.is_empty() {
        return Some(format!("not on this machine: {}", missing.join(", ")));
    }
    let devices = ["/dev/fuse", "/dev/loop-control"].iter().all(|path| Path::new(path).exists());
    (!is_root() || !devices).then(|| "needs root, /dev/fuse and loop devices".to_owned())
}

impl Disk {
    /// Makes one of the volume at `url`, with sectors of so many bytes; nbdfuse shows its file in `place`.
    pub fn attach(place: &Path, url: &str, sector: &str) -> Outcome<Disk> {
        fs::create_dir_all(place)?;
        let file = place.join("nbd");
        let fuse = Running::start(Command::new("nbdfuse").arg(place).arg(url))?;
        wait_for("nbdfuse to mount", APPEAR_LIMIT, || {
            ensure!(file.exists(), "{} is not there", file.display());
            Ok(())
        })?;
        // A loop device has sectors of 512 bytes unless it is told; nbdfuse passes on what it asks for.
        let find = ["--find", "--show", "--direct-io=on", "--sector-size", sector, text(&file)];
        let device = tool("losetup", &find)?.trim().to_owned();
        Ok(Disk { fuse, file, device })
    }

    /// Waits until nobody has a file system of it any more. One that is mounted in another namespace, which took a copy of all
    /// mounts when it was made, outlives its unmount here.
    pub fn wait_until_unused(&self) -> Outcome<()> {
        let exclusively = OFlags::EXCL.bits().cast_signed();
        wait_for("the device to be nobody's", APPEAR_LIMIT, || {
            let opened = OpenOptions::new().read(true).custom_flags(exclusively).open(&self.device);
            opened.map_err(|error| format!("{}: {error}", self.device).into())
        })?;
        Ok(())
    }

    /// Takes it away, also if its nodes are dead.
    pub fn detach(self) -> Outcome<()> {
        tool("losetup", &["-d", &self.device])?;
        wait_for("the loop device to let go", APPEAR_LIMIT, || {
            let said = run(Command::new("losetup").arg(&self.device), APPEAR_LIMIT)?;
            ensure!(said.code != Some(0), "it has {}", said.out);
            Ok(())
        })?;
        let place = self.file.parent().unwrap_or(&self.file);
        tool("fusermount3", &["-u", text(place)])?;
        drop(self.fuse);
        Ok(())
    }
}

/// Takes a mounted file system away, as soon as whoever used it is gone.
pub fn unmount(place: &Path) -> Outcome<()> {
    wait_for("the file system to be let go", APPEAR_LIMIT, || tool("umount", &[text(place)]))?;
    Ok(())
}

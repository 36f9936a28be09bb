//! A file system of a test's own, on a loop device: that needs root.

use std::path::PathBuf;
use std::process::Command;

use super::Scratch;

/// Runs a program; `None`, and why, where that does not go.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(said) if said.status.success() => {
            Some(String::from_utf8(said.stdout).unwrap().trim().to_owned())
        }
        other => {
            println!("NOT RUN: {program} {arguments:?}: {other:?}");
            None
        }
    }
}

/// It is gone when this is.
pub(crate) struct Mounted {
    scratch: Scratch,
    device: String,
}

impl Mounted {
    /// An ext4 on a disk, or on the first partition of one, with sectors of so many bytes. `None`, and why, where none can be had.
    pub(crate) fn new(sector_bytes: u32, is_partition: bool) -> Option<Mounted> {
        let scratch = Scratch::new();
        let image = scratch.0.join("image");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let image = image.to_str().unwrap();
        let sectors = sector_bytes.to_string();
        let arguments = ["--find", "--show", "--sector-size", &sectors, image];
        let device = run("losetup", &arguments)?;
        let mounted = Mounted { scratch, device };
        let disk = mounted.device.as_str();
        let part = format!("{disk}p1");
        if is_partition {
            // From 1 MiB on, 63 MiB.
            run("addpart", &[disk, "1", "2048", "129024"])?;
        }
        let on = if is_partition { &part } else { disk };
        run("mkfs.ext4", &["-q", on])?;
        std::fs::create_dir(mounted.place()).unwrap();
        run("mount", &[on, mounted.place().to_str().unwrap()])?;
        Some(mounted)
    }

    /// Its directory.
    pub(crate) fn place(&self) -> PathBuf {
        self.scratch.0.join("mount")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(self.place()).output().ok();
        Command::new("delpart").args([&self.device, "1"]).output().ok();
        Command::new("losetup").args(["--detach", &self.device]).output().ok();
    }
}

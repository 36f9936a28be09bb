//! A file system on what is measured.

use std::fs;
use std::path::{Path, PathBuf};

use tools::{Disk, text, tool, unmount};

use crate::fio::Target;
use crate::outcome::{Outcome, fail};
use crate::throttle::lift;

/// One that is mounted; ext4, and a volume by nbdfuse and a loop device.
pub(crate) struct Tree {
    mount: PathBuf,
    /// `None`: it is on a block device that was there.
    disk: Option<Disk>,
}

impl Tree {
    /// Makes one; what it takes lies at `place`, and beside it.
    pub(crate) fn new(target: &Target, place: &Path) -> Outcome<Tree> {
        let mount = place.with_extension("mount");
        fs::create_dir_all(&mount).map_err(|error| error.to_string())?;
        let (device, disk) = match target {
            Target::Nbd(url) | Target::Load { url, .. } => {
                let disk = Disk::attach(place, url, "4096")?;
                lift(&disk.device)?;
                (disk.device.clone(), Some(disk))
            }
            Target::File(path) => (text(path).to_owned(), None),
            Target::Rbd { .. } => return fail("an image of Ceph is not mounted here"),
        };
        // Blocks that were written stay: a database on a new disk would mostly measure how the file below it grows.
        let steady = ["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        tool("mkfs.ext4", &[&["-q", "-F"], &steady[..], &[&device]].concat())?;
        tool("mount", &["-t", "ext4", &device, text(&mount)])?;
        Ok(Tree { mount, disk })
    }

    /// Where it is.
    pub(crate) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Takes it away, when nobody uses it any more.
    pub(crate) fn remove(mut self) -> Outcome<()> {
        unmount(&self.mount)?;
        self.mount = PathBuf::new();
        self.disk.take().map_or(Ok(()), Disk::detach)?;
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.mount.as_os_str().is_empty() {
            return;
        }
        // The run failed, and says why: nothing may stay.
        let _ = unmount(&self.mount);
        let _ = self.disk.take().map(Disk::detach);
    }
}

//! The file that names the disks of this host that this node serves (`ublk.toml`).
//!
//! Always: it is written before a disk is made, and after it is gone.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::node::files::replace_file;

/// A disk, as the file has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Listed {
    /// The kernel keeps it with the disk: who else uses the number has another.
    pub(super) mark: u64,
    pub(super) resource: String,
    /// Of the resource.
    pub(super) identity: u64,
    pub(super) volume: u16,
    /// The last loss of all caches before it was made: its users know of that.
    pub(super) lost: u64,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedFile {
    #[serde(default)]
    disk: Vec<ListedDisk>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedDisk {
    number: u32,
    /// Hexadecimal, as the next.
    mark: String,
    identity: String,
    resource: String,
    volume: u16,
    lost: u64,
}

/// The disks that the file in this directory names, by number; none if there is no file.
pub(super) fn read(directory: &Path) -> Result<BTreeMap<u32, Listed>, String> {
    let path = directory.join("ublk.toml");
    let wrong = |what: String| format!("{}: {what}", path.display());
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let file: ListedFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let number =
        |text: &str| u64::from_str_radix(text, 16).map_err(|error| wrong(error.to_string()));
    let listed = |disk: ListedDisk| {
        let (mark, identity) = (number(&disk.mark)?, number(&disk.identity)?);
        let ListedDisk { resource, volume, lost, .. } = disk;
        Ok((disk.number, Listed { mark, resource, identity, volume, lost }))
    };
    file.disk.into_iter().map(listed).collect()
}

/// Makes the file name these.
pub(super) fn write<'a>(
    directory: &Path,
    disks: impl Iterator<Item = (u32, &'a Listed)>,
) -> Result<(), String> {
    let path = directory.join("ublk.toml");
    let disk = disks.map(|(number, listed)| ListedDisk {
        number,
        mark: format!("{:016x}", listed.mark),
        identity: format!("{:016x}", listed.identity),
        resource: listed.resource.clone(),
        volume: listed.volume,
        lost: listed.lost,
    });
    let file = ListedFile { disk: disk.collect() };
    let text = toml::to_string(&file).map_err(|error| format!("{}: {error}", path.display()))?;
    replace_file(&path, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Listed, read, write};

    #[test]
    fn disks_are_read_as_they_were_written() {
        let name = format!("lockstepd-disks-{:x}", sys::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        assert!(read(&directory).expect("no file is no disk").is_empty());
        let listed =
            Listed { mark: u64::MAX, resource: "web".to_owned(), identity: 7, volume: 1, lost: 3 };
        write(&directory, [(5, &listed)].into_iter()).expect("written");
        let told = read(&directory).expect("read");
        assert_eq!(told.into_iter().collect::<Vec<_>>(), vec![(5, listed)]);
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

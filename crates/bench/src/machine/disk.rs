//! The disk and the file system that a directory is on, in words.
//!
//! What the kernel does not tell is left out.

use std::fs;
use std::path::{Path, PathBuf};

/// A mount, as `/proc/self/mountinfo` has it.
#[derive(Debug, Eq, PartialEq)]
struct Mount {
    /// Of its device: `major:minor`.
    number: String,
    place: PathBuf,
    kind: String,
    source: String,
}

/// The device with its size, and the file system.
pub(super) fn describe(directory: &Path) -> (String, String) {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    match mount_of(&text, &directory) {
        Some(mount) => {
            let device = device(&mount.number).unwrap_or_else(|| mount.source.clone());
            (device, mount.kind)
        }
        None => ("unknown".to_owned(), "unknown".to_owned()),
    }
}

/// The mount that this directory is in: of those at one place the last hides the others.
fn mount_of(text: &str, directory: &Path) -> Option<Mount> {
    let mounts = text.lines().filter_map(mount);
    let above = mounts.filter(|mount| directory.starts_with(&mount.place));
    above.max_by_key(|mount| mount.place.components().count())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn mount(line: &str) -> Option<Mount> {
    let (first, rest) = line.split_once(" - ")?;
    let mut words = first.split(' ').skip(2);
    let (number, place) = (words.next()?, words.nth(1)?);
    let mut rest = rest.split(' ');
    let (kind, source) = (rest.next()?, rest.next()?);
    let place = PathBuf::from(place.replace("\\040", " "));
    Some(Mount {
        number: number.to_owned(),
        place,
        kind: kind.to_owned(),
        source: source.to_owned(),
    })
}

/// A block device: its name, driver or model, size, and what it says of itself.
fn device(number: &str) -> Option<String> {
    let place = Path::new("/sys/dev/block").join(number).canonicalize().ok()?;
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    // A partition lies in its disk's directory, which has what both have.
    let disk = if place.join("partition").exists() { place.parent()? } else { &place };
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let driver = || name(&disk.join("device/driver").canonicalize().ok()?);
    let model = read(disk.join("device/model")).filter(|model| !model.is_empty()).or_else(driver);
    let sectors: u64 = read(place.join("size"))?.parse().ok()?;
    let mut words = vec![name(&place)?];
    words.extend(model);
    words.push(format!("{} GiB", sectors >> 21));
    words.extend(read(disk.join("queue/write_cache")).map(|cache| format!("cache: {cache}")));
    Some(words.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::mount_of;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
        30 22 0:25 / /tmp rw,nosuid shared:5 - tmpfs tmpfs rw,size=1024k\n\
        31 22 8:17 /sub /srv/with\\040space rw master:1 - xfs /dev/sdb1 rw\n";

    #[test]
    fn a_directory_is_in_the_nearest_mount_above_it() {
        let kind = |path: &str| mount_of(MOUNTS, Path::new(path)).map(|mount| mount.kind);
        assert_eq!(kind("/tmp/bench"), Some("tmpfs".to_owned()));
        assert_eq!(kind("/tmpfiles/bench"), Some("ext4".to_owned()));
        assert_eq!(kind("/srv/with space/a"), Some("xfs".to_owned()));
    }

    #[test]
    fn a_mount_names_its_device() {
        let mount = mount_of(MOUNTS, Path::new("/srv/with space")).expect("it is there");
        assert_eq!((&*mount.number, &*mount.source), ("8:17", "/dev/sdb1"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }
}

//! What a store is made of, as the configuration says.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use sys::{Access, File, OpenOptions};

use crate::error::StoreError;
use crate::faults::FaultSpec;
use crate::signature::{self, FIRST_BYTES, LAST_BYTES};

/// Where the bytes of a volume are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// A file or block device.
    Path(PathBuf),
    /// Memory of the process: lost when it ends.
    Memory {
        /// Size in bytes, metadata included.
        size_bytes: u64,
    },
}

/// Where the metadata area of a volume is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum MetadataPlace {
    /// There is none. Then nothing tells our own volume, with a client's file system on it, from
    /// a foreign disk: only `accept_foreign` opens it again.
    #[default]
    None,
    /// The last bytes of the same file, device or memory.
    Internal {
        /// Length of the area; rounded up to whole pages.
        bytes: u64,
    },
    /// From the start of another file or device. Where a file is memory (persistent memory with DAX, a file system in
    /// memory) it is written in place.
    External {
        /// Which.
        path: PathBuf,
        /// Length of the area.
        bytes: u64,
    },
}

/// What to open and how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreSpec {
    /// Where the bytes are.
    pub place: Place,
    /// Where the metadata is.
    pub metadata: MetadataPlace,
    /// The volume's bytes at least, metadata not included; 0: whatever there is.
    pub needs_bytes: u64,
    /// The operator accepts that memory forgets.
    pub allow_memory: bool,
    /// A disk that holds something else, and has no metadata of ours, is accepted as it is.
    pub accept_foreign: bool,
    /// The fault layer, for tests.
    pub faults: Option<FaultSpec>,
}

impl StoreSpec {
    /// A file or block device without metadata and with every caution.
    #[must_use]
    pub fn path(path: impl Into<PathBuf>) -> StoreSpec {
        StoreSpec::at(Place::Path(path.into()))
    }

    /// Memory, its loss accepted.
    #[must_use]
    pub fn memory(size_bytes: u64) -> StoreSpec {
        StoreSpec { allow_memory: true, ..StoreSpec::at(Place::Memory { size_bytes }) }
    }

    fn at(place: Place) -> StoreSpec {
        StoreSpec {
            place,
            metadata: MetadataPlace::None,
            needs_bytes: 0,
            allow_memory: false,
            accept_foreign: false,
            faults: None,
        }
    }
}

/// Size in bytes of a file or block device.
///
/// # Errors
/// As for opening it.
pub fn size_of(path: &Path) -> Result<u64, StoreError> {
    let file = File::open(path, OpenOptions::default())?;
    Ok(file.facts().map_err(|_| StoreError::Unsupported)?.size_bytes)
}

/// Makes a file of `size_bytes` that takes no space until written. A file that exists is left
/// alone: if it has that size and nothing was ever written to it, that is success; with `force` it
/// is emptied first.
///
/// # Errors
/// [`StoreError::ForeignData`] for a file with content, [`StoreError::InUse`] for one that is a
/// store now, the kernel's otherwise.
pub fn create_file(path: &Path, size_bytes: u64, force: bool) -> Result<(), StoreError> {
    let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
    let mut is_new = true;
    let file = match File::open(path, OpenOptions { create_new: true, ..options }) {
        Err(sys::Errno::EXISTS) => {
            let file = File::open(path, options)?;
            file.lock()?;
            if !force {
                let checked = check_empty(&file, path, size_bytes);
                file.unlock();
                return checked;
            }
            file.set_size(0)?;
            is_new = false;
            file
        }
        other => other?,
    };
    let sized = file.set_size(size_bytes).and_then(|()| file.sync_now());
    file.unlock();
    if let Err(errno) = sized {
        if is_new {
            // Nothing of it stays; if that fails too, the first error says more.
            std::fs::remove_file(path).ok();
        }
        return Err(match errno {
            sys::Errno::TOO_LARGE => StoreError::BeyondFileSystem { needs_bytes: size_bytes },
            other => other.into(),
        });
    }
    sync_directory(path)
}

/// Keeps the first `kept_bytes` of a file of `has_bytes`; from there on it reads as zeroes up to `size_bytes`, and takes
/// no space.
///
/// # Errors
/// [`StoreError::NotFound`], [`StoreError::InUse`]; [`StoreError::TooSmall`] for a file of fewer bytes,
/// [`StoreError::ForeignData`] for one of more: they would be lost.
pub fn keep_file(
    path: &Path,
    has_bytes: u64,
    kept_bytes: u64,
    size_bytes: u64,
) -> Result<(), StoreError> {
    resize(path, &[kept_bytes, size_bytes], |has| match has.cmp(&has_bytes) {
        Ordering::Less => Err(StoreError::TooSmall { needs_bytes: has_bytes, has_bytes: has }),
        Ordering::Greater => Err(too_long()),
        Ordering::Equal => Ok(true),
    })
}

/// What is said of a file that is to be kept and holds more than it should.
#[must_use]
pub fn too_long() -> StoreError {
    StoreError::ForeignData { what: "more bytes than the volume that it is to hold" }
}

/// Gives a file that was kept its length back. One that is not longer is left alone.
///
/// # Errors
/// As for opening it; [`StoreError::InUse`] if it is a store now.
pub fn give_back(path: &Path, size_bytes: u64) -> Result<(), StoreError> {
    resize(path, &[size_bytes], |has| Ok(has > size_bytes))
}

/// Gives a file these lengths, one after the other, if `is_to_be` says so of the one that it has.
fn resize(
    path: &Path,
    sizes: &[u64],
    is_to_be: impl Fn(u64) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
    let file = File::open(path, options)?;
    file.lock()?;
    let sized = || {
        let has_bytes = file.facts().map_err(|_| StoreError::Unsupported)?.size_bytes;
        if !is_to_be(has_bytes)? {
            return Ok(());
        }
        for &size_bytes in sizes {
            file.set_size(size_bytes).map_err(|errno| match errno {
                sys::Errno::TOO_LARGE => StoreError::BeyondFileSystem { needs_bytes: size_bytes },
                other => other.into(),
            })?;
        }
        Ok(file.sync_now()?)
    };
    let result = sized();
    file.unlock();
    result
}

fn check_empty(file: &File, path: &Path, size_bytes: u64) -> Result<(), StoreError> {
    use std::os::unix::fs::MetadataExt;
    let facts = file.facts().map_err(|_| StoreError::Unsupported)?;
    let blocks = std::fs::metadata(path).map_or(u64::MAX, |metadata| metadata.blocks());
    if !facts.block_device && facts.size_bytes == size_bytes && blocks == 0 {
        return Ok(());
    }
    let (mut first, mut last) = (vec![0; FIRST_BYTES], vec![0; LAST_BYTES]);
    signature::read_ends(facts.size_bytes, &mut first, &mut last, |bytes, offset| {
        file.read_now(bytes, offset)
    })?;
    let what = signature::foreign_signature(&first, &last).unwrap_or("a file with content");
    Err(StoreError::ForeignData { what })
}

/// A new name survives a power cut once its directory is flushed.
fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")), OpenOptions::default())?;
    Ok(directory.sync_now()?)
}

//! Why a store cannot be opened: one variant for each thing the caller can do about it.

use sys::Errno;

/// Why a store cannot be opened or made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreError {
    /// No such file or device.
    NotFound,
    /// Mounted, or open in another process, or a part of something that is.
    InUse,
    /// Smaller than it has to be.
    TooSmall {
        /// Bytes needed, metadata included.
        needs_bytes: u64,
        /// Bytes there are.
        has_bytes: u64,
    },
    /// The file system has no files as large as that.
    BeyondFileSystem {
        /// Bytes needed, metadata included.
        needs_bytes: u64,
    },
    /// It holds something that is not ours, which would be destroyed.
    ForeignData {
        /// What, in words for the user.
        what: &'static str,
    },
    /// It is where nothing can be written.
    ReadOnly,
    /// This process may not open it for writing, or it is a device that takes no writes.
    Denied,
    /// Memory was asked for without the flag that says its loss is accepted.
    NoMemoryFlag,
    /// Neither a file nor a block device, or with blocks of a size that does not fit.
    Unsupported,
    /// The kernel's word.
    Io(Errno),
}

impl From<Errno> for StoreError {
    fn from(errno: Errno) -> StoreError {
        match errno {
            Errno::NOT_FOUND => StoreError::NotFound,
            Errno::BUSY => StoreError::InUse,
            Errno::READ_ONLY => StoreError::ReadOnly,
            Errno::DENIED => StoreError::Denied,
            other => StoreError::Io(other),
        }
    }
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreError::NotFound => write!(out, "there is no such file or device"),
            StoreError::InUse => write!(out, "it is in use: mounted, or open elsewhere"),
            StoreError::TooSmall { needs_bytes, has_bytes } => {
                write!(out, "it has {has_bytes} bytes and needs {needs_bytes}")
            }
            StoreError::BeyondFileSystem { needs_bytes } => write!(
                out,
                "its file system has no files of {needs_bytes} bytes: choose a smaller volume, or another file \
                 system (XFS has larger files than ext4)"
            ),
            StoreError::ForeignData { what } => write!(out, "it holds {what}"),
            StoreError::ReadOnly => write!(
                out,
                "nothing can be written there: the file system is read-only, or is for this service (systemd: \
                 ReadWritePaths=)"
            ),
            StoreError::Denied => write!(
                out,
                "it may not be opened for writing: by its mode or its directory's, or as a device that is read-only"
            ),
            StoreError::NoMemoryFlag => {
                write!(out, "a store in memory loses everything; allow it in so many words")
            }
            StoreError::Unsupported => write!(out, "it is no file or device that can be a store"),
            StoreError::Io(errno) => write!(out, "{errno}"),
        }
    }
}

impl std::error::Error for StoreError {}

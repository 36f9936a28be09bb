//! What the kernel says when it refuses.

/// An error number of the kernel, as `errno(3)` lists them.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Errno(pub i32);

impl Errno {
    /// The operation was cancelled because its socket was closed.
    pub const CANCELED: Errno = Errno(libc::ECANCELED);
    /// The device or file failed.
    pub const IO: Errno = Errno(libc::EIO);
    /// It was not done in time.
    pub const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);
    /// A range or argument the file cannot serve (alignment, bounds).
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// No space left.
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    /// No memory left, or none that may be locked.
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);
    /// The file system has no files as large as that.
    pub const TOO_LARGE: Errno = Errno(libc::EFBIG);
    /// The limit on operations in flight was met.
    pub const NO_BUFFERS: Errno = Errno(libc::ENOBUFS);
    /// The file ended inside the range that was read.
    pub const NO_DATA: Errno = Errno(libc::ENODATA);
    /// No such file.
    pub const NOT_FOUND: Errno = Errno(libc::ENOENT);
    /// Exists already.
    pub const EXISTS: Errno = Errno(libc::EEXIST);
    /// In use by someone else.
    pub const BUSY: Errno = Errno(libc::EBUSY);
    /// The file system is mounted read-only.
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
    /// Permission denied.
    pub const DENIED: Errno = Errno(libc::EACCES);
    /// No such device.
    pub const NO_DEVICE: Errno = Errno(libc::ENODEV);
    /// A signal came first.
    pub const INTERRUPTED: Errno = Errno(libc::EINTR);
    /// Would have to wait.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// The kernel, file system or device does not offer it.
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

    /// Whether it says that something was short at this moment, or came between, and nothing of what was asked about.
    #[must_use]
    pub fn is_passing(self) -> bool {
        matches!(
            self.0,
            libc::EAGAIN
                | libc::EINTR
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::ECANCELED
                | libc::EMFILE
                | libc::ENFILE
        )
    }

    /// The error of the call that just failed on this thread.
    pub(crate) fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The kernel's error inside a standard library error; `EIO` if it holds none.
    pub(crate) fn of(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// The value of a call that answers -1 on failure.
pub(crate) fn check(answer: i32) -> Result<i32, Errno> {
    if answer < 0 { Err(Errno::last()) } else { Ok(answer) }
}

/// The same for calls that answer a byte count.
pub(crate) fn check_count(answer: isize) -> Result<usize, Errno> {
    usize::try_from(answer).map_err(|_| Errno::last())
}

impl std::fmt::Display for Errno {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Errno({self})")
    }
}

impl std::error::Error for Errno {}

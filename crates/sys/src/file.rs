//! Files and devices, and what may block: opening, locking, sizes, small reads at start.
//!
//! Reads and writes on the data path are operations of `hands`. The calls here block the thread
//! and are for start, stop and tests.

use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::descriptor::{Descriptor, File};
use crate::errno::{Errno, check, check_count};
use crate::pool::BufferPool;

/// Zeroes written with one call where nothing cheaper works, in bytes.
const ZEROES_BYTES: usize = 1 << 20;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Access {
    /// Reading only.
    #[default]
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// How to open a file. The default opens an existing file for buffered reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// What for.
    pub access: Access,
    /// Past the page cache (`O_DIRECT`): memory, offsets and lengths must be aligned.
    pub direct: bool,
    /// Make a file that must not exist yet, readable by its owner only.
    pub create_new: bool,
    /// For a block device: refuse it while it is mounted or claimed, and claim it (`O_EXCL`).
    pub claim: bool,
}

impl File {
    /// Opens a path.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` with `direct` where the file system has no direct I/O, `EBUSY` with
    /// `claim` where the device is in use.
    pub fn open(path: &Path, options: OpenOptions) -> Result<File, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVALID)?;
        let mut flags = libc::O_CLOEXEC;
        flags |= match options.access {
            Access::Read => libc::O_RDONLY,
            Access::ReadWrite => libc::O_RDWR,
        };
        if options.direct {
            flags |= libc::O_DIRECT;
        }
        if options.create_new {
            flags |= libc::O_CREAT | libc::O_EXCL;
        } else if options.claim {
            flags |= libc::O_EXCL;
        }
        // SAFETY: the path is a terminated string that lives during the call.
        let number = check(unsafe { libc::open(path.as_ptr(), flags, 0o600) })?;
        Ok(File(Descriptor::adopt(number)))
    }

    /// Locks the whole file against everyone else who locks it, until [`File::unlock`], or until
    /// its last clone is dropped and no child process holds a copy of it any more.
    ///
    /// # Errors
    /// [`Errno::BUSY`] if someone else has it.
    pub fn lock(&self) -> Result<(), Errno> {
        match self.set_lock(libc::F_WRLCK) {
            Err(Errno(libc::EAGAIN | libc::EACCES)) => Err(Errno::BUSY),
            other => other,
        }
    }

    /// Keeps out those who [`File::lock`] it, and no other reader. A file that was opened for reading will do.
    ///
    /// # Errors
    /// `BUSY` if somebody has locked it.
    pub fn lock_for_reading(&self) -> Result<(), Errno> {
        match self.set_lock(libc::F_RDLCK) {
            Err(Errno(libc::EAGAIN | libc::EACCES)) => Err(Errno::BUSY),
            other => other,
        }
    }

    /// Gives the lock up. Unlike dropping the file this works at once even if a child process is
    /// just being started, which has copies of everything open until it executes its program.
    pub fn unlock(&self) {
        // Cannot fail for a file that could be locked; if it could not, there is nothing to undo.
        self.set_lock(libc::F_UNLCK).ok();
    }

    /// Whether there are other clones of it: those of operations that have not ended are among them.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn set_lock(&self, kind: i32) -> Result<(), Errno> {
        // SAFETY: plain data for which all zeroes is a value: a lock of the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::c_short::try_from(kind).expect("a small number");
        // SAFETY: the kernel reads a local structure.
        let answer = unsafe { libc::fcntl(self.0.number(), libc::F_OFD_SETLK, &raw const lock) };
        check(answer).map(drop)
    }

    /// Fills `bytes` from `offset`, blocking.
    ///
    /// # Errors
    /// [`Errno::NO_DATA`] if the file ends before; the kernel's otherwise.
    pub fn read_now(&self, bytes: &mut [u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            let at = position(offset, done)?;
            // SAFETY: the kernel fills the slice.
            let answer =
                unsafe { libc::pread(self.0.number(), rest.as_mut_ptr().cast(), rest.len(), at) };
            match check_count(answer) {
                Ok(0) => return Err(Errno::NO_DATA),
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_now(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let at = position(offset, done)?;
            // SAFETY: the kernel reads the slice.
            let answer =
                unsafe { libc::pwrite(self.0.number(), rest.as_ptr().cast(), rest.len(), at) };
            match check_count(answer) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Makes what was written survive a power cut, blocking.
    ///
    /// # Errors
    /// The kernel's: earlier writes may be lost.
    pub fn sync_now(&self) -> Result<(), Errno> {
        // SAFETY: plain call on an open descriptor.
        check(unsafe { libc::fdatasync(self.0.number()) }).map(drop)
    }

    /// Writes out what the page cache has of the file, and has the cache forget it: what is read from then on is what is there.
    /// What could not be written lies in the cache as if it had been, and no later flush writes it. Blocks.
    ///
    /// # Errors
    /// The kernel's: earlier writes may be lost, those of another process too that nobody was told of.
    pub fn renew_cache(&self) -> Result<(), Errno> {
        // SAFETY: plain call on an open descriptor.
        check(unsafe { libc::fsync(self.0.number()) })?;
        // SAFETY: plain call on an open descriptor; a length of 0 means to the end.
        match unsafe { libc::posix_fadvise(self.0.number(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    /// Makes a range read as zeroes, giving its space back if that can be, blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn zero_now(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let at = position(offset, 0)?;
        let count = position(length, 0)?;
        for way in [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE] {
            let mode = libc::FALLOC_FL_KEEP_SIZE | way;
            // SAFETY: plain call on an open descriptor.
            match check(unsafe { libc::fallocate(self.0.number(), mode, at, count) }) {
                Err(Errno::NOT_SUPPORTED) => {}
                other => return other.map(drop),
            }
        }
        let zeroes = BufferPool::new(ZEROES_BYTES).take_zeroed(ZEROES_BYTES);
        let zeroes = zeroes.ok_or(Errno::NO_BUFFERS)?;
        let mut done = 0;
        while done < length {
            let rest = usize::try_from(length - done).unwrap_or(usize::MAX).min(zeroes.len());
            self.write_now(&zeroes[..rest], offset + done)?;
            done += u64::try_from(rest).expect("at most 2^20");
        }
        Ok(())
    }

    /// Where nothing lies in a range of a regular file, so that it reads as zeroes: ascending, and at
    /// most `count_max` of them, the first ones. Beyond the end there is nothing. Blocks where the
    /// file system has to look at its own tables; a file system that keeps none names no holes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn holes_now(&self, range: Range<u64>, count_max: usize) -> Result<Vec<Range<u64>>, Errno> {
        let mut holes = Vec::new();
        let mut at = range.start;
        while at < range.end && holes.len() < count_max {
            let hole = self.seek(at, libc::SEEK_HOLE)?.unwrap_or(at);
            if hole >= range.end {
                break;
            }
            let data = self.seek(hole, libc::SEEK_DATA)?.unwrap_or(range.end).min(range.end);
            if data <= at {
                // It changes while it is looked at; what is not named may be anything.
                break;
            }
            if hole < data {
                holes.push(hole..data);
            }
            at = data;
        }
        Ok(holes)
    }

    /// The next place of a kind; `None` if there is none before the end. Nothing here depends on the
    /// position that this moves.
    fn seek(&self, offset: u64, kind: i32) -> Result<Option<u64>, Errno> {
        let at = position(offset, 0)?;
        // SAFETY: plain call on an open descriptor.
        let answer = unsafe { libc::lseek(self.0.number(), at, kind) };
        if let Ok(found) = u64::try_from(answer) {
            return Ok(Some(found));
        }
        match Errno::last() {
            Errno(libc::ENXIO) => Ok(None),
            errno => Err(errno),
        }
    }

    /// Sets the length of a regular file; what is new reads as zeroes and takes no space.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_size(&self, bytes: u64) -> Result<(), Errno> {
        let bytes = i64::try_from(bytes).map_err(|_| Errno::INVALID)?;
        // SAFETY: plain call on an open descriptor.
        check(unsafe { libc::ftruncate(self.0.number(), bytes) }).map(drop)
    }
}

fn position(offset: u64, done: usize) -> Result<i64, Errno> {
    let done = u64::try_from(done).expect("a length in memory fits in 64 bits");
    offset.checked_add(done).and_then(|at| i64::try_from(at).ok()).ok_or(Errno::INVALID)
}

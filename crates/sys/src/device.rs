//! What a file or block device says about itself, and the calls that only devices know.
//!
//! Facts: request numbers from `linux/fs.h`; `queue/write_cache` from the kernel's
//! `Documentation/ABI/stable/sysfs-block`; direct I/O alignment from `statx(2)`.

use std::os::fd::RawFd;
use std::path::Path;

use crate::descriptor::File;
use crate::errno::{Errno, check};

/// `BLKGETSIZE64`: size in bytes.
const SIZE: libc::c_ulong = 0x8008_1272;
/// `BLKSSZGET`: logical block size.
const LOGICAL: libc::c_ulong = 0x1268;
/// `BLKPBSZGET`: physical block size.
const PHYSICAL: libc::c_ulong = 0x127b;
/// `BLKDISCARD`.
const DISCARD: libc::c_ulong = 0x1277;
/// `BLKZEROOUT`.
const ZERO_OUT: libc::c_ulong = 0x127f;

/// The block size where nothing tells another.
const BLOCK_BYTES: u32 = 512;

/// What a file or device says about itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceFacts {
    /// It is a block device, not a regular file.
    pub block_device: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Direct I/O must be aligned to this, in bytes: 512 or 4096.
    pub logical_block_bytes: u32,
    /// The kernel tells that there is no direct I/O. It may be opened for that all the same, and is read and written through the
    /// page cache then: ext4 that has data in its journal, or software that enciphers under a file system.
    pub never_direct: bool,
    /// Smaller writes are slow, in bytes.
    pub physical_block_bytes: u32,
    /// A write may be lost in a power cut until it is flushed. True where nobody knows.
    pub volatile_cache: bool,
}

impl File {
    /// Asks the file or device about itself.
    ///
    /// # Errors
    /// The kernel's; [`Errno::INVALID`] for what is neither a regular file nor a block device.
    pub fn facts(&self) -> Result<DeviceFacts, Errno> {
        // SAFETY: plain data for which all zeroes is a value; the kernel fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills a local structure.
        check(unsafe { libc::fstat(self.0.number(), &raw mut stat) })?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFBLK => self.device_facts(stat.st_rdev),
            libc::S_IFREG => {
                let size_bytes = u64::try_from(stat.st_size).map_err(|_| Errno::INVALID)?;
                let told = self.direct_alignment();
                let block = told.map(|align| align.max(BLOCK_BYTES));
                let block = block.or_else(|| block_of(stat.st_dev)).unwrap_or(BLOCK_BYTES);
                Ok(DeviceFacts {
                    block_device: false,
                    size_bytes,
                    logical_block_bytes: block,
                    never_direct: told == Some(0),
                    physical_block_bytes: u32::try_from(stat.st_blksize).unwrap_or(block),
                    volatile_cache: true,
                })
            }
            _ => Err(Errno::INVALID),
        }
    }

    fn device_facts(&self, number: libc::dev_t) -> Result<DeviceFacts, Errno> {
        let mut size_bytes = 0u64;
        let mut logical = 0i32;
        let mut physical = 0u32;
        // SAFETY: each request fills one number of the size it is given here.
        unsafe {
            check(libc::ioctl(self.0.number(), SIZE, &raw mut size_bytes))?;
            check(libc::ioctl(self.0.number(), LOGICAL, &raw mut logical))?;
            check(libc::ioctl(self.0.number(), PHYSICAL, &raw mut physical))?;
        }
        let logical_block_bytes = u32::try_from(logical).map_err(|_| Errno::INVALID)?;
        Ok(DeviceFacts {
            block_device: true,
            size_bytes,
            logical_block_bytes,
            never_direct: false,
            physical_block_bytes: physical,
            volatile_cache: volatile_cache(number),
        })
    }

    /// What direct I/O on a regular file must be aligned to, where the kernel tells (6.1): 0 where there is none.
    fn direct_alignment(&self) -> Option<u32> {
        // SAFETY: plain data for which all zeroes is a value; the kernel fills it.
        let mut answer: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: an empty path with this flag means the descriptor itself; the answer is local.
        check(unsafe {
            libc::statx(
                self.0.number(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_DIOALIGN,
                &raw mut answer,
            )
        })
        .ok()?;
        let told = answer.stx_mask & libc::STATX_DIOALIGN != 0;
        told.then_some(answer.stx_dio_offset_align)
    }

    /// Tells a block device that a range is unused, blocking. What it reads as after is undefined.
    ///
    /// # Errors
    /// The kernel's; [`Errno::NOT_SUPPORTED`] where the device has no discard.
    pub fn discard_now(&self, offset: u64, length: u64) -> Result<(), Errno> {
        self.device_range(DISCARD, offset, length)
    }

    /// Makes a range of a block device read as zeroes, blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn zero_out_now(&self, offset: u64, length: u64) -> Result<(), Errno> {
        self.device_range(ZERO_OUT, offset, length)
    }

    fn device_range(&self, request: libc::c_ulong, offset: u64, length: u64) -> Result<(), Errno> {
        let range = [offset, length];
        // SAFETY: both requests read two 64-bit numbers.
        check(unsafe { libc::ioctl(self.0.number(), request, range.as_ptr()) }).map(drop)
    }
}

/// A number for the disk under an open file, by what the kernel knows of it by heart: a disk that hangs is not asked.
/// What it says nothing of counts as one disk.
pub(crate) fn disk_of(fd: RawFd) -> u64 {
    // SAFETY: plain data for which all zeroes is a value; the kernel fills it.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: an empty path with this flag means the descriptor itself; the answer is local.
    let told =
        unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut answer) } == 0;
    let is_device = u32::from(answer.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    let (major, minor) = match (told, is_device) {
        (false, _) => (0, 0),
        (true, true) => (answer.stx_rdev_major, answer.stx_rdev_minor),
        (true, false) => (answer.stx_dev_major, answer.stx_dev_minor),
    };
    u64::from(major) << 32 | u64::from(minor)
}

fn volatile_cache(device: libc::dev_t) -> bool {
    queue_fact(device, "write_cache").is_none_or(|text| text != "write through")
}

/// The block size of the device with a file system; `None` for one that is on none, or on several.
fn block_of(device: libc::dev_t) -> Option<u32> {
    queue_fact(device, "logical_block_size")?.parse().ok()
}

/// What the kernel says of a block device's queue. A partition has none of its own, its parent has.
fn queue_fact(device: libc::dev_t, name: &str) -> Option<String> {
    let place = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let read = |place: &Path| std::fs::read_to_string(place.join("queue").join(name)).ok();
    let told = read(Path::new(&place)).or_else(|| {
        let real = std::fs::canonicalize(&place).ok()?;
        read(real.parent()?)
    });
    Some(told?.trim().to_owned())
}

#[cfg(test)]
mod tests;

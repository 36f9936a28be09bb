//! A file whose bytes are memory that is written in place: persistent memory (DAX), or a file system in memory.
//!
//! What always holds:
//! - A write that came back is where it is to be: on persistent memory it survives a power cut, with no call to the kernel and no
//!   flush after it. One that a power cut interrupts leaves each aligned word of 8 bytes as it was or as it was to be.
//! - Nothing outside the mapping is touched.
//! - Room in the file system is taken before it is written to: where there is none, that is an error, and not the end of the process.
//! - A page is asked of the kernel before it is first written to: one that the memory cannot give is an error as well.
//! - Reading is not done here: the file is read as any other, and what the memory cannot give is an error there.
//!
//! What would end the process: a page that the kernel takes away after it was written to, as somebody makes the file shorter, against
//! whom it is locked, or the memory turns bad; before Linux 5.14 also one that was bad before.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::descriptor::File;
use crate::errno::{Errno, check};

/// Room is taken from the file system in pieces of this many bytes.
const ROOM_BYTES: u64 = 256 << 10;

/// What the kernel gives at once.
const PAGE_BYTES: u64 = 4096;

/// What is written at once, or not at all.
const WORD_BYTES: usize = 8;

/// A file system in memory: `TMPFS_MAGIC`, `RAMFS_MAGIC` in `statfs(2)`.
const MEMORY_KINDS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What lies under a mapping.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MappedKind {
    /// Memory that keeps its content without power.
    Persistent,
    /// Memory of this machine: it forgets when the machine stops, as its file system does anyway.
    Volatile,
}

/// A file that is written in place. Clones are the same.
#[derive(Clone)]
pub struct Mapped(Arc<Inner>);

struct Inner {
    start: *mut u8,
    length: usize,
    file: File,
    kind: MappedKind,
    /// A bit for each piece of the file for which room was taken.
    taken: Bits,
    /// A bit for each page that the kernel has given.
    present: Bits,
}

/// Numbers that were seen.
struct Bits(Vec<AtomicU64>);

impl Bits {
    /// None of the numbers below this.
    fn new(count: u64) -> Bits {
        Bits((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, number: u64) -> (&AtomicU64, u64) {
        (&self.0[usize::try_from(number / 64).expect("within the mapping")], 1 << (number % 64))
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = self.word(number);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn add(&self, number: u64) {
        let (word, bit) = self.word(number);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

// SAFETY: the mapping lasts as long as this, and belongs to no thread.
unsafe impl Send for Inner {}
// SAFETY: it is only written to, word by word; who writes the same place at one time leaves some of either, as on a disk.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { length, kind, .. } = &*self.0;
        out.debug_struct("Mapped")
            .field("length", length)
            .field("kind", kind)
            .finish_non_exhaustive()
    }
}

impl File {
    /// Maps the first `bytes` of a regular file that is open for writing, where that is memory.
    ///
    /// # Errors
    /// [`Errno::NOT_SUPPORTED`] if it is a file on a disk, or this machine has no instruction for it; [`Errno::INVALID`] if
    /// the file is shorter; the kernel's.
    pub fn map(&self, bytes: u64) -> Result<Mapped, Errno> {
        if !CAN_STORE {
            return Err(Errno::NOT_SUPPORTED);
        }
        let length = usize::try_from(bytes).map_err(|_| Errno::TOO_LARGE)?;
        let facts = self.facts()?;
        if facts.block_device || facts.size_bytes < bytes || bytes == 0 {
            return Err(Errno::INVALID);
        }
        let map = |flags| {
            let (none, rights) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping at a place of the kernel's choice, of a file that is open.
            let start = unsafe { libc::mmap(none, length, rights, flags, self.0.number(), 0) };
            if start == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(start.cast::<u8>()) }
        };
        let (start, kind) = match map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            Ok(start) => (start, MappedKind::Persistent),
            Err(Errno::NOT_SUPPORTED | Errno::INVALID) if self.is_in_memory()? => {
                (map(libc::MAP_SHARED)?, MappedKind::Volatile)
            }
            Err(Errno::INVALID) => return Err(Errno::NOT_SUPPORTED),
            Err(errno) => return Err(errno),
        };
        // SAFETY: advice about the mapping that was just made: it has no place in a dump of this process.
        unsafe { libc::madvise(start.cast(), length, libc::MADV_DONTDUMP) };
        let taken = Bits::new(bytes.div_ceil(ROOM_BYTES));
        let present = Bits::new(bytes.div_ceil(PAGE_BYTES));
        Ok(Mapped(Arc::new(Inner { start, length, file: self.clone(), kind, taken, present })))
    }

    fn is_in_memory(&self) -> Result<bool, Errno> {
        let mut facts = std::mem::MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the kernel fills the structure if it answers 0.
        let facts = unsafe {
            check(libc::fstatfs(self.0.number(), facts.as_mut_ptr()))?;
            facts.assume_init()
        };
        Ok(u64::try_from(facts.f_type).is_ok_and(|kind| MEMORY_KINDS.contains(&kind)))
    }
}

impl Mapped {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> MappedKind {
        self.0.kind
    }

    /// Writes `bytes` at `offset`; both are whole words of 8 bytes. They are there when this comes back.
    ///
    /// # Errors
    /// [`Errno::INVALID`] outside the mapping, or askew; [`Errno::IO`] for a page that the memory cannot give; the kernel's where the
    /// file system has no room.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.prepare(offset, bytes.len())?;
        // SAFETY: `prepare` found that so many bytes are inside the mapping, aligned, and have room in the file.
        unsafe { store(to, bytes) };
        Ok(())
    }

    /// Takes the room for a range, and has the kernel make its pages present, so that a write does not wait for that.
    ///
    /// # Errors
    /// As [`Mapped::write`].
    pub fn make_present(&self, offset: u64, length: usize) -> Result<(), Errno> {
        self.prepare(offset, length).map(drop)
    }

    /// Where a range is, once there is room for it.
    fn prepare(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        let inner = &*self.0;
        let first = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        let end =
            first.checked_add(length).filter(|&end| end <= inner.length).ok_or(Errno::INVALID)?;
        if !first.is_multiple_of(WORD_BYTES) || !length.is_multiple_of(WORD_BYTES) || length == 0 {
            return Err(Errno::INVALID);
        }
        let end = u64::try_from(end).expect("64 bits fit");
        for piece in offset / ROOM_BYTES..end.div_ceil(ROOM_BYTES) {
            if !inner.taken.has(piece) {
                self.take_room(piece * ROOM_BYTES)?;
                inner.taken.add(piece);
            }
        }
        let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        if !pages.clone().all(|page| inner.present.has(page)) {
            self.ask_for(&pages)?;
            pages.for_each(|page| inner.present.add(page));
        }
        Ok(inner.start.wrapping_add(first))
    }

    /// Has the kernel make pages present.
    fn ask_for(&self, pages: &Range<u64>) -> Result<(), Errno> {
        let bytes = |pages| usize::try_from(pages * PAGE_BYTES).expect("within the mapping");
        let start = self.0.start.wrapping_add(bytes(pages.start));
        let length = bytes(pages.end - pages.start);
        // SAFETY: pages of the mapping, the last of which it may use in part; content does not change.
        let answer =
            check(unsafe { libc::madvise(start.cast(), length, libc::MADV_POPULATE_WRITE) });
        match answer {
            // An older kernel does not know it, and then the first write takes the time.
            Ok(_) | Err(Errno::INVALID) => Ok(()),
            Err(Errno(libc::EFAULT | libc::EHWPOISON)) => Err(Errno::IO),
            Err(errno) => Err(errno),
        }
    }

    fn take_room(&self, offset: u64) -> Result<(), Errno> {
        let inner = &*self.0;
        let end = u64::try_from(inner.length).expect("64 bits fit").min(offset + ROOM_BYTES);
        let at = i64::try_from(offset).map_err(|_| Errno::INVALID)?;
        let length = i64::try_from(end - offset).map_err(|_| Errno::INVALID)?;
        let mode = libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain call on an open descriptor.
        check(unsafe { libc::fallocate(inner.file.0.number(), mode, at, length) }).map(drop)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nobody else knows the place.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Whether [`store`] does what it says here.
const CAN_STORE: bool = cfg!(target_arch = "x86_64");

/// Stores whole words past the caches, and waits until none is on its way any more: what has left them is kept without power, as
/// platforms with persistent memory promise (ADR).
///
/// # Safety
/// `to` is aligned to 8 bytes, and so many bytes from there on may be written.
#[cfg(target_arch = "x86_64")]
unsafe fn store(to: *mut u8, bytes: &[u8]) {
    use std::arch::x86_64::{_mm_sfence, _mm_stream_si64};
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    for (index, word) in words.iter().enumerate() {
        // SAFETY: inside what the caller says may be written, and aligned as it says.
        unsafe { _mm_stream_si64(to.cast::<i64>().add(index), i64::from_ne_bytes(*word)) };
    }
    // SAFETY: a fence; every such machine has it.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(_to: *mut u8, _bytes: &[u8]) {
    unreachable!("nothing is mapped here");
}

#[cfg(test)]
mod tests;

//! One file, device or memory: the same operations on each.
//!
//! The calls that end in `_now` block. They serve opening and the fault layer; the data path uses
//! the others, which queue to the hands.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use sys::{
    Access, Buffer, DeviceFacts, Errno, Event, File, Hands, Mapped, MappedKind, OpenOptions, Piece,
};

use crate::error::StoreError;
use crate::memory::Memory;

/// Block sizes that the rest can work with, in bytes.
const BLOCKS: [u32; 2] = [512, 4096];

/// A claim is tried again so often: a child process that is being started has copies of all that is
/// open, claims that were just given up included, until it executes its program.
const CLAIM_TRIES: u32 = 50;

/// Between two tries.
const CLAIM_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// Clones are the same file, device or memory, for hands of other threads.
#[derive(Clone)]
pub(crate) enum Backing {
    File {
        file: File,
        facts: DeviceFacts,
        direct: bool,
        /// It is memory, and written in place.
        mapped: Option<Mapped>,
        _guard: Arc<Guard>,
    },
    Memory(Arc<Memory>),
}

/// Keeps others out: the claim on a device, and the lock.
///
/// The claim does no I/O, so that the kernel keeps no reference to it. The lock is on the very descriptor that does: what is
/// on its way to the disk, be it of a process that was killed, would end up over what the next one writes there. Where
/// nothing is, the device is free the moment its store is dropped.
pub(crate) struct Guard {
    locked: File,
    _claim: Option<File>,
}

impl Guard {
    fn new(locked: &File, claim: Option<File>) -> Result<Guard, StoreError> {
        locked.lock()?;
        Ok(Guard { locked: locked.clone(), _claim: claim })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Else it ends with the last operation.
        if !self.locked.is_shared() {
            self.locked.unlock();
        }
    }
}

/// Claims a device.
fn claim(path: &Path, options: OpenOptions) -> Result<File, StoreError> {
    let mut tries = CLAIM_TRIES;
    loop {
        match File::open(path, OpenOptions { claim: true, ..options }) {
            Err(Errno::BUSY) if tries > 1 => {
                tries -= 1;
                std::thread::sleep(CLAIM_PAUSE);
            }
            other => return Ok(other?),
        }
    }
}

impl Backing {
    /// Opens a file or device for reading and writing, for us alone.
    pub(crate) fn open(path: &Path) -> Result<Backing, StoreError> {
        Backing::open_with(path, true)
    }

    /// The same; past the page cache if `direct` and the file system has that.
    pub(crate) fn open_with(path: &Path, direct: bool) -> Result<Backing, StoreError> {
        // Looked at before it is opened, as opening a pipe would wait for its other end.
        let kind = std::fs::metadata(path).map_err(|error| errno_of(&error))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(StoreError::Unsupported);
        }
        let facts = File::open(path, OpenOptions::default())?.facts()?;
        // Some take it for granted at the opening, and go through the page cache.
        let direct = direct && !facts.never_direct;
        let buffered = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
        let claim = if facts.block_device { Some(claim(path, buffered)?) } else { None };
        let (file, direct) = match File::open(path, OpenOptions { direct, ..buffered }) {
            // A file system without direct I/O.
            Err(Errno::INVALID) if direct => (File::open(path, buffered)?, false),
            other => (other?, direct),
        };
        if !BLOCKS.contains(&facts.logical_block_bytes) {
            return Err(StoreError::Unsupported);
        }
        let guard = Guard::new(&file, claim)?;
        if !direct {
            // An earlier process may have left there what the disk has not.
            file.renew_cache()?;
        }
        Ok(Backing::File { file, facts, direct, mapped: None, _guard: Arc::new(guard) })
    }

    /// The same, with its first bytes written in place if they are memory. What cannot be mapped is written as any file is.
    pub(crate) fn open_in_place(path: &Path, bytes: u64) -> Result<Backing, StoreError> {
        let mut backing = Backing::open(path)?;
        if let Backing::File { file, mapped, .. } = &mut backing {
            *mapped = file.map(bytes).ok();
        }
        Ok(backing)
    }

    pub(crate) fn mapped(&self) -> Option<&Mapped> {
        match self {
            Backing::File { mapped, .. } => mapped.as_ref(),
            Backing::Memory(_) => None,
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            Backing::File { facts, .. } => facts.size_bytes,
            Backing::Memory(memory) => memory.size_bytes(),
        }
    }

    pub(crate) fn regular_file(&self) -> Option<&File> {
        match self {
            Backing::File { file, facts, .. } if !facts.block_device => Some(file),
            _ => None,
        }
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        match self {
            Backing::File { facts, .. } => facts.logical_block_bytes,
            Backing::Memory(_) => BLOCKS[0],
        }
    }

    pub(crate) fn volatile_cache(&self) -> bool {
        match self {
            Backing::File { facts, .. } => facts.volatile_cache,
            Backing::Memory(_) => false,
        }
    }

    /// Whether writes go through the page cache.
    pub(crate) fn is_cached(&self) -> bool {
        matches!(self, Backing::File { direct: false, .. })
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Backing::File { mapped: Some(mapped), .. } => match mapped.kind() {
                MappedKind::Persistent => "persistent memory",
                MappedKind::Volatile => "memory of this machine: lost when that stops",
            },
            Backing::File { facts, direct, .. } => match (facts.block_device, direct) {
                (true, _) => "block device",
                (false, true) => "file",
                (false, false) => "file, through the page cache",
            },
            Backing::Memory(_) => "memory: every byte is lost when the process ends",
        }
    }

    /// Reads at once; `bytes` must be aligned as direct I/O wants it.
    pub(crate) fn read_now(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        match self {
            Backing::File { file, .. } => file.read_now(bytes, offset),
            Backing::Memory(memory) => {
                memory.read(offset, bytes);
                Ok(())
            }
        }
    }

    pub(crate) fn write_now(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Backing::File { mapped: Some(mapped), .. } => mapped.write(offset, bytes),
            Backing::File { file, .. } => file.write_now(bytes, offset),
            Backing::Memory(memory) => {
                memory.write(offset, bytes);
                Ok(())
            }
        }
    }

    pub(crate) fn zero_now(&self, offset: u64, length: u64) -> Result<(), Errno> {
        match self {
            Backing::File { file, .. } => file.zero_now(offset, length),
            Backing::Memory(memory) => {
                memory.zero(offset, length);
                Ok(())
            }
        }
    }

    pub(crate) fn sync_now(&self) -> Result<(), Errno> {
        match self {
            Backing::File { mapped: Some(_), .. } => Ok(()),
            Backing::File { file, .. } => file.sync_now(),
            Backing::Memory(_) => Ok(()),
        }
    }

    pub(crate) fn read(
        &self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        mut buffer: Buffer,
        range: Range<usize>,
    ) {
        match self {
            Backing::File { file, .. } => hands.read(token, file, offset, buffer, range),
            Backing::Memory(memory) => {
                let count = range.len();
                let bytes = buffer.as_mut().expect("memory to be filled has one owner");
                memory.read(offset, &mut bytes[range]);
                hands.post(Event::with_buffer(token, Ok(as_count(count)), buffer));
            }
        }
    }

    pub(crate) fn write(
        &self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        piece: Piece,
        durable: bool,
    ) {
        match self {
            Backing::File { mapped: Some(mapped), .. } => {
                let written = mapped.write(offset, piece.as_slice());
                hands.post(Event::plain(token, written.map(|()| as_count(piece.len()))));
            }
            Backing::File { file, .. } => hands.write(token, file, offset, piece, durable),
            Backing::Memory(memory) => {
                memory.write(offset, piece.as_slice());
                hands.post(Event::plain(token, Ok(as_count(piece.len()))));
            }
        }
    }

    pub(crate) fn zero(
        &self,
        hands: &mut Hands,
        token: u64,
        range: Range<u64>,
        unmap: bool,
        durable: bool,
    ) {
        let length = range.end - range.start;
        match self {
            Backing::File { file, .. } => {
                hands.zero(token, file, range.start, length, unmap, durable);
            }
            Backing::Memory(memory) => {
                memory.zero(range.start, length);
                hands.post(Event::plain(token, Ok(0)));
            }
        }
    }

    pub(crate) fn sync(&self, hands: &mut Hands, token: u64) {
        match self {
            Backing::File { mapped: None, file, .. } => hands.sync(token, file),
            Backing::File { .. } | Backing::Memory(_) => hands.post(Event::plain(token, Ok(0))),
        }
    }
}

pub(crate) fn as_count(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno)
}

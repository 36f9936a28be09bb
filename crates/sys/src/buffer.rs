//! Memory that the kernel reads and writes: aligned, pooled, counted.
//!
//! What always holds:
//! - A pool never holds more than its limit in bytes, in use or idle.
//! - A block returns to its pool when its last [`Buffer`] goes, and never before. An operation keeps
//!   a `Buffer` of its own until the kernel is done, so the kernel never sees freed memory.
//! - `&mut [u8]` needs the only `Buffer` of a block, and an operation that fills memory takes that
//!   only one, so Rust code never looks at bytes that the kernel is writing.
//! - Blocks are initialised once, when allocated. They are not wiped between uses: whoever takes a
//!   buffer writes it before showing it to anyone.
//! - A buffer may be handed to another thread, and be dropped there: its block goes back to the pool it
//!   is of. A pool is behind a lock that one thread takes nearly always: give each thread its own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes of blocks, in bytes. A buffer takes the smallest class that holds it.
pub const BUFFER_CLASSES_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Bytes a pool may hold unless told otherwise: 1024 writes of 128 KiB in flight.
pub const POOL_BYTES_DEFAULT: usize = 128 << 20;

/// Every block starts at a multiple of this: enough for O_DIRECT on every device known.
const ALIGN_BYTES: usize = 4096;

/// A block of aligned memory.
struct Block {
    at: NonNull<u8>,
    class: usize,
}

// SAFETY: a block is memory of its own, tied to no thread.
unsafe impl Send for Block {}
// SAFETY: through a shared reference its bytes are only read; who writes them has the only reference
// (see `Buffer::as_mut` and `Buffer::address`).
unsafe impl Sync for Block {}

impl Block {
    fn layout(class: usize) -> Layout {
        Layout::from_size_align(BUFFER_CLASSES_BYTES[class], ALIGN_BYTES)
            .expect("every class is a multiple of the alignment")
    }

    /// A zeroed block, or `None` when the machine is out of memory.
    fn allocate(class: usize) -> Option<Block> {
        // SAFETY: the layout's size is not zero.
        let at = unsafe { alloc_zeroed(Block::layout(class)) };
        NonNull::new(at).map(|at| Block { at, class })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate` with the same layout; a block is dropped once.
        unsafe { dealloc(self.at.as_ptr(), Block::layout(self.class)) }
    }
}

/// What a pool holds; buffers keep it alive.
struct Shelf {
    idle: [Vec<Arc<Block>>; BUFFER_CLASSES_BYTES.len()],
    held_bytes: usize,
    used_bytes: usize,
    limit_bytes: usize,
}

impl Shelf {
    /// A block of this class; idle blocks of other classes are given up where room is short.
    fn take(&mut self, class: usize) -> Option<Arc<Block>> {
        let bytes = BUFFER_CLASSES_BYTES[class];
        let block = match self.idle[class].pop() {
            Some(block) => block,
            None => {
                self.make_room(bytes)?;
                let block = Arc::new(Block::allocate(class)?);
                self.held_bytes += bytes;
                block
            }
        };
        self.used_bytes += bytes;
        Some(block)
    }

    fn make_room(&mut self, bytes: usize) -> Option<()> {
        if self.used_bytes + bytes > self.limit_bytes {
            return None;
        }
        for class in (0..BUFFER_CLASSES_BYTES.len()).rev() {
            while self.held_bytes + bytes > self.limit_bytes && self.idle[class].pop().is_some() {
                self.held_bytes -= BUFFER_CLASSES_BYTES[class];
            }
        }
        assert!(self.held_bytes + bytes <= self.limit_bytes, "held is used plus idle");
        Some(())
    }

    fn give_back(&mut self, block: Arc<Block>) {
        self.used_bytes -= BUFFER_CLASSES_BYTES[block.class];
        self.idle[block.class].push(block);
    }
}

/// Where buffers come from. Clones name the same pool.
#[derive(Clone)]
pub struct BufferPool {
    shelf: Arc<Mutex<Shelf>>,
}

impl BufferPool {
    /// A pool that will never hold more than `limit_bytes`. Memory is allocated when first taken.
    #[must_use]
    pub fn new(limit_bytes: usize) -> BufferPool {
        let shelf = Shelf { idle: Default::default(), held_bytes: 0, used_bytes: 0, limit_bytes };
        BufferPool { shelf: Arc::new(Mutex::new(shelf)) }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // What is done under the lock ends whole or not at all.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `length` bytes with arbitrary content; `None` when the pool's limit is met or
    /// `length` is zero or above the largest class.
    #[must_use]
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let class = BUFFER_CLASSES_BYTES.iter().position(|&bytes| length <= bytes)?;
        if length == 0 {
            return None;
        }
        let block = self.shelf().take(class)?;
        Some(Buffer { block: Some(block), length, pool: self.clone() })
    }

    /// The same, filled with zeroes.
    #[must_use]
    pub fn take_zeroed(&self, length: usize) -> Option<Buffer> {
        let mut buffer = self.take(length)?;
        buffer.as_mut()?.fill(0);
        Some(buffer)
    }

    /// Bytes of the blocks that buffers hold now.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.shelf().used_bytes
    }

    /// Bytes of all blocks, in use or idle.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shelf().held_bytes
    }

    /// The most it may hold, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.shelf().limit_bytes
    }
}

/// A counted reference to a block of a pool. Cloning is cheap and copies no bytes.
pub struct Buffer {
    /// `None` only while being dropped.
    block: Option<Arc<Block>>,
    length: usize,
    pool: BufferPool,
}

impl Buffer {
    fn block(&self) -> &Arc<Block> {
        self.block.as_ref().expect("a buffer has its block until it is dropped")
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: a pool gives no empty buffers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes the block behind it has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        BUFFER_CLASSES_BYTES[self.block().class]
    }

    /// True if no clone of it exists, in an operation or elsewhere.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        let unique = Arc::strong_count(self.block()) == 1;
        // What other threads did with clones that are gone comes before what follows here.
        fence(Ordering::Acquire);
        unique
    }

    /// Changes how much of the block this reference shows; clones keep theirs.
    ///
    /// # Panics
    /// If `length` is zero or above the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length > 0 && length <= self.capacity(), "a buffer's length is within its block");
        self.length = length;
    }

    /// The bytes, to write; `None` while clones exist.
    #[must_use]
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: the block is `capacity()` initialised bytes, `length` is within it, and this is
        // its only reference, borrowed mutably for as long as the slice lives. Operations that
        // write into memory hold that only reference, so the kernel is not writing it now.
        Some(unsafe { std::slice::from_raw_parts_mut(self.block().at.as_ptr(), self.length) })
    }

    /// Where the kernel shall write, for an operation that owns the only reference.
    pub(crate) fn address(&self) -> *mut u8 {
        self.block().at.as_ptr()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised and long enough as in `as_mut`. A writer needs the only reference;
        // while this one is borrowed it is neither moved into an operation nor borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.block().at.as_ptr(), self.length) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer { block: self.block.clone(), length: self.length, pool: self.pool.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        if Arc::get_mut(&mut block).is_some() {
            self.pool.shelf().give_back(block);
        } else if let Some(block) = Arc::into_inner(block) {
            // Another thread let its clone go just now.
            self.pool.shelf().give_back(Arc::new(block));
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Buffer({} bytes)", self.length)
    }
}

/// Bytes to be written or sent: a few of one's own, or a range of a shared buffer.
#[derive(Clone, Debug)]
pub struct Piece(Source);

#[derive(Clone, Debug)]
enum Source {
    Own(Vec<u8>),
    Shared { buffer: Buffer, range: Range<usize> },
}

impl Piece {
    /// The bytes `range` of `buffer`, without copying them.
    ///
    /// # Panics
    /// If `range` is not inside the buffer.
    #[must_use]
    pub fn part(buffer: &Buffer, range: Range<usize>) -> Piece {
        assert!(
            range.start <= range.end && range.end <= buffer.len(),
            "a part is inside its whole"
        );
        Piece(Source::Shared { buffer: buffer.clone(), range })
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Own(bytes) => bytes.len(),
            Source::Shared { range, .. } => range.len(),
        }
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Source::Own(bytes) => bytes,
            Source::Shared { buffer, range } => &buffer[range.clone()],
        }
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Piece {
        Piece(Source::Own(bytes))
    }
}

impl From<Buffer> for Piece {
    fn from(buffer: Buffer) -> Piece {
        let range = 0..buffer.len();
        Piece(Source::Shared { buffer, range })
    }
}

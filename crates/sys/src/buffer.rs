//! Memory that the kernel reads and writes: aligned, pooled, counted.
//!
//! What always holds:
//! - A pool never holds more than its limit in bytes, in use or idle, but for what was taken
//!   [beyond](BufferPool::take_beyond) it on purpose.
//! - What a [`Room`] holds counts as if it were in use. A buffer of another pool that is charged to a room counts
//!   there, and no longer in its own pool, until it goes.
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
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// Where it counts while it is lent.
    lent: OnceLock<Room>,
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
        NonNull::new(at).map(|at| Block { at, class, lent: OnceLock::new() })
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
                self.give_up_idle(bytes);
                let block = Arc::new(Block::allocate(class)?);
                self.held_bytes += bytes;
                block
            }
        };
        self.used_bytes += bytes;
        Some(block)
    }

    /// Idle blocks go, until so many bytes more are within the limit, or none is left.
    fn give_up_idle(&mut self, bytes: usize) {
        for class in (0..BUFFER_CLASSES_BYTES.len()).rev() {
            while self.held_bytes + bytes > self.limit_bytes && self.idle[class].pop().is_some() {
                self.held_bytes -= BUFFER_CLASSES_BYTES[class];
            }
        }
    }

    /// So many bytes are not this pool's to count any more.
    fn let_go(&mut self, bytes: usize) {
        self.used_bytes -= bytes;
        self.held_bytes -= bytes;
    }

    /// A block that is not used any more; `was_lent`: it did not count here.
    fn give_back(&mut self, block: Arc<Block>, was_lent: bool) {
        let bytes = BUFFER_CLASSES_BYTES[block.class];
        if !was_lent {
            self.let_go(bytes);
        }
        if self.held_bytes + bytes <= self.limit_bytes {
            self.held_bytes += bytes;
            self.idle[block.class].push(block);
        }
    }
}

/// How much of a pool may be taken.
#[derive(Clone, Copy)]
enum Rule {
    /// All of it.
    Whole,
    /// Nothing once more than so many bytes would be in use, by whomever.
    Below(usize),
    /// No more than is then left for others.
    Share,
}

/// A pool, as one of those who take from it may use it.
struct Part {
    shelf: Arc<Mutex<Shelf>>,
    rule: Rule,
    /// Of a share: bytes taken by it. Changed under the lock of the shelf only.
    taken_bytes: AtomicUsize,
}

impl Part {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // What is done under the lock ends whole or not at all.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allows(&self, shelf: &Shelf, bytes: usize) -> bool {
        let used_bytes = shelf.used_bytes + bytes;
        let left_bytes = shelf.limit_bytes.saturating_sub(used_bytes);
        used_bytes <= shelf.limit_bytes
            && match self.rule {
                Rule::Whole => true,
                Rule::Below(ceiling_bytes) => used_bytes <= ceiling_bytes,
                Rule::Share => match self.taken_bytes.load(Ordering::Relaxed) {
                    0 => true,
                    taken_bytes => taken_bytes + bytes <= left_bytes,
                },
            }
    }

    fn count(&self, bytes: usize) {
        if matches!(self.rule, Rule::Share) {
            let taken_bytes = self.taken_bytes.load(Ordering::Relaxed);
            self.taken_bytes.store(taken_bytes + bytes, Ordering::Relaxed);
        }
    }

    fn discount(&self, bytes: usize) {
        if matches!(self.rule, Rule::Share) {
            let taken_bytes = self.taken_bytes.load(Ordering::Relaxed);
            self.taken_bytes.store(taken_bytes - bytes, Ordering::Relaxed);
        }
    }
}

/// Where buffers come from. Clones name the same pool.
#[derive(Clone)]
pub struct BufferPool {
    part: Arc<Part>,
}

impl BufferPool {
    /// A pool that will never hold more than `limit_bytes`. Memory is allocated when first taken.
    #[must_use]
    pub fn new(limit_bytes: usize) -> BufferPool {
        let shelf = Shelf { idle: Default::default(), held_bytes: 0, used_bytes: 0, limit_bytes };
        BufferPool::of(Arc::new(Mutex::new(shelf)), Rule::Whole)
    }

    fn of(shelf: Arc<Mutex<Shelf>>, rule: Rule) -> BufferPool {
        BufferPool { part: Arc::new(Part { shelf, rule, taken_bytes: AtomicUsize::new(0) }) }
    }

    /// The same pool for somebody who leaves something for others: nothing is taken by it that would make more
    /// than `ceiling_bytes` be in use.
    #[must_use]
    pub fn below(&self, ceiling_bytes: usize) -> BufferPool {
        BufferPool::of(Arc::clone(&self.part.shelf), Rule::Below(ceiling_bytes))
    }

    /// The same pool for one of many that need not know of each other: what is taken by this share is never more
    /// than what is then left, but for the first that it takes. So a share that gives nothing back leaves
    /// half of what it found.
    #[must_use]
    pub fn share(&self) -> BufferPool {
        BufferPool::of(Arc::clone(&self.part.shelf), Rule::Share)
    }

    /// Bytes that a buffer of `length` bytes takes from its pool; `None` if there is no such buffer.
    #[must_use]
    pub fn cost_bytes(length: usize) -> Option<usize> {
        BUFFER_CLASSES_BYTES.iter().copied().find(|&bytes| 0 < length && length <= bytes)
    }

    fn class_of(length: usize) -> Option<usize> {
        BUFFER_CLASSES_BYTES.iter().position(|&bytes| 0 < length && length <= bytes)
    }

    fn buffer(&self, block: Arc<Block>, length: usize) -> Buffer {
        self.part.count(BUFFER_CLASSES_BYTES[block.class]);
        Buffer { block: Some(block), length, pool: self.clone() }
    }

    /// A buffer of `length` bytes with arbitrary content; `None` when the pool's limit is met or
    /// `length` is zero or above the largest class.
    #[must_use]
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let class = BufferPool::class_of(length)?;
        let mut shelf = self.part.shelf();
        if !self.part.allows(&shelf, BUFFER_CLASSES_BYTES[class]) {
            return None;
        }
        let block = shelf.take(class)?;
        Some(self.buffer(block, length))
    }

    /// The same whatever the limit: for what is bounded elsewhere, and must not wait.
    #[must_use]
    pub fn take_beyond(&self, length: usize) -> Option<Buffer> {
        let class = BufferPool::class_of(length)?;
        let mut shelf = self.part.shelf();
        let block = shelf.take(class)?;
        Some(self.buffer(block, length))
    }

    /// Room for buffers of other pools, so many bytes; `None` as for `take`.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Room> {
        let mut shelf = self.part.shelf();
        if !self.part.allows(&shelf, bytes) {
            return None;
        }
        shelf.give_up_idle(bytes);
        shelf.used_bytes += bytes;
        shelf.held_bytes += bytes;
        self.part.count(bytes);
        Some(Room { pool: self.clone(), bytes })
    }

    /// The same, filled with zeroes.
    #[must_use]
    pub fn take_zeroed(&self, length: usize) -> Option<Buffer> {
        let mut buffer = self.take(length)?;
        buffer.as_mut()?.fill(0);
        Some(buffer)
    }

    fn give_back(&self, block: Arc<Block>, room: Option<Room>) {
        let bytes = BUFFER_CLASSES_BYTES[block.class];
        let mut shelf = self.part.shelf();
        if room.is_none() {
            self.part.discount(bytes);
        }
        shelf.give_back(block, room.is_some());
        // The room is given back after the lock of this pool is: it may be of this pool.
        drop(shelf);
        drop(room);
    }

    /// Bytes of the blocks that buffers hold now, and of room that is reserved.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.part.shelf().used_bytes
    }

    /// Bytes of all blocks, in use or idle.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.part.shelf().held_bytes
    }

    /// The most it may hold, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.part.shelf().limit_bytes
    }
}

/// Room in a pool, to which buffers of others are charged. It is given back when dropped.
pub struct Room {
    pool: BufferPool,
    bytes: usize,
}

impl Room {
    /// A part of it, or all that is left.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Room {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Room { pool: self.pool.clone(), bytes }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut shelf = self.pool.part.shelf();
            shelf.let_go(self.bytes);
            self.pool.part.discount(self.bytes);
        }
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Room({} bytes)", self.bytes)
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

    /// From now on the block counts where the room is, and no longer in its own pool. Where it is charged already
    /// it stays, and the room is given back.
    pub fn charge(&self, room: Room) {
        if self.block().lent.set(room).is_ok() {
            let bytes = self.capacity();
            let mut shelf = self.pool.part.shelf();
            shelf.let_go(bytes);
            self.pool.part.discount(bytes);
        }
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
        if let Some(only) = Arc::get_mut(&mut block) {
            let room = only.lent.take();
            self.pool.give_back(block, room);
        } else if let Some(mut block) = Arc::into_inner(block) {
            // Another thread let its clone go just now.
            let room = block.lent.take();
            self.pool.give_back(Arc::new(block), room);
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

    /// The first `length` bytes of a buffer that nobody else needs.
    ///
    /// # Panics
    /// If the buffer has fewer.
    #[must_use]
    pub fn first(buffer: Buffer, length: usize) -> Piece {
        assert!(length <= buffer.len(), "a part is inside its whole");
        Piece(Source::Shared { buffer, range: 0..length })
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

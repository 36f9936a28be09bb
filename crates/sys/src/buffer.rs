//! Buffers, which are counted references to blocks of a [pool](crate::pool), and the pieces of them that are sent.
//!
//! What always holds:
//! - A block returns to its pool when its last [`Buffer`] goes, and never before. An operation keeps
//!   a `Buffer` of its own until the kernel is done, so the kernel never sees freed memory.
//! - `&mut [u8]` needs the only `Buffer` of a block, and an operation that fills memory takes that
//!   only one, so Rust code never looks at bytes that the kernel is writing.
//! - A buffer may be handed to another thread, and be dropped there.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use crate::pool::{Block, BufferPool, Room};

/// A counted reference to a block of a pool. Cloning is cheap and copies no bytes.
pub struct Buffer {
    /// `None` only while being dropped.
    block: Option<Arc<Block>>,
    length: usize,
    pool: BufferPool,
}

impl Buffer {
    pub(crate) fn new(block: Arc<Block>, length: usize, pool: BufferPool) -> Buffer {
        Buffer { block: Some(block), length, pool }
    }

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
        self.block().bytes()
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
        if self.block().lend(room) {
            self.pool.let_go(self.capacity());
        }
    }

    /// For who may have to say where it counts while somebody else has it.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let (block, pool) = (Arc::downgrade(self.block()), self.pool.clone());
        Trace { block, length: self.length, pool }
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
        Some(unsafe { std::slice::from_raw_parts_mut(self.block().start(), self.length) })
    }

    /// Where the kernel shall write, for an operation that owns the only reference.
    pub(crate) fn address(&self) -> *mut u8 {
        self.block().start()
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
        unsafe { std::slice::from_raw_parts(self.block().start(), self.length) }
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
        // Counted first: `get_mut` locks the count of traces, in vain where clones are left.
        if Arc::strong_count(&block) == 1
            && let Some(only) = Arc::get_mut(&mut block)
        {
            let room = only.end_loan();
            self.pool.give_back(block, room);
        } else if let Some(mut block) = Arc::into_inner(block) {
            // Another thread let its clone go just now, or somebody has a trace.
            let room = block.end_loan();
            self.pool.give_back(Arc::new(block), room);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Buffer({} bytes)", self.length)
    }
}

/// A buffer that others have: it keeps no bytes, and shows none.
pub struct Trace {
    block: Weak<Block>,
    length: usize,
    pool: BufferPool,
}

impl Trace {
    /// From now on the block counts in this other pool, if somebody has it still, and there is room for it.
    pub fn charge_to(&self, pool: &BufferPool) {
        // A buffer again for as long as this takes: if it is the last then, the block goes back to its pool as it should.
        let block = self.block.upgrade();
        let Some(block) = block else { return };
        let buffer = Buffer::new(block, self.length, self.pool.clone());
        if let Some(room) = pool.reserve(buffer.capacity()) {
            buffer.charge(room);
        }
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Trace({} bytes)", self.length)
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

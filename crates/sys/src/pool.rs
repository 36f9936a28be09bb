//! Memory that the kernel reads and writes: aligned blocks, counted for all threads, kept by each.
//!
//! What always holds:
//! - No more of a [`Budget`] is in use than its limit, but for what was taken
//!   [beyond](BufferPool::take_beyond) it on purpose.
//! - What lies idle for the next who takes is within what the limit leaves; of a budget that several threads
//!   draw from, within a quarter of the limit for all of them.
//! - What a [`Room`] holds counts as if it were in use. A buffer of another pool that is charged to a room counts
//!   there, and no longer in its own pool, until it goes. What is taken [uncounted](BufferPool::uncounted) is in somebody's
//!   room already, and counts nowhere else.
//! - Blocks are initialised once, when allocated. They are not wiped between uses: whoever takes a
//!   buffer writes it before showing it to anyone.
//! - Nobody waits for a lock. Idle blocks are touched by the thread that made the pool, only; others, too, may take
//!   from it, and give back, but what they give back comes by a list that is only ever added to or taken whole.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::UnsafeCell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::buffer::Buffer;

/// Sizes of blocks, in bytes. A buffer takes the smallest class that holds it.
pub const BUFFER_CLASSES_BYTES: [usize; 9] = {
    let mut classes = [4 << 10; 9];
    let mut class = 1;
    while class < classes.len() {
        classes[class] = classes[class - 1] * 2;
        class += 1;
    }
    classes
};

/// Every block starts at a multiple of this: enough for O_DIRECT on every device known.
const ALIGN_BYTES: usize = 4096;

/// Blocks of so many bytes and more are mappings of their own: what goes of them goes back to the machine, where an allocator would
/// keep it, and have lost some to fitting it in.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Of the limit of a budget that several threads draw from so much at most lies idle.
const IDLE_PART: usize = 4;

/// A block of aligned memory.
pub(crate) struct Block {
    at: NonNull<u8>,
    class: usize,
    /// Where it counts while it is lent.
    lent: OnceLock<Room>,
    /// The next in the list of those that other threads have given back.
    next: AtomicPtr<Block>,
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
        let bytes = BUFFER_CLASSES_BYTES[class];
        let at = if bytes >= MAPPED_BYTES_MIN {
            let (rights, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, of memory that nobody has yet.
            let at = unsafe { libc::mmap(null_mut(), bytes, rights, kind, -1, 0) };
            if at == libc::MAP_FAILED { null_mut() } else { at.cast() }
        } else {
            // SAFETY: the layout's size is not zero.
            unsafe { alloc_zeroed(Block::layout(class)) }
        };
        let next = AtomicPtr::new(null_mut());
        NonNull::new(at).map(|at| Block { at, class, lent: OnceLock::new(), next })
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// How many it has.
    pub(crate) fn bytes(&self) -> usize {
        BUFFER_CLASSES_BYTES[self.class]
    }

    /// From now on it counts there; false, and the room is given back, if it counts elsewhere already.
    pub(crate) fn lend(&self, room: Room) -> bool {
        self.lent.set(room).is_ok()
    }

    /// Where it counted while it was lent.
    pub(crate) fn end_loan(&mut self) -> Option<Room> {
        self.lent.take()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes() >= MAPPED_BYTES_MIN {
            // SAFETY: `allocate` mapped so many bytes there; a block is dropped once, and nobody has them any more.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes()) };
        } else {
            // SAFETY: allocated by `allocate` with the same layout; a block is dropped once.
            unsafe { dealloc(self.at.as_ptr(), Block::layout(self.class)) }
        }
    }
}

/// What is counted of a budget, by all threads.
struct Counts {
    limit_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    /// Threads that keep idle blocks.
    shelves: AtomicUsize,
}

impl Counts {
    /// Bytes that may lie idle on one shelf.
    fn idle_bytes_max(&self) -> usize {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        let left_bytes = limit_bytes.saturating_sub(self.used_bytes.load(Ordering::Relaxed));
        match self.shelves.load(Ordering::Relaxed) {
            0 | 1 => left_bytes,
            shelves => left_bytes.min(limit_bytes / IDLE_PART / shelves),
        }
    }
}

/// How much buffers may take together, of all pools that draw from it, on whatever threads.
pub struct Budget {
    counts: Arc<Counts>,
}

impl Budget {
    /// So many bytes. Memory is allocated when first taken.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Budget {
        let limit_bytes = AtomicUsize::new(limit_bytes);
        let (used_bytes, shelves) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { counts: Arc::new(Counts { limit_bytes, used_bytes, shelves }) }
    }

    /// So many from now on. What is in use beyond it stays so until it is given back.
    pub fn set_limit(&self, limit_bytes: usize) {
        self.counts.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// A pool that draws from it, for this thread.
    #[must_use]
    pub fn pool(&self) -> BufferPool {
        self.counts.shelves.fetch_add(1, Ordering::Relaxed);
        let shelf = Shelf {
            owner: this_thread(),
            idle: UnsafeCell::new(Idle { blocks: Default::default(), bytes: 0 }),
            returned: AtomicPtr::new(null_mut()),
            returned_bytes: AtomicUsize::new(0),
            counts: Arc::clone(&self.counts),
        };
        BufferPool::of(Arc::new(shelf), Rule::Whole)
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Budget({} bytes)", self.counts.limit_bytes.load(Ordering::Relaxed))
    }
}

/// A number that no other thread of this process has or had.
fn this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// Blocks that nobody uses.
struct Idle {
    blocks: [Vec<Arc<Block>>; BUFFER_CLASSES_BYTES.len()],
    bytes: usize,
}

impl Idle {
    fn take(&mut self, class: usize) -> Option<Arc<Block>> {
        let block = self.blocks[class].pop()?;
        self.bytes -= block.bytes();
        Some(block)
    }

    /// Keeps it, if it comes to no more than `bytes_max` so.
    fn keep(&mut self, block: Arc<Block>, bytes_max: usize) {
        if self.bytes + block.bytes() <= bytes_max {
            self.bytes += block.bytes();
            self.blocks[block.class].push(block);
        }
    }

    /// Blocks go, the largest first, until it is no more than that.
    fn shrink(&mut self, bytes_max: usize) {
        for class in (0..BUFFER_CLASSES_BYTES.len()).rev() {
            while self.bytes > bytes_max && self.take(class).is_some() {}
        }
    }
}

/// The idle blocks of a thread; buffers keep it alive.
struct Shelf {
    /// The thread that `idle` is of.
    owner: usize,
    idle: UnsafeCell<Idle>,
    /// What other threads have given back: a list of `Arc`s as raw pointers, by `Block::next`.
    returned: AtomicPtr<Block>,
    returned_bytes: AtomicUsize,
    counts: Arc<Counts>,
}

// SAFETY: all it has may be dropped by any thread.
unsafe impl Send for Shelf {}
// SAFETY: `idle` is touched by the thread `owner` only, for as long as the shelf is shared; the rest is atomic.
unsafe impl Sync for Shelf {}

impl Shelf {
    /// The idle blocks, with what came back from others, and how many bytes of them may stay; `None` for other threads.
    fn with_idle<R>(&self, act: impl FnOnce(&mut Idle, usize) -> R) -> Option<R> {
        if self.owner != this_thread() {
            return None;
        }
        // SAFETY: no other thread touches it, and this one has no second reference: nothing that is called while there
        // is one comes here, blocks that are dropped included.
        let idle = unsafe { &mut *self.idle.get() };
        let bytes_max = self.counts.idle_bytes_max();
        if !self.returned.load(Ordering::Relaxed).is_null() {
            self.take_returned(|block| idle.keep(block, bytes_max));
        }
        Some(act(idle, bytes_max))
    }

    /// Adds to what other threads have given back, as long as that is no more than may lie idle: nobody knows when the owner looks.
    fn put_returned(&self, block: Arc<Block>) {
        let bytes = block.bytes();
        let returned_bytes = self.returned_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if returned_bytes > self.counts.idle_bytes_max() {
            self.returned_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        let block = Arc::into_raw(block).cast_mut();
        let mut first = self.returned.load(Ordering::Relaxed);
        loop {
            // SAFETY: it came from an `Arc` that nobody else has, and stays alive until it is made one again.
            unsafe { &*block }.next.store(first, Ordering::Relaxed);
            // Released: whoever takes the list sees where the next one is, and all that was done with the bytes before.
            let order = (Ordering::Release, Ordering::Relaxed);
            match self.returned.compare_exchange_weak(first, block, order.0, order.1) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }

    /// Takes the whole list.
    fn take_returned(&self, mut each: impl FnMut(Arc<Block>)) {
        let mut next = self.returned.swap(null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: `put_returned` made it of an `Arc`, and the list was taken whole: nobody else has it.
            let block = unsafe { Arc::from_raw(next) };
            next = block.next.load(Ordering::Relaxed);
            self.returned_bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
            each(block);
        }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.take_returned(drop);
        self.counts.shelves.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much of a pool may be taken.
enum Rule {
    /// All of it.
    Whole,
    /// Nothing once more than so many bytes would be in use, by whomever.
    Below(usize),
    /// No more by all that this account is of than is then left for others.
    Share(Account),
    /// Whatever is asked for: it counts elsewhere.
    Uncounted,
}

/// What one of many has taken of a budget, by all its [shares](BufferPool::share_of) together, on whatever threads. Clones
/// name the same account.
#[derive(Clone, Debug, Default)]
pub struct Account {
    taken_bytes: Arc<AtomicUsize>,
}

/// A pool, as one of those who take from it may use it.
struct Part {
    shelf: Arc<Shelf>,
    rule: Rule,
}

impl Part {
    fn counts(&self) -> &Counts {
        &self.shelf.counts
    }

    /// Counts so many bytes more as used; false, and nothing is counted, if they may not be taken.
    fn claim(&self, bytes: usize) -> bool {
        let (used_bytes, taken_bytes) = self.count(bytes);
        let allowed = self.allows(used_bytes, taken_bytes);
        if !allowed {
            self.discount(bytes);
        }
        allowed
    }

    /// Whether so many bytes may be in use, if so many, all of them or what an account has, are this part's. Both
    /// are with those that are to be taken: of two threads that ask for the last at once one gets it, or neither, and not both.
    fn allows(&self, used_bytes: usize, (before_bytes, taken_bytes): (usize, usize)) -> bool {
        let limit_bytes = self.counts().limit_bytes.load(Ordering::Relaxed);
        let left_bytes = limit_bytes.saturating_sub(used_bytes);
        let within = used_bytes <= limit_bytes;
        match self.rule {
            Rule::Whole => within,
            Rule::Below(ceiling_bytes) => within && used_bytes <= ceiling_bytes,
            Rule::Share(_) => within && (before_bytes == 0 || taken_bytes <= left_bytes),
            Rule::Uncounted => true,
        }
    }

    /// Counts so many bytes more as used: what all have then, and what its account had, and has.
    fn count(&self, bytes: usize) -> (usize, (usize, usize)) {
        let used_bytes = &self.counts().used_bytes;
        if matches!(self.rule, Rule::Uncounted) {
            return (used_bytes.load(Ordering::Relaxed), (0, bytes));
        }
        let used_bytes = used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let Rule::Share(account) = &self.rule else { return (used_bytes, (0, bytes)) };
        let before_bytes = account.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        (used_bytes, (before_bytes, before_bytes + bytes))
    }

    /// So many bytes are not in use any more.
    fn discount(&self, bytes: usize) {
        if matches!(self.rule, Rule::Uncounted) {
            return;
        }
        self.counts().used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Rule::Share(account) = &self.rule {
            account.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Where buffers come from. Clones name the same pool.
#[derive(Clone)]
pub struct BufferPool {
    part: Arc<Part>,
}

impl BufferPool {
    /// A pool with a budget of its own.
    #[must_use]
    pub fn new(limit_bytes: usize) -> BufferPool {
        Budget::new(limit_bytes).pool()
    }

    fn of(shelf: Arc<Shelf>, rule: Rule) -> BufferPool {
        BufferPool { part: Arc::new(Part { shelf, rule }) }
    }

    /// The same pool for somebody who leaves something for others: nothing is taken by it that would make more
    /// than `ceiling_bytes` be in use.
    #[must_use]
    pub fn below(&self, ceiling_bytes: usize) -> BufferPool {
        BufferPool::of(Arc::clone(&self.part.shelf), Rule::Below(ceiling_bytes))
    }

    /// The same pool for one of many that need not know of each other: what an account's shares have taken, of pools of
    /// one budget, is never more than what is then left, but for the first that they take. So an account that gives
    /// nothing back leaves half of what it found.
    #[must_use]
    pub fn share_of(&self, account: &Account) -> BufferPool {
        BufferPool::of(Arc::clone(&self.part.shelf), Rule::Share(account.clone()))
    }

    /// The same blocks for what is in a room of this budget, or of another, before it is taken: nothing is counted for it, so it is
    /// always there, and what lies idle of it afterwards is within the same bound as what others of this pool leave.
    #[must_use]
    pub fn uncounted(&self) -> BufferPool {
        BufferPool::of(Arc::clone(&self.part.shelf), Rule::Uncounted)
    }

    /// Bytes that a buffer of `length` bytes takes from its pool; `None` if there is no such buffer.
    #[must_use]
    pub fn cost_bytes(length: usize) -> Option<usize> {
        BufferPool::class_of(length).map(|class| BUFFER_CLASSES_BYTES[class])
    }

    fn class_of(length: usize) -> Option<usize> {
        BUFFER_CLASSES_BYTES.iter().position(|&bytes| 0 < length && length <= bytes)
    }

    /// A buffer whose bytes are counted already; they are not any more if there is no memory for it.
    fn buffer(&self, class: usize, length: usize) -> Option<Buffer> {
        let idle = self.part.shelf.with_idle(|idle, bytes_max| {
            let block = idle.take(class);
            if block.is_none() {
                idle.shrink(bytes_max);
            }
            block
        });
        let Some(block) = idle.flatten().or_else(|| Block::allocate(class).map(Arc::new)) else {
            self.part.discount(BUFFER_CLASSES_BYTES[class]);
            return None;
        };
        Some(Buffer::new(block, length, self.clone()))
    }

    /// A buffer of `length` bytes with arbitrary content; `None` when the pool's limit is met or
    /// `length` is zero or above the largest class.
    #[must_use]
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let class = BufferPool::class_of(length)?;
        if !self.part.claim(BUFFER_CLASSES_BYTES[class]) {
            return None;
        }
        self.buffer(class, length)
    }

    /// The same whatever the limit: for what is bounded elsewhere, and must not wait.
    #[must_use]
    pub fn take_beyond(&self, length: usize) -> Option<Buffer> {
        let class = BufferPool::class_of(length)?;
        self.part.count(BUFFER_CLASSES_BYTES[class]);
        self.buffer(class, length)
    }

    /// Room for buffers of other pools, so many bytes; `None` as for `take`.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Room> {
        if !self.part.claim(bytes) {
            return None;
        }
        self.trim();
        Some(Room { pool: self.clone(), bytes })
    }

    /// The same, filled with zeroes.
    #[must_use]
    pub fn take_zeroed(&self, length: usize) -> Option<Buffer> {
        let mut buffer = self.take(length)?;
        buffer.as_mut()?.fill(0);
        Some(buffer)
    }

    /// Idle blocks of this thread go that are more than the limit leaves room for.
    pub fn trim(&self) {
        self.part.shelf.with_idle(Idle::shrink);
    }

    /// So many bytes of its buffers are not its to count any more.
    pub(crate) fn let_go(&self, bytes: usize) {
        self.part.discount(bytes);
    }

    /// A block that nobody uses any more, and the room that it was lent to.
    pub(crate) fn give_back(&self, block: Arc<Block>, room: Option<Room>) {
        if room.is_none() {
            self.part.discount(block.bytes());
        }
        drop(room);
        let mut block = Some(block);
        let keep = |idle: &mut Idle, bytes_max| {
            if let Some(block) = block.take() {
                idle.keep(block, bytes_max);
            }
        };
        self.part.shelf.with_idle(keep);
        if let Some(block) = block {
            self.part.shelf.put_returned(block);
        }
    }

    /// Bytes of the blocks that buffers hold now, and of room that is reserved; of all pools of its budget.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.part.counts().used_bytes.load(Ordering::Relaxed)
    }

    /// The same and bytes that lie idle on this thread.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let idle_bytes = self.part.shelf.with_idle(|idle, _| idle.bytes);
        self.used_bytes() + idle_bytes.unwrap_or(0)
    }

    /// The most that may be in use, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.part.counts().limit_bytes.load(Ordering::Relaxed)
    }
}

/// Room in a pool, to which buffers of others are charged. It is given back when dropped.
pub struct Room {
    pool: BufferPool,
    bytes: usize,
}

impl Room {
    /// So many bytes more; false, and it stays as it was, as for [`BufferPool::reserve`].
    pub fn grow(&mut self, bytes: usize) -> bool {
        let is_there = self.pool.part.claim(bytes);
        if is_there {
            self.bytes += bytes;
            self.pool.trim();
        }
        is_there
    }

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
        self.pool.part.discount(self.bytes);
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Room({} bytes)", self.bytes)
    }
}

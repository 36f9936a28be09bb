//! What a piece of code allocates at most at one time, and how often, for tests of limits.
//!
//! [`Counted`] is the system's allocator with a few numbers beside it for each thread. A test program
//! that wants them names it its global allocator; the programs that are shipped do not.
//!
//! Always: counting allocates nothing, and what is allocated is what the system's allocator gives.
//!
//! Not here: limits (whoever measures), the pool of data buffers (`buffer`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes allocated less bytes freed since the measurement began. Below zero if what is older was freed.
    static NOW: Cell<isize> = const { Cell::new(0) };
    /// The most that `NOW` was.
    static MOST: Cell<isize> = const { Cell::new(0) };
    /// How often memory was asked for since this thread began.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted;

impl Counted {
    /// What `run` gives, and the most bytes that it held at one time on this thread. 0 where this is not
    /// the program's allocator.
    pub fn measure<T>(run: impl FnOnce() -> T) -> (T, usize) {
        NOW.set(0);
        MOST.set(0);
        let result = run();
        (result, usize::try_from(MOST.get()).unwrap_or(0))
    }

    /// What `run` gives, and how often it asked for memory on this thread, for what it has to grow included.
    /// 0 where this is not the program's allocator.
    pub fn calls<T>(run: impl FnOnce() -> T) -> (T, u64) {
        let before = CALLS.get();
        let result = run();
        (result, CALLS.get() - before)
    }
}

fn count_call() {
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

fn count(change: isize) {
    // A thread that ends frees after its own numbers are gone; nobody reads those.
    let _ = NOW.try_with(|now| {
        let held = now.get().saturating_add(change);
        now.set(held);
        let _ = MOST.try_with(|most| most.set(most.get().max(held)));
    });
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: each method hands its arguments on to the system's allocator unchanged and gives back what that
// gave; counting in between neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_call();
        count(signed(layout.size()));
        // SAFETY: the caller's promise about `layout` is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: `place` came from `alloc` or `realloc` above, so from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_call();
        count(signed(size) - signed(layout.size()));
        // SAFETY: `place` came from `alloc` or `realloc` above, and the caller vouches for `size`.
        unsafe { System.realloc(place, layout, size) }
    }
}

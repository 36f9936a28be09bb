//! How another thread ends a wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};

/// Makes a thread's [`crate::Hands::wait`] return. May be cloned and sent to other threads.
#[derive(Clone, Debug)]
pub struct Waker {
    signal: Descriptor,
    /// Set from the first wake until the waiting thread has seen it: further wakes cost no call.
    pending: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn new(nonblocking: bool) -> Result<Waker, Errno> {
        let flags = libc::EFD_CLOEXEC | if nonblocking { libc::EFD_NONBLOCK } else { 0 };
        // SAFETY: plain call without pointers.
        let number = check(unsafe { libc::eventfd(0, flags) })?;
        Ok(Waker { signal: Descriptor::adopt(number), pending: Arc::new(AtomicBool::new(false)) })
    }

    pub(crate) fn signal(&self) -> &Descriptor {
        &self.signal
    }

    /// Called by the waiting thread once it is awake, before its caller looks at what others left
    /// for it: a wake after this point is a new one.
    pub(crate) fn seen(&self) {
        self.pending.store(false, Ordering::SeqCst);
    }

    /// Makes the current or the next wait return. Many calls before that count as one.
    pub fn wake(&self) {
        if !self.pending.swap(true, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: writes eight bytes from a local array. It cannot fail: the counter is below
            // its limit as each write is read before the next.
            unsafe { libc::write(self.signal.number(), one.as_ptr().cast(), one.len()) };
        }
    }
}

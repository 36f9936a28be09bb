//! Open files and sockets, counted so that a number is never reused under an operation.
//!
//! The kernel names files by small numbers and reuses them. An operation keeps the descriptor it
//! works on open by holding a clone; the number goes back when the last clone is dropped.
//! Each descriptor also has an identity that is never reused, by which an engine notices that a
//! number means a different file than before.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// An open descriptor and its identity.
#[derive(Clone, Debug)]
pub(crate) struct Descriptor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    identity: u64,
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Descriptor {
        let identity = NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed);
        Descriptor(Arc::new(Inner { fd, identity }))
    }

    /// Takes over a number that a system call just returned.
    pub(crate) fn adopt(number: RawFd) -> Descriptor {
        assert!(number >= 0, "an open descriptor is not negative");
        // SAFETY: the caller got the number from a successful call that opened it, so nobody else
        // owns it.
        Descriptor::new(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }

    pub(crate) fn identity(&self) -> u64 {
        self.0.identity
    }

    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Index of its slot in a table by number.
    pub(crate) fn index(&self) -> usize {
        usize::try_from(self.number()).expect("an open descriptor is not negative")
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub(crate) Descriptor);

        impl From<OwnedFd> for $name {
            fn from(fd: OwnedFd) -> $name {
                $name(Descriptor::new(fd))
            }
        }

        impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.0.number()
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.0.identity() == other.0.identity()
            }
        }

        impl Eq for $name {}
    };
}

handle!(
    /// A stream socket, connected or about to be. Clones name the same socket; it closes when the
    /// last clone, those of operations included, is dropped.
    Socket
);
handle!(
    /// A socket that accepts connections.
    Listener
);
handle!(
    /// An open file or block device.
    File
);
handle!(
    /// What another process gave: a file, an event, a socket.
    Handle
);

//! The hands: what one thread can do to sockets, files and devices; all unsafe code is here.
//!
//! A thread owns one [`Hands`]. It queues operations, each under a token of its choosing, and calls
//! [`Hands::wait`], which hands everything queued to the kernel at once and returns what finished.
//! Two engines lie behind that one door: io_uring, and epoll with a few threads for files where
//! io_uring is forbidden. Nothing above can tell them apart but by speed.
//!
//! What always holds:
//! - Every accepted operation ends in exactly one event (an accept in one per connection), also
//!   when it fails at once, when its socket is closed, and when a limit is met.
//! - Memory given to an operation stays allocated, and is not handed out again, until the kernel
//!   is done with it. A descriptor stays open, and its number is not reused, as long.
//! - Only [`Waker`], [`Socket`], [`Listener`], [`File`] may cross threads.
//!
//! Not here: decisions, protocols, retries; what lies under a volume (`store`).

mod allocation;
mod buffer;
mod copy;
mod descriptor;
mod device;
mod epoll;
mod errno;
mod file;
mod hands;
mod host;
mod mapped;
mod netlink;
mod operation;
mod outgoing;
mod pool;
mod psk;
mod replace;
mod settle;
mod shared;
mod socket;
mod streams;
mod ublk;
mod uring;
mod wake;
mod workers;

#[cfg(test)]
mod tests;

/// Memory is counted in this crate's own tests.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Counted = Counted;

pub use allocation::Counted;
pub use buffer::{Buffer, Piece, Trace};
pub use copy::copy_past_caches;
pub use descriptor::{File, Handle, Listener, Socket};
pub use device::DeviceFacts;
pub use errno::Errno;
pub use file::{Access, OpenOptions};
pub use hands::{EngineChoice, Event, Hands, HandsConfig, HandsError, OPERATIONS_MAX, Payload};
pub use host::{
    add_key, become_io_flusher, block_signals, boot_id, boot_name, clock, notify, raise_open_files,
    random_bytes, random_u64, remove_key, wall_clock_ms,
};
pub use mapped::{Mapped, MappedKind};
pub use netlink::Netlink;
pub use outgoing::Outgoing;
pub use pool::{Account, BUFFER_CLASSES_BYTES, Budget, BufferPool, Room};
pub use psk::{PSK_HANDSHAKE_BYTES_MAX, Psk, PskFault, PskKeys, PskSession, PskTls};
pub use replace::{make_directory, replace_file};
pub use shared::{HANDLES_MAX, SharedMemory};
pub use socket::{SocketAddress, listen_tcp, listen_unix, listen_unix_private};
pub use ublk::{
    UBLK_DEPTH, UBLK_IO_BYTES, UblkCommand, UblkDevice, UblkEvent, UblkFeatures, UblkInfo,
    UblkLack, UblkOp, UblkRequest, UblkRing, UblkShape,
};
pub use uring::io_uring_lacks;
pub use wake::Waker;

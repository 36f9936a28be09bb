//! What lies under a volume: a file, a block device or memory, behind one door.
//!
//! A [`Store`] turns offsets and buffers into operations of [`sys::Hands`]; each ends in one event
//! with the caller's token, memory included. It also holds the volume's metadata area, inside the
//! same device or in a file of its own.
//!
//! What always holds:
//! - Nothing outside the data area, or the metadata area, is read or written through either.
//! - A device that holds something else is refused, unless that is accepted in so many words; what is not known here is found by
//!   whoever asks whether a device is blank.
//! - While a store is open nobody else can open it as a store.
//! - Where there is no direct I/O, what is read of a store that was opened is what its disk had then, and not what an earlier
//!   process left in the page cache and could not be written.
//! - Faults happen only where they were asked for.
//!
//! Not here: what metadata means (`replica::disk`), retries, unsafe code (`sys`).

mod cache;
mod disk;
mod error;
mod faults;
mod losses;
mod memory;
mod signature;
mod spec;
mod store;
mod zero;

#[cfg(test)]
mod tests;

pub use error::StoreError;
pub use faults::{FaultKind, FaultSpec, Faults};
pub use losses::FlushMark;
pub use signature::{FIRST_BYTES, LAST_BYTES, OUR_MAGIC, foreign_signature};
pub use spec::{
    MetadataPlace, Place, StoreSpec, create_file, give_back, keep_file, size_of, too_long,
};
pub use store::{METADATA_PAGE_BYTES, Part, Store};
pub use zero::is_zero;

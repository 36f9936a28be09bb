//! What things are: ids, spans, time, requests, checksums, random numbers.
//!
//! Every other crate may use this one; it uses nothing but a checksum library. Nothing here decides
//! anything, allocates on the data path, reads a clock or does I/O.
//!
//! Not here: bytes of any protocol (`wire`, `nbd`), bytes on disk (`replica::disk`).

#![no_std]
extern crate alloc;

mod checksum;
mod id;
mod prng;
mod range;
mod request;
mod reservation;
mod span;
mod time;

#[cfg(test)]
mod tests;

pub use checksum::{Crc32c, crc32c};
pub use id::{
    Ballot, BufferId, ClusterId, Epoch, HostId, Incarnation, NodeId, RequestId, ResourceId,
    SessionId, VolumeId, VoterId,
};
pub use prng::Prng;
pub use range::RangeSet;
pub use request::{AnswerError, Op, Request, Way};
pub use reservation::{ReservationCommand, ReservationKind};
pub use span::{SECTOR_BYTES, Span};
pub use time::{Duration, Instant};

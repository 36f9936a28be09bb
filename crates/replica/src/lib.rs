//! One node's share of a resource: what is decided.
//!
//! Two machines, one door each. `Member`, one per node and resource, owns the configuration register,
//! the lease, the in-sync set and who is primary. `Shard`, one per thread that serves the resource,
//! owns writes, reads, the activity log, the bitmaps and resync of its share of the extents. They
//! share no state: they speak by the messages of `door`, which may be delayed, but not reordered,
//! between one `Member` and one `Shard`.
//!
//! Always: no clock, no I/O, no thread, no randomness but a seed; payload bytes never pass through.
//!
//! Not here: bytes on the wire (`wire`), sockets (`link`), disks (`store`), which requests arrive
//! (`export`).

#![no_std]
extern crate alloc;

pub mod disk;
pub mod door;
mod identity;
pub mod member;
mod memory;
pub mod reservation;
pub mod shard;
pub mod start;

pub use door::{
    DiskAnswer, DiskOp, DiskRequest, FromShard, Geometry, MemberInput, MemberOutput, MetaPage,
    Operation, OperationError, OperationId, Page, ShardInput, ShardOutput, Slot, Timing, ToShard,
};
pub use member::{Member, MemberSetup};
pub use shard::{Shard, ShardSetup};

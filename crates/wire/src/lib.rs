//! What nodes say to each other, as types and as bytes. Pure.
//!
//! `configuration` is the value that the register of a resource holds; `member` is what the members
//! of a resource say to each other about it; `shard` is the data path. `frame` puts any of them on a
//! socket or takes them off it, `hello` opens a connection, `admin` is spoken on a node's admin
//! socket.
//!
//! Always: decoding never panics, never allocates more than the frame's own length, and refuses what
//! it does not understand; encoding what was decoded gives the same bytes.

#![no_std]
extern crate alloc;

mod codec;
pub mod configuration;
pub mod member;
mod register;
pub mod shard;

#[cfg(test)]
mod tests;

pub use codec::DecodeError;
pub use configuration::{
    Configuration, Durability, MEMBERS_MAX, MemberEntry, MemberKind, OnIoError, OnNoQuorum,
    Options, Protocol, Quorum, REPLICAS_MAX, ReadPolicy, VOLUMES_MAX, VolumeEntry,
};
pub use member::{MemberMessage, RefuseReason};
pub use register::{
    CONFIGURATION_BYTES_MAX, check_configuration, decode_configuration, encode_configuration,
};
pub use shard::{DoubtRun, ShardMessage, WriteFlags};

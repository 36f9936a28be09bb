//! What nodes say to each other, as types and as bytes. Pure.
//!
//! `configuration` is the value that the register of a resource holds; `member` is what the members
//! of a resource say to each other about it; `shard` is the data path. `frame` puts any of them on a
//! socket or takes them off it, `hello` opens a connection, `voucher` is what a member signs, `admin` is spoken
//! on a node's admin socket.
//!
//! Always: decoding never panics, never allocates more than the frame's own length, and refuses what
//! it does not understand; encoding what was decoded gives the same bytes.

#![no_std]
extern crate alloc;

pub mod admin;
mod codec;
pub mod configuration;
pub mod frame;
mod header;
pub mod hello;
pub mod member;
mod member_bytes;
mod register;
pub mod reservation;
pub mod shard;
mod shard_bytes;
pub mod voucher;

#[cfg(test)]
mod tests;

pub use base::{ReservationCommand, ReservationKind};
pub use codec::DecodeError;
pub use configuration::{
    AfterSplitBrain, Configuration, Durability, FEATURE_LEVEL, FEATURE_LEVEL_FIRST,
    FEATURE_LEVEL_RESERVATIONS, Held, LINEAGE_MAX, MEMBERS_MAX, MemberEntry, MemberKind, OnIoError,
    OnNoQuorum, Options, Protocol, Quorum, REPLICAS_MAX, RESYNC_RATES, ReadPolicy, SHARDS_MAX,
    Stretch, VOLUMES_MAX, VerifyEntry, VerifyState, VolumeEntry,
};
pub use frame::{
    BODY_BYTES_MAX, Decoder, EARLY_BYTES_MAX, Frame, FrameError, Guard, Message, PAYLOAD_BYTES_MAX,
    Payload, Want, encode_member, encode_node, encode_shard,
};
pub use header::HEADER_BYTES;
pub use hello::{
    Agreed, DESCRIPTION_BYTES_MAX, Disagreement, GoodbyeReason, Hello, NodeMessage, RESOURCES_MAX,
    ResourceLife, STREAMS_MAX, VERSION_MAX, VERSION_MIN, agree,
};
pub use member::{LIVES_MAX, Life, MemberMessage, RefuseReason, Seen};
pub use register::{
    CONFIGURATION_BYTES_MAX, check_configuration, check_options, decode_configuration,
    encode_configuration,
};
pub use reservation::{
    RESERVATIONS_BYTES_MAX, Registrant, Reservation, ReservationRefusal, Taken, TakenBy,
    VolumeReservations,
};
pub use shard::{
    DoubtRun, Memory, Moment, NamedWrite, ShardMessage, WriteFlags, WriteName, WriteOrigin,
};
pub use shard_bytes::{MEMORY_SESSIONS_MAX, MEMORY_WRITES_MAX, RUNS_MAX};
pub use voucher::{
    SIGNATURE_BYTES_MAX, STANDINGS_MAX, STATEMENT_BYTES_MAX, SignedVoucher, Standing,
    VOUCHER_CERTIFICATE_BYTES_MAX, Voucher, decode_voucher, encode_voucher,
};

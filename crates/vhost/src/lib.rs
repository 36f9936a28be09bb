//! vhost-user and virtio-blk, as far as a backend needs them: messages as bytes, the table of a machine's memory, rings,
//! requests for disks, and the record of those that are not answered.
//!
//! [`Message::parse`] takes what a front end (QEMU) sent; [`Regions`] says where an address of the machine lies in what it
//! shares; [`Ring`] takes requests from the machine's memory, which is a [`Memory`] here, and gives them back.
//!
//! Source of fact: "Vhost-user Protocol" in QEMU's documentation, and the virtio specification 1.2.
//!
//! Always:
//! - What the machine or its front end can change is read once, and checked after it was read.
//! - No place outside a region of the table leaves this crate, whatever an address and a length say.
//! - Nothing that a front end sends panics, or makes this hold more than its limits say.
//!
//! Not here: sockets, descriptors and mappings (`sys`), what becomes of a request (`export`).

#![no_std]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::cast_possible_truncation,
        reason = "tests fail by panicking and count in small numbers"
    )
)]
extern crate alloc;

mod block;
mod fault;
mod inflight;
mod message;
mod regions;
mod ring;

#[cfg(test)]
mod tests;

pub use block::{
    BlockOp, BlockRequest, CONFIG_BYTES, Configuration, FLUSH_FEATURE, ID_BYTES, INDIRECT_FEATURE,
    OFFERED_FEATURES, SEGMENTS_MAX, STATUS_FAILED, STATUS_OK, STATUS_UNSUPPORTED, Serial,
    TRANSFER_BYTES_MAX,
};
pub use fault::Fault;
pub use inflight::{Inflight, InflightShape, Seen};
pub use message::{
    CONFIG_CHANGED, HEADER_BYTES, Header, Kicks, MESSAGE_BYTES_MAX, Message, OFFERED_PROTOCOL,
    PROTOCOL_FEATURES_BIT, RingAddresses, reply,
};
pub use regions::{Place, REGIONS_MAX, Region, Regions};
pub use ring::{Chain, Lost, Memory, Part, RING_SIZE_MAX, Ring};

/// Queues of one front end, at most: more than processors of most machines. QEMU asks for one for each processor.
pub const QUEUES_MAX: u16 = 64;

//! The NBD protocol, as a pure state machine.
//!
//! [`Server`] is one client's connection as the server sees it: fed with the bytes that arrive, it
//! appends the bytes to send to the caller's buffer and says what the client asks for. [`Client`]
//! and [`Replies`] are the other end, as small as our own tools need it.
//!
//! Source of fact for every number and rule: `doc/proto.md` of the NetworkBlockDevice/nbd project,
//! called "the protocol" below. What of it is served is in `docs/formats/nbd.md`.
//!
//! Invariants:
//! - Payload bytes of reads and writes never pass through here; the caller moves them between its
//!   socket and its aligned buffers, and the machine only says how many come next.
//! - Nothing a peer sends panics, and nothing it sends makes the machine hold more than
//!   [`OPTION_BYTES_MAX`] bytes and [`REQUESTS_OPEN_MAX`] requests.
//! - Requests and replies of the transmission phase do not allocate, as long as the caller's send
//!   buffer has room.
//!
//! Not here: sockets, TLS itself, timeouts, the exports and their bytes (`export`).

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

mod bytes;
mod client;
mod export;
mod haggle;
mod number;
mod reply;
mod request;
mod serve;
mod server;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientEvent, ClientFed, Goal, Ready, ServerMisbehaved};
pub use export::{ExportInfo, Extent, MOVES, Refusal};
pub use number::{
    EXTENTS_MAX, LIST_BYTES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, OPTION_BYTES_MAX,
    OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_SKIP_BYTES_MAX, PIECE_BYTES_MAX,
    REPLY_DATA_BYTES_MAX, REQUESTS_OPEN_MAX,
};
pub use reply::{Replies, Reply, encode_disconnect, encode_request};
pub use request::{ErrorCode, Op, Request, Slot};
pub use serve::Content;
pub use server::{CloseReason, Event, Fed, Server, Tls, Want};

//! NVMe over TCP, as pure state machines.
//!
//! [`Connection`] is one connection of a host, as the controller sees it: fed with the bytes that arrive, it appends the
//! bytes to send to the caller's buffer and says what the host asks for. [`Controller`] answers administration.
//! [`Host`] is the other end, as small as our own tools need it. [`Examiner`] and [`Prover`] are the two ends of DH-HMAC-CHAP, by
//! which hosts show who they are.
//!
//! Source of fact for every number and rule: the NVM Express Base Specification 1.4, the NVMe/TCP transport and the NVM
//! command set. What of it is served is in `docs/formats/nvme.md`.
//!
//! Invariants:
//! - The data of reads and writes never passes through here, except where it is looked at for a digest.
//! - Nothing a host sends panics, and nothing it sends makes the machine hold more than a few KiB and
//!   [`DEPTH_MAX`] requests.
//!
//! Not here: sockets, the volumes and their bytes (`export`), which host has which secret (`lockstepd`).

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

mod auth;
mod bytes;
mod command;
mod connect;
mod connection;
mod controller;
mod examine;
mod host;
mod identify;
mod log_page;
mod notice;
mod number;
mod open;
mod pdu;
mod request;
mod reserve;
mod serve;
mod subsystem;
mod text;
mod tls_key;

#[cfg(test)]
mod tests;

pub use auth::{
    Credentials, Examiner, Group, Hash, Names, ProofFault, Prover, Reason, Secret, SecretFault,
    Seed, Verdict,
};
pub use command::Status;
pub use connect::{Connect, ConnectField, Refusal};
pub use connection::{CloseReason, Connection, Event, Fed, Want};
pub use controller::Controller;

pub use host::{Host, HostEvent, HostFault};
pub use notice::Notice;
pub use number::{
    DEPTH_MAX, DISCOVERY_NQN, EVENTS_OPEN_MAX, H2C_BYTES_MAX, H2C_BYTES_SENT, INLINE_BYTES_MAX,
    IO_QUEUES_MAX, NAMESPACES_MAX, NQN_BYTES_MAX, TRANSFER_BYTES_MAX,
};
pub use pdu::{Digests, Fatal};
pub use request::{Op, Request, Slot};
pub use reserve::{Report, ReportEntry};
pub use subsystem::{Access, Entry, Namespace, Service, Subsystem};
pub use tls_key::{Derivation, TlsKey, TlsKeyFault, TlsNames, TlsPsk};

//! Frames over authenticated, encrypted sockets between nodes.
//!
//! Everything between two nodes that is neither a decision nor a socket call. The caller moves bytes
//! and passes the time; nothing here reads a clock, opens a socket or waits.
//!
//! `identity` makes certificates, `certificate` reads who they speak for, `trust` says which are
//! believed, and `proof` what one has said before. `session` turns socket bytes into bytes of an authenticated peer and back (`tls` is its
//! inside), `frames` turns those into `wire` frames, `hello` judges the peer's first one. `backoff` and
//! `paths` say when and where to connect next.
//!
//! Always: no byte of a peer makes it panic; before a peer is authenticated it gets little memory and
//! little time.
//!
//! Not here: what frames mean (`replica`, `lockstepd`), their bytes (`wire`), sockets (`sys`).

mod backoff;
mod certificate;
mod error;
mod frames;
mod hello;
mod identity;
mod paths;
mod proof;
mod session;
mod tls;
mod trust;

#[cfg(test)]
mod tests;

pub use backoff::{Backoff, HELD_LONG, WAIT_MAX, WAIT_MIN};
pub use certificate::{CLIENT_NAME_BYTES_MAX, Claims, Peer, read_claims};
pub use error::{LinkError, Refusal};
pub use frames::{Link, LinkEvent, LinkWant};
pub use hello::{HelloError, judge};
pub use identity::{AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, Identity, IdentityError};
pub use paths::{ADDRESSES_MAX, CONNECT_LIMIT, Paths};
pub use proof::Proof;
pub use session::{HANDSHAKE_BYTES_MAX, HANDSHAKE_LIMIT, STRANGERS_MAX, Session, Strangers};
pub use trust::{Config, LinkMode, Revocations};

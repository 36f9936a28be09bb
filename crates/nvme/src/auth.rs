//! Who a host is: DH-HMAC-CHAP, by which each side shows that it knows a secret and does not say it.
//!
//! [`Examiner`] is the controller's side of one queue, [`Prover`] the host's. Randomness is an input of both.
//!
//! Source of fact: the NVM Express Base Specification 2.0, "NVMe in-band authentication" and "DH-HMAC-CHAP Protocol". Numbers are
//! named here by what that calls them.
//!
//! Invariants:
//! - Nothing that is sent, logged or printed contains a secret, or what follows from one but a response.
//! - Responses are compared in a time that does not depend on where they differ.
//! - A challenge is used once.
//!
//! Not here: which host has which secret (`lockstepd`), the commands that carry the messages (`examine`).

mod examiner;
mod group;
mod message;
mod proof;
mod prover;
mod secret;

#[cfg(test)]
mod tests;

pub use examiner::{Credentials, Examiner, Names, Verdict};
pub use group::Group;
pub(crate) use message::AUTH_BYTES_MAX;
pub use message::Reason;
pub(crate) use proof::hmac;
pub use proof::{Hash, Seed};
pub use prover::{ProofFault, Prover};
pub use secret::{Secret, SecretFault};

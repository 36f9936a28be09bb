//! Every parser of bytes from outside.
//!
//! Not here: how inputs are made and judged (the crate's root).

mod disk;
mod files;
mod nbd;
mod nvme;
mod peers;
mod vhost;

use crate::Target;

/// All of them, in the order in which a run of all goes.
pub const TARGETS: &[&Target] = &[
    &peers::FRAMES,
    &peers::FRAMES_EARLY,
    &peers::CONFIGURATION,
    &peers::VOUCHER,
    &peers::CERTIFICATE,
    &peers::LINK,
    &files::ADMIN,
    &files::RESOURCE,
    &files::IDENTITY,
    &nbd::SERVER,
    &nbd::CLIENT,
    &nvme::CONTROLLER,
    &nvme::HOST,
    &nvme::EXAMINER,
    &nvme::PROVER,
    &nvme::TLS_KEY,
    &nvme::TLS_IDENTITY,
    &vhost::MESSAGE,
    &vhost::RING,
    &disk::SUPERBLOCK,
    &disk::RECORD,
    &disk::LOG,
    &disk::BITMAP,
    &disk::SUMS,
    &disk::SIGNATURE,
];

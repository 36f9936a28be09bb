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

/// A target that only a program's own test reaches.
#[derive(Debug)]
pub struct Elsewhere {
    /// Its name, as that of a [`Target`].
    pub name: &'static str,
    /// What is parsed.
    pub what: &'static str,
    /// The package, and its program.
    pub package: &'static str,
    /// The test.
    pub test: &'static str,
}

/// These.
pub const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        name: "node-file",
        what: "a node's own file",
        package: "lockstepd",
        test: "no_node_file_does_harm",
    },
    Elsewhere {
        name: "host-table",
        what: "a table of NVMe hosts",
        package: "lockstepd",
        test: "no_host_table_does_harm_or_has_a_secret_told",
    },
    Elsewhere {
        name: "command-words",
        what: "sizes, times, volumes, nodes and places on the command line",
        package: "lockstep",
        test: "no_command_words_do_harm",
    },
];

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

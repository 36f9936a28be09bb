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

/// Targets that only a program's own tests reach: name, what is parsed, and how to run them.
pub const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "node-file",
        "a node's own file",
        "NODE_FILE_RUNS=1000000 cargo test --package lockstepd node_file",
    ),
    (
        "host-table",
        "a table of NVMe hosts",
        "HOST_TABLE_RUNS=1000000 cargo test --package lockstepd host_table",
    ),
    (
        "command-words",
        "sizes, times, volumes, nodes and places on the command line",
        "COMMAND_WORDS_RUNS=1000000 cargo test --package lockstep command_words",
    ),
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

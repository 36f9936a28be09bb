//! Machines with nodes of their own: on their kernels, and with disks by ublk, which are of their node's host.

use std::fs;

use tools::guest::Series;

use super::{By, Has, VERIFIED, need_guest, told};
use crate::bench::{Bench, Outcome, program};

/// What a machine with nodes of its own needs, in MiB.
const MEMORY_MIB: u32 = 1400;

/// On its kernel's io_uring, or without: that of Linux 5.10 lacks what nodes need.
pub(in crate::labs) fn nodes(bench: &Bench, series: Series) -> Outcome {
    with_nodes(bench, series, include_str!("../../../vm/nodes.sh"), "")
}

/// What `lockstep doctor` says of a kernel: what it has of ublk, and whether its NBD client keeps names.
pub(in crate::labs) fn doctor(bench: &Bench, series: Series, ublk: Has, names: Has) -> Outcome {
    let settings = format!("UBLK={}\nNAMES={}\n", number(ublk), number(names));
    with_nodes(bench, series, include_str!("../../../vm/doctor.sh"), &settings)
}

/// Device mapper below the nodes' copies, and above the disk.
pub(in crate::labs) fn mapper(bench: &Bench, series: Series, by: By) -> Outcome {
    let settings = format!("VIA={}\n", by.word());
    with_nodes(bench, series, include_str!("../../../vm/mapper.sh"), &settings)
}

pub(in crate::labs) fn ublk(bench: &Bench, series: Series, has: Has) -> Outcome {
    let settings = format!("HAS={}\n", number(has));
    with_nodes(bench, series, include_str!("../../../vm/ublk.sh"), &settings)
}

/// A node that forwards is killed while what it forwarded is held up.
pub(in crate::labs) fn late(bench: &Bench, series: Series) -> Outcome {
    with_nodes(bench, series, include_str!("../../../vm/late.sh"), "")
}

/// What a kernel has, for a script.
fn number(has: Has) -> u8 {
    match has {
        Has::None => 0,
        Has::Still => 1,
        Has::All => 2,
    }
}

/// Runs a script in a machine that has the programs, too.
fn with_nodes(bench: &Bench, series: Series, script: &str, settings: &str) -> Outcome {
    let guest = need_guest!(bench, series);
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), script)?;
    fs::write(share.join("settings"), settings)?;
    fs::write(share.join("verified"), VERIFIED)?;
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, share.join(name))?;
    }
    // A queue for each of its nodes' threads.
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    running.end()?;
    told(&guest, &share)
}

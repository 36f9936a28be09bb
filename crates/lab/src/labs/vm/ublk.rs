//! Machines with nodes of their own: on their kernels, and with disks by ublk, which are of their node's host.

use std::fs;

use tools::guest::{Guest, LINUX_5_10, LINUX_6_1, LINUX_6_12, NEWEST, Series};

use crate::bench::{Bench, Outcome, Verdict, passed, program};

/// What a machine with nodes of its own needs, in MiB.
const MEMORY_MIB: u32 = 1400;

/// A kernel that Debian builds without the driver.
pub(in crate::labs) fn ublk_6_1(bench: &Bench) -> Outcome {
    ublk(bench, LINUX_6_1, false)
}

pub(in crate::labs) fn ublk_6_12(bench: &Bench) -> Outcome {
    ublk(bench, LINUX_6_12, true)
}

pub(in crate::labs) fn ublk_newest(bench: &Bench) -> Outcome {
    ublk(bench, NEWEST, true)
}

pub(in crate::labs) fn mapper_6_12(bench: &Bench) -> Outcome {
    mapper(bench, LINUX_6_12)
}

pub(in crate::labs) fn mapper_newest(bench: &Bench) -> Outcome {
    mapper(bench, NEWEST)
}

/// Linux 5.10's io_uring lacks what nodes need.
pub(in crate::labs) fn nodes_5_10(bench: &Bench) -> Outcome {
    nodes(bench, LINUX_5_10)
}

pub(in crate::labs) fn nodes_6_1(bench: &Bench) -> Outcome {
    nodes(bench, LINUX_6_1)
}

pub(in crate::labs) fn nodes_newest(bench: &Bench) -> Outcome {
    nodes(bench, NEWEST)
}

fn nodes(bench: &Bench, series: Series) -> Outcome {
    with_nodes(bench, series, include_str!("../../../vm/nodes.sh"), "")
}

/// Device mapper below the nodes' copies, and above the disk.
fn mapper(bench: &Bench, series: Series) -> Outcome {
    with_nodes(bench, series, include_str!("../../../vm/mapper.sh"), "")
}

fn ublk(bench: &Bench, series: Series, has_driver: bool) -> Outcome {
    let settings = format!("HAS={}\n", u8::from(has_driver));
    with_nodes(bench, series, include_str!("../../../vm/ublk.sh"), &settings)
}

/// Runs a script in a machine that has the programs, too.
fn with_nodes(bench: &Bench, series: Series, script: &str, settings: &str) -> Outcome {
    let guest = match Guest::of(series)? {
        Ok(guest) => guest,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    bench.tell(format!("{} is at hand", guest.kernel));
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), script)?;
    fs::write(share.join("settings"), settings)?;
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, share.join(name))?;
    }
    // A queue for each of its nodes' threads.
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    running.end()?;
    let seen = fs::read_to_string(share.join("seen")).unwrap_or_default();
    passed(format!("{}: {}", guest.kernel, seen.trim().replace('\n', "; ")))
}

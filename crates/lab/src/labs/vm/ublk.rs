//! Disks by ublk in a machine of its own: the nodes run there, too, since a disk is of its node's host.

use std::fs;

use super::{Guest, TOOLS, said};
use crate::bench::{Bench, Outcome, Verdict, ensure, missing, passed, program};

/// What a machine with nodes of its own needs, in MiB.
const MEMORY_MIB: u32 = 1400;

/// A kernel that Debian builds without the driver.
pub(in crate::labs) fn ublk_6_1(bench: &Bench) -> Outcome {
    ublk(bench, "linux-image-amd64", false)
}

pub(in crate::labs) fn ublk_6_12(bench: &Bench) -> Outcome {
    ublk(bench, "linux-image-6.12-amd64", true)
}

fn ublk(bench: &Bench, series: &str, has_driver: bool) -> Outcome {
    let missing = missing(TOOLS);
    if !missing.is_empty() {
        return Ok(Verdict::NotRun(format!("not on this machine: {}", missing.join(", "))));
    }
    let guest = match Guest::of(series)? {
        Ok(guest) => guest,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    bench.tell(format!("{} is at hand", guest.kernel));
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/ublk.sh"))?;
    let has = u8::from(has_driver);
    fs::write(share.join("settings"), format!("HAS={has}\n"))?;
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, share.join(name))?;
    }
    // A queue for each of its nodes' threads.
    let mut running = guest.start_by(&share, MEMORY_MIB, &["-smp", "2"])?;
    ensure!(running.ends_well()?, "the machine found fault:\n{}", said(&share));
    let seen = fs::read_to_string(share.join("seen")).unwrap_or_default();
    passed(format!("{}: {}", guest.kernel, seen.trim().replace('\n', "; ")))
}

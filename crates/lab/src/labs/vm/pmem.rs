//! Metadata in persistent memory: a machine whose kernel has some, as it would have a module of it, with nodes of its own.

use std::fs;

use tools::guest::{Machine, Series};

use super::{By, VERIFIED, need_guest, told};
use crate::bench::{Bench, Outcome, program, text};

/// What the machine needs, the persistent part included, in MiB.
const MEMORY_MIB: u32 = 2048;

/// What its kernel is told: 384 MiB of it keep their content without power. The rest is what `guest.sh` tells every machine.
const KERNEL: &str = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr random.trust_cpu=1 tsc=reliable no_timer_check memmap=384M!1536M";

pub(in crate::labs) fn pmem(bench: &Bench, series: Series, by: By) -> Outcome {
    let guest = need_guest!(bench, series);
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/pmem.sh"))?;
    fs::write(share.join("verified"), VERIFIED)?;
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, share.join(name))?;
    }
    // The machine's memory outlives it.
    let memory = bench.directory.join("memory");
    let object = format!(
        "memory-backend-file,id=all,size={MEMORY_MIB}M,mem-path={},share=on",
        text(&memory)
    );
    let words = ["-append", KERNEL, "-object", &object, "-machine", "pc,memory-backend=all"];
    let start = |phase: &str| -> Outcome<Machine> {
        fs::write(share.join("settings"), format!("PHASE={phase}\nVIA={}\n", by.word()))?;
        guest.start_by(&share, MEMORY_MIB, &words)
    };
    let mut running = start("write")?;
    running.until("written")?;
    running.lose_power(&object)?;
    bench.tell("the machine has lost its power while it wrote");
    let mut running = start("look")?;
    running.end()?;
    told(&guest, &share)
}

//! `lockstep device` in a machine of its own: disks of volumes are made there, used, and taken away.

use std::fs;
use std::path::Path;

use tools::guest::{Guest, LINUX_5_10, LINUX_6_1, LINUX_6_12, NEWEST, Series};

use crate::bench::{Bench, Failure, Outcome, Verdict, ensure, passed, program};
use crate::cluster::Cluster;

/// What the machine is told: where a volume is for it, in one word each for NVMe and NBD.
fn places(cluster: &Cluster) -> Outcome<String> {
    let told = cluster.ok(&["resource", "show", "web"])?;
    let mut of = [("nvme+tcp://", Vec::new()), ("nbd://", Vec::new())];
    for word in told.split_whitespace() {
        for (scheme, places) in &mut of {
            let Some((address, rest)) =
                word.strip_prefix(*scheme).and_then(|rest| rest.split_once('/'))
            else {
                continue;
            };
            let address = address.parse();
            let address = address.map_err(|_| Failure(format!("{word} names no address")))?;
            places.push(format!("{scheme}10.0.2.2:{}/{rest}", super::relay(address)?));
        }
    }
    let [nvme, nbd] = of.map(|(_, places)| places);
    ensure!(nvme.len() == 3 && nbd.len() == 3, "three nodes tell two places each: {told}");
    Ok(format!("NVME={}\nNBD={}\n", nvme.join(","), nbd.join(",")))
}

pub(in crate::labs) fn attach_5_10(bench: &Bench) -> Outcome {
    attach(bench, LINUX_5_10, false)
}

pub(in crate::labs) fn attach_newest(bench: &Bench) -> Outcome {
    attach(bench, NEWEST, true)
}

pub(in crate::labs) fn attach_6_1(bench: &Bench) -> Outcome {
    attach(bench, LINUX_6_1, true)
}

pub(in crate::labs) fn attach_6_12(bench: &Bench) -> Outcome {
    attach(bench, LINUX_6_12, true)
}

/// The program itself makes a disk of a volume in the machine; the nodes run here.
fn attach(bench: &Bench, series: Series, keeps_names: bool) -> Outcome {
    let guest = match Guest::of(series)? {
        Ok(guest) => guest,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    bench.tell(format!("{} is at hand", guest.kernel));
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", "64MiB", "--replicas", "3"])?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/attach.sh"))?;
    let settings = format!("{}NAMES={}\n", places(&cluster)?, u8::from(keeps_names));
    fs::write(share.join("settings"), settings)?;
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, share.join(name))?;
    }
    let mut running = guest.start(&share)?;
    running.until("kill")?;
    cluster.kill("a")?;
    bench.tell("node a, to which the kernel's NBD client is connected, is killed");
    running.until("start")?;
    cluster.start("a")?;
    running.end()?;
    passed(format!("{}: {}", guest.kernel, told(&share)))
}

/// What the machine says that it has seen.
fn told(share: &Path) -> String {
    fs::read_to_string(share.join("seen")).unwrap_or_default().trim().replace('\n', "; ")
}

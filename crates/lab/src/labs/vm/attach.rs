//! `lockstep device` in a machine of its own: disks of volumes are made there, used, and taken away.

use std::fs;

use tools::guest::Series;

use super::{Has, need_guest, told};
use crate::bench::{Bench, Failure, Outcome, ensure, program};
use crate::cluster::Cluster;

/// What the machine is told: where a volume is for it, in one word each for NVMe and NBD.
pub(super) fn places(cluster: &Cluster) -> Outcome<String> {
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

/// The program itself makes a disk of a volume in the machine; the nodes run here. `names`: its kernel's NBD client keeps a name with
/// each disk.
pub(in crate::labs) fn attach(bench: &Bench, series: Series, names: Has) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", "64MiB", "--replicas", "3"])?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/attach.sh"))?;
    let settings = format!("{}NAMES={}\n", places(&cluster)?, u8::from(names == Has::All));
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
    told(&guest, &share)
}

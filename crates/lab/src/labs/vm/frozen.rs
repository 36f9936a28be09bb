//! A node that forwards a host's requests stands still, and goes on after the host has given its path up and asked by another.

use std::fs;
use std::time::Duration;

use client::Volume;
use tools::guest::Series;

use super::{need_guest, paths, tell, told};
use crate::bench::{Bench, Failure, Outcome, ensure, let_run};
use crate::cluster::{Cluster, SYNC_LIMIT};

const SIZE_MIB: u64 = 64;

/// How long the host writes by the other path before the node goes on.
const WRITES_ON: Duration = Duration::from_secs(4);

/// How long an answer may take.
const CLIENT_LIMIT: Duration = Duration::from_secs(20);

/// How often a node is frozen.
const TIMES: u32 = 3;

pub(in crate::labs) fn frozen(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let primary = "a";
    // A primary without clients makes way for a node that has some.
    let mut stays = Volume::open(cluster.node(primary)?.nbd, "web", CLIENT_LIMIT)?;
    stays.read(0, &mut [0; 4096])?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    // It uses the primary's path alone, if it has it.
    let others: Vec<_> = ports.into_iter().filter(|(node, _)| *node != primary).collect();
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/frozen.sh"))?;
    let words = super::words(&others);
    let settings = format!("SUBSYSTEM={subsystem} PORTS=\"{words}\" TIMES={TIMES}\n");
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start(&share)?;
    for time in 1..=TIMES {
        running.until(&format!("uses-{time}"))?;
        let port = fs::read_to_string(share.join(format!("uses-{time}")))?;
        let used = others.iter().find(|(_, of)| of == port.trim());
        let (node, _) = used.ok_or_else(|| Failure(format!("nobody has port {port}")))?;
        ensure!(cluster.primary("web")? == primary, "{primary} is not primary");
        cluster.freeze(node)?;
        bench.tell(format!("node {node}, which forwards, stands still"));
        tell(&share, &format!("frozen-{time}"), "")?;
        running.until(&format!("left-{time}"))?;
        let_run(WRITES_ON);
        ensure!(cluster.primary("web")? == primary, "{primary} is not primary any more");
        cluster.thaw(node)?;
        bench.tell("the host has left it, and it goes on");
        tell(&share, &format!("woken-{time}"), "")?;
    }
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    told(&guest, &share)
}

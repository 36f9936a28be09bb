//! A node that forwards a host's requests stands still, and goes on after the host has given its path up and asked by another.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use client::Volume;
use tools::guest::Series;
use tools::wait_for;

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

/// How long a node stands still until a write of the host has to lie there: far less than the host takes to give a path up.
const WRITES_WITHIN: Duration = Duration::from_secs(2);

/// How long that is tried: the host may just be reading back what it wrote. It waits for a minute to be told.
const WRITES_LIMIT: Duration = Duration::from_secs(50);

/// What a write puts into its command: fio's blocks. Sixteen reads, all that fio has open, are a quarter of it.
const BLOCK_BYTES: u64 = 4096;

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
        freeze_with_a_write(&cluster, node)?;
        bench.tell(format!("node {node}, which forwards, stands still; a write lies there"));
        tell(&share, &format!("frozen-{time}"), "")?;
        running.until(&format!("left-{time}"))?;
        let_run(WRITES_ON);
        ensure!(cluster.primary("web")? == primary, "{primary} is not primary any more");
        // The connection is given up, and what it brought is read all the same.
        let unread = unread_bytes(cluster.node(node)?.nvme)?;
        ensure!(unread >= BLOCK_BYTES, "{unread} bytes lie at {node}: no write that comes late");
        cluster.thaw(node)?;
        bench.tell("the host has left it, and it goes on");
        tell(&share, &format!("woken-{time}"), "")?;
    }
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    told(&guest, &share)
}

/// Stops a node's time while a write lies there that it has not read.
fn freeze_with_a_write(cluster: &Cluster, node: &str) -> Outcome<()> {
    let door = cluster.node(node)?.nvme;
    wait_for(&format!("the host to write to {node}"), WRITES_LIMIT, || {
        cluster.freeze(node)?;
        let lies = wait_for("a write to lie there", WRITES_WITHIN, || {
            let unread = unread_bytes(door)?;
            ensure!(unread >= BLOCK_BYTES, "{unread} bytes do");
            Ok(())
        });
        if lies.is_err() {
            cluster.thaw(node)?;
            let_run(WRITES_WITHIN / 4);
        }
        lies
    })
}

/// The most that one connection to a port brought and nobody has read, as `/proc/net/tcp` says.
fn unread_bytes(door: SocketAddr) -> Outcome<u64> {
    let SocketAddr::V4(door) = door else { return Err(Failure(format!("{door} is no IPv4"))) };
    // The address as the kernel has it in memory.
    let address = u32::from_ne_bytes(door.ip().octets());
    let local = format!("{address:08X}:{:04X}", door.port());
    let table = fs::read_to_string("/proc/net/tcp")?;
    let queue = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let queues = fields.get(4).filter(|_| fields.get(1) == Some(&local.as_str()))?;
        u64::from_str_radix(queues.split_once(':')?.1, 16).ok()
    };
    Ok(table.lines().filter_map(queue).max().unwrap_or(0))
}

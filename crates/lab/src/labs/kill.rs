//! Nodes that are killed under load.

use std::net::SocketAddr;
use std::time::Duration;

use crate::bench::{Bench, Outcome, ensure, passed, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::history::Time;
use crate::load::{ClientPlan, Load, LoadPlan, Record, Subsystem, WINDOWS, addresses};
use client::{ANSWER_LIMIT, Volume};
use wire::admin::{Answer, Command, ResyncDone};

/// Name of the resource.
pub(super) const DISK: &str = "disk";

/// Its size: several extents of the activity log, quick to compare.
pub(super) const SIZE: u64 = 256 << 20;
pub(super) const SIZE_TEXT: &str = "256MiB";

/// Bytes of an extent of the activity log.
const EXTENT: u64 = 4 << 20;

/// Most extents that are hot at once: one for each window of the load.
const HOT_EXTENTS_MAX: u64 = WINDOWS;

/// Bytes of writes that were open when a node died: the longest of each client of a lab, one of which may have eight of them.
const UNANSWERED_BYTES: u64 = 20 * (64 << 10);

/// How long a status may lag behind.
const TOLD_LIMIT: Duration = Duration::from_secs(5);

/// A cluster of three with one resource of three replicas.
pub(super) fn three(bench: &Bench) -> Outcome<Cluster> {
    let cluster = Cluster::up(bench, 3)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    Ok(cluster)
}

/// Clients of these nodes that stay there: `each` of every node.
pub(super) fn staying(cluster: &Cluster, nodes: &[&str], each: usize) -> Outcome<Vec<ClientPlan>> {
    let addresses = addresses(cluster, nodes)?;
    Ok(addresses.iter().flat_map(|&node| vec![ClientPlan::pinned(node); each]).collect())
}

/// Clients that begin at the first of these nodes and go to the others when it fails them.
pub(super) fn roaming(cluster: &Cluster, nodes: &[&str], count: usize) -> Outcome<Vec<ClientPlan>> {
    Ok(vec![ClientPlan::roaming(&addresses(cluster, nodes)?); count])
}

/// These clients with several requests open.
pub(super) fn deep(clients: Vec<ClientPlan>) -> Vec<ClientPlan> {
    clients.into_iter().map(ClientPlan::deep).collect()
}

/// These clients by NVMe/TCP.
pub(super) fn by_nvme(cluster: &Cluster, clients: Vec<ClientPlan>) -> Outcome<Vec<ClientPlan>> {
    let subsystem = Subsystem::of(cluster, DISK)?;
    Ok(clients.into_iter().map(|client| client.by_nvme(&subsystem)).collect())
}

/// A load of these clients.
pub(super) fn load(bench: &Bench, clients: Vec<ClientPlan>) -> Load {
    Load::start(LoadPlan::new(DISK, SIZE, bench.seed, clients))
}

/// Ends the load, waits until all is in sync, judges the history and compares the copies.
pub(super) fn settle(
    bench: &Bench,
    cluster: &Cluster,
    load: Load,
    copies: &[&str],
) -> Outcome<String> {
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    settle_later(bench, cluster, load, copies)
}

/// The same, but nothing needs to be in sync before the load has ended.
pub(super) fn settle_later(
    bench: &Bench,
    cluster: &Cluster,
    load: Load,
    copies: &[&str],
) -> Outcome<String> {
    Ok(settle_record(bench, cluster, load, copies)?.0)
}

/// The same, with what was judged.
pub(super) fn settle_record(
    bench: &Bench,
    cluster: &Cluster,
    load: Load,
    copies: &[&str],
) -> Outcome<(String, Record)> {
    let mut record = load.stop()?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let all: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.nbd).collect();
    record.judge(&all)?;
    flush(cluster)?;
    cluster.compare(DISK, 0, SIZE, copies)?;
    for broken in &record.broken {
        bench.tell(format_args!("a connection to {} broke: {}", broken.node, broken.why));
    }
    ensure!(record.acknowledged > 0, "nothing was acknowledged");
    Ok((record.summary(), record))
}

/// Makes everything acknowledged stable on every copy.
pub(super) fn flush(cluster: &Cluster) -> Outcome<()> {
    let node = cluster.nodes.first().ok_or("a cluster without nodes")?.nbd;
    Ok(Volume::open(node, DISK, ANSWER_LIMIT)?.flush()?)
}

/// How long the load runs between two events.
fn while_running(bench: &Bench) -> Duration {
    bench.time(Duration::from_secs(5), Duration::from_secs(2))
}

/// Nodes other than this.
fn others<'a>(cluster: &'a Cluster, node: &str) -> Vec<&'a str> {
    cluster.nodes.iter().map(|other| other.name.as_str()).filter(|name| *name != node).collect()
}

/// No fault at all.
pub(super) fn clean(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = staying(&cluster, &["a", "b", "c"], 3)?;
    clients.extend(deep(staying(&cluster, &["a", "b", "c"], 1)?));
    clients.extend(by_nvme(&cluster, staying(&cluster, &["a", "b", "c"], 2)?)?);
    let load = load(bench, clients);
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Makes a node primary and starts a load.
fn begin(
    bench: &Bench,
    cluster: &Cluster,
    primary: &str,
    clients: Vec<ClientPlan>,
) -> Outcome<Load> {
    cluster.ok(&["resource", "promote", DISK, "--node", primary])?;
    let load = load(bench, clients);
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    Ok(load)
}

/// The clients are elsewhere: they wait a little and see no error.
pub(super) fn primary_remote(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    // Without clients of its own it would hand over to a node that has some.
    let mut clients = staying(&cluster, &["b", "c"], 3)?;
    clients.extend(deep(staying(&cluster, &["b"], 1)?));
    clients.extend(roaming(&cluster, &["a", "b"], 1)?);
    clients.extend(by_nvme(&cluster, staying(&cluster, &["b", "c"], 1)?)?);
    clients.extend(by_nvme(&cluster, roaming(&cluster, &["a", "c"], 1)?)?);
    let load = begin(bench, &cluster, "a", clients)?;
    let victim = cluster.primary(DISK)?;
    ensure!(victim == "a", "{victim} is primary, though a was promoted and has a client");
    let before = load.now();
    cluster.kill(&victim)?;
    bench.tell(format_args!("{victim}, the primary, is killed"));
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    come_back(bench, &cluster, &load, &victim, before)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Starts a node that was killed after `before`, waits until it is in sync, and holds what was copied to it against what was
/// written meanwhile.
fn come_back(
    bench: &Bench,
    cluster: &Cluster,
    load: &Load,
    node: &str,
    before: Time,
) -> Outcome<()> {
    cluster.start(node)?;
    cluster.wait_state(DISK, node, "in-sync")?;
    let written = load.touched_bytes(before) + UNANSWERED_BYTES;
    // The node that drove the resync tells; it may be any.
    let done = wait_for("the last resync to be told", TOLD_LIMIT, || {
        let done = cluster.replica(DISK, node)?["last_resync"].take();
        ensure!(done.is_object(), "it is {done}");
        Ok(done)
    })?;
    let bytes = |field: &str| done[field].as_u64().ok_or(format!("{field} is missing in {done}"));
    only_what_it_missed(bench, node, (bytes("copied_bytes")?, bytes("equal_bytes")?), written)
}

/// Holds bytes that were copied to a node and compared there against those of the blocks that were written while it was away, open
/// writes included.
fn only_what_it_missed(
    bench: &Bench,
    node: &str,
    (copied, compared): (u64, u64),
    written: u64,
) -> Outcome<()> {
    bench.tell(format_args!(
        "{node} is in sync: {copied} bytes copied, {compared} compared; blocks of at most {written} bytes written meanwhile"
    ));
    ensure!(
        copied <= written,
        "{copied} bytes were copied, but blocks of only {written} written meanwhile"
    );
    let hot = HOT_EXTENTS_MAX * EXTENT;
    ensure!(
        copied + compared <= written + hot,
        "{copied} bytes were copied and {compared} compared, more than {written} and {hot}"
    );
    Ok(())
}

/// A node that goes while others may have brought it up to date before: what is copied when it is back is told by whoever drives that.
pub(super) struct Away {
    /// When it went.
    since: Time,
    /// The last resync of it that each other node drove to its end by then.
    told: Vec<Option<ResyncDone>>,
}

impl Away {
    /// Asked for before it goes.
    pub(super) fn of(cluster: &Cluster, load: &Load, node: &str) -> Outcome<Away> {
        Ok(Away { since: load.now(), told: resyncs(cluster, node)? })
    }

    /// Once it is in sync again: what was copied to it is no more than what was written meanwhile. The others ran all the time.
    pub(super) fn has_come_back(
        self,
        bench: &Bench,
        cluster: &Cluster,
        load: &Load,
        node: &str,
    ) -> Outcome<()> {
        let written = load.touched_bytes(self.since) + UNANSWERED_BYTES;
        let (copied, compared, times) = wait_for("the last resync to be told", TOLD_LIMIT, || {
            let told = resyncs(cluster, node)?;
            let new = told.iter().zip(&self.told).filter(|(now, before)| now != before);
            let new: Vec<ResyncDone> = new.filter_map(|(now, _)| *now).collect();
            ensure!(!new.is_empty(), "it is still {told:?}");
            let sum = |of: fn(&ResyncDone) -> u64| new.iter().map(of).sum();
            let times = u64::try_from(new.len()).unwrap_or(u64::MAX);
            Ok((sum(|done| done.copied_bytes), sum(|done| done.equal_bytes), times))
        })?;
        // What each of them copied was written since the one before.
        only_what_it_missed(bench, node, (copied, compared), written * times)
    }
}

/// The last resync of a node that each other one drove to its end.
fn resyncs(cluster: &Cluster, node: &str) -> Outcome<Vec<Option<ResyncDone>>> {
    let asked = |other: &&str| {
        let resource = Some(DISK.to_owned());
        let Answer::Status(status) = cluster.ask(other, Command::Status { resource })? else {
            return Err("no status".into());
        };
        let rows = status.resources.iter().flat_map(|own| &own.replicas);
        Ok(rows.filter(|row| row.node == node).find_map(|row| row.last_resync))
    };
    others(cluster, node).iter().map(asked).collect()
}

/// The clients are on the node that dies.
pub(super) fn primary_local(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = begin(bench, &cluster, "a", roaming(&cluster, &["a", "b", "c"], 8)?)?;
    let victim = cluster.primary(DISK)?;
    ensure!(victim == "a", "{victim} is primary, though all clients are on a");
    let before = load.now();
    cluster.kill("a")?;
    bench.tell("a, the primary, is killed under its clients");
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    come_back(bench, &cluster, &load, "a", before)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A node that only has a copy.
pub(super) fn replica(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = begin(bench, &cluster, "a", staying(&cluster, &["a", "b"], 4)?)?;
    let primary = cluster.primary(DISK)?;
    ensure!(primary != "c", "c is primary, where no client is");
    let before = load.now();
    cluster.kill("c")?;
    bench.tell("c, which only has a copy, is killed");
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    come_back(bench, &cluster, &load, "c", before)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Two replicas and a witness.
pub(super) fn witness(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "2", "--witnesses", "1"])?;
    let load = begin(bench, &cluster, "a", staying(&cluster, &["a"], 8)?)?;
    cluster.kill("c")?;
    bench.tell("c, the witness, is killed");
    load.progress(100)?;
    load.run_for(while_running(bench))?;
    // With one replica more gone there is no majority: requests wait, and are not answered.
    let before = load.now();
    cluster.kill("b")?;
    bench.tell("b, the other replica, is killed besides: requests wait");
    wait_for("requests to wait", Duration::from_secs(30), || {
        let status = cluster.status(DISK)?;
        ensure!(!status["suspended"].is_null(), "they do not: {status}");
        Ok(())
    })?;
    let counted = load.acknowledged();
    crate::bench::let_run(Duration::from_secs(1));
    ensure!(load.acknowledged() == counted, "writes are acknowledged without a majority");
    cluster.start("c")?;
    load.progress(100)?;
    bench.tell("the witness is back, and writes go on with one replica");
    load.run_for(while_running(bench))?;
    come_back(bench, &cluster, &load, "b", before)?;
    passed(settle(bench, &cluster, load, &["a", "b"])?)
}

/// Everything at once.
pub(super) fn everyone(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = roaming(&cluster, &["a", "b", "c"], 4)?;
    clients.extend(roaming(&cluster, &["b", "c", "a"], 3)?);
    clients.extend(deep(roaming(&cluster, &["c", "a", "b"], 1)?));
    for nodes in [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]] {
        clients.extend(by_nvme(&cluster, roaming(&cluster, &nodes, 1)?)?);
    }
    let load = begin(bench, &cluster, "a", clients)?;
    for round in 1..=4 {
        cluster.kill_all()?;
        bench.tell(format_args!("all nodes are killed (round {round})"));
        cluster.start_all()?;
        // The next time some of them are not in sync yet.
        load.progress(100)?;
    }
    load.run_for(while_running(bench))?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Again and again.
pub(super) fn turns(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = roaming(&cluster, &["a", "b", "c"], 3)?;
    clients.extend(roaming(&cluster, &["b", "c", "a"], 3)?);
    clients.extend(roaming(&cluster, &["c", "a", "b"], 3)?);
    let load = begin(bench, &cluster, "a", clients)?;
    for round in 0..6 {
        let primary = cluster.primary(DISK)?;
        let victim = match round % 3 {
            0 => primary,
            1 => others(&cluster, &primary)[0].to_owned(),
            _ => others(&cluster, &primary)[1].to_owned(),
        };
        cluster.kill(&victim)?;
        bench.tell(format_args!("{victim} is killed"));
        load.progress(50)?;
        cluster.start(&victim)?;
        if round % 2 == 0 {
            // Again, in the middle of its resync.
            cluster.kill(&victim)?;
            bench.tell(format_args!("{victim} is killed as soon as it is back"));
            load.progress(50)?;
            cluster.start(&victim)?;
        }
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        load.progress(50)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Two clients of each node, which leave it while it is being restarted, and one that goes elsewhere when it ends.
pub(super) fn of_restarted(cluster: &Cluster) -> Outcome<Vec<ClientPlan>> {
    let mut clients = staying(cluster, &["a", "b", "c"], 2)?;
    for nodes in [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]] {
        clients.extend(roaming(cluster, &nodes, 1)?);
    }
    Ok(clients)
}

/// In good order: whoever has a node that is not being restarted sees no error.
pub(super) fn rolling(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let clients = of_restarted(&cluster)?;
    let load = begin(bench, &cluster, "a", clients)?;
    for node in ["a", "b", "c"] {
        let door = cluster.node(node)?.nbd;
        load.turn_away(door)?;
        cluster.stop(node)?;
        bench.tell(format_args!("{node} was stopped"));
        load.progress(100)?;
        cluster.start(node)?;
        cluster.wait(DISK, "healthy", SYNC_LIMIT)?;
        load.let_in(door);
        load.progress(100)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

//! Disks that fail on purpose: errors, stalls, and caches that forget when their process is killed, by the
//! fault layer of stores, which a node's settings turn on.

use std::fs;
use std::time::Duration;

use base::Prng;

use super::kill::{DISK, load, roaming, settle, settle_record, staying, three};
use crate::bench::{Bench, Outcome, ensure, passed, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use client::{ANSWER_LIMIT, Volume};

/// Stops a node, and starts it with these faults, or without any.
pub(super) fn restart_with(cluster: &Cluster, node: &str, faults: &str) -> Outcome<()> {
    let path = cluster.settings(node);
    let text = fs::read_to_string(&path)?;
    let plain: String = text
        .split("[faults]")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.starts_with("allow_faults"))
        .map(|line| format!("{line}\n"))
        .collect();
    let text = match faults {
        "" => plain,
        faults => format!("allow_faults = true\n{plain}\n[faults]\n{faults}\n"),
    };
    if cluster.process(node).is_ok() {
        cluster.stop(node)?;
    }
    fs::write(&path, text)?;
    cluster.start(node)
}

/// Of so many operations of a disk, or writes to it, one has a fault that is to come late.
const RARELY: u64 = 3000;

/// How a node's log tells of a request that its disk failed, and of one that it does not answer.
const FAILS: &str = "its disk failed a request";
const HANGS: &str = "has not answered for";

/// How long a disk stands still for one request, and the settings that have it do so now and then.
const STALL: Duration = Duration::from_secs(4);
const STALLS: &str = "stalls_one_in = 400\nstall_ms = 4000";

/// A seed with which the first fault comes neither while the node starts, nor while it is brought in sync and made primary.
/// Each thread has its part of the operations, and draws by a seed of its own, counted on from this.
fn seed_of_a_late_fault(threads: u16) -> u64 {
    let threads = u64::from(threads);
    let (early, late) = (4 * RARELY / threads, 6 * RARELY / threads);
    let comes_late = |seed: u64| {
        let mut random = Prng::new(seed);
        (0..late).find(|_| random.once_in(RARELY)).is_some_and(|first| first > early)
    };
    let all = |seed: u64| (0..threads).all(|thread| comes_late(seed + thread));
    (1..).find(|&seed| all(seed)).expect("one in some hundred")
}

/// Makes a node primary that has a copy in sync, and keeps it that with a client: without one it would make way for a node that has some.
fn lead(cluster: &Cluster, node: &str) -> Outcome<Volume> {
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let stays = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
    cluster.ok(&["resource", "promote", DISK, "--node", node])?;
    let primary = cluster.primary(DISK)?;
    ensure!(primary == node, "{primary} is primary, though {node} was promoted and has a client");
    Ok(stays)
}

/// Waits until the disk of a node has failed, of which its log tells by these words, and not before. The node was primary, or was
/// not, when its copy was last seen in sync.
fn fails(cluster: &Cluster, node: &str, words: &str, as_primary: bool) -> Outcome<()> {
    let mut led = None;
    wait_for(&format!("the disk of {node} to fail"), SYNC_LIMIT, || {
        let status = cluster.status(DISK)?;
        let replicas = status["replicas"].as_array().ok_or("status lists no replicas")?;
        let own = replicas.iter().find(|replica| replica["node"] == node);
        let state = &own.ok_or("it is not listed")?["state"];
        if state == "in-sync" {
            led = Some(status["primary"] == node);
        }
        ensure!(state == "detached", "it is {state}");
        Ok(())
    })?;
    let was = if as_primary { "was not" } else { "was" };
    ensure!(led != Some(!as_primary), "{node} {was} primary when its disk failed");
    ensure!(!as_primary || led.is_some(), "{node} was never seen in sync with that disk");
    let log = cluster.log(node);
    ensure!(log.contains(words), "the log of {node} does not tell of {words:?}");
    Ok(())
}

/// The disk of a replica, then that of the primary.
pub(super) fn errors(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = staying(&cluster, &["b"], 4)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(200)?;
    restart_with(&cluster, "c", "write_errors_one_in = 300")?;
    fails(&cluster, "c", FAILS, false)?;
    bench.tell("the disk of c, which only has a copy, failed, and its copy is out");
    load.progress(500)?;
    restart_with(&cluster, "c", "")?;
    let seed = seed_of_a_late_fault(bench.threads);
    restart_with(&cluster, "a", &format!("seed = {seed}\nwrite_errors_one_in = {RARELY}"))?;
    let stays = lead(&cluster, "a")?;
    fails(&cluster, "a", FAILS, true)?;
    bench.tell("the disk of a, the primary, failed, and its copy is out");
    load.progress(500)?;
    drop(stays);
    restart_with(&cluster, "a", "")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    load.progress(200)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A disk that hangs, now and then for longer than anybody waits: its copy is left behind.
pub(super) fn stalls(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    restart_with(&cluster, "c", STALLS)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let left = || -> usize {
        let said = |node| cluster.log(node).matches("the copy on c is excluded").count();
        ["a", "b"].into_iter().map(said).sum()
    };
    let before = left();
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(2000)?;
    wait_for("c to be left behind", SYNC_LIMIT, || {
        ensure!(left() > before, "it goes along");
        Ok(())
    })?;
    restart_with(&cluster, "c", "")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let times = left() - before;
    let (summary, record) = settle_record(bench, &cluster, load, &["a", "b", "c"])?;
    let longest = record.longest_request.as_millis();
    ensure!(
        record.longest_request < STALL,
        "a request took {longest} ms, as long as the disk stood still"
    );
    passed(format!(
        "c was left behind {times} times, the longest request took {longest} ms; {summary}"
    ))
}

/// The disk of the primary, then that of a replica, hangs without an error for longer than anybody lives.
pub(super) fn hangs(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = staying(&cluster, &["b"], 4)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(200)?;
    let seed = seed_of_a_late_fault(bench.threads);
    let faults = format!("seed = {seed}\nstalls_one_in = {RARELY}\nstall_ms = 3600000");
    for node in ["a", "c"] {
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("disk_late_ms = 2000\n{text}"))?;
        restart_with(&cluster, node, &faults)?;
        let stays = if node == "a" { Some(lead(&cluster, node)?) } else { None };
        fails(&cluster, node, HANGS, stays.is_some())?;
        bench.tell(format_args!("{node}'s disk hangs, and its copy is out"));
        load.progress(500)?;
        drop(stays);
        restart_with(&cluster, node, "")?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Nodes whose disks forget a part of what was not flushed when they are killed, each another one; that of `c` forgets
/// all of it.
fn forgetting(bench: &Bench) -> Outcome<Cluster> {
    let cluster = three(bench)?;
    make_forgetful(bench, &cluster)?;
    Ok(cluster)
}

/// Gives a cluster of three such disks.
pub(super) fn make_forgetful(bench: &Bench, cluster: &Cluster) -> Outcome<()> {
    for (number, node, kept) in [(1, "a", 2), (2, "b", 2), (3, "c", 0)] {
        let seed = (bench.seed >> 2) + number;
        let faults = format!("seed = {seed}\nvolatile_cache = true\nwritten_back_one_in = {kept}");
        restart_with(cluster, node, &faults)?;
    }
    cluster.wait(DISK, "healthy", SYNC_LIMIT)
}

/// One node after the other loses its power.
pub(super) fn power_one(bench: &Bench) -> Outcome {
    let cluster = forgetting(bench)?;
    let mut clients = staying(&cluster, &["a"], 3)?;
    clients.extend(roaming(&cluster, &["b", "c", "a"], 3)?);
    let load = load(bench, clients);
    load.progress(300)?;
    for victim in ["c", "b", "c"] {
        cluster.kill(victim)?;
        bench.tell(format_args!("{victim} lost its power"));
        load.progress(300)?;
        cluster.start(victim)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        load.progress(300)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Everybody at once, under a load: what was flushed or was to be stable is there, the rest is there or not, for good.
pub(super) fn power_all(bench: &Bench) -> Outcome {
    const ROUNDS: u32 = 3;
    let cluster = forgetting(bench)?;
    let mut clients = Vec::new();
    for nodes in [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]] {
        clients.extend(roaming(&cluster, &nodes, 3)?);
    }
    let load = load(bench, clients);
    for round in 1..=ROUNDS {
        load.progress(300)?;
        cluster.kill_all()?;
        load.lose_caches();
        bench.tell(format_args!("all nodes lost their power (round {round})"));
        cluster.start_all()?;
        load.progress(100)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    }
    let (summary, record) = settle_record(bench, &cluster, load, &["a", "b", "c"])?;
    let lost = record.blocks_that_lost();
    ensure!(lost > 0, "nothing at all was lost: no cache was");
    passed(format!("{summary}; of {lost} blocks what was not flushed is gone, as it may"))
}

//! Disks that fail on purpose: errors, stalls, and caches that forget when their process is killed, by the
//! fault layer of stores, which a node's settings turn on.

use std::fs;

use base::Prng;

use super::kill::{DISK, load, roaming, settle, settle_record, staying, three};
use crate::bench::{Bench, Outcome, ensure, passed};
use crate::cluster::{Cluster, SYNC_LIMIT};

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

/// The disk of a replica, then that of the primary.
pub(super) fn errors(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = staying(&cluster, &["b"], 4)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(200)?;
    for node in ["c", "a"] {
        restart_with(&cluster, node, "write_errors_one_in = 300")?;
        cluster.wait_state(DISK, node, "detached")?;
        bench.tell(format_args!("{node}'s disk failed, and its copy is out"));
        load.progress(500)?;
        restart_with(&cluster, node, "")?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        load.progress(200)?;
        cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A disk that hangs, now and then for longer than anybody waits.
pub(super) fn stalls(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    restart_with(&cluster, "c", "stalls_one_in = 400\nstall_ms = 4000")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(2000)?;
    restart_with(&cluster, "c", "")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A seed with which the first stall comes neither while the node starts nor while it is brought in sync.
/// Each thread has its part of the operations, and draws by a seed of its own, counted on from this.
fn seed_of_a_late_stall(threads: u16) -> u64 {
    let early = 6_000 / u32::from(threads);
    let comes_late = |seed: u64| {
        let mut random = Prng::new(seed);
        (0..9_000).find(|_| random.once_in(1000)).is_some_and(|first| first > early)
    };
    let all = |seed: u64| (0..u64::from(threads)).all(|thread| comes_late(seed + thread));
    (1..).find(|&seed| all(seed)).expect("one in some hundred")
}

/// The disk of the primary, then that of a replica, hangs without an error for longer than anybody lives.
pub(super) fn hangs(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let mut clients = staying(&cluster, &["b"], 4)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(200)?;
    for node in ["a", "c"] {
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("disk_late_ms = 2000\n{text}"))?;
        let seed = seed_of_a_late_stall(bench.threads);
        let faults = format!("seed = {seed}\nstalls_one_in = 1000\nstall_ms = 3600000");
        restart_with(&cluster, node, &faults)?;
        if node == "a" {
            cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
            cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
        }
        cluster.wait_state(DISK, node, "detached")?;
        ensure!(
            cluster.log(node).contains("has not answered for"),
            "the log of {node} does not say that its disk hangs"
        );
        bench.tell(format_args!("{node}'s disk hangs, and its copy is out"));
        load.progress(500)?;
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

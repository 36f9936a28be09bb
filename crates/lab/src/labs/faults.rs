//! Disks that fail on purpose: errors, stalls, and caches that forget when their process is killed, by the
//! fault layer of stores, which a node's settings turn on.

use std::fs;

use base::Prng;

use super::kill::{DISK, SIZE, flush, load, roaming, settle, staying, three};
use crate::bench::{Bench, Outcome, ensure, passed};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::{BLOCK_BYTES, fill};
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

/// Everybody at once: what was flushed is there, the rest is there or not, the same on every copy.
pub(super) fn power_all(bench: &Bench) -> Outcome {
    const BLOCKS: u64 = 512;
    let cluster = forgetting(bench)?;
    let place = |number: u64| number * (SIZE / BLOCKS);
    let mut bytes = vec![0; BLOCK_BYTES];
    for round in 0..2 {
        let (old, new) = (round * 2 + 1, round * 2 + 2);
        let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
        for number in 0..BLOCKS {
            fill(&mut bytes, number, old);
            volume.write(place(number), &bytes)?;
        }
        volume.flush()?;
        for number in 0..BLOCKS / 2 {
            fill(&mut bytes, number, new);
            volume.write(place(number), &bytes)?;
        }
        drop(volume);
        cluster.kill_all()?;
        bench.tell("all nodes lost their power");
        cluster.start_all()?;
        let mut first = Volume::open(cluster.node("b")?.nbd, DISK, ANSWER_LIMIT)?;
        let mut again = Volume::open(cluster.node("c")?.nbd, DISK, ANSWER_LIMIT)?;
        let mut lost = 0;
        for number in 0..BLOCKS {
            let (mut found, mut same) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
            first.read(place(number), &mut found)?;
            again.read(place(number), &mut same)?;
            ensure!(found == same, "block {number} differs from node to node");
            fill(&mut bytes, number, old);
            let is_old = found == bytes;
            fill(&mut bytes, number, new);
            let is_new = number < BLOCKS / 2 && found == bytes;
            ensure!(
                is_old || is_new,
                "block {number} holds neither what was flushed nor what came after"
            );
            lost += u32::from(is_old && number < BLOCKS / 2);
        }
        bench.tell(format_args!("{lost} of {} writes that were not flushed are gone", BLOCKS / 2));
        drop((first, again));
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        flush(&cluster)?;
        cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    }
    passed("nothing flushed was lost, and the copies agree on the rest")
}

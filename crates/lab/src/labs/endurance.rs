//! As long as one likes: everything at random, and what the nodes take of the machine.
//!
//! A round makes a resource, uses it while nodes die, stand still, are cut off, hand over and change their parts, and while disks
//! fail and forget (`acts`), judges what clients saw, and deletes it. After each, when all is quiet, memory, files and threads
//! of the nodes that are never restarted are read from the kernel.
//!
//! Always: a round's history is judged before the next begins, so that hours need no more memory here than minutes. Nothing
//! happens by which an acknowledged write may be lost: a disk fails or forgets only while a node that lasts has a copy in
//! sync, and a copy is forced only if it is.

mod acts;

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use base::Prng;

use super::faults::restart_with;
use super::kill::{DISK, SIZE_TEXT, load, roaming, settle, staying};
use super::net::Network;
use crate::bench::{Bench, Outcome, ensure, passed, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::{ClientPlan, addresses};
use acts::{Acts, Words, never_done, unheard};
use client::{ANSWER_LIMIT, Volume};

/// Nodes that live as long as the lab.
const LASTING: [&str; 2] = ["a", "b"];
/// Nodes that die.
const PASSING: [&str; 2] = ["c", "d"];
const COPIES: [&str; 3] = ["a", "b", "c"];
const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// Things that happen in a round.
const ACTS: u64 = 15;

/// Of so many rounds, in one a copy is forced.
const FORCE_ONE_IN: u64 = 5;

/// Of so many others, in one the disks of nodes that die have caches that forget.
const FORGETFUL_ONE_IN: u64 = 3;

/// How long a client of a node that lasts waits for an answer: longer than the node is ever cut off.
const WAITS_FOR: Duration = Duration::from_secs(90);

/// Rounds at least: one to warm up, and two halves to compare.
const ROUNDS_MIN: usize = 5;

/// Memory for payload between nodes and disks (`buffer_bytes`), the least that a node takes: what was used once is kept
/// for the next, so that all of it is soon.
const BUFFER_BYTES: u64 = 16 << 20;

/// Memory by which the second half of the samples may be above the first, and a tenth of what the first has: what an
/// allocator keeps for each thread differs from round to round. A leak goes on.
const SLACK_KIB: u64 = 24 << 10;

/// Clients of each node, and bytes of each one's request, that use up all memory for payload at first.
const LARGE_CLIENTS: usize = 6;
const LARGE_BYTES: u64 = 32 << 20;

/// How long a node may take to close what a round left open.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// How long an operator may have to repeat a word that must be heard.
const WORD_LIMIT: Duration = Duration::from_secs(90);

/// What a node takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Sample {
    memory_kib: u64,
    files: u64,
    threads: u64,
}

/// What a node takes now.
fn sample(cluster: &Cluster, node: &str) -> Outcome<Sample> {
    Ok(Sample {
        memory_kib: cluster.kernel_says(node, "VmRSS")?,
        files: cluster.open_files(node)?,
        threads: cluster.kernel_says(node, "Threads")?,
    })
}

/// Whether samples of one node, the first of which were taken after a warm-up, stay flat; if not, what grew.
fn grown(samples: &[Sample]) -> Option<String> {
    let (first, second) = samples.split_at(samples.len() / 2);
    let most = |of: &[Sample], what: fn(&Sample) -> u64| of.iter().map(what).max().unwrap_or(0);
    let files = (most(first, |one| one.files), most(second, |one| one.files));
    if files.1 > files.0 {
        return Some(format!("open files went from {} to {}", files.0, files.1));
    }
    let threads = (most(first, |one| one.threads), most(second, |one| one.threads));
    if threads.1 > threads.0 {
        return Some(format!("threads went from {} to {}", threads.0, threads.1));
    }
    let memory = (most(first, |one| one.memory_kib), most(second, |one| one.memory_kib));
    let allowed = memory.0 + memory.0 / 10 + SLACK_KIB;
    (memory.1 > allowed).then(|| format!("memory went from {} to {} KiB", memory.0, memory.1))
}

/// A word of an operator that must be heard in the end: what happens beside it may have it refused.
fn insist(cluster: &Cluster, words: &[&str]) -> Outcome<()> {
    wait_for(&words.join(" "), WORD_LIMIT, || cluster.ok(words).map(drop))
}

/// What happened in all rounds.
struct Counts {
    acts: BTreeMap<&'static str, u64>,
    words: Words,
}

/// From the making of a resource to its end; what happened is counted.
fn round(
    bench: &Bench,
    network: &Network<'_>,
    random: &mut Prng,
    counts: &mut Counts,
) -> Outcome<String> {
    let cluster = network.cluster;
    let protocol = if random.once_in(2) { "B" } else { "C" };
    if random.once_in(FORCE_ONE_IN) {
        *counts.acts.entry("force").or_default() += 1;
        return forced(bench, cluster, protocol);
    }
    let forgetful = random.once_in(FORGETFUL_ONE_IN);
    let forgets = make_forgetful(cluster, random, forgetful)?;
    let made =
        ["--size", SIZE_TEXT, "--replicas", "3", "--nodes", "a,b,c,d", "--protocol", protocol];
    cluster.create(DISK, &made)?;
    // Whose node is cut off waits for it.
    let staying = staying(cluster, &LASTING, 2)?.into_iter();
    let mut clients: Vec<ClientPlan> =
        staying.map(|plan| ClientPlan { limit: WAITS_FOR, ..plan }).collect();
    clients.extend(roaming(cluster, &["c", "d", "a"], 2)?);
    clients.extend(roaming(cluster, &["d", "b", "c"], 2)?);
    let load = load(bench, clients);
    load.progress(100)?;
    let words = &mut counts.words;
    let mut acts = Acts { network, load: &load, forgets, witness: false, words };
    for _ in 0..ACTS {
        *counts.acts.entry(acts.act(random)?).or_default() += 1;
        load.progress(20)?;
    }
    if acts.witness {
        *counts.acts.entry(acts.witness_in_or_out()?).or_default() += 1;
    }
    let summary = settle(bench, cluster, load, &COPIES)?;
    insist(cluster, &["resource", "delete", DISK, "--force"])?;
    Ok(summary)
}

/// Nodes that are not lasting get disks with a cache that their death empties, or plain ones. Returns what their
/// settings say of it.
fn make_forgetful(cluster: &Cluster, random: &mut Prng, forgetful: bool) -> Outcome<String> {
    let seed = random.below(1 << 32);
    let (settings, kept) = (format!("seed = {seed}\nvolatile_cache = true\n"), random.below(3));
    let settings = format!("{settings}written_back_one_in = {kept}\n");
    let settings = if forgetful { settings } else { String::new() };
    for node in PASSING {
        restart_with(cluster, node, &settings)?;
    }
    Ok(settings)
}

/// A round in which the last copy that is left goes on alone by an operator's word, twice. It is in sync, so nothing may be lost;
/// clients may get errors.
fn forced(bench: &Bench, cluster: &Cluster, protocol: &str) -> Outcome<String> {
    const FORCED: [&str; 3] = ["a", "c", "d"];
    let made =
        ["--size", SIZE_TEXT, "--replicas", "3", "--nodes", "a,c,d,b", "--protocol", protocol];
    cluster.create(DISK, &made)?;
    // None of b's: as a primary that lives and has no copy it would keep others from being forced.
    let load = load(bench, roaming(cluster, &["a"], 6)?);
    for _ in 0..2 {
        load.progress(100)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        for node in PASSING {
            cluster.kill(node)?;
        }
        let left = cluster.replica(DISK, "a")?;
        // It may have been left out just before: then it lacks something, and is not what is asked for here.
        let whole = left["in_sync"] == true;
        if whole {
            insist(cluster, &["resource", "force", DISK, "--node", "a"])?;
            load.progress(50)?;
        }
        for node in PASSING {
            cluster.start(node)?;
        }
        for node in PASSING.into_iter().filter(|_| whole) {
            insist(cluster, &["resource", "add-replica", DISK, "--node", node])?;
            load.progress(20)?;
        }
    }
    let summary = settle(bench, cluster, load, &FORCED)?;
    insist(cluster, &["resource", "delete", DISK, "--force"])?;
    Ok(format!("forced; {summary}"))
}

/// A cluster whose nodes have little memory for payload, and have used it all once.
fn warm(bench: &Bench) -> Outcome<Cluster> {
    let cluster = Cluster::up(bench, 4)?;
    for node in NODES {
        cluster.stop(node)?;
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("buffer_bytes = {BUFFER_BYTES}\n{text}"))?;
    }
    cluster.start_all()?;
    cluster.create("warm", &["--size", "512MiB", "--replicas", "3", "--nodes", "a,b,c,d"])?;
    let one = |(number, node): (u64, std::net::SocketAddr)| -> Outcome<()> {
        let length = usize::try_from(LARGE_BYTES).map_err(|error| error.to_string())?;
        let (mut bytes, place) = (vec![7; length], number * LARGE_BYTES);
        let mut volume = Volume::open(node, "warm", ANSWER_LIMIT)?;
        volume.write(place, &bytes)?;
        Ok(volume.read(place, &mut bytes)?)
    };
    let places = addresses(&cluster, &LASTING)?.repeat(LARGE_CLIENTS);
    let outcomes: Vec<Outcome<()>> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..).zip(places).map(|client| scope.spawn(move || one(client))).collect();
        let died = |_| Err("a client panicked".into());
        clients.into_iter().map(|client| client.join().unwrap_or_else(died)).collect()
    });
    outcomes.into_iter().collect::<Outcome<()>>()?;
    insist(&cluster, &["resource", "delete", "warm", "--force"])?;
    Ok(cluster)
}

/// Samples of the nodes that last, once none has more files or threads than at first: helpers and the kernel's workers
/// go some seconds after their last work.
fn quiet(cluster: &Cluster, first: Option<&[Sample]>) -> Outcome<Vec<Sample>> {
    let now = || LASTING.iter().map(|node| sample(cluster, node)).collect::<Outcome<Vec<_>>>();
    let waited = wait_for("files to be closed and helpers to go", QUIET_LIMIT, || {
        let samples = now()?;
        let more = first.is_some_and(|first| {
            let above = |now: &Sample, first: &Sample| {
                now.files > first.files || now.threads > first.threads
            };
            samples.iter().zip(first).any(|(now, first)| above(now, first))
        });
        ensure!(!more, "{samples:?}, and first {first:?}");
        Ok(samples)
    });
    // More than at first is judged in the end, with all that is known then.
    waited.or_else(|_| now())
}

/// All of it.
pub(super) fn endurance(bench: &Bench) -> Outcome {
    let cluster = warm(bench)?;
    let network = Network::new(&cluster)?;
    let begun = Instant::now();
    let length = Duration::from_secs_f64(bench.hours.max(0.0) * 3600.0);
    let mut random = Prng::new(bench.seed);
    let mut counts = Counts { acts: BTreeMap::new(), words: unheard() };
    let mut all: Vec<Vec<Sample>> = Vec::new();
    while all.len() < ROUNDS_MIN || begun.elapsed() < length {
        let summary = round(bench, &network, &mut random, &mut counts)?;
        let samples = quiet(&cluster, all.first().map(Vec::as_slice))?;
        bench.tell(format_args!("round {}: {summary}; {samples:?}", all.len() + 1));
        all.push(samples);
    }
    for (at, node) in LASTING.iter().enumerate() {
        let own: Vec<Sample> = all.iter().skip(1).map(|samples| samples[at]).collect();
        if let Some(what) = grown(&own) {
            return Err(format!("node {node}, over {} rounds: {what}: {own:?}", all.len()).into());
        }
    }
    let (rounds, Counts { acts, words }) = (all.len(), counts);
    let never = never_done(&words, rounds);
    ensure!(never.is_empty(), "in {rounds} rounds nobody ever carried out {never:?}: {words:?}");
    let minutes = begun.elapsed().as_secs() / 60;
    passed(format!(
        "{rounds} rounds in {minutes} minutes, {acts:?}, words {words:?}; last {:?}",
        all.last()
    ))
}

#[cfg(test)]
mod tests {
    use super::{Sample, grown};

    fn samples(memory_kib: impl Fn(u64) -> u64, files: impl Fn(u64) -> u64) -> Vec<Sample> {
        (0..20)
            .map(|at| Sample { memory_kib: memory_kib(at), files: files(at), threads: 3 })
            .collect()
    }

    #[test]
    fn what_goes_up_and_down_is_flat_and_what_only_goes_up_is_not() {
        assert_eq!(grown(&samples(|at| 60_000 + at % 3 * 4_000, |at| 30 + at % 2)), None);
        let leak = grown(&samples(|at| 60_000 + at * 4_000, |_| 30));
        assert!(leak.is_some_and(|what| what.contains("memory")));
        let leak = grown(&samples(|_| 60_000, |at| 30 + at / 5));
        assert!(leak.is_some_and(|what| what.contains("open files")));
        let mut threads = samples(|_| 60_000, |_| 30);
        threads[19].threads = 4;
        assert!(grown(&threads).is_some_and(|what| what.contains("threads")));
    }
}

//! Few and many: replicas, nodes, resources, connections; and how fast a copy is made.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use base::Prng;
use nbd::{Op, encode_request};
use wire::admin::{Answer, Command};

use super::kill::{DISK, SIZE, SIZE_TEXT, flush, load, roaming, settle, staying};
use crate::bench::{
    Bench, Failure, Outcome, Verdict, ensure, is_root, need_tools, passed, text, tool, wait_for,
};
use crate::cluster::{Cluster, NodeInfo, SYNC_LIMIT};
use crate::load::{BLOCK_BYTES, ClientPlan, Load, LoadPlan, PROGRESS_LIMIT, fill};
use client::{ANSWER_LIMIT, Volume};

/// One.
pub(super) fn one(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 2)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "1"])?;
    let load = load(bench, roaming(&cluster, &["a", "b"], 6)?);
    load.progress(200)?;
    cluster.kill("a")?;
    cluster.start("a")?;
    load.progress(200)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let mut record = load.stop()?;
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| node.nbd).collect();
    record.judge(&nodes)?;
    passed(record.summary())
}

/// Three copies, clients at a fourth node.
pub(super) fn diskless(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    let load = load(bench, staying(&cluster, &["d"], 8)?);
    load.progress(200)?;
    for victim in ["a", "b", "c"] {
        cluster.kill(victim)?;
        load.progress(100)?;
        cluster.start(victim)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        bench.tell(format_args!("{victim} was killed and is back"));
    }
    load.progress(100)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Eight copies.
pub(super) fn eight(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 8)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "8"])?;
    let load = load(bench, staying(&cluster, &["a", "b", "e"], 2)?);
    load.progress(100)?;
    for victims in [["c", "d"], ["g", "h"]] {
        for victim in victims {
            cluster.kill(victim)?;
        }
        load.progress(50)?;
        for victim in victims {
            cluster.start(victim)?;
        }
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c", "d", "e", "f", "g", "h"])?)
}

/// Many, each with a client of its own, all at the same time. A third of them are at home with the node that is killed.
pub(super) fn resources(bench: &Bench) -> Outcome {
    const COUNT: u64 = 100;
    const BYTES: u64 = 4 << 20;
    const PAUSE: Duration = Duration::from_millis(100);
    let cluster = Cluster::up(bench, 3)?;
    let name = |number: u64| format!("disk-{number}");
    for number in 0..COUNT {
        cluster.create(&name(number), &["--size", "4MiB", "--replicas", "3"])?;
    }
    bench.tell(format_args!("{COUNT} resources made"));
    let start = |number: u64| -> Outcome<Load> {
        let client = match number % 3 {
            0 => staying(&cluster, &["a"], 1)?,
            1 => staying(&cluster, &["b"], 1)?,
            _ => roaming(&cluster, &["c", "a", "b"], 1)?,
        };
        let clients = client.into_iter().map(|plan| ClientPlan { pause: PAUSE, ..plan }).collect();
        let plan = LoadPlan::new(&name(number), BYTES, bench.seed ^ number, clients);
        Ok(Load::start(LoadPlan { windows: 1, ..plan }))
    };
    let loads = (0..COUNT).map(start).collect::<Outcome<Vec<Load>>>()?;
    // All of them go on at the same time: counted from the same instant.
    let all = |more: u64| -> Outcome<()> {
        let from: Vec<u64> = loads.iter().map(Load::acknowledged).collect();
        wait_for("every client to go on", PROGRESS_LIMIT, || {
            let short = |(load, from): (&Load, &u64)| load.acknowledged() < from + more;
            let short = loads.iter().zip(&from).filter(|&both| short(both)).count();
            ensure!(short == 0, "{short} have not");
            Ok(())
        })
    };
    all(10)?;
    cluster.kill("c")?;
    bench.tell("c is killed, where a third of the clients are");
    all(10)?;
    cluster.start("c")?;
    all(10)?;
    for number in 0..COUNT {
        cluster.wait(&name(number), "in-sync", SYNC_LIMIT)?;
    }
    bench.tell("c is back, and all are in sync");
    all(10)?;
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| node.nbd).collect();
    let mut written = 0;
    for (number, load) in (0..).zip(loads) {
        let mut record = load.stop()?;
        record.judge(&nodes).map_err(|wrong| Failure(format!("{}: {wrong}", name(number))))?;
        written += record.acknowledged;
        Volume::open(nodes[0], &name(number), ANSWER_LIMIT)?.flush()?;
        cluster.compare(&name(number), 0, BYTES, &["a", "b", "c"])?;
    }
    passed(format!(
        "{COUNT} resources with a client each, {written} writes acknowledged, one node killed, all equal"
    ))
}

/// Where no load writes: between two windows.
const ASIDE: u64 = 8 << 20;

/// One client that comes and goes: in good order, before it has said what it wants, with half a request, or with a whole
/// one whose answer it does not wait for.
fn come_and_go(node: SocketAddr, random: &mut Prng) -> Outcome<()> {
    const BYTES: u32 = 256 << 10;
    let kind = random.below(6);
    if kind == 0 {
        let mut socket = TcpStream::connect(node)?;
        let flags: &[u8] = if random.once_in(2) { &[0, 0, 0, 3] } else { &[] };
        return Ok(socket.write_all(flags)?);
    }
    let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
    let mut request = Vec::new();
    match kind {
        1 => {}
        2 => volume.read(0, &mut [0; BLOCK_BYTES])?,
        3 => {
            encode_request(1, Op::Read { whole: false }, 0, BYTES, false, &mut request);
            volume.send_raw(&request)?;
        }
        _ => {
            encode_request(1, Op::Write, ASIDE, BYTES, random.once_in(2), &mut request);
            request.resize(request.len() + BYTES as usize, 7);
            let sent = if kind == 4 { request.len() } else { request.len() / 2 };
            volume.send_raw(&request[..sent])?;
        }
    }
    Ok(())
}

/// Clients that come and go at all nodes at once.
fn crowd(cluster: &Cluster, seed: u64) -> Outcome<u64> {
    const CROWD: u64 = 6;
    const TIMES: u64 = 300;
    let one = |number: u64| -> Outcome<()> {
        let mut random = Prng::new(seed ^ number);
        let nodes = cluster.nodes.iter().cycle().skip(usize::try_from(number).unwrap_or(0));
        for (_, node) in (0..TIMES).zip(nodes) {
            come_and_go(node.nbd, &mut random)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let one = &one;
        joined((0..CROWD).map(|number| scope.spawn(move || one(number))).collect())
    })?;
    Ok(CROWD * TIMES)
}

/// Several clients of each node with more in their hands than a node has memory for.
fn use_all_memory(cluster: &Cluster) -> Outcome<()> {
    const BYTES: usize = 8 << 20;
    let one = |node: &NodeInfo| -> Outcome<()> {
        let mut bytes = vec![7; BYTES];
        let mut volume = Volume::open(node.nbd, DISK, ANSWER_LIMIT)?;
        volume.write(ASIDE, &bytes)?;
        Ok(volume.read(ASIDE, &mut bytes)?)
    };
    thread::scope(|scope| {
        let one = &one;
        let clients = cluster.nodes.iter().flat_map(|node| [node; 4]);
        let clients: Vec<_> = clients.map(|node| scope.spawn(move || one(node))).collect();
        joined(clients)
    })
}

/// What all clients came to.
fn joined(clients: Vec<ScopedJoinHandle<'_, Outcome<()>>>) -> Outcome<()> {
    let died = |_| Err("a client panicked".into());
    clients.into_iter().try_for_each(|client| client.join().unwrap_or_else(died))
}

/// What clients take of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Taken {
    clients: u64,
    requests: u64,
    files: u64,
}

/// Of each node.
fn taken(cluster: &Cluster) -> Outcome<Vec<Taken>> {
    let of = |node: &NodeInfo| {
        let resource = Some(DISK.to_owned());
        let Answer::Status(status) = cluster.ask(&node.name, Command::Status { resource })? else {
            return Err("no status".into());
        };
        let own = status.resources.first().ok_or("the resource is not known")?;
        let files = cluster.open_files(&node.name)?;
        Ok(Taken { clients: own.clients, requests: own.requests_in_flight, files })
    };
    cluster.nodes.iter().map(of).collect()
}

/// In and out, many at once, while others go on.
pub(super) fn connects(bench: &Bench) -> Outcome {
    const GONE_LIMIT: Duration = Duration::from_secs(30);
    const SLACK_KIB: u64 = 8 << 10;
    let cluster = with_little_memory(bench)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    let memory = || -> Outcome<Vec<u64>> {
        cluster.nodes.iter().map(|node| cluster.kernel_says(&node.name, "VmRSS")).collect()
    };
    let load = load(bench, staying(&cluster, &["a", "b", "c"], 1)?);
    load.progress(100)?;
    let before = taken(&cluster)?;
    let quiet = || {
        wait_for("what clients had to be given back", GONE_LIMIT, || {
            let now = taken(&cluster)?;
            // The load's own request may be open or not.
            let gone = now.iter().zip(&before).all(|(now, before)| {
                now.clients == 1 && now.requests <= 1 && now.files <= before.files
            });
            ensure!(gone, "{now:?}, and before {before:?}");
            Ok(())
        })
    };
    // What nodes keep from the first time on is no leak: all memory for payload, and what a crowd needs at once.
    use_all_memory(&cluster)?;
    crowd(&cluster, bench.seed)?;
    quiet()?;
    let kept = memory()?;
    let mut count = 0;
    for round in 1..4 {
        count += crowd(&cluster, bench.seed ^ round << 32)?;
        quiet()?;
    }
    load.progress(100)?;
    let now = memory()?;
    bench.tell(format_args!(
        "files and clients are as before, {before:?}; memory was {kept:?} and is {now:?} KiB"
    ));
    let grew = kept.iter().zip(&now).any(|(kept, now)| *now > kept + kept / 10 + SLACK_KIB);
    ensure!(!grew, "memory went from {kept:?} to {now:?} KiB");
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    passed(format!("{count} connects and disconnects; {summary}"))
}

/// Numbers only.
pub(super) fn resync(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "2"])?;
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    let mut bytes = vec![0; 1 << 20];
    for place in 0..SIZE >> 20 {
        for (block, content) in (place << 8..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            fill(content, block, 1);
        }
        volume.write(place << 20, &bytes)?;
    }
    volume.flush()?;
    drop(volume);
    let begun = Instant::now();
    cluster.ok(&["resource", "add-replica", DISK, "--node", "c"])?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let synced = begun.elapsed();
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    let begun = Instant::now();
    let source = fs::File::open(cluster.image("a", DISK, 0))?;
    let target = fs::File::create(bench.directory.join("plain"))?;
    for place in 0..SIZE >> 20 {
        source.read_exact_at(&mut bytes, place << 20)?;
        target.write_all_at(&bytes, place << 20)?;
    }
    target.sync_all()?;
    let copied = begun.elapsed();
    let rate = |time: Duration| u128::from(SIZE >> 20) * 1000 / time.as_millis().max(1);
    passed(format!("resync {} MiB/s, plain copy {} MiB/s", rate(synced), rate(copied)))
}

/// Three nodes with as little memory for payload as nodes take.
fn with_little_memory(bench: &Bench) -> Outcome<Cluster> {
    let cluster = Cluster::up(bench, 3)?;
    for node in ["a", "b", "c"] {
        cluster.stop(node)?;
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("buffer_bytes = {}\n{text}", 16 << 20))?;
    }
    cluster.start_all()?;
    Ok(cluster)
}

/// Many shards of many volumes, each node primary of some, all with large requests through all nodes, and as
/// little memory as a node takes: what frees it must never wait for what needs it.
pub(super) fn forwards(bench: &Bench) -> Outcome {
    const VOLUMES: usize = 6;
    const REQUEST: usize = 16 << 20;
    let nodes = ["a", "b", "c"];
    let cluster = with_little_memory(bench)?;
    let name = |volume: usize| format!("{DISK}{volume}");
    let mut firsts = Vec::new();
    for volume in 0..VOLUMES {
        let size = ["--size", "64MiB", "--replicas", "3", "--shards", "8"];
        cluster.create(&name(volume), &size)?;
        // Whose client is the first becomes primary.
        let node = cluster.node(nodes[volume % nodes.len()])?;
        let mut first = Volume::open(node.nbd, &name(volume), ANSWER_LIMIT)?;
        first.write(0, &[1; BLOCK_BYTES])?;
        firsts.push(first);
    }
    bench.tell("made");
    let one = |volume: usize, place: usize| -> Outcome<()> {
        let node = cluster.node(nodes[place])?;
        let mut volume = Volume::open(node.nbd, &name(volume), Duration::from_secs(120))?;
        let at = place as u64 * REQUEST as u64;
        let mut bytes = vec![0; REQUEST];
        let mut back = vec![0; REQUEST];
        for round in 1..4 {
            for (block, content) in (at / 4096..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
                fill(content, block, round);
            }
            volume.write(at, &bytes)?;
            volume.read(at, &mut back)?;
            ensure!(back == bytes, "what was written at {at} is not what is read");
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..VOLUMES * nodes.len())
            .map(|number| scope.spawn(move || one(number / nodes.len(), number % nodes.len())))
            .collect();
        joined(clients)
    })?;
    drop(firsts);
    for node in nodes {
        let broke = cluster.log(node).contains("nothing was heard");
        ensure!(!broke, "a session of {node} broke: it did not get to reading what its peer said");
    }
    let most = modest(&cluster, VOLUMES as u64)?;
    for volume in 0..VOLUMES {
        let mut volume_open = Volume::open(cluster.nodes[0].nbd, &name(volume), ANSWER_LIMIT)?;
        volume_open.flush()?;
        drop(volume_open);
        cluster.wait(&name(volume), "in-sync", SYNC_LIMIT)?;
        cluster.compare(&name(volume), 0, 48 << 20, &nodes)?;
    }
    passed(format!(
        "{VOLUMES} volumes of 8 shards, 3 clients each with 16 MiB at once; no node used more than {most} MiB"
    ))
}

/// Memory that a node may have used at most, in KiB, and more for each open volume. Less than clients have under way in these labs.
const NODE_KIB_MAX: [u64; 2] = [64 << 10, 16 << 10];

/// The most memory that a node's process has had so far, in KiB.
fn peak_kib(cluster: &Cluster, node: &str) -> Outcome<u64> {
    cluster.kernel_says(node, "VmHWM")
}

/// The most that any node has had, if that is bounded as it must be with so many open volumes.
fn modest(cluster: &Cluster, volumes: u64) -> Outcome<u64> {
    let kib_max = NODE_KIB_MAX[0] + NODE_KIB_MAX[1] * volumes;
    let mut most = 0;
    for node in &cluster.nodes {
        let peak = peak_kib(cluster, &node.name)?;
        ensure!(peak <= kib_max, "node {} has used {} MiB of memory", node.name, peak >> 10);
        most = most.max(peak);
    }
    Ok(most >> 10)
}

/// Puts each node's volumes on a file system with large files; why not, if there is none.
fn mount_for_large_files(cluster: &Cluster, bytes: u64) -> Outcome<Option<String>> {
    for node in ["a", "b", "c"] {
        let place = cluster.home(node).join("volumes");
        fs::create_dir_all(&place)?;
        tool("mount", &["-t", "tmpfs", "-o", "size=256m", "none", text(&place)])?;
        let probe = place.join("probe");
        if let Err(error) = fs::File::create(&probe)?.set_len(bytes) {
            return Ok(Some(format!("no file system here has files of 2 PiB: {error}")));
        }
        fs::remove_file(&probe)?;
    }
    Ok(None)
}

/// As large as volumes can be, on file systems that have such files.
pub(super) fn huge(bench: &Bench) -> Outcome {
    const PIB: u64 = 1 << 50;
    need_tools!("mount");
    if !is_root() {
        return Ok(Verdict::NotRun(
            "needs root, to mount file systems with large files".to_owned(),
        ));
    }
    let cluster = Cluster::up(bench, 3)?;
    if let Some(why) = mount_for_large_files(&cluster, 2 * PIB)? {
        return Ok(Verdict::NotRun(why));
    }
    cluster.create(DISK, &["--size", "1PiB", "--replicas", "3"])?;
    let beyond = cluster.cli(&["resource", "resize", DISK, "--size", "2PiB"])?;
    ensure!(beyond.code == Some(2), "{}", beyond.failure("1 PiB is the largest"));
    bench.tell("made");
    let places = [0, (PIB >> 1) - 4096, PIB >> 1, PIB - (8 << 20), PIB - 4096];
    let content = |place: u64, version: u64| {
        let mut bytes = vec![0; BLOCK_BYTES];
        fill(&mut bytes, place / 4096, version);
        bytes
    };
    let write = |node: &str, version: u64| -> Outcome<()> {
        let mut volume = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        ensure!(volume.ready.size_bytes == PIB, "the size is {}", volume.ready.size_bytes);
        for place in places {
            volume.write(place, &content(place, version))?;
        }
        ensure!(volume.write(PIB, &[1; 4096]).is_err(), "there is a block beyond the end");
        Ok(volume.flush()?)
    };
    let check = |node: &str, version: u64| -> Outcome<()> {
        let mut volume = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        let mut back = vec![0; BLOCK_BYTES];
        for place in places {
            volume.read(place, &mut back)?;
            ensure!(
                back == content(place, version),
                "through {node}, {place} holds something else"
            );
        }
        Ok(())
    };
    write("a", 1)?;
    cluster.kill("b")?;
    write("c", 2)?;
    cluster.start("b")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    bench.tell("b was killed, missed writes, and has them");
    check("b", 2)?;
    write("b", 3)?;
    modest(&cluster, 1)?;
    cluster.kill_all()?;
    cluster.start_all()?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    for node in ["a", "b", "c"] {
        check(node, 3)?;
    }
    for node in ["a", "b", "c"] {
        let file = fs::File::open(cluster.image(node, DISK, 0))?;
        let mut back = vec![0; BLOCK_BYTES];
        for place in places {
            file.read_exact_at(&mut back, place)?;
            ensure!(back == content(place, 3), "{node}'s copy holds something else at {place}");
        }
    }
    let most = modest(&cluster, 1)?;
    cluster.ok(&["resource", "delete", DISK])?;
    passed(format!("three copies of 1 PiB; no node used more than {most} MiB of memory"))
}

/// The largest requests, from more clients than there is memory for.
pub(super) fn requests(bench: &Bench) -> Outcome {
    const REQUEST: u32 = 32 << 20;
    const CLIENTS: u64 = 24;
    let cluster = Cluster::up(bench, 3)?;
    cluster.create(DISK, &["--size", "1GiB", "--replicas", "3"])?;
    let request = u64::from(REQUEST);
    let one = |number: u64, node: SocketAddr| -> Outcome<()> {
        let place = number * request;
        let mut bytes = vec![0; REQUEST as usize];
        for (block, content) in (place / 4096..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            fill(content, block, number + 1);
        }
        let mut back = vec![1; REQUEST as usize];
        let mut volume = Volume::open(node, DISK, Duration::from_secs(120))?;
        for round in 0..2 {
            volume.write(place, &bytes)?;
            volume.read(place, &mut back)?;
            ensure!(back == bytes, "what was written at {place} is not what is read");
            match round {
                0 => volume.zero(place, REQUEST)?,
                _ => volume.discard(place, REQUEST)?,
            }
            volume.read(place, &mut back)?;
            ensure!(back.iter().all(|&byte| byte == 0), "{place} is not zero, round {round}");
        }
        // Across the borders of pieces and extents, so that something is left to be compared.
        volume.write(place + 4096, &bytes[..bytes.len() - 8192])?;
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .zip(cluster.nodes.iter().cycle())
            .map(|(number, node)| scope.spawn(move || one(number, node.nbd)))
            .collect();
        joined(clients)
    })?;
    // One that is longer than allowed is refused, and its connection is of no more use.
    let mut volume = Volume::open(cluster.nodes[0].nbd, DISK, ANSWER_LIMIT)?;
    ensure!(volume.read(0, &mut vec![0; 33 << 20]).is_err(), "33 MiB are read at once");
    drop(volume);
    let most = modest(&cluster, 1)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    flush(&cluster)?;
    cluster.compare(DISK, 0, CLIENTS * request, &["a", "b", "c"])?;
    passed(format!(
        "{CLIENTS} clients wrote, read, zeroed and discarded 32 MiB at once; no node used more than {most} MiB"
    ))
}

/// Memory of a node by which bits of one absent replica may have grown: 4 KiB for each 124 MiB of which some blocks are
/// dirty and some are not, a quarter as much again for what keeps them, and what requests take meanwhile.
const fn bits_kib(pages: u64) -> u64 {
    pages * 5 + (16 << 10)
}

/// Writes as far apart as can be, while a replica is away: in each stretch of a large volume that has a page of bits.
pub(super) fn scattered(bench: &Bench) -> Outcome {
    const SIZE: u64 = 1 << 40;
    const STRIDE: u64 = 124 << 20;
    const PLACES: u64 = SIZE / STRIDE;
    let cluster = Cluster::up(bench, 3)?;
    cluster.create(DISK, &["--size", "1TiB", "--replicas", "3"])?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    let place = |number: u64| number * STRIDE + (number * 37 % 31_000) * 4096;
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut write = |volume: &mut Volume, number: u64, version: u64| -> Outcome<()> {
        fill(&mut bytes, place(number) / 4096, version);
        Ok(volume.write(place(number), &bytes)?)
    };
    write(&mut volume, 0, 1)?;
    let before = peak_kib(&cluster, "a")?;
    cluster.kill("c")?;
    for number in 0..PLACES {
        write(&mut volume, number, 2)?;
    }
    volume.flush()?;
    let peak = peak_kib(&cluster, "a")?;
    let bound = before + bits_kib(PLACES);
    ensure!(
        peak <= bound,
        "a, the primary, took {peak} KiB with {PLACES} pages of bits, not {bound}"
    );
    bench.tell(format_args!("{PLACES} pages of bits: from {before} to {peak} KiB"));
    // A node that finds them on its disk takes no more.
    cluster.kill_all()?;
    drop(volume);
    cluster.start_all()?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    for node in ["a", "b"] {
        let peak = peak_kib(&cluster, node)?;
        ensure!(peak <= bound, "{node} took {peak} KiB from its start on, not {bound}");
        bench.tell(format_args!("{node}, from its start on: {peak} KiB"));
    }
    let image = fs::File::open(cluster.image("c", DISK, 0))?;
    let (mut back, mut expected) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    for number in 0..PLACES {
        image.read_exact_at(&mut back, place(number))?;
        fill(&mut expected, place(number) / 4096, 2);
        ensure!(back == expected, "c lacks what was written at {}", place(number));
    }
    passed(format!(
        "{PLACES} blocks, one for each page of bits: {} KiB more at most",
        peak - before
    ))
}

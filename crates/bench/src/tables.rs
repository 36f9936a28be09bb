//! The tables, each headed by the publication that it answers: what is measured in which.
//!
//! Always: everything of one table runs at the same time on the machine and is measured by turns, one
//! repeat after the other, so that what changes on the machine changes for all.
//!
//! Not here: pauses and resync (`failover`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use wire::SHARDS_MAX;

use crate::attached::{self, Attached};
use crate::ceph::{self, Ceph};
use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{Target, Workload, fill};
use crate::loopback;
use crate::outcome::{Outcome, not_run, say};
use crate::run::{Pace, Run, Subject, Turns, order};
use crate::sample::Repeats;
use crate::server::Server;

const READ: &str = "randread";
const WRITE: &str = "randwrite";

/// The rows of the record.
const RECORD: [Workload; 7] = [
    workload("4K random read, depth 64", READ, 4, 64),
    workload("4K random write, depth 64", WRITE, 4, 64),
    Workload {
        name: "4K random 70/30, depth 64",
        pattern: "randrw",
        block_kib: 4,
        depth: 64,
        reads: 70,
    },
    workload("128K sequential read, depth 16", "read", 128, 16),
    workload("128K sequential write, depth 16", "write", 128, 16),
    workload("4K random read, depth 1", READ, 4, 1),
    workload("4K random write, depth 1", WRITE, 4, 1),
];

/// The columns of the depth table.
pub(crate) const DEPTHS: [Workload; 7] = [
    workload("depth 1", WRITE, 4, 1),
    workload("depth 2", WRITE, 4, 2),
    workload("depth 4", WRITE, 4, 4),
    workload("depth 8", WRITE, 4, 8),
    workload("depth 16", WRITE, 4, 16),
    workload("depth 32", WRITE, 4, 32),
    workload("depth 64", WRITE, 4, 64),
];

/// The rows of the protocols' table.
const PROTOCOLS: [Workload; 8] = [
    workload("4K random write, depth 1", WRITE, 4, 1),
    workload("4K random write, depth 4", WRITE, 4, 4),
    workload("4K random write, depth 16", WRITE, 4, 16),
    workload("4K random write, depth 64", WRITE, 4, 64),
    workload("4K random read, depth 1", READ, 4, 1),
    workload("4K random read, depth 4", READ, 4, 4),
    workload("4K random read, depth 16", READ, 4, 16),
    workload("4K random read, depth 64", READ, 4, 64),
];

/// The rows of the threads table.
const EIGHT_JOBS: [Workload; 3] = [
    workload("4K random write, depth 1", WRITE, 4, 1),
    workload("4K random write, depth 8", WRITE, 4, 8),
    workload("4K random write, depth 64", WRITE, 4, 64),
];

/// Threads of a node, and shards of its volume.
const THREADS: [u16; 5] = [1, 2, 4, 8, 16];

const fn workload(
    name: &'static str,
    pattern: &'static str,
    block_kib: u32,
    depth: u32,
) -> Workload {
    let reads = if matches!(pattern.as_bytes(), b"randread" | b"read") { 100 } else { 0 };
    Workload { name, pattern, block_kib, depth, reads }
}

/// One row: a workload on a subject.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) subject: String,
    /// Instances of fio at once.
    pub(crate) threads: u32,
    pub(crate) repeats: Repeats,
    /// Median of server time less what the same requests cost fio on the disk itself, in ms per 1000.
    pub(crate) own_ms: Option<f64>,
    pub(crate) system_calls: Option<f64>,
}

/// One table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    /// Whose figures it answers, and what they were.
    pub(crate) seed: &'static str,
    /// The subject to which others are put in relation.
    pub(crate) reference: &'static str,
    /// What else is to be known of it, in sentences: what was left out, and why.
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

const RECORD_SEED: &str = "LINBIT's record (12 servers, 3 replicas): per server with a local replica 1.84 M \
    IOPS read, 417 k written, 883 k 70/30, 9.25 GB/s read, 1.93 GB/s written; 82 µs read, 84 µs write";

/// The subject whose nodes speak inside TLS.
pub(crate) const ENCIPHERED: &str = "3 replicas, links enciphered";

/// Table 1, replicas in memory: the software's own speed.
pub(crate) fn record_memory(run: &Run) -> Outcome<Table> {
    let size_mib = run.pace.memory_mib();
    let (_nodes, mut subjects) = of_nodes(run, "memory", size_mib)?;
    let _server = nbdkit_memory(run, size_mib, &mut subjects)?;
    let mut table = Table {
        key: "record-memory",
        title: "Table 1, in memory",
        seed: RECORD_SEED,
        reference: "nbdkit memory",
        notes: Vec::new(),
        rows: Vec::new(),
    };
    measure(run, &subjects, &RECORD, |workload| instances(run.pace, workload), &mut table)?;
    let writes = |workload: &Workload| workload.reads == 0 && workload.depth > 1;
    let writes: Vec<Workload> = RECORD.into_iter().filter(writes).collect();
    loopback::measure(run, &writes, &mut table)?;
    Ok(table)
}

/// Table 1, replicas in files on one disk that all of them share.
pub(crate) fn record_file(run: &Run) -> Outcome<Table> {
    let size_mib = run.pace.file_mib();
    let (_nodes, mut subjects) = of_nodes(run, "file", size_mib)?;
    let file = |name: &str| run.scratch.join(name);
    let mut servers = Vec::new();
    for (tool, part) in file_servers(run) {
        let backing = file(&format!("{tool}.img"));
        fill(&Target::File(backing.clone()), size_mib)?;
        let server = match tool {
            "nbdkit" => Server::nbdkit_file(&run.scratch, &backing)?,
            _ => Server::qemu(&run.scratch, &backing)?,
        };
        subjects.push(of_server(part, &server, size_mib));
        servers.push(server);
    }
    let _ceph = ceph(run, size_mib, &mut subjects)?;
    subjects.push(raw(file("raw.img"), size_mib));
    let mut table = Table {
        key: "record-file",
        title: "Table 1, on the disk",
        seed: RECORD_SEED,
        reference: "raw",
        notes: Vec::new(),
        rows: Vec::new(),
    };
    measure(run, &subjects, &RECORD, |workload| instances(run.pace, workload), &mut table)?;
    Ok(table)
}

/// Servers of one copy on the disk that are here, and how tables call them; of the others it is said that they are left out.
pub(crate) fn file_servers(run: &Run) -> Vec<(&'static str, &'static str)> {
    let all = [("nbdkit", "nbdkit file"), ("qemu-nbd", "qemu-nbd")];
    let wanted = all.into_iter().filter(|(tool, _)| !run.pace.brief || *tool == "nbdkit");
    wanted.filter(|(tool, part)| run.has(tool, part)).collect()
}

/// Table 3: how one volume on two nodes goes with the depth.
pub(crate) fn depth(run: &Run) -> Outcome<Table> {
    let size_mib = run.pace.memory_mib();
    let (mut clusters, mut subjects) = (Vec::new(), Vec::new());
    for programs in &run.programs {
        let wanted = Wanted { nodes: 2, store: "memory", encryption: false, threads: 1 };
        let name = "2 replicas";
        clusters.push(one(run, programs, wanted, 2, (name, size_mib), &mut subjects)?);
    }
    let _server = nbdkit_memory(run, size_mib, &mut subjects)?;
    let mut table = Table {
        key: "depth",
        title: "Table 3, 4K random write by depth",
        seed: "DRBD 10: one volume on two nodes, 8 jobs, depth 1 to 64; up to 68 % by finer locks",
        reference: "nbdkit memory",
        notes: Vec::new(),
        rows: Vec::new(),
    };
    let jobs = if run.pace.every_row() { vec![1, 8] } else { vec![1] };
    let workloads = run.pace.of_depths(&DEPTHS, &[1, 4, 16, 64]);
    measure(run, &subjects, &workloads, |_| jobs.clone(), &mut table)?;
    Ok(table)
}

/// Table 3, shards: one volume on two nodes, dealt to 1, 2, 4, … threads, as far as the machine has cores.
pub(crate) fn threads(run: &Run) -> Outcome<Table> {
    let (counts, left_out) = shard_counts();
    let size_mib = run.pace.sharded_mib(counts.iter().copied().max().unwrap_or(1));
    let (mut clusters, mut subjects) = (Vec::new(), Vec::new());
    for programs in &run.programs {
        for &threads in &counts {
            let wanted = Wanted { nodes: 2, store: "memory", encryption: false, threads };
            let name = threads_name(threads);
            clusters.push(one(run, programs, wanted, 2, (&name, size_mib), &mut subjects)?);
        }
    }
    let mut table = Table {
        key: "threads",
        title: "Table 3, one volume on several threads",
        seed: "DRBD 10: one volume on two nodes, 8 jobs, depth 1 to 64",
        reference: THREADS_REFERENCE,
        notes: Vec::new(),
        rows: Vec::new(),
    };
    table.notes.extend(left_out.iter().map(|what| format!("Left out: {what}.")));
    let workloads = run.pace.of_depths(&EIGHT_JOBS, &[8]);
    measure(run, &subjects, &workloads, |_| vec![8], &mut table)?;
    Ok(table)
}

/// With how many threads nodes run here; and what is left out, which it says, and why.
pub(crate) fn shard_counts() -> (Vec<u16>, Vec<String>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (counts, left_out) = counts(cores);
    let left_out = left_out.into_iter().map(|(count, why)| format!("{count} shards: {why}"));
    let left_out: Vec<String> = left_out.collect();
    for what in &left_out {
        not_run(what);
    }
    (counts, left_out)
}

/// With how many threads nodes run on a machine of so many cores; and with how many they do not, and why.
fn counts(cores: usize) -> (Vec<u16>, Vec<(u16, String)>) {
    let (mut counts, mut left_out) = (Vec::new(), Vec::new());
    for count in THREADS {
        if count > SHARDS_MAX {
            left_out.push((count, format!("a resource has {SHARDS_MAX} at most")));
        } else if usize::from(count) > cores {
            let why = format!("this machine has {cores} cores, for both nodes and their clients");
            left_out.push((count, why));
        } else {
            counts.push(count);
        }
    }
    (counts, left_out)
}

/// By which protocol a client comes: one volume of three replicas, one client, which speaks both.
pub(crate) fn protocols(run: &Run) -> Outcome<Table> {
    let run = &run.in_turns(Turns::Short);
    let size_mib = run.pace.memory_mib();
    let (mut clusters, mut subjects) = (Vec::new(), Vec::new());
    for programs in &run.programs {
        let wanted = Wanted { nodes: 3, store: "memory", encryption: false, threads: 1 };
        let mut filled = Vec::new();
        let cluster = one(run, programs, wanted, 3, ("filled", size_mib), &mut filled)?;
        let urls = cluster.addresses("c", "v")?;
        for (name, url) in [NBD_TCP, NVME_TCP].into_iter().zip(urls) {
            let name = format!("{name}{}", run.suffix(programs));
            // The same client for both revisions.
            let target = Target::Load { program: run.programs[0].directory.join("load"), url };
            let (pids, cached) = (cluster.pids()?, None);
            subjects.push(Subject { name, target, pids, size_mib, copies: 3, cached });
        }
        clusters.push(cluster);
    }
    let mut table = Table {
        key: "protocols",
        title: "NVMe beside NBD, both over TCP",
        seed: "no publication: asked is that NVMe is no slower than NBD at any depth",
        reference: NBD_TCP,
        notes: Vec::new(),
        rows: Vec::new(),
    };
    let workloads = run.pace.of_depths(&PROTOCOLS, &[1, 64]);
    measure(run, &subjects, &workloads, |_| vec![1], &mut table)?;
    Ok(table)
}

/// The two protocols' subjects.
pub(crate) const NBD_TCP: &str = "NBD over TCP";
pub(crate) const NVME_TCP: &str = "NVMe over TCP";

/// Names of the record's rows.
pub(crate) fn record_rows() -> impl Iterator<Item = &'static str> {
    RECORD.iter().map(|workload| workload.name)
}

/// Names of the protocols' rows.
pub(crate) fn protocol_rows() -> impl Iterator<Item = &'static str> {
    PROTOCOLS.iter().map(|workload| workload.name)
}

/// The subject with one thread.
const THREADS_REFERENCE: &str = "threads = 1, shards = 1";

/// How a volume of as many shards as its nodes have threads is called.
pub(crate) fn threads_name(threads: u16) -> String {
    format!("threads = {threads}, shards = {threads}")
}

/// How many clients at once: of what is not many small requests one and the most that there are.
fn instances(pace: Pace, workload: &Workload) -> Vec<u32> {
    match pace {
        Pace { full: true, .. } if workload.depth == 64 => vec![1, 2, 4, 8],
        // Those in between are made no other way.
        Pace { full: true, .. } | Pace { sanity: true, .. } => vec![1, 8],
        Pace { .. } => vec![1],
    }
}

/// What serves the record's subjects that are our own; it goes in this order, disks before the clusters that they are of.
struct Nodes {
    disks: Vec<Attached>,
    clusters: Vec<Cluster>,
}

/// The record's subjects that are our own, and what serves them: replicas with clients by NBD, and the three also as disks of this host (in brief
/// runs in memory only); in long runs with enciphered links, too.
fn of_nodes(run: &Run, store: &'static str, size_mib: u64) -> Outcome<(Nodes, Vec<Subject>)> {
    let mut nodes = Nodes { disks: Vec::new(), clusters: Vec::new() };
    let mut subjects = Vec::new();
    for programs in &run.programs {
        let made = replicated(run, programs, store, size_mib, &mut subjects)?;
        let three = (programs, &made[0]);
        let disks = match run.pace.brief && store == "file" {
            true => Ok(Vec::new()),
            false => attached::attach(run, three, &NAMES[..3], size_mib, &mut subjects),
        };
        nodes.clusters.extend(made);
        nodes.disks.extend(disks?);
        if run.pace.every_row() {
            let wanted = Wanted { nodes: 3, store, encryption: true, threads: 1 };
            let cluster = one(run, programs, wanted, 3, (ENCIPHERED, size_mib), &mut subjects)?;
            nodes.clusters.push(cluster);
        }
    }
    Ok((nodes, subjects))
}

/// Three replicas with a client beside one of them, with a client on a fourth node (in brief runs in memory only), and one replica alone.
fn replicated(
    run: &Run,
    programs: &Programs,
    store: &'static str,
    size_mib: u64,
    subjects: &mut Vec<Subject>,
) -> Outcome<Vec<Cluster>> {
    let wanted = |nodes| Wanted { nodes, store, encryption: false, threads: 1 };
    let mut clusters = vec![one(run, programs, wanted(3), 3, ("3 replicas", size_mib), subjects)?];
    if !run.pace.brief || store == "memory" {
        let without = "3 replicas, client without one";
        clusters.push(one(run, programs, wanted(4), 3, (without, size_mib), subjects)?);
    }
    clusters.push(one(run, programs, wanted(1), 1, ("1 replica", size_mib), subjects)?);
    Ok(clusters)
}

/// Of a development cluster's nodes.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A cluster with one volume, which its last node serves; filled.
fn one(
    run: &Run,
    programs: &Programs,
    wanted: Wanted,
    replicas: usize,
    (name, size_mib): (&str, u64),
    subjects: &mut Vec<Subject>,
) -> Outcome<Cluster> {
    let directory = run.scratch.join(format!("c{}", subjects.len()));
    let cluster = Cluster::up(programs, &directory, wanted)?;
    cluster.create_sharded("v", size_mib, &NAMES[..replicas], wanted.threads)?;
    let target = Target::Nbd(cluster.url(NAMES[usize::from(wanted.nodes) - 1], "v"));
    fill(&target, size_mib)?;
    subjects.push(Subject {
        name: format!("{name}{}", run.suffix(programs)),
        target,
        pids: cluster.pids()?,
        size_mib,
        copies: u32::try_from(replicas).unwrap_or(1),
        cached: None,
    });
    Ok(cluster)
}

/// Whether nbdkit is here; says that it is left out if not.
pub(crate) fn has_memory_plugin(run: &Run) -> bool {
    run.has("nbdkit", "nbdkit's memory plugin")
}

/// nbdkit with a disk in memory, if it is installed, as a further subject; it serves until it is dropped.
fn nbdkit_memory(run: &Run, size_mib: u64, subjects: &mut Vec<Subject>) -> Outcome<Option<Server>> {
    if !has_memory_plugin(run) {
        return Ok(None);
    }
    let server = Server::nbdkit_memory(&run.scratch, size_mib)?;
    subjects.push(of_server("nbdkit memory", &server, size_mib));
    Ok(Some(server))
}

/// Whether Ceph is measured, which it is in long runs; says that it is left out if it would be and is not here.
pub(crate) fn has_ceph(run: &Run) -> bool {
    let missing = ceph::is_missing().filter(|_| run.pace.every_row());
    if let Some(missing) = &missing {
        not_run(format!("Ceph: not on this machine: {missing}"));
    }
    run.pace.every_row() && missing.is_none()
}

/// Ceph with three copies, in long runs, if it is installed, as a further subject; it serves until it is dropped.
fn ceph(run: &Run, size_mib: u64, subjects: &mut Vec<Subject>) -> Outcome<Option<Ceph>> {
    if !has_ceph(run) {
        return Ok(None);
    }
    let ceph = Ceph::up(&run.scratch.join("ceph"), size_mib)?;
    let (target, pids) = (ceph.target(), ceph.pids());
    fill(&target, size_mib)?;
    subjects.push(Subject {
        name: ceph::SUBJECT.to_owned(),
        target,
        pids,
        size_mib,
        copies: 3,
        cached: None,
    });
    Ok(Some(ceph))
}

/// The disk itself.
pub(crate) fn raw(file: PathBuf, size_mib: u64) -> Subject {
    let (name, target) = ("raw".to_owned(), Target::File(file));
    Subject { name, target, pids: Vec::new(), size_mib, copies: 1, cached: None }
}

pub(crate) fn of_server(name: &str, server: &Server, size_mib: u64) -> Subject {
    let (target, pids) = (Target::Nbd(server.url()), vec![server.pid()]);
    let (name, cached) = (name.to_owned(), server.cached());
    Subject { name, target, pids, size_mib, copies: 1, cached }
}

/// Measures every workload on every subject, by turns, with as many instances at once as `threads` says.
pub(crate) fn measure(
    run: &Run,
    subjects: &[Subject],
    workloads: &[Workload],
    threads: impl Fn(&Workload) -> Vec<u32>,
    table: &mut Table,
) -> Outcome<()> {
    for subject in subjects.iter().filter(|subject| subject.pids.is_empty() || subject.copies == 1)
    {
        fill(&subject.target, subject.size_mib)?;
    }
    let mut repeats: BTreeMap<(usize, u32, usize), Repeats> = BTreeMap::new();
    for number in 0..run.pace.repeats() {
        say(format!("{}: repeat {} of {}", table.title, number + 1, run.pace.repeats()));
        for (place, workload) in workloads.iter().enumerate() {
            for threads in threads(workload) {
                for who in order(number, subjects.len()) {
                    let sample = subjects[who].measure(run, workload, threads)?;
                    repeats.entry((place, threads, who)).or_default().samples.push(sample);
                }
            }
        }
    }
    for ((place, threads, who), repeats) in repeats {
        let (workload, subject) = (workloads[place], &subjects[who]);
        let system_calls = subject.system_calls(run, &workload, threads)?;
        let subject = subject.name.clone();
        table.rows.push(Row { workload, subject, threads, repeats, own_ms: None, system_calls });
    }
    own_times(table, subjects);
    Ok(())
}

/// Enters what is left of each row's server time without what the disk's requests cost anyone; nothing where the disk itself was
/// not measured.
fn own_times(table: &mut Table, subjects: &[Subject]) {
    let Some(disk) = subjects.iter().find(|subject| subject.pids.is_empty()) else { return };
    let disk: Vec<(Workload, u32, f64)> = table
        .rows
        .iter()
        .filter(|row| row.subject == disk.name)
        .map(|row| (row.workload, row.threads, row.repeats.median(|sample| sample.fio_ms)))
        .collect();
    for row in &mut table.rows {
        let Some(subject) = subjects.iter().find(|subject| subject.name == row.subject) else {
            continue;
        };
        let raw = disk
            .iter()
            .find(|(workload, threads, _)| *workload == row.workload && *threads == row.threads);
        let Some(&(_, _, fio_ms)) = raw.filter(|_| !subject.pids.is_empty()) else { continue };
        let reads = f64::from(row.workload.reads) / 100.0;
        let requests = reads + (1.0 - reads) * f64::from(subject.copies);
        row.own_ms = Some(row.repeats.median(|sample| sample.cpu_ms) - fio_ms * requests);
    }
}

#[cfg(test)]
mod tests;

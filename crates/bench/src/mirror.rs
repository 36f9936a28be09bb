//! Table 4: what it costs to mirror, where each node has a disk of its own.
//!
//! One machine has one disk. So each copy is on a block device that is made a good deal slower than that (`throttle`), and
//! the nodes are joined by a link as of Ethernet (`veth`): what is lost against the device alone is then mirroring.
//!
//! Always: all devices have the same limits; what is compared goes the same way to the device, or the shorter one, but for nbdkit, whose copy is in a
//! file on a device of its own.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use tools::{Device, has_loops, missing, no_disk};

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{self, Target, Workload, fill, float};
use crate::machine::processor_ms;
use crate::outcome::{Outcome, not_run, say};
use crate::resync::{self, Case, Changes, Place, Resync};
use crate::run::{Run, Subject, Turns, order};
use crate::sample::{median, spread};
use crate::server::Server;
use crate::tables::{Table, measure, of_server, raw};
use crate::throttle::{Limit, Throttle, lift, no_throttle};
use crate::tree::Tree;

/// More than the metadata of any volume here.
const METADATA_MIB: u64 = 64;

/// More than a file system takes for itself.
const FILE_SYSTEM_MIB: u64 = 256;

/// The disk is to be the limit, with time to spare for two nodes and their client on few cores.
const REQUESTS_MAX: u64 = 8_000;
pub(crate) const BYTES_MAX: u64 = 200_000_000;

pub(crate) const SEQUENTIAL: Workload = Workload {
    name: "128K sequential write, depth 16",
    pattern: "write",
    block_kib: 128,
    depth: 16,
    reads: 0,
};
pub(crate) const RANDOM: Workload = Workload {
    name: "4K random write, depth 64",
    pattern: "randwrite",
    block_kib: 4,
    depth: 64,
    reads: 0,
};
/// In brief runs without the last.
const WORKLOADS: [Workload; 3] = [
    SEQUENTIAL,
    RANDOM,
    Workload { name: "4K random read, depth 64", pattern: "randread", reads: 100, ..RANDOM },
];

pub(crate) const DEVICE: &str = "the device";
pub(crate) const ALONE: &str = "1 replica";
pub(crate) const GONE: &str = "2 replicas, the peer is gone";
pub(crate) const SMALL: &str = "2 replicas, MTU 1500";
pub(crate) const LARGE: &str = "2 replicas, MTU 9000";

/// A file that was written and synced, on a file system.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) subject: String,
    /// Median, and the smallest and largest.
    pub(crate) mb_per_second: f64,
    pub(crate) range: (f64, f64),
    /// Processor time of the primary's node, and of its peer, in per cent of a core; `None`: there is none.
    pub(crate) primary_percent: Option<f64>,
    pub(crate) secondary_percent: Option<f64>,
}

/// What Table 4 says beside the table itself.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Mirror {
    pub(crate) file_mib: u64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) files: Vec<Written>,
    pub(crate) resyncs: Vec<Resync>,
}

/// Block devices on files, each for one copy.
pub(crate) struct OwnDevices {
    scratch: PathBuf,
    name: &'static str,
    size_mib: u64,
    /// Before the devices that they are on.
    trees: Vec<Tree>,
    devices: Vec<Device>,
}

impl OwnDevices {
    /// None yet; each will have room for a volume of this size.
    pub(crate) fn new(scratch: &Path, name: &'static str, size_mib: u64) -> OwnDevices {
        let (scratch, trees, devices) = (scratch.to_path_buf(), Vec::new(), Vec::new());
        OwnDevices { scratch, name, size_mib, trees, devices }
    }

    /// One more: where it is.
    pub(crate) fn add(&mut self) -> Outcome<String> {
        self.add_with(METADATA_MIB)
    }

    fn add_with(&mut self, more_mib: u64) -> Outcome<String> {
        let file = self.scratch.join(format!("{}-{}.img", self.name, self.devices.len()));
        let device = Device::new(&file, (self.size_mib + more_mib) << 20)?;
        let path = device.device.clone();
        self.devices.push(device);
        lift(&path)?;
        Ok(path)
    }

    /// One more with ext4 on it, and a file there of a volume's size, written whole: where that is. For who goes through the page cache: that of a
    /// device is written back block by block, each of which the limit counts as a request; that of a file in pieces as long as they lie together.
    pub(crate) fn add_file(&mut self) -> Outcome<PathBuf> {
        let device = self.add_with(FILE_SYSTEM_MIB)?;
        let place = self.scratch.join(format!("{}-{}-ext4", self.name, self.devices.len()));
        let tree = Tree::new(&Target::File(device.into()), &place)?;
        let file = tree.mount().join("copy");
        self.trees.push(tree);
        fill(&Target::File(file.clone()), self.size_mib)?;
        Ok(file)
    }

    /// All of them are so slow until what this gives is dropped.
    pub(crate) fn limit(&self, limit: Limit) -> Outcome<Throttle> {
        let mut throttle = Throttle::new();
        for device in &self.devices {
            throttle.limit(&device.device, limit)?;
        }
        Ok(throttle)
    }
}

/// A subject, and what serves it.
struct Made {
    subject: Subject,
    cluster: Option<Cluster>,
}

/// Measures all of it; nothing, where this machine cannot.
pub(crate) fn mirror(run: &Run) -> Outcome<Option<(Vec<Table>, Mirror)>> {
    if !can_be() {
        return Ok(None);
    }
    let run = &run.in_turns(Turns::Steady);
    let size_mib = run.pace.file_mib();
    let mut devices = OwnDevices::new(&run.scratch, "device", size_mib);
    let path = devices.add()?;
    let quarter = quarter(run, &path, size_mib)?;
    let limit = quarter.at_most(REQUESTS_MAX, BYTES_MAX);
    let (places, servers) = places(run, &mut devices, path)?;
    let (subjects, mut clusters): (Vec<Subject>, Vec<Option<Cluster>>) =
        places.into_iter().map(|place| (place.subject, place.cluster)).unzip();
    let mut tables = Vec::new();
    let throttle = devices.limit(limit)?;
    let mut table = Table {
        key: "mirror",
        title: "Table 4, each node a disk of its own",
        seed: "the mail of 2004: 38.5 MB/s to the disk, 39.9 with the peer away, 37.2 mirrored (3.4 % less); resync 33 MB/s of 40",
        reference: DEVICE,
        notes: Vec::new(),
        rows: Vec::new(),
    };
    let workloads = if run.pace.brief { &WORKLOADS[..2] } else { &WORKLOADS[..] };
    measure(run, &subjects, workloads, |_| vec![1], &mut table)?;
    tables.push(table);
    drop(throttle);
    if run.pace.every_row() && quarter != limit {
        let throttle = devices.limit(quarter)?;
        tables.push(at_a_quarter(run, &subjects, quarter)?);
        drop(throttle);
    }
    let throttle = devices.limit(limit)?;
    let file_mib = size_mib / 2;
    let resyncs = resyncs(run, &subjects, &mut clusters, size_mib)?;
    let files = files(run, &subjects, &clusters, file_mib)?;
    drop(clusters);
    drop(servers);
    drop(throttle);
    let Limit { requests, bytes } = limit;
    Ok(Some((tables, Mirror { file_mib, requests, bytes, files, resyncs })))
}

/// All subjects, the first device's among them, and the servers that serve some of them.
fn places(run: &Run, devices: &mut OwnDevices, path: String) -> Outcome<(Vec<Made>, Vec<Server>)> {
    let size_mib = devices.size_mib;
    let (mut places, mut servers) = (Vec::new(), Vec::new());
    let device = Subject { name: DEVICE.to_owned(), ..raw(path.into(), size_mib) };
    places.push(Made { subject: device, cluster: None });
    if !run.pace.brief && run.has("nbdkit", "nbdkit file") {
        let server = Server::nbdkit_file(&run.scratch, &devices.add_file()?)?;
        let subject = of_server("nbdkit file", &server, size_mib);
        places.push(Made { subject, cluster: None });
        servers.push(server);
    }
    for programs in &run.programs {
        for (name, mtu) in
            [(ALONE, None), (GONE, Some(1500)), (SMALL, Some(1500)), (LARGE, Some(9000))]
        {
            if name == LARGE && run.pace.brief {
                continue;
            }
            let mut stores = vec![("a", devices.add()?)];
            if mtu.is_some() {
                stores.push(("b", devices.add()?));
            }
            let directory = run.scratch.join(format!("m{}", places.len()));
            let made = (programs, mtu, directory.as_path());
            places.push(cluster(run, made, name, &stores, size_mib)?);
        }
    }
    Ok((places, servers))
}

/// Writes where devices do a quarter of what the disk does, and no less: faster than the nodes and their client may be on few cores.
fn at_a_quarter(run: &Run, subjects: &[Subject], limit: Limit) -> Outcome<Table> {
    let mut table = Table {
        key: "mirror-quarter",
        title: "Table 4, devices of a quarter of the disk",
        seed: "the same, where it may be the processors that are the limit",
        reference: DEVICE,
        notes: vec![format!(
            "Every device here does {} requests and {:.0} MB in a second.",
            limit.requests,
            float(limit.bytes) / 1e6
        )],
        rows: Vec::new(),
    };
    measure(run, subjects, &WORKLOADS[..2], |_| vec![1], &mut table)?;
    Ok(table)
}

/// Of two replicas the second is copied to, with nobody there and beside an application.
fn resyncs(
    run: &Run,
    subjects: &[Subject],
    clusters: &mut [Option<Cluster>],
    size_mib: u64,
) -> Outcome<Vec<Resync>> {
    let cases = [false, true].map(|beside| Case { changes: Changes::All, beside });
    let mut places = Vec::new();
    for (subject, cluster) in subjects.iter().zip(clusters) {
        let Some(suffix) = subject.name.strip_prefix(SMALL) else { continue };
        let Some(cluster) = cluster.as_mut() else { continue };
        places.push(Place { cluster, target: &subject.target, size_mib, node: "b", suffix });
    }
    resync::resyncs(run, &mut places, &cases, "disks of their own")
}

/// Whether any of it can be measured here; says what is left out, and why.
pub(crate) fn can_be() -> bool {
    if let Some(why) = cannot() {
        not_run(format!("mirroring between disks of their own: {why}"));
        return false;
    }
    has_trees();
    true
}

/// Whether volumes can have file systems.
fn has_trees() -> bool {
    let why = no_disk();
    if let Some(why) = &why {
        not_run(format!("a file system on volumes: {why}"));
    }
    why.is_none()
}

/// Why devices cannot be made, or not made slower, here.
pub(crate) fn cannot() -> Option<String> {
    if !has_loops() {
        return Some("needs root and loop devices".to_owned());
    }
    let missing = missing(&["losetup", "ip", "mkfs.ext4", "mount", "umount"]);
    if !missing.is_empty() {
        return Some(format!("not on this machine: {}", missing.join(", ")));
    }
    no_throttle()
}

/// A quarter of what a device reaches here, so that all of them together do not reach the disk's end.
pub(crate) fn quarter(run: &Run, device: &str, size_mib: u64) -> Outcome<Limit> {
    let target = Target::File(device.into());
    fill(&target, size_mib)?;
    let seen =
        |workload| fio::measure(&target, workload, size_mib, run.pace.seconds(), 1, &run.scratch);
    let whole = |figure: f64| {
        // A count below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = figure.max(0.0) as u64;
        whole
    };
    let (random, sequential) = (seen(&RANDOM)?, seen(&SEQUENTIAL)?);
    let requests = whole(random.iops / 4.0).max(100);
    let bytes = whole(sequential.mb_per_second * 1e6 / 4.0).max(1_000_000);
    Ok(Limit { requests, bytes })
}

/// A volume, v, filled, with these stores; on one node, or on two that are apart.
fn cluster(
    run: &Run,
    (programs, mtu, directory): (&Programs, Option<u32>, &Path),
    name: &str,
    stores: &[(&str, String)],
    size_mib: u64,
) -> Outcome<Made> {
    let mut cluster = match mtu {
        Some(mtu) => Cluster::apart(programs, directory, mtu)?,
        None => {
            let wanted = Wanted { nodes: 1, store: "file", encryption: false, threads: 1 };
            Cluster::up(programs, directory, wanted)?
        }
    };
    cluster.create_from("v", &description("off", stores, size_mib))?;
    let target = Target::Nbd(cluster.url("a", "v"));
    fill(&target, size_mib)?;
    if name == GONE {
        cluster.kill("b")?;
        // Behind the wait for the peer that is gone.
        fill(&target, size_mib)?;
    }
    let copies = written_copies(name, stores.len());
    let name = format!("{name}{}", run.suffix(programs));
    let (pids, cached) = (cluster.pids()?, None);
    let subject = Subject { name, target, pids, size_mib, copies, cached };
    Ok(Made { subject, cluster: Some(cluster) })
}

/// On how many disks a write to a volume of so many replicas ends.
fn written_copies(name: &str, replicas: usize) -> u32 {
    // That of the peer that is gone is written to no more.
    let away = usize::from(name == GONE);
    u32::try_from(replicas - away).unwrap_or(1)
}

/// A resource of one volume on these devices, as `resource create --from` takes it.
pub(crate) fn description(quorum: &str, stores: &[(&str, String)], size_mib: u64) -> String {
    let mut description = format!("[options]\nquorum = \"{quorum}\"\n");
    for (node, device) in stores {
        description += &format!(
            "[[members]]\nnode = \"{node}\"\n\
             stores = [{{ volume = 0, kind = \"device\", path = \"{device}\" }}]\n"
        );
    }
    description + &format!("[[volumes]]\nsize = \"{size_mib}MiB\"\n")
}

/// A file of this size is written in order and synced, on a file system on each, by turns; always at the same place.
fn files(
    run: &Run,
    subjects: &[Subject],
    clusters: &[Option<Cluster>],
    file_mib: u64,
) -> Outcome<Vec<Written>> {
    if !has_trees() {
        return Ok(Vec::new());
    }
    let mut trees = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        let tree = Tree::new(&subject.target, &run.scratch.join(format!("fs{number}")))?;
        write_and_sync(tree.mount(), file_mib)?;
        trees.push(tree);
    }
    let mut speeds = vec![Vec::new(); trees.len()];
    let mut shares = vec![(Vec::new(), Vec::new()); trees.len()];
    for number in 0..run.pace.repeats() {
        say(format!("Table 4, a file with sync: repeat {} of {}", number + 1, run.pace.repeats()));
        for place in order(number, trees.len()) {
            let tree = &trees[place];
            let pids = clusters[place].as_ref().map_or(Ok(Vec::new()), Cluster::pids)?;
            let used =
                || -> Outcome<Vec<u64>> { pids.iter().map(|&pid| processor_ms(&[pid])).collect() };
            let before = used()?;
            let seconds = write_and_sync(tree.mount(), file_mib)?;
            speeds[place].push(float(file_mib << 20) / 1e6 / seconds);
            let share = |(after, before): (u64, &u64)| float(after - before) / 10.0 / seconds;
            let mut of_each = used()?.into_iter().zip(&before).map(share);
            shares[place].0.extend(of_each.next());
            shares[place].1.extend(of_each.next());
        }
    }
    for tree in trees {
        tree.remove()?;
    }
    let some = |figures: Vec<f64>| (!figures.is_empty()).then(|| median(figures));
    let rows = subjects.iter().zip(speeds).zip(shares);
    let rows = rows.map(|((subject, speeds), (primary, secondary))| Written {
        subject: subject.name.clone(),
        range: spread(&speeds),
        mb_per_second: median(speeds),
        primary_percent: some(primary),
        secondary_percent: some(secondary),
    });
    Ok(rows.collect())
}

/// Seconds that it took.
fn write_and_sync(mount: &Path, file_mib: u64) -> Outcome<f64> {
    let text = |error: std::io::Error| error.to_string();
    let mut file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(mount.join("file"))
        .map_err(text)?;
    let block: Vec<u8> =
        (0..1_u32 << 18).flat_map(|word| (word ^ 0x5DEE_CE66).to_le_bytes()).collect();
    let begun = Instant::now();
    for _ in 0..file_mib {
        file.write_all(&block).map_err(text)?;
    }
    file.sync_all().map_err(text)?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tools::missing;

    use super::{ALONE, GONE, LARGE, OwnDevices, SMALL, cannot, written_copies};

    #[test]
    fn a_copy_that_goes_through_the_page_cache_is_a_file_that_is_written_whole() {
        if cannot().is_some() || !missing(&["fio"]).is_empty() {
            println!("NOT RUN: needs root, loop devices, limits of theirs, and fio");
            return;
        }
        let place = std::env::temp_dir().join(format!("bench-own-{}", std::process::id()));
        fs::create_dir_all(&place).expect("there is room");
        let mut devices = OwnDevices::new(&place, "own", 16);
        let file = devices.add_file().expect("it is made");
        assert_eq!(fs::metadata(&file).expect("it is there").len(), 16 << 20);
        let bytes = fs::read(&file).expect("it is there");
        assert!(bytes.chunks(1 << 20).all(|piece| piece.iter().any(|&byte| byte != 0)));
        drop(devices);
        assert!(!file.exists(), "its file system is left");
        fs::remove_dir_all(&place).expect("nothing is mounted there");
    }

    #[test]
    fn a_write_ends_on_the_disks_of_those_that_are_there() {
        let of = [(ALONE, 1), (GONE, 2), (SMALL, 2), (LARGE, 2)];
        assert_eq!(of.map(|(name, replicas)| written_copies(name, replicas)), [1, 1, 2, 2]);
    }
}

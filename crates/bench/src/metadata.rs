//! Table 2: where the metadata of a volume is, whose data are on the disk.
//!
//! Always: what is made in memory for it, files and a block device over one, goes with the value that made it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tools::{Device, has_loops};

use crate::cluster::{Cluster, Wanted};
use crate::fio::{Target, fill};
use crate::outcome::{Outcome, complain, not_run};
use crate::run::{Pace, Run, Subject};
use crate::tables::{DEPTHS, Table, measure, raw};
use crate::throttle::lift;

/// Where memory is a file system.
const MEMORY: &str = "/dev/shm";

/// More than the metadata of any volume here.
const METADATA_MIB: u64 = 512;

/// Thirteen copies of it are on the disk at once.
const SIZE_MIB_MAX: u64 = 2048;

/// A log that misses has room for a quarter of what is written to.
fn few_extents(size_mib: u64) -> u64 {
    const LEAST: u64 = 64;
    const EXTENT_MIB: u64 = 4;
    (size_mib / EXTENT_MIB / 4).max(LEAST)
}

/// Where metadata can be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Metadata {
    /// Behind the data.
    Internal,
    /// On a block device that is memory.
    Device,
    /// In memory, and written in place.
    InPlace,
}

impl Metadata {
    fn name(self) -> &'static str {
        match self {
            Metadata::Internal => "behind the data",
            Metadata::Device => "on a block device in memory",
            Metadata::InPlace => "in memory, in place",
        }
    }
}

/// What a subject is called whose log has room for all that is written to, or has not.
pub(crate) fn subject(place: Metadata, covers: bool) -> String {
    let log = if covers { "log covers" } else { "log misses" };
    format!("metadata {}, {log}", place.name())
}

/// A directory in memory, and block devices over files in it.
struct InMemory {
    directory: PathBuf,
    devices: Vec<Device>,
}

impl InMemory {
    /// `None`, and why, where there is none.
    fn new() -> Outcome<Option<InMemory>> {
        let directory = Path::new(MEMORY).join(format!("lockstep-bench-{}", std::process::id()));
        if !has_directory() {
            return Ok(None);
        }
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        Ok(Some(InMemory { directory, devices: Vec::new() }))
    }

    /// A block device of its own; `None`, and why, where this host has none to make.
    fn device(&mut self, name: &str) -> Outcome<Option<PathBuf>> {
        if !has_devices() {
            return Ok(None);
        }
        let device = Device::new(&self.directory.join(name), METADATA_MIB << 20)?;
        lift(&device.device)?;
        let path = device.device.clone().into();
        self.devices.push(device);
        Ok(Some(path))
    }
}

fn has_directory() -> bool {
    let there = Path::new(MEMORY).is_dir();
    if !there {
        not_run(format!("metadata in memory: there is no {MEMORY}"));
    }
    there
}

fn has_devices() -> bool {
    let there = has_loops();
    if !there {
        let name = Metadata::Device.name();
        not_run(format!("metadata {name}: needs root and loop devices"));
    }
    there
}

/// Whether metadata can be wherever it is to be; says what is left out.
pub(crate) fn has_memory(pace: Pace) -> bool {
    has_directory() && (!places(pace).contains(&Metadata::Device) || has_devices())
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.devices.clear();
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            complain(format!("{}: {error}", self.directory.display()));
        }
    }
}

/// Size of each volume: large enough that a log that misses has room for more extents than requests are in flight.
pub(crate) fn size_mib(pace: Pace) -> u64 {
    (pace.file_mib() * 4).min(SIZE_MIB_MAX)
}

/// Where the metadata is.
fn places(pace: Pace) -> &'static [Metadata] {
    match pace.brief {
        true => &[Metadata::Internal, Metadata::InPlace],
        false => &[Metadata::Internal, Metadata::Device, Metadata::InPlace],
    }
}

/// How many volumes there are of each revision, with two copies each.
pub(crate) fn volumes(pace: Pace) -> u64 {
    places(pace).len() as u64 * 2
}

/// Two replicas with data on the disk, and their metadata in one of these places; the same where the log has room for few extents only.
pub(crate) fn metadata(run: &Run) -> Outcome<Table> {
    let size_mib = size_mib(run.pace);
    let mut memory = InMemory::new()?;
    let (mut clusters, mut subjects) = (Vec::new(), Vec::new());
    for programs in &run.programs {
        let wanted = Wanted { nodes: 2, store: "file", encryption: false, threads: 1 };
        let directory = run.scratch.join(format!("m{}", clusters.len()));
        let cluster = Cluster::up(programs, &directory, wanted)?;
        for &place in places(run.pace) {
            for covers in [true, false] {
                let name = format!("v{}", subjects.len());
                let stem = directory.join(&name);
                let Some(members) = members(memory.as_mut(), place, &stem)? else { continue };
                let extents = if covers {
                    String::new()
                } else {
                    format!("log_extents = {}\n", few_extents(size_mib))
                };
                let volume = format!("[[volumes]]\nsize = \"{size_mib}MiB\"\n{extents}");
                cluster.create_from(&name, &(members + &volume))?;
                let target = Target::Nbd(cluster.url("b", &name));
                fill(&target, size_mib)?;
                subjects.push(Subject {
                    name: subject(place, covers) + &run.suffix(programs),
                    target,
                    pids: cluster.pids()?,
                    size_mib,
                    copies: 2,
                    cached: None,
                });
            }
        }
        clusters.push(cluster);
    }
    subjects.push(raw(run.scratch.join("metadata-raw.img"), size_mib));
    let mut table = Table {
        key: "metadata",
        title: "Table 2, where the metadata is",
        seed: "LINBIT's post on persistent memory: metadata in it 5.0 M write IOPS against 4.5 M on the data's SSD, 85 µs against 113; \
            at depth 1 each scattered write changes the activity log",
        reference: REFERENCE,
        notes: Vec::new(),
        rows: Vec::new(),
    };
    let workloads = run.pace.of_depths(&DEPTHS, &[1, 64]);
    measure(run, &subjects, &workloads, |_| vec![1], &mut table)?;
    // Before their devices.
    drop(clusters);
    drop(memory);
    Ok(table)
}

/// As [`subject`] names it.
const REFERENCE: &str = "metadata behind the data, log covers";

/// Both members of a resource, as its description has them; `None` where there is no such place.
fn members(
    mut memory: Option<&mut InMemory>,
    place: Metadata,
    stem: &Path,
) -> Outcome<Option<String>> {
    let mut text = String::new();
    for node in ["a", "b"] {
        let name = stem.with_extension(node);
        let (data, name) = (name.display(), name.file_name().unwrap_or_default().to_string_lossy());
        let path = match (place, memory.as_deref_mut()) {
            (Metadata::Internal, _) => None,
            (_, None) => return Ok(None),
            (Metadata::InPlace, Some(memory)) => Some(memory.directory.join(&*name)),
            (Metadata::Device, Some(memory)) => match memory.device(&format!("{name}.loop"))? {
                None => return Ok(None),
                device => device,
            },
        };
        let path = path.map(|path| format!(", metadata_path = \"{}\"", path.display()));
        let path = path.unwrap_or_default();
        write!(
            text,
            "[[members]]\nnode = \"{node}\"\n\
             stores = [{{ volume = 0, kind = \"file\", path = \"{data}\"{path} }}]\n"
        )
        .expect("a string takes all");
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::{Metadata, REFERENCE, subject};

    #[test]
    fn the_reference_is_one_of_the_subjects() {
        assert_eq!(subject(Metadata::Internal, true), REFERENCE);
    }
}

//! What is attached to this host, as a file says it: a table for each disk.
//!
//! Always: it is written whole or not at all, and on the disk before anything is done; who changes it holds its lock.
//! A disk is written down before it is made and forgotten after it is gone, so what a crash leaves is a disk that can be
//! made or taken away once more, never one that nobody knows of.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::place::{NbdPlace, NvmePlace, Place, Server, Target, parse_place};
use crate::cluster::{damaged, make_directory, replace_file};
use crate::problem::{NOT_ATTACHED, Problem};

/// Version of the file.
const VERSION: u16 = 1;

const HEAD: &str =
    "# Volumes that are disks of this host. Written by `lockstep device attach` and `detach`.\n";

/// What makes a disk.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Ublk,
    Nvme,
    Nbd,
}

impl Way {
    /// The order in which they are tried.
    pub(super) const ALL: [Way; 3] = [Way::Ublk, Way::Nvme, Way::Nbd];

    /// Its word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Ublk => "ublk",
            Way::Nvme => "nvme",
            Way::Nbd => "nbd",
        }
    }

    /// Whether the kernel gives its disks such names.
    pub(super) fn makes(self, name: &str) -> bool {
        let begins = match self {
            Way::Ublk => "ublkb",
            Way::Nvme => "nvme",
            Way::Nbd => "nbd",
        };
        name.starts_with(begins)
    }
}

/// What is wanted of a disk.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It is to be there.
    #[default]
    Attached,
    /// It is being made for the first time, or that was interrupted.
    Making,
    /// It was taken away, and is to be there again after the next start of the host.
    Resting,
    /// It is being taken away for good.
    Leaving,
}

/// A volume that is attached, or on its way to that or from it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    pub(super) resource: String,
    pub(super) volume: u16,
    pub(super) via: Way,
    /// Identity of the resource, if a node was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    /// Where it is, as URLs.
    #[serde(default)]
    pub(super) places: Vec<String>,
    /// Table with what this host proves itself by, or speaks TLS by, to nodes that it reaches by NVMe/TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<PathBuf>,
    /// Admin sockets of the nodes that were asked.
    #[serde(default)]
    pub(super) admin: Vec<PathBuf>,
    #[serde(default)]
    pub(super) state: State,
}

impl Disk {
    /// The volume.
    pub(super) fn target(&self) -> Target {
        Target { resource: self.resource.clone(), volume: self.volume }
    }

    /// Whether it is to be there.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.state, State::Attached | State::Making)
    }

    /// Whether this may be its resource; it is, as far as one of the identities is not known.
    pub(super) fn is_of(&self, told: Option<u64>) -> bool {
        let known = self.id.as_deref().and_then(|id| u64::from_str_radix(id, 16).ok());
        known.zip(told).is_none_or(|(known, told)| known == told)
    }

    /// Where it is for NVMe hosts.
    pub(super) fn nvme(&self) -> Vec<NvmePlace> {
        let parsed = self.places.iter().filter_map(|text| parse_place(text).ok());
        parsed
            .filter_map(|place| match place {
                Place::Nvme(place) => Some(place),
                Place::Nbd(_) => None,
            })
            .collect()
    }

    /// Where it is for NBD clients, in the order in which they are tried: sockets of this host first.
    pub(super) fn nbd(&self) -> Vec<NbdPlace> {
        let parsed = self.places.iter().filter_map(|text| parse_place(text).ok());
        let mut places: Vec<NbdPlace> = parsed
            .filter_map(|place| match place {
                Place::Nbd(place) => Some(place),
                Place::Nvme(_) => None,
            })
            .collect();
        places.sort_by_key(|place| matches!(place.server, Server::Tcp(_)));
        places
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    version: u16,
    #[serde(default)]
    disk: Vec<Disk>,
}

/// The file, read.
#[derive(Debug)]
pub(super) struct Attached {
    path: PathBuf,
    pub(super) disks: Vec<Disk>,
    /// Held by who changes it.
    _lock: Option<File>,
}

impl Attached {
    /// Reads the file in `directory`; there is none where nothing was ever attached.
    pub(super) fn read(directory: &Path) -> Result<Attached, Problem> {
        let path = directory.join("attached.toml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Problem::file(&path, &error)),
        };
        if text.is_empty() {
            return Ok(Attached { path, disks: Vec::new(), _lock: None });
        }
        let whole: Whole =
            toml::from_str(&text).map_err(|error| damaged(&path, error.to_string().trim_end()))?;
        if whole.version != VERSION {
            return Err(damaged(&path, &format!("version {} is not {VERSION}", whole.version)));
        }
        // Names become paths.
        let odd = |disk: &&Disk| parse_target(disk).is_err();
        if let Some(disk) = whole.disk.iter().find(odd) {
            return Err(damaged(&path, &format!("{:?} is no name of a resource", disk.resource)));
        }
        Ok(Attached { path, disks: whole.disk, _lock: None })
    }

    /// The same, to change it: waits for whoever changes it now.
    pub(super) fn open(directory: &Path) -> Result<Attached, Problem> {
        make_directory(directory)?;
        let path = directory.join("attached.lock");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(|error| Problem::file(&path, &error))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|errno| Problem::file(&path, &errno.into()))?;
        Ok(Attached { _lock: Some(file), ..Attached::read(directory)? })
    }

    /// The line of a volume.
    pub(super) fn find(&self, target: &Target) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.target() == *target)
    }

    /// The same; it has to be there, or, if it is meant only in a certain state, may be gone or in another: `None`.
    pub(super) fn require(
        &self,
        target: &Target,
        only: Option<State>,
    ) -> Result<Option<&Disk>, Problem> {
        let found = self.find(target);
        if found.is_none() && only.is_none() {
            return Err(Problem::new(NOT_ATTACHED, format!("{target} is not attached")));
        }
        Ok(found.filter(|disk| only.is_none_or(|state| disk.state == state)))
    }

    /// All other volumes that are to be there.
    pub(super) fn others(&self, target: &Target) -> Vec<Disk> {
        let stays = |disk: &&Disk| disk.target() != *target && disk.is_wanted();
        self.disks.iter().filter(stays).cloned().collect()
    }

    /// Writes a line down, instead of the one that the volume has.
    pub(super) fn put(&mut self, disk: &Disk) -> Result<(), Problem> {
        let target = disk.target();
        match self.disks.iter_mut().find(|old| old.target() == target) {
            Some(old) if old == disk => return Ok(()),
            Some(old) => *old = disk.clone(),
            None => self.disks.push(disk.clone()),
        }
        self.write()
    }

    /// Forgets a volume.
    pub(super) fn forget(&mut self, target: &Target) -> Result<(), Problem> {
        self.disks.retain(|disk| disk.target() != *target);
        self.write()
    }

    fn write(&self) -> Result<(), Problem> {
        let whole = Whole { version: VERSION, disk: self.disks.clone() };
        let text = toml::to_string(&whole).expect("plain data becomes TOML");
        replace_file(&self.path, &format!("{HEAD}{text}"))
    }
}

fn parse_target(disk: &Disk) -> Result<Target, String> {
    super::place::parse_target(&disk.target().to_string())
}

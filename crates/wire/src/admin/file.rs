//! A resource as its operator describes it: the same form in a TOML file and on the admin socket.
//!
//! Always: unknown keys are refused; `check` finds everything that `configuration` could not hold.
//!
//! Not here: TOML (`lockstepd`, `lockstep`), the node's own settings.

use super::hex;
use crate::register::check_configuration;
use crate::{
    AfterSplitBrain, Configuration, Durability, MEMBERS_MAX, MemberEntry, MemberKind, OnIoError,
    OnNoQuorum, Options, Protocol, Quorum, ReadPolicy, SHARDS_MAX, VolumeEntry,
};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Incarnation, NodeId, Prng, SECTOR_BYTES, VolumeId, VoterId};
use serde::{Deserialize, Serialize};

/// Longest name of a resource or node in bytes: it is part of file names and NBD export names.
pub const NAME_BYTES_MAX: usize = 48;
/// Largest volume: 1 PiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 50;
/// Nodes of one resource, clients included.
const NODES_MAX: usize = 64;

/// A resource.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceFile {
    /// Its name, unique in the cluster: lower-case letters, digits, `-`, `_` and `.`, beginning with
    /// a letter or digit.
    pub name: String,
    /// Its identity: random, the same on every node, never used again.
    #[serde(with = "hex")]
    pub id: u64,
    /// Number of shards, the same on every node. 1..=`SHARDS_MAX`.
    #[serde(default = "one")]
    pub shards: u16,
    /// What the operator chose.
    #[serde(default)]
    pub options: Options,
    /// How patient its nodes are, the same on every node.
    #[serde(default)]
    pub timing: FileTiming,
    /// Nodes that replicate or use it.
    pub nodes: Vec<FileNode>,
    /// Which of them hold a replica or are witness. The rest are clients.
    pub members: Vec<FileMember>,
    /// Its volumes.
    pub volumes: Vec<FileVolume>,
}

fn one() -> u16 {
    1
}

/// How patient the nodes of a resource are.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileTiming {
    /// Between two heartbeats of the primary.
    pub heartbeat_ms: u32,
    /// How long a voter stands by the primary after each; at least 4 heartbeats.
    pub lease_ms: u32,
    /// After this long without an answer a replica is left behind.
    pub peer_late_ms: u32,
}

impl Default for FileTiming {
    fn default() -> FileTiming {
        FileTiming { heartbeat_ms: 250, lease_ms: 2_000, peer_late_ms: 1_500 }
    }
}

/// A node.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileNode {
    /// Its number, from 1.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Where it listens for peers, as `address:port`; tried in turn. May be empty where the nodes'
    /// own settings say it.
    #[serde(default)]
    pub addresses: Vec<String>,
}

/// A replica or witness.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMember {
    /// Number of its node.
    pub node: u16,
    /// What it holds.
    #[serde(default = "replica")]
    pub kind: MemberKind,
    /// Identity of its voting memory. Left out: one that follows from resource and node, for the
    /// first creation only. A store that is made anew later must get a new one.
    #[serde(default, with = "hex::option", skip_serializing_if = "Option::is_none")]
    pub voter: Option<u64>,
    /// First life of its disk cache. Left out: one that follows from resource and node.
    #[serde(default, with = "hex::option", skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether it begins in sync. Left out: a replica does. That is right where every store is new
    /// and reads as zeroes, or keeps (`FileStore::keep`) what is the same in all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_sync: Option<bool>,
    /// Where it keeps which volume. A volume without an entry is a file in the node's directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<FileStore>,
}

fn replica() -> MemberKind {
    MemberKind::Replica
}

/// Where a replica keeps a volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileStore {
    /// Index of the volume.
    pub volume: u16,
    /// What it is.
    pub kind: StoreKind,
    /// Where; nothing for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A file or device of its own for the metadata; left out: at the end of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_path: Option<String>,
    /// It holds the volume's bytes already, and keeps them. Left out: it is made empty.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub keep: bool,
}

/// What a store is made of.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A file in a file system.
    File,
    /// A block device.
    Device,
    /// Memory: forgets everything at every stop. For tests.
    Memory,
}

/// A volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileVolume {
    /// Its index.
    #[serde(default)]
    pub index: u16,
    /// Its size, a multiple of the block.
    pub size_bytes: u64,
    /// Smallest unit of a request: 512 or 4096.
    #[serde(default = "block")]
    pub block_bytes: u32,
    /// Extents of 4 MiB in its activity log: what may have been written lately, and is compared after a crash. Chosen when the
    /// resource is made; in [`LOG_EXTENTS`].
    #[serde(default = "log_extents", skip_serializing_if = "is_usual_log")]
    pub log_extents: u32,
}

/// Extents in a volume's activity log, unless another number was chosen: 5 GiB.
pub const LOG_EXTENTS_USUAL: u32 = 1237;
/// What may be chosen: 256 MiB, which leave each of 8 shards 8 extents, to 64 GiB, whose log of 14 MB a start still reads
/// in a moment.
pub const LOG_EXTENTS: core::ops::RangeInclusive<u32> = 64..=16_384;

fn log_extents() -> u32 {
    LOG_EXTENTS_USUAL
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_usual_log(extents: &u32) -> bool {
    *extents == LOG_EXTENTS_USUAL
}

fn block() -> u32 {
    4096
}

fn changed<T: Copy + PartialEq>(from: &T, to: &T) -> Option<T> {
    (from != to).then_some(*to)
}

/// Options to change; the others stay.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptionsChange {
    /// When a write counts as complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// What makes a write survive a power cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Whether configuration changes need a majority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorum: Option<Quorum>,
    /// What happens to requests while there is no quorum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_quorum: Option<OnNoQuorum>,
    /// What happens when a replica's disk fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_io_error: Option<OnIoError>,
    /// Which in-sync replica serves a read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_policy: Option<ReadPolicy>,
    /// Requests wait while fewer replicas than this are in sync. 1..=8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_sync_min: Option<u8>,
    /// Whether blocks carry checksums on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_checksum: Option<bool>,
    /// What happens when two sides that went on without each other meet again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_split_brain: Option<AfterSplitBrain>,
    /// Bytes per second that resyncs copy at most; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_rate_max: Option<u64>,
    /// Bytes per second that they keep; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_rate_min: Option<u64>,
}

impl OptionsChange {
    /// The change of those options in which `to` is not like `from`.
    #[must_use]
    pub fn between(from: &Options, to: &Options) -> OptionsChange {
        OptionsChange {
            protocol: changed(&from.protocol, &to.protocol),
            durability: changed(&from.durability, &to.durability),
            quorum: changed(&from.quorum, &to.quorum),
            on_no_quorum: changed(&from.on_no_quorum, &to.on_no_quorum),
            on_io_error: changed(&from.on_io_error, &to.on_io_error),
            read_policy: changed(&from.read_policy, &to.read_policy),
            in_sync_min: changed(&from.in_sync_min, &to.in_sync_min),
            data_checksum: changed(&from.data_checksum, &to.data_checksum),
            after_split_brain: changed(&from.after_split_brain, &to.after_split_brain),
            resync_rate_max: changed(&from.resync_rate_max, &to.resync_rate_max),
            resync_rate_min: changed(&from.resync_rate_min, &to.resync_rate_min),
        }
    }

    /// `options` with the change made.
    #[must_use]
    pub fn applied(&self, options: &Options) -> Options {
        Options {
            protocol: self.protocol.unwrap_or(options.protocol),
            durability: self.durability.unwrap_or(options.durability),
            quorum: self.quorum.unwrap_or(options.quorum),
            on_no_quorum: self.on_no_quorum.unwrap_or(options.on_no_quorum),
            on_io_error: self.on_io_error.unwrap_or(options.on_io_error),
            read_policy: self.read_policy.unwrap_or(options.read_policy),
            in_sync_min: self.in_sync_min.unwrap_or(options.in_sync_min),
            data_checksum: self.data_checksum.unwrap_or(options.data_checksum),
            after_split_brain: self.after_split_brain.unwrap_or(options.after_split_brain),
            resync_rate_max: self.resync_rate_max.unwrap_or(options.resync_rate_max),
            resync_rate_min: self.resync_rate_min.unwrap_or(options.resync_rate_min),
        }
    }
}

/// What is wrong with a description, in words for who wrote it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileError(pub String);

impl core::fmt::Display for FileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for FileError {}

impl ResourceFile {
    /// Checks everything that can be known without a disk or a network.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn check(&self) -> Result<(), FileError> {
        self.configuration().map(|_| ())
    }

    /// The resource's first configuration: epoch 1, no primary. The same on every node that has the
    /// same description.
    ///
    /// # Errors
    /// The first thing wrong with the description.
    pub fn configuration(&self) -> Result<Configuration, FileError> {
        self.check_names()?;
        self.check_timing()?;
        self.check_members()?;
        let mut members: Vec<MemberEntry> =
            self.members.iter().map(|member| self.member_entry(member)).collect();
        members.sort_by_key(|member| member.node);
        let mut volumes = Vec::new();
        for volume in &self.volumes {
            if !volume.size_bytes.is_multiple_of(SECTOR_BYTES) {
                return refuse(format!("volume {}: not whole sectors", volume.index));
            }
            if volume.size_bytes > VOLUME_BYTES_MAX {
                let index = volume.index;
                return refuse(format!("volume {index}: more than 1PiB, the largest there is"));
            }
            if !LOG_EXTENTS.contains(&volume.log_extents) {
                let (least, most) = (LOG_EXTENTS.start(), LOG_EXTENTS.end());
                return refuse(format!(
                    "volume {}: log_extents must be in {least}..={most}",
                    volume.index
                ));
            }
            volumes.push(VolumeEntry {
                volume: VolumeId(volume.index),
                sectors: volume.size_bytes / SECTOR_BYTES,
                grows_to: None,
                block_bytes: volume.block_bytes,
            });
        }
        volumes.sort_by_key(|entry| entry.volume);
        let configuration = Configuration::first(members, volumes, self.options.clone());
        check_configuration(&configuration).map_err(|what| FileError(String::from(what)))?;
        if configuration.in_sync().count() == 0 {
            return refuse("no replica begins in sync");
        }
        let (asked, replicas) = (self.options.in_sync_min, configuration.replicas().count());
        if usize::from(asked) > replicas {
            return refuse(format!(
                "in_sync_min asks for {asked} replicas in sync, and there are {replicas}: no request would be answered"
            ));
        }
        Ok(configuration)
    }

    /// Name of the node with this number.
    #[must_use]
    pub fn node_name(&self, node: NodeId) -> Option<&str> {
        self.nodes.iter().find(|entry| entry.id == node.0).map(|entry| entry.name.as_str())
    }

    fn member_entry(&self, member: &FileMember) -> MemberEntry {
        // Nodes make their own parts apart from each other and must come to the same identities.
        let mut random = Prng::new(self.id ^ (u64::from(member.node) << 48));
        let (voter, incarnation) = (random.id(), random.id());
        let replica = member.kind == MemberKind::Replica;
        let incarnation = if replica { member.incarnation.unwrap_or(incarnation) } else { 0 };
        MemberEntry {
            node: NodeId(member.node),
            kind: member.kind,
            voter: VoterId(member.voter.unwrap_or(voter)),
            in_sync: member.in_sync.unwrap_or(replica),
            incarnation: Incarnation(incarnation),
        }
    }

    fn check_names(&self) -> Result<(), FileError> {
        check_name("the resource", &self.name)?;
        if self.nodes.len() > NODES_MAX {
            return refuse(format!("more than {NODES_MAX} nodes"));
        }
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for node in &self.nodes {
            check_name("a node", &node.name)?;
            if node.id == 0 {
                return refuse(format!("node {}: its number must be 1 or more", node.name));
            }
            if !ids.insert(node.id) || !names.insert(&node.name) {
                return refuse(format!("node {}: its number or name is given twice", node.name));
            }
            for address in &node.addresses {
                if address.parse::<core::net::SocketAddr>().is_err() {
                    return refuse(format!("node {}: {address} is no address:port", node.name));
                }
            }
        }
        Ok(())
    }

    fn check_timing(&self) -> Result<(), FileError> {
        let FileTiming { heartbeat_ms, lease_ms, peer_late_ms } = self.timing;
        if heartbeat_ms < 10 || lease_ms > 600_000 || lease_ms / 4 < heartbeat_ms {
            return refuse("timing: 10 ms <= heartbeat_ms <= lease_ms / 4, lease_ms <= 600000");
        }
        if peer_late_ms < heartbeat_ms || peer_late_ms > 600_000 {
            return refuse("timing: heartbeat_ms <= peer_late_ms <= 600000");
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return refuse(format!("shards must be in 1..={SHARDS_MAX}"));
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), FileError> {
        if self.members.len() > MEMBERS_MAX {
            return refuse(format!("more than {MEMBERS_MAX} members"));
        }
        if self.volumes.is_empty() {
            return refuse("a resource has at least one volume");
        }
        for member in &self.members {
            let Some(name) = self.node_name(NodeId(member.node)) else {
                return refuse(format!("member on node {}: there is no such node", member.node));
            };
            if member.kind == MemberKind::Witness && !member.stores.is_empty() {
                return refuse(format!("member {name}: a witness has no store"));
            }
            let mut seen = BTreeSet::new();
            for store in &member.stores {
                if !self.volumes.iter().any(|volume| volume.index == store.volume) {
                    return refuse(format!("member {name}: no volume {}", store.volume));
                }
                if !seen.insert(store.volume) {
                    return refuse(format!("member {name}: two stores of one volume"));
                }
                if (store.kind == StoreKind::Memory) != store.path.is_none() {
                    return refuse(format!("member {name}: a path where none is due, or none"));
                }
                if store.keep && store.kind == StoreKind::Memory {
                    return refuse(format!("member {name}: memory holds nothing to keep"));
                }
                if store.keep && self.options.data_checksum {
                    return refuse(format!(
                        "member {name}: data_checksum needs stores that begin empty"
                    ));
                }
            }
        }
        self.check_kept()
    }

    /// Replicas that begin in sync begin with the same: all of them keep what is there, or none does.
    fn check_kept(&self) -> Result<(), FileError> {
        let begins = |member: &&FileMember| {
            member.kind == MemberKind::Replica && member.in_sync != Some(false)
        };
        for volume in &self.volumes {
            let keeps = |member: &FileMember| {
                member.stores.iter().any(|store| store.volume == volume.index && store.keep)
            };
            let all = self.members.iter().filter(begins).count();
            let kept = self.members.iter().filter(begins).filter(|member| keeps(member)).count();
            if kept != 0 && kept != all {
                return refuse(format!(
                    "volume {}: of {all} replicas that begin in sync {kept} keep what their stores hold, and the \
                     others are made empty; let only those that keep begin in sync (in_sync = false)",
                    volume.index
                ));
            }
        }
        Ok(())
    }
}

/// Checks the name of a resource or node: it becomes part of paths and of what others are told. Whoever takes a name from
/// outside asks here, so that none is taken in one place and refused in another.
///
/// # Errors
/// It is no name; `whose` it would be is said.
pub fn check_name(whose: &str, name: &str) -> Result<(), FileError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = name.bytes().next().is_some_and(plain)
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| plain(byte) || matches!(byte, b'-' | b'_' | b'.'));
    if good {
        return Ok(());
    }
    refuse(format!(
        "{whose} is named {name:?}: a name is 1 to {NAME_BYTES_MAX} lower-case letters, digits, '-', \
         '_' and '.', beginning with a letter or digit"
    ))
}

fn refuse<T>(what: impl Into<String>) -> Result<T, FileError> {
    Err(FileError(what.into()))
}

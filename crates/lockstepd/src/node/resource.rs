//! One resource on this node: its machines, its disk, and what the node knows about it.
//!
//! Not here: how it comes and goes (`lifecycle`), what its machines ask for (`carry`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Instant, ResourceId, SECTOR_BYTES, Span, VolumeId, VoterId};
use replica::door::DiskOp;
use replica::{Geometry, Member, Shard};
use wire::admin::ResourceFile;
use wire::{Configuration, VolumeEntry};

use super::disk::LocalDisk;
use super::recast::Recast;

/// A resource that runs.
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) id: ResourceId,
    /// New whenever its machines begin; peers tell by it what was meant for earlier ones.
    pub(crate) life: u64,
    /// As whom, and in which fork, a committed configuration last named this node as a member.
    pub(crate) named: Option<(VoterId, u64)>,
    pub(crate) geometry: Geometry,
    pub(crate) member: Member,
    pub(crate) shards: Vec<Shard>,
    /// `None`: this node has no usable disk for it.
    pub(crate) disk: Option<LocalDisk>,
    /// NBD clients that have it open here.
    pub(crate) clients: u32,
    /// What the resource file says, until a configuration is known.
    defined: Option<Configuration>,
    /// Sizes in sectors, as of the newest configuration installed.
    pub(crate) sizes: BTreeMap<VolumeId, u64>,
    /// Flushes under way: volumes still to answer, and whether all went well so far.
    pub(crate) flushes: BTreeMap<(u16, DiskOp), (usize, bool)>,
    /// When time alone changes something, as it is entered in the node's list.
    pub(crate) wake: Option<Instant>,
    pub(crate) touched: bool,
    /// This node's part in it is changing.
    pub(crate) recast: Option<Box<Recast>>,
}

impl Resource {
    /// A resource with these machines.
    pub(crate) fn new(
        file: &ResourceFile,
        geometry: Geometry,
        member: Member,
        shards: Vec<Shard>,
        disk: Option<LocalDisk>,
    ) -> Resource {
        Resource {
            name: file.name.clone(),
            id: ResourceId(file.id),
            life: 0,
            named: None,
            geometry,
            member,
            shards,
            disk,
            clients: 0,
            defined: file.configuration().ok(),
            sizes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            wake: None,
            touched: false,
            recast: None,
        }
    }

    /// The newest configuration known here to be committed; else what the resource file says.
    pub(crate) fn configuration(&self) -> Option<Arc<Configuration>> {
        let known = self.member.status().configuration;
        known.or_else(|| self.defined.clone().map(Arc::new))
    }

    /// The volume of this number, as the newest configuration known here has it.
    pub(crate) fn volume(&self, volume: VolumeId) -> Option<VolumeEntry> {
        self.configuration()?.volume(volume).cloned()
    }

    /// Names, and sizes in bytes, under which its volumes are exported.
    pub(crate) fn exports(&self) -> Vec<(String, u64)> {
        let Some(configuration) = self.configuration() else { return Vec::new() };
        let name = |number: u16| match number {
            0 => self.name.clone(),
            number => format!("{}/{number}", self.name),
        };
        configuration
            .volumes
            .iter()
            .map(|entry| (name(entry.volume.0), entry.sectors * SECTOR_BYTES))
            .collect()
    }

    /// The shard that serves a span, which lies in one extent.
    pub(crate) fn shard_of(&self, span: Span) -> u16 {
        let shards = u16::try_from(self.shards.len()).expect("a few");
        Shard::owner(&self.geometry, shards, span.first() / self.geometry.extent_sectors)
    }

    /// When time alone changes something for one of its machines.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let shards = self.shards.iter().filter_map(Shard::wake_at);
        shards.chain(self.member.wake_at()).min()
    }
}

//! One resource on this node: its machines, its disk, and what the node knows about it.
//!
//! Not here: how it comes and goes (`lifecycle`), what its machines ask for (`carry`).

use std::collections::BTreeMap;

use base::{Instant, ResourceId, Span, VolumeId};
use replica::door::{DiskOp, Geometry};
use wire::VolumeEntry;

use super::disk::LocalDisk;
use super::standin::{Member, Shard};

/// A resource.
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) id: ResourceId,
    pub(crate) geometry: Geometry,
    pub(crate) member: Member,
    pub(crate) shards: Vec<Shard>,
    /// `None`: this node has no usable disk for it.
    pub(crate) disk: Option<LocalDisk>,
    /// Why it has no usable disk although it should.
    pub(crate) problem: Option<String>,
    /// NBD clients that have it open here.
    pub(crate) clients: u32,
    pub(crate) volumes: Vec<VolumeEntry>,
    /// Flushes under way: volumes still to answer, and whether all went well so far.
    pub(crate) flushes: BTreeMap<(u16, DiskOp), (usize, bool)>,
    /// When time alone changes something, as it is entered in the node's list.
    pub(crate) wake: Option<Instant>,
    pub(crate) touched: bool,
}

impl Resource {
    /// The volume of this number, as the newest configuration known here has it.
    pub(crate) fn volume(&self, volume: VolumeId) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|entry| entry.volume == volume)
    }

    /// Names under which its volumes are exported.
    pub(crate) fn export_names(&self) -> Vec<String> {
        self.volumes
            .iter()
            .map(|entry| match entry.volume.0 {
                0 => self.name.clone(),
                number => format!("{}/{number}", self.name),
            })
            .collect()
    }

    /// The shard that serves a span, which lies in one extent.
    pub(crate) fn shard_of(&self, _volume: VolumeId, span: Span) -> u16 {
        let stripe = span.first() / self.geometry.extent_sectors / self.geometry.stripe_extents;
        let shards = u64::try_from(self.shards.len()).expect("a few");
        u16::try_from(stripe % shards).expect("a few")
    }

    /// When time alone changes something for one of its machines.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let shards = self.shards.iter().filter_map(Shard::wake_at);
        shards.chain(self.member.wake_at()).min()
    }
}

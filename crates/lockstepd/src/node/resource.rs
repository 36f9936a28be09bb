//! One resource on this node: its machines, its disk, and what the node knows about it; on a further
//! thread that thread's part of it.
//!
//! Not here: how it comes and goes (`lifecycle`), what its machines ask for (`carry`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Epoch, Instant, NodeId, RequestId, ResourceId, SECTOR_BYTES, Span, VolumeId, VoterId};
use replica::shard::ShardStatus;
use replica::{Geometry, Member, Shard};
use sys::{Account, BufferPool, Room};
use wire::{Configuration, VolumeEntry};

use super::count::Count;
use super::diary::Diary;
use super::disk::{LocalDisk, Part};
use super::late::Held;
use super::peers::Questions;
use super::recast::Recast;
use super::threads::Sight;
use crate::slab::{Key, Slab};

/// A shard, as one thread knows it.
pub(crate) enum Seat {
    /// This thread has it.
    Here(Box<Shard>),
    /// Another one has: how it was a moment ago.
    There(Box<Sight>),
}

impl Seat {
    fn shard(&self) -> Option<&Shard> {
        match self {
            Seat::Here(shard) => Some(shard),
            Seat::There(_) => None,
        }
    }
}

/// A resource that runs.
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) id: ResourceId,
    /// New whenever its machines begin; peers tell by it what was meant for earlier ones.
    pub(crate) life: u64,
    /// As whom, and in which fork, a committed configuration last named this node as a member.
    pub(crate) named: Option<(VoterId, u64)>,
    /// Members of the configuration that was installed last, and its fork.
    pub(crate) members: Option<(Vec<NodeId>, u64)>,
    pub(crate) geometry: Geometry,
    /// On the first thread only.
    pub(crate) member: Option<Member>,
    shards: Vec<Seat>,
    /// Its nodes, ascending: those that may speak about it, and that may lack something.
    pub(crate) nodes: Vec<NodeId>,
    /// `None`: this node has no usable disk for it.
    pub(crate) disk: Option<LocalDisk>,
    /// The first request that its disk failed since the machines began: why, for the operator.
    pub(crate) disk_failure: Option<String>,
    /// What its disk may still change by requests that were given up for being late.
    pub(crate) late: Vec<(Key, Part)>,
    /// What its disk has of all that was given up so.
    pub(super) held: Held,
    /// What was told of it in the log.
    pub(crate) diary: Diary,
    /// Clients that have it open here.
    pub(crate) clients: u32,
    /// What the resource file says, until a configuration is known.
    pub(crate) defined: Option<Configuration>,
    /// Sizes in sectors, as of the newest configuration installed.
    pub(crate) sizes: BTreeMap<VolumeId, u64>,
    /// Of the newest configuration installed: which loss of all caches it knows. And whether a client of this node was
    /// answered without an error since.
    pub(crate) lost: Epoch,
    pub(crate) told: bool,
    /// Whether copies may have gone on without each other, as of the newest configuration installed.
    pub(crate) may_have_parted: bool,
    counts: RefCell<BTreeMap<(u16, NodeId), Count>>,
    /// Configurations that were installed since its machines began.
    pub(crate) installs: u64,
    /// How many they were when the latest loss of all caches was heard of.
    pub(crate) lost_at: u64,
    /// Counts clients whose home was chosen by turns.
    pub(crate) homes: u16,
    /// Flushes under way: volumes still to answer, and whether all went well so far.
    pub(crate) flushes: Slab<(usize, bool)>,
    /// When time alone changes something, as it is entered in the node's list.
    pub(crate) wake: Option<Instant>,
    pub(crate) touched: bool,
    /// This node's part in it is changing.
    pub(crate) recast: Option<Box<Recast>>,
    /// What it has taken of this node's memory, on all threads.
    pub(crate) accounts: Accounts,
    /// What its clients' requests carry is taken from here: a share of what all clients have.
    client_share: Option<BufferPool>,
    /// The same of what other nodes ask of this one as primary.
    forwarded_share: Option<BufferPool>,
    /// For what reads that other nodes asked for will give: of which shard, whose, and which.
    pub(crate) rooms: BTreeMap<(u16, NodeId, RequestId), Room>,
    /// What its shards have asked of peers in the present sessions: by which shard, of whom.
    pub(crate) questions: BTreeMap<(u16, NodeId), Questions>,
}

/// What a resource has taken, of which each leaves something for the others.
#[derive(Clone, Default)]
pub(crate) struct Accounts {
    /// What its clients' requests carry.
    clients: Account,
    /// What other nodes ask of this one as primary.
    forwarded: Account,
}

impl Resource {
    /// What its clients' requests carry is taken from here, on this thread.
    pub(crate) fn client_share(&mut self, pool: &BufferPool) -> BufferPool {
        let account = &self.accounts.clients;
        self.client_share.get_or_insert_with(|| pool.share_of(account)).clone()
    }

    /// The same of what other nodes ask of this one as primary.
    pub(crate) fn forwarded_share(&mut self, pool: &BufferPool) -> BufferPool {
        let account = &self.accounts.forwarded;
        self.forwarded_share.get_or_insert_with(|| pool.share_of(account)).clone()
    }

    /// A resource with these shards.
    pub(crate) fn new(
        name: String,
        id: ResourceId,
        geometry: Geometry,
        shards: Vec<Seat>,
        disk: Option<LocalDisk>,
    ) -> Resource {
        Resource {
            name,
            id,
            life: 0,
            named: None,
            members: None,
            geometry,
            member: None,
            shards,
            nodes: Vec::new(),
            disk,
            disk_failure: None,
            late: Vec::new(),
            held: Held::default(),
            diary: Diary::default(),
            clients: 0,
            defined: None,
            sizes: BTreeMap::new(),
            lost: Epoch(0),
            told: false,
            may_have_parted: false,
            counts: RefCell::default(),
            installs: 0,
            lost_at: 0,
            homes: 0,
            flushes: Slab::default(),
            wake: None,
            touched: false,
            recast: None,
            accounts: Accounts::default(),
            client_share: None,
            forwarded_share: None,
            rooms: BTreeMap::new(),
            questions: BTreeMap::new(),
        }
    }

    /// How many volumes of it somebody has open, here or elsewhere.
    pub(crate) fn volumes_open(&self) -> usize {
        if self.clients > 0 || self.diary.has_primary() { self.sizes.len() } else { 0 }
    }

    /// The newest configuration known here to be committed; else what the resource file says.
    pub(crate) fn configuration(&self) -> Option<Arc<Configuration>> {
        let known = self.member.as_ref().and_then(|member| member.status().configuration);
        known.or_else(|| self.defined.clone().map(Arc::new))
    }

    /// The latest loss of all caches that is known here.
    pub(crate) fn latest_loss(&self) -> Epoch {
        self.configuration().map_or(self.lost, |known| known.lost.max(self.lost))
    }

    /// The volume of this number, as the newest configuration known here has it.
    pub(crate) fn volume(&self, volume: VolumeId) -> Option<VolumeEntry> {
        self.configuration()?.volume(volume).cloned()
    }

    /// Under which names its volumes are exported, and their sizes in bytes.
    pub(crate) fn exports(&self) -> Vec<(String, VolumeId, u64)> {
        let Some(configuration) = self.configuration() else { return Vec::new() };
        let name = |number: u16| match number {
            0 => self.name.clone(),
            number => format!("{}/{number}", self.name),
        };
        configuration
            .volumes
            .iter()
            .map(|entry| (name(entry.volume.0), entry.volume, entry.sectors * SECTOR_BYTES))
            .collect()
    }

    /// Its member, on the thread that has it.
    ///
    /// # Panics
    /// On other threads.
    pub(crate) fn member(&self) -> &Member {
        self.member.as_ref().expect("the first thread has the members")
    }

    /// Number of its shards, on whatever threads.
    pub(crate) fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.len()).expect("a few")
    }

    /// Numbers of the shards of this thread.
    pub(crate) fn own_shards(&self) -> impl Iterator<Item = u16> {
        self.here().map(|(number, _)| number)
    }

    /// The shards of this thread.
    pub(crate) fn here(&self) -> impl Iterator<Item = (u16, &Shard)> {
        (0_u16..).zip(&self.shards).filter_map(|(number, seat)| Some((number, seat.shard()?)))
    }

    /// Whether this thread has the shard.
    pub(crate) fn has_shard(&self, shard: u16) -> bool {
        self.shards.get(usize::from(shard)).is_some_and(|seat| seat.shard().is_some())
    }

    /// A shard of this thread.
    pub(crate) fn shard_mut(&mut self, shard: u16) -> Option<&mut Shard> {
        match self.shards.get_mut(usize::from(shard))? {
            Seat::Here(shard) => Some(shard),
            Seat::There(_) => None,
        }
    }

    /// What is known of a shard.
    pub(crate) fn seat_mut(&mut self, shard: u16) -> Option<&mut Seat> {
        self.shards.get_mut(usize::from(shard))
    }

    /// How its shards are, or were a moment ago.
    pub(crate) fn statuses(&self) -> Vec<ShardStatus> {
        let status = |seat: &Seat| match seat {
            Seat::Here(shard) => shard.status(),
            Seat::There(sight) => sight.status.clone(),
        };
        self.shards.iter().map(status).collect()
    }

    /// Sectors in blocks that were written here and that `node` lacks; of large volumes as they were counted a while ago.
    pub(crate) fn changed_sectors(&self, node: NodeId) -> u64 {
        let changed = |(number, seat): (u16, &Seat)| match seat {
            Seat::Here(shard) => self.counted(number, shard, node, false),
            Seat::There(sight) => sight.changed.get(&node).copied().unwrap_or_default(),
        };
        (0..).zip(&self.shards).map(changed).sum()
    }

    /// The same of one shard; the present number, if it is wanted and does not take long.
    fn counted(&self, number: u16, shard: &Shard, node: NodeId, is_wanted: bool) -> u64 {
        let mut counts = self.counts.borrow_mut();
        let count = counts.entry((number, node)).or_default();
        count.sectors(is_wanted, sys::clock, || shard.changed_sectors(node))
    }

    /// How the shards of this thread are, for the first. What others lack is of interest only where they may have gone on by
    /// themselves; the present number, where an end is told.
    pub(crate) fn sights(&self, is_end: bool) -> Vec<(u16, Sight)> {
        let nodes = if self.may_have_parted { &self.nodes[..] } else { &[] };
        let sight = |(number, shard): (u16, &Shard)| {
            let changed =
                nodes.iter().map(|&node| (node, self.counted(number, shard, node, is_end)));
            (number, Sight { status: shard.status(), changed: changed.collect() })
        };
        self.here().map(sight).collect()
    }

    /// The shard that serves a span, which lies in one extent.
    pub(crate) fn shard_of(&self, span: Span) -> u16 {
        Shard::owner(
            &self.geometry,
            self.shard_count(),
            span.first() / self.geometry.extent_sectors,
        )
    }

    /// When time alone changes something for one of its machines.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let shards = self.here().filter_map(|(_, shard)| shard.wake_at());
        shards.chain(self.member.as_ref().and_then(Member::wake_at)).min()
    }
}

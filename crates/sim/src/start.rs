//! The beginning: disks of a new resource, and a process from what its disk holds.
//!
//! Not here: what is made of the pages (`replica`).

use crate::buffer::Buffers;
use crate::disk::{BitsPage, Disk};
use crate::feature::Feature;
use crate::plan::Role;
use crate::queue::MILLI;
use crate::world::{Process, World, node_id};
use base::{Incarnation, Instant, VolumeId, VoterId};
use replica::disk::Record;
use replica::start::{Found, Setups, Start, start};
use replica::{Member, MetaPage, Shard};
use std::collections::{BTreeMap, BTreeSet};
use wire::{Configuration, MemberEntry, MemberKind, VolumeEntry};

/// What wall clocks show when a run begins, in milliseconds since 1970.
const WALL_MS: u64 = 1_700_000_000_000;
/// Extents that a volume may have more than at first.
pub(crate) const GROWTH_MAX: u64 = 8;
/// What lies beyond a volume on a disk that was used for something else before.
const STALE: u64 = 1 << 51;
/// Older copies of a disk that are kept, at most.
const BACKUPS_MAX: usize = 4;

impl World {
    /// Makes the resource: every member gets the same first configuration.
    pub(crate) fn create(&mut self) {
        let configuration = self.first_configuration();
        for node in 0..self.nodes.len() {
            let id = node_id(node);
            let Some(member) = configuration.member(id).cloned() else { continue };
            let volumes = if member.kind == MemberKind::Replica {
                self.plan.volumes.clone()
            } else {
                Vec::new()
            };
            let mut disk = self.empty_disk(node, &volumes);
            let boot = self.nodes[node].boot;
            let record =
                Record::first(&configuration, id, boot).expect("only members keep a record");
            disk.submit_record(Box::new(record.clone()));
            disk.finish_record(true);
            self.nodes[node].disk = Some(disk);
            self.nodes[node].incarnation = record.incarnation;
            self.nodes[node].voter = record.voter;
        }
        self.committed(&configuration);
        self.first = Some(configuration);
    }

    /// A disk with room for these volumes, as large as they may become.
    pub(crate) fn empty_disk(&self, node: usize, volumes: &[(VolumeId, u64)]) -> Disk {
        let mut disk = Disk::new(volumes);
        disk.write_through = self.plan.stable_disks;
        disk.pmem = self.plan.features.contains(&Feature::Pmem);
        disk.extent_sectors = self.plan.geometry.extent_sectors;
        let more = GROWTH_MAX * self.plan.geometry.extent_sectors;
        for &(volume, sectors) in volumes {
            let stale = self.plan.features.contains(&Feature::StaleGrowth);
            let token = if stale { STALE + node as u64 } else { 0 };
            disk.resize(volume, sectors + more, token);
        }
        disk
    }

    fn first_configuration(&mut self) -> Configuration {
        let mut members = Vec::new();
        for node in 0..self.nodes.len() {
            let kind = match self.plan.roles[node] {
                Role::Replica => MemberKind::Replica,
                Role::Witness => MemberKind::Witness,
                Role::Diskless => continue,
            };
            let replica = kind == MemberKind::Replica;
            members.push(MemberEntry {
                node: node_id(node),
                kind,
                voter: VoterId(self.random.id()),
                in_sync: replica,
                incarnation: Incarnation(if replica { self.random.id() } else { 0 }),
            });
        }
        let volumes = self
            .plan
            .volumes
            .iter()
            .map(|&(volume, sectors)| VolumeEntry {
                volume,
                sectors,
                grows_to: None,
                block_bytes: 512,
            })
            .collect();
        Configuration::first(members, volumes, self.plan.options.clone())
    }

    /// Shards of a node: a witness has none.
    pub(crate) fn shards_of(&self, node: usize) -> u16 {
        if self.plan.roles[node] == Role::Witness { 0 } else { self.plan.shards }
    }

    /// Which shard serves an extent.
    pub(crate) fn shard_of(&self, volume: base::VolumeId, extent: u64) -> u16 {
        let _ = volume;
        Shard::owner(&self.plan.geometry, self.plan.shards, extent)
    }

    /// A blank disk gets a memory with a new identity.
    pub(crate) fn blank(&mut self, node: usize) {
        let incarnation = Incarnation(self.random.id());
        let record = Record::empty(self.fresh_voter(), incarnation, self.nodes[node].boot);
        self.nodes[node].voter = record.voter;
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.submit_record(Box::new(record));
            disk.finish_record(true);
        }
    }

    /// A process starts on a node.
    pub(crate) fn on_start(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life || self.nodes[node].process.is_some() {
            return;
        }
        if self.is_away(node) && !self.rejoining {
            return;
        }
        if self.nodes[node].struck.is_some() {
            self.strike(node, false);
        }
        let now = self.clock(node);
        let replica = self.plan.roles[node] == Role::Replica;
        let begin = Start {
            node: node_id(node),
            process: self.random.id(),
            boot: self.nodes[node].boot,
            holds_data: replica,
            volatile_cache: !self.plan.stable_disks,
            shards: self.shards_of(node),
            geometry: self.plan.geometry,
            log_sizes: self.plan.log_sizes.clone(),
            timing: self.plan.timing,
            feature_level: wire::FEATURE_LEVEL,
            seed: self.random.next_u64(),
            bootstrap: self.first.clone(),
        };
        if self.nodes[node].spoiled {
            self.judge_pages(node, &begin);
        }
        let setups = start(&begin, self.found(node));
        if let Some(bad) = setups.damaged {
            self.mark("sim: log damaged");
            if !self.nodes[node].spoiled {
                let text = format!("node {}: nothing was done to the log: {bad:?}", node_id(node));
                self.fail("metadata", text);
            }
        }
        self.check_sums(node, &setups);
        self.check_bits(node, &setups);
        if let Some(disk) = &self.nodes[node].disk {
            let backup = disk.clone();
            self.nodes[node].backups.push(backup);
        }
        if self.nodes[node].backups.len() > BACKUPS_MAX {
            self.nodes[node].backups.remove(0);
        }
        self.launch(node, now, setups);
    }

    /// Of what was written since its checksums were put on the disk, the log says that it is hot: a start forgets these
    /// checksums, and no others.
    fn check_sums(&mut self, node: usize, setups: &Setups) {
        let Some(disk) = &mut self.nodes[node].disk else { return };
        let hot: BTreeSet<_> =
            setups.shards.iter().flat_map(|shard| shard.inherited.iter().copied()).collect();
        let found = disk.believed_too_soon(&hot, setups.damaged.is_some());
        if let Some((volume, extent)) = found.filter(|_| self.plan.options.data_checksum) {
            let id = node_id(node);
            let text =
                format!("node {id}: extent {extent} of volume {volume} is cold, and not sealed");
            self.fail("metadata", text);
        }
    }

    /// Pages of bits that cannot be read are those to which something was done.
    fn check_bits(&mut self, node: usize, setups: &Setups) {
        let (Some(disk), Some(first)) = (&mut self.nodes[node].disk, setups.shards.first()) else {
            return;
        };
        let bits = setups.shards.iter().flat_map(|shard| &shard.bitmaps);
        let unreadable: Vec<BitsPage> = bits
            .filter(|(.., runs)| runs.is_none())
            .map(|&(of, volume, page, _)| (of, volume, page))
            .collect();
        if let Some((of, volume, page)) = disk.found_bits(&first.slots, &unreadable) {
            let id = node_id(node);
            let text = format!(
                "node {id}: nothing was done to page {page} of the bits of node {of}, volume {volume}"
            );
            self.fail("metadata", text);
        }
    }

    /// What the disk of a node holds.
    pub(crate) fn found(&mut self, node: usize) -> Found {
        let Some(disk) = &self.nodes[node].disk else { return Found::default() };
        let record = disk.record();
        if record.is_none() {
            self.fail("metadata", format!("node {}: no record can be read", node_id(node)));
            return Found::default();
        }
        let mut pages: Vec<_> =
            disk.pages().map(|(volume, place, bytes)| (volume, place, Some(*bytes))).collect();
        // Log pages that were never written are zeroes; bitmap pages may be left out.
        let written: BTreeSet<_> =
            pages.iter().map(|&(volume, place, _)| (volume, place)).collect();
        let volumes = if self.plan.roles[node] == Role::Replica {
            self.plan.volumes.clone()
        } else {
            Vec::new()
        };
        for (volume, _) in volumes {
            let sizes = &self.plan.log_sizes;
            let own = sizes.iter().find(|(of, _)| *of == volume).map(|(_, size)| size.pages);
            for page in 0..own.unwrap_or(self.plan.geometry.log_pages) {
                for (half, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let place = MetaPage::Log { half, page, copy };
                    if !written.contains(&(volume, place)) {
                        pages.push((volume, place, Some([0; 4096])));
                    }
                }
            }
        }
        if let Some(record) = &record {
            self.stored(node, record);
        }
        Found { record, pages }
    }

    fn launch(&mut self, node: usize, now: Instant, setups: Setups) {
        self.note(node, || format!("starts: {}", crate::machine::brief(&setups.member)));
        let life = self.nodes[node].life;
        let shards = usize::from(self.plan.shards);
        let mut outputs = Vec::new();
        let mut machines = Vec::new();
        for setup in setups.shards {
            let mut out = Vec::new();
            machines.push(Shard::new(now, setup, &mut out));
            outputs.push(out);
        }
        let mut member = Member::new(now, setups.member);
        let wall = WALL_MS + self.queue.now() / MILLI;
        member.set_wall_clock(wall.saturating_sub(now.0 / MILLI));
        let wakes: Vec<_> = machines.iter().map(Shard::wake_at).chain([member.wake_at()]).collect();
        self.nodes[node].disk_failed = false;
        self.nodes[node].installed = None;
        self.nodes[node].process = Some(Process {
            member,
            shards: machines,
            buffers: Buffers::default(),
            wakes: vec![None; shards + 1],
            to_shard: vec![0; shards],
            to_member: vec![0; shards],
            sessions: BTreeMap::new(),
            next_session: 0,
            hot: vec![(0, 0); shards],
            written: BTreeMap::new(),
        });
        for (shard, mut out) in (0..self.plan.shards).zip(outputs) {
            self.look_at_log(node, shard);
            self.shard_outputs(node, life, shard, &mut out);
        }
        let count = wakes.len() - 1;
        for (index, wake) in wakes.into_iter().enumerate() {
            let stream = if index == count { shards } else { index };
            self.wish(node, life, stream, wake);
        }
    }
}

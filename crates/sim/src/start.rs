//! The beginning: disks of a new resource, and a process from what its disk holds.
//!
//! Not here: what is made of the pages (`replica`).

use crate::buffer::Buffers;
use crate::disk::Disk;
use crate::plan::Role;
use crate::queue::Time;
use crate::world::{Process, World, node_id};
use base::{Ballot, Epoch, Incarnation, NodeId, VoterId};
use replica::disk::Record;
use replica::{Member, MemberSetup, Shard, ShardSetup};
use std::collections::BTreeMap;
use wire::{Configuration, MemberEntry, MemberKind, VolumeEntry};

impl World {
    /// Makes the resource: every member gets the same first configuration.
    pub(crate) fn create(&mut self) {
        let configuration = self.first_configuration();
        for node in 0..self.nodes.len() {
            let id = node_id(node);
            let Some(member) = configuration.member(id).cloned() else { continue };
            let volumes = if member.kind == MemberKind::Replica { self.plan.volumes.clone() } else { Vec::new() };
            let mut disk = Disk::new(&volumes);
            disk.write_through = self.plan.stable_disks;
            let record = first_record(&configuration, id, self.nodes[node].boot);
            disk.submit_record(Box::new(record.clone()));
            disk.finish_record(true);
            self.nodes[node].disk = Some(disk);
            self.nodes[node].incarnation = record.incarnation;
            self.nodes[node].voter = record.voter;
        }
        self.committed(&configuration);
        self.first = Some(configuration);
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
            .map(|&(volume, sectors)| VolumeEntry { volume, sectors, block_bytes: 512 })
            .collect();
        Configuration {
            epoch: Epoch(1),
            reign: Epoch(1),
            primary: None,
            recovering: false,
            fork: 0,
            feature_level: 1,
            members,
            volumes,
            options: self.plan.options.clone(),
            unknown: Vec::new(),
        }
    }

    /// Shards of a node: a witness has none.
    pub(crate) fn shards_of(&self, node: usize) -> u16 {
        if self.plan.roles[node] == Role::Witness { 0 } else { self.plan.shards }
    }

    /// Which shard serves an extent.
    pub(crate) fn shard_of(&self, volume: base::VolumeId, extent: u64) -> u16 {
        let _ = volume;
        let stripe = extent / self.plan.geometry.stripe_extents;
        u16::try_from(stripe % u64::from(self.plan.shards)).expect("few shards")
    }

    /// A blank disk gets a memory with a new identity.
    pub(crate) fn blank(&mut self, node: usize) {
        let record = Record {
            voter: self.fresh_voter(),
            incarnation: Incarnation(self.random.id()),
            boot: self.nodes[node].boot,
            ..Record::default()
        };
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
        self.note(node, || "starts".to_owned());
        let now = self.clock(node);
        let shards = self.plan.shards;
        let member = Member::new(now, MemberSetup {
            node: node_id(node),
            process: self.random.id(),
            shards,
            timing: self.plan.timing,
            seed: self.random.next_u64(),
            record: None,
            attached: false,
            found: (0, 0),
            bootstrap: self.first.clone(),
        });
        let _ = member;
    }
}

/// What a member of a new resource keeps.
fn first_record(configuration: &Configuration, node: NodeId, boot: u128) -> Record {
    let member = configuration.member(node).expect("only members keep a record");
    Record {
        voter: member.voter,
        incarnation: member.incarnation,
        committed: Some((Ballot::default(), Box::new(configuration.clone()))),
        boot,
        ..Record::default()
    }
}

//! What was answered from a copy's memory and its disk then failed (protocol B).
//!
//! Other copies have it, and that one is left out. Where none of those is left before that, nobody has it any more, and a client is
//! told with the next flush: the sector may hold what it held before.
//!
//! Always: that is so only while no copy that counts and kept its cache has it, nor a primary that writes it again.
//!
//! Not here: caches that are lost as a whole (`oracle`); whether that was told (tests of `replica`).

use crate::world::{World, node_id, node_index};
use base::{Epoch, Span, VolumeId};
use replica::DiskRequest;
use std::collections::BTreeSet;

/// Sectors of a disk.
pub(crate) type Sectors = BTreeSet<(VolumeId, u64)>;

/// Where a request writes, if it does.
fn place(request: &DiskRequest) -> Option<(VolumeId, Span)> {
    match *request {
        DiskRequest::Write { volume, span, .. } | DiskRequest::Zero { volume, span, .. } => {
            Some((volume, span))
        }
        _ => None,
    }
}

impl World {
    /// A disk has carried out a request, or failed it.
    pub(crate) fn note_lacks(&mut self, node: usize, request: &DiskRequest, failed: bool) {
        let Some((volume, span)) = place(request) else { return };
        let taken = |&(of, sector): &(VolumeId, u64)| {
            of == volume && span.first() <= sector && sector < span.end()
        };
        if !failed {
            self.nodes[node].lacks.retain(|sector| !taken(sector));
        } else if self.counts_memory(node) {
            let sectors = (span.first()..span.end()).map(|sector| (volume, sector));
            self.nodes[node].lacks.extend(sectors);
            self.look_for_lacks();
        }
    }

    /// Whether the primary of this reign still has what it wrote there.
    fn comes_again(&self, reign: Epoch, (volume, sector): (VolumeId, u64)) -> bool {
        self.nodes.iter().any(|node| {
            let acts = node.installed.as_ref().is_some_and(|known| known.reign == reign);
            let shards = node.process.iter().flat_map(|process| &process.shards);
            acts && shards.into_iter().any(|shard| shard.writes(volume, sector, sector + 1))
        })
    }

    /// Notes what no copy has that counts.
    pub(crate) fn look_for_lacks(&mut self) {
        let Some(newest) = &self.oracle.newest else { return };
        let kept: Vec<usize> = newest
            .members
            .iter()
            .filter(|member| member.in_sync)
            .filter(|member| self.is_kept(node_index(member.node), member.incarnation))
            .map(|member| node_index(member.node))
            .filter(|&node| self.nodes[node].put_back.is_none())
            .collect();
        let out: Vec<usize> =
            (0..self.nodes.len()).filter(|&node| !newest.is_in_sync(node_id(node))).collect();
        out.into_iter().for_each(|node| self.nodes[node].lacks.clear());
        let Some((&first, others)) = kept.split_first() else { return };
        let nobody = |sector: &(VolumeId, u64)| {
            others.iter().all(|&other| self.nodes[other].lacks.contains(sector))
                && !self.comes_again(newest.reign, *sector)
        };
        let gone: Sectors = self.nodes[first].lacks.iter().copied().filter(nobody).collect();
        if gone.is_empty() {
            return;
        }
        self.mark("sim: no copy has what was answered from memory");
        let (now, step) = (self.queue.now(), self.step);
        for &(volume, sector) in &gone {
            let name = self.history_volume(volume, sector);
            self.history.spoil(now, step, (name, sector));
        }
        for node in kept {
            self.nodes[node].lacks.retain(|sector| !gone.contains(sector));
        }
    }
}

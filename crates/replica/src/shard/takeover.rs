//! The beginning of a reign: gather every member's doubt before anything is answered.
//!
//! Always: `Gathered` is said only when the doubt of every in-sync member, of its kept incarnation, is
//! known here; until then nothing is read, answered or copied.

use super::{Out, Shard};
use crate::door::{FromShard, ShardOutput};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Epoch, NodeId, VolumeId};
use wire::{DoubtRun, ShardMessage};

/// Runs in one part of an answer to `Gather`.
const RUNS_PER_PART: usize = 2000;

impl Shard {
    pub(super) fn begin_reign(&mut self) {
        self.serving = None;
        self.gathered = None;
        self.reconciled = None;
        self.draining = None;
        self.reconcile = super::Doubt::default();
        self.reconciling = BTreeMap::new();
        self.reconcile_cursor = (VolumeId(0), 0);
        self.growths.clear();
        self.lost.clear();
        self.last_write = self.next_sequence - 1;
        self.unretired_own.clear();
        self.only_disk.failed.clear();
        self.retired_count = 0;
        let known = self.configuration.clone().expect("a reign begins with a configuration");
        self.lease_until = base::Instant(0);
        for (&node, peer) in &mut self.peers {
            peer.gathered = !known.is_in_sync(node);
            peer.gathering = None;
            peer.retired_told = 0;
            // What it confirmed before was another reign.
            peer.ready = peer.ready.filter(|&epoch| epoch >= known.reign);
        }
        self.begin_settlement();
        self.own_ready = false;
        self.cut_done = self.cut_done.max(self.cut - 1);
    }

    /// Asks an in-sync member for its doubt, once per session and reign.
    pub(super) fn gather_from(&mut self, node: NodeId, out: &mut Out) {
        let Some(known) = self.configuration.clone() else { return };
        if !self.is_primary() || !known.is_in_sync(node) || !self.is_ready(node) {
            return;
        }
        let sequence = self.next_sequence;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.gathered || peer.gathering.is_some() || !peer.kept {
            return;
        }
        self.next_sequence += 1;
        peer.gathering = Some(sequence);
        self.asks_effects(node);
        let message = ShardMessage::Gather { epoch: known.epoch, sequence, bits_of: None };
        self.send(node, message, None, out);
    }

    /// A part of a member's answer.
    pub(super) fn on_doubt(
        &mut self,
        node: NodeId,
        sequence: u64,
        runs: &[DoubtRun],
        last: bool,
        out: &mut Out,
    ) {
        let runs: Vec<DoubtRun> = self.sane_runs(runs);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.gathering != Some(sequence) {
            self.on_sync_doubt(node, sequence, &runs, last);
            return;
        }
        if last {
            peer.gathering = None;
            peer.gathered = true;
        }
        if !runs.is_empty() {
            out.push(ShardOutput::Mark("a member has doubt"));
        }
        self.reconcile.add_runs(&runs);
        if last && self.gathered == Some(self.reign()) {
            self.told_again(node, out);
        }
        self.check_gathered(out);
    }

    /// Runs cut to the volumes and to whole bitmap blocks, others dropped: a peer's numbers are not
    /// trusted.
    fn sane_runs(&self, runs: &[DoubtRun]) -> Vec<DoubtRun> {
        let Some(known) = &self.configuration else { return Vec::new() };
        runs.iter()
            .filter_map(|run| {
                let sectors = known.volume(run.volume)?.kept_sectors();
                let end = run.end.min(sectors);
                (run.first < end).then_some(DoubtRun { end, ..*run })
            })
            .collect()
    }

    /// Says `Gathered` once everything is known.
    pub(super) fn check_gathered(&mut self, out: &mut Out) {
        let Some(known) = self.configuration.clone() else { return };
        if !self.is_primary() || self.gathered == Some(known.reign) || !self.own_ready {
            return;
        }
        let own_missing = known.is_in_sync(self.node) && !self.is_own_in_sync();
        let all = known
            .in_sync()
            .filter(|&node| node != self.node)
            .all(|node| self.peers.get(&node).is_some_and(|peer| peer.gathered && peer.kept));
        if own_missing || !all {
            return;
        }
        if self.is_own_in_sync() {
            let own = self.doubt.runs();
            self.reconcile.add_runs(&own);
        }
        self.gathered = Some(known.reign);
        self.compare_effects(out);
        out.push(ShardOutput::Member(FromShard::Gathered { reign: known.reign }));
    }

    pub(super) fn on_serve(&mut self, reign: Epoch, out: &mut Out) {
        if self.reign() != reign || !self.is_primary() || self.gathered != Some(reign) {
            return;
        }
        self.serving = Some(reign);
        if self.configuration.as_ref().is_some_and(|known| known.may_have_parted()) {
            self.forget_ways();
        }
        self.retry_waiting(out);
    }

    /// Answers a primary's question: what is in doubt here, or dirty for `bits_of`.
    pub(super) fn answer_gather(
        &self,
        primary: NodeId,
        sequence: u64,
        bits_of: Option<NodeId>,
        out: &mut Out,
    ) {
        if bits_of.is_none() {
            self.tell_effects(primary, sequence, out);
        }
        let runs = match bits_of {
            None => {
                let mut runs = self.mark_hot(self.doubt.runs());
                runs.extend(self.own_changes());
                runs
            }
            Some(node) => self.dirty_runs(node),
        };
        let mut parts: Vec<Vec<DoubtRun>> =
            runs.chunks(RUNS_PER_PART).map(<[DoubtRun]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        for (at, runs) in parts.into_iter().enumerate() {
            let message = ShardMessage::Doubt { sequence, runs, last: at + 1 == count };
            self.send(primary, message, None, out);
        }
    }

    /// Says of doubt whether it is in the activity log: a write that never found room there is not.
    fn mark_hot(&self, runs: Vec<DoubtRun>) -> Vec<DoubtRun> {
        let mut marked: Vec<DoubtRun> = Vec::new();
        for run in runs {
            let mut first = run.first;
            while first < run.end {
                let extent = first / self.geometry.extent_sectors;
                let end = run.end.min((extent + 1) * self.geometry.extent_sectors);
                let hot = self.log.is_hot((run.volume, extent));
                match marked.last_mut() {
                    Some(last) if first > run.first && last.hot == hot => last.end = end,
                    _ => marked.push(DoubtRun { first, end, hot, ..run }),
                }
                first = end;
            }
        }
        marked
    }

    /// What this copy alone may hold: it went on without those that are in sync now, and was given up. Known
    /// only while it is not in sync itself.
    fn own_changes(&self) -> Vec<DoubtRun> {
        let Some(known) = &self.configuration else { return Vec::new() };
        if known.is_in_sync(self.node) || !known.may_have_parted() {
            return Vec::new();
        }
        known.in_sync().flat_map(|node| self.dirty_runs(node)).collect()
    }

    /// Sectors that `node` lacks, in whole blocks.
    #[must_use]
    pub fn changed_sectors(&self, node: NodeId) -> u64 {
        let Some(known) = &self.configuration else { return 0 };
        let volumes = known.volumes.iter();
        volumes
            .map(|entry| self.bitmaps.dirty_sectors(node, entry.volume, entry.kept_sectors()))
            .sum()
    }

    fn dirty_runs(&self, node: NodeId) -> Vec<DoubtRun> {
        let Some(known) = &self.configuration else { return Vec::new() };
        let mut runs: Vec<DoubtRun> = Vec::new();
        for entry in &known.volumes {
            let mut from = 0;
            while let Some((first, end)) =
                self.bitmaps.next_dirty(node, entry.volume, from, entry.kept_sectors())
            {
                runs.push(DoubtRun {
                    volume: entry.volume,
                    first,
                    end,
                    compare: false,
                    hot: false,
                });
                from = end;
            }
        }
        runs
    }
}

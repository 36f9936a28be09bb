//! A new configuration: what changes for the shard.
//!
//! Always, once `Installed` is said: older reigns are refused; what was un-retired under another primary
//! is in doubt; for every replica outside the in-sync set, everything un-retired, open or in doubt here is
//! dirty.

use super::op::{Kind, Origin, Own};
use super::{Out, Shard};
use crate::door::{FromShard, ShardOutput, Slot};
use crate::identity::is_another_copy;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{AnswerError, Epoch, NodeId, Span, VolumeId};
use wire::Configuration;

impl Shard {
    pub(super) fn install(
        &mut self,
        new: Arc<Configuration>,
        slots: &[Slot],
        reigns: bool,
        leaves: bool,
        out: &mut Out,
    ) {
        let (old_epoch, old_reign) = (self.epoch(), self.reign());
        if self.configuration.is_some() && new.epoch <= old_epoch {
            out.push(ShardOutput::Member(FromShard::Installed { epoch: new.epoch }));
            return;
        }
        let was_primary = self.is_primary();
        // Reigns of another side of the history have numbers of their own: that may be a lower one, or the same.
        let new_reign = new.reign > old_reign || leaves;
        let reigns = reigns && new.primary == Some(self.node);
        if was_primary && (new_reign || !reigns) {
            out.push(ShardOutput::Mark("primary no more"));
            self.abandon(out);
        }
        self.end_sessions(&new, leaves, out);
        let settled = self.change_doubt(new.epoch, new_reign, out);
        if self.configuration.as_ref().is_some_and(|old| old.volumes != new.volumes) {
            self.resized = new.epoch;
        }
        let was_in_sync = self.configuration.as_ref().is_some_and(|old| old.is_in_sync(self.node));
        let forks = self.configuration.as_ref().is_some_and(|old| old.fork < new.fork);
        let old = self.configuration.replace(Arc::clone(&new));
        self.reigns = reigns;
        self.limit_syncs(&new);
        self.install_effects(was_in_sync, new_reign);
        if self.own_left(&new) {
            self.kept = false;
        }
        self.keep_untold(new_reign, was_in_sync && self.own_left(&new), leaves);
        self.cut_beyond(&new);
        self.note_rooms(&new);
        self.keep_growths(&new);
        self.install_bits(&new, slots, &settled, out);
        if let Some(old) = &old {
            self.forget_resyncs(old, &new, out);
        }
        self.drop_outsiders(&new, out);
        self.seats.retain(|node| new.member(node).is_some());
        for node in new.replicas() {
            self.seats.give(node);
        }
        out.push(ShardOutput::Member(FromShard::Installed { epoch: new.epoch }));
        self.expect_written(new_reign);
        self.fence(&new);
        if let Some(old) = old {
            self.note_rights(&old, &new);
        }
        if new_reign && reigns {
            self.begin_reign();
        } else if forks {
            self.once.forked_at = Some(self.now);
            self.forget_ways();
        }
        self.unforward_all_but(new.primary.filter(|&node| node != self.node), out);
        self.retry_waiting(out);
        self.check_gathered(out);
        self.check_remembering(out);
        self.make_room(out);
        self.save_bitmaps(out);
    }

    /// Who saw a history that this node leaves, or writes that are gone, is told so.
    fn end_sessions(&mut self, new: &Configuration, leaves: bool, out: &mut Out) {
        let lost = self.configuration.as_ref().is_some_and(|old| old.lost < new.lost);
        if leaves {
            out.push(ShardOutput::Mark("requests of a history that was given up fail"));
            self.lose_sessions(out);
            self.forget_moment();
        } else if lost && self.told {
            out.push(ShardOutput::Mark("sessions from before the loss of all caches end"));
            self.lose_sessions(out);
        }
    }

    /// Everything that waits here was asked by whoever saw what is not so any more, a history that this node
    /// leaves or writes that are gone: it is not carried out.
    fn lose_sessions(&mut self, out: &mut Out) {
        let forwards = core::mem::take(&mut self.forwards);
        self.forwarded_bytes = 0;
        let waiting = core::mem::take(&mut self.waiting);
        let clients =
            waiting.into_iter().chain(forwards.into_values().map(|forward| forward.client));
        for client in clients.collect::<Vec<_>>() {
            match client.origin {
                Origin::Local(_) => {
                    self.answer(&client, Err(AnswerError::SessionLost), None, out);
                    self.release(client.request.buffer, out);
                }
                Origin::Peer { .. } => self.give_back(client, out),
            }
        }
    }

    /// From now on requests are judged by these reservations. What was let in before may be a host's that has lost its right.
    fn fence(&mut self, new: &Configuration) {
        if new.reservations.is_empty() {
            return;
        }
        let open = |op: &super::op::Op| {
            let is_open = matches!(&op.kind, Kind::Write(write) if !write.complete);
            is_open && op.client.is_some() && new.reservations_of(op.volume).is_some()
        };
        let open = self.ops.iter().filter(|(_, op)| open(op)).map(|(&id, _)| id).collect();
        self.fence = Some((new.epoch, open));
    }

    /// Says so when that has its end.
    pub(super) fn tell_fenced(&mut self, out: &mut Out) {
        let Some((epoch, open)) = &mut self.fence else { return };
        let ops = &self.ops;
        open.retain(|id| {
            ops.get(id).is_some_and(|op| matches!(&op.kind, Kind::Write(write) if !write.complete))
        });
        if open.is_empty() {
            out.push(ShardOutput::Member(FromShard::Fenced { epoch: *epoch }));
            self.fence = None;
        }
    }

    /// Every shard has an equal part of what resyncs may take.
    fn limit_syncs(&mut self, new: &Configuration) {
        let shards = u64::from(self.shards);
        let (most, least) = (new.options.resync_rate_max, new.options.resync_rate_min);
        self.pace.limit(most.div_ceil(shards), least.div_ceil(shards), self.now);
    }

    fn own_left(&self, new: &Configuration) -> bool {
        !new.is_in_sync(self.node)
    }

    /// What was settled ahead of this configuration is in doubt no more, and told; what a reign left open is from now on. What
    /// was settled in another reign was so on its own side of the history, and this may be another one of the same number.
    fn change_doubt(
        &mut self,
        epoch: Epoch,
        new_reign: bool,
        out: &mut Out,
    ) -> Vec<(VolumeId, u64, u64)> {
        if new_reign {
            self.doubt.forget_ahead();
        }
        let settled = self.settle_ahead(epoch);
        if new_reign {
            self.doubt_unretired(out);
        }
        settled
    }

    /// What the last primary left open here may be missing elsewhere.
    fn doubt_unretired(&mut self, out: &mut Out) {
        let mut unretired = core::mem::take(&mut self.unretired);
        self.local.failed_here.clear();
        if !unretired.is_empty() {
            out.push(ShardOutput::Mark("un-retired writes turn into doubt"));
        }
        for (_, (volume, span)) in unretired.drain() {
            self.doubt.add(volume, span.first(), span.end(), false);
            let extent = self.extent_of(volume, span);
            self.log.unhold(extent);
        }
    }

    fn note_rooms(&mut self, new: &Configuration) {
        let rooms = &mut self.local.rooms;
        rooms.retain(|&volume, _| new.volume(volume).is_some());
        for entry in &new.volumes {
            let room = rooms.entry(entry.volume).or_default();
            *room = entry.kept_sectors().max(*room);
        }
    }

    /// A volume that shrank has nothing in doubt beyond its end.
    fn cut_beyond(&mut self, new: &Configuration) {
        for entry in &new.volumes {
            self.doubt.cut(entry.volume, entry.kept_sectors());
            self.reconcile.cut(entry.volume, entry.kept_sectors());
        }
    }

    fn install_bits(
        &mut self,
        new: &Configuration,
        slots: &[Slot],
        settled: &[(VolumeId, u64, u64)],
        out: &mut Out,
    ) {
        for &slot in slots {
            if self.bitmaps.ensure(slot, new.epoch) && slot.full {
                // What a resync copied so far counts for nothing.
                self.stop_sync(slot.node, out);
            }
        }
        self.bitmaps.retain(|node| new.is_replica(node));
        let mut runs: Vec<(VolumeId, u64, u64)> =
            self.doubt.runs().iter().map(|run| (run.volume, run.first, run.end)).collect();
        let reconcile = self.reconcile.runs();
        runs.extend(reconcile.iter().map(|run| (run.volume, run.first, run.end)));
        runs.extend(settled);
        let open = self.unretired.values().copied().chain(self.open_writes());
        runs.extend(open.map(|(volume, span)| (volume, span.first(), span.end())));
        let keeps_bits = self.has_disk || !slots.is_empty();
        let own = self.node;
        for node in new.replicas().filter(|&node| node != own && !new.is_in_sync(node)) {
            for &(volume, first, end) in runs.iter().filter(|_| keeps_bits) {
                self.bitmaps.set(node, volume, first, end, true);
            }
            self.sync_lacks(node, &runs);
        }
    }

    /// Spans of the writes that this primary has issued and not retired.
    pub(super) fn open_writes(&self) -> impl Iterator<Item = (VolumeId, Span)> + '_ {
        self.ops.values().filter_map(|op| match &op.kind {
            Kind::Write(write) if write.sequence > 0 && !write.retired => {
                Some((op.volume, op.span))
            }
            _ => None,
        })
    }

    /// Nobody waits any more for replicas that are not in the new in-sync set; those that are new in it
    /// are waited for.
    fn drop_outsiders(&mut self, new: &Configuration, out: &mut Out) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if new.is_in_sync(node) {
                if let Some(sync) = peer.sync.take() {
                    peer.last_sync = Some(sync.status(node));
                }
                if let Some(session) = peer.required.take() {
                    // It took part in everything since `Require`; nothing older is in doubt at it. A later process of it is
                    // asked, as is any that comes back: what was hot is in doubt there.
                    peer.gathered = peer.session == Some(session);
                    self.retire_failed();
                }
            } else {
                peer.gathered = false;
                peer.reminded &= peer.required.is_some();
                self.forget_asked_bits(node);
                let Some(peer) = self.peers.get_mut(&node) else { continue };
                if !new.is_replica(node) {
                    peer.required = None;
                    peer.sync = None;
                }
            }
        }
        if !new.is_in_sync(self.node) {
            self.cancel_queued(out);
        }
        let ids: Vec<u64> = self.ops.keys().copied().collect();
        for id in ids {
            self.drop_outsiders_of(id, new, out);
        }
    }

    /// What was done to bring a replica in sync counts no more, here and at the member (`Member::after_install`), if the copy is
    /// another now. Who is not in sync on this side of a fork may have been on another one since it told its doubt here, in the
    /// same session: it is asked anew when it acts on the fork. What it forwarded before may have been carried out there, and
    /// answered: it is given back (`Once::forked_at`).
    fn forget_resyncs(&mut self, old: &Configuration, new: &Configuration, out: &mut Out) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes.into_iter().filter(|&node| is_another_copy(old, new, node)) {
            self.stop_sync(node, out);
            self.unrequire(node, out);
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.ready = peer.ready.filter(|&epoch| epoch >= new.epoch);
            peer.reminded = false;
        }
    }

    fn drop_outsiders_of(&mut self, id: u64, new: &Configuration, out: &mut Out) {
        let own_in = new.is_in_sync(self.node);
        let alone = self.is_alone() && self.is_own_in_sync();
        let left_alone = alone && self.is_left_alone();
        let mut in_sync = new.in_sync();
        let only = in_sync.next().filter(|_| in_sync.next().is_none());
        let only = only.and_then(|node| self.seats.find(node));
        let mut outside: Vec<(u32, bool)> = Vec::new();
        for (&node, peer) in &self.peers {
            if !new.is_in_sync(node)
                && peer.required.is_none()
                && let Some(seat) = self.seats.find(node)
            {
                outside.push((seat, new.is_replica(node)));
            }
        }
        let Some(op) = self.ops.get_mut(&id) else { return };
        match &mut op.kind {
            Kind::Write(write) => {
                for (seat, replica) in outside {
                    write.disk.drop(seat);
                    write.memory.drop(seat);
                    if !replica {
                        write.syncing.drop(seat);
                    }
                }
                if !own_in && write.own != Own::Done {
                    write.own = Own::None;
                }
                if left_alone && write.own == Own::Failed {
                    self.fail_on_only_disk(id, out);
                }
                self.settle_write(id, out);
            }
            Kind::Flush(flush) => {
                for (seat, _) in outside {
                    flush.awaiting.drop(seat);
                    flush.failed.drop(seat);
                }
                if !own_in {
                    flush.own = Own::None;
                }
                if alone {
                    self.settle_own_flush(id, out);
                }
                self.settle_failed_flush(id, only, out);
                self.settle_flush(id, out);
            }
            Kind::Read(read) if read.source.is_some_and(|source| !new.is_in_sync(source)) => {
                self.read_elsewhere(id, out);
            }
            Kind::Read(_) => self.start_read(id, out),
            Kind::Copy(_) => self.copy_restart(id, out),
        }
    }
}

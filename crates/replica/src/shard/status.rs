//! Time, and what can be seen of a shard from outside.

use super::op::Kind;
use super::{Out, Shard};
use crate::door::{FromShard, ShardOutput};
use alloc::vec::Vec;
use base::{Duration, Instant, NodeId};

/// How far a resync is, in this shard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SyncStatus {
    /// The target.
    pub node: NodeId,
    /// Sectors copied or found equal.
    pub done: u64,
    /// Of these, sectors that were sent because they differed, or might.
    pub sent: u64,
    /// Sectors to copy or compare when it started.
    pub total: u64,
    /// When it started.
    pub since: Instant,
}

/// What a shard is doing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ShardStatus {
    /// Operations open here as primary, copies included.
    pub open: usize,
    /// Requests that wait for a primary, or for it to be ready.
    pub waiting: usize,
    /// Requests of this node that another node's shard has.
    pub forwarded: usize,
    /// Sectors in doubt on this node's disk.
    pub doubt_sectors: u64,
    /// Sectors that the members are yet to be reconciled on.
    pub reconcile_sectors: u64,
    /// Resyncs driven from here.
    pub syncs: Vec<SyncStatus>,
    /// The last resync of each peer that was driven from here and came to its end.
    pub syncs_done: Vec<SyncStatus>,
    /// Hot extents.
    pub hot: usize,
    /// Hot extents allowed.
    pub hot_max: usize,
    /// Answers that wait for the lease or a cut.
    pub held: usize,
    /// Requests may start here: this node is primary and ready.
    pub serving: bool,
    /// The volume that is being compared by the present verify, and up to which sector it is; `None`: no
    /// verify.
    pub verify: Option<(base::VolumeId, u64)>,
    /// Volumes that grow by this primary, and how many of the sectors that are added are zero on every in-sync
    /// disk, as far as they are this shard's.
    pub growths: Vec<(base::VolumeId, u64)>,
}

impl Shard {
    /// What it is doing now.
    #[must_use]
    pub fn status(&self) -> ShardStatus {
        let (hot, hot_max) = self.log.fill();
        let syncs = self
            .peers
            .iter()
            .filter_map(|(&node, peer)| Some(peer.sync.as_ref()?.status(node)))
            .collect();
        let syncs_done = self.peers.values().filter_map(|peer| peer.last_sync).collect();
        ShardStatus {
            open: self.ops.len(),
            waiting: self.waiting.len(),
            forwarded: self.forwards.len(),
            doubt_sectors: self.doubt.sectors(),
            reconcile_sectors: self.reconcile.sectors(),
            syncs,
            syncs_done,
            hot,
            hot_max,
            held: self.held.len(),
            serving: self.may_start() && self.may_answer(),
            verify: self.verify.as_ref().map(|run| (run.volume, run.next)),
            growths: self.growth_status(),
        }
    }

    /// Whether a block may differ between this in-sync replica and `node`, as far as this shard knows:
    /// dirty, un-retired or in doubt. For checks.
    #[must_use]
    pub fn may_differ(&self, node: NodeId, volume: base::VolumeId, first: u64, end: u64) -> bool {
        self.bitmaps.next_dirty(node, volume, first, end).is_some()
            || self.doubt.overlaps(volume, first, end)
            || self.reconcile.overlaps(volume, first, end)
            || self
                .unretired
                .values()
                .any(|&(v, span)| v == volume && span.first() < end && first < span.end())
            || self.writes(volume, first, end)
    }

    /// Whether a write is open there that this node orders: where a disk fails it, it may come again. For checks.
    #[must_use]
    pub fn writes(&self, volume: base::VolumeId, first: u64, end: u64) -> bool {
        self.ops.values().any(|op| {
            matches!(op.kind, Kind::Write(_))
                && op.volume == volume
                && op.span.first() < end
                && first < op.span.end()
        })
    }

    /// The epoch of the last loss of all caches that it has heard of; 0: of none.
    #[must_use]
    pub fn lost(&self) -> base::Epoch {
        self.configuration.as_ref().map_or(base::Epoch(0), |known| known.lost)
    }

    /// Whether a request could be answered here at this reading of the node's clock. For checks.
    #[must_use]
    pub fn would_answer(&self, now: Instant) -> bool {
        self.is_primary() && self.may_start() && now < self.lease_until
    }

    /// Whether nothing of this node's disk is queued or in flight. For checks, and for a stop in good
    /// order.
    #[must_use]
    pub fn is_disk_idle(&self) -> bool {
        self.local.is_idle()
    }

    pub(super) fn tick_length(&self) -> Duration {
        Duration(self.timing.heartbeat.0 / 5)
    }

    /// When time alone would change something: `step` is to be called then, with `Wake` if with nothing
    /// else.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let busy = !self.ops.is_empty()
            || !self.waiting.is_empty()
            || !self.forwards.is_empty()
            || self.verify.is_some()
            || self.is_growing()
            || self.draining.is_some()
            || (self.is_primary() && !self.reconcile.is_empty())
            || self.peers.values().any(|peer| peer.sync.is_some())
            || self.now < self.only_disk.again_at
            || self.cools_again()
            || self.owes_retirement();
        let tick = self.last_tick + self.tick_length();
        let syncs = self.peers.values().any(|peer| peer.sync.is_some());
        let copies = syncs || self.verify.is_some() || self.is_growing();
        let rested = self.pace.wake_at().filter(|&wake| copies && wake > self.now);
        let due = if syncs { self.pace.sync_wake_at(self.now) } else { None };
        busy.then(|| rested.into_iter().chain(due).fold(tick, Instant::min))
    }

    /// What is due now and then.
    pub(super) fn tick(&mut self, out: &mut Out) {
        self.tell_retired(false, out);
        self.check_drained(out);
        if self.now.since(self.last_tick) < self.tick_length() {
            return;
        }
        self.last_tick = self.now;
        self.tell_retired(true, out);
        self.check_late(out);
        self.retry_copies(out);
        self.fail_without_quorum(out);
        self.answer_held(out);
        if !self.waiting.is_empty() {
            self.retry_waiting(out);
        }
        if self.is_primary() {
            self.want_primary(out);
        }
        self.check_remembering(out);
        self.check_settled(out);
        if !self.forwards.is_empty() {
            let lost = self.configuration.as_ref().and_then(|known| known.primary);
            self.unforward_all_but(lost.filter(|&node| node != self.node), out);
        }
    }

    /// Says `Drained` when nothing is open any more.
    fn check_drained(&mut self, out: &mut Out) {
        let Some((reign, number)) = self.draining else { return };
        if reign != self.reign() || !self.is_primary() {
            self.draining = None;
            return;
        }
        // An answer that waits for another in-sync replica must not keep a reign that stands in the way of that:
        // the next primary, which is asked for it again, knows what took effect.
        let held = |id: &u64| self.suspended && self.held.contains(id);
        let open = self.ops.iter().any(|(id, op)| match &op.kind {
            Kind::Copy(_) => false,
            Kind::Write(write) => !(write.retired && held(id)),
            Kind::Flush(_) => !held(id),
            Kind::Read(_) => true,
        });
        if open || self.drained == self.draining {
            return;
        }
        self.tell_retired(true, out);
        self.drained = self.draining;
        out.push(ShardOutput::Member(FromShard::Drained { reign, number }));
    }

    pub(super) fn on_cut(&mut self, number: u64, out: &mut Out) {
        if number >= self.cut {
            self.cut = number + 1;
        }
        out.push(ShardOutput::Member(FromShard::CutReady { number }));
    }
}

//! Resync: bringing a replica up to date, driven by the primary.
//!
//! To copy: what is dirty for the target, and what the target itself holds in doubt. The doubt comes first that
//! fills the target's activity log: what lies elsewhere may find no room until it is settled. Then
//! one pass goes up through the volumes; the target flushes, the bits of what it flushed are cleared, and if
//! nothing is left the shard says `Synced`. Clients' writes go to the target all the while.
//!
//! Always:
//! - a bit is cleared only after the target flushed what was copied, in the session in which it was, and what it
//!   reported of its disk after that is on record here;
//! - in-sync replicas are told to clear only what no client's write of this session touched, because
//!   they cannot see whether the target has that write;
//! - with the session everything about it is forgotten; the bits stay.

use super::copy::Purpose;
use super::op::{Kind, Own};
use super::status::SyncStatus;
use super::{Doubt, Out, Shard};
use crate::door::{FromShard, ShardOutput};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Instant, NodeId, RangeSet, SessionId, Span, VolumeId};
use wire::{DoubtRun, ShardMessage};

/// Copied and not flushed extents at which the target is asked to flush: 64 MiB.
const FLUSH_EXTENTS: u64 = 16;
/// Runs of client writes remembered per volume; beyond it everything counts as written.
const OVERWRITTEN_RUNS_MAX: usize = 65_536;
/// Runs in one `Clean`.
const CLEAN_RUNS: usize = 1000;

type Ranges = BTreeMap<VolumeId, RangeSet>;

/// How far the answer to `Require` is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Include {
    /// Not asked for, or answered.
    Idle,
    /// Complete writes are missing at the target, or something is left to copy.
    Waiting,
    /// The target flushes all it has, under this question.
    Flushing(u64),
}

/// A replica that is being brought up to date.
#[derive(Debug)]
pub(super) struct Sync {
    pub(super) session: SessionId,
    /// The number of the last `Require`.
    required: u64,
    /// The question for the target's doubt.
    gathering: Option<u64>,
    /// A primary without a bitmap: the node that was asked for its bits, and the question.
    asking_bits: Option<(NodeId, u64)>,
    /// ... which was answered.
    bits_known: bool,
    /// ... and what it said is dirty.
    remote: Option<Ranges>,
    /// What only a comparison can settle.
    compare: Doubt,
    /// What the target holds in doubt, and in its log; copied before everything else, then empty.
    doubt: Ranges,
    cursor: (VolumeId, u64),
    in_flight: usize,
    copied: Ranges,
    flushing: Option<(u64, Ranges)>,
    overwritten: Ranges,
    /// Not before, what nobody could give is looked for again.
    rests_until: Instant,
    said: Option<Instant>,
    include: Include,
    pub(super) total: u64,
    pub(super) done: u64,
    /// Of `done`: sectors that were sent; the others were found equal.
    pub(super) sent: u64,
    pub(super) since: Instant,
}

impl Sync {
    fn new(session: SessionId, now: Instant) -> Sync {
        Sync {
            required: 0,
            session,
            gathering: None,
            asking_bits: None,
            bits_known: false,
            remote: None,
            compare: Doubt::default(),
            doubt: Ranges::new(),
            cursor: (VolumeId(0), 0),
            in_flight: 0,
            copied: Ranges::new(),
            flushing: None,
            overwritten: Ranges::new(),
            rests_until: now,
            said: None,
            include: Include::Idle,
            total: 0,
            done: 0,
            sent: 0,
            since: now,
        }
    }

    pub(super) fn status(&self, node: NodeId) -> SyncStatus {
        let Sync { done, sent, total, since, .. } = *self;
        SyncStatus { node, done, sent, total, since }
    }

    fn is_ready(&self) -> bool {
        self.gathering.is_none() && (self.remote.is_none() || self.bits_known)
    }
}

impl Shard {
    fn sync_mut(&mut self, node: NodeId) -> Option<&mut Sync> {
        self.peers.get_mut(&node)?.sync.as_mut()
    }

    /// Whether `node` is being resynced in this session.
    pub(super) fn syncs_in(&self, node: NodeId, session: SessionId) -> bool {
        self.peers
            .get(&node)
            .is_some_and(|peer| peer.sync.as_ref().is_some_and(|sync| sync.session == session))
    }

    pub(super) fn start_sync(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let Some(known) = self.configuration.clone() else { return };
        let wrong = !self.is_primary() || known.is_in_sync(node) || !known.is_replica(node);
        if wrong
            || self.syncs_in(node, session)
            || !self.is_ready(node)
            || self.peers.get(&node).is_none_or(|peer| peer.session != Some(session))
        {
            return;
        }
        let mut sync = Sync::new(session, self.now);
        let sequence = self.sequence();
        sync.gathering = Some(sequence);
        let epoch = self.epoch();
        self.send(node, ShardMessage::Gather { epoch, sequence, bits_of: None }, None, out);
        if !self.is_own_in_sync() {
            sync.remote = Some(Ranges::new());
        }
        out.push(ShardOutput::Mark("resync starts"));
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.complained = None;
            peer.sync = Some(sync);
        }
        // Who is asked what the target lacks may have refused what is open.
        let open: Vec<_> =
            self.open_writes().map(|(at, span)| (at, span.first(), span.end())).collect();
        self.sync_lacks(node, &open);
        self.ask_bits(node, out);
    }

    /// A primary without a bitmap asks an in-sync replica for its bits: one that acts on this very
    /// configuration, because under an older one the target may have been another, or none.
    fn ask_bits(&mut self, target: NodeId, out: &mut Out) {
        let due = self.sync_mut(target).is_some_and(|sync| {
            sync.remote.is_some() && !sync.bits_known && sync.asking_bits.is_none()
        });
        let epoch = self.epoch();
        let source = self.sources(&[]).into_iter().find(|node| {
            self.peers.get(node).is_some_and(|peer| peer.ready.is_some_and(|ready| ready >= epoch))
        });
        let Some(source) = source.filter(|_| due) else { return };
        let sequence = self.sequence();
        if let Some(sync) = self.sync_mut(target) {
            sync.asking_bits = Some((source, sequence));
        }
        let bits_of = Some(target);
        self.send(source, ShardMessage::Gather { epoch, sequence, bits_of }, None, out);
    }

    /// A source went away: whoever is asked for bits next answers in full.
    pub(super) fn forget_asked_bits(&mut self, source: NodeId) {
        for sync in self.peers.values_mut().filter_map(|peer| peer.sync.as_mut()) {
            if sync.asking_bits.is_some_and(|(asked, _)| asked == source) {
                sync.asking_bits = None;
            }
        }
    }

    /// A target that is late or failed: nothing waits for it any more, what it was sent and has not
    /// answered is dirty for it.
    pub(super) fn stop_sync(&mut self, node: NodeId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.sync.take().is_none() {
            return;
        }
        out.push(ShardOutput::Mark("resync given up"));
        let seat = self.seats.find(node);
        let ids: Vec<u64> = self.ops.keys().copied().collect();
        for id in ids {
            let Some(op) = self.ops.get_mut(&id) else { continue };
            let (volume, span) = (op.volume, op.span);
            match &mut op.kind {
                Kind::Write(write) => {
                    if seat.is_some_and(|seat| write.syncing.drop(seat)) {
                        self.bitmaps.set(node, volume, span.first(), span.end(), true);
                        self.settle_write(id, out);
                    }
                }
                Kind::Copy(_) => self.copy_lost_peer(id, node, out),
                Kind::Read(_) | Kind::Flush(_) => {}
            }
        }
    }

    /// A part of the target's doubt, or of a source's bits.
    pub(super) fn on_sync_doubt(
        &mut self,
        from: NodeId,
        sequence: u64,
        runs: &[DoubtRun],
        last: bool,
    ) {
        let targets: Vec<NodeId> = self.peers.keys().copied().collect();
        for target in targets {
            let Some(sync) = self.sync_mut(target) else { continue };
            if target == from && sync.gathering == Some(sequence) {
                if last {
                    sync.gathering = None;
                }
                self.add_target_doubt(target, runs);
            } else if sync.asking_bits == Some((from, sequence)) {
                if last {
                    sync.asking_bits = None;
                    sync.bits_known = true;
                }
                let remote = sync.remote.get_or_insert_default();
                for run in runs {
                    remote.entry(run.volume).or_default().insert(run.first, run.end);
                }
            } else {
                continue;
            }
            self.count_sync(target);
        }
    }

    fn add_target_doubt(&mut self, target: NodeId, runs: &[DoubtRun]) {
        let block = self.geometry.block_sectors;
        for run in runs {
            let Some(sync) = self.sync_mut(target) else { return };
            // Whole blocks, or else their bits would stay.
            let (first, end) = (run.first / block * block, run.end.next_multiple_of(block));
            if run.hot {
                sync.doubt.entry(run.volume).or_default().insert(first, end);
            }
            if run.compare {
                sync.compare.add(run.volume, run.first, run.end, true);
            } else if let Some(remote) = &mut sync.remote {
                remote.entry(run.volume).or_default().insert(run.first, run.end);
            } else {
                self.bitmaps.set(target, run.volume, run.first, run.end, true);
            }
        }
    }

    /// Counts what is dirty, and what is only to be compared.
    fn count_sync(&mut self, target: NodeId) {
        let Some(known) = &self.configuration else { return };
        let Some(sync) = self.peers.get(&target).and_then(|peer| peer.sync.as_ref()) else {
            return;
        };
        let volumes = known.volumes.iter();
        let mut total: u64 =
            volumes.map(|entry| self.lacking(target, entry.volume, 0, entry.kept_sectors())).sum();
        let mut from = (VolumeId(0), 0);
        while let Some((volume, first, end)) = sync.compare.next(from) {
            total += end - first - self.lacking(target, volume, first, end);
            from = (volume, end);
        }
        if let Some(sync) = self.sync_mut(target) {
            sync.total = total;
        }
    }

    /// Sectors of a range that are dirty for the target.
    fn lacking(&self, target: NodeId, volume: VolumeId, first: u64, end: u64) -> u64 {
        let (mut from, mut sum) = (first, 0);
        while let Some((run_first, run_end)) = self.next_lacking(target, volume, from, end) {
            sum += run_end.min(end) - run_first;
            from = run_end;
        }
        sum
    }

    /// The first run in a range that is dirty for the target, by this node's bits or by those that a source
    /// told; it may end beyond the range.
    fn next_lacking(
        &self,
        target: NodeId,
        volume: VolumeId,
        from: u64,
        end: u64,
    ) -> Option<(u64, u64)> {
        let sync = self.peers.get(&target)?.sync.as_ref()?;
        match &sync.remote {
            Some(remote) => remote.get(&volume)?.next_run(from).filter(|&(first, _)| first < end),
            None => self.bitmaps.next_dirty(target, volume, from, end),
        }
    }

    /// What is not settled yet may be as a member has it that did not say what the target lacks.
    pub(super) fn sync_lacks(&mut self, target: NodeId, runs: &[(VolumeId, u64, u64)]) {
        let block = self.geometry.block_sectors;
        let Some(remote) = self.sync_mut(target).and_then(|sync| sync.remote.as_mut()) else {
            return;
        };
        for &(volume, first, end) in runs {
            let (first, end) = (first / block * block, end.next_multiple_of(block));
            remote.entry(volume).or_default().insert(first, end);
        }
        self.count_sync(target);
    }

    /// A client's write goes to the target too.
    pub(super) fn sync_overwrites(&mut self, node: NodeId, volume: VolumeId, span: Span) {
        let Some(sync) = self.sync_mut(node) else { return };
        let set = sync.overwritten.entry(volume).or_default();
        if set.run_count() >= OVERWRITTEN_RUNS_MAX {
            set.insert(0, u64::MAX / 512);
        }
        set.insert_span(span);
    }

    /// What was copied of this span is not what is here any more: no flush under way makes it clean.
    pub(super) fn sync_anew(&mut self, volume: VolumeId, span: Span) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.not_copied(node, volume, span);
        }
    }

    fn not_copied(&mut self, node: NodeId, volume: VolumeId, span: Span) {
        let Some(sync) = self.sync_mut(node) else { return };
        if let Some(set) = sync.copied.get_mut(&volume) {
            set.remove_span(span);
        }
        if let Some((_, ranges)) = &mut sync.flushing
            && let Some(set) = ranges.get_mut(&volume)
        {
            set.remove_span(span);
        }
    }

    /// Nobody could give this span: it stays dirty for this target. Of another one, which was given it before, that says nothing.
    pub(super) fn sync_rests(&mut self, node: NodeId, volume: VolumeId, span: Span) {
        let until = self.now + self.timing.peer_late;
        self.not_copied(node, volume, span);
        let Some(sync) = self.sync_mut(node) else { return };
        sync.rests_until = until;
        if let Some(remote) = &mut sync.remote {
            remote.entry(volume).or_default().insert_span(span);
        } else {
            self.bitmaps.set(node, volume, span.first(), span.end(), true);
        }
    }

    /// The next range to copy at or after the cursor, in the target's doubt while there is some.
    fn next_to_copy(
        &self,
        node: NodeId,
        cursor: (VolumeId, u64),
        window: u64,
    ) -> Option<(VolumeId, Span, bool)> {
        let known = self.configuration.as_ref()?;
        let sync = self.peers.get(&node)?.sync.as_ref()?;
        for entry in known.volumes.iter().filter(|entry| entry.volume >= cursor.0) {
            let mut from = if entry.volume == cursor.0 { cursor.1 } else { 0 };
            while from < entry.kept_sectors() {
                let mut end = entry.kept_sectors();
                if !sync.doubt.is_empty() {
                    let doubt = sync.doubt.get(&entry.volume).and_then(|set| set.next_run(from));
                    let Some((first, stop)) = doubt else { break };
                    (from, end) = (first.max(from), stop.min(end));
                }
                if let Some((span, compares)) =
                    self.next_between(node, entry.volume, from, end, window)
                {
                    return Some((entry.volume, span, compares));
                }
                from = end.max(from + 1);
            }
        }
        None
    }

    /// The first piece of `from..end` that is dirty for `node`, or to be compared.
    fn next_between(
        &self,
        node: NodeId,
        volume: VolumeId,
        from: u64,
        end: u64,
        window: u64,
    ) -> Option<(Span, bool)> {
        let sync = self.peers.get(&node)?.sync.as_ref()?;
        let dirty = self.next_lacking(node, volume, from, end);
        let compare = sync
            .compare
            .next((volume, from))
            .filter(|&(found, _, _)| found == volume)
            .map(|(_, first, end)| (first, end));
        let (first, stop, compares) = match (dirty, compare) {
            (None, None) => return None,
            (Some((first, stop)), None) => (first, stop, false),
            (None, Some((first, stop))) => (first, stop, true),
            (Some(dirty), Some(compare)) if dirty.0 <= compare.0 => (dirty.0, dirty.1, false),
            (Some(dirty), Some(compare)) => (compare.0, compare.1.min(dirty.0), true),
        };
        let stop = stop.min(end);
        (first < stop).then(|| (Shard::piece_of(window, first, stop), compares))
    }

    pub(super) fn pump_syncs(&mut self, out: &mut Out) {
        if self.sync_paused || !self.reconcile.is_empty() {
            return;
        }
        let mut targets: Vec<(NodeId, bool, u64)> = self
            .peers
            .iter()
            .filter_map(|(&node, peer)| {
                let sync = peer.sync.as_ref()?;
                Some((node, sync.is_ready(), sync.done))
            })
            .collect();
        // Who is behind goes first: where few copies may be made, each target gets its share.
        targets.sort_by_key(|&(_, _, done)| done);
        for (target, ready, _) in targets {
            if ready {
                self.pump_sync(target, out);
            } else {
                self.ask_bits(target, out);
            }
        }
    }

    fn pump_sync(&mut self, target: NodeId, out: &mut Out) {
        if !self.may_sync(target) {
            return;
        }
        loop {
            let may_begin = self.pace.sync_may_begin(self.now);
            let window = self.pace.sync_sectors(self.now);
            let Some(sync) = self.sync_mut(target) else { return };
            if !may_begin && sync.in_flight > 0 {
                return;
            }
            let (cursor, session) = (sync.cursor, sync.session);
            let next = self.next_to_copy(target, cursor, window);
            let Some((volume, span, compare)) = next else {
                if self.end_pass(target, out) {
                    continue;
                }
                return;
            };
            let Some(sync) = self.sync_mut(target) else { return };
            if !may_begin {
                // Where the search goes on when it may.
                sync.cursor = (volume, span.first());
                return;
            }
            sync.cursor = (volume, span.end());
            sync.in_flight += 1;
            self.pace.sync_begins(self.now, u64::from(span.count()));
            self.queue_copy(Purpose::Sync { node: target, session, compare }, volume, span, out);
        }
    }

    /// Whether copies may go to `target`: it acts on the present configuration, so that it marks what it
    /// copies for every replica outside the in-sync set; and somebody can be read.
    pub(super) fn may_sync(&self, target: NodeId) -> bool {
        let epoch = self.epoch();
        self.peers.get(&target).is_some_and(|peer| peer.ready.is_some_and(|ready| ready >= epoch))
            && !self.sources(&[]).is_empty()
    }

    /// Nothing is left above the cursor. True if there is more to look for at once: the target's doubt is
    /// settled.
    fn end_pass(&mut self, target: NodeId, out: &mut Out) -> bool {
        let Some(sync) = self.sync_mut(target) else { return false };
        if sync.in_flight > 0 || sync.flushing.is_some() {
            return false;
        }
        let unflushed = sync.copied.values().any(|set| !set.is_empty());
        if unflushed {
            self.flush_target(target, out);
            return false;
        }
        let window = self.geometry.copy_sectors;
        let more = self.next_to_copy(target, (VolumeId(0), 0), window).is_some();
        let now = self.now;
        let Some(sync) = self.sync_mut(target) else { return false };
        if more && now < sync.rests_until {
            return false;
        }
        if more || !sync.doubt.is_empty() {
            sync.cursor = (VolumeId(0), 0);
            if !more {
                sync.doubt.clear();
            }
            return !more;
        }
        let retry = self.timing.peer_late;
        if self.peers.get(&target).is_some_and(|peer| peer.required.is_some()) {
            self.flush_before_include(target, out);
            return false;
        }
        let Some(sync) = self.sync_mut(target) else { return false };
        if sync.said.is_none_or(|said| now.since(said) >= retry) {
            sync.said = Some(now);
            let session = sync.session;
            out.push(ShardOutput::Member(FromShard::Synced { peer: target, session }));
        }
        false
    }

    /// `Require` was asked and nothing is left to copy. Once the target has every complete write it flushes:
    /// what clients flushed without it must not be in its cache only when it counts.
    fn flush_before_include(&mut self, target: NodeId, out: &mut Out) {
        let Some(seat) = self.seats.find(target) else { return };
        if self.sync_mut(target).is_none_or(|sync| sync.include != Include::Waiting) {
            return;
        }
        let lacks = self.ops.values().any(|op| match &op.kind {
            Kind::Write(write) => {
                write.complete && (write.disk.has(seat) || write.syncing.has(seat))
            }
            _ => false,
        });
        if lacks {
            return;
        }
        let (epoch, sequence) = (self.epoch(), self.sequence());
        let Some(sync) = self.sync_mut(target) else { return };
        sync.include = Include::Flushing(sequence);
        self.send(target, ShardMessage::Flush { epoch, sequence }, None, out);
    }

    fn flush_target(&mut self, target: NodeId, out: &mut Out) {
        let (epoch, sequence) = (self.epoch(), self.sequence());
        let Some(sync) = self.sync_mut(target) else { return };
        let copied = core::mem::take(&mut sync.copied);
        sync.flushing = Some((sequence, copied));
        self.send(target, ShardMessage::Flush { epoch, sequence }, None, out);
    }

    /// The target flushed; true if the flush was one of a resync.
    pub(super) fn on_sync_flushed(&mut self, node: NodeId, sequence: u64, out: &mut Out) -> bool {
        let Some(sync) = self.sync_mut(node) else { return false };
        if sync.include == Include::Flushing(sequence) {
            sync.include = Include::Idle;
            let session = sync.session;
            let number = sync.required;
            out.push(ShardOutput::Member(FromShard::Required { peer: node, session, number }));
            return true;
        }
        if sync.flushing.as_ref().is_none_or(|(asked, _)| *asked != sequence) {
            return false;
        }
        let session = sync.session;
        out.push(ShardOutput::Member(FromShard::Flushed { peer: node, session, sequence }));
        true
    }

    /// What the target reported of its disk since it flushed is known for good: were the disk put back to before that,
    /// it would be noticed. Only now its bits are cleared.
    pub(super) fn on_vouched(
        &mut self,
        node: NodeId,
        session: SessionId,
        sequence: u64,
        out: &mut Out,
    ) {
        let Some(sync) = self.sync_mut(node).filter(|sync| sync.session == session) else { return };
        if sync.flushing.as_ref().is_none_or(|(asked, _)| *asked != sequence) {
            return;
        }
        let Some((_, ranges)) = sync.flushing.take() else { return };
        let mut clean: Ranges = ranges.clone();
        for (volume, set) in &mut clean {
            for (first, end) in sync.overwritten.get(volume).into_iter().flat_map(RangeSet::iter) {
                set.remove(first, end);
            }
        }
        for (&volume, set) in &ranges {
            for (first, end) in set.iter() {
                self.clear_dirty(node, volume, first, end);
            }
        }
        self.tell_clean(node, &clean, out);
        self.tell_settled(node, &ranges, out);
    }

    /// What was copied to the target and flushed there is the same as elsewhere; whatever it misses from
    /// now on is dirty for it. So it may drop its own doubt there, which frees its activity log.
    fn tell_settled(&self, target: NodeId, ranges: &Ranges, out: &mut Out) {
        let epoch = self.epoch();
        for (&volume, set) in ranges {
            for (first, end) in set.iter() {
                let mut at = first;
                while at < end {
                    let span = self.piece(at, end);
                    at = span.end();
                    self.send(target, ShardMessage::Settled { epoch, volume, span }, None, out);
                }
            }
        }
    }

    fn clear_dirty(&mut self, node: NodeId, volume: VolumeId, first: u64, end: u64) {
        if let Some(remote) = self.sync_mut(node).and_then(|sync| sync.remote.as_mut()) {
            if let Some(set) = remote.get_mut(&volume) {
                set.remove(first, end);
            }
        } else {
            self.clear_bits(node, volume, first, end);
        }
    }

    /// `node` has these sectors. A volume's last block may be cut short by its end.
    pub(super) fn clear_bits(&mut self, node: NodeId, volume: VolumeId, first: u64, end: u64) {
        let size = self.kept_sectors(volume);
        let block = self.geometry.block_sectors;
        let end = if end >= size { size.next_multiple_of(block) } else { end };
        self.bitmaps.set(node, volume, first, end, false);
    }

    fn tell_clean(&self, target: NodeId, clean: &Ranges, out: &mut Out) {
        let epoch = self.epoch();
        for node in self.required_peers().into_iter().filter(|&node| node != target) {
            if !self.acts_in_reign(node) {
                continue;
            }
            for (&volume, set) in clean {
                let all: Vec<(u64, u64)> = set.iter().collect();
                for runs in all.chunks(CLEAN_RUNS) {
                    let runs = runs.to_vec();
                    let message = ShardMessage::Clean { epoch, target, volume, runs };
                    self.send(node, message, None, out);
                }
            }
        }
    }

    /// A copy to the target ended, or turned out to be needless.
    pub(super) fn sync_copied(
        &mut self,
        node: NodeId,
        session: SessionId,
        volume: VolumeId,
        span: Span,
        sent: bool,
        out: &mut Out,
    ) {
        if !self.syncs_in(node, session) {
            return;
        }
        let flush_sectors = FLUSH_EXTENTS * self.geometry.extent_sectors;
        let Some(sync) = self.sync_mut(node) else { return };
        sync.in_flight = sync.in_flight.saturating_sub(1);
        sync.done += u64::from(span.count());
        sync.sent += if sent { u64::from(span.count()) } else { 0 };
        // Copied, it needs no comparison either.
        sync.compare.remove(volume, span);
        sync.copied.entry(volume).or_default().insert_span(span);
        let sectors: u64 = sync.copied.values().map(RangeSet::sectors).sum();
        if sectors >= flush_sectors && sync.flushing.is_none() {
            self.flush_target(node, out);
        }
    }

    /// A copy to the target was not made.
    pub(super) fn sync_not_copied(&mut self, node: NodeId, session: SessionId) {
        if let Some(sync) = self.sync_mut(node)
            && sync.session == session
        {
            sync.in_flight = sync.in_flight.saturating_sub(1);
        }
    }

    /// The peer's include is about to be proposed: every incomplete write waits for it.
    /// `Required` is said when the target has every complete one (`flush_before_include`).
    pub(super) fn on_require(
        &mut self,
        node: NodeId,
        session: SessionId,
        number: u64,
        out: &mut Out,
    ) {
        if !self.is_primary() || !self.syncs_in(node, session) {
            return;
        }
        let seat = self.seats.give(node);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.required = Some(session);
            if let Some(sync) = &mut peer.sync {
                sync.include = Include::Waiting;
                sync.required = number;
            }
        }
        for op in self.ops.values_mut() {
            if let Kind::Write(write) = &mut op.kind
                && write.syncing.drop(seat)
            {
                write.disk.add(seat);
                write.retired = false;
                if write.early {
                    write.memory.add(seat);
                }
                if write.sequence > 0 {
                    self.unretired_own.insert(write.sequence, ());
                }
            }
        }
        self.remind(node, out);
    }

    pub(super) fn on_unrequire(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.required == Some(session) {
            self.unrequire(node, out);
        }
    }

    /// Nobody waits any more for a replica that was about to be in sync.
    pub(super) fn unrequire(&mut self, node: NodeId, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.required.take().is_none() {
            return;
        }
        // What it misses from now on it gets as bytes, without names.
        peer.reminded = false;
        if let Some(sync) = &mut peer.sync {
            sync.include = Include::Idle;
        }
        let syncs = peer.sync.is_some();
        let Some(seat) = self.seats.find(node) else { return };
        let left_alone = self.is_left_alone() && self.is_own_in_sync();
        let ids: Vec<u64> = self.ops.keys().copied().collect();
        for id in ids {
            let Some(op) = self.ops.get_mut(&id) else { continue };
            let (volume, span) = (op.volume, op.span);
            match &mut op.kind {
                Kind::Write(write) => {
                    write.memory.drop(seat);
                    if write.disk.drop(seat) {
                        if syncs {
                            write.syncing.add(seat);
                        } else {
                            self.bitmaps.set(node, volume, span.first(), span.end(), true);
                        }
                    }
                    if left_alone && write.own == Own::Failed {
                        self.fail_on_only_disk(id, out);
                    }
                    self.settle_write(id, out);
                }
                Kind::Flush(flush) => {
                    flush.awaiting.drop(seat);
                    self.settle_flush(id, out);
                }
                Kind::Read(_) | Kind::Copy(_) => {}
            }
        }
    }
}

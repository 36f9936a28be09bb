//! This node's disk, as the shard uses it: overlapping operations one after the other, and no write
//! before its extent is hot.
//!
//! Always: two overlapping operations of which one writes are never in flight together, whoever asked
//! for them, and they reach the disk in the order in which they were asked for.
//!
//! Not here: what follows from an answer (`Shard::on_local`).

use super::activity::Extent;
use super::ids::IdMap;
use super::lock::LockTable;
use super::{Out, Shard};
use crate::door::{DiskAnswer, DiskOp, DiskRequest, FromShard, MetaPage, ShardOutput};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{BufferId, Epoch, NodeId, SessionId, Span, VolumeId};
use wire::Protocol;

/// Who asked, and for what the answer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// An operation of this node as primary.
    Op(u64),
    /// A look of one of its copies, which may have begun anew since, with another part of its range.
    Copy { id: u64, look: u64 },
    /// A message of the primary.
    Peer { node: NodeId, session: SessionId, sequence: u64, kind: PeerAsk },
}

/// What a message of the primary asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PeerAsk {
    Write,
    Read,
    Hash,
    Flush,
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Read,
    Hash,
    Write { buffer: BufferId, durable: bool, release: bool },
    Zero { unmap: bool, durable: bool },
}

impl Action {
    fn changes(self) -> bool {
        matches!(self, Action::Write { .. } | Action::Zero { .. })
    }
}

/// Places where a write failed that are remembered one by one. A disk that fails so many is not read any more at all.
const STALE_MAX: usize = 256;

#[derive(Debug)]
struct LocalOp {
    purpose: Purpose,
    volume: VolumeId,
    span: Span,
    action: Action,
    /// A write that is on stable storage, though not in its place.
    durable: bool,
}

/// What a disk request in flight is for.
#[derive(Debug)]
enum Flight {
    Local(u64),
    Flush { purpose: Purpose, failures: u64 },
    LogPage { volume: VolumeId, page: u32 },
    CoolBitmap,
    CoolFlush { failures: u64 },
    SaveBitmap { volume: VolumeId, slot: u8, page: u64 },
}

/// Extents on their way out of the activity log.
#[derive(Debug)]
struct Cooling {
    victims: Vec<Extent>,
    clock: u64,
    pages_left: usize,
}

/// Everything of this shard that touches the disk.
#[derive(Debug)]
pub(super) struct Local {
    locks: LockTable,
    ops: IdMap<LocalOp>,
    /// Un-retired writes that are carried out if they come again: the own disk failed them, or one that they overlap, and that was
    /// carried out after them for that.
    pub(super) failed_here: BTreeSet<u64>,
    waiting_hot: BTreeMap<Extent, Vec<u64>>,
    flights: IdMap<Flight>,
    cooling: Option<Cooling>,
    /// The flush for extents that were to turn cold failed on the only copy: they are tried again at `OnlyDisk::again_at`.
    cool_again: bool,
    log_failed: bool,
    /// Bitmap pages in flight that `save_bitmaps` wrote. A page is never written twice at once, so
    /// saving and cooling take turns.
    saving: usize,
    save_again: bool,
    /// Buffers that writes in flight still read, each with their number.
    reading: BTreeMap<BufferId, u32>,
    /// Those of them that were given up meanwhile.
    given_up: BTreeSet<BufferId>,
    next: u64,
    /// Protocol B was in force in this process.
    early: bool,
    /// A configuration, and the first operation that was asked for under it: those before are not all on the disk.
    unwritten: Option<(Epoch, u64)>,
    /// The first operation that was asked for in the present reign.
    reign_begins: u64,
    /// Flushes that wait for writes of earlier reigns.
    flushes: Vec<Purpose>,
    /// Flushes that failed. One that was under way then covers nothing for sure: the disk says once what it lost.
    pub(super) flush_failures: u64,
    /// Where a write of this reign that may have been counted as done failed since, and none was carried out after it:
    /// what stands there is older than what clients were told.
    stale: Vec<(VolumeId, Span)>,
    /// There were more such places than are remembered.
    stale_everywhere: bool,
    /// The most sectors that each volume had, as far as this process knows: so far the disk has room for it.
    pub(super) rooms: BTreeMap<VolumeId, u64>,
}

impl Local {
    pub(super) fn new(extent_sectors: u64) -> Local {
        Local {
            locks: LockTable::new(extent_sectors),
            ops: IdMap::new(),
            failed_here: BTreeSet::new(),
            waiting_hot: BTreeMap::new(),
            flights: IdMap::new(),
            cooling: None,
            cool_again: false,
            log_failed: false,
            saving: 0,
            save_again: false,
            reading: BTreeMap::new(),
            given_up: BTreeSet::new(),
            next: 1,
            early: false,
            unwritten: None,
            reign_begins: 0,
            flushes: Vec::new(),
            flush_failures: 0,
            stale: Vec::new(),
            stale_everywhere: false,
            rooms: BTreeMap::new(),
        }
    }

    /// Whether no write of the data is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.flights.is_empty()
    }
}

impl Shard {
    pub(super) fn extent_of(&self, volume: VolumeId, span: Span) -> Extent {
        (volume, span.first() / self.geometry.extent_sectors)
    }

    /// Queues an operation on this node's disk.
    pub(super) fn local(
        &mut self,
        purpose: Purpose,
        volume: VolumeId,
        span: Span,
        action: Action,
        out: &mut Out,
    ) {
        if !self.has_disk {
            if let Action::Write { buffer, release: true, .. } = action {
                out.push(ShardOutput::Release { buffer });
            }
            self.on_local(purpose, DiskAnswer::Failed, out);
            return;
        }
        let id = self.local.next;
        self.local.next += 1;
        if action.changes() {
            let extent = self.extent_of(volume, span);
            self.log.hold(extent);
        }
        self.local.ops.insert(id, LocalOp { purpose, volume, span, action, durable: false });
        if self.local.locks.acquire(id, volume, span, action.changes()) {
            self.local_granted(id, out);
        }
    }

    /// Metadata can not be written any more: no extent turns hot or cold.
    fn log_failed(&mut self, out: &mut Out) {
        self.local.log_failed = true;
        self.fail_waiting_hot(out);
    }

    /// What waits for room in the log, or to be named there, is not carried out.
    fn fail_waiting_hot(&mut self, out: &mut Out) {
        let waiting: Vec<u64> =
            core::mem::take(&mut self.local.waiting_hot).into_values().flatten().collect();
        for id in waiting {
            if self.local.ops.contains_key(&id) {
                self.local_done(id, DiskAnswer::Failed, out);
            }
        }
    }

    fn local_granted(&mut self, id: u64, out: &mut Out) {
        let op = &self.local.ops[&id];
        let (volume, span, changes) = (op.volume, op.span, op.action.changes());
        if changes {
            let extent = self.extent_of(volume, span);
            let doubtful = self.doubtful();
            if !self.log.touch(extent, doubtful) {
                if self.local.log_failed {
                    self.local_done(id, DiskAnswer::Failed, out);
                    return;
                }
                out.push(ShardOutput::Mark("write waits for the activity log"));
                self.local.waiting_hot.entry(extent).or_default().push(id);
                self.write_log(out);
                return;
            }
        } else if self.is_stale(volume, span) || self.is_unlike_told(volume, span) {
            self.local_done(id, DiskAnswer::Failed, out);
            return;
        }
        self.local_submit(id, out);
    }

    /// Number of hot extents that cannot turn cold before something else was written: those in doubt, and on a
    /// replica that is out of sync those that its primary wrote before. It hears that these are everywhere
    /// when it is in sync again.
    fn doubtful(&self) -> usize {
        let known = self.configuration.as_ref();
        let out_of_sync = known.is_some_and(|known| !known.is_in_sync(self.node));
        let mut unretired = BTreeSet::new();
        if out_of_sync {
            unretired.extend(self.unretired.values().map(|&(at, span)| self.extent_of(at, span)));
        }
        if self.doubt.is_empty() && unretired.is_empty() {
            return 0;
        }
        let extent_sectors = self.geometry.extent_sectors;
        self.log.count(|(volume, extent)| {
            let (first, end) = (extent * extent_sectors, (extent + 1) * extent_sectors);
            self.doubt.overlaps(volume, first, end) || unretired.contains(&(volume, extent))
        })
    }

    fn local_submit(&mut self, id: u64, out: &mut Out) {
        let op = &self.local.ops[&id];
        let (volume, span) = (op.volume, op.span);
        let request = match op.action {
            Action::Read => {
                let asker = if let Purpose::Op(asker) = op.purpose { Some(asker) } else { None };
                let asker = asker.and_then(|asker| self.ops.get(&asker));
                let requested = asker.is_some_and(|asker| asker.client.is_some());
                DiskRequest::Read { volume, span, requested }
            }
            Action::Hash => DiskRequest::Hash { volume, span },
            Action::Write { buffer, durable, .. } => {
                *self.local.reading.entry(buffer).or_insert(0) += 1;
                DiskRequest::Write { volume, span, buffer, durable }
            }
            Action::Zero { unmap, durable } => DiskRequest::Zero { volume, span, unmap, durable },
        };
        self.submit(Flight::Local(id), request, out);
    }

    fn submit(&mut self, flight: Flight, request: DiskRequest, out: &mut Out) {
        let op = self.local.next;
        self.local.next += 1;
        self.local.flights.insert(op, flight);
        out.push(ShardOutput::Disk { op: DiskOp(op), request });
    }

    /// Flushes this node's disk for `purpose`: everything answered before this call is covered, and what
    /// clients may have been told of an earlier reign's writes while they were in memory here.
    pub(super) fn local_flush(&mut self, purpose: Purpose, out: &mut Out) {
        if !self.has_disk {
            self.on_local(purpose, DiskAnswer::Failed, out);
        } else if self.owes_earlier_writes() {
            out.push(ShardOutput::Mark("flush waits for writes of an earlier reign"));
            self.local.flushes.push(purpose);
        } else {
            let failures = self.local.flush_failures;
            self.submit(Flight::Flush { purpose, failures }, DiskRequest::Flush, out);
        }
    }

    /// Whether this replica has writes in memory that a primary before this one may have counted as done
    /// (protocol B). Those of this reign the primary waits for by itself. A replica out of sync owes nothing: it is
    /// copied to, and its log may have no room for them before a flush.
    fn owes_earlier_writes(&self) -> bool {
        if !self.local.early {
            return false;
        }
        let known = self.configuration.as_ref();
        let begins = self.local.reign_begins;
        let mut earlier = self.local.ops.iter().take_while(|(id, _)| **id < begins);
        known.is_some_and(|known| known.is_in_sync(self.node))
            && earlier.any(|(_, op)| op.action.changes() && !op.durable)
    }

    /// Flushes that waited go on when they may.
    pub(super) fn flush_what_waited(&mut self, out: &mut Out) {
        if self.local.flushes.is_empty() || (self.has_disk && self.owes_earlier_writes()) {
            return;
        }
        for purpose in core::mem::take(&mut self.local.flushes) {
            self.local_flush(purpose, out);
        }
    }

    /// Writes the log pages that have news.
    pub(super) fn write_log(&mut self, out: &mut Out) {
        if !self.has_disk || self.local.log_failed {
            return;
        }
        if self.log.wants_room() {
            let doubtful = self.doubtful();
            self.log.admit(doubtful);
        }
        if self.log.wants_room() || self.log.wants_spare_room() {
            self.cool(out);
        }
        for (volume, place, bytes) in self.log.take_writes() {
            let MetaPage::Log { page, .. } = place else {
                unreachable!("the log writes log pages")
            };
            let request = DiskRequest::Meta { volume, page: place, bytes };
            self.submit(Flight::LogPage { volume, page }, request, out);
        }
    }

    /// Whether the disk failed and other copies can tell what it may have lost: a flush that works after one that failed
    /// covers nothing of that.
    pub(super) fn has_lost_some(&self) -> bool {
        self.disk_failing && !self.is_alone()
    }

    /// Begins to make room in the log: saves the bitmap pages of extents that nobody uses, then flushes.
    fn cool(&mut self, out: &mut Out) {
        let busy = self.local.cooling.is_some() || self.local.saving > 0;
        if busy || self.local.cool_again || self.has_lost_some() {
            return;
        }
        let extent_sectors = self.geometry.extent_sectors;
        let doubt = &self.doubt;
        let (victims, clock) = self.log.victims(|(volume, extent)| {
            doubt.overlaps(volume, extent * extent_sectors, (extent + 1) * extent_sectors)
        });
        if victims.is_empty() {
            return;
        }
        out.push(ShardOutput::Mark("extents turn cold"));
        let seals = self.configuration.as_ref().is_some_and(|known| known.options.data_checksum);
        let mut pages_left = 0;
        for &(volume, extent) in &victims {
            if seals {
                self.submit(Flight::CoolBitmap, DiskRequest::Seal { volume, extent }, out);
                pages_left += 1;
            }
            let (first, end) = (extent * extent_sectors, (extent + 1) * extent_sectors);
            for (slot, page, bytes) in self.bitmaps.take_unsaved(volume, first, end) {
                let page = MetaPage::Bitmap { slot, page };
                self.submit(Flight::CoolBitmap, DiskRequest::Meta { volume, page, bytes }, out);
                pages_left += 1;
            }
        }
        self.local.cooling = Some(Cooling { victims, clock, pages_left });
        if pages_left == 0 {
            self.flush_for_cooling(out);
        }
    }

    fn flush_for_cooling(&mut self, out: &mut Out) {
        let failures = self.local.flush_failures;
        self.submit(Flight::CoolFlush { failures }, DiskRequest::Flush, out);
    }

    /// Saves every bitmap page that differs from disk; in good order, not needed for safety.
    pub(super) fn save_bitmaps(&mut self, out: &mut Out) {
        if !self.has_disk {
            return;
        }
        if self.local.cooling.is_some() || self.local.saving > 0 {
            self.local.save_again = true;
            return;
        }
        self.local.save_again = false;
        let page_sectors = self.bitmaps.page_sectors();
        for (volume, number) in self.bitmaps.unsaved() {
            let (first, end) = (number * page_sectors, (number + 1) * page_sectors);
            for (slot, page, bytes) in self.bitmaps.take_unsaved(volume, first, end) {
                let flight = Flight::SaveBitmap { volume, slot, page };
                let page = MetaPage::Bitmap { slot, page };
                self.local.saving += 1;
                self.submit(flight, DiskRequest::Meta { volume, page, bytes }, out);
            }
        }
    }

    /// A write of the primary of this reign that is under way here is answered in this session. False: none is.
    pub(super) fn answer_peer_write_in(
        &mut self,
        (node, session): (NodeId, SessionId),
        sequence: u64,
        (volume, span): (VolumeId, Span),
    ) -> bool {
        let begins = self.local.reign_begins;
        // Those of earlier reigns may have the same numbers: they begin anew with each process.
        for (_, op) in self.local.ops.iter_mut().filter(|(id, _)| **id >= begins) {
            if let Purpose::Peer { node: by, session: asked, sequence: of, kind: PeerAsk::Write } =
                &mut op.purpose
                && (*by, *of, op.volume, op.span) == (node, sequence, volume, span)
            {
                *asked = session;
                return true;
            }
        }
        false
    }

    /// The disk answered.
    pub(super) fn on_disk(&mut self, op: DiskOp, answer: DiskAnswer, out: &mut Out) {
        if answer == DiskAnswer::Durable {
            // Whoever asked may count on it. Lock, buffer and heat stay until it is in its place.
            let Some(Flight::Local(id)) = self.local.flights.get(&op.0) else {
                unreachable!("only a write that is on its way becomes durable")
            };
            let op = self.local.ops.get_mut(id).expect("in flight, so still there");
            op.durable = true;
            let purpose = op.purpose;
            self.on_local(purpose, answer, out);
            return;
        }
        let flight = self.local.flights.remove(&op.0).expect("the disk answers what it was asked");
        if answer == DiskAnswer::Failed {
            self.disk_failed(out);
            if matches!(flight, Flight::LogPage { .. } | Flight::CoolBitmap) {
                self.log_failed(out);
            }
        }
        let answer = self.judge_flush(&flight, answer);
        match flight {
            Flight::Local(id) => {
                self.read_by_disk(id, out);
                self.local_done(id, answer, out);
            }
            Flight::Flush { purpose, .. } => self.on_local(purpose, answer, out),
            Flight::LogPage { volume, page } => {
                // A page that failed names nothing for sure; the disk is given up, so nothing waits for it.
                if answer != DiskAnswer::Failed {
                    let turned = self.log.page_written(volume, page);
                    self.turned_hot(&turned, out);
                }
            }
            Flight::CoolBitmap => {
                if let Some(cooling) = &mut self.local.cooling {
                    cooling.pages_left -= 1;
                    let goes_on = answer != DiskAnswer::Failed && self.has_disk;
                    if cooling.pages_left == 0 && goes_on {
                        self.flush_for_cooling(out);
                    }
                }
            }
            Flight::CoolFlush { .. } => self.cooled(answer, out),
            Flight::SaveBitmap { volume, slot, page } => {
                self.local.saving -= 1;
                if answer == DiskAnswer::Failed {
                    // Its extent stays hot until it is saved after all.
                    self.bitmaps.not_saved(volume, slot, page);
                }
                self.next_bitmaps(out);
            }
        }
    }

    /// What a flush says that has ended: it failed, too, if another one did while it was under way.
    fn judge_flush(&mut self, flight: &Flight, answer: DiskAnswer) -> DiskAnswer {
        let (Flight::Flush { failures, .. } | Flight::CoolFlush { failures }) = flight else {
            return answer;
        };
        if answer == DiskAnswer::Failed {
            self.local.flush_failures += 1;
        }
        if *failures == self.local.flush_failures && answer != DiskAnswer::Failed {
            return answer;
        }
        self.note_flush_failed();
        DiskAnswer::Failed
    }

    /// A write in flight ended: its buffer is released now if it was given up before.
    fn read_by_disk(&mut self, id: u64, out: &mut Out) {
        let Some(Action::Write { buffer, .. }) = self.local.ops.get(&id).map(|op| op.action) else {
            return;
        };
        let Some(count) = self.local.reading.get_mut(&buffer) else { return };
        *count -= 1;
        if *count == 0 {
            self.local.reading.remove(&buffer);
            if self.local.given_up.remove(&buffer) {
                out.push(ShardOutput::Release { buffer });
            }
        }
    }

    /// Of what was said since `from`: a buffer that the disk still reads is released when it has done so.
    /// Only a primary that stops gives up such a buffer.
    pub(super) fn hold_releases(&mut self, from: usize, out: &mut Out) {
        if self.local.reading.is_empty() {
            return;
        }
        let mut at = from;
        while at < out.len() {
            if let ShardOutput::Release { buffer } = out[at]
                && self.local.reading.contains_key(&buffer)
            {
                self.local.given_up.insert(buffer);
                out.remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn turned_hot(&mut self, turned: &[Extent], out: &mut Out) {
        out.push(ShardOutput::Member(FromShard::Logged { writes: self.log.writes() }));
        if !self.started && self.log.is_settled() {
            self.started = true;
            out.push(ShardOutput::Member(FromShard::Started));
        }
        for extent in turned {
            for id in self.local.waiting_hot.remove(extent).unwrap_or_default() {
                if self.local.ops.contains_key(&id) {
                    self.local_submit(id, out);
                }
            }
        }
        self.write_log(out);
    }

    fn cooled(&mut self, answer: DiskAnswer, out: &mut Out) {
        let Some(cooling) = self.local.cooling.take() else { return };
        if self.has_lost_some() {
            if answer == DiskAnswer::Failed {
                // Whoever asked is to hear of it: this copy is left out.
                self.fail_waiting_hot(out);
            }
            return;
        }
        if answer == DiskAnswer::Failed {
            self.local.cool_again = true;
            self.only_disk.again_at = self.now + self.tick_length();
            return self.next_bitmaps(out);
        }
        if self.disk_failing && !core::mem::replace(&mut self.only_disk.unsure, true) {
            out.push(ShardOutput::Member(FromShard::Unsure));
        }
        let extent_sectors = self.geometry.extent_sectors;
        let doubt = &self.doubt;
        let victims: Vec<Extent> = cooling
            .victims
            .into_iter()
            .filter(|&(volume, extent)| {
                !doubt.overlaps(volume, extent * extent_sectors, (extent + 1) * extent_sectors)
            })
            .collect();
        let doubtful = self.doubtful();
        self.log.cooled(&victims, cooling.clock, doubtful);
        self.write_log(out);
        self.next_bitmaps(out);
    }

    fn local_done(&mut self, id: u64, answer: DiskAnswer, out: &mut Out) {
        let op = self.local.ops.remove(&id).expect("in flight, so still there");
        let mut may_be_complete = false;
        if op.action.changes() {
            // Before the turn comes of what waits to read there.
            may_be_complete = self.note_stale(&op, answer == DiskAnswer::Failed);
            if answer == DiskAnswer::Failed {
                self.note_lost_write(op.purpose, op.volume, op.span);
                self.note_failed_here(id, &op);
            }
        }
        let mut granted = Vec::new();
        self.local.locks.release(id, op.volume, op.span, &mut granted);
        for next in granted {
            self.local_granted(next, out);
        }
        if let Action::Write { buffer, release: true, .. } = op.action {
            out.push(ShardOutput::Release { buffer });
        }
        if op.action.changes() {
            let extent = self.extent_of(op.volume, op.span);
            self.log.unhold(extent);
            if answer == DiskAnswer::Failed && id < self.local.reign_begins {
                if may_be_complete {
                    self.note_flush_failed();
                }
                // They were to make this very write stable.
                for purpose in core::mem::take(&mut self.local.flushes) {
                    self.note_flush_failed();
                    self.on_local(purpose, answer, out);
                }
            }
        }
        self.on_local(op.purpose, answer, out);
        self.make_room(out);
    }

    /// The disk failed a write: if it is one of the primary of this reign, it is carried out when it comes again.
    fn note_failed_here(&mut self, id: u64, op: &LocalOp) {
        if let Purpose::Peer { sequence, kind: PeerAsk::Write, .. } = op.purpose
            && id >= self.local.reign_begins
            && self.unretired.get(&sequence) == Some(&(op.volume, op.span))
        {
            self.local.failed_here.insert(sequence);
        }
    }

    /// A write was carried out or failed. One that failed may be complete at the primary all the same: it was durable, or
    /// other disks have it and this memory counted. It reads here until it hears of it. Says whether that is so.
    fn note_stale(&mut self, op: &LocalOp, failed: bool) -> bool {
        let (volume, span) = (op.volume, op.span);
        if !failed {
            self.local.stale.retain(|&(at, old)| {
                at != volume || old.first() < span.first() || span.end() < old.end()
            });
            return false;
        }
        let in_sync = self.configuration.as_ref().is_some_and(|known| known.is_in_sync(self.node));
        let in_memory = self.local.early && matches!(op.purpose, Purpose::Peer { .. });
        let may_be_complete = in_sync && (op.durable || in_memory);
        if may_be_complete && !self.local.stale.contains(&(volume, span)) {
            self.local.stale.push((volume, span));
            self.local.stale_everywhere |= self.local.stale.len() > STALE_MAX;
        }
        self.local.stale.truncate(STALE_MAX);
        may_be_complete
    }

    fn is_stale(&self, volume: VolumeId, span: Span) -> bool {
        self.local.stale_everywhere
            || self.local.stale.iter().any(|&(at, old)| at == volume && old.overlaps(span))
    }

    /// Saving or cooling ended: whatever waits for its turn goes on.
    fn next_bitmaps(&mut self, out: &mut Out) {
        if self.local.cooling.is_some() || self.local.saving > 0 {
            return;
        }
        self.make_room(out);
        if self.local.save_again {
            self.save_bitmaps(out);
        }
    }

    /// Whether extents are to turn cold that could not, because a flush failed.
    pub(super) fn cools_again(&self) -> bool {
        self.local.cool_again
    }

    /// They do so now, if it is time.
    pub(super) fn cool_what_could_not(&mut self, out: &mut Out) {
        if self.local.cool_again && self.now >= self.only_disk.again_at {
            self.local.cool_again = false;
            self.make_room(out);
        }
    }

    /// Extents that wait for room in the log may find some now.
    pub(super) fn make_room(&mut self, out: &mut Out) {
        if self.log.wants_room() || self.log.wants_spare_room() {
            self.write_log(out);
        }
    }

    fn disk_failed(&mut self, out: &mut Out) {
        if !self.has_disk {
            return;
        }
        // Also of a disk that failed before: as the only one it stays, and was told anew what it holds.
        self.forget_effects();
        if !self.disk_failing {
            self.disk_failing = true;
            out.push(ShardOutput::Mark("own disk failed"));
            out.push(ShardOutput::Member(FromShard::DiskFailed));
        }
    }

    /// Operations that are queued and not yet asked of the disk.
    fn queued(&self) -> Vec<u64> {
        let flying: Vec<u64> = self
            .local
            .flights
            .values()
            .filter_map(|flight| if let Flight::Local(id) = flight { Some(*id) } else { None })
            .collect();
        self.local.ops.keys().copied().filter(|id| !flying.contains(id)).collect()
    }

    /// What this node as primary queued for its own disk and did not ask for yet.
    pub(super) fn queued_here(&self) -> Vec<u64> {
        let purposes =
            self.queued().into_iter().filter_map(|id| Some(self.local.ops.get(&id)?.purpose));
        purposes
            .filter_map(|asker| if let Purpose::Op(id) = asker { Some(id) } else { None })
            .collect()
    }

    /// This node is primary no more, or without its own copy: what it queued for its own disk and did not
    /// ask for yet is dropped. None of it was answered: that waits for the own disk.
    pub(super) fn cancel_queued(&mut self, out: &mut Out) {
        let mut granted = Vec::new();
        for id in self.queued() {
            let Some(op) = self.local.ops.get(&id) else { continue };
            if matches!(op.purpose, Purpose::Op(_) | Purpose::Copy { .. }) {
                self.drop_local(id, &mut granted);
            }
        }
        for id in granted {
            if self.local.ops.contains_key(&id) {
                self.local_granted(id, out);
            }
        }
    }

    /// Says, where memory may count, when the disk has what was asked of it under earlier configurations.
    pub(super) fn tell_written(&mut self, out: &mut Out) {
        let Some((epoch, before)) = self.local.unwritten else { return };
        let mut earlier = self.local.ops.iter().take_while(|(id, _)| **id < before);
        let open = earlier.any(|(_, op)| op.action.changes());
        if open || self.disk_failing || !self.has_disk {
            return;
        }
        self.local.unwritten = None;
        out.push(ShardOutput::Member(FromShard::Written { epoch }));
    }

    /// A configuration was installed.
    pub(super) fn expect_written(&mut self, new_reign: bool) {
        if new_reign {
            self.local.reign_begins = self.local.next;
            // The primary that would have written it again is one no more. Where others have it, this copy leaves.
            if self.local.stale_everywhere || !self.local.stale.is_empty() {
                self.note_flush_failed();
            }
        }
        let Some(known) = &self.configuration else { return };
        if new_reign || !known.is_in_sync(self.node) {
            // A new primary does not settle doubt from a disk that failed, nor is one read that is out of sync.
            self.local.stale.clear();
            self.local.stale_everywhere = false;
        }
        self.local.early |= known.options.protocol == Protocol::B;
        if self.local.early && self.has_disk {
            self.local.unwritten = Some((known.epoch, self.local.next));
        }
    }

    /// An operation that was not asked of the disk is no more. Appends those that its lock kept waiting.
    fn drop_local(&mut self, id: u64, granted: &mut Vec<u64>) -> Option<LocalOp> {
        let op = self.local.ops.remove(&id)?;
        self.local.locks.release(id, op.volume, op.span, granted);
        let extent = self.extent_of(op.volume, op.span);
        if let Some(waiting) = self.local.waiting_hot.get_mut(&extent) {
            waiting.retain(|&other| other != id);
        }
        if op.action.changes() {
            self.log.unhold(extent);
        }
        Some(op)
    }

    /// The disk is not to be used any more: what waits fails, what is in flight ends by itself.
    pub(super) fn detach(&mut self, out: &mut Out) {
        self.has_disk = false;
        let queued = self.queued();
        let mut granted = Vec::new();
        let dropped: Vec<LocalOp> =
            queued.into_iter().filter_map(|id| self.drop_local(id, &mut granted)).collect();
        for op in dropped {
            if let Action::Write { buffer, release: true, .. } = op.action {
                out.push(ShardOutput::Release { buffer });
            }
            self.on_local(op.purpose, DiskAnswer::Failed, out);
        }
    }
}

//! What a shard or a member asks of this node's disk, and what comes of it.
//!
//! Always: a request is answered once. A flush is answered when every volume has flushed. A read that
//! finds no buffer waits for one; it is not failed. One for a client's request always finds one: there is room for
//! it already.
//!
//! Not here: files and devices themselves (`store`), places of metadata (`replica::disk::Layout`).

use std::collections::VecDeque;

use base::{SECTOR_BYTES, Span, VolumeId};
use replica::disk::{Layout, RECORD_BYTES, Record};
use replica::door::{DiskAnswer, DiskOp, DiskRequest, MemberInput, MetaPage, ShardInput};
use store::{FlushMark, Store};
use sys::{Buffer, BufferPool, Errno, Event, Payload, Piece, Trace};
use wire::admin::{Rot, StoreKind};

use super::beyond::Beyond;
use super::sums::{Check, Sums, blocks_around, extent_of};
use super::threads::Parcel;
use super::{Node, Purpose, Work};
use crate::backing;
use crate::log::{error, error_limited};
use crate::slab::Key;

/// One volume's backing store.
pub(crate) struct LocalVolume {
    pub(crate) volume: VolumeId,
    pub(crate) store: Store,
    pub(crate) layout: Layout,
    pub(crate) kind: StoreKind,
    /// Block checksums, if the resource has them.
    pub(crate) sums: Option<Sums>,
    /// What it gives back since it shrank.
    pub(crate) beyond: Beyond,
}

impl LocalVolume {
    /// The same store for another thread, whose extents have their checksums there.
    pub(crate) fn share(&self, number: u64) -> LocalVolume {
        LocalVolume {
            volume: self.volume,
            store: self.store.share(number),
            layout: self.layout,
            kind: self.kind,
            sums: self.sums.as_ref().map(|_| Sums::default()),
            beyond: Beyond::default(),
        }
    }
}

/// The backing stores of a resource. The first volume's metadata holds the record.
pub(crate) struct LocalDisk {
    pub(crate) volumes: Vec<LocalVolume>,
    /// The record as it was stored last.
    pub(crate) record: Option<Record>,
}

impl LocalDisk {
    pub(super) fn volume(&mut self, volume: VolumeId) -> Option<&mut LocalVolume> {
        self.volumes.iter_mut().find(|entry| entry.volume == volume)
    }
}

/// Requests of shards that disks carry out at once, at most; further ones wait in line. The other half of what the hands
/// can have under way is for sockets: an operation that finds no place there would seem to have failed.
const DISK_OPEN_MAX: usize = sys::OPERATIONS_MAX / 2;

/// Bytes of metadata that are read or written at once: a few pages, the record's the most.
const METADATA_BYTES: u64 = RECORD_BYTES;

/// What an operation on a disk was for.
pub(crate) enum DiskPurpose {
    /// A request of a shard.
    Op {
        resource: Key,
        shard: u16,
        op: DiskOp,
        kind: OpKind,
        place: Option<Place>,
        changes: Option<Part>,
        /// What it holds of memory, and has to count elsewhere once nobody waits for it.
        memory: Option<Trace>,
    },
    /// Space beyond a volume's end, given back.
    Beyond { resource: Key, volume: VolumeId, span: Span },
    /// A member's record.
    Record { resource: Key, number: u64 },
    /// The pages of an extent's block checksums, for whoever waits for them.
    Sums { waiter: SumsWaiter, extent: u64 },
    /// An extent's block checksums are being put on stable storage.
    Seal { resource: Key, shard: u16, op: DiskOp, volume: VolumeId, extent: u64, version: u64 },
}

impl DiskPurpose {
    /// What of the disk it changes, if anything.
    pub(super) fn changes(&self) -> Option<Part> {
        match *self {
            DiskPurpose::Op { changes, .. } => changes,
            DiskPurpose::Beyond { volume, span, .. } => Some(Part::Data(volume, span)),
            DiskPurpose::Seal { volume, extent, .. } => Some(Part::Sums(volume, extent)),
            // After a record that was not stored none is.
            DiskPurpose::Record { .. } | DiskPurpose::Sums { .. } => None,
        }
    }

    /// Bytes of memory that the disk has for it.
    pub(super) fn held_bytes(&self) -> u64 {
        match self {
            DiskPurpose::Op { memory: None, .. } | DiskPurpose::Beyond { .. } => 0,
            DiskPurpose::Op { place: Some(place), .. } => place.read.length_bytes(),
            DiskPurpose::Op { changes: Some(Part::Data(_, span)), .. } => span.length_bytes(),
            DiskPurpose::Op { .. }
            | DiskPurpose::Record { .. }
            | DiskPurpose::Sums { .. }
            | DiskPurpose::Seal { .. } => METADATA_BYTES,
        }
    }

    /// What a write or a flush makes stable, and of which volume; of none: the first, which has the record.
    fn makes_stable(&self) -> Option<(Stable, Option<VolumeId>)> {
        match *self {
            DiskPurpose::Op { kind: OpKind::Flush(_, volume, mark), shard, .. } => {
                Some((Stable::All(shard, mark), Some(volume)))
            }
            DiskPurpose::Op { kind: OpKind::Change { durable }, changes, .. } => match changes? {
                Part::Data(volume, _) if durable => Some((Stable::Data, Some(volume))),
                Part::Data(volume, _) => Some((Stable::Nothing, Some(volume))),
                Part::Page(volume, _) | Part::Sums(volume, _) => {
                    Some((Stable::Metadata, Some(volume)))
                }
            },
            DiskPurpose::Seal { volume, .. } => Some((Stable::Metadata, Some(volume))),
            DiskPurpose::Record { .. } => Some((Stable::Metadata, None)),
            DiskPurpose::Op { .. } | DiskPurpose::Beyond { .. } | DiskPurpose::Sums { .. } => None,
        }
    }

    /// Whose disk it is.
    pub(super) fn resource(&self) -> Key {
        match self {
            DiskPurpose::Op { resource, .. }
            | DiskPurpose::Beyond { resource, .. }
            | DiskPurpose::Record { resource, .. }
            | DiskPurpose::Seal { resource, .. }
            | DiskPurpose::Sums {
                waiter:
                    SumsWaiter::Check { resource, .. }
                    | SumsWaiter::Compare { resource, .. }
                    | SumsWaiter::Seal { resource, .. },
                ..
            } => *resource,
        }
    }
}

/// What an operation makes stable, with what the disk has in its cache.
#[derive(Clone, Copy)]
enum Stable {
    /// What was written before, and nothing else: of which shard, and when it began.
    All(u16, FlushMark),
    /// It is a write that a cache may hold.
    Nothing,
    Data,
    Metadata,
}

/// What goes on once an extent's checksums are in memory.
pub(crate) enum SumsWaiter {
    /// Bytes that were read are checked.
    Check { resource: Key, shard: u16, op: DiskOp, place: Place, buffer: Buffer },
    /// Bytes that were read to be compared are looked at.
    Compare { resource: Key, shard: u16, op: DiskOp, place: Place, buffer: Buffer },
    /// The extent is sealed.
    Seal { resource: Key, shard: u16, op: DiskOp, volume: VolumeId },
}

/// What a read asks for, and what is read for it: where the disk has checksums, the blocks that are asked for in
/// part are read whole, because only so can they be checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    volume: VolumeId,
    span: Span,
    read: Span,
    /// It is for a client's request.
    requested: bool,
    /// Of what is read the first and the last block's checksums when that began.
    ends: [u32; 2],
}

/// A part of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Data(VolumeId, Span),
    Page(VolumeId, MetaPage),
    Sums(VolumeId, u64),
}

impl Part {
    pub(super) fn overlaps(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Data(volume, span), Part::Data(of, other)) => {
                volume == of && span.overlaps(*other)
            }
            _ => self == other,
        }
    }
}

/// What is to be answered when a shard's request is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OpKind {
    Data,
    Hash,
    /// With what was in the disk's cache before, if `durable`.
    Change {
        durable: bool,
    },
    /// Of this volume; which of the resource's flushes it belongs to, and when it began.
    Flush(Key, VolumeId, FlushMark),
}

impl OpKind {
    /// For the log.
    fn words(self) -> &'static str {
        match self {
            OpKind::Data | OpKind::Hash => "a read",
            OpKind::Change { .. } => "a write",
            OpKind::Flush(..) => "a flush",
        }
    }
}

/// Requests of shards on their way to disks.
#[derive(Default)]
pub(crate) struct Line {
    /// Operations that disks were given for them and have not answered.
    open: usize,
    /// Requests that wait, in order.
    waiting: VecDeque<(Key, u16, DiskOp, DiskRequest)>,
}

/// A read that waits for a buffer.
pub(crate) struct Starved {
    resource: Key,
    shard: u16,
    op: DiskOp,
    kind: OpKind,
    volume: VolumeId,
    span: Span,
    requested: bool,
}

fn bytes(span: Span) -> usize {
    usize::try_from(span.length_bytes()).expect("what a shard reads at once fits in memory")
}

impl Node {
    /// Starts a request of a shard, or puts it in line.
    pub(super) fn begin_disk(&mut self, key: Key, shard: u16, op: DiskOp, request: DiskRequest) {
        if self.disk_line.open < DISK_OPEN_MAX && self.disk_line.waiting.is_empty() {
            self.start_disk(key, shard, op, request);
        } else {
            self.disk_line.waiting.push_back((key, shard, op, request));
        }
    }

    fn start_disk(&mut self, key: Key, shard: u16, op: DiskOp, request: DiskRequest) {
        match request {
            DiskRequest::Read { volume, span, requested } => {
                let (resource, kind) = (key, OpKind::Data);
                self.begin_read(Starved { resource, shard, op, kind, volume, span, requested });
            }
            DiskRequest::Hash { volume, span } => {
                let (resource, kind, requested) = (key, OpKind::Hash, false);
                self.begin_read(Starved { resource, shard, op, kind, volume, span, requested });
            }
            DiskRequest::Flush => self.begin_flush(key, shard, op),
            DiskRequest::Seal { volume, extent } => self.begin_seal(key, shard, op, volume, extent),
            change => self.begin_change(key, shard, op, change),
        }
    }

    fn begin_change(&mut self, key: Key, shard: u16, op: DiskOp, request: DiskRequest) {
        let (DiskRequest::Write { volume, .. }
        | DiskRequest::Zero { volume, .. }
        | DiskRequest::Meta { volume, .. }) = request
        else {
            unreachable!("only what changes a volume comes here")
        };
        let (part, durable) = match request {
            DiskRequest::Write { span, durable, .. } | DiskRequest::Zero { span, durable, .. } => {
                (Part::Data(volume, span), durable)
            }
            DiskRequest::Meta { page, .. } => (Part::Page(volume, page), true),
            _ => unreachable!("told apart above"),
        };
        let kind = OpKind::Change { durable };
        if self.waits_for_late(key, &part, kind.words()) {
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        }
        let pool = self.buffers.outgoing().clone();
        let disk = self.resources.get_mut(key).and_then(|entry| entry.disk.as_mut());
        let Some(entry) = disk.and_then(|disk| disk.volume(volume)) else {
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        };
        if !has_place(&entry.layout, &part) {
            return self.refuse_outgrown(key, shard, op);
        }
        let request = match request {
            DiskRequest::Write { span, .. } | DiskRequest::Zero { span, .. } => {
                let Some(request) = entry.beyond.hold(span, shard, op, request) else { return };
                request
            }
            other => other,
        };
        let changes = Some(part);
        let memory = match &request {
            DiskRequest::Write { buffer, .. } => Some(self.buffers.trace(*buffer)),
            _ => None,
        };
        let resource = key;
        let purpose = DiskPurpose::Op { resource, shard, op, kind, place: None, changes, memory };
        self.disk_line.open += 1;
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        let (hands, store, sums) = (&mut self.hands, &mut entry.store, &mut entry.sums);
        match request {
            DiskRequest::Write { span, buffer, durable, .. } => {
                let bytes = self.buffers.get(buffer);
                // It may be longer.
                let length = usize::try_from(span.length_bytes()).expect("as long as a buffer");
                if let Some(sums) = sums {
                    sums.write(span, &bytes[..length]);
                }
                let piece = Piece::first(bytes, length);
                store.write(hands, token, span.offset_bytes(), piece, durable);
            }
            DiskRequest::Zero { span, unmap, durable, .. } => {
                if let Some(sums) = sums {
                    sums.zero(span);
                }
                let (at, length) = (span.offset_bytes(), span.length_bytes());
                store.zero(hands, token, at, length, unmap, durable);
            }
            DiskRequest::Meta { page, bytes, .. } => {
                let at = entry.layout.page_offset(page);
                store.write_metadata(hands, token, at, in_buffer(&pool, &bytes[..]), true);
            }
            _ => unreachable!("told apart above"),
        }
        let repaired_blocks = sums.as_mut().map_or(0, Sums::take_repaired);
        self.count_rot(key, Rot { found_blocks: 0, repaired_blocks });
    }

    fn refuse_outgrown(&mut self, key: Key, shard: u16, op: DiskOp) {
        let words = "a volume that has grown beyond what its store has room for";
        self.on_disk_failure(key, words, Errno::INVALID);
        self.answer_disk(key, shard, op, DiskAnswer::Failed);
    }

    fn begin_flush(&mut self, key: Key, shard: u16, op: DiskOp) {
        if self.resources.get(key).is_some_and(|of| of.held.is_full()) {
            self.on_disk_failure(key, "a flush", Errno::TIMED_OUT);
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        }
        let Some(resource) = self.resources.get_mut(key) else { return };
        let Some(disk) = resource.disk.as_mut() else {
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        };
        let flush = resource.flushes.insert((disk.volumes.len(), true));
        for entry in &mut disk.volumes {
            let mark = entry.store.flush_begins();
            let (resource, kind) = (key, OpKind::Flush(flush, entry.volume, mark));
            let (place, changes, memory) = (None, None, None);
            let purpose = DiskPurpose::Op { resource, shard, op, kind, place, changes, memory };
            self.disk_line.open += 1;
            let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
            entry.store.flush(&mut self.hands, token);
        }
    }

    fn begin_read(&mut self, read: Starved) {
        let part = Part::Data(read.volume, read.span);
        if self.waits_for_late(read.resource, &part, read.kind.words()) {
            return self.answer_disk(read.resource, read.shard, read.op, DiskAnswer::Failed);
        }
        let resource = self.resources.get_mut(read.resource);
        let size = resource.as_ref().and_then(|entry| entry.sizes.get(&read.volume).copied());
        let disk = resource.and_then(|entry| entry.disk.as_mut());
        let Some(entry) = disk.and_then(|disk| disk.volume(read.volume)) else {
            return self.answer_disk(read.resource, read.shard, read.op, DiskAnswer::Failed);
        };
        let Starved { volume, span, requested, .. } = read;
        let mut place = Place { volume, span, read: span, requested, ends: [0; 2] };
        if let Some(sums) = &entry.sums {
            if read.kind == OpKind::Data {
                place.read = blocks_around(read.span, size.unwrap_or(0));
            }
            place.ends = sums.ends(place.read);
        }
        let (at, length) = (place.read.offset_bytes(), bytes(place.read));
        let buffer = if requested {
            self.buffers.answer(length)
        } else {
            self.buffers.outgoing().take(length)
        };
        let Some(buffer) = buffer else {
            return self.starved.push_back(read);
        };
        let Starved { resource, shard, op, kind, .. } = read;
        // An answer counts in the room that its request has, and no longer than somebody waits for it.
        let memory = Some(buffer.trace());
        let (place, changes) = (Some(place), None);
        let purpose = DiskPurpose::Op { resource, shard, op, kind, place, changes, memory };
        self.disk_line.open += 1;
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        entry.store.read(&mut self.hands, token, at, buffer, 0..length);
    }

    /// Starts what waited in line, and reads that waited for buffers, as far as there are some.
    pub(super) fn feed_starved(&mut self) {
        while self.disk_line.open < DISK_OPEN_MAX
            && let Some((key, shard, op, request)) = self.disk_line.waiting.pop_front()
        {
            self.start_disk(key, shard, op, request);
        }
        for _ in 0..self.starved.len() {
            if self.disk_line.open >= DISK_OPEN_MAX {
                break;
            }
            let Some(read) = self.starved.pop_front() else { break };
            let before = self.starved.len();
            self.begin_read(read);
            if self.starved.len() > before {
                // It went to the end of the queue: back to its place.
                self.starved.rotate_right(1);
                break;
            }
        }
    }

    fn answer_disk(&mut self, key: Key, shard: u16, op: DiskOp, answer: DiskAnswer) {
        self.work.push_back(Work::Shard(key, shard, ShardInput::Disk { op, answer }));
    }

    /// An operation on a disk has ended.
    pub(super) fn on_disk(&mut self, purpose: DiskPurpose, mut event: Event) {
        self.judge(&purpose, &mut event);
        match purpose {
            DiskPurpose::Beyond { resource, volume, .. } => {
                self.on_given_back(resource, volume, &event);
            }
            DiskPurpose::Record { resource, number } => {
                if let Err(errno) = event.result {
                    self.on_disk_failure(resource, "its record", errno);
                }
                let ok = event.result.is_ok();
                let input = MemberInput::Stored { number, ok };
                self.work.push_back(Work::Member(resource, input));
            }
            DiskPurpose::Sums { waiter, extent } => self.on_sums(waiter, extent, event),
            DiskPurpose::Seal { resource, shard, op, volume, extent, version } => {
                if let Err(errno) = event.result {
                    self.on_disk_failure(resource, "block checksums", errno);
                }
                let ok = event.result.is_ok();
                if let (Some(sums), true) = (self.sums_of(resource, volume), ok) {
                    sums.sealed(extent, version);
                }
                let answer = if ok { DiskAnswer::Done } else { DiskAnswer::Failed };
                self.answer_disk(resource, shard, op, answer);
            }
            DiskPurpose::Op { resource, shard, op, kind, place, changes, memory } => {
                drop(memory);
                self.disk_line.open -= 1;
                if let Err(errno) = event.result {
                    self.on_disk_failure(resource, kind.words(), errno);
                    if let Some(Part::Data(volume, span)) = changes
                        && let Some(sums) = self.sums_of(resource, volume)
                    {
                        sums.forget(span);
                    }
                }
                self.on_op(resource, shard, op, kind, place, event);
            }
        }
    }

    /// A disk that loses what was in its cache says so once, to one flush or durable write. Others are told by this: the next flush
    /// of every shard did not go well, whatever the disk says.
    fn judge(&mut self, purpose: &DiskPurpose, event: &mut Event) {
        let Some((stable, volume)) = purpose.makes_stable() else { return };
        let resource = self.resources.get_mut(purpose.resource());
        let Some(disk) = resource.and_then(|entry| entry.disk.as_mut()) else { return };
        let entry = match volume {
            Some(volume) => disk.volume(volume),
            None => disk.volumes.first_mut(),
        };
        let Some(LocalVolume { store, .. }) = entry else { return };
        match (stable, event.result) {
            (Stable::All(shard, mark), Ok(_)) if !store.flush_ends(shard, mark, true) => {
                event.result = Err(Errno::IO);
                let name = self.name_of(purpose.resource());
                error!("{name}: somebody else was told that its disk lost what was not flushed");
            }
            (Stable::All(shard, mark), Err(_)) => {
                store.flush_ends(shard, mark, false);
            }
            (Stable::Nothing, Ok(_)) => store.note_answered(),
            (Stable::Nothing, Err(_)) | (_, Ok(_)) => {}
            (Stable::Data, Err(errno)) => store.note_failed_write(errno),
            (Stable::Metadata, Err(errno)) => store.note_failed_metadata_write(errno),
        }
    }

    /// Whether a request that was given up for being late may still change this part: what was written now could be gone
    /// when that ends, and what was read now, change. Or whether there are too many such. The request fails.
    fn waits_for_late(&mut self, key: Key, part: &Part, what: &str) -> bool {
        let resource = self.resources.get(key);
        let waits = resource.is_some_and(|of| {
            of.held.is_full() || of.late.iter().any(|(_, late)| late.overlaps(part))
        });
        if waits {
            self.on_disk_failure(key, what, Errno::TIMED_OUT);
        }
        waits
    }

    /// A request failed: the log has the first, and of further ones a few a minute; the status why the first did.
    fn on_disk_failure(&mut self, key: Key, what: &str, errno: Errno) {
        let name = self.name_of(key);
        let Some(resource) = self.resources.get(key) else { return };
        if resource.disk_failure.is_some() {
            error_limited!("{name}: its disk failed a request ({what}): {errno}");
        } else {
            error!("{name}: its disk failed a request ({what}): {errno}");
            let life = resource.life;
            self.note_disk_failure(key, errno);
            if !self.threads.is_first() {
                self.tell(0, Parcel::DiskFailure { life, errno });
            }
        }
    }

    /// Keeps for the status why a disk failed, in words that say what helps.
    pub(super) fn note_disk_failure(&mut self, key: Key, errno: Errno) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        let remedy = match errno {
            Errno::NO_SPACE => "make room on it, then restart this node",
            _ => "the log of this node says more; mend or replace it, then restart this node",
        };
        let words = || format!("its disk failed: {errno}; {remedy}");
        resource.disk_failure.get_or_insert_with(words);
    }

    fn on_op(
        &mut self,
        key: Key,
        shard: u16,
        op: DiskOp,
        kind: OpKind,
        place: Option<Place>,
        event: Event,
    ) {
        let ok = event.result.is_ok();
        if self.resources.get(key).is_none() {
            return;
        }
        let answer = match (kind, event.payload) {
            (OpKind::Flush(flush, ..), _) => {
                let Some(resource) = self.resources.get_mut(key) else { return };
                let (left, good) =
                    resource.flushes.get_mut(flush).expect("a flush is open until answered");
                *left -= 1;
                *good &= ok;
                if *left > 0 {
                    return;
                }
                let good = *good;
                resource.flushes.remove(flush);
                if good { DiskAnswer::Done } else { DiskAnswer::Failed }
            }
            _ if !ok => DiskAnswer::Failed,
            (OpKind::Data, Payload::Buffer(buffer)) => {
                let place = place.expect("a read has a place");
                return self.check_read(key, shard, op, place, buffer);
            }
            (OpKind::Hash, Payload::Buffer(buffer)) => {
                let place = place.expect("a comparison has a place");
                return self.look_at_compared(key, shard, op, place, buffer);
            }
            _ => DiskAnswer::Done,
        };
        self.answer_disk(key, shard, op, answer);
    }

    fn sums_of(&mut self, key: Key, volume: VolumeId) -> Option<&mut Sums> {
        self.resources.get_mut(key)?.disk.as_mut()?.volume(volume)?.sums.as_mut()
    }

    /// Bytes were read: they are answered if they are those that were written, as far as is known.
    fn check_read(&mut self, key: Key, shard: u16, op: DiskOp, place: Place, mut buffer: Buffer) {
        if self.resources.get(key).is_none() {
            return;
        }
        let Place { volume, span, read, requested, ends } = place;
        let extent = extent_of(span);
        let sums = self.sums_of(key, volume);
        let check = sums.as_ref().map_or(Check::Good, |sums| sums.check(read, span, ends, &buffer));
        match check {
            Check::Good => {
                narrow(&mut buffer, read, span);
                let named = !store::is_zero(&buffer);
                let data = named.then(|| self.buffers.name(key, buffer));
                self.answer_disk(key, shard, op, DiskAnswer::Data(data));
            }
            // Beside what was asked for, something was written meanwhile: the checksum may be that of newer bytes.
            Check::Newer => {
                let (resource, kind) = (key, OpKind::Data);
                self.begin_read(Starved { resource, shard, op, kind, volume, span, requested });
            }
            Check::Rotten => {
                let blocks =
                    self.sums_of(key, volume).map_or(0, |sums| sums.find_rot(read, &buffer));
                self.note_rot(key, volume, read.first(), blocks);
                self.answer_disk(key, shard, op, DiskAnswer::Rotten);
            }
            Check::Unknown => {
                let waiter = SumsWaiter::Check { resource: key, shard, op, place, buffer };
                self.read_sums(key, volume, extent, waiter);
            }
        }
    }

    /// Bytes were read to be compared: what rotted is noted, so that it is known whose disk it is, and is like nothing
    /// that another copy holds.
    fn look_at_compared(&mut self, key: Key, shard: u16, op: DiskOp, place: Place, buffer: Buffer) {
        if self.resources.get(key).is_none() {
            return;
        }
        let Place { volume, span, .. } = place;
        let extent = extent_of(span);
        if let Some(sums) = self.sums_of(key, volume) {
            match sums.check(span, span, [0; 2], &buffer) {
                Check::Unknown => {
                    let waiter = SumsWaiter::Compare { resource: key, shard, op, place, buffer };
                    return self.read_sums(key, volume, extent, waiter);
                }
                // Of what was asked for nothing is newer.
                Check::Rotten | Check::Newer => {
                    let blocks = sums.find_rot(span, &buffer);
                    self.note_rot(key, volume, span.first(), blocks);
                    return self.answer_disk(key, shard, op, DiskAnswer::Rotten);
                }
                Check::Good => {}
            }
        }
        if let Some(sums) = self.sums_of(key, volume) {
            sums.learn(span, &buffer);
        }
        self.answer_disk(key, shard, op, DiskAnswer::Hash(hash(&buffer)));
    }

    /// Reads the pages of an extent's checksums.
    fn read_sums(&mut self, key: Key, volume: VolumeId, extent: u64, waiter: SumsWaiter) {
        let pool = self.buffers.outgoing().clone();
        let disk = self.resources.get_mut(key).and_then(|entry| entry.disk.as_mut());
        let Some(entry) = disk.and_then(|disk| disk.volume(volume)) else { return };
        let length = 2 * 4096;
        let spare = || BufferPool::new(1 << 20).take(length);
        let buffer = pool.take(length).or_else(spare).expect("memory for two pages");
        let purpose = DiskPurpose::Sums { waiter, extent };
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        let at = entry.layout.sums_offset(extent);
        entry.store.read_metadata(&mut self.hands, token, at, buffer, 0..length);
    }

    fn on_sums(&mut self, waiter: SumsWaiter, extent: u64, event: Event) {
        let (resource, volume) = match &waiter {
            SumsWaiter::Check { resource, place, .. }
            | SumsWaiter::Compare { resource, place, .. } => (*resource, place.volume),
            SumsWaiter::Seal { resource, volume, .. } => (*resource, *volume),
        };
        // Pages that cannot be read are pages of which nothing is known.
        let mut pages = [[0; 4096]; 2];
        if let (Ok(_), Payload::Buffer(buffer)) = (&event.result, &event.payload) {
            for (page, bytes) in pages.iter_mut().zip(buffer.chunks_exact(4096)) {
                page.copy_from_slice(bytes);
            }
        }
        if let Some(sums) = self.sums_of(resource, volume) {
            sums.loaded(extent, [&pages[0], &pages[1]]);
        }
        match waiter {
            SumsWaiter::Check { resource, shard, op, place, buffer } => {
                self.check_read(resource, shard, op, place, buffer);
            }
            SumsWaiter::Compare { resource, shard, op, place, buffer } => {
                self.look_at_compared(resource, shard, op, place, buffer);
            }
            SumsWaiter::Seal { resource, shard, op, volume } => {
                self.begin_seal(resource, shard, op, volume, extent);
            }
        }
    }

    /// Puts an extent's checksums on stable storage.
    fn begin_seal(&mut self, key: Key, shard: u16, op: DiskOp, volume: VolumeId, extent: u64) {
        if self.waits_for_late(key, &Part::Sums(volume, extent), "block checksums") {
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        }
        let Some(sums) = self.sums_of(key, volume) else {
            return self.answer_disk(key, shard, op, DiskAnswer::Done);
        };
        if sums.needs_pages(extent) {
            let waiter = SumsWaiter::Seal { resource: key, shard, op, volume };
            return self.read_sums(key, volume, extent, waiter);
        }
        let Some((pages, version)) = sums.seal(extent) else {
            return self.answer_disk(key, shard, op, DiskAnswer::Done);
        };
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.iter().copied()).collect();
        let piece = in_buffer(self.buffers.outgoing(), &bytes);
        let disk = self.resources.get_mut(key).and_then(|entry| entry.disk.as_mut());
        let Some(entry) = disk.and_then(|disk| disk.volume(volume)) else { return };
        let purpose = DiskPurpose::Seal { resource: key, shard, op, volume, extent, version };
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        let at = entry.layout.sums_offset(extent);
        entry.store.write_metadata(&mut self.hands, token, at, piece, true);
    }

    /// Puts a member's record on stable storage.
    pub(super) fn store_record(&mut self, key: Key, number: u64, record: Record) {
        let bytes = backing::record_bytes(&record);
        let copy = record.copy();
        let piece = in_buffer(self.buffers.outgoing(), &bytes);
        let disk = self.resources.get_mut(key).and_then(|entry| entry.disk.as_mut());
        let Some(disk) = disk else {
            let input = MemberInput::Stored { number, ok: false };
            return self.work.push_back(Work::Member(key, input));
        };
        disk.record = Some(record);
        let purpose = DiskPurpose::Record { resource: key, number };
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        let entry = disk.volumes.first_mut().expect("a disk has a volume");
        let at = entry.layout.record_offset(copy);
        entry.store.write_metadata(&mut self.hands, token, at, piece, true);
    }
}

/// Whether a part of a disk has a place in its metadata. A volume may have grown farther than the store was laid out for:
/// whoever let it did not know this store.
fn has_place(layout: &Layout, part: &Part) -> bool {
    match part {
        Part::Page(_, MetaPage::Bitmap { page, .. }) => *page < layout.bitmap_pages,
        Part::Page(_, MetaPage::Log { .. }) | Part::Data(..) | Part::Sums(..) => true,
    }
}

/// Metadata in a buffer that direct I/O can take; where none is left, in one of its own.
fn in_buffer(pool: &BufferPool, bytes: &[u8]) -> Piece {
    let spare = || BufferPool::new(1 << 20).take(bytes.len());
    let mut buffer = pool.take(bytes.len()).or_else(spare).expect("memory for a page");
    buffer.as_mut().expect("just taken").copy_from_slice(bytes);
    Piece::from(buffer)
}

/// Leaves the bytes of `span` of those of `read`.
fn narrow(buffer: &mut Buffer, read: Span, span: Span) {
    if read == span {
        return;
    }
    let from = usize::try_from((span.first() - read.first()) * SECTOR_BYTES).expect("in a block");
    let length = bytes(span);
    let all = buffer.as_mut().expect("only the read has it");
    all.copy_within(from..from + length, 0);
    buffer.set_len(length);
}

/// The first half of SHA-256: nobody can make two contents that seem equal.
fn hash(buffer: &Buffer) -> u128 {
    let digest = ring::digest::digest(&ring::digest::SHA256, buffer);
    let half: [u8; 16] = digest.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes");
    u128::from_be_bytes(half)
}

#[cfg(test)]
mod tests {
    use base::VolumeId;
    use replica::disk::Layout;
    use replica::door::MetaPage;

    use super::{Part, has_place};

    #[test]
    fn a_page_beyond_the_layout_has_no_place_and_nothing_is_asked_of_the_disk() {
        let layout = Layout::new((1 << 30) / 512, 7);
        let page = |page| Part::Page(VolumeId(0), MetaPage::Bitmap { slot: 6, page });
        assert!(has_place(&layout, &page(layout.bitmap_pages - 1)));
        assert!(!has_place(&layout, &page(layout.bitmap_pages)));
        assert!(!has_place(&layout, &page(u64::MAX)));
    }
}

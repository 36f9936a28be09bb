//! A machine's disk by vhost-user, between QEMU's messages, the machine's rings, and the shards.
//!
//! The owner hands in what QEMU sent ([`VhostDisk::received`]), says when a queue was kicked, carries out the [`Demand`]s,
//! hands answers in, and sends what [`VhostDisk::take_replies`] gives.
//!
//! Always:
//! - Nothing is read or written but places of the regions that the front end shares, as `vhost` found them and the
//!   mapping checks again. What the machine changes meanwhile changes bytes, never places.
//! - A request is in the front end's record before anything is done for it, and leaves it once the machine can see its
//!   answer: whoever serves the machine next does what is left, in the order in which it was taken.
//! - A request is answered once, when every piece of it is; or never, if the node stops before that.
//! - A ring is said to stand still when nothing of it is open.
//! - A front end that breaks a rule is told nothing more, and its machine's memory is not touched again.
//!
//! Not here: what comes from QEMU (`session`), sockets and who waits for what (`lockstepd`).

mod session;

pub use session::VhostReply;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::{AnswerError, Op, SECTOR_BYTES, Span};
use sys::{Buffer, BufferPool, Handle, SharedMemory};
use vhost::{
    BlockOp, BlockRequest, Chain, Configuration, FLUSH_FEATURE, Fault, INDIRECT_FEATURE, Inflight,
    InflightShape, Lost, Memory, Part, Place, QUEUES_MAX, Regions, Ring, RingAddresses,
    STATUS_FAILED, STATUS_OK, STATUS_UNSUPPORTED, Serial, TRANSFER_BYTES_MAX,
};

use crate::nbd_connection::{Ask, BYTES_OPEN_MAX, Demand, Tag};
use crate::pieces::pieces_of;
use crate::ublk_disk::ZEROES_BYTES_MAX;

/// Requests of one machine that are open at once, at most, in all queues; the rest waits in its rings.
const OPEN_MAX: usize = 128;

/// Requests that are taken in one turn, at most, before others have theirs.
const TAKEN_MAX: usize = 256;

/// Of which volume a disk is.
#[derive(Clone, Copy, Debug)]
pub struct VhostVolume {
    /// Of the resource.
    pub identity: u64,
    /// In it.
    pub volume: u16,
    /// Its size.
    pub sectors: u64,
    /// Of its blocks.
    pub block_bytes: u32,
    /// The last loss of all caches: a machine that begins now knows of it.
    pub lost: u64,
    /// Number of shards of the resource.
    pub shards: u16,
}

/// A machine's memory.
#[derive(Default)]
struct Table {
    regions: Regions,
    mappings: Vec<SharedMemory>,
}

impl Memory for Table {
    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), Lost> {
        self.mapping(place)?.read(place.offset, bytes).map_err(|_| Lost)
    }

    fn write(&self, place: Place, bytes: &[u8]) -> Result<(), Lost> {
        self.mapping(place)?.write(place.offset, bytes).map_err(|_| Lost)
    }

    fn load(&self, place: Place) -> Result<u16, Lost> {
        self.mapping(place)?.load(place.offset).map_err(|_| Lost)
    }

    fn store(&self, place: Place, number: u16) -> Result<(), Lost> {
        self.mapping(place)?.store(place.offset, number).map_err(|_| Lost)
    }
}

impl Table {
    fn mapping(&self, place: Place) -> Result<&SharedMemory, Lost> {
        self.mappings.get(place.region).ok_or(Lost)
    }
}

/// One queue of a machine.
#[derive(Default)]
struct Queue {
    size: u16,
    /// Requests taken, as the ring counts them.
    taken: u16,
    /// Requests answered.
    answered: u16,
    addresses: Option<RingAddresses>,
    ring: Option<Ring>,
    /// It runs from the moment that there is a kick until it is asked where it stands.
    kick: Option<Handle>,
    call: Option<Handle>,
    enabled: bool,
    /// There may be something in the ring.
    look: bool,
    /// Taken by an earlier process and not answered: heads, oldest first.
    again: VecDeque<u16>,
    /// Requests of it that are open.
    open: u16,
    /// Answers of which the machine was not told.
    unsaid: bool,
}

/// A request that is taken and not answered.
struct Open {
    queue: u16,
    head: u16,
    /// The machine's memory as it was then.
    table: Arc<Table>,
    request: BlockRequest,
    /// Bytes of the volume that it is about, once it is begun.
    range: Range<u64>,
    /// Pieces submitted and not answered.
    waiting: u16,
    failed: bool,
}

/// One machine's disk.
pub struct VhostDisk {
    volume: VhostVolume,
    payload: BufferPool,
    /// 1 MiB of zeroes.
    zeroes: Buffer,
    session: session::Session,
    table: Arc<Table>,
    record: Option<(InflightShape, Table)>,
    /// Requests taken so far, in all queues, for the record.
    count: u64,
    /// Features that the front end uses.
    features: u64,
    queues: Vec<Queue>,
    open: Vec<Option<Open>>,
    open_bytes: u64,
    /// The request that there is no room for yet. Nothing else is taken before it is begun.
    held: Option<u8>,
    starved: bool,
    /// What its machine has seen: the last loss of all caches before it began.
    seen: u64,
    /// It has been told that something is so, by this process or an earlier one.
    told: bool,
    lost: bool,
    shut: bool,
    fault: Option<Fault>,
}

/// What has become of a request that is to begin.
enum Begun {
    /// So many pieces are with the shards, of these bytes.
    With(u16, Range<u64>),
    /// There is an answer at once.
    Answered(u8),
    /// There is no room for it.
    Later,
}

impl VhostDisk {
    /// A disk for whoever has just connected.
    #[must_use]
    pub fn new(volume: VhostVolume, payload: BufferPool, zeroes: Buffer) -> VhostDisk {
        let mut open = Vec::new();
        open.resize_with(OPEN_MAX, || None);
        let mut queues = Vec::new();
        queues.resize_with(usize::from(QUEUES_MAX), Queue::default);
        VhostDisk {
            payload,
            zeroes,
            session: session::Session::default(),
            table: Arc::default(),
            record: None,
            count: 0,
            features: 0,
            queues,
            open,
            open_bytes: 0,
            held: None,
            starved: false,
            seen: volume.lost,
            told: false,
            lost: false,
            shut: false,
            fault: None,
            volume,
        }
    }

    /// Whether it waits for a buffer.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// What the front end or its machine did wrong: nothing more is done for it.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// From now on what its requests carry is taken from this pool.
    pub(crate) fn draw_from(&mut self, payload: BufferPool) {
        self.payload = payload;
    }

    /// Nothing more is begun, and nothing is said to have failed: the next process is asked for it.
    pub fn shut_down(&mut self) {
        self.shut = true;
    }

    /// What its machine has seen is not so any more: from now on it gets errors.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// All caches were lost in this epoch: a machine that began before gets errors. One that was told nothing yet has seen
    /// nothing of what was lost, as when a whole cluster starts anew.
    pub fn know_lost(&mut self, lost: u64) {
        self.volume.lost = self.volume.lost.max(lost);
        if lost <= self.seen {
            return;
        }
        if self.told {
            self.lost = true;
        } else {
            self.seen = lost;
            self.remember_seen();
        }
    }

    /// The volume has a new size.
    pub fn resized(&mut self, sectors: u64) {
        self.volume.sectors = sectors;
        self.session.tell_of_change();
    }

    /// The machine says that there is something in a queue, by this signal. False if it is none of the queue's any more.
    pub fn kicked(&mut self, queue: u16, signal: &Handle) -> bool {
        let Some(queue) = self.queues.get_mut(usize::from(queue)) else { return false };
        if queue.kick.as_ref() != Some(signal) {
            return false;
        }
        queue.look |= signal.take_signal();
        true
    }

    fn configuration(&self) -> Configuration {
        let zero_sectors = u32::try_from(ZEROES_BYTES_MAX >> 9).expect("64 MiB");
        let (sectors, block_bytes) = (self.volume.sectors, self.volume.block_bytes);
        Configuration { sectors, block_bytes, zero_sectors }
    }

    /// The volume's name: the same on every node.
    fn serial(&self) -> Serial {
        let text = format!("{:016x}{:04x}", self.volume.identity, self.volume.volume);
        text.as_bytes().try_into().expect("twenty digits")
    }

    /// Begins what is in the rings, as far as limits allow.
    pub fn proceed(&mut self, demands: &mut Vec<Demand>) {
        self.starved = false;
        if self.fault.is_none()
            && let Err(fault) = self.take_all(demands)
        {
            self.fault = Some(fault);
        }
        self.tell_machine();
    }

    fn take_all(&mut self, demands: &mut Vec<Demand>) -> Result<(), Fault> {
        if self.shut {
            return Ok(());
        }
        if let Some(slot) = self.held.take() {
            self.begin(slot, demands)?;
        }
        let mut taken = 0;
        // One of each queue by turns.
        while taken < TAKEN_MAX {
            let before = taken;
            for queue in 0..QUEUES_MAX {
                if self.held.is_some() {
                    return Ok(());
                }
                taken += usize::from(self.take_one(queue, demands)?);
            }
            if taken == before {
                return Ok(());
            }
        }
        // Others have their turn; then there may be more.
        for kick in
            self.queues.iter().filter(|queue| queue.look).filter_map(|queue| queue.kick.as_ref())
        {
            kick.signal();
        }
        Ok(())
    }

    /// Takes one request from a queue; false if there is none, or no room.
    fn take_one(&mut self, number: u16, demands: &mut Vec<Demand>) -> Result<bool, Fault> {
        let queue = &mut self.queues[usize::from(number)];
        let has_some = queue.look || !queue.again.is_empty();
        if !queue.enabled || queue.kick.is_none() || !has_some {
            return Ok(false);
        }
        let Some(ring) = queue.ring else { return Ok(false) };
        let Some(slot) = self.open.iter().position(Option::is_none) else { return Ok(false) };
        let record = self.record.as_ref().and_then(|(shape, memory)| {
            let inflight = Inflight::of(shape, number)?;
            Some((inflight, memory))
        });
        let head = match queue.again.pop_front() {
            Some(head) => head,
            None if ring.waiting(&*self.table, queue.taken)? == 0 => {
                queue.look = false;
                return Ok(false);
            }
            None => {
                let head = ring.head(&*self.table, queue.taken)?;
                let is_it = |open: &Option<Open>| matches!(open, Some(o) if o.queue == number && o.head == head);
                if self.open.iter().any(is_it) {
                    return Err(Fault::Twice(head));
                }
                queue.taken = queue.taken.wrapping_add(1);
                self.count += 1;
                if let Some((inflight, memory)) = record {
                    inflight.begin(memory, head, self.count)?;
                }
                head
            }
        };
        let tables = self.features & INDIRECT_FEATURE != 0;
        let chain: Chain = ring.chain(&*self.table, &self.table.regions, head, tables)?;
        let request = BlockRequest::parse(&*self.table, chain)?;
        queue.open += 1;
        let table = self.table.clone();
        let (range, waiting, failed) = (0..0, 0, false);
        self.open[slot] =
            Some(Open { queue: number, head, table, request, range, waiting, failed });
        self.begin(u8::try_from(slot).expect("below 128"), demands)?;
        Ok(true)
    }

    /// Begins a request that was taken, or holds it.
    fn begin(&mut self, slot: u8, demands: &mut Vec<Demand>) -> Result<(), Fault> {
        match self.submit(slot, demands)? {
            Begun::With(pieces, range) => {
                let open = self.open[usize::from(slot)].as_mut().expect("it was taken");
                (open.waiting, open.range) = (pieces, range);
                self.open_bytes += moved_bytes(&open.request);
                Ok(())
            }
            Begun::Answered(status) => self.settle(slot, status, 1),
            Begun::Later => {
                self.held = Some(slot);
                Ok(())
            }
        }
    }

    fn submit(&mut self, slot: u8, demands: &mut Vec<Demand>) -> Result<Begun, Fault> {
        let open = self.open[usize::from(slot)].as_ref().expect("it was taken");
        let request = &open.request;
        if self.lost {
            return Ok(Begun::Answered(STATUS_FAILED));
        }
        let range = match request.op {
            BlockOp::Flush => {
                let pieces = self.submit_flush(slot, demands);
                return Ok(Begun::With(pieces, 0..0));
            }
            BlockOp::Id => {
                let serial = self.serial();
                give(open, 0, &serial[..serial.len().min(small(request.bytes))])?;
                return Ok(Begun::Answered(STATUS_OK));
            }
            BlockOp::Other => return Ok(Begun::Answered(STATUS_UNSUPPORTED)),
            _ => match self.range_of(request) {
                Some(range) => range,
                None => return Ok(Begun::Answered(STATUS_FAILED)),
            },
        };
        let bytes = moved_bytes(request);
        // What is larger than the limit alone is begun alone.
        if self.open_bytes > 0 && self.open_bytes + bytes > BYTES_OPEN_MAX {
            return Ok(Begun::Later);
        }
        // A machine that never flushes is to lose nothing by that.
        let fua = self.features & FLUSH_FEATURE == 0;
        let (op, mut buffers) = match request.op {
            BlockOp::Write { .. } => match self.load(open, &range)? {
                Some(buffers) => (Op::Write, buffers),
                None => {
                    self.starved = true;
                    return Ok(Begun::Later);
                }
            },
            BlockOp::Zero { unmap, .. } => (Op::Zero { unmap }, Vec::new()),
            _ => (Op::Read, Vec::new()),
        };
        let mut count = 0;
        for piece in pieces_of(range.clone()) {
            let (tag, span) = (Tag { slot, piece: count }, span_of(&piece));
            let buffer = buffers.get_mut(usize::from(count)).and_then(Option::take);
            let fua = fua && op != Op::Read;
            let ask = Ask { tag, op, volume: None, shard: 0, span, buffer, fua };
            demands.push(Demand::Ask(ask));
            count += 1;
        }
        Ok(Begun::With(count, range))
    }

    /// The bytes of the volume that a request is about, if it may be.
    fn range_of(&self, request: &BlockRequest) -> Option<Range<u64>> {
        let (sector, bytes, limit) = match request.op {
            BlockOp::Read { sector } | BlockOp::Write { sector } => {
                (sector, request.bytes, TRANSFER_BYTES_MAX)
            }
            BlockOp::Zero { sector, count, .. } => {
                (sector, u64::from(count) * SECTOR_BYTES, ZEROES_BYTES_MAX)
            }
            _ => return None,
        };
        let block = u64::from(self.volume.block_bytes).max(SECTOR_BYTES);
        let first = sector.checked_mul(SECTOR_BYTES)?;
        let end = first.checked_add(bytes)?;
        let inside = end <= self.volume.sectors.saturating_mul(SECTOR_BYTES);
        let whole = first.is_multiple_of(block) && bytes.is_multiple_of(block);
        (inside && whole && bytes > 0 && bytes <= limit).then_some(first..end)
    }

    fn submit_flush(&self, slot: u8, demands: &mut Vec<Demand>) -> u16 {
        for shard in 0..self.volume.shards {
            let (tag, span) = (Tag { slot, piece: shard }, span_of(&(0..SECTOR_BYTES)));
            let (op, buffer) = (Op::Flush, None);
            let ask = Ask { tag, op, volume: None, shard, span, buffer, fua: false };
            demands.push(Demand::Ask(ask));
        }
        self.volume.shards
    }

    /// Copies a write's bytes to buffers, one for each piece; `None` if there are too few.
    fn load(&self, open: &Open, range: &Range<u64>) -> Result<Option<Vec<Option<Buffer>>>, Fault> {
        let mut buffers = Vec::new();
        for piece in pieces_of(range.clone()) {
            let Some(buffer) = self.payload.take(small(piece.end - piece.start)) else {
                return Ok(None);
            };
            buffers.push((piece.start - range.start, buffer));
        }
        let copy = |(offset, mut buffer): (u64, Buffer)| {
            take(open, offset, buffer.as_mut().expect("nobody else has it yet"))?;
            Ok(Some(buffer))
        };
        buffers.into_iter().map(copy).collect::<Result<_, Fault>>().map(Some)
    }

    /// A piece was carried out, or failed. `buffer`: the bytes of a read; `None` is all zeroes.
    ///
    /// # Panics
    /// If the piece is not open.
    pub(crate) fn answer(
        &mut self,
        tag: Tag,
        result: Result<(), AnswerError>,
        buffer: Option<&Buffer>,
    ) {
        if let Err(fault) = self.take_answer(tag, result, buffer) {
            self.fault.get_or_insert(fault);
        }
    }

    fn take_answer(
        &mut self,
        tag: Tag,
        result: Result<(), AnswerError>,
        buffer: Option<&Buffer>,
    ) -> Result<(), Fault> {
        let open = self.open[usize::from(tag.slot)].as_ref().expect("a piece is answered once");
        self.lost |= result == Err(AnswerError::SessionLost);
        let reads = matches!(open.request.op, BlockOp::Read { .. });
        // After a fault its memory is not touched.
        let given = if reads && result.is_ok() && self.fault.is_none() {
            let piece = pieces_of(open.range.clone()).nth(usize::from(tag.piece));
            let piece = piece.expect("it was submitted");
            let bytes = &buffer.unwrap_or(&self.zeroes)[..small(piece.end - piece.start)];
            give(open, piece.start - open.range.start, bytes)
        } else {
            Ok(())
        };
        let open = self.open[usize::from(tag.slot)].as_mut().expect("just seen");
        assert!(open.waiting > 0, "a piece is answered once");
        open.waiting -= 1;
        open.failed |= result.is_err();
        if open.waiting > 0 {
            return given;
        }
        let (failed, bytes) = (open.failed || self.lost, moved_bytes(&open.request));
        self.open_bytes -= bytes;
        given?;
        if self.fault.is_some() || (self.shut && failed) {
            // The next process is asked for it.
            return Ok(());
        }
        let status = if failed { STATUS_FAILED } else { STATUS_OK };
        let written = if reads && !failed { u32::try_from(bytes).unwrap_or(0) + 1 } else { 1 };
        self.settle(tag.slot, status, written)
    }

    /// Gives a request back to the machine.
    fn settle(&mut self, slot: u8, status: u8, written: u32) -> Result<(), Fault> {
        let open = self.open[usize::from(slot)].take().expect("it is open");
        self.told |= status == STATUS_OK;
        open.table.write(open.request.status.place, &[status])?;
        let queue = &mut self.queues[usize::from(open.queue)];
        queue.open -= 1;
        let Some(ring) = queue.ring else { return Ok(()) };
        let record = self.record.as_ref().and_then(|(shape, memory)| {
            let inflight = Inflight::of(shape, open.queue)?;
            Some((inflight, memory))
        });
        if let Some((inflight, memory)) = &record {
            inflight.about_to_answer(*memory, open.head)?;
        }
        ring.answer(&*self.table, queue.answered, open.head, written)?;
        queue.answered = queue.answered.wrapping_add(1);
        queue.unsaid = true;
        if let Some((inflight, memory)) = &record {
            inflight.end(*memory, open.head, queue.answered)?;
        }
        self.go_on_stopping(open.queue);
        Ok(())
    }

    /// Signals to the machine what was answered.
    fn tell_machine(&mut self) {
        if self.fault.is_some() {
            return;
        }
        for queue in self.queues.iter_mut().filter(|queue| queue.unsaid) {
            let (Some(ring), Some(call)) = (queue.ring, &queue.call) else { continue };
            queue.unsaid = false;
            match ring.wants_call(&*self.table) {
                Ok(true) => call.signal(),
                Ok(false) => {}
                Err(fault) => self.fault = Some(fault),
            }
        }
    }
}

/// Bytes of a request that travel.
fn moved_bytes(request: &BlockRequest) -> u64 {
    match request.op {
        BlockOp::Read { .. } | BlockOp::Write { .. } => request.bytes,
        _ => 0,
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("at most a request")
}

fn span_of(piece: &Range<u64>) -> Span {
    let count = u32::try_from((piece.end - piece.start) / SECTOR_BYTES).expect("at most a piece");
    Span::new(piece.start / SECTOR_BYTES, count).expect("the range has an end")
}

/// Goes through the places of a request's data from this byte on, for so many.
fn walk(
    parts: &[Part],
    mut offset: u64,
    length: usize,
    mut each: impl FnMut(Place, Range<usize>) -> Result<(), Lost>,
) -> Result<(), Fault> {
    let mut done = 0;
    for part in parts {
        if done == length {
            break;
        }
        if offset >= part.bytes {
            offset -= part.bytes;
            continue;
        }
        let rest = u64::try_from(length - done).expect("64 bits fit");
        let here = small((part.bytes - offset).min(rest));
        each(part.place.after(offset), done..done + here)?;
        (done, offset) = (done + here, 0);
    }
    Ok(())
}

/// Copies bytes of a write.
fn take(open: &Open, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    let length = bytes.len();
    let copy = |place, range| open.table.read(place, &mut bytes[range]);
    walk(&open.request.data, offset, length, copy)
}

/// Gives bytes of a read.
fn give(open: &Open, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    let copy = |place, range| open.table.write(place, &bytes[range]);
    walk(&open.request.data, offset, bytes.len(), copy)
}

#[cfg(test)]
mod tests;

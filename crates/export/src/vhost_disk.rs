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
//! - A piece is begun once there is memory for it, a read's too; requests begin in the order in which they were taken, and
//!   none before the last piece of the one before it.
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
use sys::{Buffer, BufferPool, Handle, Room, SharedMemory};
use vhost::{
    BlockOp, BlockRequest, Chain, Configuration, FLUSH_FEATURE, Fault, INDIRECT_FEATURE, Inflight,
    InflightShape, Lost, Memory, Part, Place, QUEUES_MAX, Regions, Ring, RingAddresses,
    STATUS_FAILED, STATUS_OK, STATUS_UNSUPPORTED, Serial, TRANSFER_BYTES_MAX,
};

use crate::nbd_connection::{Ask, BYTES_OPEN_MAX, Demand, Tag};
use crate::pieces::Course;
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
    /// Once it is begun.
    course: Option<Course>,
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
    /// The request that there is no room for yet, or not for all of it. Nothing else is taken before it is begun whole.
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

/// What has become of a request that is to begin, or to go on.
enum Begun {
    /// All that is to be done is with the shards.
    Whole,
    /// There is an answer at once, and so many bytes of the request's data with it.
    Answered(u8, u32),
    /// There is no room for all of it.
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
        let (table, course, failed) = (self.table.clone(), None, false);
        self.open[slot] = Some(Open { queue: number, head, table, request, course, failed });
        self.begin(u8::try_from(slot).expect("below 128"), demands)?;
        Ok(true)
    }

    /// Begins a request that was taken, or goes on with it; holds it until all of it is begun.
    fn begin(&mut self, slot: u8, demands: &mut Vec<Demand>) -> Result<(), Fault> {
        let mut open = self.open[usize::from(slot)].take().expect("it was taken");
        let begun = self.submit(slot, &mut open, demands);
        self.open[usize::from(slot)] = Some(open);
        match begun? {
            Begun::Whole => Ok(()),
            Begun::Answered(status, given) => self.settle(slot, status, given + 1),
            Begun::Later => {
                self.held = Some(slot);
                Ok(())
            }
        }
    }

    fn submit(
        &mut self,
        slot: u8,
        open: &mut Open,
        demands: &mut Vec<Demand>,
    ) -> Result<Begun, Fault> {
        let mut course = match open.course.take() {
            Some(course) => course,
            None if self.lost => return Ok(Begun::Answered(STATUS_FAILED, 0)),
            None => match self.course_of(slot, open, demands)? {
                Ok(course) => course,
                Err((status, given)) => return Ok(Begun::Answered(status, given)),
            },
        };
        let begun = self.submit_pieces(slot, open, &mut course, demands);
        open.course = Some(course);
        begun
    }

    /// What is to be done for a request. The inner error: it is answered at once, and so many bytes of its data were given.
    fn course_of(
        &self,
        slot: u8,
        open: &Open,
        demands: &mut Vec<Demand>,
    ) -> Result<Result<Course, (u8, u32)>, Fault> {
        let request = &open.request;
        Ok(match request.op {
            BlockOp::Flush => {
                self.submit_flush(slot, demands);
                Ok(Course::at_once(self.volume.shards))
            }
            BlockOp::Id => {
                let serial = self.serial();
                let told = &serial[..serial.len().min(small(request.bytes))];
                give(open, 0, told)?;
                Err((STATUS_OK, u32::try_from(told.len()).expect("twenty digits")))
            }
            BlockOp::Other => Err((STATUS_UNSUPPORTED, 0)),
            BlockOp::Read { .. } | BlockOp::Write { .. } | BlockOp::Zero { .. } => {
                self.range_of(request).map(Course::over).ok_or((STATUS_FAILED, 0))
            }
        })
    }

    fn submit_pieces(
        &mut self,
        slot: u8,
        open: &Open,
        course: &mut Course,
        demands: &mut Vec<Demand>,
    ) -> Result<Begun, Fault> {
        let op = match open.request.op {
            BlockOp::Write { .. } => Op::Write,
            BlockOp::Zero { unmap, .. } => Op::Zero { unmap },
            BlockOp::Read { .. } | BlockOp::Flush | BlockOp::Id | BlockOp::Other => Op::Read,
        };
        // A machine that never flushes is to lose nothing by that.
        let fua = op != Op::Read && self.features & FLUSH_FEATURE == 0;
        while let Some((piece, before)) = course.next() {
            if self.lost || open.failed {
                course.cut();
                let is_over = course.is_over();
                return Ok(if is_over { Begun::Answered(STATUS_FAILED, 0) } else { Begun::Whole });
            }
            let bytes = if has_data(&open.request) { piece.end - piece.start } else { 0 };
            if self.open_bytes > 0 && self.open_bytes + bytes > BYTES_OPEN_MAX {
                return Ok(Begun::Later);
            }
            let mut buffer = None;
            let is_there = match op {
                Op::Write => {
                    buffer = self.load(open, small(bytes), before)?;
                    buffer.is_some()
                }
                Op::Read => course.make_room(&self.payload, &piece),
                Op::Zero { .. } | Op::Flush => true,
            };
            if !is_there {
                self.starved = true;
                return Ok(Begun::Later);
            }
            self.open_bytes += bytes;
            let (tag, span) = (Tag { slot, piece: course.begin(&piece) }, span_of(&piece));
            let (volume, shard, came) = (None, 0, None);
            demands.push(Demand::Ask(Ask { tag, op, volume, shard, span, buffer, fua, came }));
        }
        Ok(Begun::Whole)
    }

    /// Copies a piece of a write to a buffer; `None` if there is none.
    fn load(&self, open: &Open, length: usize, before: u64) -> Result<Option<Buffer>, Fault> {
        let Some(mut buffer) = self.payload.take(length) else { return Ok(None) };
        take(open, before, buffer.as_mut().expect("nobody else has it yet"))?;
        Ok(Some(buffer))
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

    fn submit_flush(&self, slot: u8, demands: &mut Vec<Demand>) {
        for shard in 0..self.volume.shards {
            let (tag, span) = (Tag { slot, piece: shard }, span_of(&(0..SECTOR_BYTES)));
            let (op, buffer) = (Op::Flush, None);
            let ask = Ask { tag, op, volume: None, shard, span, buffer, fua: false, came: None };
            demands.push(Demand::Ask(ask));
        }
    }

    /// The room for what an open request has yet to read.
    pub(crate) fn room_of(&mut self, slot: u8) -> Option<&mut Room> {
        self.open.get_mut(usize::from(slot))?.as_mut()?.course.as_mut()?.room()
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
        let open = self.open[usize::from(tag.slot)].as_mut().expect("a piece is answered once");
        self.lost |= result == Err(AnswerError::SessionLost);
        open.failed |= result.is_err();
        let course = open.course.as_mut().expect("it is begun");
        let (piece, before) = course.end(tag.piece);
        let is_over = course.is_over();
        let reads = matches!(open.request.op, BlockOp::Read { .. });
        // After a fault its memory is not touched.
        let given = if reads && result.is_ok() && self.fault.is_none() {
            let bytes = &buffer.unwrap_or(&self.zeroes)[..small(piece.end - piece.start)];
            give(open, before, bytes)
        } else {
            Ok(())
        };
        let (failed, bytes) = (open.failed || self.lost, open.request.bytes);
        if has_data(&open.request) {
            self.open_bytes -= piece.end - piece.start;
        }
        given?;
        if !is_over {
            return Ok(());
        }
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

/// Whether bytes of it travel.
fn has_data(request: &BlockRequest) -> bool {
    matches!(request.op, BlockOp::Read { .. } | BlockOp::Write { .. })
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

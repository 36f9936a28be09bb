//! A queue of a disk of this host, between the kernel's requests and the shards. Most disks have one.
//!
//! The owner hands in what the kernel fetched ([`UblkDisk::arrived`]), carries out the [`Demand`]s, hands answers in, and
//! gives the kernel what [`UblkDisk::take_done`] says.
//!
//! Always:
//! - A request is answered once, when every piece of it is; or never, if the node stops before that: then the kernel asks
//!   the next process.
//! - A piece lies between two multiples of [`PIECE_BYTES`](crate::PIECE_BYTES), hence in one extent.
//! - A piece is begun once there is memory for it, a read's too; requests begin in the order in which they came, and none
//!   before the last piece of the one before it.
//! - What was answered is with the kernel, or was refused by it: bytes of a read are copied before it is said to be done.
//! - A disk whose session is lost gets errors, whoever serves it, until it is made anew.
//!
//! Not here: the kernel's interface (`sys`), when disks are made and go (`lockstepd`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::{AnswerError, Op, SECTOR_BYTES, Span};
use sys::{Buffer, BufferPool, Errno, Room, UBLK_DEPTH, UblkDevice, UblkOp, UblkRequest};

use crate::nbd_connection::{Ask, BYTES_OPEN_MAX, Demand, Tag};
use crate::pieces::{Course, PIECE_BYTES};

/// Bytes of one discard or zeroing, at most: as many pieces are with the shards at once as of an NBD client's.
pub const ZEROES_BYTES_MAX: u64 = 64 * PIECE_BYTES;

/// Where requests and their bytes are.
pub trait DiskData: Send {
    /// The request under a tag.
    fn request(&self, tag: u16) -> UblkRequest;
    /// Bytes of a write, from this many after its first.
    ///
    /// # Errors
    /// It is none of this process's any more.
    fn take(&self, tag: u16, offset: u32, bytes: &mut [u8]) -> Result<(), Errno>;
    /// Bytes of a read.
    ///
    /// # Errors
    /// As [`DiskData::take`].
    fn give(&self, tag: u16, offset: u32, bytes: &[u8]) -> Result<(), Errno>;
}

/// A queue of a device.
#[derive(Clone, Debug)]
pub struct UblkQueue {
    /// The device.
    pub device: Arc<UblkDevice>,
    /// Which of its queues.
    pub number: u16,
}

impl DiskData for UblkQueue {
    fn request(&self, tag: u16) -> UblkRequest {
        self.device.request(self.number, tag)
    }

    fn take(&self, tag: u16, offset: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.device.take(self.number, tag, offset, bytes)
    }

    fn give(&self, tag: u16, offset: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.device.give(self.number, tag, offset, bytes)
    }
}

/// An open request.
struct Open {
    request: UblkRequest,
    course: Course,
    failed: Option<Errno>,
}

/// A request that is answered: its tag, and how many bytes were moved.
pub type Done = (u16, Result<u32, Errno>);

/// One disk.
pub struct UblkDisk {
    data: Box<dyn DiskData>,
    payload: BufferPool,
    /// 1 MiB of zeroes.
    zeroes: Buffer,
    /// Number of shards of the resource.
    flush_parts: u16,
    open: Vec<Option<Open>>,
    open_bytes: u64,
    /// Have arrived, and are not begun; of the first some pieces may be.
    waiting: VecDeque<u16>,
    done: Vec<Done>,
    starved: bool,
    lost: bool,
    shut: bool,
}

impl UblkDisk {
    /// A disk of a resource with so many shards. `zeroes` is [`PIECE_BYTES`](crate::PIECE_BYTES) of zeroes, shared.
    #[must_use]
    pub fn new(
        data: Box<dyn DiskData>,
        payload: BufferPool,
        zeroes: Buffer,
        flush_parts: u16,
    ) -> UblkDisk {
        let mut open = Vec::new();
        open.resize_with(usize::from(UBLK_DEPTH), || None);
        UblkDisk {
            data,
            payload,
            zeroes,
            flush_parts,
            open,
            open_bytes: 0,
            waiting: VecDeque::new(),
            done: Vec::new(),
            starved: false,
            lost: false,
            shut: false,
        }
    }

    /// The kernel has a request under this tag.
    pub fn arrived(&mut self, tag: u16) {
        self.waiting.push_back(tag);
    }

    /// Whether it waits for a buffer: call [`UblkDisk::proceed`] when some may be free.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// From now on what its requests carry is taken from this pool.
    pub(crate) fn draw_from(&mut self, payload: BufferPool) {
        self.payload = payload;
    }

    /// Nothing more is begun, and nothing is said to have failed: the next process is asked for it.
    pub fn shut_down(&mut self) {
        self.shut = true;
    }

    /// What its users have seen is not so any more: from now on they get errors.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether its users get nothing but errors any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether it was shut down.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut
    }

    /// Ends everything that is open with an error, unless it is shut down; what the shards answer afterwards is not to be
    /// handed in.
    pub fn end(&mut self) -> Vec<Done> {
        let mut all = std::mem::take(&mut self.done);
        if self.shut {
            return all;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|tag| self.open[usize::from(*tag)].is_none());
        let open = (0_u16..).zip(&mut self.open).filter_map(|(tag, open)| {
            open.take()?;
            Some(tag)
        });
        all.extend(waiting.into_iter().chain(open).map(|tag| (tag, Err(Errno::IO))));
        self.open_bytes = 0;
        all
    }

    /// What the kernel is to be told, in order.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// Begins what has arrived, as far as limits allow.
    pub fn proceed(&mut self, demands: &mut Vec<Demand>) {
        self.starved = false;
        while !self.shut
            && let Some(&tag) = self.waiting.front()
            && self.begin(tag, demands)
        {
            self.waiting.pop_front();
        }
    }

    /// Begins a request, or goes on with it; false if there is no room yet for all of it.
    fn begin(&mut self, tag: u16, demands: &mut Vec<Demand>) -> bool {
        let index = usize::from(tag);
        if self.open[index].is_none() {
            let request = self.data.request(tag);
            match self.course_of(&request) {
                Err(errno) => {
                    self.done.push((tag, Err(errno)));
                    return true;
                }
                Ok(course) => self.open[index] = Some(Open { request, course, failed: None }),
            }
            if request.op == UblkOp::Flush {
                self.submit_flush(tag, demands);
            }
        }
        let mut open = self.open[index].take().expect("just seen");
        let goes_on = self.submit(tag, &mut open, demands);
        let is_over = open.course.is_over();
        self.open[index] = Some(open);
        if is_over {
            self.settle(tag);
        }
        goes_on
    }

    /// What is to be done for a request.
    fn course_of(&self, request: &UblkRequest) -> Result<Course, Errno> {
        if self.lost {
            return Err(Errno::IO);
        }
        let range = match request.op {
            UblkOp::Flush => return Ok(Course::at_once(self.flush_parts)),
            UblkOp::Other => return Err(Errno::NOT_SUPPORTED),
            UblkOp::Read | UblkOp::Write | UblkOp::Discard | UblkOp::Zero { .. } => {
                bytes_of(request)
            }
        };
        if range.is_empty() { Err(Errno::INVALID) } else { Ok(Course::over(range)) }
    }

    /// Submits more of a request; false if there is no room yet for all of it.
    fn submit(&mut self, tag: u16, open: &mut Open, demands: &mut Vec<Demand>) -> bool {
        let op = op_of(open.request.op);
        while let Some((piece, before)) = open.course.next() {
            if self.lost || open.failed.is_some() {
                open.course.cut();
                return true;
            }
            let length = if has_data(open.request.op) { piece.end - piece.start } else { 0 };
            if self.open_bytes > 0 && self.open_bytes + length > BYTES_OPEN_MAX {
                return false;
            }
            let buffer = match op {
                Op::Write => match self.load(tag, &piece, before) {
                    Ok(Some(buffer)) => Some(buffer),
                    Ok(None) => {
                        self.starved = true;
                        return false;
                    }
                    Err(errno) => {
                        open.failed = Some(errno);
                        continue;
                    }
                },
                Op::Read if !open.course.make_room(&self.payload, &piece) => {
                    self.starved = true;
                    return false;
                }
                Op::Read | Op::Zero { .. } | Op::Flush => None,
            };
            self.open_bytes += length;
            let tag = Tag { slot: slot_of(tag), piece: open.course.begin(&piece) };
            let (span, fua) = (span_of(&piece), op != Op::Read && open.request.fua);
            let ask = Ask { tag, op, volume: None, shard: 0, span, buffer, fua, came: None };
            demands.push(Demand::Ask(ask));
        }
        true
    }

    /// Copies a piece of a write to a buffer; `None` if there is none.
    fn load(&self, tag: u16, piece: &Range<u64>, before: u64) -> Result<Option<Buffer>, Errno> {
        let length = usize::try_from(piece.end - piece.start).expect("at most a piece");
        let Some(mut buffer) = self.payload.take(length) else { return Ok(None) };
        let bytes = buffer.as_mut().expect("nobody else has it yet");
        self.data.take(tag, offset(before), bytes)?;
        Ok(Some(buffer))
    }

    fn submit_flush(&self, tag: u16, demands: &mut Vec<Demand>) {
        for shard in 0..self.flush_parts {
            let (tag, span) =
                (Tag { slot: slot_of(tag), piece: shard }, span_of(&(0..SECTOR_BYTES)));
            let (op, buffer) = (Op::Flush, None);
            let ask = Ask { tag, op, volume: None, shard, span, buffer, fua: false, came: None };
            demands.push(Demand::Ask(ask));
        }
    }

    /// The room for what an open request has yet to read.
    pub(crate) fn room_of(&mut self, slot: u8) -> Option<&mut Room> {
        self.open.get_mut(usize::from(slot))?.as_mut()?.course.room()
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
        let number = u16::from(tag.slot);
        let open = self.open[usize::from(number)].as_mut().expect("a piece is answered once");
        let (piece, before) = open.course.end(tag.piece);
        let length = piece.end - piece.start;
        self.lost |= result == Err(AnswerError::SessionLost);
        let request = open.request;
        let given = match result {
            Err(error) => Err(errno_of(error)),
            Ok(()) if request.op == UblkOp::Read => {
                let count = usize::try_from(length).expect("at most a piece");
                let bytes = &buffer.unwrap_or(&self.zeroes)[..count];
                self.data.give(number, offset(before), bytes)
            }
            Ok(()) => Ok(()),
        };
        if let Err(errno) = given {
            open.failed = Some(errno);
        }
        if has_data(request.op) {
            self.open_bytes -= length;
        }
        if open.course.is_over() {
            self.settle(number);
        }
    }

    /// Every piece of a request is answered, and none is to come.
    fn settle(&mut self, tag: u16) {
        let open = self.open[usize::from(tag)].take().expect("it is open");
        let bytes = if has_data(open.request.op) { open.request.count << 9 } else { 0 };
        let result = match open.failed {
            _ if self.lost => Err(Errno::IO),
            Some(errno) => Err(errno),
            None => Ok(bytes),
        };
        if result.is_ok() || !self.shut {
            self.done.push((tag, result));
        }
    }
}

/// Whether bytes of it travel.
fn has_data(op: UblkOp) -> bool {
    matches!(op, UblkOp::Read | UblkOp::Write)
}

fn bytes_of(request: &UblkRequest) -> Range<u64> {
    let first = request.first.saturating_mul(SECTOR_BYTES);
    first..first.saturating_add(u64::from(request.count) * SECTOR_BYTES)
}

fn span_of(piece: &Range<u64>) -> Span {
    let count = u32::try_from((piece.end - piece.start) / SECTOR_BYTES).expect("at most a piece");
    Span::new(piece.start / SECTOR_BYTES, count).expect("the kernel asks within the disk")
}

fn offset(before: u64) -> u32 {
    u32::try_from(before).expect("inside a request")
}

/// What shards are asked for it.
fn op_of(op: UblkOp) -> Op {
    match op {
        UblkOp::Read => Op::Read,
        UblkOp::Write => Op::Write,
        UblkOp::Discard => Op::Zero { unmap: true },
        UblkOp::Zero { unmap } => Op::Zero { unmap },
        UblkOp::Flush | UblkOp::Other => Op::Flush,
    }
}

fn slot_of(tag: u16) -> u8 {
    u8::try_from(tag).expect("below 128")
}

/// What a user of the disk is told.
fn errno_of(error: AnswerError) -> Errno {
    match error {
        AnswerError::OutOfRange
        | AnswerError::NoQuorum
        | AnswerError::Io
        | AnswerError::SessionLost
        | AnswerError::Gone
        | AnswerError::Path
        | AnswerError::Reserved => Errno::IO,
    }
}

#[cfg(test)]
mod tests;

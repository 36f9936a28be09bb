//! The record of requests that were taken and not answered. It lies in memory that the front end keeps, and gives to the
//! process that comes after one that died.
//!
//! Always: a request is in it from before anything is done for it until after the machine can see its answer. Whatever happens
//! between two writes here, the next process finds out which one was answered last.
//!
//! The form is the protocol's, for split rings; behind it stands, for nobody but the next process, which volume it is
//! of and what its machine has seen.

use alloc::vec::Vec;

use crate::message::{ring_size, u16_at, u64_at};
use crate::{Fault, Memory, Place, QUEUES_MAX};

const QUEUE_HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
const QUEUE_ALIGNMENT: u64 = 64;
const SEEN_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
const MARK: u64 = u64::from_le_bytes(*b"lockstep");

/// Of how many queues a record is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InflightShape {
    /// Bytes of its memory, as the front end has it.
    pub bytes: u64,
    /// Where it begins.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Places of each ring.
    pub size: u16,
    /// Bytes of the message that says so: 20, or 24 by a front end that fills it up.
    pub message_bytes: usize,
}

/// Which volume a record is of, and what its machine has seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    /// Of the resource.
    pub identity: u64,
    /// In it.
    pub volume: u16,
    /// The last loss of all caches before the machine began.
    pub lost: u64,
}

impl InflightShape {
    pub(crate) fn parse(body: &[u8]) -> Result<InflightShape, Fault> {
        if body.len() != 20 && body.len() != 24 {
            return Err(Fault::Inflight);
        }
        let (queues, size) = (u16_at(body, 16), u16_at(body, 18));
        if queues == 0 || queues > QUEUES_MAX {
            return Err(Fault::Queue(u32::from(queues)));
        }
        let size = ring_size(u32::from(size))?;
        let (bytes, offset) = (u64_at(body, 0), u64_at(body, 8));
        Ok(InflightShape { bytes, offset, queues, size, message_bytes: body.len() })
    }

    /// The answer that says so.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.bytes.to_le_bytes());
        body.extend_from_slice(&self.offset.to_le_bytes());
        body.extend_from_slice(&self.queues.to_le_bytes());
        body.extend_from_slice(&self.size.to_le_bytes());
        body.resize(self.message_bytes, 0);
        body
    }

    fn queue_bytes(&self) -> u64 {
        (QUEUE_HEADER_BYTES + ENTRY_BYTES * u64::from(self.size)).next_multiple_of(QUEUE_ALIGNMENT)
    }

    fn seen_at(&self) -> u64 {
        self.queue_bytes() * u64::from(self.queues)
    }

    /// Bytes that its memory needs.
    #[must_use]
    pub fn bytes_needed(&self) -> u64 {
        (self.seen_at() + SEEN_BYTES).next_multiple_of(PAGE_BYTES)
    }
}

fn place(offset: u64) -> Place {
    Place { region: 0, offset }
}

fn put(memory: &impl Memory, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    Ok(memory.write(place(at), bytes)?)
}

fn get<const N: usize>(memory: &impl Memory, at: u64) -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    memory.read(place(at), &mut bytes)?;
    Ok(bytes)
}

impl Seen {
    /// Writes it behind a new record.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn write(&self, memory: &impl Memory, shape: &InflightShape) -> Result<(), Fault> {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&MARK.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.identity.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.volume.to_le_bytes());
        bytes[24..].copy_from_slice(&self.lost.to_le_bytes());
        put(memory, shape.seen_at(), &bytes)
    }

    /// What stands behind a record.
    ///
    /// # Errors
    /// [`Fault::Inflight`]: it was none of ours.
    pub fn read(memory: &impl Memory, shape: &InflightShape) -> Result<Seen, Fault> {
        let bytes: [u8; 32] = get(memory, shape.seen_at())?;
        if u64_at(&bytes, 0) != MARK {
            return Err(Fault::Inflight);
        }
        let (identity, volume) = (u64_at(&bytes, 8), u16_at(&bytes, 16));
        Ok(Seen { identity, volume, lost: u64_at(&bytes, 24) })
    }
}

/// One queue's part of the record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inflight {
    at: u64,
    size: u16,
}

impl Inflight {
    /// Of one queue of a record.
    #[must_use]
    pub fn of(shape: &InflightShape, queue: u16) -> Option<Inflight> {
        let at = shape.queue_bytes() * u64::from(queue);
        (queue < shape.queues).then_some(Inflight { at, size: shape.size })
    }

    /// Places of its ring, at most.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    fn entry(&self, head: u16) -> u64 {
        assert!(head < self.size, "a head of the ring");
        self.at + QUEUE_HEADER_BYTES + ENTRY_BYTES * u64::from(head)
    }

    /// Nothing is open.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn clear(&self, memory: &impl Memory) -> Result<(), Fault> {
        let mut header = [0; 16];
        header[8..10].copy_from_slice(&1_u16.to_le_bytes());
        header[10..12].copy_from_slice(&self.size.to_le_bytes());
        put(memory, self.at, &header)
    }

    /// A request is taken, as number `count` of all.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn begin(&self, memory: &impl Memory, head: u16, count: u64) -> Result<(), Fault> {
        put(memory, self.entry(head) + 8, &count.to_le_bytes())?;
        put(memory, self.entry(head), &[1])
    }

    /// A request is about to be answered: if the machine can see more answers than are recorded, it was this one.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn about_to_answer(&self, memory: &impl Memory, head: u16) -> Result<(), Fault> {
        memory.store(place(self.at + 12), head)?;
        Ok(())
    }

    /// The machine can see its answer, and so many in all.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn end(&self, memory: &impl Memory, head: u16, answered: u16) -> Result<(), Fault> {
        // Between the other writes and these, in their order.
        memory.store(place(self.entry(head)), 0)?;
        memory.store(place(self.at + 14), answered)?;
        Ok(())
    }

    /// What is open, in the order in which it was taken, when the machine sees so many answers.
    ///
    /// # Errors
    /// [`Fault::Gone`], or it says what cannot be.
    pub fn open(&self, memory: &impl Memory, answered: u16) -> Result<Vec<(u64, u16)>, Fault> {
        if memory.load(place(self.at + 14))? != answered {
            let last = memory.load(place(self.at + 12))?;
            if last >= self.size {
                return Err(Fault::Inflight);
            }
            self.end(memory, last, answered)?;
        }
        let mut open = Vec::new();
        for head in 0..self.size {
            let entry: [u8; 16] = get(memory, self.entry(head))?;
            if entry[0] == 1 {
                open.push((u64_at(&entry, 8), head));
            }
        }
        open.sort_unstable();
        Ok(open)
    }
}

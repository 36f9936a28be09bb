//! Requests of virtio for disks, and what a disk says that it is.

use alloc::vec::Vec;

use crate::message::{u32_at, u64_at};
use crate::{Chain, Fault, Memory, PROTOCOL_FEATURES_BIT, Part, QUEUES_MAX};

/// Parts of one request's data, at most: with header and status what fits in a ring of 128.
pub const SEGMENTS_MAX: u32 = 126;

/// Bytes of one part, at most.
const SEGMENT_BYTES_MAX: u32 = 256 << 10;

/// Bytes of one read or write, at most: an answer says in 32 bits how many were written, and one more for its status. Drivers
/// ask for no more than [`SEGMENTS_MAX`] parts; firmware may.
pub const TRANSFER_BYTES_MAX: u64 = (1 << 32) - 4096;

/// Bytes that a question for a disk's name is answered with.
pub const ID_BYTES: usize = 20;

/// A disk's name.
pub type Serial = [u8; ID_BYTES];

/// It went well.
pub const STATUS_OK: u8 = 0;
/// It did not.
pub const STATUS_FAILED: u8 = 1;
/// It was not offered.
pub const STATUS_UNSUPPORTED: u8 = 2;

const SIZE_MAX: u64 = 1 << 1;
const SEG_MAX: u64 = 1 << 2;
const BLK_SIZE: u64 = 1 << 6;
/// The machine flushes; one that does not is served as if it did after each write.
pub const FLUSH_FEATURE: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;
const MQ: u64 = 1 << 12;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;
/// Requests may have tables of descriptors of their own.
pub const INDIRECT_FEATURE: u64 = 1 << 28;
const VERSION_1: u64 = 1 << 32;

/// What of virtio is offered.
pub const OFFERED_FEATURES: u64 = SIZE_MAX
    | SEG_MAX
    | BLK_SIZE
    | FLUSH_FEATURE
    | TOPOLOGY
    | MQ
    | DISCARD
    | WRITE_ZEROES
    | INDIRECT_FEATURE
    | VERSION_1
    | PROTOCOL_FEATURES_BIT;

/// Bytes of a disk's configuration.
pub const CONFIG_BYTES: usize = 60;

/// What a disk is like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Configuration {
    /// Its size.
    pub sectors: u64,
    /// Of the smallest read and write.
    pub block_bytes: u32,
    /// Of the largest discard and zeroing.
    pub zero_sectors: u32,
}

impl Configuration {
    /// `virtio_blk_config`.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let block_sectors = self.block_bytes >> 9;
        put(0, &self.sectors.to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        put(26, &1_u16.to_le_bytes());
        put(34, &QUEUES_MAX.to_le_bytes());
        put(36, &self.zero_sectors.to_le_bytes());
        put(40, &1_u32.to_le_bytes());
        put(44, &block_sectors.to_le_bytes());
        put(48, &self.zero_sectors.to_le_bytes());
        put(52, &1_u32.to_le_bytes());
        put(56, &[1]);
        bytes
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockOp {
    /// Bytes from this sector on, into the data.
    Read {
        /// The first.
        sector: u64,
    },
    /// The data, from this sector on.
    Write {
        /// The first.
        sector: u64,
    },
    /// Everything answered before is to survive a power cut.
    Flush,
    /// Its name, into the data.
    Id,
    /// These are to read as zeroes, or need not be kept.
    Zero {
        /// The first.
        sector: u64,
        /// How many.
        count: u32,
        /// The space may be given back.
        unmap: bool,
    },
    /// Something that was not offered.
    Other,
}

/// One request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlockRequest {
    /// What.
    pub op: BlockOp,
    /// What is read from or written to, in order.
    pub data: Vec<Part>,
    /// Bytes of that.
    pub bytes: u64,
    /// Where one byte says how it went.
    pub status: Part,
}

const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;

impl BlockRequest {
    /// From a request's memory. Its header is read once.
    ///
    /// # Errors
    /// It has no header, or no status.
    pub fn parse(memory: &impl Memory, chain: Chain) -> Result<BlockRequest, Fault> {
        let Chain { mut readable, mut writable } = chain;
        let mut header = [0; 16];
        cut(memory, &mut readable, HEADER_BYTES, &mut header)?;
        let last = writable.last_mut().ok_or(Fault::Request)?;
        last.bytes -= 1;
        let status = Part { place: last.place.after(last.bytes), bytes: 1 };
        writable.retain(|part| part.bytes > 0);
        let (kind, sector) = (u32_at(&header, 0), u64_at(&header, 8));
        let mut zero = |discards: bool| -> Result<BlockOp, Fault> {
            if sum(&readable) != RANGE_BYTES {
                return Ok(BlockOp::Other);
            }
            let mut range = [0; 16];
            cut(memory, &mut readable, RANGE_BYTES, &mut range)?;
            let flags = u32_at(&range, 12);
            // Of a discard nothing further can be said; of a zeroing one thing.
            let known = if discards { 0 } else { 1 };
            Ok(match flags & !known {
                0 => BlockOp::Zero {
                    sector: u64_at(&range, 0),
                    count: u32_at(&range, 8),
                    unmap: discards || flags == 1,
                },
                _ => BlockOp::Other,
            })
        };
        let op = match kind {
            0 => BlockOp::Read { sector },
            1 => BlockOp::Write { sector },
            4 => BlockOp::Flush,
            8 => BlockOp::Id,
            11 => zero(true)?,
            13 => zero(false)?,
            _ => BlockOp::Other,
        };
        let data = match op {
            BlockOp::Write { .. } => readable,
            _ => writable,
        };
        let bytes = sum(&data);
        Ok(BlockRequest { op, data, bytes, status })
    }
}

fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

/// Takes so many bytes off the front.
fn cut(
    memory: &impl Memory,
    parts: &mut Vec<Part>,
    count: u64,
    bytes: &mut [u8],
) -> Result<(), Fault> {
    if sum(parts) < count {
        return Err(Fault::Request);
    }
    let mut done = 0;
    for part in parts.iter_mut() {
        let here = part.bytes.min(count - done);
        let from = usize::try_from(done).expect("at most 16");
        let to = usize::try_from(done + here).expect("at most 16");
        memory.read(part.place, &mut bytes[from..to])?;
        *part = Part { place: part.place.after(here), bytes: part.bytes - here };
        done += here;
        if done == count {
            break;
        }
    }
    parts.retain(|part| part.bytes > 0);
    Ok(())
}

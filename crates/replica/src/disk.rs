//! What a node keeps on stable storage for a resource, as types and as bytes.
//!
//! `Record` is the durable state of the member; `log` are the pages of the activity log; `superblock`
//! says whose disk it is and where everything stands; `layout` computes places.
//! `docs/formats/metadata.md` describes every byte.
//!
//! Always: decoding never panics and never guesses; each piece carries a checksum, and a page its own
//! place.
//!
//! Not here: reading and writing (`store`), dirty bitmaps in memory (`shard`).

mod bitmap;
mod bytes;
mod layout;
mod log;
mod record;
mod sums;
mod superblock;

#[cfg(test)]
mod tests;

pub use bitmap::{BITMAP_PAGE_BITS, decode_bitmap_page, encode_bitmap_page};
pub use layout::{LOG_COPIES, LOG_HALVES, Layout, RECORD_BYTES, RECORD_COPIES};
pub use log::{
    LOG_PAGE_EXTENTS_MAX, LogFound, LogPage, decode_log_page, encode_log_page, hot_extents,
};
pub use record::newest_record;
pub use sums::{SUMS_BLOCKS, SUMS_PAGES, block_sum, decode_sums, encode_sums};
pub use superblock::{AreaPlace, LayoutKind, Region, RegionKind, SUPERBLOCK_BYTES, Superblock};

use crate::door::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, VoterId};
use wire::{Configuration, Life, Seen};

/// Why bytes read from a disk are not what should be there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadMetadata {
    /// Nothing of this project was ever written there.
    NotOurs,
    /// Written only in part, or rotten: the checksum or the lengths do not fit.
    Torn,
    /// A valid page that belongs elsewhere: a write went astray.
    Misplaced,
    /// Written by a version that this one does not understand.
    TooNew {
        /// The format number that is not known here.
        format: u32,
    },
    /// It needs features that this version does not have.
    UnknownFeatures {
        /// Their bits in the mask of incompatible features.
        bits: u64,
    },
    /// The data lies on the disks in a way that this version does not know.
    UnknownLayout {
        /// Its number.
        kind: u8,
    },
    /// The disk gave an error.
    Unreadable,
}

impl core::fmt::Display for BadMetadata {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BadMetadata::NotOurs => out.write_str("it is none of ours"),
            BadMetadata::Torn => out.write_str("it is torn or rotten"),
            BadMetadata::Misplaced => out.write_str("it belongs elsewhere"),
            BadMetadata::TooNew { format } => {
                write!(out, "it is of format {format}, which is unknown here")
            }
            BadMetadata::UnknownFeatures { bits } => {
                write!(out, "it needs features that are unknown here, bits {bits:#x}")
            }
            BadMetadata::UnknownLayout { kind: 2 } => {
                out.write_str("its layout is `stripe`, which cannot be served here")
            }
            BadMetadata::UnknownLayout { kind } => {
                write!(out, "its layout is of kind {kind}, which is unknown here")
            }
            BadMetadata::Unreadable => out.write_str("it cannot be read"),
        }
    }
}

/// The whole durable state of a member: register, identity, bitmap slots. Written as one, twice
/// alternately, so that a torn write loses nothing.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Record {
    /// Identity of this memory.
    pub voter: VoterId,
    /// Present life of the disk cache.
    pub incarnation: Incarnation,
    /// Number of starts of a process on this record.
    pub life: u64,
    /// Lives under this identity that others may have heard of, at most `wire::LIVES_MAX`, ascending.
    pub lives: Vec<Life>,
    /// Which half of the activity log this life writes.
    pub log_half: u8,
    /// No lower ballot is promised or accepted.
    pub promised: Ballot,
    /// What was accepted last, with its ballot.
    pub accepted: Option<(Ballot, Box<Configuration>)>,
    /// The newest configuration known to be committed, with its ballot.
    pub committed: Option<(Ballot, Box<Configuration>)>,
    /// Bitmap slots of the other replicas.
    pub slots: Vec<Slot>,
    /// The highest generation that any slot ever had.
    pub slot_generation: u64,
    /// What peers reported of their lives.
    pub seen: Vec<Seen>,
    /// The boot of the machine in which this record was written.
    pub boot: u128,
    /// The process stopped in good order: everything is flushed and nothing is in doubt.
    pub clean: bool,
    /// Writes that count may be in the memory of the process only that stored this: if it did not stop in good order,
    /// they are gone.
    pub in_memory: bool,
    /// The start of this life left its mark in the log of each volume but the first. A release that does not know marks
    /// leaves none, and does not say so.
    pub marked: bool,
    /// The last configuration known here with which a volume became smaller; 0: none. Its space may have been given back.
    pub shrunk: Epoch,
    /// The disk lost something of this copy, while it was the only one, of which no log tells any more: it is worth nothing
    /// once another one is there, also to later processes.
    pub unsure: bool,
    /// Times this record was stored: tells the newer of two copies, and which copy is next.
    pub stores: u64,
}

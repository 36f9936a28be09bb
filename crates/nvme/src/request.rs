//! What a host asks for on a queue for I/O.

use alloc::boxed::Box;
use base::ReservationCommand;
use core::ops::Range;

/// The place of an open request in its connection's table; free again once it is answered.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Slot(pub(crate) u8);

impl Slot {
    /// Its number, below [`crate::DEPTH_MAX`]: an index for the caller's own table.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What is asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Op {
    /// Read.
    Read,
    /// Write the data that comes. With `inline` it comes at once, else when it is asked for.
    Write {
        /// It comes with the request.
        inline: bool,
    },
    /// Compare the data that comes with what is there: a success if they are the same.
    Compare {
        /// It comes with the request.
        inline: bool,
    },
    /// Read the bytes, for nobody.
    Verify,
    /// Make every write answered so far survive a power cut.
    Flush,
    /// Make the bytes zero.
    Zero {
        /// The space behind them may be given back.
        unmap: bool,
    },
    /// Change who may use the volume; or, of a report, read who may, in as many bytes as the range has: answered as a read is.
    Reserve(Box<ReservationCommand>),
    /// These bytes are no longer needed; they read as zeroes afterwards, or as before.
    Deallocate(Box<[Range<u64>]>),
}

/// A request that has passed every check that the protocol and the volume's size allow for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Names it until it is answered.
    pub slot: Slot,
    /// Which volume; `None`: a flush of all.
    pub namespace: Option<u32>,
    /// What is asked for.
    pub op: Op,
    /// Which bytes, inside the volume and in whole blocks. Empty for a flush and where the operation names ranges. Reads,
    /// writes and comparisons have at most [`crate::TRANSFER_BYTES_MAX`].
    pub range: Range<u64>,
    /// What it writes survives a power cut once answered; so does what it reads.
    pub fua: bool,
}

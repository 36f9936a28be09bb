//! What a client is told about an export.

use crate::number::{
    BLOCK_BYTES_MIN_MAX, BLOCK_BYTES_PREFERRED_MIN, FLAG_CAN_MULTI_CONN, FLAG_HAS_FLAGS,
    FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_DF, FLAG_SEND_FAST_ZERO, FLAG_SEND_FLUSH,
    FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
    STATE_HOLE, STATE_ZERO,
};
use alloc::string::String;

/// What ends the name that a client opens which moves, `web/0?moves`: when its connection ends it sends what has no answer anew, to
/// this server or another of the same volume. Ours, not the protocol's (docs/formats/nbd.md).
pub const MOVES: &str = "?moves";

/// One export, as the caller offers it. Flush and FUA are always offered, zeroing wherever writing is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExportInfo {
    /// The one true name, up to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// For humans, up to [`NAME_BYTES_MAX`] bytes; may be empty.
    pub description: String,
    /// Size in bytes, a multiple of `block_bytes_min`.
    pub size_bytes: u64,
    /// Every offset and length is a multiple of this; a power of two up to 64 KiB.
    pub block_bytes_min: u32,
    /// The smallest size that is efficient: a power of two from 512 bytes and `block_bytes_min` on.
    pub block_bytes_preferred: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// It behaves like a spinning disk.
    pub rotational: bool,
    /// Trimming is useful.
    pub trim: bool,
    /// Zeroing may be asked for on the condition that it is faster than writing; the answer to such
    /// a request may be [`crate::ErrorCode::NotSupported`].
    pub fast_zero: bool,
    /// A flush on one connection covers what was answered on every other.
    pub multi_conn: bool,
    /// It can tell holes from data, so `base:allocation` is offered.
    pub allocation: bool,
}

impl ExportInfo {
    /// A disk without moving parts that may be read, written, trimmed and asked for its holes over several connections,
    /// in blocks of 512 bytes, best of 4096.
    #[must_use]
    pub fn new(name: String, size_bytes: u64) -> ExportInfo {
        ExportInfo {
            name,
            description: String::new(),
            size_bytes,
            block_bytes_min: 512,
            block_bytes_preferred: 4096,
            read_only: false,
            rotational: false,
            trim: true,
            fast_zero: false,
            multi_conn: true,
            allocation: true,
        }
    }

    /// Panics where the caller's own promise breaks the protocol; no peer has a say in these values.
    pub(crate) fn check(&self) {
        let (min, preferred) = (self.block_bytes_min, self.block_bytes_preferred);
        assert!(min.is_power_of_two() && min <= BLOCK_BYTES_MIN_MAX, "minimum block size {min}");
        assert!(
            preferred.is_power_of_two()
                && preferred >= min.max(BLOCK_BYTES_PREFERRED_MIN)
                && preferred <= PAYLOAD_BYTES_MAX,
            "preferred block size {preferred}"
        );
        assert!(
            self.size_bytes.is_multiple_of(u64::from(min)),
            "size {} in blocks of {min}",
            self.size_bytes
        );
        assert!(self.name.len() <= NAME_BYTES_MAX, "a name of {} bytes", self.name.len());
        assert!(self.description.len() <= NAME_BYTES_MAX, "a description too long");
    }

    /// The transmission flags, for a client that has asked for structured replies or has not.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let writable = !self.read_only;
        let when = |condition: bool, flag: u16| if condition { flag } else { 0 };
        FLAG_HAS_FLAGS
            | FLAG_SEND_FLUSH
            | FLAG_SEND_FUA
            | when(self.read_only, FLAG_READ_ONLY)
            | when(self.rotational, FLAG_ROTATIONAL)
            | when(writable && self.trim, FLAG_SEND_TRIM)
            | when(writable, FLAG_SEND_WRITE_ZEROES)
            | when(writable && self.fast_zero, FLAG_SEND_FAST_ZERO)
            | when(structured, FLAG_SEND_DF)
            | when(self.multi_conn, FLAG_CAN_MULTI_CONN)
    }
}

/// Why a client does not get an export, or a list of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// There is no export of that name.
    Unknown,
    /// It is there, but not for this client or not now.
    Policy,
    /// It is there, but only over TLS.
    TlsRequired,
    /// The server is stopping.
    ShuttingDown,
}

/// A run of bytes with one allocation status, in a reply to a block status request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Length in bytes, at least 1.
    pub length_bytes: u32,
    /// Nothing is allocated behind it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// The status flags of the `base:allocation` context.
    pub(crate) fn flags(self) -> u32 {
        (if self.hole { STATE_HOLE } else { 0 }) | (if self.zero { STATE_ZERO } else { 0 })
    }

    /// Reads one descriptor of a block status reply, as a client does; flags it does not know are
    /// ignored, as the protocol asks.
    #[must_use]
    pub fn decode(descriptor: [u8; 8]) -> Extent {
        let [a, b, c, d, e, f, g, h] = descriptor;
        let flags = u32::from_be_bytes([e, f, g, h]);
        Extent {
            length_bytes: u32::from_be_bytes([a, b, c, d]),
            hole: flags & STATE_HOLE != 0,
            zero: flags & STATE_ZERO != 0,
        }
    }
}

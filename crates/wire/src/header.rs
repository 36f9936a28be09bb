//! The 128 bytes that begin every frame.
//!
//! Always: one layout for every kind of frame, so that whoever carries frames on (a proxy, a capture)
//! needs to understand nothing else. A field that a kind does not use is zero, and who decodes checks
//! it. Two fields stand apart though they are equal today, the span on the member and on the volume,
//! and two are zero today: targets and compression; their places are kept for
//! features that both ends must first agree on.
//!
//! Not here: what the fields mean in each kind (`shard_bytes`, `member_bytes`, `hello`), the order of
//! bytes on a socket (`frame`). The layout is described in `docs/formats/frames.md`.

use crate::codec::{DecodeError, Reader};
use crate::frame::FrameError;
use base::{ResourceId, Span, crc32c};

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 128;

/// The first four bytes of every frame.
const MAGIC: [u8; 4] = *b"LSTP";
/// Set in a kind that a receiver which does not know it may skip.
pub(crate) const IGNORABLE: u16 = 0x8000;
/// In the shard's place: the frame is between members or nodes.
pub(crate) const NO_SHARD: u16 = 0xffff;

const CHECKSUM_NONE: u8 = 0;
const CHECKSUM_CRC32C: u8 = 1;

pub(crate) const FLAG_FUA: u32 = 1;
pub(crate) const FLAG_ZERO: u32 = 1 << 1;
pub(crate) const FLAG_UNMAP: u32 = 1 << 2;
pub(crate) const FLAG_RESYNC: u32 = 1 << 3;
pub(crate) const FLAG_EARLY: u32 = 1 << 4;
pub(crate) const FLAG_OK: u32 = 1 << 5;
pub(crate) const FLAG_LAST: u32 = 1 << 6;
pub(crate) const FLAG_ROTTEN: u32 = 1 << 7;
pub(crate) const FLAG_UNDONE: u32 = 1 << 8;
pub(crate) const FLAG_FIRST: u32 = 1 << 9;
pub(crate) const FLAG_NOT_IN_PLACE: u32 = 1 << 10;

/// The fields whose meaning the kind decides.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Fields {
    pub(crate) flags: u32,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) cut: u64,
    pub(crate) member_first: u64,
    pub(crate) volume_first: u64,
    pub(crate) member_count: u32,
    pub(crate) volume_count: u32,
    pub(crate) origin_session: u64,
    pub(crate) origin_number: u64,
    pub(crate) targets: u64,
    pub(crate) detail: u32,
    pub(crate) volume: u16,
    pub(crate) compression: u8,
}

impl Fields {
    pub(crate) fn with_span(self, span: Span) -> Fields {
        Fields {
            member_first: span.first(),
            volume_first: span.first(),
            member_count: span.count(),
            volume_count: span.count(),
            ..self
        }
    }

    pub(crate) fn span(&self) -> Result<Span, FrameError> {
        Span::new(self.volume_first, self.volume_count)
            .ok_or(FrameError::Malformed("an impossible span"))
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// `flag` if `set`, else nothing.
pub(crate) fn flag(flag: u32, set: bool) -> u32 {
    if set { flag } else { 0 }
}

/// A header in the making.
struct Page {
    bytes: [u8; HEADER_BYTES],
    filled: usize,
}

impl Page {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.filled..self.filled + part.len()].copy_from_slice(part);
        self.filled += part.len();
    }
}

/// A header as values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) shard: u16,
    pub(crate) stream: u16,
    pub(crate) resource: ResourceId,
    pub(crate) fields: Fields,
    pub(crate) body_length: u32,
    pub(crate) body_checksum: u32,
    pub(crate) payload_length: u32,
    pub(crate) payload_checksum: Option<u32>,
}

impl Header {
    /// The header as bytes of version `version`.
    pub(crate) fn to_bytes(self, version: u16) -> [u8; HEADER_BYTES] {
        let fields = &self.fields;
        let mut out = Page { bytes: [0; HEADER_BYTES], filled: 0 };
        out.put(&MAGIC);
        out.put(&version.to_le_bytes());
        out.put(&self.kind.to_le_bytes());
        out.put(&fields.flags.to_le_bytes());
        out.put(&self.shard.to_le_bytes());
        out.put(&self.stream.to_le_bytes());
        out.put(&self.resource.0.to_le_bytes());
        out.put(&fields.epoch.to_le_bytes());
        out.put(&fields.sequence.to_le_bytes());
        out.put(&fields.cut.to_le_bytes());
        out.put(&fields.member_first.to_le_bytes());
        out.put(&fields.volume_first.to_le_bytes());
        out.put(&fields.member_count.to_le_bytes());
        out.put(&fields.volume_count.to_le_bytes());
        out.put(&fields.origin_session.to_le_bytes());
        out.put(&fields.origin_number.to_le_bytes());
        out.put(&fields.targets.to_le_bytes());
        out.put(&fields.detail.to_le_bytes());
        out.put(&fields.volume.to_le_bytes());
        let checksum_kind = match self.payload_checksum {
            None => CHECKSUM_NONE,
            Some(_) => CHECKSUM_CRC32C,
        };
        out.put(&[fields.compression, checksum_kind]);
        out.put(&self.body_length.to_le_bytes());
        out.put(&self.payload_length.to_le_bytes());
        out.put(&self.body_checksum.to_le_bytes());
        out.put(&self.payload_checksum.unwrap_or(0).to_le_bytes());
        out.put(&[0; 4]);
        let checksum = crc32c(&out.bytes[..out.filled]);
        out.put(&checksum.to_le_bytes());
        assert_eq!(out.filled, HEADER_BYTES, "a header has one length");
        out.bytes
    }

    /// Reads a header of version `version`.
    pub(crate) fn take(bytes: &[u8; HEADER_BYTES], version: u16) -> Result<Header, FrameError> {
        let (guarded, checksum) = bytes.split_at(HEADER_BYTES - 4);
        if guarded[..4] != MAGIC {
            return Err(FrameError::NotOurs);
        }
        if crc32c(guarded).to_le_bytes() != checksum {
            return Err(FrameError::Damaged);
        }
        let mut reader = Reader::new(&guarded[4..]);
        let found = reader.u16()?;
        if found != version {
            return Err(FrameError::Version(found));
        }
        Ok(Header::take_fields(reader)?)
    }

    fn take_fields(mut reader: Reader<'_>) -> Result<Header, DecodeError> {
        let kind = reader.u16()?;
        let flags = reader.u32()?;
        let shard = reader.u16()?;
        let stream = reader.u16()?;
        let resource = ResourceId(reader.u64()?);
        let fields = Fields {
            flags,
            epoch: reader.u64()?,
            sequence: reader.u64()?,
            cut: reader.u64()?,
            member_first: reader.u64()?,
            volume_first: reader.u64()?,
            member_count: reader.u32()?,
            volume_count: reader.u32()?,
            origin_session: reader.u64()?,
            origin_number: reader.u64()?,
            targets: reader.u64()?,
            detail: reader.u32()?,
            volume: reader.u16()?,
            compression: reader.u8()?,
        };
        let checksum_kind = reader.u8()?;
        let body_length = reader.u32()?;
        let payload_length = reader.u32()?;
        let body_checksum = reader.u32()?;
        let payload_checksum = match (checksum_kind, reader.u32()?) {
            (CHECKSUM_NONE, 0) => None,
            (CHECKSUM_CRC32C, checksum) => Some(checksum),
            _ => return Err(DecodeError::Damaged("an unknown kind of checksum")),
        };
        if reader.u32()? != 0 {
            return Err(DecodeError::Damaged("a reserved field is not zero"));
        }
        reader.finish()?;
        Ok(Header {
            kind,
            shard,
            stream,
            resource,
            fields,
            body_length,
            body_checksum,
            payload_length,
            payload_checksum,
        })
    }
}

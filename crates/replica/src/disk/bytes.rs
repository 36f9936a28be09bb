//! Little-endian numbers in and out of a page, and the frame that every metadata page shares.
//!
//! Always: a read beyond the end is `None`, never a panic; the checksum stands in the last four bytes
//! of what it guards; a page of a volume says before it which volume.
//!
//! Not here: what the pages mean (`log`, `record`, `superblock`).

use crate::door::Page;
use alloc::vec::Vec;
use base::{VolumeId, crc32c};

/// Length of a checksum, at the end of what it guards.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// What stands at the end of a page of a volume: the volume's number plus one, 4 bytes, and the checksum.
pub(super) const FOOT_BYTES: usize = 4 + CHECKSUM_BYTES;

/// Reads numbers one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }
}

/// Appends numbers.
pub(super) trait Writer {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_u128(&mut self, value: u128);
}

impl Writer for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u128(&mut self, value: u128) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Fills `bytes` with zeroes up to `length` and writes the checksum into its last four bytes.
pub(super) fn seal(bytes: &mut Vec<u8>, length: usize) {
    assert!(bytes.len() + CHECKSUM_BYTES <= length, "metadata outgrew its place");
    bytes.resize(length - CHECKSUM_BYTES, 0);
    let checksum = crc32c(bytes);
    bytes.put_u32(checksum);
}

/// Like `seal`, of a page that is `volume`'s.
pub(super) fn seal_of(volume: VolumeId, bytes: &mut Vec<u8>) {
    assert!(bytes.len() + FOOT_BYTES <= size_of::<Page>(), "metadata outgrew its place");
    bytes.resize(size_of::<Page>() - FOOT_BYTES, 0);
    bytes.put_u32(u32::from(volume.0) + 1);
    seal(bytes, size_of::<Page>());
}

/// Whether a page says that it is `volume`'s, or does not say: the first pages had zeroes there.
pub(super) fn is_of(volume: VolumeId, page: &Page) -> bool {
    let foot = Reader::new(&page[size_of::<Page>() - FOOT_BYTES..]).u32();
    foot.is_some_and(|says| says == 0 || says == u32::from(volume.0) + 1)
}

/// Whether the last four bytes of `bytes` are the checksum of the others.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    let Some(body) = bytes.len().checked_sub(CHECKSUM_BYTES) else { return false };
    let (body, checksum) = bytes.split_at(body);
    checksum == crc32c(body).to_le_bytes()
}

//! Pages of block checksums: what the blocks of an extent should hash to.
//!
//! Two pages stand for an extent of 1024 blocks, 512 checksums each. A checksum of 0 means unknown: the
//! block is not checked. A page that was never written is all unknown.
//!
//! Always: a page is believed only if its own checksum holds and it names its extent; if not, its
//! blocks are unknown, never wrong.
//!
//! Not here: when they are written and checked (the node's disk code).

use super::bytes::{Reader, Writer, is_sealed, seal};
use crate::door::Page;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::crc32c;

/// First bytes of every page of checksums.
const SUMS_MAGIC: [u8; 8] = *b"LOCKSSUM";
/// What this version writes.
const SUMS_FORMAT: u32 = 1;
/// Pages for each extent.
pub const SUMS_PAGES: u64 = 2;
/// Blocks of 4 KiB in an extent of 4 MiB.
pub const SUMS_BLOCKS: usize = 1024;
/// Blocks in a page.
const PAGE_BLOCKS: usize = SUMS_BLOCKS / 2;

/// The checksum of a block of 4 KiB, never 0.
#[must_use]
pub fn block_sum(block: &[u8]) -> u32 {
    crc32c(block).max(1)
}

/// Both pages of an extent as bytes.
///
/// # Panics
/// If there are not exactly `SUMS_BLOCKS` checksums.
#[must_use]
pub fn encode_sums(extent: u64, sums: &[u32]) -> [Box<Page>; 2] {
    assert_eq!(sums.len(), SUMS_BLOCKS, "checksums of a whole extent");
    let page = |at: usize| {
        let mut bytes = Vec::with_capacity(4096);
        bytes.extend_from_slice(&SUMS_MAGIC);
        bytes.put_u32(SUMS_FORMAT);
        bytes.put_u32(u32::from(at > 0));
        bytes.put_u64(extent);
        for &sum in &sums[at..at + PAGE_BLOCKS] {
            bytes.put_u32(sum);
        }
        seal(&mut bytes, 4096);
        bytes.into_boxed_slice().try_into().expect("sealed to the length of a page")
    };
    [page(0), page(PAGE_BLOCKS)]
}

/// The checksums in page `half` (0 or 1) of an extent; all unknown if the page cannot be believed.
#[must_use]
pub fn decode_sums(extent: u64, half: u8, bytes: &Page) -> [u32; PAGE_BLOCKS] {
    let mut sums = [0; PAGE_BLOCKS];
    let mut fill = || {
        if bytes[..8] != SUMS_MAGIC || !is_sealed(bytes) {
            return None;
        }
        let mut reader = Reader::new(&bytes[8..]);
        let own = (reader.u32()?, reader.u32()?, reader.u64()?);
        if own != (SUMS_FORMAT, u32::from(half), extent) {
            return None;
        }
        for sum in &mut sums {
            *sum = reader.u32()?;
        }
        Some(())
    };
    if fill().is_none() {
        return [0; PAGE_BLOCKS];
    }
    sums
}

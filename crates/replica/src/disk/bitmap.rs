//! Pages of the dirty bitmaps: which blocks an absent replica lacks.
//!
//! Always: a page is believed only if its checksum holds and it names its volume, slot and number; whether it
//! is of the slot's present generation is for the caller to say.
//!
//! Not here: bits in memory (`shard`), when a page is written (`shard`).

use super::BadMetadata;
use super::bytes::{Reader, Writer, is_of, is_sealed, seal_of};
use crate::door::Page;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::VolumeId;

/// First bytes of every bitmap page.
const BITMAP_MAGIC: [u8; 8] = *b"LOCKSBIT";
/// What this version writes.
const BITMAP_FORMAT: u32 = 1;
/// Words of 64 bits in a page.
const WORDS: usize = 504;
/// Bits in a page; the head, 32 bytes, and the foot, 8 bytes, leave some.
pub const BITMAP_PAGE_BITS: u64 = 64 * WORDS as u64;

/// The page as bytes: bit `i` of word `w` stands for block `64 w + i` of the page.
///
/// # Panics
/// If there are more words than a page holds.
#[must_use]
pub fn encode_bitmap_page(
    volume: VolumeId,
    slot: u8,
    page: u64,
    generation: u64,
    words: &[u64],
) -> Box<Page> {
    assert!(words.len() <= WORDS, "a bitmap page holds {BITMAP_PAGE_BITS} bits");
    let mut bytes = Vec::with_capacity(4096);
    bytes.extend_from_slice(&BITMAP_MAGIC);
    bytes.put_u32(BITMAP_FORMAT);
    bytes.put_u32(u32::from(slot));
    bytes.put_u64(page);
    bytes.put_u64(generation);
    for &word in words {
        bytes.put_u64(word);
    }
    seal_of(volume, &mut bytes);
    bytes.into_boxed_slice().try_into().expect("sealed to the length of a page")
}

/// Generation of the slot and runs of dirty blocks, as (first, end) from the page's first block, of the
/// page that was read from (`slot`, `page`) of `volume`. A page of zeroes was never written: generation 0.
///
/// # Errors
/// It is torn or rotten, belongs elsewhere, or was written by a version this one does not understand.
/// Whoever reads it must then take every block of it for dirty.
pub fn decode_bitmap_page(
    volume: VolumeId,
    slot: u8,
    page: u64,
    bytes: &Page,
) -> Result<(u64, Vec<(u64, u64)>), BadMetadata> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok((0, Vec::new()));
    }
    if bytes[..8] != BITMAP_MAGIC {
        return Err(BadMetadata::NotOurs);
    }
    if !is_sealed(bytes) {
        return Err(BadMetadata::Torn);
    }
    let mut reader = Reader::new(&bytes[8..]);
    let format = reader.u32().ok_or(BadMetadata::Torn)?;
    if format != BITMAP_FORMAT {
        return Err(BadMetadata::TooNew { format });
    }
    let own_slot = reader.u32().ok_or(BadMetadata::Torn)?;
    let own_page = reader.u64().ok_or(BadMetadata::Torn)?;
    if (own_slot, own_page) != (u32::from(slot), page) || !is_of(volume, bytes) {
        return Err(BadMetadata::Misplaced);
    }
    let generation = reader.u64().ok_or(BadMetadata::Torn)?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for word_at in 0..WORDS as u64 {
        let word = reader.u64().ok_or(BadMetadata::Torn)?;
        for bit in (0..64).filter(|bit| word & (1 << bit) != 0) {
            let block = word_at * 64 + bit;
            match runs.last_mut() {
                Some(run) if run.1 == block => run.1 += 1,
                _ => runs.push((block, block + 1)),
            }
        }
    }
    Ok((generation, runs))
}

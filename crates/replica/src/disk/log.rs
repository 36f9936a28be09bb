//! Pages of the activity log: which extents were hot.
//!
//! A page holds the whole set of hot extents that one shard keeps in it, in two copies that are
//! written alternately, so that a torn write leaves the one before. A torn write was never answered,
//! so no data write relied on it.
//!
//! Always: a page is believed only if its checksum holds and it names the place that it was read from;
//! pages of another life of the process are no news of this one.
//!
//! Not here: when a page is written (`shard`), which life and half are current (`Record`).

use super::BadMetadata;
use super::bytes::{FOOT_BYTES, Reader, Writer, is_of, is_sealed, seal_of};
use crate::door::{MetaPage, Page};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::VolumeId;

/// First bytes of every log page.
const LOG_MAGIC: [u8; 8] = *b"LOCKSLOG";
/// What this version writes.
const LOG_FORMAT: u32 = 1;
/// Bytes before the first extent: magic 8, format 4, page 4, sequence 8, life 8, count 2, half 1, copy 1.
const HEAD_BYTES: usize = 36;
/// Bytes per extent: volume 2, number 8.
const EXTENT_BYTES: usize = 10;
/// Hot extents that fit in one page: what is left of 4096 bytes beside head and foot.
pub const LOG_PAGE_EXTENTS_MAX: usize = (4096 - HEAD_BYTES - FOOT_BYTES) / EXTENT_BYTES;

/// A log page that was understood.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogPage {
    /// Counts the writes of this page, both copies together, from 1 in each life.
    pub sequence: u64,
    /// The life of the process that wrote it.
    pub life: u64,
    /// Hot extents.
    pub extents: Vec<(VolumeId, u64)>,
}

/// What the log of one life says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogFound {
    /// Extents that were hot, ascending, each once.
    pub extents: Vec<(VolumeId, u64)>,
    /// Page writes of that life: the second half of the generation.
    pub writes: u64,
    /// The highest life that any page of any half names: a start must use a higher one, because a
    /// start that did not come to its end may have left pages behind.
    pub last_life: u64,
}

/// The page as bytes. `sequence` counts the writes of this page in this `life`, from 1; `volume`, `half`,
/// `page` and `copy` are where it will stand.
///
/// # Panics
/// If there are more than `LOG_PAGE_EXTENTS_MAX` extents: the caller has a smaller limit.
#[must_use]
pub fn encode_log_page(
    volume: VolumeId,
    half: u8,
    page: u32,
    copy: u8,
    sequence: u64,
    life: u64,
    extents: &[u64],
) -> Box<Page> {
    assert!(extents.len() <= LOG_PAGE_EXTENTS_MAX, "a log page holds {LOG_PAGE_EXTENTS_MAX}");
    let count = u16::try_from(extents.len()).expect("the limit above fits in 16 bits");
    let mut bytes = Vec::with_capacity(4096);
    bytes.extend_from_slice(&LOG_MAGIC);
    bytes.put_u32(LOG_FORMAT);
    bytes.put_u32(page);
    bytes.put_u64(sequence);
    bytes.put_u64(life);
    bytes.put_u16(count);
    bytes.put_u8(half);
    bytes.put_u8(copy);
    for &extent in extents {
        bytes.put_u16(volume.0);
        bytes.put_u64(extent);
    }
    seal_of(volume, &mut bytes);
    bytes.into_boxed_slice().try_into().expect("sealed to the length of a page")
}

/// The page that was read from (`half`, `page`, `copy`) of `volume`. A page of zeroes was never written: it is
/// empty, of life 0.
///
/// # Errors
/// It is torn or rotten, belongs elsewhere, or was written by a version this one does not understand.
pub fn decode_log_page(
    volume: VolumeId,
    half: u8,
    page: u32,
    copy: u8,
    bytes: &Page,
) -> Result<LogPage, BadMetadata> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(LogPage::default());
    }
    if bytes[..8] != LOG_MAGIC {
        return Err(BadMetadata::NotOurs);
    }
    if !is_sealed(bytes) {
        return Err(BadMetadata::Torn);
    }
    let mut reader = Reader::new(&bytes[8..]);
    let format = reader.u32().ok_or(BadMetadata::Torn)?;
    if format != LOG_FORMAT {
        return Err(BadMetadata::TooNew { format });
    }
    let found = parse(&mut reader, half, page, copy)?;
    // The first pages name their volume by their extents only.
    let is_own = |found: &LogPage| found.extents.iter().all(|&(of, _)| of == volume);
    found.filter(|found| is_of(volume, bytes) && is_own(found)).ok_or(BadMetadata::Misplaced)
}

/// The rest of a page whose checksum holds; `None` if it names another place.
fn parse(
    reader: &mut Reader<'_>,
    half: u8,
    page: u32,
    copy: u8,
) -> Result<Option<LogPage>, BadMetadata> {
    let mut body = || {
        let own_page = reader.u32()?;
        let sequence = reader.u64()?;
        let life = reader.u64()?;
        let count = usize::from(reader.u16()?);
        let own = (reader.u8()?, own_page, reader.u8()?);
        let mut extents = Vec::with_capacity(count.min(LOG_PAGE_EXTENTS_MAX));
        for _ in 0..count {
            extents.push((VolumeId(reader.u16()?), reader.u64()?));
        }
        Some((own, LogPage { sequence, life, extents }))
    };
    let (own, found) = body().ok_or(BadMetadata::Torn)?;
    Ok((own == (half, page, copy)).then_some(found))
}

/// The hot extents that `life` recorded in `half` of a volume: the union over its pages of the newest valid copy
/// of each. `pages` are all its log pages, of both halves, as read (`None`: could not be read); bitmap
/// pages among them are passed over.
///
/// # Errors
/// A page of `half` of which no copy is valid, or one that could not be read: nothing is guessed.
pub fn hot_extents(
    volume: VolumeId,
    pages: &[(MetaPage, Option<Page>)],
    half: u8,
    life: u64,
) -> Result<LogFound, BadMetadata> {
    let mut last_life = life;
    let mut newest: BTreeMap<u32, Result<LogPage, BadMetadata>> = BTreeMap::new();
    for (place, bytes) in pages {
        let &MetaPage::Log { half: place_half, page, copy } = place else { continue };
        let decoded = match bytes {
            Some(bytes) => decode_log_page(volume, place_half, page, copy, bytes),
            None if place_half == half => return Err(BadMetadata::Unreadable),
            None => continue,
        };
        if let Ok(found) = &decoded {
            last_life = last_life.max(found.life);
        }
        if place_half != half {
            continue;
        }
        if let Err(bad @ BadMetadata::TooNew { .. }) = decoded {
            return Err(bad);
        }
        let best = newest.entry(page).or_insert(Err(BadMetadata::Torn));
        *best = newer(core::mem::replace(best, Err(BadMetadata::Torn)), decoded, life);
    }
    let mut extents = BTreeSet::new();
    let mut writes = 0_u64;
    for best in newest.into_values() {
        let best = best?;
        if best.life == life {
            extents.extend(best.extents);
            writes = writes.saturating_add(best.sequence);
        }
    }
    Ok(LogFound { extents: extents.into_iter().collect(), writes, last_life })
}

/// The better of two copies: valid before broken, of this life before others, newer before older.
fn newer(
    one: Result<LogPage, BadMetadata>,
    other: Result<LogPage, BadMetadata>,
    life: u64,
) -> Result<LogPage, BadMetadata> {
    match (one, other) {
        (Ok(one), Ok(other)) => {
            let rank = |page: &LogPage| (page.life == life, page.sequence);
            Ok(if rank(&other) > rank(&one) { other } else { one })
        }
        (Ok(one), Err(_)) => Ok(one),
        (Err(_), other) => other,
    }
}

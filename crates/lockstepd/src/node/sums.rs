//! Block checksums of a volume, as far as they are in memory.
//!
//! Every block of 4 KiB has a checksum in the metadata. In memory are those of extents that were
//! written or read of late. An extent's are put on stable storage when it leaves the activity log, so
//! after a crash those of hot extents are not to be believed: they start out unknown, and the
//! comparison that settles the extent fills them in.
//!
//! Always: a checksum in memory is that of the newest write handed to the disk, or unknown, as it is once that write has failed: a disk
//! that is the only one goes on with what it holds. An extent
//! whose checksums on disk are not known yet is not checked before they are read.
//!
//! Not here: bytes on disk (`replica::disk`), reading and writing them (`disk`).

use std::collections::{BTreeMap, BTreeSet};

use base::{SECTOR_BYTES, Span};
use replica::disk::{SUMS_BLOCKS, block_sum, decode_sums, encode_sums};
use replica::door::Page;

const BLOCK_BYTES: usize = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;
const EXTENT_SECTORS: u64 = SUMS_BLOCKS as u64 * BLOCK_SECTORS;
/// Extents whose checksums are kept in memory though they are saved: 512, 4 KiB each.
const CLEAN_MAX: usize = 512;
/// Rotten blocks that are remembered until they are written, at most: 65,536. More are counted as found only.
const ROTTEN_MAX: usize = 1 << 16;

#[derive(Debug)]
struct ExtentSums {
    sums: Box<[u32; SUMS_BLOCKS]>,
    /// Blocks whose checksum here is newer than that on disk.
    changed: Box<[bool; SUMS_BLOCKS]>,
    /// What is on disk was read, or is not to be believed.
    loaded: bool,
    /// Counts changes, to tell whether one came while the pages were being written.
    version: u64,
    saved: u64,
}

impl ExtentSums {
    fn new(loaded: bool) -> ExtentSums {
        ExtentSums {
            sums: Box::new([0; SUMS_BLOCKS]),
            changed: Box::new([false; SUMS_BLOCKS]),
            loaded,
            version: 0,
            saved: 0,
        }
    }
}

/// What a look at bytes that were read gave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Check {
    /// Every whole block is as it was written, as far as is known.
    Good,
    /// A block is not what was written.
    Rotten,
    /// A block at an end may be rotten, or older than what is known of it now: it is to be read again.
    Newer,
    /// The extent's checksums must be read first.
    Unknown,
}

/// The checksums of a volume.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    extents: BTreeMap<u64, ExtentSums>,
    /// Blocks that were found rotten and were not written since: (extent, number in it).
    rotten: BTreeSet<(u64, usize)>,
    /// Of them, those that were written since this was last asked for.
    repaired: u64,
}

/// The extent in which a span lies.
pub(crate) fn extent_of(span: Span) -> u64 {
    span.first() / EXTENT_SECTORS
}

/// The span with the rest of the blocks at its ends, as far as a volume of `size` sectors has all of them.
pub(crate) fn blocks_around(span: Span, size: u64) -> Span {
    let first = span.first() / BLOCK_SECTORS * BLOCK_SECTORS;
    let end = span.end().next_multiple_of(BLOCK_SECTORS);
    let end = if end <= size { end } else { span.end() };
    let count = u32::try_from(end - first).expect("a few sectors more than a span");
    Span::new(first, count).expect("not less than the span")
}

/// Whole blocks of the span: (number in the extent, where it starts in the span's bytes).
fn whole_blocks(span: Span) -> impl Iterator<Item = (usize, usize)> {
    let first = span.first().div_ceil(BLOCK_SECTORS);
    let end = span.end() / BLOCK_SECTORS;
    let start = span.first();
    (first..end).map(move |block| {
        let number = usize::try_from(block % SUMS_BLOCKS as u64).expect("below 1024");
        let at = usize::try_from((block * BLOCK_SECTORS - start) * SECTOR_BYTES)
            .expect("inside what was read at once");
        (number, at)
    })
}

impl Sums {
    /// What is on disk for these extents is not to be believed: they were hot at a crash.
    pub(crate) fn distrust(&mut self, extents: impl Iterator<Item = u64>) {
        for extent in extents {
            let mut sums = ExtentSums::new(true);
            sums.changed.fill(true);
            sums.version = 1;
            self.extents.insert(extent, sums);
        }
    }

    fn change(&mut self, span: Span, sum_at: impl Fn(usize) -> u32) {
        let entry = self.extents.entry(extent_of(span)).or_insert_with(|| ExtentSums::new(false));
        entry.version += 1;
        let first = span.first() / BLOCK_SECTORS;
        let last = (span.end() - 1) / BLOCK_SECTORS;
        for block in [first, last] {
            let number = usize::try_from(block % SUMS_BLOCKS as u64).expect("below 1024");
            // A block that is written in part only is unknown; whole ones are set below.
            entry.sums[number] = 0;
            entry.changed[number] = true;
        }
        for (number, at) in whole_blocks(span) {
            entry.sums[number] = sum_at(at);
            entry.changed[number] = true;
        }
        if !self.rotten.is_empty() {
            let of = |number| (extent_of(span), number);
            let written = whole_blocks(span).filter(|&(number, _)| self.rotten.remove(&of(number)));
            self.repaired += u64::try_from(written.count()).expect("at most an extent's");
        }
    }

    /// How many blocks of these bytes are rotten that were not found before.
    pub(crate) fn find_rot(&mut self, span: Span, bytes: &[u8]) -> u64 {
        let extent = extent_of(span);
        let Some(entry) = self.extents.get(&extent) else { return 0 };
        let is_rotten = |&(number, at): &(usize, usize)| {
            let sum = entry.sums[number];
            sum != 0 && sum != block_sum(&bytes[at..at + BLOCK_BYTES])
        };
        let mut found = 0;
        for (number, _) in whole_blocks(span).filter(is_rotten) {
            let room = self.rotten.len() < ROTTEN_MAX;
            let new = !self.rotten.contains(&(extent, number));
            found += u64::from(new);
            if room && new {
                self.rotten.insert((extent, number));
            }
        }
        found
    }

    /// Rotten blocks that were written since this was last asked.
    pub(crate) fn take_repaired(&mut self) -> u64 {
        std::mem::take(&mut self.repaired)
    }

    /// The checksums of the span's first and last block, as far as they are known now.
    pub(crate) fn ends(&self, span: Span) -> [u32; 2] {
        let Some(entry) = self.extents.get(&extent_of(span)) else { return [0; 2] };
        let of = |sector: u64| {
            let block = sector / BLOCK_SECTORS % SUMS_BLOCKS as u64;
            entry.sums[usize::try_from(block).expect("below 1024")]
        };
        [of(span.first()), of(span.end() - 1)]
    }

    /// These bytes are about to be written.
    pub(crate) fn write(&mut self, span: Span, bytes: &[u8]) {
        self.change(span, |at| block_sum(&bytes[at..at + BLOCK_BYTES]));
    }

    /// The span is about to be made zero.
    pub(crate) fn zero(&mut self, span: Span) {
        let sum = block_sum(&[0; BLOCK_BYTES]);
        self.change(span, |_| sum);
    }

    /// A write of the span failed, or was given up: what is there nobody knows.
    pub(crate) fn forget(&mut self, span: Span) {
        self.change(span, |_| 0);
    }

    /// Looks at the bytes of `read`, of which `asked` was asked for. Nothing is written there meanwhile, but beside it in the
    /// blocks at its ends something may be: `ends` were their checksums when the read began. However much is written to
    /// the rest of the extent, what is rotten is not read again for it.
    pub(crate) fn check(&self, read: Span, asked: Span, ends: [u32; 2], bytes: &[u8]) -> Check {
        let Some(entry) = self.extents.get(&extent_of(read)) else { return Check::Unknown };
        let (now, mut is_newer) = (self.ends(read), false);
        for (number, at) in whole_blocks(read) {
            if !entry.loaded && !entry.changed[number] {
                return Check::Unknown;
            }
            let sum = entry.sums[number];
            if sum == 0 || sum == block_sum(&bytes[at..at + BLOCK_BYTES]) {
                continue;
            }
            let first = read.first() + at as u64 / SECTOR_BYTES;
            let end = first + BLOCK_SECTORS;
            let changed = |is_end: bool, which: usize| is_end && now[which] != ends[which];
            let is_asked = asked.first() <= first && end <= asked.end();
            if is_asked || !changed(first == read.first(), 0) && !changed(end == read.end(), 1) {
                return Check::Rotten;
            }
            is_newer = true;
        }
        if is_newer { Check::Newer } else { Check::Good }
    }

    /// A comparison read these bytes: blocks of which nothing is known get their checksum from them. Only in an extent
    /// that is to be saved anyway: a verify of the whole volume would leave all of its extents in memory.
    pub(crate) fn learn(&mut self, span: Span, bytes: &[u8]) {
        let Some(entry) = self.extents.get_mut(&extent_of(span)) else { return };
        if entry.version == entry.saved {
            return;
        }
        for (number, at) in whole_blocks(span) {
            if entry.loaded && entry.sums[number] == 0 {
                entry.sums[number] = block_sum(&bytes[at..at + BLOCK_BYTES]);
                entry.changed[number] = true;
                entry.version += 1;
            }
        }
    }

    /// Whether the extent's pages must be read before they can be written.
    pub(crate) fn needs_pages(&self, extent: u64) -> bool {
        self.extents.get(&extent).is_some_and(|entry| !entry.loaded)
    }

    /// The extent's pages were read.
    pub(crate) fn loaded(&mut self, extent: u64, pages: [&Page; 2]) {
        let entry = self.extents.entry(extent).or_insert_with(|| ExtentSums::new(false));
        if entry.loaded {
            return;
        }
        entry.loaded = true;
        let halves = [decode_sums(extent, 0, pages[0]), decode_sums(extent, 1, pages[1])];
        for (number, &sum) in halves.iter().flatten().enumerate() {
            if !entry.changed[number] {
                entry.sums[number] = sum;
            }
        }
        self.forget_some(extent);
    }

    /// Saved extents beyond the limit are forgotten, lowest first, but not `kept`.
    fn forget_some(&mut self, kept: u64) {
        let saved = |entry: &ExtentSums| entry.version == entry.saved;
        let clean = self.extents.values().filter(|entry| saved(entry)).count();
        let mut over = clean.saturating_sub(CLEAN_MAX);
        self.extents.retain(|&extent, entry| {
            let forget = over > 0 && extent != kept && saved(entry);
            over -= usize::from(forget);
            !forget
        });
    }

    /// The pages to put on stable storage, and the version to hand to `sealed`; `None`: nothing is new.
    pub(crate) fn seal(&self, extent: u64) -> Option<([Box<Page>; 2], u64)> {
        let entry = self.extents.get(&extent)?;
        (entry.version != entry.saved)
            .then(|| (encode_sums(extent, &entry.sums[..]), entry.version))
    }

    /// The pages are on stable storage.
    pub(crate) fn sealed(&mut self, extent: u64, version: u64) {
        let Some(entry) = self.extents.get_mut(&extent) else { return };
        entry.saved = version;
        if entry.version == version {
            entry.changed.fill(false);
        }
        self.forget_some(extent);
    }
}

#[cfg(test)]
mod tests;

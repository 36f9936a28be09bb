//! Where everything stands in the metadata area of a volume.
//!
//! In this order: superblock, the copies of the record, the activity log, the bitmaps, the block
//! checksums. Offsets are in bytes from the start of the area, and multiples of 4096.
//!
//! Always: two metadata pages never share a byte; every region has a place for every volume size that
//! fits in a `u64` of bytes.
//!
//! Not here: where the area itself starts (`store`).

use super::sums::{SUMS_BLOCKS, SUMS_PAGES};
use crate::door::MetaPage;

/// Bytes of one copy of the record.
pub const RECORD_BYTES: u64 = 16 * 1024;
/// Copies of the record, written alternately.
pub const RECORD_COPIES: u64 = 2;
/// Halves of the activity log: a life of the process writes one.
pub const LOG_HALVES: u64 = 2;
/// Copies of each log page, written alternately.
pub const LOG_COPIES: u64 = 2;
/// Pages in each half of the log, by default.
const LOG_PAGES: u32 = 64;
/// A metadata page.
const PAGE_BYTES: u64 = 4096;
/// Sectors that one bit of a bitmap stands for: 4 KiB.
const BLOCK_SECTORS: u64 = 8;
/// Bits used in a bitmap page: 31 extents of 1024 blocks.
const PAGE_BITS: u64 = 31 * 1024;

/// The places of a volume's metadata, in bytes from the start of its area.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    /// Bitmap slots: one for each peer replica that may be absent.
    pub slots: u8,
    /// Pages in each half of the activity log.
    pub log_pages: u32,
    /// Pages in each bitmap slot.
    pub bitmap_pages: u64,
    /// The superblock, one page.
    pub superblock: u64,
    /// The first copy of the record; the next follows `RECORD_BYTES` later.
    pub records: u64,
    /// The first page of the log.
    pub log: u64,
    /// The first page of the first bitmap.
    pub bitmap: u64,
    /// The first page of the block checksums.
    pub sums: u64,
    /// Length of the whole area.
    pub total_bytes: u64,
}

impl Layout {
    /// The layout for a volume of `volume_sectors` with bitmaps for `slots` peers.
    #[must_use]
    pub fn new(volume_sectors: u64, slots: u8) -> Layout {
        Layout::with_log(volume_sectors, slots, LOG_PAGES)
    }

    /// The same with so many pages in each half of the activity log.
    #[must_use]
    pub fn with_log(volume_sectors: u64, slots: u8, log_pages: u32) -> Layout {
        let bitmap_pages = volume_sectors.div_ceil(BLOCK_SECTORS).div_ceil(PAGE_BITS);
        let superblock = 0;
        let records = superblock + PAGE_BYTES;
        let log = records + RECORD_COPIES * RECORD_BYTES;
        let bitmap = log + LOG_HALVES * u64::from(log_pages) * LOG_COPIES * PAGE_BYTES;
        let sums = bitmap + u64::from(slots) * bitmap_pages * PAGE_BYTES;
        let extents = volume_sectors.div_ceil(SUMS_BLOCKS as u64 * BLOCK_SECTORS);
        let total_bytes = sums + extents * SUMS_PAGES * PAGE_BYTES;
        Layout {
            slots,
            log_pages,
            bitmap_pages,
            superblock,
            records,
            log,
            bitmap,
            sums,
            total_bytes,
        }
    }

    /// Where copy 0 or 1 of the record stands.
    #[must_use]
    pub fn record_offset(&self, copy: u8) -> u64 {
        self.records + u64::from(copy) % RECORD_COPIES * RECORD_BYTES
    }

    /// Where the pages of an extent's block checksums stand, one after the other.
    #[must_use]
    pub fn sums_offset(&self, extent: u64) -> u64 {
        self.sums + extent * SUMS_PAGES * PAGE_BYTES
    }

    /// Where a page stands.
    ///
    /// # Panics
    /// If there is no such page in this layout.
    #[must_use]
    pub fn page_offset(&self, page: MetaPage) -> u64 {
        match page {
            MetaPage::Log { half, page, copy } => {
                let (half, copy) = (u64::from(half), u64::from(copy));
                assert!(
                    half < LOG_HALVES && page < self.log_pages && copy < LOG_COPIES,
                    "no such log page"
                );
                let index =
                    (half * u64::from(self.log_pages) + u64::from(page)) * LOG_COPIES + copy;
                self.log + index * PAGE_BYTES
            }
            MetaPage::Bitmap { slot, page } => {
                assert!(slot < self.slots && page < self.bitmap_pages, "no such bitmap page");
                self.bitmap + (u64::from(slot) * self.bitmap_pages + page) * PAGE_BYTES
            }
        }
    }

    /// Every page of the log, both halves and copies, in the order in which they stand.
    pub fn log_places(&self) -> impl Iterator<Item = MetaPage> + use<> {
        let pages = self.log_pages;
        (0..2_u8).flat_map(move |half| {
            (0..pages)
                .flat_map(move |page| (0..2_u8).map(move |copy| MetaPage::Log { half, page, copy }))
        })
    }
}

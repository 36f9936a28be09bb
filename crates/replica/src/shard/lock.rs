//! Order among overlapping requests: readers share, writers exclude, first come first served.
//!
//! Always: two granted entries that overlap are both shared; an entry is granted only when every
//! earlier overlapping entry with which it cannot share is gone.
//!
//! An entry lies inside one extent, so only entries of one extent are ever compared. Extents share a
//! fixed number of lists, so that taking and giving back a lock allocates nothing.

use alloc::vec::Vec;
use base::{Span, VolumeId};

/// Lists of entries: a few times the requests that are usually open.
const LISTS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    volume: VolumeId,
    span: Span,
    exclusive: bool,
    granted: bool,
}

impl Entry {
    fn conflicts(&self, volume: VolumeId, span: Span, exclusive: bool) -> bool {
        self.volume == volume && self.span.overlaps(span) && (self.exclusive || exclusive)
    }
}

/// Entries of one shard, by volume and extent.
#[derive(Debug)]
pub(super) struct LockTable {
    extent_sectors: u64,
    lists: Vec<Vec<Entry>>,
}

impl LockTable {
    pub(super) fn new(extent_sectors: u64) -> LockTable {
        LockTable { extent_sectors, lists: (0..LISTS).map(|_| Vec::new()).collect() }
    }

    fn list(&mut self, volume: VolumeId, span: Span) -> &mut Vec<Entry> {
        let extent = span.first() / self.extent_sectors + u64::from(volume.0);
        let at = usize::try_from(extent % u64::try_from(LISTS).expect("small")).expect("small");
        &mut self.lists[at]
    }

    /// Queues an entry; true if it is granted at once.
    pub(super) fn acquire(
        &mut self,
        id: u64,
        volume: VolumeId,
        span: Span,
        exclusive: bool,
    ) -> bool {
        let entries = self.list(volume, span);
        let granted = !entries.iter().any(|earlier| earlier.conflicts(volume, span, exclusive));
        entries.push(Entry { id, volume, span, exclusive, granted });
        granted
    }

    /// Takes the entry out and appends to `granted` those that may go now, in order.
    pub(super) fn release(
        &mut self,
        id: u64,
        volume: VolumeId,
        span: Span,
        granted: &mut Vec<u64>,
    ) {
        let entries = self.list(volume, span);
        entries.retain(|entry| entry.id != id);
        for at in 0..entries.len() {
            let entry = entries[at];
            if !entry.granted
                && entry.conflicts(volume, span, true)
                && !entries[..at]
                    .iter()
                    .any(|earlier| earlier.conflicts(volume, entry.span, entry.exclusive))
            {
                entries[at].granted = true;
                granted.push(entry.id);
            }
        }
    }

    /// Forgets every entry.
    pub(super) fn clear(&mut self) {
        for entries in &mut self.lists {
            entries.clear();
        }
    }
}

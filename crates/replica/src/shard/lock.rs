//! Order among overlapping requests: readers share, writers exclude, first come first served.
//!
//! Always: two granted entries that overlap are both shared; an entry is granted only when every
//! earlier overlapping entry with which it cannot share is gone.
//!
//! An entry lies inside one extent, so only entries of one extent are ever compared.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Span, VolumeId};

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    span: Span,
    exclusive: bool,
    granted: bool,
}

/// Entries of one shard, by volume and extent.
#[derive(Debug)]
pub(super) struct LockTable {
    extent_sectors: u64,
    extents: BTreeMap<(VolumeId, u64), Vec<Entry>>,
}

impl LockTable {
    pub(super) fn new(extent_sectors: u64) -> LockTable {
        LockTable { extent_sectors, extents: BTreeMap::new() }
    }

    fn key(&self, volume: VolumeId, span: Span) -> (VolumeId, u64) {
        (volume, span.first() / self.extent_sectors)
    }

    /// Queues an entry; true if it is granted at once.
    pub(super) fn acquire(
        &mut self,
        id: u64,
        volume: VolumeId,
        span: Span,
        exclusive: bool,
    ) -> bool {
        let entries = self.extents.entry((volume, span.first() / self.extent_sectors)).or_default();
        let granted = entries
            .iter()
            .all(|earlier| !earlier.span.overlaps(span) || (!earlier.exclusive && !exclusive));
        entries.push(Entry { id, span, exclusive, granted });
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
        let key = self.key(volume, span);
        let Some(entries) = self.extents.get_mut(&key) else { return };
        entries.retain(|entry| entry.id != id);
        if entries.is_empty() {
            self.extents.remove(&key);
            return;
        }
        for at in 0..entries.len() {
            let entry = entries[at];
            if !entry.granted
                && entry.span.overlaps(span)
                && entries[..at].iter().all(|earlier| {
                    !earlier.span.overlaps(entry.span) || (!earlier.exclusive && !entry.exclusive)
                })
            {
                entries[at].granted = true;
                granted.push(entry.id);
            }
        }
    }

    /// Forgets every entry.
    pub(super) fn clear(&mut self) {
        self.extents.clear();
    }
}

//! Space beyond the end of a volume that shrank: given back, piece by piece.
//!
//! Always: what a shard changes in a piece that is under way waits for it, so nothing written after the
//! volume grew again is given back; and what belongs to the volume again is not begun.
//!
//! Each thread gives back what its own shards serve, so that what a shard changes and what is given back are
//! ordered by one thread.
//!
//! Not here: why it reads as zeroes when the volume grows again (a growth writes them: `replica`).

use base::{RangeSet, SECTOR_BYTES, Span, VolumeId};
use replica::door::{DiskOp, DiskRequest};
use replica::shard::Shard;
use sys::Event;

use super::disk::DiskPurpose;
use super::{Node, Purpose};
use crate::log::error;
use crate::slab::Key;

/// Sectors given back at once: 64 MiB, so that writing zeroes where nothing else is possible is not taken
/// for a disk that hangs.
const PIECE_SECTORS: u64 = 131_072;

/// What is given back of one volume.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    left: RangeSet,
    /// Under way.
    piece: Option<(u64, u64)>,
    /// Changes that wait for it, in order.
    held: Vec<(u16, DiskOp, DiskRequest)>,
}

impl Beyond {
    /// Keeps a change for later, if it lies where something is being given back.
    pub(super) fn hold(
        &mut self,
        span: Span,
        shard: u16,
        op: DiskOp,
        request: DiskRequest,
    ) -> Option<DiskRequest> {
        match self.piece {
            Some((first, end)) if span.first() < end && first < span.end() => {
                self.held.push((shard, op, request));
                None
            }
            _ => Some(request),
        }
    }

    /// Everything below this sector belongs to the volume.
    fn keep(&mut self, sectors: u64) {
        self.left.remove(0, sectors);
    }
}

impl Node {
    /// The sectors `first..end` lie beyond a volume's end now.
    pub(super) fn give_back(&mut self, key: Key, volume: VolumeId, first: u64, end: u64) {
        let Some(beyond) = self.beyond(key, volume) else { return };
        beyond.left.insert(first, end);
        self.give_next_back(key, volume);
    }

    /// A volume keeps this many sectors from now on.
    pub(super) fn keep_from_giving_back(&mut self, key: Key, volume: VolumeId, sectors: u64) {
        if let Some(beyond) = self.beyond(key, volume) {
            beyond.keep(sectors);
        }
    }

    fn beyond(&mut self, key: Key, volume: VolumeId) -> Option<&mut Beyond> {
        let disk = self.resources.get_mut(key)?.disk.as_mut()?;
        disk.volume(volume).map(|entry| &mut entry.beyond)
    }

    fn give_next_back(&mut self, key: Key, volume: VolumeId) {
        let Some((first, end)) = self.next_beyond(key, volume) else { return };
        let count = u32::try_from(end - first).expect("a piece is small");
        let span = Span::new(first, count).expect("what is left is not nothing");
        let disk = self.resources.get_mut(key).and_then(|entry| entry.disk.as_mut());
        let Some(entry) = disk.and_then(|disk| disk.volume(volume)) else { return };
        entry.beyond.piece = Some((first, end));
        let purpose = DiskPurpose::Beyond { resource: key, volume, span };
        let token = self.operations.insert(Purpose::Disk(purpose, self.hands.now())).number();
        let (at, length) = (first * SECTOR_BYTES, (end - first) * SECTOR_BYTES);
        entry.store.zero(&mut self.hands, token, at, length, true, false);
    }

    /// The next piece that a shard of this thread serves, if none is under way; others are passed over.
    fn next_beyond(&mut self, key: Key, volume: VolumeId) -> Option<(u64, u64)> {
        let resource = self.resources.get_mut(key)?;
        let (id, geometry, shards) = (resource.id, resource.geometry, resource.shard_count());
        let stripe = geometry.stripe_extents * geometry.extent_sectors;
        let beyond = &mut resource.disk.as_mut()?.volume(volume)?.beyond;
        while beyond.piece.is_none() {
            let (first, end) = beyond.left.next_run(0)?;
            let end = end.min(first + PIECE_SECTORS).min((first / stripe + 1) * stripe);
            beyond.left.remove(first, end);
            let shard = Shard::owner(&geometry, shards, first / geometry.extent_sectors);
            if self.threads.is_own(id, shard) {
                return Some((first, end));
            }
        }
        None
    }

    /// A piece was given back, or was not: its space is lost until it is written again.
    pub(super) fn on_given_back(&mut self, key: Key, volume: VolumeId, event: &Event) {
        if let Err(errno) = &event.result {
            let name = self.name_of(key);
            error!("{name}: what lies beyond its end was not given back: {errno}");
        }
        let Some(beyond) = self.beyond(key, volume) else { return };
        beyond.piece = None;
        for (shard, op, request) in std::mem::take(&mut beyond.held) {
            self.begin_disk(key, shard, op, request);
        }
        self.give_next_back(key, volume);
    }
}

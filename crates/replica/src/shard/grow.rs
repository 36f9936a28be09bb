//! Growth: what is added to a volume is zero on every replica before a client sees it.
//!
//! The configuration says which volume grows, and how far. The primary writes zeroes over what is added, extent
//! by extent and by ordinary writes. So whatever was on its way there before the volume shrank comes
//! first, a replica that is being brought up to date gets them too, and for one that is away they are dirty.
//! Then every in-sync replica flushes, and the shard says `Grown`.
//!
//! Always: `Grown` is said only when each write of the run is on every in-sync disk, and was flushed there; a new
//! reign, other sizes, a disk that fails, and any flush that the only copy fails meanwhile begin a run anew.
//!
//! Not here: what the write does (`copy`), when the new size counts (`member/resize`).

use super::copy::Purpose;
use super::op::{FlushFor, Kind};
use super::{Out, Shard};
use crate::door::{FromShard, ShardOutput};
use alloc::vec::Vec;
use base::{Epoch, Span, VolumeId};
use wire::Configuration;

/// A volume that grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// What the pieces belong to.
    run: u64,
    since: Epoch,
    /// Flushes that the own disk had failed when it began: one that failed since may have lost pieces that no later one covers.
    flush_failures: u64,
    first: u64,
    end: u64,
    next: u64,
    /// Pieces under way.
    open: usize,
    /// Sectors of this shard that are zero on every in-sync disk.
    done: u64,
    flushing: bool,
    said: bool,
}

impl Growth {
    fn is_busy(&self) -> bool {
        !self.said
    }
}

impl Shard {
    /// Whether a volume is growing and this shard has not done its part.
    pub(super) fn is_growing(&self) -> bool {
        self.growths.values().any(Growth::is_busy)
    }

    /// Volumes that grow, and how many sectors of what is added are done here.
    pub(super) fn growth_status(&self) -> Vec<(VolumeId, u64)> {
        self.growths.iter().map(|(&volume, growth)| (volume, growth.done)).collect()
    }

    pub(super) fn grows_in(&self, volume: VolumeId, run: u64) -> bool {
        self.growths.get(&volume).is_some_and(|growth| growth.run == run)
    }

    /// Of the runs, those stay whose volume grows as it did.
    pub(super) fn keep_growths(&mut self, new: &Configuration) {
        self.growths.retain(|&volume, growth| {
            new.volume(volume).is_some_and(|entry| {
                entry.sectors == growth.first && entry.grows_to == Some(growth.end)
            })
        });
    }

    /// Queues as many pieces as are due.
    pub(super) fn pump_growths(&mut self, out: &mut Out) {
        let Some(known) = self.configuration.clone() else { return };
        if self.has_lost_some() && self.is_own_in_sync() {
            // What was asked of this disk may not be there: begin anew when it counts no more, or when it is all there is.
            self.growths.clear();
            return;
        }
        self.drop_lost_growths();
        for entry in &known.volumes {
            let Some(end) = entry.grows_to else { continue };
            if !self.growths.contains_key(&entry.volume) {
                if self.now < self.only_disk.again_at {
                    continue;
                }
                out.push(ShardOutput::Mark("a volume grows"));
                let (run, first) = (self.sequence(), entry.sectors);
                let flush_failures = self.local.flush_failures;
                let growth = Growth {
                    run,
                    since: known.epoch,
                    flush_failures,
                    first,
                    end,
                    next: first,
                    open: 0,
                    done: 0,
                    flushing: false,
                    said: false,
                };
                self.growths.insert(entry.volume, growth);
            }
            self.pump_growth(entry.volume, out);
        }
    }

    /// A flush failed in which pieces may have been lost that were answered before it: runs that are not done begin anew, a little later.
    fn drop_lost_growths(&mut self) {
        let failures = self.local.flush_failures;
        self.keep_whole_growths(|growth| growth.flush_failures == failures);
    }

    /// The same where the only copy, another node's, failed a flush.
    pub(super) fn drop_open_growths(&mut self) {
        self.keep_whole_growths(|_| false);
    }

    fn keep_whole_growths(&mut self, is_whole: impl Fn(&Growth) -> bool) {
        let before = self.growths.len();
        self.growths.retain(|_, growth| growth.said || is_whole(growth));
        if self.growths.len() < before {
            self.only_disk.again_at = self.now + self.tick_length();
        }
    }

    fn pump_growth(&mut self, volume: VolumeId, out: &mut Out) {
        let extent_sectors = self.geometry.extent_sectors;
        while let Some(&Growth { run, next, end, .. }) = self.growths.get(&volume) {
            if next >= end {
                return self.flush_growth(volume, out);
            }
            let extent = next / extent_sectors;
            let mine = Shard::owner(&self.geometry, self.shards, extent) == self.index;
            let stop = if mine {
                if !self.pace.may_begin(self.now) {
                    return;
                }
                (extent + 1) * extent_sectors
            } else {
                // The rest of the stripe is another shard's.
                (extent / self.geometry.stripe_extents + 1)
                    * self.geometry.stripe_extents
                    * extent_sectors
            };
            let stop = stop.min(end);
            let growth = self.growths.get_mut(&volume).expect("looked up above");
            growth.next = stop;
            if mine {
                growth.open += 1;
                let count =
                    u32::try_from(stop - next).expect("an extent is far below 2^32 sectors");
                let span = Span::new(next, count).expect("next is before the end");
                self.queue_copy(Purpose::Grow { run }, volume, span, out);
            }
        }
    }

    /// A piece is zero on every in-sync disk, or is not wanted any more.
    pub(super) fn grown_piece(&mut self, volume: VolumeId, run: u64, span: Span, out: &mut Out) {
        if let Some(growth) = self.growths.get_mut(&volume).filter(|growth| growth.run == run) {
            growth.open -= 1;
            growth.done += u64::from(span.count());
            if growth.next >= growth.end {
                self.flush_growth(volume, out);
            }
        }
    }

    fn flush_growth(&mut self, volume: VolumeId, out: &mut Out) {
        let failing = self.has_lost_some() && self.is_own_in_sync();
        self.drop_lost_growths();
        let Some(growth) = self.growths.get_mut(&volume) else { return };
        if growth.open == 0 && !growth.flushing && !growth.said && !failing {
            growth.flushing = true;
            let run = growth.run;
            self.start_flush(None, FlushFor::Growth { volume, run }, out);
        }
    }

    /// Everything is flushed.
    pub(super) fn grown(&mut self, volume: VolumeId, run: u64, out: &mut Out) {
        self.drop_lost_growths();
        if let Some(growth) = self.growths.get_mut(&volume).filter(|growth| growth.run == run) {
            growth.said = true;
            let since = growth.since;
            out.push(ShardOutput::Member(FromShard::Grown { volume, since }));
        }
    }

    /// A flush that nobody waits for but this node, and that its disk failed, is no more: one of a growth, which begins anew, or
    /// the one after the loss of all caches, which is asked for again.
    pub(super) fn drop_own_flush(&mut self, id: u64) {
        if let Some(Kind::Flush(flush)) = self.ops.get(&id).map(|op| &op.kind)
            && !matches!(flush.purpose, FlushFor::Client)
        {
            let (sequence, purpose) = (flush.sequence, flush.purpose);
            self.asked.remove(&sequence);
            self.ops.remove(&id);
            if let FlushFor::Growth { volume, run } = purpose
                && self.grows_in(volume, run)
            {
                self.growths.remove(&volume);
            }
            self.only_disk.again_at = self.now + self.tick_length();
        }
    }
}

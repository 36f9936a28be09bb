//! The activity log: which extents may hold writes that a crash leaves in doubt.
//!
//! An extent is *hot* once the log page that names it is on stable storage; only then may a write to it
//! be issued to the disk. Pages hold their whole set of hot extents, so many extents that turn hot
//! together share one page write.
//!
//! Each volume has its own room: one whose log is full keeps no other waiting.
//!
//! Always: an extent leaves the log only through `cooled`, which the shard calls after the extent's
//! bitmap pages are written and the disk is flushed, and only if nobody uses it since.
//!
//! Not here: why an extent may not turn cold (`Shard::cool` asks for users and doubt).

use crate::disk::encode_log_page;
use crate::door::{Geometry, LogSize, MetaPage, Page};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::VolumeId;

/// A volume's extent.
pub(super) type Extent = (VolumeId, u64);

#[derive(Clone, Copy, Debug)]
struct Hot {
    page: u32,
    durable: bool,
    last_used: u64,
}

#[derive(Debug, Default)]
struct LogPageState {
    extents: BTreeSet<u64>,
    sequence: u64,
    dirty: bool,
    /// What no write that has begun names.
    fresh: Vec<u64>,
    /// What the write in flight names first.
    writing: Option<Vec<u64>>,
}

/// The part of the activity log that one shard keeps.
#[derive(Debug)]
pub(super) struct ActivityLog {
    geometry: Geometry,
    index: u32,
    shards: u32,
    life: u64,
    half: u8,
    /// Of volumes that have not the size of the geometry.
    sizes: BTreeMap<VolumeId, LogSize>,
    hot: BTreeMap<Extent, Hot>,
    /// Number of hot extents of each volume that ever asked for one.
    filled: BTreeMap<VolumeId, usize>,
    pages: BTreeMap<(VolumeId, u32), LogPageState>,
    /// Extents that want to be hot and find no room.
    queue: VecDeque<Extent>,
    users: BTreeMap<Extent, u32>,
    /// An extent lost its last user since `take_idle`.
    idle: bool,
    /// All that can turn cold is to do so.
    empties: bool,
    /// An extent took one of the last places of its volume's log since `victims`.
    short: bool,
    clock: u64,
    writes: u64,
}

impl ActivityLog {
    pub(super) fn new(
        geometry: &Geometry,
        index: u16,
        shards: u16,
        life: u64,
        half: u8,
        sizes: &[(VolumeId, LogSize)],
    ) -> ActivityLog {
        ActivityLog {
            geometry: *geometry,
            index: u32::from(index),
            shards: u32::from(shards),
            life,
            half,
            sizes: sizes.iter().copied().collect(),
            hot: BTreeMap::new(),
            filled: BTreeMap::new(),
            pages: BTreeMap::new(),
            queue: VecDeque::new(),
            users: BTreeMap::new(),
            idle: false,
            empties: false,
            short: false,
            clock: 0,
            writes: 0,
        }
    }

    fn size(&self, volume: VolumeId) -> LogSize {
        let Geometry { log_pages: pages, log_extents: extents, .. } = self.geometry;
        self.sizes.get(&volume).copied().unwrap_or(LogSize { pages, extents })
    }

    /// Extents of the volume that may be hot here.
    fn budget(&self, volume: VolumeId) -> usize {
        let shards = usize::try_from(self.shards).expect("at most 8");
        (self.size(volume).extents / shards).max(2)
    }

    fn filled(&self, volume: VolumeId) -> usize {
        self.filled.get(&volume).copied().unwrap_or(0)
    }

    /// Whether one of the last places of the volume's log is taken, a sixteenth of them: room for those that come is made while
    /// they still find some, so that none waits for a flush.
    fn is_short(&self, volume: VolumeId) -> bool {
        let budget = self.budget(volume);
        self.filled(volume) > budget - budget / 16
    }

    /// Takes over what was hot in an earlier life, whatever the budget.
    pub(super) fn inherit(&mut self, extents: &[Extent]) {
        for &extent in extents {
            if !self.hot.contains_key(&extent) {
                assert!(self.place(extent), "pages have room for every shard's inheritance");
            }
        }
    }

    /// Counts one more reason to keep the extent hot.
    pub(super) fn hold(&mut self, extent: Extent) {
        *self.users.entry(extent).or_insert(0) += 1;
    }

    /// Takes one reason back.
    pub(super) fn unhold(&mut self, extent: Extent) {
        let users = self.users.get_mut(&extent).expect("held at some time");
        assert!(*users > 0, "held before");
        *users -= 1;
        if *users == 0 {
            self.idle = true;
            // A hot extent's place stays until it turns cold: it is likely to be used again.
            if !self.hot.contains_key(&extent) {
                self.users.remove(&extent);
            }
        }
    }

    /// Whether there is a reason to keep it hot.
    pub(super) fn is_used(&self, extent: Extent) -> bool {
        self.users.get(&extent).is_some_and(|&users| users > 0)
    }

    /// Whether an extent lost its last user since this was asked, so that room may be found.
    pub(super) fn take_idle(&mut self) -> bool {
        core::mem::take(&mut self.idle)
    }

    /// Number of hot extents for which `doubtful` holds. They cannot turn cold before they are reconciled
    /// or resynced, so they do not count against the budget: else nothing could be written meanwhile.
    pub(super) fn count(&self, doubtful: impl Fn(Extent) -> bool) -> usize {
        self.hot.keys().filter(|&&extent| doubtful(extent)).count()
    }

    /// Whether the extent is hot on stable storage; asks for it if not, behind those that asked before: the
    /// logs of two replicas that admit in another order can wait for each other for ever. `doubtful`: hot
    /// extents that do not count.
    pub(super) fn touch(&mut self, extent: Extent, doubtful: usize) -> bool {
        self.clock += 1;
        if let Some(hot) = self.hot.get_mut(&extent) {
            hot.last_used = self.clock;
            return hot.durable;
        }
        if !self.queue.contains(&extent) {
            self.queue.push_back(extent);
            self.filled.entry(extent.0).or_insert(0);
        }
        self.admit(doubtful);
        false
    }

    pub(super) fn is_hot(&self, extent: Extent) -> bool {
        self.hot.contains_key(&extent)
    }

    fn place(&mut self, extent: Extent) -> bool {
        let mut page = self.index;
        let pages = self.size(extent.0).pages;
        while page < pages {
            let state = self.pages.entry((extent.0, page)).or_default();
            if state.extents.len() < self.geometry.log_page_extents {
                state.extents.insert(extent.1);
                state.fresh.push(extent.1);
                state.dirty = true;
                let hot = Hot { page, durable: false, last_used: self.clock };
                self.hot.insert(extent, hot);
                *self.filled.entry(extent.0).or_insert(0) += 1;
                self.short |= self.is_short(extent.0);
                return true;
            }
            page += self.shards;
        }
        false
    }

    /// Pages to write now: (volume, page, bytes). Each is answered by `page_written`.
    pub(super) fn take_writes(&mut self) -> Vec<(VolumeId, MetaPage, Box<Page>)> {
        let mut writes = Vec::new();
        for (&(volume, page), state) in &mut self.pages {
            if !state.dirty || state.writing.is_some() {
                continue;
            }
            state.dirty = false;
            state.sequence += 1;
            let copy = u8::from(state.sequence % 2 == 1);
            let extents: Vec<u64> = state.extents.iter().copied().collect();
            state.writing = Some(core::mem::take(&mut state.fresh));
            let bytes =
                encode_log_page(volume, self.half, page, copy, state.sequence, self.life, &extents);
            writes.push((volume, MetaPage::Log { half: self.half, page, copy }, bytes));
        }
        writes
    }

    /// The write of a page is on stable storage; returns the extents that turned hot by it.
    pub(super) fn page_written(&mut self, volume: VolumeId, page: u32) -> Vec<Extent> {
        self.writes += 1;
        let state = self.pages.get_mut(&(volume, page)).expect("a page that was written");
        let named = state.writing.take().expect("a write was in flight");
        let mut turned = Vec::new();
        for extent in named {
            if let Some(hot) = self.hot.get_mut(&(volume, extent))
                && !hot.durable
                && hot.page == page
            {
                hot.durable = true;
                turned.push((volume, extent));
            }
        }
        turned
    }

    /// Page writes of this life that are on stable storage.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Whether nothing waits for a page write.
    pub(super) fn is_settled(&self) -> bool {
        self.pages.values().all(|state| !state.dirty && state.writing.is_none())
    }

    /// Whether extents wait for room, or all are to go.
    pub(super) fn wants_room(&self) -> bool {
        !self.queue.is_empty() || self.empties
    }

    /// Whether some should turn cold for those that will want their places.
    pub(super) fn wants_spare_room(&self) -> bool {
        self.short
    }

    /// From now on whatever can turn cold does so, and the pages say so.
    pub(super) fn empty(&mut self) {
        self.empties = true;
    }

    /// Of volumes whose extents wait for room, or, if none do, of those that are short of it, or of all, the extents that are
    /// used least recently and by nobody, `keep` not being true for them; about a quarter of what each may have, for each time costs
    /// a flush. The second is the clock to hand to `cooled`.
    pub(super) fn victims(&mut self, keep: impl Fn(Extent) -> bool) -> (Vec<Extent>, u64) {
        self.short = false;
        let mut waiting: BTreeMap<VolumeId, usize> = BTreeMap::new();
        for &(volume, _) in &self.queue {
            *waiting.entry(volume).or_insert(0) += 1;
        }
        if waiting.is_empty() {
            let volumes = self.filled.keys().copied();
            let volumes = volumes.filter(|&volume| self.empties || self.is_short(volume));
            waiting.extend(volumes.map(|volume| (volume, 0)));
        }
        let mut victims = Vec::new();
        for (volume, count) in waiting {
            let of_volume = self.hot.range((volume, 0)..=(volume, u64::MAX));
            let mut idle: Vec<(u64, Extent)> = of_volume
                .filter(|(extent, hot)| hot.durable && !self.is_used(**extent) && !keep(**extent))
                .map(|(&extent, hot)| (hot.last_used, extent))
                .collect();
            idle.sort_unstable();
            let budget = self.budget(volume);
            let over = (self.filled(volume) + count).saturating_sub(budget);
            if !self.empties {
                idle.truncate((budget / 4).max(over).max(1));
            }
            victims.extend(idle.into_iter().map(|(_, extent)| extent));
        }
        (victims, self.clock)
    }

    /// These extents' bitmap pages are written and the disk was flushed, all after `clock`: those not
    /// used since leave the log, and those that wait for room take their places.
    pub(super) fn cooled(&mut self, victims: &[Extent], clock: u64, doubtful: usize) {
        for extent in victims {
            let Some(hot) = self.hot.get(extent) else { continue };
            if hot.last_used > clock || self.is_used(*extent) {
                continue;
            }
            let page = hot.page;
            self.hot.remove(extent);
            *self.filled.get_mut(&extent.0).expect("counted when it was placed") -= 1;
            self.users.remove(extent);
            let state = self.pages.get_mut(&(extent.0, page)).expect("the page that holds it");
            state.extents.remove(&extent.1);
            state.dirty |= self.empties;
        }
        self.admit(doubtful);
    }

    /// Gives those that wait the room that there is, of each volume first come, first served.
    pub(super) fn admit(&mut self, doubtful: usize) {
        let mut full: BTreeSet<VolumeId> = BTreeSet::new();
        let mut at = 0;
        while full.len() < self.filled.len()
            && let Some(&extent) = self.queue.get(at)
        {
            let volume = extent.0;
            let wanted = self.is_used(extent) && !self.hot.contains_key(&extent);
            let waits = full.contains(&volume)
                || self.filled(volume) >= self.budget(volume) + doubtful.min(self.filled(volume))
                || (wanted && !self.place(extent));
            if waits {
                full.insert(volume);
                at += 1;
            } else {
                self.queue.remove(at);
            }
        }
    }

    /// Number of hot extents, and how many are allowed.
    pub(super) fn fill(&self) -> (usize, usize) {
        (self.hot.len(), self.filled.keys().map(|&volume| self.budget(volume)).sum())
    }
}

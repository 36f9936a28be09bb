//! Faults that tests ask for: errors, stalls, a disk that becomes full, a cache that forgets.
//!
//! What always holds: without a [`FaultSpec`] none of this exists in a store; with one, `describe`
//! says so.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Duration, Prng};
use sys::Errno;

/// What kind of operation a fault hits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// Reads.
    Read,
    /// Writes and zeroings.
    Write,
    /// Flushes.
    Flush,
}

const KINDS: usize = 3;

/// Faults from the start. The default has none, but the layer can be told later.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FaultSpec {
    /// Seed of the choices below.
    pub seed: u64,
    /// One read in so many fails with `EIO`; 0: none.
    pub read_errors_one_in: u64,
    /// One write in so many fails with `EIO`; 0: none.
    pub write_errors_one_in: u64,
    /// One flush in so many fails with `EIO`; 0: none.
    pub flush_errors_one_in: u64,
    /// One operation in so many is answered late; 0: none.
    pub stalls_one_in: u64,
    /// How late.
    pub stall: Duration,
    /// What changes the disk and is answered late is carried out only then.
    pub stalls_before: bool,
    /// Bytes that may be written, data and metadata together, before there is no room for more (`ENOSPC`);
    /// 0: all. Where something stood before needs room as well, as below snapshots. Zeroes need none.
    pub full_after_bytes: u64,
    /// Bytes that may be written, in the same way, before all that is asked for is answered late; 0: all.
    pub hangs_after_bytes: u64,
    /// Writes stay in memory until a flush, or a write with FUA, and die with the process.
    pub volatile_cache: bool,
    /// Of what is in that cache one page in so many reaches the disk at once, and outlives the process; 0:
    /// none.
    pub written_back_one_in: u64,
}

/// The fault layer of an open store.
#[derive(Debug)]
pub struct Faults {
    seed: u64,
    prng: Prng,
    one_in: [u64; KINDS],
    /// So many of the next operations fail, with this error.
    next: [(u32, Errno); KINDS],
    stalls_one_in: u64,
    stalls_next: u32,
    stall: Duration,
    /// Changes that are answered late are carried out late.
    pub(crate) before: bool,
    /// Bytes that may still be written, by all shares together.
    room: Option<Arc<AtomicU64>>,
    /// Bytes that may still be written before it hangs, likewise.
    unhung: Option<Arc<AtomicU64>>,
    /// What cannot be read, in bytes of any disk of the store.
    spoiled: Vec<Range<u64>>,
    /// Operations that failed because of us.
    injected: u64,
}

impl Faults {
    pub(crate) fn new(spec: &FaultSpec) -> Faults {
        let rates = [spec.read_errors_one_in, spec.write_errors_one_in, spec.flush_errors_one_in];
        let left = |bytes| (bytes > 0).then(|| Arc::new(AtomicU64::new(bytes)));
        Faults {
            seed: spec.seed,
            prng: Prng::new(spec.seed),
            one_in: rates,
            next: [(0, Errno::IO); KINDS],
            stalls_one_in: spec.stalls_one_in,
            stalls_next: 0,
            stall: spec.stall,
            before: spec.stalls_before,
            room: left(spec.full_after_bytes),
            unhung: left(spec.hangs_after_bytes),
            spoiled: Vec::new(),
            injected: 0,
        }
    }

    /// The same rates, drawn on their own: for another share of the store.
    pub(crate) fn share(&self, number: u64) -> Faults {
        Faults {
            seed: self.seed,
            prng: Prng::new(self.seed.wrapping_add(number)),
            one_in: self.one_in,
            next: [(0, Errno::IO); KINDS],
            stalls_one_in: self.stalls_one_in,
            stalls_next: 0,
            stall: self.stall,
            before: self.before,
            room: self.room.clone(),
            unhung: self.unhung.clone(),
            spoiled: self.spoiled.clone(),
            injected: 0,
        }
    }

    /// The next `count` operations of a kind fail with `errno`; 0 ends it.
    pub fn fail_next(&mut self, kind: FaultKind, count: u32, errno: Errno) {
        self.next[index(kind)] = (count, errno);
    }

    /// The next `count` operations are carried out but answered `late` later.
    pub fn stall_next(&mut self, count: u32, late: Duration) {
        self.stalls_next = count;
        self.stall = late;
    }

    /// Reads that touch these bytes of a disk, on which data comes before internal metadata, fail until they are written, all at once.
    pub fn spoil(&mut self, range: Range<u64>) {
        self.spoiled.push(range);
    }

    /// These bytes of a disk are written.
    pub(crate) fn renew(&mut self, range: &Range<u64>) {
        self.spoiled.retain(|bad| bad.start < range.start || range.end < bad.end);
    }

    /// The error of a read of these bytes of a disk.
    pub(crate) fn unreadable(&mut self, range: &Range<u64>) -> Option<Errno> {
        let touches = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        let found = self.spoiled.iter().any(touches);
        self.injected += u64::from(found);
        found.then_some(Errno::IO)
    }

    /// Operations that failed because of this layer.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected
    }

    /// The error this operation is to have.
    pub(crate) fn error(&mut self, kind: FaultKind) -> Option<Errno> {
        let (count, errno) = &mut self.next[index(kind)];
        let chosen = if *count > 0 {
            *count -= 1;
            Some(*errno)
        } else {
            let one_in = self.one_in[index(kind)];
            (one_in > 0 && self.prng.once_in(one_in)).then_some(Errno::IO)
        };
        self.injected += u64::from(chosen.is_some());
        chosen
    }

    /// Takes room for so many bytes; the error if there is not enough.
    pub(crate) fn take_room(&mut self, bytes: u64) -> Option<Errno> {
        let room = self.room.as_ref()?;
        let order = Ordering::Relaxed;
        let taken = room.fetch_update(order, order, |left| left.checked_sub(bytes));
        self.injected += u64::from(taken.is_err());
        taken.is_err().then_some(Errno::NO_SPACE)
    }

    /// How late this operation, which writes so many bytes, is to be answered.
    pub(crate) fn delay(&mut self, bytes: u64) -> Option<Duration> {
        if let Some(left) = &self.unhung {
            let order = Ordering::Relaxed;
            if left.fetch_update(order, order, |left| left.checked_sub(bytes)).is_err() {
                left.store(0, order);
            }
            if left.load(order) == 0 {
                return Some(self.stall);
            }
        }
        if self.stalls_next > 0 {
            self.stalls_next -= 1;
            return Some(self.stall);
        }
        (self.stalls_one_in > 0 && self.prng.once_in(self.stalls_one_in)).then_some(self.stall)
    }
}

fn index(kind: FaultKind) -> usize {
    match kind {
        FaultKind::Read => 0,
        FaultKind::Write => 1,
        FaultKind::Flush => 2,
    }
}

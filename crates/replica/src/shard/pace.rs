//! How fast background copies go: as fast as the application's requests allow.
//!
//! While no request came for a second, copies are large and many. Else they go at one of several
//! *levels*, each with about half the pressure of the one above: fewer copies at once, then smaller
//! ones, then one small copy at a time with a rest after it. The level is found by comparing the
//! requests' 99th percentile with what it is for requests that met no copy: the latter are those that
//! lived in a rest, and where the level has no rests a short probe makes some.
//!
//! Slow requests come in bursts: what stands still for a moment, a disk or a core, makes all that are there late at once, copies or not.
//! So they are counted up, and down again with each request by what is allowed, over any number of windows; the level falls
//! when more is left than a few bursts.
//!
//! An operator may set the most that resyncs copy, and the least (`rate`): what the levels find holds between the two.
//!
//! Always: copies never stop. A rest is a multiple of the time that the copy before it took, and at
//! most `REST_MAX`. Where requests are slow for other reasons, copies are not made small for it.
//!
//! Not here: which range is copied next (`sync`, `copy`).

use base::{Duration, Instant};
use rate::Rate;

mod rate;
#[cfg(test)]
mod tests;

/// The application is there while it asked for something within this time.
const PRESENCE: Duration = Duration::from_secs(1);
/// The longest rest after a copy. On a machine that is slow for other reasons copies take long, and so
/// would rests.
const REST_MAX: Duration = Duration::from_millis(10);
/// The fewest sectors of a copy under load: 16 KiB. Its cost is below that of one request and its
/// network round trip.
const SECTORS_MIN: u64 = 32;
/// Time that a disk or link may need for a sector: 100 MB/s, which slow ones reach. A copy that takes no
/// more than half of what requests take anyway is not made smaller: that would help nobody.
const SECTOR_TIME: Duration = Duration(5_120);
/// Latencies from which a 99th percentile is taken: it is then not just the largest.
const WINDOW_REQUESTS: u32 = 256;
/// ... over at least this time, several copies long,
const WINDOW_MIN: Duration = Duration::from_millis(20);
/// ... or as many as there are after this time.
const WINDOW_MAX: Duration = Duration::from_millis(500);
/// Windows without a request that met no copy, after which a probe makes some.
const PROBE_AFTER: u32 = 24;
/// A probe lasts until so many requests met no copy,
const PROBE_REQUESTS: u32 = 128;
/// ... or this long.
const PROBE_MAX: Duration = Duration::from_millis(250);
/// The level of a probe has rests of so many times a copy.
const PROBE_REST: u64 = 15;
/// The longest rest, in times the copy before it: fewer than one request in a hundred meets a copy.
const REST_FACTOR_MAX: u64 = 127;
/// A request is slow that takes more than these hundredths of the percentile without copies: less than
/// the 200 that are promised.
const SLOW_ABOVE: u64 = 170;
/// So many of ten thousand requests may be slow; more, if more are of those that met no copy.
const SLOW_ALLOWED: u64 = 100;
/// So many bursts more than are allowed may be chance: further ones lower the level.
const BURSTS_FEW: u64 = 2;
/// In which the size of bursts is kept, so that small ones are forgotten as fast as large ones.
const BURST_PARTS: u64 = 64;
/// Requests that met no copy by which it is told how many of those are slow.
const ALONE_MEMORY: u64 = 8192;
/// Below these hundredths the level rises.
const RISE_BELOW: u64 = 140;
/// Requests in good windows before it does,
const RISE_AFTER: u32 = 2 * WINDOW_REQUESTS;
/// ... twice as many each time that it was followed by a fall, up to these: the slow ones of each trial
/// are then few among them.
const RISE_AFTER_MAX: u32 = 64 * WINDOW_REQUESTS;

/// What copies may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Pressure {
    /// In flight at once.
    pub(super) copies: usize,
    /// Sectors of each at most: a power of two.
    pub(super) sectors: u64,
    /// Rest after one, in times what it took.
    rest: u64,
}

/// How often latencies fell into steps of an eighth of an octave.
#[derive(Clone, Debug)]
struct Latencies {
    count: u32,
    steps: [u32; Latencies::STEPS],
}

impl Latencies {
    /// From 1 µs to more than an hour.
    const STEPS: usize = 32 * 8;

    fn new() -> Latencies {
        Latencies { count: 0, steps: [0; Latencies::STEPS] }
    }

    fn add(&mut self, latency: Duration) {
        let microseconds = (latency.0 / 1000).max(8);
        let octave = microseconds.ilog2();
        let eighth = microseconds >> (octave - 3) & 7;
        let step = usize::try_from(u64::from(octave - 3) * 8 + eighth).unwrap_or(usize::MAX);
        self.steps[step.min(Latencies::STEPS - 1)] += 1;
        self.count += 1;
    }

    /// The latency that 99 of 100 do not exceed; `None` without any.
    fn percentile(&self) -> Option<Duration> {
        self.exceeded_by(self.count / 100)
    }

    /// The latency that so many exceed; `None` without any.
    fn exceeded_by(&self, beyond: u32) -> Option<Duration> {
        let mut seen = 0;
        for step in (0..Latencies::STEPS).rev() {
            seen += self.steps[step];
            if seen > beyond {
                let step = u64::try_from(step).expect("a few hundred steps");
                let (octave, eighth) = (step / 8, step % 8);
                // The middle of the step.
                return Some(Duration(((16 + 2 * eighth + 1) << octave) * 500));
            }
        }
        None
    }

    fn clear(&mut self) {
        *self = Latencies::new();
    }
}

/// The pace of one shard's copies.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    copies_max: usize,
    sectors_max: u64,
    sectors_min: u64,
    /// 0 is the highest.
    level: u32,
    levels: u32,
    in_flight: usize,
    /// When the newest copy began.
    copy_began: Instant,
    /// From when on nothing is felt of a copy: as long after it as it took, for those who waited for it
    /// make others wait.
    calm_from: Instant,
    rest_until: Instant,
    last_request: Option<Instant>,
    window_began: Instant,
    /// Copies in flight that began before the level changed: until they end nothing is judged.
    old_copies: usize,
    /// Of requests that came in this window.
    all: Latencies,
    /// Slow ones that met a copy, less what was allowed since, in ten-thousandths of a request.
    excess: u64,
    /// Slow requests that were there when the first of them ended, and when that was,
    burst: (u64, Instant),
    /// ... and the most of them at once, lately, in parts.
    burst_max: u64,
    /// Of requests that met no copy.
    alone: Latencies,
    /// How many of those there were lately, and how many were slow.
    alone_slow: (u64, u64),
    /// How many of ten thousand requests may be slow: by that.
    allowed: u64,
    /// The percentile of those, over some windows.
    usual: Option<Duration>,
    /// How many of them it was taken from, up to as many as a probe waits for.
    told_by: u32,
    /// Windows since it was renewed.
    stale: u32,
    /// Requests in good windows since the level changed.
    good: u32,
    /// How many of them allow the next rise.
    patience: u32,
    /// The last change of the level was a rise.
    rose: bool,
    /// Copies were made in this window.
    copied: bool,
    probe_since: Option<Instant>,
    /// What resyncs may take at most,
    most: Rate,
    /// ... and what they take whatever requests feel.
    least: Rate,
}

impl Pace {
    /// At most `copies_max` copies at once, of `sectors_max` each; all are whole blocks.
    pub(super) fn new(copies_max: usize, sectors_max: u64, block_sectors: u64) -> Pace {
        let sectors_min = SECTORS_MIN.max(block_sectors).min(sectors_max);
        let levels = copies_max.max(1).ilog2()
            + (sectors_max / sectors_min).max(1).ilog2()
            + (REST_FACTOR_MAX + 1).ilog2();
        Pace {
            copies_max,
            sectors_max,
            sectors_min,
            level: copies_max.max(1).ilog2(),
            levels,
            in_flight: 0,
            copy_began: Instant(0),
            calm_from: Instant(0),
            rest_until: Instant(0),
            last_request: None,
            window_began: Instant(0),
            old_copies: 0,
            all: Latencies::new(),
            excess: 0,
            burst: (0, Instant(0)),
            burst_max: 0,
            alone: Latencies::new(),
            alone_slow: (0, 0),
            allowed: SLOW_ALLOWED,
            usual: None,
            told_by: 0,
            stale: 0,
            good: 0,
            patience: RISE_AFTER,
            rose: false,
            copied: false,
            probe_since: None,
            most: Rate::NONE,
            least: Rate::NONE,
        }
    }

    /// The limits of resyncs are these bytes per second from now on; 0: none.
    pub(super) fn limit(&mut self, most: u64, least: u64, now: Instant) {
        self.most.set(most, now);
        self.least.set(least, now);
    }

    /// What copies may do now.
    pub(super) fn pressure(&self, now: Instant) -> Pressure {
        if !self.is_watched(now) {
            return Pressure { copies: self.copies_max, sectors: self.sectors_max, rest: 0 };
        }
        if self.probe_since.is_some_and(|begun| now.since(begun) < PROBE_MAX) {
            return Pressure { copies: 1, sectors: self.sectors_min, rest: PROBE_REST };
        }
        let fewer = self.level.min(self.copies_max.max(1).ilog2());
        let smaller =
            (self.level - fewer).min((self.sectors_max / self.sectors_min).max(1).ilog2());
        let longer = self.level - fewer - smaller;
        Pressure {
            copies: (self.copies_max >> fewer).max(1),
            sectors: (self.sectors_max >> smaller).max(self.sectors_harmless()),
            rest: (1 << longer) - 1,
        }
    }

    /// Sectors of a copy that takes at most half the usual time of requests: a power of two.
    fn sectors_harmless(&self) -> u64 {
        let sectors = self.usual.map_or(0, |usual| usual.0 / 2 / SECTOR_TIME.0);
        let whole = sectors.checked_ilog2().map_or(0, |log| 1 << log);
        whole.clamp(self.sectors_min, self.sectors_max)
    }

    /// Whether an application is there whose latency counts.
    fn is_watched(&self, now: Instant) -> bool {
        self.last_request.is_some_and(|last| now.since(last) < PRESENCE)
    }

    /// Whether one more copy may begin.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        let pressure = self.pressure(now);
        self.in_flight < pressure.copies && (pressure.rest == 0 || now >= self.rest_until)
    }

    /// Whether one more copy of a resync may begin.
    pub(super) fn sync_may_begin(&self, now: Instant) -> bool {
        let allowed = self.most.due().is_none_or(|due| due <= now);
        allowed && (self.may_begin(now) || self.is_owed(now))
    }

    /// Whether resyncs have had less than the least.
    fn is_owed(&self, now: Instant) -> bool {
        self.in_flight < self.copies_max && self.least.due().is_some_and(|due| due <= now)
    }

    /// Sectors of a copy of a resync: a power of two.
    pub(super) fn sync_sectors(&self, now: Instant) -> u64 {
        let owed = self.least.sectors().checked_ilog2().map_or(0, |log| 1 << log);
        self.pressure(now).sectors.max(owed).min(self.sectors_max)
    }

    /// A resync's copy of so many sectors is begun.
    pub(super) fn sync_begins(&mut self, now: Instant, sectors: u64) {
        self.most.take(now, sectors);
        self.least.take(now, sectors);
    }

    /// When a resync's copy may begin because of its limits.
    pub(super) fn sync_wake_at(&self, now: Instant) -> Option<Instant> {
        let most = self.most.due().filter(|&due| due > now);
        let least = self.least.due().filter(|&due| due > now && self.in_flight < self.copies_max);
        match (most, least) {
            (Some(most), Some(least)) => Some(most.min(least)),
            (one, other) => one.or(other),
        }
    }

    /// When a copy may begin that may not now, as far as time alone decides.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        (self.in_flight == 0).then_some(self.rest_until)
    }

    /// A copy begins.
    pub(super) fn copy_begins(&mut self, now: Instant) {
        self.in_flight += 1;
        self.copy_began = now;
        self.copied = true;
    }

    /// A copy ended, or was given up.
    pub(super) fn copy_ends(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let took = now.since(self.copy_began);
        self.calm_from = now + took;
        let rest = took.0.saturating_mul(self.pressure(now).rest);
        let longest = if self.probe_since.is_some() { PROBE_MAX } else { REST_MAX };
        self.rest_until = now + Duration(rest.min(longest.0));
        if self.old_copies > 0 {
            self.old_copies -= 1;
            self.start_window(now);
        }
    }

    /// No copy is under way any more.
    pub(super) fn no_copies(&mut self) {
        (self.in_flight, self.old_copies) = (0, 0);
    }

    /// Somebody asks for something.
    pub(super) fn request_comes(&mut self, now: Instant) {
        if !self.is_watched(now) {
            // Perhaps another application: what was usual is found out anew.
            (self.usual, self.told_by) = (None, 0);
            self.alone.clear();
            (self.alone_slow, self.allowed, self.burst_max) = ((0, 0), SLOW_ALLOWED, 0);
            self.change(now);
            self.probe_since = Some(now);
        }
        self.last_request = Some(now);
    }

    /// A request that came at `since` is answered.
    pub(super) fn request_ends(&mut self, now: Instant, since: Instant) {
        let latency = now.since(since);
        let alone = self.in_flight == 0 && self.calm_from <= since;
        if alone {
            self.alone.add(latency);
            self.note_alone(latency);
        }
        if let Some(begun) = self.probe_since {
            if self.alone.count >= PROBE_REQUESTS || now.since(begun) >= PROBE_MAX {
                self.probe_since = None;
                self.learn();
                self.change(now);
            }
            return;
        }
        if self.old_copies > 0 || since < self.window_began {
            return;
        }
        self.all.add(latency);
        self.excess = self.excess.saturating_sub(self.allowed);
        // What is slow although no copy was there says nothing of copies.
        if !alone && self.exceeds(latency, SLOW_ABOVE) {
            self.excess += 10_000;
            self.note_burst(now, since);
        }
        let passed = now.since(self.window_began);
        let bursts = BURSTS_FEW * self.burst_max.max(BURST_PARTS);
        if self.excess * BURST_PARTS > 10_000 * bursts {
            self.sink(now);
        } else if (self.all.count >= WINDOW_REQUESTS && passed >= WINDOW_MIN)
            || passed >= WINDOW_MAX
        {
            self.end_window(now);
        }
    }

    /// A request that met no copy took so long.
    fn note_alone(&mut self, latency: Duration) {
        let (mut count, mut slow) = self.alone_slow;
        let full = count >= ALONE_MEMORY;
        if full {
            (count, slow) = (count / 2, slow / 2);
        }
        let is_slow = self.exceeds(latency, SLOW_ABOVE);
        (count, slow) = (count + 1, slow + u64::from(is_slow));
        self.alone_slow = (count, slow);
        // Each time would cost every request a division.
        if is_slow || full {
            self.allowed = SLOW_ALLOWED.max(slow * 10_000 / count.max(ALONE_MEMORY / 8));
        }
    }

    /// A request that came at `since` was slow.
    fn note_burst(&mut self, now: Instant, since: Instant) {
        let (count, ended) = &mut self.burst;
        if since < *ended {
            *count += 1;
        } else {
            self.burst_max -= self.burst_max / 8;
            (*count, *ended) = (1, now);
        }
        self.burst_max = self.burst_max.max(*count * BURST_PARTS);
    }

    /// Whether a latency is above so many hundredths of the usual percentile.
    fn exceeds(&self, latency: Duration, hundredths: u64) -> bool {
        self.usual.is_some_and(|usual| latency.0.saturating_mul(100) > usual.0 * hundredths)
    }

    fn start_window(&mut self, now: Instant) {
        self.window_began = now;
        self.all.clear();
        self.copied = self.in_flight > 0;
    }

    /// What copies may do is another from now on.
    fn change(&mut self, now: Instant) {
        self.old_copies = self.in_flight;
        self.excess = 0;
        self.start_window(now);
    }

    /// Renews what is usual without copies, from what was seen. What few requests told counts for few: they may have been the first
    /// after a start, or late by chance, and what a probe by many finds is not to be held up by them, nor undone.
    fn learn(&mut self) {
        let Some(seen) = self.alone.percentile() else { return };
        let (before, now) = (self.told_by, self.alone.count.min(PROBE_REQUESTS));
        self.stale = 0;
        self.alone.clear();
        let usual = self.usual.map_or(0, |usual| usual.0);
        let sum = usual.saturating_mul(u64::from(before)).saturating_add(seen.0 * u64::from(now));
        self.usual = Some(Duration(sum / u64::from(before + now)));
        self.told_by = (before + now).min(PROBE_REQUESTS);
    }

    fn end_window(&mut self, now: Instant) {
        let (felt, count, copied) = (self.all.percentile(), self.all.count, self.copied);
        self.start_window(now);
        self.stale += 1;
        if self.alone.count >= PROBE_REQUESTS {
            self.learn();
        }
        if !copied {
            return;
        }
        if self.usual.is_none() || self.stale >= PROBE_AFTER {
            self.probe_since = Some(now);
            return;
        }
        if felt.is_some_and(|felt| !self.exceeds(felt, RISE_BELOW)) {
            self.good = self.good.saturating_add(count);
            if self.good >= self.patience {
                (self.good, self.rose) = (0, true);
                self.level = self.level.saturating_sub(1);
                self.change(now);
            }
        }
    }

    /// Requests feel the copies too much: the level falls by as many steps as would halve that away.
    fn sink(&mut self, now: Instant) {
        let usual = self.usual.map_or(0, |usual| usual.0).max(1);
        // Half of the requests: what a burst makes of one in a hundred says nothing of how much is too much.
        let felt = self.all.exceeded_by(self.all.count / 2);
        let times = felt.map_or(0, |felt| felt.0 / (usual * 2));
        // Right after a rise: that was too much, and is not tried again soon.
        let rose = self.good < self.patience && self.rose;
        self.patience = if rose { (self.patience * 2).min(RISE_AFTER_MAX) } else { RISE_AFTER };
        (self.good, self.rose) = (0, false);
        self.level = (self.level + 1 + times.max(1).ilog2()).min(self.levels);
        self.change(now);
    }
}

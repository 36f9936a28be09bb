//! Ranges where this replica may differ from the others.
//!
//! Two kinds: a write was *open* there, so that only copying settles it; or the extent was merely hot
//! before a restart, so that a *comparison* may find nothing. A range may be of both kinds.
//!
//! Always: what is settled under a configuration that is not known yet stays in doubt until that is here; what comes into
//! doubt anew meanwhile stays so after that.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Epoch, RangeSet, Span, VolumeId};
use wire::DoubtRun;

/// Ranges in doubt, by volume.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt {
    open: BTreeMap<VolumeId, RangeSet>,
    compare: BTreeMap<VolumeId, RangeSet>,
    /// What is in doubt only until a configuration of this epoch is here.
    ahead: (Epoch, BTreeMap<VolumeId, RangeSet>),
}

impl Doubt {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.compare.is_empty()
    }

    pub(super) fn add(&mut self, volume: VolumeId, first: u64, end: u64, compare: bool) {
        let kind = if compare { &mut self.compare } else { &mut self.open };
        kind.entry(volume).or_default().insert(first, end);
        if let Some(set) = self.ahead.1.get_mut(&volume) {
            set.remove(first, end);
        }
    }

    pub(super) fn add_runs(&mut self, runs: &[DoubtRun]) {
        for run in runs {
            self.add(run.volume, run.first, run.end, run.compare);
        }
    }

    pub(super) fn remove(&mut self, volume: VolumeId, span: Span) {
        self.remove_between(volume, span.first(), span.end());
    }

    /// Takes out everything at or beyond sector `end`.
    pub(super) fn cut(&mut self, volume: VolumeId, end: u64) {
        self.remove_between(volume, end, u64::MAX);
    }

    fn remove_between(&mut self, volume: VolumeId, first: u64, end: u64) {
        for kind in [&mut self.open, &mut self.compare] {
            if let Some(set) = kind.get_mut(&volume) {
                set.remove(first, end);
                if set.is_empty() {
                    kind.remove(&volume);
                }
            }
        }
    }

    /// The span is in doubt no more once a configuration of this epoch is here.
    pub(super) fn remove_later(&mut self, epoch: Epoch, volume: VolumeId, span: Span) {
        self.ahead.0 = epoch.max(self.ahead.0);
        self.ahead.1.entry(volume).or_default().insert(span.first(), span.end());
    }

    /// A configuration of this epoch is here: takes out what waited for it, and says what that was.
    pub(super) fn remove_ahead(&mut self, epoch: Epoch) -> Vec<(VolumeId, u64, u64)> {
        if epoch < self.ahead.0 {
            return Vec::new();
        }
        let settled = self.forget_ahead();
        let runs = |(&volume, set): (&VolumeId, &RangeSet)| {
            set.iter().map(move |(first, end)| (volume, first, end)).collect::<Vec<_>>()
        };
        let runs: Vec<_> = settled.iter().flat_map(runs).collect();
        for &(volume, first, end) in &runs {
            self.remove_between(volume, first, end);
        }
        runs
    }

    /// What waited for a configuration stays in doubt.
    pub(super) fn forget_ahead(&mut self) -> BTreeMap<VolumeId, RangeSet> {
        core::mem::take(&mut self.ahead).1
    }

    pub(super) fn overlaps(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        [&self.open, &self.compare]
            .iter()
            .any(|kind| kind.get(&volume).is_some_and(|set| set.overlaps(first, end)))
    }

    /// Whether a write was open in the span.
    pub(super) fn is_open(&self, volume: VolumeId, span: Span) -> bool {
        self.open.get(&volume).is_some_and(|set| set.overlaps(span.first(), span.end()))
    }

    /// The first range in doubt at or after (volume, sector).
    pub(super) fn next(&self, from: (VolumeId, u64)) -> Option<(VolumeId, u64, u64)> {
        let mut best: Option<(VolumeId, u64, u64)> = None;
        for kind in [&self.open, &self.compare] {
            for (&volume, set) in kind.range(from.0..) {
                let start = if volume == from.0 { from.1 } else { 0 };
                if let Some((first, end)) = set.next_run(start) {
                    if best.is_none_or(|(v, f, _)| (volume, first) < (v, f)) {
                        best = Some((volume, first, end));
                    }
                    break;
                }
            }
        }
        best
    }

    /// Everything, as it travels.
    pub(super) fn runs(&self) -> Vec<DoubtRun> {
        let mut runs = Vec::new();
        for (kind, compare) in [(&self.open, false), (&self.compare, true)] {
            for (&volume, set) in kind {
                runs.extend(set.iter().map(|(first, end)| DoubtRun {
                    volume,
                    first,
                    end,
                    compare,
                    hot: false,
                }));
            }
        }
        runs
    }

    pub(super) fn sectors(&self) -> u64 {
        self.open.values().chain(self.compare.values()).map(RangeSet::sectors).sum()
    }
}

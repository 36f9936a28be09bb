//! A set of sectors, kept as disjoint runs.

use crate::Span;
use alloc::collections::BTreeMap;

/// A set of sectors. Runs are disjoint, never empty and never touch each other.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RangeSet {
    /// First sector of a run to the sector after its last.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> RangeSet {
        RangeSet { runs: BTreeMap::new() }
    }

    /// Whether no sector is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of runs, which is what it costs in memory.
    #[must_use]
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Number of sectors in it.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.runs.iter().map(|(first, end)| end - first).sum()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.runs.clear();
    }

    /// Adds the sectors `first..end`.
    pub fn insert(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let (mut first, mut end) = (first, end);
        if let Some((&before, &before_end)) = self.runs.range(..=first).next_back()
            && before_end >= first
        {
            first = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.runs.range(first..=end).next() {
            self.runs.remove(&next);
            end = end.max(next_end);
        }
        self.runs.insert(first, end);
    }

    /// Adds every sector of `span`.
    pub fn insert_span(&mut self, span: Span) {
        self.insert(span.first(), span.end());
    }

    /// Adds every sector of `other`.
    pub fn insert_all(&mut self, other: &RangeSet) {
        for (first, end) in other.iter() {
            self.insert(first, end);
        }
    }

    /// Takes out the sectors `first..end`.
    pub fn remove(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        if let Some((&before, &before_end)) = self.runs.range(..first).next_back()
            && before_end > first
        {
            self.runs.insert(before, first);
            if before_end > end {
                self.runs.insert(end, before_end);
                return;
            }
        }
        while let Some((&next, &next_end)) = self.runs.range(first..end).next() {
            self.runs.remove(&next);
            if next_end > end {
                self.runs.insert(end, next_end);
            }
        }
    }

    /// Takes out every sector of `span`.
    pub fn remove_span(&mut self, span: Span) {
        self.remove(span.first(), span.end());
    }

    /// Whether a sector of `first..end` is in the set.
    #[must_use]
    pub fn overlaps(&self, first: u64, end: u64) -> bool {
        self.runs.range(..end).next_back().is_some_and(|(_, &run_end)| run_end > first)
            && first < end
    }

    /// Whether every sector of `first..end` is in the set.
    #[must_use]
    pub fn contains(&self, first: u64, end: u64) -> bool {
        first >= end
            || self.runs.range(..=first).next_back().is_some_and(|(_, &run_end)| run_end >= end)
    }

    /// The first run that ends after `from`, cut to start no earlier than `from`.
    #[must_use]
    pub fn next_run(&self, from: u64) -> Option<(u64, u64)> {
        if let Some((_, &end)) = self.runs.range(..=from).next_back()
            && end > from
        {
            return Some((from, end));
        }
        self.runs.range(from..).next().map(|(&first, &end)| (first, end))
    }

    /// The parts of `first..end` that are in the set, ascending.
    pub fn within(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.runs.range(..first).next_back().filter(|&(_, &run_end)| run_end > first);
        before
            .into_iter()
            .chain(self.runs.range(first..end.max(first)))
            .map(move |(&run, &run_end)| (run.max(first), run_end.min(end)))
    }

    /// Its runs, ascending, each as (first sector, sector after the last).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(&first, &end)| (first, end))
    }
}

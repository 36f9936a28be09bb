//! One run of the benchmark: what it measures, how long, where its files lie.

use std::fs;
use std::path::PathBuf;

use replica::door::Geometry;

use crate::cache;
use crate::calls::Counter;
use crate::cluster::Programs;
use crate::fio::{self, Target, Workload, float};
use crate::machine;
use crate::outcome::{Outcome, not_run};
use crate::sample::{Sample, median};

/// How the time of a table is dealt out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turns {
    Usual,
    /// Many short measurements in the place of a few long ones: for what differs by less than the machine does from one second to
    /// the next.
    Short,
    /// Long enough for devices that are limited, whose budget the kernel deals out ten times in a second.
    Steady,
}

/// In which order things have their turns, by number, when it is their turn for this time, from 0: every second time the other
/// way round, so that nobody always comes first.
pub(crate) fn order(time: u32, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if time % 2 == 1 {
        order.reverse();
    }
    order
}

/// How thorough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Hours.
    pub(crate) full: bool,
    /// Only shows that every row can be made.
    pub(crate) sanity: bool,
    /// Minutes: what answers least is left out, and the rest measured for half as long. A quick run of all tables is so; one of tables that
    /// were named has all their rows but those of full runs.
    pub(crate) brief: bool,
    pub(crate) turns: Turns,
}

impl Pace {
    /// Whether also what only long runs measure: those that only show rows show these, too.
    pub(crate) fn every_row(self) -> bool {
        self.full || self.sanity
    }

    /// These; in brief runs those of these depths only.
    pub(crate) fn of_depths(self, all: &[Workload], brief_depths: &[u32]) -> Vec<Workload> {
        let wanted = |workload: &&Workload| !self.brief || brief_depths.contains(&workload.depth);
        all.iter().filter(wanted).copied().collect()
    }

    /// Seconds of one measurement.
    pub(crate) fn seconds(self) -> f64 {
        match (self, self.turns) {
            (Pace { sanity: true, .. }, _) => 0.2,
            (Pace { full: true, .. }, Turns::Short) => 0.5,
            (Pace { full: true, .. }, _) => 5.0,
            (Pace { brief: true, .. }, Turns::Short) => 0.3,
            (Pace { brief: true, .. }, Turns::Usual) | (_, Turns::Short) => 0.5,
            (_, Turns::Usual | Turns::Steady) => 1.0,
        }
    }

    /// Seconds before it that do not count; brief runs leave the first turn's cold start to the median.
    pub(crate) fn warm_seconds(self) -> f64 {
        match (self, self.turns) {
            (Pace { sanity: true, .. }, _) => 0.0,
            (_, Turns::Short) => 0.1,
            (Pace { full: true, .. }, _) => 1.0,
            (Pace { brief: true, .. }, _) => 0.0,
            _ => 0.2,
        }
    }

    /// Seconds in which system calls are counted.
    pub(crate) fn calls_seconds(self) -> f64 {
        if self.brief { 0.2 } else { self.seconds().min(0.5) }
    }

    /// Measurements of each thing, which alternate with those of others.
    pub(crate) fn repeats(self) -> u32 {
        match (self, self.turns) {
            (Pace { sanity: true, .. }, _) => 1,
            (Pace { full: true, .. }, Turns::Short) => 31,
            (_, Turns::Short) => 11,
            _ => 3,
        }
    }

    /// Volumes that nobody uses.
    pub(crate) fn idle_volumes(self) -> u32 {
        match self {
            Pace { sanity: true, .. } => 2,
            Pace { full: true, .. } => 1000,
            Pace { brief: true, .. } => 50,
            Pace { .. } => 100,
        }
    }

    /// Size of volumes in memory.
    pub(crate) fn memory_mib(self) -> u64 {
        if self.sanity { 32 } else { 256 }
    }

    /// Size of a volume in memory of which each of so many shards has as much as the others: a stripe. With less some would have
    /// nothing to do.
    pub(crate) fn sharded_mib(self, shards: u16) -> u64 {
        let Geometry { stripe_extents, extent_sectors, .. } = Geometry::default();
        let stripe_mib = (stripe_extents * extent_sectors * base::SECTOR_BYTES) >> 20;
        if self.sanity { self.memory_mib() } else { u64::from(shards) * stripe_mib }
    }

    /// Size of volumes on the disk.
    pub(crate) fn file_mib(self) -> u64 {
        match self {
            Pace { sanity: true, .. } => 32,
            Pace { full: true, .. } => 2048,
            Pace { .. } => 512,
        }
    }
}

/// One run.
pub(crate) struct Run {
    /// The revision in this tree, and another to compare with.
    pub(crate) programs: Vec<Programs>,
    pub(crate) pace: Pace,
    /// A directory of its own, with a short path because sockets lie below it.
    pub(crate) scratch: PathBuf,
    /// Whether system calls can be counted.
    pub(crate) counts: bool,
}

impl Run {
    /// The same, with turns of another kind.
    pub(crate) fn in_turns(&self, turns: Turns) -> Run {
        let (programs, scratch) = (self.programs.clone(), self.scratch.clone());
        Run { programs, pace: Pace { turns, ..self.pace }, scratch, counts: self.counts }
    }

    /// The same, with its files in a directory of its own below this one's.
    pub(crate) fn below(&self, name: &str) -> Outcome<Run> {
        let scratch = self.scratch.join(name);
        fs::create_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
        Ok(Run { programs: self.programs.clone(), scratch, pace: self.pace, counts: self.counts })
    }

    /// Whether a tool is there; says which part is left out if not.
    pub(crate) fn has(&self, tool: &str, part: &str) -> bool {
        let there = machine::find(tool).is_some();
        if !there {
            not_run(format!("{part}: no {tool} on this machine"));
        }
        there
    }

    /// What tells one revision's rows from the other's.
    pub(crate) fn suffix(&self, programs: &Programs) -> String {
        if self.programs.len() > 1 { suffix(&programs.label) } else { String::new() }
    }
}

/// What the rows of a revision end with, where there are two.
pub(crate) fn suffix(label: &str) -> String {
    format!(" @ {label}")
}

/// Something that is measured.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) target: Target,
    /// Processes whose time counts.
    pub(crate) pids: Vec<u32>,
    pub(crate) size_mib: u64,
    /// On how many disks a write ends.
    pub(crate) copies: u32,
    /// The file that its server keeps its copy in, if it goes through the page cache.
    pub(crate) cached: Option<PathBuf>,
}

impl Subject {
    /// Measures one workload with so many instances.
    pub(crate) fn measure(&self, run: &Run, workload: &Workload, threads: u32) -> Outcome<Sample> {
        let fio = |seconds| {
            fio::measure(&self.target, workload, self.size_mib, seconds, threads, &run.scratch)
        };
        self.settle()?;
        if run.pace.warm_seconds() > 0.0 {
            fio(run.pace.warm_seconds())?;
        }
        let before = machine::processor_ms(&self.pids)?;
        let seen = fio(run.pace.seconds())?;
        let used = machine::processor_ms(&self.pids)?.saturating_sub(before);
        // What it has still to write is not to be written while others are measured.
        self.settle()?;
        Ok(seen.sample(float(used) * 1000.0 / float(seen.requests)))
    }

    fn settle(&self) -> Outcome<()> {
        self.cached.as_deref().map_or(Ok(()), cache::settle)
    }

    /// System calls of its processes per request, counted in a run of their own: the median of a few. `None` where that cannot be
    /// had, or for the disk itself.
    pub(crate) fn system_calls(
        &self,
        run: &Run,
        workload: &Workload,
        threads: u32,
    ) -> Outcome<Option<f64>> {
        if self.pids.is_empty() || !run.counts {
            return Ok(None);
        }
        let mut all = Vec::new();
        for _ in 0..run.pace.repeats().min(CALLS_REPEATS) {
            let counter = Counter::start(&self.pids, &run.scratch)?;
            let (seconds, scratch) = (run.pace.calls_seconds(), &run.scratch);
            let seen =
                fio::measure(&self.target, workload, self.size_mib, seconds, threads, scratch)?;
            match counter.end() {
                Ok(calls) => all.push(float(calls) / float(seen.requests)),
                // A long run is not for its calls alone; one that shows that every row can be made is for all of it.
                Err(why) if run.pace.sanity => return Err(why),
                Err(why) => not_run(format!("system calls of {}: {why}", self.name)),
            }
        }
        Ok((!all.is_empty()).then(|| median(all)))
    }
}

/// How often system calls are counted at most.
const CALLS_REPEATS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::{Pace, Turns, order};
    use crate::tables::DEPTHS;

    fn pace(full: bool, brief: bool) -> Pace {
        Pace { full, sanity: false, brief, turns: Turns::Usual }
    }

    #[test]
    fn every_second_turn_goes_the_other_way_round() {
        assert_eq!([order(0, 3), order(1, 3), order(2, 3)], [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
        assert!(order(1, 0).is_empty());
    }

    #[test]
    fn what_only_shows_rows_shows_those_of_long_runs_too() {
        let sanity = Pace { sanity: true, ..pace(false, false) };
        assert!(sanity.every_row() && pace(true, false).every_row());
        assert!(!pace(false, false).every_row() && !pace(false, true).every_row());
    }

    #[test]
    fn a_brief_run_leaves_out_depths() {
        let depths = |pace: Pace| {
            let found = pace.of_depths(&DEPTHS, &[1, 64]);
            found.into_iter().map(|workload| workload.depth).collect::<Vec<u32>>()
        };
        assert_eq!(depths(pace(false, true)), [1, 64]);
        assert_eq!(depths(pace(false, false)), [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn limited_devices_are_measured_for_a_second_at_least() {
        let steady = |brief| Pace { turns: Turns::Steady, ..pace(false, brief) };
        assert!(steady(false).seconds() >= 1.0 && steady(true).seconds() >= 1.0);
    }
}

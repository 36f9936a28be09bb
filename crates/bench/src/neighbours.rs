//! What else uses this machine's processors and disks: whether anything does when a table is to begin, and what processor time other programs took
//! while it was made.
//!
//! The load average tells neither: it is also of the tables before.
//!
//! Always: what counts as another's is no thread of the kernel, which mostly works for those who are measured, and no program that this
//! one started, by whatever way; nodes leave their parents, and are known by the run's directory in their command lines.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::fio::float;
use crate::machine::TICKS_PER_SECOND;
use crate::outcome::{Outcome, complain, fail};
use crate::stop;

/// Between two looks at all processes: what one that nobody saw took is found with its parent.
const LOOK: Duration = Duration::from_secs(2);

/// Between two looks whether it is time to end.
const NAP: Duration = Duration::from_millis(50);

/// Over which a machine is to be idle, and how much of all its processors may be busy then, in per cent.
const IDLE_OVER: Duration = Duration::from_secs(2);
const IDLE_PERCENT: f64 = 5.0;

/// How much of that time a disk may be busy: what a file system writes of its own now and then.
const DISK_IDLE_PERCENT: f64 = 5.0;

/// How long that is waited for.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// The kernel's threads are this process's children.
const KERNEL: u32 = 2;

/// How one part of the run went, a table or several.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Part {
    pub(crate) table: &'static str,
    /// How long it took, without the wait before it.
    pub(crate) seconds: f64,
    /// How long the machine was not idle before it.
    pub(crate) waited_seconds: f64,
    /// What was busy of all processors when it began, in per cent; `None`: nobody looked.
    pub(crate) busy_percent: Option<f64>,
    /// For how much of the time the busiest disk was busy then, in per cent.
    pub(crate) disk_percent: Option<f64>,
    /// What other programs used meanwhile, in per cent of one core.
    pub(crate) others_percent: f64,
}

/// One process, as `/proc` has it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Process {
    parent: u32,
    /// When it began, by the kernel's clock: its number may be another's later.
    started: u64,
    /// What it used, in ticks.
    ticks: u64,
    /// What those of its children used that have ended, theirs included.
    reaped: u64,
    ours: bool,
}

/// All processes at one moment, but the kernel's.
type Look = BTreeMap<u32, Process>;

/// What others used, added up from look to look.
struct Tally {
    scratch: Vec<u8>,
    look: Look,
    ticks: u64,
}

/// Looks at other programs as long as it is kept.
pub(crate) struct Neighbours {
    tally: Arc<Mutex<Tally>>,
    ended: Arc<AtomicBool>,
    looker: Option<JoinHandle<()>>,
}

impl Neighbours {
    /// Begins to look; programs that have `scratch` in their command lines are the run's own.
    pub(crate) fn new(scratch: &Path) -> Neighbours {
        let scratch = scratch.as_os_str().as_encoded_bytes().to_vec();
        let look = look(&Look::new(), &scratch);
        let tally = Arc::new(Mutex::new(Tally { scratch, look, ticks: 0 }));
        let ended = Arc::new(AtomicBool::new(false));
        let (theirs, told) = (Arc::clone(&tally), Arc::clone(&ended));
        let looker = thread::spawn(move || {
            let mut looked = Instant::now();
            while !told.load(Ordering::Relaxed) {
                thread::sleep(NAP);
                if looked.elapsed() >= LOOK {
                    theirs.lock().unwrap_or_else(PoisonError::into_inner).look();
                    looked = Instant::now();
                }
            }
        });
        Neighbours { tally, ended, looker: Some(looker) }
    }

    /// Makes a part of a run, once the machine is idle; tells what came of it, and how it went.
    pub(crate) fn part<T>(
        &self,
        table: &'static str,
        waits: bool,
        make: impl FnOnce() -> Outcome<T>,
    ) -> (Outcome<T>, Part) {
        let begun = Instant::now();
        let idle = if waits { wait_until_idle(table).map(Some) } else { Ok(None) };
        let waited = begun.elapsed().saturating_sub(IDLE_OVER).as_secs_f64();
        let (before, begun) = (self.ticks(), Instant::now());
        let (made, busy) = match idle {
            Ok(busy) => (make(), busy),
            Err(why) => (Err(why), None),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let used = float(self.ticks() - before) / float(TICKS_PER_SECOND);
        let waited_seconds = if waits { waited } else { 0.0 };
        let others_percent = used * 100.0 / seconds.max(1e-9);
        let busy_percent = busy.map(|busy: Busy| busy.processors);
        let disk_percent = busy.map(|busy| busy.disk);
        let part =
            Part { table, seconds, waited_seconds, busy_percent, disk_percent, others_percent };
        (made, part)
    }

    /// What others have used since this began, up to now.
    fn ticks(&self) -> u64 {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.look();
        tally.ticks
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(looker) = self.looker.take() {
            // It cannot fail in a way that matters any more.
            let _ = looker.join();
        }
    }
}

impl Tally {
    fn look(&mut self) {
        let now = look(&self.look, &self.scratch);
        self.ticks += used_by_others(&self.look, &now);
        self.look = now;
    }
}

/// What is busy of a machine, in per cent: of all its processors, and of the time of the busiest disk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Busy {
    processors: f64,
    disk: f64,
}

impl Busy {
    fn is_idle(self) -> bool {
        self.processors < IDLE_PERCENT && self.disk < DISK_IDLE_PERCENT
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Busy { processors, disk } = self;
        write!(to, "{processors:.0} % of its processors and {disk:.0} % of a disk's time are used")
    }
}

/// Waits until this machine has nothing to do, or long enough; says what was busy at last. What is still to be written is written first: it would
/// be while something is measured.
fn wait_until_idle(table: &str) -> Outcome<Busy> {
    rustix::fs::sync();
    let begun = Instant::now();
    let mut is_said = false;
    loop {
        let (before, disks_before, since) = (processors()?, disks_ms(), Instant::now());
        let until = since + IDLE_OVER;
        while Instant::now() < until {
            stop::check()?;
            thread::sleep(NAP);
        }
        let processors = busy_percent(before, processors()?);
        let disk = busiest_percent(&disks_before, &disks_ms(), since.elapsed());
        let busy = Busy { processors, disk };
        if busy.is_idle() {
            return Ok(busy);
        }
        if begun.elapsed() > IDLE_LIMIT {
            complain(format!("{table}: begun on a machine that is not idle: {busy}"));
            return Ok(busy);
        }
        if !is_said {
            complain(format!("{table}: waits until the machine is idle: {busy}"));
            is_said = true;
        }
    }
}

/// How long each disk was busy since the machine began, in ms.
fn disks_ms() -> BTreeMap<OsString, u64> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        // One that goes meanwhile is not seen.
        let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        all.extend(disk_ms(&text).map(|busy_ms| (entry.file_name(), busy_ms)));
    }
    all
}

/// The same of a disk's `stat`: the tenth of its figures, `io_ticks`.
fn disk_ms(text: &str) -> Option<u64> {
    text.split_whitespace().nth(9)?.parse().ok()
}

/// How much of this time the disk was busy that was so most, in per cent.
fn busiest_percent(
    before: &BTreeMap<OsString, u64>,
    after: &BTreeMap<OsString, u64>,
    time: Duration,
) -> f64 {
    let of = |(name, ms): (&OsString, &u64)| Some(float(ms.saturating_sub(*before.get(name)?)));
    let busiest = after.iter().filter_map(of).fold(0.0, f64::max);
    busiest / 10.0 / time.as_secs_f64().max(1e-9)
}

/// Ticks in which processors were busy, and all of them.
fn processors() -> Outcome<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    match busy_and_all(&text) {
        Some(ticks) => Ok(ticks),
        None => fail("/proc/stat is not as expected"),
    }
}

/// The same, of its text: user, nice, system, idle, waiting for disks, two kinds of interrupts, taken away by the host.
fn busy_and_all(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let all: u64 = ticks.get(..8)?.iter().sum();
    Some((all - ticks[3] - ticks[4], all))
}

fn busy_percent(before: (u64, u64), after: (u64, u64)) -> f64 {
    float(after.0.saturating_sub(before.0)) * 100.0 / float(after.1.saturating_sub(before.1).max(1))
}

/// All processes. Who was ours, has a parent that is, or names the run's directory is ours.
fn look(before: &Look, scratch: &[u8]) -> Look {
    let mut now = Look::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that ends meanwhile is not seen.
        let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some(mut process) = process(&text) else { continue };
        if pid == KERNEL || process.parent == KERNEL {
            continue;
        }
        process.ours = match same(before, pid, &process) {
            Some(known) => known.ours,
            None => {
                let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let names = words.windows(scratch.len().max(1)).any(|part| part == scratch);
                names || pid == std::process::id()
            }
        };
        now.insert(pid, process);
    }
    inherit(&mut now);
    now
}

/// What is said in a process's `stat`.
fn process(text: &str) -> Option<Process> {
    // The name in parentheses may hold anything.
    let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let word = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some(Process {
        parent: u32::try_from(word(1)?).ok()?,
        started: word(19)?,
        ticks: word(11)? + word(12)?,
        reaped: word(13)? + word(14)?,
        ours: false,
    })
}

/// The same process in another look.
fn same<'a>(look: &'a Look, pid: u32, process: &Process) -> Option<&'a Process> {
    look.get(&pid).filter(|found| found.started == process.started)
}

/// Children of ours are ours, and theirs.
fn inherit(look: &mut Look) {
    loop {
        let is_ours = |pid: &u32| look.get(pid).is_some_and(|parent| parent.ours);
        let heirs = look.iter().filter(|(_, process)| !process.ours && is_ours(&process.parent));
        let heirs: Vec<u32> = heirs.map(|(&pid, _)| pid).collect();
        if heirs.is_empty() {
            return;
        }
        for pid in heirs {
            look.entry(pid).and_modify(|process| process.ours = true);
        }
    }
}

/// Ticks that processes which are not ours used from one look to the next, those included that nobody saw end, or saw at all.
fn used_by_others(before: &Look, now: &Look) -> u64 {
    let mut used = 0;
    for (pid, process) in now.iter().filter(|(_, process)| !process.ours) {
        let known = same(before, *pid, process).cloned().unwrap_or_default();
        used += process.ticks.saturating_sub(known.ticks);
        let ended = ended_below(before, now, *pid);
        // Who takes in orphans takes in ours, too, whose last moments are not to be told from others' then.
        if ended.iter().any(|was| was.ours) {
            continue;
        }
        let counted: u64 = ended.iter().map(|was| was.ticks + was.reaped).sum();
        used += process.reaped.saturating_sub(known.reaped).saturating_sub(counted);
    }
    used
}

/// Children of a process that have ended since the first look, their children that have, and so on.
fn ended_below<'a>(before: &'a Look, now: &Look, pid: u32) -> Vec<&'a Process> {
    let (mut parents, mut ended) = (vec![pid], Vec::new());
    while let Some(parent) = parents.pop() {
        for (&child, was) in before.iter().filter(|(_, was)| was.parent == parent) {
            if same(now, child, was).is_none() {
                parents.push(child);
                ended.push(was);
            }
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::time::Duration;

    use super::{
        Busy, Look, Process, busiest_percent, busy_and_all, busy_percent, disk_ms, inherit,
        process, used_by_others,
    };

    #[test]
    fn a_machine_whose_processors_are_idle_and_whose_disk_is_not_is_not_idle() {
        let stat = "  9 1 2 3 40 5 6 7 0 1234 99 0 0 0 0 0 0\n";
        assert_eq!((disk_ms(stat), disk_ms("9 1")), (Some(1234), None));
        let at = |all: &[(&str, u64)]| -> BTreeMap<OsString, u64> {
            all.iter().map(|&(name, ms)| (name.into(), ms)).collect()
        };
        let (before, after) = (at(&[("sda", 100), ("vda", 50)]), at(&[("vda", 650), ("sda", 110)]));
        // A disk that came meanwhile was not looked at before.
        let after = after.into_iter().chain(at(&[("vdb", 9999)])).collect();
        let disk = busiest_percent(&before, &after, Duration::from_secs(2));
        assert_eq!(disk, 30.0);
        assert!(!Busy { processors: 0.0, disk }.is_idle());
        assert!(!Busy { processors: 30.0, disk: 0.0 }.is_idle());
        assert!(Busy { processors: 1.0, disk: 1.0 }.is_idle());
    }

    fn one(parent: u32, ticks: u64, reaped: u64) -> Process {
        Process { parent, started: 7, ticks, reaped, ours: false }
    }

    fn ours(parent: u32, ticks: u64) -> Process {
        Process { ours: true, ..one(parent, ticks, 0) }
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let text = "42 (a) b (c) S 17 1 1 0 -1 4194560 100 0 0 0 30 12 5 6 20 0 1 0 7 1000 1 2";
        assert_eq!(process(text), Some(one(17, 42, 11)));
        assert_eq!(process("42 (short) S 17"), None);
    }

    #[test]
    fn processors_that_wait_for_disks_are_not_busy_and_those_the_host_took_are() {
        let text = "cpu  10 1 20 500 60 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_and_all(text), Some((40, 600)));
        assert!((busy_percent((40, 600), (50, 800)) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn descendants_of_ours_are_ours() {
        let mut look = Look::from([(50, ours(1, 0)), (10, one(60, 0, 0)), (60, one(50, 0, 0))]);
        look.insert(70, one(1, 0, 0));
        inherit(&mut look);
        let found: Vec<u32> =
            look.iter().filter(|(_, one)| one.ours).map(|(&pid, _)| pid).collect();
        assert_eq!(found, [10, 50, 60]);
    }

    #[test]
    fn what_others_used_counts_from_look_to_look_and_ours_never() {
        let before = Look::from([(10, one(1, 100, 0)), (20, ours(1, 100))]);
        let now = Look::from([(10, one(1, 130, 0)), (20, ours(1, 900)), (30, one(1, 5, 0))]);
        assert_eq!(used_by_others(&before, &now), 35);
    }

    #[test]
    fn what_a_child_used_after_the_last_look_is_found_with_its_parent() {
        let before = Look::from([(10, one(1, 0, 40)), (11, one(10, 25, 0))]);
        // It used 30 in all; another, which was never seen, 8.
        let now = Look::from([(10, one(1, 0, 78))]);
        assert_eq!(used_by_others(&before, &now), 13);
    }

    #[test]
    fn what_grandchildren_used_is_not_counted_again_when_their_parents_end() {
        let before = Look::from([(10, one(1, 0, 0)), (11, one(10, 5, 0)), (12, one(11, 500, 0))]);
        // The last used 510 in all, and its parent 6.
        let now = Look::from([(10, one(1, 0, 516))]);
        assert_eq!(used_by_others(&before, &now), 11);
    }

    #[test]
    fn who_takes_in_a_process_of_ours_is_not_charged_for_it() {
        let before = Look::from([(1, one(0, 0, 40)), (11, ours(1, 25))]);
        let now = Look::from([(1, one(0, 2, 90))]);
        assert_eq!(used_by_others(&before, &now), 2);
    }

    #[test]
    fn a_number_that_is_given_anew_is_another_process() {
        let before = Look::from([(10, one(1, 100, 0))]);
        let now = Look::from([(10, Process { started: 8, ..one(1, 3, 0) })]);
        assert_eq!(used_by_others(&before, &now), 3);
    }
}

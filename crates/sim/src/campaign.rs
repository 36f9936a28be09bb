//! Many runs: one seed after the other on two threads, and for a failure the shortest list of faults
//! that still shows it.
//!
//! Not here: what a run is (`world`), command lines (`main`).

use crate::feature::Choice;
use crate::plan::{Fault, Plan};
use crate::world::{Failure, Report, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs at once.
const THREADS: usize = 2;

/// A history that takes longer is named while it runs; most take some milliseconds.
const SLOW: Duration = Duration::from_secs(60);
/// Steps of a run that never ends by itself; a run takes some 50 000.
pub const STEPS_MAX: u64 = 5_000_000;
/// One run in this many is made twice, to see that both are the same, unless all are: what lets two runs differ is not rare in
/// the runs that come to it, and each that is made twice is one history less.
const TWICE_ONE_IN: u64 = 32;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the words of a panic for the report of the run that it ends, and off the screen.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANIC.with(|words| *words.borrow_mut() = panic.to_string());
    }));
}

/// What the last panic of this thread said, in one line.
pub(crate) fn panic_words() -> String {
    PANIC.with(|words| words.borrow().replace('\n', ": "))
}

/// Runs one plan to its end, or until `until` steps are taken.
#[must_use]
pub fn run(plan: &Plan, until: u64, trace: bool) -> Report {
    let mut world = World::new(plan.clone());
    world.trace = trace;
    let caught = catch_unwind(AssertUnwindSafe(|| world.run(until)));
    let mut report = world.report();
    if caught.is_err() {
        let text = panic_words();
        report.failure =
            Some(Failure { checker: "assert", text, step: report.steps, at: report.time });
    } else if report.failure.is_none() && until >= STEPS_MAX && report.steps >= until {
        let text = format!("still running after {until} steps");
        report.failure = Some(Failure { checker: "liveness", text, step: until, at: report.time });
    }
    report
}

/// Leaves out every fault that the failure does not need.
#[must_use]
pub fn shrink(plan: &Plan, failure: &Failure) -> Plan {
    // What is lacking is not made up for, if it fails without.
    let fails = |plan: &Plan| {
        let report = run(plan, STEPS_MAX, false);
        report.failure.is_some_and(|found| found.checker == failure.checker)
    };
    let bare = Plan { faults_min: 0, ..plan.clone() };
    let mut plan = if fails(&bare) { bare } else { plan.clone() };
    let limit = Instant::now();
    let mut at = plan.faults.len();
    while at > 0 && limit.elapsed() < Duration::from_secs(30) {
        at -= 1;
        let mut fewer = plan.clone();
        fewer.faults.remove(at);
        if fails(&fewer) {
            plan = fewer;
        }
    }
    plan
}

/// What a campaign came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Runs made.
    pub runs: u64,
    /// Seeds that failed, in order, and how.
    pub failures: Vec<(u64, Failure)>,
    /// Rare branches, and how often they were taken.
    pub marks: BTreeMap<&'static str, u64>,
    /// Steps of all runs.
    pub steps: u64,
    /// Simulated nanoseconds of all runs.
    pub time: u64,
    /// Requests answered without an error.
    pub answered: u64,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// How long a campaign goes on.
#[derive(Clone, Debug)]
pub struct Limits {
    /// First seed.
    pub from: u64,
    /// Number of seeds.
    pub runs: u64,
    /// Ends sooner after this time.
    pub time: Option<Duration>,
    /// Ends sooner after this many failures.
    pub failures: usize,
    /// Which features runs have.
    pub choice: Choice,
    /// Each run is made twice.
    pub twice: bool,
}

/// Runs seed after seed.
#[must_use]
pub fn campaign(limits: &Limits) -> Outcome {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let running = Mutex::new(BTreeMap::new());
    let outcome = Mutex::new(Outcome::default());
    let began = Instant::now();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&running, &done));
        let workers = [(); THREADS].map(|()| {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let late = limits.time.is_some_and(|time| began.elapsed() >= time);
                    if number >= limits.runs || late || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = limits.from.wrapping_add(number);
                    let held = || running.lock().expect("nothing panics while it is held");
                    held().insert(seed, Instant::now());
                    let report = run_checked(seed, limits);
                    held().remove(&seed);
                    let mut outcome = outcome.lock().expect("a panic in a run is caught");
                    add(&mut outcome, seed, &report);
                    if outcome.failures.len() >= limits.failures {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            })
        });
        for worker in workers {
            worker.join().expect("a panic in a run is caught");
        }
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
    });
    let mut outcome = outcome.into_inner().expect("a panic in a run is caught");
    // Whatever was begun before one that failed was brought to its end: the first is always the same.
    outcome.failures.sort_by_key(|(seed, _)| *seed);
    outcome
}

/// Names each seed once that does not come to its end: else nobody would learn which it is.
fn watch(running: &Mutex<BTreeMap<u64, Instant>>, done: &AtomicBool) {
    let mut named = BTreeSet::new();
    while !done.load(Ordering::Relaxed) {
        std::thread::park_timeout(SLOW / 4);
        let running = running.lock().expect("nothing panics while it is held");
        for (&seed, began) in running.iter() {
            if began.elapsed() > SLOW && named.insert(seed) {
                eprintln!("seed {seed:#x} has been running for {} s", began.elapsed().as_secs());
            }
        }
    }
}

/// One seed; now and then twice.
fn run_checked(seed: u64, limits: &Limits) -> Report {
    let plan = Plan::chosen(seed, &limits.choice);
    let mut report = run(&plan, STEPS_MAX, false);
    if (limits.twice || seed.is_multiple_of(TWICE_ONE_IN)) && report.failure.is_none() {
        let again = run(&plan, STEPS_MAX, false);
        if again.hash != report.hash {
            report.failure = Some(Failure {
                checker: "same again",
                text: "two runs of one seed differ".to_owned(),
                step: report.steps.min(again.steps),
                at: report.time,
            });
        }
    }
    report
}

fn add(outcome: &mut Outcome, seed: u64, report: &Report) {
    outcome.runs += 1;
    outcome.steps += report.steps;
    outcome.time += report.time;
    outcome.answered += report.answered;
    for (kind, count) in &report.faults {
        *outcome.faults.entry(kind).or_default() += count;
    }
    for (mark, count) in &report.marks {
        *outcome.marks.entry(mark).or_default() += count;
    }
    if let Some(failure) = &report.failure {
        outcome.failures.push((seed, failure.clone()));
    }
}

/// The faults of a plan in words, for the last lines of a failure.
#[must_use]
pub fn faults(plan: &Plan) -> Vec<String> {
    plan.faults
        .iter()
        .map(|Fault { when, length, kind }| {
            format!("{when:?} {kind:?} for {} ms", length / crate::queue::MILLI)
        })
        .collect()
}

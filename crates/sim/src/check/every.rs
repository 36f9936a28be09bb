//! Every order of events of a short story, and so many deaths wherever.
//!
//! What can happen next may happen in any order: a record becomes durable, the next message of a link arrives, a timer
//! rings, a wish is made, a write is acknowledged. When nothing is left of these but writes, nodes restart and meet, in any order, and
//! after that time goes on. At a price of one each a process dies anywhere between two outputs. Nothing is left out, but that
//! what is said for information arrives at once; sessions that end and what stands still are not here.
//!
//! Always: a failure is found with the fewest deaths that show it. What one thread has seen the others pass over; one that
//! has nothing left takes over a part of what another has before it.
//!
//! Not here: schedules near a plain one (`search`), states (`world`).

use super::hash::{Mark, Marks};
use super::scenarios::{Effort, Scenario};
use super::search::{Failure, Outcome, apply, settle, tell, up_to};
use super::world::{Death, Event, Plain, World};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Threads of one search.
const THREADS: usize = 2;
/// A step of a story is one call deep.
const STACK: usize = 256 << 20;

/// A state from which a thread is to search on, with so much left.
struct Job {
    world: World,
    path: Vec<Event>,
    left: u8,
}

/// What is left for whoever has nothing to do.
struct Work {
    jobs: Vec<Job>,
    /// Threads that have none. All: the search is over.
    idle: usize,
}

/// What the threads share.
struct Shared {
    work: Mutex<Work>,
    changed: Condvar,
    /// Somebody has nothing to do.
    hungry: AtomicBool,
    seen: Marks,
    states: AtomicU64,
    states_max: u64,
    until: Instant,
    /// Time or room is up, or something was found.
    over: AtomicBool,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("nobody panics with it")
    }

    /// Waits for something to do; `None`: there is nothing left for anybody.
    fn next(&self) -> Option<Job> {
        let mut work = self.work();
        work.idle += 1;
        loop {
            if let Some(job) = work.jobs.pop() {
                work.idle -= 1;
                return Some(job);
            }
            if work.idle == THREADS {
                self.changed.notify_all();
                return None;
            }
            self.hungry.store(true, Ordering::Relaxed);
            work = self.changed.wait(work).expect("nobody panics with it");
        }
    }

    fn give(&self, job: Job) {
        let mut work = self.work();
        self.hungry.store(false, Ordering::Relaxed);
        work.jobs.push(job);
        self.changed.notify_one();
    }
}

struct Walk<'a> {
    shared: &'a Shared,
    scenario: &'a Scenario,
    path: Vec<Event>,
    longest: usize,
    done: (u8, usize),
    marks: BTreeSet<&'static str>,
}

/// Searches one scenario as far as `effort` goes.
pub(super) fn search(scenario: &Scenario, effort: Effort) -> Outcome {
    up_to(scenario, effort, |scenario, left, until, outcome| {
        let mut first = Job { world: World::new(scenario), path: Vec::new(), left };
        if let Err(text) = settle(&mut first.world, scenario, &mut first.path) {
            outcome.failure = Some(Failure { text, events: tell(scenario, &first.path) });
            return false;
        }
        let shared = Shared {
            work: Mutex::new(Work { jobs: vec![first], idle: 0 }),
            changed: Condvar::new(),
            hungry: AtomicBool::new(false),
            seen: Marks::default(),
            states: AtomicU64::new(0),
            states_max: effort.states_max(),
            until,
            over: AtomicBool::new(false),
        };
        outcome.failure = together(scenario, &shared, outcome);
        outcome.states += shared.states.into_inner();
        !shared.over.into_inner()
    })
}

/// All threads. Returns what must not be, if it was found.
fn together(scenario: &Arc<Scenario>, shared: &Shared, outcome: &mut Outcome) -> Option<Failure> {
    let mut failure = None;
    std::thread::scope(|scope| {
        let start = |_| {
            let walk = || {
                let mut walk = Walk {
                    shared,
                    scenario,
                    path: Vec::new(),
                    longest: 0,
                    done: (0, 0),
                    marks: BTreeSet::new(),
                };
                let mut found = None;
                while let Some(mut job) = shared.next() {
                    walk.path = job.path;
                    if let Err(text) = walk.explore(&mut job.world, job.left) {
                        shared.over.store(true, Ordering::Relaxed);
                        found = found.or(Some((text, std::mem::take(&mut walk.path))));
                    }
                }
                (found, walk.longest, walk.done, walk.marks)
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, walk).expect("a thread can be started")
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        for thread in threads {
            let (found, longest, done, marks) = thread.join().expect("panics are caught");
            outcome.reach(longest, done, marks);
            if let Some((text, path)) = found {
                failure.get_or_insert_with(|| Failure { text, events: tell(scenario, &path) });
            }
        }
    });
    failure
}

impl Walk<'_> {
    /// Whether this state has to be searched with so much left.
    fn is_new(&mut self, world: &mut World, left: u8) -> bool {
        match self.shared.seen.mark(world.print(false), left) {
            Mark::Old => return false,
            Mark::Again => {}
            Mark::New => {
                let states = self.shared.states.fetch_add(1, Ordering::Relaxed) + 1;
                let slow = states.is_multiple_of(256) && Instant::now() > self.shared.until;
                if states >= self.shared.states_max || slow {
                    self.shared.over.store(true, Ordering::Relaxed);
                }
            }
        }
        !self.shared.over.load(Ordering::Relaxed)
    }

    fn explore(&mut self, world: &mut World, left: u8) -> Result<(), String> {
        if world.round() > self.scenario.rounds || !self.is_new(world, left) {
            return Ok(());
        }
        self.longest = self.longest.max(self.path.len());
        let done = world.done();
        self.done = (self.done.0.max(done.0), self.done.1.max(done.1));
        let any = world.any();
        for &event in &any {
            let outputs = self.branch(world, Event::Plain(event), left)?;
            if let Some(node) = world.actor(event).filter(|_| left > 0) {
                for outputs in 1..=outputs + 1 {
                    for death in deaths(node, event, outputs, &[false, true]) {
                        self.branch(world, death, left - 1)?;
                    }
                }
            }
        }
        if let Some(&first) = any.first().filter(|_| left > 0) {
            // Before anything happens next.
            for node in world.running() {
                let durable: &[bool] =
                    if world.has_flight(node) { &[false, true] } else { &[false] };
                for death in deaths(node, first, 0, durable) {
                    self.branch(world, death, left - 1)?;
                }
            }
        }
        Ok(())
    }

    /// Searches on from `event`. Returns the number of outputs of its first step.
    fn branch(&mut self, world: &World, event: Event, left: u8) -> Result<usize, String> {
        if self.shared.over.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let mut next = world.clone();
        self.path.push(event);
        let outputs = apply(&mut next, event)?;
        self.marks.extend(next.marks.iter());
        if self.shared.hungry.load(Ordering::Relaxed) {
            self.shared.give(Job { world: next, path: self.path.clone(), left });
        } else {
            self.explore(&mut next, left)?;
        }
        self.path.pop();
        Ok(outputs)
    }
}

/// The ways in which a process can end after so many outputs of `plain`.
fn deaths(node: u16, plain: Plain, outputs: usize, durable: &[bool]) -> Vec<Event> {
    let die = |&durable: &bool| {
        let how = Death::Process;
        [false, true].map(|long| Event::Die { node, plain, outputs, durable, how, long })
    };
    durable.iter().flat_map(die).collect()
}

//! The search itself: depth first along the plain schedule, leaving it wherever the budget allows.
//!
//! Always: budgets are tried from zero up, so that a failure is found with the smallest.
//!
//! Not here: states (`world`), which stories (`scenarios`).

use super::hash::Seen;
use super::scenarios::{Effort, Scenario};
use super::world::{Death, Event, Plain, Thing, World};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came of a scenario.
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) states: u64,
    /// The last budget searched to its end.
    pub(super) whole: Option<u8>,
    pub(super) steps: usize,
    /// The most writes that were acknowledged in one schedule, and configurations committed.
    pub(super) done: (u8, usize),
    pub(super) time: Duration,
    pub(super) marks: BTreeSet<&'static str>,
    pub(super) failure: Option<Failure>,
}

/// What must not be, and how it comes about.
pub(super) struct Failure {
    pub(super) text: String,
    pub(super) events: Vec<String>,
}

impl Outcome {
    pub(super) fn new(name: &'static str) -> Outcome {
        Outcome {
            name,
            states: 0,
            whole: None,
            steps: 0,
            done: (0, 0),
            time: Duration::ZERO,
            marks: BTreeSet::new(),
            failure: None,
        }
    }

    /// What schedules came to: their length, writes and configurations, and rare branches.
    pub(super) fn reach(
        &mut self,
        steps: usize,
        done: (u8, usize),
        mut marks: BTreeSet<&'static str>,
    ) {
        self.steps = self.steps.max(steps);
        self.done = (self.done.0.max(done.0), self.done.1.max(done.1));
        self.marks.append(&mut marks);
    }

    /// The scenario in one line.
    pub(super) fn line(&self) -> String {
        let whole = match self.whole {
            Some(budget) => format!("whole up to {budget}"),
            None => "not whole".to_owned(),
        };
        format!(
            "{:<23} {:>9} states  {:>4} steps  {:>2} configurations  {whole:<13} {:>6.1} s  {}",
            self.name,
            self.states,
            self.steps,
            self.done.1,
            self.time.as_secs_f64(),
            if self.failure.is_some() { "FAILED" } else { "ok" }
        )
    }
}

struct Search {
    faults: super::scenarios::Faults,
    seen: Seen,
    states: u64,
    states_max: u64,
    until: Instant,
    over: bool,
    path: Vec<Event>,
    longest: usize,
    done: (u8, usize),
    marks: BTreeSet<&'static str>,
}

/// Searches one scenario as far as `effort` goes: `with` a budget of none, and then of more. That says whether it came to its end,
/// and notes what it found.
pub(super) fn up_to(
    scenario: &Scenario,
    effort: Effort,
    with: impl Fn(&Arc<Scenario>, u8, Instant, &mut Outcome) -> bool,
) -> Outcome {
    let began = Instant::now();
    let scenario = Arc::new(scenario.clone());
    let mut outcome = Outcome::new(scenario.name);
    for budget in 0..=effort.budget(&scenario) {
        let whole = with(&scenario, budget, began + effort.time_max(), &mut outcome);
        if outcome.failure.is_some() || !whole {
            break;
        }
        outcome.whole = Some(budget);
    }
    outcome.time = began.elapsed();
    outcome
}

/// Searches one scenario as far as `effort` goes.
pub(super) fn search(scenario: &Scenario, effort: Effort) -> Outcome {
    up_to(scenario, effort, |scenario, budget, until, outcome| {
        let mut search = Search {
            faults: scenario.faults,
            seen: Seen::default(),
            states: 0,
            states_max: effort.states_max(),
            until,
            over: false,
            path: Vec::new(),
            longest: 0,
            done: (0, 0),
            marks: BTreeSet::new(),
        };
        let mut world = World::new(scenario);
        let found = settle(&mut world, scenario, &mut search.path)
            .and_then(|()| search.explore(world, budget));
        outcome.states += search.states;
        outcome.reach(search.longest, search.done, search.marks);
        if let Err(text) = found {
            outcome.failure = Some(Failure { text, events: tell(scenario, &search.path) });
        }
        !search.over
    })
}

/// Takes the plain schedule until the story of the scenario begins.
pub(super) fn settle(
    world: &mut World,
    scenario: &Scenario,
    path: &mut Vec<Event>,
) -> Result<(), String> {
    while world.age() < scenario.begins {
        let Some(&plain) = world.plain().first() else { break };
        path.push(Event::Plain(plain));
        apply(world, Event::Plain(plain))?;
    }
    Ok(())
}

/// The events of the plain schedule, in words.
pub(super) fn plainly(scenario: &Scenario) -> Vec<String> {
    let scenario = Arc::new(scenario.clone());
    let mut world = World::new(&scenario);
    let mut lines = Vec::new();
    while let Some(&plain) = world.plain().first() {
        lines.push(world.tell(Event::Plain(plain)));
        if let Err(text) = apply(&mut world, Event::Plain(plain)) {
            lines.push(text);
            break;
        }
        lines.extend(world.marks.iter().map(|mark| format!("            {mark}")));
    }
    lines
}

/// Carries `event` out. Returns the number of outputs of its first step; what must not be, an assertion too, is an error.
pub(super) fn apply(world: &mut World, event: Event) -> Result<usize, String> {
    let caught = catch_unwind(AssertUnwindSafe(|| world.apply(event)));
    caught.unwrap_or_else(|_| Err(format!("assert: {}", crate::campaign::panic_words())))
}

/// The events again, in words.
pub(super) fn tell(scenario: &Arc<Scenario>, path: &[Event]) -> Vec<String> {
    let mut world = World::new(scenario);
    let mut lines = Vec::new();
    for &event in path {
        lines.push(world.tell(event));
        if apply(&mut world, event).is_err() {
            break;
        }
        for mark in &world.marks {
            lines.push(format!("            {mark}"));
        }
    }
    lines
}

impl Search {
    /// Whether this state has to be searched with so much left.
    fn is_new(&mut self, world: &mut World, left: u8) -> bool {
        let print = world.print(true);
        let seen = self.seen.entry(print).or_insert(0);
        if *seen > left {
            return false;
        }
        if *seen == 0 {
            self.states += 1;
        }
        *seen = left + 1;
        if self.states >= self.states_max
            || (self.states.is_multiple_of(256) && Instant::now() > self.until)
        {
            self.over = true;
        }
        !self.over
    }

    fn explore(&mut self, mut world: World, left: u8) -> Result<(), String> {
        let length = self.path.len();
        while self.is_new(&mut world, left) {
            let plain = world.plain();
            let done = world.done();
            self.done = (self.done.0.max(done.0), self.done.1.max(done.1));
            let Some(&first) = plain.first() else { break };
            if left > 0 {
                for event in self.deviations(&world, first, &plain)? {
                    self.branch(&world, event, left - 1)?;
                }
            }
            self.path.push(Event::Plain(first));
            self.longest = self.longest.max(self.path.len());
            apply(&mut world, Event::Plain(first))?;
            self.marks.extend(world.marks.iter());
        }
        self.path.truncate(length);
        Ok(())
    }

    fn branch(&mut self, world: &World, event: Event, left: u8) -> Result<(), String> {
        if self.over {
            return Ok(());
        }
        let mut next = world.clone();
        self.path.push(event);
        apply(&mut next, event)?;
        self.marks.extend(next.marks.iter());
        self.explore(next, left)?;
        self.path.pop();
        Ok(())
    }

    /// What may happen instead of, or just before, the plain event. Events of different nodes do not disturb
    /// each other, so only those that concern the one whose turn it is.
    fn deviations(
        &mut self,
        world: &World,
        first: Plain,
        plain: &[Plain],
    ) -> Result<Vec<Event>, String> {
        let mut all = Vec::new();
        let Some(node) = world.actor(first) else { return Ok(all) };
        let same = |other: &&Plain| world.actor(**other) == Some(node);
        all.extend(plain[1..].iter().filter(same).map(|&other| Event::Plain(other)));
        for long in [false, true] {
            if self.faults.hold {
                all.push(Event::Hold { thing: Thing::Node(node), long });
                if let Some((from, to)) = world.link(first) {
                    all.push(Event::Hold { thing: Thing::Link(from, to), long });
                }
                if matches!(first, Plain::Stored(_)) {
                    all.push(Event::Hold { thing: Thing::Disk(node), long });
                }
            }
            if let Some((a, b)) = world.link(first)
                && self.faults.cut
            {
                all.push(Event::Cut { a, b, long });
            }
        }
        if self.faults.die {
            self.deaths(world, first, node, &mut all)?;
        }
        Ok(all)
    }

    fn deaths(
        &mut self,
        world: &World,
        plain: Plain,
        node: u16,
        all: &mut Vec<Event>,
    ) -> Result<(), String> {
        let mut dry = world.clone();
        self.path.push(Event::Plain(plain));
        let count = apply(&mut dry, Event::Plain(plain))?;
        self.path.pop();
        let power = self.faults.power.then_some(Death::Power);
        let empty = self.faults.empty.then_some(Death::Emptied);
        for outputs in 0..=count + 1 {
            let durables: &[bool] =
                if outputs > 0 || world.has_flight(node) { &[false, true] } else { &[false] };
            for &durable in durables {
                for how in [Some(Death::Process), power].into_iter().flatten() {
                    all.push(Event::Die { node, plain, outputs, durable, how, long: false });
                }
                if outputs != 0 && outputs != count + 1 {
                    continue;
                }
                for how in [Some(Death::Process), power, empty].into_iter().flatten() {
                    all.push(Event::Die { node, plain, outputs, durable, how, long: true });
                }
            }
        }
        Ok(())
    }
}

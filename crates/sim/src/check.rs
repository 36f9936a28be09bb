//! The register searched: every schedule of a small cluster that differs from a plain one in a few places.
//!
//! The members of `replica` run as they are, through their doors, on a clock, a network and disks that do
//! what the search says. From a state the search takes the plain next event; and, each for a price of
//! one, everything that may go wrong right there: the process dies after any of its outputs, its record
//! durable or not, its cache or its disk gone; the session breaks; the node, the link or the disk stands
//! still until the rest has come to rest, or for longer than a lease; another message comes first.
//! All ways to spend the budget are taken. A state that was seen with as much left is not searched again.
//! Of a short story every order of events is searched (`every`).
//!
//! Always: what is searched is deterministic; a failure prints the events that lead to it, and is found
//! with the smallest budget that shows it.
//!
//! Not here: what must hold (`rules`), shards with data (the campaigns), time as numbers: clocks run at
//! the two ends of what the drift allows.

mod every;
mod hash;
mod rules;
mod scenarios;
mod search;
mod shards;
mod world;

#[cfg(test)]
mod tests;

pub use scenarios::{Effort, names};

use search::Outcome;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Scenarios searched at once.
const THREADS: usize = 2;

/// Prints the plain schedule of each scenario in `names`.
pub fn show(names: &[String]) {
    for scenario in scenarios::all().into_iter().chain(scenarios::every()) {
        if names.iter().any(|name| name == scenario.name) {
            println!("{}", scenario.name);
            for line in search::plainly(&scenario) {
                println!("{line}");
            }
        }
    }
}

/// Searches the scenarios in `names` (all, if empty); prints a line for each and the events that lead to
/// each failure. Returns whether nothing was found.
#[must_use]
pub fn check(names: &[String], effort: Effort) -> bool {
    let known = scenarios::names();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        eprintln!("check: there is no story {name}; they are {}", known.join(", "));
        println!("{{\"scenarios\":0,\"states\":0,\"failures\":1}}");
        return false;
    }
    let wanted = |scenario: &scenarios::Scenario| {
        names.is_empty() || names.iter().any(|name| name == scenario.name)
    };
    let all: Vec<scenarios::Scenario> = scenarios::all().into_iter().filter(wanted).collect();
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Outcome>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = all.get(at) else { break };
                    let outcome = search::search(scenario, effort);
                    println!("{}", outcome.line());
                    outcomes.lock().expect("nobody panics with it").push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("the threads are done");
    for scenario in scenarios::every().iter().filter(|scenario| wanted(scenario)) {
        let outcome = every::search(scenario, effort);
        println!("{}", outcome.line());
        outcomes.push(outcome);
    }
    let mut marks = std::collections::BTreeMap::new();
    for outcome in &outcomes {
        for mark in &outcome.marks {
            *marks.entry(*mark).or_insert(0_usize) += 1;
        }
    }
    for (mark, count) in marks {
        println!("{count:>4} scenarios  {mark}");
    }
    let failures = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    for outcome in &outcomes {
        if let Some(failure) = &outcome.failure {
            for (number, line) in failure.events.iter().enumerate() {
                println!("{number:>5}  {line}");
            }
            println!("FAIL  {}: {}", outcome.name, failure.text);
            println!("replay: cargo xtask check {}", outcome.name);
        }
    }
    let states: u64 = outcomes.iter().map(|outcome| outcome.states).sum();
    println!("{{\"scenarios\":{},\"states\":{states},\"failures\":{failures}}}", outcomes.len());
    failures == 0
}

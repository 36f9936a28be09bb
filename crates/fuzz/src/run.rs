//! The loop: choose, change, mend, judge, keep.
//!
//! Always: a run is decided by its seed and its number of inputs; what fails is handed back as bytes, so
//! that it can be tried again without the run.
//!
//! Not here: how long a run lasts (its caller says by [`Watch`]), files (`main`).

use crate::mutate::{index, mutate};
use crate::{Target, corpus, memory_max};
use base::Prng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Inputs that are kept to be changed further, at most: beyond it a new one takes the place of an old one.
const KEPT_MAX: usize = 4096;
/// Right inputs that a run begins with, beside the corpus.
const FIRST_COUNT: usize = 32;

/// What an input did that it must not.
#[derive(Clone, Debug)]
pub struct Found {
    /// The input.
    pub input: Vec<u8>,
    /// What did not hold.
    pub why: String,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inputs that were judged.
    pub runs: u64,
    /// Different outcomes.
    pub outcomes: usize,
    /// The input that failed; the run ends with it.
    pub found: Option<Found>,
    /// The first input of each outcome, in the order in which they came.
    pub firsts: Vec<Vec<u8>>,
}

/// Who looks on: called before each input with its number; `false` ends the run.
pub type Watch<'a> = &'a mut dyn FnMut(u64, &[u8]) -> bool;

thread_local! {
    /// This thread judges an input.
    static JUDGING: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of this thread was, while it judged.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Judges one input.
///
/// # Errors
/// What did not hold.
pub fn try_one(target: &Target, input: &[u8]) -> Result<u64, String> {
    let judged = || catch_unwind(AssertUnwindSafe(|| (target.judge)(input)));
    silence();
    JUDGING.set(true);
    let (outcome, most) = sys::Counted::measure(judged);
    JUDGING.set(false);
    let outcome = outcome.map_err(|cause| {
        let told = cause.downcast_ref::<String>().cloned();
        told.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without words".to_owned())
    });
    let outcome = outcome.map_err(|why| format!("{why} ({})", last_place()))?;
    if most > memory_max(input.len()) {
        let (length, limit) = (input.len(), memory_max(input.len()));
        return Err(format!("{most} bytes of memory for {length} of input; {limit} is the limit"));
    }
    Ok(outcome)
}

/// Judges inputs until one fails or `watch` says no.
pub fn run(target: &Target, seed: u64, watch: Watch<'_>) -> Report {
    let mut random = Prng::new(seed);
    let mut kept = corpus::read(target.name);
    let given = kept.len();
    kept.extend((0..FIRST_COUNT).map(|_| (target.valid)(&mut random)));
    let mut seen = BTreeSet::new();
    let mut report = Report::default();
    loop {
        let number = usize::try_from(report.runs).unwrap_or(usize::MAX);
        // Each of the first ones as it is, then changed ones.
        let input = match kept.get(number) {
            Some(first) if number < given + FIRST_COUNT => first.clone(),
            _ => next(target, &kept, &mut random),
        };
        if !watch(report.runs, &input) {
            break;
        }
        report.runs += 1;
        match try_one(target, &input) {
            Ok(outcome) if seen.insert(outcome) => {
                if report.firsts.len() < KEPT_MAX {
                    report.firsts.push(input.clone());
                }
                keep(&mut kept, input, &mut random);
            }
            Ok(_) => {}
            Err(why) => {
                report.found = Some(Found { input, why });
                break;
            }
        }
    }
    report.outcomes = seen.len();
    report
}

/// Another input.
fn next(target: &Target, kept: &[Vec<u8>], random: &mut Prng) -> Vec<u8> {
    let mut input = if random.once_in(8) {
        (target.valid)(random)
    } else {
        kept[index(kept.len(), random)].clone()
    };
    let other = &kept[index(kept.len(), random)];
    mutate(&mut input, other, target.words, random);
    if !random.once_in(4) {
        (target.mend)(&mut input);
    }
    input
}

fn keep(kept: &mut Vec<Vec<u8>>, input: Vec<u8>, random: &mut Prng) {
    if kept.len() < KEPT_MAX {
        kept.push(input);
    } else {
        let at = index(KEPT_MAX, random);
        kept[at] = input;
    }
}

/// Panics while an input is judged are expected: their place is kept, and nothing is printed.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !JUDGING.get() {
                usual(panic);
            } else if let Some(place) = panic.location() {
                LAST_PANIC.set(format!("{}:{}", place.file(), place.line()));
            }
        }));
    });
}

fn last_place() -> String {
    LAST_PANIC.with_borrow(String::clone)
}

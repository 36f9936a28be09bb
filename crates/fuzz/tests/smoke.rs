//! A short run of every parser, always with the same inputs, and proof that the alarm rings.

use base::Prng;
use fuzz::targets::{ELSEWHERE, TARGETS};
use fuzz::{Target, memory_max, nothing, outcome, run};

/// Inputs for each target: enough to find a fault planted behind a checksum, and done in seconds.
const RUNS: u64 = 4_000;

#[test]
fn no_parser_is_harmed_by_damaged_input() {
    let mut failures = Vec::new();
    for target in TARGETS {
        let report = run(target, 1, &mut |number, _| number < RUNS);
        assert_eq!(report.runs.min(RUNS), report.runs);
        if let Some(found) = &report.found {
            failures.push(format!("{}: {} ({} bytes)", target.name, found.why, found.input.len()));
        }
        assert!(
            report.found.is_some() || report.outcomes > 1,
            "{} sees one thing only",
            target.name
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn names_of_targets_are_there_once() {
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.extend(ELSEWHERE.iter().map(|other| other.name));
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_target_elsewhere_has_its_test() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for other in ELSEWHERE {
        let text = format!("fn {}()", other.test);
        let sources = crates.join(other.package).join("src");
        assert!(is_written_below(&sources, &text), "{}: there is no {text}", other.name);
    }
}

/// Whether a file below `folder` holds `text`.
fn is_written_below(folder: &std::path::Path, text: &str) -> bool {
    let entries = std::fs::read_dir(folder).expect("the code stands beside");
    entries.map(|entry| entry.expect("a folder can be read").path()).any(|path| {
        path.is_dir() && is_written_below(&path, text)
            || std::fs::read_to_string(&path).is_ok_and(|held| held.contains(text))
    })
}

#[test]
fn every_target_has_a_corpus() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let others = ELSEWHERE.iter().map(|other| other.name);
    for name in TARGETS.iter().map(|target| target.name).chain(others) {
        let path = folder.join(format!("{name}.hex"));
        assert!(path.is_file(), "{} is not there", path.display());
    }
}

/// A parser with `judge` as its fault.
fn planted(judge: fn(&[u8]) -> u64) -> Target {
    let valid = |_: &mut Prng| vec![0; 16];
    Target { name: "planted", what: "a fault", valid, mend: nothing, judge, words: &[] }
}

#[test]
fn a_panic_is_found_and_its_input_is_handed_back() {
    let target = planted(|input| {
        assert!(!input.windows(2).any(|pair| pair == [0xff, 0xff]), "two in a row");
        0
    });
    let found = run(&target, 1, &mut |number, _| number < RUNS).found.expect("it is there");
    assert!(found.why.contains("two in a row"), "{}", found.why);
    assert!(found.input.windows(2).any(|pair| pair == [0xff, 0xff]));
}

#[test]
fn memory_for_a_length_that_is_only_stated_is_found() {
    let target = planted(|input| {
        let stated = input.first().copied().unwrap_or(0);
        let room: Vec<u8> = Vec::with_capacity(usize::from(stated) << 16);
        outcome(&room.capacity())
    });
    let found = run(&target, 1, &mut |number, _| number < RUNS).found.expect("it is there");
    assert!(found.why.contains("bytes of memory"), "{}", found.why);
    assert!(usize::from(found.input[0]) << 16 > memory_max(found.input.len()));
}

#[test]
fn the_same_seed_tries_the_same_inputs() {
    let inputs = |seed| {
        let mut inputs = Vec::new();
        run(TARGETS[0], seed, &mut |number, input| {
            inputs.push(outcome(&input));
            number < 500
        });
        inputs
    };
    assert_eq!(inputs(3), inputs(3));
    assert_ne!(inputs(3), inputs(4));
}

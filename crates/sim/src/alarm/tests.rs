//! The canaries fit the tree; the rules of `docs/rules.md` and the checkers of a run have theirs.

use super::{Head, canaries, caught, head_of, name_of, root, verdict};
use crate::checkers::{CHECKERS, STORY};
use crate::feature::Feature;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Rules of replication.
const RULES: u32 = 25;

/// What a patch takes out: the file, and lines that follow each other. Those around it may drift.
fn taken_out(patch: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut file = String::new();
    let mut goes_on = false;
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- a/") {
            name.clone_into(&mut file);
        } else if let Some(text) = line.strip_prefix('-').filter(|_| !file.is_empty()) {
            if !goes_on {
                all.push((file.clone(), String::new()));
            }
            if let Some((_, lines)) = all.last_mut() {
                lines.push_str(text);
                lines.push('\n');
            }
            goes_on = true;
            continue;
        }
        goes_on = false;
    }
    all
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_a_canary_takes_out_is_still_there() {
    let root = root().expect("tests run inside the project");
    for canary in canaries(&root).expect("the canaries can be listed") {
        for (file, lines) in taken_out(&read(&canary)) {
            let fits = read(&root.join(&file)).contains(&lines);
            assert!(fits, "{}: {file} has no longer\n{lines}", name_of(&canary));
        }
    }
}

/// What `docs/rules.md` says that notices a canary.
fn rings(head: &Head) -> String {
    let checkers = head.checkers.join(", ");
    match (&head.test, &head.check, &head.scenario) {
        (Some(_), _, _) => "test".to_owned(),
        (None, Some(story), _) => format!("search {story}"),
        (None, None, Some(_)) => format!("scenario: {checkers}"),
        (None, None, None) => format!("seeds: {checkers}"),
    }
}

#[test]
fn every_rule_has_a_canary_and_the_table_names_each() {
    let root = root().expect("tests run inside the project");
    let table = read(&root.join("docs/rules.md"));
    let mut rules = BTreeSet::new();
    for canary in canaries(&root).expect("the canaries can be listed") {
        let head = head_of(&canary).expect("a canary can be read");
        let name = name_of(&canary);
        let rings = format!("/{name}.patch) ({})", rings(&head));
        assert!(table.contains(&rings), "docs/rules.md does not say how {name} rings: {rings}");
        for rule in &head.rules {
            let start = format!("| {rule} |");
            let line = table.lines().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("docs/rules.md has no rule {rule}"));
            assert!(line.contains(&name), "docs/rules.md does not name {name} for rule {rule}");
        }
        rules.extend(head.rules);
        if let Some(scenario) = head.scenario {
            let path = root.join(format!("crates/sim/scenarios/{scenario}.txt"));
            assert!(path.exists(), "{name}: there is no scenario {scenario}");
        }
        if let Some(story) = head.check {
            assert!(crate::check::names().contains(&&*story), "{name}: no story {story}");
        }
    }
    assert_eq!(rules, (1..=RULES).collect::<BTreeSet<u32>>());
}

/// Checkers that no canary is to be seen by, and why.
const WITHOUT_CANARY: &[(&str, &str)] = &[];

#[test]
fn every_checker_has_a_canary_that_it_must_see_and_every_canary_names_what_must_see_it() {
    let root = root().expect("tests run inside the project");
    let mut seen = BTreeSet::new();
    for canary in canaries(&root).expect("the canaries can be listed") {
        let head = head_of(&canary).expect("a canary can be read");
        let name = name_of(&canary);
        let is_watched = head.test.is_none() && head.check.is_none();
        assert_eq!(is_watched, !head.checkers.is_empty(), "{name}: who must see it?");
        for checker in &head.checkers {
            let is_story = checker == STORY && head.scenario.is_some();
            assert!(is_story || CHECKERS.contains(&&**checker), "{name}: no checker {checker}");
        }
        for feature in head.with.iter().flat_map(|names| names.split(',')) {
            assert!(Feature::find(feature).is_some(), "{name}: no feature {feature}");
        }
        if let [checker] = &head.checkers[..] {
            seen.insert(checker.clone());
        }
    }
    for checker in CHECKERS {
        let excused = WITHOUT_CANARY.iter().any(|(name, _)| name == checker);
        assert_ne!(
            seen.contains(*checker),
            excused,
            "{checker}: a canary for it alone, or a reason"
        );
    }
}

#[test]
fn a_canary_counts_as_found_by_the_checkers_that_it_names_only() {
    let named = ["bitmap".to_owned(), "linearizable".to_owned()];
    assert_eq!(caught("bitmap: a block differs", &named), "found by bitmap");
    assert_eq!(caught("line 3: not linear: a read", &named), "found by linearizable");
    let other = caught("assert: panicked", &named);
    assert_eq!(other, "CAUGHT by assert, where bitmap, linearizable should have");
}

#[test]
fn the_failure_with_the_lowest_seed_says_what_a_campaign_found() {
    let printed =
        b"FAIL  bitmap: one\n      seed 0x3\nFAIL  assert: two\n{\"runs\":4,\"failures\":2}\n";
    let named = ["bitmap".to_owned()];
    let words = verdict(printed, "{\"runs\":", Some(&named));
    assert_eq!(words, "found by bitmap, {\"runs\":4,\"failures\":2}: bitmap: one");
    let none = verdict(b"{\"runs\":4,\"failures\":0}\n", "{\"runs\":", Some(&named));
    assert!(none.starts_with("MISSED"), "{none}");
}

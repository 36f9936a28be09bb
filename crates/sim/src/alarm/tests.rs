//! The canaries fit the tree, and the rules of `docs/rules.md` have theirs.

use super::{canaries, head_of, name_of, root};
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

#[test]
fn every_rule_has_a_canary_and_the_table_names_each() {
    let root = root().expect("tests run inside the project");
    let table = read(&root.join("docs/rules.md"));
    let mut rules = BTreeSet::new();
    for canary in canaries(&root).expect("the canaries can be listed") {
        let head = head_of(&canary).expect("a canary can be read");
        let name = name_of(&canary);
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

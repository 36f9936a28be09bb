//! What watches a run: the name of each checker, as a failure gives it.
//!
//! Always: each is named in `docs/design/0002-simulator.md` with what it sees, and has a canary that it catches
//! (`alarm`).
//!
//! Not here: the checkers, which are where they look.

/// Every checker of a run.
pub const CHECKERS: &[&str] = &[
    "answers",
    "assert",
    "bitmap",
    "bounds",
    "buffers",
    "cuts",
    "disk order",
    "doors",
    "forks",
    "linearizable",
    "liveness",
    "metadata",
    "one chain",
    "one line",
    "one primary",
    "replicas identical",
    "reservations",
    "rot",
    "same again",
    "sessions",
    "sides",
    "wakes",
];

/// What a scenario's own lines see: one of them does not come true.
pub const STORY: &str = "story";

/// Which checker a line of a failure names; a scenario says first in which of its lines it was.
#[must_use]
pub fn named_in(words: &str) -> &'static str {
    let begins = |part: &str| {
        let known = CHECKERS.iter().find(|name| {
            part.strip_prefix(**name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        match (known, part) {
            (Some(known), _) => Some(*known),
            (None, part) if part.starts_with("not linear:") => Some("linearizable"),
            (None, "a machine's own assertion failed") => Some("assert"),
            (None, _) => None,
        }
    };
    let parts = std::iter::successors(Some(words), |words| Some(words.split_once(": ")?.1));
    parts.filter_map(begins).next().unwrap_or(STORY)
}

#[cfg(test)]
mod tests {
    use super::{CHECKERS, STORY, named_in};
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_failure_names_its_checker() {
        assert_eq!(named_in("bitmap: volume 0 block at 3: and neither knows"), "bitmap");
        assert_eq!(
            named_in("line 12: identical: replicas identical: sector 3"),
            "replicas identical"
        );
        assert_eq!(named_in("not linear: volume 0 sector 3: read returned 1"), "linearizable");
        assert_eq!(named_in("a machine's own assertion failed"), "assert");
        assert_eq!(named_in("line 12: read 2 0+8 is a: it was answered with 0"), STORY);
    }

    /// Names that the code gives to failures.
    fn given(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                given(&path, found);
            } else if !path.ends_with("tests.rs") && !path.ends_with("checkers.rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                for start in [".fail(", "checker: "] {
                    for rest in text.split(start).skip(1) {
                        let name = rest
                            .trim_start()
                            .strip_prefix('"')
                            .and_then(|rest| rest.split('"').next());
                        found.extend(name.map(str::to_owned));
                    }
                }
            }
        }
    }

    #[test]
    fn every_checker_is_listed_and_no_other_and_the_design_says_what_it_sees() {
        let root = crate::alarm::root().expect("tests run inside the project");
        let mut found = Vec::new();
        given(&root.join("crates/sim/src"), &mut found);
        found.sort();
        found.dedup();
        assert_eq!(found, CHECKERS);
        let page = fs::read_to_string(root.join("docs/design/0002-simulator.md")).expect("a page");
        for name in CHECKERS {
            assert!(page.contains(&format!("| {name} | ")), "0002 does not say what {name} sees");
        }
    }
}

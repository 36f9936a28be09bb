//! `seeds/found.txt`: what fails in `cargo xtask sim` or `campaign` is kept there at once, and run again by every `make test`.
//!
//! What the simulator said stands behind a seed until whoever mends it says what it was. Clocks beyond the bound (`drift`) are
//! meant to break a promise: their seeds are not kept.
//!
//! Always: a seed with its features is there once.
//!
//! Not here: running them again (the tests of `sim`), the page that names them (`found`).

use crate::project::Project;
use std::fs;

const PATH: &str = "seeds/found.txt";

/// With this feature clocks go beyond the bound, so that a promise breaks, as it must.
const BREAKS_A_PROMISE: &str = "drift";

/// What failed in a run of the simulator, as lines of the file.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    lines: Vec<String>,
    /// The last `FAIL`.
    why: String,
}

impl Failures {
    /// Of all that it printed.
    pub(crate) fn of(printed: &str) -> Failures {
        let mut failures = Failures::default();
        printed.lines().for_each(|line| failures.hear(line));
        failures
    }

    /// Takes a line that it printed: why something failed, and then how that is replayed.
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some(why) = line.strip_prefix("FAIL  ") {
            // The page that names it is a table.
            why.trim().replace('|', "/").clone_into(&mut self.why);
        } else if let Some(words) = line.strip_prefix("replay: cargo xtask sim ") {
            self.lines.extend(kept_as(words, &self.why));
        }
    }

    /// Writes down what is not there yet.
    pub(crate) fn keep(&self, project: &Project) {
        if self.lines.is_empty() {
            return;
        }
        let path = project.root.join(PATH);
        let done = fs::read_to_string(&path).and_then(|text| {
            let new = self.added_to(&text);
            // The simulator's last line stays the last of this program's output.
            new.iter().for_each(|line| eprintln!("{PATH} keeps: {line}"));
            fs::write(&path, new.iter().fold(text, |text, line| text + line + "\n"))
        });
        if let Err(error) = done {
            eprintln!("{}: {error}", path.display());
        }
    }

    /// What the file lacks.
    fn added_to(&self, text: &str) -> Vec<&str> {
        let mut known: Vec<Vec<&str>> = text.lines().map(key).collect();
        let mut added = Vec::new();
        for line in &self.lines {
            let key = key(line);
            if !known.contains(&key) {
                known.push(key);
                added.push(line.as_str());
            }
        }
        added
    }
}

/// What is run by a line: kind, seed and features.
fn key(line: &str) -> Vec<&str> {
    line.split('#').next().unwrap_or_default().split_whitespace().collect()
}

/// The line of the file for what is replayed with these words of `cargo xtask sim`.
fn kept_as(words: &str, why: &str) -> Option<String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    };
    let seed = u64::from_str_radix(after("--seed")?.strip_prefix("0x")?, 16).ok()?;
    let features: Vec<&str> = after("--only")?.split(',').filter(|name| *name != "none").collect();
    if features.contains(&BREAKS_A_PROMISE) {
        return None;
    }
    let kind = if words.contains(&"--quorum-off") { "quorum-off " } else { "" };
    let features: String = features.iter().map(|name| format!(" {name}")).collect();
    Some(format!("{kind}{seed}{features} # {why}"))
}

#[cfg(test)]
mod tests {
    use super::Failures;

    /// As the simulator says it.
    fn printed(mode: &str, only: &str, seed: u64) -> String {
        format!(
            "         7  fault: crash\n\
             FAIL  one primary: n1 and n2 | both\n      seed {seed:#x}  step 80  t=3 ms\n\
             replay: cargo xtask sim {mode}--only {only} --seed {seed:#x} --until 80 --trace\n\
             {{\"runs\":1,\"failures\":1}}\n"
        )
    }

    #[test]
    fn what_failed_is_a_line_with_its_kind_its_features_and_why() {
        let lines = |mode, only, seed| Failures::of(&printed(mode, only, seed)).lines;
        let why = "# one primary: n1 and n2 / both";
        assert_eq!(lines("", "none", 17), [format!("17 {why}")]);
        assert_eq!(lines("", "rot,full", 0x3bd9_954f), [format!("1004115279 rot full {why}")]);
        assert_eq!(lines("--quorum-off ", "pmem", 18), [format!("quorum-off 18 pmem {why}")]);
        assert!(lines("", "drift", 19).is_empty(), "it is meant to fail");
        assert!(Failures::of("{\"runs\":9,\"failures\":0}\n").lines.is_empty());
    }

    #[test]
    fn what_is_there_is_not_kept_twice() {
        let three = [printed("", "rot,full", 17), printed("", "none", 17), printed("", "none", 17)];
        let failures = Failures::of(&three.concat());
        let why = "# one primary: n1 and n2 / both";
        assert_eq!(
            failures.added_to("# Seeds.\n17 # what it was\nquorum-off 17 rot full # another\n"),
            [format!("17 rot full {why}")]
        );
        assert_eq!(
            failures.added_to("# Seeds.\n"),
            [format!("17 rot full {why}"), format!("17 {why}")]
        );
    }
}

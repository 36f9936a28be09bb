//! Canaries that were planted again by name: their rows replace those that `docs/results.md` has of them, for all of them take an
//! hour and more. Only where nothing but canaries has changed since.
//!
//! Not here: what a canary is (`sim`).

use super::words_of;
use crate::project::{Project, output};
use std::collections::BTreeMap;
use std::process::Command;

/// What canaries are planted in, and found by.
const SOURCES: &[&str] = &[
    "crates/base",
    "crates/wire",
    "crates/replica",
    "crates/sim",
    ":(exclude)crates/sim/canaries",
    ":(exclude,glob)crates/wire/src/admin/**",
    ":(exclude)crates/wire/src/admin.rs",
    "Cargo.lock",
];

/// What the page says of the alarm already, if `words` name canaries, whose rows are to replace those there.
///
/// # Errors
/// It says nothing of all of them, or what they are planted in has changed since: then one of them says nothing of the others.
pub(super) fn section<'a>(
    project: &Project,
    page: &'a str,
    words: &[String],
) -> Result<Option<&'a str>, String> {
    let (first, rest) = words.split_first().ok_or("no command")?;
    if first != "alarm" || rest.iter().all(|word| word.starts_with('-')) {
        return Ok(None);
    }
    let mut sections = page.split("\n## `cargo xtask ");
    let section = sections
        .find(|part| words_of(part) == ["alarm"])
        .ok_or("no canary was recorded yet: record them all first")?;
    let of = section.split("Revision ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
    let of = of.ok_or("the page does not say at which revision the others were found")?;
    let mut git = Command::new("git");
    git.current_dir(&project.root).args(["diff", "--stat", of, "--"]).args(SOURCES);
    let changed = output(&mut git)?;
    match changed.trim() {
        "" => Ok(Some(section)),
        changed => Err(format!("record all canaries: since {of} has changed\n{changed}")),
    }
}

/// A section whose rows of the same names are these, and which says so.
pub(super) fn with_rows(section: &str, revision: &str, printed: &str) -> Option<String> {
    let is_row = |line: &&str| !line.is_empty() && !line.starts_with('{');
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let (head, rest) = section.split_once("```text\n")?;
    let (old, _) = rest.split_once("```")?;
    let mut rows: BTreeMap<String, &str> = BTreeMap::new();
    for row in old.lines().filter(is_row).chain(printed.lines().filter(is_row)) {
        rows.insert(name(row), row);
    }
    let found = |row: &&&str| row.split_whitespace().nth(1) == Some("found");
    let missed = rows.len() - rows.values().filter(found).count();
    let again: Vec<String> = printed.lines().filter(is_row).map(name).collect();
    let (head, said) = head.trim_end().trim_end_matches('.').rsplit_once("with the build: ")?;
    let before = said.find(';').map_or("", |at| &said[at..]);
    let ended = if missed == 0 { "passed" } else { "FAILED" };
    let all: String = rows.values().map(|row| format!("{row}\n")).collect();
    Some(format!(
        "## `cargo xtask {head}with the build: {ended}{before}; again at {revision}: {}.\n\n```text\n{all}{{\"runs\":{},\"failures\":{missed}}}\n```\n",
        again.join(", "),
        rows.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::with_rows;

    #[test]
    fn rows_of_canaries_that_were_planted_again_replace_the_old_ones() {
        let section = "alarm`\n\nRevision abc, 2 cores, 9 s with the build: FAILED.\n\n```text\n\
            one   MISSED by the test t\ntwo   found by x\n{\"runs\":2,\"failures\":1}\n```\n";
        let printed = "one   found by the test t\n{\"runs\":1,\"failures\":0}\n";
        let expected = "## `cargo xtask alarm`\n\nRevision abc, 2 cores, 9 s with the build: passed; again at def: one.\n\n\
            ```text\none   found by the test t\ntwo   found by x\n{\"runs\":2,\"failures\":0}\n```\n";
        assert_eq!(with_rows(section, "def", printed).as_deref(), Some(expected));
        let better = expected.trim_start_matches("## `cargo xtask ");
        let worse = with_rows(better, "ghi", "two   does not build\n").expect("it has rows");
        assert!(worse.contains("FAILED; again at def: one; again at ghi: two.\n"), "{worse}");
        assert!(worse.contains("{\"runs\":2,\"failures\":1}"), "{worse}");
    }
}

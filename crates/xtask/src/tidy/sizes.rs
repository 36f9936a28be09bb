//! Functions fit a screen, files a room; what does not is listed, and the list only shrinks.
//!
//! Invariants:
//! - A listed item is longer than the limit and exactly as long as its entry says; it may not grow,
//!   and when it shrinks the entry follows.
//! - An entry gives its reason.

use super::Finding;
use super::files::{RATCHET_FILE, Source};
use super::scan;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A function longer than this does not fit a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// A file longer than this holds more than one matter. About 600 is the aim.
const FILE_LINES_MAX: usize = 1000;

/// What is measured.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Item {
    /// A whole file.
    File { file: String },
    /// All functions of one name in a file; the longest counts.
    Function { file: String, name: String },
}

/// The listed exceptions: how long each item may be.
#[derive(Debug)]
pub(super) struct Ratchet {
    entries: BTreeMap<Item, usize>,
}

impl Ratchet {
    /// Reads the list: tables `[[file]]` (`file`, `lines`, `reason`) and `[[function]]` (`name` too).
    pub(super) fn parse(text: &str) -> Result<Ratchet, String> {
        let table: Table = text.parse().map_err(|error| format!("{RATCHET_FILE}: {error}"))?;
        let mut entries = BTreeMap::new();
        for (kind, list) in &table {
            let list = list.as_array().ok_or(format!("{RATCHET_FILE}: {kind} is not a list"))?;
            for entry in list {
                let (item, lines) = parse_entry(kind, entry)?;
                if entries.insert(item.clone(), lines).is_some() {
                    return Err(format!("{RATCHET_FILE}: {item:?} is listed twice"));
                }
            }
        }
        Ok(Ratchet { entries })
    }
}

fn parse_entry(kind: &str, entry: &Value) -> Result<(Item, usize), String> {
    let text = |key: &str| {
        let value = entry.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        value.map(str::to_owned).ok_or(format!("{RATCHET_FILE}: an entry of {kind} lacks `{key}`"))
    };
    let file = text("file")?;
    text("reason")?;
    let lines = entry
        .get("lines")
        .and_then(Value::as_integer)
        .and_then(|lines| usize::try_from(lines).ok())
        .ok_or(format!("{RATCHET_FILE}: an entry of {kind} lacks `lines`"))?;
    match kind {
        "file" => Ok((Item::File { file }, lines)),
        "function" => Ok((Item::Function { file, name: text("name")? }, lines)),
        _ => Err(format!("{RATCHET_FILE}: unknown table {kind}; there are file and function")),
    }
}

/// Functions and files of Rust are within their limits, or as long as the list says.
pub(super) fn check(sources: &[Source], ratchet: &Ratchet) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen: BTreeMap<Item, usize> = BTreeMap::new();
    for source in sources {
        let Some(code) = &source.code else { continue };
        let file = source.path.clone();
        let lines = source.text.lines().count();
        let item = Item::File { file: file.clone() };
        findings.extend(measure(&item, 1, lines, FILE_LINES_MAX, ratchet));
        seen.insert(item, lines);
        for function in scan::functions(code) {
            let item = Item::Function { file: file.clone(), name: function.name };
            let limit = FUNCTION_LINES_MAX;
            findings.extend(measure(&item, function.line, function.lines, limit, ratchet));
            let longest = seen.entry(item).or_default();
            *longest = function.lines.max(*longest);
        }
    }
    findings.extend(ratchet.entries.iter().filter_map(|(item, &listed)| {
        stale(item, listed, seen.get(item).copied().unwrap_or_default())
    }));
    findings
}

/// Complains if `item`, measured at `line`, is longer than it may be.
fn measure(
    item: &Item,
    line: usize,
    lines: usize,
    limit: usize,
    ratchet: &Ratchet,
) -> Option<Finding> {
    let listed = ratchet.entries.get(item).copied();
    if lines <= limit.max(listed.unwrap_or_default()) {
        return None;
    }
    let (file, what) = describe(item);
    let allowed = match listed {
        Some(listed) => format!("{RATCHET_FILE} allows {listed}"),
        None => format!("the limit is {limit}"),
    };
    Some(Finding {
        file,
        line,
        rule: "size",
        problem: format!("{what} has {lines} lines, {allowed}"),
        remedy: "split it by what it does".into(),
    })
}

/// Complains about an entry that is no longer needed, or allows more than is needed.
fn stale(item: &Item, listed: usize, longest: usize) -> Option<Finding> {
    let limit = match item {
        Item::File { .. } => FILE_LINES_MAX,
        Item::Function { .. } => FUNCTION_LINES_MAX,
    };
    let (file, what) = describe(item);
    let (problem, remedy) = if longest <= limit {
        (format!("{file}: the entry for {what} is no longer needed"), "remove it".to_owned())
    } else if longest < listed {
        (format!("{file}: {what} shrank to {longest} lines"), format!("write lines = {longest}"))
    } else {
        return None;
    };
    Some(Finding { file: RATCHET_FILE.into(), line: 0, rule: "ratchet", problem, remedy })
}

fn describe(item: &Item) -> (String, String) {
    match item {
        Item::File { file } => (file.clone(), "this file".into()),
        Item::Function { file, name } => (file.clone(), format!("function {name}")),
    }
}

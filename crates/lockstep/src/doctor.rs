//! `lockstep doctor`: what this machine can do for a node and for hosts that use its volumes.
//!
//! Everything is tried, nothing concluded from the kernel's version: vendors patch theirs, and containers forbid what the
//! kernel could do. It needs no node and no cluster, and leaves nothing behind; a node that runs is asked where its stores are.
//!
//! Always: a finding that is not `ok` says what that costs and what helps; only what a node cannot do without
//! (`needed`) lets the command fail.
//!
//! Not here: how resources are (`status`, `explain`).

mod host;
mod network;
mod places;
mod stores;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use crate::cli::{Form, Global};
use crate::cluster::{Cluster, USUAL};
use crate::output::{Cell, Style, Tone, say, say_json};
use crate::problem::{HOST_UNFIT, Problem, USAGE};

/// What was found of one thing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As good as it gets.
    Ok,
    /// It works, at a cost.
    Degraded,
    /// It cannot be had as things are.
    Missing,
}

/// One line.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Finding {
    /// The thing.
    what: String,
    verdict: Verdict,
    /// What was seen.
    found: String,
    /// What comes of that; empty where all is well.
    costs: String,
    /// What to do about it; empty where all is well.
    remedy: String,
    /// A node cannot do without it.
    needed: bool,
}

impl Finding {
    fn ok(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(what, Verdict::Ok, found, "", "")
    }

    fn degraded(
        what: impl Into<String>,
        found: impl Into<String>,
        costs: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(what, Verdict::Degraded, found, costs, remedy)
    }

    fn missing(
        what: impl Into<String>,
        found: impl Into<String>,
        costs: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(what, Verdict::Missing, found, costs, remedy)
    }

    fn new(
        what: impl Into<String>,
        verdict: Verdict,
        found: impl Into<String>,
        costs: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let (what, found) = (what.into(), found.into());
        Finding { what, verdict, found, costs: costs.into(), remedy: remedy.into(), needed: false }
    }

    /// A node cannot do without it.
    fn needed(self) -> Finding {
        Finding { needed: true, ..self }
    }
}

/// Looks at this machine, and at the nodes' directories and stores that `paths` name.
pub(crate) fn run(global: &Global, paths: &[PathBuf]) -> Result<(), Problem> {
    let mut findings = host::look(Path::new("/"));
    findings.push(network::packets(Path::new("/sys/class/net")));
    for path in subjects(global, paths)? {
        if path.join("node.toml").is_file() {
            let settings = network::settings(&path)?;
            findings.extend(network::look(&path, &settings));
            findings.extend(places::look(&path)?);
            findings.extend(stores::look(&path, &settings)?);
        } else {
            findings.extend(places::look(&path)?);
        }
    }
    let mut told = BTreeSet::new();
    findings.retain(|one| told.insert(one.what.clone()));
    let style = Style::of(global);
    match style.form {
        Form::Json => say_json(&json!({ "version": 1, "findings": &findings }))?,
        Form::Human => say(&show(style, &findings))?,
    }
    let lacks = findings.iter().filter(|one| one.needed && one.verdict == Verdict::Missing);
    match lacks.map(|one| one.what.as_str()).collect::<Vec<_>>().as_slice() {
        [] => Ok(()),
        lacks => {
            Err(Problem::new(HOST_UNFIT, format!("a node cannot do without: {}", lacks.join(", "))))
        }
    }
}

/// The paths that were given; else the nodes of the development cluster; else the usual node's directory, if there
/// is one.
fn subjects(global: &Global, paths: &[PathBuf]) -> Result<Vec<PathBuf>, Problem> {
    if let Some(path) = paths.iter().find(|path| !path.exists()) {
        return Err(Problem::new(USAGE, format!("{}: there is nothing", path.display())));
    }
    if !paths.is_empty() {
        return Ok(paths.to_vec());
    }
    if global.dir.is_some() {
        let cluster = Cluster::open_dev(global)?;
        return Ok(cluster.file.nodes.iter().map(|node| cluster.directory_of(node)).collect());
    }
    let usual = PathBuf::from(USUAL);
    Ok(if usual.join("node.toml").is_file() { vec![usual] } else { Vec::new() })
}

/// A table, and below it what is wrong.
fn show(style: Style, findings: &[Finding]) -> String {
    let rows: Vec<Vec<Cell>> = findings
        .iter()
        .map(|one| {
            let (word, tone) = match one.verdict {
                Verdict::Ok => ("ok", Tone::Good),
                Verdict::Degraded => ("degraded", Tone::Doubtful),
                Verdict::Missing if one.needed => ("missing", Tone::Bad),
                Verdict::Missing => ("missing", Tone::Doubtful),
            };
            vec![Cell::plain(&one.what), Cell(word.to_owned(), tone), Cell::plain(&one.found)]
        })
        .collect();
    let mut text = style.table(&["what", "state", "found"], &rows);
    for one in findings.iter().filter(|one| one.verdict != Verdict::Ok) {
        let what = style.paint(Tone::Strong, &one.what);
        text.push_str(&format!("\n{what}: {}\n  {}\n", one.costs, one.remedy));
    }
    text
}

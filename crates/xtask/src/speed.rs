//! `cargo xtask speed`: the README's table of speed, made of the results that lie in the tree.
//!
//! Always: no figure there was written by hand. A test fails where README and results differ.
//!
//! Not here: measuring (`crates/bench`).

use crate::project::Project;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const PAGE: &str = "README.md";

/// Of which results, and where: `cargo xtask bench -- --full --tables record-memory,record-file,depth --name record-2cores`.
const RESULTS: &str = "bench/results/record-2cores";

/// Between these lines nothing is written by hand.
const BEGIN: &str = "<!-- speed: by `cargo xtask speed` -->";
const END: &str = "<!-- /speed -->";

/// What a row of the README is about.
#[derive(Clone, Copy)]
enum Figure {
    Iops,
    Megabytes,
    /// Mean and 99th percentile.
    Latency,
}

/// Workloads of the record, in the README's order.
const ROWS: [(&str, Figure); 7] = [
    ("4K random write, depth 64", Figure::Iops),
    ("4K random read, depth 64", Figure::Iops),
    ("4K random 70/30, depth 64", Figure::Iops),
    ("128K sequential write, depth 16", Figure::Megabytes),
    ("128K sequential read, depth 16", Figure::Megabytes),
    ("4K random write, depth 1", Figure::Latency),
    ("4K random read, depth 1", Figure::Latency),
];

/// Table, and subject in it, of each column; how it is headed.
const COLUMNS: [(&str, &str, &str); 6] = [
    ("record-file", "3 replicas", "**three replicas**, on disk"),
    ("record-file", "1 replica", "one replica"),
    ("record-file", "nbdkit file", "nbdkit, one file"),
    ("record-file", "raw", "the disk itself"),
    ("record-memory", "3 replicas", "**three replicas**, in memory"),
    ("record-memory", "nbdkit memory", "nbdkit, one memory"),
];

/// Writes the README's section.
pub(crate) fn speed(project: &Project) -> bool {
    let path = project.root.join(PAGE);
    let written = fs::read_to_string(&path)
        .map_err(|error| error.to_string())
        .and_then(|page| renewed(&project.root, &page))
        .and_then(|page| fs::write(&path, page).map_err(|error| error.to_string()));
    match &written {
        Ok(()) => println!("speed: {PAGE} says what {RESULTS}.json does"),
        Err(why) => eprintln!("speed: {why}"),
    }
    written.is_ok()
}

/// The page with what the results say.
fn renewed(root: &Path, page: &str) -> Result<String, String> {
    let text = fs::read_to_string(root.join(RESULTS).with_extension("json"))
        .map_err(|error| format!("{RESULTS}.json: {error}"))?;
    let results: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let (before, rest) = page.split_once(BEGIN).ok_or(format!("{PAGE} has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("{PAGE} has no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", section(&results)?))
}

fn section(results: &Value) -> Result<String, String> {
    let machine = &results["machine"];
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut section = format!(
        "All nodes, the client and their disk on one machine ({}, {} cores, Linux {}): what three nodes do to one write has to go through \
         it. Clients by NBD; nothing is enciphered; nbdkit's file goes through the page cache, the others past it; mode {}, revision {}. Everything measured, with its spread: [{RESULTS}.md]({RESULTS}.md); \
         what it means, and what limits it: [docs/performance.md](docs/performance.md).\n\n",
        text(&machine["processor"]),
        machine["cores"],
        text(&machine["kernel"]),
        text(&results["mode"]),
        text(&results["revisions"][0]),
    );
    let heads: Vec<&str> = COLUMNS.iter().map(|(_, _, head)| *head).collect();
    let line = format!("| | {} |\n|---|{}\n", heads.join(" | "), "--:|".repeat(COLUMNS.len()));
    section.push_str(&line);
    for (workload, figure) in ROWS {
        let unit = match figure {
            Figure::Iops => "IOPS",
            Figure::Megabytes => "MB/s",
            Figure::Latency => "mean (99th percentile), µs",
        };
        write!(section, "| {workload}: {unit} |").expect("a string takes all");
        for (table, subject, _) in COLUMNS {
            let samples = samples(results, table, workload, subject)
                .ok_or(format!("{RESULTS}.json has no {workload} on {subject} in {table}"))?;
            let of = |name| median(samples, name);
            let cell = match figure {
                Figure::Iops => thousands(of("iops")),
                Figure::Megabytes => thousands(of("mb_per_second")),
                Figure::Latency => format!("{:.0} ({:.0})", of("mean_us"), of("p99_us")),
            };
            write!(section, " {cell} |").expect("a string takes all");
        }
        section.push('\n');
    }
    let title = "Latency against throughput as the depth grows, 4K random write";
    write!(section, "\n![{title}]({RESULTS}-depth.svg)\n").expect("a string takes all");
    Ok(section)
}

/// The repeats of one workload on one subject, by one client.
fn samples<'a>(
    results: &'a Value,
    table: &str,
    workload: &str,
    subject: &str,
) -> Option<&'a Vec<Value>> {
    let table = results["tables"].as_array()?.iter().find(|one| one["key"] == table)?;
    let is = |row: &&Value| {
        row["workload"]["name"] == workload && row["subject"] == subject && row["threads"] == 1
    };
    table["rows"].as_array()?.iter().find(is)?["repeats"]["samples"].as_array()
}

/// The middle one of three; of an even number, the upper one of the two in the middle.
fn median(samples: &[Value], name: &str) -> f64 {
    let mut all: Vec<f64> = samples.iter().filter_map(|sample| sample[name].as_f64()).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Rounded to three digits, as "12 300".
fn thousands(value: f64) -> String {
    let step = 10_f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    let digits = format!("{:.0}", (value / step).round() * step);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{PAGE, renewed, thousands};
    use std::path::Path;

    #[test]
    fn the_readme_says_what_the_results_do() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join(PAGE)).expect("there is a README");
        assert_eq!(renewed(&root, &page).as_deref(), Ok(&*page), "see `cargo xtask speed`");
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.4, 87.0, 1234.0, 70_123.4, 168_512.0].map(thousands);
        assert_eq!(all, ["0", "87", "1\u{a0}230", "70\u{a0}100", "169\u{a0}000"]);
    }
}

//! What was seen under which kernel of an emulated machine, as a table: a row for each way to use a volume, a column for each kernel.
//!
//! A machine writes what it saw into the file `seen` of its share, a line each: `KIND works: sentence`, or `KIND refused: why; more`.
//! Labs in machines are called `vm-WHAT-KERNEL`.
//!
//! Always: a cell says what a machine said whose lab passed; of a lab that failed, only that it did.

use std::fs;
use std::path::Path;

use crate::Ended;
use crate::supervise::End;

/// What a line of a machine is about, and what the table calls it.
const KINDS: &[(&str, &str)] = &[
    ("nvme", "NVMe/TCP"),
    ("nbd", "NBD"),
    ("ublk", "ublk"),
    ("vhost", "vhost-user"),
    ("moved", "live migration"),
    ("tls", "TLS"),
    ("proof", "DH-HMAC-CHAP"),
    ("reserve", "reservations"),
    ("pmem", "persistent memory"),
    ("mapper", "device mapper"),
    ("nodes", "nodes in it"),
    ("doctor", "doctor is right"),
    ("systemd", "systemd's units"),
];

/// Labs that are not called as what they are about.
const NAMED_OTHERWISE: &[(&str, &[&str])] = &[
    ("attach", &["nbd", "nvme"]),
    ("frozen", &["nvme"]),
    ("late", &["ublk"]),
    ("quorum", &["nvme"]),
    ("xfs", &["nvme"]),
];

/// Kernels, in the order of their columns.
const KERNELS: &[&str] = &["5.10", "6.1", "6.12", "newest"];

/// A cell that nobody filled.
const NOT_RUN: &str = "not run";

/// What a machine has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// Its kernel: a name, and the version of its package on a line of its own.
    kernel: String,
    /// Its lines.
    lines: String,
}

impl Seen {
    /// What a lab has left in its directory.
    pub(crate) fn read(directory: &Path) -> Seen {
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        Seen { kernel: text("kernel"), lines: text("share/seen") }
    }
}

/// The word for a kind that a machine's line says, and the kind.
fn said(line: &str) -> Option<(&str, String)> {
    let (head, rest) = line.split_once(": ")?;
    match head.split_once(' ')? {
        (kind, "works") => Some((kind, "works".to_owned())),
        (kind, "refused") => {
            let why = rest.split(';').next().unwrap_or_default();
            Some((kind, format!("refused: {why}")))
        }
        _ => None,
    }
}

/// What a kernel's machines say of a kind.
fn cell(kind: &str, kernel: &str, ends: &[Ended]) -> String {
    let mut word = NOT_RUN.to_owned();
    for Ended { name, end, seen, .. } in ends {
        let Some((what, _)) = split(name).filter(|(_, of)| *of == kernel) else { continue };
        if *end == End::Failed && is_about(what, kind) {
            return "FAILED".to_owned();
        }
        if *end != End::Passed {
            continue;
        }
        for (_, said) in seen.lines.lines().filter_map(said).filter(|(about, _)| *about == kind) {
            if word != "works" {
                word = said;
            }
        }
    }
    word
}

/// Whether a lab of this name is about this kind.
fn is_about(what: &str, kind: &str) -> bool {
    let named = NAMED_OTHERWISE.iter().find(|(name, _)| *name == what);
    named.map_or(what == kind, |(_, kinds)| kinds.contains(&kind))
}

/// What a lab is about, and its kernel.
fn split(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("vm-")?.rsplit_once('-')
}

/// The table; empty if no lab was about a kernel.
pub(crate) fn table(ends: &[Ended]) -> String {
    if !ends.iter().any(|one| split(one.name).is_some()) {
        return String::new();
    }
    let mut rows = vec![vec!["in a machine".to_owned()], vec![String::new()]];
    for kernel in KERNELS {
        let of_it = |one: &&Ended| split(one.name).is_some_and(|(_, of)| of == *kernel);
        let mut told = ends.iter().filter(of_it).map(|one| &one.seen.kernel);
        let told = told.find(|told| !told.is_empty()).cloned();
        let told = told.unwrap_or_else(|| format!("Linux {kernel}"));
        let mut lines = told.lines();
        for row in &mut rows {
            row.push(lines.next().unwrap_or_default().to_owned());
        }
    }
    for (kind, title) in KINDS {
        let cells = KERNELS.iter().map(|kernel| cell(kind, kernel, ends));
        rows.push(std::iter::once((*title).to_owned()).chain(cells).collect());
    }
    let wide: Vec<usize> = (0..=KERNELS.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0) + 2)
        .collect();
    let line = |row: &Vec<String>| {
        let cells: String =
            row.iter().zip(&wide).map(|(cell, wide)| format!("{cell:<wide$}")).collect();
        format!("{}\n", cells.trim_end())
    };
    format!("\n{}\n", rows.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::{KERNELS, KINDS, Seen, is_about, said, split, table};
    use crate::Ended;
    use crate::labs::LABS;
    use crate::supervise::End;
    use std::time::Duration;

    fn ended(name: &'static str, end: End, lines: &str) -> Ended {
        let seen = Seen { kernel: String::new(), lines: lines.to_owned() };
        Ended { name, end, time: Duration::ZERO, seen }
    }

    #[test]
    fn a_line_says_what_works_and_what_is_refused() {
        assert_eq!(said("nvme works: a disk: three paths"), Some(("nvme", "works".to_owned())));
        let refused = Some(("ublk", "refused: no driver".to_owned()));
        assert_eq!(said("ublk refused: no driver; nothing is left"), refused);
        assert_eq!(said("words of another kind"), None);
    }

    #[test]
    fn every_lab_in_a_machine_has_its_cell() {
        for lab in LABS.iter().filter(|lab| lab.name.starts_with("vm-")) {
            let (what, kernel) = split(lab.name).expect("it names its kernel");
            assert!(KERNELS.contains(&kernel), "{}", lab.name);
            assert!(KINDS.iter().any(|(kind, _)| is_about(what, kind)), "{}", lab.name);
        }
    }

    #[test]
    fn a_cell_is_of_its_kernel_and_a_failure_hides_what_was_seen_before() {
        let ends = [
            ended("vm-attach-5.10", End::Passed, "nvme works: x\nnbd refused: no names; y\n"),
            ended("vm-nvme-6.1", End::Failed, "nvme works: x\n"),
            ended("vm-tls-6.12", End::NotRun, ""),
            ended("kill-primary", End::Passed, ""),
        ];
        let table = table(&ends);
        let row =
            |title: &str| table.lines().find(|line| line.starts_with(title)).expect("a row of it");
        let cells = |title: &str| {
            row(title)
                .split("  ")
                .filter(|cell| !cell.is_empty())
                .map(|cell| cell.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(cells("NVMe/TCP"), ["NVMe/TCP", "works", "FAILED", "not run", "not run"]);
        assert_eq!(cells("NBD")[1], "refused: no names");
        assert_eq!(cells("TLS")[3], "not run");
        assert!(super::table(&ends[3..]).is_empty());
    }
}

use super::{Report, reference, table_text};
use crate::sample::{Repeats, Sample};
use crate::tables::{DEPTHS, Row, Table};

fn table(subjects: &[&str]) -> Table {
    let row = |&subject: &&str| Row {
        workload: DEPTHS[0],
        subject: subject.to_owned(),
        threads: 1,
        repeats: Repeats::default(),
        own_ms: None,
        system_calls: None,
    };
    let rows = subjects.iter().map(row).collect();
    Table { key: "", title: "", seed: "", reference: "one thread", notes: Vec::new(), rows }
}

fn found(table: &Table, at: usize) -> Option<&str> {
    let revisions = ["new".to_owned(), "old".to_owned()];
    reference(table, &table.rows[at], &revisions).map(|row| row.subject.as_str())
}

#[test]
fn a_row_is_put_in_relation_to_its_own_revision() {
    let table = table(&["one thread @ new", "one thread @ old", "two @ new", "two @ old", "raw"]);
    assert_eq!(found(&table, 2), Some("one thread @ new"));
    assert_eq!(found(&table, 3), Some("one thread @ old"));
    assert_eq!(found(&table, 4), None);
}

#[test]
fn a_reference_that_has_no_revision_is_that_of_both() {
    let table = table(&["two @ new", "one thread"]);
    assert_eq!(found(&table, 0), Some("one thread"));
}

#[test]
fn a_page_and_its_values_say_what_made_them() {
    let command = "cargo xtask bench -- --full --tables metadata --name metadata-2cores".to_owned();
    let revisions = vec!["e2650cb".to_owned()];
    let report = Report { command, revisions, mode: "full", ..Report::default() };
    let (page, _) = report.markdown();
    let made = format!("Made by `{}` (mode full) at e2650cb. ", report.command);
    assert!(page.contains(&made), "{page}");
    let values = serde_json::to_value(&report).expect("it has names and figures only");
    assert_eq!(values["command"], report.command.as_str());
}

#[test]
fn targets_of_a_table_that_was_asked_for_and_not_made_stand_in_the_page_as_not_measured() {
    let report = Report { asked: vec!["drbd"], ..Report::default() };
    let (page, _) = report.markdown();
    let row = "| 2 replicas by ublk in emulated machines, 4K random write, depth 1: IOPS against DRBD | ≥ 2 | - | not measured |";
    assert!(page.contains(row), "{page}");
    assert!(!page.contains("Ceph RBD | ≥"), "{page}");
    assert!(page.contains("of other targets: record-memory, record-file, metadata, "), "{page}");
}

/// A page of a table with one row, of these samples.
fn page(samples: Vec<Sample>) -> String {
    let mut table = table(&["one thread"]);
    table.rows[0].repeats = Repeats { samples };
    let mut page = String::new();
    table_text(&table, &[], &mut page);
    page
}

#[test]
fn the_mean_of_which_targets_are_made_has_its_spread_beside_it() {
    let sample = |mean_us| Sample { mean_us, p99_us: 90.0, ..Sample::default() };
    let page = page([30.0, 10.0, 20.0].map(sample).to_vec());
    assert!(page.contains("| 20 (10..30) | - | 90 (90..90) |"), "{page}");
}

#[test]
fn what_did_not_come_to_a_steady_state_is_named() {
    let sample = |second_half| Sample { second_half, ..Sample::default() };
    let steady = page([1.3, 1.0, 0.95].map(|ratio| sample(Some(ratio))).to_vec());
    assert!(steady.contains("\nSteady: in 1 of 1 rows ") && !steady.contains("jobs 1"), "{steady}");
    let slower = page(vec![sample(Some(0.85)), sample(None), sample(Some(0.7))]);
    assert!(slower.contains("\nSteady: in 0 of 1 rows "), "{slower}");
    assert!(
        slower.contains("; in parts of the first: depth 1, one thread, jobs 1: 0.7"),
        "{slower}"
    );
    assert!(!page(vec![sample(None)]).contains("Steady"));
}

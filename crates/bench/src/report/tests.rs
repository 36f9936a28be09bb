use super::{Report, reference};
use crate::sample::Repeats;
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

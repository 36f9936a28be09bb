use std::fs;
use std::path::{Path, PathBuf};

use super::{Parts, kept, lay_aside, table};
use crate::outcome::fail;
use crate::report::Report;
use crate::run::{Pace, Run, Turns};
use crate::tables::Table;

/// A place of its own, which goes with the value.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("bench-parts-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("scratch")).expect("there is room");
        Place(path)
    }

    fn run(&self) -> Run {
        let pace = Pace { full: false, sanity: true, brief: false, turns: Turns::Usual };
        let (programs, scratch) = (Vec::new(), self.0.join("scratch"));
        Run { programs, pace, scratch, counts: false }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn report() -> Report {
    Report {
        name: "mine".to_owned(),
        asked: vec!["depth", "threads", "failover"],
        ..Report::default()
    }
}

fn a_table(key: &'static str) -> Table {
    Table { key, title: key, seed: "", reference: "", notes: Vec::new(), rows: Vec::new() }
}

fn keep(report: &mut Report, table: Table) {
    report.tables.push(table);
}

/// A part whose cluster wrote a log, was told of by a program beside it, and is gone.
fn fails(run: &Run) -> Result<Table, String> {
    let home = run.scratch.join("c0").join("a");
    fs::create_dir_all(&home).expect("there is room");
    fs::write(home.join("log"), "a disk is gone\n").expect("there is room");
    lay_aside(&run.scratch.join("c0"), &home.join("log"), "a.log");
    fs::remove_dir_all(run.scratch.join("c0")).expect("it is there");
    fs::write(run.scratch.join("db0.mysqllog"), "no more room\n").expect("there is room");
    fail("fio: exit status: 1\nand what it said")
}

#[test]
fn a_part_that_fails_loses_neither_those_before_it_nor_those_after_it() {
    let place = Place::new("fails");
    let run = place.run();
    let results = place.0.join("results");
    let mut parts = Parts::new(&run, &results, report());
    parts.make("depth", |_| Ok(a_table("depth")), keep).expect("it is written");
    parts.make("threads", fails, keep).expect("it fails alone");
    parts.make("failover, pauses", |_| Ok(a_table("failover")), keep).expect("it is written");
    let (report, failed) = parts.end().expect("it is written");
    let keys: Vec<&str> = report.tables.iter().map(|table| table.key).collect();
    assert_eq!(keys, ["depth", "failover"]);
    let failed = failed.expect("one failed");
    assert!(failed.starts_with("failed: threads; "), "{failed}");
    let note = "threads: failed: fio: exit status: 1".to_owned();
    assert!(report.left_out.contains(&note), "{:?}", report.left_out);
    let logs = kept(&results, "mine").join("threads");
    let read = |name: &str| fs::read_to_string(logs.join(name)).expect("it is kept");
    assert_eq!(read("why.txt"), "fio: exit status: 1\nand what it said\n");
    assert_eq!(
        (read("c0/a.log"), read("db0.mysqllog")),
        ("a disk is gone\n".into(), "no more room\n".into())
    );
    assert_eq!(
        fs::read_dir(&run.scratch).expect("it is there").count(),
        0,
        "files of parts are left"
    );
}

#[test]
fn what_was_made_is_on_the_disk_when_the_next_part_begins() {
    let place = Place::new("written");
    let run = place.run();
    let results = place.0.join("results");
    let page = |results: &Path| fs::read_to_string(results.join("mine.md")).expect("it is written");
    let mut parts = Parts::new(&run, &results, report());
    parts.make("depth", |_| Ok(a_table("depth")), keep).expect("it is written");
    parts
        .make("threads", |_| Ok(page(&results)), |_, page| assert!(page.contains("\n## depth\n")))
        .expect("it is written");
    parts
        .make("idle", |_| -> Result<(), String> { panic!("it was not asked for") }, |_, ()| {})
        .expect("it is left out");
    assert!(parts.end().expect("it is written").1.is_none());
}

#[test]
fn a_part_is_of_the_table_that_its_name_begins_with() {
    assert_eq!([table("depth"), table("databases, own devices")], ["depth", "databases"]);
}

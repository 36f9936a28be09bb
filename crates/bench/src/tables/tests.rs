use super::{DEPTHS, RECORD, Row, Subject, Table, counts, instances, own_times, raw};
use crate::fio::Target;
use crate::run::{Pace, Turns};
use crate::sample::{Repeats, Sample};

fn row(subject: &str, sample: Sample) -> Row {
    let repeats = Repeats { samples: vec![sample] };
    let (subject, workload) = (subject.to_owned(), DEPTHS[0]);
    Row { workload, subject, threads: 1, repeats, own_ms: None, system_calls: None }
}

/// What the servers took, and fio.
fn cost(cpu_ms: f64, fio_ms: f64) -> Sample {
    Sample { cpu_ms, fio_ms, ..Sample::default() }
}

fn table(rows: Vec<Row>) -> Table {
    Table { key: "", title: "", seed: "", reference: "", notes: Vec::new(), rows }
}

fn three_copies() -> Subject {
    let (name, target) = ("3 replicas".to_owned(), Target::Nbd(String::new()));
    Subject { name, target, pids: vec![1], size_mib: 1, copies: 3, cached: None }
}

#[test]
fn own_time_is_what_the_disk_does_not_explain_once_for_each_copy() {
    let mut table = table(vec![row("3 replicas", cost(20.0, 9.0)), row("raw", cost(0.0, 5.0))]);
    own_times(&mut table, &[three_copies(), raw("raw.img".into(), 1)]);
    assert_eq!([table.rows[0].own_ms, table.rows[1].own_ms], [Some(5.0), None]);
}

#[test]
fn without_the_disk_itself_no_time_is_called_own() {
    let mut table = table(vec![row("3 replicas", cost(20.0, 9.0))]);
    own_times(&mut table, &[three_copies()]);
    assert_eq!(table.rows[0].own_ms, None);
}

#[test]
fn what_the_machine_has_no_cores_for_is_left_out_by_name() {
    let of = |cores| {
        let (counts, left_out) = counts(cores);
        (counts, left_out.into_iter().map(|(count, _)| count).collect::<Vec<_>>())
    };
    assert_eq!(of(2), (vec![1, 2], vec![4, 8, 16]));
    assert_eq!(of(7), (vec![1, 2, 4], vec![8, 16]));
}

#[test]
fn more_shards_than_a_resource_can_have_are_left_out_on_every_machine() {
    let (counts, left_out) = counts(64);
    assert_eq!(counts, [1, 2, 4, 8]);
    assert_eq!(left_out, [(16, "a resource has 8 at most".to_owned())]);
}

#[test]
fn every_workload_of_the_record_is_asked_for_by_one_and_by_eight_clients_in_long_runs() {
    let pace = |full, sanity| Pace { full, sanity, brief: false, turns: Turns::Usual };
    for workload in &RECORD {
        for long in [pace(true, false), pace(false, true)] {
            let found = instances(long, workload);
            assert!(found.contains(&1) && found.contains(&8), "{}: {found:?}", workload.name);
        }
        assert_eq!(instances(pace(false, false), workload), [1]);
    }
}

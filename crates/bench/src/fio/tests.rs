use super::{Target, Workload, float, measure, parse, part_mib, second_half};
use crate::tables::DEPTHS;

const REPORT: &str = r#"fio: connected to NBD server
{"jobs": [{"job_runtime": 2000, "usr_cpu": 10.0, "sys_cpu": 30.0,
  "read": {"total_ios": 3000, "iops": 1500.0, "bw_bytes": 6144000, "lat_ns": {"max": 900000, "mean": 100000.0,
    "percentile": {"50.000000": 90000, "99.000000": 300000, "99.900000": 400000}}},
  "write": {"total_ios": 1000, "iops": 500.0, "bw_bytes": 2048000, "lat_ns": {"max": 800000, "mean": 200000.0,
    "percentile": {"50.000000": 150000, "99.000000": 500000, "99.900000": 600000}}}}]}"#;

#[test]
fn a_mixture_without_histograms_is_counted_whole_and_shown_with_the_latencies_of_its_slower_side() {
    let seen = parse(REPORT).expect("a report");
    assert_eq!((seen.requests, seen.iops, seen.mb_per_second), (4000, 2000.0, 8.192));
    assert_eq!((seen.p50_us, seen.p99_us, seen.p999_us), (150.0, 500.0, 600.0));
    assert!((seen.mean_us - 125.0).abs() < 1e-9);
    // 40 % of two seconds for 4000 requests.
    assert!((seen.fio_ms - 200.0).abs() < 1e-9);
}

#[test]
fn of_a_mixture_both_histograms_count_together() {
    let with = |report: String, mean: &str, bins: &str| {
        report.replace(mean, &format!("{mean}, \"bins\": {bins}"))
    };
    // Of a hundred: 80 fast reads, 19 writes, and one slow read, which fio puts before the others here.
    let report = with(REPORT.to_owned(), r#""mean": 100000.0"#, r#"{"900000": 1, "10000": 80}"#);
    let report = with(report, r#""mean": 200000.0"#, r#"{"150000": 19}"#);
    let seen = parse(&report).expect("a report");
    assert_eq!((seen.p50_us, seen.p99_us, seen.p999_us), (10.0, 150.0, 900.0));
    assert_eq!((seen.requests, seen.max_us), (4000, 900.0));
}

#[test]
fn a_job_that_did_nothing_is_no_measurement() {
    assert!(parse(&REPORT.replace("3000", "0").replace("1000,", "0,")).is_none());
    assert!(parse("fio: connection refused").is_none());
}

#[test]
fn counts_become_numbers_without_loss() {
    assert!((float(5_000_000_000) - 5e9).abs() < f64::EPSILON);
}

#[test]
fn a_report_without_percentiles_of_whole_latencies_is_not_understood() {
    let of_completion = REPORT.replace("\"lat_ns\"", "\"clat_ns\"");
    assert!(parse(&of_completion).is_none());
}

#[test]
fn fio_is_asked_for_percentiles_of_whole_latencies_and_histograms_of_both_sides() {
    if crate::machine::find("fio").is_none() {
        println!("NOT RUN: no fio on this machine");
        return;
    }
    // Beside the test: not every file system for temporary files takes direct I/O.
    let own = std::env::current_exe().expect("this program lies somewhere");
    let scratch = own.with_extension(format!("fio-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a directory of its own");
    let file = scratch.join("file");
    std::fs::write(&file, vec![1; 1 << 20]).expect("room for a small file");
    let seen = [0, 70, 100].map(|reads| {
        let pattern = ["randrw", "randread"][usize::from(reads == 100)];
        let workload = Workload { name: "", pattern, block_kib: 4, depth: 16, reads };
        // Of the longest the halves are counted apart.
        let seconds = if reads == 70 { super::WINDOWS_SECONDS_MIN } else { 0.1 };
        measure(&Target::File(file.clone()), &workload, 1, seconds, 2, &scratch)
    });
    std::fs::remove_file(&file).expect("it is there");
    std::fs::remove_dir(&scratch).expect("nothing else is left in it");
    for (seen, has_halves) in seen.into_iter().zip([false, true, false]) {
        let seen = seen.expect("a report that is understood");
        assert!(seen.p50_us > 0.0 && seen.p99_us >= seen.p50_us, "{seen:?}");
        assert_eq!(seen.second_half.is_some(), has_halves, "{seen:?}");
    }
}

#[test]
fn several_that_go_in_order_have_a_part_each_and_those_that_do_not_all_of_it() {
    let of = |pattern| Workload { name: "", pattern, block_kib: 128, depth: 16, reads: 0 };
    let found = ["write", "read", "randwrite"].map(|pattern| part_mib(&of(pattern), 256, 8));
    assert_eq!(found, [32, 32, 256]);
    assert_eq!(part_mib(&of("write"), 256, 1), 256);
}

#[test]
fn the_second_half_is_put_in_relation_to_the_first_without_the_window_in_which_fio_began() {
    // Two instances, reads and writes of each; ended by 20 windows of 100 ms.
    let line = |at: u32, rate: u32, side: u32| format!("{at}, {rate}, {side}, 0, 0\n");
    let log = |rate: fn(u32) -> u32| -> String {
        let window = |number: u32| {
            let late = [0, 3].map(|late| number * 100 + late);
            late.map(|at| line(at, rate(number), 0) + &line(at, rate(number), 1)).concat()
        };
        (1..=20).map(window).collect()
    };
    assert_eq!(second_half(&log(|number| if number == 1 { 5 } else { 1000 })), Some(1.0));
    let slower = second_half(&log(|number| if number <= 10 { 1000 } else { 800 }));
    assert_eq!(slower, Some(0.8));
    assert_eq!(second_half(""), None);
    assert_eq!(second_half(&line(100, 7, 0)), None);
    assert_eq!(second_half("no figures"), None);
}

#[test]
fn our_own_load_is_the_one_that_the_run_copied() {
    let (program, url) = ("echo".into(), "nbd://127.0.0.1:1/v".to_owned());
    let scratch = std::env::temp_dir().join(format!("bench-load-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("there is room");
    let target = Target::Load { program, url };
    // What stands in its place only says how it was called.
    let why = measure(&target, &DEPTHS[0], 1, 0.1, 1, &scratch).expect_err("it measures nothing");
    assert!(why.contains("not understood:\nnbd://127.0.0.1:1/v --pattern randwrite"), "{why}");
    std::fs::remove_dir_all(&scratch).expect("it is there");
}

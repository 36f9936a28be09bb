//! Tests of the table that ends a run.

use super::table;
use std::time::Duration;

#[test]
fn table_names_the_failed_step_and_fails_as_a_whole() {
    let second = Duration::from_secs(1);
    let text = table(&[("fmt", true, second), ("tidy", false, second)]);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["fmt", "ok", "1.0", "s"]);
    assert_eq!(lines[2], ["tidy", "FAILED", "1.0", "s"]);
    assert_eq!(lines[3], ["all", "FAILED", "2.0", "s"]);
}

//! What differs between two revisions by more than the repeats of either do.
//!
//! Always: only rows that are the same but for the revision are compared, and both were measured by turns.

use std::fmt::Write as _;

use crate::databases::Transactions;
use crate::failover::{Failover, Pause};
use crate::idle::Idle;
use crate::memory::Loaded;
use crate::mirror::{Mirror, Written};
use crate::resync::Resync;
use crate::run::suffix;
use crate::sample::{Summary, change};
use crate::tables::{Row, Table};

/// What of a row is compared.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What was asked, if the subject does not say it.
    asked: String,
    /// Ends with the revision.
    subject: String,
    figures: Vec<(&'static str, Summary)>,
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Line {
        let repeats = &row.repeats;
        let figures = vec![
            ("IOPS", repeats.summary(|sample| sample.iops)),
            ("mean", repeats.summary(|sample| sample.mean_us)),
            ("p99", repeats.summary(|sample| sample.p99_us)),
            ("CPU", repeats.summary(|sample| sample.cpu_ms)),
        ];
        let asked = format!("{}, jobs {}, ", row.workload.name, row.threads);
        Line { asked, subject: row.subject.clone(), figures }
    }
}

/// A line that says of itself what was asked.
fn plain(subject: &str, figures: Vec<(&'static str, Summary)>) -> Line {
    Line { asked: String::new(), subject: subject.to_owned(), figures }
}

impl From<&Written> for Line {
    fn from(written: &Written) -> Line {
        let speed = Summary { median: written.mb_per_second, range: written.range };
        let asked = "a file written and synced, ".to_owned();
        Line { asked, ..plain(&written.subject, vec![("MB/s", speed)]) }
    }
}

impl From<&Transactions> for Line {
    fn from(seen: &Transactions) -> Line {
        let rate = Summary { median: seen.per_second, range: seen.range };
        let asked = format!("{}, ", seen.benchmark);
        let p99 = Summary { median: seen.p99_ms, range: seen.range_p99_ms };
        Line { asked, ..plain(&seen.subject, vec![("transactions/s", rate), ("p99", p99)]) }
    }
}

impl From<&Pause> for Line {
    fn from(pause: &Pause) -> Line {
        let wait = Summary { median: pause.pause_ms, range: pause.range_ms };
        plain(&pause.event, vec![("pause", wait)])
    }
}

impl From<&Resync> for Line {
    fn from(resync: &Resync) -> Line {
        let rate = Summary { median: resync.mib_per_second, range: resync.range_mib_per_second };
        let p99 = Summary { median: resync.beside_p99_us, range: resync.range_beside_p99_us };
        let asked = "resync: ".to_owned();
        Line { asked, ..plain(&resync.kind, vec![("MiB/s", rate), ("p99 beside it", p99)]) }
    }
}

impl From<&Idle> for Line {
    fn from(idle: &Idle) -> Line {
        let memory = Summary { median: idle.full_mib, range: idle.range_full_mib };
        let core = Summary { median: idle.core_percent, range: idle.range_core_percent };
        plain(&idle.subject, vec![("memory", memory), ("CPU", core)])
    }
}

impl From<&Loaded> for Line {
    fn from(loaded: &Loaded) -> Line {
        let most = Summary { median: loaded.highest_mib, range: loaded.range_mib };
        plain(&loaded.subject, vec![("memory", most)])
    }
}

impl Table {
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.rows.iter().map(Line::from).collect()
    }
}

impl Mirror {
    pub(crate) fn lines(&self) -> Vec<Line> {
        let resyncs = self.resyncs.iter().map(Line::from);
        self.files.iter().map(Line::from).chain(resyncs).collect()
    }
}

impl Failover {
    pub(crate) fn lines(&self) -> Vec<Line> {
        let resyncs = self.resyncs.iter().map(Line::from);
        self.pauses.iter().map(Line::from).chain(resyncs).collect()
    }
}

/// Says of these rows what differs between the two revisions; nothing, where there is one. How many rows were compared.
pub(crate) fn text(lines: &[Line], revisions: &[String], page: &mut String) -> usize {
    let [ours, theirs] = revisions else { return 0 };
    let (our_suffix, their_suffix) = (suffix(ours), suffix(theirs));
    let mut compared = 0;
    let mut found = String::new();
    for line in lines {
        let Some(subject) = line.subject.strip_suffix(&our_suffix) else { continue };
        let twin = format!("{subject}{their_suffix}");
        let is_twin = |other: &&Line| other.asked == line.asked && other.subject == twin;
        let Some(other) = lines.iter().find(is_twin) else { continue };
        compared += 1;
        let figures = line.figures.iter().zip(&other.figures);
        let parts = figures.filter_map(|((name, ours), (_, theirs))| {
            let change = change(*ours, *theirs)?;
            Some(match change.is_finite() {
                true => format!("{name} {change:+.0} %"),
                false => format!("{name} {:.1} instead of 0", ours.median),
            })
        });
        let parts: Vec<String> = parts.collect();
        if !parts.is_empty() {
            writeln!(found, "- {}{subject}: {}", line.asked, parts.join(", "))
                .expect("a string takes all");
        }
    }
    if compared == 0 {
        return 0;
    }
    let found = if found.is_empty() { "- nothing\n" } else { &found };
    write!(page, "\n{ours} against {theirs}, where the repeats do not overlap:\n\n{found}")
        .expect("a string takes all");
    compared
}

#[cfg(test)]
mod tests {
    use super::{Line, plain, text};
    use crate::sample::{Repeats, Sample, Summary};
    use crate::tables::{DEPTHS, Row};

    fn line(subject: &str, middle: f64) -> Line {
        let summary = Summary { median: middle, range: (middle - 1.0, middle + 1.0) };
        plain(subject, vec![("pause", summary)])
    }

    fn said(lines: &[Line], revisions: &[&str]) -> (usize, String) {
        let revisions: Vec<String> = revisions.iter().map(|&label| label.to_owned()).collect();
        let mut page = String::new();
        (text(lines, &revisions, &mut page), page)
    }

    #[test]
    fn only_the_same_event_of_two_revisions_is_compared() {
        let lines = [
            line("hand-over @ new", 30.0),
            line("hand-over @ old", 20.0),
            line("kill @ new", 21.0),
            line("kill @ old", 20.0),
        ];
        let (compared, page) = said(&lines, &["new", "old"]);
        assert_eq!(compared, 2);
        assert!(page.ends_with("\n- hand-over: pause +50 %\n"), "{page}");
    }

    #[test]
    fn a_mean_that_differs_is_named_as_rates_and_percentiles_are() {
        let row = |subject: &str, mean_us: f64| {
            let sample = Sample { mean_us, iops: 100.0, p99_us: 200.0, ..Sample::default() };
            let repeats = Repeats { samples: vec![sample; 3] };
            let (subject, workload) = (subject.to_owned(), DEPTHS[0]);
            Line::from(&Row {
                workload,
                subject,
                threads: 1,
                repeats,
                own_ms: None,
                system_calls: None,
            })
        };
        let (_, page) = said(&[row("one @ new", 30.0), row("one @ old", 20.0)], &["new", "old"]);
        assert!(page.ends_with("\n- depth 1, jobs 1, one: mean +50 %\n"), "{page}");
    }

    #[test]
    fn where_nothing_differs_that_is_said_and_where_nothing_is_compared_nothing() {
        let lines = [line("kill @ new", 21.0), line("kill @ old", 20.0)];
        let (compared, page) = said(&lines, &["new", "old"]);
        assert!(compared == 1 && page.ends_with("\n- nothing\n"), "{page}");
        assert_eq!(said(&lines[..1], &["new", "old"]), (0, String::new()));
        assert_eq!(said(&lines, &["new"]), (0, String::new()));
    }
}

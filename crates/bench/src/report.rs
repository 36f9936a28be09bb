//! What a run found, as JSON for programs and as Markdown for people.
//!
//! Always: both are made of the same values, and name what was not run.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::changes::{self, Line};
use crate::databases::Transactions;
use crate::failover::Failover;
use crate::fio::float;
use crate::idle::Idle;
use crate::machine::Machine;
use crate::memory::Loaded;
use crate::mirror::{Mirror, Written};
use crate::neighbours::Part;
use crate::outcome::Outcome;
use crate::plot;
use crate::resync::Resync;
use crate::run::suffix;
use crate::sample::Sample;
use crate::tables::{Row, Table};
use crate::targets;

/// Of the layout of NAME.json: 2 since own times are null where the disk itself was not measured, and memory under load is there; 3 since
/// latencies run from the request on, and each part says how long it took and what others used meanwhile; 4 since the command line is there; 5 since
/// samples say what the second half of their time was in parts of the first; 6 since databases and fail-over are two parts each, it is said which tables
/// were asked for, and how often as long an application waits beside a resync is told round by round, and how busy a disk was before each part.
pub(crate) const VERSION: u32 = 6;

/// Everything.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) name: String,
    /// What makes the same again, at the first of the revisions.
    pub(crate) command: String,
    /// `brief`, `quick`, `full` or `sanity`.
    pub(crate) mode: &'static str,
    pub(crate) revisions: Vec<String>,
    pub(crate) machine: Machine,
    /// Tables that were asked for, whether they could be made or not.
    pub(crate) asked: Vec<&'static str>,
    /// How long all of it took.
    pub(crate) seconds: f64,
    pub(crate) parts: Vec<Part>,
    /// What could not be measured here, and why.
    pub(crate) left_out: Vec<String>,
    pub(crate) tables: Vec<Table>,
    pub(crate) mirror: Option<Mirror>,
    pub(crate) databases: Vec<Transactions>,
    pub(crate) failover: Option<Failover>,
    pub(crate) idle: Vec<Idle>,
    pub(crate) memory: Vec<Loaded>,
}

impl Report {
    /// Writes NAME.json, NAME.md and the plots, each at once: what was there before is whole until then. How many rows of two revisions were
    /// compared, and where the files are.
    pub(crate) fn write(&self, directory: &Path) -> Outcome<(usize, Vec<PathBuf>)> {
        fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        let mut files = vec![(
            format!("{}.json", self.name),
            serde_json::to_string_pretty(self).map_err(|error| error.to_string())? + "\n",
        )];
        let (mut page, compared) = self.markdown();
        for (key, title, picture) in plot::all(self) {
            let file = format!("{}-{key}.svg", self.name);
            write!(page, "\n![{title}]({file})\n").expect("a string takes all");
            files.push((file, picture));
        }
        files.push((format!("{}.md", self.name), page));
        let mut paths = Vec::new();
        for (file, text) in files {
            let (path, new) = (directory.join(&file), directory.join(format!("{file}.new")));
            fs::write(&new, text)
                .and_then(|()| fs::rename(&new, &path))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            paths.push(path);
        }
        Ok((compared, paths))
    }

    /// How many rows there are in all tables.
    pub(crate) fn rows(&self) -> usize {
        let tables: usize = self.tables.iter().map(|table| table.rows.len()).sum();
        let mirror = self.mirror.as_ref().map_or(0, |one| one.files.len() + one.resyncs.len());
        let failover = self.failover.as_ref();
        let failover = failover.map_or(0, |one| one.pauses.len() + one.resyncs.len());
        tables + mirror + self.databases.len() + failover + self.idle.len() + self.memory.len()
    }

    /// The page, and how many rows of two revisions were compared in it.
    fn markdown(&self) -> (String, usize) {
        let Machine { processor, cores, memory_mib, kernel, load_before, disk, file_system, tools } =
            &self.machine;
        let mut page = format!(
            "# Speed: {}\n\nMade by `{}` (mode {}) at {}. {processor}, {cores} cores, {} GiB, \
             Linux {kernel}; load average {load_before} when it began. Everything (nodes, fio, disk) is on \
             this one machine: {file_system} on {disk}; {}. Figures are medians of the repeats, in brackets the smallest and the \
             largest: compare only inside one table.\n\n\
             CPU is the time of all server processes, in ms per 1 000 requests; *own* is that less what \
             the same requests cost fio on the disk itself, where the table has that. `x` is the ratio to the table's reference.\n",
            self.name,
            self.command,
            self.mode,
            self.revisions.join(" and "),
            memory_mib >> 10,
            tools.join(", ")
        );
        let mut compared = 0;
        let mut changes = |lines: Vec<Line>, page: &mut String| {
            compared += changes::text(&lines, &self.revisions, page);
        };
        if self.mode == "brief" {
            page.push_str(
                "\nA brief run: some rows are left out, each is measured for half a second, and nothing is warmed up before it (docs/bench.md).\n",
            );
        }
        parts_text(self, &mut page);
        for table in &self.tables {
            table_text(table, &self.revisions, &mut page);
            changes(table.lines(), &mut page);
        }
        if let Some(mirror) = &self.mirror {
            mirror_text(mirror, &mut page);
            changes(mirror.lines(), &mut page);
        }
        databases_text(&self.databases, &mut page);
        changes(self.databases.iter().map(Line::from).collect(), &mut page);
        if let Some(failover) = &self.failover {
            failover_text(failover, &mut page);
            changes(failover.lines(), &mut page);
        }
        idle_text(&self.idle, &mut page);
        changes(self.idle.iter().map(Line::from).collect(), &mut page);
        memory_text(&self.memory, &mut page);
        changes(self.memory.iter().map(Line::from).collect(), &mut page);
        targets_text(self, &mut page);
        (page, compared)
    }
}

const MEAN: fn(&Sample) -> f64 = |sample| sample.mean_us;
const P99: fn(&Sample) -> f64 = |sample| sample.p99_us;
const CPU: fn(&Sample) -> f64 = |sample| sample.cpu_ms;

/// A figure with its spread behind it, if there is one.
fn with_spread(figure: String, spread: String) -> String {
    if figure == "-" { figure } else { figure + &spread }
}

/// What the machine did besides, and how long everything took.
fn parts_text(report: &Report, page: &mut String) {
    write!(
        page,
        "\nAll of it took {:.0} s. Other programs than those that were measured, and measure, used so much of one core meanwhile; where that is \
         more than 5 %, do not believe times.\n\n\
         | part | seconds | busy before it, % of all cores | a disk, % of the time | waited for that, s | others, % of a core |\n|---|--:|--:|--:|--:|--:|\n",
        report.seconds
    )
    .expect("a string takes all");
    let optional = |percent: Option<f64>| percent.map_or("-".to_owned(), |one| format!("{one:.0}"));
    for Part { table, seconds, waited_seconds, busy_percent, disk_percent, others_percent } in
        &report.parts
    {
        let [busy, disk] = [*busy_percent, *disk_percent].map(optional);
        writeln!(
            page,
            "| {table} | {seconds:.0} | {busy} | {disk} | {waited_seconds:.0} | {others_percent:.1} |"
        )
        .expect("a string takes all");
    }
    if !report.left_out.is_empty() {
        write!(page, "\nNot run: {}.\n", report.left_out.join("; ")).expect("a string takes all");
    }
}

fn table_text(table: &Table, revisions: &[String], page: &mut String) {
    write!(
        page,
        "\n## {}\n\nAnswers {}. Reference: {}.\n\n\
         | workload | subject | jobs | IOPS | x | MB/s | mean µs | p50 | p99 | p99.9 | CPU | own | calls |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        table.title, table.seed, table.reference
    )
    .expect("a string takes all");
    for row in &table.rows {
        let of = |what: fn(&Sample) -> f64| row.repeats.median(what);
        let (low, high) = row.repeats.range(|sample| sample.iops);
        let ratio = reference(table, row, revisions).map_or("-".to_owned(), |other| {
            format!("{:.2}", of(|sample| sample.iops) / other.repeats.median(|sample| sample.iops))
        });
        let optional =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let spread = |what: fn(&Sample) -> f64, digits: usize| {
            let (low, high) = row.repeats.range(what);
            format!(" ({low:.digits$}..{high:.digits$})")
        };
        // Of what is only sent nobody knows when it came.
        let latency = |what: fn(&Sample) -> f64| match of(what) {
            us if us > 0.0 => format!("{us:.0}"),
            _ => "-".to_owned(),
        };
        writeln!(
            page,
            "| {} | {} | {} | {:.0} ({low:.0}..{high:.0}) | {ratio} | {:.0} | {} | {} | {} | {} | {} \
             | {} | {} |",
            row.workload.name,
            row.subject,
            row.threads,
            of(|sample| sample.iops),
            of(|sample| sample.mb_per_second),
            with_spread(latency(MEAN), spread(MEAN, 0)),
            latency(|sample| sample.p50_us),
            with_spread(latency(P99), spread(P99, 0)),
            latency(|sample| sample.p999_us),
            with_spread(optional(Some(of(CPU)).filter(|&ms| ms > 0.0)), spread(CPU, 2)),
            optional(row.own_ms),
            optional(row.system_calls),
        )
        .expect("a string takes all");
    }
    steady_text(table, page);
    for note in &table.notes {
        write!(page, "\n{note}\n").expect("a string takes all");
    }
}

/// By how much the requests of the second half of a row's time may differ from those of the first.
const STEADY: f64 = 0.1;

/// Which rows did not come to a steady state; nothing where halves were not counted apart.
fn steady_text(table: &Table, page: &mut String) {
    let counted: Vec<(&Row, f64)> = table
        .rows
        .iter()
        .filter_map(|row| row.repeats.second_half().map(|ratio| (row, ratio)))
        .collect();
    if counted.is_empty() {
        return;
    }
    let others = counted.iter().filter(|(_, ratio)| (ratio - 1.0).abs() > STEADY);
    let others: Vec<String> = others
        .map(|(row, ratio)| {
            format!("{}, {}, jobs {}: {ratio:.2}", row.workload.name, row.subject, row.threads)
        })
        .collect();
    write!(
        page,
        "\nSteady: in {} of {} rows the second half of a measurement had as many requests as the first, to {:.0} % (medians of the repeats)",
        counted.len() - others.len(),
        counted.len(),
        STEADY * 100.0
    )
    .expect("a string takes all");
    if !others.is_empty() {
        write!(page, "; in parts of the first: {}", others.join("; ")).expect("a string takes all");
    }
    page.push_str(".\n");
}

/// The same workload on the table's reference: of the row's own revision, where the reference is one of our own subjects.
fn reference<'a>(table: &'a Table, row: &Row, revisions: &[String]) -> Option<&'a Row> {
    let suffixes = revisions.iter().map(|label| suffix(label));
    let own = suffixes.into_iter().find(|suffix| row.subject.ends_with(suffix));
    let own = own.map(|suffix| format!("{}{suffix}", table.reference));
    table.rows.iter().find(|other| {
        (other.subject == table.reference || own.as_ref() == Some(&other.subject))
            && other.workload == row.workload
            && other.threads == row.threads
    })
}

fn failover_text(failover: &Failover, page: &mut String) {
    page.push_str(
        "\n## Table 6, fail-over and recovery\n\nThe longest that a request of a client waited, whose own node \
         lives (4K random write, depth 16, in memory).\n\n| event | pause ms | |\n|---|--:|---|\n",
    );
    for pause in &failover.pauses {
        let (low, high) = pause.range_ms;
        writeln!(page, "| {} | {:.0} | {low:.0}..{high:.0} |", pause.event, pause.pause_ms)
            .expect("a string takes all");
    }
    resync_text(&failover.resyncs, page);
    if !failover.resyncs.is_empty() {
        page.push_str("\nScattered blocks are written to the others while the replica's node is stopped in good order; in full runs 1 GiB of 4.\n");
    }
    if failover.disk_mib_per_second > 0.0 {
        let (speed, (low, high)) =
            (failover.disk_mib_per_second, failover.range_disk_mib_per_second);
        write!(page, "\nThe disk itself writes {speed:.0} MiB/s ({low:.0}..{high:.0}) while it reads as much (fio, 1 MiB, depth 16).\n")
            .expect("a string takes all");
    }
    let copy = failover.copy_mib_per_second.zip(failover.range_copy_mib_per_second);
    if let Some((speed, (low, high))) = copy {
        write!(page, "\n`nbdcopy` from file to file on the same disk: {speed:.0} MiB/s ({low:.0}..{high:.0}).\n")
            .expect("a string takes all");
    }
}

fn resync_text(resyncs: &[Resync], page: &mut String) {
    if resyncs.is_empty() {
        return;
    }
    page.push_str(
        "\n| resync | MiB sent | equal | seconds | MiB/s | longest stop ms | p99 µs without | with | x | IOPS without | with | a copy was made, % of the time |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for resync in resyncs {
        let (low, high) = resync.range_mib_per_second;
        write!(
            page,
            "| {} | {:.0} | {:.0} | {:.1} | {:.0} ({low:.0}..{high:.0}) | {:.0} | ",
            resync.kind,
            resync.copied_mib,
            resync.equal_mib,
            resync.seconds,
            resync.mib_per_second,
            resync.longest_stop_ms,
        )
        .expect("a string takes all");
        if resync.alone_p99_us > 0.0 {
            let (low, high) = resync.range_beside_p99_us;
            let (least, most) = resync.range_p99_ratio;
            writeln!(
                page,
                "{:.0} | {:.0} ({low:.0}..{high:.0}) | {:.2} ({least:.2}..{most:.2}) | {:.0} | {:.0} | {:.0} |",
                resync.alone_p99_us,
                resync.beside_p99_us,
                resync.p99_ratio,
                resync.alone_iops,
                resync.beside_iops,
                resync.copied_percent
            )
            .expect("a string takes all");
        } else {
            page.push_str("- | - | - | - | - | - |\n");
        }
    }
}

fn mirror_text(mirror: &Mirror, page: &mut String) {
    let Mirror { file_mib, requests, bytes, files, resyncs } = mirror;
    write!(
        page,
        "\nIn the first of these tables, and in what follows, every device does {requests} requests and {:.0} MB in a second, the nodes' and the one beside them. The volume of \
         two replicas goes on without its peer (`quorum = off`).\n\n\
         A file of {file_mib} MiB, written in order and synced, at the same place each time, on ext4; on volumes and nbdkit's \
         disk by nbdfuse and a loop device.\n\n\
         | subject | MB/s | | x | primary, % of a core | its peer |\n|---|--:|---|--:|--:|--:|\n",
        float(*bytes) / 1e6
    )
    .expect("a string takes all");
    let reference = files.first().map_or(0.0, |first| first.mb_per_second);
    for Written { subject, mb_per_second, range, primary_percent, secondary_percent } in files {
        let optional =
            |value: &Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
        writeln!(
            page,
            "| {subject} | {mb_per_second:.1} | {:.1}..{:.1} | {:.3} | {} | {} |",
            range.0,
            range.1,
            mb_per_second / reference.max(1e-9),
            optional(primary_percent),
            optional(secondary_percent)
        )
        .expect("a string takes all");
    }
    resync_text(resyncs, page);
}

fn databases_text(databases: &[Transactions], page: &mut String) {
    if databases.is_empty() {
        return;
    }
    page.push_str(
        "\n## Table 5, databases\n\nAnswers DRBD's posts on databases: less than 5 % below the local disk. All of it by NBD over a Unix \
         socket, nbdfuse, a loop device, ext4; four clients. First all copies lie on the one disk of this machine; then each on a \
         device of its own, limited to as many requests in a second as the others.\n\n\
         CPU is the time of the nodes, or of nbdkit, in ms for 1 000 transactions; calls are theirs for one.\n\n\
         | benchmark | subject | transactions/s | | x | mean ms | p99 | CPU | calls | a copy was made, % of the time |\n\
         |---|---|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for one in databases {
        let Transactions {
            benchmark, subject, reference, per_second, range, copied_percent, ..
        } = one;
        let plain =
            databases.iter().find(|one| one.benchmark == *benchmark && one.subject == *reference);
        let plain = plain.map_or(0.0, |plain| plain.per_second).max(1e-9);
        writeln!(
            page,
            "| {benchmark} | {subject} | {per_second:.0} | {:.0}..{:.0} | {:.2} | {:.2} | {:.2} ({:.2}..{:.2}) | {:.0} | {} | {copied_percent:.0} |",
            range.0,
            range.1,
            per_second / plain,
            one.mean_ms,
            one.p99_ms,
            one.range_p99_ms.0,
            one.range_p99_ms.1,
            one.cpu_ms,
            one.system_calls.map_or("-".to_owned(), |calls| format!("{calls:.0}")),
        )
        .expect("a string takes all");
    }
}

fn idle_text(idle: &[Idle], page: &mut String) {
    if idle.is_empty() {
        return;
    }
    page.push_str(
        "\n## Idle volumes\n\nMemory of the node that holds most, without a volume and with all; processor time while \
         nobody asks for anything.\n\n| subject | volumes | MiB without | with | KiB per volume | % of a core |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    for Idle { subject, volumes, empty_mib, full_mib, core_percent, range_core_percent, .. } in idle
    {
        let (low, high) = range_core_percent;
        let each = (full_mib - empty_mib) * 1024.0 / f64::from((*volumes).max(1));
        writeln!(
            page,
            "| {subject} | {volumes} | {empty_mib:.0} | {full_mib:.0} | {each:.0} | {core_percent:.1} ({low:.1}..{high:.1}) |"
        )
        .expect("a string takes all");
    }
}

fn memory_text(memory: &[Loaded], page: &mut String) {
    if memory.is_empty() {
        return;
    }
    page.push_str(
        "\n## Memory under load\n\nMiB of each node of three, by the kernel's count: before there is a volume, after a client wrote and read \
         one (4K at depth 64, then 128K at depth 16), and the most that it held at any time until then. It may hold 64, 16 for the open \
         volume, and 32 for each TiB and absent peer.\n\n\
         | subject | without a volume | after the load | most | | may hold |\n|---|--:|--:|--:|---|--:|\n",
    );
    for Loaded { subject, empty_mib, resident_mib, highest_mib, range_mib, limit_mib, .. } in memory
    {
        let (low, high) = range_mib;
        writeln!(
            page,
            "| {subject} | {empty_mib:.1} | {resident_mib:.1} | {highest_mib:.1} | {low:.1}..{high:.1} | {limit_mib} |"
        )
        .expect("a string takes all");
    }
}

fn targets_text(report: &Report, page: &mut String) {
    let (reached, others): (Vec<_>, Vec<_>) = targets::of(report)
        .into_iter()
        .partition(|one| one.value.is_some() || report.asked.contains(&one.table));
    // Of two revisions the rows bear the names of both.
    if reached.is_empty() || report.revisions.len() > 1 {
        return;
    }
    page.push_str("\n## Targets\n\n| what | target | here | |\n|---|--:|--:|---|\n");
    for one in reached {
        let verdict = one.verdict();
        let targets::Reached { what, bound, value, range, .. } = one;
        let value = value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let range = range.map_or_else(String::new, |(low, high)| format!(" ({low:.2}..{high:.2})"));
        writeln!(page, "| {what} | {bound} | {value}{range} | {verdict} |")
            .expect("a string takes all");
    }
    let mut tables: Vec<&str> = others.iter().map(|one| one.table).collect();
    tables.dedup();
    if !tables.is_empty() {
        write!(
            page,
            "\nThis run was not asked for the tables of other targets: {}.\n",
            tables.join(", ")
        )
        .expect("a string takes all");
    }
}

#[cfg(test)]
mod tests;

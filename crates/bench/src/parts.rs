//! The parts of a run, one after the other: each is made in a directory of its own, kept, and written down at once.
//!
//! Always: a part that fails takes nothing with it but itself. What was made before it is written already, what comes after it is made,
//! and the run ends with a failure. Its files go with it, but for what its programs wrote to their logs, which is kept if it failed.
//!
//! Not here: what is measured in which part (`main` lists them), what is free on the disk (`space`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::neighbours::Neighbours;
use crate::outcome::{Outcome, complain, left_out, not_run};
use crate::report::Report;
use crate::run::Run;
use crate::space;
use crate::stop;

/// Below a part's directory: logs of clusters that are gone.
const LOGS: &str = "logs";

/// What comes of a run.
pub(crate) struct Parts<'a> {
    run: &'a Run,
    /// Where the report lies.
    results: &'a Path,
    neighbours: Neighbours,
    begun: Instant,
    report: Report,
    /// Names of the parts that failed.
    failed: Vec<&'static str>,
    /// How many were begun.
    count: u32,
}

impl Parts<'_> {
    /// None yet; the report knows all that is known beforehand.
    pub(crate) fn new<'a>(run: &'a Run, results: &'a Path, report: Report) -> Parts<'a> {
        let (neighbours, begun) = (Neighbours::new(&run.scratch), Instant::now());
        // Of a run of this name before.
        let _ = fs::remove_dir_all(kept(results, &report.name));
        Parts { run, results, neighbours, begun, report, failed: Vec::new(), count: 0 }
    }

    /// Makes a part, if its table is wanted, and keeps what came of it; its name begins with the table's, and may go on behind a comma.
    /// Fails only if the run is told to stop, or nothing can be written.
    pub(crate) fn make<T>(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&Run) -> Outcome<T>,
        keep: impl FnOnce(&mut Report, T),
    ) -> Outcome<()> {
        if !self.report.asked.contains(&table(name)) {
            return Ok(());
        }
        self.count += 1;
        let run = &self.run.below(&self.count.to_string())?;
        if let Some(why) = space::is_short(name, run) {
            not_run(format!("{name}: {why}"));
        } else {
            // What only shows rows shows them on a busy machine, too.
            let waits = !run.pace.sanity;
            let (made, part) = self.neighbours.part(name, waits, || make(run));
            self.report.parts.push(part);
            match made {
                Ok(made) => keep(&mut self.report, made),
                Err(why) => self.fails(name, &why, run)?,
            }
        }
        if let Err(error) = fs::remove_dir_all(&run.scratch) {
            complain(format!("{}: {error}", run.scratch.display()));
        }
        self.write()
    }

    /// The report, written; and what is to be said if a part failed.
    pub(crate) fn end(mut self) -> Outcome<(Report, Option<String>)> {
        self.write()?;
        let logs = kept(self.results, &self.report.name);
        let failed = (!self.failed.is_empty())
            .then(|| format!("failed: {}; logs are in {}", self.failed.join("; "), logs.display()));
        Ok((self.report, failed))
    }

    /// Notes that a part failed, and keeps what may say why; fails if that is so because the run is to stop.
    fn fails(&mut self, name: &'static str, why: &str, run: &Run) -> Outcome<()> {
        if let Err(told) = stop::check() {
            not_run(format!("{name}, and what comes after it: {told}"));
            self.write()?;
            let page = self.results.join(format!("{}.md", self.report.name));
            return Err(format!("{told}: what was made before {name} is in {}", page.display()));
        }
        complain(format!("{name}: {why}"));
        not_run(format!("{name}: failed: {}", why.lines().next().unwrap_or_default()));
        self.failed.push(name);
        let place = kept(self.results, &self.report.name).join(name.replace(", ", "-"));
        if let Err(error) = keep_logs(why, &run.scratch, &place) {
            complain(format!("{}: {error}", place.display()));
        }
        Ok(())
    }

    fn write(&mut self) -> Outcome<()> {
        self.report.seconds = self.begun.elapsed().as_secs_f64();
        self.report.left_out = left_out();
        self.report.write(self.results).map(drop)
    }
}

/// The table that a part is of.
pub(crate) fn table(part: &'static str) -> &'static str {
    part.split_once(", ").map_or(part, |(table, _)| table)
}

/// Where logs of parts that failed are kept.
fn kept(results: &Path, name: &str) -> PathBuf {
    results.join(format!("{name}-logs"))
}

/// Where logs of this directory's programs lie when it is gone.
fn logs_of(directory: &Path) -> Option<PathBuf> {
    Some(directory.parent()?.join(LOGS).join(directory.file_name()?))
}

/// Lays a log aside, from a directory of a part's that is about to be removed: if the part fails it is kept under this name. What does not go
/// is left where it is.
pub(crate) fn lay_aside(directory: &Path, log: &Path, name: &str) {
    let Some(place) = logs_of(directory) else { return };
    if log.is_file() && fs::create_dir_all(&place).is_ok() {
        let _ = fs::rename(log, place.join(name));
    }
}

/// Copies what a part's programs wrote to where it is kept: logs that were laid aside, and those that lie in its directory.
fn keep_logs(why: &str, scratch: &Path, place: &Path) -> std::io::Result<()> {
    fs::create_dir_all(place)?;
    fs::write(place.join("why.txt"), format!("{why}\n"))?;
    copy_logs(scratch, place)?;
    for directory in fs::read_dir(scratch.join(LOGS)).into_iter().flatten().flatten() {
        let below = place.join(directory.file_name());
        fs::create_dir_all(&below)?;
        copy_logs(&directory.path(), &below)?;
    }
    Ok(())
}

fn copy_logs(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_file() && name.to_string_lossy().ends_with("log") {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! `cargo xtask campaign`: simulated histories at one state of the code, however many commands and hours they take.
//!
//! A campaign of a million histories takes longer than anybody wants to wait for one command. This one runs the
//! simulator in slices, by turns with quorum and without, each history twice, and adds what each printed to
//! `docs/campaign.md` at once: it may be ended at any time, and goes on where the last one ended, at seeds that were not
//! used yet, until there are enough histories and hours in all commands together. What counts is
//! the code that the simulator is made of: when that has changed, the counts begin anew. Code that is not committed
//! has no campaign.
//!
//! Always: when a million histories are to be there, by its share of them, each kind has taken every rare branch but those
//! that the simulator excuses, with a reason, has met every fault that its plans draw, and what those come to (`due`); and
//! none ever took a branch that only a bug leads to. Else the campaign has failed.
//!
//! Not here: histories and what is checked in them (`crates/sim`), single runs and their record (`record`).

mod due;

use crate::project::Project;
use crate::seeds::Failures;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: &str = "docs/campaign.md";

/// What the simulator's histories depend on: not unit tests, nor the words of the admin socket, nor what else uses the simulated
/// world (planted bugs, the check of the register, scenarios).
const SOURCES: &[&str] = &[
    "crates/base/src",
    "crates/wire/src",
    "crates/replica/src",
    "crates/sim/src",
    ":(exclude,glob)crates/**/tests.rs",
    ":(exclude,glob)crates/**/tests/**",
    ":(exclude)crates/sim/src/alarm.rs",
    ":(exclude,glob)crates/sim/src/alarm/**",
    ":(exclude)crates/sim/src/check.rs",
    ":(exclude,glob)crates/sim/src/check/**",
    ":(exclude)crates/sim/src/scenario.rs",
    ":(exclude,glob)crates/sim/src/scenario/**",
    ":(exclude)crates/wire/src/admin.rs",
    ":(exclude)crates/wire/src/admin/codes.rs",
    ":(exclude)crates/wire/src/admin/hex.rs",
    ":(exclude)crates/wire/src/admin/status.rs",
];

/// A kind of histories.
struct Mode {
    /// The words after `cargo xtask sim`.
    words: &'static str,
    with_quorum: bool,
    /// So many histories are one slice.
    slice: u64,
    /// Which marks they need not reach, by the names that `sim marks` gives to the kinds of its reasons.
    excuses: [&'static str; 3],
}

const MODES: [Mode; 2] = [
    Mode { words: "", with_quorum: true, slice: 6000, excuses: ["bug", "rare", "with-quorum"] },
    Mode {
        words: " --quorum-off",
        with_quorum: false,
        slice: 3000,
        excuses: ["bug", "rare", "without-quorum"],
    },
];

/// So many histories, of both kinds by their shares, must have reached every mark that is not excused.
const MARKS_DUE: u64 = RUNS_DUE;

/// A campaign that was not told how many goes on until there are so many histories of the present code, ...
const RUNS_DUE: u64 = 1_000_000;

/// ... and they took so many seconds of a machine that does nothing else, in all commands together.
const SECONDS_DUE: u64 = 4 * 3600;

/// Before a reason, in a line of the page.
const BECAUSE: &str = "  # ";

/// The first seed of a campaign of which nothing is written.
const FIRST_SEED: u64 = 1_000_000_000;

const HEAD: &str = "\
# The campaign

Simulated histories at one state of the code that they depend on, in all the commands that were given since it changed last:
`cargo xtask campaign` goes on where the last one ended, and writes this page. Each history is made twice, to see that both are
the same. Seconds are of the whole machine: the processor time that the simulator used, divided by the cores.
";

/// What all slices of one kind came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    /// The seed that comes next.
    next: u64,
    /// Runs, steps, simulated seconds, answers, faults: the simulator's own summary.
    summary: [u64; 5],
    failures: u64,
    /// What happened, and how often.
    counts: BTreeMap<String, u64>,
}

/// Of marks that a kind of histories need not reach why, and those that only a bug leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Excuses {
    reasons: BTreeMap<String, String>,
    bugs: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Campaign {
    /// The state of the code.
    sources: String,
    /// Seconds that a machine was the simulator's: its processor time, divided by the cores. What others use beside it is not
    /// counted.
    seconds: u64,
    tallies: [Tally; 2],
}

/// Goes on with the campaign until there are `runs` histories (none: `RUNS_DUE`, that took `SECONDS_DUE`), or `hours` have
/// passed in this command (none: however long it takes); the first failure ends it.
pub(crate) fn campaign(project: &Project, runs: Option<u64>, hours: Option<f64>) -> bool {
    let limit = match hours.map(length).transpose() {
        Ok(limit) => limit.unwrap_or(Duration::MAX),
        Err(problem) => {
            eprintln!("campaign: {problem}");
            return crate::steps::not_run();
        }
    };
    let sources = match sources(project) {
        Ok(sources) => sources,
        Err(problem) => {
            eprintln!("campaign: {problem}");
            return crate::steps::not_run();
        }
    };
    let Some(simulator) = simulator(project, &sources) else {
        return crate::steps::not_run();
    };
    let Some(excuses) = excuses(&simulator) else {
        eprintln!("campaign: the simulator does not say which marks it excuses");
        return crate::steps::not_run();
    };
    let path = project.root.join(PAGE);
    let mut campaign = Campaign::of(&fs::read_to_string(&path).unwrap_or_default(), &sources);
    let begun = Instant::now();
    while campaign.failures() == 0 && !campaign.is_long_enough(runs) && begun.elapsed() < limit {
        for mode in 0..MODES.len() {
            match campaign.slice(&simulator, mode) {
                Ok(failures) => failures.keep(project),
                Err(problem) => {
                    eprintln!("campaign: {problem}");
                    return crate::steps::not_run();
                }
            }
            if let Err(error) = fs::write(&path, campaign.page(&excuses)) {
                eprintln!("campaign: {}: {error}", path.display());
                return crate::steps::not_run();
            }
        }
        println!("{} histories in {} s", campaign.runs(), campaign.seconds);
    }
    let marks = campaign.marks_amiss(&excuses);
    for line in &marks {
        println!("FAIL  marks: {line}");
    }
    let failures = campaign.failures() + marks.len() as u64;
    println!("{{\"runs\":{},\"failures\":{failures}}}", campaign.runs());
    failures == 0
}

/// So many hours, if that is more than nothing.
fn length(hours: f64) -> Result<Duration, String> {
    let length = Duration::try_from_secs_f64(hours * 3600.0);
    let length = length.ok().filter(|length| !length.is_zero());
    length.ok_or_else(|| format!("{hours} hours are no length of time"))
}

/// What the simulator says of marks that need not be reached.
fn excuses(simulator: &Path) -> Option<[Excuses; 2]> {
    let output = Command::new(simulator).arg("marks").output().ok()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    (output.status.success() && !printed.is_empty())
        .then(|| MODES.map(|mode| Excuses::of(&printed, mode.excuses)))
}

/// The simulator's slice of one kind, from this seed on, each history twice.
fn command(simulator: &Path, mode: &Mode, from: u64) -> Command {
    let mut command = Command::new(simulator);
    command.args(["--twice", "--runs", &mode.slice.to_string(), "--from", &from.to_string()]);
    command.args(mode.words.split_whitespace()).stdout(Stdio::piped());
    command
}

/// Builds the simulator; where the toolchain has `llvm-profdata` (`rustup component add llvm-tools`), by what a few runs of
/// it did, for this processor: a seventh more histories a second. None if it cannot be built.
fn simulator(project: &Project, sources: &str) -> Option<PathBuf> {
    let folder = project.root.join("target/guided");
    let build = |flags: &[&str]| {
        let mut cargo = project.cargo(&["build", "--profile", "campaign", "--package", "sim"]);
        if !flags.is_empty() {
            cargo
                .env("CARGO_TARGET_DIR", &folder)
                .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        }
        crate::steps::run(&mut cargo)
    };
    let Some(tool) = llvm_profdata(project) else {
        eprintln!("campaign: without `rustup component add llvm-tools` it is a seventh slower");
        return build(&[]).then(|| project.root.join("target/campaign/sim"));
    };
    let (raw, profile) = (folder.join("raw"), folder.join(format!("{sources}.profdata")));
    let simulator = folder.join("campaign/sim");
    if !profile.exists() {
        // Of an earlier state, or of a command that was ended.
        let _ = fs::remove_dir_all(&raw);
        let runs = |words: &[&str]| {
            crate::steps::run(Command::new(&simulator).args(words).stdout(Stdio::null()))
        };
        let merge = || {
            crate::steps::run(Command::new(&tool).arg("merge").arg("-o").arg(&profile).arg(&raw))
        };
        let is_made = build(&[&format!("-Cprofile-generate={}", raw.display())])
            && runs(&["--runs", "200"])
            && runs(&["--runs", "100", "--quorum-off"])
            && merge();
        if !is_made {
            return None;
        }
    }
    let flags = [format!("-Cprofile-use={}", profile.display()), "-Ctarget-cpu=native".to_owned()];
    build(&flags.each_ref().map(String::as_str)).then_some(simulator)
}

/// The toolchain's tool for profiles, if it is there.
fn llvm_profdata(project: &Project) -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(&project.root).args(["--print", "target-libdir"]);
    let printed = rustc.output().ok()?.stdout;
    let libraries = PathBuf::from(String::from_utf8(printed).ok()?.trim());
    let tool = libraries.parent()?.join("bin/llvm-profdata");
    tool.exists().then_some(tool)
}

/// Names the state of the code that histories depend on; an error if it is not committed.
fn sources(project: &Project) -> Result<String, String> {
    let changed = git(project, &["status", "--porcelain", "--"], SOURCES, "")?;
    if !changed.is_empty() {
        return Err(format!("commit these first, so that one can say what was run:\n{changed}"));
    }
    let files = git(project, &["ls-files", "--stage", "--"], SOURCES, "")?;
    let name = git(project, &["hash-object", "--stdin"], &[], &files)?;
    Ok(name.trim().to_owned())
}

/// What git says to these words about these paths, with `input` to read.
fn git(project: &Project, words: &[&str], paths: &[&str], input: &str) -> Result<String, String> {
    let run = || {
        let mut child = Command::new("git")
            .current_dir(&project.root)
            .args(words)
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = run().map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            Err(format!("git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
        }
    }
}

impl Campaign {
    /// What the page says, if it speaks of these sources; else nothing but which seeds are used.
    fn of(page: &str, sources: &str) -> Campaign {
        let mut campaign = Campaign { sources: sources.to_owned(), ..Campaign::default() };
        let mut sections = page.split("\n## ");
        let head = sections.next().unwrap_or_default();
        let is_same = head.contains(&format!("Sources {sources},"));
        for (tally, section) in campaign.tallies.iter_mut().zip(sections) {
            let mut old = Tally::default();
            old.add(section);
            old.next = word_after(section, "the next is ").unwrap_or(FIRST_SEED);
            *tally = if is_same { old } else { Tally { next: old.next, ..Tally::default() } };
        }
        for (mode, tally) in MODES.iter().zip(&mut campaign.tallies) {
            tally.next = tally.next.max(FIRST_SEED);
            // The simulator says nothing of what it did not count.
            for name in due::counted(mode.with_quorum) {
                tally.counts.entry(name.to_owned()).or_default();
            }
        }
        if is_same {
            campaign.seconds = word_after(head, "cores: ").unwrap_or_default();
        }
        campaign
    }

    fn runs(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.summary[0]).sum()
    }

    fn failures(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.failures).sum()
    }

    /// It has `runs` histories; none: what a whole campaign has.
    fn is_long_enough(&self, runs: Option<u64>) -> bool {
        match runs {
            Some(runs) => self.runs() >= runs,
            None => self.runs() >= RUNS_DUE && self.seconds >= SECONDS_DUE,
        }
    }

    /// Runs a slice of one kind; what failed in it.
    fn slice(&mut self, simulator: &Path, mode: usize) -> Result<Failures, String> {
        let (mode, tally) = (&MODES[mode], &mut self.tallies[mode]);
        let (used, from) = (processor_time(), tally.next);
        let output = command(simulator, mode, from)
            .output()
            .map_err(|error| format!("the simulator: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if !tally.add(&printed) {
            return Err(format!("the simulator ended with {} and no summary", output.status));
        }
        if !output.status.success() {
            println!("{printed}");
        }
        tally.next = from + mode.slice;
        self.seconds += machine_seconds(used, processor_time());
        Ok(Failures::of(&printed))
    }

    /// Marks that were to be reached by now and were not, and those that only a bug leads to.
    fn marks_amiss(&self, excuses: &[Excuses; 2]) -> Vec<String> {
        let mut amiss = Vec::new();
        for ((mode, tally), excuses) in MODES.iter().zip(&self.tallies).zip(excuses) {
            let are_due = tally.summary[0] >= mode.due();
            for (mark, count) in &tally.counts {
                if *count > 0 && excuses.bugs.contains(mark) {
                    amiss.push(format!("sim{} reached, by a bug: {mark}", mode.words));
                } else if *count == 0 && are_due && !excuses.reasons.contains_key(mark) {
                    amiss.push(format!("sim{} never reached: {mark}", mode.words));
                }
            }
        }
        amiss
    }

    fn page(&self, excuses: &[Excuses; 2]) -> String {
        let cores = cores();
        let mut text = format!(
            "{HEAD}\nSources {}, {cores} cores: {} s, {} histories, {} failures.\n",
            self.sources,
            self.seconds,
            self.runs(),
            self.failures()
        );
        for ((mode, tally), excuses) in MODES.iter().zip(&self.tallies).zip(excuses) {
            let first = tally.next - tally.summary[0];
            let _ = write!(
                text,
                "\n## `cargo xtask sim{}`\n\nFrom seed {first}; the next is {}.\n\n```text\n{}```\n",
                mode.words,
                tally.next,
                tally.lines(mode, excuses)
            );
        }
        text
    }
}

impl Mode {
    /// So many histories of this kind are its share of `MARKS_DUE`.
    fn due(&self) -> u64 {
        MARKS_DUE * self.slice / MODES.iter().map(|mode| mode.slice).sum::<u64>()
    }
}

impl Tally {
    /// Adds what the simulator, or a section of the page, says; false if that was no whole summary.
    fn add(&mut self, printed: &str) -> bool {
        let mut is_whole = false;
        for line in printed.lines() {
            if let Some((count, name)) = line.trim().split_once("  ") {
                let name = name.split(BECAUSE).next().unwrap_or(name);
                let count = if count == "never" { Ok(0) } else { count.parse::<u64>() };
                if let Ok(count) = count {
                    *self.counts.entry(name.to_owned()).or_default() += count;
                }
            } else if let Some(rest) = line.strip_prefix("{\"runs\":") {
                let failures =
                    rest.split_once("\"failures\":").and_then(|(_, rest)| rest.strip_suffix('}'));
                self.failures +=
                    failures.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
                is_whole = true;
            } else if line.contains(" s simulated, ") {
                let numbers =
                    line.split(", ").filter_map(|part| part.split(' ').next()?.parse::<u64>().ok());
                for (sum, number) in self.summary.iter_mut().zip(numbers) {
                    *sum += number;
                }
            }
        }
        is_whole
    }

    /// As the simulator says it.
    fn lines(&self, mode: &Mode, excuses: &Excuses) -> String {
        let mut text = String::new();
        for (name, count) in &self.counts {
            if *count > 0 {
                let _ = writeln!(text, "{count:>10}  {name}");
                continue;
            }
            let due = format!("not yet: {} histories must have", mode.due());
            let why = excuses.reasons.get(name).unwrap_or(&due);
            let _ = writeln!(text, "     never  {name}{BECAUSE}{why}");
        }
        let [runs, steps, seconds, answers, faults] = self.summary;
        let _ = writeln!(
            text,
            "{runs} runs, {steps} steps, {seconds} s simulated, {answers} answers, {faults} faults"
        );
        let _ = writeln!(text, "{{\"runs\":{runs},\"failures\":{}}}", self.failures);
        text
    }
}

impl Excuses {
    /// Of what `sim marks` printed, what is about the kinds `of`.
    fn of(printed: &str, of: [&str; 3]) -> Excuses {
        let mut excuses = Excuses::default();
        for line in printed.lines() {
            let mut parts = line.split('\t');
            let (Some(kind), Some(mark), Some(why)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if !of.contains(&kind) {
                continue;
            }
            excuses.reasons.insert(mark.to_owned(), why.to_owned());
            if kind == "bug" {
                excuses.bugs.insert(mark.to_owned());
            }
        }
        excuses
    }
}

/// Cores that this process may use; at least one.
fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// Processor time that ended children of this process have used, in the hundredths of a second that Linux tells (`proc_pid_stat(5)`,
/// `cutime` and `cstime`); none where it does not tell.
fn processor_time() -> Option<u64> {
    children_time(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn children_time(stat: &str) -> Option<u64> {
    // What comes before is the name, which may have blanks and parentheses in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// What that is of all cores, in seconds; 0 if it is not known.
fn machine_seconds(before: Option<u64>, after: Option<u64>) -> u64 {
    let (Some(before), Some(after)) = (before, after) else { return 0 };
    after.saturating_sub(before) / 100 / cores()
}

/// The number that follows `words`.
fn word_after(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{
        Campaign, Excuses, FIRST_SEED, MARKS_DUE, MODES, RUNS_DUE, SECONDS_DUE, children_time,
        command, cores, due, length, machine_seconds, processor_time,
    };
    use std::path::Path;
    use std::time::Duration;

    const PRINTED: &str = "         7  fault: crash\n     never  a rare branch\n\
        3 runs, 50 steps, 8 s simulated, 90 answers, 7 faults\n{\"runs\":3,\"failures\":1}\n";

    fn excuses() -> [Excuses; 2] {
        let printed = "bug\ta lie\tnobody lies\nrare\ta wonder\tthere are few\n\
            without-quorum\ta rare branch\tit has no trees\n";
        MODES.map(|mode| Excuses::of(printed, mode.excuses))
    }

    fn grown() -> Campaign {
        let mut campaign = Campaign::of("", "abc-def");
        assert!(campaign.tallies[0].add(PRINTED) && campaign.tallies[0].add(PRINTED));
        assert!(campaign.tallies[1].add(PRINTED));
        campaign.tallies[0].next += 6;
        campaign.seconds = 12;
        campaign
    }

    #[test]
    fn a_page_says_what_was_counted_and_is_read_again() {
        let campaign = grown();
        let page = campaign.page(&excuses());
        assert!(page.contains("        14  fault: crash\n"), "{page}");
        assert!(page.contains("     never  a rare branch  # not yet: 666666 histories"), "{page}");
        assert!(page.contains("     never  fault: pause  # not yet: 333333 histories"), "{page}");
        assert!(page.contains("     never  a rare branch  # it has no trees\n"), "{page}");
        assert!(page.contains("12 s, 9 histories, 3 failures"), "{page}");
        assert!(
            page.contains(&format!("From seed {FIRST_SEED}; the next is {}.", FIRST_SEED + 6)),
            "{page}"
        );
        assert_eq!(Campaign::of(&page, "abc-def"), campaign);
    }

    #[test]
    fn other_sources_begin_anew_at_seeds_not_used_yet() {
        let campaign = Campaign::of(&grown().page(&excuses()), "abc-xyz");
        assert_eq!((campaign.runs(), campaign.failures(), campaign.seconds), (0, 0, 0));
        assert_eq!(campaign.tallies[0].next, FIRST_SEED + 6);
        assert!(campaign.tallies[0].counts.values().all(|&count| count == 0));
    }

    /// As if each kind had counted all that is due of it, once.
    fn reached() -> Campaign {
        let mut campaign = grown();
        for (mode, tally) in MODES.iter().zip(&mut campaign.tallies) {
            for name in due::counted(mode.with_quorum) {
                tally.counts.insert(name.to_owned(), 1);
            }
        }
        campaign
    }

    #[test]
    fn a_mark_that_is_not_excused_is_due_of_each_kind_after_its_share_of_a_million_histories() {
        let mut campaign = reached();
        campaign.tallies[0].summary[0] = MODES[0].due() - 1;
        assert!(campaign.marks_amiss(&excuses()).is_empty());
        campaign.tallies[0].summary[0] += 1;
        let amiss = campaign.marks_amiss(&excuses());
        assert_eq!(amiss, ["sim never reached: a rare branch"]);
        campaign.tallies[0].counts.insert("a rare branch".to_owned(), 1);
        campaign.tallies[0].counts.insert("a wonder".to_owned(), 0);
        assert!(campaign.marks_amiss(&excuses()).is_empty());
        let shares: u64 = MODES.iter().map(super::Mode::due).sum();
        assert!((MARKS_DUE - 1..=MARKS_DUE).contains(&shares), "of thirds one is lost");
    }

    #[test]
    fn a_fault_that_never_struck_is_missed_though_the_simulator_does_not_print_it() {
        let mut campaign = reached();
        campaign.tallies[1].summary[0] = MODES[1].due();
        assert!(campaign.marks_amiss(&excuses()).is_empty());
        campaign.tallies[1].counts.remove("fault: crash");
        campaign.tallies[1].counts.remove("sim: a side was given up");
        // As the next command reads it.
        let campaign = Campaign::of(&campaign.page(&excuses()), "abc-def");
        let amiss = campaign.marks_amiss(&excuses());
        let missed = |what: &str| format!("sim --quorum-off never reached: {what}");
        assert_eq!(amiss, [missed("fault: crash"), missed("sim: a side was given up")]);
    }

    #[test]
    fn a_mark_that_only_a_bug_leads_to_fails_a_campaign_of_any_length() {
        let mut campaign = grown();
        campaign.tallies[1].counts.insert("a lie".to_owned(), 2);
        let amiss = campaign.marks_amiss(&excuses());
        assert_eq!(amiss, ["sim --quorum-off reached, by a bug: a lie"]);
    }

    #[test]
    fn a_campaign_goes_on_until_it_has_both_a_million_histories_and_four_hours() {
        let mut campaign = grown();
        assert!(!campaign.is_long_enough(None));
        campaign.tallies[1].summary[0] = RUNS_DUE;
        assert!(!campaign.is_long_enough(None));
        campaign.seconds = SECONDS_DUE;
        assert!(campaign.is_long_enough(None));
        campaign.tallies[1].summary[0] = RUNS_DUE - 7;
        assert!(!campaign.is_long_enough(None));
    }

    #[test]
    fn a_campaign_that_is_told_how_many_histories_ends_with_them_however_long_they_took() {
        let campaign = grown();
        assert!(campaign.is_long_enough(Some(9)) && !campaign.is_long_enough(Some(10)));
    }

    #[test]
    fn what_others_use_beside_a_campaign_is_not_counted() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 10 20 0 0 11 12 1300 500 20 0 1 0 99";
        assert_eq!(children_time(stat), Some(1800));
        assert_eq!(children_time("7 (short) S 1"), None);
        assert_eq!(machine_seconds(Some(1000), Some(1000 + 700 * cores())), 7);
        assert_eq!(machine_seconds(None, Some(1000)), 0);
        assert!(processor_time().is_some(), "Linux tells it");
    }

    #[test]
    fn hours_that_are_no_length_of_time_are_refused() {
        assert_eq!(length(0.5), Ok(Duration::from_secs(1800)));
        for hours in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(length(hours).is_err(), "{hours}");
        }
    }

    #[test]
    fn each_history_of_both_kinds_is_made_twice_from_the_seed_that_comes_next() {
        let words = |mode| {
            let command = command(Path::new("sim"), &MODES[mode], 12);
            command.get_args().map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(0), "--twice --runs 6000 --from 12");
        assert_eq!(words(1), "--twice --runs 3000 --from 12 --quorum-off");
    }

    #[test]
    fn a_simulator_that_died_in_the_middle_counts_for_nothing() {
        let mut campaign = grown();
        assert!(!campaign.tallies[0].add("         7  fault: crash\n"));
    }
}

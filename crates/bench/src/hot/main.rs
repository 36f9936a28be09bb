//! The gate on counts: what a request costs in code that decides and in code that turns it into bytes, in
//! instructions, counted by valgrind's callgrind, and in allocations, counted by this program's allocator,
//! against counts that were written down.
//!
//! `hot NAME COUNT` carries out one path so often. `hot check` runs each path twice, with different counts, so
//! that the start cancels out, and fails if its instructions have grown by more than [`TOLERANCE_PERCENT`], or
//! its allocations at all; `hot write` writes the counts down.
//!
//! Always: no clock, no thread, no random number that is not from a fixed seed, so that the same program
//! counts the same each time. Counts of another compiler or architecture are not compared, and that is said;
//! where the gate must not be left open ([`MUST_COMPARE`]) it is a failure.
//!
//! Not here: what the kernel does for a request, and time (`bench` measures both).

mod bytes;
mod clients;
mod shards;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use base::Op;
use serde::{Deserialize, Serialize};
use shards::Shards;

/// How much more a path may cost than was written down: a look at every peer, or one more allocation, is
/// more; what the compiler inlines elsewhere is less.
const TOLERANCE_PERCENT: f64 = 10.0;

/// Requests of the shorter run; the longer one has twice as many.
const COUNT: u64 = 2048;

/// Where this environment variable is set to anything, whatever keeps counts from being compared is a failure. Continuous integration sets it.
const MUST_COMPARE: &str = "LOCKSTEP_COUNTS_MUST_COMPARE";

/// Its numbers make an allocation and its end some fifty instructions dearer.
#[global_allocator]
static ALLOCATOR: sys::Counted = sys::Counted;

/// A path: its name, what it is, and how it is carried out so often.
struct HotPath {
    name: &'static str,
    what: &'static str,
    run: fn(u64),
}

const PATHS: &[HotPath] = &[
    HotPath {
        name: "replica-write",
        what: "4 KiB write, depth 64: the decisions of a primary and two replicas",
        run: |count| Shards::new(3, 3).run(Op::Write, count),
    },
    HotPath {
        name: "replica-write-behind",
        what: "the same while one of the three is absent",
        run: |count| Shards::new(3, 2).run(Op::Write, count),
    },
    HotPath {
        name: "replica-read",
        what: "4 KiB read at depth 64 from the primary's own disk",
        run: |count| Shards::new(3, 3).run(Op::Read, count),
    },
    HotPath {
        name: "wire-write",
        what: "frames of a 4 KiB write and its answer, with checksums, written and read",
        run: bytes::frames,
    },
    HotPath {
        name: "nbd-write",
        what: "a client's 4 KiB write: request and reply",
        run: bytes::client_writes,
    },
    HotPath {
        name: "nbd-read",
        what: "a client's 4 KiB read: request and reply",
        run: bytes::client_reads,
    },
    HotPath {
        name: "nbd-connection-write",
        what: "a 4 KiB write from a client's bytes to the shards and back",
        run: |count| clients::by_nbd(true, count),
    },
    HotPath {
        name: "nbd-connection-read",
        what: "the same of a read",
        run: |count| clients::by_nbd(false, count),
    },
    HotPath {
        name: "nvme-connection-write",
        what: "the same of a write by NVMe",
        run: |count| clients::by_nvme(true, count),
    },
    HotPath {
        name: "nvme-connection-read",
        what: "the same of a read by NVMe",
        run: |count| clients::by_nvme(false, count),
    },
];

/// What was written down.
#[derive(Debug, Deserialize, Serialize)]
struct Counts {
    /// As `rustc --version` says.
    compiler: String,
    /// The processor's architecture.
    architecture: String,
    /// Instructions for each request.
    instructions: BTreeMap<String, u64>,
    /// Allocations for a thousand requests, what has to grow included.
    allocations_per_1000: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check", file] => check(Path::new(file)).map(|verdict| {
            verdict.passes(std::env::var_os(MUST_COMPARE).is_some_and(|word| !word.is_empty()))
        }),
        ["write", file] => write(Path::new(file)),
        [name, count] => carry_out(name, count),
        _ => Err("hot check FILE | hot write FILE | hot NAME COUNT".to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("hot: {why}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(name: &str, count: &str) -> Result<bool, String> {
    let path = PATHS.iter().find(|path| path.name == name).ok_or(format!("no path {name}"))?;
    let count = count.parse().map_err(|error| format!("{count}: {error}"))?;
    (path.run)(count);
    Ok(true)
}

/// What came of the comparison.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    Passed,
    Failed,
    NotCompared,
}

impl Verdict {
    /// Whether that is good enough, where counts must be compared or need not.
    fn passes(self, must_compare: bool) -> bool {
        match self {
            Verdict::Passed => true,
            Verdict::Failed => false,
            Verdict::NotCompared => {
                if must_compare {
                    eprintln!("counts: FAILED: counts must be compared here ({MUST_COMPARE})");
                }
                !must_compare
            }
        }
    }
}

/// Compares with what was written down.
fn check(file: &Path) -> Result<Verdict, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let known: Counts =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let Some(found) = measure() else { return Ok(Verdict::NotCompared) };
    if (&found.compiler, &found.architecture) != (&known.compiler, &known.architecture) {
        not_run(&format!(
            "{} is of {} on {}, here is {} on {}: count anew with the compiler that is to be used from now on, `cargo xtask counts --write`",
            file.display(),
            known.compiler,
            known.architecture,
            found.compiler,
            found.architecture
        ));
        return Ok(Verdict::NotCompared);
    }
    let mut passed = true;
    for path in PATHS {
        passed &= compare(path, &found, &known);
    }
    if !passed {
        println!(
            "A path takes over {TOLERANCE_PERCENT} % more instructions than {} says, or more allocations. Mend it, or if \
             it is worth it: cargo xtask counts --write",
            file.display()
        );
    }
    Ok(if passed { Verdict::Passed } else { Verdict::Failed })
}

/// Says what a path costs now and did before; whether that is no more.
fn compare(path: &HotPath, found: &Counts, known: &Counts) -> bool {
    let of = |counts: &Counts| {
        let instructions = counts.instructions.get(path.name).copied()?;
        Some((instructions, counts.allocations_per_1000.get(path.name).copied()?))
    };
    let (now, allocations_now) = of(found).expect("every path was measured");
    let Some((before, allocations_before)) = of(known) else {
        println!("{:<22} {now:>7} FAILED: nothing is written down for it", path.name);
        return false;
    };
    let change = percent(now, before);
    let passed = change <= TOLERANCE_PERCENT && allocations_now <= allocations_before;
    let word = if passed { "ok" } else { "FAILED" };
    println!(
        "{:<22} {before:>7} {now:>7} {change:+6.1} %  {allocations_before:>5} {allocations_now:>5}  {word:<6}  {}",
        path.name, path.what
    );
    passed
}

/// Nothing was compared. That is no failure, unless it is said to be one, and looks like one, so that it is not overlooked where nobody
/// reads what passes.
fn not_run(why: &str) {
    println!("NOT RUN: instruction counts: {why}");
    eprint!("{}", loud(why));
}

fn loud(why: &str) -> String {
    let line = "*".repeat(72);
    format!(
        "counts: {line}\ncounts: NOTHING WAS COMPARED: the gate on instruction counts is open\ncounts: {why}\ncounts: {line}\n"
    )
}

fn percent(now: u64, before: u64) -> f64 {
    let number = |count: u64| u32::try_from(count).map_or(f64::INFINITY, f64::from);
    (number(now) / number(before).max(1.0) - 1.0) * 100.0
}

fn write(file: &Path) -> Result<bool, String> {
    let Some(found) = measure() else { return Ok(false) };
    let mut text = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
    text.push('\n');
    std::fs::write(file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    print!("{text}");
    Ok(true)
}

/// Counts every path; says why not if that cannot be.
fn measure() -> Option<Counts> {
    let told = |program: &str| {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    if told("valgrind").is_none() {
        not_run("no valgrind on this machine");
        return None;
    }
    let compiler = told("rustc").unwrap_or_else(|| "an unknown compiler".to_owned());
    let (mut instructions, mut allocations_per_1000) = (BTreeMap::new(), BTreeMap::new());
    for path in PATHS {
        match (instructions_of(path), allocations_of(path)) {
            (Ok(count), Ok(allocations)) => {
                instructions.insert(path.name.to_owned(), count / COUNT);
                allocations_per_1000.insert(path.name.to_owned(), allocations * 1000 / COUNT);
            }
            (Err(why), _) | (_, Err(why)) => {
                not_run(&format!("{}: {why}", path.name));
                return None;
            }
        }
    }
    let architecture = std::env::consts::ARCH.to_owned();
    Some(Counts { compiler, architecture, instructions, allocations_per_1000 })
}

/// What [`COUNT`] more requests take.
fn instructions_of(path: &HotPath) -> Result<u64, String> {
    more(count(path.name, COUNT)?, count(path.name, 2 * COUNT)?)
}

/// The same, of memory.
fn allocations_of(path: &HotPath) -> Result<u64, String> {
    let count = |requests| sys::Counted::calls(|| (path.run)(requests)).1;
    more(count(COUNT), count(2 * COUNT))
}

fn more(short: u64, long: u64) -> Result<u64, String> {
    long.checked_sub(short).ok_or_else(|| "twice as many requests cost less".to_owned())
}

/// Instructions of one run of this program under callgrind.
fn count(name: &str, requests: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args([name, &requests.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    collected(&said)
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("valgrind: {}\n{said}", output.status))
}

/// The count in what callgrind says at its end.
fn collected(said: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once("Collected :")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{COUNT, HotPath, PATHS, Verdict, allocations_of, collected, loud};

    #[test]
    fn every_path_can_be_carried_out() {
        for path in PATHS {
            (path.run)(128);
        }
    }

    #[test]
    fn an_open_gate_is_said_in_lines_that_stand_out() {
        let said = loud("no valgrind");
        assert!(said.lines().all(|line| line.starts_with("counts: ")), "{said}");
        assert!(said.contains("NOTHING WAS COMPARED") && said.contains("no valgrind"), "{said}");
    }

    #[test]
    fn an_open_gate_is_a_failure_only_where_counts_must_be_compared() {
        let passes = |verdict: Verdict| [false, true].map(|must| verdict.passes(must));
        assert_eq!(passes(Verdict::Passed), [true, true]);
        assert_eq!(passes(Verdict::Failed), [false, false]);
        assert_eq!(passes(Verdict::NotCompared), [true, false]);
    }

    #[test]
    fn one_allocation_for_each_request_is_counted() {
        let run = |count| (0..count).for_each(|number| drop(std::hint::black_box(vec![number])));
        let path = HotPath { name: "", what: "", run };
        assert_eq!(allocations_of(&path), Ok(COUNT));
    }

    #[test]
    fn the_count_of_callgrind_is_read() {
        let said = "==7== Events    : Ir\n==7== Collected : 61443\n==7== \n";
        assert_eq!(collected(said), Some(61_443));
        assert_eq!(collected("==7== no such thing"), None);
    }
}

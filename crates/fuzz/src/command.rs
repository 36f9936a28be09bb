//! The fuzzer's command line: `cargo xtask fuzz [TARGET…] [--seconds N | --minutes N | --runs N] [--seed S]`.
//!
//! Each target runs for its time with a seed that is printed; an input that fails is written to a file, and the
//! line behind it says how to try it again. The last line is `{"runs":N,"failures":N}`. A target that only a program's own
//! test reaches is run by that test, which is handed the same words.
//!
//! Not here: what is judged (the library's other parts).

use crate::targets::{ELSEWHERE, Elsewhere, TARGETS};
use crate::{Target, corpus, run, try_one};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The variable of the environment by which a program's own test is handed these words.
const WORDS: &str = "FUZZ_WORDS";

/// Inputs that such a test judges when it is handed none.
const TEST_RUNS: u64 = 4_000;

const HELP: &str = "\
fuzz [TARGET…] [--seconds N | --minutes N | --runs N] [--seed S] [--out FOLDER] [--keep]
fuzz TARGET --replay FILE
fuzz --list

Feeds every parser of bytes from outside (or those named) with damaged input: 10 seconds each unless said
otherwise. The same seed and number of runs try the same inputs. An input that fails is written to FOLDER
(the system's folder for temporary files); add it to crates/fuzz/corpus once the fault is mended.
`--keep` makes that corpus anew from what the run met.";

/// A parser that needs longer for one input hangs.
const STUCK: Duration = Duration::from_secs(20);

struct Arguments<'a> {
    targets: Vec<&'a Target>,
    elsewhere: Vec<&'static Elsewhere>,
    limit: Duration,
    runs: u64,
    seed: u64,
    out: PathBuf,
    replay: Option<PathBuf>,
    keep: bool,
}

/// What the program does with its words.
#[must_use]
pub fn fuzz(words: &[String]) -> ExitCode {
    match parse(words) {
        Ok(Some(arguments)) => ended(act(&arguments, words)),
        Ok(None) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("fuzz: {problem}\n\n{HELP}");
            not_run()
        }
    }
}

/// The test of a program's own target: what the words say that its test is handed, or a few thousand inputs, always the same.
///
/// # Panics
/// If an input does harm; or, where nothing was said, hardly any two have another outcome: no more than `outcomes` in all.
pub fn judge_all(target: &Target, outcomes: usize) {
    if let Ok(words) = std::env::var(WORDS) {
        let words: Vec<String> = words.split('\n').map(str::to_owned).collect();
        let mut arguments = options(&words).expect("the fuzzer understood them").0;
        arguments.targets.push(target);
        let (runs, failures) = act(&arguments, &[]);
        println!("{}", last_line(runs, failures));
        assert_eq!(failures, 0, "said above");
        return;
    }
    let report = run(target, 1, &mut |number, _| number < TEST_RUNS);
    if let Some(found) = report.found {
        panic!("{}: {:?}", found.why, String::from_utf8_lossy(&found.input));
    }
    assert!(report.outcomes > outcomes, "{} outcomes: too few to mean much", report.outcomes);
}

/// What is printed last.
fn last_line(runs: u64, failures: u64) -> String {
    format!("{{\"runs\":{runs},\"failures\":{failures}}}")
}

/// Prints that, of inputs and failures.
fn ended((runs, failures): (u64, u64)) -> ExitCode {
    println!("{}", last_line(runs, failures));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The last line where nothing could be run, which is a failure.
fn not_run() -> ExitCode {
    ended((0, 1))
}

fn parse(words: &[String]) -> Result<Option<Arguments<'static>>, String> {
    if words.iter().any(|word| ["--help", "-h"].contains(&word.as_str())) {
        println!("{HELP}");
        return Ok(None);
    }
    if words.iter().any(|word| word == "--list") {
        TARGETS.iter().for_each(|target| println!("{:<18} {}", target.name, target.what));
        for other in ELSEWHERE {
            println!("{:<18} {} (a test of {})", other.name, other.what, other.package);
        }
        return Ok(None);
    }
    let (mut arguments, names) = options(words)?;
    for name in &names {
        let target = TARGETS.iter().find(|target| target.name == name);
        let other = ELSEWHERE.iter().find(|other| other.name == name);
        if target.is_none() && other.is_none() {
            return Err(format!("there is no target {name}"));
        }
        arguments.targets.extend(target);
        arguments.elsewhere.extend(other);
    }
    if names.is_empty() {
        arguments.targets = TARGETS.to_vec();
        arguments.elsewhere = ELSEWHERE.iter().collect();
    }
    Ok(Some(arguments))
}

/// What is said beside names, and the names.
fn options<'a>(words: &[String]) -> Result<(Arguments<'a>, Vec<String>), String> {
    let mut arguments = Arguments {
        targets: Vec::new(),
        elsewhere: Vec::new(),
        limit: Duration::from_secs(10),
        runs: u64::MAX,
        seed: sys::random_u64(),
        out: std::env::temp_dir(),
        replay: None,
        keep: false,
    };
    let mut names = Vec::new();
    let mut words = words.iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seconds" => arguments.limit = Duration::from_secs(number(value()?)?),
            "--minutes" => arguments.limit = Duration::from_secs(60 * number(value()?)?),
            "--runs" => {
                arguments.runs = number(value()?)?;
                arguments.limit = Duration::MAX;
            }
            "--seed" => arguments.seed = number(value()?)?,
            "--out" => arguments.out = value()?.into(),
            "--keep" => arguments.keep = true,
            "--replay" => arguments.replay = Some(value()?.into()),
            option if option.starts_with('-') => return Err(format!("there is no {option}")),
            name => names.push(name.to_owned()),
        }
    }
    Ok((arguments, names))
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no number"))
}

/// Runs what was asked for; inputs, and how many of them failed.
fn act(arguments: &Arguments<'_>, words: &[String]) -> (u64, u64) {
    let (mut runs, mut failures) = (0, 0);
    let mut count = |(more, failed)| {
        runs += more;
        failures += failed;
    };
    for target in &arguments.targets {
        count(match &arguments.replay {
            Some(path) => replay(target, path),
            None => one(arguments, target),
        });
    }
    for other in &arguments.elsewhere {
        count(tested(other, words));
    }
    (runs, failures)
}

/// Runs one target.
fn one(arguments: &Arguments<'_>, target: &Target) -> (u64, u64) {
    let start = Instant::now();
    let watched = watch_over(target.name, &arguments.out);
    let report = run(target, arguments.seed, &mut |number, input| {
        if let Ok(mut now) = watched.lock() {
            *now = (Instant::now(), input.to_vec());
        }
        number < arguments.runs && start.elapsed() < arguments.limit
    });
    drop(watched);
    println!(
        "{:<16} {:>10} inputs, {:>5} outcomes, {:>6.1} s, seed {:#x}",
        target.name,
        report.runs,
        report.outcomes,
        start.elapsed().as_secs_f64(),
        arguments.seed
    );
    if arguments.keep {
        match corpus::write(target.name, &report.firsts) {
            Ok(path) => println!("      {}", path.display()),
            Err(error) => eprintln!("fuzz: {error}"),
        }
    }
    let Some(found) = report.found else { return (report.runs, 0) };
    println!("FAIL  {}: {}", target.name, found.why);
    tell(target.name, &arguments.out, &found.input);
    (report.runs, 1)
}

/// Tries an input again.
fn replay(target: &Target, path: &Path) -> (u64, u64) {
    let tried = std::fs::read(path)
        .map_err(|error| (0, format!("{}: {error}", path.display())))
        .and_then(|input| try_one(target, &input).map_err(|why| (1, why)));
    match tried {
        Ok(_) => (1, 0),
        Err((runs, why)) => {
            println!("FAIL  {}: {why}", target.name);
            (runs, 1)
        }
    }
}

/// Has a program's own test run its target by these words: all that was said, but the names.
fn tested(other: &Elsewhere, words: &[String]) -> (u64, u64) {
    let is_name = |word: &String| {
        TARGETS.iter().any(|target| target.name == word)
            || ELSEWHERE.iter().any(|other| other.name == word)
    };
    // A test runs in the folder of its package.
    let mut words: Vec<String> = words.iter().filter(|word| !is_name(word)).cloned().collect();
    for at in 1..words.len() {
        if ["--replay", "--out"].contains(&words[at - 1].as_str())
            && let Ok(path) = std::path::absolute(&words[at])
        {
            words[at] = path.to_string_lossy().into_owned();
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--quiet", "--package", other.package, "--bin", other.package]);
    command.args(["--", "--nocapture", other.test]).env(WORDS, words.join("\n"));
    match heard(&mut command, other.name) {
        Ok((true, Some(counts))) => counts,
        Ok((_, counts)) => {
            let (runs, failures) = counts.unwrap_or_default();
            println!("FAIL  {}: test {} of {}", other.name, other.test, other.package);
            (runs, failures.max(1))
        }
        Err(error) => {
            println!("FAIL  {}: cargo: {error}", other.name);
            (0, 1)
        }
    }
}

/// Runs a test and prints what it says of its target; whether it passed, and what it counted.
fn heard(command: &mut Command, name: &str) -> std::io::Result<(bool, Option<(u64, u64)>)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut counted = None;
    for line in BufReader::new(child.stdout.take().expect("it was asked for")).lines() {
        let line = line?;
        match counts(&line) {
            None if line.contains(name) => println!("{line}"),
            None => {}
            counts => counted = counts,
        }
    }
    Ok((child.wait()?.success(), counted))
}

/// What a last line says.
fn counts(line: &str) -> Option<(u64, u64)> {
    let inner = line.strip_prefix("{\"runs\":")?.strip_suffix('}')?;
    let (runs, failures) = inner.split_once(",\"failures\":")?;
    Some((runs.parse().ok()?, failures.parse().ok()?))
}

/// Writes an input to a file and says how to try it again.
fn tell(target: &str, out: &Path, input: &[u8]) {
    let path = out.join(format!("fuzz-{target}-{}.bin", std::process::id()));
    match std::fs::write(&path, input) {
        Ok(()) => println!("      replay: cargo xtask fuzz {target} --replay {}", path.display()),
        Err(error) => println!("      {}: {error}", path.display()),
    }
}

/// A thread that ends the program if one input takes too long, and says which.
fn watch_over(target: &'static str, out: &Path) -> Arc<Mutex<(Instant, Vec<u8>)>> {
    let watched = Arc::new(Mutex::new((Instant::now(), Vec::new())));
    let (weak, out) = (Arc::downgrade(&watched), out.to_path_buf());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(STUCK / 10);
            let Some(watched) = weak.upgrade() else { return };
            let Ok(now) = watched.lock() else { return };
            if now.0.elapsed() > STUCK {
                println!("FAIL  {target}: an input takes longer than {} s", STUCK.as_secs());
                tell(target, &out, &now.1);
                println!("{}", last_line(1, 1));
                std::process::abort();
            }
        }
    });
    watched
}

#[cfg(test)]
mod tests {
    use super::{counts, last_line, options};

    #[test]
    fn what_a_test_elsewhere_says_last_is_counted() {
        assert_eq!(counts(&last_line(7, 2)), Some((7, 2)));
        assert_eq!(counts("node-file 7 inputs"), None);
    }

    #[test]
    fn words_are_names_and_options() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (arguments, names) = options(&words("frames --runs 7 --seed 0x2a log")).expect("good");
        assert_eq!((arguments.runs, arguments.seed), (7, 42));
        assert_eq!(names, ["frames", "log"]);
        assert!(options(&words("--frames")).is_err());
        assert!(options(&words("frames --runs")).is_err());
        assert!(options(&[String::new()]).is_ok_and(|(_, names)| names.is_empty()));
    }
}

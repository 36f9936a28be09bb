//! The fuzzer's command line: `cargo xtask fuzz [TARGET…] [--seconds N | --minutes N | --runs N] [--seed S]`.
//!
//! Each target runs for its time with a seed that is printed; an input that fails is written to a file, and the
//! line behind it says how to try it again. The last line is `{"runs":N,"failures":N}`.
//!
//! Not here: what is judged (the library).

use fuzz::targets::{ELSEWHERE, TARGETS};
use fuzz::{Target, run, try_one};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

struct Arguments {
    targets: Vec<&'static Target>,
    limit: Duration,
    runs: u64,
    seed: u64,
    out: PathBuf,
    replay: Option<PathBuf>,
    keep: bool,
}

fn main() -> ExitCode {
    match parse() {
        Ok(Some(arguments)) => act(&arguments),
        Ok(None) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("fuzz: {problem}\n\n{HELP}");
            not_run()
        }
    }
}

/// The last line where nothing could be run, which is a failure.
fn not_run() -> ExitCode {
    println!("{{\"runs\":0,\"failures\":1}}");
    ExitCode::FAILURE
}

fn parse() -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        targets: Vec::new(),
        limit: Duration::from_secs(10),
        runs: u64::MAX,
        seed: sys::random_u64(),
        out: std::env::temp_dir(),
        replay: None,
        keep: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(None);
            }
            "--list" => {
                TARGETS.iter().for_each(|target| println!("{:<18} {}", target.name, target.what));
                for (name, what, how) in ELSEWHERE {
                    println!("{name:<18} {what}: {how}");
                }
                return Ok(None);
            }
            "--seconds" => arguments.limit = Duration::from_secs(number(&value()?)?),
            "--minutes" => arguments.limit = Duration::from_secs(60 * number(&value()?)?),
            "--runs" => {
                arguments.runs = number(&value()?)?;
                arguments.limit = Duration::MAX;
            }
            "--seed" => arguments.seed = number(&value()?)?,
            "--out" => arguments.out = value()?.into(),
            "--keep" => arguments.keep = true,
            "--replay" => arguments.replay = Some(value()?.into()),
            name => {
                let target = TARGETS.iter().find(|target| target.name == name);
                arguments.targets.push(target.ok_or_else(|| format!("there is no target {name}"))?);
            }
        }
    }
    if arguments.targets.is_empty() {
        arguments.targets = TARGETS.to_vec();
    }
    Ok(Some(arguments))
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no number"))
}

fn act(arguments: &Arguments) -> ExitCode {
    if let Some(path) = &arguments.replay {
        return replay(arguments, path);
    }
    let (mut runs, mut failures) = (0, 0);
    for target in &arguments.targets {
        let start = Instant::now();
        let watched = watch_over(target.name, &arguments.out);
        let report = run(target, arguments.seed, &mut |number, input| {
            if let Ok(mut now) = watched.lock() {
                *now = (Instant::now(), input.to_vec());
            }
            number < arguments.runs && start.elapsed() < arguments.limit
        });
        drop(watched);
        runs += report.runs;
        println!(
            "{:<16} {:>10} inputs, {:>5} outcomes, {:>6.1} s, seed {:#x}",
            target.name,
            report.runs,
            report.outcomes,
            start.elapsed().as_secs_f64(),
            arguments.seed
        );
        if arguments.keep {
            match fuzz::corpus::write(target.name, &report.firsts) {
                Ok(path) => println!("      {}", path.display()),
                Err(error) => eprintln!("fuzz: {error}"),
            }
        }
        if let Some(found) = report.found {
            failures += 1;
            println!("FAIL  {}: {}", target.name, found.why);
            tell(target.name, &arguments.out, &found.input);
        }
    }
    println!("{{\"runs\":{runs},\"failures\":{failures}}}");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(arguments: &Arguments, path: &Path) -> ExitCode {
    let input = match std::fs::read(path) {
        Ok(input) => input,
        Err(error) => {
            eprintln!("fuzz: {}: {error}", path.display());
            return not_run();
        }
    };
    let mut failures = 0;
    for target in &arguments.targets {
        if let Err(why) = try_one(target, &input) {
            failures += 1;
            println!("FAIL  {}: {why}", target.name);
        }
    }
    println!("{{\"runs\":{},\"failures\":{failures}}}", arguments.targets.len());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
                println!("{{\"runs\":1,\"failures\":1}}");
                std::process::abort();
            }
        }
    });
    watched
}

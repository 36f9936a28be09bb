//! The simulator's command line.
//!
//! `sim --runs 1000` runs a campaign; `sim --seed 0x7f` runs one seed; `sim alarm` plants known bugs
//! in a copy of the project and sees whether they are found. The last line is JSON.

use sim::campaign::{self, Limits, STEPS_MAX};
use sim::check::Effort;
use sim::feature::{Choice, Feature};
use sim::plan::Plan;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
sim [--runs N] [--from SEED] [--hours H] [--failures N]   many seeds
sim --seed SEED [--until STEP] [--trace] [--shrink]       one seed
    --only NAME,NAME…   exactly these features; `none`: the plain plan
    --with NAME,NAME…   these too, each in one of two seeds
    --without NAME,…    never these
sim --quorum-off ...                                      likewise, of a resource without quorum
    --marks             fail if a rare branch is never taken
sim scenarios [NAME…]                                     stories one can read: does each come true?
sim alarm [NAME…] [--runs N]                              planted bugs: is each found?
sim alarm --check [NAME…]                                 does each still apply and build?
sim check [NAME…] [--deep]                                every schedule near the plain one
sim check NAME… --trace                                   the plain one
";

struct Arguments {
    runs: u64,
    from: u64,
    seed: Option<u64>,
    until: u64,
    trace: bool,
    shrink: bool,
    deep: bool,
    check: bool,
    failures: usize,
    time: Option<Duration>,
    choice: Choice,
    marks: bool,
    words: Vec<String>,
}

fn parse() -> Result<Arguments, String> {
    let mut found = Arguments {
        runs: 1000,
        from: 1,
        seed: None,
        until: STEPS_MAX,
        trace: false,
        shrink: false,
        deep: false,
        check: false,
        failures: 10,
        time: None,
        choice: Choice::default(),
        marks: false,
        words: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if let "--only" | "--with" | "--without" = word.as_str() {
            let names = features(&words.next().unwrap_or_default())?;
            match word.as_str() {
                "--only" => found.choice.only = Some(names),
                "--with" => found.choice.with = names,
                _ => found.choice.without = names,
            }
            continue;
        }
        let mut number =
            || words.next().as_deref().and_then(number).ok_or(format!("{word}: which?"));
        match word.as_str() {
            "--runs" => found.runs = number()?,
            "--from" => found.from = number()?,
            "--seed" => found.seed = Some(number()?),
            "--until" => found.until = number()?,
            "--failures" => found.failures = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--hours" => {
                found.time = Some(Duration::from_secs(3600 * number()?));
                found.runs = u64::MAX;
            }
            "--seconds" => found.time = Some(Duration::from_secs(number()?)),
            "--marks" => found.marks = true,
            "--trace" => found.trace = true,
            "--shrink" => found.shrink = true,
            "--quorum-off" => found.choice.quorum_off = true,
            "--deep" => found.deep = true,
            "--check" => found.check = true,
            "--help" | "-h" => return Err(String::new()),
            option if option.starts_with('-') => return Err(format!("{option} is no option")),
            _ => found.words.push(word),
        }
    }
    Ok(found)
}

fn features(text: &str) -> Result<BTreeSet<Feature>, String> {
    let names = text.split(',').filter(|name| !name.is_empty() && *name != "none");
    names
        .map(|name| {
            let known = || Feature::names().collect::<Vec<_>>().join(", ");
            Feature::find(name).ok_or_else(|| format!("{name} is none of {}", known()))
        })
        .collect()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if arguments.words.first().is_some_and(|word| word == "alarm") {
        return alarm(&arguments);
    }
    campaign::catch_panics();
    if arguments.words.first().is_some_and(|word| word == "scenarios") {
        return scenarios(&arguments);
    }
    if arguments.words.first().is_some_and(|word| word == "check") {
        if arguments.trace {
            sim::check::show(&arguments.words[1..]);
            return ExitCode::SUCCESS;
        }
        let effort = if arguments.deep { Effort::Deep } else { Effort::Quick };
        let passed = sim::check::check(&arguments.words[1..], effort);
        return if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

fn alarm(arguments: &Arguments) -> ExitCode {
    let names = &arguments.words[1..];
    let outcome = match arguments.check {
        true => sim::alarm::check(names),
        false => sim::alarm::alarm(names, arguments.runs),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("alarm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn scenarios(arguments: &Arguments) -> ExitCode {
    match sim::scenario::run_all(&arguments.words[1..], arguments.trace) {
        Ok((runs, failures)) => {
            println!("{{\"runs\":{runs},\"failures\":{failures}}}");
            if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("scenarios: {error}");
            ExitCode::FAILURE
        }
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let mut plan = Plan::chosen(seed, &arguments.choice);
    if arguments.trace {
        println!("{plan:#?}");
    }
    if arguments.shrink {
        let report = campaign::run(&plan, arguments.until, false);
        if let Some(failure) = report.failure {
            plan = campaign::shrink(&plan, &failure);
        }
    }
    let report = campaign::run(&plan, arguments.until, arguments.trace);
    println!(
        "seed {seed:#x}: {} steps, {} s, {} answers, {} faults, hash {:#018x}",
        report.steps,
        report.time / sim::queue::SECOND,
        report.answered,
        report.faults.values().sum::<u64>(),
        report.hash
    );
    match &report.failure {
        Some(failure) => {
            for fault in campaign::faults(&plan) {
                println!("      {fault}");
            }
            explain(&plan, failure);
            println!("{{\"runs\":1,\"failures\":1}}");
            ExitCode::FAILURE
        }
        None => {
            println!("{{\"runs\":1,\"failures\":0}}");
            ExitCode::SUCCESS
        }
    }
}

fn explain(plan: &Plan, failure: &sim::world::Failure) {
    let seed = plan.seed;
    let names: Vec<&str> = plan.features.iter().map(|feature| feature.name()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(",") };
    println!("FAIL  {}: {}", failure.checker, failure.text);
    println!(
        "      seed {seed:#x}  step {}  t={} ms",
        failure.step,
        failure.at / sim::queue::MILLI
    );
    let step = failure.step;
    let off = plan.options.quorum == wire::Quorum::Off;
    let mode = if off { "--quorum-off".to_owned() } else { format!("--only {names}") };
    println!("replay: cargo xtask sim {mode} --seed {seed:#x} --until {step} --trace");
}

fn many(arguments: &Arguments) -> ExitCode {
    let limits = Limits {
        from: arguments.from,
        runs: arguments.runs,
        time: arguments.time,
        failures: arguments.failures,
        choice: arguments.choice.clone(),
    };
    let outcome = campaign::campaign(&limits);
    for (kind, count) in &outcome.faults {
        println!("{count:>10}  fault: {kind}");
    }
    for (mark, count) in &outcome.marks {
        println!("{count:>10}  {mark}");
    }
    let missed: Vec<&&str> =
        sim::marks::MARKS.iter().filter(|mark| !outcome.marks.contains_key(**mark)).collect();
    for mark in &missed {
        println!("     never  {mark}");
    }
    println!(
        "{} runs, {} steps, {} s simulated, {} answers, {} faults",
        outcome.runs,
        outcome.steps,
        outcome.time / sim::queue::SECOND,
        outcome.answered,
        outcome.faults.values().sum::<u64>()
    );
    if let Some((seed, failure)) = outcome.failures.first() {
        let plan = campaign::shrink(&Plan::chosen(*seed, &limits.choice), failure);
        println!("faults that seed {seed:#x} needs:");
        for fault in campaign::faults(&plan) {
            println!("      {fault}");
        }
    }
    for (seed, failure) in &outcome.failures {
        explain(&Plan::chosen(*seed, &limits.choice), failure);
    }
    println!("{{\"runs\":{},\"failures\":{}}}", outcome.runs, outcome.failures.len());
    let all = missed.is_empty() || !arguments.marks;
    if outcome.failures.is_empty() && all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The simulator's command line.
//!
//! `sim --runs 1000` runs a campaign; `sim --seed 0x7f` runs one seed; `sim alarm` plants known bugs
//! in a copy of the project and sees whether they are found. The last line is JSON, also if nothing could be run.
//!
//! Not here: which words there are (`arguments`).

mod arguments;

use arguments::{Arguments, HELP};
use sim::campaign::{self, Limits};
use sim::check::Effort;
use sim::marks::Unreached;
use sim::plan::Plan;
use std::process::ExitCode;

/// Failures of a campaign of which it says which faults they need: that takes up to half a minute each.
const SHRUNK_MAX: usize = 3;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{HELP}");
            return not_run(2);
        }
    };
    match arguments.words.first().map(String::as_str) {
        Some("alarm") => return alarm(&arguments),
        Some("marks") => return marks(),
        _ => {}
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

/// The last line where nothing could be run, which is a failure.
fn not_run(code: u8) -> ExitCode {
    println!("{{\"runs\":0,\"failures\":1}}");
    ExitCode::from(code)
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
            not_run(1)
        }
    }
}

/// For whoever counts marks over several campaigns: which ones one need not reach, in which kind of plans, and why.
fn marks() -> ExitCode {
    for (mark, of, why) in sim::marks::UNREACHED {
        println!("{}\t{mark}\t{why}", of.name());
    }
    ExitCode::SUCCESS
}

fn scenarios(arguments: &Arguments) -> ExitCode {
    match sim::scenario::run_all(&arguments.words[1..], arguments.trace) {
        Ok((runs, failures)) => {
            println!("{{\"runs\":{runs},\"failures\":{failures}}}");
            if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("scenarios: {error}");
            not_run(1)
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
    let mode = if off { "--quorum-off " } else { "" };
    println!(
        "replay: cargo xtask sim {mode}--only {names} --seed {seed:#x} --until {step} --trace"
    );
}

fn many(arguments: &Arguments) -> ExitCode {
    let limits = Limits {
        from: arguments.from,
        runs: arguments.runs,
        time: arguments.time,
        failures: arguments.failures,
        choice: arguments.choice.clone(),
        twice: arguments.twice,
    };
    let outcome = campaign::campaign(&limits);
    for (kind, count) in &outcome.faults {
        println!("{count:>10}  fault: {kind}");
    }
    for (mark, count) in &outcome.marks {
        println!("{count:>10}  {mark}");
    }
    let reached = |mark: &str| outcome.marks.contains_key(mark);
    let off = limits.choice.quorum_off;
    let mut all = true;
    for mark in sim::marks::all() {
        match (reached(mark), sim::marks::excuse(mark, off)) {
            (true, Some((Unreached::Bug, why))) => {
                println!("       bug  {mark}: {why}");
                all = false;
            }
            (true, _) => {}
            (false, why) => {
                println!("     never  {mark}");
                all &= why.is_some();
            }
        }
    }
    println!(
        "{} runs, {} steps, {} s simulated, {} answers, {} faults",
        outcome.runs,
        outcome.steps,
        outcome.time / sim::queue::SECOND,
        outcome.answered,
        outcome.faults.values().sum::<u64>()
    );
    for (seed, failure) in outcome.failures.iter().take(SHRUNK_MAX) {
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
    if outcome.failures.is_empty() && (all || !arguments.marks) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

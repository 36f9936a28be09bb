//! `lockstep resource verify`: comparing all replicas.
//!
//! Always: who waits is told of the end though the primary, or the node that was asked, change meanwhile: how far it is
//! stands in the configuration, and whoever is primary goes on. That copies are the same is said only by who knows it.
//!
//! Not here: comparing (`replica`).

use std::time::Duration;

use wire::admin::{Command, Operation, VerifyProgress, Verifying, codes};

use super::{MOVES_MAX, at_primary, doer, done};
use crate::cli::Verify;
use crate::cluster::Cluster;
use crate::output::Style;
use crate::problem::{Problem, TIMED_OUT, UNREACHED};
use crate::unit::show_size;
use crate::view::{Views, Watching};

/// How long a node may take to refuse a verify that is not waited for.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// Between two attempts to begin where one did not come to it.
const HAND_OVER: Duration = Duration::from_millis(500);

/// Begins, goes on, or stops.
pub(super) fn verify(cluster: &Cluster, style: Style, wanted: &Verify) -> Result<(), Problem> {
    let name = wanted.name.as_str();
    let (ref cluster, views) = Views::one(cluster, name)?;
    if wanted.stop {
        at_primary(cluster, name, &Operation::StopVerify {})?;
        let words = "the comparison is stopped; `lockstep resource verify` goes on with it";
        return done(style, name, words);
    }
    let operation = Operation::Verify { anew: wanted.anew };
    if wanted.wait {
        let watching = Watching::begin(cluster, style, name, "compared", |view| {
            let at = view.verify.filter(|at| at.state == VerifyProgress::Running)?;
            Some((at.done_bytes, at.total_bytes))
        });
        let result = to_its_end(cluster, name, operation);
        watching.end();
        return told(style, name, result?);
    }
    let node = doer(cluster, &views, name)?;
    node.greet()?;
    let command = Command::Operation { resource: name.to_owned(), operation };
    match node.ask_within(command, REFUSAL_LIMIT) {
        Err(problem) if problem.is_kind(TIMED_OUT) => {
            done(style, name, "the comparison goes on in the background")
        }
        answer => {
            answer?;
            told(style, name, outcome(name, now(cluster, name)?)?)
        }
    }
}

/// Waits for the end. A node that was asked and tells no more is no end: the others are asked how it stands.
fn to_its_end(cluster: &Cluster, name: &str, wanted: Operation) -> Result<Verifying, Problem> {
    let before = now(cluster, name)?;
    let anew = wanted == Operation::Verify { anew: true };
    let mut operation = wanted;
    let mut last = None;
    for _ in 0..MOVES_MAX {
        match at_primary(cluster, name, &operation) {
            Err(problem) if tells_no_more(&problem) => last = Some(problem),
            result => {
                result?;
                return outcome(name, now(cluster, name)?);
            }
        }
        let Some(at) = now(cluster, name)?.filter(|&at| is_ours(before, at, anew)) else {
            // It was not begun. Who stops has yet to hand over.
            std::thread::sleep(HAND_OVER);
            continue;
        };
        match at.state {
            VerifyProgress::Done => return Ok(at),
            VerifyProgress::Stopped => {
                let message = format!("{name}: the comparison was stopped");
                return Err(Problem::from_code(&codes::VERIFY_STOPPED, message));
            }
            VerifyProgress::Running => operation = Operation::Verify { anew: false },
        }
    }
    Err(last.unwrap_or_else(|| Problem::new(UNREACHED, format!("{name}: nobody was asked"))))
}

/// Whether a node that was asked is gone, stops, or has the resource no more. The verify goes on without it.
fn tells_no_more(problem: &Problem) -> bool {
    problem.is_kind(UNREACHED) || problem.is(&codes::STOPPING) || problem.is(&codes::NO_RESOURCE)
}

/// Whether what is told now is the verify that was asked for, or one that it joined, and not what was there before.
fn is_ours(before: Option<Verifying>, at: Verifying, anew: bool) -> bool {
    // It changes when one begins, and when one is done.
    let Some(before) = before.filter(|before| before.at_ms == at.at_ms) else { return true };
    !anew && (at.state == VerifyProgress::Running || at.state != before.state)
}

/// What came of one that is done. The node that said so may be gone, and others not have heard; or another has begun.
fn outcome(name: &str, at: Option<Verifying>) -> Result<Verifying, Problem> {
    at.filter(|at| at.state == VerifyProgress::Done).ok_or_else(|| {
        let message = format!("{name}: compared, and with what result is not known any more");
        let mut problem = Problem::new(UNREACHED, message);
        problem.cause = "Who knew it is gone, or another comparison was begun since.".to_owned();
        problem.remedy = format!(
            "See `lockstep status`; or compare again: lockstep resource verify {name} --wait"
        );
        problem
    })
}

fn now(cluster: &Cluster, name: &str) -> Result<Option<Verifying>, Problem> {
    Ok(Views::one(cluster, name)?.1.require(name)?.verify)
}

/// What came of it; a problem if a replica was left out.
fn told(style: Style, name: &str, verify: Verifying) -> Result<(), Problem> {
    let outcome = match verify.repaired_bytes {
        0 => "were compared, and are the same".to_owned(),
        bytes => {
            format!("were compared; some blocks in {} differed, and are repaired", show_size(bytes))
        }
    };
    if verify.partial {
        let message =
            format!("{name}: a replica was not in sync and was left out; the others {outcome}");
        return Err(Problem::from_code(&codes::VERIFY_PARTIAL, message));
    }
    done(style, name, &format!("all replicas {outcome}"))
}

#[cfg(test)]
mod tests;

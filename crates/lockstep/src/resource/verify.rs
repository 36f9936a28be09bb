//! `lockstep resource verify`: comparing all replicas.
//!
//! Always: who waits is told of the end though the primary, or the node that was asked, change meanwhile: how far it is
//! stands in the configuration, and whoever is primary goes on.
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
            told(style, name, now(cluster, name)?)
        }
    }
}

/// Waits for the end; a node that was asked and is gone is no end.
fn to_its_end(
    cluster: &Cluster,
    name: &str,
    mut operation: Operation,
) -> Result<Option<Verifying>, Problem> {
    let before = now(cluster, name)?;
    for _ in 0..MOVES_MAX {
        match at_primary(cluster, name, &operation) {
            Err(problem) if problem.is_kind(UNREACHED) => {
                let at = now(cluster, name)?;
                let ended = at.is_some_and(|at| at.state == VerifyProgress::Done);
                if ended && at != before {
                    return Ok(at);
                }
                operation = Operation::Verify { anew: false };
            }
            result => {
                result?;
                return now(cluster, name);
            }
        }
    }
    Err(Problem::new(UNREACHED, format!("{name}: the nodes that were asked went away")))
}

fn now(cluster: &Cluster, name: &str) -> Result<Option<Verifying>, Problem> {
    Ok(Views::one(cluster, name)?.1.require(name)?.verify)
}

/// What came of it; a problem if a replica was left out.
fn told(style: Style, name: &str, verify: Option<Verifying>) -> Result<(), Problem> {
    let outcome = match verify.map_or(0, |verify| verify.repaired_bytes) {
        0 => "were compared, and are the same".to_owned(),
        bytes => {
            format!("were compared; some blocks in {} differed, and are repaired", show_size(bytes))
        }
    };
    if verify.is_some_and(|verify| verify.partial) {
        let message =
            format!("{name}: a replica was not in sync and was left out; the others {outcome}");
        return Err(Problem::from_code(&codes::VERIFY_PARTIAL, message));
    }
    done(style, name, &format!("all replicas {outcome}"))
}

//! Votes and copies that do not come back by themselves, and what forcing a node would lose.
//!
//! Always: `force` is offered only with what it would lose, the copy that loses least first.
//!
//! Not here: forcing (`resource`).

use wire::admin::{ReplicaState, ReplicaStatus, ResourceStatus};

use super::{Finding, serious, votes};

/// Between commands of one remedy.
pub(super) const NEXT_LINE: &str = "\n               ";

fn names(replicas: &[&ReplicaStatus]) -> String {
    let names: Vec<&str> = replicas.iter().map(|replica| replica.node.as_str()).collect();
    names.join(", ")
}

/// Too few votes: whose are away, and whose are gone.
pub(super) fn about_quorum(view: &ResourceStatus) -> Finding {
    let voters: Vec<&ReplicaStatus> =
        view.replicas.iter().filter(|replica| votes(replica)).collect();
    let (unused, lost): (Vec<&ReplicaStatus>, Vec<&ReplicaStatus>) =
        voters.iter().copied().filter(|one| one.vote_lost).partition(|one| is_unused(view, one));
    let away: Vec<&ReplicaStatus> =
        voters.iter().copied().filter(|one| !one.connected && !one.vote_lost).collect();
    let mut waits_for = "more than half of the voters".to_owned();
    if !away.is_empty() {
        waits_for.push_str(&format!("; missing: {}", names(&away)));
    }
    if !unused.is_empty() {
        waits_for
            .push_str(&format!("; those of {} are on disks that are not used", names(&unused)));
    }
    if !lost.is_empty() {
        waits_for.push_str(&format!(
            "; the votes of {} went with what was on their disks, and do not come back",
            names(&lost)
        ));
    }
    let enough = voters.len() - lost.len() > voters.len() / 2;
    let remedy = match (enough, away.is_empty()) {
        (true, _) => format!(
            "{}.{} Only if nodes are lost for good, or to be given up (it makes a named fork):{NEXT_LINE}{}",
            what_to_bring(&away, &unused),
            instead_of_waiting(view),
            ways(view)
        ),
        (false, true) => {
            format!("only `force` is left (it makes a named fork):{NEXT_LINE}{}", ways(view))
        }
        (false, false) => format!(
            "only `force` is left (it makes a named fork); bring {} back before, which may hold newer writes:{NEXT_LINE}{}",
            names(&away),
            ways(view)
        ),
    };
    serious(
        format!("There is no quorum: of {} voters too few answer and count.", voters.len()),
        waits_for,
        remedy,
    )
}

/// Whether a vote is on a disk that its node does not use, and may bring back.
fn is_unused(view: &ResourceStatus, voter: &ReplicaStatus) -> bool {
    // Of a witness only its node's own words say so.
    let own = format!("{}: {}: ", voter.node, view.name);
    voter.state == ReplicaState::Detached
        || voter.state == ReplicaState::Witness
            && view.warnings.iter().any(|warning| warning.starts_with(&own))
}

fn what_to_bring(away: &[&ReplicaStatus], unused: &[&ReplicaStatus]) -> String {
    let disks = format!("the disks of {} back, and start these nodes again", names(unused));
    match (away.is_empty(), unused.is_empty()) {
        (_, true) => "bring nodes back".to_owned(),
        (true, false) => format!("bring {disks}"),
        (false, false) => format!("bring nodes back, or {disks}"),
    }
}

fn instead_of_waiting(view: &ResourceStatus) -> String {
    if view.requests_fail {
        return String::new();
    }
    format!(
        " If programs are not to wait until then: lockstep resource fail-waiting {} --node NODE (they get I/O errors).",
        view.name
    )
}

/// A quorum, and no copy that holds everything.
pub(super) fn about_copies(view: &ResourceStatus) -> Option<Finding> {
    let here = |state| view.replicas.iter().any(|replica| replica.state == state);
    let data =
        |one: &&ReplicaStatus| !matches!(one.state, ReplicaState::Witness | ReplicaState::Diskless);
    // One that lost no more than its cache is compared as soon as somebody uses the resource.
    let compared = view.replicas.iter().any(|replica| {
        replica.in_sync && replica.state == ReplicaState::Behind && !replica.vote_lost
    });
    if !view.quorum || compared || here(ReplicaState::InSync) || here(ReplicaState::SplitBrain) {
        return None;
    }
    let good: Vec<&ReplicaStatus> =
        view.replicas.iter().filter(data).filter(|replica| replica.in_sync).collect();
    let (away, gone): (Vec<_>, Vec<_>) =
        good.into_iter().partition(|replica| replica.state == ReplicaState::Absent);
    if away.is_empty() && gone.is_empty() {
        return None;
    }
    let remedy = if away.is_empty() {
        format!("mend the disk of {}, or, if it is lost: {NEXT_LINE}{}", names(&gone), ways(view))
    } else {
        format!("start {}. Only if lost for good:{NEXT_LINE}{}", names(&away), ways(view))
    };
    let who = if away.is_empty() { names(&gone) } else { names(&away) };
    Some(serious(
        "No copy that holds every acknowledged write can be used now.".to_owned(),
        format!("the copy of {who}"),
        remedy,
    ))
}

/// Each node that can be forced, with what would be lost.
fn ways(view: &ResourceStatus) -> String {
    let whole = |replica: &&ReplicaStatus| replica.state == ReplicaState::InSync;
    let part = |replica: &&ReplicaStatus| {
        matches!(replica.state, ReplicaState::Behind | ReplicaState::Syncing)
    };
    let replicas = || view.replicas.iter().filter(|replica| replica.connected);
    let (good, rest): (Vec<_>, Vec<_>) =
        (replicas().filter(whole).collect(), replicas().filter(part).collect());
    let hidden = view.replicas.iter().any(|one| one.state == ReplicaState::Absent);
    let known = if hidden { ", as far as those know who answer" } else { "" };
    let all =
        good.iter().map(|replica| (replica, format!("holds every acknowledged write{known}")));
    let some = rest.iter().map(|replica| (replica, what_goes(view, replica, good.is_empty())));
    let lines: Vec<String> = all
        .chain(some)
        .map(|(replica, loses)| {
            format!("lockstep resource force {} --node {}   ({loses})", view.name, replica.node)
        })
        .collect();
    let first = view.primary.as_deref().filter(|primary| keeps_others(view, primary));
    let first = first.map(|primary| {
        format!(
            "lockstep resource demote {}   (first: {primary} has no copy, and a primary that lives keeps others from being forced){NEXT_LINE}",
            view.name
        )
    });
    let lines = match lines.is_empty() {
        true => {
            format!("lockstep resource force {} --node NODE   (a node that has a copy)", view.name)
        }
        false => lines.join(NEXT_LINE),
    };
    format!("{}{lines}", first.unwrap_or_default())
}

/// Whether this primary lives, and has no copy: it is none to force, and no other is forced before it is demoted.
fn keeps_others(view: &ResourceStatus, primary: &str) -> bool {
    let diskless = |one: &&ReplicaStatus| one.connected && one.state == ReplicaState::Diskless;
    view.replicas.iter().filter(diskless).any(|one| one.node == primary)
}

fn what_goes(view: &ResourceStatus, replica: &ReplicaStatus, best: bool) -> String {
    let why = replica.reason.as_deref().unwrap_or("it lacks writes");
    let whole = "every write that it lacks is lost";
    if best || view.replicas.len() == 1 {
        format!("{whole}: {why}")
    } else {
        format!("{whole}, needs --discard-newer: {why}")
    }
}

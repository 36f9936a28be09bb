//! Why a resource is as it is, what it waits for, what can be done.
//!
//! Always: says only what the status shows; each finding names what an operator can do, or that
//! nothing needs to be done.
//!
//! Not here: how the status is gathered (`view`).

mod lost;

use serde::Serialize;
use wire::admin::{ReplicaState, ReplicaStatus, ResourceFile, ResourceStatus};

use crate::cli::{Form, Global};
use crate::cluster::Cluster;
use crate::output::{Style, Tone, say, say_json};
use crate::problem::Problem;
use crate::resource::{doer, file_of};
use crate::unit::{per_cent, show_seconds, show_size};
use crate::view::{Views, is_remnant, split};

/// One thing about a resource.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// What is so, and why.
    pub(crate) what: String,
    /// What it waits for; empty if for nothing.
    pub(crate) waits_for: String,
    /// What can be done; empty if nothing needs to be.
    pub(crate) remedy: String,
    /// Whether requests are held up or copies are missing because of it.
    pub(crate) serious: bool,
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    version: u16,
    resource: &'a str,
    findings: &'a [Finding],
}

/// `lockstep explain`.
pub(crate) fn run(global: &Global, name: &str) -> Result<(), Problem> {
    let style = Style::of(global);
    let cluster = Cluster::open(global)?;
    let (ref cluster, views) = Views::one(&cluster, name)?;
    let view = views.whole(name)?;
    let mut findings = explain(&view, &views.silent, &views.answering);
    if view.replicas.iter().any(|replica| replica.resync.is_some()) {
        let file = doer(cluster, &views, name).and_then(|node| file_of(node, name));
        findings.extend(file.ok().and_then(|file| about_rate(&file)));
    }
    if let Some((node, view)) = split::seen_by(&views, name) {
        let about = |split| about_split(&split::words(&views, name, node, split));
        findings.splice(0..0, view.split_brain.iter().map(about));
    }
    if style.form == Form::Json {
        return say_json(&ExplainJson { version: 1, resource: name, findings: &findings });
    }
    let mut text = String::new();
    for finding in &findings {
        let tone = if finding.serious { Tone::Bad } else { Tone::Good };
        let mark = style.paint(tone, if finding.serious { "!" } else { "-" });
        text.push_str(&format!("{mark} {}\n", finding.what));
        if !finding.waits_for.is_empty() {
            text.push_str(&format!("    waits for: {}\n", finding.waits_for));
        }
        if !finding.remedy.is_empty() {
            text.push_str(&format!("    you can:   {}\n", finding.remedy));
        }
    }
    say(&text)
}

fn fine(what: impl Into<String>) -> Finding {
    let (waits_for, remedy) = (String::new(), String::new());
    Finding { what: what.into(), waits_for, remedy, serious: false }
}

fn serious(
    what: impl Into<String>,
    waits_for: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    let (waits_for, remedy) = (waits_for.into(), remedy.into());
    Finding { what: what.into(), waits_for, remedy, serious: true }
}

/// Everything that is to be said, the resource first, then its members; nodes that were asked are silent, or among those that answer.
pub(crate) fn explain(
    view: &ResourceStatus,
    silent: &[(String, String)],
    answering: &[String],
) -> Vec<Finding> {
    let is_silent = |node: &str| silent.iter().any(|(silent, _)| silent == node);
    if view.uncreated {
        return vec![about_unmade(view)];
    }
    let notes = view.warnings.iter().map(|warning| fine(warning.clone()));
    if is_remnant(view) {
        return [about_remnant(view)].into_iter().chain(notes).collect();
    }
    let mut findings = vec![about_primary(view)];
    findings.extend(about_service(view));
    for replica in &view.replicas {
        let silent = is_silent(&replica.node);
        findings.extend(about_replica(view, replica, silent, answering));
        if silent && is_counted_on(replica) {
            findings.push(about_silence(replica));
        }
    }
    findings.extend(about_margin(view, &is_silent));
    findings.extend(notes);
    findings
}

/// Who waits for the others waits in vain: they are gone, not away.
fn about_remnant(view: &ResourceStatus) -> Finding {
    let name = &view.name;
    serious(
        format!(
            "{name} was deleted on other nodes; a part of it is left over, and nothing can be served from it."
        ),
        "an operator",
        "remove what is left, with the command that its node names below: what it holds is lost then for good",
    )
}

/// Nothing else counts of a resource that was never made on all of its members, and never used.
fn about_unmade(view: &ResourceStatus) -> Finding {
    let name = &view.name;
    let unmade = view.replicas.iter().filter(|row| row.state == ReplicaState::Detached);
    let nodes: Vec<&str> = unmade.map(|row| row.node.as_str()).collect();
    serious(
        format!(
            "{name} is not made yet: the part of {} was never made. A `create` was interrupted, or is under way. \
             Nobody ever used it.",
            nodes.join(", ")
        ),
        "an operator, if no `create` is under way",
        format!(
            "say `lockstep resource create {name} ...` again, which makes it anew; or remove it: lockstep resource \
             delete {name}"
        ),
    )
}

/// Two histories: the first thing to know.
pub(crate) fn about_split(words: &split::Words) -> Finding {
    let commands: Vec<String> =
        words.commands.iter().map(|(command, effect)| format!("{command}   ({effect})")).collect();
    serious(
        format!("{} {}.", words.what, words.sides.join("; ")),
        words.waits_for.clone(),
        commands.join("\n               "),
    )
}

fn about_primary(view: &ResourceStatus) -> Finding {
    let name = &view.name;
    match &view.primary {
        None if !view.quorum => fine("No node is primary."),
        None => fine(format!(
            "No node is primary: nobody uses {name} now. The first read or write makes one."
        )),
        Some(node) => match view.replicas.iter().find(|replica| replica.node == *node) {
            Some(replica) if replica.state == ReplicaState::Absent => serious(
                format!("The primary {node} cannot be reached."),
                "the end of its lease (a few seconds); then the next request makes another node primary",
                format!(
                    "nothing, or bring {node} back (development cluster: lockstep dev start {node})"
                ),
            ),
            _ => fine(format!("{node} is primary: all writes to {name} are ordered there.")),
        },
    }
}

fn about_service(view: &ResourceStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !view.quorum {
        findings.push(lost::about_quorum(view));
    }
    findings.extend(lost::about_copies(view));
    if let Some(reason) = &view.suspended {
        let (what, then) = if view.requests_fail {
            let what = format!("Requests get I/O errors ({})", crate::view::why_errors(view));
            (what, "those made then are served")
        } else {
            ("Requests wait".to_owned(), "then they go on by themselves")
        };
        findings.push(serious(
            format!("{what}: {reason}."),
            format!("that reason to end; {then}"),
            if reason.contains("operator") || reason.contains("suspended by") {
                format!("lockstep resource resume {}", view.name)
            } else if reason.contains("the options ask for") {
                let good = view.replicas.iter().filter(|replica| replica.in_sync).count().max(1);
                format!(
                    "bring replicas back or add some (lockstep resource add-replica {0} --node NODE), or take \
                     fewer: lockstep resource set-options {0} --in-sync-min {good}",
                    view.name
                )
            } else {
                String::new()
            },
        ));
    }
    if view.resync_paused {
        findings.push(serious(
            "Resync is held back by an operator: no copy is brought up to date.",
            "an operator to let it go on",
            format!("lockstep resource resume-resync {}", view.name),
        ));
    }
    if view.recovering {
        findings.push(serious(
            "All copies lost their caches at once and are being made equal.",
            "the end of the comparison; it goes on by itself",
            "",
        ));
    }
    findings.extend(about_fork(view));
    findings
}

/// What a side that was chosen or forced has left.
fn about_fork(view: &ResourceStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if view.fork > 0 {
        findings.push(serious(
            format!(
                "A side was chosen, or forced: this is fork {}, history {}. What other copies wrote on \
                 histories that were left is not here.",
                view.fork, view.history
            ),
            "",
            "",
        ));
    }
    if !view.left_out.is_empty() {
        let name = &view.name;
        let again = view.left_out.iter().map(|node| {
            format!("lockstep resource add-replica {name} --node {node}   (its old copy goes, all is copied)")
        });
        let lost = format!("lockstep resource remove-client {name} --node NODE   (lost for good)");
        let commands: Vec<String> = again.chain([lost]).collect();
        findings.push(serious(
            format!(
                "The copies or votes of {} were left out when it was forced: they are not brought back by \
                 themselves.",
                view.left_out.join(", ")
            ),
            "an operator",
            commands.join("\n               "),
        ));
    }
    findings
}

fn about_replica(
    view: &ResourceStatus,
    replica: &ReplicaStatus,
    is_silent: bool,
    answering: &[String],
) -> Option<Finding> {
    let node = &replica.node;
    let gone = since(replica);
    match replica.state {
        ReplicaState::InSync => None,
        ReplicaState::Diskless => None,
        ReplicaState::Witness if replica.connected => None,
        ReplicaState::Witness => Some(serious(
            format!("The witness {node} cannot be reached{gone}: one vote is missing."),
            node.clone(),
            start_or_replace(view, node),
        )),
        ReplicaState::Syncing => Some(syncing(replica)),
        ReplicaState::Behind => Some(behind(view, replica)),
        ReplicaState::Detached => Some(detached(view, replica)),
        // Said first of all (`about_split`).
        ReplicaState::SplitBrain => None,
        ReplicaState::Absent if replica.in_sync => Some(serious(
            format!(
                "{node} cannot be reached{gone}. Nothing was written since, so its copy is still complete."
            ),
            format!("{node} to come back; the next write leaves it behind"),
            start_or_replace(view, node),
        )),
        ReplicaState::Absent if answering.contains(node) => Some(serious(
            match &replica.reason {
                Some(why) => {
                    format!("{node} runs, but the others have no session with it{gone}: {why}.")
                }
                None => format!("{node} runs, but the others cannot reach it{gone}."),
            },
            "the link between the nodes",
            "check the network; lockstep status on both sides",
        )),
        ReplicaState::Absent => Some(serious(
            format!(
                "{node} {}{gone}, and was left behind: its copy lacks what was written since.",
                if is_silent { "does not answer" } else { "cannot be reached by the others" }
            ),
            format!("{node} to come back; then it copies what it missed, and no more"),
            start_or_replace(view, node),
        )),
    }
}

/// What to do about a member whose node is away.
fn start_or_replace(view: &ResourceStatus, node: &str) -> String {
    let start = format!("start it (development cluster: lockstep dev start {node})");
    if !view.quorum {
        return start;
    }
    format!(
        "{start}. If it is lost for good:{}lockstep resource remove-replica {} --node {node}   (then add-replica: \
         docs/operating.md)",
        lost::NEXT_LINE,
        view.name
    )
}

fn behind(view: &ResourceStatus, replica: &ReplicaStatus) -> Finding {
    let (node, name) = (&replica.node, &view.name);
    let Some(why) = &replica.reason else {
        return serious(
            format!("The replica on {node} lacks writes and is not being copied to."),
            "a primary, which drives the resync, and its turn",
            format!(
                "lockstep resource resume-resync {name} (if it was paused); lockstep resource promote {name} --node NODE"
            ),
        );
    };
    let what = format!("The copy on {node} does not count: {why}.");
    if replica.vote_lost && !view.quorum {
        return serious(what, "a quorum; then it is copied anew from the others", "see above");
    }
    serious(
        what,
        "a primary, which compares it, or copies it anew, from the others",
        format!("nothing if there is a primary; else lockstep resource promote {name} --node NODE"),
    )
}

fn detached(view: &ResourceStatus, replica: &ReplicaStatus) -> Finding {
    let (node, name) = (&replica.node, &view.name);
    let what = match &replica.reason {
        Some(why) => format!("The copy on {node} is not used: {why}."),
        None => format!("The disk of {node} failed, or was taken away: its copy is not used."),
    };
    let anew = format!(
        "lockstep resource remove-replica {name} --node {node}{0}lockstep resource add-replica {name} --node {node} \
         --force   (what is left of the old copy goes, all is copied; --device PATH: to a device)",
        lost::NEXT_LINE
    );
    if view.quorum {
        let remedy = format!(
            "if its disk is only away: bring it back, and start {node} again. If it is lost, or damaged:{}{anew}",
            lost::NEXT_LINE
        );
        return serious(what, "an operator", remedy);
    }
    let remedy = format!(
        "if its disk is only away: bring it back, and start {node} again. Else, once there is a quorum (see above): \
         `lockstep explain {name}` says how"
    );
    serious(what, "an operator", remedy)
}

fn syncing(replica: &ReplicaStatus) -> Finding {
    let node = &replica.node;
    let Some(resync) = replica.resync else {
        return fine(format!("The replica on {node} is being made equal."));
    };
    let left = resync.eta_seconds.map_or("a time not known yet".to_owned(), show_seconds);
    let mut finding = fine(format!(
        "The replica on {node} is being copied to: {}% of {}. It counts as a copy when that is done.",
        per_cent(resync.done_bytes, resync.total_bytes),
        show_size(resync.total_bytes)
    ));
    finding.waits_for = format!("the rest: {left}");
    finding
}

/// That resync is held to a rate.
pub(crate) fn about_rate(file: &ResourceFile) -> Option<Finding> {
    let rate = Some(file.options.resync_rate_max).filter(|&rate| rate > 0)?;
    let mut finding =
        fine(format!("Resync copies no more than {}/s, as resync-rate-max says.", show_size(rate)));
    finding.remedy =
        format!("lockstep resource set-options {} --resync-rate-max off (or higher)", file.name);
    Some(finding)
}

/// Whether the others take it to be there.
fn is_counted_on(replica: &ReplicaStatus) -> bool {
    replica.connected && !matches!(replica.state, ReplicaState::Absent | ReplicaState::Diskless)
}

/// The others count on a node that does not answer here: it may have ended a moment ago.
fn about_silence(replica: &ReplicaStatus) -> Finding {
    let node = &replica.node;
    let heard = replica
        .heard_ms_ago
        .map_or("have not missed it yet".to_owned(), |ms| format!("heard it {} ago", age(ms)));
    serious(
        format!(
            "{node} does not answer this program, though the others {heard}: it may just have ended. \
             Its copy and its vote are not counted on below."
        ),
        "the others, who miss it within 5 seconds, or its answer",
        format!(
            "ask again; start it if it does not run (development cluster: lockstep dev start {node})"
        ),
    )
}

/// Since when a node is not reached, if that is known.
fn since(replica: &ReplicaStatus) -> String {
    replica.heard_ms_ago.map_or(String::new(), |ms| format!(" (last heard {} ago)", age(ms)))
}

fn age(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { show_seconds(ms / 1000) }
}

/// What may still fail, by what was heard last.
fn about_margin(view: &ResourceStatus, is_silent: &dyn Fn(&str) -> bool) -> Option<Finding> {
    let here = |replica: &&ReplicaStatus| !is_silent(&replica.node);
    let good = |replica: &&ReplicaStatus| replica.state == ReplicaState::InSync && here(replica);
    let copies = view.replicas.iter().filter(good).count();
    let voters = view.replicas.iter().filter(|replica| votes(replica)).count();
    let present = view.replicas.iter().filter(here);
    let present = present.filter(|replica| votes(replica) && replica.connected).count();
    let oldest = view.replicas.iter().filter(good).filter_map(|replica| replica.heard_ms_ago).max();
    let heard = oldest.map_or(String::new(), |ms| format!(" (each heard in the last {})", age(ms)));
    let spare = present.saturating_sub(voters / 2 + 1).min(copies.saturating_sub(1));
    match (copies, spare) {
        (0, _) => None,
        (1, _) => Some(serious(
            "Only one reachable copy holds everything: if its node fails now, requests wait until it is back.",
            "",
            format!(
                "bring the others back, or add one: lockstep resource add-replica {} --node NODE",
                view.name
            ),
        )),
        (copies, 0) => Some(serious(
            format!(
                "{copies} reachable copies{heard} hold everything, but no further voter may fail."
            ),
            "",
            "bring missing nodes back, or add a witness",
        )),
        (copies, spare) => Some(fine(format!(
            "{copies} reachable copies{heard} hold everything; {spare} more node{} may fail without a pause longer than the lease.",
            if spare == 1 { "" } else { "s" }
        ))),
    }
}

fn votes(replica: &ReplicaStatus) -> bool {
    replica.state != ReplicaState::Diskless
}

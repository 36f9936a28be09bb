//! How a status looks to people.

use wire::admin::{ReplicaState, ReplicaStatus, ResourceStatus, VerifyProgress, Verifying};

use super::Views;
use crate::output::{Cell, Style, Tone, bar};
use crate::unit::{per_cent, show_size};

/// All resources, each with its nodes.
pub(crate) fn human(style: Style, views: &Views) -> String {
    let mut text = String::new();
    let status = views.merged();
    if status.resources.is_empty() {
        text.push_str(
            "There are no resources. Make one: lockstep resource create disk --size 1GiB --replicas 3\n",
        );
    }
    for (index, resource) in status.resources.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&block(style, resource, &label(views, resource)));
        let own = views.only(&(resource.name.clone(), resource.id.clone()));
        text.push_str(&split_block(style, &own, &resource.name));
    }
    text.push_str(&silent_line(style, views));
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        text.push_str(&style.paint(Tone::Doubtful, &format!("note: {warning}")));
        text.push('\n');
    }
    text
}

/// Who is not in what was shown.
pub(crate) fn silent_line(style: Style, views: &Views) -> String {
    if views.silent.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = views.silent.iter().map(|(name, _)| name.as_str()).collect();
    let line = format!("\nNodes that do not answer: {}\n", names.join(", "));
    style.paint(Tone::Doubtful, &line)
}

/// What a resource is called: by its name, and its identity if another has the name, too.
pub(crate) fn label(views: &Views, resource: &ResourceStatus) -> String {
    if views.names_several(&resource.name) {
        return format!("{} (id {})", resource.name, resource.id);
    }
    resource.name.clone()
}

/// Sizes of all volumes: `1GiB`, or `2 x 1GiB`, or their sum.
pub(crate) fn size_of(resource: &ResourceStatus) -> String {
    let volumes = &resource.volumes;
    match volumes.as_slice() {
        [] => "-".to_owned(),
        [one] => show_size(one.size_bytes),
        [first, rest @ ..] if rest.iter().all(|next| next.size_bytes == first.size_bytes) => {
            format!("{} x {}", volumes.len(), show_size(first.size_bytes))
        }
        _ => {
            let sum = volumes.iter().fold(0u64, |sum, v| sum.saturating_add(v.size_bytes));
            format!("{} volumes, {}", volumes.len(), show_size(sum))
        }
    }
}

fn block(style: Style, resource: &ResourceStatus, label: &str) -> String {
    let primary = match &resource.primary {
        Some(node) => format!("primary {node}"),
        None => "no primary (the first I/O makes one)".to_owned(),
    };
    let mut text = style.paint(Tone::Strong, label);
    text.push_str(&format!("  {}  {primary}  epoch {}", size_of(resource), resource.epoch));
    if !resource.quorum {
        text.push_str("  ");
        text.push_str(&style.paint(Tone::Bad, "NO QUORUM"));
    }
    if resource.left_over {
        text.push_str("  ");
        text.push_str(&style.paint(Tone::Bad, "LEFT OVER"));
    }
    if resource.recovering {
        text.push_str("  ");
        text.push_str(&style.paint(Tone::Doubtful, "recovering"));
    }
    if resource.fork > 0 {
        text.push_str("  ");
        let name = if resource.history.is_empty() { "" } else { ", history " };
        let fork = format!("FORK {}{name}{}", resource.fork, resource.history);
        text.push_str(&style.paint(Tone::Bad, &fork));
    }
    text.push('\n');
    let rows: Vec<Vec<Cell>> = resource
        .replicas
        .iter()
        .map(|replica| row(replica, resource.primary.as_ref() == Some(&replica.node)))
        .collect();
    for line in style.table(&["NODE", "STATE", "ROLE", "RESYNC"], &rows).lines() {
        text.push_str("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if let Some(reason) = &resource.suspended {
        text.push_str(&style.paint(Tone::Bad, &format!("  {}", super::held(resource, reason))));
        text.push('\n');
    }
    if !resource.left_out.is_empty() {
        let nodes = resource.left_out.join(", ");
        let line = format!(
            "  left out when it was forced: {nodes} (lockstep explain {} says how to go on)",
            resource.name
        );
        text.push_str(&style.paint(Tone::Bad, &line));
        text.push('\n');
    }
    if resource.resync_paused {
        let words = "  resync waits: an operator holds it back";
        text.push_str(&style.paint(Tone::Doubtful, words));
        text.push('\n');
    }
    for (volume, growth) in resource.volumes.iter().filter_map(|one| Some((one, one.growth?))) {
        let bar = bar(growth.done_bytes, growth.total_bytes, 0, None);
        let to = show_size(growth.to_bytes);
        text.push_str(&format!("  volume {} grows to {to}: made zero {bar}\n", volume.volume));
    }
    if let Some(line) = resource.verify.as_ref().and_then(verify_line) {
        text.push_str(&format!("  {line}\n"));
    }
    for note in notes(resource) {
        text.push_str(&style.paint(Tone::Doubtful, &format!("  note: {note}")));
        text.push('\n');
    }
    text
}

/// What the nodes warn of, each thing once.
fn notes(resource: &ResourceStatus) -> Vec<String> {
    let mut notes = resource.warnings.clone();
    for replica in resource.replicas.iter().filter(|row| is_unused(row)) {
        let own = format!("{}: ", replica.node);
        let is_told =
            |why: &String| notes.iter().any(|note| note.starts_with(&own) && note.ends_with(why));
        let why = replica.reason.as_ref().filter(|why| !is_told(why));
        notes.extend(why.map(|why| format!("{}: {why}", replica.node)));
    }
    notes.extend(resource.replicas.iter().filter_map(rot_note));
    notes
}

/// Whether there is a copy or a vote that does not count.
fn is_unused(replica: &ReplicaStatus) -> bool {
    matches!(replica.state, ReplicaState::Detached | ReplicaState::Behind)
        || replica.state == ReplicaState::Witness && replica.vote_lost
}

/// What rotted on a node.
fn rot_note(replica: &ReplicaStatus) -> Option<String> {
    let rot = replica.rot.filter(|rot| rot.found_blocks > 0)?;
    Some(format!(
        "{}: {} blocks were not what was written, {} of them are repaired; its disk may be failing",
        replica.node, rot.found_blocks, rot.repaired_blocks
    ))
}

/// How a comparison stands; `None` of one that is done and found nothing.
pub(crate) fn verify_line(verify: &Verifying) -> Option<String> {
    let percent = per_cent(verify.done_bytes, verify.total_bytes);
    let repaired = match verify.repaired_bytes {
        0 => String::new(),
        bytes => format!(", some blocks in {} differed and were repaired", show_size(bytes)),
    };
    let partial = if verify.partial { "; a replica that was not in sync was left out" } else { "" };
    let repaired = format!("{repaired}{partial}");
    let of = format!("{percent}% of {}{repaired}", show_size(verify.total_bytes));
    match verify.state {
        VerifyProgress::Running => Some(format!("verify: compared {of}")),
        VerifyProgress::Stopped => Some(format!("verify: stopped at {of}")),
        VerifyProgress::Done if repaired.is_empty() => None,
        VerifyProgress::Done => Some(format!("verify: done{repaired}")),
    }
}

/// What a split brain is, on either side, and how to go on.
fn split_block(style: Style, views: &Views, name: &str) -> String {
    let Some((node, view)) = super::split::seen_by(views, name) else { return String::new() };
    let mut text = String::new();
    for split in &view.split_brain {
        let words = super::split::words(views, name, node, split);
        text.push_str(&style.paint(Tone::Bad, &format!("  {}", words.what)));
        text.push('\n');
        for side in &words.sides {
            text.push_str(&format!("    {side}\n"));
        }
        for (command, effect) in &words.commands {
            text.push_str(&format!("    {command}\n        {effect}\n"));
        }
    }
    text
}

fn row(replica: &ReplicaStatus, primary: bool) -> Vec<Cell> {
    let role = match (primary, replica.state) {
        (true, _) => "primary",
        (false, ReplicaState::Witness) => "witness",
        (false, ReplicaState::Diskless) => "client",
        (false, _) => "replica",
    };
    let (state, tone) = state_of(replica);
    let resync = replica.resync.map_or(String::new(), |resync| {
        bar(resync.done_bytes, resync.total_bytes, resync.rate_bytes_per_second, resync.eta_seconds)
    });
    vec![
        Cell(replica.node.clone(), Tone::Strong),
        Cell(state, tone),
        Cell::plain(role),
        Cell::plain(resync),
    ]
}

fn state_of(replica: &ReplicaStatus) -> (String, Tone) {
    let (word, tone) = match replica.state {
        ReplicaState::InSync => ("in-sync", Tone::Good),
        ReplicaState::Syncing => ("syncing", Tone::Doubtful),
        ReplicaState::Behind => ("behind", Tone::Doubtful),
        ReplicaState::Detached => ("detached", Tone::Bad),
        ReplicaState::Absent => ("absent", Tone::Bad),
        ReplicaState::SplitBrain => ("SPLIT BRAIN", Tone::Bad),
        ReplicaState::Diskless => ("diskless", Tone::Plain),
        ReplicaState::Witness if replica.connected => ("witness", Tone::Good),
        ReplicaState::Witness => ("witness, not reached", Tone::Bad),
    };
    match replica.store.as_deref() {
        Some("memory") => (format!("{word} (memory)"), tone),
        _ => (word.to_owned(), tone),
    }
}

/// One node's part in one line, for events.
pub(crate) fn replica_line(replica: &ReplicaStatus) -> String {
    let (word, _) = state_of(replica);
    match replica.resync {
        Some(resync) => {
            format!("{} {word} {}%", replica.node, per_cent(resync.done_bytes, resync.total_bytes))
        }
        None => format!("{} {word}", replica.node),
    }
}

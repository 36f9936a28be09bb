//! Removing: a resource from all nodes, or what one node still holds of one that the others do without.
//!
//! Always: a node is asked by the resource's identity, so that another one of the same name is never touched; it is
//! said whose parts are left.
//!
//! Not here: taking a member out of a resource that goes on (`cast`).

use base::NodeId;
use wire::admin::{
    Answer, Command, FileMember, Operation, ReplicaState, ReplicaStatus, ResourceStatus, codes,
};

use super::{doer, done, file_of};
use crate::admin::{Node, unexpected};
use crate::cluster::Cluster;
use crate::output::Style;
use crate::problem::{Problem, STILL_NEEDED, UNREACHED};
use crate::view::{Views, absent, identity_of};

/// `lockstep resource delete`.
pub(super) fn delete(
    cluster: &Cluster,
    style: Style,
    name: &str,
    force: bool,
) -> Result<(), Problem> {
    let gathered = Views::gather(cluster, Some(name))?;
    let (ref cluster, views) = gathered.about(cluster, name)?;
    let view = views.require(name)?;
    if !force {
        refuse_unheard(&views, name)?;
        refuse_used(&views, view)?;
    }
    let words = deleted_words(cluster, &views, view);
    let kept = kept_words(cluster, &views, name);
    remove_everywhere(cluster, &views, name, force)?;
    done(
        style,
        name,
        &match kept {
            Some(kept) => {
                format!("{}; {kept}", words.replacen("deleted, with its data,", "deleted", 1))
            }
            None => words,
        },
    )
}

/// Nothing is deleted while a node that may hold a part of it does not answer, or was not asked.
fn refuse_unheard(views: &Views, name: &str) -> Result<(), Problem> {
    if let Some(silent) = views.unheard(name).first() {
        let reason = views.silent.iter().find(|(node, _)| node == silent);
        let reason = reason.map_or("it was not asked", |(_, reason)| reason);
        let mut problem = Problem::new(
            UNREACHED,
            format!("{silent} would keep its part of {name} ({reason}); nothing was changed"),
        );
        problem.remedy = format!(
            "Start {silent}, or leave its part behind with --force; `lockstep resource forget {name} --node {silent}` \
             removes that when it is back."
        );
        return Err(problem);
    }
    Ok(())
}

/// Nor what clients have open, or may: on a node that has no part, is there, and was not asked.
fn refuse_used(views: &Views, view: &ResourceStatus) -> Result<(), Problem> {
    let name = &view.name;
    let used = |(node, view): &(String, ResourceStatus)| (view.clients > 0).then(|| node.clone());
    let users: Vec<String> = views.all_of(name).iter().filter_map(used).collect();
    if !users.is_empty() {
        let message = format!(
            "{name} is open for NBD clients of node {}; nothing was changed",
            users.join(", ")
        );
        return Err(Problem::from_code(&codes::IN_USE, message));
    }
    let rows = views.all_of(name).iter().flat_map(|(_, view)| &view.replicas);
    let there = rows.filter(|row| row.state == ReplicaState::Diskless && row.connected);
    let mut users = view.primary.iter().chain(there.map(|row| &row.node));
    let Some(node) = users.find(|node| !views.answering.contains(node)) else { return Ok(()) };
    let message = format!(
        "node {node} may use {name} and was not asked, so that clients may have it open there; nothing was changed"
    );
    let mut problem = Problem::from_code(&codes::IN_USE, message);
    problem.remedy = format!(
        "Name the admin socket of {node}, too (--admin). To delete it all the same: --force."
    );
    Err(problem)
}

/// Whose stores held the data before the resource was made, and keep it.
fn kept_words(cluster: &Cluster, views: &Views, name: &str) -> Option<String> {
    let nodes = kept_on(doer(cluster, views, name).ok()?, name);
    let words = format!("the data stays in the kept stores of {}", nodes.join(", "));
    (!nodes.is_empty()).then_some(words)
}

/// Members whose stores are kept, as a node knows them.
fn kept_on(node: &Node, name: &str) -> Vec<String> {
    let Ok(file) = file_of(node, name) else { return Vec::new() };
    let keeps = |member: &&FileMember| member.stores.iter().any(|store| store.keep);
    let nodes = file.members.iter().filter(keeps);
    nodes.filter_map(|member| file.node_name(NodeId(member.node)).map(str::to_owned)).collect()
}

/// Where it was deleted, and where something is left.
fn deleted_words(cluster: &Cluster, views: &Views, view: &ResourceStatus) -> String {
    let name = &view.name;
    let knows = |node: &str| views.of(name, node).is_some();
    let known: Vec<&str> =
        cluster.nodes.iter().map(|node| node.name.as_str()).filter(|node| knows(node)).collect();
    let unheard = views.unheard(name);
    let silent = |node: &str| unheard.iter().any(|silent| silent == node);
    // Who was left out when it was forced may have its old copy yet.
    let left_out = views.left_out(name);
    let holds =
        |row: &&ReplicaStatus| row.state != ReplicaState::Diskless || left_out.contains(&row.node);
    let members = view.replicas.iter().filter(holds);
    let left: Vec<&str> =
        members.map(|row| row.node.as_str()).filter(|node| silent(node)).collect();
    let all = left.is_empty() && cluster.nodes.iter().all(|node| knows(&node.name));
    let places = if all { "all nodes".to_owned() } else { known.join(", ") };
    let mut words = format!("deleted, with its data, on {places}");
    if !left.is_empty() {
        // Of several the others may be a majority, and go on until it is deleted there, too.
        let (remedy, back) = match left.as_slice() {
            [node] => (format!("forget {name} --node {node}"), "it is"),
            _ => (format!("delete {name} --id {}", view.id), "they are"),
        };
        words.push_str(&format!(
            "; left on {}, which did not answer: `lockstep resource {remedy}` removes that when {back} back",
            left.join(", "),
        ));
    }
    words
}

/// `lockstep resource forget`: only what one node holds.
pub(super) fn forget(
    cluster: &Cluster,
    style: Style,
    name: &str,
    on: &str,
    force: bool,
) -> Result<(), Problem> {
    let node = cluster.node(on)?;
    // The node that is named says which resource is meant: it knows one of this name at most.
    let own = match node.status(Some(name)) {
        Ok(status) => status.resources.into_iter().next(),
        Err(problem) if problem.is(&codes::NO_RESOURCE) => None,
        Err(problem) => return Err(problem),
    };
    let meant =
        |own: &ResourceStatus| cluster.identity.is_none() || cluster.identity == identity_of(own);
    let Some(own) = own.filter(meant) else {
        let mut problem = absent(name, &[]);
        problem.message.push_str(&format!(" on {on}"));
        return Err(problem);
    };
    let identity = identity_of(&own).unwrap_or_default();
    let cluster = cluster.about(identity);
    let views = Views::gather(&cluster, Some(name))?;
    if let Some((why, sure)) = still_needed(&views, &own, on).filter(|(_, sure)| *sure || !force) {
        let message = format!("{name}: {why}; nothing was changed");
        let mut problem = Problem::new(STILL_NEEDED, message);
        if !sure {
            problem.remedy = format!(
                "Ask again when those answer who may know. If nobody needs what {on} holds: --force removes it for good."
            );
        }
        return Err(problem);
    }
    let keeps = kept_on(cluster.node(on)?, name).iter().any(|node| node == on);
    let command = Command::ResourceForget { resource: name.to_owned(), stores: true };
    cluster.node(on)?.change(command)?;
    let mut words = format!("what {on} held of it ({}) is removed, and nothing else", own.id);
    if keeps {
        words.push_str("; the data stays in its kept store");
    }
    if views.all_of(name).iter().any(|(node, _)| node != on) {
        words.push_str("; `lockstep resource add-client` lets it use it again");
    }
    done(style, name, &words)
}

/// Why what a node holds is no left-over, and whether that is certain.
fn still_needed(views: &Views, own: &ResourceStatus, on: &str) -> Option<(String, bool)> {
    let name = &own.name;
    let member = |view: &ResourceStatus| {
        let row = view.replicas.iter().find(|row| row.node == on);
        row.is_some_and(|row| row.state != ReplicaState::Diskless)
    };
    // What is left over on another node, too, needs nobody.
    let others = views.all_of(name).iter().filter(|(node, view)| {
        let both_left_over = own.left_over && view.left_over;
        node != on && !both_left_over
    });
    // Who knows of the newest configuration knows best.
    let newest = others.max_by_key(|(_, view)| view.epoch);
    if let Some((node, view)) = newest {
        let newer = || format!("{on} knows a newer state of it than {node}");
        return match member(view) {
            true => Some((format!("{on} is a member of it, as {node} knows it"), true)),
            false => (view.epoch < own.epoch).then(|| (newer(), true)),
        };
    }
    if own.quorum && own.primary.is_some() {
        return Some((format!("{on} serves it, with a majority"), true));
    }
    let silent: Vec<String> = views.unheard(name).into_iter().filter(|node| node != on).collect();
    if own.left_over && silent.is_empty() {
        return None;
    }
    let why = if silent.is_empty() {
        format!("{on} was not told that the others have deleted it")
    } else {
        format!("it may be needed by {}, which did not answer", silent.join(", "))
    };
    Some((why, false))
}

/// Deletes a resource on every node that knows it. The first refusal is heard before anything is
/// removed: from the primary, which knows whether the resource is in use.
pub(super) fn remove_everywhere(
    cluster: &Cluster,
    views: &Views,
    name: &str,
    force: bool,
) -> Result<(), Problem> {
    if let Some(primary) = views.best(name).and_then(|view| view.primary.clone())
        && let Ok(node) = cluster.node(&primary)
        && views.of(name, &primary).is_some()
    {
        match node.operate(name, Operation::Demote {}) {
            Err(problem) if force || problem.is(&codes::ALREADY) => {}
            Err(mut problem) => {
                problem.message.push_str("; nothing was changed");
                return Err(problem);
            }
            Ok(()) => {}
        }
    }
    let mut first = true;
    let mut failed: Option<Problem> = None;
    for node in &cluster.nodes {
        if views.of(name, &node.name).is_none() {
            continue;
        }
        // Once it is gone on one node, the rest must follow.
        let command = Command::ResourceDelete {
            resource: name.to_owned(),
            force: force || !first,
            unused: false,
        };
        match node.ask(command) {
            Ok(Answer::Done {}) => {}
            Ok(other) => return Err(unexpected(node, &other)),
            Err(problem) if problem.is(&codes::NO_RESOURCE) => {}
            Err(problem) if first => return Err(problem),
            Err(problem) => {
                failed.get_or_insert(problem);
            }
        }
        first = false;
    }
    let Some(mut problem) = failed else { return Ok(()) };
    problem.message.push_str(&format!(
        "; its part may be left there, and is gone elsewhere: `lockstep resource delete {name}` again removes what is left"
    ));
    Err(problem)
}

/// Takes away what an interrupted `create` has left. No part is forced: one that is in use meanwhile stays.
pub(super) fn remove_unused(cluster: &Cluster, views: &Views, name: &str) -> Result<(), Problem> {
    for node in cluster.nodes.iter().filter(|node| views.of(name, &node.name).is_some()) {
        let command =
            Command::ResourceDelete { resource: name.to_owned(), force: false, unused: true };
        absent_is_fine(node.change(command))?;
    }
    Ok(())
}

/// What is to be removed may be gone already; the name may be another's then.
pub(super) fn absent_is_fine(outcome: Result<(), Problem>) -> Result<(), Problem> {
    match outcome {
        Err(problem) if problem.is(&codes::NO_RESOURCE) || problem.is(&codes::OTHER_IDENTITY) => {
            Ok(())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use wire::admin::{Answer, Command, codes};

    use super::remove_everywhere;
    use crate::cluster::Cluster;
    use crate::tests::fake::{Fake, Says, knows};
    use crate::tests::resource;
    use crate::view::Views;

    #[test]
    fn a_node_that_does_not_delete_its_part_is_not_told_to_forget_where_it_lies() {
        let done = |command: &Command| match command {
            Command::Status { .. } => knows(resource()),
            _ => Says::That(Answer::Done {}),
        };
        let stops = |command: &Command| match command {
            Command::Status { .. } => knows(resource()),
            Command::ResourceDelete { .. } => Says::Refused(&codes::STOPPING),
            _ => Says::That(Answer::Done {}),
        };
        let (a, b, c) = (Fake::new("a", done), Fake::new("b", stops), Fake::new("c", done));
        let nodes = [&a, &b, &c].map(|fake| fake.node.clone()).to_vec();
        let cluster = Cluster { dev: None, nodes, identity: None };
        let (ref cluster, views) = Views::one(&cluster, "disk").unwrap();
        let problem = remove_everywhere(cluster, &views, "disk", false).unwrap_err();
        assert!(problem.is(&codes::STOPPING), "{problem}");
        assert!(problem.message.contains("resource delete disk"), "{problem}");
        let deletes = |command: &Command| matches!(command, Command::ResourceDelete { .. });
        for fake in [&b, &c] {
            assert!(fake.told().iter().all(deletes), "{:?}", fake.told());
        }
        assert_eq!(c.told().len(), 1, "once it is gone on one node, the rest must follow");
    }
}

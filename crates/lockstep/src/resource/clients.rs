//! Which nodes may use a resource without being a member of it.
//!
//! Always: every node that can be reached is told; one that cannot is named, because it goes on as it was until a
//! member that was told reaches it.

use base::NodeId;
use wire::admin::{Command, FileNode, ReplicaState, codes};

use super::{doer, done, file_of};
use crate::admin::Node;
use crate::cli::OnNode;
use crate::cluster::{Cluster, node_status};
use crate::output::Style;
use crate::problem::{NO_MEMBER, Problem};
use crate::view::Views;

/// Tells all that know the resource to let a node in. The first refusal is the answer.
pub(super) fn admit(
    cluster: &Cluster,
    views: &Views,
    name: &str,
    entry: &FileNode,
) -> Result<(), Problem> {
    for node in knowing(cluster, views, name).filter(|node| node.name != entry.name) {
        let node_entry = entry.clone();
        node.change(Command::ResourceAdmit { resource: name.to_owned(), node: node_entry })?;
    }
    Ok(())
}

fn knowing<'a>(
    cluster: &'a Cluster,
    views: &'a Views,
    name: &'a str,
) -> impl Iterator<Item = &'a Node> {
    cluster.nodes.iter().filter(move |node| views.of(name, &node.name).is_some())
}

/// What is to be said of nodes that were not told: members sign what they were told, and spread it.
fn untold(views: &Views) -> String {
    let names: Vec<&str> = views.silent.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("; members tell it when they answer: {}", names.join(", "))
}

/// `lockstep resource add-client`.
pub(super) fn add(cluster: &Cluster, style: Style, on: &OnNode) -> Result<(), Problem> {
    let name = &on.name;
    let node = cluster.node(&on.node)?;
    let (ref cluster, views) = Views::one(cluster, name)?;
    let mut file = file_of(doer(cluster, &views, name)?, name)?;
    let id = node_status(node)?.node_id;
    let entry = FileNode { id, name: on.node.clone(), addresses: Vec::new() };
    admit(cluster, &views, name, &entry)?;
    if views.of(name, &on.node).is_none() {
        if file.node_name(NodeId(id)).is_none() {
            file.nodes.push(entry);
        }
        node.change(Command::ResourceDefine { file: Box::new(file) })?;
    }
    done(style, name, &format!("{} may use it{}", on.node, untold(&views)))
}

/// `lockstep resource remove-client`: also of a node that is lost for good.
pub(super) fn remove(cluster: &Cluster, style: Style, on: &OnNode) -> Result<(), Problem> {
    let name = &on.name;
    let (ref cluster, views) = Views::one(cluster, name)?;
    let file = file_of(doer(cluster, &views, name)?, name)?;
    let absent = || Problem::new(NO_MEMBER, format!("{} is no client of {name}", on.node));
    let listed = file.nodes.iter().find(|node| node.name == on.node).map(|node| node.id);
    let known = views.of(name, &on.node);
    let member = views
        .require(name)?
        .replicas
        .iter()
        .any(|replica| replica.node == on.node && replica.state != ReplicaState::Diskless);
    if member {
        let message = format!("{} is a member of {name}", on.node);
        return Err(Problem::from_code(&codes::NOT_A_CLIENT, message));
    }
    if known.is_some_and(|view| view.clients > 0) {
        let message = format!("{name} is open for NBD clients of node {}", on.node);
        return Err(Problem::from_code(&codes::IN_USE, message));
    }
    let id = match (listed, cluster.node(&on.node)) {
        (Some(id), _) => id,
        (None, Ok(node)) if known.is_some() => node_status(node)?.node_id,
        (None, _) => return Err(absent()),
    };
    for node in knowing(cluster, &views, name).filter(|node| node.name != on.node) {
        node.change(Command::ResourceDismiss { resource: name.clone(), node: id })?;
    }
    if known.is_some() {
        let node = cluster.node(&on.node)?;
        // It may have been a member, and not have heard that it is none any more.
        node.change(Command::ResourceForget { resource: name.clone(), stores: true })?;
    }
    let others = views.silent.iter().filter(|(silent, _)| *silent != on.node);
    let rest = Views { silent: others.cloned().collect(), ..Views::default() };
    done(style, name, &format!("{} may not use it any more{}", on.node, untold(&rest)))
}

//! Which nodes a resource has, and so who may speak about it here.
//!
//! The certificate says which node a peer is; whether that node has anything to do with a resource is asked of
//! the resource: its file names its nodes, members and clients, and the configuration names its members. Both
//! count, because a member that joined while this node was away is in the configuration first; its node is then
//! entered in the file, so that it stays a client when it is no member any more, until an operator dismisses it.
//!
//! Always: a node that is neither hears nothing of a resource, and nothing that it says about it reaches its
//! machines, on any thread; it is counted once for each connection and resource, and named in the log and in the
//! status as long as it goes on asking.
//!
//! Not here: who is let in as a node at all (`link`), what members may ask of each other (`replica`).

use base::{NodeId, ResourceId};
use wire::Configuration;
use wire::admin::{FileNode, ResourceFile, codes};

use super::Node;
use super::admin::{described, no_resource};
use super::threads::Parcel;
use crate::backing::Refused;
use crate::log::{info, warning};
use crate::slab::Key;

/// The nodes of a resource, ascending.
pub(super) fn nodes_of(file: &ResourceFile, known: Option<&Configuration>) -> Vec<NodeId> {
    let named = file.nodes.iter().map(|node| NodeId(node.id));
    let members = known.into_iter().flat_map(|known| &known.members).map(|member| member.node);
    let mut nodes: Vec<NodeId> = named.chain(members).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Whom a configuration names as members, and in which fork.
pub(super) fn members_of(known: &Configuration) -> (Vec<NodeId>, u64) {
    (known.members.iter().map(|member| member.node).collect(), known.fork)
}

/// Members of a resource's file that a forced configuration has left out.
pub(super) fn left_out<'a>(
    file: &'a ResourceFile,
    known: &'a Configuration,
) -> impl Iterator<Item = NodeId> + 'a {
    let listed = file.members.iter().map(|member| NodeId(member.node));
    listed.filter(|&node| known.fork > 0 && known.member(node).is_none())
}

/// Takes members out of a description that are no more. What is left has to be one that a node can start with, so
/// it follows the configuration where it was not one before.
pub(super) fn without(
    file: &ResourceFile,
    known: Option<&Configuration>,
    gone: impl Fn(NodeId) -> bool,
) -> ResourceFile {
    let mut file = file.clone();
    let before = file.members.len();
    file.members.retain(|member| !gone(NodeId(member.node)));
    let Some(known) = known.filter(|_| file.members.len() < before) else { return file };
    file.options = known.options.clone();
    if file.check().is_err() {
        for member in &mut file.members {
            let entry = known.member(NodeId(member.node));
            member.in_sync = entry.map(|entry| entry.in_sync).or(member.in_sync);
        }
    }
    file
}

impl Node {
    /// Whether a node is one of a resource's that runs here.
    pub(super) fn is_of(&self, id: ResourceId, node: NodeId) -> bool {
        let resource = self.resource_by_id(id).and_then(|key| self.resources.get(key));
        resource.is_some_and(|resource| resource.nodes.contains(&node))
    }

    /// `ResourceAdmit`: the node is one of the resource's, as a client.
    pub(super) fn admit(&mut self, name: &str, node: FileNode) -> Result<(), Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let id = NodeId(node.id);
        let listed = known.file.node_name(id).is_some();
        if listed && known.roster.standing(id) == Some(true) {
            return Ok(());
        }
        let mut file = known.file.clone();
        if !listed {
            file.nodes.push(node);
        }
        file.check().map_err(|error| Refused::new(&codes::BAD_RESOURCE_FILE, error.0))?;
        self.note_standing(name, id, true);
        if !listed {
            self.rename_nodes(name, file)?;
        }
        self.vouch(name);
        Ok(())
    }

    /// `ResourceDismiss`: the node is no client of the resource any more.
    pub(super) fn dismiss(&mut self, name: &str, node: NodeId) -> Result<(), Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let shown = self.node_name(name, node);
        if node == self.config.node {
            let message =
                format!("{name}: a node does not dismiss itself; it forgets the resource");
            return Err(Refused::new(&codes::NOT_A_CLIENT, message));
        }
        let running = known.running.and_then(|key| self.resources.get(key));
        let configuration = running.and_then(|resource| resource.configuration());
        let listed = known.file.members.iter().any(|member| member.node == node.0);
        let member = match &configuration {
            Some(configuration) => configuration.member(node).is_some(),
            None => listed,
        };
        if member {
            let message = format!("{name}: {shown} is a member of it");
            return Err(Refused::new(&codes::NOT_A_CLIENT, message));
        }
        if configuration.as_ref().is_some_and(|of| of.primary == Some(node)) {
            let message = format!("{name}: {shown} is its primary, and clients there use it");
            return Err(Refused::new(&codes::IN_USE, message));
        }
        // What the file says of members is as old as the file.
        let mut file = without(&known.file, configuration.as_deref(), |member| member == node);
        file.nodes.retain(|entry| entry.id != node.0);
        let changed = file != known.file;
        if !changed && known.roster.standing(node) == Some(false) {
            return Ok(());
        }
        file.check().map_err(|error| Refused::new(&codes::BAD_RESOURCE_FILE, error.0))?;
        // Also if this node never knew it: others that were away may.
        self.note_standing(name, node, false);
        if changed {
            info!("{name}: {shown} is none of its nodes any more");
            self.rename_nodes(name, file)?;
        }
        self.vouch(name);
        Ok(())
    }

    pub(super) fn rename_nodes(&mut self, name: &str, file: ResourceFile) -> Result<(), Refused> {
        self.save(&file)?;
        self.learn_nodes(&file);
        let Some(known) = self.known.get_mut(name) else { return Ok(()) };
        known.file = file;
        if let Some(key) = known.running {
            self.settle_nodes(key);
        }
        Ok(())
    }

    /// The nodes of a resource may have changed: all threads and peers hear it.
    pub(super) fn settle_nodes(&mut self, key: Key) {
        let Some(resource) = self.resources.get(key) else { return };
        let Some(known) = self.known.get(&resource.name) else { return };
        let nodes = nodes_of(&known.file, resource.configuration().as_deref());
        if nodes == resource.nodes {
            return;
        }
        let life = resource.life;
        self.tell_others(|| Parcel::Nodes { life, nodes: nodes.clone() });
        self.take_nodes(key, nodes);
    }

    /// The same, on each thread.
    pub(super) fn take_nodes(&mut self, key: Key, nodes: Vec<NodeId>) {
        if let Some(resource) = self.resources.get_mut(key) {
            resource.nodes = nodes;
            self.tell_all_resources();
        }
    }

    /// A committed configuration may name members whose nodes this node's file does not, or have members no more
    /// that the file names. Those that a fork leaves out stay in the file: they are missed until an operator adds
    /// them again, or dismisses them.
    pub(super) fn learn_members(&mut self, key: Key, configuration: &Configuration) {
        let Some(name) = self.resources.get(key).map(|resource| resource.name.clone()) else {
            return;
        };
        let (now, fork) = members_of(configuration);
        let before = self.resources.get_mut(key).and_then(|resource| {
            resource.members.replace((now.clone(), fork)).filter(|(_, of)| *of == fork)
        });
        let Some(known) = self.known.get(&name) else { return };
        let own = self.config.node;
        let gone = |node: NodeId| {
            let was = before.as_ref().is_some_and(|(before, _)| before.contains(&node));
            node != own && was && !now.contains(&node)
        };
        let changed = before.as_ref().is_none_or(|(before, _)| *before != now);
        let mut file = without(&known.file, Some(configuration), gone);
        let mut came = Vec::new();
        for member in &configuration.members {
            if file.node_name(member.node).is_none() {
                let id = member.node.0;
                came.push(member.node);
                let name = self.node_name(&name, member.node);
                file.nodes.push(FileNode { id, name, addresses: Vec::new() });
            }
            if member.node != own && !file.members.iter().any(|one| one.node == member.node.0) {
                file.members.push(described(member));
            }
        }
        if file != known.file
            && file.check().is_ok()
            && let Err(refused) = self.rename_nodes(&name, file)
        {
            warning!("{name}: its file does not say what members there are: {refused}");
        }
        self.settle_nodes(key);
        let blank = self.known.get(&name).is_none_or(|known| known.roster.is_blank());
        if changed {
            self.learn_of_register(&name, configuration, &came);
        } else if !blank {
            self.vouch(&name);
        }
    }

    /// The register has said which members there are: vouchers say no more about that, and are signed anew.
    fn learn_of_register(&mut self, name: &str, configuration: &Configuration, came: &[NodeId]) {
        let Some(known) = self.known.get_mut(name) else { return };
        known.roster.reach_register(configuration);
        for &node in came {
            known.roster.note_member(node);
        }
        self.settle_roster(name);
        self.vouch(name);
    }

    /// A peer speaks about a resource of this node that it has no part in.
    pub(super) fn note_outsider(&mut self, peer: NodeId, id: ResourceId) {
        self.peers.outsiders += 1;
        let resource = self.resource_by_id(id).and_then(|key| self.resources.get(key));
        let name = resource.map_or_else(String::new, |resource| resource.name.clone());
        warning!(
            "{name}: node {} speaks about it and is refused: it is none of its nodes",
            self.node_name(&name, peer)
        );
    }
}

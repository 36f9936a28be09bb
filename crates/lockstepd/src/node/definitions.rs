//! Which resources there are, told from node to node: a node that was away when a resource was made or
//! deleted hears of it from its peers.
//!
//! Who sees in a peer's list a resource that it does not know asks what it is, and defines it; it then
//! serves it as a client. What its operator deleted a node tells every peer.
//!
//! Always: only nodes that a resource's file names are told about it; that it is deleted is believed of its
//! members only, as far as this node knows them or was told of them by others (`vouchers`); nothing that a peer
//! says removes a copy: a node that holds one keeps it, and says in its status that the others have
//! deleted it. What is said while this node's part is being made or removed counts when that is over.
//!
//! Not here: lists of resources (`peers::common`), what an operator asks of this node (`admin`), what is
//! remembered of deleted resources (`deleted`).

use base::{NodeId, ResourceId};
use wire::DESCRIPTION_BYTES_MAX;
use wire::admin::{ResourceFile, decode_line, encode_line};

use super::Node;
use super::files::remove_files;
use crate::log::{error, info, warning, warning_limited};

impl Node {
    /// Whether a resource that a peer has is one to ask about.
    pub(super) fn is_unheard_of(&self, id: ResourceId) -> bool {
        !self.deleted.has(id) && !self.known.values().any(|known| known.file.id == id.0)
    }

    /// What a resource is, for a peer that is one of its nodes.
    pub(super) fn describe(&self, id: ResourceId, peer: NodeId) -> Option<Vec<u8>> {
        let known = self.known.values().find(|known| known.file.id == id.0)?;
        let named = known.file.node_name(peer).is_some();
        if !named && !self.is_of(id, peer) {
            return None;
        }
        if known.uncreated {
            // Whoever makes it tells each node of it; until then nobody has anything.
            return None;
        }
        let file = self.resource_file(&known.file.name).ok()?;
        let mut text = Vec::new();
        encode_line(&file, &mut text).ok()?;
        if text.len() > DESCRIPTION_BYTES_MAX {
            let shown = self.node_name(&file.name, peer);
            warning!("{}: {shown} cannot be told of it: its description is too long", file.name);
            return None;
        }
        Some(text)
    }

    /// A peer has described a resource.
    pub(super) fn on_description(&mut self, peer: NodeId, id: ResourceId, text: &[u8]) {
        if self.stopping.is_some() || !self.is_unheard_of(id) {
            return;
        }
        let name = self.peers.nodes.get(&peer).map_or("?", |peer| peer.name.as_str()).to_owned();
        let file: ResourceFile = match decode_line(text) {
            Ok(file) => file,
            Err(error) => return warning!("node {name} described a resource badly: {error}"),
        };
        if file.id != id.0 || file.node_name(peer).is_none() {
            return warning!("node {name} described a resource that is not its own");
        }
        let resource = file.name.clone();
        match self.define(file, false) {
            Ok(()) => {
                info!("{resource}: heard of it from node {name}");
                self.run_stored(&resource);
            }
            Err(refused) => {
                warning_limited!("{resource}: node {name} has it, and it is refused: {refused}");
            }
        }
    }

    /// A resource is no more: peers are told.
    pub(super) fn note_deleted(&mut self, id: ResourceId) {
        if self.deleted.add(&[id]) {
            self.tell_deleted();
        }
    }

    /// A peer says that resources are deleted.
    pub(super) fn on_deleted(&mut self, peer: NodeId, ids: &[ResourceId]) {
        let mut heard = Vec::new();
        for &id in ids {
            let Some(known) = self.known_by_id(id) else {
                heard.push(id);
                continue;
            };
            let name = known.file.name.clone();
            if known.file.node_name(peer).is_none() {
                continue;
            }
            if self.is_changing_soon(known) {
                self.deleted.hear_later(peer, id);
                continue;
            }
            if !self.is_member_of(known, peer) {
                self.note_hearsay(&name, peer);
                continue;
            }
            let member = known.file.members.iter().any(|member| member.node == self.config.node.0);
            if member && !known.uncreated {
                self.note_orphan(&name, peer);
                continue;
            }
            heard.push(id);
            info!("{name}: it was deleted");
            self.end(&name, "the resource is deleted");
            self.known.remove(&name);
            self.drop_roster(id);
            if let Err(refused) = remove_files(&self.files_of(&name)) {
                error!("{name}: {refused}");
            }
        }
        self.deleted.hear(peer, &heard);
    }

    /// Follows what was said while this node's part in a resource was changing; whether there was any of it.
    pub(super) fn follow_waiting(&mut self) -> bool {
        if !self.deleted.is_waiting() {
            return false;
        }
        let changing = self.known.values().filter(|known| self.is_changing_soon(known));
        let changing: Vec<ResourceId> = changing.map(|known| ResourceId(known.file.id)).collect();
        let now = self.deleted.take_waiting(|id| !changing.contains(&id));
        for &(id, peer) in &now {
            self.on_deleted(peer, &[id]);
        }
        !now.is_empty()
    }

    /// A client says that a resource is deleted. It may be right: perhaps all members that this node knew were
    /// replaced while it was away.
    fn note_hearsay(&mut self, name: &str, peer: NodeId) {
        let whose = self.node_name(name, peer);
        let words = format!(
            "{whose} says that it is deleted, which is no member of it as far as is known here; if it is: \
             `lockstep resource forget {name} --node {}`",
            self.config.name
        );
        self.note_problem(name, words);
    }

    /// This node holds a copy of what the others have deleted. It is the operator's to remove.
    fn note_orphan(&mut self, name: &str, peer: NodeId) {
        let words = self.orphan_words(name);
        let Some(known) = self.known.get_mut(name) else { return };
        known.left_over.insert(peer);
        self.note_problem(name, words);
    }

    fn orphan_words(&self, name: &str) -> String {
        format!(
            "deleted on other nodes; what this node holds of it is still there: \
             `lockstep resource forget {name} --node {}` removes that, and nothing else",
            self.config.name
        )
    }

    /// A node that said that a resource is deleted has it again; `None`: this node's operator says that it is there.
    pub(super) fn note_there(&mut self, id: ResourceId, peer: Option<NodeId>) {
        let Some(name) = self.known_by_id(id).map(|known| known.file.name.clone()) else { return };
        let words = self.orphan_words(&name);
        let Some(known) = self.known.get_mut(&name) else { return };
        match peer {
            Some(peer) => {
                known.left_over.remove(&peer);
            }
            None => known.left_over.clear(),
        }
        if known.left_over.is_empty() && known.problem.as_ref() == Some(&words) {
            known.problem = None;
        }
    }

    fn note_problem(&mut self, name: &str, words: String) {
        let Some(known) = self.known.get_mut(name) else { return };
        if known.problem.is_none() {
            warning!("{name}: {words}");
            known.problem = Some(words);
        }
    }
}

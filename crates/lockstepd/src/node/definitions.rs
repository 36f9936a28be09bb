//! Which resources there are, told from node to node: a node that was away when a resource was made or
//! deleted hears of it from its peers.
//!
//! Who sees in a peer's list a resource that it does not know asks what it is, and defines it; it then
//! serves it as a client. What was deleted is remembered by its identity, which is never used again,
//! and told to every peer.
//!
//! Always: only nodes that a resource's file names are told about it or believed; nothing that a peer
//! says removes a copy: a node that holds one keeps it, and says in its status that the others have
//! deleted it.
//!
//! Not here: lists of resources (`peers::common`), what an operator asks of this node (`admin`).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use base::{NodeId, ResourceId};
use serde::{Deserialize, Serialize};
use wire::RESOURCES_MAX;
use wire::admin::{ResourceFile, decode_line, encode_line};

use super::Node;
use super::lifecycle::replace_file;
use crate::log::{error, info, warning};

/// Identities of resources that are no more, remembered; the oldest goes first. As many as one message
/// names: a node that was away while more were deleted has to be told by its operator.
const DELETED_MAX: usize = RESOURCES_MAX;

/// Resources that are no more, as a file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeletedFile {
    /// In hexadecimal, the oldest first.
    deleted: Vec<String>,
    /// Known to be there, and not wanted on this node.
    #[serde(default)]
    forgotten: Vec<String>,
}

/// Resources that are no more, or that this node was told to forget.
#[derive(Debug, Default)]
pub(crate) struct Deleted {
    path: PathBuf,
    deleted: VecDeque<ResourceId>,
    forgotten: VecDeque<ResourceId>,
}

impl Deleted {
    /// What the file in this directory says; nothing if there is none.
    pub(crate) fn read(directory: &Path) -> Result<Deleted, String> {
        let path = directory.join("deleted.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let file: DeletedFile = if text.is_empty() {
            DeletedFile::default()
        } else {
            toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?
        };
        let ids = |list: &[String]| {
            let id = |text: &String| u64::from_str_radix(text, 16).ok().map(ResourceId);
            list.iter().filter_map(id).collect()
        };
        Ok(Deleted { deleted: ids(&file.deleted), forgotten: ids(&file.forgotten), path })
    }

    /// All that are deleted, ascending.
    pub(crate) fn ids(&self) -> Vec<ResourceId> {
        let mut ids: Vec<ResourceId> = self.deleted.iter().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn has(&self, id: ResourceId) -> bool {
        self.deleted.contains(&id) || self.forgotten.contains(&id)
    }

    /// Remembers them; whether any was new.
    fn add(&mut self, ids: &[ResourceId]) -> bool {
        let before = self.deleted.back().copied();
        for id in ids {
            if !self.deleted.contains(id) {
                self.deleted.push_back(*id);
            }
        }
        while self.deleted.len() > DELETED_MAX {
            self.deleted.pop_front();
        }
        let changed = self.deleted.back().copied() != before;
        if changed {
            self.save();
        }
        changed
    }

    /// This node does not want to hear of it again.
    pub(crate) fn forget(&mut self, id: ResourceId) {
        if !self.has(id) {
            self.forgotten.push_back(id);
            if self.forgotten.len() > DELETED_MAX {
                self.forgotten.pop_front();
            }
            self.save();
        }
    }

    /// It is there after all: an operator says so.
    pub(crate) fn recall(&mut self, id: ResourceId) {
        if self.has(id) {
            self.deleted.retain(|other| *other != id);
            self.forgotten.retain(|other| *other != id);
            self.save();
        }
    }

    /// A file that cannot be written costs a peer's repeated word, no more.
    fn save(&self) {
        let hex = |list: &VecDeque<ResourceId>| {
            list.iter().map(|id| format!("{:016x}", id.0)).collect::<Vec<_>>()
        };
        let file = DeletedFile { deleted: hex(&self.deleted), forgotten: hex(&self.forgotten) };
        let text = toml::to_string(&file).expect("lists of words");
        if let Err(error) = replace_file(&self.path, text.as_bytes()) {
            warning!("{}: {error}", self.path.display());
        }
    }
}

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
        let file = self.resource_file(&known.file.name).ok()?;
        let mut text = Vec::new();
        encode_line(&file, &mut text).ok()?;
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
        match self.define(file) {
            Ok(()) => info!("{resource}: heard of it from node {name}"),
            Err(refused) => {
                warning!("{resource}: node {name} has it, and it is refused: {refused}")
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
            let known = self.known.values().find(|known| known.file.id == id.0);
            let Some(known) = known else {
                heard.push(id);
                continue;
            };
            let name = known.file.name.clone();
            if known.file.node_name(peer).is_none() || known.busy {
                continue;
            }
            let holds = known.file.members.iter().any(|member| member.node == self.config.node.0);
            if holds {
                self.note_orphan(&name);
                continue;
            }
            heard.push(id);
            info!("{name}: it was deleted");
            self.end(&name, "the resource is deleted");
            self.known.remove(&name);
            if let Err(error) = std::fs::remove_file(self.resource_path(&name)) {
                error!("{name}: its file cannot be removed: {error}");
            }
        }
        if self.deleted.add(&heard) {
            self.tell_deleted();
        }
    }

    /// This node holds a copy of what the others have deleted. It is the operator's to remove.
    fn note_orphan(&mut self, name: &str) {
        let words = format!(
            "deleted on other nodes; what this node holds of it is still there: \
             `lockstep resource forget {name} --node {}` removes that, and nothing else",
            self.config.name
        );
        let Some(known) = self.known.get_mut(name) else { return };
        known.left_over = true;
        if known.problem.is_none() {
            warning!("{name}: {words}");
            known.problem = Some(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DELETED_MAX, Deleted};
    use base::ResourceId;

    #[test]
    fn what_is_deleted_is_remembered_over_a_start_and_the_oldest_is_let_go() {
        let directory =
            std::env::temp_dir().join(format!("lockstepd-deleted-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let mut deleted = Deleted::read(&directory).expect("no file yet");
        assert!(deleted.add(&[ResourceId(3), ResourceId(1)]));
        assert!(!deleted.add(&[ResourceId(1)]), "it was known");
        deleted.forget(ResourceId(9));
        let mut again = Deleted::read(&directory).expect("the file just written");
        assert_eq!(again.ids(), [ResourceId(1), ResourceId(3)], "what is forgotten is not told");
        assert!(again.has(ResourceId(9)));
        again.recall(ResourceId(9));
        assert!(!again.has(ResourceId(9)));
        let many: Vec<ResourceId> =
            (10..10 + u64::try_from(DELETED_MAX).expect("small")).map(ResourceId).collect();
        again.add(&many);
        assert_eq!(again.ids().len(), DELETED_MAX);
        assert!(!again.has(ResourceId(3)), "the oldest stays for ever");
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

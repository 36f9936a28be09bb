//! Resources that are no more, by their identities, which are never used again (`deleted.toml`).
//!
//! What this node's own operator deleted is kept apart from what other nodes said, and that by who said it.
//!
//! Always: whoever says much displaces only its own words; a node tells others what its operator deleted, and not
//! what it has from hearsay, so that nobody's words go by another's name.
//!
//! Not here: whose word makes this node forget a resource (`definitions`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use base::{NodeId, ResourceId};
use serde::{Deserialize, Serialize};
use wire::RESOURCES_MAX;

use super::files::replace_file;
use crate::log::warning;

/// Identities remembered of one source; the oldest goes first. As many as one message names: a node that was
/// away while more were deleted has to be told by its operator.
const DELETED_MAX: usize = RESOURCES_MAX;

/// Nodes whose words are remembered: as many as a resource has. 2 MiB of memory if each says all it may.
const TELLERS_MAX: usize = 64;

/// Resources that are no more, as a file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeletedFile {
    /// In hexadecimal, the oldest first.
    deleted: Vec<String>,
    /// Known to be there, and not wanted on this node.
    #[serde(default)]
    forgotten: Vec<String>,
    /// What other nodes said, by their numbers.
    #[serde(default)]
    told: BTreeMap<String, Vec<String>>,
}

/// Resources that are no more, or that this node was told to forget.
#[derive(Debug, Default)]
pub(crate) struct Deleted {
    path: PathBuf,
    deleted: VecDeque<ResourceId>,
    forgotten: VecDeque<ResourceId>,
    told: BTreeMap<NodeId, VecDeque<ResourceId>>,
    /// What nodes of these resources said while this node's part in them was changing. Not kept over a start, after
    /// which they say it again.
    waiting: BTreeSet<(ResourceId, NodeId)>,
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
        let told = file.told.iter().filter_map(|(node, list)| {
            let node = node.parse().ok()?;
            Some((NodeId(node), ids(list)))
        });
        let told = told.take(TELLERS_MAX).collect();
        let (deleted, forgotten) = (ids(&file.deleted), ids(&file.forgotten));
        Ok(Deleted { deleted, forgotten, told, waiting: BTreeSet::new(), path })
    }

    /// All that this node's operator deleted, ascending.
    pub(super) fn ids(&self) -> Vec<ResourceId> {
        let mut ids: Vec<ResourceId> = self.deleted.iter().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn has(&self, id: ResourceId) -> bool {
        let own = self.deleted.contains(&id) || self.forgotten.contains(&id);
        own || self.told.values().any(|list| list.contains(&id))
    }

    /// This node's operator has deleted them; whether any of that is new.
    pub(super) fn add(&mut self, ids: &[ResourceId]) -> bool {
        let mut new = false;
        for &id in ids {
            new |= remember(&mut self.deleted, id);
        }
        if new {
            self.save();
        }
        new
    }

    /// A node says that they are deleted.
    pub(super) fn hear(&mut self, teller: NodeId, ids: &[ResourceId]) {
        if !self.told.contains_key(&teller) && self.told.len() >= TELLERS_MAX {
            return;
        }
        let list = self.told.entry(teller).or_default();
        let mut new = false;
        for &id in ids {
            new |= remember(list, id);
        }
        if new {
            self.save();
        }
    }

    /// A node of a resource says that it is deleted, and this node can follow that only later. As many words as the
    /// resource has nodes, at most.
    pub(super) fn hear_later(&mut self, teller: NodeId, id: ResourceId) {
        self.waiting.insert((id, teller));
    }

    /// Takes out what waits and can be followed now.
    pub(super) fn take_waiting(
        &mut self,
        can: impl Fn(ResourceId) -> bool,
    ) -> Vec<(ResourceId, NodeId)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (now, later): (Vec<_>, Vec<_>) = waiting.partition(|(id, _)| can(*id));
        self.waiting = later.into_iter().collect();
        now
    }

    /// Whether anything waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// This node does not want to hear of it again.
    pub(super) fn forget(&mut self, id: ResourceId) {
        if !self.has(id) && remember(&mut self.forgotten, id) {
            self.save();
        }
    }

    /// It is there after all: an operator says so.
    pub(super) fn recall(&mut self, id: ResourceId) {
        if self.has(id) {
            let lists = self.told.values_mut().chain([&mut self.deleted, &mut self.forgotten]);
            for list in lists {
                list.retain(|other| *other != id);
            }
            self.save();
        }
    }

    /// A file that cannot be written costs a peer's repeated word, no more.
    fn save(&self) {
        let hex = |list: &VecDeque<ResourceId>| {
            list.iter().map(|id| format!("{:016x}", id.0)).collect::<Vec<_>>()
        };
        let told = self.told.iter().map(|(node, list)| (node.to_string(), hex(list))).collect();
        let file =
            DeletedFile { deleted: hex(&self.deleted), forgotten: hex(&self.forgotten), told };
        let text = toml::to_string(&file).expect("lists of words");
        if let Err(error) = replace_file(&self.path, text.as_bytes()) {
            warning!("{}: {error}", self.path.display());
        }
    }
}

/// Puts an identity behind the others, if it is new; the oldest goes where there are too many.
fn remember(list: &mut VecDeque<ResourceId>, id: ResourceId) -> bool {
    if list.contains(&id) {
        return false;
    }
    list.push_back(id);
    if list.len() > DELETED_MAX {
        list.pop_front();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{DELETED_MAX, Deleted, TELLERS_MAX};
    use base::{NodeId, ResourceId};

    fn directory(name: &str) -> std::path::PathBuf {
        let name = format!("lockstepd-deleted-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        directory
    }

    /// As many as one message names, from this one on.
    fn many(first: u64) -> Vec<ResourceId> {
        (first..first + u64::try_from(DELETED_MAX).expect("small")).map(ResourceId).collect()
    }

    #[test]
    fn what_is_deleted_is_remembered_over_a_start_and_the_oldest_is_let_go() {
        let directory = directory("start");
        let mut deleted = Deleted::read(&directory).expect("no file yet");
        assert!(deleted.add(&[ResourceId(3), ResourceId(1)]));
        assert!(!deleted.add(&[ResourceId(1)]), "it was known");
        deleted.forget(ResourceId(9));
        deleted.hear(NodeId(2), &[ResourceId(5)]);
        let mut again = Deleted::read(&directory).expect("the file just written");
        let told = "what is forgotten is not told, nor what another said";
        assert_eq!(again.ids(), [ResourceId(1), ResourceId(3)], "{told}");
        for id in [9, 5] {
            assert!(again.has(ResourceId(id)));
            again.recall(ResourceId(id));
            assert!(!again.has(ResourceId(id)));
        }
        again.add(&many(10));
        assert_eq!(again.ids().len(), DELETED_MAX);
        assert!(!again.has(ResourceId(3)), "the oldest stays for ever");
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }

    #[test]
    fn who_says_much_displaces_its_own_words_only() {
        let directory = directory("words");
        let mut deleted = Deleted::read(&directory).expect("no file yet");
        deleted.add(&[ResourceId(1)]);
        deleted.hear(NodeId(2), &[ResourceId(2)]);
        deleted.hear(NodeId(3), &[ResourceId(2), ResourceId(3)]);
        deleted.hear(NodeId(3), &many(100));
        assert!(!deleted.has(ResourceId(3)), "its own first word stays for ever");
        assert!(deleted.has(ResourceId(1)) && deleted.has(ResourceId(2)));
        for teller in 4..=u16::try_from(TELLERS_MAX).expect("few") + 4 {
            deleted.hear(NodeId(teller), &[ResourceId(u64::from(teller) << 32)]);
        }
        assert_eq!(deleted.told.len(), TELLERS_MAX);
        assert!(deleted.has(ResourceId(2)));
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }

    #[test]
    fn a_file_of_an_older_version_is_read() {
        let directory = directory("older");
        let text = "deleted = [\"0000000000000007\"]\nforgotten = [\"0000000000000008\"]\n";
        std::fs::write(directory.join("deleted.toml"), text).expect("this test's own");
        let deleted = Deleted::read(&directory).expect("a good file");
        assert_eq!(deleted.ids(), [ResourceId(7)]);
        assert!(deleted.has(ResourceId(8)));
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

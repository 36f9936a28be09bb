//! Parts of resources that are defined here and whose stores are not made: never, or not to the end.
//!
//! A file beside the resource's own says so, from its definition on until the stores are made. Once their making begins
//! it names what that makes and changes.
//!
//! Always: after a process that ended in the middle of it, the next start takes back what was begun, so that nothing is
//! left of it but the definition.
//!
//! Not here: making stores (`backing`), what becomes of a node with such a part (`lifecycle`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Ballot, Epoch};
use replica::disk::Record;
use wire::admin::{ResourceFile, codes};

use super::Node;
use super::files::{remove_files, replace_file};
use super::lifecycle::{Known, joins_later};
use super::resource::Resource;
use crate::backing::{self, Begun, Plan, Refused};
use crate::log::{error, warning};

impl Node {
    /// A file that is there from the definition of a resource until its stores are made. It says what the making of
    /// them makes and changes, once that has begun.
    pub(super) fn uncreated_path(&self, name: &str) -> PathBuf {
        self.config.directory.join("resources").join(format!("{name}.uncreated"))
    }

    /// Until its stores begin to be made it is certain that this node holds nothing of a resource.
    pub(super) fn note_uncreated(&self, name: &str) -> Result<(), Refused> {
        write(&self.uncreated_path(name), &Begun::default())
    }

    /// Writes a definition behind the word that this node's part is `uncreated`, if it is. That word stays where the part is
    /// known already not to be made; else it is taken back if the definition is not written, and so is what an earlier one
    /// left that was not.
    pub(super) fn save_noted(&self, file: &ResourceFile, uncreated: bool) -> Result<(), Refused> {
        let noted = self.known.get(&file.name).is_some_and(|known| known.uncreated);
        let take_back = || match noted {
            true => Ok(()),
            false => remove_files(&[self.uncreated_path(&file.name)]),
        };
        if uncreated {
            self.note_uncreated(&file.name)?;
        } else {
            take_back()?;
        }
        let saved = self.save(file);
        if saved.is_err()
            && let Err(refused) = take_back()
        {
            warning!("{}: {refused}", file.name);
        }
        saved
    }

    /// Its stores could not be made, and may be when what stood in the way is gone.
    pub(super) fn is_unmade_still(&mut self, name: &str, uncreated: bool) {
        if !uncreated {
            return self.is_uncreated_no_more(name);
        }
        if let Err(refused) = self.note_uncreated(name) {
            return warning!("{name}: {refused}");
        }
        if let Some(known) = self.known.get_mut(name) {
            known.uncreated = true;
        }
    }

    /// This node's part is made, or is to be none.
    pub(super) fn is_uncreated_no_more(&mut self, name: &str) {
        if let Err(refused) = remove_files(&[self.uncreated_path(name)]) {
            return warning!("{name}: {refused}");
        }
        if let Some(known) = self.known.get_mut(name) {
            known.uncreated = false;
        }
    }

    /// Whether this node was to be added to a resource, and has heard of nobody who counts on it: what it knows is its
    /// own description only, and it has promised nothing.
    pub(super) fn never_joined(&self, known: &Known) -> bool {
        let running = known.running.and_then(|key| self.resources.get(key));
        let newest = running.and_then(Resource::configuration);
        let record = running.and_then(|resource| resource.disk.as_ref()?.record.as_ref());
        let blank = record.is_none_or(|record| {
            let heard = record.committed.is_some() || record.accepted.is_some();
            !heard && record.promised == Ballot::default()
        });
        let first = newest.is_none_or(|newest| newest.epoch <= Epoch(1));
        joins_later(&known.file, self.config.node) && first && blank
    }
}

/// Makes the stores of a resource, unless that is given up: what is begun is noted in this file, and taken away at the next
/// start if that is still there then.
pub(super) fn make(
    path: &Path,
    plans: &[Plan],
    labels: &[Vec<u8>],
    record: &Record,
    force: bool,
    given_up: &Arc<AtomicBool>,
) -> Result<(), Refused> {
    write(path, &Begun::of(plans))?;
    backing::make(plans, labels, record, force, given_up)?;
    remove_files(&[path.to_path_buf()])
}

fn write(path: &Path, begun: &Begun) -> Result<(), Refused> {
    let failed =
        |error: String| Refused::new(&codes::STORE_FAILED, format!("{}: {error}", path.display()));
    let text = toml::to_string(begun).map_err(|error| failed(error.to_string()))?;
    replace_file(path, text.as_bytes()).map_err(|error| failed(error.to_string()))
}

/// Whether a resource's stores were never made, as this file says by being there. What was begun of them is taken back, once:
/// what is found there at a later start is somebody else's.
pub(super) fn undo_begun(path: &Path) -> bool {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
        Err(error) => {
            error!("{}: {error}", path.display());
            return true;
        }
    };
    match toml::from_str::<Begun>(&text) {
        Ok(begun) if begun.is_empty() => {}
        Ok(begun) => {
            begun.undo();
            if let Err(refused) = write(path, &Begun::default()) {
                error!("{refused}");
            }
        }
        Err(error) => error!("{}: {error}; what was begun is left", path.display()),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::undo_begun;

    #[test]
    fn what_was_begun_is_taken_back_once_and_not_what_came_there_since() {
        let name = format!("lockstepd-unmade-{:x}", sys::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        let [note, made, kept] =
            ["a.uncreated", "made.img", "kept.img"].map(|name| directory.join(name));
        std::fs::write(&made, [1; 4096]).expect("written");
        std::fs::write(&kept, [2; 8192]).expect("written");
        let text = format!("made = [{made:?}]\n[[kept]]\npath = {kept:?}\nlength_bytes = 4096\n");
        std::fs::write(&note, text).expect("written");
        assert!(undo_begun(&note));
        assert!(!made.exists());
        assert!(std::fs::read(&kept).expect("it stays") == [2; 4096]);
        // Another resource's by now, or an operator's.
        std::fs::write(&made, [3; 4096]).expect("written");
        std::fs::write(&kept, [4; 8192]).expect("written");
        assert!(undo_begun(&note), "this node's part is not made yet");
        assert!(std::fs::read(&made).is_ok_and(|bytes| bytes == [3; 4096]));
        assert!(std::fs::read(&kept).is_ok_and(|bytes| bytes == [4; 8192]));
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}

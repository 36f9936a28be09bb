//! What becomes of a resource, one line in the log for each change: who is primary, whether the lease holds, which copies
//! are in sync, what rots. Hosts that a change of reservations concerns are told then too (`reservations`).
//!
//! Always: what repeats itself is told at a limited rate, with how often it came.
//!
//! Not here: what happens to its history (`carry`), connections (`peers`).

use std::sync::Arc;

use base::{Duration, Instant, NodeId, VolumeId};
use replica::member::Outline;
use wire::Configuration;
use wire::admin::Rot;

use super::Node;
use super::threads::Parcel;
use crate::log::{info, warning};
use crate::slab::Key;

/// Between two lines about rot of one resource: 10 seconds.
const ROT_LINES: Duration = Duration::from_secs(10);

/// What was last told of a resource, and what is counted.
#[derive(Debug, Default)]
pub(crate) struct Diary {
    outline: Outline,
    configuration: Option<Arc<Configuration>>,
    /// Since its machines began, on all threads.
    pub(crate) rot: Rot,
    rot_told: Option<Instant>,
    /// Blocks that no line has told of.
    rot_untold: u64,
}

impl Diary {
    /// Whether anybody is primary.
    pub(crate) fn has_primary(&self) -> bool {
        self.configuration.as_ref().is_some_and(|known| known.primary.is_some())
    }
}

impl Node {
    /// After every step of a member: what has changed that somebody may look for later.
    pub(super) fn note_changes(&mut self, key: Key) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        let outline = resource.member().outline();
        if outline == resource.diary.outline {
            return;
        }
        self.recount = true;
        let before = std::mem::replace(&mut resource.diary.outline, outline);
        let configuration = resource.member().status().configuration;
        let old = std::mem::replace(&mut resource.diary.configuration, configuration.clone());
        let name = self.name_of(key).to_owned();
        if outline.reigns && !before.reigns {
            info!("{name}: this node is primary now");
        }
        if before.reigns && !outline.reigns {
            info!("{name}: this node is primary no more");
        } else if before.leased && !outline.leased {
            warning!(
                "{name}: its lease as primary has run out: too few voters answer; requests wait"
            );
        } else if outline.reigns && outline.leased && before.reigns && !before.leased {
            info!("{name}: a majority of the voters answers: it has a lease as primary");
        }
        if let Some((old, new)) = old.zip(configuration) {
            self.tell_copies(&name, &old, &new);
            self.tell_reservations(key, &old, &new);
        }
    }

    /// Which copies have ceased to be in sync, and which are again.
    fn tell_copies(&self, name: &str, old: &Configuration, new: &Configuration) {
        let all = |of: &Configuration| -> Vec<NodeId> { of.in_sync().collect() };
        let (was, is) = (all(old), all(new));
        for node in was.iter().filter(|node| !is.contains(node) && new.is_replica(**node)) {
            info!(
                "{name}: the copy on {} is excluded: writes go on without it (epoch {})",
                self.node_name(name, *node),
                new.epoch.0
            );
        }
        for node in is.iter().filter(|node| !was.contains(node)) {
            info!(
                "{name}: the copy on {} is included: it is in sync (epoch {})",
                self.node_name(name, *node),
                new.epoch.0
            );
        }
    }

    /// Blocks were read that are not what was written.
    pub(super) fn note_rot(&mut self, key: Key, volume: VolumeId, sector: u64, blocks: u64) {
        let now = self.hands.now();
        let Some(resource) = self.resources.get_mut(key) else { return };
        let diary = &mut resource.diary;
        diary.rot_untold += blocks;
        if blocks > 0 && diary.rot_told.is_none_or(|told| now.since(told) >= ROT_LINES) {
            diary.rot_told = Some(now);
            let count = std::mem::take(&mut diary.rot_untold);
            warning!(
                "{}: volume {volume}, near sector {sector}: {count} blocks are not what was written; they are read \
                 elsewhere and repaired; its disk may be failing",
                self.name_of(key)
            );
        }
        self.count_rot(key, Rot { found_blocks: blocks, repaired_blocks: 0 });
    }

    /// Counts it where the status is made.
    pub(super) fn count_rot(&mut self, key: Key, more: Rot) {
        let first = self.threads.is_first();
        let Some(resource) = self.resources.get_mut(key) else { return };
        if more == Rot::default() {
            return;
        }
        resource.diary.rot.found_blocks += more.found_blocks;
        resource.diary.rot.repaired_blocks += more.repaired_blocks;
        let life = resource.life;
        if !first {
            self.tell(0, Parcel::Rot { life, more });
        }
    }
}

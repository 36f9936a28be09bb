//! Sizes of volumes.
//!
//! A volume shrinks by one change. It grows by two: the first says how far it grows, and the primary's
//! shards make what is added zero on every in-sync replica; the second makes it part of the volume. In
//! between any primary goes on with it, a copy in sync becomes primary for it if nobody is, and whoever was asked for it waits.
//!
//! Always: what becomes part of a volume was made zero, and flushed, under this very reign, and the sizes were
//! the same from its beginning to its end.
//!
//! Not here: making it zero (`shard/grow`).

use super::{Member, Pending, Proposal, Then};
use crate::door::OperationError;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{Epoch, Instant, VolumeId};
use wire::{Configuration, VolumeEntry};

/// A volume that grows in a reign.
#[derive(Clone, Debug, Hash)]
pub(super) struct Growth {
    entry: VolumeEntry,
    /// Since when the volume's sizes are these. What a shard began before is of no use.
    since: Epoch,
    /// Shards that have done their part.
    grown: BTreeSet<u16>,
}

impl Member {
    /// How a resize stands: `None` if it is still to be proposed here, else its answer or none yet.
    pub(super) fn watch_resize(
        &mut self,
        pending: &Pending,
        volume: VolumeId,
        sectors: u64,
    ) -> Option<Option<Result<(), OperationError>>> {
        let known = self.known.as_ref()?;
        let entry = known.configuration.volume(volume)?.clone();
        if !pending.begun && self.reign().is_none() {
            return None;
        }
        let is_done = entry.sectors == sectors && (pending.begun || entry.grows_to.is_none());
        if is_done {
            return Some(Some(Ok(())));
        }
        let grows = entry.grows_to == Some(sectors);
        if pending.begun {
            return Some((!grows).then_some(Err(OperationError::Replaced)));
        }
        if grows {
            // It takes as long as it takes, and goes on without who asked.
            self.mark(pending.id, |pending| {
                pending.begun = true;
                pending.deadline = Instant(u64::MAX);
            });
            return Some(None);
        }
        None
    }

    /// A change is committed: of growths that it alters, and in a new reign of all, nothing is done yet.
    pub(super) fn note_growths(&mut self, proposal: &Proposal) {
        let anew = proposal.next.reign != proposal.base.reign;
        let next = &proposal.next;
        let super::Role::Primary(reign) = &mut self.role else { return };
        let mut old = core::mem::take(&mut reign.growths);
        let growing = next.volumes.iter().filter(|entry| entry.grows_to.is_some());
        reign.growths = growing
            .map(|entry| {
                let same = old.remove(&entry.volume).filter(|old| !anew && old.entry == *entry);
                let fresh =
                    || Growth { entry: entry.clone(), since: next.epoch, grown: BTreeSet::new() };
                (entry.volume, same.unwrap_or_else(fresh))
            })
            .collect::<BTreeMap<_, _>>();
    }

    pub(super) fn on_grown(&mut self, shard: u16, volume: VolumeId, since: Epoch) {
        if let Some(reign) = self.reign_mut()
            && let Some(growth) = reign.growths.get_mut(&volume)
            && since >= growth.since
        {
            growth.grown.insert(shard);
        }
    }

    /// What was added to a volume is zero everywhere: it is part of it from now on.
    pub(super) fn change_grown(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let reign = self.reign()?;
        let ready = |entry: &VolumeEntry| {
            let growth = reign.growths.get(&entry.volume);
            growth.is_some_and(|growth| {
                growth.entry == *entry && growth.grown.len() == self.shards.len()
            })
        };
        let at = known.volumes.iter().position(ready)?;
        let mut next = Self::successor(known);
        let entry = &mut next.volumes[at];
        entry.sectors = entry.grows_to.take()?;
        Some((next, Then::Nothing))
    }
}

/// The change that an operator's wish asks for next; `None` while the volume grows to that size.
pub(super) fn resized(
    known: &Configuration,
    volume: VolumeId,
    sectors: u64,
    shrinks: bool,
) -> Result<Option<Configuration>, OperationError> {
    let mut next = Configuration { epoch: Epoch(known.epoch.0 + 1), ..known.clone() };
    let Some(entry) = next.volumes.iter_mut().find(|entry| entry.volume == volume) else {
        return Err(OperationError::NoMember);
    };
    if entry.grows_to == Some(sectors) {
        return Ok(None);
    }
    if sectors < entry.sectors && !shrinks {
        return Err(OperationError::Shrinks);
    }
    if sectors > entry.sectors {
        entry.grows_to = Some(sectors);
    } else {
        (entry.sectors, entry.grows_to) = (sectors, None);
    }
    if wire::check_configuration(&next).is_err() {
        return Err(OperationError::BadSize);
    }
    Ok(Some(next))
}

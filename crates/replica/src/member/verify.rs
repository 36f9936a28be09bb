//! Comparing all replicas, and how far it is.
//!
//! How far is part of the configuration, a stride at a time: whoever is primary goes on from there. The shards
//! compare one stride of one volume; when all have, the configuration says so, and the next begins.
//!
//! Always: what lies before the place that a configuration names was compared to its end, in a reign that served, on every
//! replica that was in sync; if one was not, the configuration says that the verify is a partial one.
//!
//! Not here: comparing and repairing (`shard/copy`).

use super::{Member, Out, Pending, Then};
use crate::door::{OperationError, ToShard};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Epoch, Instant, VolumeId};
use wire::{Configuration, VerifyEntry, VerifyState};

/// A stride that the shards compare.
#[derive(Clone, Debug, Hash)]
pub(super) struct Stride {
    run: u64,
    /// What the configuration said when it began.
    from: VerifyEntry,
    compared: BTreeSet<u16>,
    repaired: u64,
    /// A replica was not in sync at some time since it began.
    partial: bool,
}

impl Member {
    /// How a verify stands: `None` if it is still to be begun here, else its answer or none yet.
    pub(super) fn watch_verify(
        &mut self,
        pending: &Pending,
        anew: bool,
    ) -> Option<Option<Result<(), OperationError>>> {
        let known = self.known.as_ref()?.configuration.clone();
        if pending.begun {
            let state = known.verify.map_or(VerifyState::Stopped, |verify| verify.state);
            return Some(match state {
                VerifyState::Running => None,
                VerifyState::Done => Some(Ok(())),
                VerifyState::Stopped => Some(Err(OperationError::Stopped)),
            });
        }
        // One that begins anew waits for one that is younger than the wish.
        let since = pending.since.unwrap_or(if anew { known.epoch } else { Epoch(0) });
        let joins = known
            .verify
            .is_some_and(|verify| verify.state == VerifyState::Running && verify.began > since);
        self.mark(pending.id, |pending| {
            pending.since = Some(since);
            if joins {
                // It takes as long as it takes, and goes on without who asked.
                pending.begun = true;
                pending.deadline = Instant(u64::MAX);
            }
        });
        joins.then_some(None)
    }

    /// The change that begins a verify, or goes on with one that was stopped.
    pub(super) fn verify_begun(&self, known: &Configuration, anew: bool) -> Option<Configuration> {
        let mut next = Self::successor(known);
        let stopped = known.verify.filter(|old| old.state == VerifyState::Stopped && !anew);
        next.verify = Some(match stopped {
            Some(old) => VerifyEntry { state: VerifyState::Running, ..old },
            None => VerifyEntry {
                state: VerifyState::Running,
                began: next.epoch,
                volume: known.volumes.first()?.volume,
                next: 0,
                repaired: 0,
                at_ms: self.wall_ms(),
                partial: false,
            },
        });
        Some(next)
    }

    /// The change that stops it; `None`: none runs.
    pub(super) fn verify_stopped(known: &Configuration) -> Option<Configuration> {
        let running = known.verify.filter(|verify| verify.state == VerifyState::Running)?;
        let mut next = Self::successor(known);
        next.verify = Some(VerifyEntry { state: VerifyState::Stopped, ..running });
        Some(next)
    }

    /// Lets the shards compare what comes next, and nothing that no configuration asks for.
    pub(super) fn run_verify(&mut self, out: &mut Out) {
        let Some(known) = self.known.as_ref().map(|known| known.configuration.clone()) else {
            return;
        };
        let wanted = known.verify.filter(|verify| verify.state == VerifyState::Running);
        let number = self.verify_run + 1;
        let stride = self.verify_sectors;
        let lacking = known.replicas().any(|node| !known.is_in_sync(node));
        let Some(reign) = self.reign_mut() else { return };
        let wanted = wanted.filter(|_| reign.served);
        if let Some(stride) = &mut reign.verify {
            stride.partial |= lacking;
        }
        if reign.verify.as_ref().map(|run| run.from) == wanted {
            return;
        }
        reign.verify = wanted.map(|from| Stride {
            run: number,
            from,
            compared: BTreeSet::new(),
            repaired: 0,
            partial: lacking,
        });
        let message = match wanted {
            None => ToShard::EndVerify,
            Some(VerifyEntry { volume, next, .. }) => {
                let to = next.saturating_add(stride);
                ToShard::Verify { run: number, volume, from: next, to }
            }
        };
        self.verify_run = number;
        Self::tell_shards(message, out);
    }

    pub(super) fn on_verified(&mut self, shard: u16, run: u64, repaired: u64) {
        if let Some(stride) = self.reign_mut().and_then(|reign| reign.verify.as_mut())
            && stride.run == run
            && stride.compared.insert(shard)
        {
            stride.repaired += repaired;
        }
    }

    /// A stride is compared: the configuration says so.
    pub(super) fn change_verified(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let stride = self.reign()?.verify.as_ref()?;
        let same = known.verify.is_some_and(|verify| verify == stride.from);
        if !same || stride.compared.len() < self.shards.len() {
            return None;
        }
        let mut entry = stride.from;
        entry.repaired += stride.repaired;
        entry.partial |= stride.partial;
        entry.next = entry.next.saturating_add(self.verify_sectors);
        let rest: Vec<(VolumeId, u64)> = known
            .volumes
            .iter()
            .map(|volume| (volume.volume, volume.sectors))
            .filter(|(volume, _)| *volume >= entry.volume)
            .collect();
        match (rest.first(), rest.iter().find(|(volume, _)| *volume > entry.volume)) {
            (Some(&(volume, sectors)), _) if volume == entry.volume && entry.next < sectors => {}
            (_, Some(&(volume, _))) => (entry.volume, entry.next) = (volume, 0),
            (last, None) => {
                entry.state = VerifyState::Done;
                entry.next = last.map_or(0, |&(_, sectors)| sectors);
                entry.at_ms = self.wall_ms();
            }
        }
        let mut next = Self::successor(known);
        next.verify = Some(entry);
        Some((next, Then::Nothing))
    }
}

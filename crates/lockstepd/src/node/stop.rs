//! Stopping in good order: what this node is primary of is given up, clients and peers are told, the
//! disks are flushed, and the records say that nothing is left open.
//!
//! Always: a stop ends within [`STOP_LIMIT`] and [`CLOSE_LIMIT`], also where a disk hangs (but that of the node's own directory); what it did not come to is
//! then as after a crash. So is a disk that failed. The last record is stored when no other is on its way: of its two
//! copies, which a loss of power may tear, one is whole at any time.
//!
//! Not here: who becomes primary instead (`replica`).

use base::{Duration, Instant};
use replica::door::{Operation, OperationId, ToShard};
use sys::Errno;
use wire::Quorum;

use super::disk::{DiskPurpose, LocalDisk};
use super::threads::Parcel;
use super::{Node, Purpose};
use crate::backing::{self, Blocking};
use crate::log::{info, warning};
use crate::slab::{Key, Slab};

/// How long a stop may take. The service manager's own patience is longer.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long peers may take to read all that was said, and to close their connections. Who does not is one that hangs.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long closing idle disks may take after that, and one of them.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
const DISK_LIMIT: Duration = Duration::from_secs(1);
/// Between two looks whether disks are idle.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How far a stop has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// What this node is primary of is being given up.
    Demoting,
    /// Clients are gone; peers read what was said, disks finish. Who dials is not answered. Until when peers are waited for.
    Settling(Instant),
    /// Nothing is left to do.
    Over,
}

/// A stop under way.
pub(crate) struct Stopping {
    phase: Phase,
    until: Instant,
    look: Instant,
}

impl Stopping {
    /// When to look again.
    pub(crate) fn wake_at(&self) -> Instant {
        self.until.min(self.look)
    }
}

impl Node {
    /// Begins to stop; at once if not `graceful`.
    pub(super) fn stop(&mut self, graceful: bool) {
        if self.stopping.is_some() {
            return;
        }
        info!("stopping");
        sys::notify("STOPPING=1");
        let now = self.hands.now();
        let phase = if graceful { Phase::Demoting } else { Phase::Over };
        self.stopping = Some(Stopping { phase, until: now + STOP_LIMIT, look: now });
        self.give_up_long();
        if !graceful {
            return;
        }
        self.shut_disks();
        self.shut_clients();
        self.tell_others(|| Parcel::Shut);
        for key in self.resources.keys() {
            let primary = self.resources.get(key).and_then(|resource| {
                resource.member().status().configuration.and_then(|known| known.primary)
            });
            if primary == Some(self.config.node) {
                self.wish(key, None, Operation::Demote);
            }
        }
        self.step_all();
    }

    /// Whether the loop is to end.
    pub(super) fn is_over(&self) -> bool {
        let stopped = self.stopping.as_ref().is_some_and(|stopping| stopping.phase == Phase::Over);
        stopped || (self.threads.over && !self.threads.holds_parcels())
    }

    /// Whether peers were told goodbye.
    pub(super) fn is_leaving(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.phase != Phase::Demoting)
    }

    /// Takes the next step of a stop, if it is time for it.
    pub(super) fn go_on_stopping(&mut self) {
        let now = self.hands.now();
        let Some(mut stopping) = self.stopping.take() else { return };
        stopping.look = now + LOOK_EVERY;
        let late = stopping.until <= now;
        match stopping.phase {
            Phase::Demoting => {
                let waits = self.hands_over();
                if !waits || late {
                    stopping.phase = Phase::Settling(now + FAREWELL);
                    self.leave();
                    self.cool();
                }
            }
            Phase::Settling(farewell) => {
                let alone = farewell <= now || !self.peers_linger();
                let is_idle = |key| self.is_idle(key) && !is_storing(&self.operations, key);
                let idle = self.resources.keys().into_iter().all(is_idle);
                if idle && alone && !self.threads.asked_to_settle {
                    // Their disks are looked at by themselves. What ends with them, peers' further streams too, ends the first
                    // stream of a session: not before what was said there has been read.
                    self.threads.asked_to_settle = true;
                    self.tell_others(|| Parcel::Settle);
                }
                if (idle && alone && self.threads.is_settled()) || late {
                    stopping.phase = Phase::Over;
                    self.close_disks();
                    // Nobody is served any more.
                    self.save_rosters(CLOSE_LIMIT);
                }
            }
            Phase::Over => {}
        }
        self.stopping = Some(stopping);
    }

    /// Whether something is still to be handed over. Where too few voters are left to decide it, nobody is
    /// waited for: a cluster that is shut down as a whole would wait for those of its nodes that went first.
    fn hands_over(&mut self) -> bool {
        let wishes: Vec<(OperationId, Key)> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.asker.is_none() && pending.host.is_none())
            .map(|(id, pending)| (*id, pending.resource))
            .collect();
        for &(id, key) in &wishes {
            if !self.has_majority(key) {
                info!("{}: too few voters are left to hand it over", self.name_of(key));
                self.pending.remove(&id);
            }
        }
        wishes.iter().any(|(id, _)| self.pending.contains_key(id))
    }

    /// Whether this node has a connection to most voters of a resource.
    fn has_majority(&self, key: Key) -> bool {
        let known = self.resources.get(key).and_then(|resource| resource.configuration());
        let Some(known) = known else { return false };
        let is_here = |node| {
            let peer = self.peers.nodes.get(&node);
            node == self.config.node || peer.is_some_and(|peer| peer.is_connected())
        };
        let here = known.voters().filter(|voter| is_here(voter.node)).count();
        here >= known.majority() || known.options.quorum == Quorum::Off
    }

    fn leave(&mut self) {
        for key in self.resources.keys() {
            self.drop_clients_of(key, "the node is stopping");
        }
        self.leave_peers();
    }

    /// What nobody uses leaves the logs of this thread's shards, and what is saved then is, checksums too: the next
    /// process has no doubt of it, and believes what it finds.
    pub(super) fn cool(&mut self) {
        for key in self.resources.keys() {
            self.push_to_shards(key, &ToShard::Cool);
        }
        self.step_all();
    }

    /// Whether nothing of this thread's shards is on its way to the disk.
    pub(super) fn is_idle(&self, key: Key) -> bool {
        let resource = self.resources.get(key).expect("just listed");
        resource.here().all(|(_, shard)| shard.is_disk_idle())
    }

    /// Whether nothing of any thread's is, and nothing will be.
    fn is_at_rest(&self, key: Key) -> bool {
        let resource = self.resources.get(key).expect("just listed");
        let elsewhere =
            (0..resource.shard_count()).filter(|shard| !self.threads.is_own(resource.id, *shard));
        let id = resource.id;
        self.is_idle(key)
            && !is_storing(&self.operations, key)
            && !has_late(&self.operations, key)
            && elsewhere.into_iter().all(|shard| self.threads.is_settled_at(id, shard))
    }

    /// Flushes what is idle, and records that nothing is left open there.
    fn close_disks(&mut self) {
        let limit = self.hands.now_fresh() + CLOSE_LIMIT;
        for key in self.resources.keys() {
            if !self.is_at_rest(key) {
                warning!("{}: its disk is busy; it is left as after a crash", self.name_of(key));
                continue;
            }
            if self.resources.get(key).expect("just listed").member().has_failed_disk() {
                warning!("{}: its disk failed; it is left as after a crash", self.name_of(key));
                continue;
            }
            // A disk that hangs holds up nobody but itself.
            let patience = limit.since(self.hands.now_fresh()).min(DISK_LIMIT);
            let mut blocking = match Blocking::with_patience(patience) {
                Ok(blocking) => blocking,
                Err(why) => {
                    warning!("{}: it is left as after a crash: {why}", self.name_of(key));
                    continue;
                }
            };
            let Some(resource) = self.resources.get_mut(key) else { continue };
            let Some(disk) = resource.disk.as_mut() else { continue };
            if let Err(errno) = close(&mut blocking, disk) {
                warning!("{}: it is left as after a crash: {errno}", resource.name);
                // What hangs is not waited for: the process ends.
                std::mem::forget(blocking);
            }
        }
    }
}

/// Whether a record of a resource is on its way to its disk.
fn is_storing(operations: &Slab<Purpose>, key: Key) -> bool {
    operations.iter().any(|(_, purpose)| {
        matches!(purpose, Purpose::Disk(DiskPurpose::Record { resource, .. }, _) if *resource == key)
    })
}

/// Whether its disk may still do, on this thread, what it was given up for.
pub(super) fn has_late(operations: &Slab<Purpose>, key: Key) -> bool {
    operations
        .iter()
        .any(|(_, purpose)| matches!(purpose, Purpose::Late(resource, _) if *resource == key))
}

/// Flushes a disk, and records that nothing is left open there.
fn close(blocking: &mut Blocking, disk: &mut LocalDisk) -> Result<(), Errno> {
    for entry in &mut disk.volumes {
        blocking.flush(&mut entry.store)?;
        if entry.store.has_lost() {
            return Err(Errno::IO);
        }
    }
    let (Some(record), Some(entry)) = (disk.record.as_mut(), disk.volumes.first_mut()) else {
        return Ok(());
    };
    record.stores += 1;
    record.clean = true;
    let at = entry.layout.record_offset(record.copy());
    blocking.write(&mut entry.store, at, &backing::record_bytes(record))
}

#[cfg(test)]
mod tests {
    use base::Instant;

    use super::{DiskPurpose, Key, Purpose, Slab, has_late, is_storing};

    #[test]
    fn the_last_record_waits_for_one_that_is_on_its_way_to_the_same_disk() {
        let mut resources = Slab::default();
        let (one, other): (Key, Key) = (resources.insert(()), resources.insert(()));
        let mut operations = Slab::default();
        let record = DiskPurpose::Record { resource: one, number: 1 };
        let token = operations.insert(Purpose::Disk(record, Instant(0)));
        assert!(is_storing(&operations, one) && !is_storing(&operations, other));
        // Given up, it may still be written.
        *operations.get_mut(token).expect("just inserted") = Purpose::Late(one, 4096);
        assert!(!is_storing(&operations, one), "nobody waits for that");
        assert!(has_late(&operations, one) && !has_late(&operations, other));
        operations.remove(token);
        assert!(!is_storing(&operations, one) && !has_late(&operations, one));
    }
}

//! Disks that do not answer.
//!
//! A disk can hang without an error: then nothing that waits for it would ever end. So what a disk has
//! not done after `disk_late_ms` has failed, and everything else that the same resource waits for with
//! it: the replica steps out as after an error, the others go on, and clients see what the resource's
//! `on_io_error` says.
//!
//! Always: what the disk says afterwards is not heard; the bytes of such an operation stay where they
//! are until it ends, since the kernel may still read or write them, and count where nobody waits for them; and nothing else is asked of the part of the disk that it
//! may still change, which would be undone. A copy that is the only one goes on beside it, until the disk has so much of what
//! was given up that what came next would only be held by it, too.
//!
//! Not here: what follows from a failed disk (`replica`); peers' disks, which the primary gives up much
//! sooner (`peer_late_ms`); a disk that hangs while a node starts.

use base::Instant;
use sys::{Errno, Event};

use super::disk::DiskPurpose;
use super::{Node, Purpose};
use crate::log::{error, info};
use crate::slab::Key;

/// Looks at disks in the time after which one is late: an operation is found late at most this part of
/// it after it is.
const LOOKS: u64 = 4;

/// Requests of a resource, on one thread, and bytes of memory for them, that its disk may have though they were given up: with
/// that many or more, nothing is asked of it. Who had them is answered, so that nothing else has a limit there: clients ask
/// again, and again.
const HELD_MAX: usize = 256;
const HELD_BYTES_MAX: u64 = 32 << 20;

/// What a disk has of what was given up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Held {
    requests: usize,
    bytes: u64,
}

impl Held {
    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }

    /// Whether no more is to be asked of it.
    pub(super) fn is_full(self) -> bool {
        self.requests >= HELD_MAX || self.bytes >= HELD_BYTES_MAX
    }
}

impl Node {
    /// When disks are to be looked at again; never while there is none.
    pub(super) fn late_disks_wake_at(&self) -> Option<Instant> {
        let has_disk = self.resources.iter().any(|(_, resource)| resource.disk.is_some());
        has_disk.then_some(self.disk_look_at)
    }

    /// Fails what disks have not done in time.
    pub(super) fn watch_disks(&mut self) {
        let now = self.hands.now();
        if now < self.disk_look_at {
            return;
        }
        let limit = self.config.disk_late;
        let every = base::Duration(limit.0 / LOOKS);
        if now > self.disk_look_at + every {
            // This process itself stood still, or had nothing to look at: what a disk has done meanwhile
            // may not have been heard yet.
            self.disk_look_at = now + limit;
            return;
        }
        self.disk_look_at = now + every;
        let mut hung: Vec<(Key, u64)> = Vec::new();
        for (_, purpose) in self.operations.iter() {
            let Purpose::Disk(disk, since) = purpose else { continue };
            let late = now.since(*since);
            if late >= limit && !hung.iter().any(|(resource, _)| *resource == disk.resource()) {
                hung.push((disk.resource(), late.as_millis()));
            }
        }
        for (resource, late_ms) in hung {
            error!(
                "{}: its disk has not answered for {late_ms} ms: it is taken as failed",
                self.name_of(resource)
            );
            self.fail_disk(resource);
        }
    }

    /// Everything that waits for the disk of a resource has failed.
    fn fail_disk(&mut self, resource: Key) {
        let waiting: Vec<Key> = self
            .operations
            .iter()
            .filter(|(_, purpose)| {
                matches!(purpose, Purpose::Disk(disk, _) if disk.resource() == resource)
            })
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            let Some(entry) = self.operations.get_mut(key) else { continue };
            let Purpose::Disk(purpose, _) = &*entry else { continue };
            let late = Purpose::Late(resource, purpose.held_bytes());
            if let Purpose::Disk(purpose, _) = std::mem::replace(entry, late) {
                if let Some(of) = self.resources.get_mut(resource) {
                    of.late.extend(purpose.changes().map(|part| (key, part)));
                    of.held.add(purpose.held_bytes());
                }
                if let DiskPurpose::Op { memory: Some(memory), .. } = &purpose {
                    self.buffers.strand(memory);
                }
                self.on_disk(purpose, Event::plain(key.number(), Err(Errno::TIMED_OUT)));
            }
        }
    }

    /// The disk has done after all what it was not waited for any more, or has failed it.
    pub(super) fn on_late(&mut self, resource: Key, key: Key, bytes: u64, event: &Event) {
        let Some(entry) = self.resources.get_mut(resource) else { return };
        entry.held.remove(bytes);
        entry.late.retain(|(late, _)| *late != key);
        if event.result.is_err() {
            let volumes = entry.disk.iter().flat_map(|disk| &disk.volumes);
            volumes.for_each(|volume| volume.store.note_loss());
        }
        info!("{}: its disk has ended a request that was late", self.name_of(resource));
    }
}

#[cfg(test)]
mod tests {
    use super::{HELD_BYTES_MAX, HELD_MAX, Held};

    #[test]
    fn a_disk_is_asked_again_once_it_has_less_of_what_was_given_up() {
        let mut held = Held::default();
        for _ in 0..HELD_MAX {
            assert!(!held.is_full());
            held.add(0);
        }
        assert!(held.is_full(), "slots are few");
        held.remove(0);
        assert!(!held.is_full());
        held.add(HELD_BYTES_MAX);
        held.remove(0);
        assert!(held.is_full(), "so is memory");
        held.remove(HELD_BYTES_MAX);
        assert!(!held.is_full());
    }
}

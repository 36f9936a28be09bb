//! How much memory payload may take on this node: on all its threads together, and as many volumes are open.
//!
//! Always: of the 64 MiB that a node may take, and the 16 for each open volume, 36 and all of each volume's are for payload;
//! the rest is the program, what connections are received in, and what volumes keep. What bitmaps need comes on top, and
//! what a disk that hangs keeps: as much as is for peers at most, so that others do not wait for that disk.
//! Who waits for whom, and what is not in it, stands in [0009](../../../../docs/design/0009-buffers.md).
//!
//! Not here: who takes what (`buffers`, and clients' connections).

use std::sync::atomic::{AtomicUsize, Ordering};

use sys::Budget;

/// Bytes between nodes and disks, whatever is open, and more for each open volume.
const PEER_BYTES: [usize; 2] = [12 << 20, 8 << 20];

/// The same for what clients' requests carry: with one open volume there is room for one of the largest, 32 MiB; with more
/// such a request of one leaves something for the others.
const CLIENT_BYTES: [usize; 2] = [24 << 20, 8 << 20];

/// Bytes between nodes and disks, and of clients, at most, unless somebody said more: 1024 writes of 128 KiB.
const PEER_BYTES_MAX: usize = 128 << 20;
const CLIENT_BYTES_MAX: usize = 64 << 20;

/// What an operator may set, at least: each pool has a few payloads of 1 MiB then.
pub(crate) const BUFFER_BYTES_MIN: usize = 16 << 20;

/// What all threads of a node draw from.
pub(crate) struct Memory {
    /// For what clients' requests carry, and the room for what they read.
    pub(super) clients: Budget,
    /// For what primaries say is to be written here.
    pub(super) incoming: Budget,
    /// For what peers read from this node's disks, and for records.
    pub(super) outgoing: Budget,
    /// For what other nodes ask of this one as primary.
    pub(super) forwarded: Budget,
    /// What disks hold that are waited for no more.
    pub(super) late: Budget,
    /// What an operator set for all but clients, whatever is open.
    set_bytes: Option<usize>,
    /// Open volumes that it is for.
    volumes: AtomicUsize,
}

impl Memory {
    /// For no open volume yet.
    pub(crate) fn new(set_bytes: Option<usize>) -> Memory {
        let [clients, incoming, outgoing, forwarded, late] =
            std::array::from_fn(|_| Budget::new(0));
        let volumes = AtomicUsize::new(0);
        let memory = Memory { clients, incoming, outgoing, forwarded, late, set_bytes, volumes };
        memory.set_limits(0);
        memory
    }

    /// So many volumes are open.
    pub(super) fn set_open(&self, volumes: usize) {
        if self.volumes.swap(volumes, Ordering::Relaxed) != volumes {
            self.set_limits(volumes);
        }
    }

    /// How many are.
    pub(super) fn open(&self) -> usize {
        self.volumes.load(Ordering::Relaxed)
    }

    fn set_limits(&self, volumes: usize) {
        let peers = self.peer_bytes(volumes);
        self.clients.set_limit(self.client_bytes(volumes));
        self.incoming.set_limit(peers / 8 * 3);
        self.outgoing.set_limit(peers / 8 * 3);
        self.forwarded.set_limit(peers / 4);
        self.late.set_limit(peers);
    }

    fn peer_bytes(&self, volumes: usize) -> usize {
        self.set_bytes.unwrap_or_else(|| grown(PEER_BYTES, volumes).min(PEER_BYTES_MAX))
    }

    fn client_bytes(&self, volumes: usize) -> usize {
        let needed = grown(CLIENT_BYTES, volumes).min(CLIENT_BYTES_MAX);
        self.set_bytes.map_or(needed, |bytes| needed.max(bytes / 2))
    }
}

/// So much, and more for each open volume, one at least.
fn grown([base, each]: [usize; 2], volumes: usize) -> usize {
    base + each * volumes.max(1)
}

#[cfg(test)]
mod tests {
    use super::Memory;

    const MIB: usize = 1 << 20;

    #[test]
    fn payload_has_36_mib_and_16_for_each_open_volume_and_no_more_than_192() {
        let memory = Memory::new(None);
        let all = |volumes| memory.peer_bytes(volumes) + memory.client_bytes(volumes);
        assert_eq!([1, 2, 5].map(all), [52 * MIB, 68 * MIB, 116 * MIB]);
        assert_eq!([15, 1000].map(all), [192 * MIB; 2]);
        memory.set_open(5);
        let pools = [&memory.clients, &memory.incoming, &memory.outgoing, &memory.forwarded];
        let limits: usize = pools.iter().map(|budget| budget.pool().limit_bytes()).sum();
        assert_eq!((memory.open(), limits), (5, 116 * MIB));
    }

    #[test]
    fn what_an_operator_set_holds_whatever_is_open_and_clients_have_half_besides_or_what_they_need()
    {
        let memory = Memory::new(Some(128 * MIB));
        assert_eq!([0, 9].map(|volumes| memory.peer_bytes(volumes)), [128 * MIB; 2]);
        assert_eq!([1, 9].map(|volumes| memory.client_bytes(volumes)), [64 * MIB; 2]);
        let little = Memory::new(Some(16 * MIB));
        assert_eq!(
            [1, 2, 9].map(|volumes| little.client_bytes(volumes)),
            [32, 40, 64].map(|mib| mib * MIB)
        );
    }
}

//! The bytes behind the names that the pure machines use.
//!
//! Always: a name has one owner, the machine it was given to, until that machine releases it. An
//! operation of the kernel, or a send, keeps a reference of its own, so that bytes outlive the name.
//! What has to wait for memory waits for such as goes on by itself, in this order: who sends waits for what peers
//! receive, and what a peer receives waits for its disk. Hence a pool for each
//! ([0009](../../../../docs/design/0009-buffers.md)).

use base::BufferId;
use sys::{Buffer, BufferPool, Trace};

use super::memory::Memory;
use crate::slab::Key;

/// Bytes received from a peer at once: more frames for one call than a turn usually has.
const RECEIVE_BYTES: usize = 256 << 10;

/// The same from who has not proved who it is, and where there are many.
const RECEIVE_SMALL_BYTES: usize = 16 << 10;

/// Bytes of large buffers that peers are received in, at most: 16 connections.
const RECEIVE_LARGE_TOTAL_BYTES: usize = 4 << 20;

/// Connections that are received in small ones, at most: 16 streams of 64 nodes, and the strangers.
const RECEIVE_SMALL_MAX: usize = 16 * 64 + link::STRANGERS_MAX;

/// The table of names, and where buffers come from.
pub(crate) struct Buffers {
    /// For what primaries say is to be written here: it goes when this node's disk has it.
    incoming: BufferPool,
    /// For what peers read from this node's disks, and for records: it goes when they have taken it.
    outgoing: BufferPool,
    /// For what other nodes ask of this one as primary: it goes when every replica has answered.
    forwarded: BufferPool,
    /// Where those count that a disk has which is waited for no more.
    late: BufferPool,
    /// For answers to what clients, this node's or others', have asked for, from its disks and from peers. They are
    /// always taken; what limits them is the room that requests have. What they leave lies idle as clients' memory.
    answers: BufferPool,
    /// For bytes as they come from sockets.
    inputs: BufferPool,
    inputs_large: BufferPool,
    table: Vec<Option<Named>>,
    free: Vec<u32>,
}

/// What a name stands for.
struct Named {
    /// The resource whose machine has the name.
    owner: Key,
    /// Nobody changes the bytes as long as they have a name.
    buffer: Buffer,
    /// The CRC-32C of all of them, once somebody computed it.
    checksum: Option<u32>,
}

impl Buffers {
    /// An empty table, for the thread that asks, whose clients' memory comes from that pool.
    pub(crate) fn new(memory: &Memory, clients: &BufferPool) -> Buffers {
        let inputs_bytes = RECEIVE_LARGE_TOTAL_BYTES + RECEIVE_SMALL_MAX * RECEIVE_SMALL_BYTES;
        let inputs = BufferPool::new(inputs_bytes);
        Buffers {
            incoming: memory.incoming.pool(),
            outgoing: memory.outgoing.pool(),
            forwarded: memory.forwarded.pool(),
            late: memory.late.pool(),
            answers: clients.uncounted(),
            inputs_large: inputs.below(RECEIVE_LARGE_TOTAL_BYTES),
            inputs,
            table: Vec::new(),
            free: Vec::new(),
        }
    }

    /// What lies idle beyond what may goes.
    pub(crate) fn trim(&self) {
        for pool in [&self.incoming, &self.outgoing, &self.forwarded] {
            pool.trim();
        }
    }

    /// For what primaries send.
    pub(crate) fn incoming(&self) -> &BufferPool {
        &self.incoming
    }

    /// For what peers read here, and for records.
    pub(crate) fn outgoing(&self) -> &BufferPool {
        &self.outgoing
    }

    /// For what other nodes ask of this one as primary; each resource has a share.
    pub(crate) fn forwarded(&self) -> &BufferPool {
        &self.forwarded
    }

    /// A disk has it that is waited for no more: whoever else needs memory does not wait for it either.
    pub(crate) fn strand(&self, buffer: &Trace) {
        buffer.charge_to(&self.late);
    }

    /// For an answer, be it from a disk or from a peer.
    pub(crate) fn answer(&self, length: usize) -> Option<Buffer> {
        self.answers.take(length)
    }

    /// For bytes of a peer, or of a stranger; `kept` is what was used last.
    pub(crate) fn input(&self, kept: Option<Buffer>, known: bool) -> Option<Buffer> {
        let kept = kept.filter(|kept| !known || kept.len() == RECEIVE_BYTES);
        let large = || if known { self.inputs_large.take(RECEIVE_BYTES) } else { None };
        kept.or_else(large).or_else(|| self.inputs.take(RECEIVE_SMALL_BYTES))
    }

    /// Names a buffer for a machine of this resource.
    pub(crate) fn name(&mut self, owner: Key, buffer: Buffer) -> BufferId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            u32::try_from(self.table.len() - 1).expect("the pool is not that large")
        });
        self.table[index as usize] = Some(Named { owner, buffer, checksum: None });
        BufferId(index)
    }

    /// The buffer behind a name, which stays the machine's.
    pub(crate) fn get(&self, id: BufferId) -> Buffer {
        self.named(id).buffer.clone()
    }

    /// Where the checksum of the bytes behind a name is kept for whoever needs it next.
    pub(crate) fn checksum(&mut self, id: BufferId) -> &mut Option<u32> {
        let place = self.table.get_mut(id.0 as usize).and_then(Option::as_mut);
        &mut place.expect("a machine names only what it has").checksum
    }

    /// For who may have to say where it counts while a disk has it.
    pub(crate) fn trace(&self, id: BufferId) -> Trace {
        self.named(id).buffer.trace()
    }

    fn named(&self, id: BufferId) -> &Named {
        let place = self.table.get(id.0 as usize).and_then(Option::as_ref);
        place.expect("a machine names only what it has")
    }

    /// The machine gives the name up.
    pub(crate) fn release(&mut self, id: BufferId) {
        let place = self.table.get_mut(id.0 as usize).and_then(Option::take);
        assert!(place.is_some(), "a machine releases what it has, once");
        self.free.push(id.0);
    }
    /// The machines of a resource are gone, and with them every name they had.
    pub(crate) fn release_all(&mut self, owner: Key) {
        for (index, place) in (0_u32..).zip(&mut self.table) {
            if place.as_ref().is_some_and(|named| named.owner == owner) {
                *place = None;
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, Memory};
    use crate::slab::Slab;
    use sys::BufferPool;

    #[test]
    fn names_of_a_resource_that_is_gone_hold_no_memory() {
        let pool = BufferPool::new(1 << 20);
        let memory = Memory::new(None);
        let mut buffers = Buffers::new(&memory, &memory.clients.pool());
        let mut slab = Slab::default();
        let (gone, stays) = (slab.insert(()), slab.insert(()));
        let take = || pool.take(4096).expect("room");
        buffers.name(gone, take());
        let kept = buffers.name(stays, take());
        buffers.name(gone, take());
        buffers.release_all(gone);
        assert_eq!(pool.used_bytes(), 4096);
        assert_eq!(buffers.get(kept).len(), 4096);
        buffers.release(kept);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn a_checksum_is_kept_as_long_as_the_name_of_its_bytes_and_no_longer() {
        let pool = BufferPool::new(1 << 20);
        let memory = Memory::new(None);
        let mut buffers = Buffers::new(&memory, &memory.clients.pool());
        let owner = Slab::default().insert(());
        let first = buffers.name(owner, pool.take(4096).expect("room"));
        let other = buffers.name(owner, pool.take(4096).expect("room"));
        *buffers.checksum(first) = Some(7);
        assert_eq!((*buffers.checksum(first), *buffers.checksum(other)), (Some(7), None));
        buffers.release(first);
        let second = buffers.name(owner, pool.take(4096).expect("room"));
        assert_eq!((second, *buffers.checksum(second)), (first, None), "the name, and other bytes");
    }

    /// Nothing of sixteen reads of 128 KiB is mapped twice, with more of them under way than are answered at once: a block
    /// that is new is all zeroes.
    #[test]
    fn an_answer_comes_in_a_block_that_one_before_it_left() {
        const BYTES: usize = 128 << 10;
        const MARK: u8 = 0xa5;
        let memory = Memory::new(None);
        let clients = memory.clients.pool();
        let buffers = Buffers::new(&memory, &clients);
        let ask = || {
            let room = clients.reserve(BYTES).expect("so much is always there");
            (room, buffers.answer(BYTES).expect("an answer finds a buffer"))
        };
        let mut under_way: std::collections::VecDeque<_> = (0..16).map(|_| ask()).collect();
        assert_eq!(clients.used_bytes(), 16 * BYTES);
        for number in 0..64 {
            let (room, mut buffer) = under_way.pop_front().expect("sixteen are");
            let bytes = buffer.as_mut().expect("nobody else has it");
            assert_eq!(bytes[0] == MARK, number >= 16, "read {number}");
            bytes[0] = MARK;
            buffer.charge(room);
            drop(buffer);
            under_way.push_back(ask());
        }
        under_way.clear();
        assert_eq!((clients.used_bytes(), clients.held_bytes()), (0, 16 * BYTES));
        // All of what clients may have: what lies idle goes.
        let all = clients.reserve(clients.limit_bytes());
        assert!(all.is_some() && clients.held_bytes() == clients.limit_bytes());
    }
}

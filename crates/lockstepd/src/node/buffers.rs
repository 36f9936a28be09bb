//! The bytes behind the names that the pure machines use.
//!
//! Always: a name has one owner, the machine it was given to, until that machine releases it. An
//! operation of the kernel, or a send, keeps a reference of its own, so that bytes outlive the name.

use base::BufferId;
use sys::{Buffer, BufferPool};

use crate::slab::Key;

/// The table of names.
pub(crate) struct Buffers {
    pool: BufferPool,
    /// Bytes, and the resource whose machine has the name.
    table: Vec<Option<(Key, Buffer)>>,
    free: Vec<u32>,
}

impl Buffers {
    /// An empty table; `pool` is where new buffers come from.
    pub(crate) fn new(pool: BufferPool) -> Buffers {
        Buffers { pool, table: Vec::new(), free: Vec::new() }
    }

    /// Where buffers of disks and peers come from.
    pub(crate) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Names a buffer for a machine of this resource.
    pub(crate) fn name(&mut self, owner: Key, buffer: Buffer) -> BufferId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            u32::try_from(self.table.len() - 1).expect("the pool is not that large")
        });
        self.table[index as usize] = Some((owner, buffer));
        BufferId(index)
    }

    /// The buffer behind a name, which stays the machine's.
    pub(crate) fn get(&self, id: BufferId) -> Buffer {
        let place = self.table.get(id.0 as usize).and_then(Option::as_ref);
        place.expect("a machine names only what it has").1.clone()
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
            if place.as_ref().is_some_and(|(of, _)| *of == owner) {
                *place = None;
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Buffers;
    use crate::slab::Slab;
    use sys::BufferPool;

    #[test]
    fn names_of_a_resource_that_is_gone_hold_no_memory() {
        let pool = BufferPool::new(1 << 20);
        let mut buffers = Buffers::new(pool.clone());
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
}

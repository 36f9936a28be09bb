//! The bytes behind the names that the pure machines use.
//!
//! Always: a name has one owner, the machine it was given to, until that machine releases it. An
//! operation of the kernel, or a send, keeps a reference of its own, so that bytes outlive the name.

use base::BufferId;
use sys::{Buffer, BufferPool};

/// The table of names.
pub(crate) struct Buffers {
    pool: BufferPool,
    table: Vec<Option<Buffer>>,
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

    /// Names a buffer.
    pub(crate) fn name(&mut self, buffer: Buffer) -> BufferId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            u32::try_from(self.table.len() - 1).expect("the pool is not that large")
        });
        self.table[index as usize] = Some(buffer);
        BufferId(index)
    }

    /// The buffer behind a name, which stays the machine's.
    pub(crate) fn get(&self, id: BufferId) -> Buffer {
        let place = self.table.get(id.0 as usize).and_then(Option::as_ref);
        place.expect("a machine names only what it has").clone()
    }

    /// The machine gives the name up.
    pub(crate) fn release(&mut self, id: BufferId) {
        let place = self.table.get_mut(id.0 as usize).and_then(Option::take);
        assert!(place.is_some(), "a machine releases what it has, once");
        self.free.push(id.0);
    }
}

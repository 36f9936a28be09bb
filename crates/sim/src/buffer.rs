//! Payload buffers of one node's process: every one is owned by one shard until that releases it.
//!
//! Always: a buffer that a disk write still reads is not released; what is released was held.
//!
//! Not here: whose fault a leak is (`checker` looks at the end of a run).

use crate::history::Token;
use base::BufferId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// One token per sector.
pub type Content = Rc<[Token]>;

/// The buffers of one process.
#[derive(Debug, Default)]
pub struct Buffers {
    held: BTreeMap<BufferId, Content>,
    made: u32,
}

impl Buffers {
    /// Makes a buffer; whoever gets its name owns it.
    pub fn make(&mut self, content: Content) -> BufferId {
        self.made += 1;
        let id = BufferId(self.made);
        self.held.insert(id, content);
        id
    }

    /// The bytes of a buffer that is held.
    #[must_use]
    pub fn content(&self, id: BufferId) -> Option<Content> {
        self.held.get(&id).cloned()
    }

    /// Gives it up; false if nobody held it.
    pub fn release(&mut self, id: BufferId) -> bool {
        self.held.remove(&id).is_some()
    }

    /// Every sector of every buffer held: what a resync copies is of several writes.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.held.values().flat_map(|content| content.iter().copied())
    }

    /// Number of buffers held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.held.len()
    }
}

//! Room for what is read though nobody waits for it any more: its client has gone, or was told to ask elsewhere.
//!
//! What a client asks to be read has room before it begins, and comes in buffers that count in that room and nowhere else. A read that
//! has begun is not called back: a disk, or a peer, has its buffer until it answers.
//!
//! Always: such room is kept until the request is answered, so that clients that come, ask and go have no more of a node's
//! memory together than those that stay.
//!
//! Not here: how much clients have together (`memory`), requests and their answers (`clients`).

use std::collections::BTreeMap;

use export::Served;
use sys::{BufferPool, Room};

use super::Node;
use super::clients::Asked;
use crate::slab::{Key, Slab};

/// That room, by request.
#[derive(Default)]
pub(crate) struct Leftover(BTreeMap<Key, Room>);

impl Leftover {
    /// Nobody waits any more for what this client has asked to be read.
    pub(super) fn keep(&mut self, asked: &Slab<Asked>, client: Key, connection: &mut Served) {
        for (key, asked) in asked.iter().filter(|(_, asked)| asked.is_waited_for_by(client)) {
            let (tag, length) = asked.reads();
            if let Some(bytes) = BufferPool::cost_bytes(length)
                && let Some(room) = connection.take_room(tag, bytes)
            {
                self.0.insert(key, room);
            }
        }
    }
}

impl Node {
    /// A request is answered, or will never be: whoever waits for memory may get what was kept for it.
    pub(super) fn free_room_of(&mut self, asked: Key) {
        if !self.leftover.0.is_empty()
            && self.leftover.0.remove(&asked).is_some()
            && self.clients_starve()
        {
            self.stir_starved_clients();
        }
    }
}

//! Where what peers send is put, and what becomes of what finds no place.
//!
//! A connection has an order: what waits for a buffer keeps waiting whatever is behind it, answers too that
//! would free buffers. So only that may wait which gets one without anything from a peer.
//!
//! Always: an answer to what this node asked has a place; a request that another node forwards has one in its
//! resource's share, or is sent back, and is asked anew; what a primary sends to be written waits for this node's
//! disk, and for nothing else.
//!
//! Not here: the buffers themselves (`buffers`), frames (`connection`).

use base::{Epoch, NodeId, Op, RequestId, ResourceId, SECTOR_BYTES, SessionId, Span};
use sys::{Buffer, BufferPool};
use wire::{Message, ShardMessage};

use crate::log::debug;
use crate::node::Node;
use crate::node::sums::blocks_around;
use crate::slab::Key;

/// What is to be done with a payload that comes.
pub(super) enum Place {
    /// It goes here.
    Here(Buffer),
    /// It is not taken.
    Nowhere,
    /// The connection waits until there is one.
    Later,
}

/// Whether it has this node read more at once than a buffer holds: nobody would ever get that. With checksums whole blocks are
/// read, so that not even what a buffer just holds may begin anywhere.
pub(super) fn asks_too_much(message: &ShardMessage) -> bool {
    let (ShardMessage::Forward { op: Op::Read, span, .. }
    | ShardMessage::Read { span, .. }
    | ShardMessage::Compare { span, .. }) = message
    else {
        return false;
    };
    let fits = |span: Span| {
        let length = usize::try_from(span.length_bytes()).ok();
        length.and_then(BufferPool::cost_bytes).is_some()
    };
    !fits(*span) || !fits(blocks_around(*span, u64::MAX / SECTOR_BYTES))
}

impl Node {
    /// A place for the payload of this frame of a peer.
    pub(super) fn place_for(&mut self, key: Key, message: &Message, length: usize) -> Place {
        let (resource, message) = match message {
            Message::Shard { resource, message, .. } => (*resource, message),
            Message::Node(_) | Message::Member { .. } => return Place::Nowhere,
        };
        let place = match message {
            ShardMessage::Forward { .. } if self.session_of(key, resource).is_some() => {
                let share = self.forwarded_share(resource);
                let place = share.and_then(|share| share.take(length));
                return place.map_or(Place::Nowhere, Place::Here);
            }
            ShardMessage::Data { .. } | ShardMessage::Forwarded { .. } => {
                self.buffers.answer(length)
            }
            _ => self.buffers.incoming().take(length),
        };
        place.map_or(Place::Later, Place::Here)
    }

    /// The session, if it has begun, to which what comes in this connection about a resource belongs.
    fn session_of(&self, key: Key, id: ResourceId) -> Option<(NodeId, SessionId)> {
        let connection = self.peers.connections.get(key)?;
        let peer = connection.peer()?;
        let told = self.peers.sessions.get(&(peer, id))?.told;
        let lasts = connection.common.lives(id) == Some(told.lives);
        lasts.then_some((peer, told.session))
    }

    /// What other nodes ask of this one as primary of a resource is taken from here.
    fn forwarded_share(&mut self, id: ResourceId) -> Option<BufferPool> {
        let key = self.resource_by_id(id)?;
        Some(self.resources.get_mut(key)?.forwarded_share(self.buffers.forwarded()))
    }

    /// Room for what a read that another node forwards will give. False: there is none, and it is sent back.
    pub(super) fn make_room_for(
        &mut self,
        id: ResourceId,
        shard: u16,
        from: (NodeId, SessionId),
        message: &ShardMessage,
    ) -> bool {
        let ShardMessage::Forward { id: request, op: Op::Read, span, .. } = message else {
            return true;
        };
        let length = usize::try_from(span.length_bytes()).ok();
        let bytes = length.and_then(BufferPool::cost_bytes);
        let bytes = bytes.expect("who reads more than a buffer holds was sent away");
        let Some(share) = self.forwarded_share(id) else { return true };
        let resource = self.resource_by_id(id).and_then(|key| self.resources.get_mut(key));
        match (share.reserve(bytes), resource) {
            (Some(room), Some(resource)) => {
                resource.rooms.insert((shard, from.0, *request), room);
            }
            (None, Some(_)) => {
                self.send_back(id, from, shard, message);
                return false;
            }
            (_, None) => {}
        }
        true
    }

    /// A read that another node forwarded is answered: what it gave counts as that node's until it is sent.
    pub(super) fn use_room(
        &mut self,
        resource: Key,
        (shard, peer, id): (u16, NodeId, RequestId),
        payload: Option<&Buffer>,
    ) {
        let resource = self.resources.get_mut(resource);
        let room = resource.and_then(|resource| resource.rooms.remove(&(shard, peer, id)));
        if let (Some(room), Some(payload)) = (room, payload) {
            payload.charge(room);
        }
    }

    /// The payload of a frame has passed, and is not here.
    pub(super) fn on_unplaced(&mut self, key: Key, message: &Message) {
        if let Message::Shard { resource, shard, message } = message
            && let Some(from) = self.session_of(key, *resource)
        {
            self.send_back(*resource, from, *shard, message);
        }
    }

    /// A forwarded request is to be asked anew: there is no memory for it now.
    fn send_back(
        &mut self,
        id: ResourceId,
        from: (NodeId, SessionId),
        shard: u16,
        message: &ShardMessage,
    ) {
        let ShardMessage::Forward { id: request, asked, first, .. } = message else { return };
        let Some(resource) = self.resource_by_id(id) else { return };
        let (id, asked) = (*request, if *first { Epoch(0) } else { *asked });
        let answer = ShardMessage::Forwarded { id, result: None, zero: false, asked, moment: None };
        debug!("a forwarded request was sent back: there is no memory for it now");
        self.send_shard(resource, shard, from, &answer, None);
    }
}

#[cfg(test)]
mod tests {
    use super::asks_too_much;
    use base::{Epoch, Span, VolumeId};
    use wire::ShardMessage;

    #[test]
    fn what_no_buffer_holds_is_asked_for_by_no_node_in_order() {
        let compare = |first, count| {
            let (epoch, volume) = (Epoch(1), VolumeId(0));
            let span = Span::new(first, count).expect("it has sectors");
            asks_too_much(&ShardMessage::Compare {
                epoch,
                sequence: 1,
                volume,
                span,
                resync: false,
            })
        };
        assert!(!compare(0, 512), "as much as is compared at once");
        assert!(!compare(2048, 2048), "a whole buffer");
        assert!(compare(0, 2049));
        assert!(compare(1, 2048), "with the blocks that it begins and ends in it is more");
        assert!(compare(7, u32::MAX));
        assert!(!compare(1, 2046), "with these it is not");
    }
}

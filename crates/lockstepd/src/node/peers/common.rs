//! Which resources a connection is about, and the way of their frames to machines and back.
//!
//! Both ends list the resources that they run, each with its *life*: a number that is new whenever a
//! resource's machines begin. Who sees a new life says `Joined`: what follows is for that life. So
//! machines that begin anew while the connection lasts hear nothing that was meant for their
//! forerunners, and no other resource notices.
//!
//! A peer that is dismissed from a resource, and admitted again, finds the same life as before. So it is told of the resource again
//! only once it has answered a ping behind the list without it: what it said before was dropped by then.
//!
//! Always: a frame goes to the machines of the lives that both ends had joined in its stream when it
//! came, in the session of just these lives, or to nobody; what comes before that session begins here
//! waits for it; a frame about a resource that is not common is counted and dropped; only a resource of which the
//! peer is a node is common, or told of.
//!
//! Not here: when a session begins and ends (`streams`), what frames mean (`replica`), resources that
//! only one end knows (`definitions`), who is a node of one (`admission`).

use std::collections::{BTreeMap, BTreeSet};

use base::{BufferId, NodeId, ResourceId, SessionId};
use replica::door::{MemberInput, ShardInput};
use sys::{Buffer, Piece};
use wire::{MemberMessage, Message, NodeMessage, RESOURCES_MAX, ResourceLife, ShardMessage};

use super::connection::Connection;
use super::places::asks_too_much;
use super::questions::{Questions, TOO_MANY};
use super::streams::{Begun, Lives};
use crate::log::debug;
use crate::node::threads::place;
use crate::node::{Node, Work};
use crate::slab::Key;

/// Frames of one connection that may wait for their sessions to begin: as many as a peer may have open
/// in all its requests before it has heard of this node.
const EARLY_MAX: usize = 4096;

/// Resources that a node may list: many times as many as one can serve.
const LISTED_MAX: usize = 65_536;

/// Numbers of pings that stand behind a list; those that ask whether a peer lives are times, and less.
const BEHIND_LIST: u64 = 1 << 63;

/// What one connection knows of resources.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// What the peer runs, in which life.
    theirs: BTreeMap<ResourceId, u64>,
    /// Its next list, as far as it has come.
    arriving: BTreeMap<ResourceId, u64>,
    /// Lives, here and there, for which `Joined` was sent.
    joined: BTreeMap<ResourceId, (u64, u64)>,
    /// Lives here that the peer has joined.
    joined_by_peer: BTreeMap<ResourceId, u64>,
    /// Lives that both ends have joined.
    shared: BTreeMap<ResourceId, Lives>,
    /// What the peer was told last that runs here.
    told: BTreeMap<ResourceId, u64>,
    /// What it was told no more, in which life, and behind which list: it may not have heard that yet.
    withdrawn: BTreeMap<ResourceId, (u64, u64)>,
    /// How many such lists there were.
    withdrawals: u64,
    /// What its last list has that the one before had not.
    fresh: Vec<ResourceId>,
    /// What the peer was asked to describe.
    asked: BTreeSet<ResourceId>,
    /// What the peer spoke about and has no part in.
    refused: BTreeSet<ResourceId>,
}

/// What is to be done after a look at both lists.
#[derive(Debug, Default, Eq, PartialEq)]
struct Change {
    join: Vec<ResourceLife>,
    gone: Vec<ResourceId>,
    new: Vec<(ResourceId, Lives)>,
}

impl Common {
    /// The peer's list, or a part of it, has come. Whether it is whole; `None` if it is longer than any is.
    fn listed(&mut self, resources: Vec<ResourceLife>, last: bool) -> Option<bool> {
        if self.arriving.len() + resources.len() > LISTED_MAX {
            return None;
        }
        self.arriving.extend(resources.into_iter().map(|entry| (entry.resource, entry.life)));
        if last {
            let theirs = std::mem::take(&mut self.arriving);
            // What the peer joined in an earlier life it has to join again.
            self.joined_by_peer.retain(|id, _| theirs.get(id) == self.theirs.get(id));
            self.asked.retain(|id| theirs.contains_key(id));
            let fresh = theirs.keys().filter(|id| !self.theirs.contains_key(id));
            self.fresh = fresh.copied().collect();
            self.theirs = theirs;
        }
        Some(last)
    }

    /// Whether the peer may be told of this: it has heard that it was told of it no more, if it was.
    fn may_be_told(&self, id: ResourceId, life: u64) -> bool {
        self.withdrawn.get(&id).is_none_or(|(of, _)| *of != life)
    }

    /// The peer is told this list now. The number of the ping that has to follow it, if something is gone from it.
    fn tell(&mut self, ours: &BTreeMap<ResourceId, u64>) -> Option<u64> {
        let told = std::mem::replace(&mut self.told, ours.clone());
        let gone = told.into_iter().filter(|(id, _)| !ours.contains_key(id));
        let number = BEHIND_LIST | (self.withdrawals + 1);
        let gone: Vec<(ResourceId, (u64, u64))> =
            gone.map(|(id, life)| (id, (life, number))).collect();
        if gone.is_empty() {
            return None;
        }
        self.withdrawals += 1;
        self.withdrawn.extend(gone);
        Some(number)
    }

    /// The peer has answered a ping. Whether it may be told of more now.
    fn answered(&mut self, number: u64) -> bool {
        let before = self.withdrawn.len();
        self.withdrawn.retain(|_, (_, behind)| *behind > number);
        self.withdrawn.len() < before
    }

    /// Both lists as they are now.
    fn compare(&mut self, ours: &BTreeMap<ResourceId, u64>) -> Change {
        let mut change = Change::default();
        // What was joined before a list without it has to be joined again.
        self.joined_by_peer.retain(|id, life| ours.get(id) == Some(life));
        let both: BTreeMap<ResourceId, (u64, u64)> = self
            .theirs
            .iter()
            .filter_map(|(id, &theirs)| ours.get(id).map(|&ours| (*id, (ours, theirs))))
            .collect();
        self.joined.retain(|id, lives| both.get(id) == Some(lives));
        for (&resource, &lives) in &both {
            if self.joined.insert(resource, lives).is_none() {
                change.join.push(ResourceLife { resource, life: lives.1 });
            }
        }
        let by_peer = &self.joined_by_peer;
        let holds = |id: &ResourceId, lives: (u64, u64)| {
            both.get(id) == Some(&lives) && by_peer.get(id) == Some(&lives.0)
        };
        self.shared.retain(|id, lives| {
            let stays = holds(id, *lives);
            if !stays {
                change.gone.push(*id);
            }
            stays
        });
        for (&id, &lives) in both.iter().filter(|(id, lives)| holds(id, **lives)) {
            self.shared.entry(id).or_insert_with(|| {
                change.new.push((id, lives));
                lives
            });
        }
        change
    }

    /// The lives of this resource that both ends have joined.
    pub(super) fn lives(&self, id: ResourceId) -> Option<Lives> {
        self.shared.get(&id).copied()
    }
}

impl Node {
    /// What of this node's resources the peer of a connection may know to run here, and their lives.
    fn ours(&self, key: Key) -> Option<BTreeMap<ResourceId, u64>> {
        let connection = self.peers.connections.get(key)?;
        let peer = connection.peer()?;
        let of_peer = self.resources.iter().filter(|(_, entry)| entry.nodes.contains(&peer));
        let lives = of_peer.map(|(_, resource)| (resource.id, resource.life));
        Some(lives.filter(|(id, life)| connection.common.may_be_told(*id, *life)).collect())
    }

    /// Tells a peer which resources this node has.
    pub(super) fn tell_resources(&mut self, key: Key) {
        let Some(ours) = self.ours(key) else { return };
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(link) = connection.link.as_mut() else { return };
        let entry = |(&resource, &life): (&ResourceId, &u64)| ResourceLife { resource, life };
        let resources: Vec<ResourceLife> = ours.iter().map(entry).collect();
        let mut parts: Vec<Vec<ResourceLife>> =
            resources.chunks(RESOURCES_MAX).map(<[ResourceLife]>::to_vec).collect();
        let end = parts.pop().unwrap_or_default();
        for resources in parts {
            link.send_node(&NodeMessage::Resources { resources, last: false });
        }
        link.send_node(&NodeMessage::Resources { resources: end, last: true });
        if let Some(number) = connection.common.tell(&ours) {
            link.send_node(&NodeMessage::Ping { number });
        }
        self.stir_peer(key);
    }

    /// The resources of this node have changed.
    pub(in crate::node) fn tell_all_resources(&mut self) {
        for key in self.sessions() {
            self.tell_resources(key);
            self.refuse_listed(key);
            self.compare_resources(key);
        }
    }

    /// Connections with peers that have proved who they are.
    pub(super) fn sessions(&self) -> Vec<Key> {
        let connections = self.peers.connections.iter();
        connections.filter(|(_, entry)| entry.ready && !entry.closing).map(|(key, _)| key).collect()
    }

    /// Tells the peer and the machines what both ends have, as far as that has changed.
    fn compare_resources(&mut self, key: Key) {
        let peer = self.peers.connections.get(key).and_then(Connection::peer);
        let Some(peer) = peer else { return };
        let Some(ours) = self.ours(key) else { return };
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let change = connection.common.compare(&ours);
        let (stream, bundle) = (connection.stream, connection.bundle);
        if let Some(link) = connection.link.as_mut() {
            for resources in change.join.chunks(RESOURCES_MAX) {
                link.send_node(&NodeMessage::Joined { resources: resources.to_vec() });
            }
        }
        for resource in change.gone {
            self.drop_early(key, resource);
            self.report_shared(peer, (stream, bundle), resource, None);
        }
        for (resource, lives) in change.new {
            self.report_shared(peer, (stream, bundle), resource, Some(lives));
        }
        self.stir_peer(key);
    }

    /// Notes which of these the peer has no part in, though they run here.
    fn refuse_outsider(&mut self, key: Key, peer: NodeId, asked: &[ResourceId]) {
        for &id in asked {
            let outside = self.by_id.contains_key(&id) && !self.is_of(id, peer);
            let connection = self.peers.connections.get_mut(key).filter(|_| outside);
            if connection.is_some_and(|connection| connection.common.refused.insert(id)) {
                self.note_outsider(peer, id);
            }
        }
    }

    /// Looks anew at what the peer lists, in one of its streams.
    fn refuse_listed(&mut self, key: Key) {
        let connection = self.peers.connections.get_mut(key).filter(|entry| entry.stream == 0);
        let Some(connection) = connection else { return };
        let Some(peer) = connection.peer() else { return };
        let common = &mut connection.common;
        common.refused.retain(|id| common.theirs.contains_key(id));
        let listed: Vec<ResourceId> = common.theirs.keys().copied().collect();
        self.refuse_outsider(key, peer, &listed);
    }

    /// Nodes that speak about a resource and have no part in it.
    pub(in crate::node) fn outsiders_of(&self, id: ResourceId) -> Vec<NodeId> {
        let open = self.peers.connections.iter().filter(|(_, entry)| !entry.closing);
        let asking = open.filter(|(_, entry)| entry.common.refused.contains(&id));
        let nodes = asking.filter_map(|(_, entry)| entry.peer());
        nodes.filter(|&node| !self.is_of(id, node)).collect()
    }

    /// Tells the machines that this thread has of a resource that a session with a peer begins or has
    /// ended.
    pub(super) fn say_peer(&mut self, id: ResourceId, peer: NodeId, session: SessionId, up: bool) {
        let Some(key) = self.resource_by_id(id) else { return };
        let Some(resource) = self.resources.get_mut(key) else { return };
        if !up {
            resource.rooms.retain(|(_, of, _), _| *of != peer);
            resource.questions.retain(|(_, of), _| *of != peer);
        }
        if resource.member.is_some() {
            let member = if up {
                MemberInput::PeerUp { peer, session }
            } else {
                MemberInput::PeerDown { peer, session }
            };
            self.work.push_back(Work::Member(key, member));
        }
        for shard in resource.own_shards() {
            let input = if up {
                ShardInput::PeerUp { peer, session }
            } else {
                ShardInput::PeerDown { peer, session }
            };
            self.work.push_back(Work::Shard(key, shard, input));
        }
    }

    pub(super) fn on_frame(&mut self, key: Key, message: Message, payload: Option<Buffer>) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(peer) = connection.peer() else { return };
        let id = match &message {
            Message::Node(_) => None,
            Message::Member { resource, .. } | Message::Shard { resource, .. } => Some(*resource),
        };
        let Some(id) = id else {
            let Message::Node(message) = message else { unreachable!("it names no resource") };
            return self.on_node_message(key, peer, message);
        };
        let Some(lives) = connection.common.lives(id) else {
            self.peers.strays += 1;
            self.refuse_outsider(key, peer, &[id]);
            return debug!("a frame for resource {:016x}, which is not here, was dropped", id.0);
        };
        let begun = self.peers.sessions.get(&(peer, id));
        match begun.filter(|begun| begun.told.lives == lives) {
            Some(&Begun { told, resource }) => {
                let to = (resource, connection.stream);
                self.deliver(key, (peer, told.session), to, message, payload);
            }
            None if connection.early.len() >= EARLY_MAX => {
                self.end_connection(key, "too much came before a session could begin", false);
            }
            None => connection.early.push((id, message, payload)),
        }
    }

    /// Gives a frame that came in a stream to the machine it is for, of the resource that the session is about.
    fn deliver(
        &mut self,
        key: Key,
        (peer, session): (NodeId, SessionId),
        (resource, stream): (Key, u16),
        message: Message,
        payload: Option<Buffer>,
    ) {
        let Some(known) = self.resources.get(resource) else { return };
        match message {
            Message::Node(_) => {}
            Message::Member { message, .. } => {
                if stream != 0 {
                    return self.end_connection(key, "a member speaks in a shard's stream", true);
                }
                let input = MemberInput::Frame { peer, session, message };
                self.work.push_back(Work::Member(resource, input));
            }
            Message::Shard { resource: id, shard, message } => {
                if !known.has_shard(shard) {
                    return self.end_connection(key, "it names a shard that is not there", true);
                }
                if asks_too_much(&message) {
                    return self.end_connection(key, "it reads more than a payload holds", true);
                }
                let length = payload.as_ref().map(Buffer::len);
                if let Err(why) = self.judge_answer(resource, (shard, peer), &message, length) {
                    return self.end_connection(key, why, true);
                }
                if !self.make_room_for(id, shard, (peer, session), &message) {
                    return;
                }
                let buffer = payload.map(|payload| self.buffers.name(resource, payload));
                let input = ShardInput::Frame { peer, session, message, buffer };
                self.work.push_back(Work::Shard(resource, shard, input));
            }
        }
    }

    /// Whether what comes from a peer answers what a shard has asked of it, if it is an answer with bytes; else why not.
    fn judge_answer(
        &mut self,
        resource: Key,
        asked: (u16, NodeId),
        message: &ShardMessage,
        length: Option<usize>,
    ) -> Result<(), &'static str> {
        let known = self.resources.get_mut(resource).filter(|_| Questions::is_answer(message));
        let Some(known) = known else { return Ok(()) };
        known.questions.entry(asked).or_default().judge(message, length)
    }

    /// A session has begun: what came for it before goes to its machines.
    pub(super) fn deliver_early(&mut self, peer: NodeId, id: ResourceId, session: SessionId) {
        let ways = self.peers.ways.range((peer, 0)..=(peer, u16::MAX));
        let keys: Vec<Key> = ways.filter_map(|(_, way)| way.connection).collect();
        for key in keys {
            let Some(connection) = self.peers.connections.get_mut(key) else { continue };
            let Some(begun) = self.peers.sessions.get(&(peer, id)) else { return };
            if connection.early.is_empty() || connection.common.lives(id) != Some(begun.told.lives)
            {
                // Nothing, or meant for lives that are newer already.
                continue;
            }
            let to = (begun.resource, connection.stream);
            let (now, later) =
                std::mem::take(&mut connection.early).into_iter().partition(|(of, ..)| *of == id);
            connection.early = later;
            let now: Vec<_> = now;
            for (_, message, payload) in now {
                if self.peers.connections.get(key).is_some() {
                    self.deliver(key, (peer, session), to, message, payload);
                }
            }
        }
    }

    /// What came for lives that are no more goes with them.
    fn drop_early(&mut self, key: Key, id: ResourceId) {
        if let Some(connection) = self.peers.connections.get_mut(key) {
            connection.early.retain(|(of, ..)| *of != id);
        }
    }

    fn on_node_message(&mut self, key: Key, peer: NodeId, message: NodeMessage) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let of_nodes = matches!(
            message,
            NodeMessage::Describe { .. }
                | NodeMessage::Description { .. }
                | NodeMessage::Deleted { .. }
                | NodeMessage::Voucher(_)
        );
        if of_nodes && connection.stream != 0 {
            return self.end_connection(key, "a node speaks in a shard's stream", true);
        }
        match message {
            NodeMessage::Resources { resources, last } => {
                let Some(is_whole) = connection.common.listed(resources, last) else {
                    return self.end_connection(key, "it lists resources without end", true);
                };
                if is_whole {
                    for id in self.left_over_of(key) {
                        self.note_there(id, Some(peer));
                    }
                    self.show_vouchers_of_fresh(key);
                    self.refuse_listed(key);
                    self.compare_resources(key);
                    self.ask_for_descriptions(key);
                }
            }
            NodeMessage::Joined { resources } => {
                let ids: Vec<ResourceId> = resources.iter().map(|entry| entry.resource).collect();
                self.refuse_outsider(key, peer, &ids);
                // What is not here, or not the peer's, is not remembered: it would be without limit.
                let lives = resources.into_iter().map(|entry| (entry.resource, entry.life));
                let lives: Vec<_> = lives.filter(|(id, _)| self.is_of(*id, peer)).collect();
                let Some(connection) = self.peers.connections.get_mut(key) else { return };
                connection.common.joined_by_peer.extend(lives);
                self.compare_resources(key);
            }
            NodeMessage::Describe { resource } => {
                if let Some(text) = self.describe(resource, peer) {
                    self.send_node(key, &NodeMessage::Description { resource, text });
                }
            }
            NodeMessage::Description { resource, text } => {
                self.on_description(peer, resource, &text);
            }
            NodeMessage::Deleted { resources } => self.on_deleted(peer, &resources),
            NodeMessage::Voucher(signed) => {
                if let Err(fault) = self.on_voucher(peer, signed) {
                    self.end_connection(key, fault, true);
                }
            }
            NodeMessage::Ping { number } => self.send_node(key, &NodeMessage::Pong { number }),
            NodeMessage::Goodbye { reason } => {
                self.end_connection(key, &format!("the peer says goodbye: {reason:?}"), false);
            }
            NodeMessage::Pong { number } => {
                if connection.common.answered(number) {
                    self.tell_resources(key);
                    self.compare_resources(key);
                }
            }
            NodeMessage::Hello(_) | NodeMessage::Authenticate { .. } => {}
        }
    }

    /// Asks a peer what those of its resources are that are not known here.
    fn ask_for_descriptions(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get(key).filter(|entry| entry.stream == 0)
        else {
            return;
        };
        // Of thousands most are known, and whether one was deleted is a longer question.
        let ours: BTreeSet<u64> = self.known.values().map(|known| known.file.id).collect();
        let theirs = connection.common.theirs.keys().copied();
        let unknown = theirs.filter(|id| !ours.contains(&id.0));
        let unknown: Vec<ResourceId> = unknown.filter(|&id| self.is_unheard_of(id)).collect();
        for resource in unknown {
            let Some(connection) = self.peers.connections.get_mut(key) else { return };
            if connection.common.asked.insert(resource) {
                self.send_node(key, &NodeMessage::Describe { resource });
            }
        }
    }

    /// What the peer lists of that of which somebody said that it is deleted.
    fn left_over_of(&self, key: Key) -> Vec<ResourceId> {
        let Some(connection) = self.peers.connections.get(key) else { return Vec::new() };
        let left = self.known.values().filter(|known| !known.left_over.is_empty());
        let left = left.map(|known| ResourceId(known.file.id));
        left.filter(|id| connection.common.theirs.contains_key(id)).collect()
    }

    /// First connections with peers that have proved who they are: in these nodes speak as such.
    pub(in crate::node) fn first_streams(&self) -> Vec<(Key, NodeId)> {
        let connections = self.peers.connections.iter().filter(|(_, entry)| entry.stream == 0);
        let ready = connections.filter(|(_, entry)| entry.ready && !entry.closing);
        ready.filter_map(|(key, entry)| Some((key, entry.peer()?))).collect()
    }

    /// Shows a peer what members have signed about all that it may know of.
    pub(super) fn show_vouchers(&mut self, key: Key, peer: NodeId) {
        for voucher in self.vouchers_for(peer, None) {
            self.send_node(key, &NodeMessage::Voucher(voucher));
        }
    }

    /// The same about what it has not had until now.
    fn show_vouchers_of_fresh(&mut self, key: Key) {
        let connection = self.peers.connections.get_mut(key).filter(|entry| entry.stream == 0);
        let Some(connection) = connection else { return };
        let Some(peer) = connection.peer() else { return };
        let fresh = std::mem::take(&mut connection.common.fresh);
        if fresh.is_empty() {
            return;
        }
        for voucher in self.vouchers_for(peer, Some(&fresh)) {
            self.send_node(key, &NodeMessage::Voucher(voucher));
        }
    }

    /// A name is free again: of what peers have, a resource that was refused may be let in now.
    pub(in crate::node) fn ask_again(&mut self) {
        for key in self.sessions() {
            if let Some(connection) = self.peers.connections.get_mut(key) {
                connection.common.asked.clear();
            }
            self.ask_for_descriptions(key);
        }
    }

    /// Says something to a peer as a node.
    pub(in crate::node) fn send_node(&mut self, key: Key, message: &NodeMessage) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.send_node(message);
        }
        self.stir_peer(key);
    }

    /// Says to every peer which resources are deleted.
    pub(in crate::node) fn tell_deleted(&mut self) {
        for key in self.sessions() {
            self.tell_deleted_to(key);
        }
    }

    /// Says to a peer which resources are deleted.
    pub(super) fn tell_deleted_to(&mut self, key: Key) {
        let first = self.peers.connections.get(key).is_some_and(|entry| entry.stream == 0);
        let resources = self.deleted.ids();
        if first && !resources.is_empty() {
            self.send_node(key, &NodeMessage::Deleted { resources });
        }
    }

    /// Sends what a member says, if the session still lasts.
    pub(in crate::node) fn send_member(
        &mut self,
        resource: Key,
        peer: NodeId,
        session: SessionId,
        message: &MemberMessage,
    ) {
        let Some((key, id)) = self.way(resource, peer, session, None) else { return };
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.send_member(id, message);
        }
        self.stir_peer(key);
    }

    /// Sends what a shard says, if the session still lasts.
    pub(in crate::node) fn send_shard(
        &mut self,
        resource: Key,
        shard: u16,
        (peer, session): (NodeId, SessionId),
        message: &ShardMessage,
        named: Option<BufferId>,
    ) {
        let payload = named.map(|name| self.buffers.get(name));
        if let ShardMessage::Forwarded { id, .. } = message {
            self.use_room(resource, (shard, peer, *id), payload.as_ref());
        }
        let Some((key, id)) = self.way(resource, peer, session, Some(shard)) else { return };
        if Questions::is_one(message)
            && let Some(known) = self.resources.get_mut(resource)
            && !known.questions.entry((shard, peer)).or_default().note(message)
        {
            return self.end_connection(key, TOO_MANY, false);
        }
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if let Some(link) = connection.link.as_mut() {
            // Of what goes to several peers it is computed once.
            let mut unnamed = None;
            let checksum = named.map_or(&mut unnamed, |name| self.buffers.checksum(name));
            let payload = payload.map(Piece::from);
            link.send_shard_to_one_of(id, shard, message, payload, checksum);
        }
        self.stir_peer(key);
    }

    /// The connection of a session that still lasts, and the resource's name in it: of a shard, or else of
    /// the member.
    fn way(
        &self,
        resource: Key,
        peer: NodeId,
        session: SessionId,
        shard: Option<u16>,
    ) -> Option<(Key, ResourceId)> {
        let id = self.resources.get(resource)?.id;
        let told = self.peers.sessions.get(&(peer, id))?.told;
        if told.session != session {
            return None;
        }
        let stream = shard.map_or(0, |shard| place(id, shard) % told.streams);
        let key = self.peers.ways.get(&(peer, stream))?.connection?;
        let connection = self.peers.connections.get(key)?;
        // Where newer lives are joined already, nothing may follow that is meant for these.
        let lasts = connection.common.lives(id) == Some(told.lives) && !connection.closing;
        lasts.then_some((key, id))
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Common, LISTED_MAX};
    use base::ResourceId;
    use std::collections::BTreeMap;
    use wire::ResourceLife;

    const DISK: ResourceId = ResourceId(7);

    fn life(life: u64) -> Vec<ResourceLife> {
        vec![ResourceLife { resource: DISK, life }]
    }

    /// Both ends of one connection; `ours` is the life here.
    fn look(common: &mut Common, ours: u64) -> Change {
        common.compare(&BTreeMap::from([(DISK, ours)]))
    }

    #[test]
    fn machines_hear_of_a_peer_once_both_ends_have_joined_the_present_lives() {
        let mut common = Common::default();
        assert_eq!(look(&mut common, 1), Change::default());
        assert_eq!(common.listed(life(4), true), Some(true));
        let change = look(&mut common, 1);
        assert_eq!((change.join, change.new), (life(4), Vec::new()), "the peer has not joined");
        common.joined_by_peer.insert(DISK, 1);
        let change = look(&mut common, 1);
        assert_eq!(change.new, [(DISK, (1, 4))]);
        assert_eq!(look(&mut common, 1), Change::default(), "nothing has changed");
    }

    #[test]
    fn who_was_dismissed_has_to_join_again_though_the_lives_are_the_same() {
        let mut common = Common::default();
        common.listed(life(4), true);
        common.joined_by_peer.insert(DISK, 1);
        assert_eq!(look(&mut common, 1).new, [(DISK, (1, 4))]);
        assert_eq!(common.compare(&BTreeMap::new()).gone, [DISK]);
        let change = look(&mut common, 1);
        assert_eq!((change.join, change.new), (life(4), Vec::new()));
        common.joined_by_peer.insert(DISK, 1);
        assert_eq!(look(&mut common, 1).new, [(DISK, (1, 4))]);
    }

    #[test]
    fn who_was_dismissed_is_told_of_the_same_life_once_it_has_heard_that() {
        let mut common = Common::default();
        let (with, without) = (BTreeMap::from([(DISK, 1)]), BTreeMap::new());
        assert_eq!(common.tell(&with), None);
        assert_eq!(common.tell(&with), None, "nothing is gone");
        let first = common.tell(&without).expect("it is to be answered");
        assert!(!common.may_be_told(DISK, 1) && common.may_be_told(DISK, 2));
        assert!(!common.answered(u64::MAX >> 1), "it was asked whether it lives");
        assert!(common.answered(first) && common.may_be_told(DISK, 1));
        // Twice, before it has answered.
        assert_eq!(common.tell(&with), None);
        let second = common.tell(&without).expect("it is to be answered");
        assert!(!common.answered(first) && !common.may_be_told(DISK, 1));
        assert!(common.answered(second) && common.may_be_told(DISK, 1));
    }

    #[test]
    fn a_list_without_end_is_not_kept() {
        let mut common = Common::default();
        let part = |from: usize| {
            (from..from + 1000)
                .map(|id| ResourceLife { resource: ResourceId(id as u64), life: 1 })
                .collect::<Vec<_>>()
        };
        for from in (0..LISTED_MAX / 1000).map(|part| part * 1000) {
            assert_eq!(common.listed(part(from), false), Some(false));
        }
        assert_eq!(common.listed(part(LISTED_MAX), false), None);
        assert!(common.arriving.len() <= LISTED_MAX);
    }

    #[test]
    fn what_was_joined_in_an_earlier_life_has_to_be_joined_again() {
        let mut common = Common::default();
        common.listed(life(4), true);
        common.joined_by_peer.insert(DISK, 1);
        look(&mut common, 1);
        // Here it begins anew: what the peer still sends is for the life before.
        let change = look(&mut common, 2);
        assert_eq!(change.gone, [DISK]);
        assert_eq!((change.join, change.new), (life(4), Vec::new()));
        assert_eq!(common.lives(DISK), None);
        common.joined_by_peer.insert(DISK, 2);
        assert_eq!(look(&mut common, 2).new, [(DISK, (2, 4))]);
        // There it begins anew.
        common.listed(life(5), true);
        let change = look(&mut common, 2);
        assert_eq!(change.gone, [DISK]);
        assert_eq!((change.join, change.new), (life(5), Vec::new()));
    }
}

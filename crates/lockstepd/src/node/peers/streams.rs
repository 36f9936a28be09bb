//! How the streams between two nodes make up one session.
//!
//! Two nodes have as many connections as the one with more threads has threads. Members speak in stream
//! 0, shards in turn in all (`threads::place`), and each stream is served by the thread that has its
//! shards. The streams that belong together are a *bundle*: it begins with stream 0, and when one of
//! them ends, all do.
//!
//! The first thread decides when machines hear of a peer: once both ends have joined the same lives of
//! the resource in every stream. It tells its member and every thread, and each thread its shards.
//!
//! Always: machines hear `PeerUp` with a session that is new each time, and `PeerDown` before either life
//! ends; a session begins only when every thread has heard that the one before ended; a report about
//! a bundle that is no more changes nothing.
//!
//! Not here: one stream's lists and frames (`common`), its bytes (`connection`).

use std::net::SocketAddr;

use base::{NodeId, ResourceId, SessionId};
use link::Paths;
use wire::Agreed;

use super::connection::Connection;
use super::{REVOKED, Way};
use crate::log::{debug, info};
use crate::node::threads::Parcel;
use crate::node::{Node, Work};
use crate::slab::Key;

/// Lives of a resource: here, and at the other end.
pub(crate) type Lives = (u64, u64);

/// Which stream, and of which bundle.
pub(crate) type Stream = (u16, u64);

/// A session about a resource, as every thread knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Told {
    /// What the machines here know the other end by.
    pub(crate) session: SessionId,
    pub(crate) lives: Lives,
    /// How many streams it has.
    pub(crate) streams: u16,
}

/// A session that has begun on this thread. It is forgotten when the machines that know of it go.
pub(super) struct Begun {
    pub(super) told: Told,
    /// Whose machines know of it.
    pub(super) resource: Key,
}

impl Node {
    /// A peer has proved who it is.
    pub(super) fn on_ready(&mut self, key: Key, node: NodeId, agreed: Agreed) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let stranger = std::mem::take(&mut connection.stranger);
        connection.node = Some(node);
        connection.stream = agreed.stream;
        let revoked = connection.is_revoked(&self.config.revoked);
        if stranger {
            self.peers.strangers.leave();
        }
        if revoked {
            // It began before that was known here.
            return self.end_connection(key, REVOKED, false);
        }
        match (agreed.stream, stranger) {
            (0, _) => self.on_first_stream(key, node, agreed),
            (stream, false) => self.begin_stream(key, node, stream),
            (_, true) => self.on_further_stream(key, node, agreed),
        }
    }

    /// Stream 0 is there: a new bundle begins.
    fn on_first_stream(&mut self, key: Key, node: NodeId, agreed: Agreed) {
        let now = self.hands.now();
        if !self.peers.nodes.contains_key(&node) {
            return self.end_connection(key, "this node does not know it", false);
        }
        let old = self.peers.ways.get(&(node, 0)).and_then(|way| way.connection);
        if let Some(old) = old.filter(|&old| old != key) {
            self.end_connection(old, "a newer connection took its place", false);
        }
        self.peers.next_bundle += 1;
        let bundle = self.peers.next_bundle;
        let Some(way) = self.peers.ways.get_mut(&(node, 0)) else { return };
        way.connection = Some(key);
        way.bundle = bundle;
        way.paths.opened(now);
        if let Some(connection) = self.peers.connections.get_mut(key) {
            connection.ready = true;
            connection.bundle = bundle;
        }
        let Some(peer) = self.peers.nodes.get_mut(&node) else { return };
        peer.bundle = bundle;
        peer.streams = agreed.streams;
        peer.reason = Some("not all of its streams are there yet".to_owned());
        let dials = peer.dials.then(|| peer.addresses.clone());
        for stream in 1..agreed.streams {
            let thread = self.threads.of_stream(stream);
            let dials = dials.clone();
            self.tell(thread, Parcel::OpenStream { peer: node, stream: (stream, bundle), dials });
        }
        self.on_stream_up(node, bundle);
        // First of all: by it the peer may see that this node is not an outsider.
        self.show_vouchers(key, node);
        self.tell_resources(key);
        self.tell_deleted_to(key);
    }

    /// A peer that dialled has opened a further stream: it goes to the thread whose it is.
    fn on_further_stream(&mut self, key: Key, node: NodeId, agreed: Agreed) {
        let bundle = self.peers.nodes.get(&node).and_then(|peer| {
            let fits = peer.bundle != 0 && peer.streams == agreed.streams && !peer.dials;
            fits.then_some(peer.bundle)
        });
        let Some(bundle) = bundle else {
            return self.end_connection(key, "its first stream is not there", false);
        };
        let thread = self.threads.of_stream(agreed.stream);
        if let Some(connection) = self.peers.connections.get_mut(key) {
            connection.bundle = bundle;
            connection.moves_to = Some(thread);
        }
        self.stir_peer(key);
    }

    /// A bundle has begun, and this stream of it is this thread's.
    pub(in crate::node) fn open_stream(
        &mut self,
        peer: NodeId,
        (stream, bundle): Stream,
        dials: Option<Vec<SocketAddr>>,
    ) {
        let addresses = dials.as_deref().unwrap_or_default();
        let paths = Paths::new(addresses, sys::random_u64(), self.hands.now());
        let way = Way { dials: dials.is_some(), paths, connection: None, bundle };
        self.peers.ways.insert((peer, stream), way);
    }

    /// Another thread has let a stream in that is this thread's.
    pub(in crate::node) fn take_stream(&mut self, connection: Connection) {
        let (node, stream) = (connection.node.expect("it is let in"), connection.stream);
        let bundle = connection.bundle;
        let way = self.peers.ways.get(&(node, stream)).filter(|way| way.bundle == bundle);
        match way.map(|way| way.connection) {
            Some(None) => {
                let key = self.adopt(connection);
                self.begin_stream(key, node, stream);
                self.read_on(key);
            }
            Some(Some(other)) => {
                // One of both is a remnant of an earlier bundle, and nobody can say which.
                self.refuse(&connection);
                self.end_connection(other, "the stream was opened twice", false);
            }
            None => self.refuse(&connection),
        }
    }

    /// A further stream is in use.
    fn begin_stream(&mut self, key: Key, node: NodeId, stream: u16) {
        let now = self.hands.now();
        let Some(way) = self.peers.ways.get_mut(&(node, stream)) else { return };
        way.connection = Some(key);
        way.paths.opened(now);
        let bundle = way.bundle;
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        connection.ready = true;
        connection.bundle = bundle;
        connection.heard = now;
        self.tell(0, Parcel::StreamUp { peer: node, bundle });
        self.tell_resources(key);
    }

    /// One more stream of a bundle is in use.
    pub(in crate::node) fn on_stream_up(&mut self, node: NodeId, bundle: u64) {
        let Some(peer) = self.peers.nodes.get_mut(&node).filter(|peer| peer.bundle == bundle)
        else {
            return;
        };
        peer.up += 1;
        if peer.up == peer.streams {
            peer.reason = None;
            info!("node {}: connected", peer.name);
        }
    }

    /// A connection has ended, or could not be made.
    pub(super) fn report_ended(&mut self, node: NodeId, stream: Stream, was_up: bool, why: &str) {
        let why = why.to_owned();
        self.tell(0, Parcel::StreamEnded { peer: node, stream, was_up, why });
    }

    /// The same, on the first thread: with one stream the bundle ends.
    pub(in crate::node) fn on_stream_ended(
        &mut self,
        node: NodeId,
        (stream, bundle): Stream,
        was_up: bool,
        why: &str,
    ) {
        let Some(peer) = self.peers.nodes.get_mut(&node) else { return };
        if stream == 0 {
            if was_up {
                info!("node {}: disconnected: {why}", peer.name);
            } else {
                debug!("node {}: not connected: {why}", peer.name);
            }
            peer.reason = Some(why.to_owned());
            if was_up {
                self.end_bundle(node);
            }
        } else if peer.bundle == bundle {
            let why = format!("stream {stream}: {why}");
            peer.reason = Some(why.clone());
            let first = self.peers.ways.get(&(node, 0)).and_then(|way| way.connection);
            if let Some(first) = first.filter(|_| was_up) {
                self.end_connection(first, &why, false);
            }
        }
    }

    fn end_bundle(&mut self, node: NodeId) {
        let Some(peer) = self.peers.nodes.get_mut(&node) else { return };
        let (bundle, streams) = (peer.bundle, peer.streams);
        peer.bundle = 0;
        peer.streams = 1;
        peer.up = 0;
        peer.shared.clear();
        let sessions =
            self.peers.sessions.range((node, ResourceId(0))..=(node, ResourceId(u64::MAX)));
        for id in sessions.map(|((_, id), _)| *id).collect::<Vec<_>>() {
            self.end_session(node, id);
        }
        if streams > 1 {
            self.tell_others(|| Parcel::CloseStreams { peer: node, bundle });
            self.close_streams(node, bundle);
        }
    }

    /// A bundle has ended: what this thread has of it goes.
    pub(in crate::node) fn close_streams(&mut self, peer: NodeId, bundle: u64) {
        let ways = self.peers.ways.range((peer, 1)..=(peer, u16::MAX));
        let ended = ways.filter(|(_, way)| way.bundle == bundle).map(|(at, _)| *at);
        for at in ended.collect::<Vec<_>>() {
            let connection = self.peers.ways.remove(&at).and_then(|way| way.connection);
            if let Some(key) = connection {
                self.end_connection(key, "another stream of the same session ended", false);
            }
        }
    }

    /// Both ends have joined these lives of a resource in a stream, or do so no more.
    pub(super) fn report_shared(
        &mut self,
        peer: NodeId,
        stream: Stream,
        resource: ResourceId,
        lives: Option<Lives>,
    ) {
        self.tell(0, Parcel::Shared { peer, stream, resource, lives });
    }

    /// The same, on the first thread.
    pub(in crate::node) fn on_shared(
        &mut self,
        node: NodeId,
        (stream, bundle): Stream,
        id: ResourceId,
        lives: Option<Lives>,
    ) {
        let Some(peer) = self.peers.nodes.get_mut(&node).filter(|peer| peer.bundle == bundle)
        else {
            return;
        };
        let count = usize::from(peer.streams);
        let places = peer.shared.entry(id).or_insert_with(|| vec![None; count]);
        if let Some(place) = places.get_mut(usize::from(stream)) {
            *place = lives;
        }
        if places.iter().all(Option::is_none) {
            peer.shared.remove(&id);
        }
        self.settle_session(node, id);
    }

    /// Ends and begins the session about a resource, as the streams have it.
    fn settle_session(&mut self, node: NodeId, id: ResourceId) {
        let Some(peer) = self.peers.nodes.get(&node) else { return };
        let places = peer.shared.get(&id);
        let first = places.and_then(|places| places[0]);
        let lives = first.filter(|_| places.is_some_and(|all| all.iter().all(|at| *at == first)));
        let streams = peer.streams;
        let told = self.peers.sessions.get(&(node, id)).map(|begun| begun.told.lives);
        if told == lives {
            return;
        }
        if told.is_some() {
            let resource = self.resource_by_id(id).map_or("(gone)", |key| self.name_of(key));
            let peer = self.peers.nodes.get(&node).map_or("?", |peer| peer.name.as_str());
            let why = match lives {
                Some(_) => "it began anew there or here",
                None => "it ended there or here",
            };
            info!("{resource}: the session with node {peer} is over: {why}");
            self.end_session(node, id);
        }
        let Some(lives) = lives.filter(|_| !self.peers.unheard.contains_key(&(node, id))) else {
            return;
        };
        self.peers.next_session += 1;
        let session = SessionId(self.peers.next_session);
        let told = Told { session, lives, streams };
        self.tell_others(|| Parcel::PeerUp { peer: node, resource: id, told });
        self.begin_session(node, id, told);
    }

    /// Machines of this thread hear of a peer.
    pub(in crate::node) fn begin_session(&mut self, peer: NodeId, id: ResourceId, told: Told) {
        let Some(resource) = self.resource_by_id(id) else { return };
        if self.resources.get(resource).is_none_or(|present| present.life != told.lives.0) {
            return;
        }
        self.peers.sessions.insert((peer, id), Begun { told, resource });
        self.say_peer(id, peer, told.session, true);
        self.deliver_early(peer, id, told.session);
    }

    /// Everybody hears that a session has ended.
    fn end_session(&mut self, node: NodeId, id: ResourceId) {
        let Some(Begun { told, resource }) = self.peers.sessions.remove(&(node, id)) else {
            return;
        };
        let Some(life) = self.resources.get(resource).map(|resource| resource.life) else { return };
        self.say_peer(id, node, told.session, false);
        self.tell_others(|| Parcel::PeerDown { peer: node, resource: id, life });
        let others = self.threads.others();
        if others > 0 {
            self.peers.unheard.insert((node, id), (life, others));
        }
    }

    /// The first thread says that a session has ended.
    pub(in crate::node) fn on_session_ended(&mut self, peer: NodeId, id: ResourceId, life: u64) {
        if let Some(Begun { told, .. }) = self.peers.sessions.remove(&(peer, id)) {
            self.say_peer(id, peer, told.session, false);
        }
        // Behind what the machines hear: then they have heard it.
        let heard = Box::new(Parcel::Heard { peer, resource: id, life });
        self.work.push_back(Work::Tell(0, heard));
    }

    /// Another thread's machines have heard that a session ended.
    pub(in crate::node) fn on_heard(&mut self, peer: NodeId, id: ResourceId, life: u64) {
        let Some((of, left)) = self.peers.unheard.get_mut(&(peer, id)) else { return };
        if *of != life {
            return;
        }
        *left -= 1;
        if *left == 0 {
            self.peers.unheard.remove(&(peer, id));
            self.settle_session(peer, id);
        }
    }

    /// The machines of a resource are gone from this thread, and with them what they were told.
    pub(in crate::node) fn forget_sessions(&mut self, id: ResourceId) {
        self.peers.sessions.retain(|(_, of), _| *of != id);
        self.peers.unheard.retain(|(_, of), _| *of != id);
    }
}

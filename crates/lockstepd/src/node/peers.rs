//! Other nodes: one connection with each, and the frames of all resources in it.
//!
//! The node with the lower number dials, from its own address; the other accepts. Both tell which
//! resources they have; a resource's machines hear `PeerUp` once both ends have it, and what is said
//! about a resource that only one end has is counted and dropped.
//!
//! Always: an older connection with a node is closed, and `PeerDown` said, before a newer one is used;
//! a peer's fault closes its connection and is counted, and never more than that.
//!
//! Not here: proving who a peer is, and frames (`link`); what they mean (`replica`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base::{Duration, Instant, NodeId, ResourceId, SessionId};
use link::{Link, LinkError, LinkEvent, LinkWant, Paths, Revocations, Strangers};
use replica::door::{MemberInput, ShardInput};
use sys::{Buffer, Event, Listener, Payload, Piece, Socket, SocketAddress};
use wire::{
    Frame, GoodbyeReason, Hello, MemberMessage, Message, NodeMessage, RESOURCES_MAX, ShardMessage,
};

use super::patience::{is_taken, patiently};
use super::{Node, Purpose, Work, identity};
use crate::log::{debug, info, warning};
use crate::slab::{Key, Slab};

/// Bytes received at once: more frames for one call than a turn usually has.
const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes that may wait for one peer before requests of this node's clients are held back. Two seconds
/// of a 1 Gbit/s link.
pub(super) const UNSENT_BYTES_MAX: u64 = 256 << 20;

/// A connection on which nothing was heard for this long is asked whether it lives.
const QUIET: Duration = Duration::from_secs(1);

/// A connection on which nothing was heard for this long is closed.
const SILENT: Duration = Duration::from_secs(5);

/// Why who is revoked has to go.
const REVOKED: &str = "its certificate is revoked here";

/// Another node of the cluster.
pub(crate) struct Peer {
    pub(crate) name: String,
    /// This node dials it.
    dials: bool,
    paths: Paths,
    /// The connection being made, or in use.
    connection: Option<Key>,
    /// The session in use.
    pub(crate) session: Option<SessionId>,
    /// Why there is none.
    pub(crate) reason: Option<String>,
}

/// A connection with another node, or one that may become that.
pub(crate) struct Connection {
    socket: Socket,
    link: Option<Link>,
    /// Whom it leads to, once known.
    node: Option<NodeId>,
    stranger: bool,
    session: Option<SessionId>,
    /// What the peer has; `None` while its list has not come whole.
    theirs: BTreeSet<ResourceId>,
    arriving: BTreeSet<ResourceId>,
    /// What was ever common in this connection.
    shared_once: BTreeSet<ResourceId>,
    /// What machines were told is common.
    shared: BTreeSet<ResourceId>,
    input: Option<Buffer>,
    rest: std::ops::Range<usize>,
    /// A frame whose payload is arriving, and where to.
    frame: Option<Frame>,
    place: Option<Buffer>,
    receiving: bool,
    starved: bool,
    heard: Instant,
    asked: Instant,
    unsent: u64,
    restless: bool,
    closing: bool,
}

impl Connection {
    fn is_revoked(&self, revoked: &Revocations) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_revoked(revoked))
    }
}

/// What came of bytes of a peer.
enum Came {
    Ready(Hello),
    Frame(Frame, Option<Buffer>),
}

/// Everything about other nodes.
#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) nodes: BTreeMap<NodeId, Peer>,
    connections: Slab<Connection>,
    /// With what this node shows itself, and whom it believes.
    pub(super) config: Option<link::Config>,
    pub(super) process: u64,
    next_session: u64,
    strangers: Strangers,
    restless: Vec<Key>,
    /// Frames of resources that are not known here.
    pub(crate) strays: u64,
    /// Connections closed for a fault of the peer.
    pub(crate) faults: u64,
}

impl Peers {
    /// With what this node shows itself, if it has anything.
    pub(super) fn config(&self) -> Option<&link::Config> {
        self.config.as_ref()
    }

    /// Whether so much waits for a peer that clients should wait.
    pub(super) fn congested(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.unsent > UNSENT_BYTES_MAX)
    }
}

impl Node {
    /// Listens for peers and begins to dial those that this node dials.
    pub(super) fn open_peers(&mut self) -> Result<(), String> {
        self.peers.process = sys::random_u64() | 1;
        if self.config.identity.is_none() {
            return Ok(());
        }
        let config = identity::read(&self.config)?;
        self.peers.config = Some(config);
        let address = self.config.listen;
        let listener = patiently(|| sys::listen_tcp(address), is_taken)
            .map_err(|error| format!("cannot listen for peers on {address}: {error}"))?;
        self.accept_peers(listener);
        for peer in self.config.peers.clone() {
            self.add_peer(peer.id, &peer.name, &peer.addresses);
        }
        Ok(())
    }

    fn accept_peers(&mut self, listener: Listener) {
        let token = self.token(Purpose::PeerAccept(listener.clone()));
        self.hands.accept(token, &listener);
    }

    pub(super) fn on_peer_accept_ended(&mut self, listener: &Listener, event: &Event) {
        if self.stopping.is_none() {
            warning!("accepting peers failed, tried again: {:?}", event.result);
            self.accept_peers(listener.clone());
        }
    }

    /// Talks to this node from now on; nothing happens if it does already.
    pub(super) fn add_peer(&mut self, node: NodeId, name: &str, addresses: &[SocketAddr]) {
        if node == self.config.node || self.peers.nodes.contains_key(&node) {
            return;
        }
        let seed = sys::random_u64();
        let peer = Peer {
            name: name.to_owned(),
            dials: self.config.node < node && !addresses.is_empty(),
            paths: Paths::new(addresses, seed, self.hands.now()),
            connection: None,
            session: None,
            reason: Some("not connected yet".to_owned()),
        };
        self.peers.nodes.insert(node, peer);
    }

    /// When time alone changes something between nodes.
    pub(super) fn peers_wake_at(&self) -> Option<Instant> {
        let paths = self.peers.nodes.values().filter(|peer| peer.dials);
        let paths = paths.filter_map(|peer| peer.paths.wake_at());
        let links = self.peers.connections.iter().filter_map(|(_, connection)| {
            let deadline = connection.link.as_ref().and_then(Link::deadline);
            deadline.or_else(|| Some(connection.heard.max(connection.asked) + QUIET))
        });
        paths.chain(links).min()
    }

    /// Dials who is due, asks who is quiet, gives up who is late.
    pub(super) fn wake_peers(&mut self) {
        let now = self.hands.now();
        for (node, address) in self.peers_due(now) {
            self.dial(node, address);
        }
        for key in self.peers.connections.keys() {
            let Some(connection) = self.peers.connections.get_mut(key) else { continue };
            let deadline = connection.link.as_ref().and_then(Link::deadline);
            if connection.closing {
                if deadline.is_none_or(|deadline| deadline <= now) {
                    self.drop_connection(key);
                }
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                self.end_connection(key, "the peer did not prove who it is in time", false);
            } else if connection.session.is_some() {
                self.watch(key, now);
            }
        }
    }

    fn peers_due(&mut self, now: Instant) -> Vec<(NodeId, SocketAddr)> {
        let mut due = Vec::new();
        let mut late = Vec::new();
        for (node, peer) in self.peers.nodes.iter_mut().filter(|(_, peer)| peer.dials) {
            if peer.paths.is_overdue(now) {
                late.push((*node, peer.connection));
            }
        }
        for (node, connection) in late {
            match connection {
                Some(key) => self.end_connection(key, "connecting took too long", false),
                None => self.peer_mut(node).paths.failed(now),
            }
        }
        for (node, peer) in self.peers.nodes.iter_mut().filter(|(_, peer)| peer.dials) {
            if let Some(address) = peer.paths.next(now) {
                due.push((*node, address));
            }
        }
        due
    }

    fn peer_mut(&mut self, node: NodeId) -> &mut Peer {
        self.peers.nodes.get_mut(&node).expect("only known nodes are asked for")
    }

    fn dial(&mut self, node: NodeId, address: SocketAddr) {
        let now = self.hands.now();
        let local = Some(SocketAddr::new(self.config.listen.ip(), 0))
            .filter(|local| local.is_ipv4() == address.is_ipv4() && !local.ip().is_unspecified());
        let key = self.operations.insert(Purpose::PeerConnect(node));
        match self.hands.connect(key.number(), local, &SocketAddress::Tcp(address)) {
            Ok(socket) => {
                let connection = self.new_connection(socket, None, Some(node), now);
                self.peer_mut(node).connection = Some(connection);
            }
            Err(errno) => {
                self.operations.remove(key);
                let peer = self.peer_mut(node);
                peer.reason = Some(format!("{address}: {errno}"));
                peer.paths.failed(now);
            }
        }
    }

    fn new_connection(
        &mut self,
        socket: Socket,
        link: Option<Link>,
        node: Option<NodeId>,
        now: Instant,
    ) -> Key {
        self.peers.connections.insert(Connection {
            socket,
            stranger: link.is_some(),
            link,
            node,
            session: None,
            theirs: BTreeSet::new(),
            arriving: BTreeSet::new(),
            shared_once: BTreeSet::new(),
            shared: BTreeSet::new(),
            input: None,
            rest: 0..0,
            frame: None,
            place: None,
            receiving: false,
            starved: false,
            heard: now,
            asked: now,
            unsent: 0,
            restless: false,
            closing: false,
        })
    }

    fn hello(&self) -> Hello {
        Hello {
            version_min: wire::VERSION_MIN,
            version_max: wire::VERSION_MAX,
            features_offered: 0,
            features_required: 0,
            cluster: self.config.cluster,
            node: self.config.node,
            process: self.peers.process,
            stream: 0,
            streams: 1,
            unknown: Vec::new(),
        }
    }

    pub(super) fn on_peer_connected(&mut self, node: NodeId, event: &Event) {
        let now = self.hands.now();
        let Some(key) = self.peers.nodes.get(&node).and_then(|peer| peer.connection) else {
            return;
        };
        if let Err(errno) = event.result {
            return self.end_connection(key, &errno.to_string(), false);
        }
        let hello = self.hello();
        let config = self.peers.config.as_ref().expect("who dials has an identity");
        let link = Link::dial(config, node, hello, self.buffers.pool(), now);
        match (link, self.peers.connections.get_mut(key)) {
            (Ok(link), Some(connection)) if connection.link.is_none() => {
                connection.link = Some(link);
                self.stir_peer(key);
            }
            (Err(error), _) => self.end_connection(key, &error.to_string(), false),
            _ => {}
        }
    }

    /// Someone has connected.
    pub(super) fn on_stranger(&mut self, socket: Socket) {
        let now = self.hands.now();
        if !self.peers.strangers.enter() {
            warning!("a connection was refused: too many peers have not proved who they are");
            return self.hands.close(&socket);
        }
        let hello = self.hello();
        let config = self.peers.config.as_ref().expect("who listens has an identity");
        match Link::accept(config, hello, self.buffers.pool(), now) {
            Ok(link) => {
                let key = self.new_connection(socket, Some(link), None, now);
                self.stir_peer(key);
            }
            Err(error) => {
                warning!("a connection was refused: {error}");
                self.peers.strangers.leave();
                self.hands.close(&socket);
            }
        }
    }

    /// Sends those away who are revoked by now.
    pub(super) fn end_revoked_peers(&mut self) {
        for key in self.peers.connections.keys() {
            let connection = self.peers.connections.get(key);
            if connection.is_some_and(|connection| connection.is_revoked(&self.config.revoked)) {
                self.end_connection(key, REVOKED, false);
            }
        }
    }

    /// The connection may have something to send or receive.
    fn stir_peer(&mut self, key: Key) {
        if let Some(connection) = self.peers.connections.get_mut(key)
            && !connection.restless
        {
            connection.restless = true;
            self.peers.restless.push(key);
        }
    }

    pub(super) fn peers_are_restless(&self) -> bool {
        !self.peers.restless.is_empty()
    }

    /// Sends and receives, for every connection that may have cause to.
    pub(super) fn serve_peers(&mut self) {
        for key in std::mem::take(&mut self.peers.restless) {
            if let Some(connection) = self.peers.connections.get_mut(key) {
                connection.restless = false;
                self.send_to_peer(key);
                self.receive_from_peer(key);
            }
        }
    }

    fn send_to_peer(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(link) = connection.link.as_mut() else { return };
        let pieces = link.outgoing();
        if pieces.is_empty() {
            return;
        }
        let bytes = u64::try_from(pieces.iter().map(Piece::len).sum::<usize>());
        let bytes = bytes.expect("memory is smaller");
        connection.unsent += bytes;
        let token = self.operations.insert(Purpose::PeerSend(key, bytes)).number();
        self.hands.send(token, &connection.socket, pieces);
    }

    pub(super) fn on_peer_sent(&mut self, key: Key, bytes: u64, event: &Event) {
        let held_back = self.peers.congested();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        connection.unsent -= bytes;
        if let Err(errno) = event.result {
            self.end_connection(key, &errno.to_string(), false);
            self.drop_connection(key);
        } else if connection.closing && connection.unsent == 0 {
            self.drop_connection(key);
        }
        if held_back && !self.peers.congested() {
            self.stir_clients();
        }
    }

    fn receive_from_peer(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let idle = !connection.receiving && !connection.starved && !connection.closing;
        let Some(link) = connection.link.as_ref().filter(|_| idle) else { return };
        let token = Purpose::PeerReceive(key);
        if let LinkWant::Payload { length, done, direct: true } = link.want()
            && let Some(place) = connection.place.take()
        {
            connection.receiving = true;
            let token = self.operations.insert(token).number();
            return self.hands.receive(token, &connection.socket, place, done..length);
        }
        let buffer = connection.input.take().or_else(|| self.buffers.pool().take(RECEIVE_BYTES));
        let Some(buffer) = buffer else {
            connection.starved = true;
            return;
        };
        connection.receiving = true;
        let token = self.operations.insert(token).number();
        self.hands.receive(token, &connection.socket, buffer, 0..RECEIVE_BYTES);
    }

    pub(super) fn on_peer_received(&mut self, key: Key, event: Event) {
        let now = self.hands.now();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        connection.receiving = false;
        connection.heard = now;
        let Some(link) = connection.link.as_mut() else { return };
        let count = match event.result {
            Ok(count) if count > 0 => count as usize,
            Ok(_) => {
                let why = link.ended().to_string();
                return self.end_connection(key, &why, false);
            }
            Err(errno) => return self.end_connection(key, &errno.to_string(), false),
        };
        let Payload::Buffer(buffer) = event.payload else {
            unreachable!("a receive gives its buffer back")
        };
        let mut came = Vec::new();
        let mut result = Ok(());
        if connection.input.is_some() {
            // The buffer for frames stayed here, so this is the payload's own.
            match link.payload_received(&buffer, count) {
                Ok(true) => {
                    let frame = connection.frame.take().expect("a payload has its frame");
                    came.push(Came::Frame(frame, Some(buffer)));
                }
                Ok(false) => connection.place = Some(buffer),
                Err(error) => result = Err(error),
            }
        } else {
            connection.input = Some(buffer);
            connection.rest = 0..count;
            result = self.read_frames(key, &mut came);
        }
        self.on_came(key, came, result);
    }

    /// Takes what has arrived apart, as far as there are buffers.
    fn read_frames(&mut self, key: Key, came: &mut Vec<Came>) -> Result<(), LinkError> {
        let Some(connection) = self.peers.connections.get_mut(key) else { return Ok(()) };
        let (Some(link), Some(mut buffer)) = (connection.link.as_mut(), connection.input.take())
        else {
            return Ok(());
        };
        let end = connection.rest.end;
        let bytes = buffer.as_mut().expect("nobody else reads this buffer");
        let mut input = &mut bytes[connection.rest.clone()];
        let mut result = Ok(());
        loop {
            if let LinkWant::Payload { length, .. } = link.want() {
                if connection.place.is_none() {
                    connection.place = self.buffers.pool().take(length);
                }
                let Some(place) = connection.place.as_mut() else {
                    connection.starved = true;
                    break;
                };
                match link.payload(&mut input, place.as_mut().expect("nobody else has it")) {
                    Ok(true) => {
                        let frame = connection.frame.take().expect("a payload has its frame");
                        came.push(Came::Frame(frame, connection.place.take()));
                    }
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                continue;
            }
            match link.next(&mut input) {
                Ok(None) => break,
                Ok(Some(LinkEvent::Ready { hello, .. })) => came.push(Came::Ready(hello)),
                Ok(Some(LinkEvent::Frame(frame))) if frame.payload.length > 0 => {
                    connection.frame = Some(frame);
                }
                Ok(Some(LinkEvent::Frame(frame))) => came.push(Came::Frame(frame, None)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        connection.rest = end - input.len()..end;
        connection.input = Some(buffer);
        result
    }

    /// Connections that wait for a buffer may get one now.
    pub(super) fn stir_starved_peers(&mut self) {
        for key in self.peers.connections.keys() {
            let connection = self.peers.connections.get_mut(key).expect("just listed");
            if connection.starved {
                connection.starved = false;
                let mut came = Vec::new();
                let result = self.read_frames(key, &mut came);
                self.on_came(key, came, result);
            }
        }
    }

    fn on_came(&mut self, key: Key, came: Vec<Came>, result: Result<(), LinkError>) {
        for came in came {
            match came {
                Came::Ready(hello) => self.on_ready(key, hello.node),
                Came::Frame(frame, payload) => self.on_frame(key, frame.message, payload),
            }
        }
        self.stir_peer(key);
        if let Err(error) = result {
            let fault = matches!(error, LinkError::Frame(_) | LinkError::Tls(_));
            self.end_connection(key, &error.to_string(), fault);
        }
    }

    /// A peer has proved who it is.
    fn on_ready(&mut self, key: Key, node: NodeId) {
        let now = self.hands.now();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if std::mem::take(&mut connection.stranger) {
            self.peers.strangers.leave();
        }
        connection.node = Some(node);
        if connection.is_revoked(&self.config.revoked) {
            // It began before that was known here.
            return self.end_connection(key, REVOKED, false);
        }
        if !self.peers.nodes.contains_key(&node) {
            return self.end_connection(key, "this node does not know it", false);
        }
        let old = self.peer_mut(node).connection.filter(|&old| old != key);
        if let Some(old) = old {
            self.end_connection(old, "a newer connection took its place", false);
        }
        self.peers.next_session += 1;
        let session = SessionId(self.peers.next_session);
        let peer = self.peer_mut(node);
        peer.connection = Some(key);
        peer.session = Some(session);
        peer.reason = None;
        peer.paths.opened(now);
        info!("node {}: connected", self.peers.nodes[&node].name);
        if let Some(connection) = self.peers.connections.get_mut(key) {
            connection.session = Some(session);
        }
        self.tell_resources(key);
    }

    /// Tells a peer which resources this node has.
    fn tell_resources(&mut self, key: Key) {
        let mut resources: Vec<ResourceId> =
            self.resources.iter().map(|(_, resource)| resource.id).collect();
        resources.sort_unstable();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(link) = connection.link.as_mut() else { return };
        let mut parts: Vec<Vec<ResourceId>> =
            resources.chunks(RESOURCES_MAX).map(<[ResourceId]>::to_vec).collect();
        let end = parts.pop().unwrap_or_default();
        for resources in parts {
            link.send_node(&NodeMessage::Resources { resources, last: false });
        }
        link.send_node(&NodeMessage::Resources { resources: end, last: true });
        self.stir_peer(key);
    }

    /// The resources of this node have changed.
    pub(super) fn tell_all_resources(&mut self) {
        for key in self.peers.connections.keys() {
            if self.peers.connections.get(key).is_some_and(|entry| entry.session.is_some()) {
                self.tell_resources(key);
                self.compare_resources(key);
            }
        }
    }

    /// Tells machines which resources both ends have, as far as that has changed.
    fn compare_resources(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let (Some(peer), Some(session)) = (connection.node, connection.session) else { return };
        let ours: BTreeMap<ResourceId, Key> =
            self.resources.iter().map(|(key, resource)| (resource.id, key)).collect();
        let common: BTreeSet<ResourceId> =
            connection.theirs.iter().copied().filter(|id| ours.contains_key(id)).collect();
        let again = common
            .iter()
            .any(|id| !connection.shared.contains(id) && connection.shared_once.contains(id));
        if again {
            // What is still on its way belongs to an earlier life of the resource.
            return self.end_connection(key, "a resource began anew", false);
        }
        let gone: Vec<ResourceId> = connection.shared.difference(&common).copied().collect();
        let new: Vec<ResourceId> = common.difference(&connection.shared).copied().collect();
        connection.shared_once.extend(&common);
        connection.shared = common;
        for id in gone {
            if let Some(&resource) = ours.get(&id) {
                self.say_peer(resource, peer, session, false);
            }
        }
        for id in new {
            self.say_peer(ours[&id], peer, session, true);
        }
    }

    /// Tells the machines of a resource that a session with a peer begins or has ended.
    fn say_peer(&mut self, resource: Key, peer: NodeId, session: SessionId, up: bool) {
        let shards = self.resources.get(resource).map_or(0, |entry| entry.shards.len());
        let member = if up {
            MemberInput::PeerUp { peer, session }
        } else {
            MemberInput::PeerDown { peer, session }
        };
        self.work.push_back(Work::Member(resource, member));
        for shard in 0..u16::try_from(shards).expect("a few") {
            let input = if up {
                ShardInput::PeerUp { peer, session }
            } else {
                ShardInput::PeerDown { peer, session }
            };
            self.work.push_back(Work::Shard(resource, shard, input));
        }
    }

    fn on_frame(&mut self, key: Key, message: Message, payload: Option<Buffer>) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let (Some(peer), Some(session)) = (connection.node, connection.session) else { return };
        match message {
            Message::Node(message) => self.on_node_message(key, message),
            Message::Member { resource, message } => {
                let Some(resource) = self.shared(key, resource) else { return };
                let input = MemberInput::Frame { peer, session, message };
                self.work.push_back(Work::Member(resource, input));
            }
            Message::Shard { resource, shard, message } => {
                let Some(resource) = self.shared(key, resource) else { return };
                let shards = self.resources.get(resource).map_or(0, |entry| entry.shards.len());
                if usize::from(shard) >= shards {
                    return self.end_connection(key, "it names a shard that is not there", true);
                }
                let buffer = payload.map(|payload| self.buffers.name(resource, payload));
                let input = ShardInput::Frame { peer, session, message, buffer };
                self.work.push_back(Work::Shard(resource, shard, input));
            }
        }
    }

    /// The resource of a frame, if both ends have it.
    fn shared(&mut self, key: Key, id: ResourceId) -> Option<Key> {
        let shared = self.peers.connections.get(key)?.shared.contains(&id);
        let found = self.resource_by_id(id).filter(|_| shared);
        if found.is_none() {
            self.peers.strays += 1;
            debug!("a frame for resource {:016x}, which is not here, was dropped", id.0);
        }
        found
    }

    fn on_node_message(&mut self, key: Key, message: NodeMessage) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        match message {
            NodeMessage::Resources { resources, last } => {
                connection.arriving.extend(resources);
                if last {
                    connection.theirs = std::mem::take(&mut connection.arriving);
                    self.compare_resources(key);
                }
            }
            NodeMessage::Ping { number } => {
                if let Some(link) = connection.link.as_mut() {
                    link.send_node(&NodeMessage::Pong { number });
                }
                self.stir_peer(key);
            }
            NodeMessage::Goodbye { reason } => {
                self.end_connection(key, &format!("the peer says goodbye: {reason:?}"), false);
            }
            NodeMessage::Pong { .. } | NodeMessage::Hello(_) | NodeMessage::Authenticate { .. } => {
            }
        }
    }

    fn watch(&mut self, key: Key, now: Instant) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if now.since(connection.heard) >= SILENT {
            self.end_connection(key, "nothing was heard for 5 seconds", false);
        } else if now.since(connection.heard.max(connection.asked)) >= QUIET {
            connection.asked = now;
            if let Some(link) = connection.link.as_mut() {
                link.send_node(&NodeMessage::Ping { number: now.0 });
            }
            self.stir_peer(key);
        }
    }

    /// Sends what a member says, if the session still lasts.
    pub(super) fn send_member(
        &mut self,
        resource: Key,
        peer: NodeId,
        session: SessionId,
        message: &MemberMessage,
    ) {
        let Some((key, id)) = self.way(resource, peer, session) else { return };
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.send_member(id, message);
        }
        self.stir_peer(key);
    }

    /// Sends what a shard says, if the session still lasts.
    pub(super) fn send_shard(
        &mut self,
        resource: Key,
        shard: u16,
        (peer, session): (NodeId, SessionId),
        message: &ShardMessage,
        payload: Option<Buffer>,
    ) {
        let Some((key, id)) = self.way(resource, peer, session) else { return };
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.send_shard(id, shard, message, payload.map(Piece::from));
        }
        self.stir_peer(key);
    }

    /// The connection of a session that still lasts, and the resource's name in it.
    fn way(&self, resource: Key, peer: NodeId, session: SessionId) -> Option<(Key, ResourceId)> {
        let id = self.resources.get(resource)?.id;
        let entry = self.peers.nodes.get(&peer)?;
        let key = entry.connection.filter(|_| entry.session == Some(session))?;
        let connection = self.peers.connections.get(key)?;
        (connection.shared.contains(&id) && !connection.closing).then_some((key, id))
    }

    /// The connection is of no more use: machines hear of it, and it closes once what tells the peer
    /// why is sent.
    fn end_connection(&mut self, key: Key, why: &str, fault: bool) {
        let now = self.hands.now();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        if connection.closing {
            return;
        }
        connection.closing = true;
        if fault {
            self.peers.faults += 1;
            warning!("a connection is closed for a fault of the peer: {why}");
        }
        if let Some(link) = connection.link.as_mut() {
            link.goodbye(if fault { GoodbyeReason::Fault } else { GoodbyeReason::Replaced });
        }
        let (node, session) = (connection.node, connection.session);
        let shared = std::mem::take(&mut connection.shared);
        if std::mem::take(&mut connection.stranger) {
            self.peers.strangers.leave();
            debug!("a connection of a stranger ended: {why}");
        }
        if let Some(node) = node
            && let Some(peer) = self.peers.nodes.get_mut(&node)
            && peer.connection == Some(key)
        {
            peer.connection = None;
            if peer.session.take().is_some() {
                info!("node {}: disconnected: {why}", peer.name);
                peer.paths.ended(now);
            } else {
                debug!("node {}: not connected: {why}", peer.name);
                peer.paths.failed(now);
            }
            peer.reason = Some(why.to_owned());
        }
        if let (Some(node), Some(session)) = (node, session) {
            for id in shared {
                if let Some(resource) = self.resource_by_id(id) {
                    self.say_peer(resource, node, session, false);
                }
            }
        }
        self.send_to_peer(key);
        // Who was never let in shall learn why; who was must be gone before a newer session begins.
        let unsent = self.peers.connections.get(key).map_or(0, |connection| connection.unsent);
        if session.is_some() || unsent == 0 {
            self.drop_connection(key);
        }
    }

    fn drop_connection(&mut self, key: Key) {
        if let Some(connection) = self.peers.connections.remove(key) {
            self.hands.close(&connection.socket);
        }
    }

    /// Says goodbye to everybody.
    pub(super) fn leave_peers(&mut self) {
        for key in self.peers.connections.keys() {
            let Some(connection) = self.peers.connections.get_mut(key) else { continue };
            if let Some(link) = connection.link.as_mut() {
                link.goodbye(GoodbyeReason::Stopping);
            }
            self.send_to_peer(key);
        }
    }
}

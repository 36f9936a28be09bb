//! Other nodes: one connection with each, and the frames of all resources in it.
//!
//! The node with the lower number dials, from its own address; the other accepts.
//!
//! Always: an older connection with a node is closed, and `PeerDown` said, before a newer one is used;
//! a peer's fault closes its connection and is counted, and never more than that.
//!
//! Not here: one connection's bytes (`connection`), which resources are talked about in it (`common`);
//! proving who a peer is, and frames (`link`).

mod common;
mod connection;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base::{Duration, Instant, NodeId, SessionId};
use link::{Link, Paths, Strangers};
use sys::{Event, Listener, Socket, SocketAddress};
use wire::{GoodbyeReason, Hello, NodeMessage};

use self::connection::Connection;
use super::patience::{is_taken, patiently};
use super::{Node, Purpose, identity};
use crate::log::{info, warning};
use crate::slab::{Key, Slab};

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

    pub(super) fn peers_are_restless(&self) -> bool {
        !self.peers.restless.is_empty()
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
        self.tell_deleted_to(key);
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

//! Other nodes: connections with each, one for each thread, and the frames of all resources in them.
//!
//! The node with the lower number dials, from its own address; the other accepts, on its first thread.
//!
//! Always: older connections with a node are closed, and `PeerDown` said, before newer ones are used;
//! a peer's fault closes its connection and is counted, and never more than that.
//!
//! Not here: one connection's bytes (`connection`), which resources are talked about in it (`common`),
//! where payload goes (`places`), what was asked of a peer (`questions`), how several are one session (`streams`); proving who a peer is, and frames (`link`).

mod common;
mod connection;
mod places;
mod questions;
mod streams;

use self::connection::Came;
pub(super) use self::connection::Connection;
pub(super) use self::questions::Questions;
use self::streams::Begun;
pub(super) use self::streams::{Lives, Stream, Told};

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base::{Duration, Instant, NodeId, ResourceId};
use link::{Link, Paths, Strangers};
use sys::{Event, Listener, Socket, SocketAddress};
use wire::admin::codes;
use wire::{GoodbyeReason, Hello, NodeMessage};

use super::patience::{is_taken, patiently};
use super::threads::Parcel;
use super::{Node, Purpose, identity};
use crate::backing::Refused;
use crate::log::warning_limited;
use crate::slab::{Key, Slab};

/// Bytes that may wait for one peer before requests of this node's clients are held back. Two seconds
/// of a 1 Gbit/s link.
pub(super) const UNSENT_BYTES_MAX: u64 = 256 << 20;

/// Bytes that are enciphered before what was enciphered has left.
const SEALED_BYTES_MAX: usize = 1 << 20;

/// A connection on which nothing was heard for this long is asked whether it lives.
const QUIET: Duration = Duration::from_secs(1);

/// A connection on which nothing was heard for this long is closed.
const SILENT: Duration = Duration::from_secs(5);

/// Why who is revoked has to go.
const REVOKED: &str = "its certificate is revoked here";

/// Another node of the cluster, as the first thread knows it.
pub(crate) struct Peer {
    pub(crate) name: String,
    /// This node dials it.
    dials: bool,
    addresses: Vec<SocketAddr>,
    /// The streams in use are those of this bundle; 0: none.
    bundle: u64,
    /// How many it needs, and how many are there.
    streams: u16,
    up: u16,
    /// Lives that both ends have joined, by stream.
    shared: BTreeMap<ResourceId, Vec<Option<Lives>>>,
    /// Why it is not connected.
    pub(crate) reason: Option<String>,
    /// When a session with it that has ended heard it last.
    heard: Option<Instant>,
}

impl Peer {
    /// Whether machines can hear of it.
    pub(crate) fn is_connected(&self) -> bool {
        self.bundle != 0 && self.up == self.streams
    }
}

/// The way of one stream to a peer, on the thread whose it is.
struct Way {
    /// This node dials it.
    dials: bool,
    paths: Paths,
    /// The connection being made, or in use.
    connection: Option<Key>,
    /// Which streams it belongs to.
    bundle: u64,
}

/// Everything about other nodes.
#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) nodes: BTreeMap<NodeId, Peer>,
    /// Streams of this thread.
    ways: BTreeMap<(NodeId, u16), Way>,
    connections: Slab<Connection>,
    /// Sessions that machines here were told.
    sessions: BTreeMap<(NodeId, ResourceId), Begun>,
    /// Sessions that have ended, in which life, and how many threads have not heard it.
    unheard: BTreeMap<(NodeId, ResourceId), (u64, usize)>,
    /// With what this node shows itself, and whom it believes.
    pub(super) config: Option<link::Config>,
    pub(super) process: u64,
    next_session: u64,
    next_bundle: u64,
    strangers: Strangers,
    restless: Vec<Key>,
    /// Before this time alone changes nothing between nodes; `None`: it never does.
    wake_at: Option<Instant>,
    /// Room for what one receive brings.
    came: Vec<Came>,
    /// Frames of resources that are not known here.
    pub(crate) strays: u64,
    /// Nodes that spoke about resources that they have no part in.
    pub(crate) outsiders: u64,
    /// Connections closed for a fault of the peer.
    pub(crate) faults: u64,
}

impl Peers {
    /// With what this node shows itself, if it has anything.
    pub(super) fn config(&self) -> Option<&link::Config> {
        self.config.as_ref()
    }

    /// Whether a connection waits for a buffer.
    pub(super) fn starve(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.starved)
    }

    /// Whether so much waits for a peer that clients should wait.
    pub(super) fn congested(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.waiting_bytes() > UNSENT_BYTES_MAX)
    }
}

impl Node {
    /// Listens for peers and begins to dial those that this node dials.
    pub(super) fn open_peers(&mut self) -> Result<(), Refused> {
        self.peers.process = sys::random_u64() | 1;
        if self.config.identity.is_none() {
            return Ok(());
        }
        let config =
            identity::read(&self.config).map_err(|why| Refused::new(&codes::BAD_SETTINGS, why))?;
        self.peers.config = Some(config.clone());
        let (process, own) = (self.peers.process, self.config.clone());
        self.tell_others(|| {
            let renewed = (own.clone(), config.clone(), process);
            Parcel::Renew(Box::new(renewed))
        });
        let address = self.config.listen;
        let listener = patiently(|| sys::listen_tcp(address), is_taken).map_err(|error| {
            let message = format!("cannot listen for peers on {address}: {error}");
            Refused::new(&codes::CANNOT_LISTEN, message)
        })?;
        self.accept_peers(listener);
        for peer in self.config.peers.clone() {
            self.add_peer(peer.id, &peer.name, &peer.addresses);
        }
        Ok(())
    }

    pub(super) fn accept_peers(&mut self, listener: Listener) {
        let token = self.token(Purpose::PeerAccept(listener.clone()));
        self.hands.accept(token, &listener);
    }

    /// Talks to this node from now on; nothing happens if it does already.
    pub(super) fn add_peer(&mut self, node: NodeId, name: &str, addresses: &[SocketAddr]) {
        if node == self.config.node || self.peers.nodes.contains_key(&node) {
            return;
        }
        let seed = sys::random_u64();
        let dials = self.config.node < node && !addresses.is_empty();
        let peer = Peer {
            name: name.to_owned(),
            dials,
            addresses: addresses.to_vec(),
            bundle: 0,
            streams: 1,
            up: 0,
            shared: BTreeMap::new(),
            reason: Some("not connected yet".to_owned()),
            heard: None,
        };
        self.peers.nodes.insert(node, peer);
        let paths = Paths::new(addresses, seed, self.hands.now());
        self.peers.ways.insert((node, 0), Way { dials, paths, connection: None, bundle: 0 });
    }

    /// When time alone changes something between nodes: before that nobody is looked at for it.
    pub(super) fn peers_wake_at(&mut self) -> Option<Instant> {
        let (dialling, now) = (!self.is_leaving(), self.hands.now());
        let paths = self.peers.ways.values().filter(|way| way.dials && dialling);
        let paths = paths.filter_map(|way| way.paths.wake_at());
        let links = self.peers.connections.iter().filter_map(|(_, connection)| {
            let deadline = connection.link.as_ref().and_then(Link::deadline);
            if connection.closing {
                // Nothing keeps it but its deadline.
                return Some(deadline.unwrap_or(now));
            }
            let asks_at = connection.heard.max(connection.asked) + QUIET;
            deadline.or_else(|| connection.ready.then(|| asks_at.min(connection.heard + SILENT)))
        });
        self.peers.wake_at = paths.chain(links).min();
        self.peers.wake_at
    }

    /// Dials who is due, asks who is quiet, gives up who is late.
    pub(super) fn wake_peers(&mut self) {
        let now = self.hands.now();
        if self.peers.wake_at.is_none_or(|at| now < at) {
            return;
        }
        if !self.is_leaving() {
            for (at, address) in self.peers_due(now) {
                self.dial(at, address);
            }
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
            } else if connection.ready {
                self.watch(key, now);
            }
        }
    }

    fn peers_due(&mut self, now: Instant) -> Vec<((NodeId, u16), SocketAddr)> {
        let mut due = Vec::new();
        let mut late = Vec::new();
        for (at, way) in self.peers.ways.iter_mut().filter(|(_, way)| way.dials) {
            if way.paths.is_overdue(now) {
                late.push((*at, way.connection));
            }
        }
        for (at, connection) in late {
            match connection {
                Some(key) => self.end_connection(key, "connecting took too long", false),
                None => self.way_mut(at).paths.failed(now),
            }
        }
        for (at, way) in self.peers.ways.iter_mut().filter(|(_, way)| way.dials) {
            if let Some(address) = way.paths.next(now) {
                due.push((*at, address));
            }
        }
        due
    }

    fn way_mut(&mut self, at: (NodeId, u16)) -> &mut Way {
        self.peers.ways.get_mut(&at).expect("only ways of this thread are asked for")
    }

    fn dial(&mut self, at: (NodeId, u16), address: SocketAddr) {
        let now = self.hands.now();
        let local = Some(SocketAddr::new(self.config.listen.ip(), 0))
            .filter(|local| local.is_ipv4() == address.is_ipv4() && !local.ip().is_unspecified());
        let key = self.operations.insert(Purpose::PeerConnect(at.0, at.1));
        match self.hands.connect(key.number(), local, &SocketAddress::Tcp(address)) {
            Ok(socket) => {
                let connection = self.new_connection(socket, None, Some(at), now);
                if let Some(entry) = self.peers.connections.get_mut(connection) {
                    entry.dialled_by = Some(key.number());
                }
                self.way_mut(at).connection = Some(connection);
            }
            Err(errno) => {
                self.operations.remove(key);
                let way = self.way_mut(at);
                way.paths.failed(now);
                let stream = (at.1, way.bundle);
                self.report_ended(at.0, stream, false, &format!("{address}: {errno}"));
            }
        }
    }

    fn hello(&self, stream: u16) -> Hello {
        Hello {
            version_min: wire::VERSION_MIN,
            version_max: wire::VERSION_MAX,
            features_offered: 0,
            features_required: 0,
            cluster: self.config.cluster,
            node: self.config.node,
            process: self.peers.process,
            stream,
            streams: self.threads.count(),
            unknown: Vec::new(),
        }
    }

    pub(super) fn on_peer_connected(&mut self, node: NodeId, stream: u16, event: &Event) {
        let now = self.hands.now();
        let way = self.peers.ways.get(&(node, stream));
        let Some(key) = way.and_then(|way| way.connection) else { return };
        // One that took too long ends after the next one began, and says nothing about that.
        let connection = self.peers.connections.get(key);
        if connection.is_none_or(|connection| connection.dialled_by != Some(event.token)) {
            return;
        }
        if let Err(errno) = event.result {
            return self.end_connection(key, &errno.to_string(), false);
        }
        let hello = self.hello(stream);
        let config = self.peers.config.as_ref().expect("who dials has an identity");
        let link = Link::dial(config, node, hello, self.buffers.outgoing(), now);
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
        if self.is_leaving() {
            return self.hands.close(&socket);
        }
        if !self.peers.strangers.enter() {
            warning_limited!(
                "a connection was refused: too many peers have not proved who they are"
            );
            return self.hands.close(&socket);
        }
        let hello = self.hello(0);
        let config = self.peers.config.as_ref().expect("who listens has an identity");
        match Link::accept(config, hello, self.buffers.outgoing(), now) {
            Ok(link) => {
                let key = self.new_connection(socket, Some(link), None, now);
                self.stir_peer(key);
            }
            Err(error) => {
                warning_limited!("a connection was refused: {error}");
                self.peers.strangers.leave();
                self.hands.close(&socket);
            }
        }
    }

    /// How long ago this node was heard, by whatever it said.
    pub(super) fn heard_ms_ago(&self, node: NodeId) -> Option<u64> {
        let open = self.peers.connections.iter().map(|(_, connection)| connection);
        let open = open.filter(|connection| connection.peer() == Some(node));
        let ended = self.peers.nodes.get(&node).and_then(|peer| peer.heard);
        let last = open.map(|connection| connection.heard).chain(ended).max()?;
        Some(self.hands.now().since(last).as_millis())
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

    /// Says goodbye to everybody, in the first stream only, behind all that members have said: who reads that closes all
    /// streams. One that ended by itself would end the session there before the others are read.
    pub(super) fn leave_peers(&mut self) {
        for (key, _) in self.first_streams() {
            let Some(connection) = self.peers.connections.get_mut(key) else { continue };
            if let Some(link) = connection.link.as_mut() {
                link.goodbye(GoodbyeReason::Stopping);
            }
            self.send_to_peer(key);
        }
    }

    /// Whether a peer has not closed its first stream yet.
    pub(super) fn peers_linger(&self) -> bool {
        !self.first_streams().is_empty()
    }
}

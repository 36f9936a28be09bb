//! One connection with another node: its bytes, its frames, its end.
//!
//! Always: what machines were told about a session is taken back when its connection ends, and once.
//!
//! Not here: who dials whom and when (`super`), what frames are for (`common`).

use std::ops::Range;

use base::{Instant, NodeId, SessionId};
use link::{Link, LinkError, LinkEvent, LinkWant, Revocations};
use sys::{Buffer, Event, Payload, Piece, Socket};
use wire::{Frame, GoodbyeReason, Hello};

use super::common::Common;
use crate::log::{debug, info, warning};
use crate::node::{Node, Purpose};
use crate::slab::Key;

/// Bytes received at once: more frames for one call than a turn usually has.
const RECEIVE_BYTES: usize = 256 << 10;

/// A connection with another node, or one that may become that.
pub(super) struct Connection {
    socket: Socket,
    pub(super) link: Option<Link>,
    /// Whom it leads to, once known.
    pub(super) node: Option<NodeId>,
    pub(super) stranger: bool,
    /// Once the peer has proved who it is.
    pub(super) session: Option<SessionId>,
    /// The resources it is about.
    pub(super) common: Common,
    input: Option<Buffer>,
    rest: Range<usize>,
    /// A frame whose payload is arriving, and where to.
    frame: Option<Frame>,
    place: Option<Buffer>,
    receiving: bool,
    starved: bool,
    pub(super) heard: Instant,
    pub(super) asked: Instant,
    pub(super) unsent: u64,
    restless: bool,
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn is_revoked(&self, revoked: &Revocations) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_revoked(revoked))
    }
}

/// What came of bytes of a peer.
enum Came {
    Ready(Hello),
    Frame(Frame, Option<Buffer>),
}

impl Node {
    pub(super) fn new_connection(
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
            common: Common::default(),
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

    /// The connection may have something to send or receive.
    pub(super) fn stir_peer(&mut self, key: Key) {
        if let Some(connection) = self.peers.connections.get_mut(key)
            && !connection.restless
        {
            connection.restless = true;
            self.peers.restless.push(key);
        }
    }
    /// Sends and receives, for every connection that may have cause to.
    pub(in crate::node) fn serve_peers(&mut self) {
        for key in std::mem::take(&mut self.peers.restless) {
            if let Some(connection) = self.peers.connections.get_mut(key) {
                connection.restless = false;
                self.send_to_peer(key);
                self.receive_from_peer(key);
            }
        }
    }

    pub(super) fn send_to_peer(&mut self, key: Key) {
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

    pub(in crate::node) fn on_peer_sent(&mut self, key: Key, bytes: u64, event: &Event) {
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

    pub(in crate::node) fn on_peer_received(&mut self, key: Key, event: Event) {
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
    pub(in crate::node) fn stir_starved_peers(&mut self) {
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
    /// The connection is of no more use: machines hear of it, and it closes once what tells the peer
    /// why is sent.
    pub(super) fn end_connection(&mut self, key: Key, why: &str, fault: bool) {
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
        let shared = connection.common.end();
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
        if let Some(node) = node {
            for (id, shared) in shared {
                self.say_peer(id, node, shared.session, false);
            }
        }
        self.send_to_peer(key);
        // Who was never let in shall learn why; who was must be gone before a newer session begins.
        let unsent = self.peers.connections.get(key).map_or(0, |connection| connection.unsent);
        if session.is_some() || unsent == 0 {
            self.drop_connection(key);
        }
    }

    pub(super) fn drop_connection(&mut self, key: Key) {
        if let Some(connection) = self.peers.connections.remove(key) {
            self.hands.close(&connection.socket);
        }
    }
}

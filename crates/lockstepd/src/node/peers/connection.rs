//! One connection with another node: its bytes, its frames, its end.
//!
//! Always: what machines were told about a session is taken back when its connection ends, and once.
//!
//! Not here: who dials whom and when (`super`), what frames are for (`common`), where payload is put (`places`), how
//! several make up one session (`streams`).

use std::ops::Range;

use base::{Instant, NodeId, ResourceId};
use link::{Link, LinkError, LinkEvent, LinkWant, Revocations};
use sys::{Buffer, Event, Payload, Piece, Socket};
use wire::{Agreed, Frame, GoodbyeReason, Hello, Message};

use super::SEALED_BYTES_MAX;
use super::common::Common;
use super::places::Place;
use crate::log::{debug, warning_limited};
use crate::node::threads::Parcel;
use crate::node::{Node, Purpose, SENDS_MAX};
use crate::slab::Key;

/// Why a session ends is not said behind more than this.
const GOODBYE_BEHIND_BYTES: u64 = 1 << 20;

/// A connection with another node, or one that may become that.
pub(in crate::node) struct Connection {
    socket: Socket,
    pub(super) link: Option<Link>,
    /// Whom it leads to, once known.
    pub(super) node: Option<NodeId>,
    /// Which of the streams with that node it is, once known.
    pub(super) stream: u16,
    /// The operation by which this node makes it, if it does.
    pub(super) dialled_by: Option<u64>,
    /// Names the streams that belong together.
    pub(super) bundle: u64,
    pub(super) stranger: bool,
    /// The peer has proved who it is.
    pub(super) ready: bool,
    /// It goes to this thread once nothing is on its way from here.
    pub(super) moves_to: Option<u16>,
    /// The resources it is about.
    pub(super) common: Common,
    /// Frames whose sessions have not begun here.
    pub(super) early: Vec<(ResourceId, Message, Option<Buffer>)>,
    input: Option<Buffer>,
    rest: Range<usize>,
    /// A frame whose payload is arriving, and where to.
    frame: Option<Frame>,
    place: Option<Buffer>,
    /// There is no place for it, and it passes.
    skips: bool,
    receiving: bool,
    pub(super) starved: bool,
    pub(super) heard: Instant,
    pub(super) asked: Instant,
    pub(super) unsent: u64,
    /// Of that, what the hands do not have yet, and how many sends they have.
    pieces: Vec<Piece>,
    sends: usize,
    restless: bool,
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn is_revoked(&self, revoked: &Revocations) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_revoked(revoked))
    }

    /// Bytes that were said and have not left.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let plain_bytes = self.link.as_ref().map_or(0, Link::waiting_bytes);
        self.unsent + u64::try_from(plain_bytes).expect("memory is smaller")
    }

    /// Whom it leads to, if that is proved.
    pub(super) fn peer(&self) -> Option<NodeId> {
        self.node.filter(|_| self.ready)
    }
}

fn count_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::try_from(piece.len()).expect("memory is smaller")).sum()
}

/// What came of bytes of a peer.
pub(super) enum Came {
    Ready(Hello, Agreed),
    Frame(Frame, Option<Buffer>),
    /// Its payload found no place.
    Unplaced(Frame),
}

impl Node {
    pub(super) fn new_connection(
        &mut self,
        socket: Socket,
        link: Option<Link>,
        leads: Option<(NodeId, u16)>,
        now: Instant,
    ) -> Key {
        self.peers.connections.insert(Connection {
            socket,
            stranger: link.is_some(),
            link,
            node: leads.map(|(node, _)| node),
            stream: leads.map_or(0, |(_, stream)| stream),
            dialled_by: None,
            bundle: 0,
            ready: false,
            moves_to: None,
            common: Common::default(),
            early: Vec::new(),
            input: None,
            rest: 0..0,
            frame: None,
            place: None,
            skips: false,
            receiving: false,
            starved: false,
            heard: now,
            asked: now,
            unsent: 0,
            pieces: Vec::new(),
            sends: 0,
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
        let mut keys = std::mem::take(&mut self.peers.restless);
        for key in keys.drain(..) {
            if let Some(connection) = self.peers.connections.get_mut(key) {
                connection.restless = false;
                self.send_to_peer(key);
                self.go_on_moving(key);
                self.receive_from_peer(key);
            }
        }
        if self.peers.restless.is_empty() {
            // The next turn has its room.
            self.peers.restless = keys;
        }
    }

    pub(super) fn send_to_peer(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(link) = connection.link.as_mut() else { return };
        let from = connection.pieces.len();
        let unsent = usize::try_from(connection.unsent).unwrap_or(usize::MAX);
        connection.pieces.extend(link.outgoing(SEALED_BYTES_MAX.saturating_sub(unsent)));
        connection.unsent += count_bytes(&connection.pieces[from..]);
        if connection.pieces.is_empty() || connection.sends >= SENDS_MAX {
            return;
        }
        let bytes = count_bytes(&connection.pieces);
        connection.sends += 1;
        let token = self.operations.insert(Purpose::PeerSend(key, bytes)).number();
        self.hands.send(token, &connection.socket, connection.pieces.drain(..));
    }

    pub(in crate::node) fn on_peer_sent(&mut self, key: Key, bytes: u64, event: &Event) {
        let held_back = self.peers.congested();
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        connection.unsent -= bytes;
        connection.sends -= 1;
        if let Err(errno) = event.result {
            self.end_connection(key, &errno.to_string(), false);
            self.drop_connection(key);
        } else if connection.closing && connection.unsent == 0 {
            self.drop_connection(key);
        } else {
            self.send_to_peer(key);
            self.go_on_moving(key);
        }
        if held_back && !self.peers.congested() {
            self.stir_clients();
        }
    }

    fn receive_from_peer(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let stays = !connection.closing && connection.moves_to.is_none();
        let idle = !connection.receiving && !connection.starved && stays;
        let Some(link) = connection.link.as_ref().filter(|_| idle) else { return };
        let token = Purpose::PeerReceive(key);
        if let LinkWant::Payload { length, done, direct: true } = link.want()
            && let Some(place) = connection.place.take()
        {
            connection.receiving = true;
            let token = self.operations.insert(token).number();
            return self.hands.receive(token, &connection.socket, place, done..length);
        }
        let most = link.receive_max();
        let buffer = self.buffers.input(connection.input.take(), connection.ready);
        let Some(buffer) = buffer else {
            connection.starved = true;
            return;
        };
        connection.receiving = true;
        let token = self.operations.insert(token).number();
        let length = buffer.len().min(most);
        self.hands.receive(token, &connection.socket, buffer, 0..length);
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
        let mut came = std::mem::take(&mut self.peers.came);
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
        let Some(mut buffer) = connection.input.take() else { return Ok(()) };
        let rest = connection.rest.clone();
        let bytes = buffer.as_mut().expect("nobody else reads this buffer");
        let mut input = &mut bytes[rest.clone()];
        let mut result = Ok(());
        while let Some(link) = self.link_of(key) {
            if let LinkWant::Payload { length, .. } = link.want() {
                match self.read_payload(key, length, &mut input) {
                    Ok(Some(payload)) => came.push(payload),
                    Ok(None) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                continue;
            }
            match link.next(&mut input) {
                Ok(None) => break,
                Ok(Some(LinkEvent::Ready { hello, agreed })) => {
                    came.push(Came::Ready(hello, agreed));
                }
                Ok(Some(LinkEvent::Frame(frame))) if frame.payload.length > 0 => {
                    let connection = self.peers.connections.get_mut(key);
                    connection.expect("it is being read").frame = Some(frame);
                }
                Ok(Some(LinkEvent::Frame(frame))) => came.push(Came::Frame(frame, None)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let rest = rest.end - input.len()..rest.end;
        if let Some(connection) = self.peers.connections.get_mut(key) {
            connection.rest = rest;
            connection.input = Some(buffer);
        }
        result
    }

    fn link_of(&mut self, key: Key) -> Option<&mut Link> {
        self.peers.connections.get_mut(key)?.link.as_mut()
    }

    /// Takes payload, if there is a place for it; nothing if more must come, or has to wait.
    fn read_payload(
        &mut self,
        key: Key,
        length: usize,
        input: &mut &mut [u8],
    ) -> Result<Option<Came>, LinkError> {
        let Some(connection) = self.peers.connections.get_mut(key) else { return Ok(None) };
        if connection.place.is_none() && !connection.skips {
            let frame = connection.frame.take().expect("a payload has its frame");
            let place = self.place_for(key, &frame.message, length);
            let Some(connection) = self.peers.connections.get_mut(key) else { return Ok(None) };
            connection.frame = Some(frame);
            match place {
                Place::Here(place) => connection.place = Some(place),
                Place::Nowhere => connection.skips = true,
                Place::Later => {
                    connection.starved = true;
                    return Ok(None);
                }
            }
        }
        let Some(connection) = self.peers.connections.get_mut(key) else { return Ok(None) };
        let Some(link) = connection.link.as_mut() else { return Ok(None) };
        let whole = match connection.place.as_mut() {
            Some(place) => link.payload(input, place.as_mut().expect("nobody else has it"))?,
            None => link.skip(input)?,
        };
        if !whole {
            return Ok(None);
        }
        let frame = connection.frame.take().expect("a payload has its frame");
        Ok(Some(if std::mem::take(&mut connection.skips) {
            Came::Unplaced(frame)
        } else {
            Came::Frame(frame, connection.place.take())
        }))
    }

    /// Connections that wait for a buffer may get one now.
    pub(in crate::node) fn stir_starved_peers(&mut self) {
        if !self.peers.starve() {
            return;
        }
        for key in self.peers.connections.keys() {
            let connection = self.peers.connections.get_mut(key).expect("just listed");
            if connection.starved {
                connection.starved = false;
                self.read_on(key);
            }
        }
    }

    fn on_came(&mut self, key: Key, mut all: Vec<Came>, result: Result<(), LinkError>) {
        for came in all.drain(..) {
            match came {
                Came::Ready(hello, agreed) => self.on_ready(key, hello.node, agreed),
                Came::Frame(frame, payload) => self.on_frame(key, frame.message, payload),
                Came::Unplaced(frame) => self.on_unplaced(key, &frame.message),
            }
        }
        // The next receive has its room.
        self.peers.came = all;
        self.stir_peer(key);
        if let Err(error) = result {
            self.end_connection(key, &error.to_string(), error.is_fault());
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
        if let Some(node) = connection.peer()
            && let Some(peer) = self.peers.nodes.get_mut(&node)
        {
            peer.heard = peer.heard.max(Some(connection.heard));
        }
        let (leads, ready) = (connection.node.zip(Some(connection.stream)), connection.ready);
        // Behind much that lies here for a peer that takes nothing it would come too late, and all that would be enciphered for
        // nobody.
        let comes_too_late = ready && connection.waiting_bytes() > GOODBYE_BEHIND_BYTES;
        if let Some(link) = connection.link.as_mut().filter(|_| !comes_too_late) {
            link.goodbye(if fault { GoodbyeReason::Fault } else { GoodbyeReason::Replaced });
        }
        connection.early.clear();
        let claims = connection.link.as_ref().and_then(|link| match link.peer() {
            Some(link::Peer::Node(node)) => Some(*node),
            _ => None,
        });
        if std::mem::take(&mut connection.stranger) {
            self.peers.strangers.leave();
            debug!("a connection of a stranger ended: {why}");
            // One that its certificate names, and that is not let in all the same: the operator asks why.
            let peer = claims.and_then(|node| self.peers.nodes.get_mut(&node));
            if let Some(peer) = peer.filter(|peer| !peer.is_connected()) {
                peer.reason = Some(why.to_owned());
            }
        }
        if fault {
            warning_limited!("a connection is closed for a fault of the peer: {why}");
            self.tell(0, Parcel::Fault);
        }
        if let Some((node, stream)) = leads
            && let Some(way) = self.peers.ways.get_mut(&(node, stream))
            && way.connection == Some(key)
        {
            way.connection = None;
            if ready {
                way.paths.ended(now);
            } else {
                way.paths.failed(now);
            }
            let bundle = way.bundle;
            self.report_ended(node, (stream, bundle), ready, why);
        }
        if !comes_too_late {
            self.send_to_peer(key);
        }
        // Who was never let in shall learn why; who was must be gone before a newer session begins.
        let unsent = self.peers.connections.get(key).map_or(0, |connection| connection.unsent);
        if ready || unsent == 0 {
            self.drop_connection(key);
        }
    }

    /// Hands a connection over to the thread whose stream it is, once everything said here is sent.
    fn go_on_moving(&mut self, key: Key) {
        let Some(connection) = self.peers.connections.get_mut(key) else { return };
        let Some(thread) = connection.moves_to else { return };
        if connection.waiting_bytes() > 0 || connection.closing || connection.receiving {
            return;
        }
        let Some(mut connection) = self.peers.connections.remove(key) else { return };
        connection.moves_to = None;
        connection.restless = false;
        self.tell(thread, Parcel::TakeStream(Box::new(connection)));
    }

    /// Goes on with a connection that another thread has let in.
    pub(super) fn adopt(&mut self, mut connection: Connection) -> Key {
        if let Some(link) = connection.link.as_mut() {
            link.set_pool(self.buffers.outgoing());
        }
        self.peers.connections.insert(connection)
    }

    /// Takes what has come already, and then more.
    pub(super) fn read_on(&mut self, key: Key) {
        let mut came = std::mem::take(&mut self.peers.came);
        let result = self.read_frames(key, &mut came);
        self.on_came(key, came, result);
    }

    pub(super) fn refuse(&mut self, connection: &Connection) {
        self.hands.close(&connection.socket);
    }

    pub(super) fn drop_connection(&mut self, key: Key) {
        let held_back = self.peers.congested();
        if let Some(connection) = self.peers.connections.remove(key) {
            self.hands.close(&connection.socket);
        }
        if held_back && !self.peers.congested() {
            // What waited for this peer waits no more.
            self.stir_clients();
        }
    }
}

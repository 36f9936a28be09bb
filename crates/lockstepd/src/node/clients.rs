//! Clients, by NBD or NVMe, or disks of this host: their sockets, the volumes they opened, and the way of their requests to a shard.
//!
//! A client is the first thread's until it has opened something, then perhaps another's (`homes`).
//!
//! Always: a request's name is freed when its answer comes, also if its client is gone by then; a
//! client counts for its resource from the moment it enters to the moment its socket is closed; who
//! came over the network and is not known, by a certificate or by having opened a volume, is one of
//! few and has little time; what a client that has gone meanwhile left in its socket while this process stood still is not
//! carried out.
//!
//! Not here: the protocols and their limits (`export`); what is a hole (`holes`); what only NVMe hosts have (`hosts`).

use std::collections::VecDeque;

use base::{Duration, HostId, Instant, Request, SECTOR_BYTES, VolumeId, Way};
use export::{Ask, Demand, NbdConnection, NvmeConnection, Served, Tag};
use link::LinkError;
use nbd::{ExportInfo, MOVES, Refusal, Tls};
use replica::door::{MemberInput, ShardInput};
use sys::{Event, Listener, Payload, Socket};

use super::held::{self, Held};
use super::homes::{Stay, request_id};
use super::hosts::{Claim, Expiry, Turn};
use super::patience::{is_taken, patiently};
use super::resource::Resource;
use super::sockets::{listen_private, listen_unix};
use super::threads::Parcel;
use super::unread::Unread;
use super::{Node, Purpose, SENDS_MAX, Work};
use crate::log::{debug, info, warning_limited};
use crate::slab::{Key, Slab};

/// Clients of one node, at most, and queues of hosts: what a full hypervisor attaches, twice.
pub(super) const CLIENTS_MAX: usize = 1024;

/// Clients over TCP at once that are not known yet: a machine full of guests that starts.
const VISITORS_MAX: usize = 256;

/// How long a client over TCP may stay unknown.
const VISIT_LIMIT: Duration = Duration::from_millis(5000);

/// A process that looked at nothing for so long may find in its sockets what clients left there that have gone since, and
/// that was done anew, or overwritten, through another node.
const STANDSTILL: Duration = Duration::from_millis(200);

/// Where a client came in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Door {
    /// From a network, be it only this machine's own.
    Tcp,
    /// By a socket whose directory guards it.
    Unix,
    /// From a network, for NVMe hosts.
    Nvme,
}

/// After so long without a word of an NBD client that moves its connection ends here, in seconds.
const SILENCE_SECONDS: u16 = 5;

/// For so long after a request of it has come it has surely not asked elsewhere: it does so ten seconds after it has sent it, no
/// sooner, and what it sent may have been on its way for [`SILENCE_SECONDS`].
pub(super) const STAYS: Duration = Duration::from_secs(4);

/// Why a client goes that may have asked elsewhere by now.
const UNREAD_TOO_LONG: &str = "what it sent lay here unread for too long";

/// Clients that are not known yet.
#[derive(Default)]
pub(crate) struct Visitors {
    count: usize,
    /// Until when each may stay unknown, in the order they came. Some may be known or gone by then.
    until: VecDeque<(Instant, Key)>,
    /// Clients whose TLS failed, most for their certificate.
    pub(super) refused: u64,
    /// Clients who broke the protocol.
    pub(super) faults: u64,
    /// When this process looked last at what happens.
    looked_at: Instant,
}

/// One client.
pub(crate) struct Client {
    /// What it is connected by; a disk of this host by none.
    pub(super) socket: Option<Socket>,
    pub(super) connection: Served,
    /// Of which controller it is a queue.
    pub(super) controller: Option<u16>,
    /// Which of its queues; 0 for administration.
    pub(super) queue: u16,
    /// Its controller, or an NBD client that moves, among all that there were in this process, for it is one way of several that
    /// its host has.
    pub(super) way: Option<Way>,
    /// Which NVMe host it says that it is.
    pub(super) claim: Option<Claim>,
    /// What becomes of what it asks, if it is a queue of a host.
    pub(super) turn: Turn,
    /// Which NVMe host it says that it is, to the discovery service.
    pub(super) discovers: Option<String>,
    /// What it has opened; of an NVMe host any volume.
    pub(super) opened: Option<(Key, VolumeId)>,
    /// It is one of those that are not known.
    visits: bool,
    /// It is in the list of those to be served.
    restless: bool,
    /// Nothing more is received; it goes when everything is sent.
    closing: bool,
    unsent: u64,
    /// In so many sends.
    sends: usize,
    /// What it sends is waited for.
    receiving: bool,
    /// How long what it sends was not waited for.
    pub(super) unread: Unread,
    /// It is in the list of those who wait for buffers.
    pub(super) hungry: bool,
    /// Of another thread's: where it is at home.
    pub(super) stay: Option<Stay>,
    /// It has opened something, and is to be at home there.
    pub(super) bound_for: Option<u16>,
    /// Of a further thread's: what it is on the first.
    pub(super) origin: Option<Key>,
    /// When it is given up, as the first thread has said.
    pub(super) expiry: Option<Expiry>,
    /// It is told nothing before queues of its controller are gone that are at home elsewhere.
    pub(super) awaits_queues: bool,
    /// It was sent away for breaking the protocol.
    is_fault: bool,
    /// Of a machine: its socket is waited for.
    pub(super) watched: bool,
    /// When it last sent something, or took something, or began to be waited for.
    pub(super) moved: Instant,
}

/// Where an answer goes.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    client: Key,
    /// Whose shard has it.
    pub(super) resource: Key,
    shard: u16,
    tag: Tag,
    /// What a read will give.
    reads_bytes: u32,
    /// Its client was told that it is to ask by another path.
    is_given_up: bool,
}

impl Asked {
    /// Whether this client waits for it.
    pub(super) fn is_waited_for_by(&self, client: Key) -> bool {
        self.client == client && !self.is_given_up
    }

    /// Whether nobody waits for it here any more: its client may ask elsewhere.
    pub(super) fn is_left(&self, clients: &Slab<Client>) -> bool {
        self.is_given_up || clients.get(self.client).is_none_or(Client::is_ended)
    }

    /// Which piece of its client's requests it is, and how many bytes that reads.
    pub(super) fn reads(&self) -> (Tag, usize) {
        (self.tag, self.reads_bytes as usize)
    }
}

impl Client {
    pub(super) fn new(
        socket: Option<Socket>,
        connection: Served,
        opened: Option<(Key, VolumeId)>,
        visits: bool,
        now: Instant,
    ) -> Client {
        Client {
            socket,
            connection,
            controller: None,
            queue: 0,
            way: None,
            claim: None,
            turn: Turn::default(),
            discovers: None,
            opened,
            visits,
            restless: false,
            closing: false,
            unsent: 0,
            sends: 0,
            receiving: false,
            unread: Unread::default(),
            hungry: false,
            stay: None,
            bound_for: None,
            origin: None,
            expiry: None,
            awaits_queues: false,
            is_fault: false,
            watched: false,
            moved: now,
        }
    }

    /// So much is on its way to it.
    fn begin_send(&mut self, bytes: u64, now: Instant) {
        if self.sends == 0 {
            self.moved = now;
        }
        self.sends += 1;
        self.unsent += bytes;
    }

    /// Something is to come of it, so many bytes at most.
    fn begin_receive(&mut self, room: usize, now: Instant) {
        self.receiving = true;
        self.moved = now;
        self.unread.begin(room, now);
    }

    /// Since when it is waited for, while it holds memory: what this node has not sent yet, or has no room for, it cannot take or
    /// send.
    pub(super) fn waited_for_since(&self) -> Option<Instant> {
        let is_its_turn = self.sends > 0 || self.receiving;
        (is_its_turn && self.connection.waits_for_client()).then_some(self.moved)
    }

    /// What it sends is waited for, or not.
    fn note_unread(&mut self, now: Instant) {
        if !self.receiving {
            self.unread.pause(now);
        }
    }

    /// Whether it went while nothing was received of it. What it asked for before, and lies here or in the kernel, nobody waits for:
    /// it may have been asked for elsewhere since, and be older than what is there.
    fn has_left_meanwhile(&self) -> bool {
        self.unread.is_paused() && self.is_ended()
    }

    /// The same of one that has several ways, when some of it was received: its end may be behind that, however short it lay
    /// there. What another node sent since, for the same client, may have been looked at before.
    fn has_left_behind(&self) -> bool {
        self.way.is_some() && self.is_ended()
    }

    /// Its connection hears how old may be what it takes next, if it may have been asked elsewhere since.
    fn tell_age(&mut self, now: Instant) {
        let age = self.unread.age(now);
        if let Some(connection) = self.connection.nbd().filter(|_| self.way.is_some()) {
            connection.lay_unread(age);
        }
    }

    /// Whether nothing more comes of it.
    fn is_ended(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::is_ended)
    }

    /// Whether nothing is on its way to it, nor waited for.
    pub(super) fn is_quiet(&self) -> bool {
        self.sends == 0 && !self.receiving && !self.closing
    }

    /// Whether it is one of those who may ask elsewhere what they asked here, and are dropped when this process stood still.
    pub(super) fn is_watched_host(&mut self) -> bool {
        let moves = self.way.is_some();
        self.connection.nvme().is_some() || (moves && self.connection.nbd().is_some())
    }

    /// Whether it is an NBD client that goes to another node by itself, be it at home elsewhere.
    pub(super) fn moves(&self) -> bool {
        self.way.is_some() && self.controller.is_none()
    }

    /// Which host it is, if it says so: those that do not cannot register for reservations.
    pub(super) fn host(&self) -> HostId {
        self.claim.as_ref().map_or(HostId(0), Claim::host)
    }
}

impl Node {
    /// Listens where the configuration says.
    pub(super) fn listen_nbd(&mut self) -> Result<(), String> {
        if let Some(address) = self.config.nbd {
            let listener = patiently(|| sys::listen_tcp(address), is_taken)
                .map_err(|error| format!("cannot serve NBD on {address}: {error}"))?;
            self.accept_clients(listener, Door::Tcp);
        }
        if let Some(path) = self.config.nbd_socket.clone() {
            let listener = match self.config.nbd_socket_group.as_deref() {
                Some(group) => patiently(|| listen_private(&path, Some(group)), |error| error.0)
                    .map_err(|(_, why)| why)?,
                None => listen_unix(&path, sys::listen_unix)?,
            };
            self.accept_clients(listener, Door::Unix);
        }
        Ok(())
    }

    pub(super) fn accept_clients(&mut self, listener: Listener, door: Door) {
        let token = self.token(Purpose::NbdAccept(listener.clone(), door));
        self.hands.accept(token, &listener);
    }

    /// A client has connected.
    pub(super) fn on_client(&mut self, socket: Socket, door: Door) {
        if self.clients.len() >= CLIENTS_MAX {
            warning_limited!("a client was turned away: there are {CLIENTS_MAX} already");
            return self.hands.close(&socket);
        }
        let visits = door != Door::Unix;
        if visits && self.visitors.count >= VISITORS_MAX {
            warning_limited!("a client was turned away: {VISITORS_MAX} others are not known yet");
            return self.hands.close(&socket);
        }
        if visits {
            // Else one that is idle, and whose machine is gone, counts here for ever.
            socket.notice_loss();
        }
        let (inputs, payload) = (self.client_inputs.clone(), self.client_pool.clone());
        let zeroes = self.zeroes.clone();
        let offer = self.peers.config().filter(|_| visits && self.config.nbd_tls != Tls::Absent);
        let connection = match offer {
            _ if door == Door::Nvme => {
                self.hosts.come(self.hands.now());
                let connection = NvmeConnection::new(inputs, payload, zeroes);
                Served::Nvme(Box::new(match self.tls_offer() {
                    Some(offer) => connection.with_tls(offer),
                    None => connection,
                }))
            }
            Some(offer) => {
                let required = self.config.nbd_tls == Tls::Required;
                let offer = offer.clone();
                let connection = NbdConnection::with_tls(inputs, payload, zeroes, offer, required);
                Served::Nbd(Box::new(connection))
            }
            None => Served::Nbd(Box::new(NbdConnection::new(inputs, payload, zeroes))),
        };
        let client = Client::new(Some(socket), connection, None, visits, self.hands.now());
        let key = self.clients.insert(client);
        if visits {
            self.visitors.count += 1;
            self.visitors.until.push_back((self.hands.now() + VISIT_LIMIT, key));
        }
        self.stir_client(key);
    }

    /// When the first of those that are not known has stayed too long.
    pub(super) fn visitors_wake_at(&self) -> Option<Instant> {
        self.visitors.until.front().map(|(until, _)| *until)
    }

    /// Sends those away that did not say in time who they are or what they want.
    pub(super) fn wake_visitors(&mut self) {
        let now = self.hands.now();
        while let Some(&(until, key)) = self.visitors.until.front()
            && until <= now
        {
            self.visitors.until.pop_front();
            if self.clients.get(key).is_some_and(|client| client.visits) {
                self.drop_client(key, "it opened nothing in time");
            }
        }
    }

    /// Drops those who went while this process stood still, before anything is looked at that they sent: nobody waits for
    /// it, and it may be older than what is there.
    pub(super) fn look_who_left(&mut self) {
        let now = self.hands.now();
        let before = std::mem::replace(&mut self.visitors.looked_at, now);
        if now.since(before) < STANDSTILL {
            return;
        }
        for key in self.clients.keys() {
            if self
                .clients
                .get(key)
                .and_then(|client| client.socket.as_ref())
                .is_some_and(Socket::is_ended)
            {
                self.drop_client(key, "the client closed the connection");
            }
        }
    }

    /// Looks whether the client is known by now.
    fn recognise(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let claims = client.connection.claims();
        if !client.visits || (claims.is_none() && client.opened.is_none()) {
            return;
        }
        if claims.is_some_and(|claims| self.config.revoked.refuse(claims)) {
            // It connected before that was known here.
            self.visitors.refused += 1;
            return self.drop_client(key, "its certificate is revoked");
        }
        if let Some(claims) = claims {
            let bytes = client.connection.handshake_bytes();
            debug!("an NBD client proved with {bytes} bytes that it is {}", claims.peer);
        }
        if let Some(claims) = claims {
            debug!("an NBD client has shown who it is: {}", claims.peer);
        }
        self.know_client(key);
    }

    /// The client is none of those any more that are not known.
    pub(super) fn know_client(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key).filter(|client| client.visits) {
            client.visits = false;
            self.visitors.count -= 1;
        }
    }

    /// The client may have something to send or to receive.
    pub(super) fn stir_client(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && !client.restless
        {
            client.restless = true;
            self.restless.push(key);
        }
    }

    pub(super) fn on_client_received(&mut self, key: Key, event: Event) {
        let now = self.hands.now();
        let Some(client) = self.clients.get_mut(key) else { return };
        (client.receiving, client.moved) = (false, now);
        let count = match event.result {
            Ok(count) if count > 0 => count as usize,
            Ok(_) => return self.drop_client(key, "the client closed the connection"),
            Err(errno) => return self.drop_client(key, &errno.to_string()),
        };
        let Payload::Buffer(buffer) = event.payload else {
            unreachable!("a receive gives its buffer back")
        };
        client.unread.end(count, now);
        if client.has_left_behind() {
            return self.drop_client(key, "the client closed the connection");
        }
        if self.is_unread_too_long(key) {
            return self.drop_client(key, UNREAD_TOO_LONG);
        }
        let Some(client) = self.clients.get_mut(key) else { return };
        let mut demands = std::mem::take(&mut self.demands);
        client.tell_age(now);
        client.connection.received(now, buffer, count, &mut demands);
        self.on_demands(key, demands);
        self.recognise(key);
        self.stir_client(key);
    }

    pub(super) fn on_client_sent(&mut self, key: Key, bytes: u64, event: &Event) {
        let now = self.hands.now();
        let Some(client) = self.clients.get_mut(key) else { return };
        client.moved = now;
        client.unsent -= bytes;
        client.sends -= 1;
        client.connection.sent(bytes);
        if let Err(errno) = event.result {
            return self.drop_client(key, &errno.to_string());
        }
        self.stir_client(key);
    }

    /// Sends, receives and closes, for every client that may have cause to.
    pub(super) fn serve_clients(&mut self) {
        let mut keys = std::mem::take(&mut self.restless);
        for key in keys.drain(..) {
            if let Some(client) = self.clients.get_mut(key) {
                client.restless = false;
                self.serve_client(key);
                self.note_hungry(key);
            }
        }
        if self.restless.is_empty() {
            // The next turn has its room.
            self.restless = keys;
        }
    }

    fn serve_client(&mut self, key: Key) {
        let congested = self.peers.congested() || self.threads.congested();
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.has_left_meanwhile() {
            return self.drop_client(key, "the client closed the connection");
        }
        if client.unread.is_paused() && self.is_unread_too_long(key) {
            return self.drop_client(key, UNREAD_TOO_LONG);
        }
        let Some(client) = self.clients.get_mut(key) else { return };
        // What it asks for begins at its home.
        if client.bound_for.is_none() {
            let mut demands = std::mem::take(&mut self.demands);
            client.tell_age(self.hands.now());
            client.connection.proceed(self.hands.now(), &mut demands);
            self.on_demands(key, demands);
            self.recognise(key);
        }
        self.serve_disk_client(key);
        self.serve_machine(key);
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(why) = client.connection.broken().filter(|_| !client.closing) {
            client.closing = true;
            let words = words(why);
            match why {
                LinkError::Closed => {}
                // It could not have opened anything with that, with or without TLS.
                LinkError::TooMuchBeforeAuthentication => {
                    self.visitors.faults += 1;
                    warning_limited!("an NBD client broke the protocol and was sent away: {words}");
                }
                _ => {
                    self.visitors.refused += 1;
                    warning_limited!("an NBD client was sent away: {words}");
                }
            }
        }
        let room = client.sends < SENDS_MAX && !client.awaits_queues;
        if room {
            client.connection.take_send(&mut self.pieces);
        }
        if !self.pieces.is_empty() {
            let bytes: usize = self.pieces.iter().map(sys::Piece::len).sum();
            let bytes = u64::try_from(bytes).expect("memory is smaller");
            client.begin_send(bytes, self.hands.now());
            let token = self.operations.insert(Purpose::NbdSend(key, bytes)).number();
            let socket = client.socket.as_ref().expect("what sends has a socket");
            self.hands.send(token, socket, self.pieces.drain(..));
        }
        if self.end_if_over(key) {
            return;
        }
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.bound_for.is_some() {
            return self.send_home(key);
        }
        client.note_unread(self.hands.now());
        if congested && client.opened.is_some() {
            // Stirred again when a peer has taken what waits for it.
            return;
        }
        if let Some((buffer, range)) = client.connection.receive_into() {
            client.begin_receive(range.len(), self.hands.now());
            let token = self.operations.insert(Purpose::NbdReceive(key)).number();
            let socket = client.socket.as_ref().expect("what receives has a socket");
            self.hands.receive(token, socket, buffer, range);
        }
    }

    /// Sends a client away that is done, or for its fault, once it has everything that it is to get. Whether it is one.
    fn end_if_over(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return true };
        let broken = client.connection.broken().map(words);
        let over = client.connection.over();
        let fault = over.as_ref().is_some_and(|over| over.fault);
        let unproved = over.as_ref().is_some_and(|over| over.unproved);
        let Some(reason) = broken.or(over.map(|over| over.why)) else { return false };
        if fault && !client.closing {
            self.visitors.faults += 1;
            client.is_fault = true;
            let kind = client.connection.kind();
            warning_limited!("{kind} broke the protocol and was sent away: {reason}");
        }
        if unproved && !client.closing {
            let host = client.claim.as_ref().map_or("a host", |claim| &claim.host);
            self.hosts.refused += 1;
            warning_limited!("{host} has not proved who it is and was sent away: {reason}");
        }
        client.closing = true;
        if client.unsent == 0 {
            self.drop_client(key, &reason);
        }
        true
    }

    /// Every client may go on: what held it back may be gone.
    pub(super) fn stir_clients(&mut self) {
        for key in self.clients.keys() {
            self.stir_client(key);
        }
    }

    /// No client's further requests are taken.
    pub(super) fn shut_clients(&mut self) {
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key) {
                client.connection.shut_down();
            }
        }
    }

    pub(super) fn drop_client(&mut self, key: Key, why: &str) {
        // It counts until its home has said that its socket is closed.
        if self.send_off(key, why) {
            return;
        }
        let Some(mut client) = self.clients.remove(key) else { return };
        self.visitors.count -= usize::from(client.visits);
        let kind = client.connection.kind();
        match client.opened {
            Some((resource, _)) => info!("{}: {kind} went: {why}", self.name_of(resource)),
            None => debug!("{kind} went: {why}"),
        }
        if let Some(socket) = &client.socket {
            self.hands.close(socket);
        }
        self.leftover.keep(&self.asked, key, &mut client.connection);
        self.disk_went(key, &mut client);
        self.machine_went(key, &mut client);
        if let Some((resource, _)) = client.opened {
            self.withdraw_all_of(key);
            self.withdraw_commands_of(key);
            match client.origin {
                Some(origin) => self.tell_gone(origin, client.is_fault),
                // Disks of this host count by themselves.
                None if client.connection.ublk().is_some() => {}
                None => self.count_client(resource, false),
            }
        }
        self.host_went(client, why);
    }

    /// Drops every client of a resource that goes away, on all threads if this is the first.
    pub(super) fn drop_clients_of(&mut self, resource: Key, why: &str) {
        if self.threads.is_first()
            && let Some(life) = self.resources.get(resource).map(|entry| entry.life)
        {
            self.tell_others(|| Parcel::Drop { life, why: why.to_owned() });
        }
        for key in self.clients.keys() {
            let opened = self.clients.get(key).and_then(|client| client.opened);
            if opened.is_some_and(|(of, _)| of == resource) {
                self.drop_client(key, why);
            }
        }
    }

    /// The machines of a resource are exchanged, and its clients go on with the new ones.
    pub(super) fn move_clients(&mut self, old: Key, new: Key) {
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key)
                && let Some((resource, _)) = client.opened.as_mut()
                && *resource == old
            {
                *resource = new;
            }
        }
    }

    /// Sends those away who are revoked by now.
    pub(super) fn drop_revoked_clients(&mut self) {
        for key in self.clients.keys() {
            let claims = self.clients.get(key).and_then(|client| client.connection.claims());
            if let Some(claims) = claims.filter(|claims| self.config.revoked.refuse(claims)) {
                info!("an NBD client is sent away: the certificate of {} is revoked", claims.peer);
                self.drop_client(key, "its certificate is revoked");
            }
        }
    }

    /// A volume has a new size, in bytes.
    pub(super) fn resize_clients(&mut self, resource: Key, volume: VolumeId, bytes: u64) {
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key)
                && client.opened == Some((resource, volume))
            {
                if let Some(connection) = client.connection.nbd() {
                    connection.resized(bytes);
                } else if let Some(disk) = client.connection.vhost() {
                    disk.resized(bytes / SECTOR_BYTES);
                }
            }
        }
    }

    /// What clients of the resource have seen is not so any more: whoever is here has to open it anew.
    pub(super) fn lose_clients(&mut self, resource: Key) {
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key)
                && client.opened.is_some_and(|(opened, _)| opened == resource)
            {
                client.connection.lose();
            }
        }
    }

    pub(super) fn count_client(&mut self, resource: Key, comes: bool) {
        let Some(resource_entry) = self.resources.get_mut(resource) else { return };
        let count = &mut resource_entry.clients;
        *count = if comes { *count + 1 } else { *count - 1 };
        let count = *count;
        self.recount = true;
        self.work.push_back(Work::Member(resource, MemberInput::Clients { count }));
    }

    fn on_demands(&mut self, key: Key, mut demands: Vec<Demand>) {
        for demand in demands.drain(..) {
            match demand {
                Demand::Lookup { name, enters } => self.look_up(key, &name, enters),
                Demand::List => self.list_exports(key),
                Demand::Ask(ask) => {
                    let came = ask.came.unwrap_or(self.hands.now());
                    self.on_ask(key, ask, came);
                }
                Demand::Holes { tag, range } => self.look_for_holes(key, tag, range),
                Demand::Connect(connect) => self.on_connect(key, &connect),
                Demand::Switched => self.on_switched(key),
                Demand::Reserve { tag, volume, command } => {
                    self.reserve_for_host(key, tag, volume, command);
                }
                Demand::Proved(secret) => self.on_proved(key, secret),
            }
        }
        self.demands = demands;
    }

    fn look_up(&mut self, key: Key, name: &str, enters: bool) {
        let found = self.find_export(name);
        let stopping = self.stopping.is_some();
        let moves = name.ends_with(MOVES);
        let wanted = found.as_ref().filter(|_| moves).map(|(resource, ..)| *resource);
        let is_away = wanted.is_some_and(|resource| self.is_away_for_long(resource));
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(connection) = client.connection.nbd() else { return };
        if stopping {
            return connection.refuse(Refusal::ShuttingDown, "this node is stopping");
        }
        let Some((resource, volume, info)) = found else {
            return connection.refuse(Refusal::Unknown, "no volume of this name here");
        };
        if is_away {
            return connection.refuse(Refusal::Policy, "this node has no quorum: ask another");
        }
        let known = self.resources.get_mut(resource).expect("just found");
        connection.found(&info, enters, known.shard_count());
        if enters && moves {
            connection.moves();
            client.way = Some(Way { number: self.hosts.next_way(), stays: STAYS });
            self.hosts.come(self.hands.now());
            if let Some(socket) = &client.socket {
                socket.end_in_silence(SILENCE_SECONDS);
            }
        }
        if enters {
            client.connection.draw_from(known.client_share(&self.client_pool));
            client.opened = Some((resource, volume));
            info!("{}: an NBD client has opened it", info.name);
            self.count_client(resource, true);
            self.choose_home(key, resource);
        }
    }

    /// Says where a client that has opened this is at home from now on.
    pub(super) fn choose_home(&mut self, key: Key, resource: Key) {
        let home = self.home_for(resource);
        if let Some(client) = self.clients.get_mut(key) {
            client.bound_for = home;
        }
    }

    fn list_exports(&mut self, key: Key) {
        let exports: Vec<(String, String)> = self
            .resources
            .iter()
            .flat_map(|(_, resource)| {
                let exports = resource.exports().into_iter();
                exports.map(|(name, volume, size)| (name, about(resource, volume, size)))
            })
            .collect();
        let connection = self.clients.get_mut(key).and_then(|client| client.connection.nbd());
        if let Some(connection) = connection {
            let exports = exports.iter().map(|(name, about)| (name.as_str(), about.as_str()));
            connection.exports(exports);
        }
    }

    /// The volume behind an export's name: `NAME` is the first volume, `NAME/1` another; [`MOVES`] may follow.
    fn find_export(&self, name: &str) -> Option<(Key, VolumeId, ExportInfo)> {
        let name = name.strip_suffix(MOVES).unwrap_or(name);
        let (resource_name, volume) = match name.split_once('/') {
            Some((resource, volume)) => (resource, VolumeId(volume_number(volume)?)),
            None => (name, VolumeId(0)),
        };
        let (key, resource) =
            self.resources.iter().find(|(_, resource)| resource.name == resource_name)?;
        let entry = resource.volume(volume)?;
        let size_bytes = entry.sectors * SECTOR_BYTES;
        let info = ExportInfo {
            description: about(resource, volume, size_bytes),
            block_bytes_min: entry.block_bytes,
            block_bytes_preferred: entry.block_bytes.max(4096),
            ..ExportInfo::new(name.to_owned(), size_bytes)
        };
        Some((key, volume, info))
    }

    /// A piece of a request, which came then, goes to its shard.
    pub(super) fn on_ask(&mut self, client: Key, ask: Ask, came: Instant) {
        // A request that was held may come when its client is gone.
        let Some(entry) = self.clients.get(client) else { return };
        let (way, host, turn) = (entry.way, entry.host(), entry.turn);
        let (resource, volume) = entry.opened.expect("requests come after an export was opened");
        let volume = ask.volume.unwrap_or(volume);
        let Some(Held { ask, .. }) = self.hold(resource, Held { client, ask, came }) else {
            return;
        };
        if turn == Turn::Away {
            return self.tell_gone_elsewhere(client, ask.tag);
        }
        let Ask { op, span, fua, .. } = ask;
        let request = Request { op, volume, span, buffer: None, fua, way, host };
        let Some(request) = held::after(request, self.hands.now().since(came)) else {
            return self.tell_late(client, &ask);
        };
        let Some(entry) = self.resources.get(resource) else { return };
        let shard = match ask.op {
            base::Op::Flush => ask.shard,
            _ => entry.shard_of(ask.span),
        };
        let (id, life) = (entry.id, entry.life);
        let thread = self.threads.of_shard(id, shard);
        let reads_bytes = match ask.op {
            base::Op::Read => u32::try_from(ask.span.length_bytes()).expect("at most a piece"),
            _ => 0,
        };
        let (tag, is_given_up) = (ask.tag, false);
        let asked = Asked { client, tag, resource, shard, reads_bytes, is_given_up };
        let asked = self.asked.insert(asked);
        let id = request_id(self.threads.number(), asked);
        if !self.threads.is(thread) {
            let came = self.hands.now();
            let parcel = Parcel::Request { life, shard, id, request, bytes: ask.buffer, came };
            return self.tell(thread, parcel);
        }
        let buffer = ask.buffer.map(|buffer| self.buffers.name(resource, buffer));
        let request = Request { buffer, ..request };
        self.work.push_back(Work::Shard(resource, shard, ShardInput::Request { id, request }));
    }

    /// What a client asked that is gone is not to be carried out later, for instance when a primary is there at last.
    fn withdraw_all_of(&mut self, client: Key) {
        let asked = self.asked.iter().filter(|(_, asked)| asked.client == client);
        let all: Vec<(Key, Key, u16)> =
            asked.map(|(key, asked)| (key, asked.resource, asked.shard)).collect();
        for (key, resource, shard) in all {
            let Some(entry) = self.resources.get(resource) else { continue };
            let (id, life) = (request_id(self.threads.number(), key), entry.life);
            let thread = self.threads.of_shard(entry.id, shard);
            if self.threads.is(thread) {
                let input = ShardInput::Withdraw { id };
                self.work.push_back(Work::Shard(resource, shard, input));
            } else {
                self.tell(thread, Parcel::Withdraw { life, shard, id });
            }
        }
    }

    /// Nothing that a host has asked by this queue is waited for any more: it is to ask by another path. What was begun is
    /// before whatever it asks there, what was not is not carried out.
    pub(super) fn give_up_all_of(&mut self, client: Key) {
        self.withdraw_all_of(client);
        self.withdraw_commands_of(client);
        if let Some(entry) = self.clients.get_mut(client) {
            self.leftover.keep(&self.asked, client, &mut entry.connection);
        }
        let all = self.asked.iter().filter(|(_, asked)| asked.is_waited_for_by(client));
        let all: Vec<(Key, Tag)> = all.map(|(key, asked)| (key, asked.tag)).collect();
        for (key, tag) in all {
            if let Some(asked) = self.asked.get_mut(key) {
                asked.is_given_up = true;
            }
            self.tell_gone_elsewhere(client, tag);
        }
    }

    /// A piece of what a host has asked is not done here.
    fn tell_gone_elsewhere(&mut self, client: Key, tag: Tag) {
        self.tell_undone(client, tag, base::AnswerError::Gone);
    }

    /// The same, for this reason.
    pub(super) fn tell_undone(&mut self, client: Key, tag: Tag, why: base::AnswerError) {
        if let Some(entry) = self.clients.get_mut(client) {
            entry.connection.answer(tag, Err(why), None);
            self.stir_client(client);
        }
    }

    /// The shards of a resource are gone, and will answer nothing any more.
    pub(super) fn forget_asked_of(&mut self, resource: Key) {
        let gone: Vec<Key> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.resource == resource)
            .map(|(key, _)| key)
            .collect();
        for key in gone {
            self.asked.remove(key);
            self.free_room_of(key);
        }
    }

    /// A request of a client of this thread has come to its end.
    pub(super) fn answer_client(
        &mut self,
        asked: Asked,
        result: Result<(), base::AnswerError>,
        buffer: Option<sys::Buffer>,
    ) {
        if asked.is_given_up {
            return;
        }
        if result.is_ok() && !self.may_tell(asked.resource) {
            return self.keep_untold(asked, buffer);
        }
        let Some(client) = self.clients.get_mut(asked.client) else { return };
        client.connection.answer(asked.tag, result, buffer);
        self.stir_client(asked.client);
    }
}

/// Why a client's connection is broken, in words about clients.
fn words(why: &LinkError) -> String {
    match why {
        LinkError::TooMuchBeforeAuthentication => {
            "it sent more than opening an export takes".to_owned()
        }
        other => other.to_string(),
    }
}

/// A volume in words. The identity stands last: who comes back asks whether it is still the same.
fn about(resource: &Resource, volume: VolumeId, size_bytes: u64) -> String {
    let (name, id, size) = (&resource.name, resource.id.0, size_bytes >> 20);
    format!("volume {volume} of {name}, {size} MiB, resource {id:016x}")
}

/// The number of a volume in an export's name, which has one form only.
fn volume_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|number: &u16| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use base::Instant;
    use export::{Inputs, NbdConnection, Served};
    use sys::BufferPool;

    use super::Client;

    #[test]
    fn a_client_stands_still_only_while_it_is_its_turn() {
        let pool = || BufferPool::new(1 << 20);
        let zeroes = pool().take_zeroed(4096).expect("a few KiB");
        let nbd = NbdConnection::new(Inputs::new(1), pool(), zeroes);
        let mut client =
            Client::new(None, Served::Nbd(Box::new(nbd)), None, false, Instant::default());
        let mut pieces = Vec::new();
        client.connection.take_send(&mut pieces);
        let greeting: usize = pieces.iter().map(sys::Piece::len).sum();
        assert!(client.connection.waits_for_client(), "it is to be greeted");
        assert_eq!(client.waited_for_since(), None, "and was not yet");
        let (first, second) = (Instant(5_000_000_000), Instant(9_000_000_000));
        client.begin_send(18, first);
        assert_eq!(client.waited_for_since(), Some(first));
        client.begin_send(18, second);
        assert_eq!(client.waited_for_since(), Some(first), "it has not taken the first yet");
        client.connection.sent(u64::try_from(greeting).expect("a few"));
        client.begin_receive(1, second);
        assert_eq!(client.waited_for_since(), None, "it holds nothing");
    }
}

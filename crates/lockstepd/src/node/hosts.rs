//! What only NVMe hosts have: controllers, paths that are worth more or less, and an end when they are silent; the last of
//! these NBD clients have as well that move from node to node.
//!
//! Always: what a host asks of a node that can serve nobody is answered at once, so that it asks by another path, and is carried out
//! here neither then nor later, unless it was begun; a controller's number is this node's, and of no other node of the resource whose id has another lowest byte; a
//! controller that its host has switched off has no queues for I/O; a host that was given up, or whose bytes
//! may have waited while this process stood still, is dropped before anything is looked at that it sent; a host
//! that has to prove who it is has opened nothing before it has, on each of its queues; a host that has a key for TLS opens nothing
//! but inside TLS, and there only what its key's identity names.
//!
//! Not here: sockets and requests (`clients`), the protocol (`nvme`).

use base::{Duration, HostId, Instant, NodeId, SECTOR_BYTES, VolumeId, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use export::PskOffer;
use nvme::{
    Access, Connect, ConnectField, Controller, DISCOVERY_NQN, Entry, Examiner, Names, Namespace,
    Refusal, Secret, Seed, Service, Status, Subsystem, TlsNames, TlsPsk,
};
use sys::{Psk, PskTls};

use replica::member::Suspended;
use wire::{OnNoQuorum, Quorum};

use super::Node;
use super::clients::{Client, Door, STAYS};
use super::homes::{Wish, Word};
use super::patience::{is_taken, patiently};
use super::resource::Resource;
use super::status::reached_at;
use crate::config::Admission;
use crate::log::{info, warning_limited};
use crate::slab::Key;

/// How often it is looked at what has changed for hosts.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A process that did not look for so long stood still: what its hosts sent may have been tried elsewhere by now.
const STANDSTILL: Duration = Duration::from_millis(900);

/// How long a connected host that proved who it is by a secret which is not there any more has to prove it by one that is.
/// Linux (7.2) waits for ever where its connection ends while it does so.
const REPROOF_LIMIT: Duration = Duration::from_millis(5000);

/// Controllers of the discovery service, at most: whoever reaches the port can have them, and hosts need numbers too.
const DISCOVERIES_MAX: usize = 32;

/// How often it is looked for them, all together, what there is to connect to.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// How long such a one lasts whose host does not say how often it will be heard of, as the specification has it.
const DISCOVERY_PATIENCE_MS: u32 = 120_000;

/// How the names of subsystems begin; the cluster and the resource follow.
const NQN_PREFIX: &str = "nqn.2026-11.invalid.lockstep";

/// What a queue's host sent, and lay here unread for so long, is not looked at: Linux tries a command elsewhere that has no answer for
/// 30 s.
const HOST_STAYS: Duration = Duration::from_secs(10);

/// What lay here for so long is younger than anything that a host does when a connection fails.
const SURELY_NEW: Duration = Duration::from_millis(900);

/// Queues for I/O that a host gets, at least, and more for each thread: they share the places for clients of the whole node, and more than
/// there are threads to serve them bring nothing.
const QUEUES: [u16; 2] = [4, 2];

/// What hosts have set up.
#[derive(Default)]
pub(crate) struct Hosts {
    /// Counts controllers, so that two that follow each other have different numbers.
    controllers: u16,
    /// Connections that are there, those of NBD clients that move included.
    connections: usize,
    /// Controllers and such clients that there were in this process: each is a way to a resource.
    ways: u32,
    /// When it was looked last what has changed for them.
    looked_at: Instant,
    /// What there is to connect to, and how often that changed.
    listed: Vec<Entry>,
    generation: u64,
    /// When it was looked last what there is, for hosts that have asked.
    listed_at: Instant,
    /// Resources that NBD clients that move wanted here and that could serve nobody, since when they cannot.
    away: BTreeMap<Key, Instant>,
    /// Hosts that the table does not know, or that did not prove who they are.
    pub(super) refused: u64,
    /// The machine's TLS, once a host has a key for it.
    tls: Option<PskTls>,
}

/// What becomes of what a host asks by a queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Turn {
    /// It is carried out, or waits for that.
    #[default]
    Served,
    /// What comes is to be asked by another path; what is open ends as it would.
    Closed,
    /// What is open, too.
    Away,
}

/// Which host a connection says that it is of, and what it has shown for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Claim {
    pub(super) host: String,
    host_id: [u8; 16],
    subsystem: String,
    /// It has proved that it knows this; nothing is asked of it if there is no table of hosts.
    proved: Option<Secret>,
    /// What it speaks TLS with.
    sealed: Option<TlsPsk>,
    /// By then it has proved it anew, or is sent away.
    proves_until: Option<Instant>,
}

/// What the table of hosts says of one that is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// It could come in as it is, or is about to show it.
    Good,
    /// By another secret than it proved by.
    Outdated,
    /// It could not come in.
    Refused,
}

impl Claim {
    /// Its identity, as the host says it to all its disks.
    pub(super) fn host(&self) -> HostId {
        HostId(u128::from_be_bytes(self.host_id))
    }
}

/// When a host is given up if it stays silent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expiry {
    at: Instant,
    /// How often it said last that it will be heard of.
    keep_alive: Duration,
}

impl Expiry {
    /// `None`: it never is.
    fn of(controller: &Controller) -> Option<Expiry> {
        let keep_alive = controller.keep_alive();
        controller.expires_at().map(|at| Expiry { at, keep_alive })
    }

    /// Whether it has not been heard for as long as it said: from then on it may try elsewhere.
    fn is_silent(self, now: Instant) -> bool {
        let grace = Duration(self.keep_alive.0 / 2);
        now + grace >= self.at
    }
}

/// The number that hosts know a volume by.
pub(super) fn namespace_of(volume: VolumeId) -> u32 {
    u32::from(volume.0) + 1
}

impl Hosts {
    /// A host has connected.
    pub(super) fn come(&mut self, now: Instant) {
        if self.connections == 0 {
            self.looked_at = now;
        }
        self.connections += 1;
    }

    /// A way that there was none before in this process.
    pub(super) fn next_way(&mut self) -> u32 {
        self.ways = self.ways.wrapping_add(1);
        self.ways
    }

    /// One went, also to another thread unless it is still looked after here.
    pub(super) fn go(&mut self) {
        self.connections -= 1;
    }

    /// Whether somebody hears of what changes.
    fn is_to_look(&self) -> bool {
        self.connections > 0 || !self.away.is_empty()
    }

    /// When it is to be looked again.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.is_to_look().then(|| self.looked_at + LOOK_EVERY)
    }
}

impl Node {
    /// Listens for hosts where the configuration says.
    pub(super) fn listen_nvme(&mut self) -> Result<(), String> {
        let Some(address) = self.config.nvme else { return Ok(()) };
        let listener = patiently(|| sys::listen_tcp(address), is_taken)
            .map_err(|error| format!("cannot serve NVMe on {address}: {error}"))?;
        self.accept_clients(listener, Door::Nvme);
        Ok(())
    }

    /// Gives up hosts that are silent, and tells the others what has changed for them.
    pub(super) fn look_after_hosts(&mut self) {
        let now = self.hands.now();
        if !self.hosts.is_to_look() || now < self.hosts.looked_at + LOOK_EVERY {
            return;
        }
        let stood_still = now.since(self.hosts.looked_at) > STANDSTILL;
        self.hosts.looked_at = now;
        self.drop_outdated_hosts(now);
        self.list_for_discoverers(now);
        let mut expiries: BTreeMap<u32, Option<Expiry>> = BTreeMap::new();
        for key in self.clients.keys() {
            let Some(client) = self.clients.get_mut(key) else { continue };
            if stood_still && client.is_watched_host() {
                warning_limited!("hosts have to connect anew: this process stood still");
                self.drop_client(key, "this process stood still");
                continue;
            }
            let (at_home, way) = (client.expiry, client.way);
            let Some(connection) = client.connection.nvme() else { continue };
            let expiry = connection.controller().and_then(Expiry::of).or(at_home);
            if expiry.is_some_and(|expiry| expiry.at <= now) {
                self.drop_client(key, "the host was silent for longer than it said");
            } else {
                if let Some(way) = way.filter(|_| connection.controller().is_some()) {
                    expiries.insert(way.number, expiry);
                }
                self.tell_host(key);
            }
        }
        if self.threads.is_first() {
            self.send_movers_on();
        }
        if self.threads.others() > 0 && self.threads.is_first() {
            for key in self.clients.keys() {
                let way = self.clients.get(key).and_then(|client| client.way);
                let expiry = way.and_then(|way| expiries.get(&way.number).copied().flatten());
                self.tell_stay(key, expiry);
            }
        }
    }

    /// Whether a resource could serve nobody here for as long as a write of an NBD client that moves may wait here: such a client is to ask
    /// another node. A short loss of quorum, or a start, costs it nothing. It counts from when this is asked first.
    pub(super) fn is_away_for_long(&mut self, resource: Key) -> bool {
        if self.turn_of(resource) != Turn::Away {
            self.hosts.away.remove(&resource);
            return false;
        }
        let now = self.hands.now();
        now >= *self.hosts.away.entry(resource).or_insert(now) + STAYS
    }

    /// Ends connections of NBD clients that move, where another node may serve them and this one does not.
    fn send_movers_on(&mut self) {
        let movers = self.clients.iter().filter(|(_, client)| client.moves());
        let resources = movers.filter_map(|(_, client)| client.opened.map(|(of, _)| of));
        let resources: BTreeSet<Key> = resources.chain(self.hosts.away.keys().copied()).collect();
        for resource in resources {
            if !self.is_away_for_long(resource) {
                continue;
            }
            for key in self.clients.keys() {
                let is_one =
                    |one: &Client| one.moves() && one.opened.is_some_and(|(of, _)| of == resource);
                if self.clients.get(key).is_some_and(is_one) {
                    self.drop_client(key, "this node has no quorum, and another may have");
                }
            }
        }
    }

    /// When a controller is given up if its host stays silent.
    pub(super) fn expiry_of(&mut self, way: Way) -> Option<Expiry> {
        self.clients.keys().into_iter().find_map(|key| {
            let client = self.clients.get_mut(key).filter(|one| one.way == Some(way))?;
            Expiry::of(client.connection.nvme()?.controller()?)
        })
    }

    /// Whether what a client sent that has several ways, and lay here unread, may have been asked elsewhere since, and be older than
    /// what is there: its connection may have ended long ago, and that be lost on its way.
    pub(super) fn is_unread_too_long(&mut self, key: Key) -> bool {
        let now = self.hands.now();
        let Some(client) = self.clients.get_mut(key) else { return false };
        let unread = client.unread.age(now);
        let Some(way) = client.way.filter(|_| unread > SURELY_NEW) else { return false };
        let expiry = client.expiry;
        match client.connection.nvme() {
            None => client.connection.nbd().is_some() && unread > STAYS,
            Some(connection) if connection.controller().is_some() => false,
            Some(_) => {
                let expiry = expiry.or_else(|| self.expiry_of(way));
                unread > HOST_STAYS || expiry.is_some_and(|expiry| expiry.is_silent(now))
            }
        }
    }

    /// Tells a host what its resource is now.
    fn tell_host(&mut self, key: Key) {
        // Of another thread's host the first tells it.
        let client = self.clients.get(key).filter(|client| client.origin.is_none());
        let Some(client) = client else { return };
        let service = match client.opened {
            Some((resource, _)) => self.resources.get(resource).map(|one| self.service_of(one)),
            None => match self.discovered_by(key) {
                Some((host, told)) if told != self.hosts.generation => {
                    Some(self.discovery(key, &host))
                }
                _ => None,
            },
        };
        let Some(service) = service else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        let opened = client.opened;
        if let Some(connection) = client.connection.nvme().filter(|one| one.serves_other(&service))
        {
            connection.change(&service);
            self.stir_client(key);
        }
        if let Some((resource, _)) = opened {
            self.turn_host(key, self.turn_of(resource));
        }
    }

    /// Whether a host is to ask by another path. Where requests are to fail without quorum, they do, by whichever path.
    pub(super) fn turn_of(&self, resource: Key) -> Turn {
        let status = self.resources.get(resource).and_then(|one| one.member.as_ref());
        let status = status.map(replica::Member::status);
        let waits = status.is_some_and(|status| {
            let suspends = status.configuration.as_ref().is_some_and(|configuration| {
                configuration.options.on_no_quorum == OnNoQuorum::SuspendIo
            });
            matches!(status.suspended, Some(Suspended::NoQuorum { .. }))
                && suspends
                && !status.fails_waiting
        });
        match (waits, self.stopping.is_some()) {
            (true, _) => Turn::Away,
            (false, true) => Turn::Closed,
            (false, false) => Turn::Served,
        }
    }

    /// What becomes of what a host asks by this queue is another from now on.
    pub(super) fn turn_host(&mut self, key: Key, turn: Turn) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let is_other = std::mem::replace(&mut client.turn, turn) != turn;
        let Some(connection) = client.connection.nvme().filter(|_| is_other) else { return };
        connection.turn_away(turn != Turn::Served);
        if turn == Turn::Away {
            self.give_up_all_of(key);
        }
        self.stir_client(key);
    }

    /// The host that asks the discovery service, if it is one, and which list it was told last.
    fn discovered_by(&mut self, key: Key) -> Option<(String, u64)> {
        let client = self.clients.get_mut(key)?;
        let controller = client.connection.nvme()?.controller()?;
        let Service::Discovery { generation, .. } = controller.service() else { return None };
        Some((client.discovers.clone().unwrap_or_default(), *generation))
    }

    /// The name of a resource's subsystem.
    pub(super) fn nqn_of(&self, resource: &str) -> String {
        format!("{NQN_PREFIX}:{:016x}:{resource}", self.config.cluster.0)
    }

    /// A resource as hosts see it by this node.
    pub(super) fn service_of(&self, resource: &Resource) -> Service {
        let now = self.hands.now();
        let status = resource.member.as_ref().map(|member| member.status());
        let reigning = resource.member.as_ref().and_then(|member| member.reigning(now));
        let suspended = status.as_ref().and_then(|status| status.suspended.as_ref());
        let access = match reigning {
            _ if self.stopping.is_some() => Access::Inaccessible,
            // One that is cut off from the others while it is primary stays it, and serves nobody.
            _ if matches!(suspended, Some(Suspended::NoQuorum { .. })) => Access::Inaccessible,
            Some(node) if node == self.config.node => Access::Optimized,
            Some(_) => Access::NonOptimized,
            // Whoever uses it makes a primary.
            None => Access::NonOptimized,
        };
        let configuration = resource.configuration();
        let volumes = configuration.iter().flat_map(|configuration| &configuration.volumes);
        let reserves = configuration
            .as_ref()
            .is_some_and(|configuration| configuration.options.quorum == Quorum::Majority);
        let namespaces = volumes.map(|volume| Namespace {
            reserves,
            id: namespace_of(volume.volume),
            blocks: volume.sectors * SECTOR_BYTES / u64::from(volume.block_bytes),
            block_shift: u8::try_from(volume.block_bytes.trailing_zeros()).unwrap_or(9),
            nguid: self.nguid(resource, volume.volume),
        });
        let namespaces = namespaces.collect();
        let reservations =
            configuration.iter().flat_map(|configuration| &configuration.reservations);
        let persistent =
            reservations.filter(|one| one.persists).map(|one| namespace_of(one.volume));
        Service::Volumes(Subsystem {
            nqn: self.nqn_of(&resource.name),
            serial: format!("{:016x}", resource.id.0),
            namespaces,
            persistent: persistent.collect(),
            access,
        })
    }

    /// What tells a volume from all others, everywhere.
    fn nguid(&self, resource: &Resource, volume: VolumeId) -> [u8; 16] {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&resource.id.0.to_be_bytes());
        name[8..14].copy_from_slice(&self.config.cluster.0.to_be_bytes()[2..]);
        name[14..].copy_from_slice(&volume.0.to_be_bytes());
        name
    }

    /// Looks what there is to connect to.
    fn list(&mut self) {
        let entries: Vec<Entry> =
            self.resources.iter().flat_map(|(_, resource)| self.entries_of(resource)).collect();
        if entries != self.hosts.listed {
            self.hosts.listed = entries;
            self.hosts.generation += 1;
        }
    }

    /// The same, for hosts that have asked and want to hear of changes. That costs the more the more resources there are, and whoever
    /// reaches the port can ask.
    fn list_for_discoverers(&mut self, now: Instant) {
        let is_time = now >= self.hosts.listed_at + LIST_EVERY;
        if is_time && self.clients.iter().any(|(_, one)| one.discovers.is_some()) {
            self.hosts.listed_at = now;
            self.list();
        }
    }

    /// What there is to connect to, as this host is told.
    fn discovery(&self, key: Key, host: &str) -> Service {
        let tls = self.config.nvme_hosts.as_ref().is_some_and(|table| table.seals(host));
        let mut entries = self.hosts.listed.clone();
        // What hosts are told of differently is no change.
        let came_by = self.host_came_by(key);
        for entry in &mut entries {
            entry.tls = tls;
            if let Some(ip) = came_by.filter(|_| entry.node == self.config.node.0) {
                (entry.address, entry.ipv6) = (ip.to_string(), ip.is_ipv6());
            }
        }
        Service::Discovery { entries, generation: self.hosts.generation }
    }

    /// By which nodes a resource can be reached: this one, and others as its settings tell.
    fn entries_of(&self, resource: &Resource) -> Vec<Entry> {
        let configuration = resource.configuration();
        let is_member = |node| configuration.as_ref().is_some_and(|one| one.member(node).is_some());
        let peers = self.config.peers.iter().filter(|peer| is_member(peer.id));
        let own = [(self.config.node, self.config.nvme)].into_iter();
        let all = own.chain(peers.map(|peer| (peer.id, peer.nvme)));
        let entry = |(node, address): (NodeId, Option<SocketAddr>)| {
            let address = address.filter(|_| self.config.nvme.is_some())?;
            Some(Entry {
                nqn: self.nqn_of(&resource.name),
                address: address.ip().to_string(),
                port: address.port(),
                ipv6: address.is_ipv6(),
                node: node.0,
                tls: false,
            })
        };
        all.filter_map(entry).collect()
    }

    /// Where this node listens on every address of the machine: the one that a host came by.
    fn host_came_by(&self, key: Key) -> Option<IpAddr> {
        let address = self.config.nvme.filter(|address| address.ip().is_unspecified())?;
        let socket = self.clients.get(key).and_then(|client| client.socket.as_ref());
        let came_by = socket.and_then(|socket| socket.local_address().ok());
        let reached = came_by.unwrap_or_else(|| reached_at(address, self.config.listen));
        // Who comes by IPv4 to a socket for IPv6 has an address of both.
        Some(reached.ip().to_canonical())
    }

    /// A host asks for a queue.
    pub(super) fn on_connect(&mut self, key: Key, connect: &Connect) {
        if let Err(refusal) = self.try_connect(key, connect)
            && let Some(client) = self.clients.get_mut(key)
            && let Some(connection) = client.connection.nvme()
        {
            connection.refuse(refusal);
        }
        self.stir_client(key);
    }

    fn try_connect(&mut self, key: Key, connect: &Connect) -> Result<(), Refusal> {
        if self.stopping.is_some() {
            return Err(Status::CONNECT_BUSY.into());
        }
        if connect.subsystem == DISCOVERY_NQN {
            if connect.queue != 0 {
                return Err(Refusal::invalid(ConnectField::Queue));
            }
            // In the clear as well: it tells where TLS is to be spoken.
            self.check_names(key, connect)?;
            let keys = self.clients.keys();
            let discoverers = keys.into_iter().filter(|&key| self.discovered_by(key).is_some());
            if discoverers.count() >= DISCOVERIES_MAX {
                warning_limited!("the discovery service has {DISCOVERIES_MAX} hosts already");
                return Err(Status::CONNECT_BUSY.into());
            }
            self.list();
            let service = self.discovery(key, &connect.host);
            let keep_alive_ms = match connect.keep_alive_ms {
                0 => DISCOVERY_PATIENCE_MS,
                said => said.min(DISCOVERY_PATIENCE_MS),
            };
            self.make_controller(key, connect, keep_alive_ms, service)?;
            if let Some(client) = self.clients.get_mut(key) {
                client.discovers = Some(connect.host.clone());
            }
            self.know_client(key);
            return Ok(());
        }
        let found = self.resources.iter().find(|(_, resource)| {
            self.nqn_of(&resource.name) == connect.subsystem && resource.configuration().is_some()
        });
        let (resource, entry) = found.ok_or(Refusal::invalid(ConnectField::Subsystem))?;
        let (service, shards) = (self.service_of(entry), entry.shard_count());
        let sealed = self.check_seal(key, connect)?;
        let inside = if sealed.is_some() { ", inside TLS" } else { "" };
        let proves = self.ask_for_proof(key, connect, resource, sealed)?;
        if connect.queue == 0 {
            self.make_controller(key, connect, connect.keep_alive_ms, service)?;
        } else {
            let way = self.controller_of(connect)?;
            let controller = connect.controller;
            let Service::Volumes(subsystem) = service else { return Err(Status::INTERNAL.into()) };
            let client = self.clients.get_mut(key).ok_or(Status::INTERNAL)?;
            (client.controller, client.way) = (Some(controller), Some(way));
            client.queue = connect.queue;
            let connection = client.connection.nvme().ok_or(Status::INTERNAL)?;
            connection.serves(controller, subsystem.namespaces, shards);
            self.turn_host(key, self.turn_of(resource));
        }
        if !proves {
            self.open_for_host(key, resource);
        }
        let Connect { subsystem, queue, host, .. } = connect;
        info!("{subsystem}: queue {queue} of a host{inside}: {host:?}");
        Ok(())
    }

    /// What hosts that begin with TLS are answered with, if the table has keys for any. What the table says now counts for who
    /// comes now; when it connects it is asked again.
    pub(super) fn tls_offer(&mut self) -> Option<PskOffer> {
        let table = self.config.nvme_hosts.as_ref().filter(|table| table.has_keys())?;
        if self.hosts.tls.is_none() {
            let made = PskTls::new();
            if let Err(why) = &made {
                warning_limited!("NVMe hosts cannot speak TLS: {why}");
            }
            self.hosts.tls = made.ok();
        }
        let (tls, table) = (self.hosts.tls.clone()?, table.clone());
        let keys = Arc::new(move |identity: &str| {
            let names = TlsNames::parse(identity);
            let known = names.map(|names| table.psks(&names, identity)).unwrap_or_default();
            known.into_iter().filter_map(|psk| Psk::new(psk.key)).collect()
        });
        Some(PskOffer { tls, keys })
    }

    /// What the host speaks TLS with. Its names have to be those that it connects by.
    fn check_names(&mut self, key: Key, connect: &Connect) -> Result<Option<TlsPsk>, Status> {
        let client = self.clients.get_mut(key).ok_or(Status::INTERNAL)?;
        let connection = client.connection.nvme().ok_or(Status::INTERNAL)?;
        let Some((identity, psk)) = connection.shown() else { return Ok(None) };
        let names = TlsNames::parse(identity);
        let sealed = TlsPsk { identity: identity.to_owned(), key: psk.bytes().to_vec() };
        let same =
            names.is_some_and(|of| of.host == connect.host && of.subsystem == connect.subsystem);
        if !same || !self.is_seal_valid(&connect.host, &connect.subsystem, Some(&sealed)) {
            self.hosts.refused += 1;
            warning_limited!(
                "the key of {:?} is not for {:?} at {}",
                sealed.identity,
                connect.host,
                connect.subsystem
            );
            return Err(Status::CONNECT_HOST);
        }
        Ok(Some(sealed))
    }

    /// The same, of who wants a volume: whose row has a key gets nothing without it.
    fn check_seal(&mut self, key: Key, connect: &Connect) -> Result<Option<TlsPsk>, Status> {
        let sealed = self.check_names(key, connect)?;
        if sealed.is_none() && !self.is_seal_valid(&connect.host, &connect.subsystem, None) {
            self.hosts.refused += 1;
            warning_limited!(
                "{}: {:?} has to speak TLS by its key",
                connect.subsystem,
                connect.host
            );
            return Err(Status::CONNECT_HOST);
        }
        Ok(sealed)
    }

    /// Whether the table lets a host in that speaks TLS by this, or in the clear.
    fn is_seal_valid(&self, host: &str, subsystem: &str, sealed: Option<&TlsPsk>) -> bool {
        let Some(table) = &self.config.nvme_hosts else { return sealed.is_none() };
        let names = TlsNames { host: host.to_owned(), subsystem: subsystem.to_owned() };
        match sealed {
            Some(own) => table.psks(&names, &own.identity).contains(own),
            None => !table.seals(host),
        }
    }

    /// Has a host prove who it is, if it has to. Says whether it has.
    fn ask_for_proof(
        &mut self,
        key: Key,
        connect: &Connect,
        resource: Key,
        sealed: Option<TlsPsk>,
    ) -> Result<bool, Status> {
        let host = &connect.host;
        let resource = self.name_of(resource).to_owned();
        let admission = self.config.nvme_hosts.as_ref().map(|table| table.admits(host, &resource));
        let credentials = match admission {
            None | Some(Admission::Open | Admission::Sealed) => None,
            Some(Admission::Proof(credentials)) => Some(credentials.clone()),
            Some(Admission::Refused) => {
                self.hosts.refused += 1;
                warning_limited!("{resource}: the table of hosts does not let in {host:?}");
                return Err(Status::CONNECT_HOST);
            }
        };
        let client = self.clients.get_mut(key).ok_or(Status::INTERNAL)?;
        let connection = client.connection.nvme().ok_or(Status::INTERNAL)?;
        let subsystem = connect.subsystem.clone();
        let proves = credentials.is_some();
        if let Some(credentials) = credentials {
            let mut random = [0; 32];
            sys::random_bytes(&mut random);
            let names = Names { host: host.clone(), subsystem: subsystem.clone() };
            connection.requires(Examiner::new(names, credentials, Seed::new(random)));
        }
        let (host, host_id) = (host.clone(), connect.host_id);
        client.claim =
            Some(Claim { host, host_id, subsystem, proved: None, sealed, proves_until: None });
        Ok(proves)
    }

    /// A host has proved who it is, on one of its queues, for the first time or again.
    pub(super) fn on_proved(&mut self, key: Key, secret: Secret) {
        let Some(Wish::Proved(secret)) = self.wish_of_first(key, Wish::Proved(secret)) else {
            return;
        };
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(claim) = &mut client.claim else { return };
        claim.proved = Some(secret);
        claim.proves_until = None;
        let (claim, opened) = (claim.clone(), client.opened.is_some());
        let (way, queue) = (client.way, client.queue);
        let found =
            self.resources.iter().find(|(_, one)| self.nqn_of(&one.name) == claim.subsystem);
        match found.map(|(resource, _)| resource) {
            _ if opened => {}
            // Another one may have said the same, and proved it sooner.
            Some(_) if way.is_some_and(|way| self.has_queue(way, queue)) => {
                self.drop_client(key, "its controller has this queue already");
            }
            Some(resource) => {
                info!("{}: {} has proved who it is", claim.subsystem, claim.host);
                self.open_for_host(key, resource);
            }
            None => self.drop_client(key, "its resource is gone"),
        }
    }

    /// The table of hosts is another: ends the connections of those who could not come in now. Who may come in by
    /// another secret than it proved by has some time to prove who it is by that.
    pub(super) fn judge_hosts(&mut self) {
        // Whom discovery tells to speak TLS may be another, too.
        self.hosts.generation += 1;
        if self.config.nvme_hosts.is_none() {
            return;
        }
        let until = self.hands.now() + REPROOF_LIMIT;
        for key in self.clients.keys() {
            self.renew_credentials(key);
            match self.standing(key) {
                Standing::Good => {}
                Standing::Outdated => {
                    let client = self.clients.get_mut(key);
                    let Some(claim) = client.and_then(|one| one.claim.as_mut()) else { continue };
                    let limit = claim.proves_until.get_or_insert(until).since(self.hands.now());
                    let (host, millis) = (&claim.host, limit.as_millis());
                    info!("{host:?} has {millis} ms to prove anew: the table of hosts is another");
                }
                Standing::Refused => self.send_host_away(key),
            }
        }
    }

    fn claim_of(&self, key: Key) -> Option<&Claim> {
        self.clients.get(key)?.claim.as_ref()
    }

    /// The name of the resource that a host says it wants.
    fn claimed<'a>(&self, claim: &'a Claim) -> &'a str {
        claim.subsystem.strip_prefix(&self.nqn_of("")).unwrap_or_default()
    }

    /// What a host is asked for from now on.
    fn renew_credentials(&mut self, key: Key) {
        let Some(table) = self.config.nvme_hosts.clone() else { return };
        let Some(claim) = self.claim_of(key) else { return };
        let Admission::Proof(known) = table.admits(&claim.host, self.claimed(claim)) else {
            return;
        };
        let client = self.clients.get_mut(key);
        match client.and_then(|client| client.connection.nvme()) {
            Some(connection) => connection.renew(known),
            None => drop(self.tell_home(key, Word::Renew(known.clone()))),
        }
    }

    fn standing(&mut self, key: Key) -> Standing {
        let (table, claim) = (self.config.nvme_hosts.clone(), self.claim_of(key));
        let Some((table, claim)) = table.zip(claim) else { return Standing::Good };
        if !self.is_seal_valid(&claim.host, &claim.subsystem, claim.sealed.as_ref()) {
            return Standing::Refused;
        }
        match (table.admits(&claim.host, self.claimed(claim)), &claim.proved) {
            (Admission::Open | Admission::Sealed, _) => Standing::Good,
            (Admission::Proof(known), Some(proved)) if known.host.contains(proved) => {
                Standing::Good
            }
            (Admission::Proof(_), Some(_)) => Standing::Outdated,
            (Admission::Proof(_), None) => {
                let client = self.clients.get_mut(key);
                let connection = client.and_then(|client| client.connection.nvme());
                match connection.is_some_and(|connection| connection.is_to_prove()) {
                    true => Standing::Good,
                    false => Standing::Refused,
                }
            }
            (Admission::Refused, _) => Standing::Refused,
        }
    }

    fn send_host_away(&mut self, key: Key) {
        if let Some(claim) = self.claim_of(key) {
            let resource = self.claimed(claim);
            info!("{resource}: {:?} is sent away: the table of hosts is another", claim.host);
            self.drop_client(key, "the table of hosts is another");
        }
    }

    /// Those go who have not proved anew in time.
    fn drop_outdated_hosts(&mut self, now: Instant) {
        for key in self.clients.keys() {
            let is_due =
                self.claim_of(key).and_then(|claim| claim.proves_until).is_some_and(|at| at <= now);
            if is_due && self.standing(key) != Standing::Good {
                self.send_host_away(key);
            }
        }
    }

    /// A host switched its controller on or off. What it had open is over when it is off, and tried elsewhere.
    pub(super) fn on_switched(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(connection) = client.connection.nvme() else { return };
        let Some(controller) = connection.controller() else { return };
        if !controller.is_enabled()
            && let Some(way) = client.way
        {
            self.drop_queues_of(way, Some(key), "its controller was switched off");
            let waits = self.has_queues_elsewhere(way);
            if let Some(client) = self.clients.get_mut(key) {
                client.awaits_queues = waits;
            }
        }
    }

    /// Whether queues of a controller are still at home on other threads.
    fn has_queues_elsewhere(&self, way: Way) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|(_, one)| one.way == Some(way) && one.stay.is_some())
    }

    /// A queue that was at home elsewhere is gone: with the last its host is told that its controller is off.
    pub(super) fn stir_awaiting(&mut self, way: Way) {
        if self.has_queues_elsewhere(way) {
            return;
        }
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key)
                && client.way == Some(way)
                && std::mem::take(&mut client.awaits_queues)
            {
                self.stir_client(key);
            }
        }
    }

    /// Ends the connections of a controller, but for this one.
    fn drop_queues_of(&mut self, way: Way, but: Option<Key>, why: &str) {
        for key in self.clients.keys().into_iter().filter(|&key| Some(key) != but) {
            if self.clients.get(key).is_some_and(|other| other.way == Some(way)) {
                self.drop_client(key, why);
            }
        }
    }

    /// Whether a controller has a queue. Who has only said whose it is keeps its host from none.
    fn has_queue(&self, way: Way, queue: u16) -> bool {
        let is_it =
            |one: &Client| one.way == Some(way) && one.queue == queue && one.opened.is_some();
        self.clients.iter().any(|(_, one)| is_it(one))
    }

    /// The way of the controller that a queue for I/O is to be of, if it is there and switched on, and the queue one that it may have
    /// and has not.
    fn controller_of(&mut self, connect: &Connect) -> Result<Way, Refusal> {
        let invalid = |field| Err(Refusal::invalid(field));
        for key in self.clients.keys() {
            let Some(client) = self.clients.get_mut(key) else { continue };
            let claims = client.claim.as_ref().map(|one| (one.host.clone(), one.host_id));
            let (connection, way) = (client.connection.nvme(), client.way);
            let controller = connection.and_then(|connection| connection.controller());
            let of_subsystem = |one: &&Controller| {
                matches!(one.service(), Service::Volumes(subsystem)
                    if subsystem.nqn == connect.subsystem)
            };
            let controller = controller.filter(|one| one.id() == connect.controller);
            let Some(controller) = controller.filter(of_subsystem) else { continue };
            // A queue belongs to the host whose controller it is of.
            if let Some((host, host_id)) = claims {
                if host != connect.host {
                    return invalid(ConnectField::Host);
                }
                if host_id != connect.host_id {
                    return invalid(ConnectField::HostId);
                }
            }
            if !controller.is_enabled() || connect.queue > controller.queues() {
                return invalid(ConnectField::Queue);
            }
            let way = way.ok_or(Status::INTERNAL)?;
            if self.has_queue(way, connect.queue) {
                return Err(Status::SEQUENCE_ERROR.into());
            }
            return Ok(way);
        }
        invalid(ConnectField::Controller)
    }

    /// Of the subsystem of this name.
    fn make_controller(
        &mut self,
        key: Key,
        connect: &Connect,
        keep_alive_ms: u32,
        service: Service,
    ) -> Result<(), Status> {
        let id = self.next_controller(&connect.subsystem).ok_or(Status::CONNECT_BUSY)?;
        let now = self.hands.now();
        let keep_alive = Duration::from_millis(u64::from(keep_alive_ms));
        let [least, each] = QUEUES;
        let queues = least.max(each.saturating_mul(self.threads.count()));
        let client = self.clients.get_mut(key).ok_or(Status::INTERNAL)?;
        (client.controller, client.way) = (Some(id), Some(Way::of(self.hosts.next_way())));
        let connection = client.connection.nvme().ok_or(Status::INTERNAL)?;
        let controller = Controller::new(id, service, keep_alive, now);
        connection.administrates(controller.with_queues(queues).with_host(connect.host_id));
        Ok(())
    }

    /// A number that no controller of the subsystem has: the node's in the high byte, so that those of other nodes differ.
    fn next_controller(&mut self, subsystem: &str) -> Option<u16> {
        let of_it = |client: &Client| match &client.claim {
            Some(claim) => claim.subsystem == subsystem,
            None => subsystem == DISCOVERY_NQN,
        };
        let clients = self.clients.iter().filter(|(_, client)| of_it(client));
        let used: Vec<u16> = clients.filter_map(|(_, client)| client.controller).collect();
        for _ in 0..=u8::MAX {
            self.hosts.controllers = self.hosts.controllers % 254 + 1;
            let id = (self.config.node.0 & 0xff) << 8 | self.hosts.controllers;
            // The largest numbers mean something else.
            if id < 0xfff0 && !used.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    fn open_for_host(&mut self, key: Key, resource: Key) {
        let Some(entry) = self.resources.get_mut(resource) else { return };
        let share = entry.client_share(&self.client_pool);
        let Some(client) = self.clients.get_mut(key) else { return };
        client.connection.draw_from(share);
        client.opened = Some((resource, VolumeId(0)));
        let is_queue = client.connection.nvme().is_some_and(|one| one.controller().is_none());
        self.know_client(key);
        self.count_client(resource, true);
        if is_queue {
            self.choose_home(key, resource);
        }
    }

    /// A connection of a host ended; with that of its administration all others of its controller do.
    pub(super) fn host_went(&mut self, mut client: Client, why: &str) {
        if client.is_watched_host() {
            self.hosts.go();
        }
        let way = client.way;
        let Some(connection) = client.connection.nvme() else { return };
        if let Some(way) = way.filter(|_| connection.controller().is_some()) {
            self.drop_queues_of(way, None, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Duration, Instant};
    use nvme::{Controller, Service};

    use super::Expiry;

    #[test]
    fn a_host_is_silent_that_was_not_heard_for_as_long_as_it_said_last() {
        let heard = Instant(1) + Duration::from_secs(100);
        let expiry = |keep_alive| {
            let service = Service::Discovery { entries: Vec::new(), generation: 1 };
            Expiry::of(&Controller::new(1, service, keep_alive, heard))
        };
        for seconds in [1, 120] {
            let keep_alive = Duration::from_secs(seconds);
            let expiry = expiry(keep_alive).expect("it said so");
            let silent = |after| expiry.is_silent(heard + after);
            assert!(!silent(Duration(keep_alive.0 - 1)) && silent(keep_alive), "{seconds}");
        }
        assert_eq!(expiry(Duration(0)), None);
    }
}

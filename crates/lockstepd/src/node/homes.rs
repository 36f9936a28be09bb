//! Clients of further threads: how they come there, and what the first thread and their home tell each other.
//!
//! A client is the first thread's until it has opened something. Then it has a *home*, the thread that serves it until it goes:
//! its socket, its protocol and the names of its requests are there. On the first thread an entry stays that counts for it,
//! and knows what only the first thread decides about: controllers, proofs, namespaces, the resource's clients.
//!
//! Always:
//! - A client moves while nothing of it is open, on its way to it, or waited for.
//! - It counts on the first thread until its home has said that its socket is closed.
//! - What a home asks reaches the machines of the life that it knows. A thread that has not begun that life yet keeps it until
//!   then; while machines are exchanged, homes keep what their clients ask.
//! - An answer is given when its home has heard of every configuration that the shard had heard of: who is told of a loss by
//!   one sees nothing of what is there since.
//! - All threads know that a client was answered before it is: at a loss of all caches either all clients get errors, or none
//!   was told anything.
//!
//! Not here: sockets and requests (`clients`), exchanging machines (`recast`), what the first thread tells hosts (`hosts`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{AnswerError, Epoch, Instant, RequestId, ReservationCommand, ResourceId, VolumeId, Way};
use export::{Served, Tag};
use nvme::{Credentials, Namespace, Report, Secret, Service, Status};
use sys::{Buffer, Socket};

use super::Node;
use super::clients::{Asked, Client};
use super::held::{self, Held};
use super::hosts::{Claim, Expiry, Turn};
use super::threads::Parcel;
use super::unread::Unread;
use crate::log::{debug, info};
use crate::slab::Key;

/// Of a request's number the bits that say which thread asks; below them no table is so large.
const THREAD_SHIFT: u32 = 28;

/// A client on its way to its home.
pub(super) struct Guest {
    /// Whose it is on the first thread.
    origin: Key,
    life: u64,
    volume: VolumeId,
    socket: Socket,
    connection: Served,
    controller: Option<u16>,
    way: Option<Way>,
    claim: Option<Claim>,
    expiry: Option<Expiry>,
    turn: Turn,
    /// What has come of it, and was not looked at, lay so long on the first thread.
    unread: Unread,
}

/// What the first thread tells a client's home.
pub(super) enum Word {
    /// It is to go; why.
    Go(String),
    /// The resource is not what it was.
    Change(Service),
    /// What becomes of what it asks.
    Turn(Turn),
    /// Its controller is given up then.
    Expires(Option<Expiry>),
    /// What is known of its host is another.
    Renew(Credentials),
    /// What it asked for holes.
    Holes(Tag, Vec<Range<u64>>),
    /// How its command about reservations went.
    Reserved(Tag, Result<Option<Report>, Status>),
}

/// What a home asks of the first thread for a client.
pub(super) enum Wish {
    /// Which parts are holes.
    Holes(Tag, Range<u64>),
    /// To change or report reservations.
    Reserve(Tag, VolumeId, ReservationCommand),
    /// Its host has proved again who it is.
    Proved(Secret),
}

/// An answer that another thread's shard has given.
pub(super) struct FarAnswer {
    id: RequestId,
    result: Result<(), AnswerError>,
    bytes: Option<Buffer>,
    /// Of which machines, and how many configurations they had heard of.
    life: u64,
    installs: u64,
}

/// An answer without an error, which all threads have to know of before its client does.
struct Untold {
    asked: Asked,
    buffer: Option<Buffer>,
    /// Configurations that were heard of when it came.
    installs: u64,
}

/// Machines are about to be exchanged, or just are.
struct Holding {
    resource: ResourceId,
    round: u64,
    /// That nothing is open any more was said.
    said: bool,
    asks: Vec<Held>,
}

/// Of a thread: what it has to do with clients of others, or of the first.
#[derive(Default)]
pub(crate) struct Homes {
    /// Clients of this thread by what they are on the first.
    guests: BTreeMap<Key, Key>,
    /// Resources whose machines are about to be exchanged.
    holding: BTreeMap<Key, Holding>,
    /// What is for lives that have not begun here, and since when.
    early: Vec<(Instant, Parcel)>,
    /// What is for clients that have to hear something before.
    ahead: Vec<FarAnswer>,
    untold: Vec<Untold>,
    /// Counts exchanges of machines that were begun.
    round: u64,
}

/// What the first thread knows of a client that is at home elsewhere.
pub(super) struct Stay {
    home: u16,
    /// What its host was told last.
    namespaces: Option<Vec<Namespace>>,
    turn: Turn,
    expiry: Option<Expiry>,
    /// It was told to let its client go: what it handed on before comes too late.
    leaves: bool,
}

/// A request's number, as every thread and every node has it.
pub(super) fn request_id(thread: u16, asked: Key) -> RequestId {
    RequestId(asked.number() | u64::from(thread) << THREAD_SHIFT)
}

/// Who asked, and as what.
fn asker_of(id: RequestId) -> (u16, Key) {
    let low = id.0 & u64::from(u32::MAX);
    let thread = u16::try_from(low >> THREAD_SHIFT).expect("four bits");
    (thread, Key::from_number(id.0 & !(u64::from(thread) << THREAD_SHIFT)))
}

impl Node {
    /// Where a client that has just opened this is to be at home, if not here.
    pub(super) fn home_for(&mut self, resource: Key) -> Option<u16> {
        let count = self.threads.count();
        let entry = self.resources.get_mut(resource).filter(|_| count > 1)?;
        let first = self.threads.of_shard(entry.id, 0);
        let turn = entry.homes % count;
        // With one shard a request goes no way at all.
        if entry.shard_count() > 1 {
            entry.homes = entry.homes.wrapping_add(1);
        }
        Some((first + turn) % count).filter(|thread| *thread != 0)
    }

    /// Takes a client to its home, if nothing of it is open, or on its way.
    pub(super) fn send_home(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let (Some(home), Some((resource, volume))) = (client.bound_for, client.opened) else {
            return;
        };
        let Some(entry) = self.resources.get(resource) else { return };
        if !client.is_quiet() || client.connection.is_busy() {
            return;
        }
        let Some(socket) = client.socket.take() else { return };
        client.bound_for = None;
        let (kind, is_watched_host) = (client.connection.kind(), client.is_watched_host());
        let mut connection = std::mem::replace(&mut client.connection, Served::Elsewhere(kind));
        let is_nvme = connection.nvme().is_some();
        let (controller, way, claim) = (client.controller, client.way, client.claim.clone());
        let (life, turn) = (entry.life, client.turn);
        client.unread.pause(self.hands.now());
        let unread = client.unread;
        let expiry = way.filter(|_| is_nvme).and_then(|way| self.expiry_of(way));
        if let Some(client) = self.clients.get_mut(key) {
            client.stay = Some(Stay { home, namespaces: None, turn, expiry, leaves: false });
        }
        // Those that move without a controller are still looked after here.
        if is_watched_host && is_nvme {
            self.hosts.go();
        }
        let guest = Guest {
            origin: key,
            life,
            volume,
            socket,
            connection,
            controller,
            way,
            claim,
            expiry,
            turn,
            unread,
        };
        self.tell(home, Parcel::Guest(Box::new(guest)));
    }

    /// A client comes home.
    pub(super) fn welcome(&mut self, guest: Guest) {
        let now = self.hands.now();
        let Guest { origin, life, volume, socket, mut connection, .. } = guest;
        let Some(resource) = self.resource_of_life(life) else {
            self.hands.close(&socket);
            info!("{} went: its resource is gone", connection.kind());
            return self.tell(0, Parcel::Went { client: origin, is_fault: false });
        };
        let entry = self.resources.get_mut(resource).expect("just found");
        let share = entry.client_share(&self.client_pool);
        connection.moves_to(self.client_inputs.clone(), share);
        let opened = Some((resource, volume));
        let mut client = Client::new(Some(socket), connection, opened, false, now);
        client.origin = Some(origin);
        client.controller = guest.controller;
        client.way = guest.way;
        client.claim = guest.claim;
        client.expiry = guest.expiry;
        client.turn = guest.turn;
        client.unread = guest.unread;
        if client.is_watched_host() {
            self.hosts.come(now);
        }
        let (name, kind) = (self.name_of(resource), client.connection.kind());
        debug!("{name}: {kind} is at home on thread {}", self.threads.number());
        let key = self.clients.insert(client);
        self.homes.guests.insert(origin, key);
        self.stir_client(key);
    }

    /// A client of this thread has gone, which is the home of the first thread's `origin`.
    pub(super) fn tell_gone(&mut self, origin: Key, is_fault: bool) {
        self.homes.guests.remove(&origin);
        self.tell(0, Parcel::Went { client: origin, is_fault });
    }

    /// A client's home says that it has gone.
    pub(super) fn on_gone(&mut self, key: Key, is_fault: bool) {
        let Some(client) = self.clients.remove(key) else { return };
        if client.moves() {
            self.hosts.go();
        }
        self.withdraw_commands_of(key);
        self.visitors.faults += u64::from(is_fault);
        if let Some((resource, _)) = client.opened {
            self.count_client(resource, false);
        }
        if let Some(way) = client.way.filter(|_| client.controller.is_some()) {
            self.stir_awaiting(way);
        }
    }

    /// Sends a word to a client's home; whether it has one that is not here.
    pub(super) fn tell_home(&mut self, client: Key, word: Word) -> bool {
        let stay = self.clients.get(client).and_then(|entry| entry.stay.as_ref());
        let Some(home) = stay.map(|stay| stay.home) else { return false };
        self.tell(home, Parcel::Word { client, word });
        true
    }

    /// Tells a client's home to let it go; whether it has one that is not here.
    pub(super) fn send_off(&mut self, client: Key, why: &str) -> bool {
        if let Some(stay) = self.clients.get_mut(client).and_then(|entry| entry.stay.as_mut()) {
            stay.leaves = true;
        }
        self.tell_home(client, Word::Go(why.to_owned()))
    }

    /// The first thread has something for a client of this one.
    pub(super) fn on_word(&mut self, origin: Key, word: Word) {
        let Some(&key) = self.homes.guests.get(&origin) else { return };
        match word {
            Word::Go(why) => return self.drop_client(key, &why),
            Word::Change(service) => {
                let connection =
                    self.clients.get_mut(key).and_then(|client| client.connection.nvme());
                if let Some(connection) = connection.filter(|one| one.serves_other(&service)) {
                    connection.change(&service);
                }
            }
            Word::Turn(turn) => self.turn_host(key, turn),
            Word::Expires(expiry) => {
                if let Some(client) = self.clients.get_mut(key) {
                    client.expiry = expiry;
                }
            }
            Word::Renew(credentials) => {
                let connection =
                    self.clients.get_mut(key).and_then(|client| client.connection.nvme());
                if let Some(connection) = connection {
                    connection.renew(&credentials);
                }
            }
            Word::Holes(tag, holes) => self.tell_holes(key, tag, &holes),
            Word::Reserved(tag, result) => self.tell_reserved(key, tag, result),
        }
        self.stir_client(key);
    }

    /// What this thread cannot do for a client of its own. Gives the wish back if it is the first, which can.
    pub(super) fn wish_of_first(&mut self, key: Key, wish: Wish) -> Option<Wish> {
        let origin = self.clients.get(key).and_then(|client| client.origin);
        let Some(client) = origin else { return Some(wish) };
        self.tell(0, Parcel::Wish { client, wish });
        None
    }

    /// A home has such a wish.
    pub(super) fn on_wish(&mut self, client: Key, wish: Wish) {
        let Some(stay) = self.clients.get(client).map(|entry| entry.stay.as_ref()) else { return };
        // As if its client's socket had been closed unread.
        if stay.is_some_and(|stay| stay.leaves) {
            return;
        }
        let is_away = stay.is_some_and(|stay| stay.turn == Turn::Away);
        match wish {
            Wish::Reserve(tag, ..) if is_away => {
                self.tell_reserved(client, tag, Err(Status::PATH_ERROR));
            }
            Wish::Holes(tag, range) => self.look_for_holes(client, tag, range),
            Wish::Reserve(tag, volume, command) => {
                self.reserve_for_host(client, tag, volume, command);
            }
            Wish::Proved(secret) => self.on_proved(client, secret),
        }
    }

    /// Tells the home of a queue what its host is to know of the resource, and until when it is waited for.
    pub(super) fn tell_stay(&mut self, key: Key, expiry: Option<Expiry>) {
        let Some(client) = self.clients.get(key) else { return };
        let Some((resource, _)) = client.opened.filter(|_| client.controller.is_some()) else {
            return;
        };
        let service = self.resources.get(resource).map(|one| self.service_of(one));
        let turn = self.turn_of(resource);
        let Some(stay) = self.clients.get_mut(key).and_then(|client| client.stay.as_mut()) else {
            return;
        };
        let turns = std::mem::replace(&mut stay.turn, turn) != turn;
        let is_later = std::mem::replace(&mut stay.expiry, expiry) != expiry;
        let changed =
            service.filter(|service| stay.namespaces.as_deref() != Some(service.namespaces()));
        if let Some(service) = &changed {
            stay.namespaces = Some(service.namespaces().to_vec());
        }
        if turns {
            if turn == Turn::Away {
                self.withdraw_commands_of(key);
            }
            self.tell_home(key, Word::Turn(turn));
        }
        if is_later {
            self.tell_home(key, Word::Expires(expiry));
        }
        if let Some(service) = changed {
            self.tell_home(key, Word::Change(service));
        }
    }

    // Requests.

    /// Whether machines of this life have not begun here. The first thread begins them.
    pub(super) fn is_early(&self, life: u64) -> bool {
        life > self.lives && !self.threads.is_first()
    }

    /// A parcel is about such machines: it is kept until they begin.
    pub(super) fn keep_early(&mut self, parcel: Parcel) {
        self.homes.early.push((self.hands.now(), parcel));
    }

    /// A life has begun on this thread.
    pub(super) fn take_early(&mut self) {
        let now = self.hands.now();
        for (since, parcel) in std::mem::take(&mut self.homes.early) {
            match parcel {
                Parcel::Request { life, shard, id, request, bytes, came } => {
                    let waited = now.since(since);
                    match held::after(request, waited) {
                        Some(request) => {
                            // Of what is left of its way it was not told yet.
                            let came = came + waited;
                            let parcel = Parcel::Request { life, shard, id, request, bytes, came };
                            self.on_parcel(parcel);
                        }
                        None => self.answer_late(life, id),
                    }
                }
                other => self.on_parcel(other),
            }
        }
    }

    /// A write that another thread handed on waited here for too long.
    pub(super) fn answer_late(&mut self, life: u64, id: RequestId) {
        if let Some(key) = self.resource_of_life(life) {
            self.on_answer(key, id, Err(AnswerError::Path), None);
        }
    }

    /// A shard of this thread has answered.
    pub(super) fn on_answer(
        &mut self,
        key: Key,
        id: RequestId,
        result: Result<(), AnswerError>,
        buffer: Option<Buffer>,
    ) {
        let (thread, asked) = asker_of(id);
        if self.threads.is(thread) {
            let request = self.asked.remove(asked).expect("a request is answered once");
            self.answer_client(request, result, buffer);
            return self.free_room_of(asked);
        }
        let Some(entry) = self.resources.get(key) else { return };
        let (life, installs) = (entry.life, entry.installs);
        let answer = FarAnswer { id, result, bytes: buffer, life, installs };
        self.tell(thread, Parcel::Answer(answer));
    }

    /// A shard of another thread has answered.
    pub(super) fn on_far_answer(&mut self, answer: FarAnswer) {
        let (_, asked) = asker_of(answer.id);
        // If the resource has ended meanwhile, nobody asks any more.
        let Some(&Asked { resource, .. }) = self.asked.get(asked) else { return };
        let entry = self.resources.get(resource).filter(|entry| entry.life == answer.life);
        if entry.is_some_and(|entry| entry.installs < answer.installs) {
            return self.homes.ahead.push(answer);
        }
        // It was given before all caches were lost.
        let is_lost = entry.is_some_and(|entry| answer.installs < entry.lost_at);
        let result = if is_lost { Err(AnswerError::SessionLost) } else { answer.result };
        if let Some(request) = self.asked.remove(asked) {
            self.answer_client(request, result, answer.bytes);
            self.free_room_of(asked);
        }
    }

    /// What clients with several ways asked, and found no room before another thread, is not handed over once they have left
    /// here: they may have asked elsewhere since, and what comes late would count as newer than that.
    pub(super) fn leave_out_the_late(&mut self) {
        if !self.threads.holds_parcels() {
            return;
        }
        let (asked, clients) = (&self.asked, &self.clients);
        let late = self
            .threads
            .take_late(|id| asked.get(asker_of(id).1).is_none_or(|asked| asked.is_left(clients)));
        for id in late {
            let (_, key) = asker_of(id);
            if let Some(request) = self.asked.remove(key) {
                self.answer_client(request, Err(AnswerError::Path), None);
                self.free_room_of(key);
            }
        }
    }

    /// Whether a client may be told something without an error: all threads know that one was, or will before the next loss.
    pub(super) fn may_tell(&mut self, resource: Key) -> bool {
        let untold = self.resources.get(resource).filter(|entry| !entry.told);
        let Some(life) = untold.map(|entry| entry.life) else { return true };
        if self.threads.is_first() {
            self.let_tell(life);
        }
        self.threads.is_first()
    }

    /// Keeps such an answer until all threads know.
    pub(super) fn keep_untold(&mut self, asked: Asked, buffer: Option<Buffer>) {
        let Some(entry) = self.resources.get(asked.resource) else { return };
        let (life, installs) = (entry.life, entry.installs);
        let waits = self.homes.untold.iter().any(|one| one.asked.resource == asked.resource);
        self.homes.untold.push(Untold { asked, buffer, installs });
        if !waits {
            self.tell(0, Parcel::Tells { life });
        }
    }

    /// A client of some thread is about to be answered.
    pub(super) fn let_tell(&mut self, life: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        if let Some(entry) = self.resources.get_mut(key) {
            entry.told = true;
        }
        // Also if that was known: who asks waits for it.
        self.tell_others(|| Parcel::Told { life });
    }

    /// All threads know of it.
    pub(super) fn on_told(&mut self, life: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        let Some(entry) = self.resources.get_mut(key) else { return };
        entry.told = true;
        let lost_at = entry.lost_at;
        let all = std::mem::take(&mut self.homes.untold);
        let (told, left) = all.into_iter().partition(|one| one.asked.resource == key);
        self.homes.untold = left;
        for Untold { asked, buffer, installs } in told {
            // All caches were lost meanwhile.
            let result = if installs < lost_at { Err(AnswerError::SessionLost) } else { Ok(()) };
            self.answer_client(asked, result, buffer);
        }
    }

    /// This thread has heard of a configuration: what waited for that goes on.
    pub(super) fn take_ahead(&mut self) {
        for answer in std::mem::take(&mut self.homes.ahead) {
            self.on_far_answer(answer);
        }
    }

    // Machines that are exchanged.

    /// Has all homes keep what is asked from now on. The number of this exchange, and whom to wait for.
    pub(super) fn hold_homes(&mut self, life: u64) -> (u64, BTreeSet<u16>) {
        self.homes.round += 1;
        let round = self.homes.round;
        self.tell_others(|| Parcel::Hold { life, round });
        (round, (1..self.threads.count()).collect())
    }

    /// It is given up.
    pub(super) fn release_homes(&mut self, life: u64) {
        self.tell_others(|| Parcel::Release { life });
    }

    /// The first thread is about to exchange machines.
    pub(super) fn hold_here(&mut self, life: u64, round: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        let resource = self.resources.get(key).expect("just found").id;
        let holding = Holding { resource, round, said: false, asks: Vec::new() };
        self.homes.holding.insert(key, holding);
    }

    /// It will not.
    pub(super) fn release_here(&mut self, life: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        let Some(holding) = self.homes.holding.remove(&key) else { return };
        self.let_go(holding.asks);
    }

    /// Keeps what a client asks for machines to come; gives it back if there are none to come.
    pub(super) fn hold_at_home(&mut self, resource: Key, held: Held) -> Option<Held> {
        match self.homes.holding.get_mut(&resource) {
            Some(holding) => {
                holding.asks.push(held);
                None
            }
            None => Some(held),
        }
    }

    /// Says of which resources nothing is open here any more.
    pub(super) fn say_held(&mut self) {
        let thread = self.threads.number();
        let mut held = Vec::new();
        for (key, holding) in &mut self.homes.holding {
            let life = self.resources.get(*key).map(|entry| entry.life);
            let Some(life) = life.filter(|_| !holding.said) else { continue };
            let untold = self.homes.untold.iter().any(|one| one.asked.resource == *key);
            if !untold && !self.asked.iter().any(|(_, asked)| asked.resource == *key) {
                holding.said = true;
                held.push((life, holding.round));
            }
        }
        for (life, round) in held {
            self.tell(0, Parcel::Held { thread, life, round });
        }
    }

    /// The machines of a resource have ended on this thread: whose clients were not sent away stay for the next.
    pub(super) fn keep_for_next(&mut self, key: Key) {
        self.homes.untold.retain(|one| one.asked.resource != key);
        let stays = |client: &Client| client.opened.is_some_and(|(of, _)| of == key);
        if !self.clients.iter().any(|(_, client)| stays(client)) {
            self.homes.holding.remove(&key);
        }
    }

    /// New machines have taken the place of others, under which this was known of losses.
    pub(super) fn go_on_since(&mut self, life: u64, lost: Epoch, told: bool) {
        let key = self.resource_of_life(life);
        if let Some(entry) = key.and_then(|key| self.resources.get_mut(key)) {
            entry.lost = entry.lost.max(lost);
            entry.told |= told;
        }
    }

    /// New machines of a resource have begun: what was kept goes to them.
    pub(super) fn go_on_with(&mut self, new: Key) {
        let Some(id) = self.resources.get(new).map(|entry| entry.id) else { return };
        let kept = self.homes.holding.iter();
        let kept = kept.filter(|(key, holding)| holding.resource == id && **key != new);
        let kept: Vec<Key> = kept.map(|(key, _)| *key).collect();
        for old in kept {
            let Some(holding) = self.homes.holding.remove(&old) else { continue };
            self.move_clients(old, new);
            self.let_go(holding.asks);
        }
    }
}

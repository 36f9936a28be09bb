//! From nothing to the first word said: start of a process, sessions, introductions.
//!
//! Always: nothing is sent to a peer before this life's record is durable; a voter that restarts acts
//! as if its lease slot were taken, unless it never promised anybody anything.
//!
//! Not here: what is done with what peers say about the register (`register`), whether a disk went back in
//! time (`lives`).

use super::store::Effect;
use super::{Known, Member, Out, Peer, PeerHello, Phase, Slot, Sync};
use crate::door::{MemberOutput, Notice};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, Incarnation, Instant, NodeId, SessionId, VoterId};
use wire::{Configuration, MemberMessage};

/// Peers of one resource that are remembered, at most: members and clients. 64.
pub(super) const PEERS_MAX: usize = 64;

impl Peer {
    fn new(now: Instant) -> Peer {
        Peer {
            requires: 0,
            session: None,
            since: now,
            hello: None,
            process: 0,
            learned: Epoch(0),
            answered: now,
            heard: None,
            wants: 0,
            ready: None,
            sync: Sync::default(),
            flushed: BTreeMap::new(),
            failed: None,
            failures: 0,
            late: None,
            worthless: None,
            taught: now,
            split: None,
        }
    }
}

impl Member {
    /// What the record and the resource file say.
    pub(super) fn inherit(&mut self, bootstrap: Option<Configuration>) {
        if let Some(record) = &self.record {
            self.found_writes = self.found_writes.saturating_add(record.stores);
            self.store.durable = record.stores;
            self.slots.clone_from(&record.slots);
            self.slot_generation = record.slot_generation;
            self.seen = record.seen.iter().map(|seen| (super::lives::key(seen), *seen)).collect();
            self.round_seen = record.promised.round;
            if record.promised != Ballot::default() {
                // Whoever else held a lease here before that promise, or that accept, has none now: to the
                // one a promise was given when theirs had run out, and a majority promised before the other.
                let until = self.now + self.timing.voter_lease();
                let ballot = record.promised;
                self.slot = Slot { holder: Some(ballot.node), ballot, until };
            }
            if let Some((ballot, configuration)) = &record.committed {
                let configuration = Arc::new((**configuration).clone());
                self.known = Some(Known { ballot: *ballot, configuration });
            }
        }
        self.inherit_fork();
        if self.known.is_none()
            && let Some(configuration) = bootstrap
        {
            let configuration = Arc::new(configuration);
            self.known = Some(Known { ballot: Ballot::default(), configuration });
        }
        if let Some(known) = self.known.clone() {
            self.round_seen = self.round_seen.max(known.ballot.round);
            self.update_slots(&known.configuration, false);
        }
    }

    /// A fork that this voter alone decides is decided by the record that says so.
    fn inherit_fork(&mut self) {
        let fork = self.known.as_ref().map_or(0, |known| known.configuration.fork);
        let (node, Some(record)) = (self.node, self.record.as_mut()) else { return };
        if let Some((ballot, value)) = &record.accepted
            && super::operations::is_lone_fork(value, node, record.voter, fork)
        {
            let configuration = Arc::new((**value).clone());
            self.known = Some(Known { ballot: *ballot, configuration });
            record.committed.clone_from(&record.accepted);
        }
    }

    /// Whether every shard has recorded what it inherited.
    pub(super) fn is_recorded_by_shards(&self) -> bool {
        self.record.is_none() || self.shards.iter().all(|shard| shard.started)
    }

    /// One write of the record begins this life.
    pub(super) fn store_start(&mut self, out: &mut Out) {
        self.phase = Phase::Storing;
        if let Some(record) = self.record.as_mut() {
            record.log_half ^= 1;
            record.clean = false;
        }
        self.begin_life();
        if !self.connected().is_empty() {
            self.name_life();
        }
        self.persist(Effect::Started, out);
    }

    pub(super) fn on_start_stored(&mut self, out: &mut Out) {
        if !self.is_life_named() && !self.connected().is_empty() {
            self.name_life();
            return self.persist(Effect::Started, out);
        }
        self.phase = Phase::Running;
        self.introduce(out);
        if let Some(known) = self.known.clone() {
            let slots = self.slots.clone();
            self.install(known.configuration, slots, out);
        }
    }

    pub(super) fn on_peer_up(&mut self, peer: NodeId, session: SessionId, out: &mut Out) {
        if peer == self.node {
            return;
        }
        if !self.peers.contains_key(&peer) && self.peers.len() >= PEERS_MAX {
            self.peers.retain(|_, known| known.session.is_some());
            if self.peers.len() >= PEERS_MAX {
                out.push(MemberOutput::Mark("member: too many peers"));
                return;
            }
        }
        if let Some(old) = self.peers.get(&peer).and_then(|known| known.session) {
            self.on_peer_down(peer, old, out);
        }
        let process = self.peers.get(&peer).map_or(0, |known| known.process);
        let fresh =
            Peer { session: Some(session), process, heard: Some(self.now), ..Peer::new(self.now) };
        self.peers.insert(peer, fresh);
        if self.phase != Phase::Running {
            return;
        }
        if self.is_life_named() {
            return self.say_hello(peer, out);
        }
        // The first that hear of this life: it must be on the record before.
        self.name_life();
        self.phase = Phase::Storing;
        self.persist(Effect::Named, out);
    }

    pub(super) fn on_life_named(&mut self, out: &mut Out) {
        self.phase = Phase::Running;
        self.introduce(out);
        // Hellos that came meanwhile were not answered.
        self.tell_all_learned(out);
    }

    pub(super) fn on_peer_down(&mut self, peer: NodeId, session: SessionId, out: &mut Out) {
        let now = self.now;
        if self.peers.get(&peer).is_none_or(|known| known.session != Some(session)) {
            return;
        }
        self.stop_sync(peer, out);
        if let Some(known) = self.peers.get_mut(&peer) {
            *known = Peer { process: known.process, ..Peer::new(now) };
        }
    }

    /// Says to everybody who this node is.
    pub(super) fn introduce(&mut self, out: &mut Out) {
        if self.phase != Phase::Running {
            return;
        }
        for peer in self.connected() {
            self.say_hello(peer, out);
        }
    }

    /// Who this node is, and what it heard of the peer that the peer did not tell. What it decided alone follows when it
    /// is on the record.
    pub(super) fn say_hello(&mut self, peer: NodeId, out: &mut Out) {
        let (voter, incarnation) = match &self.record {
            Some(record) if !self.store.broken => (record.voter, record.incarnation),
            _ => (VoterId(0), Incarnation(0)),
        };
        let later = self.tells_later();
        if later {
            self.teach_when_stored(peer);
        }
        let known = self.known.as_ref().filter(|_| !later);
        let known = known.map(|known| (known.ballot, Box::new((*known.configuration).clone())));
        let hello = MemberMessage::Hello {
            known,
            voter,
            incarnation: if self.attached { incarnation } else { Incarnation(0) },
            lives: self.record.as_ref().map_or_else(Vec::new, |record| record.lives.clone()),
            seen: self.missing_of(peer),
            process: self.process,
            attached: self.attached,
            feature_level: self.feature_level,
        };
        self.send(peer, hello, out);
        if let Some(heard) = self.heard() {
            self.send(peer, heard, out);
        }
    }

    pub(super) fn on_hello(&mut self, peer: NodeId, hello: MemberMessage, out: &mut Out) {
        let MemberMessage::Hello {
            known,
            voter,
            incarnation,
            lives,
            seen,
            process,
            attached,
            feature_level,
        } = hello
        else {
            return;
        };
        self.renounce(peer, voter);
        let epoch = known.as_ref().map_or(Epoch(0), |(_, configuration)| configuration.epoch);
        let rolled_back = self.meet_lives(peer, voter, &lives, epoch).is_some();
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let first = entry.hello.is_none();
        let changed = entry
            .hello
            .as_ref()
            .is_some_and(|old| old.voter != voter || old.incarnation != incarnation);
        if entry.process != process && entry.process != 0 {
            // It restarted: whatever it was, it is not primary now, until it is heard of.
            entry.heard = None;
        }
        entry.process = process;
        let lives = lives.into();
        entry.hello = Some(PeerHello {
            voter,
            incarnation,
            attached,
            lives,
            epoch,
            rolled_back,
            is_another: false,
            feature_level,
        });
        if changed {
            entry.ready = None;
            self.stop_sync(peer, out);
        }
        // One that cannot vote any more, its metadata being out of reach, did mean what it said.
        if rolled_back || (voter != VoterId(0) && self.counts_another(peer, voter)) {
            self.uncount(peer, out);
        }
        if self.phase != Phase::Running {
            return;
        }
        if rolled_back {
            out.push(MemberOutput::Mark("member: a peer's disk went back in time"));
            out.push(MemberOutput::Notice(Notice::WentBack { node: peer }));
            self.say_hello(peer, out);
        }
        if let Some(seen) = seen {
            self.hear_of_own(&seen, out);
        }
        self.exchange(peer, first, known, out);
    }

    /// Both ends of a session come to know the newer configuration.
    fn exchange(
        &mut self,
        peer: NodeId,
        first: bool,
        known: Option<(Ballot, Box<Configuration>)>,
        out: &mut Out,
    ) {
        let theirs = known.as_ref().map(|(_, configuration)| super::rank(configuration));
        if let Some((ballot, configuration)) = known {
            self.meet(peer, ballot, configuration, out);
        }
        let ours = self.known.as_ref().map(|known| super::rank(&known.configuration));
        if ours > theirs {
            self.teach(peer, out);
        }
        let comes = |known: &Known| known.configuration.is_in_sync(peer);
        if first && self.want.lacks_copies && self.known.as_ref().is_some_and(comes) {
            self.want.lacks_copies = false;
            self.want.hold_until = self.now.max(self.leased_until);
        }
        if first {
            self.tell_learned(peer, out);
        }
    }

    /// Sends the newest configuration known here: if it was decided here alone, once it is on the record. What was decided alone
    /// is known by the record only of who decided it: a process that finds it accepted there, and no more, lets it go when
    /// it hears of another side, and others must not be on this one then.
    pub(super) fn teach(&mut self, peer: NodeId, out: &mut Out) {
        if self.tells_later() {
            return self.teach_when_stored(peer);
        }
        let Some(known) = &self.known else { return };
        let learn = MemberMessage::Learn {
            ballot: known.ballot,
            configuration: Box::new((*known.configuration).clone()),
        };
        self.send(peer, learn, out);
        // Before that, one on another side may not have known that they parted.
        self.tell_changed(peer, out);
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.taught = now;
        }
    }

    /// Whether what is known here is not to be told yet: it was decided here, alone.
    pub(super) fn tells_later(&self) -> bool {
        let known = self.known.as_ref().map(|known| known.configuration.epoch);
        self.decided_alone.is_some() && self.decided_alone == known && self.has_install_to_store()
    }

    /// When a peer that is behind is told again what is known here.
    pub(super) fn teaches_at(&self, peer: &Peer) -> Option<Instant> {
        let known = self.known.as_ref()?;
        let behind = peer.hello.is_some() && peer.learned < known.configuration.epoch;
        behind.then(|| peer.taught + Duration(self.timing.heartbeat.0.saturating_mul(4)))
    }

    /// Tells those peers that are behind and that `may` be told, not too often.
    pub(super) fn teach_behind(&mut self, may: impl Fn(&Peer) -> bool, out: &mut Out) {
        let due = |peer: &Peer| self.teaches_at(peer).is_some_and(|at| self.now >= at);
        let peers = self.peers.iter().filter(|(_, peer)| may(peer) && due(peer));
        for peer in peers.map(|(&node, _)| node).collect::<Vec<_>>() {
            self.teach(peer, out);
        }
    }

    /// Says what every shard of this node acts on.
    pub(super) fn tell_learned(&self, peer: NodeId, out: &mut Out) {
        let epoch = self.acts_on();
        if epoch > Epoch(0) {
            self.send(peer, MemberMessage::Learned { epoch }, out);
        }
    }

    /// What every shard here acts on; 0 as long as it is of a history that was given up.
    pub(super) fn acts_on(&self) -> Epoch {
        if self.installed < self.side_from { Epoch(0) } else { self.installed }
    }
}

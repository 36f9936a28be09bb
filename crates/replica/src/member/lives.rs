//! Disks that went back in time: what others heard of a node must be in the history that its disk tells.
//!
//! Always:
//! - a life of a process is named on the record, with its random number, before anybody hears of it; a life
//!   of which nobody can have heard is not named, so that none is forgotten for being alone;
//! - what was heard of a life that is not in the history stands until the node takes a new identity: no
//!   number of starts, and nothing that others tell, makes up for it;
//! - an identity that was given up is never believed again.
//!
//! Not here: what follows for votes and copies (`proposer`, `peers`), generations of histories without quorum
//! (`lineage`).

use super::lineage::is_off;
use super::start::PEERS_MAX;
use super::{Member, Out, Phase};
use crate::door::{MemberOutput, Notice};
use crate::member::store::Effect;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, Instant, NodeId, SessionId, VoterId};
use wire::{Configuration, LIVES_MAX, Life, MemberMessage, Seen};

/// Writes of a life that has not ended, as far as its record knows.
const OPEN: u64 = u64::MAX;
/// Lives of one identity that are remembered, at most: those that were heard of since it was met last.
const LIVES_HEARD_MAX: usize = 4;

/// By what a remembered life is found.
pub(super) fn key(seen: &Seen) -> (NodeId, VoterId, u64) {
    (seen.node, seen.voter, seen.life.process)
}

/// Whether a disk that tells these `lives`, and whose node knows the configuration of `epoch`, has gone back
/// to before what was heard of it.
pub(super) fn is_before(lives: &[Life], epoch: Epoch, seen: &Seen) -> bool {
    let same = |life: &&Life| (life.number, life.process) == (seen.life.number, seen.life.process);
    if let Some(life) = lives.iter().find(same) {
        return life.writes < seen.life.writes;
    }
    // Who was away for so many lives cannot tell. It is believed if it was taught a later configuration than
    // was known to whoever heard of it: a primary did that, and has told what it heard of it since.
    let too_old = lives.len() >= LIVES_MAX
        && lives.first().is_some_and(|life| seen.life.number < life.number);
    !(too_old && epoch > seen.epoch)
}

/// Of an identity that was given up for good: in nobody's history.
const GIVEN_UP: Life = Life { number: u64::MAX, process: 0, writes: u64::MAX };

impl Member {
    fn own_epoch(&self) -> Epoch {
        self.known.as_ref().map_or(Epoch(0), |known| known.configuration.epoch)
    }

    /// The life before has ended with what was found of it.
    pub(super) fn begin_life(&mut self) {
        let Some(record) = self.record.as_mut() else { return };
        record.life += 1;
        // Who started this process saw to it (`start`).
        record.marked = true;
        if let Some(last) = record.lives.last_mut()
            && last.writes == OPEN
        {
            last.writes = self.found_writes;
        }
    }

    /// Names the present life on the record, which must be stored before anybody hears of it.
    pub(super) fn name_life(&mut self) {
        let Some(record) = self.record.as_mut() else { return };
        if record.lives.len() >= LIVES_MAX {
            record.lives.remove(0);
        }
        record.lives.push(Life { number: record.life, process: self.process, writes: OPEN });
    }

    /// Whether others may hear of this life.
    pub(super) fn is_life_named(&self) -> bool {
        self.record
            .as_ref()
            .is_none_or(|record| record.lives.last().is_some_and(|life| life.number == record.life))
    }

    /// What was heard of a peer that is not in the history it told. Whoever speaks to it says so first: a
    /// majority with a vote that went back could choose what was never to be chosen again.
    pub(super) fn missing_of(&self, node: NodeId) -> Option<Seen> {
        let hello = self.peers.get(&node)?.hello.as_ref()?;
        self.missing_in(node, hello.voter, &hello.lives, hello.epoch)
    }

    /// What was heard of `node` that is not in the history it tells.
    fn missing_in(
        &self,
        node: NodeId,
        voter: VoterId,
        lives: &[Life],
        epoch: Epoch,
    ) -> Option<Seen> {
        let heard = self.seen.range((node, voter, 0)..=(node, voter, u64::MAX));
        heard.map(|(_, seen)| *seen).find(|seen| is_before(lives, epoch, seen))
    }

    /// A node tells its history. What was heard of it that is missing there; or its present life takes the
    /// place of all that was heard.
    pub(super) fn meet_lives(
        &mut self,
        node: NodeId,
        voter: VoterId,
        lives: &[Life],
        epoch: Epoch,
    ) -> Option<Seen> {
        let missing = self.missing_in(node, voter, lives, epoch);
        if missing.is_none()
            && let Some(&present) = lives.last()
        {
            self.seen.retain(|of, _| (of.0, of.1) != (node, voter) || of.2 == present.process);
            let life = Life { writes: 0, ..present };
            self.remember(Seen { node, voter, life, epoch: self.own_epoch() });
        }
        missing
    }

    /// Its present life goes on: primaries tell with their heartbeats, the others with their answers.
    pub(super) fn remember_present(
        &mut self,
        node: NodeId,
        voter: VoterId,
        (number, writes): (u64, u64),
    ) {
        let Some(peer) = self.peers.get(&node) else { return };
        let process = peer.process;
        let counts = peer.hello.as_ref().is_some_and(|hello| {
            !hello.rolled_back
                && hello.voter == voter
                && hello.lives.last().is_some_and(|life| life.number == number)
        });
        if counts {
            let life = Life { number, process, writes };
            self.remember(Seen { node, voter, life, epoch: self.own_epoch() });
        }
    }

    pub(super) fn remember_primary(&mut self, node: NodeId, generation: (u64, u64)) {
        let voter = self.peers.get(&node).and_then(|peer| peer.hello.as_ref());
        if let Some(voter) = voter.map(|hello| hello.voter) {
            self.remember_present(node, voter, generation);
        }
    }

    /// A replica that is being brought up to date flushed what was copied to it. Its bits may be cleared when what it
    /// reports from now on is on record: it is asked at once.
    pub(super) fn on_flushed(
        &mut self,
        shard: u16,
        node: NodeId,
        session: SessionId,
        sequence: u64,
    ) {
        let now = self.now;
        if let Some(peer) = self.in_session(node, session) {
            peer.flushed.insert(shard, (sequence, now));
            if let Some(reign) = self.reign_mut() {
                reign.heartbeat_at = now;
            }
        }
    }

    /// A peer reported after it was asked at `sent`.
    pub(super) fn vouch(&mut self, node: NodeId, sent: Instant, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(session) = peer.session else { return };
        let all = core::mem::take(&mut peer.flushed);
        let (due, later) = all.into_iter().partition(|&(_, (_, asked))| asked <= sent);
        peer.flushed = later;
        let due: BTreeMap<u16, (u64, Instant)> = due;
        for (shard, (sequence, _)) in due {
            self.persist(Effect::Vouched(node, session, shard, sequence), out);
        }
    }

    /// What this node remembers of those that the configuration names.
    pub(super) fn remembered(&self) -> Vec<Seen> {
        self.seen.values().filter(|seen| self.names(seen.node, seen.voter)).copied().collect()
    }

    /// All that it remembers, for somebody who may know less: else a majority with a vote that went back in time could
    /// decide, because the one who asks has heard nothing of it. Also of identities that have no vote: one may be given
    /// a vote next.
    pub(super) fn heard(&self) -> Option<MemberMessage> {
        let seen: Vec<Seen> = self.seen.values().copied().collect();
        (!seen.is_empty()).then_some(MemberMessage::Heard { seen })
    }

    /// What the primary remembers of the others: were it known there only, it would go with that disk.
    pub(super) fn remember_told(&mut self, told: &[Seen], out: &mut Out) {
        let own = self.node;
        for seen in told.iter().filter(|seen| seen.node == own) {
            self.hear_of_own(seen, out);
        }
        self.remember_others(told, out);
    }

    /// It is told once, when two nodes meet, perhaps before this life is named. What was heard of this node itself is told
    /// again when that one has its history.
    pub(super) fn remember_others(&mut self, told: &[Seen], out: &mut Out) {
        let own = self.node;
        for seen in told.iter().filter(|seen| seen.node != own) {
            self.remember_for_good(*seen);
            self.doubt_peer(seen.node, out);
        }
    }

    /// What was heard since its hello may show that its disk went back.
    fn doubt_peer(&mut self, node: NodeId, out: &mut Out) {
        let Some(hello) = self.peers.get(&node).and_then(|peer| peer.hello.as_ref()) else {
            return;
        };
        if hello.rolled_back {
            return;
        }
        let Some(missing) = self.missing_of(node) else { return };
        // Nothing of this session counts. Its operator hears of it from that node, which is told, if it is so.
        let present = hello.lives.last().map_or(0, |life| life.number);
        let is_another = missing.life.number > present && missing.life != GIVEN_UP;
        if is_another {
            out.push(MemberOutput::Mark("member: a peer has begun another life, as others tell"));
        } else {
            out.push(MemberOutput::Mark("member: a peer's disk went back in time, as others tell"));
            out.push(MemberOutput::Notice(Notice::WentBack { node }));
        }
        let hello = self.peers.get_mut(&node).and_then(|peer| peer.hello.as_mut());
        if let Some(hello) = hello {
            hello.rolled_back = true;
            hello.is_another = is_another;
        }
        self.uncount(node, out);
        self.stop_sync(node, out);
        self.say_hello(node, out);
    }

    /// Somebody heard this of this node. If it is not in its history, this memory is not what it was.
    pub(super) fn hear_of_own(&mut self, seen: &Seen, out: &mut Out) {
        let Some(record) = self.record.as_ref() else { return };
        let same = record.voter == seen.voter && !self.store.broken;
        if same && is_before(&record.lives, self.own_epoch(), seen) {
            out.push(MemberOutput::Mark("member: own disk went back in time"));
            out.push(MemberOutput::Notice(Notice::WentBack { node: self.node }));
            self.renew_identity(out);
            self.uncount(self.node, out);
            self.went_back = self.record.as_ref().map(|record| record.voter);
        }
    }

    /// Of one that is being brought up to date, also how much it wrote is stored: others clear its bits.
    fn remember_for_good(&mut self, seen: Seen) {
        let before = self.seen.get(&key(&seen)).map(|known| known.life.writes);
        self.remember(seen);
        let in_sync =
            self.known.as_ref().is_some_and(|known| known.configuration.is_in_sync(seen.node));
        if before.is_some_and(|writes| writes < seen.life.writes) && !in_sync {
            self.store_soon();
        }
    }

    /// Stores the record as it is now, though nothing waits for that.
    pub(super) fn store_soon(&mut self) {
        self.store.dirty |=
            self.phase != Phase::Starting && self.record.is_some() && !self.store.broken;
    }

    fn remember(&mut self, seen: Seen) {
        if seen.voter == VoterId(0) {
            return;
        }
        if let Some(known) = self.seen.get_mut(&key(&seen)) {
            known.life.writes = known.life.writes.max(seen.life.writes);
            known.epoch = known.epoch.max(seen.epoch);
            return;
        }
        self.seen.insert(key(&seen), seen);
        let of = (seen.node, seen.voter, 0)..=(seen.node, seen.voter, u64::MAX);
        if self.seen.range(of.clone()).count() > LIVES_HEARD_MAX {
            let oldest = self.seen.range(of).min_by_key(|(_, seen)| seen.life.number);
            if let Some(oldest) = oldest.map(|(&key, _)| key) {
                self.seen.remove(&oldest);
            }
        }
        self.forget_seen();
        // Were it remembered in memory only, it would go with this process.
        self.store_soon();
    }

    /// A node that shows another identity than the one that the configuration names has given that one
    /// up for good: whoever comes under it later has an old image of its disk.
    pub(super) fn renounce(&mut self, node: NodeId, voter: VoterId) {
        let named = self
            .known
            .as_ref()
            .and_then(|known| known.configuration.member(node))
            .map(|member| member.voter);
        let Some(named) = named.filter(|&named| named != voter && voter != VoterId(0)) else {
            return;
        };
        // One that is given up already was on its way for long: it is the older of the two.
        if !self.seen.contains_key(&(node, voter, GIVEN_UP.process)) {
            self.remember(Seen { node, voter: named, life: GIVEN_UP, epoch: Epoch(u64::MAX) });
        }
    }

    /// A majority gave members other identities, or none: they gave those up that they had.
    pub(super) fn renounce_replaced(&mut self, next: &Configuration) {
        let Some(known) = self.known.as_ref().map(|known| known.configuration.clone()) else {
            return;
        };
        if is_off(next) || is_off(&known) || next.fork != known.fork {
            return;
        }
        let own = self.node;
        for member in known.members.iter().filter(|member| member.node != own) {
            if next.member(member.node).is_some_and(|now| now.voter != member.voter) {
                let (node, voter) = (member.node, member.voter);
                self.remember(Seen { node, voter, life: GIVEN_UP, epoch: Epoch(u64::MAX) });
            }
        }
    }

    /// Whether the configuration known here names this identity.
    pub(super) fn names(&self, node: NodeId, voter: VoterId) -> bool {
        self.known.as_ref().is_some_and(|known| {
            known.configuration.member(node).is_some_and(|entry| entry.voter == voter)
        })
    }

    /// Keeps a bounded number: first of all those of identities that the configuration names.
    fn forget_seen(&mut self) {
        while self.seen.len() > PEERS_MAX {
            let spare = self.seen.keys().find(|key| !self.names(key.0, key.1));
            let spare = spare.or(self.seen.keys().next());
            let Some(&key) = spare else { return };
            self.seen.remove(&key);
        }
    }

    /// This memory is not what it was: it becomes a new, empty member.
    pub(super) fn renew_identity(&mut self, out: &mut Out) {
        let (voter, incarnation) = (VoterId(self.random.id()), Incarnation(self.random.id()));
        let Some(record) = self.record.as_mut() else { return };
        record.voter = voter;
        record.incarnation = incarnation;
        record.promised = Ballot::default();
        record.accepted = None;
        record.lives.clear();
        self.drop_votes();
        self.name_life();
        if let Some(emitted) = self.emitted.clone() {
            // What its disk holds may be old, whoever is primary.
            self.tell_own_ready(&emitted, out);
        }
        self.persist(Effect::Introduce, out);
    }
}

//! The voter: promises, accepts, renews leases.
//!
//! Always: no promise to a node while another holds the slot; no ballot is promised twice; none before what is
//! remembered of others is told; no answer before the record is durable; no older value after a newer one; no lease for a ballot below the promise.
//!
//! Not here: what the answers lead to (`proposer`, `register`, `primary`).

use super::lineage::is_later;
use super::store::Effect;
use super::{Member, Out, Slot};
use crate::door::MemberOutput;
use alloc::boxed::Box;
use base::{Ballot, Duration, Epoch, Instant, NodeId, SessionId, VoterId};
use wire::{Configuration, MemberMessage, RefuseReason};

impl Member {
    /// The identity under which this node votes; `None` if it does not.
    pub(super) fn own_voter(&self) -> Option<VoterId> {
        if self.store.broken {
            return None;
        }
        self.record.as_ref().map(|record| record.voter)
    }

    /// Why the slot is not free for `node`, if it is not.
    fn slot_in_the_way(&self, node: NodeId) -> Option<RefuseReason> {
        if self.slot.holder == Some(node) || self.now >= self.slot.until {
            return None;
        }
        let left = self.slot.until.since(self.now).0;
        Some(RefuseReason::Leased { holder: self.slot.holder.unwrap_or(NodeId(0)), left })
    }

    fn take_slot(&mut self, ballot: Ballot) {
        let until = self.now + self.timing.voter_lease();
        self.slot = Slot { holder: Some(ballot.node), ballot, until };
    }

    /// Promises `ballot` in memory, or says why not. The record must be durable before it is told.
    pub(super) fn promise(&mut self, ballot: Ballot) -> Result<(), RefuseReason> {
        if let Some(reason) = self.slot_in_the_way(ballot.node) {
            let promised = self.record.as_ref().map_or(Ballot::default(), |record| record.promised);
            let old = promised >= ballot;
            return Err(if old { RefuseReason::Promised(promised) } else { reason });
        }
        let Some(record) = self.record.as_mut().filter(|_| !self.store.broken) else {
            return Err(RefuseReason::NotVoter);
        };
        if record.promised >= ballot {
            // Each ballot is asked for once. A node that restarted may ask for one that it used before, and
            // would propose another value in it.
            return Err(RefuseReason::Promised(record.promised));
        }
        record.promised = ballot;
        self.turned_away = None;
        self.round_seen = self.round_seen.max(ballot.round);
        self.take_slot(ballot);
        Ok(())
    }

    /// `node` was refused what another has.
    fn note_turned_away(&mut self, node: NodeId) {
        let again = Duration(self.timing.lease.0.saturating_mul(2));
        let known =
            self.turned_away.filter(|&(of, _, last)| of == node && self.now <= last + again);
        let since = known.map_or(self.now, |(_, since, _)| since);
        self.turned_away = Some((node, since, self.now));
    }

    /// Whether a node asks in vain for longer than a lease lasts, so that it does not hear of the one that has it. To that one it is as if
    /// this node wanted to lead: it makes way if it does not find a majority itself, or if nobody uses it.
    fn turns_somebody_away(&self) -> bool {
        let (lease, now) = (self.timing.lease, self.now);
        self.turned_away.is_some_and(|(_, since, last)| {
            last >= since + lease && now <= last + Duration(lease.0.saturating_mul(2))
        })
    }

    pub(super) fn on_prepare(
        &mut self,
        peer: NodeId,
        session: SessionId,
        ballot: Ballot,
        out: &mut Out,
    ) {
        if ballot.node != peer {
            out.push(MemberOutput::Mark("member: ballot of another node"));
            return;
        }
        match self.promise(ballot) {
            Err(reason) => {
                if matches!(reason, RefuseReason::Leased { .. }) {
                    self.note_turned_away(peer);
                }
                self.send(peer, MemberMessage::Refused { ballot, reason }, out);
            }
            Ok(()) => {
                let Some(record) = &self.record else { return };
                let (voter, accepted) = (record.voter, record.accepted.clone());
                let promise = MemberMessage::Promise { ballot, voter, accepted };
                if let Some(heard) = self.heard() {
                    self.persist(Effect::Send(peer, session, Box::new(heard)), out);
                }
                self.persist(Effect::Send(peer, session, Box::new(promise)), out);
            }
        }
    }

    /// Accepts in memory, or says why not. `Ok(false)`: an older value, to be passed over.
    pub(super) fn accept(
        &mut self,
        ballot: Ballot,
        configuration: &Configuration,
    ) -> Result<bool, RefuseReason> {
        let Some(record) = self.record.as_mut().filter(|_| !self.store.broken) else {
            return Err(RefuseReason::NotVoter);
        };
        if record.promised > ballot {
            return Err(RefuseReason::Promised(record.promised));
        }
        if let Some((old, value)) = &record.accepted
            && is_later((*old, value), (ballot, configuration))
        {
            return Ok(false);
        }
        record.promised = ballot;
        record.accepted = Some((ballot, Box::new(configuration.clone())));
        self.round_seen = self.round_seen.max(ballot.round);
        Ok(true)
    }

    pub(super) fn on_accept(
        &mut self,
        peer: NodeId,
        session: SessionId,
        ballot: Ballot,
        configuration: Box<Configuration>,
        out: &mut Out,
    ) {
        if ballot.node != peer || !super::register::is_sound(&configuration) {
            out.push(MemberOutput::Mark("member: unsound accept"));
            return;
        }
        if self.survives_in_name_only(&configuration) {
            out.push(MemberOutput::Mark("member: no survivor of an exclude: the cache is lost"));
            return;
        }
        if !self.is_on_this_side(ballot, &configuration) {
            return self.teach(peer, out);
        }
        match self.accept(ballot, &configuration) {
            Err(reason) => self.send(peer, MemberMessage::Refused { ballot, reason }, out),
            Ok(false) => {}
            Ok(true) => {
                let Some(voter) = self.own_voter() else { return };
                let accepted =
                    MemberMessage::Accepted { ballot, epoch: configuration.epoch, voter };
                self.persist(Effect::Send(peer, session, Box::new(accepted)), out);
            }
        }
    }

    /// Whether `next` excludes others and leaves this node's replica in sync, in a life of its cache that is
    /// over, or with a memory that is lost. Who proposes it does not know yet, and will propose something else. Without the configuration
    /// that `next` changes nobody can tell whether it excludes; the proposer teaches it and asks again.
    fn survives_in_name_only(&self, next: &Configuration) -> bool {
        let Some(record) = &self.record else { return false };
        let named = next.member(self.node).is_some_and(|own| {
            own.in_sync && (own.voter, own.incarnation) != (record.voter, record.incarnation)
        });
        // A promote carries a value that was found, and must be taken as it is.
        if !named || next.epoch == next.reign {
            return false;
        }
        let knows_base = |known: &Configuration| {
            known.fork == next.fork
                && known.reign == next.reign
                && known.epoch.0.saturating_add(1) >= next.epoch.0
        };
        !self.known.as_ref().is_some_and(|known| {
            knows_base(&known.configuration)
                && known.configuration.in_sync().all(|node| next.is_in_sync(node))
        })
    }

    /// Renews the lease of `ballot`. `Ok(true)`: only once the record is durable.
    pub(super) fn renew(&mut self, ballot: Ballot) -> Result<bool, RefuseReason> {
        let Some(record) = self.record.as_ref().filter(|_| !self.store.broken) else {
            return Err(RefuseReason::NotVoter);
        };
        let promised = record.promised;
        if promised > ballot {
            return Err(RefuseReason::Promised(promised));
        }
        if let Some(reason) = self.slot_in_the_way(ballot.node) {
            return Err(reason);
        }
        self.take_slot(ballot);
        if promised < ballot
            && let Some(record) = self.record.as_mut()
        {
            // After a restart the promise tells that a lease may be out.
            record.promised = ballot;
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn on_heartbeat(
        &mut self,
        peer: NodeId,
        session: SessionId,
        ballot: Ballot,
        epoch: Epoch,
        sent: Instant,
        out: &mut Out,
    ) {
        if ballot.node != peer {
            out.push(MemberOutput::Mark("member: ballot of another node"));
            return;
        }
        self.round_seen = self.round_seen.max(ballot.round);
        let now = self.now;
        let current = self.known.as_ref().is_none_or(|known| epoch >= known.configuration.epoch);
        if let Some(peer) = self.peers.get_mut(&peer)
            && current
        {
            peer.heard = Some(now);
        }
        let (voter, durable) = match self.renew(ballot) {
            Ok(wait) => (self.own_voter().unwrap_or(VoterId(0)), !wait),
            Err(RefuseReason::NotVoter) => (VoterId(0), true),
            Err(reason) => {
                return self.send(peer, MemberMessage::Refused { ballot, reason }, out);
            }
        };
        let answer = MemberMessage::HeartbeatAnswer {
            ballot,
            sent,
            voter,
            epoch: self.acts_on(),
            generation: self.generation(),
            wants: self.wants_to_lead() || self.turns_somebody_away(),
        };
        // The promise may still be on its way to the disk: no lease before it is there.
        if durable && !self.is_store_due() {
            self.send(peer, answer, out);
        } else {
            self.persist(Effect::Send(peer, session, Box::new(answer)), out);
        }
    }

    /// (life, record stores and log writes of this life) that are durable.
    pub(super) fn generation(&self) -> (u64, u64) {
        let Some(record) = &self.record else { return (0, 0) };
        let logged: u64 = self.shards.iter().map(|shard| shard.logged).sum();
        (record.life, self.store.durable.saturating_add(logged))
    }

    pub(super) fn on_release(&mut self, peer: NodeId, ballot: Ballot) {
        if ballot.node != peer {
            return;
        }
        self.release_slot(ballot);
        if let Some(peer) = self.peers.get_mut(&peer) {
            // Who gives a lease back does not reign. If it will, it is heard of after this.
            peer.heard = None;
        }
    }

    /// Frees the slot if it was taken under `ballot`.
    pub(super) fn release_slot(&mut self, ballot: Ballot) {
        if self.slot.holder == Some(ballot.node) && self.slot.ballot == ballot {
            self.slot.until = self.now;
        }
    }
}

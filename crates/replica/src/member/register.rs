//! The register: proposing a change, counting who accepted, committing, learning.
//!
//! Always: a change is counted over the voters before and after it; one is open at a time and is sent
//! again until it or one that it gave way to is committed, or this node is primary no more; who learns stores first, then tells its
//! shards, and says so when all of them act on it.
//!
//! Not here: which change comes next (`peers`, `operations`, `primary`).

use super::invalidate::is_voided;
use super::lineage::leaves_behind;
use super::store::Effect;
use super::{Known, Member, Out, Proposal, Role, Then, is_majority, rank};
use crate::door::{MemberOutput, Notice, Slot, ToShard};
use crate::memory;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Epoch, NodeId, SessionId, VoterId};
use wire::{Configuration, MemberKind, MemberMessage};

/// Whether a configuration that a peer sent keeps the rules of its type.
pub(super) fn is_sound(configuration: &Configuration) -> bool {
    !configuration.members.is_empty() && wire::check_configuration(configuration).is_ok()
}

/// Whether a volume is smaller than it was: then what lies beyond its end is given back.
fn shrinks(old: &Configuration, new: &Configuration) -> bool {
    new.volumes.iter().any(|entry| {
        let before = old.volume(entry.volume);
        before.is_some_and(|before| {
            entry.sectors < before.sectors || entry.kept_sectors() < before.kept_sectors()
        })
    })
}

impl Proposal {
    /// Whether this is an exclude that one of those who stay in sync has not accepted, `own` aside: this node knows of
    /// itself whether it is there.
    fn awaits_survivors(&self, own: NodeId) -> bool {
        let mut survivors =
            self.next.members.iter().filter(|member| member.in_sync && member.node != own);
        self.then == Then::Exclude
            && survivors.any(|member| self.accepted.get(&member.node) != Some(&member.voter))
    }
}

impl Member {
    /// Proposes `next` in the ballot of this reign.
    pub(super) fn propose(&mut self, base: Known, next: Configuration, then: Then, out: &mut Out) {
        let from = (base.ballot, base.configuration.epoch);
        self.propose_from(from, base.configuration, next, then, out);
    }

    /// Likewise; `from` is the place in the history that it goes on from.
    pub(super) fn propose_from(
        &mut self,
        from: (Ballot, Epoch),
        base: Arc<Configuration>,
        next: Configuration,
        then: Then,
        out: &mut Out,
    ) {
        let Role::Primary(reign) = &self.role else { return };
        assert!(reign.proposal.is_none(), "one change is open at a time");
        let mut proposal = Proposal {
            base,
            next: Arc::new(next),
            accepted: BTreeMap::new(),
            again_at: self.now + self.timing.retry,
            then,
            from,
            party: None,
        };
        self.prepare_alone(&mut proposal);
        let Role::Primary(reign) = &mut self.role else { return };
        reign.proposal = Some(proposal);
        self.send_proposal(out);
    }

    /// Asks everybody to accept the open change.
    pub(super) fn send_proposal(&mut self, out: &mut Out) {
        self.send_accepts(out);
        self.accept_own(out);
    }

    /// Nodes that vote on the open change, have not accepted it, and are to be asked now. Of an exclude those that stay in
    /// sync come first: if one of them is gone and does not know it yet, nobody is left with a change that makes it all
    /// there is.
    fn outstanding(&self) -> Vec<NodeId> {
        let Role::Primary(reign) = &self.role else { return Vec::new() };
        let Some(proposal) = &reign.proposal else { return Vec::new() };
        let members = proposal.base.members.iter().chain(&proposal.next.members);
        let survivors_first = proposal.awaits_survivors(self.node);
        let mut nodes: Vec<NodeId> = members
            .map(|member| member.node)
            .filter(|node| !proposal.accepted.contains_key(node))
            .filter(|&node| !survivors_first || proposal.next.is_in_sync(node))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    pub(super) fn send_accepts(&mut self, out: &mut Out) {
        let nodes = self.outstanding();
        let Role::Primary(reign) = &self.role else { return };
        let Some(proposal) = &reign.proposal else { return };
        for node in nodes {
            if node != self.node {
                let configuration = Box::new((*proposal.next).clone());
                let accept = MemberMessage::Accept { ballot: reign.ballot, configuration };
                self.send(node, accept, out);
            }
        }
    }

    pub(super) fn accept_own(&mut self, out: &mut Out) {
        if !self.outstanding().contains(&self.node) {
            return;
        }
        let Role::Primary(reign) = &self.role else { return };
        let Some(proposal) = &reign.proposal else { return };
        let (ballot, next) = (reign.ballot, proposal.next.clone());
        match self.accept(ballot, &next) {
            Ok(true) => self.persist(Effect::OwnAccepted(ballot, next.epoch), out),
            Ok(false) => {}
            Err(reason) => self.on_refused(self.node, ballot, reason, out),
        }
    }

    /// Sends the open change again where it was not answered.
    pub(super) fn run_proposal(&mut self, out: &mut Out) {
        let now = self.now;
        let Role::Primary(reign) = &self.role else { return };
        let patience = base::Duration(self.timing.retry.0.saturating_mul(16));
        if !reign.promoted && now >= reign.began + patience && !self.has_forked_alone() {
            return self.abandon(out);
        }
        if reign.proposal.is_none() {
            return;
        }
        self.supersede(out);
        self.go_on_alone(out);
        self.consider_commit(out);
        let Role::Primary(reign) = &mut self.role else { return };
        let Some(proposal) = &mut reign.proposal else { return };
        if now >= proposal.again_at {
            proposal.again_at = now + base::Duration(self.timing.retry.0.saturating_mul(4));
            self.send_accepts(out);
        }
    }

    pub(super) fn on_accepted(
        &mut self,
        peer: NodeId,
        ballot: Ballot,
        epoch: Epoch,
        voter: VoterId,
        out: &mut Out,
    ) {
        if self.counts(peer) {
            self.count_accepted(peer, ballot, epoch, voter, out);
        }
    }

    pub(super) fn on_own_accepted(&mut self, ballot: Ballot, epoch: Epoch, out: &mut Out) {
        if let Some(voter) = self.own_voter() {
            self.count_accepted(self.node, ballot, epoch, voter, out);
        }
    }

    fn count_accepted(
        &mut self,
        node: NodeId,
        ballot: Ballot,
        epoch: Epoch,
        voter: VoterId,
        out: &mut Out,
    ) {
        let own = self.node;
        let Role::Primary(reign) = &mut self.role else { return };
        let Some(proposal) = &mut reign.proposal else { return };
        if reign.ballot != ballot || proposal.next.epoch != epoch {
            return;
        }
        let awaited = proposal.awaits_survivors(own);
        proposal.accepted.insert(node, voter);
        if awaited && !proposal.awaits_survivors(own) {
            self.send_proposal(out);
        }
        self.consider_commit(out);
    }

    /// Commits the open change if it is accepted by as many, and such, as it needs.
    fn consider_commit(&mut self, out: &mut Out) {
        let Role::Primary(reign) = &self.role else { return };
        let Some(proposal) = &reign.proposal else { return };
        let majority = is_majority(&proposal.base, &proposal.accepted)
            && is_majority(&proposal.next, &proposal.accepted);
        if (majority || self.is_proposal_decided_alone()) && self.may_commit() {
            self.commit(out);
        }
    }

    /// The open change is committed: everybody is told, this node's shards once it is durable here.
    fn commit(&mut self, out: &mut Out) {
        let Role::Primary(reign) = &mut self.role else { return };
        let Some(proposal) = reign.proposal.take() else { return };
        let ballot = reign.ballot;
        self.decided_alone = proposal.party.as_ref().map(|_| proposal.next.epoch);
        self.know(ballot, proposal.next.clone(), out);
        let history = proposal.next.history();
        if history != proposal.base.history() {
            let fork = proposal.next.fork;
            out.push(MemberOutput::Notice(Notice::Began { history, fork }));
        }
        for peer in self.connected() {
            self.teach(peer, out);
        }
        self.on_committed(&proposal, out);
        // What was found and gone on from may be another side's.
        self.judge_again(out);
    }

    /// Takes `configuration` as the newest, and stores it.
    pub(super) fn know(
        &mut self,
        ballot: Ballot,
        configuration: Arc<Configuration>,
        out: &mut Out,
    ) {
        self.round_seen = self.round_seen.max(ballot.round);
        self.renounce_replaced(&configuration);
        // A fork leaves this copy out, whether its side is given up for that or it goes on with it as primary.
        let is_fork =
            self.known.as_ref().is_some_and(|known| configuration.fork > known.configuration.fork);
        let left_out = is_fork && !configuration.is_in_sync(self.node);
        let doubts = left_out && self.lacks_bits(&configuration);
        self.update_slots(&configuration, doubts);
        let known = self.known.as_ref();
        let shrinks = known.is_some_and(|known| shrinks(&known.configuration, &configuration));
        if let Some(record) = self.record.as_mut() {
            if shrinks {
                record.shrunk = configuration.epoch;
            }
            let left = record.accepted.as_ref();
            if left.is_some_and(|(at, fork)| leaves_behind((*at, fork), (ballot, &configuration))) {
                record.accepted = None;
                out.push(MemberOutput::Mark(
                    "member: a fork let go that left what is known behind",
                ));
            }
            record.committed = Some((ballot, Box::new((*configuration).clone())));
            record.in_memory |= memory::counts(&configuration, self.node);
        }
        let was_in_sync = known.is_some_and(|known| known.configuration.is_in_sync(self.node));
        if configuration.is_in_sync(self.node) && !was_in_sync {
            self.forget_counts();
        }
        self.known = Some(Known { ballot, configuration: configuration.clone() });
        let slots = self.slots.clone();
        self.persist(Effect::Install(configuration, slots), out);
    }

    /// Another node says that this is committed.
    pub(super) fn learn(&mut self, ballot: Ballot, configuration: Configuration, out: &mut Out) {
        if !is_sound(&configuration) {
            out.push(MemberOutput::Mark("member: unsound configuration"));
            return;
        }
        let known = self.known.as_ref().map(|known| rank(&known.configuration));
        if known >= Some(rank(&configuration)) {
            return;
        }
        // Its disk hangs, and each one waits for it. It is told again.
        if self.store.is_full() {
            out.push(MemberOutput::Mark("member: answer dropped, too many wait"));
            return;
        }
        let configuration = Arc::new(configuration);
        // Nobody else learns of this reign's changes first: a newer one is of another node.
        self.abdicate(out);
        if configuration.primary.is_some_and(|primary| primary != self.node) {
            self.in_vain = 0;
        }
        self.know(ballot, configuration.clone(), out);
        self.raise_best(ballot, &configuration);
    }

    /// Whether this process is the primary that the configuration names. A reign of an earlier process of
    /// this node is nobody's, also while this one's own promote is on its way.
    fn reigns_in(&self, configuration: &Configuration) -> bool {
        configuration.primary == Some(self.node)
            && matches!(&self.role, Role::Primary(reign) if configuration.reign >= reign.first)
    }

    /// Tells the shards, which then refuse every older reign.
    pub(super) fn install(
        &mut self,
        configuration: Arc<Configuration>,
        slots: Vec<Slot>,
        out: &mut Out,
    ) {
        if self.emitted.as_ref().is_some_and(|old| rank(old) >= rank(&configuration)) {
            return;
        }
        if !self.can_follow() {
            // `status` says so.
            return;
        }
        self.tell_hold(&configuration, out);
        let before = self.emitted.replace(configuration.clone());
        let epoch = configuration.epoch;
        let reigns = self.reigns_in(&configuration);
        // One of the history that is left may have been on its way to the record.
        let leaves = self.leaves && epoch >= self.side_from;
        self.leaves &= !leaves;
        let install =
            ToShard::Install { configuration: configuration.clone(), slots, reigns, leaves };
        Self::tell_shards(install, out);
        let was_in_sync = before.as_ref().is_some_and(|before| before.is_in_sync(self.node));
        if configuration.is_in_sync(self.node) && !was_in_sync {
            self.count_anew(out);
        }
        self.tell_own_ready(&configuration, out);
        if self.shards.is_empty() {
            self.installed = epoch;
            self.tell_all_learned(out);
        }
        self.after_install(before.as_deref(), &configuration, out);
    }

    /// Says whether this node's own copy is the one that the configuration names.
    pub(super) fn tell_own_ready(&self, configuration: &Configuration, out: &mut Out) {
        let ready = ToShard::PeerReady {
            peer: self.node,
            session: SessionId(0),
            epoch: configuration.epoch,
            kept: self.is_own_kept(configuration),
        };
        Self::tell_shards(ready, out);
    }

    /// A shard acts on a configuration; when all do, the peers are told.
    pub(super) fn on_installed(&mut self, out: &mut Out) {
        let all = self.shards.iter().map(|shard| shard.installed).min().unwrap_or(Epoch(0));
        if all > self.installed {
            self.installed = all;
            self.tell_all_learned(out);
        }
    }

    /// A shard's own disk has all that was asked of it under earlier configurations. Once that is true of all, and
    /// nothing else counts on this process's memory, its end loses nothing.
    pub(super) fn on_written(&mut self) {
        let Some(known) = &self.known else { return };
        let all = self.shards.iter().map(|shard| shard.written).min().unwrap_or(Epoch(0));
        let counts = memory::counts(&known.configuration, self.node);
        if all < known.configuration.epoch || counts || self.disk_failed || self.store.broken {
            return;
        }
        if let Some(record) = self.record.as_mut().filter(|record| record.in_memory) {
            record.in_memory = false;
            self.store.dirty = true;
        }
    }

    pub(super) fn tell_all_learned(&self, out: &mut Out) {
        for peer in self.connected() {
            self.tell_learned(peer, out);
        }
    }

    pub(super) fn on_learned(&mut self, peer: NodeId, epoch: Epoch) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.learned = peer.learned.max(epoch);
        }
    }

    /// Gives each replica other than this node's a bitmap slot. Its bits start anew, all clear, when the
    /// replica has come into sync, or this node's has come to it, and all dirty when it is
    /// there under a new identity or was declared worthless, or when they are in doubt.
    pub(super) fn update_slots(&mut self, configuration: &Configuration, doubts: bool) {
        let own = self.node;
        let old = self.known.as_ref().map(|known| known.configuration.clone());
        let may_have_parted = configuration.may_have_parted() && configuration.is_replica(own);
        let own_in_sync = configuration.is_in_sync(own);
        let own_was_in_sync = old.as_ref().is_some_and(|old| old.is_in_sync(own));
        self.slots.retain(|slot| slot.node != own && configuration.is_replica(slot.node));
        for member in &configuration.members {
            if member.node == own || member.kind != MemberKind::Replica {
                continue;
            }
            let had = self.slots.iter().position(|slot| slot.node == member.node);
            let same = had.is_some_and(|at| self.slots[at].voter == member.voter);
            let was_in_sync = old.as_ref().is_some_and(|old| old.is_in_sync(member.node));
            let before = old.as_ref().and_then(|old| old.member(member.node));
            let voided = before.is_some() && is_voided(member, before);
            let comes = own_in_sync && !own_was_in_sync;
            let keeps = if !member.in_sync || old.is_none() {
                true
            } else if may_have_parted {
                // What this copy alone may hold is needed until it is in sync itself.
                !own_in_sync || (own_was_in_sync && was_in_sync)
            } else {
                was_in_sync && !comes
            };
            if same && !voided && keeps && !doubts {
                continue;
            }
            self.slot_generation += 1;
            let number = had.map_or_else(|| self.free_slot(), |at| self.slots[at].number);
            let slot = Slot {
                node: member.node,
                voter: member.voter,
                number,
                generation: self.slot_generation,
                full: doubts || !member.in_sync,
            };
            self.slots.retain(|slot| slot.node != member.node);
            self.slots.push(slot);
        }
        if let Some(record) = self.record.as_mut() {
            record.slots.clone_from(&self.slots);
            record.slot_generation = self.slot_generation;
        }
    }

    fn free_slot(&self) -> u8 {
        (0..u8::MAX)
            .find(|number| self.slots.iter().all(|slot| slot.number != *number))
            .expect("there are fewer replicas than slots")
    }
}

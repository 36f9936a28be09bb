//! The reign: heartbeats, lease, gathering, serving, the end in good order or not.
//!
//! Always: shards hear of a lease only while the promote is committed, and only of one that a majority
//! of the present voters, and of the proposed ones, granted; a reign that is handed over is drained
//! first, and its leases are given back after that.
//!
//! Not here: who is in sync (`peers`), the answers of voters (`voter`).

use super::lineage::{is_lineal, is_off};
use super::peers::Standing;
use super::{Drain, Member, Out, Peer, Proposal, Reign, Role, Sync, Then};
use crate::door::{MemberOutput, Operation, OperationError, ToShard};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, Instant, NodeId, SessionId, VoterId};
use wire::{Configuration, MemberKind, MemberMessage};

/// Heartbeat answers in a row after which a primary without clients hands over.
const WANTS_IN_A_ROW: u32 = 2;
/// Heartbeats after which a primary may make way for the sake of its own copy. Also the pause after a
/// hand-over that did not come about, times eight.
const CALM_HEARTBEATS: u64 = 4;
/// Doublings of that pause, at most, when those for whom this node made way were never primary.
const IN_VAIN_MAX: u32 = 5;

impl Reign {
    /// A reign whose promote is about to be proposed.
    pub(super) fn new(
        ballot: Ballot,
        now: Instant,
        reign: Epoch,
        grants: BTreeMap<NodeId, (VoterId, Instant)>,
    ) -> Reign {
        Reign {
            ballot,
            began: now,
            first: reign,
            reign,
            promoted: false,
            proposal: None,
            grants,
            refused: BTreeSet::new(),
            raise: None,
            raise_at: now,
            heartbeat_at: now,
            gather_until: now,
            gathered: BTreeSet::new(),
            reconciled: BTreeSet::new(),
            served: false,
            lease_told: Instant(0),
            unleased: None,
            calm_at: now,
            drain: None,
            drains: 0,
            cut: None,
            verify: None,
            growths: BTreeMap::new(),
            segment: None,
            raised_alone: false,
        }
    }
}

impl Member {
    pub(super) fn primary_deadlines(&self, consider: &mut impl FnMut(Instant)) {
        let Role::Primary(reign) = &self.role else { return };
        if let Some(proposal) = &reign.proposal {
            consider(proposal.again_at);
        }
        if !reign.promoted {
            if self.has_forked_alone() {
                return;
            }
            return consider(reign.began + Duration(self.timing.retry.0.saturating_mul(16)));
        }
        consider(reign.heartbeat_at);
        self.raise_deadline(consider);
        if reign.gather_until > self.now {
            consider(reign.gather_until);
        }
        if let Some(drain) = &reign.drain
            && drain.until > self.now
        {
            consider(drain.until);
        }
    }

    /// Everything a primary does by itself.
    pub(super) fn run_primary(&mut self, out: &mut Out) {
        self.watch_stretch();
        self.run_proposal(out);
        if self.reign().is_none() {
            return;
        }
        self.run_raise(out);
        self.beat(out);
        self.consider_hand_over(out);
        self.rest(out);
        self.run_drain(out);
        self.run_peers(out);
        self.consider_serving(out);
        self.run_verify(out);
        self.tell_lease(out);
        self.make_way_for_a_copy(out);
        self.make_way_for_a_majority(out);
    }

    /// Asks every peer for a sign of life, and every voter for its lease.
    fn beat(&mut self, out: &mut Out) {
        let now = self.now;
        let heartbeat = self.timing.heartbeat;
        let Some(reign) = self.reign_mut() else { return };
        if now < reign.heartbeat_at {
            return;
        }
        reign.heartbeat_at = now + heartbeat;
        let ballot = reign.ballot;
        self.repeat_resyncs();
        let Some(epoch) = self.known.as_ref().map(|known| known.configuration.epoch) else {
            return;
        };
        let generation = self.generation();
        let seen = self.remembered();
        for peer in self.connected() {
            let seen = seen.clone();
            let message = MemberMessage::Heartbeat { ballot, epoch, sent: now, generation, seen };
            self.send(peer, message, out);
        }
        self.teach_behind(|_| true, out);
        if let Some(voter) = self.own_voter() {
            // The own promise of this ballot is durable: it was counted, or the ballot is newer.
            match self.renew(ballot) {
                Ok(false) => self.grant(self.node, voter, now),
                Ok(true) => self.persist(super::store::Effect::OwnPromise(ballot), out),
                Err(reason) => self.on_refused(self.node, ballot, reason, out),
            }
        }
    }

    pub(super) fn grant(&mut self, node: NodeId, voter: VoterId, sent: Instant) {
        let Some(reign) = self.reign_mut() else { return };
        let grant = reign.grants.entry(node).or_insert((voter, sent));
        if grant.0 != voter || grant.1 < sent {
            *grant = (voter, sent);
        }
    }

    pub(super) fn on_heartbeat_answer(
        &mut self,
        peer: NodeId,
        answer: &MemberMessage,
        out: &mut Out,
    ) {
        let &MemberMessage::HeartbeatAnswer { ballot, sent, voter, epoch, generation, wants } =
            answer
        else {
            return;
        };
        if self.reign().is_none_or(|reign| reign.ballot != ballot) || sent > self.now {
            return;
        }
        let now = self.now;
        let counts = self.counts(peer);
        if let Some(reign) = self.reign_mut() {
            reign.refused.remove(&peer);
        }
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.answered = now;
        known.learned = known.learned.max(epoch);
        known.wants = if wants { known.wants.saturating_add(1) } else { 0 };
        if counts && voter != VoterId(0) {
            self.grant(peer, voter, sent);
            self.remember_present(peer, voter, generation);
        }
        self.vouch(peer, sent, out);
        self.tell_lease(out);
    }

    /// When the lease that a majority granted ends, by this node's clock; `None` if it is not primary or has none. It is for who does
    /// something beside the shards, and may look long after the last step.
    #[must_use]
    pub fn lease_until(&self) -> Option<Instant> {
        let reign = self.reign()?;
        let known = self.known.as_ref()?;
        let present = self.lease_under(&known.configuration, &reign.grants)?;
        match &reign.proposal {
            Some(proposal) => Some(present.min(self.lease_under(&proposal.next, &reign.grants)?)),
            None => Some(present),
        }
    }

    fn lease_under(
        &self,
        configuration: &Configuration,
        grants: &BTreeMap<NodeId, (VoterId, Instant)>,
    ) -> Option<Instant> {
        let mut sent: Vec<Instant> = configuration
            .voters()
            .filter_map(|member| grants.get(&member.node).filter(|grant| grant.0 == member.voter))
            .map(|grant| grant.1)
            .collect();
        sent.sort_unstable_by(|one, other| other.cmp(one));
        let majority = sent.get(configuration.majority() - 1).map(|&sent| sent + self.timing.lease);
        self.lease_with(configuration, grants, majority)
    }

    /// Whether what is left of the lease that the shards were told is granted by what `next` asks for too, if
    /// that is not what `base` does: other voters, or no quorum, or one more that may go on without it.
    pub(super) fn is_lease_granted_by(
        &self,
        base: &Configuration,
        next: &Configuration,
        grants: &BTreeMap<NodeId, (VoterId, Instant)>,
    ) -> bool {
        let voters = |of: &Configuration| -> Vec<(NodeId, VoterId)> {
            of.members.iter().map(|member| (member.node, member.voter)).collect()
        };
        // Without quorum others may go on without those who granted it.
        let more = is_off(next) && next.in_sync().any(|node| !base.is_in_sync(node));
        let quorum = base.options.quorum == next.options.quorum;
        let same = voters(base) == voters(next) && quorum && !more;
        self.leased_until <= self.now
            || same
            || self.lease_under(next, grants) >= Some(self.leased_until)
    }

    /// Tells the shards of a lease that lasts longer than the one they know. Without quorum it must hold by what
    /// they act on, too: in a history of its own this node grants itself what in the one before others had to
    /// grant, and what is answered before the shards are told of that history is part of no other.
    fn tell_lease(&mut self, out: &mut Out) {
        let Some(mut until) = self.lease_until() else { return };
        let (Some(emitted), Some(reign)) = (&self.emitted, self.reign()) else { return };
        if is_lineal(emitted) {
            let Some(acted_on) = self.lease_under(emitted, &reign.grants) else { return };
            until = until.min(acted_on);
        }
        if emitted.reign != reign.reign || until <= reign.lease_told {
            return;
        }
        if let Some(reign) = self.reign_mut() {
            reign.lease_told = until;
            self.leased_until = until;
            Self::tell_shards(ToShard::Lease { until }, out);
        }
    }

    /// Requests are held back while an operator says so or too few replicas are in sync; resync, while an operator says
    /// so.
    pub(super) fn tell_hold(&mut self, configuration: &Configuration, out: &mut Out) {
        let few = configuration.in_sync().count() < usize::from(configuration.options.in_sync_min);
        let hold = configuration.held.requests || few;
        if hold != self.hold_told {
            self.hold_told = hold;
            Self::tell_shards(ToShard::Suspend(hold), out);
        }
        let pause = configuration.held.resync;
        if pause != self.pause_told {
            self.pause_told = pause;
            Self::tell_shards(ToShard::PauseResync(pause), out);
        }
    }

    pub(super) fn on_gathered(&mut self, shard: u16, reign_gathered: Epoch) {
        if let Some(reign) = self.reign_mut()
            && reign.reign == reign_gathered
        {
            reign.gathered.insert(shard);
        }
    }

    pub(super) fn on_reconciled(&mut self, shard: u16, reign_reconciled: Epoch) {
        let recovering = self.known.as_ref().is_some_and(|known| known.configuration.recovering);
        if let Some(reign) = self.reign_mut()
            && reign.reign == reign_reconciled
            && recovering
        {
            reign.reconciled.insert(shard);
        }
    }

    /// Whether this node's shards know what every kept member holds.
    pub(super) fn is_gathered(&self) -> bool {
        self.reign().is_some_and(|reign| reign.gathered.len() == self.shards.len())
    }

    fn consider_serving(&mut self, out: &mut Out) {
        let gathered = self.is_gathered();
        let ready = self.emitted.as_ref().is_some_and(|emitted| {
            !emitted.recovering
                && emitted.in_sync().next().is_some()
                && self.known.as_ref().is_some_and(|known| !known.configuration.recovering)
        });
        let installed = self.emitted.as_ref().map(|emitted| emitted.reign);
        let Some(reign) = self.reign_mut() else { return };
        if gathered && ready && !reign.served && installed == Some(reign.reign) {
            reign.served = true;
            let reign = reign.reign;
            Self::tell_shards(ToShard::Serve { reign }, out);
        }
    }

    /// What follows from a change that is now committed.
    pub(super) fn on_committed(&mut self, proposal: &Proposal, out: &mut Out) {
        let now = self.now;
        let gather = self.timing.gather;
        let calm = self.timing.heartbeat.0.saturating_mul(CALM_HEARTBEATS);
        let calm = Duration(calm << self.in_vain.min(IN_VAIN_MAX));
        self.note_growths(proposal);
        let Role::Primary(reign) = &mut self.role else { return };
        match &proposal.then {
            Then::Promote => {
                reign.promoted = true;
                reign.gather_until = now + gather;
                reign.heartbeat_at = now;
                reign.calm_at = now + calm;
                self.want = super::Want::default();
                for peer in self.peers.values_mut() {
                    peer.answered = now;
                    peer.ready = None;
                    peer.sync = Sync::default();
                    peer.failed = None;
                    peer.failures = 0;
                    peer.late = None;
                    peer.wants = 0;
                }
                self.finish_busy(&Operation::Force, out);
            }
            Then::Nothing | Then::Exclude => {
                self.forget_worthless(&proposal.base, &proposal.next, out);
            }
            Then::Recover => self.begin_anew(proposal.next.reign, out),
            Then::Operation(id) => {
                let id = *id;
                if proposal.next.reign != proposal.base.reign {
                    self.begin_anew(proposal.next.reign, out);
                }
                self.finish_or_await_shards(id, proposal.next.epoch, out);
            }
            Then::Demote => self.end_reign(out),
        }
    }

    /// This node goes on in another reign: everything is gathered anew.
    fn begin_anew(&mut self, begun: Epoch, out: &mut Out) {
        let until = self.now + self.timing.gather;
        let Some(reign) = self.reign_mut() else { return };
        let ended = core::mem::replace(&mut reign.reign, begun);
        reign.served = false;
        reign.gathered.clear();
        reign.reconciled.clear();
        reign.gather_until = until;
        let had_drain = reign.drain.take().is_some();
        // The shards begin anew, and answer no question of before.
        let cut = reign.cut.take();
        reign.verify = None;
        for peer in self.peers.values_mut() {
            peer.ready = None;
            peer.sync = Sync::default();
        }
        if let Some(cut) = cut {
            self.finish(cut.id, Err(OperationError::NoPrimary), out);
        }
        if had_drain {
            Self::tell_shards(ToShard::Undrain { reign: ended }, out);
            self.fail_demotes(out);
        }
    }

    /// The configuration without a primary is committed: give everything back.
    fn end_reign(&mut self, out: &mut Out) {
        let Role::Primary(reign) = core::mem::replace(&mut self.role, Role::Idle) else { return };
        self.leased_until = self.now;
        self.release(reign.ballot, out);
        if let Some(raise) = &reign.raise {
            self.release(raise.ballot, out);
        }
        self.fail_cut(&reign, out);
        self.finish_busy(&Operation::Demote, out);
        self.want.shard = false;
        // Who asked goes first, also where requests wait here; and whose copy this one lacks has time to ask all voters
        // again, for else the two would take turns.
        let outside =
            self.known.as_ref().is_some_and(|known| self.is_outside(&known.configuration));
        let retries = if outside { 16 } else { 4 };
        if outside && reign.drain.as_ref().is_some_and(|drain| drain.to.is_some()) {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        self.want.hold_until = self.now + Duration(self.timing.retry.0.saturating_mul(retries));
        let epoch = self.known.as_ref().map(|known| known.configuration.epoch);
        if let Some((peer, session)) = reign.drain.and_then(|drain| drain.to)
            && let Some(epoch) = epoch
            && self.peers.get(&peer).is_some_and(|known| known.session == Some(session))
        {
            let message = MemberMessage::HandOver { epoch };
            out.push(MemberOutput::Send { peer, session, message });
        }
    }

    /// This node is primary no more, because another is, or because the voters will not have it.
    pub(super) fn abdicate(&mut self, out: &mut Out) {
        if !matches!(self.role, Role::Primary(_)) {
            return;
        }
        let Role::Primary(reign) = core::mem::replace(&mut self.role, Role::Idle) else { return };
        out.push(MemberOutput::Mark("member: reign ended by others"));
        if reign.drain.is_some() {
            Self::tell_shards(ToShard::Undrain { reign: reign.reign }, out);
        }
        self.fail_cut(&reign, out);
        let pause = Duration(self.timing.retry.0);
        // Later than now, for it is waited for then only.
        let extra = Duration(1 + self.random.below(pause.0.max(1)));
        self.want.hold_until = self.now + extra;
        for pending in &mut self.operations {
            pending.busy = false;
        }
    }

    fn fail_cut(&mut self, reign: &Reign, out: &mut Out) {
        if let Some(cut) = &reign.cut {
            self.finish(cut.id, Err(OperationError::NoPrimary), out);
        }
    }

    /// Voters that promised a higher ballot never accept this one: without a majority of the others
    /// the reign is over. Once its lease has run out, others that are gone are not waited for either: a
    /// higher ballot may win those that refuse.
    pub(super) fn check_refused(&mut self, out: &mut Out) {
        let Role::Primary(reign) = &self.role else { return };
        let over = reign.promoted && self.lease_until().is_none_or(|until| until <= self.now);
        let here = |node: NodeId| node == self.node || self.counts(node);
        let open = |configuration: &Configuration| {
            // One that came back as another memory will not accept it either.
            let left = configuration
                .voters()
                .filter(|member| !reign.refused.contains(&member.node))
                .filter(|member| !over || here(member.node))
                .filter(|member| {
                    self.voter_of(member.node).is_none_or(|voter| voter == member.voter)
                })
                .count();
            left >= configuration.majority()
                || self
                    .is_alone_decided(configuration, |member| !reign.refused.contains(&member.node))
        };
        let known = self.known.as_ref().is_none_or(|known| open(&known.configuration));
        let proposed = reign
            .proposal
            .as_ref()
            .is_none_or(|proposal| open(&proposal.base) && open(&proposal.next));
        if known && proposed {
            return;
        }
        if reign.promoted {
            self.abdicate(out);
        } else {
            self.abandon(out);
        }
    }

    /// Another node asks to be primary instead.
    pub(super) fn on_want_primary(&mut self, peer: NodeId, session: SessionId, out: &mut Out) {
        // Otherwise it asks again.
        if self.may_drain() && self.may_lead(peer) {
            self.drain(Some((peer, session)), out);
        }
        self.step_in_for();
    }

    /// A primary makes way for a node that has clients, if it has none itself; and for an in-sync
    /// replica, if its own copy is not in sync: a copy is brought up to date by another node.
    fn consider_hand_over(&mut self, out: &mut Out) {
        let ready = self.operations.iter().all(|pending| pending.begun)
            && self.reign().is_some_and(|reign| {
                reign.drain.is_none() && reign.proposal.is_none() && reign.served
            });
        let Some(known) = self.known.as_ref().map(|known| known.configuration.clone()) else {
            return;
        };
        if !ready {
            return;
        }
        let to = if self.needs_another_primary(&known) {
            known
                .members
                .iter()
                .filter(|member| member.in_sync && member.node != self.node)
                .find(|member| self.standing(member) == Standing::Kept)
                .map(|member| member.node)
        } else if self.clients == 0 {
            self.peers
                .iter()
                .filter(|(node, peer)| {
                    let witness =
                        known.member(**node).is_some_and(|entry| entry.kind == MemberKind::Witness);
                    peer.wants >= WANTS_IN_A_ROW
                        && self.may_lead(**node)
                        && !witness
                        && (!known.is_replica(**node) || known.is_in_sync(**node))
                })
                .map(|(&node, _)| node)
                .next()
        } else {
            None
        };
        let session = to.and_then(|node| self.peers.get(&node)).and_then(|peer| peer.session);
        if let (Some(node), Some(session)) = (to, session) {
            self.drain(Some((node, session)), out);
        }
    }

    /// Whether this node's own copy waits to be brought up to date, and has waited for long enough that
    /// the resource is calm.
    fn needs_another_primary(&self, known: &Configuration) -> bool {
        let usable = self.attached && !self.disk_failed;
        let calm = self.reign().is_some_and(|reign| self.now >= reign.calm_at);
        usable && calm && self.is_outside(known)
    }

    /// Whether this node's own copy is one of those that are not in sync.
    fn is_outside(&self, known: &Configuration) -> bool {
        known.member(self.node).is_some_and(|own| {
            own.kind == MemberKind::Replica && !own.in_sync && Some(own.voter) == self.own_voter()
        })
    }

    /// Whether the shards can be told to finish: they have been told of this reign, for of one that they have not begun they
    /// take no word, and its record may take longer than it takes others to hear of it and ask.
    pub(super) fn may_drain(&self) -> bool {
        let told = self.emitted.as_ref().map(|emitted| emitted.reign);
        self.reign().is_some_and(|reign| reign.drain.is_none() && told == Some(reign.reign))
    }

    /// Lets the shards finish what is open, so that the reign can end.
    pub(super) fn drain(&mut self, to: Option<(NodeId, SessionId)>, out: &mut Out) {
        let until = self.now + Duration(self.timing.peer_late.0.saturating_mul(2));
        let Some(reign) = self.reign_mut() else { return };
        reign.drains += 1;
        let (reign_ending, number) = (reign.reign, reign.drains);
        reign.drain = Some(Drain { to, until, number, drained: BTreeSet::new() });
        Self::tell_shards(ToShard::Drain { reign: reign_ending, number }, out);
    }

    pub(super) fn on_drained(&mut self, shard: u16, reign_drained: Epoch, number: u64) {
        if let Some(reign) = self.reign_mut()
            && reign.reign == reign_drained
            && let Some(drain) = reign.drain.as_mut().filter(|drain| drain.number == number)
        {
            drain.drained.insert(shard);
        }
    }

    /// Gives a drain up that takes too long or that nobody waits for any more.
    fn run_drain(&mut self, out: &mut Out) {
        let now = self.now;
        let Some(reign) = self.reign() else { return };
        let Some(drain) = &reign.drain else { return };
        let proposed =
            reign.proposal.as_ref().is_some_and(|proposal| proposal.then == Then::Demote);
        let gone = drain.to.is_some_and(|(peer, session)| {
            self.peers.get(&peer).is_none_or(|peer| peer.session != Some(session))
        });
        if proposed || (now < drain.until && !gone) {
            return;
        }
        let calm = Duration(self.timing.heartbeat.0.saturating_mul(8 * CALM_HEARTBEATS));
        let Some(reign) = self.reign_mut() else { return };
        reign.drain = None;
        reign.calm_at = now + calm;
        let goes_on = reign.reign;
        out.push(MemberOutput::Mark("member: drain given up"));
        Self::tell_shards(ToShard::Undrain { reign: goes_on }, out);
        self.fail_demotes(out);
        for peer in self.peers.values_mut() {
            peer.wants = 0;
        }
    }

    /// A primary that no majority grants a lease any more ends its reign if a node asks to be primary, which is in reach of
    /// more voters: whoever hears a primary waits for it.
    fn make_way_for_a_majority(&mut self, out: &mut Out) {
        let (now, patience, leased) = (self.now, self.timing.lease, self.is_leased());
        let Some(reign) = self.reign_mut() else { return };
        if leased {
            reign.unleased = None;
            return;
        }
        let since = *reign.unleased.get_or_insert(now);
        let asked = reign.drain.as_ref().and_then(|drain| drain.to);
        let alone =
            self.known.as_ref().is_none_or(|known| self.may_act_alone(&known.configuration));
        if alone || now < since + patience {
            return;
        }
        let wants = |node: NodeId, peer: &Peer| {
            let asks = asked.is_some_and(|to| peer.session == Some(to.1) && node == to.0);
            (asks || peer.wants >= WANTS_IN_A_ROW) && self.may_lead(node)
        };
        if self.peers.iter().any(|(&node, peer)| wants(node, peer)) {
            out.push(MemberOutput::Mark("member: a primary without a majority makes way"));
            self.abdicate(out);
        }
    }

    /// The change that ends a reign whose shards are drained.
    pub(super) fn change_demote(&self) -> Option<(Configuration, Then)> {
        let reign = self.reign()?;
        let drain = reign.drain.as_ref()?;
        if drain.drained.len() < self.shards.len() {
            return None;
        }
        let known = &self.known.as_ref()?.configuration;
        let mut next = (**known).clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        next.primary = None;
        Some((next, Then::Demote))
    }

    /// Whether a peer was silent for too long, by its heartbeat answers.
    pub(super) fn is_silent(&self, peer: &Peer) -> bool {
        self.now.since(peer.answered) > self.timing.peer_late
    }
}

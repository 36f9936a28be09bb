//! The proposer: who wants to be primary, asks the voters, and waits when it may not be.
//!
//! A question goes to the peers first; this node's own voter promises last, when its promise decides.
//! So a node that is merely cut off from the primary does not take its own vote away from it.
//!
//! Always: while a live primary is known nobody is asked; a question that failed gives its leases back;
//! the pause after a failure is random and grows.
//!
//! Not here: the value that is proposed then (`register`), the reign (`primary`).

use super::lineage::{is_above, is_lineal, leaves_behind};
use super::store::Effect;
use super::{Known, Member, Out, Pending, Phase, Prepare, Reign, Role, Then, is_majority};
use crate::door::{MemberOutput, Operation};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, Instant, NodeId, VoterId};
use wire::{Configuration, MemberKind, MemberMessage, RefuseReason, VerifyState};

/// Doublings of the pause between attempts, at most: 16 times `Timing::retry`.
const ATTEMPTS_MAX: u32 = 4;

impl Member {
    /// The base of a pause: grows with each failed attempt.
    fn pause(&self) -> Duration {
        Duration(self.timing.retry.0 << self.want.attempt.min(ATTEMPTS_MAX))
    }

    fn random_part(&mut self, of: Duration) -> Duration {
        Duration(self.random.below(of.0.max(1)))
    }

    /// The node that is primary and was heard of lately; `None` if there is none but, perhaps, this.
    pub(super) fn live_primary(&self) -> Option<NodeId> {
        self.live_primary_at(self.now)
    }

    fn live_primary_at(&self, now: Instant) -> Option<NodeId> {
        let primary = self.known.as_ref()?.configuration.primary?;
        let peer = self.peers.get(&primary)?;
        peer.session?;
        let heard = peer.heard?;
        (now < heard + self.timing.lease).then_some(primary)
    }

    /// Who is primary at `now`, as far as is known here: this node, one that was heard of lately, or one whose lease may
    /// still run. The configuration goes on naming one whose process has ended, until somebody uses the resource.
    #[must_use]
    pub fn reigning(&self, now: Instant) -> Option<NodeId> {
        if self.reign().is_some() {
            return Some(self.node);
        }
        let named = self.known.as_ref()?.configuration.primary?;
        let leased = self.slot.holder == Some(named) && now < self.slot.until;
        let other = self.live_primary_at(now);
        other.or_else(|| (leased && named != self.node).then_some(named))
    }

    /// Whether this node has a reason of its own to be primary.
    pub(super) fn wants(&self) -> bool {
        self.want.shard
            || self.want.handed
            || (self.clients > 0 && !self.want.demoted)
            || self.is_asked_to_lead()
            || self.want.auto_at.is_some_and(|at| self.now >= at)
            || self.wants_to_resolve()
    }

    /// Whether a primary that nobody uses is to make way for this node. One that reaches too few voters is better served by
    /// the one that there is; also if their nodes are here, and their votes are not, for such a one is no help to it.
    pub(super) fn wants_to_lead(&self) -> bool {
        let has_votes = self.known.as_ref().is_some_and(|known| {
            let known = &known.configuration;
            self.may_act_alone(known) || self.votes_here(known) >= known.majority()
        });
        self.clients > 0 && !self.want.demoted && self.can_reach_voters() && has_votes
    }

    pub(super) fn proposer_deadlines(&self, consider: &mut impl FnMut(Instant)) {
        match &self.role {
            Role::Preparing(prepare) => consider(prepare.deadline),
            Role::Primary(_) => {}
            Role::Idle => {
                if let Some(at) = self.want.auto_at
                    && at > self.now
                {
                    consider(at);
                }
                if let Some(primary) = self.live_primary() {
                    if let Some(heard) = self.peers.get(&primary).and_then(|peer| peer.heard) {
                        consider(heard + self.timing.lease);
                    }
                } else if self.wants() && self.want.hold_until > self.now {
                    consider(self.want.hold_until);
                }
                if let Some(at) = self.alone_deadline() {
                    consider(at);
                }
                if self.teaches() {
                    let peers = self.peers.values().filter(|peer| peer.split.is_none());
                    peers
                        .filter_map(|peer| self.teaches_at(peer))
                        .filter(|&at| at > self.now)
                        .for_each(&mut *consider);
                }
            }
        }
    }

    /// Asks, asks again, gives up: whatever the time and the state say.
    pub(super) fn run_proposer(&mut self, out: &mut Out) {
        if self.teaches() {
            self.teach_behind(|peer| peer.split.is_none(), out);
        }
        if self.shards.is_empty() {
            return;
        }
        match &self.role {
            Role::Primary(_) => self.want.auto_at = None,
            Role::Preparing(prepare) => {
                if self.now >= prepare.deadline {
                    self.abandon(out);
                } else if is_lineal(&prepare.best.configuration) {
                    // Those who have not answered may be gone.
                    self.check_promises(out);
                }
            }
            Role::Idle => {
                if self.live_primary().is_some() {
                    self.want = super::Want {
                        hold_until: self.want.hold_until,
                        demoted: self.want.demoted,
                        ..super::Want::default()
                    };
                    return;
                }
                self.consider_stepping_in();
                if !self.can_follow() {
                    return;
                }
                if self.wants() && self.now >= self.want.hold_until {
                    if self.can_reach_voters() {
                        self.prepare(out);
                    } else {
                        self.ask_a_copy(out);
                    }
                }
            }
        }
    }

    /// Whether this node tells those that are behind, though it is not primary. The primary tells everybody; what one
    /// learned from a primary that is gone, others learn from that one, for whoever is to step in may be among
    /// them.
    fn teaches(&self) -> bool {
        let plain = self.known.as_ref().is_some_and(|known| !is_lineal(&known.configuration));
        plain && matches!(self.role, Role::Idle) && self.live_primary().is_none()
    }

    /// Without a primary nobody brings a replica back, or goes on with a verify or a growth: an in-sync one does it by itself.
    fn consider_stepping_in(&mut self) {
        if !self.is_needed_as_primary() {
            self.want.auto_at = None;
        } else if self.want.auto_at.is_none() {
            let delay = Duration(self.timing.heartbeat.0 * 2);
            let extra = self.random_part(delay);
            self.want.auto_at = Some(self.now + delay + extra);
        }
    }

    /// An attempt, or a reign, may have ended in this step, whatever ended it: nothing else may happen here for long, though this
    /// node is needed.
    pub(super) fn go_on_after_an_end(&mut self) {
        if matches!(self.role, Role::Idle) && self.live_primary().is_none() {
            self.consider_stepping_in();
        }
    }

    fn is_needed_as_primary(&self) -> bool {
        let Some(known) = &self.known else { return false };
        let configuration = &known.configuration;
        let Some(own) = configuration.member(self.node) else { return self.may_have_come() };
        if !own.in_sync {
            return self.may_have_come();
        }
        if !self.attached || Some(own.voter) != self.own_voter() {
            return false;
        }
        let own_kept = self.is_own_kept(configuration);
        let others = configuration.members.iter().filter(|member| member.node != self.node);
        let mut all_lost = true;
        let compares =
            configuration.verify.is_some_and(|verify| verify.state == VerifyState::Running);
        let grows = configuration.volumes.iter().any(|entry| entry.grows_to.is_some());
        // What its voter accepted may be chosen, and is to be found out.
        let holds_newer = self.holds_newer(configuration);
        let mut needy = configuration.recovering || compares || grows || holds_newer;
        for member in others {
            let hello = self.peers.get(&member.node).and_then(|peer| peer.hello.as_ref());
            let Some(hello) = hello.filter(|_| !self.is_split(member.node)) else {
                all_lost &= !member.in_sync;
                continue;
            };
            let same = hello.voter == member.voter && !hello.rolled_back;
            let kept = same && hello.attached && hello.incarnation == member.incarnation;
            needy |= !same && hello.voter != VoterId(0);
            if member.kind == MemberKind::Replica {
                needy |= hello.attached && !(member.in_sync && kept);
            }
            let replaced = hello.voter != member.voter && hello.voter != VoterId(0);
            all_lost &= !member.in_sync || replaced || (same && hello.attached && !kept);
        }
        (own_kept && needy) || (!own_kept && all_lost)
    }

    /// Whether this node's voter accepted a newer configuration than the one known, which makes it a replica, or puts it
    /// in sync. It may be chosen, by votes of which no member that is known so far has one; or those who would step in
    /// by what is known so far may have lost what they had.
    fn may_have_come(&self) -> bool {
        let Some(known) = &self.known else { return false };
        let accepted = self.record.as_ref().and_then(|record| record.accepted.as_ref());
        let names = accepted.is_some_and(|(_, value)| {
            let comes = if known.configuration.member(self.node).is_some() {
                value.is_in_sync(self.node)
            } else {
                value.is_replica(self.node)
            };
            comes && value.member(self.node).map(|own| own.voter) == self.own_voter()
        });
        names && self.attached && self.holds_newer(&known.configuration)
    }

    /// Whether this node's voter accepted a newer configuration than the one known.
    fn holds_newer(&self, known: &Configuration) -> bool {
        let accepted = self.record.as_ref().and_then(|record| record.accepted.as_ref());
        accepted.is_some_and(|(ballot, value)| {
            super::rank(value) > super::rank(known) && self.is_above_known((*ballot, value))
        })
    }

    /// Whether enough of the voters known here are connected to decide anything. Their nodes count: what they have accepted may
    /// name other votes.
    pub(super) fn can_reach_voters(&self) -> bool {
        let Some(known) = &self.known else { return false };
        let configuration = &known.configuration;
        let count = configuration
            .voters()
            .filter(|member| {
                if member.node == self.node {
                    return self.own_voter().is_some();
                }
                self.peers.get(&member.node).is_some_and(|peer| peer.hello.is_some())
            })
            .count();
        let enough = count >= configuration.majority() && !self.lacks_copies(configuration);
        enough || self.may_act_alone(configuration)
    }

    /// Whether a value may be chosen after the configuration that is known: none of a history that was left.
    pub(super) fn is_above_known(&self, value: (Ballot, &Configuration)) -> bool {
        let Some(known) = &self.known else { return true };
        let known = (known.ballot, &*known.configuration);
        value.1.fork >= known.1.fork && !leaves_behind(value, known) && is_above(value, known)
    }

    /// The highest value that this node itself knows of.
    pub(super) fn best_known(&self) -> Option<Known> {
        let known = self.known.clone()?;
        let accepted = self.record.as_ref().and_then(|record| record.accepted.as_ref());
        match accepted {
            Some((ballot, value))
                if self.is_above_known((*ballot, value))
                    && super::rank(value) > super::rank(&known.configuration) =>
            {
                Some(Known { ballot: *ballot, configuration: Arc::new((**value).clone()) })
            }
            _ => Some(known),
        }
    }

    fn prepare(&mut self, out: &mut Out) {
        let Some(best) = self.best_known() else { return };
        let promised = self.record.as_ref().map_or(0, |record| record.promised.round);
        let round = self.round_seen.max(promised).max(best.ballot.round) + 1;
        self.round_seen = round;
        let base = self.pause();
        let patience = Duration(self.timing.retry.0.saturating_mul(4).saturating_add(base.0));
        self.role = Role::Preparing(Prepare {
            ballot: Ballot { round, node: self.node },
            sent: self.now,
            deadline: self.now + patience,
            best,
            asked: BTreeSet::new(),
            promises: BTreeMap::new(),
            refused: BTreeSet::new(),
            free_at: None,
            own_asked: false,
        });
        self.ask_voters(out);
        self.check_promises(out);
    }

    /// Asks the voters of the best value that were not asked yet.
    fn ask_voters(&mut self, out: &mut Out) {
        let Role::Preparing(prepare) = &mut self.role else { return };
        let ballot = prepare.ballot;
        let nodes: Vec<NodeId> =
            prepare.best.configuration.members.iter().map(|member| member.node).collect();
        for node in nodes {
            let Role::Preparing(prepare) = &mut self.role else { return };
            if node != self.node && prepare.asked.insert(node) {
                self.send(node, MemberMessage::Prepare { ballot }, out);
            }
        }
    }

    pub(super) fn on_promise(
        &mut self,
        peer: NodeId,
        ballot: Ballot,
        voter: VoterId,
        accepted: Option<(Ballot, Box<Configuration>)>,
        out: &mut Out,
    ) {
        let counts = self.counts(peer);
        if counts && self.reign().is_some() {
            let accepted = accepted.as_ref().map(|(ballot, value)| (*ballot, &**value));
            return self.on_raise_promise(peer, ballot, voter, accepted, out);
        }
        let Role::Preparing(prepare) = &mut self.role else { return };
        if prepare.ballot != ballot || !counts {
            return;
        }
        prepare.promises.insert(peer, voter);
        if let Some((ballot, value)) = accepted {
            if !super::register::is_sound(&value) {
                out.push(MemberOutput::Mark("member: unsound value in a promise"));
                return;
            }
            if self.is_above_known((ballot, &value))
                && let Role::Preparing(prepare) = &mut self.role
            {
                prepare.raise(ballot, Arc::new(*value));
            }
        }
        self.ask_voters(out);
        self.check_promises(out);
    }

    /// Whether what this peer says as a voter may be counted.
    pub(super) fn counts(&self, peer: NodeId) -> bool {
        self.peers
            .get(&peer)
            .and_then(|peer| peer.hello.as_ref())
            .is_some_and(|hello| !hello.rolled_back)
            && !self.is_split(peer)
    }

    /// What `node`, this one or a peer, said as a voter counts no more. A promote that rests on its promise is given up: it
    /// may have accepted what was to be found.
    pub(super) fn uncount(&mut self, node: NodeId, out: &mut Out) {
        match &mut self.role {
            Role::Preparing(prepare) => {
                prepare.promises.remove(&node);
            }
            Role::Primary(reign) => {
                if let Some(raise) = &mut reign.raise {
                    raise.promises.remove(&node);
                }
                if let Some(proposal) = &mut reign.proposal {
                    proposal.accepted.remove(&node);
                }
                if !reign.promoted && reign.grants.contains_key(&node) {
                    out.push(MemberOutput::Mark("member: a promote rests on a vote that is gone"));
                    self.abandon(out);
                }
            }
            Role::Idle => {}
        }
    }

    /// Whether something is counted that `node` said as a voter under another identity than this one.
    pub(super) fn counts_another(&self, node: NodeId, voter: VoterId) -> bool {
        let other = |counted: Option<&VoterId>| counted.is_some_and(|&counted| counted != voter);
        match &self.role {
            Role::Idle => false,
            Role::Preparing(prepare) => other(prepare.promises.get(&node)),
            Role::Primary(reign) => {
                let granted = reign.grants.get(&node).filter(|_| !reign.promoted);
                let raise = reign.raise.as_ref().and_then(|raise| raise.promises.get(&node));
                let proposal = reign.proposal.as_ref();
                other(granted.map(|grant| &grant.0))
                    || other(raise)
                    || other(proposal.and_then(|proposal| proposal.accepted.get(&node)))
            }
        }
    }

    /// Enough promises: propose. Enough but for the own one: ask the own voter.
    fn check_promises(&mut self, out: &mut Out) {
        let own = self.own_voter();
        let Role::Preparing(prepare) = &self.role else { return };
        if is_lineal(&prepare.best.configuration) && prepare.best.ballot >= prepare.ballot {
            // It was decided elsewhere, without those who promise here: ask anew, with a higher ballot.
            return self.abandon(out);
        }
        if prepare.best.configuration.feature_level > self.feature_level {
            // What it would go on from is not for its release.
            return self.abandon(out);
        }
        if self.is_consent(&prepare.best.configuration, &prepare.promises) {
            let promised = self.record.as_ref().map_or(Ballot::default(), |record| record.promised);
            if promised > prepare.ballot {
                // This node's own voter would refuse its reign for as long as it lasts.
                return self.abandon(out);
            }
            if !self.would_be_of_use(&prepare.best.configuration) {
                out.push(MemberOutput::Mark("member: no reign without a copy in reach"));
                self.abandon(out);
                self.want.lacks_copies = true;
                return;
            }
            return self.propose_promote(out);
        }
        let mut with_own = prepare.promises.clone();
        if let Some(voter) = own {
            with_own.insert(self.node, voter);
        }
        let enough = self.is_consent(&prepare.best.configuration, &with_own);
        let Role::Preparing(prepare) = &mut self.role else { return };
        if !prepare.own_asked && enough {
            let ballot = prepare.ballot;
            prepare.own_asked = true;
            match self.promise(ballot) {
                Ok(()) => self.persist(Effect::OwnPromise(ballot), out),
                Err(reason) => self.on_refused(self.node, ballot, reason, out),
            }
        }
    }

    /// Whether this node could do anything as primary: answer requests, or what an operator asks for. Else its leases would
    /// only keep one from leading that reaches a copy.
    fn would_be_of_use(&self, configuration: &Configuration) -> bool {
        self.is_asked_by_others() || self.reaches_a_copy(configuration)
    }

    fn is_asked_to_lead(&self) -> bool {
        self.asked_to_lead().next().is_some()
    }

    /// Likewise; what the node asks of itself is done elsewhere if it is of no use here.
    fn is_asked_by_others(&self) -> bool {
        self.asked_to_lead().any(|pending| pending.id != super::invalidate::OWN)
    }

    fn asked_to_lead(&self) -> impl Iterator<Item = &Pending> {
        let all = self.operations.iter();
        all.filter(|pending| !pending.begun && is_promoting(&pending.operation))
    }

    /// Whether those who promised may decide.
    pub(super) fn is_consent(
        &self,
        configuration: &Configuration,
        promises: &BTreeMap<NodeId, VoterId>,
    ) -> bool {
        is_majority(configuration, promises)
            || self.is_alone_decided(configuration, |member| {
                promises.get(&member.node) == Some(&member.voter)
            })
    }

    pub(super) fn on_own_promise(&mut self, ballot: Ballot, out: &mut Out) {
        let best = self.best_known();
        let Some(voter) = self.own_voter() else { return };
        if self.reign().is_some() {
            let accepted = self.record.as_ref().and_then(|record| record.accepted.clone());
            let accepted = accepted.as_ref().map(|(ballot, value)| (*ballot, &**value));
            return self.on_raise_promise(self.node, ballot, voter, accepted, out);
        }
        let Role::Preparing(prepare) = &mut self.role else { return };
        if prepare.ballot != ballot {
            return;
        }
        prepare.promises.insert(self.node, voter);
        if let Some(best) = best {
            prepare.raise(best.ballot, best.configuration);
        }
        self.ask_voters(out);
        self.check_promises(out);
    }

    /// A configuration became known while asking. This node is on that history now: what it found does not
    /// count unless it came from there.
    pub(super) fn raise_best(&mut self, ballot: Ballot, value: &Arc<Configuration>) {
        let Role::Preparing(prepare) = &mut self.role else { return };
        let best = (prepare.best.ballot, &*prepare.best.configuration);
        let comes_from_it = best.1.fork >= value.fork && !leaves_behind(best, (ballot, value));
        if !comes_from_it || !is_above(best, (ballot, value)) {
            prepare.best = Known { ballot, configuration: value.clone() };
        }
    }

    fn propose_promote(&mut self, out: &mut Out) {
        let Role::Preparing(prepare) = core::mem::replace(&mut self.role, Role::Idle) else {
            return;
        };
        let best = prepare.best;
        let base = &best.configuration;
        let epoch = Epoch(base.epoch.0 + 1);
        let next =
            Configuration { epoch, reign: epoch, primary: Some(self.node), ..(**base).clone() };
        let sent = prepare.sent;
        let grants = prepare.promises.iter().map(|(&node, &voter)| (node, (voter, sent))).collect();
        let reign = Reign::new(prepare.ballot, self.now, epoch, grants);
        self.role = Role::Primary(Box::new(reign));
        self.propose(best, next, Then::Promote, out);
    }

    /// A voter, perhaps this node's own, did not do what it was asked.
    pub(super) fn on_refused(
        &mut self,
        peer: NodeId,
        ballot: Ballot,
        reason: RefuseReason,
        out: &mut Out,
    ) {
        if let RefuseReason::Promised(other) = reason {
            self.round_seen = self.round_seen.max(other.round);
        }
        match &mut self.role {
            Role::Preparing(prepare) if prepare.ballot == ballot => {
                prepare.refused.insert(peer);
                if let RefuseReason::Leased { left, .. } = reason {
                    let until = self.now + Duration(left.min(self.timing.voter_lease().0));
                    prepare.free_at = Some(prepare.free_at.map_or(until, |old| old.min(until)));
                }
                let configuration = prepare.best.configuration.clone();
                let refused = prepare.refused.clone();
                let open = configuration
                    .voters()
                    .filter(|member| !refused.contains(&member.node))
                    .filter(|member| self.voter_of(member.node) == Some(member.voter))
                    .count();
                let alone =
                    self.is_alone_decided(&configuration, |member| !refused.contains(&member.node));
                if open < configuration.majority() && !alone {
                    self.abandon(out);
                }
            }
            Role::Primary(reign) if reign.ballot == ballot => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.answered = self.now;
                }
                // One that promised the higher ballot that is asked for just now is on this node's side.
                let own = |other: base::Ballot| reign.raise.is_some() && other.node == self.node;
                if matches!(reason, RefuseReason::Promised(other) if !own(other)) {
                    reign.refused.insert(peer);
                    self.check_refused(out);
                }
            }
            _ => {}
        }
    }

    /// Gives up this attempt and the leases it took, and waits.
    pub(super) fn abandon(&mut self, out: &mut Out) {
        let (ballot, free_at) = match &self.role {
            Role::Preparing(prepare) => (prepare.ballot, prepare.free_at),
            Role::Primary(reign) => (reign.ballot, None),
            Role::Idle => return,
        };
        self.role = Role::Idle;
        // A lease of a reign that others ended may still run here, under the same slots.
        if self.now >= self.leased_until {
            self.release(ballot, out);
        }
        let base = self.pause();
        let mut wait = Duration(base.0 / 2 + self.random_part(base).0);
        if let Some(free_at) = free_at {
            let left = free_at.since(self.now);
            let extra = self.random_part(Duration(self.timing.retry.0 / 2));
            wait = Duration(1 + wait.0.min(left.0) + extra.0);
        }
        self.want.attempt = self.want.attempt.saturating_add(1);
        self.want.hold_until = self.now + wait;
    }

    /// Gives the leases of `ballot` back.
    pub(super) fn release(&mut self, ballot: Ballot, out: &mut Out) {
        self.release_slot(ballot);
        for peer in self.connected() {
            self.send(peer, MemberMessage::Release { ballot }, out);
        }
    }

    pub(super) fn on_hand_over(&mut self, epoch: Epoch) {
        let current = self.known.as_ref().is_some_and(|known| {
            known.configuration.epoch == epoch && known.configuration.primary.is_none()
        });
        if current && self.phase == Phase::Running {
            self.want.handed = true;
            self.want.attempt = 0;
            self.want.hold_until = self.now;
        }
    }
}

impl Prepare {
    fn raise(&mut self, ballot: Ballot, value: Arc<Configuration>) {
        if is_above((ballot, &value), (self.best.ballot, &self.best.configuration)) {
            self.best = Known { ballot, configuration: value };
        }
    }
}

/// Operations for which this node becomes primary if nobody is.
fn is_promoting(operation: &Operation) -> bool {
    match operation {
        Operation::Promote
        | Operation::AddMember { .. }
        | Operation::RemoveMember { .. }
        | Operation::Resize { .. }
        | Operation::SetOptions(_)
        | Operation::Verify { .. }
        | Operation::StopVerify
        | Operation::Suspend(_)
        | Operation::PauseResync(_)
        | Operation::Cut
        | Operation::Invalidate
        | Operation::Force
        | Operation::Reserve { .. }
        | Operation::Resolve { .. } => true,
        Operation::Demote | Operation::FailWaiting(_) => false,
    }
}

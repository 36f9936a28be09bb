//! What operators ask for.
//!
//! Always: every operation is answered once; those that change the configuration are done when the
//! change is committed; an operation that must be done by the primary makes this node primary if
//! nobody is, and is refused if another node is.
//!
//! Not here: forwarding to the primary (the caller's job), policy (`lockstep`).

use super::lineage::asks_a_majority_again;
use super::{Known, Member, Out, Pending, Reign, Role, Round, Suspended, Then};
use crate::door::{MemberOutput, Operation, OperationError, OperationId, ToShard};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, Incarnation, Instant, NodeId};
use wire::admin::OptionsChange;
use wire::{
    Configuration, Held, MEMBERS_MAX, MemberEntry, MemberKind, MemberMessage, Quorum, REPLICAS_MAX,
    ReservationCommand,
};

/// Operations that wait, at most, those of hosts among them. An operator has few; beyond that they fail at once.
const OPERATIONS_MAX: usize = 64;
/// How long an operation waits for a primary, or for a majority, in leases.
const PATIENCE_LEASES: u64 = 8;
/// Between two requests to a primary to hand over, in `Timing::retry`: it may be about to hand over to
/// somebody else, and then the next one has to be asked.
pub(super) const ASK_RETRIES: u64 = 4;
/// Epochs that a forced configuration leaves out, so that what the other side of the fork did
/// meanwhile is older for every shard.
const FORK_EPOCHS: u64 = 1 << 32;

impl Member {
    pub(super) fn operation_deadlines(&self, consider: &mut impl FnMut(Instant)) {
        for pending in &self.operations {
            if pending.operation == Operation::Force && self.has_forked_alone() {
                // Its disk decides.
                continue;
            }
            consider(pending.deadline);
            let alone = self.alone_at(pending);
            if pending.operation == Operation::Force && alone > self.now {
                consider(alone);
            }
            if let Some(at) = self.reserve_deadline(pending) {
                consider(at);
            }
            if pending.operation == Operation::Promote && self.alone_from > self.now {
                consider(self.alone_from);
            }
            let asks = matches!(pending.operation, Operation::Promote | Operation::Invalidate);
            if asks && pending.ask_at > self.now {
                consider(pending.ask_at);
            }
        }
    }

    pub(super) fn on_operation(&mut self, id: OperationId, operation: Operation) {
        let patience = Duration(self.timing.lease.0.saturating_mul(PATIENCE_LEASES));
        let deadline = self.now + patience;
        if operation == Operation::Promote {
            self.want.demoted = false;
        }
        let ask_at = self.now;
        self.operations.push(Pending {
            id,
            operation,
            deadline,
            busy: false,
            ask_at,
            from: None,
            begun: false,
            since: None,
            asked: super::reserve::Asked::default(),
        });
    }

    /// Answers an operation, if it is still open.
    pub(super) fn finish(
        &mut self,
        id: OperationId,
        result: Result<(), OperationError>,
        out: &mut Out,
    ) {
        if let Some(at) = self.operations.iter().position(|pending| pending.id == id) {
            let pending = self.operations.remove(at);
            let undecided = pending.operation == Operation::Force && self.has_accepted_a_fork();
            let result = match result {
                Err(_) if undecided => Err(OperationError::MayHaveForked),
                known => known,
            };
            self.tell_done(&pending, result, out);
        }
    }

    /// The change that an operation asked for is committed. A hold is done when this node's shards hold; what was decided
    /// here alone when the record says so, for a process that does not know it may be on another side.
    pub(super) fn finish_or_await_shards(&mut self, id: OperationId, epoch: Epoch, out: &mut Out) {
        let waits = self
            .operations
            .iter()
            .any(|pending| pending.id == id && !self.is_acted_on(&pending.operation, epoch));
        if waits {
            self.mark(id, |pending| (pending.busy, pending.since) = (true, Some(epoch)));
        } else {
            self.finish(id, Ok(()), out);
        }
    }

    /// Whether this node does what such an operation asked for in the configuration with this epoch, and will know it.
    fn is_acted_on(&self, operation: &Operation, epoch: Epoch) -> bool {
        match operation {
            Operation::Verify { .. } => true,
            _ if self.tells_later() => false,
            Operation::Suspend(true) => self.installed >= epoch,
            Operation::Reserve { .. } => self.is_fenced(epoch),
            _ => true,
        }
    }

    fn finish_holds(&mut self, out: &mut Out) {
        let done = |pending: &&Pending| {
            pending.since.is_some_and(|epoch| {
                !matches!(pending.operation, Operation::Verify { .. })
                    && self.is_acted_on(&pending.operation, epoch)
            })
        };
        let held: Vec<OperationId> =
            self.operations.iter().filter(done).map(|pending| pending.id).collect();
        for id in held {
            self.finish(id, Ok(()), out);
        }
    }

    /// Takes every open operation as far as it goes now.
    pub(super) fn run_operations(&mut self, out: &mut Out) {
        self.finish_holds(out);
        self.refuse_reserves(out);
        while self.operations.len() > OPERATIONS_MAX
            && let Some(last) = self.operations.pop()
        {
            self.tell_done(&last, Err(OperationError::Full), out);
        }
        if self.reign().is_some() && !self.is_leased() {
            // No majority is left to decide what was forced in this reign: this node goes on alone.
            for pending in &mut self.operations {
                pending.busy &= pending.operation != Operation::Force;
            }
        }
        let waiting: Vec<Pending> =
            self.operations.iter().filter(|pending| !pending.busy).cloned().collect();
        for pending in waiting {
            if let Some(result) = self.run_operation(&pending, out) {
                self.finish(pending.id, result, out);
            }
        }
        self.expire(out);
    }

    fn expire(&mut self, out: &mut Out) {
        let late: Vec<OperationId> = self
            .operations
            .iter()
            .filter(|pending| self.now >= pending.deadline)
            .filter(|pending| pending.operation != Operation::Force || !self.has_forked_alone())
            .map(|pending| pending.id)
            .collect();
        for id in late {
            let invalidates = self.is_pending(id, &Operation::Invalidate);
            let reserve = self.operations.iter().find(|pending| {
                pending.id == id && matches!(pending.operation, Operation::Reserve { .. })
            });
            let error = match self.live_primary() {
                _ if let Some(pending) = reserve => super::reserve::expired(pending),
                _ if self.waits_for_all(id) => OperationError::ReplicaAway,
                // It found no replica that would be left, or no majority.
                _ if invalidates && self.has_primary() => OperationError::LastReplica,
                Some(node) => OperationError::OtherPrimary(node),
                None if self.waits_for_a_copy() => OperationError::NoCopy,
                None if self.reign().is_some() || self.lacks_majority() => OperationError::NoQuorum,
                None => OperationError::NoPrimary,
            };
            self.finish(id, Err(error), out);
        }
    }

    /// One operation; `None` if it has to wait.
    fn run_operation(
        &mut self,
        pending: &Pending,
        out: &mut Out,
    ) -> Option<Result<(), OperationError>> {
        if !self.can_follow() {
            return Some(Err(OperationError::OldRelease));
        }
        match pending.operation {
            Operation::Promote => return self.run_promote(pending, out),
            Operation::Demote => return self.run_demote(pending.id, out),
            Operation::Invalidate => return self.run_invalidate(pending, out),
            Operation::Resize { volume, sectors, .. } => {
                if let Some(result) = self.watch_resize(pending, volume, sectors) {
                    return result;
                }
            }
            Operation::Verify { anew } => {
                if let Some(result) = self.watch_verify(pending, anew) {
                    return result;
                }
            }
            Operation::Reserve { command, .. } => {
                if let Some(result) = self.watch_reserve(pending, &command, out) {
                    return result;
                }
            }
            Operation::Force => return self.run_force(pending, out),
            Operation::FailWaiting(on) => return Some(self.run_fail_waiting(on, out)),
            Operation::Resolve { discard } if discard == self.node => {
                return Some(Err(OperationError::OwnSide));
            }
            Operation::Resolve { discard } if !self.is_split_from(discard) => {
                return Some(Err(OperationError::NoSplitBrain));
            }
            _ => {}
        }
        if self.reign().is_none() {
            return self.live_primary().map(|node| Err(OperationError::OtherPrimary(node)));
        }
        match pending.operation {
            Operation::Cut => self.start_cut(pending.id, out),
            // Changes of the configuration are taken up when it is their turn (`change_operation`).
            _ => None,
        }
    }

    fn run_promote(
        &mut self,
        pending: &Pending,
        out: &mut Out,
    ) -> Option<Result<(), OperationError>> {
        if self.reign().is_some_and(|reign| reign.drain.is_none()) {
            return Some(Ok(()));
        }
        // Nodes that have just started may be on their way to each other.
        if self.now >= self.alone_from && self.lacks_voters() {
            return Some(Err(OperationError::NoQuorum));
        }
        self.ask_primary(pending, MemberMessage::WantPrimary, out);
        None
    }

    /// Asks the primary, now and then: it may not have heard, or may be another one by now.
    pub(super) fn ask_primary(&mut self, pending: &Pending, message: MemberMessage, out: &mut Out) {
        if let Some(primary) = self.live_primary()
            && self.now >= pending.ask_at
        {
            self.send(primary, message, out);
            let again = self.now + Duration(self.timing.retry.0.saturating_mul(ASK_RETRIES));
            self.mark(pending.id, |pending| pending.ask_at = again);
        }
    }

    /// Whether too few voters are in reach, so that nobody can become primary.
    fn lacks_majority(&self) -> bool {
        matches!(self.suspended(), Some(Suspended::NoQuorum { .. }))
    }

    /// Whether it is copies in sync that are waited for, and no voters.
    fn waits_for_a_copy(&self) -> bool {
        let waits = self.suspended();
        let of_copies = |waits: Suspended| match waits {
            Suspended::NoReplica { .. }
            | Suspended::CachesLost { .. }
            | Suspended::Gathering { .. }
            | Suspended::Recovering => true,
            Suspended::OldRelease { .. }
            | Suspended::Starting
            | Suspended::NoConfiguration
            | Suspended::NoPrimary
            | Suspended::NoQuorum { .. }
            | Suspended::TooFewInSync { .. }
            | Suspended::Operator => false,
        };
        waits.is_some_and(of_copies)
    }

    /// Whether this node reaches too few voters to become primary, also while another one is: that one may hold no lease
    /// any more.
    fn lacks_voters(&self) -> bool {
        let short = |known: &Known| {
            matches!(self.no_primary(&known.configuration), Suspended::NoQuorum { .. })
        };
        self.lacks_majority() || self.known.as_ref().is_some_and(short)
    }

    fn has_primary(&self) -> bool {
        self.live_primary().is_some() || self.reign().is_some()
    }

    fn is_pending(&self, id: OperationId, operation: &Operation) -> bool {
        self.operations.iter().any(|one| one.id == id && one.operation == *operation)
    }

    pub(super) fn mark(&mut self, id: OperationId, change: impl Fn(&mut Pending)) {
        for pending in self.operations.iter_mut().filter(|pending| pending.id == id) {
            change(pending);
        }
    }

    fn run_demote(&mut self, id: OperationId, out: &mut Out) -> Option<Result<(), OperationError>> {
        if self.reign().is_none() {
            let asking = !matches!(self.role, Role::Idle);
            return (!asking).then_some(Err(OperationError::Already));
        }
        if self.may_drain() {
            self.drain(None, out);
        } else if self.reign().is_some_and(|reign| reign.drain.is_none()) {
            return None;
        }
        // Also where it joins a hand-over: clients here are no reason to lead again.
        self.want.demoted = true;
        self.mark(id, |pending| pending.busy = true);
        None
    }

    /// The drain that a demote waited for did not come to its end.
    pub(super) fn fail_demotes(&mut self, out: &mut Out) {
        let error = if self.waits_for_a_copy() {
            OperationError::NoCopy
        } else if self.is_leased() {
            OperationError::Late
        } else {
            OperationError::NoQuorum
        };
        for id in self.busy(&Operation::Demote) {
            self.want.demoted = false;
            self.finish(id, Err(error), out);
        }
    }

    /// What was asked has come about.
    pub(super) fn finish_busy(&mut self, operation: &Operation, out: &mut Out) {
        for id in self.busy(operation) {
            self.finish(id, Ok(()), out);
        }
    }

    fn busy(&self, operation: &Operation) -> Vec<OperationId> {
        self.operations
            .iter()
            .filter(|pending| pending.busy && pending.operation == *operation)
            .map(|pending| pending.id)
            .collect()
    }

    /// Whether this node is primary and a majority of the voters has said so lately.
    pub(super) fn is_leased(&self) -> bool {
        self.lease_until().is_some_and(|until| until > self.now)
    }

    /// A majority is given two leases to show itself; then a forced node goes on alone.
    fn alone_at(&self, pending: &Pending) -> Instant {
        let rest = self.timing.lease.0.saturating_mul(PATIENCE_LEASES - 2);
        pending.deadline - Duration(rest)
    }

    fn run_force(
        &mut self,
        pending: &Pending,
        out: &mut Out,
    ) -> Option<Result<(), OperationError>> {
        let known = self.known.clone()?;
        let usable = known.configuration.is_replica(self.node) && self.attached;
        let voter = self.own_voter().filter(|_| usable);
        let Some(voter) = voter else { return Some(Err(OperationError::NoReplica)) };
        if self.is_leased() || self.has_forked_alone() {
            return None;
        }
        if let Some(node) = self.live_primary() {
            return Some(Err(OperationError::OtherPrimary(node)));
        }
        if self.now < self.alone_at(pending) {
            return None;
        }
        let known = self.found_alone(known);
        if known.configuration.feature_level > self.feature_level {
            return Some(Err(OperationError::OldRelease));
        }
        self.force_alone(&known, voter, out);
        self.mark(pending.id, |pending| pending.busy = true);
        None
    }

    /// Whether this node's voter accepted a fork that it alone decides, on which this node does not act yet: its record
    /// is on its way to the disk. There is no way back: what was accepted may be there. Until then nobody hears of it,
    /// and nothing that others say counts.
    pub(super) fn has_forked_alone(&self) -> bool {
        !self.store.broken && self.has_accepted_lone_fork()
    }

    /// Whether the record as this node meant to store it accepts a fork that is not known to be decided. It may be on the disk, also
    /// if that says that it is not, or at others: who finds it there goes on from it.
    fn has_accepted_a_fork(&self) -> bool {
        let Some((known, record)) = self.known.as_ref().zip(self.record.as_ref()) else {
            return false;
        };
        // What was decided in a later reign has taken its place for good.
        let stands = |ballot: &Ballot| *ballot >= known.ballot;
        record
            .accepted
            .as_ref()
            .is_some_and(|(ballot, value)| stands(ballot) && value.fork > known.configuration.fork)
    }

    /// Whether that record accepts one that this node alone decides.
    fn has_accepted_lone_fork(&self) -> bool {
        let Some((known, record)) = self.known.as_ref().zip(self.record.as_ref()) else {
            return false;
        };
        record.accepted.as_ref().is_some_and(|(_, value)| {
            is_lone_fork(value, self.node, record.voter, known.configuration.fork)
        })
    }

    /// What a node that goes on alone goes on from. What its voter accepted may have been decided with that vote, and clients
    /// told so: a volume that has grown may have been written to. A fork that was tried is nothing of that kind.
    fn found_alone(&self, known: Known) -> Known {
        let fork = known.configuration.fork;
        self.best_known().filter(|best| best.configuration.fork == fork).unwrap_or(known)
    }

    /// Without a majority: this node's copy and vote are all there is from now on. A fork above the one that it accepted
    /// and that was not decided, too: nobody can have served in that one.
    fn force_alone(&mut self, known: &Known, voter: base::VoterId, out: &mut Out) {
        out.push(MemberOutput::Mark("member: forced alone"));
        if self.reign().is_some() {
            self.abdicate(out);
        } else if !matches!(self.role, Role::Idle) {
            self.abandon(out);
        }
        let mut base = (*known.configuration).clone();
        base.members = alloc::vec![MemberEntry {
            node: self.node,
            kind: MemberKind::Replica,
            voter,
            in_sync: true,
            incarnation: self.record.as_ref().map_or(Incarnation(0), |record| record.incarnation),
        }];
        let accepted = self.record.as_ref().and_then(|record| record.accepted.as_ref());
        let tried = accepted.filter(|(_, value)| value.fork > base.fork);
        let (fork, epoch) = tried.map_or((base.fork, base.epoch), |(_, v)| (v.fork, v.epoch));
        base.fork = fork + 1;
        base.epoch = Epoch(epoch.0 + FORK_EPOCHS);
        let mut next = base.clone();
        next.epoch = Epoch(base.epoch.0 + 1);
        next.reign = next.epoch;
        next.primary = Some(self.node);
        if self.may_lack(&known.configuration) {
            Self::lose_caches(&mut next);
        }
        let round = self.round_seen + 1;
        self.round_seen = round;
        let ballot = Ballot { round, node: self.node };
        self.slot = super::Slot { holder: Some(self.node), ballot, until: self.now };
        let grants = BTreeMap::from([(self.node, (voter, self.now))]);
        self.role = Role::Primary(Box::new(Reign::new(ballot, self.now, next.epoch, grants)));
        let from = (known.ballot, known.configuration.epoch);
        self.propose_from(from, Arc::new(base), next, Then::Promote, out);
    }

    /// The next change that an operator asked for.
    pub(super) fn change_operation(
        &mut self,
        known: &Configuration,
        out: &mut Out,
    ) -> Option<(Configuration, Then)> {
        let waiting: Vec<Pending> =
            self.operations.iter().filter(|pending| !pending.busy).cloned().collect();
        for pending in waiting {
            let change = match &pending.operation {
                Operation::AddMember { node, kind, voter } => {
                    self.add_member(known, *node, *kind, *voter)
                }
                Operation::RemoveMember { node } => self.remove_member(known, *node),
                Operation::Resize { volume, sectors, shrinks } => {
                    super::resize::resized(known, *volume, *sectors, *shrinks)
                }
                Operation::SetOptions(change) => self.change_options(known, change),
                Operation::Suspend(on) => {
                    Ok(Some(with_held(known, Held { requests: *on, ..known.held })))
                }
                Operation::PauseResync(on) => {
                    Ok(Some(with_held(known, Held { resync: *on, ..known.held })))
                }
                Operation::Verify { anew } if !pending.begun => Ok(self.verify_begun(known, *anew)),
                Operation::StopVerify => {
                    Self::verify_stopped(known).map(Some).ok_or(OperationError::Stopped)
                }
                Operation::Reserve { command: ReservationCommand::Report, .. } => continue,
                // Another primary has it, or did it.
                Operation::Reserve { .. } if pending.asked.is_elsewhere() => continue,
                Operation::Reserve { volume, host, command } => {
                    self.reserved(known, *volume, *host, command).map(Some)
                }
                Operation::Force if !self.may_force(known) => continue,
                Operation::Force => Ok(Some(self.forced(known))),
                Operation::Resolve { discard } => {
                    self.resolved(known, *discard).map(Some).ok_or(OperationError::LastReplica)
                }
                _ => continue,
            };
            match change {
                Err(error) => self.finish(pending.id, Err(error), out),
                Ok(None) => {}
                Ok(Some(next)) => {
                    // Excluding is a step on the way; the operation goes on after it.
                    let step = matches!(pending.operation, Operation::RemoveMember { .. })
                        && next.members.len() == known.members.len();
                    if step {
                        return Some((next, Then::Exclude));
                    }
                    if next == *known {
                        self.finish_or_await_shards(pending.id, known.epoch, out);
                        continue;
                    }
                    if is_only_begun(&pending.operation, known, &next) {
                        return Some((next, Then::Nothing));
                    }
                    // What a host asks for is not done twice.
                    let once = matches!(pending.operation, Operation::Reserve { .. });
                    self.mark(pending.id, |pending| (pending.busy, pending.begun) = (true, once));
                    return Some((next, Then::Operation(pending.id)));
                }
            }
        }
        None
    }

    /// Whether an operation is to let a majority decide again, and waits for a replica.
    fn waits_for_all(&self, id: OperationId) -> bool {
        let pending = self.operations.iter().find(|pending| pending.id == id);
        let Some(Operation::SetOptions(change)) = pending.map(|pending| &pending.operation) else {
            return false;
        };
        self.known.as_ref().is_some_and(|known| {
            let next = self.change_options(&known.configuration, change);
            self.reign().is_some() && next == Ok(None)
        })
    }

    /// Whether every replica is here and knows all that was decided: none goes on alone by what was before.
    fn all_know(&self, known: &Configuration) -> bool {
        known.replicas().filter(|&node| node != self.node).all(|node| {
            let peer = self.peers.get(&node).filter(|peer| peer.session.is_some());
            peer.is_some_and(|peer| peer.learned == known.epoch && !self.is_silent(peer))
        })
    }

    /// The change, if the options can be. `None`: a majority is to decide again, and a replica is waited for.
    fn change_options(
        &self,
        known: &Configuration,
        change: &OptionsChange,
    ) -> Result<Option<Configuration>, OperationError> {
        let next = Self::with_options(known, change)?;
        let waits = asks_a_majority_again(known, &next) && !self.all_know(known);
        Ok((!waits).then_some(next))
    }

    fn with_options(
        known: &Configuration,
        change: &OptionsChange,
    ) -> Result<Configuration, OperationError> {
        let options = change.applied(&known.options);
        let sums = options.data_checksum != known.options.data_checksum;
        let wanted = usize::from(options.in_sync_min);
        let raised = options.in_sync_min > known.options.in_sync_min;
        // Two sides cannot keep hosts from each other's copies.
        let registered = known.reservations.iter().any(|of| !of.registrants.is_empty());
        let parts = options.quorum == Quorum::Off && registered;
        if wire::check_options(&options).is_err() || sums || parts {
            return Err(OperationError::BadOption);
        }
        if raised && known.replicas().count() < wanted {
            return Err(OperationError::TooFewReplicas);
        }
        Ok(Configuration { options, ..Self::successor(known) })
    }

    /// What was told to clients since the last flush may be gone from here on, and what hosts did not want to persist.
    pub(super) fn lose_caches(next: &mut Configuration) {
        next.lost = next.epoch;
        crate::reservation::after_loss(&mut next.reservations);
    }

    fn add_member(
        &self,
        known: &Configuration,
        node: NodeId,
        kind: MemberKind,
        voter: base::VoterId,
    ) -> Result<Option<Configuration>, OperationError> {
        if known.member(node).is_some() {
            return Err(OperationError::Already);
        }
        let full = known.members.len() >= MEMBERS_MAX
            || (kind == MemberKind::Replica && known.replicas().count() >= REPLICAS_MAX);
        if full || node == NodeId(0) {
            return Err(OperationError::Full);
        }
        if !self.is_able(node, known) {
            return Err(OperationError::OldRelease);
        }
        let mut next = Self::successor(known);
        let incarnation = Incarnation(0);
        next.members.push(MemberEntry { node, kind, voter, in_sync: false, incarnation });
        next.members.sort_unstable_by_key(|member| member.node);
        self.decidable(known, next)
    }

    /// A change of voters is proposed only when it can be decided now: it is withdrawn only if it never can be.
    fn decidable(
        &self,
        known: &Configuration,
        next: Configuration,
    ) -> Result<Option<Configuration>, OperationError> {
        let now = self.is_reachable(known) && self.is_reachable(&next);
        Ok(now.then_some(next))
    }

    fn remove_member(
        &self,
        known: &Configuration,
        node: NodeId,
    ) -> Result<Option<Configuration>, OperationError> {
        let Some(entry) = known.member(node) else { return Err(OperationError::NoMember) };
        if entry.in_sync && !self.is_kept_without(known, node) {
            return Err(OperationError::LastReplica);
        }
        if entry.kind == MemberKind::Replica {
            let wanted = usize::from(known.options.in_sync_min);
            let others = known.replicas().filter(|&other| other != node).count();
            let in_sync = known.in_sync().filter(|&other| other != node).count();
            if others < wanted || (entry.in_sync && in_sync < wanted) {
                return Err(OperationError::TooFewReplicas);
            }
        }
        let mut without = Self::successor(known);
        without.members.retain(|member| member.node != node);
        if without.members.is_empty() {
            return Err(OperationError::LastReplica);
        }
        let without = self.decidable(known, without)?;
        if entry.in_sync && without.is_some() {
            let mut next = Self::successor(known);
            for member in next.members.iter_mut().filter(|member| member.node == node) {
                member.in_sync = false;
            }
            return Ok(Some(next));
        }
        Ok(without)
    }

    /// Whether a majority is there that makes this node's copy the truth.
    fn may_force(&self, known: &Configuration) -> bool {
        let own = known.member(self.node).map(|own| own.voter);
        self.is_leased() && self.is_reachable(known) && own.is_some() && own == self.own_voter()
    }

    /// Whether this copy may lack what clients were told is there. They get errors then until they open the volume anew,
    /// as if all caches were lost.
    fn may_lack(&self, known: &Configuration) -> bool {
        !(known.is_in_sync(self.node) && self.is_own_kept(known))
    }

    /// This node's copy is the truth from now on. If what its shards wrote as primary is not on that copy, a reign
    /// begins with it: what is open is not done when those that have it are not waited for any more.
    fn forced(&self, known: &Configuration) -> Configuration {
        let mut next = Self::successor(known);
        next.epoch = Epoch(known.epoch.0 + FORK_EPOCHS);
        next.fork += 1;
        if self.may_lack(known) {
            next.reign = next.epoch;
            Self::lose_caches(&mut next);
        }
        for member in &mut next.members {
            member.in_sync = member.node == self.node;
            if member.in_sync
                && let Some(record) = &self.record
            {
                member.incarnation = record.incarnation;
            }
        }
        next
    }

    fn start_cut(&mut self, id: OperationId, out: &mut Out) -> Option<Result<(), OperationError>> {
        let number = self.cut + 1;
        let reign = self.reign_mut()?;
        if reign.cut.is_some() || !reign.served {
            return None;
        }
        reign.cut = Some(Round { id, answered: BTreeSet::new(), number });
        self.cut = number;
        self.mark(id, |pending| pending.busy = true);
        Self::tell_shards(ToShard::Cut { number }, out);
        None
    }

    pub(super) fn on_cut_ready(&mut self, shard: u16, number: u64, out: &mut Out) {
        let shards = self.shards.len();
        let Some(reign) = self.reign_mut() else { return };
        let Some(cut) = reign.cut.as_mut().filter(|cut| cut.number == number) else { return };
        cut.answered.insert(shard);
        if cut.answered.len() < shards {
            return;
        }
        let id = cut.id;
        reign.cut = None;
        Self::tell_shards(ToShard::CutDone { number }, out);
        self.finish(id, Ok(()), out);
    }
}

/// The configuration with other things held back; the same if they are already.
fn with_held(known: &Configuration, held: Held) -> Configuration {
    if known.held == held {
        return known.clone();
    }
    Configuration { held, ..Member::successor(known) }
}

/// Whether the operation is done some time after this change: `watch_resize` and `watch_verify` tell when.
fn is_only_begun(operation: &Operation, known: &Configuration, next: &Configuration) -> bool {
    matches!(operation, Operation::Verify { .. })
        || next
            .volumes
            .iter()
            .zip(&known.volumes)
            .any(|(next, old)| next.grows_to.is_some() && next.grows_to != old.grows_to)
}

/// Whether a value is a fork that this voter of this node, and nobody else, decides.
pub(super) fn is_lone_fork(
    value: &Configuration,
    node: NodeId,
    voter: base::VoterId,
    above: u64,
) -> bool {
    let own = |member: &MemberEntry| (member.node, member.voter) == (node, voter);
    value.fork > above && value.members.len() == 1 && value.members.iter().all(own)
}

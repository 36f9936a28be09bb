//! Without quorum: who decides then, and which history came from which.
//!
//! With `quorum = off` a change is decided by a majority, or by every member that is connected, if this
//! node's own replica is in sync. A change of the second kind begins a new stretch, which the
//! configuration remembers together with the point at which it left the one before.
//!
//! Always: within a stretch history is one line, ordered by ballot and epoch; a history that is not
//! known to have come from another is taken for one that went its own way.
//!
//! Not here: everything else about a change (`register`), what becomes of two histories (`split`).

use super::peers::is_kept;
use super::{Member, Out, Proposal, Then, rank_value};
use crate::door::MemberOutput;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use base::{Ballot, Epoch, Instant, NodeId, VoterId};
use wire::{Configuration, LINEAGE_MAX, MemberEntry, MemberMessage, Quorum, Stretch};

/// Leases that a process waits after its start before it decides anything alone: the others may only be
/// slower to start.
pub(super) const ALONE_LEASES: u64 = 4;
/// What of a stretch's name is of the reign in which it began: sixteen bits. Another reign that has the same ones costs a
/// stretch that was not needed, no more.
const REIGN_BITS: u64 = 0xffff;

/// Whether a configuration is one without quorum.
pub(super) fn is_off(configuration: &Configuration) -> bool {
    configuration.options.quorum == Quorum::Off
}

/// Whether a majority is to decide from `next` on, where each copy in sync may go on alone before.
pub(super) fn asks_a_majority_again(base: &Configuration, next: &Configuration) -> bool {
    is_off(base) && !is_off(next)
}

/// Whether stretches matter to a configuration at all.
pub(super) fn is_lineal(configuration: &Configuration) -> bool {
    is_off(configuration) || !configuration.lineage.is_empty()
}

/// A random name that tells in which reign it was given.
fn name_in(reign: Epoch, random: u64) -> u64 {
    random & !REIGN_BITS | reign.0 & REIGN_BITS | 1 << 16
}

/// Whether a stretch began in this reign. Where it left the one before does not tell: a promote that had to be carried on
/// without those it waited for is some epochs above that.
fn began_in(reign: Epoch, stretch: &Stretch) -> bool {
    stretch.epoch.0 + 1 >= reign.0 || (stretch.id ^ reign.0) & REIGN_BITS == 0
}

/// Whether a configuration, committed under its ballot, is in the past of another, or the same.
pub(super) fn is_ancestor(one: (Ballot, &Configuration), of: (Ballot, &Configuration)) -> bool {
    let id = one.1.history();
    let after = if id == 0 {
        Some(0)
    } else {
        of.1.lineage.iter().position(|stretch| stretch.id == id).map(|at| at + 1)
    };
    let Some(after) = after else { return false };
    let end = of.1.lineage.get(after).map_or((of.0, of.1.epoch), |next| (next.ballot, next.epoch));
    (one.0, one.1.epoch) <= end
}

/// Whether `new` is to be taken where `old` is known: a fork above what it left, else what came from it.
pub(super) fn supersedes(new: (Ballot, &Configuration), old: (Ballot, &Configuration)) -> bool {
    if new.1.fork != old.1.fork {
        return new.1.fork > old.1.fork;
    }
    is_ancestor(old, new) && !is_ancestor(new, old)
}

/// Whether one value was proposed after another at the same voters: by ballot, then by epoch. Without quorum a
/// higher fork comes first, for those who decided it may be others. With a majority it does not: whoever proposed in a
/// higher ballot found the fork, unless it was not decided and cannot be any more.
pub(super) fn is_later(one: (Ballot, &Configuration), than: (Ballot, &Configuration)) -> bool {
    if is_off(one.1) || is_off(than.1) {
        return rank_value(one.0, one.1) > rank_value(than.0, than.1);
    }
    (one.0, one.1.epoch) > (than.0, than.1.epoch)
}

/// Whether a value that was found is to be gone on from, rather than another. One of a history that
/// went another way was never acted on by whoever gave it: else it would have said so first.
pub(super) fn is_above(value: (Ballot, &Configuration), than: (Ballot, &Configuration)) -> bool {
    let by_majority = !is_off(value.1) && !is_off(than.1);
    if value.1.fork != than.1.fork && by_majority {
        return is_later(value, than);
    }
    if is_lineal(value.1) || is_lineal(than.1) {
        return supersedes(value, than);
    }
    is_later(value, than)
}

/// Whether a fork, which may be decided or not, went from an earlier point than what is known: whoever knows more of that
/// history neither goes on from the fork nor stands by it. If it was decided, those who act on it say so (`split`), and
/// then this side is given up as a whole, its copy with it.
pub(super) fn leaves_behind(
    fork: (Ballot, &Configuration),
    known: (Ballot, &Configuration),
) -> bool {
    let off = is_off(fork.1) || is_off(known.1);
    off && fork.1.fork > known.1.fork && !is_ancestor(known, fork)
}

impl Member {
    /// Tells the wall clock: milliseconds since 1970 at `Instant(0)` of the clock that `step` is given.
    /// Only the policies about the younger and the older side need it.
    pub fn set_wall_clock(&mut self, origin_ms: u64) {
        self.wall_origin_ms = Some(origin_ms);
    }

    /// Whether the member's memory is connected, and on this side of the history.
    pub(super) fn takes_part(&self, entry: &MemberEntry) -> bool {
        self.has_its_vote(entry)
    }

    /// Those whose consent a lone decision needs: every member that is connected, this node included.
    fn party(&self, configuration: &Configuration) -> BTreeSet<NodeId> {
        let members = configuration.members.iter();
        members.filter(|entry| self.takes_part(entry)).map(|entry| entry.node).collect()
    }

    /// Whether this node may decide with those that are connected.
    pub(super) fn may_act_alone(&self, configuration: &Configuration) -> bool {
        is_off(configuration)
            && self.now >= self.alone_from
            && !self.disk_failed
            && configuration.is_in_sync(self.node)
            && self.is_own_kept(configuration)
            && self.own_voter().is_some()
    }

    /// Where no majority is left a node without a copy in sync decides nothing: it makes way, once its lease is over, for
    /// one that has such a copy.
    pub(super) fn make_way_for_a_copy(&mut self, out: &mut Out) {
        let over = self.lease_until().is_none_or(|until| until <= self.now);
        let promoted = self.reign().is_some_and(|reign| reign.promoted);
        if promoted && over && !self.can_reach_voters() && self.copy_that_decides().is_some() {
            out.push(MemberOutput::Mark("member: a primary without a copy makes way for one"));
            self.abdicate(out);
        }
    }

    /// Asks a node that may decide alone to be primary, for the sake of this node's clients.
    pub(super) fn ask_a_copy(&mut self, out: &mut Out) {
        let Some(node) = self.copy_that_decides() else { return };
        self.want.hold_until = self.now + self.timing.retry;
        self.send(node, MemberMessage::WantPrimary, out);
    }

    /// Whether no copy in sync is there, though one may be going on alone elsewhere: whatever was decided here would be
    /// another history, of nothing.
    pub(super) fn lacks_copies(&self, configuration: &Configuration) -> bool {
        is_off(configuration) && !self.reaches_a_copy(configuration)
    }

    /// A node that is connected and may decide without a majority, if this one may not.
    fn copy_that_decides(&self) -> Option<NodeId> {
        let known = &self.known.as_ref()?.configuration;
        if !is_off(known) || known.is_in_sync(self.node) {
            return None;
        }
        let is_there = |member: &&MemberEntry| {
            let hello = self.peers.get(&member.node).and_then(|peer| peer.hello.as_ref());
            member.in_sync && hello.is_some_and(|hello| is_kept(hello, member))
        };
        known.members.iter().find(is_there).map(|member| member.node)
    }

    /// Whether `node` could be primary: without a majority only one with a copy in sync can.
    pub(super) fn may_lead(&self, node: NodeId) -> bool {
        let Some(known) = &self.known else { return true };
        let known = &known.configuration;
        !is_off(known) || known.is_in_sync(node) || self.has_majority(known, &BTreeMap::new())
    }

    /// A node without a copy asks this one to be primary, since neither finds a majority.
    pub(super) fn step_in_for(&mut self) {
        let Some(known) = &self.known else { return };
        let idle = matches!(self.role, super::Role::Idle);
        if idle && self.may_act_alone(&known.configuration) {
            self.want.handed = true;
            self.want.attempt = 0;
            self.want.hold_until = self.now;
        }
    }

    /// Whether all that are connected consent, and that is enough.
    pub(super) fn is_alone_decided(
        &self,
        configuration: &Configuration,
        consents: impl Fn(&MemberEntry) -> bool,
    ) -> bool {
        self.may_act_alone(configuration)
            && configuration.members.iter().filter(|entry| self.takes_part(entry)).all(consents)
    }

    /// When time alone lets this node decide alone.
    pub(super) fn alone_deadline(&self) -> Option<Instant> {
        let off = self.known.as_ref().is_some_and(|known| is_off(&known.configuration));
        (off && self.alone_from > self.now).then_some(self.alone_from)
    }

    /// When the lease ends, if `majority` is when that of a majority does. Without quorum every in-sync member
    /// must have granted it, also one that is gone: it may go on alone once its slot is free, and what is
    /// read here after that would be old. Who is gone is excluded, and then not asked.
    pub(super) fn lease_with(
        &self,
        configuration: &Configuration,
        grants: &BTreeMap<NodeId, (VoterId, Instant)>,
        majority: Option<Instant>,
    ) -> Option<Instant> {
        if !is_off(configuration) {
            return majority;
        }
        let granted = configuration
            .members
            .iter()
            .filter(|entry| entry.in_sync)
            .map(|entry| grants.get(&entry.node).filter(|grant| grant.0 == entry.voter))
            .map(|grant| grant.map(|grant| grant.1));
        let all = granted.min()?? + self.timing.lease;
        if self.may_act_alone(configuration) { Some(all) } else { Some(all.min(majority?)) }
    }

    /// Whether a majority can still consent to the change, those counted that did.
    fn has_majority(
        &self,
        configuration: &Configuration,
        accepted: &BTreeMap<NodeId, VoterId>,
    ) -> bool {
        let count = configuration
            .members
            .iter()
            .filter(|entry| {
                accepted.get(&entry.node) == Some(&entry.voter) || self.takes_part(entry)
            })
            .count();
        count >= configuration.majority()
    }

    /// Milliseconds since 1970; 0 if nobody said.
    pub(super) fn wall_ms(&self) -> u64 {
        self.wall_origin_ms.map_or(0, |origin| origin.saturating_add(self.now.0 / 1_000_000))
    }

    fn stretch_from(&mut self, from: (Ballot, Epoch), reign: Epoch) -> Stretch {
        let at_ms = self.wall_ms();
        Stretch { id: name_in(reign, self.random.id()), ballot: from.0, epoch: from.1, at_ms }
    }

    /// Makes a proposal one that the connected members alone decide, if a majority is not there.
    pub(super) fn prepare_alone(&mut self, proposal: &mut Proposal) {
        let forks =
            self.known.as_ref().is_some_and(|known| known.configuration.fork < proposal.next.fork);
        if !is_off(&proposal.base) {
            // A fork has a name, whoever decides it.
            if forks {
                self.begin_stretch(proposal);
            }
            return;
        }
        let none = BTreeMap::new();
        let majority = self.has_majority(&proposal.base, &none)
            && self.has_majority(&proposal.next, &none)
            && !self.may_still_grow(&proposal.base)
            && !self.reign().is_some_and(|reign| reign.raised_alone);
        if majority && !forks {
            return;
        }
        let begun = self.reign_segment();
        let newest = proposal.base.lineage.last().map(|stretch| stretch.id);
        if forks || begun.is_none() || begun != newest {
            self.begin_stretch(proposal);
        } else if let Some(reign) = self.reign_mut() {
            // Nobody else has heard of the stretch.
            reign.raised_alone = false;
        }
        proposal.party = Some(self.party(&proposal.base));
    }

    /// Whether the primary that began the newest stretch may be going on with it alone, unheard of: it has not promised this
    /// node's reign. That a connection to it is there says nothing, it may have ended at the other end.
    fn may_still_grow(&self, base: &Configuration) -> bool {
        let begun = base.lineage.last().is_some_and(|newest| began_in(base.reign, newest));
        let gone = base.primary.is_some_and(|primary| match base.member(primary) {
            // What another memory of this node went on to nobody knows any more but those that it told.
            Some(entry) if primary == self.node => Some(entry.voter) != self.own_voter(),
            None if primary == self.node => false,
            entry => !entry.is_some_and(|entry| self.has_promised(entry)),
        });
        begun && gone
    }

    fn has_promised(&self, entry: &MemberEntry) -> bool {
        let super::Role::Primary(reign) = &self.role else { return false };
        reign.grants.get(&entry.node).is_some_and(|(voter, _)| *voter == entry.voter)
    }

    fn reign_segment(&self) -> Option<u64> {
        match &self.role {
            super::Role::Primary(reign) => reign.segment,
            _ => None,
        }
    }

    fn begin_stretch(&mut self, proposal: &mut Proposal) {
        let stretch = self.stretch_from(proposal.from, proposal.next.reign);
        let mut next = (*proposal.next).clone();
        next.lineage.clone_from(&proposal.base.lineage);
        next.lineage.push(stretch);
        if next.lineage.len() > LINEAGE_MAX {
            // Who is on the first stretch still finds where it was left.
            let oldest = next.lineage.remove(0);
            if let Some(first) = next.lineage.first_mut() {
                first.ballot = oldest.ballot;
                first.epoch = oldest.epoch;
            }
        }
        proposal.next = Arc::new(next);
        if let super::Role::Primary(reign) = &mut self.role {
            reign.segment = Some(stretch.id);
            reign.raised_alone = false;
        }
    }

    /// A stretch is gone on with only while nobody else can have gone on with it: no other member was told of it, not
    /// even one on another side, which may give that up and come to this one. Members that heard of it from a client
    /// begin another (`may_still_grow`).
    pub(super) fn watch_stretch(&mut self) {
        let told = self.known.as_ref().is_some_and(|known| {
            self.connected().iter().any(|&node| known.configuration.member(node).is_some())
        });
        if told && let Some(reign) = self.reign_mut() {
            reign.segment = None;
        }
    }

    /// Whether the connected members have decided the open change.
    pub(super) fn is_proposal_decided_alone(&self) -> bool {
        let super::Role::Primary(reign) = &self.role else { return false };
        let Some(proposal) = &reign.proposal else { return false };
        let Some(party) = &proposal.party else { return false };
        self.may_act_alone(&proposal.base)
            && party.iter().all(|node| {
                let accepted = proposal.accepted.get(node);
                accepted.is_some()
                    && proposal.base.member(*node).map(|entry| &entry.voter) == accepted
            })
    }

    /// Those on whom the open change waits are gone: it is made part of a later one, of another
    /// stretch, which is decided without them.
    pub(super) fn go_on_alone(&mut self, out: &mut Out) {
        let super::Role::Primary(reign) = &self.role else { return };
        let Some(proposal) = &reign.proposal else { return };
        if !self.may_act_alone(&proposal.base) {
            return;
        }
        let stuck = match &proposal.party {
            Some(party) => party.iter().any(|node| {
                !proposal.accepted.contains_key(node)
                    && !proposal.base.member(*node).is_some_and(|entry| self.takes_part(entry))
            }),
            None => {
                !self.has_majority(&proposal.base, &proposal.accepted)
                    || !self.has_majority(&proposal.next, &proposal.accepted)
            }
        };
        if !stuck {
            return;
        }
        let mut again = proposal.clone();
        let mut next = (*again.next).clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        let begins = next.reign == again.next.epoch;
        if begins {
            next.reign = next.epoch;
        }
        let reign_begins = next.reign;
        again.next = Arc::new(next);
        again.accepted.clear();
        self.begin_stretch(&mut again);
        again.party = Some(self.party(&again.base));
        let super::Role::Primary(reign) = &mut self.role else { return };
        if begins && again.then == Then::Promote {
            reign.reign = reign_begins;
        }
        reign.proposal = Some(again);
        out.push(MemberOutput::Mark("member: change decided by those that are left"));
        self.send_proposal(out);
    }
}

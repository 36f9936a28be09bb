//! Without quorum: who decides then, which history came from which, and what becomes of two.
//!
//! With `quorum = off` a change is decided by a majority, or by every member that is connected, if this
//! node's own replica is in sync. A change of the second kind begins a new generation, which the
//! configuration remembers together with the point at which it left the one before.
//!
//! Always: within a generation history is one line, ordered by ballot and epoch; a history that is not
//! known to have come from another is taken for one that went its own way. Nothing is given up but by
//! the operator, by the policy that both sides have, or by a node that changed nothing.
//!
//! Not here: everything else about a change (`register`), what a discarded copy does (`start`).

use super::{Known, Member, Out, Proposal, Then};
use crate::door::MemberOutput;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Instant, NodeId, VoterId};
use wire::{AfterSplitBrain, Configuration, Generation, LINEAGE_MAX, MemberEntry, Quorum};

/// Leases that a process waits after its start before it decides anything alone: the others may only be
/// slower to start.
pub(super) const ALONE_LEASES: u64 = 4;
/// Epochs that a resolved split brain leaves out, so that what the other side did is older for every
/// shard.
const FORK_EPOCHS: u64 = 1 << 32;

fn is_off(configuration: &Configuration) -> bool {
    configuration.options.quorum == Quorum::Off
}

/// Whether generations matter to a configuration at all.
pub(super) fn is_lineal(configuration: &Configuration) -> bool {
    is_off(configuration) || !configuration.lineage.is_empty()
}

/// Whether a configuration, committed under its ballot, is in the past of another, or the same.
fn is_ancestor(one: (Ballot, &Configuration), of: (Ballot, &Configuration)) -> bool {
    let id = one.1.lineage.last().map_or(0, |generation| generation.id);
    let after = if id == 0 {
        Some(0)
    } else {
        of.1.lineage.iter().position(|generation| generation.id == id).map(|at| at + 1)
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

/// When the first generation began that `mine` has and `theirs` has not.
fn parted_at(mine: &Configuration, theirs: &Configuration) -> Option<u64> {
    mine.lineage
        .iter()
        .find(|one| theirs.lineage.iter().all(|other| other.id != one.id))
        .map(|generation| generation.at_ms)
        .filter(|&at| at != 0)
}

impl Member {
    /// Tells the wall clock: milliseconds since 1970 at `Instant(0)` of the clock that `step` is given.
    /// Only the policies about the younger and the older side need it.
    pub fn set_wall_clock(&mut self, origin_ms: u64) {
        self.wall_origin_ms = Some(origin_ms);
    }

    /// Whether the member's memory is connected, and on this side of the history.
    fn takes_part(&self, entry: &MemberEntry) -> bool {
        self.voter_of(entry.node) == Some(entry.voter)
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

    /// When the lease ends that every connected in-sync member granted.
    pub(super) fn alone_lease(
        &self,
        configuration: &Configuration,
        grants: &BTreeMap<NodeId, (VoterId, Instant)>,
    ) -> Option<Instant> {
        if !self.may_act_alone(configuration) {
            return None;
        }
        let granted = configuration
            .members
            .iter()
            .filter(|entry| entry.in_sync && self.takes_part(entry))
            .map(|entry| grants.get(&entry.node).filter(|grant| grant.0 == entry.voter))
            .map(|grant| grant.map(|grant| grant.1));
        let sent = granted.min()??;
        Some(sent + self.timing.lease)
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

    fn generation_from(&mut self, from: (Ballot, Epoch)) -> Generation {
        let at_ms =
            self.wall_origin_ms.map_or(0, |origin| origin.saturating_add(self.now.0 / 1_000_000));
        Generation { id: self.random.id(), ballot: from.0, epoch: from.1, at_ms }
    }

    /// Makes a proposal one that the connected members alone decide, if a majority is not there.
    pub(super) fn prepare_alone(&mut self, proposal: &mut Proposal) {
        if !is_off(&proposal.base) {
            return;
        }
        let forks =
            self.known.as_ref().is_some_and(|known| known.configuration.fork < proposal.next.fork);
        let none = BTreeMap::new();
        let majority =
            self.has_majority(&proposal.base, &none) && self.has_majority(&proposal.next, &none);
        if majority && !forks {
            return;
        }
        let begun = self.reign_segment();
        let newest = proposal.base.lineage.last().map(|generation| generation.id);
        if forks || begun.is_none() || begun != newest {
            self.begin_generation(proposal);
        }
        proposal.party = Some(self.party(&proposal.base));
    }

    fn reign_segment(&self) -> Option<u64> {
        match &self.role {
            super::Role::Primary(reign) => reign.segment,
            _ => None,
        }
    }

    fn begin_generation(&mut self, proposal: &mut Proposal) {
        let generation = self.generation_from(proposal.from);
        let mut next = (*proposal.next).clone();
        next.lineage.clone_from(&proposal.base.lineage);
        next.lineage.push(generation);
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
            reign.segment = Some(generation.id);
        }
    }

    /// A generation is gone on with only while nobody else can have gone on with it.
    pub(super) fn watch_generation(&mut self) {
        let others = self.known.as_ref().is_some_and(|known| {
            let own = self.node;
            self.party(&known.configuration).iter().any(|&node| node != own)
        });
        if others && let Some(reign) = self.reign_mut() {
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
    /// generation, which is decided without them.
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
        self.begin_generation(&mut again);
        again.party = Some(self.party(&again.base));
        let super::Role::Primary(reign) = &mut self.role else { return };
        if begins && again.then == Then::Promote {
            reign.reign = reign_begins;
        }
        reign.proposal = Some(again);
        out.push(MemberOutput::Mark("member: change decided by those that are left"));
        self.send_proposal(out);
    }

    /// A peer says that this is committed where it is. Its history may have gone another way.
    pub(super) fn meet(
        &mut self,
        peer: NodeId,
        ballot: Ballot,
        configuration: Box<Configuration>,
        out: &mut Out,
    ) {
        let lineal = is_lineal(&configuration)
            || self.known.as_ref().is_some_and(|known| is_lineal(&known.configuration));
        let sound = super::register::is_sound(&configuration);
        let (true, true, Some(known)) = (lineal, sound, self.known.clone()) else {
            return self.learn(ballot, *configuration, out);
        };
        let mine = (known.ballot, &*known.configuration);
        let theirs = (ballot, &*configuration);
        if is_ancestor(mine, theirs) && mine.1.fork <= theirs.1.fork {
            self.end_split(peer);
            self.learn(ballot, *configuration, out);
            self.pass_on(peer, known.configuration.epoch, out);
        } else if is_ancestor(theirs, mine) && theirs.1.fork <= mine.1.fork {
            self.end_split(peer);
        } else {
            let lost = theirs.1.fork > mine.1.fork;
            let theirs = Known { ballot, configuration: Arc::new(*configuration) };
            self.begin_split(peer, theirs.clone(), out);
            if lost {
                self.give_up(peer, theirs, out);
            }
        }
    }

    /// Others may be on another side than the one that was just taken: they hear of it before they hear
    /// that this node acts on a configuration, which goes by its number alone.
    fn pass_on(&mut self, from: NodeId, before: Epoch, out: &mut Out) {
        if self.known.as_ref().is_some_and(|known| known.configuration.epoch == before) {
            return;
        }
        for peer in self.connected().into_iter().filter(|&peer| peer != from) {
            self.teach(peer, out);
        }
    }

    /// Whether a value comes from the history that this node is on.
    pub(super) fn is_on_this_side(&self, ballot: Ballot, value: &Configuration) -> bool {
        let Some(known) = &self.known else { return true };
        let lineal = is_lineal(value) || is_lineal(&known.configuration);
        !lineal
            || value.fork > known.configuration.fork
            || is_ancestor((known.ballot, &known.configuration), (ballot, value))
    }

    fn end_split(&mut self, peer: NodeId) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.split = None;
        }
    }

    fn begin_split(&mut self, node: NodeId, theirs: Known, out: &mut Out) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let fresh = peer.split.replace(theirs).is_none();
        peer.learned = Epoch(0);
        peer.ready = None;
        if fresh {
            out.push(MemberOutput::Mark("member: split brain"));
            self.stop_sync(node, out);
            self.teach(node, out);
        }
    }

    /// Another side was chosen earlier, and nothing is in the way any more.
    pub(super) fn check_given_up(&mut self, out: &mut Out) {
        if self.clients > 0 {
            return;
        }
        let Some(fork) = self.known.as_ref().map(|known| known.configuration.fork) else { return };
        let chosen = self.peers.iter().find_map(|(&node, peer)| {
            let theirs = peer.split.as_ref()?;
            (theirs.configuration.fork > fork).then(|| (node, theirs.clone()))
        });
        if let Some((peer, theirs)) = chosen {
            self.give_up(peer, theirs, out);
        }
    }

    /// The other side was chosen. This node's copy becomes a new one, to be compared and copied as a
    /// whole. Clients that saw its writes must have left: those would silently be gone for them.
    fn give_up(&mut self, peer: NodeId, theirs: Known, out: &mut Out) {
        if self.clients > 0 || self.phase != super::Phase::Running {
            return out.push(MemberOutput::Mark("member: discarded, waits for its clients"));
        }
        out.push(MemberOutput::Mark("member: own side discarded"));
        self.abandon_or_abdicate(out);
        self.end_split(peer);
        self.renew_identity(out);
        self.know(theirs.ballot, theirs.configuration, out);
        self.introduce(out);
    }

    fn abandon_or_abdicate(&mut self, out: &mut Out) {
        if self.reign().is_some() {
            self.abdicate(out);
        } else {
            self.abandon(out);
        }
    }

    /// Whether the peer is on another side of the history.
    pub(super) fn is_split(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.split.is_some())
    }

    /// Peers with the same right as this node, whose history went another way.
    fn splits(&self) -> Vec<(NodeId, Arc<Configuration>)> {
        let Some(fork) = self.known.as_ref().map(|known| known.configuration.fork) else {
            return Vec::new();
        };
        self.peers
            .iter()
            .filter_map(|(&node, peer)| Some((node, peer.split.as_ref()?.configuration.clone())))
            .filter(|(_, theirs)| theirs.fork == fork)
            .collect()
    }

    /// Whether an operator may choose this node's side against that of `discard`.
    pub(super) fn is_split_from(&self, discard: NodeId) -> bool {
        self.splits().iter().any(|(node, _)| *node == discard)
    }

    /// The peer whose side is to be given up, by the policy that both sides have.
    fn discarded_by_policy(&self) -> Option<NodeId> {
        let mine = self.known.as_ref()?.configuration.clone();
        if !self.may_act_alone(&mine) {
            return None;
        }
        self.splits()
            .into_iter()
            .find(|(node, theirs)| self.wins(*node, &mine, theirs))
            .map(|(node, _)| node)
    }

    fn wins(&self, peer: NodeId, mine: &Configuration, theirs: &Configuration) -> bool {
        let policy = mine.options.after_split_brain;
        if policy != theirs.options.after_split_brain {
            return false;
        }
        let times = parted_at(mine, theirs).zip(parted_at(theirs, mine));
        match policy {
            AfterSplitBrain::Disconnect => false,
            AfterSplitBrain::DiscardYounger => times.is_some_and(|(mine, other)| mine < other),
            AfterSplitBrain::DiscardOlder => times.is_some_and(|(mine, other)| mine > other),
            AfterSplitBrain::DiscardNode(node) => {
                let node = NodeId(node);
                node == peer
                    || (node != self.node && theirs.is_in_sync(node) && !mine.is_in_sync(node))
            }
        }
    }

    /// Whether this node would be primary only to end a split brain as the policy says.
    pub(super) fn wants_to_resolve(&self) -> bool {
        self.discarded_by_policy().is_some()
    }

    /// The change that the policy asks for.
    pub(super) fn change_resolve(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let discard = self.discarded_by_policy()?;
        Some((Self::resolved(known, discard)?, Then::Nothing))
    }

    /// This side's history goes on, and that of `discard` does not. `None`: it is the only copy here.
    pub(super) fn resolved(known: &Configuration, discard: NodeId) -> Option<Configuration> {
        let mut next = Self::successor(known);
        next.epoch = Epoch(known.epoch.0 + FORK_EPOCHS);
        next.fork += 1;
        for member in next.members.iter_mut().filter(|member| member.node == discard) {
            member.in_sync = false;
        }
        let any = next.in_sync().next().is_some();
        any.then_some(next)
    }
}

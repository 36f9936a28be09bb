//! Who is in sync: telling shards who is ready, excluding, including.
//!
//! Always: only a replica in the incarnation that the configuration names is kept; the last kept one
//! stays; a replica is included only when every shard said that it lacks nothing and that every open
//! write waits for it, in one and the same session.
//!
//! Not here: how a change is decided (`register`), copying (`shard`).

use super::lineage::asks_a_majority_again;
use super::{Known, Member, Out, Peer, PeerHello, Proposal, Role, Sync, Then, rank};
use crate::door::{MemberOutput, ToShard};
use crate::identity::is_another_copy;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Duration, Epoch, Incarnation, Instant, NodeId, SessionId};
use wire::{Configuration, MemberEntry, MemberKind};

/// An include is given up when shards have not confirmed it after so many times `Timing::peer_late`.
const REQUIRE_LATES: u64 = 10;

/// Doublings of the pause before a replica that failed is tried again, at most: 64 times `Timing::peer_late`.
const FAILURES_MAX: u32 = 6;

/// How an in-sync replica stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// Here, with the disk cache that the configuration names.
    Kept,
    /// Not here yet; it is waited for.
    Awaited,
    /// Here, but its cache was lost.
    Lost,
    /// Gone, silent, failed, or another memory.
    Gone,
}

/// Whether every copy that stays in sync has to accept a change.
fn awaits_all_in_sync(proposal: &Proposal) -> bool {
    proposal.then == Then::Exclude || asks_a_majority_again(&proposal.base, &proposal.next)
}

/// Whether what `hello` says is the memory that `entry` names.
fn is_same_voter(hello: &PeerHello, entry: &MemberEntry) -> bool {
    hello.voter == entry.voter && !hello.rolled_back
}

pub(super) fn is_kept(hello: &PeerHello, entry: &MemberEntry) -> bool {
    is_same_voter(hello, entry) && hello.attached && hello.incarnation == entry.incarnation
}

impl Member {
    /// Whether this node's own copy is the one that `configuration` names.
    pub(super) fn is_own_kept(&self, configuration: &Configuration) -> bool {
        let Some(entry) = configuration.member(self.node) else { return false };
        let Some(record) = &self.record else { return false };
        self.attached && entry.voter == record.voter && entry.incarnation == record.incarnation
    }

    /// When something about a peer changes by time alone.
    pub(super) fn peer_deadlines(&self, consider: &mut impl FnMut(Instant)) {
        let gathering = self.reign().is_some_and(|reign| !reign.served);
        for peer in self.peers.values().filter(|peer| peer.session.is_some() || gathering) {
            for at in [peer.answered + self.timing.peer_late, peer.since + self.timing.gather] {
                let at = at + Duration(1);
                if at > self.now {
                    consider(at);
                }
            }
            if let Some(until) = peer.failed.filter(|&until| until > self.now) {
                consider(until);
            }
        }
    }

    pub(super) fn standing(&self, entry: &MemberEntry) -> Standing {
        let Some(reign) = self.reign() else { return Standing::Awaited };
        if entry.node == self.node {
            return self.own_standing(entry);
        }
        let waiting = !reign.served && self.now < reign.gather_until;
        let absent = if waiting { Standing::Awaited } else { Standing::Gone };
        let Some(peer) = self.peers.get(&entry.node) else { return absent };
        if peer.split.is_some() {
            return Standing::Gone;
        }
        let Some(hello) = &peer.hello else {
            // Who went has as long to come back as who came to say who it is; also if it went before this reign.
            let fresh = self.now < peer.since + self.timing.gather;
            return match (peer.session.is_some(), fresh) {
                (true, true) => Standing::Awaited,
                (false, false) => Standing::Gone,
                _ => absent,
            };
        };
        if !is_same_voter(hello, entry)
            || !hello.attached
            || peer.failed.is_some()
            || peer.late.is_some()
        {
            return Standing::Gone;
        }
        if hello.incarnation != entry.incarnation {
            return Standing::Lost;
        }
        let patience = reign.gather_until.max(peer.since + self.timing.gather);
        if self.is_silent(peer) || (peer.learned < reign.reign && self.now >= patience) {
            return Standing::Gone;
        }
        Standing::Kept
    }

    /// Whether a node with a copy in sync is connected, or is this one.
    pub(super) fn reaches_a_copy(&self, configuration: &Configuration) -> bool {
        configuration.in_sync().any(|node| {
            let peer = self.peers.get(&node);
            node == self.node || peer.is_some_and(|peer| peer.hello.is_some())
        })
    }

    fn own_standing(&self, entry: &MemberEntry) -> Standing {
        match &self.record {
            Some(record) if record.voter == entry.voter && self.attached && !self.disk_failed => {
                if record.incarnation == entry.incarnation {
                    Standing::Kept
                } else {
                    Standing::Lost
                }
            }
            _ => Standing::Gone,
        }
    }

    /// Everything a primary does about its peers.
    pub(super) fn run_peers(&mut self, out: &mut Out) {
        self.forgive();
        self.tell_ready(out);
        self.run_resync(out);
        if self.reign().is_some_and(|reign| reign.proposal.is_none())
            && let Some((next, then)) = self.next_change(out)
            && let Some(base) = self.known.clone()
        {
            self.propose(base, next, then, out);
        }
    }

    /// Tells the shards which peers act on a configuration of this reign.
    fn tell_ready(&mut self, out: &mut Out) {
        let Some(reign) = self.reign().map(|reign| reign.reign) else { return };
        let Some(emitted) = self.emitted.clone() else { return };
        if emitted.reign != reign {
            return;
        }
        for (&node, peer) in &mut self.peers {
            let (Some(session), Some(hello)) = (peer.session, &peer.hello) else { continue };
            if peer.learned < reign || peer.learned > emitted.epoch {
                continue;
            }
            let kept = emitted.member(node).is_some_and(|entry| is_kept(hello, entry));
            let ready = Some((peer.learned, kept));
            if peer.ready != ready {
                peer.ready = ready;
                let epoch = peer.learned;
                out.push(MemberOutput::Shards(ToShard::PeerReady {
                    peer: node,
                    session,
                    epoch,
                    kept,
                }));
            }
        }
    }

    /// A peer that was excluded for being late and answers again may come back. So may one that failed, after a
    /// pause: if its disk did fail, it says so itself; else it may have been asked for what it could not know.
    fn forgive(&mut self) {
        let Some(known) = self.known.as_ref().map(|known| known.configuration.clone()) else {
            return;
        };
        let one_stays = known
            .members
            .iter()
            .any(|member| member.in_sync && self.standing(member) == Standing::Kept);
        let now = self.now;
        for (&node, peer) in &mut self.peers {
            // Where no kept one would stay, none is excluded: it counts again as soon as it answers.
            let may = !known.is_in_sync(node) || !one_stays;
            if may && peer.late.is_some_and(|late| peer.answered > late) {
                peer.late = None;
            }
            if may && peer.failed.is_some_and(|until| now >= until) {
                peer.failed = None;
            }
        }
    }

    /// Brings replicas that are not in sync nearer to it.
    fn run_resync(&mut self, out: &mut Out) {
        let Some(reign) = self.reign() else { return };
        if !reign.served || reign.drain.is_some() {
            return;
        }
        let Some(emitted) = self.emitted.clone() else { return };
        let shards = self.shards.len();
        let candidates: Vec<NodeId> = emitted
            .members
            .iter()
            .filter(|entry| entry.kind == MemberKind::Replica && !entry.in_sync)
            .filter(|entry| self.may_sync(entry, &emitted))
            .map(|entry| entry.node)
            .collect();
        for node in candidates {
            self.advance_resync(node, shards, out);
        }
    }

    fn advance_resync(&mut self, node: NodeId, shards: usize, out: &mut Out) {
        let now = self.now;
        // The answer needs a flush of the target's disk. A target that is late is complained about anyway.
        let patience = Duration(self.timing.peer_late.0.saturating_mul(REQUIRE_LATES));
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(session) = peer.session else { return };
        if let Some(since) = peer.sync.requiring {
            // A shard that had to give the resync up meanwhile does not answer.
            if peer.sync.required.len() < shards && now.since(since) > patience {
                self.stop_sync(node, out);
            }
        } else if peer.sync.synced.len() == shards {
            peer.sync.requiring = Some(now);
            peer.requires += 1;
            let number = peer.requires;
            Self::tell_shards(ToShard::Require { peer: node, session, number }, out);
        } else if !peer.sync.told || peer.sync.repeat {
            peer.sync.told = true;
            peer.sync.repeat = false;
            Self::tell_shards(ToShard::Resync { peer: node, session, gather: true }, out);
        }
    }

    /// Shards that could not begin, or had to give up, are told to resync again.
    pub(super) fn repeat_resyncs(&mut self) {
        for peer in self.peers.values_mut() {
            peer.sync.repeat = true;
        }
    }

    fn may_sync(&self, entry: &MemberEntry, emitted: &Configuration) -> bool {
        self.peers.get(&entry.node).is_some_and(|peer| {
            peer.learned == emitted.epoch
                && peer.failed.is_none()
                && peer.late.is_none()
                && peer.split.is_none()
                && !self.is_silent(peer)
                && peer
                    .hello
                    .as_ref()
                    .is_some_and(|hello| hello.attached && is_same_voter(hello, entry))
        })
    }

    pub(super) fn in_session(&mut self, node: NodeId, session: SessionId) -> Option<&mut Peer> {
        self.peers.get_mut(&node).filter(|peer| peer.session == Some(session))
    }

    pub(super) fn on_synced(&mut self, shard: u16, node: NodeId, session: SessionId) {
        if let Some(peer) = self.in_session(node, session)
            && peer.sync.told
        {
            peer.sync.synced.insert(shard);
        }
    }

    pub(super) fn on_required(
        &mut self,
        shard: u16,
        node: NodeId,
        session: SessionId,
        number: u64,
    ) {
        if let Some(peer) = self.in_session(node, session)
            && peer.sync.requiring.is_some()
            && peer.requires == number
        {
            peer.sync.required.insert(shard);
        }
    }

    pub(super) fn on_peer_failed(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let (now, patience) = (self.now, self.timing.peer_late);
        if let Some(peer) = self.in_session(node, session) {
            let pause = Duration(patience.0.saturating_mul(1 << peer.failures.min(FAILURES_MAX)));
            peer.failures += 1;
            peer.failed = Some(now + pause);
            self.stop_sync(node, out);
        }
    }

    pub(super) fn on_peer_late(&mut self, node: NodeId, session: SessionId, out: &mut Out) {
        let now = self.now;
        if let Some(peer) = self.in_session(node, session) {
            peer.late = Some(now);
            self.stop_sync(node, out);
        }
    }

    /// The resync of a peer has failed. Unless its include was proposed, nobody waits for it any more. What was
    /// proposed in a reign that is over may be chosen yet: then the shards wait until another begins.
    pub(super) fn stop_sync(&mut self, node: NodeId, out: &mut Out) {
        let proposed = self.reign().is_none_or(|reign| {
            !reign.promoted
                || reign.proposal.as_ref().is_some_and(|proposal| {
                    !proposal.base.is_in_sync(node) && proposal.next.is_in_sync(node)
                })
        });
        let in_sync = self.known.as_ref().is_some_and(|known| known.configuration.is_in_sync(node));
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let sync = core::mem::take(&mut peer.sync);
        if sync.requiring.is_some()
            && !proposed
            && !in_sync
            && let Some(session) = peer.session
        {
            Self::tell_shards(ToShard::Unrequire { peer: node, session }, out);
        }
    }

    /// What follows on this node when the shards were told of a configuration, after another one. Where they forget what was
    /// done to bring a replica in sync (`Shard::install`), what they said of it before counts no more either.
    pub(super) fn after_install(
        &mut self,
        before: Option<&Configuration>,
        configuration: &Arc<Configuration>,
        out: &mut Out,
    ) {
        for (&node, peer) in &mut self.peers {
            if configuration.is_in_sync(node) {
                peer.failures = 0;
            }
            // What a replica had before it was taken out says nothing of it once it is added again.
            if configuration.is_in_sync(node)
                || !configuration.is_replica(node)
                || before.is_some_and(|before| is_another_copy(before, configuration, node))
            {
                peer.sync = Sync::default();
            }
        }
        self.check_disk(out);
    }

    /// A failed disk is left alone as soon as other replicas have everything.
    pub(super) fn check_disk(&mut self, out: &mut Out) {
        if !self.disk_failed || self.detach_told {
            return;
        }
        let Some(emitted) = self.emitted.clone() else { return };
        let primary = self.reign().is_some();
        if self.may_be_alone(&emitted) || (primary && emitted.is_in_sync(self.node)) {
            return;
        }
        self.detach_told = true;
        self.attached = false;
        Self::tell_shards(ToShard::Detach, out);
        self.tell_own_ready(&emitted, out);
        self.introduce(out);
    }

    /// Whether this copy is all there is by what the shards were told, by what is known, or by what this node accepted since: that
    /// counted on this copy, and may be chosen.
    fn may_be_alone(&self, emitted: &Configuration) -> bool {
        let known = self.known.as_ref().map(|known| &*known.configuration);
        let accepted = self.record.as_ref().and_then(|record| record.accepted.as_ref());
        let accepted = accepted.map(|(_, value)| &**value);
        let open = accepted.filter(|value| known.is_none_or(|known| rank(value) > rank(known)));
        [Some(emitted), known, open].into_iter().flatten().any(|configuration| {
            configuration.is_in_sync(self.node) && configuration.in_sync().count() == 1
        })
    }

    /// The next change that is due, most urgent first.
    fn next_change(&mut self, out: &mut Out) -> Option<(Configuration, Then)> {
        let known = self.known.as_ref()?.configuration.clone();
        if let Some(change) = self.change_recover(&known).or_else(|| self.change_exclude(&known)) {
            return Some(change);
        }
        if let Some(change) = self.change_recovered(&known) {
            return Some(change);
        }
        if self.reign()?.drain.is_some() {
            return self.change_demote();
        }
        self.change_grown(&known)
            .or_else(|| self.change_resolve(&known))
            .or_else(|| self.change_overtake(&known))
            .or_else(|| self.change_invalidate(&known))
            .or_else(|| self.change_replace(&known))
            .or_else(|| self.change_operation(&known, out))
            .or_else(|| self.change_include(&known))
            .or_else(|| self.change_verified(&known))
            .or_else(|| self.change_level(&known))
    }

    pub(super) fn successor(known: &Configuration) -> Configuration {
        Configuration { epoch: Epoch(known.epoch.0 + 1), ..known.clone() }
    }

    /// The incarnation that the replica on `node` has now.
    fn incarnation_of(&self, node: NodeId) -> Option<Incarnation> {
        if node == self.node {
            return self.record.as_ref().map(|record| record.incarnation);
        }
        self.peers.get(&node)?.hello.as_ref().map(|hello| hello.incarnation)
    }

    /// Every in-sync replica lost its cache and is back: what they hold now is agreed on. A reign of its
    /// own, so that everybody gathers and reconciles anew, and what was open gets an error. One whose disk was
    /// replaced never comes back as what it was; with it goes what only its cache held, which was lost anyway
    /// where a flush had not put it on the others' disks too.
    fn change_recover(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let is_lost = |member: &MemberEntry| self.standing(member) == Standing::Lost;
        let mut in_sync = known.members.iter().filter(|member| member.in_sync);
        if !in_sync.clone().any(is_lost)
            || !in_sync.all(|member| is_lost(member) || self.is_replaced(member))
        {
            return None;
        }
        let mut next = Self::successor(known);
        next.recovering = true;
        Self::lose_caches(&mut next);
        next.reign = next.epoch;
        for member in next.members.iter_mut().filter(|member| member.in_sync) {
            if is_lost(member) {
                member.incarnation = self.incarnation_of(member.node)?;
            } else {
                member.in_sync = false;
            }
        }
        Some((next, Then::Recover))
    }

    /// Who is gone or lost its cache leaves, while one that is kept stays.
    fn change_exclude(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let standings: BTreeMap<NodeId, Standing> = known
            .members
            .iter()
            .filter(|member| member.in_sync)
            .map(|member| (member.node, self.standing(member)))
            .collect();
        let leaves =
            |node: &NodeId| matches!(standings.get(node), Some(Standing::Lost | Standing::Gone));
        let one_stays = standings.values().any(|standing| *standing == Standing::Kept);
        if !one_stays || !standings.keys().any(leaves) {
            return None;
        }
        let mut next = Self::successor(known);
        for member in next.members.iter_mut().filter(|member| leaves(&member.node)) {
            member.in_sync = false;
        }
        Some((next, Then::Exclude))
    }

    /// Whether the open change may count as committed once a majority accepted it. An exclude may only if
    /// every replica that stays in sync accepted it too and is still kept: a survivor that lost its cache
    /// before the change was chosen must not be what is left. So is it where a majority is to decide again: one that has not
    /// accepted that might go on alone. A change of voters may only if the lease that
    /// this node's shards were told is granted by a majority of the new voters too: a majority of those who come
    /// after them need not meet the voters of today.
    pub(super) fn may_commit(&self) -> bool {
        let Role::Primary(reign) = &self.role else { return false };
        let Some(proposal) = &reign.proposal else { return false };
        if !self.is_lease_granted_by(&proposal.base, &proposal.next, &reign.grants) {
            return false;
        }
        if !self.have_all_renounced(proposal) {
            return false;
        }
        !awaits_all_in_sync(proposal)
            || proposal.next.members.iter().filter(|member| member.in_sync).all(|member| {
                self.standing(member) == Standing::Kept
                    && (member.node == self.node || proposal.accepted.contains_key(&member.node))
            })
    }

    /// Where a majority is to decide again from the open change on, or from what it goes on from, which was found and may not
    /// have been decided: whether every copy that is in sync in what is known, this node's too, has it on its record. One that has
    /// not may go on alone, but for a memory that is gone for good. A fork leaves those behind that do.
    fn have_all_renounced(&self, proposal: &Proposal) -> bool {
        let Some(known) = self.known.as_ref().map(|known| &known.configuration) else {
            return true;
        };
        if proposal.next.fork > known.fork || !asks_a_majority_again(known, &proposal.next) {
            return true;
        }
        let mut in_sync = known.members.iter().filter(|member| member.in_sync);
        in_sync.all(|member| {
            let has_it = proposal.accepted.get(&member.node) == Some(&member.voter);
            has_it || self.is_replaced(member)
        })
    }

    /// The open change gives way to another one, with a higher epoch in the same ballot, when it cannot come about any
    /// more: an exclude whose survivors are gone or lost, or a change after which too few of the voters would still have
    /// the memory that it names. The shards have installed neither, so that every write acknowledged meanwhile is on
    /// all members of the set before, whichever of the two is ever found; and the other one has the voters from before,
    /// of whom any majority meets any of the first one's.
    pub(super) fn supersede(&mut self, out: &mut Out) {
        let Some(proposal) = self.reign().and_then(|reign| reign.proposal.clone()) else { return };
        let voters_gone = self.lost_its_voters(&proposal);
        if !voters_gone && !self.lost_its_survivors(&proposal) {
            return;
        }
        let base = &proposal.base;
        let change = self.change_exclude(base).or_else(|| self.change_recover(base));
        // What was before is better than what can never be.
        let unchanged = voters_gone.then(|| ((**base).clone(), Then::Nothing));
        let Some((mut next, then)) = change.or(unchanged) else { return };
        next.epoch = Epoch(proposal.next.epoch.0 + 1);
        if then == Then::Recover {
            next.reign = next.epoch;
        }
        out.push(if voters_gone {
            MemberOutput::Mark("member: a change of voters that are gone gave way to another")
        } else {
            MemberOutput::Mark("member: an exclude gave way to another")
        });
        if let Some(reign) = self.reign_mut() {
            reign.proposal = None;
        }
        if let Then::Operation(id) = proposal.then {
            self.mark(id, |pending| pending.busy = false);
        }
        let base = Known { ballot: proposal.from.0, configuration: proposal.base };
        self.propose(base, next, then, out);
    }

    fn lost_its_survivors(&self, proposal: &Proposal) -> bool {
        let stays = |member: &MemberEntry| {
            matches!(self.standing(member), Standing::Kept | Standing::Awaited)
        };
        awaits_all_in_sync(proposal)
            && !proposal.next.members.iter().filter(|member| member.in_sync).all(stays)
    }

    /// What a promote goes on from was found, and may be chosen.
    fn lost_its_voters(&self, proposal: &Proposal) -> bool {
        proposal.then != Then::Promote
            && !self.may_have_majority(&proposal.next)
            && self.may_have_majority(&proposal.base)
    }

    fn change_recovered(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let reign = self.reign()?;
        let done = known.recovering
            && reign.reconciled.len() == self.shards.len()
            && known
                .members
                .iter()
                .filter(|member| member.in_sync)
                .all(|member| self.standing(member) == Standing::Kept);
        if !done {
            return None;
        }
        let mut next = Self::successor(known);
        next.recovering = false;
        Some((next, Then::Nothing))
    }

    /// What shards said of a replica counts under the configuration that they were told last: with a newer one it may
    /// have been excluded meanwhile, and then they have yet to hear that nobody waits for it.
    pub(super) fn change_include(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        if self.emitted.as_ref().is_none_or(|emitted| emitted.epoch != known.epoch) {
            return None;
        }
        let ready = known.members.iter().find(|member| {
            !member.in_sync
                && member.kind == MemberKind::Replica
                && self.peers.get(&member.node).is_some_and(|peer| {
                    peer.sync.required.len() == self.shards.len()
                        && peer.failed.is_none()
                        && peer.late.is_none()
                        && !self.is_silent(peer)
                        && peer
                            .hello
                            .as_ref()
                            .is_some_and(|hello| hello.attached && is_same_voter(hello, member))
                })
        })?;
        let incarnation = self.incarnation_of(ready.node)?;
        let node = ready.node;
        let mut next = Self::successor(known);
        for member in next.members.iter_mut().filter(|member| member.node == node) {
            member.in_sync = true;
            member.incarnation = incarnation;
        }
        Some((next, Then::Nothing))
    }
}

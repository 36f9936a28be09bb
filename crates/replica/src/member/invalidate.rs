//! A copy that is declared worthless: it is left out, and all of it is copied anew.
//!
//! The primary says so in the register: not in sync, and in place of the incarnation a mark of its own. Whoever
//! learns of a new mark counts every block of the copy as dirty. The node keeps its vote, because what is in doubt is its data and not its memory:
//! so two replicas are enough, and nothing is given up before the others hold everything by the register.
//!
//! Always: a replica is left out only while another one that is kept stays; it is done when this node
//! has learned it, and nobody copies to it before.
//!
//! Not here: how a change is decided (`register`), the bits (`register::update_slots`, `shard`).

use super::operations::ASK_RETRIES;
use super::{Member, Out, Pending, Then};
use crate::door::{MemberOutput, Operation, OperationError, OperationId};
use alloc::vec::Vec;
use base::{Duration, Incarnation, NodeId, VoterId};
use wire::{Configuration, MemberEntry, MemberKind, MemberMessage};

/// The number of what a node asks of itself, of which nobody is told; those of operators begin with 1.
pub(super) const OWN: OperationId = OperationId(0);

impl Member {
    /// Asks the primary, until the configuration says so.
    pub(super) fn run_invalidate(
        &mut self,
        pending: &Pending,
        out: &mut Out,
    ) -> Option<Result<(), OperationError>> {
        let known = self.known.as_ref().map(|known| known.configuration.clone());
        let entry = known.as_ref().and_then(|known| known.member(self.node));
        let is_own = entry.is_some_and(|entry| self.is_of_this_disk(entry));
        let (Some(known), Some(entry), true) = (&known, entry, is_own) else {
            return Some(Err(OperationError::NoReplica));
        };
        if entry.kind != MemberKind::Replica {
            return Some(Err(OperationError::NoReplica));
        }
        let from = pending.from.filter(|_| entry.is_void()).unwrap_or(entry.incarnation);
        if entry.is_void() && entry.incarnation != from {
            out.push(MemberOutput::Mark("member: invalidated"));
            return Some(Ok(()));
        }
        self.mark(pending.id, |pending| pending.from = Some(from));
        if entry.in_sync && known.in_sync().count() == 1 {
            return Some(Err(OperationError::LastReplica));
        }
        self.ask_primary(pending, MemberMessage::Invalidate { incarnation: from }, out);
        None
    }

    /// Of a copy that may have lost what no log names nothing counts once another one is there: nobody would find what differs. The
    /// node says so as an operator would, until that is known.
    pub(super) fn give_up_unsure(&mut self) {
        let Some(known) = self.known.as_ref().map(|known| &known.configuration) else { return };
        if self.unsure.is_none_or(|at| at > self.now) {
            return;
        }
        let own = known.member(self.node).filter(|entry| self.is_of_this_disk(entry));
        if own.is_none_or(MemberEntry::is_void) {
            self.unsure = None;
            self.note_unsure(false);
            return;
        }
        let alone = known.is_in_sync(self.node) && known.in_sync().count() == 1;
        if !alone && self.is_worthless().is_none() {
            self.on_operation(OWN, Operation::Invalidate);
        }
        self.unsure = Some(self.now + self.timing.lease);
    }

    /// A shard does not know what of this copy its disk lost. Neither does a later process.
    pub(super) fn on_unsure(&mut self) {
        self.unsure = Some(self.now);
        self.note_unsure(true);
    }

    fn note_unsure(&mut self, unsure: bool) {
        if let Some(record) = self.record.as_mut().filter(|record| record.unsure != unsure) {
            record.unsure = unsure;
            self.store_soon();
        }
    }

    /// Whether what a configuration says of this node is said of the disk that it has, which may take no record any more.
    fn is_of_this_disk(&self, entry: &MemberEntry) -> bool {
        self.record.as_ref().is_some_and(|record| record.voter == entry.voter)
    }

    /// Whether its node speaks of the disk that an entry names: by the vote that it has, or, if that disk takes no record any more,
    /// without any. Then the node has seen to it.
    fn may_speak_of(&self, entry: &MemberEntry) -> bool {
        if entry.node == self.node {
            return self.is_of_this_disk(entry);
        }
        let peer = self.peers.get(&entry.node).filter(|peer| peer.split.is_none());
        let hello = peer.and_then(|peer| peer.hello.as_ref()).filter(|hello| !hello.rolled_back);
        hello.is_some_and(|hello| [entry.voter, VoterId(0)].contains(&hello.voter))
    }

    /// What the configuration named when this node's copy was declared worthless.
    fn is_worthless(&self) -> Option<Incarnation> {
        let mut invalidates =
            self.operations.iter().filter(|pending| pending.operation == Operation::Invalidate);
        invalidates.find_map(|pending| pending.from)
    }

    /// A replica says that its copy is worthless. It says so again and again until it learns that this is known, so that what
    /// comes late must not count when the copy has been made anew, nor when it has ceased to say so: its operator was told
    /// that it cannot be.
    pub(super) fn on_invalidate(&mut self, node: NodeId, incarnation: Incarnation) {
        let known = self.known.as_ref().map(|known| known.configuration.clone());
        let named = known.and_then(|known| known.member(node).map(|entry| entry.incarnation));
        if let Some(peer) = self.peers.get_mut(&node)
            && named == Some(incarnation)
        {
            peer.worthless = Some((incarnation, self.now));
        }
    }

    /// The change that leaves a worthless copy out.
    pub(super) fn change_invalidate(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let patience = Duration(self.timing.retry.0.saturating_mul(2 * ASK_RETRIES));
        let worthless = |entry: &MemberEntry| {
            let node = entry.node;
            let said = if node == self.node {
                self.is_worthless()
            } else {
                let said = self.peers.get(&node).and_then(|peer| peer.worthless);
                said.filter(|&(_, at)| self.now < at + patience).map(|(incarnation, _)| incarnation)
            };
            said == Some(entry.incarnation)
                && self.may_speak_of(entry)
                && entry.kind == MemberKind::Replica
        };
        let entry = known.members.iter().find(|&entry| {
            worthless(entry) && (!entry.in_sync || self.is_kept_without(known, entry.node))
        })?;
        let then = if entry.in_sync { Then::Exclude } else { Then::Nothing };
        let node = entry.node;
        let mut next = Self::successor(known);
        let mark = MemberEntry::void(next.epoch);
        for member in next.members.iter_mut().filter(|member| member.node == node) {
            member.in_sync = false;
            member.incarnation = mark;
        }
        Some((next, then))
    }

    /// Whether a replica on another node than `node` is kept.
    pub(super) fn is_kept_without(&self, known: &Configuration, node: NodeId) -> bool {
        known.members.iter().any(|member| {
            member.node != node
                && member.in_sync
                && self.standing(member) == super::peers::Standing::Kept
        })
    }

    /// A copy that was declared worthless by this change: what was copied to it counts for nothing.
    pub(super) fn forget_worthless(
        &mut self,
        base: &Configuration,
        next: &Configuration,
        out: &mut Out,
    ) {
        let voided = |entry: &&MemberEntry| is_voided(entry, base.member(entry.node));
        let nodes: Vec<NodeId> =
            next.members.iter().filter(voided).map(|entry| entry.node).collect();
        for node in nodes {
            self.stop_sync(node, out);
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.worthless = None;
            }
        }
    }
}

/// Whether a replica's copy became worthless since it was what `before` says.
pub(super) fn is_voided(entry: &MemberEntry, before: Option<&MemberEntry>) -> bool {
    entry.is_void() && before.is_none_or(|before| before.incarnation != entry.incarnation)
}

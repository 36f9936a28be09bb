//! A member whose memory is another than the one that the configuration names: its disk was emptied, put
//! back to an old image, or could not be believed. It becomes a new voter and a new, empty copy.
//!
//! Always: two changes, of one voter each: first the old identity loses its vote, then the new one gets it.
//! In between the member stays in the configuration with voter 0, so that whoever is primary then ends it.
//!
//! Not here: how a memory finds out that it is another one (`start`).

use super::{Member, Then};
use alloc::vec::Vec;
use base::{Incarnation, NodeId, VoterId};
use wire::{Configuration, MemberEntry};

impl Member {
    /// The identity under which the memory on `node` votes now, if it may be counted.
    pub(super) fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        if node == self.node {
            return self.own_voter();
        }
        let peer = self.peers.get(&node).filter(|peer| peer.split.is_none())?;
        let hello = peer.hello.as_ref()?;
        (!hello.rolled_back && hello.voter != VoterId(0)).then_some(hello.voter)
    }

    /// Whether the memory that gave the vote which `entry` names is here, and on this side of the history.
    pub(super) fn has_its_vote(&self, entry: &MemberEntry) -> bool {
        self.voter_of(entry.node) == Some(entry.voter)
    }

    /// How many of the votes that `configuration` names are here. One that went with its memory is gone, though its node be here.
    pub(super) fn votes_here(&self, configuration: &Configuration) -> usize {
        configuration.voters().filter(|entry| self.has_its_vote(entry)).count()
    }

    /// Whether a majority of the voters of `configuration` would accept something now. One that is silent, or owes
    /// an answer, may never come back as what it was.
    pub(super) fn is_reachable(&self, configuration: &Configuration) -> bool {
        let Some(reign) = self.reign() else { return false };
        let count = configuration
            .voters()
            .filter(|member| !reign.refused.contains(&member.node))
            .filter(|member| self.has_its_vote(member))
            .filter(|member| {
                let peer = self.peers.get(&member.node);
                peer.is_none_or(|peer| peer.late.is_none() && !self.is_silent(peer))
            })
            .count();
        count >= configuration.majority()
            || self.is_alone_decided(configuration, |member| !reign.refused.contains(&member.node))
    }

    /// Whether the memory that `entry` names is gone for good: its node shows another one.
    pub(super) fn is_replaced(&self, entry: &MemberEntry) -> bool {
        self.voter_of(entry.node).is_some_and(|voter| voter != entry.voter)
    }

    /// Whether enough of the voters of `configuration` may still have the memory that it names, here or not.
    pub(super) fn may_have_majority(&self, configuration: &Configuration) -> bool {
        let left = configuration.voters().filter(|entry| !self.is_replaced(entry)).count();
        left >= configuration.majority()
    }

    /// The next change that gives a member's vote to the memory that it has now: of those whose old one is
    /// out already, first.
    pub(super) fn change_replace(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let lost = VoterId(0);
        let mut replaced: Vec<&MemberEntry> = known
            .members
            .iter()
            .filter(|entry| !entry.in_sync && self.is_replaced(entry))
            .collect();
        replaced.sort_by_key(|entry| entry.voter != lost);
        replaced.into_iter().find_map(|entry| {
            let voter = if entry.voter == lost { self.voter_of(entry.node)? } else { lost };
            let mut next = Self::successor(known);
            for member in next.members.iter_mut().filter(|member| member.node == entry.node) {
                member.voter = voter;
                member.incarnation = Incarnation(0);
            }
            let decidable = self.is_reachable(known) && self.is_reachable(&next);
            decidable.then_some((next, Then::Nothing))
        })
    }
}

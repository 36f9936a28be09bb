//! A reign that goes on under a higher ballot.
//!
//! A voter that promised a higher ballot to a node that lost refuses the primary for as long as the ballot
//! stays: one voter less in every majority, and a survivor that can confirm no exclude. The primary
//! asks all voters to promise it a still higher ballot, and goes on under that one.
//!
//! Always: no lease is given back and no reign begins by it; the ballot changes only with promises from a
//! majority of the voters known and proposed; a value of somebody else found while asking ends the reign,
//! because it may be chosen; an open change is counted anew under the new ballot.
//!
//! Not here: the first ballot of a reign (`proposer`).

use super::lineage::is_above;
use super::store::Effect;
use super::{Known, Member, Out, Role, is_majority};
use crate::door::MemberOutput;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{Ballot, Duration, Instant, NodeId, VoterId};
use wire::{Configuration, MemberMessage};

/// Heartbeats between two attempts.
const RAISE_HEARTBEATS: u64 = 4;

/// A higher ballot, asked for.
#[derive(Clone, Debug, Hash)]
pub(super) struct Raise {
    pub(super) ballot: Ballot,
    sent: Instant,
    pub(super) promises: BTreeMap<NodeId, VoterId>,
}

impl Member {
    /// Whether a voter that is here refuses the ballot of this reign; or a higher one was asked for and not
    /// won, so that those who promised it refuse this one.
    fn is_raise_due(&self) -> bool {
        self.reign().is_some_and(|reign| {
            let refuses = |&node: &NodeId| node == self.node || self.counts(node);
            reign.raise.is_some() || reign.refused.iter().any(refuses)
        })
    }

    pub(super) fn raise_deadline(&self, consider: &mut impl FnMut(Instant)) {
        if let Some(reign) = self.reign()
            && reign.raise_at > self.now
            && self.is_raise_due()
        {
            consider(reign.raise_at);
        }
    }

    /// Asks for a higher ballot if a voter that is here refuses the present one.
    pub(super) fn run_raise(&mut self, out: &mut Out) {
        let now = self.now;
        if !self.is_raise_due() || self.reign().is_none_or(|reign| now < reign.raise_at) {
            return;
        }
        let promised = self.record.as_ref().map_or(0, |record| record.promised.round);
        let node = self.node;
        let pause = Duration(self.timing.heartbeat.0.saturating_mul(RAISE_HEARTBEATS));
        let mut voters = self.known.as_ref().map_or_else(BTreeSet::new, |known| {
            known.configuration.members.iter().map(|member| member.node).collect()
        });
        let round = self.round_seen.max(promised);
        let Some(reign) = self.reign_mut() else { return };
        let ballot = Ballot { round: round.max(reign.ballot.round) + 1, node };
        reign.raise = Some(Raise { ballot, sent: now, promises: BTreeMap::new() });
        reign.raise_at = now + pause;
        if let Some(proposal) = &reign.proposal {
            voters.extend(proposal.next.members.iter().map(|member| member.node));
        }
        self.round_seen = ballot.round;
        out.push(MemberOutput::Mark("member: a higher ballot is asked for"));
        for voter in voters {
            if voter != self.node {
                self.send(voter, MemberMessage::Prepare { ballot }, out);
            } else if self.promise(ballot).is_ok() {
                self.persist(Effect::OwnPromise(ballot), out);
            }
        }
    }

    /// A voter promised; `accepted` is the value that it holds.
    pub(super) fn on_raise_promise(
        &mut self,
        node: NodeId,
        ballot: Ballot,
        voter: VoterId,
        accepted: Option<(Ballot, &Configuration)>,
        out: &mut Out,
    ) {
        let Some(Known { ballot: under, configuration: known }) = self.known.clone() else {
            return;
        };
        let goes_on = accepted.is_some_and(|value| self.is_above_known(value));
        let Some(reign) = self.reign_mut() else { return };
        let Some(raise) = reign.raise.as_mut().filter(|raise| raise.ballot == ballot) else {
            return;
        };
        let newest = reign.proposal.as_ref().map_or(&known, |proposal| &proposal.next);
        // Below a ballot that no majority promised one may have decided what is not known here.
        let from = if reign.raised_alone { under } else { reign.ballot };
        let newer = |value: (Ballot, &Configuration)| {
            goes_on && value.1 != &**newest && is_above(value, (from, newest))
        };
        if accepted.is_some_and(newer) {
            out.push(MemberOutput::Mark("member: a value of another node found in a reign"));
            return self.abdicate(out);
        }
        raise.promises.insert(node, voter);
        let (newest, promises) = (newest.clone(), raise.promises.clone());
        if self.is_consent(&known, &promises) && self.is_consent(&newest, &promises) {
            let majority = is_majority(&known, &promises) && is_majority(&newest, &promises);
            self.change_ballot(!majority, out);
        }
    }

    /// From now on this reign's ballot is the one that a majority promised, or, `alone`, all that are connected.
    fn change_ballot(&mut self, alone: bool, out: &mut Out) {
        let now = self.now;
        let Role::Primary(reign) = &mut self.role else { return };
        let Some(raise) = reign.raise.take() else { return };
        reign.ballot = raise.ballot;
        reign.raised_alone = alone;
        reign.heartbeat_at = now;
        if let Some(proposal) = &mut reign.proposal {
            proposal.accepted.clear();
        }
        reign.refused.retain(|node| !raise.promises.contains_key(node));
        for (node, voter) in raise.promises {
            self.grant(node, voter, raise.sent);
        }
        out.push(MemberOutput::Mark("member: the reign goes on under a higher ballot"));
        self.send_accepts(out);
        self.accept_own(out);
    }
}

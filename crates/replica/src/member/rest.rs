//! A primary that can do nothing any more, and is told by an operator to be it no longer.
//!
//! A reign ends in good order when what is open is done and a majority has decided so (`primary`). Where one of the two cannot
//! come about, it ends at an operator's word as it does where others end it: what is open waits for the next primary. While
//! such a primary lives, no copy that is left could be forced, for whoever hears it is told that there is one.
//!
//! Always: no reign ends so while it could answer, or unless an operator waits for its end; a lease that may still run is
//! not given back.
//!
//! Not here: which vote is whose (`replace`), the primary that somebody else asks to make way (`primary`).

use super::peers::Standing;
use super::{Member, Out, Role};
use crate::door::{MemberOutput, Operation};

impl Member {
    /// Ends a reign that can end in no other way, if an operator waits for that.
    pub(super) fn rest(&mut self, out: &mut Out) {
        let ends = self.is_asked_by_an_operator()
            && (self.has_lost_its_voters() || self.has_lost_its_copies());
        let Role::Primary(reign) = &self.role else { return };
        if !ends {
            return;
        }
        let raised = reign.raise.as_ref().map(|raise| raise.ballot);
        let ballots = [Some(reign.ballot), raised];
        out.push(MemberOutput::Mark("member: a primary that can do nothing is demoted"));
        self.finish_busy(&Operation::Demote, out);
        self.abdicate(out);
        if self.now >= self.leased_until {
            for ballot in ballots.into_iter().flatten() {
                self.release(ballot, out);
            }
        }
    }

    /// Whether an operator waits for the end of this reign.
    fn is_asked_by_an_operator(&self) -> bool {
        let ends = |pending: &super::Pending| pending.operation == Operation::Demote;
        self.reign().is_some()
            && self.operations.iter().any(|pending| pending.busy && ends(pending))
    }

    /// Whether its lease is over, and too few votes are there that anything could be decided. What counts are votes, not
    /// nodes: who has none, or another than the one that is named, decides nothing; nor does who is silent.
    fn has_lost_its_voters(&self) -> bool {
        let Some(known) = self.known.as_ref().map(|known| &known.configuration) else {
            return false;
        };
        let silent = |node| self.peers.get(&node).is_some_and(|peer| self.is_silent(peer));
        let here = known.voters().filter(|entry| self.has_its_vote(entry) && !silent(entry.node));
        self.now >= self.leased_until
            && !self.is_leased()
            && !self.may_act_alone(known)
            && here.count() < known.majority()
    }

    /// Whether its shards had their time to finish what is open, and cannot, for no copy in sync is there.
    fn has_lost_its_copies(&self) -> bool {
        let over = self.reign().and_then(|reign| reign.drain.as_ref());
        let Some(known) = self.known.as_ref().filter(|_| over.is_some_and(|d| self.now >= d.until))
        else {
            return false;
        };
        let mut in_sync = known.configuration.members.iter().filter(|entry| entry.in_sync);
        !in_sync.any(|entry| self.standing(entry) == Standing::Kept)
    }
}

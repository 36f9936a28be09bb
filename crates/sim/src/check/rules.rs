//! What must hold in every state of the search.
//!
//! - *one value*: no two values are proposed in one ballot and epoch;
//! - *promised*: the first value of a ballot is proposed when a majority promised it, each under the identity
//!   that votes; none is proposed in the place of one that a majority accepted in a lower ballot;
//! - *one line*: a configuration counts as committed when a majority, of its voters and of those before, accepted it in
//!   its ballot; no two are committed in one epoch, and each follows from the one before by one change;
//! - *stable*: what a voter promised, accepted or knows to be committed never goes back, and is on its disk before it
//!   is said; no ballot is promised twice, no lease renewed below a promise;
//! - *lease*: shards are told of no lease that a majority of the voters, and of those proposed, did not grant; who gives
//!   leases back answers no more;
//! - *one primary*: no two nodes answer at once, none does under an older reign once a newer one is committed, none
//!   for a reign of another process, none while the end of its reign is proposed;
//! - *writes*: every kept in-sync replica holds every write that was acknowledged; whose include is proposed is waited for;
//! - *rule 10*: an exclude leaves a replica that is kept, or one that accepted it while it was, and is accepted by no survivor
//!   whose cache is another.
//!
//! Not here: how a state comes about (`world`).

use super::hash;
use base::{Ballot, Epoch, Instant, VoterId};
use replica::disk::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use wire::{Configuration, MemberEntry, MemberMessage};

/// A proposed value; its hash stands for it.
#[derive(Clone, Debug)]
struct Value {
    print: u64,
    configuration: Arc<Configuration>,
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print.hash(state);
    }
}

#[derive(Clone, Debug, Default, Hash)]
struct Facts {
    /// Each value proposed.
    values: BTreeMap<(Ballot, Epoch), Value>,
    /// Every configuration known to be committed.
    committed: BTreeMap<Epoch, Arc<Configuration>>,
    /// What each voter ever promised.
    promised: BTreeSet<(VoterId, Ballot)>,
    /// ... and said so to another node.
    said: BTreeSet<(VoterId, Ballot)>,
    /// What each voter ever accepted.
    accepted: BTreeSet<(VoterId, Ballot, Epoch)>,
    /// Values that a majority of their voters accepted.
    chosen: BTreeSet<(Ballot, Epoch)>,
    /// When each process first asked for a ballot, by its node's clock: processes of a node without a memory may
    /// use one twice.
    asked: BTreeMap<(Ballot, u64), Instant>,
    /// When the newest question was asked that a voter answered with a lease for a node.
    grants: BTreeMap<(VoterId, u16), Instant>,
}

/// What the rules remember of the past.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    facts: Arc<Facts>,
    /// Its hash; 0: not known.
    print: u64,
}

impl Past {
    /// What every voter begins with.
    pub(super) fn begin(first: &Configuration) -> Past {
        let committed = BTreeMap::from([(first.epoch, Arc::new(first.clone()))]);
        Past { facts: Arc::new(Facts { committed, ..Facts::default() }), print: 0 }
    }

    pub(super) fn print(&mut self) -> u64 {
        if self.print == 0 {
            self.print = hash::of(&*self.facts);
        }
        self.print
    }

    fn edit(&mut self) -> &mut Facts {
        self.print = 0;
        Arc::make_mut(&mut self.facts)
    }

    pub(super) fn newest(&self) -> &Configuration {
        self.facts.committed.values().next_back().expect("the first is always there")
    }

    /// The newest committed configuration before `epoch`.
    pub(super) fn before(&self, epoch: Epoch) -> Option<&Configuration> {
        self.facts.committed.range(..epoch).next_back().map(|(_, value)| &**value)
    }

    /// The highest number of a ballot that was asked for.
    pub(super) fn round(&self) -> u64 {
        self.facts.asked.keys().map(|key| key.0.round).max().unwrap_or(0)
    }

    /// Configurations that were committed.
    pub(super) fn count(&self) -> usize {
        self.facts.committed.len()
    }

    /// A value is proposed.
    pub(super) fn proposed(&mut self, ballot: Ballot, value: &Configuration) -> Result<(), String> {
        let key = (ballot, value.epoch);
        let print = hash::of(value);
        match self.facts.values.get(&key) {
            Some(old) if old.print == print => return Ok(()),
            Some(_) => {
                return Err(format!("one value: two of ballot {ballot} epoch {}", value.epoch));
            }
            None => {}
        }
        let first = self.facts.values.range((ballot, Epoch(0))..).next();
        if first.is_none_or(|((other, _), _)| *other != ballot) {
            self.is_promised(ballot, value)?;
        }
        let overlooked = self.facts.chosen.iter().find(|(lower, epoch)| {
            *lower < ballot
                && *epoch >= value.epoch
                && self.facts.values.get(&(*lower, *epoch)).is_some_and(|old| old.print != print)
        });
        if let Some((lower, _)) = overlooked {
            return Err(format!(
                "promised: {ballot} {} is proposed in the place of what was chosen in {lower}",
                short(value)
            ));
        }
        let configuration = Arc::new(value.clone());
        self.edit().values.insert(key, Value { print, configuration });
        Ok(())
    }

    /// The first value of a ballot: a majority promised it.
    fn is_promised(&self, ballot: Ballot, value: &Configuration) -> Result<(), String> {
        let majority = |of: &Configuration| {
            let all = of.voters();
            let said = all.filter(|voter| self.facts.promised.contains(&(voter.voter, ballot)));
            said.count() >= of.majority()
        };
        // Within a reign the first value under a raised ballot may be a change of voters.
        if majority(value) || self.before(value.epoch).is_some_and(majority) {
            return Ok(());
        }
        Err(format!("promised: {ballot} {} without a majority of promises", short(value)))
    }

    /// Whether `value` is known to be committed, if it is not new.
    pub(super) fn knows(&self, value: &Configuration) -> Result<bool, String> {
        match self.facts.committed.get(&value.epoch) {
            Some(old) if **old == *value => Ok(true),
            Some(old) => Err(format!(
                "one line: epoch {} is committed as {} and as {}",
                value.epoch,
                short(old),
                short(value)
            )),
            None => Ok(false),
        }
    }

    /// A configuration is said to be committed for the first time. Returns the one before it.
    pub(super) fn committed(
        &mut self,
        ballot: Option<Ballot>,
        value: &Configuration,
    ) -> Result<Arc<Configuration>, String> {
        let before = self.facts.committed.range(..value.epoch).next_back();
        let after = self.facts.committed.range(value.epoch..).next();
        let (_, before) = before.ok_or("one line: something older than the first is committed")?;
        follows(before, value)?;
        if let Some((_, after)) = after {
            follows(value, after)?;
        }
        let before = Arc::clone(before);
        if let Some(ballot) = ballot {
            let direct = before.epoch.0 + 1 == value.epoch.0;
            if !self.is_accepted(ballot, value, value)
                || (direct && !self.is_accepted(ballot, value, &before))
            {
                return Err(format!(
                    "one line: {} is committed in {ballot} without a majority",
                    short(value)
                ));
            }
        }
        self.edit().committed.insert(value.epoch, Arc::new(value.clone()));
        Ok(before)
    }

    /// Whether a majority of the voters of `by` accepted `value`, or what was proposed after it, in `ballot`.
    fn is_accepted(&self, ballot: Ballot, value: &Configuration, by: &Configuration) -> bool {
        let from = |voter: &VoterId| (*voter, ballot, value.epoch);
        let said = by.voters().filter(|entry| {
            let next = self.facts.accepted.range(from(&entry.voter)..).next();
            next.is_some_and(|next| next.0 == entry.voter && next.1 == ballot)
        });
        said.count() >= by.majority()
    }

    /// What stands on a voter's disk now.
    pub(super) fn stored(&mut self, record: &Record) {
        let voter = record.voter;
        if !self.facts.promised.contains(&(voter, record.promised)) {
            self.edit().promised.insert((voter, record.promised));
        }
        let Some((ballot, value)) = &record.accepted else { return };
        if self.facts.accepted.contains(&(voter, *ballot, value.epoch)) {
            return;
        }
        let facts = self.edit();
        facts.accepted.insert((voter, *ballot, value.epoch));
        let value =
            facts.values.get(&(*ballot, value.epoch)).map(|value| value.configuration.clone());
        if let Some(value) = value
            && self.is_accepted(*ballot, &value, &value)
        {
            self.edit().chosen.insert((*ballot, value.epoch));
        }
    }

    /// A node asks in its life `life`, or a voter answers: who granted a lease to whom, and when it was asked for.
    pub(super) fn heard(
        &mut self,
        now: Instant,
        life: u64,
        message: &MemberMessage,
    ) -> Result<(), String> {
        let (ballot, voter, sent) = match message {
            MemberMessage::Prepare { ballot } => {
                if !self.facts.asked.contains_key(&(*ballot, life)) {
                    self.edit().asked.insert((*ballot, life), now);
                }
                return Ok(());
            }
            MemberMessage::Promise { ballot, voter, .. } => {
                let asked = self.facts.asked.range((*ballot, 0)..=(*ballot, u64::MAX)).next_back();
                let Some((_, &sent)) = asked else { return Ok(()) };
                if !self.edit().said.insert((*voter, *ballot)) {
                    return Err(format!("stable: voter {} promises {ballot} twice", voter.0));
                }
                if !self.facts.promised.contains(&(*voter, *ballot)) {
                    self.edit().promised.insert((*voter, *ballot));
                }
                (*ballot, *voter, sent)
            }
            MemberMessage::HeartbeatAnswer { ballot, sent, voter, .. } if voter.0 != 0 => {
                (*ballot, *voter, *sent)
            }
            _ => return Ok(()),
        };
        let key = (voter, ballot.node.0);
        if self.facts.grants.get(&key).is_none_or(|old| *old < sent) {
            self.edit().grants.insert(key, sent);
        }
        Ok(())
    }

    /// Whether a majority of the voters of `of` granted `node` a lease of `lease` that lasts `until`.
    pub(super) fn is_granted(
        &self,
        node: u16,
        of: &Configuration,
        lease: base::Duration,
        until: Instant,
    ) -> bool {
        let said = of.voters().filter(|entry| {
            entry.node.0 == node
                || self
                    .facts
                    .grants
                    .get(&(entry.voter, node))
                    .is_some_and(|&sent| sent + lease >= until)
        });
        said.count() >= of.majority()
    }
}

/// A configuration in a few words.
pub(super) fn short(configuration: &Configuration) -> String {
    let member = |member: &MemberEntry| {
        let sync = if member.in_sync { "*" } else { "" };
        format!("{}{sync}:{}/{}", member.node.0, member.voter.0 % 1000, member.incarnation.0 % 1000)
    };
    let members: Vec<String> = configuration.members.iter().map(member).collect();
    let primary = configuration.primary.map_or(0, |node| node.0);
    let recovering = if configuration.recovering { " recovering" } else { "" };
    format!(
        "epoch {} reign {} primary {primary} [{}]{recovering}",
        configuration.epoch.0,
        configuration.reign.0,
        members.join(" ")
    )
}

/// Whether `next` can follow `old`: by one change, or, where a proposal was superseded or adopted, a few.
fn follows(old: &Configuration, next: &Configuration) -> Result<(), String> {
    let voters = |of: &Configuration| -> BTreeSet<(u16, u64)> {
        of.voters().map(|member| (member.node.0, member.voter.0)).collect()
    };
    let in_sync = |of: &Configuration| -> BTreeSet<(u16, u64, u64)> {
        let all = of.members.iter().filter(|member| member.in_sync);
        all.map(|member| (member.node.0, member.voter.0, member.incarnation.0)).collect()
    };
    let changed = voters(old).symmetric_difference(&voters(next)).count();
    let direct = next.epoch.0 == old.epoch.0 + 1;
    let begins = next.epoch == next.reign;
    let promote = begins && !next.recovering;
    let fits = changed <= 1
        && next.reign >= old.reign
        && (begins || !direct || (next.reign == old.reign))
        && (!promote || !direct || (changed == 0 && in_sync(old) == in_sync(next)))
        && (begins || next.primary.is_none() || !direct || next.primary == old.primary);
    if fits {
        return Ok(());
    }
    Err(format!("one line: {} does not follow from {}", short(next), short(old)))
}

/// A voter's record takes the place of an older one.
pub(super) fn stored(node: u16, old: &Record, new: &Record) -> Result<(), String> {
    if old.voter != new.voter {
        return Ok(());
    }
    let rank = |record: &Record| {
        record.accepted.as_ref().map(|(ballot, value)| (value.fork, *ballot, value.epoch))
    };
    let known =
        |record: &Record| record.committed.as_ref().map(|(_, value)| (value.fork, value.epoch));
    let back = if new.promised < old.promised {
        "promise"
    } else if rank(new) < rank(old) {
        "accepted value"
    } else if known(new) < known(old) {
        "committed configuration"
    } else {
        return Ok(());
    };
    Err(format!("stable: the {back} of node {node} goes back"))
}

/// A voter says something: it stands on its disk.
pub(super) fn said(
    node: u16,
    record: Option<&Record>,
    message: &MemberMessage,
) -> Result<(), String> {
    let kept = |is: &dyn Fn(&Record) -> bool| record.is_some_and(is);
    let durable = match message {
        MemberMessage::Promise { ballot, voter, .. } => {
            kept(&|record| record.voter == *voter && record.promised >= *ballot)
        }
        MemberMessage::Accepted { ballot, epoch, voter } => kept(&|record| {
            record.voter == *voter
                && record
                    .accepted
                    .as_ref()
                    .is_some_and(|(at, value)| (*at, value.epoch) >= (*ballot, *epoch))
        }),
        MemberMessage::HeartbeatAnswer { ballot, voter, .. } if voter.0 != 0 => {
            kept(&|record| record.voter == *voter && record.promised >= *ballot)
        }
        _ => true,
    };
    if durable {
        return Ok(());
    }
    Err(format!("stable: node {node} says what is not on its disk"))
}

//! Two histories of one resource meet: telling, choosing, giving one up.
//!
//! To each other the sides are gone: no vote, no data, no lease; only configurations, and how much each has
//! changed, are still said. The side that goes on is chosen by an operator or by the policy that both
//! sides have; it says so by a configuration with a higher fork.
//!
//! Always: nothing is given up but by that, and only while no client is here; a copy that was given up is in
//! sync again only when all that either side changed was copied. A primary whose side never came to serve, and
//! has no copy left, leaves it by itself: it gives up nothing.
//!
//! Not here: what is an ancestor (`lineage`), what only this copy holds (`shard`).

use super::lineage::{is_ancestor, is_lineal, is_off};
use super::peers::is_kept;
use super::{Known, Member, Out, SplitStatus, Then};
use crate::door::{MemberOutput, Notice, Slot, ToShard};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Epoch, NodeId};
use wire::{
    AfterSplitBrain, Configuration, LINEAGE_MAX, MemberEntry, MemberMessage, Stretch, VolumeEntry,
};

/// Epochs that a resolved split brain leaves out, so that what the other side did is older for every
/// shard.
const FORK_EPOCHS: u64 = 1 << 32;

/// A peer on another side of the history.
#[derive(Clone, Debug, Hash)]
pub(super) struct Split {
    /// What is committed there.
    pub(super) theirs: Known,
    /// The question to shards how much that is whose answers count; 0 while none is asked.
    asked: u64,
    /// Sectors that each shard here has and they lack, when the sides met.
    counted: BTreeMap<u16, u64>,
    /// ... all together, as they were told.
    mine_changed: Option<u64>,
    /// What they said of theirs.
    pub(super) theirs_changed: Option<u64>,
    /// It was told that this side is not the one that goes on.
    announced: bool,
}

/// The first stretch that `mine` has and `theirs` has not.
fn parting<'a>(mine: &'a Configuration, theirs: &Configuration) -> Option<&'a Stretch> {
    mine.lineage.iter().find(|one| theirs.lineage.iter().all(|other| other.id != one.id))
}

/// Where in their common past two configurations parted, as far as both remember; `None`: nowhere, or nobody knows.
fn parted_after(one: &Configuration, other: &Configuration) -> Option<Epoch> {
    if one.lineage.len().max(other.lineage.len()) >= LINEAGE_MAX {
        return None;
    }
    let firsts = [parting(one, other), parting(other, one)];
    firsts.into_iter().flatten().map(|stretch| stretch.epoch).min()
}

/// When that began.
fn parted_at(mine: &Configuration, theirs: &Configuration) -> Option<u64> {
    parting(mine, theirs).map(|stretch| stretch.at_ms).filter(|&at| at != 0)
}

/// The name of a side: that of the stretch with which it parted, which stays while it goes on.
fn side_name(mine: &Configuration, theirs: &Configuration) -> u64 {
    parting(mine, theirs).map_or_else(|| mine.history(), |stretch| stretch.id)
}

/// Whether a policy goes by how much each side changed.
fn counts_changes(policy: AfterSplitBrain) -> bool {
    matches!(policy, AfterSplitBrain::DiscardLeastChanges | AfterSplitBrain::DiscardZeroChanges)
}

impl Member {
    /// A peer says that this is committed where it is. Its history may have gone another way.
    pub(super) fn meet(
        &mut self,
        peer: NodeId,
        ballot: Ballot,
        configuration: Box<Configuration>,
        out: &mut Out,
    ) {
        if self.has_forked_alone() {
            // They are taught when that is decided, and say this again.
            return;
        }
        let lineal = is_lineal(&configuration)
            || self.known.as_ref().is_some_and(|known| is_lineal(&known.configuration));
        let sound = super::register::is_sound(&configuration);
        let (true, true, Some(known)) = (lineal, sound, self.known.clone()) else {
            return self.learn(ballot, *configuration, out);
        };
        let mine = (known.ballot, &*known.configuration);
        let theirs = (ballot, &*configuration);
        // A fork that leaves this copy out may go on from one that lacks what this one has.
        let left_out = theirs.1.fork > mine.1.fork
            && mine.1.is_in_sync(self.node)
            && !theirs.1.is_in_sync(self.node);
        if is_ancestor(mine, theirs) && mine.1.fork <= theirs.1.fork && !left_out {
            self.end_split(peer);
            self.learn(ballot, *configuration, out);
            self.pass_on(peer, known.configuration.epoch, out);
            if self.known.as_ref().is_some_and(|now| now.configuration != known.configuration) {
                self.judge_again(out);
            }
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
        peer.learned = Epoch(0);
        peer.ready = None;
        if let Some(split) = &mut peer.split {
            let comes_in = |split: &Split| {
                let before = &split.theirs.configuration;
                theirs.configuration.is_in_sync(node) && !before.is_in_sync(node)
            };
            if comes_in(split) {
                // It did not know all that its side had changed, and says anew how much that is.
                split.theirs_changed = None;
            }
            split.theirs = theirs;
            return;
        }
        let counted = BTreeMap::new();
        let there = theirs.configuration.clone();
        peer.split = Some(Split {
            theirs,
            asked: 0,
            counted,
            mine_changed: None,
            theirs_changed: None,
            announced: false,
        });
        if let Some(known) = &self.known {
            let here = &known.configuration;
            let (mine, theirs) = (side_name(here, &there), side_name(&there, here));
            out.push(MemberOutput::Notice(Notice::Parted { peer: node, mine, theirs }));
        }
        out.push(MemberOutput::Mark("member: split brain"));
        self.stop_sync(node, out);
        self.teach(node, out);
        let comes_in = |known: &Known| {
            let acted_on = self.emitted.as_ref();
            known.configuration.is_in_sync(self.node)
                && !acted_on.is_some_and(|acted_on| acted_on.is_in_sync(self.node))
        };
        // Shards that do not act on it yet do not know all that this side has changed. They are asked when they do.
        if !self.known.as_ref().is_some_and(comes_in) {
            self.ask_changed(node, out);
        }
    }

    /// Asks all shards how much they have that a node on another side lacks.
    fn ask_changed(&mut self, node: NodeId, out: &mut Out) {
        let Some(split) = self.peers.get_mut(&node).and_then(|peer| peer.split.as_mut()) else {
            return;
        };
        self.counts += 1;
        split.asked = self.counts;
        Self::tell_shards(ToShard::Count { peer: node, number: self.counts }, out);
    }

    /// A shard says how much it has that a node on another side lacks. Both sides go by the numbers of their
    /// meeting, so that they come to one conclusion although writes go on.
    pub(super) fn on_counted(
        &mut self,
        shard: u16,
        node: NodeId,
        (number, sectors): (u64, u64),
        out: &mut Out,
    ) {
        let shards = self.shards.len();
        let split = self.peers.get_mut(&node).and_then(|peer| peer.split.as_mut());
        let Some(split) = split.filter(|split| split.asked == number) else { return };
        split.counted.insert(shard, sectors);
        let sectors = split.counted.values().sum();
        if split.counted.len() == shards && split.mine_changed != Some(sectors) {
            split.mine_changed = Some(sectors);
            self.tell_changed(node, out);
        }
    }

    /// This node's copy is about to come into sync: what was counted is not all that its side has changed. Others hear
    /// of it before shards here act on it, and are not to be told that again beside it.
    pub(super) fn forget_counts(&mut self) {
        for split in self.peers.values_mut().filter_map(|peer| peer.split.as_mut()) {
            split.asked = 0;
            split.counted.clear();
            split.mine_changed = None;
        }
    }

    /// This node's copy came into sync: it knows only now what its side has changed.
    pub(super) fn count_anew(&mut self, out: &mut Out) {
        self.forget_counts();
        let on_another: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| peer.split.is_some()).map(|at| *at.0).collect();
        for node in on_another {
            self.ask_changed(node, out);
        }
    }

    /// Says how much that was, to who is on another side.
    pub(super) fn tell_changed(&self, node: NodeId, out: &mut Out) {
        let split = self.peers.get(&node).and_then(|peer| peer.split.as_ref());
        if let Some(sectors) = split.and_then(|split| split.mine_changed) {
            self.send(node, MemberMessage::Diverged { sectors }, out);
        }
    }

    pub(super) fn on_diverged(&mut self, node: NodeId, sectors: u64) {
        if let Some(split) = self.peers.get_mut(&node).and_then(|peer| peer.split.as_mut()) {
            split.theirs_changed = Some(sectors);
        }
    }

    /// Another side was chosen earlier, and nothing is in the way any more.
    pub(super) fn check_given_up(&mut self, out: &mut Out) {
        if self.clients > 0 || self.has_forked_alone() {
            return;
        }
        if let Some((peer, theirs)) = self.chosen_side() {
            self.give_up(peer, theirs, out);
        }
    }

    /// The side that goes on, if this one does not.
    pub(super) fn chosen_side(&self) -> Option<(NodeId, Known)> {
        let mine = &self.known.as_ref()?.configuration;
        self.peers.iter().find_map(|(&node, peer)| {
            let theirs = &peer.split.as_ref()?.theirs;
            self.gives_way(mine, &theirs.configuration).then(|| (node, theirs.clone()))
        })
    }

    /// Whether that side goes on instead of this one: it was chosen, or nothing is on this one and never was.
    fn gives_way(&self, mine: &Configuration, theirs: &Configuration) -> bool {
        theirs.fork > mine.fork
            || self.is_without_a_copy(mine)
                && super::rank(theirs) > super::rank(mine)
                && parted_after(mine, theirs).is_some_and(|at| {
                    // What a primary answered in this reign only that one knows.
                    let leads = self.reign().is_some();
                    at.0 + 1 == mine.reign.0 || (leads && at >= mine.reign)
                })
    }

    /// Whether this node is primary of a side that never came to serve in its reign, or follows one, and all copies that the side counts on
    /// are on another one. A primary without a copy comes to be that when it counts the vote of one that learned meanwhile
    /// that another had gone on alone; others may have followed it, and it may be gone. If the sides parted with this reign, nothing was answered on
    /// this one, for no copy acted on it: else it would not be on the other; and nothing ever will be.
    fn is_without_a_copy(&self, mine: &Configuration) -> bool {
        let is_elsewhere = |entry: &MemberEntry| {
            let peer = self.peers.get(&entry.node);
            peer.is_some_and(|peer| {
                let split = peer.split.as_ref();
                let kept = peer.hello.as_ref().is_some_and(|hello| is_kept(hello, entry));
                kept && split.is_some_and(|split| split.theirs.configuration.fork == mine.fork)
            })
        };
        is_off(mine)
            && self.reign().is_none_or(|reign| !reign.served && reign.reign == mine.reign)
            && mine.members.iter().filter(|entry| entry.in_sync).all(is_elsewhere)
    }

    /// A side that cannot go on is left for one whose number is higher (`chosen_side`): this one's becomes that, where a
    /// peer without a copy is ahead by numbers alone. Nothing else changes.
    pub(super) fn change_overtake(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let stuck = self.splits().into_iter().filter(|(_, theirs)| {
            let is_here = |entry: &MemberEntry| {
                let hello = self.peers.get(&entry.node).and_then(|peer| peer.hello.as_ref());
                let kept = hello.is_some_and(|hello| is_kept(hello, entry));
                entry.node == self.node || (kept && !self.is_split(entry.node))
            };
            theirs.epoch >= known.epoch
                && theirs.members.iter().filter(|entry| entry.in_sync).all(is_here)
        });
        let epoch = stuck.map(|(_, theirs)| Epoch(theirs.epoch.0 + 1)).max()?;
        Some((Configuration { epoch, ..known.clone() }, Then::Nothing))
    }

    /// The other side was chosen: this node takes that history, and its copy is brought up to date by what
    /// either side changed. Clients that saw its writes must have left: those would silently be gone for them.
    fn give_up(&mut self, peer: NodeId, theirs: Known, out: &mut Out) {
        if self.clients > 0 || self.phase != super::Phase::Running {
            return self.announce(peer, out);
        }
        out.push(MemberOutput::Mark("member: own side discarded"));
        if let Some(known) = &self.known {
            let (here, there) = (&known.configuration, &theirs.configuration);
            let (mine, theirs) = (side_name(here, there), there.history());
            let fork = there.fork;
            if fork == here.fork {
                out.push(MemberOutput::Mark("member: leaves a side on which no copy is"));
            }
            out.push(MemberOutput::Notice(Notice::GivesUp { peer, mine, theirs, fork }));
        }
        self.abandon_or_abdicate(out);
        self.end_split(peer);
        self.leaves = true;
        self.side_from = theirs.configuration.epoch;
        let entry = theirs.configuration.member(self.node);
        let votes = entry.is_some_and(|entry| self.own_voter() == Some(entry.voter));
        let lacks_bits = self.lacks_bits(&theirs.configuration);
        if theirs.configuration.is_in_sync(self.node) || (lacks_bits && !votes) {
            // That side does not know yet that this copy went another way, or no bits tell how far: it becomes a new one.
            self.renew_identity(out);
        } else if let Some(record) = self.record.as_mut() {
            // Where its vote is needed nothing could be decided without: it stays, whatever its copy is worth.
            record.accepted = None;
        }
        self.know(theirs.ballot, theirs.configuration, out);
        self.introduce(out);
        self.judge_again(out);
    }

    /// Whether no bits here tell all in which this copy may be unlike those of the other side. A volume that is larger there
    /// may have been as large here, and what lay beyond its end may have been given back: that was no write. So may it have been
    /// where a volume shrank here since the sides parted, and grew again while this copy was not in sync. And what was
    /// written here is marked for copies that this node knew: of those in sync there any may be the only one that is left.
    /// What an operator called worthless on this side only is as bad as it was then, also where nobody wrote.
    pub(super) fn lacks_bits(&self, theirs: &Configuration) -> bool {
        let Some(mine) = self.known.as_ref().map(|known| &known.configuration) else {
            return false;
        };
        let larger = |entry: &VolumeEntry| {
            let there = theirs.volume(entry.volume);
            there.is_some_and(|there| there.kept_sectors() > entry.sectors)
        };
        let unknown = |member: &MemberEntry| {
            let same = |slot: &Slot| (slot.node, slot.voter) == (member.node, member.voter);
            member.in_sync && !self.slots.iter().any(same)
        };
        let is_void =
            |side: &Configuration| side.member(self.node).is_some_and(MemberEntry::is_void);
        let worthless = is_void(mine) && !is_void(theirs);
        theirs.is_replica(self.node)
            && (worthless
                || self.has_shrunk_since(parted_after(mine, theirs))
                || mine.volumes.iter().any(larger)
                || theirs.members.iter().any(unknown))
    }

    /// Whether a volume shrank on this side, as far as this copy knows; `parted` is where the sides did, if that is known.
    fn has_shrunk_since(&self, parted: Option<Epoch>) -> bool {
        let shrunk = self.record.as_ref().map_or(Epoch(0), |record| record.shrunk);
        shrunk > parted.unwrap_or_default()
    }

    /// This side is not the one that goes on, and clients are in the way.
    fn announce(&mut self, peer: NodeId, out: &mut Out) {
        let clients = self.clients;
        let split = self.peers.get_mut(&peer).and_then(|peer| peer.split.as_mut());
        if let Some(split) = split.filter(|split| !split.announced) {
            split.announced = true;
            out.push(MemberOutput::Mark("member: discarded, waits for its clients"));
            out.push(MemberOutput::Notice(Notice::Chosen { peer, clients }));
        }
    }

    /// This node knows more than when it found that others are on another side: some may be on its own now.
    pub(super) fn judge_again(&mut self, out: &mut Out) {
        let splits: Vec<(NodeId, Known)> = self
            .peers
            .iter()
            .filter_map(|(&node, peer)| Some((node, peer.split.as_ref()?.theirs.clone())))
            .collect();
        for (node, theirs) in splits {
            let configuration = Box::new((*theirs.configuration).clone());
            self.meet(node, theirs.ballot, configuration, out);
        }
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
            .filter_map(|(&node, peer)| {
                Some((node, peer.split.as_ref()?.theirs.configuration.clone()))
            })
            .filter(|(_, theirs)| theirs.fork == fork)
            .collect()
    }

    /// Whether an operator may choose this node's side against that of `discard`.
    pub(super) fn is_split_from(&self, discard: NodeId) -> bool {
        self.splits().iter().any(|(node, _)| *node == discard)
    }

    /// A peer whose side is to be given up, by the policy that both sides have. A fork ends every other side: each
    /// of those that are here has to lose. Where another side was chosen this one has, and waits for its clients only.
    fn discarded_by_policy(&self) -> Option<NodeId> {
        let mine = self.known.as_ref()?.configuration.clone();
        if !self.may_act_alone(&mine) || self.chosen_side().is_some() {
            return None;
        }
        let mut sides: BTreeMap<u64, Vec<(NodeId, Arc<Configuration>)>> = BTreeMap::new();
        for (node, theirs) in self.splits() {
            sides.entry(side_name(&theirs, &mine)).or_default().push((node, theirs));
        }
        let lost: Option<Vec<NodeId>> =
            sides.values().map(|peers| self.loser_of(peers, &mine)).collect();
        lost?.first().copied()
    }

    /// A peer by which another side loses against this one. What a side changed those say whose copy is in sync there: others do
    /// not know it.
    fn loser_of(
        &self,
        peers: &[(NodeId, Arc<Configuration>)],
        mine: &Configuration,
    ) -> Option<NodeId> {
        let policy = mine.options.after_split_brain;
        let wins = |peer: &&(NodeId, Arc<Configuration>)| self.wins(peer.0, mine, &peer.1);
        if !counts_changes(policy) {
            return peers.iter().find(wins).map(|peer| peer.0);
        }
        let knows = |(node, theirs): &&(NodeId, Arc<Configuration>)| {
            let hello = self.peers.get(node).and_then(|peer| peer.hello.as_ref());
            let entry = theirs.member(*node).filter(|entry| entry.in_sync);
            entry.zip(hello).is_some_and(|(entry, hello)| is_kept(hello, entry))
        };
        let mut counted = peers.iter().filter(knows).peekable();
        let first = counted.peek().map(|peer| peer.0);
        first.filter(|_| counted.all(|peer| wins(&peer)))
    }

    fn wins(&self, peer: NodeId, mine: &Configuration, theirs: &Configuration) -> bool {
        let policy = mine.options.after_split_brain;
        if policy != theirs.options.after_split_brain {
            return false;
        }
        // A chain that is full may have let go what the other one ends with: then it is no other history at all, and an
        // operator is to look.
        if mine.lineage.len() >= LINEAGE_MAX || theirs.lineage.len() >= LINEAGE_MAX {
            return false;
        }
        let times = parted_at(mine, theirs).zip(parted_at(theirs, mine));
        let split = self.peers.get(&peer).and_then(|peer| peer.split.as_ref());
        let changes = split.and_then(|split| split.mine_changed.zip(split.theirs_changed));
        match policy {
            AfterSplitBrain::Disconnect => false,
            AfterSplitBrain::DiscardYounger => times.is_some_and(|(mine, other)| mine < other),
            AfterSplitBrain::DiscardOlder => times.is_some_and(|(mine, other)| mine > other),
            AfterSplitBrain::DiscardLeastChanges => changes
                .is_some_and(|(mine, other)| mine > other || (mine == other && self.node < peer)),
            AfterSplitBrain::DiscardZeroChanges => {
                changes.is_some_and(|(mine, other)| mine > 0 && other == 0)
            }
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
        Some((self.resolved(known, discard)?, Then::Nothing))
    }

    /// This side's history goes on, and that of `discard` does not. `None`: it is the only copy here.
    /// Whoever is not on this side now has a copy that may have gone another way.
    pub(super) fn resolved(&self, known: &Configuration, discard: NodeId) -> Option<Configuration> {
        let mut next = Self::successor(known);
        next.epoch = Epoch(known.epoch.0 + FORK_EPOCHS);
        next.fork += 1;
        for member in &mut next.members {
            member.in_sync &= member.node != discard && self.takes_part(member);
        }
        let any = next.in_sync().next().is_some();
        any.then_some(next)
    }

    /// What a person may know of the split from a peer.
    pub(super) fn split_status(&self, node: NodeId) -> Option<SplitStatus> {
        let split = self.peers.get(&node)?.split.as_ref()?;
        let mine = &self.known.as_ref()?.configuration;
        let theirs = &split.theirs.configuration;
        Some(SplitStatus {
            mine: side_name(mine, theirs),
            theirs: side_name(theirs, mine),
            mine_since_ms: parted_at(mine, theirs),
            theirs_since_ms: parted_at(theirs, mine),
            theirs_changed: split.theirs_changed,
            discarded: self.gives_way(mine, theirs),
        })
    }
}

//! Which side of a split brain may be given up: what an operator said, or the policy, of all that is seen from above.
//!
//! A *fork* is judged when its primary first says it or stores it. It ends every other side, also one that is away; of those
//! that its primary sees there each has to lose, if a policy chooses. How much a side changed is bounded: what clients were
//! told was written there before it met the other was changed, and what no bits are of was not.
//!
//! Not here: who follows a fork, and when (`sides`).

use super::{Place, Sides, place};
use crate::history::{Effect, OpIndex};
use crate::world::{World, node_id, node_index};
use base::NodeId;
use replica::Operation;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use wire::{AfterSplitBrain, Configuration, LINEAGE_MAX, Stretch};

/// Two nodes on sides of these names: the one that tells, the other, and the sides of both.
type Meeting = (usize, usize, u64, u64);

/// What forks are judged by.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Numbers of forks that somebody had a right to begin.
    begun: BTreeSet<u64>,
    /// From where, and by whom, forks were begun: each is judged once, and said again under other numbers.
    judged: BTreeSet<(usize, Place, u64)>,
    /// What was to be next somewhere. Others may have heard of it before it is installed.
    said: Vec<Configuration>,
    /// When a node first told of another that it is on another side, and where it was itself.
    met: BTreeMap<Meeting, (u64, Place)>,
    /// In which step somebody first acted on what is to be found there.
    first: BTreeMap<Place, u64>,
    /// In which step, and where, writes were answered.
    written: Vec<(u64, OpIndex, Place)>,
}

impl Choice {
    /// Whether somebody had a right to begin the fork of this number.
    pub(super) fn was_begun(&self, fork: u64) -> bool {
        self.begun.contains(&fork)
    }

    /// Somebody acts on a configuration.
    pub(super) fn installed(&mut self, step: u64, place: Place) {
        self.first.entry(place).or_insert(step);
    }

    /// A client was told that something was done.
    pub(super) fn answered(&mut self, step: u64, index: OpIndex, place: Place) {
        self.written.push((step, index, place));
    }
}

/// A peer on another side, as a primary sees it: the names of both sides.
#[derive(Clone, Copy, Debug)]
struct Seen {
    peer: usize,
    mine: u64,
    theirs: u64,
}

impl Sides {
    /// What was installed, or was to be next, on a side of this name, and is not in the past of `mine`.
    fn on_side<'a>(
        &'a self,
        side: u64,
        mine: &'a Configuration,
    ) -> impl Iterator<Item = &'a Configuration> {
        self.installed.values().chain(&self.choice.said).filter(move |known| {
            let is_named = |stretch: &Stretch| stretch.id == side;
            (known.history() == side || known.lineage.iter().any(is_named))
                && !self.is_past(place(known), place(mine))
        })
    }

    /// Which of two sides began first, by their clocks; `None`: one of them did nothing alone.
    fn order(&self, seen: Seen, mine: &Configuration) -> Option<Ordering> {
        let mut theirs = self.on_side(seen.theirs, mine);
        let is = |name: u64| move |stretch: &&Stretch| stretch.id == name && stretch.at_ms != 0;
        let here = mine.lineage.iter().find(is(seen.mine))?;
        let there = theirs.find_map(|known| known.lineage.iter().find(is(seen.theirs)))?;
        let is_common = mine.lineage.iter().any(|stretch| stretch.id == there.id);
        (!is_common).then(|| here.at_ms.cmp(&there.at_ms))
    }
}

impl World {
    /// A node found that a peer is on another side.
    pub(crate) fn sides_met(&mut self, node: usize, peer: NodeId, mine: u64, theirs: u64) {
        let step = self.step;
        let Some(sides) = &mut self.sides else { return };
        let Some(&place) = sides.nodes.get(&node) else { return };
        let meeting = (node, node_index(peer), mine, theirs);
        sides.choice.met.entry(meeting).or_insert((step, place));
    }

    /// A node says, or is about to store, that this is to be next. If a fork begins with it, somebody had a right to that.
    pub(crate) fn side_proposes(&mut self, node: usize, value: &Configuration) {
        let Some(sides) = &mut self.sides else { return };
        if !sides.choice.said.contains(value) {
            sides.choice.said.push(value.clone());
        }
        let Some(process) = &self.nodes[node].process else { return };
        let Some(known) = process.member.status().configuration else { return };
        if let Some(sides) = &mut self.sides {
            // It may know what its shards have still to be told of.
            sides.learn(&known);
        }
        // Who becomes primary goes on from a fork that is not decided in a reign of its own.
        let begins = value.fork > known.fork
            && value.reign == known.reign
            && value.primary == Some(self.nodes[node].id);
        let begun = (node, place(&known), value.fork);
        let is_judged = |sides: &Sides| sides.choice.judged.contains(&begun);
        if !begins || self.sides.as_ref().is_some_and(is_judged) {
            return;
        }
        let wrong = self.wrong_choice(node, &known, value);
        let Some(sides) = &mut self.sides else { return };
        sides.choice.judged.insert(begun);
        sides.choice.begun.insert(value.fork);
        match wrong {
            Ok(()) => self.mark("sim: a fork is begun by right"),
            Err(what) => {
                let text = format!("node {}: it ends other sides, and {what}", node + 1);
                self.fail("sides", text);
            }
        }
    }

    /// What is wrong with a fork that a node begins.
    fn wrong_choice(
        &self,
        node: usize,
        mine: &Configuration,
        next: &Configuration,
    ) -> Result<(), String> {
        let mut wishes = self.wishes.values().filter(|(of, _)| *of == node).map(|(_, wish)| wish);
        let is_asked = |wish: &String| {
            let discards = |other: usize| {
                let discard = node_id(other);
                *wish == format!("{:?}", Operation::Resolve { discard })
                    && other != node
                    && !next.is_in_sync(discard)
            };
            wish == "Force" || (0..self.nodes.len()).any(discards)
        };
        if wishes.any(is_asked) {
            return Ok(());
        }
        let policy = mine.options.after_split_brain;
        if policy == AfterSplitBrain::Disconnect {
            return Err("nobody said so".to_owned());
        }
        let (Some(sides), Some(process)) = (&self.sides, &self.nodes[node].process) else {
            return Ok(());
        };
        let mut seen: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
        for peer in process.member.status().peers {
            let Some(split) = peer.split else { continue };
            let (peer, mine, theirs) = (node_index(peer.node), split.mine, split.theirs);
            seen.entry(theirs).or_default().push(Seen { peer, mine, theirs });
        }
        if seen.is_empty() {
            return Err("there is none".to_owned());
        }
        // Whoever is on another fork by now has lost, or has won.
        let is_here = |of: &Seen| sides.at(of.peer).is_some_and(|known| known.fork == mine.fork);
        for (side, of_side) in seen {
            if of_side.iter().any(is_here) && !self.may_lose(node, mine, &of_side) {
                return Err(format!("{policy:?} does not say so of {side:#x}"));
            }
        }
        Ok(())
    }

    /// Whether the policy may have it that this other side loses.
    fn may_lose(&self, node: usize, mine: &Configuration, seen: &[Seen]) -> bool {
        let Some(sides) = &self.sides else { return true };
        let was_in_sync = |copy: NodeId| {
            let side = seen[0].theirs;
            sides.on_side(side, mine).any(|known| known.is_in_sync(copy))
        };
        let is = |order| {
            mine.lineage.len() < LINEAGE_MAX
                && seen.iter().any(|&of| sides.order(of, mine) == Some(order))
        };
        match mine.options.after_split_brain {
            AfterSplitBrain::Disconnect => false,
            AfterSplitBrain::DiscardYounger => is(Ordering::Less),
            AfterSplitBrain::DiscardOlder => is(Ordering::Greater),
            AfterSplitBrain::DiscardNode(number) => {
                let lost = NodeId(number);
                let is_other = lost != self.nodes[node].id && !mine.is_in_sync(lost);
                seen.iter().any(|of| node_id(of.peer) == lost) || (is_other && was_in_sync(lost))
            }
            policy => {
                let loses = |&of: &Seen| {
                    let Some((most, least)) = self.changed(node, of, mine) else { return true };
                    if policy == AfterSplitBrain::DiscardZeroChanges {
                        most > 0 && least == 0
                    } else {
                        most > least || (most == least && node < of.peer)
                    }
                };
                seen.iter().any(|of| was_in_sync(node_id(of.peer))) && seen.iter().all(loses)
            }
        }
    }

    /// Sectors that `node` changed at most, since its side and that of a peer parted, and those that this one changed at least by the
    /// time when it met `node`; `None`: its copy was not in sync there, or is not any more, and others know better.
    fn changed(&self, node: usize, seen: Seen, mine: &Configuration) -> Option<(u64, u64)> {
        let other = seen.peer;
        let shards = self.nodes[node].process.iter().flat_map(|process| &process.shards);
        let most = shards.map(|shard| shard.changed_sectors(node_id(other))).sum();
        let sides = self.sides.as_ref()?;
        let theirs = sides.at(other)?;
        let meeting = (other, node, seen.theirs, seen.mine);
        let &(step, then) = sides.choice.met.get(&meeting)?;
        let copies = [node, other].map(node_id);
        // Of a copy that was in sync there when its client was told, and the other was not: bits say so.
        let is_of = |known: &Configuration| {
            known.is_in_sync(copies[1])
                && known.is_replica(copies[0])
                && !known.is_in_sync(copies[0])
        };
        if !theirs.is_in_sync(copies[1]) || !sides.installed.get(&then)?.is_in_sync(copies[1]) {
            return None;
        }
        // What was asked for before may have been done before the sides parted.
        let is_later = |index: OpIndex, answered: Place| {
            let (called, first) = (self.history.called(index), sides.choice.first.get(&answered));
            called.zip(first).is_some_and(|((_, called), first)| *first <= called)
        };
        let written = sides.choice.written.iter().filter(|&&(at, index, answered)| {
            at < step
                && is_later(index, answered)
                && sides.is_past(answered, then)
                && !sides.is_past(answered, place(mine))
                && sides.installed.get(&answered).is_some_and(is_of)
        });
        let block = self.plan.geometry.block_sectors;
        let mut blocks = BTreeSet::new();
        for &(_, index, _) in written {
            let operation = self.history.operation(index);
            if let Effect::Write(_) = operation.effect {
                let span = operation.span;
                let numbers = span.first() / block..span.end().div_ceil(block);
                blocks.extend(numbers.map(|number| (operation.volume, number)));
            }
        }
        let sectors = |&(volume, number): &(base::VolumeId, u64)| {
            let size = mine.volume(volume).map_or(0, |entry| entry.sectors);
            size.saturating_sub(number * block).min(block)
        };
        Some((most, blocks.iter().map(sectors).sum()))
    }
}

//! Looking at every machine and disk at one instant, from above.
//!
//! - At most one node may answer requests.
//! - Where an in-sync replica's disk and another replica's disk differ, one of the two knows that they may.
//! - A later write does not belong to an earlier cut.
//! - What the machines hold is bounded by what clients and the plan ask for.
//!
//! Not here: what is wrong for good only after healing (`oracle`), what clients saw (`history`).

use crate::buffer::Content;
use crate::history::Token;
use crate::start::GROWTH_MAX;
use crate::world::{Event, INSPECT, World, node_id, node_index};
use base::{Epoch, NodeId, SessionId, VolumeId};
use replica::Shard;
use std::collections::BTreeMap;
use wire::{MemberKind, ShardMessage};

/// A block that differs though nobody knows: epoch, in-sync node, other node, volume, first sector.
pub(crate) type Difference = (base::Epoch, usize, usize, VolumeId, u64);

/// A process: node and life.
type Life = (usize, u64);

/// What cuts writes belong to, as their primary said.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    /// Of a write, in the process that sent it last.
    of: BTreeMap<Token, (Life, u64)>,
    /// The highest cut of an answered write, by process.
    answered: BTreeMap<Life, u64>,
    /// `answered` when a write was called.
    called: BTreeMap<Token, BTreeMap<Life, u64>>,
}

impl World {
    /// Looks now, and again later.
    pub(crate) fn on_inspect(&mut self) {
        self.check_primaries();
        self.check_bitmaps();
        self.check_bounds();
        self.look_at_doubted_bits();
        self.queue.after(INSPECT, Event::Inspect);
    }

    /// At most one node may answer: its shards reign, and its lease runs by its own clock.
    pub(crate) fn check_primaries(&mut self) {
        // Without quorum each side has one.
        if self.sides.is_some() {
            return;
        }
        let mut found: Option<(usize, u64)> = None;
        for index in 0..self.nodes.len() {
            if self.nodes[index].paused {
                continue;
            }
            let now = self.clock(index);
            let Some(process) = &self.nodes[index].process else { continue };
            if !process.shards.iter().any(|shard| shard.would_answer(now)) {
                continue;
            }
            let known = process.member.status().configuration;
            let fork = known.map_or(0, |configuration| configuration.fork);
            match found {
                Some((other, other_fork)) if other_fork == fork => {
                    let text = format!("nodes {} and {} serve", node_id(other), node_id(index));
                    return self.fail("one primary", text);
                }
                _ => found = Some((index, fork)),
            }
        }
    }

    /// Where disks differ, somebody knows; but for a moment, while a configuration is on its way to the
    /// shards.
    fn check_bitmaps(&mut self) {
        let found = self.unknown_differences();
        let before = std::mem::replace(&mut self.oracle.differences, found);
        let Some(still) = self.oracle.differences.iter().find(|found| before.contains(found))
        else {
            return;
        };
        let &(_, one, other, volume, first) = still;
        let text = format!(
            "volume {volume} block at {first}: node {} is in sync, node {} differs, and neither knows",
            node_id(one),
            node_id(other)
        );
        self.fail("bitmap", text);
    }

    /// Blocks in which an in-sync replica and another one differ without knowing.
    fn unknown_differences(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let Some(newest) = &self.oracle.newest else { return found };
        let usable: Vec<usize> = newest
            .members
            .iter()
            .filter(|member| member.kind == MemberKind::Replica)
            .map(|member| (node_index(member.node), member))
            .filter(|&(index, member)| {
                let node = &self.nodes[index];
                let kept = !member.in_sync || self.is_kept(index, member.incarnation);
                node.voter == member.voter && self.is_sound(index) && kept && node.process.is_some()
            })
            .map(|(index, _)| index)
            .collect();
        for (volume, sectors) in self.sizes() {
            let held: Vec<(usize, Vec<Token>)> = usable
                .iter()
                .filter_map(|&at| Some((at, self.nodes[at].disk.as_ref()?.written(volume))))
                .collect();
            let sides = held.iter().filter(|(one, _)| {
                let installed = self.nodes[*one].installed.as_ref();
                newest.is_in_sync(node_id(*one)) && installed == Some(newest)
            });
            for (one, tokens) in sides {
                for (other, others) in held.iter().filter(|(other, _)| other != one) {
                    let blocks = self.differing(tokens, others, sectors);
                    let unknown = blocks
                        .filter(|&(first, end)| !self.knows(*one, *other, volume, first, end));
                    found.extend(unknown.map(|(at, _)| (newest.epoch, *one, *other, volume, at)));
                }
            }
        }
        found
    }

    /// Blocks in which two disks differ, as (first sector, sector after the last).
    fn differing<'a>(
        &self,
        one: &'a [Token],
        other: &'a [Token],
        sectors: u64,
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        let block = self.plan.geometry.block_sectors;
        (0..sectors.div_ceil(block))
            .map(move |number| (number * block, ((number + 1) * block).min(sectors)))
            .filter(|&(first, end)| {
                let range = to_index(first)..to_index(end);
                one[range.clone()] != other[range]
            })
    }

    /// Whether one of two nodes knows that they may differ there.
    fn knows(&self, one: usize, other: usize, volume: VolumeId, first: u64, end: u64) -> bool {
        let shard = self.shard_of(volume, first / self.plan.geometry.extent_sectors);
        [(one, other), (other, one)].iter().any(|&(node, peer)| {
            let process = self.nodes[node].process.as_ref();
            process.is_some_and(|process| {
                process.shards[usize::from(shard)].may_differ(node_id(peer), volume, first, end)
            })
        })
    }

    /// Pages of bits that were doubted, and are clear by now, are like others.
    fn look_at_doubted_bits(&mut self) {
        let (geometry, shards) = (self.plan.geometry, self.plan.shards);
        for node in &mut self.nodes {
            let (Some(process), Some(disk)) = (&node.process, &mut node.disk) else { continue };
            disk.keep_doubted(|&(of, volume, page)| {
                let first = page * geometry.stripe_extents;
                let owner = Shard::owner(&geometry, shards, first);
                let (first, end) = (first, first + geometry.stripe_extents);
                let [first, end] = [first, end].map(|extent| extent * geometry.extent_sectors);
                process.shards[usize::from(owner)].may_differ(of, volume, first, end)
            });
        }
    }

    /// Extents of all volumes that a shard has room for in its log. Those in doubt, or un-retired, do not count, for any volume.
    fn hot_max(&self, doubtful: usize) -> usize {
        let usual = self.plan.geometry.log_extents;
        let of = |volume| {
            let own = self.plan.log_sizes.iter().find(|(of, _)| *of == volume);
            own.map_or(usual, |(_, size)| size.extents) / usize::from(self.plan.shards)
        };
        self.plan.volumes.iter().map(|&(volume, _)| of(volume).max(2) + doubtful).sum()
    }

    /// How many extents of a shard are in doubt, un-retired, or taken for different.
    fn doubtful(&self, node: usize, shard: u16, machine: &Shard) -> usize {
        let each = self.plan.geometry.extent_sectors;
        let of = |&(volume, sectors): &(VolumeId, u64)| {
            let own = (0..sectors.div_ceil(each) + GROWTH_MAX)
                .filter(|&extent| self.shard_of(volume, extent) == shard);
            let own = own.map(|extent| (extent * each, (extent + 1) * each));
            own.filter(|&(first, end)| machine.may_differ(node_id(node), volume, first, end))
                .count()
        };
        self.plan.volumes.iter().map(of).sum()
    }

    /// A shard took a step: if it gave extents room in its log, there was some.
    pub(crate) fn look_at_log(&mut self, node: usize, shard: u16) {
        let at = usize::from(shard);
        let Some(process) = &self.nodes[node].process else { return };
        let machine = &process.shards[at];
        let ((before, most), hot) = (process.hot[at], machine.status().hot);
        if hot == before {
            return;
        }
        let most = most.max(self.doubtful(node, shard, machine));
        let hot_max = self.hot_max(most);
        if let Some(process) = &mut self.nodes[node].process {
            process.hot[at] = (hot, most);
        }
        if hot > hot_max {
            let id = node_id(node);
            let text = format!("node {id} shard {shard}: {hot} extents hot of {hot_max}");
            self.fail("bounds", text);
        }
    }

    /// Nothing grows without end.
    fn check_bounds(&mut self) {
        let open = self.open.len() + self.paths.left_count();
        let asked = open + self.plan.clients.len() * self.plan.depth;
        for index in 0..self.nodes.len() {
            let Some(process) = &self.nodes[index].process else { continue };
            let buffers = process.buffers.count();
            let mut open = 0;
            for shard in &process.shards {
                let status = shard.status();
                open += status.open + status.waiting + status.forwarded + status.held;
            }
            let limit = BOUND_BASE + BOUND_EACH * asked;
            if open > limit || buffers > limit {
                let text = format!(
                    "node {}: {open} operations and {buffers} buffers for {asked} requests",
                    node_id(index)
                );
                return self.fail("bounds", text);
            }
        }
    }

    /// A shard answers a request of another node's process: that knows of every loss of all caches that the shard knows
    /// of, so that its clients from before are gone.
    pub(crate) fn check_follows(
        &mut self,
        primary: usize,
        shard: u16,
        peer: NodeId,
        session: SessionId,
    ) {
        let Some((index, end)) = self.session(primary, peer, session) else { return };
        let asker = &self.sessions[index].ends[1 - end];
        let Some(process) = &self.nodes[primary].process else { return };
        let here = process.shards[usize::from(shard)].lost();
        let there = self.nodes[asker.node].installed.as_ref();
        // Where the process is gone nobody hears the answer.
        let alive = self.nodes[asker.node].life == asker.life;
        if alive && here > there.map_or(Epoch(0), |known| known.lost) {
            let text = format!(
                "node {} answers for node {peer}, whose clients were not told that all caches were lost",
                node_id(primary)
            );
            self.fail("sessions", text);
        }
    }

    /// A write is called: whatever is answered by now comes before it.
    pub(crate) fn cut_called(&mut self, token: Token) {
        let answered = self.oracle.cuts.answered.clone();
        self.oracle.cuts.called.insert(token, answered);
    }

    /// A primary sends a write, and says to which cut it belongs.
    pub(crate) fn see_cut(
        &mut self,
        node: usize,
        message: &ShardMessage,
        content: Option<&Content>,
    ) {
        let ShardMessage::Write { cut, flags, .. } = message else { return };
        let Some(&token) = content.and_then(|content| content.first()) else { return };
        let life = (node, self.nodes[node].life);
        let cuts = &mut self.oracle.cuts;
        let Some(called) = cuts.called.get(&token).filter(|_| !flags.resync) else { return };
        let least = called.get(&life).copied().unwrap_or(0);
        cuts.of.insert(token, (life, *cut));
        if *cut < least {
            let text = format!(
                "node {}: write {token:#x} belongs to cut {cut}, one that was answered before it was \
                 asked for to cut {least}",
                node_id(node)
            );
            self.fail("cuts", text);
        }
    }

    /// A write is answered.
    pub(crate) fn cut_answered(&mut self, token: Token) {
        let cuts = &mut self.oracle.cuts;
        cuts.called.remove(&token);
        if let Some((life, cut)) = cuts.of.remove(&token) {
            let highest = cuts.answered.entry(life).or_default();
            *highest = (*highest).max(cut);
        }
    }
}

/// Operations and buffers that a node may hold besides those of its clients' requests.
/// A replica whose disk stands still keeps what it was sent in every session since.
const BOUND_BASE: usize = 512;
/// Operations and buffers that a node may hold for one request: its write, and what goes on with it.
const BOUND_EACH: usize = 8;

fn to_index(sector: u64) -> usize {
    usize::try_from(sector).expect("simulated volumes are small")
}

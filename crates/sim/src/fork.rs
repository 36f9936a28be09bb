//! Forcing: every node but one is away, and an operator lets that one go on from its copy.
//!
//! What was acknowledged before and is not on that copy is lost, by the operator's word. So the history
//! is judged up to the fork, and a new one begins with what the copy holds. The others come back only when
//! the operator is done, and may speak with each other only when each knows of the fork: an operator who
//! forces both sides asks for a split brain.
//!
//! Not here: what forcing does (`replica`).

use crate::client::GROWTH_NAMES;
use crate::history::{Effect, History, OpIndex, Operation, Token};
use crate::plan::FaultKind;
use crate::queue::MILLI;
use crate::world::{Event, Failure, World, node_index};
use base::{Span, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::Configuration;

impl World {
    /// Every other node dies, and an operator forces this one; false if nothing came of it.
    pub(crate) fn force(&mut self, node: usize, index: usize) -> bool {
        let id = self.nodes[node].id;
        let replica = self.oracle.newest.as_ref().is_some_and(|newest| newest.is_replica(id));
        let able = self.nodes[node].process.is_some() && self.is_sound(node) && replica;
        if !able || self.forcing.is_some() || self.nodes.len() < 2 {
            return false;
        }
        let others = ((1 << self.nodes.len()) - 1) & !(1 << node);
        if self.spared(others, false) != others {
            return false;
        }
        self.forcing = Some(index);
        for other in 0..self.nodes.len() {
            if other != node {
                self.kill(other, false);
            }
        }
        self.resume(node);
        self.want(node, replica::Operation::Force);
        self.mark("sim: forced");
        true
    }

    /// Whether the node stays away while another one is forced.
    pub(crate) fn is_away(&self, node: usize) -> bool {
        let Some(index) = self.forcing else { return false };
        let FaultKind::Force { node: forced } = self.plan.faults[index].kind else { return false };
        node != forced
    }

    /// The others come back, if the operator is done; and are let together once all know of the fork.
    pub(crate) fn on_rejoin(&mut self, index: usize) {
        let FaultKind::Force { node: forced } = self.plan.faults[index].kind else { return };
        if self.forcing != Some(index) {
            return;
        }
        self.queue.after(100 * MILLI, Event::Rejoin(index));
        if !self.rejoining {
            if self.wishes.values().any(|(node, wish)| *node == forced && wish == "Force") {
                return;
            }
            self.rejoining = true;
            self.each_pair_without(forced, World::block);
            for node in 0..self.nodes.len() {
                if node != forced && self.nodes[node].process.is_none() {
                    let life = self.nodes[node].life;
                    self.queue.after(MILLI, Event::Start { node, life });
                }
            }
            return;
        }
        self.leave_discarded();
        let fork = self.oracle.newest.as_ref().map_or(0, |newest| newest.fork);
        let know = self.nodes.iter().all(|node| {
            node.process.as_ref().is_some_and(|process| {
                let known = process.member.status().configuration;
                known.is_some_and(|configuration| configuration.fork >= fork)
            })
        });
        if know {
            self.each_pair_without(forced, World::unblock);
            self.rejoining = false;
            self.forcing = None;
        }
    }

    fn each_pair_without(&mut self, node: usize, act: fn(&mut World, usize, usize)) {
        for one in 0..self.nodes.len() {
            for other in 0..self.nodes.len() {
                if one != other && one != node && other != node {
                    act(self, one, other);
                }
            }
        }
    }

    /// A fork begins: what was so far is judged, and from now on its copy is the truth. It may lose what is not there,
    /// and of what its clients still wait for it may be unknown whether it is; nothing else.
    pub(crate) fn on_fork(&mut self, before: &Configuration) {
        let newest = self.oracle.newest.as_ref();
        let Some(node) = newest.and_then(|newest| newest.in_sync().next()) else { return };
        self.mark("sim: a fork begins");
        if self.oracle.force_refused {
            let text = "a fork begins that its operator was told had not come about";
            self.fail("forks", text.to_owned());
            return;
        }
        if let Err(found) = self.history.check() {
            let (text, step, at) = (found.text, found.step, found.at);
            self.failure.get_or_insert(Failure { checker: "linearizable", text, step, at });
            return;
        }
        let old = std::mem::take(&mut self.history);
        let open: BTreeSet<OpIndex> = self.open.values().map(|open| open.op).collect();
        let (flushes, open): (Vec<OpIndex>, Vec<OpIndex>) =
            open.into_iter().partition(|&op| old.operation(op).effect == Effect::Flush);
        let (held, others): (Vec<OpIndex>, Vec<OpIndex>) =
            open.into_iter().partition(|&op| self.may_hold(node_index(node), &old, op));
        let mut carried = self.call_anew(&old, &held);
        carried.extend(self.begin_with_copy(node_index(node), &old, &flushes));
        carried.extend(self.call_anew(&old, &others));
        self.carry_open(&carried);
        let kept = before
            .member(node)
            .is_some_and(|copy| copy.in_sync && self.is_kept(node_index(node), copy.incarnation));
        // It goes on from what it accepted, which may have been decided without its copy.
        let left_out = self.oracle.left_out.get(&node_index(node));
        let kept = kept && left_out.is_none_or(|&out| out <= (before.fork, before.epoch));
        self.oracle.unknown_below = if kept { 0 } else { self.history.len() };
        if !kept {
            self.mark("sim: a copy that was not in sync is forced");
        }
    }

    /// The history begins with what a disk holds, and what may still be on its way there: what is stable, and what is not in the
    /// order in which it came there. A flush that waits makes stable what was complete when it was asked for, and is called again
    /// behind that. Returns which is which.
    fn begin_with_copy(
        &mut self,
        node: usize,
        old: &History,
        flushes: &[OpIndex],
    ) -> BTreeMap<OpIndex, OpIndex> {
        let (mut carried, mut held) = (BTreeMap::new(), self.copy_of(node));
        for (volume, sector, tokens) in &mut held {
            let stable = tokens.pop_front().map(|token| one_sector(*volume, *sector, token));
            stable.into_iter().for_each(|write| self.holds(Operation { fua: true, ..write }));
        }
        for &flush in flushes {
            for (volume, sector, tokens) in &mut held {
                while tokens.front().is_some_and(|&one| old.is_complete_before(flush, *sector, one))
                    && let Some(token) = tokens.pop_front()
                {
                    self.holds(one_sector(*volume, *sector, token));
                }
            }
            carried.extend(self.call_anew(old, &[flush]));
        }
        for (volume, sector, tokens) in held {
            tokens.into_iter().for_each(|token| self.holds(one_sector(volume, sector, token)));
        }
        self.begin_with_what_moves(node, old);
        carried
    }

    /// What a disk holds: of each sector what is stable, then what its cache took.
    fn copy_of(&self, node: usize) -> Vec<(VolumeId, u64, VecDeque<Token>)> {
        let Some(disk) = &self.nodes[node].disk else { return Vec::new() };
        let (mut held, sizes) = (Vec::new(), self.sizes());
        for (volume, first) in &self.plan.volumes {
            // What lies beyond the end is nobody's; it begins anew when the volume grows.
            let size =
                sizes.iter().find(|(known, _)| known == volume).map_or(*first, |size| size.1);
            for (sector, tokens) in (0..size).zip(disk.every_value(*volume)) {
                held.push((self.history_volume(*volume, sector), sector, tokens.into()));
            }
        }
        held
    }

    /// The copy that a history begins with has this write.
    fn holds(&mut self, write: Operation) {
        let (now, step) = (self.queue.now(), self.step);
        let index = self.history.call(now, step, write);
        self.history.answer(now, step, index, true, Vec::new());
    }

    /// What may be on its way to a disk is called, and never answered.
    fn begin_with_what_moves(&mut self, node: usize, old: &History) {
        let (now, step) = (self.queue.now(), self.step);
        let busy = self.nodes[node].disk.as_ref().is_some_and(crate::disk::Disk::is_busy);
        let process = self.nodes[node].process.as_ref();
        let held: BTreeSet<Token> =
            process.map_or(BTreeSet::new(), |process| process.buffers.tokens().collect());
        for index in 0..old.len() {
            let operation = old.operation(index);
            let Effect::Write(token) = operation.effect else { continue };
            // Zeroes have no buffer that tells whether they are on their way; they may be while the disk is at work.
            let zeroes = token == 0 && (!operation.ok || busy);
            if held.contains(&token) || zeroes {
                let index = self.history.call(now, step, fresh(operation));
                self.history.abandon(now, step, index);
            }
        }
    }

    /// Whether a copy may hold a write that waits: in each sector it, or one that came later. It may have taken effect
    /// before what the copy holds.
    fn may_hold(&self, node: usize, old: &History, op: OpIndex) -> bool {
        let operation = old.operation(op);
        let (Effect::Write(token), Some(disk)) = (&operation.effect, &self.nodes[node].disk) else {
            return false;
        };
        let sectors = disk.all(VolumeId(operation.volume.0 % GROWTH_NAMES));
        let covered = operation.span.first()..operation.span.end();
        (0..)
            .zip(sectors)
            .filter(|(sector, _)| covered.contains(sector))
            .all(|(sector, value)| value == *token || old.may_lie_over(op, sector, value))
    }

    /// Operations of the old history are called in the new one: which is which.
    fn call_anew(&mut self, old: &History, ops: &[OpIndex]) -> BTreeMap<OpIndex, OpIndex> {
        let (now, step) = (self.queue.now(), self.step);
        let call = |&op: &OpIndex| (op, self.history.call(now, step, fresh(old.operation(op))));
        ops.iter().map(call).collect()
    }

    /// Requests that wait go on waiting in the new history.
    fn carry_open(&mut self, carried: &BTreeMap<OpIndex, OpIndex>) {
        let knew = std::mem::take(&mut self.oracle.knew);
        let carry = |(old, new): (&OpIndex, &OpIndex)| Some((*new, *knew.get(old)?));
        self.oracle.knew = carried.iter().filter_map(carry).collect();
        for open in self.open.values_mut() {
            open.op = carried[&open.op];
            // What is left of it on a way that was given up was taken in an earlier reign.
            open.earlier.clear();
        }
        self.pieces = std::mem::take(&mut self.pieces)
            .into_iter()
            .filter_map(|(op, left)| Some((*carried.get(&op)?, left)))
            .collect();
    }
}

/// The operation, asked for again.
fn fresh(operation: &Operation) -> Operation {
    Operation { ok: false, ended: false, ..operation.clone() }
}

/// A write of one sector.
pub(crate) fn one_sector(volume: VolumeId, sector: u64, token: Token) -> Operation {
    Operation {
        volume,
        span: Span::new(sector, 1).expect("a sector of a small volume is a span"),
        effect: Effect::Write(token),
        fua: false,
        ok: false,
        ended: false,
    }
}

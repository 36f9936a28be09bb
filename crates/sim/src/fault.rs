//! Carrying faults out, and ending them.
//!
//! Not here: which faults a run meets (`plan`).

use crate::plan::{Fault, FaultKind, Role, Wish};
use crate::queue::MILLI;
use crate::world::{Event, World, node_index};
use base::VoterId;
use replica::{MemberInput, Operation, OperationId};
use wire::MemberKind;

/// The node whose disk fails, is full or stands still until the fault ends.
fn troubled_for_a_while(kind: &FaultKind) -> Option<usize> {
    match *kind {
        FaultKind::DiskErrors { node, .. }
        | FaultKind::DiskStall { node }
        | FaultKind::Full { node } => Some(node),
        _ => None,
    }
}

impl World {
    pub(crate) fn on_fault(&mut self, index: usize) {
        self.on_fault_of(index, None);
    }

    /// A fault begins; one that waited for an output of `speaker` hits that node.
    pub(crate) fn on_fault_of(&mut self, index: usize, speaker: Option<usize>) {
        if self.healed {
            return;
        }
        let Fault { kind, length, .. } = self.plan.faults[index].clone();
        if self.trace {
            println!("---- fault {index}: {kind:?} for {} ms", length / MILLI);
        }
        if self.is_taken_back(&kind) {
            return;
        }
        if let Some(node) = troubled_for_a_while(&kind) {
            self.strike(node, false);
        }
        if let Some(strikes) = self.happen_once(&kind, length, speaker) {
            if strikes {
                self.count(kind.name());
            }
            if let FaultKind::Rot { node } | FaultKind::BadPage { node, .. } = kind
                && strikes
            {
                self.goes_bad_unseen(node);
            }
            return;
        }
        let Some(strikes) = self.begin(index, length) else { return };
        if strikes {
            self.count(kind.name());
        }
        self.active.insert(index);
        self.queue.after(length, Event::FaultEnd(index));
    }

    /// Begins a fault that lasts: whether it strikes. `None` if there is none to be ended.
    fn begin(&mut self, index: usize, length: u64) -> Option<bool> {
        Some(match self.plan.faults[index].kind.clone() {
            FaultKind::Force { node } => {
                if !self.force(node, index) {
                    return None;
                }
                true
            }
            FaultKind::Full { node } => {
                self.nodes[node].disk_full = true;
                self.nodes[node].process.is_some()
            }
            FaultKind::Flap { one, other, period, .. } => {
                self.queue.after(period, Event::Flap(index));
                one != other
            }
            FaultKind::Pause { node } => {
                self.nodes[node].paused = self.nodes[node].process.is_some();
                self.nodes[node].paused
            }
            FaultKind::Block { from, to, both } => self.each_link(from, to, both, World::block),
            FaultKind::Slow { one, other, extra } => {
                self.links[one][other].extra += extra;
                self.links[other][one].extra += extra;
                one != other
            }
            FaultKind::DiskErrors { node, one_in } => {
                self.nodes[node].disk_errors = one_in;
                self.nodes[node].process.is_some()
            }
            FaultKind::DiskStall { node } => {
                let until = self.queue.now() + length;
                self.nodes[node].stalled_until = until;
                self.nodes[node].process.is_some()
            }
            FaultKind::Operator { node, wish } => self.operate(node, wish, true),
            FaultKind::Crash { .. }
            | FaultKind::Stop { .. }
            | FaultKind::PowerCut { .. }
            | FaultKind::Break { .. }
            | FaultKind::DiskReplaced { .. }
            | FaultKind::DiskRestored { .. }
            | FaultKind::Hold { .. }
            | FaultKind::Reconnect { .. }
            | FaultKind::Rot { .. }
            | FaultKind::BadWrite { .. }
            | FaultKind::BadPage { .. } => return None,
        })
    }

    /// What a disk holds is not what was written to it, and nobody has noticed.
    pub(crate) fn goes_bad_unseen(&mut self, node: usize) {
        self.nodes[node].disk_was_bad = true;
        self.strike(node, true);
    }

    /// A fault of this kind has struck: something is not as it would have been.
    pub(crate) fn count(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// A disk that fails ends its process, sooner or later: not the one whose memory is all that is left of a write.
    fn is_taken_back(&mut self, kind: &FaultKind) -> bool {
        let (FaultKind::DiskErrors { node, .. } | FaultKind::Full { node }) = *kind else {
            return false;
        };
        self.counts_memory(node) && self.last_copies(1 << node) != 0
    }

    /// Carries out a fault that has no end of its own: whether it strikes now. `None` for those that last.
    fn happen_once(
        &mut self,
        kind: &FaultKind,
        length: u64,
        speaker: Option<usize>,
    ) -> Option<bool> {
        Some(match *kind {
            FaultKind::Crash { node } => self.crash(speaker.unwrap_or(node), length),
            FaultKind::PowerCut { nodes } => {
                let hit = nodes | speaker.map_or(0, |node| 1 << node);
                self.power_cut(hit, length)
            }
            FaultKind::Break { one, other } => {
                let notice = MILLI * (1 + self.random.below(300));
                self.break_between(one, other, notice)
            }
            FaultKind::DiskReplaced { node } => self.replace_disk(node, length, false),
            FaultKind::DiskRestored { node } => self.replace_disk(node, length, true),
            FaultKind::Reconnect { one, other } => self.reconnect(one, other),
            FaultKind::Rot { node } => self.rot(node),
            // These strike when there is such a write, or message, or when the process has ended.
            FaultKind::Stop { node, power } => {
                self.stop_in_order(node, power, length);
                false
            }
            FaultKind::BadWrite { node, how } => {
                self.nodes[node].bad_write = Some((how, None));
                false
            }
            FaultKind::Hold { from, to, message } => {
                self.holds.push((from, to, message, length));
                false
            }
            FaultKind::BadPage { node, how } => self.bad_page(node, how),
            FaultKind::Pause { .. }
            | FaultKind::Block { .. }
            | FaultKind::Slow { .. }
            | FaultKind::DiskErrors { .. }
            | FaultKind::DiskStall { .. }
            | FaultKind::Operator { .. }
            | FaultKind::Full { .. }
            | FaultKind::Flap { .. }
            | FaultKind::Force { .. } => return None,
        })
    }

    /// A process dies and starts again after `length`, if there is one and what it has in memory is not all that is left.
    pub(crate) fn crash(&mut self, node: usize, length: u64) -> bool {
        let dies = self.nodes[node].process.is_some() && self.spared(1 << node, false) != 0;
        if dies {
            self.stop(node, false, length);
        }
        dies
    }

    pub(crate) fn on_fault_end(&mut self, index: usize) {
        if !self.active.remove(&index) {
            return;
        }
        if self.trace {
            println!("---- fault {index} ends");
        }
        let kind = self.plan.faults[index].kind.clone();
        if let Some(node) = troubled_for_a_while(&kind) {
            self.strike(node, false);
        }
        match kind {
            FaultKind::Pause { node } => self.resume(node),
            FaultKind::Block { from, to, both } => {
                self.each_link(from, to, both, World::unblock);
            }
            FaultKind::Slow { one, other, extra } => {
                self.links[one][other].extra -= extra;
                self.links[other][one].extra -= extra;
            }
            FaultKind::DiskErrors { node, .. } => {
                self.nodes[node].disk_errors = 0;
                if self.has_detached(node) {
                    self.stop(node, false, 0);
                }
            }
            FaultKind::DiskStall { node } => self.nodes[node].stalled_until = 0,
            FaultKind::Full { node } => {
                self.nodes[node].disk_full = false;
                if self.has_detached(node) {
                    self.stop(node, false, 0);
                }
            }
            FaultKind::Flap { .. } => self.flap(index, false),
            FaultKind::Force { .. } => self.on_rejoin(index),
            FaultKind::Operator { node, wish } => {
                self.operate(node, wish, false);
            }
            FaultKind::Crash { .. }
            | FaultKind::Stop { .. }
            | FaultKind::PowerCut { .. }
            | FaultKind::Break { .. }
            | FaultKind::DiskReplaced { .. }
            | FaultKind::DiskRestored { .. }
            | FaultKind::Hold { .. }
            | FaultKind::Reconnect { .. }
            | FaultKind::Rot { .. }
            | FaultKind::BadWrite { .. }
            | FaultKind::BadPage { .. } => {}
        }
    }

    /// A flapping link turns, and will again until its fault ends.
    pub(crate) fn on_flap(&mut self, index: usize) {
        if !self.active.contains(&index) {
            return;
        }
        let block = !self.flapped.contains(&index);
        self.flap(index, block);
        if let FaultKind::Flap { period, .. } = self.plan.faults[index].kind {
            self.queue.after(period, Event::Flap(index));
        }
    }

    fn flap(&mut self, index: usize, block: bool) {
        let FaultKind::Flap { one, other, both, .. } = self.plan.faults[index].kind else { return };
        let act = if block { World::block } else { World::unblock };
        let turns = if block { self.flapped.insert(index) } else { self.flapped.remove(&index) };
        if turns && one != other {
            self.each_link(1 << one, 1 << other, both, act);
        }
    }

    /// Whether there is one.
    fn each_link(
        &mut self,
        from: u32,
        to: u32,
        both: bool,
        act: fn(&mut World, usize, usize),
    ) -> bool {
        let mut any = false;
        for one in 0..self.nodes.len() {
            for other in 0..self.nodes.len() {
                if one != other && from & (1 << one) != 0 && to & (1 << other) != 0 {
                    any = true;
                    act(self, one, other);
                    if both {
                        act(self, other, one);
                    }
                }
            }
        }
        any
    }

    /// The process dies and starts again after `length`.
    pub(crate) fn stop(&mut self, node: usize, power: bool, length: u64) {
        if self.nodes[node].process.is_none() && !power {
            return;
        }
        self.kill(node, power);
        if self.healed {
            self.queue.after(MILLI, Event::Start { node, life: self.nodes[node].life });
            return;
        }
        let life = self.nodes[node].life;
        self.queue.after(length, Event::Start { node, life });
    }

    /// Whether any of them had a process.
    pub(crate) fn power_cut(&mut self, nodes: u32, length: u64) -> bool {
        let nodes = self.spared(nodes, true);
        let mut strikes = false;
        for node in 0..self.nodes.len() {
            if nodes & (1 << node) != 0 {
                strikes |= self.nodes[node].process.is_some();
                self.lose_unflushed(node, nodes);
                self.kill(node, true);
                let life = self.nodes[node].life;
                let more = self.random.below(length.max(1));
                self.queue.after(length + more, Event::Start { node, life });
            }
        }
        self.look_for_loss();
        strikes
    }

    /// An operator begins, or ends, to want something: whether a member hears of it.
    fn operate(&mut self, node: usize, wish: Wish, begin: bool) -> bool {
        let Some(operation) = self.operation(node, wish, begin) else { return false };
        let primary = self.oracle.newest.as_ref().and_then(|newest| newest.primary).map(node_index);
        let at = match operation {
            Operation::Promote
            | Operation::Demote
            | Operation::Invalidate
            | Operation::Force
            | Operation::FailWaiting(_)
            | Operation::Reserve { .. }
            | Operation::Resolve { .. } => node,
            Operation::AddMember { .. }
            | Operation::RemoveMember { .. }
            | Operation::Resize { .. }
            | Operation::SetOptions(_)
            | Operation::Suspend(_)
            | Operation::PauseResync(_)
            | Operation::Verify { .. }
            | Operation::StopVerify
            | Operation::Cut => primary.unwrap_or(node),
        };
        self.want(at, operation)
    }

    /// Hands a wish to a member, if there is one.
    pub(crate) fn want(&mut self, node: usize, operation: Operation) -> bool {
        if self.nodes[node].process.is_none() {
            return false;
        }
        self.oracle.force_refused &= operation != Operation::Force;
        self.oracle.fails_waiting |= operation == Operation::FailWaiting(true);
        self.next_operation += 1;
        let id = OperationId(self.next_operation);
        self.asks_to_reserve(id, &operation);
        self.wishes.insert(id, (node, format!("{operation:?}")));
        let life = self.nodes[node].life;
        let input = MemberInput::Operation { id, operation };
        self.queue.after(0, Event::Member { node, life, input });
        true
    }

    fn operation(&self, node: usize, wish: Wish, begin: bool) -> Option<Operation> {
        let once = |operation| begin.then_some(operation);
        match wish {
            Wish::Promote => once(Operation::Promote),
            Wish::Demote => once(Operation::Demote),
            Wish::Verify if begin => Some(Operation::Verify { anew: false }),
            Wish::Verify => Some(Operation::StopVerify),
            Wish::Invalidate => once(Operation::Invalidate),
            Wish::Cut => once(Operation::Cut),
            Wish::PauseResync => Some(Operation::PauseResync(begin)),
            Wish::Suspend => Some(Operation::Suspend(begin)),
            Wish::FailWaiting => Some(Operation::FailWaiting(begin)),
            Wish::Reserve { host, other, draw } => once(self.reservation(host, other, draw)),
            Wish::Replica => {
                let (id, voter) = (self.nodes[node].id, self.nodes[node].voter);
                let kind = MemberKind::Replica;
                if begin {
                    self.can_lose_disk(node).then_some(Operation::RemoveMember { node: id })
                } else {
                    Some(Operation::AddMember { node: id, kind, voter })
                }
            }
            Wish::Resize { volume, draw } => {
                let extent = self.plan.geometry.extent_sectors;
                let (volume, first) = self.plan.volumes[volume];
                let large = self.sizes().iter().any(|&(known, now)| known == volume && now > first);
                // Not a whole extent, nor a whole block, more.
                let sectors = if large { first } else { first + (1 + draw) * extent - draw };
                once(Operation::Resize { volume, sectors, shrinks: true })
            }
            Wish::Witness => {
                let witness =
                    (0..self.nodes.len()).find(|&at| self.plan.roles[at] == Role::Witness)?;
                let (node, voter) = (self.nodes[witness].id, self.nodes[witness].voter);
                let add = Operation::AddMember { node, kind: MemberKind::Witness, voter };
                let fair = !begin || !self.has_lost_votes(witness);
                fair.then_some(if begin { Operation::RemoveMember { node } } else { add })
            }
        }
    }

    /// Whether a node's own disk failed and is not used any more.
    pub(crate) fn has_detached(&self, node: usize) -> bool {
        self.nodes[node].disk_failed
    }

    /// A fresh identity for a node's memory.
    pub(crate) fn fresh_voter(&mut self) -> VoterId {
        VoterId(self.random.id())
    }
}

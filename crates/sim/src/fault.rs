//! Carrying faults out, and ending them.
//!
//! Not here: which faults a run meets (`plan`).

use crate::disk::Disk;
use crate::plan::{Fault, FaultKind, Role, Wish};
use crate::queue::MILLI;
use crate::world::{Event, World, node_index};
use base::{Incarnation, VoterId};
use replica::{MemberInput, Operation, OperationId};
use wire::{Configuration, MemberKind};

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
        self.faults += 1;
        if self.trace {
            println!("---- fault {index}: {kind:?} for {} ms", length / MILLI);
        }
        match kind {
            FaultKind::Crash { node } => {
                self.stop(speaker.unwrap_or(node), false, length);
                return;
            }
            FaultKind::PowerCut { nodes } => {
                let hit = nodes | speaker.map_or(0, |node| 1 << node);
                self.power_cut(hit, length);
                return;
            }
            FaultKind::Break { one, other } => {
                let notice = MILLI * (1 + self.random.below(300));
                self.break_between(one, other, notice);
                return;
            }
            FaultKind::DiskReplaced { node } => {
                self.replace_disk(node, length, false);
                return;
            }
            FaultKind::DiskRestored { node } => {
                self.replace_disk(node, length, true);
                return;
            }
            FaultKind::Pause { node } => {
                self.nodes[node].paused = self.nodes[node].process.is_some();
            }
            FaultKind::Block { from, to, both } => self.each_link(from, to, both, World::block),
            FaultKind::Slow { one, other, extra } => {
                self.links[one][other].extra += extra;
                self.links[other][one].extra += extra;
            }
            FaultKind::DiskErrors { node, one_in } => self.nodes[node].disk_errors = one_in,
            FaultKind::DiskStall { node } => {
                let until = self.queue.now() + length;
                self.nodes[node].stalled_until = until;
            }
            FaultKind::Operator { node, wish } => self.operate(node, wish, true),
        }
        self.active.insert(index);
        self.queue.after(length, Event::FaultEnd(index));
    }

    pub(crate) fn on_fault_end(&mut self, index: usize) {
        if !self.active.remove(&index) {
            return;
        }
        if self.trace {
            println!("---- fault {index} ends");
        }
        match self.plan.faults[index].kind.clone() {
            FaultKind::Pause { node } => self.resume(node),
            FaultKind::Block { from, to, both } => self.each_link(from, to, both, World::unblock),
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
            FaultKind::Operator { node, wish } => self.operate(node, wish, false),
            FaultKind::Crash { .. }
            | FaultKind::PowerCut { .. }
            | FaultKind::Break { .. }
            | FaultKind::DiskReplaced { .. }
            | FaultKind::DiskRestored { .. } => {}
        }
    }

    fn each_link(&mut self, from: u32, to: u32, both: bool, act: fn(&mut World, usize, usize)) {
        for one in 0..self.nodes.len() {
            for other in 0..self.nodes.len() {
                if one != other && from & (1 << one) != 0 && to & (1 << other) != 0 {
                    act(self, one, other);
                    if both {
                        act(self, other, one);
                    }
                }
            }
        }
    }

    /// The process dies and starts again after `length`.
    fn stop(&mut self, node: usize, power: bool, length: u64) {
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

    fn power_cut(&mut self, nodes: u32, length: u64) {
        for node in 0..self.nodes.len() {
            if nodes & (1 << node) != 0 {
                self.kill(node, true);
                let life = self.nodes[node].life;
                let more = self.random.below(length.max(1));
                self.queue.after(length + more, Event::Start { node, life });
            }
        }
        self.look_for_loss();
    }

    /// A disk is replaced by an empty or an older one, if the others can live without it.
    fn replace_disk(&mut self, node: usize, length: u64, restore: bool) {
        if !self.can_lose_disk(node) {
            return;
        }
        let backups = self.nodes[node].backups.len() as u64;
        // Nobody is told the generation of a primary's own disk.
        let newest = self.oracle.newest.as_ref();
        let primary = newest.is_some_and(|newest| newest.primary == Some(self.nodes[node].id));
        if restore && (backups == 0 || primary) {
            return;
        }
        self.stop(node, false, length);
        self.nodes[node].swapped = Some(self.nodes[node].incarnation);
        self.nodes[node].incarnation = Incarnation(0);
        if restore {
            let at = usize::try_from(self.random.below(backups)).expect("few backups");
            self.nodes[node].disk = Some(self.nodes[node].backups[at].clone());
            self.nodes[node].restored = Some(VoterId(0));
            self.mark("sim: disk restored");
        } else {
            let mut disk = Disk::new(&self.plan.volumes);
            disk.write_through = self.plan.stable_disks;
            self.nodes[node].disk = Some(disk);
            self.nodes[node].restored = None;
            self.blank(node);
            self.mark("sim: disk replaced");
        }
        self.look_for_loss();
    }

    /// Another in-sync member is kept and running, and a majority of voters is without this node: also by
    /// the configurations that the nodes know, from which the newest has to be found again.
    fn can_lose_disk(&self, node: usize) -> bool {
        let Some(newest) = &self.oracle.newest else { return false };
        let intact = |index: usize| {
            let other = &self.nodes[index];
            index != node
                && other.process.is_some()
                && !other.disk_failed
                && other.restored.is_none()
        };
        let kept = newest.members.iter().any(|member| {
            let index = node_index(member.node);
            member.in_sync && intact(index) && self.is_kept(index, member.incarnation)
        });
        let decides = |configuration: &Configuration| {
            let voters = configuration.members.iter().filter(|member| {
                let index = node_index(member.node);
                intact(index) && self.nodes[index].voter == member.voter
            });
            voters.count() >= configuration.majority() && configuration.members.len() > 2
        };
        let known = self.nodes.iter().filter_map(|other| other.process.as_ref());
        self.nodes[node].process.is_some()
            && kept
            && decides(newest)
            && known
                .filter_map(|process| process.member.status().configuration)
                .all(|configuration| decides(&configuration))
    }

    /// An operator begins, or ends, to want something.
    fn operate(&mut self, node: usize, wish: Wish, begin: bool) {
        let Some(operation) = self.operation(node, wish, begin) else { return };
        let primary = self.oracle.newest.as_ref().and_then(|newest| newest.primary).map(node_index);
        let at = match operation {
            Operation::Promote
            | Operation::Demote
            | Operation::Invalidate
            | Operation::Resolve { .. } => node,
            Operation::AddMember { .. }
            | Operation::RemoveMember { .. }
            | Operation::Resize { .. }
            | Operation::SetOptions(_)
            | Operation::Force
            | Operation::Suspend(_)
            | Operation::PauseResync(_)
            | Operation::Verify
            | Operation::Cut => primary.unwrap_or(node),
        };
        if matches!(operation, Operation::Suspend(false) | Operation::PauseResync(false)) {
            for node in 0..self.nodes.len() {
                self.want(node, operation.clone());
            }
        } else {
            self.want(at, operation);
        }
    }

    /// Hands a wish to a member.
    pub(crate) fn want(&mut self, node: usize, operation: Operation) {
        if self.nodes[node].process.is_none() {
            return;
        }
        self.next_operation += 1;
        let id = OperationId(self.next_operation);
        self.wishes.insert(id, format!("{operation:?}"));
        let life = self.nodes[node].life;
        let input = MemberInput::Operation { id, operation };
        self.queue.after(0, Event::Member { node, life, input });
    }

    fn operation(&self, node: usize, wish: Wish, begin: bool) -> Option<Operation> {
        let once = |operation| begin.then_some(operation);
        match wish {
            Wish::Promote => once(Operation::Promote),
            Wish::Demote => once(Operation::Demote),
            Wish::Verify => once(Operation::Verify),
            Wish::Invalidate => once(Operation::Invalidate).filter(|_| self.can_lose_disk(node)),
            Wish::Cut => once(Operation::Cut),
            Wish::PauseResync => Some(Operation::PauseResync(begin)),
            Wish::Suspend => Some(Operation::Suspend(begin)),
            Wish::Witness => {
                let witness =
                    (0..self.nodes.len()).find(|&at| self.plan.roles[at] == Role::Witness)?;
                let (node, voter) = (self.nodes[witness].id, self.nodes[witness].voter);
                let add = Operation::AddMember { node, kind: MemberKind::Witness, voter };
                Some(if begin { Operation::RemoveMember { node } } else { add })
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

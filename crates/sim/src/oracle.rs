//! What must hold at any time, seen from above: one chain of configurations, no loss while a kept
//! member lives, all well soon after healing, replicas the same.
//!
//! Not here: whether answers are linear (`history`).

use crate::history::OpIndex;
use crate::plan::FaultKind;
use crate::queue::{MILLI, SECOND, Time};
use crate::world::{Event, LIVENESS, Node, World, node_id, node_index};
use base::{Ballot, Epoch, Incarnation, NodeId, VoterId};
use replica::disk::Record;
use replica::{Operation, Shard};
use std::collections::{BTreeMap, BTreeSet};
use wire::{Configuration, MemberEntry, MemberKind};

/// So often it is tried to have enough go wrong before all is healed, 300 ms apart.
const LATE_MAX: usize = 100;

/// What is known from above.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Voters that hold each proposed value.
    accepted: BTreeMap<(Epoch, Ballot), BTreeSet<VoterId>>,
    /// The newest committed configuration.
    pub(crate) newest: Option<Configuration>,
    /// Requests of clients that left: answers to them go nowhere.
    pub(crate) departed: BTreeSet<base::RequestId>,
    /// What was installed under each epoch.
    pub(crate) installed: BTreeMap<(u64, Epoch), Configuration>,
    /// What nodes knew when operations were asked for.
    pub(crate) knew: BTreeMap<OpIndex, crate::excuses::Knew>,
    /// An operator wanted what waits to fail.
    pub(crate) fails_waiting: bool,
    /// Configurations that were proposed and are newer than `newest`.
    pub(crate) proposed: Vec<Configuration>,
    /// Blocks that differed at the last look though nobody knew.
    pub(crate) differences: Vec<crate::inspect::Difference>,
    /// What cuts writes belong to.
    pub(crate) cuts: crate::inspect::Cuts,
    /// Operations before this one may be asked of a copy that was forced, and that nobody can say it of.
    pub(crate) unknown_below: OpIndex,
    /// Where a node accepted last that its copy is not in sync: it may have been decided, and the node cannot know.
    pub(crate) left_out: BTreeMap<usize, (u64, Epoch)>,
    /// Who forced a node was told that nothing came of it.
    pub(crate) force_refused: bool,
    /// Instant and number of wake-ups at it.
    pub(crate) woken: (Time, u64),
}

impl World {
    /// A record reached a node's stable storage.
    pub(crate) fn stored(&mut self, node: usize, record: &Record) {
        if self.sides.is_some() {
            return;
        }
        if let Some((ballot, configuration)) = &record.accepted {
            let voters = self.oracle.accepted.entry((configuration.epoch, *ballot)).or_default();
            voters.insert(record.voter);
            let for_it =
                configuration.voters().filter(|member| voters.contains(&member.voter)).count();
            if for_it >= configuration.majority() {
                self.committed(configuration);
            }
            // Only now: what it had accepted before is what a fork went on from.
            if configuration.is_in_sync(self.nodes[node].id) {
                self.oracle.left_out.remove(&node);
            } else {
                self.oracle.left_out.insert(node, (configuration.fork, configuration.epoch));
            }
        }
        if let Some((_, configuration)) = &record.committed {
            self.agree(node, configuration);
        }
    }

    /// A configuration is committed, as far as can be seen from above.
    pub(crate) fn committed(&mut self, configuration: &Configuration) {
        let newer = self.oracle.newest.as_ref().is_none_or(|newest| {
            (configuration.fork, configuration.epoch) > (newest.fork, newest.epoch)
        });
        if newer {
            let forked = self.oracle.newest.clone().filter(|old| old.fork < configuration.fork);
            self.resized(configuration);
            for node in &mut self.nodes {
                let entry = configuration.member(node.id).filter(|entry| entry.in_sync);
                node.put_back = node.put_back.filter(|_| entry.map(identity) == node.put_back);
            }
            self.oracle.newest = Some(configuration.clone());
            let at = (configuration.fork, configuration.epoch);
            self.oracle.proposed.retain(|value| (value.fork, value.epoch) > at);
            self.spare_pages();
            // First: what rotted on the copy of a fork is not what the fork begins with.
            self.spare_rot();
            if let Some(before) = forked {
                self.on_fork(&before);
            }
            self.look_for_loss();
        }
    }

    /// A configuration is on its way to a voter.
    pub(crate) fn proposed_now(&mut self, configuration: &Configuration) {
        if !self.oracle.proposed.contains(configuration) {
            self.oracle.proposed.push(configuration.clone());
        }
    }

    /// A node's shards are told of a configuration.
    pub(crate) fn installed(&mut self, node: usize, configuration: &Configuration) {
        if self.sides.is_some() {
            return self.side_installed(node, configuration);
        }
        self.agree(node, configuration);
        self.learns_rights(configuration);
        self.committed(configuration);
    }

    fn agree(&mut self, node: usize, configuration: &Configuration) {
        let key = (configuration.fork, configuration.epoch);
        if !self.oracle.installed.contains_key(&key) {
            self.hands_on(key, configuration);
        }
        let known = self.oracle.installed.entry(key).or_insert_with(|| configuration.clone());
        if known != configuration {
            let text = format!(
                "node {}: epoch {} is {} here, and {} elsewhere",
                self.nodes[node].id,
                configuration.epoch,
                short(configuration),
                short(known)
            );
            self.fail("one chain", text);
        }
    }

    /// Copies that come into sync beside such only whose disk was bad, or that were made from one, were made from those: they lack what
    /// it lost.
    fn hands_on(&mut self, key: (u64, Epoch), configuration: &Configuration) {
        let Some((_, before)) = self.oracle.installed.range(..key).next_back() else { return };
        if !before.in_sync().all(|node| self.nodes[node_index(node)].disk_was_bad) {
            return;
        }
        let come: Vec<usize> = configuration.in_sync().map(node_index).collect();
        come.into_iter().for_each(|node| self.nodes[node].disk_was_bad = true);
    }

    /// Whether the replica on a node still has the cache that the configuration names.
    pub(crate) fn is_kept(&self, node: usize, incarnation: Incarnation) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|node| incarnation != Incarnation(0) && node.incarnation == incarnation)
    }

    /// Notes a loss of all in-sync caches.
    pub(crate) fn look_for_loss(&mut self) {
        if self.sides.is_some() {
            return;
        }
        self.look_for_lacks();
        let Some(newest) = &self.oracle.newest else { return };
        let in_sync = || newest.members.iter().filter(|member| member.in_sync);
        let held = |member: &MemberEntry| &self.nodes[node_index(member.node)];
        let any_kept = in_sync().any(|member| {
            self.is_kept(node_index(member.node), member.incarnation)
                && held(member).put_back.is_none()
        });
        // A disk that was replaced or put back while it was needed: nothing is promised any more.
        let hopeless = in_sync().any(|member| {
            let held = held(member);
            held.swapped == Some(member.incarnation) || held.put_back.is_some()
        });
        if !any_kept && hopeless {
            return self.fail("liveness", "a fault took the disk of the last copy".to_owned());
        }
        if !any_kept {
            self.mark("sim: every in-sync cache lost");
            let (now, step) = (self.queue.now(), self.step);
            if self.trace {
                println!("every in-sync cache is lost");
            }
            self.history.loss(now, step);
        }
    }

    /// Looks at the node that just answered a request.
    pub(crate) fn check_answer(&mut self, node: usize) {
        self.mix(node as u64);
        self.check_primaries();
    }

    /// Where too few faults have struck, those that waited for an output which never came strike now, and when there are no more
    /// of those, processes die; whether all is to go on a while for that.
    fn strike_late(&mut self) -> bool {
        if self.faults.values().sum::<u64>() >= self.plan.faults_min as u64 {
            return false;
        }
        if let Some((_, late)) = self.at_output.pop_last() {
            self.mark("sim: a fault that waited for an output strikes before all is healed");
            for fault in late {
                self.on_fault(fault);
            }
            return true;
        }
        self.late += 1;
        if self.late > LATE_MAX {
            self.fail("liveness", "nothing can go wrong any more".to_owned());
            return false;
        }
        let nodes = self.nodes.len();
        for node in (self.late..self.late + nodes).map(|node| node % nodes) {
            // One whose memory is all that is left is stopped in good order, in the end.
            let dies = self.crash(node, 20 * MILLI);
            if dies {
                self.count(FaultKind::Crash { node }.name());
            }
            if dies || (self.late > LATE_MAX / 2 && self.stop_in_order(node, false, 20 * MILLI)) {
                self.mark("sim: a process ends before all is healed, for too little went wrong");
                break;
            }
        }
        true
    }

    /// From now on nothing goes wrong.
    pub(crate) fn on_heal(&mut self) {
        if self.strike_late() {
            return self.queue.after(300 * MILLI, Event::Heal);
        }
        self.healed = true;
        self.healed_at = self.queue.now();
        if self.trace {
            println!("---- healing");
        }
        let active: Vec<usize> = self.active.iter().copied().collect();
        for fault in active {
            self.on_fault_end(fault);
        }
        self.at_output.clear();
        self.holds.clear();
        for node in 0..self.nodes.len() {
            if self.is_away(node) {
                continue;
            }
            self.nodes[node].stalled_until = 0;
            self.nodes[node].disk_errors = 0;
            self.nodes[node].disk_full = false;
            self.resume(node);
            // A node whose disk failed is started again by its operator.
            if self.nodes[node].process.is_some() && self.has_detached(node) {
                self.kill(node, false);
            }
            if self.nodes[node].process.is_none() {
                let life = self.nodes[node].life;
                self.queue.after(MILLI, Event::Start { node, life });
            }
        }
        self.queue.after(100 * MILLI, Event::Look);
    }

    /// Looks whether all is well by now.
    pub(crate) fn on_look(&mut self) {
        if self.done {
            return;
        }
        self.let_go();
        if self.sides.is_some() {
            return self.look_at_sides();
        }
        self.leave_discarded();
        let late = self.queue.now() > self.healed_at + LIVENESS;
        match self.missing() {
            None if self.rotten() => {
                // Nobody need have read what rotted: an operator looks for it.
                let anew = Operation::Verify { anew: true };
                if !self.is_wished(&anew) {
                    let primary = self.oracle.newest.as_ref().and_then(|newest| newest.primary);
                    self.mark("sim: a verify looks for rot");
                    self.want(primary.map_or(0, node_index), anew);
                }
                self.queue.after(100 * MILLI, Event::Look);
                if late {
                    self.fail("rot", "a verify leaves what rotted as it is".to_owned());
                }
            }
            None => self.conclude(late),
            Some(what) if late => {
                let text = format!("{} s after healing: {what}", LIVENESS / SECOND);
                self.print_state();
                self.fail("liveness", text);
            }
            Some(_) if self.forcing.is_none() && self.no_member().is_some() => {
                // It was taken out in order to come back; the primary that knew so is gone. What waits may
                // wait for it: `in-sync-min`.
                self.mark("sim: an operator adds a member again");
                self.add_missing();
                self.queue.after(500 * MILLI, Event::Look);
            }
            Some(_) => {
                self.queue.after(100 * MILLI, Event::Look);
            }
        }
    }

    fn is_wished(&self, operation: &Operation) -> bool {
        let wanted = format!("{operation:?}");
        self.wishes.values().any(|(_, wish)| *wish == wanted)
    }

    /// What operators held back when all was well again, they let go: at the primary, or where there is none.
    pub(crate) fn let_go(&mut self) {
        for node in 0..self.nodes.len() {
            let Some(process) = &self.nodes[node].process else { continue };
            let status = process.member.status();
            let Some(known) = status.configuration else { continue };
            if known.primary.is_some_and(|primary| node_index(primary) != node) {
                continue;
            }
            let held = [
                (known.held.requests, Operation::Suspend(false)),
                (known.held.resync, Operation::PauseResync(false)),
            ];
            for (_, operation) in held.into_iter().filter(|(held, _)| *held) {
                if !self.is_wished(&operation) {
                    self.mark("sim: what was held is let go");
                    self.want(node, operation);
                }
            }
        }
    }

    /// Nothing is missing any more: everything is read once more, until all of it is answered, and then the
    /// copies are compared. Where requests fail without a quorum it may not be there yet.
    pub(crate) fn conclude(&mut self, late: bool) {
        if !self.finals {
            self.finals = true;
            self.final_reads();
        } else if self.final_reads_failed() {
            if late {
                return self.fail("liveness", "reads fail long after healing".to_owned());
            }
            self.mark("sim: final reads are asked again");
            self.finals = false;
        } else if let Some(what) = self.doubts() {
            if late {
                return self.fail("liveness", format!("long after healing {what}"));
            }
            // Who was primary may have been stopping, and only a primary ends that.
            self.finals = self.is_served();
        } else {
            self.compare();
            self.done = true;
            return;
        }
        self.queue.after(100 * MILLI, Event::Look);
    }

    /// Something that rotted is still there.
    fn rotten(&self) -> bool {
        let disks = self.nodes.iter().filter_map(|node| node.disk.as_ref());
        disks.map(crate::disk::Disk::rotten_count).sum::<usize>() > 0
    }

    /// Replicas that are no members any more are added again.
    fn add_missing(&mut self) {
        let Some(newest) = self.oracle.newest.clone() else { return };
        // One that holds the data becomes primary for it, if nobody is.
        let Some(primary) = newest.primary.or(newest.in_sync().next()).map(node_index) else {
            return;
        };
        for node in self.plan.replicas() {
            let (id, voter) = (self.nodes[node].id, self.nodes[node].voter);
            if newest.member(id).is_none() {
                let kind = MemberKind::Replica;
                self.want(primary, Operation::AddMember { node: id, kind, voter });
            }
        }
    }

    /// For the trace: what every machine is doing.
    pub(crate) fn print_state(&self) {
        if !self.trace {
            return;
        }
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let status = process.member.status();
            let known = status.configuration.as_deref().map_or(String::new(), short);
            println!(
                "node {}: {:?} knows {known}, suspended: {:?}",
                node.id, status.role, status.suspended
            );
            println!("node {}: {:?}", node.id, process.member);
            for shard in &process.shards {
                println!("node {}: {:?}", node.id, shard.status());
            }
        }
    }

    /// What is not well.
    fn missing(&self) -> Option<String> {
        if self.forcing.is_some() {
            return Some("nodes come back to one that was forced".to_owned());
        }
        if let Some(what) = self.unanswered() {
            return Some(what);
        }
        let newest = self.oracle.newest.as_ref()?;
        for member in newest.members.iter().filter(|member| member.kind == MemberKind::Replica) {
            if !member.in_sync || !self.is_kept(node_index(member.node), member.incarnation) {
                return Some(format!("node {} is not in sync: {}", member.node, short(newest)));
            }
            if self.nodes[node_index(member.node)].put_back.is_some() {
                return Some(format!(
                    "nobody noticed that node {}'s disk was put back",
                    member.node
                ));
            }
        }
        self.no_member().or_else(|| self.leftovers())
    }

    /// A node that should be a replica, and is none by the newest configuration.
    fn no_member(&self) -> Option<String> {
        let newest = self.oracle.newest.as_ref()?;
        let ids = self.plan.replicas().into_iter().map(|node| self.nodes[node].id);
        let mut none = ids.filter(|&id| !newest.is_replica(id));
        none.next().map(|id| format!("node {id} is no member: {}", short(newest)))
    }

    /// Requests that wait, or were not even asked.
    pub(crate) fn unanswered(&self) -> Option<String> {
        if let Some((id, open)) = self.open.iter().next() {
            let operation = self.history.operation(open.op);
            return Some(format!(
                "{} requests wait, one of them {id} of node {}: {:?} of volume {} {:?}",
                self.open.len(),
                self.nodes[open.node].id,
                operation.effect,
                operation.volume,
                operation.span,
            ));
        }
        if self.asked < self.plan.requests {
            return Some(format!("{} requests were asked", self.asked));
        }
        None
    }

    /// Buffers and operations that nobody needs any more, once everything was read again. Until there is a primary again a
    /// write of the last one may wait for room in a replica's activity log, which only a primary can make.
    pub(crate) fn leftovers(&self) -> Option<String> {
        if !self.finals {
            return None;
        }
        for node in &self.nodes {
            let held = node.process.as_ref().map_or(0, |process| process.buffers.count());
            if held > 0 {
                return Some(format!("node {} holds {held} buffers", node.id));
            }
            let shards = node.process.iter().flat_map(|process| &process.shards);
            for (number, shard) in shards.enumerate() {
                let status = shard.status();
                if status.open + status.waiting + status.forwarded + status.held > 0 {
                    return Some(format!(
                        "node {} shard {number} has not ended all: {status:?}",
                        node.id
                    ));
                }
            }
        }
        None
    }

    /// What nobody need doubt any more, once everything was read again.
    fn doubts(&self) -> Option<String> {
        for node in &self.nodes {
            let shards = node.process.iter().flat_map(|process| &process.shards);
            for (number, shard) in shards.enumerate() {
                let status = shard.status();
                if status.doubt_sectors + status.reconcile_sectors > 0 {
                    return Some(format!(
                        "node {} shard {number} is in doubt: {status:?}",
                        node.id
                    ));
                }
                if let Some(peer) = self.taken_for_different(node, shard) {
                    return Some(format!(
                        "node {} shard {number} takes node {peer} for different",
                        node.id
                    ));
                }
            }
        }
        None
    }

    fn is_served(&self) -> bool {
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let mut shards = processes.flat_map(|process| &process.shards);
        shards.any(|shard| shard.status().serving)
    }

    /// A replica that a shard of a node still keeps bits of, or un-retired writes. Of a page of bits that went bad, or was torn,
    /// all are set, and stay so until the replica goes and comes back.
    fn taken_for_different(&self, node: &Node, shard: &Shard) -> Option<NodeId> {
        let sizes = self.sizes();
        let disk = node.disk.as_ref();
        let each = self.plan.geometry.stripe_extents * self.plan.geometry.extent_sectors;
        let differs = |peer: &NodeId| {
            let differs = |&(volume, sectors): &(base::VolumeId, u64)| {
                let mut pages = 0..sectors.div_ceil(each);
                pages.any(|page| {
                    let (first, end) = (page * each, sectors.min((page + 1) * each));
                    !disk.is_some_and(|disk| disk.is_doubted(&(*peer, volume, page)))
                        && shard.may_differ(*peer, volume, first, end)
                })
            };
            *peer != node.id && sizes.iter().any(differs)
        };
        self.plan.replicas().into_iter().map(node_id).find(differs)
    }

    /// Sizes of the volumes now.
    pub(crate) fn sizes(&self) -> Vec<(base::VolumeId, u64)> {
        let newest = self.oracle.newest.as_ref();
        newest.map_or(self.plan.volumes.clone(), |newest| {
            newest.volumes.iter().map(|entry| (entry.volume, entry.sectors)).collect()
        })
    }

    /// Every replica holds the same.
    pub(crate) fn compare(&mut self) {
        self.compare_among(&self.plan.replicas());
    }

    /// These do.
    pub(crate) fn compare_among(&mut self, replicas: &[usize]) {
        for (volume, sectors) in self.sizes() {
            let mut first: Option<(usize, Vec<u64>)> = None;
            for &node in replicas {
                let Some(disk) = &self.nodes[node].disk else { continue };
                let mut all = disk.all(volume);
                all.truncate(usize::try_from(sectors).expect("small volumes"));
                let Some((other, expected)) = &first else {
                    first = Some((node, all));
                    continue;
                };
                if let Some(sector) = (0..all.len()).find(|&at| all.get(at) != expected.get(at)) {
                    let text = format!(
                        "volume {volume} sector {sector}: node {} has {:#x}, node {} has {:#x}",
                        self.nodes[node].id, all[sector], self.nodes[*other].id, expected[sector]
                    );
                    self.fail("replicas identical", text);
                    return;
                }
            }
        }
    }
}

/// Whose memory and whose cache a configuration takes a member for.
pub(crate) fn identity(entry: &MemberEntry) -> (VoterId, Incarnation) {
    (entry.voter, entry.incarnation)
}

/// A configuration in few words.
pub(crate) fn short(configuration: &Configuration) -> String {
    let members: Vec<String> = configuration
        .members
        .iter()
        .map(|member| {
            let kind = match (member.kind, member.in_sync) {
                (MemberKind::Witness, _) => "w",
                (MemberKind::Replica, true) => "+",
                (MemberKind::Replica, false) => "-",
            };
            format!("{}{kind}", member.node)
        })
        .collect();
    format!(
        "epoch {} reign {} primary {:?}{} [{}]",
        configuration.epoch,
        configuration.reign,
        configuration.primary.map(|node| node.0),
        if configuration.recovering { " recovering" } else { "" },
        members.join(" ")
    )
}

//! What must hold without quorum, seen from above: histories that part, and one that goes on.
//!
//! A *place* is a configuration in the tree of histories: its stretch and its epoch. The tree is read off
//! the lineages of what is installed. Every operation is known by the place of the node where it was asked
//! for and by that of the primary that answered it.
//!
//! Checked:
//! - within a stretch there is one configuration for each epoch;
//! - each side, the one that goes on and each that was given up, is a history that a register explains, made of nothing but
//!   what happened on it, before it parted, or was sent to it by a primary that still counted it in;
//! - what a client is told was done is in the past of what its node acts on, and of what a copy in sync there knows when the primary says so;
//! - a side is given up only when the operator or the policy says so, and while its node has no clients;
//! - after healing, sides that parted name each other in their status, and once all but one are given up,
//!   all is well and every copy is the same.
//!
//! Not here: the same for resources with quorum (`oracle`).

mod choice;

use crate::history::{Effect, Fate, History, NotLinear, OpIndex};
use crate::oracle::short;
use crate::plan::{Plan, Role};
use crate::queue::{MILLI, SECOND, Time};
use crate::world::{Event, LIVENESS, World, node_index};
use base::{Ballot, Epoch, NodeId, Op, RequestId, Span};
use replica::door::OperationError;
use replica::{Operation, ShardInput, ToShard};
use std::collections::{BTreeMap, BTreeSet};
use wire::{AfterSplitBrain, Configuration, MemberKind, Quorum, ShardMessage};

/// How long a policy may take before an operator decides.
const POLICY_PATIENCE: Time = 8 * SECOND;

/// A place in the tree of histories: stretch and epoch.
pub(crate) type Place = (u64, Epoch);

/// What is known from above of a resource without quorum.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    /// Where each stretch left the one before: at the last place of it with no higher ballot and epoch.
    parents: BTreeMap<u64, (u64, (Ballot, Epoch))>,
    /// Under which ballot each place was committed, as far as somebody stored it. Two nodes may have made
    /// places of one stretch and epoch, of which only one came to be: it is known by its ballot.
    ballots: BTreeMap<Place, Ballot>,
    /// What nodes agreed to at each place, and under which ballots. A primary that remembers nothing may be the only one
    /// to learn what came of it.
    agreed: BTreeMap<Place, Vec<(Ballot, Configuration)>>,
    /// What was installed at each place.
    installed: BTreeMap<Place, Configuration>,
    /// The newest that each node's shards were told of.
    nodes: BTreeMap<usize, Place>,
    /// What each shard acts on.
    shards: BTreeMap<(usize, u16), Place>,
    /// Under which a primary answered what was forwarded to it.
    forwarded: BTreeMap<(NodeId, usize, u16, RequestId), Place>,
    /// Under which the step under way would answer.
    answering: Option<Place>,
    /// What the shard acts on that takes it.
    acting: Option<Place>,
    /// By a client of which node, and where: at the shard that it reached, or at the primary's that took it in, whichever is older.
    asked: BTreeMap<OpIndex, (usize, Place)>,
    answered: BTreeMap<OpIndex, Place>,
    /// Where something was done, and its client told so; an error may come from a shard that never served.
    done: BTreeSet<Place>,
    /// Writes that were asked for anew by another way, and answered: where.
    expired: BTreeMap<OpIndex, Place>,
    /// When the last shard of a primary began to act on the fork of each number, and in which step.
    forked: BTreeMap<u64, (Time, u64)>,
    /// Ends of histories that were given up, each by a node.
    given_up: BTreeSet<(usize, Place)>,
    /// Nodes that are about to leave a side by themselves.
    left_alone: BTreeSet<usize>,
    /// Who had a right to end other sides.
    choice: choice::Choice,
    /// Both sides were seen to name each other.
    named: bool,
    /// When an operator looks again.
    patient_until: Time,
    /// Whose side an operator said is to be discarded, and who of the other side was named as the one to ask, if another was asked.
    discarded: Option<NodeId>,
    sent_to: Option<NodeId>,
    /// Nodes whose clients leave, because their side was given up.
    pub(crate) leaving: BTreeSet<usize>,
    /// Clients that each member knows of.
    told_clients: BTreeMap<usize, u32>,
}

fn place(configuration: &Configuration) -> Place {
    (configuration.history(), configuration.epoch)
}

impl Sides {
    /// Of a resource without quorum.
    pub(crate) fn of(plan: &Plan) -> Option<Sides> {
        (plan.options.quorum == Quorum::Off).then(Sides::default)
    }

    fn learn(&mut self, configuration: &Configuration) {
        let mut before = 0;
        for (at, stretch) in configuration.lineage.iter().enumerate() {
            // The first of a list that was cut short does not say where it came from.
            if at > 0 || configuration.lineage.len() < wire::LINEAGE_MAX {
                let end = (before, (stretch.ballot, stretch.epoch));
                self.parents.entry(stretch.id).or_insert(end);
            }
            before = stretch.id;
        }
    }

    /// Whether `old` is in the past of `new`, or the same.
    fn is_past(&self, old: Place, new: Place) -> bool {
        if old.0 == new.0 {
            return old.1 <= new.1;
        }
        let from = (self.ballot_of(old), old.1);
        let mut at = new.0;
        while let Some(&(before, end)) = self.parents.get(&at) {
            if before == old.0 {
                return from <= end;
            }
            at = before;
        }
        false
    }

    fn ballot_of(&self, place: Place) -> Ballot {
        let agreed = || {
            let known = self.installed.get(&place)?;
            let all = self.agreed.get(&place)?.iter();
            all.filter(|(_, agreed)| agreed == known).map(|(ballot, _)| *ballot).min()
        };
        self.ballots.get(&place).copied().or_else(agreed).unwrap_or_default()
    }

    fn at(&self, node: usize) -> Option<&Configuration> {
        self.installed.get(self.nodes.get(&node)?)
    }

    /// Whether a node is primary, as far as it knows.
    pub(crate) fn is_primary(&self, node: usize) -> bool {
        self.at(node).is_some_and(|known| known.primary.map(node_index) == Some(node))
    }

    /// Whether these nodes know one and the same configuration, in which they and no others are in sync.
    pub(crate) fn are_in_sync(&self, nodes: &[usize]) -> bool {
        let places: BTreeSet<_> = nodes.iter().map(|node| self.nodes.get(node)).collect();
        let known = nodes.first().and_then(|&node| self.at(node));
        places.len() == 1
            && known.is_some_and(|known| known.in_sync().map(node_index).eq(nodes.iter().copied()))
    }

    /// What the history up to `end` has to do with an operation.
    fn fate(&self, end: Place, index: OpIndex) -> Fate {
        let on = |place: Option<&Place>| place.is_none_or(|&place| self.is_past(place, end));
        let asked = self.asked.get(&index).map(|(_, place)| place);
        if !on(asked) {
            let reached = asked.is_some_and(|&place| self.may_have_reached(place, end));
            if reached { Fate::Unanswered } else { Fate::Elsewhere }
        } else if !on(self.answered.get(&index)) {
            Fate::Unanswered
        } else {
            Fate::Same
        }
    }

    /// When on the side up to `end` a write takes no effect any more that was answered by another way `then`. One side knows nothing of what another answered,
    /// until a fork ends that one: what was taken before the fork is asked for anew.
    fn expires(&self, end: Place, index: OpIndex, then: (Time, u64)) -> Option<(Time, u64)> {
        let Some(&answered) = self.expired.get(&index) else { return Some(then) };
        if self.is_past(answered, end) {
            return Some(then);
        }
        let fork = |place| self.installed.get(&place).map(|known| known.fork);
        let (there, here) = (fork(answered)?, fork(end)?);
        let (_, &forked) = self.forked.range(there + 1..=here.max(there + 1)).next_back()?;
        // Who had not heard of the fork may have answered after it.
        (here > there && forked.1 > then.1).then_some(forked)
    }

    /// Whether a copy of the history up to `end`, which parted before `asked`, may have carried out what was asked there: in
    /// the reign that it knew, while it was in sync and had not heard of the newer configuration.
    fn may_have_reached(&self, asked: Place, end: Place) -> bool {
        let common = self.chain(end).into_iter().find_map(|(stretch, left)| {
            let there = self.chain(asked).into_iter().find(|other| other.0 == stretch)?;
            Some((stretch, left.min(there.1)))
        });
        let at = |place: Place| self.installed.get(&place);
        let (Some(common), Some(asked), Some(end)) = (common.and_then(at), at(asked), at(end))
        else {
            return false;
        };
        asked.reign == common.reign && asked.in_sync().any(|node| end.is_in_sync(node))
    }

    /// The place, and where its past left each earlier stretch.
    fn chain(&self, place: Place) -> Vec<Place> {
        let mut chain = vec![place];
        let mut at = place.0;
        while let Some(&(before, (_, left))) = self.parents.get(&at) {
            chain.push((before, left));
            at = before;
        }
        chain
    }

    /// Whether nothing was done on a side since it left the other.
    fn is_empty(&self, left: Place, taken: Place) -> bool {
        let only_there = |&at: &Place| self.is_past(at, left) && !self.is_past(at, taken);
        !self.done.iter().any(only_there)
    }

    /// The first side that no register explains.
    pub(crate) fn check(&self, history: &History) -> Result<u64, NotLinear> {
        let mut given_up = 0;
        let ends: BTreeSet<Place> =
            self.given_up.iter().map(|(_, end)| end).chain(self.nodes.values()).copied().collect();
        for end in ends {
            let seen = history.seen_by(
                |index| self.fate(end, index),
                |index, then| self.expires(end, index, then),
            );
            given_up += seen.check().map_err(|mut found| {
                found.text = format!("side {:#x} up to epoch {}: {}", end.0, end.1, found.text);
                found
            })?;
        }
        Ok(given_up)
    }
}

impl World {
    /// A node's shards are told of a configuration.
    pub(crate) fn side_installed(&mut self, node: usize, configuration: &Configuration) {
        let (place, step) = (place(configuration), self.step);
        let Some(sides) = &mut self.sides else { return };
        sides.learn(configuration);
        sides.choice.installed(step, place);
        let known = sides.installed.entry(place).or_insert_with(|| configuration.clone());
        if known != configuration {
            let (here, there) = (short(configuration), short(known));
            let text = format!("epoch {} is {here} here, and {there} elsewhere", place.1);
            return self.fail("one line", text);
        }
        let before = sides.nodes.insert(node, place);
        if before.is_none_or(|before| sides.is_past(before, place)) {
            return;
        }
        let before = before.expect("checked on the line above");
        sides.given_up.insert((node, before));
        // By itself a node leaves a side only on which nothing was done.
        let by_itself = sides.left_alone.remove(&node);
        let empty = sides.is_empty(before, place);
        let fork = sides.installed.get(&before).map_or(0, |known| known.fork);
        let said = configuration.fork > fork && sides.choice.was_begun(configuration.fork);
        self.mark("sim: a side was given up");
        if by_itself && !empty {
            let text = format!("node {}: it left a side by itself that has answers", node + 1);
            self.fail("sides", text);
        } else if !said && !by_itself {
            let text = format!("node {}: its side was given up, and nobody said so", node + 1);
            self.fail("sides", text);
        }
    }

    /// What the member is told of clients, and whether it gives its side up although there are some.
    pub(crate) fn side_counts(&mut self, node: usize, count: u32) {
        if let Some(sides) = &mut self.sides {
            sides.told_clients.insert(node, count);
        }
    }

    /// A member decided to leave its side.
    pub(crate) fn side_decides(&mut self, node: usize) {
        let Some(sides) = &self.sides else { return };
        let clients = sides.told_clients.get(&node).copied().unwrap_or(0);
        if clients > 0 {
            let text = format!("node {} gives its side up under {clients} clients", node + 1);
            self.fail("sides", text);
        }
    }

    /// A member leaves its side although nobody chose another.
    pub(crate) fn side_is_left(&mut self, node: usize) {
        if let Some(sides) = &mut self.sides {
            sides.left_alone.insert(node);
        }
    }

    /// A shard acts on a configuration.
    fn side_acts(&mut self, node: usize, shard: u16, configuration: &Configuration) {
        let (place, now, step) = (place(configuration), self.queue.now(), self.step);
        let primary = configuration.primary.map(node_index) == Some(node);
        let Some(sides) = &mut self.sides else { return };
        let before = sides.shards.insert((node, shard), place);
        let before = before.and_then(|before| sides.installed.get(&before)).map(|old| old.fork);
        if primary && before.is_some_and(|before| before < configuration.fork) {
            sides.forked.insert(configuration.fork, (now, step));
        }
    }

    /// A write was answered by another way than it had been asked for by first.
    pub(crate) fn side_expires(&mut self, index: OpIndex) {
        if let Some(sides) = &mut self.sides
            && let Some(place) = sides.answering
        {
            sides.expired.insert(index, place);
        }
    }

    /// A process died, and its shards with it; a node without a disk remembers nothing.
    pub(crate) fn side_died(&mut self, node: usize) {
        let diskless = self.nodes[node].disk.is_none();
        if let Some(sides) = &mut self.sides {
            sides.shards.retain(|&(at, _), _| at != node);
            if diskless {
                sides.nodes.remove(&node);
            }
        }
        self.side_counts(node, 0);
    }

    /// A member stores what is committed, and what it agreed to, each with its ballot.
    pub(crate) fn side_stores(&mut self, record: &replica::disk::Record) {
        let Some(sides) = &mut self.sides else { return };
        if let Some((ballot, committed)) = &record.committed {
            sides.ballots.insert(place(committed), *ballot);
        }
        if let Some((ballot, agreed)) = &record.accepted {
            let all = sides.agreed.entry(place(agreed)).or_default();
            if all.iter().all(|(other, known)| other != ballot || *known != **agreed) {
                all.push((*ballot, (**agreed).clone()));
            }
        }
    }

    /// A shard is about to take a step.
    pub(crate) fn side_input(&mut self, node: usize, shard: u16, input: &ShardInput) {
        match input {
            ShardInput::Request { id, .. } => {
                self.side_asked(node, shard, *id);
                self.side_steps(node, shard, None);
            }
            ShardInput::Member(ToShard::Install { configuration, .. }) => {
                self.side_acts(node, shard, configuration);
                self.side_steps(node, shard, None);
            }
            ShardInput::Frame { peer, message: ShardMessage::Forwarded { id, .. }, .. } => {
                self.side_steps(node, shard, Some((*peer, *id)));
            }
            ShardInput::Frame { peer, message: ShardMessage::Forward { op, span, .. }, .. } => {
                self.side_takes_in(node, shard, node_index(*peer), *op, *span);
                self.side_steps(node, shard, None);
            }
            _ => self.side_steps(node, shard, None),
        }
    }

    /// In this step it answers as primary, or what `forwarded` says.
    fn side_steps(&mut self, node: usize, shard: u16, forwarded: Option<(NodeId, RequestId)>) {
        let Some(sides) = &mut self.sides else { return };
        let told =
            forwarded.and_then(|(peer, id)| sides.forwarded.get(&(peer, node, shard, id)).copied());
        sides.acting = sides.shards.get(&(node, shard)).copied();
        sides.answering = told.or(sides.acting);
    }

    /// A primary answers what `peer` forwarded.
    pub(crate) fn side_forwards(&mut self, node: usize, shard: u16, peer: NodeId, id: RequestId) {
        let from = self.nodes[node].id;
        let Some(sides) = &mut self.sides else { return };
        if let Some(&place) = sides.shards.get(&(node, shard)) {
            sides.forwarded.insert((from, node_index(peer), shard, id), place);
        }
    }

    /// A shard tells a client that something was done; what another node said was looked at when it did.
    pub(crate) fn side_answers(&mut self, node: usize, shard: u16) {
        if self.sides.as_ref().is_some_and(|sides| sides.is_primary(node)) {
            self.side_says_done(node, shard);
        }
    }

    /// A primary says that something was done. A copy in sync knows what it was done under: else all of them might follow another side.
    pub(crate) fn side_says_done(&mut self, node: usize, shard: u16) {
        let Some(sides) = &self.sides else { return };
        let Some(&place) = sides.shards.get(&(node, shard)) else { return };
        // Its own copy does until its shard hears that the node has left: that is told to whoever was answered there.
        let knows = |copy: usize| {
            let now = sides.nodes.get(&copy).map(|&at| (copy, at));
            // By a fork it may have left since what it had carried out by then.
            let mut places = sides.given_up.iter().copied().chain(now);
            copy == node || places.any(|(of, at)| of == copy && sides.is_past(place, at))
        };
        let known = sides.installed.get(&place);
        if known.is_some_and(|known| !known.in_sync().map(node_index).any(knows)) {
            let text = format!(
                "node {}: it answers under {:#x} {}, of which no copy knows",
                node + 1,
                place.0,
                place.1
            );
            self.fail("sides", text);
        }
    }

    /// A request belongs to the side of the shard that it reaches, not to that of its node when it was sent.
    fn side_asked(&mut self, node: usize, shard: u16, id: RequestId) {
        let (Some(sides), Some(open)) = (&mut self.sides, self.open.get(&id)) else { return };
        if let Some(&place) = sides.shards.get(&(node, shard)) {
            sides.asked.entry(open.op).or_insert((node, place));
        }
    }

    /// A node may have heard of a configuration that its primary's disk is still to keep: what was asked there is carried out under
    /// the one before, and is part of what goes on from that.
    fn side_takes_in(&mut self, node: usize, shard: u16, asker: usize, op: Op, span: Span) {
        let Some(sides) = &mut self.sides else { return };
        let Some(&place) = sides.shards.get(&(node, shard)) else { return };
        let mut older = Vec::new();
        for (&index, &(of, asked)) in &sides.asked {
            let operation = self.history.operation(index);
            let same = match operation.effect {
                Effect::Write(token) => (token == 0) == (op != Op::Write) && op != Op::Read,
                Effect::Read(_) | Effect::Flush => false,
            };
            if of == asker
                && same
                && operation.span.contains(span)
                && place != asked
                && sides.is_past(place, asked)
            {
                older.push(index);
            }
        }
        for index in older {
            sides.asked.insert(index, (asker, place));
        }
    }

    pub(crate) fn side_answered(&mut self, node: usize, index: OpIndex, ok: bool) {
        if ok {
            self.side_heard(node);
        }
        let step = self.step;
        let Some(sides) = &mut self.sides else { return };
        if let Some(place) = sides.answering {
            if ok {
                sides.done.insert(place);
                sides.choice.answered(step, index, place);
            }
            // Of the pieces of a flush, one on another side is enough.
            let before = sides.answered.get(&index).copied();
            if before.is_none_or(|before| sides.is_past(before, place)) {
                sides.answered.insert(index, place);
            }
        }
    }

    /// A client of a node is told that something was done. That node acts on what it was done under, or on what came from
    /// that: else it may follow another side, and its client would not know.
    fn side_heard(&mut self, node: usize) {
        let Some(sides) = &self.sides else { return };
        if let (Some(told), Some(acting)) = (sides.answering, sides.acting)
            && !sides.is_past(told, acting)
        {
            let (told, acting) =
                (format!("{:#x} {}", told.0, told.1), format!("{:#x} {}", acting.0, acting.1));
            let text = format!(
                "node {}: a client is answered under {told}, and it is at {acting}",
                node + 1
            );
            self.fail("sides", text);
        }
    }

    /// Looks whether all is well by now, and does what an operator would.
    pub(crate) fn look_at_sides(&mut self) {
        let late = self.queue.now() > self.plan.heal_at + LIVENESS;
        match self.missing_on_sides() {
            None => self.conclude(late),
            Some(what) if late => {
                let text = format!("{} s after healing: {what}", LIVENESS / SECOND);
                self.print_state();
                self.fail("liveness", text);
            }
            Some(_) => {
                self.resolve_sides();
                self.queue.after(100 * MILLI, Event::Look);
            }
        }
    }

    fn missing_on_sides(&self) -> Option<String> {
        if let Some(what) = self.unanswered() {
            return Some(what);
        }
        let sides = self.sides.as_ref()?;
        let replicas = self.plan.replicas();
        let places: BTreeSet<Place> =
            replicas.iter().filter_map(|node| sides.nodes.get(node).copied()).collect();
        let (Some(&place), 1) = (places.first(), places.len()) else {
            return Some(format!("nodes are at {places:x?}"));
        };
        let known = sides.installed.get(&place)?;
        for &node in &replicas {
            let entry = known.member(self.nodes[node].id);
            if entry.is_none_or(|entry| !entry.in_sync || !self.is_kept(node, entry.incarnation)) {
                return Some(format!("node {} is not in sync: {}", node + 1, short(known)));
            }
        }
        self.leftovers()
    }

    /// Who is split from whom, by what nodes say of themselves.
    pub(crate) fn splits(&self) -> BTreeSet<(usize, usize)> {
        let mut splits = BTreeSet::new();
        for (node, entry) in self.nodes.iter().enumerate() {
            let Some(process) = &entry.process else { continue };
            let peers = process.member.status().peers;
            splits.extend(
                peers
                    .iter()
                    .filter(|peer| peer.split_brain)
                    .map(|peer| (node, node_index(peer.node))),
            );
        }
        splits
    }

    /// The operator: clients of a side that was given up leave it; where no policy decides, one side is
    /// chosen; who was taken out is added again.
    fn resolve_sides(&mut self) {
        let now = self.queue.now();
        let splits = self.splits();
        let leaving: BTreeSet<usize> = (0..self.nodes.len())
            .filter(|&node| {
                self.nodes[node]
                    .process
                    .as_ref()
                    .is_some_and(|process| process.member.status().discarded)
            })
            .collect();
        let mutual: Vec<(usize, usize)> = splits
            .iter()
            .copied()
            .filter(|&(one, other)| one < other && splits.contains(&(other, one)))
            .collect();
        let policy = self.plan.options.after_split_brain;
        let nobody_leaves = leaving.is_empty();
        for &node in &leaving {
            self.depart(node);
        }
        let Some(sides) = &mut self.sides else { return };
        sides.leaving = leaving;
        if !mutual.is_empty() && !sides.named {
            sides.named = true;
            if policy != AfterSplitBrain::Disconnect {
                sides.patient_until = now + POLICY_PATIENCE;
            }
            self.mark("sim: a split brain is named by both sides");
            return;
        }
        if now < sides.patient_until || !nobody_leaves {
            return;
        }
        if !mutual.is_empty() {
            sides.patient_until = now + 3 * SECOND;
            // Of a side only the node that is primary can go on, if there is one: who was told so asks there.
            if let (Some(at), Some(discard)) = (sides.sent_to.take(), sides.discarded) {
                self.mark("sim: an operator ends a split brain where he was sent to");
                return self.resolve(node_index(at), discard);
            }
            let draw = self.random.below(mutual.len() as u64);
            let (one, other) = mutual[usize::try_from(draw).expect("few nodes")];
            let (at, discard) = if self.random.once_in(2) { (one, other) } else { (other, one) };
            if self.plan.roles[at] != Role::Replica || self.plan.roles[discard] != Role::Replica {
                return;
            }
            let discard = self.nodes[discard].id;
            sides.discarded = Some(discard);
            self.mark("sim: an operator ends a split brain");
            return self.resolve(at, discard);
        }
        self.add_on_sides();
    }

    /// Clients of a side that was given up, or left behind by a fork, leave: their nodes wait for that.
    pub(crate) fn leave_discarded(&mut self) {
        for node in 0..self.nodes.len() {
            let process = self.nodes[node].process.as_ref();
            if process.is_some_and(|process| process.member.status().discarded) {
                self.depart(node);
            }
        }
    }

    /// The clients of a node are gone, and what they asked for goes unheard.
    pub(crate) fn depart(&mut self, node: usize) {
        let open = self.open.iter().filter(|(_, open)| open.node == node);
        let ids: Vec<RequestId> = open.map(|(&id, _)| id).collect();
        self.oracle.departed.extend(ids);
        let count = self.client_count[node];
        self.abandon(node);
        self.client_count[node] = count;
        self.count_clients(node, 0);
    }

    /// Whether an answer is to a client that left.
    pub(crate) fn is_departed(&self, id: RequestId) -> bool {
        self.oracle.departed.contains(&id)
    }

    /// An operator says whose side is to go on.
    pub(crate) fn resolve(&mut self, at: usize, discard: NodeId) {
        self.want(at, Operation::Resolve { discard });
    }

    /// What an operator was told when a side was to be discarded.
    pub(crate) fn has_resolved(&mut self, result: Result<(), OperationError>) {
        if let (Some(sides), Err(OperationError::OtherPrimary(node))) = (&mut self.sides, result) {
            sides.sent_to = Some(node);
        }
    }

    /// Replicas that are no members any more are added again, where somebody is primary.
    fn add_on_sides(&mut self) {
        let now = self.queue.now();
        let Some(sides) = &mut self.sides else { return };
        let primaries: Vec<(usize, Configuration)> = sides
            .nodes
            .iter()
            .filter_map(|(&node, place)| Some((node, sides.installed.get(place)?.clone())))
            .filter(|(node, known)| known.primary.map(node_index) == Some(*node))
            .collect();
        for (at, known) in primaries {
            for node in self.plan.replicas() {
                let (id, voter) = (self.nodes[node].id, self.nodes[node].voter);
                if known.member(id).is_none() {
                    self.mark("sim: an operator adds a member again");
                    let add = Operation::AddMember { node: id, kind: MemberKind::Replica, voter };
                    self.want(at, add);
                    if let Some(sides) = &mut self.sides {
                        sides.patient_until = now + SECOND;
                    }
                }
            }
        }
    }
}

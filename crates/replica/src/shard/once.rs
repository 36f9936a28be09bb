//! A write takes effect once, however often it is asked for.
//!
//! A write of a client has a name that stays the same when it is asked for again, because the primary or a
//! session was lost before the answer came. Every replica remembers the names of the writes that its
//! content holds until their answers are known to have arrived. A new primary gathers these memories with
//! the doubt. What all remember took effect. What only some remember was still open, and no other such write
//! overlaps it: it is *unsettled*, is reconciled in one piece, and took effect or not as the replica says
//! from which that piece is copied. A write whose name is known when its turn comes is answered and not
//! carried out again.
//!
//! Always:
//! - a replica lists a write only if its content holds it, or later writes over it, or it lay beyond its volume's end;
//! - a replica that remembers since a reign lists every such write that was first asked for then or later,
//!   unless it was answered;
//! - a write of which nobody can say whether it took effect is answered with `SessionLost`, never carried out.
//!
//! A replica that starts remembers nothing, unless it was never written to, until the primary tells it when nothing is unsettled any more.

use super::local::Purpose;
use super::op::{Client, FlushFor, Kind, Origin, changes};
use super::peer::Peer;
use super::seats::Nodes;
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{AnswerError, Duration, Epoch, Instant, NodeId, Request, RequestId, Span, VolumeId};
use wire::{
    MEMORY_SESSIONS_MAX, MEMORY_WRITES_MAX, Memory, NamedWrite, ShardMessage, WriteName,
    WriteOrigin,
};

/// How far the writes of one node and shard that were asked for may be ahead of the oldest that was not
/// answered. Bounds what replicas remember.
const WINDOW: u64 = 1024;

/// Sessions that are remembered to be over, at most, so that what one member still lists of them is not taken for
/// open. Of those that ended first nobody speaks any more.
const ENDED_MAX: usize = 64;

/// What is said of a session that is over instead of the number up to which its writes were answered.
const ENDED: u64 = u64::MAX;

/// The names that this node gives to its clients' writes.
#[derive(Debug)]
struct Names {
    session: u64,
    next: u64,
    open: BTreeSet<u64>,
    /// A request waits until older ones are answered.
    full: bool,
}

impl Names {
    fn new(session: u64) -> Names {
        Names { session, next: 1, open: BTreeSet::new(), full: false }
    }

    fn give(&mut self) -> WriteOrigin {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        let name = WriteName { session: self.session, number };
        WriteOrigin { name, answered_below: self.answered_below() }
    }

    fn answered_below(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// Says whether requests that waited for room may be tried again.
    fn take_room(&mut self) -> bool {
        let room = self.full && self.next - self.answered_below() < WINDOW;
        self.full &= !room;
        room
    }
}

/// What took effect, of one session.
#[derive(Clone, Debug, Default)]
struct Session {
    answered_below: u64,
    writes: BTreeMap<u64, (VolumeId, Span)>,
}

/// The writes that a copy holds, and that may be asked for again.
#[derive(Clone, Debug, Default)]
struct Effects {
    /// As in `Memory`.
    since: Option<Epoch>,
    sessions: BTreeMap<u64, Session>,
    /// Sessions of processes that are gone, oldest first: nobody asks for their writes again.
    ended: VecDeque<u64>,
}

impl Effects {
    fn clear(&mut self) {
        *self = Effects::default();
    }

    fn end(&mut self, session: u64) {
        self.sessions.remove(&session);
        if !self.ended.contains(&session) {
            self.ended.push_back(session);
        }
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    fn answered(&mut self, session: u64, below: u64) {
        if below == ENDED || self.ended.contains(&session) {
            return self.end(session);
        }
        let known = self.sessions.entry(session).or_default();
        if below > known.answered_below {
            known.answered_below = below;
            while let Some(first) = known.writes.first_entry()
                && *first.key() < below
            {
                first.remove();
            }
        }
    }

    /// The write takes effect. A newer session of a node ends its older ones: their process is gone.
    fn took(&mut self, origin: WriteOrigin, volume: VolumeId, span: Span) {
        let session = origin.name.session;
        if self.ended.contains(&session) {
            return;
        }
        if !self.sessions.contains_key(&session) {
            let node = WriteName::node_of(session);
            let all: Vec<u64> = self.sessions.keys().copied().collect();
            all.into_iter()
                .filter(|&other| WriteName::node_of(other) == node)
                .for_each(|other| self.end(other));
        }
        self.answered(session, origin.answered_below);
        self.insert(NamedWrite { name: origin.name, volume, span });
    }

    fn insert(&mut self, write: NamedWrite) {
        if self.ended.contains(&write.name.session) {
            return;
        }
        let known = self.sessions.entry(write.name.session).or_default();
        if write.name.number >= known.answered_below {
            known.writes.insert(write.name.number, (write.volume, write.span));
        }
    }

    fn undo(&mut self, name: WriteName) {
        if let Some(known) = self.sessions.get_mut(&name.session) {
            known.writes.remove(&name.number);
        }
    }

    /// Took effect, or was answered: not to be carried out.
    fn has(&self, name: WriteName) -> bool {
        self.sessions.get(&name.session).is_some_and(|known| {
            name.number < known.answered_below || known.writes.contains_key(&name.number)
        })
    }

    fn writes(&self) -> impl Iterator<Item = NamedWrite> + '_ {
        self.sessions.iter().flat_map(|(&session, known)| {
            known.writes.iter().map(move |(&number, &(volume, span))| NamedWrite {
                name: WriteName { session, number },
                volume,
                span,
            })
        })
    }

    fn add(&mut self, part: &Memory) {
        for &(session, below) in &part.answered {
            self.answered(session, below);
        }
        for &write in &part.writes {
            self.insert(write);
        }
        self.since = part.since.or(self.since);
    }

    /// As it travels.
    fn parts(&self, but: &BTreeSet<WriteName>) -> Vec<Memory> {
        let answered: Vec<(u64, u64)> = self
            .ended
            .iter()
            .map(|&session| (session, ENDED))
            .chain(self.sessions.iter().map(|(&session, known)| (session, known.answered_below)))
            .collect();
        let writes: Vec<NamedWrite> =
            self.writes().filter(|write| !but.contains(&write.name)).collect();
        let mut parts: Vec<Memory> = answered
            .chunks(MEMORY_SESSIONS_MAX)
            .map(|answered| Memory { answered: answered.to_vec(), ..Memory::default() })
            .collect();
        parts.extend(
            writes
                .chunks(MEMORY_WRITES_MAX)
                .map(|writes| Memory { writes: writes.to_vec(), ..Memory::default() }),
        );
        parts.push(Memory { since: self.since, ..Memory::default() });
        parts
    }
}

/// A write that was open when its primary was lost: some members have it.
#[derive(Clone, Debug)]
struct Unsettled {
    write: NamedWrite,
    holders: Vec<NodeId>,
}

/// What a shard knows of names.
#[derive(Debug)]
pub(super) struct Once {
    names: Names,
    effects: Effects,
    /// What the primary says that this copy holds, as far as it has come.
    arriving: Effects,
    settlement: Settlement,
    /// Where this disk did not take a write of an earlier reign, though this one's primary may have been told that
    /// it holds it. Such a range is not read for others.
    unlike_told: Vec<(VolumeId, Span)>,
    /// A write of the present primary failed here. What that tells of this copy may count the write as done: its error
    /// is on the way.
    failed: bool,
    /// When the last fork began that this node, as primary, went on in.
    pub(super) forked_at: Option<Instant>,
}

impl Once {
    /// Of the process with this session. On a copy that no primary wrote to no write took effect, ever.
    pub(super) fn new(session: u64, untouched: bool) -> Once {
        let since = untouched.then_some(Epoch(1));
        Once {
            names: Names::new(session),
            effects: Effects { since, ..Effects::default() },
            arriving: Effects::default(),
            settlement: Settlement::default(),
            unlike_told: Vec::new(),
            failed: false,
            forked_at: None,
        }
    }

    /// Whether the process that gave this name is known to be gone: nobody asks for the write again. Whoever has not heard of that
    /// process would take it for a newer one than the one that came after it, so its name is not told any more.
    pub(super) fn is_over(&self, name: WriteName) -> bool {
        self.effects.ended.contains(&name.session)
    }
}

/// What a primary knows of the writes that were asked for before its reign.
#[derive(Debug, Default)]
struct Settlement {
    /// What members said.
    told: BTreeMap<NodeId, Effects>,
    /// Members from whose content reconciliation copies while anything is unsettled: they know what it holds.
    remembering: BTreeSet<NodeId>,
    unsettled: Vec<Unsettled>,
    /// All that members listed: none of it was first asked for in this reign.
    before: BTreeSet<WriteName>,
    /// What members said was compared, and is what this node knows now.
    compared: bool,
    /// The members agreed on everything once in this reign.
    settled: bool,
    /// No member was left that knew what its content holds.
    lost: bool,
}

impl Shard {
    /// A request of a client of this node.
    pub(super) fn local_client(&mut self, id: RequestId, request: Request) -> Client {
        let changes = changes(request.op);
        let write = changes.then(|| self.once.names.give());
        let way = request.way.filter(|_| changes);
        let stays_until = self.now + way.map_or(Duration(0), |way| way.stays);
        let way = way.map(|way| (way.number, self.moment()));
        let (origin, since, asked) = (Origin::Local(id), self.now, Epoch(0));
        Client { origin, request, since, write, asked, way, stays_until }
    }

    /// The client of this node was answered.
    pub(super) fn was_answered(&mut self, client: &Client) {
        if let (Origin::Local(_), Some(write)) = (client.origin, client.write) {
            self.once.names.open.remove(&write.name.number);
        }
    }

    /// The origin of a client's write as it is now; `None` for what is no write.
    pub(super) fn origin_of(&self, client: &Client) -> Option<WriteOrigin> {
        let write = client.write?;
        match client.origin {
            Origin::Local(_) => {
                Some(WriteOrigin { answered_below: self.once.names.answered_below(), ..write })
            }
            Origin::Peer { .. } => Some(write),
        }
    }

    /// Whether a write of this node is too far ahead of the oldest that was not answered.
    pub(super) fn is_far_ahead(&mut self, client: &Client) -> bool {
        let (Origin::Local(_), Some(write)) = (client.origin, client.write) else { return false };
        let far = write.name.number - self.once.names.answered_below() >= WINDOW;
        self.once.names.full |= far;
        far
    }

    /// Requests that were too far ahead may be tried again.
    pub(super) fn retry_far_ahead(&mut self, out: &mut Out) {
        if self.once.names.take_room() {
            self.retry_waiting(out);
        }
    }

    /// Ends a client's write, whose turn has come, if it is not to be carried out; says whether.
    pub(super) fn is_not_to_be_issued(&mut self, id: u64, out: &mut Out) -> bool {
        let Some(client) = self.ops.get(&id).and_then(|op| op.client) else { return false };
        if let Origin::Peer { node, session, .. } = client.origin
            && self.peers.get(&node).is_none_or(|peer| peer.session != Some(session))
        {
            out.push(ShardOutput::Mark("a write for which nobody waits is not carried out"));
            self.drop_request(id, out);
            return true;
        }
        if self.is_of_before_a_fork(&client) {
            out.push(ShardOutput::Mark("a write of before a fork is given back"));
            if let Some(client) = self.ops.get_mut(&id).and_then(|op| op.client.take()) {
                self.drop_request(id, out);
                match client.origin {
                    Origin::Peer { .. } => self.give_back(client, out),
                    Origin::Local(_) => self.answer_late(&client, out),
                }
            }
            return true;
        }
        let Some(WriteOrigin { name, .. }) = client.write else { return false };
        let unsettled = self.once.settlement.unsettled.iter().any(|other| other.write.name == name);
        let known = self.once.effects.has(name) && !unsettled;
        if known && client.asked == Epoch(0) {
            // Never, if names are given once. An error is better than an answer for what was not written.
            out.push(ShardOutput::Mark("a name of a write was given twice"));
            self.fail_op(id, AnswerError::SessionLost, out);
            return true;
        }
        if known {
            out.push(ShardOutput::Mark("a write asked for again had taken effect"));
            self.answer_done(id, client, out);
            return true;
        }
        let forgotten = self.once.effects.since.is_none_or(|since| client.asked < since);
        if unsettled || (client.asked != Epoch(0) && forgotten) {
            out.push(ShardOutput::Mark("nobody knows whether a write took effect"));
            self.fail_op(id, AnswerError::SessionLost, out);
            return true;
        }
        false
    }

    /// Whether it may have been asked for elsewhere before a fork, and answered, by the node that forwarded it or by another way of its client.
    fn is_of_before_a_fork(&self, client: &Client) -> bool {
        let elsewhere = client.way.is_some() || matches!(client.origin, Origin::Peer { .. });
        elsewhere && self.once.forked_at.is_some_and(|forked| client.since <= forked)
    }

    /// Answers a write that every member has: after a flush, if it is to be stable.
    fn answer_done(&mut self, id: u64, client: Client, out: &mut Out) {
        let sequence = self.sequence();
        self.unlock(id, out);
        let Some(op) = self.ops.get_mut(&id) else { return };
        let Kind::Write(write) = &mut op.kind else { return };
        if write.durable {
            self.ops.remove(&id);
            self.start_flush(Some(client), FlushFor::Client, out);
            return;
        }
        write.sequence = sequence;
        write.complete = true;
        write.retired = true;
        self.finish_op(id, out);
    }

    /// A write of this primary is issued: it takes effect, or takes that of another away.
    pub(super) fn note_effect(&mut self, id: u64) {
        let reign = self.reign();
        let Some(op) = self.ops.get(&id) else { return };
        let (volume, span, client) = (op.volume, op.span, op.client);
        let fresh = client.as_ref().and_then(|client| self.origin_of(client));
        let Some(op) = self.ops.get_mut(&id) else { return };
        if let Some(client) = &mut op.client
            && client.asked == Epoch(0)
        {
            client.asked = reign;
        }
        let Kind::Write(write) = &mut op.kind else { return };
        write.origin = fresh.or(write.origin);
        let Some(origin) = write.origin else { return };
        write.was_in_effect = self.once.effects.has(origin.name);
        if write.undone {
            self.once.effects.undo(origin.name);
        } else {
            self.once.effects.took(origin, volume, span);
        }
    }

    /// This node is primary no more: what it knows is from now on what its own copy holds, and some writes will not reach
    /// that.
    pub(super) fn take_back_effects(&mut self) {
        for id in self.queued_here() {
            self.take_back_effect(id);
        }
    }

    /// Things are as before the write.
    fn take_back_effect(&mut self, id: u64) {
        let Some(op) = self.ops.get(&id) else { return };
        let Kind::Write(write) = &op.kind else { return };
        let Some(origin) = write.origin else { return };
        if write.was_in_effect {
            self.once.effects.took(origin, op.volume, op.span);
        } else {
            self.once.effects.undo(origin.name);
        }
    }

    /// The only disk failed a write of this primary. It may hold a part of it, and no other disk says: asked
    /// for again it is neither taken for done nor carried out.
    pub(super) fn doubt_effect(&mut self, id: u64) {
        let Some(op) = self.ops.get(&id) else { return };
        let Kind::Write(write) = &op.kind else { return };
        let Some(origin) = write.origin else { return };
        self.undo_in_doubt(origin.name);
    }

    fn undo_in_doubt(&mut self, name: WriteName) {
        self.once.effects.undo(name);
        let later = Epoch(self.reign().0.saturating_add(1));
        self.once.effects.since = self.once.effects.since.map(|since| since.max(later));
    }

    /// A write of the primary arrived at this replica.
    pub(super) fn note_effect_here(
        &mut self,
        origin: Option<WriteOrigin>,
        undone: bool,
        volume: VolumeId,
        span: Span,
    ) {
        let Some(origin) = origin else { return };
        if undone {
            self.once.effects.undo(origin.name);
        } else {
            self.once.effects.took(origin, volume, span);
        }
    }

    /// This node's disk did not take a write: nothing can be said of what it holds.
    pub(super) fn forget_effects(&mut self) {
        if !self.is_primary() {
            self.once.effects.clear();
        }
        self.once.settlement.remembering.remove(&self.node);
    }

    /// This node's disk did not take a write. Of its own reign the primary hears of it; of an earlier one
    /// it may have been told that the disk holds it.
    pub(super) fn note_lost_write(&mut self, asker: Purpose, volume: VolumeId, span: Span) {
        let heard = match asker {
            Purpose::Op(id) | Purpose::Copy { id, .. } => self.ops.contains_key(&id),
            Purpose::Peer { sequence, .. } => {
                self.unretired.get(&sequence) == Some(&(volume, span))
            }
        };
        self.forget_effects();
        if heard {
            self.once.failed = true;
            return;
        }
        // What this copy was thought to hold, when what members remember was compared.
        let own = self.node;
        for other in &mut self.once.settlement.unsettled {
            if other.write.volume == volume && other.write.span.overlaps(span) {
                other.holders.retain(|&node| node != own);
            }
        }
        if !self.is_primary() || !self.is_alone() {
            self.once.unlike_told.push((volume, span));
        } else {
            self.undo_written(volume, span);
        }
    }

    /// This node's disk is the only one: the truth is what it holds.
    fn undo_written(&mut self, volume: VolumeId, span: Span) {
        let lost: Vec<WriteName> = self
            .once
            .effects
            .writes()
            .filter(|write| write.volume == volume && write.span.overlaps(span))
            .map(|write| write.name)
            .collect();
        for name in lost {
            self.undo_in_doubt(name);
        }
    }

    /// Whether what the disk holds there may not be what the primary was told.
    pub(super) fn is_unlike_told(&self, volume: VolumeId, span: Span) -> bool {
        let mut lost = self.once.unlike_told.iter();
        lost.any(|&(other, lost)| other == volume && lost.overlaps(span))
    }

    /// This node is no primary any more, of a reign in which it could not yet make its copy like the others, or had
    /// none that is in sync: what it knows as primary need not be true of its own copy. That may be the truth now, by
    /// force.
    pub(super) fn end_settlement(&mut self) {
        let now = &self.once.settlement;
        let others = now.compared && !now.remembering.contains(&self.node) && !now.settled;
        if self.disk_failing || others || !self.is_own_in_sync() {
            self.once.effects.clear();
        }
        self.once.settlement = Settlement::default();
    }

    /// A configuration: who is no member of the in-sync set remembers nothing, but a primary.
    pub(super) fn install_effects(&mut self, was_in_sync: bool, new_reign: bool) {
        let in_sync = self.configuration.as_ref().is_some_and(|new| new.is_in_sync(self.node));
        if new_reign {
            self.once.unlike_told.clear();
            self.once.failed = false;
        }
        if !in_sync && (new_reign || (was_in_sync && !self.is_primary())) {
            self.once.effects.clear();
        }
        if self.is_primary() && self.is_alone() {
            for (volume, span) in core::mem::take(&mut self.once.unlike_told) {
                self.undo_written(volume, span);
            }
        }
    }

    pub(super) fn begin_settlement(&mut self) {
        self.once.settlement = Settlement::default();
        for peer in self.peers.values_mut() {
            peer.reminded = false;
        }
    }

    /// A member is asked for what it remembers, or asked anew.
    pub(super) fn asks_effects(&mut self, node: NodeId) {
        self.once.settlement.told.insert(node, Effects::default());
    }

    pub(super) fn on_remembers(&mut self, node: NodeId, sequence: u64, memory: &Memory) {
        let asked = self.peers.get(&node).is_some_and(|peer| peer.gathering == Some(sequence));
        if asked && let Some(told) = self.once.settlement.told.get_mut(&node) {
            told.add(memory);
        }
    }

    /// What this replica remembers, to the primary that gathers.
    pub(super) fn tell_effects(&self, primary: NodeId, sequence: u64, out: &mut Out) {
        for memory in self.once.effects.parts(&BTreeSet::new()) {
            self.send(primary, ShardMessage::Remembers { sequence, memory }, None, out);
        }
    }

    /// Replaces what this replica remembers once the last part has come: the primary may be lost before.
    pub(super) fn on_remember(&mut self, first: bool, memory: &Memory) {
        if first {
            self.once.arriving.clear();
        }
        self.once.arriving.add(memory);
        if memory.since.is_some() {
            self.once.effects = core::mem::take(&mut self.once.arriving);
            self.once.unlike_told.clear();
            if self.once.failed {
                self.once.effects.clear();
            }
        }
    }

    /// Everything was gathered: what took effect, what did not, and what is still to be settled.
    pub(super) fn compare_effects(&mut self, out: &mut Out) {
        let Some(known) = self.configuration.clone() else { return };
        let own = self.is_own_in_sync();
        let mut told = core::mem::take(&mut self.once.settlement.told);
        told.retain(|&node, _| known.is_in_sync(node));
        if own {
            told.insert(self.node, self.once.effects.clone());
        }
        let since = told.values().filter_map(|effects| effects.since).min();
        self.once.settlement.remembering = told
            .iter()
            .filter(|(_, effects)| since.is_some() && effects.since == since)
            .map(|(&node, _)| node)
            .collect();
        let own_remembers = self.once.settlement.remembering.contains(&self.node);
        let mut merged = if own_remembers { self.once.effects.clone() } else { Effects::default() };
        for effects in told.values() {
            effects.ended.iter().for_each(|&session| merged.end(session));
        }
        for (&session, other) in told.values().flat_map(|effects| &effects.sessions) {
            merged.answered(session, other.answered_below);
        }
        merged.since = since;
        let mut holders: BTreeMap<WriteName, Unsettled> = BTreeMap::new();
        for (&node, effects) in &told {
            for write in effects.writes() {
                let known = merged.sessions.get(&write.name.session);
                if known.is_some_and(|known| write.name.number >= known.answered_below) {
                    let fresh = Unsettled { write, holders: Vec::new() };
                    holders.entry(write.name).or_insert(fresh).holders.push(node);
                }
            }
        }
        self.once.settlement.before = holders.keys().copied().collect();
        let remembering = &self.once.settlement.remembering;
        let (agreed, unsettled): (Vec<Unsettled>, Vec<Unsettled>) = holders
            .into_values()
            .partition(|write| remembering.iter().all(|node| write.holders.contains(node)));
        for Unsettled { write, .. } in agreed {
            merged.insert(write);
        }
        self.once.effects = merged;
        self.once.settlement.compared = true;
        self.once.settlement.unsettled = unsettled;
        self.settle_together(out);
    }

    /// Each unsettled write is reconciled in one piece.
    fn settle_together(&mut self, out: &mut Out) {
        let unsettled = &self.once.settlement.unsettled;
        if !unsettled.is_empty() {
            out.push(ShardOutput::Mark("a write is to be settled"));
        }
        let mut spans: Vec<(VolumeId, Span)> =
            unsettled.iter().map(|other| (other.write.volume, other.write.span)).collect();
        spans.sort_unstable_by_key(|(volume, span)| (*volume, span.first()));
        let overlap = spans
            .windows(2)
            .any(|pair| pair[0].0 == pair[1].0 && pair[0].1.end() > pair[1].1.first());
        for &(volume, span) in &spans {
            // A client that asked before the volume shrank may have written across its new end.
            if let Some(span) = self.kept_part(volume, span)
                && self.is_place(volume, span)
            {
                self.reconcile.add(volume, span.first(), span.end(), false);
            }
        }
        if overlap {
            // Never between members that keep to the rules.
            out.push(ShardOutput::Mark("unsettled writes overlap"));
        }
        if self.once.settlement.remembering.is_empty() || overlap {
            self.lose_effects(out);
        } else {
            self.check_settled(out);
        }
    }

    /// The reign from which on it can tell what became of every write, if it can of any, whoever goes. For checks.
    #[must_use]
    pub fn remembers_since(&self) -> Option<Epoch> {
        let agreed = !self.is_primary() || self.once.settlement.settled;
        self.once.effects.since.filter(|_| agreed && !self.disk_failing)
    }

    /// A member told its doubt again, within a reign: after a restart it remembers nothing.
    pub(super) fn told_again(&mut self, node: NodeId, out: &mut Out) {
        let told = self.once.settlement.told.remove(&node);
        if told.is_none_or(|effects| effects.since.is_none()) {
            self.once.settlement.remembering.remove(&node);
        }
        self.check_remembering(out);
    }

    /// Whether somebody is left who knows what a member's content holds; else what was asked for before
    /// this reign, and did not surely take effect, is not to be carried out.
    pub(super) fn check_remembering(&mut self, out: &mut Out) {
        let Some(known) = &self.configuration else { return };
        if !self.is_primary() || self.gathered != Some(known.reign) || self.once.settlement.settled
        {
            return;
        }
        let left = |node: &NodeId| known.is_in_sync(*node);
        if !self.once.settlement.lost && !self.once.settlement.remembering.iter().any(left) {
            self.lose_effects(out);
        }
    }

    pub(super) fn lose_effects(&mut self, out: &mut Out) {
        out.push(ShardOutput::Mark("no member remembers what took effect"));
        let settlement = &self.once.settlement;
        let is_sure = |write: &NamedWrite| {
            let (first, end) = (write.span.first(), write.span.end());
            !settlement.before.contains(&write.name)
                || !(self.reconcile.overlaps(write.volume, first, end)
                    || settlement.unsettled.iter().any(|other| other.write.name == write.name))
        };
        let settled: Vec<NamedWrite> = self.once.effects.writes().filter(is_sure).collect();
        for known in self.once.effects.sessions.values_mut() {
            known.writes.clear();
        }
        for write in settled {
            self.once.effects.insert(write);
        }
        self.once.settlement.unsettled.clear();
        self.once.settlement.remembering.clear();
        self.once.settlement.lost = true;
        self.once.effects.since = Some(self.reign());
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.remind_of(node, out);
        }
        self.check_settled(out);
    }

    /// The piece that begins at `first`, or holds it, that reconciliation takes at once: an unsettled write,
    /// or what lies before the next one.
    pub(super) fn reconcile_piece(&self, volume: VolumeId, first: u64, end: u64) -> Span {
        let mut stop = end;
        for other in &self.once.settlement.unsettled {
            let span = other.write.span;
            if other.write.volume != volume {
                continue;
            }
            if span.first() <= first && first < span.end() {
                return span;
            }
            if span.first() > first {
                stop = stop.min(span.first());
            }
        }
        self.piece(first, stop)
    }

    /// What a copy settles that took this range: all of it, also where the volume ends within.
    fn unsettled_at(&self, volume: VolumeId, span: Span) -> Option<&Unsettled> {
        self.once
            .settlement
            .unsettled
            .iter()
            .find(|other| other.write.volume == volume && other.write.span == span)
    }

    /// What the repair of a span copied from `source` says of the write that it settles: its origin, and that
    /// it is undone.
    pub(super) fn settles(
        &self,
        volume: VolumeId,
        span: Span,
        source: NodeId,
    ) -> Option<(WriteOrigin, bool)> {
        let other = self.unsettled_at(volume, span)?;
        let name = other.write.name;
        let known = self.once.effects.sessions.get(&name.session);
        // Only as far below as a header can say.
        let below = known.map_or(0, |known| known.answered_below).min(name.number);
        let answered_below = below.max(name.number.saturating_sub(u64::from(u32::MAX)));
        Some((WriteOrigin { name, answered_below }, !other.holders.contains(&source)))
    }

    /// A span was made the same everywhere, from `source`; `None`: one member is all there is.
    pub(super) fn settle(&mut self, volume: VolumeId, span: Span, source: Option<NodeId>) {
        let Some(other) = self.unsettled_at(volume, span).cloned() else { return };
        let sole = || {
            let own = self.is_own_in_sync().then_some(self.node);
            own.or_else(|| self.required_peers().first().copied())
        };
        let Some(source) = source.or_else(sole) else { return };
        let write = other.write;
        self.once.settlement.unsettled.retain(|other| other.write.name != write.name);
        if other.holders.contains(&source) {
            self.once.effects.insert(write);
        } else {
            self.once.effects.undo(write.name);
        }
    }

    /// Of members that can be read, those whose content reconciliation may copy. While anything is
    /// unsettled these are the ones that remember; if none of them could be read, what they remember is
    /// lost, and any will do.
    pub(super) fn reconcile_sources(&mut self, tried: &[NodeId], out: &mut Out) -> Nodes {
        let sources = self.sources(tried);
        if self.once.settlement.settled || self.once.settlement.lost {
            return sources;
        }
        let known = self.configuration.clone();
        let in_sync = |node: &NodeId| known.as_ref().is_some_and(|known| known.is_in_sync(*node));
        let mut left = self.once.settlement.remembering.iter().filter(|node| in_sync(node));
        if left.all(|node| tried.contains(node)) {
            self.lose_effects(out);
            return sources;
        }
        let mut remembering = Nodes::new();
        let remembers = |node: &NodeId| self.once.settlement.remembering.contains(node);
        remembering.extend(sources.into_iter().filter(remembers));
        remembering
    }

    /// Says to all members what took effect, once they agree on everything.
    pub(super) fn check_settled(&mut self, out: &mut Out) {
        let agreed = self.gathered == Some(self.reign()) && self.reconcile.is_empty();
        if !agreed || self.once.settlement.settled || !self.is_primary() {
            return;
        }
        // What lies beyond the end of a volume is not reconciled, nor carried out.
        self.once.settlement.unsettled.clear();
        self.once.settlement.settled = true;
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.remind(node, out);
        }
    }

    /// Tells a member what took effect, once in a session and reign; also one whose content was lost and is whole again, before it is
    /// included: it may be the only one who is left then.
    pub(super) fn remind(&mut self, node: NodeId, out: &mut Out) {
        let is_due = |peer: &Peer| !peer.reminded && (peer.kept || peer.required.is_some());
        let due = (self.once.settlement.settled || self.once.settlement.lost)
            && self.peers.get(&node).is_some_and(is_due);
        if due {
            self.remind_of(node, out);
        }
    }

    fn remind_of(&mut self, node: NodeId, out: &mut Out) {
        if !self.is_primary() || !self.required_peers().contains(&node) || !self.is_ready(node) {
            return;
        }
        let Some(seat) = self.seats.find(node) else { return };
        // What it failed and will be sent again it will remember when that comes.
        let unsent: BTreeSet<WriteName> = self
            .ops
            .values()
            .filter_map(|op| match &op.kind {
                Kind::Write(write)
                    if (write.disk.has(seat) || write.syncing.has(seat))
                        && !write.sent.has(seat) =>
                {
                    write.origin
                }
                _ => None,
            })
            .map(|origin| origin.name)
            .collect();
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.reminded = true;
        }
        let epoch = self.epoch();
        for (at, memory) in self.once.effects.parts(&unsent).into_iter().enumerate() {
            let message = ShardMessage::Remember { epoch, first: at == 0, memory };
            self.send(node, message, None, out);
        }
    }
}

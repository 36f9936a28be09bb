//! What must be on stable storage before it is said or done.
//!
//! Always: one `Store` is in flight at most; what waits for a record is carried out only when a record
//! written after it is durable. After a failed store this node votes no more in this process; what waits then, and
//! is no vote, is carried out as on a node without a record.
//!
//! Not here: what is stored (`voter`, `register`, `start`), how (`disk`).

use super::{Member, Out, Phase};
use crate::door::{MemberOutput, Slot, ToShard};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Ballot, Epoch, NodeId, SessionId};
use wire::{Configuration, MemberMessage};

/// Effects that wait, at most. 16 members ask at most a few things each; beyond that answers are
/// dropped, and whoever needs one asks again.
const EFFECTS_MAX: usize = 256;

/// Lives of others that are stored, at most: of each of 16 members what was heard, and what was told.
const SEEN_STORED_MAX: usize = 2 * wire::MEMBERS_MAX;

/// What follows when the record is durable.
#[derive(Clone, Debug, Hash)]
pub(super) enum Effect {
    /// Say it, if the session still lasts.
    Send(NodeId, SessionId, Box<MemberMessage>),
    /// This node's own voter promised.
    OwnPromise(Ballot),
    /// This node's own voter accepted.
    OwnAccepted(Ballot, Epoch),
    /// Tell the shards.
    Install(Arc<Configuration>, Vec<Slot>),
    /// Tell a peer what is known here then.
    Teach(NodeId),
    /// The start is over.
    Started,
    /// The present life is named: the first peers may hear of it.
    Named,
    /// Who this node is has changed: say it to everybody.
    Introduce,
    /// What a peer reported is on record, for this shard and flush.
    Vouched(NodeId, SessionId, u16, u64),
}

impl Effect {
    /// Whether it is something that this node says, or does, as a voter.
    fn is_vote(&self) -> bool {
        match self {
            Effect::OwnPromise(_) | Effect::OwnAccepted(..) => true,
            Effect::Send(_, _, message) => matches!(
                **message,
                MemberMessage::Promise { .. }
                    | MemberMessage::Accepted { .. }
                    | MemberMessage::HeartbeatAnswer { .. }
            ),
            _ => false,
        }
    }

    /// Whether it follows although no record is stored any more, as it would on a node without one. Nobody relies on this
    /// node's memory for it. What names this node anew, or begins its life, is done by `go_on_without_disk`.
    fn follows_without_record(&self) -> bool {
        matches!(self, Effect::Install(..) | Effect::Vouched(..) | Effect::Teach(_) | Effect::Named)
    }
}

/// Whether shards are to be told of a configuration among what follows.
fn installs(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Install(..)))
}

/// The record's way to the disk.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Store {
    number: u64,
    in_flight: bool,
    pub(super) dirty: bool,
    covered: Vec<Effect>,
    waiting: Vec<Effect>,
    /// A store failed.
    pub(super) broken: bool,
    /// `stores` of the newest record that is durable.
    pub(super) durable: u64,
}

impl Store {
    /// Whether as much waits for the disk as may.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= EFFECTS_MAX
    }

    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.waiting.len()
    }
}

impl Member {
    /// Carries `effect` out when the record as it is now is durable; at once on a node without one, or
    /// whose disk takes none any more: it goes on as a client.
    pub(super) fn persist(&mut self, effect: Effect, out: &mut Out) {
        if self.record.is_none() || self.store.broken {
            return self.carry_out(effect, out);
        }
        self.store.dirty = true;
        let answer = matches!(effect, Effect::Send(..));
        if answer && self.store.is_full() {
            out.push(MemberOutput::Mark("member: answer dropped, too many wait"));
            return;
        }
        self.store.waiting.push(effect);
    }

    /// This node has another identity from now on: what waits to be said as the voter that it was is not said. That one
    /// may have forgotten what stands in the way of it, and nothing of it will be on the record.
    pub(super) fn drop_votes(&mut self) {
        self.store.waiting.retain(|effect| !effect.is_vote());
        self.store.covered.retain(|effect| !effect.is_vote());
    }

    /// Whether the record in memory is newer than the durable one.
    pub(super) fn is_store_due(&self) -> bool {
        self.store.dirty || self.store.in_flight
    }

    /// Whether a configuration that is known here is not on the durable record yet.
    pub(super) fn has_install_to_store(&self) -> bool {
        installs(&self.store.covered) || installs(&self.store.waiting)
    }

    /// Tells a peer what is known here as soon as that is on the record.
    pub(super) fn teach_when_stored(&mut self, peer: NodeId) {
        let is_next = installs(&self.store.waiting);
        let effects = if is_next { &mut self.store.waiting } else { &mut self.store.covered };
        let told = |effect: &Effect| matches!(effect, Effect::Teach(node) if *node == peer);
        if !effects.iter().any(told) {
            effects.push(Effect::Teach(peer));
        }
    }

    /// Starts the next store if one is needed and none is in flight.
    pub(super) fn run_store(&mut self, out: &mut Out) {
        if !self.store.dirty || self.store.in_flight || self.store.broken {
            return;
        }
        let mut seen: Vec<_> = self.seen.values().copied().collect();
        seen.sort_by_key(|seen| !self.names(seen.node, seen.voter));
        let Some(record) = self.record.as_mut() else { return };
        record.stores += 1;
        record.seen = seen;
        record.seen.truncate(SEEN_STORED_MAX);
        self.store.dirty = false;
        self.store.in_flight = true;
        self.store.number += 1;
        self.store.covered = core::mem::take(&mut self.store.waiting);
        out.push(MemberOutput::Store {
            number: self.store.number,
            record: Box::new(record.clone()),
        });
    }

    pub(super) fn on_stored(&mut self, number: u64, ok: bool, out: &mut Out) {
        assert!(
            self.store.in_flight && number == self.store.number,
            "an answer to a store that was not asked for"
        );
        self.store.in_flight = false;
        let covered = core::mem::take(&mut self.store.covered);
        if !ok {
            return self.on_store_failed(covered, out);
        }
        // Only one store is in flight, and `stores` grows with each.
        self.store.durable = self.record.as_ref().map_or(0, |record| record.stores);
        for effect in covered {
            self.carry_out(effect, out);
        }
    }

    /// The metadata cannot be written: this node's memory votes no more, and its copy is out. What waited for this record
    /// or the next one, and does not count on either, follows in its order. Nobody says it again: shards
    /// would wait for a report that was made, or for a copy that was included and excluded meanwhile.
    fn on_store_failed(&mut self, covered: Vec<Effect>, out: &mut Out) {
        out.push(MemberOutput::Mark("member: record could not be stored"));
        if self.phase != Phase::Running {
            self.detach_at_start(out);
        }
        let waiting = core::mem::take(&mut self.store.waiting);
        let effects = covered.into_iter().chain(waiting).filter(Effect::follows_without_record);
        self.go_on_without_disk(effects.collect(), out);
    }

    /// A shard's disk failed. Before this life is on the record there is nothing to be excluded from: the disk stays as the
    /// last life left it, for a start on which it works. The disk says once that it lost something, to one shard, and has
    /// lost what others wrote to it as well.
    pub(super) fn on_disk_failed(&mut self, out: &mut Out) {
        if self.phase != Phase::Starting {
            self.disk_failed = true;
            Self::tell_shards(ToShard::DiskFails, out);
            return;
        }
        out.push(MemberOutput::Mark("member: disk failed at the start"));
        self.detach_at_start(out);
        self.go_on_without_disk(Vec::new(), out);
    }

    /// The half of the log that shards have begun to write counts from the record on that names it. What they wrote to
    /// the volume before would be in doubt for nobody.
    fn detach_at_start(&mut self, out: &mut Out) {
        self.detach_told = true;
        Self::tell_shards(ToShard::Detach, out);
    }

    /// Goes on as a node without a disk, with what still follows; the voter stays silent. Whether the disk is left alone is
    /// asked when the shards know all that is known here: the newest may say that this copy is all there is.
    fn go_on_without_disk(&mut self, effects: Vec<Effect>, out: &mut Out) {
        self.store.broken = true;
        self.phase = Phase::Running;
        self.attached = false;
        self.introduce(out);
        for effect in effects {
            self.carry_out(effect, out);
        }
        self.disk_failed = true;
        if let Some(known) = self.known.clone() {
            let slots = self.slots.clone();
            self.install(known.configuration, slots, out);
        }
    }

    fn carry_out(&mut self, effect: Effect, out: &mut Out) {
        match effect {
            Effect::Send(peer, session, message) => {
                if self.peers.get(&peer).is_some_and(|peer| peer.session == Some(session)) {
                    out.push(MemberOutput::Send { peer, session, message: *message });
                }
            }
            Effect::OwnPromise(ballot) => self.on_own_promise(ballot, out),
            Effect::OwnAccepted(ballot, epoch) => self.on_own_accepted(ballot, epoch, out),
            Effect::Teach(peer) => self.teach(peer, out),
            Effect::Install(configuration, slots) => self.install(configuration, slots, out),
            Effect::Started => self.on_start_stored(out),
            Effect::Named => self.on_life_named(out),
            Effect::Introduce => self.introduce(out),
            Effect::Vouched(peer, session, shard, sequence) => {
                Self::tell_shards(ToShard::Vouched { shard, peer, session, sequence }, out);
            }
        }
    }
}

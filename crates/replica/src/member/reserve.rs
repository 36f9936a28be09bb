//! Hosts that keep each other from a volume: who carries their commands out.
//!
//! Always: a command is carried out by the primary, on the newest configuration, as every change is, and at most once: who
//! asked the primary and lost sight of it is told that it may have been done. It is answered when every shard of the
//! primary judges requests by it, and what they let in before has its end. A report is answered from a configuration at
//! least as new as one that a primary with a lease acted on after it was asked.
//!
//! Not here: what a command makes of the registrants (`reservation`), requests of hosts (`shard`).

use super::{Member, Out, Pending};
use crate::door::{MemberOutput, Operation, OperationError, OperationId};
use crate::reservation;
use base::{Epoch, HostId, Instant, NodeId, SessionId, VolumeId};
use wire::{
    Configuration, FEATURE_LEVEL_RESERVATIONS, MemberMessage, ReservationCommand,
    ReservationRefusal,
};

/// Set in the names of what other nodes ask for; a caller's own are below.
const OF_OTHERS: u64 = 1 << 63;

/// Commands about reservations that wait, at most: those of hosts leave room for operators.
const RESERVES_MAX: usize = 48;

/// Of a command about reservations: on whose behalf, and how far it is.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Asked {
    /// The node whose host it is, in which session, and its number there; `None`: this node's.
    by: Option<(NodeId, SessionId, u64)>,
    /// The primary that was asked.
    of: Option<(NodeId, SessionId)>,
    /// The configuration in which it was done there.
    done: Option<Epoch>,
    /// Its host has left since: it is not asked for again.
    withdrawn: bool,
}

impl Asked {
    /// Whether another node carries it out, or did.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.of.is_some() || self.done.is_some()
    }
}

fn refused(refusal: ReservationRefusal) -> OperationError {
    OperationError::Reservation(refusal)
}

impl Member {
    /// How a command stands: `None` if it is this node's to carry out, else its answer or none yet.
    pub(super) fn watch_reserve(
        &mut self,
        pending: &Pending,
        command: &ReservationCommand,
        out: &mut Out,
    ) -> Option<Option<Result<(), OperationError>>> {
        let changes = *command != ReservationCommand::Report;
        if pending.begun {
            // It was proposed in a reign that is over.
            return Some(Some(Err(refused(ReservationRefusal::MayBeDone))));
        }
        if let Some(epoch) = pending.asked.done {
            let is_known = self.emitted.as_ref().is_some_and(|emitted| emitted.epoch >= epoch);
            return Some(is_known.then_some(Ok(())));
        }
        if let Some((node, session)) = pending.asked.of {
            let lasts = self.peers.get(&node).is_some_and(|peer| peer.session == Some(session));
            // Who was asked is primary no more, and may have done it.
            if lasts && self.reign().is_none() {
                return Some(None);
            }
            if changes {
                return Some(Some(Err(refused(ReservationRefusal::MayBeDone))));
            }
            self.mark(pending.id, |pending| pending.asked.of = None);
        }
        if let Some(reign) = self.reign() {
            let serves = reign.served && reign.drain.is_none();
            if changes {
                return if serves { None } else { Some(None) };
            }
            return Some((serves && self.is_leased()).then_some(Ok(())));
        }
        if pending.asked.by.is_some() {
            return Some(Some(Err(refused(ReservationRefusal::NoPrimary))));
        }
        Some(self.ask_to_reserve(pending, out))
    }

    /// Sends a command to the primary, once there is one.
    fn ask_to_reserve(
        &mut self,
        pending: &Pending,
        out: &mut Out,
    ) -> Option<Result<(), OperationError>> {
        let Operation::Reserve { volume, host, command } = pending.operation else { return None };
        let primary = self.live_primary()?;
        if self.now < pending.ask_at {
            return None;
        }
        let peer = self.peers.get(&primary)?;
        let (session, hello) = (peer.session?, peer.hello.as_ref()?);
        if hello.feature_level < FEATURE_LEVEL_RESERVATIONS {
            return Some(Err(refused(ReservationRefusal::OldRelease)));
        }
        self.mark(pending.id, |pending| pending.asked.of = Some((primary, session)));
        let number = pending.id.0;
        self.send(primary, MemberMessage::Reserve { number, volume, host, command }, out);
        None
    }

    /// The host that asked has left.
    pub(super) fn on_withdraw(&mut self, id: OperationId, out: &mut Out) {
        let waits = |pending: &Pending| {
            let is_begun = pending.busy || pending.begun || pending.asked.is_elsewhere();
            pending.id == id && !is_begun && matches!(pending.operation, Operation::Reserve { .. })
        };
        if self.operations.iter().any(waits) {
            self.finish(id, Err(refused(ReservationRefusal::NoPrimary)), out);
        }
        self.mark(id, |pending| pending.asked.withdrawn = true);
    }

    fn is_withdrawn(&self, id: OperationId) -> bool {
        self.operations.iter().any(|pending| pending.id == id && pending.asked.withdrawn)
    }

    /// Takes back the last commands about reservations if too many wait.
    pub(super) fn refuse_reserves(&mut self, out: &mut Out) {
        let is_reserve = |pending: &Pending| matches!(pending.operation, Operation::Reserve { .. });
        let mut over = self.operations.iter().filter(|pending| is_reserve(pending)).count();
        while over > RESERVES_MAX
            && let Some(last) = self.operations.iter().rposition(is_reserve)
        {
            let last = self.operations.remove(last);
            self.tell_done(&last, Err(OperationError::Full), out);
            over -= 1;
        }
    }

    /// Another node asks on behalf of a host.
    pub(super) fn on_reserve(
        &mut self,
        (peer, session): (NodeId, SessionId),
        number: u64,
        (volume, host): (VolumeId, HostId),
        command: ReservationCommand,
        out: &mut Out,
    ) {
        if self.reign().is_none() {
            let result = Err(ReservationRefusal::NoPrimary);
            return self.send(peer, MemberMessage::Reserved { number, result }, out);
        }
        self.asked_by_others += 1;
        let id = OperationId(OF_OTHERS | self.asked_by_others);
        self.on_operation(id, Operation::Reserve { volume, host, command });
        let by = Some((peer, session, number));
        self.mark(id, |pending| pending.asked.by = by);
    }

    /// The primary's answer to what this node asked it.
    pub(super) fn on_reserved(
        &mut self,
        (peer, session): (NodeId, SessionId),
        number: u64,
        result: Result<Epoch, ReservationRefusal>,
        out: &mut Out,
    ) {
        let id = OperationId(number);
        let again = self.now + self.timing.retry;
        let asks =
            |pending: &Pending| pending.id == id && pending.asked.of == Some((peer, session));
        if !self.operations.iter().any(asks) {
            return;
        }
        match result {
            Ok(epoch) => self.mark(id, |pending| pending.asked.done = Some(epoch)),
            Err(ReservationRefusal::NoPrimary) if self.is_withdrawn(id) => {
                self.finish(id, Err(refused(ReservationRefusal::NoPrimary)), out);
            }
            Err(ReservationRefusal::NoPrimary) => self.mark(id, |pending| {
                pending.asked.of = None;
                pending.ask_at = again;
            }),
            Err(refusal) => self.finish(id, Err(refused(refusal)), out),
        }
    }

    /// Tells whoever asked.
    pub(super) fn tell_done(
        &self,
        pending: &Pending,
        result: Result<(), OperationError>,
        out: &mut Out,
    ) {
        if pending.id == super::invalidate::OWN {
            return;
        }
        let Some((peer, session, number)) = pending.asked.by else {
            return out.push(MemberOutput::Done { id: pending.id, result });
        };
        let epoch = self.known.as_ref().map_or(Epoch(0), |known| known.configuration.epoch);
        let result = result.map(|()| epoch).map_err(|error| match error {
            OperationError::Reservation(refusal) => refusal,
            OperationError::Full => ReservationRefusal::Full,
            OperationError::OldRelease => ReservationRefusal::OldRelease,
            _ if pending.busy || pending.begun => ReservationRefusal::MayBeDone,
            _ => ReservationRefusal::NoPrimary,
        });
        if self.peers.get(&peer).is_some_and(|known| known.session == Some(session)) {
            self.send(peer, MemberMessage::Reserved { number, result }, out);
        }
    }

    /// The change that a command asks for.
    pub(super) fn reserved(
        &self,
        known: &Configuration,
        volume: VolumeId,
        host: HostId,
        command: &ReservationCommand,
    ) -> Result<Configuration, OperationError> {
        let next = reservation::carried_out(known, volume, host, command).map_err(refused)?;
        let able = self.common_level(known).is_some_and(|level| level >= next.feature_level);
        if next.feature_level > known.feature_level && !able {
            return Err(refused(ReservationRefusal::OldRelease));
        }
        Ok(next)
    }

    /// A shard acts on a configuration, and what it let in before has its end.
    pub(super) fn on_fenced(&mut self, shard: u16, epoch: Epoch) {
        let view = &mut self.shards[usize::from(shard)];
        view.fenced = view.fenced.max(epoch);
    }

    /// Whether every shard is as far as that.
    pub(super) fn is_fenced(&self, epoch: Epoch) -> bool {
        self.shards.iter().all(|view| view.fenced >= epoch)
    }

    /// When something is to be asked again.
    pub(super) fn reserve_deadline(&self, pending: &Pending) -> Option<Instant> {
        let waits = matches!(pending.operation, Operation::Reserve { .. })
            && pending.asked.of.is_none()
            && pending.ask_at > self.now;
        waits.then_some(pending.ask_at)
    }
}

/// How an expired command is answered.
pub(super) fn expired(pending: &Pending) -> OperationError {
    let may_be_done = pending.busy || pending.begun || pending.asked.of.is_some();
    refused(match may_be_done {
        true => ReservationRefusal::MayBeDone,
        false => ReservationRefusal::NoPrimary,
    })
}

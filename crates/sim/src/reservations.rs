//! Hosts that keep each other from a volume: what they ask for, and what must hold then.
//!
//! Always checked: once a host was told that its command is done, no write of another host that has no right any more
//! takes effect, whenever it was asked for and wherever it waits, unless it came the only way that its host has: then it
//! may once that has a right again. And none of those that it asks for later is answered well before that.
//!
//! Not here: what a command comes to (`replica::reservation`), which is taken as it is.

use crate::feature::Feature;
use crate::history::{Effect, OpIndex};
use crate::world::World;
use base::{Epoch, HostId, Op, ReservationCommand, ReservationKind};
use replica::reservation::{allows, carried_out};
use replica::{Operation, OperationError, OperationId};
use std::collections::BTreeMap;
use wire::Configuration;

/// What is known of reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// What hosts wait for, and which configuration was the newest when they asked.
    asked: BTreeMap<OperationId, (HostId, ReservationCommand, Epoch)>,
    /// Every configuration that a node acted on, by its number.
    known: BTreeMap<Epoch, Configuration>,
    /// Writes of each client that were not answered well.
    writes: BTreeMap<usize, Vec<OpIndex>>,
    /// Of each client, writes that must take no effect as long as it has no right, and the newest configuration when that was
    /// known.
    fenced: BTreeMap<usize, Vec<(OpIndex, Epoch)>>,
    /// Clients that have no right, as somebody was told in this step.
    denied: BTreeMap<usize, u64>,
}

/// A host's key, which does not change.
fn key_of(host: usize) -> u64 {
    10 + host as u64
}

fn host_id(client: usize) -> HostId {
    HostId(1 + client as u128)
}

impl World {
    fn has_hosts(&self) -> bool {
        self.plan.features.contains(&Feature::Reserve)
    }

    /// Rights come back with a fork: nothing is said of them then.
    fn has_rights(&self) -> bool {
        self.has_hosts() && !self.plan.features.contains(&Feature::Force)
    }

    /// Which host a client is; the last of all wishes comes from one without requests.
    pub(crate) fn host_of(&self, client: usize) -> HostId {
        if self.has_hosts() { host_id(client) } else { HostId(0) }
    }

    /// What a host asks for. Reads stay free, so that what there is can be compared at the end.
    pub(crate) fn reservation(&self, host: usize, other: usize, draw: u64) -> Operation {
        let kind = match draw % 3 {
            0 => ReservationKind::WriteExclusive,
            1 => ReservationKind::WriteExclusiveRegistrants,
            _ => ReservationKind::WriteExclusiveAll,
        };
        let current = key_of(host);
        let persists = Some(true);
        let command = match draw / 3 {
            0..=4 => ReservationCommand::Register { key: current, persists },
            5..=7 => ReservationCommand::Acquire { current, kind },
            8..=11 => ReservationCommand::Preempt { current, others: key_of(other), kind },
            12 => ReservationCommand::Release { current, kind },
            13 => ReservationCommand::Unregister { current: None, persists },
            14 => ReservationCommand::Clear { current },
            _ => ReservationCommand::Report,
        };
        Operation::Reserve { volume: self.plan.volumes[0].0, host: host_id(host), command }
    }

    pub(crate) fn asks_to_reserve(&mut self, id: OperationId, operation: &Operation) {
        if let Operation::Reserve { host, command, .. } = *operation {
            let newest = self.reservations.known.keys().next_back();
            let newest = newest.copied().unwrap_or_default();
            self.reservations.asked.insert(id, (host, command, newest));
        }
    }

    /// A client asks for something: a write may be one that is to be kept from the volume later.
    pub(crate) fn may_be_fenced(&mut self, client: usize, op: OpIndex) {
        let operation = self.history.operation(op);
        let is_write = matches!(operation.effect, Effect::Write(_));
        if self.has_rights() && is_write && self.is_reserved_volume(op) {
            self.reservations.writes.entry(client).or_default().push(op);
        }
    }

    fn is_reserved_volume(&self, op: OpIndex) -> bool {
        let volume = self.history.operation(op).volume;
        volume.0 % crate::client::GROWTH_NAMES == self.plan.volumes[0].0.0
    }

    /// A node acts on a configuration: who may write by it is denied no more.
    pub(crate) fn learns_rights(&mut self, configuration: &Configuration) {
        if !self.has_rights() {
            return;
        }
        self.reservations.known.entry(configuration.epoch).or_insert_with(|| configuration.clone());
        let volume = self.plan.volumes[0].0;
        let may = |client: usize| {
            allows(configuration.reservations_of(volume), host_id(client), Op::Write)
        };
        // One that begins anew with what it knew may not.
        if self.reservations.known.keys().next_back() == Some(&configuration.epoch) {
            self.reservations.denied.retain(|&client, _| !may(client));
        }
        let (now, step) = (self.queue.now(), self.step);
        let (history, unanswered) = (&mut self.history, &mut self.reservations.writes);
        for (&client, writes) in &mut self.reservations.fenced {
            if !may(client) {
                continue;
            }
            // Who has several ways may have gone another meanwhile, but for who surely waits where it asked.
            let ways = &self.paths;
            let has_one = ways.way(client).is_none();
            writes.retain(|&(op, since)| {
                let called = history.called(op);
                let stays =
                    has_one || called.is_some_and(|(at, _)| ways.waits_for(client, at, now));
                let operation = history.operation(op);
                let waits =
                    stays && configuration.epoch > since && !(operation.ended && operation.ok);
                if waits {
                    history.let_in(now, step, op);
                    unanswered.entry(client).or_default().push(op);
                }
                !waits
            });
        }
    }

    /// A host is told that its command is done: those without a right have nothing left that could take effect.
    pub(crate) fn has_reserved(&mut self, id: OperationId, result: Result<(), OperationError>) {
        let Some((host, command, since)) = self.reservations.asked.remove(&id) else { return };
        if result.is_err() || !self.has_rights() {
            return;
        }
        let volume = self.plan.volumes[0].0;
        let all: Vec<&Configuration> =
            self.reservations.known.range(since..).map(|(_, known)| known).collect();
        // The first that it can have come to be in; a command that changes nothing says nothing new.
        let done = all.windows(2).position(|pair| {
            let next = carried_out(pair[0], volume, host, &command);
            next.is_ok_and(|next| {
                next.reservations != pair[0].reservations
                    && next.reservations == pair[1].reservations
            })
        });
        let Some(done) = done else { return };
        let from = &all[done + 1..];
        let denied: Vec<usize> = (0..self.plan.clients.len())
            .filter(|&client| {
                from.iter()
                    .all(|known| !allows(known.reservations_of(volume), host_id(client), Op::Write))
            })
            .collect();
        let newest = from.last().map_or(Epoch(0), |known| known.epoch);
        let (now, step) = (self.queue.now(), self.step);
        for client in denied {
            self.mark("sim: a host is kept from a volume");
            self.reservations.denied.entry(client).or_insert(step);
            let writes = self.reservations.writes.remove(&client).unwrap_or_default();
            for op in writes {
                let operation = self.history.operation(op);
                if !(operation.ended && operation.ok) {
                    self.history.fence(now, step, op);
                    self.reservations.fenced.entry(client).or_default().push((op, newest));
                }
            }
        }
    }

    /// A request was answered well.
    pub(crate) fn check_right(&mut self, client: usize, op: OpIndex) {
        let is_write = matches!(self.history.operation(op).effect, Effect::Write(_));
        if !is_write || !self.has_rights() || !self.is_reserved_volume(op) {
            return;
        }
        let Some(&since) = self.reservations.denied.get(&client) else { return };
        if self.history.called(op).is_some_and(|(_, called)| called > since) {
            let text = format!(
                "client {client} has no right, and its write (operation {op}) is answered well"
            );
            self.fail("reservations", text);
        }
    }
}

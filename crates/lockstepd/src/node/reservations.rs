//! Commands of NVMe hosts about reservations: to the member of the resource, and back; and what others' commands did to them.
//!
//! Always: a report is made of the configuration that the member names as the newest, after it has said so.
//!
//! Not here: who carries them out, and what they come to (`replica`), their bytes (`nvme`).

use base::{HostId, ReservationCommand, VolumeId};
use export::Tag;
use nvme::{Notice, Report, ReportEntry, Service, Status};
use replica::door::{MemberInput, Operation, OperationError, OperationId};
use replica::reservation::{Notice as Taken, notice};
use wire::{Configuration, ReservationRefusal, VolumeReservations};

use super::admin::Pending;
use super::homes::{Wish, Word};
use super::hosts::namespace_of;
use super::{Node, Work};
use crate::log::info_limited;
use crate::slab::Key;

/// A host that waits for the end of a command.
#[derive(Clone, Copy)]
pub(super) struct Reserving {
    client: Key,
    tag: Tag,
    /// It wants to know what there is.
    reports: Option<VolumeId>,
}

impl Reserving {
    /// How it is answered when the machines that have it are gone. A question may be asked again; anything else may be done.
    pub(super) fn when_gone(self) -> OperationError {
        match self.reports {
            Some(_) => OperationError::NoPrimary,
            None => OperationError::Reservation(ReservationRefusal::MayBeDone),
        }
    }
}

impl Node {
    /// A host asks for something about a volume's reservations.
    pub(super) fn reserve_for_host(
        &mut self,
        client: Key,
        tag: Tag,
        volume: VolumeId,
        command: ReservationCommand,
    ) {
        let wish = Wish::Reserve(tag, volume, command);
        let Some(Wish::Reserve(tag, volume, command)) = self.wish_of_first(client, wish) else {
            return;
        };
        let Some(entry) = self.clients.get(client) else { return };
        let host = entry.host();
        let (resource, _) = entry.opened.expect("commands come after a volume was opened");
        let reports = (command == ReservationCommand::Report).then_some(volume);
        if reports.is_none() {
            let name = self.name_of(resource);
            // The key is nobody else's business.
            info_limited!("{name}: host {:032x} asks for {}", host.0, words(&command));
        }
        self.next_operation += 1;
        let id = OperationId(self.next_operation);
        let host_waits = Some(Reserving { client, tag, reports });
        self.pending.insert(id, Pending { resource, asker: None, host: host_waits });
        let operation = Operation::Reserve { volume, host, command };
        self.work.push_back(Work::Member(resource, MemberInput::Operation { id, operation }));
    }

    /// A host asks by another way from now on: what waits here is not to be done after what it asks there.
    pub(super) fn withdraw_commands_of(&mut self, client: Key) {
        for (id, pending) in &self.pending {
            if pending.host.is_some_and(|host| host.client == client) {
                let input = MemberInput::Withdraw { id: *id };
                self.work.push_back(Work::Member(pending.resource, input));
            }
        }
    }

    /// It has come to its end.
    pub(super) fn answer_reserving(
        &mut self,
        resource: Key,
        reserving: Reserving,
        result: Result<(), OperationError>,
    ) {
        let Reserving { client, tag, reports } = reserving;
        let result = match (result, reports) {
            (Err(error), _) => Err(status_of(error)),
            (Ok(()), None) => Ok(None),
            (Ok(()), Some(volume)) => Ok(Some(self.report_of(resource, volume))),
        };
        self.tell_reserved(client, tag, result);
    }

    /// A host's command has come to its end.
    pub(super) fn tell_reserved(
        &mut self,
        client: Key,
        tag: Tag,
        result: Result<Option<Report>, Status>,
    ) {
        let Some(entry) = self.clients.get_mut(client) else { return };
        if let Some(connection) = entry.connection.nvme() {
            connection.answer_reserve(tag, result);
            self.stir_client(client);
        } else {
            self.tell_home(client, Word::Reserved(tag, result));
        }
    }

    fn report_of(&mut self, resource: Key, volume: VolumeId) -> Report {
        let configuration = self.resources.get(resource).and_then(|one| one.configuration());
        let all = configuration.as_ref().and_then(|known| known.reservations_of(volume));
        let Some(all) = all.cloned() else { return Report::default() };
        let mut entries = Vec::new();
        for registrant in &all.registrants {
            let entry = |controller| ReportEntry {
                controller,
                holds: all.is_held_by(registrant.host),
                host: registrant.host,
                key: registrant.key,
            };
            let here = self.controllers_of(resource, registrant.host);
            if here.is_empty() {
                entries.push(entry(0xffff));
            }
            entries.extend(here.into_iter().map(entry));
        }
        Report {
            generation: all.generation,
            kind: all.held.map(|held| held.kind),
            persists: all.persists,
            entries,
        }
    }

    /// Tells the hosts that have controllers here what this change did to their registrations.
    pub(super) fn tell_reservations(
        &mut self,
        resource: Key,
        old: &Configuration,
        new: &Configuration,
    ) {
        let changed: Vec<(&VolumeReservations, &VolumeReservations)> = new
            .reservations
            .iter()
            .filter_map(|now| Some((old.reservations_of(now.volume)?, now)))
            .filter(|(before, now)| before != now)
            .collect();
        if changed.is_empty() {
            return;
        }
        for (key, host, _) in self.controllers(resource) {
            for (before, now) in &changed {
                let Some(what) = notice(before, now, host) else { continue };
                let what = match what {
                    Taken::RegistrationPreempted => Notice::RegistrationPreempted,
                    Taken::ReservationReleased => Notice::ReservationReleased,
                    Taken::ReservationPreempted => Notice::ReservationPreempted,
                };
                let connection =
                    self.clients.get_mut(key).and_then(|client| client.connection.nvme());
                if let Some(connection) = connection {
                    connection.notify(namespace_of(now.volume), what);
                    self.stir_client(key);
                }
            }
        }
    }

    /// Controllers that a host has here to a resource.
    fn controllers_of(&mut self, resource: Key, host: HostId) -> Vec<u16> {
        let all = self.controllers(resource);
        all.into_iter().filter(|(_, of, _)| *of == host).map(|(_, _, id)| id).collect()
    }

    /// Connections with controllers to a resource: whose, and which number the controller has.
    fn controllers(&mut self, resource: Key) -> Vec<(Key, HostId, u16)> {
        let mut all = Vec::new();
        for key in self.clients.keys() {
            let Some(client) = self.clients.get_mut(key) else { continue };
            if client.opened.is_none_or(|(of, _)| of != resource) {
                continue;
            }
            let host = client.host();
            let controller = client.connection.nvme().and_then(|one| one.controller());
            let controller = controller.filter(|one| matches!(one.service(), Service::Volumes(_)));
            all.extend(controller.map(|controller| (key, host, controller.id())));
        }
        all
    }
}

fn words(command: &ReservationCommand) -> &'static str {
    match command {
        ReservationCommand::Register { .. } => "a registration",
        ReservationCommand::Replace { .. } => "another key",
        ReservationCommand::Unregister { .. } => "the end of its registration",
        ReservationCommand::Acquire { .. } => "a reservation",
        ReservationCommand::Preempt { .. } => "the end of others' registrations",
        ReservationCommand::Release { .. } => "the end of its reservation",
        ReservationCommand::Clear { .. } => "the end of all registrations",
        ReservationCommand::Report => "a report",
    }
}

fn status_of(error: OperationError) -> Status {
    match error {
        OperationError::Reservation(ReservationRefusal::Conflict) => Status::RESERVATION_CONFLICT,
        OperationError::Reservation(ReservationRefusal::Invalid) => Status::INVALID_FIELD,
        OperationError::Reservation(ReservationRefusal::None) => Status::INVALID_OPCODE,
        // Another try would not help, or might do it twice.
        OperationError::Full
        | OperationError::OldRelease
        | OperationError::Reservation(
            ReservationRefusal::Full
            | ReservationRefusal::OldRelease
            | ReservationRefusal::MayBeDone,
        ) => Status::LOST,
        _ => Status::PATH_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::{Reserving, status_of};
    use crate::slab::Slab;
    use base::VolumeId;
    use export::Tag;
    use nvme::Status;

    #[test]
    fn a_command_whose_machines_are_gone_is_not_told_to_be_tried_again_but_a_question_is() {
        let (client, tag) = (Slab::default().insert(()), Tag { slot: 0, piece: 0 });
        let command = |reports| Reserving { client, tag, reports };
        assert_eq!(status_of(command(None).when_gone()), Status::LOST);
        assert_eq!(status_of(command(Some(VolumeId(0))).when_gone()), Status::PATH_ERROR);
    }
}

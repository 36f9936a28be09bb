//! What a command about reservations makes of a volume's registrants, and which hosts may do what.
//!
//! As the NVM Express Base Specification 2.0 has it in section 8.19; where it leaves a choice, it is said here.
//!
//! Always: nothing changes with a command that is refused; a host counts by its identity alone, whichever way it came.
//!
//! Not here: how a change is decided (`member/reserve`), when requests are judged (`shard/admit`).

use alloc::vec::Vec;
use base::{HostId, Op, VolumeId};
use wire::{
    Configuration, FEATURE_LEVEL_RESERVATIONS, Quorum, Registrant, Reservation, ReservationCommand,
    ReservationKind, ReservationRefusal, Taken, TakenBy, VolumeReservations,
};

/// Whether `host` may ask for `op`, where these are the reservations. Who only reads is kept from it by exclusive access;
/// flushes go by the rules of writes.
#[must_use]
pub fn allows(reservations: Option<&VolumeReservations>, host: HostId, op: Op) -> bool {
    use ReservationKind as Kind;
    let Some((all, held)) = reservations.and_then(|all| Some((all, all.held?))) else {
        return true;
    };
    let only_holder = matches!(held.kind, Kind::WriteExclusive | Kind::ExclusiveAccess);
    let reads_are_free = matches!(
        held.kind,
        Kind::WriteExclusive | Kind::WriteExclusiveRegistrants | Kind::WriteExclusiveAll
    );
    let is_let = if only_holder { all.is_held_by(host) } else { all.key_of(host).is_some() };
    is_let || reads_are_free && op == Op::Read
}

/// The configuration after `known` in which `host`'s command is carried out; the same if nothing is to be changed for it.
///
/// # Errors
/// Why it is not.
pub fn carried_out(
    known: &Configuration,
    volume: VolumeId,
    host: HostId,
    command: &ReservationCommand,
) -> Result<Configuration, ReservationRefusal> {
    if known.options.quorum == Quorum::Off || known.volume(volume).is_none() {
        return Err(ReservationRefusal::None);
    }
    let mut next = Configuration { epoch: base::Epoch(known.epoch.0 + 1), ..known.clone() };
    let at = next.reservations.iter().position(|entry| entry.volume >= volume);
    let at = at.unwrap_or(next.reservations.len());
    if next.reservations.get(at).is_none_or(|entry| entry.volume != volume) {
        if !matches!(command, ReservationCommand::Register { .. }) {
            return Err(ReservationRefusal::Conflict);
        }
        next.feature_level = next.feature_level.max(FEATURE_LEVEL_RESERVATIONS);
        let fresh = VolumeReservations {
            volume,
            began: next.epoch,
            generation: 0,
            persists: false,
            held: None,
            taken: None,
            registrants: Vec::new(),
        };
        next.reservations.insert(at, fresh);
    }
    let entry = &mut next.reservations[at];
    let taken = taken_by(entry, host, command);
    apply(entry, host, command)?;
    if next.reservations == known.reservations {
        return Ok(known.clone());
    }
    next.reservations[at].taken = taken;
    if wire::check_configuration(&next).is_err() {
        return Err(ReservationRefusal::Full);
    }
    Ok(next)
}

/// All caches were lost at once: what was not to persist is gone.
pub(crate) fn after_loss(all: &mut [VolumeReservations]) {
    for one in all.iter_mut().filter(|one| !one.persists) {
        (one.held, one.taken) = (None, None);
        one.registrants.clear();
    }
}

/// What a host is to be told of a change that it did not make.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notice {
    /// Another host ended its registration.
    RegistrationPreempted,
    /// A reservation that let registrants in is over, and it is still registered.
    ReservationReleased,
    /// Another host ended everything.
    ReservationPreempted,
}

/// What `host` is to be told where `now` came after `before`, both of one volume, without a gap as far as this node knows. If
/// it missed some, whose registration is gone is told that others ended it.
#[must_use]
pub fn notice(
    before: &VolumeReservations,
    now: &VolumeReservations,
    host: HostId,
) -> Option<Notice> {
    if before == now || before.key_of(host).is_none() {
        return None;
    }
    if now.generation.wrapping_sub(before.generation) > 1 {
        return now.key_of(host).is_none().then_some(Notice::RegistrationPreempted);
    }
    let taken = now.taken?;
    let by = before.registrants.get(usize::from(taken.place)).map(|one| one.host);
    if by == Some(host) {
        return None;
    }
    let ended = before.held.filter(|held| now.held.is_none_or(|now| now.kind != held.kind));
    let let_in = ended.is_some_and(|held| {
        !matches!(held.kind, ReservationKind::WriteExclusive | ReservationKind::ExclusiveAccess)
    });
    match taken.by {
        TakenBy::Clear => Some(Notice::ReservationPreempted),
        TakenBy::Preempt if now.key_of(host).is_none() => Some(Notice::RegistrationPreempted),
        _ if let_in && now.key_of(host).is_some() => Some(Notice::ReservationReleased),
        _ => None,
    }
}

/// What `host`'s command takes away from these, if it changes them.
fn taken_by(all: &VolumeReservations, host: HostId, command: &ReservationCommand) -> Option<Taken> {
    use ReservationCommand as Command;
    let by = match command {
        Command::Unregister { .. } => TakenBy::Unregister,
        Command::Release { .. } => TakenBy::Release,
        Command::Preempt { .. } => TakenBy::Preempt,
        Command::Clear { .. } => TakenBy::Clear,
        Command::Register { .. }
        | Command::Replace { .. }
        | Command::Acquire { .. }
        | Command::Report => return None,
    };
    let place = all.registrants.binary_search_by_key(&host, |one| one.host).ok()?;
    Some(Taken { by, place: u8::try_from(place).expect("they are few") })
}

fn apply(
    all: &mut VolumeReservations,
    host: HostId,
    command: &ReservationCommand,
) -> Result<(), ReservationRefusal> {
    use ReservationCommand as Command;
    match *command {
        Command::Register { key, persists } => {
            register(all, host, key)?;
            all.persists = persists.unwrap_or(all.persists);
        }
        Command::Replace { current, key, persists } => {
            check_key(all, host, current)?;
            if key == 0 {
                return Err(ReservationRefusal::Invalid);
            }
            for one in all.registrants.iter_mut().filter(|one| one.host == host) {
                one.key = key;
            }
            all.persists = persists.unwrap_or(all.persists);
            count(all);
        }
        Command::Unregister { current, persists } => {
            check_key(all, host, current)?;
            remove(all, |one| one.host == host);
            all.persists = persists.unwrap_or(all.persists);
            count(all);
        }
        Command::Acquire { current, kind } => {
            check_key(all, host, Some(current))?;
            match all.held {
                Some(held) if held.kind == kind && all.is_held_by(host) => {}
                Some(_) => return Err(ReservationRefusal::Conflict),
                None => hold(all, host, kind),
            }
        }
        Command::Preempt { current, others, kind } => {
            check_key(all, host, Some(current))?;
            preempt(all, host, others, kind)?;
            count(all);
        }
        Command::Release { current, kind } => {
            check_key(all, host, Some(current))?;
            // Who does not hold it has nothing to release, and is told that nothing is held by it.
            if all.is_held_by(host) {
                if all.held.is_some_and(|held| held.kind != kind) {
                    return Err(ReservationRefusal::Invalid);
                }
                all.held = None;
            }
        }
        Command::Clear { current } => {
            check_key(all, host, Some(current))?;
            all.held = None;
            all.registrants.clear();
            count(all);
        }
        Command::Report => {}
    }
    Ok(())
}

/// Who is registered under this very key is told that it is done; under another one it has to be replaced.
fn register(
    all: &mut VolumeReservations,
    host: HostId,
    key: u64,
) -> Result<(), ReservationRefusal> {
    if key == 0 {
        return Err(ReservationRefusal::Invalid);
    }
    if host == HostId(0) {
        return Err(ReservationRefusal::Conflict);
    }
    match all.registrants.binary_search_by_key(&host, |one| one.host) {
        Ok(at) if all.registrants[at].key == key => return Ok(()),
        Ok(_) => return Err(ReservationRefusal::Conflict),
        Err(at) => all.registrants.insert(at, Registrant { host, key }),
    }
    count(all);
    Ok(())
}

fn check_key(
    all: &VolumeReservations,
    host: HostId,
    current: Option<u64>,
) -> Result<(), ReservationRefusal> {
    let key = all.key_of(host).ok_or(ReservationRefusal::Conflict)?;
    if current.is_none_or(|current| current == key) {
        Ok(())
    } else {
        Err(ReservationRefusal::Conflict)
    }
}

/// Takes registrations away, but never that of the host that asks: it may take its own reservation's place with another kind.
fn preempt(
    all: &mut VolumeReservations,
    host: HostId,
    others: u64,
    kind: ReservationKind,
) -> Result<(), ReservationRefusal> {
    let of_all = all.held.is_some_and(|held| held.kind.is_of_all());
    if others == 0 && !of_all {
        return Err(ReservationRefusal::Invalid);
    }
    if others != 0 && !all.registrants.iter().any(|one| one.key == others) {
        return Err(ReservationRefusal::Conflict);
    }
    let holder_key = all.held.and_then(|held| all.key_of(held.holder));
    let takes_place = if of_all { others == 0 } else { holder_key == Some(others) };
    if takes_place {
        all.held = None;
    }
    all.registrants.retain(|one| one.host == host || others != 0 && one.key != others);
    if takes_place {
        hold(all, host, kind);
    }
    Ok(())
}

/// Removes registrants; a reservation goes with its last holder.
fn remove(all: &mut VolumeReservations, leaves: impl Fn(&Registrant) -> bool) {
    all.registrants.retain(|one| !leaves(one));
    let is_held = all.held.is_some_and(|held| {
        if held.kind.is_of_all() {
            !all.registrants.is_empty()
        } else {
            all.key_of(held.holder).is_some()
        }
    });
    if !is_held {
        all.held = None;
    }
}

fn hold(all: &mut VolumeReservations, host: HostId, kind: ReservationKind) {
    let holder = if kind.is_of_all() { HostId(0) } else { host };
    all.held = Some(Reservation { kind, holder });
}

fn count(all: &mut VolumeReservations) {
    all.generation = all.generation.wrapping_add(1);
}

#[cfg(test)]
mod tests;

//! Which hosts may use a volume, where hosts fence each other: part of a resource's configuration.
//!
//! The terms are those of the NVM Express Base Specification 2.0, section 8.19 (Reservations).
//!
//! Always: registrants ascend by host, each once, none with the key 0; who holds a reservation is registered.
//!
//! Not here: what a command makes of it, and who may do what (`replica::reservation`).

use crate::codec::{DecodeError, Put, Reader};
use alloc::vec::Vec;
use base::{Epoch, HostId, ReservationCommand, ReservationKind, VolumeId};

/// What all reservations of a resource take at most, in the bytes of a configuration: 94 registrants of one volume, or 64 volumes
/// that had some.
pub const RESERVATIONS_BYTES_MAX: usize = 2304;

/// Bytes of a volume without registrants, and of each of those.
const VOLUME_BYTES: usize = 36;
const REGISTRANT_BYTES: usize = 24;

/// A host that registered.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Registrant {
    /// Which.
    pub host: HostId,
    /// Its key, never 0.
    pub key: u64,
}

/// A reservation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Reservation {
    /// Its kind.
    pub kind: ReservationKind,
    /// Who holds it; `HostId(0)` where every registrant does.
    pub holder: HostId,
}

/// How a host took something away, from itself or from others.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum TakenBy {
    /// It ended its registration.
    Unregister = 1,
    /// It ended the reservation that it held.
    Release = 2,
    /// It ended others' registrations, and took their reservation's place.
    Preempt = 3,
    /// It ended everything.
    Clear = 4,
}

impl TakenBy {
    const ALL: [TakenBy; 4] =
        [TakenBy::Unregister, TakenBy::Release, TakenBy::Preempt, TakenBy::Clear];
}

/// What the latest change took away, so that every node can tell the hosts that it serves.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Taken {
    /// How.
    pub by: TakenBy,
    /// Who did: the host's place among those that were registered before, from 0.
    pub place: u8,
}

/// Registrants and reservation of one volume. It stays, once a host has registered, for its generation.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct VolumeReservations {
    /// Which volume.
    pub volume: VolumeId,
    /// The configuration that it began with: who acts on an older one does not know that hosts count. Never 0.
    pub began: Epoch,
    /// Counts the changes that the specification counts.
    pub generation: u32,
    /// It is still there when all caches were lost at once.
    pub persists: bool,
    /// The reservation, if there is one.
    pub held: Option<Reservation>,
    /// What the latest change took away, if it did.
    pub taken: Option<Taken>,
    /// Hosts that registered, ascending.
    pub registrants: Vec<Registrant>,
}

impl VolumeReservations {
    /// The key of `host`, if it is registered.
    #[must_use]
    pub fn key_of(&self, host: HostId) -> Option<u64> {
        let at = self.registrants.binary_search_by_key(&host, |registrant| registrant.host).ok()?;
        Some(self.registrants[at].key)
    }

    /// Whether `host` holds the reservation.
    #[must_use]
    pub fn is_held_by(&self, host: HostId) -> bool {
        self.held.is_some_and(|held| {
            held.holder == host || held.kind.is_of_all() && self.key_of(host).is_some()
        })
    }
}

/// Why a command about reservations was not carried out.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ReservationRefusal {
    /// Another host's registration or reservation stands against it, or the key is not the host's.
    Conflict,
    /// It makes no sense, whatever is there.
    Invalid,
    /// There are too many registrants.
    Full,
    /// The resource has no quorum to lose, or the volume is not there: there are no reservations.
    None,
    /// A member's release knows none.
    OldRelease,
    /// Nobody could carry it out: no primary is in reach, or it has no majority.
    NoPrimary,
    /// It may have been carried out: who was asked did not answer.
    MayBeDone,
}

impl ReservationRefusal {
    const ALL: [ReservationRefusal; 7] = [
        ReservationRefusal::Conflict,
        ReservationRefusal::Invalid,
        ReservationRefusal::Full,
        ReservationRefusal::None,
        ReservationRefusal::OldRelease,
        ReservationRefusal::NoPrimary,
        ReservationRefusal::MayBeDone,
    ];
}

/// 0 for what was done, else the refusal's place, from 1.
pub(crate) fn put_result(out: &mut Vec<u8>, result: Result<Epoch, ReservationRefusal>) {
    let place = |refusal| ReservationRefusal::ALL.iter().position(|one| *one == refusal);
    let number = result.err().and_then(place).map_or(0, |place| place + 1);
    out.put_u8(u8::try_from(number).expect("few refusals"));
    out.put_u64(result.map_or(0, |epoch| epoch.0));
}

pub(crate) fn take_result(
    reader: &mut Reader<'_>,
) -> Result<Result<Epoch, ReservationRefusal>, DecodeError> {
    let (number, epoch) = (usize::from(reader.u8()?), reader.u64()?);
    let Some(place) = number.checked_sub(1) else { return Ok(Ok(Epoch(epoch))) };
    let refusal = ReservationRefusal::ALL.get(place).filter(|_| epoch == 0);
    refusal.map(|refusal| Err(*refusal)).ok_or(DecodeError::Damaged("an unknown refusal"))
}

/// How many bytes they take in a configuration.
pub(crate) fn bytes_of(all: &[VolumeReservations]) -> usize {
    all.iter().map(|one| VOLUME_BYTES + one.registrants.len() * REGISTRANT_BYTES).sum()
}

/// What is wrong with them, beside the volumes that they are of.
pub(crate) fn check(all: &[VolumeReservations]) -> Result<(), &'static str> {
    if !all.iter().map(|one| one.volume).is_sorted_by(|a, b| a < b) {
        return Err("reservations do not ascend by volume");
    }
    for one in all {
        let registrants = &one.registrants;
        if one.began == Epoch(0) {
            return Err("reservations began before the first configuration");
        }
        if !registrants.iter().map(|registrant| registrant.host).is_sorted_by(|a, b| a < b) {
            return Err("registrants do not ascend by host");
        }
        if registrants.iter().any(|one| one.host == HostId(0) || one.key == 0) {
            return Err("a registrant without an identity or a key");
        }
        let is_held = |held: Reservation| match held.kind.is_of_all() {
            true => held.holder == HostId(0) && !registrants.is_empty(),
            false => one.key_of(held.holder).is_some(),
        };
        if !one.held.is_none_or(is_held) {
            return Err("a reservation is held by nobody who registered");
        }
    }
    if bytes_of(all) > RESERVATIONS_BYTES_MAX {
        return Err("too many registrants");
    }
    Ok(())
}

pub(crate) fn put(out: &mut Vec<u8>, all: &[VolumeReservations]) {
    for one in all {
        out.put_u16(one.volume.0);
        out.put_u64(one.began.0);
        out.put_u32(one.generation);
        out.put_bool(one.persists);
        out.put_u8(one.held.map_or(0, |held| held.kind as u8));
        put_host(out, one.held.map_or(HostId(0), |held| held.holder));
        out.put_u8(one.taken.map_or(0, |taken| taken.by as u8));
        out.put_u8(one.taken.map_or(0, |taken| taken.place));
        out.put_u16(u16::try_from(one.registrants.len()).expect("limits keep them few"));
        for registrant in &one.registrants {
            put_host(out, registrant.host);
            out.put_u64(registrant.key);
        }
    }
}

pub(crate) fn take(mut reader: Reader<'_>) -> Result<Vec<VolumeReservations>, DecodeError> {
    let mut all = Vec::new();
    while !reader.is_empty() {
        let (volume, began) = (VolumeId(reader.u16()?), Epoch(reader.u64()?));
        let (generation, persists) = (reader.u32()?, reader.bool()?);
        let (kind, holder) = (reader.u8()?, take_host(&mut reader)?);
        let held = match (kind, ReservationKind::of(kind)) {
            (0, _) if holder == HostId(0) => None,
            (_, Some(kind)) => Some(Reservation { kind, holder }),
            _ => return Err(DecodeError::Damaged("a reservation of an unknown kind")),
        };
        let taken = take_taken(reader.u8()?, reader.u8()?)?;
        let count = usize::from(reader.u16()?);
        if count * REGISTRANT_BYTES > reader.rest().len() {
            return Err(DecodeError::Damaged("fewer registrants than are said to be there"));
        }
        let one = |_| Ok(Registrant { host: take_host(&mut reader)?, key: reader.u64()? });
        let registrants = (0..count).map(one).collect::<Result<_, DecodeError>>()?;
        let one =
            VolumeReservations { volume, began, generation, persists, held, taken, registrants };
        all.push(one);
    }
    if all.is_empty() {
        return Err(DecodeError::Damaged("a section that says nothing"));
    }
    Ok(all)
}

fn take_taken(by: u8, place: u8) -> Result<Option<Taken>, DecodeError> {
    let known = TakenBy::ALL.into_iter().find(|one| *one as u8 == by);
    match known {
        Some(by) => Ok(Some(Taken { by, place })),
        None if (by, place) == (0, 0) => Ok(None),
        None => Err(DecodeError::Damaged("something was taken away in an unknown way")),
    }
}

pub(crate) fn put_host(out: &mut Vec<u8>, host: HostId) {
    out.extend_from_slice(&host.0.to_le_bytes());
}

pub(crate) fn take_host(reader: &mut Reader<'_>) -> Result<HostId, DecodeError> {
    Ok(HostId(u128::from_le_bytes(reader.array()?)))
}

const REGISTER: u8 = 1;
const REPLACE: u8 = 2;
const UNREGISTER: u8 = 3;
const ACQUIRE: u8 = 4;
const PREEMPT: u8 = 5;
const RELEASE: u8 = 6;
const CLEAR: u8 = 7;
const REPORT: u8 = 8;

/// Number, key of one's own, another key, kind, and whether it persists: what a command does not use is 0.
pub(crate) fn put_command(out: &mut Vec<u8>, command: &ReservationCommand) {
    use ReservationCommand as Command;
    let persists = |persists: Option<bool>| match persists {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    };
    let (number, ignores, current, other, kind, persists) = match *command {
        Command::Register { key, persists: wish } => (REGISTER, false, 0, key, 0, persists(wish)),
        Command::Replace { current, key, persists: wish } => {
            (REPLACE, current.is_none(), current.unwrap_or(0), key, 0, persists(wish))
        }
        Command::Unregister { current, persists: wish } => {
            (UNREGISTER, current.is_none(), current.unwrap_or(0), 0, 0, persists(wish))
        }
        Command::Acquire { current, kind } => (ACQUIRE, false, current, 0, kind as u8, 0),
        Command::Preempt { current, others, kind } => {
            (PREEMPT, false, current, others, kind as u8, 0)
        }
        Command::Release { current, kind } => (RELEASE, false, current, 0, kind as u8, 0),
        Command::Clear { current } => (CLEAR, false, current, 0, 0, 0),
        Command::Report => (REPORT, false, 0, 0, 0, 0),
    };
    out.put_u8(number);
    out.put_bool(ignores);
    out.put_u64(current);
    out.put_u64(other);
    out.put_u8(kind);
    out.put_u8(persists);
}

pub(crate) fn take_command(reader: &mut Reader<'_>) -> Result<ReservationCommand, DecodeError> {
    use ReservationCommand as Command;
    const BAD: DecodeError = DecodeError::Damaged("an impossible command about reservations");
    let bytes = reader.rest();
    let (number, ignores) = (reader.u8()?, reader.bool()?);
    let (own, other) = (reader.u64()?, reader.u64()?);
    let (kind, persists) = (reader.u8()?, reader.u8()?);
    let current = if ignores { None } else { Some(own) };
    let persists = match persists {
        0 => None,
        1 => Some(false),
        2 => Some(true),
        _ => return Err(BAD),
    };
    let of = || ReservationKind::of(kind).ok_or(BAD);
    let command = match number {
        REGISTER => Command::Register { key: other, persists },
        REPLACE => Command::Replace { current, key: other, persists },
        UNREGISTER => Command::Unregister { current, persists },
        ACQUIRE => Command::Acquire { current: own, kind: of()? },
        PREEMPT => Command::Preempt { current: own, others: other, kind: of()? },
        RELEASE => Command::Release { current: own, kind: of()? },
        CLEAR => Command::Clear { current: own },
        REPORT => Command::Report,
        _ => return Err(BAD),
    };
    // What a command does not use is 0.
    let mut again = Vec::new();
    put_command(&mut again, &command);
    if bytes.starts_with(&again) { Ok(command) } else { Err(BAD) }
}

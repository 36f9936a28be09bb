//! Commands about reservations (base, "Reservations"): from their bytes, and the report to bytes.
//!
//! Invariants:
//! - What a command says that the specification reserves is refused, never guessed at.
//!
//! Not here: what they come to (the caller's).

use crate::bytes::{set, u64_at, zeroes};
use crate::command::{Command, Status};
use crate::number::{
    IO_RESERVATION_ACQUIRE, IO_RESERVATION_REGISTER, IO_RESERVATION_RELEASE, TRANSFER_BYTES_MAX,
};
use alloc::vec::Vec;
use base::{HostId, ReservationCommand, ReservationKind};

/// Bytes of the report's head, and of an entry, where identities of hosts have 16 bytes.
const ENTRY_BYTES: usize = 64;
/// `IEKEY`.
const IGNORES_KEY: u32 = 1 << 3;

/// A host that registered, as the report names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReportEntry {
    /// A controller of it, or 0xffff: none that is known here.
    pub controller: u16,
    /// It holds the reservation.
    pub holds: bool,
    /// Its identity.
    pub host: HostId,
    /// Its key.
    pub key: u64,
}

/// Who is registered for a volume, and how it is reserved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Report {
    /// Counts changes.
    pub generation: u32,
    /// How it is reserved, if it is.
    pub kind: Option<ReservationKind>,
    /// It persists through a loss of power.
    pub persists: bool,
    /// Who is registered.
    pub entries: Vec<ReportEntry>,
}

impl Report {
    /// As hosts read it, cut or filled up to `length` bytes.
    #[must_use]
    pub fn to_bytes(&self, length: usize) -> Vec<u8> {
        let mut page = zeroes(ENTRY_BYTES * (1 + self.entries.len()));
        set(&mut page, 0, &self.generation.to_le_bytes());
        page[4] = self.kind.map_or(0, |kind| kind as u8);
        let count = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        set(&mut page, 5, &count.to_le_bytes());
        page[9] = u8::from(self.persists);
        for (entry, to) in self.entries.iter().zip(page[ENTRY_BYTES..].chunks_mut(ENTRY_BYTES)) {
            set(to, 0, &entry.controller.to_le_bytes());
            to[2] = u8::from(entry.holds);
            set(to, 8, &entry.key.to_le_bytes());
            set(to, 16, &entry.host.0.to_be_bytes());
        }
        page.resize(length, 0);
        page
    }
}

/// Whether a command's data is to be gathered, and then read by [`parse`].
pub(crate) fn has_keys(command: &Command) -> bool {
    matches!(
        command.opcode(),
        IO_RESERVATION_REGISTER | IO_RESERVATION_ACQUIRE | IO_RESERVATION_RELEASE
    )
}

/// What a command with keys asks for.
pub(crate) fn parse(command: &Command, data: &[u8]) -> Result<ReservationCommand, Status> {
    let word = command.word(10);
    let (action, ignores) = (word & 0b111, word & IGNORES_KEY != 0);
    let bytes = if command.opcode() == IO_RESERVATION_RELEASE { 8 } else { 16 };
    if data.len() < bytes {
        return Err(Status::SGL_LENGTH);
    }
    let own = u64_at(data, 0);
    let other = if bytes == 16 { u64_at(data, 8) } else { 0 };
    if command.opcode() == IO_RESERVATION_REGISTER {
        let persists = match word >> 30 {
            0 => None,
            2 => Some(false),
            3 => Some(true),
            _ => return Err(Status::INVALID_FIELD),
        };
        let current = if ignores { None } else { Some(own) };
        return match action {
            0 => Ok(ReservationCommand::Register { key: other, persists }),
            1 => Ok(ReservationCommand::Unregister { current, persists }),
            2 => Ok(ReservationCommand::Replace { current, key: other, persists }),
            _ => Err(Status::INVALID_FIELD),
        };
    }
    if ignores {
        return Err(Status::INVALID_FIELD);
    }
    let [_, kind, ..] = word.to_le_bytes();
    let kind = || ReservationKind::of(kind).ok_or(Status::INVALID_FIELD);
    match (command.opcode(), action) {
        (IO_RESERVATION_ACQUIRE, 0) => {
            Ok(ReservationCommand::Acquire { current: own, kind: kind()? })
        }
        // What is aborted has its end in any case.
        (IO_RESERVATION_ACQUIRE, 1 | 2) => {
            Ok(ReservationCommand::Preempt { current: own, others: other, kind: kind()? })
        }
        (IO_RESERVATION_RELEASE, 0) => {
            Ok(ReservationCommand::Release { current: own, kind: kind()? })
        }
        (IO_RESERVATION_RELEASE, 1) => Ok(ReservationCommand::Clear { current: own }),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Opcode, word 10 and data of a command, as a host sends it.
///
/// # Panics
/// If it is a report.
pub(crate) fn build(command: &ReservationCommand) -> (u8, u32, Vec<u8>) {
    use ReservationCommand as Asks;
    let keys = |all: &[u64]| all.iter().flat_map(|key| key.to_le_bytes()).collect();
    let persists = |wish: Option<bool>| wish.map_or(0, |wish| 2 + u32::from(wish)) << 30;
    let of = |action: u32, kind: ReservationKind| action | u32::from(kind as u8) << 8;
    let known = |current: Option<u64>| {
        (current.unwrap_or(0), if current.is_none() { IGNORES_KEY } else { 0 })
    };
    match *command {
        Asks::Register { key, persists: wish } => {
            (IO_RESERVATION_REGISTER, persists(wish), keys(&[0, key]))
        }
        Asks::Unregister { current, persists: wish } => {
            let (own, ignores) = known(current);
            (IO_RESERVATION_REGISTER, 1 | ignores | persists(wish), keys(&[own, 0]))
        }
        Asks::Replace { current, key, persists: wish } => {
            let (own, ignores) = known(current);
            (IO_RESERVATION_REGISTER, 2 | ignores | persists(wish), keys(&[own, key]))
        }
        Asks::Acquire { current, kind } => {
            (IO_RESERVATION_ACQUIRE, of(0, kind), keys(&[current, 0]))
        }
        Asks::Preempt { current, others, kind } => {
            (IO_RESERVATION_ACQUIRE, of(1, kind), keys(&[current, others]))
        }
        Asks::Release { current, kind } => (IO_RESERVATION_RELEASE, of(0, kind), keys(&[current])),
        Asks::Clear { current } => (IO_RESERVATION_RELEASE, 1, keys(&[current])),
        Asks::Report => panic!("a report is asked for by itself"),
    }
}

/// How many bytes of a report are asked for.
pub(crate) fn report_bytes(command: &Command) -> Result<u32, Status> {
    // Identities have 16 bytes over a network, and so do entries have to.
    if command.word(11) & 1 == 0 {
        return Err(Status::HOST_ID_FORMAT);
    }
    let words = u64::from(command.word(10)) + 1;
    u32::try_from(words * 4)
        .ok()
        .filter(|bytes| *bytes <= TRANSFER_BYTES_MAX)
        .ok_or(Status::INVALID_FIELD)
}

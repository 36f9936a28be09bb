//! What hosts ask for that keep each other from a volume: kinds and commands of reservations.
//!
//! The terms are those of the NVM Express Base Specification 2.0, section 8.19 (Reservations).
//!
//! Not here: what they come to (`replica`), their bytes (`nvme`, `wire`).

/// What a reservation keeps others from, and who is not kept.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ReservationKind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Only registrants write.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// Only registrants write, and each of them is a holder.
    WriteExclusiveAll = 5,
    /// Only registrants read and write, and each of them is a holder.
    ExclusiveAccessAll = 6,
}

impl ReservationKind {
    /// The kind with this number, if there is one.
    #[must_use]
    pub fn of(number: u8) -> Option<ReservationKind> {
        use ReservationKind as Kind;
        [
            Kind::WriteExclusive,
            Kind::ExclusiveAccess,
            Kind::WriteExclusiveRegistrants,
            Kind::ExclusiveAccessRegistrants,
            Kind::WriteExclusiveAll,
            Kind::ExclusiveAccessAll,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }

    /// Whether every registrant is a holder.
    #[must_use]
    pub fn is_of_all(self) -> bool {
        matches!(self, ReservationKind::WriteExclusiveAll | ReservationKind::ExclusiveAccessAll)
    }
}

/// What a host asks for. Keys and actions as in the specification.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ReservationCommand {
    /// Register under a key.
    Register {
        /// The new key.
        key: u64,
        /// Whether it is to be there when all caches were lost at once; `None`: as it is.
        persists: Option<bool>,
    },
    /// Change the key of the registration.
    Replace {
        /// The present key; `None`: whatever it is.
        current: Option<u64>,
        /// The new key.
        key: u64,
        /// As above.
        persists: Option<bool>,
    },
    /// Give the registration up.
    Unregister {
        /// The present key; `None`: whatever it is.
        current: Option<u64>,
        /// As above.
        persists: Option<bool>,
    },
    /// Become holder where there is none.
    Acquire {
        /// The own key.
        current: u64,
        /// Of which kind.
        kind: ReservationKind,
    },
    /// Take the registrations of others away, and the reservation of a holder among them. What they asked before has its
    /// end when this is answered.
    Preempt {
        /// The own key.
        current: u64,
        /// The key of the others; 0: of all others, where every registrant is a holder.
        others: u64,
        /// Of which kind the reservation is to be, where that of a holder is taken away.
        kind: ReservationKind,
    },
    /// Hold it no more.
    Release {
        /// The own key.
        current: u64,
        /// Its kind.
        kind: ReservationKind,
    },
    /// End the reservation and all registrations.
    Clear {
        /// The own key.
        current: u64,
    },
    /// Change nothing: let the newest configuration be known where this was asked.
    Report,
}

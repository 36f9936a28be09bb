//! What a host is told of its reservations (base, "Reservation Notifications").
//!
//! Invariants:
//! - What it has read, or does not want to hear of, is not kept.
//! - The oldest is read first; what finds no room is counted, so that the host sees that it missed some.
//!
//! Not here: when it is told that there is something to read (`controller`).

use crate::bytes::{set, zeroes};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Notices kept for one controller, at most.
const KEPT_MAX: usize = 8;
const PAGE_BYTES: usize = 64;

/// Something that another host did to this one's registration or reservation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Notice {
    /// It ended its registration.
    RegistrationPreempted = 1,
    /// A reservation that let this host in, as one that is registered, is over.
    ReservationReleased = 2,
    /// It ended all registrations and the reservation.
    ReservationPreempted = 3,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    namespace: u32,
    notice: Notice,
}

/// Those of one controller.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    kept: VecDeque<Kept>,
    /// There were so many.
    count: u64,
    /// Namespaces of which it does not want to hear some, and which: a bit for each kind.
    masked: Vec<(u32, u32)>,
}

impl Notices {
    /// Says whether there is something new to read.
    pub(crate) fn add(&mut self, namespace: u32, notice: Notice) -> bool {
        if self.mask(namespace) & 1 << notice as u32 != 0 {
            return false;
        }
        // After its last number comes 1: 0 is that of a page without a notice.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.kept.len() < KEPT_MAX {
            self.kept.push_back(Kept { number: self.count, namespace, notice });
        }
        true
    }

    /// The log page: the oldest notice, or that there is none.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut page = zeroes(PAGE_BYTES);
        if let Some(oldest) = self.kept.front() {
            set(&mut page, 0, &oldest.number.to_le_bytes());
            page[8] = oldest.notice as u8;
            page[9] = u8::try_from(self.kept.len() - 1).expect("they are few");
            set(&mut page, 12, &oldest.namespace.to_le_bytes());
        }
        page
    }

    /// The oldest was read. Says whether there are more.
    pub(crate) fn pop(&mut self) -> bool {
        self.kept.pop_front();
        !self.kept.is_empty()
    }

    /// What of a namespace the host does not want to hear.
    pub(crate) fn mask(&self, namespace: u32) -> u32 {
        let of = self.masked.iter().find(|(id, _)| *id == namespace);
        of.map_or(0, |(_, mask)| *mask)
    }

    /// From now on it does not want to hear of this.
    pub(crate) fn set_mask(&mut self, namespaces: impl Iterator<Item = u32>, mask: u32) {
        for namespace in namespaces {
            self.masked.retain(|(id, _)| *id != namespace);
            self.masked.push((namespace, mask));
        }
    }
}

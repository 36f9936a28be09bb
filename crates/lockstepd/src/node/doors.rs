//! Doors that let nobody in for a moment: where the system has no room for one connection more, as without free
//! descriptors.
//!
//! Always: who waits is let in later; a door that fails is tried again after a pause, not at once, so that neither the
//! processor nor the log is kept busy by it.
//!
//! Not here: who is let in (`clients`, `peers`, `admin`).

use base::{Duration, Instant};
use sys::Event;

use super::{Node, Purpose};
use crate::log::warning_limited;

/// Until a door is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Doors that are to be opened again, and when.
#[derive(Default)]
pub(crate) struct Doors(Vec<(Instant, Purpose)>);

impl Node {
    /// Nobody is let in any more by this door, for now.
    pub(super) fn on_accept_ended(&mut self, door: Purpose, event: &Event) {
        if self.stopping.is_some() {
            return;
        }
        let whom = match door {
            Purpose::PeerAccept(_) => "peers",
            Purpose::AdminAccept(_) => "operators",
            _ => "clients",
        };
        warning_limited!("accepting {whom} failed, tried again: {:?}", event.result);
        self.doors.0.push((self.hands.now() + PAUSE, door));
    }

    /// When the first of them is to be opened.
    pub(super) fn doors_wake_at(&self) -> Option<Instant> {
        self.doors.0.iter().map(|(at, _)| *at).min()
    }

    /// Opens those whose time has come.
    pub(super) fn open_doors(&mut self) {
        let now = self.hands.now();
        let shut = std::mem::take(&mut self.doors.0);
        let (due, later) = shut.into_iter().partition(|(at, _)| *at <= now);
        self.doors.0 = later;
        let due: Vec<_> = due;
        for (_, door) in due {
            match door {
                Purpose::NbdAccept(listener, door) => self.accept_clients(listener, door),
                Purpose::VhostAccept(listener, socket) => self.accept_machines(listener, socket),
                Purpose::PeerAccept(listener) => self.accept_peers(listener),
                Purpose::AdminAccept(listener) => self.accept_admins(listener),
                _ => unreachable!("these are doors"),
            }
        }
    }
}

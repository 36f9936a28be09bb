//! Where and when to connect to a peer that has several addresses.
//!
//! The order of addresses is the operator's preference. All are tried in turn, quickly, before a
//! wait; a wait is the [`Backoff`]'s. After a connection that was in use, the next round begins at
//! the preferred address again, so that a repaired path is taken at the next chance.
//!
//! Always: at most one try at once. Not here: sockets, and several streams (each has its `Paths`).

use std::net::SocketAddr;

use base::{Duration, Instant};

use crate::Backoff;

/// Addresses of one peer at most: two networks of two kinds, twice.
pub const ADDRESSES_MAX: usize = 8;

/// Time that one try to connect may take before the next address has its turn. A dead path costs a
/// stream this much.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing is under way; try at this time.
    Waiting(Instant),
    /// Under way until this time.
    Trying(Instant),
    /// In use.
    Open,
}

/// The way to one peer.
#[derive(Clone, Debug)]
pub struct Paths {
    addresses: Vec<SocketAddr>,
    /// The address that is tried or in use, or will be next.
    at: usize,
    state: State,
    backoff: Backoff,
}

impl Paths {
    /// Begins at `now` with the first address. `addresses` beyond [`ADDRESSES_MAX`] are not used.
    #[must_use]
    pub fn new(addresses: &[SocketAddr], seed: u64, now: Instant) -> Paths {
        let addresses = addresses.iter().copied().take(ADDRESSES_MAX).collect();
        Paths { addresses, at: 0, state: State::Waiting(now), backoff: Backoff::new(seed) }
    }

    /// Takes over new addresses. What is in use or under way goes on; the next try begins with the
    /// first of the new ones.
    pub fn set_addresses(&mut self, addresses: &[SocketAddr]) {
        let next = addresses.iter().copied().take(ADDRESSES_MAX);
        if !self.addresses.iter().copied().eq(next.clone()) {
            self.addresses = next.collect();
            // Counted on by one when the present try ends.
            self.at = match self.state {
                State::Waiting(_) => 0,
                State::Trying(_) | State::Open => self.addresses.len().saturating_sub(1),
            };
        }
    }

    /// The address to connect to now, if it is time. The caller then calls `opened` or `failed`.
    pub fn next(&mut self, now: Instant) -> Option<SocketAddr> {
        match self.state {
            State::Waiting(time) if now >= time => {
                let address = *self.addresses.get(self.at)?;
                self.state = State::Trying(now + CONNECT_LIMIT);
                Some(address)
            }
            _ => None,
        }
    }

    /// When time alone changes something: a try is due, or the one under way has taken too long and
    /// is to be given up (close it, then call `failed`).
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(time) => (!self.addresses.is_empty()).then_some(time),
            State::Trying(limit) => Some(limit),
            State::Open => None,
        }
    }

    /// True if the try under way has taken too long.
    #[must_use]
    pub fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.state, State::Trying(limit) if now >= limit)
    }

    /// The session over the connection under way is in use (after its hello, not before: an address
    /// that only accepts is no path). Also when the peer connected to this node instead.
    pub fn opened(&mut self, now: Instant) {
        self.state = State::Open;
        self.backoff.opened(now);
    }

    /// The try under way failed. The next address has its turn; after the last one, a wait. Nothing
    /// happens if none is under way: the peer may have connected meanwhile.
    pub fn failed(&mut self, now: Instant) {
        if !matches!(self.state, State::Trying(_)) {
            return;
        }
        self.at += 1;
        let time = if self.at < self.addresses.len() {
            now
        } else {
            self.at = 0;
            self.backoff.ended(now)
        };
        self.state = State::Waiting(time);
    }

    /// The session in use ended: again from the first address, after a wait.
    pub fn ended(&mut self, now: Instant) {
        self.at = 0;
        self.state = State::Waiting(self.backoff.ended(now));
    }
}

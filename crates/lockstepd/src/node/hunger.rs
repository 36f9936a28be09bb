//! Clients that wait for memory, and who holds what they wait for, on whatever threads either are.
//!
//! Always: while a client of any thread waits, one that holds some, of any thread, is looked at. Nobody is sent away
//! while nobody waits.
//!
//! Not here: how much there is (`memory`), and who waits for whom ([0009](../../../../docs/design/0009-buffers.md)).

use base::{Duration, Instant};

use super::Node;
use super::threads::Parcel;
use crate::log::warning;
use crate::slab::Key;

/// How long a client may do nothing for what it holds while another waits for memory: longer than a guest or a
/// network stands still that goes on.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Clients that wait for buffers.
#[derive(Default)]
pub(crate) struct Hunger {
    clients: Vec<Key>,
    /// Since when there are some.
    since: Option<Instant>,
    /// Since when there are some on other threads, by number, as they said.
    elsewhere: Vec<Option<Instant>>,
    /// What the others were told last.
    said: bool,
}

impl Hunger {
    /// Since when anybody waits.
    fn begun(&self) -> Option<Instant> {
        let own = self.since.filter(|_| !self.clients.is_empty());
        self.elsewhere.iter().flatten().copied().chain(own).min()
    }

    /// What the others have to be told: whether clients wait here, if that is new.
    fn news(&mut self) -> Option<bool> {
        let now = !self.clients.is_empty();
        (std::mem::replace(&mut self.said, now) != now).then_some(now)
    }

    /// Another thread has said whether clients wait there.
    fn hear(&mut self, thread: u16, on: bool, now: Instant) {
        let place = usize::from(thread);
        if self.elsewhere.len() <= place {
            self.elsewhere.resize(place + 1, None);
        }
        self.elsewhere[place] = on.then(|| self.elsewhere[place].unwrap_or(now));
    }
}

impl Node {
    /// A client that was served may have found no buffer.
    pub(super) fn note_hungry(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && client.connection.starved()
            && !client.hungry
        {
            client.hungry = true;
            self.hunger.clients.push(key);
        }
    }

    /// Clients that wait for a buffer may get one now, who has waited longest first.
    pub(super) fn stir_starved_clients(&mut self) {
        if self.hunger.clients.is_empty() {
            self.hunger.since = None;
            return;
        }
        let now = self.hands.now();
        self.hunger.since.get_or_insert(now);
        for key in std::mem::take(&mut self.hunger.clients) {
            if let Some(client) = self.clients.get_mut(key) {
                client.hungry = false;
                self.stir_client(key);
            }
        }
    }

    /// Whether a client waits for a buffer on this thread.
    pub(super) fn clients_starve(&self) -> bool {
        !self.hunger.clients.is_empty()
    }

    /// Other threads hear whether clients wait here, once that is another answer than before.
    pub(super) fn tell_of_hunger(&mut self) {
        if let Some(on) = self.hunger.news() {
            let thread = self.threads.number();
            self.tell_others(|| Parcel::Hungry { thread, on });
        }
    }

    /// Another thread has said whether clients wait there.
    pub(super) fn hear_of_hunger(&mut self, thread: u16, on: bool) {
        let now = self.hands.now();
        self.hunger.hear(thread, on, now);
    }

    /// Until when each may stall that holds memory for which others wait.
    fn stalls(&self) -> impl Iterator<Item = (Instant, Key)> {
        let holders =
            self.clients.iter().filter_map(|(key, client)| Some((client.waited_for_since()?, key)));
        self.hunger.begun().into_iter().flat_map(move |since| {
            holders.clone().map(move |(waits, key)| (waits.max(since) + STALL_LIMIT, key))
        })
    }

    /// When the first of those has stalled too long.
    pub(super) fn stalled_wake_at(&self) -> Option<Instant> {
        self.stalls().map(|(until, _)| until).min()
    }

    /// Sends those away who hold memory for which others wait, and do nothing for it.
    pub(super) fn send_stalled_away(&mut self) {
        let now = self.hands.now();
        let late: Vec<Key> =
            self.stalls().filter(|(until, _)| *until <= now).map(|(_, key)| key).collect();
        for key in late {
            warning!("a client was sent away: it stood still while others wait for memory");
            self.drop_client(key, "it stood still while others wait for memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Instant;

    use super::{Hunger, Key};
    use crate::slab::Slab;

    fn some_client() -> Key {
        Slab::default().insert(())
    }

    #[test]
    fn others_are_told_when_clients_begin_to_wait_and_when_none_does() {
        let mut hunger = Hunger::default();
        assert_eq!(hunger.news(), None);
        hunger.clients.push(some_client());
        assert_eq!((hunger.news(), hunger.news()), (Some(true), None));
        hunger.clients.clear();
        assert_eq!((hunger.news(), hunger.news()), (Some(false), None));
    }

    #[test]
    fn it_counts_from_when_the_first_thread_said_that_somebody_waits() {
        let mut hunger = Hunger::default();
        assert_eq!(hunger.begun(), None);
        hunger.hear(3, true, Instant(30));
        hunger.hear(1, true, Instant(40));
        hunger.hear(3, true, Instant(50));
        assert_eq!(hunger.begun(), Some(Instant(30)), "said twice is no news");
        hunger.since = Some(Instant(20));
        assert_eq!(hunger.begun(), Some(Instant(30)), "of this thread nobody waits any more");
        hunger.clients.push(some_client());
        assert_eq!(hunger.begun(), Some(Instant(20)));
        hunger.clients.clear();
        hunger.hear(3, false, Instant(60));
        assert_eq!(hunger.begun(), Some(Instant(40)));
        hunger.hear(1, false, Instant(60));
        assert_eq!(hunger.begun(), None);
    }
}

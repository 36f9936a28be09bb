//! How old what a client sent may be when it is looked at: it may have lain in its socket while nothing was received.
//!
//! A socket that is read in parts, with pauses between, gives what lay there all the time. So pauses add up until so much was received after
//! them that nothing of before can be left. Where the socket was found empty that counts as half of it, for the client's own may not have been
//! empty then. Where nothing came for a while none counts any more.
//!
//! Not here: how old is too old, and for whom (`hosts`).

use base::{Duration, Instant};

/// What the sockets at both ends of a connection hold, and more: unless told otherwise Linux has some MiB for each.
const SOCKETS_BYTES: usize = 32 << 20;

/// Pauses are kept apart by how much was received after them, in parts of so many bytes; of the part that has begun it is not known how much.
const PART_BYTES: usize = SOCKETS_BYTES / 8;
const PARTS: usize = SOCKETS_BYTES / PART_BYTES + 1;

/// Where nothing came for so long, nothing was on its way: a process with hosts that looks at nothing for as long drops them all.
const QUIET: Duration = Duration::from_secs(1);

/// Of one client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unread {
    /// Since when nothing is received: it waits for memory, for answers, or for a peer.
    since: Option<Instant>,
    /// For how long nothing was, the last parts first.
    pauses: [Duration; PARTS],
    /// Received in the first part, also what came last, which is looked at now.
    bytes: usize,
    /// For how many there is room in what is received, since when.
    room: usize,
    begun: Instant,
}

impl Unread {
    /// Nothing is received now.
    pub(super) fn pause(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Whether nothing is.
    pub(super) fn is_paused(&self) -> bool {
        self.since.is_some()
    }

    /// So many bytes are received from now on, at most. What came before is used.
    pub(super) fn begin(&mut self, room: usize, now: Instant) {
        let parts = (self.bytes / PART_BYTES).min(PARTS);
        self.pauses.copy_within(..PARTS - parts, parts);
        self.pauses[..parts].fill(Duration(0));
        self.bytes %= PART_BYTES;
        let paused = self.since.take().map_or(Duration(0), |since| now.since(since));
        self.pauses[0].0 += paused.0;
        (self.room, self.begun) = (room, now);
    }

    /// So many came.
    pub(super) fn end(&mut self, bytes: usize, now: Instant) {
        if now.since(self.begun) > QUIET {
            (self.pauses, self.bytes) = Default::default();
        }
        // Less than there was room for: that is all there was.
        self.bytes += if bytes < self.room { SOCKETS_BYTES / 2 + PART_BYTES } else { bytes };
    }

    /// How long ago what is looked at now may have come, or what comes next if nothing is here.
    pub(super) fn age(&self, now: Instant) -> Duration {
        let paused = self.since.map_or(Duration(0), |since| now.since(since));
        Duration(paused.0 + self.pauses.iter().map(|pause| pause.0).sum::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use base::{Duration, Instant};

    use super::{PART_BYTES, QUIET, SOCKETS_BYTES, Unread};

    /// Of one client, and the time in seconds.
    #[derive(Default)]
    struct Rig(Unread, u64);

    impl Rig {
        /// For so many seconds nothing is received, then so many bytes where there was room for `room`.
        fn pause(&mut self, seconds: u64, bytes: usize, room: usize) {
            let at = |seconds: u64| Instant(0) + Duration::from_secs(seconds);
            self.0.pause(at(self.1));
            self.1 += seconds;
            // However often it is looked at.
            self.0.pause(at(self.1));
            self.0.begin(room, at(self.1));
            self.0.end(bytes, at(self.1));
        }

        fn age(&self) -> u64 {
            self.0.age(Instant(0) + Duration::from_secs(self.1)).as_millis() / 1000
        }
    }

    #[test]
    fn pauses_add_up_while_what_is_received_fills_its_room() {
        let mut rig = Rig::default();
        for age in [2, 4, 6] {
            rig.pause(2, 4096, 4096);
            assert_eq!(rig.age(), age);
        }
        rig.pause(0, 100, 4096);
        assert_eq!(rig.age(), 6, "what came last is as old as what came before it");
        rig.pause(0, 100, 4096);
        assert_eq!(rig.age(), 6, "its own socket may have had more");
        rig.pause(0, 100, 4096);
        assert_eq!(rig.age(), 0, "both were empty");
        rig.pause(1, 4096, 4096);
        assert_eq!(rig.age(), 1);
        let now = Instant(0) + Duration::from_secs(rig.1);
        rig.0.begin(4096, now);
        rig.0.end(4096, now + QUIET + Duration(1));
        assert_eq!(rig.age(), 0, "nothing was there for long");
    }

    #[test]
    fn what_sockets_cannot_hold_is_not_as_old_as_what_came_before_it() {
        let mut rig = Rig::default();
        rig.pause(3, SOCKETS_BYTES, SOCKETS_BYTES);
        assert_eq!(rig.age(), 3);
        // A client whose socket is never empty, and that is read slowly.
        for _ in 0..100 {
            rig.pause(1, SOCKETS_BYTES / 2, SOCKETS_BYTES / 2);
            assert!(rig.age() <= 5, "{}", rig.age());
        }
    }

    /// A slow disk, and always more to be written: what is looked at lay here for as long as what the sockets hold takes, and no longer.
    #[test]
    fn what_is_received_slowly_is_as_old_as_what_sockets_hold_takes() {
        let mut rig = Rig::default();
        for _ in 0..1000 {
            rig.pause(1, 128 << 10, 128 << 10);
        }
        let [sockets, part] = [SOCKETS_BYTES, PART_BYTES].map(|bytes| (bytes >> 17) as u64);
        assert!((sockets..=sockets + part).contains(&rig.age()), "{} of {sockets}", rig.age());
    }
}

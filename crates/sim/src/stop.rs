//! Stopping in good order, as a node does it: its primary hands over, clients and peers are left, its shards empty their logs,
//! the disk is flushed, and the record says that nothing is left open there. The machine may be switched off then.
//!
//! Always: what takes too long ends as a crash does; a disk that failed is not closed.
//!
//! Not here: what a process makes of a disk that was closed (`replica`).

use crate::plan::FaultKind;
use crate::queue::{MILLI, Time};
use crate::world::{Event, World};
use replica::{Operation, ShardInput, ToShard};

/// How long it may take: as long, for leases of these lengths, as a node takes.
const LIMIT: Time = 1_000 * MILLI;
/// Between two looks. Longer than any message within a process is on its way.
const LOOK: Time = 6 * MILLI;

/// A stop under way.
pub(crate) struct Stopping {
    until: Time,
    /// Clients and peers are left.
    left: bool,
    /// The disk had nothing to do when it was looked at last.
    idle: bool,
    power: bool,
    /// After which the process starts again.
    length: Time,
}

impl World {
    /// Whether a node has a process that takes requests and connections.
    pub(crate) fn is_open(&self, node: usize) -> bool {
        self.nodes[node].process.is_some() && self.nodes[node].stopping.is_none()
    }

    /// The process of a node is told to stop, if it is one that can; it counts as a fault when it does.
    pub(crate) fn stop_in_order(&mut self, node: usize, power: bool, length: Time) -> bool {
        if !self.is_open(node) || self.nodes[node].paused {
            return false;
        }
        self.note(node, || "stops in good order".to_owned());
        let until = self.queue.now() + LIMIT;
        self.nodes[node].stopping =
            Some(Stopping { until, left: false, idle: false, power, length });
        if self.knows_itself_primary(node) {
            self.want(node, Operation::Demote);
        }
        let life = self.nodes[node].life;
        self.queue.after(LOOK, Event::Stop { node, life });
        true
    }

    fn knows_itself_primary(&self, node: usize) -> bool {
        let known = self.nodes[node].process.as_ref().map(|process| process.member.status());
        let primary = known.and_then(|status| status.configuration).and_then(|known| known.primary);
        primary == Some(self.nodes[node].id)
    }

    /// It looks how far it is.
    pub(crate) fn on_stop(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let hands_over = self.hands_over(node);
        let disk = self.nodes[node].disk.as_ref();
        let shards = self.nodes[node].process.iter().flat_map(|process| &process.shards);
        let busy = disk.is_some_and(crate::disk::Disk::is_busy)
            || shards.into_iter().any(|shard| !shard.is_disk_idle());
        let now = self.queue.now();
        let Some(stopping) = &mut self.nodes[node].stopping else { return };
        let late = stopping.until <= now;
        let (power, length) = (stopping.power, stopping.length);
        let rests = std::mem::replace(&mut stopping.idle, stopping.left && !busy) && !busy;
        if rests {
            self.close(node);
            return self.end(node, power, length);
        }
        if late && stopping.left {
            self.mark("sim: a stop in good order took too long");
            return self.end(node, power, length);
        }
        if !stopping.left && (late || !hands_over) {
            stopping.left = true;
            self.leave_all(node);
        }
        self.queue.after(LOOK, Event::Stop { node, life });
    }

    /// Whether this node is still to hand over, and enough voters are there to decide it.
    fn hands_over(&self, node: usize) -> bool {
        let demotes = |(of, wish): &(usize, String)| *of == node && wish == "Demote";
        let Some(process) = &self.nodes[node].process else { return false };
        let Some(known) = process.member.status().configuration else { return false };
        let is_here = |voter: &wire::MemberEntry| {
            let session = process.sessions.get(&crate::world::node_index(voter.node));
            voter.node == self.nodes[node].id
                || session.is_some_and(|&session| !self.sessions[session].broken)
        };
        let enough = known.voters().filter(|voter| is_here(voter)).count() >= known.majority()
            || known.options.quorum == wire::Quorum::Off;
        self.wishes.values().any(demotes) && enough
    }

    /// Its clients are gone, its connections end, and what nobody uses leaves the logs.
    fn leave_all(&mut self, node: usize) {
        self.depart(node);
        for session in self.sessions_of(node) {
            self.break_session(session, 5 * MILLI);
        }
        let life = self.nodes[node].life;
        for shard in 0..self.shards_of(node) {
            let at = self.way_to_shard(node, shard);
            let input = ShardInput::Member(ToShard::Cool);
            self.queue.at(at, Event::Shard { node, life, shard, input });
        }
    }

    /// The disk is flushed, and its record says that nothing is left open.
    fn close(&mut self, node: usize) {
        let errors = self.nodes[node].disk_errors;
        let fails = self.nodes[node].disk_failed
            || self.nodes[node].stalled_until > self.queue.now()
            || (errors > 0 && self.random.once_in(errors));
        let Some(disk) = &mut self.nodes[node].disk else { return };
        if fails {
            return self.mark("sim: a disk that fails is not closed");
        }
        let Some(record) = disk.close() else { return };
        self.record_is_stored(node, &record);
        self.nodes[node].closed = true;
        self.mark("sim: a disk is closed in good order");
    }

    fn end(&mut self, node: usize, power: bool, length: Time) {
        let kind = FaultKind::Stop { node, power }.name();
        let closed = self.nodes[node].closed;
        // Once all is healed nothing goes wrong any more, and who has ended starts at once.
        let power = power && !self.healed;
        if power && !closed && self.spared(1 << node, true) != 0 {
            self.count(kind);
            self.power_cut(1 << node, length);
            return;
        }
        if self.spared(1 << node, false) == 0 {
            // Whoever stops it thinks better of it.
            self.nodes[node].stopping = None;
            return;
        }
        self.count(kind);
        self.stop(node, power && closed, length);
    }
}

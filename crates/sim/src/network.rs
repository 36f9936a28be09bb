//! Sessions between nodes: in order per stream, with delay, lost as a whole.
//!
//! A session has one stream per shard and one for the members. When it breaks, each thread at each end
//! learns of it on its own; what was in flight may arrive until then, or be lost. A new session begins
//! at an end only when every thread there knows that the old one ended.
//!
//! Not here: what messages mean.

use crate::feature::Feature;
use crate::queue::{MICRO, MILLI, Time};
use crate::world::{Event, Frame, World, node_id};
use base::SessionId;
use replica::{MemberInput, ShardInput};
use wire::{MemberMessage, ShardMessage};

/// One direction between two nodes.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Number of faults that block it.
    pub(crate) blocked: u32,
    /// Counts blockings.
    pub(crate) block: u64,
    /// Nanoseconds more for each message, at most.
    pub(crate) extra: Time,
    /// How long shards at its end go on with what comes by a session that ended.
    pub(crate) drain: Time,
    /// The next message of this kind in this stream is held for so long: kind, stream, length.
    pub(crate) holds: Vec<(usize, usize, Time)>,
    /// What waits for the block to end.
    pub(crate) held: Vec<(usize, usize, usize, Frame)>,
}

/// One end of a session.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) life: u64,
    pub(crate) name: SessionId,
    /// Threads (shards, then the member) that know of it.
    pub(crate) up: Vec<bool>,
    /// Threads that know that it ended.
    pub(crate) down: Vec<bool>,
    /// When the last message on its way to each thread arrives.
    pub(crate) arrives: Vec<Time>,
    /// What came before the thread knew of the session.
    pub(crate) early: Vec<Vec<Frame>>,
    /// What arrives later is lost.
    pub(crate) cut: Vec<Time>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) ends: [End; 2],
    pub(crate) broken: bool,
}

macro_rules! kinds {
    ($($kind:literal,)*; $($also:literal,)*) => {
        /// Kinds of messages that a fault may name; one that is held holds its stream.
        pub(crate) const KINDS: &[&str] = &[$($kind),*];

        /// The marks of messages that were held: of these kinds, then of those that are held under the name of another.
        pub(crate) const HELD: &[&str] =
            &[$(concat!("sim: message held: ", $kind),)* $(concat!("sim: message held: ", $also)),*];
    };
}

kinds! {
    "hello",
    "prepare",
    "promise",
    "accept",
    "accepted",
    "refused",
    "learn",
    "learned",
    "heartbeat",
    "heartbeat answer",
    "release",
    "want primary",
    "hand over",
    "write",
    "received",
    "written",
    "retire",
    "settled",
    "clean",
    "flush",
    "flushed",
    "read",
    "data",
    "compare",
    "hash",
    "gather",
    "doubt",
    "forward",
    "forwarded",
    "stale",
    "remembers",
    "remember",
    "invalidate",
    ;
    // Each is held where the plan has one of those above held, which it comes beside. A name of its own there would give every seed
    // another plan.
    "heard",
    "diverged",
    "reserve",
    "reserved",
}

/// The kind of a message, as a place in `KINDS`.
fn kind_of(frame: &Frame) -> usize {
    let name = match frame {
        Frame::Member(message) => member_kind(message),
        Frame::Shard(message, _) => shard_kind(message),
    };
    KINDS.iter().position(|kind| *kind == name).expect("every kind is listed")
}

/// The mark of a message that is held.
fn held_mark(frame: &Frame) -> &'static str {
    let name = match frame {
        Frame::Member(MemberMessage::Heard { .. }) => "heard",
        Frame::Member(MemberMessage::Diverged { .. }) => "diverged",
        Frame::Member(MemberMessage::Reserve { .. }) => "reserve",
        Frame::Member(MemberMessage::Reserved { .. }) => "reserved",
        _ => return HELD[kind_of(frame)],
    };
    let is_its = |mark: &&&str| mark.strip_prefix("sim: message held: ") == Some(name);
    HELD.iter().find(is_its).expect("every kind is listed")
}

fn member_kind(message: &MemberMessage) -> &'static str {
    match message {
        MemberMessage::Hello { .. } => "hello",
        MemberMessage::Prepare { .. } => "prepare",
        // What is said before each of them.
        MemberMessage::Promise { .. } | MemberMessage::Heard { .. } => "promise",
        MemberMessage::Accept { .. } => "accept",
        MemberMessage::Accepted { .. } => "accepted",
        MemberMessage::Refused { .. } => "refused",
        MemberMessage::Learn { .. } => "learn",
        MemberMessage::Learned { .. } => "learned",
        MemberMessage::Heartbeat { .. } => "heartbeat",
        MemberMessage::HeartbeatAnswer { .. } => "heartbeat answer",
        MemberMessage::Release { .. } => "release",
        MemberMessage::WantPrimary => "want primary",
        MemberMessage::HandOver { .. } | MemberMessage::Diverged { .. } => "hand over",
        MemberMessage::Invalidate { .. } => "invalidate",
        MemberMessage::Reserve { .. } => "want primary",
        MemberMessage::Reserved { .. } => "hand over",
    }
}

fn shard_kind(message: &ShardMessage) -> &'static str {
    match message {
        ShardMessage::Write { .. } => "write",
        ShardMessage::Received { .. } => "received",
        ShardMessage::Written { .. } => "written",
        ShardMessage::Retire { .. } => "retire",
        ShardMessage::Settled { .. } => "settled",
        ShardMessage::Clean { .. } => "clean",
        ShardMessage::Flush { .. } => "flush",
        ShardMessage::Flushed { .. } => "flushed",
        ShardMessage::Read { .. } => "read",
        ShardMessage::Data { .. } => "data",
        ShardMessage::Compare { .. } => "compare",
        ShardMessage::Hash { .. } => "hash",
        ShardMessage::Gather { .. } => "gather",
        ShardMessage::Doubt { .. } => "doubt",
        ShardMessage::Forward { .. } => "forward",
        ShardMessage::Forwarded { .. } => "forwarded",
        ShardMessage::Stale { .. } => "stale",
        ShardMessage::Remembers { .. } => "remembers",
        ShardMessage::Remember { .. } => "remember",
    }
}

impl World {
    /// Two nodes try to connect, and will try again.
    pub(crate) fn on_connect(&mut self, one: usize, other: usize) {
        let again =
            if self.healed { 20 * MILLI } else { 10 * MILLI + self.random.below(300 * MILLI) };
        self.queue.after(again, Event::Connect { one, other });
        let able = [one, other].iter().all(|&node| self.is_open(node) && !self.nodes[node].paused);
        let open = self.links[one][other].blocked == 0 && self.links[other][one].blocked == 0;
        if !able || !open {
            return;
        }
        for (node, peer) in [(one, other), (other, one)] {
            // The end of a session may crash a node.
            let Some(process) = self.nodes[node].process.as_ref() else { return };
            if let Some(&session) = process.sessions.get(&peer) {
                if !self.sessions[session].broken {
                    return;
                }
                self.finish_down(session, node);
            }
        }
        if [one, other].iter().all(|&node| self.nodes[node].process.is_some()) {
            self.open_session(one, other);
        }
    }

    /// Every thread of `node` learns now that the session ended; or only the first does, and the others when they are told.
    /// Until then they go on with what comes by it, beside the next session of the first.
    fn finish_down(&mut self, session: usize, node: usize) {
        let end = usize::from(self.sessions[session].ends[1].node == node);
        let member = usize::from(self.plan.shards);
        let drain = self.links[self.peer_of(session, end)][node].drain;
        if drain > 0 {
            // Each shard is told by `break_session`. What else the member tells it waits until then.
            let until = self.queue.now() + drain;
            let process = self.nodes[node].process.as_mut().expect("it has a session");
            process.to_shard.iter_mut().for_each(|last| *last = (*last).max(until));
            self.on_down(session, end, member);
            return;
        }
        if !self.plan.features.contains(&Feature::Drain) {
            for stream in 0..=member {
                self.on_down(session, end, stream);
            }
            return;
        }
        for shard in 0..self.plan.shards {
            let stream = usize::from(shard);
            let down = self.way_to_shard(node, shard);
            let drains = self.random.once_in(2);
            let cut = &mut self.sessions[session].ends[end].cut[stream];
            *cut = if drains { down } else { *cut };
            self.queue.at(down, Event::Down { session, end, stream });
        }
        self.mark("sim: threads learn one after the other that a session ended");
        self.on_down(session, end, member);
    }

    fn open_session(&mut self, one: usize, other: usize) {
        let index = self.sessions.len();
        let streams = usize::from(self.plan.shards) + 1;
        let ends = [(one, other), (other, one)].map(|(node, peer)| {
            let life = self.nodes[node].life;
            let process = self.nodes[node].process.as_mut().expect("both ends have a process");
            process.next_session += 1;
            process.sessions.insert(peer, index);
            End {
                node,
                life,
                name: SessionId(process.next_session),
                up: vec![false; streams],
                down: vec![false; streams],
                arrives: vec![0; streams],
                early: (0..streams).map(|_| Vec::new()).collect(),
                cut: vec![Time::MAX; streams],
            }
        });
        self.sessions.push(Session { ends, broken: false });
        self.note(one, || format!("session {index} with n{}", node_id(other)));
        for end in 0..2 {
            let delay = self.random.below(MILLI);
            self.queue.after(delay, Event::Up { session: index, end });
        }
    }

    /// The member of an end learns of its session, and tells its shards on their ways.
    pub(crate) fn on_up(&mut self, session: usize, end: usize) {
        let (node, life) =
            (self.sessions[session].ends[end].node, self.sessions[session].ends[end].life);
        let member = usize::from(self.plan.shards);
        if self.nodes[node].life != life || self.sessions[session].ends[end].down[member] {
            return;
        }
        let shards = self.shards_of(node).min(self.shards_of(self.peer_of(session, end)));
        for shard in 0..shards {
            let at = self.way_to_shard(node, shard);
            self.queue.at(at, Event::ShardUp { session, end, shard });
        }
        self.sessions[session].ends[end].up[member] = true;
        let (peer, name) = (self.peer_of(session, end), self.sessions[session].ends[end].name);
        self.step_member(node, life, MemberInput::PeerUp { peer: node_id(peer), session: name });
        self.deliver_early(session, end, member);
    }

    pub(crate) fn on_shard_up(&mut self, session: usize, end: usize, shard: u16) {
        let (node, life) =
            (self.sessions[session].ends[end].node, self.sessions[session].ends[end].life);
        let stream = usize::from(shard);
        if self.nodes[node].life != life || self.sessions[session].ends[end].down[stream] {
            return;
        }
        self.sessions[session].ends[end].up[stream] = true;
        let (peer, name) = (self.peer_of(session, end), self.sessions[session].ends[end].name);
        let input = ShardInput::PeerUp { peer: node_id(peer), session: name };
        self.step_shard(node, life, shard, input);
        self.deliver_early(session, end, stream);
    }

    fn deliver_early(&mut self, session: usize, end: usize, stream: usize) {
        for frame in std::mem::take(&mut self.sessions[session].ends[end].early[stream]) {
            self.on_frame(session, end, stream, frame);
        }
    }

    fn peer_of(&self, session: usize, end: usize) -> usize {
        self.sessions[session].ends[1 - end].node
    }

    /// A thread of an end learns that the session ended.
    pub(crate) fn on_down(&mut self, session: usize, end: usize, stream: usize) {
        let peer = node_id(self.peer_of(session, end));
        let side = &mut self.sessions[session].ends[end];
        if side.down[stream] {
            return;
        }
        side.down[stream] = true;
        let (node, life, name, up) = (side.node, side.life, side.name, side.up[stream]);
        if self.nodes[node].life != life || !up {
            return;
        }
        if stream == usize::from(self.plan.shards) {
            self.step_member(node, life, MemberInput::PeerDown { peer, session: name });
        } else {
            let shard = u16::try_from(stream).expect("few shards");
            self.step_shard(node, life, shard, ShardInput::PeerDown { peer, session: name });
        }
    }

    /// Sends from one end of a session; `end` is the sender's.
    pub(crate) fn send(&mut self, session: usize, end: usize, stream: usize, frame: Frame) {
        let held = &self.sessions[session];
        if held.broken || held.ends[end].down[stream] {
            return;
        }
        let (from, to) = (held.ends[end].node, held.ends[1 - end].node);
        if self.links[from][to].blocked > 0 {
            self.links[from][to].held.push((session, 1 - end, stream, frame));
            return;
        }
        self.travel(session, 1 - end, stream, frame);
    }

    /// A message is on its way to `end`.
    fn travel(&mut self, session: usize, end: usize, stream: usize, frame: Frame) {
        let to = self.sessions[session].ends[end].node;
        let from = self.peer_of(session, end);
        let extra = self.links[from][to].extra;
        let mut delay = 10 * MICRO + self.random.below(100 * MICRO);
        if self.random.once_in(50) {
            delay += self.random.below(5 * MILLI);
        }
        if extra > 0 {
            delay += self.random.below(extra);
        }
        delay += self.held_for(from, to, stream, &frame);
        let now = self.queue.now();
        let arrives = &mut self.sessions[session].ends[end].arrives[stream];
        *arrives = (*arrives).max(now + delay);
        let at = *arrives;
        self.queue.at(at, Event::Frame { session, end, stream, frame });
    }

    /// How long a fault holds this message; it ends with that.
    fn held_for(&mut self, from: usize, to: usize, stream: usize, frame: &Frame) -> Time {
        let link = &mut self.links[from][to];
        if self.holds.is_empty() && link.holds.is_empty() {
            return 0;
        }
        let kind = kind_of(frame);
        let of_stream = link.holds.iter().position(|held| (held.0, held.1) == (kind, stream));
        if let Some(at) = of_stream {
            return link.holds.swap_remove(at).2;
        }
        // What is said before a promise is held, or the promise itself.
        let is_before = matches!(frame, Frame::Member(MemberMessage::Heard { .. }));
        let Some(at) = self.holds.iter().position(|&(source, target, message, length)| {
            (source, target, message) == (from, to, kind)
                && !(is_before && (length / MILLI).is_multiple_of(2))
        }) else {
            return 0;
        };
        let (_, _, _, length) = self.holds.swap_remove(at);
        self.note(from, || format!("{} to n{} is held", KINDS[kind], node_id(to)));
        self.mark(held_mark(frame));
        self.count("message held");
        length
    }

    /// A second connection is made: each end ends the first one before it uses the second.
    pub(crate) fn reconnect(&mut self, one: usize, other: usize) -> bool {
        let able = |node: usize| self.is_open(node) && !self.nodes[node].paused;
        let open = self.links[one][other].blocked == 0 && self.links[other][one].blocked == 0;
        if one == other || !able(one) || !able(other) || !open {
            return false;
        }
        self.mark("sim: second connection");
        self.break_between(one, other, MILLI);
        for (node, peer) in [(one, other), (other, one)] {
            let Some(process) = self.nodes[node].process.as_ref() else { return true };
            if let Some(&session) = process.sessions.get(&peer) {
                self.finish_down(session, node);
            }
        }
        if [one, other].iter().all(|&node| self.nodes[node].process.is_some()) {
            self.open_session(one, other);
        }
        true
    }

    /// A message arrives at an end.
    pub(crate) fn on_frame(&mut self, session: usize, end: usize, stream: usize, frame: Frame) {
        let now = self.queue.now();
        let peer = node_id(self.peer_of(session, end));
        let side = &mut self.sessions[session].ends[end];
        if side.down[stream] || now >= side.cut[stream] || self.nodes[side.node].life != side.life {
            return;
        }
        if !side.up[stream] {
            side.early[stream].push(frame);
            return;
        }
        let (node, life, name) = (side.node, side.life, side.name);
        match frame {
            Frame::Member(message) => {
                self.step_member(node, life, MemberInput::Frame { peer, session: name, message });
            }
            Frame::Shard(message, content) => {
                let shard = u16::try_from(stream).expect("few shards");
                let process = self.nodes[node].process.as_mut().expect("its life goes on");
                let buffer = content.map(|content| process.buffers.make(content));
                let input = ShardInput::Frame { peer, session: name, message, buffer };
                self.step_shard(node, life, shard, input);
            }
        }
    }

    /// All sessions that the process of a node has, or had last with a peer.
    pub(crate) fn sessions_of(&self, node: usize) -> Vec<usize> {
        let process = self.nodes[node].process.as_ref();
        process.map_or(Vec::new(), |process| process.sessions.values().copied().collect())
    }

    /// The session breaks: each end that lives learns of it within `notice`.
    pub(crate) fn break_session(&mut self, session: usize, notice: Time) {
        if self.sessions[session].broken {
            return;
        }
        self.sessions[session].broken = true;
        let now = self.queue.now();
        let (one, other) =
            (self.sessions[session].ends[0].node, self.sessions[session].ends[1].node);
        self.note(one, || format!("session {session} with n{} breaks", node_id(other)));
        for end in 0..2 {
            let common = self.random.below(notice.max(1));
            let node = self.sessions[session].ends[end].node;
            let drain = self.links[self.peer_of(session, end)][node].drain;
            for stream in 0..=usize::from(self.plan.shards) {
                if drain > 0 && stream < usize::from(self.plan.shards) {
                    let until = now + drain;
                    self.sessions[session].ends[end].cut[stream] = until;
                    self.queue.at(until, Event::Down { session, end, stream });
                    continue;
                }
                let down = now + common + self.random.below(MILLI);
                let cut = if self.random.once_in(2) {
                    now
                } else {
                    now + self.random.below(down - now + 1)
                };
                self.sessions[session].ends[end].cut[stream] = cut;
                self.queue.at(down, Event::Down { session, end, stream });
            }
        }
    }

    /// Breaks the session between two nodes, if there is one.
    pub(crate) fn break_between(&mut self, one: usize, other: usize, notice: Time) -> bool {
        let process = self.nodes[one].process.as_ref();
        let session = process.and_then(|process| process.sessions.get(&other)).copied();
        if let Some(session) = session {
            self.break_session(session, notice);
        }
        session.is_some()
    }

    /// Blocks one direction.
    pub(crate) fn block(&mut self, from: usize, to: usize) {
        let link = &mut self.links[from][to];
        link.blocked += 1;
        link.block += 1;
        let block = link.block;
        let timeout = 100 * MILLI + self.random.below(1500 * MILLI);
        self.queue.after(timeout, Event::LinkTimeout { from, to, block });
    }

    /// Ends one block of a direction; what was held goes on.
    pub(crate) fn unblock(&mut self, from: usize, to: usize) {
        let link = &mut self.links[from][to];
        link.blocked = link.blocked.saturating_sub(1);
        if link.blocked == 0 {
            for (session, end, stream, frame) in std::mem::take(&mut link.held) {
                if !self.sessions[session].broken {
                    self.travel(session, end, stream, frame);
                }
            }
        }
    }

    pub(crate) fn on_link_timeout(&mut self, from: usize, to: usize, block: u64) {
        let link = &mut self.links[from][to];
        if link.blocked > 0 && link.block == block {
            link.held.clear();
            self.break_between(from, to, 200 * MILLI);
        } else if link.blocked > 0 {
            let block = link.block;
            self.queue.after(500 * MILLI, Event::LinkTimeout { from, to, block });
        }
    }
}

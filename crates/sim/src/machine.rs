//! Steps of members and shards, and carrying out what they ask for, in order.
//!
//! Always: a fault that waits for an output stops the process right there; what it had still to say is
//! never said.
//!
//! Not here: sessions (`network`), what a disk does (`disk`), clients (`client`).

use crate::buffer::Content;
use crate::feature::Feature;
use crate::queue::{MICRO, MILLI, Time};
use crate::world::{Event, Frame, World};
use base::{BufferId, Incarnation, RequestId, VoterId};
use replica::{
    DiskAnswer, DiskOp, DiskRequest, FromShard, MemberInput, MemberOutput, OperationError,
    ShardInput, ShardOutput, ToShard,
};
use std::rc::Rc;

/// A machine that asks to be woken this often at one instant never gets on.
const WAKES_AT_ONCE: u64 = 1_000;

/// A value in few words, for traces and failures: no pages, and no more than 3 000 bytes.
pub(crate) fn brief(value: &dyn std::fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    while let Some(start) = text.find("bytes: [") {
        let end = text[start..].find(']').map_or(text.len(), |length| start + length + 1);
        text.replace_range(start..end, "page");
    }
    if text.len() > 3_000 {
        let cut = (0..=3_000).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    text
}

impl World {
    /// When a message from the member to this shard arrives, if sent now.
    pub(crate) fn way_to_shard(&mut self, node: usize, shard: u16) -> Time {
        let at = self.queue.now() + self.hop();
        let process = self.nodes[node].process.as_mut().expect("only a process sends");
        let last = &mut process.to_shard[usize::from(shard)];
        *last = (*last).max(at);
        *last
    }

    fn way_to_member(&mut self, node: usize, shard: u16) -> Time {
        let at = self.queue.now() + self.hop();
        let process = self.nodes[node].process.as_mut().expect("only a process sends");
        let last = &mut process.to_member[usize::from(shard)];
        *last = (*last).max(at);
        *last
    }

    /// One step of a member.
    pub(crate) fn step_member(&mut self, node: usize, life: u64, mut input: MemberInput) {
        if self.nodes[node].life != life || self.failure.is_some() {
            return;
        }
        // Two counts take a hop each, and one may overtake the other. In a node they are told in order.
        if let MemberInput::Clients { count } = &mut input {
            *count = self.client_count[node];
        }
        if self.trace {
            self.note(node, || format!("M < {}", brief(&input)));
        }
        if let MemberInput::Clients { count } = input {
            self.side_counts(node, count);
        }
        let now = self.clock(node);
        let mut out = Vec::new();
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        process.member.step(now, input, &mut out);
        let wake = process.member.wake_at();
        self.mix(out.len() as u64);
        for output in out {
            if self.nodes[node].life != life || !self.count_output(node, life) {
                return;
            }
            self.member_output(node, life, output);
        }
        self.wish(node, life, usize::from(self.plan.shards), wake);
    }

    /// One step of a shard.
    pub(crate) fn step_shard(&mut self, node: usize, life: u64, shard: u16, input: ShardInput) {
        if self.nodes[node].life != life || self.failure.is_some() {
            return;
        }
        if self.trace {
            self.note(node, || format!("S{shard} < {}", brief(&input)));
        }
        if self.sides.is_some() {
            self.side_input(node, shard, &input);
        }
        let now = self.clock(node);
        let mut out = std::mem::take(&mut self.shard_out);
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        let machine = &mut process.shards[usize::from(shard)];
        machine.step(now, input, &mut out);
        let wake = machine.wake_at();
        self.mix(out.len() as u64);
        self.look_at_log(node, shard);
        self.shard_outputs(node, life, shard, &mut out);
        out.clear();
        self.shard_out = out;
        if self.nodes[node].life == life {
            self.wish(node, life, usize::from(shard), wake);
        }
    }

    pub(crate) fn shard_outputs(
        &mut self,
        node: usize,
        life: u64,
        shard: u16,
        out: &mut Vec<ShardOutput>,
    ) {
        for output in out.drain(..) {
            if self.nodes[node].life != life || !self.count_output(node, life) {
                return;
            }
            self.shard_output(node, life, shard, output);
        }
    }

    /// Counts an output; false if a fault that waited for it ended the process.
    fn count_output(&mut self, node: usize, life: u64) -> bool {
        self.outputs += 1;
        if let Some(faults) = self.at_output.remove(&self.outputs) {
            for fault in faults {
                self.on_fault_of(fault, Some(node));
            }
        }
        self.nodes[node].life == life
    }

    /// A machine tells when it wants to be woken.
    pub(crate) fn wish(
        &mut self,
        node: usize,
        life: u64,
        stream: usize,
        wake: Option<base::Instant>,
    ) {
        if self.nodes[node].life != life {
            return;
        }
        let at = wake.map(|instant| self.true_time(node, instant).max(self.queue.now()));
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        if process.wakes[stream] == at {
            return;
        }
        process.wakes[stream] = at;
        if let Some(at) = at {
            self.queue.at(at, Event::Wake { node, life, stream, at });
        }
    }

    pub(crate) fn on_wake(&mut self, node: usize, life: u64, stream: usize, at: Time) {
        if self.nodes[node].life != life {
            return;
        }
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        if process.wakes[stream] != Some(at) {
            return;
        }
        process.wakes[stream] = None;
        self.count_wake(at);
        if stream == usize::from(self.plan.shards) {
            self.step_member(node, life, MemberInput::Wake);
        } else {
            let shard = u16::try_from(stream).expect("few shards");
            self.step_shard(node, life, shard, ShardInput::Wake);
        }
    }

    fn count_wake(&mut self, at: Time) {
        if self.oracle.woken.0 == at {
            self.oracle.woken.1 += 1;
            if self.oracle.woken.1 > WAKES_AT_ONCE {
                self.fail("wakes", "a machine asks to be woken again and again".to_owned());
            }
        } else {
            self.oracle.woken = (at, 0);
        }
    }

    fn member_output(&mut self, node: usize, life: u64, output: MemberOutput) {
        if self.trace && !matches!(output, MemberOutput::Mark(_)) {
            self.note(node, || format!("M > {}", brief(&output)));
        }
        match output {
            MemberOutput::Store { number, record } => {
                self.side_stores(&record);
                if let Some((_, value)) = &record.accepted {
                    self.side_proposes(node, value);
                }
                self.store(node, life, number, record);
            }
            MemberOutput::Send { peer, session, message } => {
                if let wire::MemberMessage::Accept { configuration, .. } = &message {
                    self.proposed_now(configuration);
                    self.side_proposes(node, configuration);
                }
                if let Some((session, end)) = self.session(node, peer, session) {
                    let stream = usize::from(self.plan.shards);
                    self.send(session, end, stream, Frame::Member(message));
                }
            }
            MemberOutput::Shards(message) => self.tell_shards(node, life, &message),
            MemberOutput::Done { id, result } => {
                self.has_reserved(id, result);
                if let Some((_, wish)) = self.wishes.remove(&id) {
                    self.note(node, || format!("operation {wish} ended: {result:?}"));
                    self.ended = Some(result);
                    if wish.starts_with("Resolve") {
                        self.has_resolved(result);
                    }
                    // "It may have come about" is no refusal.
                    let refused = result.is_err_and(|error| error != OperationError::MayHaveForked);
                    self.oracle.force_refused |= wish == "Force" && refused;
                    self.mark(if result.is_ok() {
                        "sim: wish granted"
                    } else {
                        "sim: wish refused"
                    });
                }
            }
            MemberOutput::Notice(replica::door::Notice::Parted { peer, mine, theirs }) => {
                self.sides_met(node, peer, mine, theirs);
            }
            MemberOutput::Notice(_) => {}
            MemberOutput::Mark(mark) => {
                self.mark(mark);
                match mark {
                    "member: own side discarded" => self.side_decides(node),
                    "member: leaves a side on which no copy is" => self.side_is_left(node),
                    _ => {}
                }
            }
        }
    }

    fn store(&mut self, node: usize, life: u64, number: u64, record: Box<replica::disk::Record>) {
        let Some(disk) = &mut self.nodes[node].disk else {
            self.fail("doors", format!("node {node} has no disk and stores a record"));
            return;
        };
        if !disk.submit_record(record) {
            self.fail("doors", format!("node {node} stores a record while another is in flight"));
            return;
        }
        let mut at = self.queue.now() + 20 * MICRO + self.random.below(MILLI);
        at = at.max(self.nodes[node].stalled_until);
        self.queue.at(at, Event::Record { node, life, number });
    }

    pub(crate) fn on_record(&mut self, node: usize, life: u64, number: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let errors = self.nodes[node].disk_errors;
        let ok = errors == 0 || !self.random.once_in(errors);
        let disk = self.nodes[node].disk.as_mut().expect("a record is written to a disk");
        if ok {
            if let Some(record) = disk.finish_record(true) {
                self.record_is_stored(node, &record);
            }
        } else {
            disk.fail_record(&mut self.random);
            self.nodes[node].disk_failed = true;
            self.nodes[node].disk_was_bad = true;
            self.strike(node, false);
        }
        self.step_member(node, life, MemberInput::Stored { number, ok });
    }

    /// A record is on the disk of a node.
    pub(crate) fn record_is_stored(&mut self, node: usize, record: &replica::disk::Record) {
        let held = &mut self.nodes[node];
        held.incarnation = record.incarnation;
        held.voter = record.voter;
        held.restored = match held.restored {
            Some(old) if old == VoterId(0) || old == record.voter => Some(record.voter),
            _ => None,
        };
        held.spoiled &= held.restored.is_some();
        self.stored(node, record);
    }

    fn tell_shards(&mut self, node: usize, life: u64, message: &ToShard) {
        if let ToShard::Install { configuration, .. } = message {
            self.note(node, || format!("installs {}", crate::oracle::short(configuration)));
            self.installed(node, configuration);
            self.nodes[node].installed = Some((**configuration).clone());
            self.nodes[node].installed_in = self.step;
        }
        for shard in 0..self.shards_of(node) {
            let at = self.way_to_shard(node, shard);
            let input = ShardInput::Member(message.clone());
            self.queue.at(at, Event::Shard { node, life, shard, input });
        }
    }

    fn shard_output(&mut self, node: usize, life: u64, shard: u16, output: ShardOutput) {
        if self.trace && !matches!(output, ShardOutput::Mark(_) | ShardOutput::Release { .. }) {
            self.note(node, || format!("S{shard} > {}", brief(&output)));
        }
        match output {
            ShardOutput::Disk { op, request } => self.disk_request(node, life, shard, op, request),
            ShardOutput::Send { peer, session, message, buffer } => {
                if let wire::ShardMessage::Forwarded { result: Some(Ok(())), .. } = message {
                    self.check_follows(node, shard, peer, session);
                    self.side_says_done(node, shard);
                }
                if let wire::ShardMessage::Forwarded { id, result: Some(_), .. } = message {
                    self.side_forwards(node, shard, peer, id);
                }
                let Some(content) = self.payload(node, buffer, "sent") else { return };
                self.see_cut(node, &message, content.as_ref());
                if let Some((session, end)) = self.session(node, peer, session) {
                    self.send(session, end, usize::from(shard), Frame::Shard(message, content));
                }
            }
            ShardOutput::Answer { id, result, buffer } => {
                let Some(content) = self.payload(node, buffer, "answered") else { return };
                if result.is_ok() {
                    self.side_answers(node, shard);
                }
                self.on_answer(node, id, result, content);
            }
            ShardOutput::Release { buffer } => self.release(node, buffer),
            ShardOutput::Member(message) => {
                if matches!(message, FromShard::DiskFailed) {
                    self.mark("sim: disk failed");
                    self.nodes[node].disk_failed = true;
                }
                let at = self.way_to_member(node, shard);
                self.queue.at(at, Event::FromShard { node, life, shard, message });
            }
            ShardOutput::Mark(mark) => {
                self.mark(mark);
                if mark == "requests of a history that was given up fail" {
                    self.nodes[node].left_in = self.step;
                }
            }
        }
    }

    /// The bytes of a buffer that a shard names; `None` after a failure.
    #[expect(clippy::option_option, reason = "no buffer is not the same as an unknown one")]
    fn payload(
        &mut self,
        node: usize,
        buffer: Option<BufferId>,
        what: &str,
    ) -> Option<Option<Content>> {
        let Some(buffer) = buffer else { return Some(None) };
        let process = self.nodes[node].process.as_ref().expect("a life has a process");
        let content = process.buffers.content(buffer);
        if content.is_none() {
            self.fail("buffers", format!("node {node}: buffer {buffer} is {what} and not held"));
            return None;
        }
        Some(content)
    }

    fn release(&mut self, node: usize, buffer: BufferId) {
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        if process.written.contains_key(&buffer) {
            self.fail("buffers", format!("node {node}: buffer {buffer} is released while written"));
        } else if !process.buffers.release(buffer) {
            self.fail("buffers", format!("node {node}: buffer {buffer} is released and not held"));
        }
    }

    fn disk_request(
        &mut self,
        node: usize,
        life: u64,
        shard: u16,
        op: DiskOp,
        request: DiskRequest,
    ) {
        let mut content = None;
        if let DiskRequest::Write { buffer, .. } = &request {
            let Some(found) = self.payload(node, Some(*buffer), "written") else { return };
            content = found;
            let process = self.nodes[node].process.as_mut().expect("a life has a process");
            *process.written.entry(*buffer).or_default() += 1;
        }
        let Some(disk) = &mut self.nodes[node].disk else {
            self.fail("doors", format!("node {node} has no disk and is asked for {request:?}"));
            return;
        };
        let at_once = matches!(request, DiskRequest::Meta { .. })
            && self.plan.features.contains(&Feature::Pmem)
            && self.random.once_in(2);
        let time = match &request {
            _ if at_once => self.random.below(MICRO),
            DiskRequest::Meta { .. } | DiskRequest::Flush | DiskRequest::Seal { .. } => {
                50 * MICRO + self.random.below(2 * MILLI)
            }
            DiskRequest::Read { .. }
            | DiskRequest::Write { .. }
            | DiskRequest::Zero { .. }
            | DiskRequest::Hash { .. } => 10 * MICRO + self.random.below(MILLI),
        };
        let late = if self.random.once_in(100) { self.random.below(30 * MILLI) } else { 0 };
        let journals = self.plan.features.contains(&Feature::Journal)
            && matches!(request, DiskRequest::Write { .. } | DiskRequest::Zero { .. });
        // What is in the journal is put in its place when there is time.
        let place = if journals { self.random.below(20 * MILLI) } else { 0 };
        match disk.submit(shard, op, request, content) {
            Ok(id) => {
                let at = (self.queue.now() + time + late).max(self.nodes[node].stalled_until);
                if journals && self.random.once_in(2) {
                    self.queue.at(at, Event::Journal { node, life, id });
                }
                self.queue.at(at + place, Event::Disk { node, life, id });
            }
            Err(text) => self.fail("disk order", format!("node {node} shard {shard}: {text}")),
        }
    }

    /// A write is durable before it is in its place.
    pub(crate) fn on_journal(&mut self, node: usize, life: u64, id: u64) {
        if self.nodes[node].life != life || self.nodes[node].stalled_until > self.queue.now() {
            return;
        }
        let disk = self.nodes[node].disk.as_mut().expect("a request goes to a disk");
        let Some((shard, op)) = disk.journal(id) else { return };
        let answer = DiskAnswer::Durable;
        self.step_shard(node, life, shard, ShardInput::Disk { op, answer });
    }

    pub(crate) fn on_disk(&mut self, node: usize, life: u64, id: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let until = self.nodes[node].stalled_until;
        if until > self.queue.now() {
            self.strike(node, false);
            self.queue.at(until, Event::Disk { node, life, id });
            return;
        }
        let errors = self.nodes[node].disk_errors;
        let full = self.nodes[node].disk_full;
        let disk = self.nodes[node].disk.as_mut().expect("a request goes to a disk");
        let full = full && disk.needs_room(id);
        let fails = full || (errors > 0 && self.random.once_in(errors));
        let fails = fails && !disk.is_journaled(id);
        let bad = if fails { None } else { self.goes_bad(node, id) };
        if fails {
            self.strike(node, false);
        }
        self.nodes[node].disk_was_bad |= fails || bad.is_some();
        let disk = self.nodes[node].disk.as_mut().expect("a request goes to a disk");
        let (entry, answer, data) = if fails {
            let Some(entry) = disk.fail(id, &mut self.random) else { return };
            (entry, DiskAnswer::Failed, None)
        } else if let Some(astray) = bad {
            let Some(entry) = disk.lose(id, astray) else { return };
            (entry, DiskAnswer::Done, None)
        } else {
            let Some((entry, outcome)) = disk.finish(id) else { return };
            match outcome {
                crate::disk::Outcome::Plain(answer) => (entry, answer, None),
                crate::disk::Outcome::Data(data) => (entry, DiskAnswer::Data(None), data),
            }
        };
        self.note_lacks(node, &entry.request, fails);
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        if let DiskRequest::Write { buffer, .. } = &entry.request
            && let Some(count) = process.written.get_mut(buffer)
        {
            *count -= 1;
            if *count == 0 {
                process.written.remove(buffer);
            }
        }
        let answer = match (answer, data) {
            (DiskAnswer::Data(_), Some(data)) => {
                DiskAnswer::Data(Some(process.buffers.make(Rc::clone(&data))))
            }
            (answer, _) => answer,
        };
        self.step_shard(node, life, entry.shard, ShardInput::Disk { op: entry.op, answer });
    }

    pub(crate) fn on_request(
        &mut self,
        node: usize,
        life: u64,
        shard: u16,
        id: RequestId,
        mut request: base::Request,
        content: Option<Content>,
    ) {
        if self.nodes[node].life != life {
            return;
        }
        let process = self.nodes[node].process.as_mut().expect("a life has a process");
        request.buffer = content.map(|content| process.buffers.make(content));
        self.step_shard(node, life, shard, ShardInput::Request { id, request });
    }

    /// The process of a node dies.
    pub(crate) fn kill(&mut self, node: usize, power: bool) {
        self.strike(node, false);
        for session in self.sessions_of(node) {
            let notice = if self.random.once_in(3) { 500 * MILLI } else { 5 * MILLI };
            self.break_session(session, notice);
        }
        if !power {
            self.lose_unflushed(node, 0);
        }
        let volatile = !self.plan.stable_disks;
        let random = &mut self.random;
        let held = &mut self.nodes[node];
        held.life += 1;
        held.process = None;
        held.paused = false;
        held.stopping = None;
        let closed = std::mem::take(&mut held.closed);
        held.deferred.clear();
        if let Some(disk) = &mut held.disk {
            if power {
                disk.power_cut(random);
            } else {
                disk.crash(random);
            }
        }
        // With protocol B, what was in memory only counted.
        let record = held.disk.as_ref().and_then(crate::disk::Disk::record);
        if record.is_some_and(|record| record.in_memory) && !closed {
            held.incarnation = Incarnation(0);
        }
        if power {
            held.boot = u128::from(random.id());
            held.clock_start = 1_000_000_000 + random.below(1_000_000_000_000);
            if volatile && !closed {
                held.incarnation = Incarnation(0);
            }
        }
        self.wishes.retain(|_, (of, _)| *of != node);
        self.abandon(node);
        if self.plan.options.protocol == wire::Protocol::B {
            self.look_for_loss();
        }
        self.side_died(node);
        self.note(node, || if power { "loses power" } else { "dies" }.to_owned());
    }
}

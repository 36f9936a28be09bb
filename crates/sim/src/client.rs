//! Clients: what they ask for, and what they make of the answers.
//!
//! Every write has its own token. A client's requests die with its node.

use crate::buffer::Content;
use crate::feature::Feature;
use crate::history::{Effect, OpIndex, Operation, Token};
use crate::queue::{MICRO, MILLI, Time};
use crate::world::{Event, Open, World};
use base::{AnswerError, Op, Request, RequestId, Span, VolumeId};
use replica::MemberInput;
use std::collections::BTreeSet;
use std::ops::Range;

/// Between the names of one volume in the history, before and after a growth.
pub(crate) const GROWTH_NAMES: u16 = 100;

impl World {
    /// A client may ask for something, and comes again.
    pub(crate) fn on_client(&mut self, client: usize) {
        let node = self.plan.clients[client];
        let think = self.random.below(self.plan.think.max(MILLI));
        let enough = self.asked >= self.plan.requests;
        if enough && (!self.healed || self.finals) {
            if self.open_of_client[client] == 0 && self.random.once_in(4) {
                self.leave_idle(node);
            }
            self.queue.after(think.max(50 * MILLI), Event::Client { client });
            return;
        }
        self.queue.after(think, Event::Client { client });
        if self.sides.as_ref().is_some_and(|sides| sides.leaving.contains(&node)) {
            if self.open_of_client[client] == 0 {
                self.leave_idle(node);
            }
            return;
        }
        if !self.is_open(node) || enough {
            return;
        }
        if self.open_of_client[client] == 0 && self.random.once_in(60) {
            self.leave_idle(node);
            return;
        }
        self.count_clients(node, 1);
        if self.may_change_path(client) && self.random.once_in(8) {
            self.change_path(client);
        }
        let burst = 1 + self.random.below(3);
        for _ in 0..burst {
            if self.open_of_client[client] < self.plan.depth {
                self.ask(client);
            }
        }
    }

    /// A client that waits for nothing leaves its node, which has none then, unless it is another's way too, and that one waits.
    fn leave_idle(&mut self, node: usize) {
        if !self.open.values().any(|open| open.node == node) {
            self.count_clients(node, 0);
        }
    }

    /// Tells the member how many clients its node has, if that changed.
    pub(crate) fn count_clients(&mut self, node: usize, count: u32) {
        if self.nodes[node].process.is_none() || self.client_count[node] == count {
            return;
        }
        self.client_count[node] = count;
        let life = self.nodes[node].life;
        let delay = self.hop();
        self.queue
            .after(delay, Event::Member { node, life, input: MemberInput::Clients { count } });
    }

    fn ask(&mut self, client: usize) {
        self.asked += 1;
        let (volume, span) = self.draw_span();
        let fua = self.random.once_in(8);
        let token = self.fresh_token();
        match self.random.below(16) {
            0..=5 => self.call(client, volume, span, Effect::Read(Vec::new()), false),
            6 => self.flush(client, volume),
            7 => self.call(client, volume, span, Effect::Write(0), fua),
            _ => self.call(client, volume, span, Effect::Write(token), fua),
        }
    }

    /// A number for a write of its own.
    pub(crate) fn fresh_token(&mut self) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        token
    }

    /// The name of a volume in the history: what lies beyond its first size begins anew with each growth.
    pub(crate) fn history_volume(&self, volume: VolumeId, sector: u64) -> VolumeId {
        let at = self.plan.volumes.iter().position(|(known, _)| *known == volume);
        let Some(at) = at.filter(|&at| sector >= self.plan.volumes[at].1) else { return volume };
        VolumeId(volume.0 + GROWTH_NAMES * self.growths[at])
    }

    /// A configuration is about to be committed: where a volume grows, what is added reads as zeroes.
    pub(crate) fn resized(&mut self, configuration: &wire::Configuration) {
        let old = self.sizes();
        for (at, (volume, first)) in self.plan.volumes.clone().into_iter().enumerate() {
            let before = old.iter().find(|(known, _)| *known == volume).map_or(first, |old| old.1);
            let Some(entry) = configuration.volume(volume) else { continue };
            if entry.sectors <= before {
                continue;
            }
            if before > first {
                self.zero_what_was_cut(self.history_volume(volume, first), before);
                continue;
            }
            self.mark("sim: a volume grew");
            self.growths[at] += 1;
            let name = self.history_volume(volume, first);
            self.begin_growth(volume, name, first..entry.sectors);
        }
    }

    /// A volume that shrank, but not to its first size, grows again: what is added has the name that it had, and reads
    /// as zeroes from now on.
    fn zero_what_was_cut(&mut self, name: VolumeId, first: u64) {
        let operations = (0..self.history.len()).map(|index| self.history.operation(index));
        let ends = operations.filter(|one| one.volume == name).map(|one| one.span.end());
        let (now, step, end) = (self.queue.now(), self.step, ends.max().unwrap_or(0));
        if first < end {
            self.mark("sim: a volume grows where it was cut off above its first size");
        }
        for sector in first..end {
            let write = crate::fork::one_sector(name, sector, 0);
            let index = self.history.call(now, step, write);
            self.history.answer(now, step, index, true, Vec::new());
        }
    }

    /// The history of what was added begins with zeroes. A write of before the volume shrank that was not
    /// answered well may be asked for again, and take effect now.
    fn begin_growth(&mut self, volume: VolumeId, name: VolumeId, range: Range<u64>) {
        let mut values: BTreeSet<(u64, Token)> = BTreeSet::new();
        for index in 0..self.history.len() {
            let operation = self.history.operation(index);
            if let Effect::Write(token) = operation.effect
                && operation.volume.0 % GROWTH_NAMES == volume.0
                && operation.volume != name
                && !operation.ok
            {
                values.extend((operation.span.first()..operation.span.end()).map(|at| (at, token)));
            }
        }
        let (now, step) = (self.queue.now(), self.step);
        for (sector, token) in values {
            if range.contains(&sector) {
                let write = crate::fork::one_sector(name, sector, token);
                let index = self.history.call(now, step, write);
                self.history.abandon(now, step, index);
            }
        }
    }

    /// Whether what an operation asked for lies where the volume shrank since it was asked.
    fn was_cut_off(&self, operation: &Operation) -> bool {
        let volume = VolumeId(operation.volume.0 % GROWTH_NAMES);
        let size = self.sizes().into_iter().find(|(known, _)| *known == volume);
        self.history_volume(volume, operation.span.first()) != operation.volume
            || size.is_some_and(|(_, sectors)| operation.span.end() > sectors)
    }

    /// A span inside one extent, often in the first few; where replicas are beset, often one of a few blocks, so that
    /// what is taken up again late has something newer to meet.
    fn draw_span(&mut self) -> (VolumeId, Span) {
        let is_narrow = self.plan.features.contains(&Feature::Beset) && self.random.once_in(2);
        let volumes = self.plan.volumes.len() as u64;
        let at = usize::try_from(self.random.below(volumes)).expect("few volumes");
        let (volume, base_sectors) = self.plan.volumes[at];
        let sizes = self.sizes();
        let sectors = sizes.iter().find(|(known, _)| *known == volume);
        let sectors = sectors.map_or(base_sectors, |&(_, sectors)| sectors).max(base_sectors);
        let extent_sectors = self.plan.geometry.extent_sectors;
        let extents = if is_narrow { 1 } else { sectors.div_ceil(extent_sectors) };
        let extent = if self.random.once_in(2) {
            self.random.below(extents.min(3))
        } else {
            self.random.below(extents)
        };
        let aligned = self.plan.options.data_checksum || self.random.once_in(2);
        let unit = if !aligned { 1 } else { self.plan.geometry.block_sectors };
        let mut start = extent * extent_sectors;
        let mut end = (start + extent_sectors).min(sectors);
        if start < base_sectors {
            end = end.min(base_sectors);
        } else {
            start = start.max(base_sectors);
        }
        // The last block may be cut short.
        let unit = unit.min(end - start);
        let units = ((end - start) / unit).min(if is_narrow { 3 } else { u64::MAX });
        let first = self.random.below(units);
        let count = 1 + self.random.below((units - first).min(6));
        let span = Span::new(
            start + first * unit,
            u32::try_from(count * unit).expect("an extent is small"),
        );
        (volume, span.expect("count is 1 or more and volumes are small"))
    }

    pub(crate) fn call(
        &mut self,
        client: usize,
        volume: VolumeId,
        span: Span,
        effect: Effect,
        fua: bool,
    ) {
        let op = match &effect {
            Effect::Read(_) => Op::Read,
            Effect::Write(0) => Op::Zero { unmap: self.random.once_in(2) },
            Effect::Write(_) => Op::Write,
            Effect::Flush => Op::Flush,
        };
        self.call_as(client, volume, span, op, effect, fua);
    }

    /// A client asks for this very operation, which has this effect.
    pub(crate) fn call_as(
        &mut self,
        client: usize,
        volume: VolumeId,
        span: Span,
        op: Op,
        effect: Effect,
        fua: bool,
    ) {
        let content: Option<Content> = match &effect {
            Effect::Write(token) if op == Op::Write => {
                Some(vec![*token; span.count() as usize].into())
            }
            _ => None,
        };
        let extent = span.first() / self.plan.geometry.extent_sectors;
        let shard = self.shard_of(volume, extent);
        let stable = fua || self.plan.options.durability == wire::Durability::WriteThrough;
        let now = self.queue.now();
        let effect_is_read = matches!(effect, Effect::Read(_));
        if let Effect::Write(token) = effect {
            self.cut_called(token);
        }
        let name = self.history_volume(volume, span.first());
        let index = self.history.call(
            now,
            self.step,
            as_operation(name, span, effect, stable && !effect_is_read),
        );
        let request =
            Request { op, volume, span, buffer: None, fua, way: None, host: base::HostId(0) };
        self.submit(client, (index, Vec::new()), shard, request, content);
    }

    pub(crate) fn flush(&mut self, client: usize, volume: VolumeId) {
        let span = Span::new(0, 1).expect("a span of one sector");
        let now = self.queue.now();
        let index =
            self.history.call(now, self.step, as_operation(volume, span, Effect::Flush, false));
        self.pieces.insert(index, (usize::from(self.plan.shards), true));
        for shard in 0..self.plan.shards {
            let request = Request {
                op: Op::Flush,
                volume,
                span,
                buffer: None,
                fua: false,
                way: None,
                host: base::HostId(0),
            };
            self.submit(client, (index, Vec::new()), shard, request, None);
        }
    }

    pub(crate) fn submit(
        &mut self,
        client: usize,
        (op, earlier): (OpIndex, Vec<OpIndex>),
        shard: u16,
        request: Request,
        content: Option<Content>,
    ) {
        let node = self.plan.clients[client];
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let host = self.host_of(client);
        self.may_be_fenced(client, op);
        let request = Request { way: self.paths.way(client), host, ..request };
        self.note(node, || format!("client asks {id} (operation {op}): {request:?}"));
        let knew = self.knew_first((node, shard), op, &earlier);
        self.open.insert(id, Open { node, client, op, taken: None, earlier, knew });
        self.open_of_client[client] += 1;
        let life = self.nodes[node].life;
        let delay = MICRO + self.random.below(20 * MICRO);
        let event = Event::Request { node, life, shard, client, id, request, content };
        self.queue.after(delay, event);
    }

    /// A shard answers a request.
    pub(crate) fn on_answer(
        &mut self,
        node: usize,
        id: RequestId,
        result: Result<(), AnswerError>,
        content: Option<Content>,
    ) {
        if self.is_departed(id) || self.paths.was_given_up(id) {
            return;
        }
        let Some(open) = self.open.remove(&id) else {
            self.fail("answers", format!("node {node} answers request {id}, which is not open"));
            return;
        };
        if open.node != node {
            self.fail("answers", format!("node {node} answers request {id} of node {}", open.node));
            return;
        }
        self.open_of_client[open.client] -= 1;
        let (now, step) = (self.queue.now(), self.step);
        match result {
            Ok(()) => self.answered += 1,
            Err(error) => {
                self.check_error(node, &open, error);
                self.mark(mark_of(error));
            }
        }
        self.side_answered(node, open.op, result.is_ok());
        if result.is_ok() {
            self.check_right(open.client, open.op);
        }
        if result == Err(AnswerError::Path) {
            return self.ask_again(open);
        }
        let operation = self.history.operation(open.op);
        let (effect, span) = (operation.effect.clone(), operation.span);
        match effect {
            Effect::Flush => {
                let (left, ok) = self.pieces.get_mut(&open.op).expect("a flush has its pieces");
                *left -= 1;
                *ok &= result.is_ok();
                let (left, ok) = (*left, *ok);
                if left == 0 {
                    self.pieces.remove(&open.op);
                    self.history.answer(now, step, open.op, ok, Vec::new());
                }
            }
            Effect::Read(_) => {
                let seen = content.map_or(vec![0; span.count() as usize], |bytes| bytes.to_vec());
                if result.is_ok() && seen.len() != span.count() as usize {
                    let text = format!("read {id} of {span:?} gave {} sectors", seen.len());
                    self.fail("answers", text);
                }
                self.mix_all(&seen);
                let ok = result.is_ok() && !self.was_cut_off(self.history.operation(open.op));
                self.history.answer(now, step, open.op, ok, seen);
            }
            Effect::Write(token) => {
                if result.is_ok() {
                    self.expire(&open.earlier);
                }
                self.history.answer(now, step, open.op, result.is_ok(), Vec::new());
                self.cut_answered(token);
            }
        }
        if result.is_ok() {
            self.check_answer(node);
        }
    }

    /// The node died: its clients' requests with it.
    pub(crate) fn abandon(&mut self, node: usize) {
        if self.nodes[node].process.is_none() {
            self.leave_dead_path(node);
        }
        let ids: Vec<RequestId> =
            self.open.iter().filter(|(_, open)| open.node == node).map(|(&id, _)| id).collect();
        let (now, step) = (self.queue.now(), self.step);
        for id in ids {
            let open = self.open.remove(&id).expect("listed above");
            self.open_of_client[open.client] -= 1;
            if self.pieces.remove(&open.op).is_some()
                || self.history.operation(open.op).effect != Effect::Flush
            {
                self.history.abandon(now, step, open.op);
            }
        }
        self.client_count[node] = 0;
    }

    /// One of the last reads of every extent was answered with an error.
    pub(crate) fn final_reads_failed(&self) -> bool {
        (self.finals_from..self.history.len()).any(|op| !self.history.operation(op).ok)
    }

    /// Every extent is read once more, by some client.
    pub(crate) fn final_reads(&mut self) {
        self.finals_from = self.history.len();
        let client = usize::try_from(self.random.below(self.plan.clients.len() as u64))
            .expect("few clients");
        let node = self.plan.clients[client];
        self.count_clients(node, 1);
        let extent_sectors = self.plan.geometry.extent_sectors;
        for (volume, sectors) in self.sizes() {
            let base = self.plan.volumes.iter().find(|(known, _)| *known == volume);
            let base = base.map_or(0, |&(_, sectors)| sectors);
            let mut first: Time = 0;
            while first < sectors {
                let mut end =
                    (first / extent_sectors * extent_sectors + extent_sectors).min(sectors);
                if first < base {
                    end = end.min(base);
                }
                let count = u32::try_from(end - first).expect("an extent is small");
                let span = Span::new(first, count).expect("not empty");
                self.call(client, volume, span, Effect::Read(Vec::new()), false);
                first = end;
            }
        }
    }
}

fn mark_of(error: AnswerError) -> &'static str {
    match error {
        AnswerError::OutOfRange => "sim: answer out of range",
        AnswerError::NoQuorum => "sim: answer no quorum",
        AnswerError::Io => "sim: answer io",
        AnswerError::SessionLost => "sim: answer session lost",
        AnswerError::Gone => "sim: answer gone",
        AnswerError::Path => "sim: answer path",
        AnswerError::Reserved => "sim: answer reserved",
    }
}

pub(crate) fn as_operation(volume: VolumeId, span: Span, effect: Effect, fua: bool) -> Operation {
    Operation { volume, span, effect, fua, ok: false, ended: false }
}

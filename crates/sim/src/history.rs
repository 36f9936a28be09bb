//! What clients asked and were told, and whether one register per sector explains it.
//!
//! Every write has a value of its own (a token per write; zeroing writes 0). `check` looks, sector by
//! sector, for an order of all operations that keeps each between its call and its answer, in which
//! each read returns what was written last. Configurations are searched just in time (Wing and Gong,
//! as improved by Lowe): an operation is put into the order no sooner than its answer, or a read that
//! saw it, asks for it.
//!
//! What is allowed beyond a register:
//! - a write without an answer, or answered by an error, takes effect once or not at all, at any time; but no more once its
//!   client was answered that asked for the same by another way;
//! - when every in-sync cache is lost, a sector falls back to a value that it had at the last flush, or
//!   later; from then on it is a register again.
//!
//! Not here: who was primary (`checker`), whether replicas agree (`checker`).

use crate::queue::Time;
use base::{Span, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// The content of one sector: the number of the write that made it, 0 for zeroes.
pub type Token = u64;

/// Index of an operation in the history.
pub type OpIndex = usize;

/// What an operation did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Read these sectors; what was seen, once answered.
    Read(Vec<Token>),
    /// Made every sector of the span this token.
    Write(Token),
    /// Made what was complete stable.
    Flush,
}

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Which volume.
    pub volume: VolumeId,
    /// Which sectors.
    pub span: Span,
    /// What.
    pub effect: Effect,
    /// The write is stable once answered.
    pub fua: bool,
    /// Answered without an error.
    pub ok: bool,
    /// Ended: answered, or its client died.
    pub ended: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Call(OpIndex),
    Answer(OpIndex),
    Abandon(OpIndex),
    /// From now on it takes no effect any more.
    Expire(OpIndex),
    Loss,
}

/// Events that concern each sector, with time and step.
type BySector = BTreeMap<(VolumeId, u64), Vec<(Time, u64, Event)>>;

/// Everything that clients saw, in order.
#[derive(Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
    events: Vec<(Time, u64, Event)>,
    open: BTreeSet<OpIndex>,
}

/// What an operation is to a history that it may not belong to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// What it is.
    Same,
    /// It may have taken effect, but its answer was given elsewhere.
    Unanswered,
    /// It cannot have taken effect.
    Elsewhere,
}

/// No order of the operations explains what a read returned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NotLinear {
    /// When the answer that cannot be explained was given.
    pub at: Time,
    /// In which step.
    pub step: u64,
    /// What cannot be explained, in words.
    pub text: String,
}

impl History {
    /// A client calls.
    pub fn call(&mut self, at: Time, step: u64, operation: Operation) -> OpIndex {
        let index = self.operations.len();
        self.operations.push(operation);
        self.events.push((at, step, Event::Call(index)));
        self.open.insert(index);
        index
    }

    /// A client is answered; `seen` is what a read returned.
    pub fn answer(&mut self, at: Time, step: u64, index: OpIndex, ok: bool, seen: Vec<Token>) {
        self.open.remove(&index);
        let operation = &mut self.operations[index];
        operation.ok = ok;
        operation.ended = true;
        if let Effect::Read(tokens) = &mut operation.effect {
            *tokens = seen;
        }
        let event = if ok { Event::Answer(index) } else { Event::Abandon(index) };
        self.events.push((at, step, event));
    }

    /// The client of this operation died.
    pub fn abandon(&mut self, at: Time, step: u64, index: OpIndex) {
        self.open.remove(&index);
        self.operations[index].ended = true;
        self.events.push((at, step, Event::Abandon(index)));
    }

    /// The client of this write, which was abandoned, asked for the same by another way and was answered: what is left of the
    /// first must not take effect from now on.
    pub fn expire(&mut self, at: Time, step: u64, index: OpIndex) {
        self.events.push((at, step, Event::Expire(index)));
    }

    /// Every in-sync cache was lost.
    pub fn loss(&mut self, at: Time, step: u64) {
        self.events.push((at, step, Event::Loss));
    }

    /// Whether a write of this token to this sector was not answered yet when `earlier` was called: it may lie over that
    /// one.
    #[must_use]
    pub fn may_lie_over(&self, earlier: OpIndex, sector: u64, token: Token) -> bool {
        let volume = self.operations[earlier].volume;
        let called = self.events.iter().position(|&(_, _, event)| event == Event::Call(earlier));
        let before = &self.events[..called.unwrap_or(0)];
        let answered_before =
            |index| before.iter().any(|&(_, _, event)| event == Event::Answer(index));
        self.operations.iter().enumerate().any(|(index, operation)| {
            let covers = operation.span.first() <= sector && sector < operation.span.end();
            let writes = matches!(operation.effect, Effect::Write(written) if written == token);
            covers && writes && operation.volume == volume && !answered_before(index)
        })
    }

    /// The history, as seen from a history that only some operations belong to.
    #[must_use]
    pub fn seen_by(&self, fate: impl Fn(OpIndex) -> Fate) -> History {
        let mut seen = History { operations: self.operations.clone(), ..History::default() };
        for &(at, step, event) in &self.events {
            let (index, answer) = match event {
                Event::Loss => {
                    seen.events.push((at, step, event));
                    continue;
                }
                Event::Call(index) | Event::Abandon(index) | Event::Expire(index) => (index, false),
                Event::Answer(index) => (index, true),
            };
            match fate(index) {
                Fate::Elsewhere => {}
                Fate::Unanswered if answer => {
                    seen.operations[index].ok = false;
                    seen.events.push((at, step, Event::Abandon(index)));
                }
                Fate::Same | Fate::Unanswered => seen.events.push((at, step, event)),
            }
        }
        seen
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nothing was asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of operations that are open.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// One operation.
    #[must_use]
    pub fn operation(&self, index: OpIndex) -> &Operation {
        &self.operations[index]
    }

    /// Looks for an order of all operations that explains every answer.
    ///
    /// # Errors
    /// The first answer that no order explains.
    pub fn check(&self) -> Result<(), NotLinear> {
        let mut found: Option<NotLinear> = None;
        for ((volume, sector), events) in self.by_sector() {
            let mut register = Register::new(self, volume, sector);
            for (at, step, event) in events {
                if let Err(text) = register.event(event) {
                    if found.as_ref().is_none_or(|before| step < before.step) {
                        found = Some(NotLinear { at, step, text });
                    }
                    break;
                }
            }
        }
        found.map_or(Ok(()), Err)
    }

    /// Events that concern each sector that was read: of what nobody saw every order can be. Flushes concern every sector of
    /// their volume, if anything was lost at all.
    fn by_sector(&self) -> BySector {
        let mut sectors: BySector = BTreeMap::new();
        let lost = self.events.iter().any(|(_, _, event)| *event == Event::Loss);
        for operation in &self.operations {
            if operation.ok && matches!(operation.effect, Effect::Read(_)) {
                for sector in operation.span.first()..operation.span.end() {
                    sectors.entry((operation.volume, sector)).or_default();
                }
            }
        }
        for &(at, step, event) in &self.events {
            let index = match event {
                Event::Loss => None,
                Event::Call(index)
                | Event::Answer(index)
                | Event::Abandon(index)
                | Event::Expire(index) => Some(index),
            };
            let Some(operation) = index.map(|index| &self.operations[index]) else {
                sectors.values_mut().for_each(|events| events.push((at, step, event)));
                continue;
            };
            if operation.effect == Effect::Flush && !lost {
                continue;
            }
            if operation.effect == Effect::Flush {
                for (_, events) in
                    sectors.iter_mut().filter(|((volume, _), _)| *volume == operation.volume)
                {
                    events.push((at, step, event));
                }
                continue;
            }
            for sector in operation.span.first()..operation.span.end() {
                if let Some(events) = sectors.get_mut(&(operation.volume, sector)) {
                    events.push((at, step, event));
                }
            }
        }
        sectors
    }
}

/// One way in which everything so far can have happened.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Way {
    value: Token,
    /// Open operations, and writes without an answer, that took effect.
    done: BTreeSet<OpIndex>,
}

/// One sector's search.
struct Register<'a> {
    history: &'a History,
    volume: VolumeId,
    sector: u64,
    ways: BTreeSet<Way>,
    /// Open reads that will be answered.
    reads: BTreeSet<OpIndex>,
    /// Open writes that will be answered without an error.
    writes: BTreeSet<OpIndex>,
    /// Writes that will never be answered so.
    floating: BTreeSet<OpIndex>,
    /// Every write called, in order.
    called: Vec<OpIndex>,
    /// Values at the call of each open flush, and the writes called that may be younger.
    flushes: BTreeMap<OpIndex, Floor>,
    floor: Floor,
}

/// What the sector holds at least: one of `values`, or one of the writes from then on.
#[derive(Clone, Debug, Default)]
struct Floor {
    values: BTreeSet<Token>,
    open: BTreeSet<OpIndex>,
    called: usize,
}

/// Ways kept at once for one sector. A history that needs more is not checked further.
const WAYS_MAX: usize = 20_000;

impl<'a> Register<'a> {
    fn new(history: &'a History, volume: VolumeId, sector: u64) -> Register<'a> {
        Register {
            history,
            volume,
            sector,
            ways: BTreeSet::from([Way { value: 0, done: BTreeSet::new() }]),
            reads: BTreeSet::new(),
            writes: BTreeSet::new(),
            floating: BTreeSet::new(),
            called: Vec::new(),
            flushes: BTreeMap::new(),
            floor: Floor { values: BTreeSet::from([0]), ..Floor::default() },
        }
    }

    fn operation(&self, index: OpIndex) -> &'a Operation {
        &self.history.operations[index]
    }

    /// What a write makes of the sector, or what a read saw there.
    fn token(&self, index: OpIndex) -> Token {
        let operation = self.operation(index);
        match &operation.effect {
            Effect::Write(token) => *token,
            Effect::Flush => 0,
            Effect::Read(tokens) => usize::try_from(self.sector - operation.span.first())
                .ok()
                .and_then(|offset| tokens.get(offset).copied())
                .unwrap_or(0),
        }
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Call(index) => self.call(index),
            Event::Answer(index) => return self.answer(index),
            Event::Abandon(index) => self.abandon(index),
            Event::Expire(index) => self.expire(index),
            Event::Loss => self.lose(),
        }
        Ok(())
    }

    fn call(&mut self, index: OpIndex) {
        let operation = self.operation(index);
        match operation.effect {
            Effect::Read(_) if operation.ok => {
                self.reads.insert(index);
                let value = self.token(index);
                self.ways = std::mem::take(&mut self.ways)
                    .into_iter()
                    .map(|mut way| {
                        if way.value == value {
                            way.done.insert(index);
                        }
                        way
                    })
                    .collect();
            }
            Effect::Read(_) => {}
            Effect::Write(_) => {
                self.called.push(index);
                if operation.ok { &mut self.writes } else { &mut self.floating }.insert(index);
            }
            Effect::Flush => {
                let floor = self.floor_now();
                self.flushes.insert(index, floor);
            }
        }
    }

    /// The floor that a flush called now would make.
    fn floor_now(&self) -> Floor {
        Floor {
            values: self.ways.iter().map(|way| way.value).collect(),
            open: self.writes.union(&self.floating).copied().collect(),
            called: self.called.len(),
        }
    }

    fn answer(&mut self, index: OpIndex) -> Result<(), String> {
        let operation = self.operation(index);
        if operation.effect == Effect::Flush {
            if let Some(floor) = self.flushes.remove(&index)
                && floor.called >= self.floor.called
            {
                self.floor = floor;
            }
            return Ok(());
        }
        let before: BTreeSet<Token> = self.ways.iter().map(|way| way.value).collect();
        self.expand(Some(index));
        self.ways = std::mem::take(&mut self.ways)
            .into_iter()
            .filter(|way| way.done.contains(&index))
            .map(|mut way| {
                way.done.remove(&index);
                way
            })
            .collect();
        self.reads.remove(&index);
        self.writes.remove(&index);
        if self.ways.is_empty() {
            return Err(self.explain(index, &before));
        }
        if operation.fua && matches!(operation.effect, Effect::Write(_)) {
            self.floor = self.floor_now();
        }
        Ok(())
    }

    fn explain(&self, index: OpIndex, before: &BTreeSet<Token>) -> String {
        let what = match self.operation(index).effect {
            Effect::Read(_) => "read returned",
            Effect::Write(_) | Effect::Flush => "write cannot be put in order:",
        };
        format!(
            "volume {} sector {}: {what} {:#x} (operation {index}); possible before: {:x?}, open \
             writes {:x?}, unanswered writes {:x?}",
            self.volume,
            self.sector,
            self.token(index),
            before,
            self.writes.iter().map(|&write| self.token(write)).collect::<Vec<_>>(),
            self.floating.iter().map(|&write| self.token(write)).collect::<Vec<_>>(),
        )
    }

    fn abandon(&mut self, index: OpIndex) {
        self.flushes.remove(&index);
    }

    /// It took effect before this, or never.
    fn expire(&mut self, index: OpIndex) {
        self.expand(Some(index));
        self.floating.remove(&index);
        self.ways = std::mem::take(&mut self.ways)
            .into_iter()
            .map(|mut way| {
                way.done.remove(&index);
                way
            })
            .collect();
    }

    /// Adds every way that open operations can make, as far as an open read, or `target`, asks for it.
    fn expand(&mut self, target: Option<OpIndex>) {
        let mut queue: Vec<Way> = self.ways.iter().cloned().collect();
        while let Some(way) = queue.pop() {
            for write in self.wanted(&way, target) {
                for next in self.apply(&way, write) {
                    if self.ways.len() < WAYS_MAX && self.ways.insert(next.clone()) {
                        queue.push(next);
                    }
                }
            }
        }
    }

    /// Writes worth applying now: `target`, and those that an open read saw.
    fn wanted(&self, way: &Way, target: Option<OpIndex>) -> Vec<OpIndex> {
        let values: BTreeSet<Token> = self
            .reads
            .iter()
            .filter(|read| !way.done.contains(read))
            .map(|&read| self.token(read))
            .collect();
        let mut wanted = Vec::new();
        for &write in self.writes.iter().chain(&self.floating) {
            let may = !way.done.contains(&write);
            if may && (target == Some(write) || values.contains(&self.token(write))) {
                wanted.push(write);
            }
        }
        wanted
    }

    /// The way after `write`, with every choice of open writes that it covers at once.
    fn apply(&self, way: &Way, write: OpIndex) -> Vec<Way> {
        let hidden: Vec<OpIndex> = self
            .writes
            .iter()
            .copied()
            .filter(|other| *other != write && !way.done.contains(other))
            .take(8)
            .collect();
        let mut ways = Vec::new();
        for choice in 0..(1_u32 << hidden.len()) {
            let mut next = Way { value: self.token(write), done: way.done.clone() };
            next.done.insert(write);
            for (bit, other) in hidden.iter().enumerate() {
                if choice & (1 << bit) != 0 {
                    next.done.insert(*other);
                }
            }
            for &read in &self.reads {
                if self.token(read) == next.value {
                    next.done.insert(read);
                }
            }
            ways.push(next);
        }
        ways
    }

    /// Every in-sync cache is lost: back to any value since the floor.
    fn lose(&mut self) {
        self.expand(None);
        let mut values = self.floor.values.clone();
        values.extend(self.floor.open.iter().map(|&write| self.token(write)));
        values.extend(self.called[self.floor.called..].iter().map(|&write| self.token(write)));
        values.extend(self.ways.iter().map(|way| way.value));
        let mut ways = BTreeSet::new();
        for way in &self.ways {
            let all: BTreeSet<OpIndex> = way.done.union(&self.writes).copied().collect();
            let none: BTreeSet<OpIndex> =
                way.done.iter().copied().filter(|op| self.reads.contains(op)).collect();
            for &value in &values {
                for done in [&way.done, &all, &none] {
                    let mut done = done.clone();
                    done.extend(self.reads.iter().filter(|&&read| self.token(read) == value));
                    ways.insert(Way { value, done });
                }
            }
        }
        self.ways = ways;
        self.floor = Floor { values, open: self.floor.open.clone(), called: self.called.len() };
        self.flushes.clear();
    }
}

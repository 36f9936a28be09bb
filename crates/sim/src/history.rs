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
//!   later; from then on it is a register again; so does one sector when no copy has what was answered there.
//!
//! Not here: who was primary (`checker`), whether replicas agree (`checker`).

use crate::client::GROWTH_NAMES;
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

impl Operation {
    /// Whether a flush makes stable what a volume of the history holds: its own, and what the same one grew by.
    fn covers(&self, volume: VolumeId) -> bool {
        volume.0 % GROWTH_NAMES == self.volume.0
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Call(OpIndex),
    Answer(OpIndex),
    Abandon(OpIndex),
    /// From now on it takes no effect any more.
    Expire(OpIndex),
    /// It has taken effect by now, or will not before it is let in.
    Fence(OpIndex),
    /// From now on it may take effect again.
    LetIn(OpIndex),
    Loss,
    /// Of the sector of this index.
    Spoil(usize),
}

/// Events that concern each sector, by their places in the history.
type BySector = BTreeMap<(VolumeId, u64), Vec<usize>>;

/// Everything that clients saw, in order.
#[derive(Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
    events: Vec<(Time, u64, Event)>,
    open: BTreeSet<OpIndex>,
    spoilt: Vec<(VolumeId, u64)>,
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

    /// The host that asked for this write was kept from the volume: what is left of it must not take effect from now on, until
    /// it is let in, whether or not it is still to be answered.
    pub fn fence(&mut self, at: Time, step: u64, index: OpIndex) {
        self.events.push((at, step, Event::Fence(index)));
    }

    /// The host of this write, which was fenced and not answered well since, may write again: what is left of it may take
    /// effect, unless it has expired.
    pub fn let_in(&mut self, at: Time, step: u64, index: OpIndex) {
        if !self.events.iter().any(|&(_, _, event)| event == Event::Expire(index)) {
            self.events.push((at, step, Event::LetIn(index)));
        }
    }

    /// Every in-sync cache was lost.
    pub fn loss(&mut self, at: Time, step: u64) {
        self.events.push((at, step, Event::Loss));
    }

    /// No copy has what was written to this sector last, though it may have been answered.
    pub fn spoil(&mut self, at: Time, step: u64, sector: (VolumeId, u64)) {
        self.events.push((at, step, Event::Spoil(self.spoilt.len())));
        self.spoilt.push(sector);
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

    /// The history, as seen from a history that only some operations belong to. `expires` says when it is there that a write which expired at
    /// a time, in a step, takes no effect any more, if it ever is.
    #[must_use]
    pub fn seen_by(
        &self,
        fate: impl Fn(OpIndex) -> Fate,
        expires: impl Fn(OpIndex, (Time, u64)) -> Option<(Time, u64)>,
    ) -> History {
        let (operations, spoilt) = (self.operations.clone(), self.spoilt.clone());
        let mut seen = History { operations, spoilt, ..History::default() };
        for &(mut at, mut step, event) in &self.events {
            if let Event::Expire(index) = event {
                let Some(later) = expires(index, (at, step)) else { continue };
                (at, step) = later;
            }
            let (index, answer) = match event {
                Event::Loss | Event::Spoil(_) => {
                    seen.events.push((at, step, event));
                    continue;
                }
                Event::Call(index)
                | Event::Abandon(index)
                | Event::Expire(index)
                | Event::Fence(index)
                | Event::LetIn(index) => (index, false),
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
        seen.events.sort_by_key(|&(_, step, _)| step);
        seen
    }

    /// When, and in which step, it was called last.
    #[must_use]
    pub fn called(&self, index: OpIndex) -> Option<(Time, u64)> {
        let call = self.events.iter().rev().find(|(_, _, event)| *event == Event::Call(index));
        call.map(|&(at, step, _)| (at, step))
    }

    /// Whether a write of this token to this sector was answered well before the flush `later` was called. Zeroes have no token that tells
    /// which ones they are: of them it is not known.
    #[must_use]
    pub fn is_complete_before(&self, later: OpIndex, sector: u64, token: Token) -> bool {
        let called = self.events.iter().rposition(|&(_, _, event)| event == Event::Call(later));
        self.events[..called.unwrap_or(0)].iter().any(|&(_, _, event)| {
            let Event::Answer(index) = event else { return false };
            let operation = &self.operations[index];
            let covers = operation.span.first() <= sector && sector < operation.span.end();
            let is_it = token != 0 && operation.effect == Effect::Write(token);
            covers && is_it && self.operations[later].covers(operation.volume)
        })
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

    /// Looks for an order of all operations that explains every answer. Of how many sectors there are too many orders to look
    /// at all of them.
    ///
    /// # Errors
    /// The first answer that no order explains.
    pub fn check(&self) -> Result<u64, NotLinear> {
        let (mut given_up, ends) = (0, self.ends());
        let mut found: Option<NotLinear> = None;
        for ((volume, sector), places) in self.by_sector() {
            let mut register = Register::new(self, &ends, volume, sector);
            for place in places {
                let (at, step, event) = self.events[place];
                register.place = place;
                let done = register.event(event);
                if register.gave_up {
                    given_up += 1;
                    break;
                }
                if let Err(text) = done {
                    if found.as_ref().is_none_or(|before| step < before.step) {
                        found = Some(NotLinear { at, step, text });
                    }
                    break;
                }
            }
        }
        found.map_or(Ok(given_up), Err)
    }

    /// Of each write, after which events it takes no effect any more, in order.
    fn ends(&self) -> BTreeMap<OpIndex, Vec<usize>> {
        let mut ends: BTreeMap<OpIndex, Vec<usize>> = BTreeMap::new();
        for (place, &(_, _, event)) in self.events.iter().enumerate() {
            if let Event::Expire(index) | Event::Fence(index) = event {
                ends.entry(index).or_default().push(place);
            }
        }
        ends
    }

    /// Events that concern each sector that was read: of what nobody saw every order can be. Flushes concern every sector of
    /// their volume, if anything was lost at all.
    fn by_sector(&self) -> BySector {
        let mut sectors: BySector = BTreeMap::new();
        let lost = |event: &Event| matches!(event, Event::Loss | Event::Spoil(_));
        let lost = self.events.iter().any(|(_, _, event)| lost(event));
        for operation in &self.operations {
            if operation.ok && matches!(operation.effect, Effect::Read(_)) {
                for sector in operation.span.first()..operation.span.end() {
                    sectors.entry((operation.volume, sector)).or_default();
                }
            }
        }
        for (place, &(_, _, event)) in self.events.iter().enumerate() {
            if let Event::Spoil(at) = event {
                sectors.entry(self.spoilt[at]).and_modify(|places| places.push(place));
                continue;
            }
            let index = match event {
                Event::Loss | Event::Spoil(_) => None,
                Event::Call(index)
                | Event::Answer(index)
                | Event::Abandon(index)
                | Event::Expire(index)
                | Event::Fence(index)
                | Event::LetIn(index) => Some(index),
            };
            let Some(operation) = index.map(|index| &self.operations[index]) else {
                sectors.values_mut().for_each(|places| places.push(place));
                continue;
            };
            if operation.effect == Effect::Flush {
                let covered =
                    |of: &(&(VolumeId, u64), &mut Vec<usize>)| lost && operation.covers(of.0.0);
                let flushed = sectors.iter_mut().filter(covered);
                flushed.for_each(|(_, places)| places.push(place));
                continue;
            }
            let volume = operation.volume;
            let touched = (volume, operation.span.first())..(volume, operation.span.end());
            sectors.range_mut(touched).for_each(|(_, places)| places.push(place));
        }
        sectors
    }
}

/// A set of operations: few, in order.
type Set = Vec<OpIndex>;

/// One way in which everything so far can have happened.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Way {
    value: Token,
    /// Open operations, and writes without an answer, that took effect.
    done: Set,
}

impl Way {
    fn has(&self, index: OpIndex) -> bool {
        self.done.binary_search(&index).is_ok()
    }

    fn add(&mut self, index: OpIndex) {
        if let Err(at) = self.done.binary_search(&index) {
            self.done.insert(at, index);
        }
    }

    /// False if it was not done.
    fn remove(&mut self, index: OpIndex) -> bool {
        let found = self.done.binary_search(&index);
        if let Ok(at) = found {
            self.done.remove(at);
        }
        found.is_ok()
    }
}

/// Open operations of one kind, with what they make of the sector or saw there: few, as they were called.
#[derive(Debug, Default)]
struct Calls(Vec<(OpIndex, Token)>);

impl Calls {
    fn remove(&mut self, index: OpIndex) {
        self.0.retain(|&(call, _)| call != index);
    }

    fn has(&self, index: OpIndex) -> bool {
        self.0.iter().any(|&(call, _)| call == index)
    }

    fn tokens(&self) -> impl Iterator<Item = Token> {
        self.0.iter().map(|&(_, token)| token)
    }
}

/// One sector's search.
struct Register<'a> {
    history: &'a History,
    ends: &'a BTreeMap<OpIndex, Vec<usize>>,
    /// Of the event that is looked at.
    place: usize,
    volume: VolumeId,
    sector: u64,
    /// In order, none that another covers.
    ways: Vec<Way>,
    /// Open reads that will be answered.
    reads: Calls,
    /// Open writes that will be answered without an error.
    writes: Calls,
    /// Writes that will never be answered so; first those that can take effect the least long.
    floating: Calls,
    /// What every write that was called, or let in again, makes of the sector, in order.
    called: Vec<Token>,
    /// What each open flush will make stable, and each open write that is to be stable.
    floors: BTreeMap<OpIndex, Floor>,
    floor: Floor,
    /// How often two ways were compared.
    compared: usize,
    /// There were too many ways: nothing is said of what follows.
    gave_up: bool,
}

/// What the sector holds at least: one of `values`, or one of the writes from then on.
#[derive(Clone, Debug, Default)]
struct Floor {
    /// Also those of the writes that were open.
    values: BTreeSet<Token>,
    called: usize,
}

/// Ways kept at once for one sector. A history that needs more is not checked further.
const WAYS_MAX: usize = 20_000;

/// Comparisons of ways for one sector: half a second or so. A history that needs more is not checked further.
const COMPARISONS_MAX: usize = 50_000_000;

impl<'a> Register<'a> {
    fn new(
        history: &'a History,
        ends: &'a BTreeMap<OpIndex, Vec<usize>>,
        volume: VolumeId,
        sector: u64,
    ) -> Register<'a> {
        Register {
            history,
            ends,
            place: 0,
            volume,
            sector,
            ways: vec![Way { value: 0, done: Set::new() }],
            reads: Calls::default(),
            writes: Calls::default(),
            floating: Calls::default(),
            called: Vec::new(),
            floors: BTreeMap::new(),
            floor: Floor { values: BTreeSet::from([0]), called: 0 },
            compared: 0,
            gave_up: false,
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
            Event::Fence(index) => self.fence(index),
            Event::LetIn(index) => self.let_in(index),
            Event::Loss | Event::Spoil(_) => self.lose(),
        }
        Ok(())
    }

    fn call(&mut self, index: OpIndex) {
        let operation = self.operation(index);
        let token = self.token(index);
        match operation.effect {
            Effect::Read(_) if operation.ok => {
                self.reads.0.push((index, token));
                for way in self.ways.iter_mut().filter(|way| way.value == token) {
                    way.add(index);
                }
                self.put_in_order();
            }
            Effect::Read(_) => {}
            Effect::Write(_) => {
                if operation.fua {
                    // What was there goes, but for what may take effect after it.
                    let values = self.open_writes().chain([token]).collect();
                    self.floors.insert(index, Floor { values, called: self.called.len() });
                }
                self.let_in(index);
            }
            Effect::Flush => {
                let values = self.ways.iter().map(|way| way.value).chain(self.open_writes());
                let floor = Floor { values: values.collect(), called: self.called.len() };
                self.floors.insert(index, floor);
            }
        }
    }

    /// Sorted, and none that another covers.
    fn put_in_order(&mut self) {
        if self.ways.len() < 2 {
            return;
        }
        self.ways.sort_unstable();
        self.ways.dedup();
        let mut kept: Vec<Way> = Vec::with_capacity(self.ways.len());
        let mut first = 0;
        for way in std::mem::take(&mut self.ways) {
            if kept.last().is_some_and(|last| last.value != way.value) {
                first = kept.len();
            }
            if !kept[first..].iter().any(|other| self.covers(other, &way)) {
                let mut place = 0;
                kept.retain(|other| {
                    place += 1;
                    place <= first || !self.covers(&way, other)
                });
                kept.push(way);
            }
        }
        self.ways = kept;
    }

    /// Whether all that can follow one way can follow the other: it holds the same, has no more writes behind it of those that
    /// nobody will answer, and no fewer reads.
    fn covers(&self, one: &Way, other: &Way) -> bool {
        let is_read = |index: OpIndex| matches!(self.operation(index).effect, Effect::Read(_));
        one.value == other.value
            && one.done.iter().all(|&index| other.has(index) || is_read(index))
            && other
                .done
                .iter()
                .all(|&index| one.has(index) || !is_read(index) && !self.operation(index).ok)
    }

    /// Adds a way that no other covers, and takes those out that it covers; false if it is not worth adding.
    fn insert(&mut self, new: &Way) -> bool {
        let first = self.ways.partition_point(|way| way.value < new.value);
        let count = self.ways[first..].partition_point(|way| way.value == new.value);
        self.compared += count;
        let like = &self.ways[first..first + count];
        if like.iter().any(|way| self.covers(way, new)) {
            return false;
        }
        for place in (first..first + count).rev() {
            if self.covers(new, &self.ways[place]) {
                self.ways.remove(place);
            }
        }
        let place = self.ways.binary_search(new).unwrap_or_else(|place| place);
        self.ways.insert(place, new.clone());
        true
    }

    /// What writes that may still take effect make of the sector.
    fn open_writes(&self) -> impl Iterator<Item = Token> {
        self.writes.tokens().chain(self.floating.tokens())
    }

    fn answer(&mut self, index: OpIndex) -> Result<(), String> {
        let floor = self.floors.remove(&index);
        if self.operation(index).effect != Effect::Flush {
            self.take_effect(index, floor.as_ref())?;
        }
        if let Some(floor) = floor
            && floor.called >= self.floor.called
        {
            self.floor = floor;
        }
        Ok(())
    }

    /// A read or a write was answered: it took effect by now, and if it was to be stable no loss took it back.
    fn take_effect(&mut self, index: OpIndex, stable: Option<&Floor>) -> Result<(), String> {
        let before: Vec<Token> = self.ways.iter().map(|way| way.value).collect();
        self.expand(Some(index));
        self.ways.retain_mut(|way| way.remove(index));
        if let Some(floor) = stable {
            let since = &self.called[floor.called..];
            self.ways.retain(|way| floor.values.contains(&way.value) || since.contains(&way.value));
        }
        self.put_in_order();
        self.reads.remove(index);
        self.writes.remove(index);
        if self.ways.is_empty() {
            return Err(self.explain(index, &before.into_iter().collect()));
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
            self.writes.tokens().collect::<Vec<_>>(),
            self.floating.tokens().collect::<Vec<_>>(),
        )
    }

    fn abandon(&mut self, index: OpIndex) {
        self.floors.remove(&index);
    }

    /// It took effect before this, or never.
    fn expire(&mut self, index: OpIndex) {
        self.expand(Some(index));
        self.floating.remove(index);
        for way in &mut self.ways {
            way.remove(index);
        }
        self.put_in_order();
    }

    /// It took effect before this, or not before it is let in. Of one that will be answered well it is known where it did.
    fn fence(&mut self, index: OpIndex) {
        if self.operation(index).ok {
            self.expand(Some(index));
            self.writes.remove(index);
        } else {
            self.expire(index);
        }
    }

    /// A write may take effect from now on.
    fn let_in(&mut self, index: OpIndex) {
        let token = self.token(index);
        self.called.push(token);
        if self.operation(index).ok {
            self.writes.0.push((index, token));
        } else {
            let end = self.end_of(index);
            let place = self.floating.0.partition_point(|&(other, _)| self.end_of(other) <= end);
            self.floating.0.insert(place, (index, token));
        }
    }

    /// The event after which a write takes no effect any more.
    fn end_of(&self, index: OpIndex) -> usize {
        let ends = self.ends.get(&index).into_iter().flatten();
        ends.copied().find(|&end| end >= self.place).unwrap_or(usize::MAX)
    }

    /// Adds every way that open operations can make, as far as an open read, or `target`, asks for it.
    fn expand(&mut self, target: Option<OpIndex>) {
        if self.writes.0.is_empty() && self.floating.0.is_empty() {
            return;
        }
        let mut queue = self.ways.clone();
        while let Some(way) = queue.pop() {
            for write in self.wanted(&way, target) {
                self.apply(&way, write, &mut queue);
            }
        }
    }

    /// Writes worth applying now: `target`, and those that an open read saw. Of several of one value that nobody will answer, the
    /// one that can take effect the least long: what it is used for, it is as good for as any.
    fn wanted(&self, way: &Way, target: Option<OpIndex>) -> Vec<(OpIndex, Token)> {
        let seen =
            |value| self.reads.0.iter().any(|&(read, token)| token == value && !way.has(read));
        let is_wanted = |&(write, token): &(OpIndex, Token)| {
            (target == Some(write) || seen(token)) && !way.has(write)
        };
        let mut wanted: Vec<(OpIndex, Token)> =
            self.writes.0.iter().copied().filter(is_wanted).collect();
        let answered = wanted.len();
        for floating in self.floating.0.iter().copied().filter(is_wanted) {
            if wanted[answered..].iter().all(|&(_, token)| token != floating.1) {
                wanted.push(floating);
            }
        }
        wanted
    }

    /// The way after `write`, with every choice of open writes that it covers at once; those that are new go on.
    fn apply(&mut self, way: &Way, (write, value): (OpIndex, Token), queue: &mut Vec<Way>) {
        let hidden: Set = self
            .writes
            .0
            .iter()
            .map(|&(other, _)| other)
            .filter(|&other| other != write && !way.has(other))
            .take(8)
            .collect();
        for choice in 0..(1_u32 << hidden.len()) {
            if self.ways.len() >= WAYS_MAX || self.compared >= COMPARISONS_MAX {
                self.gave_up = true;
                return;
            }
            let mut next = Way { value, done: way.done.clone() };
            next.add(write);
            for (bit, &other) in hidden.iter().enumerate() {
                if choice & (1 << bit) != 0 {
                    next.add(other);
                }
            }
            for &(read, token) in &self.reads.0 {
                if token == value {
                    next.add(read);
                }
            }
            if self.insert(&next) {
                queue.push(next);
            }
        }
    }

    /// Every in-sync cache is lost: back to any value since the floor.
    fn lose(&mut self) {
        self.expand(None);
        let mut values = std::mem::take(&mut self.floor.values);
        values.extend(&self.called[self.floor.called..]);
        values.extend(self.ways.iter().map(|way| way.value));
        let mut ways = Vec::new();
        for way in &self.ways {
            let mut all = way.clone();
            self.writes.0.iter().for_each(|&(write, _)| all.add(write));
            let mut none = way.clone();
            none.done.retain(|&index| self.reads.has(index));
            for &value in &values {
                for like in [way, &all, &none] {
                    let mut next = Way { value, done: like.done.clone() };
                    let seen = self.reads.0.iter().filter(|&&(_, token)| token == value);
                    seen.for_each(|&(read, _)| next.add(read));
                    ways.push(next);
                }
            }
        }
        self.ways = ways;
        self.put_in_order();
        self.floor = Floor { values, called: self.called.len() };
        let history = self.history;
        self.floors.retain(|&index, floor| {
            floor.values.extend(&self.called[floor.called..]);
            floor.called = self.called.len();
            history.operations[index].effect != Effect::Flush
        });
    }
}

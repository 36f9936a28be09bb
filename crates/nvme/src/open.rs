//! The requests of a connection that are not answered, each in a slot of its own.
//!
//! Always: no two have one id; finding out looks at none of the others, but where an id is like another's.

use crate::command::Command;
use crate::number::DEPTH_MAX;
use crate::request::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// An open request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) id: u16,
    pub(crate) kind: OpenKind,
    /// Bytes to read or write.
    pub(crate) length: u32,
    /// Bytes of them that came, or were answered.
    pub(crate) moved: u32,
    /// Of what has data from the host: it may come.
    pub(crate) asked: bool,
    /// Of what has data from the host: what came was damaged.
    pub(crate) damaged: bool,
}

/// What an open request does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OpenKind {
    /// Data goes to the host.
    Read,
    /// Data comes from the host.
    Write,
    /// Data comes from the host, for the machine itself.
    Gathered,
    /// No data.
    Other,
}

/// An open command whose data the machine gathers.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) slot: Slot,
    pub(crate) command: Command,
    /// What came.
    pub(crate) data: Vec<u8>,
}

const PLACES: usize = DEPTH_MAX as usize;

/// Ids that are the same in their lowest bits are alike: so many kinds there are.
const KINDS: usize = 256;

/// All of them.
#[derive(Debug)]
pub(crate) struct OpenTable {
    entries: Box<[Option<Open>; PLACES]>,
    /// How many are open of each kind of ids.
    alike: Box<[u8; KINDS]>,
    /// Places that are free. The last is taken next, so that as many as are open at once are ever taken.
    free: Vec<u8>,
}

impl OpenTable {
    pub(crate) fn new() -> OpenTable {
        OpenTable {
            entries: Box::new([None; PLACES]),
            alike: Box::new([0; KINDS]),
            free: (0..=u8::MAX).take(PLACES).rev().collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        PLACES - self.free.len()
    }

    /// Whether one of this id is open.
    pub(crate) fn has(&self, id: u16) -> bool {
        let is_it = |open: &Open| open.id == id;
        self.alike[kind_of(id)] > 0 && self.entries.iter().flatten().any(is_it)
    }

    /// Finds a place, if fewer than `depth` are taken.
    pub(crate) fn insert(&mut self, open: Open, depth: u16) -> Option<Slot> {
        if self.count() >= usize::from(depth) {
            return None;
        }
        let place = self.free.pop()?;
        self.alike[kind_of(open.id)] += 1;
        self.entries[usize::from(place)] = Some(open);
        Some(Slot(place))
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Open> {
        self.entries[slot.index()].as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Open> {
        self.entries[slot.index()].as_mut()
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(open) = self.entries[slot.index()].take() {
            self.alike[kind_of(open.id)] -= 1;
            self.free.push(slot.0);
        }
    }
}

fn kind_of(id: u16) -> usize {
    usize::from(id) % KINDS
}

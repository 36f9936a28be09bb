//! Sets of member nodes as bits, so that a write in flight costs no allocation.
//!
//! A node takes a seat when it first appears as a member and keeps it until it has left the
//! configuration and every set.

use base::NodeId;
use core::ops::Deref;

/// More than the members of any configuration, and those that just left.
const SEATS_MAX: usize = 64;

/// A set of seated nodes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct NodeSet(u64);

impl NodeSet {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, seat: u32) -> bool {
        self.0 & (1 << seat) != 0
    }

    pub(super) fn add(&mut self, seat: u32) {
        self.0 |= 1 << seat;
    }

    /// Takes out who is not in the other set.
    pub(super) fn keep(&mut self, other: NodeSet) {
        self.0 &= other.0;
    }

    /// Those of both sets.
    pub(super) fn with(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    /// Those that are not in the other set.
    pub(super) fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    /// Takes it out; true if it was in.
    pub(super) fn drop(&mut self, seat: u32) -> bool {
        let had = self.has(seat);
        self.0 &= !(1 << seat);
        had
    }
}

/// A few nodes, in order, without an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes {
    nodes: [NodeId; SEATS_MAX],
    count: usize,
}

impl Nodes {
    pub(super) fn new() -> Nodes {
        Nodes { nodes: [NodeId(0); SEATS_MAX], count: 0 }
    }

    /// Appends a node, unless it is among them.
    pub(super) fn push(&mut self, node: NodeId) {
        if !self.contains(&node) {
            self.nodes[self.count] = node;
            self.count += 1;
        }
    }
}

impl Deref for Nodes {
    type Target = [NodeId];
    fn deref(&self) -> &[NodeId] {
        &self.nodes[..self.count]
    }
}

impl Extend<NodeId> for Nodes {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|node| self.push(node));
    }
}

impl IntoIterator for Nodes {
    type Item = NodeId;
    type IntoIter = core::iter::Take<core::array::IntoIter<NodeId, SEATS_MAX>>;
    fn into_iter(self) -> Self::IntoIter {
        self.nodes.into_iter().take(self.count)
    }
}

/// Who sits where.
#[derive(Debug)]
pub(super) struct Seats([Option<NodeId>; SEATS_MAX]);

impl Seats {
    pub(super) fn new() -> Seats {
        Seats([None; SEATS_MAX])
    }

    /// The seat of `node`, if it has one.
    pub(super) fn find(&self, node: NodeId) -> Option<u32> {
        let at = self.0.iter().position(|seat| *seat == Some(node))?;
        Some(u32::try_from(at).expect("64 seats"))
    }

    /// The seat of `node`, given now if it has none.
    pub(super) fn give(&mut self, node: NodeId) -> u32 {
        if let Some(seat) = self.find(node) {
            return seat;
        }
        let at = self.0.iter().position(Option::is_none).expect("seats of members are freed");
        self.0[at] = Some(node);
        u32::try_from(at).expect("64 seats")
    }

    /// Frees the seats of nodes for which `keep` is false. They must be in no set any more.
    pub(super) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        for seat in &mut self.0 {
            if seat.is_some_and(|node| !keep(node)) {
                *seat = None;
            }
        }
    }
}

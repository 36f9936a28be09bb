//! What a member keeps on stable storage.

use crate::door::SeenGeneration;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Incarnation, NodeId, VoterId};
use wire::Configuration;

/// The whole durable state of a member: register, identity, bitmap slots. Written as one, twice
/// alternately, so that a torn write loses nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record {
    /// Identity of this memory.
    pub voter: VoterId,
    /// Present life of the disk cache.
    pub incarnation: Incarnation,
    /// Number of starts of a process on this record: the first half of its generation.
    pub life: u64,
    /// Which half of the activity log this life writes.
    pub log_half: u8,
    /// No lower ballot is promised or accepted.
    pub promised: Ballot,
    /// What was accepted last, with its ballot.
    pub accepted: Option<(Ballot, Box<Configuration>)>,
    /// The newest configuration known to be committed, with its ballot.
    pub committed: Option<(Ballot, Box<Configuration>)>,
    /// Bitmap slots: (node, its voter, slot).
    pub slots: Vec<(NodeId, VoterId, u8)>,
    /// Highest generations that peers reported.
    pub seen: Vec<SeenGeneration>,
    /// The boot of the machine in which this record was written.
    pub boot: u128,
    /// The process stopped in good order: everything is flushed and nothing is in doubt.
    pub clean: bool,
}

//! The configuration register, the lease, the in-sync set and who is primary.

use crate::disk::Record;
use crate::door::{MemberInput, MemberOutput, Timing};
use alloc::vec::Vec;
use base::{Instant, NodeId};
use wire::Configuration;

/// What a member is made of.
#[derive(Clone, Debug)]
pub struct MemberSetup {
    /// This node.
    pub node: NodeId,
    /// Random number of this process.
    pub process: u64,
    /// Number of shards.
    pub shards: u16,
    /// How long things may take.
    pub timing: Timing,
    /// Of all random choices.
    pub seed: u64,
    /// What was found on disk; `None`: this node holds neither data nor vote.
    pub record: Option<Record>,
    /// There is a usable disk with data.
    pub attached: bool,
    /// Generation found on disk at start: (life, log writes).
    pub found: (u64, u64),
    /// Who the members are, for a node that knows nothing yet.
    pub bootstrap: Option<Configuration>,
}

/// One node's share of a resource's configuration.
#[derive(Debug)]
pub struct Member {
    setup: MemberSetup,
}

impl Member {
    /// The member as it is at the start of a process.
    #[must_use]
    pub fn new(now: Instant, setup: MemberSetup) -> Member {
        let _ = now;
        Member { setup }
    }

    /// One input.
    pub fn step(&mut self, now: Instant, input: MemberInput, out: &mut Vec<MemberOutput>) {
        let _ = (now, input, out, &self.setup);
    }

    /// When time alone would change something.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        None
    }
}

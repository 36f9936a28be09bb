//! What the members of one resource say to each other about its configuration.
//!
//! All of it travels in the session between two nodes, in order. Every message may be lost with its
//! session; whoever needs an answer asks again.

use crate::{Configuration, ReservationCommand, ReservationRefusal};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, HostId, Incarnation, Instant, NodeId, VolumeId, VoterId};

/// Why a voter did not do what it was asked.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RefuseReason {
    /// It promised a higher ballot.
    Promised(Ballot),
    /// It granted a lease that still runs, for this many nanoseconds at most by its own clock.
    Leased {
        /// Who holds it.
        holder: NodeId,
        /// What is left of it, in nanoseconds.
        left: u64,
    },
    /// It is not a voter of this resource, or no longer.
    NotVoter,
}

/// Lives of one identity that its record names, at most: those that others may have heard of. 64 restarts
/// while one and the same peer hears of none of them.
pub const LIVES_MAX: usize = 64;

/// One life of a process on a node's metadata.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Life {
    /// Grows with each start.
    pub number: u64,
    /// Random number of the process: two histories of one disk have other ones.
    pub process: u64,
    /// Writes of record and log. As the node itself tells it: what the next start found, and `u64::MAX` in the
    /// present life. As others remember it: the most that they were told.
    pub writes: u64,
}

/// The last that was heard of a node's metadata in one of its lives.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Seen {
    /// Which node.
    pub node: NodeId,
    /// Under which identity.
    pub voter: VoterId,
    /// In which life.
    pub life: Life,
    /// Newest configuration that was known where it was heard.
    pub epoch: Epoch,
}

/// One message between two `Member` machines of a resource.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum MemberMessage {
    /// First in every session: who I am and what I know.
    Hello {
        /// The highest configuration known here and the ballot it was proposed in, if any.
        known: Option<(Ballot, Box<Configuration>)>,
        /// Identity of the memory that votes here; 0 if none does.
        voter: VoterId,
        /// Present life of the disk cache; 0 without a disk.
        incarnation: Incarnation,
        /// Lives of this identity that others may have heard of, at most `LIVES_MAX`, the present one last.
        lives: Vec<Life>,
        /// What was heard of the *receiver* that is not in its history: its disk went back in time.
        seen: Option<Seen>,
        /// Random number of this process's life: tells a reconnect from a restart.
        process: u64,
        /// The disk is attached and usable.
        attached: bool,
        /// The highest feature level that this node can act on.
        feature_level: u32,
    },
    /// Asks a voter for a promise.
    Prepare {
        /// The ballot asked for.
        ballot: Ballot,
    },
    /// Grants it: nothing lower will be accepted. Also grants the voter's lease to `ballot.node`.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// Who promises.
        voter: VoterId,
        /// What it accepted before, if anything.
        accepted: Option<(Ballot, Box<Configuration>)>,
    },
    /// Asks a voter to accept a value.
    Accept {
        /// The proposer's ballot.
        ballot: Ballot,
        /// The value proposed.
        configuration: Box<Configuration>,
    },
    /// It is on stable storage.
    Accepted {
        /// Of the accept.
        ballot: Ballot,
        /// Of the value accepted.
        epoch: Epoch,
        /// Who accepted.
        voter: VoterId,
    },
    /// The voter did not promise, accept or renew.
    Refused {
        /// Of what was asked.
        ballot: Ballot,
        /// Why.
        reason: RefuseReason,
    },
    /// This configuration is committed.
    Learn {
        /// The ballot it was committed in.
        ballot: Ballot,
        /// The configuration.
        configuration: Box<Configuration>,
    },
    /// It is stored here and every shard acts on it.
    Learned {
        /// Of the configuration.
        epoch: Epoch,
    },
    /// From the primary: renew my lease; I am alive.
    Heartbeat {
        /// The primary's ballot.
        ballot: Ballot,
        /// Its newest committed configuration.
        epoch: Epoch,
        /// Its clock when it sent this.
        sent: Instant,
        /// Generation of its own metadata: (life, log writes); (0, 0) without a disk.
        generation: (u64, u64),
        /// What it remembers of the others, so that this does not hang on its own disk.
        seen: Vec<Seen>,
    },
    /// What the sender remembers of others: before each promise, so that who asks for it counts no vote of a disk that
    /// went back in time; and after each hello.
    Heard {
        /// At most 64.
        seen: Vec<Seen>,
    },
    /// The lease is renewed from `sent` on, if the ballot is still good; else `Refused`.
    HeartbeatAnswer {
        /// Of the heartbeat.
        ballot: Ballot,
        /// Of the heartbeat.
        sent: Instant,
        /// Who renewed it; 0 if the sender does not vote.
        voter: VoterId,
        /// Newest configuration that every shard of the sender acts on.
        epoch: Epoch,
        /// Generation of the sender's metadata: (life, log writes).
        generation: (u64, u64),
        /// The sender has clients of its own and would rather be primary itself.
        wants: bool,
    },
    /// The lease is given back; whoever wants may have it.
    Release {
        /// The ballot it was held under.
        ballot: Ballot,
    },
    /// From a node with requests to a node that could be primary, or is: hand over to me.
    WantPrimary,
    /// From a primary that has drained: be primary now.
    HandOver {
        /// Of the configuration that has no primary.
        epoch: Epoch,
    },
    /// To a node whose history went another way: how much was changed here since.
    Diverged {
        /// Sectors, counted in whole blocks.
        sectors: u64,
    },
    /// From a replica to the primary: my copy is worthless. Leave me out, and copy everything anew.
    Invalidate {
        /// The incarnation that the configuration names for it. If it names another, this is done.
        incarnation: Incarnation,
    },
    /// To the primary: a host of mine asks for this.
    Reserve {
        /// Chosen by the sender, unique in the session.
        number: u64,
        /// Of which volume.
        volume: VolumeId,
        /// Which host.
        host: HostId,
        /// What.
        command: ReservationCommand,
    },
    /// Answer to `Reserve`.
    Reserved {
        /// Of the question.
        number: u64,
        /// The configuration in which it is so.
        result: Result<Epoch, ReservationRefusal>,
    },
}

//! How a connection between two nodes begins and ends.
//!
//! Both ends send `Hello` first and judge the other's with `agree`, which gives both the same
//! answer. Then the link proves who the peer is (`Authenticate`, opaque here), both tell which
//! resources they have, and the frames of members and shards follow.
//!
//! Always: `Hello` keeps its bytes for ever, so that any two versions can tell why they do not
//! understand each other. What later versions add to it stands behind what is known here.
//!
//! Not here: keys and ciphers, reconnecting (`link`).

use crate::codec::{DecodeError, Put, Reader};
use crate::frame::FrameError;
use crate::voucher::{self, SignedVoucher};
use alloc::vec::Vec;
use base::{ClusterId, NodeId, ResourceId};

/// The oldest version of the protocol that is spoken here.
pub const VERSION_MIN: u16 = 1;
/// The newest version of the protocol that is spoken here.
pub const VERSION_MAX: u16 = 1;

/// What the link needs to prove a peer, in bytes; two certificates' worth of proof, not of chain.
pub const AUTHENTICATE_BYTES_MAX: usize = 1024;
/// Bytes behind the known part of a `Hello`.
pub const HELLO_UNKNOWN_BYTES_MAX: usize = 1024;
/// Connections that two nodes have with each other at most: one for each thread of the node with more.
pub const STREAMS_MAX: u16 = 16;
/// Resources named in one message; who has more sends another.
pub const RESOURCES_MAX: usize = 4096;
/// What a resource is said to be, in bytes; the largest description takes a quarter of it.
pub const DESCRIPTION_BYTES_MAX: usize = 256 * 1024;

const HELLO: u16 = 0x0101;
const AUTHENTICATE: u16 = 0x0102;
const RESOURCES: u16 = 0x0103;
const PING: u16 = 0x0104;
const PONG: u16 = 0x0105;
const GOODBYE: u16 = 0x0106;
const JOINED: u16 = 0x0107;
const DESCRIBE: u16 = 0x0108;
const DESCRIPTION: u16 = 0x0109;
const DELETED: u16 = 0x010a;
const VOUCHER: u16 = 0x010b;

/// Who calls, and what it can do.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Hello {
    /// The oldest version that the sender speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// Features that it can use, one bit each.
    pub features_offered: u64,
    /// Features without which it does not talk; among the offered ones.
    pub features_required: u64,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
    /// Random number of its process's life.
    pub process: u64,
    /// Which of the streams between the two nodes this connection is, from 0.
    pub stream: u16,
    /// How many the sender needs: a power of two, `STREAMS_MAX` at most.
    pub streams: u16,
    /// What newer versions add, kept as it is.
    pub unknown: Vec<u8>,
}

/// What both ends go by.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Agreed {
    /// The newest version that both speak.
    pub version: u16,
    /// The features that both can use.
    pub features: u64,
    /// Which stream this connection is.
    pub stream: u16,
    /// How many streams there are: the larger of both numbers.
    pub streams: u16,
}

/// Why two nodes do not talk.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Disagreement {
    /// They are of different clusters.
    Cluster,
    /// Both are the same node: a wrong address, or a number given twice.
    SameNode,
    /// No version is spoken by both: one must be upgraded.
    Version,
    /// One requires these features, which the other does not offer.
    Features(u64),
    /// They do not mean the same stream, or one beyond the number, or no number that can be.
    Stream,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GoodbyeReason {
    /// The sender's process stops.
    Stopping,
    /// A newer connection takes the place of this one.
    Replaced,
    /// The sender knows no cause to talk to this node (any more).
    Unwanted,
    /// The peer did not prove who it is.
    NotAuthentic,
    /// The `Hello`s do not agree; the peer can tell why from its own copy.
    Disagreed,
    /// The peer sent what it must not send.
    Fault,
}

/// One message between two nodes that concerns no resource.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NodeMessage {
    /// First, from both ends.
    Hello(Hello),
    /// Part of the proof of who the peer is; only the link looks inside.
    Authenticate {
        /// Which part, counted by the link.
        step: u8,
        /// `AUTHENTICATE_BYTES_MAX` at most.
        proof: Vec<u8>,
    },
    /// Resources that the sender has, in one or more parts; a later list takes the place of the
    /// former.
    Resources {
        /// `RESOURCES_MAX` at most, ascending.
        resources: Vec<ResourceLife>,
        /// No more parts follow.
        last: bool,
    },
    /// What follows about these resources is for these lives of them at the receiver; what came
    /// before was for earlier ones.
    Joined {
        /// `RESOURCES_MAX` at most, ascending.
        resources: Vec<ResourceLife>,
    },
    /// What is this resource?
    Describe {
        /// One that the receiver has.
        resource: ResourceId,
    },
    /// The answer, if the asker is one of its nodes.
    Description {
        /// Which.
        resource: ResourceId,
        /// A `ResourceFile` in JSON, `DESCRIPTION_BYTES_MAX` at most.
        text: Vec<u8>,
    },
    /// These resources are deleted for good.
    Deleted {
        /// `RESOURCES_MAX` at most, ascending.
        resources: Vec<ResourceId>,
    },
    /// A member of a resource, not always the sender, says which nodes it has.
    Voucher(SignedVoucher),
    /// Answer this.
    Ping {
        /// Chosen by the sender.
        number: u64,
    },
    /// The answer.
    Pong {
        /// Of the ping.
        number: u64,
    },
    /// Nothing follows; the connection may be closed.
    Goodbye {
        /// Why.
        reason: GoodbyeReason,
    },
}

/// A resource as long as a node runs it without a break.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ResourceLife {
    /// Which.
    pub resource: ResourceId,
    /// Never twice the same for one process.
    pub life: u64,
}

/// What two nodes go by that sent each other `ours` and `theirs`. Both ends come to the same result.
///
/// # Errors
/// The first of the listed reasons that holds.
pub fn agree(ours: &Hello, theirs: &Hello) -> Result<Agreed, Disagreement> {
    if ours.cluster != theirs.cluster {
        return Err(Disagreement::Cluster);
    }
    if ours.node == theirs.node {
        return Err(Disagreement::SameNode);
    }
    let version = ours.version_max.min(theirs.version_max);
    if version < ours.version_min || version < theirs.version_min {
        return Err(Disagreement::Version);
    }
    let missing = (ours.features_required & !theirs.features_offered)
        | (theirs.features_required & !ours.features_offered);
    if missing != 0 {
        return Err(Disagreement::Features(missing));
    }
    let streams = ours.streams.max(theirs.streams);
    let can_be = |streams: u16| streams.is_power_of_two() && streams <= STREAMS_MAX;
    let known = can_be(ours.streams) && can_be(theirs.streams);
    if !known || ours.stream != theirs.stream || ours.stream >= streams {
        return Err(Disagreement::Stream);
    }
    let features = ours.features_offered & theirs.features_offered;
    Ok(Agreed { version, features, stream: ours.stream, streams })
}

/// Whether `kind` is one of those above.
pub(crate) fn is_known(kind: u16) -> bool {
    (HELLO..=VOUCHER).contains(&kind)
}

/// Whether a frame of `kind` may come before its sender has proved who it is.
pub(crate) fn is_early(kind: u16) -> bool {
    matches!(kind, HELLO | AUTHENTICATE | GOODBYE)
}

/// The number of `message`'s kind.
pub(crate) fn kind(message: &NodeMessage) -> u16 {
    match message {
        NodeMessage::Hello(_) => HELLO,
        NodeMessage::Authenticate { .. } => AUTHENTICATE,
        NodeMessage::Resources { .. } => RESOURCES,
        NodeMessage::Ping { .. } => PING,
        NodeMessage::Pong { .. } => PONG,
        NodeMessage::Goodbye { .. } => GOODBYE,
        NodeMessage::Joined { .. } => JOINED,
        NodeMessage::Describe { .. } => DESCRIBE,
        NodeMessage::Description { .. } => DESCRIPTION,
        NodeMessage::Deleted { .. } => DELETED,
        NodeMessage::Voucher(_) => VOUCHER,
    }
}

/// What is wrong with `message`.
pub(crate) fn check(message: &NodeMessage) -> Result<(), &'static str> {
    match message {
        NodeMessage::Hello(hello) => check_hello(hello),
        NodeMessage::Authenticate { proof, .. } if proof.len() > AUTHENTICATE_BYTES_MAX => {
            Err("too long a proof")
        }
        NodeMessage::Resources { resources, .. } | NodeMessage::Joined { resources } => {
            check_list(resources, |entry| entry.resource)
        }
        NodeMessage::Deleted { resources } => check_list(resources, |&resource| resource),
        NodeMessage::Voucher(signed) => voucher::check_signed(signed),
        NodeMessage::Description { text, .. } if text.len() > DESCRIPTION_BYTES_MAX => {
            Err("too long a description")
        }
        _ => Ok(()),
    }
}

fn check_list<T>(list: &[T], resource: impl Fn(&T) -> ResourceId) -> Result<(), &'static str> {
    if list.len() > RESOURCES_MAX {
        return Err("too many resources in one message");
    }
    if !list.is_sorted_by(|a, b| resource(a) < resource(b)) {
        return Err("resources do not ascend");
    }
    Ok(())
}

fn check_hello(hello: &Hello) -> Result<(), &'static str> {
    if hello.version_min == 0 || hello.version_min > hello.version_max {
        return Err("an empty range of versions");
    }
    if hello.features_required & !hello.features_offered != 0 {
        return Err("a feature is required but not offered");
    }
    if hello.node == NodeId(0) {
        return Err("node 0 is no node");
    }
    if hello.streams == 0 {
        return Err("no streams");
    }
    if hello.unknown.len() > HELLO_UNKNOWN_BYTES_MAX {
        return Err("too long a hello");
    }
    Ok(())
}

/// Appends the body of `message`.
pub(crate) fn put_body(message: &NodeMessage, out: &mut Vec<u8>) {
    match message {
        NodeMessage::Hello(hello) => {
            out.put_u16(hello.version_min);
            out.put_u16(hello.version_max);
            out.put_u16(hello.stream);
            out.put_u16(hello.streams);
            out.put_u64(hello.features_offered);
            out.put_u64(hello.features_required);
            out.put_u64(hello.cluster.0);
            out.put_u64(hello.process);
            out.put_u16(hello.node.0);
            out.extend_from_slice(&hello.unknown);
        }
        NodeMessage::Authenticate { step, proof } => {
            out.put_u8(*step);
            out.extend_from_slice(proof);
        }
        NodeMessage::Resources { resources, last } => {
            out.put_bool(*last);
            put_lives(resources, out);
        }
        NodeMessage::Joined { resources } => put_lives(resources, out),
        NodeMessage::Describe { resource } => out.put_u64(resource.0),
        NodeMessage::Description { resource, text } => {
            out.put_u64(resource.0);
            out.extend_from_slice(text);
        }
        NodeMessage::Deleted { resources } => {
            for resource in resources {
                out.put_u64(resource.0);
            }
        }
        NodeMessage::Voucher(signed) => voucher::put_signed(signed, out),
        NodeMessage::Ping { number } | NodeMessage::Pong { number } => out.put_u64(*number),
        NodeMessage::Goodbye { reason } => out.put_u8(match reason {
            GoodbyeReason::Stopping => 1,
            GoodbyeReason::Replaced => 2,
            GoodbyeReason::Unwanted => 3,
            GoodbyeReason::NotAuthentic => 4,
            GoodbyeReason::Disagreed => 5,
            GoodbyeReason::Fault => 6,
        }),
    }
}

fn put_lives(lives: &[ResourceLife], out: &mut Vec<u8>) {
    for entry in lives {
        out.put_u64(entry.resource.0);
        out.put_u64(entry.life);
    }
}

/// The message of this kind that `body` holds.
pub(crate) fn take(kind: u16, body: &[u8]) -> Result<NodeMessage, FrameError> {
    let mut body = Reader::new(body);
    let message = match kind {
        HELLO => {
            let hello = take_hello(&mut body)?;
            return Ok(NodeMessage::Hello(Hello { unknown: body.rest().to_vec(), ..hello }));
        }
        AUTHENTICATE => {
            let step = body.u8()?;
            return Ok(NodeMessage::Authenticate { step, proof: body.rest().to_vec() });
        }
        RESOURCES => {
            let last = body.bool()?;
            NodeMessage::Resources { resources: take_lives(&mut body)?, last }
        }
        JOINED => NodeMessage::Joined { resources: take_lives(&mut body)? },
        DESCRIBE => NodeMessage::Describe { resource: ResourceId(body.u64()?) },
        DESCRIPTION => {
            let resource = ResourceId(body.u64()?);
            return Ok(NodeMessage::Description { resource, text: body.rest().to_vec() });
        }
        DELETED => {
            let mut resources = Vec::with_capacity(body.rest().len() / 8);
            while !body.is_empty() {
                resources.push(ResourceId(body.u64()?));
            }
            NodeMessage::Deleted { resources }
        }
        VOUCHER => return Ok(NodeMessage::Voucher(voucher::take_signed(&mut body)?)),
        PING => NodeMessage::Ping { number: body.u64()? },
        PONG => NodeMessage::Pong { number: body.u64()? },
        GOODBYE => NodeMessage::Goodbye { reason: take_goodbye(body.u8()?)? },
        other => return Err(FrameError::UnknownKind(other)),
    };
    body.finish()?;
    Ok(message)
}

fn take_lives(body: &mut Reader<'_>) -> Result<Vec<ResourceLife>, DecodeError> {
    let mut lives = Vec::with_capacity(body.rest().len() / 16);
    while !body.is_empty() {
        lives.push(ResourceLife { resource: ResourceId(body.u64()?), life: body.u64()? });
    }
    Ok(lives)
}

fn take_hello(body: &mut Reader<'_>) -> Result<Hello, DecodeError> {
    Ok(Hello {
        version_min: body.u16()?,
        version_max: body.u16()?,
        stream: body.u16()?,
        streams: body.u16()?,
        features_offered: body.u64()?,
        features_required: body.u64()?,
        cluster: ClusterId(body.u64()?),
        process: body.u64()?,
        node: NodeId(body.u16()?),
        unknown: Vec::new(),
    })
}

fn take_goodbye(reason: u8) -> Result<GoodbyeReason, DecodeError> {
    match reason {
        1 => Ok(GoodbyeReason::Stopping),
        2 => Ok(GoodbyeReason::Replaced),
        3 => Ok(GoodbyeReason::Unwanted),
        4 => Ok(GoodbyeReason::NotAuthentic),
        5 => Ok(GoodbyeReason::Disagreed),
        6 => Ok(GoodbyeReason::Fault),
        _ => Err(DecodeError::Damaged("an unknown reason")),
    }
}

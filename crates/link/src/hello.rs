//! Judging a peer's hello: what it says must fit its certificate and this node.
//!
//! `wire::hello` compares the two hellos; here the certificate is added, and each disagreement gets a
//! text an operator can act on.

use std::fmt;

use base::{ClusterId, NodeId};
use wire::{Agreed, Disagreement, Hello, agree};

use crate::{Claims, Peer};

/// Why a peer's hello does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HelloError {
    /// It is of another cluster.
    OtherCluster {
        /// The cluster here.
        local: ClusterId,
        /// The cluster in its hello.
        remote: ClusterId,
    },
    /// Its hello and its certificate name different nodes.
    OtherNode {
        /// The node in its hello.
        says: NodeId,
        /// Whom its certificate names.
        certified: Peer,
    },
    /// It calls itself by this node's own number.
    SameNode(NodeId),
    /// No version is spoken by both.
    Version {
        /// Oldest and newest version spoken here.
        local: (u16, u16),
        /// Oldest and newest version spoken by the peer.
        remote: (u16, u16),
    },
    /// One end requires features that the other does not have, one bit each.
    Features(u64),
    /// The streams do not fit each other.
    Stream {
        /// Which stream the connection is here, and of how many.
        local: (u16, u16),
        /// The same at the peer.
        remote: (u16, u16),
    },
    /// It began with something else than a hello.
    Missing,
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::OtherCluster { local, remote } => write!(
                f,
                "the peer belongs to cluster {:016x}, this node to {:016x}: check its address",
                remote.0, local.0
            ),
            HelloError::OtherNode { says, certified } => write!(
                f,
                "the peer says it is node {says}, but its certificate is for {certified}: give it \
                 the certificate of its own node"
            ),
            HelloError::SameNode(node) => write!(
                f,
                "the peer is node {node} as well: an address leads back here, or a number was given \
                 twice"
            ),
            HelloError::Version { local, remote } => write!(
                f,
                "versions {} to {} are spoken here, {} to {} by the peer: upgrade the older node",
                local.0, local.1, remote.0, remote.1
            ),
            HelloError::Features(bits) => write!(
                f,
                "features {bits:#x} are required by one node and unknown to the other: upgrade the \
                 older node"
            ),
            HelloError::Stream { local, remote } => write!(
                f,
                "stream {} of {} here is stream {} of {} at the peer: a fault of one of them",
                local.0, local.1, remote.0, remote.1
            ),
            HelloError::Missing => f.write_str("the peer did not begin with a hello"),
        }
    }
}

impl std::error::Error for HelloError {}

/// What both ends go by, if the peer's hello fits `ours` and its certificate.
///
/// # Errors
/// The first disagreement: the cluster, the certificate, then as `wire::agree` has it.
pub fn judge(ours: &Hello, theirs: &Hello, claims: &Claims) -> Result<Agreed, HelloError> {
    let certified = claims.peer == Peer::Node(theirs.node);
    if theirs.cluster == ours.cluster && !certified {
        let certified = claims.peer.clone();
        return Err(HelloError::OtherNode { says: theirs.node, certified });
    }
    agree(ours, theirs).map_err(|disagreement| match disagreement {
        Disagreement::Cluster => {
            HelloError::OtherCluster { local: ours.cluster, remote: theirs.cluster }
        }
        Disagreement::SameNode => HelloError::SameNode(ours.node),
        Disagreement::Version => HelloError::Version {
            local: (ours.version_min, ours.version_max),
            remote: (theirs.version_min, theirs.version_max),
        },
        Disagreement::Features(bits) => HelloError::Features(bits),
        Disagreement::Stream => HelloError::Stream {
            local: (ours.stream, ours.streams),
            remote: (theirs.stream, theirs.streams),
        },
    })
}

//! Why a connection between two nodes ends, in words an operator can act on.
//!
//! One enum at this crate's boundary. A caller decides only between "try again later" (all of them)
//! and "tell a person" ([`LinkError::needs_attention`]); the text says what to do.
//!
//! Not here: what the kernel says about sockets (`sys::Errno`).

use std::fmt;

use base::{ClusterId, NodeId};
use wire::{FrameError, GoodbyeReason};

use crate::{HelloError, LinkMode, Peer};

/// Why a certificate is not accepted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Its time is over, or the clock here is wrong.
    Expired,
    /// Its time has not begun, or the clock here is wrong.
    NotYetValid,
    /// It was not issued by an authority that this node trusts.
    UnknownAuthority,
    /// It belongs to another cluster.
    OtherCluster {
        /// The cluster that this node belongs to.
        local: ClusterId,
        /// The cluster that the certificate names.
        remote: ClusterId,
    },
    /// Its serial number or its node is on the revocation list.
    Revoked,
    /// It does not name a node or client of a Lockstep cluster in exactly one way.
    NoName,
    /// It may not be used for this end of a connection.
    WrongPurpose,
    /// It cannot be read.
    Damaged,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Expired => {
                f.write_str("its certificate has expired: renew it, if the clock is right")
            }
            Refusal::NotYetValid => f.write_str(
                "its certificate is not valid yet: compare the clocks of both nodes and of whoever \
                 issued it",
            ),
            Refusal::UnknownAuthority => f.write_str(
                "its certificate was not issued by this cluster's authority: issue it a new one, or \
                 add that authority to those trusted here",
            ),
            Refusal::OtherCluster { local, remote } => write!(
                f,
                "it belongs to cluster {:016x}, this node to {:016x}: check the peer's address",
                remote.0, local.0
            ),
            Refusal::Revoked => f.write_str("its certificate is revoked: issue it a new one"),
            Refusal::NoName => {
                f.write_str("its certificate names no node or client of a Lockstep cluster")
            }
            Refusal::WrongPurpose => {
                f.write_str("its certificate is a client's, not a node's: issue one for a node")
            }
            Refusal::Damaged => f.write_str("its certificate cannot be read"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Why a session ended. After any of them, send what [`crate::Session::outgoing`] still gives (it
/// tells the peer why), then close the socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkError {
    /// The peer's certificate was refused here.
    Refused(Refusal),
    /// The peer refused this node's certificate, for this reason if TLS can say it.
    RefusedByPeer(Option<Refusal>),
    /// Someone else of this cluster answers at the address.
    OtherPeer {
        /// Who should be there.
        expected: NodeId,
        /// Who is.
        found: Peer,
    },
    /// The two ends disagree about link encryption.
    ModeMismatch {
        /// The setting here.
        local: LinkMode,
        /// The setting at the peer.
        remote: LinkMode,
    },
    /// The peer's link layer speaks no version that is known here.
    Version(u8),
    /// More bytes came before authentication than anybody honest needs.
    TooMuchBeforeAuthentication,
    /// What came is not TLS, was changed on the way, or breaks its rules.
    Tls(String),
    /// The peer closed the connection.
    Closed,
    /// The connection ended in the middle of something.
    CutShort,
    /// A frame is damaged or makes no sense.
    Frame(FrameError),
    /// The peer ended it before both had agreed.
    Dismissed(GoodbyeReason),
    /// The peer's hello does not fit.
    Hello(HelloError),
}

impl LinkError {
    /// Trying again will not help until a person changed something.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        !matches!(self, LinkError::Closed | LinkError::CutShort)
    }

    /// What came cannot be: damage, or no node of ours. Not merely somebody who is not let in.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            LinkError::Version(_)
                | LinkError::TooMuchBeforeAuthentication
                | LinkError::Tls(_)
                | LinkError::Frame(_)
                | LinkError::Hello(HelloError::Missing)
        )
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Refused(why) => write!(f, "the peer is refused: {why}"),
            LinkError::RefusedByPeer(Some(why)) => {
                write!(f, "the peer refuses this node; it says of it: {why}")
            }
            LinkError::RefusedByPeer(None) => {
                f.write_str("the peer refuses this node: its log says why")
            }
            LinkError::OtherPeer { expected, found } => {
                write!(f, "{found} answers where node {expected} should be: check its address")
            }
            LinkError::ModeMismatch { local, remote } => write!(
                f,
                "link-encryption is {local} here and {remote} at the peer: set both alike"
            ),
            LinkError::Version(number) => {
                write!(f, "the peer's link version {number} is not known here: upgrade this node")
            }
            LinkError::TooMuchBeforeAuthentication => {
                f.write_str("too many bytes before authentication: is it a Lockstep node?")
            }
            LinkError::Tls(what) => write!(f, "TLS: {what}"),
            LinkError::Closed => f.write_str("the peer closed the connection"),
            LinkError::CutShort => f.write_str("the connection was cut short"),
            LinkError::Frame(what) => write!(f, "frames: {what}"),
            LinkError::Dismissed(reason) => f.write_str(match reason {
                GoodbyeReason::Stopping => "the peer is stopping",
                GoodbyeReason::Replaced => "the peer has a newer connection",
                GoodbyeReason::Unwanted => "the peer has nothing to share with this node",
                GoodbyeReason::NotAuthentic => "the peer does not believe who this node is",
                GoodbyeReason::Disagreed => "the peer disagrees with this node's hello",
                GoodbyeReason::Fault => "the peer says this node is at fault; its log says why",
            }),
            LinkError::Hello(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for LinkError {}

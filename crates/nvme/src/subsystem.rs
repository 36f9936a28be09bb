//! What a host may connect to, as the owner describes it.

use alloc::string::String;
use alloc::vec::Vec;

/// A resource, as hosts see it: one subsystem, which every node of the resource offers under the same name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Subsystem {
    /// Its qualified name, at most [`crate::NQN_BYTES_MAX`] bytes.
    pub nqn: String,
    /// Serial number: the same at every node, at most 20 ASCII characters.
    pub serial: String,
    /// Its volumes, in the order of their ids.
    pub namespaces: Vec<Namespace>,
    /// Ids of those whose reservations persist through a loss of power.
    pub persistent: Vec<u32>,
    /// How this node reaches the volumes.
    pub access: Access,
}

/// A volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Namespace {
    /// Hosts may keep each other from it.
    pub reserves: bool,
    /// From 1 to [`crate::NAMESPACES_MAX`]; the same at every node.
    pub id: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// Bytes of a block as a power of two: 9 or 12.
    pub block_shift: u8,
    /// Identifies the volume everywhere and for ever. Not 0.
    pub nguid: [u8; 16],
}

/// Asymmetric namespace access: what the path through this node is worth. All volumes of a resource share it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// The primary is here.
    Optimized,
    /// Requests are forwarded to the primary.
    NonOptimized,
    /// Nothing can be done through this node now.
    Inaccessible,
}

impl Access {
    /// Its value in the log page.
    pub(crate) fn value(self) -> u8 {
        match self {
            Access::Optimized => 1,
            Access::NonOptimized => 2,
            Access::Inaccessible => 3,
        }
    }
}

/// A subsystem at a node, as the discovery service tells of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The subsystem's name.
    pub nqn: String,
    /// The node's address, without a port.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// The address is of IPv6.
    pub ipv6: bool,
    /// Number of the node, so that its port has a name.
    pub node: u16,
    /// The host that asks has to speak TLS 1.3 there.
    pub tls: bool,
}

/// What a controller stands for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Service {
    /// The list of subsystems, and a number that grows when it changes.
    Discovery {
        /// All there is.
        entries: Vec<Entry>,
        /// Grows with each change.
        generation: u64,
    },
    /// A resource.
    Volumes(Subsystem),
}

impl Service {
    /// The volumes; none of the discovery service.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        match self {
            Service::Discovery { .. } => &[],
            Service::Volumes(subsystem) => &subsystem.namespaces,
        }
    }

    /// Whether reservations of this volume persist through a loss of power.
    pub(crate) fn persists(&self, id: u32) -> bool {
        matches!(self, Service::Volumes(subsystem) if subsystem.persistent.contains(&id))
    }

    /// The volume with this id.
    pub(crate) fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces().iter().find(|namespace| namespace.id == id)
    }
}

impl Namespace {
    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }
}

//! Names of things. Each is a newtype, so that no two kinds are ever mixed up.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// A node of the cluster. Given once, never reused within the cluster. 0 is no node.
    NodeId(u16)
}
id! {
    /// A cluster; random. Nodes of different clusters never talk to each other.
    ClusterId(u64)
}
id! {
    /// A resource, the unit of replication; random, given at creation.
    ResourceId(u64)
}
id! {
    /// A volume's index inside its resource.
    VolumeId(u16)
}
id! {
    /// Number of a configuration. Grows by one with each change.
    Epoch(u64)
}
id! {
    /// One life of a replica's disk cache; random. 0 is none.
    Incarnation(u64)
}
id! {
    /// One life of a voter's memory; random. A voter that lost its memory gets a new one.
    VoterId(u64)
}
id! {
    /// One connection between two nodes; both ends see the same frames in it, in order, once.
    /// Unique within the life of the process that uses it, and growing.
    SessionId(u64)
}
id! {
    /// A buffer held by the caller of a pure machine. The machine never sees its bytes.
    BufferId(u32)
}
id! {
    /// A client's request, chosen by who submits it; unique while it is open.
    RequestId(u64)
}

id! {
    /// A host, as it names itself to all its disks: the 128 bits of its NVMe host identifier. 0 is none.
    HostId(u128)
}

/// A proposer's number in the configuration register: larger rounds win, the node breaks ties.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ballot {
    /// Counts up; 0 is lower than any ballot in use.
    pub round: u64,
    /// Who proposes.
    pub node: NodeId,
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.round, self.node)
    }
}

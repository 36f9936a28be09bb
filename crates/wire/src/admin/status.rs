//! How a node and its resources are.
//!
//! Always: the fields of version 1 keep name and meaning; later ones are added. Nothing is ever only
//! text that a program would need to read apart.

use crate::Protocol;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Resources as one node sees them.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this form: 1.
    pub version: u16,
    /// Ascending by name.
    pub resources: Vec<ResourceStatus>,
    /// What an operator should know of the node that says this, one sentence each: of links and clients that are not
    /// encrypted, memory stores, faults.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Cluster of the node that says this, hexadecimal.
    #[serde(default)]
    pub cluster: String,
    /// Others come after the last of these: to be asked for by `StatusPage`.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub more: bool,
}

/// One resource as one node sees it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// Number of the newest configuration known here to be committed.
    pub epoch: u64,
    /// Name of the node that orders its writes, or did so until a moment ago: its lease may still run. `None` if there is
    /// none, also where the configuration names one whose process has ended since.
    pub primary: Option<String>,
    /// Whether this node reaches a majority of voters.
    pub quorum: bool,
    /// Why requests wait; `None` if they do not.
    pub suspended: Option<String>,
    /// Replicas, witnesses and clients known here, ascending by node number.
    pub replicas: Vec<ReplicaStatus>,
    /// Its identity, hexadecimal.
    #[serde(default)]
    pub id: String,
    /// This node was told of it and has never made its own part: a `create` is under way, or was interrupted.
    #[serde(default)]
    pub uncreated: bool,
    /// This node's part was made by an `add-replica`, and no configuration that it heard of has named it: that is under
    /// way, or was interrupted.
    #[serde(default)]
    pub unjoined: bool,
    /// The others have deleted it, and this node was away: what it holds is left over.
    #[serde(default)]
    pub left_over: bool,
    /// Epoch of the last promote.
    #[serde(default)]
    pub reign: u64,
    /// How often it was forced past its rules.
    #[serde(default)]
    pub fork: u64,
    /// Nodes whose copies or votes were left out when it was forced, and that were neither added again nor dismissed.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// All members lost their caches and are being made equal.
    #[serde(default)]
    pub recovering: bool,
    /// When a write counts as complete.
    #[serde(default)]
    pub protocol: Protocol,
    /// What is left of this node's lease as primary.
    #[serde(default)]
    pub lease_left_ms: Option<u64>,
    /// Requests that cannot be served are answered with an error at once, for the reason that `suspended` says
    /// (`on-no-quorum = io-error`, or `failed_by_operator`).
    #[serde(default)]
    pub requests_fail: bool,
    /// An operator asked this node for that: `resource fail-waiting`.
    #[serde(default)]
    pub failed_by_operator: bool,
    /// Its volumes, ascending by index.
    #[serde(default)]
    pub volumes: Vec<VolumeStatus>,
    /// Requests of this node's clients that are not answered yet.
    #[serde(default)]
    pub requests_in_flight: u64,
    /// NBD clients that have it open on this node.
    #[serde(default)]
    pub clients: u64,
    /// Whether everything between nodes is encrypted.
    #[serde(default)]
    pub link_encryption: bool,
    /// The last comparison of all replicas that was begun; `None` if there was none. The primary tells how far it is,
    /// the others what they heard last.
    #[serde(default)]
    pub verify: Option<Verifying>,
    /// An operator holds resync back.
    #[serde(default)]
    pub resync_paused: bool,
    /// What an operator should know, one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Name of the stretch of history that this node is on, hexadecimal; empty for the one that began with
    /// the resource. Another begins when a side goes on alone, is chosen, or is forced.
    #[serde(default)]
    pub history: String,
    /// Nodes whose history went another way than this one's.
    #[serde(default)]
    pub split_brain: Vec<SplitBrain>,
}

impl ResourceStatus {
    /// Whether nothing that one waits for is different: counters and clocks alone are no change.
    #[must_use]
    pub fn is_like(&self, other: &ResourceStatus) -> bool {
        self.still() == other.still()
    }

    fn still(&self) -> ResourceStatus {
        let split = |split: &SplitBrain| SplitBrain { mine_changed_bytes: 0, ..split.clone() };
        let replica = |replica: &ReplicaStatus| ReplicaStatus {
            heard_ms_ago: None,
            reason: None,
            rot: None,
            ..replica.clone()
        };
        ResourceStatus {
            lease_left_ms: None,
            requests_in_flight: 0,
            split_brain: self.split_brain.iter().map(split).collect(),
            replicas: self.replicas.iter().map(replica).collect(),
            ..self.clone()
        }
    }
}

/// Two histories of one resource, as one of the nodes sees them.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SplitBrain {
    /// Name of the node on the other side.
    pub node: String,
    /// Its number.
    pub node_id: u16,
    /// Name of this side: of the stretch of history with which it parted.
    pub mine: String,
    /// Name of the other side's.
    pub theirs: String,
    /// When this side went on alone: milliseconds since 1970, by the clock of the node that did.
    pub mine_since_ms: Option<u64>,
    /// When the other side did.
    pub theirs_since_ms: Option<u64>,
    /// Bytes in blocks that were written here since.
    pub mine_changed_bytes: u64,
    /// Bytes in blocks that had been written there when the sides met.
    pub theirs_changed_bytes: Option<u64>,
    /// The other side was chosen, or nothing is on this one: it is given up when its clients have left.
    pub discarded: bool,
}

/// One volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its index.
    pub volume: u16,
    /// Its size.
    pub size_bytes: u64,
    /// Its block.
    pub block_bytes: u32,
    /// Where NBD clients find it on this node, as URLs.
    #[serde(default)]
    pub nbd: Vec<String>,
    /// Where NVMe hosts find it on this node, as URLs: address and port, name of the subsystem, id of the namespace.
    #[serde(default)]
    pub nvme: Vec<String>,
    /// Where it is found by either on other nodes of the resource, as far as this node's settings say, as URLs.
    #[serde(default)]
    pub elsewhere: Vec<String>,
    /// How it grows; `None` if it does not.
    #[serde(default)]
    pub growth: Option<Growing>,
}

/// How far a volume that grows is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Growing {
    /// Its size once all that is added is zero on every replica that is in sync.
    pub to_bytes: u64,
    /// Of what is added, zero there. The primary tells; 0 elsewhere.
    pub done_bytes: u64,
    /// Added in all.
    pub total_bytes: u64,
}

/// One node's part in a resource.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Name of its node.
    pub node: String,
    /// How it is.
    pub state: ReplicaState,
    /// Whether the configuration names it as in sync.
    pub in_sync: bool,
    /// How far its resync is; `None` if there is none.
    pub resync: Option<Resync>,
    /// Number of its node.
    #[serde(default)]
    pub node_id: u16,
    /// Whether this node has a session with it (true for itself).
    #[serde(default)]
    pub connected: bool,
    /// What its store is made of: `file`, `device`, `memory`; unknown for another node's.
    #[serde(default)]
    pub store: Option<String>,
    /// Why there is no session with it, if that is known; why its copy does not count; of the node that says this, why
    /// its disk cannot be used.
    #[serde(default)]
    pub reason: Option<String>,
    /// The vote that the configuration names for it is gone: it does not count, though the node be connected.
    #[serde(default)]
    pub vote_lost: bool,
    /// Blocks of its store that changed by themselves, since it began to run; unknown for another node's, and without
    /// checksums of data.
    #[serde(default)]
    pub rot: Option<Rot>,
    /// How long ago this node heard from it last; `None` for itself, and for one that it has not heard
    /// since it started. Where nothing else is to be said, nodes speak to each other every second.
    #[serde(default)]
    pub heard_ms_ago: Option<u64>,
    /// How its last resync went that this node drove to its end, since this node's start.
    #[serde(default)]
    pub last_resync: Option<ResyncDone>,
}

/// Blocks of 4 KiB that were read and were not what was written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Rot {
    /// Found.
    pub found_blocks: u64,
    /// Of these, written anew since.
    pub repaired_blocks: u64,
}

/// A resync that came to its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ResyncDone {
    /// Sent, because it differed or might.
    pub copied_bytes: u64,
    /// Compared by checksum and found equal.
    pub equal_bytes: u64,
}

/// How a replica is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaState {
    /// It holds every acknowledged write.
    InSync,
    /// It is being made so.
    Syncing,
    /// It is reachable and lacks writes.
    Behind,
    /// Its disk failed or was taken away.
    Detached,
    /// It cannot be reached.
    Absent,
    /// It has no replica: a client.
    Diskless,
    /// It votes and holds no data.
    Witness,
    /// It is reachable, and its history went another way.
    SplitBrain,
}

/// How a comparison of all replicas stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyProgress {
    /// It goes on, whoever is primary.
    Running,
    /// An operator stopped it.
    Stopped,
    /// Everything was compared.
    Done,
}

/// How far a comparison of all replicas is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Verifying {
    /// How it stands.
    pub state: VerifyProgress,
    /// Compared, of all volumes.
    pub done_bytes: u64,
    /// To be compared in all.
    pub total_bytes: u64,
    /// Size of the pieces in which something differed and was repaired, be it one block; so far as it is known: a part that
    /// is being compared counts when it is done.
    pub repaired_bytes: u64,
    /// A replica was not in sync while something was compared, and so was not compared there.
    pub partial: bool,
    /// When it began, or, once it is done, when it ended: milliseconds since 1970 by the primary's clock; 0 if unknown.
    pub at_ms: u64,
}

/// How far a resync is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Resync {
    /// Copied or found equal.
    pub done_bytes: u64,
    /// To be copied in all.
    pub total_bytes: u64,
    /// Over the last seconds.
    pub rate_bytes_per_second: u64,
    /// At that rate; `None` while there is none.
    pub eta_seconds: Option<u64>,
}

/// A node.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its number.
    pub node_id: u16,
    /// Its cluster, hexadecimal.
    pub cluster: String,
    /// Version of the program.
    pub program: String,
    /// Since its process started.
    pub uptime_seconds: u64,
    /// How many resources it knows.
    pub resources: u64,
    /// Threads that serve them.
    #[serde(default = "one")]
    pub threads: u16,
    /// The other nodes that it talks to, ascending by number.
    pub peers: Vec<PeerStatus>,
    /// What an operator should know, one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Connections that were closed because of what came over them, since its process started.
    #[serde(default)]
    pub faults: Faults,
    /// How often a node spoke about a resource of this one that it has no part in, and was refused, since its
    /// process started: once for each connection and resource.
    #[serde(default)]
    pub outsiders: u64,
}

fn one() -> u16 {
    1
}

/// Connections that were closed because what came over them cannot be: damage, a program that is not
/// what it should be, or somebody who tries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// With other nodes, or with who came to their port.
    pub peers: u64,
    /// With NBD clients.
    pub nbd: u64,
    /// On the admin socket.
    pub admin: u64,
}

/// Another node, as this one sees it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub node: String,
    /// Its number.
    pub node_id: u16,
    /// Whether there is a session.
    pub connected: bool,
    /// Why there is none, if that is known.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A resource changed, or, at first, is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up within a connection from 1; a gap means that the client was too slow.
    pub number: u64,
    /// When, in milliseconds since 1970 by the node's clock.
    pub at_ms: u64,
    /// Name of the resource.
    pub resource: String,
    /// How it is now; `None`: it is gone.
    pub status: Option<ResourceStatus>,
}

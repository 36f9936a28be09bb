//! The value of a resource's configuration register.
//!
//! Voters store it without looking inside; members act on it once it is known to be committed.
//!
//! Always: `members` is sorted by node and holds each node once; `epoch >= reign`; a witness is never
//! in sync.

use crate::reservation::VolumeReservations;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, NodeId, VolumeId, VoterId};
use serde::{Deserialize, Serialize};

/// Replicas and witnesses together in one resource.
pub const MEMBERS_MAX: usize = 16;
/// Full copies in one resource.
pub const REPLICAS_MAX: usize = 8;
/// Volumes in one resource.
pub const VOLUMES_MAX: usize = 64;
/// Shards of one resource: as many as a node has threads, and as the activity log has room for.
pub const SHARDS_MAX: u16 = 8;

/// The feature level that every resource begins with: that of the first release.
pub const FEATURE_LEVEL_FIRST: u32 = 1;
/// From this one on hosts may keep each other from a volume. It rises to this level when the first host asks for that, so
/// that who does not use it can go back to an older release.
pub const FEATURE_LEVEL_RESERVATIONS: u32 = 2;
/// The highest feature level that this release can act on.
pub const FEATURE_LEVEL: u32 = 2;

/// What a limit on a resync's rate may be, in bytes per second: a copy of 256 KiB then takes four seconds at
/// most, and no product with a time overflows.
pub const RESYNC_RATES: core::ops::RangeInclusive<u64> = 64 << 10..=1 << 40;

/// Generations that a configuration remembers.
pub const LINEAGE_MAX: usize = 16;

/// What a member holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberKind {
    /// A full copy of every volume, and a vote.
    Replica,
    /// A vote on stable storage, and no data.
    Witness,
}

/// How much of an epoch tells one worthless copy from the next on the same node.
const VOID_MASK: u64 = 0xffff_ffff;

/// One replica or witness.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct MemberEntry {
    /// Which node it is on.
    pub node: NodeId,
    /// What it holds.
    pub kind: MemberKind,
    /// The memory that votes for it. Answers under another identity do not count. 0: its memory was lost,
    /// and the one that it has now does not vote yet.
    pub voter: VoterId,
    /// Whether it holds every acknowledged write, as long as its incarnation lasts.
    pub in_sync: bool,
    /// The life of its disk cache that `in_sync` speaks of. 0 for a witness; for a replica that is not in
    /// sync: nothing that it holds counts, as in `void`.
    pub incarnation: Incarnation,
}

impl MemberEntry {
    /// What stands for the incarnation of a replica whose copy was declared worthless in this epoch.
    #[must_use]
    pub fn void(epoch: Epoch) -> Incarnation {
        Incarnation(u64::MAX - (epoch.0 & VOID_MASK))
    }

    /// Whether nothing counts of what this replica holds: all of it is to be copied. A real incarnation is
    /// hardly ever taken for one, and then more is copied than need be.
    #[must_use]
    pub fn is_void(&self) -> bool {
        let named = self.incarnation.0;
        let nothing = named == 0 || named >= u64::MAX - VOID_MASK;
        self.kind == MemberKind::Replica && !self.in_sync && nothing
    }
}

/// One volume.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct VolumeEntry {
    /// Its index.
    pub volume: VolumeId,
    /// Size in sectors of 512 bytes; a multiple of the block.
    pub sectors: u64,
    /// The size that it is about to have, larger than `sectors`: what lies between is being made zero on
    /// every replica, and is no client's yet.
    pub grows_to: Option<u64>,
    /// Smallest unit of a request: 512 or 4096 bytes.
    pub block_bytes: u32,
}

impl VolumeEntry {
    /// Sectors that replicas keep the same: those of clients, and those that are being added.
    #[must_use]
    pub fn kept_sectors(&self) -> u64 {
        self.grows_to.unwrap_or(self.sectors)
    }
}

/// When a write counts as complete.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// Every in-sync replica has it in memory, and one on its disk.
    B,
    /// Every in-sync replica's disk has it.
    #[default]
    C,
}

/// What makes a write survive a power cut.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// The client's flushes.
    #[default]
    Flush,
    /// Every write does, as if each had FUA set.
    WriteThrough,
}

/// What happens to requests while there is no quorum.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnNoQuorum {
    /// They wait.
    #[default]
    SuspendIo,
    /// They fail.
    IoError,
}

/// What happens when a replica's disk fails.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnIoError {
    /// The replica leaves the in-sync set; its node goes on without a disk.
    #[default]
    Detach,
    /// The client gets the error of a failed write.
    PassOn,
}

/// Whether configuration changes need a majority of voters.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quorum {
    /// They do: no split brain.
    #[default]
    Majority,
    /// They are local; lineage tells ancestors from split brain afterwards.
    Off,
}

/// Whose changes are given up when two sides that went on without each other meet again.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterSplitBrain {
    /// Nobody's: they stay apart until an operator says.
    #[default]
    Disconnect,
    /// Those of the side that began to go on alone later, by the wall clocks of the two nodes.
    DiscardYounger,
    /// Those of the side that began to go on alone earlier, by the wall clocks of the two nodes.
    DiscardOlder,
    /// Those of the side that changed less; of the higher node if both changed as much.
    DiscardLeastChanges,
    /// Those of a side that changed nothing, if the other one did; else nobody's.
    DiscardZeroChanges,
    /// Those of the side that this node is on.
    DiscardNode(u16),
}

impl AfterSplitBrain {
    fn is_default(&self) -> bool {
        *self == AfterSplitBrain::Disconnect
    }
}

/// Which in-sync replica serves a read.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadPolicy {
    /// The primary's own replica if it has one, else as `LeastPending`.
    #[default]
    PreferLocal,
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest reads in flight.
    LeastPending,
    /// The one that answered fastest of late.
    LatencyAware,
    /// By address: consecutive stripes of 1 MiB go to consecutive replicas.
    Striped,
}

/// What an operator may choose per resource.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// When a write counts as complete.
    pub protocol: Protocol,
    /// What makes a write survive a power cut.
    pub durability: Durability,
    /// Whether configuration changes need a majority.
    pub quorum: Quorum,
    /// What happens to requests while there is no quorum.
    pub on_no_quorum: OnNoQuorum,
    /// What happens when a replica's disk fails.
    pub on_io_error: OnIoError,
    /// Which in-sync replica serves a read.
    pub read_policy: ReadPolicy,
    /// Requests wait while fewer replicas than this are in sync. 1..=[`REPLICAS_MAX`].
    pub in_sync_min: u8,
    /// Whether blocks carry checksums on disk.
    pub data_checksum: bool,
    /// What happens when two sides that went on without each other meet again. Only without quorum.
    #[serde(skip_serializing_if = "AfterSplitBrain::is_default")]
    pub after_split_brain: AfterSplitBrain,
    /// Bytes per second that resyncs copy or compare at most, all targets of the resource together; 0: no limit. Else in
    /// [`RESYNC_RATES`].
    #[serde(skip_serializing_if = "is_zero")]
    pub resync_rate_max: u64,
    /// Bytes per second that they keep although clients' requests wait for them; 0: they yield as far as it helps. Else in
    /// [`RESYNC_RATES`], and not above `resync_rate_max`.
    #[serde(skip_serializing_if = "is_zero")]
    pub resync_rate_min: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Default for Options {
    fn default() -> Options {
        Options {
            protocol: Protocol::C,
            durability: Durability::Flush,
            quorum: Quorum::Majority,
            on_no_quorum: OnNoQuorum::SuspendIo,
            on_io_error: OnIoError::Detach,
            read_policy: ReadPolicy::PreferLocal,
            in_sync_min: 1,
            data_checksum: false,
            after_split_brain: AfterSplitBrain::Disconnect,
            resync_rate_max: 0,
            resync_rate_min: 0,
        }
    }
}

/// A stretch of history that began with a change decided without a majority. The stretch before it ends,
/// for those who are on this one, at (`ballot`, `epoch`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Stretch {
    /// Random but for its lowest 16 bits, which are those of the reign in which it began; never 0, which stands for the
    /// stretch that began with the resource.
    pub id: u64,
    /// Ballot of the last configuration of the stretch before.
    pub ballot: Ballot,
    /// Epoch of the last configuration of the stretch before.
    pub epoch: Epoch,
    /// When it began, by the wall clock of the node that began it: milliseconds since 1970; 0 if unknown.
    pub at_ms: u64,
}

/// What an operator holds back, whoever is primary.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Held {
    /// Clients' requests wait.
    pub requests: bool,
    /// No replica is brought up to date.
    pub resync: bool,
}

/// How a comparison of the replicas stands.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum VerifyState {
    /// Whoever is primary goes on with it.
    Running,
    /// An operator stopped it; it can go on from where it is.
    Stopped,
    /// Everything was compared.
    Done,
}

/// The last comparison of the replicas that was begun.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct VerifyEntry {
    /// How it stands.
    pub state: VerifyState,
    /// Epoch of the configuration in which it began: its name. Never 0.
    pub began: Epoch,
    /// Volumes below this one are compared; of one that is done, the last.
    pub volume: VolumeId,
    /// Up to which sector that volume is.
    pub next: u64,
    /// Sectors in pieces that differed in what is compared, and were repaired. What lies behind `next` counts when `next`
    /// moves.
    pub repaired: u64,
    /// When it began, or ended: milliseconds since 1970; 0 if unknown.
    pub at_ms: u64,
    /// A replica was not in sync while something was compared, and so was not compared there.
    pub partial: bool,
}

/// A configuration of a resource.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Configuration {
    /// Number of this configuration.
    pub epoch: Epoch,
    /// Epoch of the promote that began the present primary's time; of the last one if there is none; 0 before
    /// the first.
    pub reign: Epoch,
    /// Who orders the writes. Need not be a member.
    pub primary: Option<NodeId>,
    /// Every member lost its cache; the hot extents are not yet reconciled and flushed.
    pub recovering: bool,
    /// Epoch of the change that registered the last loss of all caches; 0: there was none. What was opened before
    /// it is over.
    pub lost: Epoch,
    /// Number of times the resource was forced past its rules, and 0 if never: the name of its fork.
    pub fork: u64,
    /// What every member can do; rises only when every member can.
    pub feature_level: u32,
    /// Replicas and witnesses, ascending by node.
    pub members: Vec<MemberEntry>,
    /// Volumes, ascending by index.
    pub volumes: Vec<VolumeEntry>,
    /// What the operator chose.
    pub options: Options,
    /// Stretches of history that began without a majority, the newest last; the last `LINEAGE_MAX` of
    /// them. Empty as long as a majority decided everything.
    pub lineage: Vec<Stretch>,
    /// What an operator holds back.
    pub held: Held,
    /// The last comparison of the replicas; `None`: there was none.
    pub verify: Option<VerifyEntry>,
    /// Which hosts may use a volume, ascending by volume; of volumes that a host registered for.
    pub reservations: Vec<VolumeReservations>,
    /// Sections that this version does not understand, kept as they are.
    pub unknown: Vec<u8>,
}

impl Configuration {
    /// A resource's first configuration, which every member begins with: epoch 1, and nobody has been primary yet.
    #[must_use]
    pub fn first(
        members: Vec<MemberEntry>,
        volumes: Vec<VolumeEntry>,
        options: Options,
    ) -> Configuration {
        Configuration {
            epoch: Epoch(1),
            reign: Epoch(0),
            primary: None,
            recovering: false,
            lost: Epoch(0),
            fork: 0,
            feature_level: FEATURE_LEVEL_FIRST,
            members,
            volumes,
            options,
            lineage: Vec::new(),
            held: Held::default(),
            verify: None,
            reservations: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// The member on `node`.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&MemberEntry> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether `node` holds a replica that is in sync.
    #[must_use]
    pub fn is_in_sync(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| member.in_sync)
    }

    /// Whether `node` holds a replica, in sync or not.
    #[must_use]
    pub fn is_replica(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| member.kind == MemberKind::Replica)
    }

    /// Nodes whose replicas are in sync, ascending.
    pub fn in_sync(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|member| member.in_sync).map(|member| member.node)
    }

    /// Nodes that hold a replica, ascending.
    pub fn replicas(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members
            .iter()
            .filter(|member| member.kind == MemberKind::Replica)
            .map(|member| member.node)
    }

    /// The newest stretch of the history that this belongs to; 0 for the one that began with the resource.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.lineage.last().map_or(0, |stretch| stretch.id)
    }

    /// Whether copies may hold changes of a history that was given up: it went on without a majority, or an
    /// operator forced it.
    #[must_use]
    pub fn may_have_parted(&self) -> bool {
        self.fork > 0 || self.options.quorum == Quorum::Off || !self.lineage.is_empty()
    }

    /// Members whose memory votes.
    pub fn voters(&self) -> impl Iterator<Item = &MemberEntry> + '_ {
        self.members.iter().filter(|member| member.voter != VoterId(0))
    }

    /// Number of voters whose consent decides.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Which hosts may use this volume, if one ever registered for it.
    #[must_use]
    pub fn reservations_of(&self, volume: VolumeId) -> Option<&VolumeReservations> {
        self.reservations.iter().find(|entry| entry.volume == volume)
    }

    /// The volume with this index.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|entry| entry.volume == volume)
    }
}

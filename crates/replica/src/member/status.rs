//! What a person may know of a member at any moment.
//!
//! Always: where requests wait, `suspended` names what for.
//!
//! Not here: bytes of the admin socket (`wire`), progress of resync (`shard`).

use super::peers::Standing;
use super::{Member, Phase, Role};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Duration, Epoch, Incarnation, NodeId, VoterId};
use wire::{Configuration, MemberEntry, MemberKind};

/// What this node does about the resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RoleStatus {
    /// The start is not over.
    Starting,
    /// Follows another node, or nobody.
    Follower,
    /// Asks the voters to be primary.
    Asking,
    /// Is primary.
    Primary,
}

/// Why requests wait on this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Suspended {
    /// This node's release is older than what the others do.
    OldRelease {
        /// The feature level of the resource.
        level: u32,
        /// The highest that this node can act on.
        own: u32,
    },
    /// The start is not over.
    Starting,
    /// Nothing is known of the resource yet.
    NoConfiguration,
    /// No primary is known, or it is not heard of.
    NoPrimary,
    /// Too few voters answer: these many of the majority are missing.
    NoQuorum {
        /// Voters that would have to answer in addition.
        missing: usize,
    },
    /// In-sync replicas must tell what they may hold differently.
    Gathering {
        /// Those that are not ready.
        waiting: Vec<NodeId>,
    },
    /// No in-sync replica is in reach.
    NoReplica {
        /// Those of which one must come back.
        missing: Vec<NodeId>,
    },
    /// Every in-sync replica must come back: caches were lost.
    CachesLost {
        /// Those that are not here.
        missing: Vec<NodeId>,
    },
    /// All caches were lost; what the replicas hold is being made the same.
    Recovering,
    /// Fewer replicas are in sync than the options ask for.
    TooFewInSync {
        /// In sync now.
        have: usize,
        /// Asked for.
        need: usize,
    },
    /// An operator holds requests back.
    Operator,
}

/// What a member's memory is, beside the one that the configuration names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Memory {
    /// That very one: nothing that it acknowledged is gone.
    Kept,
    /// Its disk cache was lost: what it holds is compared before it counts.
    CacheLost,
    /// Its disk went back in time.
    WentBack,
    /// Another one: its disk is new, was found to have gone back, or forgets.
    Other,
    /// It has no disk that can be used.
    Detached,
}

/// What a node says of itself, or what was found out about it.
struct Shown {
    voter: VoterId,
    incarnation: Incarnation,
    attached: bool,
    went_back: bool,
}

impl Shown {
    fn memory(&self, entry: &MemberEntry) -> Memory {
        let data = entry.kind == MemberKind::Replica;
        if self.went_back {
            Memory::WentBack
        } else if data && !self.attached || self.voter == VoterId(0) {
            Memory::Detached
        } else if self.voter != entry.voter {
            Memory::Other
        } else if data && entry.in_sync && self.incarnation != entry.incarnation {
            Memory::CacheLost
        } else {
            Memory::Kept
        }
    }

    fn is_vote_lost(&self, entry: &MemberEntry) -> bool {
        self.went_back || self.voter != entry.voter
    }
}

/// Another node, as this one sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeId,
    /// A session lasts.
    pub connected: bool,
    /// What its memory is, of a member that has said it in this session.
    pub memory: Option<Memory>,
    /// The vote that the configuration names is gone with the memory that gave it.
    pub vote_lost: bool,
    /// It is a replica that is being brought up to date.
    pub syncing: bool,
    /// What all its shards act on, in this session.
    pub learned: Epoch,
    /// It does not act on the newest configuration known here.
    pub behind: bool,
    /// Its disk failed.
    pub failed: bool,
    /// Its history went another way than this node's: neither follows the other.
    pub split_brain: bool,
    /// What is known of that.
    pub split: Option<SplitStatus>,
}

/// Two histories of one resource, as one of the nodes sees them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SplitStatus {
    /// The stretch of history here with which they parted: the name of this side.
    pub mine: u64,
    /// The one there: the name of the other side.
    pub theirs: u64,
    /// When this side began to go on alone: milliseconds since 1970, if known.
    pub mine_since_ms: Option<u64>,
    /// When the other side did.
    pub theirs_since_ms: Option<u64>,
    /// Sectors that the other side had changed when the two met.
    pub theirs_changed: Option<u64>,
    /// The other side was chosen, or nothing is on this one: it is given up when its clients have left.
    pub discarded: bool,
}

/// What a member knows and does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberStatus {
    /// The newest configuration known to be committed.
    pub configuration: Option<Arc<Configuration>>,
    /// What this node does.
    pub role: RoleStatus,
    /// Requests are served by this node as primary.
    pub serving: bool,
    /// Why requests wait; `None` if they do not.
    pub suspended: Option<Suspended>,
    /// An operator has them fail instead.
    pub fails_waiting: bool,
    /// What is left of the lease, as primary.
    pub lease_left: Option<Duration>,
    /// What this node's own memory is, if it is a member.
    pub memory: Option<Memory>,
    /// The vote that the configuration names for it is gone.
    pub vote_lost: bool,
    /// Every other node that was heard of, ascending.
    pub peers: Vec<PeerStatus>,
    /// Another side of a split brain was chosen: this one is given up as soon as no client is left here.
    pub discarded: bool,
}

/// What a log tells of a member when it changes; quickly looked at.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outline {
    /// Of the newest configuration known to be committed.
    pub epoch: Epoch,
    /// This node is primary.
    pub reigns: bool,
    /// As primary it has the word of a majority.
    pub leased: bool,
}

impl Member {
    /// Whether the own disk failed a request, or the record's write, in this process: a flush that works after that says nothing
    /// of what was lost before.
    #[must_use]
    pub fn has_failed_disk(&self) -> bool {
        self.disk_failed || self.store.broken
    }

    /// What is worth a line in a log when it changes.
    #[must_use]
    pub fn outline(&self) -> Outline {
        Outline {
            epoch: self.known.as_ref().map_or(Epoch(0), |known| known.configuration.epoch),
            reigns: self.reign().is_some(),
            leased: self.lease_until().is_some_and(|until| until > self.now),
        }
    }

    /// What is so now, as of the last step.
    #[must_use]
    pub fn status(&self) -> MemberStatus {
        let lease_left =
            self.lease_until().map(|until| until.since(self.now)).filter(|left| left.0 > 0);
        let suspended = self.suspended();
        let entry = self.known.as_ref().and_then(|known| known.configuration.member(self.node));
        let own = entry.map(|entry| (self.own_shown(entry), entry));
        MemberStatus {
            memory: own.as_ref().map(|(own, entry)| own.memory(entry)),
            vote_lost: own.as_ref().is_some_and(|(own, entry)| own.is_vote_lost(entry)),
            configuration: self.known.as_ref().map(|known| known.configuration.clone()),
            role: match (&self.role, self.phase) {
                (_, Phase::Starting | Phase::Storing) => RoleStatus::Starting,
                (Role::Idle, _) => RoleStatus::Follower,
                (Role::Preparing(_), _) => RoleStatus::Asking,
                (Role::Primary(reign), _) if !reign.promoted => RoleStatus::Asking,
                (Role::Primary(_), _) => RoleStatus::Primary,
            },
            serving: suspended.is_none() && self.reign().is_some_and(|reign| reign.served),
            suspended,
            fails_waiting: self.fails_waiting,
            lease_left,
            peers: self.peer_statuses(),
            discarded: self.chosen_side().is_some(),
        }
    }

    fn own_shown(&self, entry: &MemberEntry) -> Shown {
        let record = self.record.as_ref().filter(|_| !self.store.broken);
        let voter = record.map_or(VoterId(0), |record| record.voter);
        Shown {
            voter,
            incarnation: record.map_or(Incarnation(0), |record| record.incarnation),
            attached: self.attached && !self.disk_failed,
            went_back: self.went_back == Some(voter) && voter != entry.voter,
        }
    }

    fn peer_statuses(&self) -> Vec<PeerStatus> {
        let known = self.known.as_ref().map(|known| known.configuration.clone());
        self.peers
            .iter()
            .map(|(&node, peer)| {
                let entry = known.as_ref().and_then(|known| known.member(node));
                let shown = peer.hello.as_ref().map(|hello| Shown {
                    voter: hello.voter,
                    incarnation: hello.incarnation,
                    attached: hello.attached,
                    went_back: hello.rolled_back && !hello.is_another,
                });
                let shown = shown.as_ref().zip(entry);
                PeerStatus {
                    node,
                    connected: peer.session.is_some(),
                    memory: shown.map(|(shown, entry)| shown.memory(entry)),
                    vote_lost: shown.is_some_and(|(shown, entry)| shown.is_vote_lost(entry)),
                    syncing: peer.sync.told,
                    learned: peer.learned,
                    behind: known.as_ref().is_some_and(|known| peer.learned < known.epoch),
                    split_brain: peer.split.is_some(),
                    split: self.split_status(node),
                    failed: peer.failed.is_some(),
                }
            })
            .collect()
    }

    pub(super) fn suspended(&self) -> Option<Suspended> {
        if self.phase != Phase::Running {
            return Some(Suspended::Starting);
        }
        let Some(known) = &self.known else { return Some(Suspended::NoConfiguration) };
        let configuration = &known.configuration;
        if !self.can_follow() {
            return Some(Suspended::OldRelease {
                level: configuration.feature_level,
                own: self.feature_level,
            });
        }
        if configuration.held.requests {
            return Some(Suspended::Operator);
        }
        let Some(reign) = self.reign() else {
            return self.live_primary().is_none().then(|| self.no_primary_or_copy(configuration));
        };
        if self.lease_until().is_none_or(|until| until <= self.now) {
            return Some(self.no_primary(configuration));
        }
        if let Some(reason) = self.waits_for_replicas(configuration) {
            return Some(reason);
        }
        let have = configuration.in_sync().count();
        let need = usize::from(configuration.options.in_sync_min);
        if have < need {
            return Some(Suspended::TooFewInSync { have, need });
        }
        (!reign.served).then(|| Suspended::Gathering {
            waiting: self.with_standing(configuration, |standing| standing != Standing::Kept),
        })
    }

    fn no_primary_or_copy(&self, configuration: &Configuration) -> Suspended {
        let lacks = self.want.lacks_copies && !self.reaches_a_copy(configuration);
        match self.no_primary(configuration) {
            Suspended::NoPrimary if lacks => {
                Suspended::NoReplica { missing: configuration.in_sync().collect() }
            }
            reason => reason,
        }
    }

    pub(super) fn no_primary(&self, configuration: &Configuration) -> Suspended {
        if self.may_act_alone(configuration) {
            return Suspended::NoPrimary;
        }
        match configuration.majority().saturating_sub(self.votes_here(configuration)) {
            0 => Suspended::NoPrimary,
            missing => Suspended::NoQuorum { missing },
        }
    }

    fn waits_for_replicas(&self, configuration: &Configuration) -> Option<Suspended> {
        let kept = self.with_standing(configuration, |standing| standing == Standing::Kept);
        if kept.is_empty() {
            let missing = self.with_standing(configuration, |standing| standing != Standing::Lost);
            let lost = self.with_standing(configuration, |standing| standing == Standing::Lost);
            return Some(if lost.is_empty() {
                Suspended::NoReplica { missing }
            } else {
                Suspended::CachesLost { missing }
            });
        }
        configuration.recovering.then_some(Suspended::Recovering)
    }

    fn with_standing(
        &self,
        configuration: &Configuration,
        is: impl Fn(Standing) -> bool,
    ) -> Vec<NodeId> {
        configuration
            .members
            .iter()
            .filter(|member| member.in_sync && is(self.standing(member)))
            .map(|member| member.node)
            .collect()
    }
}

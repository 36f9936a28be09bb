//! Shards that do at once what they are told, and a byte for data: one bit per write that a node holds.
//!
//! Always: a node answers only as long as its lease lasts, for the reign that may serve.
//!
//! Not here: what shards do about requests (the campaigns); who copies what to whom (`world`).

use base::{Epoch, Instant, NodeId, SessionId};
use replica::{FromShard, ToShard};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::Configuration;

/// The shards of one process.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Shards {
    pub(super) configuration: Option<Arc<Configuration>>,
    reigns: bool,
    own_kept: bool,
    ready: BTreeMap<NodeId, (SessionId, Epoch, bool)>,
    pub(super) lease: Instant,
    serving: Option<Epoch>,
    gathered: Option<Epoch>,
    reconciled: Option<Epoch>,
    drained: bool,
    suspended: bool,
    /// Replicas that are not in sync and that every write waits for.
    pub(super) required: BTreeMap<NodeId, SessionId>,
}

impl Shards {
    /// Whether a request would be answered by `node` when its clock reads `now`.
    pub(super) fn answers(&self, node: NodeId, now: Instant) -> bool {
        !self.drained
            && !self.suspended
            && now < self.lease
            && self.reigns
            && self.configuration.as_ref().is_some_and(|known| {
                known.primary == Some(node)
                    && self.serving == Some(known.reign)
                    && !known.recovering
            })
    }

    pub(super) fn lost(&mut self, peer: NodeId) {
        self.ready.remove(&peer);
    }

    /// What the shards of `node` say to what they are told.
    pub(super) fn take(&mut self, node: NodeId, message: &ToShard) -> Vec<FromShard> {
        let mut answers = Vec::new();
        match message {
            ToShard::Install { configuration, reigns, .. } => {
                self.install(configuration, *reigns);
                answers.push(FromShard::Installed { epoch: configuration.epoch });
            }
            &ToShard::PeerReady { peer, session, epoch, kept } => {
                if peer == node {
                    self.own_kept = kept;
                } else {
                    self.ready.insert(peer, (session, epoch, kept));
                }
            }
            ToShard::Lease { until } => self.lease = self.lease.max(*until),
            ToShard::Serve { reign } => self.serving = Some(*reign),
            &ToShard::Resync { peer, session, .. } => {
                answers.push(FromShard::Synced { peer, session });
            }
            &ToShard::Require { peer, session, number } => {
                self.required.insert(peer, session);
                answers.push(FromShard::Required { peer, session, number });
            }
            ToShard::Unrequire { peer, session } => {
                if self.required.get(peer) == Some(session) {
                    self.required.remove(peer);
                }
            }
            &ToShard::Drain { reign, number } => {
                self.drained = true;
                answers.push(FromShard::Drained { reign, number });
            }
            ToShard::Undrain { .. } => self.drained = false,
            ToShard::Suspend(on) => self.suspended = *on,
            ToShard::DiskFails
            | ToShard::Detach
            | ToShard::Cut { .. }
            | ToShard::CutDone { .. }
            | ToShard::PauseResync(_)
            | ToShard::Cool
            | ToShard::FailWaiting(_)
            | ToShard::Vouched { .. }
            | ToShard::Count { .. }
            | ToShard::Verify { .. }
            | ToShard::EndVerify => {}
        }
        self.gather(node, &mut answers);
        answers
    }

    fn install(&mut self, configuration: &Arc<Configuration>, reigns: bool) {
        let new = self.configuration.as_ref().is_none_or(|old| old.reign != configuration.reign);
        if new {
            self.drained = false;
            self.ready.clear();
            self.required.clear();
        }
        self.reigns = reigns;
        self.required.retain(|&node, _| !configuration.is_in_sync(node));
        self.configuration = Some(Arc::clone(configuration));
    }

    /// A primary gathers every in-sync replica, if it is kept.
    fn gather(&mut self, node: NodeId, answers: &mut Vec<FromShard>) {
        let Some(known) = self.configuration.clone() else { return };
        let reign = known.reign;
        let mut in_sync = known.in_sync();
        let all = self.reigns
            && known.primary == Some(node)
            && in_sync.all(|member| {
                if member == node {
                    return self.own_kept;
                }
                self.ready.get(&member).is_some_and(|ready| ready.1 >= reign && ready.2)
            });
        if all && self.gathered != Some(reign) {
            self.gathered = Some(reign);
            answers.push(FromShard::Gathered { reign });
        }
        if all && known.recovering && self.reconciled != Some(reign) {
            self.reconciled = Some(reign);
            answers.push(FromShard::Reconciled { reign });
        }
    }
}

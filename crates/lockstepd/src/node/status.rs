//! What the node tells of itself and of its resources.
//!
//! Always: where requests wait, the reason is named.
//!
//! Not here: the form (`wire::admin`).

use std::net::SocketAddr;
use std::ops::Bound;

use base::{NodeId, ResourceId, SECTOR_BYTES, VolumeId};
use link::LinkMode;
use replica::member::{MemberStatus, Memory, Suspended};
use wire::admin::{
    Faults, Growing, LINE_BYTES_MAX, NodeStatus, PeerStatus, ReplicaState, ReplicaStatus,
    ResourceStatus, Resync, ResyncDone, Rot, SplitBrain, Status, StoreKind, VerifyProgress,
    Verifying, VolumeStatus, codes, encode_line,
};
use wire::{Configuration, MemberKind, VolumeEntry};

use super::Node;
use super::admin::no_resource;
use super::admission::left_out;
use super::hosts::namespace_of;
use super::identity::expiry_warning;
use super::lifecycle::{Known, joins_later};
use super::resource::Resource;
use crate::backing::Refused;

/// Resources of one page of statuses, in bytes of their line, but for one that is larger alone: half of a line, which names the node's
/// warnings, too.
const PAGE_BYTES_MAX: usize = LINE_BYTES_MAX / 2;

impl Node {
    /// Of the node.
    pub(super) fn node_status(&self) -> NodeStatus {
        let now = self.hands.now();
        NodeStatus {
            node: self.config.name.clone(),
            node_id: self.config.node.0,
            cluster: format!("{:016x}", self.config.cluster.0),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: now.since(self.started).as_millis() / 1000,
            resources: u64::try_from(self.known.len()).expect("a few"),
            threads: self.config.threads,
            peers: self
                .peers
                .nodes
                .iter()
                .map(|(id, peer)| PeerStatus {
                    node: peer.name.clone(),
                    node_id: id.0,
                    connected: peer.is_connected(),
                    reason: peer.reason.clone(),
                })
                .collect(),
            warnings: self.node_warnings(),
            faults: self.faults(),
            outsiders: self.peers.outsiders,
        }
    }

    /// Connections closed because of what came over them.
    fn faults(&self) -> Faults {
        let (peers, nbd) = (self.peers.faults, self.visitors.faults);
        Faults { peers, nbd, admin: self.admin_faults }
    }

    /// A door to volumes whose NVMe hosts have to prove who they are, at which nobody has to.
    fn ways_around_proof(&self) -> Option<String> {
        self.config.nvme_hosts.as_ref()?;
        let nbd = self.config.nbd.filter(|_| self.config.nbd_tls != nbd::Tls::Required)?;
        Some(format!(
            "NVMe hosts have to prove who they are, but NBD at {nbd} serves the same volumes to whoever reaches \
             it: set nbd_tls_required = true, or serve NBD by nbd_socket only"
        ))
    }

    fn node_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.config.identity.is_some() && self.config.link_mode == LinkMode::Plain {
            warnings.push("link_encryption is off: data travels in the clear".to_owned());
        }
        let expires = self.peers.config.as_ref().map(link::Config::expires_unix);
        warnings.extend(expires.and_then(|at| expiry_warning(at, sys::wall_clock_ms() / 1000)));
        if self.config.insecure {
            warnings
                .push("insecure = true: NBD and NVMe are served to clients without TLS".to_owned());
        }
        if self.visitors.refused > 0 {
            warnings.push(format!(
                "{} NBD clients were sent away: no certificate, or none that is accepted here",
                self.visitors.refused
            ));
        }
        if self.hosts.refused > 0 {
            warnings.push(format!(
                "{} connections of NVMe hosts were refused: not in the table of hosts, or no proof of who they are",
                self.hosts.refused
            ));
        }
        warnings.extend(self.ways_around_proof());
        if self.config.allow_memory_store {
            warnings.push("allow_memory_store: replicas may forget at every stop".to_owned());
        }
        if self.config.faults.is_some() {
            warnings.push("faults: disks of this node fail on purpose".to_owned());
        }
        let faults = self.faults();
        for (count, whose) in [
            (faults.peers, "other nodes, or of strangers at their port"),
            (faults.nbd, "NBD clients or NVMe hosts"),
            (faults.admin, "who used the admin socket"),
        ] {
            if count > 0 {
                warnings.push(format!("{count} connections were closed for faults of {whose}"));
            }
        }
        warnings
    }

    /// Of one resource, or of all.
    pub(super) fn status(&self, only: Option<&str>) -> Result<Status, Refused> {
        let resources: Vec<ResourceStatus> = self
            .known
            .iter()
            .filter(|(name, _)| only.is_none_or(|only| only == name.as_str()))
            .map(|(_, known)| self.resource_status(known))
            .collect();
        match only {
            Some(only) if resources.is_empty() => Err(no_resource(only)),
            _ => Ok(self.status_of(resources)),
        }
    }

    /// Resources whose names come after this one, as many as fit into an answer.
    pub(super) fn status_page(&self, after: &str) -> Status {
        let (mut resources, mut bytes, mut more) = (Vec::new(), 0, false);
        for (_, known) in self.known.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)) {
            let status = self.resource_status(known);
            let mut line = Vec::new();
            bytes += encode_line(&status, &mut line).map_or(LINE_BYTES_MAX, |()| line.len());
            more = bytes > PAGE_BYTES_MAX && !resources.is_empty();
            if more {
                break;
            }
            resources.push(status);
        }
        Status { more, ..self.status_of(resources) }
    }

    fn status_of(&self, resources: Vec<ResourceStatus>) -> Status {
        let (cluster, warnings) = (self.config.cluster.0, self.node_warnings());
        let cluster = format!("{cluster:016x}");
        Status { version: 1, resources, warnings, cluster, more: false }
    }

    /// Name of a node in a resource.
    pub(super) fn node_name(&self, resource: &str, node: NodeId) -> String {
        let file = self.known.get(resource).map(|known| &known.file);
        let named = file.and_then(|file| file.node_name(node)).map(str::to_owned);
        let peer = || self.peers.nodes.get(&node).map(|peer| peer.name.clone());
        named.or_else(peer).unwrap_or_else(|| format!("node-{node}"))
    }

    fn resource_status(&self, known: &Known) -> ResourceStatus {
        let running = known.running.and_then(|key| self.resources.get(key));
        let name = known.file.name.clone();
        let member = running.map(|resource| resource.member().status());
        let configuration = running
            .and_then(Resource::configuration)
            .map(|configuration| (*configuration).clone())
            .or_else(|| known.file.configuration().ok());
        let mut warnings = self.warnings(known, running);
        let suspended = member.as_ref().and_then(|member| member.suspended.as_ref());
        let in_flight = running.map_or(0, in_flight);
        let no_quorum = matches!(
            suspended,
            Some(Suspended::NoQuorum { .. } | Suspended::Starting | Suspended::NoConfiguration)
        );
        let primary = running.and_then(|own| own.member().reigning(self.hands.now()));
        let lease = member.as_ref().and_then(|member| member.lease_left);
        let failed_by_operator = member.as_ref().is_some_and(|member| member.fails_waiting);
        if failed_by_operator {
            warnings.push(fails_waiting(&name, &self.config.name));
        }
        let io_error = |known: &Configuration| {
            no_quorum && known.options.on_no_quorum == wire::OnNoQuorum::IoError
        };
        ResourceStatus {
            epoch: configuration.as_ref().map_or(0, |known| known.epoch.0),
            primary: primary.map(|node| self.node_name(&name, node)),
            quorum: running.is_some() && !no_quorum,
            suspended: suspended
                // Without a primary and without a request nothing waits: the first one makes one. While the lease of
                // one that is gone may still run, it would wait.
                .filter(|&why| primary.is_some() || in_flight > 0 || *why != Suspended::NoPrimary)
                .map(|suspended| self.words(&name, suspended, &self.lost_votes(member.as_ref()))),
            requests_fail: failed_by_operator || configuration.as_ref().is_some_and(io_error),
            failed_by_operator,
            replicas: configuration
                .as_ref()
                .map_or(Vec::new(), |known_as| self.replicas(known, known_as, member.as_ref())),
            id: format!("{:016x}", known.file.id),
            uncreated: known.uncreated,
            unjoined: self.is_unjoined(known, running),
            left_over: !known.left_over.is_empty(),
            reign: configuration.as_ref().map_or(0, |known| known.reign.0),
            fork: configuration.as_ref().map_or(0, |known| known.fork),
            left_out: self.left_out(known, configuration.as_ref()),
            recovering: configuration.as_ref().is_some_and(|known| known.recovering),
            protocol: configuration
                .as_ref()
                .map(|known| known.options.protocol)
                .unwrap_or_default(),
            lease_left_ms: lease.map(base::Duration::as_millis),
            volumes: configuration
                .as_ref()
                .map_or(Vec::new(), |known| self.volumes(&name, running, known)),
            requests_in_flight: in_flight,
            clients: running.map_or(0, |resource| u64::from(resource.clients)),
            link_encryption: self.config.link_mode == LinkMode::Encrypted,
            verify: configuration.as_ref().and_then(|known| verifying(running, known)),
            resync_paused: configuration.as_ref().is_some_and(|known| known.held.resync),
            warnings,
            history: configuration.as_ref().map_or(String::new(), history_name),
            split_brain: self.split_brain(&name, running, member.as_ref()),
            name,
        }
    }

    /// Whether this node's part was made to be added, and was not that far.
    fn is_unjoined(&self, known: &Known, running: Option<&Resource>) -> bool {
        let made = running.is_some_and(|own| own.disk.is_some() && own.named.is_none());
        made && joins_later(&known.file, self.config.node)
    }

    /// What an operator should know of it.
    fn warnings(&self, known: &Known, running: Option<&Resource>) -> Vec<String> {
        let mut warnings: Vec<String> = known.problem.iter().cloned().collect();
        if running.is_none() && known.problem.is_none() {
            warnings.push(format!("{}: {}", codes::NOT_CREATED.title, codes::NOT_CREATED.remedy));
        }
        warnings.extend(running.and_then(|resource| resource.disk_failure.clone()));
        for node in self.outsiders_of(ResourceId(known.file.id)) {
            warnings.push(format!(
                "node {} speaks about it and is refused, because it is none of its nodes; if it is to use \
                 it: `lockstep resource add-client`",
                self.node_name(&known.file.name, node)
            ));
        }
        warnings
    }

    /// Nodes of members that a fork has left out.
    fn left_out(&self, known: &Known, configuration: Option<&Configuration>) -> Vec<String> {
        let nodes = configuration.into_iter().flat_map(|of| left_out(&known.file, of));
        nodes.map(|node| self.node_name(&known.file.name, node)).collect()
    }

    fn volumes(
        &self,
        name: &str,
        running: Option<&Resource>,
        configuration: &Configuration,
    ) -> Vec<VolumeStatus> {
        configuration
            .volumes
            .iter()
            .map(|entry| {
                let export = match entry.volume.0 {
                    0 => name.to_owned(),
                    number => format!("{name}/{number}"),
                };
                let reached =
                    self.config.nbd.map(|address| reached_at(address, self.config.listen));
                let tcp = reached.map(|address| self.nbd_url(address, &export));
                let unix = self
                    .config
                    .nbd_socket
                    .as_ref()
                    .map(|path| format!("nbd+unix:///{export}?socket={}", path.display()));
                let reached =
                    self.config.nvme.map(|address| reached_at(address, self.config.listen));
                let nvme = reached.map(|address| self.nvme_url(address, name, entry.volume));
                VolumeStatus {
                    volume: entry.volume.0,
                    size_bytes: entry.sectors * SECTOR_BYTES,
                    block_bytes: entry.block_bytes,
                    nbd: tcp.into_iter().chain(unix).collect(),
                    nvme: nvme.into_iter().collect(),
                    elsewhere: self.elsewhere(configuration, (name, &export), entry.volume),
                    growth: growing(running, entry),
                }
            })
            .collect()
    }

    fn nbd_url(&self, address: SocketAddr, export: &str) -> String {
        let scheme = if self.config.nbd_tls == nbd::Tls::Required { "nbds" } else { "nbd" };
        format!("{scheme}://{address}/{export}")
    }

    fn nvme_url(&self, address: SocketAddr, name: &str, volume: VolumeId) -> String {
        format!("nvme+tcp://{address}/{}/{}", self.nqn_of(name), namespace_of(volume))
    }

    /// Where other nodes of the resource serve a volume, as far as that is known here. They ask for TLS where this one does.
    fn elsewhere(
        &self,
        configuration: &Configuration,
        (name, export): (&str, &str),
        volume: VolumeId,
    ) -> Vec<String> {
        let peers =
            || self.config.peers.iter().filter(|one| configuration.member(one.id).is_some());
        let nvme = peers().filter_map(|peer| Some(self.nvme_url(peer.nvme?, name, volume)));
        nvme.chain(peers().filter_map(|peer| Some(self.nbd_url(peer.nbd?, export)))).collect()
    }

    fn replicas(
        &self,
        known: &Known,
        configuration: &Configuration,
        member: Option<&MemberStatus>,
    ) -> Vec<ReplicaStatus> {
        let mut nodes: Vec<NodeId> = known.file.nodes.iter().map(|node| NodeId(node.id)).collect();
        nodes.extend(configuration.members.iter().map(|member| member.node));
        nodes.sort_unstable();
        nodes.dedup();
        let running = known.running.and_then(|key| self.resources.get(key));
        nodes
            .into_iter()
            .map(|node| {
                let entry = configuration.member(node);
                let resync = running.and_then(|resource| self.resync(resource, node));
                let own = node == self.config.node;
                let peer = self.peers.nodes.get(&node);
                let connected = own || peer.is_some_and(|peer| peer.is_connected());
                let in_sync = entry.is_some_and(|entry| entry.in_sync);
                let said =
                    member.and_then(|member| member.peers.iter().find(|peer| peer.node == node));
                let own_said = member.filter(|_| own);
                let memory = own_said.map_or(said.and_then(|said| said.memory), |own| own.memory);
                let reason = if own {
                    unused(known, running)
                } else {
                    peer.filter(|_| !connected).and_then(|peer| peer.reason.clone())
                };
                let state = match entry.map(|entry| entry.kind) {
                    Some(MemberKind::Witness) => ReplicaState::Witness,
                    None => ReplicaState::Diskless,
                    Some(MemberKind::Replica) if own => own_state(running, memory, in_sync),
                    Some(MemberKind::Replica) => peer_state(said, in_sync),
                };
                ReplicaStatus {
                    node: self.node_name(&known.file.name, node),
                    state,
                    in_sync,
                    resync,
                    node_id: node.0,
                    connected,
                    reason: reason.or_else(|| memory.and_then(lost_words).map(str::to_owned)),
                    vote_lost: own_said
                        .map_or(said.is_some_and(|said| said.vote_lost), |own| own.vote_lost),
                    heard_ms_ago: self.heard_ms_ago(node),
                    store: running.filter(|_| own).and_then(store_of),
                    rot: running.filter(|_| own).and_then(rot_of),
                    last_resync: running.and_then(|resource| last_resync(resource, node)),
                }
            })
            .collect()
    }

    /// Peers whose history went another way, and how much there is on either side.
    fn split_brain(
        &self,
        name: &str,
        running: Option<&Resource>,
        member: Option<&MemberStatus>,
    ) -> Vec<SplitBrain> {
        let peers = member.iter().flat_map(|member| &member.peers);
        let splits = peers.filter_map(|peer| Some((peer.node, peer.split?)));
        splits
            .map(|(node, split)| SplitBrain {
                node: self.node_name(name, node),
                node_id: node.0,
                mine: stretch_name(split.mine),
                theirs: stretch_name(split.theirs),
                mine_since_ms: split.mine_since_ms,
                theirs_since_ms: split.theirs_since_ms,
                mine_changed_bytes: running.map_or(0, |resource| changed_bytes(resource, node)),
                theirs_changed_bytes: split.theirs_changed.map(|sectors| sectors * SECTOR_BYTES),
                discarded: split.discarded,
            })
            .collect()
    }

    /// How far the resync of a node is, all shards together.
    fn resync(&self, resource: &Resource, node: NodeId) -> Option<Resync> {
        let now = self.hands.now();
        let statuses: Vec<_> = resource
            .statuses()
            .into_iter()
            .flat_map(|status| status.syncs)
            .filter(|sync| sync.node == node)
            .collect();
        let since = statuses.iter().map(|sync| sync.since).min()?;
        let done_bytes = statuses.iter().map(|sync| sync.done * SECTOR_BYTES).sum();
        let total_bytes: u64 = statuses.iter().map(|sync| sync.total * SECTOR_BYTES).sum();
        let milliseconds = now.since(since).as_millis().max(1);
        let rate = u64::try_from(u128::from(done_bytes) * 1000 / u128::from(milliseconds));
        let rate_bytes_per_second = rate.unwrap_or(u64::MAX);
        let left = total_bytes.saturating_sub(done_bytes);
        let eta_seconds = left.checked_div(rate_bytes_per_second);
        Some(Resync { done_bytes, total_bytes, rate_bytes_per_second, eta_seconds })
    }

    /// Voters that are here, and whose votes do not count.
    fn lost_votes(&self, member: Option<&MemberStatus>) -> Vec<NodeId> {
        let Some(member) = member else { return Vec::new() };
        let peers = member.peers.iter().filter(|peer| peer.connected && peer.vote_lost);
        let own = member.vote_lost.then_some(self.config.node);
        let mut nodes: Vec<NodeId> = peers.map(|peer| peer.node).chain(own).collect();
        nodes.sort_unstable();
        nodes
    }

    fn words(&self, name: &str, suspended: &Suspended, lost: &[NodeId]) -> String {
        let names = |nodes: &[NodeId]| {
            let names: Vec<String> = nodes.iter().map(|&node| self.node_name(name, node)).collect();
            names.join(", ")
        };
        match suspended {
            Suspended::OldRelease { level, own } => format!(
                "this node's release is too old: it can act on feature level {own}, and the members do {level}"
            ),
            Suspended::Starting => "this node is starting".to_owned(),
            Suspended::NoConfiguration => {
                "nothing is known of it yet: no member answers".to_owned()
            }
            Suspended::NoPrimary => "no primary is known; one is chosen when it is used".to_owned(),
            Suspended::NoQuorum { missing } => {
                let votes = if lost.is_empty() {
                    String::new()
                } else {
                    format!("; the votes of {} are not on the disks in use", names(lost))
                };
                format!("no quorum: {missing} more of its voters would have to answer{votes}")
            }
            Suspended::Gathering { waiting } if waiting.is_empty() => {
                "replicas tell what they may hold differently".to_owned()
            }
            Suspended::Gathering { waiting } => {
                format!("waits for what these may hold differently: {}", names(waiting))
            }
            Suspended::CachesLost { missing } => format!(
                "every in-sync replica lost its cache; all must come back; missing: {}",
                names(missing)
            ),
            Suspended::NoReplica { missing } => {
                format!("no in-sync replica can be reached; missing: {}", names(missing))
            }
            Suspended::Recovering => {
                "replicas are made equal after all lost their caches".to_owned()
            }
            Suspended::TooFewInSync { have, need } => {
                format!("{have} replicas are in sync, and the options ask for {need}")
            }
            Suspended::Operator => "an operator holds requests back".to_owned(),
        }
    }
}

/// That an operator has requests of this node fail.
fn fails_waiting(name: &str, node: &str) -> String {
    format!(
        "requests of this node get I/O errors instead of waiting, as an operator wants; it ends when the nodes that are \
         missing are back, or with `lockstep resource let-wait {name} --node {node}`"
    )
}

/// How the last resync of a node went, all shards together.
fn last_resync(resource: &Resource, node: NodeId) -> Option<ResyncDone> {
    let mut done = resource
        .statuses()
        .into_iter()
        .flat_map(|status| status.syncs_done)
        .filter(|sync| sync.node == node)
        .peekable();
    done.peek()?;
    let mut all = ResyncDone { copied_bytes: 0, equal_bytes: 0 };
    for sync in done {
        all.copied_bytes += sync.sent * SECTOR_BYTES;
        all.equal_bytes += sync.done.saturating_sub(sync.sent) * SECTOR_BYTES;
    }
    Some(all)
}

/// Where clients reach a listener: one on every address of the machine is named by the one that peers use, if that is
/// one.
pub(super) fn reached_at(clients: SocketAddr, listen: SocketAddr) -> SocketAddr {
    if clients.ip().is_unspecified() {
        SocketAddr::new(listen.ip(), clients.port())
    } else {
        clients
    }
}

/// How far a comparison is: as far as the slowest shard here, if this node drives it.
fn verifying(running: Option<&Resource>, known: &Configuration) -> Option<Verifying> {
    let entry = known.verify?;
    let runs = running.into_iter().flat_map(|own| own.statuses()).filter_map(|own| own.verify);
    let at = (entry.volume, entry.next);
    let (volume, next) = runs.min().map_or(at, |run| run.max(at));
    let mut volumes: Vec<_> =
        known.volumes.iter().map(|entry| (entry.volume, entry.sectors)).collect();
    volumes.sort_unstable();
    let before: u64 =
        volumes.iter().filter(|(other, _)| *other < volume).map(|(_, sectors)| sectors).sum();
    let total: u64 = volumes.iter().map(|(_, sectors)| sectors).sum();
    Some(Verifying {
        state: match entry.state {
            wire::VerifyState::Running => VerifyProgress::Running,
            wire::VerifyState::Stopped => VerifyProgress::Stopped,
            wire::VerifyState::Done => VerifyProgress::Done,
        },
        repaired_bytes: entry.repaired * SECTOR_BYTES,
        partial: entry.partial,
        at_ms: entry.at_ms,
        done_bytes: (before + next).min(total) * SECTOR_BYTES,
        total_bytes: total * SECTOR_BYTES,
    })
}

/// How far a volume that grows is, in all shards here.
fn growing(running: Option<&Resource>, entry: &VolumeEntry) -> Option<Growing> {
    let to = entry.grows_to?;
    let growths = running.into_iter().flat_map(|own| own.statuses()).flat_map(|own| own.growths);
    let done: u64 =
        growths.filter(|(volume, _)| *volume == entry.volume).map(|(_, sectors)| sectors).sum();
    let total = to - entry.sectors;
    Some(Growing {
        to_bytes: to * SECTOR_BYTES,
        done_bytes: done.min(total) * SECTOR_BYTES,
        total_bytes: total * SECTOR_BYTES,
    })
}

/// Bytes in blocks that were written here and that `node` lacks.
pub(super) fn changed_bytes(resource: &Resource, node: NodeId) -> u64 {
    resource.changed_sectors(node) * SECTOR_BYTES
}

/// The name of a stretch of history; empty for the one that began with the resource.
pub(super) fn stretch_name(history: u64) -> String {
    if history == 0 { String::new() } else { format!("{history:016x}") }
}

fn history_name(configuration: &Configuration) -> String {
    stretch_name(configuration.history())
}

fn in_flight(resource: &Resource) -> u64 {
    let open: usize = resource
        .statuses()
        .into_iter()
        .map(|status| status.open + status.waiting + status.forwarded)
        .sum();
    u64::try_from(open).expect("a few")
}

/// Why this node's own copy is not used, if it has one that is not.
fn unused(known: &Known, running: Option<&Resource>) -> Option<String> {
    let Some(resource) = running else {
        let code = &codes::NOT_CREATED;
        let missing = || format!("{} ({})", code.title.to_lowercase(), code.code);
        return Some(known.problem.clone().unwrap_or_else(missing));
    };
    resource.disk_failure.as_ref().or(known.problem.as_ref()).cloned()
}

/// Why a copy or a vote does not count, of a node that is here.
fn lost_words(memory: Memory) -> Option<&'static str> {
    match memory {
        Memory::Kept | Memory::Detached => None,
        Memory::CacheLost => Some(
            "its machine stopped before everything was flushed: it is compared before it counts",
        ),
        Memory::WentBack => Some(
            "its disk went back in time: what it acknowledged since is gone from it, and its vote with it",
        ),
        Memory::Other => Some(
            "what it holds is not what was in sync: its disk is new or went back in time, or it is memory, which \
             forgets at a stop; its vote went with it",
        ),
    }
}

fn own_state(running: Option<&Resource>, memory: Option<Memory>, in_sync: bool) -> ReplicaState {
    match running {
        Some(resource) if resource.disk.is_some() => match memory {
            Some(Memory::Kept) | None if in_sync => ReplicaState::InSync,
            _ if resource.disk_failure.is_some() => ReplicaState::Detached,
            Some(Memory::Detached) => ReplicaState::Detached,
            _ => ReplicaState::Behind,
        },
        _ => ReplicaState::Detached,
    }
}

fn peer_state(said: Option<&replica::member::PeerStatus>, in_sync: bool) -> ReplicaState {
    let Some(said) = said.filter(|said| said.connected) else { return ReplicaState::Absent };
    match said.memory {
        _ if said.split_brain => ReplicaState::SplitBrain,
        _ if said.failed => ReplicaState::Detached,
        Some(Memory::Detached) => ReplicaState::Detached,
        _ if said.syncing && !in_sync => ReplicaState::Syncing,
        Some(Memory::Kept) if in_sync => ReplicaState::InSync,
        // It has not said yet who it is.
        None => ReplicaState::Absent,
        Some(_) => ReplicaState::Behind,
    }
}

/// What rotted, where checksums tell.
fn rot_of(resource: &Resource) -> Option<Rot> {
    let checked = resource.disk.as_ref()?.volumes.iter().any(|volume| volume.sums.is_some());
    checked.then_some(resource.diary.rot)
}

fn store_of(resource: &Resource) -> Option<String> {
    let kind = resource.disk.as_ref()?.volumes.first()?.kind;
    let word = match kind {
        StoreKind::File => "file",
        StoreKind::Device => "device",
        StoreKind::Memory => "memory",
    };
    Some(word.to_owned())
}

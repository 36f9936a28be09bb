//! The configuration register, the lease, the in-sync set and who is primary.
//!
//! One `Member` per node and resource. Every node may propose and be primary; a node with a record on
//! stable storage also votes. Each role is a file: `start` (from nothing to the first word said), `lives`
//! (disks that went back in time),
//! `store` (what must be durable before it is said), `voter`, `proposer` (prepare and promise), `raise`
//! (a higher ballot in the same reign), `register` (accept, commit, learn), `primary` (reign, lease,
//! hand-over), `rest` (a primary that can do nothing), `peers` (exclude, include), `replace` (a memory that is another), `invalidate` (a copy that is
//! worthless), `operations`, `impatience` (requests that fail instead of waiting), `reserve` (hosts that keep each other from a volume), `verify`, `level` (what every member can do), `lineage` (without quorum), `split` (two
//! histories meet), `status`.
//!
//! Always:
//! - nothing is promised, accepted or acted on before the record that says so is on stable storage;
//! - one change is open at a time, and never withdrawn;
//! - the last kept in-sync replica is never excluded.
//!
//! Not here: requests and data (`shard`), bytes (`disk`, `wire`), connections (`link`).

mod counts;
mod impatience;
mod invalidate;
mod level;
mod lineage;
mod lives;
mod operations;
mod peers;
mod primary;
mod proposer;
mod raise;
mod register;
mod replace;
mod reserve;
mod resize;
mod rest;
mod split;
mod start;
mod status;
mod store;
mod verify;
mod voter;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers of nodes and seeds")]
mod tests;

pub use status::{MemberStatus, Memory, Outline, PeerStatus, RoleStatus, SplitStatus, Suspended};

use crate::disk::Record;
use crate::door::{
    FromShard, MemberInput, MemberOutput, Operation, OperationId, Slot as BitmapSlot, Timing,
    ToShard,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{
    Ballot, Duration, Epoch, Incarnation, Instant, NodeId, Prng, SessionId, VolumeId, VoterId,
};
use wire::{Configuration, Life, MemberMessage, Seen};

/// What a step wants to be carried out, in order.
type Out = Vec<MemberOutput>;

/// What a member is made of.
#[derive(Clone, Debug)]
pub struct MemberSetup {
    /// This node.
    pub node: NodeId,
    /// As in [`crate::start::Start`].
    pub process: u64,
    /// Shards of this node that serve the resource; 0 for a witness.
    pub shards: u16,
    /// How long things may take. The same on every node.
    pub timing: Timing,
    /// As in [`crate::door::Geometry`].
    pub verify_sectors: u64,
    /// As in [`crate::start::Start`].
    pub feature_level: u32,
    /// Of all random choices.
    pub seed: u64,
    /// What was found on disk, with the incarnation that holds now: a new one if the machine booted
    /// anew and the record was not clean. `None`: this node holds neither data nor vote.
    pub record: Option<Record>,
    /// There is a usable disk with data.
    pub attached: bool,
    /// Log writes of the life before, as found on disk at start.
    pub found_writes: u64,
    /// Who the members are, for a node that knows nothing yet.
    pub bootstrap: Option<Configuration>,
}

/// How far the start has come.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Phase {
    /// Shards record what they inherited.
    Starting,
    /// The record of this life is on its way to the disk; or, when the first peer comes, its name.
    Storing,
    /// Takes part.
    Running,
}

/// A committed configuration and the ballot it was committed in.
#[derive(Clone, Debug, Hash)]
struct Known {
    ballot: Ballot,
    configuration: Arc<Configuration>,
}

/// What is known of one of this node's shards.
#[derive(Clone, Debug, Default, Hash)]
struct ShardView {
    started: bool,
    installed: Epoch,
    /// What was asked of its disk before this one is there.
    written: Epoch,
    logged: u64,
    /// It judges by the reservations of this one, and nothing is open that it let in before.
    fenced: Epoch,
}

/// What a peer said of itself in this session.
#[derive(Clone, Debug, Hash)]
struct PeerHello {
    voter: VoterId,
    incarnation: Incarnation,
    attached: bool,
    /// Its history, as it tells it, and the newest configuration that it knew.
    lives: Arc<[Life]>,
    epoch: Epoch,
    /// Its disk went back in time: its votes and its data do not count.
    rolled_back: bool,
    /// What is missing is a life after the one that it told: it may have begun that since, and this session be over.
    is_another: bool,
    /// The highest feature level that it can act on.
    feature_level: u32,
}

/// How far the resync of a peer has come, in this session.
#[derive(Clone, Debug, Default, Hash)]
struct Sync {
    /// `Resync` was told to the shards; it is told again with the next heartbeat.
    told: bool,
    repeat: bool,
    /// Shards in which it lacks nothing.
    synced: BTreeSet<u16>,
    /// When `Require` was told.
    requiring: Option<Instant>,
    /// Shards in which writes wait for it.
    required: BTreeSet<u16>,
}

/// What is known of another node.
#[derive(Clone, Debug, Hash)]
struct Peer {
    session: Option<SessionId>,
    /// How often `Require` was told of it.
    requires: u64,
    /// When the session began or ended.
    since: Instant,
    hello: Option<PeerHello>,
    /// Which process of it was heard last, in whatever session.
    process: u64,
    /// What all its shards act on.
    learned: Epoch,
    /// When it last answered a heartbeat.
    answered: Instant,
    /// When it last sent a heartbeat as primary; at first, when the session began.
    heard: Option<Instant>,
    /// Heartbeat answers in a row that said it wants to be primary.
    wants: u32,
    /// What was last told to the shards: (epoch, kept).
    ready: Option<(Epoch, bool)>,
    sync: Sync,
    /// Of each shard: its last flush of what was copied to it, and when that was told. Whoever begins its resync anew may
    /// have shards that go on with the one before.
    flushed: BTreeMap<u16, (u64, Instant)>,
    /// A shard said that its disk failed: until when it is left alone.
    failed: Option<Instant>,
    /// How often, since it was in sync.
    failures: u32,
    /// When a shard said that it owes an answer for too long.
    late: Option<Instant>,
    /// It said, then, that its copy is worthless, as long as the configuration names this incarnation for it.
    worthless: Option<(Incarnation, Instant)>,
    /// When the newest configuration was last sent to it.
    taught: Instant,
    /// What it knows, if its history went another way than this node's.
    split: Option<split::Split>,
}

/// The voter's lease slot.
#[derive(Clone, Copy, Debug, Hash)]
struct Slot {
    /// Who has it; `None`: nobody that is known.
    holder: Option<NodeId>,
    /// Under which ballot.
    ballot: Ballot,
    /// Until when.
    until: Instant,
}

/// A question to the voters.
#[derive(Clone, Debug, Hash)]
struct Prepare {
    ballot: Ballot,
    sent: Instant,
    deadline: Instant,
    best: Known,
    asked: BTreeSet<NodeId>,
    promises: BTreeMap<NodeId, VoterId>,
    refused: BTreeSet<NodeId>,
    /// When the first of the leases that stood in the way ends.
    free_at: Option<Instant>,
    /// The own promise is on its way to the disk.
    own_asked: bool,
}

/// What follows when a change is committed.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Then {
    /// The reign begins.
    Promote,
    /// Nothing more than to install it.
    Nothing,
    /// Likewise; replicas left the in-sync set.
    Exclude,
    /// Caches were lost everywhere; requests wait again.
    Recover,
    /// The operation is done.
    Operation(OperationId),
    /// The reign is over.
    Demote,
}

/// A change on its way to the voters.
#[derive(Clone, Debug, Hash)]
struct Proposal {
    base: Arc<Configuration>,
    next: Arc<Configuration>,
    accepted: BTreeMap<NodeId, VoterId>,
    again_at: Instant,
    then: Then,
    /// Where the base stands in the history.
    from: (Ballot, Epoch),
    /// Those who decide it without a majority; `None`: a majority does.
    party: Option<BTreeSet<NodeId>>,
}

/// A reign that is being ended in good order.
#[derive(Clone, Debug, Hash)]
struct Drain {
    /// Who asked to be primary.
    to: Option<(NodeId, SessionId)>,
    until: Instant,
    /// Which attempt it is in this reign.
    number: u64,
    drained: BTreeSet<u16>,
}

/// A question to all shards that an operator waits for.
#[derive(Clone, Debug, Hash)]
struct Round {
    id: OperationId,
    answered: BTreeSet<u16>,
    /// Number of the cut.
    number: u64,
}

/// This node's time as primary, from the moment it proposes its own promote.
#[derive(Clone, Debug, Hash)]
struct Reign {
    ballot: Ballot,
    began: Instant,
    /// Of its promote.
    first: Epoch,
    reign: Epoch,
    /// The promote is committed.
    promoted: bool,
    proposal: Option<Proposal>,
    /// When the newest answered question was sent to each voter.
    grants: BTreeMap<NodeId, (VoterId, Instant)>,
    /// Voters that promised a higher ballot.
    refused: BTreeSet<NodeId>,
    /// A higher ballot is asked for.
    raise: Option<raise::Raise>,
    /// Not before, the next one is asked for.
    raise_at: Instant,
    heartbeat_at: Instant,
    /// Until then absent members are waited for.
    gather_until: Instant,
    gathered: BTreeSet<u16>,
    reconciled: BTreeSet<u16>,
    served: bool,
    lease_told: Instant,
    /// Since when no majority has granted a lease.
    unleased: Option<Instant>,
    /// Not before, this node hands over for the sake of its own copy.
    calm_at: Instant,
    drain: Option<Drain>,
    /// Attempts to end it in good order.
    drains: u64,
    cut: Option<Round>,
    verify: Option<verify::Stride>,
    /// Volumes that grow, and who has done its part.
    growths: BTreeMap<VolumeId, resize::Growth>,
    /// Generation that this reign began, as long as nobody else can have gone on with it.
    segment: Option<u64>,
    /// No majority promised its ballot, and no stretch began since: what a majority decided under a lower one may not be
    /// known here, so that the next change is of another history.
    raised_alone: bool,
}

/// What this node does about being primary.
#[derive(Clone, Debug, Hash)]
enum Role {
    Idle,
    Preparing(Prepare),
    Primary(alloc::boxed::Box<Reign>),
}

/// Why this node would like to be primary.
#[derive(Clone, Debug, Default, Hash)]
struct Want {
    /// A shard holds requests.
    shard: bool,
    /// Another node handed over.
    handed: bool,
    /// Clients here count: not after an operator demoted this node.
    demoted: bool,
    /// When this node steps in because nobody else does.
    auto_at: Option<Instant>,
    /// Not before.
    hold_until: Instant,
    /// Failed attempts in a row.
    attempt: u32,
    /// The last one found that no copy is in reach.
    lacks_copies: bool,
}

/// An operation that was not answered yet.
#[derive(Clone, Debug, Hash)]
struct Pending {
    id: OperationId,
    operation: Operation,
    deadline: Instant,
    /// A change for it is open, or shards are asked.
    busy: bool,
    /// The primary is asked (to hand over, to leave this node's copy out) from then on: again, if it did
    /// not hear or was no longer it.
    ask_at: Instant,
    /// Of an invalidate: what the configuration named for this node's copy. Done when it names a later mark.
    from: Option<Incarnation>,
    /// Of a resize or a verify: the configuration says that it is under way.
    begun: bool,
    /// Of a verify: one that is to be joined began after this configuration. Of a hold, or a
    /// command about reservations: every shard is to act on this one.
    since: Option<Epoch>,
    /// Of a command about reservations.
    asked: reserve::Asked,
}

/// One node's share of a resource's configuration.
#[derive(Clone, Debug, Hash)]
pub struct Member {
    now: Instant,
    node: NodeId,
    process: u64,
    timing: Timing,
    random: Prng,
    phase: Phase,
    record: Option<Record>,
    attached: bool,
    /// Its disk failed in this process: not to be touched.
    disk_failed: bool,
    /// A shard does not know what of this copy its disk lost: when it is to be said, or said again, that it is worthless.
    unsure: Option<Instant>,
    detach_told: bool,
    /// Writes of record and log that this process found at its start.
    found_writes: u64,
    shards: Vec<ShardView>,
    known: Option<Known>,
    /// What was last told to the shards.
    emitted: Option<Arc<Configuration>>,
    /// What every shard acts on.
    installed: Epoch,
    slots: Vec<BitmapSlot>,
    slot_generation: u64,
    store: store::Store,
    slot: Slot,
    /// Until then shards here may answer as primary, though the reign be over.
    leased_until: Instant,
    peers: BTreeMap<NodeId, Peer>,
    /// By node, identity and process: a disk put back to an image under an identity given up since is found
    /// too, and what others tell does not replace what was heard here.
    seen: BTreeMap<(NodeId, VoterId, u64), Seen>,
    role: Role,
    round_seen: u64,
    want: Want,
    clients: u32,
    operations: Vec<Pending>,
    /// Commands about reservations that other nodes asked for.
    asked_by_others: u64,
    /// Number of the last question to shards how much they have that another side lacks.
    counts: u64,
    hold_told: bool,
    pause_told: bool,
    /// An operator has requests here fail that would wait for nodes that are missing.
    fails_waiting: bool,
    verify_sectors: u64,
    /// Number of the last run of a verify.
    verify_run: u64,
    feature_level: u32,
    cut: u64,
    /// The identity that it took in this process because its disk went back in time: until that is a member's.
    went_back: Option<VoterId>,
    /// Not before, this node decides alone, where it may.
    alone_from: Instant,
    /// Wall clock at `Instant(0)`, if it was told.
    wall_origin_ms: Option<u64>,
    /// It leaves the history it was on; shards are told with the next configuration.
    leaves: bool,
    /// The first configuration of the history that it is on since it gave up another. What shards say of
    /// earlier ones is about that other one.
    side_from: Epoch,
    /// The last configuration that this node decided alone, in this process.
    decided_alone: Option<Epoch>,
    /// How often it made way for the sake of its own copy since another node was primary.
    in_vain: u32,
    /// Who asks again and again for what this voter has lent to another: since when, and when last.
    turned_away: Option<(NodeId, Instant, Instant)>,
}

impl Member {
    /// The member as it is at the start of a process. It says nothing before the first step.
    #[must_use]
    pub fn new(now: Instant, setup: MemberSetup) -> Member {
        let mut member = Member {
            now,
            node: setup.node,
            process: setup.process,
            timing: setup.timing,
            random: Prng::new(setup.seed ^ setup.process.rotate_left(17)),
            phase: Phase::Starting,
            attached: setup.attached && setup.record.is_some(),
            disk_failed: false,
            unsure: setup.record.as_ref().and_then(|record| record.unsure.then_some(now)),
            detach_told: false,
            found_writes: setup.found_writes,
            shards: vec![ShardView::default(); usize::from(setup.shards)],
            known: None,
            emitted: None,
            installed: Epoch(0),
            slots: Vec::new(),
            slot_generation: 0,
            store: store::Store::default(),
            slot: Slot { holder: None, ballot: Ballot::default(), until: now },
            leased_until: now,
            peers: BTreeMap::new(),
            seen: BTreeMap::new(),
            role: Role::Idle,
            round_seen: 0,
            want: Want::default(),
            clients: 0,
            operations: Vec::new(),
            asked_by_others: 0,
            hold_told: false,
            pause_told: false,
            fails_waiting: false,
            verify_sectors: setup.verify_sectors,
            verify_run: 0,
            feature_level: setup.feature_level,
            cut: 0,
            counts: 0,
            went_back: None,
            alone_from: now + Duration(setup.timing.lease.0.saturating_mul(lineage::ALONE_LEASES)),
            wall_origin_ms: None,
            leaves: false,
            side_from: Epoch(0),
            decided_alone: None,
            turned_away: None,
            in_vain: 0,
            record: setup.record,
        };
        member.inherit(setup.bootstrap);
        member
    }

    /// Takes one input at `now`, which never goes back, and appends what is to be done.
    pub fn step(&mut self, now: Instant, input: MemberInput, out: &mut Vec<MemberOutput>) {
        assert!(now >= self.now, "time went back");
        self.now = now;
        match input {
            MemberInput::PeerUp { peer, session } => self.on_peer_up(peer, session, out),
            MemberInput::PeerDown { peer, session } => self.on_peer_down(peer, session, out),
            MemberInput::Frame { message, .. } if counts::are_beyond(&message) => {
                out.push(MemberOutput::Mark("member: a count that nobody can have come to"));
            }
            MemberInput::Frame { peer, session, message } => {
                self.on_frame(peer, session, message, out);
            }
            MemberInput::Shard { shard, message } => self.on_shard(shard, message, out),
            MemberInput::Stored { number, ok } => self.on_stored(number, ok, out),
            MemberInput::Operation { id, operation } => self.on_operation(id, operation),
            MemberInput::Clients { count } => {
                if count > self.clients {
                    self.want.demoted = false;
                }
                self.clients = count;
            }
            MemberInput::Withdraw { id } => self.on_withdraw(id, out),
            MemberInput::Wake => {}
        }
        self.run(out);
    }

    /// When time alone would change something; `None`: never.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let mut at: Option<Instant> = None;
        let mut consider = |time: Instant| at = Some(at.map_or(time, |at| at.min(time)));
        if self.phase == Phase::Starting && self.is_recorded_by_shards() {
            consider(self.now);
        }
        if self.phase == Phase::Running {
            self.proposer_deadlines(&mut consider);
            self.primary_deadlines(&mut consider);
            if self.reign().is_some() {
                self.peer_deadlines(&mut consider);
            }
            self.operation_deadlines(&mut consider);
            if let Some(at) = self.unsure.filter(|at| *at > self.now) {
                consider(at);
            }
        }
        at
    }

    /// Everything that follows from the state as it is now. Run after every input.
    fn run(&mut self, out: &mut Out) {
        if self.phase == Phase::Starting && self.is_recorded_by_shards() {
            self.store_start(out);
        }
        if self.phase == Phase::Running {
            self.check_given_up(out);
            self.give_up_unsure();
            self.run_operations(out);
            let was_idle = matches!(self.role, Role::Idle);
            self.run_proposer(out);
            self.check_disk(out);
            self.end_impatience(out);
            self.run_primary(out);
            if !was_idle {
                self.go_on_after_an_end();
            }
        }
        self.run_store(out);
    }

    fn on_frame(
        &mut self,
        peer: NodeId,
        session: SessionId,
        message: MemberMessage,
        out: &mut Out,
    ) {
        if self.peers.get(&peer).is_none_or(|known| known.session != Some(session)) {
            out.push(MemberOutput::Mark("member: frame of an ended session"));
            return;
        }
        if let MemberMessage::Hello { .. } = message {
            return self.on_hello(peer, message, out);
        }
        if let MemberMessage::Heard { seen } = &message
            && self.phase != Phase::Running
        {
            return self.remember_others(seen, out);
        }
        if self.phase != Phase::Running || self.has_forked_alone() {
            return;
        }
        let about_split =
            matches!(message, MemberMessage::Learn { .. } | MemberMessage::Diverged { .. });
        if self.is_split(peer) && !about_split {
            return;
        }
        match message {
            MemberMessage::Hello { .. } => {}
            MemberMessage::Prepare { ballot } => self.on_prepare(peer, session, ballot, out),
            MemberMessage::Promise { ballot, voter, accepted } => {
                self.on_promise(peer, ballot, voter, accepted, out);
            }
            MemberMessage::Accept { ballot, configuration } => {
                self.on_accept(peer, session, ballot, configuration, out);
            }
            MemberMessage::Accepted { ballot, epoch, voter } => {
                self.on_accepted(peer, ballot, epoch, voter, out);
            }
            MemberMessage::Refused { ballot, reason } => {
                self.on_refused(peer, ballot, reason, out);
            }
            MemberMessage::Learn { ballot, configuration } => {
                self.meet(peer, ballot, configuration, out);
                self.tell_learned(peer, out);
            }
            MemberMessage::Learned { epoch } => self.on_learned(peer, epoch),
            MemberMessage::Heartbeat { ballot, epoch, sent, generation, seen } => {
                self.remember_primary(peer, generation);
                self.remember_told(&seen, out);
                self.on_heartbeat(peer, session, ballot, epoch, sent, out);
            }
            MemberMessage::Heard { seen } => self.remember_told(&seen, out),
            answer @ MemberMessage::HeartbeatAnswer { .. } => {
                self.on_heartbeat_answer(peer, &answer, out);
            }
            MemberMessage::Release { ballot } => self.on_release(peer, ballot),
            MemberMessage::WantPrimary => self.on_want_primary(peer, session, out),
            MemberMessage::HandOver { epoch } => self.on_hand_over(epoch),
            MemberMessage::Reserve { number, volume, host, command } => {
                self.on_reserve((peer, session), number, (volume, host), command, out);
            }
            MemberMessage::Reserved { number, result } => {
                self.on_reserved((peer, session), number, result, out);
            }
            MemberMessage::Diverged { sectors } => self.on_diverged(peer, sectors),
            MemberMessage::Invalidate { incarnation } => self.on_invalidate(peer, incarnation),
        }
    }

    fn on_shard(&mut self, shard: u16, message: FromShard, out: &mut Out) {
        assert!(usize::from(shard) < self.shards.len(), "a shard that does not exist");
        let view = &mut self.shards[usize::from(shard)];
        match message {
            FromShard::Started => view.started = true,
            FromShard::Installed { epoch } => {
                view.installed = view.installed.max(epoch);
                self.on_installed(out);
            }
            FromShard::Written { epoch } => {
                view.written = view.written.max(epoch);
                self.on_written();
            }
            FromShard::Logged { writes } => view.logged = view.logged.max(writes),
            FromShard::Wants => self.want.shard = true,
            FromShard::DiskFailed => self.on_disk_failed(out),
            FromShard::Unsure => self.on_unsure(),
            FromShard::Counted { peer, number, sectors } => {
                self.on_counted(shard, peer, (number, sectors), out);
            }
            FromShard::Fenced { epoch } => self.on_fenced(shard, epoch),
            FromShard::Gathered { reign } => self.on_gathered(shard, reign),
            FromShard::Grown { volume, since } => self.on_grown(shard, volume, since),
            FromShard::Reconciled { reign } => self.on_reconciled(shard, reign),
            FromShard::Drained { reign, number } => self.on_drained(shard, reign, number),
            FromShard::Flushed { peer, session, sequence } => {
                self.on_flushed(shard, peer, session, sequence);
            }
            FromShard::Synced { peer, session } => self.on_synced(shard, peer, session),
            FromShard::Required { peer, session, number } => {
                self.on_required(shard, peer, session, number);
            }
            FromShard::PeerLate { peer, session } => self.on_peer_late(peer, session, out),
            FromShard::PeerFailed { peer, session } => self.on_peer_failed(peer, session, out),
            FromShard::CutReady { number } => self.on_cut_ready(shard, number, out),
            FromShard::Verified { run, repaired, .. } => self.on_verified(shard, run, repaired),
        }
    }

    /// Sends to a peer in its present session, if there is one and this life may be heard of.
    fn send(&self, peer: NodeId, message: MemberMessage, out: &mut Out) {
        if self.phase == Phase::Running
            && let Some(session) = self.peers.get(&peer).and_then(|peer| peer.session)
        {
            out.push(MemberOutput::Send { peer, session, message });
        }
    }

    fn connected(&self) -> Vec<NodeId> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.session.is_some())
            .map(|(&node, _)| node)
            .collect()
    }

    fn tell_shards(message: ToShard, out: &mut Out) {
        out.push(MemberOutput::Shards(message));
    }

    /// The reign, once its promote is committed.
    fn reign(&self) -> Option<&Reign> {
        match &self.role {
            Role::Primary(reign) if reign.promoted => Some(reign),
            _ => None,
        }
    }

    fn reign_mut(&mut self) -> Option<&mut Reign> {
        match &mut self.role {
            Role::Primary(reign) if reign.promoted => Some(reign),
            _ => None,
        }
    }
}

/// The order of configurations: a fork above what it left, then by epoch.
fn rank(configuration: &Configuration) -> (u64, Epoch) {
    (configuration.fork, configuration.epoch)
}

/// The order of values at voters.
fn rank_value(ballot: Ballot, configuration: &Configuration) -> (u64, Ballot, Epoch) {
    (configuration.fork, ballot, configuration.epoch)
}

/// Whether the voters that consented, each under the identity that `configuration` names, decide.
fn is_majority(configuration: &Configuration, consent: &BTreeMap<NodeId, VoterId>) -> bool {
    let count = configuration
        .voters()
        .filter(|member| consent.get(&member.node) == Some(&member.voter))
        .count();
    count >= configuration.majority()
}

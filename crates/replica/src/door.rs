//! The doors of the two machines: everything that can happen to them, and everything they can ask for.
//!
//! A caller carries outputs out in the order in which they stand. `Member` and `Shard` of one node
//! may run on different threads; what one says to the other arrives later, in order.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{
    AnswerError, BufferId, Duration, Epoch, HostId, Instant, NodeId, Request, RequestId, SessionId,
    Span, VolumeId, VoterId,
};
use wire::admin::OptionsChange;
use wire::{
    Configuration, MemberKind, MemberMessage, ReservationCommand, ReservationRefusal, ShardMessage,
};

/// A metadata page as it stands on disk.
pub type Page = [u8; 4096];

/// How addresses are divided. The production values are the default; a simulation may use smaller
/// ones, so that every limit is reached soon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Sectors in an extent, the unit of the activity log. 8192 (4 MiB). A power of two.
    pub extent_sectors: u64,
    /// Sectors in a bitmap block, the unit of the dirty bitmap. 8 (4 KiB). A power of two.
    pub block_sectors: u64,
    /// Consecutive extents that are dealt to one shard together, and share a bitmap page. 31 (124 MiB,
    /// 31 744 blocks; a page has room for 32 256).
    pub stripe_extents: u64,
    /// Pages in each half of the activity log. 64: each of up to 8 shards owns 8, enough to take over
    /// every hot extent of an earlier life.
    pub log_pages: u32,
    /// Hot extents recorded in one page of the activity log, at most. 155.
    pub log_page_extents: usize,
    /// Extents of a volume that may be hot at once, all shards together, unless it has a size of its own
    /// ([`LogSize`]). 1237 (about 5 GiB).
    pub log_extents: usize,
    /// Sectors copied or compared at once by resync, reconciliation and verify. 512 (256 KiB). A power
    /// of two, at most an extent.
    pub copy_sectors: u64,
    /// Copies in flight at once, per shard. 32: two extents' worth, so that the log page that makes the next
    /// extent hot at the target is written while the one before it is copied. 8 MiB of buffers at each end.
    pub copies_max: usize,
    /// Sectors that a verify compares between two changes of the configuration that say how far it is. 2 097 152 (1 GiB):
    /// so much is compared again where the primary changes.
    pub verify_sectors: u64,
}

/// The activity log of one volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSize {
    /// Pages in each half.
    pub pages: u32,
    /// Extents that may be hot at once, all shards together.
    pub extents: usize,
}

impl LogSize {
    /// The log of a volume of which so many extents may be hot: any shard's pages have room for all of them, which
    /// it may take over where an earlier life had fewer shards.
    #[must_use]
    pub fn of(extents: u32) -> LogSize {
        let page_extents = Geometry::default().log_page_extents;
        let extents = usize::try_from(extents).expect("a few thousand");
        let pages = extents.div_ceil(page_extents) * usize::from(wire::SHARDS_MAX);
        LogSize { pages: u32::try_from(pages).expect("fewer than extents"), extents }
    }
}

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry {
            extent_sectors: 8192,
            block_sectors: 8,
            stripe_extents: 31,
            log_pages: 64,
            log_page_extents: 155,
            log_extents: 1237,
            copy_sectors: 512,
            copies_max: 32,
            verify_sectors: 2 << 20,
        }
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Timing {
    /// Between two heartbeats of a primary. 250 ms.
    pub heartbeat: Duration,
    /// How long a primary may serve after it sent a heartbeat that a majority answered. 2 s.
    pub lease: Duration,
    /// How far two clocks may drift apart, in parts per million of elapsed time. 10 000 (1 %).
    pub drift_ppm: u64,
    /// A peer that has not answered a write or a heartbeat for this long is excluded. 1.5 s.
    pub peer_late: Duration,
    /// How long a take-over waits for a member to be gathered before it excludes it. 500 ms.
    pub gather: Duration,
    /// How long a proposer waits for answers before it asks again, doubled each time up to 16 times,
    /// with a random part. 100 ms.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(250),
            lease: Duration::from_secs(2),
            drift_ppm: 10_000,
            peer_late: Duration::from_millis(1500),
            gather: Duration::from_millis(500),
            retry: Duration::from_millis(100),
        }
    }
}

impl Timing {
    /// How long a voter's slot stays taken after it granted a lease: longer than the holder's count,
    /// whatever the drift: lease × (1 + drift) / (1 − drift), rounded up.
    #[must_use]
    pub fn voter_lease(&self) -> Duration {
        let million = 1_000_000_u128;
        let drift = u128::from(self.drift_ppm).min(million / 2);
        let wide = u128::from(self.lease.0) * (million + drift) / (million - drift) + 1;
        Duration(u64::try_from(wide).unwrap_or(u64::MAX))
    }
}

/// Names a disk request of one shard until it is answered.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DiskOp(pub u64);

/// Which page of the metadata.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MetaPage {
    /// A page of the activity log: half 0 or 1, page number in the half, copy 0 or 1.
    Log {
        /// The half that this life of the process writes.
        half: u8,
        /// Its number in the half.
        page: u32,
        /// Copies are written alternately.
        copy: u8,
    },
    /// A page of a dirty bitmap.
    Bitmap {
        /// The slot of the peer.
        slot: u8,
        /// Its number in the slot.
        page: u64,
    },
}

/// What a shard asks of its node's disk. Requests may be carried out at once and in any order, but a
/// shard never has two overlapping ones, of which one changes sectors, in flight.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DiskRequest {
    /// Read into a new buffer; answered by `Data`.
    Read {
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
        /// For a client's request, which has room for what it gives.
        requested: bool,
    },
    /// Write the buffer, or as many of its first bytes as the span has.
    Write {
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
        /// The bytes. They stay readable until the request is answered, even if a `Release` follows.
        buffer: BufferId,
        /// On stable storage before it is answered.
        durable: bool,
    },
    /// Make the span zero.
    Zero {
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
        /// Space may be given back.
        unmap: bool,
        /// On stable storage before it is answered.
        durable: bool,
    },
    /// Read and hash; answered by `Hash`.
    Hash {
        /// Which volume.
        volume: VolumeId,
        /// Which sectors.
        span: Span,
    },
    /// Put everything answered before on stable storage, in its place or not, data of every volume.
    Flush,
    /// Put the block checksums of an extent on stable storage: it is about to leave the activity log. Asked
    /// only of resources with data checksums. Answered by `Done`.
    Seal {
        /// Which volume.
        volume: VolumeId,
        /// Which extent.
        extent: u64,
    },
    /// Write a page of metadata and put it on stable storage.
    Meta {
        /// Which volume's metadata.
        volume: VolumeId,
        /// Which page.
        page: MetaPage,
        /// Its bytes.
        bytes: Box<Page>,
    },
}

/// How a disk request went.
///
/// Of a write two things are to be known: that it is as *durable* as was asked, and that it is *in its place*, where reads
/// find it. What a client was told depends on the first. Whatever looks at the place depends on the second: reads and
/// comparisons of the span, its extent's leaving the activity log, its retirement, and what a resync counts as copied. A disk with a
/// journal says one after the other; all others say both at once, with `Done`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskAnswer {
    /// Done: a write is as durable as was asked, and in its place.
    Done,
    /// Only to `Write` and `Zero`: it is on stable storage, and so as durable as can be asked. `Done` follows once it is
    /// in its place, or `Failed`.
    Durable,
    /// Read. The buffer now belongs to the shard, which releases it; `None` means all zeroes.
    Data(Option<BufferId>),
    /// The hash.
    Hash(u128),
    /// The disk failed.
    Failed,
    /// The disk gave bytes whose checksum is not that of what was written there. Only to `Read` and `Hash`.
    Rotten,
}

/// Why a replica could not give the bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadFailure {
    /// Its disk failed.
    Disk,
    /// Its bytes are not those that were written.
    Rotten,
}

/// What `Member` tells its node's shards.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToShard {
    /// This configuration is committed, and known for good on this node: act on it. `slots` says which
    /// bitmap slot each replica other than this node uses.
    Install {
        /// The configuration.
        configuration: Arc<Configuration>,
        /// Bitmap slots.
        slots: Vec<Slot>,
        /// This process is the primary that the configuration names. Without it a node that is named was
        /// primary in an earlier process: its shards must not take that reign for theirs.
        reigns: bool,
        /// This node leaves the history it was on: requests that wait here were meant for that one, and fail.
        leaves: bool,
    },
    /// The peer acts on this configuration, on all its shards, in this session. `kept`: its disk cache
    /// is the one that the configuration names.
    PeerReady {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// What it knows.
        epoch: Epoch,
        /// The incarnation registered for it is the one it has.
        kept: bool,
    },
    /// Say how much is here that this node, whose history went another way, lacks.
    Count {
        /// Which peer.
        peer: NodeId,
        /// Of the question.
        number: u64,
    },
    /// Requests may be answered while the clock reads less than this.
    Lease {
        /// When it ends.
        until: Instant,
    },
    /// Every shard has gathered: go on and serve.
    Serve {
        /// The reign that may serve.
        reign: Epoch,
    },
    /// Bring this replica, which is not in sync, up to date, in this session.
    Resync {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// Ask it for its doubt first. Always true today.
        gather: bool,
    },
    /// Its include is about to be proposed: every incomplete write waits for it from now on.
    Require {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// How often this was told of the peer.
        number: u64,
    },
    /// The include was given up before it was proposed: nobody waits for the peer any more.
    Unrequire {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
    },
    /// Answer to `Flushed`: what the peer reported since is on this node's record.
    Vouched {
        /// Which shard asked.
        shard: u16,
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// As in `Flushed`.
        sequence: u64,
    },
    /// Admit nothing more as primary; finish what is open, then say `Drained`.
    Drain {
        /// The reign to end.
        reign: Epoch,
        /// Names the attempt: what is said of one that was given up does not count for the next.
        number: u64,
    },
    /// Admit again: the hand-over did not come about.
    Undrain {
        /// The reign that goes on.
        reign: Epoch,
    },
    /// This node's disk failed what another shard asked of it.
    DiskFails,
    /// Do not touch this node's disk any more.
    Detach,
    /// Operator: hold requests back (true), or let them go on.
    Suspend(bool),
    /// Operator: hold resync back (true), or let it go on.
    PauseResync(bool),
    /// The node stops in good order, and nothing more is asked: whatever nobody uses leaves the activity log, with all
    /// that is saved when an extent does. The next process then has nothing in doubt that was not so before, or open.
    Cool,
    /// Operator, of this node alone: answer requests that cannot go on with an error (true), or let them wait.
    FailWaiting(bool),
    /// Compare all replicas from one sector to another, repair, then say `Verified`. What an earlier run left is not
    /// done any more.
    Verify {
        /// Names the run: what is said of an earlier one does not count.
        run: u64,
        /// Which volume.
        volume: VolumeId,
        /// First sector to compare.
        from: u64,
        /// Sector at which to stop; the volume's end if it comes first.
        to: u64,
    },
    /// Compare no more.
    EndVerify,
    /// Writes admitted from now on belong to cut `number` + 1; hold their answers until `CutDone`.
    Cut {
        /// The cut that ends.
        number: u64,
    },
    /// Every shard has switched: answers may go.
    CutDone {
        /// The cut that ended.
        number: u64,
    },
}

/// What a shard tells its node's `Member`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromShard {
    /// The inherited hot extents are recorded in this life's half of the log.
    Started,
    /// Acts on this configuration; older reigns are refused.
    Installed {
        /// Which.
        epoch: Epoch,
    },
    /// What was asked of this node's disk before this configuration is there. Only where memory may count.
    Written {
        /// Which.
        epoch: Epoch,
    },
    /// Judges requests by the reservations of this configuration, and no write is open any more that it let in before.
    Fenced {
        /// Which.
        epoch: Epoch,
    },
    /// Every kept in-sync member's doubt is known.
    Gathered {
        /// In this reign.
        reign: Epoch,
    },
    /// No doubt is left and every in-sync member has flushed since (needed to end `recovering`).
    Reconciled {
        /// In this reign.
        reign: Epoch,
    },
    /// What is added to the volume is zero on every in-sync replica, for good.
    Grown {
        /// Which volume.
        volume: VolumeId,
        /// Under this configuration the work began; its sizes are the same since.
        since: Epoch,
    },
    /// The peer lacks nothing here: include it. Said again if a `Require` did not follow.
    Synced {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
    },
    /// The peer, which is being brought up to date, flushed what was copied to it: tell when what it reports of
    /// its disk from now on is on record.
    Flushed {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// Of the flush.
        sequence: u64,
    },
    /// Answer to `Require`.
    Required {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// Of the `Require`: one of before, which shards were told to forget meanwhile, is not answered by it.
        number: u64,
    },
    /// Answer to `Count`.
    Counted {
        /// Which peer.
        peer: NodeId,
        /// Of the `Count`: an answer to an earlier one is of before this node knew all that its side has changed.
        number: u64,
        /// Sectors, in whole blocks.
        sectors: u64,
    },
    /// Nothing is open any more.
    Drained {
        /// In this reign.
        reign: Epoch,
        /// As in `Drain`.
        number: u64,
    },
    /// The peer owes an answer for too long.
    PeerLate {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
    },
    /// The peer's disk failed a request: it cannot stay in sync.
    PeerFailed {
        /// Which peer.
        peer: NodeId,
        /// In which session.
        session: SessionId,
    },
    /// This node's disk failed a request.
    DiskFailed,
    /// Said after that, once: extents left the log by a flush that worked while this copy was all there was. What the disk lost
    /// before may be among them, and no log of a later process names it.
    Unsure,
    /// Requests wait here and no primary is known.
    Wants,
    /// Log pages written in this life so far.
    Logged {
        /// How many.
        writes: u64,
    },
    /// Answer to `Cut`: switched.
    CutReady {
        /// The cut that ended here.
        number: u64,
    },
    /// A run of a verify has ended: sectors compared, sectors that differed and were repaired.
    Verified {
        /// Which.
        run: u64,
        /// Sectors compared.
        compared: u64,
        /// Sectors repaired.
        repaired: u64,
    },
}

/// Everything that can happen to a shard.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ShardInput {
    /// A client of this node asks for something. A request lies in one extent of this shard, except a
    /// flush. The shard owns one reference to the buffer until it releases it.
    Request {
        /// Unique while open.
        id: RequestId,
        /// What.
        request: Request,
    },
    /// The client of a request that was not answered is gone: if the request waits, or would have to again, it is answered by
    /// [`AnswerError::Gone`](base::AnswerError::Gone) and not carried out.
    Withdraw {
        /// As it was asked.
        id: RequestId,
    },
    /// From this node's `Member`.
    Member(ToShard),
    /// A session with a peer begins. An older one with the same peer has ended before.
    PeerUp {
        /// Who.
        peer: NodeId,
        /// The session.
        session: SessionId,
    },
    /// A session ended. Nothing more is heard in it.
    PeerDown {
        /// Who.
        peer: NodeId,
        /// The session.
        session: SessionId,
    },
    /// A message of a peer's shard, with its payload. The shard owns the buffer until it releases it.
    Frame {
        /// Who.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// What.
        message: ShardMessage,
        /// Its payload.
        buffer: Option<BufferId>,
    },
    /// A disk request was carried out.
    Disk {
        /// Which.
        op: DiskOp,
        /// How it went.
        answer: DiskAnswer,
    },
    /// The time of `wake_at` has come.
    Wake,
}

/// Everything a shard can ask for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ShardOutput {
    /// Carry this out and say how it went.
    Disk {
        /// Names it.
        op: DiskOp,
        /// What.
        request: DiskRequest,
    },
    /// Send this in the session, if it still lasts. The buffer stays readable until it is sent, even if
    /// a `Release` follows.
    Send {
        /// To whom.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// What.
        message: ShardMessage,
        /// Its payload.
        buffer: Option<BufferId>,
    },
    /// The client's answer. A read's bytes are in the buffer (`None`: all zeroes), which stays readable
    /// until they are sent, even if a `Release` follows.
    Answer {
        /// Of the request.
        id: RequestId,
        /// How it went.
        result: Result<(), AnswerError>,
        /// The bytes of a read.
        buffer: Option<BufferId>,
    },
    /// The shard's reference to the buffer is given up.
    Release {
        /// Which.
        buffer: BufferId,
    },
    /// To this node's `Member`.
    Member(FromShard),
    /// A rare branch was taken. Counted by tests.
    Mark(&'static str),
}

/// Names an operator's wish until it is answered.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct OperationId(pub u64);

/// What an operator, or the node on its own, asks of a resource.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Operation {
    /// Make this node primary (by hand-over if another is).
    Promote,
    /// Make this node not primary.
    Demote,
    /// Add a member, not in sync yet. Asked of the primary, or of a node that can become it.
    AddMember {
        /// On which node.
        node: NodeId,
        /// Replica or witness.
        kind: MemberKind,
        /// Identity of the memory that will vote for it.
        voter: VoterId,
    },
    /// Remove a member.
    RemoveMember {
        /// On which node.
        node: NodeId,
    },
    /// Set a volume's size, in sectors. Shrinking loses what lies beyond; what is added reads as zeroes, and
    /// is there once it is zero on every in-sync replica.
    Resize {
        /// Which volume.
        volume: VolumeId,
        /// Its new size.
        sectors: u64,
        /// It may be less than what the volume has when it is carried out.
        shrinks: bool,
    },
    /// Change these options. The others stay as they are when it is carried out.
    SetOptions(OptionsChange),
    /// Go on from this node's copy although the rules say to wait: makes a fork.
    Force,
    /// Forget this node's copy and copy it anew from the others.
    Invalidate,
    /// Hold all requests back, or let them go on.
    Suspend(bool),
    /// Hold resync back, or let it go on.
    PauseResync(bool),
    /// On this node alone, and without a majority: requests that wait for nodes that are missing, and those to come, are
    /// answered with an error until the nodes are there again; or let them wait.
    FailWaiting(bool),
    /// Compare all replicas and repair: go on with what runs or was stopped, if there is such, else begin. Done when
    /// everything is compared, whoever is primary then.
    Verify {
        /// Begin anew in any case.
        anew: bool,
    },
    /// Stop what `Verify` began; it can go on later.
    StopVerify,
    /// End the present cut; done when every shard has switched.
    Cut,
    /// End a split brain: this node's side goes on, that of `discard` is given up.
    Resolve {
        /// A node whose history went another way than this node's.
        discard: NodeId,
    },
    /// On behalf of a host: change who may use a volume, or see that the newest of it is known here. Sent to the primary if
    /// this node is not.
    Reserve {
        /// Which volume.
        volume: VolumeId,
        /// Which host.
        host: HostId,
        /// What it asks for.
        command: ReservationCommand,
    },
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OperationError {
    /// Too few voters answer.
    NoQuorum,
    /// A copy in sync is waited for: none can be used now.
    NoCopy,
    /// Another node is primary, and keeps it.
    OtherPrimary(NodeId),
    /// It would leave no replica in sync, or no member at all.
    LastReplica,
    /// It would leave fewer replicas than `in_sync_min` asks for, and requests would wait.
    TooFewReplicas,
    /// The node is already what it should become.
    Already,
    /// No such member.
    NoMember,
    /// Too many members.
    Full,
    /// This node holds no replica that could be forced or invalidated.
    NoReplica,
    /// The size is zero, beyond the limit, or not a multiple of the block.
    BadSize,
    /// An option's value is beyond its limits, or does not go with another option.
    BadOption,
    /// The primary that was asked to do it is not known or cannot be reached.
    NoPrimary,
    /// Another resize of the volume took the place of this one.
    Replaced,
    /// The volume is larger by now than it was asked to become, and it was not to shrink.
    Shrinks,
    /// This node accepted a fork that it could not see decided: its disk failed while it wrote that down, or it lost its majority. It
    /// may be on that fork after its next start.
    MayHaveForked,
    /// A replica is not connected, or does not know all that was decided, and may go on alone: no majority decides as long as that
    /// is so.
    ReplicaAway,
    /// The comparison was stopped.
    Stopped,
    /// What is open was not done in time.
    Late,
    /// This node's release, or that of the node to be added, cannot act on what the others do.
    OldRelease,
    /// The node to be discarded is not connected, or its history did not go another way.
    NoSplitBrain,
    /// A node does not discard its own side: another is to be asked.
    OwnSide,
    /// No request of this node waits for nodes that are missing.
    NothingMissing,
    /// Of a command about reservations.
    Reservation(ReservationRefusal),
}

/// Everything that can happen to a member.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberInput {
    /// A session with a peer begins.
    PeerUp {
        /// Who.
        peer: NodeId,
        /// The session.
        session: SessionId,
    },
    /// A session ended.
    PeerDown {
        /// Who.
        peer: NodeId,
        /// The session.
        session: SessionId,
    },
    /// A message of a peer's member.
    Frame {
        /// Who.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// What.
        message: MemberMessage,
    },
    /// From one of this node's shards.
    Shard {
        /// Which.
        shard: u16,
        /// What.
        message: FromShard,
    },
    /// The record is on stable storage (`ok`), or the disk failed.
    Stored {
        /// Of the `Store`.
        number: u64,
        /// It is there.
        ok: bool,
    },
    /// An operator asks for something.
    Operation {
        /// Names it.
        id: OperationId,
        /// What.
        operation: Operation,
    },
    /// Who asked for that is gone, or asks elsewhere. A command about reservations that this node has neither begun nor passed on
    /// is not carried out any more: what its host does next must not be undone by it. It is answered like one for which there
    /// was no primary. Anything else goes on.
    Withdraw {
        /// Of the `Operation`.
        id: OperationId,
    },
    /// Number of clients that have this resource open on this node.
    Clients {
        /// How many.
        count: u32,
    },
    /// The time of `wake_at` has come.
    Wake,
}

/// Everything a member can ask for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberOutput {
    /// Put this record on stable storage. One at a time: the next follows the answer.
    Store {
        /// Counts up.
        number: u64,
        /// The whole durable state of the member.
        record: Box<crate::disk::Record>,
    },
    /// Send this in the session, if it still lasts.
    Send {
        /// To whom.
        peer: NodeId,
        /// In which session.
        session: SessionId,
        /// What.
        message: MemberMessage,
    },
    /// To every shard of this node.
    Shards(ToShard),
    /// The operation ended.
    Done {
        /// Which.
        id: OperationId,
        /// How.
        result: Result<(), OperationError>,
    },
    /// Something about the resource's history that an operator is told in so many words.
    Notice(Notice),
    /// A rare branch was taken. Counted by tests.
    Mark(&'static str),
}

/// What happens to a resource's history and to those who remember it. Stretches of it go by their ids; 0 is the one that began with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notice {
    /// A stretch began here that not a majority decided, or that an operator forced.
    Began {
        /// Its name.
        history: u64,
        /// Number of times that a side was chosen.
        fork: u64,
    },
    /// A peer's history went another way than this node's.
    Parted {
        /// Which peer.
        peer: NodeId,
        /// The stretch here with which they parted.
        mine: u64,
        /// The one there.
        theirs: u64,
    },
    /// That peer's side was chosen. This one is given up once its clients have left.
    Chosen {
        /// Which peer.
        peer: NodeId,
        /// Clients of this node that are waited for.
        clients: u32,
    },
    /// This node's side is given up now: its shards still hold what is about to be overwritten.
    GivesUp {
        /// Whose side goes on.
        peer: NodeId,
        /// The stretch here with which they parted.
        mine: u64,
        /// The newest stretch there.
        theirs: u64,
        /// Number of times that a side was chosen, there.
        fork: u64,
    },
    /// A member's disk went back in time: this node's, which becomes a new, empty member; or a peer's.
    WentBack {
        /// Whose.
        node: NodeId,
    },
}

/// The bitmap slot of a replica other than this node.
///
/// A page of the slot counts only if it names this `generation`; a page that does not, or was never
/// written, is all `full`. So a slot is emptied, or filled, by one write of the record: whoever learns a
/// configuration gives the slot a new generation if the replica is in sync there (`full` false) and
/// was not before, or if its voter identity is new and it is not in sync (`full` true).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slot {
    /// Which replica.
    pub node: NodeId,
    /// Under which identity.
    pub voter: VoterId,
    /// Its number, 0..7.
    pub number: u8,
    /// Counts up over all slots of this record.
    pub generation: u64,
    /// What a page without bits of this generation means: everything dirty, or nothing.
    pub full: bool,
}

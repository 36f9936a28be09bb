//! What becomes of each request: writes, reads, activity log, bitmaps, resync of one shard.
//!
//! A shard plays up to three parts at once, each in rooms of its own:
//! - *client*: requests of this node go to wherever the primary is (`forward`);
//! - *primary*: it orders requests (`admit`, `lock`), carries them to every replica (`write`, `read`,
//!   `flush`), and copies what replicas lack or doubt (`copy`, `sync`, `takeover`);
//!   it carries out no write twice (`once`);
//! - *replica*: it does what the primary says, and remembers what that leaves open (`replica`).
//!
//! Beneath them: this node's disk (`local`), the activity log (`activity`), the bitmaps (`bitmap`) and
//! the ranges in doubt (`doubt`).
//!
//! Always:
//! - every request is answered exactly once, and as primary only while the lease runs;
//! - every buffer that comes in is released exactly once;
//! - a write that a replica outside the in-sync set misses is dirty for it here before it is answered;
//! - a range that this replica may hold differently from the others is in doubt or un-retired, and its
//!   extent is hot.
//!
//! Not here: who is primary, who is in sync (`Member`).

mod activity;
mod admit;
mod bitmap;
mod blocks;
mod copy;
mod doubt;
mod flush;
mod forward;
mod grow;
mod ids;
mod install;
mod local;
mod lock;
mod multipath;
mod once;
mod op;
mod pace;
mod peer;
mod read;
mod replica;
mod seats;
mod status;
mod sync;
mod takeover;
#[cfg(test)]
mod tests;
mod untold;
mod write;

pub use status::{ShardStatus, SyncStatus};

use crate::door::{Geometry, LogSize, ShardInput, ShardOutput, Slot, Timing, ToShard};
use activity::ActivityLog;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Epoch, Instant, NodeId, RangeSet, RequestId, Span, VolumeId};
use bitmap::Bitmaps;
use doubt::Doubt;
use ids::IdMap;
use local::{Local, Purpose};
use lock::LockTable;
use multipath::Multipath;
use once::Once;
use op::{Client, Op};
use pace::Pace;
use peer::{Peer, ReadLoad};
use seats::Seats;
use wire::{Configuration, WriteName};

type Out = Vec<ShardOutput>;

/// What a shard is made of.
#[derive(Clone, Debug)]
pub struct ShardSetup {
    /// This node.
    pub node: NodeId,
    /// As in [`crate::start::Start`].
    pub process: u64,
    /// Which shard, from 0.
    pub index: u16,
    /// How many shards serve the resource on every node, 1..=[`wire::SHARDS_MAX`].
    pub shards: u16,
    /// How addresses are divided.
    pub geometry: Geometry,
    /// How long things may take.
    pub timing: Timing,
    /// This node has a usable disk for the resource.
    pub attached: bool,
    /// No primary ever wrote to it.
    pub untouched: bool,
    /// The life of the process, as in the record to be stored at `FromShard::Started`.
    pub life: u64,
    /// The half of the log that this life writes.
    pub log_half: u8,
    /// Extents found hot, those of this shard only.
    pub inherited: Vec<(VolumeId, u64)>,
    /// Activity logs of volumes that have not the size of the geometry.
    pub log_sizes: Vec<(VolumeId, LogSize)>,
    /// Bitmap slots as in the record.
    pub slots: Vec<Slot>,
    /// Bitmap pages found on disk, those of this shard only, of each slot's present generation: (node,
    /// volume, page, runs of dirty blocks from the page's first).
    pub bitmaps: Vec<BitmapFound>,
}

/// A bitmap page found on disk: (node, volume, page, runs of dirty blocks from the page's first; `None`: it cannot be believed).
pub type BitmapFound = (NodeId, VolumeId, u64, Option<Vec<(u64, u64)>>);

/// One thread's share of a resource.
#[derive(Debug)]
pub struct Shard {
    now: Instant,
    node: NodeId,
    index: u16,
    shards: u16,
    geometry: Geometry,
    timing: Timing,
    has_disk: bool,
    disk_failing: bool,
    started: bool,

    configuration: Option<Arc<Configuration>>,
    /// This process is the primary that the configuration names, if that is this node.
    reigns: bool,
    /// This node's disk cache is the one that the configuration names.
    kept: bool,
    /// The member said how it stands with this node's own disk, in this reign.
    own_ready: bool,
    /// The newest configuration in which a volume's size changed: only who knows it is sent anything.
    resized: Epoch,
    lease_until: Instant,
    /// The reign in which every shard of this node, as primary, has gathered.
    serving: Option<Epoch>,
    /// `Gathered` was said in this reign.
    gathered: Option<Epoch>,
    reconciled: Option<Epoch>,
    /// In this reign, and which attempt it is.
    draining: Option<(Epoch, u64)>,
    /// `Drained` was said for it.
    drained: Option<(Epoch, u64)>,
    suspended: bool,
    sync_paused: bool,
    /// Requests that cannot go on are answered with an error.
    fails_waiting: bool,
    cut: u64,
    cut_done: u64,

    peers: BTreeMap<NodeId, Peer>,
    seats: Seats,
    locks: LockTable,
    ops: IdMap<Op>,
    next_op: u64,
    /// Sequence of a message that awaits an answer, to the operation that sent it.
    asked: IdMap<u64>,
    next_sequence: u64,
    /// Sequences of writes that are not on every in-sync disk.
    unretired_own: IdMap<()>,
    only_disk: OnlyDisk,
    /// Writes retired in this reign.
    retired_count: u64,
    /// How many must be so before some replica is due a batch of retirements, so that a step need not look
    /// at every one. 0 when a replica is ready anew; each tick looks in any case.
    retire_due: u64,
    last_write: u64,
    /// Complete operations whose answers wait for the lease or a cut.
    held: BTreeSet<u64>,
    /// Requests that cannot start: no primary, or not ready.
    waiting: VecDeque<Client>,
    forwards: BTreeMap<RequestId, forward::Forwarded>,
    /// Of what was begun, here or at another primary, requests whose clients are gone.
    withdrawn: BTreeSet<RequestId>,
    /// Bytes that the requests in `forwards` write or read.
    forwarded_bytes: u64,
    /// A client of this node was answered without an error in this process.
    told: bool,
    once: Once,
    multipath: Multipath,
    reconcile: Doubt,
    /// Of `reconcile`, what copies are under way for.
    reconciling: BTreeMap<VolumeId, RangeSet>,
    reconcile_cursor: (VolumeId, u64),
    /// Blocks that no in-sync replica could give in this reign, and that were not written since.
    lost: BTreeMap<VolumeId, RangeSet>,
    copies: usize,
    verify: Option<copy::VerifyRun>,
    growths: BTreeMap<VolumeId, grow::Growth>,
    turn: usize,
    own_reads: ReadLoad,
    pace: Pace,

    local: Local,
    log: ActivityLog,
    bitmaps: Bitmaps,
    doubt: Doubt,
    /// Writes of the present primary that are not known to be on every in-sync disk.
    unretired: IdMap<(VolumeId, Span)>,

    last_tick: Instant,
    last_wants: Option<Instant>,
    waiting_since: Option<Instant>,
    /// The configuration by whose reservations it judges, and client's writes that are open from before.
    fence: Option<(Epoch, Vec<u64>)>,
}

/// What the only disk that counts failed while no other replica was in sync; of flushes also what it failed before it was the only one.
#[derive(Debug, Default)]
struct OnlyDisk {
    /// Sequences of its writes among them, which count as not retired until another replica is in sync. Others' may be in between.
    failed: RangeSet,
    /// The last of them.
    last_failed: u64,
    /// Before then the flush after the loss of all caches is not asked for again, nor that for the log, nor does a growth begin anew.
    again_at: Instant,
    /// It was said that what was lost may not be in the log any more.
    unsure: bool,
    /// A flush failed of which no client is known to have heard: the next one that a client asks for fails.
    flush_untold: bool,
    /// The disk was the only one when that happened, or since.
    untold_alone: bool,
    /// The primary was told of one, on another node, and may not have heard.
    told: Option<untold::Told>,
}

impl Shard {
    /// The shard at the start of a process. Its first outputs may be disk requests: when the inherited
    /// hot extents are recorded it says `FromShard::Started`.
    #[must_use]
    pub fn new(now: Instant, setup: ShardSetup, out: &mut Vec<ShardOutput>) -> Shard {
        let &ShardSetup { geometry, index, shards, .. } = checked(&setup);
        let shard = Shard {
            now,
            node: setup.node,
            index,
            shards,
            geometry,
            timing: setup.timing,
            has_disk: setup.attached,
            disk_failing: false,
            started: false,
            configuration: None,
            reigns: false,
            kept: false,
            own_ready: false,
            resized: Epoch(0),
            lease_until: Instant(0),
            serving: None,
            gathered: None,
            reconciled: None,
            draining: None,
            drained: None,
            suspended: false,
            sync_paused: false,
            fails_waiting: false,
            cut: 1,
            cut_done: 0,
            peers: BTreeMap::new(),
            seats: Seats::new(),
            locks: LockTable::new(geometry.extent_sectors),
            ops: IdMap::new(),
            next_op: 1,
            asked: IdMap::new(),
            next_sequence: 1,
            unretired_own: IdMap::new(),
            only_disk: OnlyDisk::default(),
            retired_count: 0,
            retire_due: 0,
            last_write: 0,
            held: BTreeSet::new(),
            waiting: VecDeque::new(),
            forwards: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            forwarded_bytes: 0,
            told: false,
            once: Once::new(WriteName::session_of(setup.node, setup.process), setup.untouched),
            multipath: Multipath::default(),
            reconcile: Doubt::default(),
            reconciling: BTreeMap::new(),
            reconcile_cursor: (VolumeId(0), 0),
            lost: BTreeMap::new(),
            copies: 0,
            verify: None,
            growths: BTreeMap::new(),
            turn: 0,
            own_reads: ReadLoad::default(),
            pace: Pace::new(geometry.copies_max, geometry.copy_sectors, geometry.block_sectors),
            local: Local::new(geometry.extent_sectors),
            log: log_of(&setup),
            bitmaps: Bitmaps::new(&geometry, index, shards),
            doubt: Doubt::default(),
            unretired: IdMap::new(),
            last_tick: now,
            last_wants: None,
            waiting_since: None,
            fence: None,
        };
        shard.inherit(&setup, out)
    }

    /// Takes over what the disk says of an earlier life.
    fn inherit(mut self, setup: &ShardSetup, out: &mut Out) -> Shard {
        for &slot in &setup.slots {
            self.bitmaps.ensure(slot, Epoch(0));
        }
        for (node, volume, page, runs) in &setup.bitmaps {
            self.bitmaps.load(*node, *volume, *page, runs.as_deref());
        }
        let extent_sectors = self.geometry.extent_sectors;
        for &(volume, extent) in &setup.inherited {
            self.doubt.add(volume, extent * extent_sectors, (extent + 1) * extent_sectors, true);
        }
        self.log.inherit(&setup.inherited);
        self.write_log(out);
        if self.log.is_settled() {
            self.started = true;
            out.push(ShardOutput::Member(crate::door::FromShard::Started));
        }
        self
    }

    /// Which shard serves an extent, when `shards` share the resource.
    #[must_use]
    pub fn owner(geometry: &Geometry, shards: u16, extent: u64) -> u16 {
        u16::try_from(extent / geometry.stripe_extents % u64::from(shards))
            .expect("less than the number of shards")
    }

    /// One input. Outputs are appended to `out`, to be carried out in order.
    pub fn step(&mut self, now: Instant, input: ShardInput, out: &mut Vec<ShardOutput>) {
        self.now = self.now.max(now);
        let from = out.len();
        match input {
            ShardInput::Request { id, request } => {
                let client = self.local_client(id, request);
                self.on_request(client, out);
            }
            ShardInput::Withdraw { id } => self.withdraw(id, out),
            ShardInput::Member(message) => self.on_member(message, out),
            ShardInput::PeerUp { peer, session } => self.on_peer_up(peer, session, out),
            ShardInput::PeerDown { peer, session } => self.on_peer_down(peer, session, out),
            ShardInput::Frame { peer, session, message, buffer } => {
                self.on_frame(peer, session, message, buffer, out);
            }
            ShardInput::Disk { op, answer } => self.on_disk(op, answer, out),
            ShardInput::Wake => {}
        }
        self.flush_what_waited(out);
        self.tick(out);
        self.pump(out);
        self.retry_far_ahead(out);
        if self.log.take_idle() {
            self.make_room(out);
        }
        self.cool_what_could_not(out);
        self.tell_written(out);
        self.tell_fenced(out);
        self.hold_releases(from, out);
    }

    fn on_member(&mut self, message: ToShard, out: &mut Out) {
        match message {
            ToShard::Install { configuration, slots, reigns, leaves } => {
                self.install(configuration, &slots, reigns, leaves, out);
            }
            ToShard::Count { peer, number } => {
                let sectors = self.changed_sectors(peer);
                let counted = crate::door::FromShard::Counted { peer, number, sectors };
                out.push(ShardOutput::Member(counted));
            }
            ToShard::PeerReady { peer, session, epoch, kept } => {
                self.on_peer_ready(peer, session, epoch, kept, out);
            }
            ToShard::Lease { until } => {
                self.lease_until = self.lease_until.max(until);
                self.answer_held(out);
            }
            ToShard::Serve { reign } => self.on_serve(reign, out),
            ToShard::Resync { peer, session, gather: _ } => self.start_sync(peer, session, out),
            ToShard::Require { peer, session, number } => {
                self.on_require(peer, session, number, out);
            }
            ToShard::Unrequire { peer, session } => self.on_unrequire(peer, session, out),
            ToShard::Vouched { shard, peer, session, sequence } => {
                if shard == self.index {
                    self.on_vouched(peer, session, sequence, out);
                }
            }
            // A member may be in its next reign while this shard stands at the end of the one before, which others may have
            // succeeded: what it says of that one changes nothing here.
            ToShard::Drain { reign, number } if reign == self.reign() => {
                self.draining = Some((reign, number));
                self.drained = None;
            }
            ToShard::Undrain { reign } if reign == self.reign() => {
                self.draining = None;
                self.retry_waiting(out);
            }
            ToShard::Drain { .. } | ToShard::Undrain { .. } => {}
            ToShard::DiskFails => self.disk_failing = true,
            ToShard::Detach => self.detach(out),
            ToShard::Suspend(on) => {
                self.suspended = on;
                self.retry_waiting(out);
                self.answer_held(out);
            }
            ToShard::PauseResync(on) => self.sync_paused = on,
            ToShard::Cool => {
                self.log.empty();
                self.make_room(out);
            }
            ToShard::FailWaiting(on) => {
                self.fails_waiting = on;
                self.fail_without_quorum(out);
            }
            ToShard::Verify { run, volume, from, to } => self.start_verify(run, volume, from, to),
            ToShard::EndVerify => self.end_verify(),
            ToShard::Cut { number } => self.on_cut(number, out),
            ToShard::CutDone { number } => {
                self.cut_done = self.cut_done.max(number);
                self.answer_held(out);
            }
        }
    }

    /// An answer of this node's disk, for whoever asked.
    fn on_local(&mut self, purpose: Purpose, answer: crate::door::DiskAnswer, out: &mut Out) {
        match purpose {
            Purpose::Op(id) => self.on_own_disk(id, answer, out),
            Purpose::Copy { id, look } => self.on_own_look(id, look, answer, out),
            Purpose::Peer { node, session, sequence, kind } => {
                self.on_peer_disk(node, session, sequence, kind, answer, out);
            }
        }
    }

    /// Whether this node is primary in the configuration it knows.
    fn is_primary(&self) -> bool {
        self.reigns
            && self.configuration.as_ref().is_some_and(|known| known.primary == Some(self.node))
    }

    fn reign(&self) -> Epoch {
        self.configuration.as_ref().map_or(Epoch(0), |known| known.reign)
    }

    fn epoch(&self) -> Epoch {
        self.configuration.as_ref().map_or(Epoch(0), |known| known.epoch)
    }

    /// Whether this node's own replica holds every acknowledged write.
    fn is_own_in_sync(&self) -> bool {
        self.has_disk
            && self.kept
            && self.configuration.as_ref().is_some_and(|known| known.is_in_sync(self.node))
    }

    fn may_answer(&self) -> bool {
        self.is_primary() && self.now < self.lease_until
    }

    fn sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }
}

fn log_of(setup: &ShardSetup) -> ActivityLog {
    let ShardSetup { geometry, index, shards, life, log_half, log_sizes, .. } = setup;
    ActivityLog::new(geometry, *index, *shards, *life, *log_half, log_sizes)
}

fn checked(setup: &ShardSetup) -> &ShardSetup {
    let geometry = &setup.geometry;
    assert!(
        geometry.extent_sectors.is_power_of_two()
            && geometry.copy_sectors <= geometry.extent_sectors
            && geometry.copy_sectors.is_multiple_of(geometry.block_sectors),
        "copies are whole blocks inside an extent"
    );
    setup
}

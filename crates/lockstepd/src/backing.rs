//! Backing stores of a resource on this node: where they are, making them, reading what they hold.
//!
//! Everything here blocks, and so runs on the helper's thread, at start, or at stop.
//!
//! Always: a store that holds something is not touched without force; what was made by an attempt that
//! failed is removed again, and what was made longer gets its length back; the superblock is written last, so that a store half made is nobody's.
//!
//! Not here: the data path (`node::disk`), what metadata means (`replica::disk`).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{ClusterId, Duration, NodeId, ResourceId, SECTOR_BYTES, VolumeId};
use replica::disk::{
    AreaPlace, BadMetadata, Layout, RECORD_BYTES, RECORD_COPIES, Record, Superblock, newest_record,
};
use replica::door::{LogSize, MetaPage, Page};
use replica::start::Found;
use serde::{Deserialize, Serialize};
use store::{MetadataPlace, Part, Place, Store, StoreError, StoreSpec};
use sys::{BufferPool, Errno, Event, Hands, HandsConfig, MappedKind, Payload, Piece};
use wire::admin::{Code, ResourceFile, StoreKind, VOLUME_BYTES_MAX, codes};
use wire::{MemberKind, REPLICAS_MAX};

use crate::log::warning;

mod labels;
mod marks;
mod removal;

pub(crate) use removal::remove_labelled;

/// Bytes read or written at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Pages of a bitmap read before the empty ones among them are dropped.
const BITMAP_PAGES_AT_ONCE: u64 = 1024;
/// Bytes of a device made zero at once.
const ZERO_BYTES: u64 = 256 << 20;
const PAGE_BYTES: u64 = 4096;
/// Pages of one run that may fail before the rest of it counts as lost, too.
const BAD_PAGES_MAX: usize = 16;
/// The least that is read or written of a volume at once, if nothing else is said: no disk has larger blocks.
const BLOCK_BYTES: u32 = 4096;
/// Bytes that every file is laid out for at least.
const FILE_BYTES_MIN: u64 = 64 << 30;
/// Bitmap slots of a volume: one for each replica besides this one.
pub(crate) const SLOTS: u8 = 7;
const _: () = assert!(SLOTS as usize == REPLICAS_MAX - 1, "a slot for each other replica");

/// Why something was not done: the entry of the table of errors, and what it was this time.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) code: &'static Code,
    pub(crate) message: String,
    /// Somebody has the store open, perhaps an earlier process of this node.
    pub(crate) in_use: bool,
}

impl Refused {
    /// With these words.
    pub(crate) fn new(code: &'static Code, message: impl Into<String>) -> Refused {
        Refused { code, message: message.into(), in_use: false }
    }

    fn store(what: &str, error: &StoreError) -> Refused {
        let code = match error {
            StoreError::TooSmall { .. } | StoreError::BeyondFileSystem { .. } => {
                &codes::STORE_TOO_SMALL
            }
            StoreError::ForeignData { .. } => &codes::STORE_NOT_EMPTY,
            StoreError::NoMemoryFlag => &codes::MEMORY_REFUSED,
            _ => &codes::STORE_FAILED,
        };
        let in_use = *error == StoreError::InUse;
        Refused { in_use, ..Refused::new(code, format!("{what}: {error}")) }
    }

    fn disk(what: &str, error: Errno) -> Refused {
        Refused::new(&codes::STORE_FAILED, format!("{what}: {error}"))
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} ({})", self.message, self.code.code)
    }
}

/// Where one volume of a resource is on this node.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) volume: VolumeId,
    pub(crate) kind: StoreKind,
    pub(crate) layout: Layout,
    pub(crate) spec: StoreSpec,
    /// Bytes of data that there is room for.
    pub(crate) data_bytes: u64,
    /// The least that is read or written of it at once.
    pub(crate) block_bytes: u32,
    /// So many bytes that the store holds already are the volume's, and stay when the resource goes.
    pub(crate) kept_bytes: Option<u64>,
}

impl Plan {
    /// What it is, for people.
    pub(crate) fn what(&self) -> String {
        match &self.spec.place {
            Place::Path(path) => path.display().to_string(),
            Place::Memory { .. } => "memory".to_owned(),
        }
    }
}

/// Where the volumes of a resource are on `node`, whose directory is given; none if it is no member. A
/// witness has one store without data, for its record.
pub(crate) fn plans(
    directory: &Path,
    file: &ResourceFile,
    node: NodeId,
    allow_memory: bool,
) -> Vec<Plan> {
    let volumes = directory.join("volumes");
    let Some(member) = file.members.iter().find(|member| member.node == node.0) else {
        return Vec::new();
    };
    if member.kind == MemberKind::Witness {
        let path = volumes.join(format!("{}.witness", file.name));
        let layout = Layout::new(0, 0);
        return vec![plan(VolumeId(0), 0, layout, StoreKind::File, path, None, allow_memory)];
    }
    let mut plans: Vec<Plan> = file
        .volumes
        .iter()
        .map(|volume| {
            let store = member.stores.iter().find(|store| store.volume == volume.index);
            let kind = store.map_or(StoreKind::File, |store| store.kind);
            let path = store.and_then(|store| store.path.as_ref()).map_or_else(
                || volumes.join(format!("{}-{}.img", file.name, volume.index)),
                |path| directory.join(path),
            );
            let metadata = store.and_then(|store| store.metadata_path.as_ref());
            let metadata = metadata.map(|path| directory.join(path));
            let volume_id = VolumeId(volume.index);
            let room = capacity_bytes(kind, volume.size_bytes);
            let kept = store.is_some_and(|store| store.keep).then_some(volume.size_bytes);
            let pages = LogSize::of(volume.log_extents).pages;
            let layout = Layout::with_log(room / SECTOR_BYTES, SLOTS, pages);
            let plan = plan(volume_id, room, layout, kind, path, metadata, allow_memory);
            Plan { kept_bytes: kept, block_bytes: volume.block_bytes, ..plan }
        })
        .collect();
    plans.sort_by_key(|plan| plan.volume);
    plans
}

/// Bytes up to which a volume that begins with `size_bytes` can grow in its store: a file takes only
/// what is written, so it and its metadata are laid out for far more.
pub(crate) fn capacity_bytes(kind: StoreKind, size_bytes: u64) -> u64 {
    match kind {
        StoreKind::File => {
            let wide = size_bytes.saturating_mul(8).clamp(FILE_BYTES_MIN, VOLUME_BYTES_MAX);
            wide.max(size_bytes)
        }
        StoreKind::Device | StoreKind::Memory => size_bytes,
    }
}

fn plan(
    volume: VolumeId,
    data_bytes: u64,
    layout: Layout,
    kind: StoreKind,
    path: PathBuf,
    metadata: Option<PathBuf>,
    allow_memory: bool,
) -> Plan {
    let bytes = layout.total_bytes;
    let place = match kind {
        StoreKind::Memory => Place::Memory { size_bytes: whole_bytes(data_bytes, bytes) },
        StoreKind::File | StoreKind::Device => Place::Path(path),
    };
    let metadata = match metadata {
        Some(path) => MetadataPlace::External { path, bytes },
        None => MetadataPlace::Internal { bytes },
    };
    let spec =
        StoreSpec { place, metadata, needs_bytes: data_bytes, allow_memory, ..StoreSpec::path("") };
    let block_bytes = BLOCK_BYTES;
    Plan { volume, kind, layout, spec, data_bytes, block_bytes, kept_bytes: None }
}

/// Bytes of a file that holds both; a store has at least one page of data.
fn whole_bytes(data_bytes: u64, metadata_bytes: u64) -> u64 {
    data_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES) + metadata_bytes
}

/// Hands for calls that wait.
pub(crate) struct Blocking {
    hands: Hands,
    pool: BufferPool,
    /// How long each is waited for; `None`: for ever.
    patience: Option<Duration>,
    /// One was waited for in vain: its answer would be taken for that to another.
    hangs: bool,
    /// Raised when nobody wants any more what they do.
    given_up: Arc<AtomicBool>,
    /// What was read with them.
    pub(crate) read_bytes: u64,
}

impl Blocking {
    /// New hands for this thread.
    pub(crate) fn new() -> Result<Blocking, Refused> {
        let hands = Hands::new(HandsConfig::default())
            .map_err(|error| Refused::new(&codes::INTERNAL, error.to_string()))?;
        let bytes = usize::try_from(2 * CHUNK_BYTES).expect("2 MiB");
        Ok(Blocking {
            hands,
            pool: BufferPool::new(bytes),
            patience: None,
            hangs: false,
            given_up: Arc::default(),
            read_bytes: 0,
        })
    }

    /// The same for somebody who may give it up: no further call begins then, and all fail with [`Errno::CANCELED`].
    fn unless(given_up: &Arc<AtomicBool>) -> Result<Blocking, Refused> {
        Ok(Blocking { given_up: Arc::clone(given_up), ..Blocking::new()? })
    }

    /// The same, for disks that may hang: a call that takes longer than this fails with [`Errno::TIMED_OUT`], and so do
    /// all that come after.
    pub(crate) fn with_patience(patience: Duration) -> Result<Blocking, Refused> {
        Ok(Blocking { patience: Some(patience), ..Blocking::new()? })
    }

    fn wait(&mut self) -> Result<Event, Errno> {
        let mut events = Vec::new();
        let until = self.patience.map(|patience| self.hands.now_fresh() + patience);
        while events.is_empty() {
            let now = self.hands.now_fresh();
            let left = until.map(|until| until.since(now));
            if left == Some(Duration(0)) {
                self.hangs = true;
            }
            self.hangs_not()?;
            self.hands.wait(left, &mut events).map_err(|_| Errno::IO)?;
        }
        let event = events.swap_remove(0);
        event.result.map(|_| ())?;
        Ok(event)
    }

    /// Whether each call so far was answered in time. What was not read because of that says nothing of the disk.
    fn hangs_not(&self) -> Result<(), Errno> {
        if self.hangs { Err(Errno::TIMED_OUT) } else { Ok(()) }
    }

    /// Whether another call may begin.
    fn may_begin(&self) -> Result<(), Errno> {
        self.hangs_not()?;
        if self.given_up.load(Ordering::Relaxed) { Err(Errno::CANCELED) } else { Ok(()) }
    }

    /// The bytes of metadata from `offset` on.
    pub(crate) fn read(
        &mut self,
        store: &mut Store,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < offset + length {
            self.may_begin()?;
            let count = usize::try_from((offset + length - at).min(CHUNK_BYTES)).expect("1 MiB");
            let buffer = self.pool.take(count).ok_or(Errno::NO_BUFFERS)?;
            store.read_metadata(&mut self.hands, 0, at, buffer, 0..count);
            if let Payload::Buffer(buffer) = self.wait()?.payload {
                bytes.extend_from_slice(&buffer);
            }
            at += u64::try_from(count).expect("1 MiB");
        }
        self.read_bytes += length;
        Ok(bytes)
    }

    /// Writes metadata and puts it on stable storage.
    pub(crate) fn write(
        &mut self,
        store: &mut Store,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let mut at = offset;
        for chunk in bytes.chunks(usize::try_from(CHUNK_BYTES).expect("1 MiB")) {
            self.may_begin()?;
            let mut buffer = self.pool.take(chunk.len()).ok_or(Errno::NO_BUFFERS)?;
            buffer.as_mut().expect("just taken").copy_from_slice(chunk);
            store.write_metadata(&mut self.hands, 0, at, Piece::from(buffer), true);
            self.wait()?;
            at += u64::try_from(chunk.len()).expect("1 MiB");
        }
        Ok(())
    }

    /// Makes metadata zero.
    fn clear(&mut self, store: &mut Store, offset: u64, length: u64) -> Result<(), Errno> {
        let zeroes = vec![0; usize::try_from(CHUNK_BYTES).expect("1 MiB")];
        let mut at = offset;
        while at < offset + length {
            let count = usize::try_from((offset + length - at).min(CHUNK_BYTES)).expect("1 MiB");
            self.write(store, at, &zeroes[..count])?;
            at += CHUNK_BYTES;
        }
        Ok(())
    }

    /// Makes all data zero.
    fn zero(&mut self, store: &mut Store, length: u64) -> Result<(), Errno> {
        let mut at = 0;
        while at < length {
            self.may_begin()?;
            let count = (length - at).min(ZERO_BYTES);
            store.zero(&mut self.hands, 0, at, count, true, false);
            self.wait()?;
            at += count;
        }
        Ok(())
    }

    /// Puts everything on stable storage.
    pub(crate) fn flush(&mut self, store: &mut Store) -> Result<(), Errno> {
        self.may_begin()?;
        store.flush(&mut self.hands, 0);
        self.wait()?;
        store.flush_metadata(&mut self.hands, 0);
        self.wait().map(drop)
    }
}

/// A record as it stands on disk, padded to its place.
pub(crate) fn record_bytes(record: &Record) -> Vec<u8> {
    let mut bytes = record.encode();
    let room = usize::try_from(RECORD_BYTES).expect("16 KiB");
    assert!(bytes.len() <= room, "a record fits its place");
    bytes.resize(room, 0);
    bytes
}

/// Among the compatible features of a superblock: all volumes of the copy have this identity of the disk.
const OF_ONE_COPY: u64 = 2;

/// Among the compatible features of a superblock: what the store holds was there before the resource, and stays.
const KEPT: u64 = 4;

/// The superblock of a plan's store, as bytes. `disk` is random, and the same for all volumes of the copy.
pub(crate) fn label(cluster: ClusterId, resource: ResourceId, plan: &Plan, disk: u64) -> Vec<u8> {
    let external = matches!(plan.spec.metadata, MetadataPlace::External { .. });
    let kept = if plan.kept_bytes.is_some() { KEPT } else { 0 };
    let superblock = Superblock {
        compatible: marks::MARKED | OF_ONE_COPY | kept,
        cluster,
        resource,
        volume: plan.volume,
        disk,
        place: if external { AreaPlace::External } else { AreaPlace::Internal },
        slots: plan.layout.slots,
        sectors: plan.data_bytes / SECTOR_BYTES,
        regions: Superblock::regions_of(&plan.layout),
        ..Superblock::default()
    };
    superblock.encode().to_vec()
}

/// Makes the stores of a resource and writes their first metadata, unless it is given up.
pub(crate) fn make(
    plans: &[Plan],
    labels: &[Vec<u8>],
    record: &Record,
    force: bool,
    given_up: &Arc<AtomicBool>,
) -> Result<(), Refused> {
    let mut begun = Begun::default();
    let blocking = Blocking::unless(given_up)?;
    let result = try_make(blocking, plans, labels, record, force, &mut begun);
    if result.is_err() {
        begun.undo();
    }
    result
}

/// Files that the making of stores has made or changed, so that it can be undone, also after the process has ended in
/// the middle of it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Begun {
    /// They were not there before.
    made: Vec<PathBuf>,
    /// They are kept, and had this length.
    kept: Vec<Kept>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    path: PathBuf,
    length_bytes: u64,
}

impl Begun {
    /// What the making of these stores is going to make and change.
    pub(crate) fn of(plans: &[Plan]) -> Begun {
        let mut begun = Begun::default();
        for plan in plans.iter().filter(|plan| plan.kind != StoreKind::Memory) {
            for path in plan_paths(plan) {
                match std::fs::metadata(path) {
                    Err(_) => begun.made.push(path.to_path_buf()),
                    Ok(facts) if facts.is_file() && is_kept(plan, path) => {
                        begun
                            .kept
                            .push(Kept { path: path.to_path_buf(), length_bytes: facts.len() });
                    }
                    Ok(_) => {}
                }
            }
        }
        begun
    }

    /// Whether there is nothing to take back.
    pub(crate) fn is_empty(&self) -> bool {
        self.made.is_empty() && self.kept.is_empty()
    }

    /// Takes it back, as far as that goes: of what is left the next making says that it is there.
    pub(crate) fn undo(&self) {
        for path in self.made.iter().filter(|path| path.is_file()) {
            let removed = std::fs::remove_file(path).and_then(|()| removal::sync_directory(path));
            if let Err(error) = removed {
                warning!("{}: what was begun of it is left: {error}", path.display());
            }
        }
        for kept in &self.kept {
            if let Err(error) = store::give_back(&kept.path, kept.length_bytes) {
                warning!("{}: it is longer than it was: {error}", kept.path.display());
            }
        }
    }
}

/// Whether this path of the plan is a file that held the volume's bytes before.
fn is_kept(plan: &Plan, path: &Path) -> bool {
    let data = matches!(&plan.spec.place, Place::Path(data) if data == path);
    data && plan.kept_bytes.is_some() && plan.kind == StoreKind::File
}

fn try_make(
    mut blocking: Blocking,
    plans: &[Plan],
    labels: &[Vec<u8>],
    record: &Record,
    force: bool,
    begun: &mut Begun,
) -> Result<(), Refused> {
    // All are looked at before any is changed.
    let mut keeps = Vec::new();
    for (plan, label) in plans.iter().zip(labels) {
        keeps.push(to_be_kept(&mut blocking, plans, plan, label, force)?);
    }
    for (plan, keep) in plans.iter().zip(keeps) {
        make_files(plan, force, keep, begun)?;
    }
    let mut stores = Vec::new();
    for (plan, label) in plans.iter().zip(labels) {
        if plan.kind != StoreKind::Memory {
            stores.push((plan, label, free(&mut blocking, plan, force)?));
        }
    }
    for (plan, _, store) in &mut stores {
        empty(&mut blocking, store, plan, force)
            .map_err(|error| Refused::disk(&plan.what(), error))?;
    }
    // What takes long is done: from here on nobody gives it up, and none of them is left with a label.
    blocking.may_begin().map_err(|error| Refused::disk("its stores", error))?;
    blocking.given_up = Arc::default();
    for (plan, label, store) in &mut stores {
        format(&mut blocking, store, plan, label, record)
            .map_err(|error| Refused::disk(&plan.what(), error))?;
    }
    Ok(())
}

/// Opens a store that is to be made, if it holds nothing, or whatever that is may go; changes nothing.
fn free(blocking: &mut Blocking, plan: &Plan, force: bool) -> Result<Store, Refused> {
    let mut store = open(plan, force || plan.kept_bytes.is_some())?;
    if !force && holds_replica(blocking, &mut store, plan)? {
        return Err(Refused::new(
            &codes::STORE_NOT_EMPTY,
            format!("{}: it holds a replica, perhaps of this resource", plan.what()),
        ));
    }
    if !force {
        refuse_unknown(&store, plan)?;
    }
    check_blocks(&store, plan)?;
    Ok(store)
}

/// Refuses a device that would be overwritten and is not empty, though nothing that is known here is on it.
fn refuse_unknown(store: &Store, plan: &Plan) -> Result<(), Refused> {
    let mut devices = Vec::new();
    if let (true, Place::Path(path)) = (is_emptied(plan), &plan.spec.place) {
        devices.push((Part::Data, path));
    }
    if let Some(path) = metadata_device(plan) {
        devices.push((Part::Metadata, path));
    }
    for (part, path) in devices {
        let what = path.display().to_string();
        let message = "it holds something that is not known here: it is not zero where others put what tells what they are";
        if !store.is_blank(part).map_err(|error| Refused::store(&what, &error))? {
            return Err(Refused::new(&codes::STORE_NOT_EMPTY, format!("{what}: {message}")));
        }
    }
    Ok(())
}

/// The device that metadata has beside the data, if it has one.
fn metadata_device(plan: &Plan) -> Option<&PathBuf> {
    match &plan.spec.metadata {
        MetadataPlace::External { path, .. } if is_device(path) => Some(path),
        _ => None,
    }
}

/// Whether a store holds a replica; a device also one of another layout.
fn holds_replica(blocking: &mut Blocking, store: &mut Store, plan: &Plan) -> Result<bool, Refused> {
    if store.is_ours() || !is_emptied(plan) {
        return Ok(store.is_ours());
    }
    labels::are_there(blocking, store, plan).map_err(|error| Refused::disk(&plan.what(), error))
}

/// Whether a store of this plan is made of a device that keeps nothing.
fn is_emptied(plan: &Plan) -> bool {
    plan.kind == StoreKind::Device && plan.kept_bytes.is_none()
}

/// Has a store hold nothing, if it keeps nothing.
fn empty(
    blocking: &mut Blocking,
    store: &mut Store,
    plan: &Plan,
    force: bool,
) -> Result<(), Errno> {
    if !is_emptied(plan) {
        return Ok(());
    }
    // A replica that was there is nobody's any more, also if this ends in the middle: half of it is gone then.
    if force {
        labels::forget(blocking, store, plan)?;
    }
    blocking.clear(store, plan.layout.superblock, plan.layout.log)?;
    blocking.zero(store, plan.data_bytes)
}

/// A file that is kept: the length that it has, and how much of that stays.
#[derive(Clone, Copy)]
struct Keep {
    has_bytes: u64,
    kept_bytes: u64,
}

/// Looks at the file of a plan that is to be kept; `None` if none is. It has just the size of the volume, or it is a
/// copy of a store of ours that holds a volume of that number and size.
fn to_be_kept(
    blocking: &mut Blocking,
    all: &[Plan],
    plan: &Plan,
    label: &[u8],
    force: bool,
) -> Result<Option<Keep>, Refused> {
    let (Some(kept_bytes), StoreKind::File, Place::Path(path)) =
        (plan.kept_bytes, plan.kind, &plan.spec.place)
    else {
        return Ok(None);
    };
    let refused = |error: &StoreError| Refused::store(&path.display().to_string(), error);
    let has_bytes = store::size_of(path).map_err(|error| refused(&error))?;
    if has_bytes == kept_bytes {
        return Ok(Some(Keep { has_bytes, kept_bytes }));
    }
    if has_bytes < kept_bytes {
        return Err(refused(&StoreError::TooSmall { needs_bytes: kept_bytes, has_bytes }));
    }
    let inside = match plan.spec.metadata {
        MetadataPlace::Internal { bytes } => bytes,
        MetadataPlace::External { .. } | MetadataPlace::None => 0,
    };
    let whole = has_bytes == whole_bytes(plan.data_bytes, inside);
    if !whole || volume_held(blocking, all, plan, label) != Some(kept_bytes) {
        return Err(refused(&store::too_long()));
    }
    if !force {
        let message = format!("{}: it holds a replica, perhaps of this resource", path.display());
        return Err(Refused::new(&codes::STORE_NOT_EMPTY, message));
    }
    Ok(Some(Keep { has_bytes, kept_bytes: has_bytes - inside }))
}

/// Size of the volume of which a store is a copy, if it is one of the volume of this cluster that has the label's number. Of
/// a volume that was not the first of its resource only the first one's store says that, of which there is a copy beside it.
fn volume_held(blocking: &mut Blocking, all: &[Plan], plan: &Plan, label: &[u8]) -> Option<u64> {
    let (found, own) = held(blocking, plan)?;
    let wanted = Superblock::decode(&Page::try_from(label).ok()?).ok()?;
    if (found.cluster, found.volume) != (wanted.cluster, wanted.volume) {
        return None;
    }
    if removal::is_of_first(&own, found.volume) {
        return size_in(&own, found.volume);
    }
    let (first, record) = held(blocking, all.first()?)?;
    let same = (first.cluster, first.resource) == (found.cluster, found.resource);
    let speaks = removal::is_of_first(&record, first.volume) && are_of_one_copy(&first, &found);
    if same && speaks { size_in(&record, found.volume) } else { None }
}

/// What a store says that it is, and its record.
fn held(blocking: &mut Blocking, plan: &Plan) -> Option<(Superblock, Record)> {
    let mut store = open(plan, true).ok()?;
    let bytes = blocking.read(&mut store, plan.layout.superblock, PAGE_BYTES).ok()?;
    let found = Superblock::decode(&Page::try_from(&bytes[..]).ok()?).ok()?;
    let record = load_record(blocking, &mut store, &plan.layout).ok()?;
    Some((found, record))
}

/// Size of a volume, as a record knows it.
fn size_in(record: &Record, volume: VolumeId) -> Option<u64> {
    let (_, known) = record.committed.as_ref()?;
    Some(known.volume(volume)?.sectors * SECTOR_BYTES)
}

/// Makes the files of a plan that are files; a file that is there and empty is taken.
fn make_files(
    plan: &Plan,
    force: bool,
    keep: Option<Keep>,
    begun: &mut Begun,
) -> Result<(), Refused> {
    let mut make = |path: &Path, bytes: u64, keep: Option<Keep>| {
        let existed = path.exists();
        if let Some(parent) = path.parent() {
            sys::make_directory(parent).ok();
        }
        let result = match keep {
            Some(keep) => store::keep_file(path, keep.has_bytes, keep.kept_bytes, bytes),
            None => store::create_file(path, bytes, force),
        };
        result.map_err(|error| Refused::store(&path.display().to_string(), &error))?;
        if let Some(Keep { has_bytes, .. }) = keep {
            begun.kept.push(Kept { path: path.to_path_buf(), length_bytes: has_bytes });
        } else if !existed {
            begun.made.push(path.to_path_buf());
        }
        Ok(())
    };
    let metadata_bytes = plan.layout.total_bytes;
    match (&plan.spec.place, &plan.spec.metadata) {
        (Place::Path(path), MetadataPlace::External { path: metadata, bytes }) => {
            if plan.kind == StoreKind::File {
                make(path, whole_bytes(plan.data_bytes, 0), keep)?;
            }
            if !is_device(metadata) {
                make(metadata, *bytes, None)?;
            }
            Ok(())
        }
        (Place::Path(path), _) if plan.kind == StoreKind::File => {
            make(path, whole_bytes(plan.data_bytes, metadata_bytes), keep)
        }
        _ => Ok(()),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Opens a plan's store.
pub(crate) fn open(plan: &Plan, accept_foreign: bool) -> Result<Store, Refused> {
    let spec = StoreSpec { accept_foreign, ..plan.spec.clone() };
    let store = Store::open(spec).map_err(|error| Refused::store(&plan.what(), &error))?;
    // Where it is written in place records and log are not to wait for the file system later.
    store.prepare_metadata(plan.layout.bitmap).map_err(|error| {
        Refused::disk(&format!("{}: its metadata, in memory", plan.what()), error)
    })?;
    Ok(store)
}

/// The same for whoever is going to read and write it.
pub(crate) fn open_to_serve(plan: &Plan) -> Result<Store, Refused> {
    let store = open(plan, false).map_err(|refused| unlabelled(plan, refused))?;
    check_blocks(&store, plan)?;
    Ok(store)
}

/// What is there instead of metadata may be the volume's own content, on a disk of another size: who overwrites that loses a copy.
fn unlabelled(plan: &Plan, refused: Refused) -> Refused {
    if refused.code != &codes::STORE_NOT_EMPTY {
        return refused;
    }
    let place = match &plan.spec.metadata {
        MetadataPlace::External { path, .. } => format!("{} has no metadata", path.display()),
        MetadataPlace::Internal { .. } | MetadataPlace::None => {
            "there is no metadata at its end: has its size been changed?".to_owned()
        }
    };
    Refused::new(&codes::STORE_UNLABELLED, format!("{}; {place}", refused.message))
}

/// Refuses a disk with larger blocks than the volume has: it would fail what clients may ask for.
fn check_blocks(store: &Store, plan: &Plan) -> Result<(), Refused> {
    if store.block_bytes() <= plan.block_bytes {
        return Ok(());
    }
    let (what, blocks, own) = (plan.what(), store.block_bytes(), plan.block_bytes);
    let message = format!("{what}: its blocks are of {blocks} bytes, the volume's of {own}");
    Err(Refused::new(&codes::STORE_FAILED, message))
}

/// Writes the first metadata of a store. Files and memory are new, and read as zeroes.
pub(crate) fn format(
    blocking: &mut Blocking,
    store: &mut Store,
    plan: &Plan,
    label: &[u8],
    record: &Record,
) -> Result<(), Errno> {
    let layout = &plan.layout;
    // A file's metadata is new too, also that of one that is kept (`make_files`), unless it is on a device beside it.
    if plan.kind == StoreKind::Device || metadata_device(plan).is_some() {
        blocking.clear(store, layout.superblock, layout.total_bytes)?;
    }
    let copy = layout.record_offset(record.copy());
    blocking.write(store, copy, &record_bytes(record))?;
    blocking.flush(store)?;
    blocking.write(store, layout.superblock, &placed(label, store))?;
    blocking.flush(store)
}

/// A superblock that says so if the metadata is in persistent memory, which nobody knows before it is opened.
fn placed(label: &[u8], store: &Store) -> Vec<u8> {
    let superblock = Page::try_from(label).ok().and_then(|page| Superblock::decode(&page).ok());
    match superblock {
        Some(found) if store.metadata_in_place() == Some(MappedKind::Persistent) => {
            Superblock { place: AreaPlace::Pmem, ..found }.encode().to_vec()
        }
        _ => label.to_vec(),
    }
}

/// Whether two volumes are of the same copy, as far as their labels tell.
fn are_of_one_copy(one: &Superblock, other: &Superblock) -> bool {
    let both = one.compatible & other.compatible & OF_ONE_COPY != 0;
    !both || one.disk == other.disk
}

/// Refuses a volume that is not of the same copy as the first, whose record speaks for all: it was perhaps made with
/// another node's.
pub(crate) fn check_copy(labels: &[Superblock], plans: &[Plan]) -> Result<(), Refused> {
    let mut known = labels.iter().zip(plans).filter(|(of, _)| of.compatible & OF_ONE_COPY != 0);
    let Some((first, _)) = known.next() else { return Ok(()) };
    let other = known.find(|(of, _)| !are_of_one_copy(of, first));
    let Some((_, plan)) = other else { return Ok(()) };
    let message = format!("{}: it is of another copy than the first volume", plan.what());
    Err(Refused::new(&codes::OTHER_STORE, message))
}

/// Refuses a store that is not the one of this resource and volume.
pub(crate) fn check_label(
    blocking: &mut Blocking,
    store: &mut Store,
    plan: &Plan,
    cluster: ClusterId,
    resource: ResourceId,
) -> Result<Superblock, Refused> {
    let what = plan.what();
    let bytes = blocking
        .read(store, plan.layout.superblock, PAGE_BYTES)
        .map_err(|error| Refused::disk(&what, error))?;
    let page = Page::try_from(&bytes[..]).expect("a page was read");
    let label = Superblock::decode(&page).map_err(|bad| damaged(&what, "superblock", bad))?;
    if (label.cluster, label.resource, label.volume) != (cluster, resource, plan.volume) {
        let message = format!(
            "{what}: it is volume {} of resource {:016x} in cluster {:016x}",
            label.volume, label.resource.0, label.cluster.0
        );
        return Err(Refused::new(&codes::OTHER_STORE, message));
    }
    let bits = label.unwritable();
    if bits != 0 {
        let message = format!(
            "{what}: it can be read here and not written: that needs features {bits:#x}, which are unknown"
        );
        return Err(Refused::new(&codes::METADATA_TOO_NEW, message));
    }
    // Pages that were sought elsewhere would be taken for damaged, or never written.
    let places = Superblock::regions_of(&plan.layout);
    if let Some(region) = places.iter().find(|region| !label.regions.contains(region)) {
        let message = format!("{what}: its superblock says that {:?} stand elsewhere", region.kind);
        return Err(Refused::new(&codes::METADATA_DAMAGED, message));
    }
    Ok(label)
}

fn damaged(what: &str, part: &str, bad: BadMetadata) -> Refused {
    let code = match bad {
        BadMetadata::TooNew { .. }
        | BadMetadata::UnknownFeatures { .. }
        | BadMetadata::UnknownLayout { .. } => &codes::METADATA_TOO_NEW,
        BadMetadata::NotOurs => &codes::OTHER_STORE,
        _ => &codes::METADATA_DAMAGED,
    };
    Refused::new(code, format!("{what}: its {part} cannot be used: {bad}"))
}

/// Files and devices of a plan.
fn plan_paths(plan: &Plan) -> Vec<&Path> {
    let mut paths = Vec::new();
    if let Place::Path(path) = &plan.spec.place {
        paths.push(path.as_path());
    }
    if let MetadataPlace::External { path, .. } = &plan.spec.metadata {
        paths.push(path.as_path());
    }
    paths
}

/// The newest record of a store, if there is one that can be believed.
pub(crate) fn load_record(
    blocking: &mut Blocking,
    store: &mut Store,
    layout: &Layout,
) -> Result<Record, Refused> {
    let copies: Vec<Option<Vec<u8>>> = (0..u8::try_from(RECORD_COPIES).expect("two"))
        .map(|copy| blocking.read(store, layout.record_offset(copy), RECORD_BYTES).ok())
        .collect();
    blocking.hangs_not().map_err(|errno| Refused::disk(store.describe(), errno))?;
    let copies: Vec<Option<&[u8]>> = copies.iter().map(Option::as_deref).collect();
    newest_record(&copies).map_err(|bad| damaged(store.describe(), "record", bad))
}

/// Every page that a start needs, of all volumes, which are marked for it.
pub(crate) fn load(
    blocking: &mut Blocking,
    volumes: &mut [(VolumeId, Layout, Store)],
) -> Result<Found, Refused> {
    let mut found = Found::default();
    for (index, (volume, layout, store)) in volumes.iter_mut().enumerate() {
        if index == 0 {
            found.record = Some(load_record(blocking, store, layout)?);
        }
        let slots = found.record.as_ref().map_or(Vec::new(), |record| record.slots.clone());
        let log: Vec<MetaPage> = layout.log_places().collect();
        let mut pages = read_pages(blocking, store, layout, &log);
        let half = found.record.as_ref().map_or(0, |record| record.log_half);
        clear_unread(blocking, store, layout, half, &mut pages)
            .map_err(|errno| Refused::disk(store.describe(), errno))?;
        found.pages.extend(pages.into_iter().map(|(place, bytes)| (*volume, place, bytes)));
        for slot in slots.iter().filter(|slot| slot.number < layout.slots) {
            let mut next = 0;
            while let Some(pages) = written_pages(store, layout, slot.number, next) {
                next = pages.end;
                let number = slot.number;
                let places = pages.map(|page| MetaPage::Bitmap { slot: number, page });
                let places: Vec<MetaPage> = places.collect();
                let read = read_pages(blocking, store, layout, &places).into_iter();
                let unwritten = |bytes: &Page| bytes.iter().all(|&byte| byte == 0);
                let written =
                    read.filter(|(_, bytes)| bytes.as_ref().is_none_or(|page| !unwritten(page)));
                found.pages.extend(written.map(|(place, bytes)| (*volume, place, bytes)));
            }
        }
        blocking.hangs_not().map_err(|errno| Refused::disk(store.describe(), errno))?;
    }
    marks::check(blocking, volumes, &found)?;
    Ok(found)
}

/// Makes pages empty that could not be read and are of the half of the log which the next life is to write: nobody needs
/// them, and what a start that did not come to its end had left there must not be found once they can be read again.
fn clear_unread(
    blocking: &mut Blocking,
    store: &mut Store,
    layout: &Layout,
    half: u8,
    pages: &mut [(MetaPage, Option<Page>)],
) -> Result<(), Errno> {
    for (place, bytes) in pages.iter_mut().filter(|(_, bytes)| bytes.is_none()) {
        let MetaPage::Log { half: of, .. } = *place else { continue };
        if of != half {
            blocking.write(store, layout.page_offset(*place), &[0; 4096])?;
            *bytes = Some([0; 4096]);
        }
    }
    Ok(())
}

/// The next pages of a bitmap from `next` on, a few, that may have been written; `None` if no more. Where the
/// store can tell its holes they are passed over: a bitmap of 1 PiB has 35 GB.
fn written_pages(store: &Store, layout: &Layout, slot: u8, next: u64) -> Option<Range<u64>> {
    let end = layout.bitmap_pages;
    if next >= end {
        return None;
    }
    let (mut first, mut last) = (next, end);
    if let Some((file, base)) = store.sparse_metadata() {
        let offset = |page| base + layout.page_offset(MetaPage::Bitmap { slot, page });
        let range = offset(next)..offset(end - 1) + PAGE_BYTES;
        // One that the range begins with, and the one that ends what was written.
        for hole in file.holes_now(range.clone(), 2).unwrap_or_default() {
            let begins = next + (hole.start - range.start).div_ceil(PAGE_BYTES);
            if begins > first {
                last = begins;
                break;
            }
            first = next + (hole.end - range.start) / PAGE_BYTES;
        }
    }
    (first < end).then(|| first..last.min(first + BITMAP_PAGES_AT_ONCE))
}

/// Reads pages, neighbours together; one that cannot be read is `None`.
fn read_pages(
    blocking: &mut Blocking,
    store: &mut Store,
    layout: &Layout,
    places: &[MetaPage],
) -> Vec<(MetaPage, Option<Page>)> {
    let mut pages = Vec::new();
    for chunk in places
        .chunk_by(|one, next| layout.page_offset(*one) + PAGE_BYTES == layout.page_offset(*next))
    {
        for chunk in chunk.chunks(256) {
            let length = PAGE_BYTES * u64::try_from(chunk.len()).expect("256");
            match blocking.read(store, layout.page_offset(chunk[0]), length) {
                Ok(bytes) => {
                    let parts = bytes.chunks_exact(4096).map(|page| Page::try_from(page).ok());
                    pages.extend(chunk.iter().copied().zip(parts));
                }
                Err(_) => read_singly(blocking, store, layout, chunk, &mut pages),
            }
        }
    }
    pages
}

/// Reads pages one by one: where one cannot be read its neighbours can be, the other copy of a log page among them. Of a disk
/// that fails many the others are not asked for, as each may take it seconds.
fn read_singly(
    blocking: &mut Blocking,
    store: &mut Store,
    layout: &Layout,
    places: &[MetaPage],
    pages: &mut Vec<(MetaPage, Option<Page>)>,
) {
    let mut failed = 0;
    for &place in places {
        let mut page = None;
        if failed < BAD_PAGES_MAX {
            let bytes = blocking.read(store, layout.page_offset(place), PAGE_BYTES).ok();
            page = bytes.and_then(|bytes| Page::try_from(&bytes[..]).ok());
            failed += usize::from(page.is_none());
        }
        pages.push((place, page));
    }
}

#[cfg(test)]
mod tests;

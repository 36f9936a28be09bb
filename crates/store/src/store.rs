//! An open store: the data area and the metadata area of one volume.
//!
//! Each operation ends in one event of the hands, under the caller's token; operations that could
//! not even begin end in an event as well. Offsets count from the start of the area in question.
//!
//! Without faults an operation goes straight to the hands. With them it may be refused, or carried
//! out at once and answered later.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use base::Instant;
use sys::{Buffer, BufferPool, Errno, Event, Hands, MappedKind, Piece};

use crate::cache::Cache;
use crate::disk::{Backing, as_count};
use crate::error::StoreError;
use crate::faults::{FaultKind, Faults};
use crate::losses::{FlushMark, Losses};
use crate::signature::{self, FIRST_BYTES, LAST_BYTES, OUR_MAGIC};
use crate::spec::{MetadataPlace, Place, StoreSpec};
use crate::zero::is_zero;

/// Metadata is read and written in pages of this many bytes, whatever the device's block size.
pub const METADATA_PAGE_BYTES: u64 = 4096;

/// A file, device or memory with, in tests, its forgetful cache.
struct Disk {
    backing: Backing,
    cache: Option<Arc<Mutex<Cache>>>,
}

/// A part of one of the disks.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Area {
    /// Index into the disks.
    disk: usize,
    /// Bytes of the disk.
    range: Range<u64>,
}

/// What lies under a volume. It belongs to the thread whose hands move it; another thread has a
/// [`Store::share`] of its own.
///
/// Dropping the last share frees the device for others when its operations have ended: at once if they have.
pub struct Store {
    /// The first holds the data; a second, if there is one, external metadata.
    disks: Vec<Disk>,
    data: Area,
    metadata: Option<Area>,
    faults: Option<Faults>,
    /// Changes that are to be carried out at this time, on this disk: whatever comes after it sees them.
    late: Vec<(Instant, usize, u64, Work)>,
    losses: Losses,
    ours: bool,
    description: String,
}

/// One of a store's disks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The one with the data.
    Data,
    /// The one with the metadata, which may be the same.
    Metadata,
}

/// What an operation does, for the part that all share.
enum Work {
    Read { buffer: Buffer, range: Range<usize> },
    Write { piece: Piece, durable: bool },
    Zero { length: u64, unmap: bool, durable: bool },
    Flush,
}

impl Store {
    /// Opens what the spec names, for this process alone.
    ///
    /// # Errors
    /// One [`StoreError`] for each thing the caller can do about it.
    pub fn open(spec: StoreSpec) -> Result<Store, StoreError> {
        let mut backings = vec![match &spec.place {
            Place::Path(path) => Backing::open(path)?,
            Place::Memory { .. } if !spec.allow_memory => return Err(StoreError::NoMemoryFlag),
            Place::Memory { size_bytes } => {
                Backing::Memory(Arc::new(crate::memory::Memory::new(*size_bytes)))
            }
        }];
        if let MetadataPlace::External { path, bytes } = &spec.metadata {
            backings
                .push(Backing::open_in_place(path, bytes.next_multiple_of(METADATA_PAGE_BYTES))?);
        }
        let (data, metadata) = areas(&spec, &backings)?;
        let ours = match &metadata {
            Some(area) => begins_with_magic(&backings[area.disk], area.range.start)?,
            None => false,
        };
        if !ours && !spec.accept_foreign {
            for backing in &backings {
                refuse_foreign(backing)?;
            }
        }
        let description = describe(&spec, &backings, data.range.end);
        let forgets = spec.faults.as_ref().filter(|faults| faults.volatile_cache);
        let disks = backings.into_iter().map(|backing| {
            // What is written in place is there.
            let forgets = forgets.filter(|_| backing.mapped().is_none());
            let cache = forgets.map(|faults| Cache::new(backing.block_bytes(), faults));
            Disk { backing, cache: cache.map(|cache| Arc::new(Mutex::new(cache))) }
        });
        Ok(Store {
            disks: disks.collect(),
            data,
            metadata,
            faults: spec.faults.as_ref().map(Faults::new),
            late: Vec::new(),
            losses: Losses::default(),
            ours,
            description,
        })
    }

    /// The same store for the hands of another thread. Faults come to each share on its own, by another
    /// seed; a forgetful cache is one for all.
    #[must_use]
    pub fn share(&self, number: u64) -> Store {
        let share = |disk: &Disk| Disk { backing: disk.backing.clone(), cache: disk.cache.clone() };
        Store {
            disks: self.disks.iter().map(share).collect(),
            data: self.data.clone(),
            metadata: self.metadata.clone(),
            faults: self.faults.as_ref().map(|faults| faults.share(number)),
            late: Vec::new(),
            losses: self.losses.share(),
            ours: self.ours,
            description: self.description.clone(),
        }
    }

    /// A durable write of data failed. A disk that loses what was in its cache says so once, to whoever asks first: every
    /// shard's next flush covers nothing of that, this one's as well ([`Store::flush_ends`]).
    ///
    /// With direct I/O one that found no room was not taken, and says nothing else. Beside the page cache it may be an earlier
    /// one that found none.
    pub fn note_failed_write(&self, errno: Errno) {
        if errno != Errno::NO_SPACE || self.disks[self.data.disk].backing.is_cached() {
            self.losses.note();
        }
    }

    /// The same of a durable write of metadata: what the disk says of its cache is said of the data that lies beside it.
    pub fn note_failed_metadata_write(&self, errno: Errno) {
        if self.metadata.as_ref().is_some_and(|area| area.disk == self.data.disk) {
            self.note_failed_write(errno);
        }
    }

    /// What was given up for being late has failed after all: nobody can say what of, nor who was told.
    pub fn note_loss(&self) {
        self.losses.note();
    }

    /// A write that a cache may hold was answered.
    pub fn note_answered(&mut self) {
        self.losses.note_answered();
    }

    /// A flush is about to begin.
    #[must_use]
    pub fn flush_begins(&self) -> FlushMark {
        self.losses.flush_begins()
    }

    /// A flush for a shard has ended, and well if `ok`. Whether it is to be believed: not if somebody else was told of a loss
    /// since a flush of this shard last failed, or was under way at that moment.
    pub fn flush_ends(&mut self, shard: u16, mark: FlushMark, ok: bool) -> bool {
        self.losses.flush_ends(shard, mark, ok)
    }

    /// Whether anybody was told of a loss since the store was opened.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.losses.any()
    }

    /// Size of the data area in bytes, a multiple of the block size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.data.range.end
    }

    /// The file under the data, and where in it they begin, if it is a regular file that can tell
    /// where it has holes. Only for looking: what is read or written goes through the store.
    #[must_use]
    pub fn sparse_file(&self) -> Option<(sys::File, u64)> {
        let disk = &self.disks[self.data.disk];
        let exact = disk.cache.is_none() && self.faults.is_none();
        let file = disk.backing.regular_file().filter(|_| exact)?;
        Some((file.clone(), self.data.range.start))
    }

    /// The same for the metadata.
    #[must_use]
    pub fn sparse_metadata(&self) -> Option<(sys::File, u64)> {
        let area = self.metadata.as_ref()?;
        let disk = &self.disks[area.disk];
        let exact = disk.cache.is_none() && self.faults.is_none();
        let file = disk.backing.regular_file().filter(|_| exact)?;
        Some((file.clone(), area.range.start))
    }

    /// Whether metadata is written in place, and to memory of which kind. Such a write is there when its event comes.
    #[must_use]
    pub fn metadata_in_place(&self) -> Option<MappedKind> {
        let area = self.metadata.as_ref()?;
        Some(self.disks[area.disk].backing.mapped()?.kind())
    }

    /// Takes the room for the first `bytes` of metadata that is written in place, so that writing there does not wait for the file
    /// system. Elsewhere nothing is done.
    ///
    /// # Errors
    /// [`Errno::NO_SPACE`]; the kernel's.
    pub fn prepare_metadata(&self, bytes: u64) -> Result<(), Errno> {
        let Some(area) = &self.metadata else { return Ok(()) };
        let Some(mapped) = self.disks[area.disk].backing.mapped() else { return Ok(()) };
        let length = usize::try_from(bytes).map_err(|_| Errno::INVALID)?;
        mapped.make_present(area.range.start, length)
    }

    /// Size of the metadata area in bytes; 0 if there is none.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata.as_ref().map_or(0, |area| area.range.end - area.range.start)
    }

    /// Offsets and lengths of data are multiples of this: 512 or 4096.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.disks[self.data.disk].backing.block_bytes()
    }

    /// A write may be lost in a power cut until it is flushed or if it was not durable.
    #[must_use]
    pub fn volatile_cache(&self) -> bool {
        let disk = &self.disks[self.data.disk];
        disk.cache.is_some() || disk.backing.volatile_cache()
    }

    /// What it is, for logs and status. Says so if the store forgets or has faults.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// True if its metadata area began with our magic when it was opened.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether the device with the data, or with metadata of its own, is all zeroes where others put what tells what they are. What
    /// else is there may be precious though nobody here knows it. Blocks.
    ///
    /// # Errors
    /// What reading it says.
    pub fn is_blank(&self, part: Part) -> Result<bool, StoreError> {
        let disk = match (part, &self.metadata) {
            (Part::Metadata, Some(area)) => area.disk,
            _ => self.data.disk,
        };
        let (first, last) = ends(&self.disks[disk].backing)?;
        Ok(is_zero(&first) && is_zero(&last))
    }

    /// The fault layer, where the spec asked for one.
    pub fn faults(&mut self) -> Option<&mut Faults> {
        self.faults.as_mut()
    }

    /// Reads `range.len()` bytes of data at `offset` into the range of `buffer`, which the event
    /// hands back. `range.start` is a multiple of the block size too.
    ///
    /// # Panics
    /// As [`Hands::read`]: if the buffer has clones or the range is not inside it.
    pub fn read(
        &mut self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        let area = self.data.clone();
        self.begin(hands, token, &area, offset, Work::Read { buffer, range });
    }

    /// Writes the piece at `offset`; it should be part of a buffer, at a multiple of the block
    /// size. With `durable` (FUA) the event comes once it survives a power cut.
    pub fn write(
        &mut self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        piece: Piece,
        durable: bool,
    ) {
        let area = self.data.clone();
        self.begin(hands, token, &area, offset, Work::Write { piece, durable });
    }

    /// Makes data read as zeroes; with `unmap` its space may be given back.
    pub fn zero(
        &mut self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        length: u64,
        unmap: bool,
        durable: bool,
    ) {
        let area = self.data.clone();
        self.begin(hands, token, &area, offset, Work::Zero { length, unmap, durable });
    }

    /// Makes every write answered so far survive a power cut, internal metadata included.
    pub fn flush(&mut self, hands: &mut Hands, token: u64) {
        let area = self.data.clone();
        self.begin(hands, token, &area, 0, Work::Flush);
    }

    /// Reads whole pages of metadata.
    ///
    /// # Panics
    /// As [`Store::read`].
    pub fn read_metadata(
        &mut self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        let area = self.metadata_area();
        self.begin(hands, token, &area, offset, Work::Read { buffer, range });
    }

    /// Writes whole pages of metadata.
    pub fn write_metadata(
        &mut self,
        hands: &mut Hands,
        token: u64,
        offset: u64,
        piece: Piece,
        durable: bool,
    ) {
        let area = self.metadata_area();
        self.begin(hands, token, &area, offset, Work::Write { piece, durable });
    }

    /// Makes all metadata answered so far survive a power cut, internal data included.
    pub fn flush_metadata(&mut self, hands: &mut Hands, token: u64) {
        let area = self.metadata_area();
        self.begin(hands, token, &area, 0, Work::Flush);
    }

    /// An empty one refuses every operation as out of bounds.
    fn metadata_area(&self) -> Area {
        self.metadata.clone().unwrap_or(Area { disk: 0, range: 0..0 })
    }

    fn begin(&mut self, hands: &mut Hands, token: u64, area: &Area, offset: u64, work: Work) {
        let disk = &mut self.disks[area.disk];
        if !fits(area, offset, &work, u64::from(disk.backing.block_bytes())) {
            return refuse(hands, token, work, Errno::INVALID);
        }
        let offset = area.range.start + offset;
        if self.faults.is_none() {
            return disk.queue(hands, token, offset, work);
        }
        let now = hands.now_fresh();
        for (_, disk, offset, work) in self.late.extract_if(.., |(time, ..)| *time <= now) {
            self.disks[disk].perform(0, offset, work);
        }
        let disk = &mut self.disks[area.disk];
        let faults = self.faults.as_mut().expect("just checked");
        let range = offset..offset + work.length();
        let room = |faults: &mut Faults| match &work {
            Work::Write { .. } => {
                faults.renew(&range);
                faults.take_room(work.length())
            }
            Work::Read { .. } => faults.unreadable(&range),
            Work::Zero { .. } | Work::Flush => None,
        };
        if let Some(errno) = faults.error(work.kind()).or_else(|| room(faults)) {
            return refuse(hands, token, work, errno);
        }
        let written = if matches!(work, Work::Write { .. }) { work.length() } else { 0 };
        match faults.delay(written) {
            Some(late) if faults.before && work.kind() == FaultKind::Write => {
                hands.post_at(now + late, Event::plain(token, Ok(0)));
                self.late.push((now + late, area.disk, offset, work));
            }
            None if disk.cache.is_none() => disk.queue(hands, token, offset, work),
            delay => {
                let event = disk.perform(token, offset, work);
                match delay {
                    None => hands.post(event),
                    Some(late) => {
                        let time = hands.now_fresh() + late;
                        hands.post_at(time, event);
                    }
                }
            }
        }
    }
}

impl Work {
    fn kind(&self) -> FaultKind {
        match self {
            Work::Read { .. } => FaultKind::Read,
            Work::Write { .. } | Work::Zero { .. } => FaultKind::Write,
            Work::Flush => FaultKind::Flush,
        }
    }

    fn length(&self) -> u64 {
        let bytes = match self {
            Work::Read { range, .. } => range.len(),
            Work::Write { piece, .. } => piece.len(),
            Work::Zero { length, .. } => return *length,
            Work::Flush => 0,
        };
        u64::try_from(bytes).expect("a length in memory fits in 64 bits")
    }
}

/// Inside the area, in whole blocks, and not nothing.
fn fits(area: &Area, offset: u64, work: &Work, block_bytes: u64) -> bool {
    if matches!(work, Work::Flush) {
        return area.range.end > area.range.start;
    }
    let length = work.length();
    let inside =
        offset.checked_add(length).is_some_and(|end| end <= area.range.end - area.range.start);
    inside && length > 0 && offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes)
}

fn refuse(hands: &mut Hands, token: u64, work: Work, errno: Errno) {
    hands.post(match work {
        Work::Read { buffer, .. } => Event::with_buffer(token, Err(errno), buffer),
        _ => Event::plain(token, Err(errno)),
    });
}

impl Disk {
    /// Gives the work to the hands.
    fn queue(&self, hands: &mut Hands, token: u64, offset: u64, work: Work) {
        let backing = &self.backing;
        match work {
            Work::Read { buffer, range } => backing.read(hands, token, offset, buffer, range),
            Work::Write { piece, durable } => backing.write(hands, token, offset, piece, durable),
            Work::Zero { length, unmap, durable } => {
                backing.zero(hands, token, offset..offset + length, unmap, durable);
            }
            Work::Flush => backing.sync(hands, token),
        }
    }

    /// Does the work at once, blocking, through the cache if there is one.
    fn perform(&self, token: u64, offset: u64, work: Work) -> Event {
        let backing = &self.backing;
        let done = |result: Result<(), Errno>, bytes| result.map(|()| as_count(bytes));
        let cache = self.cache.as_deref().map(Mutex::lock);
        let mut cache = cache.map(|locked| locked.unwrap_or_else(PoisonError::into_inner));
        match (work, cache.as_deref_mut()) {
            (Work::Read { mut buffer, range }, cache) => {
                let count = range.len();
                let target = buffer.as_mut().expect("memory to be filled has one owner");
                let result = match cache {
                    Some(cache) => cache.read(backing, offset, &mut target[range]),
                    None => backing.read_now(offset, &mut target[range]),
                };
                Event::with_buffer(token, done(result, count), buffer)
            }
            (Work::Write { piece, durable }, cache) => {
                let bytes = piece.as_slice();
                let result = match cache {
                    Some(cache) if durable => cache.write_through(backing, offset, bytes),
                    Some(cache) => {
                        cache.write(backing, offset, bytes);
                        Ok(())
                    }
                    None => backing
                        .write_now(offset, bytes)
                        .and_then(|()| if durable { backing.sync_now() } else { Ok(()) }),
                };
                Event::plain(token, done(result, bytes.len()))
            }
            (Work::Zero { length, durable, .. }, cache) => {
                let result = match cache {
                    Some(cache) => cache.zero(backing, offset, length, durable),
                    None => backing
                        .zero_now(offset, length)
                        .and_then(|()| if durable { backing.sync_now() } else { Ok(()) }),
                };
                Event::plain(token, done(result, 0))
            }
            (Work::Flush, Some(cache)) => Event::plain(token, done(cache.flush(backing), 0)),
            (Work::Flush, None) => Event::plain(token, done(backing.sync_now(), 0)),
        }
    }
}

/// Divides the disks into data and metadata.
fn areas(spec: &StoreSpec, backings: &[Backing]) -> Result<(Area, Option<Area>), StoreError> {
    let page = METADATA_PAGE_BYTES;
    let has_bytes = backings[0].size_bytes();
    let internal = match &spec.metadata {
        MetadataPlace::Internal { bytes } => bytes.next_multiple_of(page),
        _ => 0,
    };
    let block = u64::from(backings[0].block_bytes());
    let needs_bytes = spec.needs_bytes.saturating_add(internal).max(block);
    // Data ends, and internal metadata begins, on a page.
    let start = match (has_bytes / page * page).checked_sub(internal) {
        Some(start) if internal > 0 => start,
        Some(_) => has_bytes / block * block,
        None => return Err(StoreError::TooSmall { needs_bytes, has_bytes }),
    };
    if start == 0 || start < spec.needs_bytes {
        return Err(StoreError::TooSmall { needs_bytes, has_bytes });
    }
    let metadata = match &spec.metadata {
        MetadataPlace::None => None,
        MetadataPlace::Internal { .. } => Some(Area { disk: 0, range: start..start + internal }),
        MetadataPlace::External { bytes, .. } => {
            let (needs_bytes, has_bytes) = (bytes.next_multiple_of(page), backings[1].size_bytes());
            if has_bytes < needs_bytes {
                return Err(StoreError::TooSmall { needs_bytes, has_bytes });
            }
            Some(Area { disk: 1, range: 0..needs_bytes })
        }
    };
    Ok((Area { disk: 0, range: 0..start }, metadata))
}

fn begins_with_magic(backing: &Backing, offset: u64) -> Result<bool, StoreError> {
    let length = usize::try_from(METADATA_PAGE_BYTES).expect("4096 fits");
    let mut page = aligned(length)?;
    backing.read_now(offset, page.as_mut().expect("just taken"))?;
    Ok(page.starts_with(OUR_MAGIC))
}

fn refuse_foreign(backing: &Backing) -> Result<(), StoreError> {
    let (first, last) = ends(backing)?;
    match signature::foreign_signature(&first, &last) {
        Some(what) => Err(StoreError::ForeignData { what }),
        None => Ok(()),
    }
}

/// Both ends of a disk, as far as others put there what tells what they are.
fn ends(backing: &Backing) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let (mut first, mut last) = (vec![0; FIRST_BYTES], vec![0; LAST_BYTES]);
    let mut bounce = aligned(FIRST_BYTES)?;
    let block = usize::try_from(backing.block_bytes()).expect("at most 4096");
    let size_bytes =
        backing.size_bytes() / u64::from(backing.block_bytes()) * u64::from(backing.block_bytes());
    signature::read_ends(size_bytes, &mut first, &mut last, |bytes, offset| {
        assert!(bytes.len().is_multiple_of(block), "both ends are whole blocks");
        bounce.set_len(bytes.len());
        backing.read_now(offset, bounce.as_mut().expect("nobody else has it"))?;
        bytes.copy_from_slice(&bounce);
        Ok(())
    })?;
    Ok((first, last))
}

fn aligned(length: usize) -> Result<Buffer, StoreError> {
    BufferPool::new(1 << 20).take_zeroed(length).ok_or(StoreError::Io(Errno::NO_BUFFERS))
}

fn describe(spec: &StoreSpec, backings: &[Backing], size_bytes: u64) -> String {
    let mut words = match &spec.place {
        Place::Path(path) => format!("{} ({})", path.display(), backings[0].describe()),
        Place::Memory { .. } => backings[0].describe().to_owned(),
    };
    words += &format!(", {size_bytes} bytes");
    if let MetadataPlace::External { path, .. } = &spec.metadata {
        words += &format!(", metadata in {} ({})", path.display(), backings[1].describe());
    }
    match &spec.faults {
        Some(faults) if faults.volatile_cache => words += ", FAULTS ASKED FOR, FORGETS ON KILL",
        Some(_) => words += ", FAULTS ASKED FOR",
        None => {}
    }
    words
}

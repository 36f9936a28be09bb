//! One node's disk: sectors of tokens behind a volatile cache, pages of metadata, two records.
//!
//! A write takes effect when it is answered, or, if the process or the machine dies first, for any
//! subset of its sectors. A power cut takes each sector that was not flushed back to any value it had
//! since the flush. Metadata is stable once answered; a power cut while it is written tears it between
//! its 512-byte sectors, or between any two words of persistent memory.
//!
//! Always: overlapping requests of which one changes sectors are never in flight together; that is the
//! shard's duty, and breaking it is an error of the run.
//!
//! Not here: how long requests take and when they fail (`world`).

use crate::history::Token;
use crate::machine::brief;
use crate::plan::BadPage;
use base::{NodeId, Prng, Span, VolumeId};
use replica::disk::{Record, newest_record};
use replica::door::Slot;
use replica::{DiskAnswer, DiskOp, DiskRequest, MetaPage, Page};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// One sector: what is stable, and what the cache took since, oldest first.
#[derive(Clone, Debug, Default)]
struct Sector {
    stable: Token,
    cached: Vec<(u64, Token)>,
}

impl Sector {
    fn value(&self) -> Token {
        self.cached.last().map_or(self.stable, |&(_, token)| token)
    }
}

/// A request that was submitted and is not answered.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Of which shard.
    pub shard: u16,
    /// Its name there.
    pub op: DiskOp,
    /// What.
    pub request: DiskRequest,
    /// What a write writes.
    content: Option<Rc<[Token]>>,
    /// For a flush: everything answered up to here.
    mark: u64,
    /// It was answered as durable: it is in the journal.
    journaled: bool,
}

/// What a request gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Answer as it is.
    Plain(DiskAnswer),
    /// Data that was read; `None`: zeroes.
    Data(Option<Rc<[Token]>>),
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    volumes: BTreeMap<VolumeId, Vec<Sector>>,
    meta: BTreeMap<(VolumeId, MetaPage), Box<Page>>,
    /// Copies of the record, as bytes.
    records: [Vec<u8>; 2],
    in_flight: BTreeMap<u64, InFlight>,
    record_in_flight: Option<Box<Record>>,
    sequence: u64,
    made: u64,
    /// What was written up to here is not made stable by any flush: one failed that should have.
    unflushable: u64,
    /// The same up to here was said to be stable since.
    believed: u64,
    /// Writes are stable once answered.
    pub write_through: bool,
    /// Metadata is in persistent memory.
    pub pmem: bool,
    /// The next power cut leaves the first piece of what is being written of metadata, whatever chance would do.
    pub tears: bool,
    /// Sectors that changed by themselves, and what was written there; block checksums know of them.
    rotten: BTreeMap<(VolumeId, u64), Token>,
    /// Extents whose block checksums are on stable storage, not written since.
    sealed: BTreeSet<(VolumeId, u64)>,
    /// Extents that were written since what a seal covers, and the last request before that was over: the checksums that a
    /// disk has of them are older.
    unsealed: BTreeMap<(VolumeId, u64), u64>,
    /// Sectors in an extent.
    pub extent_sectors: u64,
    /// What becomes of the next write of a page.
    trick: Option<BadPage>,
    /// Of pages that went bad, what was written there.
    good: BTreeMap<(VolumeId, MetaPage), Box<Page>>,
    /// Pages that were being written when the power went: such a one may be neither what it was nor what it was to be.
    torn: BTreeSet<(VolumeId, MetaPage)>,
    /// Pages of bits that a start could not believe, or that were not what was written there, by whose bits they are: all of
    /// them may be set, and stay so until that replica goes and comes back.
    doubted: BTreeSet<BitsPage>,
    /// Of a copy of the record that went bad, which one, and what was written there.
    good_record: Option<(usize, Vec<u8>)>,
}

/// What rot makes of a sector.
const ROT: Token = 1 << 50;

/// A page of bits: whose, of which volume, and its number.
pub type BitsPage = (NodeId, VolumeId, u64);

/// A shard broke its duty towards the disk.
pub type Overlap = String;

impl Disk {
    /// An empty disk with these volumes, in sectors.
    #[must_use]
    pub fn new(volumes: &[(VolumeId, u64)]) -> Disk {
        let mut disk = Disk::default();
        for &(volume, sectors) in volumes {
            disk.resize(volume, sectors, 0);
        }
        disk
    }

    /// Makes room for `sectors` of a volume; what is new holds `token`.
    pub fn resize(&mut self, volume: VolumeId, sectors: u64, token: Token) {
        let sectors = usize::try_from(sectors).expect("simulated volumes are small");
        let held = self.volumes.entry(volume).or_default();
        if held.len() < sectors {
            held.resize(sectors, Sector { stable: token, cached: Vec::new() });
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// It overlaps one in flight, and one of them changes sectors; or lies outside the volume.
    pub fn submit(
        &mut self,
        shard: u16,
        op: DiskOp,
        request: DiskRequest,
        content: Option<Rc<[Token]>>,
    ) -> Result<u64, Overlap> {
        for other in self.in_flight.values() {
            if conflict(&request, &other.request) {
                let (one, two) = (brief(&request), brief(&other.request));
                return Err(format!("{one} while {two} is in flight"));
            }
        }
        if let Some((volume, span, _)) = place(&request)
            && self.volumes.get(&volume).is_none_or(|held| (held.len() as u64) < span.end())
        {
            return Err(format!("{request:?} lies outside the volume"));
        }
        if let (DiskRequest::Write { span, .. }, Some(content)) = (&request, &content)
            && (content.len() as u64) < u64::from(span.count())
        {
            return Err(format!("{request:?} has a buffer of {} sectors", content.len()));
        }
        self.made += 1;
        self.unseal(&request);
        let mark = self.sequence;
        let entry = InFlight { shard, op, request, content, mark, journaled: false };
        self.in_flight.insert(self.made, entry);
        Ok(self.made)
    }

    /// Puts a write that is in flight in the journal; its shard and name there, unless it is in its place by now.
    pub fn journal(&mut self, id: u64) -> Option<(u16, DiskOp)> {
        let entry = self.in_flight.get_mut(&id)?;
        entry.journaled = true;
        Some((entry.shard, entry.op))
    }

    /// Whether request `id` is in the journal.
    #[must_use]
    pub fn is_journaled(&self, id: u64) -> bool {
        self.in_flight.get(&id).is_some_and(|entry| entry.journaled)
    }

    /// Carries out request `id`.
    pub fn finish(&mut self, id: u64) -> Option<(InFlight, Outcome)> {
        let entry = self.take(id)?;
        let outcome = match &entry.request {
            DiskRequest::Read { volume, span, .. } | DiskRequest::Hash { volume, span }
                if self.is_rotten(*volume, *span) =>
            {
                Outcome::Plain(DiskAnswer::Rotten)
            }
            DiskRequest::Read { volume, span, .. } => {
                let tokens = self.tokens(*volume, *span);
                if tokens.iter().all(|&token| token == 0) && span.first() % 3 != 0 {
                    Outcome::Data(None)
                } else {
                    Outcome::Data(Some(tokens.into()))
                }
            }
            DiskRequest::Hash { volume, span } => {
                Outcome::Plain(DiskAnswer::Hash(hash(&self.tokens(*volume, *span))))
            }
            DiskRequest::Write { volume, span, durable, .. } => {
                let content = entry.content.clone().expect("a write has a content");
                self.put(*volume, *span, &content, *durable || entry.journaled);
                Outcome::Plain(DiskAnswer::Done)
            }
            DiskRequest::Zero { volume, span, durable, .. } => {
                let zeroes = vec![0; span.count() as usize];
                self.put(*volume, *span, &zeroes, *durable || entry.journaled);
                Outcome::Plain(DiskAnswer::Done)
            }
            DiskRequest::Seal { volume, extent } => {
                self.sealed.insert((*volume, *extent));
                self.unsealed.retain(|of, last| *of != (*volume, *extent) || *last >= id);
                Outcome::Plain(DiskAnswer::Done)
            }
            DiskRequest::Flush => {
                self.flush(entry.mark);
                Outcome::Plain(DiskAnswer::Done)
            }
            DiskRequest::Meta { volume, page, bytes } => {
                self.put_page((*volume, *page), bytes);
                Outcome::Plain(DiskAnswer::Done)
            }
        };
        Some((entry, outcome))
    }

    /// The place of request `id`, if it is a write that a disk may confirm and not carry out: what it takes the place of is
    /// stable and as it was written.
    #[must_use]
    pub fn could_go_bad(&self, id: u64) -> Option<(VolumeId, Span)> {
        let entry = self.in_flight.get(&id).filter(|entry| !entry.journaled)?;
        let DiskRequest::Write { volume, span, .. } = entry.request else { return None };
        self.is_settled(volume, span).then_some((volume, span))
    }

    /// Whether what write `id` writes may come to lie here instead: other sectors, to which nothing is in flight, and which
    /// checksums on stable storage are of.
    #[must_use]
    pub fn could_be_overwritten(&self, id: u64, first: u64) -> bool {
        let Some((volume, span, _)) = self.in_flight.get(&id).and_then(|one| place(&one.request))
        else {
            return false;
        };
        let Some(at) = Span::new(first, span.count()) else { return false };
        let is_free = self.in_flight.values().all(|other| {
            place(&other.request).is_none_or(|(of, used, _)| of != volume || !used.overlaps(at))
        });
        let extents = self.extent_of(first)..=self.extent_of(at.end() - 1);
        let mut sealed = extents.map(|extent| self.sealed.contains(&(volume, extent)));
        is_free && sealed.all(|known| known) && self.is_settled(volume, at)
    }

    /// Nothing of it is in the cache only, and nothing of it rotted.
    fn is_settled(&self, volume: VolumeId, span: Span) -> bool {
        let held = self.volumes.get(&volume);
        !self.is_rotten(volume, span)
            && (span.first()..span.end()).all(|sector| {
                let at = usize::try_from(sector).expect("simulated volumes are small");
                held.and_then(|held| held.get(at)).is_some_and(|held| held.cached.is_empty())
            })
    }

    /// Confirms write `id`, and writes nothing, or writes it over what begins at `astray`. Checksums know what should be there.
    pub fn lose(&mut self, id: u64, astray: Option<u64>) -> Option<InFlight> {
        let entry = self.take(id)?;
        let DiskRequest::Write { volume, span, .. } = entry.request else { return None };
        let content = entry.content.clone()?;
        self.sealed.remove(&(volume, self.extent_of(span.first())));
        for (number, &token) in (0..).zip(content.iter().take(span.count() as usize)) {
            self.should_be(volume, span.first() + number, token);
            if let Some(astray) = astray {
                let sector = astray + number;
                let good = self.tokens(volume, Span::new(sector, 1).expect("one sector"))[0];
                let at = usize::try_from(sector).expect("simulated volumes are small");
                self.volumes.get_mut(&volume).expect("it is written to")[at].stable = token;
                self.should_be(volume, sector, good);
            }
        }
        Some(entry)
    }

    /// Checksums know that this is what a sector should hold. It may hold it, though nothing was written.
    fn should_be(&mut self, volume: VolumeId, sector: u64, token: Token) {
        let one = Span::new(sector, 1).expect("one sector is a span");
        if self.tokens(volume, one) != [token] {
            self.rotten.insert((volume, sector), token);
        }
    }

    /// Writes a page, or does not, though it says so.
    fn put_page(&mut self, key: (VolumeId, MetaPage), bytes: &Page) {
        let trick = self.trick.take_if(|trick| matches!(trick, BadPage::Stale | BadPage::Astray));
        if trick.is_none() {
            self.good.remove(&key);
            self.torn.remove(&key);
            self.meta.insert(key, Box::new(*bytes));
            return;
        }
        self.good.insert(key, Box::new(*bytes));
        let place = self.meta.keys().rev().find(|other| **other != key).copied();
        if let Some(place) = place.filter(|_| trick == Some(BadPage::Astray))
            && let Some(old) = self.meta.insert(place, Box::new(*bytes))
        {
            self.good.entry(place).or_insert(old);
        }
    }

    /// The disk as it would be had no page gone bad.
    #[must_use]
    pub fn mended(&self) -> Disk {
        let mut disk = self.clone();
        disk.trick = None;
        disk.meta.append(&mut disk.good);
        if let Some((copy, bytes)) = disk.good_record.take() {
            disk.records[copy] = bytes;
        }
        disk
    }

    /// Pages that are not what was written there.
    pub fn bad_pages(&self) -> impl Iterator<Item = ((VolumeId, MetaPage), Option<&Page>)> + '_ {
        self.good.keys().map(|key| (*key, self.meta.get(key).map(|page| &**page)))
    }

    /// Whether what was done to the disk explains that this page cannot be read.
    fn may_be_bad(&self, key: &(VolumeId, MetaPage)) -> bool {
        self.torn.contains(key) || self.good.contains_key(key)
    }

    /// A start found bits of these replicas in these slots, and which pages of them cannot be believed. The first such page to which
    /// nothing was done.
    pub fn found_bits(&mut self, slots: &[Slot], unreadable: &[BitsPage]) -> Option<BitsPage> {
        let bad: Vec<_> = self.good.keys().copied().collect();
        for (volume, place) in bad {
            let MetaPage::Bitmap { slot: number, page } = place else { continue };
            let slot = slots.iter().find(|slot| slot.number == number);
            self.doubted.extend(slot.map(|slot| (slot.node, volume, page)));
        }
        self.doubted.extend(unreadable);
        let is_bad = |&(node, volume, page): &BitsPage| {
            let mut slots = slots.iter().filter(|slot| slot.node == node);
            let place = |slot: &Slot| MetaPage::Bitmap { slot: slot.number, page };
            slots.any(|slot| self.may_be_bad(&(volume, place(slot))))
        };
        unreadable.iter().copied().find(|page| !is_bad(page))
    }

    /// Of pages of bits that are doubted, those for which `keep` says so.
    pub fn keep_doubted(&mut self, keep: impl Fn(&BitsPage) -> bool) {
        self.doubted.retain(keep);
    }

    /// Whether all of a page of bits may be set, though its replica has everything.
    #[must_use]
    pub fn is_doubted(&self, page: &BitsPage) -> bool {
        self.doubted.contains(page)
    }

    fn is_rotten(&self, volume: VolumeId, span: Span) -> bool {
        self.rots_in(volume, span.first(), span.end())
    }

    /// Sectors that changed by themselves and were not written since.
    #[must_use]
    pub fn rotten_count(&self) -> usize {
        self.rotten.len()
    }

    /// Makes everything well.
    pub fn unrot_all(&mut self) {
        let known: Vec<(VolumeId, u64)> = self.rotten.keys().copied().collect();
        for (volume, sector) in known {
            self.unrot(volume, sector, sector + 1);
        }
    }

    fn extent_of(&self, sector: u64) -> u64 {
        sector / self.extent_sectors.max(1)
    }

    /// Checksums of extents that were written since they were sealed are not believed after a crash:
    /// what rotted there could not be told, and is made well.
    fn distrust(&mut self) {
        let known: Vec<(VolumeId, u64)> = self.rotten.keys().copied().collect();
        for (volume, sector) in known {
            if !self.sealed.contains(&(volume, self.extent_of(sector))) {
                self.unrot(volume, sector, sector + 1);
            }
        }
    }

    /// Request `id` is over.
    fn take(&mut self, id: u64) -> Option<InFlight> {
        let entry = self.in_flight.remove(&id)?;
        self.unseal(&entry.request);
        Some(entry)
    }

    /// A write begins, or is over: a seal that was asked for by now does not cover it.
    fn unseal(&mut self, request: &DiskRequest) {
        if let Some((volume, span, true)) = place(request) {
            for extent in self.extent_of(span.first())..=self.extent_of(span.end() - 1) {
                self.unsealed.insert((volume, extent), self.made);
            }
        }
    }

    /// An extent whose checksums are believed at a start, though they are older than what was written: only those of `hot` ones are
    /// forgotten. Where the log, or the record that says which one it is, went bad, the copy is compared as a whole.
    pub fn believed_too_soon(
        &mut self,
        hot: &BTreeSet<(VolumeId, u64)>,
        damaged: bool,
    ) -> Option<(VolumeId, u64)> {
        let is_log = |(_, page): &(VolumeId, MetaPage)| matches!(page, MetaPage::Log { .. });
        if damaged || self.good_record.is_some() || self.good.keys().any(is_log) {
            self.unsealed.retain(|extent, _| hot.contains(extent));
        }
        self.unsealed.keys().find(|extent| !hot.contains(extent)).copied()
    }

    /// A stable sector changes by itself; false if it is not stable, or its checksum not yet.
    pub fn rot(&mut self, volume: VolumeId, sector: u64) -> bool {
        let at = usize::try_from(sector).expect("simulated volumes are small");
        let Some(held) = self.volumes.get_mut(&volume).and_then(|held| held.get_mut(at)) else {
            return false;
        };
        let extent = sector / self.extent_sectors.max(1);
        let known = self.sealed.contains(&(volume, extent));
        if !known || !held.cached.is_empty() || self.rotten.contains_key(&(volume, sector)) {
            return false;
        }
        self.rotten.insert((volume, sector), held.stable);
        held.stable ^= ROT;
        true
    }

    /// Makes well what rotted in these sectors.
    pub fn unrot(&mut self, volume: VolumeId, first: u64, end: u64) {
        let found: Vec<u64> =
            self.rotten.range((volume, first)..(volume, end)).map(|((_, at), _)| *at).collect();
        for sector in found {
            let token = self.rotten.remove(&(volume, sector)).expect("listed above");
            let at = usize::try_from(sector).expect("simulated volumes are small");
            if let Some(held) = self.volumes.get_mut(&volume).and_then(|held| held.get_mut(at)) {
                held.stable = token;
            }
        }
    }

    /// Whether a sector of this range changed by itself.
    #[must_use]
    pub fn rots_in(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        self.rotten.range((volume, first)..(volume, end)).next().is_some()
    }

    /// A page goes bad, now or with its next write; false if there is none.
    pub fn spoil(&mut self, how: BadPage, random: &mut Prng) -> bool {
        if how != BadPage::Flipped {
            self.trick = Some(how);
            return true;
        }
        let records = self.records.iter().filter(|copy| !copy.is_empty()).count() as u64;
        let draw = random.below(self.meta.len() as u64 + records);
        let draw = usize::try_from(draw).expect("few pages");
        let bit = usize::try_from(random.below(4096)).expect("in a page");
        if let Some((&key, page)) = self.meta.iter_mut().nth(draw) {
            self.good.entry(key).or_insert_with(|| page.clone());
            page[bit] ^= 1;
        } else {
            let copy = draw - self.meta.len();
            let good = self.records[copy].clone();
            if let Some(byte) = self.records[copy].get_mut(bit) {
                *byte ^= 1;
            }
            // The other copy is bad already, or not there: that would be a disk that is lost.
            if self.record().is_none()
                && let Some(byte) = self.records[copy].get_mut(bit)
            {
                *byte ^= 1;
                return false;
            }
            self.good_record.get_or_insert((copy, good));
        }
        true
    }

    /// Whether it has not yet answered all that it was asked.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether request `id` writes data.
    #[must_use]
    pub fn needs_room(&self, id: u64) -> bool {
        let entry = self.in_flight.get(&id);
        entry.is_some_and(|entry| matches!(entry.request, DiskRequest::Write { .. }))
    }

    /// Gives up request `id`: a write may have been carried out for some of its sectors.
    pub fn fail(&mut self, id: u64, random: &mut Prng) -> Option<InFlight> {
        let entry = self.take(id)?;
        if entry.request == DiskRequest::Flush && random.once_in(2) {
            self.unflushable = self.unflushable.max(entry.mark);
        } else {
            self.tear(&entry, random, false);
        }
        Some(entry)
    }

    /// The tokens of a span as a read sees them now.
    #[must_use]
    pub fn tokens(&self, volume: VolumeId, span: Span) -> Vec<Token> {
        let held = self.volumes.get(&volume);
        (span.first()..span.end())
            .map(|sector| {
                held.and_then(|held| held.get(usize::try_from(sector).unwrap_or(usize::MAX)))
                    .map_or(0, Sector::value)
            })
            .collect()
    }

    /// Sectors hold this, and nothing tells that they ever held anything else.
    pub fn alter(&mut self, volume: VolumeId, span: Span, token: Token) {
        let tokens = vec![token; span.count() as usize];
        self.put(volume, span, &tokens, true);
    }

    fn put(&mut self, volume: VolumeId, span: Span, tokens: &[Token], durable: bool) {
        self.sequence += 1;
        self.sealed.remove(&(volume, self.extent_of(span.first())));
        let durable = durable || self.write_through;
        let held = self.volumes.entry(volume).or_default();
        for (sector, &token) in (span.first()..span.end()).zip(tokens) {
            let rotten = self.rotten.remove(&(volume, sector));
            let at = usize::try_from(sector).expect("simulated volumes are small");
            if let Some(sector) = held.get_mut(at) {
                // What is written is well, and so is what a power cut may take it back to.
                sector.stable = rotten.unwrap_or(sector.stable);
                if durable {
                    sector.stable = token;
                    sector.cached.clear();
                } else {
                    sector.cached.push((self.sequence, token));
                }
            }
        }
    }

    /// Makes stable what was written up to `mark`. Where a flush failed for the newest of that, it only says so: the place holds
    /// what is in the cache until the next power cut.
    fn flush(&mut self, mark: u64) {
        self.believed = self.believed.max(mark);
        for sector in self.volumes.values_mut().flatten() {
            let covered = sector.cached.iter().take_while(|(number, _)| *number <= mark).count();
            if covered > 0 && sector.cached[covered - 1].0 > self.unflushable {
                sector.stable = sector.cached[covered - 1].1;
                sector.cached.drain(..covered);
            }
        }
    }

    /// What a flush failed, and no later one made stable, is gone, or some of it; false if none of that was said to be stable since.
    pub fn lose_unflushed(&mut self, random: &mut Prng) -> bool {
        let (mut lost, failed, believed) = (false, self.unflushable, self.believed);
        for sector in self.volumes.values_mut().flatten() {
            let stuck = sector.cached.iter().take_while(|(number, _)| *number <= failed).count();
            if stuck == 0 {
                continue;
            }
            let kept = usize::try_from(random.below(stuck as u64 + 1)).unwrap_or(0);
            lost |= sector.cached[kept..stuck].iter().any(|(number, _)| *number <= believed);
            if kept > 0 {
                sector.stable = sector.cached[kept - 1].1;
            }
            sector.cached.drain(..stuck);
        }
        lost
    }

    /// What flushes said is true after all.
    fn keep_unflushed(&mut self) {
        self.unflushable = 0;
        self.flush(self.believed);
    }

    /// Starts to write the record, over the older of its copies; false if one is being written.
    pub fn submit_record(&mut self, record: Box<Record>) -> bool {
        self.record_in_flight.replace(record).is_none()
    }

    /// Whether a record or a page of metadata is being written.
    #[must_use]
    pub fn is_storing(&self) -> bool {
        let pages = self.in_flight.values();
        self.record_in_flight.is_some()
            || pages.into_iter().any(|entry| matches!(entry.request, DiskRequest::Meta { .. }))
    }

    /// The record that is being written.
    #[must_use]
    pub fn storing(&self) -> Option<&Record> {
        self.record_in_flight.as_deref()
    }

    /// The record is written, or (`ok` false) is not.
    pub fn finish_record(&mut self, ok: bool) -> Option<Box<Record>> {
        let record = self.record_in_flight.take()?;
        if ok {
            self.put_record(&record);
        }
        Some(record)
    }

    /// The disk says that it could not write the record: that may be there all the same, or a part of it.
    pub fn fail_record(&mut self, random: &mut Prng) {
        let Some(record) = self.record_in_flight.take() else { return };
        match random.below(3) {
            0 => {}
            1 => self.put_record(&record),
            _ => self.tear_record(&record, random),
        }
    }

    fn tear_record(&mut self, record: &Record, random: &mut Prng) {
        let copy = usize::from(record.copy());
        self.good_record = self.good_record.take().filter(|(bad, _)| *bad != copy);
        self.records[copy] = self.torn(&self.records[copy], &record.encode(), random);
        // The other copy is bad: that would be a disk that is lost.
        if self.record().is_none()
            && let Some((bad, good)) = self.good_record.take()
        {
            self.records[bad] = good;
        }
    }

    /// Writes the record, or does not, though it says so: over the other copy, or not at all.
    fn put_record(&mut self, record: &Record) {
        let copy = usize::from(record.copy());
        let other = self.records[1 - copy].clone();
        // The other copy is bad already, or not there: that would be a disk that is lost.
        let may = self.good_record.is_none() && newest_record(&[Some(&other)]).is_ok();
        let of_records = [BadPage::StaleRecord, BadPage::AstrayRecord];
        let trick = self.trick.take_if(|trick| may && of_records.contains(trick));
        match trick {
            Some(how) => {
                self.good_record = Some((copy, record.encode()));
                if how == BadPage::AstrayRecord {
                    self.records[1 - copy] = record.encode();
                }
            }
            None => {
                self.records[copy] = record.encode();
                self.good_record = self.good_record.take().filter(|(bad, _)| *bad != copy);
            }
        }
    }

    /// Everything is flushed, and the record that was stored last says that nothing is left open; `None` if none can be read.
    pub fn close(&mut self) -> Option<Box<Record>> {
        let stored = self.record_in_flight.take().or_else(|| self.record().map(Box::new));
        let mut record = stored?;
        self.flush(u64::MAX);
        record.stores += 1;
        record.clean = true;
        self.record_in_flight = Some(record);
        self.finish_record(true)
    }

    /// The newest copy of the record that can be read.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let copies: Vec<Option<&[u8]>> = self.records.iter().map(|copy| Some(&**copy)).collect();
        newest_record(&copies).ok()
    }

    /// The process died: what was in flight happened, in part or not at all. The cache stays.
    pub fn crash(&mut self, random: &mut Prng) {
        for (_, entry) in std::mem::take(&mut self.in_flight) {
            self.tear(&entry, random, false);
        }
        let written = random.once_in(2);
        self.finish_record(written);
        self.keep_unflushed();
        self.distrust();
    }

    /// The power went: what was in flight is torn, each sector that was not flushed falls back to any
    /// value since the last flush.
    pub fn power_cut(&mut self, random: &mut Prng) {
        for (_, entry) in std::mem::take(&mut self.in_flight) {
            self.tear(&entry, random, true);
        }
        if let Some(record) = self.record_in_flight.take() {
            self.tear_record(&record, random);
        }
        self.keep_unflushed();
        let mode = random.below(4);
        for sector in self.volumes.values_mut().flatten() {
            let kept = match mode {
                0 => 0,
                1 => sector.cached.len(),
                _ => usize::try_from(random.below(sector.cached.len() as u64 + 1)).unwrap_or(0),
            };
            if kept > 0 {
                sector.stable = sector.cached[kept - 1].1;
            }
            sector.cached.clear();
        }
        self.distrust();
        self.tears = false;
    }

    /// What is written of metadata at once, or not at all, in bytes.
    fn grain(&self) -> usize {
        if self.pmem { 8 } else { 512 }
    }

    /// What a power cut leaves of metadata that is being written.
    fn torn(&self, old: &[u8], new: &[u8], random: &mut Prng) -> Vec<u8> {
        if !self.tears {
            return torn(old, new, self.grain(), random);
        }
        let rest = (self.grain()..new.len()).map(|at| old.get(at).copied().unwrap_or(0));
        new.iter().take(self.grain()).copied().chain(rest).collect()
    }

    fn tear(&mut self, entry: &InFlight, random: &mut Prng, power: bool) {
        match &entry.request {
            DiskRequest::Write { volume, span, .. } | DiskRequest::Zero { volume, span, .. }
                if entry.journaled =>
            {
                let zeroes = vec![0; span.count() as usize].into();
                let content = entry.content.clone().unwrap_or(zeroes);
                self.put(*volume, *span, &content, true);
            }
            DiskRequest::Write { volume, span, .. } | DiskRequest::Zero { volume, span, .. } => {
                let zeroes = vec![0; span.count() as usize].into();
                let content = entry.content.clone().unwrap_or(zeroes);
                let whole = random.below(3);
                for (sector, token) in (span.first()..span.end()).zip(content.iter()) {
                    let one = Span::new(sector, 1).expect("a sector of a small volume is a span");
                    if whole == 0 || (whole == 1 && random.once_in(2)) {
                        self.put(*volume, one, &[*token], false);
                    }
                }
            }
            DiskRequest::Meta { volume, page, bytes } => {
                let key = (*volume, *page);
                if power {
                    let old = self.meta.get(&key).map_or(vec![0; 4096], |old| old.to_vec());
                    let mixed = self.torn(&old, &bytes[..], random);
                    let page: Box<Page> =
                        mixed.into_boxed_slice().try_into().expect("a page stays 4096 bytes long");
                    self.meta.insert(key, page);
                    self.torn.insert(key);
                } else if random.once_in(2) {
                    self.good.remove(&key);
                    self.torn.remove(&key);
                    self.meta.insert(key, bytes.clone());
                }
            }
            DiskRequest::Flush => {
                if random.once_in(2) {
                    self.flush(entry.mark);
                }
            }
            DiskRequest::Read { .. } | DiskRequest::Hash { .. } | DiskRequest::Seal { .. } => {}
        }
    }

    /// Every page of metadata.
    pub fn pages(&self) -> impl Iterator<Item = (VolumeId, MetaPage, &Page)> + '_ {
        self.meta.iter().map(|(&(volume, page), bytes)| (volume, page, &**bytes))
    }

    /// Sectors of a volume as they were written, whatever rotted since.
    #[must_use]
    pub fn written(&self, volume: VolumeId) -> Vec<Token> {
        let mut all = self.all(volume);
        for (&(_, sector), &token) in self.rotten.range((volume, 0)..(volume, u64::MAX)) {
            if let Some(held) = usize::try_from(sector).ok().and_then(|at| all.get_mut(at)) {
                *held = token;
            }
        }
        all
    }

    /// For each sector, what is stable, as it was written, and what the cache took since, oldest first.
    #[must_use]
    pub fn every_value(&self, volume: VolumeId) -> Vec<Vec<Token>> {
        let Some(held) = self.volumes.get(&volume) else { return Vec::new() };
        (0..)
            .zip(held)
            .map(|(at, sector)| {
                let stable = self.rotten.get(&(volume, at)).copied().unwrap_or(sector.stable);
                let cached = sector.cached.iter().map(|&(_, token)| token);
                core::iter::once(stable).chain(cached).collect()
            })
            .collect()
    }

    /// Sectors of a volume, as reads see them now.
    #[must_use]
    pub fn all(&self, volume: VolumeId) -> Vec<Token> {
        self.volumes
            .get(&volume)
            .map_or(Vec::new(), |held| held.iter().map(Sector::value).collect())
    }
}

/// Each `grain` of bytes is old or new.
fn torn(old: &[u8], new: &[u8], grain: usize, random: &mut Prng) -> Vec<u8> {
    let mode = random.below(3);
    let mut bytes = new.to_vec();
    for (index, piece) in bytes.chunks_mut(grain).enumerate() {
        if mode == 0 || (mode == 1 && random.once_in(2)) {
            let from = index * grain;
            for (offset, byte) in piece.iter_mut().enumerate() {
                *byte = old.get(from + offset).copied().unwrap_or(0);
            }
        }
    }
    bytes
}

/// Which sectors a request touches, and whether it changes them.
fn place(request: &DiskRequest) -> Option<(VolumeId, Span, bool)> {
    match request {
        DiskRequest::Read { volume, span, .. } | DiskRequest::Hash { volume, span } => {
            Some((*volume, *span, false))
        }
        DiskRequest::Write { volume, span, .. } | DiskRequest::Zero { volume, span, .. } => {
            Some((*volume, *span, true))
        }
        DiskRequest::Flush | DiskRequest::Meta { .. } | DiskRequest::Seal { .. } => None,
    }
}

fn conflict(one: &DiskRequest, other: &DiskRequest) -> bool {
    if let (
        DiskRequest::Meta { volume, page, .. },
        DiskRequest::Meta { volume: other_volume, page: other_page, .. },
    ) = (one, other)
    {
        return volume == other_volume && page == other_page;
    }
    let (Some((volume, span, changes)), Some((other_volume, other_span, other_changes))) =
        (place(one), place(other))
    else {
        return false;
    };
    volume == other_volume && span.overlaps(other_span) && (changes || other_changes)
}

fn hash(tokens: &[Token]) -> u128 {
    let mut state: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for &token in tokens {
        state = (state ^ u128::from(token)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::BufferId;

    const VOLUME: VolumeId = VolumeId(0);

    #[test]
    fn what_was_in_the_journal_is_stable_in_its_place_too() {
        let span = Span::new(0, 2).expect("it fits");
        let (unmap, durable, buffer) = (false, false, BufferId(1));
        let zero = DiskRequest::Zero { volume: VOLUME, span, unmap, durable };
        let write = DiskRequest::Write { volume: VOLUME, span, buffer, durable };
        for (request, content, value) in [(zero, None, 0), (write, Some(Rc::from([5, 5])), 5)] {
            let mut disk = Disk::new(&[(VOLUME, 0)]);
            disk.resize(VOLUME, 2, 7);
            let id = disk.submit(0, DiskOp(1), request, content).expect("nothing is in flight");
            disk.journal(id);
            disk.finish(id);
            assert_eq!(
                disk.every_value(VOLUME),
                vec![vec![value]; 2],
                "a power cut changes nothing"
            );
        }
    }

    /// The cache is read until the power is cut, and then whatever of it the disk likes.
    #[test]
    fn what_a_flush_failed_no_later_one_makes_stable_but_what_is_written_again_is() {
        let span = Span::new(0, 1).expect("it fits");
        let one = |disk: &mut Disk, request: DiskRequest, value: Token| {
            let content = matches!(request, DiskRequest::Write { .. }).then(|| Rc::from([value]));
            disk.submit(0, DiskOp(1), request, content).expect("nothing is in flight")
        };
        let buffer = BufferId(1);
        let write = DiskRequest::Write { volume: VOLUME, span, buffer, durable: false };
        let mut lost = 0;
        for seed in 0..40 {
            let mut random = Prng::new(seed);
            let mut disk = Disk::new(&[(VOLUME, 1)]);
            let id = one(&mut disk, write.clone(), 5);
            disk.finish(id);
            let id = one(&mut disk, DiskRequest::Flush, 0);
            disk.fail(id, &mut random);
            let id = one(&mut disk, DiskRequest::Flush, 0);
            disk.finish(id);
            assert_eq!(disk.all(VOLUME), [5], "the cache has it");
            let mut other = disk.clone();
            lost += u32::from(disk.lose_unflushed(&mut random));
            disk.power_cut(&mut random);
            let id = one(&mut other, write.clone(), 6);
            other.finish(id);
            let id = one(&mut other, DiskRequest::Flush, 0);
            other.finish(id);
            assert!(!other.lose_unflushed(&mut random));
            other.power_cut(&mut random);
            assert_eq!(other.all(VOLUME), [6]);
        }
        assert!((1..40).contains(&lost), "{lost}");
    }

    #[test]
    fn a_seal_covers_what_was_over_when_it_was_asked_for() {
        let mut disk = Disk { extent_sectors: 2, ..Disk::new(&[(VOLUME, 0)]) };
        disk.resize(VOLUME, 4, 0);
        let nothing_hot = BTreeSet::new();
        let span = Span::new(2, 1).expect("it fits");
        let zero = DiskRequest::Zero { volume: VOLUME, span, unmap: false, durable: false };
        let seal = DiskRequest::Seal { volume: VOLUME, extent: 1 };
        let submit = |disk: &mut Disk, request| {
            disk.submit(0, DiskOp(1), request, None).expect("it is fine")
        };
        let early = submit(&mut disk, zero.clone());
        let first = submit(&mut disk, seal.clone());
        disk.finish(early);
        disk.finish(first);
        assert_eq!(disk.believed_too_soon(&nothing_hot, false), Some((VOLUME, 1)));
        assert_eq!(disk.believed_too_soon(&[(VOLUME, 1)].into(), false), None, "the log says so");
        let second = submit(&mut disk, seal.clone());
        disk.finish(second);
        assert_eq!(disk.believed_too_soon(&nothing_hot, false), None);
        let third = submit(&mut disk, seal);
        submit(&mut disk, zero);
        disk.finish(third);
        assert_eq!(disk.believed_too_soon(&nothing_hot, false), Some((VOLUME, 1)));
        assert_eq!(disk.believed_too_soon(&nothing_hot, true), None, "the copy is a new one");
    }

    #[test]
    fn a_power_cut_tears_persistent_memory_between_any_two_words() {
        let page = MetaPage::Log { half: 0, page: 0, copy: 0 };
        let mut smallest = [4096; 2];
        for (pmem, smallest) in [false, true].into_iter().zip(&mut smallest) {
            for seed in 0..20 {
                let mut disk = Disk { pmem, ..Disk::new(&[(VOLUME, 0)]) };
                let bytes = Box::new([1; 4096]);
                let request = DiskRequest::Meta { volume: VOLUME, page, bytes };
                disk.submit(0, DiskOp(1), request, None).expect("nothing is in flight");
                disk.power_cut(&mut Prng::new(seed));
                let (_, _, bytes) = disk.pages().next().expect("it was written, in part");
                let piece = bytes.chunk_by(|one, next| one == next).map(<[u8]>::len).min();
                *smallest = piece.expect("a page has bytes").min(*smallest);
            }
        }
        assert_eq!(smallest, [512, 8]);
    }
}

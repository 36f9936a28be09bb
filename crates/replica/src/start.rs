//! From what a disk holds to the machines of a new process. Pure.
//!
//! Always: what the machines inherit is exactly what the pages say; metadata that cannot be believed
//! is never guessed at: the copy takes a new identity and is brought up to date as a new one.
//!
//! Not here: reading pages (`store`, `sim`), deciding what follows (`member`, `shard`).

use crate::disk::{BadMetadata, Record, decode_bitmap_page, hot_extents};
use crate::door::{Geometry, LogSize, MetaPage, Page, Slot, Timing};
use crate::member::MemberSetup;
use crate::memory;
use crate::shard::{BitmapFound, Shard, ShardSetup};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Incarnation, NodeId, Prng, VolumeId, VoterId};
use wire::Configuration;

/// What is known of a node and its process before its disk is read.
#[derive(Clone, Debug)]
pub struct Start {
    /// This node.
    pub node: NodeId,
    /// Random number of this process, or of this set of machines if the process makes them anew: a life on the
    /// record and the names of writes are told apart by it, so it is never used twice.
    pub process: u64,
    /// This boot of the machine.
    pub boot: u128,
    /// The node keeps data for the resource: it is, or will be, a replica.
    pub holds_data: bool,
    /// Writes that were answered but not flushed may be gone after a power cut.
    pub volatile_cache: bool,
    /// Shards that serve the resource; 0 on a witness.
    pub shards: u16,
    /// How addresses are divided.
    pub geometry: Geometry,
    /// Activity logs of volumes that have not the size of the geometry.
    pub log_sizes: Vec<(VolumeId, LogSize)>,
    /// How long things may take.
    pub timing: Timing,
    /// The highest feature level that this node can act on: [`wire::FEATURE_LEVEL`], but in tests.
    pub feature_level: u32,
    /// Of all random choices, new identities among them.
    pub seed: u64,
    /// Who the members are, for a node that knows nothing yet.
    pub bootstrap: Option<Configuration>,
}

/// What was found on the disk.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The newest record that could be read; `None` on a node without a disk for the resource.
    pub record: Option<Record>,
    /// Every page of the logs (both halves) and of the bitmaps, as read; `None`: could not be read.
    /// Bitmap pages that were never written may be left out.
    pub pages: Vec<(VolumeId, MetaPage, Option<Page>)>,
}

/// What the machines of the process are made of.
#[derive(Clone, Debug)]
pub struct Setups {
    /// Of the member.
    pub member: MemberSetup,
    /// Of the shards, in order.
    pub shards: Vec<ShardSetup>,
    /// The log could not be believed: the copy is a new one now.
    pub damaged: Option<BadMetadata>,
}

/// Makes the setups of a new process.
#[must_use]
pub fn start(start: &Start, found: Found) -> Setups {
    let mut random = Prng::new(start.seed ^ start.process);
    let mut record = found.record;
    let mut damaged = None;
    let mut inherited = Vec::new();
    let mut found_writes = 0;
    if let Some(record) = record.as_mut() {
        match read_logs(record, &found.pages) {
            Ok(log) => {
                found_writes = log.writes;
                inherited = log.extents;
                record.life = record.life.max(log.last_life);
            }
            Err(bad) => {
                damaged = Some(bad);
                *record = forgotten(record, &mut random);
            }
        }
        let cache_lost = record.boot != start.boot && start.volatile_cache;
        if (cache_lost || record.in_memory) && !record.clean {
            record.incarnation = Incarnation(random.id());
        }
        record.boot = start.boot;
        let known = record.committed.as_ref().map(|(_, known)| known);
        record.in_memory = known.is_some_and(|known| memory::counts(known, start.node));
    }
    let slots = record.as_ref().map_or(Vec::new(), |record| record.slots.clone());
    let bitmaps = if damaged.is_none() { read_bitmaps(&slots, &found.pages) } else { Vec::new() };
    let attached = start.holds_data && record.is_some();
    let untouched = record.as_ref().is_some_and(|record| is_untouched(record, start));
    let (life, half) =
        record.as_ref().map_or((1, 0), |record| (record.life + 1, record.log_half ^ 1));
    let shards = (0..start.shards)
        .map(|index| {
            let mine = |extent| Shard::owner(&start.geometry, start.shards, extent) == index;
            let stripe = start.geometry.stripe_extents;
            ShardSetup {
                node: start.node,
                process: start.process,
                index,
                shards: start.shards,
                geometry: start.geometry,
                timing: start.timing,
                attached,
                untouched,
                life,
                log_half: half,
                inherited: inherited.iter().copied().filter(|&(_, at)| mine(at)).collect(),
                log_sizes: start.log_sizes.clone(),
                slots: slots.clone(),
                bitmaps: bitmaps.iter().filter(|bits| mine(bits.2 * stripe)).cloned().collect(),
            }
        })
        .collect();
    let member = MemberSetup {
        node: start.node,
        process: start.process,
        shards: start.shards,
        timing: start.timing,
        verify_sectors: start.geometry.verify_sectors,
        feature_level: start.feature_level,
        seed: start.seed,
        record,
        attached,
        found_writes,
        bootstrap: start.bootstrap.clone(),
    };
    Setups { member, shards, damaged }
}

/// Whether this is a copy of a new resource as it was made: no primary has written to it, since whoever has one
/// stores its configuration before shards hear of it.
fn is_untouched(record: &Record, start: &Start) -> bool {
    let first = start.bootstrap.as_ref().filter(|first| {
        record.committed.as_ref().is_none_or(|(_, known)| known.epoch <= first.epoch)
    });
    first.and_then(|first| first.member(start.node)).is_some_and(|member| {
        (member.voter, member.incarnation, member.in_sync)
            == (record.voter, record.incarnation, true)
    })
}

/// The logs of all volumes together.
#[derive(Debug, Default)]
struct Logs {
    extents: Vec<(VolumeId, u64)>,
    writes: u64,
    last_life: u64,
}

fn read_logs(
    record: &Record,
    pages: &[(VolumeId, MetaPage, Option<Page>)],
) -> Result<Logs, BadMetadata> {
    let volumes: BTreeSet<VolumeId> = pages.iter().map(|(volume, _, _)| *volume).collect();
    let mut logs = Logs::default();
    for volume in volumes {
        let of_volume: Vec<(MetaPage, Option<Page>)> = pages
            .iter()
            .filter(|(of, place, _)| *of == volume && matches!(place, MetaPage::Log { .. }))
            .map(|(_, place, bytes)| (*place, *bytes))
            .collect();
        let found = hot_extents(volume, &of_volume, record.log_half, record.life)?;
        logs.extents.extend(found.extents);
        logs.writes = logs.writes.saturating_add(found.writes);
        logs.last_life = logs.last_life.max(found.last_life);
    }
    Ok(logs)
}

/// Nobody can say any more what this copy may hold differently: it is a new and empty one.
fn forgotten(record: &Record, random: &mut Prng) -> Record {
    Record {
        voter: VoterId(random.id()),
        incarnation: Incarnation(random.id()),
        life: record.life,
        log_half: record.log_half,
        boot: record.boot,
        slot_generation: record.slot_generation,
        stores: record.stores,
        committed: record.committed.clone(),
        ..Record::default()
    }
}

/// Bitmap pages of the present generation of each slot. Nothing of one that cannot be believed.
fn read_bitmaps(slots: &[Slot], pages: &[(VolumeId, MetaPage, Option<Page>)]) -> Vec<BitmapFound> {
    let mut found = Vec::new();
    for (volume, place, bytes) in pages {
        let &MetaPage::Bitmap { slot: number, page } = place else { continue };
        let Some(slot) = slots.iter().find(|slot| slot.number == number) else { continue };
        let read = bytes
            .as_ref()
            .ok_or(BadMetadata::Unreadable)
            .and_then(|bytes| decode_bitmap_page(*volume, number, page, bytes));
        match read {
            Ok((generation, runs)) if generation == slot.generation => {
                found.push((slot.node, *volume, page, Some(runs)));
            }
            Ok(_) => {}
            Err(_) => found.push((slot.node, *volume, page, None)),
        }
    }
    found
}

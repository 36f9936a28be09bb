//! Which blocks absent replicas lack.
//!
//! One bit per block per peer, kept sparse: a page of bits exists only where it is neither all clear
//! nor all set. So 4 KiB of memory stand for 124 MiB of a volume and one absent peer at most, 33 MiB for a
//! TiB. A bit may be set without need; it is clear only if the peer has the block.
//!
//! Pages are written to disk lazily: when an extent turns cold. Until then the activity log stands
//! for them.

use crate::disk::{BITMAP_PAGE_BITS, encode_bitmap_page};
use crate::door::{Geometry, Page, Slot};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Epoch, NodeId, VolumeId};

const WORDS: usize = 504;

#[derive(Clone, Debug)]
enum Bits {
    Clear,
    Full,
    Some(Box<[u64; WORDS]>),
}

#[derive(Clone, Debug)]
struct BitPage {
    bits: Bits,
    /// Differs from what is on disk.
    unsaved: bool,
}

/// The bits of one peer.
#[derive(Clone, Debug)]
struct PeerBits {
    /// Its `full` says what a page is that is not in `pages`.
    slot: Slot,
    /// The configuration with which they began, or the first that this process knows. What a primary says under an older
    /// one is about another copy.
    since: Epoch,
    pages: BTreeMap<(VolumeId, u64), BitPage>,
}

/// The bitmaps of one shard.
#[derive(Debug)]
pub(super) struct Bitmaps {
    block_sectors: u64,
    page_blocks: u64,
    /// Pages of this shard: those whose number leaves `index` when divided by `shards`.
    index: u64,
    shards: u64,
    peers: BTreeMap<NodeId, PeerBits>,
}

impl Bitmaps {
    pub(super) fn new(geometry: &Geometry, index: u16, shards: u16) -> Bitmaps {
        let page_blocks =
            geometry.stripe_extents * geometry.extent_sectors / geometry.block_sectors;
        assert!(page_blocks <= BITMAP_PAGE_BITS, "a stripe of extents has its bits in one page");
        Bitmaps {
            block_sectors: geometry.block_sectors,
            page_blocks,
            index: u64::from(index),
            shards: u64::from(shards),
            peers: BTreeMap::new(),
        }
    }

    /// Keeps bits for the slot's replica, as a configuration names it; under a new generation they start anew. Whether
    /// they did.
    pub(super) fn ensure(&mut self, slot: Slot, epoch: Epoch) -> bool {
        let known = self.peers.get_mut(&slot.node);
        if let Some(known) = known.filter(|peer| peer.slot.generation == slot.generation) {
            if known.since == Epoch(0) {
                known.since = epoch;
            }
            return false;
        }
        self.peers.insert(slot.node, PeerBits { slot, since: epoch, pages: BTreeMap::new() });
        true
    }

    /// Whether what a primary said of `node` under the configuration of `epoch` is about the copy that has these bits.
    pub(super) fn are_of(&self, node: NodeId, epoch: Epoch) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.since <= epoch)
    }

    /// Loads a page that was on disk: in it, nothing but these runs (in blocks, from the first block of the
    /// page) is dirty. Of `None`, one that cannot be believed, everything is, and it is to be written anew: what the disk gives
    /// for it the next time may look sound, and say less.
    pub(super) fn load(
        &mut self,
        node: NodeId,
        volume: VolumeId,
        page: u64,
        runs: Option<&[(u64, u64)]>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(runs) = runs else {
            let doubted = BitPage { bits: Bits::Full, unsaved: true };
            peer.pages.insert((volume, page), doubted);
            return;
        };
        let mut loaded = BitPage { bits: Bits::Clear, unsaved: false };
        for &(first, end) in runs {
            let end = end.min(self.page_blocks);
            if first < end {
                loaded.change(first, end, true, (first, end) == (0, self.page_blocks));
            }
        }
        loaded.unsaved = false;
        peer.pages.insert((volume, page), loaded);
    }

    /// Forgets peers for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        self.peers.retain(|&node, _| keep(node));
    }

    /// Sets or clears the bits of the sectors `first..end` (rounded outwards to set, inwards to clear).
    pub(super) fn set(
        &mut self,
        node: NodeId,
        volume: VolumeId,
        first: u64,
        end: u64,
        dirty: bool,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let (mut block, last) = if dirty {
            (first / self.block_sectors, end.div_ceil(self.block_sectors))
        } else {
            (first.div_ceil(self.block_sectors), end / self.block_sectors)
        };
        while block < last {
            let number = block / self.page_blocks;
            let page_first = number * self.page_blocks;
            let stop = last.min(page_first + self.page_blocks);
            if number % self.shards != self.index {
                block = stop;
                continue;
            }
            let whole = block == page_first && stop == page_first + self.page_blocks;
            let full = peer.slot.full;
            let page = peer.pages.entry((volume, number)).or_insert_with(|| BitPage {
                bits: if full { Bits::Full } else { Bits::Clear },
                unsaved: false,
            });
            page.change(block - page_first, stop - page_first, dirty, whole);
            page.thin_out(dirty, self.page_blocks);
            block = stop;
        }
    }

    /// The first dirty run that ends after sector `from` inside `from..end`, as sectors; it never
    /// crosses a page.
    pub(super) fn next_dirty(
        &self,
        node: NodeId,
        volume: VolumeId,
        from: u64,
        end: u64,
    ) -> Option<(u64, u64)> {
        let peer = self.peers.get(&node)?;
        if from >= end {
            return None;
        }
        let mut block = from / self.block_sectors;
        let last = end.div_ceil(self.block_sectors);
        while block < last {
            let number = block / self.page_blocks;
            let page_first = number * self.page_blocks;
            let page_end = (page_first + self.page_blocks).min(last);
            if number % self.shards != self.index {
                block = page_end;
                continue;
            }
            let found = match peer.pages.get(&(volume, number)).map(|page| &page.bits) {
                None if peer.slot.full => Some((block, page_end)),
                Some(Bits::Full) => Some((block, page_end)),
                None | Some(Bits::Clear) => None,
                Some(Bits::Some(words)) => {
                    next_run(words, block - page_first, page_end - page_first)
                        .map(|(first, end)| (page_first + first, page_first + end))
                }
            };
            if let Some((first, stop)) = found {
                let first = (first * self.block_sectors).max(from);
                return Some((first, (stop * self.block_sectors).min(end)));
            }
            block = page_end;
        }
        None
    }

    /// Number of dirty sectors of `first..end`, counted in whole blocks.
    pub(super) fn dirty_sectors(&self, node: NodeId, volume: VolumeId, end: u64) -> u64 {
        let mut from = 0;
        let mut sum = 0;
        while let Some((first, stop)) = self.next_dirty(node, volume, from, end) {
            sum += stop - first;
            from = stop;
        }
        sum
    }

    /// Takes the pages that differ from disk and touch the sectors `first..end`, as (slot, page, bytes).
    /// They count as saved from now on.
    pub(super) fn take_unsaved(
        &mut self,
        volume: VolumeId,
        first: u64,
        end: u64,
    ) -> Vec<(u8, u64, Box<Page>)> {
        let page_sectors = self.page_blocks * self.block_sectors;
        let numbers = first / page_sectors..end.div_ceil(page_sectors);
        let mut pages = Vec::new();
        for peer in self.peers.values_mut() {
            let range = (volume, numbers.start)..(volume, numbers.end);
            for (&(_, number), page) in peer.pages.range_mut(range) {
                if page.unsaved {
                    page.unsaved = false;
                    pages.push((peer.slot.number, number, page.bytes(volume, peer.slot, number)));
                }
            }
        }
        pages
    }

    /// A page that was taken could not be saved.
    pub(super) fn not_saved(&mut self, volume: VolumeId, slot: u8, number: u64) {
        for peer in self.peers.values_mut().filter(|peer| peer.slot.number == slot) {
            if let Some(page) = peer.pages.get_mut(&(volume, number)) {
                page.unsaved = true;
            }
        }
    }

    /// Every page that differs from disk, as (volume, page number).
    pub(super) fn unsaved(&self) -> Vec<(VolumeId, u64)> {
        let mut keys: Vec<(VolumeId, u64)> = self
            .peers
            .values()
            .flat_map(|peer| peer.pages.iter())
            .filter(|(_, page)| page.unsaved)
            .map(|(&key, _)| key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Bytes of memory that bits take.
    #[cfg(test)]
    pub(super) fn bits_bytes(&self) -> usize {
        let pages = self.peers.values().flat_map(|peer| peer.pages.values());
        pages.filter(|page| matches!(page.bits, Bits::Some(_))).count() * WORDS * 8
    }

    /// Sectors of one page.
    pub(super) fn page_sectors(&self) -> u64 {
        self.page_blocks * self.block_sectors
    }
}

impl BitPage {
    fn change(&mut self, first: u64, end: u64, dirty: bool, whole: bool) {
        if whole {
            self.bits = if dirty { Bits::Full } else { Bits::Clear };
            self.unsaved = true;
            return;
        }
        let words = match &mut self.bits {
            Bits::Full if dirty => return,
            Bits::Clear if !dirty => return,
            Bits::Some(words) => words,
            bits @ (Bits::Full | Bits::Clear) => {
                let fill = if matches!(bits, Bits::Full) { u64::MAX } else { 0 };
                *bits = Bits::Some(Box::new([fill; WORDS]));
                let Bits::Some(words) = bits else { unreachable!("set on the line above") };
                words
            }
        };
        let mut changed = false;
        for bit in first..end {
            let word = &mut words[usize::try_from(bit / 64).expect("a page has 504 words")];
            let mask = 1 << (bit % 64);
            let before = *word;
            *word = if dirty { before | mask } else { before & !mask };
            changed |= *word != before;
        }
        self.unsaved |= changed;
    }

    /// Gives the bits' memory back if the last change, to this, has made all of the page's blocks alike.
    fn thin_out(&mut self, dirty: bool, blocks: u64) {
        let Bits::Some(words) = &self.bits else { return };
        let (same, other) = if dirty { (u64::MAX, Bits::Full) } else { (0, Bits::Clear) };
        let whole = usize::try_from(blocks / 64).expect("a page has 504 words");
        let rest = (1 << (blocks % 64)) - 1;
        // Most pages tell it by a word in which they differ, at the end where writes in order come last.
        let is_alike = (rest == 0 || words[whole] & rest == same & rest)
            && words[..whole].iter().rev().all(|&word| word == same);
        if is_alike {
            self.bits = other;
        }
    }

    fn bytes(&self, volume: VolumeId, slot: Slot, number: u64) -> Box<Page> {
        let words: &[u64] = match &self.bits {
            Bits::Clear => &[],
            Bits::Full => &[u64::MAX; WORDS],
            Bits::Some(words) => &words[..],
        };
        encode_bitmap_page(volume, slot.number, number, slot.generation, words)
    }
}

/// The first run of set bits in `first..end`.
fn next_run(words: &[u64; WORDS], first: u64, end: u64) -> Option<(u64, u64)> {
    let word_at = |bit: u64| words[usize::try_from(bit / 64).expect("a page has 504 words")];
    let mut bit = first;
    loop {
        if bit >= end {
            return None;
        }
        let rest = word_at(bit) >> (bit % 64);
        if rest == 0 {
            bit = (bit / 64 + 1) * 64;
            continue;
        }
        bit += u64::from(rest.trailing_zeros());
        break;
    }
    if bit >= end {
        return None;
    }
    let start = bit;
    while bit < end {
        let rest = !(word_at(bit) >> (bit % 64));
        let ones = u64::from(rest.trailing_zeros()).min(64 - bit % 64);
        bit += ones;
        if !bit.is_multiple_of(64) || ones == 0 {
            break;
        }
    }
    Some((start, bit.min(end)))
}

//! What bits of absent replicas take of memory.

use super::super::bitmap::Bitmaps;
use crate::door::{Geometry, Slot};
use base::{Epoch, NodeId, Prng, VolumeId, VoterId};

const VOLUME: VolumeId = VolumeId(0);
const GIB_SECTORS: u64 = (1 << 30) / 512;
/// Blocks of a page, and its bytes in memory.
const PAGE_BLOCKS: u64 = 31_744;
const PAGE_BYTES: usize = 4032;

/// Bitmaps of these absent replicas, all clear.
fn bitmaps(nodes: &[u16]) -> Bitmaps {
    let mut bitmaps = Bitmaps::new(&Geometry::default(), 0, 1);
    for (number, &node) in (0..).zip(nodes) {
        let voter = VoterId(u64::from(node));
        bitmaps.ensure(
            Slot { node: NodeId(node), voter, number, generation: 1, full: false },
            Epoch(0),
        );
    }
    bitmaps
}

/// Sets or clears one block.
fn set(bitmaps: &mut Bitmaps, node: u16, block: u64, dirty: bool) {
    bitmaps.set(NodeId(node), VOLUME, block * 8, block * 8 + 8, dirty);
}

#[test]
fn however_scattered_bits_take_33_mib_for_a_tib_and_absent_replica_at_most() {
    let mut bitmaps = bitmaps(&[2, 3]);
    let (size_gib, mut random) = (64, Prng::new(7));
    let blocks = size_gib * GIB_SECTORS / 8;
    for _ in 0..200_000 {
        let block = random.below(blocks);
        set(&mut bitmaps, 2, block, true);
        set(&mut bitmaps, 3, block, true);
    }
    let pages = usize::try_from(blocks.div_ceil(PAGE_BLOCKS)).expect("few");
    assert_eq!(bitmaps.bits_bytes(), 2 * pages * PAGE_BYTES, "every page has some");
    let bound_bytes = 2 * (33 << 20) * usize::try_from(size_gib).expect("few") / 1024;
    assert!(bitmaps.bits_bytes() <= bound_bytes, "{} bytes", bitmaps.bits_bytes());
}

#[test]
fn a_page_of_which_all_or_nothing_is_dirty_takes_nothing() {
    let mut bitmaps = bitmaps(&[2]);
    let page = 3 * PAGE_BLOCKS;
    // In no order: 7 divides nothing of it.
    let order = |at: u64| page + at * 7 % PAGE_BLOCKS;
    for at in 0..PAGE_BLOCKS {
        assert_eq!(bitmaps.bits_bytes(), if at > 0 { PAGE_BYTES } else { 0 });
        set(&mut bitmaps, 2, order(at), true);
    }
    let all = (page * 8, (page + PAGE_BLOCKS) * 8);
    assert_eq!(bitmaps.bits_bytes(), 0, "all of it is dirty");
    assert_eq!(bitmaps.next_dirty(NodeId(2), VOLUME, 0, u64::MAX / 2), Some(all));
    assert_eq!(bitmaps.take_unsaved(VOLUME, all.0, all.1).len(), 1, "it is still to be saved");
    for at in 0..PAGE_BLOCKS {
        set(&mut bitmaps, 2, order(at), false);
    }
    assert_eq!(bitmaps.bits_bytes(), 0, "nothing of it is");
    assert_eq!(bitmaps.dirty_sectors(NodeId(2), VOLUME, all.1), 0);
    assert_eq!(bitmaps.take_unsaved(VOLUME, all.0, all.1).len(), 1, "and that is to be saved, too");
}

#[test]
fn a_page_that_cannot_be_believed_is_all_dirty_and_is_written_anew() {
    let mut bitmaps = bitmaps(&[2]);
    let page = (3 * PAGE_BLOCKS * 8, 4 * PAGE_BLOCKS * 8);
    bitmaps.load(NodeId(2), VOLUME, 3, None);
    bitmaps.load(NodeId(2), VOLUME, 5, Some(&[(0, 7)]));
    assert_eq!(bitmaps.next_dirty(NodeId(2), VOLUME, 0, page.1), Some(page));
    // The disk may give another one for it the next time, which looks sound, and is old.
    assert_eq!(bitmaps.unsaved(), [(VOLUME, 3)], "what was read well is there");
    let saved = bitmaps.take_unsaved(VOLUME, page.0, page.1);
    assert_eq!(saved.len(), 1);
    assert!(saved[0].2.contains(&0xff), "it says that all is dirty");
}

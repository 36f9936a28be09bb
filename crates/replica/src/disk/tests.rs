//! Tests of the bytes on disk: what is written is read, what is damaged is found.

use super::{
    BadMetadata, LOG_PAGE_EXTENTS_MAX, Layout, decode_log_page, encode_log_page, hot_extents,
};
use crate::door::{MetaPage, Page};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::VolumeId;

fn extents(numbers: &[u64]) -> Vec<(VolumeId, u64)> {
    numbers.iter().map(|&number| (VolumeId(0), number)).collect()
}

fn place(half: u8, page: u32, copy: u8) -> MetaPage {
    MetaPage::Log { half, page, copy }
}

#[test]
fn a_full_log_page_is_read_as_it_was_written() {
    let count = u64::try_from(LOG_PAGE_EXTENTS_MAX).expect("small");
    let all: Vec<_> = (0..count).map(|number| (VolumeId(3), u64::MAX - number)).collect();
    let bytes = encode_log_page(1, 7, 1, 42, 9, &all);
    let found = decode_log_page(1, 7, 1, &bytes).expect("just written");
    assert_eq!((found.sequence, found.life, found.extents), (42, 9, all));
}

#[test]
fn every_flipped_bit_of_a_log_page_is_found() {
    let bytes = encode_log_page(0, 2, 0, 1, 1, &extents(&[5, 6]));
    for position in 0..4096 * 8 {
        let mut broken = bytes.clone();
        broken[position / 8] ^= 1 << (position % 8);
        let found = decode_log_page(0, 2, 0, &broken);
        assert!(found.is_err(), "bit {position} was not missed");
    }
}

#[test]
fn a_log_page_that_went_astray_is_found() {
    let bytes = encode_log_page(0, 2, 0, 1, 1, &extents(&[5]));
    for (half, page, copy) in [(1, 2, 0), (0, 3, 0), (0, 2, 1)] {
        assert_eq!(decode_log_page(half, page, copy, &bytes), Err(BadMetadata::Misplaced));
    }
}

#[test]
fn hot_extents_come_from_the_newest_valid_copy_of_this_life() {
    let zero: Page = [0; 4096];
    let mut torn = *encode_log_page(0, 1, 1, 5, 4, &extents(&[99]));
    torn[2000..].fill(7);
    let pages = alloc::vec![
        (place(0, 0, 0), Some(*encode_log_page(0, 0, 0, 3, 4, &extents(&[1, 2])))),
        (place(0, 0, 1), Some(*encode_log_page(0, 0, 1, 2, 4, &extents(&[1])))),
        (place(0, 1, 0), Some(*encode_log_page(0, 1, 0, 4, 4, &extents(&[8, 2])))),
        (place(0, 1, 1), Some(torn)),
        // Left by an older life, though its sequence is high.
        (place(0, 2, 0), Some(*encode_log_page(0, 2, 0, 77, 2, &extents(&[50])))),
        (place(0, 2, 1), Some(zero)),
        // A start that did not come to its end.
        (place(1, 0, 0), Some(*encode_log_page(1, 0, 0, 1, 5, &extents(&[60])))),
    ];
    let found = hot_extents(&pages, 0, 4).expect("each page has a valid copy");
    assert_eq!(found.extents, extents(&[1, 2, 8]));
    assert_eq!((found.writes, found.last_life), (7, 5));
}

#[test]
fn a_log_page_without_a_valid_copy_is_not_guessed() {
    let mut torn = *encode_log_page(0, 0, 0, 5, 4, &extents(&[9]));
    torn[100] ^= 1;
    let both = alloc::vec![(place(0, 0, 0), Some(torn)), (place(0, 0, 1), Some(torn))];
    assert!(hot_extents(&both, 0, 4).is_err());
    let unread = alloc::vec![(place(0, 0, 0), Some([0; 4096])), (place(0, 0, 1), None)];
    assert_eq!(hot_extents(&unread, 0, 4), Err(BadMetadata::Unreadable));
    assert!(hot_extents(&both, 1, 4).is_ok(), "the other half was not asked for");
}

#[test]
fn no_two_pages_of_a_layout_share_a_place() {
    let layout = Layout::new(3 * 32_768 * 8 + 1, 2);
    assert_eq!(layout.bitmap_pages, 4);
    let mut places: Vec<u64> = layout.log_places().map(|page| layout.page_offset(page)).collect();
    for slot in 0..2 {
        for page in 0..4 {
            places.push(layout.page_offset(MetaPage::Bitmap { slot, page }));
        }
    }
    places.extend((0..4).map(|page| layout.record_offset(0) + page * 4096));
    places.extend((0..4).map(|page| layout.record_offset(1) + page * 4096));
    places.push(layout.superblock);
    let distinct: BTreeSet<u64> = places.iter().copied().collect();
    assert_eq!(distinct.len(), places.len());
    assert_eq!(layout.total_bytes, 4096 * u64::try_from(places.len()).expect("small"));
}

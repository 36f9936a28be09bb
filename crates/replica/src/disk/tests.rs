//! Tests of the bytes on disk: what is written is read, what is damaged is found.

use super::{
    AreaPlace, BadMetadata, LOG_PAGE_EXTENTS_MAX, Layout, RECORD_BYTES, Record, Region, RegionKind,
    SUMS_BLOCKS, Superblock, decode_bitmap_page, decode_log_page, decode_sums, encode_bitmap_page,
    encode_log_page, encode_sums, hot_extents, newest_record,
};
use crate::door::{MetaPage, Page, Slot};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Ballot, ClusterId, Epoch, Incarnation, NodeId, ResourceId, VolumeId, VoterId};
use wire::{Configuration, Life, MemberEntry, MemberKind, Options, Seen, VolumeEntry};

/// Whose pages they are where a test speaks of one volume.
const VOLUME: VolumeId = VolumeId(0);

fn numbered(numbers: &[u64]) -> Vec<(VolumeId, u64)> {
    numbers.iter().map(|&number| (VOLUME, number)).collect()
}

fn place(half: u8, page: u32, copy: u8) -> MetaPage {
    MetaPage::Log { half, page, copy }
}

#[test]
fn a_full_log_page_is_read_as_it_was_written() {
    let count = u64::try_from(LOG_PAGE_EXTENTS_MAX).expect("small");
    let all: Vec<u64> = (0..count).map(|number| u64::MAX - number).collect();
    let bytes = encode_log_page(VolumeId(3), 1, 7, 1, 42, 9, &all);
    let found = decode_log_page(VolumeId(3), 1, 7, 1, &bytes).expect("just written");
    let all = all.into_iter().map(|number| (VolumeId(3), number)).collect();
    assert_eq!((found.sequence, found.life, found.extents), (42, 9, all));
}

#[test]
fn every_flipped_bit_of_a_log_page_is_found() {
    let bytes = encode_log_page(VOLUME, 0, 2, 0, 1, 1, &[5, 6]);
    for position in 0..4096 * 8 {
        let mut broken = bytes.clone();
        broken[position / 8] ^= 1 << (position % 8);
        let found = decode_log_page(VOLUME, 0, 2, 0, &broken);
        assert!(found.is_err(), "bit {position} was not missed");
    }
}

#[test]
fn a_log_page_that_went_astray_is_found() {
    let bytes = encode_log_page(VOLUME, 0, 2, 0, 1, 1, &[5]);
    for (half, page, copy) in [(1, 2, 0), (0, 3, 0), (0, 2, 1)] {
        assert_eq!(decode_log_page(VOLUME, half, page, copy, &bytes), Err(BadMetadata::Misplaced));
    }
}

#[test]
fn hot_extents_come_from_the_newest_valid_copy_of_this_life() {
    let zero: Page = [0; 4096];
    let mut torn = *encode_log_page(VOLUME, 0, 1, 1, 5, 4, &[99]);
    torn[2000..].fill(7);
    let pages = alloc::vec![
        (place(0, 0, 0), Some(*encode_log_page(VOLUME, 0, 0, 0, 3, 4, &[1, 2]))),
        (place(0, 0, 1), Some(*encode_log_page(VOLUME, 0, 0, 1, 2, 4, &[1]))),
        (place(0, 1, 0), Some(*encode_log_page(VOLUME, 0, 1, 0, 4, 4, &[8, 2]))),
        (place(0, 1, 1), Some(torn)),
        // Left by an older life, though its sequence is high.
        (place(0, 2, 0), Some(*encode_log_page(VOLUME, 0, 2, 0, 77, 2, &[50]))),
        (place(0, 2, 1), Some(zero)),
        // A start that did not come to its end.
        (place(1, 0, 0), Some(*encode_log_page(VOLUME, 1, 0, 0, 1, 5, &[60]))),
    ];
    let found = hot_extents(VOLUME, &pages, 0, 4).expect("each page has a valid copy");
    assert_eq!(found.extents, numbered(&[1, 2, 8]));
    assert_eq!((found.writes, found.last_life), (7, 5));
}

#[test]
fn a_log_page_without_a_valid_copy_is_not_guessed() {
    let mut torn = *encode_log_page(VOLUME, 0, 0, 0, 5, 4, &[9]);
    torn[100] ^= 1;
    let both = alloc::vec![(place(0, 0, 0), Some(torn)), (place(0, 0, 1), Some(torn))];
    assert!(hot_extents(VOLUME, &both, 0, 4).is_err());
    let unread = alloc::vec![(place(0, 0, 0), Some([0; 4096])), (place(0, 0, 1), None)];
    assert_eq!(hot_extents(VOLUME, &unread, 0, 4), Err(BadMetadata::Unreadable));
    assert!(hot_extents(VOLUME, &both, 1, 4).is_ok(), "the other half was not asked for");
}

#[test]
fn a_log_page_of_another_volume_is_not_believed() {
    let own = *encode_log_page(VOLUME, 0, 0, 0, 2, 4, &[1]);
    for extents in [&[7][..], &[]] {
        let other = *encode_log_page(VolumeId(1), 0, 0, 1, 9, 4, extents);
        let both = alloc::vec![(place(0, 0, 0), Some(own)), (place(0, 0, 1), Some(other))];
        let found = hot_extents(VOLUME, &both, 0, 4).expect("one is good");
        assert_eq!((found.extents, found.writes), (numbered(&[1]), 2), "beside {extents:?}");
    }
}

#[test]
fn a_log_page_that_does_not_name_its_volume_is_judged_by_its_extents() {
    let first = include_bytes!("../../fixtures/log-1.bin");
    assert!(decode_log_page(VOLUME, 1, 3, 0, first).is_ok());
    assert_eq!(decode_log_page(VolumeId(1), 1, 3, 0, first), Err(BadMetadata::Misplaced));
}

#[test]
fn a_bitmap_page_of_another_volume_is_not_believed() {
    let page = encode_bitmap_page(VolumeId(u16::MAX), 2, 5, 6, &[1]);
    assert!(decode_bitmap_page(VolumeId(u16::MAX), 2, 5, &page).is_ok());
    assert_eq!(decode_bitmap_page(VOLUME, 2, 5, &page), Err(BadMetadata::Misplaced));
}

#[test]
fn no_two_pages_of_a_layout_share_a_place() {
    let layout = Layout::new(3 * 31 * 1024 * 8 + 1, 2);
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
    let extents = (3 * 31 * 1024 * 8 + 1_u64).div_ceil(8192);
    places.extend(
        (0..extents)
            .flat_map(|extent| [layout.sums_offset(extent), layout.sums_offset(extent) + 4096]),
    );
    let distinct: BTreeSet<u64> = places.iter().copied().collect();
    assert_eq!(distinct.len(), places.len());
    assert_eq!(layout.total_bytes, 4096 * u64::try_from(places.len()).expect("small"));
}

fn configuration() -> Configuration {
    let member = |node: u16, kind, in_sync| MemberEntry {
        node: NodeId(node),
        kind,
        voter: VoterId(u64::from(node) * 11),
        in_sync,
        incarnation: Incarnation(u64::from(node) * 13),
    };
    let members = alloc::vec![
        member(1, MemberKind::Replica, true),
        member(2, MemberKind::Replica, false),
        member(3, MemberKind::Witness, false),
    ];
    let volume = VolumeId(0);
    let volume = VolumeEntry { volume, sectors: 1 << 21, grows_to: None, block_bytes: 4096 };
    Configuration {
        epoch: Epoch(9),
        reign: Epoch(7),
        primary: Some(NodeId(2)),
        feature_level: 1,
        ..Configuration::first(members, alloc::vec![volume], Options::default())
    }
}

fn record() -> Record {
    let slot = Slot { node: NodeId(2), voter: VoterId(22), number: 0, generation: 5, full: true };
    Record {
        voter: VoterId(11),
        incarnation: Incarnation(13),
        life: 4,
        lives: alloc::vec![
            Life { number: 2, process: 70, writes: 31 },
            Life { number: 4, process: 71, writes: u64::MAX },
        ],
        log_half: 1,
        promised: Ballot { round: 6, node: NodeId(2) },
        accepted: Some((Ballot { round: 6, node: NodeId(2) }, Box::new(configuration()))),
        committed: Some((Ballot { round: 5, node: NodeId(1) }, Box::new(configuration()))),
        slots: alloc::vec![slot],
        slot_generation: 5,
        seen: alloc::vec![Seen {
            node: NodeId(2),
            voter: VoterId(22),
            life: Life { number: 3, process: 77, writes: 99 },
            epoch: Epoch(8),
        }],
        boot: 1 << 100,
        clean: true,
        in_memory: true,
        marked: true,
        shrunk: Epoch(0),
        unsure: false,
        stores: 41,
    }
}

fn superblock() -> Superblock {
    let layout = Layout::new(1 << 21, 7);
    Superblock {
        compatible: 1 << 63,
        cluster: ClusterId(1),
        resource: ResourceId(2),
        volume: VolumeId(3),
        disk: 4,
        place: AreaPlace::External,
        slots: 7,
        sectors: 1 << 21,
        regions: Superblock::regions_of(&layout),
        ..Superblock::default()
    }
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let bytes = record().encode();
    assert_eq!(bytes.len() % 4096, 0);
    assert!(bytes.len() as u64 <= RECORD_BYTES);
    assert_eq!(Record::decode(&bytes), Ok(record()));
    let mut place = bytes.clone();
    place.resize(16 * 1024, 0xee);
    assert_eq!(Record::decode(&place), Ok(record()), "what follows a copy does not matter");
}

#[test]
fn no_torn_or_rotten_record_is_believed() {
    let bytes = record().encode();
    for position in 0..bytes.len() * 8 {
        let mut broken = bytes.clone();
        broken[position / 8] ^= 1 << (position % 8);
        assert!(Record::decode(&broken).is_err(), "bit {position} was not missed");
    }
    for sectors in 0..bytes.len() / 512 {
        assert!(Record::decode(&bytes[..sectors * 512]).is_err());
    }
    assert_eq!(Record::decode(&[0; 4096]), Err(BadMetadata::NotOurs));
}

#[test]
fn the_copy_that_was_stored_more_often_is_the_newest() {
    let old = record().encode();
    let newer = Record { stores: 42, life: 5, ..record() }.encode();
    assert_eq!(newest_record(&[Some(&newer), Some(&old)]).expect("both valid").life, 5);
    let mut torn = newer.clone();
    torn[600] ^= 1;
    assert_eq!(newest_record(&[Some(&torn), Some(&old)]).expect("one valid").life, 4);
    assert_eq!(newest_record(&[Some(&torn), None]), Err(BadMetadata::Unreadable));
    assert_eq!(newest_record(&[Some(&[0; 4096]), Some(&[0; 4096])]), Err(BadMetadata::NotOurs));
    assert_ne!(record().copy(), Record { stores: 42, ..record() }.copy());
}

#[test]
fn a_record_of_a_newer_version_is_not_taken_for_torn() {
    let mut bytes = record().encode();
    bytes[8] = 2;
    let end = bytes.len() - 4;
    let checksum = base::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Record::decode(&bytes), Err(BadMetadata::TooNew { format: 2 }));
    let old = record().encode();
    assert!(newest_record(&[Some(&old), Some(&bytes)]).is_err(), "it went back to an old copy");
}

#[test]
fn the_largest_configuration_fits_twice_in_a_record() {
    let mut large = configuration();
    large.members = (1..=16)
        .map(|node| MemberEntry {
            node: NodeId(node),
            kind: if node <= 8 { MemberKind::Replica } else { MemberKind::Witness },
            voter: VoterId(u64::from(node)),
            in_sync: node <= 8,
            incarnation: Incarnation(1),
        })
        .collect();
    large.volumes = (0..64)
        .map(|volume| VolumeEntry {
            volume: VolumeId(volume),
            sectors: 8,
            grows_to: Some(16),
            block_bytes: 512,
        })
        .collect();
    let first = Record::first(&large, NodeId(3), 1).expect("a member");
    let value = Some((Ballot::default(), Box::new(large)));
    let life = |number| Life { number, process: 1, writes: 1 };
    let seen =
        |node| Seen { node: NodeId(node), voter: VoterId(1), life: life(1), epoch: Epoch(1) };
    let full = Record {
        accepted: value.clone(),
        committed: value,
        lives: (1..=64).map(life).collect(),
        seen: (0..64).map(seen).collect(),
        ..first
    };
    assert_eq!(Record::decode(&full.encode()), Ok(full));
}

#[test]
fn a_superblock_is_read_as_it_was_written_and_refused_when_not_understood() {
    let bytes = superblock().encode();
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
    assert_eq!(superblock().unwritable(), 0);
    assert_eq!(Superblock { read_only: 6, ..superblock() }.unwritable(), 6);
    let strange = Superblock { incompatible: 5, ..superblock() }.encode();
    assert_eq!(Superblock::decode(&strange), Err(BadMetadata::UnknownFeatures { bits: 5 }));
    for position in 0..4096 * 8 {
        let mut broken = bytes.clone();
        broken[position / 8] ^= 1 << (position % 8);
        assert!(Superblock::decode(&broken).is_err(), "bit {position} was not missed");
    }
}

#[test]
fn a_layout_other_than_replica_is_refused_by_its_number() {
    // 2 is reserved for `stripe`.
    for kind in 2..=255 {
        let mut bytes = superblock().encode();
        bytes[384] = kind;
        let checksum = base::crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Err(BadMetadata::UnknownLayout { kind }));
    }
}

#[test]
fn a_region_without_a_use_here_is_kept_and_the_masks_say_whether_the_disk_may_be_used() {
    let mut with_journal = superblock();
    let offset = Layout::new(1 << 21, 7).total_bytes;
    let (journal, map) = (RegionKind::Other(5), RegionKind::Other(6));
    for (kind, at) in [(journal, 0), (map, 4096), (RegionKind::Other(999), 8192)] {
        with_journal.regions.push(Region { kind, offset: offset + at, length: 4096 });
    }
    let found = Superblock::decode(&with_journal.encode());
    assert_eq!(found.as_ref(), Ok(&with_journal), "as long as no bit says otherwise");
    assert_eq!(found.map(|found| found.unwritable()), Ok(0));
    with_journal.incompatible = 1 << 40;
    let found = Superblock::decode(&with_journal.encode());
    assert_eq!(found, Err(BadMetadata::UnknownFeatures { bits: 1 << 40 }));
}

fn sums() -> Vec<u32> {
    (0..u32::try_from(SUMS_BLOCKS).expect("small")).map(|block| block * 77).collect()
}

#[test]
fn checksums_of_an_extent_are_read_as_they_were_written_and_unknown_when_damaged() {
    let pages = encode_sums(9, &sums());
    assert_eq!(decode_sums(9, 0, &pages[0])[..], sums()[..512]);
    assert_eq!(decode_sums(9, 1, &pages[1])[..], sums()[512..]);
    assert_eq!(decode_sums(8, 0, &pages[0]), [0; 512], "another extent's page");
    assert_eq!(decode_sums(9, 1, &pages[0]), [0; 512], "the other page");
    let mut broken = pages[0].clone();
    broken[100] ^= 1;
    assert_eq!(decode_sums(9, 0, &broken), [0; 512]);
    assert_eq!(decode_sums(9, 0, &[0; 4096]), [0; 512], "a page never written");
}

#[test]
fn a_record_says_when_a_volume_last_became_smaller_and_what_its_copy_is_worth() {
    for (shrunk, unsure) in [(1 << 40, false), (0, true), (1 << 40, true)] {
        let said = Record { shrunk: Epoch(shrunk), unsure, ..record() };
        assert_eq!(Record::decode(&said.encode()), Ok(said));
    }
}

/// A record with so many slots, lives and lives of others, and the bytes of it without what earlier releases did not write.
fn earlier([slots, lives, seen]: [u64; 3]) -> (Record, Vec<u8>) {
    const ADDED: usize = 1 + 8 + 1;
    let life = |number| Life { number, process: 1, writes: 1 };
    let slot = |_| Slot { full: true, ..record().slots[0] };
    let heard = |number| Seen { life: life(number), ..record().seen[0] };
    let old = Record {
        slots: (0..slots).map(slot).collect(),
        lives: (0..lives).map(life).collect(),
        seen: (0..seen).map(heard).collect(),
        marked: false,
        ..record()
    };
    let mut bytes = Record { unsure: true, ..old.clone() }.encode();
    bytes.truncate(bytes.len() - super::bytes::CHECKSUM_BYTES);
    let end = 1 + bytes.iter().rposition(|byte| *byte != 0).expect("it is unsure");
    bytes.truncate(end - ADDED);
    (old, bytes)
}

/// What was added since may have had no room any more on the last page of what they wrote.
#[test]
fn a_record_of_an_earlier_release_ends_where_its_last_page_does() {
    const PAGE: usize = 4096;
    let length = |count| earlier(count).1.len();
    let none = length([0; 3]);
    let [slot, life, heard] =
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(|count| (length(count) - none) as u64);
    let mut tried = 0;
    for room in 0..=10 {
        let mut counts = (0..64 * 64 * 64).map(|n: u64| [n % 64, n / 64 % 64, n / 64 / 64]);
        let fits = |[slots, lives, seen]: &[u64; 3]| {
            let more = slots * slot + lives * life + seen * heard;
            let length = none + usize::try_from(more).expect("small");
            (length + room + super::bytes::CHECKSUM_BYTES).is_multiple_of(PAGE)
        };
        // All three have even lengths.
        let Some(count) = counts.find(fits) else { continue };
        let (old, mut bytes) = earlier(count);
        let length = bytes.len() + room + super::bytes::CHECKSUM_BYTES;
        bytes[12..16].copy_from_slice(&u32::try_from(length).expect("small").to_le_bytes());
        super::bytes::seal(&mut bytes, length);
        assert_eq!(Record::decode(&bytes), Ok(old), "room for {room} bytes");
        tried += 1;
    }
    assert!(tried >= 5, "{tried}");
}

#[test]
fn fixtures_of_version_1_are_read_for_ever() {
    let found = Record::decode(include_bytes!("../../fixtures/record-1.bin"));
    assert_eq!(found, Ok(Record { marked: false, ..record() }), "of a release without marks");
    let found = Record::decode(include_bytes!("../../fixtures/record-1-marked.bin"));
    assert_eq!(found, Ok(record()));
    let found = Superblock::decode(include_bytes!("../../fixtures/superblock-1.bin"));
    assert_eq!(found, Ok(superblock()), "the first disks say nothing of their layout");
    let found = Superblock::decode(include_bytes!("../../fixtures/superblock-1-replica.bin"));
    assert_eq!(found, Ok(superblock()));
    let logs = [
        include_bytes!("../../fixtures/log-1.bin"),
        include_bytes!("../../fixtures/log-1-volume.bin"),
    ];
    for log in logs {
        let found = decode_log_page(VOLUME, 1, 3, 0, log).expect("valid");
        assert_eq!((found.sequence, found.life, found.extents), (8, 4, numbered(&[1, 70_000])));
    }
    let bitmaps = [
        include_bytes!("../../fixtures/bitmap-1.bin"),
        include_bytes!("../../fixtures/bitmap-1-volume.bin"),
    ];
    for bitmap in bitmaps {
        let found = decode_bitmap_page(VOLUME, 2, 5, bitmap);
        assert_eq!(found, Ok((6, alloc::vec![(1, 3), (64, 65)])));
    }
}

#[test]
fn fixtures_of_version_1_are_still_written_so() {
    assert!(record().encode() == include_bytes!("../../fixtures/record-1-marked.bin"));
    let unmarked = Record { marked: false, ..record() };
    assert!(unmarked.encode() == include_bytes!("../../fixtures/record-1.bin"));
    let fixture = include_bytes!("../../fixtures/superblock-1-replica.bin");
    assert!(superblock().encode()[..] == fixture[..]);
    let log = encode_log_page(VOLUME, 1, 3, 0, 8, 4, &[1, 70_000]);
    assert!(log[..] == include_bytes!("../../fixtures/log-1-volume.bin")[..]);
    for (half, page) in encode_sums(9, &sums()).iter().enumerate() {
        let fixture = [
            include_bytes!("../../fixtures/sums-1-0.bin"),
            include_bytes!("../../fixtures/sums-1-1.bin"),
        ];
        assert!(page[..] == fixture[half][..]);
    }
    let bitmap = encode_bitmap_page(VOLUME, 2, 5, 6, &[0b110, 1]);
    assert!(bitmap[..] == include_bytes!("../../fixtures/bitmap-1-volume.bin")[..]);
}

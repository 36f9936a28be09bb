//! What is read from disks: metadata pages, and what else a disk may hold.

use crate::mutate::{index, low};
use crate::{Target, nothing, outcome};
use base::{Ballot, ClusterId, Incarnation, NodeId, Prng, ResourceId, VolumeId, VoterId, crc32c};
use replica::disk::{
    AreaPlace, LOG_PAGE_EXTENTS_MAX, Layout, RECORD_BYTES, Record, SUMS_BLOCKS, Superblock,
    decode_bitmap_page, decode_log_page, decode_sums, encode_bitmap_page, encode_log_page,
    encode_sums, hot_extents, newest_record,
};
use replica::{MetaPage, Page, Slot};

/// Whose pages of the log and of bitmaps are.
const VOLUME: VolumeId = VolumeId(3);

/// Whose disk it is.
pub(super) const SUPERBLOCK: Target = Target {
    name: "superblock",
    what: "the first page of a volume's metadata",
    valid: |random| {
        let layout = Layout::new(1 + random.below(1 << 32), 1 + low(random.below(8)));
        let superblock = Superblock {
            compatible: random.next_u64(),
            cluster: ClusterId(random.next_u64()),
            resource: ResourceId(random.next_u64()),
            volume: VolumeId(3),
            disk: random.next_u64(),
            place: AreaPlace::External,
            slots: layout.slots,
            sectors: random.next_u64(),
            regions: Superblock::regions_of(&layout),
            ..Superblock::default()
        };
        superblock.encode().to_vec()
    },
    mend: seal_page,
    judge: |input| match Superblock::decode(&page(input)) {
        Ok(found) => {
            let again = Superblock::decode(&found.encode()).expect("just encoded");
            assert_eq!(again, found, "a superblock written again says the same");
            outcome(&(found.place, found.regions.len(), found.unwritable() == 0))
        }
        Err(bad) => outcome(&bad),
    },
    words: &["LOCKSTEP"],
};

/// What a member must not forget.
pub(super) const RECORD: Target = Target {
    name: "record",
    what: "a copy of a member's record",
    valid: record,
    mend: seal_record,
    judge: |input| {
        let found = Record::decode(input);
        let copies = newest_record(&[Some(input), None, Some(&input[..input.len() / 2])]);
        match &found {
            Ok(record) => {
                let bytes = record.encode();
                assert!(bytes.len() as u64 <= RECORD_BYTES);
                assert_eq!(
                    Record::decode(&bytes).as_ref(),
                    Ok(record),
                    "written again, it says the same"
                );
                assert_eq!(copies.as_ref(), Ok(record), "of one good copy it is the newest");
                let sizes = (
                    record.slots.len().min(4),
                    record.lives.len().min(4),
                    record.seen.len().min(4),
                );
                outcome(&(sizes, record.accepted.is_some(), record.committed.is_some()))
            }
            Err(bad) => {
                assert!(copies.is_err(), "no copy is good");
                outcome(bad)
            }
        }
    },
    words: &["LOCKSREC"],
};

/// Which extents were hot.
pub(super) const LOG: Target = Target {
    name: "log",
    what: "a page of the activity log",
    valid: |random| {
        let count = index(LOG_PAGE_EXTENTS_MAX + 1, random);
        let extents: Vec<u64> = (0..count).map(|_| random.next_u64()).collect();
        encode_log_page(VOLUME, 1, 7, 1, random.next_u64(), random.below(4), &extents).to_vec()
    },
    mend: seal_page,
    judge: |input| {
        let bytes = page(input);
        let found = decode_log_page(VOLUME, 1, 7, 1, &bytes);
        for life in 0..4 {
            let place = |copy| MetaPage::Log { half: 1, page: 7, copy };
            let all = hot_extents(
                VOLUME,
                &[(place(1), Some(bytes)), (place(0), Some([0; 4096]))],
                1,
                life,
            );
            if let (Ok(page), Ok(all)) = (&found, &all) {
                assert!(page.life != life || page.life == 0 || all.writes == page.sequence);
            }
        }
        match found {
            Ok(found) => {
                if bytes != [0; 4096] {
                    let numbers: Vec<u64> =
                        found.extents.iter().map(|&(_, number)| number).collect();
                    let again =
                        encode_log_page(VOLUME, 1, 7, 1, found.sequence, found.life, &numbers);
                    assert_eq!(decode_log_page(VOLUME, 1, 7, 1, &again), Ok(found.clone()));
                }
                outcome(&found.extents.len().min(4))
            }
            Err(bad) => outcome(&bad),
        }
    },
    words: &["LOCKSLOG"],
};

/// Which blocks somebody lacks.
pub(super) const BITMAP: Target = Target {
    name: "bitmap",
    what: "a page of a dirty bitmap",
    valid: |random| {
        let words: Vec<u64> =
            (0..random.below(500)).map(|_| random.next_u64() & random.next_u64()).collect();
        encode_bitmap_page(VOLUME, 2, 5, random.next_u64(), &words).to_vec()
    },
    mend: seal_page,
    judge: |input| match decode_bitmap_page(VOLUME, 2, 5, &page(input)) {
        Ok((generation, runs)) => {
            let mut end = 0;
            for &(first, last) in &runs {
                assert!(first < last && (end == 0 || first > end), "runs ascend and do not touch");
                end = last;
            }
            assert!(end <= replica::disk::BITMAP_PAGE_BITS, "no block beyond the page");
            outcome(&(generation == 0, runs.len().min(4)))
        }
        Err(bad) => outcome(&bad),
    },
    words: &["LOCKSBIT"],
};

/// What blocks should hash to.
pub(super) const SUMS: Target = Target {
    name: "sums",
    what: "a page of block checksums",
    valid: |random| {
        let sums: Vec<u32> = (0..SUMS_BLOCKS).map(|_| u32::from(low(random.next_u64()))).collect();
        encode_sums(9, &sums)[1].to_vec()
    },
    mend: seal_page,
    judge: |input| {
        let bytes = page(input);
        let sums = decode_sums(9, 1, &bytes);
        if sums.iter().any(|&sum| sum != 0) {
            let all = [[0; SUMS_BLOCKS / 2].as_slice(), sums.as_slice()].concat();
            assert_eq!(decode_sums(9, 1, &encode_sums(9, &all)[1]), sums);
        }
        outcome(&sums.iter().any(|&sum| sum != 0))
    },
    words: &["LOCKSSUM"],
};

/// What else a disk may hold.
pub(super) const SIGNATURE: Target = Target {
    name: "signature",
    what: "both ends of a disk that is to be taken",
    valid: |random| {
        let mut bytes = vec![0; 12 << 10];
        let magics: [(usize, &[u8]); 5] = [
            (0, b"XFSB"),
            (0x200, b"LABELONE"),
            (0x438, &[0x53, 0xef]),
            (0x1fe, &[0x55, 0xaa]),
            (0xff6, b"SWAPSPACE2"),
        ];
        let (at, magic) = magics[index(magics.len(), random)];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    },
    mend: nothing,
    judge: |input| {
        let middle = input.len() / 2;
        let found = store::foreign_signature(input, &input[middle..]);
        let other = store::foreign_signature(&input[..middle], input);
        outcome(&(found, other))
    },
    words: &[
        "LOCKSTEP",
        "XFSB",
        "EFI PART",
        "LABELONE",
        "LVM2 001",
        "SWAPSPACE2",
        "NTFS    ",
        "FAT32   ",
    ],
};

/// A page that begins with `input`.
fn page(input: &[u8]) -> Page {
    let mut page = [0; 4096];
    let length = input.len().min(4096);
    page[..length].copy_from_slice(&input[..length]);
    page
}

fn seal_page(bytes: &mut Vec<u8>) {
    bytes.resize(4096, 0);
    seal(bytes);
}

/// The checksum stands in the last four bytes.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let checksum = crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// Whole pages, and the length stated that they have.
fn seal_record(bytes: &mut Vec<u8>) {
    let length = bytes.len().next_multiple_of(4096).max(4096);
    bytes.resize(length, 0);
    bytes[12..16].copy_from_slice(&u32::try_from(length).expect("a short input").to_le_bytes());
    seal(bytes);
}

fn record(random: &mut Prng) -> Vec<u8> {
    let configuration = super::files::configuration();
    let ballot = Ballot { round: random.next_u64(), node: NodeId(3) };
    let life = |random: &mut Prng| wire::Life {
        number: random.next_u64(),
        process: random.next_u64(),
        writes: random.next_u64(),
    };
    let slot = |number: u8| Slot {
        node: NodeId(u16::from(number) + 1),
        voter: VoterId(random.next_u64()),
        number,
        generation: 3,
        full: number == 1,
    };
    let slots: Vec<Slot> = (0..3).map(slot).collect();
    let lives = (0..random.below(65)).map(|_| life(random)).collect();
    let seen = (0..random.below(4))
        .map(|_| wire::Seen {
            node: NodeId(4),
            voter: VoterId(random.next_u64()),
            life: life(random),
            epoch: base::Epoch(5),
        })
        .collect();
    let record = Record {
        voter: VoterId(random.next_u64()),
        incarnation: Incarnation(random.next_u64()),
        life: 3,
        lives,
        promised: ballot,
        accepted: Some((ballot, Box::new(configuration.clone()))),
        committed: random.once_in(2).then(|| (ballot, Box::new(configuration))),
        slots,
        slot_generation: 4,
        seen,
        boot: u128::from(random.next_u64()),
        stores: random.next_u64(),
        ..Record::default()
    };
    record.encode()
}

//! What stores promise: on files, loop devices and memory, with and without faults.
#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::{Duration, Prng};
use sys::{Buffer, BufferPool, Errno, Event, Hands, HandsConfig, MappedKind, Payload, Piece};

use crate::disk::Backing;
use crate::{
    FIRST_BYTES, FaultKind, FaultSpec, LAST_BYTES, MetadataPlace, OUR_MAGIC, Store, StoreError,
    StoreSpec, create_file, foreign_signature, is_zero, size_of,
};

const MIB: u64 = 1 << 20;

/// A directory of its own for a test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch::below(&std::env::temp_dir())
    }

    fn below(directory: &Path) -> Scratch {
        let name = format!("lockstep-store-{:016x}", sys::random_u64());
        let path = directory.join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// A sparse file of this many bytes.
    fn file(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        create_file(&path, size_bytes, false).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A store, its hands and buffers.
struct Bench {
    hands: Hands,
    pool: BufferPool,
    store: Store,
}

impl Bench {
    fn new(spec: StoreSpec) -> Bench {
        let hands = Hands::new(HandsConfig::default()).unwrap();
        let store = Store::open(spec).unwrap();
        Bench { hands, pool: BufferPool::new(16 << 20), store }
    }

    /// The event of the operation that was just begun.
    fn answer(&mut self) -> Event {
        let mut events = Vec::new();
        while events.is_empty() {
            self.hands.wait(Some(Duration::from_secs(20)), &mut events).unwrap();
        }
        assert_eq!(events.len(), 1, "one operation, one event");
        events.remove(0)
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take(bytes.len()).unwrap();
        buffer.as_mut().unwrap().copy_from_slice(bytes);
        buffer
    }

    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> Result<u32, Errno> {
        let piece = Piece::from(self.buffer(bytes));
        self.store.write(&mut self.hands, 1, offset, piece, durable);
        self.answer().result
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let buffer = self.pool.take(length).unwrap();
        self.store.read(&mut self.hands, 2, offset, buffer, 0..length);
        let event = self.answer();
        let Payload::Buffer(buffer) = event.payload else { panic!("a read gives its buffer back") };
        event.result.map(|_| buffer.to_vec())
    }

    fn zero(&mut self, offset: u64, length: u64, unmap: bool) -> Result<u32, Errno> {
        self.store.zero(&mut self.hands, 3, offset, length, unmap, false);
        self.answer().result
    }

    fn flush(&mut self) -> Result<u32, Errno> {
        self.store.flush(&mut self.hands, 4);
        self.answer().result
    }

    fn write_metadata(&mut self, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let piece = Piece::from(self.buffer(bytes));
        self.store.write_metadata(&mut self.hands, 5, offset, piece, true);
        self.answer().result
    }

    fn read_metadata(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let buffer = self.pool.take(length).unwrap();
        self.store.read_metadata(&mut self.hands, 6, offset, buffer, 0..length);
        let event = self.answer();
        let Payload::Buffer(buffer) = event.payload else { panic!("a read gives its buffer back") };
        event.result.map(|_| buffer.to_vec())
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..length).map(|_| prng.next_u64().to_le_bytes()[0]).collect()
}

fn with_metadata(spec: StoreSpec, bytes: u64) -> StoreSpec {
    StoreSpec { metadata: MetadataPlace::Internal { bytes }, ..spec }
}

fn with_faults(spec: StoreSpec, faults: FaultSpec) -> StoreSpec {
    StoreSpec { faults: Some(faults), ..spec }
}

/// A superblock's page, as far as the store is concerned.
fn our_page() -> Vec<u8> {
    let mut page = pattern(4096, 9);
    page[..8].copy_from_slice(OUR_MAGIC);
    page
}

/// What every kind of store must do.
fn behaves_like_a_disk(bench: &mut Bench) {
    let bytes = pattern(256 << 10, 1);
    assert_eq!(bench.write(MIB, &bytes, false), Ok(256 << 10));
    assert_eq!(bench.write(3 * MIB, &bytes[..8192], true), Ok(8192));
    assert_eq!(bench.flush(), Ok(0));
    assert_eq!(bench.read(MIB, 256 << 10).unwrap(), bytes);
    assert_eq!(bench.zero(MIB + 4096, 8192, true), Ok(0));
    assert_eq!(bench.zero(MIB + 32_768, 4096, false), Ok(0));
    let mut expected = bytes.clone();
    expected[4096..12_288].fill(0);
    expected[32_768..36_864].fill(0);
    assert_eq!(bench.read(MIB, 256 << 10).unwrap(), expected);
    assert_eq!(bench.read(3 * MIB, 8192).unwrap(), bytes[..8192]);
    assert!(is_zero(&bench.read(0, 4096).unwrap()));
    // A range of the buffer only.
    let mut buffer = bench.pool.take(16_384).unwrap();
    buffer.as_mut().unwrap().fill(0xaa);
    bench.store.read(&mut bench.hands, 7, MIB, buffer, 4096..8192);
    let Payload::Buffer(buffer) = bench.answer().payload else { panic!("no buffer") };
    assert_eq!(buffer[4096..8192], bytes[..4096]);
    assert!(buffer[..4096].iter().chain(&buffer[8192..]).all(|&byte| byte == 0xaa));
    // The edges.
    let size = bench.store.size_bytes();
    assert_eq!(bench.write(size - 4096, &bytes[..4096], false), Ok(4096));
    assert_eq!(bench.read(size - 4096, 4096).unwrap(), bytes[..4096]);
    for (offset, length) in [(size, 4096), (size - 4096, 8192), (100, 4096), (0, 100)] {
        assert_eq!(bench.read(offset, length).unwrap_err(), Errno::INVALID, "{offset} {length}");
        assert_eq!(bench.write(offset, &bytes[..length], false), Err(Errno::INVALID));
    }
    assert_eq!(bench.zero(u64::MAX - 4095, 8192, true), Err(Errno::INVALID));
    assert_eq!(bench.zero(0, 0, true), Err(Errno::INVALID));
    drop(buffer);
    assert_eq!(bench.pool.used_bytes(), 0, "every buffer came back");
}

#[test]
fn a_file_behaves_like_a_disk() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 16 * MIB);
    let mut bench = Bench::new(StoreSpec::path(&path));
    assert_eq!(bench.store.size_bytes(), 16 * MIB);
    assert!(bench.store.volatile_cache());
    behaves_like_a_disk(&mut bench);
    assert!(bench.store.describe().contains("disk (file"), "{}", bench.store.describe());
}

#[test]
fn memory_behaves_like_a_disk_and_says_what_it_is() {
    let mut bench = Bench::new(StoreSpec::memory(16 * MIB));
    behaves_like_a_disk(&mut bench);
    assert!(bench.store.describe().contains("every byte is lost"));
    let refused = StoreSpec { allow_memory: false, ..StoreSpec::memory(MIB) };
    assert_eq!(Store::open(refused).err(), Some(StoreError::NoMemoryFlag));
}

#[test]
fn a_forgetful_disk_behaves_like_a_disk() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 16 * MIB);
    let faults = FaultSpec { volatile_cache: true, ..Default::default() };
    let mut bench = Bench::new(with_faults(StoreSpec::path(&path), faults));
    behaves_like_a_disk(&mut bench);
    assert!(bench.store.describe().contains("FORGETS"));
}

#[test]
fn what_was_flushed_is_there_when_a_file_is_opened_again() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 4 * MIB);
    let bytes = pattern(8192, 2);
    let spec = with_metadata(StoreSpec::path(&path), MIB);
    let mut bench = Bench::new(spec.clone());
    assert!(!bench.store.is_ours());
    assert_eq!(bench.write(0, &bytes, false), Ok(8192));
    assert_eq!(bench.write_metadata(0, &our_page()), Ok(4096));
    assert_eq!(bench.flush(), Ok(0));
    drop(bench);
    let mut bench = Bench::new(spec);
    assert!(bench.store.is_ours());
    assert_eq!(bench.read(0, 8192).unwrap(), bytes);
    assert_eq!(bench.read_metadata(0, 4096).unwrap(), our_page());
}

#[test]
fn a_device_is_free_the_moment_its_store_is_dropped() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    let mut hands = Hands::new(HandsConfig::default()).unwrap();
    for round in 0..100 {
        let mut store = Store::open(StoreSpec::path(&path)).unwrap();
        // Work that the kernel gives to threads of its own.
        store.zero(&mut hands, round, 0, 8192, true, true);
        store.flush(&mut hands, round);
        let mut events = Vec::new();
        while events.len() < 2 {
            hands.wait(Some(Duration::from_secs(20)), &mut events).unwrap();
        }
    }
}

#[test]
fn what_is_on_its_way_to_a_disk_keeps_others_from_it_until_it_has_ended() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    let mut hands = Hands::new(HandsConfig::default()).unwrap();
    let mut store = Store::open(StoreSpec::path(&path)).unwrap();
    store.zero(&mut hands, 1, 0, 8192, true, true);
    drop(store);
    // What somebody wrote now would be gone when that ends.
    assert_eq!(Store::open(StoreSpec::path(&path)).err(), Some(StoreError::InUse));
    let mut events = Vec::new();
    while events.is_empty() {
        hands.wait(Some(Duration::from_secs(20)), &mut events).unwrap();
    }
    assert!(events.iter().all(|event| event.result.is_ok()));
    let mut tries = 0;
    while let Err(error) = Store::open(StoreSpec::path(&path)) {
        // The kernel's own threads may hold it for a moment.
        assert!(error == StoreError::InUse && tries < 100_000, "{error}");
        tries += 1;
    }
}

#[test]
fn metadata_and_data_cannot_reach_each_other() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 4 * MIB);
    let mut bench = Bench::new(with_metadata(StoreSpec::path(&path), MIB - 1000));
    assert_eq!((bench.store.size_bytes(), bench.store.metadata_bytes()), (3 * MIB, MIB));
    let (data, metadata) = (pattern(4096, 3), pattern(4096, 4));
    assert_eq!(bench.write(3 * MIB - 4096, &data, false), Ok(4096));
    assert_eq!(bench.write(3 * MIB, &data, false), Err(Errno::INVALID));
    assert_eq!(bench.write_metadata(0, &metadata), Ok(4096));
    assert_eq!(bench.write_metadata(MIB, &metadata), Err(Errno::INVALID));
    bench.store.flush_metadata(&mut bench.hands, 1);
    assert_eq!(bench.answer().result, Ok(0));
    assert_eq!(bench.read(3 * MIB - 4096, 4096).unwrap(), data);
    drop(bench);
    let on_disk = std::fs::read(&path).unwrap();
    assert_eq!(on_disk[3 << 20..(3 << 20) + 4096], metadata);
}

#[test]
fn metadata_may_lie_in_a_file_of_its_own_or_nowhere() {
    let scratch = Scratch::new();
    let (data, metadata) = (scratch.file("data", 4 * MIB), scratch.file("metadata", MIB));
    let place = MetadataPlace::External { path: metadata.clone(), bytes: MIB };
    let spec = StoreSpec { metadata: place, ..StoreSpec::path(&data) };
    let mut bench = Bench::new(spec.clone());
    assert_eq!((bench.store.size_bytes(), bench.store.metadata_bytes()), (4 * MIB, MIB));
    assert_eq!(bench.write_metadata(0, &our_page()), Ok(4096));
    drop(bench);
    assert_eq!(std::fs::read(&metadata).unwrap()[..4096], our_page());
    assert!(Store::open(spec).unwrap().is_ours());
    let mut bench = Bench::new(StoreSpec::path(&data));
    assert_eq!(bench.read_metadata(0, 4096).unwrap_err(), Errno::INVALID);
    let place = MetadataPlace::External { path: metadata, bytes: 2 * MIB };
    drop(bench);
    let spec = StoreSpec { metadata: place, ..StoreSpec::path(&data) };
    let small = StoreError::TooSmall { needs_bytes: 2 * MIB, has_bytes: MIB };
    assert_eq!(Store::open(spec).err(), Some(small));
}

#[test]
fn metadata_in_a_file_that_is_memory_is_written_in_place_and_no_cache_forgets_it() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return println!("NOT RUN: there is no /dev/shm");
    }
    let (scratch, shared) = (Scratch::new(), Scratch::below(memory));
    let (data, metadata) = (scratch.file("data", 4 * MIB), shared.file("metadata", MIB));
    let place = MetadataPlace::External { path: metadata.clone(), bytes: MIB };
    let spec = StoreSpec { metadata: place, ..StoreSpec::path(&data) };
    let forgets = FaultSpec { volatile_cache: true, ..FaultSpec::default() };
    let mut bench = Bench::new(with_faults(spec.clone(), forgets));
    assert_eq!(bench.store.metadata_in_place(), Some(MappedKind::Volatile));
    assert!(
        bench.store.describe().contains("memory of this machine"),
        "{}",
        bench.store.describe()
    );
    bench.store.prepare_metadata(64 << 10).unwrap();
    assert_eq!(bench.write_metadata(0, &our_page()), Ok(4096));
    assert_eq!(bench.write_metadata(MIB - 8192, &pattern(8192, 3)), Ok(8192));
    assert_eq!(bench.write_metadata(MIB, &our_page()), Err(Errno::INVALID));
    assert_eq!(bench.read_metadata(MIB - 4096, 4096), Ok(pattern(8192, 3)[4096..].to_vec()));
    assert_eq!(bench.write(0, &pattern(4096, 4), false), Ok(4096));
    drop(bench);
    assert_eq!(std::fs::read(&metadata).unwrap()[..4096], our_page());
    assert!(is_zero(&std::fs::read(&data).unwrap()[..4096]), "the disk has forgotten it");
    // The same bytes on a disk are the same metadata.
    let moved = scratch.0.join("metadata");
    std::fs::copy(&metadata, &moved).unwrap();
    let place = MetadataPlace::External { path: moved, bytes: MIB };
    let store = Store::open(StoreSpec { metadata: place, ..spec }).unwrap();
    assert!(store.is_ours() && store.metadata_in_place().is_none());
}

#[test]
fn what_cannot_be_a_store_is_refused_with_a_reason() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    let open = |spec: StoreSpec| Store::open(spec).err();
    assert_eq!(open(StoreSpec::path("/nonexistent/disk")), Some(StoreError::NotFound));
    assert_eq!(open(StoreSpec::path(&scratch.0)), Some(StoreError::Unsupported));
    assert_eq!(open(StoreSpec::path("/dev/null")), Some(StoreError::Unsupported));
    let small = StoreSpec { needs_bytes: 2 * MIB, ..StoreSpec::path(&path) };
    let reason = StoreError::TooSmall { needs_bytes: 2 * MIB, has_bytes: MIB };
    assert_eq!(open(small), Some(reason));
    let no_room = open(with_metadata(StoreSpec::path(&path), 2 * MIB));
    assert!(matches!(no_room, Some(StoreError::TooSmall { .. })), "{no_room:?}");
    let first = Store::open(StoreSpec::path(&path)).unwrap();
    assert_eq!(open(StoreSpec::path(&path)), Some(StoreError::InUse));
    drop(first);
    assert_eq!(open(StoreSpec::path(&path)), None);
}

#[test]
fn foreign_data_is_refused_until_accepted_and_never_asked_about_under_our_metadata() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 4 * MIB);
    let spec = with_metadata(StoreSpec::path(&path), MIB);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1080..1082].copy_from_slice(b"\x53\xef");
    std::fs::write(&path, &bytes).unwrap();
    let what = "an ext2 file system";
    assert_eq!(Store::open(spec.clone()).err(), Some(StoreError::ForeignData { what }));
    let accepted = StoreSpec { accept_foreign: true, ..spec.clone() };
    let mut bench = Bench::new(accepted);
    assert_eq!(bench.write_metadata(0, &our_page()), Ok(4096));
    drop(bench);
    // Now the file system is what a client keeps on our volume.
    assert!(Store::open(spec).unwrap().is_ours());
}

#[test]
fn a_file_that_is_too_large_for_its_file_system_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let path = scratch.0.join("large");
    // 4 EiB: some file systems have such files.
    match create_file(&path, 1 << 62, false) {
        Ok(()) => println!("NOT RUN: this file system has files of 4 EiB"),
        Err(error) => {
            assert_eq!(error, StoreError::BeyondFileSystem { needs_bytes: 1 << 62 });
            assert!(!path.exists(), "an empty file is left, which would be in the way");
        }
    }
}

#[test]
fn creating_a_file_spares_what_exists() {
    let scratch = Scratch::new();
    let path = scratch.0.join("new");
    create_file(&path, 8 * MIB, false).unwrap();
    assert_eq!(size_of(&path), Ok(8 * MIB));
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0, "it takes no space");
    create_file(&path, 8 * MIB, false).unwrap();
    std::fs::write(&path, b"precious").unwrap();
    let refused = create_file(&path, 8 * MIB, false);
    assert_eq!(refused, Err(StoreError::ForeignData { what: "a file with content" }));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    create_file(&path, MIB, true).unwrap();
    assert!(is_zero(&std::fs::read(&path).unwrap()));
    let open = Store::open(StoreSpec::path(&path)).unwrap();
    assert_eq!(create_file(&path, MIB, true), Err(StoreError::InUse));
    drop(open);
    assert_eq!(create_file(&scratch.0.join("no/such"), MIB, false), Err(StoreError::NotFound));
}

/// Both ends of an empty disk, to put a magic number into.
fn ends() -> (Vec<u8>, Vec<u8>) {
    (vec![0; FIRST_BYTES], vec![0; LAST_BYTES])
}

#[test]
fn magic_numbers_of_other_formats_are_recognised() {
    let (first, last) = ends();
    assert_eq!(foreign_signature(&first, &last), None);
    assert_eq!(foreign_signature(&[], &[]), None);
    let at_start: &[(usize, &[u8], &str)] = &[
        (0, b"XFSB", "XFS"),
        (0x10040, b"_BHRfS_M", "btrfs"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (0x4000, b"SKUL\xba\xbe", "LUKS"),
        (512, b"LABELONE\0\0\0\0", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (3, b"NTFS    ", "NTFS"),
        (512, b"EFI PART", "GPT"),
        (4096, b"EFI PART", "GPT"),
        (4096, b"\xfc\x4e\x2b\xa9", "md RAID"),
        (0x20000 + 4096, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS"),
        (0, b"LOCKSTEP", "Lockstep"),
        (4086, b"S1SUSPEND\0", "sleeps"),
        (65526, b"LINHIB0001", "sleeps"),
        (
            4096 + 24,
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
            "bcachefs",
        ),
        (65536 + 52, b"ReIsEr2Fs", "ReiserFS"),
        (65536, b"ReIsEr4", "Reiser4"),
        (32768, b"JFS1", "JFS"),
        (65536, b"\x01\x16\x19\x70", "GFS2"),
        (1024, b"OCFSV2", "OCFS2"),
        (8192, b"OCFSV2", "OCFS2"),
        (1024, b"\x02\0\0\0\0\0\x34\x34", "NILFS2"),
        (1024, b"H+\0\x04", "HFS+"),
        (1024, b"HX\0\x05", "HFS+"),
        (32, b"NXSB", "APFS"),
        (3, b"-FVE-FS-", "BitLocker"),
        (0, b"integrt\0", "dm-integrity"),
        (0, b"dmvdo001", "VDO"),
        (32, b"ORCLDISK", "Oracle ASM"),
    ];
    for (at, magic, what) in at_start {
        let (mut first, last) = ends();
        first[*at..at + magic.len()].copy_from_slice(magic);
        let found = foreign_signature(&first, &last);
        assert!(found.is_some_and(|found| found.contains(what)), "{what}: {found:?}");
    }
    let at_end: &[(usize, &[u8], &str)] = &[
        (4096 - 60, b"\x83\x74\x02\x6b", "DRBD"),
        (4096 - 60, b"\x83\x74\x02\x6d", "DRBD"),
        (4096 + 512 - 60, b"\x83\x74\x02\x6d", "DRBD"),
        (8192, b"\xfc\x4e\x2b\xa9", "md RAID"),
        (65536 + 1024, b"\xfc\x4e\x2b\xa9", "md RAID"),
        (512, b"EFI PART", "GPT"),
        (1024, b"Intel Raid ISM Cfg Sig. 1.3", "Intel RAID"),
        (512, b"\xde\x11\xde\x11", "DDF RAID"),
    ];
    for (before, magic, what) in at_end {
        let (first, mut last) = ends();
        let at = last.len() - before;
        last[at..at + magic.len()].copy_from_slice(magic);
        let found = foreign_signature(&first, &last);
        assert!(found.is_some_and(|found| found.contains(what)), "{what}: {found:?}");
    }
}

#[test]
fn partition_tables_are_told_from_other_boot_sectors() {
    let (mut first, last) = ends();
    first[510..512].copy_from_slice(b"\x55\xaa");
    assert_eq!(foreign_signature(&first, &last), None, "no partition");
    first[446 + 4] = 0x83;
    assert_eq!(foreign_signature(&first, &last), Some("a partition table"));
    first[446 + 16] = 0x12;
    assert_eq!(foreign_signature(&first, &last), None, "not a table: that is no status");
}

/// What the tools themselves make is recognised; each is left out where it is not installed.
#[test]
fn what_the_tools_make_is_recognised() {
    let scratch = Scratch::new();
    let cases: &[(&str, &[&str], &str)] = &[
        ("mkfs.ext4", &["-q", "-F"], "an ext4 file system"),
        ("mkfs.ext3", &["-q", "-F"], "an ext3 file system"),
        ("mkfs.ext2", &["-q", "-F"], "an ext2 file system"),
        ("mkfs.xfs", &["-q", "-f"], "an XFS file system"),
        ("mkfs.btrfs", &["-q", "-f"], "a btrfs file system"),
        ("mkswap", &["-q"], "swap space"),
    ];
    for (tool, arguments, what) in cases {
        let path = scratch.file(tool, 320 * MIB);
        match Command::new(tool).args(*arguments).arg(&path).output() {
            Ok(output) if output.status.success() => {
                let found = Store::open(StoreSpec::path(&path)).err();
                assert_eq!(found, Some(StoreError::ForeignData { what }), "{tool}");
            }
            Ok(output) => println!("NOT RUN: {tool}: {}", output.status),
            Err(error) => println!("NOT RUN: {tool}: {error}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn asked_for_errors_come_as_often_as_asked_for() {
    let mut bench = Bench::new(with_faults(StoreSpec::memory(MIB), FaultSpec::default()));
    let block = pattern(4096, 5);
    let kinds = [FaultKind::Read, FaultKind::Write, FaultKind::Flush];
    for kind in kinds {
        let errno = if kind == FaultKind::Write { Errno::NO_SPACE } else { Errno::IO };
        bench.store.faults().unwrap().fail_next(kind, 2, errno);
        let mut results = Vec::new();
        for _ in 0..3 {
            results.push((
                bench.read(0, 4096).map(drop),
                bench.write(0, &block, false).map(drop),
                bench.flush().map(drop),
            ));
        }
        let failed = Err(errno);
        let expected = match kind {
            FaultKind::Read => (failed, Ok(()), Ok(())),
            FaultKind::Write => (Ok(()), failed, Ok(())),
            FaultKind::Flush => (Ok(()), Ok(()), failed),
        };
        assert_eq!(results, [expected, expected, (Ok(()), Ok(()), Ok(()))]);
    }
    assert_eq!(bench.store.faults().unwrap().injected(), 6);
    assert!(Store::open(StoreSpec::memory(MIB)).unwrap().faults().is_none());
}

#[test]
fn a_seed_fixes_which_operations_fail() {
    let run = |seed| {
        let faults = FaultSpec { seed, write_errors_one_in: 4, ..Default::default() };
        let mut bench = Bench::new(with_faults(StoreSpec::memory(MIB), faults));
        let block = pattern(4096, 6);
        (0..64).map(|_| bench.write(0, &block, false).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(run(1).contains(&true) && run(1).contains(&false));
}

#[test]
fn a_stalled_operation_is_answered_after_those_that_came_later() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    for spec in [StoreSpec::memory(MIB), StoreSpec::path(&path)] {
        let mut bench = Bench::new(with_faults(spec, FaultSpec::default()));
        bench.store.faults().unwrap().stall_next(1, Duration::from_millis(300));
        let piece = Piece::from(bench.buffer(&pattern(4096, 7)));
        let begun = bench.hands.now_fresh();
        bench.store.write(&mut bench.hands, 10, 0, piece, true);
        bench.store.flush(&mut bench.hands, 11);
        assert_eq!(bench.answer().token, 11);
        let late = bench.answer();
        assert_eq!((late.token, late.result), (10, Ok(4096)));
        assert!(bench.hands.now().since(begun) >= Duration::from_millis(300));
        assert_eq!(bench.read(0, 4096).unwrap(), pattern(4096, 7));
    }
}

fn forgetful(path: &Path) -> Bench {
    let faults = FaultSpec { volatile_cache: true, ..Default::default() };
    let spec = StoreSpec { accept_foreign: true, ..StoreSpec::path(path) };
    Bench::new(with_faults(spec, faults))
}

#[test]
fn a_forgetful_disk_loses_what_was_not_flushed_and_nothing_else() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 4 * MIB);
    let [flushed, durable, lost] = [11, 12, 13].map(|seed| pattern(8192, seed));
    let mut bench = forgetful(&path);
    assert_eq!(bench.write(0, &flushed, false), Ok(8192));
    assert_eq!(bench.flush(), Ok(0));
    assert_eq!(bench.write(MIB, &lost, false), Ok(8192));
    assert_eq!(bench.write(2 * MIB, &durable, true), Ok(8192));
    assert_eq!(bench.write(0, &lost[..4096], false), Ok(4096));
    assert_eq!(bench.zero(2 * MIB, 4096, true), Ok(0));
    assert_eq!(bench.read(0, 4096).unwrap(), lost[..4096], "reads see the newest");
    assert_eq!(bench.write(3 * MIB, &lost, false), Ok(8192));
    assert_eq!(bench.write(3 * MIB, &durable, true), Ok(8192));
    assert_eq!(bench.read(3 * MIB, 8192).unwrap(), durable, "durable ones, too");
    drop(bench);
    let mut bench = forgetful(&path);
    assert_eq!(bench.read(0, 8192).unwrap(), flushed);
    assert!(is_zero(&bench.read(MIB, 8192).unwrap()));
    assert_eq!(bench.read(2 * MIB, 8192).unwrap(), durable);
    assert_eq!(bench.read(3 * MIB, 8192).unwrap(), durable);
}

#[test]
fn a_killed_forgetful_disk_keeps_the_part_of_whole_pages_that_its_seed_chooses() {
    const BYTES: usize = 1 << 20;
    let scratch = Scratch::new();
    let after_kill = |seed: u64, name: &str| {
        let path = scratch.file(name, 8 * MIB);
        let faults =
            FaultSpec { seed, volatile_cache: true, written_back_one_in: 2, ..Default::default() };
        let spec = StoreSpec { accept_foreign: true, ..StoreSpec::path(&path) };
        let mut bench = Bench::new(with_faults(spec, faults));
        bench.write(0, &vec![1; BYTES], false).unwrap();
        bench.flush().unwrap();
        bench.write(0, &vec![2; BYTES], false).unwrap();
        bench.write(0, &vec![3; BYTES], false).unwrap();
        bench.zero(0, 16 * 4096, true).unwrap();
        assert_eq!(bench.read(16 * 4096, 4096).unwrap(), [3; 4096], "reads see the newest");
        assert!(is_zero(&bench.read(0, 16 * 4096).unwrap()));
        drop(bench);
        std::fs::read(&path).unwrap()[..BYTES].to_vec()
    };
    let first = after_kill(1, "a");
    assert_eq!(first, after_kill(1, "b"));
    assert_ne!(first, after_kill(2, "c"));
    for page in first.chunks(4096) {
        assert!(page.iter().all(|&byte| byte == page[0]), "a page is mixed");
    }
    // Also what was overtaken later: a disk may have written that, and not what came after.
    assert!((0..=3).all(|content| first.contains(&content)));
}

/// Longer ones are chosen in pieces of so many pages.
#[test]
fn of_a_short_write_a_killed_forgetful_disk_keeps_single_pages() {
    const BYTES: usize = 16 * 4096;
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    let faults =
        FaultSpec { seed: 1, volatile_cache: true, written_back_one_in: 2, ..Default::default() };
    let spec = StoreSpec { accept_foreign: true, ..StoreSpec::path(&path) };
    let mut bench = Bench::new(with_faults(spec, faults));
    bench.write(0, &vec![1; BYTES], false).unwrap();
    bench.flush().unwrap();
    bench.write(0, &vec![2; BYTES], false).unwrap();
    drop(bench);
    let left = std::fs::read(&path).unwrap();
    assert!([1, 2].iter().all(|content| left[..BYTES].contains(content)), "all or nothing");
    assert!(left[..BYTES].chunks(4096).all(|page| page.iter().all(|&byte| byte == page[0])));
}

#[test]
fn a_disk_that_is_full_refuses_writes_of_data_and_metadata_and_keeps_what_it_has() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 4 * MIB);
    let spec = || with_metadata(StoreSpec::path(&path), 64 * 1024);
    let faults = FaultSpec { full_after_bytes: 6 * 4096, ..Default::default() };
    let mut bench = Bench::new(with_faults(spec(), faults));
    let block = pattern(4096, 3);
    for number in 0..4 {
        assert_eq!(bench.write(number * 4096, &block, false), Ok(4096));
    }
    assert_eq!(bench.write_metadata(0, &block), Ok(4096));
    assert_eq!(bench.write(MIB, &pattern(8192, 4), false), Err(Errno::NO_SPACE), "half of it");
    let mut share = Bench { store: bench.store.share(1), ..Bench::new(StoreSpec::memory(MIB)) };
    assert_eq!(share.write(MIB, &block, true), Ok(4096), "the last room");
    for bench in [&mut bench, &mut share] {
        assert_eq!(bench.write(MIB, &block, false), Err(Errno::NO_SPACE));
        assert_eq!(bench.write_metadata(4096, &block), Err(Errno::NO_SPACE));
        assert_eq!(bench.flush(), Ok(0));
        assert_eq!(bench.zero(2 * MIB, 4096, true), Ok(0));
        assert_eq!(bench.read(3 * 4096, 4096).as_ref(), Ok(&block));
        assert_eq!(bench.read_metadata(0, 4096).as_ref(), Ok(&block));
    }
    assert_eq!(bench.store.faults().unwrap().injected(), 3);
    drop((bench, share));
    let mut bench = Bench::new(StoreSpec { accept_foreign: true, ..spec() });
    assert_eq!(bench.write(2 * MIB, &block, false), Ok(4096), "there is room again");
    assert_eq!(bench.read(MIB, 4096), Ok(block));
    assert!(is_zero(&bench.read(MIB + 4096, 4096).unwrap()), "nothing of what was refused");
}

/// A flush of a shard that the disk says went well: whether it is believed.
fn flushes(store: &mut Store, shard: u16) -> bool {
    let mark = store.flush_begins();
    store.flush_ends(shard, mark, true)
}

#[test]
fn what_one_flush_was_told_of_a_lost_cache_every_other_shard_hears_once_on_any_share() {
    let mut store = Store::open(StoreSpec::memory(MIB)).unwrap();
    let mut share = store.share(1);
    assert!(flushes(&mut store, 0) && flushes(&mut share, 1), "nothing happened");
    let under_way = (store.flush_begins(), share.flush_begins());
    let mark = store.flush_begins();
    assert!(!store.flush_ends(0, mark, false));
    assert!(flushes(&mut store, 0), "it was told");
    assert!(!store.flush_ends(0, under_way.0, true), "it was under way at that moment");
    assert!(!share.flush_ends(1, under_way.1, true));
    for shard in [2, 3] {
        assert!(!flushes(&mut store, shard) && flushes(&mut store, shard), "shard {shard}");
    }
    assert!(flushes(&mut share, 1) && flushes(&mut store, 0), "each heard of it once");
    assert!(flushes(&mut store.share(3), 4), "that was before it came to be");
    assert!(store.has_lost() && share.has_lost());
}

#[test]
fn what_was_answered_while_a_flush_was_under_way_that_failed_is_not_covered_by_it() {
    let mut store = Store::open(StoreSpec::memory(MIB)).unwrap();
    let mark = store.flush_begins();
    store.note_answered();
    assert!(!store.flush_ends(0, mark, false));
    assert!(!flushes(&mut store, 0), "the write may be gone as well");
    assert!(flushes(&mut store, 0));
}

#[test]
fn a_durable_write_that_failed_is_told_to_the_next_flush_of_every_shard_if_it_may_speak_of_others()
{
    let scratch = Scratch::new();
    let (path, beside) = (scratch.file("disk", MIB), scratch.file("metadata", MIB));
    let external = MetadataPlace::External { path: beside, bytes: 64 * 1024 };
    for (spec, together) in [
        (with_metadata(StoreSpec::path(&path), 64 * 1024), true),
        (StoreSpec { metadata: external, ..StoreSpec::path(&path) }, false),
    ] {
        let mut store = Store::open(spec).unwrap();
        let mut share = store.share(1);
        store.note_failed_write(Errno::IO);
        for shard in [0, 1] {
            assert!(!flushes(&mut store, shard) && flushes(&mut store, shard), "shard {shard}");
        }
        assert!(!flushes(&mut share, 2) && flushes(&mut share, 2));
        store.note_failed_metadata_write(Errno::IO);
        assert!(flushes(&mut store, 0) != together && flushes(&mut store, 0));
        // What found no room was not taken, unless it may be an earlier one that found none.
        let cached = store.describe().contains("through the page cache");
        assert!(flushes(&mut share, 2) != together);
        store.note_failed_write(Errno::NO_SPACE);
        assert!(flushes(&mut share, 2) != cached);
    }
}

#[test]
fn zeroes_are_told_from_everything_else() {
    for length in [0, 1, 255, 256, 257, 4096, 5000] {
        let mut bytes = vec![0; length];
        assert!(is_zero(&bytes), "{length}");
        for at in [0, length / 2, length.saturating_sub(1)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = 0x80;
                assert!(!is_zero(&bytes), "{length} {at}");
                bytes[at] = 0;
            }
        }
    }
}

/// How many pages of a file the page cache has.
fn cached_pages(path: &Path) -> Result<u64, String> {
    let arguments = ["--raw", "--noheadings", "--output", "PAGES"];
    let output = Command::new("fincore").args(arguments).arg(path).output();
    let said = output.map_err(|error| format!("fincore: {error}"))?.stdout;
    let pages = String::from_utf8_lossy(&said).trim().parse();
    pages.map_err(|error| format!("fincore: {error}"))
}

/// What could not be written lies there as if it had been.
#[test]
fn what_an_earlier_process_left_in_the_page_cache_is_not_read_where_there_is_no_direct_io() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", MIB);
    let written = pattern(1 << 20, 7);
    for direct in [true, false] {
        std::fs::write(&path, &written).unwrap();
        let before = cached_pages(&path).unwrap_or_else(|error| {
            println!("NOT RUN: {error}");
            0
        });
        let backing = Backing::open_with(&path, direct).unwrap();
        if before == 0 || backing.is_cached() == direct {
            println!(
                "NOT RUN: this file system has direct I/O only for what is asked so, or is memory"
            );
            continue;
        }
        let left = cached_pages(&path).unwrap();
        assert_eq!(left == 0, !direct, "{left} pages of {before} are there");
        let mut bytes = vec![0; written.len()];
        if !direct {
            backing.read_now(0, &mut bytes).unwrap();
            assert_eq!(bytes, written, "it was written out before");
        }
    }
}

/// A loop device over a file, detached at its end.
struct Loop(PathBuf);

impl Loop {
    /// `Err` with the reason where none can be had.
    fn new(file: &Path, block_bytes: u32) -> Result<Loop, String> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_bytes.to_string()])
            .arg(file)
            .output()
            .map_err(|error| format!("losetup: {error}"))?;
        let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        if output.status.success() {
            Ok(Loop(words(output.stdout).into()))
        } else {
            Err(words(output.stderr))
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").arg("--detach").arg(&self.0).status().ok();
    }
}

#[test]
fn a_block_device_behaves_like_a_disk_and_is_claimed() {
    for block_bytes in [512, 4096] {
        let scratch = Scratch::new();
        let file = scratch.file("disk", 16 * MIB);
        let device = match Loop::new(&file, block_bytes) {
            Ok(device) => device,
            Err(reason) => return println!("NOT RUN: no loop device: {reason}"),
        };
        let mut bench = Bench::new(with_metadata(StoreSpec::path(&device.0), MIB));
        assert_eq!(bench.store.size_bytes(), 15 * MIB);
        assert_eq!(bench.store.block_bytes(), block_bytes);
        assert!(bench.store.describe().contains("block device"));
        behaves_like_a_disk(&mut bench);
        assert_eq!(bench.write_metadata(0, &our_page()), Ok(4096));
        assert_eq!(bench.read_metadata(0, 4096).unwrap(), our_page());
        let second = Store::open(StoreSpec::path(&device.0)).err();
        assert_eq!(second, Some(StoreError::InUse));
        drop(bench);
        assert_eq!(size_of(&device.0), Ok(16 * MIB));
    }
}

#[test]
fn a_mounted_block_device_is_in_use() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 16 * MIB);
    let device = match Loop::new(&file, 512) {
        Ok(device) => device,
        Err(reason) => return println!("NOT RUN: no loop device: {reason}"),
    };
    let point = scratch.0.join("point");
    std::fs::create_dir(&point).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.0).status();
    let mounted = Command::new("mount").arg(&device.0).arg(&point).status();
    if !made.is_ok_and(|status| status.success()) || !mounted.is_ok_and(|status| status.success()) {
        return println!("NOT RUN: no file system can be mounted");
    }
    let found = Store::open(StoreSpec::path(&device.0)).err();
    let unmounted = Command::new("umount").arg(&point).status();
    assert_eq!(found, Some(StoreError::InUse));
    assert!(unmounted.unwrap().success());
}

/// A mounted file system, gone at its end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(&self.0).status().ok();
    }
}

/// An ext4 that has data in its journal lets files be opened for direct I/O, and has none.
#[test]
fn a_file_that_may_be_opened_for_direct_io_and_has_none_counts_as_cached() {
    let scratch = Scratch::new();
    let file = scratch.file("disk", 64 * MIB);
    let device = match Loop::new(&file, 512) {
        Ok(device) => device,
        Err(reason) => return println!("NOT RUN: no loop device: {reason}"),
    };
    let point = Mounted(scratch.0.join("point"));
    std::fs::create_dir(&point.0).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.0).status();
    let path = point.0.join("store");
    let mount = || {
        let mut mount = Command::new("mount");
        mount.args(["-o", "data=journal"]).arg(&device.0).arg(&point.0).status()
    };
    let is_ok =
        |status: std::io::Result<std::process::ExitStatus>| status.is_ok_and(|of| of.success());
    if !is_ok(made) || !is_ok(mount()) {
        return println!("NOT RUN: no file system can be mounted");
    }
    std::fs::write(&path, pattern(1 << 20, 7)).unwrap();
    // Else the journal has a part of it, and keeps that in the cache.
    assert!(is_ok(Command::new("umount").arg(&point.0).status()) && is_ok(mount()));
    assert_eq!(std::fs::read(&path).unwrap(), pattern(1 << 20, 7));
    let file = sys::File::open(&path, sys::OpenOptions::default()).unwrap();
    if !file.facts().unwrap().never_direct || !cached_pages(&path).is_ok_and(|pages| pages > 0) {
        return println!("NOT RUN: the kernel does not tell, or fincore does not");
    }
    let backing = Backing::open(&path).unwrap();
    assert!(backing.is_cached() && backing.describe() == "file, through the page cache");
    assert_eq!(cached_pages(&path), Ok(0), "what an earlier process left is not read");
    drop(backing);
    let mut bench = Bench::new(StoreSpec::path(&path));
    assert_eq!(bench.write(0, &pattern(8192, 8), true), Ok(8192));
    assert_eq!(bench.read(0, 1 << 20).unwrap()[..8192], pattern(8192, 8));
    bench.store.note_failed_write(Errno::NO_SPACE);
    assert!(!flushes(&mut bench.store, 0), "it may be an earlier one that found no room");
}

#[test]
fn shares_of_a_store_on_two_threads_see_each_others_writes_and_keep_it_until_both_are_gone() {
    let scratch = Scratch::new();
    let path = scratch.file("shared", 4 * MIB);
    let forgets = FaultSpec { volatile_cache: true, ..FaultSpec::default() };
    let spec = |place, faults| StoreSpec {
        place,
        metadata: MetadataPlace::None,
        needs_bytes: MIB,
        allow_memory: true,
        accept_foreign: true,
        faults,
    };
    let specs = [
        spec(crate::Place::Path(path.clone()), None),
        spec(crate::Place::Path(path.clone()), Some(forgets)),
        spec(crate::Place::Memory { size_bytes: 4 * MIB }, None),
    ];
    for spec in specs {
        let mut bench = Bench::new(spec.clone());
        assert_eq!(bench.write(0, &[1; 4096], false), Ok(4096));
        let share = bench.store.share(1);
        let other = std::thread::spawn(move || {
            let hands = Hands::new(HandsConfig::default()).unwrap();
            let mut bench = Bench { hands, pool: BufferPool::new(1 << 20), store: share };
            assert_eq!(bench.read(0, 4096), Ok(vec![1; 4096]));
            assert_eq!(bench.write(4096, &[2; 4096], false), Ok(4096));
            bench.store
        });
        let share = other.join().unwrap();
        assert_eq!(bench.read(4096, 4096), Ok(vec![2; 4096]));
        let on_disk = matches!(spec.place, crate::Place::Path(_));
        drop(bench);
        assert_eq!(Store::open(spec.clone()).is_err(), on_disk, "a share is left");
        drop(share);
        assert!(Store::open(spec).is_ok(), "nothing holds it any more");
    }
}

//! What metadata takes: room only for what was written, reads only of slots that were given.

use std::os::unix::fs::{FileExt, MetadataExt};

use base::{Ballot, Epoch, Incarnation, NodeId, VoterId};
use replica::disk::{SUPERBLOCK_BYTES, encode_bitmap_page};
use replica::door::Slot;
use wire::{Configuration, MemberEntry, Options, VolumeEntry};

use super::*;

/// One gibibyte, laid out for 64: 529 pages for each slot, 7 slots.
const VOLUME_BYTES: u64 = 1 << 30;

/// A store in a directory of its own, which goes with it.
struct Scratch {
    directory: PathBuf,
    plan: Plan,
}

impl Scratch {
    fn new(slots: Vec<Slot>) -> Scratch {
        let directory =
            std::env::temp_dir().join(format!("lockstepd-backing-{:x}", sys::random_u64()));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let path = directory.join("volume.img");
        let room = capacity_bytes(StoreKind::File, VOLUME_BYTES);
        let layout = Layout::new(room / SECTOR_BYTES, SLOTS);
        let plan = plan(VolumeId(0), room, layout, StoreKind::File, path, None, false);
        let scratch = Scratch { directory, plan };
        let plans = [scratch.plan.clone()];
        let label = label(ClusterId(1), ResourceId(2), &scratch.plan, 5);
        let record = Record { slots, stores: 1, ..Record::default() };
        make(&plans, &[label], &record, false, &Arc::default()).expect("made");
        scratch
    }

    /// Bytes of the file that take room.
    fn taken_bytes(&self) -> u64 {
        let path = self.directory.join("volume.img");
        std::fs::metadata(path).expect("it is there").blocks() * 512
    }

    fn open(&self) -> Store {
        open(&self.plan, false).expect("opened")
    }

    /// A page of a bitmap with one dirty block.
    fn write_bitmap(&self, slot: u8, page: u64, generation: u64) {
        let mut blocking = Blocking::new().expect("hands");
        let at = self.plan.layout.page_offset(MetaPage::Bitmap { slot, page });
        let bytes = encode_bitmap_page(self.plan.volume, slot, page, generation, &[1]);
        blocking.write(&mut self.open(), at, &bytes[..]).expect("written");
    }

    /// What a start finds: bytes read, and pages of bitmaps as (slot, page).
    fn start(&self) -> (u64, Vec<(u8, u64)>) {
        let mut blocking = Blocking::new().expect("hands");
        let mut volumes = [(self.plan.volume, self.plan.layout, self.open())];
        let found = load(&mut blocking, &mut volumes).expect("read");
        let bitmap = |page: &MetaPage| match *page {
            MetaPage::Bitmap { slot, page } => Some((slot, page)),
            MetaPage::Log { .. } => None,
        };
        let pages = found.pages.iter().filter_map(|(_, page, _)| bitmap(page)).collect();
        (blocking.read_bytes, pages)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

fn slot(number: u8) -> Slot {
    let node = NodeId(u16::from(number) + 2);
    Slot { node, voter: VoterId(9), number, generation: 3, full: false }
}

/// Both copies of the record, and the log.
fn fixed_bytes(layout: &Layout) -> u64 {
    layout.bitmap - layout.records
}

#[test]
fn a_new_store_takes_room_for_its_superblock_and_record_only_and_a_slot_for_what_is_written_in_it()
{
    let scratch = Scratch::new(vec![slot(2)]);
    let layout = scratch.plan.layout;
    assert!(layout.sums - layout.bitmap > 14 << 20, "room for all slots is reserved");
    let first = scratch.taken_bytes();
    assert!(first >= SUPERBLOCK_BYTES + RECORD_BYTES);
    if first > 1 << 20 {
        return println!("NOT RUN: this file system has no holes");
    }
    // Two pieces, in whole blocks of the file system.
    assert!(first <= 128 * 1024, "{first} bytes are taken");
    scratch.write_bitmap(2, 300, 3);
    let with_page = scratch.taken_bytes();
    assert!(with_page <= first + 64 * 1024, "{with_page} bytes are taken by a page more");
}

#[test]
fn a_start_reads_nothing_of_slots_that_were_not_given_and_of_others_what_was_written() {
    let scratch = Scratch::new(vec![slot(2), slot(4)]);
    let fixed = fixed_bytes(&scratch.plan.layout);
    if scratch.taken_bytes() > 1 << 20 {
        return println!("NOT RUN: this file system has no holes");
    }
    assert_eq!(scratch.start(), (fixed, Vec::new()), "no page of a bitmap was ever written");
    // Left by somebody who had the slot before it was given back.
    scratch.write_bitmap(3, 7, 2);
    assert_eq!(scratch.start(), (fixed, Vec::new()), "slot 3 is nobody's");
    for page in [5, 6, 300] {
        scratch.write_bitmap(4, page, 3);
    }
    let (bytes, pages) = scratch.start();
    assert_eq!(pages, [(4, 5), (4, 6), (4, 300)]);
    assert!(bytes <= fixed + 3 * 64 * 1024, "{} bytes were read of bitmaps", bytes - fixed);
}

#[test]
fn what_a_making_that_ended_half_way_has_made_and_lengthened_is_taken_back() {
    let scratch = Scratch::new(Vec::new());
    let kept = scratch.directory.join("kept.img");
    std::fs::write(&kept, [7; 8192]).expect("written");
    let mut plans = Vec::new();
    for (volume, name, kept_bytes) in [(0, "new.img", None), (1, "kept.img", Some(8192))] {
        let place = Place::Path(scratch.directory.join(name));
        let spec = StoreSpec { place, ..scratch.plan.spec.clone() };
        plans.push(Plan { volume: VolumeId(volume), spec, kept_bytes, ..scratch.plan.clone() });
    }
    let note = toml::to_string(&Begun::of(&plans)).expect("lists");
    let labels: Vec<Vec<u8>> =
        plans.iter().map(|plan| label(ClusterId(1), ResourceId(3), plan, 5)).collect();
    let record = Record { stores: 1, ..Record::default() };
    make(&plans, &labels, &record, false, &Arc::default()).expect("made");
    assert!(std::fs::metadata(&kept).expect("it is there").len() > VOLUME_BYTES);
    toml::from_str::<Begun>(&note).expect("what was written").undo();
    assert!(!scratch.directory.join("new.img").exists());
    assert!(std::fs::read(&kept).expect("it is there") == [7; 8192]);
    assert!(scratch.directory.join("volume.img").exists(), "it is of nothing that was begun");
}

/// A file of 8 KiB that a resource keeps, with its metadata in it or in a file beside it.
fn kept(scratch: &Scratch, beside: Option<&str>) -> (PathBuf, Plan) {
    let path = scratch.directory.join("kept.img");
    std::fs::write(&path, [7; 8192]).expect("written");
    let room = capacity_bytes(StoreKind::File, 8192);
    let beside = beside.map(|name| scratch.directory.join(name));
    let layout = Layout::new(room / SECTOR_BYTES, SLOTS);
    let plan = plan(VolumeId(0), room, layout, StoreKind::File, path.clone(), beside, false);
    (path, Plan { kept_bytes: Some(8192), ..plan })
}

/// The same, made part of resource 3 of cluster 1.
fn kept_and_made(scratch: &Scratch, beside: Option<&str>) -> (PathBuf, Plan) {
    let (path, plan) = kept(scratch, beside);
    let label = label(ClusterId(1), ResourceId(3), &plan, 5);
    let record = Record { stores: 1, ..Record::default() };
    let plans = std::slice::from_ref(&plan);
    make(plans, &[label], &record, false, &Arc::default()).expect("made");
    (path, plan)
}

#[test]
fn a_kept_file_has_its_length_again_also_where_its_removal_is_interrupted() {
    let (cluster, resource) = (ClusterId(1), ResourceId(3));
    for beside in [None, Some("metadata.img")] {
        let scratch = Scratch::new(Vec::new());
        let (path, plan) = kept_and_made(&scratch, beside);
        let plans = std::slice::from_ref(&plan);
        // Its disk fails once its superblock is gone: as if the process had ended then.
        let faults = store::FaultSpec { flush_errors_one_in: 1, ..Default::default() };
        let spec = StoreSpec { faults: Some(faults), ..plan.spec.clone() };
        remove_labelled(&Plan { spec, ..plan.clone() }, plans, cluster, resource).ok();
        assert!(std::fs::read(&path).expect("it stays") == [7; 8192], "{beside:?}");
    }
}

#[test]
fn a_removal_that_was_interrupted_goes_on() {
    let (cluster, resource) = (ClusterId(1), ResourceId(3));
    for beside in [None, Some("metadata.img")] {
        let scratch = Scratch::new(Vec::new());
        let (path, plan) = kept_and_made(&scratch, beside);
        let plans = std::slice::from_ref(&plan);
        store::give_back(&path, 8192).expect("its first step");
        for _ in 0..2 {
            remove_labelled(&plan, plans, cluster, resource).expect("the others");
            assert!(std::fs::read(&path).expect("it stays") == [7; 8192], "{beside:?}");
            assert!(beside.is_none_or(|name| !scratch.directory.join(name).exists()));
        }
    }
}

#[test]
fn a_file_is_gone_before_it_is_nobodys_so_that_a_removal_can_be_begun_again_at_any_moment() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new(Vec::new());
    let path = scratch.directory.join("volume.img");
    let plans = std::slice::from_ref(&scratch.plan);
    let seen = std::fs::File::open(&path).expect("it is there");
    let remove = || remove_labelled(&scratch.plan, plans, ClusterId(1), ResourceId(2));
    let superblock = || {
        let mut page = [0; 4096];
        let at = seen.metadata().expect("a file").len() - scratch.plan.layout.total_bytes;
        seen.read_exact_at(&mut page, at).expect("it is that long");
        Superblock::decode(&page).is_ok()
    };
    assert!(superblock());
    remove().expect("removed");
    assert!(
        !path.exists() && superblock(),
        "nobody finds it, and nothing of it was changed before"
    );
    remove().expect("there is nothing to remove");
    // Where something else leads to it, what is left there is nobody's.
    let scratch = Scratch::new(Vec::new());
    let other = scratch.directory.join("other.img");
    std::fs::hard_link(scratch.directory.join("volume.img"), &other).expect("another name");
    let plans = std::slice::from_ref(&scratch.plan);
    remove_labelled(&scratch.plan, plans, ClusterId(1), ResourceId(2)).expect("removed");
    let place = Place::Path(other);
    let spec = StoreSpec { place, ..scratch.plan.spec.clone() };
    let left = open(&Plan { spec, ..scratch.plan.clone() }, false).expect("it is a file");
    assert!(!scratch.directory.join("volume.img").exists() && !left.is_ours());
}

/// What a resource with two volumes knows of itself, with a second one of so many blocks.
fn knows(epoch: u64, blocks: u64) -> Configuration {
    let entry = |volume: u16, blocks: u64| VolumeEntry {
        volume: VolumeId(volume),
        sectors: blocks * 8,
        grows_to: None,
        block_bytes: 4096,
    };
    let member = MemberEntry {
        node: NodeId(1),
        kind: MemberKind::Replica,
        voter: VoterId(7),
        in_sync: true,
        incarnation: Incarnation(8),
    };
    let first =
        Configuration::first(vec![member], vec![entry(0, 2), entry(1, blocks)], Options::default());
    Configuration { epoch: Epoch(epoch), ..first }
}

/// Two files of 8 KiB that a resource keeps and knows that of.
fn two_kept(scratch: &Scratch) -> [Plan; 2] {
    let (_, plan) = kept(scratch, None);
    let plans = [0, 1].map(|volume| {
        let path = scratch.directory.join(format!("kept-{volume}.img"));
        std::fs::write(&path, [7; 8192]).expect("written");
        let spec = StoreSpec { place: Place::Path(path), ..plan.spec.clone() };
        Plan { volume: VolumeId(volume), spec, ..plan.clone() }
    });
    let labels = plans.each_ref().map(|plan| label(ClusterId(1), ResourceId(3), plan, 5));
    let record = Record::first(&knows(1, 2), NodeId(1), 0).expect("a member");
    make(&plans, &labels, &record, false, &Arc::default()).expect("made");
    plans
}

/// The next record of the first volume's store.
fn record(plan: &Plan, stores: u64, committed: Configuration, accepted: Option<Configuration>) {
    let ballot = |round| Ballot { round, node: NodeId(1) };
    let record = Record {
        stores,
        committed: Some((ballot(1), Box::new(committed))),
        accepted: accepted.map(|accepted| (ballot(2), Box::new(accepted))),
        ..Record::first(&knows(1, 2), NodeId(1), 0).expect("a member")
    };
    let mut store = open(plan, false).expect("opened");
    let at = plan.layout.record_offset(record.copy());
    let mut blocking = Blocking::new().expect("hands");
    blocking.write(&mut store, at, &record_bytes(&record)).expect("written");
}

/// Removes a store; the length of the file that is left.
fn left_of(plan: &Plan, all: &[Plan]) -> u64 {
    remove_labelled(plan, all, ClusterId(1), ResourceId(3)).expect("removed");
    std::fs::metadata(plan.what()).expect("it stays").len()
}

#[test]
fn a_kept_file_has_room_for_all_that_its_volume_may_hold() {
    let changes = [
        (knows(5, 2), None, 2),
        (knows(5, 4), None, 4),
        (knows(5, 4), Some(knows(6, 6)), 6),
        (knows(5, 4), Some(knows(6, 2)), 4),
        // Of what was decided otherwise since nothing counts.
        (knows(5, 4), Some(knows(5, 6)), 4),
        (knows(5, 1), Some(knows(4, 6)), 1),
    ];
    for (committed, accepted, blocks) in changes {
        let scratch = Scratch::new(Vec::new());
        let plans = two_kept(&scratch);
        record(&plans[0], 2, committed, accepted);
        assert_eq!(left_of(&plans[1], &plans), blocks * 4096);
        assert_eq!(left_of(&plans[0], &plans), 8192);
    }
}

#[test]
fn a_kept_file_of_which_nobody_knows_how_long_its_volume_was_loses_nothing() {
    let whole = |plan: &Plan| std::fs::metadata(plan.what()).expect("it is there").len();
    for what in ["gone", "damaged", "another copy's", "another volume's"] {
        let scratch = Scratch::new(Vec::new());
        let plans = two_kept(&scratch);
        let mut all = plans.to_vec();
        let mut store = open(&plans[0], false).expect("opened");
        let mut blocking = Blocking::new().expect("hands");
        match what {
            "gone" => std::fs::remove_file(plans[0].what()).expect("removed"),
            "damaged" => {
                // The newer copy of the record: the older one says how long it was before.
                let at = plans[0].layout.record_offset(0);
                blocking.write(&mut store, at, &[9; 4096]).expect("written");
            }
            "another copy's" => {
                let label = label(ClusterId(1), ResourceId(3), &plans[0], 6);
                let at = plans[0].layout.superblock;
                blocking.write(&mut store, at, &label).expect("written");
            }
            _ => drop(all.remove(0)),
        }
        drop(store);
        let length = whole(&plans[1]);
        assert_eq!(left_of(&plans[1], &all), length, "{what}");
        assert!(open(&plans[1], true).is_ok_and(|store| !store.is_ours()), "it is nobody's");
    }
}

#[test]
fn a_copy_of_a_second_volume_is_as_large_as_it_has_grown() {
    let scratch = Scratch::new(Vec::new());
    let plans = two_kept(&scratch);
    record(&plans[0], 2, knows(5, 4), None);
    let make = |plans: &[Plan], blocks: u64| {
        let mut plans = plans.to_vec();
        plans.last_mut().expect("one").kept_bytes = Some(blocks * 4096);
        let of = |plan: &Plan| label(ClusterId(1), ResourceId(4), plan, 6);
        let labels: Vec<Vec<u8>> = plans.iter().map(of).collect();
        let record = Record::first(&knows(1, blocks), NodeId(1), 0).expect("a member");
        make(&plans, &labels, &record, true, &Arc::default()).map_err(|refused| refused.code.code)
    };
    assert_eq!(make(&plans, 2), Err("LS-0020"), "what it had when it was made");
    assert_eq!(make(&plans[1..], 2), Err("LS-0020"), "nobody says how large it is");
    assert_eq!(make(&plans, 4), Ok(()));
}

#[test]
fn a_disk_that_hangs_at_a_start_is_neither_older_than_it_is_nor_damaged() {
    let mut scratch = Scratch::new(Vec::new());
    let layout = scratch.plan.layout;
    let promised = base::Ballot { round: 7, node: NodeId(2) };
    let newest = Record { stores: 2, promised, ..Record::default() };
    let mut blocking = Blocking::new().expect("hands");
    let at = layout.record_offset(newest.copy());
    blocking.write(&mut scratch.open(), at, &record_bytes(&newest)).expect("written");
    let mut hung = 0;
    for seed in 0..16 {
        // One request of two is not answered before anybody loses patience.
        let stall = Duration::from_secs(3600);
        let faults = store::FaultSpec { seed, stalls_one_in: 2, stall, ..Default::default() };
        scratch.plan.spec.faults = Some(faults);
        let patience = Duration::from_millis(100);
        let mut blocking = Blocking::with_patience(patience).expect("hands");
        let mut volumes = [(scratch.plan.volume, layout, scratch.open())];
        match load(&mut blocking, &mut volumes) {
            Ok(found) => {
                // The other copy of the record knows of no promise.
                assert_eq!(found.record.as_ref(), Some(&newest), "seed {seed}");
                // Who cannot read its log gives its copy up.
                assert!(found.pages.iter().all(|(_, _, page)| page.is_some()), "seed {seed}");
            }
            Err(_) => hung += 1,
        }
    }
    assert!(hung > 0, "no seed stalls a request");
}

#[test]
fn a_page_that_cannot_be_read_makes_no_other_unknown() {
    let mut scratch = Scratch::new(vec![slot(2)]);
    let layout = scratch.plan.layout;
    (7..12).for_each(|page| scratch.write_bitmap(2, page, 3));
    scratch.plan.spec.faults = Some(store::FaultSpec::default());
    let mut store = scratch.open();
    let log = |half| MetaPage::Log { half, page: 3, copy: 1 };
    let bitmap = MetaPage::Bitmap { slot: 2, page: 9 };
    for place in [log(0), log(1), bitmap] {
        let at = store.size_bytes() + layout.page_offset(place);
        store.faults().expect("asked for").spoil(at..at + 512);
    }
    let mut blocking = Blocking::new().expect("hands");
    let mut volumes = [(scratch.plan.volume, layout, store)];
    let found = load(&mut blocking, &mut volumes).expect("read");
    let unread = found.pages.iter().filter(|(_, _, page)| page.is_none());
    let unread: Vec<MetaPage> = unread.map(|(_, place, _)| *place).collect();
    // What the last life had is not guessed; what the next one writes is begun anew.
    assert_eq!(unread, [log(0), bitmap]);
    let [(_, _, store)] = &mut volumes;
    let mut read = |place| blocking.read(store, layout.page_offset(place), PAGE_BYTES);
    assert!(read(log(0)).is_err());
    assert_eq!(read(log(1)), Ok(vec![0; 4096]));
    let bitmaps =
        found.pages.iter().filter(|(_, place, _)| matches!(place, MetaPage::Bitmap { .. }));
    assert_eq!(bitmaps.count(), 5);
}

/// A loop device over a file, detached at its end.
struct Loop(PathBuf);

impl Loop {
    /// `None` where none can be had.
    fn new(file: &Path, block_bytes: u32) -> Option<Loop> {
        let output = std::process::Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_bytes.to_string()])
            .arg(file)
            .output()
            .ok()?;
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then(|| Loop(name.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        std::process::Command::new("losetup").arg("--detach").arg(&self.0).status().ok();
    }
}

#[test]
fn metadata_on_a_device_that_held_something_else_begins_empty_also_beside_a_file() {
    let scratch = Scratch::new(Vec::new());
    let layout = Layout::new(VOLUME_BYTES / SECTOR_BYTES, SLOTS);
    let image = scratch.directory.join("metadata.img");
    let length = usize::try_from(layout.total_bytes).expect("a few MiB");
    std::fs::write(&image, vec![0xa5; length]).expect("written");
    let Some(device) = Loop::new(&image, 512) else { return println!("NOT RUN: no loop device") };
    let (path, room) = (scratch.directory.join("data.img"), VOLUME_BYTES);
    let metadata = Some(device.0.clone());
    let plan = plan(VolumeId(0), room, layout, StoreKind::File, path, metadata, false);
    let record = Record { stores: 1, ..Record::default() };
    let labels = [label(ClusterId(1), ResourceId(3), &plan, 5)];
    let plans = std::slice::from_ref(&plan);
    let refused = make(plans, &labels, &record, false, &Arc::default()).expect_err("what is that?");
    assert_eq!(refused.code.code, codes::STORE_NOT_EMPTY.code);
    assert!(refused.message.contains(device.0.to_str().expect("a name")), "{refused}");
    let there = std::fs::read(&image).expect("read");
    assert!(there.iter().all(|&byte| byte == 0xa5), "it is as it was");
    make(plans, &labels, &record, true, &Arc::default()).expect("made");
    let mut blocking = Blocking::new().expect("hands");
    let mut volumes = [(plan.volume, layout, open(&plan, false).expect("opened"))];
    let found = load(&mut blocking, &mut volumes).expect("read");
    assert_eq!(found.record, Some(record));
    assert!(found.pages.iter().all(|(_, _, page)| page.is_some_and(|page| page == [0; 4096])));
    let (at, length) = (layout.sums, layout.total_bytes - layout.sums);
    let sums = blocking.read(&mut volumes[0].2, at, length).expect("read");
    assert!(sums.iter().all(|&byte| byte == 0));
}

#[test]
fn a_device_whose_blocks_are_larger_than_those_of_the_volume_is_refused() {
    let scratch = Scratch::new(Vec::new());
    let image = scratch.directory.join("device.img");
    let layout = Layout::new((16 << 20) / SECTOR_BYTES, SLOTS);
    let file = std::fs::File::create(&image).expect("made");
    file.set_len((16 << 20) + layout.total_bytes).expect("longer");
    let device = |block_bytes| {
        Loop::new(&image, block_bytes).ok_or_else(|| println!("NOT RUN: no loop device"))
    };
    let planned = |device: &Loop, block_bytes| {
        let (path, room) = (device.0.clone(), 16 << 20);
        let plan = plan(VolumeId(0), room, layout, StoreKind::Device, path, None, false);
        Plan { block_bytes, ..plan }
    };
    let made = |plan: &Plan| {
        let label = label(ClusterId(1), ResourceId(3), plan, 5);
        let record = Record { stores: 1, ..Record::default() };
        make(std::slice::from_ref(plan), &[label], &record, false, &Arc::default())
    };
    // Each write of one sector would be taken for a failure of the disk.
    let Ok(large) = device(4096) else { return };
    let refused = made(&planned(&large, 512)).expect_err("it cannot write 512 bytes");
    assert!(refused.message.contains("4096"), "{refused}");
    drop(large);
    let Ok(small) = device(512) else { return };
    made(&planned(&small, 512)).expect("it can");
    open_to_serve(&planned(&small, 512)).expect("it can");
    drop(small);
    // Moved to another disk.
    let Ok(large) = device(4096) else { return };
    let refused = open_to_serve(&planned(&large, 512)).map(drop).expect_err("it cannot any more");
    assert!(refused.message.contains("4096"), "{refused}");
    open_to_serve(&planned(&large, 4096)).expect("it can write 4096");
}

#[test]
fn a_device_that_holds_what_nobody_here_knows_is_not_made_zero_unless_that_is_said() {
    const DEVICE_BYTES: usize = 96 << 20;
    let scratch = Scratch::new(Vec::new());
    let image = scratch.directory.join("device.img");
    let room = 16 << 20;
    let layout = Layout::new(room / SECTOR_BYTES, SLOTS);
    let made = |device: &Loop, force| {
        let path = device.0.clone();
        let plan = plan(VolumeId(0), room, layout, StoreKind::Device, path, None, false);
        let labels = [label(ClusterId(1), ResourceId(3), &plan, 5)];
        let record = Record { stores: 1, ..Record::default() };
        make(std::slice::from_ref(&plan), &labels, &record, force, &Arc::default())
    };
    // A database's first page, and a label that somebody has at the end.
    for at in [8192, DEVICE_BYTES - 4096] {
        let mut bytes = vec![0; DEVICE_BYTES];
        bytes[at] = 7;
        std::fs::write(&image, &bytes).expect("written");
        let Some(device) = Loop::new(&image, 512) else {
            return println!("NOT RUN: no loop device");
        };
        let refused = made(&device, false).expect_err("what is that?");
        assert_eq!(refused.code.code, codes::STORE_NOT_EMPTY.code);
        assert!(std::fs::read(&image).expect("read") == bytes, "it is as it was");
        made(&device, true).expect("it may go");
    }
    // Where nobody looks for what it is it may be anything, as on a disk of which both ends were made zero.
    let mut bytes = vec![0; DEVICE_BYTES];
    bytes[1 << 20] = 7;
    std::fs::write(&image, &bytes).expect("written");
    let Some(device) = Loop::new(&image, 512) else { return println!("NOT RUN: no loop device") };
    made(&device, false).expect("nothing is there");
}

#[test]
fn a_device_of_another_size_than_it_had_is_not_said_to_hold_something_that_could_go() {
    const DEVICE_BYTES: u64 = 96 << 20;
    let scratch = Scratch::new(Vec::new());
    let path = scratch.directory.join("device.img");
    let room = 16 << 20;
    let layout = Layout::new(room / SECTOR_BYTES, SLOTS);
    let file = std::fs::File::create(&path).expect("made");
    file.set_len(DEVICE_BYTES).expect("longer");
    let plan = plan(VolumeId(0), room, layout, StoreKind::Device, path, None, false);
    let labels = [label(ClusterId(1), ResourceId(3), &plan, 5)];
    let record = Record { stores: 1, ..Record::default() };
    make(std::slice::from_ref(&plan), &labels, &record, false, &Arc::default()).expect("made");
    // A client's ext4.
    file.write_all_at(b"\x53\xef", 1080).expect("written");
    open_to_serve(&plan).expect("it is the copy");
    for size_bytes in [DEVICE_BYTES + (1 << 20), 2 * DEVICE_BYTES] {
        file.set_len(size_bytes).expect("longer");
        let refused = open_to_serve(&plan).map(drop).expect_err("where is its label?");
        assert_eq!(refused.code.code, codes::STORE_UNLABELLED.code);
        assert!(refused.message.contains("has its size been changed?"), "{refused}");
        assert!(!refused.code.remedy.contains("--force"), "that would lose the copy");
        file.set_len(DEVICE_BYTES).expect("as it was");
        open_to_serve(&plan).expect("nothing of it was lost");
    }
    file.set_len(DEVICE_BYTES - layout.total_bytes).expect("shorter");
    let refused = open_to_serve(&plan).map(drop).expect_err("it is cut off");
    assert_eq!(refused.code.code, codes::STORE_UNLABELLED.code);
}

/// A directory in memory, which goes with it.
struct InMemory(PathBuf);

impl Drop for InMemory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn eight_gibibytes_of_persistent_memory_hold_the_metadata_of_a_hundred_volumes_of_a_tebibyte_on_three_nodes()
 {
    const TEBIBYTE: u64 = 1 << 40;
    if !Path::new("/dev/shm").is_dir() {
        return println!("NOT RUN: there is no /dev/shm");
    }
    let memory = InMemory(PathBuf::from(format!("/dev/shm/lockstepd-{:x}", sys::random_u64())));
    std::fs::create_dir(&memory.0).expect("made");
    let scratch = Scratch::new(Vec::new());
    let (path, metadata) = (scratch.directory.join("data.img"), memory.0.join("metadata"));
    let layout = Layout::new(TEBIBYTE / SECTOR_BYTES, SLOTS);
    let beside = Some(metadata.clone());
    let plan = plan(VolumeId(0), TEBIBYTE, layout, StoreKind::File, path, beside, false);
    let first = Record { stores: 1, slots: vec![slot(0), slot(1)], ..Record::default() };
    let label = label(ClusterId(1), ResourceId(3), &plan, 5);
    make(std::slice::from_ref(&plan), &[label], &first, false, &Arc::default()).expect("made");
    let mut store = open(&plan, false).expect("opened");
    assert_eq!(store.metadata_in_place(), Some(MappedKind::Volatile));
    let mut blocking = Blocking::new().expect("hands");
    // All that is ever written of it without data checksums: both other nodes miss a block in every page of theirs.
    let mut write = |at, bytes: &[u8]| blocking.write(&mut store, at, bytes).expect("written");
    write(layout.record_offset(1), &record_bytes(&Record { stores: 3, ..first.clone() }));
    for place in layout.log_places() {
        write(layout.page_offset(place), &[7; 4096]);
    }
    for (slot, page) in
        (0..2).flat_map(|slot| (0..layout.bitmap_pages).map(move |page| (slot, page)))
    {
        let at = layout.page_offset(MetaPage::Bitmap { slot, page });
        write(at, &encode_bitmap_page(plan.volume, slot, page, 3, &[1])[..]);
    }
    let taken = std::fs::metadata(&metadata).expect("it is there").blocks() * 512;
    assert!(
        taken > 64 << 20,
        "the bits of two nodes alone are 64 MiB, and {taken} bytes are taken"
    );
    assert!(100 * taken <= 8 << 30, "{taken} bytes are taken by one volume");
}

#[test]
fn a_replica_is_nobodys_before_another_is_labelled_in_its_place() {
    let scratch = Scratch::new(Vec::new());
    let path = scratch.directory.join("device.img");
    let layout = Layout::new((16 << 20) / SECTOR_BYTES, SLOTS);
    let file = std::fs::File::create(&path).expect("made");
    file.set_len((16 << 20) + layout.total_bytes).expect("longer");
    let plan = plan(VolumeId(0), 16 << 20, layout, StoreKind::Device, path, None, false);
    let label = |id| [label(ClusterId(1), ResourceId(id), &plan, 5)];
    let record = Record { stores: 1, ..Record::default() };
    let plans = std::slice::from_ref(&plan);
    let given_up = Arc::new(AtomicBool::new(true));
    let refused = make(plans, &label(3), &record, false, &given_up);
    refused.expect_err("nobody wants it any more");
    make(plans, &label(3), &record, false, &Arc::default()).expect("nothing was there");
    assert!(open(&plan, false).expect("opened").is_ours());
    let mut blocking = Blocking::new().expect("hands");
    assert!(free(&mut blocking, &plan, false).is_err(), "it holds a replica");
    assert!(open(&plan, false).expect("opened").is_ours());
    let mut store = free(&mut blocking, &plan, true).expect("forced");
    assert!(empty(&mut blocking, &mut store, &plan, true).is_ok());
    drop(store);
    // Here the process dies: half of what was there may be zero.
    assert!(!open(&plan, true).expect("opened").is_ours());
}

#[test]
fn a_replica_with_another_layout_is_nobodys_before_its_device_is_taken_by_force() {
    let scratch = Scratch::new(Vec::new());
    let image = scratch.directory.join("device.img");
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(96 << 20).expect("longer");
    let Some(device) = Loop::new(&image, 512) else { return println!("NOT RUN: no loop device") };
    let planned = |room: u64, log_extents| {
        let pages = LogSize::of(log_extents).pages;
        let layout = Layout::with_log(room / SECTOR_BYTES, SLOTS, pages);
        plan(VolumeId(0), room, layout, StoreKind::Device, device.0.clone(), None, false)
    };
    // The label of the first lies in what the second has for data, behind its volume.
    let (first, second) = (planned(16 << 20, 16_384), planned(4 << 20, 64));
    let label = label(ClusterId(1), ResourceId(3), &first, 5);
    let record = Record { stores: 1, ..Record::default() };
    make(std::slice::from_ref(&first), &[label], &record, false, &Arc::default()).expect("made");
    assert!(open(&first, false).expect("opened").is_ours());
    let mut blocking = Blocking::new().expect("hands");
    let refused = free(&mut blocking, &second, false).map(drop).expect_err("it holds a replica");
    assert_eq!(refused.code.code, codes::STORE_NOT_EMPTY.code);
    assert!(open(&first, false).expect("opened").is_ours(), "it is as it was");
    let mut store = free(&mut blocking, &second, true).expect("forced");
    empty(&mut blocking, &mut store, &second, true).expect("emptied");
    drop(store);
    assert!(!open(&first, true).expect("opened").is_ours());
}

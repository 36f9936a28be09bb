//! Disks that become full, that lose a part of their cache in a power cut, or that others have laid out, under real nodes.

mod harness;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{Cluster, Volume, content, run, run_status, text};
use wire::admin::{Command, FileVolume, Operation, ReplicaState, ReplicaStatus};
use wire::{Durability, OnIoError};

const MIB: u64 = 1 << 20;
const NAME: &str = "alpha";

/// A node's disk has no more room after so many bytes.
fn fill_up(cluster: &Cluster, node: u16, full_after_bytes: u64) {
    cluster.add_settings(node, "allow_faults = true");
    cluster.append_settings(node, &full(full_after_bytes));
}

fn full(full_after_bytes: u64) -> String {
    format!("[faults]\nfull_after_bytes = {full_after_bytes}\n")
}

/// What `asked` says of the replica on `node`.
fn replica(cluster: &Cluster, asked: u16, node: u16) -> ReplicaStatus {
    let status = cluster.status(asked, NAME);
    status.replicas.into_iter().find(|replica| replica.node_id == node).expect("a replica")
}

fn wait_detached(cluster: &Cluster, asked: u16, node: u16) {
    cluster.wait_for("the full disk to be given up", || {
        let replica = replica(cluster, asked, node);
        let out = replica.state == ReplicaState::Detached && !replica.in_sync;
        if out { Ok(()) } else { Err(format!("{replica:?}")) }
    });
}

/// The node itself names the cause, and what helps.
fn says_that_it_is_full(cluster: &Cluster, node: u16) {
    let own = cluster.status(node, NAME);
    let named = |text: &str| text.contains("No space left") && text.contains("make room");
    assert!(own.warnings.iter().any(|warning| named(warning)), "{own:?}");
    assert!(replica(cluster, node, node).reason.is_some_and(|why| named(&why)), "{own:?}");
    let log = cluster.log(node);
    assert!(log.contains("its disk failed a request (a write): No space left"), "{log}");
}

fn copies_are_equal(cluster: &Cluster, nodes: &[u16]) {
    let dumps: Vec<String> = nodes.iter().map(|&node| cluster.dump(node, NAME)).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
}

/// Writes step by step; how many steps went well before the first that did not.
fn write_steps(volume: &mut Volume, seed: u64, steps: u64) -> u64 {
    let write = |step: &u64| volume.write(step * MIB, &content(seed + step, 1 << 16)).is_ok();
    u64::try_from((0..steps).take_while(write).count()).expect("a few")
}

fn assert_steps(volume: &mut Volume, seed: u64, steps: u64) {
    for step in 0..steps {
        let read = volume.read(step * MIB, 1 << 16).expect("read");
        assert!(read == content(seed + step, 1 << 16), "step {step} does not read as written");
    }
}

#[test]
fn a_replica_whose_disk_becomes_full_is_left_behind_by_name_and_comes_back_with_room() {
    let mut cluster = Cluster::new("full-replica", 3);
    fill_up(&cluster, 3, 2 * MIB);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, NAME);
    assert_eq!(write_steps(&mut volume, 100, 60), 60, "no client sees that one copy is full");
    wait_detached(&cluster, 1, 3);
    says_that_it_is_full(&cluster, 3);
    let mut there = cluster.open(3, NAME);
    assert_steps(&mut there, 100, 60);
    drop(there);
    cluster.stop(3);
    cluster.change_settings(3, &full(2 * MIB), "");
    cluster.start(3);
    cluster.wait_in_sync(1, NAME, &[1, 2, 3]);
    assert_eq!(replica(&cluster, 3, 3).reason, None);
    assert_steps(&mut volume, 100, 60);
    drop(volume);
    copies_are_equal(&cluster, &[1, 2, 3]);
}

/// Whether the record on a node's disk says that its last process ended in good order.
fn is_closed(cluster: &Cluster, node: u16) -> bool {
    let image = cluster.home(node).join("volumes/alpha-0.img");
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_lockstepd"))
        .args(["dump", text(&image)])
        .output();
    let said = String::from_utf8(program.expect("it is built").stdout).expect("text");
    let clean = said.lines().find_map(|line| line.trim().strip_prefix("clean: "));
    clean.expect("the record is shown").starts_with("true")
}

#[test]
fn a_disk_that_failed_a_flush_is_not_closed_in_good_order() {
    let mut cluster = Cluster::new("not-closed", 1);
    cluster.add_settings(1, "allow_faults = true");
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    let mut volume = cluster.open(1, NAME);
    assert_eq!(write_steps(&mut volume, 100, 8), 8);
    drop(volume);
    assert!(cluster.stop(1));
    assert!(is_closed(&cluster, 1), "nothing failed");
    cluster.append_settings(1, "[faults]\nseed = 1\nflush_errors_one_in = 4\n");
    cluster.start(1);
    let mut volume = cluster.open(1, NAME);
    let mut flushes = (0..60).map(|step| {
        volume.write(step * MIB, &content(step, 4096)).expect("written");
        volume.flush()
    });
    assert!(flushes.any(|flushed| flushed.is_err()), "there is no other copy");
    drop(volume);
    assert!(cluster.stop(1));
    assert!(!is_closed(&cluster, 1), "what the disk lost nobody can say");
}

#[test]
fn a_node_whose_disk_is_full_when_it_starts_serves_from_the_others_and_comes_back_with_room() {
    let mut cluster = Cluster::new("full-start", 3);
    for node in 1..=3 {
        cluster.add_settings(node, "allow_faults = true");
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, NAME);
    assert_eq!(write_steps(&mut volume, 300, 60), 60);
    // What it wrote last was hot, which has to be recorded before anything else.
    cluster.kill(3);
    cluster.append_settings(3, &full(1));
    cluster.start(3);
    wait_detached(&cluster, 3, 3);
    let mut there = cluster.open(3, NAME);
    assert_steps(&mut there, 300, 60);
    there.write(63 * MIB, &content(9, 4096)).expect("the others take it");
    drop(there);
    cluster.kill(3);
    cluster.change_settings(3, &full(1), "");
    cluster.start(3);
    cluster.wait_in_sync(1, NAME, &[1, 2, 3]);
    assert_steps(&mut volume, 300, 60);
    drop(volume);
    copies_are_equal(&cluster, &[1, 2, 3]);
}

/// The primary's own disk becomes full. Returns the cluster when that is so, and how many steps were written.
fn primary_becomes_full(name: &str, threads: u16, on_io_error: OnIoError) -> (Cluster, u64) {
    let mut cluster = Cluster::new(name, 3);
    fill_up(&cluster, 1, 2 * MIB);
    cluster.add_settings(1, &format!("threads = {threads}"));
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource(NAME, 64 * MIB, &[1, 2, 3]);
    file.options.on_io_error = on_io_error;
    cluster.create(&file);
    let mut volume = cluster.open(1, NAME);
    let steps = write_steps(&mut volume, 200, 60);
    drop(volume);
    wait_detached(&cluster, 1, 1);
    says_that_it_is_full(&cluster, 1);
    (cluster, steps)
}

/// After a restart with room all copies are equal, and hold what was acknowledged.
fn comes_back(mut cluster: Cluster, steps: u64) {
    let mut other = cluster.open(2, NAME);
    assert_steps(&mut other, 200, steps);
    other.write(63 * MIB, &content(9, 4096)).expect("the others serve");
    cluster.stop(1);
    cluster.change_settings(1, &full(2 * MIB), "");
    cluster.start(1);
    cluster.wait_in_sync(2, NAME, &[1, 2, 3]);
    drop(other);
    copies_are_equal(&cluster, &[1, 2, 3]);
    assert_steps(&mut cluster.open(1, NAME), 200, steps);
}

#[test]
fn a_primary_whose_disk_becomes_full_goes_on_with_the_other_copies() {
    let (cluster, steps) = primary_becomes_full("full-primary", 1, OnIoError::Detach);
    assert_eq!(steps, 60, "its clients see no error");
    comes_back(cluster, steps);
}

#[test]
fn a_primary_that_passes_errors_on_tells_its_client_that_its_disk_is_full() {
    let (cluster, steps) = primary_becomes_full("full-told", 2, OnIoError::PassOn);
    assert!((1..60).contains(&steps), "{steps} steps without an error");
    comes_back(cluster, steps);
}

#[test]
fn the_only_copy_that_becomes_full_fails_what_it_cannot_write_and_keeps_what_it_has() {
    let mut cluster = Cluster::new("full-alone", 1);
    fill_up(&cluster, 1, 2 * MIB);
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 64 * MIB, &[1]));
    let mut volume = cluster.open(1, NAME);
    // All in extents that are hot by then: what finds no room is data.
    let mut count = 0;
    while volume.write(count % 1024 * 4096, &content(count, 4096)).is_ok() {
        count += 1;
    }
    assert!((256..512).contains(&count), "{count} blocks were written to a disk of 2 MiB");
    // In an extent that is cold: what finds no room is a page of the activity log.
    volume.write(60 * MIB, &content(1, 4096)).expect_err("nothing is written before its log page");
    says_that_it_is_full(&cluster, 1);
    let reads = |volume: &mut Volume| {
        for block in 0..count {
            let read = volume.read(block * 4096, 4096).expect("reads go on");
            assert!(read == content(block, 4096), "block {block} does not read as written");
        }
    };
    reads(&mut volume);
    drop(volume);
    cluster.kill(1);
    cluster.change_settings(1, &full(2 * MIB), "");
    cluster.start(1);
    let mut volume = cluster.open(1, NAME);
    reads(&mut volume);
    volume.write(60 * MIB, &content(1, 4096)).expect("there is room again");
    volume.flush().expect("flushed");
}

/// Blocks of one client in a power cut, which nobody else writes.
const BLOCKS: u64 = 96;
const BLOCK_BYTES: u64 = 16 * 1024;
const CLIENTS: u64 = 3;
/// Writes of all clients before they flush no more, and then before the power is cut.
const WRITES: u64 = 700;
const WRITES_UNFLUSHED: u64 = 200;

/// What a client did with one block. Contents are numbered from 1; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    asked: u64,
    answered: u64,
    /// Answered when a flush was asked for that was answered, too.
    flushed: u64,
}

fn place(client: u64, block: u64) -> u64 {
    (client * BLOCKS + block) * BLOCK_BYTES
}

fn bytes_of(client: u64, block: u64, number: u64) -> Vec<u8> {
    let length = usize::try_from(BLOCK_BYTES).expect("small");
    match number {
        0 => vec![0; length],
        _ => content((number * CLIENTS + client) * BLOCKS + block, length),
    }
}

/// Writes at random places, at first with a flush now and then, until the power is gone.
fn run_client(mut volume: Volume, client: u64, count: &AtomicU64) -> Vec<Written> {
    let mut written = vec![Written::default(); usize::try_from(BLOCKS).expect("few")];
    let mut random = base::Prng::new(client + 1);
    loop {
        let block = random.next_u64() % BLOCKS;
        let entry = &mut written[usize::try_from(block).expect("few")];
        entry.asked += 1;
        if volume.write(place(client, block), &bytes_of(client, block, entry.asked)).is_err() {
            return written;
        }
        entry.answered = entry.asked;
        let flushes = count.fetch_add(1, Ordering::Relaxed) < WRITES;
        if flushes && random.once_in(80) {
            if volume.flush().is_err() {
                return written;
            }
            for entry in &mut written {
                entry.flushed = entry.answered;
            }
        }
    }
}

/// Three nodes lose their power under load, and each the part of its cache that its seed says. Gives, for each page
/// of each block, what was done with the block and which of its contents the page has now.
fn power_cut(name: &str, durability: Durability) -> Vec<(Written, u64)> {
    let mut cluster = Cluster::new(name, 3);
    for node in 1..=3 {
        cluster.add_settings(node, "allow_faults = true");
        let faults = "[faults]\nvolatile_cache = true\nwritten_back_one_in = 2\n";
        cluster.append_settings(node, &format!("{faults}seed = {}\n", 7 * node));
        cluster.start(node);
    }
    let mut file = cluster.resource(NAME, 64 * MIB, &[1, 2, 3]);
    file.options.durability = durability;
    cluster.create(&file);
    let volumes: Vec<Volume> = (1..=3).map(|node| cluster.open(node, NAME)).collect();
    let count = AtomicU64::new(0);
    let written: Vec<Vec<Written>> = std::thread::scope(|scope| {
        let run = |(client, volume)| {
            scope.spawn({
                let count = &count;
                move || run_client(volume, client, count)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).zip(volumes).map(run).collect();
        cluster.wait_for("enough to be written", || match count.load(Ordering::Relaxed) {
            enough if enough >= WRITES + WRITES_UNFLUSHED => Ok(()),
            few => Err(format!("{few} writes")),
        });
        (1..=3).for_each(|node| cluster.kill(node));
        clients.into_iter().map(|client| client.join().expect("it ends")).collect()
    });
    (1..=3).for_each(|node| cluster.start(node));
    // Where copies differ that of the primary is taken: now it is another, whose copy is to have what counts as well.
    let promote =
        || Command::Operation { resource: NAME.to_owned(), operation: Operation::Promote {} };
    cluster.wait_for("another primary", || cluster.ask(3, promote()).map(drop));
    let mut volumes: Vec<Volume> = (1..=3).map(|node| cluster.open(node, NAME)).collect();
    let mut pages = Vec::new();
    for (client, blocks) in (0..CLIENTS).zip(&written) {
        for (block, &entry) in (0..BLOCKS).zip(blocks) {
            let length = u32::try_from(BLOCK_BYTES).expect("small");
            let read =
                |volume: &mut Volume| volume.read(place(client, block), length).expect("read");
            let found: Vec<Vec<u8>> = volumes.iter_mut().map(read).collect();
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "nodes read differently");
            pages.extend(contents(client, block, entry, &found[0]).map(|number| (entry, number)));
        }
    }
    drop(volumes);
    cluster.wait_in_sync(1, NAME, &[1, 2, 3]);
    copies_are_equal(&cluster, &[1, 2, 3]);
    pages
}

/// Which content each page of a block has.
fn contents(client: u64, block: u64, entry: Written, found: &[u8]) -> impl Iterator<Item = u64> {
    let all: Vec<Vec<u8>> =
        (0..=entry.asked).map(|number| bytes_of(client, block, number)).collect();
    found
        .chunks(4096)
        .enumerate()
        .map(move |(page, bytes)| {
            let same = |all: &Vec<u8>| all[page * 4096..][..4096] == *bytes;
            let number = all.iter().position(same);
            let number =
                number.unwrap_or_else(|| panic!("{entry:?}: page {page} was never written so"));
            u64::try_from(number).expect("few")
        })
        .collect::<Vec<u64>>()
        .into_iter()
}

#[test]
fn a_power_cut_of_all_nodes_takes_any_part_of_what_was_not_flushed_and_nothing_else() {
    let pages = power_cut("cut-flush", Durability::Flush);
    for (entry, number) in &pages {
        assert!((entry.flushed..=entry.asked).contains(number), "{entry:?} reads {number}");
    }
    let lost = pages.iter().filter(|(entry, number)| *number < entry.answered).count();
    let kept = pages.iter().filter(|(entry, number)| *number > entry.flushed).count();
    assert!(lost > 0 && kept > 0, "{lost} pages lost a write, {kept} kept one: no part of a cache");
}

#[test]
fn a_power_cut_of_all_nodes_takes_no_acknowledged_write_where_writes_are_made_durable() {
    for (entry, number) in power_cut("cut-through", Durability::WriteThrough) {
        assert!((entry.answered..=entry.asked).contains(&number), "{entry:?} reads {number}");
    }
}

/// The superblock of a file with metadata at its end, and where it stands. Most of the file is a hole.
fn superblock(image: &Path) -> (std::fs::File, u64, [u8; 4096]) {
    let file = std::fs::File::options().read(true).write(true).open(image).expect("there");
    let size = file.metadata().expect("there").len();
    let mut page = [0; 4096];
    for at in (size - (256 << 20)..size).step_by(4096) {
        file.read_exact_at(&mut page, at).expect("read");
        if page.starts_with(b"LOCKSTEP") {
            return (file, at, page);
        }
    }
    panic!("no superblock in {}", image.display());
}

/// Where the kind of layout stands in a superblock, and where the offset of its first region.
const LAYOUT_AT: usize = 384;
const REGION_AT: usize = 76;

/// Changes a byte of the superblock, which stays a good one.
fn change(image: &Path, byte: usize, value: u8) {
    let (file, at, mut page) = superblock(image);
    page[byte] = value;
    let checksum = base::crc32c(&page[..4092]);
    page[4092..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&page, at).expect("written");
}

#[test]
fn a_disk_of_another_layout_is_refused_by_its_code_and_one_from_before_layouts_is_used() {
    let mut cluster = Cluster::new("layouts", 1);
    cluster.start(1);
    cluster.create(&cluster.resource(NAME, 16 * MIB, &[1]));
    let bytes = content(3, 1 << 16);
    let mut volume = cluster.open(1, NAME);
    volume.write(MIB, &bytes).expect("written");
    drop(volume);
    let image = cluster.home(1).join("volumes/alpha-0.img");
    assert!(cluster.stop(1));
    assert_eq!(superblock(&image).2[LAYOUT_AT], 1, "the layout `replica`");
    change(&image, LAYOUT_AT, 2);
    assert!(!run_status(&["check", text(&image)]));
    let before = superblock(&image).2;
    cluster.start(1);
    let status = cluster.status(1, NAME);
    let why = status.warnings.first().expect("it says why it has no disk");
    assert!(why.contains("LS-0024") && why.contains("stripe"), "{why}");
    assert_eq!(status.replicas[0].state, ReplicaState::Detached);
    assert_eq!(status.replicas[0].reason.as_ref(), Some(why));
    assert!(cluster.stop(1));
    assert_eq!(superblock(&image).2, before, "it is left alone");
    change(&image, LAYOUT_AT, 0);
    assert!(run_status(&["check", text(&image)]));
    cluster.start(1);
    assert_eq!(cluster.open(1, NAME).read(MIB, 1 << 16).expect("read"), bytes);
    assert!(cluster.stop(1));
    change(&image, REGION_AT, 1);
    cluster.start(1);
    let status = cluster.status(1, NAME);
    let why = status.warnings.first().expect("it says why it has no disk");
    assert!(why.contains("LS-0023") && why.contains("Records stand elsewhere"), "{why}");
}

/// Where the read-only features stand in a superblock.
const READ_ONLY_AT: usize = 20;

#[test]
fn a_disk_with_a_read_only_feature_that_is_unknown_is_read_by_tools_and_left_alone_by_its_node() {
    let mut cluster = Cluster::new("read-only", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 16 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, NAME);
    volume.write(MIB, &content(3, 1 << 16)).expect("written");
    assert!(cluster.stop(3));
    let image = cluster.home(3).join("volumes/alpha-0.img");
    change(&image, READ_ONLY_AT, 4);
    let written = || std::fs::metadata(&image).and_then(|facts| facts.modified()).expect("there");
    let (before, page) = (written(), superblock(&image).2);
    assert!(run_status(&["check", text(&image)]), "it may be read");
    assert!(run_status(&["dump", text(&image)]));
    let mut unread = std::process::Command::new(env!("CARGO_BIN_EXE_lockstepd"))
        .args(["dump", text(&image)])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it is built");
    drop(unread.stdout.take());
    assert!(unread.wait().expect("it ends").success(), "whoever reads it may have seen enough");
    cluster.start(3);
    wait_detached(&cluster, 3, 3);
    let status = cluster.status(3, NAME);
    let why = status.warnings.first().expect("it says why it has no disk");
    assert!(why.contains("LS-0024") && why.contains("features 0x4"), "{why}");
    volume.write(2 * MIB, &content(4, 1 << 16)).expect("the others go on");
    let mut there = cluster.open(3, NAME);
    assert_eq!(there.read(2 * MIB, 1 << 16).expect("read"), content(4, 1 << 16));
    assert!(cluster.stop(3));
    assert_eq!((written(), superblock(&image).2), (before, page), "nothing was written to it");
    change(&image, READ_ONLY_AT, 0);
    cluster.start(3);
    cluster.wait_in_sync(1, NAME, &[1, 2, 3]);
    drop((volume, there));
    copies_are_equal(&cluster, &[1, 2, 3]);
}

/// Where the length of the second region, that of the log, stands in a superblock.
const LOG_LENGTH_AT: usize = REGION_AT - 2 + 18 + 2 + 8;

#[test]
fn a_volume_has_the_activity_log_that_was_chosen_and_more_extents_are_hot_in_a_larger_one() {
    let mut cluster = Cluster::new("logs", 2);
    cluster.start(1);
    cluster.start(2);
    let (small, large) = ("small", "large");
    for (name, extents) in [(small, 64), (large, 2_000)] {
        let mut file = cluster.resource(name, 2 << 30, &[1, 2]);
        file.id = u64::from(extents);
        file.volumes[0].log_extents = extents;
        cluster.create(&file);
        let mut volume = cluster.open(1, name);
        for extent in 0..500 {
            volume.write(extent * 4 * MIB, &content(extent, 4096)).expect("written");
        }
    }
    cluster.kill(1);
    cluster.kill(2);
    let image = |name: &str| cluster.home(2).join(format!("volumes/{name}-0.img"));
    let length = |name: &str| {
        let page = superblock(&image(name)).2;
        u64::from_le_bytes(page[LOG_LENGTH_AT..][..8].try_into().expect("eight bytes"))
    };
    // Eight times as many pages as hold them, twice in two copies.
    assert_eq!((length(small), length(large)), (8 * 4 * 4096, 8 * 13 * 4 * 4096));
    let hot = |name: &str| {
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_lockstepd"))
            .args(["dump", text(&image(name))])
            .output();
        let said = String::from_utf8(program.expect("it is built").stdout).expect("text");
        said.lines().filter(|line| line.starts_with("hot: ")).count()
    };
    assert!(hot(small) <= 64, "{} extents are hot", hot(small));
    assert_eq!(hot(large), 500, "no extent had to turn cold");
    cluster.start(1);
    cluster.start(2);
    for name in [small, large] {
        cluster.wait_in_sync(1, name, &[1, 2]);
        let mut volume = cluster.open(2, name);
        assert_eq!(volume.read(499 * 4 * MIB, 4096).expect("read"), content(499, 4096));
    }
}

#[test]
fn a_store_that_is_gone_is_not_made_as_if_its_node_had_never_voted() {
    let mut cluster = Cluster::new("gone", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 8 * MIB, &[1, 2, 3]));
    cluster.open(1, NAME).write(0, &content(1, 4096)).expect("written");
    cluster.kill(3);
    std::fs::remove_file(cluster.home(3).join("volumes/alpha-0.img")).expect("removed");
    cluster.start(3);
    cluster.wait_for("node 3 to hear what the others decided", || {
        let epoch = cluster.status(3, NAME).epoch;
        if epoch > 1 { Ok(()) } else { Err(format!("epoch {epoch}")) }
    });
    let create = Command::ResourceCreate { resource: NAME.to_owned(), force: true };
    let refused = cluster.ask(3, create).expect_err("its vote is lost");
    assert!(format!("{refused:?}").contains("LS-0027"), "{refused:?}");
    wait_detached(&cluster, 1, 3);
    assert_eq!(cluster.open(3, NAME).read(0, 4096).expect("from the others"), content(1, 4096));
}

#[test]
fn a_part_that_a_node_hears_of_is_not_made_as_if_its_node_had_never_voted() {
    let mut cluster = Cluster::new("heard", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 8 * MIB, &[1, 2, 3]));
    cluster.open(1, NAME).write(0, &content(1, 4096)).expect("written");
    cluster.kill(3);
    // A new disk: neither the store nor the description is there.
    for lost in ["volumes", "resources"] {
        let directory = cluster.home(3).join(lost);
        std::fs::remove_dir_all(&directory)
            .and_then(|()| std::fs::create_dir(&directory))
            .expect("emptied");
    }
    cluster.start(3);
    wait_detached(&cluster, 1, 3);
    let create = Command::ResourceCreate { resource: NAME.to_owned(), force: true };
    let refused = cluster.ask(3, create).expect_err("its vote is lost");
    assert!(format!("{refused:?}").contains("LS-0027"), "{refused:?}");
    assert_eq!(cluster.open(3, NAME).read(0, 4096).expect("from the others"), content(1, 4096));
}

#[test]
fn the_disk_of_another_node_is_refused_and_all_is_well_when_it_is_back_in_its_place() {
    let mut cluster = Cluster::new("exchanged", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource(NAME, 8 * MIB, &[1, 2, 3]));
    cluster.open(3, NAME).write(0, &content(1, 4096)).expect("written");
    let image = |cluster: &Cluster, node| cluster.home(node).join("volumes/alpha-0.img");
    let exchange = |cluster: &mut Cluster| {
        for node in 1..=3 {
            cluster.kill(node);
        }
        let (one, two) = (image(cluster, 1), image(cluster, 2));
        let aside = one.with_extension("aside");
        for (from, to) in [(&one, &aside), (&two, &one), (&aside, &two)] {
            std::fs::rename(from, to).expect("renamed");
        }
        for node in 1..=3 {
            cluster.start(node);
        }
    };
    exchange(&mut cluster);
    for node in [1, 2] {
        let own = cluster.status(node, NAME);
        let refused = own.warnings.iter().any(|warning| warning.contains("LS-0025"));
        assert!(refused, "{:?}", own.warnings);
    }
    exchange(&mut cluster);
    cluster.wait_in_sync(3, NAME, &[1, 2, 3]);
    for node in 1..=3 {
        assert_eq!(cluster.open(node, NAME).read(0, 4096).expect("read"), content(1, 4096));
    }
}

#[test]
fn one_volume_of_several_that_is_put_back_to_an_older_state_is_refused() {
    const SECOND: &str = "alpha/1";
    let mut cluster = Cluster::new("older", 3);
    let all = |cluster: &mut Cluster, run: bool| {
        for node in 1..=3 {
            if run {
                cluster.start(node);
            } else {
                assert!(cluster.stop(node), "in good order");
            }
        }
    };
    all(&mut cluster, true);
    let mut file = cluster.resource(NAME, 8 * MIB, &[1, 2, 3]);
    let second = FileVolume { index: 1, ..file.volumes[0].clone() };
    file.volumes.push(second);
    cluster.create(&file);
    cluster.open(1, SECOND).write(0, &content(1, 4096)).expect("written");
    all(&mut cluster, false);
    let image = cluster.home(2).join("volumes/alpha-1.img");
    let old = image.with_extension("old");
    run("cp", &["--sparse=always", text(&image), text(&old)]);
    all(&mut cluster, true);
    cluster.open(1, SECOND).write(0, &content(2, 4096)).expect("written");
    all(&mut cluster, false);
    std::fs::rename(&old, &image).expect("put back");
    all(&mut cluster, true);
    assert_eq!(cluster.open(2, SECOND).read(0, 4096).expect("read"), content(2, 4096));
    let own = cluster.status(2, NAME);
    assert!(own.warnings.iter().any(|warning| warning.contains("LS-0023")), "{:?}", own.warnings);
}

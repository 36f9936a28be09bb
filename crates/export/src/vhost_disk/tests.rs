//! What a machine's disk does with requests, its memory and its record, without QEMU and without shards.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use base::{AnswerError, Op, SECTOR_BYTES};
use sys::{BufferPool, HANDLES_MAX, Handle, SharedMemory};
use vhost::Fault;

use super::{VhostDisk, VhostVolume};
use crate::nbd_connection::{Ask, Demand};
use crate::pieces::PIECE_BYTES;

const MIB: usize = 1 << 20;
const GUEST: u64 = 0x1_0000_0000;
const BYTES: u64 = 1 << 16;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const STATUS: u64 = 0x3100;
const DATA: u64 = 0x8000;
const FLUSH: u64 = 1 << 9;
const USUAL: u64 = FLUSH | 1 << 30 | 1 << 32;

fn volume() -> VhostVolume {
    VhostVolume { identity: 7, volume: 1, sectors: 1 << 15, block_bytes: 4096, lost: 3, shards: 2 }
}

/// A machine and its disk.
struct Rig {
    disk: VhostDisk,
    pool: BufferPool,
    memory: SharedMemory,
    kick: Handle,
    demands: Vec<Demand>,
    given: u16,
}

impl Rig {
    fn new(volume: VhostVolume, pool_bytes: usize) -> Rig {
        let (memory, handle) = SharedMemory::create(BYTES).unwrap();
        Rig::with(volume, pool_bytes, memory, handle)
    }

    fn with(volume: VhostVolume, pool_bytes: usize, memory: SharedMemory, handle: Handle) -> Rig {
        let zeroes = BufferPool::new(MIB).take_zeroed(MIB).unwrap();
        let pool = BufferPool::new(pool_bytes);
        let disk = VhostDisk::new(volume, pool.clone(), zeroes);
        let kick = Handle::new_event().unwrap();
        let mut rig = Rig { disk, pool, memory, kick, demands: Vec::new(), given: 0 };
        let mut table = vec![1, 0, 0, 0, 0, 0, 0, 0];
        for number in [GUEST, BYTES, 0, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
        rig.say(5, &table, vec![handle]);
        rig
    }

    fn say(&mut self, kind: u32, body: &[u8], handles: Vec<Handle>) {
        let mut bytes = Vec::new();
        for word in [kind, 1, u32::try_from(body.len()).unwrap()] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        let mut handles = Some(handles);
        // As it may come: in pieces.
        while !bytes.is_empty() && self.disk.wanted() > 0 {
            let count = self.disk.wanted().min(5).min(bytes.len());
            let rest = bytes.split_off(count);
            self.disk.received(&bytes, handles.take().unwrap_or_default());
            bytes = rest;
        }
    }

    fn begin(&mut self, features: u64) {
        self.say(2, &features.to_le_bytes(), Vec::new());
        let word = |number: u32| [[0; 4], number.to_le_bytes()].concat();
        self.say(8, &word(16), Vec::new());
        let mut addresses = word(0);
        for address in [0, USED, AVAILABLE, 0] {
            addresses.extend_from_slice(&address.to_le_bytes());
        }
        self.say(9, &addresses, Vec::new());
        let kick = self.kick.clone();
        self.say(12, &[0; 8], vec![kick]);
        self.say(18, &word(1), Vec::new());
    }

    /// Gives the request whose descriptors begin at `head`: a write or a read of a block.
    fn give(&mut self, head: u16, kind: u8, sector: u64) {
        self.give_all(head, kind, sector, &[4096]);
    }

    /// The same of as many bytes as all these parts have, each of which is in the same place.
    fn give_all(&mut self, head: u16, kind: u8, sector: u64, bytes: &[u32]) {
        let at = HEADER + 16 * u64::from(head);
        self.memory.write(at, &[kind, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        self.memory.write(at + 8, &sector.to_le_bytes()).unwrap();
        let data = if [0, 8].contains(&kind) { 3 } else { 1 };
        let mut parts = vec![(at, 16, 1)];
        parts.extend(bytes.iter().map(|&bytes| (DATA, bytes, data)));
        parts.push((STATUS + u64::from(head), 1, 2));
        for (number, (place, bytes, flags)) in (head..).zip(parts) {
            let at = 16 * u64::from(number);
            self.memory.write(at, &(GUEST + place).to_le_bytes()).unwrap();
            self.memory.write(at + 8, &u32::to_le_bytes(bytes)).unwrap();
            self.memory.store(at + 12, flags).unwrap();
            self.memory.store(at + 14, number + 1).unwrap();
        }
        self.memory.store(AVAILABLE + 4 + 2 * u64::from(self.given % 16), head).unwrap();
        self.given += 1;
        self.memory.store(AVAILABLE + 2, self.given).unwrap();
        self.kick.signal();
        let kick = self.kick.clone();
        self.disk.kicked(0, &kick);
    }

    /// What it asks of the shards.
    fn asks(&mut self) -> Vec<Ask> {
        self.disk.proceed(&mut self.demands);
        let asks = self.demands.drain(..).map(|demand| match demand {
            Demand::Ask(ask) => ask,
            _ => panic!("a disk only asks"),
        });
        asks.collect()
    }

    fn answered(&self) -> u16 {
        self.memory.load(USED + 2).unwrap()
    }

    fn status(&self, head: u16) -> u8 {
        let mut status = [0];
        self.memory.read(STATUS + u64::from(head), &mut status).unwrap();
        status[0]
    }
}

fn shape() -> Vec<u8> {
    let mut shape = vec![0; 20];
    (shape[16], shape[18]) = (1, 16);
    shape
}

/// Has a record made, and gone on with.
fn record(rig: &mut Rig) -> (Vec<u8>, Handle) {
    rig.say(31, &shape(), Vec::new());
    let (bytes, handle) = rig.disk.take_replies().pop().unwrap();
    let (shape, handle) = (bytes[12..].to_vec(), handle.unwrap());
    rig.say(32, &shape, vec![handle.clone()]);
    (shape, handle)
}

#[test]
fn a_machine_that_never_flushes_loses_nothing_by_that() {
    for (features, fua) in [(USUAL, false), (USUAL & !FLUSH, true)] {
        let mut rig = Rig::new(volume(), MIB);
        rig.begin(features);
        rig.give(0, 1, 8);
        let asks = rig.asks();
        assert_eq!((asks.len(), asks[0].op, asks[0].fua), (1, Op::Write, fua));
    }
}

#[test]
fn requests_wait_for_memory_in_their_order() {
    let mut rig = Rig::new(volume(), 4096);
    rig.begin(USUAL);
    rig.give(0, 1, 8);
    rig.give(3, 1, 16);
    rig.give(6, 0, 8);
    let mut asks = rig.asks();
    assert_eq!((asks.len(), rig.disk.starved()), (1, true), "the read is behind the writes");
    let first = asks.remove(0);
    rig.disk.answer(first.tag, Ok(()), None);
    drop(first.buffer);
    let mut asks = rig.asks();
    assert_eq!((asks.len(), asks[0].op), (1, Op::Write));
    assert_eq!((rig.answered(), rig.status(0)), (1, 0));
    let second = asks.remove(0);
    rig.disk.answer(second.tag, Ok(()), None);
    drop(second.buffer);
    let read = rig.asks().remove(0);
    assert_eq!((read.op, rig.pool.used_bytes()), (Op::Read, 4096), "what it will give has room");
    rig.disk.answer(read.tag, Ok(()), None);
    assert_eq!((rig.status(6), rig.pool.used_bytes()), (0, 0));
}

/// 64 KiB of memory, a request of twice that with one half begun, and a flush behind it.
fn half_begun(kind: u8) -> (Rig, Ask) {
    let mut rig = Rig::new(volume(), 1 << 16);
    rig.begin(USUAL);
    let edge = PIECE_BYTES / SECTOR_BYTES;
    rig.give_all(0, kind, edge - 128, &[1 << 15; 4]);
    rig.give_all(6, 4, 0, &[]);
    let mut asks = rig.asks();
    assert_eq!((asks.len(), asks[0].span.count(), rig.disk.starved()), (1, 128, true));
    (rig, asks.remove(0))
}

#[test]
fn a_request_goes_on_as_there_is_memory_and_nothing_behind_it_begins_before_its_end() {
    for (kind, op) in [(1, Op::Write), (0, Op::Read)] {
        let (mut rig, first) = half_begun(kind);
        rig.disk.answer(first.tag, Ok(()), None);
        drop(first.buffer);
        let mut asks = rig.asks();
        let edge = PIECE_BYTES / SECTOR_BYTES;
        assert_eq!((asks[0].op, asks[0].span.first()), (op, edge));
        assert_eq!(asks[1].op, Op::Flush, "it needs no memory, and is behind all of it");
        assert_eq!((rig.answered(), rig.pool.used_bytes()), (0, 1 << 16));
        let second = asks.remove(0);
        rig.disk.answer(second.tag, Ok(()), None);
        drop(second.buffer);
        assert_eq!((rig.answered(), rig.status(0), rig.pool.used_bytes()), (1, 0, 0));
        let mut told = [0; 4];
        rig.memory.read(USED + 8, &mut told).unwrap();
        let written = if op == Op::Read { (1 << 17) + 1 } else { 1 };
        assert_eq!(u32::from_le_bytes(told), written);
    }
}

#[test]
fn a_machine_that_asks_for_the_name_of_its_disk_is_told_how_long_it_is() {
    for (room, given) in [(20, 20), (4, 4), (64, 20)] {
        let mut rig = Rig::new(volume(), MIB);
        rig.begin(USUAL);
        rig.give_all(0, 8, 0, &[room]);
        assert!(rig.asks().is_empty());
        assert_eq!((rig.answered(), rig.status(0)), (1, 0));
        let mut told = [0; 4];
        rig.memory.read(USED + 8, &mut told).unwrap();
        assert_eq!(u32::from_le_bytes(told), given + 1, "and its status");
    }
}

#[test]
fn a_request_of_which_a_piece_failed_goes_no_further_and_fails_once() {
    let (mut rig, first) = half_begun(1);
    rig.disk.answer(first.tag, Err(AnswerError::Io), None);
    drop(first.buffer);
    let asks = rig.asks();
    assert!(asks.iter().all(|ask| ask.op == Op::Flush), "{asks:?}");
    assert_eq!((rig.answered(), rig.status(0), rig.pool.used_bytes()), (1, 1, 0));
}

#[test]
fn a_request_that_is_half_begun_is_left_to_the_next_process() {
    let (mut rig, first) = half_begun(1);
    rig.disk.shut_down();
    rig.disk.answer(first.tag, Ok(()), None);
    drop(first.buffer);
    assert!(rig.asks().is_empty());
    assert_eq!(rig.answered(), 0);
}

#[test]
fn what_was_lost_is_told_by_errors_whoever_serves_the_machine() {
    let mut rig = Rig::new(volume(), MIB);
    let (shape, handle) = record(&mut rig);
    rig.begin(USUAL);
    rig.give(0, 1, 8);
    assert_eq!(rig.asks().len(), 1);
    // Its process dies; caches are lost; the next one is asked again.
    let (memory, own) = SharedMemory::create(BYTES).unwrap();
    let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
    rig.memory.read(0, &mut bytes).unwrap();
    memory.write(0, &bytes).unwrap();
    let mut next = Rig::with(VhostVolume { lost: 4, ..volume() }, MIB, memory, own);
    next.say(32, &shape, vec![handle]);
    next.begin(USUAL);
    assert!(next.asks().is_empty());
    assert_eq!((next.answered(), next.status(0)), (1, 1));
    // A machine that begins now has seen nothing of it.
    let mut new = Rig::new(VhostVolume { lost: 4, ..volume() }, MIB);
    record(&mut new);
    new.begin(USUAL);
    new.give(0, 1, 8);
    let ask = new.asks().remove(0);
    new.disk.know_lost(5);
    new.disk.answer(ask.tag, Ok(()), None);
    assert_eq!((new.answered(), new.status(0)), (1, 0), "it was told nothing before");
    new.disk.know_lost(6);
    new.give(3, 1, 8);
    assert!(new.asks().is_empty() && new.status(3) == 1);
}

#[test]
fn the_record_of_another_volume_is_refused() {
    let mut rig = Rig::new(volume(), MIB);
    let (shape, handle) = record(&mut rig);
    for other in [VhostVolume { identity: 8, ..volume() }, VhostVolume { volume: 0, ..volume() }] {
        let mut rig = Rig::new(other, MIB);
        rig.say(32, &shape, vec![handle.clone()]);
        assert_eq!(rig.disk.fault(), Some(Fault::Inflight));
        assert_eq!(rig.disk.wanted(), 0, "and nothing more is heard");
    }
}

#[test]
fn no_more_descriptors_are_kept_for_a_message_than_any_has() {
    let handles = |count: usize| vec![Handle::new_event().unwrap(); count];
    for (counts, fault) in
        [([HANDLES_MAX, 0], None), ([HANDLES_MAX, 1], Some(Fault::Descriptors(0)))]
    {
        let mut rig = Rig::new(volume(), MIB);
        for count in counts {
            rig.disk.received(&[0], handles(count));
        }
        assert_eq!(rig.disk.fault(), fault);
        assert_eq!(rig.disk.wanted() == 0, fault.is_some(), "nothing more is heard");
    }
}

#[test]
fn memory_that_is_taken_away_cuts_the_machine_off() {
    let path = format!("/dev/shm/lockstep-machine-{:x}", sys::random_u64());
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(BYTES).unwrap();
    let handle = Handle::from(std::os::fd::OwnedFd::from(file.try_clone().unwrap()));
    let memory = SharedMemory::map(&handle, 0, BYTES).unwrap();
    let mut rig = Rig::with(volume(), MIB, memory, handle);
    rig.begin(USUAL);
    rig.give(0, 0, 8);
    let ask = rig.asks().remove(0);
    file.set_len(0).unwrap();
    rig.disk.answer(ask.tag, Ok(()), None);
    assert_eq!(rig.disk.fault(), Some(Fault::Gone));
    assert!(rig.asks().is_empty());
}

#[test]
fn a_disk_that_is_shut_down_leaves_errors_to_the_next_process() {
    let mut rig = Rig::new(volume(), MIB);
    let (shape, handle) = record(&mut rig);
    rig.begin(USUAL);
    rig.give(0, 1, 8);
    rig.give(3, 1, 16);
    let asks = rig.asks();
    rig.disk.shut_down();
    rig.give(6, 1, 24);
    rig.disk.answer(asks[0].tag, Err(AnswerError::Gone), None);
    rig.disk.answer(asks[1].tag, Ok(()), None);
    assert!(rig.asks().is_empty());
    assert_eq!((rig.answered(), rig.status(3)), (1, 0));
    let (memory, own) = SharedMemory::create(BYTES).unwrap();
    let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
    rig.memory.read(0, &mut bytes).unwrap();
    memory.write(0, &bytes).unwrap();
    let mut next = Rig::with(volume(), MIB, memory, own);
    next.say(32, &shape, vec![handle]);
    next.begin(USUAL);
    let firsts: Vec<u64> = next.asks().iter().map(|ask| ask.span.first()).collect();
    assert_eq!(firsts, [8, 24], "what is left, and then what is new");
}

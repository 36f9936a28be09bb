//! Requests of a kernel that is made up, with a volume of a few lines behind them.

use std::sync::{Arc, Mutex};

use base::{AnswerError, Op, SECTOR_BYTES};
use sys::{Buffer, BufferPool, Errno, UBLK_DEPTH, UblkOp, UblkRequest};

use super::{DiskData, UblkDisk};
use crate::nbd_connection::{Ask, Demand, Tag};
use crate::pieces::PIECE_BYTES;

const MIB: usize = 1 << 20;
const MIB_SECTORS: u32 = 2048;

/// What the kernel has under each tag.
#[derive(Default)]
struct Tags {
    requests: Vec<Option<UblkRequest>>,
    bytes: Vec<Vec<u8>>,
    /// Nothing can be copied any more.
    gone: bool,
}

#[derive(Clone, Default)]
struct Kernel(Arc<Mutex<Tags>>);

impl DiskData for Kernel {
    fn request(&self, tag: u16) -> UblkRequest {
        self.0.lock().expect("one thread").requests[usize::from(tag)].expect("it has come")
    }

    fn take(&self, tag: u16, offset: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        let tags = self.0.lock().expect("one thread");
        if tags.gone {
            return Err(Errno::INVALID);
        }
        let from = offset as usize;
        bytes.copy_from_slice(&tags.bytes[usize::from(tag)][from..from + bytes.len()]);
        Ok(())
    }

    fn give(&self, tag: u16, offset: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut tags = self.0.lock().expect("one thread");
        let from = offset as usize;
        tags.bytes[usize::from(tag)][from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

struct Bench {
    kernel: Kernel,
    disk: UblkDisk,
    volume: Vec<u8>,
    /// Pieces that were submitted and not answered.
    held: Vec<Ask>,
    pool: BufferPool,
}

impl Bench {
    fn new(memory: usize) -> Bench {
        let kernel = Kernel::default();
        {
            let mut tags = kernel.0.lock().expect("one thread");
            tags.requests.resize(usize::from(UBLK_DEPTH), None);
            tags.bytes.resize(usize::from(UBLK_DEPTH), Vec::new());
        }
        let pool = BufferPool::new(memory);
        let zeroes = BufferPool::new(MIB).take_zeroed(MIB).expect("room");
        let disk = UblkDisk::new(Box::new(kernel.clone()), pool.clone(), zeroes, 2);
        Bench { kernel, disk, volume: vec![0; 8 * MIB], held: Vec::new(), pool }
    }

    fn ask(&mut self, tag: u16, op: UblkOp, first: u64, count: u32) {
        self.ask_with(tag, UblkRequest { op, fua: false, first, count }, 0);
    }

    fn ask_with(&mut self, tag: u16, request: UblkRequest, fill: u8) {
        let mut tags = self.kernel.0.lock().expect("one thread");
        let index = usize::from(tag);
        tags.requests[index] = Some(request);
        let length = match request.op {
            UblkOp::Read | UblkOp::Write => request.count as usize * 512,
            _ => 0,
        };
        tags.bytes[index] = vec![fill; length];
        drop(tags);
        self.disk.arrived(tag);
        self.proceed();
    }

    fn write(&mut self, tag: u16, first: u64, count: u32, fill: u8) {
        self.ask_with(tag, UblkRequest { op: UblkOp::Write, fua: false, first, count }, fill);
    }

    fn proceed(&mut self) {
        let mut demands = Vec::new();
        self.disk.proceed(&mut demands);
        for demand in demands {
            match demand {
                Demand::Ask(ask) => self.held.push(ask),
                other => panic!("a disk asks shards only: {other:?}"),
            }
        }
    }

    /// Carries out what was submitted, in whatever order.
    fn carry_out(&mut self) {
        while let Some(ask) = self.held.pop() {
            self.carry_out_one(ask);
        }
    }

    fn carry_out_one(&mut self, ask: Ask) {
        let from = usize::try_from(ask.span.first() * SECTOR_BYTES).expect("small");
        let to = usize::try_from(ask.span.end() * SECTOR_BYTES).expect("small");
        let mut answer = None;
        match ask.op {
            Op::Read => {
                let mut buffer = BufferPool::new(MIB).take(to - from).expect("room");
                buffer.as_mut().expect("own").copy_from_slice(&self.volume[from..to]);
                answer = Some(buffer);
            }
            Op::Write => {
                let buffer = ask.buffer.expect("a write has bytes");
                self.volume[from..to].copy_from_slice(&buffer);
            }
            Op::Zero { .. } => self.volume[from..to].fill(0),
            Op::Flush => {}
        }
        self.disk.answer(ask.tag, Ok(()), answer.as_ref());
    }

    fn refuse(&mut self, error: AnswerError) {
        for ask in std::mem::take(&mut self.held) {
            self.disk.answer(ask.tag, Err(error), None);
        }
    }

    fn bytes(&self, tag: u16) -> Vec<u8> {
        self.kernel.0.lock().expect("one thread").bytes[usize::from(tag)].clone()
    }
}

#[test]
fn what_was_written_is_read_also_across_pieces() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(0, u64::from(MIB_SECTORS) - 8, 16, 7);
    assert_eq!(bench.held.len(), 2, "it lies in two pieces");
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [(0, Ok(8192))]);
    bench.ask(1, UblkOp::Read, u64::from(MIB_SECTORS) - 16, 32);
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [(1, Ok(16384))]);
    let bytes = bench.bytes(1);
    let expected = |at: usize| if (4096..12288).contains(&at) { 7 } else { 0 };
    assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
}

#[test]
fn request_is_answered_when_its_last_piece_is() {
    let mut bench = Bench::new(64 * MIB);
    bench.ask(5, UblkOp::Discard, 0, 3 * MIB_SECTORS);
    assert_eq!(bench.held.len(), 3);
    let last = bench.held.pop().expect("three");
    assert_eq!((last.op, last.tag), (Op::Zero { unmap: true }, Tag { slot: 5, piece: 2 }));
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), []);
    bench.carry_out_one(last);
    assert_eq!(bench.disk.take_done(), [(5, Ok(0))]);
}

#[test]
fn flush_asks_every_shard() {
    let mut bench = Bench::new(64 * MIB);
    bench.ask(3, UblkOp::Flush, 0, 0);
    let shards: Vec<u16> = bench.held.iter().map(|ask| ask.shard).collect();
    assert_eq!(shards, [0, 1]);
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [(3, Ok(0))]);
}

#[test]
fn zeroing_keeps_the_space_where_the_kernel_says_so() {
    let mut bench = Bench::new(64 * MIB);
    bench.ask(0, UblkOp::Zero { unmap: false }, 0, 8);
    assert_eq!(bench.held[0].op, Op::Zero { unmap: false });
    bench.carry_out();
    bench.ask(0, UblkOp::Other, 0, 8);
    assert_eq!(bench.disk.take_done(), [(0, Ok(0)), (0, Err(Errno::NOT_SUPPORTED))]);
}

#[test]
fn fua_goes_with_every_piece_of_a_write() {
    let mut bench = Bench::new(64 * MIB);
    let first = u64::from(MIB_SECTORS) - 8;
    bench.ask_with(0, UblkRequest { op: UblkOp::Write, fua: true, first, count: 16 }, 1);
    assert!(bench.held.len() == 2 && bench.held.iter().all(|ask| ask.fua));
}

#[test]
fn write_waits_for_memory_and_those_after_it_wait_too() {
    let mut bench = Bench::new(2 * MIB);
    let others: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(MIB)).collect();
    bench.write(0, 0, 8, 9);
    bench.ask(1, UblkOp::Read, 0, 8);
    assert!(bench.held.is_empty() && bench.disk.starved());
    drop(others);
    bench.proceed();
    assert!(bench.held.len() == 2 && !bench.disk.starved());
}

#[test]
fn one_piece_that_fails_fails_its_request_alone() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(0, 0, 8, 1);
    bench.refuse(AnswerError::Io);
    bench.write(1, 8, 8, 2);
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [(0, Err(Errno::IO)), (1, Ok(4096))]);
}

#[test]
fn disk_whose_session_is_lost_gives_errors_from_then_on() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(0, 0, 8, 1);
    bench.refuse(AnswerError::SessionLost);
    bench.ask(1, UblkOp::Read, 0, 8);
    bench.ask(2, UblkOp::Flush, 0, 0);
    assert!(bench.held.is_empty());
    let errors = [(0, Err(Errno::IO)), (1, Err(Errno::IO)), (2, Err(Errno::IO))];
    assert_eq!(bench.disk.take_done(), errors);
}

#[test]
fn what_fails_while_the_node_stops_is_left_to_the_next_process() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(0, 0, 8, 1);
    bench.write(1, 8, 8, 1);
    let second = bench.held.pop().expect("two");
    bench.disk.shut_down();
    bench.write(2, 16, 8, 1);
    assert_eq!(bench.held.len(), 1, "nothing is begun any more");
    bench.refuse(AnswerError::Gone);
    assert_eq!(bench.disk.take_done(), []);
    bench.carry_out_one(second);
    assert_eq!(bench.disk.take_done(), [(1, Ok(4096))], "what is done is said");
}

#[test]
fn everything_open_fails_once_when_the_disk_is_taken_away() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(4, 0, 8, 1);
    bench.write(6, 8, 8, 1);
    bench.carry_out();
    bench.ask(2, UblkOp::Read, 0, 8);
    let mut all = bench.disk.end();
    all.sort_by_key(|(tag, _)| *tag);
    assert_eq!(all, [(2, Err(Errno::IO)), (4, Ok(4096)), (6, Ok(4096))]);
    assert!(bench.disk.end().is_empty());
}

#[test]
fn write_whose_bytes_cannot_be_had_any_more_fails() {
    let mut bench = Bench::new(64 * MIB);
    bench.kernel.0.lock().expect("one thread").gone = true;
    bench.write(0, 0, 8, 1);
    assert!(bench.held.is_empty());
    assert_eq!(bench.disk.take_done(), [(0, Err(Errno::INVALID))]);
}

#[test]
fn large_requests_begin_one_after_the_other() {
    let mut bench = Bench::new(256 * MIB);
    for tag in 0..40 {
        bench.write(tag, 0, MIB_SECTORS, 1);
    }
    let limit = usize::try_from(super::BYTES_OPEN_MAX / PIECE_BYTES).expect("small");
    assert_eq!(bench.held.len(), limit);
    bench.carry_out();
    bench.proceed();
    assert_eq!(bench.held.len(), 40 - limit);
}

#[test]
fn disk_that_ends_because_its_node_stops_fails_nothing() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(4, 0, 8, 1);
    bench.carry_out();
    bench.write(6, 8, 8, 1);
    bench.disk.shut_down();
    bench.write(2, 16, 8, 1);
    assert_eq!(bench.disk.end(), [(4, Ok(4096))], "the rest is the next process's");
}

#[test]
fn a_disk_is_lost_from_when_that_is_said_and_not_for_a_request_that_failed() {
    let mut bench = Bench::new(64 * MIB);
    bench.write(4, 0, 8, 1);
    bench.refuse(AnswerError::NoQuorum);
    assert!(!bench.disk.is_lost(), "a request failed, nothing is gone");
    bench.write(5, 0, 8, 1);
    bench.carry_out();
    assert!(!bench.disk.is_lost());
    bench.disk.lose();
    assert!(bench.disk.is_lost());
}

#[test]
fn what_a_read_will_give_has_room_before_it_begins() {
    let mut bench = Bench::new(2 * MIB);
    let others: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(MIB)).collect();
    bench.ask(0, UblkOp::Read, 0, MIB_SECTORS);
    assert!(bench.held.is_empty() && bench.disk.starved());
    drop(others);
    bench.proceed();
    assert_eq!((bench.held.len(), bench.pool.used_bytes()), (1, MIB));
    bench.carry_out();
    assert_eq!((bench.disk.take_done(), bench.pool.used_bytes()), (vec![(0, Ok(1 << 20))], 0));
}

/// Half a MiB of memory, a write of twice that with one half begun, and a read of its beginning behind it.
fn half_begun() -> Bench {
    let mut bench = Bench::new(MIB / 2);
    bench.write(0, 1024, MIB_SECTORS, 9);
    bench.ask(1, UblkOp::Read, 1024, 8);
    assert_eq!((bench.held.len(), bench.disk.starved()), (1, true));
    bench
}

#[test]
fn a_request_goes_on_as_there_is_memory_and_nothing_behind_it_begins_before_its_end() {
    let mut bench = half_begun();
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [], "half of it is done");
    bench.proceed();
    let spans: Vec<u64> = bench.held.iter().map(|ask| ask.span.first()).collect();
    assert_eq!(spans, [2048], "the other half has what there is");
    bench.carry_out();
    bench.proceed();
    bench.carry_out();
    assert_eq!(bench.disk.take_done(), [(0, Ok(1 << 20)), (1, Ok(4096))]);
    assert!(bench.volume[MIB / 2..3 * MIB / 2].iter().all(|&byte| byte == 9));
    assert_eq!((bench.bytes(1), bench.pool.used_bytes()), (vec![9; 4096], 0));
}

#[test]
fn a_request_of_which_a_piece_failed_goes_no_further_and_fails_once() {
    let mut bench = half_begun();
    bench.refuse(AnswerError::Io);
    assert_eq!(bench.disk.take_done(), []);
    bench.proceed();
    assert_eq!(bench.held.iter().map(|ask| ask.op).collect::<Vec<Op>>(), [Op::Read]);
    assert_eq!(bench.disk.take_done(), [(0, Err(Errno::IO))]);
}

#[test]
fn a_request_that_is_half_begun_is_left_to_the_next_process_or_fails_once() {
    let mut bench = half_begun();
    bench.disk.shut_down();
    bench.carry_out();
    bench.proceed();
    assert_eq!((bench.held.len(), bench.disk.take_done()), (0, vec![]));
    assert_eq!(bench.disk.end(), []);
    let mut bench = half_begun();
    let mut all = bench.disk.end();
    all.sort_by_key(|(tag, _)| *tag);
    assert_eq!(all, [(0, Err(Errno::IO)), (1, Err(Errno::IO))]);
}

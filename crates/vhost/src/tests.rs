use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::{
    BlockOp, BlockRequest, Chain, Fault, Header, Inflight, InflightShape, Lost, Memory, Message,
    Part, Place, Region, Regions, Ring, RingAddresses, Seen,
};

/// Memory of a machine in one region that begins at these addresses.
const GUEST: u64 = 0x1_0000_0000;
const USER: u64 = 0x7f00_0000_0000;
const BYTES: usize = 0x4000;

/// A ring's parts in it.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const SIZE: u16 = 8;

struct Bytes(RefCell<Vec<u8>>);

impl Bytes {
    fn new() -> Bytes {
        Bytes(RefCell::new(vec![0; BYTES]))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn descriptor(&self, at: u64, address: u64, length: u32, flags: u16, next: u16) {
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &length.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }
}

impl Memory for Bytes {
    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), Lost> {
        let at = usize::try_from(place.offset).unwrap();
        bytes.copy_from_slice(&self.0.borrow()[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&self, place: Place, bytes: &[u8]) -> Result<(), Lost> {
        self.put(place.offset, bytes);
        Ok(())
    }

    fn load(&self, place: Place) -> Result<u16, Lost> {
        let mut bytes = [0; 2];
        self.read(place, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store(&self, place: Place, number: u16) -> Result<(), Lost> {
        self.write(place, &number.to_le_bytes())
    }
}

fn regions() -> Regions {
    let bytes = u64::try_from(BYTES).unwrap();
    Regions::new(vec![Region { guest: GUEST, bytes, user: USER, offset: 0 }]).unwrap()
}

fn ring() -> Ring {
    let addresses =
        RingAddresses { descriptors: USER, available: USER + AVAILABLE, used: USER + USED };
    Ring::new(SIZE, &addresses, &regions()).unwrap()
}

fn chain(memory: &Bytes, tables: bool) -> Result<Chain, Fault> {
    ring().chain(memory, &regions(), 0, tables)
}

fn part(offset: u64, bytes: u64) -> Part {
    Part { place: Place { region: 0, offset }, bytes }
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

#[test]
fn a_request_is_taken_as_it_was_given() {
    let memory = Bytes::new();
    memory.descriptor(0, GUEST + 0x3000, 16, NEXT, 1);
    memory.descriptor(16, GUEST + 0x3100, 512, NEXT | WRITE, 2);
    memory.descriptor(32, GUEST + 0x3040, 1, WRITE, 0);
    memory.put(0x3008, &5_u64.to_le_bytes());
    let chain = chain(&memory, false).unwrap();
    let request = BlockRequest::parse(&memory, chain).unwrap();
    let data = vec![part(0x3100, 512)];
    let op = BlockOp::Read { sector: 5 };
    assert_eq!(request, BlockRequest { op, data, bytes: 512, status: part(0x3040, 1) });
}

#[test]
fn header_data_and_status_may_lie_in_any_pieces() {
    let memory = Bytes::new();
    // A table of its own: a write whose header lies in two pieces, the second with data, and status behind.
    memory.descriptor(0, GUEST + 0x2800, 48, TABLE, 0);
    memory.descriptor(0x2800, GUEST + 0x3000, 7, NEXT, 1);
    memory.descriptor(0x2810, GUEST + 0x3007, 9 + 512, NEXT, 2);
    memory.descriptor(0x2820, GUEST + 0x3fff, 1, WRITE, 0);
    memory.put(0x3000, &1_u32.to_le_bytes());
    let request = BlockRequest::parse(&memory, chain(&memory, true).unwrap()).unwrap();
    assert_eq!(request.op, BlockOp::Write { sector: 0 });
    assert_eq!((request.data, request.status), (vec![part(0x3010, 512)], part(0x3fff, 1)));
    assert_eq!(chain(&memory, false), Err(Fault::Indirect), "it was not offered");
}

#[test]
fn a_discard_says_what_and_nothing_else() {
    let memory = Bytes::new();
    memory.descriptor(0, GUEST + 0x3000, 32, NEXT, 1);
    memory.descriptor(16, GUEST + 0x3040, 1, WRITE, 0);
    memory.put(0x3010, &9_u64.to_le_bytes());
    memory.put(0x3018, &3_u32.to_le_bytes());
    let op = |kind: u32, flags: u32| {
        memory.put(0x3000, &kind.to_le_bytes());
        memory.put(0x301c, &flags.to_le_bytes());
        BlockRequest::parse(&memory, chain(&memory, true).unwrap()).unwrap().op
    };
    let zero = |unmap| BlockOp::Zero { sector: 9, count: 3, unmap };
    assert_eq!([op(11, 0), op(13, 0), op(13, 1)], [zero(true), zero(false), zero(true)]);
    assert_eq!([op(11, 1), op(13, 2), op(99, 0)], [BlockOp::Other; 3]);
}

#[test]
fn chains_that_break_a_rule_are_refused() {
    let with = |build: &dyn Fn(&Bytes)| {
        let memory = Bytes::new();
        build(&memory);
        chain(&memory, true).unwrap_err()
    };
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 8, NEXT, 0)), Fault::Chain, "a circle");
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 8, NEXT, SIZE)), Fault::Descriptor(SIZE));
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 0, 0, 0)), Fault::Size(0), "empty");
    assert_eq!(with(&|m| m.descriptor(0, GUEST - 1, 8, 0, 0)), Fault::Address(GUEST - 1));
    let end = GUEST + 0x4000;
    assert_eq!(with(&|m| m.descriptor(0, end - 4, 8, 0, 0)), Fault::Address(end));
    assert_eq!(with(&|m| m.descriptor(0, u64::MAX, 8, 0, 0)), Fault::Address(u64::MAX));
    let after_write = |m: &Bytes| {
        m.descriptor(0, GUEST, 8, NEXT | WRITE, 1);
        m.descriptor(16, GUEST, 8, 0, 0);
    };
    assert_eq!(with(&after_write), Fault::Order);
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 17, TABLE, 0)), Fault::Size(17));
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 0, TABLE, 0)), Fault::Size(0));
    let large = 16 * 1025;
    assert_eq!(with(&|m| m.descriptor(0, GUEST, large, TABLE, 0)), Fault::Size(large));
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 16, TABLE | NEXT, 1)), Fault::Indirect);
    assert_eq!(with(&|m| m.descriptor(0, GUEST, 16, TABLE, 0)), Fault::Indirect, "in itself");
    assert_eq!(with(&|m| m.descriptor(0, end, 16, TABLE, 0)), Fault::Address(end));
    let short = |m: &Bytes| m.descriptor(0, GUEST + 0x3000, 15, 0, 0);
    let memory = Bytes::new();
    short(&memory);
    let request = BlockRequest::parse(&memory, chain(&memory, true).unwrap());
    assert_eq!(request, Err(Fault::Request), "no whole header");
    memory.descriptor(0, GUEST + 0x3000, 16, 0, 0);
    let request = BlockRequest::parse(&memory, chain(&memory, true).unwrap());
    assert_eq!(request, Err(Fault::Request), "no place for a status");
}

#[test]
fn a_buffer_may_lie_across_regions_that_follow_each_other() {
    let region = |guest, user| Region { guest, bytes: 0x1000, user, offset: 0 };
    let regions = Regions::new(vec![region(0x2000, 0x9000), region(0x1000, 0x5000)]).unwrap();
    let mut seen = Vec::new();
    regions.places(0x1ff0, 0x20, |place, bytes| seen.push((place, bytes))).unwrap();
    let place = |region, offset| Place { region, offset };
    assert_eq!(seen, [(place(1, 0xff0), 0x10), (place(0, 0), 0x10)]);
    assert_eq!(regions.places(0x2ff0, 0x20, |_, _| {}), Err(Fault::Address(0x3000)));
    assert_eq!(regions.user(0x5ff0, 0x20), Err(Fault::Address(0x5ff0)), "a ring may not");
}

#[test]
fn a_table_of_memory_is_refused_that_is_none() {
    let region = |guest, bytes, user, offset| Region { guest, bytes, user, offset };
    let bad = |all: Vec<Region>| assert_eq!(Regions::new(all), Err(Fault::Regions));
    bad(vec![region(0, 0, 0, 0)]);
    bad(vec![region(u64::MAX, 2, 0, 0)]);
    bad(vec![region(0, 2, u64::MAX, 0)]);
    bad(vec![region(0, 2, 0, u64::MAX)]);
    bad(vec![region(0, 16, 0, 0), region(8, 16, 100, 0)]);
    bad(vec![region(0, 16, 0, 0), region(100, 16, 15, 0)]);
    bad((0..9).map(|n| region(n * 16, 16, n * 16, 0)).collect());
    assert!(Regions::new(vec![region(0, 16, 16, 0), region(16, 16, 0, 0)]).is_ok());
}

#[test]
fn rings_are_refused_that_are_askew_or_not_in_memory() {
    let new = |size, descriptors, available, used| {
        let at = RingAddresses { descriptors, available, used };
        Ring::new(size, &at, &regions()).unwrap_err()
    };
    let (d, a, u) = (USER, USER + AVAILABLE, USER + USED);
    for size in [0, 3, 2048, u16::MAX] {
        assert_eq!(new(size, d, a, u), Fault::RingSize(u32::from(size)));
    }
    assert_eq!(new(8, d + 8, a, u), Fault::Alignment(d + 8));
    assert_eq!(new(8, d, a + 1, u), Fault::Alignment(a + 1));
    assert_eq!(new(8, d, a, u + 2), Fault::Alignment(u + 2));
    assert_eq!(new(8, d - 16, a, u), Fault::Address(d - 16));
    let last = USER + 0x4000 - 16;
    assert_eq!(new(8, last, a, u), Fault::Address(last));
    assert_eq!(new(1024, d, a, USER + USED), Fault::Address(USER + USED));
}

#[test]
fn more_requests_than_a_ring_holds_are_refused() {
    let memory = Bytes::new();
    memory.put(AVAILABLE + 2, &9_u16.to_le_bytes());
    assert_eq!(ring().waiting(&memory, 1), Ok(8));
    assert_eq!(ring().waiting(&memory, 0), Err(Fault::Available(9)));
    assert_eq!(ring().waiting(&memory, 10), Err(Fault::Available(u16::MAX)));
    memory.put(AVAILABLE + 4, &8_u16.to_le_bytes());
    assert_eq!(ring().head(&memory, 0), Err(Fault::Descriptor(8)));
}

fn shape() -> InflightShape {
    InflightShape { bytes: 0, offset: 0, queues: 2, size: SIZE, message_bytes: 24 }
}

#[test]
fn the_record_tells_what_is_open_wherever_a_process_dies() {
    let memory = Bytes::new();
    let queue = Inflight::of(&shape(), 1).unwrap();
    assert_eq!(Inflight::of(&shape(), 2), None);
    queue.clear(&memory).unwrap();
    for (head, count) in [(3, 7), (0, 8), (5, 9)] {
        queue.begin(&memory, head, count).unwrap();
    }
    assert_eq!(queue.open(&memory, 0), Ok(vec![(7, 3), (8, 0), (9, 5)]));
    // It died before the machine could see the answer.
    queue.about_to_answer(&memory, 0).unwrap();
    assert_eq!(queue.open(&memory, 0), Ok(vec![(7, 3), (8, 0), (9, 5)]));
    // And after that.
    assert_eq!(queue.open(&memory, 1), Ok(vec![(7, 3), (9, 5)]));
    assert_eq!(queue.open(&memory, 1), Ok(vec![(7, 3), (9, 5)]));
    // It did not die.
    queue.about_to_answer(&memory, 3).unwrap();
    queue.end(&memory, 3, 2).unwrap();
    assert_eq!(queue.open(&memory, 2), Ok(vec![(9, 5)]));
    // What the front end wrote there may be anything.
    queue.about_to_answer(&memory, SIZE).unwrap();
    assert_eq!(queue.open(&memory, 3), Err(Fault::Inflight));
}

#[test]
fn behind_the_record_stands_of_what_it_is() {
    let memory = Bytes::new();
    assert_eq!(Seen::read(&memory, &shape()), Err(Fault::Inflight));
    let seen = Seen { identity: 1 << 63, volume: 3, lost: 5 };
    seen.write(&memory, &shape()).unwrap();
    assert_eq!(Seen::read(&memory, &shape()), Ok(seen));
    assert!(shape().bytes_needed() <= u64::try_from(BYTES).unwrap());
}

fn parse(kind: u32, body: &[u8], descriptors: usize) -> Result<Message, Fault> {
    let header = Header { kind, needs_reply: false, bytes: body.len() };
    Message::parse(header, body, descriptors)
}

#[test]
fn messages_are_refused_that_are_cut_or_lack_descriptors() {
    let mut header = [0; 12];
    header[0] = 5;
    header[4] = 1;
    assert!(Header::parse(&header).is_ok());
    header[8..].copy_from_slice(&1024_u32.to_le_bytes());
    assert_eq!(Header::parse(&header), Err(Fault::Length(5)));
    for flags in [0, 2, 5] {
        header[4] = flags;
        assert_eq!(Header::parse(&header), Err(Fault::Header));
    }
    let mut table = vec![0; 8 + 32];
    table[0] = 1;
    table[16] = 1;
    assert!(parse(5, &table, 1).is_ok());
    assert_eq!(parse(5, &table, 0), Err(Fault::Descriptors(5)));
    assert_eq!(parse(5, &table, 2), Err(Fault::Descriptors(5)));
    assert_eq!(parse(5, &table[..39], 1), Err(Fault::Length(5)));
    assert_eq!(parse(5, &table[..7], 1), Err(Fault::Length(5)));
    table[0] = 9;
    assert_eq!(parse(5, &table, 9), Err(Fault::Regions));
    assert_eq!(parse(1, &[0], 0), Err(Fault::Length(1)));
    assert_eq!(parse(2, &[0; 8], 1), Err(Fault::Descriptors(2)));
    assert_eq!(parse(11, &[64, 0, 0, 0, 0, 0, 0, 0], 0), Err(Fault::Queue(64)));
    assert_eq!(parse(8, &[0, 0, 0, 0, 3, 0, 0, 0], 0), Err(Fault::RingSize(3)));
    assert_eq!(parse(12, &[0; 8], 0), Err(Fault::Descriptors(12)));
    assert_eq!(parse(24, &[0; 11], 0), Err(Fault::Length(24)));
    assert_eq!(parse(24, &[255; 12], 0), Err(Fault::Length(24)));
    assert_eq!(parse(31, &[0; 23], 0), Err(Fault::Inflight));
    assert_eq!(parse(6, &[], 0), Err(Fault::Unknown(6)));
}

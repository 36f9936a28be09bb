//! What QEMU says about a machine's disk, and what the machine has in its rings.

use std::cell::RefCell;

use crate::mutate::low;
use crate::{Target, nothing, outcome};
use base::Prng;
use vhost::{
    BlockRequest, Fault, HEADER_BYTES, Header, Lost, Memory, Message, Part, Place, Region, Regions,
    Ring, RingAddresses,
};

/// One message: how many descriptors came with it, its header, its own bytes.
pub(super) const MESSAGE: Target = Target {
    name: "vhost-message",
    what: "what QEMU says about a machine's disk",
    valid: message,
    mend: nothing,
    judge: |input| outcome(&parse(input).map_err(|fault| format!("{fault:?}"))),
    words: &[],
};

/// The memory of a machine: its ring, and what that leads to.
pub(super) const RING: Target = Target {
    name: "vhost-ring",
    what: "what a machine has in its rings",
    valid: memory,
    mend: nothing,
    judge: |input| outcome(&walk(input)),
    words: &[],
};

fn message(random: &mut Prng) -> Vec<u8> {
    let bodies: [(u32, usize, usize); 8] = [
        (1, 0, 0),
        (5, 40, 1),
        (8, 8, 0),
        (9, 40, 0),
        (12, 8, 1),
        (24, 72, 0),
        (31, 24, 0),
        (32, 20, 1),
    ];
    let (kind, length, handles) = bodies[usize::from(low(random.next_u64()) % 8)];
    let mut bytes = vec![u8::try_from(handles).expect("one")];
    for word in [kind, 1, u32::try_from(length).expect("short")] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let mut body = vec![0; length];
    match kind {
        5 => (body[0], body[17]) = (1, 16),
        8 => body[4] = 64,
        24 => body[4] = 60,
        31 | 32 => (body[16], body[18]) = (1, 64),
        _ => {}
    }
    bytes.extend(body);
    bytes
}

fn parse(input: &[u8]) -> Result<Option<u32>, Fault> {
    let Some((&handles, rest)) = input.split_first() else { return Ok(None) };
    let Some((header, body)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let header = Header::parse(header)?;
    let body = &body[..body.len().min(header.bytes)];
    Message::parse(header, body, usize::from(handles)).map(|_| Some(header.kind))
}

const GUEST: u64 = 0x1000_0000;
const BYTES: usize = 0x2000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x600;
const SIZE: u16 = 16;

fn memory(random: &mut Prng) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let kind = [0, 1, 4, 8, 11, 13][usize::from(low(random.next_u64()) % 6)];
    let lengths = [16_u16, if kind == 4 { 1 } else { 512 }, 1];
    let flags = [1, if matches!(kind, 1 | 11 | 13) { 1 } else { 3 }, 2];
    for number in 0..3_usize {
        let address = GUEST + 0x1000 + 0x400 * u64::try_from(number).expect("small");
        put(16 * number, &address.to_le_bytes());
        put(16 * number + 8, &lengths[number].to_le_bytes());
        put(16 * number + 12, &[flags[number], 0, u8::try_from(number).expect("small") + 1]);
    }
    put(usize::try_from(AVAILABLE).expect("small") + 2, &[1]);
    put(0x1000, &[kind]);
    bytes
}

/// Memory that says what places are outside of it.
struct Bytes(RefCell<Vec<u8>>);

impl Bytes {
    fn range(&self, place: Place, bytes: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(place.offset).expect("inside");
        assert!(place.region == 0 && start + bytes <= BYTES, "a place outside of its memory");
        start..start + bytes
    }
}

impl Memory for Bytes {
    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), Lost> {
        let range = self.range(place, bytes.len());
        bytes.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write(&self, place: Place, bytes: &[u8]) -> Result<(), Lost> {
        let range = self.range(place, bytes.len());
        self.0.borrow_mut()[range].copy_from_slice(bytes);
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

/// Takes what is in the ring, answers it, and says what it was.
fn walk(input: &[u8]) -> Result<Vec<String>, String> {
    let mut bytes = input.to_vec();
    bytes.resize(BYTES, 0);
    let memory = Bytes(RefCell::new(bytes));
    let region = Region { guest: GUEST, bytes: 0x2000, user: 0, offset: 0 };
    let regions = Regions::new(vec![region]).expect("a table");
    let at = RingAddresses { descriptors: 0, available: AVAILABLE, used: USED };
    let ring = Ring::new(SIZE, &at, &regions).expect("a ring");
    let wrong = |fault: Fault| format!("{fault:?}");
    let count = ring.waiting(&memory, 0).map_err(wrong)?;
    let mut seen = Vec::new();
    for taken in 0..count.min(4) {
        let head = ring.head(&memory, taken).map_err(wrong)?;
        let chain = ring.chain(&memory, &regions, head, true).map_err(wrong)?;
        let request = BlockRequest::parse(&memory, chain).map_err(wrong)?;
        for part in request.data.iter().chain([&request.status]) {
            let Part { place, bytes } = *part;
            memory.range(place, usize::try_from(bytes).expect("a descriptor's"));
        }
        ring.answer(&memory, taken, head, 1).map_err(wrong)?;
        let kind = format!("{:?}", request.op);
        seen.push(kind.split([' ', '{']).next().unwrap_or_default().to_owned());
    }
    Ok(seen)
}

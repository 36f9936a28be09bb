//! A machine with one disk by vhost-user, as far as a node can tell: memory, rings, and what QEMU says about them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use sys::{Errno, Handle, SharedMemory, Socket};

use crate::harness::PATIENCE;

/// Where the machine has its memory, and where QEMU has it.
const GUEST: u64 = 0x1_0000_0000;
const USER: u64 = 0x7f00_0000_0000;
const MEMORY_BYTES: u64 = 64 << 20;

/// Of each ring.
const SIZE: u16 = 64;
/// Between the rings of two queues, and where a ring's parts are.
const RING_BYTES: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const QUEUES: u16 = 2;

/// Of each request: header, status, range; and its data.
const SLOTS: u64 = 0x1_0000;
const DATA: u64 = 0x4_0000;
const DATA_BYTES: u64 = 0x1_0000;
/// Where that of a large one is, of which there is one at a time.
const BULK: u64 = 4 << 20;

const FEATURES: u64 = 1 << 9 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 28 | 1 << 30 | 1 << 32;
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12;

/// What a machine may ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want<'a> {
    Read(u64, usize),
    Write(u64, &'a [u8]),
    Flush,
    Id,
    Discard(u64, u32),
    Zeroes(u64, u32),
}

/// One queue's state, which outlives connections.
struct Queue {
    kick: Handle,
    call: Handle,
    /// Requests given, and answers seen.
    given: u16,
    seen: u16,
}

/// The machine.
pub(crate) struct Machine {
    pub(crate) memory: SharedMemory,
    handle: Handle,
    queues: Vec<Queue>,
    record: Option<(Handle, Vec<u8>)>,
    socket: Option<Socket>,
    news: Option<Socket>,
    /// Data of the request with this number of its slot.
    next_slot: u64,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        let (memory, handle) = SharedMemory::create(MEMORY_BYTES).unwrap();
        let event = || Handle::new_event().unwrap();
        let queue = |_| Queue { kick: event(), call: event(), given: 0, seen: 0 };
        let queues = (0..QUEUES).map(queue).collect();
        Machine { memory, handle, queues, record: None, socket: None, news: None, next_slot: 0 }
    }

    /// Connects as QEMU does, at first or again, and has its rings served.
    pub(crate) fn connect(&mut self, path: &Path) {
        self.open(path);
        self.share(GUEST);
        self.begin();
    }

    pub(crate) fn open(&mut self, path: &Path) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The node may not be up yet, or its resource.
            if let Ok(stream) = UnixStream::connect(path) {
                self.socket = Some(Socket::from(OwnedFd::from(stream)));
                self.tell(1, &[], None);
                if let Some((body, _)) = self.hear() {
                    let offered = u64::from_le_bytes(body.try_into().unwrap());
                    assert_eq!(offered & FEATURES, FEATURES);
                    break;
                }
            }
            assert!(Instant::now() < deadline, "nobody serves {}", path.display());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(self.number(15), PROTOCOL);
        self.told(16, &PROTOCOL.to_le_bytes(), None);
        assert!(self.number(17) >= u64::from(QUEUES));
        let (own, theirs) = Socket::pair().unwrap();
        self.news = Some(own);
        self.told(21, &[], Some(&Handle::from(theirs)));
        self.told(3, &[], None);
        self.told(2, &FEATURES.to_le_bytes(), None);
    }

    /// Tells where its memory is.
    pub(crate) fn share(&mut self, guest: u64) {
        let mut table = vec![1, 0, 0, 0, 0, 0, 0, 0];
        for number in [guest, MEMORY_BYTES, USER, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
        let handle = self.handle.clone();
        self.told(5, &table, Some(&handle));
    }

    fn begin(&mut self) {
        if self.record.is_none() {
            let mut shape = vec![0; 24];
            shape[16..18].copy_from_slice(&QUEUES.to_le_bytes());
            shape[18..20].copy_from_slice(&SIZE.to_le_bytes());
            self.tell(31, &shape, None);
            let (body, mut handles) = self.hear().expect("an answer");
            assert_eq!((body.len(), handles.len()), (24, 1));
            self.record = Some((handles.remove(0), body));
        }
        let (handle, shape) = self.record.clone().unwrap();
        self.told(32, &shape, Some(&handle));
        for queue in 0..QUEUES {
            self.begin_queue(queue);
        }
    }

    fn begin_queue(&mut self, queue: u16) {
        let word = |number: u32| [u32::from(queue).to_le_bytes(), number.to_le_bytes()].concat();
        self.told(8, &word(u32::from(SIZE)), None);
        // As QEMU does after a connection broke: what it knows are answers.
        let seen = u32::from(self.queues[usize::from(queue)].seen);
        self.told(10, &word(seen), None);
        let at = USER + RING_BYTES * u64::from(queue);
        let mut addresses = word(0);
        for address in [at, at + USED, at + AVAILABLE, 0] {
            addresses.extend_from_slice(&address.to_le_bytes());
        }
        self.told(9, &addresses, None);
        let signal = u64::from(queue).to_le_bytes();
        let (kick, call) =
            (&self.queues[usize::from(queue)].kick, &self.queues[usize::from(queue)].call);
        let (kick, call) = (kick.clone(), call.clone());
        self.told(12, &signal, Some(&kick));
        self.told(13, &signal, Some(&call));
        self.told(18, &word(1), None);
    }

    /// Says something.
    pub(crate) fn tell(&mut self, kind: u32, body: &[u8], handle: Option<&Handle>) {
        let mut bytes = Vec::new();
        for word in [kind, 1 | 8, u32::try_from(body.len()).unwrap()] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        // It may be cut off already.
        self.socket.as_ref().unwrap().send_now(&bytes, handle).ok();
    }

    /// Says something, and hears that it is so.
    fn told(&mut self, kind: u32, body: &[u8], handle: Option<&Handle>) {
        self.tell(kind, body, handle);
        let (body, _) = self.hear().expect("an answer");
        assert_eq!(body, [0; 8], "message {kind}");
    }

    fn number(&mut self, kind: u32) -> u64 {
        self.tell(kind, &[], None);
        u64::from_le_bytes(self.hear().expect("an answer").0.try_into().unwrap())
    }

    /// What is answered; `None` if the node has closed the connection.
    pub(crate) fn hear(&mut self) -> Option<(Vec<u8>, Vec<Handle>)> {
        let (mut bytes, mut handles) = (Vec::new(), Vec::new());
        let socket = self.socket.clone().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let length = bytes
                .get(8..12)
                .map_or(0, |four: &[u8]| u32::from_le_bytes(four.try_into().unwrap()) as usize);
            if bytes.len() >= 12 + length {
                return Some((bytes.split_off(12), handles));
            }
            let mut room = [0; 512];
            let wanted =
                if bytes.len() < 12 { 12 - bytes.len() } else { 12 + length - bytes.len() };
            match socket.receive_now(&mut room[..wanted], &mut handles) {
                Ok(0) => return None,
                Ok(count) => bytes.extend_from_slice(&room[..count]),
                Err(Errno::AGAIN) => pause(deadline, "an answer"),
                // What it has not read is thrown back.
                Err(_) => return None,
            }
        }
    }

    /// Whether the node has sent this machine away.
    pub(crate) fn is_cut_off(&mut self) -> bool {
        self.hear().is_none()
    }

    /// Bytes of the disk's configuration: its size in sectors is the first number.
    pub(crate) fn sectors(&mut self) -> u64 {
        let mut ask = vec![0; 12 + 60];
        ask[4] = 60;
        self.tell(24, &ask, None);
        let (body, _) = self.hear().expect("an answer");
        assert_eq!(body.len(), 72);
        u64::from_le_bytes(body[12..20].try_into().unwrap())
    }

    /// Waits until it hears that its disk has changed.
    pub(crate) fn hear_news(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = [0; 12];
        while self.news.as_ref().unwrap().receive_now(&mut bytes, &mut Vec::new()) != Ok(12) {
            pause(deadline, "news");
        }
        assert_eq!(bytes[..4], [2, 0, 0, 0]);
    }

    /// Puts a descriptor into a queue's table.
    pub(crate) fn descriptor(&self, queue: u16, number: u16, at: u64, bytes: u32, flags: u16) {
        let mut descriptor = Vec::new();
        descriptor.extend_from_slice(&(GUEST + at).to_le_bytes());
        descriptor.extend_from_slice(&bytes.to_le_bytes());
        descriptor.extend_from_slice(&flags.to_le_bytes());
        descriptor.extend_from_slice(&(number + 1).to_le_bytes());
        let at = RING_BYTES * u64::from(queue) + 16 * u64::from(number);
        self.memory.write(at, &descriptor).unwrap();
    }

    pub(crate) fn kick(&self, queue: u16) {
        self.queues[usize::from(queue)].kick.signal();
    }

    /// Takes back what was signalled of a queue, as a node did that has died since.
    pub(crate) fn take_kick(&self, queue: u16) {
        assert!(self.queues[usize::from(queue)].kick.take_signal(), "it was signalled");
    }

    /// Requests of a queue that the record has as open.
    pub(crate) fn recorded(&self, queue: u16) -> usize {
        let (handle, shape) = self.record.as_ref().unwrap();
        let bytes = u64::from_le_bytes(shape[..8].try_into().unwrap());
        let record = SharedMemory::map(handle, 0, bytes).unwrap();
        // Behind a header of 16 bytes, for each head 16; the next queue's at a multiple of 64.
        let at = (16 + 16 * u64::from(SIZE)).next_multiple_of(64) * u64::from(queue) + 16;
        let is_open = |head: &u16| record.load(at + 16 * u64::from(*head)).unwrap() == 1;
        (0..SIZE).filter(is_open).count()
    }

    /// Gives a request that is in the table to the disk.
    pub(crate) fn give(&mut self, queue: u16, head: u16) {
        let at = RING_BYTES * u64::from(queue) + AVAILABLE;
        let known = &mut self.queues[usize::from(queue)];
        self.memory.store(at + 4 + 2 * u64::from(known.given % SIZE), head).unwrap();
        known.given = known.given.wrapping_add(1);
        self.memory.store(at + 2, known.given).unwrap();
        known.kick.signal();
    }

    /// Asks something; the number of its slot.
    pub(crate) fn ask(&mut self, queue: u16, want: Want<'_>) -> u64 {
        let slot = self.next_slot;
        self.next_slot += 1;
        let at = SLOTS + 64 * slot;
        let data = match want {
            Want::Read(_, bytes) => place(slot, bytes),
            Want::Write(_, bytes) => place(slot, bytes.len()),
            _ => place(slot, 0),
        };
        let (kind, sector, bytes, to_machine) = match want {
            Want::Read(sector, bytes) => (0_u32, sector, bytes, true),
            Want::Write(sector, bytes) => {
                self.memory.write(data, bytes).unwrap();
                (1, sector, bytes.len(), false)
            }
            Want::Flush => (4, 0, 0, false),
            Want::Id => (8, 0, 20, true),
            Want::Discard(sector, count) | Want::Zeroes(sector, count) => {
                let mut range = sector.to_le_bytes().to_vec();
                range.extend_from_slice(&count.to_le_bytes());
                range.extend_from_slice(&[0; 4]);
                self.memory.write(data, &range).unwrap();
                (if matches!(want, Want::Discard(..)) { 11 } else { 13 }, 0, 16, false)
            }
        };
        self.memory.write(at, &kind.to_le_bytes()).unwrap();
        self.memory.write(at + 8, &sector.to_le_bytes()).unwrap();
        self.memory.write(at + 32, &[0xff]).unwrap();
        let head = u16::try_from(slot % 16).unwrap() * 3;
        self.descriptor(queue, head, at, 16, 1);
        if bytes > 0 {
            let flags = if to_machine { 3 } else { 1 };
            self.descriptor(queue, head + 1, data, u32::try_from(bytes).unwrap(), flags);
            self.descriptor(queue, head + 2, at + 32, 1, 2);
        } else {
            self.descriptor(queue, head + 1, at + 32, 1, 2);
        }
        self.give(queue, head);
        slot
    }

    /// Waits until so many more requests of a queue are answered.
    pub(crate) fn await_answers(&mut self, queue: u16, count: u16) {
        let at = RING_BYTES * u64::from(queue) + USED + 2;
        let known = &mut self.queues[usize::from(queue)];
        let deadline = Instant::now() + PATIENCE;
        while self.memory.load(at).unwrap().wrapping_sub(known.seen) < count {
            pause(deadline, "answers");
        }
        known.seen = known.seen.wrapping_add(count);
        while !known.call.take_signal() {
            pause(deadline, "the signal that there are answers");
        }
    }

    /// How many answers are there that were not waited for.
    pub(crate) fn unseen(&self, queue: u16) -> u16 {
        let at = RING_BYTES * u64::from(queue) + USED + 2;
        self.memory.load(at).unwrap().wrapping_sub(self.queues[usize::from(queue)].seen)
    }

    /// What the disk said of a request.
    pub(crate) fn status(&self, slot: u64) -> u8 {
        let mut status = [0];
        self.memory.read(SLOTS + 64 * slot + 32, &mut status).unwrap();
        status[0]
    }

    /// What was read.
    pub(crate) fn data(&self, slot: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read(place(slot, bytes), &mut data).unwrap();
        data
    }

    /// Asks, and waits for the answer.
    pub(crate) fn done(&mut self, queue: u16, want: Want<'_>) -> (u8, u64) {
        let slot = self.ask(queue, want);
        self.await_answers(queue, 1);
        (self.status(slot), slot)
    }

    pub(crate) fn read(&mut self, sector: u64, bytes: usize) -> Vec<u8> {
        let (status, slot) = self.done(0, Want::Read(sector, bytes));
        assert_eq!(status, 0, "a read of sector {sector}");
        self.data(slot, bytes)
    }

    /// Asks that a ring stand still; where it stands.
    pub(crate) fn stop_queue(&mut self, queue: u16) -> u32 {
        self.tell(11, &[u32::from(queue).to_le_bytes(), [0; 4]].concat(), None);
        let (body, _) = self.hear().expect("an answer");
        u32::from_le_bytes(body[4..].try_into().unwrap())
    }
}

/// Where the data of a request is.
fn place(slot: u64, bytes: usize) -> u64 {
    if bytes as u64 > DATA_BYTES { BULK } else { DATA + DATA_BYTES * (slot % 32) }
}

fn pause(deadline: Instant, what: &str) {
    assert!(Instant::now() < deadline, "waited in vain for {what}");
    std::thread::sleep(std::time::Duration::from_millis(1));
}

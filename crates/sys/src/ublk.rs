//! Block devices of Linux that this process serves: the `ublk` driver's commands and the requests of its devices.
//!
//! The driver is spoken to by commands of io_uring with entries of 128 bytes, which is a ring of its own here: it works
//! beside either engine. What completes in it ends the wait of the owner's [`crate::Hands`], by their waker.
//!
//! What always holds:
//! - A queue's requests are fetched and answered by the thread that owns the [`UblkRing`], as the driver wants it: each queue
//!   by one thread.
//! - Memory that a command names stays until its completion is seen.
//! - What a request's bytes are copied from or to belongs to the request until it is answered; the driver refuses
//!   copies for what is none of this process's any more.
//!
//! Facts: `linux/ublk_cmd.h` and the kernel's `Documentation/block/ublk.rst`.
//!
//! Not here: what is done with a request, when devices are made and go (`lockstepd`).

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};

use crate::descriptor::File;
use crate::errno::Errno;
use crate::file::{Access, OpenOptions};
use crate::wake::Waker;

/// Requests of one queue of a device that may be open at once.
pub const UBLK_DEPTH: u16 = 128;

/// Bytes of the largest read or write of a device.
pub const UBLK_IO_BYTES: u32 = 1 << 20;

/// What a kernel can do for such devices, as bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UblkFeatures(u64);

const USER_RECOVERY: u64 = 1 << 3;
const USER_RECOVERY_REISSUE: u64 = 1 << 4;
const COMMANDS_ENCODED: u64 = 1 << 6;
const USER_COPY: u64 = 1 << 7;
const UPDATE_SIZE: u64 = 1 << 10;

/// What every device here is made with: it outlives its server, requests of a server that died are issued anew to the next,
/// and bytes are copied when the server asks.
const NEEDED: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | COMMANDS_ENCODED | USER_COPY;

impl UblkFeatures {
    /// Whether a device's size can change while it is there.
    #[must_use]
    pub fn can_resize(self) -> bool {
        self.0 & UPDATE_SIZE != 0
    }
}

/// Why this host has no such devices.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UblkLack {
    /// There is no driver: its module is not loaded, or not built.
    Driver,
    /// The driver is there, and this process may not use it.
    Permission(Errno),
    /// io_uring, or its large entries, cannot be had.
    Ring(Errno),
    /// The driver is older than what is needed (Linux 6.5).
    Old,
}

impl UblkLack {
    /// Whether it means that there is no device of ours: none was ever made by such a driver.
    #[must_use]
    pub fn is_without_devices(self) -> bool {
        matches!(self, UblkLack::Driver | UblkLack::Old)
    }
}

impl std::fmt::Display for UblkLack {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UblkLack::Driver => out.write_str("there is no /dev/ublk-control: modprobe ublk_drv"),
            UblkLack::Permission(errno) => {
                write!(out, "/dev/ublk-control: {errno}: lockstepd has to run as root for that")
            }
            UblkLack::Ring(errno) => {
                write!(out, "io_uring with entries of 128 bytes: {errno}")
            }
            UblkLack::Old => {
                out.write_str("its driver copies no data when asked to: Linux 6.5 or later can")
            }
        }
    }
}

/// What a device is to the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UblkShape {
    /// Size in sectors.
    pub sectors: u64,
    /// Size of a block in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Sectors of the largest discard and zeroing.
    pub zero_sectors: u32,
}

/// How a device is, as the driver tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UblkInfo {
    /// What its maker wrote into it.
    pub mark: u64,
    /// It has never been started, or was stopped.
    pub dead: bool,
    /// Its server has gone, and it waits for the next.
    pub waits: bool,
    /// How many queues it has.
    pub queues: u16,
}

/// What can be asked of the driver, about one device each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UblkCommand {
    /// How is it? `ENODEV` if there is none.
    Info,
    /// Make it, under this number; `EEXIST` if there is one. It keeps the mark.
    Add {
        /// Told by `Info`.
        mark: u64,
        /// How many queues it is to have, at most one for each of the machine's processors. Its info is told with the answer.
        queues: u16,
    },
    /// Say what it is, before it starts.
    Shape(UblkShape),
    /// Let its users come, once its requests are fetched.
    Start,
    /// Serve it after its last server has gone; `EBUSY` until that is so.
    Recover,
    /// The same, once its requests are fetched.
    Resume,
    /// It has so many sectors now.
    Resize(u64),
    /// Users get errors from now on; fetched requests end.
    Stop,
    /// Remove it; its number is free once nobody has it open any more. Linux 6.9 can.
    Delete,
    /// Remove it, which ends once nobody has it open any more.
    DeleteAndWait,
}

/// Something that ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UblkEvent {
    /// A command about a device.
    Command {
        /// Number of the device.
        device: u32,
        /// How it went.
        result: Result<(), Errno>,
        /// To `Info` and `Add`.
        info: Option<UblkInfo>,
    },
    /// A request has come; or none will, under this tag.
    Request {
        /// Number of the device.
        device: u32,
        /// Of which of its queues.
        queue: u16,
        /// Below [`UBLK_DEPTH`].
        tag: u16,
        /// Whether there is a request.
        result: Result<(), Errno>,
    },
}

/// What a user of a device asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UblkOp {
    /// Its bytes.
    Read,
    /// To be taken by [`UblkDevice::take`].
    Write,
    /// Everything answered before is to survive a power cut.
    Flush,
    /// The bytes are not needed any more.
    Discard,
    /// Zeroes are to be read there.
    Zero {
        /// The space may be given back.
        unmap: bool,
    },
    /// Something else, which was not offered.
    Other,
}

/// One request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UblkRequest {
    /// What.
    pub op: UblkOp,
    /// It survives a power cut once answered.
    pub fua: bool,
    /// Its first sector.
    pub first: u64,
    /// How many.
    pub count: u32,
}

/// Bytes of a request as the driver describes it: `ublksrv_io_desc`.
const DESCRIPTION_BYTES: usize = 24;
/// Where requests' bytes begin in the device's file, and how many of its offset's bits are a request's own, and a tag's.
const DATA_OFFSET: u64 = 0x8000_0000;
const DATA_BITS: u32 = 25;
const TAG_BITS: u32 = 16;
/// Descriptions of one queue that the driver has room for.
const DEPTH_MAX: usize = 4096;

/// A device's file, by which its requests are seen and their bytes copied.
pub struct UblkDevice {
    file: File,
    /// Of each queue, where its requests are described.
    requests: Vec<*const u8>,
    /// Bytes of each of these.
    length: usize,
}

// SAFETY: the mappings are read only, and last as long as this.
unsafe impl Send for UblkDevice {}
// SAFETY: as above; reads of it are volatile.
unsafe impl Sync for UblkDevice {}

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("UblkDevice").field(&self.file).finish()
    }
}

impl UblkDevice {
    /// Opens the file of a device with so many queues. One process can at a time.
    ///
    /// # Errors
    /// The kernel's; `EBUSY` while another has it.
    pub fn open(number: u32, queues: u16) -> Result<UblkDevice, Errno> {
        let path = format!("/dev/ublkc{number}");
        let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
        let file = File::open(Path::new(&path), options)?;
        let page = page_bytes();
        let length = (usize::from(UBLK_DEPTH) * DESCRIPTION_BYTES).div_ceil(page) * page;
        let between = (DEPTH_MAX * DESCRIPTION_BYTES).div_ceil(page) * page;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        let none = std::ptr::null_mut();
        let mut device = UblkDevice { file, requests: Vec::new(), length };
        for queue in 0..usize::from(queues) {
            let at = libc::off_t::try_from(queue * between).expect("a few queues");
            let descriptor = device.file.0.number();
            // SAFETY: a new mapping at a place of the kernel's choice, of a file that is open.
            let map = unsafe { libc::mmap(none, length, protection, flags, descriptor, at) };
            if map == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            device.requests.push(map.cast_const().cast());
        }
        Ok(device)
    }

    /// The request that was fetched under a tag of a queue.
    ///
    /// # Panics
    /// If the tag is not below [`UBLK_DEPTH`], or there is no such queue.
    #[must_use]
    pub fn request(&self, queue: u16, tag: u16) -> UblkRequest {
        assert!(tag < UBLK_DEPTH, "a tag of the device");
        let requests = self.requests[usize::from(queue)];
        let mut bytes = [0; DESCRIPTION_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = usize::from(tag) * DESCRIPTION_BYTES + index;
            // SAFETY: inside the mapping, by the check above. The driver does not change it until the request is
            // answered; volatile, as it is not this process that wrote it.
            *byte = unsafe { std::ptr::read_volatile(requests.add(at)) };
        }
        request_of(&bytes)
    }

    /// Copies bytes of a write, from this many bytes after its first, to `bytes`.
    ///
    /// # Errors
    /// The kernel's; it is no request of this process any more.
    pub fn take(&self, queue: u16, tag: u16, offset: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.file.read_now(bytes, data_at(queue, tag, offset))
    }

    /// Gives bytes of a read.
    ///
    /// # Errors
    /// As [`UblkDevice::take`].
    pub fn give(&self, queue: u16, tag: u16, offset: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_now(bytes, data_at(queue, tag, offset))
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        for requests in &self.requests {
            // SAFETY: mapped in `open`, and nobody else knows the place.
            unsafe { libc::munmap(requests.cast_mut().cast(), self.length) };
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: plain call.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

fn data_at(queue: u16, tag: u16, offset: u32) -> u64 {
    let request = u64::from(queue) << TAG_BITS | u64::from(tag);
    DATA_OFFSET + (request << DATA_BITS) + u64::from(offset)
}

fn request_of(bytes: &[u8; DESCRIPTION_BYTES]) -> UblkRequest {
    const FUA: u32 = 1 << 13;
    const NO_UNMAP: u32 = 1 << 15;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let flags = word(0);
    let op = match flags & 0xff {
        0 => UblkOp::Read,
        1 => UblkOp::Write,
        2 => UblkOp::Flush,
        3 => UblkOp::Discard,
        5 => UblkOp::Zero { unmap: flags & NO_UNMAP == 0 },
        _ => UblkOp::Other,
    };
    let first = u64::from(word(8)) | u64::from(word(12)) << 32;
    UblkRequest { op, fua: flags & FUA != 0, first, count: word(4) }
}

/// What completions are of: a command about a device, a request of one, or the question what the driver can do.
const OF_COMMAND: u64 = 1 << 63;
const OF_FEATURES: u64 = u64::MAX;

/// The way to the driver, of one thread.
pub struct UblkRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    control: File,
    features: UblkFeatures,
    /// What commands name, until they complete. In boxes, so that it does not move.
    memory: BTreeMap<u64, (UblkCommand, Box<[u8; MEMORY_BYTES]>)>,
    backlog: VecDeque<Entry128>,
}

/// Bytes of what a command names, at most: `ublksrv_ctrl_dev_info`, or the two parts of `ublk_params` that are used.
const MEMORY_BYTES: usize = 64;

/// Entries of the ring: all requests of one queue, and commands.
const ENTRIES: u32 = 256;
/// Completions there is room for: those of 32 queues. The kernel keeps what is more.
const COMPLETIONS: u32 = 4096;

impl UblkRing {
    /// Opens the way to the driver. `waker` ends waits of the thread that calls.
    ///
    /// # Errors
    /// What this host lacks.
    pub fn open(waker: &Waker) -> Result<UblkRing, UblkLack> {
        let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
        let path = Path::new("/dev/ublk-control");
        let control = File::open(path, options).map_err(|errno| match errno {
            Errno::NOT_FOUND | Errno(libc::ENXIO | libc::ENODEV) => UblkLack::Driver,
            errno => UblkLack::Permission(errno),
        })?;
        let failed = |error: &io::Error| UblkLack::Ring(Errno::of(error));
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        builder.setup_cqsize(COMPLETIONS).setup_coop_taskrun();
        let ring = builder.build(ENTRIES).map_err(|error| failed(&error))?;
        let (memory, backlog) = (BTreeMap::new(), VecDeque::new());
        let mut way = UblkRing { ring, control, features: UblkFeatures(0), memory, backlog };
        way.features = way.ask_features()?;
        let signal = waker.signal().number();
        way.ring.submitter().register_eventfd(signal).map_err(|error| failed(&error))?;
        Ok(way)
    }

    /// What the driver can do.
    #[must_use]
    pub fn features(&self) -> UblkFeatures {
        self.features
    }

    /// Asks the driver what it can, and waits for that: it looks nothing up.
    fn ask_features(&mut self) -> Result<UblkFeatures, UblkLack> {
        let mut told = Box::new([0; 8]);
        let entry = self.entry(0x13, u32::MAX, told.as_mut_ptr() as u64, 8, 0);
        self.push(entry.user_data(OF_FEATURES));
        let answer = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // The kernel may still write there.
                    Box::leak(told);
                    return Err(UblkLack::Ring(Errno::of(&error)));
                }
                _ => {}
            }
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
        };
        match answer {
            0.. => {
                let bits = u64::from_le_bytes(*told);
                if bits & NEEDED == NEEDED { Ok(UblkFeatures(bits)) } else { Err(UblkLack::Old) }
            }
            error if error == -libc::EPERM || error == -libc::EACCES => {
                Err(UblkLack::Permission(Errno(-error)))
            }
            error if Errno(-error).is_passing() => Err(UblkLack::Ring(Errno(-error))),
            _ => Err(UblkLack::Old),
        }
    }

    /// Whether no command about this device is with the driver.
    #[must_use]
    pub fn is_free(&self, device: u32) -> bool {
        !self.memory.contains_key(&(OF_COMMAND | u64::from(device)))
    }

    /// Asks something of the driver; the answer is an event. One command about a device at a time.
    ///
    /// # Panics
    /// If a command about this device has not ended.
    pub fn command(&mut self, device: u32, command: UblkCommand) {
        let mut memory = Box::new([0; MEMORY_BYTES]);
        let mut length = 64;
        let mut data = 0;
        let number = match command {
            UblkCommand::Info => 0x02,
            UblkCommand::Add { mark, queues } => {
                *memory = description(device, mark, queues);
                0x04
            }
            UblkCommand::Delete => 0x14,
            UblkCommand::DeleteAndWait => 0x05,
            UblkCommand::Start => 0x06,
            UblkCommand::Stop => 0x07,
            UblkCommand::Shape(shape) => {
                *memory = parameters(&shape);
                0x08
            }
            UblkCommand::Recover => 0x10,
            UblkCommand::Resume => 0x11,
            UblkCommand::Resize(sectors) => {
                data = sectors;
                0x15
            }
        };
        match command {
            UblkCommand::Start | UblkCommand::Resume => data = u64::from(std::process::id()),
            _ => {}
        }
        let named = match command {
            UblkCommand::Info | UblkCommand::Add { .. } | UblkCommand::Shape(_) => {
                memory.as_mut_ptr() as u64
            }
            _ => {
                length = 0;
                0
            }
        };
        let entry = self.entry(number, device, named, length, data);
        let token = OF_COMMAND | u64::from(device);
        let before = self.memory.insert(token, (command, memory));
        assert!(before.is_none(), "one command about a device at a time");
        self.push(entry.user_data(token));
    }

    /// `ublksrv_ctrl_cmd`, encoded as every command is since Linux 6.4.
    fn entry(&self, number: u32, device: u32, named: u64, length: u16, data: u64) -> Entry128 {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&device.to_le_bytes());
        bytes[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
        bytes[6..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..16].copy_from_slice(&named.to_le_bytes());
        bytes[16..24].copy_from_slice(&data.to_le_bytes());
        // As the header has it: what only tells something is read, and so is what only waits for nothing.
        let direction = if matches!(number, 0x02 | 0x13 | 0x14) { 2 } else { 3 };
        let code = encoded(direction, 32, number);
        opcode::UringCmd80::new(Fd(self.control.0.number()), code).cmd(bytes).build()
    }

    /// Fetches the first request of a queue's tag, or answers one (bytes moved, or an error) and fetches the next.
    pub fn fetch(
        &mut self,
        number: u32,
        device: &UblkDevice,
        (queue, tag): (u16, u16),
        answer: Option<Result<u32, Errno>>,
    ) {
        let code = encoded(3, 16, if answer.is_some() { 0x21 } else { 0x20 });
        let result = match answer {
            None => 0,
            Some(Ok(bytes)) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Some(Err(errno)) => -errno.0,
        };
        let mut bytes = [0; 80];
        bytes[0..2].copy_from_slice(&queue.to_le_bytes());
        bytes[2..4].copy_from_slice(&tag.to_le_bytes());
        bytes[4..8].copy_from_slice(&result.to_le_bytes());
        let entry = opcode::UringCmd80::new(Fd(device.file.0.number()), code).cmd(bytes).build();
        let token = u64::from(queue) << 48 | u64::from(number) << 16 | u64::from(tag);
        self.push(entry.user_data(token));
    }

    fn push(&mut self, entry: Entry128) {
        if !self.backlog.is_empty() || !offer(&mut self.ring, &entry) {
            self.backlog.push_back(entry);
        }
    }

    /// Hands everything to the driver. Does not wait.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn submit(&mut self) -> Result<(), Errno> {
        loop {
            let queue = self.ring.submission();
            let idle = queue.is_empty() && !queue.cq_overflow();
            drop(queue);
            if !idle {
                match self.ring.submit().map_err(|error| Errno::of(&error)) {
                    Ok(_) | Err(Errno(libc::EINTR)) => {}
                    // What has completed is to be taken first, which the owner is woken for.
                    Err(Errno(libc::EBUSY | libc::EAGAIN)) => return Ok(()),
                    Err(errno) => return Err(errno),
                }
            }
            if self.backlog.is_empty() {
                return Ok(());
            }
            while self.backlog.front().is_some_and(|entry| offer(&mut self.ring, entry)) {
                self.backlog.pop_front();
            }
        }
    }

    /// What has ended since it was asked last.
    pub fn collect(&mut self, events: &mut Vec<UblkEvent>) {
        for done in self.ring.completion() {
            let token = done.user_data();
            let result = if done.result() < 0 { Err(Errno(-done.result())) } else { Ok(()) };
            if token & OF_COMMAND == 0 {
                let tag = u16::try_from(token & 0xffff).expect("sixteen bits");
                let device = u32::try_from(token >> 16 & u64::from(u32::MAX)).expect("masked");
                let queue = u16::try_from(token >> 48).expect("fifteen bits");
                events.push(UblkEvent::Request { device, queue, tag, result });
                continue;
            }
            let Some((command, memory)) = self.memory.remove(&token) else { continue };
            let tells = matches!(command, UblkCommand::Info | UblkCommand::Add { .. });
            let told = tells && result.is_ok();
            let info = told.then(|| info_of(&memory));
            let device = u32::try_from(token & u64::from(u32::MAX)).expect("32 bits");
            events.push(UblkEvent::Command { device, result, info });
        }
    }
}

impl Drop for UblkRing {
    fn drop(&mut self) {
        // The kernel may still write to what commands name.
        std::mem::forget(std::mem::take(&mut self.memory));
    }
}

/// Puts an entry into the ring; false when it is full.
fn offer(ring: &mut IoUring<Entry128, cqueue::Entry>, entry: &Entry128) -> bool {
    // SAFETY: what an entry points to is in `UblkRing::memory` until its completion is seen, and leaked if that never is;
    // requests name no memory. Descriptors are looked up when the entry is submitted, before the owner's turn ends.
    unsafe { ring.submission().push(entry).is_ok() }
}

/// The number of a command as `ioctl(2)` composes it; `direction` 2: read, 3: both.
const fn encoded(direction: u32, length: u32, number: u32) -> u32 {
    direction << 30 | length << 16 | (b'u' as u32) << 8 | number
}

/// `ublksrv_ctrl_dev_info`.
fn description(device: u32, mark: u64, queues: u16) -> [u8; MEMORY_BYTES] {
    let mut bytes = [0; MEMORY_BYTES];
    bytes[0..2].copy_from_slice(&queues.to_le_bytes());
    bytes[2..4].copy_from_slice(&UBLK_DEPTH.to_le_bytes());
    bytes[8..12].copy_from_slice(&UBLK_IO_BYTES.to_le_bytes());
    bytes[12..16].copy_from_slice(&device.to_le_bytes());
    bytes[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    bytes[24..32].copy_from_slice(&NEEDED.to_le_bytes());
    bytes[32..40].copy_from_slice(&mark.to_le_bytes());
    bytes
}

fn info_of(bytes: &[u8; MEMORY_BYTES]) -> UblkInfo {
    let queues = u16::from_le_bytes([bytes[0], bytes[1]]);
    let state = u16::from_le_bytes([bytes[4], bytes[5]]);
    let mark = u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes"));
    UblkInfo { mark, dead: state == 0, waits: state == 2, queues }
}

/// `ublk_params`: what the device is, and how it is discarded and zeroed.
fn parameters(shape: &UblkShape) -> [u8; MEMORY_BYTES] {
    const BASIC_AND_DISCARD: u32 = 3;
    const VOLATILE_CACHE_AND_FUA: u32 = 1 << 2 | 1 << 3;
    let block = u8::try_from(shape.block_bytes.trailing_zeros()).expect("below 32");
    let best = block.max(12);
    let mut bytes = [0; MEMORY_BYTES];
    bytes[0..4].copy_from_slice(&64_u32.to_le_bytes());
    bytes[4..8].copy_from_slice(&BASIC_AND_DISCARD.to_le_bytes());
    bytes[8..12].copy_from_slice(&VOLATILE_CACHE_AND_FUA.to_le_bytes());
    bytes[12..16].copy_from_slice(&[block, best, best, block]);
    bytes[16..20].copy_from_slice(&(UBLK_IO_BYTES >> 9).to_le_bytes());
    bytes[24..32].copy_from_slice(&shape.sectors.to_le_bytes());
    bytes[44..48].copy_from_slice(&(1_u32 << best).to_le_bytes());
    bytes[48..52].copy_from_slice(&shape.zero_sectors.to_le_bytes());
    bytes[52..56].copy_from_slice(&shape.zero_sectors.to_le_bytes());
    bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::{
        UblkOp, UblkRequest, UblkShape, data_at, description, encoded, info_of, parameters,
        request_of,
    };

    #[test]
    fn a_request_is_read_as_the_driver_writes_it() {
        let mut bytes = [0; 24];
        bytes[0..4].copy_from_slice(&(1_u32 | 1 << 13).to_le_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&0x1_0000_0002_u64.to_le_bytes());
        let write = UblkRequest { op: UblkOp::Write, fua: true, first: 0x1_0000_0002, count: 8 };
        assert_eq!(request_of(&bytes), write);
        bytes[0..4].copy_from_slice(&5_u32.to_le_bytes());
        assert_eq!(request_of(&bytes).op, UblkOp::Zero { unmap: true });
        bytes[0..4].copy_from_slice(&(5_u32 | 1 << 15).to_le_bytes());
        assert_eq!(request_of(&bytes).op, UblkOp::Zero { unmap: false });
        bytes[0..4].copy_from_slice(&4_u32.to_le_bytes());
        assert_eq!(request_of(&bytes).op, UblkOp::Other);
    }

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        // As a C compiler says of `UBLK_U_CMD_ADD_DEV`, `UBLK_U_CMD_GET_FEATURES`, `UBLK_U_IO_FETCH_REQ`.
        assert_eq!(encoded(3, 32, 0x04), 0xc020_7504);
        assert_eq!(encoded(2, 32, 0x13), 0x8020_7513);
        assert_eq!(encoded(3, 16, 0x20), 0xc010_7520);
        assert_eq!(data_at(0, 3, 512), 0x8000_0000 + 3 * (1 << 25) + 512);
        assert_eq!(data_at(2, 0, 0), 0x8000_0000 + 2 * (1 << 41));
    }

    #[test]
    fn what_a_device_is_made_with_is_told_of_it() {
        let told = info_of(&description(7, 0xfeed, 4));
        assert_eq!((told.mark, told.dead, told.queues), (0xfeed, true, 4));
        let shape = UblkShape { sectors: 2048, block_bytes: 4096, zero_sectors: 64 };
        let bytes = parameters(&shape);
        assert_eq!(bytes[12..16], [12, 12, 12, 12]);
        assert_eq!(bytes[24..32], 2048_u64.to_le_bytes());
    }
}

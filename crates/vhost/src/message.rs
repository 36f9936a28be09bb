//! Messages of a front end: from bytes, and what is answered.

use alloc::vec::Vec;

use crate::{Fault, InflightShape, QUEUES_MAX, REGIONS_MAX, RING_SIZE_MAX, Region, Regions};

/// Bytes before each message's own.
pub const HEADER_BYTES: usize = 12;

/// Bytes of a message's own, at most: a question for 256 bytes of configuration, or eight regions.
pub const MESSAGE_BYTES_MAX: usize = 8 + 32 * REGIONS_MAX + 16;

/// Bytes of configuration that a front end may ask for at once.
const CONFIG_ASKED_MAX: u32 = 256;

/// The feature by which a front end says that it speaks of [`OFFERED_PROTOCOL`], and enables rings itself.
pub const PROTOCOL_FEATURES_BIT: u64 = 1 << 30;

const PROTOCOL_MQ: u64 = 1 << 0;
const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
const PROTOCOL_BACKEND_REQ: u64 = 1 << 5;
const PROTOCOL_CONFIG: u64 = 1 << 9;
const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;

/// What of the protocol is offered: several queues, answers where asked for, a way to tell of a new size, the
/// configuration, and a record of unanswered requests that the front end keeps.
pub const OFFERED_PROTOCOL: u64 = PROTOCOL_MQ
    | PROTOCOL_REPLY_ACK
    | PROTOCOL_BACKEND_REQ
    | PROTOCOL_CONFIG
    | PROTOCOL_INFLIGHT_SHMFD;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const IS_REPLY: u32 = 1 << 2;
const NEEDS_REPLY: u32 = 1 << 3;

/// The whole message by which a front end is told that its disk's configuration has changed.
pub const CONFIG_CHANGED: [u8; HEADER_BYTES] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// What comes before a message's own bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Its kind.
    pub kind: u32,
    /// The front end wants to hear how it went.
    pub needs_reply: bool,
    /// Bytes that follow.
    pub bytes: usize,
}

impl Header {
    /// From its bytes.
    ///
    /// # Errors
    /// [`Fault::Header`], [`Fault::Length`].
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Fault> {
        let (kind, flags, length) = (u32_at(bytes, 0), u32_at(bytes, 4), u32_at(bytes, 8));
        if flags & VERSION_MASK != VERSION || flags & IS_REPLY != 0 {
            return Err(Fault::Header);
        }
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Fault::Length(kind));
        }
        Ok(Header { kind, needs_reply: flags & NEEDS_REPLY != 0, bytes })
    }
}

/// Where a ring's parts are, as the front end itself has them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RingAddresses {
    /// The table of descriptors.
    pub descriptors: u64,
    /// What the device has answered.
    pub used: u64,
    /// What the machine asks.
    pub available: u64,
}

/// Which of a queue's three signals a descriptor is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kicks {
    /// The machine says that it asks something.
    Kick,
    /// The machine is told that something is answered.
    Call,
    /// The front end is told that the ring is broken.
    Error,
}

/// What a front end says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// What is offered of virtio?
    GetFeatures,
    /// That is used of it.
    SetFeatures(u64),
    /// It is the only one.
    SetOwner,
    /// What is offered of this protocol?
    GetProtocolFeatures,
    /// That is used of it.
    SetProtocolFeatures(u64),
    /// How many queues may there be?
    GetQueueCount,
    /// Its memory; a descriptor for each region.
    SetRegions(Regions),
    /// Places of a ring.
    SetRingSize {
        /// Of which queue.
        queue: u16,
        /// A power of two.
        size: u16,
    },
    /// Where a ring is.
    SetRingAddresses {
        /// Of which queue.
        queue: u16,
        /// Not looked at yet.
        addresses: RingAddresses,
    },
    /// Where a ring goes on.
    SetRingBase {
        /// Of which queue.
        queue: u16,
        /// Requests taken so far.
        base: u16,
    },
    /// Stop this ring: where does it go on?
    GetRingBase(u16),
    /// One of a queue's signals, by the descriptor that comes with it, or none.
    SetSignal {
        /// Of which queue.
        queue: u16,
        /// Which.
        kind: Kicks,
        /// Whether there is one.
        given: bool,
    },
    /// Serve this queue, or do not.
    EnableRing {
        /// Which queue.
        queue: u16,
        /// Whether to.
        on: bool,
    },
    /// By this socket it hears what has changed.
    SetBackendSocket,
    /// What is the disk like?
    GetConfig {
        /// From which byte of the configuration on.
        offset: u32,
        /// How many.
        bytes: u32,
        /// Sent back.
        flags: u32,
    },
    /// The machine changes its disk, which it was not offered.
    SetConfig,
    /// Make a record of unanswered requests.
    GetInflight(InflightShape),
    /// Go on with that record, which comes as a descriptor.
    SetInflight(InflightShape),
}

impl Message {
    /// From a message's own bytes; so many descriptors came with it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(header: Header, body: &[u8], descriptors: usize) -> Result<Message, Fault> {
        let kind = header.kind;
        let message = match kind {
            1 => Message::empty(kind, body, Message::GetFeatures)?,
            2 => Message::SetFeatures(u64_of(kind, body)?),
            3 => Message::empty(kind, body, Message::SetOwner)?,
            5 => Message::regions(kind, body)?,
            8 => {
                let (queue, size) = queue_and(kind, body)?;
                Message::SetRingSize { queue, size: ring_size(size)? }
            }
            9 => Message::addresses(kind, body)?,
            10 => {
                let (queue, base) = queue_and(kind, body)?;
                let base = u16::try_from(base).map_err(|_| Fault::Length(kind))?;
                Message::SetRingBase { queue, base }
            }
            11 => Message::GetRingBase(queue_and(kind, body)?.0),
            12 => Message::signal(kind, body, Kicks::Kick)?,
            13 => Message::signal(kind, body, Kicks::Call)?,
            14 => Message::signal(kind, body, Kicks::Error)?,
            15 => Message::empty(kind, body, Message::GetProtocolFeatures)?,
            16 => Message::SetProtocolFeatures(u64_of(kind, body)?),
            17 => Message::empty(kind, body, Message::GetQueueCount)?,
            18 => {
                let (queue, on) = queue_and(kind, body)?;
                Message::EnableRing { queue, on: on != 0 }
            }
            21 => Message::empty(kind, body, Message::SetBackendSocket)?,
            24 => Message::config(kind, body)?,
            25 => Message::SetConfig,
            31 => Message::GetInflight(InflightShape::parse(body)?),
            32 => Message::SetInflight(InflightShape::parse(body)?),
            _ => return Err(Fault::Unknown(kind)),
        };
        if descriptors == message.descriptors() {
            Ok(message)
        } else {
            Err(Fault::Descriptors(kind))
        }
    }

    /// How many descriptors come with it.
    fn descriptors(&self) -> usize {
        match self {
            Message::SetRegions(regions) => regions.all().len(),
            Message::SetSignal { given, .. } => usize::from(*given),
            Message::SetBackendSocket | Message::SetInflight(_) => 1,
            _ => 0,
        }
    }

    fn empty(kind: u32, body: &[u8], message: Message) -> Result<Message, Fault> {
        if body.is_empty() { Ok(message) } else { Err(Fault::Length(kind)) }
    }

    fn regions(kind: u32, body: &[u8]) -> Result<Message, Fault> {
        let wrong = Fault::Length(kind);
        if body.len() < 8 {
            return Err(wrong);
        }
        let count = usize::try_from(u32_at(body, 0)).unwrap_or(usize::MAX);
        if count == 0 || count > REGIONS_MAX {
            return Err(Fault::Regions);
        }
        if body.len() != 8 + 32 * count {
            return Err(wrong);
        }
        let region = |at: usize| Region {
            guest: u64_at(body, at),
            bytes: u64_at(body, at + 8),
            user: u64_at(body, at + 16),
            offset: u64_at(body, at + 24),
        };
        let all: Vec<Region> = (0..count).map(|number| region(8 + 32 * number)).collect();
        Ok(Message::SetRegions(Regions::new(all)?))
    }

    fn addresses(kind: u32, body: &[u8]) -> Result<Message, Fault> {
        if body.len() != 40 {
            return Err(Fault::Length(kind));
        }
        let queue = queue_number(u32_at(body, 0))?;
        // A log of what is written was not offered.
        if u32_at(body, 4) & 1 != 0 {
            return Err(Fault::Features);
        }
        let addresses = RingAddresses {
            descriptors: u64_at(body, 8),
            used: u64_at(body, 16),
            available: u64_at(body, 24),
        };
        Ok(Message::SetRingAddresses { queue, addresses })
    }

    fn signal(kind: u32, body: &[u8], signal: Kicks) -> Result<Message, Fault> {
        let word = u64_of(kind, body)?;
        let queue = queue_number(u32::try_from(word & 0xff).unwrap_or(u32::MAX))?;
        Ok(Message::SetSignal { queue, kind: signal, given: word & 0x100 == 0 })
    }

    fn config(kind: u32, body: &[u8]) -> Result<Message, Fault> {
        if body.len() < 12 {
            return Err(Fault::Length(kind));
        }
        let (offset, bytes, flags) = (u32_at(body, 0), u32_at(body, 4), u32_at(body, 8));
        let end = offset.checked_add(bytes).filter(|&end| end <= CONFIG_ASKED_MAX);
        let rest = u32::try_from(body.len() - 12).ok();
        if end.is_none() || rest != Some(bytes) {
            return Err(Fault::Length(kind));
        }
        Ok(Message::GetConfig { offset, bytes, flags })
    }
}

/// A whole answer to a message of this kind.
#[must_use]
pub fn reply(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&(VERSION | IS_REPLY).to_le_bytes());
    let length = u32::try_from(body.len()).expect("answers are short");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn queue_number(number: u32) -> Result<u16, Fault> {
    let queue = u16::try_from(number).ok().filter(|&queue| queue < QUEUES_MAX);
    queue.ok_or(Fault::Queue(number))
}

pub(crate) fn ring_size(size: u32) -> Result<u16, Fault> {
    let small = u16::try_from(size).ok();
    let right = small.filter(|size| size.is_power_of_two() && *size <= RING_SIZE_MAX);
    right.ok_or(Fault::RingSize(size))
}

fn queue_and(kind: u32, body: &[u8]) -> Result<(u16, u32), Fault> {
    if body.len() != 8 {
        return Err(Fault::Length(kind));
    }
    Ok((queue_number(u32_at(body, 0))?, u32_at(body, 4)))
}

fn u64_of(kind: u32, body: &[u8]) -> Result<u64, Fault> {
    if body.len() == 8 { Ok(u64_at(body, 0)) } else { Err(Fault::Length(kind)) }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

//! The two protocols as a load needs them: requests are put into bytes, answers are looked for in bytes.
//!
//! What was agreed on when the connection was made (`client`) keeps this short: no digests, no structured replies.

use client::NvmeQueue;
use nbd::{Op, encode_request};

/// One connection's.
pub(crate) trait Protocol {
    /// Bytes of a request, at most.
    fn bytes_max(&self) -> u32;
    /// Appends a request, a write if it has data; gives its number.
    fn ask(&mut self, data: Option<&[u8]>, place: (u64, u32), send: &mut Vec<u8>) -> u16;
    /// Takes answers apart, and appends what they ask for; says how many bytes were used.
    fn take(
        &mut self,
        input: &[u8],
        data: &[u8],
        ended: &mut Vec<u16>,
        send: &mut Vec<u8>,
    ) -> Result<usize, String>;
}

/// Bytes of what was read that are still to come, and to be passed over.
fn pass(skip: &mut usize, input: &[u8]) -> usize {
    let passed = (*skip).min(input.len());
    *skip -= passed;
    passed
}

fn u16_at(input: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([input[at], input[at + 1]])
}

fn u32_at(input: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]])
}

pub(crate) struct Nbd {
    next: u16,
    /// How much is read, by number.
    lengths: Vec<u32>,
    skip: usize,
    /// Whose data is passed over.
    newest: Option<u16>,
}

impl Nbd {
    pub(crate) fn new() -> Nbd {
        Nbd { next: 0, lengths: vec![0; 1 << 16], skip: 0, newest: None }
    }
}

/// Bytes of a simple reply without its data.
const REPLY_BYTES: usize = 16;

impl Protocol for Nbd {
    fn bytes_max(&self) -> u32 {
        32 << 20
    }

    fn ask(
        &mut self,
        data: Option<&[u8]>,
        (offset, length): (u64, u32),
        send: &mut Vec<u8>,
    ) -> u16 {
        let id = self.next;
        self.next = id.wrapping_add(1);
        let op = if data.is_some() { Op::Write } else { Op::Read { whole: false } };
        encode_request(u64::from(id), op, offset, length, false, send);
        self.lengths[usize::from(id)] = if data.is_some() { 0 } else { length };
        send.extend_from_slice(data.unwrap_or_default());
        id
    }

    fn take(
        &mut self,
        input: &[u8],
        _: &[u8],
        ended: &mut Vec<u16>,
        _: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut at = 0;
        loop {
            at += pass(&mut self.skip, &input[at..]);
            if self.skip == 0 {
                ended.extend(self.newest.take());
            }
            let Some(head) = input[at..].first_chunk::<REPLY_BYTES>() else { return Ok(at) };
            if head[..8] != [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0] {
                return Err(format!("no reply that is well: {head:02x?}"));
            }
            let id = u16::from_be_bytes([head[14], head[15]]);
            self.skip = self.lengths[usize::from(id)] as usize;
            self.newest = Some(id);
            at += REPLY_BYTES;
        }
    }
}

pub(crate) struct Nvme {
    queue: NvmeQueue,
    skip: usize,
    /// Who ends once its data is passed over.
    newest: Option<u16>,
}

impl Nvme {
    pub(crate) fn new(queue: NvmeQueue) -> Nvme {
        Nvme { queue, skip: 0, newest: None }
    }
}

/// Types of PDUs, and bytes of their headers ("NVMe/TCP Transport Specification", 3.6).
const RESPONSE: u8 = 0x05;
const DATA: u8 = 0x07;
const ASKED: u8 = 0x09;
const HEAD_BYTES: usize = 24;
/// A flag of data: with them their command has ended well.
const SUCCESS: u8 = 1 << 3;

impl Protocol for Nvme {
    fn bytes_max(&self) -> u32 {
        1 << 20
    }

    fn ask(
        &mut self,
        data: Option<&[u8]>,
        (offset, length): (u64, u32),
        send: &mut Vec<u8>,
    ) -> u16 {
        let NvmeQueue { host, namespace, block_shift, .. } = &mut self.queue;
        let place = (offset >> *block_shift, length >> *block_shift);
        match data {
            None => host.read(*namespace, place, *block_shift, send),
            Some(data) if length <= nvme::INLINE_BYTES_MAX => {
                host.write(*namespace, place, false, data, send)
            }
            Some(_) => host.write_later(*namespace, place, *block_shift, send),
        }
    }

    fn take(
        &mut self,
        input: &[u8],
        data: &[u8],
        ended: &mut Vec<u16>,
        send: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut at = 0;
        loop {
            at += pass(&mut self.skip, &input[at..]);
            if self.skip == 0 {
                ended.extend(self.newest.take());
            }
            let Some(head) = input[at..].first_chunk::<HEAD_BYTES>() else { return Ok(at) };
            match head[0] {
                RESPONSE if u16_at(head, 22) >> 1 == 0 => ended.push(u16_at(head, 20)),
                DATA if head[1] & SUCCESS != 0 => self.newest = Some(u16_at(head, 8)),
                DATA => {}
                ASKED => {
                    let (from, length) = (u32_at(head, 12), u32_at(head, 16));
                    let part = from as usize..from as usize + length as usize;
                    let part = data.get(part).ok_or("more was asked for than there is")?;
                    let id = (u16_at(head, 8), u16_at(head, 10));
                    self.queue.host.send_data(id, from, part, nvme::H2C_BYTES_SENT, send);
                }
                _ => return Err(format!("no answer that is well: {head:02x?}")),
            }
            self.skip = (u32_at(head, 4) as usize).saturating_sub(HEAD_BYTES);
            at += HEAD_BYTES;
        }
    }
}

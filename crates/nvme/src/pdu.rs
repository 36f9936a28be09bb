//! PDUs: the heads of what travels on a connection.

use crate::bytes::{set, u16_at, u32_at};
use crate::command::Status;
use crate::number::{
    COMMAND_PDU_BYTES, COMMON_BYTES, DATA_PDU_BYTES, DIGEST_BYTES, FLAG_DATA_DIGEST,
    FLAG_HEADER_DIGEST, FLAG_LAST, H2C_BYTES_MAX, HEAD_BYTES_MAX, IC_BYTES, PDU_C2H_DATA,
    PDU_C2H_TERM, PDU_COMMAND, PDU_H2C_DATA, PDU_H2C_TERM, PDU_IC_REQ, PDU_IC_RESP, PDU_R2T,
    PDU_RESPONSE, RESPONSE_PDU_BYTES,
};
use alloc::vec::Vec;
use base::crc32c;

/// Which digests both sides use.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// Over each header.
    pub header: bool,
    /// Over the data of each PDU.
    pub data: bool,
}

/// Why a connection is ended by a PDU that says so (TCP, "Fatal Error Status").
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Fatal {
    /// A field of a header is not as it must be, at this byte.
    Field(u8),
    /// A PDU that cannot come now.
    Sequence,
    /// A header's digest is wrong.
    HeaderDigest,
    /// Data for a place outside its command.
    DataOutOfRange,
    /// More than was announced.
    TooMuch,
    /// A parameter of the connection that is not supported.
    Unsupported(u8),
}

impl Fatal {
    fn code(self) -> (u16, u32) {
        match self {
            Fatal::Field(at) => (1, u32::from(at)),
            Fatal::Sequence => (2, 0),
            Fatal::HeaderDigest => (3, 0),
            Fatal::DataOutOfRange => (4, 0),
            Fatal::TooMuch => (5, 0),
            Fatal::Unsupported(at) => (6, u32::from(at)),
        }
    }
}

/// The part that all PDUs begin with, checked as far as it goes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) header_bytes: usize,
    /// Where the data begins; the end of what comes before any.
    pub(crate) head_bytes: usize,
    /// Bytes of data, without digest.
    pub(crate) data_bytes: u32,
}

impl Common {
    /// What a host sent. `digests` as agreed; before that there are none.
    pub(crate) fn from_host(bytes: &[u8], digests: Digests) -> Result<Common, Fatal> {
        let header_bytes = match bytes[0] {
            PDU_IC_REQ => IC_BYTES,
            PDU_COMMAND => COMMAND_PDU_BYTES,
            PDU_H2C_DATA | PDU_H2C_TERM => DATA_PDU_BYTES,
            _ => return Err(Fatal::Field(0)),
        };
        Common::of(bytes, header_bytes, digests)
    }

    /// What a controller sent.
    pub(crate) fn from_controller(bytes: &[u8], digests: Digests) -> Result<Common, Fatal> {
        let header_bytes = match bytes[0] {
            PDU_IC_RESP => IC_BYTES,
            PDU_RESPONSE | PDU_C2H_DATA | PDU_R2T | PDU_C2H_TERM => DATA_PDU_BYTES,
            _ => return Err(Fatal::Field(0)),
        };
        const { assert!(RESPONSE_PDU_BYTES == DATA_PDU_BYTES) };
        Common::of(bytes, header_bytes, digests)
    }

    fn of(bytes: &[u8], header_bytes: usize, digests: Digests) -> Result<Common, Fatal> {
        let (kind, flags) = (bytes[0], bytes[1]);
        let connects = matches!(kind, PDU_IC_REQ | PDU_IC_RESP | PDU_H2C_TERM | PDU_C2H_TERM);
        let digests = if connects { Digests::default() } else { digests };
        if usize::from(bytes[2]) != header_bytes {
            return Err(Fatal::Field(2));
        }
        let flagged = (flags & FLAG_HEADER_DIGEST != 0, flags & FLAG_DATA_DIGEST != 0);
        let total = u32_at(bytes, 4) as usize;
        let digest = if digests.header { DIGEST_BYTES } else { 0 };
        let plain = header_bytes + digest;
        if kind == PDU_H2C_TERM || kind == PDU_C2H_TERM {
            let data_bytes = total.checked_sub(plain).filter(|&more| more <= 128);
            let data_bytes = crate::bytes::length_u32(data_bytes.ok_or(Fatal::Field(4))?);
            return Ok(Common { kind, flags, header_bytes, head_bytes: plain, data_bytes });
        }
        if flagged.0 != digests.header || (flagged.1 && !digests.data) {
            return Err(Fatal::Field(1));
        }
        if total == plain {
            return Ok(Common { kind, flags, header_bytes, head_bytes: plain, data_bytes: 0 });
        }
        let carries = matches!(kind, PDU_COMMAND | PDU_H2C_DATA | PDU_C2H_DATA);
        if !carries || total < plain {
            return Err(Fatal::Field(4));
        }
        let head_bytes = usize::from(bytes[3]);
        const { assert!(u8::MAX as usize <= HEAD_BYTES_MAX) };
        if head_bytes < plain || !head_bytes.is_multiple_of(4) {
            return Err(Fatal::Field(3));
        }
        let trailer = if digests.data { DIGEST_BYTES } else { 0 };
        let data_bytes = total.checked_sub(head_bytes + trailer).filter(|&bytes| bytes > 0);
        let data_bytes = u32::try_from(data_bytes.ok_or(Fatal::Field(4))?);
        let data_bytes = data_bytes.map_err(|_| Fatal::Field(4))?;
        if flagged.1 != digests.data {
            return Err(Fatal::Field(1));
        }
        Ok(Common { kind, flags, header_bytes, head_bytes, data_bytes })
    }
}

/// Whether the header at the front of `head` is as its digest says.
pub(crate) fn is_whole(head: &[u8], header_bytes: usize, digests: Digests) -> bool {
    !digests.header || u32_at(head, header_bytes) == crc32c(&head[..header_bytes])
}

/// Appends a header of so many bytes whose fields but the lengths are set by `fill`, for `data_bytes` of data that the other
/// side wants at a multiple of `align` bytes.
fn put<const BYTES: usize>(
    kind: u8,
    flags: u8,
    data_bytes: u32,
    (digests, align): (Digests, usize),
    send: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8; BYTES]),
) {
    let digest = if digests.header { DIGEST_BYTES } else { 0 };
    let plain = BYTES + digest;
    let (data_at, trailer) = match data_bytes {
        0 => (plain, 0),
        _ => (plain.next_multiple_of(align), if digests.data { DIGEST_BYTES } else { 0 }),
    };
    let total = crate::bytes::length_u32(data_at + trailer).saturating_add(data_bytes);
    let mut flags = flags;
    if digests.header {
        flags |= FLAG_HEADER_DIGEST;
    }
    if trailer > 0 {
        flags |= FLAG_DATA_DIGEST;
    }
    let data_offset = if data_bytes > 0 { data_at } else { 0 };
    let short = |length: usize| u8::try_from(length).expect("heads are short");
    let mut header = [0; BYTES];
    set(&mut header, 0, &[kind, flags, short(BYTES), short(data_offset)]);
    set(&mut header, 4, &total.to_le_bytes());
    fill(&mut header);
    send.extend_from_slice(&header);
    if digests.header {
        send.extend_from_slice(&crc32c(&header).to_le_bytes());
    }
    send.extend(core::iter::repeat_n(0, data_at - plain));
}

/// How what is sent looks: digests, and where data begins.
pub(crate) type Form = (Digests, usize);

/// Appends a command whose fields are set by `fill`, and whose data of so many bytes follows.
pub(crate) fn put_command(
    data_bytes: u32,
    form: Form,
    send: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]),
) {
    put::<COMMAND_PDU_BYTES>(PDU_COMMAND, 0, data_bytes, form, send, |header| {
        fill(&mut header[COMMON_BYTES..]);
    });
}

/// Appends the end of a command.
pub(crate) fn put_response(
    result: u64,
    (head, queue): (u16, u16),
    (id, status): (u16, Status),
    form: Form,
    send: &mut Vec<u8>,
) {
    put::<DATA_PDU_BYTES>(PDU_RESPONSE, 0, 0, form, send, |header| {
        set(header, 8, &result.to_le_bytes());
        set(header, 16, &head.to_le_bytes());
        set(header, 18, &queue.to_le_bytes());
        set(header, 20, &id.to_le_bytes());
        set(header, 22, &status.field().to_le_bytes());
    });
}

/// Appends the header of data for the host, from `offset` of what the command `id` reads.
pub(crate) fn put_read(
    id: u16,
    (offset, length): (u32, u32),
    flags: u8,
    form: Form,
    send: &mut Vec<u8>,
) {
    put::<DATA_PDU_BYTES>(PDU_C2H_DATA, flags, length, form, send, |header| {
        set(header, 8, &id.to_le_bytes());
        set(header, 12, &offset.to_le_bytes());
        set(header, 16, &length.to_le_bytes());
    });
}

/// Appends the header of data for the controller.
pub(crate) fn put_written(
    (id, tag): (u16, u16),
    (offset, length): (u32, u32),
    last: bool,
    form: Form,
    send: &mut Vec<u8>,
) {
    put::<DATA_PDU_BYTES>(
        PDU_H2C_DATA,
        if last { FLAG_LAST } else { 0 },
        length,
        form,
        send,
        |header| {
            set(header, 8, &id.to_le_bytes());
            set(header, 10, &tag.to_le_bytes());
            set(header, 12, &offset.to_le_bytes());
            set(header, 16, &length.to_le_bytes());
        },
    );
}

/// Appends that data of the command `id` may come.
pub(crate) fn put_ready(
    (id, tag): (u16, u16),
    (offset, length): (u32, u32),
    form: Form,
    send: &mut Vec<u8>,
) {
    put::<DATA_PDU_BYTES>(PDU_R2T, 0, 0, form, send, |header| {
        set(header, 8, &id.to_le_bytes());
        set(header, 10, &tag.to_le_bytes());
        set(header, 12, &offset.to_le_bytes());
        set(header, 16, &length.to_le_bytes());
    });
}

/// The request by which a host sets up a connection.
pub(crate) fn put_ic_request(digests: Digests, send: &mut Vec<u8>) {
    put::<IC_BYTES>(PDU_IC_REQ, 0, 0, (Digests::default(), 4), send, |header| {
        header[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
    });
}

/// The answer to it.
pub(crate) fn put_ic_response(digests: Digests, send: &mut Vec<u8>) {
    put::<IC_BYTES>(PDU_IC_RESP, 0, 0, (Digests::default(), 4), send, |header| {
        header[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
        set(header, 12, &H2C_BYTES_MAX.to_le_bytes());
    });
}

/// Appends why the connection ends, and the header that is to blame.
pub(crate) fn put_end(why: Fatal, blame: &[u8], send: &mut Vec<u8>) {
    let (status, information) = why.code();
    let at = send.len();
    put::<DATA_PDU_BYTES>(PDU_C2H_TERM, 0, 0, (Digests::default(), 4), send, |header| {
        set(header, 8, &status.to_le_bytes());
        set(header, 10, &information.to_le_bytes());
    });
    let blame = &blame[..blame.len().min(128)];
    send.extend_from_slice(blame);
    let total = crate::bytes::length_u32(send.len() - at);
    set(&mut send[at..], 4, &total.to_le_bytes());
}

/// What says where data belongs: command id, tag, offset and length.
pub(crate) fn place(head: &[u8]) -> (u16, u16, u32, u32) {
    (u16_at(head, 8), u16_at(head, 10), u32_at(head, 12), u32_at(head, 16))
}

//! Commands and their completions.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::number::{COMMAND_BYTES, FABRICS, FABRICS_CONNECT};
use base::AnswerError;

/// A submission queue entry, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    bytes: [u8; COMMAND_BYTES],
}

/// Where a command's data is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sgl {
    /// In the command's own PDU.
    Inline { offset_bytes: u64, length_bytes: u32 },
    /// Carried by PDUs of data.
    Transport { length_bytes: u32 },
    /// No kind that this transport has.
    Other,
}

impl Command {
    /// The first 64 bytes of `bytes`, which has them.
    pub(crate) fn of(bytes: &[u8]) -> Command {
        let mut own = [0; COMMAND_BYTES];
        own.copy_from_slice(&bytes[..COMMAND_BYTES]);
        Command { bytes: own }
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    pub(crate) fn is_fabrics(&self) -> bool {
        self.opcode() == FABRICS
    }

    /// Whether it is a fabrics command that asks for a queue.
    pub(crate) fn is_connect(&self) -> bool {
        self.is_fabrics() && self.fabrics_type() == FABRICS_CONNECT
    }

    /// Whether it is to be done by itself (FUSE: no two as one), and has a descriptor of its data (PSDT) as they have over networks.
    pub(crate) fn has_right_flags(&self) -> bool {
        match self.bytes[1] & 0b1100_0011 {
            0b0100_0000 => true,
            // Of fabrics commands the specification says 00b and 10b, and Linux what all others have.
            0b0000_0000 | 0b1000_0000 => self.is_fabrics(),
            _ => false,
        }
    }

    pub(crate) fn id(&self) -> u16 {
        u16_at(&self.bytes, 2)
    }

    pub(crate) fn namespace(&self) -> u32 {
        u32_at(&self.bytes, 4)
    }

    /// What a fabrics command is.
    pub(crate) fn fabrics_type(&self) -> u8 {
        self.bytes[4]
    }

    /// One of the command's sixteen words.
    pub(crate) fn word(&self, number: usize) -> u32 {
        u32_at(&self.bytes, number * 4)
    }

    /// Two words, from `number` on.
    pub(crate) fn long(&self, number: usize) -> u64 {
        u64_at(&self.bytes, number * 4)
    }

    /// 2 bytes of the command.
    pub(crate) fn short(&self, at: usize) -> u16 {
        u16_at(&self.bytes, at)
    }

    /// A byte of the command.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// The data's descriptor (base, "Scatter Gather List"; TCP, "SGL").
    pub(crate) fn sgl(&self) -> Sgl {
        let (address, length_bytes) = (self.long(6), self.word(8));
        match self.bytes[39] {
            0x01 => Sgl::Inline { offset_bytes: address, length_bytes },
            0x5a => Sgl::Transport { length_bytes },
            _ => Sgl::Other,
        }
    }
}

/// How a command ended. The value is its status code type, times 256, and its status code.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Status {
    code: u16,
    /// Trying again as it is cannot help.
    again_is_vain: bool,
}

impl Status {
    /// Done.
    pub const SUCCESS: Status = Status::new(0x000);
    /// Invalid command opcode.
    pub const INVALID_OPCODE: Status = Status::vain(0x001);
    /// Invalid field in command.
    pub const INVALID_FIELD: Status = Status::vain(0x002);
    /// Command id conflict.
    pub const ID_CONFLICT: Status = Status::vain(0x003);
    /// Data transfer error.
    pub const TRANSFER_ERROR: Status = Status::new(0x004);
    /// Internal error.
    pub const INTERNAL: Status = Status::new(0x006);
    /// Internal error that lasts: what the host has seen is not so any more.
    pub const LOST: Status = Status::vain(0x006);
    /// Invalid namespace or format.
    pub const INVALID_NAMESPACE: Status = Status::vain(0x00b);
    /// Command sequence error.
    pub const SEQUENCE_ERROR: Status = Status::vain(0x00c);
    /// Data SGL length invalid.
    pub const SGL_LENGTH: Status = Status::vain(0x00f);
    /// Invalid SGL descriptor type.
    pub const INVALID_SGL: Status = Status::vain(0x011);
    /// SGL offset invalid.
    pub const INVALID_OFFSET: Status = Status::vain(0x016);
    /// Transient transport error: data came damaged.
    pub const TRANSPORT: Status = Status::new(0x022);
    /// Host identifier inconsistent format.
    pub const HOST_ID_FORMAT: Status = Status::vain(0x018);
    /// LBA out of range.
    pub const OUT_OF_RANGE: Status = Status::vain(0x080);
    /// Reservation conflict.
    pub const RESERVATION_CONFLICT: Status = Status::vain(0x083);
    /// Asynchronous event request limit exceeded.
    pub const TOO_MANY_EVENTS: Status = Status::vain(0x105);
    /// Invalid log page.
    pub const INVALID_LOG_PAGE: Status = Status::vain(0x109);
    /// Feature identifier not saveable.
    pub const FEATURE_NOT_SAVEABLE: Status = Status::vain(0x10d);
    /// The feature cannot be changed.
    pub const FEATURE_FIXED: Status = Status::vain(0x10e);
    /// Connect: incompatible format.
    pub const CONNECT_FORMAT: Status = Status::vain(0x180);
    /// Connect: controller busy.
    pub const CONNECT_BUSY: Status = Status::new(0x181);
    /// Connect: invalid parameters; see [`crate::Refusal`].
    pub(crate) const CONNECT_INVALID: Status = Status::vain(0x182);
    /// Connect: invalid host.
    pub const CONNECT_HOST: Status = Status::vain(0x184);
    /// Authentication required.
    pub const AUTH_REQUIRED: Status = Status::vain(0x191);
    /// Write fault.
    pub const WRITE_FAULT: Status = Status::new(0x280);
    /// Unrecovered read error.
    pub const READ_ERROR: Status = Status::new(0x281);
    /// Compare failure.
    pub const COMPARE_FAILURE: Status = Status::vain(0x285);
    /// Internal path error: ask again, by any path.
    pub const PATH_ERROR: Status = Status::new(0x300);
    /// Asymmetric access inaccessible: not by this path, another one may do.
    pub const INACCESSIBLE: Status = Status::new(0x302);

    const fn new(code: u16) -> Status {
        Status { code, again_is_vain: false }
    }

    const fn vain(code: u16) -> Status {
        Status { code, again_is_vain: true }
    }

    /// Status code type times 256, and status code.
    #[must_use]
    pub fn code(self) -> u16 {
        self.code
    }

    /// As in the completion; the phase bit, which this transport does not use, is 0.
    pub(crate) fn field(self) -> u16 {
        (self.code << 1) | if self.again_is_vain { 1 << 15 } else { 0 }
    }

    /// From a completion.
    pub(crate) fn from_field(field: u16) -> Status {
        Status { code: (field >> 1) & 0x7ff, again_is_vain: field & (1 << 15) != 0 }
    }

    /// What a failed request is told to be. What another path may do is told as a path's error, so that a host with several
    /// tries there.
    #[must_use]
    pub fn of_error(error: AnswerError, writes: bool) -> Status {
        match error {
            AnswerError::OutOfRange => Status::OUT_OF_RANGE,
            AnswerError::NoQuorum | AnswerError::Io if writes => Status::WRITE_FAULT,
            AnswerError::NoQuorum | AnswerError::Io => Status::READ_ERROR,
            AnswerError::SessionLost => Status::LOST,
            AnswerError::Gone => Status::INACCESSIBLE,
            AnswerError::Path => Status::PATH_ERROR,
            AnswerError::Reserved => Status::RESERVATION_CONFLICT,
        }
    }
}

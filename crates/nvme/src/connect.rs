//! What a connect command asks for, and why a host gets no queue.
//!
//! Source: base, "Connect Command and Response". One that fails is never told *invalid field*.

use crate::bytes::{text_at, u16_at};
use crate::command::{Command, Sgl, Status};
use crate::number::{CONTROLLER_ANY, DEPTH_MAX, NQN_BYTES, NQN_BYTES_MAX};
use alloc::string::String;

/// Bytes of a connect command's data.
const CONNECT_BYTES: u32 = 1024;

/// A host asks for a queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Connect {
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
    /// The host's identity.
    pub host_id: [u8; 16],
    /// 0: for administration, which makes a controller. Others: for I/O.
    pub queue: u16,
    /// The controller that a queue for I/O is of. Not 0xffff.
    pub controller: u16,
    /// How often the host will be heard of, in milliseconds; 0: never given up.
    pub keep_alive_ms: u32,
}

/// A field of a connect command, or of its data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectField {
    /// Whether it is one of two, and how it describes its data.
    Flags,
    /// Which queue.
    Queue,
    /// How many entries the queue has.
    Entries,
    /// The host's identity.
    HostId,
    /// The controller.
    Controller,
    /// The subsystem's name.
    Subsystem,
    /// The host's name.
    Host,
}

impl ConnectField {
    /// As a completion says it: its offset in bytes, and in bit 16 whether that is in the data.
    fn place(self) -> u32 {
        const IN_DATA: u32 = 1 << 16;
        match self {
            ConnectField::Flags => 1,
            ConnectField::Queue => 42,
            ConnectField::Entries => 44,
            ConnectField::HostId => IN_DATA,
            ConnectField::Controller => IN_DATA | 16,
            ConnectField::Subsystem => IN_DATA | 256,
            ConnectField::Host => IN_DATA | 512,
        }
    }
}

/// Why a host gets no queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    status: Status,
    /// The first word of the completion.
    result: u32,
}

impl Refusal {
    /// *Connect invalid parameters*, and which one.
    #[must_use]
    pub fn invalid(field: ConnectField) -> Refusal {
        Refusal { status: Status::CONNECT_INVALID, result: field.place() }
    }

    /// What the host is told.
    #[must_use]
    pub fn status(self) -> Status {
        self.status
    }

    pub(crate) fn result(self) -> u64 {
        u64::from(self.result)
    }
}

/// For what is told without a field that is to blame.
impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, result: 0 }
    }
}

/// What a connect command and its data say, if they can be.
pub(crate) fn connect_of(command: &Command, data: &[u8]) -> Result<Connect, Refusal> {
    let invalid = |field| Err(Refusal::invalid(field));
    if !command.has_right_flags() {
        return invalid(ConnectField::Flags);
    }
    if command.short(40) != 0 {
        return Err(Status::CONNECT_FORMAT.into());
    }
    match command.sgl() {
        Sgl::Inline { offset_bytes: 1.., .. } => return Err(Status::INVALID_OFFSET.into()),
        Sgl::Inline { length_bytes: CONNECT_BYTES, .. } if data.len() == CONNECT_BYTES as usize => {
        }
        Sgl::Inline { .. } => return Err(Status::SGL_LENGTH.into()),
        Sgl::Transport { .. } | Sgl::Other => return Err(Status::INVALID_SGL.into()),
    }
    let (queue, entries) = (command.short(42), u32::from(command.short(44)) + 1);
    if !(2..=u32::from(DEPTH_MAX)).contains(&entries) {
        return invalid(ConnectField::Entries);
    }
    let controller = u16_at(data, 16);
    // A controller is made for whoever asks; none can be asked for by number.
    if (queue == 0) != (controller == CONTROLLER_ANY) {
        return invalid(ConnectField::Controller);
    }
    let name = |at, field| {
        let name =
            text_at(data, at, NQN_BYTES).filter(|name| (1..=NQN_BYTES_MAX).contains(&name.len()));
        name.map(String::from).ok_or(Refusal::invalid(field))
    };
    let subsystem = name(256, ConnectField::Subsystem)?;
    let host = name(512, ConnectField::Host)?;
    let mut host_id = [0; 16];
    host_id.copy_from_slice(&data[..16]);
    let keep_alive_ms = command.word(12);
    Ok(Connect { subsystem, host, host_id, queue, controller, keep_alive_ms })
}

//! Numbers of the protocol, and limits of ours.
//!
//! Names follow the specifications: "base" is the NVM Express Base Specification 1.4, "TCP" its TCP transport
//! (TP 8000, later the TCP Transport Specification 1.0), "NVM" the NVM command set.

/// Requests of one queue that may be open at once: its depth. A host may ask for less.
pub const DEPTH_MAX: u16 = 128;
/// Bytes of one read or write, at most: `MDTS` of 8 with pages of 4 KiB.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// `TRANSFER_BYTES_MAX` as a power of two of pages of 4 KiB.
pub(crate) const MDTS: u8 = 8;
/// Bytes of a write that may come with its command.
pub const INLINE_BYTES_MAX: u32 = 8 << 10;
/// Bytes of one `H2CData` PDU, at most; told to the host (TCP, "MAXH2CDATA"). As much as one request may have: Linux before 5.17
/// does not look at it, and sends all that it was asked for at once.
pub const H2C_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
/// What our own hosts send in one: every release of ours takes it.
pub const H2C_BYTES_SENT: u32 = 128 << 10;
/// Bytes of data that the machine itself gathers: ranges to deallocate, connect data.
pub(crate) const GATHER_BYTES_MAX: usize = 4096;
/// Blocks that a dataset management command may name, as hosts are told: a second's work, where they wait for thirty.
pub(crate) const DEALLOCATED_BLOCKS: u32 = 1 << 18;
/// Bytes of them that are deallocated, at most: for hosts that do not look for that limit (Linux before 5.13 sends 2 TiB).
pub(crate) const DEALLOCATED_BYTES_MAX: u64 = 16 << 30;
/// Asynchronous event requests that a host may leave open.
pub const EVENTS_OPEN_MAX: usize = 4;
/// Namespaces of one subsystem, at most.
pub const NAMESPACES_MAX: u32 = 1024;
/// I/O queues of one controller, at most.
pub const IO_QUEUES_MAX: u16 = 128;

/// `NVM Express 1.4`.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// The name of the discovery service (base, "NVMe Qualified Names").
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes that a name takes in structures, its NUL included.
pub(crate) const NQN_BYTES: usize = 256;
/// Bytes of a name, at most.
pub const NQN_BYTES_MAX: usize = 223;

// Types of PDUs (TCP, "PDU Type").
pub(crate) const PDU_IC_REQ: u8 = 0x00;
pub(crate) const PDU_IC_RESP: u8 = 0x01;
pub(crate) const PDU_H2C_TERM: u8 = 0x02;
pub(crate) const PDU_C2H_TERM: u8 = 0x03;
pub(crate) const PDU_COMMAND: u8 = 0x04;
pub(crate) const PDU_RESPONSE: u8 = 0x05;
pub(crate) const PDU_H2C_DATA: u8 = 0x06;
pub(crate) const PDU_C2H_DATA: u8 = 0x07;
pub(crate) const PDU_R2T: u8 = 0x09;

// Flags of the common header.
pub(crate) const FLAG_HEADER_DIGEST: u8 = 1 << 0;
pub(crate) const FLAG_DATA_DIGEST: u8 = 1 << 1;
pub(crate) const FLAG_LAST: u8 = 1 << 2;
pub(crate) const FLAG_SUCCESS: u8 = 1 << 3;

/// Bytes of the header that all PDUs begin with.
pub(crate) const COMMON_BYTES: usize = 8;
/// Bytes of the PDUs that set up a connection.
pub(crate) const IC_BYTES: usize = 128;
/// Bytes of a command's PDU header.
pub(crate) const COMMAND_PDU_BYTES: usize = 72;
/// Bytes of a response's PDU.
pub(crate) const RESPONSE_PDU_BYTES: usize = 24;
/// Bytes of the header of `H2CData`, `C2HData`, `R2T` and of those that end a connection.
pub(crate) const DATA_PDU_BYTES: usize = 24;
/// Bytes of a digest.
pub(crate) const DIGEST_BYTES: usize = 4;
/// Bytes of a submission queue entry.
pub(crate) const COMMAND_BYTES: usize = 64;
/// The longest header that is gathered: up to where data may begin.
pub(crate) const HEAD_BYTES_MAX: usize = 255;

// Opcodes of the admin queue.
pub(crate) const ADMIN_GET_LOG_PAGE: u8 = 0x02;
pub(crate) const ADMIN_IDENTIFY: u8 = 0x06;
pub(crate) const ADMIN_ABORT: u8 = 0x08;
pub(crate) const ADMIN_SET_FEATURES: u8 = 0x09;
pub(crate) const ADMIN_GET_FEATURES: u8 = 0x0a;
pub(crate) const ADMIN_ASYNC_EVENT: u8 = 0x0c;
pub(crate) const ADMIN_KEEP_ALIVE: u8 = 0x18;
/// The opcode of all fabrics commands, on every queue.
pub(crate) const FABRICS: u8 = 0x7f;

// Fabrics command types.
pub(crate) const FABRICS_PROPERTY_SET: u8 = 0x00;
pub(crate) const FABRICS_CONNECT: u8 = 0x01;
pub(crate) const FABRICS_PROPERTY_GET: u8 = 0x04;
pub(crate) const FABRICS_AUTH_SEND: u8 = 0x05;
pub(crate) const FABRICS_AUTH_RECEIVE: u8 = 0x06;

/// In the answer to a connect command: the host has to authenticate before anything else.
pub(crate) const AUTH_REQUIRED: u64 = 1 << 17;
/// The security protocol of NVMe, as authentication commands name it, and what is specific to it.
pub(crate) const SECURITY_PROTOCOL: [u8; 3] = [0x01, 0x01, 0xe9];

// Opcodes of I/O queues (NVM).
pub(crate) const IO_FLUSH: u8 = 0x00;
pub(crate) const IO_WRITE: u8 = 0x01;
pub(crate) const IO_READ: u8 = 0x02;
pub(crate) const IO_COMPARE: u8 = 0x05;
pub(crate) const IO_WRITE_ZEROES: u8 = 0x08;
pub(crate) const IO_DATASET: u8 = 0x09;
pub(crate) const IO_VERIFY: u8 = 0x0c;
pub(crate) const IO_RESERVATION_REGISTER: u8 = 0x0d;
pub(crate) const IO_RESERVATION_REPORT: u8 = 0x0e;
pub(crate) const IO_RESERVATION_ACQUIRE: u8 = 0x11;
pub(crate) const IO_RESERVATION_RELEASE: u8 = 0x15;

// Properties (base, "Controller Properties").
pub(crate) const PROPERTY_CAP: u32 = 0x00;
pub(crate) const PROPERTY_VS: u32 = 0x08;
pub(crate) const PROPERTY_CC: u32 = 0x14;
pub(crate) const PROPERTY_CSTS: u32 = 0x1c;

// Features.
pub(crate) const FEATURE_VOLATILE_CACHE: u8 = 0x06;
pub(crate) const FEATURE_QUEUES: u8 = 0x07;
pub(crate) const FEATURE_ASYNC_EVENTS: u8 = 0x0b;
pub(crate) const FEATURE_KEEP_ALIVE: u8 = 0x0f;
pub(crate) const FEATURE_HOST_ID: u8 = 0x81;
pub(crate) const FEATURE_RESERVATION_MASK: u8 = 0x82;
pub(crate) const FEATURE_RESERVATION_PERSISTS: u8 = 0x83;
/// All of them.
pub(crate) const FEATURES: [u8; 7] = [
    FEATURE_VOLATILE_CACHE,
    FEATURE_QUEUES,
    FEATURE_ASYNC_EVENTS,
    FEATURE_KEEP_ALIVE,
    FEATURE_HOST_ID,
    FEATURE_RESERVATION_MASK,
    FEATURE_RESERVATION_PERSISTS,
];
/// In the word that names a feature that is set: it is to last (base, "Set Features": SV).
pub(crate) const SAVE: u32 = 1 << 31;

// Log pages.
pub(crate) const LOG_ERRORS: u8 = 0x01;
pub(crate) const LOG_HEALTH: u8 = 0x02;
pub(crate) const LOG_FIRMWARE: u8 = 0x03;
pub(crate) const LOG_CHANGED_NAMESPACES: u8 = 0x04;
pub(crate) const LOG_EFFECTS: u8 = 0x05;
pub(crate) const LOG_ANA: u8 = 0x0c;
pub(crate) const LOG_DISCOVERY: u8 = 0x70;
pub(crate) const LOG_RESERVATION: u8 = 0x80;

// Which kinds of asynchronous events are on: bits of `OAES` and of the feature.
pub(crate) const NOTICE_NAMESPACES: u32 = 1 << 8;
pub(crate) const NOTICE_ANA: u32 = 1 << 11;
pub(crate) const NOTICE_DISCOVERY: u32 = 1 << 31;
/// No bit of those: whether a host is told of reservations is for each namespace.
pub(crate) const NOTICE_RESERVATION: u32 = 1;

/// Bytes of the answer to every identify command.
pub(crate) const IDENTIFY_BYTES: usize = 4096;
/// A namespace id that means all of them.
pub(crate) const NSID_ALL: u32 = 0xffff_ffff;
/// A controller id in a connect command that asks for any.
pub(crate) const CONTROLLER_ANY: u16 = 0xffff;

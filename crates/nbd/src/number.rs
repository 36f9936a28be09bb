//! Every number of the protocol that is used here, under the name the protocol gives it, and our
//! own limits.
//!
//! All fields are in network byte order, as the protocol says.

/// Bytes of the longest string: an export name, a description, a query ("strings" of the protocol).
pub const NAME_BYTES_MAX: usize = 4096;
/// Bytes of option data that are kept; room for the longest name and the requests behind it.
pub const OPTION_BYTES_MAX: u32 = 8192;
/// Bytes of option data that are skipped to answer with an error; more closes the connection,
/// because no honest client sends it.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options in one connection. A client that enters needs about five; this bounds its haggling.
pub const OPTIONS_MAX: u32 = 64;
/// Bytes of one answer to a list; a longer list is refused as too big instead of filling memory.
pub const LIST_BYTES_MAX: usize = 1 << 20;
/// Bytes of an error message for humans; a longer one is cut.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Requests of one connection without an answer. The kernel's client keeps 128 by default.
pub const REQUESTS_OPEN_MAX: usize = 128;
/// Bytes of payload of one read or write: the default of the protocol, and of its clients.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 25;
/// Bytes of a refused write's payload that are skipped; more closes the connection.
pub const PAYLOAD_SKIP_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;
/// Bytes of a write's payload that are asked for at once, and of a read that must stay whole:
/// the size of the largest buffer a caller needs.
pub const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Descriptors in one answer to a block status request. The protocol advises at most 2^20; a
/// client asks again for what is missing, so an answer stays at 32 KiB.
pub const EXTENTS_MAX: usize = 4096;
/// Bytes of data of one option reply that a client takes: a name and a description, with room.
pub const REPLY_DATA_BYTES_MAX: u32 = 16 << 10;

/// `NBDMAGIC`, the first 8 bytes of a server.
pub(crate) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the next 8 bytes of a server, and the first of every option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First 8 bytes of a reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// `NBD_REQUEST_MAGIC`.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// `NBD_SIMPLE_REPLY_MAGIC`.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_STRUCTURED_REPLY_MAGIC`.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting: two magics and the handshake flags.
pub(crate) const GREETING_BYTES: usize = 18;
/// Bytes of the client flags.
pub(crate) const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes before an option's data: magic, option, length.
pub(crate) const OPTION_HEADER_BYTES: usize = 16;
/// Bytes before an option reply's data: magic, option, type, length.
pub(crate) const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a request without its payload.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its payload.
pub(crate) const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured reply chunk without its payload.
pub(crate) const CHUNK_HEADER_BYTES: usize = 20;
/// Zeroes after the answer to `NBD_OPT_EXPORT_NAME`, where the client did not decline them.
pub(crate) const EXPORT_NAME_ZEROES: usize = 124;

/// `NBD_FLAG_FIXED_NEWSTYLE` of the server, `NBD_FLAG_C_FIXED_NEWSTYLE` of the client.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// `NBD_FLAG_NO_ZEROES` of the server, `NBD_FLAG_C_NO_ZEROES` of the client.
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;

/// `NBD_OPT_EXPORT_NAME`.
pub(crate) const OPT_EXPORT_NAME: u32 = 1;
/// `NBD_OPT_ABORT`.
pub(crate) const OPT_ABORT: u32 = 2;
/// `NBD_OPT_LIST`.
pub(crate) const OPT_LIST: u32 = 3;
/// `NBD_OPT_STARTTLS`.
pub(crate) const OPT_STARTTLS: u32 = 5;
/// `NBD_OPT_INFO`.
pub(crate) const OPT_INFO: u32 = 6;
/// `NBD_OPT_GO`.
pub(crate) const OPT_GO: u32 = 7;
/// `NBD_OPT_STRUCTURED_REPLY`.
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
/// `NBD_OPT_LIST_META_CONTEXT`.
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
/// `NBD_OPT_SET_META_CONTEXT`.
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;

/// `NBD_REP_ACK`.
pub(crate) const REP_ACK: u32 = 1;
/// `NBD_REP_SERVER`.
pub(crate) const REP_SERVER: u32 = 2;
/// `NBD_REP_INFO`.
pub(crate) const REP_INFO: u32 = 3;
/// `NBD_REP_META_CONTEXT`.
pub(crate) const REP_META_CONTEXT: u32 = 4;
/// Bit 31 marks a reply that is an error.
pub(crate) const REP_ERROR: u32 = 1 << 31;
/// `NBD_REP_ERR_UNSUP`.
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
/// `NBD_REP_ERR_POLICY`.
pub(crate) const REP_ERR_POLICY: u32 = REP_ERROR + 2;
/// `NBD_REP_ERR_INVALID`.
pub(crate) const REP_ERR_INVALID: u32 = REP_ERROR + 3;
/// `NBD_REP_ERR_TLS_REQD`.
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
/// `NBD_REP_ERR_UNKNOWN`.
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
/// `NBD_REP_ERR_SHUTDOWN`.
pub(crate) const REP_ERR_SHUTDOWN: u32 = REP_ERROR + 7;
/// `NBD_REP_ERR_TOO_BIG`.
pub(crate) const REP_ERR_TOO_BIG: u32 = REP_ERROR + 9;

/// `NBD_INFO_EXPORT`.
pub(crate) const INFO_EXPORT: u16 = 0;
/// `NBD_INFO_NAME`.
pub(crate) const INFO_NAME: u16 = 1;
/// `NBD_INFO_DESCRIPTION`.
pub(crate) const INFO_DESCRIPTION: u16 = 2;
/// `NBD_INFO_BLOCK_SIZE`.
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// The one metadata context that the protocol itself defines.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
/// The query for every context of the `base` namespace.
pub(crate) const BASE_WILDCARD: &str = "base:";
/// The id we give to the allocation context when it is selected.
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// `NBD_FLAG_HAS_FLAGS`.
pub(crate) const FLAG_HAS_FLAGS: u16 = 1 << 0;
/// `NBD_FLAG_READ_ONLY`.
pub(crate) const FLAG_READ_ONLY: u16 = 1 << 1;
/// `NBD_FLAG_SEND_FLUSH`.
pub(crate) const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// `NBD_FLAG_SEND_FUA`.
pub(crate) const FLAG_SEND_FUA: u16 = 1 << 3;
/// `NBD_FLAG_ROTATIONAL`.
pub(crate) const FLAG_ROTATIONAL: u16 = 1 << 4;
/// `NBD_FLAG_SEND_TRIM`.
pub(crate) const FLAG_SEND_TRIM: u16 = 1 << 5;
/// `NBD_FLAG_SEND_WRITE_ZEROES`.
pub(crate) const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// `NBD_FLAG_SEND_DF`.
pub(crate) const FLAG_SEND_DF: u16 = 1 << 7;
/// `NBD_FLAG_CAN_MULTI_CONN`.
pub(crate) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// `NBD_FLAG_SEND_FAST_ZERO`.
pub(crate) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// `NBD_CMD_READ`.
pub(crate) const CMD_READ: u16 = 0;
/// `NBD_CMD_WRITE`.
pub(crate) const CMD_WRITE: u16 = 1;
/// `NBD_CMD_DISC`.
pub(crate) const CMD_DISC: u16 = 2;
/// `NBD_CMD_FLUSH`.
pub(crate) const CMD_FLUSH: u16 = 3;
/// `NBD_CMD_TRIM`.
pub(crate) const CMD_TRIM: u16 = 4;
/// `NBD_CMD_WRITE_ZEROES`.
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
/// `NBD_CMD_BLOCK_STATUS`.
pub(crate) const CMD_BLOCK_STATUS: u16 = 7;

/// `NBD_CMD_FLAG_FUA`.
pub(crate) const CMD_FLAG_FUA: u16 = 1 << 0;
/// `NBD_CMD_FLAG_NO_HOLE`.
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// `NBD_CMD_FLAG_DF`.
pub(crate) const CMD_FLAG_DF: u16 = 1 << 2;
/// `NBD_CMD_FLAG_REQ_ONE`.
pub(crate) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// `NBD_CMD_FLAG_FAST_ZERO`.
pub(crate) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// `NBD_REPLY_FLAG_DONE`.
pub(crate) const REPLY_FLAG_DONE: u16 = 1 << 0;
/// `NBD_REPLY_TYPE_NONE`.
pub(crate) const REPLY_TYPE_NONE: u16 = 0;
/// `NBD_REPLY_TYPE_OFFSET_DATA`.
pub(crate) const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// `NBD_REPLY_TYPE_OFFSET_HOLE`.
pub(crate) const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// `NBD_REPLY_TYPE_BLOCK_STATUS`.
pub(crate) const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Bit 15 marks a chunk that is an error.
pub(crate) const REPLY_TYPE_ERROR_BIT: u16 = 1 << 15;
/// `NBD_REPLY_TYPE_ERROR`.
pub(crate) const REPLY_TYPE_ERROR: u16 = REPLY_TYPE_ERROR_BIT + 1;

/// Bytes of an offset at the head of a chunk of data.
pub(crate) const CHUNK_OFFSET_BYTES: u32 = 8;
/// Bytes of a hole chunk's payload: offset, size.
pub(crate) const CHUNK_HOLE_BYTES: u32 = 12;
/// Bytes of a context id at the head of a block status chunk.
pub(crate) const CHUNK_CONTEXT_BYTES: u32 = 4;
/// Bytes of one descriptor in a block status chunk: length, flags.
pub(crate) const DESCRIPTOR_BYTES: u32 = 8;
/// Bytes of an error chunk's payload before its message: error, message length.
pub(crate) const CHUNK_ERROR_BYTES: u32 = 6;

/// `NBD_STATE_HOLE`.
pub(crate) const STATE_HOLE: u32 = 1 << 0;
/// `NBD_STATE_ZERO`.
pub(crate) const STATE_ZERO: u32 = 1 << 1;

/// The largest minimum block size that the protocol allows, in bytes.
pub(crate) const BLOCK_BYTES_MIN_MAX: u32 = 1 << 16;
/// The smallest preferred block size that the protocol allows, in bytes.
pub(crate) const BLOCK_BYTES_PREFERRED_MIN: u32 = 512;

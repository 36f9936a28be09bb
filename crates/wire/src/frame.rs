//! Messages on a socket: a header, a body, a payload.
//!
//! Encoding gives header and body; the payload travels apart, from the buffer it already lies in.
//! `Decoder` is the other direction, without a socket: it says what it wants next, and hands out a
//! `Frame` before the payload, so that the caller receives the payload where it is to stay.
//!
//! Always: no bytes make it panic; it holds no more than one body; nothing is allocated for a frame
//! without body. After an error the connection is of no more use.
//!
//! Not here: sockets and ciphers (`link`). Bytes are described in `docs/formats/frames.md`.

use crate::codec::DecodeError;
use crate::header::{Fields, HEADER_BYTES, Header, IGNORABLE, NO_SHARD};
use crate::hello::{NodeMessage, VERSION_MAX};
use crate::{MemberMessage, ShardMessage, hello, member_bytes, shard_bytes};
use alloc::vec::Vec;
use base::{ResourceId, crc32c};

/// Longest body in bytes: `RUNS_MAX` runs of doubt take 608 KiB.
pub const BODY_BYTES_MAX: u32 = 1024 * 1024;
/// Longest payload in bytes: the largest request, and a block for what may travel with it.
pub const PAYLOAD_BYTES_MAX: u32 = 1024 * 1024 + 4096;
/// Bytes that a peer may send before it has proved who it is.
pub const EARLY_BYTES_MAX: usize = 4096;

/// What is wrong with bytes from a peer. Each closes the connection; each asks for another cure.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FrameError {
    /// It does not speak this protocol: a wrong address or port.
    NotOurs,
    /// Bytes were changed on the way: connect again, and count it against the network.
    Damaged,
    /// It writes a frame or a configuration in a version unknown here: upgrade this node.
    Version(u16),
    /// A kind of frame that may not be skipped is unknown here: upgrade this node.
    UnknownKind(u16),
    /// More than the limits allow.
    TooLong,
    /// It may not say this before it has proved who it is.
    TooEarly,
    /// No sender of this version writes such a frame: a fault in the peer. Names what is wrong.
    Malformed(&'static str),
}

impl From<DecodeError> for FrameError {
    fn from(error: DecodeError) -> FrameError {
        match error {
            DecodeError::Schema(number) => FrameError::Version(number),
            DecodeError::Damaged(what) => FrameError::Malformed(what),
        }
    }
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameError::NotOurs => f.write_str("the peer does not speak this protocol"),
            FrameError::Damaged => f.write_str("bytes were changed on the way"),
            FrameError::Version(number) => write!(f, "version {number} is unknown here"),
            FrameError::UnknownKind(kind) => write!(f, "frames of kind {kind:#06x} are unknown"),
            FrameError::TooLong => f.write_str("a frame beyond the limits"),
            FrameError::TooEarly => f.write_str("the peer has not yet proved who it is"),
            FrameError::Malformed(what) => write!(f, "the peer is at fault: {what}"),
        }
    }
}

impl core::error::Error for FrameError {}

/// The payload beside a frame, as its header describes it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Payload {
    /// In bytes, `PAYLOAD_BYTES_MAX` at most.
    pub length: u32,
    /// CRC-32C of its bytes; `None` where the link itself proves them.
    pub checksum: Option<u32>,
}

impl Payload {
    /// There is none.
    pub const NONE: Payload = Payload { length: 0, checksum: None };

    /// The payload `bytes`, with its checksum.
    ///
    /// # Panics
    /// If it is longer than `PAYLOAD_BYTES_MAX`.
    #[must_use]
    pub fn checked(bytes: &[u8]) -> Payload {
        let checksum = (!bytes.is_empty()).then(|| crc32c(bytes));
        Payload { checksum, ..Payload::unchecked(bytes.len()) }
    }

    /// A payload of `length` bytes on a link that is encrypted and authenticated.
    ///
    /// # Panics
    /// If it is longer than `PAYLOAD_BYTES_MAX`.
    #[must_use]
    pub fn unchecked(length: usize) -> Payload {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        assert!(length <= PAYLOAD_BYTES_MAX, "a payload of {length} bytes was built");
        Payload { length, checksum: None }
    }

    /// Checks that `bytes` are the ones described.
    ///
    /// # Errors
    /// `Damaged` if they are not.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), FrameError> {
        let long_enough = u32::try_from(bytes.len()) == Ok(self.length);
        let intact = self.checksum.is_none_or(|checksum| crc32c(bytes) == checksum);
        if long_enough && intact { Ok(()) } else { Err(FrameError::Damaged) }
    }
}

/// Who speaks to whom, and what is said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// Between nodes.
    Node(NodeMessage),
    /// Between the members of a resource.
    Member {
        /// Which resource.
        resource: ResourceId,
        /// What is said.
        message: MemberMessage,
    },
    /// Between two shards of a resource.
    Shard {
        /// Which resource.
        resource: ResourceId,
        /// Which shard, the same number at both ends.
        shard: u16,
        /// What is said.
        message: ShardMessage,
    },
}

/// One frame, without the bytes of its payload.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// The stream that the sender put it in.
    pub stream: u16,
    /// What follows on the wire.
    pub payload: Payload,
    /// What it says.
    pub message: Message,
}

/// Appends header and body of a frame between shards to `out`; `payload` is to follow on the wire.
///
/// # Panics
/// If a limit is broken, or the payload's length does not fit the message.
pub fn encode_shard(
    out: &mut Vec<u8>,
    resource: ResourceId,
    shard: u16,
    stream: u16,
    message: &ShardMessage,
    payload: Payload,
) {
    assert!(shard != NO_SHARD, "there is no shard {NO_SHARD}");
    if let Err(what) = shard_bytes::check(message, payload.length) {
        panic!("an impossible message was built: {what}: {message:?}");
    }
    let (kind, fields) = shard_bytes::fields(message);
    let address = Address { kind, shard, stream, resource };
    encode(out, address, fields, payload, |out| shard_bytes::put_body(message, out));
}

/// Appends a frame between members to `out`.
///
/// # Panics
/// If it holds a configuration that `check_configuration` refuses.
pub fn encode_member(
    out: &mut Vec<u8>,
    resource: ResourceId,
    stream: u16,
    message: &MemberMessage,
) {
    let address = Address { kind: member_bytes::kind(message), shard: NO_SHARD, stream, resource };
    encode(out, address, Fields::default(), Payload::NONE, |out| {
        member_bytes::put_body(message, out);
    });
}

/// Appends a frame between nodes to `out`.
///
/// # Panics
/// If a limit is broken or a number is impossible.
pub fn encode_node(out: &mut Vec<u8>, stream: u16, message: &NodeMessage) {
    if let Err(what) = hello::check(message) {
        panic!("an impossible message was built: {what}: {message:?}");
    }
    let kind = hello::kind(message);
    let address = Address { kind, shard: NO_SHARD, stream, resource: ResourceId(0) };
    encode(out, address, Fields::default(), Payload::NONE, |out| hello::put_body(message, out));
}

#[derive(Clone, Copy)]
struct Address {
    kind: u16,
    shard: u16,
    stream: u16,
    resource: ResourceId,
}

fn encode(
    out: &mut Vec<u8>,
    address: Address,
    fields: Fields,
    payload: Payload,
    put_body: impl FnOnce(&mut Vec<u8>),
) {
    assert!(payload.length <= PAYLOAD_BYTES_MAX, "a payload is too long");
    assert!(payload.length > 0 || payload.checksum.is_none(), "a checksum of nothing");
    // The header holds length and checksum of the body behind it: the body is put in place first.
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    put_body(out);
    let body = &out[start + HEADER_BYTES..];
    let body_length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    assert!(body_length <= BODY_BYTES_MAX, "limits keep a body below 1 MiB");
    let Address { kind, shard, stream, resource } = address;
    let header = Header {
        kind,
        shard,
        stream,
        resource,
        fields,
        body_length,
        body_checksum: if body.is_empty() { 0 } else { crc32c(body) },
        payload_length: payload.length,
        payload_checksum: payload.checksum,
    };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes(VERSION_MAX));
}

/// What a `Decoder` needs next, in bytes; fewer do as well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// The rest of a header, for `receive`.
    Header(usize),
    /// The rest of a body, or of what is skipped, for `receive`.
    Body(usize),
    /// The rest of the payload of the frame handed out last; the caller takes it from the wire
    /// itself and tells by `payload_taken`.
    Payload(usize),
}

/// How a link guards the bytes it carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guard {
    /// By checksums alone: every payload must have one.
    Checksum,
    /// It is encrypted and authenticated: payloads may come without.
    Cipher,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Header,
    Body(Header),
    Skip(usize),
    Payload(usize),
    Broken(FrameError),
}

/// Takes frames off a stream of bytes. One for each connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    header: [u8; HEADER_BYTES],
    filled: usize,
    body: Vec<u8>,
    /// Bytes taken while the peer has not proved who it is.
    early: usize,
    guard: Option<Guard>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder at the start of a connection: until `open` it takes only `Hello`, `Authenticate` and
    /// `Goodbye`, and `EARLY_BYTES_MAX` bytes in all.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder {
            state: State::Header,
            header: [0; HEADER_BYTES],
            filled: 0,
            body: Vec::new(),
            early: 0,
            guard: None,
        }
    }

    /// The peer has proved who it is: every kind of frame is taken from now on.
    pub fn open(&mut self, guard: Guard) {
        self.guard = Some(guard);
    }

    /// What is needed next. Never 0 bytes; after an error, a header that never comes.
    #[must_use]
    pub fn want(&self) -> Want {
        match self.state {
            State::Header => Want::Header(HEADER_BYTES - self.filled),
            State::Body(header) => Want::Body(size(header.body_length) - self.body.len()),
            State::Skip(left) => Want::Body(left),
            State::Payload(left) => Want::Payload(left),
            State::Broken(_) => Want::Header(HEADER_BYTES),
        }
    }

    /// Takes bytes from the front of `bytes`: how many it took, and a frame if one is complete. It
    /// stops behind each frame, so call again while bytes are left and no payload is wanted.
    ///
    /// # Errors
    /// The peer's fault; the same again at each further call.
    ///
    /// # Panics
    /// If a payload is wanted: its bytes are not for the decoder.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), FrameError> {
        let mut taken = 0;
        let result = loop {
            let rest = &bytes[taken..];
            let step = match self.state {
                State::Broken(error) => Err(error),
                State::Payload(left) => panic!("{left} bytes of payload are wanted first"),
                State::Header => self.receive_header(rest),
                State::Body(header) => self.receive_body(&header, rest),
                State::Skip(left) => Ok(self.receive_skipped(left, rest)),
            };
            match step {
                Ok((count, frame)) => {
                    taken += count;
                    if frame.is_some() || taken == bytes.len() {
                        break Ok((taken, frame));
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result {
            self.state = State::Broken(error);
        }
        result
    }

    /// The caller has taken `count` bytes of the payload off the wire.
    ///
    /// # Panics
    /// If they are more than were wanted.
    pub fn payload_taken(&mut self, count: usize) {
        let State::Payload(left) = self.state else { panic!("no payload is wanted") };
        let left = left.checked_sub(count).expect("no more is taken than was wanted");
        self.state = if left == 0 { State::Header } else { State::Payload(left) };
    }

    fn receive_header(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), FrameError> {
        let taken = bytes.len().min(HEADER_BYTES - self.filled);
        self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        self.count_early(taken)?;
        if self.filled < HEADER_BYTES {
            return Ok((taken, None));
        }
        self.filled = 0;
        let header = Header::take(&self.header, VERSION_MAX)?;
        self.check_header(&header)?;
        self.body.clear();
        if !is_known(header.kind) {
            // `check_header` refused the ones that may not be skipped.
            let left = size(header.body_length) + size(header.payload_length);
            self.state = if left == 0 { State::Header } else { State::Skip(left) };
            return Ok((taken, None));
        }
        if header.body_length > 0 {
            self.state = State::Body(header);
            return Ok((taken, None));
        }
        Ok((taken, Some(self.complete(&header)?)))
    }

    fn receive_body(
        &mut self,
        header: &Header,
        bytes: &[u8],
    ) -> Result<(usize, Option<Frame>), FrameError> {
        let taken = bytes.len().min(size(header.body_length) - self.body.len());
        self.body.extend_from_slice(&bytes[..taken]);
        self.count_early(taken)?;
        if self.body.len() < size(header.body_length) {
            return Ok((taken, None));
        }
        Ok((taken, Some(self.complete(header)?)))
    }

    fn receive_skipped(&mut self, left: usize, bytes: &[u8]) -> (usize, Option<Frame>) {
        let taken = bytes.len().min(left);
        self.state = if taken == left { State::Header } else { State::Skip(left - taken) };
        (taken, None)
    }

    fn count_early(&mut self, count: usize) -> Result<(), FrameError> {
        if self.guard.is_none() {
            self.early += count;
            if self.early > EARLY_BYTES_MAX {
                return Err(FrameError::TooLong);
            }
        }
        Ok(())
    }

    fn check_header(&self, header: &Header) -> Result<(), FrameError> {
        if header.body_length > BODY_BYTES_MAX || header.payload_length > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong);
        }
        match self.guard {
            None if !hello::is_early(header.kind) => return Err(FrameError::TooEarly),
            None if size(header.body_length) > EARLY_BYTES_MAX - self.early => {
                return Err(FrameError::TooLong);
            }
            _ => {}
        }
        if !is_known(header.kind) && header.kind & IGNORABLE == 0 {
            return Err(FrameError::UnknownKind(header.kind));
        }
        if header.body_length == 0 && header.body_checksum != 0 {
            return Err(FrameError::Malformed("a checksum of nothing"));
        }
        if header.payload_length == 0 && header.payload_checksum.is_some() {
            return Err(FrameError::Malformed("a checksum of nothing"));
        }
        let bare = header.payload_length > 0 && header.payload_checksum.is_none();
        if bare && self.guard == Some(Guard::Checksum) {
            return Err(FrameError::Malformed(
                "a payload without checksum on a link without cipher",
            ));
        }
        Ok(())
    }

    /// The frame whose header and body are here.
    fn complete(&mut self, header: &Header) -> Result<Frame, FrameError> {
        if !self.body.is_empty() && crc32c(&self.body) != header.body_checksum {
            return Err(FrameError::Damaged);
        }
        let message = message_of(header, &self.body)?;
        let payload = Payload { length: header.payload_length, checksum: header.payload_checksum };
        self.state = match size(payload.length) {
            0 => State::Header,
            left => State::Payload(left),
        };
        Ok(Frame { stream: header.stream, payload, message })
    }
}

fn size(length: u32) -> usize {
    usize::try_from(length).expect("the limits fit in any usize of 32 bits")
}

fn is_known(kind: u16) -> bool {
    shard_bytes::is_known(kind) || member_bytes::is_known(kind) || hello::is_known(kind)
}

/// What header and body say, if they say it in the one way in which it is written here.
fn message_of(header: &Header, body: &[u8]) -> Result<Message, FrameError> {
    let resource = header.resource;
    let fields = &header.fields;
    if shard_bytes::is_known(header.kind) {
        let message = shard_bytes::take(header.kind, fields, body)?;
        shard_bytes::check(&message, header.payload_length).map_err(FrameError::Malformed)?;
        if header.shard == NO_SHARD {
            return Err(FrameError::Malformed("no shard is named"));
        }
        if shard_bytes::fields(&message).1 != *fields {
            return Err(FrameError::Malformed("a field that must be zero is not"));
        }
        return Ok(Message::Shard { resource, shard: header.shard, message });
    }
    if header.shard != NO_SHARD || *fields != Fields::default() || header.payload_length != 0 {
        return Err(FrameError::Malformed("a field that must be zero is not"));
    }
    if member_bytes::is_known(header.kind) {
        let message = member_bytes::take(header.kind, body)?;
        return Ok(Message::Member { resource, message });
    }
    if resource != ResourceId(0) {
        return Err(FrameError::Malformed("a frame between nodes names a resource"));
    }
    let message = hello::take(header.kind, body)?;
    hello::check(&message).map_err(FrameError::Malformed)?;
    Ok(Message::Node(message))
}

//! A small NBD client that waits: one connection, one request at a time, unless its user asks for more before it takes an answer. For
//! the demonstration, the lab, and whoever else is to see a volume as any client does. The same by NVMe/TCP: [`NvmeVolume`].
//!
//! Always: nothing is waited for longer than the limit it was opened with; after an error the
//! connection is of no use any more.
//!
//! Not here: the protocol's bytes (`nbd`), what to do when a connection breaks (its user's).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests fail by panicking"))]

mod nvme;

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nbd::{
    Client, ClientEvent, Goal, Op, Ready, Replies, Reply, encode_disconnect, encode_request,
};

pub use nbd::MOVES;

pub use crate::nvme::{
    NvmeDiscovery, NvmeIdentity, NvmeQueue, NvmeTls, NvmeVolume, discover, discover_as,
};

/// How long to wait for a connection to a node on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long an answer may take unless said otherwise: longer than any fail-over.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Most bytes taken from the socket at once during the handshake: less than any first reply.
const HANDSHAKE_BYTES: usize = 512;

/// Bytes of a simple reply.
const REPLY_BYTES: usize = 16;

/// An export, ready for use.
pub struct Volume {
    stream: TcpStream,
    replies: Replies,
    cookie: u64,
    send: Vec<u8>,
    /// What the server says of it.
    pub ready: Ready,
}

impl Volume {
    /// Connects to a node and opens an export; no answer may take longer than `limit`.
    pub fn open(address: SocketAddr, export: &str, limit: Duration) -> io::Result<Volume> {
        let goal = Goal::Use { name: export.to_owned(), structured: false, allocation: false };
        let mut ready = None;
        let stream = shake_hands(address, goal, limit, |event| {
            if let ClientEvent::Ready(what) = event {
                ready = Some(what);
            }
        })?;
        let ready = ready.ok_or_else(|| broken("no export"))?;
        Ok(Volume { stream, replies: Replies::new(), cookie: 0, send: Vec::new(), ready })
    }

    /// Writes, and returns when it is acknowledged.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(Op::Write, offset_bytes, length(bytes)?, bytes, false)
    }

    /// Writes, and returns when it is stable.
    pub fn write_stable(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(Op::Write, offset_bytes, length(bytes)?, bytes, true)
    }

    /// Fills `bytes` from the volume.
    pub fn read(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.ask(Op::Read { whole: false }, offset_bytes, length(bytes)?, &[], false)?;
        self.stream.read_exact(bytes)
    }

    /// Makes a range zero.
    pub fn zero(&mut self, offset_bytes: u64, length_bytes: u32) -> io::Result<()> {
        let op = Op::Zero { no_hole: false, fast: false };
        self.ask(op, offset_bytes, length_bytes, &[], false)
    }

    /// Gives a range up: it is not needed any more.
    pub fn discard(&mut self, offset_bytes: u64, length_bytes: u32) -> io::Result<()> {
        self.ask(Op::Trim, offset_bytes, length_bytes, &[], false)
    }

    /// Makes every acknowledged write stable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(Op::Flush, 0, 0, &[], false)
    }

    /// Asks, and does not wait; `payload` is what is written. Gives the name that the answer will have ([`Volume::answer`]).
    pub fn begin(
        &mut self,
        op: Op,
        (offset_bytes, length_bytes): (u64, u32),
        payload: &[u8],
        stable: bool,
    ) -> io::Result<u64> {
        self.cookie += 1;
        self.send.clear();
        encode_request(self.cookie, op, offset_bytes, length_bytes, stable, &mut self.send);
        self.send.extend_from_slice(payload);
        self.stream.write_all(&self.send)?;
        Ok(self.cookie)
    }

    /// Waits for the next answer to what was begun, and gives the name of that. What a read asked for comes behind it, and is to be
    /// taken before the next answer ([`Volume::take`]).
    pub fn answer(&mut self) -> io::Result<u64> {
        let mut head = [0; REPLY_BYTES];
        self.stream.read_exact(&mut head)?;
        match self.replies.feed(&head).map_err(broken)? {
            (REPLY_BYTES, Some(Reply::Simple { cookie, error: None })) => Ok(cookie),
            (_, Some(Reply::Simple { error: Some(error), .. })) => {
                Err(io::Error::other(format!("the node answered {error:?}")))
            }
            _ => Err(broken("an answer of another kind")),
        }
    }

    /// Takes what a read asked for.
    pub fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// Its connection, for who keeps several requests open; nothing else may be asked meanwhile.
    pub fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Sends bytes as they are, good or bad.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the server closes the connection before the limit passes.
    pub fn is_closed_by_server(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    fn ask(
        &mut self,
        op: Op,
        offset: u64,
        length: u32,
        payload: &[u8],
        fua: bool,
    ) -> io::Result<()> {
        let asked = self.begin(op, (offset, length), payload, fua)?;
        if self.answer()? == asked { Ok(()) } else { Err(broken("an answer to another question")) }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.send.clear();
        encode_disconnect(&mut self.send);
        // A goodbye is politeness; whoever does not hear it sees the end of the connection.
        let _ = self.stream.write_all(&self.send);
    }
}

/// The exports of a node: name and description.
pub fn list(address: SocketAddr) -> io::Result<Vec<(String, String)>> {
    let mut exports = Vec::new();
    shake_hands(address, Goal::List, ANSWER_LIMIT, |event| {
        if let ClientEvent::Export { name, description } = event {
            exports.push((name, description));
        }
    })?;
    Ok(exports)
}

/// Connects and speaks until the goal is reached.
fn shake_hands(
    address: SocketAddr,
    goal: Goal,
    limit: Duration,
    hear: impl FnMut(ClientEvent),
) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    speak(&mut stream, goal, hear)?;
    Ok(stream)
}

/// Asks for an export on a connection that the caller hands to somebody else then: to the kernel. Nothing was asked of the
/// volume, and nothing is left to be read.
pub fn negotiate(stream: &mut (impl Read + Write), export: &str) -> io::Result<Ready> {
    let goal = Goal::Use { name: export.to_owned(), structured: false, allocation: false };
    let mut ready = None;
    speak(stream, goal, |event| {
        if let ClientEvent::Ready(what) = event {
            ready = Some(what);
        }
    })?;
    ready.ok_or_else(|| broken("no export"))
}

/// Speaks until the goal is reached.
fn speak(
    stream: &mut (impl Read + Write),
    goal: Goal,
    mut hear: impl FnMut(ClientEvent),
) -> io::Result<()> {
    let mut client = Client::new(goal, false);
    let mut bytes = [0; HANDSHAKE_BYTES];
    let mut send = Vec::new();
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let (used, event) = client.feed(rest, &mut send).map_err(broken)?;
            stream.write_all(&send)?;
            send.clear();
            rest = &rest[used..];
            match event {
                Some(ClientEvent::Refused { message, .. }) => {
                    return Err(io::Error::other(format!("refused: {message}")));
                }
                Some(event) => {
                    let last = matches!(event, ClientEvent::Ready(_) | ClientEvent::Listed);
                    hear(event);
                    if last {
                        return Ok(());
                    }
                }
                None if used == 0 => return Err(broken("no progress")),
                None => {}
            }
        }
    }
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn broken(what: impl Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the node breaks the protocol: {what:?}"))
}

//! A small NBD client: one connection, one request at a time.
//!
//! Always: nothing is waited for longer than `ANSWER_LIMIT`.
//!
//! Not here: the protocol's bytes (`nbd`), what to do when a connection breaks (`load`).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nbd::{Client, ClientEvent, Goal, Op, Replies, Reply, encode_disconnect, encode_request};

/// How long to wait for an answer: longer than any fail-over, so that a connection to a living node
/// is given up only if it is broken.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long to wait for a connection to a node on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Most bytes taken from the socket at once during the handshake.
const HANDSHAKE_BYTES: usize = 512;

/// An export, ready for use.
pub(crate) struct Disk {
    stream: TcpStream,
    replies: Replies,
    cookie: u64,
    send: Vec<u8>,
}

impl Disk {
    /// Connects to a node and opens an export.
    pub(crate) fn open(address: SocketAddr, export: &str) -> io::Result<Disk> {
        let mut stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let goal = Goal::Use { name: export.to_owned(), structured: false, allocation: false };
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
                match event {
                    Some(ClientEvent::Ready(_)) => {
                        let replies = Replies::new();
                        return Ok(Disk { stream, replies, cookie: 0, send });
                    }
                    Some(ClientEvent::Refused { message, .. }) => {
                        return Err(io::Error::other(format!("{export}: refused: {message}")));
                    }
                    _ if used == 0 => return Err(broken("no progress")),
                    _ => rest = &rest[used..],
                }
            }
        }
    }

    /// Writes, and returns when it is acknowledged.
    pub(crate) fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(Op::Write, offset_bytes, length(bytes)?, bytes)
    }

    /// Fills `bytes` from the disk.
    pub(crate) fn read(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.ask(Op::Read { whole: false }, offset_bytes, length(bytes)?, &[])?;
        self.stream.read_exact(bytes)
    }

    /// Makes every acknowledged write stable.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.ask(Op::Flush, 0, 0, &[])
    }

    fn ask(&mut self, op: Op, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        self.send.clear();
        encode_request(self.cookie, op, offset, length, false, &mut self.send);
        self.send.extend_from_slice(payload);
        self.stream.write_all(&self.send)?;
        // Byte by byte would be slow, but a simple reply's length is known: 16 bytes.
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        match self.replies.feed(&head).map_err(broken)? {
            (16, Some(Reply::Simple { cookie, error: None })) if cookie == self.cookie => Ok(()),
            (_, Some(Reply::Simple { error: Some(error), .. })) => {
                Err(io::Error::other(format!("the node answered {error:?}")))
            }
            _ => Err(broken("an answer to another question")),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.send.clear();
        encode_disconnect(&mut self.send);
        // A goodbye is politeness; whoever does not hear it sees the end of the connection.
        let _ = self.stream.write_all(&self.send);
    }
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn broken(what: impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the node breaks the protocol: {what:?}"))
}

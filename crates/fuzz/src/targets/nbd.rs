//! What clients say to an export, and what servers say to our own clients.
//!
//! Numbers are those of `doc/proto.md` of the NetworkBlockDevice/nbd project.

use crate::mutate::low;
use crate::{Target, nothing, outcome};
use base::Prng;
use nbd::{
    Client, Content, ErrorCode, Event, ExportInfo, Extent, Goal, Op, REQUESTS_OPEN_MAX, Refusal,
    Replies, Request, Server, Tls, Want, encode_disconnect, encode_request,
};

/// Our server.
pub(super) const SERVER: Target = Target {
    name: "nbd-server",
    what: "what a client sends to an export",
    valid: requests,
    mend: nothing,
    judge: |input| {
        let tls = [Tls::Absent, Tls::Offered, Tls::Required];
        let tls = tls[usize::from(input.first().copied().unwrap_or(0)) % tls.len()];
        let mut host = Host::new(tls);
        host.receive(input.get(1..).unwrap_or(&[]));
        outcome(&(host.closed, host.seen.min(8), host.server.transmits()))
    },
    words: &["IHAVEOPT", "disk", "base:allocation"],
};

/// Our client.
pub(super) const CLIENT: Target = Target {
    name: "nbd-client",
    what: "what a server sends to our client",
    valid: |random| {
        let mut host = Host::new(Tls::Absent);
        host.receive(&requests(random)[1..]);
        host.send
    },
    mend: nothing,
    judge: client,
    words: &["NBDMAGIC", "IHAVEOPT", "\x00\x03", "base:allocation"],
};

/// Bytes of the export.
const DISK_BYTES: u64 = 8 << 20;
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";

/// The first byte says how the server stands to TLS; the rest is a whole connection.
fn requests(random: &mut Prng) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 3];
    let go: &[u8] = b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03";
    let meta: &[u8] = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let options: [(u8, &[u8]); 7] =
        [(3, b""), (8, b""), (9, meta), (10, meta), (6, go), (5, b""), (77, b"unknown")];
    for (number, data) in options {
        if random.once_in(2) && number != 5 {
            option(number, data, &mut bytes);
        }
    }
    if random.once_in(3) {
        option(1, b"disk", &mut bytes)
    } else {
        option(7, go, &mut bytes)
    }
    for cookie in 0..random.below(12) {
        let op = match random.below(6) {
            0 => Op::Read { whole: random.once_in(4) },
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Trim,
            4 => Op::Zero { no_hole: random.once_in(2), fast: random.once_in(8) },
            _ => Op::BlockStatus { one: random.once_in(2) },
        };
        let length = if op == Op::Flush { 0 } else { 512 * (1 + u32::from(low(random.below(4)))) };
        let offset = if op == Op::Flush { 0 } else { 512 * random.below(1 << 13) };
        encode_request(cookie, op, offset, length, random.once_in(3), &mut bytes);
        if op == Op::Write {
            bytes.resize(bytes.len() + usize::try_from(length).expect("short"), 7);
        }
    }
    encode_disconnect(&mut bytes);
    bytes
}

fn option(number: u8, data: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(OPTION_MAGIC);
    bytes.extend_from_slice(&[0, 0, 0, number]);
    bytes.extend_from_slice(&u32::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend_from_slice(data);
}

/// A server of one export, which answers everything at once.
struct Host {
    server: Server,
    info: ExportInfo,
    send: Vec<u8>,
    write: Option<Request>,
    closed: Option<nbd::CloseReason>,
    seen: usize,
}

impl Host {
    fn new(tls: Tls) -> Host {
        let info = ExportInfo { fast_zero: true, ..ExportInfo::new("disk".to_owned(), DISK_BYTES) };
        let mut send = Vec::new();
        let server = Server::new(tls, &mut send);
        Host { server, info, send, write: None, closed: None, seen: 0 }
    }

    fn receive(&mut self, mut input: &[u8]) {
        let piece = 1 + input.len() % 83;
        while !input.is_empty() {
            match self.server.wants() {
                Want::Header { bytes } => {
                    assert!(bytes > 0);
                    let fed = self.server.feed(&input[..piece.min(input.len())], &mut self.send);
                    assert!(fed.consumed > 0, "no progress on what was wanted");
                    assert!(fed.consumed <= bytes as usize, "more was taken than wanted");
                    input = &input[fed.consumed..];
                    if let Some(event) = fed.event {
                        self.on_event(event);
                    }
                    assert!(self.server.open_count() <= REQUESTS_OPEN_MAX);
                }
                Want::Payload { slot, length_bytes, .. } => {
                    let write = self.write.expect("payload belongs to a write");
                    assert_eq!(write.slot, slot);
                    let Some(rest) = input.get(length_bytes as usize..) else { return };
                    input = rest;
                    if self.server.payload_done(slot) {
                        self.server.reply_done(slot, &mut self.send);
                    }
                }
                Want::Tls => self.server.tls_started(),
                Want::Nothing => return,
                Want::Answer | Want::Room => panic!("everything is answered at once"),
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        self.seen += 1;
        match event {
            Event::StartTls => {}
            Event::Lookup { name, .. } if name == self.info.name => {
                self.server.export_found(&self.info, &mut self.send);
            }
            Event::Lookup { .. } => {
                let refused = self.server.refuse(Refusal::Unknown, "no such disk", &mut self.send);
                self.closed = self.closed.or(refused);
            }
            Event::List => {
                self.server.exports([("disk", "a disk for tests")], &mut self.send);
            }
            Event::Request(request) => self.on_request(request),
            Event::Close(reason) => self.closed = Some(reason),
        }
    }

    fn on_request(&mut self, request: Request) {
        let Request { slot, op, offset_bytes, length_bytes, .. } = request;
        let end = offset_bytes.checked_add(length_bytes.into());
        assert!(end.is_some_and(|end| end <= DISK_BYTES), "{request:?} is beyond the export");
        match op {
            Op::Write => self.write = Some(request),
            Op::Flush | Op::Trim | Op::Zero { fast: false, .. } => {
                self.server.reply_done(slot, &mut self.send);
            }
            Op::Zero { fast: true, .. } => {
                let code = ErrorCode::NotSupported;
                assert_eq!(self.server.reply_error(slot, code, "slow", &mut self.send), None);
            }
            Op::Read { .. } => {
                let content = if length_bytes <= 4096 { Content::Data } else { Content::Zeroes };
                let follows =
                    self.server.reply_read(slot, 0, length_bytes, content, &mut self.send);
                if follows && length_bytes <= 4096 {
                    self.send.resize(self.send.len() + length_bytes as usize, 7);
                }
            }
            Op::BlockStatus { .. } => {
                let extents = [
                    Extent { length_bytes: 4096, hole: false, zero: false },
                    Extent { length_bytes: 1 << 20, hole: true, zero: true },
                ];
                self.server.reply_extents(slot, &extents, &mut self.send);
            }
        }
    }
}

fn client(input: &[u8]) -> u64 {
    let goals = [
        Goal::List,
        Goal::Use { name: "disk".to_owned(), structured: true, allocation: true },
        Goal::Use { name: "disk".to_owned(), structured: false, allocation: false },
    ];
    let mut ends = Vec::new();
    for goal in goals {
        for tls in [false, true] {
            let mut client = Client::new(goal.clone(), tls);
            let (mut at, mut send) = (0, Vec::new());
            let piece = 1 + input.len() % 53;
            let end = loop {
                if at == input.len() {
                    break None;
                }
                match client.feed(&input[at..input.len().min(at + piece)], &mut send) {
                    Ok((0, _)) => break None,
                    Ok((taken, event)) => {
                        at += taken;
                        if event == Some(nbd::ClientEvent::StartTls) {
                            client.tls_started(&mut send);
                        }
                    }
                    Err(error) => break Some(error),
                }
            };
            assert!(send.len() < 10_000, "a client says little");
            ends.push((end, at > 100, replies(&input[at..])));
        }
    }
    ends.push((None, false, replies(input)));
    outcome(&ends)
}

/// The stream of replies from here on.
fn replies(input: &[u8]) -> (usize, Option<nbd::ServerMisbehaved>) {
    let (mut replies, mut at, mut count) = (Replies::new(), 0, 0);
    while at < input.len() {
        match replies.feed(&input[at..]) {
            Ok((taken, reply)) => {
                count += usize::from(reply.is_some());
                let payload = reply.map_or(0, |reply| reply.payload_bytes());
                assert!(taken + payload as usize > 0, "no progress");
                at += taken + payload as usize;
            }
            Err(error) => return (count.min(3), Some(error)),
        }
    }
    (count.min(3), None)
}

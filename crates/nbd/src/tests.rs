//! The two ends of the protocol against each other in memory, byte strings against the server, and
//! noise against both.
//!
//! Not here: real clients, which `export` is tried with.

mod haggle;
mod hostile;
mod replies;
mod serve;

use crate::number::{OPTION_MAGIC, OPTION_REPLY_MAGIC};
use crate::{
    Client, ClientEvent, CloseReason, Content, ErrorCode, Event, ExportInfo, Extent, Goal, Op,
    PAYLOAD_SKIP_BYTES_MAX, Ready, Refusal, Request, Server, Slot, Tls, Want,
};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Client flags of today's clients: fixed newstyle, no zeroes.
const CLIENT_FLAGS: [u8; 4] = [0, 0, 0, 3];

/// Bytes of the export that most tests use.
const DISK_BYTES: usize = 8 << 20;

fn info(name: &str) -> ExportInfo {
    let description = String::from("a disk for tests");
    ExportInfo { description, ..ExportInfo::new(name.to_owned(), DISK_BYTES as u64) }
}

/// A server with exports in memory. It answers everything at once, reads in pieces of `piece_bytes`.
struct Host {
    server: Server,
    exports: Vec<ExportInfo>,
    disk: Vec<u8>,
    /// Bytes that arrived and are not used.
    inbox: Vec<u8>,
    send: Vec<u8>,
    /// At most this many bytes are fed at once.
    step: usize,
    piece_bytes: u32,
    events: Vec<Event>,
    closed: Option<CloseReason>,
    write: Option<Request>,
}

impl Host {
    fn new(tls: Tls, exports: Vec<ExportInfo>) -> Host {
        let mut send = Vec::new();
        let server = Server::new(tls, &mut send);
        Host {
            server,
            exports,
            disk: vec![0; DISK_BYTES],
            inbox: Vec::new(),
            send,
            step: usize::MAX,
            piece_bytes: 1 << 20,
            events: Vec::new(),
            closed: None,
            write: None,
        }
    }

    /// Takes bytes and carries out all that follows from them.
    fn receive(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        loop {
            match self.server.wants() {
                Want::Header { bytes } => {
                    assert!(bytes > 0);
                    let length = self.inbox.len().min(self.step);
                    if length == 0 {
                        return;
                    }
                    let fed = self.server.feed(&self.inbox[..length], &mut self.send);
                    assert!(fed.consumed > 0, "no progress on what was wanted");
                    assert!(fed.consumed <= bytes as usize, "more was taken than wanted");
                    self.inbox.drain(..fed.consumed);
                    if let Some(event) = fed.event {
                        self.on_event(event);
                    }
                }
                Want::Payload { slot, offset_bytes, length_bytes } => {
                    if self.inbox.len() < length_bytes as usize {
                        return;
                    }
                    self.on_payload(slot, offset_bytes, length_bytes);
                }
                Want::Tls | Want::Nothing => return,
                Want::Answer | Want::Room => panic!("everything is answered at once"),
            }
        }
    }

    fn on_payload(&mut self, slot: Slot, offset_bytes: u32, length_bytes: u32) {
        let write = self.write.expect("payload belongs to a write");
        assert_eq!(write.slot, slot);
        let at = write.offset_bytes as usize + offset_bytes as usize;
        let payload: Vec<u8> = self.inbox.drain(..length_bytes as usize).collect();
        self.disk[at..at + payload.len()].copy_from_slice(&payload);
        if self.server.payload_done(slot) {
            self.server.reply_done(slot, &mut self.send);
        }
    }

    fn on_event(&mut self, event: Event) {
        self.events.push(event.clone());
        match event {
            Event::StartTls => {}
            Event::Lookup { name, .. } => {
                match self.exports.iter().find(|export| export.name == name) {
                    Some(export) => self.server.export_found(export, &mut self.send),
                    None => {
                        let refused =
                            self.server.refuse(Refusal::Unknown, "no such disk", &mut self.send);
                        self.closed = self.closed.or(refused);
                    }
                }
            }
            Event::List => {
                let exports = self
                    .exports
                    .iter()
                    .map(|export| (export.name.as_str(), export.description.as_str()));
                self.server.exports(exports, &mut self.send);
            }
            Event::Request(request) => self.on_request(request),
            Event::Close(reason) => self.closed = Some(reason),
        }
    }

    fn on_request(&mut self, request: Request) {
        let Request { slot, op, offset_bytes, length_bytes, .. } = request;
        let range = offset_bytes as usize..offset_bytes as usize + length_bytes as usize;
        match op {
            Op::Write => self.write = Some(request),
            Op::Flush => self.server.reply_done(slot, &mut self.send),
            Op::Trim | Op::Zero { fast: false, .. } => {
                self.disk[range].fill(0);
                self.server.reply_done(slot, &mut self.send);
            }
            Op::Zero { fast: true, .. } => {
                let code = ErrorCode::NotSupported;
                assert_eq!(self.server.reply_error(slot, code, "slow", &mut self.send), None);
            }
            Op::Read { .. } => self.answer_read(request),
            Op::BlockStatus { .. } => {
                let extents = [
                    Extent { length_bytes: 4096, hole: false, zero: false },
                    Extent { length_bytes: 1 << 20, hole: true, zero: true },
                ];
                self.server.reply_extents(slot, &extents, &mut self.send);
            }
        }
    }

    fn answer_read(&mut self, request: Request) {
        let Request { slot, op, offset_bytes, length_bytes, .. } = request;
        let whole = op == Op::Read { whole: true };
        let piece_bytes = if whole { length_bytes } else { self.piece_bytes };
        let mut done = 0;
        while done < length_bytes {
            let piece = piece_bytes.min(length_bytes - done);
            let at = offset_bytes as usize + done as usize;
            let bytes = &self.disk[at..at + piece as usize];
            let zeroes = bytes.iter().all(|&byte| byte == 0);
            let content = if zeroes { Content::Zeroes } else { Content::Data };
            if self.server.reply_read(slot, done, piece, content, &mut self.send) {
                self.send.extend_from_slice(bytes);
            }
            done += piece;
        }
    }

    /// What it has sent since the last call.
    fn sent(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.send)
    }
}

/// Lets a client and a host talk until both are silent; gives the client's events.
fn talk(client: &mut Client, host: &mut Host) -> Vec<ClientEvent> {
    let mut events = Vec::new();
    let mut inbox: Vec<u8> = Vec::new();
    loop {
        inbox.append(&mut host.send);
        let length = inbox.len().min(host.step);
        let mut send = Vec::new();
        let (taken, event) = client.feed(&inbox[..length], &mut send).unwrap();
        inbox.drain(..taken);
        host.receive(&send);
        if event == Some(ClientEvent::StartTls) {
            assert_eq!(host.events.last(), Some(&Event::StartTls));
            assert!(inbox.is_empty() && host.send.is_empty(), "bytes between the clear and TLS");
            host.server.tls_started();
            let mut send = Vec::new();
            client.tls_started(&mut send);
            host.receive(&send);
        }
        events.extend(event);
        if taken == 0 && host.send.is_empty() {
            // What the client does not take is after its end: nobody reads it.
            return events;
        }
    }
}

fn goal(name: &str, structured: bool, allocation: bool) -> Goal {
    Goal::Use { name: name.to_owned(), structured, allocation }
}

/// A host in the transmission phase of its one export, with nothing sent.
fn transmitting(export: ExportInfo, structured: bool) -> (Host, Ready) {
    let name = export.name.clone();
    let mut host = Host::new(Tls::Absent, vec![export]);
    let mut client = Client::new(goal(&name, structured, structured), false);
    let mut events = talk(&mut client, &mut host);
    let Some(ClientEvent::Ready(ready)) = events.pop() else { panic!("not ready: {events:?}") };
    host.send.clear();
    assert!(host.server.transmits());
    (host, ready)
}

/// A host after the greeting and the client flags.
fn greeted(tls: Tls) -> Host {
    let mut host = Host::new(tls, vec![info("disk"), info("other")]);
    host.send.clear();
    host.receive(&CLIENT_FLAGS);
    host
}

/// The bytes of an option.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Splits option replies into (option, type, data).
fn option_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(bytes[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        let end = 20 + word(16) as usize;
        replies.push((word(8), word(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

/// The type of the one reply to an option, which must be the last thing sent.
fn asked(host: &mut Host, number: u32, data: &[u8]) -> u32 {
    host.receive(&option(number, data));
    let replies = option_replies(&host.sent());
    let (to, kind, _) = replies.last().unwrap_or_else(|| panic!("option {number}: no reply"));
    assert_eq!(*to, number);
    *kind
}

//! What a request costs where it is bytes: frames between nodes, and a client's connection.
//!
//! Not here: sockets, TLS, and the payload of clients, which nothing here looks at.

use base::{Epoch, NodeId, ResourceId, Span, VolumeId};
use nbd::{Client, ClientEvent, Content, Event, ExportInfo, Goal, Op, Server, Slot, Tls};
use wire::{
    Decoder, Frame, Guard, Message, Payload, ShardMessage, WriteFlags, WriteName, WriteOrigin,
};

const RESOURCE: ResourceId = ResourceId(7);
/// Bytes of a request.
const BLOCK_BYTES: u32 = 4096;

/// A 4 KiB write to a replica as a frame with its payload's checksum, and the answer as another: both
/// written and read.
pub(crate) fn frames(count: u64) {
    let payload = vec![0x5a; BLOCK_BYTES as usize];
    let (mut out, mut decoder) = (Vec::with_capacity(1 << 13), Decoder::new());
    decoder.open(Guard::Checksum);
    for sequence in 1..=count {
        let name = WriteName { session: WriteName::session_of(NodeId(1), 1), number: sequence };
        let write = ShardMessage::Write {
            epoch: Epoch(1),
            sequence,
            cut: 1,
            volume: VolumeId(0),
            span: Span::new(sequence * 8, 8).expect("inside a volume"),
            flags: WriteFlags::default(),
            origin: Some(WriteOrigin { name, answered_below: sequence }),
        };
        let frame = pass(&mut out, &mut decoder, &write, Payload::checked(&payload));
        frame.payload.verify(&payload).expect("nothing has changed");
        decoder.payload_taken(payload.len());
        let answer = ShardMessage::Written { sequence, ok: true, in_place: true };
        pass(&mut out, &mut decoder, &answer, Payload::NONE);
    }
}

fn pass(
    out: &mut Vec<u8>,
    decoder: &mut Decoder,
    message: &ShardMessage,
    payload: Payload,
) -> Frame {
    out.clear();
    wire::encode_shard(out, RESOURCE, 0, 1, message, payload);
    let (taken, frame) = decoder.receive(out).expect("as it was written");
    let frame = frame.filter(|_| taken == out.len()).expect("one frame, whole");
    assert!(matches!(frame.message, Message::Shard { shard: 0, .. }));
    frame
}

/// A connection that has found its export, with structured replies, as every client today asks for.
fn connected() -> Server {
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut server = Server::new(Tls::Absent, &mut to_client);
    let goal = Goal::Use { name: "v".to_owned(), structured: true, allocation: false };
    let mut client = Client::new(goal, false);
    let info = ExportInfo::new("v".to_owned(), 1 << 40);
    loop {
        while !to_client.is_empty() {
            let (taken, event) = client.feed(&to_client, &mut to_server).expect("our own server");
            to_client.drain(..taken);
            if let Some(ClientEvent::Ready(_)) = event {
                return server;
            }
        }
        while !to_server.is_empty() {
            let fed = server.feed(&to_server, &mut to_client);
            to_server.drain(..fed.consumed);
            if let Some(Event::Lookup { .. }) = fed.event {
                server.export_found(&info, &mut to_client);
            }
        }
    }
}

fn request(server: &mut Server, op: Op, number: u64, bytes: &mut Vec<u8>) -> Slot {
    bytes.clear();
    nbd::encode_request(number, op, number * u64::from(BLOCK_BYTES), BLOCK_BYTES, false, bytes);
    let mut send = Vec::new();
    match server.feed(bytes, &mut send).event {
        Some(Event::Request(request)) => request.slot,
        other => panic!("a request is due, not {other:?}"),
    }
}

/// 4 KiB writes of a client: the request parsed, its payload counted, its reply written.
pub(crate) fn client_writes(count: u64) {
    let (mut server, mut bytes, mut send) = (connected(), Vec::new(), Vec::with_capacity(1 << 13));
    for number in 1..=count {
        let slot = request(&mut server, Op::Write, number, &mut bytes);
        assert!(server.payload_done(slot), "in one piece");
        send.clear();
        server.reply_done(slot, &mut send);
    }
}

/// 4 KiB reads of a client: the request parsed, the header of its reply written.
pub(crate) fn client_reads(count: u64) {
    let (mut server, mut bytes, mut send) = (connected(), Vec::new(), Vec::with_capacity(1 << 13));
    for number in 1..=count {
        let slot = request(&mut server, Op::Read { whole: false }, number, &mut bytes);
        send.clear();
        let follows = server.reply_read(slot, 0, BLOCK_BYTES, Content::Data, &mut send);
        assert!(follows, "bytes follow");
    }
}

//! What a client's request costs between its socket and the shards: a connection by NBD, and one by NVMe.
//!
//! Not here: sockets, the shards, and what fills a read's buffer.

use base::{Instant, Op};
use export::{Demand, Inputs, NbdConnection, NvmeConnection, Tag};
use nbd::{Client, ClientEvent, ExportInfo, Goal};
use nvme::{Digests, Host, HostEvent, Namespace};
use std::ops::Range;
use sys::{Buffer, BufferPool, Piece};

const BLOCK_BYTES: u32 = 4096;
const VOLUME_BYTES: u64 = 1 << 30;
const MIB: usize = 1 << 20;

/// Either.
trait Connection {
    fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)>;
    fn received(&mut self, buffer: Buffer, count: usize, demands: &mut Vec<Demand>);
    fn answer(&mut self, tag: Tag, buffer: Option<Buffer>);
    fn take_send(&mut self, pieces: &mut Vec<Piece>);
    fn sent(&mut self, bytes: u64);
}

impl Connection for NbdConnection {
    fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)> {
        NbdConnection::receive_into(self)
    }
    fn received(&mut self, buffer: Buffer, count: usize, demands: &mut Vec<Demand>) {
        NbdConnection::received(self, Instant(1), buffer, count, demands);
    }
    fn answer(&mut self, tag: Tag, buffer: Option<Buffer>) {
        NbdConnection::answer(self, tag, Ok(()), buffer);
    }
    fn take_send(&mut self, pieces: &mut Vec<Piece>) {
        NbdConnection::take_send(self, pieces);
    }
    fn sent(&mut self, bytes: u64) {
        NbdConnection::sent(self, bytes);
    }
}

impl Connection for NvmeConnection {
    fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)> {
        NvmeConnection::receive_into(self)
    }
    fn received(&mut self, buffer: Buffer, count: usize, demands: &mut Vec<Demand>) {
        NvmeConnection::received(self, Instant(1), buffer, count, demands);
    }
    fn answer(&mut self, tag: Tag, buffer: Option<Buffer>) {
        NvmeConnection::answer(self, tag, Ok(()), buffer);
    }
    fn take_send(&mut self, pieces: &mut Vec<Piece>) {
        NvmeConnection::take_send(self, pieces);
    }
    fn sent(&mut self, bytes: u64) {
        NvmeConnection::sent(self, bytes);
    }
}

/// The client's bytes arrive.
fn arrive(connection: &mut impl Connection, bytes: &[u8], demands: &mut Vec<Demand>) {
    let mut left = bytes;
    while !left.is_empty() {
        let (mut buffer, range) = connection.receive_into().expect("it takes more");
        let count = range.len().min(left.len());
        let (now, later) = left.split_at(count);
        buffer.as_mut().expect("nobody else has it")[range][..count].copy_from_slice(now);
        left = later;
        connection.received(buffer, count, demands);
    }
}

/// What it has to send goes to `see`. `pieces` is empty, and only room.
fn send(connection: &mut impl Connection, pieces: &mut Vec<Piece>, mut see: impl FnMut(&[u8])) {
    connection.take_send(pieces);
    for piece in pieces.drain(..) {
        see(piece.as_slice());
        connection.sent(u64::try_from(piece.len()).expect("memory is smaller"));
    }
}

fn nbd(pool: &BufferPool) -> NbdConnection {
    let zeroes = pool.take_zeroed(MIB).expect("room");
    let mut connection = NbdConnection::new(Inputs::new(1), pool.clone(), zeroes);
    let goal = Goal::Use { name: "v".to_owned(), structured: true, allocation: false };
    let (mut client, mut to_client) = (Client::new(goal, false), Vec::new());
    loop {
        send(&mut connection, &mut Vec::new(), |bytes| to_client.extend_from_slice(bytes));
        let mut to_server = Vec::new();
        let fed = client.feed(&to_client, &mut to_server).expect("our own server");
        to_client.drain(..fed.0);
        if let Some(ClientEvent::Ready(_)) = fed.1 {
            return connection;
        }
        let mut demands = Vec::new();
        arrive(&mut connection, &to_server, &mut demands);
        for demand in demands {
            match demand {
                Demand::Lookup { enters, .. } => {
                    let info = ExportInfo::new("v".to_owned(), VOLUME_BYTES);
                    connection.found(&info, enters, 1);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn nvme(pool: &BufferPool) -> (NvmeConnection, Host) {
    let zeroes = pool.take_zeroed(MIB).expect("room");
    let mut connection = NvmeConnection::new(Inputs::new(1), pool.clone(), zeroes);
    let mut to_server = Vec::new();
    let mut host = Host::new(Digests::default(), &mut to_server);
    host.leave_unwatched();
    for round in 0..2 {
        let mut demands = Vec::new();
        arrive(&mut connection, &std::mem::take(&mut to_server), &mut demands);
        if !demands.is_empty() {
            let blocks = VOLUME_BYTES / u64::from(BLOCK_BYTES);
            let volume =
                Namespace { reserves: true, id: 1, blocks, block_shift: 12, nguid: [1; 16] };
            connection.serves(1, vec![volume], 1);
        }
        send(&mut connection, &mut Vec::new(), |bytes| host.take(bytes));
        match host.next_event().expect("our own controller") {
            Some(HostEvent::Ready) if round == 0 => {
                host.connect(("nqn.x", "nqn.host"), (1, 64), Some(1), 0, &mut to_server);
            }
            Some(HostEvent::Ended { .. }) if round == 1 => {}
            other => panic!("{other:?}"),
        }
    }
    (connection, host)
}

/// Carries out requests one after the other.
fn carry_out(
    connection: &mut impl Connection,
    pool: &BufferPool,
    count: u64,
    mut request: impl FnMut(u64, &mut Vec<u8>),
) {
    let (mut bytes, mut demands, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=count {
        bytes.clear();
        request(number, &mut bytes);
        arrive(connection, &bytes, &mut demands);
        let Some(Demand::Ask(ask)) = demands.pop() else { panic!("a request is due") };
        let buffer = (ask.op == Op::Read)
            .then(|| pool.take_beyond(BLOCK_BYTES as usize).expect("room was kept"));
        drop(ask.buffer);
        connection.answer(ask.tag, buffer);
        let mut sent = 0;
        send(connection, &mut pieces, |bytes| sent += bytes.len());
        assert!(sent > 0, "it is answered");
    }
}

/// 4 KiB requests by NBD, with structured replies.
pub(crate) fn by_nbd(write: bool, count: u64) {
    let pool = BufferPool::new(64 * MIB);
    let mut connection = nbd(&pool);
    let data = vec![0x5a; BLOCK_BYTES as usize];
    let op = if write { nbd::Op::Write } else { nbd::Op::Read { whole: false } };
    carry_out(&mut connection, &pool, count, |number, bytes| {
        let offset = number * u64::from(BLOCK_BYTES);
        nbd::encode_request(number, op, offset, BLOCK_BYTES, false, bytes);
        if write {
            bytes.extend_from_slice(&data);
        }
    });
}

/// The same by NVMe, as a host asks that does not watch the queue.
pub(crate) fn by_nvme(write: bool, count: u64) {
    let pool = BufferPool::new(64 * MIB);
    let (mut connection, mut host) = nvme(&pool);
    let data = vec![0x5a; BLOCK_BYTES as usize];
    carry_out(&mut connection, &pool, count, |number, bytes| {
        if write {
            host.write(1, (number, 1), false, &data, bytes);
        } else {
            host.read(1, (number, 1), 12, bytes);
        }
    });
}

//! A client of rustls on the other side of a connection, and bytes between them as they may come.

use std::io::{Read, Write};
use std::sync::Arc;

use base::{ClusterId, Instant, NodeId};
use link::{Authority, Identity, LinkError, LinkMode, Refusal, Revocations};
use nbd::{Client, ClientEvent, ExportInfo, Goal};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sys::{Buffer, BufferPool};

use crate::{Demand, HAGGLE_BYTES_MAX, Inputs, NbdConnection};

const NOW: u64 = 1_700_000_000;
const MIB: usize = 1 << 20;

fn authority() -> Authority {
    Authority::create(ClusterId(7), now()).expect("an authority")
}

/// The clock that certificates are judged by is the system's.
fn now() -> u64 {
    sys::wall_clock_ms() / 1000
}

/// A connection, its pool, and a disk behind it.
struct Bench {
    connection: NbdConnection,
    pool: BufferPool,
    disk: Vec<u8>,
    /// Bytes that arrive at once.
    step: usize,
}

impl Bench {
    fn new(authority: &Authority, revocations: Revocations, step: usize) -> Bench {
        let address = "127.0.0.1".parse().expect("an address");
        let node = authority.issue(NodeId(1), "n1", &[address], now()).expect("a certificate");
        let offer = link::Config::new(&node, LinkMode::Encrypted, revocations).expect("good");
        let pool = BufferPool::new(64 * MIB);
        let zeroes = pool.take_zeroed(MIB).expect("room");
        let connection = NbdConnection::with_tls(Inputs::new(1), pool.clone(), zeroes, offer, true);
        Bench { connection, pool, disk: vec![0; 8 * MIB], step }
    }

    /// Bytes arrive, as far as the connection takes some; the rest comes back.
    fn receive(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        while !bytes.is_empty() {
            let Some((mut buffer, range)) = self.connection.receive_into() else { break };
            let count = self.step.min(range.len()).min(bytes.len());
            let place = &mut buffer.as_mut().expect("nobody else has it")[range];
            place[..count].copy_from_slice(&bytes[..count]);
            bytes.drain(..count);
            let mut demands = Vec::new();
            self.connection.received(Instant(1), buffer, count, &mut demands);
            self.carry_out(demands);
        }
        bytes
    }

    fn carry_out(&mut self, demands: Vec<Demand>) {
        for demand in demands {
            match demand {
                Demand::Lookup { enters, .. } => self.connection.found(&info(), enters, 1),
                Demand::List => self.connection.exports([("alpha", "")]),
                Demand::Holes { tag, .. } => self.connection.holes(tag, &[]),
                other @ (Demand::Connect(_)
                | Demand::Switched
                | Demand::Proved(_)
                | Demand::Reserve { .. }) => {
                    panic!("{other:?}")
                }
                Demand::Ask(ask) => {
                    let at = usize::try_from(ask.span.offset_bytes()).expect("small");
                    let length = usize::try_from(ask.span.length_bytes()).expect("small");
                    let mut answer = None;
                    if let Some(buffer) = ask.buffer {
                        self.disk[at..at + length].copy_from_slice(&buffer);
                    } else if ask.op == base::Op::Read {
                        let mut buffer = self.pool.take(length).expect("room");
                        let bytes = buffer.as_mut().expect("it is new");
                        bytes.copy_from_slice(&self.disk[at..at + length]);
                        answer = Some(buffer);
                    }
                    self.connection.answer(ask.tag, Ok(()), answer);
                }
            }
        }
        let mut more = Vec::new();
        self.connection.proceed(Instant(1), &mut more);
        if !more.is_empty() {
            self.carry_out(more);
        }
    }

    fn send(&mut self) -> Vec<u8> {
        let mut pieces = Vec::new();
        self.connection.take_send(&mut pieces);
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
        self.connection.sent(u64::try_from(bytes.len()).expect("small"));
        bytes
    }
}

fn info() -> ExportInfo {
    ExportInfo::new("alpha".to_owned(), 8 << 20)
}

/// A TLS client that shows this identity, if any.
fn tls(authority: &Authority, identity: Option<&Identity>) -> ClientConnection {
    let certificate =
        |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate(authority.certificate_pem())).expect("an authority");
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers")
            .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes()).expect("a key");
            let chain = vec![certificate(identity.certificate_pem())];
            builder.with_client_auth_cert(chain, key).expect("they fit")
        }
    };
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    ClientConnection::new(Arc::new(config), name).expect("a client")
}

/// Moves records both ways until nothing moves; plain bytes that came.
fn pump(bench: &mut Bench, tls: &mut ClientConnection, held: &mut Vec<u8>) -> Vec<u8> {
    let mut plain = Vec::new();
    loop {
        let before = held.len();
        while tls.wants_write() {
            tls.write_tls(held).expect("memory takes all");
        }
        let moved = held.len() > before;
        let offered = held.len();
        *held = bench.receive(std::mem::take(held));
        let came = bench.send();
        let mut rest = &came[..];
        while !rest.is_empty() {
            tls.read_tls(&mut rest).expect("memory gives all");
            if tls.process_new_packets().is_err() {
                return plain;
            }
            // What has come stays readable; the end of it is no error here.
            tls.reader().read_to_end(&mut plain).ok();
        }
        if !moved && came.is_empty() && held.len() == offered {
            return plain;
        }
    }
}

/// Through STARTTLS: the bench, and the client of the protocol that goes on inside.
fn started(bench: &mut Bench) -> (Client, Vec<u8>) {
    let goal = Goal::Use { name: "alpha".to_owned(), structured: false, allocation: false };
    let mut client = Client::new(goal, true);
    let mut sent = bench.send();
    loop {
        let mut send = Vec::new();
        let (used, event) = client.feed(&sent, &mut send).expect("an honest server");
        sent.drain(..used);
        if event == Some(ClientEvent::StartTls) {
            let mut first = Vec::new();
            client.tls_started(&mut first);
            return (client, first);
        }
        assert!(bench.receive(send).is_empty());
        sent.extend(bench.send());
    }
}

/// Through everything: an export is open inside TLS.
fn entered(bench: &mut Bench, tls: &mut ClientConnection, held: &mut Vec<u8>) {
    let (mut client, first) = started(bench);
    tls.writer().write_all(&first).expect("memory takes all");
    let mut plain = pump(bench, tls, held);
    loop {
        let mut send = Vec::new();
        let (used, event) = client.feed(&plain, &mut send).expect("an honest server");
        plain.drain(..used);
        if matches!(event, Some(ClientEvent::Ready(_))) {
            return;
        }
        tls.writer().write_all(&send).expect("memory takes all");
        plain.extend(pump(bench, tls, held));
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn bytes_go_both_ways_however_the_records_are_cut() {
    let authority = authority();
    let guest = authority.issue_client("guest", now()).expect("a certificate");
    for step in [1, 7, 4096, 1 << 20] {
        let mut bench = Bench::new(&authority, Revocations::default(), step);
        let (mut tls, mut held) = (tls(&authority, Some(&guest)), Vec::new());
        entered(&mut bench, &mut tls, &mut held);
        assert_eq!(bench.connection.claims().expect("known").peer.to_string(), "client guest");
        let length = if step < 4096 { 16 << 10 } else { 3 << 20 };
        let mut send = Vec::new();
        nbd::encode_request(1, nbd::Op::Write, 512, length, false, &mut send);
        send.extend(content(length as usize));
        nbd::encode_request(2, nbd::Op::Read { whole: false }, 512, length, false, &mut send);
        tls.set_buffer_limit(None);
        tls.writer().write_all(&send).expect("memory takes all");
        let answers = pump(&mut bench, &mut tls, &mut held);
        assert_eq!(answers.len(), 16 + 16 + length as usize, "two simple replies");
        assert!(answers[32..] == content(length as usize), "steps of {step}");
        assert!(held.is_empty() && bench.connection.broken().is_none());
    }
}

#[test]
fn what_stands_behind_starttls_in_the_clear_is_never_taken_for_an_option() {
    let authority = authority();
    let mut bench = Bench::new(&authority, Revocations::default(), 1 << 20);
    bench.send();
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for (option, data) in [(5_u32, &b""[..]), (7, &b"\0\0\0\x05alpha\0\0"[..])] {
        bytes.extend(b"IHAVEOPT");
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
        bytes.extend(data);
    }
    bench.receive(bytes);
    assert!(!bench.connection.entered());
    assert!(matches!(bench.connection.broken(), Some(LinkError::Tls(_))));
    assert!(bench.connection.receive_into().is_none(), "nothing more is taken");
}

#[test]
fn who_shows_nothing_or_is_revoked_is_told_by_an_alert_and_gets_nothing() {
    let authority = authority();
    let guest = authority.issue_client("guest", now()).expect("a certificate");
    let mut revoked = Revocations::default();
    revoked.serials.insert(guest.claims().serial.clone());
    let expired = authority.issue_client("guest", NOW - 500 * 86_400).expect("a certificate");
    for (identity, why) in [
        (None, None),
        (Some(&guest), Some(LinkError::Refused(Refusal::Revoked))),
        (Some(&expired), Some(LinkError::Refused(Refusal::Expired))),
    ] {
        let mut bench = Bench::new(&authority, revoked.clone(), 1 << 20);
        let (mut tls, mut held) = (tls(&authority, identity), Vec::new());
        let (_, first) = started(&mut bench);
        tls.writer().write_all(&first).expect("memory takes all");
        assert!(pump(&mut bench, &mut tls, &mut held).is_empty(), "nothing is said to it");
        let broken = bench.connection.broken().expect("it is refused");
        assert!(why.is_none_or(|why| *broken == why), "{broken:?}");
        assert!(bench.connection.claims().is_none() && !bench.connection.entered());
    }
}

#[test]
fn a_client_inside_tls_that_meets_an_empty_pool_waits_and_is_served_later() {
    let authority = authority();
    let guest = authority.issue_client("guest", now()).expect("a certificate");
    let mut bench = Bench::new(&authority, Revocations::default(), 1 << 20);
    let (mut tls, mut held) = (tls(&authority, Some(&guest)), Vec::new());
    entered(&mut bench, &mut tls, &mut held);
    let hoard: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(MIB)).collect();
    let small: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(4096)).collect();
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Write, 0, 4096, false, &mut send);
    send.extend(content(4096));
    tls.writer().write_all(&send).expect("memory takes all");
    assert!(pump(&mut bench, &mut tls, &mut held).is_empty());
    assert!(bench.connection.starved(), "there is no room for the payload");
    drop((hoard, small));
    bench.carry_out(Vec::new());
    assert_eq!(pump(&mut bench, &mut tls, &mut held).len(), 16);
    assert_eq!(bench.disk[..4096], content(4096));
}

#[test]
fn to_a_client_that_takes_nothing_no_more_is_enciphered_than_a_little() {
    let authority = authority();
    let guest = authority.issue_client("guest", now()).expect("a certificate");
    let mut bench = Bench::new(&authority, Revocations::default(), 1 << 20);
    let (mut tls, mut held) = (tls(&authority, Some(&guest)), Vec::new());
    entered(&mut bench, &mut tls, &mut held);
    bench.disk.fill(7);
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Read { whole: false }, 0, 4 << 20, false, &mut send);
    tls.writer().write_all(&send).expect("memory takes all");
    tls.write_tls(&mut held).expect("memory takes all");
    assert!(bench.receive(held).is_empty());
    let mut rounds = Vec::new();
    loop {
        let mut pieces = Vec::new();
        bench.connection.take_send(&mut pieces);
        let bytes: usize = pieces.iter().map(sys::Piece::len).sum();
        if bytes == 0 {
            break;
        }
        let count = pieces.len();
        bench.connection.take_send(&mut pieces);
        assert_eq!(pieces.len(), count, "the rest waits");
        rounds.push(bytes);
        bench.connection.sent(bytes as u64);
    }
    assert!(rounds.iter().all(|&bytes| bytes < 2 * MIB), "{rounds:?}");
    assert!(rounds.iter().sum::<usize>() > 4 * MIB && !bench.connection.waits_for_client());
}

#[test]
fn what_a_stranger_said_before_tls_counts_towards_what_it_may_send() {
    // Options of 3500 bytes, TLS, and then a client hello of 1000: together too much, each of them not.
    let mut bench = Bench::new(&authority(), Revocations::default(), 1 << 20);
    let mut option = 3_u32.to_be_bytes().to_vec();
    option.extend(b"IHAVEOPT");
    option.extend(6_u32.to_be_bytes());
    option.extend(3500_u32.to_be_bytes());
    option.extend([0; 3500]);
    bench.receive(option);
    assert_eq!(bench.connection.broken(), None);
    let mut start = b"IHAVEOPT".to_vec();
    start.extend(5_u32.to_be_bytes());
    start.extend(0_u32.to_be_bytes());
    bench.receive(start);
    assert_eq!(bench.connection.broken(), None);
    bench.receive(vec![22, 3, 1, 1000_u16.to_be_bytes()[0], 1000_u16.to_be_bytes()[1]]);
    assert_eq!(bench.connection.broken(), Some(&LinkError::TooMuchBeforeAuthentication));
}

#[test]
fn a_stranger_that_goes_on_with_options_is_ended() {
    let mut bench = Bench::new(&authority(), Revocations::default(), 1 << 20);
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for _ in 0..8 {
        bytes.extend(b"IHAVEOPT");
        bytes.extend(6_u32.to_be_bytes());
        bytes.extend(1000_u32.to_be_bytes());
        bytes.extend([0; 1000]);
    }
    assert!(bytes.len() > HAGGLE_BYTES_MAX);
    bench.receive(bytes);
    assert_eq!(bench.connection.broken(), Some(&LinkError::TooMuchBeforeAuthentication));
}

#[test]
fn no_more_is_received_from_a_stranger_than_it_may_send() {
    for tls in [false, true] {
        let mut bench = Bench::new(&authority(), Revocations::default(), 1 << 20);
        let mut start = 3_u32.to_be_bytes().to_vec();
        if tls {
            start.extend(b"IHAVEOPT");
            start.extend(5_u32.to_be_bytes());
            start.extend(0_u32.to_be_bytes());
        }
        let before = start.len();
        bench.receive(start);
        // A client hello in two large records, or an option without end.
        let mut flood =
            if tls { vec![22, 3, 1, 15, 0, 1, 0, 0xff, 0xff] } else { b"IHAVEOPT".to_vec() };
        if tls {
            flood.resize(5 + (15 << 8), 0);
            flood.extend([22, 3, 1, 15, 0]);
        } else {
            flood.extend(6_u32.to_be_bytes());
            flood.extend(8000_u32.to_be_bytes());
        }
        flood.resize(64 << 10, 0);
        let rest = bench.receive(flood);
        let received = before + (64 << 10) - rest.len();
        assert_eq!(bench.connection.broken(), Some(&LinkError::TooMuchBeforeAuthentication));
        assert!(received <= HAGGLE_BYTES_MAX, "{received} bytes, TLS {tls}");
        assert!(received > HAGGLE_BYTES_MAX / 2, "{received} bytes, TLS {tls}");
    }
}

#[test]
fn from_a_client_inside_tls_that_takes_no_answers_little_is_taken() {
    let authority = authority();
    let guest = authority.issue_client("guest", now()).expect("a certificate");
    let mut bench = Bench::new(&authority, Revocations::default(), 1 << 20);
    let (mut tls, mut held) = (tls(&authority, Some(&guest)), Vec::new());
    entered(&mut bench, &mut tls, &mut held);
    let mut request = Vec::new();
    nbd::encode_request(1, nbd::Op::Read { whole: false }, 8 << 20, 4096, false, &mut request);
    let (mut asked, mut sends) = (0, Vec::new());
    while asked < 32 * MIB && held.is_empty() {
        let flood = request.repeat(1000);
        asked += flood.len();
        tls.writer().write_all(&flood).expect("memory takes all");
        while tls.wants_write() {
            tls.write_tls(&mut held).expect("memory takes all");
        }
        held = bench.receive(std::mem::take(&mut held));
        let mut pieces = Vec::new();
        bench.connection.take_send(&mut pieces);
        sends.push(pieces);
    }
    assert!(!held.is_empty(), "it takes more and more");
    let length = |pieces: &[sys::Piece]| pieces.iter().map(sys::Piece::len).sum::<usize>();
    let under_way: usize = sends.iter().map(|pieces| length(pieces)).sum();
    assert!(under_way < 2 * MIB + (256 << 10), "{under_way} bytes in records");
    let mut left = under_way as u64;
    while left > 0 {
        bench.connection.sent(left);
        let mut pieces = Vec::new();
        bench.connection.take_send(&mut pieces);
        left = length(&pieces) as u64;
    }
    assert!(!bench.connection.waits_for_client());
    bench.carry_out(Vec::new());
    let before = held.len();
    assert!(bench.receive(held).len() < before, "it goes on");
}

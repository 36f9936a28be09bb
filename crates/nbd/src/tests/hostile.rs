//! Noise, and valid streams with errors in them: nothing panics, nothing grows.

use super::{CLIENT_FLAGS, Host, goal, info, option};
use crate::number::*;
use crate::{
    Client, Event, Op, REQUESTS_OPEN_MAX, Replies, Tls, encode_disconnect, encode_request,
};
use alloc::vec;
use alloc::vec::Vec;
use base::Prng;

/// A valid connection from its first byte to its last, with every option and command.
fn valid(random: &mut Prng) -> Vec<u8> {
    let mut bytes = CLIENT_FLAGS.to_vec();
    let go = b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03";
    let meta = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let options: [(u32, &[u8]); 6] = [
        (OPT_LIST, &[]),
        (OPT_STRUCTURED_REPLY, &[]),
        (OPT_LIST_META_CONTEXT, meta),
        (OPT_SET_META_CONTEXT, meta),
        (OPT_INFO, go),
        (77, b"unknown"),
    ];
    for (number, data) in options {
        if !random.once_in(3) {
            bytes.extend_from_slice(&option(number, data));
        }
    }
    match random.below(3) {
        0 => bytes.extend_from_slice(&option(OPT_EXPORT_NAME, b"disk")),
        _ => bytes.extend_from_slice(&option(OPT_GO, go)),
    }
    for cookie in 0..random.below(20) {
        let op = match random.below(6) {
            0 => Op::Read { whole: random.once_in(4) },
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Trim,
            4 => Op::Zero { no_hole: random.once_in(2), fast: random.once_in(8) },
            _ => Op::BlockStatus { one: random.once_in(2) },
        };
        let flush = op == Op::Flush;
        let length = if flush { 0 } else { 512 * (1 + random.below(8)) as u32 };
        let offset = if flush { 0 } else { 512 * random.below(1 << 14) };
        encode_request(cookie, op, offset, length, random.once_in(3), &mut bytes);
        if op == Op::Write {
            bytes.extend((0..length).map(|_| random.next_u64() as u8));
        }
    }
    encode_disconnect(&mut bytes);
    bytes
}

/// Changes a stream in one of the ways that bytes go wrong.
fn mutate(bytes: &mut Vec<u8>, random: &mut Prng) {
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next_u64() as u8,
        2 => bytes.truncate(at + 1),
        3 => {
            let end = (at + 1 + random.below(40) as usize).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let end = (at + random.below(40) as usize).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => {
            let field: [u8; 4] =
                [[0; 4], [0xff; 4], [0, 0, 0, 1], [0x80, 0, 0, 0]][random.below(4) as usize];
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&field[..end - at]);
        }
    }
    if bytes.is_empty() {
        bytes.push(0);
    }
}

/// Feeds a stream in random pieces; checks what must always hold. Says whether it ended regularly.
fn survive(stream: &[u8], tls: Tls, random: &mut Prng) -> bool {
    let mut host = Host::new(tls, vec![info("disk"), info("")]);
    host.step = 1 + random.below(64) as usize;
    let mut rest = stream;
    while !rest.is_empty() {
        let length = (1 + random.below(4096) as usize).min(rest.len());
        host.receive(&rest[..length]);
        rest = &rest[length..];
        assert!(host.server.data.capacity() <= OPTION_BYTES_MAX as usize);
        assert!(host.server.open_count() <= REQUESTS_OPEN_MAX);
        if host.events.last() == Some(&Event::StartTls) {
            host.events.clear();
            host.inbox.clear();
            host.server.tls_started();
        }
        for event in host.events.drain(..) {
            if let Event::Request(request) = event {
                let end = request.offset_bytes + u64::from(request.length_bytes);
                assert!(end <= host.disk.len() as u64, "{request:?}");
            }
        }
    }
    host.closed == Some(crate::CloseReason::ClientDone)
}

#[test]
fn valid_streams_end_regularly_however_they_are_cut() {
    let mut random = Prng::new(1);
    for _ in 0..60 {
        let stream = valid(&mut random);
        assert!(survive(&stream, Tls::Absent, &mut random));
    }
}

#[test]
fn mutated_streams_never_panic_and_never_grow() {
    let mut random = Prng::new(2);
    let mut survived = 0;
    for round in 0..1500 {
        let mut stream = valid(&mut random);
        for _ in 0..=random.below(3) {
            mutate(&mut stream, &mut random);
        }
        let tls = [Tls::Absent, Tls::Offered, Tls::Required][round % 3];
        survived += usize::from(survive(&stream, tls, &mut random));
    }
    assert!(survived > 100, "mutations reach the end of {survived} streams: too few to mean much");
}

#[test]
fn noise_never_panics_and_never_grows() {
    let mut random = Prng::new(3);
    for round in 0..600_u64 {
        let mut stream = CLIENT_FLAGS.to_vec();
        if round.is_multiple_of(2) {
            // Behind an entry, so that the noise is requests; each with a magic that lets it in.
            stream.extend_from_slice(&option(OPT_EXPORT_NAME, b"disk"));
            for _ in 0..40 {
                stream.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
                stream.extend_from_slice(&[0, random.next_u64() as u8 & 31, 0]);
                stream.push(random.below(9) as u8);
                stream.extend_from_slice(&random.next_u64().to_be_bytes());
                let offset = random.next_u64() >> random.below(64);
                let length = (random.next_u64() as u32) >> random.below(32);
                stream.extend_from_slice(&(offset & !511).to_be_bytes());
                stream.extend_from_slice(&(length & !511).to_be_bytes());
            }
        }
        stream.extend((0..random.below(500)).map(|_| random.next_u64() as u8));
        survive(&stream, Tls::Offered, &mut random);
    }
}

#[test]
fn client_survives_whatever_a_server_says() {
    let mut random = Prng::new(4);
    for _ in 0..600 {
        // What our own server says to a valid stream, mutated.
        let mut host = Host::new(Tls::Absent, vec![info("disk")]);
        host.receive(&valid(&mut random));
        let mut stream = host.sent();
        mutate(&mut stream, &mut random);
        let mut client = Client::new(goal("disk", true, true), false);
        let mut replies = Replies::new();
        let (mut at, mut send) = (0, Vec::new());
        while at < stream.len() {
            let end = stream.len().min(at + 1 + random.below(64) as usize);
            match client.feed(&stream[at..end], &mut send) {
                Ok((taken, _)) if taken > 0 => at += taken,
                _ => break,
            }
        }
        for start in [at, random.below(stream.len() as u64) as usize] {
            let mut at = start;
            while at < stream.len() {
                match replies.feed(&stream[at..]) {
                    Ok((taken, reply)) => {
                        let payload = reply.map_or(0, |reply| reply.payload_bytes());
                        at += taken + payload as usize;
                    }
                    Err(_) => break,
                }
            }
            replies = Replies::new();
        }
        assert!(send.len() < 10_000);
    }
}

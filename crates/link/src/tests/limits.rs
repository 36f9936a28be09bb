//! Strangers, garbage, and floods.

use std::net::{IpAddr, Ipv6Addr};

use base::{NodeId, Prng};
use wire::NodeMessage;

use super::*;
use crate::{HANDSHAKE_BYTES_MAX, HANDSHAKE_LIMIT, Peer, STRANGERS_MAX, Strangers};

fn acceptor() -> End {
    let config = config(&identity(&authority(), 2), LinkMode::Encrypted);
    End::new(Link::accept(&config, hello(2), &pool(), Instant(0)).unwrap())
}

#[test]
fn a_stranger_has_a_deadline() {
    assert_eq!(acceptor().link.deadline(), Some(Instant(0) + HANDSHAKE_LIMIT));
}

#[test]
fn someone_who_speaks_no_tls_is_turned_away_by_the_first_bytes() {
    let mut end = acceptor();
    end.deliver(b"GET / HTTP/1.1\r\n".to_vec());
    assert!(matches!(end.error, Some(LinkError::Tls(_))), "{:?}", end.error);
}

#[test]
fn a_stranger_sends_no_more_than_the_limit() {
    let mut end = acceptor();
    // A client hello of 64 KiB, in records of 1 KiB.
    let mut record = vec![22, 3, 1, 4, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + 1024, 0);
    let mut sent = 0;
    while end.error.is_none() {
        end.deliver(record.clone());
        sent += record.len();
        record[5..9].fill(0);
        assert!(sent <= HANDSHAKE_BYTES_MAX + record.len(), "the flood was not stopped");
    }
    assert_eq!(end.error, Some(LinkError::TooMuchBeforeAuthentication));
}

/// Bytes that each end sends until the other knows it, dialler first.
fn handshake_bytes(one: &Config, two: &Config) -> (usize, usize) {
    let (mut a, mut b) = ends(one, two);
    let mut sent = (0, 0);
    while a.link.peer().is_none() || b.link.peer().is_none() {
        let bytes = a.outgoing();
        if b.link.peer().is_none() {
            sent.0 += bytes.len();
        }
        b.deliver(bytes);
        let bytes = b.outgoing();
        if a.link.peer().is_none() {
            sent.1 += bytes.len();
        }
        a.deliver(bytes);
        assert_eq!((&a.error, &b.error), (&None, &None));
    }
    sent
}

#[test]
fn the_largest_certificate_that_nodes_have_leaves_room_below_the_limit() {
    let authority = authority();
    let name = "n".repeat(48);
    let addresses: Vec<IpAddr> =
        (0..16).map(|last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 1, 2, 3, last).into()).collect();
    let large = authority.issue(NodeId(65_535), &name, &addresses, NOW).unwrap();
    let usual = handshake_bytes(
        &config(&identity(&authority, 1), LinkMode::Encrypted),
        &config(&identity(&authority, 2), LinkMode::Encrypted),
    );
    let large = config(&large, LinkMode::Encrypted);
    // Whoever it dials has to be node 2.
    let dialler = handshake_bytes(&large, &config(&identity(&authority, 2), LinkMode::Encrypted)).0;
    println!("usual: {usual:?}; with 16 addresses: {dialler}");
    assert!(usual.0 < HANDSHAKE_BYTES_MAX / 2 && usual.1 < HANDSHAKE_BYTES_MAX / 2, "{usual:?}");
    assert!(dialler < HANDSHAKE_BYTES_MAX, "{dialler}");
}

#[test]
fn a_stranger_is_heard_up_to_the_limit_and_not_one_byte_further() {
    // One that has no room left for a record has sent too much, as whatever it says next would be.
    for (total, ends) in [(HANDSHAKE_BYTES_MAX - 6, false), (HANDSHAKE_BYTES_MAX, true)] {
        let mut end = acceptor();
        let mut left = total;
        // A client hello that does not end, in records that make up the limit.
        let mut first = true;
        while left > 0 {
            let length = left.min(1024);
            let mut record = vec![22, 3, 1, 0, 0];
            record[3..].copy_from_slice(&u16::try_from(length - 5).unwrap().to_be_bytes());
            record.resize(length, 0);
            if std::mem::take(&mut first) {
                record[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
            }
            left -= length;
            if (1..6).contains(&left) {
                // A record has a header and something in it.
                record.truncate(length - 6);
                let body = u16::try_from(length - 11).unwrap();
                record[3..5].copy_from_slice(&body.to_be_bytes());
                left += 6;
            }
            assert!(record.len() <= end.link.receive_max(), "what is left is received");
            end.deliver(record);
        }
        assert_eq!(end.error.is_some(), ends, "{total} bytes: {:?}", end.error);
    }
}

#[test]
fn no_more_is_received_from_a_stranger_than_it_may_send() {
    let mut end = acceptor();
    let mut received = 0;
    // Of a flood of one long client hello in short records, as much as is taken each time.
    let mut flood = [22, 3, 1, 0, 100].iter().copied().chain([0; 100]).cycle();
    while end.error.is_none() {
        let most = end.link.receive_max().min(16 << 10);
        received += most;
        let mut bytes: Vec<u8> = flood.by_ref().take(most).collect();
        if received == most {
            bytes[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
        }
        end.deliver(bytes);
    }
    assert_eq!(end.error, Some(LinkError::TooMuchBeforeAuthentication));
    assert!(received <= HANDSHAKE_BYTES_MAX, "{received} bytes");
}

#[test]
fn a_record_beyond_the_limit_is_refused_by_its_header() {
    let mut end = acceptor();
    // One more than the limit, with its header.
    let body = u16::try_from(HANDSHAKE_BYTES_MAX - 5 + 1).unwrap().to_be_bytes();
    end.deliver(vec![22, 3, 1, body[0], body[1]]);
    assert_eq!(end.error, Some(LinkError::TooMuchBeforeAuthentication));
}

#[test]
fn one_stranger_too_many_is_not_let_in_until_one_leaves() {
    let mut strangers = Strangers::default();
    for _ in 0..STRANGERS_MAX {
        assert!(strangers.enter());
    }
    assert!(!strangers.enter());
    strangers.leave();
    assert!(strangers.enter());
    assert_eq!(strangers.count(), STRANGERS_MAX);
}

#[test]
fn random_bytes_never_open_a_session() {
    let mut prng = Prng::new(21);
    for round in 0..500 {
        let mut end = acceptor();
        let mut bytes: Vec<u8> = (0..300).map(|_| prng.next_u64() as u8).collect();
        if round % 2 == 0 {
            bytes[..5].copy_from_slice(&[22, 3, 1, 1, 0]);
        }
        end.deliver(bytes);
        assert!(!end.ready);
        end.outgoing();
    }
}

#[test]
fn a_handshake_with_a_changed_byte_fails_or_leads_to_the_right_peer() {
    let authority = authority();
    let one = config(&identity(&authority, 1), LinkMode::Plain);
    let two = config(&identity(&authority, 2), LinkMode::Plain);
    let mut prng = Prng::new(22);
    let mut failed = 0;
    for _ in 0..300 {
        let (mut a, mut b) = ends(&one, &two);
        // One change, in one of the four flights up to the openings.
        let flight = prng.below(4);
        for turn in 0..=flight {
            let (from, to) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let mut bytes = from.outgoing();
            if turn == flight {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << prng.below(8);
            }
            to.deliver(bytes);
        }
        pump(&mut a, &mut b, 1000, &mut prng);
        if a.ready && b.ready {
            assert_eq!(b.link.peer(), Some(&Peer::Node(NodeId(1))));
        } else {
            failed += 1;
        }
    }
    // TLS ignores the version in the header of its first records, and nothing else.
    assert!(failed > 270, "only {failed} of 300 changes were noticed");
}

#[test]
fn garbage_from_an_authenticated_peer_never_panics() {
    let mut prng = Prng::new(23);
    for mode in BOTH_MODES {
        for _ in 0..50 {
            let (mut a, mut b) = ready_ends(mode);
            a.link.send_node(&NodeMessage::Ping { number: 3 });
            let mut bytes = a.outgoing();
            for _ in 0..1 + prng.below(20) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            bytes.extend((0..prng.below(2000)).map(|_| prng.next_u64() as u8));
            b.deliver(bytes);
            b.outgoing();
        }
    }
}

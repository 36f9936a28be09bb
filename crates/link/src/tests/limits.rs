//! Strangers, garbage, and floods.

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

#[test]
fn a_record_beyond_the_limit_is_refused_by_its_header() {
    let mut end = acceptor();
    end.deliver(vec![22, 3, 1, 0x41, 0]);
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

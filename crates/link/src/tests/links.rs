//! Frames through a pair of honest links.

use base::{Epoch, NodeId, Prng, ResourceId, Span, VolumeId};
use sys::Piece;
use wire::{FrameError, GoodbyeReason, Message, NodeMessage, ShardMessage, WriteFlags};

use super::*;
use crate::{Peer, Session};

const RESOURCE: ResourceId = ResourceId(9);

fn write(sequence: u64, sectors: u64) -> ShardMessage {
    ShardMessage::Write {
        epoch: Epoch(3),
        sequence,
        cut: 0,
        volume: VolumeId(0),
        span: Span::new(sequence * 8, sectors as u32).unwrap(),
        flags: WriteFlags::default(),
        origin: None,
    }
}

fn random_bytes(length: usize, prng: &mut Prng) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes()).take(length).collect()
}

/// Sends writes of many sizes, small frames between them, and checks what arrives.
fn exchange(mode: LinkMode, most: u64, writes: u64) {
    let (mut a, mut b) = ready_ends(mode);
    let mut prng = Prng::new(most);
    let mut sent = Vec::new();
    for sequence in 0..writes {
        let sectors = [1, 7, 8, 9, 32, 33, 256, 2048][prng.below(8) as usize];
        let payload = random_bytes(sectors as usize * 512, &mut prng);
        let message = write(sequence, sectors);
        a.link.send_shard(RESOURCE, 3, &message, Some(Piece::from(payload.clone())));
        sent.push((message, payload));
        b.link.send_shard(
            RESOURCE,
            3,
            &ShardMessage::Written { sequence, ok: true, in_place: true },
            None,
        );
        if prng.once_in(3) {
            pump(&mut a, &mut b, most, &mut prng);
        }
    }
    pump(&mut a, &mut b, most, &mut prng);
    assert_eq!((&a.error, &b.error), (&None, &None));
    assert_eq!(b.frames.len(), sent.len());
    for ((frame, bytes), (message, payload)) in b.frames.iter().zip(&sent) {
        let expected = Message::Shard { resource: RESOURCE, shard: 3, message: message.clone() };
        assert_eq!(frame.message, expected);
        assert!(bytes == payload, "the payload of {message:?} arrives as it was");
    }
    assert_eq!(a.frames.len(), sent.len());
}

#[test]
fn megabytes_in_odd_pieces_arrive_in_both_modes() {
    for mode in BOTH_MODES {
        exchange(mode, 100_000, 40);
        exchange(mode, 5_000, 20);
    }
}

#[test]
fn single_bytes_arrive_in_both_modes() {
    for mode in BOTH_MODES {
        exchange(mode, 1, 2);
    }
}

#[test]
fn the_peer_is_known_by_its_certificate_and_the_deadline_ends_when_it_is_ready() {
    let authority = authority();
    let config_of = |node| config(&identity(&authority, node), LinkMode::Encrypted);
    let (mut a, mut b) = ends(&config_of(1), &config_of(2));
    assert!(a.link.deadline().is_some() && b.link.deadline().is_some());
    assert_eq!(b.link.peer(), None);
    pump(&mut a, &mut b, 100, &mut Prng::new(1));
    assert_eq!(a.link.peer(), Some(&Peer::Node(NodeId(2))));
    assert_eq!(b.link.peer(), Some(&Peer::Node(NodeId(1))));
    assert_eq!((a.link.deadline(), b.link.deadline()), (None, None));
}

#[test]
fn the_acceptor_takes_the_stream_that_the_dialler_asks_for() {
    let authority = authority();
    let config_of = |node| config(&identity(&authority, node), LinkMode::Plain);
    let dialler = Hello { stream: 2, ..hello(1) };
    let (mut a, mut b) = ends_of(&config_of(1), &config_of(2), (dialler, hello(2)));
    pump(&mut a, &mut b, 100, &mut Prng::new(1));
    assert_eq!(a.link.agreed().unwrap().stream, 2);
    assert_eq!(b.link.agreed(), a.link.agreed());
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn payload_is_readable_on_the_wire_in_plain_mode_only() {
    for mode in BOTH_MODES {
        let (mut a, mut b) = ready_ends(mode);
        let payload = b"LOCKSTEP".repeat(64 * 32);
        a.link.send_shard(RESOURCE, 0, &write(1, 32), Some(Piece::from(payload.clone())));
        let carried = pump(&mut a, &mut b, 1000, &mut Prng::new(1));
        assert_eq!(contains(&carried, &payload), mode == LinkMode::Plain);
        assert_eq!(b.frames[0].1, payload);
    }
}

#[test]
fn a_large_payload_in_the_clear_is_sent_from_where_it_lies() {
    let (mut a, _b) = ready_ends(LinkMode::Plain);
    let payload = Piece::from(vec![7; 1 << 20]);
    let at = payload.as_slice().as_ptr();
    a.link.send_shard(RESOURCE, 0, &write(1, 2048), Some(payload));
    let pieces = a.link.outgoing(usize::MAX);
    assert!(pieces.as_slice().iter().any(|piece| piece.as_slice().as_ptr() == at));
}

#[test]
fn no_more_is_enciphered_than_there_is_room_for_and_the_rest_in_its_turn() {
    let (mut a, mut b) = ready_ends(LinkMode::Encrypted);
    let payload = random_bytes(1 << 20, &mut Prng::new(4));
    for number in 1..=4 {
        a.link.send_shard(RESOURCE, 0, &write(number, 2048), Some(Piece::from(payload.clone())));
        a.link.send_node(&NodeMessage::Ping { number });
    }
    let mut sent = 0;
    let mut rounds = 0;
    while a.link.waiting_bytes() > 0 || rounds == 0 {
        let bytes = join(a.link.outgoing(64 << 10).as_slice());
        assert!(bytes.len() < (64 << 10) + payload.len() * 11 / 10, "one payload beyond");
        sent += bytes.len();
        rounds += 1;
        b.deliver(bytes);
    }
    assert!(rounds > 3 && sent > payload.len() * 4);
    assert!(a.link.outgoing(usize::MAX).as_slice().is_empty());
    let payloads = b.frames.iter().filter(|(_, came)| *came == payload).count();
    assert_eq!((b.frames.len(), payloads), (8, 4), "in the order in which they were said");
}

#[test]
fn a_payload_s_checksum_is_computed_by_the_first_link_that_needs_it_and_by_no_other() {
    let payload = random_bytes(4096, &mut Prng::new(6));
    let mut checksum = None;
    let send = |mode, checksum: &mut Option<u32>| {
        let (mut a, mut b) = ready_ends(mode);
        let piece = Some(Piece::from(payload.clone()));
        a.link.send_shard_to_one_of(RESOURCE, 0, &write(1, 8), piece, checksum);
        b.deliver(a.outgoing());
        b.error
    };
    assert_eq!(send(LinkMode::Encrypted, &mut checksum), None);
    assert_eq!(checksum, None, "a link that proves its bytes needs none");
    assert_eq!(send(LinkMode::Plain, &mut checksum), None);
    let right = base::crc32c(&payload);
    assert_eq!(checksum, Some(right));
    assert_eq!(send(LinkMode::Plain, &mut checksum), None);
    // Whoever computed it anew would not notice.
    let mut wrong = Some(right ^ 1);
    assert_eq!(send(LinkMode::Plain, &mut wrong), Some(LinkError::Frame(FrameError::Damaged)));
    assert_eq!(wrong, Some(right ^ 1));
}

#[test]
fn a_clear_payload_may_be_received_straight_into_its_place() {
    let (mut a, mut b) = ready_ends(LinkMode::Plain);
    let payload = random_bytes(64 << 10, &mut Prng::new(4));
    a.link.send_shard(RESOURCE, 0, &write(1, 128), Some(Piece::from(payload.clone())));
    let bytes = a.outgoing();
    let (front, rest) = bytes.split_at(bytes.len() - payload.len() + 100);
    b.deliver(front.to_vec());
    let (_, mut place) = b.awaiting.take().unwrap();
    let wanted = LinkWant::Payload { length: payload.len(), done: 100, direct: true };
    assert_eq!(b.link.want(), wanted);
    place[100..5000].copy_from_slice(&rest[..4900]);
    assert_eq!(b.link.payload_received(&place, 4900), Ok(false));
    place[5000..].copy_from_slice(&rest[4900..]);
    assert_eq!(b.link.payload_received(&place, rest.len() - 4900), Ok(true));
    assert_eq!(place, payload);
    assert_eq!(b.link.want(), LinkWant::Frames);
}

#[test]
fn a_payload_for_which_there_is_no_place_passes_and_what_is_behind_it_arrives() {
    for mode in BOTH_MODES {
        let (mut a, mut b) = ready_ends(mode);
        let payload = random_bytes(64 << 10, &mut Prng::new(4));
        a.link.send_shard(RESOURCE, 0, &write(1, 128), Some(Piece::from(payload)));
        a.link.send_node(&NodeMessage::Ping { number: 7 });
        let mut bytes = a.outgoing();
        let mut frames = Vec::new();
        // In parts, so that the payload is cut as well.
        for part in bytes.chunks_mut(5000) {
            let mut input = part;
            loop {
                if let LinkWant::Payload { .. } = b.link.want() {
                    if !b.link.skip(&mut input).unwrap() {
                        break;
                    }
                    continue;
                }
                match b.link.next(&mut input).unwrap() {
                    Some(LinkEvent::Frame(frame)) => frames.push(frame.message),
                    Some(LinkEvent::Ready { .. }) => panic!("it was ready before"),
                    None => break,
                }
            }
        }
        let ping = Message::Node(NodeMessage::Ping { number: 7 });
        assert!(
            matches!(&frames[..], [Message::Shard { .. }, last] if *last == ping),
            "{frames:?}"
        );
    }
}

#[test]
fn a_changed_byte_is_found_wherever_it_is() {
    let mut prng = Prng::new(11);
    for mode in BOTH_MODES {
        for _ in 0..10 {
            let (mut a, mut b) = ready_ends(mode);
            let payload = random_bytes(64 << 10, &mut prng);
            a.link.send_shard(RESOURCE, 0, &write(1, 128), Some(Piece::from(payload)));
            a.link.send_node(&NodeMessage::Ping { number: 1 });
            let mut bytes = a.outgoing();
            let at = prng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << prng.below(8);
            b.deliver(bytes);
            // A changed length may as well leave it waiting for bytes that never come.
            assert!(b.error.is_some() || b.frames.is_empty(), "byte {at} was changed unnoticed");
        }
    }
}

#[test]
fn a_changed_payload_is_found_by_checksum_in_plain_mode_and_by_cipher_else() {
    for mode in BOTH_MODES {
        let (mut a, mut b) = ready_ends(mode);
        a.link.send_shard(RESOURCE, 0, &write(1, 128), Some(Piece::from(vec![5; 64 << 10])));
        let mut bytes = a.outgoing();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        b.deliver(bytes);
        match mode {
            LinkMode::Plain => {
                assert_eq!(b.error, Some(LinkError::Frame(FrameError::Damaged)));
            }
            LinkMode::Encrypted => assert!(matches!(b.error, Some(LinkError::Tls(_)))),
        }
        assert!(b.frames.is_empty());
        // The peer is told.
        pump(&mut a, &mut b, 1000, &mut Prng::new(1));
        let told = a.error.is_some()
            || matches!(&a.frames[..], [(frame, _)] if frame.message
                == Message::Node(NodeMessage::Goodbye { reason: GoodbyeReason::Fault }));
        assert!(told);
    }
}

#[test]
fn goodbye_arrives_and_then_the_end_is_clean() {
    for mode in BOTH_MODES {
        let (mut a, mut b) = ready_ends(mode);
        a.link.send_node(&NodeMessage::Ping { number: 5 });
        a.link.goodbye(GoodbyeReason::Stopping);
        a.link.send_node(&NodeMessage::Ping { number: 6 });
        pump(&mut a, &mut b, 50, &mut Prng::new(3));
        let said: Vec<_> = b.frames.iter().map(|(frame, _)| frame.message.clone()).collect();
        let expected = [
            Message::Node(NodeMessage::Ping { number: 5 }),
            Message::Node(NodeMessage::Goodbye { reason: GoodbyeReason::Stopping }),
        ];
        assert_eq!(said, expected);
        assert_eq!(b.link.ended(), LinkError::Closed);
    }
}

#[test]
fn a_stream_that_ends_within_a_frame_is_cut_short() {
    for mode in BOTH_MODES {
        let (mut a, mut b) = ready_ends(mode);
        assert_eq!(b.link.ended(), LinkError::Closed);
        a.link.send_shard(RESOURCE, 0, &write(1, 128), Some(Piece::from(vec![5; 64 << 10])));
        let bytes = a.outgoing();
        b.deliver(bytes[..bytes.len() / 2].to_vec());
        assert_eq!(b.link.ended(), LinkError::CutShort);
    }
}

#[test]
fn keys_are_changed_under_way() {
    let authority = authority();
    let config_of = |node| config(&identity(&authority, node), LinkMode::Encrypted);
    let mut a = Session::dial(&config_of(1), Some(NodeId(2)), &pool(), Instant(0)).unwrap();
    let mut b = Session::accept(&config_of(2), &pool(), Instant(0)).unwrap();
    let carry = |from: &mut Session, to: &mut Session| {
        let mut bytes = join(from.outgoing(usize::MAX).as_slice());
        let mut place = vec![0; 4096];
        let count = to.read(&mut bytes.as_mut_slice(), &mut place).unwrap();
        place.truncate(count);
        place
    };
    while !(a.is_open() && b.is_open()) {
        carry(&mut a, &mut b);
        carry(&mut b, &mut a);
    }
    for round in 0..3_u8 {
        a.write(|out| out.extend_from_slice(&[round; 100]));
        a.refresh_keys();
        a.write(|out| out.extend_from_slice(&[round + 100; 100]));
        let expected = [[round; 100], [round + 100; 100]].concat();
        assert_eq!(carry(&mut a, &mut b), expected);
        b.write(|out| out.extend_from_slice(b"answer"));
        assert_eq!(carry(&mut b, &mut a), b"answer");
    }
}

#[test]
fn disagreements_of_hellos_reach_both_logs() {
    type Case = (Hello, fn(&crate::HelloError) -> bool);
    use crate::HelloError as E;
    let version = VERSION_MAX + 1;
    let cases: [Case; 5] = [
        (Hello { cluster: ClusterId(4), ..hello(1) }, |e| matches!(e, E::OtherCluster { .. })),
        (hello(3), |e| matches!(e, E::OtherNode { says: NodeId(3), .. })),
        (Hello { version_min: version, version_max: version, ..hello(1) }, |e| {
            matches!(e, E::Version { .. })
        }),
        (Hello { features_offered: 8, features_required: 8, ..hello(1) }, |e| {
            matches!(e, E::Features(8))
        }),
        (Hello { stream: 7, streams: 4, ..hello(1) }, |e| matches!(e, E::Stream { .. })),
    ];
    let authority = authority();
    let config_of = |node| config(&identity(&authority, node), LinkMode::Encrypted);
    for (theirs, is_expected) in cases {
        let (mut a, mut b) = ends_of(&config_of(1), &config_of(2), (theirs, hello(2)));
        pump(&mut a, &mut b, 1000, &mut Prng::new(1));
        let Some(LinkError::Hello(error)) = &b.error else { panic!("{:?}", b.error) };
        assert!(is_expected(error), "{error:?}");
        assert!(a.error.is_some(), "the dialler is told: {error:?}");
        assert!(!a.ready && !b.ready);
    }
}

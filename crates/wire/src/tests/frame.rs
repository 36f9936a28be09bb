//! Frames on their way, whole, in crumbs and damaged.

use super::sample::{self, MEMBER_KINDS, NODE_KINDS, SHARD_KINDS};
use crate::*;
use alloc::vec;
use alloc::vec::Vec;
use base::{Epoch, Prng, ResourceId, Span, VolumeId, crc32c};

/// A random frame of the `kind`th kind of all, its payload, and both as bytes.
pub(super) fn frame(kind: u64, random: &mut Prng) -> (Frame, Vec<u8>, Vec<u8>) {
    let stream = random.below(8) as u16;
    let resource = ResourceId(random.next_u64());
    let mut bytes = Vec::new();
    let (message, payload, data) = if kind < SHARD_KINDS {
        let (message, length) = sample::shard_message(kind, random);
        let data: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        let payload =
            if random.once_in(4) { Payload::unchecked(length) } else { Payload::checked(&data) };
        let shard = random.below(16) as u16;
        encode_shard(&mut bytes, resource, shard, stream, &message, payload);
        (Message::Shard { resource, shard, message }, payload, data)
    } else if kind < SHARD_KINDS + MEMBER_KINDS {
        let message = sample::member_message(kind - SHARD_KINDS, random);
        encode_member(&mut bytes, resource, stream, &message);
        (Message::Member { resource, message }, Payload::NONE, Vec::new())
    } else {
        let message = sample::node_message(kind - SHARD_KINDS - MEMBER_KINDS, random);
        encode_node(&mut bytes, stream, &message);
        (Message::Node(message), Payload::NONE, Vec::new())
    };
    (Frame { stream, payload, message }, data, bytes)
}

pub(super) const KINDS: u64 = SHARD_KINDS + MEMBER_KINDS + NODE_KINDS;

fn open(guard: Guard) -> Decoder {
    let mut decoder = Decoder::new();
    decoder.open(guard);
    decoder
}

/// What a connection does: gives `wire` to a decoder in pieces of `piece` bytes at most.
fn receive(
    decoder: &mut Decoder,
    wire: &[u8],
    piece: usize,
) -> Result<Vec<(Frame, Vec<u8>)>, FrameError> {
    let mut frames: Vec<(Frame, Vec<u8>)> = Vec::new();
    let mut at = 0;
    while at < wire.len() {
        let end = wire.len().min(at + piece);
        if let Want::Payload(left) = decoder.want() {
            let count = left.min(end - at);
            let (_, data) = frames.last_mut().unwrap();
            data.extend_from_slice(&wire[at..at + count]);
            decoder.payload_taken(count);
            at += count;
            continue;
        }
        let (taken, frame) = decoder.receive(&wire[at..end])?;
        assert!(taken > 0, "a decoder that is not finished takes bytes");
        at += taken;
        frames.extend(frame.map(|frame| (frame, Vec::new())));
    }
    for (frame, data) in &frames {
        if data.len() == frame.payload.length as usize {
            frame.payload.verify(data)?;
        }
    }
    Ok(frames)
}

#[test]
fn every_kind_of_frame_comes_back_as_it_was_however_its_bytes_arrive() {
    let mut random = Prng::new(1);
    for round in 0..20 {
        let mut wire = Vec::new();
        let mut sent = Vec::new();
        for kind in 0..KINDS {
            let (frame, data, bytes) = frame(kind, &mut random);
            wire.extend_from_slice(&bytes);
            wire.extend_from_slice(&data);
            sent.push((frame, data));
        }
        let piece = [1, 7, 128, 4096, usize::MAX / 2][round % 5];
        let got = receive(&mut open(Guard::Cipher), &wire, piece).unwrap();
        assert_eq!(got, sent);
    }
}

#[test]
fn a_flipped_bit_is_always_noticed() {
    let mut random = Prng::new(2);
    for round in 0..2_000 {
        let (_, _, mut bytes) = frame(round % KINDS, &mut random);
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        let result = receive(&mut open(Guard::Cipher), &bytes, usize::MAX / 2);
        let error = result.expect_err("the checksums cover every byte");
        let expected = if at < 4 { FrameError::NotOurs } else { FrameError::Damaged };
        assert_eq!(error, expected);
    }
}

/// Puts the checksum right again, as a peer at fault would.
fn seal(bytes: &mut [u8]) {
    if bytes.len() > HEADER_BYTES {
        let body = crc32c(&bytes[HEADER_BYTES..]);
        bytes[112..116].copy_from_slice(&body.to_le_bytes());
    }
    let checksum = crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn a_sealed_change_is_refused_or_says_what_its_very_bytes_say() {
    let mut random = Prng::new(3);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..20_000 {
        let (_, _, mut bytes) = frame(round % KINDS, &mut random);
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = if random.once_in(2) { random.next_u64() as u8 } else { bytes[at] ^ 1 };
        }
        seal(&mut bytes);
        let mut decoder = open(Guard::Cipher);
        match decoder.receive(&bytes) {
            Ok((_, Some(frame))) => {
                taken += 1;
                assert_eq!(again(&frame), bytes);
            }
            // A length grew and the rest is awaited, or a kind was made one that is skipped.
            Ok((_, None)) => {}
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 2_000 && taken > 2_000, "{refused} refused, {taken} taken");
}

pub(super) fn again(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    match &frame.message {
        Message::Node(message) => encode_node(&mut bytes, frame.stream, message),
        Message::Member { resource, message } => {
            encode_member(&mut bytes, *resource, frame.stream, message);
        }
        Message::Shard { resource, shard, message } => {
            encode_shard(&mut bytes, *resource, *shard, frame.stream, message, frame.payload);
        }
    }
    bytes
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Prng::new(4);
    for _ in 0..2_000 {
        let length = random.below(600) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        if length >= HEADER_BYTES {
            bytes[..6].copy_from_slice(b"LSTP\x01\x00");
            bytes[6] = random.below(20) as u8;
            bytes[7] = random.below(4) as u8 | if random.once_in(4) { 0x80 } else { 0 };
            bytes[104..112].copy_from_slice(&[0; 8]);
            let body = (length - HEADER_BYTES) as u16;
            bytes[104..106].copy_from_slice(&body.to_le_bytes());
            if random.once_in(2) {
                bytes[103] = random.below(2) as u8;
                bytes[116..124].copy_from_slice(&[0; 8]);
            }
            seal(&mut bytes);
        }
        let guard = if random.once_in(2) { Guard::Checksum } else { Guard::Cipher };
        let _ = receive(&mut open(guard), &bytes, 1 + random.below(300) as usize);
        let _ = receive(&mut Decoder::new(), &bytes, 1 + random.below(300) as usize);
    }
}

#[test]
fn a_frame_of_an_unknown_kind_is_skipped_if_it_says_so() {
    let mut random = Prng::new(5);
    let (_, data, mut unknown) = loop {
        let made = frame(0, &mut random);
        if !made.1.is_empty() {
            break made;
        }
    };
    unknown[6..8].copy_from_slice(&0x8399u16.to_le_bytes());
    seal(&mut unknown);
    let (known, _, known_bytes) = frame(1, &mut random);
    let wire = [unknown.clone(), data, known_bytes].concat();
    for piece in [1, 100, usize::MAX / 2] {
        let got = receive(&mut open(Guard::Cipher), &wire, piece).unwrap();
        assert_eq!(got, vec![(known.clone(), Vec::new())]);
    }
    unknown[6..8].copy_from_slice(&0x0399u16.to_le_bytes());
    seal(&mut unknown);
    let result = receive(&mut open(Guard::Cipher), &unknown, 128);
    assert_eq!(result, Err(FrameError::UnknownKind(0x0399)));
}

#[test]
fn before_a_peer_has_proved_who_it_is_it_says_little() {
    let mut random = Prng::new(6);
    let mut decoder = Decoder::new();
    let mut hello = Vec::new();
    encode_node(&mut hello, 0, &NodeMessage::Hello(sample::hello(&mut random)));
    assert_eq!(receive(&mut decoder, &hello, 50).map(|frames| frames.len()), Ok(1));
    let (_, _, heartbeat) = frame(SHARD_KINDS + 8, &mut random);
    assert_eq!(receive(&mut decoder.clone(), &heartbeat, 50), Err(FrameError::TooEarly));
    let mut proof = Vec::new();
    encode_node(&mut proof, 0, &NodeMessage::Authenticate { step: 1, proof: vec![7; 1024] });
    let mut taken = hello.len();
    let error = loop {
        match receive(&mut decoder, &proof, 999) {
            Ok(_) => taken += proof.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error, FrameError::TooLong);
    assert!(taken > 2_000 && taken <= EARLY_BYTES_MAX, "{taken} bytes went through");
    assert_eq!(decoder.receive(&hello), Err(FrameError::TooLong), "an error lasts");
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_their_bytes_arrive() {
    for at in [104, 108] {
        let (_, _, mut bytes) = frame(1, &mut Prng::new(7));
        bytes[at..at + 4].copy_from_slice(&(2u32 << 20).to_le_bytes());
        seal(&mut bytes);
        assert_eq!(open(Guard::Cipher).receive(&bytes), Err(FrameError::TooLong));
    }
}

#[test]
fn a_link_without_cipher_takes_no_payload_without_checksum() {
    let (epoch, span) = (Epoch(3), Span::new(0, 1).unwrap());
    let message = ShardMessage::Write {
        epoch,
        sequence: 1,
        cut: 0,
        volume: VolumeId(0),
        span,
        flags: WriteFlags::default(),
        origin: None,
    };
    let mut bytes = Vec::new();
    encode_shard(&mut bytes, ResourceId(1), 0, 0, &message, Payload::unchecked(512));
    assert!(open(Guard::Cipher).receive(&bytes).is_ok());
    assert!(matches!(open(Guard::Checksum).receive(&bytes), Err(FrameError::Malformed(_))));
}

#[test]
fn a_changed_payload_is_noticed() {
    let payload = Payload::checked(b"four score and seven years ago");
    assert_eq!(payload.verify(b"four score and seven years ago"), Ok(()));
    assert_eq!(payload.verify(b"four score and seven years agp"), Err(FrameError::Damaged));
    assert_eq!(payload.verify(b"four score"), Err(FrameError::Damaged));
    assert_eq!(Payload::checked(&[]), Payload::NONE);
}

#[test]
fn a_write_whose_payload_is_not_as_long_as_its_span_is_refused() {
    let (_, _, mut bytes) = frame(0, &mut Prng::new(8));
    let length = u32::from_le_bytes(bytes[108..112].try_into().unwrap());
    bytes[108..112].copy_from_slice(&(length + 512).to_le_bytes());
    seal(&mut bytes);
    assert!(matches!(open(Guard::Cipher).receive(&bytes), Err(FrameError::Malformed(_))));
}

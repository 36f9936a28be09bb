//! What other nodes say: frames, configurations in them, certificates, and the first bytes of a connection.

use super::files::configuration;
use crate::mutate::low;
use crate::{Target, nothing, outcome};
use base::{
    Ballot, ClusterId, Epoch, Instant, NodeId, Op, Prng, RequestId, ResourceId, Span, VolumeId,
    crc32c,
};
use link::{Authority, Config, Identity, LinkMode, Peer, Revocations, Session, read_claims};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::sync::LazyLock;
use wire::{
    DecodeError, Decoder, Frame, Guard, HEADER_BYTES, MemberMessage, Message, Moment, NodeMessage,
    Payload, ShardMessage, Standing, Voucher, Want, WriteFlags, decode_configuration,
    decode_voucher, encode_configuration, encode_member, encode_node, encode_shard, encode_voucher,
};

/// Frames of a peer that has proved who it is.
pub(super) const FRAMES: Target = Target {
    name: "frames",
    what: "frames of members, shards and nodes",
    valid: frames,
    mend: |bytes| seal_frames(bytes),
    judge: |input| {
        let found = read_frames(input, Some(Guard::Cipher));
        read_frames(input, Some(Guard::Checksum));
        found
    },
    words: &["LSTP\x01\x00"],
};

/// Frames of somebody who has not.
pub(super) const FRAMES_EARLY: Target = Target {
    name: "frames-early",
    what: "frames before the peer has proved who it is",
    valid: |random| {
        let mut bytes = Vec::new();
        let reason = wire::GoodbyeReason::Unwanted;
        encode_node(&mut bytes, low(random.next_u64()).into(), &NodeMessage::Goodbye { reason });
        bytes
    },
    mend: |bytes| seal_frames(bytes),
    judge: |input| read_frames(input, None),
    words: &["LSTP\x01\x00"],
};

/// The value of the register.
pub(super) const CONFIGURATION: Target = Target {
    name: "configuration",
    what: "the value of a resource's register",
    valid: |_| {
        let mut bytes = Vec::new();
        encode_configuration(&configuration(), &mut bytes);
        bytes
    },
    mend: nothing,
    judge: |input| match decode_configuration(input) {
        Ok(value) => {
            wire::check_configuration(&value).expect("what is decoded may be encoded");
            let mut again = Vec::new();
            encode_configuration(&value, &mut again);
            assert_eq!(again, input, "a configuration has one form");
            outcome(&(
                value.members.len(),
                value.volumes.len(),
                value.lineage.len(),
                value.unknown.len(),
            ))
        }
        Err(error) => outcome(&error),
    },
    words: &[],
};

/// What a member signs of a resource's nodes.
pub(super) const VOUCHER: Target = Target {
    name: "voucher",
    what: "what a member has signed of a resource's nodes",
    valid: |random| {
        let nodes = |first: u16, random: &mut Prng| {
            let count = u16::try_from(random.below(8)).expect("few");
            (first..first + count).map(NodeId)
        };
        let standing = |node: NodeId| {
            let (number, admitted) = (1 + u64::from(node.0), node.0.is_multiple_of(2));
            Standing { node, number, admitted }
        };
        encode_voucher(&Voucher {
            cluster: ClusterId(random.next_u64()),
            resource: ResourceId(random.next_u64()),
            signer: NodeId(1),
            revision: random.next_u64(),
            fork: random.below(3),
            epoch: Epoch(random.next_u64()),
            members: nodes(1, random).collect(),
            standings: nodes(5, random).map(standing).collect(),
        })
    },
    mend: nothing,
    judge: |input| match decode_voucher(input) {
        Ok(voucher) => {
            assert_eq!(encode_voucher(&voucher), input, "a voucher has one form");
            outcome(&(voucher.members.len(), voucher.standings.len().min(3)))
        }
        Err(DecodeError::Schema(_)) => outcome(&"of a newer form"),
        Err(error) => outcome(&error),
    },
    words: &["lockstep voucher", "\x01\x00", "\x02\x00"],
};

/// Whom a certificate speaks for.
pub(super) const CERTIFICATE: Target = Target {
    name: "certificate",
    what: "the names in a certificate",
    valid: |random| CERTIFICATES[crate::mutate::index(CERTIFICATES.len(), random)].to_vec(),
    mend: nothing,
    judge: |input| match read_claims(&CertificateDer::from(input)) {
        Ok(claims) => {
            match &claims.peer {
                Peer::Node(node) => assert_ne!(node.0, 0, "0 is no node"),
                Peer::Client(name) => assert!(
                    !name.is_empty()
                        && name.len() <= link::CLIENT_NAME_BYTES_MAX
                        && name.is_ascii()
                ),
            }
            outcome(&claims.peer)
        }
        Err(refusal) => outcome(&refusal),
    },
    words: &["lockstep://", "/node/", "/client/", "0123456789abcdef", "65536", "+1", "01"],
};

/// The first bytes of a connection, before and inside the handshake of TLS.
pub(super) const LINK: Target = Target {
    name: "link",
    what: "the first bytes of a connection between nodes",
    valid: |_| {
        let pool = sys::BufferPool::new(1 << 20);
        let mut session =
            Session::dial(&NODES[1], Some(NodeId(1)), &pool, Instant(0)).expect("a good identity");
        session.outgoing(usize::MAX).flat_map(|piece| piece.as_slice().to_vec()).collect()
    },
    mend: |bytes| seal_records(bytes),
    judge: |input| {
        let pool = sys::BufferPool::new(1 << 20);
        let mut session = Session::accept(&NODES[0], &pool, Instant(0)).expect("a good identity");
        let mut bytes = input.to_vec();
        let mut rest = &mut bytes[..];
        let mut steps = 0;
        while !rest.is_empty() {
            match session.fill(&mut rest) {
                Ok(_) => assert!(!session.is_open(), "nobody proved anything"),
                Err(error) => return outcome(&error),
            }
            steps += 1;
            assert!(steps <= input.len() + 8, "no progress");
        }
        outcome(&"waits")
    },
    words: &[],
};

/// A time at which the certificates made here are good, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    Authority::create(ClusterId(0x0123_4567_89ab_cdef), NOW).expect("random numbers")
});

static IDENTITIES: LazyLock<Vec<Identity>> = LazyLock::new(|| {
    let node = |id| AUTHORITY.issue(NodeId(id), "node", &[], NOW).expect("a good name");
    vec![node(1), node(2), AUTHORITY.issue_client("someone@host", NOW).expect("a good name")]
});

static NODES: LazyLock<Vec<Config>> = LazyLock::new(|| {
    let config = |identity| {
        Config::new(identity, LinkMode::Encrypted, Revocations::default()).expect("a good identity")
    };
    IDENTITIES[..2].iter().map(config).collect()
});

static CERTIFICATES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let der = |pem: &str| {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("just made");
        der.as_ref().to_vec()
    };
    let mut all: Vec<Vec<u8>> =
        IDENTITIES.iter().map(|identity| der(identity.certificate_pem())).collect();
    all.push(der(AUTHORITY.certificate_pem()));
    all
});

/// An identity as its files hold it: certificate, key and authority.
pub(super) fn identity_pem(random: &mut Prng) -> [String; 3] {
    let identity = &IDENTITIES[crate::mutate::index(IDENTITIES.len(), random)];
    [identity.certificate_pem(), identity.key_pem(), identity.authority_pem()].map(str::to_owned)
}

/// Places in a header of what covers what, in bytes.
const BODY_LENGTH_AT: usize = 104;
const PAYLOAD_LENGTH_AT: usize = 108;
const BODY_CHECKSUM_AT: usize = 112;
const HEADER_CHECKSUM_AT: usize = 124;

fn word_at(bytes: &[u8], at: usize) -> usize {
    let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    usize::try_from(u32::from_le_bytes(word)).expect("32 bits fit")
}

fn put_word(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Makes the lengths and checksums of all frames right, as far as they reach.
fn seal_frames(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(frame) = bytes.get_mut(at..).filter(|rest| rest.len() >= HEADER_BYTES) {
        let behind = frame.len() - HEADER_BYTES;
        let mut body = word_at(frame, BODY_LENGTH_AT);
        // The last frame's body ends where the input ends.
        if body > behind {
            body = behind;
            put_word(frame, BODY_LENGTH_AT, u32::try_from(body).expect("a short input"));
        }
        let checksum = match body {
            0 => 0,
            _ => crc32c(&frame[HEADER_BYTES..HEADER_BYTES + body]),
        };
        put_word(frame, BODY_CHECKSUM_AT, checksum);
        let checksum = crc32c(&frame[..HEADER_CHECKSUM_AT]);
        put_word(frame, HEADER_CHECKSUM_AT, checksum);
        at += HEADER_BYTES + body + word_at(frame, PAYLOAD_LENGTH_AT).min(behind - body);
    }
}

/// What a decoder makes of `input`, at once and in pieces, which must be the same.
fn read_frames(input: &[u8], guard: Option<Guard>) -> u64 {
    let (frames, error) = decode(input, guard, usize::MAX);
    let piece = 1 + input.len() % 61;
    let in_pieces = decode(input, guard, piece);
    assert_eq!((&frames, &error), (&in_pieces.0, &in_pieces.1), "pieces of {piece} bytes");
    for (frame, bytes) in &frames {
        assert_eq!(&again(frame), bytes, "a frame has one form");
    }
    let kinds: Vec<_> =
        frames.iter().map(|(frame, _)| std::mem::discriminant(&frame.message)).collect();
    let last = frames.last().map(|(frame, _)| kind_of(frame));
    outcome(&(kinds.len().min(3), last, error))
}

type Decoded = (Vec<(Frame, Vec<u8>)>, Option<wire::FrameError>);

fn decode(input: &[u8], guard: Option<Guard>, piece: usize) -> Decoded {
    let mut decoder = Decoder::new();
    if let Some(guard) = guard {
        decoder.open(guard);
    }
    let (mut frames, mut own, mut at) = (Vec::new(), Vec::new(), 0);
    while at < input.len() {
        let end = input.len().min(at.saturating_add(piece));
        match decoder.want() {
            Want::Payload(length) => {
                let count = length.min(end - at);
                decoder.payload_taken(count);
                at += count;
            }
            Want::Header(length) | Want::Body(length) => {
                // Never beyond what is wanted, so that a frame's own bytes are known.
                let skips = matches!(decoder.want(), Want::Header(HEADER_BYTES));
                if skips {
                    own.clear();
                }
                let offered = &input[at..end.min(at + length)];
                match decoder.receive(offered) {
                    Ok((taken, frame)) => {
                        assert!(taken > 0, "no progress");
                        own.extend_from_slice(&offered[..taken]);
                        at += taken;
                        frames.extend(frame.map(|frame| (frame, own.clone())));
                    }
                    Err(error) => {
                        assert_eq!(decoder.receive(&[0]), Err(error), "an error lasts");
                        return (frames, Some(error));
                    }
                }
            }
        }
    }
    (frames, None)
}

fn kind_of(frame: &Frame) -> (u8, String) {
    let name = |text: String| {
        text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or("").to_owned()
    };
    match &frame.message {
        Message::Node(message) => (0, name(format!("{message:?}"))),
        Message::Member { message, .. } => (1, name(format!("{message:?}"))),
        Message::Shard { message, .. } => (2, name(format!("{message:?}"))),
    }
}

fn again(frame: &Frame) -> Vec<u8> {
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

/// A few right frames, one behind the other; those of the other kinds are in the corpus.
fn frames(random: &mut Prng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(3) {
        frame(&mut bytes, random);
    }
    bytes
}

fn frame(bytes: &mut Vec<u8>, random: &mut Prng) {
    let resource = ResourceId(random.next_u64());
    let (epoch, sequence) = (Epoch(random.next_u64()), random.next_u64());
    let volume = VolumeId(low(random.next_u64()).into());
    let count = 1 + u32::from(low(random.next_u64()) % 8);
    let span = Span::new(random.below(1 << 40), count).expect("a short span");
    let ballot = Ballot { round: random.next_u64(), node: NodeId(7) };
    let runs = (0..random.below(20)).map(|at| (at * 10, at * 10 + 5)).collect();
    let payload = vec![low(sequence); usize::try_from(span.length_bytes()).expect("a short span")];
    let mut shard = |message: &ShardMessage, payload: &[u8]| {
        encode_shard(bytes, resource, 3, 1, message, Payload::checked(payload));
        bytes.extend_from_slice(payload);
    };
    match random.below(8) {
        0 => {
            let (cut, flags) = (random.next_u64(), WriteFlags::default());
            let message =
                ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin: None };
            shard(&message, &payload);
        }
        1 => shard(&ShardMessage::Retire { epoch, upto: sequence, ahead: runs }, &[]),
        2 => {
            let target = NodeId(2);
            shard(&ShardMessage::Clean { epoch, target, volume, runs }, &[]);
        }
        3 => {
            let (id, op, fua, asked) = (RequestId(sequence), Op::Write, true, Epoch(0));
            let (origin, first, history) = (None, false, random.below(3));
            let moment = Moment { reign: epoch, number: sequence };
            let way = (history == 2).then_some((7, moment));
            let message = ShardMessage::Forward {
                id,
                op,
                volume,
                span,
                fua,
                origin,
                asked,
                first,
                history,
                way,
                host: base::HostId(random.below(2).into()),
            };
            shard(&message, &payload);
        }
        4 => {
            shard(&ShardMessage::Data { sequence, ok: true, zero: false, rotten: false }, &payload)
        }
        5 => encode_member(bytes, resource, 0, &MemberMessage::Prepare { ballot }),
        6 => {
            let configuration = Box::new(configuration());
            encode_member(bytes, resource, 0, &MemberMessage::Learn { ballot, configuration });
        }
        _ => encode_node(bytes, 0, &NodeMessage::Ping { number: sequence }),
    }
}

/// Makes the lengths of TLS records right, as far as they reach.
fn seal_records(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(record) = bytes.get_mut(at..).filter(|rest| rest.len() > 5) {
        let behind = record.len() - 5;
        let stated = usize::from(record[3]) << 8 | usize::from(record[4]);
        let length = stated.min(behind);
        let [.., high, low] = u32::try_from(length).expect("two bytes").to_be_bytes();
        (record[3], record[4]) = (high, low);
        at += 5 + length;
    }
}

//! Random values of every type that travels.

use crate::*;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{
    AnswerError, Ballot, ClusterId, Epoch, HostId, Incarnation, Instant, NodeId, Op, Prng,
    RequestId, ResourceId, Span, VolumeId, VoterId,
};

pub(super) fn flag(random: &mut Prng) -> bool {
    random.once_in(2)
}

pub(super) fn options(random: &mut Prng) -> Options {
    Options {
        protocol: [Protocol::B, Protocol::C][random.below(2) as usize],
        durability: [Durability::Flush, Durability::WriteThrough][random.below(2) as usize],
        quorum: [Quorum::Majority, Quorum::Off][random.below(2) as usize],
        on_no_quorum: [OnNoQuorum::SuspendIo, OnNoQuorum::IoError][random.below(2) as usize],
        on_io_error: [OnIoError::Detach, OnIoError::PassOn][random.below(2) as usize],
        read_policy: [
            ReadPolicy::PreferLocal,
            ReadPolicy::RoundRobin,
            ReadPolicy::LeastPending,
            ReadPolicy::LatencyAware,
            ReadPolicy::Striped,
        ][random.below(5) as usize],
        in_sync_min: 1 + random.below(8) as u8,
        data_checksum: flag(random),
        after_split_brain: [
            AfterSplitBrain::Disconnect,
            AfterSplitBrain::DiscardYounger,
            AfterSplitBrain::DiscardOlder,
            AfterSplitBrain::DiscardLeastChanges,
            AfterSplitBrain::DiscardZeroChanges,
            AfterSplitBrain::DiscardNode(1 + random.below(9) as u16),
        ][random.below(6) as usize],
        resync_rate_max: if flag(random) { (1 << 30) + random.below(1 << 30) } else { 0 },
        resync_rate_min: if flag(random) { (1 << 20) + random.below(1 << 20) } else { 0 },
    }
}

pub(super) fn stretch(random: &mut Prng) -> Stretch {
    Stretch {
        id: random.id(),
        ballot: Ballot { round: random.below(99), node: NodeId(random.below(9) as u16) },
        epoch: Epoch(random.below(1 << 40)),
        at_ms: random.below(1 << 42),
    }
}

pub(super) fn configuration(random: &mut Prng) -> Configuration {
    let reign = random.below(1 << 40);
    let mut node = 0;
    let members: Vec<MemberEntry> = (0..random.below(9))
        .map(|_| {
            node += 1 + random.below(5) as u16;
            let witness = random.once_in(4);
            MemberEntry {
                node: NodeId(node),
                kind: if witness { MemberKind::Witness } else { MemberKind::Replica },
                voter: VoterId(random.id()),
                in_sync: !witness && flag(random),
                incarnation: Incarnation(random.id()),
            }
        })
        .collect();
    let mut volume = 0;
    let volumes: Vec<VolumeEntry> = (0..random.below(VOLUMES_MAX as u64 + 1))
        .map(|_| {
            volume += 1 + random.below(3) as u16;
            let block_bytes = [512, 4096][random.below(2) as usize];
            let sectors = (1 + random.below(1 << 40)) * u64::from(block_bytes / 512);
            let grows_to = flag(random).then(|| sectors + 8 * (1 + random.below(1 << 40)));
            VolumeEntry { volume: VolumeId(volume), sectors, grows_to, block_bytes }
        })
        .collect();
    let reservations = reservations(&volumes, random);
    let mut unknown = Vec::new();
    if flag(random) {
        for tag in [5u16, 31] {
            let length = random.below(600) as u16;
            unknown.extend_from_slice(&tag.to_le_bytes());
            unknown.extend_from_slice(&length.to_le_bytes());
            unknown.extend((0..length).map(|_| random.next_u64() as u8));
        }
    }
    Configuration {
        epoch: Epoch(reign + random.below(1000)),
        reign: Epoch(reign),
        primary: flag(random).then(|| NodeId(1 + random.below(100) as u16)),
        recovering: flag(random),
        lost: Epoch(random.below(reign + 1)),
        fork: random.below(3),
        feature_level: random.below(10) as u32,
        members,
        volumes,
        options: options(random),
        lineage: (0..random.below(17) * random.below(2)).map(|_| stretch(random)).collect(),
        held: Held { requests: flag(random), resync: flag(random) },
        verify: flag(random).then(|| verify_entry(random)),
        reservations,
        unknown,
    }
}

fn host(random: &mut Prng) -> HostId {
    HostId(u128::from(random.next_u64()) << 64 | 1)
}

fn reservations(volumes: &[VolumeEntry], random: &mut Prng) -> Vec<VolumeReservations> {
    let one = |volume: VolumeId, random: &mut Prng| {
        let mut registrants: Vec<Registrant> = (0..random.below(4))
            .map(|_| Registrant { host: host(random), key: 1 + random.below(1 << 60) })
            .collect();
        registrants.sort_by_key(|registrant| registrant.host);
        let kind = ReservationKind::of(1 + random.below(6) as u8).expect("six kinds");
        let held = registrants.first().filter(|_| flag(random)).map(|first| Reservation {
            kind,
            holder: if kind.is_of_all() { HostId(0) } else { first.host },
        });
        let ways = [TakenBy::Unregister, TakenBy::Release, TakenBy::Preempt, TakenBy::Clear];
        let taken = flag(random)
            .then(|| Taken { by: ways[random.below(4) as usize], place: random.below(4) as u8 });
        VolumeReservations {
            volume,
            began: Epoch(1 + random.below(1 << 40)),
            generation: random.next_u64() as u32,
            persists: flag(random),
            held,
            taken,
            registrants,
        }
    };
    let few = volumes.iter().take(random.below(4) as usize * random.below(2) as usize);
    few.map(|entry| one(entry.volume, random)).collect()
}

fn command(random: &mut Prng) -> ReservationCommand {
    use ReservationCommand as Command;
    let (current, key) = (random.next_u64(), random.next_u64());
    let kind = ReservationKind::of(1 + random.below(6) as u8).expect("six kinds");
    let persists = [None, Some(false), Some(true)][random.below(3) as usize];
    let known = flag(random).then_some(current);
    [
        Command::Register { key, persists },
        Command::Replace { current: known, key, persists },
        Command::Unregister { current: known, persists },
        Command::Acquire { current, kind },
        Command::Preempt { current, others: key, kind },
        Command::Release { current, kind },
        Command::Clear { current },
        Command::Report,
    ][random.below(8) as usize]
}

fn verify_entry(random: &mut Prng) -> VerifyEntry {
    let states = [VerifyState::Running, VerifyState::Stopped, VerifyState::Done];
    VerifyEntry {
        state: states[random.below(3) as usize],
        began: Epoch(1 + random.below(1 << 40)),
        volume: VolumeId(random.below(1 << 16) as u16),
        next: random.next_u64(),
        repaired: random.next_u64(),
        at_ms: random.next_u64(),
        partial: flag(random),
    }
}

/// Number of kinds that `shard_message`, `member_message` and `node_message` take.
pub(super) const SHARD_KINDS: u64 = 19;
pub(super) const MEMBER_KINDS: u64 = 18;
pub(super) const NODE_KINDS: u64 = 11;

fn node(random: &mut Prng) -> NodeId {
    NodeId(1 + random.below(65_000) as u16)
}

fn span(random: &mut Prng) -> Span {
    Span::new(random.below(1 << 50), 1 + random.below(64) as u32).unwrap()
}

fn ballot(random: &mut Prng) -> Ballot {
    Ballot { round: random.next_u64(), node: node(random) }
}

fn pair(random: &mut Prng) -> (u64, u64) {
    (random.next_u64(), random.next_u64())
}

fn run(random: &mut Prng) -> (u64, u64) {
    let first = random.below(1 << 50);
    (first, first + 1 + random.below(1 << 20))
}

/// A message of the `kind`th kind, and the length in bytes of the payload that belongs to it.
pub(super) fn shard_message(kind: u64, random: &mut Prng) -> (ShardMessage, usize) {
    let epoch = Epoch(random.next_u64());
    let sequence = random.next_u64();
    let volume = VolumeId(random.next_u64() as u16);
    let span = span(random);
    let span_bytes = span.length_bytes() as usize;
    let (ok, zero) = (flag(random), flag(random));
    match kind {
        0 => {
            let flags = WriteFlags {
                fua: flag(random),
                zero,
                unmap: flag(random),
                resync: flag(random),
                early: flag(random),
                undone: flag(random),
            };
            let (cut, origin) = (random.next_u64(), origin(random));
            let message = ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin };
            (message, if zero { 0 } else { span_bytes })
        }
        1 => (ShardMessage::Received { sequence }, 0),
        2 => (ShardMessage::Written { sequence, ok, in_place: ok && flag(random) }, 0),
        3 => {
            let ahead = (0..random.below(5)).map(|_| run(random)).collect();
            (ShardMessage::Retire { epoch, upto: sequence, ahead }, 0)
        }
        4 => (ShardMessage::Settled { epoch, volume, span }, 0),
        5 => {
            let runs = (0..random.below(20)).map(|_| run(random)).collect();
            (ShardMessage::Clean { epoch, target: node(random), volume, runs }, 0)
        }
        6 => (ShardMessage::Flush { epoch, sequence }, 0),
        7 => (ShardMessage::Flushed { sequence, ok }, 0),
        8 => (ShardMessage::Read { epoch, sequence, volume, span }, 0),
        9 => {
            let bytes = if ok && !zero { span_bytes } else { 0 };
            (ShardMessage::Data { sequence, ok, zero, rotten: false }, bytes)
        }
        10 => (ShardMessage::Compare { epoch, sequence, volume, span, resync: ok }, 0),
        11 => {
            let hash = ok.then(|| u128::from(random.next_u64()) << 64 | u128::from(epoch.0));
            (ShardMessage::Hash { sequence, hash }, 0)
        }
        12 => {
            let bits_of = ok.then(|| node(random));
            (ShardMessage::Gather { epoch, sequence, bits_of }, 0)
        }
        13 => {
            let runs = (0..random.below(20))
                .map(|_| {
                    let (first, end) = run(random);
                    DoubtRun { volume, first, end, compare: flag(random), hot: flag(random) }
                })
                .collect();
            (ShardMessage::Doubt { sequence, runs, last: ok }, 0)
        }
        14 => forward(span, random),
        15 => forwarded(span, random),
        16 => (ShardMessage::Stale { epoch }, 0),
        17 => (ShardMessage::Remembers { sequence, memory: memory(random) }, 0),
        _ => (ShardMessage::Remember { epoch, first: ok, memory: memory(random) }, 0),
    }
}

fn origin(random: &mut Prng) -> Option<WriteOrigin> {
    let name = WriteName { session: 1 + random.below(1 << 60), number: 1 + random.below(1 << 40) };
    let answered_below = name.number - random.below(name.number.min(1 << 32));
    flag(random).then_some(WriteOrigin { name, answered_below })
}

fn memory(random: &mut Prng) -> Memory {
    let since = flag(random).then(|| Epoch(1 + random.below(1 << 40)));
    let answered = (0..random.below(5)).map(|_| run(random)).collect();
    let writes = (0..random.below(20))
        .map(|_| NamedWrite {
            name: WriteName { session: 1 + random.below(1 << 60), number: random.next_u64() },
            volume: VolumeId(random.next_u64() as u16),
            span: span(random),
        })
        .collect();
    Memory { since, answered, writes }
}

fn forward(span: Span, random: &mut Prng) -> (ShardMessage, usize) {
    let (id, volume) = (RequestId(random.next_u64()), VolumeId(random.next_u64() as u16));
    let (ok, span_bytes) = (flag(random), span.length_bytes() as usize);
    let ops = [
        (Op::Read, 0),
        (Op::Write, span_bytes),
        (Op::Zero { unmap: false }, 0),
        (Op::Zero { unmap: true }, 0),
        (Op::Flush, 0),
    ];
    let (op, bytes) = ops[random.below(5) as usize];
    let origin = origin(random);
    let asked = Epoch(if origin.is_some() { random.below(1 << 40) } else { 0 });
    let first = origin.is_some() && flag(random);
    let history = if flag(random) { random.next_u64() } else { 0 };
    let writes = matches!(op, Op::Write | Op::Zero { .. });
    let way = moment(random).filter(|_| writes).map(|moment| (random.next_u64() as u32, moment));
    let fua = ok;
    let host = if flag(random) { host(random) } else { HostId(0) };
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
        host,
    };
    (message, bytes)
}

fn moment(random: &mut Prng) -> Option<Moment> {
    let moment = Moment { reign: Epoch(random.next_u64()), number: random.next_u64() };
    flag(random).then_some(moment)
}

fn forwarded(span: Span, random: &mut Prng) -> (ShardMessage, usize) {
    let (id, zero, whole) = (RequestId(random.next_u64()), flag(random), flag(random));
    let span_bytes = span.length_bytes() as usize;
    let results = [
        None,
        Some(Ok(())),
        Some(Err(AnswerError::OutOfRange)),
        Some(Err(AnswerError::NoQuorum)),
        Some(Err(AnswerError::Io)),
        Some(Err(AnswerError::SessionLost)),
        Some(Err(AnswerError::Gone)),
        Some(Err(AnswerError::Path)),
        Some(Err(AnswerError::Reserved)),
    ];
    let result = results[random.below(9) as usize];
    let bytes = if result == Some(Ok(())) && !zero && whole { span_bytes } else { 0 };
    let asked = Epoch(if result.is_none() { random.below(1 << 40) } else { 0 });
    let moment = moment(random);
    (ShardMessage::Forwarded { id, result, zero, asked, moment }, bytes)
}

/// A message of the `kind`th kind.
fn wire_seen(random: &mut Prng) -> crate::Seen {
    crate::Seen {
        node: node(random),
        voter: VoterId(random.next_u64()),
        life: life(random),
        epoch: Epoch(random.next_u64()),
    }
}

fn life(random: &mut Prng) -> crate::Life {
    let (number, process) = pair(random);
    crate::Life { number, process, writes: random.next_u64() }
}

pub(super) fn member_message(kind: u64, random: &mut Prng) -> MemberMessage {
    let voter = VoterId(random.next_u64());
    let epoch = Epoch(random.next_u64());
    let sent = Instant(random.next_u64());
    let ballot = ballot(random);
    let value = Box::new(configuration(random));
    match kind {
        0 => MemberMessage::Hello {
            known: flag(random).then_some((ballot, value)),
            voter,
            incarnation: Incarnation(random.next_u64()),
            lives: (0..random.below(65) * random.below(2)).map(|_| life(random)).collect(),
            seen: flag(random).then(|| wire_seen(random)),
            process: random.next_u64(),
            attached: flag(random),
            feature_level: random.next_u64() as u32,
        },
        1 => MemberMessage::Prepare { ballot },
        2 => {
            let accepted = flag(random).then_some((ballot, value));
            MemberMessage::Promise { ballot, voter, accepted }
        }
        3 => MemberMessage::Accept { ballot, configuration: value },
        4 => MemberMessage::Accepted { ballot, epoch, voter },
        5 => {
            let reasons = [
                RefuseReason::Promised(ballot),
                RefuseReason::Leased { holder: node(random), left: random.next_u64() },
                RefuseReason::NotVoter,
            ];
            MemberMessage::Refused { ballot, reason: reasons[random.below(3) as usize] }
        }
        6 => MemberMessage::Learn { ballot, configuration: value },
        7 => MemberMessage::Learned { epoch },
        8 => {
            let generation = pair(random);
            let seen = (0..random.below(4)).map(|_| wire_seen(random)).collect();
            MemberMessage::Heartbeat { ballot, epoch, sent, generation, seen }
        }
        9 => {
            let (generation, wants) = (pair(random), flag(random));
            MemberMessage::HeartbeatAnswer { ballot, sent, voter, epoch, generation, wants }
        }
        10 => MemberMessage::Release { ballot },
        11 => MemberMessage::WantPrimary,
        12 => MemberMessage::HandOver { epoch },
        13 => MemberMessage::Diverged { sectors: random.next_u64() },
        14 => MemberMessage::Invalidate { incarnation: Incarnation(voter.0) },
        15 => MemberMessage::Reserve {
            number: voter.0,
            volume: VolumeId(random.next_u64() as u16),
            host: host(random),
            command: command(random),
        },
        16 => MemberMessage::Reserved {
            number: voter.0,
            result: if flag(random) { Ok(epoch) } else { Err(ReservationRefusal::Conflict) },
        },
        _ => {
            MemberMessage::Heard { seen: (0..random.below(4)).map(|_| wire_seen(random)).collect() }
        }
    }
}

pub(super) fn hello(random: &mut Prng) -> Hello {
    let features_offered = random.next_u64();
    Hello {
        version_min: 1,
        version_max: 1 + random.below(3) as u16,
        features_offered,
        features_required: features_offered & random.next_u64(),
        cluster: ClusterId(random.next_u64()),
        node: node(random),
        process: random.next_u64(),
        stream: random.below(4) as u16,
        streams: 1 << random.below(4),
        unknown: (0..random.below(40)).map(|_| random.next_u64() as u8).collect(),
    }
}

fn lives(random: &mut Prng) -> Vec<ResourceLife> {
    let mut resource = 0;
    let mut next = || {
        resource += 1 + random.below(1 << 50);
        ResourceLife { resource: ResourceId(resource), life: random.next_u64() }
    };
    (0..12).map(|_| next()).collect()
}

/// A voucher with nodes in it; what it says about members ascends.
pub(super) fn voucher(random: &mut Prng) -> Voucher {
    let mut last = 0;
    let mut next = || {
        last += 1 + random.below(500) as u16;
        NodeId(last)
    };
    let (members, nodes): (Vec<_>, Vec<_>) =
        ((0..3).map(|_| next()).collect(), (0..5).map(|_| next()).collect());
    let standing =
        |node| Standing { node, number: 1 + u64::from(node.0), admitted: node.0.is_multiple_of(2) };
    Voucher {
        cluster: ClusterId(random.next_u64()),
        resource: ResourceId(random.next_u64()),
        signer: node(random),
        revision: random.next_u64(),
        fork: random.below(3),
        epoch: base::Epoch(random.next_u64()),
        members,
        standings: nodes.into_iter().map(standing).collect(),
    }
}

fn signed_voucher(random: &mut Prng) -> SignedVoucher {
    let said = voucher(random);
    let mut bytes = |count| (0..count).map(|_| random.next_u64() as u8).collect();
    SignedVoucher {
        resource: said.resource,
        statement: encode_voucher(&said),
        scheme: 0x0403,
        certificate: bytes(200),
        signature: bytes(72),
    }
}

/// A message of the `kind`th kind.
pub(super) fn node_message(kind: u64, random: &mut Prng) -> NodeMessage {
    let number = random.next_u64();
    match kind {
        0 => NodeMessage::Hello(hello(random)),
        1 => NodeMessage::Authenticate {
            step: number as u8,
            proof: (0..random.below(100)).map(|_| random.next_u64() as u8).collect(),
        },
        2 => NodeMessage::Resources { resources: lives(random), last: flag(random) },
        3 => NodeMessage::Ping { number },
        4 => NodeMessage::Pong { number },
        6 => NodeMessage::Joined { resources: lives(random) },
        7 => NodeMessage::Describe { resource: ResourceId(number) },
        8 => NodeMessage::Description {
            resource: ResourceId(number),
            text: (0..random.below(100)).map(|_| random.next_u64() as u8).collect(),
        },
        9 => {
            let resources = lives(random).iter().map(|entry| entry.resource).collect();
            NodeMessage::Deleted { resources }
        }
        10 => NodeMessage::Voucher(signed_voucher(random)),
        _ => {
            let reasons = [
                GoodbyeReason::Stopping,
                GoodbyeReason::Replaced,
                GoodbyeReason::Unwanted,
                GoodbyeReason::NotAuthentic,
                GoodbyeReason::Disagreed,
                GoodbyeReason::Fault,
            ];
            NodeMessage::Goodbye { reason: reasons[random.below(6) as usize] }
        }
    }
}

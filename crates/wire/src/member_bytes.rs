//! `MemberMessage` as the body of a frame.
//!
//! Always: the header's fields are all zero but for its address; each body has one encoding.

use crate::codec::{DecodeError, Put, Reader};
use crate::frame::FrameError;
use crate::header::IGNORABLE;
use crate::member::{LIVES_MAX, Life, Seen};
use crate::register::{decode_configuration, encode_configuration};
use crate::reservation;
use crate::{Configuration, MemberMessage, RefuseReason};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, Instant, NodeId, VolumeId, VoterId};

const HELLO: u16 = 0x0201;
const PREPARE: u16 = 0x0202;
const PROMISE: u16 = 0x0203;
const ACCEPT: u16 = 0x0204;
const ACCEPTED: u16 = 0x0205;
const REFUSED: u16 = 0x0206;
const LEARN: u16 = 0x0207;
const LEARNED: u16 = 0x0208;
/// Generations of others in one heartbeat, at most.
const SEEN_MAX: usize = 64;
const HEARTBEAT: u16 = 0x0209;
const HEARTBEAT_ANSWER: u16 = 0x020a;
const RELEASE: u16 = 0x020b;
const WANT_PRIMARY: u16 = 0x020c;
const HAND_OVER: u16 = 0x020d;
const DIVERGED: u16 = 0x020e;
const INVALIDATE: u16 = 0x020f;
/// Only between nodes that know reservations.
const RESERVE: u16 = 0x0211;
const RESERVED: u16 = 0x0212;
/// Nodes of older releases pass over it.
const HEARD: u16 = 0x0210 | IGNORABLE;

const REASON_PROMISED: u8 = 1;
const REASON_LEASED: u8 = 2;
const REASON_NOT_VOTER: u8 = 3;

/// Whether `kind` is one of those above.
pub(crate) fn is_known(kind: u16) -> bool {
    (HELLO..=INVALIDATE).contains(&kind) || [HEARD, RESERVE, RESERVED].contains(&kind)
}

/// The number of `message`'s kind.
pub(crate) fn kind(message: &MemberMessage) -> u16 {
    match message {
        MemberMessage::Hello { .. } => HELLO,
        MemberMessage::Prepare { .. } => PREPARE,
        MemberMessage::Promise { .. } => PROMISE,
        MemberMessage::Accept { .. } => ACCEPT,
        MemberMessage::Accepted { .. } => ACCEPTED,
        MemberMessage::Refused { .. } => REFUSED,
        MemberMessage::Learn { .. } => LEARN,
        MemberMessage::Learned { .. } => LEARNED,
        MemberMessage::Heartbeat { .. } => HEARTBEAT,
        MemberMessage::HeartbeatAnswer { .. } => HEARTBEAT_ANSWER,
        MemberMessage::Release { .. } => RELEASE,
        MemberMessage::WantPrimary => WANT_PRIMARY,
        MemberMessage::HandOver { .. } => HAND_OVER,
        MemberMessage::Diverged { .. } => DIVERGED,
        MemberMessage::Invalidate { .. } => INVALIDATE,
        MemberMessage::Heard { .. } => HEARD,
        MemberMessage::Reserve { .. } => RESERVE,
        MemberMessage::Reserved { .. } => RESERVED,
    }
}

/// Appends the body of `message`.
pub(crate) fn put_body(message: &MemberMessage, out: &mut Vec<u8>) {
    match message {
        MemberMessage::Hello { .. } => put_hello(message, out),
        MemberMessage::Prepare { ballot } | MemberMessage::Release { ballot } => {
            put_ballot(out, *ballot);
        }
        MemberMessage::Promise { ballot, voter, accepted } => {
            put_ballot(out, *ballot);
            out.put_u64(voter.0);
            put_value(out, accepted.as_ref());
        }
        MemberMessage::Accept { ballot, configuration }
        | MemberMessage::Learn { ballot, configuration } => {
            put_ballot(out, *ballot);
            put_configuration(out, configuration);
        }
        MemberMessage::Accepted { ballot, epoch, voter } => {
            put_ballot(out, *ballot);
            out.put_u64(epoch.0);
            out.put_u64(voter.0);
        }
        MemberMessage::Refused { ballot, reason } => {
            put_ballot(out, *ballot);
            put_reason(out, *reason);
        }
        MemberMessage::Learned { epoch } | MemberMessage::HandOver { epoch } => {
            out.put_u64(epoch.0);
        }
        MemberMessage::Heartbeat { ballot, epoch, sent, generation, seen } => {
            put_ballot(out, *ballot);
            out.put_u64(epoch.0);
            out.put_u64(sent.0);
            put_pair(out, *generation);
            put_all_seen(out, seen);
        }
        MemberMessage::Heard { seen } => put_all_seen(out, seen),
        MemberMessage::HeartbeatAnswer { ballot, sent, voter, epoch, generation, wants } => {
            put_ballot(out, *ballot);
            out.put_u64(sent.0);
            out.put_u64(voter.0);
            out.put_u64(epoch.0);
            put_pair(out, *generation);
            out.put_bool(*wants);
        }
        MemberMessage::WantPrimary => {}
        MemberMessage::Diverged { sectors } => out.put_u64(*sectors),
        MemberMessage::Invalidate { incarnation } => out.put_u64(incarnation.0),
        MemberMessage::Reserve { number, volume, host, command } => {
            out.put_u64(*number);
            out.put_u16(volume.0);
            reservation::put_host(out, *host);
            reservation::put_command(out, command);
        }
        MemberMessage::Reserved { number, result } => {
            out.put_u64(*number);
            reservation::put_result(out, *result);
        }
    }
}

/// The message of this kind that `body` holds.
pub(crate) fn take(kind: u16, body: &[u8]) -> Result<MemberMessage, FrameError> {
    let mut body = Reader::new(body);
    let message = match kind {
        HELLO => take_hello(&mut body)?,
        PREPARE => MemberMessage::Prepare { ballot: take_ballot(&mut body)? },
        PROMISE => MemberMessage::Promise {
            ballot: take_ballot(&mut body)?,
            voter: VoterId(body.u64()?),
            accepted: take_value(&mut body)?,
        },
        ACCEPT => MemberMessage::Accept {
            ballot: take_ballot(&mut body)?,
            configuration: take_configuration(&mut body)?,
        },
        ACCEPTED => MemberMessage::Accepted {
            ballot: take_ballot(&mut body)?,
            epoch: Epoch(body.u64()?),
            voter: VoterId(body.u64()?),
        },
        REFUSED => MemberMessage::Refused {
            ballot: take_ballot(&mut body)?,
            reason: take_reason(&mut body)?,
        },
        LEARN => MemberMessage::Learn {
            ballot: take_ballot(&mut body)?,
            configuration: take_configuration(&mut body)?,
        },
        LEARNED => MemberMessage::Learned { epoch: Epoch(body.u64()?) },
        HEARTBEAT => MemberMessage::Heartbeat {
            ballot: take_ballot(&mut body)?,
            epoch: Epoch(body.u64()?),
            sent: Instant(body.u64()?),
            generation: take_pair(&mut body)?,
            seen: take_seen(&mut body)?,
        },
        HEARTBEAT_ANSWER => MemberMessage::HeartbeatAnswer {
            ballot: take_ballot(&mut body)?,
            sent: Instant(body.u64()?),
            voter: VoterId(body.u64()?),
            epoch: Epoch(body.u64()?),
            generation: take_pair(&mut body)?,
            wants: body.bool()?,
        },
        RELEASE => MemberMessage::Release { ballot: take_ballot(&mut body)? },
        WANT_PRIMARY => MemberMessage::WantPrimary,
        HAND_OVER => MemberMessage::HandOver { epoch: Epoch(body.u64()?) },
        DIVERGED => MemberMessage::Diverged { sectors: body.u64()? },
        HEARD => MemberMessage::Heard { seen: take_seen(&mut body)? },
        INVALIDATE => MemberMessage::Invalidate { incarnation: Incarnation(body.u64()?) },
        RESERVE => MemberMessage::Reserve {
            number: body.u64()?,
            volume: VolumeId(body.u16()?),
            host: reservation::take_host(&mut body)?,
            command: reservation::take_command(&mut body)?,
        },
        RESERVED => MemberMessage::Reserved {
            number: body.u64()?,
            result: reservation::take_result(&mut body)?,
        },
        other => return Err(FrameError::UnknownKind(other)),
    };
    body.finish()?;
    Ok(message)
}

fn put_hello(message: &MemberMessage, out: &mut Vec<u8>) {
    let MemberMessage::Hello {
        known,
        voter,
        incarnation,
        lives,
        seen,
        process,
        attached,
        feature_level,
    } = message
    else {
        return;
    };
    out.put_u64(voter.0);
    out.put_u64(incarnation.0);
    out.put_u64(*process);
    out.put_bool(*attached);
    out.put_u32(*feature_level);
    let lives = &lives[lives.len().saturating_sub(LIVES_MAX)..];
    out.put_u16(u16::try_from(lives.len()).expect("64 at most"));
    for life in lives {
        put_life(out, life);
    }
    out.put_bool(seen.is_some());
    if let Some(seen) = seen {
        put_seen(out, seen);
    }
    put_value(out, known.as_ref());
}

fn take_hello(body: &mut Reader<'_>) -> Result<MemberMessage, DecodeError> {
    Ok(MemberMessage::Hello {
        voter: VoterId(body.u64()?),
        incarnation: Incarnation(body.u64()?),
        process: body.u64()?,
        attached: body.bool()?,
        feature_level: body.u32()?,
        lives: take_lives(body)?,
        seen: if body.bool()? { Some(take_one_seen(body)?) } else { None },
        known: take_value(body)?,
    })
}

fn put_ballot(out: &mut Vec<u8>, ballot: Ballot) {
    out.put_u64(ballot.round);
    out.put_u16(ballot.node.0);
}

fn take_ballot(body: &mut Reader<'_>) -> Result<Ballot, DecodeError> {
    Ok(Ballot { round: body.u64()?, node: NodeId(body.u16()?) })
}

/// What a primary remembers of others, to the end of the body.
fn take_seen(body: &mut Reader<'_>) -> Result<Vec<Seen>, FrameError> {
    let mut all = Vec::new();
    while !body.rest().is_empty() {
        if all.len() == SEEN_MAX {
            return Err(FrameError::Malformed("too much is remembered"));
        }
        all.push(take_one_seen(body)?);
    }
    Ok(all)
}

fn put_all_seen(out: &mut Vec<u8>, all: &[Seen]) {
    for seen in all.iter().take(SEEN_MAX) {
        put_seen(out, seen);
    }
}

fn put_seen(out: &mut Vec<u8>, seen: &Seen) {
    out.put_u16(seen.node.0);
    out.put_u64(seen.voter.0);
    put_life(out, &seen.life);
    out.put_u64(seen.epoch.0);
}

fn take_one_seen(body: &mut Reader<'_>) -> Result<Seen, DecodeError> {
    let (node, voter) = (NodeId(body.u16()?), VoterId(body.u64()?));
    Ok(Seen { node, voter, life: take_life(body)?, epoch: Epoch(body.u64()?) })
}

fn put_life(out: &mut Vec<u8>, life: &Life) {
    out.put_u64(life.number);
    out.put_u64(life.process);
    out.put_u64(life.writes);
}

fn take_life(body: &mut Reader<'_>) -> Result<Life, DecodeError> {
    Ok(Life { number: body.u64()?, process: body.u64()?, writes: body.u64()? })
}

fn take_lives(body: &mut Reader<'_>) -> Result<Vec<Life>, DecodeError> {
    let count = usize::from(body.u16()?);
    if count > LIVES_MAX {
        return Err(DecodeError::Damaged("more than 64 lives"));
    }
    (0..count).map(|_| take_life(body)).collect()
}

fn put_pair(out: &mut Vec<u8>, pair: (u64, u64)) {
    out.put_u64(pair.0);
    out.put_u64(pair.1);
}

fn take_pair(body: &mut Reader<'_>) -> Result<(u64, u64), DecodeError> {
    Ok((body.u64()?, body.u64()?))
}

fn put_configuration(out: &mut Vec<u8>, configuration: &Configuration) {
    let at = out.len();
    out.put_u16(0);
    encode_configuration(configuration, out);
    let length = u16::try_from(out.len() - at - 2).expect("a configuration is 5 KiB at most");
    out[at..at + 2].copy_from_slice(&length.to_le_bytes());
}

fn take_configuration(body: &mut Reader<'_>) -> Result<Box<Configuration>, DecodeError> {
    let length = body.u16()?;
    Ok(Box::new(decode_configuration(body.bytes(usize::from(length))?)?))
}

fn put_value(out: &mut Vec<u8>, value: Option<&(Ballot, Box<Configuration>)>) {
    out.put_bool(value.is_some());
    if let Some((ballot, configuration)) = value {
        put_ballot(out, *ballot);
        put_configuration(out, configuration);
    }
}

fn take_value(body: &mut Reader<'_>) -> Result<Option<(Ballot, Box<Configuration>)>, DecodeError> {
    if !body.bool()? {
        return Ok(None);
    }
    Ok(Some((take_ballot(body)?, take_configuration(body)?)))
}

fn put_reason(out: &mut Vec<u8>, reason: RefuseReason) {
    match reason {
        RefuseReason::Promised(ballot) => {
            out.put_u8(REASON_PROMISED);
            put_ballot(out, ballot);
        }
        RefuseReason::Leased { holder, left } => {
            out.put_u8(REASON_LEASED);
            out.put_u16(holder.0);
            out.put_u64(left);
        }
        RefuseReason::NotVoter => out.put_u8(REASON_NOT_VOTER),
    }
}

fn take_reason(body: &mut Reader<'_>) -> Result<RefuseReason, DecodeError> {
    match body.u8()? {
        REASON_PROMISED => Ok(RefuseReason::Promised(take_ballot(body)?)),
        REASON_LEASED => {
            Ok(RefuseReason::Leased { holder: NodeId(body.u16()?), left: body.u64()? })
        }
        REASON_NOT_VOTER => Ok(RefuseReason::NotVoter),
        _ => Err(DecodeError::Damaged("an unknown reason")),
    }
}

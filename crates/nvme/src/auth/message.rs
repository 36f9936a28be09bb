//! The messages of an authentication, which AUTH_Send and AUTH_Receive carry.
//!
//! Always: no length that a message says is believed before so many bytes are there.

use super::group::Group;
use super::proof::Hash;
use crate::bytes::{set, u16_at, u32_at};
use alloc::vec::Vec;

/// Bytes of the longest message: a reply in the largest group, and room for lists of further protocols.
pub(crate) const AUTH_BYTES_MAX: usize = 4096;

const COMMON: u8 = 0;
const DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// Bytes of a challenge, a reply and a success before what varies.
const FIXED: usize = 16;
/// Bytes of what is said of one protocol.
const PROTOCOL: usize = 64;
/// Hashes, or groups, that it can name.
const NAMED_MAX: u8 = 30;

/// Why an authentication failed. The value is its reason code explanation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Reason {
    /// The response is not that of who knows the secret; or a proof is asked for that cannot be given.
    Failed = 1,
    /// Another protocol is asked for.
    NotUsable = 2,
    /// A secure channel is asked for, which is not offered.
    Concatenation = 3,
    /// None of the hashes is known.
    NoHash = 4,
    /// None of the groups is known.
    NoGroup = 5,
    /// A message is not as it must be.
    Payload = 6,
    /// Another message is due.
    Message = 7,
}

impl Reason {
    fn of_id(id: u8) -> Reason {
        use Reason::{Concatenation, Message, NoGroup, NoHash, NotUsable, Payload};
        let all = [NotUsable, Concatenation, NoHash, NoGroup, Payload, Message];
        all.into_iter().find(|&one| one as u8 == id).unwrap_or(Reason::Failed)
    }
}

/// A host offers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Negotiate {
    pub(super) transaction: u16,
    /// In our order, and of the groups those in which a controller takes part.
    pub(super) hashes: Vec<Hash>,
    pub(super) groups: Vec<Group>,
}

/// A controller challenges.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Challenge {
    pub(super) transaction: u16,
    pub(super) hash: Hash,
    pub(super) group: Group,
    pub(super) sequence: u32,
    pub(super) value: Vec<u8>,
    pub(super) public: Vec<u8>,
}

/// A host responds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reply {
    pub(super) transaction: u16,
    pub(super) response: Vec<u8>,
    /// What it challenges the controller with, if it does: sequence number and value.
    pub(super) challenge: Option<(u32, Vec<u8>)>,
    pub(super) public: Vec<u8>,
}

/// What a host says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FromHost {
    Negotiate(Negotiate),
    Reply(Reply),
    Success2 { transaction: u16 },
    Failure2(Reason),
}

/// What a controller says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FromController {
    Challenge(Challenge),
    Success1 { transaction: u16, response: Option<Vec<u8>> },
    Failure1(Reason),
}

fn start(bytes: usize, kind: u8, id: u8, transaction: u16) -> Vec<u8> {
    let mut message = crate::bytes::zeroes(bytes);
    set(&mut message, 0, &[kind, id]);
    set(&mut message, 4, &transaction.to_le_bytes());
    message
}

fn length_u16(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).expect("no group is longer").to_le_bytes()
}

fn length_u8(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len()).expect("no hash is longer")
}

/// The message of either side that it failed.
pub(super) fn failure(is_host: bool, transaction: u16, reason: Reason) -> Vec<u8> {
    let mut message = start(8, COMMON, if is_host { FAILURE2 } else { FAILURE1 }, transaction);
    set(&mut message, 6, &[1, reason as u8]);
    message
}

impl Negotiate {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut message = start(8 + PROTOCOL, COMMON, NEGOTIATE, self.transaction);
        message[7] = 1;
        message[8] = DHCHAP;
        message[10] = u8::try_from(self.hashes.len()).expect("three at most");
        message[11] = u8::try_from(self.groups.len()).expect("six at most");
        self.hashes.iter().enumerate().for_each(|(at, &hash)| message[12 + at] = hash as u8);
        self.groups.iter().enumerate().for_each(|(at, &group)| message[42 + at] = group as u8);
        message
    }

    fn parse(bytes: &[u8]) -> Result<Negotiate, Reason> {
        if bytes.len() < 8 || bytes.len() < 8 + PROTOCOL * usize::from(bytes[7]) {
            return Err(Reason::Payload);
        }
        if bytes[6] != 0 {
            return Err(Reason::Concatenation);
        }
        let mut protocols = bytes[8..].chunks_exact(PROTOCOL).take(usize::from(bytes[7]));
        let ours = protocols.find(|protocol| protocol[0] == DHCHAP).ok_or(Reason::NotUsable)?;
        let (hashes, groups) = (ours[2], ours[3]);
        if hashes > NAMED_MAX || groups > NAMED_MAX {
            return Err(Reason::Payload);
        }
        let (hashes, groups) =
            (&ours[4..][..usize::from(hashes)], &ours[34..][..usize::from(groups)]);
        let hashes = Hash::ALL.into_iter().filter(|&one| hashes.contains(&(one as u8)));
        let groups = Group::SERVED.into_iter().filter(|&one| groups.contains(&(one as u8)));
        let (hashes, groups) = (hashes.collect(), groups.collect());
        Ok(Negotiate { transaction: u16_at(bytes, 4), hashes, groups })
    }
}

impl Challenge {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut message = start(FIXED, DHCHAP, CHALLENGE, self.transaction);
        message[6] = length_u8(&self.value);
        set(&mut message, 8, &[self.hash as u8, self.group as u8]);
        set(&mut message, 10, &length_u16(&self.public));
        set(&mut message, 12, &self.sequence.to_le_bytes());
        message.extend_from_slice(&self.value);
        message.extend_from_slice(&self.public);
        message
    }

    fn parse(bytes: &[u8]) -> Result<Challenge, Reason> {
        let hash = Hash::of_id(bytes[8]).ok_or(Reason::NoHash)?;
        let group = Group::of_id(bytes[9]).ok_or(Reason::NoGroup)?;
        let (length, public) = (usize::from(bytes[6]), usize::from(u16_at(bytes, 10)));
        let rest = bytes[FIXED..].get(..length + public).ok_or(Reason::Payload)?;
        if length != hash.bytes() || public != group.bytes() {
            return Err(Reason::Payload);
        }
        Ok(Challenge {
            transaction: u16_at(bytes, 4),
            hash,
            group,
            sequence: u32_at(bytes, 12),
            value: rest[..length].to_vec(),
            public: rest[length..].to_vec(),
        })
    }
}

impl Reply {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut message = start(FIXED, DHCHAP, REPLY, self.transaction);
        message[6] = length_u8(&self.response);
        set(&mut message, 10, &length_u16(&self.public));
        message.extend_from_slice(&self.response);
        match &self.challenge {
            None => message.extend(core::iter::repeat_n(0, self.response.len())),
            Some((sequence, value)) => {
                message[8] = 1;
                set(&mut message, 12, &sequence.to_le_bytes());
                message.extend_from_slice(value);
            }
        }
        message.extend_from_slice(&self.public);
        message
    }

    fn parse(bytes: &[u8]) -> Result<Reply, Reason> {
        let (length, public) = (usize::from(bytes[6]), usize::from(u16_at(bytes, 10)));
        let rest = bytes[FIXED..].get(..2 * length + public).ok_or(Reason::Payload)?;
        let challenge = (u32_at(bytes, 12), rest[length..2 * length].to_vec());
        Ok(Reply {
            transaction: u16_at(bytes, 4),
            response: rest[..length].to_vec(),
            challenge: (bytes[8] & 1 == 1).then_some(challenge),
            public: rest[2 * length..].to_vec(),
        })
    }
}

pub(super) fn success1(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
    let mut message = start(FIXED, DHCHAP, SUCCESS1, transaction);
    message[6] = u8::try_from(hash.bytes()).expect("no hash is longer");
    message[8] = u8::from(response.is_some());
    message.extend_from_slice(response.unwrap_or_default());
    message
}

pub(super) fn success2(transaction: u16) -> Vec<u8> {
    start(FIXED, DHCHAP, SUCCESS2, transaction)
}

impl FromHost {
    pub(super) fn parse(bytes: &[u8]) -> Result<FromHost, Reason> {
        let (Some(&kind), Some(&id)) = (bytes.first(), bytes.get(1)) else {
            return Err(Reason::Payload);
        };
        match (kind, id) {
            (COMMON, NEGOTIATE) => Negotiate::parse(bytes).map(FromHost::Negotiate),
            (COMMON, FAILURE2) if bytes.len() < 8 => Err(Reason::Payload),
            (COMMON, FAILURE2) => Ok(FromHost::Failure2(Reason::of_id(bytes[7]))),
            (DHCHAP, REPLY | SUCCESS2) if bytes.len() < FIXED => Err(Reason::Payload),
            (DHCHAP, REPLY) => Reply::parse(bytes).map(FromHost::Reply),
            (DHCHAP, SUCCESS2) => Ok(FromHost::Success2 { transaction: u16_at(bytes, 4) }),
            _ => Err(Reason::Message),
        }
    }
}

impl FromController {
    pub(super) fn parse(bytes: &[u8]) -> Result<FromController, Reason> {
        let (Some(&kind), Some(&id)) = (bytes.first(), bytes.get(1)) else {
            return Err(Reason::Payload);
        };
        match (kind, id) {
            (COMMON, FAILURE1) if bytes.len() < 8 => Err(Reason::Payload),
            (COMMON, FAILURE1) => Ok(FromController::Failure1(Reason::of_id(bytes[7]))),
            (DHCHAP, CHALLENGE | SUCCESS1) if bytes.len() < FIXED => Err(Reason::Payload),
            (DHCHAP, CHALLENGE) => Challenge::parse(bytes).map(FromController::Challenge),
            (DHCHAP, SUCCESS1) => {
                let response = bytes[FIXED..].get(..usize::from(bytes[6])).ok_or(Reason::Payload);
                let response = if bytes[8] & 1 == 1 { Some(response?.to_vec()) } else { None };
                Ok(FromController::Success1 { transaction: u16_at(bytes, 4), response })
            }
            _ => Err(Reason::Message),
        }
    }
}

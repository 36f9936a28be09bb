//! The record as bytes.
//!
//! Copy `stores % 2` is written; of two valid copies the one stored more often is the newest. The
//! checksum covers the whole copy, so that one of which only some sectors were written is not believed.
//!
//! Not here: what the fields mean (`member`).

use super::bytes::{Reader, Writer, is_sealed, seal};
use super::{BadMetadata, RECORD_BYTES, Record};
use crate::door::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, NodeId, VoterId};
use wire::{CONFIGURATION_BYTES_MAX, Configuration, LIVES_MAX, Life, MemberKind, Seen};

/// First bytes of every copy.
const RECORD_MAGIC: [u8; 8] = *b"LOCKSREC";
/// What this version writes.
const RECORD_FORMAT: u32 = 1;
/// Copies are whole pages.
const PAGE_BYTES: usize = 4096;
/// Bitmap slots, lives and remembered lives of others, at most, that a copy is believed to have.
const ENTRIES_MAX: usize = LIVES_MAX;

impl Record {
    /// The record with which `node` begins as a member of a new resource: every member starts from the
    /// same `configuration`, which names its voter and incarnation. `None` if it names no such member.
    #[must_use]
    pub fn first(configuration: &Configuration, node: NodeId, boot: u128) -> Option<Record> {
        let own = configuration.member(node)?;
        let mut slots = Vec::new();
        let others = configuration
            .members
            .iter()
            .filter(|member| member.node != node && member.kind == MemberKind::Replica);
        for (number, member) in (0..u8::MAX).zip(others) {
            slots.push(Slot {
                node: member.node,
                voter: member.voter,
                number,
                generation: 1,
                full: !member.in_sync,
            });
        }
        Some(Record {
            voter: own.voter,
            incarnation: own.incarnation,
            committed: Some((Ballot::default(), Box::new(configuration.clone()))),
            slots,
            slot_generation: 1,
            boot,
            clean: true,
            stores: 1,
            ..Record::default()
        })
    }

    /// The record of a node that is to be added to a resource: it holds nothing yet, and learns the
    /// configuration from the others.
    #[must_use]
    pub fn empty(voter: VoterId, incarnation: Incarnation, boot: u128) -> Record {
        Record { voter, incarnation, boot, clean: true, stores: 1, ..Record::default() }
    }

    /// Which copy, 0 or 1, is to be written.
    #[must_use]
    pub fn copy(&self) -> u8 {
        u8::try_from(self.stores % 2).expect("less than two")
    }

    /// One copy as bytes: whole pages of 4096 bytes, `RECORD_BYTES` at most.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 * PAGE_BYTES);
        bytes.extend_from_slice(&RECORD_MAGIC);
        bytes.put_u32(RECORD_FORMAT);
        bytes.put_u32(0);
        bytes.put_u64(self.stores);
        bytes.put_u64(self.voter.0);
        bytes.put_u64(self.incarnation.0);
        bytes.put_u64(self.life);
        bytes.put_u8(self.log_half);
        bytes.put_u8(u8::from(self.clean));
        bytes.put_u8(u8::from(self.in_memory));
        bytes.put_u128(self.boot);
        put_ballot(&mut bytes, self.promised);
        put_value(&mut bytes, self.accepted.as_ref());
        put_value(&mut bytes, self.committed.as_ref());
        bytes.put_u64(self.slot_generation);
        put_entries(&mut bytes, &self.slots, put_slot);
        put_entries(&mut bytes, &self.lives, put_life);
        put_entries(&mut bytes, &self.seen, put_seen);
        bytes.put_u8(u8::from(self.marked));
        bytes.put_u64(self.shrunk.0);
        bytes.put_u8(u8::from(self.unsure));
        let length = (bytes.len() + super::bytes::CHECKSUM_BYTES).next_multiple_of(PAGE_BYTES);
        let stated = u32::try_from(length).expect("a few pages");
        assert!(u64::from(stated) <= RECORD_BYTES, "a record outgrew its place");
        bytes[12..16].copy_from_slice(&stated.to_le_bytes());
        seal(&mut bytes, length);
        bytes
    }

    /// The copy that `bytes`, read from its place, begin with.
    ///
    /// # Errors
    /// There is none, it is torn or rotten, or a version not understood here wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Record, BadMetadata> {
        if bytes.get(..8) != Some(&RECORD_MAGIC[..]) {
            return Err(BadMetadata::NotOurs);
        }
        let mut reader = Reader::new(&bytes[8..]);
        let format = reader.u32().ok_or(BadMetadata::Torn)?;
        let length = reader.u32().ok_or(BadMetadata::Torn)?;
        let length = usize::try_from(length).map_err(|_| BadMetadata::Torn)?;
        if length % PAGE_BYTES != 0 || !bytes.get(..length).is_some_and(is_sealed) {
            return Err(BadMetadata::Torn);
        }
        if format != RECORD_FORMAT {
            return Err(BadMetadata::TooNew { format });
        }
        // Without the checksum.
        let mut reader = Reader::new(&bytes[16..length - super::bytes::CHECKSUM_BYTES]);
        take_record(&mut reader)
    }
}

/// The newest of the copies that were read (`None`: could not be read).
///
/// # Errors
/// No copy is valid, or one was written by a newer version: then the older copy is not good enough.
pub fn newest_record(copies: &[Option<&[u8]>]) -> Result<Record, BadMetadata> {
    let mut newest: Option<Record> = None;
    let mut reason = BadMetadata::NotOurs;
    for copy in copies {
        match copy.map_or(Err(BadMetadata::Unreadable), Record::decode) {
            Ok(record) => {
                if newest.as_ref().is_none_or(|best| record.stores > best.stores) {
                    newest = Some(record);
                }
            }
            Err(bad @ BadMetadata::TooNew { .. }) => return Err(bad),
            Err(BadMetadata::NotOurs) => {}
            Err(bad) => reason = bad,
        }
    }
    newest.ok_or(reason)
}

fn put_ballot(bytes: &mut Vec<u8>, ballot: Ballot) {
    bytes.put_u64(ballot.round);
    bytes.put_u16(ballot.node.0);
}

fn put_value(bytes: &mut Vec<u8>, value: Option<&(Ballot, Box<Configuration>)>) {
    let Some((ballot, configuration)) = value else { return bytes.put_u16(0) };
    let mut encoded = Vec::new();
    wire::encode_configuration(configuration, &mut encoded);
    bytes.put_u16(u16::try_from(encoded.len()).expect("limited to 3 KiB"));
    put_ballot(bytes, *ballot);
    bytes.extend_from_slice(&encoded);
}

fn put_entries<T>(bytes: &mut Vec<u8>, entries: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    assert!(entries.len() <= ENTRIES_MAX, "more entries than a record may have");
    bytes.put_u16(u16::try_from(entries.len()).expect("limited above"));
    for entry in entries {
        put(bytes, entry);
    }
}

fn put_slot(bytes: &mut Vec<u8>, slot: &Slot) {
    bytes.put_u16(slot.node.0);
    bytes.put_u64(slot.voter.0);
    bytes.put_u8(slot.number);
    bytes.put_u64(slot.generation);
    bytes.put_u8(u8::from(slot.full));
}

fn put_life(bytes: &mut Vec<u8>, life: &Life) {
    bytes.put_u64(life.number);
    bytes.put_u64(life.process);
    bytes.put_u64(life.writes);
}

fn put_seen(bytes: &mut Vec<u8>, seen: &Seen) {
    bytes.put_u16(seen.node.0);
    bytes.put_u64(seen.voter.0);
    put_life(bytes, &seen.life);
    bytes.put_u64(seen.epoch.0);
}

fn take_record(reader: &mut Reader<'_>) -> Result<Record, BadMetadata> {
    let torn = BadMetadata::Torn;
    let stores = reader.u64().ok_or(torn)?;
    let voter = VoterId(reader.u64().ok_or(torn)?);
    let incarnation = Incarnation(reader.u64().ok_or(torn)?);
    let life = reader.u64().ok_or(torn)?;
    let log_half = reader.u8().filter(|half| *half < 2).ok_or(torn)?;
    let clean = take_bool(reader).ok_or(torn)?;
    let in_memory = take_bool(reader).ok_or(torn)?;
    let boot = reader.u128().ok_or(torn)?;
    let promised = take_ballot(reader).ok_or(torn)?;
    let accepted = take_value(reader)?;
    let committed = take_value(reader)?;
    let slot_generation = reader.u64().ok_or(torn)?;
    let slots = take_entries(reader, take_slot).ok_or(torn)?;
    let lives = take_entries(reader, take_life).ok_or(torn)?;
    let seen = take_entries(reader, take_seen).ok_or(torn)?;
    // What earlier releases left here are zeroes, as many as their last page had room for.
    let marked = take_added_bool(reader).ok_or(torn)?;
    let shrunk = Epoch(reader.u64().unwrap_or_default());
    let unsure = take_added_bool(reader).ok_or(torn)?;
    Ok(Record {
        voter,
        incarnation,
        life,
        lives,
        log_half,
        promised,
        accepted,
        committed,
        slots,
        slot_generation,
        seen,
        boot,
        clean,
        in_memory,
        marked,
        shrunk,
        unsure,
        stores,
    })
}

fn take_bool(reader: &mut Reader<'_>) -> Option<bool> {
    match reader.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// One that earlier releases did not write.
fn take_added_bool(reader: &mut Reader<'_>) -> Option<bool> {
    if reader.is_empty() { Some(false) } else { take_bool(reader) }
}

fn take_ballot(reader: &mut Reader<'_>) -> Option<Ballot> {
    Some(Ballot { round: reader.u64()?, node: NodeId(reader.u16()?) })
}

type Value = Option<(Ballot, Box<Configuration>)>;

fn take_value(reader: &mut Reader<'_>) -> Result<Value, BadMetadata> {
    let length = usize::from(reader.u16().ok_or(BadMetadata::Torn)?);
    if length == 0 {
        return Ok(None);
    }
    if length > CONFIGURATION_BYTES_MAX {
        return Err(BadMetadata::Torn);
    }
    let ballot = take_ballot(reader).ok_or(BadMetadata::Torn)?;
    let bytes = reader.take(length).ok_or(BadMetadata::Torn)?;
    match wire::decode_configuration(bytes) {
        Ok(configuration) => Ok(Some((ballot, Box::new(configuration)))),
        Err(wire::DecodeError::Schema(schema)) => {
            Err(BadMetadata::TooNew { format: u32::from(schema) })
        }
        Err(_) => Err(BadMetadata::Torn),
    }
}

fn take_entries<T>(
    reader: &mut Reader<'_>,
    take: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::from(reader.u16()?);
    if count > ENTRIES_MAX {
        return None;
    }
    (0..count).map(|_| take(reader)).collect()
}

fn take_slot(reader: &mut Reader<'_>) -> Option<Slot> {
    Some(Slot {
        node: NodeId(reader.u16()?),
        voter: VoterId(reader.u64()?),
        number: reader.u8()?,
        generation: reader.u64()?,
        full: take_bool(reader)?,
    })
}

fn take_life(reader: &mut Reader<'_>) -> Option<Life> {
    Some(Life { number: reader.u64()?, process: reader.u64()?, writes: reader.u64()? })
}

fn take_seen(reader: &mut Reader<'_>) -> Option<Seen> {
    Some(Seen {
        node: NodeId(reader.u16()?),
        voter: VoterId(reader.u64()?),
        life: take_life(reader)?,
        epoch: Epoch(reader.u64()?),
    })
}

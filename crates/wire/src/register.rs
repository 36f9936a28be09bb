//! A configuration as bytes: what voters store and members send.
//!
//! A form number, then sections: tag, length, contents. Tags ascend, so there is one encoding of each
//! value. Sections with tags above `LAST_TAG` come from newer versions; they are kept verbatim in
//! `Configuration::unknown` and written again behind the known ones. A known section never changes
//! its contents: what a later version adds goes into a section of its own.
//!
//! Not here: the type (`configuration`), when a voter stores it (`replica`). The bytes are described
//! in `docs/formats/register.md`.

use crate::codec::{DecodeError, Put, Reader};
use crate::reservation::{self, VolumeReservations};
use crate::{
    AfterSplitBrain, Configuration, Durability, Held, LINEAGE_MAX, MEMBERS_MAX, MemberEntry,
    MemberKind, OnIoError, OnNoQuorum, Options, Protocol, Quorum, REPLICAS_MAX, RESYNC_RATES,
    ReadPolicy, Stretch, VOLUMES_MAX, VerifyEntry, VerifyState, VolumeEntry,
};
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, NodeId, SECTOR_BYTES, VolumeId, VoterId};

/// Longest encoding of a configuration, in bytes, so that a voter's record and a message have a known
/// size. A full one (16 members, 64 volumes, 16 stretches) takes 2 542, and hosts
/// that registered 2 308 at most; the rest is room for later sections.
pub const CONFIGURATION_BYTES_MAX: usize = 5120;

/// Number of the form written here. A newer one may mean anything; sections are how this one grows.
const SCHEMA: u16 = 1;

const TAG_HEAD: u16 = 1;
const TAG_MEMBERS: u16 = 2;
const TAG_VOLUMES: u16 = 3;
const TAG_OPTIONS: u16 = 4;
const LAST_TAG: u16 = TAG_OPTIONS;
/// Left out where everything in it is as it is with a majority. Sections not known here may come before
/// and behind it.
const TAG_WITHOUT_QUORUM: u16 = 16;
/// Volumes that grow, and how far; left out where none does.
const TAG_GROWTH: u16 = 17;
/// What an operator holds back; left out where nothing is.
const TAG_HELD: u16 = 18;
/// The last comparison of the replicas; left out where there was none.
const TAG_VERIFY: u16 = 19;
/// Limits on the rate of resyncs; left out where there is none.
const TAG_RESYNC_RATE: u16 = 20;
/// Hosts that keep each other from volumes; left out where none ever registered.
const TAG_RESERVATIONS: u16 = 21;
/// Sections that may be left out: from here to `TAG_RESERVATIONS`, without a gap.
const FIRST_OPTIONAL: u16 = TAG_WITHOUT_QUORUM;
const LAST_OPTIONAL: u16 = TAG_RESERVATIONS;

const MEMBER_BYTES: usize = 20;
const VOLUME_BYTES: usize = 14;
const STRETCH_BYTES: usize = 34;
const GROWTH_BYTES: usize = 10;
const HELD_BYTES: usize = 2;
const VERIFY_BYTES: usize = 36;
const RESYNC_RATE_BYTES: usize = 16;

/// Checks what `configuration` states as always true, and that its encoding is not too long.
///
/// # Errors
/// The first thing wrong, in words for an operator.
pub fn check_configuration(configuration: &Configuration) -> Result<(), &'static str> {
    if configuration.epoch < configuration.reign {
        return Err("the reign began after the configuration");
    }
    if configuration.primary == Some(NodeId(0)) {
        return Err("node 0 is no node");
    }
    check_members(&configuration.members)?;
    check_volumes(&configuration.volumes)?;
    check_options(&configuration.options)?;
    check_lineage(configuration)?;
    if configuration.verify.is_some_and(|verify| verify.began == Epoch(0)) {
        return Err("a comparison began before the first configuration");
    }
    reservation::check(&configuration.reservations)?;
    let of = |one: &VolumeReservations| configuration.volume(one.volume).is_some();
    if !configuration.reservations.iter().all(of) {
        return Err("reservations of a volume that is not there");
    }
    check_unknown(&configuration.unknown)?;
    if encoded_bytes(configuration) > CONFIGURATION_BYTES_MAX {
        return Err("the configuration is too long");
    }
    Ok(())
}

/// Checks the options of a resource by themselves.
///
/// # Errors
/// The first thing wrong, in words for an operator.
pub fn check_options(options: &Options) -> Result<(), &'static str> {
    if !(1..=REPLICAS_MAX).contains(&usize::from(options.in_sync_min)) {
        return Err("in-sync-min is not in 1..=8");
    }
    let Options { resync_rate_max: max, resync_rate_min: min, .. } = *options;
    if [max, min].iter().any(|rate| *rate > 0 && !RESYNC_RATES.contains(rate)) {
        return Err("a limit on the rate of a resync is in 64KiB..=1TiB per second, or 0");
    }
    if max > 0 && min > max {
        return Err("resync-rate-min is above resync-rate-max");
    }
    Ok(())
}

fn check_members(members: &[MemberEntry]) -> Result<(), &'static str> {
    if members.len() > MEMBERS_MAX {
        return Err("more than 16 members");
    }
    if !members.iter().map(|member| member.node).is_sorted_by(|a, b| a < b) {
        return Err("members do not ascend by node");
    }
    if members.iter().any(|member| member.node == NodeId(0)) {
        return Err("node 0 is no node");
    }
    if members.iter().any(|member| member.kind == MemberKind::Witness && member.in_sync) {
        return Err("a witness is never in sync");
    }
    if members.iter().any(|member| member.in_sync && member.voter == VoterId(0)) {
        return Err("a replica whose memory was lost is not in sync");
    }
    let replicas = members.iter().filter(|member| member.kind == MemberKind::Replica);
    if replicas.count() > REPLICAS_MAX {
        return Err("more than 8 replicas");
    }
    Ok(())
}

fn check_lineage(configuration: &Configuration) -> Result<(), &'static str> {
    let lineage = &configuration.lineage;
    if lineage.len() > LINEAGE_MAX {
        return Err("more than 16 stretches");
    }
    if lineage.iter().any(|stretch| stretch.id == 0) {
        return Err("stretch 0 is the first one");
    }
    if configuration.options.after_split_brain == AfterSplitBrain::DiscardNode(0) {
        return Err("node 0 is no node");
    }
    Ok(())
}

fn check_volumes(volumes: &[VolumeEntry]) -> Result<(), &'static str> {
    if volumes.len() > VOLUMES_MAX {
        return Err("more than 64 volumes");
    }
    if !volumes.iter().map(|entry| entry.volume).is_sorted_by(|a, b| a < b) {
        return Err("volumes do not ascend by index");
    }
    for entry in volumes {
        if !matches!(entry.block_bytes, 512 | 4096) {
            return Err("a block is neither 512 nor 4096 bytes");
        }
        let block_sectors = u64::from(entry.block_bytes) / SECTOR_BYTES;
        if entry.sectors == 0 || !entry.sectors.is_multiple_of(block_sectors) {
            return Err("a volume's size is not a positive multiple of its block");
        }
        if entry.kept_sectors() > u64::MAX / SECTOR_BYTES {
            return Err("a volume's end cannot be counted in bytes");
        }
        let grows = |to: u64| to > entry.sectors && to.is_multiple_of(block_sectors);
        if !entry.grows_to.is_none_or(grows) {
            return Err("a volume grows to a size that is not larger or no multiple of its block");
        }
    }
    Ok(())
}

/// Sections that this version does not know: whole, ascending, above every tag it knows.
fn check_unknown(unknown: &[u8]) -> Result<(), &'static str> {
    let mut reader = Reader::new(unknown);
    let mut newest = LAST_TAG;
    while !reader.is_empty() {
        let (tag, _) = section(&mut reader).map_err(|_| "an unknown section is cut short")?;
        if tag <= newest {
            return Err("sections do not ascend by tag");
        }
        if (FIRST_OPTIONAL..=LAST_OPTIONAL).contains(&tag) {
            return Err("a known section is said to be unknown");
        }
        newest = tag;
    }
    Ok(())
}

fn encoded_bytes(configuration: &Configuration) -> usize {
    let head = 2 + 4 + 39;
    let members = 4 + configuration.members.len() * MEMBER_BYTES;
    let volumes = 4 + configuration.volumes.len() * VOLUME_BYTES;
    let options = 4 + 8;
    let without_quorum = if is_without_quorum(configuration) {
        4 + 3 + configuration.lineage.len() * STRETCH_BYTES
    } else {
        0
    };
    let growing = growing(configuration).count();
    let growth = if growing > 0 { 4 + growing * GROWTH_BYTES } else { 0 };
    let held = if configuration.held == Held::default() { 0 } else { 4 + HELD_BYTES };
    let verify = if configuration.verify.is_some() { 4 + VERIFY_BYTES } else { 0 };
    let rate = if has_resync_rate(&configuration.options) { 4 + RESYNC_RATE_BYTES } else { 0 };
    let reservations = match configuration.reservations.as_slice() {
        [] => 0,
        all => 4 + reservation::bytes_of(all),
    };
    let optional = without_quorum + growth + held + verify + rate + reservations;
    head + members + volumes + options + optional + configuration.unknown.len()
}

/// Whether resyncs have a limit.
fn has_resync_rate(options: &Options) -> bool {
    options.resync_rate_max > 0 || options.resync_rate_min > 0
}

/// Volumes that grow, and how far.
fn growing(configuration: &Configuration) -> impl Iterator<Item = (VolumeId, u64)> + '_ {
    configuration.volumes.iter().filter_map(|entry| Some((entry.volume, entry.grows_to?)))
}

/// How many bytes the sections take that come before those that may be left out.
fn below(sections: &[u8]) -> usize {
    let mut reader = Reader::new(sections);
    loop {
        let left = reader.rest().len();
        match section(&mut reader) {
            Ok((tag, _)) if tag < FIRST_OPTIONAL => {}
            _ => return sections.len() - left,
        }
    }
}

/// Whether the section about that has anything to say.
fn is_without_quorum(configuration: &Configuration) -> bool {
    !configuration.lineage.is_empty()
        || configuration.options.after_split_brain != AfterSplitBrain::Disconnect
}

/// Appends the bytes of `configuration` to `out`: `CONFIGURATION_BYTES_MAX` of them at most.
///
/// # Panics
/// If `check_configuration` refuses it: nobody may build such a value.
pub fn encode_configuration(configuration: &Configuration, out: &mut Vec<u8>) {
    if let Err(what) = check_configuration(configuration) {
        panic!("an impossible configuration was built: {what}");
    }
    let start = out.len();
    out.put_u16(SCHEMA);
    put_section(out, TAG_HEAD, |out| put_head(out, configuration));
    put_section(out, TAG_MEMBERS, |out| {
        for member in &configuration.members {
            put_member(out, member);
        }
    });
    put_section(out, TAG_VOLUMES, |out| {
        for entry in &configuration.volumes {
            out.put_u16(entry.volume.0);
            out.put_u64(entry.sectors);
            out.put_u32(entry.block_bytes);
        }
    });
    put_section(out, TAG_OPTIONS, |out| put_options(out, &configuration.options));
    let (before, behind) = configuration.unknown.split_at(below(&configuration.unknown));
    out.extend_from_slice(before);
    put_optional(out, configuration);
    out.extend_from_slice(behind);
    assert_eq!(out.len() - start, encoded_bytes(configuration), "the length was foretold wrongly");
}

fn put_optional(out: &mut Vec<u8>, configuration: &Configuration) {
    if is_without_quorum(configuration) {
        put_section(out, TAG_WITHOUT_QUORUM, |out| put_without_quorum(out, configuration));
    }
    if growing(configuration).next().is_some() {
        put_section(out, TAG_GROWTH, |out| {
            for (volume, sectors) in growing(configuration) {
                out.put_u16(volume.0);
                out.put_u64(sectors);
            }
        });
    }
    if configuration.held != Held::default() {
        put_section(out, TAG_HELD, |out| {
            out.put_bool(configuration.held.requests);
            out.put_bool(configuration.held.resync);
        });
    }
    if let Some(verify) = &configuration.verify {
        put_section(out, TAG_VERIFY, |out| put_verify(out, verify));
    }
    if has_resync_rate(&configuration.options) {
        put_section(out, TAG_RESYNC_RATE, |out| {
            out.put_u64(configuration.options.resync_rate_max);
            out.put_u64(configuration.options.resync_rate_min);
        });
    }
    if !configuration.reservations.is_empty() {
        put_section(out, TAG_RESERVATIONS, |out| {
            reservation::put(out, &configuration.reservations)
        });
    }
}

/// Reads the configuration that `bytes` holds, and nothing else.
///
/// # Errors
/// `Schema` if a newer version wrote it in another form; `Damaged` for anything that
/// `encode_configuration` cannot have written.
pub fn decode_configuration(bytes: &[u8]) -> Result<Configuration, DecodeError> {
    if bytes.len() > CONFIGURATION_BYTES_MAX {
        return Err(DecodeError::Damaged("the configuration is too long"));
    }
    let mut reader = Reader::new(bytes);
    match reader.u16()? {
        SCHEMA => {}
        0 => return Err(DecodeError::Damaged("no form has the number 0")),
        newer => return Err(DecodeError::Schema(newer)),
    }
    let mut head = known(&mut reader, TAG_HEAD)?;
    let members = known(&mut reader, TAG_MEMBERS)?;
    let volumes = known(&mut reader, TAG_VOLUMES)?;
    let options = known(&mut reader, TAG_OPTIONS)?;
    let rest = reader.rest();
    let (before, rest) = rest.split_at(below(rest));
    let mut reader = Reader::new(rest);
    let without_quorum = optional(&mut reader, TAG_WITHOUT_QUORUM)?;
    let growth = optional(&mut reader, TAG_GROWTH)?;
    let held = optional(&mut reader, TAG_HELD)?.map(take_held).transpose()?;
    let verify = optional(&mut reader, TAG_VERIFY)?.map(take_verify).transpose()?;
    let rate = optional(&mut reader, TAG_RESYNC_RATE)?;
    let reservations = optional(&mut reader, TAG_RESERVATIONS)?;
    let epoch = Epoch(head.u64()?);
    let reign = Epoch(head.u64()?);
    let primary = match head.u16()? {
        0 => None,
        node => Some(NodeId(node)),
    };
    let recovering = head.bool()?;
    let lost = Epoch(head.u64()?);
    let fork = head.u64()?;
    let feature_level = head.u32()?;
    head.finish()?;
    let mut configuration = Configuration {
        epoch,
        reign,
        primary,
        recovering,
        lost,
        fork,
        feature_level,
        members: take_members(members)?,
        volumes: take_volumes(volumes)?,
        options: take_options(options)?,
        lineage: Vec::new(),
        held: held.unwrap_or_default(),
        verify,
        reservations: reservations.map(reservation::take).transpose()?.unwrap_or_default(),
        unknown: [before, reader.rest()].concat(),
    };
    if let Some(section) = without_quorum {
        take_without_quorum(section, &mut configuration)?;
    }
    if let Some(section) = growth {
        take_growth(section, &mut configuration.volumes)?;
    }
    if let Some(section) = rate {
        take_resync_rate(section, &mut configuration.options)?;
    }
    check_configuration(&configuration).map_err(DecodeError::Damaged)?;
    Ok(configuration)
}

fn put_section(out: &mut Vec<u8>, tag: u16, contents: impl FnOnce(&mut Vec<u8>)) {
    out.put_u16(tag);
    let at = out.len();
    out.put_u16(0);
    contents(out);
    let length = u16::try_from(out.len() - at - 2).expect("limits keep a section below 5 KiB");
    out[at..at + 2].copy_from_slice(&length.to_le_bytes());
}

fn section<'a>(reader: &mut Reader<'a>) -> Result<(u16, Reader<'a>), DecodeError> {
    let tag = reader.u16()?;
    let length = reader.u16()?;
    Ok((tag, Reader::new(reader.bytes(usize::from(length))?)))
}

fn known<'a>(reader: &mut Reader<'a>, expected: u16) -> Result<Reader<'a>, DecodeError> {
    match section(reader)? {
        (tag, contents) if tag == expected => Ok(contents),
        _ => Err(DecodeError::Damaged("a section is missing or out of order")),
    }
}

/// The section with this tag, if it is the next one.
fn optional<'a>(reader: &mut Reader<'a>, tag: u16) -> Result<Option<Reader<'a>>, DecodeError> {
    if Reader::new(reader.rest()).u16() != Ok(tag) {
        return Ok(None);
    }
    known(reader, tag).map(Some)
}

fn put_head(out: &mut Vec<u8>, configuration: &Configuration) {
    out.put_u64(configuration.epoch.0);
    out.put_u64(configuration.reign.0);
    out.put_u16(configuration.primary.map_or(0, |node| node.0));
    out.put_bool(configuration.recovering);
    out.put_u64(configuration.lost.0);
    out.put_u64(configuration.fork);
    out.put_u32(configuration.feature_level);
}

fn put_member(out: &mut Vec<u8>, member: &MemberEntry) {
    out.put_u16(member.node.0);
    out.put_u8(match member.kind {
        MemberKind::Replica => 0,
        MemberKind::Witness => 1,
    });
    out.put_bool(member.in_sync);
    out.put_u64(member.voter.0);
    out.put_u64(member.incarnation.0);
}

fn take_members(mut reader: Reader<'_>) -> Result<Vec<MemberEntry>, DecodeError> {
    let count = reader.rest().len() / MEMBER_BYTES;
    if count > MEMBERS_MAX {
        return Err(DecodeError::Damaged("more than 16 members"));
    }
    let mut members = Vec::with_capacity(count);
    while !reader.is_empty() {
        members.push(MemberEntry {
            node: NodeId(reader.u16()?),
            kind: match reader.u8()? {
                0 => MemberKind::Replica,
                1 => MemberKind::Witness,
                _ => return Err(DecodeError::Damaged("an unknown kind of member")),
            },
            in_sync: reader.bool()?,
            voter: VoterId(reader.u64()?),
            incarnation: Incarnation(reader.u64()?),
        });
    }
    Ok(members)
}

fn take_volumes(mut reader: Reader<'_>) -> Result<Vec<VolumeEntry>, DecodeError> {
    let count = reader.rest().len() / VOLUME_BYTES;
    if count > VOLUMES_MAX {
        return Err(DecodeError::Damaged("more than 64 volumes"));
    }
    let mut volumes = Vec::with_capacity(count);
    while !reader.is_empty() {
        volumes.push(VolumeEntry {
            volume: VolumeId(reader.u16()?),
            sectors: reader.u64()?,
            block_bytes: reader.u32()?,
            grows_to: None,
        });
    }
    Ok(volumes)
}

fn take_growth(mut reader: Reader<'_>, volumes: &mut [VolumeEntry]) -> Result<(), DecodeError> {
    const BAD: DecodeError = DecodeError::Damaged("growths are not those of volumes, each once");
    let mut from = 0;
    if reader.is_empty() {
        return Err(BAD);
    }
    while !reader.is_empty() {
        let volume = VolumeId(reader.u16()?);
        let at = volumes[from..].iter().position(|entry| entry.volume == volume).ok_or(BAD)?;
        volumes[from + at].grows_to = Some(reader.u64()?);
        from += at + 1;
    }
    Ok(())
}

fn take_held(mut reader: Reader<'_>) -> Result<Held, DecodeError> {
    let held = Held { requests: reader.bool()?, resync: reader.bool()? };
    reader.finish()?;
    if held == Held::default() {
        return Err(DecodeError::Damaged("a section that says nothing"));
    }
    Ok(held)
}

fn take_resync_rate(mut reader: Reader<'_>, options: &mut Options) -> Result<(), DecodeError> {
    options.resync_rate_max = reader.u64()?;
    options.resync_rate_min = reader.u64()?;
    reader.finish()?;
    if !has_resync_rate(options) {
        return Err(DecodeError::Damaged("a section that says nothing"));
    }
    Ok(())
}

fn put_verify(out: &mut Vec<u8>, verify: &VerifyEntry) {
    out.put_u8(match verify.state {
        VerifyState::Running => 1,
        VerifyState::Stopped => 2,
        VerifyState::Done => 3,
    });
    out.put_u64(verify.began.0);
    out.put_u16(verify.volume.0);
    out.put_u64(verify.next);
    out.put_u64(verify.repaired);
    out.put_u64(verify.at_ms);
    out.put_bool(verify.partial);
}

fn take_verify(mut reader: Reader<'_>) -> Result<VerifyEntry, DecodeError> {
    let verify = VerifyEntry {
        state: match reader.u8()? {
            1 => VerifyState::Running,
            2 => VerifyState::Stopped,
            3 => VerifyState::Done,
            _ => return Err(DecodeError::Damaged("a comparison in an unknown state")),
        },
        began: Epoch(reader.u64()?),
        volume: VolumeId(reader.u16()?),
        next: reader.u64()?,
        repaired: reader.u64()?,
        at_ms: reader.u64()?,
        partial: reader.bool()?,
    };
    reader.finish()?;
    Ok(verify)
}

fn put_options(out: &mut Vec<u8>, options: &Options) {
    out.put_u8(match options.protocol {
        Protocol::B => 1,
        Protocol::C => 2,
    });
    out.put_u8(match options.durability {
        Durability::Flush => 0,
        Durability::WriteThrough => 1,
    });
    out.put_u8(match options.quorum {
        Quorum::Majority => 0,
        Quorum::Off => 1,
    });
    out.put_u8(match options.on_no_quorum {
        OnNoQuorum::SuspendIo => 0,
        OnNoQuorum::IoError => 1,
    });
    out.put_u8(match options.on_io_error {
        OnIoError::Detach => 0,
        OnIoError::PassOn => 1,
    });
    out.put_u8(match options.read_policy {
        ReadPolicy::PreferLocal => 0,
        ReadPolicy::RoundRobin => 1,
        ReadPolicy::LeastPending => 2,
        ReadPolicy::LatencyAware => 3,
        ReadPolicy::Striped => 4,
    });
    out.put_u8(options.in_sync_min);
    out.put_bool(options.data_checksum);
}

fn take_options(mut reader: Reader<'_>) -> Result<Options, DecodeError> {
    const UNKNOWN: DecodeError = DecodeError::Damaged("an option has an unknown value");
    let options = Options {
        protocol: match reader.u8()? {
            1 => Protocol::B,
            2 => Protocol::C,
            _ => return Err(UNKNOWN),
        },
        durability: match reader.u8()? {
            0 => Durability::Flush,
            1 => Durability::WriteThrough,
            _ => return Err(UNKNOWN),
        },
        quorum: match reader.u8()? {
            0 => Quorum::Majority,
            1 => Quorum::Off,
            _ => return Err(UNKNOWN),
        },
        on_no_quorum: match reader.u8()? {
            0 => OnNoQuorum::SuspendIo,
            1 => OnNoQuorum::IoError,
            _ => return Err(UNKNOWN),
        },
        on_io_error: match reader.u8()? {
            0 => OnIoError::Detach,
            1 => OnIoError::PassOn,
            _ => return Err(UNKNOWN),
        },
        read_policy: match reader.u8()? {
            0 => ReadPolicy::PreferLocal,
            1 => ReadPolicy::RoundRobin,
            2 => ReadPolicy::LeastPending,
            3 => ReadPolicy::LatencyAware,
            4 => ReadPolicy::Striped,
            _ => return Err(UNKNOWN),
        },
        in_sync_min: reader.u8()?,
        data_checksum: reader.bool()?,
        after_split_brain: AfterSplitBrain::Disconnect,
        resync_rate_max: 0,
        resync_rate_min: 0,
    };
    reader.finish()?;
    Ok(options)
}

fn put_without_quorum(out: &mut Vec<u8>, configuration: &Configuration) {
    let (policy, node) = match configuration.options.after_split_brain {
        AfterSplitBrain::Disconnect => (0, 0),
        AfterSplitBrain::DiscardYounger => (1, 0),
        AfterSplitBrain::DiscardOlder => (2, 0),
        AfterSplitBrain::DiscardNode(node) => (3, node),
        AfterSplitBrain::DiscardLeastChanges => (4, 0),
        AfterSplitBrain::DiscardZeroChanges => (5, 0),
    };
    out.put_u8(policy);
    out.put_u16(node);
    for stretch in &configuration.lineage {
        out.put_u64(stretch.id);
        out.put_u64(stretch.ballot.round);
        out.put_u16(stretch.ballot.node.0);
        out.put_u64(stretch.epoch.0);
        out.put_u64(stretch.at_ms);
    }
}

fn take_without_quorum(
    mut reader: Reader<'_>,
    configuration: &mut Configuration,
) -> Result<(), DecodeError> {
    configuration.options.after_split_brain = match (reader.u8()?, reader.u16()?) {
        (0, 0) => AfterSplitBrain::Disconnect,
        (1, 0) => AfterSplitBrain::DiscardYounger,
        (2, 0) => AfterSplitBrain::DiscardOlder,
        (3, node) => AfterSplitBrain::DiscardNode(node),
        (4, 0) => AfterSplitBrain::DiscardLeastChanges,
        (5, 0) => AfterSplitBrain::DiscardZeroChanges,
        _ => return Err(DecodeError::Damaged("an option has an unknown value")),
    };
    while !reader.is_empty() {
        if configuration.lineage.len() == LINEAGE_MAX {
            return Err(DecodeError::Damaged("more than 16 stretches"));
        }
        configuration.lineage.push(Stretch {
            id: reader.u64()?,
            ballot: Ballot { round: reader.u64()?, node: NodeId(reader.u16()?) },
            epoch: Epoch(reader.u64()?),
            at_ms: reader.u64()?,
        });
    }
    if !is_without_quorum(configuration) {
        return Err(DecodeError::Damaged("a section that says nothing"));
    }
    Ok(())
}

//! `ShardMessage` as fields of a header and, for the few that need one, a body.
//!
//! Always: `Write`, `Written`, `Retire`, `Read` and `Data` are all header, so nothing is allocated
//! for them. `take` gives back only what `fields` would put in the very same way.

use crate::codec::{Put, Reader};
use crate::frame::{FrameError, PAYLOAD_BYTES_MAX};
use crate::header::{
    FLAG_EARLY, FLAG_FIRST, FLAG_FUA, FLAG_LAST, FLAG_NOT_IN_PLACE, FLAG_OK, FLAG_RESYNC,
    FLAG_ROTTEN, FLAG_UNDONE, FLAG_UNMAP, FLAG_ZERO, Fields, flag,
};
use crate::reservation::{put_host, take_host};
use crate::{
    DoubtRun, Memory, Moment, NamedWrite, ShardMessage, WriteFlags, WriteName, WriteOrigin,
};
use alloc::vec::Vec;
use base::{AnswerError, Epoch, HostId, NodeId, Op, RequestId, SECTOR_BYTES, Span, VolumeId};

/// Runs in one `Clean`, `Doubt` or `Retire`; who has more sends another message. Bounds what a receiver must
/// hold at once to 608 KiB.
pub const RUNS_MAX: usize = 32_768;

/// Writes in one `Remember` or `Remembers`; who has more sends another. They take 480 KiB.
pub const MEMORY_WRITES_MAX: usize = 16_384;
/// Sessions in one of them.
pub const MEMORY_SESSIONS_MAX: usize = 4096;

const WRITE: u16 = 0x0301;
const RECEIVED: u16 = 0x0302;
const WRITTEN: u16 = 0x0303;
const RETIRE: u16 = 0x0304;
const SETTLED: u16 = 0x0305;
const CLEAN: u16 = 0x0306;
const FLUSH: u16 = 0x0307;
const FLUSHED: u16 = 0x0308;
const READ: u16 = 0x0309;
const DATA: u16 = 0x030a;
const COMPARE: u16 = 0x030b;
const HASH: u16 = 0x030c;
const GATHER: u16 = 0x030d;
const DOUBT: u16 = 0x030e;
const FORWARD: u16 = 0x030f;
const FORWARDED: u16 = 0x0310;
const STALE: u16 = 0x0311;
const REMEMBERS: u16 = 0x0312;
const REMEMBER: u16 = 0x0313;

const RUN_BYTES: usize = 16;
const DOUBT_RUN_BYTES: usize = 20;
const NAMED_WRITE_BYTES: usize = 30;
const HOST_BYTES: usize = 16;

/// Whether `kind` is one of those above.
pub(crate) fn is_known(kind: u16) -> bool {
    (WRITE..=REMEMBER).contains(&kind)
}

/// What is wrong with `message` or with the length of the payload beside it.
pub(crate) fn check(message: &ShardMessage, payload_bytes: u32) -> Result<(), &'static str> {
    if !payload_fits(message, u64::from(payload_bytes)) {
        return Err("the payload is not as long as the message says");
    }
    let good = match message {
        ShardMessage::Read { span, .. } => is_short(*span),
        ShardMessage::Written { ok, in_place, .. } => *ok || !*in_place,
        ShardMessage::Write { origin, .. } => origin.is_none_or(is_origin),
        ShardMessage::Forward { op, span, origin, asked, first, way, .. } => {
            (*op != Op::Read || is_short(*span))
                && origin.is_none_or(is_origin)
                && (origin.is_some() || (*asked == Epoch(0) && !*first))
                && (way.is_none() || matches!(op, Op::Write | Op::Zero { .. }))
        }
        ShardMessage::Forwarded { result, asked, .. } => result.is_none() || *asked == Epoch(0),
        ShardMessage::Remembers { memory, .. } | ShardMessage::Remember { memory, .. } => {
            memory.since != Some(Epoch(0))
                && memory.writes.len() <= MEMORY_WRITES_MAX
                && memory.answered.len() <= MEMORY_SESSIONS_MAX
                && memory.writes.iter().all(|write| write.name.session != 0)
        }
        ShardMessage::Clean { runs, target, .. } => {
            *target != NodeId(0)
                && runs.len() <= RUNS_MAX
                && runs.iter().all(|&(first, end)| first < end)
        }
        ShardMessage::Retire { ahead, .. } => {
            ahead.len() <= RUNS_MAX && ahead.iter().all(|&(first, end)| first < end)
        }
        ShardMessage::Doubt { runs, .. } => {
            runs.len() <= RUNS_MAX && runs.iter().all(|run| run.first < run.end)
        }
        ShardMessage::Gather { bits_of, .. } => *bits_of != Some(NodeId(0)),
        _ => true,
    };
    if good {
        Ok(())
    } else {
        Err(
            "too long a read, too many runs, an empty run, an impossible origin or answer, or node 0",
        )
    }
}

fn is_short(span: Span) -> bool {
    span.length_bytes() <= u64::from(PAYLOAD_BYTES_MAX)
}

fn is_origin(origin: WriteOrigin) -> bool {
    origin.name.session != 0
        && origin
            .name
            .number
            .checked_sub(origin.answered_below)
            .is_some_and(|ago| u32::try_from(ago).is_ok())
}

fn payload_fits(message: &ShardMessage, payload_bytes: u64) -> bool {
    let whole = payload_bytes.is_multiple_of(SECTOR_BYTES);
    match message {
        ShardMessage::Write { flags: WriteFlags { zero: false, .. }, span, .. }
        | ShardMessage::Forward { op: Op::Write, span, .. } => payload_bytes == span.length_bytes(),
        ShardMessage::Data { ok: true, zero: false, .. } => payload_bytes > 0 && whole,
        ShardMessage::Forwarded { result: Some(Ok(())), zero: false, .. } => whole,
        _ => payload_bytes == 0,
    }
}

/// Kind and fields of `message`.
pub(crate) fn fields(message: &ShardMessage) -> (u16, Fields) {
    let none = Fields::default();
    match message {
        ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin } => {
            let fields = addressed(*epoch, *sequence, *volume, *span);
            let (cut, flags) = (*cut, put_write_flags(*flags));
            (WRITE, put_origin(Fields { cut, flags, ..fields }, *origin))
        }
        ShardMessage::Received { sequence } => (RECEIVED, Fields { sequence: *sequence, ..none }),
        ShardMessage::Written { sequence, ok, in_place } => {
            let fields = answered(*sequence, *ok);
            let flags = fields.flags | flag(FLAG_NOT_IN_PLACE, *ok && !*in_place);
            (WRITTEN, Fields { flags, ..fields })
        }
        ShardMessage::Retire { epoch, upto, .. } => {
            (RETIRE, Fields { epoch: epoch.0, sequence: *upto, ..none })
        }
        ShardMessage::Settled { epoch, volume, span } => {
            (SETTLED, addressed(*epoch, 0, *volume, *span))
        }
        ShardMessage::Clean { epoch, target, volume, .. } => {
            let detail = u32::from(target.0);
            (CLEAN, Fields { epoch: epoch.0, volume: volume.0, detail, ..none })
        }
        ShardMessage::Flush { epoch, sequence } => {
            (FLUSH, Fields { epoch: epoch.0, sequence: *sequence, ..none })
        }
        ShardMessage::Flushed { sequence, ok } => (FLUSHED, answered(*sequence, *ok)),
        ShardMessage::Read { epoch, sequence, volume, span } => {
            (READ, addressed(*epoch, *sequence, *volume, *span))
        }
        ShardMessage::Data { sequence, ok, zero, rotten } => {
            let flags = flag(FLAG_OK, *ok) | flag(FLAG_ZERO, *zero) | flag(FLAG_ROTTEN, *rotten);
            (DATA, Fields { sequence: *sequence, flags, ..none })
        }
        ShardMessage::Compare { epoch, sequence, volume, span, resync } => {
            let fields = addressed(*epoch, *sequence, *volume, *span);
            (COMPARE, Fields { flags: flag(FLAG_RESYNC, *resync), ..fields })
        }
        ShardMessage::Hash { sequence, hash } => (HASH, answered(*sequence, hash.is_some())),
        ShardMessage::Gather { epoch, sequence, bits_of } => {
            let detail = bits_of.map_or(0, |node| u32::from(node.0));
            (GATHER, Fields { epoch: epoch.0, sequence: *sequence, detail, ..none })
        }
        ShardMessage::Doubt { sequence, last, .. } => {
            (DOUBT, Fields { sequence: *sequence, flags: flag(FLAG_LAST, *last), ..none })
        }
        ShardMessage::Forward { id, op, volume, span, fua, origin, asked, first, .. } => {
            let fields = put_origin(addressed(*asked, id.0, *volume, *span), *origin);
            let flags = flag(FLAG_FUA, *fua) | flag(FLAG_FIRST, *first);
            // `detail` belongs to the origin: the operation stands in `cut`.
            (FORWARD, Fields { cut: put_op(*op), flags, ..fields })
        }
        ShardMessage::Forwarded { id, result, zero, asked, moment: _ } => {
            let (flags, detail) = (flag(FLAG_ZERO, *zero), put_result(*result));
            (FORWARDED, Fields { epoch: asked.0, sequence: id.0, detail, flags, ..none })
        }
        ShardMessage::Stale { epoch } => (STALE, Fields { epoch: epoch.0, ..none }),
        ShardMessage::Remembers { sequence, .. } => {
            (REMEMBERS, Fields { sequence: *sequence, ..none })
        }
        ShardMessage::Remember { epoch, first, .. } => {
            (REMEMBER, Fields { epoch: epoch.0, flags: flag(FLAG_FIRST, *first), ..none })
        }
    }
}

/// Appends the body of `message`, if its kind has one.
pub(crate) fn put_body(message: &ShardMessage, out: &mut Vec<u8>) {
    match message {
        ShardMessage::Clean { runs, .. } | ShardMessage::Retire { ahead: runs, .. } => {
            for &(first, end) in runs {
                out.put_u64(first);
                out.put_u64(end);
            }
        }
        ShardMessage::Forward { history, way, host, .. } => {
            if *history != 0 || way.is_some() || *host != HostId(0) {
                out.put_u64(*history);
            }
            if let Some((way, moment)) = way {
                out.put_u32(*way);
                put_moment(Some(*moment), out);
            }
            if *host != HostId(0) {
                put_host(out, *host);
            }
        }
        ShardMessage::Forwarded { moment, .. } => put_moment(*moment, out),
        ShardMessage::Hash { hash: Some(hash), .. } => out.extend_from_slice(&hash.to_le_bytes()),
        ShardMessage::Remembers { memory, .. } | ShardMessage::Remember { memory, .. } => {
            put_memory(memory, out);
        }
        ShardMessage::Doubt { runs, .. } => {
            for run in runs {
                out.put_u16(run.volume.0);
                out.put_u64(run.first);
                out.put_u64(run.end);
                out.put_bool(run.compare);
                out.put_bool(run.hot);
            }
        }
        _ => {}
    }
}

/// The message that these fields and this body say.
pub(crate) fn take(kind: u16, from: &Fields, body: &[u8]) -> Result<ShardMessage, FrameError> {
    let mut body = Reader::new(body);
    let epoch = Epoch(from.epoch);
    let sequence = from.sequence;
    let volume = VolumeId(from.volume);
    let ok = from.has(FLAG_OK);
    let zero = from.has(FLAG_ZERO);
    let message = match kind {
        WRITE => {
            let (cut, span, flags) = (from.cut, from.span()?, take_write_flags(from));
            let origin = take_origin(from)?;
            ShardMessage::Write { epoch, sequence, cut, volume, span, flags, origin }
        }
        RECEIVED => ShardMessage::Received { sequence },
        WRITTEN => take_written(from),
        RETIRE => {
            let ahead = take_runs(&mut body)?;
            ShardMessage::Retire { epoch, upto: sequence, ahead }
        }
        SETTLED => ShardMessage::Settled { epoch, volume, span: from.span()? },
        CLEAN => {
            let target = node(from.detail)?;
            ShardMessage::Clean { epoch, target, volume, runs: take_runs(&mut body)? }
        }
        FLUSH => ShardMessage::Flush { epoch, sequence },
        FLUSHED => ShardMessage::Flushed { sequence, ok },
        READ => ShardMessage::Read { epoch, sequence, volume, span: from.span()? },
        DATA => {
            let rotten = from.has(FLAG_ROTTEN);
            ShardMessage::Data { sequence, ok, zero, rotten }
        }
        COMPARE => {
            let (span, resync) = (from.span()?, from.has(FLAG_RESYNC));
            ShardMessage::Compare { epoch, sequence, volume, span, resync }
        }
        HASH => {
            let hash = if ok { Some(u128::from_le_bytes(body.array()?)) } else { None };
            ShardMessage::Hash { sequence, hash }
        }
        GATHER => {
            let bits_of = if from.detail == 0 { None } else { Some(node(from.detail)?) };
            ShardMessage::Gather { epoch, sequence, bits_of }
        }
        DOUBT => {
            let (runs, last) = (take_doubt(&mut body)?, from.has(FLAG_LAST));
            ShardMessage::Doubt { sequence, runs, last }
        }
        FORWARD => take_forward(from, &mut body)?,
        FORWARDED => {
            let (id, result) = (RequestId(sequence), take_result(from)?);
            let moment = take_moment(&mut body)?;
            ShardMessage::Forwarded { id, result, zero, asked: epoch, moment }
        }
        STALE => ShardMessage::Stale { epoch },
        REMEMBERS => ShardMessage::Remembers { sequence, memory: take_memory(&mut body)? },
        REMEMBER => {
            let memory = take_memory(&mut body)?;
            ShardMessage::Remember { epoch, first: from.has(FLAG_FIRST), memory }
        }
        other => return Err(FrameError::UnknownKind(other)),
    };
    body.finish()?;
    Ok(message)
}

fn take_forward(from: &Fields, body: &mut Reader<'_>) -> Result<ShardMessage, FrameError> {
    let (id, op, span) = (RequestId(from.sequence), take_op(from)?, from.span()?);
    let (fua, first) = (from.has(FLAG_FUA), from.has(FLAG_FIRST));
    let (origin, asked, history) = (take_origin(from)?, Epoch(from.epoch), take_history(body)?);
    let (way, host) = (take_way(body)?, take_known_host(body)?);
    let volume = VolumeId(from.volume);
    Ok(ShardMessage::Forward {
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
    })
}

fn addressed(epoch: Epoch, sequence: u64, volume: VolumeId, span: Span) -> Fields {
    Fields { epoch: epoch.0, sequence, volume: volume.0, ..Fields::default() }.with_span(span)
}

fn answered(sequence: u64, ok: bool) -> Fields {
    Fields { sequence, flags: flag(FLAG_OK, ok), ..Fields::default() }
}

fn take_written(from: &Fields) -> ShardMessage {
    let ok = from.has(FLAG_OK);
    let in_place = ok && !from.has(FLAG_NOT_IN_PLACE);
    ShardMessage::Written { sequence: from.sequence, ok, in_place }
}

fn put_write_flags(flags: WriteFlags) -> u32 {
    flag(FLAG_FUA, flags.fua)
        | flag(FLAG_ZERO, flags.zero)
        | flag(FLAG_UNMAP, flags.unmap)
        | flag(FLAG_RESYNC, flags.resync)
        | flag(FLAG_EARLY, flags.early)
        | flag(FLAG_UNDONE, flags.undone)
}

fn take_write_flags(from: &Fields) -> WriteFlags {
    WriteFlags {
        fua: from.has(FLAG_FUA),
        zero: from.has(FLAG_ZERO),
        unmap: from.has(FLAG_UNMAP),
        resync: from.has(FLAG_RESYNC),
        early: from.has(FLAG_EARLY),
        undone: from.has(FLAG_UNDONE),
    }
}

/// `detail` holds how far below the write's own number the answered ones end.
fn put_origin(fields: Fields, origin: Option<WriteOrigin>) -> Fields {
    let Some(WriteOrigin { name, answered_below }) = origin else { return fields };
    let detail = u32::try_from(name.number - answered_below).expect("checked before");
    Fields { origin_session: name.session, origin_number: name.number, detail, ..fields }
}

fn take_origin(from: &Fields) -> Result<Option<WriteOrigin>, FrameError> {
    let name = WriteName { session: from.origin_session, number: from.origin_number };
    if name.session == 0 {
        return Ok(None);
    }
    let answered_below = name
        .number
        .checked_sub(u64::from(from.detail))
        .ok_or(FrameError::Malformed("an impossible origin"))?;
    Ok(Some(WriteOrigin { name, answered_below }))
}

fn put_memory(memory: &Memory, out: &mut Vec<u8>) {
    out.put_u64(memory.since.map_or(0, |since| since.0));
    out.put_u32(u32::try_from(memory.answered.len()).expect("checked before"));
    for &(session, below) in &memory.answered {
        out.put_u64(session);
        out.put_u64(below);
    }
    for write in &memory.writes {
        out.put_u64(write.name.session);
        out.put_u64(write.name.number);
        out.put_u16(write.volume.0);
        out.put_u64(write.span.first());
        out.put_u32(write.span.count());
    }
}

fn take_memory(body: &mut Reader<'_>) -> Result<Memory, FrameError> {
    let since = Some(Epoch(body.u64()?)).filter(|&since| since != Epoch(0));
    let sessions = usize::try_from(body.u32()?).unwrap_or(usize::MAX);
    if sessions > MEMORY_SESSIONS_MAX {
        return Err(FrameError::Malformed("too many sessions"));
    }
    let mut answered = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        answered.push((body.u64()?, body.u64()?));
    }
    let mut writes = Vec::with_capacity(body.rest().len() / NAMED_WRITE_BYTES);
    while !body.is_empty() {
        let name = WriteName { session: body.u64()?, number: body.u64()? };
        let volume = VolumeId(body.u16()?);
        let span = Span::new(body.u64()?, body.u32()?)
            .ok_or(FrameError::Malformed("an impossible span"))?;
        writes.push(NamedWrite { name, volume, span });
    }
    Ok(Memory { since, answered, writes })
}

fn node(detail: u32) -> Result<NodeId, FrameError> {
    u16::try_from(detail).map(NodeId).map_err(|_| FrameError::Malformed("no such node"))
}

fn put_op(op: Op) -> u64 {
    match op {
        Op::Read => 1,
        Op::Write => 2,
        Op::Zero { unmap: false } => 3,
        Op::Zero { unmap: true } => 4,
        Op::Flush => 5,
    }
}

fn take_op(from: &Fields) -> Result<Op, FrameError> {
    match from.cut {
        1 => Ok(Op::Read),
        2 => Ok(Op::Write),
        3 => Ok(Op::Zero { unmap: false }),
        4 => Ok(Op::Zero { unmap: true }),
        5 => Ok(Op::Flush),
        _ => Err(FrameError::Malformed("an unknown operation")),
    }
}

fn put_result(result: Option<Result<(), AnswerError>>) -> u32 {
    match result {
        None => 1,
        Some(Ok(())) => 2,
        Some(Err(AnswerError::OutOfRange)) => 3,
        Some(Err(AnswerError::NoQuorum)) => 4,
        Some(Err(AnswerError::Io)) => 5,
        Some(Err(AnswerError::SessionLost)) => 6,
        Some(Err(AnswerError::Gone)) => 7,
        Some(Err(AnswerError::Path)) => 8,
        Some(Err(AnswerError::Reserved)) => 9,
    }
}

fn take_result(from: &Fields) -> Result<Option<Result<(), AnswerError>>, FrameError> {
    match from.detail {
        1 => Ok(None),
        2 => Ok(Some(Ok(()))),
        3 => Ok(Some(Err(AnswerError::OutOfRange))),
        4 => Ok(Some(Err(AnswerError::NoQuorum))),
        5 => Ok(Some(Err(AnswerError::Io))),
        6 => Ok(Some(Err(AnswerError::SessionLost))),
        7 => Ok(Some(Err(AnswerError::Gone))),
        8 => Ok(Some(Err(AnswerError::Path))),
        9 => Ok(Some(Err(AnswerError::Reserved))),
        _ => Err(FrameError::Malformed("an unknown result")),
    }
}

fn put_moment(moment: Option<Moment>, out: &mut Vec<u8>) {
    if let Some(moment) = moment {
        out.put_u64(moment.reign.0);
        out.put_u64(moment.number);
    }
}

fn take_way(body: &mut Reader<'_>) -> Result<Option<(u32, Moment)>, FrameError> {
    // A host may follow, which is of another length.
    if matches!(body.rest().len(), 0 | HOST_BYTES) {
        return Ok(None);
    }
    let way = body.u32()?;
    let moment = take_moment(body)?.ok_or(FrameError::Malformed("a way without a moment"))?;
    Ok(Some((way, moment)))
}

fn take_known_host(body: &mut Reader<'_>) -> Result<HostId, FrameError> {
    if body.is_empty() {
        return Ok(HostId(0));
    }
    match take_host(body)? {
        HostId(0) => Err(FrameError::Malformed("a host without an identity is named")),
        host => Ok(host),
    }
}

fn take_moment(body: &mut Reader<'_>) -> Result<Option<Moment>, FrameError> {
    if body.is_empty() {
        return Ok(None);
    }
    Ok(Some(Moment { reign: Epoch(body.u64()?), number: body.u64()? }))
}

/// The stretch that a node was on; nothing for the first of all, unless more follows.
fn take_history(body: &mut Reader<'_>) -> Result<u64, FrameError> {
    if body.is_empty() {
        return Ok(0);
    }
    match body.u64()? {
        0 if !body.is_empty() => Ok(0),
        0 => Err(FrameError::Malformed("a history that has no name is named")),
        history => Ok(history),
    }
}

fn take_runs(body: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, FrameError> {
    let mut runs = Vec::with_capacity(body.rest().len() / RUN_BYTES);
    while !body.is_empty() {
        runs.push((body.u64()?, body.u64()?));
    }
    Ok(runs)
}

fn take_doubt(body: &mut Reader<'_>) -> Result<Vec<DoubtRun>, FrameError> {
    let mut runs = Vec::with_capacity(body.rest().len() / DOUBT_RUN_BYTES);
    while !body.is_empty() {
        runs.push(DoubtRun {
            volume: VolumeId(body.u16()?),
            first: body.u64()?,
            end: body.u64()?,
            compare: body.bool()?,
            hot: body.bool()?,
        });
    }
    Ok(runs)
}

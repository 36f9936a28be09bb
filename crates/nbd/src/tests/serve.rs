//! The transmission phase.

use super::{DISK_BYTES, Host, PAYLOAD_SKIP_BYTES_MAX, info, transmitting};
use crate::number::*;
use crate::reply::put_request;
use crate::{
    CloseReason, Content, ErrorCode, Event, ExportInfo, Extent, Op, Replies, Reply, Request, Slot,
    Want, encode_disconnect, encode_request,
};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base::{AnswerError, Span};

const READ: Op = Op::Read { whole: false };
const ZERO: Op = Op::Zero { no_hole: false, fast: false };

/// Splits what a host has sent into replies, each with its payload. `simple_bytes` is the length of
/// the read that a simple reply answers.
fn replies(host: &mut Host, simple_bytes: usize) -> Vec<(Reply, Vec<u8>)> {
    let sent = host.sent();
    let (mut reader, mut found, mut at) = (Replies::new(), Vec::new(), 0);
    while at < sent.len() {
        let end = sent.len().min(at.saturating_add(host.step));
        let (taken, reply) = reader.feed(&sent[at..end]).unwrap();
        at += taken;
        let Some(reply) = reply else { continue };
        let length = match &reply {
            Reply::Simple { error: None, .. } => simple_bytes,
            other => other.payload_bytes() as usize,
        };
        found.push((reply, sent[at..at + length].to_vec()));
        at += length;
    }
    found
}

/// Sends a request by its numbers and gives the error it is answered with.
fn error_of(
    host: &mut Host,
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
) -> Option<ErrorCode> {
    let mut bytes = Vec::new();
    put_request(9, command, flags, offset, length, &mut bytes);
    host.receive(&bytes);
    if command == CMD_WRITE && length > 0 {
        assert_eq!(host.sent(), [], "a write is answered after its payload");
        host.receive(&vec![1; length as usize]);
    }
    let simple_bytes = if command == CMD_READ { length as usize } else { 0 };
    let mut replies = replies(host, simple_bytes);
    assert_eq!(replies.len(), 1, "one reply: {replies:?}");
    match replies.remove(0).0 {
        Reply::Simple { cookie: 9, error } => error,
        Reply::Error { cookie: 9, done: true, code, message } => {
            assert!(!message.is_empty());
            Some(code)
        }
        Reply::Data { cookie: 9, .. } | Reply::Hole { cookie: 9, .. } => None,
        Reply::Extents { cookie: 9, .. } => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_written_is_read_back_at_any_step_and_with_either_kind_of_reply() {
    for structured in [false, true] {
        for step in [1, 5, 27, 28, 29, usize::MAX] {
            let (mut host, _) = transmitting(info("disk"), structured);
            host.step = step;
            let payload: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8 + 1).collect();
            let mut bytes = Vec::new();
            encode_request(1, Op::Write, 8192, 4096, true, &mut bytes);
            bytes.extend_from_slice(&payload);
            encode_request(2, Op::Flush, 0, 0, false, &mut bytes);
            host.receive(&bytes);
            let done = |cookie| (Reply::Simple { cookie, error: None }, Vec::new());
            assert_eq!(replies(&mut host, 0), [done(1), done(2)]);
            let mut bytes = Vec::new();
            encode_request(3, READ, 8192, 4096, false, &mut bytes);
            host.receive(&bytes);
            let (reply, data) = replies(&mut host, 4096).remove(0);
            assert_eq!(data, payload);
            match reply {
                Reply::Simple { cookie: 3, error: None } => assert!(!structured),
                Reply::Data { cookie: 3, done: true, offset_bytes: 8192, length_bytes: 4096 } => {
                    assert!(structured);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(host.server.open_count(), 0);
        }
    }
}

#[test]
fn large_payload_is_asked_for_and_answered_in_pieces() {
    for structured in [false, true] {
        let (mut host, _) = transmitting(info("disk"), structured);
        let length = (2 << 20) + 512;
        let payload: Vec<u8> = (0..length).map(|i| (i % 253) as u8 + 1).collect();
        let mut bytes = Vec::new();
        encode_request(1, Op::Write, 512, length, false, &mut bytes);
        host.receive(&bytes);
        let slot = Slot(0);
        for (offset_bytes, length_bytes) in [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 512)] {
            assert_eq!(host.server.wants(), Want::Payload { slot, offset_bytes, length_bytes });
            assert_eq!(host.server.feed(b"never", &mut host.send).consumed, 0);
            let (from, to) = (offset_bytes as usize, (offset_bytes + length_bytes) as usize);
            host.receive(&payload[from..to]);
        }
        assert_eq!(replies(&mut host, 0).len(), 1);
        let mut bytes = Vec::new();
        encode_request(2, READ, 512, length, false, &mut bytes);
        host.receive(&bytes);
        let answer = replies(&mut host, length as usize);
        assert_eq!(answer.len(), if structured { 3 } else { 1 });
        let data: Vec<u8> = answer.iter().flat_map(|(_, data)| data.iter().copied()).collect();
        assert!(data == payload, "the data came back in pieces");
    }
}

#[test]
fn zeroes_are_sent_as_a_hole_only_where_replies_are_structured() {
    let (mut host, _) = transmitting(info("disk"), true);
    host.disk[4096] = 1;
    host.piece_bytes = 4096;
    let mut bytes = Vec::new();
    encode_request(1, READ, 0, 8192, false, &mut bytes);
    host.receive(&bytes);
    let answer = replies(&mut host, 0);
    let hole = Reply::Hole { cookie: 1, done: false, offset_bytes: 0, length_bytes: 4096 };
    let data = Reply::Data { cookie: 1, done: true, offset_bytes: 4096, length_bytes: 4096 };
    assert_eq!(answer[0], (hole, Vec::new()));
    assert_eq!(answer[1].0, data);

    let (mut host, _) = transmitting(info("disk"), false);
    assert_eq!(error_of(&mut host, CMD_READ, 0, 0, 4096), None, "the zeroes were sent as bytes");
}

#[test]
fn structured_pieces_may_come_in_any_order_and_between_other_replies() {
    let (mut host, _) = transmitting(info("disk"), true);
    let (a, b) = (open(&mut host, READ, 8192), open(&mut host, READ, 4096));
    let send = &mut host.send;
    assert!(host.server.reply_read(a.slot, 4096, 4096, Content::Data, send));
    send.extend_from_slice(&[1; 4096]);
    assert!(!host.server.reply_read(b.slot, 0, 4096, Content::Zeroes, send));
    assert_eq!(host.server.open_count(), 1);
    assert!(host.server.reply_read(a.slot, 0, 4096, Content::Data, send));
    send.extend_from_slice(&[2; 4096]);
    assert_eq!(host.server.open_count(), 0);
    let kinds: Vec<Reply> = replies(&mut host, 0).into_iter().map(|(reply, _)| reply).collect();
    let (cookie, length_bytes) = (7, 4096);
    assert_eq!(
        kinds,
        [
            Reply::Data { cookie, done: false, offset_bytes: 4096, length_bytes },
            Reply::Hole { cookie, done: true, offset_bytes: 0, length_bytes },
            Reply::Data { cookie, done: true, offset_bytes: 0, length_bytes },
        ]
    );
}

/// Opens a request at offset 0 and leaves it open.
fn open(host: &mut Host, op: Op, length_bytes: u32) -> Request {
    let mut bytes = Vec::new();
    encode_request(7, op, 0, length_bytes, false, &mut bytes);
    let fed = host.server.feed(&bytes, &mut host.send);
    let Some(Event::Request(request)) = fed.event else { panic!("{fed:?}") };
    request
}

#[test]
fn read_that_fails_midway_is_an_error_chunk_or_else_the_end() {
    let (mut host, _) = transmitting(info("disk"), true);
    let read = open(&mut host, READ, 8192);
    assert!(host.server.reply_read(read.slot, 0, 4096, Content::Data, &mut host.send));
    host.send.extend_from_slice(&[1; 4096]);
    assert_eq!(host.server.reply_error(read.slot, ErrorCode::Io, "lost", &mut host.send), None);
    let (reply, _) = replies(&mut host, 0).remove(1);
    let message = String::from("lost");
    assert_eq!(reply, Reply::Error { cookie: 7, done: true, code: ErrorCode::Io, message });

    let (mut host, _) = transmitting(info("disk"), false);
    let read = open(&mut host, READ, 8192);
    assert!(host.server.reply_read(read.slot, 0, 4096, Content::Data, &mut host.send));
    let before = host.send.len();
    let closed = host.server.reply_error(read.slot, ErrorCode::Io, "lost", &mut host.send);
    assert_eq!(closed, Some(CloseReason::ReadFailedMidway));
    assert_eq!(host.send.len(), before, "not a byte more");
    assert_eq!(host.server.wants(), Want::Nothing);

    let (mut host, _) = transmitting(info("disk"), false);
    let read = open(&mut host, READ, 8192);
    assert_eq!(host.server.reply_error(read.slot, ErrorCode::Io, "lost", &mut host.send), None);
    let error = Some(ErrorCode::Io);
    assert_eq!(replies(&mut host, 0)[0].0, Reply::Simple { cookie: 7, error });
}

#[test]
fn bad_requests_get_the_error_of_the_protocol_and_the_connection_goes_on() {
    use ErrorCode::{Invalid, NoSpace, Overflow};
    let end = DISK_BYTES as u64;
    for structured in [false, true] {
        let (mut host, _) = transmitting(info("disk"), structured);
        let too_long = if structured { Overflow } else { Invalid };
        let cases = [
            // Beyond the end.
            (CMD_READ, 0, end, 512, Invalid),
            (CMD_READ, 0, u64::MAX - 511, 512, Invalid),
            (CMD_READ, 0, end - 512, 1024, Invalid),
            (CMD_WRITE, 0, end - 512, 1024, NoSpace),
            (CMD_WRITE, 0, u64::MAX - 511, 512, NoSpace),
            (CMD_WRITE_ZEROES, 0, end, 512, NoSpace),
            (CMD_TRIM, 0, end, 512, Invalid),
            // Not whole blocks.
            (CMD_READ, 0, 1, 512, Invalid),
            (CMD_READ, 0, 0, 511, Invalid),
            (CMD_WRITE, 0, 256, 512, Invalid),
            (CMD_WRITE, 0, 0, 100, Invalid),
            (CMD_TRIM, 0, 0, 1, Invalid),
            (CMD_WRITE_ZEROES, 0, 3, 512, Invalid),
            // Empty.
            (CMD_READ, 0, 0, 0, Invalid),
            (CMD_WRITE, 0, 0, 0, Invalid),
            (CMD_TRIM, 0, 0, 0, Invalid),
            (CMD_WRITE_ZEROES, 0, 0, 0, Invalid),
            // Too long.
            (CMD_READ, 0, 0, PAYLOAD_BYTES_MAX + 512, too_long),
            (CMD_WRITE, 0, 0, PAYLOAD_BYTES_MAX + 512, Invalid),
            // Flags of other commands, and of none.
            (CMD_READ, CMD_FLAG_NO_HOLE, 0, 512, Invalid),
            (CMD_WRITE, CMD_FLAG_DF, 0, 512, Invalid),
            (CMD_TRIM, CMD_FLAG_REQ_ONE, 0, 512, Invalid),
            (CMD_FLUSH, 1 << 15, 0, 0, Invalid),
            (CMD_WRITE_ZEROES, 1 << 5, 0, 512, Invalid),
            // Not offered.
            (CMD_WRITE_ZEROES, CMD_FLAG_FAST_ZERO, 0, 512, Invalid),
            (5, 0, 0, 512, Invalid),
            (8, 0, 0, 512, Invalid),
            (u16::MAX, 0, 0, 512, Invalid),
            // A flush has no place.
            (CMD_FLUSH, 0, 512, 0, Invalid),
            (CMD_FLUSH, 0, 0, 512, Invalid),
        ];
        for (command, flags, offset, length, expected) in cases {
            let found = error_of(&mut host, command, flags, offset, length);
            assert_eq!(found, Some(expected), "{command} {flags:#x} {offset}+{length}");
            assert_eq!(host.server.open_count(), 0);
        }
        assert_eq!(error_of(&mut host, CMD_WRITE, CMD_FLAG_FUA, end - 512, 512), None);
        assert_eq!(error_of(&mut host, CMD_READ, CMD_FLAG_FUA, end - 512, 512), None);
        assert_eq!(
            host.disk[..DISK_BYTES - 512],
            vec![0; DISK_BYTES - 512],
            "nothing refused landed"
        );
    }
}

#[test]
fn read_only_export_permits_no_write_of_any_kind() {
    let mut export = info("disk");
    export.read_only = true;
    let (mut host, _) = transmitting(export, true);
    for command in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(error_of(&mut host, command, 0, 0, 512), Some(ErrorCode::NotPermitted));
    }
    assert_eq!(error_of(&mut host, CMD_READ, 0, 0, 512), None);
    assert_eq!(error_of(&mut host, CMD_FLUSH, 0, 0, 0), None);
}

#[test]
fn trim_is_invalid_where_it_was_not_offered() {
    let mut export = info("disk");
    export.trim = false;
    let (mut host, _) = transmitting(export, true);
    assert_eq!(error_of(&mut host, CMD_TRIM, 0, 0, 512), Some(ErrorCode::Invalid));
}

#[test]
fn requests_without_payload_may_be_longer_than_the_maximum_payload() {
    let huge = ExportInfo { size_bytes: 1 << 40, ..info("disk") };
    let (mut host, _) = transmitting(huge, true);
    for op in [Op::Trim, ZERO] {
        let request = open(&mut host, op, u32::MAX - 511);
        assert_eq!(request.span(), Span::new(0, u32::MAX / 512));
        host.server.reply_done(request.slot, &mut host.send);
    }
}

#[test]
fn flags_of_a_request_reach_the_caller() {
    let mut export = info("disk");
    export.fast_zero = true;
    let (mut host, _) = transmitting(export, true);
    let mut seen = |op: Op, fua: bool, length: u32| {
        let mut bytes = Vec::new();
        encode_request(1 << 63, op, 0, length, fua, &mut bytes);
        host.receive(&bytes);
        let Some(Event::Request(request)) = host.events.pop() else { panic!("no request") };
        if op == Op::Write {
            host.receive(&vec![0; length as usize]);
        }
        assert_eq!((request.cookie, request.op), (1 << 63, op));
        request.fua
    };
    assert!(seen(Op::Write, true, 512) && !seen(Op::Write, false, 512));
    assert!(seen(Op::Trim, true, 512) && !seen(Op::Trim, false, 512));
    for (no_hole, fast) in [(false, false), (true, false), (false, true), (true, true)] {
        assert!(seen(Op::Zero { no_hole, fast }, true, 512));
    }
    assert!(!seen(READ, true, 512), "a read has nothing to make durable");
    assert!(!seen(Op::Flush, true, 0));
    seen(Op::Read { whole: true }, false, 512);
    seen(Op::BlockStatus { one: true }, false, 512);
    seen(Op::BlockStatus { one: false }, false, 512);
}

#[test]
fn fast_zero_may_be_answered_as_not_supported_where_it_is_offered() {
    let mut export = info("disk");
    export.fast_zero = true;
    let (mut host, ready) = transmitting(export, false);
    assert_ne!(ready.flags & FLAG_SEND_FAST_ZERO, 0);
    let found = error_of(&mut host, CMD_WRITE_ZEROES, CMD_FLAG_FAST_ZERO, 0, 512);
    assert_eq!(found, Some(ErrorCode::NotSupported));
    assert_eq!(error_of(&mut host, CMD_WRITE_ZEROES, 0, 0, 512), None);
}

#[test]
fn read_that_must_stay_whole_is_one_chunk_or_an_overflow() {
    let (mut host, _) = transmitting(info("disk"), true);
    host.piece_bytes = 512;
    host.disk.fill(1);
    assert_eq!(error_of(&mut host, CMD_READ, CMD_FLAG_DF, 0, PIECE_BYTES_MAX), None);
    let found = error_of(&mut host, CMD_READ, CMD_FLAG_DF, 0, PIECE_BYTES_MAX + 512);
    assert_eq!(found, Some(ErrorCode::Overflow));
    let (mut host, _) = transmitting(info("disk"), false);
    let found = error_of(&mut host, CMD_READ, CMD_FLAG_DF, 0, 512);
    assert_eq!(found, Some(ErrorCode::Invalid), "only with structured replies");
}

#[test]
fn block_status_tells_extents_as_far_as_asked() {
    let (mut host, ready) = transmitting(info("disk"), true);
    let status = |host: &mut Host, one: bool, length: u32| {
        let mut bytes = Vec::new();
        encode_request(4, Op::BlockStatus { one }, 0, length, false, &mut bytes);
        host.receive(&bytes);
        let (reply, payload) = replies(host, 0).remove(0);
        let count = payload.len() as u32 / 8;
        assert_eq!(reply, Reply::Extents { cookie: 4, done: true, context: 1, count });
        payload.as_chunks::<8>().0.iter().map(|&bytes| Extent::decode(bytes)).collect::<Vec<_>>()
    };
    assert_eq!(ready.allocation, Some(1));
    let data = Extent { length_bytes: 4096, hole: false, zero: false };
    let hole = Extent { length_bytes: 1 << 20, hole: true, zero: true };
    assert_eq!(status(&mut host, false, 8192), [data, hole], "the last may reach further");
    assert_eq!(status(&mut host, false, 4096), [data], "what was not asked for is left out");
    assert_eq!(status(&mut host, true, 8192), [data]);
    assert_eq!(status(&mut host, true, 512), [Extent { length_bytes: 512, ..data }]);
    let request = open(&mut host, Op::BlockStatus { one: false }, DISK_BYTES as u32);
    let many = vec![Extent { length_bytes: 512, ..data }; EXTENTS_MAX + 1];
    host.server.reply_extents(request.slot, &many, &mut host.send);
    assert_eq!(replies(&mut host, 0)[0].1.len(), EXTENTS_MAX * 8);
    let found = error_of(&mut host, CMD_BLOCK_STATUS, 0, DISK_BYTES as u64, 512);
    assert_eq!(found, Some(ErrorCode::Invalid));
    let (mut host, _) = transmitting(info("disk"), false);
    assert_eq!(error_of(&mut host, CMD_BLOCK_STATUS, 0, 0, 512), Some(ErrorCode::Invalid));
}

#[test]
fn full_table_stops_the_reading_until_one_request_is_answered() {
    let (mut host, _) = transmitting(info("disk"), false);
    let requests: Vec<Request> =
        (0..REQUESTS_OPEN_MAX).map(|_| open(&mut host, Op::Flush, 0)).collect();
    let mut indices: Vec<usize> = requests.iter().map(|request| request.slot.index()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..REQUESTS_OPEN_MAX).collect::<Vec<_>>());
    assert_eq!(host.server.wants(), Want::Room);
    let mut bytes = Vec::new();
    encode_request(1, Op::Flush, 0, 0, false, &mut bytes);
    assert_eq!(host.server.feed(&bytes, &mut host.send).consumed, 0);
    host.server.reply_done(requests[77].slot, &mut host.send);
    assert_eq!(host.server.wants(), Want::Header { bytes: 28 });
    assert_eq!(open(&mut host, Op::Flush, 0).slot, requests[77].slot);
    assert_eq!(host.server.open_count(), REQUESTS_OPEN_MAX);
}

#[test]
fn payload_that_the_caller_will_not_take_is_skipped_and_answered_at_its_end() {
    let (mut host, _) = transmitting(info("disk"), false);
    let length = PIECE_BYTES_MAX + 512;
    let write = open(&mut host, Op::Write, length);
    assert!(!host.server.payload_done(write.slot), "a second piece follows");
    host.server.payload_refused(write.slot, ErrorCode::Io, "no quorum");
    assert_eq!(host.server.wants(), Want::Header { bytes: 512 });
    host.receive(&[0; 511]);
    assert_eq!(host.sent(), []);
    host.receive(&[0; 1]);
    let error = Some(ErrorCode::Io);
    assert_eq!(replies(&mut host, 0)[0].0, Reply::Simple { cookie: 7, error });
    assert_eq!(host.server.open_count(), 0);
    assert_eq!(error_of(&mut host, CMD_WRITE, 0, 0, 512), None);
}

#[test]
fn disconnect_leaves_open_requests_to_be_answered() {
    let (mut host, _) = transmitting(info("disk"), false);
    let flush = open(&mut host, Op::Flush, 0);
    let mut bytes = Vec::new();
    encode_disconnect(&mut bytes);
    host.receive(&bytes);
    assert_eq!(host.closed, Some(CloseReason::ClientDone));
    assert_eq!((host.server.wants(), host.server.open_count()), (Want::Nothing, 1));
    host.server.reply_done(flush.slot, &mut host.send);
    assert_eq!(replies(&mut host, 0).len(), 1);
}

#[test]
fn client_that_loses_the_thread_is_dropped() {
    let (mut host, _) = transmitting(info("disk"), true);
    host.receive(&[0x25; 28]);
    assert_eq!(host.closed, Some(CloseReason::BadRequestMagic));
    let (mut host, _) = transmitting(info("disk"), true);
    let mut bytes = Vec::new();
    put_request(1, CMD_WRITE, 0, 0, PAYLOAD_SKIP_BYTES_MAX + 1, &mut bytes);
    host.receive(&bytes);
    assert_eq!(host.closed, Some(CloseReason::PayloadTooLarge));
}

#[test]
fn stopping_server_refuses_new_requests_and_still_takes_their_payload() {
    let (mut host, _) = transmitting(info("disk"), true);
    host.server.shut_down();
    for (command, length) in [(CMD_READ, 512), (CMD_WRITE, 512), (CMD_FLUSH, 0)] {
        let found = error_of(&mut host, command, 0, 0, length);
        assert_eq!(found, Some(ErrorCode::ShuttingDown));
    }
}

#[test]
fn grown_export_is_served_to_its_new_end() {
    let (mut host, _) = transmitting(info("disk"), false);
    let end = DISK_BYTES as u64;
    assert_eq!(error_of(&mut host, CMD_WRITE_ZEROES, 0, end, 512), Some(ErrorCode::NoSpace));
    host.server.resized(end + 512);
    host.disk.resize(DISK_BYTES + 512, 0);
    assert_eq!(error_of(&mut host, CMD_WRITE_ZEROES, 0, end, 512), None);
}

#[test]
fn steady_reads_and_writes_do_not_make_the_send_buffer_grow() {
    for structured in [false, true] {
        let (mut host, _) = transmitting(info("disk"), structured);
        let mut send = Vec::with_capacity(64);
        let at = send.as_ptr();
        let mut bytes = Vec::new();
        encode_request(1, Op::Write, 0, 4096, false, &mut bytes);
        encode_request(2, READ, 0, 4096, false, &mut bytes);
        for _ in 0..1000 {
            send.clear();
            let fed = host.server.feed(&bytes, &mut send);
            let Some(Event::Request(write)) = fed.event else { panic!("{fed:?}") };
            assert!(host.server.payload_done(write.slot));
            host.server.reply_done(write.slot, &mut send);
            let fed = host.server.feed(&bytes[28..], &mut send);
            let Some(Event::Request(read)) = fed.event else { panic!("{fed:?}") };
            assert!(host.server.reply_read(read.slot, 0, 4096, Content::Data, &mut send));
        }
        assert_eq!((send.capacity(), send.as_ptr()), (64, at));
        assert_eq!(host.server.data.capacity(), 0, "the handshake's memory is given back");
    }
}

#[test]
fn answers_of_the_volume_have_their_errors() {
    let cases = [
        (AnswerError::OutOfRange, 22),
        (AnswerError::NoQuorum, 5),
        (AnswerError::Io, 5),
        (AnswerError::SessionLost, 108),
        (AnswerError::Gone, 108),
    ];
    for (error, value) in cases {
        assert_eq!(ErrorCode::from(error).value(), value);
        assert_eq!(ErrorCode::from_value(value), ErrorCode::from(error));
    }
    for value in [1, 5, 12, 22, 28, 75, 95, 108] {
        assert_eq!(ErrorCode::from_value(value).value(), value);
    }
    assert_eq!(ErrorCode::from_value(4711), ErrorCode::Invalid);
}

#[test]
#[should_panic(expected = "before its payload")]
fn write_answered_before_its_payload_is_our_bug() {
    let (mut host, _) = transmitting(info("disk"), false);
    let write = open(&mut host, Op::Write, 512);
    host.server.reply_done(write.slot, &mut host.send);
}

#[test]
#[should_panic(expected = "not open")]
fn request_answered_twice_is_our_bug() {
    let (mut host, _) = transmitting(info("disk"), false);
    let flush = open(&mut host, Op::Flush, 0);
    host.server.reply_done(flush.slot, &mut host.send);
    host.server.reply_done(flush.slot, &mut host.send);
}

#[test]
#[should_panic(expected = "out of order")]
fn simple_reply_in_the_wrong_order_is_our_bug() {
    let (mut host, _) = transmitting(info("disk"), false);
    let read = open(&mut host, READ, 8192);
    let _ = host.server.reply_read(read.slot, 4096, 4096, Content::Data, &mut host.send);
}

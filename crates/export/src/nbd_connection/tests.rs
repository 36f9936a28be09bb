//! A client's bytes in, requests and replies out, with a disk of a few lines behind it.

use super::{Ask, Demand, Inputs, NbdConnection, PIECE_BYTES, RECEIVE_BYTES, SAID_BYTES_MAX};
use base::{AnswerError, Duration, Instant, Op};
use nbd::{Client, ClientEvent, ExportInfo, Goal, Replies, Reply};
use sys::{Buffer, BufferPool};

const MIB: usize = 1 << 20;
const NOW: Instant = Instant(60_000_000_000);

/// A connection, the bytes it has sent, and the volume behind it.
struct Bench {
    connection: NbdConnection,
    pool: BufferPool,
    sent: Vec<u8>,
    disk: Vec<u8>,
    asked: Vec<(Op, u64, u64)>,
    /// Demands that came at once, at most.
    most: usize,
    refuse: Option<AnswerError>,
    /// The session is lost before the next answer.
    loses: bool,
}

impl Bench {
    fn new() -> Bench {
        let pool = BufferPool::new(64 * MIB);
        let zeroes = pool.take_zeroed(MIB).expect("room");
        Bench {
            connection: NbdConnection::new(Inputs::new(1), pool.clone(), zeroes),
            pool,
            sent: Vec::new(),
            disk: vec![0; 8 * MIB],
            asked: Vec::new(),
            most: 0,
            refuse: None,
            loses: false,
        }
    }

    /// A bench whose client has opened the export.
    fn entered(structured: bool) -> Bench {
        let name = "alpha".to_owned();
        Bench::entered_with(Goal::Use { name, structured, allocation: false })
    }

    fn entered_with(goal: Goal) -> Bench {
        Bench::new().enter(goal)
    }

    fn enter(self, goal: Goal) -> Bench {
        let mut bench = self;
        let mut client = Client::new(goal, false);
        loop {
            bench.settle();
            let mut send = Vec::new();
            let (used, event) = client.feed(&bench.sent, &mut send).expect("an honest server");
            bench.sent.drain(..used);
            if let Some(ClientEvent::Ready(ready)) = event {
                assert_eq!(ready.size_bytes, bench.disk.len() as u64);
                return bench;
            }
            bench.receive(&send);
        }
    }

    /// The client's bytes arrive, as far as the connection takes some.
    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (mut buffer, range) = self.connection.receive_into().expect("it takes more");
            let count = range.len().min(bytes.len());
            let target = &mut buffer.as_mut().expect("nobody else has it")[range];
            target[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            let mut demands = Vec::new();
            self.connection.received(NOW, buffer, count, &mut demands);
            self.carry_out(demands);
            self.settle();
        }
    }

    fn carry_out(&mut self, demands: Vec<Demand>) {
        self.most = self.most.max(demands.len());
        for demand in demands {
            match demand {
                Demand::Lookup { enters, .. } => {
                    let info = ExportInfo::new("alpha".to_owned(), self.disk.len() as u64);
                    self.connection.found(&info, enters, 2);
                }
                Demand::Holes { tag, .. } => {
                    if std::mem::take(&mut self.loses) {
                        self.connection.lose();
                    }
                    self.connection.holes(tag, &[4096..8192, 1 << 20..2 << 20]);
                }
                Demand::List => self.connection.exports([("alpha", "")]),
                other @ (Demand::Connect(_)
                | Demand::Switched
                | Demand::Proved(_)
                | Demand::Reserve { .. }) => {
                    panic!("{other:?}")
                }
                Demand::Ask(ask) => {
                    let (at, length) = (ask.span.offset_bytes(), ask.span.length_bytes());
                    self.asked.push((ask.op, at, length));
                    let range = usize::try_from(at).expect("small");
                    let range = range..range + usize::try_from(length).expect("small");
                    let answer = self.touch(ask.op, &range, ask.buffer);
                    if std::mem::take(&mut self.loses) {
                        self.connection.lose();
                    }
                    self.connection.answer(ask.tag, self.refuse.map_or(Ok(()), Err), answer);
                }
            }
        }
    }

    fn touch(
        &mut self,
        op: Op,
        range: &std::ops::Range<usize>,
        buffer: Option<Buffer>,
    ) -> Option<Buffer> {
        match op {
            Op::Write => {
                let bytes = buffer.expect("a write has bytes");
                self.disk[range.clone()].copy_from_slice(&bytes);
            }
            Op::Zero { .. } => self.disk[range.clone()].fill(0),
            Op::Read if self.disk[range.clone()].iter().any(|&byte| byte != 0) => {
                let mut buffer = self.pool.take(range.len()).expect("room");
                buffer.as_mut().expect("new").copy_from_slice(&self.disk[range.clone()]);
                return Some(buffer);
            }
            Op::Read | Op::Flush => {}
        }
        None
    }

    /// Takes everything that is to be sent, and goes on.
    fn settle(&mut self) {
        loop {
            let mut demands = Vec::new();
            self.connection.proceed(NOW, &mut demands);
            let quiet = demands.is_empty();
            self.carry_out(demands);
            let mut pieces = Vec::new();
            self.connection.take_send(&mut pieces);
            for piece in pieces {
                self.sent.extend_from_slice(piece.as_slice());
                self.connection.sent(piece.len() as u64);
            }
            if quiet {
                return;
            }
        }
    }

    /// One request; the data of the answer, or the words of its error.
    fn request(
        &mut self,
        op: nbd::Op,
        at: usize,
        length: usize,
        payload: &[u8],
    ) -> Result<Vec<u8>, String> {
        let mut send = Vec::new();
        nbd::encode_request(9, op, at as u64, length as u32, false, &mut send);
        send.extend_from_slice(payload);
        self.receive(&send);
        let mut data = vec![0; length];
        let mut replies = Replies::new();
        loop {
            let (used, reply) = replies.feed(&self.sent).expect("an honest server");
            self.sent.drain(..used);
            match reply.expect("everything is answered at once") {
                Reply::Data { offset_bytes, length_bytes, done, .. } => {
                    let start = offset_bytes as usize - at;
                    let part = &mut data[start..start + length_bytes as usize];
                    part.copy_from_slice(&self.sent[..length_bytes as usize]);
                    self.sent.drain(..length_bytes as usize);
                    if done {
                        return Ok(data);
                    }
                }
                Reply::Hole { done: false, .. } => {}
                Reply::Simple { error: None, .. } if matches!(op, nbd::Op::Read { .. }) => {
                    return Ok(self.sent.drain(..length).collect());
                }
                Reply::Hole { .. } | Reply::Simple { error: None, .. } | Reply::Done { .. } => {
                    return Ok(data);
                }
                Reply::Simple { error: Some(code), .. } => return Err(format!("{code:?}")),
                Reply::Error { message, .. } => return Err(message),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

#[test]
fn what_is_written_is_read_in_both_forms_of_replies_wherever_it_lies() {
    for structured in [true, false] {
        let mut bench = Bench::entered(structured);
        let bytes = content(3 * MIB + 512);
        let (at, length) = (MIB - 4096, bytes.len());
        bench.request(nbd::Op::Write, at, length, &bytes).expect("written");
        let read = bench.request(nbd::Op::Read { whole: false }, at, length, &[]);
        assert!(read.expect("read") == bytes, "structured: {structured}");
        let around = bench.request(nbd::Op::Read { whole: false }, 0, 8 * MIB, &[]);
        assert!(around.expect("read") == bench.disk, "holes and data together");
    }
}

#[test]
fn no_piece_is_longer_than_what_two_nodes_send_at_once() {
    let mut bench = Bench::entered(true);
    bench.request(nbd::Op::Write, MIB / 2, 2 * MIB, &content(2 * MIB)).expect("written");
    bench.request(nbd::Op::Zero { no_hole: false, fast: false }, 512, 7 * MIB, &[]).expect("zero");
    assert_eq!(bench.asked.len(), 4 + 8);
    for &(op, at, length) in &bench.asked {
        let (first, last) = (at / PIECE_BYTES, (at + length - 1) / PIECE_BYTES);
        assert_eq!(first, last, "{op:?} at {at} of {length}");
    }
}

#[test]
fn holes_are_told_in_order_and_the_rest_is_data() {
    let mut bench = Bench::entered_with(Goal::Use {
        name: "alpha".to_owned(),
        structured: true,
        allocation: true,
    });
    let mut send = Vec::new();
    nbd::encode_request(9, nbd::Op::BlockStatus { one: false }, 0, 4 << 20, false, &mut send);
    bench.receive(&send);
    let descriptors: Vec<nbd::Extent> = bench.sent[bench.sent.len() - 40..]
        .chunks(8)
        .map(|bytes| nbd::Extent::decode(bytes.try_into().expect("eight bytes")))
        .collect();
    let told: Vec<(u32, bool)> =
        descriptors.iter().map(|extent| (extent.length_bytes, extent.hole)).collect();
    let mib = 1 << 20;
    assert_eq!(
        told,
        [(4096, false), (4096, true), (mib - 8192, false), (mib, true), (2 * mib, false)]
    );
    assert!(descriptors.iter().all(|extent| extent.hole == extent.zero));
}

#[test]
fn a_flush_goes_to_every_shard_and_is_answered_once() {
    let mut bench = Bench::entered(true);
    bench.request(nbd::Op::Flush, 0, 0, &[]).expect("flushed");
    assert_eq!(bench.asked.iter().filter(|(op, ..)| *op == Op::Flush).count(), 2);
    assert!(bench.sent.is_empty(), "one answer");
}

#[test]
fn a_read_that_must_stay_whole_is_one_chunk_over_several_pieces() {
    let mut bench = Bench::entered(true);
    bench.request(nbd::Op::Write, MIB - 4096, 4096, &content(4096)).expect("written");
    let read = bench.request(nbd::Op::Read { whole: true }, MIB - 4096, 8192, &[]).expect("read");
    assert_eq!(read, bench.disk[MIB - 4096..MIB + 4096]);
}

#[test]
fn a_session_that_lost_writes_is_told_so_again_until_it_opens_anew() {
    let mut bench = Bench::entered(true);
    bench.refuse = Some(AnswerError::SessionLost);
    assert!(bench.request(nbd::Op::Write, 0, 4096, &content(4096)).is_err());
    bench.refuse = None;
    assert!(bench.request(nbd::Op::Read { whole: false }, 0, 4096, &[]).is_err());
    let mut anew = Bench::entered(true);
    assert!(anew.request(nbd::Op::Read { whole: false }, 0, 4096, &[]).is_ok());
}

#[test]
fn what_is_carried_out_when_the_session_is_lost_is_no_success() {
    for op in [nbd::Op::Read { whole: false }, nbd::Op::Write, nbd::Op::Flush] {
        let mut bench = Bench::entered(true);
        bench.loses = true;
        let bytes = if op == nbd::Op::Write { content(4096) } else { Vec::new() };
        let length = if op == nbd::Op::Flush { 0 } else { 4096 };
        assert!(bench.request(op, 0, length, &bytes).is_err(), "{op:?}");
    }
    let name = "alpha".to_owned();
    let mut bench = Bench::entered_with(Goal::Use { name, structured: true, allocation: true });
    bench.loses = true;
    assert!(bench.request(nbd::Op::BlockStatus { one: false }, 0, 4096, &[]).is_err());
}

#[test]
fn what_arrives_of_a_write_after_its_session_was_lost_is_not_written() {
    let mut bench = Bench::entered(true);
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Write, 0, 2 * MIB as u32, false, &mut send);
    send.extend_from_slice(&content(2 * MIB));
    let (before, after) = send.split_at(send.len() - MIB / 2);
    bench.receive(before);
    assert_eq!(bench.asked.len(), 1);
    bench.connection.lose();
    bench.receive(after);
    assert_eq!(bench.asked.len(), 1, "whoever sent it saw what is not so any more");
    let (_, reply) = Replies::new().feed(&bench.sent).expect("an honest server");
    assert!(matches!(reply, Some(Reply::Error { .. })), "{reply:?}");
}

#[test]
fn what_is_given_back_is_asked_for_in_parts_however_much_it_is() {
    let mut bench = Bench::new();
    bench.disk = vec![7; 200 * MIB];
    let name = "alpha".to_owned();
    let mut bench = bench.enter(Goal::Use { name, structured: true, allocation: false });
    let most = |bench: &Bench| bench.most <= 64;
    bench.request(nbd::Op::Trim, 4096, 190 * MIB, &[]).expect("given back");
    assert!(most(&bench), "{} at once", bench.most);
    assert!(bench.disk[4096..4096 + 190 * MIB].iter().all(|&byte| byte == 0));
    assert!(
        bench.disk[..4096].iter().chain(&bench.disk[4096 + 190 * MIB..]).all(|&byte| byte == 7)
    );
    bench.asked.clear();
    bench.refuse = Some(AnswerError::Io);
    assert!(bench.request(nbd::Op::Trim, 0, 190 * MIB, &[]).is_err());
    assert!(most(&bench) && bench.asked.len() <= 64, "one that has failed goes no further");
}

/// What a connection asks of the shards when these bytes come, which lay unread for so long.
fn asked(bench: &mut Bench, bytes: &[u8], age: Duration) -> Vec<Ask> {
    let (mut buffer, range) = bench.connection.receive_into().expect("it takes more");
    buffer.as_mut().expect("nobody else has it")[range][..bytes.len()].copy_from_slice(bytes);
    let mut demands = Vec::new();
    bench.connection.lay_unread(age);
    bench.connection.received(NOW, buffer, bytes.len(), &mut demands);
    asks(demands)
}

fn asks(demands: Vec<Demand>) -> Vec<Ask> {
    let ask = |demand| match demand {
        Demand::Ask(ask) => ask,
        other => panic!("{other:?}"),
    };
    demands.into_iter().map(ask).collect()
}

#[test]
fn a_trim_that_takes_long_ends_with_what_is_done_and_a_zeroing_goes_on_as_what_came_then() {
    for (op, goes_on) in
        [(nbd::Op::Trim, false), (nbd::Op::Zero { no_hole: false, fast: false }, true)]
    {
        let mut bench = Bench::new();
        bench.disk = vec![0; 200 * MIB];
        let name = "alpha".to_owned();
        let mut bench = bench.enter(Goal::Use { name, structured: true, allocation: false });
        bench.connection.moves();
        let mut send = Vec::new();
        nbd::encode_request(9, op, 0, 190 << 20, false, &mut send);
        let mut all = asked(&mut bench, &send, Duration(0));
        for seconds in [2, 4] {
            assert_eq!(all.len(), 64);
            assert!(all.iter().all(|ask| ask.came == Some(NOW)));
            for ask in all.drain(..) {
                bench.connection.answer(ask.tag, Ok(()), None);
            }
            let mut demands = Vec::new();
            bench.connection.proceed(NOW + Duration::from_secs(seconds), &mut demands);
            all = asks(demands);
        }
        assert_eq!(all.iter().map(|ask| ask.came).max(), goes_on.then_some(Some(NOW)));
        bench.settle();
        assert_eq!(bench.sent.is_empty(), goes_on, "the trim is answered");
        if !goes_on {
            let (_, reply) = Replies::new().feed(&bench.sent).expect("an honest server");
            assert!(!matches!(reply, Some(Reply::Error { .. })), "{reply:?}");
        }
    }
}

#[test]
fn what_a_client_that_moves_asks_for_came_when_it_came_to_its_socket() {
    let age = Duration::from_secs(3);
    for (moves, came) in [(true, Some(NOW - age)), (false, None)] {
        let mut bench = Bench::entered(true);
        if moves {
            bench.connection.moves();
        }
        let mut send = Vec::new();
        nbd::encode_request(1, nbd::Op::Write, 0, 4096, false, &mut send);
        send.extend_from_slice(&content(4096));
        let asks = asked(&mut bench, &send, age);
        assert_eq!(asks.iter().map(|ask| ask.came).collect::<Vec<_>>(), [came]);
    }
}

#[test]
fn bytes_that_come_one_at_a_time_make_the_same_requests() {
    let mut bench = Bench::entered(true);
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Write, 512, 1024, false, &mut send);
    send.extend_from_slice(&content(1024));
    for byte in send {
        bench.receive(&[byte]);
    }
    assert_eq!(bench.disk[512..1536], content(1024));
}

#[test]
fn a_client_that_meets_an_empty_pool_waits_and_is_served_later() {
    let mut bench = Bench::entered(true);
    let hoard: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(MIB)).collect();
    let small: Vec<Buffer> = std::iter::from_fn(|| bench.pool.take(4096)).collect();
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Write, 0, 4096, false, &mut send);
    bench.receive(&send);
    assert!(bench.connection.starved(), "there is no room for the payload");
    assert!(bench.connection.receive_into().is_none(), "nothing is taken meanwhile");
    drop((hoard, small));
    bench.settle();
    bench.receive(&content(4096));
    assert_eq!(bench.disk[..4096], content(4096));
}

#[test]
fn a_read_has_room_before_it_begins_and_holds_it_until_its_answer_has_left() {
    let mut bench = Bench::entered(true);
    let room = BufferPool::new(2 * MIB);
    bench.connection.draw_from(room.clone());
    bench.disk.fill(7);
    let hoard = room.take(4096);
    let mut send = Vec::new();
    nbd::encode_request(1, nbd::Op::Read { whole: false }, 0, 2 << 20, false, &mut send);
    bench.receive(&send);
    assert!(bench.connection.starved() && bench.asked.is_empty(), "it has not begun");
    drop(hoard);
    let mut demands = Vec::new();
    bench.connection.proceed(NOW, &mut demands);
    bench.carry_out(demands);
    let mut pieces = Vec::new();
    bench.connection.take_send(&mut pieces);
    assert!(bench.connection.waits_for_client());
    // What the disk's pool has is the zeroes.
    assert_eq!((room.used_bytes(), bench.pool.used_bytes()), (2 * MIB, MIB));
    for piece in pieces {
        bench.connection.sent(piece.len() as u64);
    }
    assert!(!bench.connection.waits_for_client());
    assert_eq!((room.used_bytes(), bench.pool.used_bytes()), (0, MIB));
}

#[test]
fn every_client_has_a_buffer_for_requests_the_first_ones_large_ones() {
    let inputs = Inputs::new(300);
    let large: Vec<Buffer> = (0..64).map(|_| inputs.take().expect("room")).collect();
    let small: Vec<Buffer> = (0..236).map(|_| inputs.take().expect("room")).collect();
    let guarded: Vec<Buffer> = (0..300).map(|_| inputs.take_guarded().expect("room")).collect();
    assert!(large.iter().all(|buffer| buffer.len() == 64 << 10));
    assert!(small.iter().chain(&guarded).all(|buffer| buffer.len() == 4 << 10));
}

#[test]
fn a_write_that_came_too_late_ends_the_connection_of_a_client_that_moves_and_is_an_error_of_another()
 {
    for moves in [true, false] {
        let mut bench = Bench::entered(true);
        if moves {
            bench.connection.moves();
        }
        bench.refuse = Some(AnswerError::Path);
        let mut send = Vec::new();
        nbd::encode_request(1, nbd::Op::Write, 0, 4096, false, &mut send);
        send.extend_from_slice(&content(4096));
        bench.receive(&send);
        assert_eq!(bench.sent.is_empty(), moves, "who moves gets no answer");
        assert_eq!(bench.connection.is_sent_off(), moves);
        assert_eq!(bench.connection.receive_into().is_none(), moves, "nothing more is taken");
    }
}

/// A client asks for the same over and over, which is answered at once, as long as it is taken. `taken`: so many bytes of it were.
fn ask_on(bench: &mut Bench, request: &[u8], taken: &mut usize, sends: &mut Vec<Vec<sys::Piece>>) {
    let flood = request.repeat(RECEIVE_BYTES / request.len());
    while *taken < 32 * MIB
        && let Some((mut buffer, range)) = bench.connection.receive_into()
    {
        // Each time from where the last one ended.
        let from = *taken % request.len();
        let count = range.len().min(flood.len() - from);
        let target = &mut buffer.as_mut().expect("nobody else has it")[range];
        target[..count].copy_from_slice(&flood[from..from + count]);
        *taken += count;
        let mut demands = Vec::new();
        bench.connection.received(NOW, buffer, count, &mut demands);
        while !demands.is_empty() {
            bench.carry_out(std::mem::take(&mut demands));
            bench.connection.proceed(NOW, &mut demands);
        }
        if sends.len() < 8 {
            let mut pieces = Vec::new();
            bench.connection.take_send(&mut pieces);
            sends.push(pieces);
        }
    }
}

fn length_of(pieces: &[sys::Piece]) -> usize {
    pieces.iter().map(sys::Piece::len).sum()
}

#[test]
fn from_a_client_that_takes_no_answers_little_is_taken_whatever_it_asks() {
    let whole = nbd::Op::BlockStatus { one: false };
    for (op, at, length) in [
        (nbd::Op::Read { whole: false }, 8 << 20, 4096),
        (nbd::Op::Flush, 0, 0),
        (nbd::Op::Trim, 0, 4096),
        (whole, 0, 4 << 20),
    ] {
        let name = "alpha".to_owned();
        let goal = Goal::Use { name, structured: true, allocation: true };
        let mut bench = Bench::entered_with(goal);
        let mut request = Vec::new();
        nbd::encode_request(9, op, at, length, false, &mut request);
        let (mut taken, mut sends) = (0, Vec::new());
        ask_on(&mut bench, &request, &mut taken, &mut sends);
        assert!(taken < 4 * MIB, "{op:?}: it takes more and more");
        let mut under_way: usize = sends.iter().map(|pieces| length_of(pieces)).sum();
        let mut rest = Vec::new();
        bench.connection.take_send(&mut rest);
        under_way += length_of(&rest);
        let most = SAID_BYTES_MAX as usize + (128 << 10);
        assert!(under_way > MIB / 2 && under_way < most, "{op:?}: {under_way} bytes");
        assert!(bench.connection.receive_into().is_none(), "what is on its way counts");
        sends.push(rest);
        for pieces in sends.drain(..) {
            bench.connection.sent(length_of(&pieces) as u64);
        }
        let before = taken;
        bench.settle();
        ask_on(&mut bench, &request, &mut taken, &mut sends);
        assert!(taken > before, "{op:?}: it goes on");
    }
}

#[test]
fn what_may_be_said_about_holes_counts_before_it_is() {
    let name = "alpha".to_owned();
    let goal = Goal::Use { name, structured: true, allocation: true };
    let mut bench = Bench::entered_with(goal);
    let mut request = Vec::new();
    let whole = nbd::Op::BlockStatus { one: false };
    nbd::encode_request(9, whole, 0, 4 << 20, false, &mut request);
    let (mut buffer, _) = bench.connection.receive_into().expect("it takes more");
    let flood = request.repeat(100);
    buffer.as_mut().expect("nobody else has it")[..flood.len()].copy_from_slice(&flood);
    let (mut questions, mut demands) = (0, Vec::new());
    bench.connection.received(NOW, buffer, flood.len(), &mut demands);
    while !demands.is_empty() {
        assert!(demands.len() <= 33, "{} at once", demands.len());
        questions += demands.len();
        bench.carry_out(std::mem::take(&mut demands));
        bench.connection.proceed(NOW, &mut demands);
    }
    assert_eq!(questions, 100);
}

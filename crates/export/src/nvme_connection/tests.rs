//! A host's bytes in, commands and answers out, with a disk of a few lines behind it.

use super::NvmeConnection;
use crate::nbd_connection::{Ask, Demand, Inputs};
use crate::psk_guard::PskOffer;
use base::{AnswerError, Duration, Instant, Op};
use nvme::{CloseReason, Controller, Digests, Host, HostEvent, Namespace, Service, Status};
use std::sync::Arc;
use sys::{Buffer, BufferPool, Psk, PskFault, PskSession, PskTls};

const MIB: usize = 1 << 20;

/// A connection, and the two volumes behind it.
struct Bench {
    connection: NvmeConnection,
    pool: BufferPool,
    host: Host,
    send: Vec<u8>,
    /// What is on its way to the connection.
    wire: Vec<u8>,
    disks: [Vec<u8>; 2],
    asked: Vec<(Op, u16, u16, u64, u64)>,
    /// Questions that are not answered while it is `Some`.
    held: Option<Vec<Ask>>,
    /// Only flushes.
    hold_flushes: bool,
    refuse: Option<AnswerError>,
    /// The host's side of TLS.
    tls: Option<PskSession>,
}

impl Bench {
    fn new(digests: Digests, memory: usize) -> Bench {
        Bench::make(digests, memory, None)
    }

    /// The same inside TLS; `None`, and a word, where this machine has none.
    fn inside_tls(digests: Digests, memory: usize) -> Option<Bench> {
        match PskTls::new() {
            Ok(tls) => Some(Bench::make(digests, memory, Some(&tls))),
            Err(why) => {
                println!("NOT RUN: {why}");
                None
            }
        }
    }

    fn make(digests: Digests, memory: usize, tls: Option<&PskTls>) -> Bench {
        let mut bench = Bench::met(digests, memory, tls);
        let names = ("nqn.x", "nqn.host");
        bench.host.connect(names, (1, 64), Some(1), 0, &mut bench.send);
        assert!(matches!(bench.carry()[..], [HostEvent::Ended { status: Status::SUCCESS, .. }]));
        bench
    }

    /// They speak, and the host has connected to nothing yet.
    fn met(digests: Digests, memory: usize, tls: Option<&PskTls>) -> Bench {
        let pool = BufferPool::new(memory);
        let zeroes = BufferPool::new(MIB).take_zeroed(MIB).expect("room");
        let mut send = Vec::new();
        let mut bench = Bench {
            connection: NvmeConnection::new(Inputs::new(1), pool.clone(), zeroes),
            pool,
            host: Host::new(digests, &mut send),
            send,
            wire: Vec::new(),
            disks: [vec![0; 8 * MIB], vec![0; 8 * MIB]],
            asked: Vec::new(),
            held: None,
            hold_flushes: false,
            refuse: None,
            tls: None,
        };
        if let Some(tls) = tls {
            let key = || Psk::new(vec![3; 32]).expect("32 bytes");
            let offer = PskOffer { tls: tls.clone(), keys: Arc::new(move |_: &str| vec![key()]) };
            bench.connection = bench.connection.with_tls(offer);
            let mut session = tls.connect("a host", key());
            session.read(&mut []).expect("it speaks first");
            bench.tls = Some(session);
        }
        assert_eq!(bench.carry(), [HostEvent::Ready]);
        bench
    }

    /// What the host sends arrives, as far as the connection takes it; what that leads to is done.
    fn carry(&mut self) -> Vec<HostEvent> {
        loop {
            self.settle();
            self.enclose();
            if self.wire.is_empty() {
                break;
            }
            let Some((mut buffer, range)) = self.connection.receive_into() else { break };
            let count = range.len().min(self.wire.len()).min(7001);
            let target = &mut buffer.as_mut().expect("nobody else has it")[range];
            target[..count].copy_from_slice(&self.wire[..count]);
            self.wire.drain(..count);
            let mut demands = Vec::new();
            self.connection.received(Instant(1), buffer, count, &mut demands);
            self.carry_out(demands);
        }
        self.settle();
        let mut events = Vec::new();
        while let Some(event) = self.host.next_event().expect("an honest controller") {
            events.push(event);
        }
        events
    }

    fn settle(&mut self) {
        loop {
            let mut demands = Vec::new();
            self.connection.proceed(Instant(1), &mut demands);
            let quiet = demands.is_empty();
            self.carry_out(demands);
            let mut pieces = Vec::new();
            self.connection.take_send(&mut pieces);
            let silent = pieces.is_empty();
            for piece in pieces {
                self.disclose(piece.as_slice());
                self.connection.sent(piece.len() as u64);
            }
            if quiet && silent {
                return;
            }
        }
    }

    /// What the host has to say goes on its way, inside TLS if there is one.
    fn enclose(&mut self) {
        let Some(tls) = &mut self.tls else { return self.wire.append(&mut self.send) };
        if tls.is_open() {
            tls.write(&std::mem::take(&mut self.send));
        }
        let mut records = vec![0; tls.outgoing_bytes()];
        tls.outgoing(&mut records);
        self.wire.append(&mut records);
    }

    /// What the connection said arrives.
    fn disclose(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else { return self.host.take(bytes) };
        tls.take(bytes);
        let mut place = vec![0; 2 * MIB];
        loop {
            match tls.read(&mut place) {
                Ok(0) | Err(PskFault::Closed) => return,
                Ok(count) => self.host.take(&place[..count]),
                Err(fault) => panic!("{fault}"),
            }
        }
    }

    fn carry_out(&mut self, demands: Vec<Demand>) {
        for demand in demands {
            match demand {
                Demand::Connect(connect) if connect.queue == 0 => {
                    let service = Service::Discovery { entries: Vec::new(), generation: 1 };
                    let patience = Duration::from_secs(120);
                    let controller = Controller::new(1, service, patience, Instant(1));
                    self.connection.administrates(controller);
                }
                Demand::Connect(_) => {
                    let volume = |id| Namespace {
                        reserves: true,
                        id,
                        blocks: 2048,
                        block_shift: 12,
                        nguid: [1; 16],
                    };
                    self.connection.serves(1, vec![volume(1), volume(2)], 2);
                }
                Demand::Switched => {}
                Demand::Ask(ask) if self.hold_flushes && ask.op == Op::Flush => {
                    self.held.get_or_insert_default().push(ask);
                }
                Demand::Ask(ask) if self.hold_flushes => self.answer(ask),
                Demand::Ask(ask) => match &mut self.held {
                    Some(held) => held.push(ask),
                    None => self.answer(ask),
                },
                other => panic!("{other:?}"),
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        let volume = ask.volume.expect("each names its volume").0;
        let (at, length) = (ask.span.offset_bytes(), ask.span.length_bytes());
        self.asked.push((ask.op, volume, ask.shard, at, length));
        if let Some(error) = self.refuse {
            return self.connection.answer(ask.tag, Err(error), None);
        }
        let disk = &mut self.disks[usize::from(volume)][at as usize..(at + length) as usize];
        let mut answer: Option<Buffer> = None;
        match ask.op {
            Op::Read if disk.iter().all(|&byte| byte == 0) => {}
            Op::Read => {
                let mut buffer = self.pool.take_beyond(disk.len()).expect("room was kept");
                buffer.as_mut().expect("nobody else has it").copy_from_slice(disk);
                answer = Some(buffer);
            }
            Op::Write => disk.copy_from_slice(&ask.buffer.expect("a write has bytes")),
            Op::Zero { .. } => disk.fill(0),
            Op::Flush => {}
        }
        self.connection.answer(ask.tag, Ok(()), answer);
    }

    /// The end of a command, and what it read.
    fn end_of(&mut self, id: u16) -> (Status, Vec<u8>) {
        let mut data = Vec::new();
        for event in self.carry() {
            match event {
                HostEvent::Data { bytes, .. } => data.extend_from_slice(&bytes),
                HostEvent::Ended { id: of, status, .. } => {
                    assert_eq!(of, id);
                    return (status, data);
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("no answer")
    }

    fn write(&mut self, volume: u32, first: u64, data: &[u8]) -> Status {
        let blocks = u32::try_from(data.len() / 4096).expect("few");
        let id = self.host.write_later(volume, (first, blocks), 12, &mut self.send);
        self.bring(id, data)
    }

    fn compare(&mut self, volume: u32, first: u64, data: &[u8]) -> Status {
        let blocks = u32::try_from(data.len() / 4096).expect("few");
        let id = self.host.compare_later(volume, (first, blocks), 12, &mut self.send);
        self.bring(id, data)
    }

    /// The data that a command is asked for.
    fn bring(&mut self, id: u16, data: &[u8]) -> Status {
        let events = self.carry();
        let [HostEvent::Asked { tag, offset_bytes: 0, length_bytes, .. }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(length_bytes as usize, data.len());
        self.host.send_data((id, tag), 0, data, 100_000, &mut self.send);
        self.end_of(id).0
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 512 + at) as u8 | 1).collect()
}

#[test]
fn what_is_written_in_any_way_is_read() {
    for digests in [(false, false), (true, true)] {
        let mut bench = Bench::new(Digests { header: digests.0, data: digests.1 }, 64 * MIB);
        let data = pattern(MIB);
        // Across a multiple of a piece.
        assert_eq!(bench.write(2, 200, &data), Status::SUCCESS);
        let id = bench.host.write(1, (3, 2), true, &data[..8192], &mut bench.send);
        assert_eq!(bench.end_of(id).0, Status::SUCCESS);
        let id = bench.host.read(2, (200, 256), 12, &mut bench.send);
        let (status, read) = bench.end_of(id);
        assert!(status == Status::SUCCESS && read == data);
        let id = bench.host.read(1, (2, 4), 12, &mut bench.send);
        let (_, read) = bench.end_of(id);
        assert_eq!(read, [&[0; 4096][..], &data[..8192], &[0; 4096]].concat());
        assert_eq!(bench.connection.open_count(), 0);
        assert_eq!(bench.pool.used_bytes(), 0);
        assert!(!bench.connection.waits_for_client());
    }
}

#[test]
fn what_is_compared_is_the_same_or_not() {
    for digests in [(false, false), (true, true)] {
        let mut bench = Bench::new(Digests { header: digests.0, data: digests.1 }, 64 * MIB);
        let mut data = pattern(MIB);
        assert_eq!(bench.write(1, 200, &data), Status::SUCCESS);
        assert_eq!(bench.compare(1, 200, &data), Status::SUCCESS);
        // One bit in each of its two pieces, or in one of them.
        for at in [0, MIB - 1] {
            data[at] ^= 0x10;
            assert_eq!(bench.compare(1, 200, &data), Status::COMPARE_FAILURE);
        }
        data[0] ^= 0x10;
        assert_eq!(bench.compare(1, 200, &data), Status::COMPARE_FAILURE);
        // What was never written is zeroes.
        let id = bench.host.compare(2, (7, 2), &[0; 8192], &mut bench.send);
        assert_eq!(bench.end_of(id).0, Status::SUCCESS);
        let id = bench.host.compare(2, (7, 2), &data[..8192], &mut bench.send);
        assert_eq!(bench.end_of(id).0, Status::COMPARE_FAILURE);
        assert!(bench.disks[1].iter().all(|&byte| byte == 0), "nothing is written");
        bench.refuse = Some(AnswerError::Io);
        assert_eq!(bench.compare(1, 200, &data), Status::READ_ERROR);
        assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
        assert!(!bench.connection.waits_for_client());
    }
}

#[test]
fn what_is_verified_is_read_a_piece_at_a_time() {
    // Less memory than what is verified.
    let mut bench = Bench::new(Digests::default(), 2 * MIB);
    bench.disks[0].fill(7);
    let id = bench.host.verify(1, (100, 1900), &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::SUCCESS);
    assert!(bench.asked.iter().all(|ask| ask.0 == Op::Read && ask.4 <= MIB as u64));
    assert_eq!(bench.asked.iter().map(|ask| ask.4).sum::<u64>(), 1900 * 4096);
    bench.refuse = Some(AnswerError::Io);
    bench.asked.clear();
    let id = bench.host.verify(1, (100, 1900), &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::READ_ERROR);
    assert_eq!(bench.asked.len(), 1, "what follows is not looked at");
    assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
}

#[test]
fn a_flush_goes_to_every_shard_of_what_it_names() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    for (namespace, expected) in
        [(2, vec![(1, 0), (1, 1)]), (u32::MAX, vec![(0, 0), (0, 1), (1, 0), (1, 1)])]
    {
        bench.asked.clear();
        let id = bench.host.flush(namespace, &mut bench.send);
        assert_eq!(bench.end_of(id).0, Status::SUCCESS);
        let asked: Vec<(u16, u16)> = bench.asked.iter().map(|ask| (ask.1, ask.2)).collect();
        assert_eq!(asked, expected);
    }
}

/// Sets FUA in the command that was made last, whose data does not come with it.
fn fua(send: &mut [u8]) {
    let at = send.len() - 72 + 8 + 51;
    send[at] |= 1 << 6;
}

#[test]
fn what_is_read_with_fua_is_flushed_before_it_is_shown() {
    type Make = fn(&mut Host, &mut Vec<u8>) -> u16;
    let makes: [(Make, Status); 4] = [
        (|host, send| host.read(2, (200, 256), 12, send), Status::SUCCESS),
        (|host, send| host.verify(2, (200, 256), send), Status::SUCCESS),
        (|host, send| host.compare_later(2, (200, 256), 12, send), Status::SUCCESS),
        (|host, send| host.compare_later(2, (201, 256), 12, send), Status::COMPARE_FAILURE),
    ];
    let data = pattern(MIB);
    for (number, (make, expected)) in makes.into_iter().enumerate() {
        for (refuse, lost) in [(None, false), (Some(AnswerError::Io), false), (None, true)] {
            let mut bench = Bench::new(Digests::default(), 4 * MIB);
            bench.disks[1][200 * 4096..][..MIB].copy_from_slice(&data);
            let id = make(&mut bench.host, &mut bench.send);
            fua(&mut bench.send);
            bench.hold_flushes = true;
            if let [HostEvent::Asked { tag, .. }] = bench.carry()[..] {
                bench.host.send_data((id, tag), 0, &data, 100_000, &mut bench.send);
                assert_eq!(bench.carry(), []);
            }
            let read: Vec<Op> = bench.asked.iter().map(|ask| ask.0).collect();
            assert_eq!(read, [Op::Read; 2], "{number}");
            let flushes = bench.held.take().expect("held");
            let asked: Vec<_> = flushes.iter().map(|ask| (ask.op, ask.shard, ask.fua)).collect();
            assert_eq!(asked, [(Op::Flush, 0, false), (Op::Flush, 1, false)], "{number}");
            if lost {
                bench.connection.lose();
            }
            bench.refuse = refuse;
            for ask in flushes {
                bench.answer(ask);
            }
            let expected = match (refuse, lost) {
                (None, false) => expected,
                (None, true) => Status::LOST,
                _ => Status::READ_ERROR,
            };
            let (status, shown) = bench.end_of(id);
            assert_eq!(status, expected, "{number}");
            let is_shown = number == 0 && status == Status::SUCCESS;
            assert!(if is_shown { shown == data } else { shown.is_empty() }, "{number}");
            assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
        }
    }
}

#[test]
fn deallocations_are_cut_and_done_whole() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.disks[0].fill(7);
    let id = bench.host.deallocate(1, &[(1, 1), (100, 1900), (50, 0)], &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::SUCCESS);
    let zero = |block: usize| block == 1 || (100..2000).contains(&block);
    for (number, block) in bench.disks[0].chunks(4096).enumerate() {
        assert_eq!(block.iter().all(|&byte| byte == 0), zero(number), "block {number}");
    }
    assert!(bench.asked.iter().all(|ask| ask.3 / MIB as u64 == (ask.3 + ask.4 - 1) / MIB as u64));
}

#[test]
fn a_deallocation_that_takes_long_ends_with_what_is_done_and_what_is_verified_goes_on() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.disks[0].fill(7);
    // Longer than what is with the shards at once.
    let ranges: Vec<(u64, u32)> = (0..140).map(|at| (at * 2, 1)).collect();
    for (count, goes_on) in [(64, false), (1, true)] {
        let id = match goes_on {
            false => bench.host.deallocate(1, &ranges, &mut bench.send),
            true => bench.host.verify(1, (0, 1000), &mut bench.send),
        };
        bench.held = Some(Vec::new());
        assert_eq!(bench.carry(), []);
        for later in [Duration::from_millis(500), Duration::from_secs(4)] {
            let all = bench.held.replace(Vec::new()).expect("held");
            assert_eq!(all.len(), count);
            all.into_iter().for_each(|ask| bench.answer(ask));
            let mut demands = Vec::new();
            bench.connection.proceed(Instant(1) + later, &mut demands);
            bench.carry_out(demands);
        }
        let held = bench.held.take().expect("held");
        assert_eq!(held.len(), usize::from(goes_on));
        held.into_iter().for_each(|ask| bench.answer(ask));
        assert_eq!(bench.end_of(id).0, Status::SUCCESS);
    }
}

#[test]
fn data_is_asked_for_only_once_there_is_a_place_for_it() {
    // Room for one write of a MiB.
    let mut bench = Bench::new(Digests::default(), MIB);
    bench.held = Some(Vec::new());
    let data = pattern(MIB);
    let ids: Vec<u16> =
        (0..3).map(|at| bench.host.write_later(1, (at * 256, 256), 12, &mut bench.send)).collect();
    let mut done = Vec::new();
    for id in &ids {
        let events = bench.carry();
        let [.., HostEvent::Asked { id: of, tag, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!(of, *id, "who came first is asked first");
        bench.host.send_data((of, tag), 0, &data, 1 << 17, &mut bench.send);
        assert_eq!(bench.carry(), [], "there is no room for the next");
        assert_eq!(bench.connection.starved(), done.len() < 2);
        done.push(of);
        for ask in bench.held.replace(Vec::new()).expect("held") {
            bench.answer(ask);
        }
    }
    assert!(matches!(bench.carry()[..], [HostEvent::Ended { status: Status::SUCCESS, .. }]));
    assert!(bench.disks[0][..3 * MIB].chunks(MIB).all(|part| part == data));
    assert_eq!(bench.pool.used_bytes(), 0);
}

#[test]
fn a_failure_is_told_and_a_lost_session_lasts() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.refuse = Some(AnswerError::Io);
    assert_eq!(bench.write(1, 0, &pattern(8192)), Status::WRITE_FAULT);
    let id = bench.host.read(1, (0, 1), 12, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::READ_ERROR);
    bench.refuse = Some(AnswerError::SessionLost);
    let id = bench.host.flush(1, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::LOST);
    bench.refuse = None;
    let id = bench.host.read(1, (0, 1), 12, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::LOST);
    bench.asked.clear();
    assert_eq!(bench.write(1, 0, &pattern(8192)), Status::LOST);
    assert_eq!(bench.asked, [], "nothing of it is written");
}

#[test]
fn a_host_that_is_turned_away_is_told_so_at_once_even_where_there_is_no_memory() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.connection.turn_away(true);
    let hog = bench.pool.take(64 * MIB);
    let id = bench.host.write_later(1, (0, 2), 12, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::INACCESSIBLE, "its data is not asked for");
    let id = bench.host.read(1, (0, 1), 12, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::INACCESSIBLE);
    let id = bench.host.flush(1, &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::INACCESSIBLE);
    let id = bench.host.write(1, (0, 1), false, &pattern(4096), &mut bench.send);
    assert_eq!(bench.end_of(id).0, Status::INACCESSIBLE, "after its data");
    drop(hog);
    assert_eq!(bench.asked, [], "nothing of it is carried out");
    bench.connection.turn_away(false);
    assert_eq!(bench.write(1, 0, &pattern(8192)), Status::SUCCESS);
    assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
}

#[test]
fn a_small_write_does_not_wait_for_memory_that_is_held_for_data_behind_it() {
    let mut bench = Bench::new(Digests::default(), MIB);
    let data = pattern(MIB);
    let large = bench.host.write_later(1, (0, 256), 12, &mut bench.send);
    // A second one waits for memory, and is asked for once the first is done.
    let later = bench.host.write_later(1, (256, 256), 12, &mut bench.send);
    let small = bench.host.write(1, (512, 1), false, &pattern(4096), &mut bench.send);
    let compared = bench.host.compare(1, (512, 1), &pattern(4096), &mut bench.send);
    let mut ended = Vec::new();
    for of in [large, later] {
        let mut asked = None;
        for event in bench.carry() {
            match event {
                HostEvent::Asked { id, tag, .. } => asked = Some((id, tag)),
                HostEvent::Ended { id, status, .. } => {
                    assert_eq!(status, Status::SUCCESS);
                    ended.push(id);
                }
                other => panic!("{other:?}"),
            }
        }
        let (id, tag) = asked.expect("its data is asked for");
        assert_eq!(id, of);
        bench.host.send_data((id, tag), 0, &data, 1 << 17, &mut bench.send);
    }
    assert!(matches!(bench.carry()[..], [HostEvent::Ended { status: Status::SUCCESS, .. }]));
    assert_eq!(ended, [small, compared, large]);
    assert!(bench.disks[0][..2 * MIB].chunks(MIB).all(|part| part == data));
    assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
}

#[test]
fn a_stranger_that_asks_on_and_takes_no_answers_fills_no_memory() {
    const PAGES: usize = 900;
    let mut bench = Bench::met(Digests::default(), MIB, None);
    let names = (nvme::DISCOVERY_NQN, "nqn.host");
    bench.host.connect(names, (0, 32), None, 0, &mut bench.send);
    let id = bench.host.configure(1, &mut bench.send);
    assert!(matches!(bench.carry()[..], [_, HostEvent::Ended { id: of, .. }] if of == id));
    for _ in 0..PAGES {
        bench.host.log_page(0x70, 64 << 10, &mut bench.send);
    }
    let (mut asked, mut answered) = (std::mem::take(&mut bench.send), 0);
    let mut demands = Vec::new();
    while answered < PAGES << 16 {
        if let Some((mut buffer, range)) = bench.connection.receive_into() {
            let count = range.len().min(asked.len());
            let target = &mut buffer.as_mut().expect("nobody else has it")[range];
            target[..count].copy_from_slice(&asked[..count]);
            asked.drain(..count);
            bench.connection.received(Instant(1), buffer, count, &mut demands);
        }
        // However often it is looked at.
        let mut pieces = Vec::new();
        for _ in 0..3 {
            bench.connection.proceed(Instant(1), &mut demands);
            bench.connection.take_send(&mut pieces);
        }
        let unsent: usize = pieces.iter().map(sys::Piece::len).sum();
        assert!(0 < unsent && unsent < 3 * MIB, "{unsent}");
        answered += unsent;
        bench.connection.sent(u64::try_from(unsent).expect("few"));
    }
}

#[test]
fn what_a_lost_session_gives_back_stays() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.disks[0].fill(7);
    // Longer than what is with the shards at once.
    bench.held = Some(Vec::new());
    let ranges: Vec<(u64, u32)> = (0..70).map(|at| (at * 2, 1)).collect();
    let begun = bench.host.deallocate(1, &ranges, &mut bench.send);
    assert_eq!(bench.carry(), []);
    bench.connection.lose();
    let first = bench.held.take().expect("held");
    let count = first.len();
    for ask in first {
        bench.answer(ask);
    }
    assert_eq!(bench.end_of(begun).0, Status::LOST);
    assert_eq!(bench.asked.len(), count, "no more of it is asked of anybody");
    bench.asked.clear();
    let later = bench.host.deallocate(1, &[(1000, 8)], &mut bench.send);
    assert_eq!(bench.end_of(later).0, Status::LOST);
    let zeroes = bench.host.zero(1, (1000, 8), true, &mut bench.send);
    assert_eq!(bench.end_of(zeroes).0, Status::LOST);
    assert_eq!(bench.asked, []);
    assert!(bench.disks[0][1000 * 4096..1008 * 4096].iter().all(|&byte| byte == 7));
}

#[test]
fn whoever_breaks_the_protocol_is_sent_away() {
    let mut bench = Bench::new(Digests::default(), 64 * MIB);
    bench.send.extend_from_slice(&[0xff; 64]);
    assert_eq!(bench.carry(), [HostEvent::Ends { code: 1 }]);
    assert!(matches!(bench.connection.finished(), Some(CloseReason::Fault(_))));
    assert!(bench.connection.receive_into().is_none());
}

#[test]
fn what_is_written_inside_tls_in_any_way_is_read() {
    for digests in [(false, false), (true, true)] {
        let digests = Digests { header: digests.0, data: digests.1 };
        let Some(mut bench) = Bench::inside_tls(digests, 64 * MIB) else { return };
        assert!(bench.connection.shown().is_some_and(|(identity, _)| identity == "a host"));
        let data = pattern(MIB);
        assert_eq!(bench.write(2, 200, &data), Status::SUCCESS);
        let id = bench.host.write(1, (3, 2), true, &data[..8192], &mut bench.send);
        assert_eq!(bench.end_of(id).0, Status::SUCCESS);
        let id = bench.host.read(2, (200, 256), 12, &mut bench.send);
        let (status, read) = bench.end_of(id);
        assert!(status == Status::SUCCESS && read == data);
        assert_eq!(bench.compare(2, 200, &data), Status::SUCCESS);
        assert_eq!((bench.connection.open_count(), bench.pool.used_bytes()), (0, 0));
        assert!(!bench.connection.waits_for_client());
    }
}

#[test]
fn many_reads_inside_tls_are_enciphered_a_little_at_a_time() {
    let Some(mut bench) = Bench::inside_tls(Digests::default(), 64 * MIB) else { return };
    bench.disks[0].copy_from_slice(&pattern(8 * MIB));
    for at in 0..8 {
        bench.host.read(1, (at * 256, 256), 12, &mut bench.send);
    }
    bench.enclose();
    while let Some((mut buffer, range)) = bench.connection.receive_into() {
        let count = range.len().min(bench.wire.len());
        let target = &mut buffer.as_mut().expect("nobody else has it")[range];
        target[..count].copy_from_slice(&bench.wire[..count]);
        bench.wire.drain(..count);
        let mut demands = Vec::new();
        bench.connection.received(Instant(1), buffer, count, &mut demands);
        bench.carry_out(demands);
        if bench.wire.is_empty() {
            break;
        }
    }
    let mut steps = 0;
    loop {
        let mut pieces = Vec::new();
        bench.connection.take_send(&mut pieces);
        let length: usize = pieces.iter().map(sys::Piece::len).sum();
        if length == 0 {
            break;
        }
        assert!(length <= 2 * MIB + 64 * 1024, "{length} bytes at once");
        let count = pieces.len();
        bench.connection.take_send(&mut pieces);
        assert_eq!(pieces.len(), count, "no more before that has left");
        for piece in pieces {
            bench.disclose(piece.as_slice());
            bench.connection.sent(piece.len() as u64);
        }
        steps += 1;
    }
    assert!(steps >= 4, "{steps} steps");
    let mut read = Vec::new();
    while let Some(event) = bench.host.next_event().expect("an honest controller") {
        if let HostEvent::Data { bytes, .. } = event {
            read.extend_from_slice(&bytes);
        }
    }
    assert!(read == bench.disks[0]);
    assert!(!bench.connection.waits_for_client());
}

#[test]
fn data_inside_tls_waits_for_a_place_too() {
    // Room for one write of a MiB.
    let Some(mut bench) = Bench::inside_tls(Digests::default(), MIB) else { return };
    bench.held = Some(Vec::new());
    let data = pattern(MIB);
    let ids: Vec<u16> =
        (0..3).map(|at| bench.host.write_later(1, (at * 256, 256), 12, &mut bench.send)).collect();
    for id in &ids {
        let events = bench.carry();
        let [.., HostEvent::Asked { id: of, tag, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!(of, *id, "who came first is asked first");
        bench.host.send_data((of, tag), 0, &data, 1 << 17, &mut bench.send);
        assert_eq!(bench.carry(), [], "there is no room for the next");
        for ask in bench.held.replace(Vec::new()).expect("held") {
            bench.answer(ask);
        }
    }
    assert!(matches!(bench.carry()[..], [HostEvent::Ended { status: Status::SUCCESS, .. }]));
    assert!(bench.disks[0][..3 * MIB].chunks(MIB).all(|part| part == data));
}

#[test]
fn who_begins_with_tls_where_there_is_none_or_leaves_it_is_sent_away() {
    let Some(mut bench) = Bench::inside_tls(Digests::default(), 64 * MIB) else { return };
    // A record in the clear, where only enciphered ones may come.
    bench.wire.extend_from_slice(&[0; 64]);
    while let Some((mut buffer, range)) = bench.connection.receive_into() {
        let count = range.len().min(bench.wire.len());
        let target = &mut buffer.as_mut().expect("nobody else has it")[range];
        target[..count].copy_from_slice(&bench.wire[..count]);
        bench.wire.drain(..count);
        bench.connection.received(Instant(1), buffer, count, &mut Vec::new());
    }
    assert!(matches!(bench.connection.broken(), Some(PskFault::Broken(_))));
    let zeroes = BufferPool::new(MIB).take_zeroed(MIB).expect("room");
    let mut plain = NvmeConnection::new(Inputs::new(1), bench.pool.clone(), zeroes);
    let (mut buffer, _) = plain.receive_into().expect("it waits");
    buffer.as_mut().expect("nobody else has it")[0] = 0x16;
    plain.received(Instant(1), buffer, 1, &mut Vec::new());
    assert!(matches!(plain.broken(), Some(PskFault::Broken(_))));
    let mut pieces = Vec::new();
    plain.take_send(&mut pieces);
    assert!(pieces.is_empty() && plain.receive_into().is_none());
}

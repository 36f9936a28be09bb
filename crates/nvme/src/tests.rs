//! A host and a connection, with nothing between them.

use crate::connection::{CloseReason, Connection, Event, Want};
use crate::controller::Controller;
use crate::host::{Host, HostEvent};
use crate::number::{
    ADMIN_GET_FEATURES, COMMAND_BYTES, COMMON_BYTES, DISCOVERY_NQN, INLINE_BYTES_MAX, NSID_ALL,
    TRANSFER_BYTES_MAX,
};
use crate::pdu::{Digests, Fatal};
use crate::request::{Op, Request, Slot};
use crate::subsystem::{Access, Entry, Namespace, Service, Subsystem};
use crate::{
    ConnectField, Examiner, Notice, Refusal, Report, ReportEntry, Secret, Status, bytes::u32_at,
};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Duration, HostId, Instant, Prng, ReservationCommand, ReservationKind, crc32c};

mod later;
mod proof;
mod statuses;

const NQN: &str = "nqn.2026-11.invalid.lockstep:web";
const HOST: &str = "nqn.2026-11.invalid.host:one";

fn subsystem() -> Subsystem {
    Subsystem {
        nqn: NQN.into(),
        serial: "0123456789abcdef".into(),
        namespaces: alloc::vec![
            Namespace { reserves: true, id: 1, blocks: 8192, block_shift: 9, nguid: [1; 16] },
            Namespace { reserves: true, id: 2, blocks: 1024, block_shift: 12, nguid: [2; 16] },
        ],
        persistent: alloc::vec![2],
        access: Access::Optimized,
    }
}

/// The two ends, and volumes in memory behind the controller's.
struct Pair {
    host: Host,
    to_controller: Vec<u8>,
    connection: Connection,
    to_host: Vec<u8>,
    service: Service,
    volumes: BTreeMap<u32, Vec<u8>>,
    arriving: BTreeMap<usize, (Request, Vec<u8>)>,
    now: Instant,
    requests: Vec<Request>,
    switched: bool,
    /// To whom the host has to prove who it is, taken by the next connect command.
    examiner: Option<Examiner>,
    proved: Vec<Secret>,
    closed: Option<CloseReason>,
    /// Bytes that are moved at once.
    random: Prng,
    /// How long pieces of answers are.
    piece: usize,
}

impl Pair {
    fn new(seed: u64, digests: Digests, service: Service) -> Pair {
        let mut to_controller = Vec::new();
        let host = Host::new(digests, &mut to_controller);
        let volumes = service.namespaces().iter().map(|namespace| {
            let bytes = (namespace.blocks as usize) << namespace.block_shift;
            (namespace.id, alloc::vec![0; bytes])
        });
        Pair {
            host,
            to_controller,
            connection: Connection::new(),
            to_host: Vec::new(),
            volumes: volumes.collect(),
            service,
            arriving: BTreeMap::new(),
            now: Instant(1),
            requests: Vec::new(),
            switched: false,
            examiner: None,
            proved: Vec::new(),
            closed: None,
            random: Prng::new(seed),
            piece: 5000,
        }
    }

    /// Everything that was sent arrives, in parts of any size.
    fn carry(&mut self) -> Vec<HostEvent> {
        while !self.to_controller.is_empty() && self.closed.is_none() {
            self.carry_some();
        }
        self.host.take(&core::mem::take(&mut self.to_host));
        let mut events = Vec::new();
        while let Some(event) = self.host.next_event().unwrap() {
            events.push(event);
        }
        events
    }

    fn carry_some(&mut self) {
        let most = 1 + self.random.below(9000) as usize;
        let count = most.min(self.to_controller.len());
        match self.connection.wants() {
            Want::Bytes { .. } => {
                let input = self.to_controller[..count].to_vec();
                let fed = self.connection.feed(self.now, &input, &mut self.to_host);
                assert!(fed.consumed > 0);
                self.to_controller.drain(..fed.consumed);
                fed.event.into_iter().for_each(|event| self.on_event(event));
            }
            Want::Payload { slot, offset_bytes, length_bytes } => {
                let count = count.min(length_bytes as usize);
                let bytes: Vec<u8> = self.to_controller.drain(..count).collect();
                let (_, data) = self.arriving.get_mut(&slot.index()).unwrap();
                data[offset_bytes as usize..][..count].copy_from_slice(&bytes);
                let event = self.connection.received(slot, &bytes, &mut self.to_host);
                event.into_iter().for_each(|event| self.on_event(event));
            }
            other => panic!("{other:?}"),
        }
    }

    fn on_arrived(&mut self, slot: Slot, whole: bool) {
        let (request, data) = self.arriving.remove(&slot.index()).unwrap();
        if !whole {
            return self.connection.answer(slot, Status::TRANSPORT, &mut self.to_host);
        }
        let volume = self.volumes.get_mut(&request.namespace.unwrap()).unwrap();
        volume[request.range.start as usize..request.range.end as usize].copy_from_slice(&data);
        self.connection.answer(slot, Status::SUCCESS, &mut self.to_host);
    }

    fn on_event(&mut self, event: Event) {
        if let (Event::Connect(_), Some(examiner)) = (&event, self.examiner.take()) {
            self.connection.requires(examiner);
        }
        match event {
            Event::Connect(connect) if connect.subsystem == NQN && connect.queue > 0 => {
                assert_eq!(connect.controller, 0x101);
                let namespaces = self.service.namespaces().to_vec();
                self.connection.serves(0x101, namespaces, &mut self.to_host);
            }
            Event::Connect(connect) if [NQN, DISCOVERY_NQN].contains(&&*connect.subsystem) => {
                let keep_alive = Duration::from_millis(u64::from(connect.keep_alive_ms));
                let controller = Controller::new(0x101, self.service.clone(), keep_alive, self.now);
                let controller = controller.with_queues(8).with_host(connect.host_id);
                self.connection.administrates(controller, &mut self.to_host);
            }
            Event::Connect(_) => {
                let refusal = Refusal::invalid(ConnectField::Subsystem);
                self.closed = Some(self.connection.refuse(refusal, &mut self.to_host));
                self.to_controller.clear();
            }
            Event::Request(request) => self.on_request(request),
            Event::Arrived { slot, whole } => self.on_arrived(slot, whole),
            Event::Switched => self.switched = true,
            Event::Proved(secret) => self.proved.push(secret),
            Event::Close(reason) => {
                self.closed = Some(reason);
                self.to_controller.clear();
            }
        }
    }

    fn on_request(&mut self, request: Request) {
        self.requests.push(request.clone());
        let slot = request.slot;
        match &request.op {
            Op::Read => {
                let volume = &self.volumes[&request.namespace.unwrap()];
                let bytes = &volume[request.range.start as usize..request.range.end as usize];
                let pieces = bytes.chunks(self.piece).count();
                for (number, piece) in bytes.chunks(self.piece).enumerate() {
                    let mut tail = Vec::new();
                    let send = &mut self.to_host;
                    let last = self.connection.answer_read(slot, piece, send, &mut tail);
                    assert_eq!(last, number + 1 == pieces);
                    self.to_host.extend_from_slice(piece);
                    self.to_host.append(&mut tail);
                }
            }
            Op::Write { inline } | Op::Compare { inline } => {
                let length = (request.range.end - request.range.start) as usize;
                let inline = *inline;
                self.arriving.insert(slot.index(), (request, alloc::vec![0; length]));
                if !inline {
                    self.connection.ask(slot, &mut self.to_host);
                }
            }
            Op::Reserve(command) if **command == ReservationCommand::Report => {
                let length = (request.range.end - request.range.start) as usize;
                let (bytes, mut tail) = (report().to_bytes(length), Vec::new());
                let send = &mut self.to_host;
                assert!(self.connection.answer_read(slot, &bytes, send, &mut tail));
                self.to_host.extend_from_slice(&bytes);
                self.to_host.append(&mut tail);
            }
            Op::Flush | Op::Verify | Op::Reserve(_) => {
                self.connection.answer(slot, Status::SUCCESS, &mut self.to_host);
            }
            Op::Zero { .. } => self.zero(&request, core::slice::from_ref(&request.range)),
            Op::Deallocate(ranges) => self.zero(&request, ranges),
        }
    }

    fn zero(&mut self, request: &Request, ranges: &[core::ops::Range<u64>]) {
        let volume = self.volumes.get_mut(&request.namespace.unwrap()).unwrap();
        for range in ranges {
            volume[range.start as usize..range.end as usize].fill(0);
        }
        self.connection.answer(request.slot, Status::SUCCESS, &mut self.to_host);
    }

    /// Sends what `make` appends, and gives what it was answered with.
    fn ask(&mut self, make: impl FnOnce(&mut Host, &mut Vec<u8>) -> u16) -> (Status, u64, Vec<u8>) {
        let id = make(&mut self.host, &mut self.to_controller);
        let events = self.carry();
        let mut data = Vec::new();
        for event in events {
            match event {
                HostEvent::Data { id: of, offset_bytes, bytes } => {
                    assert_eq!((of, offset_bytes as usize), (id, data.len()));
                    data.extend_from_slice(&bytes);
                }
                HostEvent::Ended { id: of, status, result } => {
                    assert_eq!(of, id);
                    return (status, result, data);
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("no answer")
    }

    fn connect(&mut self, queue: u16) -> (Status, u64) {
        assert_eq!(self.carry(), [HostEvent::Ready]);
        let controller = (queue > 0).then_some(0x101);
        let (status, result, _) =
            self.ask(|host, send| host.connect((NQN, HOST), (queue, 32), controller, 5000, send));
        (status, result)
    }
}

#[test]
fn who_does_not_watch_its_queue_is_told_by_the_data_that_a_read_has_ended() {
    for (seed, digests) in all_digests().enumerate() {
        let mut bytes = Vec::new();
        for unwatched in [false, true] {
            let mut pair = Pair::new(seed as u64, digests, Service::Volumes(subsystem()));
            if unwatched {
                pair.host.leave_unwatched();
            }
            assert_eq!(pair.connect(1).0, Status::SUCCESS);
            let id = pair.host.read(1, (0, 32), 9, &mut pair.to_controller);
            while !pair.to_controller.is_empty() {
                pair.carry_some();
            }
            bytes.push(pair.to_host.len());
            let mut events = pair.carry();
            let end = HostEvent::Ended { id, status: Status::SUCCESS, result: 0 };
            assert_eq!(events.pop(), Some(end));
            assert_eq!(events.len(), (32_usize << 9).div_ceil(pair.piece), "{events:?}");
            // What fails has no data, and is answered.
            let (status, ..) = pair.ask(|host, send| host.read(1, (8192, 1), 9, send));
            assert_eq!(status, Status::OUT_OF_RANGE);
        }
        let response = 24 + if digests.header { 4 } else { 0 };
        assert_eq!(bytes[0] - bytes[1], response, "an answer less");
    }
}

#[test]
fn a_host_that_did_not_ask_for_it_takes_no_data_for_an_end() {
    let mut pair = io(1, Digests::default());
    let mut other = Pair::new(1, Digests::default(), Service::Volumes(subsystem()));
    other.host.leave_unwatched();
    assert_eq!(other.connect(1).0, Status::SUCCESS);
    other.host.read(1, (0, 1), 9, &mut other.to_controller);
    while !other.to_controller.is_empty() {
        other.carry_some();
    }
    pair.host.take(&other.to_host);
    assert!(pair.host.next_event().is_err());
}

fn all_digests() -> impl Iterator<Item = Digests> {
    (0..4).map(|bits| Digests { header: bits & 1 != 0, data: bits & 2 != 0 })
}

fn admin(seed: u64, digests: Digests) -> Pair {
    let mut pair = Pair::new(seed, digests, Service::Volumes(subsystem()));
    assert_eq!(pair.connect(0), (Status::SUCCESS, 0x101));
    assert!(!pair.connection.controller().unwrap().is_enabled());
    assert_eq!(pair.ask(|host, send| host.configure(0x46_0001, send)).0, Status::SUCCESS);
    assert!(pair.switched && pair.connection.controller().unwrap().is_enabled());
    pair
}

fn io(seed: u64, digests: Digests) -> Pair {
    let mut pair = Pair::new(seed, digests, Service::Volumes(subsystem()));
    assert_eq!(pair.connect(1), (Status::SUCCESS, 0x101));
    pair
}

#[test]
fn a_host_learns_what_it_needs_to_know() {
    for (seed, digests) in all_digests().enumerate() {
        let mut pair = admin(seed as u64, digests);
        let (_, capabilities, _) = pair.ask(|host, send| host.property(0, true, send));
        assert_eq!(capabilities & 0xffff, 127);
        let (_, state, _) = pair.ask(|host, send| host.property(0x1c, false, send));
        assert_eq!(state, 1);
        let (status, _, page) = pair.ask(|host, send| host.identify(1, 0, send));
        assert_eq!((status, page.len()), (Status::SUCCESS, 4096));
        assert!(page[24..].starts_with(b"Lockstep "));
        assert!(page[768..].starts_with(NQN.as_bytes()));
        assert_eq!(u32_at(&page, 1792) * 16, 64 + INLINE_BYTES_MAX);
        assert_eq!((u32_at(&page, 516), u32_at(&page, 540)), (1024, 1024));
        let (_, _, list) = pair.ask(|host, send| host.identify(2, 0, send));
        assert_eq!([u32_at(&list, 0), u32_at(&list, 4), u32_at(&list, 8)], [1, 2, 0]);
        let (_, _, list) = pair.ask(|host, send| host.identify(2, 1, send));
        assert_eq!([u32_at(&list, 0), u32_at(&list, 4)], [2, 0]);
        let (_, _, volume) = pair.ask(|host, send| host.identify(0, 2, send));
        assert_eq!((u32_at(&volume, 0), volume[130], &volume[104..120]), (1024, 12, &[2; 16][..]));
        let (_, _, names) = pair.ask(|host, send| host.identify(3, 1, send));
        assert_eq!(&names[..20], [&[2, 16, 0, 0][..], &[1; 16]].concat());
        let (_, _, limits) = pair.ask(|host, send| host.identify(6, 0, send));
        assert_eq!((limits[3], u32_at(&limits, 4), u32_at(&limits, 8)), (255, 1 << 18, 1 << 18));
        let (_, queues, _) = pair.ask(|host, send| host.set_feature(7, 0x0003_0003, send));
        assert_eq!(queues, 0x0003_0003);
        let (_, queues, _) = pair.ask(|host, send| host.set_feature(7, 0x00ff_0002, send));
        assert_eq!(queues, 0x0007_0002, "no more than it may have");
        let (_, _, access) = pair.ask(|host, send| host.log_page(0x0c, 56, send));
        assert_eq!((access[8], access[16], access[20], access[32]), (1, 1, 2, 1));
        assert_eq!((u32_at(&access, 48), u32_at(&access, 52)), (1, 2));
        let (status, ..) = pair.ask(|host, send| host.log_page(0x70, 1024, send));
        assert_eq!(status, Status::INVALID_LOG_PAGE);
    }
}

#[test]
fn what_is_written_is_read_with_every_digest_and_both_kinds_of_transfer() {
    for (seed, digests) in all_digests().enumerate() {
        let mut pair = io(seed as u64, digests);
        let data: Vec<u8> = (0..100_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let (status, ..) = pair.ask(|host, send| host.write(1, (3, 8), true, &data[..4096], send));
        assert_eq!(status, Status::SUCCESS);
        assert!(pair.requests.last().unwrap().fua);
        let id = pair.host.write_later(2, (10, 20), 12, &mut pair.to_controller);
        let events = pair.carry();
        let HostEvent::Asked { id: of, tag, offset_bytes: 0, length_bytes: 81_920 } = events[0]
        else {
            panic!("{events:?}")
        };
        assert_eq!(of, id);
        let send = &mut pair.to_controller;
        pair.host.send_data((id, tag), 0, &data[..81_920], 30_000, send);
        let ended = HostEvent::Ended { id, status: Status::SUCCESS, result: 0 };
        assert_eq!(pair.carry(), [ended]);
        let (status, _, read) = pair.ask(|host, send| host.read(1, (2, 10), 9, send));
        assert_eq!(status, Status::SUCCESS);
        assert_eq!(read, [&[0; 512][..], &data[..4096], &[0; 512]].concat());
        let (_, _, read) = pair.ask(|host, send| host.read(2, (10, 20), 12, send));
        assert_eq!(read, data[..81_920]);
        let (status, ..) = pair.ask(|host, send| host.zero(2, (11, 2), true, send));
        assert_eq!(status, Status::SUCCESS);
        let ranges = [(14, 1), (16, 0), (18, 2)];
        let (status, ..) = pair.ask(|host, send| host.deallocate(2, &ranges, send));
        assert_eq!(status, Status::SUCCESS);
        let (_, _, read) = pair.ask(|host, send| host.read(2, (10, 20), 12, send));
        for (number, block) in read.chunks(4096).enumerate() {
            let zero = [1, 2, 4, 8, 9].contains(&number);
            let expected = &data[number * 4096..][..4096];
            assert_eq!(block, if zero { &[0; 4096][..] } else { expected }, "block {number}");
        }
        for namespace in [1, 2, NSID_ALL] {
            assert_eq!(pair.ask(|host, send| host.flush(namespace, send)).0, Status::SUCCESS);
        }
        assert_eq!(pair.connection.open_count(), 0);
    }
}

fn report() -> Report {
    let entry = |controller, holds, host, key| ReportEntry { controller, holds, host, key };
    let (one, two) = (HostId(0x0102 << 112), HostId(7));
    let kind = Some(ReservationKind::ExclusiveAccessRegistrants);
    let entries = [entry(0x101, true, one, 0x11), entry(0xffff, false, two, 0x22)].into();
    Report { generation: 9, kind, persists: true, entries }
}

#[test]
fn commands_about_reservations_reach_the_caller_as_hosts_say_them() {
    let (current, key, others) = (u64::MAX - 1, 2, 3);
    let kind = ReservationKind::WriteExclusiveAll;
    let commands = [
        ReservationCommand::Register { key, persists: None },
        ReservationCommand::Register { key, persists: Some(false) },
        ReservationCommand::Replace { current: Some(current), key, persists: Some(true) },
        ReservationCommand::Replace { current: None, key, persists: None },
        ReservationCommand::Unregister { current: Some(current), persists: None },
        ReservationCommand::Unregister { current: None, persists: Some(true) },
        ReservationCommand::Acquire { current, kind },
        ReservationCommand::Preempt { current, others, kind },
        ReservationCommand::Release { current, kind },
        ReservationCommand::Clear { current },
    ];
    let mut pair = io(7, Digests { header: true, data: true });
    for command in commands {
        let (status, ..) = pair.ask(|host, send| host.reserve(1, &command, send));
        assert_eq!(status, Status::SUCCESS);
        let request = pair.requests.last().unwrap();
        assert_eq!((&request.op, request.namespace), (&Op::Reserve(Box::new(command)), Some(1)));
    }
    // What is aborted has its end in any case.
    let preempt = ReservationCommand::Preempt { current, others, kind };
    let asked = pair.requests.len();
    let (status, ..) =
        pair.ask(|host, send| host.preempt_and_abort(1, (current, others), kind, send));
    assert_eq!((status, pair.requests.len()), (Status::SUCCESS, asked + 1));
    assert_eq!(pair.requests.last().unwrap().op, Op::Reserve(Box::new(preempt)));
    let (status, _, page) = pair.ask(|host, send| host.reservations(1, 4096, send));
    assert_eq!((status, page.len()), (Status::SUCCESS, 4096));
    // Generation, kind, two controllers, persists.
    assert_eq!(page[..10], [9, 0, 0, 0, 4, 2, 0, 0, 0, 1]);
    assert_eq!(page[64..72], [1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!((page[72], page[80], page[81]), (0x11, 1, 2));
    assert_eq!((page[128], page[130], page[136], page[159]), (0xff, 0, 0x22, 7));
    let (_, _, short) = pair.ask(|host, send| host.reservations(1, 24, send));
    assert_eq!(short, page[..24]);
    let register = ReservationCommand::Register { key, persists: None };
    let (status, ..) = pair.ask(|host, send| host.reserve(3, &register, send));
    assert_eq!(status, Status::INVALID_NAMESPACE);
}

#[test]
fn what_cannot_be_is_refused_and_the_connection_goes_on() {
    let mut pair = io(9, Digests { header: true, data: true });
    let inline = [5; 4096];
    let most = TRANSFER_BYTES_MAX / 4096;
    type Make<'a> = &'a dyn Fn(&mut Host, &mut Vec<u8>) -> u16;
    let cases: [(Make, Status); 8] = [
        (&|host, send| host.write(3, (0, 8), false, &inline, send), Status::INVALID_NAMESPACE),
        (&|host, send| host.write(1, (8185, 8), false, &inline, send), Status::OUT_OF_RANGE),
        (&|host, send| host.write(1, (u64::MAX, 8), false, &inline, send), Status::OUT_OF_RANGE),
        (&|host, send| host.write(1, (0, 9), false, &inline, send), Status::SGL_LENGTH),
        (&|host, send| host.read(1, (8192, 1), 9, send), Status::OUT_OF_RANGE),
        (&|host, send| host.read(2, (0, most + 1), 12, send), Status::INVALID_FIELD),
        (&|host, send| host.flush(7, send), Status::INVALID_NAMESPACE),
        (&|host, send| host.deallocate(2, &[(1024, 1)], send), Status::OUT_OF_RANGE),
    ];
    for (make, expected) in cases {
        assert_eq!(pair.ask(make).0, expected);
        assert_eq!((pair.connection.open_count(), pair.closed), (0, None));
    }
    assert!(pair.requests.is_empty());
    let (status, ..) = pair.ask(|host, send| host.write(1, (0, 8), false, &inline, send));
    assert_eq!(status, Status::SUCCESS);
}

/// Appends what `make` does, with bytes of its command changed. Only where headers have no digests.
fn changed(
    host: &mut Host,
    send: &mut Vec<u8>,
    make: impl FnOnce(&mut Host, &mut Vec<u8>) -> u16,
    change: impl FnOnce(&mut [u8]),
) -> u16 {
    let at = send.len() + COMMON_BYTES;
    let id = make(host, send);
    change(&mut send[at..][..COMMAND_BYTES]);
    id
}

#[test]
fn an_opcode_that_is_not_served_is_refused_and_the_connection_goes_on() {
    // Those beside the ones that are served, and vendors' own.
    for opcode in [0x00, 0x01, 0x05, 0x0d, 0x10, 0x14, 0x15, 0x19, 0x80, 0x81, 0xc0, 0xff] {
        let mut pair = admin(1, Digests::default());
        let (status, ..) = pair
            .ask(|host, send| changed(host, send, Host::keep_alive, |command| command[0] = opcode));
        assert_eq!(status, Status::INVALID_OPCODE, "administration {opcode:#x}");
        assert_eq!(pair.ask(Host::keep_alive).0, Status::SUCCESS);
    }
    let (status, ..) = admin(1, Digests::default()).ask(|host, send| {
        let make = |host: &mut Host, send: &mut Vec<u8>| host.property(0, true, send);
        changed(host, send, make, |command| command[4] = 0x7f)
    });
    assert_eq!(status, Status::INVALID_OPCODE, "a fabrics command that there is not");
    let mut pair = io(1, Digests { header: false, data: true });
    for opcode in [0x03, 0x04, 0x06, 0x10, 0x12, 0x19, 0x79, 0x80, 0xff] {
        for data in [&[][..], &[7; 512]] {
            let (status, ..) = pair.ask(|host, send| {
                let make = |host: &mut Host, send: &mut Vec<u8>| match data {
                    [] => host.flush(1, send),
                    data => host.write(1, (0, 1), false, data, send),
                };
                changed(host, send, make, |command| command[0] = opcode)
            });
            assert_eq!(status, Status::INVALID_OPCODE, "{opcode:#x} with {} bytes", data.len());
        }
    }
    assert!(pair.requests.is_empty());
    assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::SUCCESS);
}

/// A request for events waits: it is answered with the next one.
fn assert_waits(pair: &mut Pair, waiting: u16) {
    let mut service = subsystem();
    service.access = Access::NonOptimized;
    pair.connection.change(&Service::Volumes(service), &mut pair.to_host);
    let told = HostEvent::Ended { id: waiting, status: Status::SUCCESS, result: 0x0c_0302 };
    assert_eq!(pair.carry(), [told]);
}

#[test]
fn what_is_to_be_aborted_goes_on_and_its_host_is_told_so() {
    const ABORT: u8 = 0x08;
    let mut pair = admin(2, Digests::default());
    let _ = pair.ask(|host, send| host.set_feature(0x0b, 0x800, send));
    let waiting = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), []);
    // One that is open, one that never was, and one of another queue.
    for (queue, id) in [(0, waiting), (0, 999), (1, 0)] {
        let (status, result, _) = pair.ask(|host, send| {
            changed(host, send, Host::keep_alive, |command| {
                command[0] = ABORT;
                command[40..42].copy_from_slice(&u16::to_le_bytes(queue));
                command[42..44].copy_from_slice(&u16::to_le_bytes(id));
            })
        });
        assert_eq!((status, result), (Status::SUCCESS, 1), "not aborted: {queue} {id}");
    }
    assert_waits(&mut pair, waiting);
}

#[test]
fn two_commands_that_are_to_be_one_are_refused_each() {
    let mut pair = io(3, Digests::default());
    for fused in [0b01, 0b10, 0b11] {
        let (status, ..) = pair.ask(|host, send| {
            let make = |host: &mut Host, send: &mut Vec<u8>| {
                host.write(1, (0, 8), false, &[7; 4096], send)
            };
            changed(host, send, make, |command| command[1] |= fused)
        });
        assert_eq!(status, Status::INVALID_FIELD);
    }
    assert!(pair.requests.is_empty());
    let (_, _, read) = pair.ask(|host, send| host.read(1, (0, 8), 9, send));
    assert!(read.iter().all(|&byte| byte == 0));
}

#[test]
fn a_number_that_is_open_is_refused_and_the_first_of_it_goes_on() {
    let mut pair = io(4, Digests::default());
    let first = pair.host.write_later(1, (0, 8), 9, &mut pair.to_controller);
    let events = pair.carry();
    let HostEvent::Asked { tag, .. } = events[0] else { panic!("{events:?}") };
    let ended = |status| HostEvent::Ended { id: first, status, result: 0 };
    // With no data, with data behind it, and one whose data is gathered.
    type Make<'a> = &'a dyn Fn(&mut Host, &mut Vec<u8>) -> u16;
    let makes: [Make; 3] = [
        &|host, send| host.read(1, (0, 8), 9, send),
        &|host, send| host.write(1, (0, 8), false, &[1; 4096], send),
        &|host, send| host.deallocate(1, &[(0, 8)], send),
    ];
    for make in makes {
        changed(&mut pair.host, &mut pair.to_controller, make, |command| {
            command[2..4].copy_from_slice(&first.to_le_bytes());
        });
        assert_eq!(pair.carry(), [ended(Status::ID_CONFLICT)]);
    }
    assert_eq!((pair.requests.len(), pair.connection.open_count()), (1, 1));
    pair.host.send_data((first, tag), 0, &[9; 4096], 4096, &mut pair.to_controller);
    assert_eq!(pair.carry(), [ended(Status::SUCCESS)]);
    // It is free again.
    changed(&mut pair.host, &mut pair.to_controller, makes[0], |command| {
        command[2..4].copy_from_slice(&first.to_le_bytes());
    });
    let events = pair.carry();
    assert_eq!(events.last(), Some(&ended(Status::SUCCESS)));
    assert!(matches!(&events[0], HostEvent::Data { bytes, .. } if bytes[..] == [9; 4096]));
}

#[test]
fn more_data_than_is_gathered_is_skipped_and_its_command_refused() {
    for (seed, digests) in all_digests().enumerate() {
        let mut pair = io(seed as u64, digests);
        // 256 ranges are as many as there can be.
        let most: Vec<(u64, u32)> = (0..256).map(|first| (first, 1)).collect();
        let (status, ..) = pair.ask(|host, send| host.deallocate(1, &most, send));
        assert_eq!(status, Status::SUCCESS);
        for count in [257, 512] {
            let more: Vec<(u64, u32)> = (0..count).map(|first| (first, 1)).collect();
            let (status, ..) = pair.ask(|host, send| host.deallocate(1, &more, send));
            assert_eq!(status, Status::SGL_LENGTH, "{count}");
        }
        assert_eq!((pair.requests.len(), pair.connection.open_count()), (1, 0));
        assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::SUCCESS);
    }
}

#[test]
fn of_what_a_host_wants_to_deallocate_no_more_is_taken_than_it_will_wait_for() {
    let volume = Namespace { blocks: 1 << 40, ..subsystem().namespaces[0] };
    let shift = volume.block_shift;
    let ranges = [(0, 3), (5, u32::MAX), (1 << 39, u32::MAX)];
    let data: Vec<u8> = ranges
        .iter()
        .flat_map(|&(first, blocks): &(u64, u32)| {
            [&[0; 4][..], &blocks.to_le_bytes(), &first.to_le_bytes()].concat()
        })
        .collect();
    let taken = crate::serve::ranges_of(&data, ranges.len(), &volume).expect("all are inside");
    let limit = (16 << 30) - (3 << shift);
    assert_eq!(taken, [0..3 << shift, 5 << shift..(5 << shift) + limit]);
}

#[test]
fn more_data_than_may_come_with_a_command_ends_the_connection_with_a_reason() {
    let most = INLINE_BYTES_MAX as usize;
    for (seed, digests) in all_digests().enumerate() {
        let mut pair = io(seed as u64, digests);
        let data = alloc::vec![3; most + 512];
        let blocks = |bytes: usize| (0, (bytes / 512) as u32);
        let (status, ..) =
            pair.ask(|host, send| host.write(1, blocks(most), false, &data[..most], send));
        assert_eq!(status, Status::SUCCESS);
        let _ = pair.host.write(1, blocks(data.len()), false, &data, &mut pair.to_controller);
        let head = pair.to_controller[..72].to_vec();
        while !pair.to_controller.is_empty() {
            pair.carry_some();
        }
        // It ends before any of the data was taken, and says which header is to blame.
        assert_eq!(pair.closed, Some(CloseReason::Fault(Fatal::TooMuch)));
        assert_eq!(pair.requests.len(), 1);
        let end = pair.to_host.clone();
        assert_eq!((end[0], end[2], u32_at(&end, 4)), (3, 24, end.len() as u32));
        assert_eq!((end[8..14].to_vec(), &end[24..96]), ([5, 0, 0, 0, 0, 0].to_vec(), &head[..]));
        assert_eq!(pair.carry(), [HostEvent::Ends { code: 5 }]);
    }
    // What has no data must not bring any.
    let mut pair = io(1, Digests::default());
    changed(
        &mut pair.host,
        &mut pair.to_controller,
        |host, send| host.write(1, (0, 1), false, &[3; 512], send),
        |command| command[0] = 0x00,
    );
    assert_eq!(pair.carry(), [HostEvent::Ends { code: 5 }]);
    assert!(pair.requests.is_empty());
}

#[test]
fn a_host_is_told_once_of_what_changed_until_it_has_looked() {
    let mut pair = admin(3, Digests::default());
    let (_, _, _) = pair.ask(|host, send| host.set_feature(0x0b, 0x900, send));
    let first = pair.host.await_event(&mut pair.to_controller);
    let second = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), []);
    let mut changed = subsystem();
    changed.access = Access::NonOptimized;
    changed.namespaces[0].blocks += 8;
    let service = Service::Volumes(changed.clone());
    pair.connection.change(&service, &mut pair.to_host);
    let told = |id, result| HostEvent::Ended { id, status: Status::SUCCESS, result };
    assert_eq!(pair.carry(), [told(first, 0x04_0002), told(second, 0x0c_0302)]);
    changed.access = Access::Optimized;
    pair.connection.change(&Service::Volumes(changed), &mut pair.to_host);
    let third = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), [], "it has not looked");
    let look = pair.host.log_page(0x0c, 48, &mut pair.to_controller);
    let events = pair.carry();
    assert!(events.contains(&told(third, 0x0c_0302)), "{events:?}");
    assert!(events.contains(&told(look, 0)), "{events:?}");
    let (_, _, page) = pair.ask(|host, send| host.log_page(0x04, 4096, send));
    assert_eq!((u32_at(&page, 0), u32_at(&page, 4)), (1, 0));
    for _ in 0..4 {
        let _ = pair.host.await_event(&mut pair.to_controller);
    }
    assert_eq!(pair.carry(), []);
    assert_eq!(pair.ask(Host::await_event).0, Status::TOO_MANY_EVENTS);
}

#[test]
fn what_changed_before_a_host_asked_to_be_told_is_told_then() {
    let mut pair = admin(3, Digests::default());
    let _ = pair.ask(|host, send| host.log_page(0x0c, 48, send));
    let mut changed = subsystem();
    changed.access = Access::Inaccessible;
    pair.connection.change(&Service::Volumes(changed), &mut pair.to_host);
    // Linux looks while it sets a controller up, and asks when its queues are there.
    let event = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), []);
    let asked = pair.host.set_feature(0x0b, 0x800, &mut pair.to_controller);
    let told = |id, result| HostEvent::Ended { id, status: Status::SUCCESS, result };
    assert_eq!(pair.carry(), [told(asked, 0), told(event, 0x0c_0302)]);
}

#[test]
fn a_host_is_told_what_others_did_to_its_registration() {
    const EVENT: u64 = 0x80_0006;
    let mut pair = admin(3, Digests::default());
    let event = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), []);
    let tell = |pair: &mut Pair, namespace, notice| {
        pair.connection.notify(namespace, notice, &mut pair.to_host);
    };
    let told = |id| HostEvent::Ended { id, status: Status::SUCCESS, result: EVENT };
    let page = |pair: &mut Pair| {
        let (_, _, page) = pair.ask(|host, send| host.log_page(0x80, 64, send));
        (u32_at(&page, 0), page[8], page[9], u32_at(&page, 12))
    };
    assert_eq!(page(&mut pair), (0, 0, 0, 0));
    tell(&mut pair, 2, Notice::ReservationReleased);
    assert_eq!(pair.carry(), [told(event)]);
    tell(&mut pair, 1, Notice::RegistrationPreempted);
    let event = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), [], "it has not looked");
    let look = pair.host.log_page(0x80, 64, &mut pair.to_controller);
    let events = pair.carry();
    assert!(events.contains(&told(event)), "there is another: {events:?}");
    assert!(events.iter().any(|event| matches!(event, HostEvent::Data { id, bytes, .. }
        if *id == look && bytes[8] == 2 && bytes[9] == 1)));
    assert_eq!(page(&mut pair), (2, 1, 0, 1));
    assert_eq!(page(&mut pair), (0, 0, 0, 0));
    // Of all that it does not read, eight are kept.
    for _ in 0..10 {
        tell(&mut pair, 1, Notice::ReservationPreempted);
    }
    let pages: Vec<_> = (0..9).map(|_| page(&mut pair)).collect();
    assert_eq!((pages[0], pages[7], pages[8]), ((3, 3, 7, 1), (10, 3, 0, 1), (0, 0, 0, 0)));
    // It does not want to hear of that.
    let mask = |pair: &mut Pair, namespace, mask| {
        pair.ask(|host, send| host.set_feature_of(namespace, 0x82, mask, send)).0
    };
    let masked = |pair: &mut Pair, namespace| {
        pair.ask(|host, send| host.feature_of(namespace, 0x82, send)).1
    };
    assert_eq!(mask(&mut pair, 2, 1 << 1), Status::SUCCESS);
    assert_eq!(mask(&mut pair, 3, 1 << 1), Status::INVALID_NAMESPACE);
    tell(&mut pair, 2, Notice::RegistrationPreempted);
    tell(&mut pair, 2, Notice::ReservationPreempted);
    assert_eq!(page(&mut pair), (13, 3, 0, 2));
    assert_eq!((masked(&mut pair, 1), masked(&mut pair, 2)), (0, 2));
    assert_eq!(mask(&mut pair, NSID_ALL, !0), Status::SUCCESS);
    assert_eq!((masked(&mut pair, 1), masked(&mut pair, 2)), (0xe, 0xe));
    let persists = |pair: &mut Pair, namespace| {
        pair.ask(|host, send| host.feature_of(namespace, 0x83, send)).1
    };
    assert_eq!((persists(&mut pair, 1), persists(&mut pair, 2)), (0, 1));
    let (fixed, _, _) = pair.ask(|host, send| host.set_feature_of(1, 0x83, 1, send));
    assert_eq!(fixed, Status::FEATURE_FIXED);
}

#[test]
fn a_host_reads_who_it_said_that_it_is() {
    let mut pair = admin(4, Digests { header: true, data: true });
    let mut read = |wide: u8| {
        pair.ask(|host, send| {
            host.command(ADMIN_GET_FEATURES, &[], send, |command| {
                (command[32], command[39], command[40], command[44]) = (16, 0x5a, 0x81, wide);
            })
        })
    };
    let (status, _, identity) = read(1);
    let said = [&[7; 12][..], &crc32c(HOST.as_bytes()).to_be_bytes()].concat();
    assert_eq!((status, identity), (Status::SUCCESS, said));
    // Eight bytes are for hosts of other transports.
    assert_eq!(read(0).0, Status::INVALID_FIELD);
}

#[test]
fn a_silent_host_is_given_up_by_the_clock_whatever_waits_to_be_read() {
    let mut pair = admin(4, Digests::default());
    let expires = |pair: &Pair| pair.connection.controller().unwrap().expires_at().unwrap();
    let before = expires(&pair);
    pair.now = pair.now + Duration::from_secs(4);
    assert_eq!(pair.ask(Host::keep_alive).0, Status::SUCCESS);
    assert_eq!(expires(&pair), before + Duration::from_secs(4));
}

#[test]
fn discovery_tells_where_a_subsystem_is() {
    let entry = |node, address: &str| Entry {
        nqn: String::from(NQN),
        address: address.into(),
        port: 4420,
        ipv6: address.contains(':'),
        node,
        tls: node == 2,
    };
    let entries = alloc::vec![entry(1, "127.77.0.1"), entry(2, "::1")];
    let service = Service::Discovery { entries, generation: 3 };
    let mut pair = Pair::new(5, Digests::default(), service);
    assert_eq!(pair.carry(), [HostEvent::Ready]);
    let (status, ..) =
        pair.ask(|host, send| host.connect((DISCOVERY_NQN, HOST), (0, 32), None, 0, send));
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(pair.ask(|host, send| host.configure(1, send)).0, Status::SUCCESS);
    let (_, _, page) = pair.ask(|host, send| host.log_page(0x70, 3072, send));
    assert_eq!((u32_at(&page, 0), u32_at(&page, 8)), (3, 2));
    assert_eq!(page[1024..1028], [3, 1, 2, 4]);
    // The second is for TLS 1.3.
    assert_eq!((page[1024 + 768], page[2048 + 3], page[2048 + 768]), (0, 5, 2));
    assert!(page[1024 + 32..].starts_with(b"4420\0"));
    assert!(page[1024 + 256..].starts_with(NQN.as_bytes()));
    assert!(page[2048 + 512..].starts_with(b"::1\0"));
    assert_eq!(page[2049], 2);
    assert_eq!(pair.connection.controller().unwrap().expires_at(), None);
}

#[test]
fn who_asks_the_discovery_service_cannot_stay_unheard_of_for_longer_than_it_was_let_in_for() {
    let service = Service::Discovery { entries: Vec::new(), generation: 3 };
    let mut pair = Pair::new(7, Digests::default(), service);
    assert_eq!(pair.carry(), [HostEvent::Ready]);
    let names = (DISCOVERY_NQN, HOST);
    let (status, ..) = pair.ask(|host, send| host.connect(names, (0, 32), None, 30_000, send));
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(pair.ask(|host, send| host.configure(1, send)).0, Status::SUCCESS);
    for (milliseconds, status) in
        [(0, Status::INVALID_FIELD), (30_001, Status::INVALID_FIELD), (20_000, Status::SUCCESS)]
    {
        assert_eq!(pair.ask(|host, send| host.set_feature(15, milliseconds, send)).0, status);
    }
}

#[test]
fn an_unknown_subsystem_is_refused() {
    let mut pair = Pair::new(6, Digests::default(), Service::Volumes(subsystem()));
    assert_eq!(pair.carry(), [HostEvent::Ready]);
    let (status, blame, _) =
        pair.ask(|host, send| host.connect(("nqn.x", HOST), (0, 32), None, 0, send));
    assert_eq!((status, blame), (Status::CONNECT_INVALID, 1 << 16 | 256));
    assert_eq!(pair.closed, Some(CloseReason::Refused));
}

#[test]
fn whatever_breaks_the_protocol_ends_the_connection_with_a_reason() {
    // A PDU of a controller; a length that cannot be; a setup that comes twice; a damaged header.
    let mut cases: Vec<(Vec<u8>, u16, Fatal)> = Vec::new();
    cases.push((alloc::vec![5, 0, 24, 0, 24, 0, 0, 0], 1, Fatal::Field(0)));
    cases.push((alloc::vec![4, 0, 72, 0, 71, 0, 0, 0], 1, Fatal::Field(4)));
    let mut again = Vec::new();
    let _ = Host::new(Digests::default(), &mut again);
    cases.push((again, 2, Fatal::Sequence));
    for (bytes, code, why) in cases {
        let mut pair = io(7, Digests::default());
        pair.to_controller.extend_from_slice(&bytes);
        assert_eq!(pair.carry(), [HostEvent::Ends { code }], "{bytes:?}");
        assert_eq!(pair.closed, Some(CloseReason::Fault(why)));
    }
    let mut pair = io(8, Digests { header: true, data: false });
    let _ = pair.host.flush(1, &mut pair.to_controller);
    pair.to_controller[40] ^= 1;
    assert_eq!(pair.carry(), [HostEvent::Ends { code: 3 }]);
    assert_eq!(pair.closed, Some(CloseReason::Fault(Fatal::HeaderDigest)));
}

#[test]
fn damaged_data_is_never_written() {
    let mut pair = io(10, Digests { header: false, data: true });
    let data = [9; 4096];
    let at = pair.to_controller.len();
    let id = pair.host.write(1, (0, 8), false, &data, &mut pair.to_controller);
    pair.to_controller[at + 72 + 100] ^= 1;
    let ended = HostEvent::Ended { id, status: Status::TRANSPORT, result: 0 };
    assert_eq!(pair.carry(), [ended]);
    assert!(pair.volumes[&1].iter().all(|&byte| byte == 0));
    let (status, ..) = pair.ask(|host, send| host.write(1, (0, 8), false, &data, send));
    assert_eq!(status, Status::SUCCESS);
}

/// Linux before 5.17 sends all that it was asked for in one PDU, whatever it was told.
#[test]
fn the_largest_write_may_come_in_one_pdu() {
    let mut pair = io(11, Digests::default());
    let blocks = TRANSFER_BYTES_MAX / 512;
    let id = pair.host.write_later(1, (0, blocks), 9, &mut pair.to_controller);
    let events = pair.carry();
    let HostEvent::Asked { tag, length_bytes, .. } = events[0] else { panic!("{events:?}") };
    assert_eq!(length_bytes, TRANSFER_BYTES_MAX);
    let data = alloc::vec![7; TRANSFER_BYTES_MAX as usize];
    pair.host.send_data((id, tag), 0, &data, TRANSFER_BYTES_MAX, &mut pair.to_controller);
    let ended = HostEvent::Ended { id, status: Status::SUCCESS, result: 0 };
    assert_eq!(pair.carry(), [ended]);
}

#[test]
fn data_outside_its_command_ends_the_connection() {
    for (offset, length) in [(0, 12_288), (8192, 4096)] {
        let mut pair = io(11, Digests::default());
        let id = pair.host.write_later(1, (0, 16), 9, &mut pair.to_controller);
        let events = pair.carry();
        let HostEvent::Asked { tag, .. } = events[0] else { panic!("{events:?}") };
        let data = alloc::vec![1; length];
        let send = &mut pair.to_controller;
        pair.host.send_data((id, tag), offset, &data, 1 << 20, send);
        assert_eq!(pair.carry(), [HostEvent::Ends { code: 4 }], "{offset} {length}");
    }
    let mut pair = io(12, Digests::default());
    pair.host.send_data((1, 0), 0, &[1; 512], 512, &mut pair.to_controller);
    assert_eq!(pair.carry(), [HostEvent::Ends { code: 1 }]);
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = Prng::new(99);
    for round in 0..3000_u64 {
        let digests = Digests { header: round & 1 != 0, data: round & 2 != 0 };
        let mut pair = if round & 4 == 0 { io(round, digests) } else { admin(round, digests) };
        let send = &mut pair.to_controller;
        match round % 5 {
            0 => drop(pair.host.write(1, (0, 8), false, &[1; 4096], send)),
            1 => drop(pair.host.read(1, (0, 8), 9, send)),
            2 => drop(pair.host.deallocate(1, &[(0, 8)], send)),
            3 => drop(pair.host.identify(0, 1, send)),
            _ => drop(pair.host.write_later(1, (0, 8), 9, send)),
        }
        for _ in 0..1 + random.below(4) {
            let at = random.below(pair.to_controller.len() as u64) as usize;
            pair.to_controller[at] = random.below(256) as u8;
        }
        pair.to_controller.extend((0..300).map(|_| random.below(256) as u8));
        while pair.closed.is_none() && !pair.to_controller.is_empty() {
            pair.carry_some();
        }
    }
}

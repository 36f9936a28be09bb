//! What hosts send to a controller over NVMe/TCP, and what controllers send to our own host.

use crate::mutate::low;
use crate::{Target, nothing, outcome};
use base::{Duration, Instant, Prng};
use nvme::{
    Access, CloseReason, Connection, Controller, Digests, Event, Host, Namespace, Op, Service,
    Slot, Status, Subsystem, Want,
};

/// Our controller.
pub(super) const CONTROLLER: Target = Target {
    name: "nvme-controller",
    what: "what a host sends to a controller",
    valid: commands,
    mend: nothing,
    judge: |input| {
        let mut end = End::new();
        end.receive(input);
        outcome(&(end.closed, end.seen.min(8), end.connection.is_connected(), end.queue))
    },
    words: &[NQN, "nqn."],
};

/// Our host.
pub(super) const HOST: Target = Target {
    name: "nvme-host",
    what: "what a controller sends to our host",
    valid: |random| {
        let mut end = End::new();
        end.receive(&commands(random));
        end.send
    },
    mend: nothing,
    judge: |input| {
        let mut host = Host::new(Digests::default(), &mut Vec::new());
        host.take(input);
        let mut seen = 0;
        loop {
            match host.next_event() {
                Ok(Some(_)) => seen += 1,
                Ok(None) => return outcome(&(seen.min(8), "more")),
                Err(fault) => return outcome(&(seen.min(8), fault.0)),
            }
        }
    },
    words: &[],
};

const NQN: &str = "nqn.2026-11.invalid.lockstep:web";

/// A whole connection.
fn commands(random: &mut Prng) -> Vec<u8> {
    let digests = Digests { header: random.once_in(4), data: random.once_in(4) };
    let mut bytes = Vec::new();
    let mut host = Host::new(digests, &mut bytes);
    let queue = u16::from(random.once_in(2));
    let controller = (queue > 0).then_some(1);
    host.connect((NQN, "nqn.host"), (queue, 32), controller, 5000, &mut bytes);
    if queue == 0 {
        host.configure(1, &mut bytes);
    }
    for _ in 0..random.below(8) {
        let place = (random.below(100), 1 + u32::from(low(random.below(8))));
        let length = place.1 as usize * 512;
        match (queue, random.below(6)) {
            (0, 0) => host.identify(low(random.below(8)), 1, &mut bytes),
            (0, 1) => host.log_page(low(random.below(16)), 512, &mut bytes),
            (0, 2) => host.set_feature(low(random.below(16)), 0x900, &mut bytes),
            (0, 3) => host.property(0, true, &mut bytes),
            (0, 4) => host.await_event(&mut bytes),
            (0, _) => host.keep_alive(&mut bytes),
            (_, 0) => host.read(1, place, 9, &mut bytes),
            (_, 1) => host.write(1, place, random.once_in(2), &vec![7; length], &mut bytes),
            (_, 2) => {
                let id = host.write_later(1, place, 9, &mut bytes);
                // The first free place is what it gets, if everything before is answered.
                host.send_data((id, 0), 0, &vec![7; length], 1024, &mut bytes);
                id
            }
            (_, 3) => host.zero(1, place, random.once_in(2), &mut bytes),
            (_, 4) => host.deallocate(1, &[place, place], &mut bytes),
            _ => host.flush(1, &mut bytes),
        };
    }
    bytes
}

/// A controller with one volume, which answers everything at once.
struct End {
    connection: Connection,
    send: Vec<u8>,
    service: Service,
    writes: Vec<Slot>,
    closed: Option<CloseReason>,
    queue: u16,
    seen: usize,
}

impl End {
    fn new() -> End {
        let volume = Namespace { id: 1, blocks: 1 << 14, block_shift: 9, nguid: [1; 16] };
        let service = Service::Volumes(Subsystem {
            nqn: NQN.to_owned(),
            serial: "1".to_owned(),
            namespaces: vec![volume],
            access: Access::Optimized,
        });
        End {
            connection: Connection::new(),
            send: Vec::new(),
            service,
            writes: Vec::new(),
            closed: None,
            queue: 0,
            seen: 0,
        }
    }

    fn receive(&mut self, mut input: &[u8]) {
        let piece = 1 + input.len() % 83;
        while !input.is_empty() && self.closed.is_none() {
            let event = match self.connection.wants() {
                Want::Bytes { bytes } => {
                    assert!(bytes > 0);
                    let part = &input[..piece.min(input.len())];
                    let fed = self.connection.feed(Instant(1), part, &mut self.send);
                    assert!(fed.consumed > 0, "no progress on what was wanted");
                    assert!(fed.consumed <= bytes as usize, "more was taken than wanted");
                    input = &input[fed.consumed..];
                    fed.event
                }
                Want::Payload { slot, length_bytes, .. } => {
                    assert!(self.writes.contains(&slot), "data belongs to a write");
                    let count = input.len().min(piece).min(length_bytes as usize);
                    let event = self.connection.received(slot, &input[..count], &mut self.send);
                    input = &input[count..];
                    event
                }
                Want::Nothing => return,
                Want::Answer => panic!("everything is answered at once"),
            };
            if let Some(event) = event {
                self.on_event(event);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        self.seen += 1;
        match event {
            Event::Connect(connect) if connect.subsystem != NQN => {
                self.closed = Some(self.connection.refuse(Status::CONNECT_INVALID, &mut self.send));
            }
            Event::Connect(connect) if connect.queue == 0 => {
                let keep_alive = Duration::from_millis(u64::from(connect.keep_alive_ms));
                let controller = Controller::new(1, self.service.clone(), keep_alive, Instant(1));
                self.connection.administrates(controller, &mut self.send);
            }
            Event::Connect(connect) => {
                self.queue = connect.queue;
                let Service::Volumes(subsystem) = &self.service else { return };
                let volumes = subsystem.namespaces.clone();
                self.connection.serves(connect.controller, volumes, &mut self.send);
            }
            Event::Request(request) => match request.op {
                Op::Read => {
                    let length = usize::try_from(request.range.end - request.range.start);
                    let bytes = vec![0; length.expect("short").min(4096)];
                    let (slot, mut tail) = (request.slot, Vec::new());
                    if self.connection.answer_read(slot, &bytes, &mut self.send, &mut tail) {
                        self.send.extend_from_slice(&bytes);
                        self.send.append(&mut tail);
                    } else {
                        self.connection.answer(slot, Status::READ_ERROR, &mut self.send);
                    }
                }
                Op::Write { inline } | Op::Compare { inline } => {
                    self.writes.push(request.slot);
                    if !inline {
                        self.connection.ask(request.slot, &mut self.send);
                    }
                }
                _ => self.connection.answer(request.slot, Status::SUCCESS, &mut self.send),
            },
            Event::Arrived { slot, whole } => {
                self.writes.retain(|&open| open != slot);
                let status = if whole { Status::SUCCESS } else { Status::TRANSPORT };
                self.connection.answer(slot, status, &mut self.send);
            }
            Event::Switched | Event::Proved(_) => {}
            Event::Close(reason) => self.closed = Some(reason),
        }
    }
}

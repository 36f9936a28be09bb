//! What hosts send to a controller over NVMe/TCP, and what controllers send to our own host.

use crate::mutate::low;
use crate::{Target, nothing, outcome};
use base::{Duration, Instant, Prng};
use nvme::{
    Access, CloseReason, ConnectField, Connection, Controller, Credentials, Digests, Event,
    Examiner, Group, Hash, Host, Names, Namespace, Op, Prover, Refusal, Secret, Seed, Service,
    Slot, Status, Subsystem, TlsKey, TlsNames, Want,
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

/// A key for TLS, in a table of hosts.
pub(super) const TLS_KEY: Target = Target {
    name: "nvme-tls-key",
    what: "a key for TLS as NVMe tools write it",
    valid: |random| {
        let (length, bound_by) = match random.below(4) {
            0 => (32, None),
            1 => (48, None),
            2 => (32, Some(Hash::Sha256)),
            _ => (48, Some(Hash::Sha384)),
        };
        let mut key = vec![0; length];
        key.iter_mut().for_each(|byte| *byte = low(random.next_u64()));
        TlsKey::new(&key, bound_by).expect("a right length").to_text().into_bytes()
    },
    mend: nothing,
    judge: |input| {
        let text = String::from_utf8_lossy(input);
        let key = TlsKey::parse(&text);
        if let Ok(key) = &key {
            assert_eq!(key.to_text(), text, "a key has one form only");
            let names = TlsNames { host: PROVING_HOST.to_owned(), subsystem: NQN.to_owned() };
            for psk in key.psks(&names) {
                assert_eq!(TlsNames::parse(&psk.identity).as_ref(), Some(&names));
            }
        }
        outcome(&key.map(|key| key.to_text().len()))
    },
    words: &["NVMeTLSkey-1:", ":00:", ":01:", ":02:", "="],
};

/// Whose key a host says that it has.
pub(super) const TLS_IDENTITY: Target = Target {
    name: "nvme-tls-identity",
    what: "an identity that a host says at the start of TLS",
    valid: |random| {
        let names = TlsNames { host: PROVING_HOST.to_owned(), subsystem: NQN.to_owned() };
        let key = TlsKey::new(&[7; 32], Some(Hash::Sha256)).expect("32 bytes are right");
        let made: Vec<_> = key.psks(&names).collect();
        let which = usize::from(low(random.below(4)));
        made[which % made.len()].identity.clone().into_bytes()
    },
    mend: nothing,
    judge: |input| {
        let text = String::from_utf8_lossy(input);
        let names = TlsNames::parse(&text);
        if let Some(names) = &names {
            assert!(text.contains(&format!(" {} {}", names.host, names.subsystem)));
        }
        outcome(&(names.is_some(), text.split(' ').count().min(6)))
    },
    words: &["NVMe0R01 ", "NVMe1R01 ", "NVMe0R02 ", "NVMe1R02 ", NQN, " "],
};

/// Our examiner: messages, each after 2 bytes of its length.
pub(super) const EXAMINER: Target = Target {
    name: "nvme-examiner",
    what: "what a host says to prove who it is",
    valid: |random| {
        let (mut examiner, mut prover) = (examiner(), prover(random));
        let mut bytes = Vec::new();
        let mut put = |message: &[u8]| {
            let length = u16::try_from(message.len()).expect("short");
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(message);
        };
        let offer = prover.begin();
        put(&offer);
        examiner.hear(&offer);
        if let Ok(reply) = prover.reply(&examiner.say().0) {
            put(&reply);
            examiner.hear(&reply);
        }
        if let Ok(Some(last)) = prover.finish(&examiner.say().0) {
            put(&last);
        }
        bytes
    },
    mend: nothing,
    judge: |input| {
        let mut examiner = examiner();
        let (mut rest, mut verdicts) = (input, Vec::new());
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
            verdicts.extend(examiner.hear(&behind[..length]).map(|one| format!("{one:?}")));
            verdicts.extend(examiner.say().1.map(|one| format!("{one:?}")));
            rest = &behind[length..];
        }
        verdicts.truncate(4);
        outcome(&(verdicts, examiner.has_passed()))
    },
    words: &[],
};

/// Our side of a host: a challenge, and what is said to its response.
pub(super) const PROVER: Target = Target {
    name: "nvme-prover",
    what: "what a controller says to who proves who it is",
    valid: |random| {
        let (mut examiner, mut prover) = (examiner(), prover(random));
        examiner.hear(&prover.begin());
        let mut bytes = examiner.say().0;
        if let Ok(reply) = prover.reply(&bytes) {
            examiner.hear(&reply);
            bytes.extend_from_slice(&examiner.say().0);
        }
        bytes
    },
    mend: nothing,
    judge: |input| {
        let mut prover = prover(&mut Prng::new(1));
        // As long as the challenge of the smallest hash.
        let (first, second) = input.split_at(input.len().min(16 + 32));
        let replied = prover.reply(first).map(|reply| reply.len());
        outcome(&(replied, prover.finish(second).map(|last| last.is_some())))
    },
    words: &[],
};

const NQN: &str = "nqn.2026-11.invalid.lockstep:web";
/// A host that has to prove who it is.
const PROVING_HOST: &str = "nqn.proving";

fn secret(number: u8) -> Secret {
    Secret::new(&[number; 32], Some(Hash::Sha256)).expect("32 bytes are right")
}

fn names() -> Names {
    Names { host: PROVING_HOST.to_owned(), subsystem: NQN.to_owned() }
}

fn examiner() -> Examiner {
    let credentials = Credentials { host: vec![secret(1)], controller: Some(secret(2)) };
    Examiner::new(names(), credentials, Seed::new([3; 32]))
}

fn prover(random: &mut Prng) -> Prover {
    let own = if random.once_in(4) { 9 } else { 1 };
    let controller = random.once_in(2).then(|| secret(2));
    let prover = Prover::new(names(), secret(own), controller, Seed::new([4; 32]));
    prover.offering(&[Hash::Sha256], &[Group::Null])
}

/// Proves who it is on a connection whose controller has [`examiner`].
fn prove(host: &mut Host, random: &mut Prng, bytes: &mut Vec<u8>) {
    let (mut examiner, mut prover) = (examiner(), prover(random));
    let mut say = |examiner: &mut Examiner, message: &[u8]| {
        host.prove(message, bytes);
        examiner.hear(message);
        host.await_proof(bytes);
        examiner.say().0
    };
    let challenge = say(&mut examiner, &prover.begin());
    let Ok(reply) = prover.reply(&challenge) else { return };
    let success = say(&mut examiner, &reply);
    if let Ok(Some(last)) = prover.finish(&success) {
        host.prove(&last, bytes);
    }
}

/// A whole connection.
fn commands(random: &mut Prng) -> Vec<u8> {
    let digests = Digests { header: random.once_in(4), data: random.once_in(4) };
    let mut bytes = Vec::new();
    let mut host = Host::new(digests, &mut bytes);
    let queue = u16::from(random.once_in(2));
    let controller = (queue > 0).then_some(1);
    let proves = random.once_in(3);
    let own = if proves { PROVING_HOST } else { "nqn.host" };
    host.connect((NQN, own), (queue, 32), controller, 5000, &mut bytes);
    if proves && !random.once_in(8) {
        prove(&mut host, random, &mut bytes);
    }
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

/// Of every PDU the first bytes are wanted before its length is known; of a command that is there, all of its head is taken at once: with its
/// digest no more than this.
const COMMON_BYTES: u32 = 8;
const COMMAND: u8 = 0x04;
const COMMAND_BYTES: usize = 72 + 4;

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
        let volume =
            Namespace { reserves: true, id: 1, blocks: 1 << 14, block_shift: 9, nguid: [1; 16] };
        let service = Service::Volumes(Subsystem {
            persistent: vec![],
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
                    let begins = bytes == COMMON_BYTES && part[0] == COMMAND;
                    let most = if begins { COMMAND_BYTES } else { bytes as usize };
                    assert!(fed.consumed <= most, "more was taken than wanted");
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
        if self.connection.is_to_prove() {
            assert!(
                matches!(event, Event::Close(_)),
                "{event:?} of a host that has proved nothing"
            );
        }
        if let Event::Connect(connect) = &event
            && connect.subsystem == NQN
            && connect.host == PROVING_HOST
        {
            self.connection.requires(examiner());
        }
        match event {
            Event::Connect(connect) if connect.subsystem != NQN => {
                let refusal = Refusal::invalid(ConnectField::Subsystem);
                self.closed = Some(self.connection.refuse(refusal, &mut self.send));
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

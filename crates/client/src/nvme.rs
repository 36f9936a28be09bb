//! A small NVMe/TCP host that waits: an administration queue, one queue for I/O, one command at a time.
//!
//! Always: nothing is waited for longer than the limit it was opened with; after an error the
//! connection is of no use any more.
//!
//! Not here: several paths, and what to do when one breaks (its user's).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ::nvme::{
    DISCOVERY_NQN, Derivation, Digests, Host, HostEvent, Names, ProofFault, Prover, Secret, Seed,
    Status, TlsKey, TlsNames,
};
use base::{ReservationCommand, ReservationKind};
use sys::{Psk, PskSession, PskTls};

use super::{CONNECT_LIMIT, broken};

/// Who we say that we are, if nobody tells us otherwise.
const HOST_NQN: &str = "nqn.2026-11.invalid.lockstep:client";

/// In the answer to a connect command: a proof is required.
const PROOF_REQUIRED: u64 = 1 << 17;

/// Entries of our queues.
const ENTRIES: u16 = 128;

/// How often a host that only waits says that it is there: never, it is given up when its connection ends.
const KEEP_ALIVE_MS: u32 = 0;

/// Bytes of data in one PDU.
const DATA_BYTES: u32 = ::nvme::H2C_BYTES_SENT;

/// A log page's worth of the discovery service: so many subsystems are seen.
const DISCOVERY_BYTES: u32 = 32 << 10;

/// How often a write is sent of which the node says that its path failed.
const TRIES_MAX: u32 = 16;

/// How often something is asked again of a path that is inaccessible.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Who a host is, and how it shows it.
#[derive(Clone, Debug)]
pub struct NvmeIdentity {
    /// Its name.
    pub nqn: String,
    /// What it proves that it knows, if a node requires that.
    pub secret: Option<Secret>,
    /// What it has nodes prove that they know, also those that require nothing; `None`: it believes them.
    pub controller_secret: Option<Secret>,
    /// What it speaks TLS with; `None`: it speaks in the clear.
    pub tls: Option<NvmeTls>,
}

/// How a host speaks TLS.
#[derive(Clone, Debug)]
pub struct NvmeTls {
    /// What it and the nodes know.
    pub key: TlsKey,
    /// Of its identity: 0 or 1.
    pub version: u8,
    /// What becomes of it.
    pub derivation: Derivation,
}

impl Default for NvmeIdentity {
    /// One that proves nothing.
    fn default() -> NvmeIdentity {
        let nqn = HOST_NQN.to_owned();
        NvmeIdentity { nqn, secret: None, controller_secret: None, tls: None }
    }
}

/// One connection.
struct Queue {
    stream: TcpStream,
    tls: Option<PskSession>,
    host: Host,
    send: Vec<u8>,
}

/// How a command ended, its result, and what it read.
type Answer = (Status, u64, Vec<u8>);

impl Queue {
    /// Connects, and proves who we are if that is required; gives the number of the controller.
    fn open(
        address: SocketAddr,
        nqn: &str,
        (queue, controller): (u16, Option<u16>),
        who: &NvmeIdentity,
        digests: Digests,
        limit: Duration,
    ) -> io::Result<(Queue, u16)> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let mut send = Vec::new();
        let mut host = Host::new(digests, &mut send);
        // As many commands as the queue has places are never open here.
        host.leave_unwatched();
        let mut own = Queue { stream, tls: None, host, send };
        if let Some(tls) = &who.tls {
            own.start_tls(tls, nqn, who)?;
        }
        let HostEvent::Ready = own.next_event()? else { return Err(broken("no answer to setup")) };
        let names = (nqn, who.nqn.as_str());
        let (status, result, _) = own.ask(&[], |host, send| {
            host.connect(names, (queue, ENTRIES), controller, KEEP_ALIVE_MS, send)
        })?;
        check(status)?;
        if result & PROOF_REQUIRED != 0 {
            own.prove(nqn, who)?;
        } else if who.controller_secret.is_some() {
            let why = "no proof: the node asks for none, and so gives none";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok((own, u16::try_from(result & 0xffff).unwrap_or(0)))
    }

    fn prove(&mut self, nqn: &str, who: &NvmeIdentity) -> io::Result<()> {
        let Some(secret) = who.secret.clone() else {
            return Err(broken("the node wants to know who we are, and we have no secret"));
        };
        let names = Names { host: who.nqn.clone(), subsystem: nqn.to_owned() };
        let seed = Seed::new(random()?);
        let mut prover = Prover::new(names, secret, who.controller_secret.clone(), seed);
        self.say(&prover.begin())?;
        let told = self.hear()?;
        let reply = match prover.reply(&told) {
            Ok(reply) => reply,
            Err(fault) => return Err(self.give_up(&prover, fault)),
        };
        self.say(&reply)?;
        let told = self.hear()?;
        match prover.finish(&told) {
            Ok(None) => Ok(()),
            Ok(Some(last)) => self.say(&last),
            Err(fault) => Err(self.give_up(&prover, fault)),
        }
    }

    fn give_up(&mut self, prover: &Prover, fault: ProofFault) -> io::Error {
        if let ProofFault::Refuses(reason) = fault {
            // It ends the connection then.
            self.say(&prover.refusal(reason)).ok();
        }
        io::Error::new(io::ErrorKind::PermissionDenied, format!("no proof: {fault:?}"))
    }

    fn say(&mut self, message: &[u8]) -> io::Result<()> {
        check(self.ask(&[], |host, send| host.prove(message, send))?.0)
    }

    fn hear(&mut self) -> io::Result<Vec<u8>> {
        let (status, _, message) = self.ask(&[], Host::await_proof)?;
        check(status).map(|()| message)
    }

    fn start_tls(&mut self, tls: &NvmeTls, nqn: &str, who: &NvmeIdentity) -> io::Result<()> {
        let names = TlsNames { host: who.nqn.clone(), subsystem: nqn.to_owned() };
        let psk = tls.key.psk(&names, tls.version, tls.derivation);
        let psk = psk.ok_or_else(|| broken("no identity of these names"))?;
        let key = Psk::new(psk.key).ok_or_else(|| broken("no key of this length"))?;
        let session = PskTls::new().map_err(broken)?.connect(&psk.identity, key);
        let session = self.tls.insert(session);
        let mut buffer = vec![0; 4 << 10];
        loop {
            session.read(&mut []).map_err(|fault| broken(fault.to_string()))?;
            send_records(session, &mut self.stream)?;
            if session.is_open() {
                return Ok(());
            }
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            session.take(&buffer[..count]);
        }
    }

    fn next_event(&mut self) -> io::Result<HostEvent> {
        match &mut self.tls {
            Some(tls) => {
                tls.write(&self.send);
                send_records(tls, &mut self.stream)?;
            }
            None => self.stream.write_all(&self.send)?,
        }
        self.send.clear();
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(event) = self.host.next_event().map_err(|fault| broken(fault.0))? {
                return Ok(event);
            }
            let count = match &mut self.tls {
                Some(tls) => read_inside(tls, &mut self.stream, &mut buffer)?,
                None => self.stream.read(&mut buffer)?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.host.take(&buffer[..count]);
        }
    }

    /// Sends a command, and `data` once it is asked for.
    fn ask(
        &mut self,
        data: &[u8],
        make: impl FnOnce(&mut Host, &mut Vec<u8>) -> u16,
    ) -> io::Result<Answer> {
        let id = make(&mut self.host, &mut self.send);
        let mut read = Vec::new();
        loop {
            match self.next_event()? {
                HostEvent::Data { id: of, offset_bytes, bytes } if of == id => {
                    if offset_bytes as usize != read.len() {
                        return Err(broken("data out of order"));
                    }
                    read.extend_from_slice(&bytes);
                }
                HostEvent::Asked { id: of, tag, offset_bytes, length_bytes } if of == id => {
                    let from = offset_bytes as usize;
                    let part = data.get(from..from + length_bytes as usize);
                    let part = part.ok_or_else(|| broken("more was asked for than there is"))?;
                    let send = &mut self.send;
                    self.host.send_data((id, tag), offset_bytes, part, DATA_BYTES, send);
                }
                HostEvent::Ended { id: of, status, result } if of == id => {
                    return Ok((status, result, read));
                }
                HostEvent::Ends { code } => return Err(broken(format!("it ended: {code}"))),
                _ => return Err(broken("an answer to another command")),
            }
        }
    }
}

/// What TLS has to say goes out.
fn send_records(tls: &mut PskSession, stream: &mut TcpStream) -> io::Result<()> {
    let mut records = vec![0; tls.outgoing_bytes()];
    let count = tls.outgoing(&mut records);
    stream.write_all(&records[..count])
}

/// Waits for bytes inside TLS; 0: the node has ended it.
fn read_inside(
    tls: &mut PskSession,
    stream: &mut TcpStream,
    place: &mut [u8],
) -> io::Result<usize> {
    let mut records = vec![0; 64 << 10];
    loop {
        let count = tls.read(place).map_err(|fault| broken(fault.to_string()))?;
        if count > 0 {
            return Ok(count);
        }
        let came = stream.read(&mut records)?;
        if came == 0 {
            return Ok(0);
        }
        tls.take(&records[..came]);
    }
}

/// A volume of a subsystem, ready for use.
pub struct NvmeVolume {
    admin: Queue,
    io: Queue,
    namespace: u32,
    block_shift: u8,
    /// How long it is asked again of an inaccessible path, which is the only one.
    patience: Duration,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The number of our controller.
    pub controller: u16,
    /// What tells it from all other volumes.
    pub nguid: [u8; 16],
}

/// A volume's queue, for who keeps several commands open.
pub struct NvmeQueue {
    /// Where its bytes go, and come from.
    pub stream: TcpStream,
    /// What makes commands.
    pub host: Host,
    /// The volume.
    pub namespace: u32,
    /// Bytes of a block, as a power of two.
    pub block_shift: u8,
    /// Without it the controller ends.
    _admin: TcpStream,
}

impl NvmeVolume {
    /// Its queue, on which nothing is open.
    ///
    /// # Panics
    /// If it is inside TLS: what is sent there is no command.
    #[must_use]
    pub fn into_queue(self) -> NvmeQueue {
        assert!(self.io.tls.is_none(), "only what is in the clear can be given away");
        let (namespace, block_shift, _admin) =
            (self.namespace, self.block_shift, self.admin.stream);
        NvmeQueue { stream: self.io.stream, host: self.io.host, namespace, block_shift, _admin }
    }

    /// Connects to a node and opens volume `namespace` (from 1 on) of a subsystem.
    ///
    /// # Errors
    /// If nobody listens, the subsystem or the volume is not there, or an answer takes longer than `limit`.
    pub fn open(
        address: SocketAddr,
        nqn: &str,
        namespace: u32,
        digests: bool,
        limit: Duration,
    ) -> io::Result<NvmeVolume> {
        let who = NvmeIdentity::default();
        NvmeVolume::open_as(&who, address, (nqn, namespace), digests, limit)
    }

    /// Proves once more who we are, on each queue, while it is in use: by another secret, if `who` has one.
    ///
    /// # Errors
    /// If the node did not require a proof when the volume was opened, or does not take this one; or that `who` believes its own.
    pub fn prove_again(&mut self, nqn: &str, who: &NvmeIdentity) -> io::Result<()> {
        self.admin.prove(nqn, who)?;
        self.io.prove(nqn, who)
    }

    /// Likewise, as a certain host.
    ///
    /// # Errors
    /// Also if a proof is required that it cannot give, or that the node does not give.
    pub fn open_as(
        who: &NvmeIdentity,
        address: SocketAddr,
        (nqn, namespace): (&str, u32),
        digests: bool,
        limit: Duration,
    ) -> io::Result<NvmeVolume> {
        let digests = Digests { header: digests, data: digests };
        let (mut admin, controller) = Queue::open(address, nqn, (0, None), who, digests, limit)?;
        check(admin.ask(&[], |host, send| host.configure(0x46_0001, send))?.0)?;
        let (status, _, page) = admin.ask(&[], |host, send| host.identify(0, namespace, send))?;
        check(status)?;
        let (Some(blocks), Some(nguid)) = (page.first_chunk(), page[104..].first_chunk()) else {
            return Err(broken("a namespace is not said what it is"));
        };
        let (blocks, nguid, block_shift) = (u64::from_le_bytes(*blocks), *nguid, page[130]);
        if blocks == 0 {
            return Err(broken("no such namespace"));
        }
        let (io, _) = Queue::open(address, nqn, (1, Some(controller)), who, digests, limit)?;
        let size_bytes = blocks << block_shift;
        let patience = limit;
        Ok(NvmeVolume {
            admin,
            io,
            namespace,
            block_shift,
            patience,
            size_bytes,
            controller,
            nguid,
        })
    }

    fn place(&self, offset_bytes: u64, length: usize) -> (u64, u32) {
        let blocks = u32::try_from(length >> self.block_shift).unwrap_or(u32::MAX);
        (offset_bytes >> self.block_shift, blocks)
    }

    /// Writes, and returns when it is acknowledged. What is short comes with its command.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_how(offset_bytes, bytes, false)
    }

    /// Likewise, and returns when it is durable (FUA).
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn write_through(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_how(offset_bytes, bytes, true)
    }

    fn write_how(&mut self, offset_bytes: u64, bytes: &[u8], through: bool) -> io::Result<()> {
        let mut failed = 0;
        let status = self.patiently(|volume| {
            loop {
                let status = volume.write_once(offset_bytes, bytes, through)?;
                failed += u32::from(status == Status::PATH_ERROR);
                if status != Status::PATH_ERROR || failed == TRIES_MAX {
                    return Ok((status, ()));
                }
            }
        });
        check(status?.0)
    }

    /// Asks again as long as the path is inaccessible, and that is waited for: it is the only one.
    fn patiently<T>(
        &mut self,
        mut once: impl FnMut(&mut NvmeVolume) -> io::Result<(Status, T)>,
    ) -> io::Result<(Status, T)> {
        let mut waited = Duration::ZERO;
        loop {
            let (status, got) = once(self)?;
            if status != Status::INACCESSIBLE || waited >= self.patience {
                return Ok((status, got));
            }
            std::thread::sleep(ASK_AGAIN);
            waited += ASK_AGAIN;
        }
    }

    /// Says how long it is asked again of an inaccessible path.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    fn write_once(&mut self, offset_bytes: u64, bytes: &[u8], through: bool) -> io::Result<Status> {
        self.send(
            (offset_bytes, bytes),
            |host, namespace, place, send| host.write(namespace, place, through, bytes, send),
            if through { Host::write_through_later } else { Host::write_later },
        )
    }

    /// Likewise, once; false: the node says that this path failed, and that the host is to ask again, by any.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn try_write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<bool> {
        let status = self.write_once(offset_bytes, bytes, false)?;
        tried(status)
    }

    /// Likewise, and returns when it is durable (FUA).
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn try_write_through(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<bool> {
        let status = self.write_once(offset_bytes, bytes, true)?;
        tried(status)
    }

    /// Makes a range zero, which may become a hole; once, as [`NvmeVolume::try_write`].
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn try_zero(&mut self, offset_bytes: u64, length: usize) -> io::Result<bool> {
        let (place, namespace) = (self.place(offset_bytes, length), self.namespace);
        tried(self.io.ask(&[], |host, send| host.zero(namespace, place, true, send))?.0)
    }

    /// Says that bytes are not needed any more; once, likewise.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn try_deallocate(&mut self, offset_bytes: u64, length: usize) -> io::Result<bool> {
        let (place, namespace) = (self.place(offset_bytes, length), self.namespace);
        tried(self.io.ask(&[], |host, send| host.deallocate(namespace, &[place], send))?.0)
    }

    /// A command with data: `now` if that goes with the command, else `later`, and the data when it is asked for.
    fn send(
        &mut self,
        (offset_bytes, bytes): (u64, &[u8]),
        now: impl FnOnce(&mut Host, u32, (u64, u32), &mut Vec<u8>) -> u16,
        later: impl FnOnce(&mut Host, u32, (u64, u32), u8, &mut Vec<u8>) -> u16,
    ) -> io::Result<Status> {
        let place = self.place(offset_bytes, bytes.len());
        let (namespace, shift) = (self.namespace, self.block_shift);
        let inline = bytes.len() <= ::nvme::INLINE_BYTES_MAX as usize;
        let (status, ..) = self.io.ask(bytes, |host, send| match inline {
            true => now(host, namespace, place, send),
            false => later(host, namespace, place, shift, send),
        })?;
        Ok(status)
    }

    /// Fills `bytes` from the volume.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn read(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (place, namespace, shift) =
            (self.place(offset_bytes, bytes.len()), self.namespace, self.block_shift);
        let (status, read) = self.patiently(|volume| {
            let make =
                |host: &mut Host, send: &mut Vec<u8>| host.read(namespace, place, shift, send);
            let (status, _, read) = volume.io.ask(&[], make)?;
            Ok((status, read))
        })?;
        check(status)?;
        if read.len() != bytes.len() {
            return Err(broken("less was read than asked for"));
        }
        bytes.copy_from_slice(&read);
        Ok(())
    }

    /// Whether the volume holds these bytes there, as the node finds.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn compare(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<bool> {
        let status = self.send(
            (offset_bytes, bytes),
            |host, namespace, place, send| host.compare(namespace, place, bytes, send),
            Host::compare_later,
        )?;
        if status == Status::COMPARE_FAILURE {
            return Ok(false);
        }
        check(status).map(|()| true)
    }

    /// Has the node read bytes, and keep them to itself.
    ///
    /// # Errors
    /// If they cannot be read, or nothing comes in time.
    pub fn verify(&mut self, offset_bytes: u64, length: usize) -> io::Result<()> {
        let (place, namespace) = (self.place(offset_bytes, length), self.namespace);
        check(self.io.ask(&[], |host, send| host.verify(namespace, place, send))?.0)
    }

    /// Makes what was acknowledged durable.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn flush(&mut self) -> io::Result<()> {
        let namespace = self.namespace;
        let asked = self.patiently(|volume| {
            let (status, ..) = volume.io.ask(&[], |host, send| host.flush(namespace, send))?;
            Ok((status, ()))
        });
        check(asked?.0)
    }

    /// Changes who may use the volume; the node's status if it does not.
    ///
    /// # Errors
    /// If nothing comes in time.
    pub fn reserve(&mut self, command: &ReservationCommand) -> io::Result<Result<(), u16>> {
        let namespace = self.namespace;
        self.reserve_by(|host, send| host.reserve(namespace, command, send))
    }

    /// Preempts `others` and has what they asked for aborted; the node's status if it does not.
    ///
    /// # Errors
    /// If nothing comes in time.
    pub fn preempt_and_abort(
        &mut self,
        (current, others): (u64, u64),
        kind: ReservationKind,
    ) -> io::Result<Result<(), u16>> {
        let namespace = self.namespace;
        self.reserve_by(|host, send| {
            host.preempt_and_abort(namespace, (current, others), kind, send)
        })
    }

    fn reserve_by(
        &mut self,
        make: impl Fn(&mut Host, &mut Vec<u8>) -> u16,
    ) -> io::Result<Result<(), u16>> {
        let (status, ()) = self.patiently(|volume| {
            let (status, ..) = volume.io.ask(&[], &make)?;
            Ok((status, ()))
        })?;
        Ok(if status == Status::SUCCESS { Ok(()) } else { Err(status.code()) })
    }

    /// Who may use it: the bytes of a report.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn reservations(&mut self) -> io::Result<Vec<u8>> {
        let namespace = self.namespace;
        let (status, _, page) =
            self.io.ask(&[], |host, send| host.reservations(namespace, 4096, send))?;
        check(status).map(|()| page)
    }

    /// Waits until there is something to tell of what others did to this host's registrations: which, and of which namespace.
    /// 0 if it is something else.
    ///
    /// # Errors
    /// If nothing comes in time.
    pub fn await_notice(&mut self) -> io::Result<(u8, u32)> {
        const RESERVATIONS: u64 = 0x80_0006;
        let (status, event, _) = self.admin.ask(&[], Host::await_event)?;
        check(status)?;
        if event != RESERVATIONS {
            return Ok((0, 0));
        }
        let (status, _, page) = self.admin.ask(&[], |host, send| host.log_page(0x80, 64, send))?;
        check(status)?;
        let parts = page.get(8).zip(page.get(12..16).and_then(|bytes| bytes.try_into().ok()));
        let (&kind, namespace) = parts.ok_or_else(|| broken("a short page"))?;
        Ok((kind, u32::from_le_bytes(namespace)))
    }

    /// Asks to be told when what the path is worth changes.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn ask_for_path_changes(&mut self) -> io::Result<()> {
        check(self.admin.ask(&[], |host, send| host.set_feature(0x0b, 0x800, send))?.0)
    }

    /// Waits until the node says that what the path is worth has changed, and asks what it is (`access`).
    ///
    /// # Errors
    /// If nothing comes in time, or something else.
    pub fn await_path_change(&mut self) -> io::Result<u8> {
        const PATHS: u64 = 0x0c_0302;
        let (status, event, _) = self.admin.ask(&[], Host::await_event)?;
        check(status)?;
        if event == PATHS { self.access() } else { Err(broken("another event")) }
    }

    /// Says that bytes are not needed any more.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn deallocate(&mut self, offset_bytes: u64, length: usize) -> io::Result<()> {
        let (place, namespace) = (self.place(offset_bytes, length), self.namespace);
        check(self.io.ask(&[], |host, send| host.deallocate(namespace, &[place], send))?.0)
    }

    /// Switches the controller off, as a host does before it tries elsewhere.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn switch_off(&mut self) -> io::Result<()> {
        check(self.admin.ask(&[], |host, send| host.configure(0, send))?.0)
    }

    /// Says how often the node will hear of this host from now on, and be it by a command for administration: it gives up a host
    /// that is silent for longer. 0: never.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn promise(&mut self, every: Duration) -> io::Result<()> {
        let every_ms = u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        check(self.admin.ask(&[], |host, send| host.set_feature(0x0f, every_ms, send))?.0)
    }

    /// What the path is worth: 1 optimized, 2 non-optimized, 3 inaccessible.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn access(&mut self) -> io::Result<u8> {
        let (status, _, page) = self.admin.ask(&[], |host, send| host.log_page(0x0c, 48, send))?;
        check(status)?;
        page.get(32).copied().ok_or_else(|| broken("a short page"))
    }
}

/// A connection to a node's discovery service.
pub struct NvmeDiscovery {
    admin: Queue,
}

impl NvmeDiscovery {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens, the node has too many, or an answer takes longer than `limit`.
    pub fn open(address: SocketAddr, limit: Duration) -> io::Result<NvmeDiscovery> {
        NvmeDiscovery::open_as(&NvmeIdentity::default(), address, limit)
    }

    /// Likewise, as a certain host.
    ///
    /// # Errors
    /// The same.
    pub fn open_as(
        who: &NvmeIdentity,
        address: SocketAddr,
        limit: Duration,
    ) -> io::Result<NvmeDiscovery> {
        let digests = Digests::default();
        let (mut admin, _) = Queue::open(address, DISCOVERY_NQN, (0, None), who, digests, limit)?;
        check(admin.ask(&[], |host, send| host.configure(0x46_0001, send))?.0)?;
        Ok(NvmeDiscovery { admin })
    }

    /// How often what the service tells has changed, and the names of the subsystems with the addresses where they are.
    ///
    /// # Errors
    /// If the node says so, or nothing in time.
    pub fn places(&mut self) -> io::Result<(u64, Vec<(String, String)>)> {
        let page = self.page()?;
        let generation = page.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let place = |entry: &[u8]| {
            let (host, port) = (text(&entry[512..768]), text(&entry[32..64]));
            let is_ipv6 = entry[1] == 2;
            let address =
                if is_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            (text(&entry[256..512]), address)
        };
        Ok((generation, entries(&page).map(place).collect()))
    }

    fn page(&mut self) -> io::Result<Vec<u8>> {
        let make = |host: &mut Host, send: &mut Vec<u8>| host.log_page(0x70, DISCOVERY_BYTES, send);
        let (status, _, page) = self.admin.ask(&[], make)?;
        check(status)?;
        Ok(page)
    }
}

/// The entries of a discovery log page that are there whole.
fn entries(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = page.get(8..).and_then(|from| from.first_chunk());
    let count = count.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let count = usize::try_from(count).unwrap_or(0);
    page.chunks_exact(1024).skip(1).take(count)
}

/// Text up to its NUL.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// The names of the subsystems that a node tells of.
///
/// # Errors
/// If nobody listens, or an answer takes longer than `limit`.
pub fn discover(address: SocketAddr, limit: Duration) -> io::Result<Vec<String>> {
    let found = discover_as(&NvmeIdentity::default(), address, limit)?;
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

/// Likewise, as a certain host; and whether it has to speak TLS there.
///
/// # Errors
/// If nobody listens, or an answer takes longer than `limit`.
pub fn discover_as(
    who: &NvmeIdentity,
    address: SocketAddr,
    limit: Duration,
) -> io::Result<Vec<(String, bool)>> {
    let page = NvmeDiscovery::open_as(who, address, limit)?.page()?;
    let named = |entry: &[u8]| (text(&entry[256..512]), (entry[3] & 3, entry[768]) == (1, 2));
    Ok(entries(&page).map(named).collect())
}

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Whether what was asked once was done, or its path failed.
fn tried(status: Status) -> io::Result<bool> {
    if [Status::PATH_ERROR, Status::INACCESSIBLE].contains(&status) {
        return Ok(false);
    }
    check(status).map(|()| true)
}

fn check(status: Status) -> io::Result<()> {
    if status == Status::SUCCESS {
        return Ok(());
    }
    Err(broken(format!("status {:#x}", status.code())))
}

#[cfg(test)]
mod tests;

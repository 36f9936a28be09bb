//! One connection between two authenticated ends, as bytes in and bytes out.
//!
//! A session begins with a TLS 1.3 handshake in which both ends show certificates. Then each end
//! sends one record, the *opening*, with its link version and mode; the acceptor sends it only after
//! it has verified the dialler, so a dialler that has it knows that it was let in. If both are
//! [`LinkMode::Plain`], each direction leaves TLS right behind the opening; else everything stays
//! inside. In plain mode nothing but the checksums of frames guards what follows (see
//! [`LinkMode::Plain`]); who the two ends are was proved before, by TLS.
//!
//! Limits on a stranger: [`HANDSHAKE_BYTES_MAX`] bytes, [`HANDSHAKE_LIMIT`] of time until
//! [`Session::admit`], and [`Strangers`] counts how many there are at once. What an authenticated
//! peer may send before its hello is accepted is limited by `wire::Decoder`.
//!
//! A program that is no node, a client of NBD, speaks TLS and knows of no opening: for it there is
//! [`Session::accept_foreign`], which is open as soon as the certificate is verified.
//!
//! Always: nothing is handed out before the peer is authenticated; after an error nothing more is
//! taken, and only what tells the peer why is sent.
//!
//! Not here: frames (`frames`), sockets and clocks (the caller moves bytes and passes the time).

use std::collections::VecDeque;
use std::vec::Drain;

use base::{Duration, Instant, NodeId};
use sys::{BufferPool, Outgoing, Piece};

use crate::tls::{RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX, Tls, sealed_bytes, split_front};
use crate::{Claims, Config, LinkError, LinkMode, Peer, Refusal, Revocations, read_claims};

/// Bytes that a peer may send before it is authenticated, TLS and all. docs/security.md says how many real
/// ones send.
pub const HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// Time a peer has to authenticate itself and to say hello.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections at once whose peer is not authenticated: a cluster of 64 nodes reconnecting.
pub const STRANGERS_MAX: usize = 64;

/// Payloads up to this many bytes are copied beside their header; longer ones travel from where they
/// lie. So few cost less to copy than to list.
const COPY_BYTES_MAX: usize = 2048;

/// Plain bytes enciphered into one buffer of a pool: fifteen records, which fill one of 256 KiB.
const SEAL_BYTES_MAX: usize = 15 * RECORD_PLAIN_BYTES_MAX;

/// Up to this many plain bytes, records are not worth a buffer of the caller's pool.
const SMALL_BYTES_MAX: usize = 4096;

/// Bytes of headers, small frames and small records on their way that lie in buffers, at most: of 64 sends and
/// of one that fills a batch. Further ones are in memory of their own.
const SMALL_TOTAL_BYTES: usize = 512 << 10;

const OPENING_MAGIC: [u8; 4] = *b"LKSP";
const OPENING_VERSION: u8 = 1;
/// Magic, version, mode, two reserved bytes. Later versions may append.
const OPENING_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// TLS handshake.
    Handshake,
    /// Authenticated here; the peer's opening has not come.
    Opening,
    /// Bytes may pass.
    Open,
}

/// Secured bytes between two ends.
pub struct Session {
    phase: Phase,
    /// `None` once a plain session has left TLS.
    tls: Option<Box<Tls>>,
    mode: LinkMode,
    /// The peer is no node: there are no openings.
    foreign: bool,
    expected: Option<NodeId>,
    claims: Option<Claims>,
    deadline: Option<Instant>,
    handshake_bytes: usize,
    /// Deciphered and not taken yet: one record at most, from `inside_at`.
    inside: Vec<u8>,
    inside_at: usize,
    /// To be sent: not enciphered yet, or in the clear, with payloads between.
    batch: Outgoing,
    /// To be enciphered and sent before `batch`.
    plain: VecDeque<Piece>,
    /// Bytes in `plain`.
    plain_bytes: usize,
    /// What stands before a payload, and its first bytes, which share a record.
    shared: Vec<u8>,
    /// To be sent before `plain`: records.
    sealed: Vec<u8>,
    /// To be sent before `sealed`.
    pieces: Vec<Piece>,
    /// Where records are made: fresh memory for each would cost more than the cipher.
    pool: BufferPool,
    /// The same for what is small. It is the session's own, so that a peer that takes nothing keeps nobody else waiting.
    small: BufferPool,
    failure: Option<LinkError>,
    closing: bool,
}

impl Session {
    /// The end that connected. If `expected` is given, nobody but that node will do. What is
    /// enciphered goes into buffers of `pool`, or, if it has none, into memory of its own.
    ///
    /// # Errors
    /// [`LinkError::Tls`] if the system gives no random numbers.
    pub fn dial(
        config: &Config,
        expected: Option<NodeId>,
        pool: &BufferPool,
        now: Instant,
    ) -> Result<Session, LinkError> {
        Session::new(Tls::client(&config.client)?, config.mode, expected, pool, now)
    }

    /// The end that was connected to.
    ///
    /// # Errors
    /// As for `dial`.
    pub fn accept(config: &Config, pool: &BufferPool, now: Instant) -> Result<Session, LinkError> {
        Session::new(Tls::server(&config.server)?, config.mode, None, pool, now)
    }

    /// The end that a program connected to which knows TLS and nothing else of this crate. It has to
    /// show a certificate of the cluster, a client's or a node's. Everything stays inside TLS, and the
    /// caller watches the time. The `spent` bytes that it sent before TLS began count towards the limit.
    ///
    /// # Errors
    /// As for `dial`.
    pub fn accept_foreign(
        config: &Config,
        pool: &BufferPool,
        spent: usize,
    ) -> Result<Session, LinkError> {
        let tls = Tls::server(&config.server)?;
        let mut session = Session::new(tls, LinkMode::Encrypted, None, pool, Instant(0))?;
        session.foreign = true;
        session.handshake_bytes = spent;
        session.deadline = None;
        Ok(session)
    }

    fn new(
        mut tls: Tls,
        mode: LinkMode,
        expected: Option<NodeId>,
        pool: &BufferPool,
        now: Instant,
    ) -> Result<Session, LinkError> {
        let mut sealed = Vec::new();
        tls.begin(&mut sealed)?;
        Ok(Session {
            phase: Phase::Handshake,
            tls: Some(Box::new(tls)),
            mode,
            foreign: false,
            expected,
            claims: None,
            deadline: Some(now + HANDSHAKE_LIMIT),
            handshake_bytes: 0,
            inside: Vec::new(),
            inside_at: 0,
            batch: Outgoing::keeping(2 * SEAL_BYTES_MAX + RECORD_PLAIN_BYTES_MAX * 2),
            plain: VecDeque::new(),
            plain_bytes: 0,
            shared: Vec::new(),
            sealed,
            pieces: Vec::new(),
            pool: pool.clone(),
            small: BufferPool::new(SMALL_TOTAL_BYTES),
            failure: None,
            closing: false,
        })
    }

    /// True once the peer is authenticated and both ends agree on the mode: bytes may pass.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.failure.is_none()
    }

    /// Who the peer is; `None` until it has proved it.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.claims.as_ref().map(|claims| &claims.peer)
    }

    /// What the peer's certificate says; `None` until it has proved it.
    #[must_use]
    pub fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }

    /// Bytes that the peer has sent so far that was to be authenticated by them.
    #[must_use]
    pub fn handshake_bytes(&self) -> usize {
        self.handshake_bytes
    }

    /// How much may be received at once: never more than a stranger may still send before it has proved who it is.
    #[must_use]
    pub fn receive_max(&self) -> usize {
        match self.phase {
            Phase::Handshake => self.handshake_left().saturating_sub(self.cut_bytes()).max(1),
            Phase::Opening | Phase::Open => usize::MAX,
        }
    }

    /// What is left of the limit, records that are not whole not counted.
    fn handshake_left(&self) -> usize {
        HANDSHAKE_BYTES_MAX.saturating_sub(self.handshake_bytes)
    }

    /// The mode it runs in.
    #[must_use]
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// True if bytes travel in the clear by now, so that the caller may receive payload straight
    /// into the place where it is to stay.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.is_open() && self.tls.is_none()
    }

    /// What is enciphered goes into buffers of this pool from now on.
    pub fn set_pool(&mut self, pool: &BufferPool) {
        self.pool = pool.clone();
    }

    /// When to close it unless it was admitted before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The peer is welcome: there is no deadline any more.
    pub fn admit(&mut self) {
        self.deadline = None;
    }

    /// True if the list in force now would refuse the peer: the session is to be closed.
    #[must_use]
    pub fn is_revoked(&self, revocations: &Revocations) -> bool {
        self.claims.as_ref().is_some_and(|claims| revocations.refuse(claims))
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&LinkError> {
        self.failure.as_ref()
    }

    /// Makes plain bytes available: deciphers one record if there are none. Advances the handshake
    /// as well. Answers whether some are there; if not, `input` is used up or the session has just
    /// opened. In a clear session the bytes are those of `input` itself, and this answers whether
    /// it has any.
    ///
    /// # Errors
    /// Any; the session is of no more use then.
    pub fn fill(&mut self, input: &mut &mut [u8]) -> Result<bool, LinkError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = self.try_fill(input);
        if let Err(failure) = &result {
            self.failure = Some(failure.clone());
            self.batch.clear();
            self.plain.clear();
            self.plain_bytes = 0;
        }
        result
    }

    fn try_fill(&mut self, input: &mut &mut [u8]) -> Result<bool, LinkError> {
        if self.closing {
            // Whoever has said that it ends is not interested in answers.
            *input = &mut [];
            return Ok(false);
        }
        if self.phase != Phase::Open {
            self.establish(input)?;
            return Ok(false);
        }
        if self.tls.is_none() {
            return Ok(!input.is_empty());
        }
        while self.inside_at == self.inside.len() {
            self.inside.clear();
            self.inside_at = 0;
            if !self.take_record(input, usize::MAX)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes one record; what is inside comes behind `inside`.
    fn take_record(&mut self, input: &mut &mut [u8], limit: usize) -> Result<bool, LinkError> {
        let Session { tls, inside, sealed, .. } = self;
        let tls = tls.as_mut().expect("only sessions inside TLS take records");
        let taken = tls.take(input, limit, sealed, &mut |bytes| inside.extend_from_slice(bytes))?;
        if tls.is_peer_closed() && inside.is_empty() {
            return Err(LinkError::Closed);
        }
        Ok(taken)
    }

    /// Up to the end of the handshake and the peer's opening, or of `input`.
    fn establish(&mut self, input: &mut &mut [u8]) -> Result<(), LinkError> {
        loop {
            let limit = match self.phase {
                // No record is as short as that, so there is no need to receive one.
                Phase::Handshake if self.handshake_left() <= RECORD_HEADER_BYTES => {
                    return Err(LinkError::TooMuchBeforeAuthentication);
                }
                Phase::Handshake => self.handshake_left(),
                Phase::Opening | Phase::Open => usize::MAX,
            };
            let cut = self.cut_bytes();
            let before = input.len();
            if !self.take_record(input, limit)? {
                return Ok(());
            }
            if self.phase == Phase::Handshake {
                self.handshake_bytes += cut + before - input.len();
                self.meet()?;
                if self.phase == Phase::Open {
                    return Ok(());
                }
            } else if !self.inside.is_empty() {
                return self.open();
            }
        }
    }

    /// Bytes collected of a record that is not whole.
    fn cut_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.cut_bytes())
    }

    /// Looks at who the peer is, once the handshake is over, and sends the opening.
    fn meet(&mut self) -> Result<(), LinkError> {
        let tls = self.tls.as_mut().expect("the handshake is TLS");
        if tls.is_handshaking() {
            return Ok(());
        }
        let certificate = tls.peer_certificate().ok_or(LinkError::Refused(Refusal::NoName))?;
        let claims = read_claims(certificate).map_err(LinkError::Refused)?;
        if let Some(expected) = self.expected
            && claims.peer != Peer::Node(expected)
        {
            return Err(LinkError::OtherPeer { expected, found: claims.peer });
        }
        self.claims = Some(claims);
        if self.foreign {
            self.phase = Phase::Open;
            return Ok(());
        }
        let mode = match self.mode {
            LinkMode::Encrypted => 1,
            LinkMode::Plain => 2,
        };
        let mut opening = [0; OPENING_BYTES];
        opening[..4].copy_from_slice(&OPENING_MAGIC);
        opening[4] = OPENING_VERSION;
        opening[5] = mode;
        self.phase = Phase::Opening;
        self.seal(&opening);
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Judges the peer's opening, which fills `inside`.
    fn open(&mut self) -> Result<(), LinkError> {
        let opening = std::mem::take(&mut self.inside);
        let malformed = || LinkError::Tls("the peer opens in no way known here".to_owned());
        let [m, a, g, c, version, mode, _, _] =
            *opening.first_chunk::<OPENING_BYTES>().ok_or_else(malformed)?;
        if [m, a, g, c] != OPENING_MAGIC {
            return Err(malformed());
        }
        if version != OPENING_VERSION {
            return Err(LinkError::Version(version));
        }
        let remote = match mode {
            1 => LinkMode::Encrypted,
            2 => LinkMode::Plain,
            _ => return Err(malformed()),
        };
        if remote != self.mode {
            return Err(LinkError::ModeMismatch { local: self.mode, remote });
        }
        if self.mode == LinkMode::Plain {
            let tls = self.tls.take().expect("a session opens inside TLS");
            if !tls.is_between_records() {
                return Err(malformed());
            }
        }
        self.phase = Phase::Open;
        Ok(())
    }

    /// The plain bytes that `fill` made available in an enciphered session.
    #[must_use]
    pub fn inside(&self) -> &[u8] {
        &self.inside[self.inside_at..]
    }

    /// The first `count` bytes of `inside` are taken.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.inside().len(), "no more is taken than was there");
        self.inside_at += count;
    }

    /// Moves plain bytes into `place` until it is full or `input` is used up; answers how many.
    /// A record that fits is deciphered and copied once.
    ///
    /// # Errors
    /// As for `fill`.
    pub fn read(&mut self, input: &mut &mut [u8], place: &mut [u8]) -> Result<usize, LinkError> {
        let mut done = 0;
        while done < place.len() && self.fill(input)? {
            let rest = &mut place[done..];
            let count = if self.tls.is_none() {
                let count = rest.len().min(input.len());
                rest[..count].copy_from_slice(split_front(input, count));
                count
            } else {
                let count = rest.len().min(self.inside().len());
                rest[..count].copy_from_slice(&self.inside()[..count]);
                self.consume(count);
                count
            };
            done += count;
        }
        Ok(done)
    }

    /// What it means that the peer's stream of bytes has ended now.
    #[must_use]
    pub fn ended(&self) -> LinkError {
        match &self.failure {
            Some(failure) => failure.clone(),
            None if self.phase == Phase::Open && self.cut_bytes() == 0 => LinkError::Closed,
            None => LinkError::CutShort,
        }
    }

    /// Appends what `encode` appends to what is to be sent. Does nothing after a failure.
    ///
    /// # Panics
    /// If the session is not open yet: there is nobody to send to.
    pub fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.is_refusing() {
            return;
        }
        encode(self.batch.bytes());
        if self.batch.bytes().len() >= SEAL_BYTES_MAX {
            self.flush();
        }
    }

    /// Appends a payload to what is to be sent. It is kept until it is enciphered, or sent in the clear, and must not be changed
    /// before.
    ///
    /// # Panics
    /// If the session is not open yet.
    pub fn write_payload(&mut self, payload: Piece) {
        if self.is_refusing() {
            return;
        }
        let bytes = payload.as_slice();
        let room = if self.tls.is_none() { COPY_BYTES_MAX } else { RECORD_PLAIN_BYTES_MAX };
        if bytes.len() <= room {
            self.batch.bytes().extend_from_slice(bytes);
            return;
        }
        self.batch.put(payload);
    }

    fn is_refusing(&self) -> bool {
        assert!(
            self.phase == Phase::Open || self.failure.is_some(),
            "nothing is sent before the session is open"
        );
        self.failure.is_some() || self.closing
    }

    /// Turns `batch` into what can be sent, or enciphered.
    fn flush(&mut self) {
        let from = self.pieces.len();
        self.batch.take(&self.small, &mut self.pieces);
        if self.tls.is_some() {
            let plain = self.pieces.drain(from..);
            self.plain_bytes += plain.as_slice().iter().map(Piece::len).sum::<usize>();
            self.plain.extend(plain);
        }
    }

    /// Enciphers what comes next, up to a payload's end.
    fn seal_next(&mut self) {
        let mut shared = std::mem::take(&mut self.shared);
        let mut rest = None;
        while let Some(piece) = self.plain.pop_front() {
            self.plain_bytes -= piece.len();
            let bytes = piece.as_slice();
            if bytes.len() <= RECORD_PLAIN_BYTES_MAX && shared.len() + bytes.len() <= SEAL_BYTES_MAX
            {
                shared.extend_from_slice(bytes);
                continue;
            }
            // What stands before it shares a record with its first bytes.
            let used = shared.len() % RECORD_PLAIN_BYTES_MAX;
            let gap = if used == 0 { 0 } else { RECORD_PLAIN_BYTES_MAX - used };
            let count = gap.min(bytes.len());
            shared.extend_from_slice(&bytes[..count]);
            rest = Some((piece, count));
            break;
        }
        self.seal(&shared);
        if let Some((piece, from)) = &rest {
            self.seal(&piece.as_slice()[*from..]);
        }
        shared.clear();
        self.shared = shared;
    }

    /// Enciphers everything, whatever its room.
    fn seal_all(&mut self) {
        self.flush();
        while !self.plain.is_empty() {
            self.seal_next();
        }
    }

    /// Bytes that wait to be enciphered.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.plain_bytes
    }

    fn seal(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(SEAL_BYTES_MAX) {
            if self.failure.is_none()
                && let Err(failure) = self.seal_part(part)
            {
                self.failure = Some(failure);
            }
        }
    }

    fn seal_part(&mut self, part: &[u8]) -> Result<(), LinkError> {
        let tls = self.tls.as_mut().expect("only sessions inside TLS seal");
        let length = sealed_bytes(part.len());
        let pool = if part.len() > SMALL_BYTES_MAX { &self.pool } else { &self.small };
        let Some(mut buffer) = pool.take(length) else {
            let mut room = vec![0; length];
            let written = tls.seal(part, &mut room, &mut self.sealed)?;
            self.sealed.extend_from_slice(&room[..written]);
            return Ok(());
        };
        let room = buffer.as_mut().expect("nobody else has a buffer that was just taken");
        let written = tls.seal(part, room, &mut self.sealed)?;
        self.cut_sealed();
        self.pieces.push(Piece::first(buffer, written));
        Ok(())
    }

    /// Makes a piece of `sealed`.
    fn cut_sealed(&mut self) {
        if !self.sealed.is_empty() {
            self.pieces.push(Piece::from(std::mem::take(&mut self.sealed)));
        }
    }

    /// Tells the peer that nothing more will be sent. What is written or received later is dropped.
    pub fn close(&mut self) {
        if self.closing {
            return;
        }
        if self.is_open() {
            self.seal_all();
        }
        self.closing = true;
        if self.failure.is_none()
            && self.claims.is_some()
            && let Some(tls) = &mut self.tls
            && let Err(failure) = tls.close(&mut self.sealed)
        {
            self.failure = Some(failure);
        }
    }

    /// What is to be sent now, in order. Call it once after a batch of inputs, and again after an error; and when what it gave
    /// has left: no more than `room_bytes`, and one payload, are enciphered beforehand.
    pub fn outgoing(&mut self, room_bytes: usize) -> Drain<'_, Piece> {
        self.flush();
        let mut bytes = 0;
        while bytes < room_bytes && !self.plain.is_empty() {
            let before = self.plain_bytes;
            self.seal_next();
            bytes += before - self.plain_bytes;
        }
        self.cut_sealed();
        self.pieces.drain(..)
    }

    #[cfg(test)]
    pub(crate) fn refresh_keys(&mut self) {
        self.seal_all();
        let tls = self.tls.as_mut().expect("there are keys inside TLS only");
        tls.refresh_keys(&mut self.sealed);
    }
}

/// Counts connections whose peer is not authenticated, and refuses more than [`STRANGERS_MAX`].
#[derive(Debug, Default)]
pub struct Strangers {
    count: usize,
}

impl Strangers {
    /// One more has connected. False if it is one too many: close it at once, and do not `leave`.
    #[must_use]
    pub fn enter(&mut self) -> bool {
        let welcome = self.count < STRANGERS_MAX;
        self.count += usize::from(welcome);
        welcome
    }

    /// One that entered is a stranger no more, or is gone.
    ///
    /// # Panics
    /// If none had entered.
    pub fn leave(&mut self) {
        self.count = self.count.checked_sub(1).expect("who leaves has entered");
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

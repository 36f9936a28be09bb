//! Frames of an authenticated peer, in and out.
//!
//! A [`Link`] is a session, the hellos, and a `wire::Decoder`. The caller feeds what it received to
//! [`Link::next`] until that has nothing more. A frame with a payload is handed out before its
//! payload; the caller then chooses a place for it, and calls [`Link::payload`] until it is complete.
//! In a clear session it may instead receive straight into that place and call
//! [`Link::payload_received`]; [`Link::want`] says so.
//!
//! The dialler says hello as soon as it is let in; the acceptor answers with a hello for the same
//! stream. A disagreement is told to the peer by hello and goodbye, so that both logs say why.
//!
//! Always: after an error no frame is handed out; a payload is reported complete only if its checksum,
//! or the cipher, vouches for it.
//!
//! Not here: what frames mean, how many bytes may wait to be sent (the caller limits that).

use std::vec::Drain;

use base::{Instant, NodeId, ResourceId};
use sys::{BufferPool, Piece};
use wire::{
    Agreed, Decoder, Frame, FrameError, GoodbyeReason, Guard, HEADER_BYTES, Hello, MemberMessage,
    Message, NodeMessage, Payload, ShardMessage, Want, encode_member, encode_node, encode_shard,
};

use crate::hello::judge;
use crate::tls::split_front;
use crate::{Config, HelloError, LinkError, LinkMode, Peer, Revocations, Session};

/// Bytes of an unwanted payload that pass at once.
const SKIP_BYTES: usize = 4096;

/// What a link tells its owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkEvent {
    /// The peer is who it says, and both ends agree: frames may be sent from now on.
    Ready {
        /// What the peer said.
        hello: Hello,
        /// What both go by.
        agreed: Agreed,
    },
    /// A frame. If it has a payload, that is wanted next.
    Frame(Frame),
}

/// What the next bytes of the socket are for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkWant {
    /// For [`Link::next`], any number of them.
    Frames,
    /// For the payload of the frame handed out last.
    Payload {
        /// Its length in bytes.
        length: usize,
        /// Of these, bytes that are in place already.
        done: usize,
        /// The socket's bytes are the payload's: what is missing may be received straight into
        /// place, then [`Link::payload_received`].
        direct: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    payload: Payload,
    length: usize,
    done: usize,
}

/// One connection to another node.
pub struct Link {
    session: Session,
    decoder: Decoder,
    /// What this end says; the acceptor's stream is set to what it is asked for.
    hello: Hello,
    dialled: bool,
    greeted: bool,
    agreed: Option<Agreed>,
    pending: Option<Pending>,
    failure: Option<LinkError>,
}

impl Link {
    /// The end that connected, to reach `expected`. What is enciphered goes into buffers of `pool`.
    ///
    /// # Errors
    /// [`LinkError::Tls`] if the system gives no random numbers.
    pub fn dial(
        config: &Config,
        expected: NodeId,
        hello: Hello,
        pool: &BufferPool,
        now: Instant,
    ) -> Result<Link, LinkError> {
        Ok(Link::new(Session::dial(config, Some(expected), pool, now)?, hello, true))
    }

    /// The end that was connected to. The stream in `hello` does not count: it becomes the peer's.
    ///
    /// # Errors
    /// As for `dial`.
    pub fn accept(
        config: &Config,
        hello: Hello,
        pool: &BufferPool,
        now: Instant,
    ) -> Result<Link, LinkError> {
        Ok(Link::new(Session::accept(config, pool, now)?, hello, false))
    }

    fn new(session: Session, hello: Hello, dialled: bool) -> Link {
        Link {
            session,
            decoder: Decoder::new(),
            hello,
            dialled,
            greeted: false,
            agreed: None,
            pending: None,
            failure: None,
        }
    }

    /// What both ends go by; `None` until [`LinkEvent::Ready`].
    #[must_use]
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Who the peer is, by its certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.session.peer()
    }

    /// True if this end connected.
    #[must_use]
    pub fn is_dialled(&self) -> bool {
        self.dialled
    }

    /// From now on what is enciphered goes into buffers of this pool: the link is another thread's now.
    pub fn set_pool(&mut self, pool: &BufferPool) {
        self.session.set_pool(pool);
    }

    /// Bytes that wait to be enciphered.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.session.waiting_bytes()
    }

    /// How much may be received at once; see [`Session::receive_max`].
    #[must_use]
    pub fn receive_max(&self) -> usize {
        self.session.receive_max()
    }

    /// When to close it unless it became ready before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    /// True if the list in force now would refuse the peer: the link is to be closed.
    #[must_use]
    pub fn is_revoked(&self, revocations: &Revocations) -> bool {
        self.session.is_revoked(revocations)
    }

    /// What the next bytes are for.
    #[must_use]
    pub fn want(&self) -> LinkWant {
        self.pending.map_or(LinkWant::Frames, |pending| LinkWant::Payload {
            length: pending.length,
            done: pending.done,
            direct: self.session.is_clear(),
        })
    }

    /// The next event in `input`, which is used up as far as the event needs it. `None`: all is used
    /// up. `input` serves as working memory; its content is gone afterwards.
    ///
    /// # Errors
    /// The link is of no more use: send what `outgoing` gives, then close the socket.
    ///
    /// # Panics
    /// If a payload is wanted.
    pub fn next(&mut self, input: &mut &mut [u8]) -> Result<Option<LinkEvent>, LinkError> {
        assert!(self.pending.is_none(), "the payload is to be taken first");
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.try_next(input).map_err(|failure| self.fail(failure))
    }

    fn try_next(&mut self, input: &mut &mut [u8]) -> Result<Option<LinkEvent>, LinkError> {
        loop {
            let filled = self.session.fill(input)?;
            if self.dialled && self.session.is_open() {
                self.greet();
            }
            if !filled {
                if input.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            let frame = self.decode(input)?;
            if let Some(frame) = frame {
                return self.judge(frame).map(Some);
            }
        }
    }

    fn decode(&mut self, input: &mut &mut [u8]) -> Result<Option<Frame>, LinkError> {
        let (taken, frame) = if self.session.is_clear() {
            let (taken, frame) = self.decoder.receive(input).map_err(LinkError::Frame)?;
            split_front(input, taken);
            (taken, frame)
        } else {
            let inside = self.session.inside();
            let (taken, frame) = self.decoder.receive(inside).map_err(LinkError::Frame)?;
            self.session.consume(taken);
            (taken, frame)
        };
        assert!(taken > 0 || frame.is_some(), "a decoder takes what it is given");
        Ok(frame)
    }

    fn judge(&mut self, frame: Frame) -> Result<LinkEvent, LinkError> {
        match (frame.message, self.agreed) {
            (Message::Node(NodeMessage::Hello(theirs)), None) => self.shake(theirs),
            (Message::Node(NodeMessage::Goodbye { reason }), None) => {
                Err(LinkError::Dismissed(reason))
            }
            (_, None) => Err(LinkError::Hello(HelloError::Missing)),
            (Message::Node(NodeMessage::Hello(_) | NodeMessage::Authenticate { .. }), Some(_)) => {
                Err(LinkError::Frame(FrameError::Malformed("a hello or proof after the first")))
            }
            (message, Some(_)) => {
                if let Want::Payload(length) = self.decoder.want() {
                    self.pending = Some(Pending { payload: frame.payload, length, done: 0 });
                }
                Ok(LinkEvent::Frame(Frame { message, ..frame }))
            }
        }
    }

    fn shake(&mut self, theirs: Hello) -> Result<LinkEvent, LinkError> {
        if !self.dialled {
            self.hello.stream = theirs.stream;
        }
        let claims = self.session.claims().expect("an open session knows its peer");
        let judged = judge(&self.hello, &theirs, claims);
        // Most disagreements the peer sees as well, from this hello. Not so if it lies: then nothing
        // in the hello would keep it from believing that all is well.
        if !matches!(judged, Err(HelloError::OtherNode { .. })) {
            self.greet();
        }
        let agreed = judged.map_err(LinkError::Hello)?;
        self.agreed = Some(agreed);
        self.decoder.open(match self.session.mode() {
            LinkMode::Encrypted => Guard::Cipher,
            LinkMode::Plain => Guard::Checksum,
        });
        self.session.admit();
        Ok(LinkEvent::Ready { hello: theirs, agreed })
    }

    fn greet(&mut self) {
        if !self.greeted {
            self.greeted = true;
            let (stream, hello) = (self.hello.stream, self.hello.clone());
            self.session.write(|out| encode_node(out, stream, &NodeMessage::Hello(hello)));
        }
    }

    /// Notes why nothing more is taken, and tells the peer as well as possible.
    fn fail(&mut self, failure: LinkError) -> LinkError {
        let reason = match &failure {
            LinkError::Hello(_) => Some(GoodbyeReason::Disagreed),
            LinkError::Frame(_) => Some(GoodbyeReason::Fault),
            _ => None,
        };
        if let Some(reason) = reason {
            self.goodbye(reason);
        }
        self.failure = Some(failure.clone());
        failure
    }

    /// Moves payload from `input` into `place`, which is as long as the payload and the same in each
    /// call. True when it is complete and right.
    ///
    /// # Errors
    /// As for `next`; [`FrameError::Damaged`] if its checksum does not fit.
    ///
    /// # Panics
    /// If no payload is wanted, or `place` has another length.
    pub fn payload(&mut self, input: &mut &mut [u8], place: &mut [u8]) -> Result<bool, LinkError> {
        let pending = self.pending.expect("a payload is wanted");
        assert!(place.len() == pending.length, "the place is as long as the payload");
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match self.session.read(input, &mut place[pending.done..]) {
            Ok(count) => self.payload_received(place, count),
            Err(failure) => Err(self.fail(failure)),
        }
    }

    /// Moves payload from `input` to nowhere, because there is no place for it. True when all of it has passed; it
    /// is not looked at, so it may be damaged. Not to be mixed with `payload` for one frame.
    ///
    /// # Errors
    /// As for `next`.
    ///
    /// # Panics
    /// If no payload is wanted.
    pub fn skip(&mut self, input: &mut &mut [u8]) -> Result<bool, LinkError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut bin = [0; SKIP_BYTES];
        loop {
            let pending = self.pending.as_mut().expect("a payload is wanted");
            let place = (pending.length - pending.done).min(SKIP_BYTES);
            let count = match self.session.read(input, &mut bin[..place]) {
                Ok(count) => count,
                Err(failure) => return Err(self.fail(failure)),
            };
            if count > 0 {
                self.decoder.payload_taken(count);
                pending.done += count;
            }
            if pending.done == pending.length {
                self.pending = None;
                return Ok(true);
            }
            if count < place {
                return Ok(false);
            }
        }
    }

    /// The caller has received `count` more bytes of payload into `place`, behind those already
    /// done. True when the payload is complete and right.
    ///
    /// # Errors
    /// As for `payload`.
    ///
    /// # Panics
    /// If fewer bytes were wanted, or `place` has another length than the payload.
    pub fn payload_received(&mut self, place: &[u8], count: usize) -> Result<bool, LinkError> {
        let pending = self.pending.as_mut().expect("a payload is wanted");
        assert!(place.len() == pending.length, "the place is as long as the payload");
        if count == 0 {
            return Ok(false);
        }
        self.decoder.payload_taken(count);
        pending.done += count;
        if pending.done < pending.length {
            return Ok(false);
        }
        let payload = pending.payload;
        self.pending = None;
        match payload.verify(place) {
            Ok(()) => Ok(true),
            Err(error) => Err(self.fail(LinkError::Frame(error))),
        }
    }

    /// What it means that the socket has no more to read.
    #[must_use]
    pub fn ended(&self) -> LinkError {
        let between_frames = self.decoder.want() == Want::Header(HEADER_BYTES);
        match (&self.failure, self.session.ended()) {
            (Some(failure), _) => failure.clone(),
            (None, LinkError::Closed) if !between_frames => LinkError::CutShort,
            (None, end) => end,
        }
    }

    /// Queues a frame between shards. `payload` is kept until it is sent, and must not be changed
    /// before.
    ///
    /// # Panics
    /// If the link is not ready, or the message breaks a limit of `wire`.
    pub fn send_shard(
        &mut self,
        resource: ResourceId,
        shard: u16,
        message: &ShardMessage,
        payload: Option<Piece>,
    ) {
        self.send_shard_to_one_of(resource, shard, message, payload, &mut None);
    }

    /// The same for a payload that goes to several peers: `checksum` is its CRC-32C once a link that needs it has computed it,
    /// and is taken for that by the next.
    ///
    /// # Panics
    /// As `send_shard`.
    pub fn send_shard_to_one_of(
        &mut self,
        resource: ResourceId,
        shard: u16,
        message: &ShardMessage,
        payload: Option<Piece>,
        checksum: &mut Option<u32>,
    ) {
        let stream = self.stream();
        let described = payload.as_ref().map_or(Payload::NONE, |piece| {
            let unchecked = Payload::unchecked(piece.len());
            match (self.session.mode(), *checksum) {
                (LinkMode::Encrypted, _) => unchecked,
                (LinkMode::Plain, Some(_)) => Payload { checksum: *checksum, ..unchecked },
                (LinkMode::Plain, None) => Payload::checked(piece.as_slice()),
            }
        });
        *checksum = checksum.or(described.checksum);
        self.session.write(|out| encode_shard(out, resource, shard, stream, message, described));
        if let Some(payload) = payload {
            self.session.write_payload(payload);
        }
    }

    /// Queues a frame between members.
    ///
    /// # Panics
    /// If the link is not ready, or the message breaks a limit of `wire`.
    pub fn send_member(&mut self, resource: ResourceId, message: &MemberMessage) {
        let stream = self.stream();
        self.session.write(|out| encode_member(out, resource, stream, message));
    }

    /// Queues a frame between nodes.
    ///
    /// # Panics
    /// If the link is not ready, or the message breaks a limit of `wire`.
    pub fn send_node(&mut self, message: &NodeMessage) {
        let stream = self.stream();
        self.session.write(|out| encode_node(out, stream, message));
    }

    fn stream(&self) -> u16 {
        self.agreed.expect("frames are sent once the link is ready").stream
    }

    /// Says why nothing more will be sent. What is queued or received later is dropped. Close the socket when
    /// `outgoing` is sent.
    pub fn goodbye(&mut self, reason: GoodbyeReason) {
        if self.session.is_open() {
            let stream = self.hello.stream;
            self.session.write(|out| encode_node(out, stream, &NodeMessage::Goodbye { reason }));
        }
        self.session.close();
    }

    /// Everything that is to be sent now, in order. Call it once after a batch of inputs, and after
    /// an error.
    pub fn outgoing(&mut self, room_bytes: usize) -> Drain<'_, Piece> {
        self.session.outgoing(room_bytes)
    }
}

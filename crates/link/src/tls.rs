//! TLS over borrowed bytes, one record at a time.
//!
//! A record that lies whole in the caller's buffer is deciphered there; one that is cut is collected
//! in `held` first. Records are taken singly so that a session can leave TLS exactly behind the one
//! that says so.
//!
//! Always: `held[..processed]` are bytes that rustls has seen and wants to see again (a handshake
//! message that goes on in the next record); behind them stands at most one record.
//!
//! Not here: limits before authentication, what the bytes inside mean (`session`).

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, Error as TlsError, ServerConfig};

use crate::trust::refusal_in;
use crate::{LinkError, Refusal};

/// Bytes before the content of a record.
pub(crate) const RECORD_HEADER_BYTES: usize = 5;

/// Bytes of content in a record at most, as TLS 1.3 has it.
const RECORD_BODY_BYTES_MAX: usize = (16 << 10) + 256;

/// Plain bytes that one record carries at most.
pub(crate) const RECORD_PLAIN_BYTES_MAX: usize = 16 << 10;

/// What a record costs on the wire beside its plain bytes: header, kind, authentication tag.
const RECORD_COST_BYTES: usize = RECORD_HEADER_BYTES + 1 + 16;

/// The record that may come first, to answer that the peer has new keys: it holds five bytes.
const KEY_UPDATE_BYTES: usize = RECORD_COST_BYTES + 5;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// One TLS connection.
pub(crate) struct Tls {
    side: Side,
    held: Vec<u8>,
    processed: usize,
    peer_closed: bool,
}

/// Where one call into rustls led.
enum Next {
    /// Call again.
    Again,
    /// It needs more from the peer.
    Idle,
    /// What was to be sealed is sealed; or nothing was, and it could be.
    Ready,
    /// The peer closed its direction.
    PeerClosed,
    Failed(TlsError),
}

/// What to put into records.
enum Seal<'a> {
    Nothing,
    /// Into `room`; once done, `written` says how much of it is used.
    Bytes {
        bytes: &'a [u8],
        room: &'a mut [u8],
        written: usize,
    },
    Close,
}

/// Bytes that `count` plain bytes become at most, in records of their own.
pub(crate) fn sealed_bytes(count: usize) -> usize {
    count + count.div_ceil(RECORD_PLAIN_BYTES_MAX) * RECORD_COST_BYTES + KEY_UPDATE_BYTES
}

impl Tls {
    pub(crate) fn client(config: &Arc<ClientConfig>) -> Result<Tls, LinkError> {
        // Nobody looks at this name: nodes go by the URI in their certificates.
        let name = ServerName::try_from("lockstep.invalid").expect("it is a DNS name");
        let client =
            UnbufferedClientConnection::new(Arc::clone(config), name).map_err(|e| explain(&e))?;
        Ok(Tls::new(Side::Client(client)))
    }

    pub(crate) fn server(config: &Arc<ServerConfig>) -> Result<Tls, LinkError> {
        let server =
            UnbufferedServerConnection::new(Arc::clone(config)).map_err(|e| explain(&e))?;
        Ok(Tls::new(Side::Server(server)))
    }

    fn new(side: Side) -> Tls {
        Tls { side, held: Vec::new(), processed: 0, peer_closed: false }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(client) => client.is_handshaking(),
            Side::Server(server) => server.is_handshaking(),
        }
    }

    /// The peer said that it will send no more.
    pub(crate) fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Bytes collected of a record that is not whole yet.
    pub(crate) fn cut_bytes(&self) -> usize {
        self.held.len() - self.processed
    }

    /// True if nothing is held: the next byte begins a record and no message goes on in it.
    pub(crate) fn is_between_records(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        match &self.side {
            Side::Client(client) => client.peer_certificates(),
            Side::Server(server) => server.peer_certificates(),
        }
        .and_then(<[_]>::first)
    }

    /// Gets going: for a client, puts the first message into `out`.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        self.run(&mut [], &mut Seal::Nothing, out, &mut |_| {}).1
    }

    /// Takes one record off the front of `input`, if it is not longer than `limit`; `sink` gets what
    /// was in it. Answers whether there was a whole one. If not, `input` is used up.
    pub(crate) fn take(
        &mut self,
        input: &mut &mut [u8],
        limit: usize,
        out: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, LinkError> {
        if self.held.is_empty()
            && let Some(length) = record_bytes(input, limit)?
            && length <= input.len()
        {
            let record = split_front(input, length);
            let (discard, result) = self.run(record, &mut Seal::Nothing, out, sink);
            result?;
            self.held.extend_from_slice(&record[discard..]);
            self.processed = self.held.len();
            return Ok(true);
        }
        if !self.collect(input, limit)? {
            return Ok(false);
        }
        let mut held = std::mem::take(&mut self.held);
        let (discard, result) = self.run(&mut held, &mut Seal::Nothing, out, sink);
        result?;
        held.drain(..discard);
        self.processed = held.len();
        self.held = held;
        Ok(true)
    }

    /// Moves bytes from `input` behind `held` until a record is whole there.
    fn collect(&mut self, input: &mut &mut [u8], limit: usize) -> Result<bool, LinkError> {
        loop {
            let record = &self.held[self.processed..];
            let wanted = record_bytes(record, limit)?.unwrap_or(RECORD_HEADER_BYTES);
            let Some(missing) = wanted.checked_sub(record.len()).filter(|&missing| missing > 0)
            else {
                return Ok(true);
            };
            if input.is_empty() {
                return Ok(false);
            }
            let part = missing.min(input.len());
            self.held.extend_from_slice(split_front(input, part));
        }
    }

    /// Writes records with `bytes` inside into `room`, which has `sealed_bytes` of them, and answers
    /// how many it wrote. What is to be sent before them is appended to `out`.
    pub(crate) fn seal(
        &mut self,
        bytes: &[u8],
        room: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, LinkError> {
        let mut seal = Seal::Bytes { bytes, room, written: 0 };
        self.run_held(&mut seal, out)?;
        match seal {
            Seal::Bytes { written, .. } if written > 0 || bytes.is_empty() => Ok(written),
            _ => Err(LinkError::Tls("it is not ready for bytes".to_owned())),
        }
    }

    /// Appends the announcement that nothing more will be sent.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        self.run_held(&mut Seal::Close, out)
    }

    /// Asks for new keys for what is sent from now on.
    #[cfg(test)]
    pub(crate) fn refresh_keys(&mut self, out: &mut Vec<u8>) {
        fn refresh<Data>(status: UnbufferedStatus<'_, '_, Data>) {
            let Ok(ConnectionState::WriteTraffic(traffic)) = status.state else {
                panic!("keys are refreshed on idle connections")
            };
            traffic.refresh_traffic_keys().expect("TLS 1.3 can refresh its keys");
        }
        match &mut self.side {
            Side::Client(client) => refresh(client.process_tls_records(&mut [])),
            Side::Server(server) => refresh(server.process_tls_records(&mut [])),
        }
        self.run_held(&mut Seal::Nothing, out).expect("a refresh needs nobody");
    }

    fn run_held(&mut self, seal: &mut Seal<'_>, out: &mut Vec<u8>) -> Result<(), LinkError> {
        // A record that is not whole yet stays out of it.
        let mut held = std::mem::take(&mut self.held);
        let (discard, result) = self.run(&mut held[..self.processed], seal, out, &mut |_| {});
        held.drain(..discard);
        self.processed -= discard;
        self.held = held;
        result
    }

    /// Calls rustls until it has nothing more to say about `bytes`. Answers how many of them it is
    /// done with. On failure `out` has the alert that tells the peer.
    fn run(
        &mut self,
        bytes: &mut [u8],
        seal: &mut Seal<'_>,
        out: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<(), LinkError>) {
        let mut done = 0;
        let mut failure = None;
        loop {
            let rest = &mut bytes[done..];
            let (discard, next) = match &mut self.side {
                Side::Client(client) => step(client.process_tls_records(rest), seal, out, sink),
                Side::Server(server) => step(server.process_tls_records(rest), seal, out, sink),
            };
            done += discard;
            if failure.is_some() {
                // The alert stood in line before anything else. To go on would take the same bytes
                // once more.
                break;
            }
            match next {
                Next::Again => {}
                Next::PeerClosed => self.peer_closed = true,
                Next::Failed(error) => {
                    *seal = Seal::Nothing;
                    failure = Some(explain(&error));
                }
                Next::Idle | Next::Ready => break,
            }
        }
        (done, failure.map_or(Ok(()), Err))
    }
}

/// Carries out what rustls asks for.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    seal: &mut Seal<'_>,
    out: &mut Vec<u8>,
    sink: &mut dyn FnMut(&[u8]),
) -> (usize, Next) {
    let mut discard = status.discard;
    let next = match status.state {
        Err(error) => Next::Failed(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut next = Next::Again;
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        sink(record.payload);
                    }
                    Err(error) => next = Next::Failed(error),
                }
            }
            next
        }
        Ok(ConnectionState::EncodeTlsData(mut message)) => {
            append(out, |room| {
                message.encode(room).map_err(|error| match error {
                    EncodeError::InsufficientSize(size) => size.required_size,
                    EncodeError::AlreadyEncoded => panic!("a message is encoded once"),
                })
            });
            Next::Again
        }
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            // It stands in `out`, in order; that is as good as sent.
            sent.done();
            Next::Again
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let exhausted = match seal {
                Seal::Nothing => false,
                Seal::Bytes { bytes, room, written } => match traffic.encrypt(bytes, room) {
                    Ok(count) => {
                        *written = count;
                        false
                    }
                    // No room would be our mistake; but no peer shall be able to find one.
                    Err(EncryptError::EncryptExhausted | EncryptError::InsufficientSize(_)) => true,
                },
                Seal::Close => append(out, |room| {
                    traffic.queue_close_notify(room).map_err(|error| match error {
                        EncryptError::InsufficientSize(size) => size.required_size,
                        EncryptError::EncryptExhausted => 0,
                    })
                }),
            };
            if exhausted { Next::Failed(TlsError::EncryptError) } else { Next::Ready }
        }
        Ok(ConnectionState::PeerClosed) => Next::PeerClosed,
        Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => Next::Idle,
        // Early data is never offered nor accepted.
        Ok(_) => Next::Failed(TlsError::General("unexpected state".to_owned())),
    };
    (discard, next)
}

/// Lets `write` append to `out`: it fails with the room it needs, or with 0 if no room helps. True if
/// it failed for good.
fn append(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> Result<usize, usize>) -> bool {
    let start = out.len();
    let mut room = 0;
    loop {
        out.resize(start + room, 0);
        match write(&mut out[start..]) {
            Ok(written) => {
                out.truncate(start + written);
                return false;
            }
            Err(needed) if needed > room => room = needed,
            Err(_) => {
                out.truncate(start);
                return true;
            }
        }
    }
}

/// Bytes of the record that begins here, if its header is whole; they must not be above `limit`.
fn record_bytes(bytes: &[u8], limit: usize) -> Result<Option<usize>, LinkError> {
    let kind_known = bytes.first().is_none_or(|kind| (20..=23).contains(kind));
    let version_known = bytes.get(1).is_none_or(|&major| major == 3);
    if !kind_known || !version_known {
        return Err(LinkError::Tls("the peer does not speak TLS".to_owned()));
    }
    let Some(&[_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else {
        return Ok(None);
    };
    let body = usize::from(u16::from_be_bytes([high, low]));
    if body > RECORD_BODY_BYTES_MAX {
        return Err(LinkError::Tls("a record is longer than TLS allows".to_owned()));
    }
    if RECORD_HEADER_BYTES + body > limit {
        return Err(LinkError::TooMuchBeforeAuthentication);
    }
    Ok(Some(RECORD_HEADER_BYTES + body))
}

/// Splits `count` bytes off the front.
pub(crate) fn split_front<'i>(input: &mut &'i mut [u8], count: usize) -> &'i mut [u8] {
    let (front, rest) = std::mem::take(input).split_at_mut(count);
    *input = rest;
    front
}

/// What an error of rustls means to an operator.
fn explain(error: &TlsError) -> LinkError {
    match error {
        TlsError::InvalidCertificate(certificate) => LinkError::Refused(refusal_in(certificate)),
        TlsError::AlertReceived(alert) => match alert {
            AlertDescription::CertificateExpired => {
                LinkError::RefusedByPeer(Some(Refusal::Expired))
            }
            AlertDescription::CertificateRevoked => {
                LinkError::RefusedByPeer(Some(Refusal::Revoked))
            }
            AlertDescription::UnknownCA => {
                LinkError::RefusedByPeer(Some(Refusal::UnknownAuthority))
            }
            AlertDescription::UnsupportedCertificate => {
                LinkError::RefusedByPeer(Some(Refusal::WrongPurpose))
            }
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied => LinkError::RefusedByPeer(None),
            other => LinkError::Tls(format!("the peer gave up: {other:?}")),
        },
        other => LinkError::Tls(other.to_string()),
    }
}

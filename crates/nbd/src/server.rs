//! One client's connection, as the server sees it.
//!
//! The caller asks [`Server::wants`], gives the machine what it wants, sends what was appended to its
//! send buffer, and carries out the event, in that order. One call of [`Server::feed`] handles at most
//! one message, so what a call appends is bounded, and a caller whose send buffer is full just stops
//! feeding.
//!
//! Invariants:
//! - Exactly the bytes of a message are consumed: what follows `NBD_OPT_STARTTLS` belongs to TLS, and
//!   what follows a write's header is its payload.
//! - A request is answered exactly once; its slot is open from its event to its last reply byte.
//! - After [`Event::Close`], or a [`CloseReason`] returned from an answer, nothing is consumed any more.
//!
//! Not here: what the options mean (`haggle`), requests and their replies (`serve`).

use crate::bytes::Head;
use crate::export::ExportInfo;
use crate::haggle::{Pending, Skipped};
use crate::number::{
    CLIENT_FLAGS_BYTES, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, NBD_MAGIC, OPTION_HEADER_BYTES,
    OPTION_MAGIC, OPTIONS_MAX, PIECE_BYTES_MAX, REQUEST_BYTES, REQUESTS_OPEN_MAX,
};
use crate::request::{ErrorCode, Op, Request, Slot};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// Whether a connection may, or must, switch to TLS before anything else ("TLS support").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tls {
    /// `STARTTLS` is refused. Also right where the caller speaks TLS from the first byte.
    Absent,
    /// The client may ask for it; single exports may insist by [`crate::Refusal::TlsRequired`].
    Offered,
    /// Every other option is refused until TLS runs.
    Required,
}

/// What the machine can use next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// [`Server::feed`], and it will take at most this many bytes for the message it waits for.
    Header {
        /// At least 1.
        bytes: u32,
    },
    /// These bytes of a write's payload come next. The caller receives exactly that many where it
    /// likes, then calls [`Server::payload_done`].
    Payload {
        /// The write.
        slot: Slot,
        /// Where in the write's data the piece starts.
        offset_bytes: u32,
        /// From 1 to [`crate::PIECE_BYTES_MAX`].
        length_bytes: u32,
    },
    /// The answer to [`Event::Lookup`] or [`Event::List`]; feed nothing.
    Answer,
    /// [`Server::tls_started`]; the bytes that arrive belong to TLS.
    Tls,
    /// An answer to one of the [`crate::REQUESTS_OPEN_MAX`] open requests; feed nothing.
    Room,
    /// Nothing any more: close once what is open is answered and sent.
    Nothing,
}

/// What the client asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Switch to TLS once what was appended is sent, then call [`Server::tls_started`]. Bytes not
    /// consumed are the first of the TLS handshake, never to be fed in the clear.
    StartTls,
    /// Look up an export; answer with [`Server::export_found`] or [`Server::refuse`].
    Lookup {
        /// As the client wrote it; empty is the default export, if there is one.
        name: String,
        /// An answer with `export_found` starts the transmission phase.
        enters: bool,
    },
    /// Which exports are there? Answer with [`Server::exports`] or [`Server::refuse`].
    List,
    /// A request; answer it by its slot. The payload of a write comes next.
    Request(Request),
    /// Close the connection once what was appended is sent.
    Close(CloseReason),
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CloseReason {
    /// The client says goodbye. Requests still open are to be answered first, as the protocol says.
    ClientDone,
    /// It set a client flag that we did not offer.
    UnknownClientFlags,
    /// It sent an option without the option magic.
    BadOptionMagic,
    /// It did not accept fixed newstyle but sent an option that needs it.
    NotFixedNewstyle,
    /// It sent more than [`crate::OPTIONS_MAX`] options.
    TooManyOptions,
    /// It announced more option data than [`crate::OPTION_SKIP_BYTES_MAX`], or than a name may have.
    OptionTooLarge,
    /// It asked for an export by `NBD_OPT_EXPORT_NAME`, which has no other way to refuse.
    ExportRefused,
    /// It sent a request without the request magic.
    BadRequestMagic,
    /// It announced a refused write of more than [`crate::PAYLOAD_SKIP_BYTES_MAX`].
    PayloadTooLarge,
    /// A read failed after its simple reply had begun, which leaves no way to say so.
    ReadFailedMidway,
}

impl CloseReason {
    /// Whether the client broke the protocol.
    #[must_use]
    pub fn is_fault(self) -> bool {
        match self {
            CloseReason::ClientDone
            | CloseReason::ExportRefused
            | CloseReason::ReadFailedMidway => false,
            CloseReason::UnknownClientFlags
            | CloseReason::BadOptionMagic
            | CloseReason::NotFixedNewstyle
            | CloseReason::TooManyOptions
            | CloseReason::OptionTooLarge
            | CloseReason::BadRequestMagic
            | CloseReason::PayloadTooLarge => true,
        }
    }
}

/// What came of feeding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fed {
    /// Bytes of the input that were used. The rest is to be offered again, as `wants` says.
    pub consumed: usize,
    /// What the client asks for, if a message is complete and needs the caller.
    pub event: Option<Event>,
}

/// An open request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) cookie: u64,
    pub(crate) op: Op,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u32,
    /// Bytes of a read that are answered, or bytes of a write's payload that are received.
    pub(crate) moved_bytes: u32,
}

impl Open {
    const NONE: Open =
        Open { cookie: 0, op: Op::Flush, offset_bytes: 0, length_bytes: 0, moved_bytes: 0 };
}

/// What the transmission phase needs to know about the export.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes_min: u32,
    pub(crate) flags: u16,
    /// Block status may be asked for.
    pub(crate) allocation: bool,
}

/// What the machine is in the middle of.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Before the client flags.
    Flags,
    /// Before, or inside, an option's header.
    Option,
    /// Gathering the data of an option.
    OptionData { option: u32, length: u32 },
    /// Skipping the data of an option whose answer is known.
    OptionSkip { left: u32, answer: Skipped },
    /// The caller has a question to answer.
    Answer(Pending),
    /// The caller is about to switch to TLS.
    Tls,
    /// Before, or inside, a request's header.
    Request,
    /// Inside the payload of an open write.
    Payload { slot: Slot },
    /// Inside the payload of a refused write, which is answered at its end.
    PayloadSkip { left: u32, cookie: u64, code: ErrorCode, message: &'static str },
    /// Nothing is read any more.
    Closed,
}

/// One client's connection, as the server sees it.
#[derive(Debug)]
pub struct Server {
    pub(crate) tls: Tls,
    pub(crate) tls_runs: bool,
    pub(crate) phase: Phase,
    /// The fixed part of the message that is arriving.
    pub(crate) head: Head<REQUEST_BYTES>,
    /// The data of the option that is arriving, or the caller is asked about. Empty otherwise.
    pub(crate) data: Vec<u8>,
    pub(crate) options_left: u32,
    pub(crate) fixed_newstyle: bool,
    pub(crate) no_zeroes: bool,
    pub(crate) structured: bool,
    /// The export for which the allocation context is selected.
    pub(crate) context_for: Option<String>,
    pub(crate) shutting_down: bool,
    pub(crate) served: Served,
    open: Box<[Open; REQUESTS_OPEN_MAX]>,
    /// Bit n is set while slot n is free.
    free: u128,
}

const _: () = assert!(REQUESTS_OPEN_MAX == u128::BITS as usize, "`free` has a bit per slot");

impl Server {
    /// A new connection. Appends the greeting to `send`.
    #[must_use]
    pub fn new(tls: Tls, send: &mut Vec<u8>) -> Server {
        send.extend_from_slice(&NBD_MAGIC.to_be_bytes());
        send.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        send.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Server {
            tls,
            tls_runs: false,
            phase: Phase::Flags,
            head: Head::new(),
            data: Vec::new(),
            options_left: OPTIONS_MAX,
            fixed_newstyle: false,
            no_zeroes: false,
            structured: false,
            context_for: None,
            shutting_down: false,
            served: Served::default(),
            open: Box::new([Open::NONE; REQUESTS_OPEN_MAX]),
            free: u128::MAX,
        }
    }

    /// What to give the machine next.
    #[must_use]
    pub fn wants(&self) -> Want {
        let head_of = |need: usize| Want::Header {
            bytes: crate::bytes::length_u32(need - self.head.filled()),
        };
        match self.phase {
            Phase::Flags => head_of(CLIENT_FLAGS_BYTES),
            Phase::Option => head_of(OPTION_HEADER_BYTES),
            Phase::OptionData { length, .. } => {
                Want::Header { bytes: length - crate::bytes::length_u32(self.data.len()) }
            }
            Phase::OptionSkip { left, .. } | Phase::PayloadSkip { left, .. } => {
                Want::Header { bytes: left }
            }
            Phase::Answer(_) => Want::Answer,
            Phase::Tls => Want::Tls,
            Phase::Request if self.free == 0 => Want::Room,
            Phase::Request => head_of(REQUEST_BYTES),
            Phase::Payload { slot } => {
                let write = self.open_at(slot);
                let left = write.length_bytes - write.moved_bytes;
                let length_bytes = left.min(PIECE_BYTES_MAX);
                Want::Payload { slot, offset_bytes: write.moved_bytes, length_bytes }
            }
            Phase::Closed => Want::Nothing,
        }
    }

    /// Takes bytes that arrived, up to the end of one message, and appends what to send to `send`.
    ///
    /// Something is consumed whenever `input` is not empty and [`Server::wants`] says
    /// [`Want::Header`]; nothing is otherwise.
    #[must_use]
    pub fn feed(&mut self, input: &[u8], send: &mut Vec<u8>) -> Fed {
        let Want::Header { bytes } = self.wants() else {
            return Fed { consumed: 0, event: None };
        };
        let input = &input[..input.len().min(bytes as usize)];
        let event = match self.phase {
            Phase::Request => {
                self.gathered(input, REQUEST_BYTES).and_then(|head| self.on_request(head, send))
            }
            Phase::PayloadSkip { left, cookie, code, message } => {
                let left = left - crate::bytes::length_u32(input.len());
                self.phase = Phase::PayloadSkip { left, cookie, code, message };
                if left == 0 {
                    self.phase = Phase::Request;
                    self.put_error(cookie, code, message, send);
                }
                None
            }
            Phase::Flags => {
                self.gathered(input, CLIENT_FLAGS_BYTES).and_then(|head| self.on_flags(head))
            }
            Phase::Option => self
                .gathered(input, OPTION_HEADER_BYTES)
                .and_then(|head| self.on_option_header(head, send)),
            Phase::OptionData { option, length } => {
                self.data.extend_from_slice(input);
                let complete = self.data.len() == length as usize;
                if complete { self.on_option_data(option, send) } else { None }
            }
            Phase::OptionSkip { left, answer } => {
                let left = left - crate::bytes::length_u32(input.len());
                self.phase = Phase::OptionSkip { left, answer };
                if left == 0 { self.on_option_skipped(answer, send) } else { None }
            }
            Phase::Answer(_) | Phase::Tls | Phase::Payload { .. } | Phase::Closed => None,
        };
        Fed { consumed: input.len(), event }
    }

    /// The server stops: from now on options and requests are refused with `NBD_REP_ERR_SHUTDOWN` and
    /// `NBD_ESHUTDOWN`. Requests open now are the caller's to answer.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// The export has a new size, which requests are judged by from now on. The protocol has no way to
    /// tell the client.
    ///
    /// # Panics
    /// If it is no multiple of the minimum block size that the client was told.
    pub fn resized(&mut self, size_bytes: u64) {
        let min = u64::from(self.served.block_bytes_min);
        assert!(min == 0 || size_bytes.is_multiple_of(min), "size {size_bytes} in blocks of {min}");
        self.served.size_bytes = size_bytes;
    }

    /// Whether the transmission phase has begun and not ended.
    #[must_use]
    pub fn transmits(&self) -> bool {
        matches!(self.phase, Phase::Request | Phase::Payload { .. } | Phase::PayloadSkip { .. })
    }

    /// Whether replies are structured, so that a read may be answered in pieces and in any order.
    #[must_use]
    pub fn structured(&self) -> bool {
        self.structured
    }

    /// Number of requests without a complete answer.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.free.count_zeros() as usize
    }

    /// The head of a message, once it has `need` bytes.
    fn gathered(&mut self, input: &[u8], need: usize) -> Option<[u8; REQUEST_BYTES]> {
        self.head.gather(input, need);
        (self.head.filled() == need).then(|| self.head.finish())
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, reason: CloseReason) -> Option<Event> {
        self.phase = Phase::Closed;
        self.data = Vec::new();
        Some(Event::Close(reason))
    }

    /// Starts the transmission phase.
    pub(crate) fn enter(&mut self, info: &ExportInfo) {
        self.served = Served {
            size_bytes: info.size_bytes,
            block_bytes_min: info.block_bytes_min,
            flags: info.flags(self.structured),
            allocation: self.context_for.as_ref() == Some(&info.name) && info.allocation,
        };
        self.phase = Phase::Request;
        self.data = Vec::new();
        self.context_for = None;
    }

    /// Puts a request into a free slot. There is one: no request is read while there is none.
    pub(crate) fn open_insert(&mut self, open: Open) -> Slot {
        assert!(self.free != 0, "a request was read without room for it");
        let index = self.free.trailing_zeros();
        self.free &= !(1 << index);
        self.open[index as usize] = open;
        Slot(u8::try_from(index).expect("there are 128 slots"))
    }

    /// The open request in `slot`.
    pub(crate) fn open_at(&self, slot: Slot) -> &Open {
        assert!(self.free & (1 << slot.0) == 0, "slot {} is not open", slot.0);
        &self.open[slot.index()]
    }

    /// The open request in `slot`, to change it.
    pub(crate) fn open_at_mut(&mut self, slot: Slot) -> &mut Open {
        assert!(self.free & (1 << slot.0) == 0, "slot {} is not open", slot.0);
        &mut self.open[slot.index()]
    }

    /// Frees the slot of a request that is answered.
    pub(crate) fn open_remove(&mut self, slot: Slot) {
        assert!(self.free & (1 << slot.0) == 0, "slot {} is not open", slot.0);
        self.free |= 1 << slot.0;
    }
}

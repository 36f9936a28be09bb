//! The handshake as a client does it: enough for our own load generator, checker and tests.
//!
//! A client has one goal. It asks one option at a time, in a fixed order, and ends with
//! [`ClientEvent::Ready`], [`ClientEvent::Listed`] or [`ClientEvent::Refused`]. It speaks only fixed
//! newstyle and enters only by `NBD_OPT_GO`.
//!
//! Not here: requests and replies after it (`reply`).

use crate::bytes::{Head, Reader, put_text, put_u16, put_u32, put_u64, text};
use crate::number::{
    ALLOCATION_CONTEXT, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, FLAG_SEND_WRITE_ZEROES,
    GREETING_BYTES, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX, NBD_MAGIC, OPT_ABORT, OPT_GO, OPT_LIST, OPT_SET_META_CONTEXT, OPT_STARTTLS,
    OPT_STRUCTURED_REPLY, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, REP_ACK,
    REP_ERROR, REP_INFO, REP_META_CONTEXT, REP_SERVER, REPLY_DATA_BYTES_MAX,
};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

/// What a client connects for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Goal {
    /// Learn which exports there are.
    List,
    /// Use an export.
    Use {
        /// Its name; empty is the default export.
        name: String,
        /// Ask for structured replies. A server without them is used all the same.
        structured: bool,
        /// Ask for `base:allocation`, which needs structured replies.
        allocation: bool,
    },
}

/// What a client learns of the export it may now use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ready {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The transmission flags, as the protocol numbers them.
    pub flags: u16,
    /// Minimum block size in bytes; 1 if the server did not say.
    pub block_bytes_min: u32,
    /// Preferred block size in bytes; 4096 if the server did not say.
    pub block_bytes_preferred: u32,
    /// Maximum payload size in bytes; 32 MiB if the server did not say.
    pub payload_bytes_max: u32,
    /// The server's name for it; empty if it did not say.
    pub name: String,
    /// The server's words about it; empty if it did not say.
    pub description: String,
    /// Replies are structured.
    pub structured: bool,
    /// The id of `base:allocation`, if it was asked for and is there.
    pub allocation: Option<u32>,
}

impl Ready {
    /// The flags without the one that says that zeroes may be asked for without data: for who gives up a request that takes as
    /// long as the server's disk needs to write them.
    #[must_use]
    pub fn flags_without_zeroes(&self) -> u16 {
        self.flags & !FLAG_SEND_WRITE_ZEROES
    }
}

/// What a client's handshake comes to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientEvent {
    /// Switch to TLS, then call [`Client::tls_started`]. Bytes not consumed belong to TLS.
    StartTls,
    /// One export of the list.
    Export {
        /// Its name.
        name: String,
        /// The server's words about it; may be empty.
        description: String,
    },
    /// The list is complete; the goodbye is appended.
    Listed,
    /// The export may be used: the next byte is a request, or a reply.
    Ready(Ready),
    /// The server says no. The connection is to be closed.
    Refused {
        /// The option reply type, with bit 31 set.
        reply: u32,
        /// The server's words; may be empty, cut at [`crate::MESSAGE_BYTES_MAX`] bytes.
        message: String,
    },
}

/// How a server broke the protocol. The connection is to be closed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ServerMisbehaved {
    /// It is no NBD server, or one from before fixed newstyle.
    BadGreeting,
    /// A reply lacks its magic.
    BadMagic,
    /// A reply is longer than any honest one.
    TooLarge,
    /// A reply is not to what was asked, or of a kind that cannot be ignored.
    Unexpected,
    /// A reply's contents contradict its length or the protocol.
    Malformed,
}

/// What came of feeding a client.
pub type ClientFed = Result<(usize, Option<ClientEvent>), ServerMisbehaved>;

/// What the client waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Greeting,
    /// The reply to this option.
    Reply(u32),
    /// The data of a reply to this option.
    Data {
        option: u32,
        reply: u32,
        length: u32,
    },
    Tls,
    Finished,
}

/// A client's handshake.
#[derive(Debug)]
pub struct Client {
    goal: Goal,
    tls: bool,
    step: Step,
    head: Head<OPTION_REPLY_HEADER_BYTES>,
    data: Vec<u8>,
    ready: Ready,
    /// `NBD_INFO_EXPORT` has arrived.
    told: bool,
}

impl Client {
    /// A client that waits for the server's greeting. With `tls` it insists on TLS first.
    #[must_use]
    pub fn new(goal: Goal, tls: bool) -> Client {
        let ready = Ready {
            block_bytes_min: 1,
            block_bytes_preferred: 4096,
            payload_bytes_max: crate::PAYLOAD_BYTES_MAX,
            ..Ready::default()
        };
        let (head, data) = (Head::new(), Vec::new());
        Client { goal, tls, step: Step::Greeting, head, data, ready, told: false }
    }

    /// Takes bytes that arrived, up to the end of one message, and appends what to send. The answer
    /// is how many bytes were used, and what it came to. Nothing is used before
    /// [`Client::tls_started`] where that is due, nor after the end.
    ///
    /// # Errors
    /// Where the server breaks the protocol.
    pub fn feed(&mut self, input: &[u8], send: &mut Vec<u8>) -> ClientFed {
        match self.step {
            Step::Greeting => {
                let taken = self.head.gather(input, GREETING_BYTES);
                if self.head.filled() == GREETING_BYTES {
                    self.on_greeting(send)?;
                }
                Ok((taken, None))
            }
            Step::Reply(option) => {
                let taken = self.head.gather(input, OPTION_REPLY_HEADER_BYTES);
                if self.head.filled() < OPTION_REPLY_HEADER_BYTES {
                    return Ok((taken, None));
                }
                let (reply, length) = self.on_reply_header(option)?;
                if length == 0 {
                    return Ok((taken, self.on_reply(option, reply, send)?));
                }
                self.step = Step::Data { option, reply, length };
                Ok((taken, None))
            }
            Step::Data { option, reply, length } => {
                let taken = input.len().min(length as usize - self.data.len());
                self.data.extend_from_slice(&input[..taken]);
                if self.data.len() < length as usize {
                    return Ok((taken, None));
                }
                Ok((taken, self.on_reply(option, reply, send)?))
            }
            Step::Tls | Step::Finished => Ok((0, None)),
        }
    }

    /// TLS runs. Appends the next option.
    ///
    /// # Panics
    /// If [`ClientEvent::StartTls`] was not the last event.
    pub fn tls_started(&mut self, send: &mut Vec<u8>) {
        assert!(self.step == Step::Tls, "TLS was not asked for");
        self.ask_first(send);
    }

    fn on_greeting(&mut self, send: &mut Vec<u8>) -> Result<(), ServerMisbehaved> {
        let head = self.head.finish();
        let mut greeting = Reader::new(&head);
        let (nbd, option) = (greeting.u64(), greeting.u64());
        let flags = greeting.u16().unwrap_or(0);
        if nbd != Some(NBD_MAGIC)
            || option != Some(OPTION_MAGIC)
            || flags & FLAG_FIXED_NEWSTYLE == 0
        {
            return Err(ServerMisbehaved::BadGreeting);
        }
        put_u32(send, u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)));
        if self.tls {
            self.ask(OPT_STARTTLS, &[], send);
        } else {
            self.ask_first(send);
        }
        Ok(())
    }

    /// Checks the header of a reply; gives its type and the length of its data.
    fn on_reply_header(&mut self, option: u32) -> Result<(u32, u32), ServerMisbehaved> {
        let head = self.head.finish();
        let mut head = Reader::new(&head);
        let (magic, to) = (head.u64(), head.u32());
        let (Some(reply), Some(length)) = (head.u32(), head.u32()) else {
            return Err(ServerMisbehaved::Malformed);
        };
        if magic != Some(OPTION_REPLY_MAGIC) {
            return Err(ServerMisbehaved::BadMagic);
        }
        if to != Some(option) {
            return Err(ServerMisbehaved::Unexpected);
        }
        if length > REPLY_DATA_BYTES_MAX {
            return Err(ServerMisbehaved::TooLarge);
        }
        Ok((reply, length))
    }

    /// A whole reply: an intermediate one leaves the step as it is, a final one goes on.
    fn on_reply(
        &mut self,
        option: u32,
        reply: u32,
        send: &mut Vec<u8>,
    ) -> Result<Option<ClientEvent>, ServerMisbehaved> {
        let data = core::mem::take(&mut self.data);
        self.step = Step::Reply(option);
        match (option, reply) {
            (OPT_STRUCTURED_REPLY | OPT_SET_META_CONTEXT, error) if error & REP_ERROR != 0 => {
                // Both are wishes; the server is used without.
                self.ask_after(option, send);
                Ok(None)
            }
            (_, error) if error & REP_ERROR != 0 => {
                self.step = Step::Finished;
                let message = String::from_utf8_lossy(&data);
                let message = crate::bytes::cut(&message, MESSAGE_BYTES_MAX).to_owned();
                Ok(Some(ClientEvent::Refused { reply, message }))
            }
            (_, REP_ACK) if data.is_empty() => self.on_ack(option, send),
            (OPT_LIST, REP_SERVER) => parse_server(&data).map(Some),
            (OPT_GO, REP_INFO) => self.on_info(&data).map(|()| None),
            (OPT_SET_META_CONTEXT, REP_META_CONTEXT) => {
                let mut data = Reader::new(&data);
                let id = data.u32().ok_or(ServerMisbehaved::Malformed)?;
                if data.rest() != ALLOCATION_CONTEXT.as_bytes() {
                    return Err(ServerMisbehaved::Unexpected);
                }
                self.ready.allocation = Some(id);
                Ok(None)
            }
            _ => Err(ServerMisbehaved::Unexpected),
        }
    }

    /// An option is accepted.
    fn on_ack(
        &mut self,
        option: u32,
        send: &mut Vec<u8>,
    ) -> Result<Option<ClientEvent>, ServerMisbehaved> {
        match option {
            OPT_STARTTLS => {
                self.step = Step::Tls;
                Ok(Some(ClientEvent::StartTls))
            }
            OPT_LIST => {
                self.ask(OPT_ABORT, &[], send);
                self.step = Step::Finished;
                Ok(Some(ClientEvent::Listed))
            }
            OPT_GO if self.told => {
                self.step = Step::Finished;
                Ok(Some(ClientEvent::Ready(self.ready.clone())))
            }
            OPT_GO => Err(ServerMisbehaved::Malformed),
            _ => {
                self.ready.structured |= option == OPT_STRUCTURED_REPLY;
                self.ask_after(option, send);
                Ok(None)
            }
        }
    }

    /// One piece of information about the export; kinds we do not know are ignored.
    fn on_info(&mut self, data: &[u8]) -> Result<(), ServerMisbehaved> {
        const MALFORMED: ServerMisbehaved = ServerMisbehaved::Malformed;
        let mut data = Reader::new(data);
        match data.u16().ok_or(MALFORMED)? {
            INFO_EXPORT => {
                self.ready.size_bytes = data.u64().ok_or(MALFORMED)?;
                self.ready.flags = data.u16().ok_or(MALFORMED)?;
                self.told = true;
            }
            INFO_BLOCK_SIZE => {
                self.ready.block_bytes_min = data.u32().ok_or(MALFORMED)?;
                self.ready.block_bytes_preferred = data.u32().ok_or(MALFORMED)?;
                self.ready.payload_bytes_max = data.u32().ok_or(MALFORMED)?;
            }
            INFO_NAME => {
                let name = text(data.rest(), NAME_BYTES_MAX).ok_or(MALFORMED)?;
                self.ready.name = name.to_owned();
                return Ok(());
            }
            INFO_DESCRIPTION => {
                let description = text(data.rest(), NAME_BYTES_MAX).ok_or(MALFORMED)?;
                self.ready.description = description.to_owned();
                return Ok(());
            }
            _ => return Ok(()),
        }
        if data.rest().is_empty() { Ok(()) } else { Err(MALFORMED) }
    }

    /// The first option once TLS is settled.
    fn ask_first(&mut self, send: &mut Vec<u8>) {
        match self.goal {
            Goal::List => self.ask(OPT_LIST, &[], send),
            Goal::Use { structured: true, .. } => self.ask(OPT_STRUCTURED_REPLY, &[], send),
            Goal::Use { structured: false, .. } => self.ask_to_go(send),
        }
    }

    /// The option after `option`, which was a wish.
    fn ask_after(&mut self, option: u32, send: &mut Vec<u8>) {
        let Goal::Use { name, allocation, .. } = &self.goal else {
            unreachable!("a list has no wishes")
        };
        if option == OPT_STRUCTURED_REPLY && *allocation && self.ready.structured {
            let mut data = Vec::new();
            put_text(&mut data, name);
            put_u32(&mut data, 1);
            put_text(&mut data, ALLOCATION_CONTEXT);
            self.ask(OPT_SET_META_CONTEXT, &data, send);
        } else {
            self.ask_to_go(send);
        }
    }

    /// The last option of a client that uses an export.
    fn ask_to_go(&mut self, send: &mut Vec<u8>) {
        let Goal::Use { name, .. } = &self.goal else { unreachable!("a list does not go") };
        let mut data = Vec::new();
        put_text(&mut data, name);
        for field in [3, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE] {
            put_u16(&mut data, field);
        }
        self.ask(OPT_GO, &data, send);
    }

    fn ask(&mut self, option: u32, data: &[u8], send: &mut Vec<u8>) {
        put_u64(send, OPTION_MAGIC);
        put_u32(send, option);
        put_u32(send, crate::bytes::length_u32(data.len()));
        send.extend_from_slice(data);
        self.step = Step::Reply(option);
    }
}

/// One entry of a list.
fn parse_server(data: &[u8]) -> Result<ClientEvent, ServerMisbehaved> {
    const MALFORMED: ServerMisbehaved = ServerMisbehaved::Malformed;
    let mut data = Reader::new(data);
    let name_bytes = data.u32().ok_or(MALFORMED)?;
    let name = data.take(name_bytes as usize).ok_or(MALFORMED)?;
    let name = text(name, NAME_BYTES_MAX).ok_or(MALFORMED)?.to_owned();
    let description = text(data.rest(), NAME_BYTES_MAX).ok_or(MALFORMED)?.to_owned();
    Ok(ClientEvent::Export { name, description })
}

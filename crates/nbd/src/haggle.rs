//! Option haggling: what a client asks before it uses an export ("Fixed newstyle negotiation").
//!
//! An option that is refused without a look at its data has the data skipped first and is answered
//! then, so that a client that sends before it reads is not confused.
//!
//! Not here: gathering the bytes of an option (`server`).

use crate::bytes::{Reader, cut, length_u32, put_text, put_u16, put_u32, put_u64, text};
use crate::export::{ExportInfo, Refusal};
use crate::number::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, BASE_WILDCARD, EXPORT_NAME_ZEROES,
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME,
    LIST_BYTES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO,
    OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS,
    OPT_STRUCTURED_REPLY, OPTION_BYTES_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    OPTION_SKIP_BYTES_MAX, PAYLOAD_BYTES_MAX, REP_ACK, REP_ERR_INVALID, REP_ERR_POLICY,
    REP_ERR_SHUTDOWN, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO,
    REP_META_CONTEXT, REP_SERVER, REQUEST_BYTES,
};
use crate::server::{CloseReason, Event, Phase, Server, Tls};
use alloc::borrow::ToOwned;
use alloc::vec::Vec;

/// What the caller is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// `NBD_OPT_EXPORT_NAME`.
    ExportName,
    /// `NBD_OPT_LIST`.
    List,
    /// `NBD_OPT_INFO`, or with `go` `NBD_OPT_GO`, and the information asked for beyond the usual.
    Info { go: bool, name: bool, description: bool },
    /// `NBD_OPT_LIST_META_CONTEXT`, or with `set` `NBD_OPT_SET_META_CONTEXT`; and whether a query
    /// matches the one context there is.
    Meta { set: bool, matches: bool },
}

impl Pending {
    /// The option that is being answered.
    fn option(self) -> u32 {
        match self {
            Pending::ExportName => OPT_EXPORT_NAME,
            Pending::List => OPT_LIST,
            Pending::Info { go: false, .. } => OPT_INFO,
            Pending::Info { go: true, .. } => OPT_GO,
            Pending::Meta { set: false, .. } => OPT_LIST_META_CONTEXT,
            Pending::Meta { set: true, .. } => OPT_SET_META_CONTEXT,
        }
    }
}

/// The answer to an option whose data is being skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skipped {
    option: u32,
    reply: u32,
    message: &'static str,
}

impl Server {
    /// The export that was asked for is there. `info` is the same for the same export while nothing
    /// about it changes. Starts the transmission phase if the lookup said so.
    ///
    /// # Panics
    /// If no lookup waits for an answer, or `info` breaks a rule that its fields state.
    pub fn export_found(&mut self, info: &ExportInfo, send: &mut Vec<u8>) {
        info.check();
        match self.take_pending() {
            Pending::ExportName => {
                put_u64(send, info.size_bytes);
                put_u16(send, info.flags(self.structured));
                if !self.no_zeroes {
                    send.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
                }
                self.enter(info);
            }
            pending @ Pending::Info { go, name, description } => {
                let option = pending.option();
                self.put_infos(option, name, description, info, send);
                put_reply(option, REP_ACK, &[], send);
                if go {
                    self.enter(info);
                }
            }
            pending @ Pending::Meta { set, matches } => {
                let option = pending.option();
                if matches && info.allocation {
                    let id = if set { ALLOCATION_CONTEXT_ID } else { 0 };
                    let length = size_of_val(&id) + ALLOCATION_CONTEXT.len();
                    put_reply_header(option, REP_META_CONTEXT, length, send);
                    put_u32(send, id);
                    send.extend_from_slice(ALLOCATION_CONTEXT.as_bytes());
                    if set {
                        self.context_for = Some(info.name.clone());
                    }
                }
                put_reply(option, REP_ACK, &[], send);
            }
            Pending::List => panic!("a list was asked for, not an export"),
        }
    }

    /// The exports there are, each with its name and description. A list that takes more than
    /// [`crate::LIST_BYTES_MAX`] is refused as too big at its end.
    ///
    /// # Panics
    /// If no list is asked for, or a name or description is longer than [`crate::NAME_BYTES_MAX`].
    pub fn exports<'a>(
        &mut self,
        exports: impl IntoIterator<Item = (&'a str, &'a str)>,
        send: &mut Vec<u8>,
    ) {
        let pending = self.take_pending();
        assert!(matches!(pending, Pending::List), "no list was asked for");
        let before = send.len();
        for (name, description) in exports {
            assert!(name.len() <= NAME_BYTES_MAX && description.len() <= NAME_BYTES_MAX);
            let length = size_of::<u32>() + name.len() + description.len();
            if send.len() - before + length > LIST_BYTES_MAX {
                put_reply(OPT_LIST, REP_ERR_TOO_BIG, b"too many exports to list", send);
                return;
            }
            put_reply_header(OPT_LIST, REP_SERVER, length, send);
            put_text(send, name);
            send.extend_from_slice(description.as_bytes());
        }
        put_reply(OPT_LIST, REP_ACK, &[], send);
    }

    /// Refuses the export, or the list, that was asked for. `message` is for the human at the other
    /// end, and is cut at [`crate::MESSAGE_BYTES_MAX`]. Gives a reason where the protocol knows no
    /// refusal, and the connection is to be closed.
    ///
    /// # Panics
    /// If nothing waits for an answer, or TLS is required of a client that has it or cannot have it.
    #[must_use]
    pub fn refuse(
        &mut self,
        refusal: Refusal,
        message: &str,
        send: &mut Vec<u8>,
    ) -> Option<CloseReason> {
        let pending = self.take_pending();
        if matches!(pending, Pending::ExportName) {
            self.phase = Phase::Closed;
            return Some(CloseReason::ExportRefused);
        }
        let reply = match refusal {
            Refusal::Unknown => REP_ERR_UNKNOWN,
            Refusal::Policy => REP_ERR_POLICY,
            Refusal::ShuttingDown => REP_ERR_SHUTDOWN,
            Refusal::TlsRequired => {
                assert!(self.tls != Tls::Absent && !self.tls_runs, "TLS required of this client");
                REP_ERR_TLS_REQD
            }
        };
        put_reply(pending.option(), reply, cut(message, MESSAGE_BYTES_MAX).as_bytes(), send);
        None
    }

    /// TLS runs; options start anew over it.
    ///
    /// # Panics
    /// If [`Event::StartTls`] was not the last event.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.phase, Phase::Tls), "TLS was not asked for");
        self.tls_runs = true;
        self.structured = false;
        self.context_for = None;
        self.phase = Phase::Option;
    }

    /// The client flags. Flags that we did not offer end the connection, as the protocol says.
    pub(crate) fn on_flags(&mut self, head: [u8; REQUEST_BYTES]) -> Option<Event> {
        let [a, b, c, d, ..] = head;
        let flags = u32::from_be_bytes([a, b, c, d]);
        let (fixed, no_zeroes) = (u32::from(FLAG_FIXED_NEWSTYLE), u32::from(FLAG_NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return self.close(CloseReason::UnknownClientFlags);
        }
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        self.phase = Phase::Option;
        None
    }

    /// An option's header: decides whether its data is worth keeping.
    pub(crate) fn on_option_header(
        &mut self,
        head: [u8; REQUEST_BYTES],
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        let mut head = Reader::new(&head);
        let magic = head.u64().expect("the head holds a whole option header");
        let option = head.u32().expect("the head holds a whole option header");
        let length = head.u32().expect("the head holds a whole option header");
        if magic != OPTION_MAGIC {
            return self.close(CloseReason::BadOptionMagic);
        }
        if self.options_left == 0 {
            return self.close(CloseReason::TooManyOptions);
        }
        self.options_left -= 1;
        let skipped = self.judge_option(option, length);
        if option == OPT_EXPORT_NAME {
            // The one option without a way to refuse it.
            if skipped.is_some() {
                return self.close(CloseReason::ExportRefused);
            }
        } else if !self.fixed_newstyle {
            return self.close(CloseReason::NotFixedNewstyle);
        }
        match skipped {
            Some(_) if length > OPTION_SKIP_BYTES_MAX => self.close(CloseReason::OptionTooLarge),
            Some(answer) if length == 0 => self.on_option_skipped(answer, send),
            Some(answer) => {
                self.phase = Phase::OptionSkip { left: length, answer };
                None
            }
            None if length == 0 => self.on_option_data(option, send),
            None => {
                self.data.reserve_exact(length as usize);
                self.phase = Phase::OptionData { option, length };
                None
            }
        }
    }

    /// What can be answered without the data of an option.
    fn judge_option(&self, option: u32, length: u32) -> Option<Skipped> {
        let answer = |reply, message| Some(Skipped { option, reply, message });
        if option == OPT_ABORT {
            return answer(REP_ACK, "");
        }
        if self.tls == Tls::Required && !self.tls_runs && option != OPT_STARTTLS {
            return answer(REP_ERR_TLS_REQD, "this server speaks only TLS");
        }
        if self.shutting_down {
            return answer(REP_ERR_SHUTDOWN, "this server is stopping");
        }
        match option {
            OPT_STARTTLS if self.tls == Tls::Absent => {
                answer(REP_ERR_POLICY, "this server is not set up for TLS")
            }
            OPT_STARTTLS if self.tls_runs => answer(REP_ERR_INVALID, "TLS runs already"),
            OPT_LIST | OPT_STARTTLS | OPT_STRUCTURED_REPLY if length > 0 => {
                answer(REP_ERR_INVALID, "this option has no data")
            }
            OPT_EXPORT_NAME if length as usize > NAME_BYTES_MAX => answer(REP_ERR_TOO_BIG, ""),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT if !self.structured => {
                answer(REP_ERR_INVALID, "ask for structured replies first")
            }
            OPT_EXPORT_NAME
            | OPT_LIST
            | OPT_STARTTLS
            | OPT_STRUCTURED_REPLY
            | OPT_INFO
            | OPT_GO
            | OPT_LIST_META_CONTEXT
            | OPT_SET_META_CONTEXT => {
                if length > OPTION_BYTES_MAX {
                    answer(REP_ERR_TOO_BIG, "too much option data")
                } else {
                    None
                }
            }
            _ => answer(REP_ERR_UNSUP, "unknown option"),
        }
    }

    /// The data of a refused option, or of an abort, is behind us.
    pub(crate) fn on_option_skipped(
        &mut self,
        answer: Skipped,
        send: &mut Vec<u8>,
    ) -> Option<Event> {
        put_reply(answer.option, answer.reply, answer.message.as_bytes(), send);
        if answer.option == OPT_ABORT {
            return self.close(CloseReason::ClientDone);
        }
        if answer.option == OPT_SET_META_CONTEXT {
            // A selection is replaced even by one that fails.
            self.context_for = None;
        }
        self.phase = Phase::Option;
        None
    }

    /// An option and its data are here.
    pub(crate) fn on_option_data(&mut self, option: u32, send: &mut Vec<u8>) -> Option<Event> {
        let data = core::mem::take(&mut self.data);
        let asked = match option {
            OPT_STARTTLS => {
                put_reply(option, REP_ACK, &[], send);
                self.phase = Phase::Tls;
                return Some(Event::StartTls);
            }
            OPT_STRUCTURED_REPLY => {
                self.structured = true;
                put_reply(option, REP_ACK, &[], send);
                self.phase = Phase::Option;
                return None;
            }
            OPT_LIST => {
                self.phase = Phase::Answer(Pending::List);
                return Some(Event::List);
            }
            OPT_EXPORT_NAME => text(&data, NAME_BYTES_MAX).map(|name| (name, Pending::ExportName)),
            OPT_INFO | OPT_GO => parse_info(&data, option == OPT_GO),
            _ => parse_meta(&data, option == OPT_SET_META_CONTEXT),
        };
        if option == OPT_SET_META_CONTEXT {
            self.context_for = None;
        }
        let Some((name, pending)) = asked else {
            if option == OPT_EXPORT_NAME {
                return self.close(CloseReason::ExportRefused);
            }
            put_reply(option, REP_ERR_INVALID, b"the option's data is malformed", send);
            self.phase = Phase::Option;
            return None;
        };
        self.phase = Phase::Answer(pending);
        let enters = matches!(pending, Pending::ExportName | Pending::Info { go: true, .. });
        Some(Event::Lookup { name: name.to_owned(), enters })
    }

    /// The question that is being answered; options go on after it.
    fn take_pending(&mut self) -> Pending {
        let Phase::Answer(pending) = self.phase else { panic!("nothing waits for an answer") };
        self.phase = Phase::Option;
        pending
    }

    /// The information replies of `NBD_OPT_INFO` and `NBD_OPT_GO`. Sizes are always told: we insist on
    /// them, and the protocol lets a server send what was not asked for.
    fn put_infos(
        &self,
        option: u32,
        name: bool,
        description: bool,
        info: &ExportInfo,
        send: &mut Vec<u8>,
    ) {
        put_reply_header(option, REP_INFO, 12, send);
        put_u16(send, INFO_EXPORT);
        put_u64(send, info.size_bytes);
        put_u16(send, info.flags(self.structured));
        put_reply_header(option, REP_INFO, 14, send);
        put_u16(send, INFO_BLOCK_SIZE);
        put_u32(send, info.block_bytes_min);
        put_u32(send, info.block_bytes_preferred);
        put_u32(send, PAYLOAD_BYTES_MAX);
        let mut put_info_text = |kind: u16, text: &str| {
            put_reply_header(option, REP_INFO, size_of_val(&kind) + text.len(), send);
            put_u16(send, kind);
            send.extend_from_slice(text.as_bytes());
        };
        if name {
            put_info_text(INFO_NAME, &info.name);
        }
        if description && !info.description.is_empty() {
            put_info_text(INFO_DESCRIPTION, &info.description);
        }
    }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`: name, then the information asked for.
fn parse_info(data: &[u8], go: bool) -> Option<(&str, Pending)> {
    let mut data = Reader::new(data);
    let name_bytes = data.u32()?;
    let export = text(data.take(usize::try_from(name_bytes).ok()?)?, NAME_BYTES_MAX)?;
    let count = data.u16()?;
    if data.rest().len() != usize::from(count) * size_of::<u16>() {
        return None;
    }
    let (mut name, mut description) = (false, false);
    while let Some(kind) = data.u16() {
        name |= kind == INFO_NAME;
        description |= kind == INFO_DESCRIPTION;
    }
    Some((export, Pending::Info { go, name, description }))
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: name, then queries. No
/// query lists everything and selects nothing; queries that we do not know are ignored.
fn parse_meta(data: &[u8], set: bool) -> Option<(&str, Pending)> {
    let mut data = Reader::new(data);
    let name_bytes = data.u32()?;
    let export = text(data.take(usize::try_from(name_bytes).ok()?)?, NAME_BYTES_MAX)?;
    let count = data.u32()?;
    let mut matches = count == 0 && !set;
    for _ in 0..count {
        let query_bytes = data.u32()?;
        let query = text(data.take(usize::try_from(query_bytes).ok()?)?, NAME_BYTES_MAX)?;
        matches |= query == ALLOCATION_CONTEXT || (!set && query == BASE_WILDCARD);
    }
    data.rest().is_empty().then_some((export, Pending::Meta { set, matches }))
}

/// Appends a whole option reply.
fn put_reply(option: u32, reply: u32, data: &[u8], send: &mut Vec<u8>) {
    put_reply_header(option, reply, data.len(), send);
    send.extend_from_slice(data);
}

/// Appends the header of an option reply whose data follows.
fn put_reply_header(option: u32, reply: u32, length: usize, send: &mut Vec<u8>) {
    put_u64(send, OPTION_REPLY_MAGIC);
    put_u32(send, option);
    put_u32(send, reply);
    put_u32(send, length_u32(length));
}

//! TLS 1.3 with a key that both sides have already (`psk_dhe_ke`), over borrowed bytes: records in, plain bytes out, and back.
//!
//! Done by the machine's OpenSSL 3 (`library`), for rustls has no such keys; it is looked for when somebody needs it.
//!
//! Always:
//! - Nothing is read or written before the other side has shown that it knows the key, nor after a failure.
//! - A side that accepts has no certificate, gives no tickets and takes no early data: a key is the only way in.
//! - Which suite is spoken is what the key is for.
//! - Whoever accepts may have several keys under one identity (an old one and its successor): each is tried on what the
//!   other side said first, until one fits; nothing is answered before.
//! - No more than [`PSK_HANDSHAKE_BYTES_MAX`] are taken from somebody who has not shown a key.
//!
//! Not here: sockets; which identity has which keys (the owner).

mod library;

use std::ffi::{c_int, c_uchar, c_void};
use std::sync::Arc;

use library::{Library, library};

/// Bytes taken from the other side before it has shown that it knows a key. A host that means it sends some hundred, or with the
/// keys of the new exchanges 1600.
pub const PSK_HANDSHAKE_BYTES_MAX: usize = 4 << 10;

/// Plain bytes that one record carries at most.
const RECORD_BYTES: usize = 16 << 10;

/// What is told of an identity that is not known: all of it, of one that a host would say.
const IDENTITY_CHARS_SHOWN: usize = 600;

const TLS_1_3: c_int = 0x0304;
/// What keys of a session are exchanged by. Longer ones keep the thread that serves everybody for tens of milliseconds.
const GROUPS: &std::ffi::CStr = c"X25519:P-256:P-384:ffdhe2048:ffdhe3072";

/// Of those, what libraries have that were made for FIPS 140 without the first.
const GROUPS_OF_NIST: &std::ffi::CStr = c"P-256:P-384:ffdhe2048:ffdhe3072";

const CONTROL_GROUPS: c_int = 92;
const CONTROL_MIN_VERSION: c_int = 123;
const CONTROL_MAX_VERSION: c_int = 124;
const CONTROL_CACHE_MODE: c_int = 44;
const OPTION_NO_TICKET: u64 = 1 << 14;
const WANTS_INPUT: c_int = 2;
const HAS_ENDED: c_int = 6;

/// A key. Printing it for a log says nothing of it.
#[derive(Clone, Eq, PartialEq)]
pub struct Psk {
    /// 32 bytes for `TLS_AES_128_GCM_SHA256`, 48 for `TLS_AES_256_GCM_SHA384`.
    key: Vec<u8>,
}

impl std::fmt::Debug for Psk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Psk(not shown)")
    }
}

impl Psk {
    /// Its bytes. For whoever compares them with others that it knows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.key
    }

    /// A key of 32 or 48 bytes; its length says which suite it is for.
    #[must_use]
    pub fn new(key: Vec<u8>) -> Option<Psk> {
        matches!(key.len(), 32 | 48).then_some(Psk { key })
    }

    /// The suite it is for, by number and by name.
    fn suite(&self) -> ([u8; 2], &'static std::ffi::CStr) {
        match self.key.len() {
            32 => ([0x13, 0x01], c"TLS_AES_128_GCM_SHA256"),
            _ => ([0x13, 0x02], c"TLS_AES_256_GCM_SHA384"),
        }
    }
}

/// Says which keys an identity has, if any.
pub type PskKeys = dyn Fn(&str) -> Vec<Psk> + Send + Sync;

/// Why there is no more to be had from a session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PskFault {
    /// Nobody has this identity here.
    Unknown(String),
    /// It has one, and not its key.
    WrongKey(String),
    /// It sent more than making a session takes.
    TooMuch,
    /// What came is no TLS, no TLS 1.3, offers no key, or was changed on its way.
    Broken(String),
    /// The other side has said that nothing more comes.
    Closed,
}

impl std::fmt::Display for PskFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PskFault::Unknown(identity) => write!(out, "no key of this identity: {identity:?}"),
            PskFault::WrongKey(identity) => write!(out, "another key than that of {identity:?}"),
            PskFault::TooMuch => out.write_str("more was sent than making a session takes"),
            PskFault::Broken(why) => write!(out, "TLS: {why}"),
            PskFault::Closed => out.write_str("the other side closed the session"),
        }
    }
}

/// What all sessions of a process share.
#[derive(Clone)]
pub struct PskTls(Arc<Context>);

struct Context {
    library: &'static Library,
    handle: *mut c_void,
}

// SAFETY: OpenSSL's contexts may be used by several threads once they are set up, and this one is never changed after.
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `SSL_CTX_new`, and freed once; sessions hold counts of their own.
        unsafe { (self.library.context_free)(self.handle) };
    }
}

impl std::fmt::Debug for PskTls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("PskTls")
    }
}

impl PskTls {
    /// Looks for the machine's library.
    ///
    /// # Errors
    /// In words, if there is none that can be used.
    pub fn new() -> Result<PskTls, String> {
        let library = library()?;
        // SAFETY: both take nothing that could be wrong; a null is looked for.
        let handle = unsafe { (library.context_new)((library.method)()) };
        if handle.is_null() {
            return Err("OpenSSL makes no context for TLS".to_owned());
        }
        let context = Context { library, handle };
        let version = i64::from(TLS_1_3);
        let null = std::ptr::null_mut();
        // SAFETY: the context is ours and was just made; each call takes numbers, texts that it only reads, or functions that live as long as the process and
        // have the types that it asks for.
        let set = unsafe {
            let groups = |list: &std::ffi::CStr| {
                let list = list.as_ptr().cast_mut().cast();
                (library.context_control)(handle, CONTROL_GROUPS, 0, list) == 1
            };
            (library.context_options)(handle, OPTION_NO_TICKET);
            (library.context_control)(handle, CONTROL_CACHE_MODE, 0, null);
            (library.context_find_key)(handle, find_key);
            (library.context_use_key)(handle, use_key);
            [
                (library.context_control)(handle, CONTROL_MIN_VERSION, version, null) == 1,
                (library.context_control)(handle, CONTROL_MAX_VERSION, version, null) == 1,
                (library.context_tickets)(handle, 0) == 1,
                groups(GROUPS) || groups(GROUPS_OF_NIST),
            ]
        };
        if set != [true; 4] {
            return Err("this machine's OpenSSL refuses TLS 1.3".to_owned());
        }
        Ok(PskTls(Arc::new(context)))
    }

    /// A session whose other side speaks first and says which key it has.
    #[must_use]
    pub fn accept(&self, keys: Arc<PskKeys>) -> PskSession {
        PskSession::new(self, Role::Accepts { keys, candidates: None, tried: 0, heard: Vec::new() })
    }

    /// A session that says that it has this key.
    #[must_use]
    pub fn connect(&self, identity: &str, key: Psk) -> PskSession {
        PskSession::new(self, Role::Connects { identity: identity.to_owned(), key })
    }
}

/// What one side goes by. The library's callbacks see it.
enum Role {
    Accepts {
        keys: Arc<PskKeys>,
        /// The identity that was said, and its keys.
        candidates: Option<(String, Vec<Psk>)>,
        /// So many have been given to the library; 0: it only finds out which identity is said.
        tried: usize,
        /// What came so far, for the next one.
        heard: Vec<u8>,
    },
    Connects {
        identity: String,
        key: Psk,
    },
}

/// One side of a session.
pub struct PskSession {
    context: PskTls,
    /// OpenSSL's session, with its two buffers.
    handle: *mut c_void,
    incoming: *mut c_void,
    outgoing: *mut c_void,
    /// Owned; a pointer because the library's callbacks use it while it runs.
    role: *mut Role,
    handshake_bytes: usize,
    open: bool,
    closing: bool,
    /// Something was said by the key that is tried now, so it fits, and no other is tried.
    answered: bool,
    fault: Option<PskFault>,
}

// SAFETY: OpenSSL's sessions are bound to no thread, and are used by one at a time: all that uses one takes it by `&mut`.
unsafe impl Send for PskSession {}

impl Drop for PskSession {
    fn drop(&mut self) {
        // SAFETY: the session was made by `SSL_new` and is freed once, with its buffers; `role` came from a box, and nobody calls back
        // any more.
        unsafe {
            (self.library().session_free)(self.handle);
            drop(Box::from_raw(self.role));
        }
    }
}

impl PskSession {
    fn new(context: &PskTls, role: Role) -> PskSession {
        let null = std::ptr::null_mut();
        let mut session = PskSession {
            context: context.clone(),
            handle: null,
            incoming: null,
            outgoing: null,
            role: Box::into_raw(Box::new(role)),
            handshake_bytes: 0,
            open: false,
            closing: false,
            answered: false,
            fault: None,
        };
        session.begin();
        session
    }

    fn library(&self) -> &'static Library {
        self.context.0.library
    }

    fn role(&mut self) -> &mut Role {
        // SAFETY: ours since it was made; no callback runs meanwhile, for that takes `&mut self`.
        unsafe { &mut *self.role }
    }

    /// Makes the library's part anew, with the key that is to be tried now.
    fn begin(&mut self) {
        let library = self.library();
        let suites = match self.role() {
            Role::Connects { key, .. } => key.suite().1,
            Role::Accepts { candidates, tried, .. } => match candidates {
                Some((_, keys)) if *tried > 0 => keys[*tried - 1].suite().1,
                _ => c"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
            },
        };
        let accepts = matches!(self.role(), Role::Accepts { .. });
        // SAFETY: the context lives as long as the session; the buffers become the session's, which frees them; the last handle, if
        // there is one, is not used any more; what the callbacks get lives until the handle is freed.
        unsafe {
            (library.session_free)(self.handle);
            self.handle = (library.session_new)(self.context.0.handle);
            self.incoming = (library.buffer_new)((library.buffer_in_memory)());
            self.outgoing = (library.buffer_new)((library.buffer_in_memory)());
            let made =
                !self.handle.is_null() && !self.incoming.is_null() && !self.outgoing.is_null();
            assert!(made, "there is memory for a session");
            (library.session_buffers)(self.handle, self.incoming, self.outgoing);
            let set = (library.session_set_data)(self.handle, 0, self.role.cast()) == 1
                && (library.session_suites)(self.handle, suites.as_ptr()) == 1;
            assert!(set, "the library knows the suites of TLS 1.3");
            if accepts {
                (library.session_accepts)(self.handle);
            } else {
                (library.session_connects)(self.handle);
            }
        }
    }

    /// Both sides know the key: bytes may go to and fro.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The identity of the other side, and the key of it that it has shown to know.
    #[must_use]
    pub fn shown(&self) -> Option<(&str, &Psk)> {
        // SAFETY: as in `role`; no reference that could change it lives.
        match unsafe { &*self.role } {
            Role::Accepts { candidates: Some((identity, keys)), tried, .. } if self.open => {
                Some((identity, keys.get(tried.checked_sub(1)?)?))
            }
            _ => None,
        }
    }

    /// How much may be received at once: never more than a stranger may still send.
    #[must_use]
    pub fn receive_max(&self) -> usize {
        if self.open {
            usize::MAX
        } else {
            PSK_HANDSHAKE_BYTES_MAX.saturating_sub(self.handshake_bytes).max(1)
        }
    }

    /// Takes what has arrived. What it means [`PskSession::read`] says.
    pub fn take(&mut self, records: &[u8]) {
        if !self.open {
            self.handshake_bytes += records.len();
            if self.handshake_bytes > PSK_HANDSHAKE_BYTES_MAX {
                self.fault.get_or_insert(PskFault::TooMuch);
                return;
            }
            if let Role::Accepts { heard, .. } = self.role() {
                heard.extend_from_slice(records);
            }
        }
        self.put(records);
    }

    fn put(&mut self, records: &[u8]) {
        for part in records.chunks(1 << 20) {
            let count = c_int::try_from(part.len()).expect("a MiB at most");
            // SAFETY: the buffer is the session's, which is there; it copies the bytes.
            let written = unsafe {
                (self.library().buffer_write)(self.incoming, part.as_ptr().cast(), count)
            };
            assert!(written == count, "there is memory for what arrived");
        }
    }

    /// Moves plain bytes into `place`, as far as some have arrived; answers how many. The handshake goes on here as well: its
    /// answers are in [`PskSession::outgoing`], also after an error.
    ///
    /// # Errors
    /// Any; the session is of no more use then.
    pub fn read(&mut self, place: &mut [u8]) -> Result<usize, PskFault> {
        let result = match &self.fault {
            Some(fault) => Err(fault.clone()),
            None if self.closing => Ok(0),
            None => self.try_read(place),
        };
        if let Err(fault) = &result {
            self.fault = Some(fault.clone());
        }
        result
    }

    fn try_read(&mut self, place: &mut [u8]) -> Result<usize, PskFault> {
        if !self.open && !self.shake_hands()? {
            return Ok(0);
        }
        let library = self.library();
        let mut done = 0;
        while done < place.len() {
            let rest = &mut place[done..];
            let mut count = 0;
            // SAFETY: the session is there; it writes into the slice, and how much into `count`. Errors of other sessions of this
            // thread are cleared first, as `SSL_get_error` asks.
            let outcome = unsafe {
                (library.errors_clear)();
                let taken = (library.session_read)(
                    self.handle,
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    &raw mut count,
                );
                if taken == 1 { 0 } else { (library.session_error)(self.handle, taken) }
            };
            match outcome {
                0 => done += count,
                WANTS_INPUT => break,
                // What came before the end is handed out first.
                HAS_ENDED if done > 0 => break,
                HAS_ENDED => return Err(PskFault::Closed),
                _ => return Err(PskFault::Broken(self.reason())),
            }
        }
        Ok(done)
    }

    /// Goes on with the handshake; true once it is done.
    fn shake_hands(&mut self) -> Result<bool, PskFault> {
        let library = self.library();
        loop {
            // SAFETY: as for reading.
            let outcome = unsafe {
                (library.errors_clear)();
                let done = (library.session_handshake)(self.handle);
                if done == 1 { 0 } else { (library.session_error)(self.handle, done) }
            };
            let (connects, looking) = match self.role() {
                Role::Accepts { tried, .. } => (false, *tried == 0),
                Role::Connects { .. } => (true, false),
            };
            match outcome {
                0 if looking => return Err(PskFault::Broken("no key was asked for".to_owned())),
                0 => {
                    self.open = true;
                    if let Role::Accepts { heard, .. } = self.role() {
                        *heard = Vec::new();
                    }
                    return Ok(true);
                }
                WANTS_INPUT if looking && self.waiting_bytes() == 0 => return Ok(false),
                WANTS_INPUT if !looking => {
                    self.answered |= self.waiting_bytes() > 0;
                    return Ok(false);
                }
                _ if connects || self.answered => {
                    return Err(PskFault::Broken(self.reason()));
                }
                // This key does not fit, or it is known by now which ones there are.
                _ => self.try_next()?,
            }
        }
    }

    /// Begins anew with the next key, and what came so far.
    fn try_next(&mut self) -> Result<(), PskFault> {
        let reason = self.reason();
        let Role::Accepts { candidates, tried, heard, .. } = self.role() else {
            return Err(PskFault::Broken(reason));
        };
        let Some((identity, keys)) = candidates else { return Err(PskFault::Broken(reason)) };
        if keys.is_empty() {
            return Err(PskFault::Unknown(identity.clone()));
        }
        if *tried == keys.len() {
            return Err(PskFault::WrongKey(identity.clone()));
        }
        *tried += 1;
        let heard = heard.clone();
        self.begin();
        self.put(&heard);
        Ok(())
    }

    fn reason(&self) -> String {
        // SAFETY: takes nothing; what it gives is null or a text that is never freed.
        let reason = unsafe {
            let text = (self.library().error_reason)((self.library().error_last)());
            if text.is_null() {
                c"the stream of bytes is broken"
            } else {
                std::ffi::CStr::from_ptr(text)
            }
        };
        reason.to_string_lossy().into_owned()
    }

    /// Puts `bytes` into records.
    ///
    /// # Panics
    /// If the session is not open: there is nobody to send to.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(self.open, "nothing is sent before the session is open");
        let library = self.library();
        for part in bytes.chunks(RECORD_BYTES) {
            if self.fault.is_some() || self.closing {
                return;
            }
            let mut count = 0;
            // SAFETY: the session is there; it reads the slice, and says in `count` how much of it.
            let written = unsafe {
                (library.errors_clear)();
                (library.session_write)(
                    self.handle,
                    part.as_ptr().cast(),
                    part.len(),
                    &raw mut count,
                )
            };
            if written != 1 || count != part.len() {
                self.fault = Some(PskFault::Broken(self.reason()));
            }
        }
    }

    /// Tells the other side that nothing more comes.
    pub fn close(&mut self) {
        if self.open && !self.closing && self.fault.is_none() {
            // SAFETY: the session is there, and open.
            unsafe {
                (self.library().errors_clear)();
                (self.library().session_shutdown)(self.handle);
            }
        }
        self.closing = true;
    }

    fn waiting_bytes(&self) -> usize {
        // SAFETY: the buffer is the session's, which is there.
        unsafe { (self.library().buffer_pending)(self.outgoing) }
    }

    /// Bytes that wait to be sent.
    #[must_use]
    pub fn outgoing_bytes(&self) -> usize {
        self.waiting_bytes()
    }

    /// Moves what is to be sent into `place`; answers how many bytes that are.
    pub fn outgoing(&mut self, place: &mut [u8]) -> usize {
        let mut done = 0;
        while done < place.len() && self.waiting_bytes() > 0 {
            let rest = &mut place[done..];
            let most = c_int::try_from(rest.len()).unwrap_or(c_int::MAX);
            // SAFETY: the buffer is the session's; it writes into the slice, at most so many bytes.
            let count = unsafe {
                (self.library().buffer_read)(self.outgoing, rest.as_mut_ptr().cast(), most)
            };
            let Some(count) = usize::try_from(count).ok().filter(|&count| count > 0) else { break };
            done += count;
        }
        done
    }
}

/// A session of the library's own with this key, which the library then owns; null if it cannot be made.
///
/// # Safety
/// `session` is a session of the library that runs.
unsafe fn offer(library: &Library, session: *mut c_void, key: &Psk) -> *mut c_void {
    let (suite, _) = key.suite();
    // SAFETY: the caller's promise; the key and the suite are copied or looked up at once; what is made and not handed on is freed.
    unsafe {
        let suite = (library.suite_find)(session, suite.as_ptr());
        let made = (library.offer_new)();
        if suite.is_null() || made.is_null() {
            (library.offer_free)(made);
            return std::ptr::null_mut();
        }
        let set = (library.offer_key)(made, key.key.as_ptr(), key.key.len()) == 1
            && (library.offer_suite)(made, suite) == 1
            && (library.offer_version)(made, TLS_1_3) == 1;
        if !set {
            (library.offer_free)(made);
            return std::ptr::null_mut();
        }
        made
    }
}

/// The library asks which key an identity has. 1: what there is is in `found`, or null; 0 would be an error.
///
/// # Safety
/// Called by the library only, as its documentation of `SSL_CTX_set_psk_find_session_callback` says.
unsafe extern "C" fn find_key(
    session: *mut c_void,
    identity: *const c_uchar,
    length: usize,
    found: *mut *mut c_void,
) -> c_int {
    let Ok(library) = library() else { return 0 };
    // SAFETY: `found` may be written to; the data is the role that `begin` set, which nobody else uses while the library runs; the
    // identity is `length` bytes long.
    let (role, identity) = unsafe {
        *found = std::ptr::null_mut();
        let role = (library.session_data)(session, 0).cast::<Role>();
        if role.is_null() || identity.is_null() {
            return 0;
        }
        (&mut *role, std::slice::from_raw_parts(identity, length))
    };
    let Role::Accepts { keys, candidates, tried, .. } = role else { return 0 };
    let said = String::from_utf8_lossy(identity);
    if *tried == 0 {
        // Of several identities the first that is known counts, or else the first.
        if candidates.as_ref().is_none_or(|(_, known)| known.is_empty()) {
            let known = keys(&said);
            if !known.is_empty() {
                *candidates = Some((said.into_owned(), known));
            } else if candidates.is_none() {
                let shown = said.chars().take(IDENTITY_CHARS_SHOWN).collect();
                *candidates = Some((shown, known));
            }
        }
        return 1;
    }
    let key =
        candidates.as_ref().filter(|(of, _)| *of == said).and_then(|(_, all)| all.get(*tried - 1));
    if let Some(key) = key {
        // SAFETY: the session is the library's that runs; `found` may be written to.
        unsafe { *found = offer(library, session, key) };
    }
    1
}

/// The library asks which key to connect with.
///
/// # Safety
/// Called by the library only, as its documentation of `SSL_CTX_set_psk_use_session_callback` says.
unsafe extern "C" fn use_key(
    session: *mut c_void,
    _hash: *const c_void,
    identity: *mut *const c_uchar,
    length: *mut usize,
    used: *mut *mut c_void,
) -> c_int {
    let Ok(library) = library() else { return 0 };
    // SAFETY: the three may be written to; the data is as in `find_key`; the identity lives as long as the role, which outlives the
    // library's session.
    unsafe {
        *used = std::ptr::null_mut();
        let role = (library.session_data)(session, 0).cast::<Role>();
        if role.is_null() {
            return 0;
        }
        let Role::Connects { identity: own, key } = &*role else { return 1 };
        *identity = own.as_ptr();
        *length = own.len();
        *used = offer(library, session, key);
    }
    1
}

#[cfg(test)]
mod tests;

//! What is used of the machine's OpenSSL 3, found when it is needed and not before: who builds or runs a node without such keys
//! needs nothing of it.
//!
//! Always: the types here are those of OpenSSL 3's headers (`openssl/ssl.h`, `openssl/bio.h`, `openssl/err.h`), whose functions
//! keep them as long as the library is called `libssl.so.3`.
//!
//! Not here: what is done with it.

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar, c_ulong, c_void};
use std::sync::OnceLock;

/// What the library is called as long as its functions have these types.
const NAME: &CStr = c"libssl.so.3";

type Handle = *mut c_void;
pub(super) type FindKey = unsafe extern "C" fn(Handle, *const c_uchar, usize, *mut Handle) -> c_int;
pub(super) type UseKey = unsafe extern "C" fn(
    Handle,
    *const c_void,
    *mut *const c_uchar,
    *mut usize,
    *mut Handle,
) -> c_int;

/// A structure of functions, and how each is called in the library.
macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of the library.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                // SAFETY: the name ends with a zero; the library is never unloaded. Its start is OpenSSL's own.
                let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err(format!(
                        "TLS with keys of NVMe hosts needs OpenSSL 3 ({}), which is not on this machine \
                         (Debian: apt-get install libssl3)",
                        NAME.to_string_lossy()
                    ));
                }
                Ok(Library {
                    $($field: {
                        // SAFETY: the handle is open, and each name ends with a zero.
                        let found = unsafe { libc::dlsym(handle, $name.as_ptr()) };
                        if found.is_null() {
                            let name = $name.to_string_lossy();
                            return Err(format!("this machine's OpenSSL has no {name}"));
                        }
                        // SAFETY: the library's function of this name has this type, by its headers.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $answer)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    method c"TLS_method" () -> *const c_void;
    context_new c"SSL_CTX_new" (*const c_void) -> Handle;
    context_free c"SSL_CTX_free" (Handle);
    context_control c"SSL_CTX_ctrl" (Handle, c_int, c_long, Handle) -> c_long;
    context_options c"SSL_CTX_set_options" (Handle, u64) -> u64;
    context_tickets c"SSL_CTX_set_num_tickets" (Handle, usize) -> c_int;
    context_find_key c"SSL_CTX_set_psk_find_session_callback" (Handle, FindKey);
    context_use_key c"SSL_CTX_set_psk_use_session_callback" (Handle, UseKey);
    session_new c"SSL_new" (Handle) -> Handle;
    session_free c"SSL_free" (Handle);
    session_buffers c"SSL_set_bio" (Handle, Handle, Handle);
    session_suites c"SSL_set_ciphersuites" (Handle, *const c_char) -> c_int;
    session_set_data c"SSL_set_ex_data" (Handle, c_int, Handle) -> c_int;
    session_data c"SSL_get_ex_data" (*const c_void, c_int) -> Handle;
    session_accepts c"SSL_set_accept_state" (Handle);
    session_connects c"SSL_set_connect_state" (Handle);
    session_handshake c"SSL_do_handshake" (Handle) -> c_int;
    session_read c"SSL_read_ex" (Handle, Handle, usize, *mut usize) -> c_int;
    session_write c"SSL_write_ex" (Handle, *const c_void, usize, *mut usize) -> c_int;
    session_shutdown c"SSL_shutdown" (Handle) -> c_int;
    session_error c"SSL_get_error" (*const c_void, c_int) -> c_int;
    suite_find c"SSL_CIPHER_find" (Handle, *const c_uchar) -> *const c_void;
    offer_new c"SSL_SESSION_new" () -> Handle;
    offer_free c"SSL_SESSION_free" (Handle);
    offer_key c"SSL_SESSION_set1_master_key" (Handle, *const c_uchar, usize) -> c_int;
    offer_suite c"SSL_SESSION_set_cipher" (Handle, *const c_void) -> c_int;
    offer_version c"SSL_SESSION_set_protocol_version" (Handle, c_int) -> c_int;
    buffer_in_memory c"BIO_s_mem" () -> *const c_void;
    buffer_new c"BIO_new" (*const c_void) -> Handle;
    buffer_pending c"BIO_ctrl_pending" (Handle) -> usize;
    buffer_read c"BIO_read" (Handle, Handle, c_int) -> c_int;
    buffer_write c"BIO_write" (Handle, *const c_void, c_int) -> c_int;
    errors_clear c"ERR_clear_error" ();
    error_last c"ERR_peek_last_error" () -> c_ulong;
    error_reason c"ERR_reason_error_string" (c_ulong) -> *const c_char;
}

/// The machine's library; looked for once.
pub(super) fn library() -> Result<&'static Library, String> {
    static FOUND: OnceLock<Result<Library, String>> = OnceLock::new();
    FOUND.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

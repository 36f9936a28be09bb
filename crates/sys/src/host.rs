//! What a process asks of its machine once: clock, identity of this boot, random numbers, signals,
//! limits, the service manager.

use std::ffi::CString;
use std::os::unix::net::UnixDatagram;

use base::Instant;

use crate::errno::{Errno, check, check_count};

/// Reads the clock that counts suspend (`CLOCK_BOOTTIME`).
#[must_use]
pub fn clock() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills a local structure.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert!(answer == 0, "every kernel since 2.6.39 has CLOCK_BOOTTIME");
    let seconds = u64::try_from(time.tv_sec).expect("time since boot is not negative");
    let rest = u64::try_from(time.tv_nsec).expect("nanoseconds of a second are not negative");
    Instant(seconds * 1_000_000_000 + rest)
}

/// Milliseconds since 1970 by the wall clock, which may jump: for people, never for decisions.
#[must_use]
pub fn wall_clock_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The identity of this boot of the machine, `None` where `/proc` does not tell.
#[must_use]
pub fn boot_id() -> Option<u128> {
    let digits: String = boot_name().chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok()
}

/// The same as the kernel writes it; empty where it does not.
#[must_use]
pub fn boot_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim_end().to_owned()
}

/// Fills `bytes` with secret random numbers of the kernel.
///
/// # Panics
/// If the kernel has none: nothing that needs identities or secrets can go on then.
pub fn random_bytes(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the kernel fills the slice.
        let answer = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match check_count(answer) {
            Ok(count) => done += count,
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => panic!("the kernel gives no random numbers: {errno}"),
        }
    }
}

/// A secret random number.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Blocks signals in this thread and those it starts, so that only a watch gets them. Child
/// processes inherit that too; whoever starts one unblocks them there.
///
/// # Errors
/// `EINVAL` for a number that is no signal.
pub fn block_signals(signals: &[i32]) -> Result<libc::sigset_t, Errno> {
    // SAFETY: plain data; `sigemptyset` then gives it its value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a local set.
    check(unsafe { libc::sigemptyset(&raw mut set) })?;
    for &signal in signals {
        // SAFETY: a local set that is initialised.
        check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
    }
    // SAFETY: the set is initialised; the old one is not asked for.
    let answer =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if answer == 0 { Ok(set) } else { Err(Errno(answer)) }
}

/// Raises the limit of open files to the most this process may have; returns it.
///
/// # Errors
/// The kernel's.
pub fn raise_open_files() -> Result<u64, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills a local structure.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads a local structure.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Has the kernel spare this thread, and those it starts, when memory is short: what it asks for then makes nobody wait for
/// writes to disks, which may be those that this process serves (`PR_SET_IO_FLUSHER`, Linux 5.6).
///
/// # Errors
/// `EPERM` without `CAP_SYS_RESOURCE`, `EINVAL` before Linux 5.6.
pub fn become_io_flusher() -> Result<(), Errno> {
    /// Of `linux/prctl.h`.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) }).map(drop)
}

/// Puts a key into one of the kernel's keyrings, in place of what has its name there (`add_key(2)`).
///
/// # Errors
/// The kernel's: `ENODEV` if it has no such type, `EACCES` if this process may not change the ring; `EINVAL` if the type or the
/// name contains a zero byte.
pub fn add_key(kind: &str, name: &str, key: &[u8], ring: i32) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno(libc::EINVAL));
    let (kind, name) = (text(kind)?, text(name)?);
    // SAFETY: the kernel reads two texts with their ends, and as many bytes as are said to be there.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_add_key,
            kind.as_ptr(),
            name.as_ptr(),
            key.as_ptr(),
            key.len(),
            libc::c_long::from(ring),
        )
    };
    if answer < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Takes a key out of one of the kernel's keyrings (`keyctl_unlink(3)`).
///
/// # Errors
/// The kernel's: `ENOENT` if it is not there, `EACCES` if this process may not change the ring.
pub fn remove_key(key: i32, ring: i32) -> Result<(), Errno> {
    let (unlink, key) = (libc::c_long::from(libc::KEYCTL_UNLINK), libc::c_long::from(key));
    // SAFETY: numbers only.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, unlink, key, libc::c_long::from(ring)) };
    if answer < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Tells the service manager a state as `sd_notify(3)` lists them, for instance `READY=1`. False
/// where no manager listens.
pub fn notify(state: &str) -> bool {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let Ok(socket) = UnixDatagram::unbound() else { return false };
    if let Some(name) = path.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(name) else {
            return false;
        };
        return socket.send_to_addr(state.as_bytes(), &address).is_ok();
    }
    socket.send_to(state.as_bytes(), path).is_ok()
}

//! Sockets: addresses, listening, options. Sending and receiving is in `hands`.
//!
//! What always holds: every TCP socket made or accepted here has Nagle's delay off; every
//! descriptor closes on exec.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::descriptor::{Descriptor, Listener, Socket};
use crate::errno::{Errno, check};

/// Connections the kernel completes before they are accepted: a cluster reconnecting at once.
const BACKLOG: i32 = 1024;

/// Seconds without a word before the other end is asked, seconds between two questions, and how many: what is gone for less than
/// two minutes, as a switch that starts anew, ends nothing.
const LOSS_PROBES: (i32, i32, i32) = (60, 15, 4);

/// Where a stream socket is or leads to.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum SocketAddress {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A path in the file system.
    Unix(PathBuf),
}

impl std::fmt::Display for SocketAddress {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SocketAddress::Tcp(address) => write!(out, "{address}"),
            SocketAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl Socket {
    /// Whether the other end has closed the connection. One that only sends no more (a half-closed one) has not.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.is_any(0)
    }

    /// Whether the other end sends no more, whatever of it was not received yet.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_any(libc::POLLRDHUP)
    }

    /// Whether any of these events is there now, or the connection is no more.
    fn is_any(&self, events: libc::c_short) -> bool {
        let mut polled = libc::pollfd { fd: self.0.number(), events, revents: 0 };
        // SAFETY: one valid entry, which outlives the call; the descriptor is open as long as `self` is.
        let count = unsafe { libc::poll(&raw mut polled, 1, 0) };
        count > 0 && polled.revents & (events | libc::POLLHUP | libc::POLLERR) != 0
    }
}

/// Listens on a TCP address (port 0: the kernel chooses; see [`Listener::local_address`]). The
/// address may be reused at once after a restart.
///
/// # Errors
/// The kernel's, for instance `EADDRINUSE`.
pub fn listen_tcp(address: SocketAddr) -> Result<Listener, Errno> {
    let listener = TcpListener::bind(address).map_err(|error| Errno::of(&error))?;
    deepen(Listener::from(OwnedFd::from(listener)))
}

/// Listens on a Unix path. A socket file that nobody listens on any more is replaced.
///
/// # Errors
/// `EADDRINUSE` if someone listens there or it is no socket, `ENAMETOOLONG` of 108 bytes or more; the kernel's otherwise.
pub fn listen_unix(path: &Path) -> Result<Listener, Errno> {
    RawAddress::of_path(path)?;
    replace_stale(path, || {
        let listener = UnixListener::bind(path).map_err(|error| Errno::of(&error))?;
        Ok(Listener::from(OwnedFd::from(listener)))
    })
}

/// The same, where only the owner may connect, whatever the umask is, and from the moment on that the file is there.
///
/// # Errors
/// As for [`listen_unix`].
pub fn listen_unix_private(path: &Path) -> Result<Listener, Errno> {
    let address = SocketAddress::Unix(path.to_path_buf());
    replace_stale(path, || {
        let socket = open_for(None, &address)?.0;
        // The file that `bind` makes has the mode of the socket's own inode, less the umask.
        // SAFETY: plain call on a descriptor we own.
        check(unsafe { libc::fchmod(socket.number(), libc::S_IRUSR | libc::S_IWUSR) })?;
        let raw = RawAddress::of(&address)?;
        // SAFETY: the address is valid for its length during the call.
        check(unsafe { libc::bind(socket.number(), raw.pointer(), raw.length) })?;
        Ok(Listener(socket))
    })
}

/// Binds to a path, again without a socket file that is stale, and listens.
fn replace_stale(
    path: &Path,
    bind: impl Fn() -> Result<Listener, Errno>,
) -> Result<Listener, Errno> {
    let listener = match bind() {
        Err(Errno(libc::EADDRINUSE)) if is_stale(path) => {
            std::fs::remove_file(path).map_err(|error| Errno::of(&error))?;
            bind()
        }
        other => other,
    };
    deepen(listener?)
}

/// A regular file refuses connections as well, and is not ours to remove.
fn is_stale(path: &Path) -> bool {
    let socket = std::fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket());
    socket
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn deepen(listener: Listener) -> Result<Listener, Errno> {
    // SAFETY: plain call on a descriptor we own.
    check(unsafe { libc::listen(listener.0.number(), BACKLOG) })?;
    Ok(listener)
}

/// A stream socket for `remote`, bound to `local` if given, not connected yet.
pub(crate) fn open_for(local: Option<SocketAddr>, remote: &SocketAddress) -> Result<Socket, Errno> {
    let family = match remote {
        SocketAddress::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        SocketAddress::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
        SocketAddress::Unix(_) => libc::AF_UNIX,
    };
    // SAFETY: plain call without pointers.
    let number = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    let socket = Socket(Descriptor::adopt(number));
    if family != libc::AF_UNIX {
        socket.prepare_tcp();
    }
    if let Some(local) = local {
        // The port is chosen at connect, so that ports are shared between destinations.
        set_option(&socket.0, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1).ok();
        set_option(&socket.0, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let address = RawAddress::of(&SocketAddress::Tcp(local))?;
        // SAFETY: the address is valid for its length during the call.
        check(unsafe { libc::bind(number, address.pointer(), address.length) })?;
    }
    Ok(socket)
}

fn set_option(socket: &Descriptor, level: i32, option: i32, value: i32) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).expect("four fits");
    // SAFETY: the kernel reads four bytes of a local integer.
    check(unsafe {
        libc::setsockopt(socket.number(), level, option, (&raw const value).cast(), length)
    })?;
    Ok(())
}

/// A second descriptor of the same socket, for the standard library to ask questions with.
fn twin(descriptor: &Descriptor) -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor is open while it is borrowed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor.number()) };
    borrowed.try_clone_to_owned().map_err(|error| Errno::of(&error))
}

impl Listener {
    /// The TCP address it listens on; an error for Unix sockets.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_address(&self) -> Result<SocketAddr, Errno> {
        let twin = TcpListener::from(twin(&self.0)?);
        twin.local_addr().map_err(|error| Errno::of(&error))
    }
}

impl Socket {
    /// The options every TCP socket has. A Unix socket refuses them, which is no harm.
    pub(crate) fn prepare_tcp(&self) {
        set_option(&self.0, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).ok();
    }

    /// From now on the connection ends if the other end is not heard of for `seconds`, 2 or more, and what comes after that
    /// is not taken in. A Unix socket has no such end, and needs none: its other end is on this machine.
    pub fn end_in_silence(&self, seconds: u16) {
        let millis = i32::from(seconds) * 1000;
        self.probe(1, 1, i32::from(seconds) - 1);
        set_option(&self.0, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis).ok();
    }

    /// From now on the connection ends if the machine at the other end is gone while nothing is on its way there: two minutes
    /// after it was last heard of. One that stands still, and whose kernel answers, stays.
    pub fn notice_loss(&self) {
        let (idle, interval, probes) = LOSS_PROBES;
        self.probe(idle, interval, probes);
    }

    /// Has the kernel ask the other end whether it is there, after so many seconds without a word, then every so many, and end
    /// the connection when so many are not answered. A Unix socket refuses that, which is no harm.
    fn probe(&self, idle_seconds: i32, interval_seconds: i32, probes: i32) {
        for (level, option, value) in [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_seconds),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval_seconds),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes),
        ] {
            set_option(&self.0, level, option, value).ok();
        }
    }

    /// The TCP address of this end.
    ///
    /// # Errors
    /// The kernel's; an error for Unix sockets.
    pub fn local_address(&self) -> Result<SocketAddr, Errno> {
        let twin = TcpStream::from(twin(&self.0)?);
        twin.local_addr().map_err(|error| Errno::of(&error))
    }

    /// The TCP address of the other end.
    ///
    /// # Errors
    /// The kernel's; an error for Unix sockets.
    pub fn peer_address(&self) -> Result<SocketAddr, Errno> {
        let twin = TcpStream::from(twin(&self.0)?);
        twin.peer_addr().map_err(|error| Errno::of(&error))
    }

    /// The user id of the process at the other end of a Unix socket.
    ///
    /// # Errors
    /// The kernel's; an error for TCP sockets.
    pub fn peer_user_id(&self) -> Result<u32, Errno> {
        let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("twelve fits");
        // SAFETY: the kernel writes at most `length` bytes, the size of `who`.
        check(unsafe {
            libc::getsockopt(
                self.0.number(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut length,
            )
        })?;
        if who.uid == u32::MAX { Err(Errno::NOT_SUPPORTED) } else { Ok(who.uid) }
    }

    /// Lets the kernel drop a connection whose peer has acknowledged nothing for this long.
    ///
    /// # Errors
    /// The kernel's; an error for Unix sockets.
    pub fn set_user_timeout(&self, limit: base::Duration) -> Result<(), Errno> {
        let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        set_option(&self.0, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, milliseconds)
    }

    /// Asks for socket buffers of this many bytes in both directions; the kernel may give less.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_buffer_bytes(&self, bytes: usize) -> Result<(), Errno> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
        set_option(&self.0, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
    }

    /// Ends both directions: the peer sees the end of the stream, receives pending here answer 0,
    /// sends fail. An error means that it was not connected, or is no longer.
    pub(crate) fn shutdown(&self) {
        // SAFETY: plain call on a descriptor we hold open.
        unsafe { libc::shutdown(self.0.number(), libc::SHUT_RDWR) };
    }
}

/// An address as the kernel wants it.
pub(crate) struct RawAddress {
    storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl RawAddress {
    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn of(address: &SocketAddress) -> Result<RawAddress, Errno> {
        match address {
            SocketAddress::Tcp(SocketAddr::V4(v4)) => Ok(RawAddress::store(&libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            })),
            SocketAddress::Tcp(SocketAddr::V6(v6)) => Ok(RawAddress::store(&libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            })),
            SocketAddress::Unix(path) => RawAddress::of_path(path),
        }
    }

    fn of_path(path: &Path) -> Result<RawAddress, Errno> {
        let bytes = path.as_os_str().as_bytes();
        let mut address =
            libc::sockaddr_un { sun_family: family(libc::AF_UNIX), sun_path: [0; 108] };
        if bytes.len() >= address.sun_path.len() || bytes.is_empty() || bytes.contains(&0) {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        for (target, source) in address.sun_path.iter_mut().zip(bytes) {
            *target = libc::c_char::from_ne_bytes([*source]);
        }
        Ok(RawAddress::store(&address))
    }

    /// `T` is one of the `sockaddr_*` structures.
    fn store<T: Copy>(address: &T) -> RawAddress {
        assert!(
            size_of::<T>() <= size_of::<libc::sockaddr_storage>(),
            "storage fits every address"
        );
        // SAFETY: `sockaddr_storage` is plain data for which all zeroes is a value.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: the storage is at least as large (asserted) and as strictly aligned as any
        // address structure, by its definition in sockaddr_storage(3type).
        unsafe { (&raw mut storage).cast::<T>().write(*address) };
        let length = libc::socklen_t::try_from(size_of::<T>()).expect("at most 128");
        RawAddress { storage, length }
    }
}

fn family(number: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).expect("address families are small numbers")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::{Socket, check};

    fn option(socket: &Socket, level: i32, option: i32) -> i32 {
        let mut value = 0;
        let mut length = libc::socklen_t::try_from(size_of::<i32>()).expect("four fits");
        // SAFETY: the kernel writes at most four bytes to a local integer.
        check(unsafe {
            libc::getsockopt(
                socket.0.number(),
                level,
                option,
                (&raw mut value).cast(),
                &raw mut length,
            )
        })
        .expect("an option of TCP");
        value
    }

    #[test]
    fn whose_machine_is_to_be_noticed_gone_is_asked_after_a_minute_and_four_times() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let _client = TcpStream::connect(address).expect("somebody listens");
        let socket = Socket::from(OwnedFd::from(listener.accept().expect("a client").0));
        let all = |socket: &Socket| {
            [
                option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE),
                option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
                option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
                option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
                option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
            ]
        };
        assert_eq!(option(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 0, "by itself never");
        socket.notice_loss();
        assert_eq!(all(&socket), [1, 60, 15, 4, 0]);
        socket.end_in_silence(5);
        assert_eq!(all(&socket), [1, 1, 1, 4, 5000]);
    }
}

//! Connections to Unix sockets.
//!
//! Always: none is waited for without a limit. A process that stands still takes nobody in; once as many as its backlog holds have
//! come and gone, the kernel lets whoever comes next wait.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects; what is said over it afterwards is given up after `limit`, too, unless that is changed.
///
/// # Errors
/// The kernel's; `TimedOut` where nobody took it in.
pub(crate) fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    match connect(&socket, &address) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(Errno::AGAIN) => {
            let seconds = limit.as_secs_f64();
            let words = format!("nobody took the connection in for {seconds} s");
            Err(io::Error::new(io::ErrorKind::TimedOut, words))
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::connect_within;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    #[test]
    fn who_takes_nobody_in_is_not_waited_for_for_ever() {
        let name = format!("lockstep-unix-{:x}", sys::random_u64());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).expect("bound");
        rustix::net::listen(&listener, 0).expect("with room for one");
        let limit = Duration::from_millis(50);
        let first = connect_within(&path, limit).expect("it waits in the backlog");
        let told = connect_within(&path, limit).expect_err("there is no room");
        assert_eq!(told.kind(), ErrorKind::TimedOut, "{told}");
        drop(listener.accept().expect("the first"));
        drop(first);
        connect_within(&path, limit).expect("there is room again");
        drop(listener);
        std::fs::remove_file(&path).expect("this test's own");
        assert_eq!(connect_within(&path, limit).expect_err("gone").kind(), ErrorKind::NotFound);
    }
}

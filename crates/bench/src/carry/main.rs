//! Carries a Unix socket over TCP, as an SSH tunnel does between real machines: `carry SOCKET ADDRESS` takes connections to a new socket
//! there, `carry ADDRESS SOCKET` those of the other end to a socket that is here.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::thread;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [from, to] = words.as_slice() else {
        eprintln!("carry: give a socket's path and an address, first where connections come from");
        return ExitCode::from(2);
    };
    let done = match (from.parse::<SocketAddr>(), to.parse::<SocketAddr>()) {
        (Ok(from), Err(_)) => serve_tcp(from, to),
        (Err(_), Ok(to)) => serve_unix(from, to),
        _ => Err(io::Error::other("one of them is to be an address")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("carry: {from} to {to}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_tcp(from: SocketAddr, to: &str) -> io::Result<()> {
    for stream in TcpListener::bind(from)?.incoming() {
        join(stream?, UnixStream::connect(to)?)?;
    }
    Ok(())
}

fn serve_unix(from: &str, to: SocketAddr) -> io::Result<()> {
    for stream in UnixListener::bind(from)?.incoming() {
        join(TcpStream::connect(to)?, stream?)?;
    }
    Ok(())
}

fn join(tcp: TcpStream, unix: UnixStream) -> io::Result<()> {
    let (mut tcp_in, mut unix_in) = (tcp.try_clone()?, unix.try_clone()?);
    let (mut tcp_out, mut unix_out) = (tcp, unix);
    thread::spawn(move || {
        copy(&mut tcp_in, &mut unix_out);
        // The other end may be gone.
        let _ = unix_out.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        copy(&mut unix_in, &mut tcp_out);
        let _ = tcp_out.shutdown(Shutdown::Write);
    });
    Ok(())
}

/// Until either ends; how is of no interest to who carries.
fn copy(from: &mut impl Read, to: &mut impl Write) {
    let _ = io::copy(from, to);
}

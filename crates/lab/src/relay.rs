//! Ports of this machine's loopback that lead to a node: at once, or late, as a long line does.
//!
//! A relay lasts as long as this process. Not here: packets that are lost, which nft sees to (`labs::net`).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use base::Prng;

use crate::bench::Outcome;

/// Bytes carried at once.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces on their way in one direction, at most: who sends more waits, as with a full window.
const PIECES_MAX: usize = 256;

/// How late bytes come: at least so much, and at most as much again besides.
#[derive(Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) least: Duration,
    pub(crate) more_at_most: Duration,
}

impl Delay {
    /// None.
    pub(crate) const NONE: Delay = Delay { least: Duration::ZERO, more_at_most: Duration::ZERO };
}

/// A port behind which a node is; what is sent comes so late in each direction.
pub(crate) fn relay(node: SocketAddr, delay: Delay) -> Outcome<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for (client, number) in listener.incoming().flatten().zip(0_u64..) {
            let Ok(server) = TcpStream::connect(node) else { continue };
            // What is late because a packet is kept for company is not late as was asked for.
            client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).ok();
            let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { continue };
            thread::spawn(move || carry(from, to, delay, number * 2));
            thread::spawn(move || carry(server, client, delay, number * 2 + 1));
        }
    });
    Ok(port)
}

/// Carries bytes until one side ends, and ends the other.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Delay, seed: u64) {
    match delay.least.is_zero() && delay.more_at_most.is_zero() {
        true => drop(io::copy(&mut from, &mut to)),
        false => carry_late(&mut from, &mut to, delay, seed),
    }
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

fn carry_late(from: &mut TcpStream, to: &mut TcpStream, delay: Delay, seed: u64) {
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let mut random = Prng::new(seed);
    let most_us = u64::try_from(delay.more_at_most.as_micros()).unwrap_or(u64::MAX);
    thread::scope(|scope| {
        scope.spawn(move || {
            // In order, as TCP is: who is later than its successor is waited for.
            while let Ok((due, bytes)) = receiver.recv() {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            to.shutdown(Shutdown::Both).ok();
        });
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count) = from.read(&mut piece)
            && count > 0
        {
            let more = Duration::from_micros(random.below(most_us + 1));
            let due = Instant::now() + delay.least + more;
            if sender.send((due, piece[..count].to_vec())).is_err() {
                break;
            }
        }
        drop(sender);
    });
}

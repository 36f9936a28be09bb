//! Two ends in memory, and what all tests need to set them up.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails here has failed"
)]

mod identities;
mod limits;
mod links;
mod memory;
mod proofs;
mod refusals;
mod waits;

use std::sync::Arc;

use base::{ClusterId, Instant, NodeId, Prng};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use sys::{BufferPool, Piece};
use wire::{Frame, Hello, VERSION_MAX, VERSION_MIN};

use crate::{
    Authority, Config, Identity, Link, LinkError, LinkEvent, LinkMode, LinkWant, Revocations,
};

/// Memory is counted in this crate's tests.
#[global_allocator]
static ALLOCATOR: sys::Counted = sys::Counted;

/// The present in all tests, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const CLUSTER: ClusterId = ClusterId(0x1234_5678_9abc_def0);
const BOTH_MODES: [LinkMode; 2] = [LinkMode::Encrypted, LinkMode::Plain];

#[derive(Debug)]
struct Fixed;

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW)))
    }
}

/// Room for a few records: most tests meet its limit, and go on without.
fn pool() -> BufferPool {
    BufferPool::new(1 << 20)
}

fn authority() -> Authority {
    Authority::create(CLUSTER, NOW).unwrap()
}

fn identity(authority: &Authority, node: u16) -> Identity {
    authority.issue(NodeId(node), &format!("node-{node}"), &[], NOW).unwrap()
}

fn config(identity: &Identity, mode: LinkMode) -> Config {
    config_refusing(identity, mode, Revocations::default())
}

fn config_refusing(identity: &Identity, mode: LinkMode, revocations: Revocations) -> Config {
    Config::with_clock(identity, mode, revocations, Arc::new(Fixed)).unwrap()
}

fn hello(node: u16) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features_offered: 0,
        features_required: 0,
        cluster: CLUSTER,
        node: NodeId(node),
        process: u64::from(node) + 77,
        stream: 0,
        streams: 4,
        unknown: Vec::new(),
    }
}

/// A link, and what it has handed out.
struct End {
    link: Link,
    ready: bool,
    /// Complete frames with their payloads.
    frames: Vec<(Frame, Vec<u8>)>,
    awaiting: Option<(Frame, Vec<u8>)>,
    error: Option<LinkError>,
}

impl End {
    fn new(link: Link) -> End {
        End { link, ready: false, frames: Vec::new(), awaiting: None, error: None }
    }

    /// Gives it received bytes.
    fn deliver(&mut self, mut bytes: Vec<u8>) {
        let mut input = bytes.as_mut_slice();
        while self.error.is_none() {
            match self.advance(&mut input) {
                Ok(true) => {}
                Ok(false) => {
                    assert!(input.is_empty(), "all input is used up");
                    break;
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    fn advance(&mut self, input: &mut &mut [u8]) -> Result<bool, LinkError> {
        if let Some((frame, mut place)) = self.awaiting.take() {
            let complete = self.link.payload(input, &mut place)?;
            let list = if complete { Some(&mut self.frames) } else { None };
            match list {
                Some(frames) => frames.push((frame, place)),
                None => self.awaiting = Some((frame, place)),
            }
            return Ok(complete);
        }
        match self.link.next(input)? {
            None => return Ok(false),
            Some(LinkEvent::Ready { .. }) => self.ready = true,
            Some(LinkEvent::Frame(frame)) => match self.link.want() {
                LinkWant::Frames => self.frames.push((frame, Vec::new())),
                LinkWant::Payload { length, .. } => {
                    self.awaiting = Some((frame, vec![0xee; length]));
                }
            },
        }
        Ok(true)
    }

    fn outgoing(&mut self) -> Vec<u8> {
        join(self.link.outgoing(usize::MAX).as_slice())
    }
}

fn join(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
}

fn ends_of(dialler: &Config, acceptor: &Config, hellos: (Hello, Hello)) -> (End, End) {
    let expected = NodeId(2);
    let dial = Link::dial(dialler, expected, hellos.0, &pool(), Instant(0)).unwrap();
    let accept = Link::accept(acceptor, hellos.1, &pool(), Instant(0)).unwrap();
    (End::new(dial), End::new(accept))
}

fn ends(dialler: &Config, acceptor: &Config) -> (End, End) {
    ends_of(dialler, acceptor, (hello(1), hello(2)))
}

/// Carries bytes both ways, in pieces of up to `most` bytes, until both are silent. Answers all that
/// was carried.
fn pump(a: &mut End, b: &mut End, most: u64, prng: &mut Prng) -> Vec<u8> {
    let mut carried = Vec::new();
    loop {
        let (there, back) = (a.outgoing(), b.outgoing());
        if there.is_empty() && back.is_empty() {
            return carried;
        }
        for (bytes, end) in [(there, &mut *b), (back, &mut *a)] {
            carried.extend_from_slice(&bytes);
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (part, next) = rest.split_at(rest.len().min(prng.below(most) as usize + 1));
                end.deliver(part.to_vec());
                rest = next;
            }
        }
    }
}

/// Two ends that are ready.
fn ready_ends(mode: LinkMode) -> (End, End) {
    let authority = authority();
    let (mut a, mut b) =
        ends(&config(&identity(&authority, 1), mode), &config(&identity(&authority, 2), mode));
    pump(&mut a, &mut b, 1 << 20, &mut Prng::new(1));
    assert_eq!((&a.error, &b.error), (&None, &None));
    assert!(a.ready && b.ready, "an honest pair gets ready");
    (a, b)
}

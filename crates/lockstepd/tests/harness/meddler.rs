//! Somebody between two nodes who has the certificates of both: it hands on what they say, and cuts what it is told to.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Instant, NodeId};
use link::{Config, Link, LinkEvent, LinkMode, LinkWant, Revocations};
use sys::{BufferPool, Piece};
use wire::{Frame, Hello, Message, ShardMessage};

use super::{Cluster, node_name, unix_now};

/// Where `dialler` finds it instead of `listener`.
pub(crate) struct Meddler {
    /// Answers with bytes of the node that listens that are to be cut.
    cuts: Arc<AtomicUsize>,
}

/// Something to be handed on, with its payload.
type Said = (Frame, Vec<u8>);

/// One of its two connections.
struct End {
    link: Link,
    socket: TcpStream,
    ready: bool,
    /// A frame, and as much of its payload as is to come.
    frame: Option<Said>,
}

impl Meddler {
    /// Stands between two nodes that have not started: of both the first dials.
    pub(crate) fn between(cluster: &Cluster, dialler: u16, listener: u16) -> Meddler {
        let (theirs, own) = (format!("{}:7800", cluster.address(listener)), cluster.address(15));
        let own = format!("{own}:7800");
        cluster.change_settings(dialler, &theirs, &own);
        let door = TcpListener::bind(own).expect("nobody has this address");
        let identity = cluster.authority().cluster();
        let hello = move |node| Hello {
            version_min: wire::VERSION_MIN,
            version_max: wire::VERSION_MAX,
            features_offered: 0,
            features_required: 0,
            cluster: identity,
            node: NodeId(node),
            process: 7,
            stream: 0,
            streams: 1,
            unknown: Vec::new(),
        };
        let (as_dialler, as_listener) = (config(cluster, dialler), config(cluster, listener));
        let cuts = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&cuts);
        // It ends with the process of the test.
        std::thread::spawn(move || {
            let pool = BufferPool::new(16 << 20);
            while let Ok((socket, _)) = door.accept() {
                let Ok(other) = TcpStream::connect(&theirs) else { continue };
                let link = Link::accept(&as_listener, hello(listener), &pool, Instant(0));
                let near = End::new(link.expect("a link"), socket);
                let (node, says) = (NodeId(listener), hello(dialler));
                let link = Link::dial(&as_dialler, node, says, &pool, Instant(0));
                let far = End::new(link.expect("a link"), other);
                hand_on(near, far, &left);
            }
        });
        Meddler { cuts }
    }

    /// Takes a sector from the next answer with bytes of the node that listens.
    pub(crate) fn cut_next(&self) {
        self.cuts.store(1, Ordering::Release);
    }

    /// Whether that has come.
    pub(crate) fn has_cut(&self) -> bool {
        self.cuts.load(Ordering::Acquire) == 0
    }
}

/// What a node shows.
fn config(cluster: &Cluster, node: u16) -> Config {
    let address = cluster.address(node).parse().expect("an address");
    let identity =
        cluster.authority().issue(NodeId(node), &node_name(node), &[address], unix_now());
    let identity = identity.expect("a good name");
    Config::new(&identity, LinkMode::Encrypted, Revocations::default()).expect("a good identity")
}

/// Until one of both ends.
fn hand_on(mut near: End, mut far: End, cuts: &AtomicUsize) {
    let (mut there, mut back) = (Vec::new(), Vec::new());
    while near.turn(&mut there) && far.turn(&mut back) {
        if !near.ready || !far.ready {
            continue;
        }
        for said in there.drain(..) {
            far.say(said);
        }
        for (frame, mut bytes) in back.drain(..) {
            let answers = matches!(
                frame.message,
                Message::Shard {
                    message: ShardMessage::Data { .. } | ShardMessage::Forwarded { .. },
                    ..
                }
            );
            let cut = |left: usize| left.checked_sub(1);
            if answers
                && !bytes.is_empty()
                && cuts.fetch_update(Ordering::AcqRel, Ordering::Acquire, cut).is_ok()
            {
                bytes.truncate(bytes.len() - 512);
            }
            near.say((frame, bytes));
        }
    }
}

impl End {
    fn new(link: Link, socket: TcpStream) -> End {
        socket.set_read_timeout(Some(Duration::from_millis(2))).expect("a socket");
        End { link, socket, ready: false, frame: None }
    }

    /// Sends what is to be sent and takes what has come; whether it goes on.
    fn turn(&mut self, said: &mut Vec<Said>) -> bool {
        for piece in self.link.outgoing(usize::MAX) {
            if self.socket.write_all(piece.as_slice()).is_err() {
                return false;
            }
        }
        let mut bytes = [0; 64 << 10];
        let count = match self.socket.read(&mut bytes) {
            Ok(count) if count > 0 => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return true;
            }
            _ => return false,
        };
        self.take(&mut bytes[..count], said)
    }

    fn take(&mut self, mut input: &mut [u8], said: &mut Vec<Said>) -> bool {
        loop {
            if let LinkWant::Payload { .. } = self.link.want() {
                let (_, place) = self.frame.as_mut().expect("a payload has its frame");
                match self.link.payload(&mut input, place) {
                    Ok(true) => said.extend(self.frame.take()),
                    Ok(false) => return true,
                    Err(_) => return false,
                }
                continue;
            }
            match self.link.next(&mut input) {
                Ok(Some(LinkEvent::Ready { .. })) => self.ready = true,
                Ok(Some(LinkEvent::Frame(frame))) => {
                    let length = usize::try_from(frame.payload.length).expect("it fits");
                    let all = (frame, vec![0; length]);
                    if length > 0 { self.frame = Some(all) } else { said.push(all) }
                }
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn say(&mut self, (frame, bytes): Said) {
        match frame.message {
            Message::Node(message) => self.link.send_node(&message),
            Message::Member { resource, message } => self.link.send_member(resource, &message),
            Message::Shard { resource, shard, message } => {
                let payload = (!bytes.is_empty()).then(|| Piece::from(bytes));
                self.link.send_shard(resource, shard, &message, payload);
            }
        }
    }
}

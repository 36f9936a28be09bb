//! A node of the cluster that says what it wants, with the certificate that it was given.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base::{
    Ballot, Epoch, Incarnation, Instant, NodeId, Op, RequestId, ResourceId, Span, VolumeId, VoterId,
};
use link::{Config, Link, LinkEvent, LinkMode, LinkWant, Revocations};
use sys::{BufferPool, Piece};
use wire::{Hello, MemberMessage, Message, NodeMessage, ResourceLife, ShardMessage, WriteFlags};

use super::{Cluster, content, node_name, unix_now};

/// A node of the cluster that says what it wants, with the certificate that it was given.
pub(crate) struct Outsider {
    link: Link,
    socket: TcpStream,
    bytes: Vec<u8>,
    /// With what it shows itself, and signs.
    pub(crate) config: Config,
    /// What it was told, payload aside.
    heard: Vec<Message>,
}

impl Outsider {
    /// Dials `node` as node `own`.
    pub(crate) fn dial(cluster: &Cluster, own: u16, node: u16) -> Outsider {
        let address = cluster.address(own).parse().expect("an address");
        let authority = cluster.authority();
        let identity = authority
            .issue(NodeId(own), &node_name(own), &[address], unix_now())
            .expect("a good name");
        let config = Config::new(&identity, LinkMode::Encrypted, Revocations::default())
            .expect("a good identity");
        let hello = Hello {
            version_min: wire::VERSION_MIN,
            version_max: wire::VERSION_MAX,
            features_offered: 0,
            features_required: 0,
            cluster: authority.cluster(),
            node: NodeId(own),
            process: 7,
            stream: 0,
            streams: 1,
            unknown: Vec::new(),
        };
        let pool = BufferPool::new(4 << 20);
        let link = Link::dial(&config, NodeId(node), hello, &pool, Instant(0)).expect("a link");
        let socket = TcpStream::connect(format!("{}:7800", cluster.address(node)))
            .expect("the node listens");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
        let bytes = vec![0; 64 << 10];
        let mut outsider = Outsider { link, socket, bytes, config, heard: Vec::new() };
        while !outsider.turn() {}
        outsider
    }

    /// Says something as a node.
    pub(crate) fn say_as_node(&mut self, message: &NodeMessage) {
        self.link.send_node(message);
    }

    /// Asks for a read of a resource's first block, under this number.
    pub(crate) fn forward_read(&mut self, id: ResourceId, number: u64) {
        let span = Span::new(0, 8).expect("a short span");
        self.link.send_shard(id, 0, &forward(number, Op::Read, span), None);
    }

    /// Whether such a read was answered.
    pub(crate) fn was_answered(&self, number: u64) -> bool {
        self.heard.iter().any(|message| match message {
            Message::Shard { message: ShardMessage::Forwarded { id, .. }, .. } => id.0 == number,
            _ => false,
        })
    }

    /// The life in which the node told last that the resource runs there.
    pub(crate) fn life_there(&self, id: ResourceId) -> Option<u64> {
        let last = self.heard.iter().rev().find_map(|message| match message {
            Message::Node(NodeMessage::Resources { resources, .. }) => Some(resources),
            _ => None,
        });
        last?.iter().find(|entry| entry.resource == id).map(|entry| entry.life)
    }

    /// Answers whatever ping has come.
    pub(crate) fn answer_pings(&mut self) {
        let pings = self.heard.iter().filter_map(|message| match message {
            Message::Node(NodeMessage::Ping { number }) => Some(*number),
            _ => None,
        });
        for number in pings.collect::<Vec<u64>>() {
            self.link.send_node(&NodeMessage::Pong { number });
        }
    }

    /// Waits until the node sends it away.
    pub(crate) fn is_sent_away(&mut self) {
        loop {
            for piece in self.link.outgoing(usize::MAX) {
                // The node may have closed already.
                self.socket.write_all(piece.as_slice()).ok();
            }
            match self.socket.read(&mut self.bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
                Err(_) => return,
            }
        }
    }

    /// Sends what is to be sent and takes what has come; whether it was let in just now.
    fn turn(&mut self) -> bool {
        for piece in self.link.outgoing(usize::MAX) {
            self.socket.write_all(piece.as_slice()).expect("the node listens");
        }
        let count = match self.socket.read(&mut self.bytes) {
            Ok(0) => panic!("it was sent away: {}", self.link.ended()),
            Ok(count) => count,
            Err(_) => return false,
        };
        let mut input = &mut self.bytes[..count];
        let mut ready = false;
        loop {
            if let LinkWant::Payload { .. } = self.link.want() {
                if !self.link.skip(&mut input).expect("the node says what can be") {
                    return ready;
                }
                continue;
            }
            match self.link.next(&mut input).expect("the node says what can be") {
                Some(LinkEvent::Ready { .. }) => ready = true,
                Some(LinkEvent::Frame(frame)) => self.heard.push(frame.message),
                None => return ready,
            }
        }
    }

    /// Waits until the node has taken all that was said before.
    pub(crate) fn settle(&mut self, number: u64) {
        self.link.send_node(&NodeMessage::Ping { number });
        let pong = Message::Node(NodeMessage::Pong { number });
        while !self.heard.contains(&pong) {
            self.turn();
        }
    }

    /// Does all that a node of the resource may do: joins it, asks for votes, writes, reads.
    pub(crate) fn intrude(&mut self, id: ResourceId, own: u16) {
        let resources = vec![ResourceLife { resource: id, life: 9 }];
        self.link.send_node(&NodeMessage::Resources { resources, last: true });
        // It cannot know in which life the resource is there.
        let resources = (1..=8).map(|life| ResourceLife { resource: id, life });
        for entry in resources {
            self.link.send_node(&NodeMessage::Joined { resources: vec![entry] });
            self.say(id, own);
        }
        self.link.send_node(&NodeMessage::Describe { resource: id });
    }

    fn say(&mut self, id: ResourceId, own: u16) {
        let ballot = Ballot { round: 1 << 40, node: NodeId(own) };
        self.link.send_member(
            id,
            &MemberMessage::Hello {
                known: None,
                voter: VoterId(5),
                incarnation: Incarnation(5),
                lives: Vec::new(),
                seen: None,
                process: 7,
                attached: true,
                feature_level: wire::FEATURE_LEVEL,
            },
        );
        self.link.send_member(id, &MemberMessage::Prepare { ballot });
        let span = Span::new(0, 8).expect("a short span");
        let (volume, evil) = (VolumeId(0), content(666, 4096));
        let write = ShardMessage::Write {
            epoch: Epoch(1 << 40),
            sequence: 1,
            cut: 0,
            volume,
            span,
            flags: WriteFlags::default(),
            origin: None,
        };
        self.link.send_shard(id, 0, &write, Some(Piece::from(evil.clone())));
        for (number, op) in [(1, Op::Write), (2, Op::Read)] {
            let forward = forward(number, op, span);
            let payload = (op == Op::Write).then(|| Piece::from(evil.clone()));
            self.link.send_shard(id, 0, &forward, payload);
        }
    }

    /// Nothing that it heard is about the resource.
    pub(crate) fn assert_heard_nothing(&self, id: ResourceId) {
        for message in &self.heard {
            let names = match message {
                Message::Member { resource, .. } | Message::Shard { resource, .. } => {
                    *resource == id
                }
                Message::Node(NodeMessage::Resources { resources, .. })
                | Message::Node(NodeMessage::Joined { resources }) => {
                    resources.iter().any(|entry| entry.resource == id)
                }
                Message::Node(NodeMessage::Description { resource, .. }) => *resource == id,
                Message::Node(_) => false,
            };
            assert!(!names, "an outsider was told: {message:?}");
        }
    }
}

/// What a client's node asks of a primary.
fn forward(number: u64, op: Op, span: Span) -> ShardMessage {
    ShardMessage::Forward {
        id: RequestId(number),
        op,
        volume: VolumeId(0),
        span,
        fua: false,
        origin: None,
        asked: Epoch(0),
        first: false,
        history: 0,
        way: None,
        host: base::HostId(0),
    }
}

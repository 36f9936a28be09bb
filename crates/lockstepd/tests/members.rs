//! Who may speak about a resource: its nodes, and nobody else, whatever certificate they have.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base::{
    Ballot, Epoch, Incarnation, Instant, NodeId, Op, RequestId, ResourceId, Span, VolumeId, VoterId,
};
use harness::{Cluster, content, node_name, unix_now};
use link::{Config, Link, LinkEvent, LinkMode, LinkWant, Revocations};
use sys::{BufferPool, Piece};
use wire::admin::{Answer, Command, FileMember, FileNode, NodeStatus, Operation, ResourceFile};
use wire::{Hello, MemberMessage, Message, NodeMessage, ResourceLife, ShardMessage, WriteFlags};

const MIB: u64 = 1 << 20;

fn node_status(cluster: &Cluster, node: u16) -> NodeStatus {
    match cluster.ask(node, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => status,
        other => panic!("no status: {other:?}"),
    }
}

/// A node of the cluster that says what it wants, with the certificate that it was given.
struct Outsider {
    link: Link,
    socket: TcpStream,
    bytes: Vec<u8>,
    /// What it was told, payload aside.
    heard: Vec<Message>,
}

impl Outsider {
    /// Dials `node` as node `own`.
    fn dial(cluster: &Cluster, own: u16, node: u16) -> Outsider {
        let address = cluster.address(own).parse().unwrap();
        let authority = cluster.authority();
        let identity =
            authority.issue(NodeId(own), &node_name(own), &[address], unix_now()).unwrap();
        let config = Config::new(&identity, LinkMode::Encrypted, Revocations::default()).unwrap();
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
        let link = Link::dial(&config, NodeId(node), hello, &pool, Instant(0)).unwrap();
        let socket = TcpStream::connect(format!("{}:7800", cluster.address(node))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut outsider = Outsider { link, socket, bytes: vec![0; 64 << 10], heard: Vec::new() };
        while !outsider.turn() {}
        outsider
    }

    /// Sends what is to be sent and takes what has come; whether it was let in just now.
    fn turn(&mut self) -> bool {
        for piece in self.link.outgoing() {
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
    fn settle(&mut self, number: u64) {
        self.link.send_node(&NodeMessage::Ping { number });
        let pong = Message::Node(NodeMessage::Pong { number });
        while !self.heard.contains(&pong) {
            self.turn();
        }
    }

    /// Does all that a node of the resource may do: joins it, asks for votes, writes, reads.
    fn intrude(&mut self, id: ResourceId, own: u16) {
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
        let span = Span::new(0, 8).unwrap();
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
            let forward = ShardMessage::Forward {
                id: RequestId(number),
                op,
                volume,
                span,
                fua: false,
                origin: None,
                asked: Epoch(0),
                history: 0,
            };
            let payload = (op == Op::Write).then(|| Piece::from(evil.clone()));
            self.link.send_shard(id, 0, &forward, payload);
        }
    }

    /// Nothing that it heard is about the resource.
    fn assert_heard_nothing(&self, id: ResourceId) {
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

fn nodes_of(file: &mut ResourceFile, nodes: &[u16]) {
    file.nodes.retain(|node| nodes.contains(&node.id));
}

#[test]
fn a_node_that_is_not_of_a_resource_hears_nothing_of_it_and_changes_nothing() {
    let mut cluster = Cluster::new("outsider", 3);
    (2..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[2, 3]);
    nodes_of(&mut file, &[2, 3]);
    cluster.create(&file);
    let mut volume = cluster.open(2, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    cluster.wait_in_sync(2, "alpha", &[2, 3]);
    let before = cluster.status(2, "alpha");
    let id = ResourceId(file.id);
    let mut outsider = Outsider::dial(&cluster, 1, 2);
    outsider.intrude(id, 1);
    outsider.settle(1);
    // Once more, when whatever it had asked for would have been answered.
    volume.write(4096, &content(2, 4096)).unwrap();
    outsider.intrude(id, 1);
    outsider.settle(2);
    outsider.assert_heard_nothing(id);
    let after = cluster.status(2, "alpha");
    assert_eq!((after.epoch, &after.primary), (before.epoch, &before.primary));
    assert!(after.warnings.iter().any(|words| words.contains("n1 speaks about it")), "{after:?}");
    let status = node_status(&cluster, 2);
    assert_eq!(status.outsiders, 1, "{status:?}");
    assert_eq!(status.faults.peers, 0, "its certificate is good, and its frames can be");
    assert!(cluster.log(2).contains("node n1 speaks about it and is refused"));
    assert_eq!(volume.read(0, 4096).unwrap(), content(1, 4096));
    drop(volume);
    drop(outsider);
    cluster.wait_for("the outsider to be forgotten", || {
        let warnings = cluster.status(2, "alpha").warnings;
        if warnings.is_empty() { Ok(()) } else { Err(format!("{warnings:?}")) }
    });
    assert_eq!(cluster.dump(2, "alpha"), cluster.dump(3, "alpha"));
}

fn dismiss(cluster: &Cluster, asked: u16, node: u16) -> Result<Answer, String> {
    cluster.ask(asked, Command::ResourceDismiss { resource: "alpha".to_owned(), node })
}

fn operate(cluster: &Cluster, node: u16, operation: Operation) {
    let command = Command::Operation { resource: "alpha".to_owned(), operation };
    cluster.ask(node, command).expect("it is done");
}

#[test]
fn a_client_that_was_dismissed_is_an_outsider_until_it_is_admitted_again() {
    let mut cluster = Cluster::new("dismissed", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let file = cluster.resource("alpha", 16 * MIB, &[2, 3]);
    cluster.create(&file);
    let id = ResourceId(file.id);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("a client may write");
    let refused = dismiss(&cluster, 2, 3).unwrap_err();
    assert!(refused.contains("LS-0054"), "a member is no client: {refused}");
    operate(&cluster, 1, Operation::Promote {});
    let refused = dismiss(&cluster, 2, 1).unwrap_err();
    assert!(refused.contains("LS-0015"), "its clients use it: {refused}");
    drop(volume);
    operate(&cluster, 2, Operation::Promote {});
    for node in 2..=3 {
        dismiss(&cluster, node, 1).expect("it is a client");
        cluster.wait_for("the client to be told off", || {
            let warnings = cluster.status(node, "alpha").warnings;
            let named = warnings.iter().any(|words| words.contains("n1 speaks about it"));
            if named { Ok(()) } else { Err(format!("{warnings:?}")) }
        });
    }
    cluster.kill(1);
    let mut outsider = Outsider::dial(&cluster, 1, 2);
    outsider.intrude(id, 1);
    outsider.settle(1);
    outsider.assert_heard_nothing(id);
    drop(outsider);
    // What is dismissed stays so over a start.
    cluster.kill(2);
    cluster.start(2);
    cluster.wait_in_sync(2, "alpha", &[2, 3]);
    let mut outsider = Outsider::dial(&cluster, 1, 2);
    outsider.intrude(id, 1);
    outsider.settle(1);
    outsider.assert_heard_nothing(id);
    drop(outsider);
    cluster.start(1);
    let node = FileNode { id: 1, name: node_name(1), addresses: Vec::new() };
    for asked in 2..=3 {
        let (resource, node) = ("alpha".to_owned(), node.clone());
        cluster.ask(asked, Command::ResourceAdmit { resource, node }).expect("admitted");
    }
    let mut volume = cluster.open(1, "alpha");
    assert_eq!(volume.read(0, 4096).expect("it is a client again"), content(1, 4096));
}

#[test]
fn a_node_that_becomes_a_member_is_let_in_by_all_and_stays_a_client_afterwards() {
    let mut cluster = Cluster::new("newcomer", 3);
    cluster.change_settings(2, "name = \"n2\"", "name = \"n2\"\nthreads = 2");
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[2, 3]);
    file.shards = 2;
    nodes_of(&mut file, &[2, 3]);
    cluster.create(&file);
    let mut volume = cluster.open(2, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    let member = FileMember {
        node: 1,
        kind: wire::MemberKind::Replica,
        voter: Some(77),
        incarnation: Some(77),
        in_sync: Some(false),
        stores: Vec::new(),
    };
    let entry = FileNode { id: 1, name: node_name(1), addresses: Vec::new() };
    let mut joining = file.clone();
    joining.nodes.push(entry.clone());
    joining.members.push(member.clone());
    cluster.ask(1, Command::ResourceDefine { file: Box::new(joining) }).expect("defined");
    let resource = "alpha".to_owned();
    cluster.ask(1, Command::ResourceCreate { resource, force: false }).expect("created");
    let primary = cluster.status(2, "alpha").primary;
    assert_eq!(primary.as_deref(), Some("n2"));
    let member = Box::new(member);
    operate(&cluster, 2, Operation::AddReplica { member, node: Some(entry) });
    for node in 1..=3 {
        cluster.wait_in_sync(node, "alpha", &[1, 2, 3]);
    }
    let members = |asked: u16| {
        let path = cluster.home(asked).join("resources/alpha.toml");
        std::fs::read_to_string(path).unwrap().matches("[[members]]").count()
    };
    cluster.wait_for("what all files say", || {
        let counts = [1, 2, 3].map(members);
        if counts == [3; 3] { Ok(()) } else { Err(format!("{counts:?}")) }
    });
    operate(&cluster, 2, Operation::RemoveReplica { node: 1 });
    cluster.wait_for("what all files say afterwards", || {
        let counts = [1, 2, 3].map(members);
        if counts == [2; 3] { Ok(()) } else { Err(format!("{counts:?}")) }
    });
    for asked in 2..=3 {
        let resource = "alpha".to_owned();
        match cluster.ask(asked, Command::ResourceFile { resource }) {
            Ok(Answer::File(file)) => assert_eq!(file.node_name(NodeId(1)), Some("n1")),
            other => panic!("no file: {other:?}"),
        }
    }
    let mut client = cluster.open(1, "alpha");
    assert_eq!(client.read(0, 4096).expect("it is a client"), content(1, 4096));
}

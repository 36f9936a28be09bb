//! Peers that are not what they should be: of another version, or with frames that cannot be, though their
//! certificates are good.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use base::{ClusterId, Instant, NodeId};
use harness::meddler::Meddler;
use harness::{Cluster, PATIENCE, Volume, content, node_name, unix_now};
use link::{Config, HelloError, Link, LinkError, LinkMode, Revocations, Session};
use sys::{BufferPool, Piece};
use wire::Hello;
use wire::admin::{Answer, Command, NodeStatus};

const MIB: u64 = 1 << 20;

fn status(cluster: &Cluster, node: u16) -> NodeStatus {
    match cluster.ask(node, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => status,
        other => panic!("no status: {other:?}"),
    }
}

/// What a node of this number shows, with a good certificate.
fn config(cluster: &Cluster, node: u16) -> Config {
    let address = cluster.address(node).parse().unwrap();
    let identity =
        cluster.authority().issue(NodeId(node), &node_name(node), &[address], unix_now()).unwrap();
    Config::new(&identity, LinkMode::Encrypted, Revocations::default()).unwrap()
}

/// What a node of this number says that is of a version far ahead.
fn hello(cluster: ClusterId, node: u16) -> Hello {
    Hello {
        version_min: 40,
        version_max: 41,
        features_offered: 0,
        features_required: 0,
        cluster,
        node: NodeId(node),
        process: 7,
        stream: 0,
        streams: 1,
        unknown: Vec::new(),
    }
}

fn send(socket: &mut TcpStream, pieces: impl Iterator<Item = Piece>) {
    for piece in pieces {
        // The other end may have closed already.
        socket.write_all(piece.as_slice()).ok();
    }
}

/// Goes on until the connection ends, and says why it did.
fn converse(mut link: Link, mut socket: TcpStream) -> LinkError {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        send(&mut socket, link.outgoing(usize::MAX));
        let count = socket.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            return link.ended();
        }
        let mut input = &mut bytes[..count];
        while !input.is_empty() {
            match link.next(&mut input) {
                Ok(Some(event)) => panic!("they agree: {event:?}"),
                Ok(None) => {}
                Err(error) => {
                    send(&mut socket, link.outgoing(usize::MAX));
                    return error;
                }
            }
        }
    }
}

fn assert_other_version(error: &LinkError) {
    let seen = matches!(error, LinkError::Hello(HelloError::Version { local: (40, 41), .. }));
    assert!(seen, "{error}");
}

/// The node names the peer, and what to do.
fn wait_for_reason(cluster: &Cluster, node: u16, peer: u16) {
    cluster.wait_for("the node to say why it refuses the peer", || {
        let peers = status(cluster, node).peers;
        let peer = peers.iter().find(|one| one.node_id == peer).unwrap();
        let reason = peer.reason.clone().unwrap_or_default();
        assert!(!peer.connected, "{peer:?}");
        let named = reason.contains("40 to 41") && reason.contains("upgrade the older node");
        if named { Ok(()) } else { Err(reason) }
    });
}

#[test]
fn a_peer_of_another_version_is_refused_by_name_whoever_dials() {
    let mut cluster = Cluster::new("version", 3);
    cluster.start(2);
    let identity = cluster.authority().cluster();
    let pool = BufferPool::new(4 << 20);
    // Node 2 dials node 3, who listens here.
    let listener = TcpListener::bind(format!("{}:7800", cluster.address(3))).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let link = Link::accept(&config(&cluster, 3), hello(identity, 3), &pool, Instant(0)).unwrap();
    assert_other_version(&converse(link, socket));
    wait_for_reason(&cluster, 2, 3);
    // Node 1 dials node 2.
    let socket = TcpStream::connect(format!("{}:7800", cluster.address(2))).unwrap();
    let own = config(&cluster, 1);
    let link = Link::dial(&own, NodeId(2), hello(identity, 1), &pool, Instant(0)).unwrap();
    assert_other_version(&converse(link, socket));
    wait_for_reason(&cluster, 2, 1);
    assert_eq!(status(&cluster, 2).faults.peers, 0, "to be of another version is no fault");
}

#[test]
fn frames_that_cannot_be_close_a_known_peer_s_connection_and_are_counted() {
    let mut cluster = Cluster::new("bad-frames", 2);
    cluster.start(2);
    let mut file = cluster.resource("alpha", 16 * MIB, &[2]);
    file.nodes.retain(|node| node.id == 2);
    cluster.create(&file);
    let mut volume = cluster.open(2, "alpha");
    let own = config(&cluster, 1);
    let pool = BufferPool::new(4 << 20);
    for round in 1..=8 {
        let mut socket = TcpStream::connect(format!("{}:7800", cluster.address(2))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut session = Session::dial(&own, Some(NodeId(2)), &pool, Instant(0)).unwrap();
        let mut bytes = [0; 4096];
        let mut thrown = false;
        loop {
            if session.is_open() && !thrown {
                thrown = true;
                session.write(|out| out.extend(content(round, 300)));
            }
            send(&mut socket, session.outgoing(usize::MAX));
            let count = socket.read(&mut bytes).unwrap_or(0);
            let mut input = &mut bytes[..count];
            while !input.is_empty() && session.fill(&mut input).is_ok() {
                // What the node says is not listened to.
                session.consume(session.inside().len());
            }
            if count == 0 {
                break;
            }
        }
        assert!(thrown, "it was let in, by its certificate");
        cluster.wait_for("the fault to be counted", || {
            let count = status(&cluster, 2).faults.peers;
            if count == round { Ok(()) } else { Err(format!("{count}, not {round}")) }
        });
    }
    volume.write(0, &content(1, 4096)).expect("the node lives");
    assert_eq!(volume.read(0, 4096).expect("the node lives"), content(1, 4096));
}

#[test]
fn a_name_of_an_export_that_is_too_long_breaks_the_protocol_and_is_no_matter_of_certificates() {
    let mut cluster = Cluster::new("long-name", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1]));
    let address = format!("{}:10809", cluster.address(1));
    let mut socket = TcpStream::connect(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT");
    // NBD_OPT_GO: the length of the name, the name, and no further wishes.
    bytes.extend(7u32.to_be_bytes());
    bytes.extend((4 + 4097 + 2u32).to_be_bytes());
    bytes.extend(4097u32.to_be_bytes());
    bytes.extend([b'x'; 4097]);
    bytes.extend([0; 2]);
    socket.write_all(&bytes).unwrap();
    // Closed, or reset because it did not read all.
    socket.read_to_end(&mut Vec::new()).ok();
    cluster.wait_for("the fault to be counted", || match status(&cluster, 1).faults.nbd {
        1 => Ok(()),
        count => Err(format!("{count} faults")),
    });
    let warnings = status(&cluster, 1).warnings;
    assert!(!warnings.iter().any(|words| words.contains("certificate")), "{warnings:?}");
    let log = cluster.log(1);
    assert!(log.contains("more than opening an export takes"), "{log}");
    assert!(!log.contains("is it a Lockstep node"), "{log}");
    for (export, there) in
        [("alpha", true), ("alpha/0", true), ("alpha/00", false), ("alpha/+0", false)]
    {
        let opened = Volume::try_open(&address, export, None);
        assert_eq!(opened.is_ok(), there, "{export}");
    }
}

/// What a member gives of its disk is taken for what was asked of it: by a primary without a copy, and by a node that has the
/// primary read.
#[test]
fn a_member_that_answers_a_read_with_fewer_bytes_loses_its_session_and_is_asked_again() {
    let mut cluster = Cluster::new("short", 2);
    let meddler = Meddler::between(&cluster, 1, 2);
    for node in [1, 2] {
        cluster.add_settings(node, "threads = 1");
        cluster.start(node);
    }
    for (number, first) in [(1, 1), (2, 2)] {
        let name = format!("disk{number}");
        let mut file = cluster.resource(&name, 16 * MIB, &[2]);
        file.id = 0x1000 + number;
        cluster.create(&file);
        let bytes = content(number, 8192);
        let mut volume = cluster.open(first, &name);
        volume.write(0, &bytes).expect("written");
        let primary = cluster.status(2, &name).primary;
        assert_eq!(primary, Some(node_name(first)), "who opened it first");
        let mut reader = cluster.open(1, &name);
        meddler.cut_next();
        assert!(reader.read(0, 8192).expect("asked again") == bytes);
        assert!(meddler.has_cut(), "the answer came from the other node");
        assert_eq!(status(&cluster, 1).faults.peers, number);
        let log = cluster.log(1);
        let said = log.matches("answers a read with another number of bytes than").count();
        assert!(said > 0, "{log}");
    }
}

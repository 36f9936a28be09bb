//! NVMe hosts that have to prove who they are, with real processes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;

use client::NvmeIdentity;
use harness::nvme::{MIB, ONE, TWO, address, create, open, read, subsystem, write_table};
use harness::{Cluster, PATIENCE, content};
use nvme::{Digests, Hash, Host, HostEvent, Names, Prover, Secret, Seed};
use wire::admin::{Answer, Command};

/// A secret, as its text: of the same bytes 32 times.
fn secret(number: u8) -> String {
    Secret::new(&[number; 32], Some(Hash::Sha256)).unwrap().to_text()
}

fn parsed(number: u8) -> Secret {
    Secret::parse(&secret(number)).unwrap()
}

fn host(nqn: &str, own: u8, controller: Option<u8>) -> NvmeIdentity {
    NvmeIdentity {
        nqn: nqn.to_owned(),
        secret: Some(parsed(own)),
        controller_secret: controller.map(parsed),
        tls: None,
    }
}

/// Host one may reach everything and has secret 1, nodes prove to it with 2; host two may reach `beta` and has 3.
fn table() -> String {
    format!(
        "open = [\"gamma\"]\n[[hosts]]\nnqn = \"{ONE}\"\nsecret = \"{}\"\ncontroller_secret = \"{}\"\n\
         [[hosts]]\nnqn = \"{TWO}\"\nsecret = \"{}\"\nresources = [\"beta\"]\n",
        secret(1),
        secret(2),
        secret(3)
    )
}

fn cluster(name: &str, nodes: u16) -> Cluster {
    harness::nvme::cluster(name, nodes, Some(&table()))
}

/// No secret, and nothing that it is made of, is told by a node.
fn assert_says_no_secret(cluster: &Cluster, node: u16) {
    let mut told = cluster.log(node);
    for command in [Command::Status { resource: None }, Command::NodeStatus {}] {
        told += &format!("{:?}", cluster.ask(node, command));
    }
    for number in 1..=9 {
        let text = secret(number);
        let middle = &text[10..30];
        assert!(!told.contains(middle), "secret {number} is told");
        assert!(!told.contains(&format!("{number}, {number}, {number}, {number}")));
    }
}

#[test]
fn hosts_that_prove_who_they_are_use_a_volume_by_every_node() {
    let cluster = cluster("proof-good", 3);
    create(&cluster, &["alpha"], &[1, 2]);
    let mut one = open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    let mut two = open(&cluster, 2, "alpha", &host(ONE, 1, Some(2))).unwrap();
    let mut three = open(&cluster, 3, "alpha", &host(ONE, 1, Some(2))).unwrap();
    let bytes = content(1, 64 << 10);
    one.write(MIB, &bytes).unwrap();
    assert!(read(&mut two, MIB, 64 << 10) == bytes && read(&mut three, MIB, 64 << 10) == bytes);
    for node in 1..=3 {
        assert_says_no_secret(&cluster, node);
    }
}

#[test]
fn hosts_that_do_not_are_refused_and_everybody_else_is_served() {
    let cluster = cluster("proof-bad", 1);
    create(&cluster, &["alpha", "beta", "gamma"], &[1]);
    let mut good = open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    let bytes = content(1, 4096);
    good.write(0, &bytes).unwrap();
    let refused = |who: &NvmeIdentity, name: &str| {
        open(&cluster, 1, name, who).map(drop).unwrap_err().to_string()
    };
    assert!(refused(&host(ONE, 9, None), "alpha").contains("Refused(Failed)"), "a wrong secret");
    assert!(refused(&host(ONE, 3, None), "alpha").contains("Refused(Failed)"), "another host's");
    let silent = NvmeIdentity { nqn: ONE.to_owned(), ..NvmeIdentity::default() };
    assert!(refused(&silent, "alpha").contains("no secret"), "none");
    assert!(refused(&NvmeIdentity::default(), "alpha").contains("0x184"), "an unknown host");
    assert!(refused(&host("nqn.unknown", 1, None), "alpha").contains("0x184"));
    assert!(refused(&host(TWO, 3, None), "alpha").contains("0x184"), "not this resource");
    open(&cluster, 1, "beta", &host(TWO, 3, None)).unwrap();
    // The host wants a proof that the node cannot give, or gives with another secret.
    assert!(refused(&host(TWO, 3, Some(4)), "beta").contains("Refused(Failed)"));
    assert!(refused(&host(ONE, 1, Some(4)), "alpha").contains("Refuses(Failed)"));
    // Open to everybody.
    open(&cluster, 1, "gamma", &NvmeIdentity::default()).unwrap();
    assert!(read(&mut good, 0, 4096) == bytes, "its connection is not touched");
    let warnings = cluster.warnings(1).join("\n");
    assert!(warnings.contains("connections of NVMe hosts were refused"), "{warnings}");
    assert!(warnings.contains("NBD at"), "a way around is told: {warnings}");
    assert!(cluster.log(1).contains("has not proved who it is"));
    assert_says_no_secret(&cluster, 1);
}

/// A connection that has said who it is and nothing else.
struct Raw {
    stream: TcpStream,
    host: Host,
}

impl Raw {
    fn dial(cluster: &Cluster) -> Raw {
        let mut stream = TcpStream::connect(address(cluster, 1)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut send = Vec::new();
        let host = Host::new(Digests::default(), &mut send);
        stream.write_all(&send).unwrap();
        let mut raw = Raw { stream, host };
        assert_eq!(raw.next(), Some(HostEvent::Ready));
        raw
    }

    /// `None`: the node has closed.
    fn ask(&mut self, make: impl FnOnce(&mut Host, &mut Vec<u8>) -> u16) -> Option<(u16, u64)> {
        self.fetch(make).map(|(status, result, _)| (status, result))
    }

    /// The same of what is answered with bytes.
    fn fetch(
        &mut self,
        make: impl FnOnce(&mut Host, &mut Vec<u8>) -> u16,
    ) -> Option<(u16, u64, Vec<u8>)> {
        let (mut send, mut data) = (Vec::new(), Vec::new());
        make(&mut self.host, &mut send);
        self.stream.write_all(&send).ok()?;
        loop {
            match self.next()? {
                HostEvent::Data { bytes, .. } => data.extend_from_slice(&bytes),
                HostEvent::Ended { status, result, .. } => {
                    return Some((status.code(), result, data));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Proves by secret 1 that it is host one, who wants this; `None`: the node has closed.
    fn prove(&mut self, subsystem: &str) -> Option<()> {
        let names = Names { host: ONE.to_owned(), subsystem: subsystem.to_owned() };
        let mut prover = Prover::new(names, parsed(1), None, Seed::new([7; 32]));
        let begin = prover.begin();
        assert_eq!(self.ask(|host, send| host.prove(&begin, send))?.0, 0);
        let (_, _, told) = self.fetch(Host::await_proof)?;
        let reply = prover.reply(&told).unwrap();
        assert_eq!(self.ask(|host, send| host.prove(&reply, send))?.0, 0);
        let (_, _, told) = self.fetch(Host::await_proof)?;
        assert!(prover.finish(&told).unwrap().is_none());
        Some(())
    }

    /// `None`: the node has closed.
    fn next(&mut self) -> Option<HostEvent> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(event) = self.host.next_event().unwrap() {
                return Some(event);
            }
            let count = self.stream.read(&mut buffer).unwrap_or(0);
            if count == 0 {
                return None;
            }
            self.host.take(&buffer[..count]);
        }
    }
}

#[test]
fn before_its_proof_a_host_can_do_nothing_and_not_for_long() {
    let cluster = cluster("proof-slow", 1);
    create(&cluster, &["alpha"], &[1]);
    let name = subsystem(&cluster, "alpha");
    let mut raw = Raw::dial(&cluster);
    let connect = |queue, controller| {
        let name = name.clone();
        move |host: &mut Host, send: &mut Vec<u8>| {
            host.connect((&name, ONE), (queue, 32), controller, 0, send)
        }
    };
    let (status, result) = raw.ask(connect(0, None)).unwrap();
    assert_eq!((status, result >> 16), (0, 2), "a proof is required");
    assert_eq!(raw.ask(|host, send| host.configure(0x46_0001, send)).unwrap().0, 0x191);
    assert_eq!(raw.ask(|host, send| host.identify(1, 0, send)).unwrap().0, 0x191);
    // A table that asks for no less leaves it where it is.
    cluster.ask(1, Command::Reload {}).unwrap();
    assert_eq!(raw.ask(|host, send| host.identify(1, 0, send)).unwrap().0, 0x191);
    // Nobody may take a queue of a controller that is not switched on.
    let number = Some(u16::try_from(result & 0xffff).unwrap());
    assert_ne!(Raw::dial(&cluster).ask(connect(1, number)).unwrap().0, 0);
    assert_eq!(raw.next(), None, "it is sent away");
}

/// In the first word of a completion: the field that is to blame is one of the data.
const IN_DATA: u64 = 1 << 16;

#[test]
fn a_host_gets_no_queue_of_another_ones_controller() {
    let cluster = cluster("proof-foreign", 1);
    create(&cluster, &["alpha", "beta"], &[1]);
    let name = subsystem(&cluster, "beta");
    let mut other = open(&cluster, 1, "beta", &host(ONE, 1, None)).unwrap();
    let controller = Some(other.controller);
    let mut raw = Raw::dial(&cluster);
    let connect = |host: &mut Host, send: &mut Vec<u8>| {
        host.connect((&name, TWO), (2, 32), controller, 0, send)
    };
    assert_eq!(raw.ask(connect), Some((0x182, IN_DATA | 512)), "its name is to blame");
    let mut raw = Raw::dial(&cluster);
    let connect = |host: &mut Host, send: &mut Vec<u8>| {
        let id = host.connect((&name, ONE), (2, 32), controller, 0, send);
        // The first byte of the data behind the command is one of its identity.
        send[72] ^= 1;
        id
    };
    assert_eq!(raw.ask(connect), Some((0x182, IN_DATA)), "another host of that name");
    other.write(0, &content(1, 4096)).unwrap();
    // Who claims to be that host gets one, and can do nothing with it.
    let mut raw = Raw::dial(&cluster);
    let connect = |host: &mut Host, send: &mut Vec<u8>| {
        host.connect((&name, ONE), (2, 32), controller, 0, send)
    };
    assert_eq!(raw.ask(connect).unwrap().0, 0);
    assert_eq!(raw.ask(|host, send| host.read(1, (0, 1), 12, send)).unwrap().0, 0x191);
    assert_eq!(raw.next(), None, "it is sent away");
    other.write(0, &content(2, 4096)).unwrap();
}

#[test]
fn a_host_has_each_of_its_queues_once_and_no_more_than_it_was_granted() {
    let cluster = cluster("queues", 1);
    create(&cluster, &["gamma"], &[1]);
    let name = subsystem(&cluster, "gamma");
    let who = NvmeIdentity { secret: None, ..host(ONE, 1, None) };
    let mut volume = open(&cluster, 1, "gamma", &who).unwrap();
    let controller = Some(volume.controller);
    let connect = |subsystem: &str, queue: u16, controller: Option<u16>| {
        let subsystem = subsystem.to_owned();
        Raw::dial(&cluster).ask(move |host, send| {
            host.connect((&subsystem, ONE), (queue, 32), controller, 0, send)
        })
    };
    assert_eq!(connect(&name, 1, controller), Some((0x0c, 0)), "it has that one");
    assert_eq!(connect(&name, 2, controller).unwrap().0, 0);
    assert_eq!(connect(&name, 5, controller), Some((0x182, 42)), "four were granted");
    assert_eq!(connect(&name, 1, Some(0x7777)), Some((0x182, IN_DATA | 16)), "no controller");
    assert_eq!(connect("nqn.other", 0, None), Some((0x182, IN_DATA | 256)), "no subsystem");
    assert_eq!(connect(nvme::DISCOVERY_NQN, 1, controller), Some((0x182, 42)));
    volume.write(0, &content(1, 4096)).unwrap();
    assert!(read(&mut volume, 0, 4096) == content(1, 4096));
    volume.switch_off().unwrap();
    assert_eq!(connect(&name, 1, controller), Some((0x182, 42)), "it is off");
}

#[test]
fn of_two_that_prove_that_they_are_the_same_queue_the_first_one_is_it() {
    let cluster = cluster("proof-twice", 1);
    create(&cluster, &["alpha"], &[1]);
    let name = subsystem(&cluster, "alpha");
    let volume = open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    let mut both = [Raw::dial(&cluster), Raw::dial(&cluster)];
    for raw in &mut both {
        let connect = |host: &mut Host, send: &mut Vec<u8>| {
            host.connect((&name, ONE), (2, 32), Some(volume.controller), 0, send)
        };
        assert_eq!(raw.ask(connect).unwrap().0, 0, "nobody has it yet");
    }
    let [first, second] = &mut both;
    first.prove(&name).unwrap();
    second.prove(&name);
    let read = |host: &mut Host, send: &mut Vec<u8>| host.read(1, (0, 1), 12, send);
    assert_eq!(second.ask(read), None, "it is sent away");
    assert_eq!(first.ask(read).unwrap().0, 0);
}

#[test]
fn secrets_are_exchanged_while_hosts_go_on() {
    let cluster = cluster("proof-rotate", 1);
    create(&cluster, &["alpha"], &[1]);
    let reload = || cluster.ask(1, Command::Reload {});
    let mut before = open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    // Both will do.
    let both = table().replacen(
        &format!("secret = \"{}\"", secret(1)),
        &format!("secret = \"{}\"\nold_secret = \"{}\"", secret(5), secret(1)),
        1,
    );
    write_table(&cluster, 1, &both);
    assert!(matches!(reload(), Ok(Answer::Done {})), "it is read");
    before.write(0, &content(1, 4096)).unwrap();
    let mut after = open(&cluster, 1, "alpha", &host(ONE, 5, None)).unwrap();
    open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    // What cannot be read changes nothing, and is told without its words.
    let damaged = both.replacen(&secret(5)[12..16], "////", 1);
    write_table(&cluster, 1, &damaged);
    let told = reload().unwrap_err();
    assert!(
        told.contains("LS-0047") && told.contains("`secret` of host") && told.contains("damaged"),
        "{told}"
    );
    assert!(!told.contains(&secret(5)[16..30]), "{told}");
    open(&cluster, 1, "alpha", &host(ONE, 5, None)).unwrap();
    let mut late = open(&cluster, 1, "alpha", &host(ONE, 1, None)).unwrap();
    // The old one will not do any more: who proved by it and does not prove anew is sent away, and nobody else.
    write_table(&cluster, 1, &table().replacen(&secret(1), &secret(5), 1));
    reload().unwrap();
    assert!(open(&cluster, 1, "alpha", &host(ONE, 1, None)).is_err());
    let name = subsystem(&cluster, "alpha");
    late.write(0, &content(2, 4096)).unwrap();
    late.prove_again(&name, &host(ONE, 5, None)).unwrap();
    assert_eq!(before.into_queue().stream.read(&mut [0]).unwrap(), 0, "it is sent away");
    after.write(0, &content(3, 4096)).unwrap();
    late.write(0, &content(3, 4096)).unwrap();
    assert!(late.prove_again(&name, &host(ONE, 1, None)).is_err(), "the old one");
    // Who has no right any more goes at once.
    write_table(&cluster, 1, "");
    reload().unwrap();
    assert!(after.write(0, &content(4, 4096)).is_err());
    assert!(
        open(&cluster, 1, "alpha", &host(ONE, 5, None))
            .is_err_and(|error| error.to_string().contains("0x184"))
    );
    assert_says_no_secret(&cluster, 1);
}

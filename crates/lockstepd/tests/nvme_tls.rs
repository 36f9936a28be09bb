//! NVMe hosts that speak TLS by keys that they and the nodes have, with real processes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command as Program, Stdio};

use client::{NvmeIdentity, NvmeTls, NvmeVolume, discover_as};
use harness::nvme::{MIB, ONE, TWO, address, create, open, read, subsystem, write_table};
use harness::{Cluster, PATIENCE, content};
use nvme::{DISCOVERY_NQN, Derivation, Digests, Hash, Host, HostEvent, Secret, TlsKey, TlsNames};
use sys::{Psk, PskSession, PskTls};
use wire::admin::{Answer, Command};

const THREE: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000003";

/// A key of the same bytes, for the first suite or (from 100 on) the second.
fn key(number: u8) -> TlsKey {
    if number < 100 {
        TlsKey::new(&[number; 32], Some(Hash::Sha256)).unwrap()
    } else {
        TlsKey::new(&[number; 48], Some(Hash::Sha384)).unwrap()
    }
}

fn secret(number: u8) -> Secret {
    Secret::new(&[number; 32], Some(Hash::Sha256)).unwrap()
}

fn host(nqn: &str, number: u8) -> NvmeIdentity {
    let tls = NvmeTls { key: key(number), version: 1, derivation: Derivation::Labelled };
    NvmeIdentity { nqn: nqn.to_owned(), tls: Some(tls), ..NvmeIdentity::default() }
}

/// Host one has key 1; host two has key 102 and proves by secret 7 besides, for `beta` only; host three has a secret only.
fn table() -> String {
    let line = |nqn: &str, rest: &str| format!("[[hosts]]\nnqn = \"{nqn}\"\n{rest}\n");
    "open = [\"gamma\"]\n".to_owned()
        + &line(ONE, &format!("tls_key = \"{}\"", key(1).to_text()))
        + &line(
            TWO,
            &format!(
                "tls_key = \"{}\"\nsecret = \"{}\"\nresources = [\"beta\"]",
                key(102).to_text(),
                secret(7).to_text()
            ),
        )
        + &line(THREE, &format!("secret = \"{}\"", secret(8).to_text()))
}

/// `None`, and a word, where this machine has no OpenSSL 3.
fn cluster(name: &str, nodes: u16) -> Option<Cluster> {
    if let Err(why) = PskTls::new() {
        println!("NOT RUN: {why}");
        return None;
    }
    Some(harness::nvme::cluster(name, nodes, Some(&table())))
}

fn refused(cluster: &Cluster, name: &str, who: &NvmeIdentity) -> String {
    open(cluster, 1, name, who).map(drop).unwrap_err().to_string()
}

/// No key, and nothing that it is made of, is told by a node.
fn assert_says_no_key(cluster: &Cluster, node: u16) {
    let mut told = cluster.log(node);
    for command in [Command::Status { resource: None }, Command::NodeStatus {}] {
        told += &format!("{:?}", cluster.ask(node, command));
    }
    for number in [1, 2, 3, 9, 102] {
        let text = key(number).to_text();
        assert!(!told.contains(&text[16..36]), "key {number} is told");
        assert!(!told.contains(&format!("{number}, {number}, {number}, {number}")));
    }
}

#[test]
fn hosts_with_a_key_use_a_volume_by_every_node_inside_tls() {
    let Some(cluster) = cluster("tls-good", 3) else { return };
    create(&cluster, &["alpha", "beta"], &[1, 2]);
    let mut volumes: Vec<NvmeVolume> = Vec::new();
    for (node, version, derivation) in [
        (1, 1, Derivation::Labelled),
        (2, 0, Derivation::Labelled),
        (3, 1, Derivation::Bare),
        (1, 0, Derivation::Bare),
    ] {
        let mut who = host(ONE, 1);
        who.tls = Some(NvmeTls { key: key(1), version, derivation });
        volumes.push(open(&cluster, node, "alpha", &who).unwrap());
    }
    for at in 0..volumes.len() {
        let (long, short) = (content(at as u64, 1 << 20), content(9, 4096));
        volumes[at].write(MIB / 2, &long).unwrap();
        volumes[at].write(4 * MIB, &short).unwrap();
        volumes[at].flush().unwrap();
        for other in &mut volumes {
            assert!(read(other, MIB / 2, 1 << 20) == long);
            assert!(read(other, 4 * MIB, 4096) == short);
            assert!(other.compare(MIB / 2, &long).unwrap());
        }
    }
    let mut by_nbd = cluster.open(1, "alpha");
    assert!(by_nbd.read(4 * MIB, 4096).unwrap() == content(9, 4096), "NBD sees the same");
    // Who has to prove who it is does that inside, by the other suite.
    let mut two = host(TWO, 102);
    assert!(refused(&cluster, "beta", &two).contains("no secret"));
    two.secret = Some(secret(7));
    let mut beta = open(&cluster, 1, "beta", &two).unwrap();
    beta.write(0, &content(3, 64 << 10)).unwrap();
    assert!(read(&mut beta, 0, 64 << 10) == content(3, 64 << 10));
    for node in 1..=3 {
        assert_says_no_key(&cluster, node);
        assert!(cluster.log(node).contains("inside TLS"));
    }
}

#[test]
fn who_has_not_its_key_or_speaks_in_the_clear_is_refused_and_nobody_else_is_touched() {
    let Some(cluster) = cluster("tls-bad", 1) else { return };
    create(&cluster, &["alpha", "beta", "gamma"], &[1]);
    let mut good = open(&cluster, 1, "alpha", &host(ONE, 1)).unwrap();
    good.write(0, &content(1, 4096)).unwrap();
    refused(&cluster, "alpha", &host(ONE, 9));
    let mut wrong = host(ONE, 9);
    wrong.tls.as_mut().unwrap().version = 0;
    refused(&cluster, "alpha", &wrong);
    refused(&cluster, "alpha", &host(ONE, 102));
    refused(&cluster, "alpha", &host(TWO, 1));
    refused(&cluster, "alpha", &host("nqn.unknown", 1));
    // Of `beta` only: its key opens nothing else, whether it exists or not.
    let mut two = host(TWO, 102);
    two.secret = Some(secret(7));
    assert!(refused(&cluster, "alpha", &two).contains("0x184"));
    // In the clear, also with what would be a proof, and also where everybody else is let in.
    let clear = NvmeIdentity { nqn: ONE.to_owned(), ..NvmeIdentity::default() };
    assert!(refused(&cluster, "alpha", &clear).contains("0x184"));
    assert!(refused(&cluster, "gamma", &clear).contains("0x184"));
    two.tls = None;
    assert!(refused(&cluster, "beta", &two).contains("0x184"));
    open(&cluster, 1, "gamma", &NvmeIdentity::default()).unwrap();
    open(&cluster, 1, "gamma", &host(ONE, 1)).unwrap();
    // Who has no key goes on as before.
    let three =
        NvmeIdentity { nqn: THREE.to_owned(), secret: Some(secret(8)), ..NvmeIdentity::default() };
    open(&cluster, 1, "alpha", &three).unwrap();
    assert!(read(&mut good, 0, 4096) == content(1, 4096), "its connection is not touched");
    let warnings = cluster.warnings(1).join("\n");
    assert!(warnings.contains("connections of NVMe hosts were refused"), "{warnings}");
    let log = cluster.log(1);
    assert!(log.contains("another key than that of") && log.contains("no key of this identity"));
    assert!(log.contains("has to speak TLS by its key"), "{log}");
    assert_says_no_key(&cluster, 1);
}

/// A session with a key, and nothing said inside it.
fn meet(cluster: &Cluster, names: &TlsNames, number: u8) -> (TcpStream, PskSession) {
    let mut stream = TcpStream::connect(address(cluster, 1)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let psk = key(number).psk(names, 1, Derivation::Labelled).unwrap();
    let mut session = PskTls::new().unwrap().connect(&psk.identity, Psk::new(psk.key).unwrap());
    let mut buffer = [0; 4096];
    loop {
        session.read(&mut []).unwrap();
        send(&mut stream, &mut session);
        if session.is_open() {
            return (stream, session);
        }
        let count = stream.read(&mut buffer).unwrap();
        session.take(&buffer[..count]);
    }
}

fn send(stream: &mut TcpStream, session: &mut PskSession) {
    let mut records = vec![0; session.outgoing_bytes()];
    let count = session.outgoing(&mut records);
    stream.write_all(&records[..count]).unwrap();
}

/// The end of a connect command, inside a session.
fn connect(
    (stream, session): &mut (TcpStream, PskSession),
    (subsystem, host): (&str, &str),
) -> u16 {
    let mut said = Vec::new();
    let mut own = Host::new(Digests::default(), &mut said);
    let mut buffer = [0; 4096];
    loop {
        session.write(&said);
        said.clear();
        send(stream, session);
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it answers first");
        session.take(&buffer[..count]);
        let count = session.read(&mut buffer).unwrap();
        own.take(&buffer[..count]);
        match own.next_event().unwrap() {
            Some(HostEvent::Ready) => {
                own.connect((subsystem, host), (0, 32), None, 0, &mut said);
            }
            Some(HostEvent::Ended { status, .. }) => return status.code(),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

#[test]
fn a_key_opens_what_its_identity_names_and_nothing_else() {
    let Some(cluster) = cluster("tls-names", 1) else { return };
    create(&cluster, &["alpha", "beta", "gamma"], &[1]);
    let names = |host: &str, name: &str| {
        let subsystem =
            if name.is_empty() { DISCOVERY_NQN.to_owned() } else { subsystem(&cluster, name) };
        TlsNames { host: host.to_owned(), subsystem }
    };
    let alpha = names(ONE, "alpha");
    let ask = |names: &TlsNames, subsystem: &str, host: &str| {
        connect(&mut meet(&cluster, names, 1), (subsystem, host))
    };
    assert_eq!(ask(&alpha, &alpha.subsystem, ONE), 0);
    for other in ["beta", "gamma", ""] {
        let other = names(ONE, other).subsystem;
        assert_eq!(ask(&alpha, &other, ONE), 0x184, "another subsystem");
    }
    for host in [TWO, THREE, "nqn.unknown"] {
        assert_eq!(ask(&alpha, &alpha.subsystem, host), 0x184, "another host");
    }
    let discovery = names(ONE, "");
    assert_eq!(ask(&discovery, DISCOVERY_NQN, ONE), 0);
    assert_eq!(ask(&discovery, &alpha.subsystem, ONE), 0x184);
    assert!(cluster.log(1).contains("is not for"));
}

#[test]
fn discovery_tells_each_host_whether_it_has_to_speak_tls() {
    let Some(cluster) = cluster("tls-discovery", 1) else { return };
    create(&cluster, &["alpha"], &[1]);
    let told = |who: &NvmeIdentity| {
        let found = discover_as(who, address(&cluster, 1), PATIENCE).unwrap();
        let [(_, tls)] = found[..] else { panic!("{found:?}") };
        tls
    };
    let clear = NvmeIdentity { nqn: ONE.to_owned(), ..NvmeIdentity::default() };
    assert!(told(&clear) && told(&host(ONE, 1)));
    assert!(!told(&NvmeIdentity::default()));
    write_table(
        &cluster,
        1,
        &format!("[[hosts]]\nnqn = \"{ONE}\"\nsecret = \"{}\"\n", secret(1).to_text()),
    );
    cluster.ask(1, Command::Reload {}).unwrap();
    assert!(!told(&clear));
    // Nobody has a key any more.
    let error = discover_as(&host(ONE, 1), address(&cluster, 1), PATIENCE).unwrap_err();
    assert!(!error.to_string().is_empty());
    assert!(cluster.log(1).contains("no host has a key for it here"));
}

/// Until the node closes; gives what it said.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    // It may be reset while something of ours is unread.
    while let Ok(count) = stream.read(&mut buffer)
        && count > 0
    {
        said.extend_from_slice(&buffer[..count]);
    }
    said
}

#[test]
fn what_is_no_handshake_is_closed_and_half_a_one_does_not_stay() {
    let Some(cluster) = cluster("tls-garbage", 1) else { return };
    create(&cluster, &["alpha"], &[1]);
    let mut good = open(&cluster, 1, "alpha", &host(ONE, 1)).unwrap();
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address(&cluster, 1)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let silent = say(&[0x16]);
    let half = say(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    for garbage in
        [&[0x16; 64][..], &[0x16, 3, 1, 0, 4, 1, 0, 0, 0], &[0x16, 0xff, 0xff, 0xff, 0xff]]
    {
        assert!(until_closed(say(garbage)).len() < 16, "an alert at most");
    }
    // More than a handshake takes, whose record is not whole yet.
    let mut long = vec![0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb];
    long.resize(8 << 10, 0);
    assert!(until_closed(say(&long)).is_empty(), "it sent too much");
    // After the limit for those who are not known.
    for stream in [silent, half] {
        assert!(until_closed(stream).is_empty());
    }
    // A session that asks for nothing is not known either.
    let names = TlsNames { host: ONE.to_owned(), subsystem: subsystem(&cluster, "alpha") };
    let (stream, _session) = meet(&cluster, &names, 1);
    until_closed(stream);
    good.write(0, &content(1, 4096)).unwrap();
    let log = cluster.log(1);
    assert!(log.contains("more was sent than making a session takes"), "{log}");
}

#[test]
fn keys_are_exchanged_while_hosts_go_on() {
    let Some(cluster) = cluster("tls-rotate", 1) else { return };
    create(&cluster, &["alpha"], &[1]);
    let reload = || cluster.ask(1, Command::Reload {});
    let row = |lines: &str| format!("[[hosts]]\nnqn = \"{ONE}\"\n{lines}");
    let mut before = open(&cluster, 1, "alpha", &host(ONE, 1)).unwrap();
    let both =
        format!("tls_key = \"{}\"\nold_tls_key = \"{}\"\n", key(3).to_text(), key(1).to_text());
    write_table(&cluster, 1, &row(&both));
    assert!(matches!(reload(), Ok(Answer::Done {})), "it is read");
    before.write(0, &content(1, 4096)).unwrap();
    let mut after = open(&cluster, 1, "alpha", &host(ONE, 3)).unwrap();
    // By the identity that both keys have, too.
    for number in [1, 3] {
        let mut who = host(ONE, number);
        who.tls.as_mut().unwrap().version = 0;
        open(&cluster, 1, "alpha", &who).unwrap();
    }
    // What cannot be read changes nothing, and is told without its words.
    write_table(&cluster, 1, &row(&both.replacen(&key(3).to_text()[18..22], "////", 1)));
    let told = reload().unwrap_err();
    assert!(
        told.contains("LS-0047") && told.contains("`tls_key` of host") && told.contains("damaged"),
        "{told}"
    );
    assert!(!told.contains(&key(3).to_text()[24..40]), "{told}");
    open(&cluster, 1, "alpha", &host(ONE, 1)).unwrap();
    // The old one will not do any more: who spoke by it is sent away, and nobody else.
    write_table(&cluster, 1, &row(&format!("tls_key = \"{}\"\n", key(3).to_text())));
    reload().unwrap();
    assert!(before.write(0, &content(2, 4096)).is_err());
    after.write(0, &content(3, 4096)).unwrap();
    assert!(open(&cluster, 1, "alpha", &host(ONE, 1)).is_err());
    // A host that spoke in the clear and gets a key has to come back with it.
    let own = format!("secret = \"{}\"\n", secret(5).to_text());
    write_table(&cluster, 1, &row(&own));
    reload().unwrap();
    assert!(after.write(0, &content(4, 4096)).is_err(), "its key is gone");
    let clear =
        NvmeIdentity { nqn: ONE.to_owned(), secret: Some(secret(5)), ..NvmeIdentity::default() };
    let mut clear = open(&cluster, 1, "alpha", &clear).unwrap();
    write_table(&cluster, 1, &row(&format!("{own}tls_key = \"{}\"\n", key(102).to_text())));
    reload().unwrap();
    assert!(clear.write(0, &content(5, 4096)).is_err());
    let mut who = host(ONE, 102);
    who.secret = Some(secret(5));
    open(&cluster, 1, "alpha", &who).unwrap().write(0, &content(6, 4096)).unwrap();
    assert_says_no_key(&cluster, 1);
}

/// Another program's TLS: what it says of the session, `None` if it is not on this machine.
fn by_openssl(cluster: &Cluster, identity: &str, bytes: &[u8], more: &[&str]) -> Option<String> {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut program = Program::new("timeout");
    program.args(["20", "openssl", "s_client", "-connect", &address(cluster, 1).to_string()]);
    program.args(["-psk", &hex, "-psk_identity", identity]).args(more);
    let output = program.stdin(Stdio::null()).output().ok()?;
    if output.status.code() == Some(127) {
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn openssl_makes_a_session_by_tls_1_3_and_by_nothing_else() {
    let Some(cluster) = cluster("tls-openssl", 1) else { return };
    create(&cluster, &["alpha"], &[1]);
    let names = TlsNames { host: ONE.to_owned(), subsystem: subsystem(&cluster, "alpha") };
    let psk = key(1).psk(&names, 1, Derivation::Labelled).unwrap();
    let good = |more: &[&str]| {
        let told = by_openssl(&cluster, &psk.identity, &psk.key, more)?;
        assert!(told.contains("Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"), "{told}");
        Some(told)
    };
    if good(&["-tls1_3"]).is_none() {
        return println!("NOT RUN: no openssl on this machine");
    }
    // It offers first what is not taken here, and is asked again.
    assert!(good(&["-tls1_3", "-groups", "P-521:P-384"]).unwrap().contains("secp384r1"));
    let refuses = |key: &[u8], more: &[&str]| {
        let told = by_openssl(&cluster, &psk.identity, key, more).unwrap();
        assert!(told.contains("Cipher is (NONE)"), "{told}");
    };
    refuses(&[9; 32], &["-tls1_3"]);
    refuses(&[9; 32], &["-tls1_3", "-groups", "P-521:P-384"]);
    refuses(&psk.key, &["-tls1_2"]);
    refuses(&psk.key, &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]);
    // An exchange that takes long.
    refuses(&psk.key, &["-tls1_3", "-groups", "ffdhe8192"]);
}

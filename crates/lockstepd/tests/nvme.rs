//! Volumes over NVMe/TCP, with real processes: discovery, reads and writes by every node, paths that change.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use client::{NvmeDiscovery, NvmeVolume, discover};
use harness::nvme::{MIB, address, read};
use harness::{Cluster, PATIENCE, content};

fn cluster(name: &str, nodes: u16) -> Cluster {
    harness::nvme::cluster(name, nodes, None)
}

/// The subsystem of the only resource.
fn subsystem(cluster: &Cluster, node: u16) -> String {
    let names = discover(address(cluster, node), PATIENCE).unwrap();
    let [name] = &names[..] else { panic!("{names:?}") };
    name.clone()
}

fn open(cluster: &Cluster, node: u16, namespace: u32) -> NvmeVolume {
    let name = subsystem(cluster, node);
    NvmeVolume::open(address(cluster, node), &name, namespace, node == 2, PATIENCE).unwrap()
}

fn wait_for_access(volume: &mut NvmeVolume, expected: u8) {
    let deadline = Instant::now() + PATIENCE;
    while volume.access().unwrap() != expected {
        assert!(Instant::now() < deadline, "the path is worth {}", volume.access().unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn a_volume_is_the_same_through_every_node() {
    let cluster = cluster("nvme-same", 3);
    let mut file = cluster.resource("alpha", 8 * MIB, &[1, 2]);
    file.volumes.push(wire::admin::FileVolume { index: 1, ..file.volumes[0].clone() });
    cluster.create(&file);
    assert_eq!(subsystem(&cluster, 1), subsystem(&cluster, 2));
    let (mut one, mut two) = (open(&cluster, 1, 1), open(&cluster, 2, 1));
    assert_eq!((one.size_bytes, two.size_bytes), (8 * MIB, 8 * MIB));
    assert_eq!(one.nguid, two.nguid);
    assert_ne!(one.controller, two.controller, "hosts refuse two of one number");
    let mut other = open(&cluster, 2, 2);
    assert_ne!(other.nguid, one.nguid);
    let (long, short) = (content(1, 1 << 20), content(2, 4096));
    one.write(MIB / 2, &long).unwrap();
    two.write(4 * MIB, &short).unwrap();
    other.write(MIB / 2, &short).unwrap();
    one.flush().unwrap();
    assert!(read(&mut two, MIB / 2, 1 << 20) == long);
    assert!(read(&mut one, 4 * MIB, 4096) == short);
    assert!(read(&mut other, MIB / 2, 4096) == short);
    for path in [&mut one, &mut two] {
        assert!(path.compare(MIB / 2, &long).unwrap() && path.compare(4 * MIB, &short).unwrap());
        assert!(!path.compare(MIB / 2 + 4096, &long).unwrap());
        assert!(!path.compare(4 * MIB - 4096, &short).unwrap());
        path.verify(0, usize::try_from(8 * MIB).unwrap()).unwrap();
    }
    one.deallocate(MIB / 2, 1 << 19).unwrap();
    assert!(read(&mut two, MIB / 2, 1 << 19).iter().all(|&byte| byte == 0));
    assert!(read(&mut two, MIB, 1 << 19) == long[1 << 19..]);
    let mut by_nbd = cluster.open(1, "alpha");
    assert!(by_nbd.read(MIB, 1 << 19).unwrap() == long[1 << 19..], "NBD sees the same");
    let deadline = Instant::now() + PATIENCE;
    let is_one_best = |paths: [u8; 2]| paths == [1, 2] || paths == [2, 1];
    while !is_one_best([one.access().unwrap(), two.access().unwrap()]) {
        assert!(Instant::now() < deadline, "one path is the best");
    }
}

#[test]
fn what_was_answered_is_there_when_the_node_of_the_primary_is_killed() {
    let mut cluster = cluster("nvme-kill", 3);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 2, 3]));
    let mut first = open(&cluster, 1, 1);
    let bytes = content(3, 64 << 10);
    first.write(MIB, &bytes).unwrap();
    wait_for_access(&mut first, 1);
    let mut second = open(&cluster, 2, 1);
    wait_for_access(&mut second, 2);
    second.ask_for_path_changes().unwrap();
    cluster.kill(1);
    assert!(first.flush().is_err(), "its path is gone");
    assert!(read(&mut second, MIB, 64 << 10) == bytes);
    second.write(2 * MIB, &bytes).unwrap();
    // It is told, and need not ask.
    while second.await_path_change().unwrap() != 1 {}
}

#[test]
fn who_only_asks_what_there_is_leaves_numbers_for_hosts() {
    let cluster = cluster("nvme-many", 1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let name = subsystem(&cluster, 1);
    let asks: Vec<_> =
        (0..300).map(|_| NvmeDiscovery::open(address(&cluster, 1), PATIENCE)).collect();
    let count = asks.iter().filter(|one| one.is_ok()).count();
    assert_eq!(count, 32, "others are told that it is busy");
    NvmeVolume::open(address(&cluster, 1), &name, 1, false, PATIENCE).unwrap();
    drop(asks);
    cluster.wait_for("they are gone", || {
        discover(address(&cluster, 1), PATIENCE).map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn strangers_and_what_is_not_there_are_refused() {
    let cluster = cluster("nvme-refuse", 1);
    assert_eq!(discover(address(&cluster, 1), PATIENCE).unwrap(), Vec::<String>::new());
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let name = subsystem(&cluster, 1);
    let open = |name: &str, namespace| {
        NvmeVolume::open(address(&cluster, 1), name, namespace, false, PATIENCE).map(drop)
    };
    open(&name, 1).unwrap();
    assert!(open(&name, 2).unwrap_err().to_string().contains("no such namespace"));
    let other = name.replace("alpha", "beta");
    assert!(open(&other, 1).unwrap_err().to_string().contains("0x182"));
    // Another protocol.
    let mut stream = TcpStream::connect(address(&cluster, 1)).unwrap();
    std::io::Write::write_all(&mut stream, &[0xff; 128]).unwrap();
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
    assert_eq!(answer[0], 3, "it is told why");
    open(&name, 1).unwrap();
}

/// Who asks one node hears of the others, as far as its settings say where they are.
#[test]
fn a_node_tells_where_others_serve_what_they_have() {
    let mut cluster = Cluster::new("nvme-elsewhere", 3);
    for node in 1..=3 {
        cluster.add_settings(node, &format!("nvme = \"{}\"", address(&cluster, node)));
    }
    cluster.add_to_peer(1, 2, &format!("nvme = \"{}\"", address(&cluster, 2)));
    cluster.add_to_peer(
        1,
        3,
        &format!("nvme = \"{}\"\nnbd = \"127.0.0.9:10809\"", address(&cluster, 3)),
    );
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 2, 3]));
    let mut file = cluster.resource("beta", 8 * MIB, &[1]);
    file.id += 1;
    cluster.create(&file);
    let mut host = NvmeDiscovery::open(address(&cluster, 1), PATIENCE).unwrap();
    let (_, mut places) = host.places().unwrap();
    places.sort();
    let of = |name: &str| -> Vec<&str> {
        let named = places.iter().filter(|(nqn, _)| nqn.ends_with(name));
        named.map(|(_, address)| address.as_str()).collect()
    };
    let all = [1, 2, 3].map(|node| address(&cluster, node).to_string());
    assert_eq!(of(":alpha"), all);
    assert_eq!(of(":beta"), all[..1], "the others have nothing of it");
    let nqn = &places[0].0;
    let told = &cluster.status(1, "alpha").volumes[0].elsewhere;
    let expected = [
        format!("nvme+tcp://{}/{nqn}/1", all[1]),
        format!("nvme+tcp://{}/{nqn}/1", all[2]),
        "nbd://127.0.0.9:10809/alpha".to_owned(),
    ];
    assert_eq!(told[..], expected);
    assert_eq!(cluster.status(2, "alpha").volumes[0].elsewhere, Vec::<String>::new());
}

#[test]
fn hosts_that_stay_with_the_discovery_service_are_told_what_there_is_since() {
    let cluster = cluster("nvme-since", 1);
    let open = |_| NvmeDiscovery::open(address(&cluster, 1), PATIENCE).unwrap();
    let mut hosts = [0, 1].map(open);
    let mut count = |host: &mut NvmeDiscovery| host.places().unwrap().1.len();
    assert_eq!(hosts.each_mut().map(&mut count), [0, 0]);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    cluster.wait_for("both to hear of it", || match hosts.each_mut().map(&mut count) {
        [1, 1] => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Above the ports that the system gives to clients, and others for each process: the first or the second.
fn free_port(number: u32) -> u32 {
    61_000 + (2 * std::process::id() + number) % 4000
}

#[test]
fn a_node_that_listens_everywhere_tells_each_host_the_address_that_it_came_by() {
    let mut cluster = Cluster::new("nvme-everywhere", 1);
    let port = free_port(0);
    cluster.add_settings(1, &format!("nvme = \"0.0.0.0:{port}\"\ninsecure = true"));
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    // Two addresses of its machine, and peers know the first.
    let addresses = [1, 9].map(|number| format!("{}:{port}", cluster.address(number)));
    let mut hosts = addresses.each_ref().map(|address| {
        let host = NvmeDiscovery::open(address.parse().unwrap(), PATIENCE).unwrap();
        (address, host)
    });
    let mut generations = Vec::new();
    for (address, host) in &mut hosts {
        let (generation, places) = host.places().unwrap();
        let [(name, told)] = &places[..] else { panic!("{places:?}") };
        assert_eq!(told, *address);
        let mut volume = NvmeVolume::open(told.parse().unwrap(), name, 1, false, PATIENCE).unwrap();
        volume.write(0, &content(9, 4096)).unwrap();
        generations.push(generation);
    }
    assert_eq!(generations[0], generations[1], "that they came by others is no change");
}

/// A socket for IPv6 takes IPv4 as well.
#[test]
fn a_node_that_listens_everywhere_by_ipv6_tells_a_host_of_ipv4_its_own_address() {
    if TcpListener::bind("[::]:0").is_err() {
        return println!("NOT RUN: there is no IPv6 here");
    }
    let mut cluster = Cluster::new("nvme-everywhere-6", 1);
    let port = free_port(1);
    cluster.add_settings(1, &format!("nvme = \"[::]:{port}\"\ninsecure = true"));
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    for address in [format!("{}:{port}", cluster.address(1)), format!("[::1]:{port}")] {
        let mut host = match NvmeDiscovery::open(address.parse().unwrap(), PATIENCE) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                println!("NOT RUN: {address} is no address here");
                continue;
            }
            host => host.unwrap(),
        };
        let (_, places) = host.places().unwrap();
        assert_eq!(places[0].1, address);
    }
}

fn signal(cluster: &Cluster, node: u16, signal: &str) {
    let process = cluster.process(node).to_string();
    assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
}

/// A host with two paths: the node of one stands still while a write is in its socket, so the host writes by the other one.
#[test]
fn what_a_node_finds_in_its_sockets_after_it_stood_still_is_not_carried_out() {
    let cluster = cluster("nvme-freeze", 3);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 3]));
    let mut first = open(&cluster, 1, 1);
    let (older, newer) = (content(4, 4096), content(5, 4096));
    first.write(0, &content(6, 4096)).unwrap();
    wait_for_access(&mut first, 1);
    let mut second = open(&cluster, 2, 1);
    wait_for_access(&mut second, 2);
    signal(&cluster, 2, "-STOP");
    let held = std::thread::spawn(move || second.write(0, &older));
    // So long it stands still; what it may be for is in docs/design/0011-nvme-tcp.md.
    std::thread::sleep(Duration::from_millis(1500));
    first.write(0, &newer).unwrap();
    signal(&cluster, 2, "-CONT");
    assert!(held.join().unwrap().is_err(), "its connection is closed unread");
    assert!(read(&mut first, 0, 4096) == newer);
    assert!(read(&mut open(&cluster, 2, 1), 0, 4096) == newer);
}

#[test]
fn what_is_asked_of_a_path_without_quorum_is_to_be_asked_by_another_at_once() {
    let mut cluster = cluster("nvme-quorum", 3);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 2, 3]));
    let (mut watched, mut used) = (open(&cluster, 1, 1), open(&cluster, 1, 1));
    used.write(0, &content(6, 4096)).unwrap();
    wait_for_access(&mut watched, 1);
    cluster.kill(2);
    cluster.kill(3);
    // It waits here when the path becomes inaccessible.
    assert!(!used.try_write(0, &content(7, 4096)).unwrap(), "its host is to ask elsewhere");
    wait_for_access(&mut watched, 3);
    // A host may connect to such a path, and looks at it as at others.
    let mut late = open(&cluster, 1, 1);
    assert_eq!(late.access().unwrap(), 3);
    let begun = Instant::now();
    for path in [&mut used, &mut late] {
        for length in [4096, 64 << 10] {
            assert!(!path.try_write(0, &content(8, length)).unwrap());
        }
        path.set_patience(Duration::ZERO);
        let error = path.read(0, &mut [0; 4096]).unwrap_err();
        assert!(error.to_string().contains("0x302"), "{error}");
        assert!(path.flush().unwrap_err().to_string().contains("0x302"));
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "nothing waits");
    cluster.start(2);
    wait_until_it_is_used(&cluster, &mut watched);
    for path in [&mut used, &mut late] {
        path.set_patience(PATIENCE);
    }
    let is = read(&mut used, 0, 4096);
    assert!(is == content(6, 4096) || is == content(7, 4096), "none of the others was carried out");
    used.write(0, &content(9, 4096)).unwrap();
    assert!(read(&mut late, 0, 4096) == content(9, 4096));
}

/// Waits until one of two paths is the best.
fn wait_until_it_is_used(cluster: &Cluster, watched: &mut NvmeVolume) {
    cluster.wait_for("one path is the best, and the other one may be used", || {
        read(watched, 0, 4096);
        let paths = [watched.access(), open(cluster, 2, 1).access()].map(Result::unwrap);
        if [[1, 2], [2, 1]].contains(&paths) { Ok(()) } else { Err(format!("{paths:?}")) }
    });
}

/// A node that forwards has none, and what it took is with the primary's node, which stands still.
#[test]
fn what_a_path_without_quorum_gave_up_is_not_carried_out_after_what_its_host_asks_by_another() {
    let cluster = cluster("nvme-given-up", 3);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 2, 3]));
    let mut first = open(&cluster, 1, 1);
    first.write(0, &content(6, 4096)).unwrap();
    wait_for_access(&mut first, 1);
    let mut second = open(&cluster, 2, 1);
    wait_for_access(&mut second, 2);
    signal(&cluster, 3, "-STOP");
    signal(&cluster, 1, "-STOP");
    let given_up = !second.try_write(0, &content(7, 4096)).unwrap();
    assert!(given_up, "its host is to ask elsewhere");
    assert_eq!(second.access().unwrap(), 3);
    signal(&cluster, 3, "-CONT");
    let mut third = open(&cluster, 3, 1);
    cluster.wait_for("it is asked anew, and newer things", || {
        let written = third.try_write(0, &content(8, 4096)).map_err(|error| error.to_string())?;
        if written { Ok(()) } else { Err("not yet".to_owned()) }
    });
    signal(&cluster, 1, "-CONT");
    cluster.wait_in_sync(3, "alpha", &[1, 2, 3]);
    for path in [&mut second, &mut third] {
        assert!(read(path, 0, 4096) == content(8, 4096), "an older one came later");
    }
}

/// How often a node has given up a connection because its host was silent.
fn given_up(cluster: &Cluster, node: u16) -> usize {
    cluster.log(node).matches("went: the host was silent for longer than it said").count()
}

#[test]
fn a_host_that_is_silent_for_longer_than_it_said_is_given_up_with_all_its_queues() {
    let cluster = cluster("nvme-silent", 1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let (mut silent, mut other) = (open(&cluster, 1, 1), open(&cluster, 1, 1));
    silent.write(0, &content(6, 4096)).unwrap();
    silent.promise(Duration::from_millis(1)).unwrap();
    // It only waits to be told of something; the node ends the connection.
    let error = silent.await_notice().unwrap_err();
    let ended = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(ended.contains(&error.kind()), "{error}");
    cluster.wait_for("both are given up for that reason", || match given_up(&cluster, 1) {
        2 => Ok(()),
        count => Err(format!("{count} were")),
    });
    let error = silent.write(0, &content(7, 4096)).unwrap_err();
    assert!(ended.contains(&error.kind()), "its queue for I/O is gone, too: {error}");
    // Who promised nothing may be silent.
    assert!(read(&mut other, 0, 4096) == content(6, 4096));
    assert!(other.access().is_ok());
}

/// The host may have tried elsewhere by then.
#[test]
fn what_a_host_sent_that_was_silent_for_too_long_is_not_carried_out() {
    let mut cluster = Cluster::new("nvme-late", 1);
    // Other threads hear of what the host says only a moment later.
    cluster.add_settings(1, &format!("nvme = \"{}\"\nthreads = 1", address(&cluster, 1)));
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let (mut late, mut other) = (open(&cluster, 1, 1), open(&cluster, 1, 1));
    late.write(0, &content(6, 4096)).unwrap();
    late.promise(Duration::from_millis(200)).unwrap();
    signal(&cluster, 1, "-STOP");
    let held = std::thread::spawn(move || late.write(0, &content(7, 4096)));
    // Longer than the host said, and shorter than what ends all connections.
    std::thread::sleep(Duration::from_millis(500));
    signal(&cluster, 1, "-CONT");
    assert!(held.join().unwrap().is_err(), "its connection is closed unread");
    assert!(read(&mut other, 0, 4096) == content(6, 4096));
}

#[test]
fn a_controller_that_is_switched_off_has_no_queues() {
    let cluster = cluster("nvme-off", 1);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1]));
    let mut volume = open(&cluster, 1, 1);
    volume.write(0, &content(7, 4096)).unwrap();
    volume.switch_off().unwrap();
    assert!(volume.write(0, &content(8, 4096)).is_err());
    assert!(read(&mut open(&cluster, 1, 1), 0, 4096) == content(7, 4096));
}

/// The node of the primary stands still; what another node took from its host meanwhile waits for a primary.
#[test]
fn a_write_that_was_held_for_want_of_a_primary_is_not_carried_out_by_the_next() {
    let cluster = cluster("nvme-held", 3);
    cluster.create(&cluster.resource("alpha", 8 * MIB, &[1, 2, 3]));
    let mut first = open(&cluster, 1, 1);
    first.write(0, &content(6, 4096)).unwrap();
    wait_for_access(&mut first, 1);
    let (mut second, mut third) = (open(&cluster, 2, 1), open(&cluster, 3, 1));
    wait_for_access(&mut second, 2);
    signal(&cluster, 1, "-STOP");
    let (older, newer) = (content(4, 4096), content(5, 4096));
    let held = std::thread::spawn(move || second.try_write(0, &older).map(|taken| (taken, second)));
    third.write(4096, &newer).unwrap();
    let (taken, mut second) = held.join().unwrap().unwrap();
    assert!(!taken, "its host may have asked elsewhere");
    assert!(read(&mut second, 0, 4096) == content(6, 4096));
    second.write(0, &newer).unwrap();
    assert!(read(&mut third, 0, 8192) == [newer.clone(), newer].concat());
    signal(&cluster, 1, "-CONT");
}

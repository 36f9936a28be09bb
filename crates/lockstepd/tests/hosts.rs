//! What hosts may lack, and what they may have twice: io_uring, and ways to each other.

mod harness;

use harness::refusing::Refusing;
use harness::{Cluster, content};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NODE: &str = env!("CARGO_BIN_EXE_lockstepd");

/// All three copies hold the same.
fn assert_equal(cluster: &Cluster) {
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
}

#[test]
fn nodes_without_io_uring_do_all_the_same() {
    let mut cluster = Cluster::new("epoll", 3);
    cluster.add_settings(2, "threads = 2");
    cluster.start_with(1, "uring");
    for node in [2, 3] {
        cluster.start_with(node, "epoll");
        assert!(cluster.log(node).contains("epoll"), "which way was taken is said in the log");
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut first = cluster.open(2, "alpha");
    first.write(MIB, &content(1, 1 << 20)).expect("written by one with epoll");
    let mut second = cluster.open(1, "alpha");
    assert!(second.read(MIB, 1 << 20).expect("read") == content(1, 1 << 20));
    cluster.kill(3);
    second.write(8 * MIB, &content(2, 1 << 20)).expect("written without node 3");
    second.flush().expect("flushed");
    cluster.start_with(3, "epoll");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(1);
    first.write(16 * MIB, &content(3, 4096)).expect("written by those with epoll");
    let mut third = cluster.open(3, "alpha");
    assert!(third.read(8 * MIB, 1 << 20).expect("read") == content(2, 1 << 20));
    cluster.start_with(1, "uring");
    cluster.wait_in_sync(2, "alpha", &[1, 2, 3]);
    drop((first, second, third));
    assert_equal(&cluster);
}

/// A second way to an address, which may be cut.
struct Way {
    from: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_cut: Arc<AtomicBool>,
}

impl Way {
    /// Whatever connects to `from` comes to `to`.
    fn new(from: String, to: String) -> Way {
        let listener = TcpListener::bind(&from).expect("an address of its own");
        let way = Way { from, open: Arc::default(), is_cut: Arc::default() };
        let (open, is_cut) = (Arc::clone(&way.open), Arc::clone(&way.is_cut));
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if is_cut.load(Ordering::Acquire) {
                    return;
                }
                let Ok(far) = TcpStream::connect(&to) else { continue };
                join(&near, &far);
                join(&far, &near);
                open.lock().expect("nobody fails with it").extend([near, far]);
            }
        });
        way
    }

    /// Connections that went this way.
    fn used(&self) -> usize {
        self.open.lock().expect("nobody fails with it").len() / 2
    }

    /// Breaks what goes this way, and lets nothing go it any more.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        // The thread that accepts wakes up, and nobody listens there any more.
        TcpStream::connect(&self.from).expect("it listens");
        for socket in self.open.lock().expect("nobody fails with it").iter() {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

/// What comes from one goes into the other.
fn join(from: &TcpStream, into: &TcpStream) {
    let mut from = from.try_clone().expect("cloned");
    let mut into = into.try_clone().expect("cloned");
    std::thread::spawn(move || {
        std::io::copy(&mut from, &mut into).ok();
        into.shutdown(Shutdown::Both).ok();
    });
}

#[test]
fn a_way_between_nodes_that_is_cut_is_replaced_by_the_other() {
    let mut cluster = Cluster::new("ways", 3);
    let mut ways = Vec::new();
    for node in 1..=3_u16 {
        let real = format!("{}:7800", cluster.address(node));
        let other = format!("{}:7800", cluster.address(node + 8));
        ways.push(Way::new(other.clone(), real.clone()));
        for peer in (1..=3).filter(|&peer| peer != node) {
            let both = format!("addresses = [\"{other}\", \"{real}\"]");
            cluster.change_settings(peer, &format!("addresses = [\"{real}\"]"), &both);
        }
    }
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &content(1, 1 << 20)).expect("written");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert!(ways.iter().map(Way::used).sum::<usize>() >= 3, "the way named first is taken first");
    ways.iter().for_each(Way::cut);
    volume.write(2 * MIB, &content(2, 1 << 20)).expect("no client sees that a way was cut");
    volume.flush().expect("flushed");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert!(volume.read(2 * MIB, 1 << 20).expect("read") == content(2, 1 << 20));
    drop(volume);
    assert_equal(&cluster);
}

/// An address at which nobody answers, not even to say so: a listener that takes no more connections.
struct Void {
    address: String,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Void {
    fn new(address: String) -> Void {
        let listener = TcpListener::bind(&address).expect("an address of its own");
        let to = listener.local_addr().expect("it listens");
        let mut waiting = Vec::new();
        // Its queue is full when the first one hears nothing.
        while let Ok(socket) = TcpStream::connect_timeout(&to, Duration::from_millis(500)) {
            waiting.push(socket);
        }
        Void { address, _listener: listener, _waiting: waiting }
    }
}

#[test]
fn a_way_that_leads_nowhere_is_given_up_for_the_other() {
    let mut cluster = Cluster::new("nowhere", 2);
    let real = format!("{}:7800", cluster.address(2));
    let nowhere = Void::new(format!("{}:7800", cluster.address(10)));
    let both = format!("addresses = [\"{}\", \"{real}\"]", nowhere.address);
    cluster.change_settings(1, &format!("addresses = [\"{real}\"]"), &both);
    for node in 1..=2 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2]));
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &content(1, 4096)).expect("written by both");
}

/// Time that a node's threads have used, in ticks of ten milliseconds.
fn used_ticks(cluster: &Cluster, node: u16) -> u64 {
    let path = format!("/proc/{}/stat", cluster.process(node));
    let stat = std::fs::read_to_string(path).expect("it runs");
    let (_, behind_name) = stat.rsplit_once(')').expect("a name in brackets");
    let numbers = behind_name.split_whitespace().skip(11).take(2);
    numbers.map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_node_that_waits_for_a_connection_does_nothing_meanwhile() {
    let mut cluster = Cluster::new("idle", 2);
    let nowhere = Void::new(format!("{}:7800", cluster.address(10)));
    let real = format!("{}:7800", cluster.address(2));
    cluster.change_settings(1, &real, &nowhere.address);
    cluster.start(1);
    let before = used_ticks(&cluster, 1);
    let tries = |cluster: &Cluster| cluster.log(1).matches("connecting took too long").count();
    cluster.wait_for("two tries in vain", || match tries(&cluster) {
        0 | 1 => Err(cluster.log(1)),
        _ => Ok(()),
    });
    let used = used_ticks(&cluster, 1) - before;
    assert!(used < 50, "{used} ticks for nothing");
}

#[test]
fn a_node_that_is_refused_io_uring_takes_epoll_by_itself_and_says_so() {
    let mut cluster = Cluster::new("refused", 3);
    let Some(refusing) = Refusing::build(&cluster.home(1)) else { return };
    cluster.add_settings(3, "threads = 2");
    // As container runtimes answer, as kernels without it do, and as there is nothing to refuse it.
    cluster.start(1);
    for (node, errno) in [(2, 1), (3, 38)] {
        let mut command = refusing.command("io_uring", errno, NODE);
        command.env_remove("LOCKSTEP_IO");
        cluster.start_by(node, command);
        let log = cluster.log(node);
        assert!(log.contains("epoll") && log.contains("io_uring cannot be had"), "{log}");
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(2, "alpha");
    volume.write(MIB, &content(1, 1 << 20)).expect("written");
    volume.flush().expect("flushed");
    let mut other = cluster.open(3, "alpha");
    assert!(other.read(MIB, 1 << 20).expect("read") == content(1, 1 << 20));
    drop((volume, other));
    assert_equal(&cluster);
    // Who insists on it is told that it cannot be had.
    cluster.kill(2);
    let mut command = refusing.command("io_uring", 1, NODE);
    command.env("LOCKSTEP_IO", "uring");
    cluster.spawn(2, command);
    assert!(!cluster.ends(2), "it does not start");
    assert!(cluster.log(2).contains("this I/O engine cannot start"), "{}", cluster.log(2));
}

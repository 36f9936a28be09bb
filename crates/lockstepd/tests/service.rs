//! A node as a service of its machine: what it tells the service manager, how it stops, who may open its
//! admin socket.

mod harness;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command as Process;

use harness::refusing::Refusing;
use harness::{Cluster, PATIENCE, content, find_program, text};
use wire::admin::{Command, FileTiming};

const MIB: u64 = 1 << 20;
const NODE: &str = env!("CARGO_BIN_EXE_lockstepd");

/// The next state that a node tells.
fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let count = manager.recv(&mut bytes).expect("the node tells something");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

/// Starts node 1 with a manager that listens at `name`; what it is told is told when it is true.
fn is_managed(cluster: &mut Cluster, manager: &UnixDatagram, name: &str) {
    manager.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut node = Process::new(NODE);
    node.env("NOTIFY_SOCKET", name);
    cluster.spawn(1, node);
    assert_eq!(told(manager), "READY=1");
    // Asked once: whoever is started after this node may count on it.
    cluster.ask(1, Command::Ping {}).expect("it answers operators");
    drop(std::net::TcpStream::connect((cluster.address(1), 10809)).expect("and NBD clients"));
    cluster.signal(1, "HUP");
    cluster.wait_for("a reload", || match cluster.log(1).contains("are reloaded") {
        true => Ok(()),
        false => Err(cluster.log(1)),
    });
    cluster.signal(1, "TERM");
    assert_eq!(told(manager), "STOPPING=1");
    assert!(cluster.ends(1), "a stop in good order ends well");
    manager.set_nonblocking(true).expect("set");
    assert!(manager.recv(&mut [0; 16]).is_err(), "nothing else was told");
}

#[test]
fn the_service_manager_is_told_when_a_node_serves_and_when_it_stops() {
    let mut cluster = Cluster::new("notify", 1);
    let path = cluster.home(1).join("manager");
    let manager = UnixDatagram::bind(&path).expect("bound");
    is_managed(&mut cluster, &manager, text(&path));
    let name = format!("lockstepd-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("short");
    let manager = UnixDatagram::bind_addr(&address).expect("bound");
    is_managed(&mut cluster, &manager, &format!("@{name}"));
}

#[test]
fn a_primary_that_is_told_to_stop_hands_over_and_nobody_waits_for_its_lease() {
    let mut cluster = Cluster::new("handover", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", 64 * MIB, &[1, 2, 3]);
    // Longer than any test waits.
    file.timing = FileTiming { lease_ms: 600_000, ..FileTiming::default() };
    cluster.create(&file);
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("node 1 becomes primary");
    assert_eq!(cluster.status(1, "alpha").primary.as_deref(), Some("n1"));
    let mut second = cluster.open(2, "alpha");
    cluster.signal(1, "TERM");
    assert_eq!(second.read(0, 4096).expect("no error"), content(1, 4096));
    second.write(0, &content(2, 4096)).expect("no error");
    assert!(cluster.ends(1), "it ended in good order");
    assert_eq!(cluster.status(2, "alpha").primary.as_deref(), Some("n2"));
}

#[test]
fn a_primary_that_stops_last_does_not_wait_for_those_who_are_gone() {
    let mut cluster = Cluster::new("last", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("node 1 becomes primary");
    for node in [2, 3, 1] {
        cluster.signal(node, "TERM");
        assert!(cluster.ends(node), "it ended in good order");
    }
    let log = cluster.log(1);
    assert!(log.contains("alpha: too few voters are left to hand it over"), "{log}");
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    if !find_program("systemd-analyze") {
        return;
    }
    let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/systemd/lockstepd.service")
        .canonicalize()
        .expect("it is there");
    let words = std::fs::read_to_string(unit).expect("read");
    assert!(words.contains("ExecStart=/usr/bin/lockstepd node --dir /var/lib/lockstep\n"));
    let cluster = Cluster::new("unit", 1);
    let copy = cluster.home(1).join("lockstepd.service");
    // The program must be where the unit says.
    std::fs::write(&copy, words.replace("/usr/bin/lockstepd", NODE)).expect("written");
    let verified = Process::new("systemd-analyze")
        .args(["verify", "--man=no", text(&copy)])
        .output()
        .expect("it is installed");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("lockstepd"), "{said}");
}

/// Permissions of a path.
fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn the_admin_socket_is_its_owners_only_from_the_moment_on_that_it_is_there() {
    let mut cluster = Cluster::new("private", 1);
    let Some(refusing) = Refusing::build(&cluster.home(1)) else { return };
    // A mode that is set later would not be set at all, and the umask takes nothing away.
    let filter = refusing.command("chmod", 0, NODE);
    let mut node = Process::new("sh");
    node.args(["-c", "umask 0; exec \"$@\"", "sh"])
        .arg(filter.get_program())
        .args(filter.get_args());
    cluster.start_by(1, node);
    assert_eq!(mode(&cluster.home(1).join("admin.sock")), 0o600);
    let probe = cluster.home(1).join("probe");
    std::fs::write(&probe, "").expect("written");
    let mut chmod = refusing.command("chmod", 0, "/bin/chmod");
    assert!(chmod.args(["000", text(&probe)]).status().expect("run").success());
    assert_ne!(mode(&probe), 0, "the filter works: nothing was changed");
}

#[test]
fn an_admin_socket_of_a_dead_node_is_replaced_and_that_of_a_living_one_is_not() {
    let mut cluster = Cluster::new("stale", 2);
    cluster.start(1);
    let socket = cluster.home(1).join("admin.sock");
    cluster.kill(1);
    assert!(socket.exists(), "what a dead node leaves");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o777)).expect("set");
    cluster.start(1);
    assert_eq!(mode(&socket), 0o600);
    // Another node that was given the same place.
    cluster.add_settings(2, &format!("admin_socket = \"{}\"", text(&socket)));
    cluster.spawn(2, Process::new(NODE));
    assert!(!cluster.ends(2), "it does not start");
    let log = cluster.log(2);
    assert!(log.contains("cannot start") && log.contains(text(&socket)), "{log}");
    cluster.ask(1, Command::Ping {}).expect("the first goes on answering");
}

#[test]
fn the_socket_of_nbd_clients_is_also_that_of_the_group_which_is_named() {
    let mut cluster = Cluster::new("group", 1);
    let socket = cluster.home(1).join("nbd.sock");
    let settings = cluster.home(1).join("node.toml");
    let good = std::fs::read_to_string(&settings).expect("it is there");
    // Before the first table.
    let with =
        |lines: &str| std::fs::write(&settings, format!("{lines}\n{good}")).expect("written");
    let groups = std::fs::metadata(&settings).expect("there").gid();
    // Root may give it to anybody, others to their own.
    let group = if groups == 0 { 4711 } else { groups };
    with(&format!("nbd_socket = \"nbd.sock\"\nnbd_socket_group = \"{group}\""));
    cluster.start(1);
    assert_eq!(mode(&socket), 0o660);
    assert_eq!(std::fs::metadata(&socket).expect("there").gid(), group);
    cluster.kill(1);
    with("nbd_socket = \"nbd.sock\"\nnbd_socket_group = \"no such group\"");
    let log = says_at_its_end(&mut cluster, 1);
    assert!(log.contains("LS-0071") && log.contains("has no group no such group"), "{log}");
    with("nbd_socket_group = \"root\"");
    let log = says_at_its_end(&mut cluster, 1);
    assert!(log.contains("`nbd_socket_group`") && log.contains("there is none"), "{log}");
}

/// What a node that does not start says, which is all that its log holds.
fn says_at_its_end(cluster: &mut Cluster, node: u16) -> String {
    std::fs::remove_file(cluster.home(node).join("log")).ok();
    cluster.spawn(node, Process::new(NODE));
    assert!(!cluster.ends(node), "it does not start");
    cluster.log(node)
}

#[test]
fn a_node_that_cannot_start_names_a_code_a_cause_and_a_remedy() {
    let mut cluster = Cluster::new("start", 1);
    let settings = cluster.home(1).join("node.toml");
    let good = std::fs::read_to_string(&settings).expect("it is there");
    let key = cluster.home(1).join("key.pem");
    let kept = std::fs::read(&key).expect("a key");
    let held = std::net::TcpListener::bind((cluster.address(1), 0)).expect("an address");
    let taken = held.local_addr().expect("bound").to_string();
    let listen = good.lines().find(|line| line.starts_with("listen")).expect("a key of it");
    let cases = [
        ("LS-0070", "frobnicate", format!("frobnicate = 1\n{good}")),
        ("LS-0071", taken.as_str(), good.replace(listen, &format!("listen = \"{taken}\""))),
    ];
    for (code, named, text) in cases {
        std::fs::write(&settings, text).expect("written");
        let said = says_at_its_end(&mut cluster, 1);
        for part in [code, named, "\n  cause:  ", "\n  remedy: "] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
    }
    std::fs::write(&settings, good).expect("written");
    std::fs::write(&key, "no key").expect("written");
    let said = says_at_its_end(&mut cluster, 1);
    assert!(said.contains("LS-0070") && said.contains("remedy: "), "{said}");
    std::fs::write(&key, kept).expect("written");
    std::fs::remove_file(&settings).expect("removed");
    let said = says_at_its_end(&mut cluster, 1);
    assert!(said.contains("LS-0070") && said.contains("node.toml"), "{said}");
}

/// The kernel's flags of each thread of a process: `PF_MEMALLOC_NOIO` and others (`proc(5)`, `stat`).
fn flags(process: u32) -> Vec<u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let stat = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("stat")).expect("it is there");
        let (_, after_name) = text.rsplit_once(") ").expect("a name in brackets");
        after_name.split(' ').nth(6).and_then(|flags| flags.parse().ok()).expect("a number")
    };
    threads.map(|thread| stat(thread.expect("listed"))).collect()
}

#[test]
fn no_thread_of_a_node_waits_for_disks_when_memory_is_short() {
    // Linux 5.6, which has the call, to 6.18.
    const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;
    let mut cluster = Cluster::new("flusher", 1);
    cluster.start(1);
    if cluster.log(1).contains("PR_SET_IO_FLUSHER") {
        return println!("NOT RUN: this process may not ask the kernel for it");
    }
    let flags = flags(cluster.process(1));
    assert!(flags.len() > 1, "it has a helper at least");
    assert!(flags.iter().all(|flags| flags & PF_MEMALLOC_NOIO != 0), "{flags:x?}");
}

#[test]
fn a_node_whose_log_nobody_reads_goes_on() {
    let mut cluster = Cluster::new("unread", 1);
    let (log, stderr) = std::io::pipe().expect("a pipe");
    cluster.spawn_to(1, Process::new(NODE), stderr);
    cluster.wait_answers(1);
    for _ in 0..1800 {
        let mut socket = UnixStream::connect(cluster.home(1).join("admin.sock")).expect("a node");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.write_all(b"this is no request\n").expect("it is taken");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers and closes");
    }
    cluster.ask(1, Command::Ping {}).expect("it answers");
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(log).lines() {
            last = line.expect("text");
            if last.contains("lines were left out") {
                tell.send(()).expect("it is waited for");
            }
        }
        last
    });
    told.recv_timeout(PATIENCE).expect("what was left out is said");
    assert!(cluster.stop(1));
    let last = reader.join().expect("it reads to the end");
    assert!(last.ends_with("stopped"), "{last}");
}

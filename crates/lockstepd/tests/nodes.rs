//! Real nodes, real sockets, real files.

mod harness;

use harness::{Cluster, content, find_program, run, run_status, text};
use std::path::Path;
use wire::admin::{Answer, Command, FileMember, Operation, ResourceFile};

const MIB: u64 = 1 << 20;

#[test]
fn one_node_serves_a_volume_and_keeps_it_over_a_kill() {
    let mut cluster = Cluster::new("one", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1]));
    let mut volume = cluster.open(1, "alpha");
    assert_eq!(volume.size_bytes, 64 * MIB);
    // Across a boundary of pieces, and of extents.
    let bytes = content(1, 3 << 20);
    volume.write(4 * MIB - 4096, &bytes).expect("written");
    volume.flush().expect("flushed");
    assert_eq!(volume.read(4 * MIB - 4096, 3 << 20).expect("read"), bytes);
    assert!(volume.read(63 * MIB, 1 << 20).expect("read").iter().all(|&byte| byte == 0));
    cluster.kill(1);
    cluster.start(1);
    let mut volume = cluster.open(1, "alpha");
    assert_eq!(volume.read(4 * MIB - 4096, 3 << 20).expect("read"), bytes);
    drop(volume);
    let image = cluster.home(1).join("volumes/alpha-0.img");
    let check = || run_status(&["check", text(&image)]);
    let home = cluster.home(1);
    assert!(!run_status(&["node", "--dir", text(&home)]), "one process for each directory");
    assert!(!check(), "a node has it open");
    assert!(cluster.stop(1), "a stop in good order ends well");
    assert!(check(), "its metadata is good");
    assert!(run_status(&["dump", text(&image)]), "and can be shown");
    damage_records(&image);
    assert!(!check(), "both copies of its record are damaged");
}

/// Nothing comes from a client whose machine is gone, and an idle one would count for ever.
#[test]
fn an_idle_client_is_asked_by_the_kernel_whether_it_is_there() {
    let mut cluster = Cluster::new("probed", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1]));
    let volume = cluster.open(1, "alpha");
    let address: std::net::Ipv4Addr = cluster.address(1).parse().expect("an address");
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.octets()), 10809);
    // The timer of a connection on which nothing is on its way: 2 is that of these questions.
    cluster.wait_for("a client that is asked", || {
        let all = std::fs::read_to_string("/proc/net/tcp").expect("there is one");
        let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let mut rows = fields.filter(|row| row.get(1) == Some(&&local[..]) && row[3] == "01");
        let asked = rows.clone().any(|row| row[5].starts_with("02:"));
        if asked { Ok(()) } else { Err(format!("{:?}", rows.next())) }
    });
    drop(volume);
    cluster.stop(1);
}

/// Changes a byte of every record in a file, wherever they stand. Most of the file is a hole.
fn damage_records(image: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(image).expect("there");
    let size = file.metadata().expect("there").len();
    let mut at = size - (256 << 20);
    let mut page = [0; 4096];
    while at < size {
        file.read_exact_at(&mut page, at).expect("read");
        if page.starts_with(b"LOCKSREC") {
            file.write_all_at(&[!page[100]], at + 100).expect("written");
        }
        at += 4096;
    }
}

#[test]
fn strangers_tools_copy_a_volume_in_and_out() {
    if !find_program("nbdcopy") || !find_program("nbdinfo") {
        return;
    }
    let mut cluster = Cluster::new("tools", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 32 * MIB, &[1]));
    let url = format!("nbd://{}:10809/alpha", cluster.address(1));
    let (source, target) = (cluster.home(1).join("source"), cluster.home(1).join("target"));
    std::fs::write(&source, content(2, 32 << 20)).expect("written");
    run("nbdinfo", &[&url]);
    run("nbdcopy", &["--flush", text(&source), &url]);
    run("nbdcopy", &[&url, text(&target)]);
    let same = std::fs::read(&source).expect("there") == std::fs::read(&target).expect("there");
    assert!(same, "what was copied in came out");
}

#[test]
fn three_nodes_replicate_go_on_without_one_and_make_it_equal_again() {
    let mut cluster = Cluster::new("three", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    for step in 0..16 {
        volume.write(step * MIB, &content(step, 1 << 20)).expect("written");
    }
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(3);
    for step in 0..16 {
        volume.write(step * 2 * MIB, &content(100 + step, 1 << 20)).expect("written without one");
    }
    volume.flush().expect("flushed without one");
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    for step in 0..16 {
        let read = volume.read(step * 2 * MIB, 1 << 20).expect("read");
        assert!(read == content(100 + step, 1 << 20), "step {step} reads what was written");
    }
    drop(volume);
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
}

#[test]
fn clients_of_living_nodes_go_on_when_the_primary_dies() {
    let mut cluster = Cluster::new("failover", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 64 * MIB, &[1, 2, 3]));
    let mut first = cluster.open(1, "alpha");
    first.write(0, &content(1, 4096)).expect("node 1 becomes primary");
    let mut second = cluster.open(2, "alpha");
    assert_eq!(second.read(0, 4096).expect("forwarded"), content(1, 4096));
    second.write(8192, &content(2, 4096)).expect("forwarded");
    assert_eq!(first.read(8192, 4096).expect("read"), content(2, 4096));
    cluster.kill(1);
    assert_eq!(second.read(0, 4096).expect("no error"), content(1, 4096));
    second.write(0, &content(3, 4096)).expect("no error");
    assert_eq!(second.read(8192, 4096).expect("read"), content(2, 4096));
    drop(second);
    cluster.start(1);
    cluster.wait_in_sync(2, "alpha", &[1, 2, 3]);
    let mut again = cluster.open(1, "alpha");
    assert_eq!(again.read(0, 4096).expect("read"), content(3, 4096));
}

#[test]
fn a_node_without_a_copy_serves_the_volume_and_hands_over_when_it_stops() {
    let mut cluster = Cluster::new("diskless", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2]));
    let mut diskless = cluster.open(3, "alpha");
    diskless.write(0, &content(1, 65_536)).expect("written");
    assert_eq!(diskless.read(0, 65_536).expect("read"), content(1, 65_536));
    drop(diskless);
    assert!(cluster.stop(3), "a stop in good order ends well");
    let mut other = cluster.open(1, "alpha");
    assert_eq!(other.read(0, 65_536).expect("read"), content(1, 65_536));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
    let mut cluster = Cluster::new("refusals", 1);
    cluster.start(1);
    let good = cluster.resource("alpha", 16 * MIB, &[1]);
    let create = |name: &str| {
        cluster.ask(1, Command::ResourceCreate { resource: name.to_owned(), force: false })
    };
    assert!(create("alpha").expect_err("not defined").starts_with("LS-0010"));
    let mut empty = good.clone();
    empty.volumes[0].size_bytes = 0;
    let define = |file: &wire::admin::ResourceFile| {
        cluster.ask(1, Command::ResourceDefine { file: Box::new(file.clone()) })
    };
    assert!(define(&empty).expect_err("no size").starts_with("LS-0012"));
    let mut alone = good.clone();
    alone.options.quorum = wire::Quorum::Off;
    let witness = wire::MemberKind::Witness;
    let stores = Vec::new();
    alone.members.push(FileMember { node: 2, kind: witness, stores, ..good.members[0].clone() });
    alone.nodes.push(wire::admin::FileNode { id: 2, ..good.nodes[0].clone() });
    alone.nodes[1].name = "n2".to_owned();
    let refused = define(&alone).expect_err("a witness that nobody asks");
    assert!(refused.starts_with("LS-0044") && refused.contains("without a witness"), "{refused}");
    define(&good).expect("good");
    let mut other = good.clone();
    other.id += 1;
    assert!(define(&other).expect_err("two of one name").starts_with("LS-0011"));
    let image = cluster.home(1).join("volumes/alpha-0.img");
    std::fs::create_dir_all(image.parent().expect("it has one")).expect("made");
    std::fs::write(&image, b"somebody's letters").expect("written");
    assert!(create("alpha").expect_err("foreign data").starts_with("LS-0020"));
    assert_eq!(std::fs::read(&image).expect("there"), b"somebody's letters");
    std::fs::remove_file(&image).expect("removed");
    create("alpha").expect("nothing is in its way");
    assert!(create("alpha").expect_err("it is there").starts_with("LS-0011"));
    let delete =
        Command::ResourceDelete { resource: "alpha".to_owned(), force: false, unused: false };
    cluster.ask(1, delete).expect("deleted");
    assert!(!image.exists());
}

#[test]
fn garbage_from_anywhere_closes_its_connection_and_nothing_else() {
    use std::io::{Read, Write};
    let mut cluster = Cluster::new("garbage", 2);
    cluster.start(1);
    cluster.start(2);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("written");
    for port in [7800, 10_809] {
        for seed in 0..16 {
            let address = format!("{}:{port}", cluster.address(1));
            let mut socket = std::net::TcpStream::connect(address).expect("it listens");
            // The other end may have closed already.
            socket.write_all(&content(seed, 4096)).ok();
            socket.shutdown(std::net::Shutdown::Write).ok();
            socket.read_to_end(&mut Vec::new()).ok();
        }
    }
    for line in [&b"{}\n"[..], b"nonsense\n", b"\xff\xfe\n", b"{\"version\":9,\"id\":1}\n", b"[["] {
        let path = cluster.home(1).join("admin.sock");
        let mut socket = std::os::unix::net::UnixStream::connect(path).expect("it listens");
        socket.write_all(line).expect("sent");
        socket.shutdown(std::net::Shutdown::Write).ok();
        socket.read_to_end(&mut Vec::new()).ok();
    }
    assert_eq!(volume.read(0, 4096).expect("read"), content(1, 4096));
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
}

#[test]
fn an_operator_is_answered_while_clients_have_all_buffers() {
    const ASKED: u32 = 200;
    let mut cluster = Cluster::new("buffers", 1);
    // Clients have 64 MiB besides, those of one volume half of that.
    cluster.add_settings(1, "buffer_bytes = 16777216");
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1]));
    let mut clients: Vec<_> = (0..80).map(|_| cluster.open(1, "alpha")).collect();
    // Large ones first, small ones to take what is left.
    let sizes_kib = [1024, 1024, 1024, 1024, 1024, 256, 64, 16, 4, 4];
    for (client, size_kib) in clients.iter_mut().zip(sizes_kib.iter().flat_map(|size| [size; 8])) {
        client.begin_write(0, size_kib << 10);
    }
    for _ in 0..ASKED {
        cluster.status(1, "alpha");
    }
    drop(clients);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("written");
    assert_eq!(volume.read(0, 4096).expect("read"), content(1, 4096));
}

#[test]
fn resources_of_which_not_all_fit_into_an_answer_are_told_in_pages() {
    let mut cluster = Cluster::new("pages", 1);
    cluster.start(1);
    // None of it is made. Each is told with as many replicas as there may be, by long names.
    let mut file = cluster.resource("alpha", 16 * MIB, &[1]);
    file.nodes[0].name = "a".to_owned();
    for id in 2..=8 {
        let (name, addresses) = (format!("node-{id}-{}", "x".repeat(39)), Vec::new());
        file.nodes.push(wire::admin::FileNode { id, name, addresses });
        file.members.push(wire::admin::FileMember { node: id, ..file.members[0].clone() });
    }
    let mut names = Vec::new();
    let refused = loop {
        let number = u64::try_from(names.len()).expect("few");
        let file = ResourceFile { name: format!("r{number:04}"), id: 7 + number, ..file.clone() };
        names.push(file.name.clone());
        assert!(names.len() < 2000, "they still fit");
        cluster.ask(1, Command::ResourceDefine { file: Box::new(file) }).expect("defined");
        if number % 64 == 63
            && let Err(refused) = cluster.ask(1, Command::Status { resource: None })
        {
            break refused;
        }
    };
    assert!(refused.starts_with("LS-0045"), "{refused}");
    let (mut told, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = cluster.ask(1, Command::StatusPage { after: after.clone() }).expect("a page");
        let Answer::Status(page) = page else { panic!("no status: {page:?}") };
        told.extend(page.resources.into_iter().map(|resource| resource.name));
        after = told.last().expect("some are told").clone();
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(told, names);
    assert!(pages > 1, "what did not fit at once came in one");
}

#[test]
fn a_store_in_memory_is_refused_by_a_node_that_does_not_allow_it() {
    let mut cluster = Cluster::new("memory", 1);
    cluster.start(1);
    let mut file = cluster.resource("alpha", 16 * MIB, &[1]);
    let (kind, path, metadata_path) = (wire::admin::StoreKind::Memory, None, None);
    let store = wire::admin::FileStore { volume: 0, kind, path, metadata_path, keep: false };
    file.members[0].stores = vec![store];
    cluster.ask(1, Command::ResourceDefine { file: Box::new(file) }).expect("defined");
    let create = Command::ResourceCreate { resource: "alpha".to_owned(), force: false };
    let refused = cluster.ask(1, create).expect_err("it would forget everything");
    assert!(refused.starts_with("LS-0026"), "{refused}");
}

/// Every request to the disks of node 3 takes an hour.
const HANGS: &str = "[faults]\nstalls_one_in = 1\nstall_ms = 3600000\n";

#[test]
fn a_node_whose_disk_hangs_starts_without_it_and_stops() {
    let mut cluster = Cluster::new("hangs", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("written");
    assert!(cluster.stop(3));
    cluster.add_settings(3, "disk_late_ms = 1000\nallow_faults = true");
    cluster.append_settings(3, HANGS);
    cluster.start(3);
    volume.write(0, &content(2, 4096)).expect("written without it");
    let mut there = cluster.open(3, "alpha");
    assert_eq!(there.read(0, 4096).expect("read elsewhere"), content(2, 4096));
    drop(there);
    assert!(cluster.stop(3), "it ends, although its disk does not");
    cluster.change_settings(3, HANGS, "");
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
}

#[test]
fn a_resource_that_is_deleted_in_use_leaves_the_node_well() {
    let mut cluster = Cluster::new("deleted", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 64 * MIB, &[1]);
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 1 << 20)).expect("written");
    let delete = |force| {
        cluster
            .ask(1, Command::ResourceDelete { resource: "alpha".to_owned(), force, unused: false })
    };
    assert!(delete(false).expect_err("in use").starts_with("LS-0015"));
    delete(true).expect("by force");
    assert!(volume.read(0, 4096).is_err(), "it is gone");
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    assert!(volume.read(0, 1 << 20).expect("read").iter().all(|&byte| byte == 0));
}

#[test]
fn a_replica_is_added_filled_and_removed_while_the_volume_is_in_use() {
    let mut cluster = Cluster::new("added", 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    let file = cluster.resource("alpha", 32 * MIB, &[1, 2]);
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    for step in 0..8 {
        volume.write(step * 3 * MIB, &content(step, 1 << 20)).expect("written");
    }
    let newcomer = FileMember {
        node: 3,
        kind: wire::MemberKind::Replica,
        voter: Some(0x1234_5678),
        incarnation: Some(0x8765_4321),
        in_sync: Some(false),
        stores: Vec::new(),
    };
    let mut wider = file.clone();
    wider.members.push(newcomer.clone());
    cluster.ask(3, Command::ResourceDefine { file: Box::new(wider) }).expect("defined anew");
    let create = Command::ResourceCreate { resource: "alpha".to_owned(), force: false };
    cluster.ask(3, create).expect("created");
    let operate =
        |operation| cluster.ask(1, Command::Operation { resource: "alpha".to_owned(), operation });
    let add = Operation::AddReplica { member: Box::new(newcomer), node: None };
    operate(add).expect("added");
    volume.write(30 * MIB, &content(99, 1 << 20)).expect("written meanwhile");
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    drop(volume);
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(7, 4096)).expect("written");
    operate(Operation::RemoveReplica { node: 2 }).expect("removed");
    cluster.wait_in_sync(1, "alpha", &[1, 3]);
    assert_eq!(volume.read(30 * MIB, 1 << 20).expect("read"), content(99, 1 << 20));
}

#[test]
fn a_volume_grows_and_shrinks_under_its_clients() {
    let mut cluster = Cluster::new("resized", 3);
    cluster.start(1);
    cluster.start(2);
    cluster.start(3);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("written");
    let resize = |cluster: &Cluster, size_bytes, allow_shrink| {
        let operation = Operation::Resize { volume: 0, size_bytes, allow_shrink };
        cluster.ask(1, Command::Operation { resource: "alpha".to_owned(), operation })
    };
    assert!(volume.write(20 * MIB, &content(2, 4096)).is_err(), "beyond the end");
    resize(&cluster, 32 * MIB, false).expect("grown");
    cluster.wait_for("the new size at the primary", || volume.write(20 * MIB, &content(2, 4096)));
    let is_wide = || (cluster.open(2, "alpha").size_bytes == 32 * MIB).then_some(());
    cluster.wait_for("the new size elsewhere", || is_wide().ok_or("not yet".to_owned()));
    assert!(
        resize(&cluster, 8 * MIB, false).expect_err("it would lose data").starts_with("LS-0039")
    );
    resize(&cluster, 8 * MIB, true).expect("shrunk");
    let beyond = || volume.read(20 * MIB, 4096).map_or(Ok(()), |_| Err("not yet".to_owned()));
    cluster.wait_for("the new end", beyond);
    assert_eq!(volume.read(0, 4096).expect("read"), content(1, 4096));
    assert!(resize(&cluster, 1 << 50, false).expect_err("no room").starts_with("LS-0022"));
    // Node 2 is away while the volume shrinks and grows; its disk still holds what was there.
    resize(&cluster, 32 * MIB, false).expect("grown");
    cluster.wait_for("the new size at the primary", || volume.write(20 * MIB, &content(3, 4096)));
    cluster.kill(2);
    resize(&cluster, 8 * MIB + 4096, true).expect("shrunk");
    resize(&cluster, 30 * MIB + 4096, false).expect("grown");
    let nothing = vec![0; 4096];
    let mut got = Vec::new();
    let grown = || volume.read(20 * MIB, 4096).map(|bytes| got = bytes);
    cluster.wait_for("the new size", grown);
    assert_eq!(got, nothing);
    cluster.start(2);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert_eq!(cluster.open(2, "alpha").read(20 * MIB, 4096), Ok(nothing));
    drop(volume);
    let dumps: Vec<String> = (1..=3).map(|node| cluster.dump(node, "alpha")).collect();
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
    resize(&cluster, 8 * MIB, true).expect("shrunk");
    for node in [1, 2, 3] {
        cluster.kill(node);
        cluster.start(node);
    }
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let mut volume = cluster.open(2, "alpha");
    assert_eq!((volume.size_bytes, volume.read(0, 4096)), (8 * MIB, Ok(content(1, 4096))));
}

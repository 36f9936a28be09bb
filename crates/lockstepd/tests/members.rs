//! Who may speak about a resource: its nodes, and nobody else, whatever certificate they have.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use base::{NodeId, ResourceId};
use harness::outsider::Outsider;
use harness::{Cluster, content, node_name};
use wire::admin::{Answer, Command, FileMember, FileNode, NodeStatus, Operation, ResourceFile};
use wire::{NodeMessage, ResourceLife};

const MIB: u64 = 1 << 20;

fn node_status(cluster: &Cluster, node: u16) -> NodeStatus {
    match cluster.ask(node, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => status,
        other => panic!("no status: {other:?}"),
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
    let noted = status.warnings.iter().any(|words| words.contains("spoke about"));
    assert!(!noted, "that it happened once is no note for ever: {status:?}");
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

/// What it had said before is on its way when it is let in again.
#[test]
fn what_a_client_s_node_said_before_it_was_dismissed_is_not_heard_once_it_is_admitted_again() {
    let mut cluster = Cluster::new("readmitted", 2);
    cluster.add_settings(2, "threads = 1");
    cluster.start(2);
    let file = ResourceFile { shards: 1, ..cluster.resource("alpha", 16 * MIB, &[2]) };
    let resource = || "alpha".to_owned();
    cluster.ask(2, Command::ResourceDefine { file: Box::new(file.clone()) }).unwrap();
    cluster.ask(2, Command::ResourceCreate { resource: resource(), force: false }).unwrap();
    let mut volume = cluster.open(2, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    let id = ResourceId(file.id);
    let mut client = Outsider::dial(&cluster, 1, 2);
    let mut numbers = 1..;
    let mut settle = |client: &mut Outsider| client.settle(numbers.next().expect("no end"));
    settle(&mut client);
    let life = client.life_there(id).expect("it is a client");
    let own = vec![ResourceLife { resource: id, life: 9 }];
    client.say_as_node(&NodeMessage::Resources { resources: own, last: true });
    let joined = NodeMessage::Joined { resources: vec![ResourceLife { resource: id, life }] };
    client.say_as_node(&joined);
    client.forward_read(id, 1);
    cluster.wait_for("the read", || {
        settle(&mut client);
        if client.was_answered(1) { Ok(()) } else { Err("no answer".to_owned()) }
    });
    dismiss(&cluster, 2, 1).expect("it is a client");
    let node = FileNode { id: 1, name: node_name(1), addresses: Vec::new() };
    cluster.ask(2, Command::ResourceAdmit { resource: resource(), node }).expect("admitted");
    // It has not read yet that it was dismissed.
    client.forward_read(id, 2);
    settle(&mut client);
    volume.read(0, 4096).expect("whatever was to be answered is by now");
    settle(&mut client);
    assert!(!client.was_answered(2), "it was meant for the session before");
    client.answer_pings();
    cluster.wait_for("the resource to be told of again", || {
        settle(&mut client);
        client.life_there(id).map(drop).ok_or_else(|| "it is not".to_owned())
    });
    assert_eq!(client.life_there(id), Some(life));
    client.say_as_node(&joined);
    cluster.wait_for("a read in the session since", || {
        client.forward_read(id, 3);
        settle(&mut client);
        if client.was_answered(3) { Ok(()) } else { Err("no answer".to_owned()) }
    });
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

/// A part that was made and never joined is to end while a client's request cannot end: it ends when that does, and
/// nobody is told before that it has.
#[test]
fn a_part_that_ends_goes_on_ending_when_its_clients_requests_take_long() {
    let mut cluster = Cluster::new("ending", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[2, 3]);
    nodes_of(&mut file, &[1, 2, 3]);
    cluster.create(&file);
    cluster.open(2, "alpha").write(0, &content(1, 4096)).unwrap();
    let mut joining = file.clone();
    let member =
        FileMember { node: 1, voter: Some(77), incarnation: Some(77), ..file.members[0].clone() };
    joining.members.push(FileMember { in_sync: Some(false), stores: Vec::new(), ..member });
    let define = |file: &ResourceFile| Command::ResourceDefine { file: Box::new(file.clone()) };
    cluster.ask(1, define(&joining)).expect("defined");
    cluster
        .ask(1, Command::ResourceCreate { resource: "alpha".to_owned(), force: false })
        .expect("created");
    operate(&cluster, 2, Operation::Suspend {});
    let mut client = cluster.open(1, "alpha");
    client.send_write(4096, &content(2, 4096));
    cluster.wait_for("the request", || match cluster.status(1, "alpha").requests_in_flight {
        0 => Err("nothing is under way".to_owned()),
        _ => Ok(()),
    });
    let stores = || std::fs::read_dir(cluster.home(1).join("volumes")).unwrap().count();
    assert_ne!(stores(), 0);
    for _ in 0..2 {
        let refused = cluster.ask(1, define(&file)).expect_err("a request is under way");
        assert!(refused.contains("LS-0004"), "{refused}");
    }
    // Node 1 may be primary by now: only it has clients.
    cluster.wait_for("the primary to resume", || {
        let resume = |node| {
            let operation = Operation::Resume {};
            cluster.ask(node, Command::Operation { resource: "alpha".to_owned(), operation })
        };
        resume(1).or_else(|_| resume(2)).map(|_| ())
    });
    client.take_answer().expect("the write is carried out");
    cluster.wait_for("the end of its part", || match stores() {
        0 => cluster.ask(1, define(&file)).map(|_| ()),
        left => Err(format!("{left} stores are left")),
    });
    assert_eq!(client.read(4096, 4096).expect("it is a client"), content(2, 4096));
}

/// Of one disk: all that comes after so much is answered in an hour.
const HANGS: &str =
    "[faults]\nhangs_after_bytes = 1048576\nstall_ms = 3600000\nstalls_before = true\n";

/// Its client has asked by another node meanwhile.
#[test]
fn a_write_that_was_held_while_its_node_changed_its_part_does_not_come_after_what_came_meanwhile() {
    let mut cluster = Cluster::new("held-back", 4);
    cluster.add_settings(4, "disk_late_ms = 9000\nallow_faults = true");
    (1..=4).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[2, 3, 4]);
    // It is given up when its disk is.
    file.timing.peer_late_ms = 60_000;
    cluster.create(&file);
    assert!(cluster.stop(4), "in good order");
    cluster.append_settings(4, HANGS);
    cluster.start(4);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("written");
    cluster.wait_in_sync(1, "alpha", &[2, 3, 4]);
    assert_eq!(cluster.status(1, "alpha").primary.as_deref(), Some("n1"));
    let mut first = cluster.open(1, "alpha?moves");
    let mut second = cluster.open(2, "alpha?moves");
    // Until this ends the part cannot change.
    volume.send_write(8 * MIB, &content(4, 2 << 20));
    cluster.wait_for("the request", || match cluster.status(1, "alpha").requests_in_flight {
        0 => Err("nothing is under way".to_owned()),
        _ => Ok(()),
    });
    let mut joining = file.clone();
    let member =
        FileMember { node: 1, voter: Some(77), incarnation: Some(77), ..file.members[0].clone() };
    joining.members.push(FileMember { in_sync: Some(false), stores: Vec::new(), ..member });
    cluster.ask(1, Command::ResourceDefine { file: Box::new(joining) }).expect("defined");
    std::thread::scope(|scope| {
        let resource = "alpha".to_owned();
        let create = Command::ResourceCreate { resource, force: false };
        // It may be given up, or not.
        let made = scope.spawn(|| cluster.ask(1, create).is_ok());
        cluster.wait_for("the change to begin", || {
            match cluster.log(1).contains("alpha: created") {
                true => Ok(()),
                false => Err("nothing is made".to_owned()),
            }
        });
        first.send_write(0, &content(2, 4096));
        // From then on it may have asked elsewhere.
        std::thread::sleep(std::time::Duration::from_millis(4500));
        second.send_write(0, &content(3, 4096));
        second.take_answer().expect("the others have it");
        let told = first.take_answer();
        assert!(told.is_err(), "its connection ends");
        made.join().expect("an answer, or another");
    });
    volume.take_answer().expect("the others have it");
    assert!(volume.read(0, 4096).expect("read") == content(3, 4096));
}

#[test]
fn a_resource_of_which_nobody_could_be_told_is_refused() {
    let mut cluster = Cluster::new("long", 2);
    cluster.start(1);
    let mut file = cluster.resource("alpha", 16 * MIB, &[1]);
    let address = |number: u32| format!("127.0.0.1:{}", number % 60_000 + 1);
    file.nodes[1].addresses = (0..20_000).map(address).collect();
    let define = |file: &ResourceFile| {
        cluster.ask(1, Command::ResourceDefine { file: Box::new(file.clone()) })
    };
    let refused = define(&file).unwrap_err();
    assert!(refused.contains("too long"), "{refused}");
    // What is on a node's disk from before is kept from others, and harms nobody.
    file.nodes[1].addresses.truncate(1);
    define(&file).unwrap();
    let create = Command::ResourceCreate { resource: "alpha".to_owned(), force: false };
    cluster.ask(1, create).unwrap();
    cluster.kill(1);
    let path = cluster.home(1).join("resources").join("alpha.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let many: Vec<String> = (0..20_000).map(|number| format!("{:?}", address(number))).collect();
    let addresses = |list: &str| format!("addresses = [{list}]");
    let one = addresses(&format!("{:?}", address(0)));
    assert!(text.contains(&one), "{text}");
    std::fs::write(&path, text.replace(&one, &addresses(&many.join(", ")))).unwrap();
    cluster.start(1);
    cluster.start(2);
    cluster.wait_for("node 2 asks for it", || match cluster.log(1).contains("too long") {
        true => Ok(()),
        false => Err(cluster.log(1)),
    });
    cluster.open(1, "alpha").write(0, &content(1, 4096)).unwrap();
}

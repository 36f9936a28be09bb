//! What a node that was away believes of changes that were made meanwhile: what a member that it knew has signed,
//! and nothing else.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use base::{ClusterId, Epoch, NodeId, ResourceId};
use harness::outsider::Outsider;
use harness::{Cluster, content, node_name};
use wire::admin::{Answer, Command, FileMember, FileNode, Operation, ResourceFile};
use wire::{NodeMessage, RESOURCES_MAX, SignedVoucher, Standing, Voucher, encode_voucher};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn alpha() -> String {
    "alpha".to_owned()
}

/// `alpha` with these replicas, and these nodes in all.
fn resource(cluster: &Cluster, replicas: &[u16], nodes: &[u16]) -> ResourceFile {
    let mut file = cluster.resource("alpha", 16 * MIB, replicas);
    file.nodes.retain(|node| nodes.contains(&node.id));
    file
}

fn entry(id: u16) -> FileNode {
    FileNode { id, name: node_name(id), addresses: Vec::new() }
}

fn operate(cluster: &Cluster, node: u16, operation: Operation) {
    cluster.ask(node, Command::Operation { resource: alpha(), operation }).expect("it is done");
}

fn dismiss(cluster: &Cluster, asked: u16, node: u16) {
    cluster.ask(asked, Command::ResourceDismiss { resource: alpha(), node }).expect("a client");
}

/// The nodes of `alpha`, as one of them knows them.
fn nodes_at(cluster: &Cluster, asked: u16) -> Vec<u16> {
    let mut nodes: Vec<u16> = match cluster.ask(asked, Command::ResourceFile { resource: alpha() })
    {
        Ok(Answer::File(file)) => file.nodes.iter().map(|node| node.id).collect(),
        other => panic!("no file: {other:?}"),
    };
    nodes.sort_unstable();
    nodes
}

fn wait_for_nodes(cluster: &Cluster, asked: u16, nodes: &[u16]) {
    cluster.wait_for("the node to know which nodes there are", || {
        let known = nodes_at(cluster, asked);
        if known == nodes { Ok(()) } else { Err(format!("{known:?}, not {nodes:?}")) }
    });
}

fn intrudes_in_vain(cluster: &Cluster, own: u16, node: u16, id: ResourceId) {
    let mut outsider = Outsider::dial(cluster, own, node);
    outsider.intrude(id, own);
    outsider.settle(1);
    outsider.assert_heard_nothing(id);
}

/// The node `new` takes the place of `old`, while node 2 is away and `at` is primary.
fn replace(cluster: &Cluster, at: u16, old: u16, new: u16) {
    operate(cluster, at, Operation::Promote {});
    let member = FileMember {
        node: new,
        kind: wire::MemberKind::Replica,
        voter: Some(u64::from(new) + 77),
        incarnation: Some(u64::from(new) + 77),
        in_sync: Some(false),
        stores: Vec::new(),
    };
    for asked in [at, old] {
        let command = Command::ResourceAdmit { resource: alpha(), node: entry(new) };
        cluster.ask(asked, command).expect("admitted");
    }
    let mut joining = match cluster.ask(at, Command::ResourceFile { resource: alpha() }) {
        Ok(Answer::File(file)) => *file,
        other => panic!("no file: {other:?}"),
    };
    joining.members.push(member.clone());
    cluster.ask(new, Command::ResourceDefine { file: Box::new(joining) }).expect("defined");
    cluster.ask(new, Command::ResourceCreate { resource: alpha(), force: false }).expect("created");
    let (member, node) = (Box::new(member), Some(entry(new)));
    operate(cluster, at, Operation::AddReplica { member, node });
    let mut three = [at, old, new];
    three.sort_unstable();
    cluster.wait_in_sync(at, "alpha", &three);
    operate(cluster, at, Operation::RemoveReplica { node: old });
    cluster.wait_in_sync(new, "alpha", &[at, new]);
    // The former member is a client now, and then none of the resource's nodes.
    cluster.wait_for("the former member to be a client", || {
        let members = |file: &ResourceFile| file.members.iter().any(|member| member.node == old);
        match cluster.ask(old, Command::ResourceFile { resource: alpha() }) {
            Ok(Answer::File(file)) if !members(&file) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    [at, new].into_iter().for_each(|asked| dismiss(cluster, asked, old));
}

#[test]
fn a_member_that_joined_while_a_node_was_away_is_let_in_by_it_though_all_who_knew_both_are_gone() {
    let mut cluster = Cluster::new("joined-away", 4);
    for node in [2, 4] {
        let name = format!("name = \"{}\"", node_name(node));
        cluster.change_settings(node, &name, &format!("{name}\nthreads = 2"));
    }
    (1..=4).for_each(|node| cluster.start(node));
    let mut file = resource(&cluster, &[1, 2, 3], &[1, 2, 3]);
    file.shards = 2;
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(2);
    volume.write(0, &content(2, 4096)).unwrap();
    cluster.wait_in_sync(1, "alpha", &[1, 3]);
    replace(&cluster, 1, 3, 4);
    volume.write(4096, &content(3, 4096)).unwrap();
    drop(volume);
    cluster.kill(1);
    cluster.kill(3);
    // Also over a start the newcomer has the proof that it was let in.
    cluster.kill(4);
    cluster.start(4);
    // Nodes 2 and 4 are two of the three members, and have never met.
    cluster.start(2);
    let mut volume = cluster.open(4, "alpha");
    assert_eq!(volume.read(0, 4096).unwrap(), content(2, 4096));
    assert_eq!(volume.read(4096, 4096).unwrap(), content(3, 4096));
    volume.write(8192, &content(4, 4096)).expect("a majority");
    cluster.wait_in_sync(4, "alpha", &[2, 4]);
    assert!(cluster.log(2).contains("n4 is one of its nodes: a member says so"));
    wait_for_nodes(&cluster, 2, &[1, 2, 4]);
    intrudes_in_vain(&cluster, 3, 2, ResourceId(file.id));
}

#[test]
fn members_that_replaced_each_other_while_a_node_was_away_are_believed_one_by_the_other() {
    let mut cluster = Cluster::new("chain-away", 6);
    (1..=6).for_each(|node| cluster.start(node));
    let file = resource(&cluster, &[1, 2, 3], &[1, 2, 3]);
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).unwrap();
    drop(volume);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(2);
    cluster.wait_in_sync(1, "alpha", &[1, 3]);
    replace(&cluster, 1, 3, 4);
    cluster.kill(3);
    replace(&cluster, 4, 1, 5);
    cluster.kill(1);
    // Nobody whom node 2 knew has ever heard of node 6.
    replace(&cluster, 5, 4, 6);
    cluster.kill(4);
    cluster.kill(5);
    cluster.start(2);
    let mut volume = cluster.open(6, "alpha");
    assert_eq!(volume.read(0, 4096).unwrap(), content(1, 4096));
    volume.write(0, &content(2, 4096)).expect("a majority");
    cluster.wait_in_sync(6, "alpha", &[2, 6]);
    wait_for_nodes(&cluster, 2, &[2, 5, 6]);
}

#[test]
fn a_node_that_was_away_when_a_client_was_dismissed_or_admitted_hears_it_from_a_member() {
    let mut cluster = Cluster::new("dismissed-away", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let file = resource(&cluster, &[2, 3], &[1, 2, 3]);
    cluster.create(&file);
    cluster.wait_in_sync(1, "alpha", &[2, 3]);
    let id = ResourceId(file.id);
    cluster.kill(3);
    dismiss(&cluster, 2, 1);
    cluster.kill(1);
    cluster.start(3);
    wait_for_nodes(&cluster, 3, &[2, 3]);
    intrudes_in_vain(&cluster, 1, 3, id);
    // It has it in writing.
    cluster.kill(2);
    cluster.kill(3);
    cluster.start(3);
    assert_eq!(nodes_at(&cluster, 3), [2, 3]);
    intrudes_in_vain(&cluster, 1, 3, id);
    cluster.kill(3);
    cluster.start(2);
    let command = Command::ResourceAdmit { resource: alpha(), node: entry(1) };
    cluster.ask(2, command).expect("admitted");
    cluster.start(3);
    wait_for_nodes(&cluster, 3, &[1, 2, 3]);
    // The client itself hears that it is one again.
    cluster.start(1);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 4096)).expect("a client may write");
}

#[test]
fn what_was_signed_with_a_certificate_that_is_revoked_since_is_signed_anew_with_the_next() {
    let mut cluster = Cluster::new("renewed-away", 3);
    (1..=3).for_each(|node| cluster.start(node));
    cluster.create(&resource(&cluster, &[2, 3], &[1, 2, 3]));
    cluster.wait_in_sync(1, "alpha", &[2, 3]);
    let serial = |identity: &link::Identity| -> String {
        identity.claims().serial.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let first = serial(&link::Identity::load(&cluster.home(2)).unwrap());
    cluster.kill(3);
    cluster.kill(1);
    dismiss(&cluster, 2, 1);
    let second = serial(&cluster.renew(2));
    cluster.ask(2, Command::Reload {}).expect("reloaded");
    cluster.add_settings(3, &format!("revoked_serials = [\"{first}\"]"));
    cluster.start(3);
    wait_for_nodes(&cluster, 3, &[2, 3]);
    cluster.kill(3);
    let command = Command::ResourceAdmit { resource: alpha(), node: entry(1) };
    cluster.ask(2, command).expect("admitted");
    // The same over a start instead of a reload.
    cluster.kill(2);
    cluster.renew(2);
    cluster.start(2);
    cluster.change_settings(3, &first, &second);
    cluster.start(3);
    wait_for_nodes(&cluster, 3, &[1, 2, 3]);
}

/// A voucher that admits node 1 to `alpha`.
fn voucher(cluster: ClusterId, signer: u16) -> Voucher {
    Voucher {
        cluster,
        resource: ResourceId(0xabcd),
        signer: NodeId(signer),
        revision: 100,
        fork: 0,
        epoch: Epoch(1 << 40),
        members: vec![NodeId(1)],
        standings: vec![Standing { node: NodeId(1), number: 100, admitted: true }],
    }
}

/// The same, signed by whom this is.
fn signed(outsider: &Outsider, voucher: &Voucher) -> SignedVoucher {
    let statement = encode_voucher(voucher);
    let proof = outsider.config.prove(&statement).expect("a key that signs");
    SignedVoucher {
        resource: voucher.resource,
        statement,
        scheme: proof.scheme,
        certificate: proof.certificate,
        signature: proof.signature,
    }
}

#[test]
fn a_voucher_that_no_member_has_signed_lets_nobody_in() {
    let mut cluster = Cluster::new("forged", 4);
    (2..=3).for_each(|node| cluster.start(node));
    cluster.create(&resource(&cluster, &[2, 3], &[2, 3]));
    cluster.wait_in_sync(2, "alpha", &[2, 3]);
    let (own, id) = (cluster.authority().cluster(), ResourceId(0xabcd));
    // Its own word, and another's who is no member either: heard, and no more.
    let mut outsider = Outsider::dial(&cluster, 1, 2);
    let accomplice = Outsider::dial(&cluster, 4, 3);
    for said in [signed(&outsider, &voucher(own, 1)), signed(&accomplice, &voucher(own, 4))] {
        outsider.say_as_node(&NodeMessage::Voucher(said));
    }
    outsider.intrude(id, 1);
    outsider.settle(1);
    outsider.assert_heard_nothing(id);
    assert_eq!(nodes_at(&cluster, 2), [2, 3]);
    // A member's, which that member has not signed; one for another cluster; and no voucher.
    let by_member = signed(&outsider, &voucher(own, 2 + 1));
    let mut forged = by_member.clone();
    forged.certificate = signed(&accomplice, &voucher(own, 3)).certificate;
    let elsewhere = signed(&outsider, &voucher(ClusterId(own.0 ^ 1), 1));
    let empty = SignedVoucher { statement: Vec::new(), ..by_member.clone() };
    for said in [by_member, forged, elsewhere, empty] {
        let mut outsider = Outsider::dial(&cluster, 1, 2);
        outsider.say_as_node(&NodeMessage::Voucher(said));
        outsider.is_sent_away();
    }
    assert_eq!(nodes_at(&cluster, 2), [2, 3]);
    match cluster.ask(2, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => assert_eq!(status.faults.peers, 4, "{status:?}"),
        other => panic!("no status: {other:?}"),
    }
    cluster.wait_in_sync(2, "alpha", &[2, 3]);
}

#[test]
fn a_node_that_lies_about_deleted_resources_brings_none_back_by_it() {
    let mut cluster = Cluster::new("liar", 4);
    (2..=4).for_each(|node| cluster.start(node));
    let file = resource(&cluster, &[2], &[2, 3, 4]);
    cluster.create(&file);
    cluster.wait_in_sync(4, "alpha", &[2]);
    cluster.kill(4);
    // First where it is no member: whom that node tells does not believe it.
    for node in [3, 2] {
        let command = Command::ResourceDelete { resource: alpha(), force: false, unused: false };
        cluster.ask(node, command).expect("deleted");
    }
    for node in [2, 3] {
        let mut liar = Outsider::dial(&cluster, 1, node);
        for round in 1..=2_u64 {
            let first = round << 32;
            let ids = first..first + u64::try_from(RESOURCES_MAX).unwrap();
            let resources = ids.map(ResourceId).collect();
            liar.say_as_node(&NodeMessage::Deleted { resources });
            liar.settle(round);
        }
    }
    cluster.kill(2);
    cluster.start(4);
    let told = |words: &str| {
        cluster.wait_for(words, || {
            let warnings = cluster.status(4, "alpha").warnings;
            let found = warnings.iter().any(|warning| warning.contains(words));
            if found { Ok(()) } else { Err(format!("{warnings:?}")) }
        });
    };
    told("n3 says that it is deleted");
    cluster.start(2);
    cluster.wait_for("the node that was away to hear it from a member", || {
        match cluster.ask(4, Command::ResourceFile { resource: alpha() }) {
            Err(_) => Ok(()),
            Ok(file) => Err(format!("{file:?}")),
        }
    });
    for node in [2, 3] {
        assert!(!cluster.log(node).contains("heard of it from node"), "node {node} has it again");
        let asked = cluster.ask(node, Command::ResourceFile { resource: alpha() });
        assert!(asked.is_err(), "{asked:?}");
    }
}

/// Where its store is only its own description says.
#[test]
fn a_description_that_cannot_be_read_is_not_replaced_by_what_others_know() {
    let mut cluster = Cluster::new("unreadable", 2);
    (1..=2).for_each(|node| cluster.start(node));
    cluster.create(&cluster.resource("alpha", 16 << 20, &[1, 2]));
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    assert!(cluster.stop(2));
    let path = cluster.home(2).join("resources/alpha.toml");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let slip = format!("{text}stroe = \"elsewhere\"\n");
    std::fs::write(&path, &slip).expect("it is written");
    cluster.start(2);
    cluster.wait_for("node 2 to hear of it", || {
        match cluster.log(2).contains("node n1 has it, and it is refused") {
            true => Ok(()),
            false => Err(cluster.log(2)),
        }
    });
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), slip);
    let mut again = cluster.resource("alpha", 16 << 20, &[2]);
    again.id += 1;
    let refused = cluster.ask(2, Command::ResourceDefine { file: Box::new(again) });
    assert!(refused.is_err_and(|why| why.contains("LS-0011") && why.contains("left alone")));
    assert!(cluster.stop(2));
    std::fs::write(&path, &text).expect("it is written");
    cluster.start(2);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
}

#[test]
fn a_node_that_comes_after_a_growth_grants_no_more_room_than_the_others_have() {
    let mut cluster = Cluster::new("room", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 9 * GIB, &[1, 2]);
    file.nodes.retain(|node| node.id != 3);
    cluster.create(&file);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    let operate =
        |node, operation| cluster.ask(node, Command::Operation { resource: alpha(), operation });
    let grow = |node, size_bytes| {
        operate(node, Operation::Resize { volume: 0, size_bytes, allow_shrink: false })
    };
    operate(1, Operation::Promote {}).expect("promoted");
    assert!(grow(1, 12 * GIB + 1).expect_err("half a sector").starts_with("LS-0038"));
    grow(1, 12 * GIB).expect("grown");
    operate(1, Operation::Demote {}).expect("demoted");
    for node in [1, 2] {
        let admitted = Command::ResourceAdmit { resource: alpha(), node: entry(3) };
        cluster.ask(node, admitted).expect("admitted");
    }
    let Ok(Answer::File(mut file)) = cluster.ask(1, Command::ResourceFile { resource: alpha() })
    else {
        panic!("no description");
    };
    assert_eq!(file.volumes[0].size_bytes, 9 * GIB, "what stores are laid out for");
    file.nodes.retain(|node| node.id != 3);
    file.nodes.push(entry(3));
    cluster.ask(3, Command::ResourceDefine { file }).expect("defined");
    cluster.wait_for("its promotion", || operate(3, Operation::Promote {}).map(|_| ()));
    assert!(grow(3, 80 * GIB).expect_err("no room on 1 and 2").starts_with("LS-0022"));
    grow(3, 72 * GIB).expect("as much as there is room for");
}

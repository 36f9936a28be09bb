//! Disks by ublk, with nodes that are made up.

use std::path::PathBuf;

use super::*;

/// A node as its socket's name says: `here` and `away` are of this host and of another, `has` is of this one and has the disk.
fn node_of_sockets(node: &Node, command: Command) -> Result<Answer, Problem> {
    let kind = node.socket.file_name().unwrap().to_str().unwrap().to_owned();
    let disk = || HostDisk { number: 3, resource: "web".to_owned(), volume: 0, ready: true };
    match (command, kind.as_str()) {
        (_, "gone") => Err(Problem::new(NO_WAY, "gone does not answer".to_owned())),
        (Command::UblkList {}, "away") => {
            Ok(Answer::HostDisks { host: "another".to_owned(), disks: vec![disk()] })
        }
        (Command::UblkList {}, kind) => {
            let disks = if kind == "has" { vec![disk()] } else { Vec::new() };
            Ok(Answer::HostDisks { host: "this-boot".to_owned(), disks })
        }
        (Command::UblkAttach { .. }, "has" | "here") => {
            assert_eq!(node.identity, Some(0xbeef));
            Ok(Answer::HostDisk(disk()))
        }
        (Command::UblkDetach { .. }, "has") => Ok(Answer::Done {}),
        (command, kind) => panic!("{kind} is not to be asked for {command:?}"),
    }
}

fn ublk_disk(sockets: &[&str]) -> Disk {
    let admin = sockets.iter().map(PathBuf::from).collect();
    let known = known("web")().unwrap();
    Disk { via: Way::Ublk, id: Some("beef".to_owned()), admin, ..known }
}

#[test]
fn ublk_asks_a_node_of_this_host_only() {
    let root = Root::of("ublk");
    root.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    root.put("dev/ublk-control", "");
    root.put("dev/ublkb3", "");
    root.put("sys/block/ublkb3/size", "8\n");
    let ublk = Ublk { ask: node_of_sockets };
    let first = Disk { state: State::Making, ..ublk_disk(&["away", "gone"]) };
    let why = ublk.make(&root.host(), &first).err().unwrap().why;
    assert!(why.contains("no node of this host"), "{why}");
    assert!(why.contains("away: a node of another host") && why.contains("gone does not"), "{why}");
    let made = ublk.make(&root.host(), &ublk_disk(&["away", "here"])).ok().unwrap();
    assert_eq!(made.disk, "ublkb3");
    // Who has it is asked first, so that it is not made twice.
    let made = ublk.make(&root.host(), &ublk_disk(&["here", "has"])).ok().unwrap();
    assert!(made.why.contains("has"), "{}", made.why);
    assert_eq!(ublk.answers(&root.host(), &ublk_disk(&["here", "has"])), Ok(()));
    let why = ublk.answers(&root.host(), &ublk_disk(&["here", "gone"])).unwrap_err();
    assert!(why.contains("gone does not answer"), "{why}");
    let states = ublk.paths(&root.host(), &ublk_disk(&["here", "has"]));
    assert_eq!(states.iter().map(|one| one.state.as_str()).collect::<Vec<_>>(), ["live"]);
}

#[test]
fn ublk_disk_whose_node_is_away_is_found_by_its_link_and_is_not_taken_away() {
    let root = Root::of("ublk-away");
    root.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    root.put("sys/block/ublkb3/size", "8\n");
    let (host, ublk) = (root.host(), Ublk { ask: node_of_sockets });
    assert_eq!(ublk.find(&host, &ublk_disk(&["gone"])), None);
    assert_eq!(
        ublk.unmake(&host, &ublk_disk(&["here"]), Going::default()),
        Ok(()),
        "nothing was made"
    );
    host.link(&target("web"), "ublkb3").unwrap();
    assert_eq!(ublk.find(&host, &ublk_disk(&["gone"])).as_deref(), Some("ublkb3"));
    let name = Some("ublkb3".to_owned());
    let why = ublk.unmake(&host, &ublk_disk(&["gone"]), Going { name, ..Going::default() });
    let why = why.unwrap_err();
    assert!(why.contains("gone does not answer"), "{why}");
    assert_eq!(ublk.unmake(&host, &ublk_disk(&["has"]), Going::default()), Ok(()));
}

#[test]
fn what_a_node_takes_away_is_what_was_looked_at() {
    let root = Root::of("ublk-two");
    root.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    for name in ["ublkb3", "ublkb4"] {
        root.put(&format!("sys/block/{name}/dev"), "259:7\n");
    }
    // Two nodes of this host made one, since the other was away.
    let ask = |node: &Node, command: Command| match (command, node.socket.to_str()) {
        (Command::UblkList {}, Some("second")) => {
            let disk = HostDisk { number: 4, resource: "web".into(), volume: 0, ready: true };
            Ok(Answer::HostDisks { host: "this-boot".to_owned(), disks: vec![disk] })
        }
        (command, _) => node_of_sockets(node, command),
    };
    let (host, ublk) = (root.host(), Ublk { ask });
    assert_eq!(ublk.going(&host, &ublk_disk(&["has", "second"]), &[]), ["ublkb3", "ublkb4"]);
    // A link that is left over is none of its disks where all say that they have none.
    host.link(&target("web"), "ublkb4").unwrap();
    assert_eq!(ublk.find(&host, &ublk_disk(&["here"])), None);
    assert_eq!(ublk.find(&host, &ublk_disk(&["here", "gone"])).as_deref(), Some("ublkb4"));
}

#[test]
fn a_disk_whose_node_is_away_is_not_said_to_be_gone() {
    let root = Root::of("ublk-force");
    root.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    root.put("sys/block/ublkb3/size", "8\n");
    let (here, _) = puppets(&root, [None; 3]);
    let here = Here { ublk: Box::new(Ublk { ask: node_of_sockets }), ..here };
    here.host.link(&target("web"), "ublkb3").unwrap();
    Attached::open(&here.directory).unwrap().put(&ublk_disk(&["gone"])).unwrap();
    let problem = here.detach(&target("web"), true, State::Leaving).unwrap_err();
    assert!(problem.message.contains("gone does not answer"), "{problem}");
    assert_eq!(here.host.linked(&target("web")).as_deref(), Some("ublkb3"));
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Ublk, State::Leaving)]);
}

#[test]
fn a_disk_that_may_have_been_made_stays_written_down() {
    let root = Root::of("lost-answer");
    root.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    root.put("dev/ublk-control", "");
    let ask = |node: &Node, command: Command| match command {
        Command::UblkAttach { .. } => Err(Problem::new(PROTOCOL, "it closed the connection")),
        command => node_of_sockets(node, command),
    };
    let (here, told) = puppets(&root, [None, Some("nvme0n1"), None]);
    let here = Here { ublk: Box::new(Ublk { ask }), ..here };
    let wanted = ublk_disk(&["here"]);
    let problem = here.attach(&target("web"), Via::Auto, || Ok(wanted)).unwrap_err();
    assert!(problem.is_kind(NO_WAY) && problem.message.contains("closed"), "{problem}");
    assert_eq!(asked(&told[1]), [""; 0]);
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Ublk, State::Making)]);
    // While the node that may have it does not answer no other one makes a second.
    let of_two = |first: &str| ublk_disk(&[first, "here"]);
    let silent = Disk { state: State::Making, via: Way::Ublk, ..of_two("gone") };
    Attached::open(&here.directory).unwrap().put(&silent).unwrap();
    let problem =
        here.attach(&target("web"), Via::Auto, || Ok(of_two("gone"))).map(|_| ()).unwrap_err();
    assert!(problem.message.contains("has the disk is not known: gone"), "{problem}");
    assert_eq!(asked(&told[1]), [""; 0]);
    // Nor is it forgotten while the node that may have it does not answer, unless that is wanted.
    let gone = Disk { via: Way::Ublk, ..ublk_disk(&["gone"]) };
    Attached::open(&here.directory).unwrap().put(&gone).unwrap();
    let problem = here.detach(&target("web"), false, State::Leaving).unwrap_err();
    assert!(problem.message.contains("gone does not answer"), "{problem}");
    assert_eq!(written(&here), [("web/0".to_owned(), Way::Ublk, State::Leaving)]);
    here.detach(&target("web"), true, State::Leaving).unwrap();
    assert_eq!(written(&here), []);
}

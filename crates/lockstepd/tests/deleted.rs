//! A resource that the others delete, or whose maker leaves, while a node is making its part of it: real processes.
//!
//! What keeps a node at it is its settings: they are a pipe that nobody fills, and reading them again is a job that
//! stands before the making.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command as Process;

use harness::Cluster;
use wire::admin::{
    Command, FileMember, FileNode, FileStore, Request, ResourceFile, StoreKind, encode_line,
};

const MIB: u64 = 1 << 20;

fn alpha() -> String {
    "alpha".to_owned()
}

/// A node that has been asked to make its part of `alpha` and stands still with it.
struct Making {
    answers: BufReader<UnixStream>,
    settings: PathBuf,
    text: String,
}

impl Making {
    fn begin(cluster: &Cluster, node: u16) -> Making {
        let settings = cluster.home(node).join("node.toml");
        let text = std::fs::read_to_string(&settings).unwrap();
        std::fs::remove_file(&settings).unwrap();
        assert!(Process::new("mkfifo").arg(&settings).status().unwrap().success());
        let mut socket = UnixStream::connect(cluster.home(node).join("admin.sock")).unwrap();
        socket.set_read_timeout(Some(harness::PATIENCE)).unwrap();
        let mut lines = Vec::new();
        let create = Command::ResourceCreate { resource: alpha(), force: false };
        for (id, command) in [(1, Command::Reload {}), (2, create)] {
            encode_line(&Request::new(id, command), &mut lines).unwrap();
        }
        socket.write_all(&lines).unwrap();
        Making { answers: BufReader::new(socket), settings, text }
    }

    /// Lets it go on; what it answers to the making.
    fn end(mut self) -> String {
        // It waits for its reader, who may be gone when the test has failed.
        std::thread::spawn(move || std::fs::write(self.settings, self.text));
        let mut reloaded = String::new();
        self.answers.read_line(&mut reloaded).unwrap();
        let mut made = String::new();
        self.answers.read_line(&mut made).unwrap();
        made
    }
}

impl Making {
    /// Who asked for it goes away, and the node hears that before it goes on.
    fn leave(self, cluster: &Cluster, node: u16) {
        drop(self.answers);
        for _ in 0..2 {
            cluster.ask(node, Command::Ping {}).expect("it goes on");
        }
        std::thread::spawn(move || std::fs::write(self.settings, self.text));
    }
}

#[test]
fn a_part_whose_maker_leaves_is_not_made_and_can_be_made_again() {
    let mut cluster = Cluster::new("maker-left", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.ask(1, Command::ResourceDefine { file: Box::new(file) }).expect("defined");
    let making = Making::begin(&cluster, 1);
    let is_uncreated = |wanted: bool| {
        let status = cluster.status(1, "alpha");
        if status.uncreated == wanted { Ok(()) } else { Err(format!("{status:?}")) }
    };
    cluster.wait_for("node 1 to be about to make it", || is_uncreated(false));
    making.leave(&cluster, 1);
    cluster.wait_for("node 1 to have given it up", || is_uncreated(true));
    assert!(!cluster.home(1).join("volumes/alpha-0.img").exists());
    let create = Command::ResourceCreate { resource: alpha(), force: false };
    cluster.ask(1, create).expect("created");
}

/// Nodes 1 and 2 have made and deleted `alpha`, which node 3 is making, and has heard of it.
fn deleted_while_made(cluster: &Cluster) -> Making {
    let file = cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    for node in 1..=3 {
        let define = Command::ResourceDefine { file: Box::new(file.clone()) };
        cluster.ask(node, define).expect("defined");
    }
    for node in 1..=2 {
        let create = Command::ResourceCreate { resource: alpha(), force: false };
        cluster.ask(node, create).expect("created");
    }
    let making = Making::begin(cluster, 3);
    for node in 1..=2 {
        let delete = Command::ResourceDelete { resource: alpha(), force: false, unused: true };
        cluster.ask(node, delete).expect("deleted");
    }
    // Another one: who has heard of it has heard all that was said before.
    let mut beta = cluster.resource("beta", 16 * MIB, &[1, 2]);
    beta.id = 0xbeef;
    for node in 1..=2 {
        let define = Command::ResourceDefine { file: Box::new(beta.clone()) };
        cluster.ask(node, define).expect("defined");
        let create = Command::ResourceCreate { resource: "beta".to_owned(), force: false };
        cluster.ask(node, create).expect("created");
    }
    cluster.wait_for("node 3 to hear of the other resource", || {
        cluster.ask(3, Command::ResourceFile { resource: "beta".to_owned() }).map(drop)
    });
    making
}

#[test]
fn a_part_that_is_made_when_its_resource_is_deleted_is_left_over_once_it_is_made() {
    let mut cluster = Cluster::new("deleted-made", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let making = deleted_while_made(&cluster);
    let store = cluster.home(3).join("volumes/alpha-0.img");
    let made = making.end();
    assert!(made.contains("done"), "{made}");
    cluster.wait_for("node 3 to say what its part is", || {
        let status = cluster.status(3, "alpha");
        let told = status.warnings.iter().any(|words| words.contains("resource forget alpha"));
        if status.left_over && told { Ok(()) } else { Err(format!("{status:?}")) }
    });
    assert!(store.exists(), "nothing that a peer says removes a copy");
    let forget = Command::ResourceForget { resource: alpha(), stores: true };
    cluster.ask(3, forget).expect("forgotten");
    assert!(!store.exists());
}

#[test]
fn a_part_that_could_not_be_made_goes_when_its_resource_was_deleted_meanwhile() {
    let mut cluster = Cluster::new("deleted-unmade", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let store = cluster.home(3).join("volumes/alpha-0.img");
    std::fs::create_dir_all(store.parent().unwrap()).unwrap();
    std::fs::write(&store, "somebody else's").unwrap();
    let made = deleted_while_made(&cluster).end();
    assert!(made.contains("LS-0020"), "{made}");
    cluster.wait_for("node 3 to know it no more", || {
        match cluster.ask(3, Command::ResourceFile { resource: alpha() }) {
            Err(_) => Ok(()),
            Ok(file) => Err(format!("{file:?}")),
        }
    });
    assert_eq!(std::fs::read(&store).unwrap(), b"somebody else's");
    for name in ["alpha.toml", "alpha.uncreated"] {
        assert!(!cluster.home(3).join("resources").join(name).exists(), "{name}");
    }
}

#[test]
fn a_node_that_was_killed_while_it_made_its_part_takes_back_what_it_had_begun() {
    let mut cluster = Cluster::new("killed-making", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let file = cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    for node in 1..=3 {
        let define = Command::ResourceDefine { file: Box::new(file.clone()) };
        cluster.ask(node, define).expect("defined");
    }
    cluster.kill(3);
    // As far as it may have come: a file without a superblock, and one that is kept and was made longer.
    let image = cluster.home(3).join("volumes/alpha-0.img");
    let kept = cluster.home(3).join("before.img");
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    for path in [&image, &kept] {
        std::fs::write(path, [7; 8192]).unwrap();
    }
    let [made, longer] = [&image, &kept].map(|path| harness::text(path));
    let note = format!("made = [{made:?}]\n[[kept]]\npath = {longer:?}\nlength_bytes = 5000\n");
    std::fs::write(cluster.home(3).join("resources/alpha.uncreated"), note).unwrap();
    cluster.start(3);
    assert!(cluster.status(3, "alpha").uncreated);
    assert!(!image.exists(), "half a store is left");
    assert!(std::fs::read(&kept).unwrap() == [7; 5000]);
    for node in 1..=3 {
        let create = Command::ResourceCreate { resource: alpha(), force: false };
        cluster.ask(node, create).expect("created");
    }
    // What is whole stays.
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(3);
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    assert!(image.exists());
}

#[test]
fn a_resource_is_left_over_no_more_once_those_who_deleted_it_have_it_again() {
    let mut cluster = Cluster::new("deleted-again", 3);
    (1..=3).for_each(|node| cluster.start(node));
    let mut file = cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    cluster.create(&file);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    let delete = Command::ResourceDelete { resource: alpha(), force: true, unused: false };
    cluster.ask(1, delete).expect("deleted");
    let told = |expected: bool| {
        for node in 2..=3 {
            cluster.wait_for("what node 1 says to be heard", || {
                let status = cluster.status(node, "alpha");
                let words = status.warnings.iter().any(|what| what.contains("deleted on other"));
                let is_so = (status.left_over, words) == (expected, expected);
                if is_so { Ok(()) } else { Err(format!("{status:?}")) }
            });
        }
    };
    told(true);
    file.members.retain(|member| member.node != 1);
    cluster.ask(1, Command::ResourceDefine { file: Box::new(file) }).expect("a client");
    told(false);
}

#[test]
fn what_a_description_names_since_a_resource_began_goes_with_it_only_if_it_is_its_own() {
    let mut cluster = Cluster::new("deleted-other", 1);
    cluster.start(1);
    let mut file = cluster.resource("alpha", 16 * MIB, &[1]);
    let mut other = cluster.resource("beta", 16 * MIB, &[1]);
    other.id = 0xbe7a;
    cluster.create(&other);
    cluster.create(&file);
    let forget = Command::ResourceForget { resource: "beta".to_owned(), stores: false };
    cluster.ask(1, forget).expect("its store is left");
    let image = cluster.home(1).join("volumes/beta-0.img");
    assert!(image.exists());
    // An operator mistakes one for the other.
    file.members[0].stores = vec![FileStore {
        volume: 0,
        kind: StoreKind::File,
        path: Some("volumes/beta-0.img".to_owned()),
        metadata_path: None,
        keep: false,
    }];
    cluster.ask(1, Command::ResourceDefine { file: Box::new(file) }).expect("defined anew");
    let delete = Command::ResourceDelete { resource: alpha(), force: true, unused: false };
    let refused = cluster.ask(1, delete).expect_err("it is not alpha's");
    assert!(refused.contains("it is left as it is"), "{refused}");
    assert!(image.exists(), "another resource's copy was removed");
}

/// A node's connection for commands whose answers are read later.
fn send(cluster: &Cluster, commands: Vec<Command>) -> BufReader<UnixStream> {
    let mut socket = UnixStream::connect(cluster.home(1).join("admin.sock")).unwrap();
    socket.set_read_timeout(Some(harness::PATIENCE)).unwrap();
    let mut lines = Vec::new();
    for (id, command) in (1..).zip(commands) {
        encode_line(&Request::new(id, command), &mut lines).unwrap();
    }
    socket.write_all(&lines).unwrap();
    BufReader::new(socket)
}

#[test]
fn a_resource_whose_name_another_had_that_is_being_deleted_is_there_after_a_start() {
    let mut cluster = Cluster::new("deleted-name", 1);
    cluster.start(1);
    let old = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.create(&old);
    let settings = cluster.home(1).join("node.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::remove_file(&settings).unwrap();
    assert!(Process::new("mkfifo").arg(&settings).status().unwrap().success());
    let delete = Command::ResourceDelete { resource: alpha(), force: false, unused: false };
    let mut deleted = send(&cluster, vec![Command::Reload {}, delete]);
    cluster.wait_for("the name to be free", || {
        match cluster.ask(1, Command::ResourceFile { resource: alpha() }) {
            Err(why) if why.contains("LS-0010") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let new = ResourceFile { id: old.id + 1, ..old };
    let define = Command::ResourceDefine { file: Box::new(new.clone()) };
    let mut early = send(&cluster, vec![define]);
    let mut answer = String::new();
    early.read_line(&mut answer).unwrap();
    let (pipe, words) = (settings.clone(), text.clone());
    std::thread::spawn(move || std::fs::write(pipe, words));
    for _ in 0..2 {
        deleted.read_line(&mut String::new()).unwrap();
    }
    // It was defined, or it was said that it cannot be yet.
    if answer.contains("error") {
        assert!(answer.contains("LS-0004"), "{answer}");
        cluster.ask(1, Command::ResourceDefine { file: Box::new(new) }).expect("free by now");
    }
    cluster.ask(1, Command::ResourceCreate { resource: alpha(), force: false }).expect("created");
    let bytes = harness::content(1, 4096);
    cluster.open(1, "alpha").write(0, &bytes).unwrap();
    cluster.kill(1);
    std::fs::remove_file(&settings).unwrap();
    std::fs::write(&settings, text).unwrap();
    cluster.start(1);
    assert!(cluster.open(1, "alpha").read(0, 4096).unwrap() == bytes);
}

#[test]
fn who_asks_a_node_to_end_its_part_is_told_that_it_cannot_write_that() {
    let mut cluster = Cluster::new("deleted-unwritten", 1);
    cluster.start(1);
    let mut file = cluster.resource("alpha", 16 * MIB, &[1]);
    file.nodes.push(FileNode { id: 2, name: "other".to_owned(), addresses: Vec::new() });
    let member = FileMember { node: 2, in_sync: Some(true), ..file.members[0].clone() };
    file.members.push(member);
    file.members[0].voter = Some(7);
    file.members[0].incarnation = Some(8);
    file.members[0].in_sync = Some(false);
    cluster.ask(1, Command::ResourceDefine { file: Box::new(file.clone()) }).expect("defined");
    // Stands where the next description is written.
    std::fs::create_dir(cluster.home(1).join("resources/alpha.toml.new")).unwrap();
    file.members.remove(0);
    let define = Command::ResourceDefine { file: Box::new(file) };
    let mut answer = String::new();
    send(&cluster, vec![define]).read_line(&mut answer).unwrap();
    assert!(answer.contains("LS-0021"), "{answer}");
}

#[test]
fn a_definition_that_cannot_be_written_leaves_no_word_that_its_part_was_never_made() {
    let mut cluster = Cluster::new("defined-unwritten", 1);
    cluster.start(1);
    let description = cluster.home(1).join("resources/alpha.toml");
    std::fs::create_dir_all(&description).unwrap();
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    let define = || Command::ResourceDefine { file: Box::new(file.clone()) };
    let refused = cluster.ask(1, define()).expect_err("a directory stands in its place");
    assert!(refused.contains("LS-0021"), "{refused}");
    let note = description.with_extension("uncreated");
    assert!(!note.exists(), "what others describe later would be taken for never made");
    // Of a part that is not made yet it stays.
    std::fs::remove_dir(&description).unwrap();
    cluster.ask(1, define()).expect("defined");
    assert!(note.exists());
    std::fs::remove_file(&description).unwrap();
    std::fs::create_dir(&description).unwrap();
    cluster.ask(1, define()).expect_err("a directory stands in its place");
    assert!(note.exists());
}

#[test]
fn a_node_that_lost_a_description_only_has_its_part_whatever_was_left_beside_it() {
    let mut cluster = Cluster::new("defined-again", 3);
    (1..=3).for_each(|node| cluster.start(node));
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.kill(3);
    let resources = cluster.home(3).join("resources");
    std::fs::remove_file(resources.join("alpha.toml")).unwrap();
    // Of a definition that ended half way.
    std::fs::write(resources.join("alpha.uncreated"), "").unwrap();
    for _ in 0..2 {
        cluster.start(3);
        cluster.wait_for("node 3 to have its part", || {
            match cluster.ask(3, Command::Status { resource: Some(alpha()) }) {
                Ok(_) if !cluster.status(3, "alpha").uncreated => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        cluster.wait_in_sync(3, "alpha", &[1, 2, 3]);
        cluster.kill(3);
    }
}

#[test]
fn a_description_that_cannot_be_removed_is_told_to_whoever_deletes() {
    let mut cluster = Cluster::new("deleted-kept", 1);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1]));
    let description = cluster.home(1).join("resources/alpha.toml");
    std::fs::remove_file(&description).unwrap();
    std::fs::create_dir(&description).unwrap();
    let delete = Command::ResourceDelete { resource: alpha(), force: false, unused: false };
    let refused = cluster.ask(1, delete).expect_err("something is left");
    assert!(refused.contains("LS-0021") && refused.contains("alpha.toml"), "{refused}");
}

/// Somebody kept a copy of a description beside it.
#[test]
fn a_description_under_another_name_is_left_alone() {
    let mut cluster = Cluster::new("copied-description", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.create(&file);
    let bytes = harness::content(1, 4096);
    cluster.open(1, "alpha").write(0, &bytes).unwrap();
    cluster.kill(1);
    let resources = cluster.home(1).join("resources");
    let text = std::fs::read_to_string(resources.join("alpha.toml")).unwrap();
    std::fs::write(resources.join("alpha-old.toml"), &text).unwrap();
    let renamed = text.replace("name = \"alpha\"", "name = \"omega\"");
    assert_ne!(renamed, text);
    std::fs::write(resources.join("omega.toml"), renamed).unwrap();
    cluster.start(1);
    assert!(cluster.open(1, "alpha").read(0, 4096).unwrap() == bytes);
    let errors: Vec<String> = cluster
        .log(1)
        .lines()
        .filter(|line| line.contains("left alone"))
        .map(str::to_owned)
        .collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("alpha-old.toml") && errors[1].contains("omega.toml"), "{errors:?}");
}

#[test]
fn a_delete_that_a_kill_interrupted_is_completed_at_the_next_start() {
    let mut cluster = Cluster::new("deleted-half", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.create(&file);
    let settings = cluster.home(1).join("node.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::remove_file(&settings).unwrap();
    assert!(Process::new("mkfifo").arg(&settings).status().unwrap().success());
    // The helper reads settings that do not come, and what is to be removed waits behind that.
    let delete = Command::ResourceDelete { resource: alpha(), force: false, unused: false };
    let _answers = send(&cluster, vec![Command::Reload {}, delete]);
    cluster.wait_for("the name to be free", || {
        match cluster.ask(1, Command::ResourceFile { resource: alpha() }) {
            Err(why) if why.contains("LS-0010") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    cluster.kill(1);
    let store = cluster.home(1).join("volumes/alpha-0.img");
    assert!(store.exists() && cluster.home(1).join("resources/alpha.toml").exists());
    std::fs::remove_file(&settings).unwrap();
    std::fs::write(&settings, text).unwrap();
    cluster.start(1);
    cluster.wait_for("the rest to go", || match store.exists() {
        false => Ok(()),
        true => Err("the store is there".to_owned()),
    });
    // Whoever makes it again makes it anew.
    cluster.wait_for("the name to be free again", || {
        cluster.ask(1, Command::ResourceDefine { file: Box::new(file.clone()) }).map(|_| ())
    });
    cluster.ask(1, Command::ResourceCreate { resource: alpha(), force: false }).expect("created");
    let bytes = harness::content(1, 4096);
    cluster.open(1, "alpha").write(0, &bytes).unwrap();
    assert!(!cluster.home(1).join("resources/alpha.ending").exists());
    // Nor is what was left by a node that died at the very end of it taken for what it was.
    std::fs::write(cluster.home(1).join("resources/alpha.ending"), "0000000000000001\n").unwrap();
    cluster.kill(1);
    cluster.start(1);
    assert!(cluster.open(1, "alpha").read(0, 4096).unwrap() == bytes);
    assert!(!cluster.home(1).join("resources/alpha.ending").exists());
}

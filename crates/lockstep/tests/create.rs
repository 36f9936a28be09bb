//! Making a resource when something comes between: an interrupt, a crash, a node that is down, nodes of two clusters.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use harness::TestCluster;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Stands before a node's admin socket, and holds the first request of one kind until it is told to go on.
struct Gate {
    path: PathBuf,
    reached: Receiver<()>,
    open: Sender<()>,
    /// Connections that held a name have ended, and the node was told.
    let_go: Receiver<()>,
}

impl Gate {
    /// Holds a request to make a store.
    fn before(cluster: &TestCluster, node: &str) -> Gate {
        Gate::holding(cluster, node, "\"resource-create\"")
    }

    /// Holds a request with these words in it.
    fn holding(cluster: &TestCluster, node: &str, what: &'static str) -> Gate {
        let path = cluster.directory.join(format!("{node}.gate"));
        let listener = UnixListener::bind(&path).unwrap();
        let socket = cluster.directory.join(node).join("admin.sock");
        let (reach, reached) = channel();
        let (open, opened) = channel();
        let (end, let_go) = channel();
        let opened = Arc::new(Mutex::new(opened));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, socket) = (client.unwrap(), socket.clone());
                let (reach, opened, end) = (reach.clone(), Arc::clone(&opened), end.clone());
                thread::spawn(move || {
                    if pass(client, &socket, (what, &reach, &opened)) {
                        // An error means that the test is over.
                        let _over = end.send(());
                    }
                });
            }
        });
        Gate { path, reached, open, let_go }
    }
}

/// One connection: a request, its answer. Whether a name was held by it.
fn pass(
    client: UnixStream,
    socket: &Path,
    (what, reach, opened): (&str, &Sender<()>, &Mutex<Receiver<()>>),
) -> bool {
    let mut requests = BufReader::new(client.try_clone().unwrap());
    let mut to_client = client;
    let Ok(node) = UnixStream::connect(socket) else { return false };
    let (mut to_node, mut answers) = (node.try_clone().unwrap(), BufReader::new(node));
    let (mut line, mut holds) = (String::new(), false);
    while requests.read_line(&mut line).is_ok_and(|count| count > 0) {
        let held = line.contains(what) && reach.send(()).is_ok();
        if held && opened.lock().unwrap().recv().is_err() {
            // The test is over.
            return holds;
        }
        holds |= line.contains("\"resource-reserve\"");
        to_node.write_all(line.as_bytes()).unwrap();
        line.clear();
        answers.read_line(&mut line).unwrap();
        if to_client.write_all(line.as_bytes()).is_err() {
            return holds;
        }
        line.clear();
    }
    holds
}

/// Kills a `create`, and waits until the node behind the gate has been told, as the others are at once.
fn kill(child: &mut Child, gate: &Gate) {
    child.kill().unwrap();
    child.wait().unwrap();
    gate.let_go.recv_timeout(harness::PATIENCE).expect("it held the name");
}

/// `lockstep resource create`, with node c behind the gate.
fn creating(cluster: &TestCluster, gate: &Gate) -> Child {
    held_at(cluster, gate, "c", &AGAIN)
}

/// A command that stands at the gate before a node.
fn held_at(cluster: &TestCluster, gate: &Gate, node: &str, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    for other in ["a", "b", "c"] {
        let socket = cluster.directory.join(other).join("admin.sock");
        command.arg("--admin").arg(if other == node { gate.path.clone() } else { socket });
    }
    command.args(words);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    gate.reached.recv_timeout(harness::PATIENCE).expect("all that comes before is done");
    child
}

const JOIN: [&str; 5] = ["resource", "add-replica", "disk", "--node", "a"];

/// A resource of b and c that nobody has used, to which a was about to be added: its node is killed, and so is the
/// command, once it stands at the gate.
fn killed_while_joining(cluster: &TestCluster, gate: &Gate, node: &str) {
    let create = ["resource", "create", "disk", "--size", "4MiB", "--replicas", "2"];
    cluster.done(&[&create[..], &["--nodes", "b,c"]].concat());
    let mut child = held_at(cluster, gate, node, &JOIN);
    child.kill().unwrap();
    child.wait().unwrap();
    cluster.done(&["dev", "kill", "a"]);
    cluster.done(&["dev", "start", "a"]);
    cluster.wait("disk", "healthy");
    let told = cluster.done(&["explain", "disk"]);
    assert!(!told.contains("not made"), "{told}");
    assert!(told.contains("remove-replica disk --node a"), "{told}");
    assert!(cluster.done(&["resource", "list"]).contains("healthy"));
}

fn image_of_a(cluster: &TestCluster) -> PathBuf {
    cluster.directory.join("a/volumes/disk-0.img")
}

/// Ctrl-C, and it has been heard.
fn interrupt(cluster: &TestCluster, child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    cluster.until("the signal is there", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        // None waits to be delivered.
        status.lines().any(|line| line.starts_with("ShdPnd:") && line.ends_with("0000000000000000"))
    });
}

const AGAIN: [&str; 7] = ["resource", "create", "disk", "--size", "4MiB", "--replicas", "3"];

#[test]
fn a_create_that_is_interrupted_takes_back_what_it_made() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let child = creating(&cluster, &gate);
    interrupt(&cluster, &child);
    gate.open.send(()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("LS-0920") && said.contains("nothing was changed"), "{said}");
    cluster.ends_with(3, &["status", "disk"]);
    for node in ["a", "b", "c"] {
        let image = cluster.directory.join(node).join("volumes/disk-0.img");
        assert!(!image.exists(), "{} is left", image.display());
    }
}

#[test]
fn a_create_that_is_interrupted_takes_nothing_back_that_a_client_has_used() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let child = creating(&cluster, &gate);
    // Two of three are a majority.
    cluster.open("a", "disk").write(0, &[7; 4096]).unwrap();
    interrupt(&cluster, &child);
    gate.open.send(()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("LS-0920") && said.contains("it was used"), "{said}");
    assert!(said.contains("lockstep explain disk"), "{said}");
    assert!(cluster.holds("disk", "b", 0, 7));
}

#[test]
fn a_create_that_is_under_way_is_not_taken_for_an_interrupted_one() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let child = creating(&cluster, &gate);
    let refused = cluster.ends_with(1, &AGAIN);
    assert!(refused.contains("LS-0915") && refused.contains("under way"), "{refused}");
    assert!(refused.contains("nothing was changed"), "{refused}");
    gate.open.send(()).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.wait("disk", "healthy");
    let resource = cluster.resource("disk");
    assert_eq!((&resource["left_over"], &resource["warnings"]), (&false.into(), &json!([])));
}

#[test]
fn of_two_creates_of_one_name_at_once_exactly_one_makes_it() {
    let cluster = TestCluster::up(3, "file");
    let start = |name: &str| {
        let words = ["resource", "create", name, "--size", "4MiB", "--replicas", "3"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(words).env("LOCKSTEP_DIR", &cluster.directory).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    for name in ["r0", "r1", "r2", "r3", "r4", "r5"] {
        let both = [start(name), start(name)];
        let ended = both.map(|child| child.wait_with_output().unwrap());
        let lost: Vec<String> = ended
            .iter()
            .filter(|one| !one.status.success())
            .map(|one| String::from_utf8_lossy(&one.stderr).into_owned())
            .collect();
        let [said] = lost.as_slice() else { panic!("{name}: {ended:?}") };
        assert!(said.contains("LS-0915"), "{said}");
        cluster.wait(name, "healthy");
        let resource = cluster.resource(name);
        assert_eq!((&resource["left_over"], &resource["warnings"]), (&false.into(), &json!([])));
    }
}

#[test]
fn a_create_that_was_killed_is_said_to_be_half_made_and_is_made_when_it_is_said_again() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let mut child = creating(&cluster, &gate);
    kill(&mut child, &gate);
    // What is known of it is not only in memory.
    cluster.done(&["dev", "down"]);
    cluster.done(&["dev", "up", "--detach"]);
    let told = cluster.done(&["explain", "disk"]);
    assert!(
        told.contains("resource delete disk") && told.contains("resource create disk"),
        "{told}"
    );
    assert!(!told.contains("force"), "{told}");
    assert!(cluster.done(&["resource", "list"]).contains("not made"));
    cluster.done(&AGAIN);
    cluster.wait("disk", "healthy");
    let refused = cluster.ends_with(1, &AGAIN);
    assert!(refused.contains("LS-0915"), "a whole one is not replaced: {refused}");
}

#[test]
fn a_half_made_resource_that_was_used_is_not_replaced() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let mut child = creating(&cluster, &gate);
    kill(&mut child, &gate);
    // Two of three are a majority.
    cluster.open("a", "disk").write(0, &[7; 4096]).unwrap();
    let refused = cluster.ends_with(1, &AGAIN);
    assert!(refused.contains("LS-0915"), "{refused}");
    // Nodes look for themselves: it may be used after the command line has looked.
    for node in ["a", "b"] {
        let mut node =
            UnixStream::connect(cluster.directory.join(node).join("admin.sock")).unwrap();
        let command = r#"{"verb":"resource-delete","resource":"disk","unused":true}"#;
        writeln!(node, r#"{{"version":1,"id":1,"command":{command}}}"#).unwrap();
        let mut answer = String::new();
        BufReader::new(node).read_line(&mut answer).unwrap();
        assert!(answer.contains("LS-0015"), "{answer}");
    }
    assert!(cluster.holds("disk", "b", 0, 7));
}

#[test]
fn a_half_made_resource_is_not_replaced_while_a_node_is_silent_or_a_store_is_missing() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "c");
    let mut child = creating(&cluster, &gate);
    kill(&mut child, &gate);
    cluster.done(&["dev", "kill", "b"]);
    let two = ["resource", "create", "disk", "--size", "4MiB", "--replicas", "2"];
    let refused = cluster.ends_with(1, &two);
    assert!(refused.contains("LS-0915"), "b may have been used: {refused}");
    // As if its disk were not there: nobody knows what it holds.
    let image = cluster.directory.join("b/volumes/disk-0.img");
    std::fs::rename(&image, image.with_extension("away")).unwrap();
    cluster.done(&["dev", "start", "b"]);
    let refused = cluster.ends_with(1, &AGAIN);
    assert!(refused.contains("LS-0915") && refused.contains("resource delete"), "{refused}");
    cluster.done(&["resource", "delete", "disk", "--force"]);
    cluster.done(&AGAIN);
}

#[test]
fn a_replica_whose_node_was_killed_before_its_store_was_made_is_added_when_it_is_said_again() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::before(&cluster, "a");
    killed_while_joining(&cluster, &gate, "a");
    cluster.done(&JOIN);
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "a"), "in-sync");
    assert_eq!(cluster.resource("disk")["warnings"], json!([]));
}

#[test]
fn a_replica_whose_node_was_killed_before_the_others_knew_of_it_is_added_when_it_is_said_again() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::holding(&cluster, "b", "\"do\":\"add-replica\"");
    killed_while_joining(&cluster, &gate, "b");
    assert!(image_of_a(&cluster).exists());
    cluster.done(&JOIN);
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "a"), "in-sync");
    assert_eq!(cluster.resource("disk")["warnings"], json!([]));
}

#[test]
fn what_an_interrupted_add_replica_has_left_goes_with_remove_replica_or_with_the_resource() {
    for removing in [&["resource", "remove-replica", "disk", "--node", "a"][..], &DELETE] {
        let cluster = TestCluster::up(3, "file");
        let gate = Gate::holding(&cluster, "b", "\"do\":\"add-replica\"");
        killed_while_joining(&cluster, &gate, "b");
        cluster.done(removing);
        assert!(!image_of_a(&cluster).exists(), "{removing:?}");
        if removing != DELETE {
            assert!(!cluster.done(&["explain", "disk"]).contains("add-replica"));
            let refused = cluster.ends_with(3, removing);
            assert!(refused.contains("LS-0919"), "{refused}");
            cluster.done(&DELETE);
        }
        cluster.done(&AGAIN);
    }
}

#[test]
fn what_an_interrupted_add_replica_has_left_is_told_where_the_resource_is_used_too() {
    for kind in [&[][..], &["--witness"]] {
        let cluster = TestCluster::up(3, "file");
        let gate = Gate::holding(&cluster, "b", "\"do\":\"add-replica\"");
        let create = ["resource", "create", "disk", "--size", "4MiB", "--nodes", "b,c"];
        cluster.done(&create);
        let mut volume = cluster.open("b", "disk");
        volume.write(0, &[7; 4096]).unwrap();
        let mut child = held_at(&cluster, &gate, "b", &[&JOIN[..], kind].concat());
        child.kill().unwrap();
        child.wait().unwrap();
        let heard = |node: &str| {
            let socket = cluster.directory.join(node).join("admin.sock");
            let status = cluster.json(&["--admin", socket.to_str().unwrap(), "status", "disk"]);
            status["resources"][0]["epoch"].as_u64().unwrap()
        };
        cluster.until("a knows of the primary", || heard("a") == heard("b"));
        let told = cluster.done(&["explain", "disk"]);
        assert!(told.contains("remove-replica disk --node a"), "{kind:?}: {told}");
        cluster.done(&["resource", "remove-replica", "disk", "--node", "a"]);
        assert!(!image_of_a(&cluster).exists());
        assert!(!cluster.done(&["explain", "disk"]).contains("add-replica"));
    }
}

#[test]
fn of_two_add_replica_of_one_node_at_once_one_adds_it_and_the_other_changes_nothing() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::holding(&cluster, "b", "\"do\":\"add-replica\"");
    cluster.done(&["resource", "create", "disk", "--size", "4MiB", "--nodes", "b,c"]);
    cluster.done(&["resource", "promote", "disk", "--node", "b"]);
    let mut first = held_at(&cluster, &gate, "b", &JOIN);
    for second in [&JOIN, &["resource", "remove-replica", "disk", "--node", "a"]] {
        let refused = cluster.ends_with(1, second);
        assert!(
            refused.contains("LS-0004") && refused.contains("nothing was changed"),
            "{refused}"
        );
    }
    gate.open.send(()).unwrap();
    assert!(first.wait().unwrap().success());
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "a"), "in-sync");
}

#[test]
fn an_add_replica_that_another_one_comes_before_leaves_the_part_that_counts() {
    let cluster = TestCluster::up(3, "file");
    let gate = Gate::holding(&cluster, "b", "\"do\":\"add-replica\"");
    cluster.done(&["resource", "create", "disk", "--size", "4MiB", "--nodes", "b,c"]);
    cluster.done(&["resource", "promote", "disk", "--node", "b"]);
    // It was killed, and what it has asked for is still on its way.
    let mut first = held_at(&cluster, &gate, "b", &JOIN);
    first.kill().unwrap();
    first.wait().unwrap();
    let second = held_at(&cluster, &gate, "b", &JOIN);
    gate.open.send(()).unwrap();
    cluster.until("a is a member", || cluster.state("disk", "a") != "diskless");
    gate.open.send(()).unwrap();
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cluster.wait("disk", "healthy");
    assert_eq!(cluster.state("disk", "a"), "in-sync");
    assert!(image_of_a(&cluster).exists());
}

const DELETE: [&str; 3] = ["resource", "delete", "disk"];

#[test]
fn files_that_are_kept_have_their_length_after_a_refused_create_and_after_a_delete() {
    let cluster = TestCluster::up(3, "file");
    let image = |node: &str| cluster.directory.join(node).join("before.img");
    let lengths =
        || ["a", "b", "c"].map(|node| std::fs::metadata(image(node)).unwrap().len() >> 20);
    for (node, mebibytes) in [("a", 8), ("b", 8), ("c", 7)] {
        std::fs::write(image(node), vec![7; mebibytes << 20]).unwrap();
    }
    let description = cluster.directory.join("disk.toml");
    let member = |node: &str| {
        format!(
            "[[members]]\nnode = \"{node}\"\nstores = [{{ volume = 0, kind = \"file\", path = \"before.img\", keep = true }}]\n"
        )
    };
    let members = ["a", "b", "c"].map(member).concat();
    std::fs::write(&description, format!("{members}[[volumes]]\nsize = \"8MiB\"\n")).unwrap();
    let create = ["resource", "create", "disk", "--from", description.to_str().unwrap()];
    let refused = cluster.ends_with(1, &create);
    assert!(refused.contains("LS-0022") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(lengths(), [8, 8, 7]);
    std::fs::write(image("c"), vec![7; 8 << 20]).unwrap();
    cluster.done(&create);
    cluster.wait("disk", "healthy");
    let said = cluster.done(&DELETE);
    assert!(said.contains("deleted on all nodes"), "{said}");
    assert!(said.contains("the data stays in the kept stores of a, b, c"), "{said}");
    assert_eq!(lengths(), [8, 8, 8]);
    for node in ["a", "b", "c"] {
        assert!(std::fs::read(image(node)).unwrap().iter().all(|&byte| byte == 7));
    }
}

#[test]
fn nodes_of_two_clusters_are_not_mixed() {
    let (one, two) = (TestCluster::up(2, "file"), TestCluster::up(2, "file"));
    let admin = |cluster: &TestCluster, node: &str| {
        let path = cluster.directory.join(node).join("admin.sock");
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (admin(&one, "a"), admin(&two, "b"));
    let mixed = ["--admin", &a, "--admin", &b];
    let create = ["resource", "create", "zz", "--size", "4MiB", "--replicas", "2"];
    let refused = one.ends_with(1, &[&mixed[..], &create].concat());
    assert!(refused.contains("LS-0926") && refused.contains("node b belongs"), "{refused}");
    for cluster in [&one, &two] {
        cluster.ends_with(3, &["status", "zz"]);
    }
    one.ends_with(1, &[&mixed[..], &["status"]].concat());
    // A node's directory is in the place of another's.
    for cluster in [&one, &two] {
        cluster.done(&["dev", "down"]);
    }
    let (own, foreign) = (one.directory.join("b"), two.directory.join("b"));
    let aside = one.directory.join("aside");
    std::fs::rename(&own, &aside).unwrap();
    std::fs::rename(&foreign, &own).unwrap();
    let refused = one.ends_with(1, &["dev", "up", "--detach"]);
    assert!(refused.contains("LS-0926"), "{refused}");
    std::fs::rename(&own, &foreign).unwrap();
    std::fs::rename(&aside, &own).unwrap();
}

#[test]
fn a_create_that_lacks_a_node_names_the_one_that_is_down() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["dev", "kill", "c"]);
    let refused = cluster.ends_with(1, &AGAIN);
    assert!(refused.contains("LS-0910") && refused.contains("not answering: c"), "{refused}");
    let four = ["resource", "create", "disk", "--size", "4MiB", "--replicas", "4"];
    let refused = cluster.ends_with(2, &four);
    assert!(refused.contains("LS-0916"), "there are no four: {refused}");
}

#[test]
fn a_list_calls_nothing_healthy_that_lost_a_node() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&AGAIN);
    cluster.wait("disk", "healthy");
    let listed = cluster.done(&["resource", "list"]);
    assert!(listed.contains("3 of 3") && listed.contains("healthy"), "{listed}");
    cluster.done(&["dev", "kill", "c"]);
    let listed = cluster.done(&["resource", "list"]);
    assert!(listed.contains("2 of 3") && listed.contains("degraded"), "{listed}");
    assert!(listed.contains("do not answer: c"), "{listed}");
}

#[test]
fn a_wait_ends_in_time_though_a_node_stands_still() {
    let cluster = TestCluster::up(2, "file");
    let create = ["resource", "create", "disk", "--size", "4MiB", "--replicas", "2"];
    cluster.done(&create);
    let _frozen = cluster.frozen("b");
    let said = cluster.ends_with(4, &["wait", "disk", "--for", "healthy", "--timeout", "300ms"]);
    // Not what it would say after the five seconds that a question may take.
    assert!(said.contains("b does not answer"), "{said}");
}

#[test]
fn volumes_that_no_memory_holds_are_refused_by_nodes_that_live_on() {
    let cluster = TestCluster::up(2, "memory");
    for more in [&["--size", "2TiB"][..], &["--size", "900GiB", "--volumes", "2"]] {
        let refused = cluster
            .ends_with(1, &[&["resource", "create", "vast", "--replicas", "2"], more].concat());
        assert!(
            refused.contains("LS-0022") && refused.contains("nothing was changed"),
            "{refused}"
        );
    }
    cluster.done(&["resource", "create", "vast", "--replicas", "2", "--size", "64GiB"]);
    cluster.wait("vast", "healthy");
}

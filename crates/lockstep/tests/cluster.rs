//! The command line against real nodes: exit codes, JSON, a crash and the way back.
//!
//! Nothing here asserts how long anything takes; a wait has a limit only so that a broken program ends
//! a test.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;

use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Nbd, TestCluster};
use serde_json::Value;

#[test]
fn a_cluster_comes_up_goes_down_and_comes_up_again() {
    let cluster = TestCluster::up(3, "file");
    let nodes = cluster.json(&["dev", "status"]);
    assert_eq!(nodes["version"], 1);
    let all = nodes["nodes"].as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for node in all {
        assert!(node["pid"].as_u64().is_some_and(|pid| pid > 1));
        let address = node["address"].as_str().unwrap();
        assert!(address.starts_with("127.77."));
        assert_eq!(node["nbd"], format!("{address}:10809"));
        assert!(Path::new(node["admin"].as_str().unwrap()).exists());
    }
    cluster.ends_with(1, &["dev", "up", "--nodes", "2", "--detach"]);
    cluster.done(&["dev", "down"]);
    let stopped = cluster.json(&["dev", "status"]);
    assert!(stopped["nodes"].as_array().unwrap().iter().all(|node| node["pid"].is_null()));
    cluster.ends_with(1, &["status"]);
    cluster.done(&["dev", "up", "--detach"]);
    cluster.done(&["status"]);
}

/// The kernel may hold its sockets for some milliseconds longer than its process: once in ten times, here, so that it is looked at often.
#[test]
fn a_node_that_was_killed_listens_nowhere_any_more() {
    let cluster = TestCluster::up(3, "memory");
    for _ in 0..8 {
        for node in ["a", "b", "c"] {
            let nbd = cluster.nbd(node);
            cluster.done(&["dev", "kill", node]);
            let admin = UnixStream::connect(cluster.directory.join(node).join("admin.sock"));
            assert!(admin.is_err() && TcpStream::connect(&nbd).is_err(), "{admin:?}");
            cluster.done(&["dev", "start", node]);
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_exit_code() {
    let cluster = TestCluster::up(2, "memory");
    cluster.ends_with(3, &["status", "nothing"]);
    cluster.ends_with(3, &["explain", "nothing"]);
    cluster.ends_with(3, &["wait", "nothing", "--for", "primary"]);
    cluster.ends_with(3, &["resource", "delete", "nothing"]);
    for verb in ["promote", "invalidate", "force"] {
        let absent = cluster.ends_with(3, &["resource", verb, "nothing", "--node", "a"]);
        assert!(absent.contains("LS-0914") && absent.contains("remedy"), "{absent}");
    }
    for slip in [&["frobnicate"][..], &["status", "--output", "xml"], &["resource", "promote"], &[]]
    {
        let told = cluster.ends_with(2, slip);
        for part in ["error LS-0900: ", "\n  cause:  ", "\n  remedy: "] {
            assert!(told.contains(part), "{slip:?}: {told}");
        }
    }
    cluster.ends_with(3, &["dev", "kill", "z"]);
    cluster.ends_with(2, &["resource", "create", "x", "--size", "0"]);
    cluster.ends_with(2, &["resource", "create", "x", "--size", "1000"]);
    cluster.ends_with(2, &["resource", "create", "UPPER", "--size", "1MiB"]);
    cluster.ends_with(2, &["resource", "create", "x", "--size", "1MiB", "--replicas", "3"]);
    cluster.ends_with(3, &["resource", "create", "x", "--size", "1MiB", "--nodes", "a,z"]);
    cluster.done(&["resource", "create", "x", "--size", "1MiB"]);
    let refused = cluster.ends_with(1, &["resource", "create", "x", "--size", "1MiB"]);
    assert!(refused.contains("LS-0915") && refused.contains("remedy"), "{refused}");
    cluster.ends_with(4, &["wait", "x", "--for", "primary", "--timeout", "1ms"]);
    cluster.ends_with(3, &["resource", "promote", "x", "--node", "z"]);
    cluster.ends_with(3, &["resource", "remove-replica", "x", "--node", "z"]);
    let json = cluster.ends_with(3, &["status", "nothing", "--output", "json"]);
    let error: Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((&error["error"]["code"], &error["error"]["exit"]), (&"LS-0914".into(), &3.into()));
}

#[test]
fn a_directory_without_a_cluster_is_said_to_be_one() {
    let program = env!("CARGO_BIN_EXE_lockstep");
    let empty = std::env::temp_dir().join(format!("ls-test-empty-{}", std::process::id()));
    let output = Command::new(program).arg("--dir").arg(&empty).arg("status").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let output = Command::new(program).arg("status").env_remove("LOCKSTEP_DIR").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("LOCKSTEP_DIR"));
}

#[test]
fn a_write_outlives_the_primary_and_the_lost_copy_is_brought_back() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "3"]);
    cluster.wait("disk", "in-sync");
    Nbd::open(&cluster.nbd("a"), "disk").write(1);
    cluster.wait("disk", "primary");
    let primary = cluster.resource("disk")["primary"].as_str().unwrap().to_owned();
    let other = if primary == "a" { "b" } else { "a" };
    cluster.done(&["dev", "kill", &primary]);
    let mut client = Nbd::open(&cluster.nbd(other), "disk");
    assert_eq!(client.read(), 1);
    client.write(2);
    assert_eq!(cluster.state("disk", &primary), "absent");
    let why = cluster.done(&["explain", "disk"]);
    assert!(why.contains(&format!("dev start {primary}")), "{why}");
    cluster.done(&["dev", "start", &primary]);
    cluster.wait("disk", "in-sync");
    assert_eq!(Nbd::open(&cluster.nbd(&primary), "disk").read(), 2);
}

/// Node a wrote while b was dead, then b while a was; both are back.
fn parted(cluster: &TestCluster) {
    cluster.done(&["dev", "kill", "b"]);
    Nbd::open(&cluster.nbd("a"), "disk").write(2);
    cluster.done(&["dev", "kill", "a"]);
    cluster.done(&["dev", "start", "b"]);
    Nbd::open(&cluster.nbd("b"), "disk").write(3);
    cluster.done(&["dev", "start", "a"]);
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while cluster.resource("disk")["split_brain"].as_array().unwrap().is_empty() {
        assert!(std::time::Instant::now() < limit, "{}", cluster.resource("disk"));
        std::thread::yield_now();
    }
}

#[test]
fn two_nodes_without_quorum_go_on_alone_and_the_operator_chooses() {
    let cluster = TestCluster::up(2, "file");
    let create = ["resource", "create", "disk", "--size", "16MiB", "--replicas", "2"];
    let witness = [&create[..], &["--quorum", "off", "--witnesses", "1"]].concat();
    assert!(cluster.ends_with(2, &witness).contains("without a witness"));
    cluster.done(&[&create[..], &["--quorum", "off"]].concat());
    cluster.wait("disk", "in-sync");
    Nbd::open(&cluster.nbd("a"), "disk").write(1);
    parted(&cluster);
    let commands = ["disk --discard a", "disk --discard b", "nbdcopy '"];
    for told in [cluster.done(&["status", "disk"]), cluster.done(&["explain", "disk"])] {
        assert!(told.contains("SPLIT BRAIN: "), "{told}");
        assert!(commands.iter().all(|command| told.contains(command)), "{told}");
        assert!(told.contains("up to 4MiB"), "what goes is counted: {told}");
    }
    let chosen = cluster.done(&["resource", "resolve", "disk", "--discard", "b"]);
    assert!(chosen.contains("a goes on") && chosen.contains("up to "), "{chosen}");
    cluster.wait("disk", "in-sync");
    assert_eq!(Nbd::open(&cluster.nbd("a"), "disk").read(), 2);
    assert_eq!(Nbd::open(&cluster.nbd("b"), "disk").read(), 2);
    let status = cluster.done(&["status", "disk"]);
    let name = cluster.resource("disk")["history"].as_str().unwrap().to_owned();
    assert!(status.contains(&format!("FORK 1, history {name}")), "{status}");
}

#[test]
fn a_replica_moves_to_another_node_while_it_is_used() {
    let cluster = TestCluster::up(3, "file");
    let create =
        ["resource", "create", "pair", "--size", "8MiB", "--nodes", "a,b", "--volumes", "2"];
    cluster.done(&create);
    let mut client = Nbd::open(&cluster.nbd("c"), "pair/1");
    client.write(3);
    assert_eq!(cluster.state("pair", "c"), "diskless");
    cluster.done(&["resource", "add-replica", "pair", "--node", "c"]);
    cluster.wait("pair", "in-sync");
    assert_eq!(cluster.state("pair", "c"), "in-sync");
    cluster.ends_with(1, &["resource", "add-replica", "pair", "--node", "c"]);
    cluster.done(&["resource", "remove-replica", "pair", "--node", "a"]);
    assert_eq!(cluster.state("pair", "a"), "diskless");
    cluster.ends_with(3, &["resource", "remove-replica", "pair", "--node", "a"]);
    assert_eq!(Nbd::open(&cluster.nbd("a"), "pair/1").read(), 3);
}

#[test]
fn a_silent_member_that_is_removed_is_said_to_keep_its_store_and_a_word_removes_what_is_left() {
    let cluster = TestCluster::up(3, "file");
    cluster.done(&["resource", "create", "disk", "--size", "8MiB", "--replicas", "3"]);
    cluster.wait("disk", "in-sync");
    let image = cluster.directory.join("c/volumes/disk-0.img");
    let kept = cluster.directory.join("kept.img");
    cluster.done(&["dev", "kill", "c"]);
    // With its holes: they stand for all that the volume may grow to.
    let copied = Command::new("cp").arg("--sparse=always").args([&image, &kept]).status().unwrap();
    assert!(copied.success());
    let said = cluster.done(&["resource", "remove-replica", "disk", "--node", "c"]);
    assert!(said.contains("still there") && said.contains("forget disk --node c"), "{said}");
    cluster.done(&["dev", "start", "c"]);
    cluster.until("it hears of it and removes its store", || !image.exists());
    // As if it had been killed before it did.
    fs::rename(&kept, &image).unwrap();
    cluster.ends_with(3, &["resource", "remove-replica", "disk", "--node", "c"]);
    let said = cluster.done(&["resource", "forget", "disk", "--node", "c"]);
    assert!(said.contains("add-client"), "{said}");
    assert!(!image.exists(), "the store is still there");
    cluster.done(&["resource", "add-replica", "disk", "--node", "c"]);
    cluster.wait("disk", "in-sync");
}

#[test]
fn a_deleted_resource_is_gone_everywhere_and_its_name_is_free() {
    let cluster = TestCluster::up(3, "file");
    let create =
        ["resource", "create", "x", "--size", "8MiB", "--replicas", "2", "--witnesses", "1"];
    cluster.done(&create);
    assert_eq!(cluster.state("x", "c"), "witness");
    let mut client = Nbd::open(&cluster.nbd("b"), "x");
    client.write(4);
    let refused = cluster.ends_with(1, &["resource", "delete", "x"]);
    assert!(refused.contains("LS-0015") && refused.contains("node b"), "{refused}");
    client.write(5);
    cluster.done(&["resource", "delete", "x", "--force"]);
    cluster.ends_with(3, &["status", "x"]);
    cluster.done(&create);
    assert_eq!(Nbd::open(&cluster.nbd("a"), "x").read(), 0);
    cluster.done(&["dev", "down"]);
    cluster.done(&["dev", "up", "--detach"]);
    assert_eq!(cluster.resource("x")["name"], "x");
}

#[test]
fn a_creation_that_one_node_refuses_changes_nothing() {
    let cluster = TestCluster::up(2, "file");
    // Something is already where node b would keep its copy.
    let volumes = cluster.directory.join("b").join("volumes");
    fs::create_dir_all(&volumes).unwrap();
    let good = cluster.json(&["resource", "create", "probe", "--size", "1MiB"]);
    assert_eq!(good["resource"], "probe");
    let made: Vec<PathBuf> =
        fs::read_dir(&volumes).unwrap().map(|entry| entry.unwrap().path()).collect();
    let named = made.iter().filter_map(|path| path.to_str()).find(|path| path.contains("probe"));
    let foreign = named.unwrap().replace("probe", "disk");
    fs::write(&foreign, b"precious").unwrap();
    let refused = cluster.ends_with(1, &["resource", "create", "disk", "--size", "1MiB"]);
    assert!(refused.contains("nothing was changed"), "{refused}");
    cluster.ends_with(3, &["status", "disk"]);
    assert_eq!(fs::read(&foreign).unwrap(), b"precious");
    cluster.done(&["resource", "create", "disk", "--size", "1MiB", "--force"]);
}

#[test]
fn certificates_are_made_renewed_and_reloaded_while_nodes_serve() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = TestCluster::up(2, "memory");
    cluster.done(&["resource", "create", "disk", "--size", "16MiB", "--replicas", "2"]);
    let mut disk = Nbd::open(&cluster.nbd("a"), "disk");
    disk.write(7);
    let out = cluster.directory.join("guest");
    let place = out.to_str().unwrap();
    let made = cluster.json(&["client-certificate", "guest-1", "--out", place]);
    assert_eq!(made["name"], "guest-1");
    for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        assert!(fs::read_to_string(out.join(file)).unwrap().starts_with("-----BEGIN"));
    }
    let mode = fs::metadata(out.join("client-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for bad in ["no name", "../../x"] {
        let refused = cluster.ends_with(2, &["client-certificate", bad, "--out", place]);
        assert!(refused.contains("LS-0928"), "{refused}");
    }
    let key = fs::read(out.join("client-key.pem")).unwrap();
    let refused = cluster.ends_with(1, &["client-certificate", "guest-2", "--out", place]);
    assert!(refused.contains("LS-0929"), "{refused}");
    assert_eq!(fs::read(out.join("client-key.pem")).unwrap(), key, "another client's key is lost");
    let foreign = cluster.directory.join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("ca-cert.pem"), "of another").unwrap();
    let elsewhere = foreign.to_str().unwrap();
    let refused = cluster.ends_with(1, &["client-certificate", "guest-2", "--out", elsewhere]);
    assert!(refused.contains("LS-0929"), "{refused}");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    fs::copy(out.join("ca-cert.pem"), foreign.join("ca-cert.pem")).unwrap();
    cluster.done(&["client-certificate", "guest-2", "--out", elsewhere]);
    let own = cluster.directory.join("b/certificate.pem");
    let old = fs::read(&own).unwrap();
    cluster.done(&["renew-certificate", "--node", "b"]);
    assert_ne!(fs::read(&own).unwrap(), old);
    assert_eq!(cluster.json(&["reload", "--node", "b"])["reloaded"][0], "b");
    assert_eq!(cluster.json(&["reload"])["reloaded"].as_array().unwrap().len(), 2);
    cluster.ends_with(3, &["reload", "--node", "z"]);
    fs::write(cluster.directory.join("a/key.pem"), "no key").unwrap();
    cluster.ends_with(1, &["reload", "--node", "a"]);
    // Where others are told it fails as well: who was to be shut out is let in at this node still.
    let refused = cluster.ends_with(1, &["reload"]);
    assert!(refused.contains("node a") && refused.contains("reloaded: b"), "{refused}");
    let unknown = cluster.ends_with(3, &["vhost", "add", "nobodys", "--node", "a"]);
    assert!(unknown.contains("nobodys"), "{unknown}");
    assert_eq!(disk.read(), 7);
}

#[test]
fn secrets_of_an_nvme_host_are_made_and_let_it_in() {
    use std::os::unix::fs::PermissionsExt;
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
    let cluster = TestCluster::up(1, "memory");
    let table = cluster.directory.join("a/nvme-hosts.toml");
    let place = table.to_str().unwrap();
    let made =
        cluster.json(&["nvme-host", HOST, "--table", place, "--mutual", "--resources", "disk"]);
    let secrets = [&made["secret"], &made["controller_secret"]].map(|one| one.as_str().unwrap());
    assert!(secrets.iter().all(|one| one.starts_with("DHHC-1:01:")) && secrets[0] != secrets[1]);
    assert_eq!(fs::metadata(&table).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&table).unwrap();
    assert!(
        secrets.iter().all(|one| text.contains(one)) && text.contains(r#"resources = ["disk"]"#)
    );
    let again = cluster.ends_with(1, &["nvme-host", HOST, "--table", place]);
    assert!(again.contains("LS-0940") && fs::read_to_string(&table).unwrap() == text, "{again}");
    // A file system that is full in the middle of a row: here files end after 512 bytes.
    let full = cluster.directory.join("full.toml");
    let comment = format!("# {}\n", "x".repeat(480));
    fs::write(&full, &comment).unwrap();
    fs::set_permissions(&full, fs::Permissions::from_mode(0o600)).unwrap();
    let line = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} nvme-host {HOST} --table {}",
        env!("CARGO_BIN_EXE_lockstep"),
        full.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(&full).unwrap(), comment, "half of a row is left");
    let bad = cluster.ends_with(1, &["nvme-host", "host-1"]);
    assert!(bad.contains("LS-0940"), "{bad}");
    cluster.done(&["nvme-host", &HOST.replace("01", "02"), "--table", place]);
    let other = cluster.directory.join("tls.toml");
    let made = cluster.json(&["nvme-host", HOST, "--table", other.to_str().unwrap(), "--tls"]);
    let key = made["tls_key"].as_str().unwrap();
    assert!(key.starts_with("NVMeTLSkey-1:01:") && made["secret"].is_null());
    assert!(fs::read_to_string(&other).unwrap().contains(&format!("tls_key = \"{key}\"")));
    cluster.ends_with(2, &["nvme-host", HOST, "--tls", "--mutual"]);
    // A node takes it as it is, and nothing else.
    let refused = cluster.ends_with(1, &["reload"]);
    assert!(refused.contains("LS-0047") && refused.contains("nvme_hosts ="), "{refused}");
    let settings = cluster.directory.join("a/node.toml");
    let old = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, format!("nvme_hosts = \"nvme-hosts.toml\"\n{old}")).unwrap();
    cluster.done(&["reload"]);
    fs::set_permissions(&table, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = cluster.ends_with(1, &["reload"]);
    assert!(refused.contains("LS-0047") && refused.contains("chmod 600"), "{refused}");
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&table, text.replacen("DHHC-1:01:", "DHHC-1:09:", 1)).unwrap();
    let refused = cluster.ends_with(1, &["reload"]);
    assert!(refused.contains("LS-0047") && refused.contains("unknown hash"), "{refused}");
    assert!(!refused.contains(&secrets[0][12..30]), "{refused}");
}

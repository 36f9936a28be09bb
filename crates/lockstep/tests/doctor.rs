//! `lockstep doctor`, on machines that lack something.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;
mod node_program;
#[path = "../../lockstepd/tests/harness/refusing.rs"]
mod refusing;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::TestCluster;
use refusing::Refusing;
use serde_json::Value;

/// The finding about a thing.
fn finding<'a>(told: &'a Value, what: &str) -> &'a Value {
    let all = told["findings"].as_array().unwrap();
    all.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("{what}: {told}"))
}

#[test]
fn ports_and_peers_of_nodes_are_tried_and_what_is_missing_fails() {
    let cluster = TestCluster::up(2, "file");
    let told = cluster.json(&["doctor"]);
    for what in ["node a, listen", "node b, nbd", "node a, nvme", "node b to a", "clock"] {
        assert_eq!(finding(&told, what)["verdict"], "ok", "{told}");
    }
    let room = format!("room in {}", cluster.directory.join("a").display());
    assert!(finding(&told, &room)["found"].as_str().unwrap().ends_with("free"));
    cluster.done(&["dev", "kill", "b"]);
    // The kernel keeps a ring's sockets for a moment when its process has ended.
    let mut told = Value::Null;
    cluster.until("the ports of node b to be closed", || {
        told = cluster.json(&["doctor"]);
        finding(&told, "node a to b")["verdict"] != "ok"
    });
    assert_eq!(finding(&told, "node b, nbd")["verdict"], "ok", "free: {told}");
    let away = finding(&told, "node a to b");
    assert_eq!((&away["verdict"], &away["remedy"]), (&"missing".into(), &"start that node".into()));
    // Another program is where the node wants to be.
    let intruder = TcpListener::bind(cluster.nbd("b")).unwrap();
    let said = cluster.ends_with(1, &["doctor"]);
    assert!(said.contains("LS-0932") && said.contains("without: node b, nbd"), "{said}");
    assert!(said.contains("ss -ltnp"), "{said}");
    drop(intruder);
    cluster.done(&["doctor"]);
    let said = cluster.ends_with(2, &["doctor", "/not/there"]);
    assert!(said.contains("/not/there: there is nothing"), "{said}");
}

#[test]
fn settings_are_read_as_the_node_reads_them() {
    let cluster = TestCluster::up(1, "file");
    cluster.done(&["dev", "kill", "a"]);
    let path = cluster.directory.join("a/node.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("link-encryption = off\n{text}")).unwrap();
    let told = cluster.json(&["doctor"]);
    assert_eq!(finding(&told, "node a, listen")["verdict"], "ok", "{told}");
    // Of another cluster: it is not started as if it were of this one.
    let foreign = text.replacen("cluster = \"", "cluster = \"1", 1);
    std::fs::write(&path, format!("link-encryption = off\n{foreign}")).unwrap();
    let said = cluster.ends_with(1, &["dev", "start", "a"]);
    assert!(said.contains("it was not started"), "{said}");
    std::fs::write(&path, format!("link-encryption = off\n{text}")).unwrap();
    cluster.done(&["dev", "start", "a"]);
}

/// A loop device over a file, detached at its end.
struct Loop(PathBuf);

impl Loop {
    /// `None`, and a word, where none can be had.
    fn over(image: &Path) -> Option<Loop> {
        std::fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Loop(String::from_utf8_lossy(&output.stdout).trim().into()))
            }
            other => {
                println!("NOT RUN: metadata on a loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").arg("--detach").arg(&self.0).status().ok();
    }
}

#[test]
fn stores_outside_of_a_nodes_directory_are_looked_at_whether_it_runs_or_not() {
    let cluster = TestCluster::up(1, "file");
    let stores = cluster.directory.join("far away");
    std::fs::create_dir(&stores).unwrap();
    let device = Loop::over(&cluster.directory.join("image"));
    let metadata = device
        .as_ref()
        .map_or(String::new(), |device| format!(", metadata_path = \"{}\"", device.0.display()));
    for name in ["web", "db"] {
        let metadata = if name == "web" { metadata.as_str() } else { "" };
        let path = stores.join(name);
        let text = format!(
            "[[members]]\nnode = \"a\"\nstores = [{{ volume = 0, kind = \"file\", path = \"{}\"{metadata} }}]\n\
             [[volumes]]\nsize = \"16MiB\"\n",
            path.display()
        );
        let description = cluster.directory.join("description.toml");
        std::fs::write(&description, text).unwrap();
        cluster.done(&["resource", "create", name, "--from", description.to_str().unwrap()]);
    }
    cluster.done(&["resource", "create", "own", "--size", "16MiB", "--replicas", "1"]);
    let own = format!("direct I/O in {}", cluster.directory.join("a/volumes").display());
    let looks = |told: &Value| {
        let found = finding(told, &own)["found"].as_str().unwrap();
        assert!(found.starts_with("blocks of ") && found.ends_with("; in use: own/0"), "{told}");
        for what in ["direct I/O", "discard", "room"] {
            let there = finding(told, &format!("{what} in {}", stores.display()));
            let found = there["found"].as_str().unwrap();
            assert!(found.ends_with("; in use: db/0, web/0"), "{there}");
        }
        if let Some(Loop(device)) = &device {
            let device = device.display();
            for what in [format!("device {device}"), format!("direct I/O on {device}")] {
                let there = finding(told, &what);
                let found = there["found"].as_str().unwrap();
                assert!(found.ends_with("; in use: metadata of web/0"), "{there}");
                assert_eq!(there["verdict"], "ok");
            }
        }
    };
    // A node that runs is asked, not its files.
    let described = cluster.directory.join("a/resources/db.toml");
    let aside = cluster.directory.join("aside");
    std::fs::rename(&described, &aside).unwrap();
    looks(&cluster.json(&["doctor"]));
    std::fs::rename(&aside, &described).unwrap();
    cluster.done(&["dev", "kill", "a"]);
    looks(&cluster.json(&["doctor"]));
    // What was named already is not told twice.
    let node = cluster.directory.join("a");
    let told = cluster.json(&["doctor", node.to_str().unwrap(), stores.to_str().unwrap()]);
    looks(&told);
    let all = told["findings"].as_array().unwrap();
    let room = format!("room in {}", stores.display());
    assert_eq!(all.iter().filter(|one| one["what"] == room.as_str()).count(), 1, "{told}");

    std::fs::rename(stores.join("db"), &aside).unwrap();
    let said = cluster.ends_with(1, &["doctor"]);
    assert!(said.contains("LS-0932") && said.contains("without: store of db/0"), "{said}");
    // It was told of the resource only.
    let uncreated = described.with_extension("uncreated");
    std::fs::write(&uncreated, "").unwrap();
    cluster.done(&["doctor"]);
    std::fs::remove_file(&uncreated).unwrap();
    std::fs::rename(&aside, stores.join("db")).unwrap();
    std::fs::write(&described, "surprise").unwrap();
    let damaged = format!("description {}", described.display());
    assert_eq!(finding(&cluster.json(&["doctor"]), &damaged)["verdict"], "degraded");
}

#[test]
fn a_kernel_that_refuses_io_uring_is_found_by_trying() {
    let directory = std::env::temp_dir().join(format!("ls-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let refusing = Refusing::build(&directory);
    let told: Vec<Value> = [1, 38]
        .into_iter()
        .filter_map(|errno| {
            let mut command =
                refusing.as_ref()?.command("io_uring", errno, env!("CARGO_BIN_EXE_lockstep"));
            let output = command
                .args(["doctor", "--output", "json"])
                .env_remove("LOCKSTEP_DIR")
                .output()
                .unwrap();
            assert!(output.status.success(), "a node does without: {output:?}");
            Some(serde_json::from_slice(&output.stdout).unwrap())
        })
        .collect();
    std::fs::remove_dir_all(&directory).ok();
    for told in told {
        let ring = finding(&told, "io_uring");
        assert_eq!(ring["verdict"], "degraded", "{told}");
        assert!(ring["remedy"].as_str().unwrap().contains("seccomp"), "{told}");
        assert!(ring["costs"].as_str().unwrap().contains("epoll"), "{told}");
    }
}

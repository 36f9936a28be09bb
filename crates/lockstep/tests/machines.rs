//! Nodes made with `lockstep cluster make`, each started by itself and asked over its own socket, as on
//! machines of their own.
//!
//! Nothing here asserts how long anything takes; a wait has a limit only so that a broken program ends a
//! test.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod node_program;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A directory that `cluster make` fills, and the nodes that run in it.
struct Machines {
    directory: PathBuf,
    running: Vec<(String, Child)>,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if std::thread::panicking() {
            eprintln!("what is left is in {}", self.directory.display());
        } else {
            fs::remove_dir_all(&self.directory).unwrap();
        }
    }
}

impl Machines {
    fn new(name: &str) -> Machines {
        let name = format!("ls-{name}-{}", std::process::id());
        Machines { directory: std::env::temp_dir().join(name), running: Vec::new() }
    }

    /// Loopback addresses of this process's own.
    fn address(number: u8) -> String {
        let pid = std::process::id();
        format!("127.{}.{}.{number}", 100 + pid / 250 % 100, pid % 250)
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        for (node, _) in &self.running {
            command.arg("--admin").arg(self.directory.join(node).join("admin.sock"));
        }
        command.args(words).env_remove("LOCKSTEP_DIR").output().unwrap()
    }

    #[track_caller]
    fn done(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}\n{said}\n{output:?}");
        said
    }

    #[track_caller]
    fn refused(&self, code: i32, words: &[&str]) -> String {
        let output = self.ask(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn start(&mut self, node: &str) {
        let directory = self.directory.join(node);
        let log = fs::File::create(directory.join("log")).unwrap();
        let child = Command::new(node_program::node_program())
            .arg("node")
            .arg("--dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.running.push((node.to_owned(), child));
        let socket = directory.join("admin.sock");
        let answers = || {
            Command::new(env!("CARGO_BIN_EXE_lockstep"))
                .arg("--admin")
                .arg(&socket)
                .args(["resource", "list"])
                .output()
                .unwrap()
                .status
                .success()
        };
        while !answers() {
            let (_, child) = self.running.last_mut().unwrap();
            assert!(child.try_wait().unwrap().is_none(), "node {node} ended");
        }
    }

    fn stop(&mut self, node: &str) {
        let at = self.running.iter().position(|(name, _)| name == node).unwrap();
        let (_, mut child) = self.running.remove(at);
        let pid = child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(child.wait().unwrap().success(), "{node} did not stop in good order");
    }
}

#[test]
fn nodes_on_machines_of_their_own_form_a_cluster_and_one_more_joins() {
    let mut machines = Machines::new("machines");
    let out = machines.directory.to_str().unwrap().to_owned();
    let node = |name: &str, number| format!("{name}={}", Machines::address(number));
    let (a, b, c, d) = (node("a", 1), node("b", 2), node("c", 3), node("d", 4));
    machines.done(&["cluster", "make", "--out", &out, &a, &b, &c]);
    for name in ["a", "b", "c"] {
        machines.start(name);
    }
    machines.done(&["resource", "create", "disk", "--size", "64MiB", "--replicas", "3"]);
    machines.done(&["wait", "disk", "--for", "in-sync", "--timeout", "60s"]);

    let said = machines.done(&["cluster", "add-node", "--out", &out, &d]);
    let block = &said[said.find("[[peers]]").unwrap()..];
    for name in ["a", "b", "c"] {
        let path = machines.directory.join(name).join("node.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n{block}")).unwrap();
        machines.stop(name);
        machines.start(name);
        machines.done(&["wait", "disk", "--for", "in-sync", "--timeout", "60s"]);
    }
    machines.start("d");
    machines.done(&["resource", "add-replica", "disk", "--node", "d"]);
    machines.done(&["wait", "disk", "--for", "in-sync", "--timeout", "60s"]);
    let status: Value =
        serde_json::from_str(&machines.done(&["status", "disk", "--output", "json"])).unwrap();
    let replicas = status["resources"][0]["replicas"].as_array().unwrap();
    assert_eq!(replicas.iter().filter(|replica| replica["state"] == "in-sync").count(), 4);
}

#[test]
fn what_is_there_is_never_made_anew() {
    let machines = Machines::new("made");
    let out = machines.directory.to_str().unwrap().to_owned();
    machines.done(&["cluster", "make", "--out", &out, "a=192.0.2.1", "b=[2001:db8::1]:7000"]);
    let toml = fs::read_to_string(machines.directory.join("a/node.toml")).unwrap();
    assert!(toml.contains("addresses = [\"[2001:db8::1]:7000\"]"), "{toml}");
    let read_key = || fs::read(machines.directory.join("authority/authority-key.pem")).unwrap();
    let key = read_key();
    let said = machines.refused(1, &["cluster", "make", "--out", &out, "a=192.0.2.1"]);
    assert!(said.contains("LS-0904"), "{said}");
    for twice in ["a=192.0.2.9", "c=192.0.2.1", "c=192.0.2.1:7790", "c=[2001:db8::1]:7789"] {
        let said = machines.refused(2, &["cluster", "add-node", "--out", &out, twice]);
        assert!(said.contains("there twice"), "{said}");
    }
    for odd in ["../x", "authority", "machines.json", "", "C", "-c", ".", &"c".repeat(49)] {
        machines.refused(2, &["cluster", "add-node", "--out", &out, &format!("{odd}=192.0.2.3")]);
    }
    for odd in ["c", "c=host", "c=0.0.0.0"] {
        machines.refused(2, &["cluster", "add-node", "--out", &out, odd]);
    }
    let elsewhere = format!("{out}/none");
    machines.refused(3, &["cluster", "add-node", "--out", &elsewhere, "c=192.0.2.3"]);
    assert!(!machines.directory.join("none").exists() && !machines.directory.join("c").exists());
    assert_eq!(key, read_key());
}

#[test]
fn a_node_gets_a_new_certificate_and_takes_it_into_use() {
    let mut machines = Machines::new("renewed");
    let out = machines.directory.to_str().unwrap().to_owned();
    let node = format!("a={}", Machines::address(7));
    machines.done(&["cluster", "make", "--out", &out, &node]);
    machines.start("a");
    let read = |name: &str| fs::read(machines.directory.join("a").join(name)).unwrap();
    let old = ["certificate.pem", "key.pem", "node.toml", "authority.pem"].map(read);
    let words = ["cluster", "renew", "--out", &out, "a", "--output", "json"];
    let made: Value = serde_json::from_str(&machines.done(&words)).unwrap();
    assert_eq!(made["name"], "a");
    let new = ["certificate.pem", "key.pem", "node.toml", "authority.pem"].map(read);
    assert!(old[0] != new[0] && old[1] != new[1]);
    assert_eq!(old[2..], new[2..]);
    machines.done(&["reload"]);
    let said = machines.refused(3, &["cluster", "renew", "--out", &out, "b"]);
    assert!(said.contains("not among the nodes a"), "{said}");
}

/// Runs `lockstep cluster` with each of these words at once; how each ended.
fn at_once(all: &[Vec<&str>]) -> Vec<Output> {
    let start = |words: &Vec<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.arg("cluster").args(words).env_remove("LOCKSTEP_DIR").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<Child> = all.iter().map(start).collect();
    running.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

#[test]
fn of_several_who_make_one_cluster_at_once_one_does_and_nodes_that_are_added_at_once_have_numbers_of_their_own()
 {
    for round in 0..5 {
        let machines = Machines::new(&format!("at-once-{round}"));
        let out = machines.directory.to_str().unwrap().to_owned();
        let make = vec!["make", "--out", &out, "a=192.0.2.1", "b=192.0.2.2"];
        let made = at_once(&[make.clone(), make.clone(), make.clone(), make]);
        let count = made.iter().filter(|one| one.status.success()).count();
        assert_eq!(count, 1, "{made:?}");
        let read = |name: &str| fs::read_to_string(machines.directory.join(name)).unwrap();
        let authority = read("authority/authority.pem");
        assert_eq!([read("a/authority.pem"), read("b/authority.pem")], [&authority[..]; 2]);
        let add = |node| vec!["add-node", "--out", &out[..], node];
        let added = at_once(&[add("c=192.0.2.3"), add("d=192.0.2.4"), add("e=192.0.2.5")]);
        assert!(added.iter().all(|one| one.status.success()), "{added:?}");
        let mut numbers = ["c", "d", "e"].map(|node| {
            let settings = read(&format!("{node}/node.toml"));
            settings.lines().find(|line| line.starts_with("node = ")).unwrap().to_owned()
        });
        numbers.sort();
        assert_eq!(numbers, ["node = 3", "node = 4", "node = 5"]);
        let whole: Value = serde_json::from_str(&read("machines.json")).unwrap();
        assert_eq!(whole["nodes"].as_array().unwrap().len(), 5);
    }
}

#[test]
fn directories_and_keys_are_their_owners_only_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let machines = Machines::new("modes");
    let program = env!("CARGO_BIN_EXE_lockstep");
    let out = machines.directory.display();
    let line = format!("umask 0; {program} cluster make --out {out} a=192.0.2.1");
    assert!(
        Command::new("sh").args(["-c", &line]).stdout(Stdio::null()).status().unwrap().success()
    );
    let mode = |name: &str| {
        let facts = fs::metadata(machines.directory.join(name)).unwrap();
        facts.permissions().mode() & 0o777
    };
    for directory in [".", "a", "authority"] {
        assert_eq!(mode(directory), 0o700, "{directory}");
    }
    for key in ["a/key.pem", "authority/authority-key.pem"] {
        assert_eq!(mode(key), 0o600, "{key}");
    }
}

//! A cluster of real nodes for a test of the command line, and a client of theirs.
//!
//! Each has a temporary directory and addresses of its own, and leaves nothing running, also when its
//! test fails.

#![allow(dead_code, reason = "each file of tests uses a part")]

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What a slow machine may take for anything that is waited for.
pub(crate) const LIMIT: &str = "60s";
/// The same, for what tests ask themselves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process that stands still.
pub(crate) struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::CONT);
    }
}

pub(crate) struct TestCluster {
    pub(crate) directory: PathBuf,
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        let down = self.lockstep(&["dev", "down"]);
        if std::thread::panicking() {
            eprintln!("what is left is in {}", self.directory.display());
            for log in ["a", "b", "c"].map(|node| self.directory.join(node).join("log")) {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let tail = text.lines().rev().take(30).collect::<Vec<_>>();
                for line in tail.iter().rev() {
                    eprintln!("{}: {line}", log.display());
                }
            }
        } else {
            assert!(down.status.success());
            fs::remove_dir_all(&self.directory).unwrap();
        }
    }
}

impl TestCluster {
    pub(crate) fn up(nodes: u16, store: &str) -> TestCluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        crate::node_program::node_program();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ls-test-{}-{number}", std::process::id());
        let cluster = TestCluster { directory: std::env::temp_dir().join(name) };
        let nodes = nodes.to_string();
        cluster.done(&["dev", "up", "--nodes", &nodes, "--store", store, "--detach"]);
        cluster
    }

    pub(crate) fn lockstep(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(words)
            .env("LOCKSTEP_DIR", &self.directory)
            .env_remove("LOCKSTEPD")
            .output()
            .unwrap()
    }

    #[track_caller]
    pub(crate) fn ends_with(&self, code: i32, words: &[&str]) -> String {
        let output = self.lockstep(words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{said}\n{complained}");
        said + &complained
    }

    #[track_caller]
    pub(crate) fn done(&self, words: &[&str]) -> String {
        self.ends_with(0, words)
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.extend(["--output", "json"]);
        let output = self.lockstep(&words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn wait(&self, name: &str, wanted: &str) {
        self.done(&["wait", name, "--for", wanted, "--timeout", LIMIT]);
    }

    /// The same where two resources have the name.
    pub(crate) fn wait_for_id(&self, name: &str, id: &str, wanted: &str) {
        self.done(&["wait", name, "--id", id, "--for", wanted, "--timeout", LIMIT]);
    }

    pub(crate) fn nbd(&self, node: &str) -> String {
        self.node(node)["nbd"].as_str().unwrap().to_owned()
    }

    /// What `lockstep dev status` says of a node.
    fn node(&self, node: &str) -> Value {
        let nodes = self.json(&["dev", "status"]);
        let all = nodes["nodes"].as_array().unwrap();
        all.iter().find(|entry| entry["name"] == node).unwrap().clone()
    }

    /// Makes a node stand still, its sockets open, until what is answered is dropped.
    pub(crate) fn frozen(&self, node: &str) -> Frozen {
        let pid = i32::try_from(self.node(node)["pid"].as_u64().unwrap()).unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Frozen(pid)
    }

    pub(crate) fn resource(&self, name: &str) -> Value {
        self.json(&["status", name])["resources"][0].clone()
    }

    /// What the resource says of one node.
    pub(crate) fn replica(&self, name: &str, node: &str) -> Value {
        let resource = self.resource(name);
        let all = resource["replicas"].as_array().unwrap();
        all.iter().find(|replica| replica["node"] == node).unwrap().clone()
    }

    /// Asks again and again until it is so.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens volume 0 over a node.
    pub(crate) fn open(&self, node: &str, name: &str) -> client::Volume {
        client::Volume::open(self.nbd(node).parse().unwrap(), name, PATIENCE).unwrap()
    }

    /// Makes the node primary and says whether its own copy, which it reads first, has a block of `byte`
    /// there.
    pub(crate) fn holds(&self, name: &str, node: &str, at: u64, byte: u8) -> bool {
        self.done(&["resource", "promote", name, "--node", node]);
        let mut bytes = [0; 4096];
        self.open(node, name).read(at, &mut bytes).unwrap();
        bytes == [byte; 4096]
    }

    pub(crate) fn wait_for_state(&self, name: &str, node: &str, state: &str) {
        self.until(&format!("{node} to be {state}"), || self.state(name, node) == state);
    }

    pub(crate) fn state(&self, name: &str, node: &str) -> String {
        self.replica(name, node)["state"].as_str().unwrap().to_owned()
    }
}

/// The smallest NBD client: opens an export by its oldest option and writes or reads 4 KiB.
pub(crate) struct Nbd(std::net::TcpStream);

impl Nbd {
    pub(crate) fn open(address: &str, export: &str) -> Nbd {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT").unwrap();
        stream.write_all(&1u32.to_be_bytes()).unwrap();
        stream.write_all(&u32::try_from(export.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(export.as_bytes()).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        Nbd(stream)
    }

    fn ask(&mut self, command: u16, payload: &[u8]) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(0u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(0u64.to_be_bytes());
        bytes.extend(4096u32.to_be_bytes());
        bytes.extend(payload);
        self.0.write_all(&bytes).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "the node answered with an error");
    }

    pub(crate) fn write(&mut self, byte: u8) {
        self.ask(1, &[byte; 4096]);
    }

    pub(crate) fn read(&mut self) -> u8 {
        self.ask(0, &[]);
        let mut bytes = [0; 4096];
        self.0.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a torn block");
        bytes[0]
    }
}

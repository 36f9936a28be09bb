//! A development cluster of real processes, as `lockstep dev up` makes it.
//!
//! Always: it is stopped and its directory removed when the value goes, however the run ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::machine::{run, run_still};
use crate::outcome::{Outcome, fail};

/// Where the programs of one revision lie, and how it is called in tables.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) label: String,
    pub(crate) directory: PathBuf,
}

/// How a cluster is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) nodes: u16,
    /// `memory` or `file`.
    pub(crate) store: &'static str,
    /// Whether nodes encipher what they say to each other.
    pub(crate) encryption: bool,
    /// Threads of each node.
    pub(crate) threads: u16,
}

/// A cluster that runs.
pub(crate) struct Cluster {
    program: PathBuf,
    directory: PathBuf,
    nodes: Vec<String>,
}

impl Cluster {
    /// Starts one in `directory`, which must not exist.
    pub(crate) fn up(programs: &Programs, directory: &Path, wanted: Wanted) -> Outcome<Cluster> {
        let program = programs.directory.join("lockstep");
        let mut cluster =
            Cluster { program, directory: directory.to_path_buf(), nodes: Vec::new() };
        let (count, threads) = (wanted.nodes.to_string(), wanted.threads.to_string());
        let words = ["dev", "up", "--nodes", &count, "--store", wanted.store];
        cluster.ok(&[&words[..], &["--threads", &threads, "--detach"]].concat())?;
        cluster.nodes = cluster.statuses()?.into_iter().map(|(name, _)| name).collect();
        if !wanted.encryption {
            cluster.ok(&["dev", "down"])?;
            for node in &cluster.nodes {
                let path = cluster.directory.join(node).join("node.toml");
                let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
                fs::write(&path, format!("link_encryption = false\n{text}"))
                    .map_err(|error| error.to_string())?;
            }
            cluster.ok(&["dev", "up", "--detach"])?;
        }
        Ok(cluster)
    }

    /// A command that must succeed; returns what it said.
    pub(crate) fn ok(&self, words: &[&str]) -> Outcome<String> {
        run(Command::new(&self.program).arg("--dir").arg(&self.directory).args(words))
    }

    /// Makes a resource of one shard and waits until it is in sync.
    pub(crate) fn create(&self, name: &str, size_mib: u64, nodes: &[&str]) -> Outcome<()> {
        self.create_sharded(name, size_mib, nodes, 1)
    }

    /// Makes a resource of so many shards and waits until it is in sync.
    pub(crate) fn create_sharded(
        &self,
        name: &str,
        size_mib: u64,
        nodes: &[&str],
        shards: u16,
    ) -> Outcome<()> {
        let (size, count) = (format!("{size_mib}MiB"), nodes.len().to_string());
        let (nodes, shards) = (nodes.join(","), shards.to_string());
        let words = ["resource", "create", name, "--size", &size, "--shards", &shards];
        self.ok(&[&words[..], &["--replicas", &count, "--nodes", &nodes]].concat())?;
        self.wait(name, "in-sync", 120)
    }

    /// Makes a resource of a description and waits until it is in sync.
    pub(crate) fn create_from(&self, name: &str, description: &str) -> Outcome<()> {
        let path = self.directory.join(format!("{name}.toml"));
        fs::write(&path, description).map_err(|error| error.to_string())?;
        let path = path.to_str().ok_or("a path that is no text")?;
        self.ok(&["resource", "create", name, "--from", path])?;
        self.wait(name, "in-sync", 120)
    }

    /// `lockstep wait`.
    pub(crate) fn wait(&self, name: &str, state: &str, seconds: u64) -> Outcome<()> {
        let limit = format!("{seconds}s");
        self.ok(&["wait", name, "--for", state, "--timeout", &limit]).map(drop)
    }

    /// How a resource is.
    pub(crate) fn status(&self, name: &str) -> Outcome<Value> {
        let text = self.ok(&["status", name, "--output", "json"])?;
        let mut value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(value["resources"][0].take())
    }

    /// One node's replica in the status of a resource.
    pub(crate) fn replica(&self, name: &str, node: &str) -> Outcome<Value> {
        let status = self.status(name)?;
        let replicas = status["replicas"].as_array().ok_or("status lists no replicas")?;
        let found = replicas.iter().find(|replica| replica["node"] == node);
        found.cloned().ok_or_else(|| format!("{node} is not listed for {name}"))
    }

    /// Where fio finds a volume on a node, over a Unix socket.
    pub(crate) fn url(&self, node: &str, name: &str) -> String {
        let socket = self.directory.join(node).join("nbd.sock");
        format!("nbd+unix:///{name}?socket={}", socket.display())
    }

    /// Where a volume is on a node over TCP: by NBD, and by NVMe.
    pub(crate) fn addresses(&self, node: &str, name: &str) -> Outcome<[String; 2]> {
        let told = self.ok(&["resource", "show", name])?;
        let find = |kind: &str, scheme: &str| {
            let mark = format!("{kind} on {node} ");
            let mut lines = told.lines().filter(|line| line.trim_start().starts_with(&mark));
            let found = lines.find_map(|line| Some(&line[line.find(scheme)?..]));
            found.map(str::to_owned).ok_or_else(|| format!("{name} is not told to be by {kind}"))
        };
        Ok([find("nbd", "nbd://")?, find("nvme", "nvme+tcp://")?])
    }

    /// The processes of the nodes that run.
    pub(crate) fn pids(&self) -> Outcome<Vec<u32>> {
        Ok(self.statuses()?.into_iter().filter_map(|(_, pid)| pid).collect())
    }

    fn statuses(&self) -> Outcome<Vec<(String, Option<u32>)>> {
        let text = self.ok(&["dev", "status", "--output", "json"])?;
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let Some(nodes) = value["nodes"].as_array() else {
            return fail("dev status lists no nodes");
        };
        let of = |node: &Value| {
            let name = node["name"].as_str()?.to_owned();
            let pid = node["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            Some((name, pid.filter(|_| node["running"] == true)))
        };
        Ok(nodes.iter().filter_map(of).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = Command::new(&self.program);
        down.arg("--dir").arg(&self.directory).args(["dev", "down"]);
        if let Err(why) = run_still(&mut down) {
            eprintln!("bench: {why}");
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("bench: {}: {error}", self.directory.display());
        }
    }
}

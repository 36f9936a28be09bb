//! A cluster of real processes: a development cluster, as `lockstep dev up` makes it, or nodes that are each in a network
//! of their own (`veth`).
//!
//! Always: it is stopped and its directory removed when the value goes, however the run ends; its nodes' logs are laid aside, for a part of
//! the run that fails (`parts`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::{run, run_still};
use crate::outcome::{Outcome, complain, fail};
use crate::parts::lay_aside;
use crate::veth::{self, Apart};
use crate::watch::Watch;

/// How long a node may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Where the programs of one revision lie, and how it is called in tables.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) label: String,
    pub(crate) directory: PathBuf,
}

impl Programs {
    /// The same, copied to a new directory.
    pub(crate) fn copied(&self, names: &[&str], to: &Path) -> Outcome<Programs> {
        fs::create_dir(to).map_err(|error| format!("{}: {error}", to.display()))?;
        for name in names {
            let from = self.directory.join(name);
            fs::copy(&from, to.join(name))
                .map_err(|error| format!("{}: {error}", from.display()))?;
        }
        Ok(Programs { label: self.label.clone(), directory: to.to_path_buf() })
    }
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
    /// The words by which the command line finds it.
    reach: Vec<String>,
    nodes: Vec<String>,
    /// Its nodes, where each has a network of its own.
    apart: Option<Apart>,
}

impl Cluster {
    /// Starts one in `directory`, which must not exist.
    pub(crate) fn up(programs: &Programs, directory: &Path, wanted: Wanted) -> Outcome<Cluster> {
        let program = programs.directory.join("lockstep");
        let reach = vec!["--dir".to_owned(), directory.display().to_string()];
        let directory = directory.to_path_buf();
        let mut cluster = Cluster { program, directory, reach, nodes: Vec::new(), apart: None };
        let (count, threads) = (wanted.nodes.to_string(), wanted.threads.to_string());
        let words = ["dev", "up", "--nodes", &count, "--store", wanted.store];
        cluster.ok(&[&words[..], &["--threads", &threads, "--detach"]].concat())?;
        cluster.nodes = cluster.statuses()?.into_iter().map(|(name, _)| name).collect();
        if !wanted.encryption {
            cluster.ok(&["dev", "down"])?;
            for node in &cluster.nodes {
                speak_plainly(&cluster.directory.join(node))?;
            }
            cluster.ok(&["dev", "up", "--detach"])?;
        }
        Ok(cluster)
    }

    /// Starts two nodes, a and b, joined by a link whose packets have this size at most, in bytes.
    pub(crate) fn apart(programs: &Programs, directory: &Path, mtu: u32) -> Outcome<Cluster> {
        let program = programs.directory.join("lockstep");
        let directory = directory.to_path_buf();
        let mut cluster =
            Cluster { program, directory, reach: Vec::new(), nodes: Vec::new(), apart: None };
        let out = cluster.directory.display().to_string();
        let named = veth::ADDRESSES.map(|(name, address)| format!("{name}={address}"));
        cluster.ok(&["cluster", "make", "--out", &out, &named[0], &named[1]])?;
        cluster.nodes = veth::ADDRESSES.map(|(name, _)| name.to_owned()).to_vec();
        for node in &cluster.nodes {
            let home = cluster.directory.join(node);
            speak_plainly(&home)?;
            let admin = home.join("admin.sock").display().to_string();
            cluster.reach.extend(["--admin".to_owned(), admin]);
        }
        let node = programs.directory.join("lockstepd");
        cluster.apart = Some(Apart::new(&node, &cluster.directory, mtu)?);
        Ok(cluster)
    }

    /// Ends a node at once.
    pub(crate) fn kill(&mut self, node: &str) -> Outcome<()> {
        match &mut self.apart {
            Some(apart) => apart.kill(node),
            None => self.ok(&["dev", "kill", node]).map(drop),
        }
    }

    /// Ends a node of a development cluster in good order, so that it says which of its extents are settled.
    pub(crate) fn stop(&mut self, node: &str) -> Outcome<()> {
        let pid = || -> Outcome<Option<u32>> {
            Ok(self.statuses()?.into_iter().find(|(name, _)| name == node).and_then(|(_, pid)| pid))
        };
        let Some(told) = pid()? else { return fail(format!("{node} does not run")) };
        run(Command::new("kill").args(["-TERM", &told.to_string()]))?;
        let begun = Instant::now();
        while pid()?.is_some() {
            if begun.elapsed() > STOP_LIMIT {
                return fail(format!("{node} does not stop"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Starts a node that was ended.
    pub(crate) fn start(&mut self, node: &str) -> Outcome<()> {
        match &mut self.apart {
            Some(apart) => apart.start(node),
            None => self.ok(&["dev", "start", node]).map(drop),
        }
    }

    /// A command that must succeed; returns what it said.
    pub(crate) fn ok(&self, words: &[&str]) -> Outcome<String> {
        run(&mut self.command(words))
    }

    /// The same, to be run later.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.reach).args(words);
        // Its nodes are of the program beside it, whatever is set here.
        command.env_remove("LOCKSTEPD");
        command
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
        // A device may have been written to see how fast it is.
        self.ok(&["resource", "create", name, "--from", path, "--force"])?;
        self.wait(name, "in-sync", 120)
    }

    /// `lockstep wait`.
    pub(crate) fn wait(&self, name: &str, state: &str, seconds: u64) -> Outcome<()> {
        let limit = format!("{seconds}s");
        self.ok(&["wait", name, "--for", state, "--timeout", &limit]).map(drop)
    }

    /// Looks at one node's replica, many in a second.
    pub(crate) fn watch(&self, name: &str, node: &str) -> Watch {
        let socket = |node: &String| self.directory.join(node).join("admin.sock");
        let nodes = self.nodes.iter().map(|node| (node.clone(), socket(node))).collect();
        Watch::new(nodes, name, node)
    }

    /// How a resource is.
    pub(crate) fn status(&self, name: &str) -> Outcome<Value> {
        let text = self.ok(&["status", name, "--output", "json"])?;
        let mut value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(value["resources"][0].take())
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
        if let Some(apart) = &self.apart {
            return Ok(apart.pids());
        }
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
        let mut down = self.command(&["dev", "down"]);
        // Nodes that are apart end with their networks.
        self.apart = None;
        if self.reach.iter().any(|word| word == "--dir")
            && let Err(why) = run_still(&mut down)
        {
            complain(&why);
        }
        for node in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = format!("{}.log", node.file_name().to_string_lossy());
            lay_aside(&self.directory, &node.path().join("log"), &name);
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            complain(format!("{}: {error}", self.directory.display()));
        }
    }
}

/// From its next start on a node says everything to its peers in the clear.
pub(crate) fn speak_plainly(home: &Path) -> Outcome<()> {
    let path = home.join("node.toml");
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let plain = format!("link_encryption = false\n{text}");
    fs::write(&path, plain).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Programs;

    #[test]
    fn what_is_built_while_a_run_goes_on_is_not_what_it_measures() {
        let place = std::env::temp_dir().join(format!("bench-programs-{}", std::process::id()));
        fs::create_dir_all(place.join("built")).expect("there is room");
        let built = Programs { label: "1".to_owned(), directory: place.join("built") };
        let write = |text: &str| fs::write(built.directory.join("lockstep"), text);
        write("before").expect("there is room");
        let copied = built.copied(&["lockstep"], &place.join("p0")).expect("it is there");
        write("after").expect("there is room");
        let read = fs::read_to_string(copied.directory.join("lockstep"));
        assert_eq!((read.expect("it is there").as_str(), &*copied.label), ("before", "1"));
        let missing = built.copied(&["lockstepd"], &place.join("p1")).expect_err("it is not there");
        assert!(missing.contains("built/lockstepd: "), "{missing}");
        fs::remove_dir_all(&place).expect("it is there");
    }
}

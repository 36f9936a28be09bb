//! A development cluster of real processes, and what is done to it.
//!
//! Everything an operator does goes through the command line, as scripts do it; crashes and freezes
//! are signals to processes; what lies on disks is read from the files themselves.
//!
//! Not here: ending what is left over (`supervise`), which also works when a lab is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wire::admin::{self, Answer, Outcome as Heard, Reply, Request};

use crate::bench::{Bench, Failure, Outcome, Said, ensure, program, run, wait_for};

/// How long a command of the operator may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(90);

/// How long an admin socket may take to answer.
const ADMIN_LIMIT: Duration = Duration::from_secs(60);

/// How long a resync may take: it shares the machine with everything else.
pub(crate) const SYNC_LIMIT: Duration = Duration::from_secs(120);

/// Bytes compared at once.
const PIECE_BYTES: usize = 1 << 20;

/// A node, as `dev up` described it.
#[derive(Clone, Debug)]
pub(crate) struct NodeInfo {
    /// Its name: a, b, c and so on.
    pub(crate) name: String,
    /// Where NBD clients find it.
    pub(crate) nbd: SocketAddr,
    /// Where hosts of NVMe/TCP find it.
    pub(crate) nvme: SocketAddr,
    /// Its admin socket.
    pub(crate) admin: PathBuf,
}

/// A cluster.
pub(crate) struct Cluster {
    program: PathBuf,
    /// What nodes are started with from now on; `None`: the program beside the lab's own.
    pub(crate) node_program: Option<PathBuf>,
    /// Of each node; resources have as many shards.
    threads: u16,
    /// The cluster's directory.
    pub(crate) directory: PathBuf,
    /// Its nodes, by name.
    pub(crate) nodes: Vec<NodeInfo>,
}

impl Cluster {
    /// Starts a new one.
    pub(crate) fn up(bench: &Bench, nodes: u16) -> Outcome<Cluster> {
        Cluster::up_in(bench, "c", nodes)
    }

    /// Starts a new one with another program for its nodes.
    pub(crate) fn up_by(bench: &Bench, nodes: u16, node_program: &Path) -> Outcome<Cluster> {
        Cluster::up_with(bench, "c", nodes, bench.threads, Some(node_program.to_path_buf()))
    }

    /// Starts a new one with so many threads of each node, and shards of each resource, or as many as are asked for.
    pub(crate) fn up_of(bench: &Bench, nodes: u16, threads: u16) -> Outcome<Cluster> {
        Cluster::up_with(bench, "c", nodes, bench.threads.max(threads), None)
    }

    /// Starts a new one in this part of the lab's directory.
    pub(crate) fn up_in(bench: &Bench, name: &str, nodes: u16) -> Outcome<Cluster> {
        Cluster::up_with(bench, name, nodes, bench.threads, None)
    }

    fn up_with(
        bench: &Bench,
        name: &str,
        nodes: u16,
        threads: u16,
        node_program: Option<PathBuf>,
    ) -> Outcome<Cluster> {
        let directory = bench.directory.join(name);
        let program = program("lockstep")?;
        let mut cluster = Cluster { program, node_program, threads, directory, nodes: Vec::new() };
        let (count, threads) = (nodes.to_string(), threads.to_string());
        let up = ["dev", "up", "--nodes", &count, "--threads", &threads];
        let arguments = [&up[..], &["--detach", "--output", "json"]].concat();
        let said = cluster.ok(&arguments)?;
        let value: Value = parse(&said)?;
        let list = value["nodes"].as_array().ok_or("dev up names no nodes")?;
        for node in list {
            let field = |name: &str| node[name].as_str().ok_or(format!("a node has no {name}"));
            let address = |name: &str| -> Outcome<SocketAddr> {
                let told = field(name)?;
                Ok(told.parse().map_err(|_| format!("{told} is no address"))?)
            };
            let (nbd, nvme) = (address("nbd")?, address("nvme")?);
            let admin = PathBuf::from(field("admin")?);
            cluster.nodes.push(NodeInfo { name: field("name")?.to_owned(), nbd, nvme, admin });
        }
        ensure!(cluster.nodes.len() == usize::from(nodes), "dev up made {} nodes", list.len());
        Ok(cluster)
    }

    /// What the command line says; exit code and all.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Outcome<Said> {
        let mut command = Command::new(&self.program);
        command.arg("--dir").arg(&self.directory).args(arguments);
        if let Some(path) = &self.node_program {
            command.env("LOCKSTEPD", path);
        }
        run(&mut command, COMMAND_LIMIT)
    }

    /// A command that must succeed; returns what it said.
    pub(crate) fn ok(&self, arguments: &[&str]) -> Outcome<String> {
        self.cli(arguments)?.ok()
    }

    /// The node with this name.
    pub(crate) fn node(&self, name: &str) -> Outcome<&NodeInfo> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.ok_or_else(|| Failure(format!("there is no node {name}")))
    }

    /// A node's directory.
    pub(crate) fn home(&self, node: &str) -> PathBuf {
        self.directory.join(node)
    }

    /// The file that holds a node's copy of a volume.
    pub(crate) fn image(&self, node: &str, resource: &str, volume: u16) -> PathBuf {
        self.home(node).join("volumes").join(format!("{resource}-{volume}.img"))
    }

    /// Makes a resource and waits until it is in sync.
    pub(crate) fn create(&self, name: &str, more: &[&str]) -> Outcome<()> {
        let mut arguments = vec!["resource", "create", name];
        arguments.extend(more);
        let shards = self.threads.to_string();
        let file = more.iter().position(|word| *word == "--from").and_then(|at| more.get(at + 1));
        match file {
            _ if self.threads == 1 || more.contains(&"--shards") => {}
            Some(path) => {
                let text = fs::read_to_string(path)?;
                fs::write(path, format!("shards = {shards}\n{text}"))?;
            }
            None => arguments.extend(["--shards", &shards]),
        }
        self.ok(&arguments)?;
        self.wait(name, "in-sync", SYNC_LIMIT)
    }

    /// `lockstep wait`.
    pub(crate) fn wait(&self, name: &str, state: &str, limit: Duration) -> Outcome<()> {
        let limit_ms = format!("{}ms", limit.as_millis());
        let mut command = Command::new(&self.program);
        command.arg("--dir").arg(&self.directory);
        command.args(["wait", name, "--for", state, "--timeout", &limit_ms]);
        let said = run(&mut command, limit + COMMAND_LIMIT)?;
        if said.code == Some(0) {
            return Ok(());
        }
        let now = self.cli(&["status", name])?;
        let why = self.cli(&["explain", name])?;
        Err(Failure(format!("{}\n{}{}", said.failure("waited in vain"), now.out, why.out)))
    }

    /// How a resource is, as scripts see it.
    pub(crate) fn status(&self, name: &str) -> Outcome<Value> {
        let mut value: Value = parse(&self.ok(&["status", name, "--output", "json"])?)?;
        Ok(value["resources"][0].take())
    }

    /// The name of the primary, as soon as there is one that answers.
    pub(crate) fn primary(&self, name: &str) -> Outcome<String> {
        self.wait(name, "primary", Duration::from_secs(30))?;
        let status = self.status(name)?;
        let primary = status["primary"].as_str().ok_or("there is no primary")?;
        Ok(primary.to_owned())
    }

    /// The primary that nodes name, whether or not requests wait.
    pub(crate) fn primary_told(&self, name: &str) -> Outcome<String> {
        let status = self.status(name)?;
        Ok(status["primary"].as_str().ok_or("there is no primary")?.to_owned())
    }

    /// One field of one replica's status.
    pub(crate) fn replica(&self, name: &str, node: &str) -> Outcome<Value> {
        let status = self.status(name)?;
        let replicas = status["replicas"].as_array().ok_or("status lists no replicas")?;
        let found = replicas.iter().find(|replica| replica["node"] == node);
        found.cloned().ok_or_else(|| Failure(format!("{node} is not listed for {name}")))
    }

    /// Waits until a replica is in this state.
    pub(crate) fn wait_state(&self, name: &str, node: &str, state: &str) -> Outcome<()> {
        wait_for(&format!("{node} to be {state}"), SYNC_LIMIT, || {
            let replica = self.replica(name, node)?;
            ensure!(replica["state"] == state, "it is {}", replica["state"]);
            Ok(())
        })
    }

    /// kill -9.
    pub(crate) fn kill(&self, node: &str) -> Outcome<()> {
        self.ok(&["dev", "kill", node]).map(drop)
    }

    /// kill -9 of all nodes, as close together as can be.
    pub(crate) fn kill_all(&self) -> Outcome<()> {
        for (_, pid) in self.processes()? {
            signal(pid, Signal::KILL)?;
        }
        wait_for("all nodes to end", Duration::from_secs(10), || {
            let left = self.processes()?;
            ensure!(left.is_empty(), "{} run", left.len());
            Ok(())
        })
    }

    /// Starts a node and waits until it answers.
    pub(crate) fn start(&self, node: &str) -> Outcome<()> {
        self.ok(&["dev", "start", node]).map(drop)
    }

    /// Starts all nodes that do not run.
    pub(crate) fn start_all(&self) -> Outcome<()> {
        self.ok(&["dev", "up", "--detach"]).map(drop)
    }

    /// Stops a node in good order.
    pub(crate) fn stop(&self, node: &str) -> Outcome<()> {
        let pid = self.process(node)?;
        signal(pid, Signal::TERM)?;
        wait_for(&format!("node {node} to stop"), Duration::from_secs(30), || {
            ensure!(self.process(node).is_err(), "it runs");
            Ok(())
        })
    }

    /// Stops a node's time.
    pub(crate) fn freeze(&self, node: &str) -> Outcome<()> {
        signal(self.process(node)?, Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self, node: &str) -> Outcome<()> {
        signal(self.process(node)?, Signal::CONT)
    }

    /// The process of a node that runs.
    pub(crate) fn process(&self, node: &str) -> Outcome<Pid> {
        let all = self.processes()?;
        let found = all.into_iter().find(|(name, _)| name == node);
        found.map(|(_, pid)| pid).ok_or_else(|| Failure(format!("node {node} does not run")))
    }

    /// What the kernel says of a node's process, as its `status` file names it: `VmRSS` and `VmHWM` in KiB, `Threads`.
    pub(crate) fn kernel_says(&self, node: &str, name: &str) -> Outcome<u64> {
        let pid = self.process(node)?.as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
        let line = status.lines().find_map(value).ok_or_else(|| format!("there is no {name}"))?;
        let number = line.split_whitespace().next().and_then(|number| number.parse().ok());
        Ok(number.ok_or_else(|| format!("{name} is {line}"))?)
    }

    /// Descriptors that a node's process has open.
    pub(crate) fn open_files(&self, node: &str) -> Outcome<u64> {
        let pid = self.process(node)?.as_raw_nonzero();
        let count = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// Nodes that run, and their processes.
    pub(crate) fn processes(&self) -> Outcome<Vec<(String, Pid)>> {
        let value: Value = parse(&self.ok(&["dev", "status", "--output", "json"])?)?;
        let nodes = value["nodes"].as_array().ok_or("dev status lists no nodes")?;
        let process = |node: &Value| {
            let pid = i32::try_from(node["pid"].as_i64()?).ok().and_then(Pid::from_raw)?;
            Some((node["name"].as_str()?.to_owned(), pid))
        };
        Ok(nodes.iter().filter_map(process).collect())
    }

    /// A node's log, with all that it has said so far.
    pub(crate) fn log(&self, node: &str) -> String {
        if let Ok(pid) = self.process(node) {
            tools::wait_logged(pid.as_raw_nonzero().get().unsigned_abs()).ok();
        }
        fs::read_to_string(self.home(node).join("log")).unwrap_or_default()
    }

    /// Compares copies of a volume as they lie in files, byte for byte.
    pub(crate) fn compare(
        &self,
        resource: &str,
        volume: u16,
        size_bytes: u64,
        nodes: &[&str],
    ) -> Outcome<()> {
        ensure!(nodes.len() > 1, "one copy is no comparison");
        let images: Vec<PathBuf> =
            nodes.iter().map(|node| self.image(node, resource, volume)).collect();
        compare_files(&images, size_bytes)
    }

    /// Speaks to a node's admin socket.
    pub(crate) fn ask(&self, node: &str, command: admin::Command) -> Outcome<Answer> {
        let socket = UnixStream::connect(&self.node(node)?.admin)?;
        socket.set_read_timeout(Some(ADMIN_LIMIT))?;
        let mut line = Vec::new();
        admin::encode_line(&Request::new(1, command), &mut line).map_err(|e| e.to_string())?;
        (&socket).write_all(&line)?;
        let mut answer = Vec::new();
        BufReader::new(&socket).read_until(b'\n', &mut answer)?;
        let reply: Reply = admin::decode_line(&answer).map_err(|error| error.to_string())?;
        match reply.outcome {
            Heard::Result(answer) => Ok(*answer),
            Heard::Error(failure) => Err(Failure(format!("{}: {}", failure.code, failure.message))),
        }
    }

    /// A node's file of settings.
    pub(crate) fn settings(&self, node: &str) -> PathBuf {
        self.home(node).join("node.toml")
    }

    /// Where a node listens for its peers.
    pub(crate) fn peer_door(&self, node: &str) -> Outcome<SocketAddr> {
        let settings = fs::read_to_string(self.settings(node))?;
        let found = settings.lines().find_map(|line| line.strip_prefix("listen = "));
        let door = found.and_then(|value| value.trim_matches('"').parse().ok());
        door.ok_or_else(|| Failure(format!("{node} does not say where it listens")))
    }

    /// URL of a volume on a node.
    pub(crate) fn url(&self, node: &str, export: &str) -> Outcome<String> {
        Ok(format!("nbd://{}/{export}", self.node(node)?.nbd))
    }
}

fn parse(said: &str) -> Outcome<Value> {
    serde_json::from_str(said).map_err(|error| Failure(format!("no JSON ({error}): {said}")))
}

fn signal(pid: Pid, signal: Signal) -> Outcome<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure(format!("signal {signal:?}: {error}"))),
    }
}

/// Compares the first bytes of files.
pub(crate) fn compare_files(files: &[PathBuf], size_bytes: u64) -> Outcome<()> {
    for other in &files[1..] {
        if let Some(at) = first_difference(&files[0], other, size_bytes)? {
            let (one, two) = (files[0].display(), other.display());
            return Err(Failure(format!("{one} and {two} differ at byte {at}")));
        }
    }
    Ok(())
}

/// Where two files differ first, within their first bytes.
fn first_difference(one: &Path, two: &Path, size_bytes: u64) -> Outcome<Option<u64>> {
    let (one, two) = (File::open(one)?, File::open(two)?);
    let (mut left, mut right) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut at = 0;
    while at < size_bytes {
        let length = usize::try_from(size_bytes - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        one.read_exact_at(&mut left[..length], at)?;
        two.read_exact_at(&mut right[..length], at)?;
        if left[..length] != right[..length] {
            let place = left.iter().zip(&right).position(|(a, b)| a != b).unwrap_or(0);
            return Ok(Some(at + u64::try_from(place).unwrap_or(0)));
        }
        at += u64::try_from(length).unwrap_or(u64::MAX);
    }
    Ok(None)
}

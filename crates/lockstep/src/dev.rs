//! `lockstep dev`: a cluster of processes on this machine.
//!
//! Each node is a process of its own on a loopback address of its own, with files of its own below
//! the cluster's directory; certificates are made as for a real cluster. So what is tried here goes
//! through the same code as on real machines.

pub(crate) mod process;
pub(crate) mod up;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use wire::admin::Command as Ask;

use crate::cli::{Dev, Form, Global, Store};
use crate::cluster::{Cluster, DevCluster, NodeEntry};
use crate::demo;
use crate::output::{Cell, Style, Tone, say, say_json};
use crate::problem::{FILE, NO_CLUSTER, Problem};
use crate::typed;

/// Between two looks whether the user wants to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// SIGINT and SIGTERM.
const STOP_SIGNALS: [i32; 2] = [2, 15];

#[derive(Serialize)]
struct NodesJson {
    version: u16,
    nodes: Vec<NodeJson>,
}

#[derive(Serialize)]
struct NodeJson {
    name: String,
    pid: Option<u32>,
    address: String,
    admin: String,
    nbd: String,
    nvme: String,
    log: String,
    running: bool,
}

/// Does what was asked.
pub(crate) fn run(global: &Global, command: &Dev) -> Result<(), Problem> {
    let style = Style::of(global);
    match command {
        Dev::Up { nodes, store, threads, detach } => {
            let wanted = Asked { nodes: *nodes, store: *store, threads: *threads };
            up_command(global, style, &wanted, *detach)
        }
        Dev::Down => down(global, style),
        Dev::Status => say_nodes(&Cluster::open_dev(global)?, style),
        Dev::Kill { node } => kill(global, style, node),
        Dev::Start { node } => start(global, style, node),
        Dev::Demo { keep, size, load } => {
            demo::run(global.dir.as_deref(), style, *keep, *size, *load)
        }
    }
}

/// What is asked of a cluster; what is left out is as it is, or as usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) nodes: Option<u16>,
    pub(crate) store: Option<Store>,
    pub(crate) threads: Option<u16>,
}

/// Makes the cluster if it is not there, and starts every node that does not run.
pub(crate) fn bring_up(directory: &Path, wanted: &Asked) -> Result<DevCluster, Problem> {
    process::program()?;
    let lock = up::AddressLock::take()?;
    let (cluster, new) = up::find_or_make(directory, wanted, &lock)?;
    let outcome = start_all(&cluster);
    if let Err(problem) = outcome {
        let all: Vec<&NodeEntry> = cluster.file.nodes.iter().collect();
        if new {
            // A half cluster helps nobody. The logs stay.
            process::stop(&cluster, &all)?;
        }
        return Err(problem);
    }
    Ok(cluster)
}

fn start_all(cluster: &DevCluster) -> Result<(), Problem> {
    let mut started = Vec::new();
    for node in &cluster.file.nodes {
        if process::running(cluster, node).is_none() {
            started.push((node, process::start(cluster, node)?));
        }
    }
    started.iter().try_for_each(|&(node, run)| process::wait_until_it_answers(cluster, node, run))
}

fn up_command(global: &Global, style: Style, wanted: &Asked, detach: bool) -> Result<(), Problem> {
    let Some(directory) = &global.dir else {
        return Err(Problem::new(NO_CLUSTER, "it is not said where the cluster is to live"));
    };
    let stop = stop_flag()?;
    let cluster = bring_up(directory, wanted)?;
    say_nodes(&cluster, style)?;
    if detach {
        if style.form == Form::Human {
            let (program, directory) = (typed::program(), typed::path(&cluster.directory));
            say(&format!(
                "\nThe nodes go on in the background. From here:\n  export LOCKSTEP_DIR={directory}\n  \
                 {program} resource create disk --size 1GiB --replicas {}\n  {program} dev down\n",
                cluster.file.nodes.len().min(3)
            ))?;
        }
        return Ok(());
    }
    if style.form == Form::Human {
        say("\nCtrl-C stops the nodes.\n")?;
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK_INTERVAL);
    }
    let all: Vec<&NodeEntry> = cluster.file.nodes.iter().collect();
    process::stop(&cluster, &all).map(|_| ())
}

/// A flag that is set when the user wants to stop.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Problem> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in STOP_SIGNALS {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|error| Problem::new(FILE, format!("signal {signal}: {error}")))?;
    }
    Ok(flag)
}

/// Whether the user wants something to stop that takes back what it did. Until this is dropped, who asks twice ends the
/// program at once.
pub(crate) struct StopOnce {
    flag: Arc<AtomicBool>,
    hooks: Vec<signal_hook::SigId>,
}

impl StopOnce {
    pub(crate) fn listen() -> Result<StopOnce, Problem> {
        let flag = Arc::new(AtomicBool::new(false));
        let mut once = StopOnce { flag: Arc::clone(&flag), hooks: Vec::new() };
        for signal in STOP_SIGNALS {
            let wrong = |error| Problem::new(FILE, format!("signal {signal}: {error}"));
            // In this order: the first signal finds the flag down.
            let (end, raise) = (Arc::clone(&flag), Arc::clone(&flag));
            let hook = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, end);
            once.hooks.push(hook.map_err(wrong)?);
            once.hooks.push(signal_hook::flag::register(signal, raise).map_err(wrong)?);
        }
        Ok(once)
    }

    pub(crate) fn is_told(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Drop for StopOnce {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            signal_hook::low_level::unregister(hook);
        }
    }
}

fn down(global: &Global, style: Style) -> Result<(), Problem> {
    let cluster = Cluster::open_dev(global)?;
    let running: Vec<&NodeEntry> = cluster
        .file
        .nodes
        .iter()
        .filter(|node| process::running(&cluster, node).is_some())
        .collect();
    let killed = process::stop(&cluster, &running)?;
    if style.form == Form::Json {
        return say_nodes(&cluster, style);
    }
    let mut text = match running.len() {
        0 => "No node was running.\n".to_owned(),
        1 => "Stopped 1 node.\n".to_owned(),
        count => format!("Stopped {count} nodes.\n"),
    };
    if killed > 0 {
        text.push_str(&format!("{killed} did not stop in good order and had to be killed.\n"));
    }
    text.push_str(&format!(
        "What they hold is kept in {}; `lockstep dev up` starts them again.\n",
        cluster.directory.display()
    ));
    say(&text)
}

fn kill(global: &Global, style: Style, name: &str) -> Result<(), Problem> {
    let cluster = Cluster::open_dev(global)?;
    let was = process::kill(&cluster, cluster.node(name)?)?;
    if style.form == Form::Json {
        return say_nodes(&cluster, style);
    }
    if was {
        say(&format!(
            "Node {name} is gone, as after a crash. `lockstep dev start {name}` brings it back.\n"
        ))
    } else {
        say(&format!("Node {name} was not running.\n"))
    }
}

fn start(global: &Global, style: Style, name: &str) -> Result<(), Problem> {
    let cluster = Cluster::open_dev(global)?;
    let node = cluster.node(name)?;
    let was = process::running(&cluster, node).is_some();
    if !was {
        let run = process::start(&cluster, node)?;
        process::wait_until_it_answers(&cluster, node, run)?;
    }
    if style.form == Form::Json {
        return say_nodes(&cluster, style);
    }
    say(&format!("Node {name} {}.\n", if was { "was running already" } else { "is running" }))
}

fn node_json(cluster: &DevCluster, node: &NodeEntry) -> NodeJson {
    let pid = process::running(cluster, node);
    NodeJson {
        name: node.name.clone(),
        pid,
        address: node.address.to_string(),
        admin: cluster.admin_of(node).socket.display().to_string(),
        nbd: node.nbd.to_string(),
        nvme: up::nvme_of(node).to_string(),
        log: process::log_path(&cluster.directory_of(node)).display().to_string(),
        running: pid.is_some(),
    }
}

fn say_nodes(cluster: &DevCluster, style: Style) -> Result<(), Problem> {
    let nodes: Vec<NodeJson> =
        cluster.file.nodes.iter().map(|node| node_json(cluster, node)).collect();
    if style.form == Form::Json {
        return say_json(&NodesJson { version: 1, nodes });
    }
    let mut rows = Vec::new();
    for (node, shown) in cluster.file.nodes.iter().zip(&nodes) {
        let state = match shown.pid {
            None => Cell("stopped".to_owned(), Tone::Bad),
            Some(_) if cluster.admin_of(node).ask(Ask::Ping {}).is_ok() => {
                Cell("running".to_owned(), Tone::Good)
            }
            Some(_) => Cell("silent".to_owned(), Tone::Doubtful),
        };
        rows.push(vec![
            Cell(shown.name.clone(), Tone::Strong),
            state,
            Cell::plain(shown.pid.map_or("-".to_owned(), |pid| pid.to_string())),
            Cell::plain(shown.nbd.clone()),
            Cell::plain(shown.admin.clone()),
        ]);
    }
    say(&style.table(&["NODE", "STATE", "PID", "NBD", "ADMIN SOCKET"], &rows))
}

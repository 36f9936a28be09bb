//! Nodes that share no network: each is in a namespace of its own, from which one cable leads to a switch, as with machines.
//!
//! The lab is at the switch too. What it pulls is the whole cable: the node's peers, and its clients, reach it no more, and nobody
//! tells either side that a connection has ended.
//!
//! Not here: links that fail between two nodes only, or in one direction (`net`).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::kill::{DISK, SIZE_TEXT, load, settle};
use crate::bench::{Bench, Outcome, ensure, passed, program, text, tool, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::{ClientPlan, Load, addresses};
use client::{ANSWER_LIMIT, Volume};
use tools::Running;

const NODES: [&str; 3] = ["a", "b", "c"];

/// The switch's address; nodes have the first ones of its network.
const SWITCH: &str = "10.77.0.254/24";

/// Of every cable: what Ethernet carries.
const MTU: &str = "1500";

/// How long a cable is pulled: longer than lease and take-over.
const PULLED: Duration = Duration::from_secs(6);

/// How long a connection is tried to a node whose cable may be pulled.
const KNOCKS_FOR: Duration = Duration::from_secs(1);

/// How long a namespace may take to be there.
const MAKE_LIMIT: Duration = Duration::from_secs(10);

/// The file in a node's directory that names the process whose network it has.
const NETWORK: &str = "network";

/// Nodes at a switch. Their networks last as long as this.
struct Switch {
    cluster: Cluster,
    _networks: Vec<Running>,
}

/// The address of a node, by its place among them.
fn address(place: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, u8::try_from(place + 1).unwrap_or(u8::MAX)))
}

/// The switch's end of a node's cable.
fn cable(node: &str) -> String {
    format!("cable-{node}")
}

impl Switch {
    /// Three nodes that run, each in a network of its own.
    fn with_nodes(bench: &Bench) -> Outcome<Switch> {
        let mut cluster = Cluster::up(bench, 3)?;
        for node in NODES {
            cluster.stop(node)?;
        }
        tool("ip", &["link", "add", "switch", "mtu", MTU, "type", "bridge"])?;
        tool("ip", &["address", "add", SWITCH, "dev", "switch"])?;
        tool("ip", &["link", "set", "switch", "up"])?;
        let mut networks = Vec::new();
        for (place, node) in NODES.iter().enumerate() {
            let network = network_of_its_own()?;
            lead_cable(node, address(place), network.id())?;
            fs::write(cluster.home(node).join(NETWORK), network.id().to_string())?;
            networks.push(network);
        }
        move_there(&mut cluster)?;
        cluster.node_program = Some(wrapper(bench)?);
        cluster.start_all()?;
        Ok(Switch { cluster, _networks: networks })
    }

    /// Nothing passes to or from a node any more: it does not even answer a connection.
    fn pull(&self, node: &str) -> Outcome<()> {
        let door = self.cluster.node(node)?.nbd;
        let reached = || TcpStream::connect_timeout(&door, KNOCKS_FOR).is_ok();
        ensure!(reached(), "{node} was not reached before its cable was pulled");
        tool("ip", &["link", "set", &cable(node), "down"])?;
        ensure!(!reached(), "{node} is reached without its cable");
        Ok(())
    }

    /// Its cable is in its place again.
    fn plug(&self, node: &str) -> Outcome<()> {
        tool("ip", &["link", "set", &cable(node), "up"]).map(drop)
    }
}

/// A network with nothing in it, which lasts as long as a process that does nothing.
fn network_of_its_own() -> Outcome<Running> {
    let network = Running::start(Command::new("unshare").args(["--net", "sleep", "infinity"]))?;
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    wait_for("a network namespace", MAKE_LIMIT, || {
        ensure!(of(&network.id().to_string())? != of("self")?, "it is still that of the lab");
        Ok(())
    })?;
    Ok(network)
}

/// From the network of this process to the switch.
fn lead_cable(node: &str, address: IpAddr, process: u32) -> Outcome<()> {
    let (cable, process) = (cable(node), process.to_string());
    let pair = ["link", "add", &cable, "mtu", MTU, "type", "veth", "peer", "name", "eth0"];
    tool("ip", &[&pair[..], &["mtu", MTU, "netns", &process]].concat())?;
    tool("ip", &["link", "set", &cable, "master", "switch", "up"])?;
    let inside = |words: &[&str]| {
        let enter = ["--net", "--target", &process, "ip"];
        tool("nsenter", &[&enter[..], words].concat())
    };
    inside(&["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
    inside(&["link", "set", "lo", "up"])?;
    inside(&["link", "set", "eth0", "up"]).map(drop)
}

/// Writes the new addresses wherever the old ones stand.
fn move_there(cluster: &mut Cluster) -> Outcome<()> {
    let mut files = vec![cluster.directory.join("cluster.json")];
    files.extend(NODES.iter().map(|node| cluster.settings(node)));
    for path in files {
        let mut words = fs::read_to_string(&path)?;
        for (place, node) in cluster.nodes.iter().enumerate() {
            // Whatever follows it: a port, or the end of a string.
            for end in [":", "\""] {
                let (old, new) = (node.nbd.ip(), address(place));
                words = words.replace(&format!("{old}{end}"), &format!("{new}{end}"));
            }
        }
        // What is not loopback has to be TLS, or to be said not to be.
        let insecure = if path.ends_with("node.toml") { "insecure = true\n" } else { "" };
        fs::write(&path, format!("{insecure}{words}"))?;
    }
    for (place, node) in cluster.nodes.iter_mut().enumerate() {
        node.nbd.set_ip(address(place));
    }
    Ok(())
}

/// What starts a node in its network; it is told `node --dir DIR`.
fn wrapper(bench: &Bench) -> Outcome<std::path::PathBuf> {
    let path = bench.directory.join("node-in-its-network");
    let node = program("lockstepd")?;
    let enter = format!("exec nsenter --net=/proc/$(cat \"$3/{NETWORK}\")/ns/net");
    fs::write(&path, format!("#!/bin/sh\n{enter} {} \"$@\"\n", text(&node)))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Whether a node's process has another network than the lab.
fn is_apart(cluster: &Cluster, node: &str) -> Outcome<bool> {
    let process = cluster.process(node)?.as_raw_nonzero();
    let theirs = fs::read_link(Path::new("/proc").join(process.to_string()).join("ns/net"))?;
    Ok(theirs != fs::read_link("/proc/self/ns/net")?)
}

/// A node's cable is pulled for a while, and others go on.
fn without(bench: &Bench, switch: &Switch, load: &Load, node: &str) -> Outcome<()> {
    switch.pull(node)?;
    bench.tell(format_args!("the cable of {node} is pulled"));
    load.progress(100)?;
    load.run_for(PULLED)?;
    switch.plug(node)?;
    load.progress(100)?;
    switch.cluster.wait(DISK, "in-sync", SYNC_LIMIT)
}

/// Clients that go elsewhere, and those of `a`, who wait as long as it takes and see no error.
fn clients(cluster: &Cluster) -> Outcome<Vec<ClientPlan>> {
    let waiting = ClientPlan::pinned(cluster.node("a")?.nbd);
    let mut clients = vec![ClientPlan { limit: Duration::from_secs(90), ..waiting }; 3];
    for nodes in [["b", "c", "a"], ["c", "a", "b"]] {
        let roaming = ClientPlan::roaming(&addresses(cluster, &nodes)?);
        clients.extend(vec![ClientPlan { limit: Duration::from_secs(2), ..roaming }; 3]);
    }
    Ok(clients)
}

/// All of it.
pub(super) fn apart(bench: &Bench) -> Outcome {
    let switch = Switch::with_nodes(bench)?;
    let cluster = &switch.cluster;
    for node in NODES {
        ensure!(is_apart(cluster, node)?, "{node} has the network of the lab");
    }
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    let load = load(bench, clients(cluster)?);
    load.progress(200)?;
    for node in ["b", "c", "a"] {
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        // Without clients of its own it would make way for a node that has some.
        let stays = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        cluster.ok(&["resource", "promote", DISK, "--node", node])?;
        let primary = cluster.primary(DISK)?;
        ensure!(
            primary == node,
            "{primary} is primary, though {node} was promoted and has a client"
        );
        without(bench, &switch, &load, node)?;
        drop(stays);
    }
    // A node that dies while nobody reaches it, and is back before its cable is.
    switch.pull("c")?;
    load.progress(100)?;
    cluster.kill("c")?;
    bench.tell("the cable of c is pulled, and c is killed");
    load.run_for(Duration::from_secs(1))?;
    cluster.start("c")?;
    load.run_for(Duration::from_secs(1))?;
    switch.plug("c")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    cluster.kill("b")?;
    bench.tell("b is killed");
    load.progress(100)?;
    cluster.start("b")?;
    passed(settle(bench, cluster, load, &NODES)?)
}

//! `lockstep cluster`: what nodes on machines of their own need to start.
//!
//! It makes an authority, and for each node a directory with certificate, key and `node.toml`; whoever runs
//! the machines copies them there. It speaks with no node and starts none.
//!
//! Always: what is there is never made anew, nor a number given twice; nothing is written before the wishes
//! were found possible; keys are readable by their owner only; what is said to be made is on the disk.
//!
//! Not here: clusters of processes on one machine (`dev`).

use std::fmt::Write as _;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use link::Authority;
use serde::{Deserialize, Serialize};
use wire::admin::check_name;

use crate::certificates::{create_authority, issue_node, say_made};
use crate::cli::{Form, Global, Machines};
use crate::cluster::{
    NodeEntry, absolute, damaged, make_directory, read_file, replace_file, write_file,
};
use crate::dev::up::{NBD_PORT, PEER_PORT};
use crate::output::{Style, say, say_json};
use crate::problem::{CLUSTER_ABSENT, CLUSTER_OTHER, NODE_ABSENT, Problem, USAGE};

/// Version of the file.
const VERSION: u16 = 1;

/// What was made, beside the nodes' directories.
const MADE: &str = "machines.json";

/// Nodes of a cluster, at most.
const NODES_MAX: usize = 64;

/// A node that is wanted: `NAME=ADDRESS` or `NAME=ADDRESS:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Machine {
    name: String,
    listen: SocketAddr,
}

/// Takes a word of the command line apart.
pub(crate) fn parse_machine(text: &str) -> Result<Machine, String> {
    let Some((name, address)) = text.split_once('=') else {
        return Err(format!("{text:?} is no node: write NAME=ADDRESS, as in a=192.0.2.1"));
    };
    check_name("a node", name).map_err(|error| error.0)?;
    // Its directory would stand where something else does.
    if name == AUTHORITY || name.starts_with(MADE) {
        return Err(format!("{name:?} is the name of something else that is made"));
    }
    let listen = address
        .parse::<SocketAddr>()
        .or_else(|_| address.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PEER_PORT)))
        .map_err(|_| {
            format!("{address:?} is no IP address, nor one with a port (IPv6: [2001:db8::1]:7789)")
        })?;
    if listen.ip().is_unspecified() || listen.port() == 0 {
        return Err(format!("{address:?} is where nobody can be reached"));
    }
    Ok(Machine { name: name.to_owned(), listen })
}

/// Name of the authority's directory.
const AUTHORITY: &str = "authority";

/// The cluster, as the file holds it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Made {
    version: u16,
    /// Identity, hexadecimal.
    cluster: String,
    /// Ascending by number.
    nodes: Vec<NodeEntry>,
}

#[derive(Serialize)]
struct MadeJson<'a> {
    version: u16,
    cluster: &'a str,
    nodes: Vec<NodeJson>,
}

#[derive(Serialize)]
struct NodeJson {
    node: u16,
    name: String,
    listen: SocketAddr,
    nbd: SocketAddr,
    directory: String,
}

/// Does what was asked.
pub(crate) fn run(global: &Global, command: &Machines) -> Result<(), Problem> {
    match command {
        Machines::Make { out, nodes } => make(global, &absolute(out)?, nodes),
        Machines::AddNode { out, node } => add(global, &absolute(out)?, node),
        Machines::Renew { out, node } => renew(global, &absolute(out)?, node),
    }
}

fn make(global: &Global, out: &Path, wanted: &[Machine]) -> Result<(), Problem> {
    let path = out.join(MADE);
    let cluster = sys::random_u64() | 1;
    let mut made = Made { version: VERSION, cluster: format!("{cluster:016x}"), nodes: Vec::new() };
    for machine in wanted {
        made.add(machine)?;
    }
    make_directory(out)?;
    let _alone = alone_in(out)?;
    if path.exists() {
        let message = format!("{} holds a cluster already", out.display());
        return Err(Problem::new(CLUSTER_OTHER, message));
    }
    let authority = create_authority(cluster, &out.join(AUTHORITY))?;
    for node in &made.nodes {
        made.write_node(out, &authority, node)?;
    }
    // Last: what was not made whole may be made again.
    write_file(&path, &made)?;
    let style = Style::of(global);
    if style.form == Form::Json {
        return made.say_json(out, &made.nodes);
    }
    let directory = out.display();
    say(&format!(
        "Made in {directory}, for {} nodes. {directory}/{AUTHORITY} holds the key that lets nodes in: keep it off \
         the nodes.\n\nOn each machine:\n{}\nThen, where the sockets of all nodes can be reached (docs/node.md):\n  \
         lockstep {}resource create disk --size 10GiB --replicas {}\n",
        made.nodes.len(),
        steps(out, &made.nodes),
        made.nodes.iter().map(|node| format!("--admin {}.sock ", node.name)).collect::<String>(),
        made.nodes.len().min(3)
    ))
}

/// Takes up a cluster that was made, alone.
fn open(out: &Path) -> Result<(File, Made, Authority), Problem> {
    let absent = || Problem::new(CLUSTER_ABSENT, format!("{} holds no {MADE}", out.display()));
    let alone = if out.exists() { alone_in(out)? } else { return Err(absent()) };
    let made = Made::read(&out.join(MADE))?.ok_or_else(absent)?;
    let authority = Authority::load(&out.join(AUTHORITY))?;
    Ok((alone, made, authority))
}

/// Gives a node a new certificate and key, in the files of the old ones.
fn renew(global: &Global, out: &Path, name: &str) -> Result<(), Problem> {
    let (_alone, made, authority) = open(out)?;
    let Some(node) = made.nodes.iter().find(|node| node.name == name) else {
        let names: Vec<&str> = made.nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("{name:?} is not among the nodes {}", names.join(", "));
        return Err(Problem::new(NODE_ABSENT, message));
    };
    let directory = out.join(name);
    let identity = issue_node(&authority, node, &directory)?;
    let text = format!(
        "Node {name} has a new certificate. Copy certificate.pem and key.pem of {} into the node's directory, both, \n\
         then there: lockstep reload (or systemctl reload lockstepd)\n",
        directory.display()
    );
    say_made(global, name, &directory, &identity, &text)
}

fn add(global: &Global, out: &Path, wanted: &Machine) -> Result<(), Problem> {
    let path = out.join(MADE);
    let (_alone, mut made, authority) = open(out)?;
    made.add(wanted)?;
    let node = made.nodes.last().expect("it was just added").clone();
    made.write_node(out, &authority, &node)?;
    write_file(&path, &made)?;
    let style = Style::of(global);
    if style.form == Form::Json {
        return made.say_json(out, &[node]);
    }
    say(&format!(
        "Made {}. On the new machine:\n{}\nThe others must know it. Append to node.toml of each, and restart them one after \
         the other,\nwaiting for `lockstep wait NAME --for in-sync` between:\n{}",
        out.join(&node.name).display(),
        steps(out, std::slice::from_ref(&node)),
        node.as_peer(None)
    ))
}

impl Made {
    fn read(path: &Path) -> Result<Option<Made>, Problem> {
        let Some(made) = read_file::<Made>(path, |made| (made.version, VERSION))? else {
            return Ok(None);
        };
        // A name becomes a path; it must not lead out of the directory.
        let odd =
            |node: &&NodeEntry| parse_machine(&format!("{}={}", node.name, node.listen)).is_err();
        if let Some(node) = made.nodes.iter().find(odd) {
            return Err(damaged(path, &format!("{:?} is no node", node.name)));
        }
        Ok(Some(made))
    }

    /// Gives a node the next number.
    fn add(&mut self, machine: &Machine) -> Result<(), Problem> {
        let Machine { name, listen } = machine;
        let there = |what: String| Err(Problem::new(USAGE, format!("{what} is there twice")));
        if self.nodes.iter().any(|node| node.name == *name) {
            return there(format!("node {name}"));
        }
        if self.nodes.iter().any(|node| node.listen == *listen) {
            return there(format!("address {listen}"));
        }
        // Both would serve NBD clients at one port of it.
        if self.nodes.iter().any(|node| node.address == listen.ip()) {
            return there(format!("address {}", listen.ip()));
        }
        if self.nodes.len() == NODES_MAX {
            return Err(Problem::new(USAGE, format!("a cluster has {NODES_MAX} nodes at most")));
        }
        let id = self.nodes.last().map_or(1, |last| last.id + 1);
        let address = listen.ip();
        let nbd = SocketAddr::new(address, NBD_PORT);
        self.nodes.push(NodeEntry { id, name: name.clone(), address, listen: *listen, nbd });
        Ok(())
    }

    fn write_node(
        &self,
        out: &Path,
        authority: &Authority,
        node: &NodeEntry,
    ) -> Result<(), Problem> {
        let directory = out.join(&node.name);
        issue_node(authority, node, &directory)?;
        let path = directory.join("node.toml");
        replace_file(&path, &self.settings(node))
    }

    /// `node.toml` of `node`.
    fn settings(&self, node: &NodeEntry) -> String {
        let mut text = format!(
            "# Made by `lockstep cluster make`. Every key: docs/node.md.\n\
             cluster = \"{}\"\nnode = {}\nname = \"{}\"\n\n# Where peers reach this node.\nlisten = \"{}\"\n\n\
             # Where NBD clients do: beyond this machine over TLS only, on it by the socket too.\n\
             nbd = \"{}\"\nnbd_socket = \"nbd.sock\"\n\n\
             # Further keys of this node go here: what stands below belongs to the peers.\n",
            self.cluster, node.id, node.name, node.listen, node.nbd
        );
        for other in self.nodes.iter().filter(|other| other.id != node.id) {
            text.push('\n');
            text.push_str(&other.as_peer(None));
        }
        text
    }

    fn say_json(&self, out: &Path, nodes: &[NodeEntry]) -> Result<(), Problem> {
        let nodes = nodes
            .iter()
            .map(|node| NodeJson {
                node: node.id,
                name: node.name.clone(),
                listen: node.listen,
                nbd: node.nbd,
                directory: out.join(&node.name).display().to_string(),
            })
            .collect();
        say_json(&MadeJson { version: VERSION, cluster: &self.cluster, nodes })
    }
}

/// Waits until nobody else makes nodes in this directory, and keeps others from it as long as what it answers is there: two
/// at once would mix two authorities, or give one number to two nodes.
fn alone_in(out: &Path) -> Result<File, Problem> {
    let directory = File::open(out).and_then(|directory| directory.lock().map(|()| directory));
    directory.map_err(|error| Problem::file(out, &error))
}

fn steps(out: &Path, nodes: &[NodeEntry]) -> String {
    let mut text = String::new();
    for node in nodes {
        let directory: PathBuf = out.join(&node.name);
        writeln!(
            text,
            "  {} ({}): copy {} to /var/lib/lockstep, then `systemctl enable --now lockstepd`",
            node.name,
            node.address,
            directory.display()
        )
        .expect("writing into a string cannot fail");
    }
    text
}

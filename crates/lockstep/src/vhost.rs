//! `lockstep vhost`: sockets by which machines of this host have volumes as their disks.
//!
//! Always: only a node that runs under this very kernel is asked, for machines of this host reach no other's socket.
//!
//! Not here: what is served there (`lockstepd`).

use serde::Serialize;
use serde_json::json;
use wire::admin::{Answer, Command, VhostSocket};

use crate::admin::{Node, unexpected};
use crate::cli::{Form, Global, Vhost};
use crate::cluster::Cluster;
use crate::device::Target;
use crate::output::{Style, say, say_json};
use crate::problem::{NO_LOCAL_NODE, Problem};
use crate::view::Views;

/// Where the kernel names itself, anew at each of its starts.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A node of this host, and the sockets that it has.
struct Local {
    node: Node,
    sockets: Vec<VhostSocket>,
}

#[derive(Serialize)]
struct SocketJson<'a> {
    node: &'a str,
    #[serde(flatten)]
    socket: &'a VhostSocket,
}

/// Does what was asked.
pub(crate) fn run(global: &Global, command: &Vhost) -> Result<(), Problem> {
    let cluster = Cluster::open(global)?;
    let style = Style::of(global);
    match command {
        Vhost::Add { target, node, group } => {
            let (node, resource) = meant(&cluster, target, node.as_deref(), false)?;
            let (volume, group) = (target.volume, group.clone());
            match node.ask(Command::VhostAdd { resource, volume, group })? {
                Answer::VhostSocket(socket) => added(style, &node, &socket),
                other => Err(unexpected(&node, &other)),
            }
        }
        Vhost::Remove { target, node } => {
            let (node, resource) = meant(&cluster, target, node.as_deref(), true)?;
            node.change(Command::VhostRemove { resource, volume: target.volume })?;
            match style.form {
                Form::Json => say_json(&json!({ "version": 1, "removed": target.to_string() })),
                Form::Human => say(&format!("{target}: no machine's disk any more.\n")),
            }
        }
        Vhost::List => list(style, &locals(&cluster)?),
    }
}

fn added(style: Style, node: &Node, socket: &VhostSocket) -> Result<(), Problem> {
    if style.form == Form::Json {
        let socket = SocketJson { node: &node.name, socket };
        return say_json(&json!({ "version": 1, "socket": socket }));
    }
    let VhostSocket { resource, volume, path, .. } = socket;
    say(&format!(
        "{resource}/{volume}: {path}, served by node {}.\nFor a machine whose memory is shared:\n  \
         -chardev socket,id=disk,path={path},reconnect=1 -device vhost-user-blk-pci,chardev=disk\n",
        node.name
    ))
}

fn list(style: Style, locals: &[Local]) -> Result<(), Problem> {
    let all = locals.iter().flat_map(|local| {
        let name = local.node.name.as_str();
        local.sockets.iter().map(move |socket| SocketJson { node: name, socket })
    });
    let all: Vec<SocketJson> = all.collect();
    if style.form == Form::Json {
        return say_json(&json!({ "version": 1, "sockets": all }));
    }
    if all.is_empty() {
        return say("No volume has a socket for machines of this host.\n");
    }
    let line = |one: &SocketJson| {
        let VhostSocket { resource, volume, path, connected, .. } = one.socket;
        let state = if *connected { "in use" } else { "free" };
        format!("{resource}/{volume}  {path}  {state}, node {}\n", one.node)
    };
    say(&all.iter().map(line).collect::<String>())
}

/// The nodes of this host.
fn locals(cluster: &Cluster) -> Result<Vec<Local>, Problem> {
    let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
    let answers = cluster.ask_all(|node| node.ask(Command::VhostList {}))?;
    let local = |(node, answer): (&Node, Answer)| match answer {
        Answer::VhostSockets { host, sockets } if host == boot.trim_end() => {
            Some(Local { node: node.clone(), sockets })
        }
        _ => None,
    };
    Ok(answers.into_iter().filter_map(local).collect())
}

/// Which node of this host is to do it: the one that is named, that has the socket, or that is alone. And the resource.
fn meant(
    cluster: &Cluster,
    target: &Target,
    name: Option<&str>,
    has_it: bool,
) -> Result<(Node, String), Problem> {
    let (cluster, views) = Views::one(cluster, &target.resource)?;
    views.require(&target.resource)?;
    let mut locals = locals(&cluster)?;
    if let Some(name) = name {
        cluster.node(name)?;
        locals.retain(|local| local.node.name == name);
    } else if has_it {
        let is_its = |socket: &VhostSocket| {
            socket.resource == target.resource && socket.volume == target.volume
        };
        let having = |local: &Local| local.sockets.iter().any(is_its);
        if locals.iter().any(having) {
            locals.retain(having);
        }
    }
    let names: Vec<&str> = locals.iter().map(|local| local.node.name.as_str()).collect();
    let message = match names.as_slice() {
        [_] => {
            let node = locals.remove(0).node;
            return Ok((node, target.resource.clone()));
        }
        [] => "none of the nodes that were asked is of this host".to_owned(),
        _ => format!("several nodes are of this host: {}", names.join(", ")),
    };
    Err(Problem::new(NO_LOCAL_NODE, message))
}

//! Two nodes in network namespaces of their own, joined by a link as of Ethernet.
//!
//! Always: nodes and namespaces go when the value goes.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tools::{Running, tool, wait_for};

use crate::outcome::{Outcome, complain};

/// The nodes, and where each is; addresses that belong to nobody (RFC 5737).
pub(crate) const ADDRESSES: [(&str, &str); 2] = [("a", "192.0.2.1"), ("b", "192.0.2.2")];

/// What the link is called at both ends.
const LINK: &str = "veth0";

/// How long a node may take to start.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A node, and its network.
struct Apartment {
    name: &'static str,
    namespace: String,
    home: PathBuf,
    running: Option<Running>,
}

/// Both of them.
pub(crate) struct Apart {
    program: PathBuf,
    nodes: Vec<Apartment>,
}

impl Apart {
    /// Starts a node in each of the directories that are named as the nodes, below this one.
    pub(crate) fn new(program: &Path, directory: &Path, mtu: u32) -> Outcome<Apart> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut apart = Apart { program: program.to_path_buf(), nodes: Vec::new() };
        for (name, _) in ADDRESSES {
            let namespace = format!("lockstep-bench-{}-{number}-{name}", std::process::id());
            tool("ip", &["netns", "add", &namespace])?;
            let home = directory.join(name);
            apart.nodes.push(Apartment { name, namespace, home, running: None });
        }
        let [here, there] = [0, 1].map(|at: usize| apart.nodes[at].namespace.clone());
        let mtu = mtu.to_string();
        let end = ["name", LINK, "mtu", &mtu];
        let words = [&["-n", &here, "link", "add"], &end[..], &["type", "veth", "peer"], &end[..]];
        tool("ip", &[words.concat(), vec!["netns", &there]].concat())?;
        for (node, (_, address)) in apart.nodes.iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            tool("ip", &["-n", &node.namespace, "address", "add", &address, "dev", LINK])?;
            for link in [LINK, "lo"] {
                tool("ip", &["-n", &node.namespace, "link", "set", link, "up"])?;
            }
        }
        for (name, _) in ADDRESSES {
            apart.start(name)?;
        }
        Ok(apart)
    }

    fn node(&mut self, name: &str) -> Outcome<&mut Apartment> {
        let found = self.nodes.iter_mut().find(|node| node.name == name);
        found.ok_or_else(|| format!("there is no node {name}"))
    }

    pub(crate) fn start(&mut self, name: &str) -> Outcome<()> {
        let program = self.program.clone();
        let node = self.node(name)?;
        let text = |error: std::io::Error| error.to_string();
        let path = node.home.join("log");
        let log = File::options().create(true).append(true).open(&path).map_err(text)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &node.namespace]).arg(program).args(["node", "--dir"]);
        command.arg(&node.home).stdout(log.try_clone().map_err(text)?).stderr(log);
        let socket = node.home.join("admin.sock");
        node.running = Some(Running::start(&mut command)?);
        // A socket that a killed node left refuses.
        let heard = || Ok(UnixStream::connect(&socket)?);
        wait_for("a node to start", START_LIMIT, heard)?;
        Ok(())
    }

    pub(crate) fn kill(&mut self, name: &str) -> Outcome<()> {
        self.node(name)?.running = None;
        Ok(())
    }

    /// Of the nodes that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.id())).collect()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.running = None;
            if let Err(why) = tool("ip", &["netns", "delete", &node.namespace]) {
                complain(&why);
            }
        }
    }
}

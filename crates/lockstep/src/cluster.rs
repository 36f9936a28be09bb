//! Which nodes there are to ask: those of a development cluster's directory, or those whose admin
//! sockets were named.
//!
//! Always: every path that leaves this file is absolute, so a node started from here finds its files
//! wherever it stands.
//!
//! Not here: making and starting a cluster (`dev`), what is asked (`admin`).

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wire::admin::{Answer, Command, NodeStatus};

use crate::admin::{Node, QUESTION_LIMIT, unexpected};
use crate::cli::{Global, Store};
use crate::problem::{
    CLUSTER_ABSENT, CLUSTER_DAMAGED, CLUSTERS_MIXED, NO_CLUSTER, NODE_ABSENT, Problem, UNREACHED,
};

/// Version of `cluster.json`.
const VERSION: u16 = 1;

/// Name of the file in a cluster's directory that says what it is.
const FILE: &str = "cluster.json";

/// A development cluster, as `cluster.json` holds it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DevFile {
    pub(crate) version: u16,
    /// Identity, hexadecimal.
    pub(crate) cluster: String,
    /// Where replicas are kept unless a resource says otherwise: `file` or `memory`.
    pub(crate) store: String,
    /// Of each node.
    #[serde(default = "one_thread")]
    pub(crate) threads: u16,
    /// Ascending by number.
    pub(crate) nodes: Vec<NodeEntry>,
}

fn one_thread() -> u16 {
    1
}

/// A node, as the file of its cluster holds it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeEntry {
    pub(crate) id: u16,
    pub(crate) name: String,
    /// Its own; of the loopback network in a development cluster.
    pub(crate) address: IpAddr,
    /// Where peers reach it.
    pub(crate) listen: SocketAddr,
    /// Where NBD clients reach it.
    pub(crate) nbd: SocketAddr,
}

impl NodeEntry {
    /// What others' `node.toml` say of it, also where it serves NVMe hosts, if it does.
    pub(crate) fn as_peer(&self, nvme: Option<SocketAddr>) -> String {
        let (id, name, listen, nbd) = (self.id, &self.name, self.listen, self.nbd);
        let nvme = nvme.map(|address| format!("nvme = \"{address}\"\n")).unwrap_or_default();
        format!(
            "[[peers]]\nid = {id}\nname = \"{name}\"\naddresses = [\"{listen}\"]\nnbd = \"{nbd}\"\n{nvme}"
        )
    }
}

/// A development cluster in its directory.
#[derive(Clone, Debug)]
pub(crate) struct DevCluster {
    pub(crate) directory: PathBuf,
    pub(crate) file: DevFile,
}

impl DevCluster {
    /// Reads the cluster of a directory; `None` if there is none in it.
    pub(crate) fn read(directory: &Path) -> Result<Option<DevCluster>, Problem> {
        let directory = absolute(directory)?;
        let path = directory.join(FILE);
        let Some(file) = read_file::<DevFile>(&path, |file| (file.version, VERSION))? else {
            return Ok(None);
        };
        // A name becomes a path; it must not lead out of the directory.
        let plain =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if let Some(node) = file.nodes.iter().find(|node| !plain(&node.name)) {
            return Err(damaged(&path, &format!("{:?} is no name of a node", node.name)));
        }
        Ok(Some(DevCluster { directory, file }))
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn write(&self) -> Result<(), Problem> {
        write_file(&self.directory.join(FILE), &self.file)
    }

    /// The file of a new cluster.
    pub(crate) fn new_file(cluster: u64, store: Store, nodes: Vec<NodeEntry>) -> DevFile {
        let store = if store == Store::Memory { "memory" } else { "file" };
        DevFile {
            version: VERSION,
            cluster: format!("{cluster:016x}"),
            store: store.to_owned(),
            threads: one_thread(),
            nodes,
        }
    }

    /// The node with this name.
    pub(crate) fn node(&self, name: &str) -> Result<&NodeEntry, Problem> {
        self.file.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.file.nodes.iter().map(|node| node.name.as_str()).collect();
            let message = format!("{name:?} is not among the nodes {}", names.join(", "));
            Problem::new(NODE_ABSENT, message)
        })
    }

    /// A node's directory.
    pub(crate) fn directory_of(&self, node: &NodeEntry) -> PathBuf {
        self.directory.join(&node.name)
    }

    /// A node's admin socket.
    pub(crate) fn admin_of(&self, node: &NodeEntry) -> Node {
        let socket = self.directory_of(node).join("admin.sock");
        Node { name: node.name.clone(), socket, identity: None }
    }

    /// What replicas are kept in unless said otherwise.
    pub(crate) fn store(&self) -> Store {
        if self.file.store == "memory" { Store::Memory } else { Store::File }
    }
}

/// Where a machine's node lies as a rule (`packaging/systemd/lockstepd.service`), and what is kept of disks that are attached.
pub(crate) const USUAL: &str = "/var/lib/lockstep";

/// The sockets of the nodes that the command line names; where it names neither nodes nor a cluster, of the one of this machine, if it
/// has one.
fn sockets_of(global: &Global) -> Vec<PathBuf> {
    let usual = Path::new(USUAL).join("admin.sock");
    let named = !global.admin.is_empty() || global.dir.is_some();
    if named || !usual.exists() { global.admin.clone() } else { vec![usual] }
}

/// The nodes that a command is for.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// If it is a development cluster.
    pub(crate) dev: Option<DevCluster>,
    /// All of them, running or not.
    pub(crate) nodes: Vec<Node>,
    /// The resource that is meant, where its name is not enough.
    pub(crate) identity: Option<u64>,
}

impl Cluster {
    /// The nodes that the command line names; where it names none, that of this machine.
    pub(crate) fn open(global: &Global) -> Result<Cluster, Problem> {
        Cluster::open_within(global, QUESTION_LIMIT)
    }

    /// The same; nodes whose names have to be asked for answer in this time, or keep their paths as their names.
    pub(crate) fn open_within(global: &Global, limit: Duration) -> Result<Cluster, Problem> {
        let sockets = sockets_of(global);
        let cluster = if sockets.is_empty() {
            let dev = Cluster::open_dev(global)?;
            let nodes = dev.file.nodes.iter().map(|node| dev.admin_of(node)).collect();
            Cluster { dev: Some(dev), nodes, identity: None }
        } else {
            let mut nodes = Vec::new();
            for socket in &sockets {
                let socket = absolute(socket)?;
                let name = socket.display().to_string();
                nodes.push(Node { name, socket, identity: None });
            }
            let cluster = Cluster { dev: None, nodes, identity: None };
            let named = cluster.ask_each(|node| {
                let answer = node.ask_within(Command::NodeStatus {}, limit);
                match answer {
                    Ok(Answer::Node(status)) => Node { name: status.node, ..node.clone() },
                    _ => node.clone(),
                }
            });
            Cluster { nodes: named, ..cluster }
        };
        Ok(global.id.map_or(cluster.clone(), |identity| cluster.about(identity)))
    }

    /// The same nodes, asked about this resource only.
    pub(crate) fn about(&self, identity: u64) -> Cluster {
        let nodes = self.nodes.iter().map(|node| node.about(identity)).collect();
        Cluster { dev: self.dev.clone(), nodes, identity: Some(identity) }
    }

    /// Refuses nodes of different clusters: what they say does not belong together. `said` is of each that answers
    /// its cluster, in hexadecimal.
    pub(crate) fn refuse_mixed<'a>(
        &self,
        said: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), Problem> {
        let said = said.into_iter().filter(|(_, cluster)| !cluster.is_empty());
        let own = self.dev.as_ref().map(|dev| ("this directory", dev.file.cluster.as_str()));
        let mut first: Option<(&str, &str)> = own;
        for (node, cluster) in said {
            let (whose, expected) = *first.get_or_insert((node, cluster));
            let same = u64::from_str_radix(expected, 16) == u64::from_str_radix(cluster, 16);
            if !same {
                let message = format!(
                    "node {node} belongs to cluster {cluster}, and {whose} to {expected}; nothing was changed"
                );
                return Err(Problem::new(CLUSTERS_MIXED, message));
            }
        }
        Ok(())
    }

    /// Asks all nodes at once: as long as the slowest takes. Answers stand in the order of nodes.
    pub(crate) fn ask_each<T: Send>(&self, ask: impl Fn(&Node) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = self.nodes.iter().map(|node| scope.spawn(|| ask(node))).collect();
            let answers = asked.into_iter().map(|thread| thread.join());
            answers.map(|answer| answer.expect("no question panics")).collect()
        })
    }

    /// The development cluster that the command line names.
    pub(crate) fn open_dev(global: &Global) -> Result<DevCluster, Problem> {
        let Some(directory) = &global.dir else {
            return Err(Problem::new(NO_CLUSTER, "it is not said which cluster is meant"));
        };
        DevCluster::read(directory)?.ok_or_else(|| {
            Problem::new(CLUSTER_ABSENT, format!("{} holds no cluster", directory.display()))
        })
    }

    /// The node with this name.
    pub(crate) fn node(&self, name: &str) -> Result<&Node, Problem> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let message = format!("{name:?} is not among the nodes {}", names.join(", "));
            Problem::new(NODE_ABSENT, message)
        })
    }

    /// Asks every node; gives the answers of those that can be reached, and the first problem if
    /// none can.
    pub(crate) fn ask_all<T: Send>(
        &self,
        ask: impl Fn(&Node) -> Result<T, Problem> + Sync,
    ) -> Result<Vec<(&Node, T)>, Problem> {
        let mut answers = Vec::new();
        let mut first = None;
        for (node, answer) in self.nodes.iter().zip(self.ask_each(ask)) {
            match answer {
                Ok(answer) => answers.push((node, answer)),
                Err(problem) => {
                    first.get_or_insert(problem);
                }
            }
        }
        if answers.is_empty() {
            let none = || Problem::new(UNREACHED, "the cluster has no nodes");
            return Err(first.unwrap_or_else(none));
        }
        Ok(answers)
    }
}

/// What a node says of itself.
pub(crate) fn node_status(node: &Node) -> Result<NodeStatus, Problem> {
    match node.ask(Command::NodeStatus {})? {
        Answer::Node(status) => Ok(status),
        other => Err(unexpected(node, &other)),
    }
}

/// The path without any relation to where this program stands.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Problem> {
    std::path::absolute(path).map_err(|error| Problem::file(path, &error))
}

/// Makes a directory, and those above it, for nobody but its owner: it holds keys or data.
pub(crate) fn make_directory(path: &Path) -> Result<(), Problem> {
    let wrong = |error| Problem::file(path, &error);
    let new: Vec<&Path> = path.ancestors().take_while(|place| !place.exists()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(wrong)?;
    // So that they are there after a power cut, too.
    let parents = new.iter().filter_map(|place| place.parent());
    let mut parents = parents.filter(|parent| !parent.as_os_str().is_empty());
    parents
        .try_for_each(|parent| fs::File::open(parent).and_then(|parent| parent.sync_all()))
        .map_err(wrong)
}

/// Makes a directory among everybody's (`/tmp`) under a name that others can guess, for nobody but this user.
///
/// # Errors
/// Somebody else has put something there: what is written below it could be led anywhere.
pub(crate) fn make_private_directory(path: &Path) -> Result<(), Problem> {
    let wrong = |error| Problem::file(path, &error);
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        outcome => return outcome.map_err(wrong),
    }
    let (facts, own) = (fs::symlink_metadata(path), fs::metadata("/proc/self"));
    let (facts, own) = (facts.map_err(wrong)?, own.map_err(wrong)?.uid());
    if facts.is_dir() && facts.uid() == own && facts.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("{} is not a directory that only this user writes to", path.display());
    let mut problem = Problem::new(crate::problem::FILE, message);
    "Remove it, or name another place with TMPDIR.".clone_into(&mut problem.remedy);
    Err(problem)
}

/// Reads what says of a cluster what it is; `None` if it is not there. `versions` gives the file's and ours.
pub(crate) fn read_file<T: DeserializeOwned>(
    path: &Path,
    versions: impl Fn(&T) -> (u16, u16),
) -> Result<Option<T>, Problem> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Problem::file(path, &error)),
    };
    let file: T = serde_json::from_str(&text).map_err(|error| damaged(path, &error.to_string()))?;
    let (version, ours) = versions(&file);
    if version != ours {
        return Err(damaged(path, &format!("version {version} is not {ours}")));
    }
    Ok(Some(file))
}

/// Writes it, whole or not at all.
pub(crate) fn write_file(path: &Path, file: &impl Serialize) -> Result<(), Problem> {
    let text = serde_json::to_string_pretty(file).expect("plain data becomes JSON");
    replace_file(path, &(text + "\n"))
}

/// Puts a text into a file, whole or not at all; not at all after an error, unless that says that it may be there.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<(), Problem> {
    sys::replace_file(path, text.as_bytes(), 0o666).map_err(|error| Problem::file(path, &error))
}

/// It cannot be what this program wrote.
pub(crate) fn damaged(path: &Path, what: &str) -> Problem {
    Problem::new(CLUSTER_DAMAGED, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::make_private_directory;

    #[test]
    fn a_directory_among_everybodys_is_taken_only_if_nobody_else_writes_to_it() {
        let name = format!("lockstep-private-{:x}", sys::random_u64());
        let own = std::env::temp_dir().join(name);
        make_private_directory(&own).expect("nothing is there");
        make_private_directory(&own).expect("it is ours");
        assert_eq!(fs::metadata(&own).expect("there").permissions().mode() & 0o777, 0o700);
        let (link, file) = (own.join("link"), own.join("file"));
        symlink(&own, &link).expect("made");
        fs::write(&file, "").expect("written");
        let refused = |path| make_private_directory(path).expect_err("it is not").to_string();
        assert!(refused(&link).contains("TMPDIR"), "{}", refused(&link));
        assert!(refused(&file).contains("is not a directory that only this user writes to"));
        fs::set_permissions(&own, Permissions::from_mode(0o777)).expect("set");
        assert!(refused(&own).contains("LS-0"));
        fs::remove_dir_all(&own).expect("this test's own");
    }
}

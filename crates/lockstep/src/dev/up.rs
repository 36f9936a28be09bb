//! Making a development cluster: addresses, certificates, `node.toml` of every node.
//!
//! Always: a directory that holds a cluster is never made anew; nothing is written before the
//! settings were found possible.
//!
//! Not here: the processes (`process`).

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Asked;
use crate::certificates::{create_authority, issue_node};
use crate::cli::Store;
use crate::cluster::{
    DevCluster, DevFile, NodeEntry, absolute, make_private_directory, replace_file,
};
use crate::problem::{CLUSTER_OTHER, FILE, NO_ADDRESS, Problem};

/// Where nodes listen for peers.
pub(crate) const PEER_PORT: u16 = 7789;

/// Where nodes listen for NBD clients: the port that IANA has given to NBD.
pub(crate) const NBD_PORT: u16 = 10809;

/// Where nodes listen for NVMe hosts: the port that IANA has given to NVMe over fabrics.
pub(crate) const NVME_PORT: u16 = 4420;

/// Nodes of a cluster if it is not said how many: the fewest with which one may be lost.
const NODES_DEFAULT: u16 = 3;

/// Longest path of a Unix socket in bytes: what `sockaddr_un` holds, less the zero at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Held while addresses are chosen and taken into use, so that two clusters never choose the same.
///
/// Beside the lock lies a note for each network in use, which names the cluster's directory: a cluster
/// that is down keeps its addresses as long as its directory is there.
pub(crate) struct AddressLock {
    _file: File,
    directory: PathBuf,
}

impl AddressLock {
    /// Waits for its turn.
    pub(crate) fn take() -> Result<AddressLock, Problem> {
        let user = fs::metadata("/proc/self").map(|metadata| metadata.uid()).unwrap_or_default();
        let directory = std::env::temp_dir().join(format!("lockstep-dev-{user}"));
        make_private_directory(&directory)?;
        let path = directory.join("lock");
        let wrong = |error| Problem::file(&path, &error);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(wrong)?;
        file.lock().map_err(wrong)?;
        Ok(AddressLock { _file: file, directory })
    }

    fn note(&self, network: u8) -> PathBuf {
        self.directory.join(format!("127.77.{network}"))
    }

    /// Whether a cluster that still exists has the network.
    fn is_reserved(&self, network: u8) -> bool {
        let Ok(owner) = fs::read_to_string(self.note(network)) else { return false };
        let Ok(Some(cluster)) = DevCluster::read(Path::new(owner.trim_end())) else { return false };
        cluster.file.nodes.iter().any(|node| network_of(node.address) == Some(network))
    }

    fn reserve(&self, cluster: &DevCluster) -> Result<(), Problem> {
        let address = cluster.file.nodes.first().map(|node| node.address);
        let Some(network) = address.and_then(network_of) else { return Ok(()) };
        let note = self.note(network);
        replace_file(&note, &format!("{}\n", cluster.directory.display()))
    }

    /// Gives back the network of a cluster whose directory is removed.
    pub(crate) fn release(&self, cluster: &DevCluster) {
        let address = cluster.file.nodes.first().map(|node| node.address);
        if let Some(network) = address.and_then(network_of) {
            // What cannot be removed is seen to be stale by the next who looks.
            let _ = fs::remove_file(self.note(network));
        }
    }
}

/// The X of 127.77.X.n.
fn network_of(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(address) => Some(address.octets()[2]),
        IpAddr::V6(_) => None,
    }
}

/// The cluster of `directory`: the one that is there, or a new one. Says whether it is new.
pub(crate) fn find_or_make(
    directory: &Path,
    asked: &Asked,
    lock: &AddressLock,
) -> Result<(DevCluster, bool), Problem> {
    if let Some(cluster) = DevCluster::read(directory)? {
        let count = cluster.file.nodes.len();
        if let Some(wanted) = asked.nodes
            && usize::from(wanted) != count
        {
            let message = format!("{} holds a cluster of {count} nodes", directory.display());
            return Err(Problem::new(CLUSTER_OTHER, message));
        }
        if let Some(wanted) = asked.threads
            && wanted != cluster.file.threads
        {
            let message = format!(
                "the nodes in {} have {} threads; `threads` in their node.toml changes it",
                directory.display(),
                cluster.file.threads
            );
            return Err(Problem::new(CLUSTER_OTHER, message));
        }
        if let Some(wanted) = asked.store
            && wanted != cluster.store()
        {
            let message = format!(
                "the cluster in {} keeps {} stores",
                directory.display(),
                cluster.file.store
            );
            return Err(Problem::new(CLUSTER_OTHER, message));
        }
        return Ok((cluster, false));
    }
    let directory = absolute(directory)?;
    let names = names(asked.nodes.unwrap_or(NODES_DEFAULT));
    let longest = directory.join("a").join("admin.sock");
    if longest.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let message = format!(
            "{} is too long: paths of sockets below it may have {SOCKET_PATH_BYTES_MAX} bytes",
            directory.display()
        );
        return Err(Problem::new(FILE, message));
    }
    let nodes = addresses(&names, lock)?;
    let mut file =
        DevCluster::new_file(sys::random_u64() | 1, asked.store.unwrap_or(Store::File), nodes);
    file.threads = asked.threads.unwrap_or(1);
    let cluster = DevCluster { directory, file };
    write_all(&cluster)?;
    cluster.write()?;
    lock.reserve(&cluster)?;
    Ok((cluster, true))
}

/// `a`, `b`, `c` and so on.
fn names(count: u16) -> Vec<String> {
    ('a'..='z').take(usize::from(count)).map(String::from).collect()
}

/// Gives every node an address of its own in the first network where nobody listens.
fn addresses(names: &[String], lock: &AddressLock) -> Result<Vec<NodeEntry>, Problem> {
    let mut last = None;
    for network in (0..=u8::MAX).filter(|&network| !lock.is_reserved(network)) {
        let nodes: Vec<NodeEntry> =
            (1..).zip(names).map(|(id, name)| dev_node(network, id, name)).collect();
        let taken = nodes
            .iter()
            .flat_map(|node| [node.listen, node.nbd, nvme_of(node)])
            .find_map(|address| TcpListener::bind(address).err().map(|error| (address, error)));
        match taken {
            None => return Ok(nodes),
            Some(taken) => last = Some(taken),
        }
    }
    let what = last.map(|(address, error)| format!("; {address}: {error}")).unwrap_or_default();
    Err(Problem::new(NO_ADDRESS, format!("no free loopback addresses{what}")))
}

/// Where NVMe hosts reach a node of a cluster on one machine.
pub(crate) fn nvme_of(node: &NodeEntry) -> SocketAddr {
    SocketAddr::new(node.address, NVME_PORT)
}

fn dev_node(network: u8, id: u8, name: &str) -> NodeEntry {
    let address = IpAddr::V4(Ipv4Addr::new(127, 77, network, id));
    NodeEntry {
        id: u16::from(id),
        name: name.to_owned(),
        address,
        listen: SocketAddr::new(address, PEER_PORT),
        nbd: SocketAddr::new(address, NBD_PORT),
    }
}

/// Writes what every node needs to start.
fn write_all(cluster: &DevCluster) -> Result<(), Problem> {
    let id = u64::from_str_radix(&cluster.file.cluster, 16).unwrap_or(1);
    let authority = create_authority(id, &cluster.directory.join("authority"))?;
    for node in &cluster.file.nodes {
        let directory = cluster.directory_of(node);
        issue_node(&authority, node, &directory)?;
        let path = directory.join("node.toml");
        replace_file(&path, &settings(&cluster.file, node))?;
    }
    Ok(())
}

/// `node.toml` of `node`.
pub(crate) fn settings(cluster: &DevFile, node: &NodeEntry) -> String {
    let mut text = format!(
        "# Made by `lockstep dev up`.\n\
         cluster = \"{}\"\nnode = {}\nname = \"{}\"\nlisten = \"{}\"\nnbd = \"{}\"\n\
         nvme = \"{}\"\nnbd_socket = \"nbd.sock\"\nadmin_socket = \"admin.sock\"\n\
         certificate = \"certificate.pem\"\nkey = \"key.pem\"\nauthority = \"authority.pem\"\n",
        cluster.cluster,
        node.id,
        node.name,
        node.listen,
        node.nbd,
        nvme_of(node)
    );
    if cluster.threads > 1 {
        writeln!(text, "threads = {}", cluster.threads).expect("writing into a string cannot fail");
    }
    if cluster.store == "memory" {
        text.push_str("allow_memory_store = true\n");
    }
    for peer in cluster.nodes.iter().filter(|peer| peer.id != node.id) {
        text.push('\n');
        text.push_str(&peer.as_peer(Some(nvme_of(peer))));
    }
    text
}

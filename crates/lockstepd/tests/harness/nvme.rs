//! Volumes over NVMe/TCP, also by hosts that are told apart by a table.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use client::{NvmeIdentity, NvmeVolume, discover};

use super::{Cluster, PATIENCE};

pub(crate) const MIB: u64 = 1 << 20;

/// Hosts that tables name.
pub(crate) const ONE: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
pub(crate) const TWO: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000002";

/// Nodes that serve NVMe, each with this table of hosts if there is one.
pub(crate) fn cluster(name: &str, nodes: u16, table: Option<&str>) -> Cluster {
    let mut cluster = Cluster::new(name, nodes);
    for node in 1..=nodes {
        cluster.add_settings(node, &format!("nvme = \"{}\"", address(&cluster, node)));
        if let Some(table) = table {
            cluster.add_settings(node, "nvme_hosts = \"nvme-hosts.toml\"");
            write_table(&cluster, node, table);
        }
        cluster.start(node);
    }
    cluster
}

/// Nodes that serve NVMe, whose stores lose with their process what was not flushed.
pub(crate) fn volatile_cluster(name: &str, nodes: u16) -> Cluster {
    let mut cluster = Cluster::new(name, nodes);
    for node in 1..=nodes {
        let nvme = format!("nvme = \"{}\"\nallow_faults = true", address(&cluster, node));
        cluster.add_settings(node, &nvme);
        cluster.append_settings(node, "[faults]\nvolatile_cache = true\n");
        cluster.start(node);
    }
    cluster
}

pub(crate) fn address(cluster: &Cluster, node: u16) -> SocketAddr {
    format!("{}:4420", cluster.address(node)).parse().expect("an address")
}

pub(crate) fn read(volume: &mut NvmeVolume, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    volume.read(offset, &mut bytes).expect("it is read");
    bytes
}

pub(crate) fn write_table(cluster: &Cluster, node: u16, table: &str) {
    let path = cluster.home(node).join("nvme-hosts.toml");
    std::fs::write(&path, table).expect("written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permitted");
}

/// Resources of 8 MiB.
pub(crate) fn create(cluster: &Cluster, names: &[&str], replicas: &[u16]) {
    for (number, name) in names.iter().enumerate() {
        let mut file = cluster.resource(name, 8 * MIB, replicas);
        file.id += number as u64;
        cluster.create(&file);
    }
}

/// The subsystem of a resource, as the first node tells it.
pub(crate) fn subsystem(cluster: &Cluster, name: &str) -> String {
    let names = discover(address(cluster, 1), PATIENCE).expect("it is told");
    names.into_iter().find(|one| one.ends_with(&format!(":{name}"))).expect("it is there")
}

/// A resource's first volume, by this node as this host.
pub(crate) fn open(
    cluster: &Cluster,
    node: u16,
    name: &str,
    who: &NvmeIdentity,
) -> std::io::Result<NvmeVolume> {
    let name = subsystem(cluster, name);
    NvmeVolume::open_as(who, address(cluster, node), (&name, 1), node == 2, PATIENCE)
}

//! How a client of the load has its volume: by NBD, or by NVMe/TCP.
//!
//! Always: what a node says that its path failed for is in doubt, as if it had never been answered, and is not asked again: a
//! write that is carried out twice would be two.
//!
//! Not here: what is asked (`load`), several paths of one host (labs `vm-nvme` and the like, with Linux' own).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::{Failure, Outcome};
use crate::cluster::Cluster;
use client::{NvmeVolume, Volume};

/// The volume's number in its subsystem: its resource has one.
const NAMESPACE: u32 = 1;

/// A volume as hosts of NVMe/TCP know it.
#[derive(Debug)]
pub(crate) struct Subsystem {
    name: String,
    /// Where each node has it, by where NBD clients find the node.
    doors: BTreeMap<SocketAddr, SocketAddr>,
}

impl Subsystem {
    /// That of a resource, by all nodes.
    pub(crate) fn of(cluster: &Cluster, resource: &str) -> Outcome<Arc<Subsystem>> {
        let told = cluster.ok(&["resource", "show", resource])?;
        let mut places =
            told.split_whitespace().filter_map(|word| word.strip_prefix("nvme+tcp://"));
        let name = places.next().and_then(|place| place.split('/').nth(1));
        let name = name.ok_or_else(|| Failure(format!("no place by NVMe/TCP is told: {told}")))?;
        let doors = cluster.nodes.iter().map(|node| (node.nbd, node.nvme)).collect();
        Ok(Arc::new(Subsystem { name: name.to_owned(), doors }))
    }
}

/// A connection to a node.
pub(super) enum Way {
    Nbd(Volume),
    Nvme(Box<NvmeVolume>),
}

impl Way {
    /// Connects; no answer may take longer than `limit`, nor may the node be without a primary for longer.
    pub(super) fn open(
        node: SocketAddr,
        export: &str,
        subsystem: Option<&Subsystem>,
        limit: Duration,
    ) -> io::Result<Way> {
        let Some(Subsystem { name, doors }) = subsystem else {
            return Volume::open(node, export, limit).map(Way::Nbd);
        };
        let door = *doors.get(&node).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let volume = NvmeVolume::open(door, name, NAMESPACE, false, limit)?;
        Ok(Way::Nvme(Box::new(volume)))
    }

    pub(super) fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Way::Nbd(volume) => volume.read(place, bytes),
            Way::Nvme(volume) => volume.read(place, bytes),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Way::Nbd(volume) => volume.flush(),
            Way::Nvme(volume) => volume.flush(),
        }
    }

    /// Whether it was acknowledged, as in all of these; false: it is in doubt.
    pub(super) fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<bool> {
        match self {
            Way::Nbd(volume) => volume.write(place, bytes).map(|()| true),
            Way::Nvme(volume) => volume.try_write(place, bytes),
        }
    }

    pub(super) fn write_stable(&mut self, place: u64, bytes: &[u8]) -> io::Result<bool> {
        match self {
            Way::Nbd(volume) => volume.write_stable(place, bytes).map(|()| true),
            Way::Nvme(volume) => volume.try_write_through(place, bytes),
        }
    }

    pub(super) fn zero(&mut self, place: u64, length: usize) -> io::Result<bool> {
        match self {
            Way::Nbd(volume) => volume.zero(place, short(length)?).map(|()| true),
            Way::Nvme(volume) => volume.try_zero(place, length),
        }
    }

    pub(super) fn discard(&mut self, place: u64, length: usize) -> io::Result<bool> {
        match self {
            Way::Nbd(volume) => volume.discard(place, short(length)?).map(|()| true),
            Way::Nvme(volume) => volume.try_deallocate(place, length),
        }
    }
}

fn short(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput.into())
}

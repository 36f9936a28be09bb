//! Hosts' data by NVMe/TCP, with real processes: past all caches, and damaged on its way.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};

use client::{NvmeQueue, NvmeVolume};
use harness::nvme::{MIB, address, create, read, subsystem, volatile_cluster};
use harness::{Cluster, PATIENCE, content};
use nvme::{HostEvent, Status};

/// By nodes 1 and 3 without digests, by node 2 with both.
fn open(cluster: &Cluster, node: u16) -> NvmeVolume {
    let name = subsystem(cluster, "alpha");
    NvmeVolume::open(address(cluster, node), &name, 1, node == 2, PATIENCE).unwrap()
}

/// What comes with its command, and what is asked for; by the primary's node, and by one that forwards.
#[test]
fn a_write_with_fua_is_there_after_a_power_cut_of_all_nodes() {
    let mut cluster = volatile_cluster("nvme-fua", 3);
    create(&cluster, &["alpha"], &[1, 2, 3]);
    let (short, long) = (content(1, 4096), content(2, 1 << 20));
    let places = [(1, 0), (2, 2 * MIB), (3, 4 * MIB)];
    for (node, at) in places {
        let mut volume = open(&cluster, node);
        volume.write_through(at, &short).unwrap();
        volume.write_through(at + MIB, &long).unwrap();
        assert!(read(&mut volume, at, 4096) == short);
    }
    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start(node));
    for node in 1..=3 {
        let mut volume = open(&cluster, node);
        for (by, at) in places {
            assert!(read(&mut volume, at, 4096) == short, "written by node {by}");
            assert!(read(&mut volume, at + MIB, 1 << 20) == long, "written by node {by}");
        }
    }
}

fn next_event(queue: &mut NvmeQueue) -> HostEvent {
    let mut buffer = [0; 4096];
    loop {
        if let Some(event) = queue.host.next_event().unwrap() {
            return event;
        }
        let count = queue.stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it is closed");
        queue.host.take(&buffer[..count]);
    }
}

/// A host's queue, and a write of one block with its data right behind: the bytes, and its number.
fn damage(cluster: &Cluster, bytes: &[u8]) -> (NvmeQueue, Vec<u8>, u16) {
    let mut queue = open(cluster, 2).into_queue();
    let mut capsule = Vec::new();
    let namespace = queue.namespace;
    let id = queue.host.write(namespace, (0, 1), false, bytes, &mut capsule);
    // A command and its digest, the data and its own.
    assert_eq!(capsule.len(), 72 + 4 + bytes.len() + 4);
    (queue, capsule, id)
}

/// Its host has another one for administration, by which it switches its controller off.
#[test]
fn a_damaged_header_ends_its_connection_and_no_other() {
    let cluster = harness::nvme::cluster("nvme-header", 2, None);
    create(&cluster, &["alpha"], &[1, 2]);
    let (is, never) = (content(1, 4096), content(2, 4096));
    let (mut other, mut by_1) = (open(&cluster, 2), open(&cluster, 1));
    other.write(0, &is).unwrap();
    // Its namespace, its first block, and the digest itself.
    for at in [12, 48, 72] {
        let (mut queue, mut capsule, _) = damage(&cluster, &never);
        capsule[at] ^= 1;
        queue.stream.write_all(&capsule).unwrap();
        assert_eq!(next_event(&mut queue), HostEvent::Ends { code: 3 }, "byte {at}");
        assert_eq!(queue.stream.read(&mut [0; 64]).unwrap(), 0);
        for path in [&mut other, &mut by_1] {
            assert!(read(path, 0, 4096) == is, "nothing of it was carried out");
            path.write(4096, &is).unwrap();
        }
    }
}

#[test]
fn damaged_data_is_not_written_and_its_host_goes_on() {
    let cluster = harness::nvme::cluster("nvme-data", 2, None);
    create(&cluster, &["alpha"], &[1, 2]);
    let (is, never, late) = (content(1, 4096), content(2, 4096), content(3, 4096));
    let mut other = open(&cluster, 2);
    other.write(0, &is).unwrap();
    let (mut queue, mut capsule, id) = damage(&cluster, &never);
    capsule[76 + 1000] ^= 1;
    queue.stream.write_all(&capsule).unwrap();
    let damaged = |id| HostEvent::Ended { id, status: Status::TRANSPORT, result: 0 };
    assert_eq!(next_event(&mut queue), damaged(id));
    assert!(read(&mut other, 0, 4096) == is);
    // Data that was asked for.
    let mut send = Vec::new();
    let (namespace, shift) = (queue.namespace, queue.block_shift);
    let id = queue.host.write_later(namespace, (0, 1), shift, &mut send);
    queue.stream.write_all(&send).unwrap();
    let asked = next_event(&mut queue);
    let HostEvent::Asked { tag, length_bytes: 4096, .. } = asked else { panic!("{asked:?}") };
    send.clear();
    queue.host.send_data((id, tag), 0, &never, 4096, &mut send);
    *send.last_mut().unwrap() ^= 0x80;
    queue.stream.write_all(&send).unwrap();
    assert_eq!(next_event(&mut queue), damaged(id));
    assert!(read(&mut other, 0, 4096) == is);
    send.clear();
    let id = queue.host.write(namespace, (0, 1), false, &late, &mut send);
    queue.stream.write_all(&send).unwrap();
    let done = HostEvent::Ended { id, status: Status::SUCCESS, result: 0 };
    assert_eq!(next_event(&mut queue), done, "the same queue");
    assert!(read(&mut other, 0, 4096) == late);
}

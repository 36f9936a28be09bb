//! Hosts that keep each other from a volume, by whichever node they came, with real processes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use base::{ReservationCommand as Asks, ReservationKind as Kind};
use client::{NvmeIdentity, NvmeVolume, discover};
use harness::nvme::{address, cluster, create, subsystem, volatile_cluster};
use harness::{Cluster, PATIENCE};
use std::time::Duration;

const CONFLICT: u16 = 0x083;

/// A host of this name, by a node.
fn open(cluster: &Cluster, node: u16, host: &str) -> NvmeVolume {
    let name = discover(address(cluster, node), PATIENCE).unwrap().remove(0);
    open_of(cluster, node, host, &name)
}

/// The same, of one of several subsystems.
fn open_of(cluster: &Cluster, node: u16, host: &str, name: &str) -> NvmeVolume {
    open_for(cluster, node, host, name, PATIENCE)
}

/// The same, by a host that waits so long for each answer.
fn open_for(cluster: &Cluster, node: u16, host: &str, name: &str, limit: Duration) -> NvmeVolume {
    let nqn = format!("nqn.2026-11.invalid.lockstep:host-{host}");
    let who = NvmeIdentity { nqn, ..NvmeIdentity::default() };
    NvmeVolume::open_as(&who, address(cluster, node), (name, 1), false, limit).unwrap()
}

fn write(volume: &mut NvmeVolume, value: u8) -> Result<(), String> {
    volume.write(0, &[value; 4096]).map_err(|error| error.to_string())
}

fn is_kept(volume: &mut NvmeVolume) -> bool {
    write(volume, 0xee).is_err_and(|error| error.contains("0x83"))
}

/// Generation, kind, and keys of who is registered.
fn report(volume: &mut NvmeVolume) -> (u32, u8, Vec<u64>) {
    let page = volume.reservations().unwrap();
    let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let count = usize::from(u16::from_le_bytes([page[5], page[6]]));
    let key = |entry: &[u8]| u64::from_le_bytes(entry[8..16].try_into().unwrap());
    let mut keys: Vec<u64> = page[64..].chunks(64).take(count).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    (word(0), page[4], keys)
}

fn register(key: u64) -> Asks {
    Asks::Register { key, persists: Some(true) }
}

#[test]
fn a_host_is_fenced_by_another_through_every_node_and_a_killed_primary() {
    let mut cluster = cluster("reserve", 3, None);
    create(&cluster, &["alpha"], &[1, 2, 3]);
    // The first registration takes all who are in it to a newer level: each node has to have heard what the others know.
    (1..=3).for_each(|node| cluster.wait_in_sync(node, "alpha", &[1, 2, 3]));
    let (mut a, mut b) = (open(&cluster, 1, "a"), open(&cluster, 2, "b"));
    assert_eq!(report(&mut a), (0, 0, vec![]));
    assert_eq!(a.reserve(&register(1)).unwrap(), Ok(()));
    assert_eq!(b.reserve(&register(2)).unwrap(), Ok(()));
    assert_eq!(b.reserve(&register(3)).unwrap(), Err(CONFLICT));
    write(&mut b, 1).unwrap();
    let kind = Kind::WriteExclusive;
    assert_eq!(a.reserve(&Asks::Acquire { current: 1, kind }).unwrap(), Ok(()));
    assert_eq!(b.reserve(&Asks::Acquire { current: 2, kind }).unwrap(), Err(CONFLICT));
    write(&mut a, 2).unwrap();
    assert!(is_kept(&mut b));
    let mut b_by_1 = open(&cluster, 1, "b");
    assert!(is_kept(&mut b_by_1));
    let mut bytes = [0; 4096];
    b.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4096]);
    // By each node the same is told.
    for node in 1..=3 {
        assert_eq!(report(&mut open(&cluster, node, "c")), (2, 1, vec![1, 2]), "node {node}");
    }
    let preempt = Asks::Preempt { current: 2, others: 1, kind };
    assert_eq!(b.reserve(&preempt).unwrap(), Ok(()));
    assert!(is_kept(&mut a));
    write(&mut b, 3).unwrap();
    // Whoever is primary next knows it, and so do all after a start.
    let primary = cluster.status(2, "alpha").primary.unwrap();
    let primary = (1..=3).find(|&node| harness::node_name(node) == primary).unwrap();
    drop((a, b, b_by_1));
    cluster.kill(primary);
    let rest: Vec<u16> = (1..=3).filter(|&node| node != primary).collect();
    let mut a = open(&cluster, rest[0], "a");
    let mut b = open(&cluster, rest[1], "b");
    assert!(is_kept(&mut a));
    write(&mut b, 4).unwrap();
    assert_eq!(report(&mut a), (3, 1, vec![2]));
    drop((a, b));
    rest.iter().for_each(|&node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start(node));
    let (mut a, mut b) = (open(&cluster, 1, "a"), open(&cluster, 3, "b"));
    assert!(is_kept(&mut a));
    assert_eq!(report(&mut b), (3, 1, vec![2]));
    assert_eq!(b.reserve(&Asks::Release { current: 2, kind }).unwrap(), Ok(()));
    write(&mut a, 5).unwrap();
    assert_eq!(b.reserve(&Asks::Clear { current: 2 }).unwrap(), Ok(()));
    assert_eq!(report(&mut a), (4, 0, vec![]));
}

/// It waited at a node that reached no primary. What the host asks elsewhere comes after it, whenever that node reaches one.
#[test]
fn what_a_host_has_asked_of_a_node_that_it_has_left_is_not_done() {
    let mut cluster = cluster("left", 3, None);
    create(&cluster, &["alpha"], &[1, 2, 3]);
    (1..=3).for_each(|node| cluster.wait_in_sync(node, "alpha", &[1, 2, 3]));
    let mut a = open(&cluster, 1, "a");
    let kind = Kind::WriteExclusive;
    assert_eq!(a.reserve(&register(1)).unwrap(), Ok(()));
    assert_eq!(a.reserve(&Asks::Acquire { current: 1, kind }).unwrap(), Ok(()));
    let name = discover(address(&cluster, 2), PATIENCE).unwrap().remove(0);
    let mut by_2 = open_for(&cluster, 2, "a", &name, Duration::from_secs(4));
    cluster.kill(1);
    cluster.kill(3);
    // It is told that this is no way, or hears nothing and goes.
    let told = by_2.reserve(&Asks::Release { current: 1, kind });
    assert!(!matches!(told, Ok(Ok(()))), "{told:?}");
    drop((a, by_2));
    cluster.start(1);
    cluster.start(3);
    // What node 2 asks the primary for is asked in order.
    assert_eq!(report(&mut open(&cluster, 2, "b")), (1, 1, vec![1]));
}

#[test]
fn hosts_are_told_by_their_own_nodes_what_others_took_from_them() {
    const FENCED: (u8, u32) = (1, 1);
    const RELEASED: (u8, u32) = (2, 1);
    const CLEARED: (u8, u32) = (3, 1);
    let cluster = cluster("notices", 3, None);
    create(&cluster, &["alpha"], &[1, 2, 3]);
    // The first registration takes all who are in it to a newer level: each node has to have heard what the others know.
    (1..=3).for_each(|node| cluster.wait_in_sync(node, "alpha", &[1, 2, 3]));
    let (mut a, mut b) = (open(&cluster, 1, "a"), open(&cluster, 2, "b"));
    let (mut c, mut b_by_3) = (open(&cluster, 3, "c"), open(&cluster, 3, "b"));
    for (host, key) in [(&mut a, 1), (&mut b, 2), (&mut c, 3)] {
        assert_eq!(host.reserve(&register(key)).unwrap(), Ok(()));
    }
    let kind = Kind::WriteExclusiveRegistrants;
    assert_eq!(a.reserve(&Asks::Acquire { current: 1, kind }).unwrap(), Ok(()));
    assert_eq!(a.reserve(&Asks::Release { current: 1, kind }).unwrap(), Ok(()));
    for host in [&mut b, &mut c, &mut b_by_3] {
        assert_eq!(host.await_notice().unwrap(), RELEASED);
    }
    assert_eq!(a.reserve(&Asks::Acquire { current: 1, kind }).unwrap(), Ok(()));
    let preempt = Asks::Preempt { current: 1, others: 2, kind };
    assert_eq!(a.reserve(&preempt).unwrap(), Ok(()));
    for host in [&mut b, &mut b_by_3] {
        assert_eq!(host.await_notice().unwrap(), FENCED);
    }
    // The first thing that A hears, and the second that C does.
    assert_eq!(c.reserve(&Asks::Clear { current: 3 }).unwrap(), Ok(()));
    assert_eq!(a.await_notice().unwrap(), CLEARED);
}

#[test]
fn a_preempt_that_aborts_fences_a_host_by_every_node() {
    let cluster = cluster("abort", 2, None);
    create(&cluster, &["alpha"], &[1, 2]);
    (1..=2).for_each(|node| cluster.wait_in_sync(node, "alpha", &[1, 2]));
    let (mut a, mut b) = (open(&cluster, 1, "a"), open(&cluster, 2, "b"));
    let mut a_by_2 = open(&cluster, 2, "a");
    assert_eq!(a.reserve(&register(1)).unwrap(), Ok(()));
    assert_eq!(b.reserve(&register(2)).unwrap(), Ok(()));
    let kind = Kind::WriteExclusive;
    assert_eq!(a.reserve(&Asks::Acquire { current: 1, kind }).unwrap(), Ok(()));
    write(&mut a, 1).unwrap();
    assert_eq!(b.preempt_and_abort((3, 1), kind).unwrap(), Err(CONFLICT), "not its key");
    assert_eq!(report(&mut b), (2, 1, vec![1, 2]));
    assert_eq!(b.preempt_and_abort((2, 1), kind).unwrap(), Ok(()));
    assert!(is_kept(&mut a) && is_kept(&mut a_by_2));
    write(&mut b, 2).unwrap();
    assert_eq!(report(&mut a), (3, 1, vec![2]));
}

/// Whether a reservation persists is said with a registration.
#[test]
fn a_reservation_that_persists_is_there_when_all_caches_were_lost_and_another_is_gone() {
    let mut cluster = volatile_cluster("reserve-cut", 3);
    let all = [("alpha", true, Kind::WriteExclusive), ("beta", false, Kind::ExclusiveAccess)];
    create(&cluster, &all.map(|(name, ..)| name), &[1, 2, 3]);
    let names = all.map(|(name, ..)| subsystem(&cluster, name));
    for ((resource, persists, kind), name) in all.iter().zip(&names) {
        (1..=3).for_each(|node| cluster.wait_in_sync(node, resource, &[1, 2, 3]));
        let mut a = open_of(&cluster, 1, "a", name);
        let mut b = open_of(&cluster, 2, "b", name);
        for (host, key) in [(&mut a, 1), (&mut b, 2)] {
            let register = Asks::Register { key, persists: Some(*persists) };
            assert_eq!(host.reserve(&register).unwrap(), Ok(()));
        }
        let acquire = Asks::Acquire { current: 1, kind: *kind };
        assert_eq!(a.reserve(&acquire).unwrap(), Ok(()));
        assert!(is_kept(&mut b));
        assert_eq!(report(&mut b), (2, *kind as u8, vec![1, 2]));
    }
    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start(node));
    for (resource, ..) in all {
        cluster.wait_in_sync(3, resource, &[1, 2, 3]);
    }
    let mut stays = open_of(&cluster, 3, "b", &names[0]);
    assert!(is_kept(&mut stays));
    assert_eq!(report(&mut stays), (2, Kind::WriteExclusive as u8, vec![1, 2]));
    write(&mut open_of(&cluster, 2, "a", &names[0]), 1).unwrap();
    for host in ["a", "b", "c"] {
        let mut free = open_of(&cluster, 3, host, &names[1]);
        write(&mut free, 2).unwrap();
        let (_, kind, keys) = report(&mut free);
        assert_eq!((kind, keys), (0, vec![]), "nobody is registered");
    }
}

//! With protocol B the memory of a process counts: a copy whose process ends may lack what clients were told is done.

use super::network::World;
use crate::disk::Record;
use crate::door::{Geometry, Timing};
use crate::start::{Found, Start, start};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Incarnation, NodeId};
use wire::{Configuration, Protocol};

/// So many replicas, then witnesses, then clients.
fn early(seed: u64, replicas: u16, witnesses: u16, clients: u16) -> World {
    let mut world = World::new(seed, replicas, witnesses, clients);
    for node in 1..=replicas + witnesses + clients {
        world.crash(node);
    }
    world.bootstrap.options.protocol = Protocol::B;
    for node in 1..=replicas + witnesses + clients {
        if node <= replicas + witnesses {
            world.node_mut(node).disk = Record::first(&world.bootstrap, NodeId(node), 1);
        }
        world.start(node);
    }
    world.connect_all();
    world
}

fn in_memory(world: &World, node: u16) -> bool {
    world.node(node).disk.as_ref().expect("it has a disk").in_memory
}

#[test]
fn the_record_of_a_replica_says_that_its_memory_counts_and_the_primarys_does_not() {
    let mut world = early(1, 3, 0, 0);
    world.set_clients(1, 1);
    world.run_until("node 1 serves", |world| world.answers(1));
    world.wait(1);
    assert_eq!([1, 2, 3].map(|node| in_memory(&world, node)), [false, true, true]);
}

#[test]
fn the_memory_of_the_last_replica_counts_until_its_disk_has_everything() {
    let mut world = early(2, 2, 1, 1);
    world.set_clients(4, 1);
    world.run_until("node 4 serves", |world| world.answers(4));
    world.wait(1);
    assert!(in_memory(&world, 1) && in_memory(&world, 2));
    world.node_mut(2).shards.mute_written = true;
    world.crash(1);
    world.run_until("node 2 is alone", |world| world.in_sync() == [2]);
    world.wait(1);
    assert!(in_memory(&world, 2), "it may not have what node 1 had");
    world.node_mut(2).shards.mute_written = false;
    let newest = world.newest();
    world.say_written(2, &newest);
    world.wait(1);
    assert!(!in_memory(&world, 2));
}

/// The record with which a process starts on one of `in_sync`, of which `primary` is the primary.
fn started(protocol: Protocol, in_memory: bool, clean: bool) -> Record {
    let world = World::new(1, 2, 0, 0);
    let mut configuration: Configuration = world.bootstrap.clone();
    configuration.options.protocol = protocol;
    let record = Record {
        in_memory,
        clean,
        committed: Some((Ballot::default(), Box::new(configuration.clone()))),
        ..Record::first(&configuration, NodeId(2), 1).expect("a member")
    };
    let how = Start {
        node: NodeId(2),
        process: 5,
        boot: 1,
        holds_data: true,
        volatile_cache: true,
        shards: 1,
        geometry: Geometry::default(),
        log_sizes: Vec::new(),
        timing: Timing::default(),
        feature_level: wire::FEATURE_LEVEL,
        seed: 9,
        bootstrap: None,
    };
    let found = Found { record: Some(record), pages: Vec::new() };
    start(&how, found).member.record.expect("as found")
}

#[test]
fn a_copy_whose_memory_counted_is_another_one_after_its_process_ended() {
    let gone = started(Protocol::B, true, false);
    assert_ne!(gone.incarnation, Incarnation(2));
    assert!(gone.in_memory, "the next one counts again");
    assert_eq!(started(Protocol::B, true, true).incarnation, Incarnation(2), "in good order");
    assert_eq!(started(Protocol::B, false, false).incarnation, Incarnation(2));
    let changed = started(Protocol::C, true, false);
    assert_ne!(changed.incarnation, Incarnation(2), "it was B when the process ended");
    assert!(!changed.in_memory);
}

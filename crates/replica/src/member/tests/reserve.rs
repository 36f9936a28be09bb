//! Commands of hosts about who may use a volume, by nodes that are primary and nodes that are not.

use super::network::{MS, World};
use super::serving;
use crate::door::{MemberInput, Operation, OperationError, OperationId};
use alloc::vec::Vec;
use base::{HostId, VolumeId};
use wire::admin::OptionsChange;
use wire::{
    FEATURE_LEVEL_FIRST, FEATURE_LEVEL_RESERVATIONS, Quorum, ReservationCommand as Command,
    ReservationKind as Kind, ReservationRefusal as Refusal,
};

const VOLUME: VolumeId = VolumeId(0);

fn ask(world: &mut World, node: u16, host: u128, command: Command) -> u64 {
    let host = HostId(host);
    world.operate(node, Operation::Reserve { volume: VOLUME, host, command })
}

fn answer(world: &mut World, node: u16, host: u128, command: Command) -> Result<(), Refusal> {
    let id = ask(world, node, host, command);
    world.run_until("answered", |world| world.is_done(node, id));
    match world.node(node).done[&id] {
        Ok(()) => Ok(()),
        Err(OperationError::Reservation(refusal)) => Err(refusal),
        Err(error) => panic!("{error:?}"),
    }
}

fn register(key: u64) -> Command {
    Command::Register { key, persists: None }
}

fn hosts(world: &World) -> Vec<u128> {
    let newest = world.newest();
    let all = newest.reservations_of(VOLUME);
    all.map_or(Vec::new(), |all| all.registrants.iter().map(|one| one.host.0).collect())
}

#[test]
fn hosts_register_by_any_node_and_the_level_rises_with_the_first() {
    let mut world = serving(51, 3, 0, 1);
    assert_eq!(world.newest().feature_level, FEATURE_LEVEL_FIRST);
    for (node, host) in [(1, 0xa), (2, 0xb), (4, 0xc)] {
        assert_eq!(answer(&mut world, node, host, register(7)), Ok(()));
    }
    assert_eq!(hosts(&world), [0xa, 0xb, 0xc]);
    assert_eq!(world.newest().feature_level, FEATURE_LEVEL_RESERVATIONS);
    assert_eq!(answer(&mut world, 2, 0xb, register(8)), Err(Refusal::Conflict));
    assert_eq!(answer(&mut world, 3, 0xd, Command::Clear { current: 1 }), Err(Refusal::Conflict));
}

#[test]
fn a_report_is_answered_where_what_was_told_to_others_is_known() {
    let mut world = serving(52, 3, 0, 1);
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Ok(()));
    for node in [2, 3, 4] {
        assert_eq!(answer(&mut world, node, 0, Command::Report), Ok(()));
        let known = world.status(node).configuration.expect("it knows one");
        let all = known.reservations_of(VOLUME).expect("a host registered");
        assert_eq!(all.key_of(HostId(0xa)), Some(7), "node {node}");
    }
}

#[test]
fn nobody_goes_without_quorum_while_a_host_is_registered_and_may_when_none_is() {
    let mut world = serving(58, 3, 0, 0);
    let without_quorum = |world: &mut World| {
        let change = OptionsChange { quorum: Some(Quorum::Off), ..OptionsChange::default() };
        let id = world.operate(1, Operation::SetOptions(change));
        world.run_until("answered", |world| world.is_done(1, id));
        world.node(1).done[&id]
    };
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Ok(()));
    assert_eq!(without_quorum(&mut world), Err(OperationError::BadOption));
    assert_eq!(
        answer(&mut world, 1, 0xa, Command::Unregister { current: Some(7), persists: None }),
        Ok(())
    );
    assert_eq!(without_quorum(&mut world), Ok(()));
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Err(Refusal::None));
}

#[test]
fn who_is_cut_off_tells_nothing_and_does_nothing() {
    let mut world = serving(53, 3, 0, 0);
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Ok(()));
    world.split(&[1]);
    world.wait(3);
    assert_eq!(answer(&mut world, 1, 0, Command::Report), Err(Refusal::NoPrimary));
    let told = answer(&mut world, 1, 0xa, Command::Clear { current: 7 });
    assert!(matches!(told, Err(Refusal::NoPrimary | Refusal::MayBeDone)), "{told:?}");
    let preempt = Command::Preempt { current: 8, others: 7, kind: Kind::WriteExclusive };
    assert_eq!(answer(&mut world, 2, 0xb, register(8)), Ok(()));
    assert_eq!(answer(&mut world, 2, 0xb, preempt), Ok(()));
    world.heal();
    world.run_until("node 1 knows", |world| {
        let known = world.status(1).configuration;
        known.is_some_and(|known| known.epoch == world.newest().epoch)
    });
    assert_eq!(hosts(&world), [0xb]);
    assert_eq!(answer(&mut world, 1, 0, Command::Report), Ok(()));
}

#[test]
fn a_command_that_lost_its_primary_may_be_done_and_is_done_once() {
    for seed in 0..20 {
        let mut world = serving(500 + seed, 3, 0, 1);
        assert_eq!(answer(&mut world, 4, 0xa, register(7)), Ok(()));
        let primary = world.primary().expect("it served");
        let id =
            ask(&mut world, 4, 0xa, Command::Replace { current: Some(7), key: 8, persists: None });
        world.run(seed * 40_000);
        if primary != 4 {
            world.crash(primary);
        }
        world.run_until("answered", |world| world.is_done(4, id));
        let told = world.node(4).done[&id];
        assert_eq!(answer(&mut world, 4, 0, Command::Report), Ok(()));
        let key = world.newest().reservations_of(VOLUME).and_then(|all| all.key_of(HostId(0xa)));
        match told {
            Ok(()) => assert_eq!(key, Some(8)),
            Err(OperationError::Reservation(Refusal::MayBeDone)) => {
                assert!(matches!(key, Some(7 | 8)), "{key:?}");
            }
            Err(OperationError::Reservation(Refusal::NoPrimary)) => assert_eq!(key, Some(7)),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

/// Likewise where the primary lives, and does not answer: who asked it becomes primary.
#[test]
fn a_command_that_another_primary_has_is_not_done_again_by_the_next() {
    let mut led = 0;
    for seed in 0..40 {
        let mut world = serving(700 + seed, 3, 0, 0);
        world.set_clients(2, 1);
        assert_eq!(answer(&mut world, 2, 0xa, register(7)), Ok(()));
        if world.primary() != Some(1) {
            continue;
        }
        let replace = Command::Replace { current: Some(7), key: 8, persists: None };
        let id = ask(&mut world, 2, 0xa, replace);
        world.run((seed + 1) * 100_000);
        // Node 1 stands still, and its connections last.
        for other in [2, 3] {
            world.lost.extend([(1, other), (other, 1)]);
        }
        world.run_until("answered", |world| world.is_done(2, id));
        led += u32::from(known_primary(&world, 2) == Some(2));
        let told = world.node(2).done[&id];
        assert!(
            matches!(told, Ok(()) | Err(OperationError::Reservation(Refusal::MayBeDone))),
            "seed {seed}: {told:?}"
        );
    }
    assert!(led > 0, "it never became primary");
}

/// Its host asks elsewhere by now, and what it does there must not be undone.
#[test]
fn a_command_that_nobody_was_asked_for_is_not_done_once_its_host_has_left() {
    let mut world = serving(55, 3, 0, 0);
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Ok(()));
    let reaches = |world: &World| world.status(2).peers.iter().all(|peer| peer.connected);
    world.split(&[2]);
    world.run_until("node 2 is cut off", |world| !reaches(world));
    world.wait(3);
    let unregister = Command::Unregister { current: Some(7), persists: None };
    let id = ask(&mut world, 2, 0xa, unregister);
    world.run(MS);
    assert!(!world.is_done(2, id), "it waits for a primary");
    world.input(2, MemberInput::Withdraw { id: OperationId(id) });
    assert!(world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Err(OperationError::Reservation(Refusal::NoPrimary)));
    world.heal();
    world.wait(20);
    assert_eq!(hosts(&world), [0xa]);
    // What the primary was asked goes on: nobody can tell whether it was done.
    let id = ask(&mut world, 1, 0xa, unregister);
    world.input(1, MemberInput::Withdraw { id: OperationId(id) });
    world.run_until("answered", |world| world.is_done(1, id));
    assert_eq!((world.node(1).done[&id], hosts(&world)), (Ok(()), Vec::new()));
}

/// Likewise where a primary was asked, and says that it has not done it.
#[test]
fn a_command_that_came_back_is_not_asked_for_again_once_its_host_has_left() {
    let mut came_back = 0;
    for seed in 0..40 {
        let mut world = serving(1200 + seed, 3, 0, 0);
        assert_eq!(answer(&mut world, 1, 0xa, register(7)), Ok(()));
        world.wait(1);
        let primary = world.primary().expect("it served");
        let other = if primary == 2 { 3 } else { 2 };
        world.operate(primary, Operation::Demote);
        let unregister = Command::Unregister { current: Some(7), persists: None };
        let id = ask(&mut world, other, 0xa, unregister);
        world.input(other, MemberInput::Withdraw { id: OperationId(id) });
        let was_elsewhere = !world.is_done(other, id);
        world.run_until("answered", |world| world.is_done(other, id));
        if world.node(other).done[&id] == Err(OperationError::Reservation(Refusal::NoPrimary)) {
            came_back += u32::from(was_elsewhere);
            world.operate(other, Operation::Promote);
            world.wait(20);
            assert_eq!(hosts(&world), [0xa], "seed {seed}");
        }
    }
    assert!(came_back > 0, "none came back");
}

/// Where there is no primary, which is when an operator is needed, hosts' commands wait as long as an operator's.
#[test]
fn hosts_that_ask_and_ask_keep_no_operator_out() {
    let mut world = serving(56, 3, 0, 0);
    world.split(&[2]);
    world.wait(3);
    let asked: Vec<u64> = (0..100).map(|_| ask(&mut world, 2, 0xa, Command::Report)).collect();
    let promote = world.operate(2, Operation::Promote);
    world.run(MS);
    let full =
        |id: &&u64| world.node(2).done.get(*id).is_some_and(|it| *it == Err(OperationError::Full));
    assert_eq!(asked.iter().filter(full).count(), 52);
    assert!(!world.is_done(2, promote), "it waits for a majority");
}

fn known_primary(world: &World, node: u16) -> Option<u16> {
    world.status(node).configuration.and_then(|known| known.primary).map(|node| node.0)
}

#[test]
fn a_member_of_an_older_release_keeps_all_from_it() {
    let mut world = serving(54, 3, 0, 0);
    world.crash(3);
    world.run_until("it is missed", |world| world.in_sync() == [1, 2]);
    world.node_mut(3).feature_level = FEATURE_LEVEL_FIRST;
    world.start(3);
    world.run_until("it is in sync", |world| world.in_sync() == [1, 2, 3]);
    assert_eq!(answer(&mut world, 1, 0xa, register(7)), Err(Refusal::OldRelease));
    assert_eq!(world.newest().feature_level, FEATURE_LEVEL_FIRST);
}

#[test]
fn what_was_decided_with_the_vote_of_who_is_forced_alone_is_kept() {
    let mut world = serving(12, 2, 1, 0);
    world.set_clients(1, 0);
    world.set_clients(2, 1);
    world.run_until("node 2 serves", |world| world.answers(2) && world.primary() == Some(2));
    assert_eq!(answer(&mut world, 2, 0xa, register(7)), Ok(()));
    assert_eq!(answer(&mut world, 2, 0xb, register(8)), Ok(()));
    world.wait(1);
    let was = world.newest();
    let preempt = Command::Preempt { current: 8, others: 7, kind: Kind::WriteExclusive };
    assert_eq!(answer(&mut world, 2, 0xb, preempt), Ok(()));
    super::force::alone_with_what_it_accepted(&mut world, &was);
    let forced = world.operate(1, Operation::Force);
    world.run_until("it is forced", |world| world.is_done(1, forced));
    let known = world.status(1).configuration.expect("it has forced one");
    let all = known.reservations_of(VOLUME).expect("hosts registered");
    assert_eq!(
        all.key_of(HostId(0xa)),
        None,
        "its registration was ended, and another host told so"
    );
}

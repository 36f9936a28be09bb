//! Without quorum: going on alone, meeting again, choosing a side.

use super::network::{MS, World, voter};
use super::register::Alone;
use crate::disk::Record;
use crate::door::{FromShard, MemberInput, Notice, Operation, OperationError};
use crate::member::{RoleStatus, Suspended};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, NodeId};
use wire::admin::OptionsChange;
use wire::{AfterSplitBrain, Configuration, MemberKind, MemberMessage, Options, Quorum, Stretch};

fn off(after_split_brain: AfterSplitBrain) -> Options {
    Options { quorum: Quorum::Off, after_split_brain, ..Options::default() }
}

/// Replicas without quorum, of which node 1 has a client and serves it.
fn serving(seed: u64, replicas: u16, after: AfterSplitBrain) -> World {
    let mut world = World::without_quorum(seed, replicas, off(after));
    world.set_clients(1, 1);
    world.run_until("node 1 serves", |world| world.answers(1));
    // Longer than a process waits before it acts alone.
    world.wait(10);
    world
}

fn known(world: &World, node: u16) -> Configuration {
    (*world.status(node).configuration.expect("it knows one")).clone()
}

fn in_sync(world: &World, node: u16) -> Vec<u16> {
    known(world, node).in_sync().map(|node| node.0).collect()
}

fn is_split(world: &World, node: u16, from: u16) -> bool {
    world.status(node).peers.iter().any(|peer| peer.node == NodeId(from) && peer.split_brain)
}

/// Both sides of a cut between nodes 1 and 2 go on, node 1 first.
fn split(seed: u64, after: AfterSplitBrain) -> World {
    let mut world = serving(seed, 2, after);
    world.block(1, 2);
    world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1]);
    world.wait(1);
    world.set_clients(2, 1);
    world.run_until("node 2 goes on", |world| in_sync(world, 2) == [2] && world.answers(2));
    assert!(world.answers(1), "{}", world.show());
    world
}

fn meet(world: &mut World) {
    world.blocked.clear();
    world.connect_all();
}

/// Everybody follows one history, and every copy is in sync.
fn is_whole(world: &World, replicas: u16) -> bool {
    let all: Vec<u16> = (1..=replicas).collect();
    (1..=replicas).all(|node| in_sync(world, node) == all && known(world, node) == known(world, 1))
        && (1..=replicas).filter(|&node| world.answers(node)).count() == 1
}

#[test]
fn a_primary_whose_peer_dies_goes_on_at_once() {
    for seed in 0..20 {
        let mut world = serving(seed, 2, AfterSplitBrain::Disconnect);
        world.crash(2);
        world.run(1_000 * MS);
        assert_eq!(in_sync(&world, 1), [1], "{}", world.show());
        assert!(world.answers(1), "{}", world.show());
        world.wait(10);
        assert!(world.answers(1), "{}", world.show());
        world.start(2);
        world.connect_all();
        world.run_until("both are in sync", |world| is_whole(world, 2));
    }
}

#[test]
fn a_primary_without_a_copy_makes_way_for_the_copy_that_is_left() {
    for seed in 0..20 {
        let mut world = World::without_quorum(seed, 2, off(AfterSplitBrain::Disconnect));
        world.add_node(3, None, false);
        world.connect_all();
        world.set_clients(3, 1);
        world.run_until("node 3 serves", |world| world.answers(3));
        world.wait(10);
        world.crash(2);
        world.run_until("node 1 serves for it", |world| world.answers(1));
        assert_eq!(in_sync(&world, 1), [1], "{}", world.show());
        // It does not go back and forth between the two that are left.
        world.wait(1);
        let stands = known(&world, 1).epoch;
        world.wait(10);
        assert_eq!(known(&world, 1).epoch, stands, "{}", world.show());
        assert!(world.answers(1), "{}", world.show());
        world.start(2);
        world.connect_all();
        world.run_until("both are in sync", |world| in_sync(world, 1) == [1, 2]);
        let history = known(&world, 1).lineage;
        world.wait(10);
        assert_eq!(known(&world, 2).lineage, history, "{}", world.show());
    }
}

#[test]
fn a_survivor_takes_over_when_the_lease_of_the_dead_primary_has_run_out() {
    for seed in 0..20 {
        let mut world = serving(seed, 2, AfterSplitBrain::Disconnect);
        world.crash(1);
        world.set_clients(2, 1);
        world.run(1_500 * MS);
        assert!(!world.answers(2), "the lease of node 1 may still run");
        world.run_until("node 2 serves", |world| world.answers(2));
        assert_eq!(in_sync(&world, 2), [2]);
        world.set_clients(1, 0);
        world.start(1);
        world.connect_all();
        world.run_until("both are in sync", |world| is_whole(world, 2));
        assert!(!is_split(&world, 1, 2) && !is_split(&world, 2, 1));
        assert_eq!(known(&world, 1).fork, 0);
    }
}

#[test]
fn members_that_heard_of_a_lone_reign_from_a_client_go_on_from_it_as_another_history() {
    for seed in 0..20 {
        let mut world = World::without_quorum(seed, 3, off(AfterSplitBrain::Disconnect));
        world.add_node(4, None, false);
        world.connect_all();
        world.set_clients(1, 1);
        world.run_until("node 1 serves", |world| world.answers(1));
        world.wait(10);
        world.crash(2);
        world.crash(3);
        world.run_until("node 1 goes on alone", |world| in_sync(world, 1) == [1]);
        world.run_until("node 4 knows", |world| in_sync(world, 4) == [1]);
        // Connected to node 4, node 1 stands still; the others meet node 4 only.
        world.lost.extend([(1, 4), (4, 1)]);
        world.block(1, 2);
        world.block(1, 3);
        world.start(2);
        world.start(3);
        world.connect_all();
        world.set_clients(4, 1);
        world.run_until("node 4 leads", |world| known(world, 4).primary == Some(NodeId(4)));
        world.block(1, 4);
        world.lost.clear();
        world.set_clients(1, 0);
        let epoch = known(&world, 1).epoch;
        world.operate(1, Operation::Demote);
        world.run_until("node 1 went on", |world| known(world, 1).epoch > epoch);
        assert_ne!(known(&world, 1).lineage, known(&world, 4).lineage, "{}", world.show());
        meet(&mut world);
        world.run_until("it is found", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
    }
}

#[test]
fn members_that_heard_of_a_promote_that_was_carried_on_alone_go_on_from_it_as_another_history() {
    for seed in 0..20 {
        let mut world = World::without_quorum(seed, 3, off(AfterSplitBrain::Disconnect));
        world.add_node(4, None, false);
        world.connect_all();
        world.set_clients(1, 1);
        world.run_until("node 1 serves", |world| world.answers(1));
        world.wait(10);
        world.crash(2);
        world.run_until("node 2 is out", |world| in_sync(world, 1) == [1, 3]);
        world.set_clients(1, 0);
        world.operate(1, Operation::Demote);
        world.run_until("nobody leads", |world| known(world, 3).primary.is_none());
        let epoch = known(&world, 3).epoch;
        // Node 1 promises, and is gone before it accepts.
        world.set_clients(3, 1);
        let promised = |world: &World| {
            let record = world.node(1).disk.as_ref();
            record.is_some_and(|record| record.promised.node == NodeId(3))
        };
        world.run_until("node 1 promised", promised);
        world.lost.insert((1, 3));
        let proposes = |world: &World| {
            let accepted = world.node(3).disk.as_ref().and_then(|record| record.accepted.clone());
            accepted.is_some_and(|(ballot, _)| ballot.node == NodeId(3))
        };
        world.run_until("node 3 asks it to accept", proposes);
        world.lost.clear();
        world.crash(1);
        world.block(1, 3);
        world.block(2, 3);
        world.run_until("node 4 knows", |world| known(world, 4).primary == Some(NodeId(3)));
        assert!(known(&world, 4).epoch.0 > epoch.0 + 1, "it was not carried on");
        assert_eq!(in_sync(&world, 4), [1, 3]);
        world.block(3, 4);
        world.run_until("node 3 goes on", |world| in_sync(world, 3) == [3]);
        world.start(1);
        world.run_until("node 1 knows", |world| known(world, 1).primary == Some(NodeId(3)));
        world.start(2);
        world.set_clients(1, 1);
        world.run_until("node 1 leads", |world| known(world, 1).primary == Some(NodeId(1)));
        assert_ne!(known(&world, 1).lineage, known(&world, 3).lineage, "{}", world.show());
        meet(&mut world);
        world.run_until("it is found", |world| is_split(world, 1, 3) && is_split(world, 3, 1));
    }
}

#[test]
fn a_side_that_changed_nothing_follows_the_other_with_the_identity_it_had() {
    let mut world = serving(3, 2, AfterSplitBrain::Disconnect);
    let before = known(&world, 1).members;
    world.block(1, 2);
    world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1]);
    assert_eq!(in_sync(&world, 2), [1, 2], "nobody told it");
    world.wait(30);
    meet(&mut world);
    world.run_until("both are in sync", |world| is_whole(world, 2));
    assert_eq!(known(&world, 2).members, before);
    assert!(!known(&world, 2).lineage.is_empty());
}

#[test]
fn an_ancestor_is_known_after_many_changes_and_restarts_of_the_other_side() {
    let mut world = serving(4, 2, AfterSplitBrain::Disconnect);
    world.crash(2);
    for _ in 0..12 {
        world
            .run_until("node 1 serves alone", |world| world.answers(1) && in_sync(world, 1) == [1]);
        world.crash(1);
        world.start(1);
    }
    world.start(2);
    world.run_until("node 1 serves alone", |world| world.answers(1));
    meet(&mut world);
    world.run_until("both are in sync", |world| is_whole(world, 2));
    assert_eq!(known(&world, 1).fork, 0);
}

#[test]
fn two_sides_that_both_went_on_keep_their_data_and_stay_apart() {
    for seed in 0..20 {
        let mut world = split(seed, AfterSplitBrain::Disconnect);
        meet(&mut world);
        world.run_until("both see it", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
        world.wait(20);
        assert_eq!((in_sync(&world, 1), in_sync(&world, 2)), ([1].into(), [2].into()));
        assert!(world.answers(1) && world.answers(2), "{}", world.show());
        assert_ne!(known(&world, 1).lineage, known(&world, 2).lineage);
        for node in [1, 2] {
            world.crash(node);
            world.start(node);
        }
        world.connect_all();
        world.run_until("still", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
    }
}

#[test]
fn an_operator_chooses_the_side_that_goes_on() {
    for seed in 0..20 {
        let mut world = split(seed, AfterSplitBrain::Disconnect);
        let early = world.operate(1, Operation::Resolve { discard: NodeId(2) });
        world.wait(1);
        assert_eq!(world.node(1).done[&early], Err(OperationError::NoSplitBrain));
        meet(&mut world);
        world.run_until("both see it", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
        let own = world.operate(2, Operation::Resolve { discard: NodeId(2) });
        world.wait(1);
        assert_eq!(world.node(2).done[&own], Err(OperationError::OwnSide));
        let mut voters = known(&world, 1).members;
        voters[1].in_sync = true;
        let id = world.operate(1, Operation::Resolve { discard: NodeId(2) });
        world.run_until("chosen", |world| world.is_done(1, id));
        assert_eq!(world.node(1).done[&id], Ok(()));
        world.wait(10);
        assert_eq!(in_sync(&world, 2), [2], "its client would see its writes vanish");
        world.set_clients(2, 0);
        world.run_until("both are in sync", |world| is_whole(world, 2));
        assert!(world.answers(1));
        assert_eq!(known(&world, 1).fork, 1);
        assert_eq!(known(&world, 1).members, voters, "by what either side changed, not as a whole");
        assert!(world.node(1).shards.synced.contains(&NodeId(2)));
    }
}

/// Whether a node's own bits say that all of its copy may be unlike the others'.
fn doubts_all_of_its_copy(world: &World, node: u16) -> bool {
    let slots = &world.node(node).member.as_ref().expect("it runs").slots;
    !slots.is_empty() && slots.iter().all(|slot| slot.full)
}

#[test]
fn a_side_on_which_a_volume_is_smaller_is_copied_as_a_whole_when_it_is_given_up() {
    let mut world = split(5, AfterSplitBrain::Disconnect);
    let volume = known(&world, 2).volumes[0].clone();
    let (volume, sectors) = (volume.volume, volume.sectors / 2);
    let shrinks = world.operate(2, Operation::Resize { volume, sectors, shrinks: true });
    world.run_until("node 2 made it smaller", |world| world.is_done(2, shrinks));
    // It gave back what lay beyond: its bits for node 1 say nothing of that.
    let before = known(&world, 1).members[1].voter;
    meet(&mut world);
    world.run_until("both see it", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
    let id = world.operate(1, Operation::Resolve { discard: NodeId(2) });
    world.run_until("chosen", |world| world.is_done(1, id));
    world.set_clients(2, 0);
    world.run_until("node 2 gives it up", |world| known(world, 2).fork == 1);
    assert!(doubts_all_of_its_copy(&world, 2), "its bits were believed");
    world.run_until("both are in sync", |world| is_whole(world, 2));
    assert_eq!(known(&world, 1).volumes[0].sectors, 2 * sectors);
    assert_eq!(known(&world, 1).members[1].voter, before, "its vote is needed");
}

#[test]
fn a_side_that_keeps_no_bits_for_a_copy_of_the_other_is_copied_as_a_whole() {
    let mut world = serving(7, 3, AfterSplitBrain::Disconnect);
    world.set_clients(2, 1);
    world.set_clients(1, 0);
    world.run_until("node 2 serves", |world| world.answers(2));
    world.set_clients(1, 1);
    // Node 1 does not hear of node 4, and is in sync when that is added.
    world.lost.insert((1, 2));
    world.add_node(4, Some(Record::empty(voter(4), Incarnation(4), 1)), false);
    world.block(1, 4);
    world.connect_all();
    world.run(200 * MS);
    let add = Operation::AddMember { node: NodeId(4), kind: MemberKind::Replica, voter: voter(4) };
    let id = world.operate(2, add);
    world.run_until("added", |world| world.is_done(2, id));
    assert_eq!(in_sync(&world, 2), [1, 2, 3], "{}", world.show());
    world.split(&[1]);
    world.lost.clear();
    world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1] && world.answers(1));
    world.run_until("so do the others", |world| in_sync(world, 2) == [2, 3, 4]);
    world.set_clients(4, 1);
    world.set_clients(2, 0);
    world.run_until("node 4 serves", |world| world.answers(4));
    for node in [2, 3] {
        let id = world.operate(4, Operation::RemoveMember { node: NodeId(node) });
        world.run_until("removed", |world| world.is_done(4, id));
        assert_eq!(world.node(4).done[&id], Ok(()), "{}", world.show());
    }
    world.blocked.remove(&(1, 4));
    world.connect_all();
    world.run_until("node 4 sees it", |world| is_split(world, 4, 1));
    let id = world.operate(4, Operation::Resolve { discard: NodeId(1) });
    world.run_until("chosen", |world| world.is_done(4, id));
    let slots = &world.node(4).member.as_ref().expect("it runs").slots;
    assert!(slots.iter().any(|slot| slot.node == NodeId(1) && !slot.full), "{slots:?}");
    let fork = known(&world, 4).fork;
    world.set_clients(1, 0);
    world.run_until("node 1 gives it up", |world| known(world, 1).fork == fork);
    assert!(doubts_all_of_its_copy(&world, 1), "nobody knows what it wrote alone");
    world.run_until("both are in sync", |world| in_sync(world, 4) == [1, 4]);
    assert_eq!(known(&world, 4).members[0].voter, voter(1), "its vote is needed");
}

/// A session comes up while what this node decided alone is not on its record: it may not say so yet, but it hears of the other
/// side, and counts. The other one does not know then that they parted, and makes nothing of that number.
#[test]
fn how_much_a_side_changed_is_said_again_after_what_is_known_there() {
    let first = World::without_quorum(1, 2, off(AfterSplitBrain::DiscardLeastChanges)).bootstrap;
    let side = |node: u16, id| {
        let reign = Some(NodeId(node));
        let mut side = Configuration { epoch: Epoch(2), primary: reign, ..first.clone() };
        side.lineage.push(Stretch { id, ballot: Ballot::default(), epoch: Epoch(1), at_ms: 0 });
        for member in side.members.iter_mut().filter(|member| member.node != NodeId(node)) {
            member.in_sync = false;
        }
        (Ballot { round: 1, node: NodeId(node) }, side)
    };
    let record = Record::first(&first, NodeId(1), 1).expect("a member");
    let mut one = Alone::with(1, record, 1);
    one.meet(2, 8, None);
    one.slow = true;
    let (ballot, own) = side(1, 71);
    one.member.decided_alone = Some(own.epoch);
    one.member.know(ballot, own.into(), &mut Vec::new());
    one.step(MemberInput::Wake);
    let number = one.held.take().expect("it is on its way to the record");
    let (ballot, theirs) = side(2, 72);
    let said = one.meet_as(2, 9, Some((ballot, Box::new(theirs))), voter(2));
    assert!(!said.iter().any(|said| matches!(said, MemberMessage::Learn { .. })), "{said:?}");
    let message = FromShard::Counted { peer: NodeId(2), number: 1, sectors: 5 };
    one.step(MemberInput::Shard { shard: 0, message });
    let said = one.step(MemberInput::Stored { number, ok: true });
    let learn = said.iter().position(|said| matches!(said, MemberMessage::Learn { .. }));
    let after = said.iter().skip(learn.expect("it may say so now"));
    assert!(
        after.clone().any(|said| matches!(said, MemberMessage::Diverged { sectors: 5 })),
        "{said:?}"
    );
}

/// Likewise where that very change is the one by which a majority is to decide from now on.
#[test]
fn a_lone_change_to_a_majority_is_told_when_it_is_on_record() {
    let first = World::without_quorum(1, 2, off(AfterSplitBrain::Disconnect)).bootstrap;
    let record = Record::first(&first, NodeId(1), 1).expect("a member");
    let mut one = Alone::with(1, record, 1);
    one.meet(2, 8, None);
    one.slow = true;
    let mut own = Configuration { epoch: Epoch(2), primary: Some(NodeId(1)), ..first.clone() };
    own.lineage.push(Stretch { id: 71, ballot: Ballot::default(), epoch: Epoch(1), at_ms: 0 });
    own.options.quorum = Quorum::Majority;
    one.member.decided_alone = Some(own.epoch);
    one.member.know(Ballot { round: 1, node: NodeId(1) }, own.into(), &mut Vec::new());
    one.step(MemberInput::Wake);
    let number = one.held.take().expect("it is on its way to the record");
    let is_learn = |said: &MemberMessage| matches!(said, MemberMessage::Learn { .. });
    let said = one.meet_as(2, 9, Some((Ballot::default(), Box::new(first))), voter(2));
    assert!(!said.iter().any(is_learn), "{said:?}");
    let said = one.step(MemberInput::Stored { number, ok: true });
    assert!(said.iter().any(is_learn), "{said:?}");
}

/// Who goes on after a split brain under a policy, node 2 having begun later.
fn winner(seed: u64, after: AfterSplitBrain) -> u16 {
    let mut world = split(seed, after);
    world.set_clients(1, 0);
    world.set_clients(2, 0);
    let before = [1, 2].map(|node| known(&world, node).lineage.last().map(|last| last.id));
    meet(&mut world);
    world.run_until("both are in sync", |world| is_whole(world, 2));
    world.set_clients(1, 0);
    world.wait(2);
    world.check_data(2);
    assert!(!world.given_up.is_empty(), "both sides wrote");
    let after = known(&world, 1).lineage;
    let goes_on = |at: &usize| after.iter().any(|one| Some(one.id) == before[*at]);
    let kept: Vec<usize> = (0..2).filter(goes_on).collect();
    assert_eq!(kept.len(), 1, "one side was given up: {kept:?}");
    kept[0] as u16 + 1
}

#[test]
fn each_policy_gives_up_the_side_that_it_names() {
    for seed in 0..10 {
        assert_eq!(winner(seed, AfterSplitBrain::DiscardYounger), 1);
        assert_eq!(winner(seed, AfterSplitBrain::DiscardOlder), 2);
        assert_eq!(winner(seed, AfterSplitBrain::DiscardNode(1)), 2);
        assert_eq!(winner(seed, AfterSplitBrain::DiscardNode(2)), 1);
        // Shards of this world say that as many sectors are changed as their node has for a number.
        assert_eq!(winner(seed, AfterSplitBrain::DiscardLeastChanges), 2);
    }
}

#[test]
fn no_policy_gives_up_a_side_whose_history_is_too_long_to_compare() {
    let mut world = split(3, AfterSplitBrain::DiscardOlder);
    while known(&world, 1).lineage.len() < wire::LINEAGE_MAX {
        world.crash(1);
        world.start(1);
        world.run_until("node 1 goes on", |world| world.answers(1));
    }
    world.set_clients(1, 0);
    world.set_clients(2, 0);
    meet(&mut world);
    world.run_until("both see it", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
    world.wait(20);
    assert!(is_split(&world, 1, 2) && is_split(&world, 2, 1), "{}", world.show());
    assert_eq!((in_sync(&world, 1), in_sync(&world, 2)), ([1].into(), [2].into()));
}

/// Node 3 comes to the side of node 2, and is not brought up to date there: that nothing changed at its own copy says
/// nothing of that side.
#[test]
fn what_a_side_changed_is_not_said_by_who_has_no_copy_in_sync_there() {
    for seed in 0..20 {
        let mut world = serving(seed, 3, AfterSplitBrain::DiscardZeroChanges);
        world.crash(3);
        world.run_until("node 3 is out", |world| in_sync(world, 1) == [1, 2]);
        world.block(1, 2);
        world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1]);
        world.set_clients(2, 1);
        world.run_until("node 2 goes on", |world| in_sync(world, 2) == [2] && world.answers(2));
        meet(&mut world);
        world.run_until("it is found", |world| is_split(world, 1, 2) && is_split(world, 2, 1));
        world.node_mut(2).shards.mute_sync = true;
        world.block(1, 3);
        world.start(3);
        world.node_mut(3).shards.changed = Some(0);
        world.run_until("node 3 follows", |world| known(world, 3) == known(world, 2));
        meet(&mut world);
        world.run_until("it is on a side", |world| is_split(world, 1, 3) && is_split(world, 3, 1));
        world.wait(10);
        assert!(world.answers(1) && world.answers(2), "{}", world.show());
        assert_eq!((known(&world, 1).fork, known(&world, 2).fork), (0, 0), "{}", world.show());
    }
}

/// A copy that comes into sync on a side says no more what it had counted before: others hear that it is in sync, and go by
/// that, before its shards know.
#[test]
fn what_was_counted_before_a_copy_came_into_sync_is_not_said_after_it() {
    let first = World::without_quorum(1, 3, off(AfterSplitBrain::DiscardZeroChanges)).bootstrap;
    let side = |epoch, id, primary: u16, in_sync: &[u16]| {
        let mut configuration = first.clone();
        configuration.epoch = Epoch(epoch);
        configuration.reign = Epoch(4);
        configuration.primary = Some(NodeId(primary));
        for member in &mut configuration.members {
            member.in_sync = in_sync.contains(&member.node.0);
        }
        let ballot = Ballot { round: 1, node: NodeId(1) };
        configuration.lineage.push(Stretch { id, ballot, epoch: Epoch(2), at_ms: 0 });
        (Ballot { round: 3, node: NodeId(primary) }, configuration)
    };
    let record = Record::first(&first, NodeId(3), 1).expect("a member");
    let mut copy = Alone::with(3, record, 1);
    let (ballot, before) = side(5, 71, 1, &[1]);
    copy.meet(1, 7, Some((ballot, Box::new(before))));
    let (of_others, theirs) = side(5, 72, 2, &[2]);
    copy.meet(2, 8, Some((of_others, Box::new(theirs))));
    let counted = |copy: &mut Alone, number, sectors| {
        let message = FromShard::Counted { peer: NodeId(2), number, sectors };
        copy.step(MemberInput::Shard { shard: 0, message })
    };
    let said = |sent: &[MemberMessage]| -> Vec<u64> {
        let says = |message: &MemberMessage| match message {
            MemberMessage::Diverged { sectors } => Some(*sectors),
            _ => None,
        };
        sent.iter().filter_map(says).collect()
    };
    assert_eq!(said(&counted(&mut copy, 1, 0)), [0]);
    copy.slow = true;
    let (ballot, after) = side(6, 71, 1, &[1, 3]);
    let sent = copy.hear(1, 7, MemberMessage::Learn { ballot, configuration: Box::new(after) });
    assert_eq!(said(&sent), [0; 0], "that it is in sync, and no more: {sent:?}");
    let number = copy.held.take().expect("it is on its way to the record");
    copy.slow = false;
    assert_eq!(said(&counted(&mut copy, 1, 0)), [0; 0], "an answer to before");
    let sent = copy.step(MemberInput::Stored { number, ok: true });
    assert_eq!(said(&sent), [0; 0]);
    assert_eq!(said(&counted(&mut copy, 1, 0)), [0; 0], "likewise, and late");
    assert_eq!(said(&counted(&mut copy, 2, 50)), [50]);
}

/// Node 1 went on alone from where a client's node has heard of it, and lost its disk. It leads again, by the votes of
/// others, from what that client's node knows.
#[test]
fn a_node_that_lost_its_memory_goes_on_from_its_own_lone_reign_as_another_history() {
    let mut led = 0;
    for seed in 0..40 {
        let mut world = serving(seed, 3, AfterSplitBrain::Disconnect);
        world.add_node(4, None, false);
        world.add_node(5, None, false);
        world.connect_all();
        world.wait(10);
        for node in [1, 2, 3] {
            world.crash(node);
        }
        let before = known(&world, 4).reign;
        world.start(1);
        world.run_until("node 4 knows", |world| known(world, 4).reign > before);
        world.block(1, 4);
        world.block(4, 5);
        world.run_until("node 1 goes on", |world| in_sync(world, 5) == [1]);
        world.block(1, 5);
        world.block(2, 5);
        world.block(3, 5);
        assert_eq!(in_sync(&world, 4), [1, 2, 3]);
        let alone = known(&world, 5).lineage;
        assert_eq!(known(&world, 4).lineage, alone);
        world.crash(1);
        world.add_node(1, Some(Record::empty(voter(9), Incarnation(9), 1)), false);
        world.set_clients(1, 1);
        world.start(2);
        world.start(3);
        world.blocked.remove(&(1, 4));
        world.connect_all();
        let goes_on = |world: &World| known(world, 4).reign > known(world, 5).reign;
        world.run_until("one of them leads", goes_on);
        led += u32::from(known(&world, 4).primary == Some(NodeId(1)));
        assert_ne!(known(&world, 4).lineage, alone, "{}", world.show());
        world.blocked.remove(&(4, 5));
        world.connect_all();
        world.run_until("it is found", |world| is_split(world, 5, 4));
    }
    assert!(led > 0, "it never led");
}

/// Node 2 was made primary by node 3's vote, and node 1 did not hear of it. Cut off from both, node 1 asked for a higher ballot and
/// had its own promise only: what it decides with node 3 after that goes on from there, or is another history.
#[test]
fn a_ballot_that_no_majority_promised_does_not_outvote_one() {
    let mut raised = 0;
    for seed in 0..20 {
        let mut world = serving(seed, 3, AfterSplitBrain::Disconnect);
        world.node_mut(1).shards.mute_sync = true;
        for node in [3, 2] {
            world.crash(node);
            world.run_until("it is out", |world| !in_sync(world, 1).contains(&node));
            world.start(node);
            world.connect_all();
            world.run_until("it is back", |world| known(world, node) == known(world, 1));
            world.wait(1);
        }
        assert_eq!((in_sync(&world, 1), known(&world, 1).lineage.len()), ([1].into(), 0));
        world.block(1, 3);
        world.lost.extend([(1, 2), (2, 1)]);
        world.wait(3);
        world.operate(2, Operation::Promote);
        let accepted = |world: &World| {
            let record = world.node(3).disk.as_ref().and_then(|record| record.accepted.clone());
            record.is_some_and(|(ballot, _)| ballot.node == NodeId(2))
        };
        world.run_until("node 3 accepted", accepted);
        world.lost.insert((3, 2));
        let leads = |world: &World| known(world, 2).primary == Some(NodeId(2));
        world.run_until("node 2 leads", leads);
        world.block(2, 3);
        world.block(1, 2);
        world.lost.clear();
        world.blocked.remove(&(1, 3));
        world.connect_all();
        let refused =
            |world: &World| world.node(1).marks.contains("member: a higher ballot is asked for");
        world.run_until("node 3 refuses", refused);
        world.block(1, 3);
        world.wait(5);
        let mark = "member: the reign goes on under a higher ballot";
        raised += u32::from(world.node(1).marks.contains(mark));
        world.node_mut(1).shards.mute_sync = false;
        world.blocked.remove(&(1, 3));
        world.connect_all();
        let decided = known(&world, 2);
        world.run_until("it goes on", |world| known(world, 1).epoch >= decided.epoch);
        let one = known(&world, 1);
        assert!(
            one.reign >= decided.reign || !one.lineage.is_empty(),
            "seed {seed}: outvoted\n{}",
            world.show()
        );
        meet(&mut world);
        world.wait(20);
        let parted = is_split(&world, 1, 2) && is_split(&world, 2, 1);
        assert!(parted || known(&world, 1) == known(&world, 2), "seed {seed} {}", world.show());
    }
    assert!(raised > 0, "no ballot was raised");
}

#[test]
fn what_one_decided_alone_is_said_to_be_done_when_it_is_on_record() {
    for seed in 0..20 {
        let mut world = serving(seed, 2, AfterSplitBrain::Disconnect);
        world.crash(2);
        world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1]);
        world.wait(1);
        let id = world.operate(1, Operation::PauseResync(true));
        world.run_until("it is done", |world| world.is_done(1, id));
        let record = world.node(1).disk.as_ref().and_then(|record| record.committed.clone());
        let held = record.map(|(_, value)| value.held.resync);
        assert_eq!(held, Some(true), "a process that starts anew may not know it");
    }
}

#[test]
fn of_three_nodes_one_and_two_may_both_go_on_and_are_found_out() {
    for seed in 0..20 {
        let mut world = serving(seed, 3, AfterSplitBrain::DiscardNode(1));
        world.split(&[1]);
        world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1]);
        world.set_clients(2, 1);
        world.run_until("node 2 goes on", |world| in_sync(world, 2) == [2, 3] && world.answers(2));
        assert!(world.answers(1));
        assert!(known(&world, 2).lineage.is_empty(), "a majority decided");
        world.set_clients(1, 0);
        meet(&mut world);
        world.run_until("all are in sync", |world| is_whole(world, 3));
        assert!(world.answers(2), "{}", world.show());
    }
}

#[test]
fn a_minority_that_only_lost_its_peers_and_changed_nothing_follows() {
    let mut world = serving(7, 3, AfterSplitBrain::Disconnect);
    world.split(&[3]);
    world.run_until("node 3 is out", |world| in_sync(world, 1) == [1, 2]);
    world.wait(10);
    meet(&mut world);
    world.run_until("all are in sync", |world| is_whole(world, 3));
    assert!(known(&world, 1).lineage.is_empty());
}

#[test]
fn connected_members_have_one_primary() {
    let mut world = serving(8, 2, AfterSplitBrain::Disconnect);
    world.set_clients(2, 1);
    world.wait(20);
    assert!(world.answers(1) && !world.answers(2));
    let id = world.operate(2, Operation::Promote);
    world.run_until("handed over", |world| world.is_done(2, id) && world.answers(2));
    assert!(!world.answers(1));
    assert!(known(&world, 2).lineage.is_empty(), "both took part");
}

#[test]
fn a_copy_that_is_not_in_sync_is_not_primary_on_its_own() {
    let mut world = serving(9, 2, AfterSplitBrain::Disconnect);
    world.node_mut(1).shards.mute_sync = true;
    world.disconnect(1, 2);
    world.run_until("node 2 is out", |world| in_sync(world, 1) == [1] && in_sync(world, 2) == [1]);
    world.crash(1);
    world.set_clients(2, 1);
    world.wait(30);
    assert_ne!(world.status(2).role, RoleStatus::Primary);
    assert_eq!(world.status(2).suspended, Some(Suspended::NoQuorum { missing: 1 }));
}

#[test]
fn with_a_majority_a_cut_leaves_nothing_behind() {
    let mut world = super::serving(1, 2, 1, 0);
    world.split(&[2]);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    assert!(world.newest().lineage.is_empty());
}

#[test]
fn with_a_majority_nobody_decides_alone() {
    // Two replicas and no witness: neither is a majority.
    for seed in 0..20 {
        let mut world = super::serving(seed, 2, 0, 0);
        world.block(1, 2);
        world.set_clients(2, 1);
        world.operate(2, Operation::Promote);
        world.wait(30);
        for node in [1, 2] {
            assert!(!world.answers(node), "{}", world.show());
            assert_eq!(in_sync(&world, node), [1, 2]);
            assert!(known(&world, node).lineage.is_empty());
        }
        meet(&mut world);
        world.run_until("one serves", |world| world.answers(1) || world.answers(2));
        assert!(!is_split(&world, 1, 2) && !is_split(&world, 2, 1));
        assert_eq!(known(&world, 1).fork, 0);
    }
}

#[test]
fn a_forced_node_names_its_fork_and_who_was_left_behind_gives_its_side_up_under_no_client() {
    for seed in 0..20 {
        let mut world = super::serving(seed, 2, 1, 0);
        world.crash(1);
        world.crash(3);
        // Longer than node 1 is taken for a primary that lives.
        world.wait(3);
        let id = world.operate(2, Operation::Force);
        world.run_until("forced", |world| world.is_done(2, id));
        assert_eq!(world.node(2).done[&id], Ok(()));
        let forced = known(&world, 2);
        let name = forced.lineage.last().map(|stretch| stretch.id);
        assert_eq!((forced.fork, forced.lineage.len()), (1, 1));
        let began = |notice: &Notice| matches!(notice, Notice::Began { history, fork: 1 } if Some(*history) == name);
        assert!(world.node(2).notices.iter().any(began), "it is told by name");
        // Node 1 had a client, and has one again.
        world.start(1);
        world.connect_all();
        world.run_until("node 1 knows", |world| world.status(1).discarded);
        world.wait(5);
        assert_eq!(known(&world, 1).fork, 0, "its client has not left");
        assert!(!world.answers(1), "and is not served by anybody else");
        world.set_clients(1, 0);
        world.run_until("node 1 follows", |world| known(world, 1).fork == 1);
    }
}

/// One life of a world without quorum in which everything happens, then heals: one side goes on. 1 if
/// there was a split brain.
fn ordeal(seed: u64) -> u64 {
    let replicas = 2 + (seed % 2) as u16;
    let mut world = World::without_quorum(seed, replicas, off(AfterSplitBrain::DiscardYounger));
    world.wait(9);
    let count = u64::from(replicas);
    for _ in 0..25 {
        let node = world.random.below(count) as u16 + 1;
        let other = world.random.below(count) as u16 + 1;
        match world.random.below(10) {
            0 => world.crash(node),
            1 | 2 => {
                if world.node(node).member.is_none() {
                    world.start(node);
                }
            }
            3 if node != other => world.block(node, other),
            4 => world.split(&[node]),
            5 | 6 => meet(&mut world),
            7 => {
                let clients = u32::from(world.node(node).clients == 0);
                world.set_clients(node, clients);
            }
            8 => {
                world.operate(node, Operation::Promote);
            }
            _ => {
                world.operate(node, Operation::Demote);
            }
        }
        let pause = world.random.below(4_000 * MS);
        world.run(pause);
    }
    for node in 1..=replicas {
        world.set_clients(node, 0);
    }
    world.heal();
    world.wait(60);
    for _ in 0..2 * replicas {
        // What no policy decides, an operator does.
        for node in 1..=replicas {
            for other in 1..=replicas {
                if node != other && is_split(&world, node, other) {
                    world.operate(node, Operation::Resolve { discard: NodeId(other) });
                    world.wait(40);
                }
            }
        }
    }
    for node in 1..=replicas {
        // A reign that ends between the two changes of a replacement leaves the member out.
        let voter = world.node(node).disk.as_ref().map(|disk| disk.voter);
        let Some(voter) = voter else { continue };
        for at in 1..=replicas {
            if known(&world, at).member(NodeId(node)).is_none() {
                let kind = MemberKind::Replica;
                world.operate(at, Operation::AddMember { node: NodeId(node), kind, voter });
                world.wait(20);
            }
        }
    }
    world.set_clients(1, 1);
    world.run_until(&alloc::format!("seed {seed}: everything is well"), |world| {
        is_whole(world, replicas)
    });
    world.set_clients(1, 0);
    world.wait(5);
    world.check_data(replicas);
    u64::from(known(&world, 1).fork > 0)
}

#[test]
fn through_crashes_and_partitions_every_split_brain_is_found_and_can_be_ended() {
    let seeds = super::seeds() / 3;
    let split: u64 = (0..seeds).map(ordeal).sum();
    assert!(split > seeds / 10 && split < seeds, "{split} of {seeds} had a split brain");
}

/// Node 1 begins to end the split from node 2, and stops before node 3, its peer, was asked. Node 3 then goes on alone
/// from where both were: that is no side of the split that a policy may give up unseen.
#[test]
fn a_fork_that_was_only_begun_is_let_go_when_its_own_side_went_on_without_it() {
    for seed in 0..20 {
        let mut world = serving(seed, 3, AfterSplitBrain::DiscardNode(2));
        world.split(&[2]);
        world.run_until("node 1 goes on", |world| in_sync(world, 1) == [1, 3]);
        world.set_clients(2, 1);
        world.run_until("node 2 goes on", |world| world.answers(2));
        world.run_until("node 3 follows", |world| known(world, 3) == known(world, 1));
        let before = known(&world, 1).epoch;
        world.lost.insert((3, 1));
        world.blocked.remove(&(1, 2));
        world.connect_all();
        world.run_until("node 1 has accepted its fork", |world| {
            let record = world.node(1).disk.as_ref();
            let accepted = record.and_then(|record| record.accepted.as_ref());
            accepted.is_some_and(|(_, value)| value.fork == 1)
        });
        assert_eq!(known(&world, 1).epoch, before, "{}", world.show());
        world.lost.clear();
        world.crash(1);
        world.crash(2);
        world.set_clients(3, 1);
        world.run_until("node 3 goes on", |world| in_sync(world, 3) == [3] && world.answers(3));
        world.wait(2);
        let gone_on = known(&world, 3);
        assert_eq!(gone_on.fork, 0, "seed {seed} {}", world.show());
        world.start(1);
        world.connect_all();
        world.run_until("node 1 comes back", |world| in_sync(world, 3) == [1, 3]);
        assert_eq!(known(&world, 3).fork, 0, "{}", world.show());
        assert!(known(&world, 3).epoch > gone_on.epoch);
        // Node 2 is behind its own split still, and is given up as the policy says.
        world.set_clients(2, 0);
        world.start(2);
        world.heal();
        world.run_until("all are in sync", |world| is_whole(world, 3));
        world.check_data(3);
    }
}

#[test]
fn shards_leave_a_history_with_the_first_configuration_of_the_other_one() {
    let options = Options { quorum: Quorum::Off, ..Options::default() };
    let first = Configuration { options, ..World::new(1, 2, 1, 0).bootstrap };
    let mut node = Alone::new(1, &first);
    node.meet(2, 1, None);
    node.slow = true;
    let ballot = Ballot { round: 9, node: NodeId(2) };
    // Its record is slow to say what is next on this side; meanwhile another side is the one that goes on.
    let next = Configuration { epoch: Epoch(first.epoch.0 + 1), ..first.clone() };
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(next) });
    let stored = node.held.take().expect("it is on its way to the record");
    let began = Stretch { id: 5, ballot: Ballot::default(), epoch: first.epoch, at_ms: 0 };
    let mut other = Configuration { epoch: Epoch(1 << 32), fork: 1, ..first };
    other.lineage.push(began);
    other.members[0].in_sync = false;
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(other) });
    node.slow = false;
    node.step(MemberInput::Stored { number: stored, ok: true });
    assert_eq!(node.left, [Epoch(1 << 32)]);
}

/// Whether a node's voter has accepted, and not more than that, that a majority decides again.
fn has_accepted_a_majority(world: &World, node: u16) -> bool {
    let record = world.node(node).member.as_ref().and_then(|member| member.record.as_ref());
    let accepted = record.and_then(|record| record.accepted.as_ref());
    accepted.is_some_and(|(_, value)| value.options.quorum == Quorum::Majority)
}

/// That a majority decides again was accepted by two of three copies when the primary died. Who goes on from that is
/// not to serve before the third one has accepted it: that one may go on alone.
#[test]
fn who_goes_on_from_a_majority_that_decides_again_waits_for_every_copy_too() {
    for seed in 0..20 {
        let mut world = serving(seed, 3, AfterSplitBrain::Disconnect);
        let change = OptionsChange { quorum: Some(Quorum::Majority), ..OptionsChange::default() };
        world.slow = Some((3, 1, 500 * MS));
        world.operate(1, Operation::SetOptions(change));
        let accepted =
            |world: &World| has_accepted_a_majority(world, 1) && has_accepted_a_majority(world, 2);
        world.run_until("two have accepted", accepted);
        assert!(!has_accepted_a_majority(&world, 3), "{}", world.show());
        world.crash(1);
        world.crash(3);
        world.block(1, 3);
        world.block(2, 3);
        world.start(1);
        world.start(3);
        world.wait(20);
        for node in 1..=2 {
            assert_eq!(known(&world, node).options.quorum, Quorum::Off, "{}", world.show());
        }
        world.set_clients(3, 1);
        world.run_until("node 3 goes on", |world| world.answers(3));
        world.wait(20);
        assert!(!world.answers(1) && !world.answers(2), "{}", world.show());
        meet(&mut world);
        world.run_until("one history", |world| is_whole(world, 3));
    }
}

/// Likewise where that copy's disk was replaced: what it had forgotten nobody goes on from.
#[test]
fn who_goes_on_from_a_majority_that_decides_again_waits_for_no_memory_that_is_gone() {
    let mut world = serving(3, 3, AfterSplitBrain::Disconnect);
    let change = OptionsChange { quorum: Some(Quorum::Majority), ..OptionsChange::default() };
    world.slow = Some((3, 1, 500 * MS));
    world.operate(1, Operation::SetOptions(change));
    world.run_until("two have accepted", |world| {
        has_accepted_a_majority(world, 1) && has_accepted_a_majority(world, 2)
    });
    world.crash(1);
    world.crash(3);
    world.add_node(3, Some(Record::empty(voter(9), Incarnation(9), 1)), false);
    world.start(1);
    world.connect_all();
    world.run_until("a majority decides", |world| {
        known(world, 2).options.quorum == Quorum::Majority && (world.answers(1) || world.answers(2))
    });
}

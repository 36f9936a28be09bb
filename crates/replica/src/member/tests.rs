//! Tests of the member, in a small world of them.

extern crate std;
mod ends;
mod force;
mod handover;
mod impatience;
mod level;
mod lineage;
mod lives;
mod memory;
mod network;
mod register;
mod reserve;
mod resize;
mod rest;
mod verify;

use crate::disk::Record;
use crate::door::{FromShard, MemberInput, Operation, OperationError, Timing};
use crate::member::{Role, RoleStatus, Suspended};
use alloc::vec;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, NodeId, SessionId, VoterId};
use network::{MS, World, voter};
use wire::admin::OptionsChange;
use wire::{MemberKind, MemberMessage, OnNoQuorum, RefuseReason};

/// A world in which node 1 has a client and serves it.
fn serving(seed: u64, replicas: u16, witnesses: u16, clients: u16) -> World {
    let mut world = World::new(seed, replicas, witnesses, clients);
    world.connect_all();
    world.set_clients(1, 1);
    world.run_until("node 1 serves", |world| world.answers(1));
    world
}

#[test]
fn a_node_with_a_client_becomes_primary_and_serves() {
    let world = serving(1, 2, 1, 0);
    assert_eq!(world.in_sync(), [1, 2]);
    assert_eq!(world.status(1).role, RoleStatus::Primary);
    assert_eq!(world.status(1).suspended, None);
}

#[test]
fn a_new_resource_is_served_without_waiting_for_a_lease() {
    let mut world = World::new(1, 2, 1, 0);
    world.connect_all();
    world.set_clients(1, 1);
    world.run(500 * MS);
    assert!(world.answers(1), "{}", world.show());
}

#[test]
fn a_single_replica_serves_alone() {
    serving(1, 1, 0, 0);
}

#[test]
fn a_diskless_client_serves_over_replicas() {
    let mut world = World::new(1, 2, 1, 1);
    world.connect_all();
    world.set_clients(4, 1);
    world.run_until("node 4 serves", |world| world.answers(4));
    assert_eq!(world.in_sync(), [1, 2]);
}

#[test]
fn another_node_takes_over_when_the_lease_of_a_dead_primary_has_run_out() {
    let mut world = serving(2, 3, 0, 0);
    world.crash(1);
    world.set_clients(2, 1);
    world.run(1_500 * MS);
    assert!(!world.answers(2), "the lease of node 1 may still run");
    world.run_until("node 2 serves", |world| world.answers(2));
    assert_eq!(world.in_sync(), [2, 3]);
}

#[test]
fn two_nodes_that_want_at_once_do_not_duel_for_ever() {
    for seed in 0..50 {
        let mut world = World::new(seed, 2, seed as u16 % 2, 0);
        world.connect_all();
        world.run(50 * MS);
        world.set_clients(1, 1);
        world.set_clients(2, 1);
        world.run_until("one serves", |world| world.answers(1) || world.answers(2));
    }
}

#[test]
fn who_won_a_duel_does_not_depend_on_voters_that_promised_the_loser() {
    for seed in 0..200 {
        let mut world = World::new(seed, 3, 0, 0);
        world.connect_all();
        world.set_clients(1, 1);
        world.set_clients(2, 1);
        world.run_until("one serves", |world| world.answers(1) || world.answers(2));
        world.wait(1);
        world.crash(3);
        world.run_until("node 3 is out", |world| world.in_sync() == [1, 2]);
        world.run_until("one serves on", |world| world.answers(1) || world.answers(2));
    }
}

#[test]
fn a_reign_wins_a_voter_back_that_promised_a_node_that_lost() {
    let mut world = serving(3, 3, 0, 0);
    let reign = world.newest().reign;
    world.block(1, 2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1, 3]);
    world.wait(3);
    let ballot = Ballot { round: 9, node: NodeId(3) };
    let session = world.session(2, 3);
    let message = MemberMessage::Prepare { ballot };
    world.input(2, MemberInput::Frame { peer: NodeId(3), session, message });
    world.wait(1);
    world.heal();
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2, 3]);
    let mark = "member: the reign goes on under a higher ballot";
    world.run_until("the ballot is raised", |world| world.node(1).marks.contains(mark));
    world.crash(3);
    world.run_until("node 3 is out", |world| world.in_sync() == [1, 2]);
    assert_eq!(world.newest().reign, reign, "a voter that promised another ended the reign");
    assert!(world.answers(1));
}

#[test]
fn a_replica_that_dies_is_excluded_and_included_when_it_is_back() {
    let mut world = serving(3, 2, 1, 0);
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    assert!(world.answers(1));
    world.start(2);
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
    assert!(world.node(1).shards.synced.contains(&NodeId(2)), "it was not resynced");
}

#[test]
fn a_replica_that_owes_an_answer_is_excluded_and_comes_back_in_the_same_session() {
    let mut world = serving(3, 2, 1, 0);
    let session = SessionId(0);
    world.shard_says(1, FromShard::PeerLate { peer: NodeId(2), session });
    world.wait(1);
    assert_eq!(world.in_sync(), [1, 2], "a complaint about another session counts for nothing");
    let session = world.session(1, 2);
    world.shard_says(1, FromShard::PeerLate { peer: NodeId(2), session });
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
}

#[test]
fn a_replica_that_failed_is_tried_again_in_the_same_session() {
    let mut world = serving(3, 2, 1, 0);
    for _ in 0..2 {
        let session = world.session(1, 2);
        world.shard_says(1, FromShard::PeerFailed { peer: NodeId(2), session });
        world.run_until("node 2 is out", |world| world.in_sync() == [1]);
        world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
        assert_eq!(world.session(1, 2), session, "it came back only in another session");
    }
}

#[test]
fn what_only_a_witness_learned_from_a_primary_that_is_gone_it_tells_the_others() {
    let mut world = serving(3, 2, 1, 0);
    world.block(1, 2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.run_until("the witness knows", |world| learned(world, 3) == [1]);
    world.crash(1);
    world.run_until("node 2 knows", |world| learned(world, 2) == [1]);
}

/// Who is in sync by what the shards of `node` were told.
fn learned(world: &World, node: u16) -> Vec<u16> {
    let known = world.node(node).shards.configuration.clone();
    known.iter().flat_map(|known| known.in_sync()).map(|node| node.0).collect()
}

#[test]
fn a_resync_that_shards_could_not_begin_is_asked_for_again() {
    let mut world = serving(3, 2, 1, 0);
    world.node_mut(1).shards.mute_sync = true;
    world.disconnect(1, 2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.wait(3);
    assert_eq!(world.in_sync(), [1]);
    world.node_mut(1).shards.mute_sync = false;
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
}

#[test]
fn nobody_waits_for_a_replica_whose_include_does_not_come_about() {
    let mut world = serving(3, 2, 1, 0);
    world.node_mut(1).shards.mute_require = true;
    world.disconnect(1, 2);
    world.run_until("node 2 is let go", |world| {
        world.node(1).shards.unrequired.contains(&NodeId(2))
    });
    assert_eq!(world.in_sync(), [1]);
    world.node_mut(1).shards.mute_require = false;
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
}

#[test]
fn a_replica_whose_include_may_be_chosen_yet_is_waited_for_after_the_reign() {
    let mut world = serving(3, 2, 1, 0);
    world.node_mut(1).shards.mute_require = true;
    world.disconnect(1, 2);
    world.run_until("node 2 was resynced", |world| {
        let member = world.node(1).member.as_ref().expect("it runs");
        member.peers.get(&NodeId(2)).is_some_and(|peer| peer.sync.requiring.is_some())
    });
    let session = world.session(1, 2);
    let number = world.node(1).member.as_ref().expect("it runs").peers[&NodeId(2)].requires;
    for shard in 0..2 {
        let message = FromShard::Required { peer: NodeId(2), session, number };
        world.input(1, MemberInput::Shard { shard, message });
    }
    let role = |world: &World| world.node(1).member.as_ref().expect("it runs").role.clone();
    let Role::Primary(reign) = role(&world) else { panic!("node 1 is not primary") };
    assert!(reign.proposal.is_some(), "no include is proposed");
    let ballot = reign.ballot;
    let reason = RefuseReason::Promised(Ballot { round: ballot.round + 1, node: NodeId(2) });
    for peer in [2, 3] {
        let session = world.session(1, peer);
        let message = MemberMessage::Refused { ballot, reason };
        world.input(1, MemberInput::Frame { peer: NodeId(peer), session, message });
    }
    assert!(
        matches!(role(&world), Role::Idle),
        "two of three voters refuse, and the reign goes on"
    );
    let message = FromShard::PeerLate { peer: NodeId(2), session };
    world.input(1, MemberInput::Shard { shard: 0, message });
    world.wait(1);
    assert!(!world.node(1).shards.unrequired.contains(&NodeId(2)));
}

#[test]
fn a_replica_whose_disk_failed_stays_out() {
    let mut world = serving(3, 2, 1, 0);
    world.shard_says(2, FromShard::DiskFailed);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.wait(5);
    assert_eq!(world.in_sync(), [1]);
    assert!(world.node(2).shards.detached);
}

#[test]
fn a_node_whose_disk_fails_at_its_start_serves_from_the_others_and_comes_back_when_it_works() {
    let mut world = serving(41, 3, 0, 0);
    world.crash(2);
    world.wait(5);
    world.node_mut(2).fails_at_start = true;
    world.store_fails.insert(2);
    let disk = world.node(2).disk.clone();
    world.start(2);
    world.heal();
    world.run_until("node 2 to take part", |world| {
        world.status(2).role == RoleStatus::Follower && world.in_sync() == [1, 3]
    });
    world.wait(10);
    assert_eq!(world.in_sync(), [1, 3]);
    assert_eq!(world.node(2).disk, disk, "it is as the life before left it");
    world.crash(2);
    world.node_mut(2).fails_at_start = false;
    world.store_fails.remove(&2);
    world.start(2);
    world.run_until("node 2 to be in sync again", |world| world.in_sync() == [1, 2, 3]);
}

#[test]
fn a_replica_is_not_included_before_the_shards_heard_that_it_was_excluded() {
    let mut world = serving(43, 3, 0, 0);
    world.crash(3);
    world.run_until("node 3 is out", |world| world.in_sync() == [1, 2]);
    world.node_mut(1).shards.mute_sync = true;
    world.start(3);
    world.run_until("it is there", |world| world.node(1).shards.synced.contains(&NodeId(3)));
    let member = world.node_mut(1).member.as_mut().expect("it runs");
    let shards = u16::try_from(member.shards.len()).expect("few");
    let peer = member.peers.get_mut(&NodeId(3)).expect("connected");
    peer.sync.required = (0..shards).collect();
    let mut known = (*member.known.as_ref().expect("it serves").configuration).clone();
    assert!(member.change_include(&known).is_some());
    // Its own disk is slow: it was included and excluded since, and the shards know neither.
    known.epoch = Epoch(known.epoch.0 + 2);
    assert!(member.change_include(&known).is_none());
}

#[test]
fn a_node_that_cannot_store_its_record_at_its_start_writes_nothing_to_its_disk() {
    // Its log is in the half that only the record that was not stored names.
    let mut world = serving(42, 3, 0, 0);
    world.crash(2);
    world.store_fails.insert(2);
    world.start(2);
    world.heal();
    world.run_until("its shards have no disk", |world| world.node(2).shards.detached);
}

#[test]
fn a_primary_whose_own_disk_failed_goes_on_without_it() {
    let mut world = serving(3, 2, 1, 0);
    world.shard_says(1, FromShard::DiskFailed);
    world.run_until("node 1 is out", |world| world.in_sync() == [2]);
    world.wait(1);
    assert!(world.node(1).shards.detached);
    assert!(world.answers(1), "{}", world.show());
}

#[test]
fn the_last_replica_stays_although_its_disk_failed() {
    let mut world = serving(3, 1, 1, 0);
    world.shard_says(1, FromShard::DiskFailed);
    world.wait(3);
    assert_eq!(world.in_sync(), [1]);
    let shards = &world.node(1).shards;
    assert!(shards.disk_fails && !shards.detached);
}

#[test]
fn a_primary_cut_off_from_the_majority_stops_before_another_starts() {
    let mut world = serving(4, 3, 0, 0);
    world.split(&[1]);
    world.set_clients(2, 1);
    world.run_until("node 2 serves", |world| world.answers(2));
    assert!(!world.answers(1));
    assert!(matches!(world.status(1).suspended, Some(Suspended::NoQuorum { missing: 1 })));
    world.heal();
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    assert!(world.answers(2));
}

#[test]
fn a_node_cut_off_from_the_primary_alone_does_not_disturb_it() {
    let mut world = serving(5, 2, 1, 0);
    world.block(1, 2);
    world.set_clients(2, 1);
    world.wait(30);
    assert!(world.answers(1), "{}", world.show());
    assert_eq!(world.primary(), Some(1));
    world.heal();
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2]);
}

#[test]
fn a_voter_that_restarts_promises_nothing_while_the_lease_it_forgot_may_run() {
    let mut world = serving(6, 2, 1, 0);
    // The primary keeps only its own vote and the witness's; the witness restarts and meets node 2.
    world.block(1, 2);
    world.wait(5);
    assert!(world.answers(1));
    world.block(1, 3);
    world.crash(3);
    world.start(3);
    // It has been excluded meanwhile, and would not lead by itself.
    world.operate(2, Operation::PauseResync(true));
    let before = world.now;
    world.run_until("node 2 is primary", |world| world.primary() == Some(2));
    assert!(world.now - before >= 1_900 * MS, "after {} ms", (world.now - before) / MS);
    let reason = Some(Suspended::NoReplica { missing: vec![NodeId(1)] });
    world.wait(1);
    assert_eq!(world.status(2).suspended, reason);
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for_however_late_the_answer() {
    let mut world = serving(6, 2, 1, 0);
    world.block(1, 2);
    world.wait(3);
    world.slow = Some((1, 3, 1_500 * MS));
    world.wait(5);
    // The answers that are on their way still reach node 1.
    world.block(1, 3);
    world.operate(2, Operation::PauseResync(true));
    world.run_until("node 2 is primary", |world| world.primary() == Some(2));
}

#[test]
fn a_take_over_comes_soon_after_the_lease_has_run_out() {
    for seed in 0..20 {
        let mut world = serving(seed, 3, 0, 0);
        world.wait(1);
        world.crash(1);
        world.set_clients(2, 1);
        world.run(2_500 * MS);
        assert!(world.primary() == Some(2), "seed {seed}: {}", world.show());
    }
}

#[test]
fn a_lease_ends_for_its_holder_before_any_voter_counts_it_out_whatever_the_clocks() {
    for seed in 0..40 {
        // The holder's clock is slow, those of the others are fast.
        let (slow, fast) = (-10_000, 10_000);
        let mut world = World::with_drifts(seed, &[slow, fast, fast]);
        world.delay = MS / 10;
        world.connect_all();
        world.set_clients(1, 1);
        world.run_until("node 1 serves", |world| world.answers(1));
        world.wait(2);
        world.split(&[1]);
        world.set_clients(2, 1);
        world.run_until("node 2 serves", |world| world.answers(2));
    }
}

#[test]
fn a_promote_asks_the_primary_to_hand_over_without_waiting_for_its_lease() {
    let mut world = serving(7, 2, 1, 0);
    let before = world.now;
    let id = world.operate(2, Operation::Promote);
    world.run_until("promoted", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Ok(()));
    assert!(world.now - before < 500 * MS, "after {} ms", (world.now - before) / MS);
    world.run_until("node 2 serves", |world| world.answers(2));
    assert_eq!(world.in_sync(), [1, 2]);
}

#[test]
fn a_promote_that_meets_a_primary_on_its_way_out_asks_the_next_one() {
    for seed in 0..50 {
        let mut world = serving(seed, 3, 0, 0);
        world.set_clients(2, 1);
        world.set_clients(3, 1);
        let first = world.operate(2, Operation::Promote);
        // Node 1 makes way for node 2, or has just done so, when this comes.
        world.run((1 + seed % 12) * MS);
        let second = world.operate(3, Operation::Promote);
        world.run_until("node 3 is primary", |world| world.node(3).done.contains_key(&second));
        assert_eq!(world.node(3).done[&second], Ok(()), "seed {seed}");
        world.run_until("node 2 was", |world| world.node(2).done.contains_key(&first));
        assert_eq!(world.node(2).done[&first], Ok(()), "seed {seed}");
    }
}

#[test]
fn a_drain_that_does_not_end_is_given_up() {
    let mut world = serving(7, 2, 1, 0);
    world.node_mut(1).shards.mute_drain = true;
    let id = world.operate(2, Operation::Promote);
    world.run_until("refused", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Err(OperationError::OtherPrimary(NodeId(1))));
    assert!(world.answers(1));
}

#[test]
fn a_primary_nobody_uses_hands_over_to_a_node_with_clients() {
    let mut world = serving(8, 2, 1, 1);
    world.set_clients(4, 1);
    world.wait(3);
    assert!(world.answers(1), "it is in use");
    world.set_clients(1, 0);
    world.run_until("node 4 serves", |world| world.answers(4));
}

#[test]
fn a_demote_leaves_the_resource_without_a_primary() {
    let mut world = serving(8, 2, 1, 0);
    let id = world.operate(1, Operation::Demote);
    world.run_until("demoted", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
    world.wait(5);
    assert_eq!(world.primary(), None);
    let id = world.operate(1, Operation::Demote);
    world.wait(1);
    assert_eq!(world.node(1).done[&id], Err(OperationError::Already));
}

#[test]
fn a_replica_that_lost_its_cache_is_excluded_however_quickly_it_returns() {
    let mut world = serving(9, 2, 1, 0);
    world.power_cut(2);
    world.start(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
    let incarnation = world.newest().member(NodeId(2)).map(|member| member.incarnation);
    assert_eq!(incarnation, world.node(2).disk.as_ref().map(|record| record.incarnation));
}

#[test]
fn a_primary_that_lost_its_cache_comes_back_as_a_client_until_another_has_resynced_it() {
    let mut world = serving(9, 2, 1, 0);
    world.power_cut(1);
    world.start(1);
    world.run_until("node 1 serves", |world| world.answers(1));
    assert_eq!(world.in_sync(), [2]);
    world.run_until("node 1 is back", |world| world.in_sync() == [1, 2] && world.answers(1));
}

#[test]
fn when_all_lost_their_caches_all_must_be_back_and_reconciled() {
    let mut world = serving(10, 2, 1, 0);
    for node in 1..=3 {
        world.power_cut(node);
    }
    world.start(1);
    world.start(3);
    world.wait(10);
    assert!(!world.answers(1));
    assert_eq!(
        world.status(1).suspended,
        Some(Suspended::CachesLost { missing: vec![NodeId(2)] }),
        "{}",
        world.show()
    );
    world.start(2);
    world.run_until("node 1 serves", |world| world.answers(1));
    assert_eq!(world.in_sync(), [1, 2]);
    assert!(world.epochs.values().any(|known| known.recovering), "it was never registered");
    assert!(!world.newest().recovering);
}

#[test]
fn replicas_that_lost_their_caches_recover_without_any_client() {
    let mut world = serving(10, 2, 1, 0);
    world.set_clients(1, 0);
    for node in 1..=3 {
        world.power_cut(node);
        world.start(node);
    }
    world.run_until("recovered", |world| {
        world.epochs.values().any(|known| known.recovering) && !world.newest().recovering
    });
}

#[test]
fn the_kept_replica_steps_in_to_bring_another_back_though_nobody_asks() {
    let mut world = serving(11, 2, 1, 0);
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.crash(1);
    world.set_clients(1, 0);
    world.start(2);
    world.wait(5);
    assert_eq!(world.in_sync(), [1], "node 2 alone has nothing to say");
    world.start(1);
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
}

#[test]
fn a_member_is_added_brought_up_to_date_and_removed() {
    let mut world = serving(12, 1, 0, 0);
    world.add_node(2, Some(Record::empty(voter(2), Incarnation(77), 1)), false);
    world.connect_all();
    world.run(200 * MS);
    let kind = MemberKind::Replica;
    let add = Operation::AddMember { node: NodeId(2), kind, voter: voter(2) };
    let id = world.operate(1, add.clone());
    world.run_until("added", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
    world.run_until("in sync", |world| world.in_sync() == [1, 2]);
    let id = world.operate(1, add);
    world.run_until("refused", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::Already));
    let id = world.operate(1, Operation::RemoveMember { node: NodeId(2) });
    world.run_until("removed", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
    world.wait(1);
    assert_eq!(world.newest().members.len(), 1);
    assert!(world.answers(1));
}

#[test]
fn a_member_whose_voter_is_not_there_is_not_added_if_that_would_end_the_majority() {
    let mut world = serving(12, 1, 0, 0);
    let add = Operation::AddMember { node: NodeId(2), kind: MemberKind::Witness, voter: voter(2) };
    let id = world.operate(1, add);
    world.run_until("refused", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::NoQuorum));
    assert!(world.answers(1));
}

#[test]
fn the_last_replica_cannot_be_removed() {
    let mut world = serving(12, 1, 2, 0);
    let id = world.operate(1, Operation::RemoveMember { node: NodeId(1) });
    world.run_until("refused", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::LastReplica));
}

#[test]
fn no_replica_is_removed_that_in_sync_min_asks_for() {
    let mut world = serving(12, 3, 0, 0);
    let ask = |world: &mut World, operation| {
        let id = world.operate(1, operation);
        world.run_until("answered", |world| world.is_done(1, id));
        world.node(1).done[&id]
    };
    let at_least = |least| {
        Operation::SetOptions(OptionsChange {
            in_sync_min: Some(least),
            ..OptionsChange::default()
        })
    };
    let remove = |node| Operation::RemoveMember { node: NodeId(node) };
    assert_eq!(ask(&mut world, at_least(4)), Err(OperationError::TooFewReplicas));
    assert_eq!(ask(&mut world, at_least(2)), Ok(()));
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1, 3]);
    // The one that is left would not be enough.
    assert_eq!(ask(&mut world, remove(3)), Err(OperationError::TooFewReplicas));
    assert_eq!(ask(&mut world, remove(2)), Ok(()));
    assert_eq!(ask(&mut world, remove(3)), Err(OperationError::TooFewReplicas));
    assert!(world.answers(1));
    assert_eq!(ask(&mut world, at_least(1)), Ok(()));
    assert_eq!(ask(&mut world, remove(3)), Ok(()));
}

#[test]
fn an_operation_is_refused_where_another_node_is_primary() {
    let mut world = serving(13, 2, 1, 0);
    let operation = Operation::Resize { volume: base::VolumeId(0), sectors: 4096, shrinks: true };
    let id = world.operate(2, operation.clone());
    world.wait(1);
    assert_eq!(world.node(2).done[&id], Err(OperationError::OtherPrimary(NodeId(1))));
    let id = world.operate(1, operation);
    world.wait(1);
    assert_eq!(world.node(1).done[&id], Ok(()));
    assert_eq!(world.newest().volumes[0].sectors, 4096);
    let bad = Operation::Resize { volume: base::VolumeId(0), sectors: 0, shrinks: true };
    let id = world.operate(1, bad);
    world.wait(1);
    assert_eq!(world.node(1).done[&id], Err(OperationError::BadSize));
}

#[test]
fn requests_are_held_back_while_too_few_replicas_are_in_sync() {
    let mut world = serving(14, 2, 1, 0);
    let change = OptionsChange { in_sync_min: Some(2), ..OptionsChange::default() };
    let id = world.operate(1, Operation::SetOptions(change));
    world.run_until("set", |world| world.is_done(1, id));
    world.wait(1);
    assert!(world.answers(1));
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.wait(1);
    assert!(!world.answers(1));
    let reason = Some(Suspended::TooFewInSync { have: 1, need: 2 });
    assert_eq!(world.status(1).suspended, reason);
    world.start(2);
    world.run_until("node 1 serves again", |world| world.answers(1));
}

#[test]
fn cut_verify_and_suspend_end() {
    let mut world = serving(15, 2, 1, 0);
    for operation in [Operation::Cut, Operation::Verify { anew: false }, Operation::Cut] {
        let id = world.operate(1, operation);
        world.run_until("done", |world| world.is_done(1, id));
        assert_eq!(world.node(1).done[&id], Ok(()));
    }
    world.operate(1, Operation::Suspend(true));
    world.wait(3);
    assert!(!world.answers(1));
    assert_eq!(world.status(1).suspended, Some(Suspended::Operator));
    world.operate(1, Operation::Suspend(false));
    world.run_until("node 1 serves", |world| world.answers(1));
}

#[test]
fn an_emptied_disk_is_replaced_by_two_changes_of_voters() {
    let mut world = serving(17, 3, 0, 0);
    world.crash(2);
    world.node_mut(2).disk = Some(Record::empty(VoterId(4711), Incarnation(4711), 1));
    world.start(2);
    world.run_until("node 2 is in sync", |world| {
        world.in_sync() == [1, 2, 3]
            && world.newest().member(NodeId(2)).is_some_and(|member| member.voter == VoterId(4711))
    });
    let lost = |known: &wire::Configuration| {
        known.member(NodeId(2)).is_some_and(|member| member.voter == VoterId(0))
    };
    assert!(world.epochs.values().any(lost));
    assert!(world.epochs.values().all(|known| known.member(NodeId(2)).is_some()), "forgotten");
}

/// Runs an invalidate of `node` to its end: `node` was out and worthless, and kept its vote.
fn invalidated(world: &mut World, node: u16) {
    let first = world.newest().epoch;
    let others: Vec<u16> = world.in_sync().into_iter().filter(|&other| other != node).collect();
    let generation = |world: &World, at: u16| {
        let record = world.node(at).disk.as_ref().expect("a replica");
        let slot = record.slots.iter().find(|slot| slot.node == NodeId(node));
        slot.map(|slot| slot.generation).expect("a slot for each other replica")
    };
    let before: Vec<u64> = others.iter().map(|&at| generation(world, at)).collect();
    let id = world.operate(node, Operation::Invalidate);
    world.run_until("invalidated", |world| world.is_done(node, id));
    assert_eq!(world.node(node).done[&id], Ok(()));
    let known = world.status(node).configuration.expect("it runs");
    assert!(!known.is_in_sync(NodeId(node)), "it is done when the node has learned it");
    let void = |known: &wire::Configuration| {
        known
            .member(NodeId(node))
            .is_some_and(|member| member.is_void() && member.voter == voter(node))
    };
    let voids = |world: &World| {
        world.epochs.values().filter(|known| known.epoch > first && void(known)).count()
    };
    world.run_until("it is worthless", |world| voids(world) > 0);
    world.run_until("it is back", |world| world.in_sync().contains(&node));
    let count = voids(world);
    for (&at, before) in others.iter().zip(before) {
        let both = |world: &World| generation(world, at) >= before + 2;
        world.run_until("its bits were all dirty, and are all clear", both);
    }
    world.wait(2);
    assert_eq!(voids(world), count, "once is enough");
}

#[test]
fn an_invalidated_replica_is_left_out_and_copied_anew_and_keeps_its_vote() {
    let mut world = serving(18, 3, 0, 0);
    invalidated(&mut world, 2);
    assert_eq!(world.in_sync(), [1, 2, 3]);
    let mut alone = serving(18, 1, 2, 0);
    let id = alone.operate(1, Operation::Invalidate);
    assert_eq!(alone.node(1).done[&id], Err(OperationError::LastReplica));
    let id = alone.operate(2, Operation::Invalidate);
    assert_eq!(alone.node(2).done[&id], Err(OperationError::NoReplica));
}

#[test]
fn a_copy_that_is_being_made_anew_is_made_anew_once_more() {
    let mut world = serving(18, 3, 0, 0);
    world.node_mut(1).shards.mute_sync = true;
    for _ in 0..2 {
        let before = world.newest();
        let id = world.operate(2, Operation::Invalidate);
        world.run_until("invalidated", |world| world.is_done(2, id));
        assert_eq!(world.node(2).done[&id], Ok(()));
        let mark = |known: &wire::Configuration| {
            known.member(NodeId(2)).map(|member| (member.is_void(), member.incarnation))
        };
        world.run_until("it has a new mark", |world| mark(&world.newest()) != mark(&before));
        assert!(mark(&world.newest()).is_some_and(|mark| mark.0));
        let once = world.newest().epoch;
        world.wait(2);
        assert_eq!(world.newest().epoch, once, "it is asked for once");
    }
    world.node_mut(1).shards.mute_sync = false;
    world.run_until("node 2 is in sync", |world| world.in_sync() == [1, 2, 3]);
}

#[test]
fn one_of_two_voters_is_invalidated() {
    let mut world = serving(18, 2, 0, 0);
    invalidated(&mut world, 2);
    invalidated(&mut world, 1);
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2]);
}

#[test]
fn two_of_three_voters_are_invalidated_at_once() {
    let mut world = serving(18, 3, 0, 0);
    let ids = [1, 3].map(|node| (node, world.operate(node, Operation::Invalidate)));
    for (node, id) in ids {
        world.run_until("invalidated", |world| world.is_done(node, id));
        assert_eq!(world.node(node).done[&id], Ok(()));
    }
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
}

#[test]
fn a_replica_is_invalidated_where_nobody_is_primary() {
    let mut world = World::new(18, 2, 1, 0);
    world.connect_all();
    invalidated(&mut world, 2);
}

#[test]
fn an_invalidate_that_the_primary_did_not_hear_of_is_asked_again() {
    let mut world = serving(18, 2, 1, 0);
    world.block(1, 2);
    let id = world.operate(2, Operation::Invalidate);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.heal();
    world.run_until("invalidated", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Ok(()));
    world.run_until("node 2 is in sync", |world| world.in_sync() == [1, 2]);
}

#[test]
fn the_copy_of_the_others_is_not_given_up_for_one_that_is_worthless() {
    let mut world = serving(18, 2, 1, 0);
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    let id = world.operate(1, Operation::Invalidate);
    world.run_until("refused", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::LastReplica));
}

#[test]
fn a_member_that_is_being_replaced_is_not_forgotten_with_the_primary() {
    let mut world = serving(17, 3, 0, 1);
    world.set_clients(1, 0);
    world.set_clients(4, 1);
    world.run_until("node 4 serves", |world| world.answers(4));
    world.crash(2);
    world.node_mut(2).disk = Some(Record::empty(VoterId(4711), Incarnation(4711), 1));
    world.start(2);
    world.run_until("its old vote is out", |world| {
        let entry = world.newest().member(NodeId(2)).cloned();
        entry.is_none_or(|entry| entry.voter == VoterId(0))
    });
    world.crash(4);
    world.run_until("node 2 is in sync", |world| world.in_sync() == [1, 2, 3]);
}

#[test]
fn flushed_writes_are_served_on_where_one_of_two_lost_its_cache_and_the_other_its_disk() {
    let mut world = serving(9, 2, 1, 0);
    world.power_cut(2);
    world.power_cut(1);
    world.node_mut(2).disk = Some(Record::empty(VoterId(4711), Incarnation(4711), 1));
    world.heal();
    world.run_until("both are in sync", |world| world.in_sync() == [1, 2] && world.answers(1));
}

#[test]
fn a_voter_that_restarts_goes_on_with_the_lease_of_the_primary_that_it_promised() {
    let mut world = serving(6, 2, 1, 0);
    world.crash(2);
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    for _ in 0..3 {
        world.crash(3);
        world.start(3);
        for _ in 0..40 {
            world.run(50 * MS);
            assert!(world.answers(1), "its own vote and the witness's are enough");
        }
    }
}

#[test]
fn a_forced_node_goes_on_alone_in_a_named_fork_that_the_others_join_later() {
    let mut world = serving(19, 2, 1, 0);
    world.crash(1);
    world.crash(3);
    world.set_clients(2, 1);
    world.wait(5);
    assert!(!world.answers(2));
    let id = world.operate(2, Operation::Force);
    world.run_until("forced", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Ok(()));
    world.run_until("node 2 serves", |world| world.answers(2));
    assert_eq!(world.newest().fork, 1);
    world.set_clients(1, 0);
    world.heal();
    world.wait(5);
    assert!(world.answers(2), "{}", world.show());
    assert_eq!(world.in_sync(), [2]);
    assert!(world.newest().epoch > Epoch(1 << 32));
}

#[test]
fn a_node_whose_record_cannot_be_stored_votes_no_more_but_serves_as_a_client() {
    let mut world = serving(20, 3, 0, 0);
    world.store_fails.insert(2);
    world.crash(3);
    world.wait(5);
    // Node 2 could not store that node 3 is out, so nothing could be decided.
    assert_eq!(world.in_sync(), [1, 2, 3]);
    world.start(3);
    world.run_until("node 2 is out", |world| world.in_sync() == [1, 3]);
    world.run_until("node 1 serves", |world| world.answers(1));
}

#[test]
fn a_primary_that_died_is_not_waited_for_again_by_the_one_that_waited_for_its_lease() {
    let mut world = serving(21, 3, 0, 0);
    world.set_clients(2, 1);
    let (timing, died) = (Timing::default(), world.now);
    world.crash(1);
    world.run_until("node 2 serves", |world| world.answers(2));
    let took = world.now - died;
    assert!(took < timing.lease.0 + timing.gather.0 / 2, "{took} ns");
    assert_eq!(world.in_sync(), [2, 3]);
}

/// One life of a world in which everything happens, then heals.
fn ordeal(seed: u64) {
    let shape = [(2, 1, 0), (3, 0, 1), (2, 0, 1), (1, 2, 1), (2, 3, 1)];
    let (replicas, witnesses, clients) = shape[(seed % 5) as usize];
    let mut world = World::new(seed, replicas, witnesses, clients);
    let count = u64::from(replicas + witnesses + clients);
    world.delay = [2 * MS, 40 * MS, 300 * MS, MS / 10][(seed / 5 % 4) as usize];
    world.connect_all();
    for _ in 0..40 {
        let node = world.random.below(count) as u16 + 1;
        let other = world.random.below(count) as u16 + 1;
        match world.random.below(14) {
            0 => world.crash(node),
            1 => world.power_cut(node),
            2 | 3 => {
                if world.node(node).member.is_none() {
                    world.start(node);
                }
            }
            4 if node != other => world.block(node, other),
            5 => world.split(&[node]),
            6 | 7 => {
                world.blocked.clear();
                world.connect_all();
            }
            8 => {
                let clients = u32::from(world.node(node).clients == 0);
                world.set_clients(node, clients);
            }
            9 => {
                world.operate(node, Operation::Promote);
            }
            10 if node != other => world.disconnect(node, other),
            11 if node > replicas && node <= replicas + witnesses => {
                let kind = MemberKind::Witness;
                let add = Operation::AddMember { node: NodeId(node), kind, voter: voter(node) };
                let remove = Operation::RemoveMember { node: NodeId(node) };
                let change = if world.random.once_in(2) { add } else { remove };
                world.operate(other, change);
            }
            _ => {
                world.operate(node, Operation::Demote);
            }
        }
        let pause = world.random.below(1_500 * MS);
        world.run(pause);
    }
    world.heal();
    for node in 1..=count as u16 {
        world.set_clients(node, 0);
    }
    world.set_clients(replicas, 1);
    world.run_until(&alloc::format!("seed {seed}: everything is well"), |world| {
        world.in_sync().len() == usize::from(replicas)
            && (1..=count as u16).any(|node| world.answers(node))
    });
}

/// How many worlds are tried: 300, or what the environment says.
fn seeds() -> u64 {
    std::env::var("LOCKSTEP_MEMBER_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

#[test]
fn through_crashes_cuts_and_partitions_there_is_one_history_and_one_primary() {
    for seed in 0..seeds() {
        ordeal(seed);
    }
}

#[test]
fn a_primary_whose_process_ended_reigns_no_more_once_its_lease_is_over_though_it_is_named() {
    let mut world = serving(31, 3, 0, 0);
    let reigning = |world: &World, node: u16| {
        let member = world.node(node).member.as_ref().expect("it runs");
        member.reigning(member.now.max(base::Instant(world.now)))
    };
    world.set_clients(1, 0);
    world.wait(1);
    assert!((1..=3).all(|node| reigning(&world, node) == Some(NodeId(1))));
    world.crash(1);
    assert_eq!(reigning(&world, 2), Some(NodeId(1)), "its lease may still run");
    world.start(1);
    world.connect_all();
    world.wait(30);
    assert_eq!(world.primary(), Some(1), "nobody needed another");
    assert!((1..=3).all(|node| reigning(&world, node).is_none()));
}

#[test]
fn a_promote_where_too_few_voters_are_reached_lacks_quorum_though_a_primary_is_heard() {
    let mut world = serving(32, 3, 0, 1);
    world.wait(30);
    world.crash(2);
    world.crash(3);
    let id = world.operate(4, Operation::Promote);
    world.run_until("refused", |world| world.is_done(4, id));
    assert_eq!(world.node(4).done[&id], Err(OperationError::NoQuorum));
}

#[test]
fn of_two_operators_who_change_options_at_once_neither_undoes_the_other() {
    let mut world = serving(3, 2, 1, 0);
    let none = OptionsChange::default;
    let first = OptionsChange { in_sync_min: Some(2), ..none() };
    let second = OptionsChange { on_no_quorum: Some(OnNoQuorum::IoError), ..none() };
    let one = world.operate(1, Operation::SetOptions(first));
    let two = world.operate(1, Operation::SetOptions(second));
    world.run_until("both are done", |world| world.is_done(1, one) && world.is_done(1, two));
    world.wait(1);
    let options = world.newest().options;
    assert_eq!((options.in_sync_min, options.on_no_quorum), (2, OnNoQuorum::IoError));
}

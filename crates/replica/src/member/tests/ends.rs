//! How reigns and attempts end: what waits for the end of a lease, or for the shards.

use super::network::{MS, World, voter};
use super::register::Alone;
use crate::disk::Record;
use crate::door::{FromShard, MemberInput, Operation, OperationError, OperationId, Timing};
use crate::member::RoleStatus;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, NodeId, SessionId, VoterId};
use wire::admin::OptionsChange;
use wire::{Configuration, MemberKind, MemberMessage, Options, Quorum, RefuseReason};

/// The ballot under which voters are asked for promises, if they are.
fn asked(sent: &[MemberMessage]) -> Option<Ballot> {
    sent.iter().find_map(|message| match message {
        MemberMessage::Prepare { ballot } => Some(*ballot),
        _ => None,
    })
}

/// What voters are asked to accept.
fn proposed(sent: &[MemberMessage]) -> Option<&Configuration> {
    sent.iter().find_map(|message| match message {
        MemberMessage::Accept { configuration, .. } => Some(&**configuration),
        _ => None,
    })
}

fn is_released(sent: &[MemberMessage]) -> bool {
    sent.iter().any(|message| matches!(message, MemberMessage::Release { .. }))
}

/// Node 1 with two shards, which is primary in epoch 2 by the votes of nodes 1 and 2, and serves; and its ballot.
fn reigning(first: &Configuration) -> (Alone, Ballot) {
    let record = Record::first(first, NodeId(1), 1).expect("a member");
    let mut node = Alone::with(1, record, 2);
    node.meet(2, 1, None);
    node.meet(3, 2, None);
    let sent = node.step(MemberInput::Clients { count: 1 });
    let ballot = asked(&sent).expect("it has a client");
    let promise = MemberMessage::Promise { ballot, voter: voter(2), accepted: None };
    let sent = node.hear(2, 1, promise);
    let epoch = proposed(&sent).expect("two of three promised").epoch;
    assert_eq!(epoch, Epoch(2));
    node.hear(2, 1, MemberMessage::Accepted { ballot, epoch, voter: voter(2) });
    for shard in 0..2 {
        for message in [FromShard::Installed { epoch }, FromShard::Gathered { reign: epoch }] {
            node.step(MemberInput::Shard { shard, message });
        }
    }
    assert_eq!(node.member.status().role, RoleStatus::Primary);
    (node, ballot)
}

/// A voter answers the heartbeat of now, in the session that `reigning` began.
fn grants(node: &mut Alone, ballot: Ballot, peer: u16) {
    let (voter, epoch, session) = (voter(peer), Epoch(2), u64::from(peer) - 1);
    let (sent, generation) = (node.now, (session, 1));
    let answer =
        MemberMessage::HeartbeatAnswer { ballot, sent, voter, epoch, generation, wants: false };
    node.hear(peer, session, answer);
}

#[test]
fn an_attempt_gives_no_lease_back_while_one_of_a_reign_that_others_ended_may_run() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, old) = reigning(&first);
    let ended = Configuration { epoch: Epoch(4), reign: Epoch(3), ..first.clone() };
    let ballot = Ballot { round: old.round + 1, node: NodeId(2) };
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(ended) });
    assert_eq!(node.member.status().role, RoleStatus::Follower);
    // Its shards may not have heard of that yet, and answer under the lease of the old reign.
    let lease = Timing::default().lease;
    let end = node.now + lease;
    let mut attempts = [0, 0];
    while node.now < end + lease {
        let over = node.now >= end;
        let sent = node.step(MemberInput::Wake);
        let Some(ballot) = asked(&sent) else {
            node.now = node.now + Duration(10 * MS);
            continue;
        };
        attempts[usize::from(over)] += 1;
        let reason = RefuseReason::Promised(Ballot { round: ballot.round + 1, node: NodeId(2) });
        node.hear(2, 1, MemberMessage::Refused { ballot, reason });
        let sent = node.hear(3, 2, MemberMessage::Refused { ballot, reason });
        assert_eq!(node.member.status().role, RoleStatus::Follower, "nobody is left to promise");
        assert_eq!(is_released(&sent), over, "{sent:?}");
    }
    assert!(attempts[0] > 0 && attempts[1] > 0, "{attempts:?}");
}

#[test]
fn the_end_of_a_reign_is_proposed_when_each_of_its_shards_is_drained() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, ballot) = reigning(&first);
    let epoch = Epoch(2);
    let id = OperationId(1);
    let mut sent = node.step(MemberInput::Operation { id, operation: Operation::Demote });
    for shard in 0..2 {
        sent.extend(node.step(MemberInput::Wake));
        assert_eq!(proposed(&sent), None, "before shard {shard} is drained");
        let message = FromShard::Drained { reign: epoch, number: 1 };
        sent.extend(node.step(MemberInput::Shard { shard, message }));
    }
    let next = proposed(&sent).expect("both are drained");
    assert_eq!((next.epoch, next.primary), (Epoch(3), None));
    node.hear(2, 1, MemberMessage::Accepted { ballot, epoch: Epoch(3), voter: voter(2) });
    assert_eq!(node.member.status().role, RoleStatus::Follower);
}

#[test]
fn without_quorum_a_copy_comes_into_sync_only_when_it_granted_the_lease_of_those_who_were() {
    let mut first = World::new(1, 3, 0, 0).bootstrap;
    first.options.quorum = Quorum::Off;
    first.members[2].in_sync = false;
    let (mut node, ballot) = reigning(&first);
    let answer = |node: &mut Alone, peer: u16| grants(node, ballot, peer);
    node.step(MemberInput::Wake);
    answer(&mut node, 3);
    // Node 3 grants no lease any more, and is not silent for long enough.
    for _ in 0..5 {
        node.now = node.now + Timing::default().heartbeat;
        node.step(MemberInput::Wake);
        answer(&mut node, 2);
    }
    let (peer, session) = (NodeId(3), SessionId(2));
    let say = |node: &mut Alone, message: FromShard| {
        let mut sent = Vec::new();
        for shard in 0..2 {
            let message = message.clone();
            sent.extend(node.step(MemberInput::Shard { shard, message }));
        }
        proposed(&sent).cloned()
    };
    // What was required in an attempt that shards were told to forget may be under way yet.
    for message in
        [FromShard::Synced { peer, session }, FromShard::Required { peer, session, number: 0 }]
    {
        assert_eq!(say(&mut node, message), None);
    }
    let next = say(&mut node, FromShard::Required { peer, session, number: 1 });
    let next = next.expect("node 3 lacks nothing");
    assert!(next.is_in_sync(NodeId(3)));
    let epoch = next.epoch;
    node.hear(2, 1, MemberMessage::Accepted { ballot, epoch, voter: voter(2) });
    let known = |node: &Alone| node.member.status().configuration.map(|known| known.epoch);
    assert_eq!(known(&node), Some(Epoch(2)), "node 3 may go on alone before that lease is over");
    node.now = node.now + Timing::default().heartbeat;
    node.step(MemberInput::Wake);
    answer(&mut node, 3);
    assert_eq!(known(&node), Some(epoch));
}

#[test]
fn quorum_is_given_up_only_when_those_who_may_then_go_on_alone_granted_the_lease() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, ballot) = reigning(&first);
    node.hear(2, 1, MemberMessage::Learned { epoch: Epoch(2) });
    // Node 2 grants no lease any more, and is not silent for long enough to be left out.
    for _ in 0..5 {
        node.now = node.now + Timing::default().heartbeat;
        node.step(MemberInput::Wake);
        grants(&mut node, ballot, 3);
    }
    let change = OptionsChange { quorum: Some(Quorum::Off), ..OptionsChange::default() };
    let operation = Operation::SetOptions(change);
    let sent = node.step(MemberInput::Operation { id: OperationId(1), operation });
    let epoch = proposed(&sent).expect("it is asked for").epoch;
    node.hear(3, 2, MemberMessage::Accepted { ballot, epoch, voter: voter(3) });
    let known = |node: &Alone| node.member.status().configuration.map(|known| known.epoch);
    assert_eq!(known(&node), Some(Epoch(2)), "node 2 may answer before that lease is over");
    // It grants what the others did.
    node.now = node.now + Timing::default().heartbeat;
    node.step(MemberInput::Wake);
    grants(&mut node, ballot, 2);
    assert_eq!(known(&node), Some(epoch));
}

#[test]
fn what_a_shard_said_of_a_drain_that_was_given_up_does_not_count_for_the_next_one() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, _) = reigning(&first);
    let drained = |shard, number| {
        let message = FromShard::Drained { reign: Epoch(2), number };
        MemberInput::Shard { shard, message }
    };
    // Node 3 wants to be primary; what shard 1 answers is slow.
    node.hear(3, 2, MemberMessage::WantPrimary);
    node.step(drained(0, 1));
    // Node 3 is gone: shards admit requests again.
    node.step(MemberInput::PeerDown { peer: NodeId(3), session: SessionId(2) });
    node.meet(3, 3, None);
    node.hear(3, 3, MemberMessage::WantPrimary);
    node.step(drained(0, 2));
    let sent = node.step(drained(1, 1));
    assert_eq!(proposed(&sent), None, "shard 1 may have open what came since");
    let sent = node.step(drained(1, 2));
    let next = proposed(&sent).expect("both are drained");
    assert_eq!((next.epoch, next.primary), (Epoch(3), None));
}

#[test]
fn nobody_accepts_an_exclude_before_those_who_stay_have() {
    let mut world = super::serving(35, 2, 1, 1);
    world.set_clients(1, 0);
    world.set_clients(4, 1);
    world.run_until("node 4 serves", |world| world.answers(4));
    world.slow = Some((1, 4, 50 * MS));
    let accepts = |world: &World, node: u16| {
        let record = world.nodes[&node].disk.as_ref();
        let accepted = record.and_then(|record| record.accepted.as_ref());
        accepted.is_some_and(|(_, value)| !value.is_in_sync(NodeId(2)))
    };
    world.crash(2);
    world.run_until("the witness accepts", |world| accepts(world, 3));
    assert!(accepts(&world, 1), "node 1 might be gone, and be all there is");
}

#[test]
fn a_change_that_counts_on_memories_that_are_gone_gives_way() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, ballot) = reigning(&first);
    let (id, added) = (OperationId(1), NodeId(4));
    node.meet(4, 4, None);
    let operation =
        Operation::AddMember { node: added, kind: MemberKind::Witness, voter: voter(4) };
    let sent = node.step(MemberInput::Operation { id, operation });
    let next = proposed(&sent).expect("all are there");
    assert_eq!((next.epoch, next.members.len()), (Epoch(3), 4));
    // The disk of the one that is added is another one before anybody answered, and then another voter's is.
    node.meet_as(4, 5, None, VoterId(444));
    let sent = node.meet_as(2, 6, None, VoterId(222));
    // Nodes 1 and 3 decide what the voters of before may: node 2 lacks what is written from now on.
    let next = proposed(&sent)
        .expect("two of the four are left, and nobody would ever have the third vote");
    assert_eq!((next.epoch, next.member(added)), (Epoch(4), None));
    assert!(!next.is_in_sync(NodeId(2)));
    let epoch = next.epoch;
    let sent = node.hear(3, 2, MemberMessage::Accepted { ballot, epoch, voter: voter(3) });
    let next = proposed(&sent).expect("node 2's old vote goes");
    assert_eq!(next.member(NodeId(2)).map(|entry| entry.voter), Some(VoterId(0)));
}

#[test]
fn an_invalidate_that_was_refused_is_not_made_later() {
    let mut world = World::new(21, 2, 1, 1);
    world.connect_all();
    world.set_clients(4, 1);
    world.run_until("node 4 serves", |world| world.answers(4));
    world.wait(1);
    // The primary hears of it just when no other copy is left.
    world.crash(1);
    let id = world.operate(2, Operation::Invalidate);
    world.run_until("answered", |world| world.is_done(2, id));
    assert_eq!(world.node(2).done[&id], Err(OperationError::LastReplica));
    world.wait(2);
    world.start(1);
    world.run_until("node 1 is back", |world| world.in_sync() == [1, 2]);
    world.wait(20);
    let void = |known: &Configuration| known.members[1].is_void();
    assert!(!world.epochs.values().any(void), "long after its operator was told that it is not");
}

#[test]
fn nothing_is_served_of_lost_caches_before_what_is_left_of_them_is_agreed_on() {
    let mut world = super::serving(10, 2, 1, 0);
    for node in 1..=3 {
        world.power_cut(node);
        world.start(node);
    }
    world.run_until("node 1 or 2 serves", |world| {
        for node in 1..=2 {
            let shards = &world.node(node).shards;
            let recovering = shards.configuration.as_ref().filter(|known| known.recovering);
            let early = recovering.filter(|known| shards.serving == Some(known.reign));
            assert!(early.is_none(), "node {node}: {early:?}");
        }
        world.answers(1) || world.answers(2)
    });
    assert!(world.epochs.values().any(|known| known.recovering), "it was never registered");
}

/// Node 3, a client's, leads and reaches one of two voters only. The other one reaches both, and not node 3.
#[test]
fn a_primary_that_reaches_too_few_voters_keeps_none_from_who_reaches_more() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2, 0, 1);
        world.connect_all();
        world.set_clients(3, 1);
        world.run_until("node 3 serves", |world| world.answers(3));
        world.set_clients(2, 1);
        world.block(2, 3);
        world.run_until("node 2 serves", |world| world.answers(2));
        world.run_until("both are in sync", |world| world.in_sync() == [1, 2]);
    }
}

/// A demote that comes while another node is about to be handed the lead counts like any other: clients here are no
/// reason to lead again.
#[test]
fn a_demote_that_joins_a_hand_over_holds_when_that_is_over() {
    for seed in 0..20 {
        let mut world = super::serving(seed, 3, 0, 0);
        world.wait(1);
        world.operate(2, Operation::Promote);
        let drains = |world: &World| {
            let reign = world.node(1).member.as_ref().and_then(|member| member.reign());
            reign.is_some_and(|reign| reign.drain.is_some())
        };
        world.run_until("it is about to hand over", drains);
        let id = world.operate(1, Operation::Demote);
        world.run_until("demoted", |world| world.is_done(1, id));
        world.crash(2);
        world.wait(10);
        assert_ne!(world.primary(), Some(1), "{}", world.show());
    }
}

/// A copy in sync that has not accepted that a majority decides may go on alone, whatever the others do.
/// It was to bring a copy back, with no client: then nothing else happens there, for ever.
#[test]
fn who_is_needed_as_primary_asks_again_when_what_it_proposed_came_to_nothing() {
    let mut first = World::new(1, 2, 0, 0).bootstrap;
    first.members[1].in_sync = false;
    let record = Record::first(&first, NodeId(1), 1).expect("a member");
    let mut node = Alone::with(1, record, 2);
    node.meet(2, 1, None);
    let attempt = |node: &mut Alone| loop {
        node.now = node.member.wake_at().expect("it is still needed").max(node.now);
        let sent = node.step(MemberInput::Wake);
        if let Some(ballot) = asked(&sent) {
            break ballot;
        }
    };
    let ballot = attempt(&mut node);
    let promise = MemberMessage::Promise { ballot, voter: voter(2), accepted: None };
    let sent = node.hear(2, 1, promise);
    assert!(proposed(&sent).is_some(), "both promised");
    assert!(attempt(&mut node) > ballot, "the other one accepted nothing for too long");
}

#[test]
fn a_majority_decides_again_when_every_copy_has_accepted_that() {
    let mut first = World::new(1, 3, 0, 0).bootstrap;
    first.options.quorum = Quorum::Off;
    let (mut node, ballot) = reigning(&first);
    let change = OptionsChange { quorum: Some(Quorum::Majority), ..OptionsChange::default() };
    let (id, operation) = (OperationId(1), Operation::SetOptions(change));
    let sent = node.step(MemberInput::Operation { id, operation });
    assert_eq!(proposed(&sent), None, "node 3 may not know that it is in sync");
    let answer = |node: &mut Alone, peer: u16| grants(node, ballot, peer);
    let mut sent = node.hear(2, 1, MemberMessage::Learned { epoch: Epoch(2) });
    sent.extend(node.hear(3, 2, MemberMessage::Learned { epoch: Epoch(2) }));
    node.now = node.now + Timing::default().heartbeat;
    sent.extend(node.step(MemberInput::Wake));
    let epoch = proposed(&sent).expect("all know what is").epoch;
    answer(&mut node, 2);
    answer(&mut node, 3);
    let known = |node: &Alone| node.member.status().configuration.map(|known| known.epoch);
    for (peer, decided) in [(2, false), (3, true)] {
        let message = MemberMessage::Accepted { ballot, epoch, voter: voter(peer) };
        node.hear(peer, u64::from(peer) - 1, message);
        assert_eq!(known(&node) == Some(epoch), decided, "once node {peer} has accepted it");
    }
}

#[test]
fn a_copy_whose_removal_cannot_be_decided_stays_in_sync() {
    let mut world = World::new(3, 2, 1, 0);
    world.connect_all();
    world.set_clients(1, 1);
    world.run_until("node 1 serves", |world| world.answers(1));
    world.crash(3);
    world.wait(1);
    // The voters that would be left are nodes 1 and 3.
    let id = world.operate(1, Operation::RemoveMember { node: NodeId(2) });
    while !world.is_done(1, id) {
        world.run(20 * MS);
        assert_eq!(world.in_sync(), [1, 2]);
    }
    assert!(world.node(1).done[&id].is_err());
}

#[test]
fn what_a_node_whose_disk_hangs_learns_is_bounded() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let mut node = Alone::new(1, &first);
    node.meet(2, 1, None);
    node.slow = true;
    let ballot = Ballot { round: 9, node: NodeId(2) };
    for epoch in 2..2000 {
        let epoch = Epoch(epoch);
        let next = Configuration { epoch, reign: Epoch(2), ..first.clone() };
        node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(next) });
    }
    assert!(node.member.store.waits() <= 256, "{}", node.member.store.waits());
    node.slow = false;
    let number = node.held.take().expect("one is under way");
    node.step(MemberInput::Stored { number, ok: true });
    let next = Configuration { epoch: Epoch(2000), reign: Epoch(2), ..first.clone() };
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(next) });
    let known = node.member.status().configuration.map(|known| known.epoch);
    assert_eq!(known, Some(Epoch(2000)), "it is told again");
}

/// A node that leads adds one to the highest round that it has heard of, and to the epoch.
#[test]
fn a_count_that_nobody_can_have_come_to_is_not_believed() {
    let first = World::new(1, 2, 1, 0).bootstrap;
    let (mut node, ballot) = reigning(&first);
    let far = Ballot { round: u64::MAX, node: NodeId(2) };
    let (epoch, reign) = (Epoch(u64::MAX), Epoch(u64::MAX));
    let next = Configuration { epoch, reign, ..first.clone() };
    let (epoch, reign) = (Epoch(3), Epoch(3));
    let forked = Configuration { epoch, reign, fork: u64::MAX, ..first.clone() };
    for message in [
        MemberMessage::Prepare { ballot: far },
        MemberMessage::Refused { ballot, reason: RefuseReason::Promised(far) },
        MemberMessage::Learn { ballot, configuration: Box::new(next) },
        MemberMessage::Learn { ballot, configuration: Box::new(forked) },
        MemberMessage::Release { ballot: far },
    ] {
        node.hear(2, 1, message);
    }
    assert_eq!(node.member.status().role, RoleStatus::Primary);
    let known = node.member.status().configuration.map(|known| known.epoch);
    assert_eq!(known, Some(Epoch(2)));
}

/// Its disk lost something while it was all there was, and its log does not name it any more; it may take no record either.
#[test]
fn a_copy_that_does_not_know_what_it_lost_is_worthless_once_another_one_is_there() {
    for (takes_records, starts_anew) in [(true, false), (false, false), (true, true)] {
        let mut world = World::new(3, 2, 1, 0);
        world.connect_all();
        world.set_clients(1, 1);
        world.run_until("node 1 serves", |world| world.answers(1));
        world.crash(2);
        world.run_until("node 1 is alone", |world| world.in_sync() == [1]);
        if !takes_records {
            world.store_fails.insert(1);
        }
        world.shard_says(1, FromShard::DiskFailed);
        world.shard_says(1, FromShard::Unsure);
        world.wait(3);
        assert_eq!(world.in_sync(), [1], "it is all there is");
        if starts_anew {
            world.crash(1);
            world.start(1);
        }
        world.start(2);
        world.connect_all();
        let is_void =
            |known: &Configuration| known.member(NodeId(1)).is_some_and(|own| own.is_void());
        world.run_until("node 1 is worthless", |world| is_void(&world.newest()));
        assert_eq!(world.in_sync(), [2]);
    }
}

#[test]
fn who_asks_for_a_majority_while_a_replica_is_away_is_told_why_not() {
    let options = Options { quorum: Quorum::Off, ..Options::default() };
    let mut world = World::without_quorum(3, 3, options);
    world.set_clients(1, 1);
    world.run_until("node 1 serves", |world| world.answers(1));
    world.wait(10);
    world.crash(3);
    let change = OptionsChange { quorum: Some(Quorum::Majority), ..OptionsChange::default() };
    let id = world.operate(1, Operation::SetOptions(change.clone()));
    world.run_until("it is answered", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Err(OperationError::ReplicaAway));
    world.start(3);
    world.connect_all();
    let id = world.operate(1, Operation::SetOptions(change));
    world.run_until("it is answered", |world| world.is_done(1, id));
    assert_eq!(world.node(1).done[&id], Ok(()));
}

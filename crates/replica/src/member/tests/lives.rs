//! Tests of what shows that a disk went back in time.

use super::network::{MS, World, voter};
use super::register::Alone;
use super::serving;
use crate::disk::Record;
use crate::door::{FromShard, MemberInput, MemberOutput};
use crate::member::lives::is_before;
use crate::member::{Memory, RoleStatus};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Epoch, Incarnation, Instant, NodeId, SessionId};
use wire::{LIVES_MAX, Life, MemberMessage, Seen};

const OPEN: u64 = u64::MAX;

fn life(number: u64, process: u64, writes: u64) -> Life {
    Life { number, process, writes }
}

fn seen(node: u16, life: Life, epoch: u64) -> Seen {
    Seen { node: NodeId(node), voter: voter(node), life, epoch: Epoch(epoch) }
}

/// Says hello to `alone` as node 3, in a new session, and returns what it is answered.
fn hello(alone: &mut Alone, session: u64, lives: &[Life]) -> Vec<MemberMessage> {
    let (peer, session) = (NodeId(3), SessionId(session));
    alone.step(MemberInput::PeerUp { peer, session });
    let message = MemberMessage::Hello {
        known: None,
        voter: voter(3),
        incarnation: Incarnation(3),
        lives: Vec::from(lives),
        seen: None,
        process: lives.last().map_or(0, |life| life.process),
        attached: true,
        feature_level: wire::FEATURE_LEVEL,
    };
    alone.step(MemberInput::Frame { peer, session, message })
}

fn heartbeat(seen: Seen) -> MemberMessage {
    MemberMessage::Heartbeat {
        ballot: Ballot { round: 9, node: NodeId(1) },
        epoch: Epoch(1),
        sent: Instant(5),
        generation: (0, 0),
        seen: Vec::from([seen]),
    }
}

/// What a node was told of its own past that it does not have.
fn claims(sent: &[MemberMessage]) -> Vec<Seen> {
    let claim = |message: &MemberMessage| match message {
        MemberMessage::Hello { seen, .. } => *seen,
        _ => None,
    };
    sent.iter().filter_map(claim).collect()
}

fn own_voter(sent: &[MemberMessage]) -> Option<base::VoterId> {
    let mut hellos = sent.iter().filter_map(|message| match message {
        MemberMessage::Hello { voter, .. } => Some(*voter),
        _ => None,
    });
    hellos.next_back()
}

#[test]
fn an_identity_is_not_given_up_because_the_one_before_it_is_heard_of_late() {
    let first = World::new(1, 3, 0, 0).bootstrap.clone();
    let mut node = Alone::new(1, &first);
    let ballot = Ballot { round: 9, node: NodeId(2) };
    node.meet(2, 1, Some((Ballot::default(), Box::new(first.clone()))));
    // Node 3 took a new identity, and the primary has heard of it.
    let mut next = first.clone();
    next.epoch = Epoch(first.epoch.0 + 1);
    next.members[2].voter = base::VoterId(4711);
    next.members[2].in_sync = false;
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(next) });
    let life = Life { number: 1, process: 5, writes: u64::MAX };
    // What node 3 said when it started was slow.
    hello(&mut node, 2, &[life]);
    let (peer, session) = (NodeId(3), SessionId(2));
    let message = MemberMessage::Hello {
        known: None,
        voter: base::VoterId(4711),
        incarnation: Incarnation(3),
        lives: Vec::from([life]),
        seen: None,
        process: 5,
        attached: true,
        feature_level: wire::FEATURE_LEVEL,
    };
    let sent = node.step(MemberInput::Frame { peer, session, message });
    assert_eq!(claims(&sent), [], "nothing is missing in the history of the new one");
}

#[test]
fn a_disk_that_went_back_in_time_becomes_a_new_member() {
    let mut world = serving(16, 3, 0, 0);
    let old = world.node(2).disk.clone();
    world.crash(2);
    world.start(2);
    world.wait(3);
    world.crash(2);
    world.node_mut(2).disk = old;
    world.start(2);
    world.run_until("node 2 has a new identity", |world| {
        world.newest().member(NodeId(2)).is_some_and(|member| member.voter != voter(2))
    });
    world.run_until("node 2 is in sync", |world| world.in_sync() == [1, 2, 3]);
    assert!(world.node(2).marks.contains("member: own disk went back in time"));
}

/// Node 1's disk is one from before all that the client on node 4 wrote; the others stood still with what they know.
/// Only node 2 has that, and is away; node 3 knows that there was more, and never meets node 1.
fn a_primary_that_knows_nothing(world: &mut World) {
    let old = world.node(1).disk.clone();
    world.crash(1);
    world.start(1);
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2]);
    world.wait(3);
    for node in [1, 2, 4] {
        world.crash(node);
    }
    world.node_mut(1).disk = old;
    world.block(1, 3);
}

#[test]
fn a_vote_that_went_back_in_time_is_not_counted_by_who_never_heard_of_its_node() {
    for order in [[1, 4], [4, 1]] {
        let mut world = serving(16, 2, 1, 1);
        a_primary_that_knows_nothing(&mut world);
        for node in order {
            world.start(node);
        }
        world.set_clients(4, 1);
        world.shard_says(4, FromShard::Wants);
        world.wait(10);
        assert_eq!(world.in_sync(), [1, 2], "{order:?}: the copy that has everything was given up");
        world.start(2);
        world.run_until("the other copy leads the way", |world| world.in_sync().contains(&2));
        world.run_until("it is copied", |world| {
            world.newest().member(NodeId(1)).is_some_and(|member| member.voter != voter(1))
        });
    }
}

#[test]
fn a_promise_is_not_counted_any_more_when_others_tell_that_its_voter_went_back() {
    let first = World::new(1, 3, 0, 0).bootstrap;
    let known = || Some((Ballot::default(), Box::new(first.clone())));
    let record = Record::first(&first, NodeId(1), 1).expect("a member");
    for told in [false, true] {
        let mut node = Alone::with(1, record.clone(), 1);
        node.step(MemberInput::Shard {
            shard: 0,
            message: FromShard::Installed { epoch: first.epoch },
        });
        node.meet(2, 20, known());
        node.meet(3, 30, known());
        let asked = |sent: Vec<MemberMessage>| {
            sent.iter().find_map(|message| match message {
                MemberMessage::Prepare { ballot } => Some(*ballot),
                _ => None,
            })
        };
        let mut ballot = asked(node.step(MemberInput::Clients { count: 1 }));
        for _ in 0..1000 {
            if ballot.is_some() {
                break;
            }
            node.now = node.now + base::Duration(10 * MS);
            ballot = asked(node.step(MemberInput::Wake));
        }
        let ballot = ballot.expect("it asks to be primary");
        // With its own promise that of node 2 is a majority; its disk is slow.
        node.slow = true;
        let promise = MemberMessage::Promise { ballot, voter: voter(2), accepted: None };
        node.hear(2, 20, promise);
        let own = node.held.expect("its own promise");
        if told {
            let seen = Vec::from([seen(2, life(19, 4711, 3), 1)]);
            node.hear(3, 30, MemberMessage::Heard { seen });
        }
        let sent = node.step(MemberInput::Stored { number: own, ok: true });
        let proposes = sent.iter().any(|message| matches!(message, MemberMessage::Accept { .. }));
        assert_eq!(proposes, !told, "{sent:?}");
    }
}

/// Node 1 of three replicas, its promote proposed on its own promise and that of node 2.
fn proposing() -> (Alone, Ballot, Epoch) {
    let first = World::new(1, 3, 0, 0).bootstrap;
    let known = || Some((Ballot::default(), Box::new(first.clone())));
    let record = Record::first(&first, NodeId(1), 1).expect("a member");
    let mut node = Alone::with(1, record, 1);
    node.step(MemberInput::Shard {
        shard: 0,
        message: FromShard::Installed { epoch: first.epoch },
    });
    node.meet(2, 20, known());
    node.meet(3, 30, known());
    let asked = |sent: Vec<MemberMessage>| {
        sent.iter().find_map(|message| match message {
            MemberMessage::Prepare { ballot } => Some(*ballot),
            _ => None,
        })
    };
    let mut ballot = asked(node.step(MemberInput::Clients { count: 1 }));
    for _ in 0..1000 {
        if ballot.is_some() {
            break;
        }
        node.now = node.now + base::Duration(10 * MS);
        ballot = asked(node.step(MemberInput::Wake));
    }
    let ballot = ballot.expect("it asks to be primary");
    let sent = node.hear(2, 20, MemberMessage::Promise { ballot, voter: voter(2), accepted: None });
    let epoch = sent.iter().find_map(|message| match message {
        MemberMessage::Accept { configuration, .. } => Some(configuration.epoch),
        _ => None,
    });
    (node, ballot, epoch.expect("it proposes its promote"))
}

fn is_primary_with(mut node: Alone, ballot: Ballot, epoch: Epoch, accepted: &[u16]) -> bool {
    for &peer in accepted {
        let message = MemberMessage::Accepted { ballot, epoch, voter: voter(peer) };
        node.hear(peer, u64::from(peer) * 10, message);
    }
    node.member.status().role == RoleStatus::Primary
}

#[test]
fn a_promote_is_given_up_when_others_tell_that_a_vote_it_rests_on_went_back() {
    for gone in [None, Some(1), Some(2)] {
        let (mut node, ballot, epoch) = proposing();
        if let Some(gone) = gone {
            // What that one promised not to accept, and what it had accepted, it may have forgotten.
            let seen = Vec::from([seen(gone, life(19, 4711, 3), 1)]);
            node.hear(3, 30, MemberMessage::Heard { seen });
        }
        let primary = is_primary_with(node, ballot, epoch, &[2, 3]);
        assert_eq!(primary, gone.is_none(), "{gone:?}");
    }
}

#[test]
fn a_promote_is_given_up_when_a_vote_it_rests_on_comes_from_another_memory() {
    for anew in [false, true] {
        let (mut node, ballot, epoch) = proposing();
        let (peer, session) = (NodeId(2), SessionId(if anew { 21 } else { 20 }));
        if anew {
            node.step(MemberInput::PeerDown { peer, session: SessionId(20) });
            node.step(MemberInput::PeerUp { peer, session });
        }
        let message = MemberMessage::Hello {
            known: None,
            voter: base::VoterId(4711),
            incarnation: Incarnation(4711),
            lives: Vec::from([life(1, 20, OPEN)]),
            seen: None,
            process: 20,
            attached: true,
            feature_level: wire::FEATURE_LEVEL,
        };
        node.step(MemberInput::Frame { peer, session, message });
        assert!(!is_primary_with(node, ballot, epoch, &[3]), "in a new session: {anew}");
    }
}

#[test]
fn an_identity_that_is_given_up_says_nothing_more_as_a_voter() {
    let mut node = Alone::new(2, &World::new(1, 2, 1, 1).bootstrap);
    node.meet(1, 1, None);
    node.meet(4, 2, None);
    node.slow = true;
    // Something to store comes first, so that the promise waits.
    let ballot = Ballot { round: 10, node: NodeId(4) };
    node.hear(4, 2, MemberMessage::Prepare { ballot });
    let first = node.held.expect("its record is on its way");
    node.hear(1, 1, MemberMessage::Heard { seen: Vec::from([seen(2, life(19, 4711, 3), 1)]) });
    node.slow = false;
    let sent = node.step(MemberInput::Stored { number: first, ok: true });
    let promised = sent.iter().any(|message| matches!(message, MemberMessage::Promise { .. }));
    assert!(!promised, "what it promised it may have promised to another before: {sent:?}");
    assert_ne!(own_voter(&sent), Some(voter(2)), "it says who it is now");
}

#[test]
fn what_others_remember_is_heard_also_while_the_present_life_is_being_named() {
    let mut node = Alone::new(1, &World::new(1, 3, 0, 0).bootstrap);
    node.slow = true;
    node.step(MemberInput::PeerUp { peer: NodeId(2), session: SessionId(1) });
    let named = node.held.expect("its life is on its way to the record");
    node.hear(2, 1, MemberMessage::Heard { seen: Vec::from([seen(3, life(19, 4711, 3), 1)]) });
    node.slow = false;
    node.step(MemberInput::Stored { number: named, ok: true });
    let sent = hello(&mut node, 2, &[life(18, 5, OPEN)]);
    assert_eq!(claims(&sent), [seen(3, life(19, 4711, 3), 1)], "{sent:?}");
}

#[test]
fn a_voter_tells_what_it_remembers_before_it_promises() {
    let mut node = Alone::new(2, &World::new(1, 2, 1, 1).bootstrap);
    node.meet(4, 1, None);
    // What it hears after they met.
    node.meet(1, 2, None);
    let ballot = Ballot { round: 10, node: NodeId(4) };
    let told = node.hear(4, 1, MemberMessage::Prepare { ballot });
    let [MemberMessage::Heard { seen }, MemberMessage::Promise { .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(seen.iter().any(|seen| seen.node == NodeId(1) && seen.life.process == 2), "{seen:?}");
}

#[test]
fn who_greets_tells_what_it_remembers_of_the_others() {
    let mut node = Alone::new(2, &World::new(1, 2, 1, 1).bootstrap);
    node.meet(1, 2, None);
    // One that leads already may have counted a restored disk, and those who remember may not reach that disk.
    let told = node.step(MemberInput::PeerUp { peer: NodeId(4), session: SessionId(1) });
    let [MemberMessage::Hello { .. }, MemberMessage::Heard { seen }, ..] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(seen.iter().any(|seen| seen.node == NodeId(1) && seen.life.process == 2), "{seen:?}");
}

#[test]
fn a_disk_that_went_back_is_found_however_often_it_was_started_before_it_met_anybody() {
    for (node, starts) in [(2, 1), (2, 2), (2, 5), (4, 3)] {
        let mut world = serving(16, 3, 2, 0);
        let old = world.node(node).disk.clone();
        world.crash(node);
        world.start(node);
        world.wait(3);
        world.crash(node);
        world.node_mut(node).disk = old;
        world.split(&[node]);
        for _ in 0..starts {
            world.start(node);
            world.wait(1);
            world.crash(node);
        }
        world.start(node);
        world.heal();
        world.run_until("it has a new identity", |world| {
            let voter_now = world.newest().member(NodeId(node)).map(|member| member.voter);
            voter_now != Some(voter(node)) && voter_now != Some(base::VoterId(0))
        });
        world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
        let resynced = world.node(1).shards.synced.contains(&NodeId(node));
        assert!(resynced || node == 4, "it was not copied");
        let disk = world.node(node).disk.as_ref().expect("a voter");
        assert!(world.newest().member(NodeId(node)).is_some_and(|own| own.voter == disk.voter));
    }
}

#[test]
fn a_peer_that_restarts_or_reconnects_is_not_taken_for_one_that_went_back() {
    let mut world = serving(16, 3, 0, 0);
    for round in 0..6 {
        world.wait(2);
        if round % 2 == 0 {
            world.disconnect(1, 2);
            world.disconnect(2, 3);
        } else {
            world.crash(2);
            world.start(2);
        }
    }
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    assert_eq!(world.newest().member(NodeId(2)).map(|member| member.voter), Some(voter(2)));
}

#[test]
fn a_node_that_starts_often_while_it_is_alone_keeps_its_identity() {
    let mut world = serving(16, 3, 0, 0);
    world.crash(2);
    world.split(&[2]);
    for _ in 0..LIVES_MAX + 10 {
        world.start(2);
        world.wait(1);
        world.crash(2);
    }
    world.start(2);
    world.heal();
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    assert_eq!(world.newest().member(NodeId(2)).map(|member| member.voter), Some(voter(2)));
}

#[test]
fn who_was_away_for_more_lives_than_are_named_takes_nobody_for_gone_back() {
    let mut world = serving(16, 3, 0, 0);
    world.crash(3);
    world.run_until("node 3 is out", |world| world.in_sync() == [1, 2]);
    for _ in 0..LIVES_MAX + 10 {
        for node in [1, 2] {
            world.crash(node);
            world.run(20 * MS);
            world.start(node);
            world.run(500 * MS);
        }
    }
    world.start(3);
    world.run_until("all are in sync", |world| world.in_sync() == [1, 2, 3]);
    for node in [1, 2, 3] {
        assert_eq!(
            world.newest().member(NodeId(node)).map(|member| member.voter),
            Some(voter(node))
        );
    }
}

#[test]
fn who_hears_of_a_disk_that_went_back_while_it_starts_says_so_before_anything_else() {
    let world = World::new(1, 2, 1, 0);
    let mut record = Record::first(&world.bootstrap, NodeId(2), 1).expect("a member");
    record.seen.push(seen(3, life(1, 10, 5), 1));
    let mut alone = Alone::with(2, record, 0);
    alone.slow = true;
    // The first that hears of this life waits until it is named; its own hello does not.
    let told = hello(&mut alone, 1, &[life(1, 11, OPEN)]);
    assert!(told.is_empty(), "{told:?}");
    alone.slow = false;
    let number = alone.held.expect("its name is on the way to the disk");
    let told = alone.step(MemberInput::Stored { number, ok: true });
    assert!(claims(&told).iter().any(|seen| seen.life.process == 10), "{told:?}");
}

#[test]
fn a_history_has_gone_back_without_the_life_that_was_heard_of_or_with_less_of_it() {
    let lives = [life(3, 30, 12), life(5, 50, 20), life(8, 80, OPEN)];
    let before = |life| is_before(&lives, Epoch(9), &seen(3, life, 1));
    assert!(!before(life(5, 50, 20)) && !before(life(8, 80, 99)) && !before(life(3, 30, 0)));
    assert!(before(life(5, 50, 21)), "its next start found less");
    assert!(before(life(5, 51, 0)), "the same number, another process");
    assert!(before(life(7, 70, 0)), "a life between two of them");
    assert!(before(life(9, 90, 0)), "a later one");
    assert!(before(life(1, 10, 0)), "an earlier one, and all are named");
    assert!(is_before(&[], Epoch(9), &seen(3, life(1, 10, 0), 1)));
}

#[test]
fn a_life_older_than_those_named_counts_as_lost_unless_its_node_knows_a_later_configuration() {
    let many = LIVES_MAX as u64;
    let lives: Vec<Life> = (0..many).map(|at| life(100 + at, at, 7)).collect();
    let old = seen(3, life(50, 4711, 1), 6);
    assert!(is_before(&lives, Epoch(6), &old));
    assert!(!is_before(&lives, Epoch(7), &old));
    assert!(is_before(&lives[1..], Epoch(7), &old), "there is room for it, and it is not there");
    assert!(is_before(&lives, Epoch(7), &seen(3, life(120, 4711, 1), 6)));
}

#[test]
fn a_copy_of_a_disk_and_its_original_are_not_both_believed() {
    let world = World::new(1, 2, 1, 0);
    let mut alone = Alone::new(2, &world.bootstrap);
    assert!(claims(&hello(&mut alone, 1, &[life(1, 10, OPEN)])).is_empty());
    assert!(claims(&hello(&mut alone, 2, &[life(1, 10, 5), life(2, 20, OPEN)])).is_empty());
    // The original runs on, or starts as often as the copy.
    for other in [&[life(1, 10, OPEN)][..], &[life(1, 10, 5), life(2, 21, OPEN)][..]] {
        let told = claims(&hello(&mut alone, 3, other));
        assert!(told.iter().any(|seen| seen.life.process == 20), "{told:?}");
    }
    assert!(claims(&hello(&mut alone, 4, &[life(1, 10, 5), life(2, 20, OPEN)])).is_empty());
}

#[test]
fn what_others_tell_neither_hides_what_was_heard_here_nor_counts_less() {
    let world = World::new(1, 2, 1, 0);
    let mut alone = Alone::new(2, &world.bootstrap);
    alone.meet(1, 1, None);
    hello(&mut alone, 2, &[life(1, 10, 5), life(2, 20, OPEN)]);
    // Node 1 met the disk when it had gone back, and knew nothing of it.
    alone.hear(1, 1, heartbeat(seen(3, life(9, 90, 40), 1)));
    let back = [life(1, 10, 5), life(9, 90, OPEN)];
    let told = claims(&hello(&mut alone, 3, &back));
    assert!(told.iter().any(|seen| seen.life.process == 20), "{told:?}");

    // This node remembers an old life only; then it is told of a later one that the disk has not.
    let mut alone = Alone::new(2, &world.bootstrap);
    alone.meet(1, 1, None);
    hello(&mut alone, 2, &[life(1, 10, OPEN)]);
    assert!(claims(&hello(&mut alone, 3, &back)).is_empty(), "nothing speaks against it yet");
    let told = claims(&alone.hear(1, 1, heartbeat(seen(3, life(2, 20, 6), 1))));
    assert!(told.iter().any(|seen| seen.life.process == 20), "{told:?}");
}

#[test]
fn a_node_that_is_told_of_a_life_it_did_not_have_takes_a_new_identity() {
    let world = World::new(1, 2, 1, 0);
    for node in [2, 3] {
        let mut alone = Alone::new(node, &world.bootstrap);
        alone.meet(1, 1, None);
        let sent = alone.hear(1, 1, heartbeat(seen(node, life(1, 7, 1), 1)));
        assert_eq!(own_voter(&sent), None, "that is its present life");
        assert_eq!(alone.own_kept, Some(true));
        let sent = alone.hear(1, 1, heartbeat(seen(node, life(1, 8, 1), 1)));
        assert!(own_voter(&sent).is_some_and(|own| own != voter(node)), "{sent:?}");
        assert_eq!(alone.own_kept, Some(false), "its shards serve nothing of it any more");
        // What is told of the identity that it had counts no more.
        let sent = alone.hear(1, 1, heartbeat(seen(node, life(1, 8, 1), 1)));
        assert_eq!(own_voter(&sent), None);
    }
}

#[test]
fn what_a_target_of_a_resync_reported_is_on_record_before_its_bits_are_cleared() {
    let mut world = serving(16, 3, 0, 0);
    world.crash(3);
    world.run_until("node 3 is out", |world| world.in_sync() == [1, 2]);
    world.node_mut(1).shards.mute_sync = true;
    world.start(3);
    world.run_until("it is told to be resynced", |world| {
        world.node(1).shards.synced.contains(&NodeId(3))
    });
    let reported = |world: &World| {
        let record = world.node(1).disk.as_ref().expect("a replica");
        record.seen.iter().filter(|seen| seen.node == NodeId(3)).map(|seen| seen.life.writes).max()
    };
    for (sequence, writes) in [(7, 50), (8, 90)] {
        world.say(3, &FromShard::Logged { writes });
        world.run(20 * MS);
        let session = world.session(1, 3);
        world.say(1, &FromShard::Flushed { peer: NodeId(3), session, sequence });
        world.run_until("it is vouched for", |world| {
            world.node(1).shards.vouched.contains(&sequence)
        });
        assert!(reported(&world) > Some(writes), "on the disk of node 1");
    }
}

/// Its process was killed, and the next one has met the primary. The session with the one before is not over here yet.
#[test]
fn a_peer_that_was_started_anew_is_not_said_to_have_gone_back_in_time() {
    let notices = |heard: Life| {
        let first = World::new(1, 3, 0, 0).bootstrap.clone();
        let mut node = Alone::new(2, &first);
        node.meet(1, 1, Some((Ballot::default(), Box::new(first))));
        hello(&mut node, 2, &[life(3, 33, 40), life(4, 44, OPEN)]);
        let message = heartbeat(seen(3, heard, 1));
        let (peer, session) = (NodeId(1), SessionId(1));
        let mut out = Vec::new();
        node.member.step(node.now, MemberInput::Frame { peer, session, message }, &mut out);
        let status = node.member.status();
        let memory = status.peers.iter().find(|one| one.node == NodeId(3)).expect("met").memory;
        let told = out.iter().any(|output| matches!(output, MemberOutput::Notice(_)));
        (told, memory)
    };
    assert_eq!(notices(life(4, 44, 7)), (false, Some(Memory::Kept)), "as it says itself");
    assert_eq!(notices(life(5, 55, 7)), (false, Some(Memory::Kept)), "it was started anew");
    let back = (true, Some(Memory::WentBack));
    assert_eq!(notices(life(3, 33, 41)), back, "it has forgotten a write");
    assert_eq!(notices(life(2, 22, 7)), back, "it does not know that life");
}

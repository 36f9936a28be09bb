//! Tests of what the register and the lease promise, where only a certain order of events shows it.

use super::network::{MS, World, voter};
use super::{invalidated, serving};
use crate::disk::Record;
use crate::door::{FromShard, MemberInput, MemberOutput, Operation, Timing, ToShard};
use crate::member::{Member, MemberSetup, RoleStatus};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Ballot, Duration, Epoch, Incarnation, Instant, NodeId, SessionId, VoterId};
use wire::{
    Configuration, Life, MemberKind, MemberMessage, Options, Quorum, RefuseReason, Stretch,
};

/// A member by itself, whose disk answers at once, or when it is told. Nodes 1 and 2 are in-sync replicas, 3
/// is a witness.
pub(super) struct Alone {
    node: NodeId,
    pub(super) member: Member,
    pub(super) now: Instant,
    /// Stores wait.
    pub(super) slow: bool,
    pub(super) held: Option<u64>,
    installed: Vec<(Epoch, bool)>,
    /// Configurations with which its shards heard that they leave the history they were on.
    pub(super) left: Vec<Epoch>,
    /// What the shards were last told of this node's own copy.
    pub(super) own_kept: Option<bool>,
}

impl Alone {
    pub(super) fn new(node: u16, configuration: &Configuration) -> Alone {
        let record = Record::first(configuration, NodeId(node), 1).expect("a member");
        Alone::with(node, record, 0)
    }

    pub(super) fn with(node: u16, record: Record, shards: u16) -> Alone {
        let setup = MemberSetup {
            node: NodeId(node),
            process: 7,
            shards,
            timing: Timing::default(),
            verify_sectors: 1 << 18,
            feature_level: wire::FEATURE_LEVEL,
            seed: 1,
            record: Some(record),
            attached: true,
            found_writes: 0,
            bootstrap: None,
        };
        let now = Instant(1_000 * MS);
        let member = Member::new(now, setup);
        let (held, installed, left) = (None, Vec::new(), Vec::new());
        let (node, slow, own_kept) = (NodeId(node), false, None);
        let mut alone = Alone { node, member, now, slow, held, installed, left, own_kept };
        alone.step(MemberInput::Wake);
        for shard in 0..shards {
            alone.step(MemberInput::Shard { shard, message: FromShard::Started });
        }
        alone
    }

    /// One step; what it sends, with what follows when its record is stored.
    pub(super) fn step(&mut self, input: MemberInput) -> Vec<MemberMessage> {
        let mut sent = Vec::new();
        let mut inputs = Vec::from([input]);
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.member.step(self.now, input, &mut out);
            for output in out {
                match output {
                    MemberOutput::Store { number, .. } if self.slow => self.held = Some(number),
                    MemberOutput::Store { number, .. } => {
                        inputs.push(MemberInput::Stored { number, ok: true });
                    }
                    MemberOutput::Shards(ToShard::Install {
                        configuration,
                        reigns,
                        leaves,
                        ..
                    }) => {
                        self.installed.push((configuration.epoch, reigns));
                        self.left.extend(leaves.then_some(configuration.epoch));
                    }
                    MemberOutput::Shards(ToShard::PeerReady { peer, kept, .. })
                        if peer == self.node =>
                    {
                        self.own_kept = Some(kept);
                    }
                    MemberOutput::Send { message, .. } => sent.push(message),
                    _ => {}
                }
            }
        }
        sent
    }

    /// A session begins and the peer says who it is.
    pub(super) fn meet(
        &mut self,
        peer: u16,
        session: u64,
        known: Option<(Ballot, Box<Configuration>)>,
    ) {
        self.meet_as(peer, session, known, voter(peer));
    }

    /// Likewise, with a memory of that name.
    pub(super) fn meet_as(
        &mut self,
        peer: u16,
        session: u64,
        known: Option<(Ballot, Box<Configuration>)>,
        voter: VoterId,
    ) -> Vec<MemberMessage> {
        let (peer, session) = (NodeId(peer), SessionId(session));
        self.step(MemberInput::PeerUp { peer, session });
        let message = MemberMessage::Hello {
            known,
            voter,
            incarnation: Incarnation(u64::from(peer.0)),
            lives: Vec::from([Life { number: session.0, process: session.0, writes: u64::MAX }]),
            seen: None,
            process: session.0,
            attached: true,
            feature_level: wire::FEATURE_LEVEL,
        };
        self.step(MemberInput::Frame { peer, session, message })
    }

    pub(super) fn hear(
        &mut self,
        peer: u16,
        session: u64,
        message: MemberMessage,
    ) -> Vec<MemberMessage> {
        let (peer, session) = (NodeId(peer), SessionId(session));
        self.step(MemberInput::Frame { peer, session, message })
    }
}

#[test]
fn a_ballot_that_an_earlier_process_of_its_node_used_is_not_promised_again() {
    let world = World::new(1, 2, 1, 0);
    let mut voter = Alone::new(2, &world.bootstrap);
    let ballot = Ballot { round: 5, node: NodeId(4) };
    voter.meet(4, 1, None);
    let answer = voter.hear(4, 1, MemberMessage::Prepare { ballot });
    assert!(matches!(answer[..], [.., MemberMessage::Promise { .. }]), "{answer:?}");
    // A new process, which does not know what the one before it did under this ballot.
    voter.meet(4, 2, None);
    let answer = voter.hear(4, 2, MemberMessage::Prepare { ballot });
    let reason = RefuseReason::Promised(ballot);
    assert_eq!(answer, [MemberMessage::Refused { ballot, reason }]);
}

#[test]
fn who_learned_of_another_side_while_asking_does_not_go_on_from_what_it_had_accepted() {
    let options = Options { quorum: Quorum::Off, ..Options::default() };
    let first = World::without_quorum(1, 3, options).bootstrap;
    let third = Ballot { round: 1, node: NodeId(3) };
    let reign = |epoch| Configuration {
        epoch: Epoch(epoch),
        reign: Epoch(2),
        primary: Some(NodeId(3)),
        ..first.clone()
    };
    let mut record = Record::first(&first, NodeId(1), 1).expect("a member");
    // Node 3 proposed this, and went on without it, alone.
    record.accepted = Some((third, Box::new(reign(2))));
    let mut side = reign(3);
    side.lineage.push(Stretch { id: 77, ballot: Ballot::default(), epoch: Epoch(1), at_ms: 0 });
    for member in side.members.iter_mut().filter(|member| member.node != NodeId(3)) {
        member.in_sync = false;
    }
    let mut alone = Alone::with(1, record, 1);
    alone.meet(2, 1, None);
    alone.now = alone.now + Duration(10_000 * MS);
    let asked = alone.step(MemberInput::Clients { count: 1 });
    assert!(matches!(asked[..], [.., MemberMessage::Prepare { .. }]), "{asked:?}");
    alone.hear(2, 1, MemberMessage::Learn { ballot: third, configuration: Box::new(side) });
    alone.step(MemberInput::PeerDown { peer: NodeId(2), session: SessionId(1) });
    for _ in 0..100 {
        alone.now = alone.now + Duration(100 * MS);
        alone.step(MemberInput::Wake);
    }
    assert_eq!(alone.installed.last(), Some(&(Epoch(3), false)), "{:?}", alone.installed);
}

#[test]
fn a_reign_of_an_earlier_process_is_not_taken_for_the_one_that_is_being_proposed() {
    let world = World::new(1, 2, 1, 0);
    let record = Record::first(&world.bootstrap, NodeId(1), 1).expect("a member");
    let mut node = Alone::with(1, record, 1);
    node.meet(2, 1, None);
    // What the process before this one committed is learned, but not stored yet.
    node.slow = true;
    let (epoch, primary) = (Epoch(2), Some(NodeId(1)));
    let old = Configuration { epoch, reign: epoch, primary, ..world.bootstrap.clone() };
    let ballot = Ballot { round: 1, node: NodeId(1) };
    node.hear(2, 1, MemberMessage::Learn { ballot, configuration: Box::new(old) });
    node.meet(3, 2, None);
    let sent = node.step(MemberInput::Clients { count: 1 });
    let [MemberMessage::Prepare { ballot }, ..] = sent[..] else { panic!("{sent:?}") };
    for (peer, session) in [(2, 1), (3, 2)] {
        let promise = MemberMessage::Promise { ballot, voter: voter(peer), accepted: None };
        node.hear(peer, session, promise);
    }
    assert_eq!(node.member.status().role, RoleStatus::Asking, "its promote is on its way");
    node.slow = false;
    let number = node.held.expect("a record is on its way");
    node.step(MemberInput::Stored { number, ok: true });
    assert_eq!(node.installed.last(), Some(&(Epoch(2), false)));
}

#[test]
fn a_removed_replica_is_waited_for_until_those_that_stay_are_known_to_be_kept() {
    for seed in 0..20 {
        // Node 4 serves as a client of both replicas.
        let mut world = World::new(seed, 2, 1, 1);
        world.connect_all();
        world.set_clients(4, 1);
        world.run_until("node 4 serves", |world| world.answers(4));
        world.wait(1);
        world.power_cut(2);
        world.operate(4, Operation::RemoveMember { node: NodeId(1) });
        world.wait(1);
        world.start(2);
        world.run_until("both are in sync", |world| world.in_sync() == [1, 2] && world.answers(4));
        let kept = world.epochs.values().all(|known| known.is_in_sync(NodeId(1)));
        assert!(kept, "seed {seed}: node 1 had everything and was given up");
    }
}

#[test]
fn a_lease_from_voters_that_were_replaced_since_keeps_others_from_serving() {
    for seed in 0..20 {
        let mut world = serving(seed, 2, 1, 0);
        world.add_node(4, Some(Record::empty(voter(4), Incarnation(0), 1)), true);
        world.connect_all();
        world.wait(1);
        // After a restart, nodes 2 and 4 renew no lease for a while, but accept.
        let since = world.now;
        for node in [2, 4] {
            world.crash(node);
            world.start(node);
        }
        world.run_until("node 2 is out", |world| world.in_sync() == [1]);
        world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
        world.run(since + 1_850 * MS - world.now);
        world.operate(1, Operation::RemoveMember { node: NodeId(3) });
        let kind = MemberKind::Witness;
        world.operate(1, Operation::AddMember { node: NodeId(4), kind, voter: voter(4) });
        world.run(100 * MS);
        world.split(&[1]);
        world.set_clients(2, 1);
        // Two that would answer at once are noticed by the world.
        world.wait(10);
    }
}

#[test]
fn a_primary_whose_record_cannot_be_stored_goes_on_as_a_client() {
    let mut world = serving(21, 3, 0, 0);
    world.store_fails.insert(1);
    world.crash(3);
    world.wait(1);
    world.start(3);
    world.run_until("node 1 is out", |world| !world.in_sync().contains(&1));
    world.run_until("somebody serves", |world| (1..=3).any(|node| world.answers(node)));
    world.wait(5);
    world.run_until("the others are in sync", |world| {
        world.in_sync() == [2, 3] && (1..=3).any(|node| world.answers(node))
    });
}

#[test]
fn a_replica_that_lost_its_cache_does_not_accept_an_exclude_before_it_knows_what_it_changes() {
    let world = World::new(1, 2, 1, 0);
    let ballot = Ballot { round: 5, node: NodeId(4) };
    let mut record = Record::first(&world.bootstrap, NodeId(2), 1).expect("a member");
    record.incarnation = Incarnation(99);
    let mut reborn = Alone::with(2, record, 0);
    reborn.meet(4, 1, None);
    let promote = Configuration {
        epoch: Epoch(2),
        reign: Epoch(2),
        primary: Some(NodeId(4)),
        ..world.bootstrap.clone()
    };
    let mut exclude = Configuration { epoch: Epoch(3), ..promote.clone() };
    exclude.members[0].in_sync = false;
    let accept = MemberMessage::Accept { ballot, configuration: Box::new(exclude) };
    assert_eq!(reborn.hear(4, 1, accept.clone()), []);
    // A promote carries what was found and is taken as it is; then it knows.
    let configuration = Box::new(promote);
    let taken =
        reborn.hear(4, 1, MemberMessage::Accept { ballot, configuration: configuration.clone() });
    assert!(matches!(taken[..], [MemberMessage::Accepted { .. }]), "{taken:?}");
    reborn.hear(4, 1, MemberMessage::Learn { ballot, configuration });
    assert_eq!(reborn.hear(4, 1, accept), []);
}

#[test]
fn an_older_value_of_the_same_ballot_is_not_taken_after_a_newer_one() {
    let world = World::new(1, 2, 1, 0);
    let ballot = Ballot { round: 5, node: NodeId(4) };
    let mut voter = Alone::new(2, &world.bootstrap);
    voter.meet(4, 1, None);
    let (epoch, primary) = (Epoch(2), Some(NodeId(4)));
    let promote = Configuration { epoch, reign: epoch, primary, ..world.bootstrap.clone() };
    let newer = Configuration { epoch: Epoch(3), ..promote.clone() };
    let accept = |value: &Configuration| MemberMessage::Accept {
        ballot,
        configuration: Box::new(value.clone()),
    };
    let taken = voter.hear(4, 1, accept(&newer));
    assert!(matches!(taken[..], [MemberMessage::Accepted { .. }]), "{taken:?}");
    assert_eq!(voter.hear(4, 1, accept(&promote)), []);
    let higher = Ballot { round: 6, node: NodeId(4) };
    let answer = voter.hear(4, 1, MemberMessage::Prepare { ballot: higher });
    let [.., MemberMessage::Promise { accepted: Some((_, value)), .. }] = &answer[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(value.epoch, Epoch(3));
}

#[test]
fn a_voter_is_not_taken_out_while_one_of_those_that_stay_is_silent() {
    let mut world = serving(1, 2, 1, 0);
    // Its session lasts, and nothing comes of it.
    world.slow = Some((1, 2, 3_000 * MS));
    world.run_until("node 2 is out", |world| world.in_sync() == [1]);
    world.operate(1, Operation::RemoveMember { node: NodeId(3) });
    world.run(500 * MS);
    let accepted = |world: &World| {
        let record = world.node(3).disk.as_ref().expect("a voter");
        record.accepted.as_ref().is_some_and(|(_, value)| value.member(NodeId(3)).is_some())
    };
    assert!(
        accepted(&world),
        "nodes 1 and 2 would have to decide it, and node 2 may never come back"
    );
    world.slow = None;
    world.run_until("node 2 is back", |world| world.in_sync() == [1, 2]);
    let again = world.operate(1, Operation::RemoveMember { node: NodeId(3) });
    world.run_until("it is taken out", |world| world.is_done(1, again));
    assert!(world.newest().member(NodeId(3)).is_none());
}

#[test]
fn who_accepted_that_it_is_added_asks_whether_that_was_chosen() {
    let world = World::new(1, 2, 1, 0);
    let ballot = Ballot { round: 1, node: NodeId(1) };
    let mut next = world.bootstrap.clone();
    next.epoch = Epoch(next.epoch.0 + 1);
    let mut own = next.members[0].clone();
    (own.node, own.voter, own.in_sync, own.incarnation) =
        (NodeId(4), voter(4), false, Incarnation(0));
    for in_it in [true, false] {
        let mut record = Record::empty(voter(4), Incarnation(4), 1);
        record.promised = ballot;
        record.committed = Some((Ballot::default(), Box::new(world.bootstrap.clone())));
        let mut value = next.clone();
        if in_it {
            value.members.push(own.clone());
        }
        record.accepted = Some((ballot, Box::new(value)));
        let mut node = Alone::with(4, record, 1);
        node.meet(2, 1, None);
        node.meet(3, 2, None);
        node.now = node.now + Timing::default().lease;
        let mut sent = node.step(MemberInput::Wake);
        node.now = node.now + Timing::default().lease;
        sent.extend(node.step(MemberInput::Wake));
        let asks = sent.iter().any(|message| matches!(message, MemberMessage::Prepare { .. }));
        assert_eq!(asks, in_it, "{sent:?}");
    }
}

#[test]
fn a_primary_that_lost_its_majority_is_forced_to_go_on_alone() {
    for (seed, wait) in [(1, 0), (2, 100), (3, 400), (4, 3_000)] {
        let mut world = serving(seed, 3, 0, 0);
        world.crash(2);
        world.crash(3);
        world.run(wait * MS);
        let forced = world.operate(1, Operation::Force);
        world.run_until("it is forced", |world| world.is_done(1, forced));
        world.run_until("it serves alone", |world| world.answers(1));
        // One higher if it was proposed to a majority before.
        let forks = if wait == 0 { 2 } else { 1 };
        assert_eq!(
            (world.newest().fork, world.in_sync()),
            (forks, [1].to_vec()),
            "{}",
            world.show()
        );
        assert_eq!(world.newest().lost, Epoch(0), "its copy has all that clients were told of");
    }
}

#[test]
fn a_copy_that_comes_into_sync_keeps_no_bits_of_others_that_are() {
    let mut world = serving(18, 3, 0, 0);
    let generation = |world: &World| {
        let record = world.node(2).disk.as_ref().expect("a replica");
        let slot = record.slots.iter().find(|slot| slot.node == NodeId(3));
        slot.map(|slot| (slot.generation, slot.full)).expect("a slot for each other replica")
    };
    let before = generation(&world).0;
    invalidated(&mut world, 2);
    let anew = |world: &World| generation(world).0 > before && !generation(world).1;
    world.run_until("its bits of node 3 are all clear", anew);
}

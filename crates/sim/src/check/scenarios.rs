//! The stories that are searched.
//!
//! Nodes count from 1. Times are units after the beginning of the world; a lease lasts 2,000 of them.
//!
//! Not here: what may go wrong in each (`search`).

use super::world::{DRIFT, Death, Thing, voter};
use base::{NodeId, VoterId};
use replica::Operation;
use std::time::Duration;
use wire::MemberKind;

/// How far to search.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effort {
    /// The plain schedules only.
    Plain,
    /// Within a few minutes: part of every run of the tests.
    Quick,
    /// One deviation, or fault, more, and an hour for each story.
    Deep,
}

impl Effort {
    /// States of one scenario, at most. Each takes 16 bytes of memory, or 10 where every order is searched.
    pub(super) fn states_max(self) -> u64 {
        match self {
            Effort::Plain | Effort::Quick => 10_000_000,
            Effort::Deep => 800_000_000,
        }
    }

    /// How long one scenario may take. All but a few take seconds when the search is quick; this is for slow machines, where
    /// the outcome says how far it went.
    pub(super) fn time_max(self) -> Duration {
        match self {
            Effort::Plain | Effort::Quick => Duration::from_secs(100),
            Effort::Deep => Duration::from_secs(3_600),
        }
    }

    /// Deviations, or faults.
    pub(super) fn budget(self, scenario: &Scenario) -> u8 {
        match self {
            Effort::Plain => 0,
            Effort::Quick => scenario.quick,
            Effort::Deep => scenario.quick + 1,
        }
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Kind {
    Replica,
    Witness,
    /// Diskless.
    Client,
    /// A witness that is not a member yet.
    Spare,
}

/// Something that happens for certain.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    Operate(u16, Operation),
    Clients(u16, u32),
    Die(u16, Death, bool),
    Cut(u16, u16, bool),
    /// Something stands still for so long.
    Hold(Thing, u64),
}

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of fault")]
pub(super) struct Faults {
    pub(super) die: bool,
    pub(super) power: bool,
    pub(super) empty: bool,
    pub(super) cut: bool,
    pub(super) hold: bool,
}

/// One story.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) kinds: Vec<Kind>,
    /// Millionths by which each clock is fast.
    pub(super) rates: Vec<i64>,
    /// Nodes with a client.
    pub(super) clients: Vec<u16>,
    pub(super) wishes: Vec<(u64, Wish)>,
    /// Pairs that never meet.
    pub(super) cut: Vec<(u16, u16)>,
    /// Until then everything goes as planned.
    pub(super) begins: u64,
    /// When the story is over.
    pub(super) length: u64,
    /// Writes, at most.
    pub(super) writes: u8,
    pub(super) faults: Faults,
    /// Timers that ring seldom.
    pub(super) coarse: bool,
    /// Schedules are followed up to this round of a ballot.
    pub(super) rounds: u64,
    /// Deviations of a quick search, or faults where every order is searched.
    pub(super) quick: u8,
}

/// The names of all scenarios.
#[must_use]
pub fn names() -> Vec<&'static str> {
    all().iter().chain(&every()).map(|scenario| scenario.name).collect()
}

const ALL: Faults = Faults { die: true, power: true, empty: false, cut: true, hold: true };
const NO_POWER: Faults = Faults { power: false, ..ALL };

/// Two replicas and a witness; the clock of the first is slow, those of the others fast: the worst for a
/// lease that the first holds.
fn base(name: &'static str) -> Scenario {
    use Kind::{Replica, Witness};
    Scenario {
        name,
        kinds: vec![Replica, Replica, Witness],
        rates: vec![-DRIFT, DRIFT, DRIFT],
        clients: vec![1],
        wishes: Vec::new(),
        cut: Vec::new(),
        begins: 0,
        length: 4_000,
        writes: 3,
        faults: ALL,
        coarse: false,
        rounds: u64::MAX,
        quick: 1,
    }
}

pub(super) fn all() -> Vec<Scenario> {
    let mut all = contenders();
    all.extend(reigns());
    all.extend(members());
    all
}

/// Nobody is primary, and two want to be.
fn contenders() -> Vec<Scenario> {
    use Kind::{Client, Replica};
    vec![
        Scenario { clients: vec![1, 2], length: 3_000, ..base("duel") },
        Scenario {
            kinds: vec![Replica, Replica, Replica],
            rates: vec![DRIFT, -DRIFT, DRIFT],
            clients: vec![1, 2],
            length: 3_000,
            faults: NO_POWER,
            ..base("duel-of-three-replicas")
        },
        Scenario {
            kinds: vec![Replica, Replica, Kind::Witness, Client],
            clients: vec![4],
            length: 2_500,
            ..base("client")
        },
        Scenario {
            // A new process of node 4 meets those who know least of the one before.
            kinds: vec![Replica, Replica, Kind::Witness, Client],
            clients: vec![4],
            cut: vec![(3, 4)],
            wishes: vec![
                (700, Wish::Cut(1, 4, true)),
                (700, Wish::Die(4, Death::Process, false)),
                (700, Wish::Cut(3, 4, false)),
            ],
            length: 4_000,
            faults: NO_POWER,
            ..base("client-restarts")
        },
    ]
}

/// The stories of which every order of events is searched: whoever wants to be primary begins whenever it likes, and
/// time goes on for a lease and what follows it.
pub(super) fn every() -> Vec<Scenario> {
    let duel = Scenario {
        clients: Vec::new(),
        wishes: vec![(1, Wish::Clients(1, 1)), (1, Wish::Clients(2, 1))],
        begins: 1,
        length: 2_500,
        writes: 1,
        rounds: 2,
        coarse: true,
        quick: 0,
        ..base("duel-every-order")
    };
    // Before a lease has run out, in the first round of ballots.
    let deaths =
        Scenario { length: 2, rounds: 1, quick: 1, name: "duel-every-death", ..duel.clone() };
    vec![duel, deaths]
}

/// When node 2 gets a client too.
const SECOND: u64 = 650;

/// Node 1 serves.
fn reign() -> Scenario {
    Scenario { begins: SECOND, length: 4_200, ..base("") }
}

/// Node 1 is primary.
fn reigns() -> Vec<Scenario> {
    use Kind::{Client, Replica, Witness};
    let reign = reign();
    let second = || (SECOND, Wish::Clients(2, 1));
    let all = vec![
        Scenario { name: "reign", quick: 2, wishes: vec![second()], ..reign.clone() },
        Scenario {
            name: "take-over",
            wishes: vec![second(), (700, Wish::Die(1, Death::Process, true))],
            ..reign.clone()
        },
        Scenario {
            name: "hand-over",
            wishes: vec![(700, Wish::Operate(2, Operation::Promote))],
            length: 3_200,
            ..reign.clone()
        },
        Scenario {
            name: "exclude-and-include",
            wishes: vec![second(), (700, Wish::Cut(1, 2, true)), (1_000, Wish::Cut(1, 2, false))],
            ..reign.clone()
        },
        Scenario {
            name: "power",
            wishes: vec![second(), (700, Wish::Die(2, Death::Power, false))],
            ..reign.clone()
        },
        Scenario {
            name: "power-of-the-primary",
            wishes: vec![second(), (700, Wish::Die(1, Death::Power, false))],
            ..reign.clone()
        },
        Scenario {
            name: "client-reigns",
            kinds: vec![Replica, Replica, Witness, Client],
            clients: vec![4],
            wishes: vec![(700, Wish::Cut(1, 4, true)), (1_400, Wish::Cut(1, 4, false))],
            length: 3_200,
            ..reign
        },
    ];
    all.into_iter().chain(late()).collect()
}

/// Node 1 is primary, and what it says, or what is said to it, comes when another reigned.
fn late() -> Vec<Scenario> {
    let second = || (SECOND, Wish::Clients(2, 1));
    vec![
        Scenario {
            // Node 1 is cut off, with a lease that those who granted it can only remember by their disks.
            name: "restarted-voters",
            wishes: vec![
                second(),
                (700, Wish::Cut(1, 3, true)),
                (700, Wish::Cut(1, 2, true)),
                (700, Wish::Die(2, Death::Process, false)),
                (700, Wish::Die(3, Death::Process, false)),
            ],
            faults: NO_POWER,
            ..reign()
        },
        Scenario {
            // What node 1 says in its ballot reaches node 3 when that has promised, and accepted, a higher one,
            // and is free again.
            name: "late-messages",
            wishes: vec![
                second(),
                (700, Wish::Cut(1, 2, true)),
                (700, Wish::Hold(Thing::Link(1, 3), 2_900)),
                (3_300, Wish::Operate(2, Operation::Demote)),
            ],
            length: 4_800,
            faults: NO_POWER,
            ..reign()
        },
        Scenario {
            // Node 2 takes over, and may die before anybody hears of it. Node 1, which still thinks that it reigns and has
            // a change open, is refused, and asks for a higher ballot.
            name: "late-news",
            wishes: vec![
                second(),
                (700, Wish::Cut(1, 3, true)),
                (700, Wish::Cut(1, 2, true)),
                (4_000, Wish::Clients(2, 0)),
                (5_900, Wish::Cut(1, 2, false)),
                (5_900, Wish::Cut(1, 3, false)),
                (5_901, Wish::Hold(Thing::Link(2, 1), 1_500)),
            ],
            begins: 2_600,
            length: 7_500,
            faults: NO_POWER,
            ..reign()
        },
    ]
}

/// Members come and go.
fn members() -> Vec<Scenario> {
    use Kind::{Client, Replica, Spare, Witness};
    let reign = reign();
    let second = || (SECOND, Wish::Clients(2, 1));
    let kind = MemberKind::Witness;
    let add = Operation::AddMember { node: NodeId(4), kind, voter: VoterId(voter(4, 0)) };
    vec![
        Scenario {
            name: "lost-disk-of-a-witness",
            wishes: vec![second(), (700, Wish::Die(3, Death::Emptied, false))],
            ..reign.clone()
        },
        Scenario {
            name: "lost-disk-of-a-replica",
            wishes: vec![second(), (700, Wish::Die(2, Death::Emptied, false))],
            ..reign.clone()
        },
        Scenario {
            name: "removed-replica",
            kinds: vec![Replica, Replica, Witness, Client],
            clients: vec![4],
            wishes: vec![(700, Wish::Operate(4, Operation::RemoveMember { node: NodeId(1) }))],
            length: 3_200,
            ..reign.clone()
        },
        Scenario {
            name: "other-voters",
            kinds: vec![Replica, Replica, Witness, Spare],
            // Nodes 2 and 4 accept before they are asked for the lease: one was away for longer than it lasts, the
            // other has never been asked.
            wishes: vec![
                (700, Wish::Cut(1, 2, true)),
                (3_340, Wish::Cut(1, 2, false)),
                (3_345, Wish::Operate(1, Operation::RemoveMember { node: NodeId(3) })),
                (3_345, Wish::Operate(1, add)),
                (3_360, Wish::Clients(2, 1)),
                (3_360, Wish::Cut(1, 2, true)),
                (3_360, Wish::Cut(1, 3, true)),
                (3_360, Wish::Cut(1, 4, true)),
            ],
            begins: 3_300,
            length: 6_600,
            ..reign
        },
    ]
}

//! What a campaign must reach: rare branches of the replica code, each a `Mark` there, and of each kind of message one that was
//! held.
//!
//! Always: one that a campaign need not reach is listed with its reason; `cargo xtask campaign` fails if, after a million
//! histories, another one was never reached, or one was that only a bug leads to.
//!
//! Not here: counting (`world`, `campaign`).

/// Every mark of the replica code.
pub const MARKS: &[&str] = &[
    "a block that no replica can read",
    "a block that no replica has",
    "a comparison found a difference",
    "a copy goes on block by block",
    "a member has doubt",
    "a name of a write was given twice",
    "a request of a client that is gone is not carried out",
    "a reservation keeps a host from a request",
    "a volume grows",
    "a write that comes again is not carried out again",
    "a write asked for again had taken effect",
    "a write for which nobody waits is not carried out",
    "a write of before a fork is given back",
    "a write came too late by one of several ways",
    "a write is to be settled",
    "answer waits for lease or cut",
    "answer waits until a copy has heard of a change",
    "answer waits until its node has heard of a change",
    "extents turn cold",
    "flush waits for writes of an earlier reign",
    "forwarded requests are asked anew",
    "forwarded to a node that is not primary",
    "member: a change of voters that are gone gave way to another",
    "member: a count that nobody can have come to",
    "member: a fork let go that left what is known behind",
    "member: a higher ballot is asked for",
    "member: a peer's disk went back in time",
    "member: a peer has begun another life, as others tell",
    "member: a peer's disk went back in time, as others tell",
    "member: a primary that can do nothing is demoted",
    "member: a primary without a copy makes way for one",
    "member: a primary without a majority makes way",
    "member: a promote rests on a vote that is gone",
    "member: a value of another node found in a reign",
    "member: an exclude gave way to another",
    "member: answer dropped, too many wait",
    "member: ballot of another node",
    "member: change decided by those that are left",
    "member: discarded, waits for its clients",
    "member: disk failed at the start",
    "member: drain given up",
    "member: forced alone",
    "member: frame of an ended session",
    "member: invalidated",
    "member: leaves a side on which no copy is",
    "member: no reign without a copy in reach",
    "member: no survivor of an exclude: the cache is lost",
    "member: own disk went back in time",
    "member: own side discarded",
    "member: record could not be stored",
    "member: reign ended by others",
    "member: requests wait again",
    "member: split brain",
    "member: the reign goes on under a higher ballot",
    "member: too many peers",
    "member: unsound accept",
    "member: unsound configuration",
    "member: unsound value in a promise",
    "no member remembers what took effect",
    "nobody knows whether a write took effect",
    "own disk failed",
    "primary no more",
    "read failed everywhere",
    "read goes to another replica",
    "refused another reign",
    "request failed without quorum",
    "request waits for an overlapping one",
    "request waits for reconciliation",
    "requests of a history that was given up fail",
    "resync given up",
    "resync starts",
    "rotten bytes are to be repaired",
    "sessions from before the loss of all caches end",
    "told that a newer reign began",
    "un-retired writes turn into doubt",
    "unsettled writes overlap",
    "write is complete before it is in its place",
    "write waits for the activity log",
];

/// Everything that a campaign must reach, but for what is excused.
pub fn all() -> impl Iterator<Item = &'static str> {
    MARKS.iter().chain(crate::network::HELD).copied()
}

/// Why a campaign need not reach a mark.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreached {
    /// Only a bug leads to it, here or at a peer: reached, it is a failure.
    Bug,
    /// It may be reached, or not.
    Rare,
    /// The plans with quorum have no place for it.
    WithQuorum,
    /// The plans without quorum have no place for it: they have none of the features.
    WithoutQuorum,
}

impl Unreached {
    /// Its name, as `sim marks` prints it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unreached::Bug => "bug",
            Unreached::Rare => "rare",
            Unreached::WithQuorum => "with-quorum",
            Unreached::WithoutQuorum => "without-quorum",
        }
    }

    /// Whether it speaks of plans of this kind.
    #[must_use]
    pub fn is_of(self, quorum_off: bool) -> bool {
        match self {
            Unreached::Bug | Unreached::Rare => true,
            Unreached::WithQuorum => !quorum_off,
            Unreached::WithoutQuorum => quorum_off,
        }
    }
}

/// Marks that a campaign need not reach, and why.
pub const UNREACHED: &[(&str, Unreached, &str)] = &[
    ("a name of a write was given twice", Unreached::Bug, "names are given once"),
    (
        "a write of before a fork is given back",
        Unreached::WithQuorum,
        "nodes are forced with all others dead only, whose sessions are over",
    ),
    (
        "member: ballot of another node",
        Unreached::Bug,
        "a member asks for votes in ballots of its own",
    ),
    (
        "member: frame of an ended session",
        Unreached::Bug,
        "the simulated network delivers nothing of a session whose end it told",
    ),
    (
        "member: too many peers",
        Unreached::Bug,
        "a simulated cluster has few nodes, a member room for 64 peers",
    ),
    (
        "member: a count that nobody can have come to",
        Unreached::Bug,
        "only a peer that breaks the protocol says it",
    ),
    ("member: unsound accept", Unreached::Bug, "only a peer that breaks the protocol asks for it"),
    (
        "member: unsound configuration",
        Unreached::Bug,
        "only a peer that breaks the protocol says that it is committed",
    ),
    (
        "member: unsound value in a promise",
        Unreached::Bug,
        "only a peer that breaks the protocol reveals it",
    ),
    (
        "a request of a client that is gone is not carried out",
        Unreached::Rare,
        "simulated clients take no single request back, as hosts do that abort a command; it has tests",
    ),
    (
        "member: a change of voters that are gone gave way to another",
        Unreached::Rare,
        "two disks are replaced while a member is being added: seed 1000622420, and a test",
    ),
    (
        "member: a fork let go that left what is known behind",
        Unreached::Rare,
        "a fork that a node accepted is not decided when it hears of something newer that the fork leaves behind",
    ),
    (
        "unsettled writes overlap",
        Unreached::Rare,
        "by what is said there none does; one history of 100 000 reached it, and its writes were told as unknown",
    ),
    (
        "member: a primary without a copy makes way for one",
        Unreached::WithQuorum,
        "where a majority decides it needs no copy for that",
    ),
    (
        "member: leaves a side on which no copy is",
        Unreached::WithQuorum,
        "two sides of one fork are there without quorum only",
    ),
    (
        "member: change decided by those that are left",
        Unreached::WithQuorum,
        "where a majority decides no fewer do",
    ),
    (
        "a block that no replica has",
        Unreached::Rare,
        "data is damaged while other copies have it, and what the last good one has is made well",
    ),
    (
        "member: a value of another node found in a reign",
        Unreached::Rare,
        "a voter has accepted another node's value while its primary was cut off, and that one raises its ballot",
    ),
    ("a block that no replica can read", Unreached::WithoutQuorum, "no disk fails"),
    (
        "member: a peer's disk went back in time, as others tell",
        Unreached::WithoutQuorum,
        "no disk is put back",
    ),
    ("a copy goes on block by block", Unreached::WithoutQuorum, "nothing rots"),
    ("a reservation keeps a host from a request", Unreached::WithoutQuorum, "no host reserves"),
    ("a volume grows", Unreached::WithoutQuorum, "no volume does"),
    ("flush waits for writes of an earlier reign", Unreached::WithoutQuorum, "protocol C alone"),
    ("member: a peer's disk went back in time", Unreached::WithoutQuorum, "no disk is put back"),
    (
        "member: a promote rests on a vote that is gone",
        Unreached::WithoutQuorum,
        "no disk is put back or replaced",
    ),
    ("member: disk failed at the start", Unreached::WithoutQuorum, "no disk fails"),
    ("member: forced alone", Unreached::WithoutQuorum, "no operator forces a node"),
    ("member: invalidated", Unreached::WithoutQuorum, "no operator does it"),
    (
        "member: no survivor of an exclude: the cache is lost",
        Unreached::WithoutQuorum,
        "its disks have no cache to lose",
    ),
    ("member: own disk went back in time", Unreached::WithoutQuorum, "no disk is put back"),
    ("member: record could not be stored", Unreached::WithoutQuorum, "no disk fails"),
    (
        "member: requests wait again",
        Unreached::WithoutQuorum,
        "no operator has requests fail that wait",
    ),
    ("sim: message held: received", Unreached::WithoutQuorum, "protocol C alone"),
    ("sim: message held: stale", Unreached::WithoutQuorum, "nothing rots, no disk fails"),
    ("sim: message held: invalidate", Unreached::WithoutQuorum, "no operator does it"),
    ("sim: message held: reserve", Unreached::WithoutQuorum, "no host reserves"),
    ("sim: message held: reserved", Unreached::WithoutQuorum, "no host reserves"),
    ("sim: message held: diverged", Unreached::WithQuorum, "said between two sides only"),
    ("own disk failed", Unreached::WithoutQuorum, "no disk fails"),
    ("read failed everywhere", Unreached::WithoutQuorum, "no disk fails"),
    ("request failed without quorum", Unreached::WithoutQuorum, "no quorum is needed"),
    ("rotten bytes are to be repaired", Unreached::WithoutQuorum, "nothing rots"),
    (
        "sessions from before the loss of all caches end",
        Unreached::WithoutQuorum,
        "its disks have no cache to lose",
    ),
];

/// Why a campaign of this kind need not reach it; `None`: it must.
#[must_use]
pub fn excuse(mark: &str, quorum_off: bool) -> Option<(Unreached, &'static str)> {
    let found = UNREACHED.iter().find(|(name, of, _)| *name == mark && of.is_of(quorum_off));
    found.map(|(_, of, why)| (*of, *why))
}

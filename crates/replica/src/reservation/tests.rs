//! The rules of the specification, one after the other.

use super::{Notice, after_loss, allows, carried_out, notice};
use alloc::vec;
use alloc::vec::Vec;
use base::{HostId, Op, VolumeId};
use wire::{
    Configuration, FEATURE_LEVEL_RESERVATIONS, Options, Quorum, ReservationCommand as Command,
    ReservationKind as Kind, ReservationRefusal as Refusal, VolumeEntry, VolumeReservations,
};

const VOLUME: VolumeId = VolumeId(0);
const A: HostId = HostId(0xa);
const B: HostId = HostId(0xb);
const C: HostId = HostId(0xc);
const KINDS: [Kind; 6] = [
    Kind::WriteExclusive,
    Kind::ExclusiveAccess,
    Kind::WriteExclusiveRegistrants,
    Kind::ExclusiveAccessRegistrants,
    Kind::WriteExclusiveAll,
    Kind::ExclusiveAccessAll,
];

struct Bench(Configuration);

impl Bench {
    fn new() -> Bench {
        let volume = VolumeEntry { volume: VOLUME, sectors: 64, grows_to: None, block_bytes: 512 };
        Bench(Configuration::first(Vec::new(), vec![volume], Options::default()))
    }

    /// A, B and C are registered under the keys 0xaa, 0xbb and 0xcc.
    fn registered() -> Bench {
        let mut bench = Bench::new();
        for (host, key) in [(A, 0xaa), (B, 0xbb), (C, 0xcc)] {
            bench.done(host, Command::Register { key, persists: None });
        }
        bench
    }

    fn ask(&mut self, host: HostId, command: Command) -> Result<(), Refusal> {
        let before = self.0.clone();
        let next = carried_out(&self.0, VOLUME, host, &command);
        assert_eq!(self.0, before);
        self.0 = next?;
        Ok(())
    }

    fn done(&mut self, host: HostId, command: Command) {
        assert_eq!(self.ask(host, command), Ok(()), "{host:?} {command:?}");
    }

    fn refused(&mut self, host: HostId, command: Command, refusal: Refusal) {
        let before = self.0.clone();
        assert_eq!(self.ask(host, command), Err(refusal), "{host:?} {command:?}");
        assert_eq!(self.0, before, "nothing changes");
    }

    fn all(&self) -> &VolumeReservations {
        self.0.reservations_of(VOLUME).expect("somebody registered")
    }

    fn hosts(&self) -> Vec<HostId> {
        self.all().registrants.iter().map(|one| one.host).collect()
    }

    fn holders(&self) -> Vec<HostId> {
        [A, B, C].into_iter().filter(|&host| self.all().is_held_by(host)).collect()
    }

    fn lets(&self, host: HostId, op: Op) -> bool {
        allows(self.0.reservations_of(VOLUME), host, op)
    }
}

#[test]
fn each_kind_keeps_from_the_volume_whom_it_says() {
    let other = HostId(0xd);
    for kind in KINDS {
        let mut bench = Bench::registered();
        assert!(bench.lets(other, Op::Write), "nobody holds it");
        bench.done(A, Command::Acquire { current: 0xaa, kind });
        let holder_only = matches!(kind, Kind::WriteExclusive | Kind::ExclusiveAccess);
        let reads = matches!(
            kind,
            Kind::WriteExclusive | Kind::WriteExclusiveRegistrants | Kind::WriteExclusiveAll
        );
        for host in [A, B, other, HostId(0)] {
            let is_in = host == A || host == B && !holder_only;
            for op in [Op::Write, Op::Zero { unmap: true }, Op::Flush] {
                assert_eq!(bench.lets(host, op), is_in, "{kind:?} {host:?} {op:?}");
            }
            assert_eq!(bench.lets(host, Op::Read), is_in || reads, "{kind:?} {host:?}");
        }
        let holders = if kind.is_of_all() { vec![A, B, C] } else { vec![A] };
        assert_eq!(bench.holders(), holders);
    }
}

#[test]
fn a_host_registers_under_one_key_changes_it_and_gives_it_up() {
    let mut bench = Bench::new();
    bench.refused(A, Command::Unregister { current: None, persists: None }, Refusal::Conflict);
    bench.refused(A, Command::Register { key: 0, persists: None }, Refusal::Invalid);
    bench.refused(HostId(0), Command::Register { key: 1, persists: None }, Refusal::Conflict);
    bench.done(A, Command::Register { key: 1, persists: Some(true) });
    assert_eq!(bench.0.feature_level, FEATURE_LEVEL_RESERVATIONS);
    assert_eq!((bench.all().generation, bench.all().persists), (1, true));
    assert_eq!(bench.all().began, bench.0.epoch);
    let before = bench.0.clone();
    bench.done(A, Command::Register { key: 1, persists: None });
    assert_eq!(bench.0, before, "it is so already");
    bench.refused(A, Command::Register { key: 2, persists: None }, Refusal::Conflict);
    let replace = |current, key| Command::Replace { current, key, persists: Some(false) };
    bench.refused(A, replace(Some(3), 2), Refusal::Conflict);
    bench.refused(B, replace(None, 2), Refusal::Conflict);
    bench.refused(A, replace(Some(1), 0), Refusal::Invalid);
    bench.done(A, replace(Some(1), 2));
    bench.done(A, replace(None, 3));
    assert_eq!((bench.all().key_of(A), bench.all().persists), (Some(3), false));
    bench.refused(A, Command::Unregister { current: Some(2), persists: None }, Refusal::Conflict);
    bench.done(A, Command::Unregister { current: Some(3), persists: None });
    assert_eq!((bench.hosts(), bench.all().generation), (vec![], 4));
}

#[test]
fn a_reservation_goes_with_its_last_holder() {
    for kind in KINDS {
        let mut bench = Bench::registered();
        bench.done(A, Command::Acquire { current: 0xaa, kind });
        bench.done(A, Command::Unregister { current: None, persists: None });
        let left = if kind.is_of_all() { vec![B, C] } else { vec![] };
        assert_eq!(bench.holders(), left, "{kind:?}");
        bench.done(B, Command::Unregister { current: None, persists: None });
        bench.done(C, Command::Unregister { current: None, persists: None });
        assert_eq!(bench.all().held, None);
    }
}

#[test]
fn a_reservation_is_acquired_once_and_released_by_who_holds_it() {
    let mut bench = Bench::registered();
    let (kind, other) = (Kind::WriteExclusive, Kind::ExclusiveAccess);
    bench.refused(HostId(0xd), Command::Acquire { current: 0, kind }, Refusal::Conflict);
    bench.refused(A, Command::Acquire { current: 1, kind }, Refusal::Conflict);
    let generation = bench.all().generation;
    bench.done(A, Command::Acquire { current: 0xaa, kind });
    bench.done(A, Command::Acquire { current: 0xaa, kind });
    bench.refused(A, Command::Acquire { current: 0xaa, kind: other }, Refusal::Conflict);
    bench.refused(B, Command::Acquire { current: 0xbb, kind }, Refusal::Conflict);
    bench.done(B, Command::Release { current: 0xbb, kind });
    assert_eq!(bench.holders(), [A], "who does not hold it has nothing to release");
    bench.refused(A, Command::Release { current: 0xbb, kind }, Refusal::Conflict);
    bench.refused(A, Command::Release { current: 0xaa, kind: other }, Refusal::Invalid);
    bench.done(A, Command::Release { current: 0xaa, kind });
    assert_eq!((bench.all().held, bench.all().generation), (None, generation));
    bench.done(B, Command::Acquire { current: 0xbb, kind: Kind::ExclusiveAccessAll });
    bench.done(C, Command::Release { current: 0xcc, kind: Kind::ExclusiveAccessAll });
    assert_eq!(bench.all().held, None, "each of them holds it");
}

#[test]
fn who_is_preempted_is_registered_no_more_and_who_held_it_is_followed() {
    let preempt = |current, others, kind| Command::Preempt { current, others, kind };
    let (kind, other) = (Kind::WriteExclusive, Kind::ExclusiveAccessAll);
    let mut bench = Bench::registered();
    bench.done(A, Command::Acquire { current: 0xaa, kind });
    bench.refused(B, preempt(0xaa, 0xaa, kind), Refusal::Conflict);
    bench.refused(HostId(0xd), preempt(0, 0xaa, kind), Refusal::Conflict);
    bench.refused(B, preempt(0xbb, 0xee, kind), Refusal::Conflict);
    bench.refused(B, preempt(0xbb, 0, kind), Refusal::Invalid);
    let generation = bench.all().generation;
    // Not the holder.
    bench.done(B, preempt(0xbb, 0xcc, other));
    assert_eq!((bench.hosts(), bench.holders()), (vec![A, B], vec![A]));
    // The holder.
    bench.done(B, preempt(0xbb, 0xaa, kind));
    assert_eq!((bench.hosts(), bench.holders()), (vec![B], vec![B]));
    assert_eq!(bench.all().generation, generation + 2);
    assert!(!bench.lets(A, Op::Write) && bench.lets(B, Op::Write));
    // Itself, for another kind.
    bench.done(B, preempt(0xbb, 0xbb, other));
    assert_eq!((bench.hosts(), bench.all().held.map(|held| held.kind)), (vec![B], Some(other)));
}

#[test]
fn where_all_hold_it_key_0_preempts_all_others() {
    let preempt = |others| Command::Preempt { current: 0xaa, others, kind: Kind::ExclusiveAccess };
    let held = || {
        let mut bench = Bench::registered();
        bench.done(B, Command::Acquire { current: 0xbb, kind: Kind::WriteExclusiveAll });
        bench
    };
    let mut bench = held();
    bench.done(A, preempt(0));
    assert_eq!((bench.hosts(), bench.holders()), (vec![A], vec![A]));
    assert_eq!(bench.all().held.map(|held| held.kind), Some(Kind::ExclusiveAccess));
    let mut bench = held();
    bench.done(A, preempt(0xcc));
    assert_eq!((bench.hosts(), bench.holders()), (vec![A, B], vec![A, B]));
    let mut bench = Bench::registered();
    bench.done(A, preempt(0xcc));
    assert_eq!((bench.hosts(), bench.all().held), (vec![A, B], None), "nobody held it");
}

#[test]
fn clear_ends_everything_and_a_report_changes_nothing() {
    let mut bench = Bench::registered();
    bench.done(A, Command::Acquire { current: 0xaa, kind: Kind::ExclusiveAccess });
    let before = bench.0.clone();
    bench.done(HostId(0), Command::Report);
    assert_eq!(bench.0, before);
    bench.refused(B, Command::Clear { current: 0xaa }, Refusal::Conflict);
    bench.done(B, Command::Clear { current: 0xbb });
    assert_eq!((bench.hosts(), bench.all().held, bench.all().generation), (vec![], None, 4));
}

#[test]
fn there_are_none_without_a_quorum_to_lose_and_not_for_ever_more_hosts() {
    let mut bench = Bench::new();
    let register = Command::Register { key: 7, persists: None };
    bench.0.options.quorum = Quorum::Off;
    bench.refused(A, register, Refusal::None);
    bench.0.options.quorum = Quorum::Majority;
    assert_eq!(carried_out(&bench.0, VolumeId(1), A, &register), Err(Refusal::None));
    let count = (1..200).take_while(|&host| bench.ask(HostId(host), register).is_ok()).count();
    assert_eq!(count, 94);
    bench.refused(HostId(500), register, Refusal::Full);
    let mut bytes = Vec::new();
    wire::encode_configuration(&bench.0, &mut bytes);
    assert_eq!(wire::decode_configuration(&bytes).as_ref(), Ok(&bench.0));
}

#[test]
fn what_is_not_to_persist_is_gone_when_all_caches_are_lost() {
    for persists in [false, true] {
        let mut bench = Bench::registered();
        bench.done(A, Command::Acquire { current: 0xaa, kind: Kind::ExclusiveAccess });
        bench.done(B, Command::Replace { current: None, key: 9, persists: Some(persists) });
        after_loss(&mut bench.0.reservations);
        let left = if persists { vec![A, B, C] } else { vec![] };
        assert_eq!((bench.hosts(), bench.all().held.is_some()), (left, persists));
    }
}

#[test]
fn hosts_are_told_what_others_took_from_them() {
    use Notice::{
        RegistrationPreempted as Fenced, ReservationPreempted as Over, ReservationReleased as Free,
    };
    let preempt = |kind| Command::Preempt { current: 0xaa, others: 0xbb, kind };
    let leave = Command::Unregister { current: None, persists: None };
    let none: [Option<Notice>; 3] = [None; 3];
    let free = |kind| {
        let is_shared = !matches!(kind, Kind::WriteExclusive | Kind::ExclusiveAccess);
        is_shared.then_some(Free)
    };
    for kind in KINDS {
        let told = |holder: HostId, host: HostId, command: Command| {
            let mut bench = Bench::registered();
            let key = bench.all().key_of(holder).expect("all are");
            bench.done(holder, Command::Acquire { current: key, kind });
            let before = bench.all().clone();
            bench.done(host, command);
            [A, B, C].map(|host| notice(&before, bench.all(), host))
        };
        let clear = Command::Clear { current: 0xaa };
        assert_eq!(told(B, A, clear), [None, Some(Over), Some(Over)], "{kind:?}");
        let release = Command::Release { current: 0xbb, kind };
        assert_eq!(told(B, B, release), [free(kind), None, free(kind)], "{kind:?}");
        // With the last holder its reservation goes.
        let goes = if kind.is_of_all() { None } else { free(kind) };
        assert_eq!(told(B, B, leave), [goes, None, goes], "{kind:?}");
        assert_eq!(told(A, B, leave), none, "nothing was taken from others");
        assert_eq!(told(B, A, preempt(kind)), [None, Some(Fenced), None], "{kind:?}");
        if !kind.is_of_all() {
            let other = Kind::ExclusiveAccessAll;
            let told = told(B, A, preempt(other));
            assert_eq!(told, [None, Some(Fenced), free(kind)], "{kind:?}");
        }
        assert_eq!(told(A, C, Command::Register { key: 0xcc, persists: None }), none);
    }
}

#[test]
fn a_change_that_takes_nothing_away_tells_nobody_again() {
    let mut bench = Bench::registered();
    bench.done(A, Command::Clear { current: 0xaa });
    assert!(bench.all().taken.is_some());
    let before = bench.all().clone();
    assert_eq!(notice(&before, &before, B), None, "it is not a change");
    bench.done(B, Command::Register { key: 0xbb, persists: None });
    assert_eq!(bench.all().taken, None);
}

#[test]
fn a_node_that_missed_changes_tells_hosts_that_their_registrations_are_gone() {
    let mut bench = Bench::registered();
    let before = bench.all().clone();
    bench.done(A, Command::Clear { current: 0xaa });
    bench.done(B, Command::Register { key: 0xbb, persists: None });
    let told = [A, B, C, HostId(0xd)].map(|host| notice(&before, bench.all(), host));
    let gone = Some(Notice::RegistrationPreempted);
    assert_eq!(told, [gone, None, gone, None]);
}

//! The pace beside simulated applications: one queue that requests and copies share.

use super::{BURST_PARTS, Latencies, PRESENCE, Pace, REST_MAX};
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use base::{Duration, Instant, Prng};
use core::cmp::Reverse;

/// A disk, a link or a core: it serves one thing after the other.
#[derive(Clone, Copy)]
struct Server {
    /// Nanoseconds for a request, half of it or up to twice as much by chance.
    request: u64,
    /// Nanoseconds for a copy of any size,
    copy: u64,
    /// and for each KiB of it.
    kibibyte: u64,
    /// One in so many of both is late by `STALL`, whoever else is there; 0: none.
    stalls_one_in: u64,
    /// So often, by chance half of it or up to as much again, it does nothing for `STALL`: all that are there are late at once. 0: never.
    pauses_every: u64,
}

/// What a scheduler with too much to do makes of an answer now and then.
const STALL: u64 = 15_000_000;

/// Requests in flight at once, each followed by another after a while: from nothing to twice `think`.
#[derive(Clone, Copy)]
struct Load {
    depth: u64,
    think: u64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Happens {
    Asked,
    Answered(u64),
    Copied,
    Wake,
}

fn stall(random: &mut Prng, server: Server) -> u64 {
    let stalls = server.stalls_one_in > 0 && random.once_in(server.stalls_one_in);
    if stalls { STALL } else { 0 }
}

/// Where it is time for that, nothing is served for a while.
fn pause(server: Server, now: u64, random: &mut Prng, next: &mut u64, free: &mut u64) {
    if server.pauses_every > 0 && now >= *next {
        *free = now.max(*free) + STALL;
        *next = now + server.pauses_every / 2 + random.below(server.pauses_every);
    }
}

#[derive(Debug)]
struct Outcome {
    /// 99th percentile, in nanoseconds.
    percentile: u64,
    copied_kib: u64,
    /// The longest time from one copy's end to the next one's, in nanoseconds.
    longest_gap: u64,
}

const SECOND: u64 = 1_000_000_000;

/// Runs `load` for `seconds`, the first of which do not count; with copies or without.
fn run(server: Server, load: Load, copies: bool, seconds: u64) -> Outcome {
    run_limited(server, load, copies, seconds, (0, 0))
}

/// The same under limits: the most and the least bytes per second.
fn run_limited(
    server: Server,
    load: Load,
    copies: bool,
    seconds: u64,
    limits: (u64, u64),
) -> Outcome {
    let mut pace = Pace::new(16, 512, 8);
    pace.limit(limits.0, limits.1, Instant(SECOND));
    let mut random = Prng::new(7);
    let mut queue: BinaryHeap<Reverse<(u64, Happens)>> = BinaryHeap::new();
    for number in 0..load.depth {
        queue.push(Reverse((SECOND + number * 1000, Happens::Asked)));
    }
    queue.push(Reverse((SECOND, Happens::Wake)));
    let (mut free, mut last_copy, start) = (SECOND, SECOND, SECOND);
    let mut next_wake = 0;
    let (mut latencies, mut copied_kib, mut longest_gap) = (Vec::new(), 0, 0);
    let mut next_pause = SECOND;
    while let Some(Reverse((now, happens))) = queue.pop() {
        if now > start + seconds * SECOND {
            break;
        }
        let time = Instant(now);
        pause(server, now, &mut random, &mut next_pause, &mut free);
        match happens {
            Happens::Asked => {
                pace.request_comes(time);
                free = free.max(now) + server.request / 2 + random.below(server.request * 3 / 2);
                let late = stall(&mut random, server);
                queue.push(Reverse((free + late, Happens::Answered(now))));
            }
            Happens::Answered(since) => {
                pace.request_ends(time, Instant(since));
                if now > start + SECOND {
                    latencies.push(now - since);
                }
                let think = random.below(2 * load.think + 1);
                queue.push(Reverse((now + think, Happens::Asked)));
            }
            Happens::Copied => {
                pace.copy_ends(time);
                longest_gap = longest_gap.max(now - last_copy);
                last_copy = now;
            }
            Happens::Wake => {}
        }
        while copies && pace.sync_may_begin(time) {
            let kib = pace.sync_sectors(time) / 2;
            pace.sync_begins(time, kib * 2);
            pace.copy_begins(time);
            copied_kib += kib;
            free = free.max(now) + server.copy + kib * server.kibibyte;
            let late = stall(&mut random, server);
            queue.push(Reverse((free + late, Happens::Copied)));
        }
        let wakes = pace.wake_at().into_iter().chain(pace.sync_wake_at(time));
        // One at a time, as a thread has it.
        let wake = wakes.filter(|wake| copies && wake.0 > now).min();
        if let Some(wake) = wake.filter(|wake| next_wake <= now || wake.0 < next_wake) {
            next_wake = wake.0;
            queue.push(Reverse((wake.0, Happens::Wake)));
        }
    }
    latencies.sort_unstable();
    let percentile = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0);
    Outcome { percentile, copied_kib, longest_gap }
}

/// A fast node in memory, a disk, and a slow disk.
const SERVERS: [Server; 3] = [
    Server { request: 8_000, copy: 15_000, kibibyte: 500, stalls_one_in: 0, pauses_every: 0 },
    Server { request: 40_000, copy: 40_000, kibibyte: 1_000, stalls_one_in: 0, pauses_every: 0 },
    Server {
        request: 1_000_000,
        copy: 1_000_000,
        kibibyte: 8_000,
        stalls_one_in: 0,
        pauses_every: 0,
    },
];

#[test]
fn requests_beside_a_resync_take_at_most_twice_as_long_at_the_99th_percentile() {
    for server in SERVERS {
        for load in [
            Load { depth: 1, think: 0 },
            Load { depth: 1, think: 20_000_000 },
            Load { depth: 16, think: 0 },
            Load { depth: 64, think: 2_000_000 },
        ] {
            let (alone, beside) = (run(server, load, false, 20), run(server, load, true, 20));
            let (usual, felt) = (alone.percentile, beside.percentile);
            assert!(
                felt <= 2 * usual,
                "{} ns: {load_depth} deep: {usual} ns, beside copies {felt}",
                server.request,
                load_depth = load.depth
            );
        }
    }
}

#[test]
fn a_resync_never_stops_whatever_the_load() {
    for server in SERVERS {
        for load in [Load { depth: 1, think: 0 }, Load { depth: 64, think: 0 }] {
            let copied = run(server, load, true, 10);
            let one = (server.copy + 16 * server.kibibyte + server.request * 64 * 2) * 4;
            assert!(copied.longest_gap <= REST_MAX.0 + one, "{copied:?}");
        }
    }
}

#[test]
fn a_light_load_slows_a_resync_and_no_more() {
    let server = SERVERS[1];
    let idle = run(server, Load { depth: 0, think: 0 }, true, 5).copied_kib;
    let light = Load { depth: 4, think: 2_000_000 };
    let beside = run(server, light, true, 5).copied_kib;
    assert!(beside * 12 >= idle, "{beside} KiB beside a load of 8 %, {idle} KiB alone");
}

#[test]
fn a_machine_that_is_slow_for_other_reasons_does_not_starve_a_resync() {
    for stalls_one_in in [3, 10, 50, 150] {
        let times = Server { request: 200_000, copy: 200_000, kibibyte: 2_000, ..SERVERS[1] };
        let server = Server { stalls_one_in, ..times };
        let beside = run(server, Load { depth: 8, think: 0 }, true, 10).copied_kib;
        assert!(beside > 10 * 2 * 1024, "one in {stalls_one_in}: {beside} KiB in ten seconds");
    }
}

#[test]
fn a_machine_that_stands_still_now_and_then_does_not_starve_a_resync() {
    for pauses_ms in [30, 100, 300, 1000] {
        for request in [20_000, 150_000] {
            let times = Server { request, copy: request, kibibyte: request / 100, ..SERVERS[1] };
            let server = Server { pauses_every: pauses_ms * 1_000_000, ..times };
            let load = Load { depth: 16, think: 0 };
            let (alone, beside) = (run(server, load, false, 20), run(server, load, true, 20));
            let (copied, felt) = (beside.copied_kib, (alone.percentile, beside.percentile));
            assert!(copied > 20 * 4 * 1024, "every {pauses_ms} ms, {request} ns: {copied} KiB");
            assert!(felt.1 <= 2 * felt.0, "every {pauses_ms} ms, {request} ns: {felt:?}");
        }
    }
}

#[test]
fn nothing_is_held_back_while_nobody_asks() {
    let mut pace = Pace::new(16, 512, 8);
    let now = Instant(SECOND);
    assert_eq!((pace.pressure(now).copies, pace.pressure(now).sectors), (16, 512));
    pace.request_comes(now);
    pace.request_ends(now + Duration(1000), now);
    assert!(pace.pressure(now).copies < 16);
    let later = now + PRESENCE;
    assert_eq!((pace.pressure(later).copies, pace.pressure(later).sectors), (16, 512));
}

#[test]
fn a_percentile_is_right_to_a_sixteenth() {
    let mut latencies = Latencies::new();
    assert_eq!(latencies.percentile(), None);
    for microseconds in 1..=1000 {
        latencies.add(Duration(microseconds * 1000));
    }
    let found = latencies.percentile().map_or(0, |found| found.0);
    assert!((990_000 * 15 / 16..=990_000 * 17 / 16).contains(&found), "{found}");
}

/// Requests one after the other, each of which takes so long.
fn ask(pace: &mut Pace, now: &mut Instant, microseconds: u64, count: u64) {
    for _ in 0..count {
        pace.request_comes(*now);
        let end = *now + Duration(microseconds * 1000);
        pace.request_ends(end, *now);
        *now = end;
    }
}

#[test]
fn another_application_is_not_judged_by_the_one_before() {
    let mut pace = Pace::new(16, 512, 8);
    let mut now = Instant(SECOND);
    ask(&mut pace, &mut now, 5000, 1000);
    now = now + PRESENCE;
    ask(&mut pace, &mut now, 50, 1000);
    assert!(pace.usual.is_some_and(|usual| usual < Duration(60_000)), "{:?}", pace.usual);
    let level = pace.level;
    pace.copy_begins(now);
    ask(&mut pace, &mut now, 150, 10);
    assert!(pace.level > level, "three times as long as usual is too long");
}

#[test]
fn an_application_that_changes_its_habits_is_judged_by_the_new_ones_soon() {
    let mut pace = Pace::new(16, 512, 8);
    let mut now = Instant(SECOND);
    ask(&mut pace, &mut now, 5000, 1000);
    ask(&mut pace, &mut now, 50, 8000);
    assert!(pace.usual.is_some_and(|usual| usual < Duration(100_000)), "{:?}", pace.usual);
}

#[test]
fn a_resync_takes_as_long_as_its_most_says_whatever_the_load() {
    let server = SERVERS[1];
    for load in [Load { depth: 0, think: 0 }, Load { depth: 4, think: 2_000_000 }] {
        for most_kib in [64, 1024, 16 * 1024] {
            let copied = run_limited(server, load, true, 10, (most_kib * 1024, 0)).copied_kib;
            let (less, more) = (most_kib * 10 * 9 / 10, most_kib * 10 + most_kib / 10 + 256);
            assert!((less..=more).contains(&copied), "{most_kib} KiB/s: {copied} KiB in 10 s");
        }
    }
}

#[test]
fn a_resync_keeps_its_least_under_a_load_that_it_would_yield_to() {
    for server in SERVERS {
        let load = Load { depth: 16, think: 0 };
        let yields_kib = run(server, load, true, 10).copied_kib / 10;
        let least_kib = yields_kib * 2;
        let kept = run_limited(server, load, true, 10, (0, least_kib * 1024)).copied_kib;
        assert!(kept >= least_kib * 10 * 95 / 100, "{} ns: {kept} KiB", server.request);
        // Where both are set the most holds.
        let both = (least_kib * 1024, least_kib * 1024);
        let held = run_limited(server, load, true, 10, both).copied_kib;
        assert!(held <= least_kib * 101 / 10 + 256, "{} ns: {held} KiB", server.request);
        assert!(held >= least_kib * 10 * 9 / 10, "{} ns: {held} KiB", server.request);
    }
}

#[test]
fn a_limit_that_changes_counts_at_once() {
    let mut pace = Pace::new(16, 512, 8);
    let now = Instant(SECOND);
    pace.limit(64 << 10, 0, now);
    assert!(pace.sync_may_begin(now));
    pace.sync_begins(now, 512);
    assert!(!pace.sync_may_begin(now + Duration::from_secs(3)), "256 KiB take four seconds");
    assert_eq!(pace.sync_wake_at(now), Some(now + Duration::from_secs(4)));
    assert!(pace.may_begin(now), "copies that are not a resync's have no limit");
    pace.limit(1 << 20, 0, now);
    assert!(pace.sync_may_begin(now));
    pace.sync_begins(now, 512);
    assert!(!pace.sync_may_begin(now));
    pace.limit(0, 0, now);
    assert!(pace.sync_may_begin(now));
}

#[test]
fn a_probe_ends_though_nothing_is_answered() {
    let mut pace = Pace::new(16, 512, 8);
    let now = Instant(SECOND);
    pace.request_comes(now);
    let probed = pace.pressure(now);
    let later = now + super::PROBE_MAX;
    pace.request_comes(later);
    assert!(pace.pressure(later).rest < probed.rest, "{:?}", pace.pressure(later));
}

#[test]
fn a_burst_of_few_is_forgotten_when_smaller_ones_follow() {
    let mut pace = Pace::new(16, 512, 8);
    let mut now = Instant(SECOND);
    ask(&mut pace, &mut now, 50, 1000);
    for _ in 0..5 {
        pace.note_burst(now, Instant(SECOND));
    }
    assert_eq!(pace.burst_max, 5 * BURST_PARTS);
    for _ in 0..20 {
        now = now + Duration(1_000_000);
        pace.note_burst(now, now);
    }
    assert_eq!(pace.burst_max, BURST_PARTS, "single ones came since");
}

/// The first requests after a start may be the slowest of all.
#[test]
fn what_few_requests_told_counts_for_few() {
    let mut pace = Pace::new(16, 512, 8);
    let mut now = Instant(SECOND);
    ask(&mut pace, &mut now, 60_000, 5);
    assert!(pace.usual.is_some_and(|usual| usual > Duration::from_millis(50)), "a probe is over");
    pace.probe_since = Some(now);
    ask(&mut pace, &mut now, 250, 128);
    assert!(pace.exceeds(Duration::from_millis(5), 170), "it is {:?}", pace.usual);
    // Nor do a few late ones undo what many told.
    pace.probe_since = Some(now);
    ask(&mut pace, &mut now, 60_000, 5);
    assert!(pace.exceeds(Duration::from_millis(12), 170), "it is {:?}", pace.usual);
}

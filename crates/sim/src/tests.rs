//! Tests of the checkers themselves: what they must accept, and what they must not.

use crate::campaign;
use crate::client::GROWTH_NAMES;
use crate::feature::{Choice, Feature};
use crate::history::{Effect, History, OpIndex, Operation};
use crate::plan::Plan;
use base::{Span, VolumeId};

/// Of so many seeds some show what clocks beyond the bound do: about one in four does.
const DRIFT_SEEDS: u64 = 32;

fn operation(effect: Effect) -> Operation {
    Operation {
        volume: VolumeId(0),
        span: Span::new(0, 1).expect("one sector"),
        effect,
        fua: false,
        ok: false,
        ended: false,
    }
}

/// A history written down one event after the other.
#[derive(Default)]
struct Script {
    history: History,
    step: u64,
}

impl Script {
    fn call(&mut self, effect: Effect) -> OpIndex {
        self.ask(operation(effect))
    }

    fn ask(&mut self, operation: Operation) -> OpIndex {
        self.step += 1;
        self.history.call(self.step, self.step, operation)
    }

    fn done(&mut self, index: OpIndex) {
        self.step += 1;
        self.history.answer(self.step, self.step, index, true, Vec::new());
    }

    fn write(&mut self, token: u64) {
        let index = self.call(Effect::Write(token));
        self.done(index);
    }

    fn flush(&mut self) {
        let index = self.call(Effect::Flush);
        self.done(index);
    }

    fn saw(&mut self, index: OpIndex, token: u64) {
        self.step += 1;
        self.history.answer(self.step, self.step, index, true, vec![token]);
    }

    fn read(&mut self, token: u64) {
        let index = self.call(Effect::Read(Vec::new()));
        self.saw(index, token);
    }

    fn abandon(&mut self, index: OpIndex) {
        self.step += 1;
        self.history.abandon(self.step, self.step, index);
    }

    fn expire(&mut self, index: OpIndex) {
        self.step += 1;
        self.history.expire(self.step, self.step, index);
    }

    fn fence(&mut self, index: OpIndex) {
        self.step += 1;
        self.history.fence(self.step, self.step, index);
    }

    fn let_in(&mut self, index: OpIndex) {
        self.step += 1;
        self.history.let_in(self.step, self.step, index);
    }

    fn lose(&mut self) {
        self.step += 1;
        self.history.loss(self.step, self.step);
    }

    /// Of the sector of the first operation, or the next one.
    fn spoil(&mut self, next: bool) {
        self.step += 1;
        let operation = self.history.operation(0);
        let sector = operation.span.first() + u64::from(next);
        self.history.spoil(self.step, self.step, (operation.volume, sector));
    }

    fn is_linear(&self) -> bool {
        self.history.check().is_ok()
    }
}

#[test]
fn a_write_that_was_asked_for_by_another_way_takes_effect_until_that_is_answered_and_not_after() {
    for (late, linear) in [(false, true), (true, false)] {
        let mut script = Script::default();
        let first = script.call(Effect::Write(1));
        script.abandon(first);
        let again = script.call(Effect::Write(1));
        script.write(2);
        // One of the two lies below that, the other above.
        script.read(1);
        script.read(1);
        script.expire(first);
        script.done(again);
        script.read(1);
        script.write(3);
        script.read(if late { 1 } else { 3 });
        assert_eq!(script.is_linear(), linear);
    }
}

#[test]
fn a_write_of_a_host_without_a_right_takes_effect_before_or_once_it_is_let_in() {
    for is_answered in [false, true] {
        for (seen_before, is_let_in, linear) in
            [(true, false, true), (false, true, true), (false, false, false)]
        {
            let mut script = Script::default();
            script.write(1);
            let kept = script.call(Effect::Write(2));
            if seen_before {
                script.read(2);
            }
            script.fence(kept);
            script.read(if seen_before { 2 } else { 1 });
            if is_let_in {
                script.let_in(kept);
            }
            script.read(2);
            if is_answered {
                script.done(kept);
            }
            assert_eq!(script.is_linear(), linear, "{is_answered} {seen_before} {is_let_in}");
        }
    }
}

#[test]
fn a_write_that_is_answered_well_took_effect_although_nobody_saw_it() {
    for (is_let_in, linear) in [(false, false), (true, true)] {
        let mut script = Script::default();
        script.write(1);
        let kept = script.call(Effect::Write(2));
        let late = script.call(Effect::Read(Vec::new()));
        script.fence(kept);
        script.read(1);
        if is_let_in {
            script.let_in(kept);
        }
        script.done(kept);
        script.saw(late, 2);
        script.read(2);
        assert_eq!(script.is_linear(), linear);
    }
}

#[test]
fn a_write_that_nobody_asks_for_any_more_is_not_let_in() {
    let mut script = Script::default();
    script.write(1);
    let given_up = script.call(Effect::Write(2));
    script.fence(given_up);
    script.abandon(given_up);
    script.expire(given_up);
    script.let_in(given_up);
    script.read(1);
    script.read(2);
    assert!(!script.is_linear());
}

#[test]
fn a_read_of_the_last_write_is_linear() {
    let mut script = Script::default();
    script.write(1);
    script.read(1);
    script.write(2);
    script.read(2);
    assert!(script.is_linear());
}

#[test]
fn a_stale_read_is_found() {
    let mut script = Script::default();
    script.write(1);
    script.write(2);
    script.read(1);
    assert!(!script.is_linear());
}

#[test]
fn a_write_that_was_seen_is_not_unseen() {
    let mut script = Script::default();
    script.write(1);
    let open = script.call(Effect::Write(2));
    script.read(2);
    assert!(script.is_linear());
    script.read(1);
    script.abandon(open);
    assert!(!script.is_linear());
}

#[test]
fn a_write_without_an_answer_may_appear_late_or_never() {
    for seen in [1, 2] {
        let mut script = Script::default();
        script.write(1);
        let open = script.call(Effect::Write(2));
        script.abandon(open);
        script.read(1);
        script.read(seen);
        script.read(seen);
        assert!(script.is_linear(), "{seen} may be seen");
    }
}

#[test]
fn a_write_without_an_answer_does_not_come_back_after_it_was_overwritten() {
    let mut script = Script::default();
    let open = script.call(Effect::Write(2));
    script.abandon(open);
    script.read(2);
    script.write(3);
    script.read(3);
    assert!(script.is_linear());
    script.read(2);
    assert!(!script.is_linear());
}

#[test]
fn an_open_write_that_was_seen_and_overwritten_does_not_take_effect_again() {
    let mut script = Script::default();
    let open = script.call(Effect::Write(1));
    script.read(1);
    script.write(2);
    script.read(1);
    script.done(open);
    assert!(script.history.check().is_err());
}

#[test]
fn a_write_may_be_asked_for_as_often_as_one_likes() {
    let mut script = Script::default();
    let left: Vec<OpIndex> = (0..90).map(|asked| script.call(Effect::Write(asked % 3))).collect();
    left.into_iter().for_each(|index| script.abandon(index));
    for _ in 0..10 {
        let reads: Vec<OpIndex> = (0..3).map(|_| script.call(Effect::Read(Vec::new()))).collect();
        (0..).zip(reads).for_each(|(token, index)| script.saw(index, token));
        script.write(100);
        script.read(100);
    }
    assert_eq!(script.history.check().expect("it can be explained"), 0);
    script.write(200);
    script.read(100);
    assert!(!script.is_linear());
}

#[test]
fn of_writes_of_one_value_each_takes_effect_once_and_the_one_that_ends_first_is_used_first() {
    for (reads, linear) in [(1, true), (2, false)] {
        let mut script = Script::default();
        let lasting = script.call(Effect::Write(1));
        let ending = script.call(Effect::Write(1));
        script.abandon(lasting);
        script.abandon(ending);
        script.read(1);
        script.write(2);
        script.read(2);
        script.expire(ending);
        for _ in 0..reads {
            script.read(1);
            script.write(3);
            script.read(3);
        }
        assert_eq!(script.is_linear(), linear);
    }
}

#[test]
fn overlapping_writes_take_either_order() {
    for last in [1, 2] {
        let mut script = Script::default();
        let one = script.call(Effect::Write(1));
        let two = script.call(Effect::Write(2));
        script.done(two);
        script.done(one);
        script.read(last);
        script.read(last);
        assert!(script.is_linear(), "{last} may be last");
        script.read(3 - last);
        assert!(!script.is_linear(), "the other one may not follow");
    }
}

#[test]
fn zeroes_are_told_apart_by_their_times() {
    let mut script = Script::default();
    script.write(0);
    script.write(7);
    script.read(7);
    let zero = script.call(Effect::Write(0));
    script.read(0);
    script.done(zero);
    assert!(script.is_linear());
    script.write(8);
    script.read(0);
    assert!(!script.is_linear());
}

#[test]
fn a_loss_takes_back_what_was_not_flushed_and_nothing_else() {
    for (seen, allowed) in [(1, false), (2, true), (3, true), (4, true)] {
        let mut script = Script::default();
        script.write(1);
        script.write(2);
        script.flush();
        script.write(3);
        script.write(4);
        script.lose();
        script.read(seen);
        assert_eq!(script.is_linear(), allowed, "{seen} after the loss");
        script.read(if seen == 4 { 3 } else { 4 });
        assert!(!script.is_linear(), "what is read after a loss stays");
    }
}

#[test]
fn what_no_copy_has_any_more_is_what_it_was_at_a_flush_or_later_whatever_a_later_flush_says() {
    for (next, seen, allowed) in [(false, 1, false), (false, 2, true), (true, 2, false)] {
        let mut script = Script::default();
        script.write(1);
        script.write(2);
        script.flush();
        script.write(3);
        script.spoil(next);
        script.flush();
        script.read(seen);
        assert_eq!(script.is_linear(), allowed, "{seen}, {next}");
    }
}

#[test]
fn a_flush_makes_stable_what_a_volume_grew_by_as_well() {
    for (flushed, allowed) in [(false, true), (true, false)] {
        let mut script = Script::default();
        let grown = VolumeId(GROWTH_NAMES);
        let write = script.ask(Operation { volume: grown, ..operation(Effect::Write(1)) });
        script.done(write);
        if flushed {
            script.flush();
        }
        script.lose();
        let read = script.ask(Operation { volume: grown, ..operation(Effect::Read(Vec::new())) });
        script.saw(read, 0);
        assert_eq!(script.is_linear(), allowed);
    }
}

#[test]
fn a_stable_write_whose_answer_was_long_on_its_way_holds_nothing_that_came_after_it() {
    for (seen, allowed) in [(1, false), (2, true), (3, true), (4, true)] {
        let mut script = Script::default();
        script.write(1);
        let stable = script.ask(Operation { fua: true, ..operation(Effect::Write(2)) });
        script.write(3);
        script.write(4);
        script.done(stable);
        script.lose();
        script.read(seen);
        assert_eq!(script.is_linear(), allowed, "{seen} after the loss");
    }
}

#[test]
fn a_stable_write_that_was_open_when_all_caches_were_lost_and_is_answered_well_stays() {
    for (seen, allowed) in [(1, false), (2, true)] {
        let mut script = Script::default();
        script.write(1);
        let stable = script.ask(Operation { fua: true, ..operation(Effect::Write(2)) });
        script.lose();
        script.done(stable);
        script.lose();
        script.read(seen);
        assert_eq!(script.is_linear(), allowed, "{seen} after the losses");
    }
}

#[test]
fn without_a_loss_an_unflushed_write_stays() {
    let mut script = Script::default();
    script.write(1);
    script.flush();
    script.write(2);
    script.read(1);
    assert!(!script.is_linear());
}

#[test]
fn every_scenario_comes_true() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the scenarios stand beside the code")
        .map(|entry| entry.expect("a folder can be read").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 8, "the main promises have a scenario each");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a scenario can be read");
        if let Err(error) = crate::scenario::run(&text, false) {
            panic!("{}: {error}", path.display());
        }
    }
}

#[test]
fn a_scenario_fails_where_what_it_looks_for_is_not_so() {
    let begin = "cluster replicas 3\nwrite a 1 0+8\n";
    let apart = "cut 3 | 1 2\nuntil in-sync 1 2\nwrite b 1 0+8\n";
    for (lines, text) in [
        ("holds 2 0+8 is zero", "not [0,"),
        ("failed a", "answered well"),
        ("torn 2", "nothing of its metadata"),
        (&*format!("{apart}identical"), "replicas identical"),
        (&*format!("{apart}identical 2 3"), "replicas identical"),
        (&*format!("{apart}holds 3 0+8 is b"), "not ["),
        (&*format!("{apart}until clean"), "does not come true"),
        ("cut 1 | 2 3\nsubmit c 1 0+8\nfailed c", "not answered"),
        ("waits a", "it is answered"),
        ("holds 2 4+8 is a", "did not write all"),
        ("ask r 1 0+8\nuntil answered\nsaw r is zero", "not [0"),
        ("had c 64+8", "asked for already"),
        ("damage 2 0+1\nidentical", "replicas identical"),
        ("damage 2 0+1\nverify 1\ndone\nfound 8", "they were 16"),
        (&*format!("{apart}mend\nuntil in-sync 1 2 3\ncopied 3 just 9"), "they were 8"),
    ] {
        let error = crate::scenario::run(&format!("{begin}{lines}"), false);
        assert!(error.as_ref().is_err_and(|error| error.contains(text)), "{lines}: {error:?}");
    }
    let well = format!("{begin}{apart}identical 1 2\nholds 3 0+8 is a\nuntil storing 1\ntorn 1");
    assert_eq!(crate::scenario::run(&well, false), Ok(()));
}

#[test]
fn every_mark_of_the_replica_code_is_listed_and_no_other() {
    fn collect(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("the code stands beside") {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("code can be read");
                let words = text.split("Mark(").skip(1).filter_map(|rest| {
                    rest.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)
                });
                found.extend(words);
            }
        }
    }
    let mut found = Vec::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../replica/src");
    collect(std::path::Path::new(folder), &mut found);
    found.sort();
    found.dedup();
    let mut listed: Vec<String> = crate::marks::MARKS.iter().map(|&mark| mark.to_owned()).collect();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn what_a_campaign_need_not_reach_is_a_mark_with_one_reason() {
    for quorum_off in [false, true] {
        for (mark, of, why) in crate::marks::UNREACHED {
            assert!(crate::marks::all().any(|known| known == *mark), "{mark} is no mark");
            assert!(!why.is_empty() && !why.contains(['\t', '\n']), "{mark}: {why:?}");
            if of.is_of(quorum_off) {
                assert_eq!(
                    crate::marks::excuse(mark, quorum_off),
                    Some((*of, *why)),
                    "{mark}, twice"
                );
            }
        }
    }
    assert!(crate::marks::excuse("a volume grows", false).is_none());
}

#[test]
fn five_faults_strike_in_every_run() {
    let struck = |seed| {
        let plan = Plan::new(seed);
        let report = campaign::run(&plan, campaign::STEPS_MAX, false);
        assert_eq!(report.failure, None, "seed {seed}");
        assert!(plan.requests >= 200 && plan.faults.len() >= 5, "seed {seed}");
        (report.faults.values().sum::<u64>(), report.marks)
    };
    let runs: Vec<_> = (1..=60).chain([175, 117_782, 224_781]).map(struck).collect();
    assert!(runs.iter().all(|(faults, _)| *faults >= 5));
    let late = "sim: a fault that waited for an output strikes before all is healed";
    let ends = "sim: a process ends before all is healed, for too little went wrong";
    for mark in [late, ends] {
        assert!(runs.iter().any(|(_, marks)| marks.contains_key(mark)), "{mark}: it shows nothing");
    }
}

#[test]
fn two_runs_of_one_seed_are_the_same() {
    for seed in [3, 4] {
        let plan = Plan::new(seed);
        let one = campaign::run(&plan, campaign::STEPS_MAX, false);
        let other = campaign::run(&plan, campaign::STEPS_MAX, false);
        assert_eq!((one.hash, one.steps), (other.hash, other.steps), "seed {seed}");
    }
}

#[test]
fn every_saved_seed_keeps_its_promise() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../seeds");
    for entry in std::fs::read_dir(folder).expect("the seeds stand at the root") {
        let path = entry.expect("a folder can be read").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("seeds can be read");
        for line in text.lines() {
            let words = line.split('#').next().unwrap_or("");
            let (quorum_off, words) = match words.strip_prefix("quorum-off") {
                Some(words) => (true, words),
                None => (false, words),
            };
            let mut words = words.split_whitespace();
            let Some(seed) = words.next() else { continue };
            let seed = seed.parse().expect("a line begins with a seed");
            let only = words.map(|name| Feature::find(name).expect("a feature has this name"));
            let choice = Choice { only: Some(only.collect()), quorum_off, ..Choice::default() };
            let plan = Plan::chosen(seed, &choice);
            let report = campaign::run(&plan, campaign::STEPS_MAX, false);
            assert_eq!(report.failure, None, "seed {line}");
        }
    }
}

#[test]
fn clocks_beyond_the_bound_break_a_promise_and_at_the_bound_they_do_not() {
    let only = Some([Feature::Drift].into());
    let choice = Choice { only, ..Choice::default() };
    let mut broken = 0;
    for seed in 1..=DRIFT_SEEDS {
        let mut plan = Plan::chosen(seed, &choice);
        let report = campaign::run(&plan, campaign::STEPS_MAX, false);
        broken += u64::from(report.failure.is_some_and(|found| found.checker == "one primary"));
        let bound = i64::try_from(plan.timing.drift_ppm).expect("a small number");
        for drift in &mut plan.drift_ppm {
            *drift = drift.signum() * bound;
        }
        let report = campaign::run(&plan, campaign::STEPS_MAX, false);
        assert_eq!(report.failure, None, "seed {seed}, with clocks at the bound");
    }
    assert!(broken > 0, "clocks may run as they like, and nobody sees it");
}

#[test]
fn runs_without_quorum_have_split_brains_and_end_them() {
    let choice = Choice { quorum_off: true, ..Choice::default() };
    let limits =
        campaign::Limits { from: 1, runs: 40, time: None, failures: 1, choice, twice: false };
    let outcome = campaign::campaign(&limits);
    assert_eq!(outcome.failures, []);
    let count = |mark: &str| outcome.marks.get(mark).copied().unwrap_or_default();
    assert!(count("sim: a split brain is named by both sides") > 0);
    assert!(count("sim: a side was given up") > 0);
}

/// Tests of DRBD's suite: 143, two that are only named, and 27 of the groups that stand beside.
const DRBD_TESTS: &str = include_str!("drbd-tests.txt");

/// Whether a file below `folder` holds `text`.
fn is_written_below(folder: &std::path::Path, text: &str) -> bool {
    let entries = std::fs::read_dir(folder).expect("the code stands beside");
    entries.map(|entry| entry.expect("a folder can be read").path()).any(|path| {
        let code = path.extension().is_some_and(|extension| extension == "rs");
        (path.is_dir() && is_written_below(&path, text))
            || (code && std::fs::read_to_string(&path).is_ok_and(|held| held.contains(text)))
    })
}

#[test]
fn every_test_of_drbd_s_suite_has_a_row_and_every_row_is_true() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/drbd-tests.md")).expect("it is there");
    let labs =
        std::fs::read_to_string(root.join("crates/lab/src/labs.rs")).expect("they are there");
    let mut names = std::collections::BTreeSet::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &["", name, kind, by, ""] = cells.as_slice() else { continue };
        if name.starts_with("DRBD") || name.starts_with("--") {
            continue;
        }
        assert!(names.insert(name.to_owned()), "{name} is there twice");
        let ours: Vec<&str> = by.split('`').skip(1).step_by(2).collect();
        let is_there = |one: &str| match kind {
            "scenario" => root.join(format!("crates/sim/scenarios/{one}.txt")).exists(),
            "lab" => labs.contains(&format!("\"{one}\"")),
            "test" => is_written_below(&root.join("crates"), &format!("fn {one}()")),
            "n/a" => true,
            _ => panic!("{name}: {kind} is no kind of row"),
        };
        let reason = kind == "n/a";
        assert!(reason && by.len() > 8 || !reason && !ours.is_empty(), "{name}: by nothing");
        for one in ours {
            assert!(is_there(one), "{name}: there is no {kind} {one}");
        }
    }
    let known: std::collections::BTreeSet<String> = DRBD_TESTS.lines().map(str::to_owned).collect();
    assert_eq!(names, known);
    assert_eq!(names.len(), 143 + 2 + 27);
}

//! What a scenario's looks say where what they look for is not so, beyond those that `sim`'s own tests have.

use super::run;

/// What a scenario of three replicas, of which node 1 is primary, comes to with these lines.
fn run_lines(lines: &str) -> Result<(), String> {
    run(&format!("cluster replicas 3\nwrite a 1 0+8\n{lines}"), false)
}

/// It fails at the last of these lines, and says this.
fn fails(lines: &str, text: &str) {
    let error = run_lines(lines);
    assert!(error.as_ref().is_err_and(|error| error.contains(text)), "{lines}: {error:?}");
}

#[test]
fn time_in_which_something_is_decided_or_a_connection_made_is_not_calm() {
    fails("crash 3\ncalm 3000", "became");
    fails("break 1 3\ncalm 3000", "became");
    assert_eq!(run_lines("calm 9000"), Ok(()));
}

#[test]
fn what_operators_asked_for_is_done_or_undone() {
    fails("verify 1\ndone\nundone", "has ended");
    assert_eq!(run_lines("verify 1\nundone\ndone"), Ok(()));
}

#[test]
fn a_mark_that_was_not_reached_is_missed() {
    fails("reached resync starts", "it was not");
    let resync = "crash 3\nuntil in-sync 1 2\nstart 3\nuntil in-sync 1 2 3\nreached resync starts";
    assert_eq!(run_lines(resync), Ok(()));
}

#[test]
fn pages_that_are_not_there_or_that_the_others_need_cannot_rot() {
    fails("spoil 2 bits 3", "no such page");
    fails("spoil 2 ink", "flipped, stale");
    fails("crash 3\nuntil in-sync 1 2\ncut 1 | 2\nspoil 2 log", "could not live");
}

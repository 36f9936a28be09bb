//! The search looks where something happens.

use super::scenarios::{Effort, all, every};
use super::search::search;

#[test]
fn every_story_commits_and_writes_when_nothing_goes_wrong() {
    for scenario in all().into_iter().chain(every()) {
        let outcome = search(&scenario, Effort::Plain);
        let failure = outcome.failure.map(|failure| failure.text);
        assert_eq!(failure, None, "{}", scenario.name);
        assert!(outcome.done.0 > 0, "{}: nothing was written", scenario.name);
        assert!(outcome.done.1 > 1, "{}: nothing was committed", scenario.name);
    }
}

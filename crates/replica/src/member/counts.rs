//! Counts that a peer says: ballots and epochs, to which something is added.
//!
//! Always: none is believed to which nobody can have come, so that each can be added to for ever.
//!
//! Not here: whether what is said fits what is known (`register`, `voter`).

use base::Ballot;
use wire::{Configuration, MemberMessage, RefuseReason};

/// More than a resource lives to see: a fork leaves out 2^32 epochs, anything else counts by one.
const COUNT_MAX: u64 = 1 << 62;

/// Whether nobody can have come to what a message says.
pub(super) fn are_beyond(message: &MemberMessage) -> bool {
    let is_beyond = |ballot: &Ballot| ballot.round > COUNT_MAX;
    match message {
        MemberMessage::Hello { known: value, .. } => value.as_ref().is_some_and(is_value_beyond),
        MemberMessage::Promise { ballot, accepted, .. } => {
            is_beyond(ballot) || accepted.as_ref().is_some_and(is_value_beyond)
        }
        MemberMessage::Accept { ballot, configuration }
        | MemberMessage::Learn { ballot, configuration } => {
            is_beyond(ballot) || is_configuration_beyond(configuration)
        }
        MemberMessage::Refused { ballot, reason } => {
            is_beyond(ballot)
                || matches!(reason, RefuseReason::Promised(promised) if is_beyond(promised))
        }
        MemberMessage::Prepare { ballot }
        | MemberMessage::Accepted { ballot, .. }
        | MemberMessage::Heartbeat { ballot, .. }
        | MemberMessage::HeartbeatAnswer { ballot, .. }
        | MemberMessage::Release { ballot } => is_beyond(ballot),
        _ => false,
    }
}

fn is_value_beyond<T: AsRef<Configuration>>((ballot, value): &(Ballot, T)) -> bool {
    ballot.round > COUNT_MAX || is_configuration_beyond(value.as_ref())
}

fn is_configuration_beyond(configuration: &Configuration) -> bool {
    let stretches = configuration.lineage.iter();
    let mut counts = stretches.flat_map(|of| [of.epoch.0, of.ballot.round]);
    configuration.epoch.0.max(configuration.fork) > COUNT_MAX
        || counts.any(|count| count > COUNT_MAX)
}

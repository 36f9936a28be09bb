//! Whether what was known of a copy is still about it.

use base::NodeId;
use wire::Configuration;

/// Whether nothing that was done to bring a replica in sync under `old` counts under `new`: it was declared worthless, its
/// memory is another, or it may have been on another side of a fork meanwhile. Members and shards ask this of the same pairs of
/// configurations, so that neither counts what the other has forgotten.
pub(crate) fn is_another_copy(old: &Configuration, new: &Configuration, node: NodeId) -> bool {
    let Some(now) = new.member(node).filter(|entry| !entry.in_sync) else { return false };
    let is_same = |before: &wire::MemberEntry| {
        before.voter == now.voter && before.incarnation == now.incarnation
    };
    old.fork < new.fork || !old.member(node).is_some_and(is_same)
}

//! The feature level: what every member can do.
//!
//! A resource begins at the level of the first release. A primary raises it when all members are there and can do more; it
//! never goes down. What a release adds that an older one would misread is used from the level on that names it.
//!
//! Always: a node acts on no configuration whose level is above its own: it is not primary, and its shards do not hear of
//! it. Its voter goes on: it need not understand what it keeps.
//!
//! Not here: versions of frames and what two nodes offer each other (`wire::hello`).

use super::{Member, Then};
use base::NodeId;
use wire::{Configuration, FEATURE_LEVEL_FIRST, FEATURE_LEVEL_RESERVATIONS};

impl Member {
    /// Whether this node's release understands the configuration that it knows.
    pub(super) fn can_follow(&self) -> bool {
        let level = self.known.as_ref().map_or(0, |known| known.configuration.feature_level);
        level <= self.feature_level
    }

    /// The highest level that this node and every member can act on; `None` while one of them is away.
    pub(super) fn common_level(&self, known: &Configuration) -> Option<u32> {
        let level_of = |node: NodeId| {
            if node == self.node {
                return Some(self.feature_level);
            }
            let hello = self.peers.get(&node)?.hello.as_ref();
            hello.filter(|_| self.counts(node)).map(|hello| hello.feature_level)
        };
        let others = known.members.iter().map(|member| level_of(member.node));
        others.chain([Some(self.feature_level)]).min().flatten()
    }

    /// Every member can do more than the configuration says.
    pub(super) fn change_level(&self, known: &Configuration) -> Option<(Configuration, Then)> {
        let served = self.reign().is_some_and(|reign| reign.served);
        let level = match self.common_level(known).filter(|_| served)? {
            // Taken when a host asks for it: until then an older release will do.
            FEATURE_LEVEL_RESERVATIONS => FEATURE_LEVEL_FIRST,
            level => level,
        };
        if level <= known.feature_level {
            return None;
        }
        let mut next = Self::successor(known);
        next.feature_level = level;
        Some((next, Then::Nothing))
    }

    /// Whether a node that is to become a member can act on what the others do. One that is not there may turn out later
    /// that it cannot.
    pub(super) fn is_able(&self, node: NodeId, known: &Configuration) -> bool {
        let hello = self.peers.get(&node).and_then(|peer| peer.hello.as_ref());
        hello.is_none_or(|hello| hello.feature_level >= known.feature_level)
    }
}

//! Which answers with an error have a reason.
//!
//! Always: what a client is told that went wrong did. An error is no way out for who would rather not answer. Of a copy that was made from
//! the only one, whose disk was bad, clients may be told what that one lost.
//!
//! Not here: what an answer says of the content (`history`), whether a write was allowed at all (`reservations`).

use crate::history::OpIndex;
use crate::world::{Open, World};
use base::{AnswerError, Epoch};
use wire::{Configuration, OnIoError, OnNoQuorum};

/// What was known when a client asked for something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knew {
    /// The configuration that shards of the node acted on that was asked.
    configuration: (u64, Epoch),
    /// In which step it was told of that one: what came later it may not have heard of.
    since: u64,
    /// Nodes on which the shard could tell, whatever becomes of it, one bit each.
    remembering: u32,
}

impl World {
    /// What was known when something was asked for: where its client went another way with it, also when it was asked for first, and the
    /// less of both.
    pub(crate) fn knew_first(
        &mut self,
        (node, shard): (usize, u16),
        op: OpIndex,
        earlier: &[OpIndex],
    ) -> Knew {
        let first = earlier.iter().find_map(|op| self.oracle.knew.get(op)).copied();
        let now = self.known_at(node, shard);
        let less = |one: Knew| if one.configuration <= now.configuration { one } else { now };
        let knew = first.map_or(now, less);
        self.oracle.knew.insert(op, knew);
        knew
    }

    fn known_at(&self, node: usize, shard: u16) -> Knew {
        let Some(known) = &self.nodes[node].installed else { return Knew::default() };
        let machine = |at: usize| self.nodes[at].process.as_ref()?.shards.get(usize::from(shard));
        // That it ends is on its way there.
        let ends = machine(node).is_some_and(|asked| asked.lost() < known.lost);
        let remembers = |&other: &usize| {
            let since = machine(other).and_then(|shard| shard.remembers_since());
            since.is_some_and(|since| since <= known.reign)
        };
        let remembering = (0..self.nodes.len()).filter(|other| !ends && remembers(other));
        Knew {
            configuration: (known.fork, known.epoch),
            since: self.nodes[node].installed_in,
            remembering: remembering.fold(0, |bits, other| bits | 1 << other),
        }
    }

    /// A fault strikes the disk of a node, or ends its process, or that begins anew. What goes bad unseen strikes it when it is found.
    pub(crate) fn strike(&mut self, node: usize, unseen: bool) {
        let at = if unseen { u64::MAX } else { self.step };
        let struck = &mut self.nodes[node].struck;
        *struck = (*struck).max(Some(at));
    }

    /// Whether each configuration since a node was asked had a copy in sync of which that is true.
    fn always(&self, knew: Knew, spared: impl Fn(usize) -> bool) -> bool {
        let of = |known: &Configuration| {
            (0..self.nodes.len()).any(|node| spared(node) && known.is_in_sync(self.nodes[node].id))
        };
        self.oracle.installed.range(knew.configuration..).all(|(_, known)| of(known))
    }

    /// An answer says that something went wrong.
    pub(crate) fn check_error(&mut self, node: usize, open: &Open, error: AnswerError) {
        if self.sides.is_some() {
            return;
        }
        let options = &self.plan.options;
        let wrong = match error {
            AnswerError::SessionLost => self.loses_session_for_nothing(node, open),
            AnswerError::Io => {
                let failed = |node: usize| self.nodes[node].disk_was_bad;
                let passes = options.on_io_error == OnIoError::PassOn;
                let any = (0..self.nodes.len()).any(failed);
                let well = self.always(open.knew, |node| !failed(node));
                (!any || (well && !passes))
                    .then_some("an error of a disk, and a copy that was always in sync had none")
            }
            AnswerError::NoQuorum => {
                let may = options.on_no_quorum == OnNoQuorum::IoError || self.oracle.fails_waiting;
                (!may).then_some("an error for want of a quorum, and nobody wants that")
            }
            AnswerError::OutOfRange
            | AnswerError::Gone
            | AnswerError::Path
            | AnswerError::Reserved => None,
        };
        if let Some(text) = wrong {
            self.fail("answers", text.to_owned());
        }
    }

    /// A client was told that nobody knows what became of its write: only if no replica that was in sync all the time could tell
    /// when it was asked, and was spared since its node had heard of anything last; or a copy was forced that lacked something, after it was asked; or its node just
    /// comes to a fork, and leaves the history in which it was asked.
    fn loses_session_for_nothing(&self, node: usize, open: &Open) -> Option<&'static str> {
        let forked = self.oracle.newest.as_ref().is_some_and(|newest| newest.fork > 0);
        let leaves = forked && self.nodes[node].left_in == self.step;
        if open.op < self.oracle.unknown_below || leaves {
            return None;
        }
        let knew = open.knew;
        let spared = |node: usize| {
            let struck = self.nodes[node].struck.is_some_and(|at| at >= knew.since);
            knew.remembering & (1 << node) != 0 && !struck
        };
        self.always(open.knew, spared).then_some(
            "a client's session is lost, and a replica that was always in sync was spared",
        )
    }
}

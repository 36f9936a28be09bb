//! Requests that fail because an operator does not want them to wait.
//!
//! An option of the register says what becomes of requests without quorum, and cannot change without one. So this is a
//! word to one node, about the requests that wait there, also those that other nodes handed to it: nothing is stored or
//! told to others, and a new process has forgotten it.
//!
//! Always: it holds only while nodes are missing without which nothing can be answered; when they are back it is over.
//! A write that failed so may have taken effect, or not, for good: like every one that was not answered.
//!
//! Not here: which requests fail (`shard::admit`), the option (`Options::on_no_quorum`).

use super::status::Suspended;
use super::{Member, Out};
use crate::door::{MemberOutput, OperationError, ToShard};

impl Member {
    /// Whether requests here wait for nodes that are missing.
    fn lacks_nodes(&self) -> bool {
        matches!(
            self.suspended(),
            Some(
                Suspended::NoQuorum { .. }
                    | Suspended::NoConfiguration
                    | Suspended::NoReplica { .. }
                    | Suspended::CachesLost { .. }
            )
        )
    }

    pub(super) fn run_fail_waiting(
        &mut self,
        on: bool,
        out: &mut Out,
    ) -> Result<(), OperationError> {
        if on && !self.lacks_nodes() {
            return Err(OperationError::NothingMissing);
        }
        self.tell_fail_waiting(on, out);
        Ok(())
    }

    /// Nothing is missing any more: requests are served, or wait for what comes by itself.
    pub(super) fn end_impatience(&mut self, out: &mut Out) {
        if self.fails_waiting && !self.lacks_nodes() {
            out.push(MemberOutput::Mark("member: requests wait again"));
            self.tell_fail_waiting(false, out);
        }
    }

    fn tell_fail_waiting(&mut self, on: bool, out: &mut Out) {
        if self.fails_waiting != on {
            self.fails_waiting = on;
            Self::tell_shards(ToShard::FailWaiting(on), out);
        }
    }
}

//! Requests of this node's clients while another node is primary: they are sent there.
//!
//! Always: a forwarded request is answered once; if the session or the primary goes first, it is asked
//! anew wherever the primary is then; where there may be two histories, its answer waits until its node acts on what it is
//! answered under.

use super::op::{Client, Origin};
use super::{Out, Shard};
use crate::door::ShardOutput;
use alloc::vec::Vec;
use base::{AnswerError, BufferId, Epoch, HostId, NodeId, Op as Ask, Request, RequestId, VolumeId};
use wire::ShardMessage;

/// Bytes that a shard has at the primary, at most, but for one request: what every node's shards have there
/// must leave the primary room to take what its replicas answer, or nobody gets any further.
const FORWARDED_BYTES_MAX: u64 = 4 << 20;

/// Bytes that a request carries there or back.
fn bytes_of(client: &Client) -> u64 {
    match client.request.op {
        Ask::Read | Ask::Write => client.request.span.length_bytes(),
        Ask::Zero { .. } | Ask::Flush => 0,
    }
}

/// A request that the primary has.
#[derive(Debug)]
pub(super) struct Forwarded {
    pub(super) client: Client,
    to: NodeId,
    /// Its host was not named, for want of knowing that hosts count; and since when it had been asked for before.
    unnamed: Option<Epoch>,
}

impl Shard {
    /// Sends a request of this node to the primary; false if that cannot be done now.
    pub(super) fn forward(&mut self, mut client: Client, out: &mut Out) -> bool {
        let Origin::Local(_) = client.origin else { return false };
        if self.suspended {
            return false;
        }
        let Some(primary) = self.configuration.as_ref().and_then(|known| known.primary) else {
            return false;
        };
        if self.peers.get(&primary).is_none_or(|peer| peer.session.is_none()) {
            return false;
        }
        let Request { op, volume, span, buffer, fua, way: _, host } = client.request;
        self.while_it_stays(&mut client);
        if self.is_of_another_reign(&client) {
            self.answer_late(&client, out);
            return true;
        }
        if op != Ask::Flush && !self.is_place(volume, span) {
            self.answer(&client, Err(AnswerError::OutOfRange), None, out);
            self.release(buffer, out);
            return true;
        }
        if self.is_far_ahead(&client) {
            return false;
        }
        let bytes = bytes_of(&client);
        if self.forwarded_bytes > 0 && self.forwarded_bytes + bytes > FORWARDED_BYTES_MAX {
            // It waits for those before it, not for a primary.
            self.waiting.push_back(Client { since: self.now, ..client });
            return true;
        }
        self.forwarded_bytes += bytes;
        // Each attempt has a number of its own: an answer to an earlier one does not count.
        let id = RequestId(self.sequence());
        let origin = self.origin_of(&client);
        let before = client.asked;
        let first = origin.is_some() && before == Epoch(0);
        if first {
            client.asked = self.reign();
        }
        let (asked, way) = (client.asked, client.way);
        let counts = self.began_to_count_hosts(volume).is_some();
        let unnamed = (!counts && host != HostId(0)).then_some(before);
        self.forwards.insert(id, Forwarded { client, to: primary, unnamed });
        let history = self.configuration.as_ref().map_or(0, |known| known.history());
        let host = if counts { host } else { HostId(0) };
        let message = ShardMessage::Forward {
            id,
            op,
            volume,
            span,
            fua,
            origin,
            asked,
            first,
            history,
            way,
            host,
        };
        self.send(primary, message, buffer, out);
        true
    }

    /// A request that another node forwards to this one; `history` is the stretch that it was on. Only what is said of
    /// this reign or an earlier one is true here, and that it was never asked for before only of this very one: what was
    /// long on its way may have been asked for elsewhere since.
    pub(super) fn on_forward(
        &mut self,
        client: Client,
        in_time: bool,
        history: u64,
        out: &mut Out,
    ) {
        let Origin::Peer { node, .. } = client.origin else { return };
        let volume = client.request.volume;
        if self.is_primary() && in_time && self.follows(node, history, volume) {
            return self.on_request(client, out);
        }
        out.push(ShardOutput::Mark("forwarded to a node that is not primary"));
        self.give_back(client, out);
    }

    /// Whether what a node forwards was asked of what is here. Where there may be two histories, one that has not
    /// heard yet that this node left the other would have its writes carried out on data it never saw, and that it
    /// came here since says nothing of what it sent before: that may arrive after the word that it came. One
    /// that has not heard that all caches were lost may forward for clients that saw what is not so any more, and one that
    /// has not heard that hosts of this volume registered does not say which asks.
    fn follows(&self, node: NodeId, history: u64, volume: VolumeId) -> bool {
        let Some(known) = &self.configuration else { return false };
        let parted = known.may_have_parted();
        if parted && history != known.history() {
            return false;
        }
        let needed = if parted { known.reign.max(known.lost) } else { known.lost };
        let needed = needed.max(self.began_to_count_hosts(volume).unwrap_or_default());
        let ready = self.peers.get(&node).and_then(|peer| peer.ready);
        needed == Epoch(0) || ready.is_some_and(|ready| ready >= needed)
    }

    /// Whether who waits for an answer may hear it. Where there may be two histories, a node that does not act on what it is
    /// answered under may never come to: it would follow another side as if it had only been away, under a client that
    /// was told of this one.
    pub(super) fn may_hear(&self, client: &Client) -> bool {
        let Origin::Peer { node, session, .. } = client.origin else { return true };
        if self.configuration.as_ref().is_none_or(|known| !known.may_have_parted()) {
            return true;
        }
        let peer = self.peers.get(&node).filter(|peer| peer.session == Some(session));
        peer.is_none_or(|peer| peer.ready.is_some_and(|ready| ready >= self.epoch()))
    }

    /// Whether a copy in sync acts on what is answered here, and so will not leave that for another side without a word. One that has done what it was
    /// asked for, and has not heard that another copy is not waited for any more, follows that other one as if it had only been away.
    pub(super) fn is_held_to(&self) -> bool {
        let Some(known) = &self.configuration else { return false };
        let acts = |node: NodeId| {
            let ready = self.peers.get(&node).and_then(|peer| peer.ready);
            ready.is_some_and(|ready| ready >= known.epoch)
        };
        !known.may_have_parted() || self.is_own_in_sync() || known.in_sync().any(acts)
    }

    /// Since which configuration it matters which host asks for something of this volume, if it does.
    fn began_to_count_hosts(&self, volume: VolumeId) -> Option<Epoch> {
        let known = self.configuration.as_ref()?;
        known.reservations_of(volume).map(|reservations| reservations.began)
    }

    /// The primary's answer to a forwarded request.
    pub(super) fn on_forwarded(
        &mut self,
        node: NodeId,
        id: RequestId,
        result: Option<Result<(), AnswerError>>,
        asked: Epoch,
        buffer: Option<BufferId>,
        out: &mut Out,
    ) {
        if self.forwards.get(&id).is_none_or(|forward| forward.to != node) {
            self.release(buffer, out);
            return;
        }
        let forward = self.forwards.remove(&id).expect("looked up above");
        self.forwarded_bytes -= bytes_of(&forward.client);
        match (result, forward.unnamed) {
            (Some(Err(AnswerError::Reserved)), Some(asked)) => {
                // That was said of a host that nobody knows, and nothing was carried out.
                self.give_back(Client { asked, ..forward.client }, out);
            }
            (Some(result), _) => {
                self.answer(&forward.client, result, buffer, out);
                self.release(forward.client.request.buffer, out);
            }
            (None, _) => {
                self.give_back(Client { asked, ..forward.client }, out);
                // Whom the configuration names may be primary no more, and have no cause to be.
                self.want_primary(out);
            }
        }
        self.release(buffer, out);
        if result.is_some() && self.forwarded_bytes <= FORWARDED_BYTES_MAX / 2 {
            self.retry_waiting(out);
        }
    }

    /// Requests that `node` had are to be asked anew.
    pub(super) fn unforward(&mut self, node: NodeId, out: &mut Out) {
        let ids: Vec<RequestId> = self
            .forwards
            .iter()
            .filter(|(_, forward)| forward.to == node)
            .map(|(&id, _)| id)
            .collect();
        if ids.is_empty() {
            return;
        }
        out.push(ShardOutput::Mark("forwarded requests are asked anew"));
        for id in ids {
            let forward = self.forwards.remove(&id).expect("listed above");
            self.forwarded_bytes -= bytes_of(&forward.client);
            self.give_back(forward.client, out);
        }
        self.want_primary(out);
    }

    /// Requests that went to a node that is not primary any more are asked anew.
    pub(super) fn unforward_all_but(&mut self, primary: Option<NodeId>, out: &mut Out) {
        let mut nodes: Vec<NodeId> = self.forwards.values().map(|forward| forward.to).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes.into_iter().filter(|&node| Some(node) != primary) {
            self.unforward(node, out);
        }
    }
}

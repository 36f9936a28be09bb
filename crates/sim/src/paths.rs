//! Clients that have several ways to a volume, as a host has with NVMe multipath: they give one up at any time, for any
//! reason or none, and ask anew by another for what they wait for.
//!
//! Always: what a client was answered by a way that it had given up counts for nothing; once it was answered by another,
//! nothing that is left on the first may take effect.
//!
//! Not here: what they ask (`client`).

use crate::client::{GROWTH_NAMES, as_operation};
use crate::feature::Feature;
use crate::history::{Effect, OpIndex};
use crate::plan::Plan;
use crate::queue::{MILLI, Time};
use crate::world::{Open, World};
use base::{Duration, Op, Prng, Request, RequestId, VolumeId, Way};
use std::collections::BTreeSet;

/// Ways of one client to one node, at most.
const WAYS_MAX: u32 = 10_000;

/// Which way each client goes.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Of each client, how many it has given up; none of a plan whose clients have one way each.
    given_up: Vec<u32>,
    /// Of each client, for how long it surely waits for what a node took from it.
    stays: Vec<Time>,
    /// Requests that were left behind.
    left: BTreeSet<RequestId>,
}

impl Paths {
    pub(crate) fn new(plan: &Plan) -> Paths {
        let mut paths = Paths::default();
        let some_stay = plan.features.contains(&Feature::Stays);
        if some_stay || plan.features.contains(&Feature::Paths) {
            paths.have_several(plan.clients.len());
        }
        if some_stay {
            let mut random = Prng::new(plan.seed ^ 0x57a1_0000_0000_0001);
            let draw = |_| MILLI * random.below(3) * (50 + random.below(700));
            paths.stays = (0..plan.clients.len()).map(draw).collect();
        }
        paths
    }

    /// The clients of this plan have several ways, and go another at any time.
    pub(crate) fn have_several(&mut self, clients: usize) {
        self.given_up = vec![0; clients];
        self.stays = vec![0; clients];
    }

    /// The way of a client now, if it has several.
    pub(crate) fn way(&self, client: usize) -> Option<Way> {
        let given_up = self.given_up.get(client)?;
        let number = u32::try_from(client).expect("few clients") * WAYS_MAX + given_up;
        Some(Way { number, stays: Duration(self.stays[client]) })
    }

    /// Whether a client that waits for what was taken from it at this time waits for it surely, by any clock:
    /// one of which drifts by the hundredth that is allowed, and the other one against it.
    pub(crate) fn waits_for(&self, client: usize, taken: Time, now: Time) -> bool {
        now < taken + self.stays[client] / 100 * 103
    }

    /// What a node has not taken from a client that waits surely before that goes another way is lost with its connection.
    pub(crate) fn is_lost(&mut self, client: usize, id: RequestId) -> bool {
        self.stays.get(client).is_some_and(|&stays| stays > 0) && self.left.remove(&id)
    }

    /// Whether an answer is for a way that was given up. Each is given once.
    pub(crate) fn was_given_up(&mut self, id: RequestId) -> bool {
        self.left.remove(&id)
    }

    /// Requests that were left behind and not answered.
    pub(crate) fn left_count(&self) -> usize {
        self.left.len()
    }
}

impl World {
    /// Whether a client waits for something and could go another way. When all is healed it has patience: each change
    /// of the node that clients are at may be one of primary, and ends what that was at.
    pub(crate) fn may_change_path(&self, client: usize) -> bool {
        let now = self.queue.now();
        let waits = |open: &Open| {
            let taken = open.taken.filter(|_| open.client == client);
            taken.is_some_and(|taken| self.paths.waits_for(client, taken, now))
        };
        self.paths.way(client).is_some()
            && self.open_of_client[client] > 0
            && !self.healed
            && !self.open.values().any(waits)
    }

    /// A node takes a request from a client; false if it was lost before.
    pub(crate) fn takes(&mut self, client: usize, id: RequestId) -> bool {
        if let Some(open) = self.open.get_mut(&id) {
            open.taken = Some(self.queue.now());
        }
        !self.paths.is_lost(client, id)
    }

    /// A client gives its way up, and goes by another node, or by the same one anew.
    pub(crate) fn change_path(&mut self, client: usize) {
        let alive: Vec<usize> = (0..self.plan.roles.len())
            .filter(|&node| self.plan.roles[node] != crate::plan::Role::Witness)
            .filter(|&node| self.is_open(node))
            .collect();
        if alive.is_empty() {
            return;
        }
        let at = usize::try_from(self.random.below(alive.len() as u64)).expect("few nodes");
        self.change_path_to(client, alive[at]);
    }

    /// The same, to this node.
    pub(crate) fn change_path_to(&mut self, client: usize, to: usize) {
        self.mark("sim: a client goes another way");
        let from = std::mem::replace(&mut self.plan.clients[client], to);
        self.paths.given_up[client] += 1;
        if !self.plan.clients.contains(&from) {
            self.count_clients(from, 0);
        }
        self.count_clients(to, 1);
        let mut ids: Vec<RequestId> =
            self.open.iter().filter(|(_, open)| open.client == client).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        for id in ids {
            let open = self.open.remove(&id).expect("listed above");
            self.paths.left.insert(id);
            self.open_of_client[client] -= 1;
            self.ask_again(open);
        }
    }

    /// A client asks once more for what it asked for: for a write. Reads and flushes it leaves.
    pub(crate) fn ask_again(&mut self, open: Open) {
        let (now, step) = (self.queue.now(), self.step);
        let operation = self.history.operation(open.op).clone();
        if operation.effect == Effect::Flush && self.pieces.remove(&open.op).is_none() {
            return;
        }
        self.history.abandon(now, step, open.op);
        let Effect::Write(token) = operation.effect else { return };
        let volume = VolumeId(operation.volume.0 % GROWTH_NAMES);
        let span = operation.span;
        if self.history_volume(volume, span.first()) != operation.volume {
            return;
        }
        let again = as_operation(operation.volume, span, operation.effect, operation.fua);
        let index = self.history.call(now, step, again);
        let shard = self.shard_of(volume, span.first() / self.plan.geometry.extent_sectors);
        let (op, content) = match token {
            0 => (Op::Zero { unmap: false }, None),
            _ => (Op::Write, Some(vec![token; span.count() as usize].into())),
        };
        let request = Request {
            op,
            volume,
            span,
            buffer: None,
            fua: operation.fua,
            way: None,
            host: base::HostId(0),
        };
        let mut earlier = open.earlier;
        earlier.push(open.op);
        self.submit(open.client, (index, earlier), shard, request, content);
    }

    /// A write was answered that had been asked for by other ways.
    pub(crate) fn expire(&mut self, earlier: &[OpIndex]) {
        let (now, step) = (self.queue.now(), self.step);
        for &index in earlier {
            self.history.expire(now, step, index);
            self.side_expires(index);
        }
    }

    /// Clients whose node died go another way, one in two.
    pub(crate) fn leave_dead_path(&mut self, node: usize) {
        for client in 0..self.plan.clients.len() {
            if self.plan.clients[client] == node
                && self.may_change_path(client)
                && self.random.once_in(2)
            {
                self.change_path(client);
            }
        }
    }
}

//! A node's part in a resource changes while its clients stay: a client gets a copy or a vote, a
//! member becomes a client.
//!
//! The machines of a resource are made for one part. So they are made anew, as after a start, and what
//! clients see is only that their requests take a moment: new ones are held, those under way end, the
//! node hands over if it is primary, new machines take the place of the old, and what was held goes to
//! them.
//!
//! Always: no request is under way when machines are exchanged, so none is asked twice; clients, and
//! what they hold, stay; a store is removed only when the newest configuration known here no longer
//! counts on it.
//!
//! Not here: the register's own change of members (`replica`), making stores (`lifecycle`).

use std::collections::BTreeSet;

use base::{Duration, Epoch, Instant, NodeId, ResourceId};
use replica::door::{MemberInput, Operation, OperationId};
use replica::start::Found;
use wire::Configuration;
use wire::admin::{ResourceFile, codes};

use super::admin::no_resource;
use super::files::remove_each;
use super::held::Held;
use super::lifecycle::Known;
use super::threads::Parcel;
use super::{Node, Work};
use crate::backing::{self, Plan, Refused};
use crate::log::{info, warning};
use crate::slab::Key;

/// How long requests under way may take before an operator's change is given up: they wait for
/// something else, and an operator can see for what.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Told how it went.
pub(super) type Done = Box<dyn FnOnce(&mut Node, Result<(), Refused>) + Send>;

/// What the node is to be in the resource.
pub(crate) enum Part {
    /// A member with these stores, which were just made.
    Member(Vec<Plan>, Box<Found>),
    /// A client; these stores are removed.
    Client(Vec<Plan>),
}

/// How far the change has come.
enum Phase {
    /// Requests under way end.
    Draining,
    /// This node hands over.
    Demoting(OperationId),
}

/// A change of this node's part, under way.
pub(crate) struct Recast {
    part: Part,
    phase: Phase,
    /// Then it is given up, or nobody is kept waiting any longer; `None`: it is waited for.
    until: Option<Instant>,
    done: Done,
    /// Requests of clients that wait for the new machines.
    held: Vec<Held>,
    /// Its number among all, and threads whose clients may still have something open.
    round: u64,
    open: BTreeSet<u16>,
}

impl Node {
    /// Begins to change this node's part in a resource that runs. `done` is told how it went.
    pub(super) fn recast(&mut self, key: Key, part: Part, patient: bool, done: Done) {
        let now = self.hands.now();
        let Some(resource) = self.resources.get_mut(key) else {
            let refused = Refused::new(&codes::NO_RESOURCE, "the resource was taken away");
            return done(self, Err(refused));
        };
        if resource.recast.is_some() {
            let message = format!("{}: this node's part in it is changing", resource.name);
            return done(self, Err(Refused::new(&codes::BUSY, message)));
        }
        let until = (!patient).then_some(now + DRAIN_LIMIT);
        let (phase, held, life) = (Phase::Draining, Vec::new(), resource.life);
        let (round, open) = self.hold_homes(life);
        let recast = Recast { part, phase, until, done, held, round, open };
        if let Some(resource) = self.resources.get_mut(key) {
            resource.recast = Some(Box::new(recast));
        }
        self.recasting.push(key);
    }

    /// Clients of another thread have nothing open any more.
    pub(super) fn on_held(&mut self, thread: u16, life: u64, round: u64) {
        let Some(key) = self.resource_of_life(life) else { return };
        let recast = self.resources.get_mut(key).and_then(|entry| entry.recast.as_mut());
        if let Some(recast) = recast.filter(|recast| recast.round == round) {
            recast.open.remove(&thread);
        }
    }

    /// Keeps a client's request for the machines to come; gives it back if there are none to come.
    pub(super) fn hold(&mut self, resource: Key, held: Held) -> Option<Held> {
        let held = self.hold_at_home(resource, held)?;
        let recast = self.resources.get_mut(resource).and_then(|entry| entry.recast.as_mut());
        match recast {
            Some(recast) => {
                recast.held.push(held);
                None
            }
            None => Some(held),
        }
    }

    /// When a change of part is given up.
    pub(super) fn recasts_wake_at(&self) -> Option<Instant> {
        let recasts = self.recasting.iter().filter_map(|key| self.resources.get(*key));
        recasts.filter_map(|entry| entry.recast.as_ref()?.until).min()
    }

    /// Takes every change of part as far as it goes now. Whether machines have something to do then.
    pub(super) fn go_on_recasting(&mut self) -> bool {
        let mut busy = false;
        for key in std::mem::take(&mut self.recasting) {
            if self.resources.get(key).is_none_or(|entry| entry.recast.is_none()) {
                continue;
            }
            if self.is_drained(key) {
                busy = true;
                self.exchange(key);
            } else if self.is_too_late(key) {
                busy = true;
                self.give_up(key);
            } else {
                self.recasting.push(key);
            }
        }
        busy
    }

    /// Whether stores are made or removed here, or machines exchanged, and that ends soon. What waits for requests of
    /// clients may take for ever.
    pub(super) fn is_changing_soon(&self, known: &Known) -> bool {
        let running = known.running.and_then(|key| self.resources.get(key));
        let recast = running.and_then(|resource| resource.recast.as_ref());
        known.busy || recast.is_some_and(|recast| recast.until.is_some())
    }

    fn is_too_late(&self, key: Key) -> bool {
        let recast = self.resources.get(key).and_then(|entry| entry.recast.as_ref());
        let until = recast.and_then(|recast| recast.until);
        until.is_some_and(|until| until <= self.hands.now())
    }

    /// Whether nothing is under way any more, and this node is not primary.
    fn is_drained(&mut self, key: Key) -> bool {
        if self.asked.iter().any(|(_, asked)| asked.resource == key) {
            return false;
        }
        let own = self.config.node;
        let Some(resource) = self.resources.get_mut(key) else { return false };
        let status = resource.member().status();
        let primary = status.configuration.and_then(|known| known.primary) == Some(own);
        let Some(recast) = resource.recast.as_mut() else { return false };
        if !recast.open.is_empty() {
            return false;
        }
        match recast.phase {
            Phase::Draining if primary => {
                let id = self.wish(key, None, Operation::Demote);
                let recast = self.resources.get_mut(key).and_then(|entry| entry.recast.as_mut());
                if let Some(recast) = recast {
                    recast.phase = Phase::Demoting(id);
                }
                false
            }
            Phase::Draining => true,
            // If that failed, the others wait for this node's lease, as if it had died.
            Phase::Demoting(id) => !self.pending.contains_key(&id),
        }
    }

    /// Requests wait for something else. Who was to become a member stays a client. A part that ends was written down as
    /// ended, and goes on ending: only whoever asked waits no longer.
    fn give_up(&mut self, key: Key) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        if let Some(recast) = &mut resource.recast
            && matches!(recast.part, Part::Client(_))
        {
            recast.until = None;
            let done = std::mem::replace(&mut recast.done, Box::new(|_, _| {}));
            let name = &resource.name;
            let message = format!(
                "{name}: requests of this node's clients do not end; its part ends as soon as they do"
            );
            self.recasting.push(key);
            return done(self, Err(Refused::new(&codes::BUSY, message)));
        }
        let Some(recast) = resource.recast.take() else { return };
        let life = resource.life;
        let message = format!(
            "{}: requests of this node's clients do not end, so that its part cannot change now",
            resource.name
        );
        self.release_homes(life);
        self.let_go(recast.held);
        (recast.done)(self, Err(Refused::new(&codes::BUSY, message)));
    }

    /// The resource goes away: what was held goes with its clients.
    pub(super) fn end_recast(&mut self, recast: Recast, why: &str) {
        (recast.done)(self, Err(Refused::new(&codes::NO_RESOURCE, why)));
    }

    /// New machines take the place of the old.
    fn exchange(&mut self, key: Key) {
        let Some(mut old) = self.remove_machines(key) else { return };
        let Some(recast) = old.recast.take() else { return };
        let Recast { part, done, held, .. } = *recast;
        // Before there are new machines, which know nothing of sessions of the old.
        self.tell_all_resources();
        self.fail_operations_of(key);
        let (name, id, count) = (old.name.clone(), old.id, old.clients);
        let (lost, told) = (old.lost, old.told);
        // Its stores close when what is on its way to them has ended.
        drop(old);
        let (found, left) = match part {
            Part::Member(plans, found) => (Some((plans, found)), Vec::new()),
            Part::Client(plans) => (None, plans),
        };
        match found {
            Some((plans, found)) => self.run_found(&name, &plans, Ok(Some(*found))),
            None => self.run_found(&name, &[], Ok(None)),
        }
        let new = self.known.get(&name).and_then(|known| known.running);
        let new = new.expect("a resource runs, be it without its disk");
        self.move_clients(key, new);
        if let Some(entry) = self.resources.get_mut(new) {
            entry.clients = count;
            entry.lost = entry.lost.max(lost);
            entry.told |= told;
            let (life, lost, told) = (entry.life, entry.lost, entry.told);
            self.tell_others(|| Parcel::Since { life, lost, told });
            self.work.push_back(Work::Member(new, MemberInput::Clients { count }));
        }
        self.let_go(held);
        let problem = self.known.get(&name).and_then(|known| known.problem.clone());
        if let Some(problem) = problem {
            return done(self, Err(Refused::new(&codes::STORE_FAILED, problem)));
        }
        if left.is_empty() {
            return done(self, Ok(()));
        }
        self.remove_stores(&name, id, left, done);
    }

    /// Removes what a former member stored.
    pub(super) fn remove_stores(
        &mut self,
        name: &str,
        id: ResourceId,
        plans: Vec<Plan>,
        done: Done,
    ) {
        let (name, cluster) = (name.to_owned(), self.config.cluster);
        if let Some(known) = self.known.get_mut(&name) {
            known.busy = true;
        }
        self.helper().start(move || {
            let result =
                remove_each(&plans, |plan| backing::remove_labelled(plan, &plans, cluster, id));
            Box::new(move |node: &mut Node| {
                if let Some(known) = node.known.get_mut(&name) {
                    known.busy = false;
                }
                match &result {
                    Ok(()) => info!("{name}: what was stored here is removed"),
                    Err(refused) => warning!("{name}: what was stored here is left: {refused}"),
                }
                done(node, result);
            })
        });
    }

    /// Looks whether a committed configuration leaves this node out, which an earlier one named with the
    /// very identity that it still has: then it was removed, and becomes a client. A copy that is made
    /// anew under a new identity is left out only for a moment; another fork says nothing about this one.
    pub(super) fn note_membership(&mut self, key: Key, known: &Configuration) {
        let own = self.config.node;
        let Some(resource) = self.resources.get_mut(key) else { return };
        if let Some(member) = known.member(own) {
            // The first one is what the resource's file says, not what anybody has decided.
            if known.epoch > Epoch(1) {
                resource.named = Some((member.voter, known.fork));
            }
            return;
        }
        let record = resource.disk.as_ref().and_then(|disk| disk.record.as_ref());
        let same = record.map(|record| (record.voter, known.fork));
        if same.is_none() || resource.named != same || resource.recast.is_some() {
            return;
        }
        resource.named = None;
        let name = resource.name.clone();
        let Some(file) = self.known.get(&name).map(|known| known.file.clone()) else { return };
        info!("{name}: this node is no member of it any more");
        let mut next = file.clone();
        next.members.retain(|member| member.node != own.0);
        self.become_client(&name, &file, next, true, Box::new(|_, _| {}));
    }

    /// This node's part, as `old` describes it, ends; `next` describes the resource without it.
    pub(super) fn become_client(
        &mut self,
        name: &str,
        old: &ResourceFile,
        next: ResourceFile,
        patient: bool,
        done: Done,
    ) {
        // Stores that are not in use were perhaps never this resource's: they are left alone.
        let running = self.known.get(name).and_then(|known| known.running);
        let attached = running.and_then(|key| self.resources.get(key));
        let attached = attached.is_some_and(|resource| resource.disk.is_some());
        let plans = if attached { self.plans(old) } else { Vec::new() };
        if let Err(refused) = self.save(&next) {
            warning!("{name}: {refused}");
            return done(self, Err(refused));
        }
        self.is_uncreated_no_more(name);
        let Some(known) = self.known.get_mut(name) else {
            return done(self, Err(no_resource(name)));
        };
        known.file = next;
        if let Some(key) = running {
            self.settle_nodes(key);
        }
        match running {
            Some(key) => self.recast(key, Part::Client(plans), patient, done),
            None => {
                self.run_found(name, &plans, Ok(None));
                done(self, Ok(()));
            }
        }
    }

    /// Whether the newest configuration known here counts on what this node holds.
    pub(super) fn is_counted_on(&self, key: Key, node: NodeId) -> bool {
        let known = self.resources.get(key).map(|entry| entry.member().status().configuration);
        known.flatten().is_some_and(|known| known.member(node).is_some())
    }
}

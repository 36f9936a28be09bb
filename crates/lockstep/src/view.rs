//! How resources are: gathering what nodes say, choosing whom to believe, showing it.
//!
//! Always: of several views of one resource the one with the newest configuration is shown, the
//! primary's own before others of the same; what only a stale view says is never shown as fact. Views belong together
//! by name and identity: where a node was away, two resources may have one name, and then both are shown. Whatever is
//! asked of one resource by a name that two have is refused.
//!
//! Not here: why it is so (`explain`), every change as it comes (`events`).

mod events;
mod show;
pub(crate) mod split;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use wire::admin::{ReplicaState, ReplicaStatus, ResourceStatus, Status};

use crate::admin::{Node, QUESTION_LIMIT};
use crate::cli::{Form, Global, Wanted};
use crate::cluster::Cluster;
use crate::output::{Style, say, say_json};
use crate::problem::{AMBIGUOUS, PROTOCOL, Problem, RESOURCE_ABSENT};

pub(crate) use events::events;
pub(crate) use show::{human, label, silent_line, size_of};
pub(crate) use watch::{Watching, wait};
#[cfg(test)]
pub(crate) use watch::{event_line, look_limit};

/// A resource: its name, and its identity in hexadecimal.
pub(crate) type Key = (String, String);

/// Resources as the reachable nodes see them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Views {
    /// Every view of a resource, with the name of the node whose it is.
    pub(crate) resources: BTreeMap<Key, Vec<(String, ResourceStatus)>>,
    /// Nodes that answered.
    pub(crate) answering: Vec<String>,
    /// Nodes that did not answer, with the reason.
    pub(crate) silent: Vec<(String, String)>,
    /// What nodes say of themselves that an operator should know.
    pub(crate) warnings: Vec<(String, String)>,
}

impl Views {
    /// Asks all nodes. Fails only if none of them answers, or they are of different clusters.
    pub(crate) fn gather(cluster: &Cluster, name: Option<&str>) -> Result<Views, Problem> {
        Views::gather_within(cluster, name, QUESTION_LIMIT)
    }

    /// The same; a node that does not answer in this time is silent.
    pub(crate) fn gather_within(
        cluster: &Cluster,
        name: Option<&str>,
        limit: Duration,
    ) -> Result<Views, Problem> {
        let mut views = Views::default();
        let mut first = None;
        let mut clusters = Vec::new();
        let answers = cluster.ask_each(|node| node.status_within(name, limit));
        for (node, answer) in cluster.nodes.iter().zip(answers) {
            match answer {
                Ok(status) => {
                    clusters.push((node.name.as_str(), status.cluster.clone()));
                    views.answering.push(node.name.clone());
                    views.add(cluster, node, status);
                }
                Err(problem) if problem.is(&wire::admin::codes::NO_RESOURCE) => {
                    views.answering.push(node.name.clone());
                }
                Err(problem) => {
                    views.silent.push((node.name.clone(), problem.message.clone()));
                    first.get_or_insert(problem);
                }
            }
        }
        cluster.refuse_mixed(clusters.iter().map(|(node, said)| (*node, said.as_str())))?;
        match first {
            Some(problem) if views.answering.is_empty() => Err(problem),
            _ => Ok(views),
        }
    }

    fn add(&mut self, cluster: &Cluster, node: &Node, status: Status) {
        self.warnings.extend(status.warnings.into_iter().map(|what| (node.name.clone(), what)));
        let meant = |view: &ResourceStatus| {
            cluster.identity.is_none() || cluster.identity == identity_of(view)
        };
        for resource in status.resources.into_iter().filter(meant) {
            self.insert(&node.name, resource);
        }
    }

    /// What a node says of a resource.
    pub(crate) fn insert(&mut self, node: &str, view: ResourceStatus) {
        let key = (view.name.clone(), view.id.clone());
        self.resources.entry(key).or_default().push((node.to_owned(), view));
    }

    /// Asks all nodes about the one resource that has this name, and gives them back as nodes that are asked about
    /// no other. Refused if two have it, and it is not said which is meant.
    pub(crate) fn one(cluster: &Cluster, name: &str) -> Result<(Cluster, Views), Problem> {
        Views::gather(cluster, Some(name))?.about(cluster, name)
    }

    /// The same, with what was gathered.
    pub(crate) fn about(self, cluster: &Cluster, name: &str) -> Result<(Cluster, Views), Problem> {
        self.refuse_ambiguous(name)?;
        let Some(best) = self.best(name) else { return Ok((cluster.clone(), self)) };
        let nameless =
            || Problem::new(PROTOCOL, format!("{name}: no node says which resource that is"));
        let cluster = cluster.about(identity_of(best).ok_or_else(nameless)?);
        Ok((cluster, self))
    }

    /// Refuses a name that several resources have.
    pub(crate) fn refuse_ambiguous(&self, name: &str) -> Result<(), Problem> {
        if !self.names_several(name) {
            return Ok(());
        }
        let all = self.resources.iter().filter(|((other, _), _)| other == name);
        let each = all.map(|((_, id), views)| {
            let nodes: Vec<&str> = views.iter().map(|(node, _)| node.as_str()).collect();
            format!("{id} (known to {})", nodes.join(", "))
        });
        let each: Vec<String> = each.collect();
        let message = format!("{name} names {} resources: {}", each.len(), each.join(" and "));
        Err(Problem::new(AMBIGUOUS, message))
    }

    /// Nodes that may hold a part of it and did not say so: those that are silent, and members that were not asked.
    pub(crate) fn unheard(&self, name: &str) -> Vec<String> {
        let mut unheard: Vec<String> = self.silent.iter().map(|(node, _)| node.clone()).collect();
        let views = self.resources.iter().filter(|((other, _), _)| other == name);
        let rows = views.flat_map(|(_, views)| views).flat_map(|(_, view)| &view.replicas);
        for row in rows.filter(|row| row.state != ReplicaState::Diskless) {
            if !self.answering.contains(&row.node) && !unheard.contains(&row.node) {
                unheard.push(row.node.clone());
            }
        }
        unheard
    }

    /// Whether more than one resource has this name.
    pub(crate) fn names_several(&self, name: &str) -> bool {
        self.resources.keys().filter(|(other, _)| other == name).count() > 1
    }

    /// The views of one resource only.
    pub(crate) fn only(&self, key: &Key) -> Views {
        let resources = self.resources.get(key).map(|views| (key.clone(), views.clone()));
        Views {
            resources: resources.into_iter().collect(),
            answering: self.answering.clone(),
            silent: self.silent.clone(),
            warnings: Vec::new(),
        }
    }

    /// All views of the resource. Of several with this name those of the first: see `refuse_ambiguous`.
    pub(crate) fn all_of(&self, name: &str) -> &[(String, ResourceStatus)] {
        let found = self.resources.iter().find(|((other, _), _)| other == name);
        found.map_or(&[], |(_, views)| views.as_slice())
    }

    /// The view to believe.
    pub(crate) fn best(&self, name: &str) -> Option<&ResourceStatus> {
        best_of(self.all_of(name))
    }

    /// The same for every resource, as one status.
    pub(crate) fn merged(&self) -> Status {
        let all = self.resources.values();
        let resources = all.filter_map(|views| Some(self.completed(best_of(views)?, views)));
        let resources = resources.collect();
        let warnings = self.warnings.iter().map(|(node, what)| format!("{node}: {what}")).collect();
        Status { version: 1, resources, warnings, cluster: String::new(), more: false }
    }

    /// The view to believe, with what only the others know.
    pub(crate) fn whole(&self, name: &str) -> Result<ResourceStatus, Problem> {
        let best = self.require(name)?;
        Ok(self.completed(best, self.all_of(name)))
    }

    fn completed(
        &self,
        best: &ResourceStatus,
        views: &[(String, ResourceStatus)],
    ) -> ResourceStatus {
        let mut whole = completed(best, views);
        note_unjoined(&mut whole, views);
        let unmade = unmade(&self.answering, best, views);
        whole.uncreated = !unmade.is_empty();
        for row in whole.replicas.iter_mut().filter(|row| unmade.contains(&row.node)) {
            row.state = ReplicaState::Detached;
            row.reason = Some(UNMADE.to_owned());
        }
        whole
    }

    /// Nodes that were left out when the resource was forced, as any node remembers.
    pub(crate) fn left_out(&self, name: &str) -> Vec<String> {
        let Some(best) = self.best(name) else { return Vec::new() };
        missed(best, self.all_of(name))
    }

    /// What `node` itself says of the resource.
    pub(crate) fn of(&self, name: &str, node: &str) -> Option<&ResourceStatus> {
        self.all_of(name).iter().find(|(whose, _)| whose == node).map(|(_, view)| view)
    }

    /// The view to believe, or the problem that there is none.
    pub(crate) fn require(&self, name: &str) -> Result<&ResourceStatus, Problem> {
        self.best(name).ok_or_else(|| absent(name, &self.silent))
    }
}

/// What is said of a member whose part was never made.
const UNMADE: &str = "its part was never made: a `create` was interrupted, or is under way";

/// The identity of a resource; `None` if its node says none.
pub(crate) fn identity_of(view: &ResourceStatus) -> Option<u64> {
    u64::from_str_radix(&view.id, 16).ok()
}

/// Whether a resource is as it was when it was born: nobody ever was primary of it.
pub(crate) fn is_unused(view: &ResourceStatus) -> bool {
    view.epoch <= 1 && view.primary.is_none() && view.clients == 0 && view.fork == 0
}

/// Whether a node was to become a member and is none yet, as it says itself; `best` is the view to believe.
pub(crate) fn is_unjoined(best: &ResourceStatus, node: &str, own: &ResourceStatus) -> bool {
    let is_member = |row: &ReplicaStatus| row.node == node && row.state != ReplicaState::Diskless;
    (own.uncreated || own.unjoined) && !best.replicas.iter().any(is_member)
}

/// Says of such nodes what an operator can do, instead of what they lack.
fn note_unjoined(whole: &mut ResourceStatus, views: &[(String, ResourceStatus)]) {
    for (node, own) in views {
        if !is_unjoined(whole, node, own) {
            continue;
        }
        for what in &own.warnings {
            let what = format!("{node}: {what}");
            whole.warnings.retain(|other| *other != what);
        }
        whole.warnings.push(format!(
            "{node}: `add-replica` was interrupted, or is under way: {node} is no member yet. Say it again, or remove what \
             it has left: `lockstep resource remove-replica {} --node {node}`",
            whole.name
        ));
    }
}

/// Whether all that is there of a resource is what its deletion has left on nodes that were away. A majority of such
/// nodes may go on with it.
pub(crate) fn is_remnant(view: &ResourceStatus) -> bool {
    view.left_over && !view.quorum
}

/// Members of a resource that was never used whose parts were never made, of nodes that answer.
pub(crate) fn unmade(
    answering: &[String],
    best: &ResourceStatus,
    views: &[(String, ResourceStatus)],
) -> Vec<String> {
    if !views.iter().all(|(_, view)| is_unused(view) && !view.left_over) {
        return Vec::new();
    }
    let is_unmade = |node: &String| {
        let own = views.iter().find(|(whose, _)| whose == node);
        own.map_or(answering.contains(node), |(_, view)| view.uncreated)
    };
    let members = best.replicas.iter().filter(|row| row.state != ReplicaState::Diskless);
    members.map(|row| row.node.clone()).filter(is_unmade).collect()
}

/// Nobody who answers knows the resource.
pub(crate) fn absent(name: &str, silent: &[(String, String)]) -> Problem {
    let mut message = format!("there is no resource {name:?}");
    if !silent.is_empty() {
        let names: Vec<&str> = silent.iter().map(|(name, _)| name.as_str()).collect();
        message.push_str(&format!("; not asked, because they do not answer: {}", names.join(", ")));
    }
    Problem::new(RESOURCE_ABSENT, message)
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The newest configuration wins; among equals the primary's own view, then that of a node that holds everything, then
/// one with a quorum. Of the first configuration each node has what it was told, and a node that is only to become a
/// member was told of itself as one.
fn best_of(views: &[(String, ResourceStatus)]) -> Option<&ResourceStatus> {
    let part = |whose: &String, view: &ResourceStatus| {
        let own = view.replicas.iter().find(|row| row.node == *whose);
        let copy =
            own.filter(|own| !matches!(own.state, ReplicaState::Diskless | ReplicaState::Witness));
        match copy.map(|copy| copy.in_sync) {
            _ if view.uncreated => 0,
            Some(false) => 0,
            None => 1,
            Some(true) => 2,
        }
    };
    let rank = |(whose, view): &(String, ResourceStatus)| {
        let first = view.epoch <= 1;
        let part = if first { part(whose, view) } else { 0 };
        (view.epoch, view.primary.as_ref() == Some(whose), part, view.quorum)
    };
    // `max_by_key` would take the last of equals; the first node is the steadier choice.
    let best = views.iter().rev().max_by_key(|entry| rank(entry));
    best.map(|(_, view)| view)
}

/// Who was left out, and is no member again.
fn missed(best: &ResourceStatus, views: &[(String, ResourceStatus)]) -> Vec<String> {
    let member = |node: &String| {
        let row = best.replicas.iter().find(|replica| replica.node == *node);
        row.is_some_and(|replica| replica.state != ReplicaState::Diskless)
    };
    let same_fork = views.iter().filter(|(_, view)| view.fork == best.fork);
    let all = same_fork.flat_map(|(_, view)| &view.left_out).filter(|node| !member(node));
    let mut nodes: Vec<String> = all.cloned().collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// A view, with what only the others know: each node what its own store is made of, why it failed, what it warns of,
/// and which clients it has.
fn completed(best: &ResourceStatus, views: &[(String, ResourceStatus)]) -> ResourceStatus {
    let mut whole = best.clone();
    whole.left_out = missed(best, views);
    whole.clients = views.iter().map(|(_, view)| view.clients).sum();
    let warnings = views
        .iter()
        .flat_map(|(node, view)| view.warnings.iter().map(move |what| format!("{node}: {what}")));
    whole.warnings = warnings.collect();
    if whole.split_brain.is_empty()
        && let Some((_, seen)) = views.iter().find(|(_, view)| !view.split_brain.is_empty())
    {
        whole.split_brain.clone_from(&seen.split_brain);
    }
    for replica in &mut whole.replicas {
        let own = views.iter().find(|(whose, _)| *whose == replica.node);
        let same =
            own.and_then(|(_, view)| view.replicas.iter().find(|row| row.node == replica.node));
        let Some(same) = same else { continue };
        if replica.store.is_none() {
            replica.store.clone_from(&same.store);
        }
        if replica.rot.is_none() {
            replica.rot = same.rot;
        }
        let copy = !matches!(replica.state, ReplicaState::Diskless | ReplicaState::Witness);
        if copy && same.state == ReplicaState::Detached {
            // The others hear that later, or not at all: without a store a node may have no session about it.
            replica.state = ReplicaState::Detached;
            replica.reason = None;
        }
        let unused = matches!(replica.state, ReplicaState::Detached | ReplicaState::Behind);
        if unused && (replica.reason.is_none() || same.vote_lost) && same.reason.is_some() {
            replica.reason.clone_from(&same.reason);
        }
    }
    whole
}

/// Whether the resource is as wanted; if not, what is missing.
pub(crate) fn reached(
    views: &Views,
    cluster: &Cluster,
    name: &str,
    wanted: Wanted,
) -> Result<(), String> {
    let Some(view) = views.best(name) else { return Err("no node tells of it".to_owned()) };
    if matches!(wanted, Wanted::InSync | Wanted::Healthy) {
        for replica in &view.replicas {
            let data = !matches!(replica.state, ReplicaState::Witness | ReplicaState::Diskless);
            let counts =
                data || wanted == Wanted::Healthy && replica.state == ReplicaState::Witness;
            if counts && views.silent.iter().any(|(silent, _)| *silent == replica.node) {
                return Err(format!("the node {} does not answer", replica.node));
            }
            if data && !(replica.in_sync && replica.state == ReplicaState::InSync) {
                return Err(format!("the replica on {} is not in sync", replica.node));
            }
        }
    }
    if wanted == Wanted::Primary {
        let Some(primary) = &view.primary else { return Err("no node is primary".to_owned()) };
        let known = cluster.nodes.iter().any(|node| node.name == *primary);
        let alive = if known {
            views.of(name, primary).is_some_and(|own| own.primary.as_ref() == Some(primary))
        } else {
            view.replicas.iter().any(|replica| replica.node == *primary && replica.connected)
        };
        if !alive {
            return Err(format!("the primary {primary} does not answer"));
        }
    }
    if wanted == Wanted::Healthy {
        if let Some(node) = views.left_out(name).first() {
            return Err(format!("the copy on {node} was left out when the resource was forced"));
        }
        let lost = view.replicas.iter().find(|replica| {
            replica.state == ReplicaState::Absent
                || replica.state == ReplicaState::Witness && !replica.connected
        });
        if let Some(replica) = lost {
            return Err(format!("{} cannot be reached", replica.node));
        }
        if !view.quorum {
            return Err("there is no quorum".to_owned());
        }
    }
    match &view.suspended {
        Some(reason) if wanted != Wanted::InSync => Err(held(view, reason)),
        _ => Ok(()),
    }
}

/// What becomes of requests that cannot be served, and why they cannot.
fn held(view: &ResourceStatus, reason: &str) -> String {
    if view.requests_fail {
        format!("requests get I/O errors ({}): {reason}", why_errors(view))
    } else {
        format!("requests wait: {reason}")
    }
}

/// Who wants that requests fail instead of waiting.
pub(crate) fn why_errors(view: &ResourceStatus) -> &'static str {
    if view.failed_by_operator { "as an operator wants" } else { "on-no-quorum = io-error" }
}

/// `lockstep status`.
pub(crate) fn status(global: &Global, name: Option<&str>, watching: bool) -> Result<(), Problem> {
    let style = Style::of(global);
    let cluster = Cluster::open(global)?;
    if watching {
        return watch::watch(&cluster, style, name);
    }
    let views = Views::gather(&cluster, name)?;
    if let Some(name) = name {
        views.require(name)?;
    }
    match style.form {
        Form::Json => say_json(&views.merged()),
        Form::Human => say(&human(style, &views)),
    }
}

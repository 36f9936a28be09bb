//! `lockstep events`: what happens to the resources of the cluster, wherever it happens.
//!
//! Every node is heard, each by a thread of its own that connects again when its node has ended. What they say is
//! put together as for `lockstep status`, and a line is told when that has changed. So a change is told once, by
//! whoever sees it best, and not once for each node.
//!
//! Always: lines are numbered from 1 without gaps, in the order in which they are told; a resource is gone only if
//! no node that answers knows it, and none that might is silent.
//!
//! Not here: what a node takes for a change (`wire::admin`), how a line looks to people (`watch`).

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use wire::admin::{Event, ResourceStatus};

use super::show::label;
use super::watch::event_line;
use super::{Key, Views, identity_of, now_ms};
use crate::admin::Node;
use crate::cli::{Form, Global};
use crate::cluster::Cluster;
use crate::output::{Style, say, say_json};
use crate::problem::{Problem, UNREACHED};

/// Between two tries to reach a node that is silent.
const AGAIN_EVERY: Duration = Duration::from_millis(250);

/// How long what nodes say of one change is gathered: they speak of it within a tenth of a second.
const GATHER: Duration = Duration::from_millis(150);

/// What is heard of a node, by its place among all.
enum Heard {
    /// It answers, and knows these resources.
    Answers(Vec<(String, ResourceStatus)>),
    Changed(Box<Event>),
    Silent(String),
}

/// One line for programs.
#[derive(Debug, Serialize)]
pub(crate) struct EventJson {
    version: u16,
    number: u64,
    at_ms: u64,
    resource: String,
    /// As in `lockstep status`; nothing if the resource is gone.
    status: Option<ResourceStatus>,
    /// Nodes that do not answer.
    silent: Vec<String>,
    /// What people are told it is called.
    #[serde(skip)]
    label: String,
}

/// What is known, and what was told of it.
#[derive(Default)]
pub(crate) struct Stream {
    names: Vec<String>,
    /// Only of this resource.
    identity: Option<u64>,
    /// Of each node, the resources as it saw them last.
    seen: Vec<BTreeMap<String, ResourceStatus>>,
    /// Of each node, why it does not answer.
    silent: Vec<Option<String>>,
    told: BTreeMap<Key, ResourceStatus>,
    told_silent: Vec<String>,
    number: u64,
    /// When something changed last, by the clock of whoever said it.
    at_ms: u64,
}

impl Stream {
    fn new(names: Vec<String>) -> Stream {
        let count = names.len();
        let seen = (0..count).map(|_| BTreeMap::new()).collect();
        Stream { names, seen, silent: vec![Some(String::new()); count], ..Stream::default() }
    }

    fn hear(&mut self, node: usize, heard: Heard) {
        match heard {
            Heard::Answers(resources) => {
                self.silent[node] = None;
                self.seen[node] = resources.into_iter().collect();
                self.at_ms = now_ms();
            }
            Heard::Changed(event) => {
                self.at_ms = event.at_ms;
                match event.status {
                    Some(status) => self.seen[node].insert(event.resource, status),
                    None => self.seen[node].remove(&event.resource),
                };
            }
            Heard::Silent(why) => {
                self.silent[node] = Some(why);
                self.at_ms = now_ms();
            }
        }
    }

    /// What nodes that answer say.
    fn views(&self) -> Views {
        let mut views = Views::default();
        for (place, name) in self.names.iter().enumerate() {
            if let Some(why) = &self.silent[place] {
                views.silent.push((name.clone(), why.clone()));
                continue;
            }
            let meant = |status: &&ResourceStatus| {
                self.identity.is_none() || self.identity == identity_of(status)
            };
            for status in self.seen[place].values().filter(meant) {
                views.insert(name, status.clone());
            }
        }
        views
    }

    /// Lines that are to be told now, each with what was told of its resource before.
    fn lines(&mut self) -> Vec<(EventJson, Option<ResourceStatus>)> {
        let views = self.views();
        let silent: Vec<String> = views.silent.iter().map(|(name, _)| name.clone()).collect();
        let lost = silent != self.told_silent;
        let mut changed: Vec<(Key, String, Option<ResourceStatus>)> = Vec::new();
        for status in views.merged().resources {
            let key = (status.name.clone(), status.id.clone());
            if lost || self.told.get(&key).is_none_or(|told| !told.is_like(&status)) {
                changed.push((key, label(&views, &status), Some(status)));
            }
        }
        for (key, told) in &self.told {
            let known_to =
                |place: usize| self.seen[place].get(&key.0).is_some_and(|seen| seen.id == key.1);
            let several = views.names_several(&key.0) || views.best(&key.0).is_some();
            let label = if several { format!("{} (id {})", key.0, key.1) } else { key.0.clone() };
            let (mut answering, mut remembered) = (false, false);
            for place in (0..self.names.len()).filter(|place| known_to(*place)) {
                answering |= self.silent[place].is_none();
                remembered |= self.silent[place].is_some();
            }
            match (answering, remembered) {
                (true, _) => {}
                (false, true) if lost => changed.push((key.clone(), label, Some(told.clone()))),
                (false, true) => {}
                (false, false) => changed.push((key.clone(), label, None)),
            }
        }
        self.told_silent.clone_from(&silent);
        let lines = changed.into_iter();
        lines.map(|(key, label, status)| self.line(key, label, status, &silent)).collect()
    }

    fn line(
        &mut self,
        key: Key,
        label: String,
        status: Option<ResourceStatus>,
        silent: &[String],
    ) -> (EventJson, Option<ResourceStatus>) {
        let before = match &status {
            Some(status) => self.told.insert(key.clone(), status.clone()),
            None => self.told.remove(&key),
        };
        self.number += 1;
        let (number, at_ms, silent) = (self.number, self.at_ms, silent.to_vec());
        let resource = key.0;
        (EventJson { version: 1, number, at_ms, resource, status, silent, label }, before)
    }
}

/// `lockstep events`.
pub(crate) fn events(global: &Global, name: Option<&str>) -> Result<(), Problem> {
    let style = Style::of(global);
    let cluster = Cluster::open(global)?;
    let views = Views::gather(&cluster, name)?;
    if let Some(name) = name {
        views.require(name)?;
    }
    let (tell, heard) = channel();
    for (place, node) in cluster.nodes.iter().enumerate() {
        let (node, tell, name) = (node.clone(), tell.clone(), name.map(str::to_owned));
        thread::spawn(move || listen(place, &node, name.as_deref(), &tell));
    }
    let names = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    let stream = Stream { identity: cluster.identity, ..Stream::new(names) };
    follow(style, stream, &heard, cluster.nodes.len())
}

/// Hears one node for as long as somebody listens.
fn listen(place: usize, node: &Node, name: Option<&str>, tell: &Sender<(usize, Heard)>) {
    loop {
        let begun = || match node.status(name) {
            Ok(status) => {
                let resources = status.resources.into_iter();
                Heard::Answers(resources.map(|one| (one.name.clone(), one)).collect())
            }
            // It answers; that is all that counts here.
            Err(_) => Heard::Answers(Vec::new()),
        };
        // The look comes after the node began to tell: what changes between both is in both.
        let outcome = node.events(name, &mut |heard| {
            let heard = heard.map_or_else(begun, |event| Heard::Changed(Box::new(event)));
            tell.send((place, heard)).is_ok()
        });
        let why = match outcome {
            Ok(()) => return,
            Err(problem) => problem.message,
        };
        if tell.send((place, Heard::Silent(why))).is_err() {
            return;
        }
        thread::sleep(AGAIN_EVERY);
    }
}

fn follow(
    style: Style,
    mut stream: Stream,
    heard: &Receiver<(usize, Heard)>,
    nodes: usize,
) -> Result<(), Problem> {
    let mut waited_for: Vec<bool> = vec![true; nodes];
    loop {
        let Ok((node, what)) = heard.recv() else {
            return Err(Problem::new(UNREACHED, "no node is listened to"));
        };
        waited_for[node] = false;
        stream.hear(node, what);
        let until = Instant::now() + GATHER;
        loop {
            match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((node, what)) => {
                    waited_for[node] = false;
                    stream.hear(node, what);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        // The first lines say how things are, as all nodes see it.
        if waited_for.contains(&true) {
            continue;
        }
        for (line, before) in stream.lines() {
            match style.form {
                Form::Json => say_json(&line)?,
                Form::Human => say(&human_line(&line, before.as_ref()))?,
            }
        }
    }
}

fn human_line(line: &EventJson, before: Option<&ResourceStatus>) -> String {
    let event = Event {
        number: line.number,
        at_ms: line.at_ms,
        resource: line.label.clone(),
        status: line.status.clone(),
    };
    let mut text = event_line(&event, before);
    if !line.silent.is_empty() {
        text.truncate(text.trim_end().len());
        text.push_str(&format!("  not answering: {}\n", line.silent.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Event, Heard, Stream};
    use wire::admin::{ResourceStatus, Status, decode_line};

    /// The resource as node a, or another, tells of it.
    fn seen(epoch: u64) -> ResourceStatus {
        let text = format!(
            "{{\"version\":1,\"resources\":[{{\"name\":\"disk\",\"epoch\":{epoch},\"primary\":\"a\",\
             \"quorum\":true,\"suspended\":null,\"replicas\":[]}}]}}"
        );
        let status: Status = decode_line(text.as_bytes()).unwrap();
        status.resources.into_iter().next().unwrap()
    }

    fn answers(epoch: u64) -> Heard {
        Heard::Answers(vec![("disk".to_owned(), seen(epoch))])
    }

    fn changed(status: Option<ResourceStatus>) -> Heard {
        let resource = "disk".to_owned();
        Heard::Changed(Box::new(Event { number: 9, at_ms: 5, resource, status }))
    }

    fn told(stream: &mut Stream) -> Vec<(u64, Option<u64>, usize)> {
        let lines = stream.lines().into_iter();
        let short = lines.map(|(line, _)| {
            (line.number, line.status.map(|status| status.epoch), line.silent.len())
        });
        short.collect()
    }

    #[test]
    fn a_change_that_all_nodes_see_is_told_once_and_numbered_without_gaps() {
        let mut stream = Stream::new(vec!["a".to_owned(), "b".to_owned()]);
        stream.hear(0, answers(4));
        stream.hear(1, answers(4));
        assert_eq!(told(&mut stream), [(1, Some(4), 0)]);
        stream.hear(1, changed(Some(seen(5))));
        assert_eq!(told(&mut stream), [(2, Some(5), 0)]);
        stream.hear(0, changed(Some(seen(5))));
        assert_eq!(told(&mut stream), [], "it is known already");
    }

    #[test]
    fn a_resource_is_gone_only_when_nobody_is_left_who_may_know_it() {
        let mut stream = Stream::new(vec!["a".to_owned(), "b".to_owned()]);
        stream.hear(0, answers(4));
        stream.hear(1, answers(4));
        told(&mut stream);
        stream.hear(0, Heard::Silent("it ended".to_owned()));
        assert_eq!(told(&mut stream), [(2, Some(4), 1)]);
        stream.hear(1, changed(None));
        assert_eq!(told(&mut stream), [], "the one that is silent knew it");
        stream.hear(0, Heard::Answers(Vec::new()));
        assert_eq!(told(&mut stream), [(3, None, 0)]);
    }
}

//! What can happen next.
//!
//! Not here: what it does (`world`).

use super::{BEGIN, Item, Plain, Thing, World};
use replica::Member;
use std::collections::BTreeSet;
use wire::MemberMessage;

impl World {
    /// Everything that can happen next in any order: time goes on when nothing else is left. What is only
    /// said for others' information arrives at once. Empty: the story is over.
    pub(in crate::check) fn any(&self) -> Vec<Plain> {
        let mut all = self.steps();
        // By their links: in which order those sent does not tell two states apart.
        let told = all.iter().filter(|&&event| self.is_information(event));
        if let Some(&told) = told.min_by_key(|&&event| self.link(event)) {
            return vec![told];
        }
        if self.scenario.wishes.get(self.wishes).is_some_and(|wish| wish.0 <= self.age()) {
            all.push(Plain::Wish(self.wishes));
        }
        let mut over = all.is_empty();
        if over {
            let rest = self.down.iter().filter(|(_, until)| **until <= self.now);
            all.extend(rest.map(|(&node, _)| Plain::Restart(node)));
            all.extend(self.meetings().map(|(a, b)| Plain::Connect(a, b)));
            over = all.is_empty();
        }
        let writes = self.now >= self.write_at;
        all.extend(
            self.numbers().filter(|&node| writes && self.targets(node).is_some()).map(Plain::Write),
        );
        if over && self.next_time() <= BEGIN + self.scenario.length {
            all.push(Plain::Advance);
        }
        all
    }

    /// Whether `event` is the arrival of what nothing is decided by.
    fn is_information(&self, event: Plain) -> bool {
        let Plain::Deliver(at) = event else { return false };
        matches!(
            *self.queue[at].item,
            Item::Frame(_, MemberMessage::Learned { .. } | MemberMessage::Heard { .. })
        )
    }

    /// Pairs that could meet.
    fn meetings(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        let pairs = self.numbers().flat_map(|a| self.numbers().map(move |b| (a, b)));
        pairs.filter(|&(a, b)| {
            let cut = self.cut.get(&(a, b)).is_some_and(|&until| until > self.now);
            a < b && self.is_up(a) && self.is_up(b) && !cut && !self.sessions.contains_key(&(a, b))
        })
    }

    /// Everything that can happen by itself, what is plain first. Empty: the story is over.
    pub(in crate::check) fn plain(&self) -> Vec<Plain> {
        let mut all = self.steps();
        if all.is_empty() {
            all.extend(self.at_rest());
        }
        all
    }

    /// What processes and disks can do now.
    fn steps(&self) -> Vec<Plain> {
        let mut all = Vec::new();
        let free = |node: u16| self.is_up(node) && !self.is_held(Thing::Node(node));
        for node in self.numbers().filter(|&node| free(node)) {
            if self.node(node).flight.is_some() && !self.is_held(Thing::Disk(node)) {
                all.push(Plain::Stored(node));
            }
        }
        let mut links = BTreeSet::new();
        for (at, packet) in self.queue.iter().enumerate() {
            let (from, to) = (packet.from, packet.to);
            if links.insert((from, to)) && free(to) && !self.is_held(Thing::Link(from, to)) {
                all.push(Plain::Deliver(at));
            }
        }
        for node in self.numbers().filter(|&node| free(node)) {
            let wake = self.node(node).member.as_ref().and_then(Member::wake_at);
            if wake.is_some_and(|wake| wake <= self.local(node)) {
                all.push(Plain::Wake(node));
            }
        }
        all
    }

    fn at_rest(&self) -> Option<Plain> {
        if self.held.values().any(|&until| until == 0) {
            return Some(Plain::Release);
        }
        if let Some((&node, _)) = self.down.iter().find(|(_, until)| **until <= self.now) {
            return Some(Plain::Restart(node));
        }
        if let Some((a, b)) = self.meetings().next() {
            return Some(Plain::Connect(a, b));
        }
        if self.scenario.wishes.get(self.wishes).is_some_and(|wish| wish.0 <= self.age()) {
            return Some(Plain::Wish(self.wishes));
        }
        if self.now >= self.write_at
            && let Some(node) = self.numbers().find(|&node| self.targets(node).is_some())
        {
            return Some(Plain::Write(node));
        }
        (self.next_time() <= BEGIN + self.scenario.length).then_some(Plain::Advance)
    }

    pub(super) fn next_time(&self) -> u64 {
        let wakes = self.numbers().filter(|&node| !self.is_held(Thing::Node(node)));
        let wakes = wakes.filter_map(|node| {
            let wake = self.node(node).member.as_ref()?.wake_at()?;
            Some(self.global(node, wake))
        });
        let wish = self.scenario.wishes.get(self.wishes).map(|wish| BEGIN + wish.0);
        let others = self.down.values().chain(self.cut.values()).chain(self.held.values());
        wakes
            .chain(wish)
            .chain(others.copied())
            .filter(|&at| at > self.now)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Whose step it is, if it is the step of one process.
    pub(in crate::check) fn actor(&self, plain: Plain) -> Option<u16> {
        match plain {
            Plain::Stored(node) | Plain::Wake(node) => Some(node),
            Plain::Deliver(at) => Some(self.queue[at].to),
            _ => None,
        }
    }

    /// The link on which a message arrives.
    pub(in crate::check) fn link(&self, plain: Plain) -> Option<(u16, u16)> {
        match plain {
            Plain::Deliver(at) => Some((self.queue[at].from, self.queue[at].to)),
            _ => None,
        }
    }

    /// Nodes that are up and not held, sessions and links that are in use.
    pub(in crate::check) fn running(&self) -> impl Iterator<Item = u16> + '_ {
        self.numbers().filter(|&node| self.is_up(node) && !self.is_held(Thing::Node(node)))
    }
}

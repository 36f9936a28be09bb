//! What a scenario looks at: conditions that it waits for, and what must be so now.
//!
//! Not here: what it does (`acts`, the parent).

use super::{Scenario, number, span};
use crate::history::Effect;
use crate::queue::{MILLI, Time};
use crate::world::{node_id, node_index};

impl Scenario {
    /// Lines that change nothing: they wait, or look.
    pub(super) fn look(&mut self, words: &[&str]) -> Result<(), String> {
        match words[0] {
            "done" => self.until(&["done"]),
            "undone" if self.world.wishes.is_empty() => {
                Err("everything that operators asked for has ended".to_owned())
            }
            "undone" => Ok(()),
            "wait" => self.wait(number(words.get(1))? as u64 * MILLI),
            "calm" => self.calm(number(words.get(1))? as u64 * MILLI),
            "reached" => {
                let mark = words[1..].join(" ");
                let is_reached = self.world.marks.contains_key(&*mark);
                if is_reached { Ok(()) } else { Err("it was not".to_owned()) }
            }
            "until" => self.until(&words[1..]),
            "waits" if words.len() > 1 => {
                let calls = self.calls.get(words[1]).ok_or("nothing has that name")?;
                let ended = |&index: &usize| self.world.history.operation(index).ended;
                if calls.iter().all(ended) { Err("it is answered".to_owned()) } else { Ok(()) }
            }
            "saw" => self.saw(words),
            "waits" => {
                if self.world.history.open_count() > 0 {
                    return Ok(());
                }
                Err("everything is answered".to_owned())
            }
            "unlost" if self.world.nodes.iter().any(|node| node.bad_write.is_some()) => {
                Err("a write that was to be lost was carried out".to_owned())
            }
            "unlost" => Ok(()),
            "identical" => {
                let nodes = self.nodes(&words[1..])?;
                let nodes = if nodes.is_empty() { self.world.plan.replicas() } else { nodes };
                self.world.compare_among(&nodes);
                self.broken()
            }
            "holds" => self.holds(words),
            "failed" => self.failed(words),
            "stale" => self.stale(words),
            "copied" | "compared" => {
                // The shard that drove it is still to hear that it has ended.
                self.wait(50 * MILLI)?;
                self.resynced(words)
            }
            "found" => self.verified(words),
            "refused" => match &self.world.ended {
                Some(Err(_)) => Ok(()),
                other => Err(format!("it ended with {other:?}")),
            },
            _ => Err("an unknown command".to_owned()),
        }
    }

    /// Whether what `until` waits for is so.
    pub(super) fn is_so(&self, words: &[&str]) -> Result<bool, String> {
        if words.first() == Some(&"stopped") {
            let nodes = self.nodes(&words[1..])?;
            return Ok(nodes.iter().all(|&node| self.world.nodes[node].process.is_none()));
        }
        if let (Some(sides), Some(&what)) = (&self.world.sides, words.first())
            && !["answered", "done"].contains(&what)
        {
            let nodes = self.nodes(&words[1..])?;
            return match (what, nodes.as_slice()) {
                ("split", &[one, other]) => {
                    let splits = self.world.splits();
                    Ok(splits.contains(&(one, other)) && splits.contains(&(other, one)))
                }
                ("primary", &[node]) => Ok(sides.is_primary(node)),
                ("in-sync", nodes) => Ok(sides.are_in_sync(nodes)),
                _ => Err("until primary N, in-sync N…, split N M, stopped N…, done, or answered"
                    .to_owned()),
            };
        }
        let Some(newest) = &self.world.oracle.newest else { return Ok(false) };
        match words.first() {
            Some(&"answered") => Ok(self.world.history.open_count() == 0),
            Some(&"clean") => Ok(self.unclean().is_none()),
            Some(&"storing") => {
                let node = self.nodes(words.get(1..2).ok_or("which node?")?)?[0];
                let disk = self.world.nodes[node].disk.as_ref();
                Ok(disk.is_some_and(crate::disk::Disk::is_storing))
            }
            Some(&"syncing") => {
                let target = node_id(number(words.get(1))? - 1);
                let processes = self.world.nodes.iter().filter_map(|node| node.process.as_ref());
                let mut shards = processes.flat_map(|process| &process.shards);
                Ok(shards.any(|shard| shard.status().syncs.iter().any(|sync| sync.node == target)))
            }
            Some(&"done") => Ok(self.world.wishes.is_empty()),
            Some(&"fork") => Ok(newest.fork == number(words.get(1))? as u64),
            Some(&"primary") if words.get(1) == Some(&"none") => Ok(newest.primary.is_none()),
            Some(&"primary") => Ok(newest.primary == Some(node_id(number(words.get(1))? - 1))),
            Some(&"in-sync") => {
                let nodes = self.nodes(&words[1..])?;
                let wanted: Vec<base::NodeId> = nodes.into_iter().map(node_id).collect();
                Ok(newest.in_sync().collect::<Vec<_>>() == wanted)
            }
            _ => {
                Err("until primary N, in-sync N…, syncing N, storing N, fork N, stopped N…, clean, done, or \
                     answered"
                    .to_owned())
            }
        }
    }

    /// Time passes, and nothing is decided and no connection made meanwhile.
    fn calm(&mut self, length: Time) -> Result<(), String> {
        let epoch = |scenario: &Scenario| {
            let newest = scenario.world.oracle.newest.as_ref();
            newest.map(|newest| (newest.fork, newest.epoch))
        };
        let before = (epoch(self), self.world.sessions.len());
        self.wait(length)?;
        let after = (epoch(self), self.world.sessions.len());
        if before == after { Ok(()) } else { Err(format!("{before:?} became {after:?}")) }
    }

    /// A replica that runs and has a block marked for another, or in doubt, in words.
    pub(super) fn unclean(&self) -> Option<String> {
        let (replicas, sizes) = (self.world.plan.replicas(), self.world.sizes());
        for &node in &replicas {
            let shards = self.world.nodes[node].process.iter().flat_map(|process| &process.shards);
            for (number, shard) in shards.enumerate() {
                for &peer in replicas.iter().filter(|&&peer| peer != node) {
                    let differs =
                        |&(volume, end): &_| shard.may_differ(node_id(peer), volume, 0, end);
                    if sizes.iter().any(differs) {
                        let (status, node, peer) = (shard.status(), node_id(node), node_id(peer));
                        let text = format!("shard {number} of {node} for {peer}: {status:?}");
                        return Some(text);
                    }
                }
            }
        }
        None
    }

    /// The disk of a node holds what a write wrote.
    fn holds(&self, words: &[&str]) -> Result<(), String> {
        let node = self.nodes(words.get(1..2).ok_or("which node?")?)?[0];
        let (volume, span) = span(words.get(2))?;
        let label = words.get(4).ok_or("holds NODE SPAN is NAME")?;
        let disk = self.world.nodes[node].disk.as_ref().ok_or("it has no disk")?;
        self.is_what_was_written(span, &disk.tokens(volume, span), label)
    }

    /// What was asked for by this name was answered, with what a write wrote.
    fn saw(&self, words: &[&str]) -> Result<(), String> {
        let calls = words.get(1).and_then(|label| self.calls.get(*label));
        let label = words.get(3).ok_or("saw NAME is NAME")?;
        for &index in calls.ok_or("nothing has that name")? {
            let operation = self.world.history.operation(index);
            let Effect::Read(seen) = &operation.effect else { return Err("no read".to_owned()) };
            if !operation.ok {
                return Err("it is not answered well".to_owned());
            }
            self.is_what_was_written(operation.span, seen, label)?;
        }
        Ok(())
    }

    /// What was submitted by this name was answered by an error.
    fn failed(&self, words: &[&str]) -> Result<(), String> {
        let calls = words.get(1).and_then(|label| self.calls.get(*label));
        for &index in calls.ok_or("no write has that name")? {
            let operation = self.world.history.operation(index);
            if !operation.ended || operation.ok {
                let how =
                    if operation.ended { "it was answered well" } else { "it is not answered" };
                return Err(how.to_owned());
            }
        }
        Ok(())
    }

    /// A node does not count as in sync.
    fn stale(&self, words: &[&str]) -> Result<(), String> {
        let newest = self.world.oracle.newest.as_ref().ok_or("there is no configuration")?;
        for node in self.nodes(&words[1..])? {
            if newest.is_in_sync(node_id(node)) {
                return Err(format!("node {} is in sync", node + 1));
            }
        }
        Ok(())
    }

    /// How much the last resync of a node was sent, or had to look at, in all shards of the primary.
    fn resynced(&self, words: &[&str]) -> Result<(), String> {
        let target = node_id(number(words.get(1))?.wrapping_sub(1));
        let just = words.get(2) == Some(&"just");
        let limit = number(words.get(2 + usize::from(just)))? as u64;
        let newest = self.world.oracle.newest.as_ref().ok_or("there is no configuration")?;
        let primary = newest.primary.map(node_index).ok_or("nobody is primary")?;
        let process = self.world.nodes[primary].process.as_ref().ok_or("the primary is dead")?;
        let done: Vec<_> = process
            .shards
            .iter()
            .flat_map(|shard| shard.status().syncs_done)
            .filter(|sync| sync.node == target)
            .collect();
        if done.is_empty() {
            return Err("no resync of it has ended".to_owned());
        }
        let sectors: u64 =
            done.iter().map(|sync| if words[0] == "copied" { sync.sent } else { sync.total }).sum();
        let well = if just { sectors == limit } else { sectors <= limit };
        if well { Ok(()) } else { Err(format!("they were {sectors} sectors")) }
    }

    /// How much the last verify, which came to its end, found and repaired.
    fn verified(&self, words: &[&str]) -> Result<(), String> {
        let newest = self.world.oracle.newest.as_ref().ok_or("there is no configuration")?;
        let verify = newest.verify.ok_or("there was no verify")?;
        if verify.state != wire::VerifyState::Done {
            return Err(format!("it is {:?}", verify.state));
        }
        if verify.repaired == number(words.get(1))? as u64 {
            return Ok(());
        }
        Err(format!("they were {} sectors", verify.repaired))
    }
}

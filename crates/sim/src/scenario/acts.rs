//! What a scenario does beyond plain requests and deaths: bad disks, bad links, requests that must fail, options.
//!
//! Not here: what it looks at (`looks`).

use super::{Scenario, number, span};
use crate::client::as_operation;
use crate::disk::Disk;
use crate::history::Effect;
use crate::plan::BadPage;
use crate::queue::{MILLI, Time};
use crate::world::node_id;
use base::{NodeId, Op, Prng, VolumeId};
use replica::{MetaPage, Operation};
use wire::admin::OptionsChange;
use wire::{AfterSplitBrain, OnNoQuorum, Options, Protocol, ReadPolicy};

/// Sets the option of this name.
pub(super) fn set_option(
    options: &mut Options,
    name: &str,
    value: Option<&&str>,
) -> Result<(), String> {
    match (name, value.copied().unwrap_or("")) {
        ("on-no-quorum", "io-error") => options.on_no_quorum = OnNoQuorum::IoError,
        ("on-no-quorum", "suspend-io") => options.on_no_quorum = OnNoQuorum::SuspendIo,
        ("protocol", "B") => options.protocol = Protocol::B,
        ("protocol", "C") => options.protocol = Protocol::C,
        ("read-policy", "round-robin") => options.read_policy = ReadPolicy::RoundRobin,
        ("read-policy", "prefer-local") => options.read_policy = ReadPolicy::PreferLocal,
        ("after-split-brain", policy) => {
            options.after_split_brain = match policy {
                "disconnect" => AfterSplitBrain::Disconnect,
                "discard-younger" => AfterSplitBrain::DiscardYounger,
                "discard-older" => AfterSplitBrain::DiscardOlder,
                "discard-least-changes" => AfterSplitBrain::DiscardLeastChanges,
                "discard-zero-changes" => AfterSplitBrain::DiscardZeroChanges,
                _ => {
                    let node = policy.strip_prefix("discard-node-");
                    let node = number(node.as_ref()).map_err(|_| "no such policy")?;
                    AfterSplitBrain::DiscardNode(u16::try_from(node).map_err(|_| "no such node")?)
                }
            };
        }
        ("in-sync-min", _) => {
            options.in_sync_min = u8::try_from(number(value)?).map_err(|_| "too many")?;
        }
        ("resync-rate-max", _) => options.resync_rate_max = number(value)? as u64 * 1024,
        ("resync-rate-min", _) => options.resync_rate_min = number(value)? as u64 * 1024,
        _ => return Err(format!("no option {name} has this value")),
    }
    Ok(())
}

/// The first page of the log of which the life that is on the record wrote both copies.
fn both_copies_of_a_log_page(disk: &Disk) -> Option<Vec<(VolumeId, MetaPage)>> {
    let written = disk.record()?.log_half;
    let is_there = |place: &(VolumeId, MetaPage)| {
        disk.pages().any(|(volume, page, _)| (volume, page) == *place)
    };
    disk.pages().find_map(|(volume, place, _)| {
        let MetaPage::Log { half, page, .. } = place else { return None };
        let copies = [0, 1].map(|copy| (volume, MetaPage::Log { half, page, copy }));
        (half == written && copies.iter().all(is_there)).then(|| copies.to_vec())
    })
}

/// The first page of the bits of this replica.
fn page_of_bits(disk: &Disk, of: NodeId) -> Option<Vec<(VolumeId, MetaPage)>> {
    let number = disk.record()?.slots.iter().find(|slot| slot.node == of)?.number;
    let (volume, place, _) = disk
        .pages()
        .find(|(_, place, _)| matches!(place, MetaPage::Bitmap { slot, .. } if *slot == number))?;
    Some(vec![(volume, place)])
}

impl Scenario {
    /// Sectors are zeroed, or discarded, and that is answered.
    pub(super) fn zero(&mut self, words: &[&str]) -> Result<(), String> {
        let client = self.client(words.get(1))?;
        let (volume, span) = span(words.get(2))?;
        self.world.count_clients(self.world.plan.clients[client], 1);
        for piece in self.pieces(span) {
            let index = self.world.history.len();
            let op = Op::Zero { unmap: words[0] == "discard" };
            self.world.call_as(client, volume, piece, op, Effect::Write(0), false);
            self.answered(index)?;
        }
        Ok(())
    }

    /// A read that nobody waits for.
    pub(super) fn ask(&mut self, words: &[&str]) -> Result<(), String> {
        let label = (*words.get(1).ok_or("it needs a name")?).to_owned();
        let client = self.client(words.get(2))?;
        let (volume, span) = span(words.get(3))?;
        self.world.count_clients(self.world.plan.clients[client], 1);
        self.calls.insert(label, vec![self.world.history.len()]);
        self.world.call(client, volume, span, Effect::Read(Vec::new()), false);
        Ok(())
    }

    /// A write or read that must be answered by an error.
    pub(super) fn fails(&mut self, words: &[&str]) -> Result<(), String> {
        let index = self.world.history.len();
        match words.first() {
            Some(&"write") => {
                let submit = [&["submit"], &words[1..]].concat();
                self.write(&submit)?;
            }
            Some(&"read") => {
                let client = self.client(words.get(1))?;
                let (volume, span) = span(words.get(2))?;
                self.world.count_clients(self.world.plan.clients[client], 1);
                self.world.call(client, volume, span, Effect::Read(Vec::new()), false);
            }
            _ => return Err("fails write NAME NODE SPAN, or fails read NODE SPAN".to_owned()),
        }
        if self.outcome(index)? { Err("is answered well".to_owned()) } else { Ok(()) }
    }

    /// A line that must come true in time.
    pub(super) fn within(&mut self, words: &[&str]) -> Result<(), String> {
        let end = self.world.queue.now() + number(words.first())? as Time * MILLI;
        let line = words.get(1..).filter(|line| !line.is_empty()).ok_or("what?")?;
        self.line(line)?;
        let late = self.world.queue.now().saturating_sub(end) / MILLI;
        if late > 0 { Err(format!("{late} ms too late")) } else { Ok(()) }
    }

    /// The disk of a node fails, is full, stands still, or is well again.
    pub(super) fn disk_trouble(&mut self, words: &[&str]) -> Result<(), String> {
        let at = self.nodes(words.get(1..2).ok_or("which node?")?)?[0];
        let until = self.world.queue.now() + number(words.get(2)).unwrap_or(0) as Time * MILLI;
        self.world.strike(at, words[0] == "stall");
        let node = &mut self.world.nodes[at];
        match words[0] {
            "errors" => node.disk_errors = 1,
            "full" => node.disk_full = true,
            "stall" => node.stalled_until = until,
            _ => {
                node.disk_errors = 0;
                node.disk_full = false;
            }
        }
        Ok(())
    }

    /// What disks hold is something else, without a write: that of one node, or all of them before there is any write.
    pub(super) fn alter(&mut self, words: &[&str]) -> Result<(), String> {
        let (volume, span) = span(words.get(2))?;
        let had = words[0] == "had";
        if had && !self.world.history.is_empty() {
            return Err("something was asked for already".to_owned());
        }
        let nodes = if had { self.world.plan.replicas() } else { self.nodes(&words[1..2])? };
        let token = self.world.fresh_token();
        for node in nodes {
            let disk = self.world.nodes[node].disk.as_mut().ok_or("it has no disk")?;
            disk.alter(volume, span, token);
        }
        if had {
            let (now, history) = (self.world.queue.now(), &mut self.world.history);
            let write = as_operation(volume, span, Effect::Write(token), true);
            let index = history.call(now, 0, write);
            history.answer(now, 0, index, true, Vec::new());
            self.labels.insert(words[1].to_owned(), vec![(span, token)]);
        }
        Ok(())
    }

    /// Metadata of a node goes bad: a page of it, whichever it is, or those that the word names.
    pub(super) fn spoil(&mut self, node: usize, words: &[&str]) -> Result<(), String> {
        let how = match words.first().copied().unwrap_or_default() {
            "log" => return self.rot_pages(node, both_copies_of_a_log_page),
            "bits" => {
                let of = self.nodes(words.get(1..2).ok_or("the bits of which node?")?)?[0];
                return self.rot_pages(node, |disk| page_of_bits(disk, node_id(of)));
            }
            "flipped" => BadPage::Flipped,
            "stale" => BadPage::Stale,
            "astray" => BadPage::Astray,
            "stale-record" => BadPage::StaleRecord,
            "astray-record" => BadPage::AstrayRecord,
            _ => {
                return Err(
                    "spoil NODE flipped, stale, astray, stale-record, astray-record, log or bits OTHER"
                        .to_owned(),
                );
            }
        };
        self.world.bad_page(node, how);
        if !self.world.nodes[node].spoiled {
            return Err("the others could not live without that disk".to_owned());
        }
        Ok(())
    }

    /// These pages of a node's metadata rot. Rot strikes by chance: as it does when it strikes just them.
    fn rot_pages(
        &mut self,
        node: usize,
        choose: impl Fn(&Disk) -> Option<Vec<(VolumeId, MetaPage)>>,
    ) -> Result<(), String> {
        if !self.world.can_lose_disk(node) || !self.world.is_sound(node) {
            return Err("the others could not live without that disk".to_owned());
        }
        let held = &mut self.world.nodes[node];
        let disk = held.disk.as_mut().ok_or("it has no disk")?;
        for page in choose(disk).ok_or("no such page was written")? {
            let bad_before = disk.bad_pages().count();
            let struck = (0..).map(|seed| {
                let mut struck = disk.clone();
                struck.spoil(BadPage::Flipped, &mut Prng::new(seed));
                struck
            });
            let is_it = |struck: &Disk| {
                let mut bad = struck.bad_pages();
                struck.bad_pages().count() > bad_before && bad.any(|(place, _)| place == page)
            };
            *disk = { struck }.find(is_it).expect("chance strikes every page");
        }
        (held.restored, held.spoiled) = (Some(held.voter), true);
        Ok(())
    }

    /// The link between two nodes is slow, or breaks.
    pub(super) fn link_trouble(&mut self, words: &[&str]) -> Result<(), String> {
        let nodes = self.nodes(words.get(1..3).ok_or("which two nodes?")?)?;
        let (one, other) = (nodes[0], nodes[1]);
        match words[0] {
            "slow" => {
                let extra = number(words.get(3))? as Time * MILLI;
                self.world.links[one][other].extra = extra;
                self.world.links[other][one].extra = extra;
            }
            "drain" => {
                let length = number(words.get(3))? as Time * MILLI;
                self.world.links[other][one].drain = length;
            }
            "break" => {
                self.world.break_between(one, other, MILLI);
            }
            _ => {
                self.world.reconnect(one, other);
            }
        }
        self.broken()
    }

    /// A client gives its way up and goes by another node.
    pub(super) fn elsewhere(&mut self, words: &[&str]) -> Result<(), String> {
        let client = self.client(words.get(1))?;
        let to = self.nodes(words.get(2..3).ok_or("by which node?")?)?[0];
        if self.world.paths.way(client).is_none() {
            return Err("clients of this cluster have one way each: say `paths 1`".to_owned());
        }
        self.world.change_path_to(client, to);
        self.broken()
    }

    /// The primary is asked for another option.
    pub(super) fn set(&mut self, words: &[&str]) -> Result<(), String> {
        let newest = self.world.oracle.newest.as_ref().ok_or("there is no configuration")?;
        let primary = newest.primary.map(crate::world::node_index).ok_or("nobody is primary")?;
        let mut options = newest.options.clone();
        set_option(&mut options, words.get(1).unwrap_or(&""), words.get(2))?;
        let change = OptionsChange::between(&newest.options, &options);
        self.world.want(primary, Operation::SetOptions(change));
        self.until(&["done"])
    }
}

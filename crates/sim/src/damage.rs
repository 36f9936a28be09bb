//! Disks that are lost, put back, or go bad by themselves, and which of that a history stays fair with.
//!
//! Always: as long as an acknowledged write must be there, some disk that was not tampered with has it,
//! and a majority of voters remembers who that is. What a run may do besides has no other limit: every
//! cache may be lost at once.
//!
//! Not here: what the disk does (`disk`), which faults a run meets (`plan`, `feature`).

use crate::disk::Disk;
use crate::oracle::identity;
use crate::plan::{BadPage, BadWrite, FaultKind, Role};
use crate::world::{World, node_index};
use base::{Incarnation, NodeId, VolumeId, VoterId};
use replica::disk::{Record, decode_bitmap_page};
use replica::start::{Start, start};
use replica::{MetaPage, Operation, Page};
use wire::{Configuration, Life, MemberEntry, Seen};

impl World {
    /// A disk is replaced by an empty or an older one, if the others can live without it.
    pub(crate) fn replace_disk(&mut self, node: usize, length: u64, restore: bool) -> bool {
        if !self.can_lose_disk(node) {
            return false;
        }
        let backups = self.nodes[node].backups.len() as u64;
        // Nobody is told the generation of a primary's own disk.
        let newest = self.oracle.newest.as_ref();
        let primary = newest.is_some_and(|newest| newest.primary == Some(self.nodes[node].id));
        if restore && (backups == 0 || primary) {
            return false;
        }
        self.swap_disk(node, length, restore);
        true
    }

    /// The process dies; its disk is an empty one then, or one of its older copies.
    pub(crate) fn swap_disk(&mut self, node: usize, length: u64, restore: bool) {
        let backups = self.nodes[node].backups.len() as u64;
        self.stop(node, false, length);
        if restore {
            let at = usize::try_from(self.random.below(backups)).expect("few backups");
            if self.is_noticed(node, at) {
                self.restore_disk(node, at);
            } else {
                self.mark("sim: a disk is not put back, because too few could tell");
            }
        } else {
            self.nodes[node].swapped = Some(self.nodes[node].incarnation);
            self.nodes[node].incarnation = Incarnation(0);
            let is_replica = self.plan.roles[node] == Role::Replica;
            let volumes: &[_] = if is_replica { &self.plan.volumes } else { &[] };
            let disk = self.empty_disk(node, volumes);
            self.nodes[node].disk = Some(disk);
            self.nodes[node].restored = None;
            self.nodes[node].put_back = None;
            self.blank(node);
            self.mark("sim: disk replaced");
        }
        self.look_for_loss();
    }

    /// The disk of a node without a process becomes what it was at one of the starts before.
    pub(crate) fn restore_disk(&mut self, node: usize, at: usize) {
        let newest = self.oracle.newest.as_ref();
        let held = &mut self.nodes[node];
        let entry = newest.and_then(|newest| newest.member(held.id));
        held.put_back = entry.filter(|entry| entry.in_sync).map(identity);
        held.swapped = Some(held.incarnation);
        held.incarnation = Incarnation(0);
        held.disk = Some(held.backups[at].clone());
        held.restored = Some(VoterId(0));
        self.mark("sim: disk restored");
    }

    /// It runs, its disk is well, and what it holds is not about to go.
    fn is_intact(&self, node: usize) -> bool {
        let held = &self.nodes[node];
        // Its process may end for that.
        let fails = (held.disk_errors > 0 || held.disk_full) && self.counts_memory(node);
        held.process.is_some() && self.is_sound(node) && !fails && !self.leaves(node)
    }

    /// Another in-sync member is kept and running, and a majority of voters is without this node: also by
    /// the configurations that the nodes know, from which the newest has to be found again.
    pub(crate) fn can_lose_disk(&self, node: usize) -> bool {
        let Some(newest) = &self.oracle.newest else { return false };
        let intact = |index: usize| index != node && self.is_intact(index);
        let kept = newest.members.iter().any(|member| {
            let index = node_index(member.node);
            member.in_sync && intact(index) && self.is_kept(index, member.incarnation)
        });
        let decides = |configuration: &Configuration| {
            let voters = configuration.voters().filter(|member| {
                let index = node_index(member.node);
                intact(index) && self.nodes[index].voter == member.voter
            });
            voters.count() >= configuration.majority() && configuration.voters().count() > 2
        };
        let settled = self.proposed().all(|proposed| {
            proposed.members.iter().any(|member| {
                let index = node_index(member.node);
                member.in_sync && intact(index) && self.is_kept(index, member.incarnation)
            }) && decides(&proposed)
        });
        let known = self.nodes.iter().filter_map(|other| other.process.as_ref());
        self.nodes[node].process.is_some()
            && kept
            && settled
            && decides(newest)
            && known
                .filter_map(|process| process.member.status().configuration)
                .all(|configuration| decides(&configuration))
    }

    /// Whether the memory of another voter than `node` is gone or went back, and the register does not say so yet:
    /// an operator who takes one out besides would take out the majority.
    pub(crate) fn has_lost_votes(&self, node: usize) -> bool {
        let newest = self.oracle.newest.as_ref();
        newest.is_some_and(|newest| {
            newest.members.iter().any(|member| {
                let index = node_index(member.node);
                let held = &self.nodes[index];
                index != node && (held.voter != member.voter || held.restored.is_some())
            })
        })
    }

    /// Whether an operator is just taking a node out: it is to be counted on no more.
    fn leaves(&self, node: usize) -> bool {
        let removal = format!("{:?}", Operation::RemoveMember { node: self.nodes[node].id });
        self.wishes.values().any(|(_, wish)| *wish == removal)
    }

    /// Whether those who could not tell that a node's disk went back to this copy are no majority together
    /// with it, by any configuration that somebody knows: none of them could know better, for as long as
    /// those who can tell are away.
    fn is_noticed(&self, node: usize, at: usize) -> bool {
        let Some(image) = self.nodes[node].backups[at].record() else { return true };
        self.is_image_noticed(node, &image, u64::MAX)
    }

    /// Likewise of any image of it, whose last life has so many writes.
    fn is_image_noticed(&self, node: usize, image: &Record, writes: u64) -> bool {
        let id = self.nodes[node].id;
        let tells = |index: usize| {
            let record = self.nodes[index].disk.as_ref().and_then(Disk::record);
            record.is_some_and(|record| {
                record.seen.iter().any(|seen| is_after(seen, id, image, writes))
            })
        };
        let blind = |configuration: &Configuration| {
            let voters = configuration.voters();
            voters.filter(|member| !tells(node_index(member.node))).count()
        };
        let named = |configuration: &Configuration| {
            configuration.member(id).is_some_and(|member| member.voter == image.voter)
        };
        let records = self.nodes.iter().filter_map(|node| node.disk.as_ref()?.record());
        let known = records.filter_map(|record| record.committed.map(|(_, value)| *value));
        known
            .chain(self.proposed())
            .chain(self.oracle.newest.clone())
            .all(|value| !named(&value) || blind(&value) < value.majority())
    }

    /// Nothing was done to the node's disk that a later start could trip over.
    pub(crate) fn is_sound(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        !node.disk_failed && node.restored.is_none() && node.swapped != Some(node.incarnation)
    }

    /// Configurations that some voter has accepted and that are newer than the newest committed one, and
    /// those that are on their way to a voter: any of them may be chosen.
    fn proposed(&self) -> impl Iterator<Item = Configuration> {
        let newest = self.oracle.newest.as_ref().map(|newest| (newest.fork, newest.epoch));
        let records = self.nodes.iter().filter_map(|node| node.disk.as_ref()?.record());
        let accepted = records.filter_map(|record| record.accepted.map(|(_, value)| *value));
        // What a voter is about to store may be there whatever becomes of it, and nobody has sent it what is its own.
        let storing = self.nodes.iter().filter_map(|node| node.disk.as_ref()?.storing());
        let stored = storing.filter_map(|record| Some((*record.accepted.as_ref()?.1).clone()));
        let sent = self.oracle.proposed.iter().cloned();
        let newer = move |value: &Configuration| Some((value.fork, value.epoch)) > newest;
        accepted.chain(stored).chain(sent).filter(newer).collect::<Vec<_>>().into_iter()
    }

    /// Of nodes about to die, or to lose their power, those that may: if a disk that a configuration counts on is gone or
    /// bad, one good copy is spared, for it is all there is.
    pub(crate) fn spared(&mut self, nodes: u32, power: bool) -> u32 {
        let all = (0..self.nodes.len()).filter(|node| nodes & (1 << node) != 0);
        let volatile = power && !self.plan.stable_disks;
        let loses = |node: &usize| volatile || self.counts_memory(*node);
        let losing = all.filter(loses).fold(0, |bits, node| bits | 1 << node);
        nodes & !self.last_copies(losing)
    }

    /// Whether what a node holds in memory counts (protocol B): its cache goes with its process.
    pub(crate) fn counts_memory(&self, node: usize) -> bool {
        let record = self.nodes[node].disk.as_ref().and_then(Disk::record);
        record.is_some_and(|record| record.in_memory) && !self.nodes[node].closed
    }

    /// A node is about to lose its power, as others are, or (`others` 0) its process. What a flush failed there is gone with it, if another
    /// copy, which stays, has it by every configuration that may be chosen: at a power cut, whatever later flushes said; with its process,
    /// which drops what of the disk is in memory when it begins anew, only what is not in sync any more.
    pub(crate) fn lose_unflushed(&mut self, node: usize, others: u32) {
        let id = self.nodes[node].id;
        let values: Vec<Configuration> =
            self.proposed().chain(self.oracle.newest.clone()).collect();
        let stays = |member: &MemberEntry| {
            let at = node_index(member.node);
            others & (1 << at) == 0
                && self.is_kept(at, member.incarnation)
                && self.nodes[at].put_back.is_none()
                && self.is_intact(at)
        };
        let has_it = |value: &Configuration| {
            let own = value.member(id).is_some_and(|member| member.in_sync);
            let elsewhere = || value.members.iter().any(|member| member.in_sync && stays(member));
            !own || (others != 0 && elsewhere())
        };
        if !values.iter().all(has_it) {
            return;
        }
        let counts = values.iter().any(|value| value.is_in_sync(id));
        let held = &mut self.nodes[node];
        let Some(disk) = &mut held.disk else { return };
        if disk.lose_unflushed(&mut self.random) {
            if counts {
                held.swapped = Some(held.incarnation);
            }
            self.mark("sim: what a flush failed is gone though a later one said that it was there");
        }
    }

    /// Of nodes about to lose their caches, those that hold all that is left: a disk that the newest configuration, or
    /// one that may be chosen, counts on is gone or bad. One for each of these.
    pub(crate) fn last_copies(&mut self, nodes: u32) -> u32 {
        let values: Vec<Configuration> =
            self.proposed().chain(self.oracle.newest.clone()).collect();
        let mut last = 0;
        for value in &values {
            let in_sync = || value.members.iter().filter(|member| member.in_sync);
            let is_bad = |member: &MemberEntry| {
                let held = &self.nodes[node_index(member.node)];
                let is_swapped = held.swapped == Some(member.incarnation);
                is_swapped || held.restored.is_some() || held.put_back.is_some()
            };
            let good = |member: &&MemberEntry| {
                self.is_kept(node_index(member.node), member.incarnation) && !is_bad(member)
            };
            let bits = in_sync().filter(good).fold(0, |bits, m| bits | 1 << node_index(m.node));
            if in_sync().any(is_bad) && bits & !(nodes & !last) == 0 && bits != 0 {
                last |= 1_u32 << bits.trailing_zeros();
            }
        }
        if last != 0 {
            self.mark("sim: the last good copy is spared");
        }
        last
    }

    /// A stable sector of a node's disk changes by itself, if a good copy of it is elsewhere.
    pub(crate) fn rot(&mut self, node: usize) -> bool {
        let mut rots = false;
        for _ in 0..16 {
            let volumes = self.plan.volumes.len() as u64;
            let at = usize::try_from(self.random.below(volumes)).expect("few volumes");
            let (volume, sectors) = self.plan.volumes[at];
            let sector = self.random.below(sectors);
            if !self.can_lose_sector(node, volume, sector) {
                continue;
            }
            let Some(disk) = &mut self.nodes[node].disk else { break };
            if disk.rot(volume, sector) {
                rots = true;
                self.mark("sim: a sector rots");
                self.note(node, || format!("volume {volume} sector {sector} rots"));
            }
        }
        rots
    }

    /// Whether the disk of a node confirms request `id` and does not carry it out: a write of data, if good copies of all
    /// that is not as it should be then are elsewhere. With where it goes to instead, if anywhere.
    pub(crate) fn goes_bad(&mut self, node: usize, id: u64) -> Option<Option<u64>> {
        let (how, to) = self.nodes[node].bad_write?;
        let disk = self.nodes[node].disk.as_ref()?;
        let (volume, span) = disk.could_go_bad(id)?;
        let astray = (how == BadWrite::Astray)
            .then(|| to.unwrap_or_else(|| self.random.below(self.sectors_of(volume))));
        let block = self.plan.geometry.block_sectors;
        // As any write, it begins at a block.
        let astray = astray.map(|sector| sector / block * block);
        let first = [Some(span.first()), astray];
        let disk = self.nodes[node].disk.as_ref()?;
        let is_fair = first.into_iter().flatten().all(|first| {
            let end = first + u64::from(span.count());
            let mut sectors = first..end;
            end <= self.sectors_of(volume)
                && sectors.all(|sector| self.can_lose_sector(node, volume, sector))
        });
        if !is_fair || astray.is_some_and(|first| !disk.could_be_overwritten(id, first)) {
            return None;
        }
        self.nodes[node].bad_write = None;
        self.count(FaultKind::BadWrite { node, how }.name());
        self.goes_bad_unseen(node);
        self.mark(if astray.is_some() {
            "sim: a write of data goes astray"
        } else {
            "sim: a write of data is lost"
        });
        self.note(node, || format!("its disk loses the write of {span:?}; it goes to {astray:?}"));
        Some(astray)
    }

    /// How large a volume was at first.
    fn sectors_of(&self, volume: VolumeId) -> u64 {
        let known = self.plan.volumes.iter().find(|(known, _)| *known == volume);
        known.map_or(0, |&(_, sectors)| sectors)
    }

    /// What rotted on the only good copy that is left is made well: nothing could repair it.
    pub(crate) fn spare_rot(&mut self) {
        let Some(newest) = &self.oracle.newest else { return };
        let mut kept: Vec<usize> = Vec::new();
        for member in newest.members.iter().filter(|member| member.in_sync) {
            let node = node_index(member.node);
            if self.is_kept(node, member.incarnation) && self.is_sound(node) {
                kept.push(node);
            }
        }
        let rotten = |node: usize| self.nodes[node].disk.as_ref().map_or(0, Disk::rotten_count) > 0;
        if kept.len() != 1 || !rotten(kept[0]) {
            return;
        }
        self.mark("sim: rot on the last good copy is taken back");
        if let Some(disk) = &mut self.nodes[kept[0]].disk {
            disk.unrot_all();
        }
    }

    /// Every replica is in sync, kept and running, and no other one is bad there.
    fn can_lose_sector(&self, node: usize, volume: base::VolumeId, sector: u64) -> bool {
        let Some(newest) = &self.oracle.newest else { return false };
        let replicas = self.plan.replicas();
        // Each block is good on one replica or the other, whatever is copied at once.
        let block = self.plan.geometry.block_sectors;
        let range = (sector / block * block, (sector / block + 1) * block);
        let good = replicas.iter().filter(|&&other| {
            let held = &self.nodes[other];
            let kept = newest
                .member(held.id)
                .is_some_and(|member| member.in_sync && self.is_kept(other, member.incarnation));
            let rotten = held
                .disk
                .as_ref()
                .is_none_or(|disk| other != node && disk.rots_in(volume, range.0, range.1));
            kept && held.process.is_some() && self.is_sound(other) && !rotten
        });
        replicas.len() > 1 && good.count() == replicas.len() && replicas.contains(&node)
    }

    /// A page of a node's metadata goes bad, if the others can live without its disk.
    pub(crate) fn bad_page(&mut self, node: usize, how: BadPage) -> bool {
        if !self.can_lose_disk(node) || !self.is_sound(node) {
            return false;
        }
        let voter = self.nodes[node].voter;
        let random = &mut self.random;
        let Some(disk) = &mut self.nodes[node].disk else { return false };
        let spoils = disk.spoil(how, random);
        if spoils {
            self.nodes[node].restored = Some(voter);
            self.nodes[node].spoiled = true;
            self.mark("sim: a page of metadata goes bad");
            self.note(node, || format!("a page of metadata goes bad: {how:?}"));
        }
        spoils
    }

    /// A page that went bad on the only good copy that is left is made well: that is a disk that is lost.
    pub(crate) fn spare_pages(&mut self) {
        let Some(newest) = &self.oracle.newest else { return };
        let in_sync = newest.members.iter().filter(|member| member.in_sync);
        let kept: Vec<usize> = in_sync
            .filter(|member| self.is_kept(node_index(member.node), member.incarnation))
            .map(|member| node_index(member.node))
            .collect();
        if kept.iter().any(|&node| self.is_sound(node)) {
            return;
        }
        let spoiled = |&&node: &&usize| self.nodes[node].spoiled && !self.nodes[node].disk_failed;
        if let Some(&node) = kept.iter().find(spoiled) {
            self.mark("sim: a bad page of the last good copy is taken back");
            self.mend_pages(node);
        }
    }

    fn mend_pages(&mut self, node: usize) {
        let held = &mut self.nodes[node];
        held.disk = held.disk.as_ref().map(Disk::mended);
        held.restored = None;
        held.spoiled = false;
    }

    /// A node starts on a disk of which a page went bad. It is made well if no other copy is left; or if neither the
    /// node itself nor enough of the others can tell that something is missing: what nobody heard of.
    pub(crate) fn judge_pages(&mut self, node: usize, begin: &Start) {
        let intact = |value: &Configuration| {
            value.members.iter().filter(|member| member.in_sync).any(|member| {
                let other = node_index(member.node);
                other != node && self.is_kept(other, member.incarnation) && self.is_sound(other)
            })
        };
        let values = self.proposed().chain(self.oracle.newest.clone());
        let left = values.filter(|value| value.is_in_sync(self.nodes[node].id)).all(|v| intact(&v));
        if !left {
            self.mark("sim: a bad page of the last good copy is taken back");
            return self.mend_pages(node);
        }
        if !self.can_tell(node, begin) {
            self.mark("sim: a bad page of which nobody could tell is taken back");
            self.mend_pages(node);
        }
    }

    /// Whether a bad page on the disk of a node that starts is found out, or is not missed.
    fn can_tell(&mut self, node: usize, begin: &Start) -> bool {
        let Some(bad) = self.nodes[node].disk.clone() else { return true };
        let mended = bad.mended();
        let is_missed = |(place, page): ((VolumeId, MetaPage), Option<&Page>)| match place {
            (volume, MetaPage::Bitmap { slot, page: at }) => {
                page.is_none_or(|page| decode_bitmap_page(volume, slot, at, page).is_ok())
            }
            _ => false,
        };
        let missed = bad.bad_pages().any(is_missed);
        let same = bad.record() == mended.record();
        let found = start(begin, self.found(node));
        self.nodes[node].disk = Some(mended);
        let whole = start(begin, self.found(node));
        self.nodes[node].disk = Some(bad);
        if found.damaged.is_some() {
            return true;
        }
        if same && found.member.found_writes == whole.member.found_writes {
            return !missed;
        }
        let Some(image) = found.member.record else { return true };
        let writes = image.stores.saturating_add(found.member.found_writes);
        !missed && self.is_image_noticed(node, &image, writes)
    }
}

/// Whether what was heard of a node is not in the history that this record tells. The last life in it has
/// no end yet: it is as long as `writes` says.
fn is_after(seen: &Seen, node: NodeId, image: &Record, writes: u64) -> bool {
    let same = |life: &&Life| (life.number, life.process) == (seen.life.number, seen.life.process);
    let told = image.lives.iter().find(same);
    (seen.node, seen.voter) == (node, image.voter)
        && told.is_none_or(|life| {
            let end = if life.writes == u64::MAX { writes } else { life.writes };
            end < seen.life.writes
        })
}

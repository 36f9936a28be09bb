//! Stepping the machines, and carrying out what they ask for, in the order in which it stands.
//!
//! Always: an output is carried out before the machine, or another, is stepped again; what one machine
//! of a node says to another arrives later, in order.

use base::NodeId;
use replica::door::{
    FromShard, MemberInput, MemberOutput, Notice, ShardInput, ShardOutput, ToShard,
};
use wire::Configuration;

use super::status::{changed_bytes, stretch_name};
use super::threads::Parcel;
use super::{Node, Work};
use crate::log::{debug, warning};
use crate::slab::Key;

impl Node {
    /// Steps machines until none has anything more to do.
    pub(super) fn step_all(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Member(key, input) => self.step_member(key, input),
                Work::Shard(key, shard, input) => self.step_shard(key, shard, input),
                Work::Tell(thread, parcel) => self.tell(thread, *parcel),
            }
        }
    }

    fn touch(&mut self, key: Key) {
        if let Some(resource) = self.resources.get_mut(key)
            && !resource.touched
        {
            resource.touched = true;
            self.touched.push(key);
        }
    }

    fn step_member(&mut self, key: Key, input: MemberInput) {
        let now = self.hands.now();
        let resource = self.resources.get_mut(key);
        let Some(member) = resource.and_then(|resource| resource.member.as_mut()) else { return };
        let mut outputs = std::mem::take(&mut self.member_out);
        member.step(now, input, &mut outputs);
        self.touch(key);
        self.carry_member(key, &mut outputs);
        self.member_out = outputs;
        self.note_changes(key);
    }

    /// A configuration is committed, and every thread hears of it: clients are told new sizes, and what lies
    /// beyond a smaller one is given back.
    pub(super) fn on_install(&mut self, key: Key, configuration: &Configuration) {
        if let Some(resource) = self.resources.get_mut(key) {
            resource.installs += 1;
            resource.may_have_parted = configuration.may_have_parted();
            let newer = resource.lost < configuration.lost;
            if newer {
                resource.lost_at = resource.installs;
            }
            resource.lost = resource.lost.max(configuration.lost);
            let told = newer && std::mem::take(&mut resource.told);
            if newer {
                self.lose_disks(key, configuration.lost, told);
            }
            if told {
                let name = self.name_of(key);
                warning!(
                    "{name}: every copy in sync lost its cache, or an operator forced one that was behind: what clients \
                     were told is there may be gone; who had it open gets errors until opening it anew"
                );
                self.lose_clients(key);
            }
        }
        for entry in &configuration.volumes {
            let Some(resource) = self.resources.get_mut(key) else { return };
            let old = resource.sizes.insert(entry.volume, entry.sectors);
            self.keep_from_giving_back(key, entry.volume, entry.kept_sectors());
            if old == Some(entry.sectors) {
                continue;
            }
            self.resize_clients(key, entry.volume, entry.sectors * base::SECTOR_BYTES);
            self.resize_disks(key, entry.volume, entry.sectors);
            if old.is_some_and(|old| old > entry.sectors) {
                self.give_back(key, entry.volume, entry.sectors, old.unwrap_or_default());
            }
        }
    }

    /// What happens to the history of a resource, for the log: named, and counted before it goes.
    fn tell_notice(&self, key: Key, notice: Notice) {
        let name = self.name_of(key);
        let node = |node| self.node_name(name, node);
        let stretch = |history| match history {
            0 => "that began with the resource".to_owned(),
            _ => stretch_name(history),
        };
        match notice {
            Notice::Began { history, fork } => {
                let history = stretch(history);
                warning!("{name}: fork: history {history} (fork {fork}) begins on this node");
            }
            Notice::Parted { peer, mine, theirs } => warning!(
                "{name}: SPLIT BRAIN: this node is on history {}, {} is on {}; both keep their data; give \
                 one side up: lockstep resource resolve {name} --discard NODE",
                stretch(mine),
                node(peer),
                stretch(theirs)
            ),
            Notice::Chosen { peer, clients } => warning!(
                "{name}: the side of {} goes on, and this one does not: what was written here is given up as soon as {clients} \
                 NBD clients of this node have left",
                node(peer)
            ),
            Notice::WentBack { node } if node == self.config.node => warning!(
                "{name}: the disk of this node went back in time: what it acknowledged since is gone from it, and its \
                 vote with it; others must copy it anew"
            ),
            Notice::WentBack { node: peer } => warning!(
                "{name}: the disk of {} went back in time: neither its copy nor its vote counts",
                node(peer)
            ),
            Notice::GivesUp { peer, mine, theirs, fork } => {
                let resource = self.resources.get(key);
                let bytes = resource.map_or(0, |resource| changed_bytes(resource, peer));
                warning!(
                    "{name}: gives up its side: {bytes} bytes written here on history {} are discarded; \
                     the history of {} goes on: {} (fork {fork})",
                    stretch(mine),
                    node(peer),
                    stretch(theirs)
                );
            }
        }
    }

    /// Carries out what a member asks for.
    pub(super) fn carry_member(&mut self, key: Key, outputs: &mut Vec<MemberOutput>) {
        // Who gives its side up the moment it meets the other need not tell an operator to choose.
        let gives_up = |output: &MemberOutput| match output {
            MemberOutput::Notice(Notice::GivesUp { peer, .. }) => Some(*peer),
            _ => None,
        };
        let given_up: Vec<NodeId> = outputs.iter().filter_map(gives_up).collect();
        for output in outputs.drain(..) {
            match output {
                MemberOutput::Store { number, record } => self.store_record(key, number, *record),
                MemberOutput::Send { peer, session, message } => {
                    self.send_member(key, peer, session, &message);
                }
                MemberOutput::Shards(message) => {
                    if let ToShard::Install { configuration, leaves, .. } = &message {
                        self.on_install(key, configuration);
                        self.learn_members(key, configuration);
                        self.note_membership(key, configuration);
                        if *leaves {
                            self.lose_clients(key);
                        }
                    }
                    self.push_to_shards(key, &message);
                    let life = self.resources.get(key).map_or(0, |resource| resource.life);
                    self.tell_others(|| Parcel::ToShards { life, message: message.clone() });
                }
                MemberOutput::Done { id, result } => self.on_done(id, result),
                MemberOutput::Notice(Notice::Parted { peer, .. }) if given_up.contains(&peer) => {}
                MemberOutput::Notice(notice) => self.tell_notice(key, notice),
                MemberOutput::Mark(name) => debug!("{}: {name}", self.name_of(key)),
            }
        }
    }

    fn step_shard(&mut self, key: Key, shard: u16, input: ShardInput) {
        let now = self.hands.now();
        let resource = self.resources.get_mut(key);
        let Some(machine) = resource.and_then(|entry| entry.shard_mut(shard)) else { return };
        let mut outputs = std::mem::take(&mut self.shard_out);
        machine.step(now, input, &mut outputs);
        self.touch(key);
        self.carry_shard(key, shard, &mut outputs);
        self.shard_out = outputs;
    }

    /// Carries out what a shard asks for.
    pub(super) fn carry_shard(&mut self, key: Key, shard: u16, outputs: &mut Vec<ShardOutput>) {
        for output in outputs.drain(..) {
            match output {
                ShardOutput::Disk { op, request } => self.begin_disk(key, shard, op, request),
                ShardOutput::Send { peer, session, message, buffer } => {
                    self.send_shard(key, shard, (peer, session), &message, buffer);
                }
                ShardOutput::Answer { id, result, buffer } => {
                    let bytes = buffer.map(|buffer| self.buffers.get(buffer));
                    self.on_answer(key, id, result, bytes);
                }
                ShardOutput::Release { buffer } => self.buffers.release(buffer),
                ShardOutput::Member(message) if self.threads.is_first() => {
                    let input = MemberInput::Shard { shard, message };
                    self.work.push_back(Work::Member(key, input));
                }
                ShardOutput::Member(message) => {
                    let ends = matches!(
                        message,
                        FromShard::Installed { .. }
                            | FromShard::Synced { .. }
                            | FromShard::Verified { .. }
                    );
                    // Before what it says: who hears of an end can see what came of it.
                    self.show(key, ends);
                    let life = self.resources.get(key).map_or(0, |resource| resource.life);
                    self.tell(0, Parcel::FromShard { life, shard, message });
                }
                ShardOutput::Mark(name) => debug!("{}: {name}", self.name_of(key)),
            }
        }
    }

    /// A resource's name, for a line in the log.
    pub(super) fn name_of(&self, key: Key) -> &str {
        self.resources.get(key).map_or("(gone)", |resource| resource.name.as_str())
    }

    /// Wakes every machine whose time has come.
    pub(super) fn wake_resources(&mut self) {
        let now = self.hands.now();
        while let Some(&(time, key)) = self.wakes.first()
            && time <= now
        {
            self.wakes.pop_first();
            let Some(resource) = self.resources.get_mut(key) else { continue };
            resource.wake = None;
            let member = resource.member.as_ref().and_then(replica::Member::wake_at);
            if member.is_some_and(|at| at <= now) {
                self.work.push_back(Work::Member(key, MemberInput::Wake));
            }
            for (number, shard) in resource.here() {
                if shard.wake_at().is_some_and(|at| at <= now) {
                    self.work.push_back(Work::Shard(key, number, ShardInput::Wake));
                }
            }
            self.touch(key);
        }
    }

    /// Enters when time alone will change something, for every resource that was stepped.
    pub(super) fn note_wakes(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            let Some(resource) = self.resources.get_mut(key) else { continue };
            resource.touched = false;
            let wake = resource.wake_at();
            let old = std::mem::replace(&mut resource.wake, wake);
            if wake != old {
                if let Some(old) = old {
                    self.wakes.remove(&(old, key));
                }
                if let Some(new) = wake {
                    self.wakes.insert((new, key));
                }
            }
            self.show(key, false);
        }
        self.touched = touched;
    }
}

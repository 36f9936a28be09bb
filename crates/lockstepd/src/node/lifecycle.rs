//! How resources come, begin anew after a start, and go.
//!
//! A resource is *defined* once its file is in `resources/`, *created* once this node's stores are made,
//! and *running* once its machines are. A node that is no member runs it as a client as soon as it is
//! defined. Whatever is wrong with one resource is said in its status and never stops the node.
//!
//! Always: a resource's file is on stable storage before anybody hears that it is defined; stores are
//! wiped before a file is removed.
//!
//! Not here: parts that were never made, or not to the end (`unmade`); making and reading stores (`backing`), which runs on the helper's thread.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{ClusterId, Duration, Epoch, NodeId, ResourceId, VolumeId};
use replica::disk::Record;
use replica::door::{LogSize, MemberInput, Timing};
use replica::shard::ShardSetup;
use replica::start::{Found, Start, start};
use replica::{Geometry, Member, Shard};
use store::{Place, Store};
use wire::admin::{FileMember, FileVolume, ResourceFile, StoreKind, codes, encode_line};
use wire::{DESCRIPTION_BYTES_MAX, MemberKind, Quorum};

use super::admin::no_resource;
use super::admission::{members_of, nodes_of};
use super::beyond::Beyond;
use super::disk::{LocalDisk, LocalVolume};
use super::files::{remove_each, remove_files, replace_file};
use super::fitness::may_use;
use super::patience::patiently;
use super::recast::{Done, Part};
use super::resource::{Accounts, Resource, Seat};
use super::roster::Roster;
use super::sums::Sums;
use super::threads::{Beginning, Parcel};
use super::{Node, Work, unmade};
use crate::backing::{self, Blocking, Plan, Refused};
use crate::log::{debug, error, info, warning};
use crate::slab::Key;

/// A resource that is defined here.
pub(crate) struct Known {
    pub(crate) file: ResourceFile,
    pub(crate) running: Option<Key>,
    /// Why it does not run, or runs without its disk.
    pub(crate) problem: Option<String>,
    /// A job of the helper works on it.
    pub(crate) busy: bool,
    /// What is known of who was admitted to it and dismissed.
    pub(super) roster: Roster,
    /// Nobody has begun to make this node's part: no store of it was ever here. Survives a start, as a file.
    pub(crate) uncreated: bool,
    /// Members that say that it is deleted, while this node holds a part of it.
    pub(super) left_over: BTreeSet<NodeId>,
}

impl Node {
    pub(super) fn resource_path(&self, name: &str) -> PathBuf {
        self.config.directory.join("resources").join(format!("{name}.toml"))
    }

    /// Whether a resource is described here in words that could not be read: whose disk it is nobody can say, but it is not gone.
    pub(super) fn is_unreadable(&self, name: &str) -> bool {
        !self.known.contains_key(name) && self.resource_path(name).exists()
    }

    /// Its files beside its stores, in the order in which they go.
    pub(super) fn files_of(&self, name: &str) -> [PathBuf; 3] {
        [self.resource_path(name), self.uncreated_path(name), self.ending_path(name)]
    }

    /// There while a resource and its stores are deleted here.
    fn ending_path(&self, name: &str) -> PathBuf {
        self.config.directory.join("resources").join(format!("{name}.ending"))
    }

    /// A node that dies in the middle of deleting it goes on with that at its next start; without this file it would run
    /// what is left.
    fn note_ending(&self, name: &str, id: ResourceId) {
        let path = self.ending_path(name);
        if let Err(error) = replace_file(&path, format!("{:016x}\n", id.0).as_bytes()) {
            warning!("{}: {error}", path.display());
        }
    }

    /// Whether this node died in the middle of deleting it.
    fn was_ending(&self, name: &str, id: ResourceId) -> bool {
        let path = self.ending_path(name);
        let Ok(text) = std::fs::read_to_string(&path) else { return false };
        let is_it = text.trim() == format!("{:016x}", id.0);
        if !is_it && let Err(refused) = remove_files(&[path]) {
            warning!("{name}: {refused}");
        }
        is_it
    }

    /// Reads every resource file, and runs what can run.
    pub(super) fn load_resources(&mut self) -> Result<(), String> {
        let directory = self.config.directory.join("resources");
        sys::make_directory(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let entries = std::fs::read_dir(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        for path in paths {
            match read_file(&path).and_then(|file| self.is_its_own(&path, file)) {
                Ok(file) => {
                    let name = file.name.clone();
                    self.learn_nodes(&file);
                    let roster = self.read_roster(ResourceId(file.id));
                    let uncreated = unmade::undo_begun(&self.uncreated_path(&name));
                    let known = Known {
                        file,
                        running: None,
                        problem: None,
                        busy: false,
                        roster,
                        uncreated,
                        left_over: BTreeSet::new(),
                    };
                    let id = ResourceId(known.file.id);
                    self.known.insert(name.clone(), known);
                    if self.was_ending(&name, id) {
                        info!("{name}: a delete goes on that was begun before this node ended");
                        self.delete(&name, true, |_, _| {});
                        continue;
                    }
                    self.run_now(&name);
                    self.settle_roster(&name);
                }
                Err(why) => error!("{}: {why}; it is left alone", path.display()),
            }
        }
        Ok(())
    }

    /// Refuses a description that is the copy of another: one resource must not run twice.
    fn is_its_own(&self, path: &Path, file: ResourceFile) -> Result<ResourceFile, String> {
        if path != self.resource_path(&file.name) {
            return Err(format!("it describes {}, which has a file of its own name", file.name));
        }
        match self.known.values().find(|known| known.file.id == file.id) {
            Some(known) => Err(format!("it has the identity of {}", known.file.name)),
            None => Ok(file),
        }
    }

    pub(super) fn learn_nodes(&mut self, file: &ResourceFile) {
        for node in &file.nodes {
            let addresses: Vec<_> =
                node.addresses.iter().filter_map(|address| address.parse().ok()).collect();
            self.add_peer(NodeId(node.id), &node.name, &addresses);
        }
    }

    pub(super) fn plans(&self, file: &ResourceFile) -> Vec<Plan> {
        let config = &self.config;
        let mut plans =
            backing::plans(&config.directory, file, config.node, config.allow_memory_store);
        let faulty = config.faulty.as_ref().is_none_or(|name| *name == file.name);
        for plan in plans.iter_mut().filter(|_| faulty) {
            plan.spec.faults.clone_from(&config.faults);
        }
        plans
    }

    /// Loads and runs a resource on this thread: for a start.
    fn run_now(&mut self, name: &str) {
        let file = self.known[name].file.clone();
        let plans = self.plans(&file);
        let (cluster, id) = (self.config.cluster, ResourceId(file.id));
        let patience = self.config.disk_late;
        let found = if plans.is_empty() {
            Ok(None)
        } else if self.is_created(&plans) && !self.known[name].uncreated {
            let in_use = |refused: &Refused| refused.in_use;
            patiently(|| load(&plans, cluster, id, patience), in_use).map(Some)
        } else {
            Err(missing(name, &plans))
        };
        self.run_found(name, &plans, found);
    }

    /// A peer has described a resource that was not known here. A member has lost its description only: it runs with
    /// what its stores hold, or without its disk where they are gone, too.
    pub(super) fn run_stored(&mut self, name: &str) {
        let Some(known) = self.known.get(name) else { return };
        if known.running.is_some() || known.busy || known.uncreated {
            return;
        }
        let (plans, id) = (self.plans(&known.file), ResourceId(known.file.id));
        let is_there = |plan: &Plan| matches!(&plan.spec.place, Place::Path(path) if path.exists());
        if plans.is_empty() {
            return;
        }
        if !plans.iter().any(is_there) {
            // The others may count on what was here.
            if plans.iter().all(|plan| plan.kind != StoreKind::Memory) {
                let why = missing(name, &plans);
                self.run_found(name, &plans, Err(why));
            }
            return;
        }
        if let Some(known) = self.known.get_mut(name) {
            known.busy = true;
        }
        let (cluster, patience) = (self.config.cluster, self.config.disk_late);
        let name = name.to_owned();
        self.helper().start(move || {
            let found = load(&plans, cluster, id, patience);
            Box::new(move |node: &mut Node| {
                let Some(known) = node.known.get_mut(&name) else { return };
                known.busy = false;
                let other = found.as_ref().is_err_and(|why| why.code == &codes::OTHER_STORE);
                if known.running.is_some() || known.file.id != id.0 || other {
                    return;
                }
                node.run_found(&name, &plans, found.map(Some));
            })
        });
    }

    /// Runs a resource with what was found on its disk; without its disk if that failed.
    pub(super) fn run_found(
        &mut self,
        name: &str,
        plans: &[Plan],
        found: Result<Option<Found>, Refused>,
    ) {
        let Some(known) = self.known.get(name) else { return };
        let file = known.file.clone();
        let attached = match found {
            Ok(None) => Ok((None, Vec::new())),
            Ok(Some(found)) => may_use(self.config.node, &file, plans, &found)
                .and_then(|()| self.open_stores(&file, plans, found)),
            Err(why) => Err(why),
        };
        let (found, volumes, problem) = match attached {
            Ok((found, volumes)) => (found, volumes, None),
            Err(why) => {
                error!("{name}: runs without its disk: {why}");
                (None, Vec::new(), Some(why.to_string()))
            }
        };
        let key = self.begin(&file, found.unwrap_or_default(), volumes);
        if let Some(known) = self.known.get_mut(name) {
            known.running = Some(key);
            known.problem = problem;
        }
        self.tell_all_resources();
    }

    /// Whether this node's part was ever made: then a store that is missing is a fault.
    fn is_created(&self, plans: &[Plan]) -> bool {
        plans.iter().any(|plan| match &plan.spec.place {
            Place::Path(path) => path.exists(),
            Place::Memory { .. } => true,
        })
    }

    /// Opens what `found` was read from.
    fn open_stores(
        &mut self,
        file: &ResourceFile,
        plans: &[Plan],
        mut found: Found,
    ) -> Result<(Option<Found>, Vec<LocalVolume>), Refused> {
        let mut volumes = Vec::new();
        let disk = sys::random_u64() | 1;
        for plan in plans {
            let mut store = backing::open_to_serve(plan)?;
            if plan.kind == StoreKind::Memory {
                let record = match &found.record {
                    Some(record) => record.clone(),
                    // Memory has forgotten: this is a new voter, and an empty copy.
                    None => self.forgetful_record(file)?,
                };
                found.record = Some(record.clone());
                let label = self.label(file, plan, disk);
                let mut blocking = Blocking::new()?;
                backing::format(&mut blocking, &mut store, plan, &label, &record)
                    .map_err(|errno| Refused::new(&codes::STORE_FAILED, errno.to_string()))?;
            }
            info!("{} volume {}: {}", file.name, plan.volume, store.describe());
            let kind = plan.kind;
            let layout = plan.layout;
            let checked = file.options.data_checksum;
            let sums = checked.then(Sums::default);
            volumes.push(LocalVolume {
                volume: plan.volume,
                store,
                layout,
                kind,
                sums,
                beyond: Beyond::default(),
            });
        }
        Ok((Some(found), volumes))
    }

    fn forgetful_record(&self, file: &ResourceFile) -> Result<Record, Refused> {
        let mut record = self.first_record(file)?;
        record.voter = base::VoterId(sys::random_u64() | 1);
        record.incarnation = base::Incarnation(sys::random_u64() | 1);
        Ok(record)
    }

    /// Makes the machines of a resource.
    fn begin(&mut self, file: &ResourceFile, found: Found, mut volumes: Vec<LocalVolume>) -> Key {
        let now = self.hands.now_fresh();
        let node = self.config.node;
        let is_replica = file
            .members
            .iter()
            .any(|member| member.node == node.0 && member.kind == MemberKind::Replica);
        let record = found.record.clone();
        let setups = start(
            &Start {
                node,
                // Not the process's own: machines that take the place of others count their writes anew.
                process: sys::random_u64() | 1,
                boot: self.config.boot,
                holds_data: is_replica && record.is_some(),
                volatile_cache: volumes.iter().any(|entry| entry.store.volatile_cache()),
                shards: file.shards,
                geometry: Geometry::default(),
                log_sizes: log_sizes(file),
                timing: timing(file),
                feature_level: wire::FEATURE_LEVEL,
                seed: sys::random_u64(),
                bootstrap: file.configuration().ok(),
            },
            found,
        );
        if let Some(damaged) = setups.damaged {
            warning!("{}: its log is damaged ({damaged:?}): it is copied anew", file.name);
        }
        self.lives += 1;
        let id = ResourceId(file.id);
        let (mut outputs, mut seats) = (Vec::new(), Vec::new());
        let (own, far): (Vec<_>, Vec<_>) =
            setups.shards.into_iter().partition(|setup| self.threads.is_own(id, setup.index));
        let committed = record.as_ref().and_then(|record| record.committed.as_ref());
        let nodes = nodes_of(file, committed.map(|(_, known)| &**known));
        let accounts = self.begin_elsewhere(file, far, &volumes, &nodes);
        seats.resize_with(usize::from(file.shards), || Seat::There(Box::default()));
        for setup in own {
            distrust(&mut volumes, &setup);
            let (index, mut out) = (setup.index, Vec::new());
            let shard = Shard::new(now, setup, &mut out);
            seats[usize::from(index)] = Seat::Here(Box::new(shard));
            outputs.push((index, out));
        }
        let members = committed.map(|(_, known)| members_of(known));
        let named = committed.and_then(|(_, known)| Some((known.member(node)?.voter, known.fork)));
        let disk = (!volumes.is_empty()).then_some(LocalDisk { volumes, record });
        let mut member = Member::new(now, setups.member);
        member.set_wall_clock(sys::wall_clock_ms().saturating_sub(now.0 / 1_000_000));
        let mut resource = Resource::new(file.name.clone(), id, Geometry::default(), seats, disk);
        resource.member = Some(member);
        resource.defined = file.configuration().ok();
        resource.life = self.lives;
        resource.nodes = nodes;
        resource.accounts = accounts;
        resource.named = named;
        resource.members = members.or_else(|| resource.defined.as_ref().map(members_of));
        let awaited = self.machines_awaited(&file.name, file.id);
        let count = self.disks_counted(&file.name, file.id) + awaited;
        resource.clients = count;
        let key = self.resources.insert(resource);
        self.by_id.insert(id, key);
        self.by_life.insert(self.lives, key);
        for (shard, mut out) in outputs {
            self.carry_shard(key, shard, &mut out);
        }
        self.work.push_back(Work::Member(key, MemberInput::Clients { count }));
        key
    }

    /// Gives the other threads their parts of a resource: of every one, so that all streams have the same
    /// resources; with the disk where there is a shard for it. What all of them account for is returned.
    fn begin_elsewhere(
        &mut self,
        file: &ResourceFile,
        setups: Vec<ShardSetup>,
        volumes: &[LocalVolume],
        nodes: &[NodeId],
    ) -> Accounts {
        let accounts = Accounts::default();
        let count = usize::from(self.threads.count());
        let mut parts: Vec<Vec<ShardSetup>> = Vec::new();
        parts.resize_with(count, Vec::new);
        for setup in setups {
            let thread = self.threads.of_shard(ResourceId(file.id), setup.index);
            parts[usize::from(thread)].push(setup);
        }
        for (thread, setups) in (0_u16..).zip(parts).skip(1) {
            let needed = if setups.is_empty() { &[] } else { volumes };
            let mut volumes: Vec<LocalVolume> =
                needed.iter().map(|entry| entry.share(u64::from(thread))).collect();
            for setup in &setups {
                distrust(&mut volumes, setup);
            }
            let beginning = Beginning {
                name: file.name.clone(),
                id: ResourceId(file.id),
                life: self.lives,
                geometry: Geometry::default(),
                nodes: nodes.to_vec(),
                shards: file.shards,
                setups,
                volumes,
                accounts: accounts.clone(),
            };
            self.tell(thread, Parcel::Begin(Box::new(beginning)));
        }
        accounts
    }

    /// Stops a resource's machines. Its clients are dropped; its stores close when what is on its way
    /// to them has ended.
    pub(super) fn end(&mut self, name: &str, why: &str) {
        let Some(known) = self.known.get_mut(name) else { return };
        let Some(key) = known.running.take() else { return };
        self.drop_clients_of(key, why);
        if let Some(mut resource) = self.remove_machines(key) {
            if let Some(recast) = resource.recast.take() {
                self.end_recast(*recast, why);
            }
            self.fail_operations_of(key);
            self.forget_asked_of(key);
        }
        self.tell_all_resources();
    }

    /// Takes a resource's machines from this thread, and from the others too if this is the first. What was
    /// on its way to them, and what they had, goes with them.
    pub(super) fn remove_machines(&mut self, key: Key) -> Option<Resource> {
        let resource = self.resources.remove(key)?;
        self.recount = true;
        let life = resource.life;
        if self.threads.is_first() {
            self.tell_others(|| Parcel::End { life });
        }
        self.by_life.remove(&life);
        self.by_id.remove(&resource.id);
        self.forget_sessions(resource.id);
        if let Some(wake) = resource.wake {
            self.wakes.remove(&(wake, key));
        }
        self.work.retain(|work| work.resource() != Some(key));
        self.buffers.release_all(key);
        Some(resource)
    }

    /// `ResourceDefine`: `done` is told how it went.
    pub(super) fn redefine(
        &mut self,
        file: ResourceFile,
        done: impl FnOnce(&mut Node, Result<(), Refused>) + Send + 'static,
    ) {
        let (name, own) = (file.name.clone(), self.config.node);
        if self.is_changing(&name) {
            let message = format!("{name}: this node's part in it is changing");
            return done(self, Err(Refused::new(&codes::BUSY, message)));
        }
        self.deleted.recall(ResourceId(file.id));
        self.note_there(ResourceId(file.id), None);
        let leaves = self.known.get(&name).filter(|known| {
            let member = |file: &ResourceFile| file.members.iter().any(|m| m.node == own.0);
            known.file.id == file.id && member(&known.file) && !member(&file)
        });
        let Some(known) = leaves else {
            let result = self.define(file, true);
            return done(self, result);
        };
        let (old, running) = (known.file.clone(), known.running);
        let counted = running.is_some_and(|key| self.is_counted_on(key, own));
        let counted = counted && !self.never_joined(known);
        let result = match file.check() {
            Err(error) => Err(Refused::new(&codes::BAD_RESOURCE_FILE, error.0)),
            Ok(()) if counted => {
                let message = format!("{name}: the resource still counts on what this node holds");
                Err(Refused::new(&codes::BUSY, message))
            }
            Ok(()) => Ok(()),
        };
        match result {
            Ok(()) => self.become_client(&name, &old, file, false, Box::new(done)),
            refused => done(self, refused),
        }
    }

    /// Whether stores are being made or removed, or machines are about to be exchanged.
    fn is_changing(&self, name: &str) -> bool {
        let Some(known) = self.known.get(name) else { return false };
        let running = known.running.and_then(|key| self.resources.get(key));
        known.busy || running.is_some_and(|resource| resource.recast.is_some())
    }

    /// Knows a resource, or knows it anew: from an operator, who is about to have its part made here if it is `made`, or
    /// from others, who may count on what was stored here.
    pub(super) fn define(&mut self, mut file: ResourceFile, made: bool) -> Result<(), Refused> {
        file.check().map_err(|error| Refused::new(&codes::BAD_RESOURCE_FILE, error.0))?;
        let name = file.name.clone();
        let kinds = file.members.iter().map(|member| member.kind);
        refuse_witness(&name, file.options.quorum, kinds)?;
        if !file.nodes.iter().any(|node| node.id == self.config.node.0) {
            let own = &self.config.name;
            let message = format!("{name}: this node, {own}, is not among its nodes");
            return Err(Refused::new(&codes::NOT_HERE, message));
        }
        refuse_long(&file)?;
        if self.ending.contains(&name) {
            let message = format!("{name}: what had this name is being removed");
            return Err(Refused::new(&codes::BUSY, message));
        }
        if self.is_unreadable(&name) && self.resource_path(&name).is_file() {
            // It says where a store is that others know nothing of, and who it is by whose identity a copy counts.
            let path = self.resource_path(&name);
            let message = format!(
                "{name}: {} could not be read when this node started, or was put there since, and is left alone: correct it, \
                 and start the node anew; the log says what is wrong with it",
                path.display()
            );
            return Err(Refused::new(&codes::RESOURCE_EXISTS, message));
        }
        for (other, known) in &self.known {
            if (*other == name) != (known.file.id == file.id) {
                let message = format!("{name}: {other} has this name or identity already");
                return Err(Refused::new(&codes::RESOURCE_EXISTS, message));
            }
        }
        let plans = self.plans(&file);
        if let Some(known) = self.known.get(&name)
            && known.running.is_some()
            && !plans.is_empty()
        {
            // Stores are laid out for the size they were made with, also after the next start.
            file.volumes.clone_from(&known.file.volumes);
        }
        // Of one that had its name, or of this one before an operator had it made again.
        remove_files(&[self.ending_path(&name)])?;
        let uncreated = made && !plans.is_empty() && self.may_be_unused(&name);
        self.save_noted(&file, uncreated)?;
        self.learn_nodes(&file);
        let known = self.known.entry(name.clone()).or_insert(Known {
            file: file.clone(),
            running: None,
            problem: None,
            busy: false,
            roster: Roster::default(),
            uncreated,
            left_over: BTreeSet::new(),
        });
        known.file = file;
        known.uncreated |= uncreated;
        match known.running {
            Some(key) => self.settle_nodes(key),
            None if plans.is_empty() => self.run_found(&name, &plans, Ok(None)),
            None => {}
        }
        Ok(())
    }

    /// Whether no store of it is in use here, and nobody was primary as far as is known: an operator may be making it,
    /// and another node have told of it first.
    fn may_be_unused(&self, name: &str) -> bool {
        let Some(known) = self.known.get(name) else { return true };
        let running = known.running.and_then(|key| self.resources.get(key));
        running.is_none_or(|resource| {
            let epoch = resource.configuration().map_or(0, |known| known.epoch.0);
            resource.disk.is_none() && epoch <= 1
        })
    }

    /// Puts a resource's file in its place, whole or not at all; not at all after an error, unless that says that it may be there.
    pub(super) fn save(&self, file: &ResourceFile) -> Result<(), Refused> {
        let path = self.resource_path(&file.name);
        let failed = |error: String| {
            Refused::new(&codes::STORE_FAILED, format!("{}: {error}", path.display()))
        };
        let text = toml::to_string_pretty(file).map_err(|error| failed(error.to_string()))?;
        replace_file(&path, text.as_bytes()).map_err(|error| failed(error.to_string()))
    }

    /// The record of a member that begins with the resource.
    fn first_record(&self, file: &ResourceFile) -> Result<Record, Refused> {
        let configuration = file
            .configuration()
            .map_err(|error| Refused::new(&codes::BAD_RESOURCE_FILE, error.0))?;
        let (node, boot) = (self.config.node, self.config.boot);
        let Some(member) = configuration.member(node) else {
            let message = format!("{}: this node is no member of it", file.name);
            return Err(Refused::new(&codes::NOT_HERE, message));
        };
        if joins_later(file, node) {
            // Between two memories of a member the configuration names none.
            let lost = member.voter == base::VoterId(0);
            let voter = if lost { base::VoterId(sys::random_u64() | 1) } else { member.voter };
            return Ok(Record::empty(voter, member.incarnation, boot));
        }
        Ok(Record::first(&configuration, node, boot).expect("it names this node"))
    }

    /// The superblock of a store.
    fn label(&self, file: &ResourceFile, plan: &Plan, disk: u64) -> Vec<u8> {
        backing::label(self.config.cluster, ResourceId(file.id), plan, disk)
    }

    /// `ResourceCreate`: `done` is told how it went. What was begun is taken back if it is `given_up`.
    pub(super) fn create(
        &mut self,
        name: &str,
        force: bool,
        given_up: Arc<AtomicBool>,
        done: impl FnOnce(&mut Node, Result<(), Refused>) + Send + 'static,
    ) {
        let uncreated = self.known.get(name).is_some_and(|known| known.uncreated);
        let prepared = self.prepare_create(name);
        let (file, plans, record) = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => return done(self, Err(refused)),
        };
        let disk = sys::random_u64() | 1;
        let labels = plans.iter().map(|plan| self.label(&file, plan, disk));
        let labels: Vec<Vec<u8>> = labels.collect();
        let name = name.to_owned();
        let (cluster, id) = (self.config.cluster, ResourceId(file.id));
        let patience = self.config.disk_late;
        let begun = self.uncreated_path(&name);
        self.helper().start(move || {
            let result = unmade::make(&begun, &plans, &labels, &record, force, &given_up);
            let made = result.is_ok();
            let only_memory = plans.iter().all(|plan| plan.kind == StoreKind::Memory);
            let found = result.and_then(|()| {
                if only_memory {
                    Ok(Found { record: Some(record), pages: Vec::new() })
                } else {
                    load(&plans, cluster, id, patience)
                }
            });
            Box::new(move |node: &mut Node| {
                if let Some(known) = node.known.get_mut(&name) {
                    known.busy = false;
                }
                match found {
                    Ok(found) => node.on_made(&name, plans, found, Box::new(done)),
                    Err(refused) => {
                        if !made {
                            info!("{name}: this node's part is not made: {refused}");
                            node.is_unmade_still(&name, uncreated);
                        }
                        done(node, Err(refused));
                    }
                }
            })
        });
    }

    /// The stores of a resource are made: it runs with them. Clients that have it open here stay.
    fn on_made(&mut self, name: &str, plans: Vec<Plan>, found: Found, done: Done) {
        let known = self.known.get(name);
        let running = known.and_then(|known| known.running);
        let id = ResourceId(known.map_or(0, |known| known.file.id));
        info!("{name}: created");
        let Some(key) = running else {
            self.run_found(name, &plans, Ok(Some(found)));
            let problem = self.known.get(name).and_then(|known| known.problem.clone());
            let result =
                problem.map_or(Ok(()), |problem| Err(Refused::new(&codes::STORE_FAILED, problem)));
            return done(self, result);
        };
        let (name, made) = (name.to_owned(), plans.clone());
        let or_removed = move |node: &mut Node, result: Result<(), Refused>| match result {
            Ok(()) => done(node, Ok(())),
            Err(refused) => {
                let done = Box::new(move |node: &mut Node, _| done(node, Err(refused)));
                node.remove_stores(&name, id, made, done);
            }
        };
        self.recast(key, Part::Member(plans, Box::new(found)), false, Box::new(or_removed));
    }

    fn prepare_create(&mut self, name: &str) -> Result<(ResourceFile, Vec<Plan>, Record), Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        if known.busy {
            return Err(Refused::new(&codes::BUSY, format!("{name}: a store is being made")));
        }
        let file = known.file.clone();
        let attached = known
            .running
            .and_then(|key| self.resources.get(key))
            .is_some_and(|resource| resource.disk.is_some());
        if attached {
            return Err(Refused::new(&codes::RESOURCE_EXISTS, format!("{name}: it is created")));
        }
        let record = self.first_record(&file)?;
        self.refuse_amnesia(known, &record)?;
        let plans = self.plans(&file);
        let memory = plans.iter().any(|plan| plan.kind == StoreKind::Memory);
        if memory && !self.config.allow_memory_store {
            let message = format!("{name}: its store on this node would be memory");
            return Err(Refused::new(&codes::MEMORY_REFUSED, message));
        }
        refuse_vast(name, &plans)?;
        if let Some(known) = self.known.get_mut(name) {
            known.busy = true;
            known.uncreated = false;
        }
        Ok((file, plans, record))
    }

    /// A member that has taken part, or may have, and whose store is gone, is not made as if it had never promised
    /// anything.
    fn refuse_amnesia(&self, known: &Known, record: &Record) -> Result<(), Refused> {
        let own = self.config.node;
        let running = known.running.and_then(|key| self.resources.get(key));
        let newest = running.and_then(Resource::configuration);
        let counted = newest.is_some_and(|newest| {
            newest.epoch > Epoch(1)
                && newest.member(own).is_some_and(|member| member.voter == record.voter)
        });
        let new = known.uncreated || joins_later(&known.file, own);
        if new && !counted {
            return Ok(());
        }
        let message = format!(
            "{}: the others may count on what was stored here; it cannot be made as if it were new",
            known.file.name
        );
        Err(Refused::new(&codes::STORE_MISSING, message))
    }

    /// Refuses to delete what was used, if only what was not is to go. A copy that holds an answered write knows of its
    /// primary's configuration, which is not the first.
    pub(super) fn refuse_used(&self, name: &str, unused: bool) -> Result<(), Refused> {
        let running = self.known.get(name).and_then(|known| known.running);
        let resource = running.and_then(|key| self.resources.get(key));
        let epoch = resource.and_then(Resource::configuration).map_or(0, |known| known.epoch.0);
        if unused && epoch > 1 {
            let message = format!("{name}: it was used");
            return Err(Refused::new(&codes::IN_USE, message));
        }
        Ok(())
    }

    /// What ends here; refused while clients have it open, unless forced, or its store is being made.
    fn refuse_end(&self, name: &str, force: bool) -> Result<&Known, Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let running = known.running.and_then(|key| self.resources.get(key));
        let clients = running.map_or(0, |resource| resource.clients);
        if clients > 0 && !force {
            let message = format!("{name}: {clients} clients have it open on this node");
            return Err(Refused::new(&codes::IN_USE, message));
        }
        if known.busy {
            return Err(Refused::new(&codes::BUSY, format!("{name}: a store is being made")));
        }
        Ok(known)
    }

    /// `ResourceDelete`: `done` is told how it went.
    pub(super) fn delete(
        &mut self,
        name: &str,
        force: bool,
        done: impl FnOnce(&mut Node, Result<(), Refused>) + Send + 'static,
    ) {
        let known = match self.refuse_end(name, force) {
            Ok(known) => known,
            Err(refused) => return done(self, Err(refused)),
        };
        let running = known.running.and_then(|key| self.resources.get(key));
        let (cluster, id) = (self.config.cluster, ResourceId(known.file.id));
        let had_disk = running.is_some_and(|resource| resource.disk.is_some());
        let member = known.file.members.iter().any(|member| member.node == self.config.node.0);
        // Of one that it is no member of there may be a part that was given up.
        let looks = had_disk || force || !member;
        let plans = if looks { self.places(&known.file) } else { Vec::new() };
        if looks {
            self.note_ending(name, id);
        }
        self.end(name, "the resource is deleted");
        self.known.remove(name);
        self.drop_roster(id);
        self.note_deleted(id);
        let (name, paths) = (name.to_owned(), self.files_of(name));
        self.ending.insert(name.clone());
        self.helper().start(move || {
            // It may be another's by now, or have been described anew since it was opened.
            let result = remove_each(&plans, |plan| {
                match backing::remove_labelled(plan, &plans, cluster, id) {
                    Err(refused) if !member && refused.code == &codes::OTHER_STORE => Ok(()),
                    result => result,
                }
            });
            let removed = remove_files(&paths);
            Box::new(move |node: &mut Node| {
                let result = result.and(removed);
                match &result {
                    Ok(()) => info!("{name}: deleted"),
                    Err(refused) => warning!("{name}: not all of it is removed: {refused}"),
                }
                node.ending.remove(&name);
                node.ask_again();
                done(node, result);
            })
        });
    }

    /// `ResourceForget`: `done` is told how it went.
    pub(super) fn forget(
        &mut self,
        name: &str,
        stores: bool,
        done: impl FnOnce(&mut Node, Result<(), Refused>) + Send + 'static,
    ) {
        let known = match self.refuse_end(name, false) {
            Ok(known) => known,
            Err(refused) => return done(self, Err(refused)),
        };
        let (cluster, id) = (self.config.cluster, ResourceId(known.file.id));
        let places = if stores { self.places(&known.file) } else { Vec::new() };
        self.end(name, "the resource is forgotten");
        self.known.remove(name);
        self.drop_roster(id);
        self.deleted.forget(id);
        let (name, paths) = (name.to_owned(), self.files_of(name));
        self.ending.insert(name.clone());
        self.helper().start(move || {
            let result =
                remove_each(&places, |plan| backing::remove_labelled(plan, &places, cluster, id));
            let removed = remove_files(&paths);
            Box::new(move |node: &mut Node| {
                info!("{name}: forgotten");
                node.ending.remove(&name);
                node.ask_again();
                done(node, result.and(removed));
            })
        });
    }

    /// Where this node keeps what it holds of a resource; of one that it is no member of, where it would.
    fn places(&self, file: &ResourceFile) -> Vec<Plan> {
        let own = self.config.node.0;
        if file.members.iter().any(|member| member.node == own) {
            return self.plans(file);
        }
        let kinds = [MemberKind::Replica, MemberKind::Witness];
        let plans = kinds.into_iter().flat_map(|kind| {
            let mut file = file.clone();
            file.members.push(FileMember {
                node: own,
                kind,
                voter: None,
                incarnation: None,
                in_sync: None,
                stores: Vec::new(),
            });
            self.plans(&file)
        });
        plans
            .filter(|plan| matches!(&plan.spec.place, Place::Path(path) if path.exists()))
            .collect()
    }

    /// The running resource of this identity.
    pub(super) fn resource_by_id(&self, id: ResourceId) -> Option<Key> {
        self.by_id.get(&id).copied().filter(|key| self.resources.get(*key).is_some())
    }
}

/// Bytes of volumes of one resource that a node keeps in memory, at most: where each MiB is takes some memory from the start.
const MEMORY_STORES_BYTES_MAX: u64 = 1 << 40;

/// Volumes that no memory holds are not kept there: the node would end when it lays them out.
fn refuse_vast(name: &str, plans: &[Plan]) -> Result<(), Refused> {
    let memory = plans.iter().filter(|plan| plan.kind == StoreKind::Memory);
    let bytes = memory.fold(0, |sum: u64, plan| sum.saturating_add(plan.data_bytes));
    if bytes <= MEMORY_STORES_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("{name}: in memory it may have 1TiB at most, all of its volumes together");
    Err(Refused::new(&codes::STORE_TOO_SMALL, message))
}

/// A start finds none of a resource's stores.
fn missing(name: &str, plans: &[Plan]) -> Refused {
    let paths = plans.iter().filter_map(|plan| match &plan.spec.place {
        Place::Path(path) => Some(path.display().to_string()),
        Place::Memory { .. } => None,
    });
    let paths: Vec<String> = paths.collect();
    Refused::new(&codes::STORE_MISSING, format!("{name}: {} is not there", paths.join(", ")))
}

/// Checksums of extents that were hot at a crash are not to be believed.
fn distrust(volumes: &mut [LocalVolume], setup: &ShardSetup) {
    for entry in volumes {
        if let Some(sums) = &mut entry.sums {
            let hot = setup.inherited.iter().filter(|(at, _)| *at == entry.volume);
            sums.distrust(hot.map(|&(_, extent)| extent));
        }
    }
}

/// A witness makes a majority possible; a resource that has one and does not use it is a mistake.
pub(super) fn refuse_witness(
    name: &str,
    quorum: Quorum,
    mut kinds: impl Iterator<Item = MemberKind>,
) -> Result<(), Refused> {
    if quorum == Quorum::Off && kinds.any(|kind| kind == MemberKind::Witness) {
        let message = format!("{name}: {}", codes::WITNESS_WITHOUT_QUORUM);
        return Err(Refused::new(&codes::UNSUPPORTED, message));
    }
    Ok(())
}

/// What a resource is has to fit into one message to other nodes, with some room for what is added later.
fn refuse_long(file: &ResourceFile) -> Result<(), Refused> {
    let mut text = Vec::new();
    let fits = encode_line(file, &mut text).is_ok() && text.len() <= DESCRIPTION_BYTES_MAX / 2;
    if fits {
        return Ok(());
    }
    let most = DESCRIPTION_BYTES_MAX / 2;
    let message =
        format!("{}: too long: {most} bytes are the most of what describes it", file.name);
    Err(Refused::new(&codes::BAD_RESOURCE_FILE, message))
}

/// Whether this node joins a resource that the others have already: then it learns from them what the
/// resource is, and holds nothing yet.
pub(super) fn joins_later(file: &ResourceFile, node: NodeId) -> bool {
    let own = file.members.iter().find(|member| member.node == node.0);
    own.is_some_and(|own| own.in_sync == Some(false) && own.voter.is_some())
}

/// Reads what the stores hold.
fn load(
    plans: &[Plan],
    cluster: ClusterId,
    resource: ResourceId,
    patience: Duration,
) -> Result<Found, Refused> {
    if plans.iter().all(|plan| plan.kind == StoreKind::Memory) {
        return Ok(Found::default());
    }
    let mut blocking = Blocking::with_patience(patience)?;
    let (mut volumes, mut labels) = (Vec::new(), Vec::new());
    for plan in plans {
        let mut store: Store = backing::open_to_serve(plan)?;
        labels.push(backing::check_label(&mut blocking, &mut store, plan, cluster, resource)?);
        volumes.push((plan.volume, plan.layout, store));
    }
    backing::check_copy(&labels, plans)?;
    let found = backing::load(&mut blocking, &mut volumes)?;
    debug!("{:016x}: {} KiB of metadata were read", resource.0, blocking.read_bytes >> 10);
    Ok(found)
}

fn log_sizes(file: &ResourceFile) -> Vec<(VolumeId, LogSize)> {
    let size = |volume: &FileVolume| (VolumeId(volume.index), LogSize::of(volume.log_extents));
    file.volumes.iter().map(size).collect()
}

fn timing(file: &ResourceFile) -> Timing {
    let milliseconds = |count: u32| Duration::from_millis(u64::from(count));
    Timing {
        heartbeat: milliseconds(file.timing.heartbeat_ms),
        lease: milliseconds(file.timing.lease_ms),
        peer_late: milliseconds(file.timing.peer_late_ms),
        ..Timing::default()
    }
}

fn read_file(path: &Path) -> Result<ResourceFile, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: ResourceFile = toml::from_str(&text).map_err(|error| error.to_string())?;
    file.check().map_err(|error| error.0)?;
    Ok(file)
}

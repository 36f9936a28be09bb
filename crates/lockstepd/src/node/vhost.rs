//! Volumes as disks of machines of this host: a socket for each, to which QEMU connects by vhost-user.
//!
//! Always:
//! - A socket is in the file (`vhost/listed`) before it is there, and the next process listens on it again: QEMU connects to
//!   the same path, and brings the record of what was not answered.
//! - One machine has a disk at a time. Who comes meanwhile is sent away; one whose connection has ended makes room.
//! - A machine counts as a client of its resource while it is connected, and, if the process that served it has died, until it
//!   comes back, for a minute at most: its requests wait in it.
//! - A socket belongs to one identity of a resource. While that is not there, nobody is let in, and QEMU tries again.
//! - Only the node's own user, and the group that the operator named, reaches a socket.
//!
//! Not here: what QEMU says and what becomes of a request (`export::VhostDisk`).

mod listed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::{Duration, Epoch, Instant, VolumeId};
use export::{Served, VhostDisk, VhostVolume};
use sys::{Errno, Event, Handle, Listener, Socket};
use wire::admin::{VhostSocket, codes};

use self::listed::Listed;
use super::admin::no_resource;
use super::clients::{CLIENTS_MAX, Client};
use super::patience::patiently;
use super::sockets::listen_private;
use super::{Node, Purpose};
use crate::backing::Refused;
use crate::log::{info, warning, warning_limited};
use crate::slab::Key;

/// Sockets of one node, at most.
const SOCKETS_MAX: usize = 256;

/// Messages that are taken from one machine's QEMU before others have their turn.
const MESSAGES_MAX: usize = 64;

/// How long a machine that the last process served counts, though it has not come back.
const AWAITED_LIMIT: Duration = Duration::from_secs(60);

/// The socket of one volume.
struct Entry {
    listed: Listed,
    /// Until when its machine is waited for, which the last process served.
    awaited: Option<Instant>,
    listener: Option<Listener>,
    /// The machine that has connected, among all clients.
    client: Option<Key>,
}

/// The sockets for machines, by numbers that this process gives them.
#[derive(Default)]
pub(crate) struct Machines {
    entries: BTreeMap<u32, Entry>,
    numbers: u32,
}

impl Machines {
    fn find(&self, resource: &str, volume: u16) -> Option<u32> {
        let is_it =
            |entry: &Entry| entry.listed.resource == resource && entry.listed.volume == volume;
        self.entries.iter().find(|(_, entry)| is_it(entry)).map(|(number, _)| *number)
    }

    fn insert(&mut self, listed: Listed, listener: Option<Listener>) -> u32 {
        self.numbers += 1;
        let entry = Entry { listed, awaited: None, listener, client: None };
        self.entries.insert(self.numbers, entry);
        self.numbers
    }

    /// When to look whether a machine is not waited for any more.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.awaited).min()
    }
}

impl Node {
    /// Listens again where this node did.
    pub(super) fn load_sockets(&mut self) -> Result<(), String> {
        let boot = sys::boot_name();
        for listed in listed::read(&self.config.directory)? {
            let is_there = listed.boot.as_ref().is_some_and(|at| *at == boot);
            let path = self.socket_path(&listed.resource, listed.volume);
            let listener = patiently(|| listen(&path, listed.group.as_deref()), |e| e.0);
            let listener = listener.map_err(|(_, why)| warning!("{why}")).ok();
            let number = self.machines.insert(listed, listener.clone());
            if is_there && let Some(entry) = self.machines.entries.get_mut(&number) {
                entry.awaited = Some(self.hands.now() + AWAITED_LIMIT);
            }
            if let Some(listener) = listener {
                self.accept_machines(listener, number);
            }
        }
        Ok(())
    }

    fn save_sockets(&self) -> Result<(), Refused> {
        let all = self.machines.entries.values().map(|entry| &entry.listed);
        listed::write(&self.config.directory, all)
            .map_err(|why| Refused::new(&codes::STORE_FAILED, why))
    }

    fn socket_path(&self, resource: &str, volume: u16) -> PathBuf {
        self.config.directory.join("vhost").join(format!("{resource}-{volume}.sock"))
    }

    /// `VhostAdd`: a machine may have the volume.
    pub(super) fn add_socket(
        &mut self,
        resource: &str,
        volume: u16,
        group: Option<String>,
    ) -> Result<VhostSocket, Refused> {
        self.forget_gone();
        let known = self.known.get(resource).ok_or_else(|| no_resource(resource))?;
        let identity = known.file.id;
        let running = known.running.and_then(|key| self.resources.get(key));
        let there = running.is_some_and(|entry| entry.volume(VolumeId(volume)).is_some());
        if running.is_none() {
            let message = format!("{resource} is defined here, and not created");
            return Err(Refused::new(&codes::NOT_CREATED, message));
        }
        if !there {
            let message = format!("{resource} has no volume {volume}");
            return Err(Refused::new(&codes::NO_RESOURCE, message));
        }
        if let Some(number) = self.machines.find(resource, volume) {
            let entry = &self.machines.entries[&number];
            if entry.listener.is_some() && entry.listed.group == group {
                return Ok(self.tell_socket(entry));
            }
            let message = format!("{resource}: it has a socket of another kind; remove that first");
            return Err(Refused::new(&codes::BUSY, message));
        }
        if self.machines.entries.len() >= SOCKETS_MAX {
            let message = format!("{resource}: there are {SOCKETS_MAX} sockets");
            return Err(Refused::new(&codes::BUSY, message));
        }
        let path = self.socket_path(resource, volume);
        let refuse = |why| Refused::new(&codes::CANNOT_LISTEN, format!("{resource}: {why}"));
        let name = resource.to_owned();
        let group_too = group.clone();
        let listed = Listed { resource: name, identity, volume, group: group_too, boot: None };
        let number = self.machines.insert(listed, None);
        let listener = self
            .save_sockets()
            .and_then(|()| listen(&path, group.as_deref()).map_err(|(_, why)| refuse(why)));
        let listener = match listener {
            Ok(listener) => listener,
            Err(refused) => {
                self.machines.entries.remove(&number);
                self.save_sockets().ok();
                return Err(refused);
            }
        };
        info!("{resource}: a machine may have volume {volume} by {}", path.display());
        self.accept_machines(listener.clone(), number);
        let entry = self.machines.entries.get_mut(&number).expect("just inserted");
        entry.listener = Some(listener);
        let entry = &self.machines.entries[&number];
        Ok(self.tell_socket(entry))
    }

    /// `VhostRemove`: its machine gets nothing more.
    pub(super) fn remove_socket(&mut self, resource: &str, volume: u16) -> Result<(), Refused> {
        let number = self.machines.find(resource, volume).ok_or_else(|| {
            let message = format!("{resource}: volume {volume} has no socket on this node");
            Refused::new(&codes::NO_SOCKET, message)
        })?;
        self.end_socket(number, "its socket is removed");
        self.save_sockets()
    }

    fn end_socket(&mut self, number: u32, why: &str) {
        self.await_no_more(number);
        let Some(entry) = self.machines.entries.remove(&number) else { return };
        let path = self.socket_path(&entry.listed.resource, entry.listed.volume);
        if let Some(listener) = &entry.listener {
            self.hands.stop_accepting(listener);
            std::fs::remove_file(&path).ok();
        }
        if let Some(client) = entry.client {
            self.drop_client(client, why);
        }
        info!("{}: {why}: {}", entry.listed.resource, path.display());
    }

    /// Removes sockets of resources that are no more.
    fn forget_gone(&mut self) {
        let is_gone = |entry: &Entry| {
            let (name, identity) = (&entry.listed.resource, entry.listed.identity);
            let known = self.known.get(name);
            known.map_or(!self.is_unreadable(name), |known| known.file.id != identity)
        };
        let gone = self.machines.entries.iter().filter(|(_, entry)| is_gone(entry));
        let gone: Vec<u32> = gone.map(|(number, _)| *number).collect();
        for number in &gone {
            self.end_socket(*number, "its resource is gone");
        }
        if !gone.is_empty()
            && let Err(refused) = self.save_sockets()
        {
            warning!("the list of sockets says more than there are: {refused}");
        }
    }

    /// `VhostList`.
    pub(super) fn machine_sockets(&mut self) -> Vec<VhostSocket> {
        self.forget_gone();
        let entries = self.machines.entries.values();
        let mut all: Vec<VhostSocket> = entries.map(|entry| self.tell_socket(entry)).collect();
        all.sort_by(|a, b| (&a.resource, a.volume).cmp(&(&b.resource, b.volume)));
        all
    }

    fn tell_socket(&self, entry: &Entry) -> VhostSocket {
        let Listed { resource, volume, group, .. } = entry.listed.clone();
        let path = self.socket_path(&resource, volume).display().to_string();
        VhostSocket { resource, volume, path, group, connected: entry.client.is_some() }
    }

    pub(super) fn accept_machines(&mut self, listener: Listener, number: u32) {
        let token = self.token(Purpose::VhostAccept(listener.clone(), number));
        self.hands.accept(token, &listener);
    }

    /// QEMU has connected.
    pub(super) fn on_machine(&mut self, number: u32, socket: Socket) {
        let old = self.machines.entries.get(&number).and_then(|entry| entry.client);
        let left = old.and_then(|old| self.clients.get(old)).and_then(|old| old.socket.as_ref());
        if left.is_some_and(Socket::is_ended)
            && let Some(old) = old
        {
            self.drop_client(old, "QEMU closed the connection");
        }
        match self.disk_for_machine(number) {
            Ok((key, disk)) => {
                let volume = self.machines.entries[&number].listed.volume;
                let opened = Some((key, VolumeId(volume)));
                let served = Served::Vhost(Box::new(disk));
                let client = Client::new(Some(socket), served, opened, false, self.hands.now());
                let client = self.clients.insert(client);
                self.count_client(key, true);
                self.await_no_more(number);
                self.note_machine(number, true);
                let entry = self.machines.entries.get_mut(&number).expect("just seen");
                entry.client = Some(client);
                info!("{}: a machine has volume {volume} as its disk", entry.listed.resource);
                self.stir_client(client);
            }
            Err(why) => {
                warning_limited!("a machine was sent away: {why}");
                self.hands.close(&socket);
            }
        }
    }

    fn disk_for_machine(&mut self, number: u32) -> Result<(Key, VhostDisk), String> {
        let entry = self.machines.entries.get(&number).ok_or("its socket is removed")?;
        let (resource, volume) = (entry.listed.resource.clone(), entry.listed.volume);
        if entry.client.is_some() {
            return Err(format!("{resource}: another machine has volume {volume} as its disk"));
        }
        if self.stopping.is_some() || self.clients.len() >= CLIENTS_MAX {
            return Err(format!("{resource}: the node stops, or has too many clients"));
        }
        let known = self.known.get(&resource);
        let known = known.filter(|known| known.file.id == entry.listed.identity);
        let absent = || format!("{resource}: it is not here");
        let key = known.and_then(|known| known.running).ok_or_else(absent)?;
        let running = self.resources.get_mut(key).ok_or_else(absent)?;
        let known = running.volume(VolumeId(volume)).ok_or_else(absent)?;
        let (sectors, block_bytes) = (known.sectors, known.block_bytes);
        let lost = running.latest_loss();
        let (shards, identity) = (running.shard_count(), running.id.0);
        let share = running.client_share(&self.client_pool);
        let volume = VhostVolume { identity, volume, sectors, block_bytes, lost: lost.0, shards };
        Ok((key, VhostDisk::new(volume, share, self.zeroes.clone())))
    }

    /// Something has come of a front end, or its end.
    pub(super) fn on_machine_says(&mut self, key: Key, event: &Event) {
        let now = self.hands.now();
        let Some(client) = self.clients.get_mut(key) else { return };
        (client.watched, client.moved) = (false, now);
        if let Err(errno) = event.result {
            return self.drop_client(key, &errno.to_string());
        }
        self.stir_client(key);
    }

    /// A machine has something in a queue.
    pub(super) fn on_kick(&mut self, key: Key, queue: u16, kick: Handle, event: &Event) {
        let now = self.hands.now();
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(disk) = client.connection.vhost() else { return };
        if let Err(errno) = event.result
            && errno != Errno::CANCELED
        {
            // Nobody would hear of what it asks for by this queue; it may connect anew.
            return self.drop_client(key, &format!("its queue cannot be watched: {errno}"));
        }
        if event.result.is_err() || !disk.kicked(queue, &kick) {
            return;
        }
        client.moved = now;
        self.watch_kick(key, queue, kick);
        self.stir_client(key);
    }

    fn watch_kick(&mut self, key: Key, queue: u16, kick: Handle) {
        let token = self.token(Purpose::VhostKick(key, queue, kick.clone()));
        self.hands.watch_handle(token, &kick);
    }

    /// Takes what a front end says, and sends what it is to hear.
    pub(super) fn serve_machine(&mut self, key: Key) {
        let is_one = |client: &mut Client| client.connection.vhost().is_some();
        if !self.clients.get_mut(key).is_some_and(is_one) {
            return;
        }
        let ended = self.hear_machine(key);
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(disk) = client.connection.vhost() else { return };
        let (fresh, stale) = disk.take_signals();
        for kick in stale {
            self.hands.stop_watching(&kick);
        }
        let begins = disk.take_enabled() || !fresh.is_empty();
        for (queue, kick) in fresh {
            self.watch_kick(key, queue, kick);
        }
        if let Err(why) = ended {
            self.drop_client(key, &why);
        } else if begins {
            // There may be requests already.
            self.stir_client(key);
        }
    }

    /// The inner error: why it is over.
    fn hear_machine(&mut self, key: Key) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(key) else { return Ok(()) };
        let (Some(socket), Some(disk)) = (client.socket.clone(), client.connection.vhost()) else {
            return Ok(());
        };
        let mut room = [0; 512];
        for _ in 0..MESSAGES_MAX {
            send_replies(disk, &socket)?;
            let wanted = disk.wanted().min(room.len());
            if wanted == 0 || client.watched {
                return Ok(());
            }
            let mut handles = Vec::new();
            match socket.receive_now(&mut room[..wanted], &mut handles) {
                Ok(0) => return Err("QEMU closed the connection".to_owned()),
                Ok(count) => disk.received(&room[..count], handles),
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.to_string()),
            }
        }
        send_replies(disk, &socket)?;
        client.watched = true;
        let token = self.token(Purpose::VhostMessage(key));
        self.hands.watch_socket(token, &socket);
        Ok(())
    }

    /// The client that was a machine goes.
    pub(super) fn machine_went(&mut self, key: Key, client: &mut Client) {
        let Some(disk) = client.connection.vhost() else { return };
        if let Some(fault) = disk.fault() {
            let code = codes::BAD_MACHINE.code;
            warning_limited!("{code}: a machine's disk is cut off: {fault}");
        }
        let mut kicks = disk.take_signals().1;
        kicks.extend(disk.signals().cloned());
        for kick in kicks {
            self.hands.stop_watching(&kick);
        }
        let mut entries = self.machines.entries.iter_mut();
        let Some((&number, entry)) = entries.find(|(_, entry)| entry.client == Some(key)) else {
            return;
        };
        entry.client = None;
        // The next process is to wait for it.
        if self.stopping.is_none() {
            self.note_machine(number, false);
        }
    }

    /// Writes down whether a socket's machine is there.
    fn note_machine(&mut self, number: u32, is_there: bool) {
        let Some(entry) = self.machines.entries.get_mut(&number) else { return };
        let boot = is_there.then(sys::boot_name);
        if entry.listed.boot == boot {
            return;
        }
        entry.listed.boot = boot;
        if let Err(refused) = self.save_sockets() {
            warning!("whether a machine is there is not in the list of sockets: {refused}");
        }
    }

    /// How many machines of a resource count that have not come back yet.
    pub(super) fn machines_awaited(&self, resource: &str, identity: u64) -> u32 {
        let is_its = |entry: &&Entry| {
            let Listed { resource: of, identity: its, .. } = &entry.listed;
            entry.awaited.is_some() && of == resource && *its == identity
        };
        let count = self.machines.entries.values().filter(is_its).count();
        u32::try_from(count).expect("few sockets")
    }

    /// A socket's machine counts by itself from now on, or not at all.
    fn await_no_more(&mut self, number: u32) {
        let Some(entry) = self.machines.entries.get_mut(&number) else { return };
        if entry.awaited.take().is_none() {
            return;
        }
        let known = self.known.get(&entry.listed.resource);
        let known = known.filter(|known| known.file.id == entry.listed.identity);
        if let Some(running) = known.and_then(|known| known.running) {
            self.count_client(running, false);
        }
    }

    /// Waits no more for machines that have not come back in their time.
    pub(super) fn look_for_machines(&mut self) {
        let now = self.hands.now();
        let is_late = |entry: &Entry| entry.awaited.is_some_and(|until| until <= now);
        let late = self.machines.entries.iter().filter(|(_, entry)| is_late(entry));
        let late: Vec<u32> = late.map(|(number, _)| *number).collect();
        for number in late {
            let listed = &self.machines.entries[&number].listed;
            info!(
                "{}: the machine with volume {} has not come back",
                listed.resource, listed.volume
            );
            self.await_no_more(number);
            self.note_machine(number, false);
        }
    }

    /// Nobody is waited for any more at a socket.
    pub(super) fn forget_socket(&mut self, number: u32) {
        if let Some(entry) = self.machines.entries.get_mut(&number) {
            entry.listener = None;
        }
    }

    /// All caches were lost in this epoch: machines that have seen what was there before get errors.
    pub(super) fn tell_machines_of_loss(&mut self, resource: Key, lost: Epoch) {
        for key in self.machines.entries.values().filter_map(|entry| entry.client) {
            if let Some(client) = self.clients.get_mut(key)
                && client.opened.is_some_and(|(of, _)| of == resource)
                && let Some(disk) = client.connection.vhost()
            {
                disk.know_lost(lost.0);
            }
        }
    }
}

/// Sends what a front end is to hear.
fn send_replies(disk: &mut VhostDisk, socket: &Socket) -> Result<(), String> {
    for (bytes, handle) in disk.take_replies() {
        match socket.send_now(&bytes, handle.as_ref()) {
            Ok(()) => {}
            Err(Errno::AGAIN) => disk.deaf(),
            Err(errno) => return Err(errno.to_string()),
        }
    }
    Ok(())
}

/// Listens on a path in the node's directory that only its owner can connect to, and a group if one is named. With the error:
/// whether the path is taken.
fn listen(path: &Path, group: Option<&str>) -> Result<Listener, (bool, String)> {
    let wrong = |error: std::io::Error| (false, format!("{}: {error}", path.display()));
    let directory = path.parent().expect("it is in the node's directory");
    std::fs::create_dir_all(directory).map_err(wrong)?;
    listen_private(path, group)
}

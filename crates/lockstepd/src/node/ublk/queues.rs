//! Queues of disks of this host: each is served by a thread, with a ring of its own.
//!
//! Queue `q` is thread `q`'s, modulo their number: the next process may have fewer. A thread that has no way to the driver
//! gives its queues to the first.
//!
//! Always: a queue ends when the kernel has given back everything that was fetched, and its client has gone, which has
//! answered everything that it had; only then the first thread has its disk deleted.
//!
//! Not here: when disks come and go (`ublk`), what becomes of a request (`export::UblkDisk`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Epoch, VolumeId};
use export::{Served, UblkDisk, UblkQueue};
use sys::{Errno, UBLK_DEPTH, UblkDevice};

use crate::log::warning_limited;
use crate::node::Node;
use crate::node::clients::Client;
use crate::node::threads::Parcel;
use crate::slab::{Key, Slab};

/// Which queue of which disk.
type Name = (u32, u16);

/// A queue that a thread is to serve.
pub(in crate::node) struct Offer {
    pub(super) name: Name,
    pub(super) device: Arc<UblkDevice>,
    /// Whose machines carry out what it is asked, if there are any.
    pub(super) life: Option<u64>,
    pub(super) volume: VolumeId,
    /// The last loss of all caches that its users know of.
    pub(super) seen: Epoch,
    pub(super) is_new: bool,
}

/// One that is served.
struct Queue {
    device: Arc<UblkDevice>,
    resource: String,
    /// Requests that the kernel has to fill, or to give back.
    fetched: u16,
    /// What serves it, among all clients.
    client: Option<Key>,
    seen: Epoch,
    /// Its disk was made by this process: nobody has seen more of it than this process told.
    is_new: bool,
}

/// Those of one thread.
#[derive(Default)]
pub(super) struct Queues {
    all: BTreeMap<Name, Queue>,
}

impl Queues {
    fn of_client(&self, client: Key) -> Option<Name> {
        let mut all = self.all.iter();
        all.find(|(_, queue)| queue.client == Some(client)).map(|(name, _)| *name)
    }

    /// What serves the first queue of a disk, which is the first thread's.
    pub(super) fn first_client(&self, number: u32) -> Option<Key> {
        self.all.get(&(number, 0)).and_then(|queue| queue.client)
    }

    /// Whether what the disk's users were shown is still there, and answered.
    pub(super) fn is_served(&self, number: u32, clients: &mut Slab<Client>) -> bool {
        let client = self.first_client(number).and_then(|client| clients.get_mut(client));
        let served = client.and_then(|client| client.connection.ublk());
        served.is_some_and(|served| !served.is_lost())
    }
}

impl Node {
    /// This thread is to serve a queue.
    pub(in crate::node) fn take_queue(&mut self, offer: Offer) {
        if self.ublk.is_shut {
            return;
        }
        if self.open_ublk().is_err() && !self.threads.is_first() {
            return self.tell(0, Parcel::Queue(Box::new(offer)));
        }
        let Offer { name, device, life, volume, seen, is_new } = offer;
        // Its machines may have been exchanged while it was on its way to a thread that gave it back: then the disk knows whose it is.
        let by_name = |node: &Node| node.resource_of_disk(node.ublk.disks.get(&name.0)?).flatten();
        let key = life.and_then(|life| self.resource_of_life(life).or_else(|| by_name(self)));
        let client = key.and_then(|key| self.serve_queue(&device, name.1, key, volume, seen));
        let resource = key.map_or_else(String::new, |key| self.name_of(key).to_owned());
        let Some(ring) = self.ublk.ring.as_mut() else { return };
        for tag in 0..UBLK_DEPTH {
            ring.fetch(name.0, &device, (name.1, tag), None);
        }
        let queue = Queue { device, resource, fetched: UBLK_DEPTH, client, seen, is_new };
        self.ublk.queues.all.insert(name, queue);
    }

    /// Makes a queue a client of its resource.
    fn serve_queue(
        &mut self,
        device: &Arc<UblkDevice>,
        number: u16,
        key: Key,
        volume: VolumeId,
        seen: Epoch,
    ) -> Option<Key> {
        let resource = self.resources.get_mut(key)?;
        let share = resource.client_share(&self.client_pool);
        let (shards, lost) = (resource.shard_count(), resource.lost > seen);
        let queue = UblkQueue { device: device.clone(), number };
        let mut served = UblkDisk::new(Box::new(queue), share, self.zeroes.clone(), shards);
        if lost {
            served.lose();
        }
        let connection = Served::Ublk(Box::new(served));
        let client = Client::new(None, connection, Some((key, volume)), false, self.hands.now());
        Some(self.clients.insert(client))
    }

    /// A request has come, or the kernel has given one back.
    pub(super) fn on_fetched(&mut self, name: Name, tag: u16, result: Result<(), Errno>) {
        let Some(queue) = self.ublk.queues.all.get_mut(&name) else { return };
        queue.fetched -= 1;
        if result.is_err() {
            return self.drain_queue(name);
        }
        let client = queue.client.and_then(|client| self.clients.get_mut(client));
        match client.and_then(|client| client.connection.ublk()) {
            Some(served) => {
                served.arrived(tag);
                if let Some(client) = queue.client {
                    self.stir_client(client);
                }
            }
            // The next process is asked for it.
            None if self.ublk.is_shut => {}
            None => self.finish_requests(name, vec![(tag, Err(Errno::IO))]),
        }
    }

    /// Nothing more comes: the queue ends, once its client has gone.
    fn drain_queue(&mut self, (number, queue): Name) {
        let Some(one) = self.ublk.queues.all.get(&(number, queue)) else { return };
        match (one.fetched, one.client) {
            (0, None) => {
                // The driver waits for its file to be closed.
                self.ublk.queues.all.remove(&(number, queue));
                self.tell(0, Parcel::QueueEnded { disk: number });
            }
            (0, Some(_)) => self.tell(0, Parcel::QueueStopped { disk: number }),
            _ => {}
        }
    }

    /// Tells the kernel how requests of a queue went.
    fn finish_requests(&mut self, name: Name, done: Vec<export::Done>) {
        let (Some(ring), Some(queue)) =
            (self.ublk.ring.as_mut(), self.ublk.queues.all.get_mut(&name))
        else {
            return;
        };
        for (tag, result) in done {
            if let Err(errno) = result {
                warning_limited!("{}: a request of its disk fails: {errno}", queue.resource);
            }
            ring.fetch(name.0, &queue.device, (name.1, tag), Some(result));
            queue.fetched += 1;
        }
    }

    /// Takes what a queue has finished to the kernel.
    pub(in crate::node) fn serve_disk_client(&mut self, key: Key) {
        let client = self.clients.get_mut(key);
        let Some(disk) = client.and_then(|client| client.connection.ublk()) else { return };
        let done = disk.take_done();
        if !done.is_empty()
            && let Some(name) = self.ublk.queues.of_client(key)
        {
            self.finish_requests(name, done);
        }
    }

    /// The client that serves a queue goes.
    pub(in crate::node) fn disk_went(&mut self, key: Key, client: &mut Client) {
        let Some(served) = client.connection.ublk() else { return };
        let Some(name) = self.ublk.queues.of_client(key) else { return };
        let (done, is_shut) = (served.end(), served.is_shut());
        self.ublk.is_shut |= is_shut;
        self.finish_requests(name, done);
        if let Some(queue) = self.ublk.queues.all.get_mut(&name) {
            queue.client = None;
        }
        self.drain_queue(name);
    }

    /// A disk is about to be stopped: users of this thread's queues of it get errors.
    pub(in crate::node) fn end_queues(&mut self, number: u32) {
        let queues = self.ublk.queues.all.range((number, 0)..=(number, u16::MAX));
        let clients: Vec<Key> = queues.filter_map(|(_, queue)| queue.client).collect();
        for client in clients {
            self.drop_client(client, "its disk is detached");
        }
    }

    /// All caches were lost after this epoch: who has seen what was there before gets errors. Nobody has seen anything of a
    /// disk that was just made, as all are when a whole cluster starts anew, unless some client was `told` something.
    pub(super) fn lose_queues(&mut self, resource: Key, lost: Epoch, told: bool) {
        for queue in self.ublk.queues.all.values_mut().filter(|queue| queue.seen < lost) {
            let client = queue.client.and_then(|client| self.clients.get_mut(client));
            let client =
                client.filter(|client| client.opened.is_some_and(|(of, _)| of == resource));
            let Some(served) = client.and_then(|client| client.connection.ublk()) else { continue };
            if queue.is_new && !told {
                queue.seen = lost;
            } else {
                served.lose();
            }
        }
    }
}

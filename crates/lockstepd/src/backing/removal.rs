//! Stores that are removed: a file goes, a device is nobody's then, and a file that was there before the resource stays.
//!
//! Always: a file that stays has the length of its volume before anything else of it is changed. How long that is only the
//! record says, which the first volume's store has; so that store is removed last. Where it is not known a file stays as
//! long as it is.
//!
//! Not here: whose a store is, and when it goes (`node`).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::{ClusterId, ResourceId, SECTOR_BYTES, VolumeId};
use replica::disk::{Layout, RECORD_BYTES, RECORD_COPIES, Record, Superblock, newest_record};
use store::{MetadataPlace, Place, Store, StoreSpec};
use wire::admin::{StoreKind, codes};

use super::{
    Blocking, KEPT, Plan, Refused, are_of_one_copy, check_label, is_kept, open, plan_paths,
    whole_bytes,
};
use crate::log::warning;

/// Removes a store of a copy that has all of these, if its superblock says that it is of this resource; leaves another's
/// alone, and one that is not there. The first volume's goes last: its record says how long the others are.
pub(crate) fn remove_labelled(
    plan: &Plan,
    all: &[Plan],
    cluster: ClusterId,
    resource: ResourceId,
) -> Result<(), Refused> {
    let there = plan_paths(plan).iter().any(|path| path.exists());
    if plan.kind == StoreKind::Memory || !there || is_given_back(plan) {
        return Ok(());
    }
    let mut blocking = Blocking::new()?;
    let mut store = open_last(plan)?;
    let label = check_label(&mut blocking, &mut store, plan, cluster, resource);
    let label = label.map_err(|mut refused| {
        refused.message.push_str("; it is left as it is");
        refused
    })?;
    drop(store);
    // The description may not name it any more: of a part that ended, and whose removal was interrupted.
    let stays = plan.kept_bytes.is_some() || label.compatible & KEPT != 0;
    if stays && plan.kind == StoreKind::File && !give_back(plan, all, &label)? {
        return Ok(());
    }
    remove(plan, stays)
}

/// Gives a kept file the length of its volume, before anything else of it is changed: who has lost its metadata does not
/// know how long that is. Whether it has any metadata left.
fn give_back(plan: &Plan, all: &[Plan], label: &Superblock) -> Result<bool, Refused> {
    let what = plan.what();
    let Some(length) = kept_length(plan, all, label)? else {
        warning!("{what}: it stays longer than its volume: how long that was is not known");
        return Ok(true);
    };
    if let Place::Path(path) = &plan.spec.place {
        store::give_back(path, length).map_err(|error| Refused::store(&what, &error))?;
    }
    Ok(matches!(plan.spec.metadata, MetadataPlace::External { .. }))
}

/// Removes a store. What is a file and nothing else is gone at once, so that nothing is between: half of a removal could
/// not be gone on with. Others are nobody's first, then gone if they are files. One that held the volume's bytes before the
/// resource was made `stays`, without its metadata.
fn remove(plan: &Plan, stays: bool) -> Result<(), Refused> {
    if let Some(path) = plain_file(plan).filter(|_| !stays)
        && std::fs::remove_file(path).is_ok()
    {
        return sync_directory(path).map_err(|error| failed(path, &error));
    }
    match wipe(plan) {
        Err(refused) if plan_paths(plan).iter().any(|path| path.exists()) => return Err(refused),
        _ => {}
    }
    let data = match &plan.spec.place {
        Place::Path(path) if stays => Some(path.as_path()),
        _ => None,
    };
    for path in plan_paths(plan).into_iter().filter(|path| Some(*path) != data) {
        if path.is_file() {
            std::fs::remove_file(path).map_err(|error| failed(path, &error))?;
            sync_directory(path).map_err(|error| failed(path, &error))?;
        }
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> Refused {
    Refused::new(&codes::STORE_FAILED, format!("{}: {error}", path.display()))
}

/// The one file that a store is, if nothing else leads to what it holds.
fn plain_file(plan: &Plan) -> Option<&Path> {
    let (Place::Path(path), MetadataPlace::Internal { .. }) =
        (&plan.spec.place, &plan.spec.metadata)
    else {
        return None;
    };
    let facts = std::fs::symlink_metadata(path).ok()?;
    (facts.is_file() && facts.nlink() == 1).then_some(path.as_path())
}

/// What became of the names in a path's directory outlives a loss of power.
pub(super) fn sync_directory(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes a store nobody's: its superblock and records are gone.
fn wipe(plan: &Plan) -> Result<(), Refused> {
    let mut blocking = Blocking::new()?;
    let mut store = open_last(plan)?;
    let disk = |error| Refused::disk(&plan.what(), error);
    blocking.clear(&mut store, plan.layout.superblock, plan.layout.log).map_err(disk)?;
    blocking.flush(&mut store).map_err(disk)
}

/// Whether nothing is left of a store but a file that was kept and has its own length again: its removal was interrupted,
/// or it was never made.
fn is_given_back(plan: &Plan) -> bool {
    let Place::Path(path) = &plan.spec.place else { return false };
    let whole = match &plan.spec.metadata {
        // A disk that is not there now is no metadata that is gone: the file would be as long as it was made.
        MetadataPlace::External { path, .. } if path.exists() => return false,
        MetadataPlace::Internal { bytes } => whole_bytes(plan.data_bytes, *bytes),
        MetadataPlace::External { .. } | MetadataPlace::None => whole_bytes(plan.data_bytes, 0),
    };
    is_kept(plan, path) && store::size_of(path).is_ok_and(|has_bytes| has_bytes < whole)
}

/// Opens a store that is to be removed. A file that was kept may have its own length again.
fn open_last(plan: &Plan) -> Result<Store, Refused> {
    let is_short =
        plan.kept_bytes.is_some() && matches!(plan.spec.metadata, MetadataPlace::External { .. });
    let needs_bytes = if is_short { 0 } else { plan.spec.needs_bytes };
    let spec = StoreSpec { needs_bytes, ..plan.spec.clone() };
    open(&Plan { spec, ..plan.clone() }, true)
}

/// The length that a kept file with this label is to have when the resource is gone: that of the volume as it is now, which
/// may have grown. `None` where that is not known.
fn kept_length(plan: &Plan, all: &[Plan], label: &Superblock) -> Result<Option<u64>, Refused> {
    let Some(first) = all.first() else { return Ok(None) };
    if !plan_paths(first).iter().all(|path| path.exists()) {
        return Ok(None);
    }
    let mut blocking = Blocking::new()?;
    let mut store = match open_last(first) {
        Err(refused) if !refused.in_use => return Ok(None),
        opened => opened?,
    };
    let (cluster, resource) = (label.cluster, label.resource);
    let of_first = check_label(&mut blocking, &mut store, first, cluster, resource);
    if !of_first.is_ok_and(|of_first| are_of_one_copy(&of_first, label)) {
        return Ok(None);
    }
    let record = sure_record(&mut blocking, &mut store, &first.layout);
    let Some(record) = record.filter(|record| is_of_first(record, first.volume)) else {
        return Ok(None);
    };
    // Who never heard of a configuration holds what it began with.
    Ok(greatest_size(&record, plan.volume).or(plan.kept_bytes))
}

/// The newest record of a store, if nothing stands where another was or may have been: that could be a newer one.
fn sure_record(blocking: &mut Blocking, store: &mut Store, layout: &Layout) -> Option<Record> {
    let mut newest: Option<Record> = None;
    for copy in 0..u8::try_from(RECORD_COPIES).expect("two") {
        let bytes = blocking.read(store, layout.record_offset(copy), RECORD_BYTES).ok()?;
        if bytes.iter().all(|&byte| byte == 0) {
            // Only one was ever written.
            continue;
        }
        let record = newest_record(&[Some(&bytes)]).ok()?;
        if newest.as_ref().is_none_or(|newest| newest.stores < record.stores) {
            newest = Some(record);
        }
    }
    newest
}

/// Whether a volume is the first of those that a record speaks for. With others stands what the resource began with.
pub(super) fn is_of_first(record: &Record, volume: VolumeId) -> bool {
    let known = record.committed.as_ref().or(record.accepted.as_ref());
    known.is_none_or(|(_, known)| known.volumes.iter().all(|entry| entry.volume >= volume))
}

/// The greatest size that a volume may have, as a record knows it: what it accepted may have been decided.
fn greatest_size(record: &Record, volume: VolumeId) -> Option<u64> {
    let committed = record.committed.as_ref().map(|(_, known)| known);
    let accepted = record.accepted.as_ref().map(|(_, known)| known);
    let newer = accepted
        .filter(|accepted| committed.is_none_or(|committed| accepted.epoch > committed.epoch));
    let sizes = committed.into_iter().chain(newer).filter_map(|known| known.volume(volume));
    sizes.map(|entry| entry.sectors * SECTOR_BYTES).max()
}

//! Whether what was found on a disk may be used by this node.
//!
//! Not here: whether a store is of this resource (`backing`), what becomes of one that is not used (`lifecycle`).

use base::{NodeId, SECTOR_BYTES};
use replica::disk::Record;
use replica::start::Found;
use wire::MemberKind;
use wire::admin::{ResourceFile, codes};

use crate::backing::{Plan, Refused};

/// Refuses the disk of another node, and one that has no room for what its volumes have grown to.
pub(super) fn may_use(
    own: NodeId,
    file: &ResourceFile,
    plans: &[Plan],
    found: &Found,
) -> Result<(), Refused> {
    let Some(record) = &found.record else { return Ok(()) };
    refuse_foreign(own, file, plans, record)?;
    refuse_outgrown(own, file, plans, record)
}

/// Who writes on the disk of another node takes that node's vote away, and its copy.
fn refuse_foreign(
    own: NodeId,
    file: &ResourceFile,
    plans: &[Plan],
    record: &Record,
) -> Result<(), Refused> {
    let Some((_, known)) = &record.committed else { return Ok(()) };
    let whose = known.members.iter().find(|member| member.voter == record.voter);
    let Some(other) = whose.filter(|member| member.node != own) else {
        return Ok(());
    };
    let what = plans.first().map_or_else(String::new, Plan::what);
    let whose = file.node_name(other.node).map_or(other.node.to_string(), str::to_owned);
    let message = format!("{what}: it is the copy of node {whose}");
    Err(Refused::new(&codes::OTHER_STORE, message))
}

/// Its bitmaps and data would be sought where there is no place for them.
fn refuse_outgrown(
    own: NodeId,
    file: &ResourceFile,
    plans: &[Plan],
    record: &Record,
) -> Result<(), Refused> {
    let member = file.members.iter().find(|member| member.node == own.0);
    let Some((_, known)) = &record.committed else { return Ok(()) };
    if member.is_none_or(|member| member.kind != MemberKind::Replica) {
        return Ok(());
    }
    let outgrown = |plan: &&Plan| {
        let entry = known.volume(plan.volume);
        entry.is_some_and(|entry| entry.kept_sectors() > plan.data_bytes / SECTOR_BYTES)
    };
    let Some(plan) = plans.iter().find(outgrown) else { return Ok(()) };
    let (what, room) = (plan.what(), plan.data_bytes);
    let message = format!(
        "{what}: its volume has grown beyond it: there is room for {room} bytes; remove this copy and make it anew"
    );
    Err(Refused::new(&codes::STORE_TOO_SMALL, message))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{NodeId, SECTOR_BYTES};
    use replica::disk::Record;
    use replica::start::Found;
    use wire::admin::{FileMember, FileNode, FileTiming, FileVolume, ResourceFile, codes};
    use wire::{MemberKind, Options};

    use super::may_use;
    use crate::backing;

    const SIZE: u64 = 9 << 30;

    fn file(kind: MemberKind) -> ResourceFile {
        let member = |node| FileMember {
            node,
            kind: if node == 2 { kind } else { MemberKind::Replica },
            voter: None,
            incarnation: None,
            in_sync: None,
            stores: Vec::new(),
        };
        ResourceFile {
            name: "alpha".to_owned(),
            id: 7,
            shards: 1,
            options: Options::default(),
            timing: FileTiming::default(),
            nodes: (1..=3)
                .map(|id| FileNode { id, name: format!("n{id}"), addresses: Vec::new() })
                .collect(),
            members: (1..=3).map(member).collect(),
            volumes: vec![FileVolume {
                index: 0,
                size_bytes: SIZE,
                block_bytes: 4096,
                log_extents: 1237,
            }],
        }
    }

    /// What node 2 says of a disk on which the volume has this size.
    fn judged(kind: MemberKind, size_bytes: u64) -> Result<(), &'static str> {
        let (file, node) = (file(kind), NodeId(2));
        let plans = backing::plans(Path::new("/nowhere"), &file, node, false);
        let configuration = file.configuration().expect("a good description");
        let mut record = Record::first(&configuration, node, 1).expect("it is a member");
        let (_, known) = record.committed.as_mut().expect("it begins with one");
        let mut changed = (**known).clone();
        changed.volumes[0].sectors = size_bytes / SECTOR_BYTES;
        *known = changed.into();
        let found = Found { record: Some(record), ..Found::default() };
        may_use(node, &file, &plans, &found).map_err(|refused| refused.code.code)
    }

    #[test]
    fn a_disk_that_its_volume_has_outgrown_is_not_used() {
        assert_eq!(judged(MemberKind::Replica, 8 * SIZE), Ok(()));
        assert_eq!(judged(MemberKind::Replica, 8 * SIZE + 4096), Err(codes::STORE_TOO_SMALL.code));
        // A witness has no data for which there had to be room.
        assert_eq!(judged(MemberKind::Witness, 8 * SIZE + 4096), Ok(()));
    }
}

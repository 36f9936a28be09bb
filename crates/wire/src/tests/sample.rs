//! Random values of every type that travels.

use crate::*;
use alloc::vec::Vec;
use base::{Epoch, Incarnation, NodeId, Prng, VolumeId, VoterId};

pub(super) fn flag(random: &mut Prng) -> bool {
    random.once_in(2)
}

pub(super) fn options(random: &mut Prng) -> Options {
    Options {
        protocol: [Protocol::B, Protocol::C][random.below(2) as usize],
        durability: [Durability::Flush, Durability::WriteThrough][random.below(2) as usize],
        quorum: [Quorum::Majority, Quorum::Off][random.below(2) as usize],
        on_no_quorum: [OnNoQuorum::SuspendIo, OnNoQuorum::IoError][random.below(2) as usize],
        on_io_error: [OnIoError::Detach, OnIoError::PassOn][random.below(2) as usize],
        read_policy: [
            ReadPolicy::PreferLocal,
            ReadPolicy::RoundRobin,
            ReadPolicy::LeastPending,
            ReadPolicy::LatencyAware,
            ReadPolicy::Striped,
        ][random.below(5) as usize],
        in_sync_min: 1 + random.below(8) as u8,
        data_checksum: flag(random),
    }
}

pub(super) fn configuration(random: &mut Prng) -> Configuration {
    let reign = random.below(1 << 40);
    let mut node = 0;
    let members: Vec<MemberEntry> = (0..random.below(9))
        .map(|_| {
            node += 1 + random.below(5) as u16;
            let witness = random.once_in(4);
            MemberEntry {
                node: NodeId(node),
                kind: if witness { MemberKind::Witness } else { MemberKind::Replica },
                voter: VoterId(random.id()),
                in_sync: !witness && flag(random),
                incarnation: Incarnation(random.id()),
            }
        })
        .collect();
    let mut volume = 0;
    let volumes = (0..random.below(VOLUMES_MAX as u64 + 1))
        .map(|_| {
            volume += 1 + random.below(3) as u16;
            let block_bytes = [512, 4096][random.below(2) as usize];
            let sectors = (1 + random.below(1 << 40)) * u64::from(block_bytes / 512);
            VolumeEntry { volume: VolumeId(volume), sectors, block_bytes }
        })
        .collect();
    let mut unknown = Vec::new();
    if flag(random) {
        for tag in [5u16, 9] {
            let length = random.below(600) as u16;
            unknown.extend_from_slice(&tag.to_le_bytes());
            unknown.extend_from_slice(&length.to_le_bytes());
            unknown.extend((0..length).map(|_| random.next_u64() as u8));
        }
    }
    Configuration {
        epoch: Epoch(reign + random.below(1000)),
        reign: Epoch(reign),
        primary: flag(random).then(|| NodeId(1 + random.below(100) as u16)),
        recovering: flag(random),
        fork: random.below(3),
        feature_level: random.below(10) as u32,
        members,
        volumes,
        options: options(random),
        unknown,
    }
}

//! The register's value as bytes.

use super::sample;
use crate::*;
use alloc::vec;
use alloc::vec::Vec;
use base::{NodeId, Prng};

fn encoded(configuration: &Configuration) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_configuration(configuration, &mut bytes);
    bytes
}

#[test]
fn a_configuration_comes_back_as_it_was() {
    let mut random = Prng::new(1);
    for _ in 0..500 {
        let configuration = sample::configuration(&mut random);
        assert_eq!(decode_configuration(&encoded(&configuration)), Ok(configuration));
    }
}

#[test]
fn changed_bytes_are_refused_or_are_another_configuration_with_those_very_bytes() {
    let mut random = Prng::new(2);
    let mut refused = 0;
    for _ in 0..5_000 {
        let mut bytes = encoded(&sample::configuration(&mut random));
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        if random.once_in(4) {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        match decode_configuration(&bytes) {
            Ok(configuration) => assert_eq!(encoded(&configuration), bytes),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1_000, "only {refused} of 5000 changes were noticed");
}

#[test]
fn a_form_of_the_future_is_told_from_damage() {
    let mut bytes = encoded(&sample::configuration(&mut Prng::new(3)));
    bytes[0] = 2;
    assert_eq!(decode_configuration(&bytes), Err(DecodeError::Schema(2)));
    assert!(matches!(decode_configuration(&[]), Err(DecodeError::Damaged(_))));
}

#[test]
fn sections_of_a_newer_version_are_kept() {
    let mut configuration = sample::configuration(&mut Prng::new(4));
    // One that comes before those that may be left out, and two that are reserved.
    configuration.unknown = vec![7, 0, 3, 0, b'a', b'b', b'c', 32, 0, 1, 0, b'd', 35, 0, 0, 0];
    let again = decode_configuration(&encoded(&configuration)).unwrap();
    assert_eq!(again.unknown, configuration.unknown);
    configuration.unknown[0] = 4;
    assert!(check_configuration(&configuration).is_err(), "tag 4 is a known section");
}

#[test]
fn what_a_configuration_says_is_always_true_is_checked() {
    let mut random = Prng::new(5);
    let good = loop {
        let configuration = sample::configuration(&mut random);
        let witness = configuration.members.iter().any(|m| m.kind == MemberKind::Witness);
        if witness && configuration.members.len() > 2 && configuration.volumes.len() > 2 {
            break configuration;
        }
    };
    let breaks: [fn(&mut Configuration); 15] = [
        |c| c.reign.0 = c.epoch.0 + 1,
        |c| c.primary = Some(NodeId(0)),
        |c| c.members.reverse(),
        |c| c.members[1] = c.members[0].clone(),
        |c| c.members.iter_mut().for_each(|m| m.in_sync = true),
        |c| c.volumes.reverse(),
        |c| c.volumes[0].block_bytes = 1024,
        |c| c.volumes[0].sectors = 0,
        |c| c.volumes[0].grows_to = Some(c.volumes[0].sectors),
        |c| (c.volumes[0].block_bytes, c.volumes[0].grows_to) = (4096, Some((1 << 41) + 1)),
        |c| c.volumes[0].grows_to = Some(u64::MAX / 512 + 8),
        |c| c.options.in_sync_min = 0,
        |c| c.options.resync_rate_max = (64 << 10) - 1,
        |c| c.options.resync_rate_min = (1 << 40) + 1,
        |c| (c.options.resync_rate_max, c.options.resync_rate_min) = (1 << 20, (1 << 20) + 1),
    ];
    for (index, broken) in breaks.iter().enumerate() {
        let mut configuration = good.clone();
        broken(&mut configuration);
        assert!(check_configuration(&configuration).is_err(), "break {index} went unseen");
    }
    assert_eq!(check_configuration(&good), Ok(()));
}

#[test]
fn nothing_is_written_about_doing_without_quorum_where_nothing_is_to_be_said() {
    let mut random = Prng::new(6);
    let mut configuration = sample::configuration(&mut random);
    configuration.lineage.clear();
    configuration.options.after_split_brain = AfterSplitBrain::Disconnect;
    configuration.unknown.clear();
    (configuration.held, configuration.verify) = (Held::default(), None);
    (configuration.options.resync_rate_max, configuration.options.resync_rate_min) = (0, 0);
    for entry in &mut configuration.volumes {
        entry.grows_to = None;
    }
    let without = encoded(&configuration);
    assert_eq!(
        without.len(),
        2 + 4
            + 39
            + 4
            + configuration.members.len() * 20
            + 4
            + configuration.volumes.len() * 14
            + 4
            + 8
    );
    let empty = [&without[..], &[16, 0, 3, 0, 0, 0, 0]].concat();
    assert!(decode_configuration(&empty).is_err(), "one value has one encoding");
    configuration.options.after_split_brain = AfterSplitBrain::DiscardYounger;
    assert_eq!(encoded(&configuration), [&without[..], &[16, 0, 3, 0, 1, 0, 0]].concat());
    configuration.unknown = vec![16, 0, 0, 0];
    assert!(check_configuration(&configuration).is_err(), "tag 16 is a known section");
}

#[test]
fn growths_are_written_only_where_a_volume_grows_and_each_once() {
    let mut configuration = sample::configuration(&mut Prng::new(7));
    configuration.unknown.clear();
    (configuration.held, configuration.verify) = (Held::default(), None);
    (configuration.options.resync_rate_max, configuration.options.resync_rate_min) = (0, 0);
    configuration.volumes.truncate(1);
    let volume = configuration.volumes[0].volume;
    configuration.volumes[0].grows_to = None;
    let without = encoded(&configuration);
    let sectors = configuration.volumes[0].sectors + 8;
    configuration.volumes[0].grows_to = Some(sectors);
    let one = [&volume.0.to_le_bytes()[..], &sectors.to_le_bytes()].concat();
    let section = [&without[..], &[17, 0, 10, 0], &one].concat();
    assert_eq!(encoded(&configuration), section);
    assert_eq!(decode_configuration(&section), Ok(configuration));
    assert!(decode_configuration(&[&without[..], &[17, 0, 0, 0]].concat()).is_err());
    assert!(decode_configuration(&[&without[..], &[17, 0, 20, 0], &one, &one].concat()).is_err());
    let other = [&(volume.0 + 1).to_le_bytes()[..], &sectors.to_le_bytes()].concat();
    assert!(decode_configuration(&[&without[..], &[17, 0, 10, 0], &other].concat()).is_err());
}

#[test]
fn a_full_configuration_takes_as_much_as_the_limit_says() {
    let mut configuration = sample::configuration(&mut Prng::new(9));
    let voter = |node: u16| MemberEntry {
        node: NodeId(node),
        kind: if node <= 8 { MemberKind::Replica } else { MemberKind::Witness },
        voter: base::VoterId(1),
        in_sync: false,
        incarnation: base::Incarnation(1),
    };
    configuration.members = (1..=16).map(voter).collect();
    let volume = |index: u16| VolumeEntry {
        volume: base::VolumeId(index),
        sectors: 8,
        grows_to: Some(16),
        block_bytes: 4096,
    };
    configuration.volumes = (0..64).map(volume).collect();
    configuration.lineage = (0..16).map(|_| sample::stretch(&mut Prng::new(1))).collect();
    configuration.held.requests = true;
    let (state, began, volume) = (VerifyState::Done, base::Epoch(1), base::VolumeId(0));
    let (next, repaired, at_ms, partial) = (0, 0, 0, false);
    configuration.verify =
        Some(VerifyEntry { state, began, volume, next, repaired, at_ms, partial });
    (configuration.options.resync_rate_max, configuration.options.resync_rate_min) = (1 << 20, 0);
    configuration.unknown.clear();
    configuration.reservations.clear();
    assert_eq!(encoded(&configuration).len(), 2542);
    let registrants =
        (1..=94).map(|host| Registrant { host: base::HostId(host), key: 1 }).collect();
    configuration.reservations = vec![VolumeReservations {
        volume: base::VolumeId(0),
        began: base::Epoch(1),
        generation: 94,
        persists: false,
        held: None,
        taken: None,
        registrants,
    }];
    assert_eq!(encoded(&configuration).len(), 2542 + 2296);
}

#[test]
fn what_is_held_and_compared_is_written_only_where_there_is_something_to_say() {
    let mut configuration = sample::configuration(&mut Prng::new(8));
    configuration.unknown.clear();
    (configuration.held, configuration.verify) = (Held::default(), None);
    (configuration.options.resync_rate_max, configuration.options.resync_rate_min) = (0, 0);
    let without = encoded(&configuration);
    configuration.held.resync = true;
    let held = [&without[..], &[18, 0, 2, 0, 0, 1]].concat();
    assert_eq!(encoded(&configuration), held);
    assert_eq!(decode_configuration(&held), Ok(configuration.clone()));
    let nothing = [&without[..], &[18, 0, 2, 0, 0, 0]].concat();
    assert!(decode_configuration(&nothing).is_err(), "one value has one encoding");
    let state = VerifyState::Stopped;
    let (began, volume) = (base::Epoch(1), base::VolumeId(2));
    configuration.verify =
        Some(VerifyEntry { state, began, volume, next: 3, repaired: 4, at_ms: 5, partial: true });
    let numbers = [3u64, 4, 5].map(u64::to_le_bytes).concat();
    let entry = [&[19, 0, 36, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0], &numbers[..], &[1]].concat();
    let both = [&held[..], &entry].concat();
    assert_eq!(encoded(&configuration), both);
    assert_eq!(decode_configuration(&both), Ok(configuration.clone()));
    let swapped = [&without[..], &entry, &held[without.len()..]].concat();
    assert!(decode_configuration(&swapped).is_err(), "sections ascend");
    for tag in 16..=20 {
        configuration.unknown = vec![tag, 0, 0, 0];
        assert!(check_configuration(&configuration).is_err(), "tag {tag} is a known section");
    }
}

#[test]
fn limits_on_resyncs_are_written_only_where_there_is_one() {
    let mut configuration = sample::configuration(&mut Prng::new(8));
    configuration.unknown.clear();
    (configuration.options.resync_rate_max, configuration.options.resync_rate_min) = (0, 0);
    let without = encoded(&configuration);
    configuration.options.resync_rate_min = 1 << 20;
    let rates = [0u64, 1 << 20].map(u64::to_le_bytes).concat();
    let limited = [&without[..], &[20, 0, 16, 0], &rates].concat();
    assert_eq!(encoded(&configuration), limited);
    assert_eq!(decode_configuration(&limited), Ok(configuration));
    let nothing = [&without[..], &[20, 0, 16, 0], &[0; 16]].concat();
    assert!(decode_configuration(&nothing).is_err(), "one value has one encoding");
}

//! Two nodes find out whether they can talk.

use super::sample;
use crate::*;
use base::{ClusterId, NodeId, Prng};

fn pair() -> (Hello, Hello) {
    let ours = Hello {
        version_min: 1,
        version_max: 3,
        features_offered: 0b0111,
        features_required: 0b0001,
        cluster: ClusterId(9),
        node: NodeId(1),
        stream: 1,
        streams: 4,
        ..sample::hello(&mut Prng::new(1))
    };
    let theirs = Hello {
        version_min: 2,
        version_max: 5,
        features_offered: 0b1101,
        features_required: 0b0100,
        node: NodeId(2),
        streams: 2,
        ..ours.clone()
    };
    (ours, theirs)
}

#[test]
fn the_newest_common_version_and_the_common_features_are_agreed() {
    let (ours, theirs) = pair();
    let agreed = Agreed { version: 3, features: 0b0101, stream: 1, streams: 4 };
    assert_eq!(agree(&ours, &theirs), Ok(agreed));
}

#[test]
fn each_disagreement_has_its_name() {
    let (ours, theirs) = pair();
    let changed = |change: fn(&mut Hello)| {
        let mut theirs = theirs.clone();
        change(&mut theirs);
        agree(&ours, &theirs)
    };
    assert_eq!(changed(|h| h.cluster.0 = 8), Err(Disagreement::Cluster));
    assert_eq!(changed(|h| h.node = NodeId(1)), Err(Disagreement::SameNode));
    assert_eq!(changed(|h| h.version_min = 4), Err(Disagreement::Version));
    assert_eq!(changed(|h| h.features_offered = 0b1100), Err(Disagreement::Features(1)));
    assert_eq!(changed(|h| h.features_required = 0b1100), Err(Disagreement::Features(8)));
    assert_eq!(changed(|h| h.stream = 0), Err(Disagreement::Stream));
    assert_eq!(changed(|h| h.streams = 3), Err(Disagreement::Stream), "shards could not be dealt");
    assert_eq!(changed(|h| h.streams = 2 * STREAMS_MAX), Err(Disagreement::Stream));
    let beyond = Hello { stream: 4, ..ours.clone() };
    let theirs = Hello { stream: 4, ..theirs.clone() };
    assert_eq!(agree(&beyond, &theirs), Err(Disagreement::Stream));
}

#[test]
fn both_ends_come_to_the_same_result() {
    let mut random = Prng::new(2);
    for _ in 0..2_000 {
        let ours = sample::hello(&mut random);
        let mut theirs = sample::hello(&mut random);
        theirs.cluster = ours.cluster;
        theirs.features_required &= ours.features_offered;
        theirs.features_offered |= ours.features_required;
        assert_eq!(agree(&ours, &theirs), agree(&theirs, &ours));
    }
}

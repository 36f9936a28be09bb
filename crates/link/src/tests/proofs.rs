//! What a node has signed, and what is taken for it and is not.

use std::collections::BTreeSet;

use base::{ClusterId, NodeId};

use super::{CLUSTER, NOW, authority, config, config_refusing, identity};
use crate::{Authority, CERTIFICATE_DAYS, LinkMode, Proof, Refusal, Revocations};

const SAID: &[u8] = b"lockstep voucher, and more";

fn proof_of(identity: &crate::Identity) -> Proof {
    config(identity, LinkMode::Encrypted).prove(SAID).expect("a key that signs")
}

#[test]
fn what_a_node_signed_is_verified_by_another_and_not_when_a_byte_of_it_is_changed() {
    let authority = authority();
    let judge = config(&identity(&authority, 2), LinkMode::Encrypted);
    let proof = proof_of(&identity(&authority, 1));
    assert_eq!(judge.verify(SAID, &proof), Ok(NodeId(1)));
    for at in 0..SAID.len() {
        let mut said = SAID.to_vec();
        said[at] ^= 1;
        assert_eq!(judge.verify(&said, &proof), Err(Refusal::Damaged));
    }
    for at in 0..proof.signature.len() {
        let mut forged = proof.clone();
        forged.signature[at] ^= 1;
        assert_eq!(judge.verify(SAID, &forged), Err(Refusal::Damaged));
    }
    let other = Proof { scheme: 0x0804, ..proof.clone() };
    assert_eq!(judge.verify(SAID, &other), Err(Refusal::Damaged), "another scheme");
    // Another node's certificate beside it, or none.
    let certificate = proof_of(&identity(&authority, 3)).certificate;
    let borrowed = Proof { certificate, ..proof.clone() };
    assert_eq!(judge.verify(SAID, &borrowed), Err(Refusal::Damaged));
    let bare = Proof { certificate: Vec::new(), ..proof };
    assert_eq!(judge.verify(SAID, &bare), Err(Refusal::Damaged));
}

#[test]
fn who_would_be_refused_as_a_peer_proves_nothing() {
    let authority = authority();
    let judge = config(&identity(&authority, 2), LinkMode::Encrypted);
    let other = Authority::create(ClusterId(7), NOW).unwrap();
    let stranger = proof_of(&identity(&other, 1));
    let local = CLUSTER;
    let refusal = Refusal::OtherCluster { local, remote: ClusterId(7) };
    assert_eq!(judge.verify(SAID, &stranger), Err(refusal));
    // The same names, by an authority that somebody made.
    let false_authority = Authority::create(CLUSTER, NOW).unwrap();
    let forged = proof_of(&identity(&false_authority, 1));
    assert_eq!(judge.verify(SAID, &forged), Err(Refusal::UnknownAuthority));
    let client = proof_of(&authority.issue_client("someone", NOW).unwrap());
    assert_eq!(judge.verify(SAID, &client), Err(Refusal::WrongPurpose), "a client is no node");
    let old = NOW - (CERTIFICATE_DAYS + 1) * 24 * 3600;
    let expired = proof_of(&authority.issue(NodeId(1), "node-1", &[], old).unwrap());
    assert_eq!(judge.verify(SAID, &expired), Err(Refusal::Expired));
    let nodes = BTreeSet::from([NodeId(1)]);
    let revocations = Revocations { nodes, ..Revocations::default() };
    let strict = config_refusing(&identity(&authority, 2), LinkMode::Encrypted, revocations);
    let proof = proof_of(&identity(&authority, 1));
    assert_eq!(strict.verify(SAID, &proof), Err(Refusal::Revoked));
}
